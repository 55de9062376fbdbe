/* direct.c - work on one slice: reductions and copies over the buffers of all ranks, and copy-out of copy-in
 * slots.
 *
 * Every element evaluates the canonical tree T over the ranks, in f32 for the 16-bit types, rounded once: the
 * same bits as the plan direct. Up to eight sources are summed in registers in one pass. More are summed
 * eight at a time into a tile that stays in the first-level cache: eight consecutive ranks are a subtree of
 * T, and so are the last few. */
#include "collective/core/control/group_control.h"
#include "collective/onehost/onehost.h"

#include <string.h>

enum {
    LINE = 64,
    TILE = 512,
    SOURCES_AT_ONCE = 8,
    SCALAR_ELEMS_MAX = ONEHOST_INLINE_BYTES / 4,
    GROUPS_MAX = ONEHOST_RANKS_MAX / SOURCES_AT_ONCE,
    LEVELS = 8
};
_Static_assert(1 << (LEVELS - 2) >= ONEHOST_RANKS_MAX, "a tile for each level of the tree");

/* ---- slices ---- */

/* For peers' contributions that are not mapped, and for the sum of an unmapped root. */
size_t onehost_scratch_bytes(const struct weft_group *group, const struct weft_coll_args *args)
{
    /* may be below the copy-in limit without being copied in */
    bool small = args->kind == WEFT_COLL_REDUCE_SCATTER && args->counts;
    return args->kind == WEFT_COLL_REDUCE || small ? (group->ranks + 1) * (size_t)ONEHOST_CMA_SCRATCH_BYTES
                                                   : 0;
}

struct onehost_range onehost_slice(const struct weft_coll *coll)
{
    if (onehost_is_personalized(coll->args.kind)) return onehost_pieces_slice(coll->group->onehost, coll);
    return onehost_slice_of(coll, coll->group->rank);
}

struct onehost_range onehost_slice_of(const struct weft_coll *coll, uint32_t rank)
{
    if (coll->args.kind == WEFT_COLL_REDUCE_SCATTER || coll->args.kind == WEFT_COLL_ALL_GATHER)
        return (struct onehost_range){0, onehost_piece_of(coll, rank).count};
    uint64_t count = coll->args.count, ranks = coll->group->ranks;
    uint64_t unit = ONEHOST_SLICE_ALIGN_BYTES / coll->data.elem_bytes;
    while (unit > 1 && count / unit < 8 * ranks) unit /= 2;
    uint64_t units = count / unit; /* the last slice includes the remainder */
    uint64_t first = units / ranks * rank + units % ranks * rank / ranks,
             next = units / ranks * (rank + 1) + units % ranks * (rank + 1) / ranks;
    return (struct onehost_range){first * unit, (rank + 1 == ranks ? count : next * unit) - first * unit};
}

/* ---- sums ---- */
struct onehost_reduce {
    struct reduce_spec elements;
    uint32_t source_count, out_count;
    bool stream; /* non-temporal stores */
    uint32_t *max_bits; /* of f32: raised to the largest magnitude of the result; NULL: not needed */
    const uint8_t *sources[ONEHOST_RANKS_MAX];
    uint8_t *outs[ONEHOST_RANKS_MAX];
};

/* Types that the kernels sum. */
static bool is_half_float(enum weft_dtype dtype)
{
    return dtype == WEFT_F16 || dtype == WEFT_BF16;
}
static bool adds_floats(const struct reduce_spec *sum)
{
    return (sum->dtype == WEFT_F32 || is_half_float(sum->dtype)) &&
           (sum->op == WEFT_SUM || sum->op == WEFT_AVG || sum->op == WEFT_SCALED_SUM);
}

/* Factor of the finished sum, as in reduce.c. */
static float factor_of(const struct reduce_spec *sum)
{
    return sum->total != 0 ? reduce_scale_factor(sum) : 1;
}

static void raise_max_bits(const struct onehost_reduce *sum, uint32_t bits)
{
    if (bits > *sum->max_bits) *sum->max_bits = bits;
}

static void store_all(const struct onehost_reduce *sum, size_t at, const void *from, size_t bytes)
{
    for (uint32_t o = 0; o < sum->out_count; o++) memcpy(sum->outs[o] + at, from, bytes);
}

struct group_of_sources {
    uint32_t first, count;  /* up to eight */
    float prescale, factor; /* factor of each contribution; factor of the sum */
};

/* T over these sources of the tile into `total`. */
static void sum_group(const struct onehost_reduce *sum, struct group_of_sources group, size_t from,
                      size_t elems, float *total)
{
    const uint32_t count = group.count;
    float wide[SOURCES_AT_ONCE][TILE];
    const float *sources[SOURCES_AT_ONCE];
    for (uint32_t s = 0; s < count; s++) {
        const uint8_t *source = sum->sources[group.first + s];
        sources[s] = is_half_float(sum->elements.dtype) ? wide[s] : (const float *)source + from;
        if (sum->elements.dtype == WEFT_F16)
            weft_kernels()->cast_f16_f32(wide[s], (const uint16_t *)source + from, elems);
        else if (sum->elements.dtype == WEFT_BF16)
            weft_kernels()->cast_bf16_f32(wide[s], (const uint16_t *)source + from, elems);
        if (group.prescale != 1)
            weft_kernels()->scale_f32(wide[s], sources[s], group.prescale, elems), sources[s] = wide[s];
    }
    weft_kernels()->sum_tree_f32(&total, 1, sources, count, group.factor, elems);
}

/* Multiplies the contributions by `prescale`. Returns false and stores nothing if a mean of bf16 is not
 * finite and the prescale of the operation could make it finite. */
static bool sum_tile_prescaled(const struct onehost_reduce *sum, size_t from, size_t elems, float prescale)
{
    float partials[GROUPS_MAX][TILE], *total = partials[0];
    uint16_t narrowed[TILE];
    const float *sources[GROUPS_MAX],
        factor = factor_of(&sum->elements) * (sum->elements.prescale / prescale);
    uint32_t groups = 0;
    for (uint32_t s = 0; s < sum->source_count; s += SOURCES_AT_ONCE, groups++) {
        uint32_t count = sum->source_count - s < SOURCES_AT_ONCE ? sum->source_count - s : SOURCES_AT_ONCE;
        const struct group_of_sources group = {s, count, prescale,
                                               sum->source_count <= SOURCES_AT_ONCE ? factor : 1};
        sum_group(sum, group, from, elems, partials[groups]);
        sources[groups] = partials[groups];
    }
    if (groups > 1) weft_kernels()->sum_tree_f32(&total, 1, sources, groups, factor, elems);
    if (sum->elements.dtype == WEFT_F32) {
        if (sum->max_bits) raise_max_bits(sum, weft_kernels()->max_abs_bits_f32(total, elems));
        store_all(sum, from * sizeof(float), total, elems * sizeof(float));
        return true;
    }
    if (sum->elements.dtype == WEFT_F16) weft_kernels()->cast_f32_f16(narrowed, total, elems);
    else weft_kernels()->cast_f32_bf16(narrowed, total, elems);
    if (prescale != sum->elements.prescale && !weft_halves_finite(narrowed, elems, WEFT_BF16_EXPONENT))
        return false;
    store_all(sum, from * sizeof(uint16_t), narrowed, elems * sizeof(uint16_t));
    return true;
}

/* Computes the tile again with prescale only if its result is not finite. The bits are the same either
 * way. */
static void sum_tile_float(const struct onehost_reduce *sum, size_t from, size_t elems)
{
    if (!sum_tile_prescaled(sum, from, elems, 1))
        sum_tile_prescaled(sum, from, elems, sum->elements.prescale);
}

/* Other types and reductions: T by definition, one tile of partials per level; `scratch` has one for each
 * level below. */
static void sum_tree_tile(const struct onehost_reduce *sum, uint32_t first, uint32_t count, size_t from,
                          size_t elems, double (*scratch)[TILE])
{
    struct reduce_src left = {scratch[0], true}, right = {scratch[1], true};
    if (count == 1) {
        struct reduce_src source = {sum->sources[first] + from * weft_dtype_bytes(sum->elements.dtype),
                                    false};
        reduce_copy(&sum->elements, (struct reduce_dst){scratch[0], true, false}, source, elems);
        return;
    }
    uint32_t half = 1;
    while (half * 2 < count) half *= 2;
    sum_tree_tile(sum, first, half, from, elems, scratch);
    sum_tree_tile(sum, first + half, count - half, from, elems, scratch + 1);
    reduce_pair(&sum->elements, (struct reduce_dst){scratch[0], true, false}, left, right, elems);
}

static void sum_tile_any(const struct onehost_reduce *sum, size_t from, size_t elems)
{
    double scratch[LEVELS][TILE], narrowed[TILE];
    size_t elem_bytes = weft_dtype_bytes(sum->elements.dtype);
    sum_tree_tile(sum, 0, sum->source_count, from, elems, scratch);
    reduce_copy(&sum->elements, (struct reduce_dst){narrowed, false, true},
                (struct reduce_src){scratch[0], true}, elems);
    store_all(sum, from * elem_bytes, narrowed, elems * elem_bytes);
}

static void sum_all(const struct onehost_reduce *sum, uint64_t count)
{
    if (sum->elements.dtype == WEFT_F32 && adds_floats(&sum->elements) &&
        sum->source_count <= SOURCES_AT_ONCE) {
        /* few elements: the loop is faster than masked vectors */
        const struct weft_kernels *kernels =
            count <= SCALAR_ELEMS_MAX ? weft_kernels_by_name("scalar") : weft_kernels();
        if (sum->max_bits) {
            raise_max_bits(sum,
                           kernels->sum_tree_max_f32((float *const *)sum->outs, sum->out_count,
                                                     (const float *const *)sum->sources, sum->source_count,
                                                     factor_of(&sum->elements), count, sum->stream));
            return;
        }
        (sum->stream ? kernels->sum_tree_stream_f32 : kernels->sum_tree_f32)(
            (float *const *)sum->outs, sum->out_count, (const float *const *)sum->sources, sum->source_count,
            factor_of(&sum->elements), count);
        return;
    }
    for (uint64_t done = 0; done < count; done += TILE) {
        size_t elems = count - done < TILE ? count - done : TILE;
        if (adds_floats(&sum->elements)) sum_tile_float(sum, done, elems);
        else sum_tile_any(sum, done, elems);
    }
}

void onehost_reduce(const struct weft_coll *coll, const uint8_t *const *sources, uint8_t *const *outs,
                    uint32_t out_count, uint64_t count)
{
    struct onehost_reduce sum; /* large: only used fields are set */
    sum.elements = coll->data.sum;
    sum.source_count = coll->group->ranks;
    sum.out_count = out_count;
    sum.stream = false;
    sum.max_bits = NULL;
    memcpy(sum.sources, sources, sum.source_count * sizeof sources[0]);
    memcpy(sum.outs, outs, out_count * sizeof outs[0]);
    sum_all(&sum, count);
}

/* ---- copy-in ---- */
struct copyin_op {
    struct onehost *onehost;
    const struct weft_coll_args *args;
    uint64_t seq;
};

static const uint8_t *copyin_source(const struct copyin_op *copyin_op, uint32_t rank, size_t bytes)
{
    /* the own slot is in the caches of the peers */
    if (rank == copyin_op->onehost->group->rank) return copyin_op->args->in;
    const uint8_t *source = onehost_copyin_of(copyin_op->onehost, rank, copyin_op->seq, bytes);
    /* checked before; a peer that changes its descriptor gets a wrong sum */
    return source ? source : copyin_op->args->in;
}

/* Copies the root's contribution, or the piece for this rank, to the own output. */
static void copy_out_from_root(const struct copyin_op *copyin_op, size_t bytes)
{
    const struct weft_coll_args *args = copyin_op->args;
    const struct weft_group *group = copyin_op->onehost->group;
    bool pieces = args->kind == WEFT_COLL_SCATTER, root = args->root == group->rank;
    const uint8_t *source = root ? args->in
                                 : onehost_copyin_of(copyin_op->onehost, args->root, copyin_op->seq,
                                                     pieces ? group->ranks * bytes : bytes);
    if (!source || (root && !pieces)) return; /* checked before, as in copyin_source; `in` may be NULL here */
    if (pieces) source += group->rank * bytes;
    if (source != args->out) memcpy(args->out, source, bytes);
    if (!root && onehost_has_single_reader(group, args->kind)) weft_claim_lines(source, bytes);
}

/* Copies one piece of every rank, one after the other. */
static void copy_out_from_all(const struct copyin_op *copyin_op, size_t bytes)
{
    const struct weft_coll_args *args = copyin_op->args;
    uint32_t ranks = copyin_op->onehost->group->ranks, rank = copyin_op->onehost->group->rank;
    bool exchanges = args->kind == WEFT_COLL_ALL_TO_ALL,
         one_reads = onehost_has_single_reader(copyin_op->onehost->group, args->kind);
    const uint8_t *own = exchanges ? (const uint8_t *)args->in + rank * bytes : args->in;
    if (args->kind == WEFT_COLL_GATHER && args->root != rank) return;
    for (uint32_t r = 0; r < ranks; r++) {
        uint8_t *to = (uint8_t *)args->out + r * bytes;
        const uint8_t *from = exchanges ? copyin_source(copyin_op, r, ranks * bytes) + rank * bytes
                                        : copyin_source(copyin_op, r, bytes);
        if (to != from) memcpy(to, from, bytes);
        if (from != own && one_reads) weft_claim_lines(from, bytes);
    }
}

void onehost_copyin_work(struct onehost *onehost, const struct weft_coll_args *args, uint64_t seq)
{
    const struct copyin_op copyin_op = {onehost, args, seq};
    uint32_t ranks = onehost->group->ranks, rank = onehost->group->rank;
    if (args->kind == WEFT_COLL_BARRIER || args->count == 0) return;
    size_t bytes = args->count * weft_dtype_bytes(args->dtype);
    if (args->kind == WEFT_COLL_BROADCAST || args->kind == WEFT_COLL_SCATTER) {
        copy_out_from_root(&copyin_op, bytes);
    } else if (!coll_is_reduction(args->kind)) {
        copy_out_from_all(&copyin_op, bytes);
    } else if (args->kind != WEFT_COLL_REDUCE || args->root == rank) {
        bool piece = args->kind == WEFT_COLL_REDUCE_SCATTER;
        struct onehost_reduce sum; /* large: only used fields are set */
        sum.elements = reduce_spec_of(args, ranks);
        sum.source_count = ranks;
        sum.out_count = 1;
        sum.stream = false;
        sum.max_bits = NULL;
        sum.outs[0] = args->out;
        for (uint32_t r = 0; r < ranks; r++)
            sum.sources[r] =
                copyin_source(&copyin_op, r, piece ? ranks * bytes : bytes) + (piece ? rank * bytes : 0);
        sum_all(&sum, args->count);
        for (uint32_t r = 0; r < ranks; r++)
            if (sum.sources[r] != sum.sources[rank] && onehost_has_single_reader(onehost->group, args->kind))
                weft_claim_lines(sum.sources[r], bytes);
    }
}

/* ---- direct and CMA ---- */
struct job {
    struct onehost *onehost;
    struct weft_coll *coll;
    uint32_t *culprit_out;
};

static enum weft_status cma_copy(const struct job *job, uint32_t rank, bool outward, uint64_t address,
                                 void *local, size_t bytes)
{
    *job->culprit_out = rank;
    return weft_peer_copy(job->coll->group->peer_table->peers[rank], outward, address, local, bytes);
}

/* Non-temporal stores if the result does not stay in the cache. */
static void copy_range(bool uses_nt_stores, uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (uses_nt_stores) weft_copy_nontemporal(to, from, bytes);
    else memcpy(to, from, bytes);
}

/* Copies (bytes,) from `from` to offset `to` of all outputs. */
static enum weft_status copy_to_all(const struct job *job, uint8_t *from, uint64_t to, size_t bytes)
{
    enum { PIECE = 16384 }; /* read from memory once */
    const struct onehost_buffers *peers = job->onehost->buffers;
    bool uses_nt_stores = onehost_copy_uses_nt_stores(job->onehost, job->coll);
    for (uint32_t r = 0; r < job->coll->group->ranks; r++)
        if (peers[r].uses_cma && peers[r].out_address + to != (uintptr_t)from)
            WEFT_TRY(cma_copy(job, r, true, peers[r].out_address + to, from, bytes));
    for (size_t done = 0; done < bytes; done += PIECE) {
        size_t now = bytes - done < PIECE ? bytes - done : PIECE;
        for (uint32_t r = 0; r < job->coll->group->ranks; r++)
            if (!peers[r].uses_cma && peers[r].out + to + done != from + done)
                copy_range(uses_nt_stores, peers[r].out + to + done, from + done, now);
    }
    return WEFT_OK;
}

static enum weft_status broadcast(const struct job *job, size_t at, size_t bytes)
{
    const struct weft_coll_args *args = &job->coll->args;
    const struct onehost_buffers *root = &job->onehost->buffers[args->root];
    uint8_t *from = root->uses_cma ? (uint8_t *)args->out + at : root->out + at;
    if (root->uses_cma) WEFT_TRY(cma_copy(job, args->root, false, root->out_address + at, from, bytes));
    const struct onehost_buffers *peers = job->onehost->buffers;
    bool uses_nt_stores = onehost_copy_uses_nt_stores(job->onehost, job->coll);
    for (uint32_t r = 0; r < job->coll->group->ranks; r++) {
        if (r == args->root) continue;
        if (peers[r].uses_cma) WEFT_TRY(cma_copy(job, r, true, peers[r].out_address + at, from, bytes));
        else if (peers[r].out + at != from) copy_range(uses_nt_stores, peers[r].out + at, from, bytes);
    }
    return WEFT_OK;
}

/* Part of the operation's scratch that CMA may use: the larger part before or after the cuts of unequal
 * pieces and the scaled input. */
struct cma_scratch {
    uint8_t *at;
    size_t bytes;
};
static struct cma_scratch cma_scratch(const struct weft_coll *coll)
{
    const uint8_t *cuts = (const uint8_t *)coll->steps.cursor.args.displs_in;
    bool aside =
        coll->data.input_elems_to_prepare > 0 && coll->data.in != coll->args.out; /* the scaled input */
    if (!cuts && !aside) return (struct cma_scratch){coll->buffers.scratch, coll->buffers.scratch_bytes};
    const uint8_t *end = aside ? coll->data.in + coll->data.input_elems_to_prepare * coll->data.elem_bytes
                               : cuts + (coll->group->ranks + 1) * sizeof(uint64_t);
    size_t before = (size_t)((cuts ? cuts : coll->data.in) - coll->buffers.scratch),
           used = ((size_t)(end - coll->buffers.scratch) + LINE - 1) & ~(size_t)(LINE - 1);
    WEFT_ASSERT(used <= coll->buffers.scratch_bytes);
    if (coll->buffers.scratch_bytes - used < before)
        return (struct cma_scratch){coll->buffers.scratch, before};
    return (struct cma_scratch){coll->buffers.scratch + used, coll->buffers.scratch_bytes - used};
}

/* Elements per step: all CMA sources fit into the scratch. */
static uint64_t piece_elems(const struct weft_coll *coll, struct cma_scratch scratch, uint32_t cma_count)
{
    size_t bytes = scratch.bytes / cma_count;
    if (bytes > ONEHOST_CMA_CHUNK_BYTES) bytes = ONEHOST_CMA_CHUNK_BYTES;
    if (bytes > 4096) bytes &= ~(size_t)4095;
    return bytes / coll->data.elem_bytes;
}

static enum weft_status reduce_cma(const struct job *job, struct onehost_reduce *sum, uint64_t in_at,
                                   uint64_t out_at, uint64_t count, uint32_t cma_count)
{
    const struct weft_coll_args *args = &job->coll->args;
    const struct onehost_buffers *peers = job->onehost->buffers;
    uint32_t ranks = job->coll->group->ranks;
    size_t elem_bytes = job->coll->data.elem_bytes;
    const struct cma_scratch scratch = cma_scratch(job->coll);
    uint64_t piece = piece_elems(job->coll, scratch, cma_count + (sum->out_count == 0));
    WEFT_ASSERT(piece > 0);
    bool for_root = sum->out_count == 0; /* of a reduce, whose root is not mapped */
    for (uint64_t done = 0; done < count; done += piece) {
        uint64_t elems = count - done < piece ? count - done : piece;
        size_t bytes = elems * elem_bytes, offset = done * elem_bytes;
        struct onehost_reduce part = *sum;
        uint8_t *staging = scratch.at;
        for (uint32_t r = 0; r < ranks; r++) {
            part.sources[r] += offset;
            if (!peers[r].uses_cma) continue;
            WEFT_TRY(cma_copy(job, r, false, peers[r].in_address + in_at + offset, staging, bytes));
            part.sources[r] = staging;
            staging += piece * elem_bytes;
        }
        for (uint32_t o = 0; o < part.out_count; o++) part.outs[o] += offset;
        if (for_root) part.outs[part.out_count++] = staging;
        sum_all(&part, elems);
        if (for_root)
            WEFT_TRY(cma_copy(job, args->root, true, peers[args->root].out_address + out_at + offset, staging,
                              bytes));
        for (uint32_t r = 0; r < ranks && args->kind == WEFT_COLL_ALL_REDUCE; r++)
            if (peers[r].uses_cma)
                WEFT_TRY(cma_copy(job, r, true, peers[r].out_address + out_at + offset,
                                  (uint8_t *)args->out + out_at + offset, bytes));
    }
    return WEFT_OK;
}

enum weft_status onehost_direct_work(struct onehost *onehost, struct weft_coll *coll,
                                     struct onehost_range range, uint32_t *culprit_out)
{
    const struct job job = {onehost, coll, culprit_out};
    const struct weft_coll_args *args = &coll->args;
    uint32_t ranks = coll->group->ranks, owner = coll->group->rank, cma_count = 0;
    size_t elem_bytes = coll->data.elem_bytes, at = range.first * elem_bytes,
           bytes = range.count * elem_bytes;
    size_t owner_piece = onehost_piece_of(coll, owner).first * elem_bytes;
    if (onehost_is_personalized(args->kind)) return onehost_pieces_work(onehost, coll, range, culprit_out);
    if (args->kind == WEFT_COLL_BROADCAST) return broadcast(&job, at, bytes);
    if (args->kind == WEFT_COLL_ALL_GATHER)
        return copy_to_all(&job, (uint8_t *)(uintptr_t)onehost->buffers[owner].in + at, owner_piece + at,
                           bytes);
    bool piece = args->kind == WEFT_COLL_REDUCE_SCATTER, is_disjoint = true;
    size_t in_at = at + (piece ? owner_piece : 0);
    struct onehost_reduce sum; /* large: only used fields are set */
    sum.elements = coll->data.sum;
    sum.source_count = ranks;
    sum.out_count = 0;
    sum.max_bits = onehost_checks_sum(coll) ? &coll->onehost.max_bits : NULL;
    for (uint32_t r = 0; r < ranks; r++) {
        const struct onehost_buffers *peer = &onehost->buffers[r];
        cma_count += peer->uses_cma;
        sum.sources[r] = peer->uses_cma ? NULL : peer->in + in_at;
        if (peer->uses_cma || (piece && r != owner) || (args->kind == WEFT_COLL_REDUCE && r != args->root))
            continue;
        sum.outs[sum.out_count++] = peer->out + at;
        if (peer->in + in_at == peer->out + at) is_disjoint = false;
    }
    sum.stream = is_disjoint && onehost_sum_uses_nt_stores(onehost, coll);
    if (cma_count > 0) return reduce_cma(&job, &sum, in_at, at, range.count, cma_count);
    sum_all(&sum, range.count);
    return WEFT_OK;
}
