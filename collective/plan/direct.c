/* plan/direct.c - all pairs: slice i of each rank goes directly to rank i, which folds it and sends the
 * result.
 *
 *     contribute (C)  r -> r+s: chunk c of slice r+s       s = 1 .. ranks-1: at each s every rank
 *     fold       (F)  T over ranks 0..ranks-1, rounded once      sends to one rank and receives from one
 *     result     (R)  r -> r+s: chunk c of slice r
 *
 *     all_reduce      C0 | C1 F0 R0 | C2 F1 R1 | ... | F(k-1) R(k-1)
 *     reduce_scatter  C0 | C1 F0    | C2 F1    | ... | F(k-1)
 *     all_gather           K0 R0    | K1 R1    | ...               K: the copy of the own chunk
 *     reduce          as all_reduce, R only to the root
 *     weighted        C0 | F0 C1R0 | F1 C2R1 | ... | F(k-1) R(k-1)     C1R0: interleaved by distance
 *
 * The contributions of the next chunk travel while this one is folded; two reduce buffers alternate. With
 * weighted slices C and R of a rank differ in bytes, so they are interleaved to use both directions of its
 * link.
 * Order: each element evaluates T (reproducible), so the cut into slices does not change the bits.
 *
 * No deadlock: messages ordered by (phase as above, s; weighted: group, s, C before R). Both ends walk this
 * order, a send before the receive of the same key. The least unfinished message has its send first and its
 * receive at most second among the remaining steps of its two ranks, so a window of two steps suffices.
 * Per rank: 2(ranks-1) messages of a chunk; 2(ranks-1)/ranks of the vector in bytes each way. */
#include "collective/plan/algorithm.h"

struct layout {
    uint64_t chunks;
    uint64_t contribute; /* steps of one C */
    uint64_t result;     /* steps of one R */
    uint64_t group;      /* steps of one group C F R */
    bool is_interleaved;          /* F, then C of the next chunk and R interleaved */
};

static bool all_gather(const struct weft_plan_args *args)
{
    return args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_ALL_GATHER_BYTES;
}

static struct layout layout_of(const struct weft_plan_args *args)
{
    uint64_t pairs = 2ull * (args->ranks - 1);
    bool sums = !all_gather(args);
    struct layout layout = {
        .chunks = plan_slice_chunks(args),
        .contribute = sums ? pairs : 0,
        .result = args->kind == WEFT_COLL_REDUCE_SCATTER ? 0 : pairs,
    };
    if (args->kind == WEFT_COLL_REDUCE) layout.result = args->rank == args->root ? args->ranks - 1 : 1;
    layout.group = layout.contribute + 1 + layout.result;
    layout.is_interleaved = args->slice_weights && args->kind == WEFT_COLL_ALL_REDUCE;
    return layout;
}

/* Step number of step `place` of C, of F, and of step `place` of R. */
static uint64_t contribute_at(const struct layout *layout, uint64_t chunk, uint64_t place)
{
    if (chunk == 0) return place;
    uint64_t group = layout->contribute + (chunk - 1) * layout->group;
    return layout->is_interleaved ? group + 1 + place / 2 * 4 + place % 2 : group + place;
}
static uint64_t fold_at(const struct layout *layout, uint64_t chunk)
{
    bool behind = chunk + 1 < layout->chunks && !layout->is_interleaved; /* C of the next chunk is first */
    return layout->contribute + chunk * layout->group + (behind ? layout->contribute : 0);
}
static uint64_t result_at(const struct layout *layout, uint64_t chunk, uint64_t place)
{
    bool is_interleaved = layout->is_interleaved && chunk + 1 < layout->chunks;
    return fold_at(layout, chunk) + 1 + (is_interleaved ? place / 2 * 4 + 2 + place % 2 : place);
}

static void contribute_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                            uint64_t place, struct weft_action *action)
{
    uint32_t distance = (uint32_t)(place / 2) + 1;
    bool sends = place % 2 == 0;
    uint32_t peer = sends ? plan_rank_after(args, distance) : plan_rank_before(args, distance);
    uint32_t slice = sends ? peer : args->rank;
    struct plan_range part = plan_chunk_range(args, slice, chunk);
    if (part.count == 0) return;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV_FOLD;
    action->place = WEFT_PLACE_INPUT;
    action->peer = peer;
    action->message = (uint32_t)(2 * chunk + 1);
    action->area = chunk & 1;
    action->offset_in = plan_slice_in(args, slice) + part.first;
    action->count = part.count;
    if (!sends && chunk >= 2)
        action->depends = contribute_at(layout, chunk, place) - fold_at(layout, chunk - 2);
}

/* reduce: only the root has an output; other ranks fold into scratch and send from there. */
static bool folds_into_scratch(const struct weft_plan_args *args)
{
    return args->kind == WEFT_COLL_REDUCE && args->rank != args->root;
}

static void fold_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                      struct weft_action *action)
{
    struct plan_range part = plan_chunk_range(args, args->rank, chunk);
    if (part.count == 0) return;
    action->kind = all_gather(args) ? WEFT_ACTION_COPY : WEFT_ACTION_FOLD;
    action->place = all_gather(args) ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    if (folds_into_scratch(args)) {
        action->place = WEFT_PLACE_SCRATCH;
        action->scratch = (chunk & 1) * plan_chunk_elems_padded(args);
        /* the send of that fold */
        if (chunk >= 2) action->depends = fold_at(layout, chunk) - (fold_at(layout, chunk - 2) + 1);
    }
    action->area = chunk & 1;
    action->last = !all_gather(args);
    action->offset_in = plan_slice_in(args, args->rank) + part.first;
    action->offset = plan_slice_out(args, args->rank) + part.first;
    action->count = part.count;
}

static void result_to_root(const struct weft_plan_args *args, uint64_t chunk, uint64_t place,
                           struct weft_action *action)
{
    bool sends = args->rank != args->root;
    uint32_t peer = sends ? args->root : plan_rank_before(args, (uint32_t)place + 1),
             slice = sends ? args->rank : peer;
    struct plan_range part = plan_chunk_range(args, slice, chunk);
    if (part.count == 0) return;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = sends ? WEFT_PLACE_SCRATCH : WEFT_PLACE_OUTPUT;
    action->peer = peer;
    action->message = (uint32_t)(2 * chunk + 2);
    action->scratch = (chunk & 1) * plan_chunk_elems_padded(args);
    action->offset = plan_slice_out(args, slice) + part.first;
    action->count = part.count;
    if (sends) action->depends = 1;
}

static void result_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                        uint64_t place, struct weft_action *action)
{
    uint32_t distance = (uint32_t)(place / 2) + 1;
    bool sends = place % 2 == 0;
    uint32_t peer = sends ? plan_rank_after(args, distance) : plan_rank_before(args, distance);
    uint32_t slice = sends ? args->rank : peer;
    struct plan_range part = plan_chunk_range(args, slice, chunk);
    if (part.count == 0) return;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = sends && all_gather(args) ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    action->peer = peer;
    action->message = (uint32_t)(2 * chunk + 2);
    action->offset_in = part.first;
    action->offset = plan_slice_out(args, slice) + part.first;
    action->count = part.count;
    if (sends && !all_gather(args))
        action->depends = result_at(layout, chunk, place) - fold_at(layout, chunk);
}

bool plan_direct_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout layout = layout_of(args);
    if (layout.chunks == 0) return false;
    if (index < layout.contribute) {
        contribute_step(args, &layout, 0, index, action);
        return true;
    }
    index -= layout.contribute;
    uint64_t chunk = index / layout.group;
    if (chunk > layout.chunks - 1) chunk = layout.chunks - 1;
    index -= chunk * layout.group;
    bool more = chunk + 1 < layout.chunks;
    if (more && layout.is_interleaved) {
        uint64_t place = index > 0 ? (index - 1) / 4 * 2 + (index - 1) % 2 : 0;
        if (index == 0) fold_step(args, &layout, chunk, action);
        else if ((index - 1) % 4 < 2) contribute_step(args, &layout, chunk + 1, place, action);
        else result_step(args, &layout, chunk, place, action);
        return true;
    }
    if (more) {
        if (index < layout.contribute) {
            contribute_step(args, &layout, chunk + 1, index, action);
            return true;
        }
        index -= layout.contribute;
    }
    if (index == 0) {
        fold_step(args, &layout, chunk, action);
        return true;
    }
    index -= 1;
    if (index >= layout.result) return false;
    if (args->kind == WEFT_COLL_REDUCE) result_to_root(args, chunk, index, action);
    else result_step(args, &layout, chunk, index, action);
    return true;
}

uint32_t plan_direct_folds(const struct weft_plan_args *args)
{
    bool sums = plan_is_sliced(args) || args->kind == WEFT_COLL_REDUCE_SCATTER;
    uint64_t chunks = plan_slice_chunks(args);
    return !sums ? 0 : chunks > 2 ? 2 : (uint32_t)chunks;
}

uint64_t plan_direct_scratch(const struct weft_plan_args *args)
{
    return folds_into_scratch(args) ? plan_direct_folds(args) * plan_chunk_elems_padded(args) : 0;
}
