/* personalized.c - gather, scatter and all_to_all: each piece has one reader and is copied once, from input
 * to output.
 *
 * Sender and receiver share the copying. Of a piece between the root and another rank the root copies the
 * last 1/ranks, unless it has a local piece to copy. Of the two pieces of an all_to_all pair the lower rank
 * copies the first halves. So a rank accesses the buffers of one peer at a time. In place the halves are
 * swapped through a tile in the first-level cache. Stores are never non-temporal, because each byte is stored
 * once. Unequal pieces: the root (in an all_to_all every rank) publishes its cuts in a small slot, the other
 * ranks publish their length in the descriptor, and both sides compare. No rank knows all lengths, so such a
 * call never uses copy-in. */
#include "collective/core/interpreter.h"
#include "collective/onehost/onehost.h"

#include <string.h>

enum { SWAP_BYTES = 8192 };
_Static_assert(2 * (ONEHOST_RANKS_MAX + 1) * sizeof(uint64_t) <= ONEHOST_SMALL_SLOT_BYTES,
               "the cuts of both vectors fit into a small slot");

/* ---- pieces ---- */
static struct onehost_range piece_of(const uint64_t *cuts, uint64_t count, uint32_t rank)
{
    return cuts ? (struct onehost_range){cuts[rank], cuts[rank + 1] - cuts[rank]}
                : (struct onehost_range){count * rank, count};
}

struct onehost_range onehost_piece_of(const struct weft_coll *coll, uint32_t rank)
{
    return piece_of(coll->steps.cursor.args.displs_in, coll->args.count, rank);
}

/* The piece between this rank and `rank` in a vector with these cuts. at_root: the kind whose root has one
 * piece per rank; the other ranks have one piece. */
static struct onehost_range piece_with(const struct weft_coll *coll, enum weft_coll_kind at_root,
                                       const uint64_t *cuts, uint32_t rank)
{
    uint32_t own = coll->group->rank, root = coll->args.root;
    struct onehost_range none = {0, 0}, piece = piece_of(cuts, coll->args.count, rank);
    if (coll->args.kind == WEFT_COLL_ALL_TO_ALL) return piece;
    if (coll->args.kind == at_root) return own == root ? piece : none;
    if (rank != root) return none;
    return (struct onehost_range){0, piece_of(cuts, coll->args.count, own).count};
}

struct onehost_range onehost_piece_sent(const struct weft_coll *coll, uint32_t rank)
{
    return piece_with(coll, WEFT_COLL_SCATTER, coll->steps.cursor.args.displs_in, rank);
}

struct onehost_range onehost_piece_received(const struct weft_coll *coll, uint32_t rank)
{
    return piece_with(coll, WEFT_COLL_GATHER, coll->steps.cursor.args.displs_out, rank);
}

bool onehost_has_local_piece(const struct weft_coll *coll)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t own = coll->group->rank;
    struct onehost_range sent = onehost_piece_sent(coll, own), received = onehost_piece_received(coll, own);
    return received.count > 0 && (const uint8_t *)args->in + sent.first * coll->data.elem_bytes !=
                                     (uint8_t *)args->out + received.first * coll->data.elem_bytes;
}

/* ---- unequal pieces ---- */
bool onehost_publishes_cuts(const struct weft_group *group, const struct weft_coll_args *args)
{
    if (args->kind == WEFT_COLL_ALL_TO_ALL) return args->counts != NULL;
    return args->unequal && args->root == group->rank;
}

uint64_t onehost_publish_lengths(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq)
{
    const struct weft_plan_args *plan = &coll->steps.cursor.args;
    uint32_t ranks = onehost->group->ranks;
    /* all ranks know all lengths: a hash that differs if they disagree */
    if (!plan->own_lengths) return coll->header.cuts;
    if (!onehost_publishes_cuts(onehost->group, &coll->args)) return coll->args.count;
    const struct onehost_copyin_slots *copyin_slots = &onehost->copyin_slots[ONEHOST_SMALL];
    WEFT_ASSERT(copyin_slots->memory);
    size_t at = onehost_small_slot_take(onehost, seq);
    uint64_t *cuts = (uint64_t *)(copyin_slots->memory + at);
    for (uint32_t r = 0; r <= ranks; r++) {
        cuts[r] = plan->displs_in ? plan->displs_in[r] : coll->args.count * r;
        cuts[ranks + 1 + r] = plan->displs_out ? plan->displs_out[r] : coll->args.count * r;
    }
    return copyin_slots->at + at;
}

/* The piece from a peer's cuts. false: the cuts are outside its memory. */
static bool peer_cut(const struct onehost_peer *peer, uint64_t at, uint32_t ranks, uint32_t index, bool out,
                     struct onehost_range *piece_out)
{
    if (!onehost_peer_memory_contains(peer->memory, at, 2 * (ranks + 1ull) * sizeof(uint64_t)) ||
        at % sizeof(uint64_t) != 0)
        return false;
    const uint64_t *cuts = (const uint64_t *)(peer->memory->mapping.base + at) + (out ? ranks + 1 : 0);
    *piece_out = (struct onehost_range){cuts[index], cuts[index + 1] - cuts[index]};
    return true;
}

/* The pieces between `rank` and this rank as `rank` has published them. */
static bool peer_pieces(const struct onehost *onehost, const struct weft_coll *coll, uint32_t rank,
                        struct onehost_range *sends, struct onehost_range *receives)
{
    const struct onehost_descriptor *descriptor =
        onehost_descriptor_of(onehost->peers[rank].segment, coll->onehost.seq);
    uint32_t own = onehost->group->rank, ranks = onehost->group->ranks, root = coll->args.root;
    bool gathers = coll->args.kind == WEFT_COLL_GATHER, exchanges = coll->args.kind == WEFT_COLL_ALL_TO_ALL;
    uint64_t published;
    memcpy(&published, descriptor->inline_data, sizeof published);
    *sends = *receives = (struct onehost_range){0, 0};
    if (!coll->steps.cursor.args.own_lengths) {
        if (exchanges || (rank == root && !gathers)) *sends = piece_of(NULL, coll->args.count, own);
        else if (gathers && own == root) sends->count = coll->args.count;
        if (exchanges || (rank == root && gathers)) *receives = piece_of(NULL, coll->args.count, own);
        else if (!gathers && own == root) receives->count = coll->args.count;
        return true;
    }
    if (exchanges)
        return peer_cut(&onehost->peers[rank], published, ranks, own, false, sends) &&
               peer_cut(&onehost->peers[rank], published, ranks, own, true, receives);
    if (rank == root)
        return peer_cut(&onehost->peers[rank], published, ranks, own, false, gathers ? receives : sends);
    if (own == root) (gathers ? sends : receives)->count = published;
    return true;
}

/* Does the piece fit into (bytes,) of memory from `at`? */
static bool vector_fits(uint64_t bytes, uint64_t at, struct onehost_range piece, size_t elem_bytes)
{
    if (piece.count == 0) return true;
    uint64_t elems = at <= bytes ? (bytes - at) / elem_bytes : 0;
    return piece.first <= elems && piece.count <= elems - piece.first;
}

bool onehost_pieces_check(const struct onehost *onehost, struct weft_coll *coll, uint32_t rank,
                          struct onehost_buffers *buffers, bool *fits_out)
{
    const struct onehost_descriptor *descriptor =
        onehost_descriptor_of(onehost->peers[rank].segment, coll->onehost.seq);
    const uint64_t bytes = onehost->peers[rank].memory->mapping.bytes;
    struct onehost_range sends, receives, received = onehost_piece_received(coll, rank),
                                          sent = onehost_piece_sent(coll, rank);
    *fits_out = peer_pieces(onehost, coll, rank, &sends, &receives);
    if (!*fits_out) return true;
    bool sends_other = sends.count != received.count, receives_other = receives.count != sent.count;
    if (sends_other)
        coll_report_lengths(coll, rank, true, sends.count * coll->data.elem_bytes,
                            received.count * coll->data.elem_bytes);
    else if (receives_other)
        coll_report_lengths(coll, rank, false, sent.count * coll->data.elem_bytes,
                            receives.count * coll->data.elem_bytes);
    if (sends_other || receives_other) return false;
    if (descriptor->flags & ONEHOST_DIRECT)
        *fits_out = vector_fits(bytes, descriptor->in, sends, coll->data.elem_bytes) &&
                    vector_fits(bytes, descriptor->out, receives, coll->data.elem_bytes);
    buffers->in_first = sends.first;
    buffers->out_first = receives.first;
    buffers->has_local_piece = descriptor->flags & ONEHOST_HAS_LOCAL_PIECE;
    return true;
}

/* ---- division of work ---- */

/* The part that this rank copies, of (count,) elements between it and `rank`. */
static struct onehost_range share_of(const struct onehost *onehost, const struct weft_coll *coll,
                                     uint32_t rank, uint64_t count)
{
    uint32_t own = onehost->group->rank, ranks = onehost->group->ranks, root = coll->args.root;
    bool exchanges = coll->args.kind == WEFT_COLL_ALL_TO_ALL;
    uint64_t unit = ONEHOST_SLICE_ALIGN_BYTES / coll->data.elem_bytes,
             half = exchanges                                ? count - count / 2
                    : onehost->buffers[root].has_local_piece ? count
                                                             : count - count / ranks;
    while (unit > 1 && count / unit < 8) unit /= 2;
    if (half < count) half = half / unit * unit;
    bool first = exchanges ? own < rank : own != root;
    return first ? (struct onehost_range){0, half} : (struct onehost_range){half, count - half};
}

static struct onehost_range intersect(struct onehost_range a, struct onehost_range b)
{
    uint64_t first = a.first > b.first ? a.first : b.first, a_end = a.first + a.count,
             b_end = b.first + b.count, end = a_end < b_end ? a_end : b_end;
    return (struct onehost_range){first, end > first ? end - first : 0};
}

struct onehost_range onehost_pieces_slice(const struct onehost *onehost, const struct weft_coll *coll)
{
    uint32_t own = onehost->group->rank;
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t r = 0; r < onehost->group->ranks; r++) {
        struct onehost_range shares[2] = {share_of(onehost, coll, r, onehost_piece_sent(coll, r).count),
                                          share_of(onehost, coll, r, onehost_piece_received(coll, r).count)};
        if (r == own)
            shares[0] = (struct onehost_range){0, 0},
            shares[1] = (struct onehost_range){
                0, onehost->buffers[own].has_local_piece ? onehost_piece_received(coll, own).count : 0};
        for (int i = 0; i < 2; i++) {
            if (shares[i].count == 0) continue;
            if (shares[i].first < first) first = shares[i].first;
            if (shares[i].first + shares[i].count > end) end = shares[i].first + shares[i].count;
        }
    }
    return end > 0 ? (struct onehost_range){first, end - first} : (struct onehost_range){0, 0};
}

/* ---- copying ---- */
struct job {
    struct onehost *onehost;
    struct weft_coll *coll;
    uint32_t rank; /* the peer */
};

/* From own memory to byte `at` of the peer's output. */
static enum weft_status put(const struct job *job, uint8_t *from, uint64_t at, size_t bytes)
{
    const struct onehost_buffers *buffers = &job->onehost->buffers[job->rank];
    if (buffers->uses_cma)
        return weft_peer_copy(job->onehost->group->peer_table->peers[job->rank], true,
                              buffers->out_address + at, from, bytes);
    memcpy(buffers->out + at, from, bytes);
    return WEFT_OK;
}

static enum weft_status get(const struct job *job, uint8_t *to, uint64_t at, size_t bytes)
{
    const struct onehost_buffers *buffers = &job->onehost->buffers[job->rank];
    if (buffers->uses_cma)
        return weft_peer_copy(job->onehost->group->peer_table->peers[job->rank], false,
                              buffers->in_address + at, to, bytes);
    memcpy(to, buffers->in + at, bytes);
    return WEFT_OK;
}

/* Both ranks in place: each piece is stored where the other one was. */
static enum weft_status swap(const struct job *job, uint8_t *own, uint64_t at, size_t bytes)
{
    uint8_t tile[SWAP_BYTES];
    for (size_t done = 0; done < bytes; done += sizeof tile) {
        size_t now = bytes - done < sizeof tile ? bytes - done : sizeof tile;
        WEFT_TRY(get(job, tile, at + done, now));
        WEFT_TRY(put(job, own + done, at + done, now));
        memcpy(own + done, tile, now);
    }
    return WEFT_OK;
}

static enum weft_status exchange(const struct job *job, struct onehost_range range)
{
    struct weft_coll *coll = job->coll;
    const struct onehost_buffers *buffers = &job->onehost->buffers[job->rank];
    size_t elem_bytes = coll->data.elem_bytes;
    struct onehost_range sent = onehost_piece_sent(coll, job->rank),
                         received = onehost_piece_received(coll, job->rank);
    struct onehost_range put_range = intersect(range, share_of(job->onehost, coll, job->rank, sent.count)),
                         get_range =
                             intersect(range, share_of(job->onehost, coll, job->rank, received.count));
    uint8_t *from = put_range.count
                        ? (uint8_t *)(uintptr_t)coll->args.in + (sent.first + put_range.first) * elem_bytes
                        : NULL;
    uint8_t *to =
        get_range.count ? (uint8_t *)coll->args.out + (received.first + get_range.first) * elem_bytes : NULL;
    uint64_t put_at = (buffers->out_first + put_range.first) * elem_bytes,
             get_at = (buffers->in_first + get_range.first) * elem_bytes;
    bool in_place =
        put_range.count && get_range.count &&
        (buffers->uses_cma ? buffers->in_address == buffers->out_address : buffers->in == buffers->out);
    if (in_place && from == to) return swap(job, from, get_at, get_range.count * elem_bytes);
    if (in_place) { /* before it is overwritten */
        WEFT_TRY(get(job, to, get_at, get_range.count * elem_bytes));
        return put(job, from, put_at, put_range.count * elem_bytes);
    }
    if (put_range.count) WEFT_TRY(put(job, from, put_at, put_range.count * elem_bytes));
    return get_range.count ? get(job, to, get_at, get_range.count * elem_bytes) : WEFT_OK;
}

enum weft_status onehost_pieces_work(struct onehost *onehost, struct weft_coll *coll,
                                     struct onehost_range range, uint32_t *culprit_out)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t own = onehost->group->rank, ranks = onehost->group->ranks;
    struct onehost_range sent = onehost_piece_sent(coll, own), received = onehost_piece_received(coll, own),
                         own_range = intersect(range, (struct onehost_range){0, received.count});
    struct job job = {onehost, coll, own};
    if (onehost->buffers[own].has_local_piece && own_range.count > 0) {
        const uint8_t *from =
            (const uint8_t *)args->in + (sent.first + own_range.first) * coll->data.elem_bytes;
        memcpy((uint8_t *)args->out + (received.first + own_range.first) * coll->data.elem_bytes, from,
               own_range.count * coll->data.elem_bytes);
    }
    for (uint32_t distance = 1; distance < ranks; distance++) {
        job.rank = *culprit_out = (own + distance) % ranks;
        WEFT_TRY(exchange(&job, range));
    }
    return WEFT_OK;
}
