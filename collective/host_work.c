/* host_work.c - the arithmetic of the one-host plan: a range of elements, everybody's inputs, everybody's outputs.
 *
 * Every element evaluates T over the ranks, f32 for the 16-bit types, rounded once: the same bits as the direct plan. Up to
 * eight sources are summed in registers in one pass; more are summed eight at a time into a tile that stays in the first
 * cache: eight consecutive ranks are a subtree of T, and so are the last few; T over such groups is T over their sums. */
#include "collective/host.h"

#include <string.h>

enum { LINE = 64, TILE = 512, AT_ONCE = 8, FEW = HOST_WORD_BYTES / 4, GROUPS_MAX = HOST_RANKS_MAX / AT_ONCE, LEVELS = 8 };
_Static_assert(1 << (LEVELS - 2) >= HOST_RANKS_MAX, "a tile for each level of the tree");

/* ---- who owns what ---- */

/* The others' contributions where they are not mapped, and the sum before it goes to a root that is not. */
size_t host_scratch_bytes(const struct weft_group *group, const struct weft_coll_args *args)
{
    bool small = args->kind == WEFT_COLL_REDUCE_SCATTER && args->counts; /* it may be, without being short */
    return args->kind == WEFT_COLL_REDUCE || small ? (group->ranks + 1) * (size_t)HOST_PLACE_BYTES : 0;
}

struct host_range host_slice(const struct weft_coll *coll)
{
    if (host_of_pieces(coll->args.kind)) return host_pieces_slice(coll->group->host, coll);
    return host_slice_of(coll, coll->group->rank);
}

struct host_range host_slice_of(const struct weft_coll *coll, uint32_t rank)
{
    if (coll->args.kind == WEFT_COLL_REDUCE_SCATTER || coll->args.kind == WEFT_COLL_ALL_GATHER) return (struct host_range){0, host_piece_of(coll, rank).count};
    uint64_t count = coll->args.count, ranks = coll->group->ranks;
    uint64_t unit = HOST_PIECE_BYTES / coll->elem_bytes;
    while (unit > 1 && count / unit < 8 * ranks) unit /= 2;
    uint64_t units = count / unit; /* the last slice takes what is left */
    uint64_t first = units / ranks * rank + units % ranks * rank / ranks, next = units / ranks * (rank + 1) + units % ranks * (rank + 1) / ranks;
    return (struct host_range){first * unit, (rank + 1 == ranks ? count : next * unit) - first * unit};
}

/* ---- sums ---- */
struct host_sum {
    struct sum elements;
    uint32_t source_count, out_count;
    bool stream; /* nobody will find the outputs in a cache */
    const uint8_t *sources[HOST_RANKS_MAX];
    uint8_t *outs[HOST_RANKS_MAX];
};

/* What the kernels sum many at a time. */
static bool half_float(enum weft_dtype dtype) { return dtype == WEFT_F16 || dtype == WEFT_BF16; }
static bool adds_floats(const struct sum *sum)
{
    return (sum->dtype == WEFT_F32 || half_float(sum->dtype)) && (sum->op == WEFT_SUM || sum->op == WEFT_AVG || sum->op == WEFT_SCALED_SUM);
}

/* What the finished sum of floats is multiplied by, as sum.c does it. */
static float factor_of(const struct sum *sum) { return sum->total != 0 ? sum_share(sum) : 1; }

static void store_all(const struct host_sum *sum, size_t at, const void *from, size_t bytes)
{
    for (uint32_t o = 0; o < sum->out_count; o++) memcpy(sum->outs[o] + at, from, bytes);
}

struct group_of_sources {
    uint32_t first, count; /* up to eight */
    float lift, factor;    /* factor of each contribution; of the sum */
};

/* T over these sources of the tile into `total`. */
static void sum_group(const struct host_sum *sum, struct group_of_sources group, size_t from, size_t elems, float *total)
{
    const uint32_t count = group.count;
    float wide[AT_ONCE][TILE];
    const float *sources[AT_ONCE];
    for (uint32_t s = 0; s < count; s++) {
        const uint8_t *source = sum->sources[group.first + s];
        sources[s] = half_float(sum->elements.dtype) ? wide[s] : (const float *)source + from;
        if (sum->elements.dtype == WEFT_F16) weft_kernels()->cast_f16_f32(wide[s], (const uint16_t *)source + from, elems);
        else if (sum->elements.dtype == WEFT_BF16) weft_kernels()->cast_bf16_f32(wide[s], (const uint16_t *)source + from, elems);
        if (group.lift != 1) weft_kernels()->scale_f32(wide[s], sources[s], group.lift, elems), sources[s] = wide[s];
    }
    weft_kernels()->sum_tree_f32(&total, 1, sources, count, group.factor, elems);
}

/* Multiplies the contributions by `lift`. Returns false and stores nothing if a mean of bf16 is not finite and the lift of the
 * operation could make it finite. */
static bool sum_tile_lifted(const struct host_sum *sum, size_t from, size_t elems, float lift)
{
    float partials[GROUPS_MAX][TILE], *total = partials[0];
    uint16_t narrowed[TILE];
    const float *sources[GROUPS_MAX], factor = factor_of(&sum->elements) * (sum->elements.lift / lift);
    uint32_t groups = 0;
    for (uint32_t s = 0; s < sum->source_count; s += AT_ONCE, groups++) {
        uint32_t count = sum->source_count - s < AT_ONCE ? sum->source_count - s : AT_ONCE;
        const struct group_of_sources group = {s, count, lift, sum->source_count <= AT_ONCE ? factor : 1};
        sum_group(sum, group, from, elems, partials[groups]);
        sources[groups] = partials[groups];
    }
    if (groups > 1) weft_kernels()->sum_tree_f32(&total, 1, sources, groups, factor, elems);
    if (sum->elements.dtype == WEFT_F32) {
        store_all(sum, from * sizeof(float), total, elems * sizeof(float));
        return true;
    }
    if (sum->elements.dtype == WEFT_F16) weft_kernels()->cast_f32_f16(narrowed, total, elems);
    else weft_kernels()->cast_f32_bf16(narrowed, total, elems);
    if (lift != sum->elements.lift && !weft_halves_finite(narrowed, elems, WEFT_BF16_EXPONENT)) return false;
    store_all(sum, from * sizeof(uint16_t), narrowed, elems * sizeof(uint16_t));
    return true;
}

/* The tile is computed again with the lift only if its result is not finite. The bits are the same either way. */
static void sum_tile_float(const struct host_sum *sum, size_t from, size_t elems)
{
    if (!sum_tile_lifted(sum, from, elems, 1)) sum_tile_lifted(sum, from, elems, sum->elements.lift);
}

/* Other types and reductions: T from its definition, a tile of partials for each level. `room` has one for each below. */
static void sum_tree_tile(const struct host_sum *sum, uint32_t first, uint32_t count, size_t from, size_t elems, double (*room)[TILE])
{
    struct sum_in left = {room[0], true}, right = {room[1], true};
    if (count == 1) {
        struct sum_in source = {sum->sources[first] + from * weft_dtype_bytes(sum->elements.dtype), false};
        sum_copy(&sum->elements, (struct sum_out){room[0], true, false}, source, elems);
        return;
    }
    uint32_t half = 1;
    while (half * 2 < count) half *= 2;
    sum_tree_tile(sum, first, half, from, elems, room);
    sum_tree_tile(sum, first + half, count - half, from, elems, room + 1);
    sum_pair(&sum->elements, (struct sum_out){room[0], true, false}, left, right, elems);
}

static void sum_tile_any(const struct host_sum *sum, size_t from, size_t elems)
{
    double room[LEVELS][TILE], narrowed[TILE];
    size_t elem_bytes = weft_dtype_bytes(sum->elements.dtype);
    sum_tree_tile(sum, 0, sum->source_count, from, elems, room);
    sum_copy(&sum->elements, (struct sum_out){narrowed, false, true}, (struct sum_in){room[0], true}, elems);
    store_all(sum, from * elem_bytes, narrowed, elems * elem_bytes);
}

static void sum_all(const struct host_sum *sum, uint64_t count)
{
    if (sum->elements.dtype == WEFT_F32 && adds_floats(&sum->elements) && sum->source_count <= AT_ONCE) {
        /* a few elements: masked vectors take longer than the loop */
        const struct weft_kernels *kernels = count <= FEW ? weft_kernels_by_name("scalar") : weft_kernels();
        (sum->stream ? kernels->sum_tree_stream_f32 : kernels->sum_tree_f32)((float *const *)sum->outs, sum->out_count,
                                                                             (const float *const *)sum->sources, sum->source_count, factor_of(&sum->elements), count);
        return;
    }
    for (uint64_t done = 0; done < count; done += TILE) {
        size_t elems = count - done < TILE ? count - done : TILE;
        if (adds_floats(&sum->elements)) sum_tile_float(sum, done, elems);
        else sum_tile_any(sum, done, elems);
    }
}

void host_sum(const struct weft_coll *coll, const uint8_t *const *sources, uint8_t *const *outs, uint32_t out_count, uint64_t count)
{
    struct host_sum sum; /* large: only what is used is set */
    sum.elements = coll->sum;
    sum.source_count = coll->group->ranks;
    sum.out_count = out_count;
    sum.stream = false;
    memcpy(sum.sources, sources, sum.source_count * sizeof sources[0]);
    memcpy(sum.outs, outs, out_count * sizeof outs[0]);
    sum_all(&sum, count);
}

/* ---- short ones: out of the announcements ---- */
struct lines {
    struct host *host;
    const struct weft_coll_args *args;
    uint64_t number;
};

static const uint8_t *contribution(const struct lines *lines, uint32_t rank, size_t bytes)
{
    if (rank == lines->host->group->rank) return lines->args->in; /* what it has announced lies in the others' caches */
    const uint8_t *said = host_contribution(lines->host, rank, lines->number, bytes);
    return said ? said : lines->args->in; /* seen to be there before: who changes that gets a sum of nonsense */
}

/* What the root has said into the own output: all of it, or the piece for this rank. */
static void from_root(const struct lines *lines, size_t bytes)
{
    const struct weft_coll_args *args = lines->args;
    const struct weft_group *group = lines->host->group;
    bool pieces = args->kind == WEFT_COLL_SCATTER, root = args->root == group->rank;
    const uint8_t *said = root ? args->in : host_contribution(lines->host, args->root, lines->number, pieces ? group->ranks * bytes : bytes);
    if (!said || (root && !pieces)) return; /* else as in contribution: but here `in` may be nothing */
    if (pieces) said += group->rank * bytes;
    if (said != args->out) memcpy(args->out, said, bytes);
    if (!root && host_one_reads(group, args->kind)) weft_take_lines(said, bytes);
}

/* A piece of every rank, one behind the other. */
static void from_all(const struct lines *lines, size_t bytes)
{
    const struct weft_coll_args *args = lines->args;
    uint32_t ranks = lines->host->group->ranks, rank = lines->host->group->rank;
    bool exchanges = args->kind == WEFT_COLL_ALL_TO_ALL, one_reads = host_one_reads(lines->host->group, args->kind);
    const uint8_t *own = exchanges ? (const uint8_t *)args->in + rank * bytes : args->in;
    if (args->kind == WEFT_COLL_GATHER && args->root != rank) return;
    for (uint32_t r = 0; r < ranks; r++) {
        uint8_t *to = (uint8_t *)args->out + r * bytes;
        const uint8_t *from = exchanges ? contribution(lines, r, ranks * bytes) + rank * bytes : contribution(lines, r, bytes);
        if (to != from) memcpy(to, from, bytes);
        if (from != own && one_reads) weft_take_lines(from, bytes);
    }
}

void host_work_short(struct host *host, const struct weft_coll_args *args, uint64_t number)
{
    const struct lines lines = {host, args, number};
    uint32_t ranks = host->group->ranks, rank = host->group->rank;
    if (args->kind == WEFT_COLL_BARRIER || args->count == 0) return;
    size_t bytes = args->count * weft_dtype_bytes(args->dtype);
    if (args->kind == WEFT_COLL_BROADCAST || args->kind == WEFT_COLL_SCATTER) {
        from_root(&lines, bytes);
    } else if (!coll_sums(args->kind)) {
        from_all(&lines, bytes);
    } else if (args->kind != WEFT_COLL_REDUCE || args->root == rank) {
        bool piece = args->kind == WEFT_COLL_REDUCE_SCATTER;
        struct host_sum sum; /* large: only what is used is set */
        sum.elements = sum_of(args, ranks);
        sum.source_count = ranks;
        sum.out_count = 1;
        sum.stream = false;
        sum.outs[0] = args->out;
        for (uint32_t r = 0; r < ranks; r++)
            sum.sources[r] = contribution(&lines, r, piece ? ranks * bytes : bytes) + (piece ? rank * bytes : 0);
        sum_all(&sum, args->count);
        for (uint32_t r = 0; r < ranks; r++)
            if (sum.sources[r] != sum.sources[rank] && host_one_reads(host->group, args->kind)) weft_take_lines(sum.sources[r], bytes);
    }
}

/* ---- long ones: in everybody's buffers ---- */
struct job {
    struct host *host;
    struct weft_coll *coll;
    uint32_t *culprit_out;
};

static enum weft_status copy_rank(const struct job *job, uint32_t rank, bool outward, uint64_t address, void *local, size_t bytes)
{
    *job->culprit_out = rank;
    return weft_peer_copy(job->coll->group->roster->peers[rank], outward, address, local, bytes);
}

/* What does not stay in the cache anyway is not read before it is written. */
static void copy_part(bool past, uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (past) weft_copy_past_cache(to, from, bytes);
    else memcpy(to, from, bytes);
}

/* (bytes,) at `from` to the place `to` of all outputs. */
static enum weft_status copy_to_all(const struct job *job, uint8_t *from, uint64_t to, size_t bytes)
{
    enum { PIECE = 16384 }; /* read from memory once */
    const struct host_reach *peers = job->host->reach;
    bool past = host_copies_past(job->host, job->coll);
    for (uint32_t r = 0; r < job->coll->group->ranks; r++)
        if (peers[r].copied && peers[r].out_address + to != (uintptr_t)from)
            WEFT_TRY(copy_rank(job, r, true, peers[r].out_address + to, from, bytes));
    for (size_t done = 0; done < bytes; done += PIECE) {
        size_t now = bytes - done < PIECE ? bytes - done : PIECE;
        for (uint32_t r = 0; r < job->coll->group->ranks; r++)
            if (!peers[r].copied && peers[r].out + to + done != from + done) copy_part(past, peers[r].out + to + done, from + done, now);
    }
    return WEFT_OK;
}

static enum weft_status broadcast(const struct job *job, size_t at, size_t bytes)
{
    const struct weft_coll_args *args = &job->coll->args;
    const struct host_reach *root = &job->host->reach[args->root];
    uint8_t *from = root->copied ? (uint8_t *)args->out + at : root->out + at;
    if (root->copied) WEFT_TRY(copy_rank(job, args->root, false, root->out_address + at, from, bytes));
    const struct host_reach *peers = job->host->reach;
    bool past = host_copies_past(job->host, job->coll);
    for (uint32_t r = 0; r < job->coll->group->ranks; r++) {
        if (r == args->root) continue;
        if (peers[r].copied) WEFT_TRY(copy_rank(job, r, true, peers[r].out_address + at, from, bytes));
        else if (peers[r].out + at != from) copy_part(past, peers[r].out + at, from, bytes);
    }
    return WEFT_OK;
}

/* What of the operation's scratch is free for ordinary memory: not the cuts of unequal pieces, nor the products behind them, but the longer part before or behind. */
struct far_room {
    uint8_t *at;
    size_t bytes;
};
static struct far_room far_room(const struct weft_coll *coll)
{
    const uint8_t *cuts = (const uint8_t *)coll->cursor.args.cut_in;
    bool aside = coll->to_scale > 0 && coll->in != coll->args.out; /* the products */
    if (!cuts && !aside) return (struct far_room){coll->scratch, coll->scratch_bytes};
    const uint8_t *end = aside ? coll->in + coll->to_scale * coll->elem_bytes : cuts + (coll->group->ranks + 1) * sizeof(uint64_t);
    size_t before = (size_t)((cuts ? cuts : coll->in) - coll->scratch), used = ((size_t)(end - coll->scratch) + LINE - 1) & ~(size_t)(LINE - 1);
    WEFT_ASSERT(used <= coll->scratch_bytes);
    if (coll->scratch_bytes - used < before) return (struct far_room){coll->scratch, before};
    return (struct far_room){coll->scratch + used, coll->scratch_bytes - used};
}

/* Elements of ordinary memory taken at a time: all far sources have a place there. */
static uint64_t piece_elems(const struct weft_coll *coll, struct far_room room, uint32_t far_count)
{
    size_t bytes = room.bytes / far_count;
    if (bytes > HOST_COPY_BYTES) bytes = HOST_COPY_BYTES;
    if (bytes > 4096) bytes &= ~(size_t)4095;
    return bytes / coll->elem_bytes;
}

static enum weft_status sum_far(const struct job *job, struct host_sum *sum, uint64_t in_at, uint64_t out_at, uint64_t count, uint32_t far_count)
{
    const struct weft_coll_args *args = &job->coll->args;
    const struct host_reach *peers = job->host->reach;
    uint32_t ranks = job->coll->group->ranks;
    size_t elem_bytes = job->coll->elem_bytes;
    const struct far_room room = far_room(job->coll);
    uint64_t piece = piece_elems(job->coll, room, far_count + (sum->out_count == 0));
    WEFT_ASSERT(piece > 0);
    bool for_root = sum->out_count == 0; /* of a reduce, in memory that is not mapped */
    for (uint64_t done = 0; done < count; done += piece) {
        uint64_t elems = count - done < piece ? count - done : piece;
        size_t bytes = elems * elem_bytes, offset = done * elem_bytes;
        struct host_sum part = *sum;
        uint8_t *place = room.at;
        for (uint32_t r = 0; r < ranks; r++) {
            part.sources[r] += offset;
            if (!peers[r].copied) continue;
            WEFT_TRY(copy_rank(job, r, false, peers[r].in_address + in_at + offset, place, bytes));
            part.sources[r] = place;
            place += piece * elem_bytes;
        }
        for (uint32_t o = 0; o < part.out_count; o++) part.outs[o] += offset;
        if (for_root) part.outs[part.out_count++] = place;
        sum_all(&part, elems);
        if (for_root) WEFT_TRY(copy_rank(job, args->root, true, peers[args->root].out_address + out_at + offset, place, bytes));
        for (uint32_t r = 0; r < ranks && args->kind == WEFT_COLL_ALL_REDUCE; r++)
            if (peers[r].copied) WEFT_TRY(copy_rank(job, r, true, peers[r].out_address + out_at + offset, (uint8_t *)args->out + out_at + offset, bytes));
    }
    return WEFT_OK;
}

enum weft_status host_work(struct host *host, struct weft_coll *coll, struct host_range range, uint32_t *culprit_out)
{
    const struct job job = {host, coll, culprit_out};
    const struct weft_coll_args *args = &coll->args;
    uint32_t ranks = coll->group->ranks, whose = coll->host.slice_of, far_count = 0;
    size_t elem_bytes = coll->elem_bytes, at = range.first * elem_bytes, bytes = range.count * elem_bytes;
    size_t its_piece = host_piece_of(coll, whose).first * elem_bytes;
    if (host_of_pieces(args->kind)) return host_pieces_work(host, coll, range, culprit_out);
    if (args->kind == WEFT_COLL_BROADCAST) return broadcast(&job, at, bytes);
    if (args->kind == WEFT_COLL_ALL_GATHER) return copy_to_all(&job, (uint8_t *)(uintptr_t)host->reach[whose].in + at, its_piece + at, bytes);
    bool piece = args->kind == WEFT_COLL_REDUCE_SCATTER, apart = true;
    size_t in_at = at + (piece ? its_piece : 0);
    struct host_sum sum; /* large: only what is used is set */
    sum.elements = coll->sum;
    sum.source_count = ranks;
    sum.out_count = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct host_reach *peer = &host->reach[r];
        far_count += peer->copied;
        sum.sources[r] = peer->copied ? NULL : peer->in + in_at;
        if (peer->copied || (piece && r != whose) || (args->kind == WEFT_COLL_REDUCE && r != args->root)) continue;
        sum.outs[sum.out_count++] = peer->out + at;
        if (peer->in + in_at == peer->out + at) apart = false;
    }
    sum.stream = apart && host_sums_past(host, coll);
    if (far_count > 0) return sum_far(&job, &sum, in_at, at, range.count, far_count);
    sum_all(&sum, range.count);
    return WEFT_OK;
}
