/* host_pieces.c - gather, scatter and all_to_all of the one-host plan: each piece has one reader, and goes from its sender's input into
 * its reader's output in one pass.
 *
 * Either of the two can do the copying, so they share it: of each piece between a root and another rank the root copies the last
 * 1/ranks, unless it has a piece of its own to copy; of the two pieces between ranks that exchange the lower rank copies the first halves. So
 * each rank is inside the buffers of one other at a time, and all copy about as much. Where two ranks exchange in place the
 * halves are swapped through a tile that stays in the first cache. Stores do not go past the caches: where a piece has one
 * reader, each byte is stored once, and 25 MiB took twice as long so.
 *
 * Unequal pieces: the root (of an exchange every rank) lays down where its pieces begin in its room, and the others say in their
 * announcement how long theirs is; both sides of a piece compare. Nobody knows all lengths before, so such a call is never short. */
#include "collective/host.h"

#include <string.h>

enum { SWAP_BYTES = 8192 };
_Static_assert(2 * (HOST_RANKS_MAX + 1) * sizeof(uint64_t) <= HOST_SHORT_BYTES, "the cuts of both vectors fit into a room");

/* ---- whose pieces are where ---- */
static struct host_range piece_of(const uint64_t *cuts, uint64_t count, uint32_t rank)
{
    return cuts ? (struct host_range){cuts[rank], cuts[rank + 1] - cuts[rank]} : (struct host_range){count * rank, count};
}

struct host_range host_piece_of(const struct weft_coll *coll, uint32_t rank) { return piece_of(coll->cursor.args.cut_in, coll->args.count, rank); }

/* What this rank has for rank `rank`, or of it, in a vector cut so. at_root: the kind whose root has a piece for each rank there; the others have one. */
static struct host_range piece_with(const struct weft_coll *coll, enum weft_coll_kind at_root, const uint64_t *cuts, uint32_t rank)
{
    uint32_t own = coll->group->rank, root = coll->args.root;
    struct host_range none = {0, 0}, piece = piece_of(cuts, coll->args.count, rank);
    if (coll->args.kind == WEFT_COLL_ALL_TO_ALL) return piece;
    if (coll->args.kind == at_root) return own == root ? piece : none;
    if (rank != root) return none;
    return (struct host_range){0, piece_of(cuts, coll->args.count, own).count};
}

struct host_range host_piece_sent(const struct weft_coll *coll, uint32_t rank)
{
    return piece_with(coll, WEFT_COLL_SCATTER, coll->cursor.args.cut_in, rank);
}

struct host_range host_piece_got(const struct weft_coll *coll, uint32_t rank)
{
    return piece_with(coll, WEFT_COLL_GATHER, coll->cursor.args.cut_out, rank);
}

bool host_keeps_piece(const struct weft_coll *coll)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t own = coll->group->rank;
    struct host_range sent = host_piece_sent(coll, own), got = host_piece_got(coll, own);
    return got.count > 0 && (const uint8_t *)args->in + sent.first * coll->elem_bytes != (uint8_t *)args->out + got.first * coll->elem_bytes;
}

/* ---- unequal pieces ---- */
bool host_says_cuts(const struct weft_group *group, const struct weft_coll_args *args)
{
    if (args->kind == WEFT_COLL_ALL_TO_ALL) return args->counts != NULL;
    return args->unequal && args->root == group->rank;
}

uint64_t host_say_lengths(struct host *host, const struct weft_coll *coll, uint64_t number)
{
    const struct weft_plan_args *plan = &coll->cursor.args;
    uint32_t ranks = host->group->ranks;
    if (!plan->own_lengths) return coll->header.cuts; /* all ranks know all lengths: one number that differs where they do not agree */
    if (!host_says_cuts(host->group, &coll->args)) return coll->args.count;
    const struct host_room *room = &host->rooms[HOST_ROOM];
    WEFT_ASSERT(room->memory);
    size_t at = host_room_place(host, number);
    uint64_t *cuts = (uint64_t *)(room->memory + at);
    for (uint32_t r = 0; r <= ranks; r++) {
        cuts[r] = plan->cut_in ? plan->cut_in[r] : coll->args.count * r;
        cuts[ranks + 1 + r] = plan->cut_out ? plan->cut_out[r] : coll->args.count * r;
    }
    return room->at + at;
}

/* The piece in the vector that a rank's cuts are of. false: they lie outside its memory. */
static bool said_piece(const struct host_peer *peer, uint64_t at, uint32_t ranks, uint32_t index, bool out, struct host_range *piece_out)
{
    if (!host_place_holds(peer->place, at, 2 * (ranks + 1ull) * sizeof(uint64_t)) || at % sizeof(uint64_t) != 0) return false;
    const uint64_t *cuts = (const uint64_t *)(peer->place->mapping.base + at) + (out ? ranks + 1 : 0);
    *piece_out = (struct host_range){cuts[index], cuts[index + 1] - cuts[index]};
    return true;
}

/* How a rank sees the pieces between it and this one: the one that it sends, the one that it gets. */
static bool pieces_said(const struct host *host, const struct weft_coll *coll, uint32_t rank, struct host_range *sends, struct host_range *gets)
{
    const struct host_post *post = host_post_of(host->peers[rank].segment, coll->host.number);
    uint32_t own = host->group->rank, ranks = host->group->ranks, root = coll->args.root;
    bool gathers = coll->args.kind == WEFT_COLL_GATHER, exchanges = coll->args.kind == WEFT_COLL_ALL_TO_ALL;
    uint64_t said;
    memcpy(&said, post->word, sizeof said);
    *sends = *gets = (struct host_range){0, 0};
    if (!coll->cursor.args.own_lengths) {
        if (exchanges || (rank == root && !gathers)) *sends = piece_of(NULL, coll->args.count, own);
        else if (gathers && own == root) sends->count = coll->args.count;
        if (exchanges || (rank == root && gathers)) *gets = piece_of(NULL, coll->args.count, own);
        else if (!gathers && own == root) gets->count = coll->args.count;
        return true;
    }
    if (exchanges) return said_piece(&host->peers[rank], said, ranks, own, false, sends) && said_piece(&host->peers[rank], said, ranks, own, true, gets);
    if (rank == root) return said_piece(&host->peers[rank], said, ranks, own, false, gathers ? gets : sends);
    if (own == root) (gathers ? sends : gets)->count = said;
    return true;
}

/* Is that much of a vector at `at` in memory of so many bytes? */
static bool holds(uint64_t bytes, uint64_t at, struct host_range piece, size_t elem_bytes)
{
    if (piece.count == 0) return true;
    uint64_t elems = at <= bytes ? (bytes - at) / elem_bytes : 0;
    return piece.first <= elems && piece.count <= elems - piece.first;
}

bool host_pieces_meet(const struct host *host, struct weft_coll *coll, uint32_t rank, struct host_reach *reach, bool *fits_out)
{
    const struct host_post *post = host_post_of(host->peers[rank].segment, coll->host.number);
    const uint64_t bytes = host->peers[rank].place->mapping.bytes;
    struct host_range sends, gets, got = host_piece_got(coll, rank), sent = host_piece_sent(coll, rank);
    *fits_out = pieces_said(host, coll, rank, &sends, &gets);
    if (!*fits_out) return true;
    bool sends_other = sends.count != got.count, gets_other = gets.count != sent.count;
    if (sends_other) coll_lengths_differ(coll, rank, true, sends.count * coll->elem_bytes, got.count * coll->elem_bytes);
    else if (gets_other) coll_lengths_differ(coll, rank, false, sent.count * coll->elem_bytes, gets.count * coll->elem_bytes);
    if (sends_other || gets_other) return false;
    if (post->flags & HOST_MAPPED) *fits_out = holds(bytes, post->in, sends, coll->elem_bytes) && holds(bytes, post->out, gets, coll->elem_bytes);
    reach->in_first = sends.first;
    reach->out_first = gets.first;
    reach->keeps = post->flags & HOST_KEEPS;
    return true;
}

/* ---- who copies what ---- */

/* Of (count,) elements that go between this rank and `rank`, those that this one copies. */
static struct host_range share_of(const struct host *host, const struct weft_coll *coll, uint32_t rank, uint64_t count)
{
    uint32_t own = host->group->rank, ranks = host->group->ranks, root = coll->args.root;
    bool exchanges = coll->args.kind == WEFT_COLL_ALL_TO_ALL;
    uint64_t unit = HOST_PIECE_BYTES / coll->elem_bytes, half = exchanges ? count - count / 2 : host->reach[root].keeps ? count : count - count / ranks;
    while (unit > 1 && count / unit < 8) unit /= 2;
    if (half < count) half = half / unit * unit;
    bool first = exchanges ? own < rank : own != root;
    return first ? (struct host_range){0, half} : (struct host_range){half, count - half};
}

static struct host_range common(struct host_range a, struct host_range b)
{
    uint64_t first = a.first > b.first ? a.first : b.first, a_end = a.first + a.count, b_end = b.first + b.count, end = a_end < b_end ? a_end : b_end;
    return (struct host_range){first, end > first ? end - first : 0};
}

struct host_range host_pieces_slice(const struct host *host, const struct weft_coll *coll)
{
    uint32_t own = host->group->rank;
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t r = 0; r < host->group->ranks; r++) {
        struct host_range shares[2] = {share_of(host, coll, r, host_piece_sent(coll, r).count), share_of(host, coll, r, host_piece_got(coll, r).count)};
        if (r == own) shares[0] = (struct host_range){0, 0}, shares[1] = (struct host_range){0, host->reach[own].keeps ? host_piece_got(coll, own).count : 0};
        for (int i = 0; i < 2; i++) {
            if (shares[i].count == 0) continue;
            if (shares[i].first < first) first = shares[i].first;
            if (shares[i].first + shares[i].count > end) end = shares[i].first + shares[i].count;
        }
    }
    return end > 0 ? (struct host_range){first, end - first} : (struct host_range){0, 0};
}

/* ---- the copying ---- */
struct job {
    struct host *host;
    struct weft_coll *coll;
    uint32_t rank; /* the other one */
};

/* From memory of this rank into the other's output, `at` bytes from where that begins. */
static enum weft_status give(const struct job *job, uint8_t *from, uint64_t at, size_t bytes)
{
    const struct host_reach *reach = &job->host->reach[job->rank];
    if (reach->copied) return weft_peer_copy(job->host->group->roster->peers[job->rank], true, reach->out_address + at, from, bytes);
    memcpy(reach->out + at, from, bytes);
    return WEFT_OK;
}

static enum weft_status take(const struct job *job, uint8_t *to, uint64_t at, size_t bytes)
{
    const struct host_reach *reach = &job->host->reach[job->rank];
    if (reach->copied) return weft_peer_copy(job->host->group->roster->peers[job->rank], false, reach->in_address + at, to, bytes);
    memcpy(to, reach->in + at, bytes);
    return WEFT_OK;
}

/* Both are in place: what is given lies where what is taken goes. */
static enum weft_status swap(const struct job *job, uint8_t *own, uint64_t at, size_t bytes)
{
    uint8_t tile[SWAP_BYTES];
    for (size_t done = 0; done < bytes; done += sizeof tile) {
        size_t now = bytes - done < sizeof tile ? bytes - done : sizeof tile;
        WEFT_TRY(take(job, tile, at + done, now));
        WEFT_TRY(give(job, own + done, at + done, now));
        memcpy(own + done, tile, now);
    }
    return WEFT_OK;
}

static enum weft_status exchange(const struct job *job, struct host_range range)
{
    struct weft_coll *coll = job->coll;
    const struct host_reach *reach = &job->host->reach[job->rank];
    size_t elem_bytes = coll->elem_bytes;
    struct host_range sent = host_piece_sent(coll, job->rank), got = host_piece_got(coll, job->rank);
    struct host_range giving = common(range, share_of(job->host, coll, job->rank, sent.count)), taking = common(range, share_of(job->host, coll, job->rank, got.count));
    uint8_t *from = giving.count ? (uint8_t *)(uintptr_t)coll->args.in + (sent.first + giving.first) * elem_bytes : NULL;
    uint8_t *to = taking.count ? (uint8_t *)coll->args.out + (got.first + taking.first) * elem_bytes : NULL;
    uint64_t give_at = (reach->out_first + giving.first) * elem_bytes, take_at = (reach->in_first + taking.first) * elem_bytes;
    bool in_place = giving.count && taking.count && (reach->copied ? reach->in_address == reach->out_address : reach->in == reach->out);
    if (in_place && from == to) return swap(job, from, take_at, taking.count * elem_bytes);
    if (in_place) { /* before something is written there */
        WEFT_TRY(take(job, to, take_at, taking.count * elem_bytes));
        return give(job, from, give_at, giving.count * elem_bytes);
    }
    if (giving.count) WEFT_TRY(give(job, from, give_at, giving.count * elem_bytes));
    return taking.count ? take(job, to, take_at, taking.count * elem_bytes) : WEFT_OK;
}

enum weft_status host_pieces_work(struct host *host, struct weft_coll *coll, struct host_range range, uint32_t *culprit_out)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t own = host->group->rank, ranks = host->group->ranks;
    struct host_range sent = host_piece_sent(coll, own), got = host_piece_got(coll, own), kept = common(range, (struct host_range){0, got.count});
    struct job job = {host, coll, own};
    if (host->reach[own].keeps && kept.count > 0) {
        const uint8_t *from = (const uint8_t *)args->in + (sent.first + kept.first) * coll->elem_bytes;
        memcpy((uint8_t *)args->out + (got.first + kept.first) * coll->elem_bytes, from, kept.count * coll->elem_bytes);
    }
    for (uint32_t distance = 1; distance < ranks; distance++) {
        job.rank = *culprit_out = (own + distance) % ranks;
        WEFT_TRY(exchange(&job, range));
    }
    return WEFT_OK;
}
