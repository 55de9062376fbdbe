/* binomial.c - the canonical tree T as a tree of messages: reduce in log2(p) message times, any number of
 * ranks.
 *
 * The parent of rank r is r without its lowest set bit b; its children are r + 1, r + 2, r + 4 ... below r +
 * b. Child r + q sends T(r+q, r+2q), without ranks past the last one. Added in ascending order the sums are
 * T(r, r+2q). So rank 0 gets T(0, p) and sends it to the root. Broadcast: the same tree downward
 * (broadcast.c). Gather and scatter: gather_tree.c.
 *
 * Order: T. Partials are f32 for narrower floats, also in messages; a leaf sends its contribution unchanged.
 * No deadlock: messages ordered by (chunk, distance), the one to the root last; both ends walk this order.
 * Per rank: at most log2(p) messages of the vector. Scratch: three chunks, six with several chunks. */
#include "collective/plan/algorithm.h"

static uint64_t part_at(const struct weft_plan_args *args, uint64_t chunk, uint64_t part)
{
    uint64_t longest = args->count < args->chunk_elems ? args->count : args->chunk_elems;
    return ((chunk & 1) * 3 + part) * ((longest + 63) & ~63ull);
}

/* The sum of this rank and its first `children` children. */
static void partial(const struct weft_plan_args *args, uint64_t chunk, uint32_t children,
                    struct weft_action *action)
{
    action->place = children == 0 ? WEFT_PLACE_INPUT : WEFT_PLACE_SCRATCH;
    action->wide = children > 0;
    if (children > 0) action->scratch = part_at(args, chunk, (children - 1) & 1);
}

static uint32_t children_of(const struct weft_plan_args *args, uint32_t rank)
{
    uint64_t lowest = rank == 0 ? UINT64_MAX : (uint64_t)(rank & (~rank + 1));
    uint32_t children = 0;
    while (1ull << children < lowest && rank + (1ull << children) < args->ranks) children++;
    return children;
}

static void child_step(const struct weft_plan_args *args, uint64_t chunk, uint32_t child, uint32_t children,
                       struct weft_action *action)
{
    partial(args, chunk, child, action);
    action->kind = WEFT_ACTION_RECV_SUM;
    action->peer = args->rank + (1u << child);
    action->message = (uint32_t)(2 * chunk + 1);
    action->wide = children_of(args, action->peer) > 0;
    action->scratch_own = action->scratch;
    action->scratch = part_at(args, chunk, child & 1);
    action->own_first = true;
    action->last = args->rank == 0 && args->root == 0 && child + 1 == children;
    if (child > 0) action->depends = 1;
}

bool plan_binomial_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    if (args->kind == WEFT_COLL_BROADCAST) return plan_broadcast_step(args, index, action);
    if (args->kind == WEFT_COLL_GATHER || args->kind == WEFT_COLL_SCATTER)
        return plan_gather_tree_step(args, index, action);
    uint32_t children = children_of(args, args->rank);
    bool first = args->rank == 0, final = args->root == args->rank && !first,
         hands_on = !first || args->root != 0;
    uint64_t steps = children + hands_on + (final ? 2u : 0u), chunk = index / steps, at = index % steps;
    if (chunk >= plan_vector_chunks(args)) return false;
    struct plan_range part = plan_vector_chunk(args, chunk);
    action->offset_in = action->offset = part.first;
    action->count = part.count;
    if (at < children) {
        child_step(args, chunk, (uint32_t)at, children, action);
    } else if (at == children && hands_on) {
        partial(args, chunk, children, action);
        action->kind = WEFT_ACTION_SEND;
        action->peer = first ? args->root : args->rank & (args->rank - 1);
        action->message = (uint32_t)(2 * chunk + (first ? 2 : 1));
        if (children > 0) action->depends = 1;
    } else {
        bool receives = at == steps - 2;
        action->kind = receives ? WEFT_ACTION_RECV : WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_SCRATCH;
        action->peer = 0;
        action->message = (uint32_t)(2 * chunk + 2);
        action->wide = true;
        action->scratch = part_at(args, chunk, 2);
        action->last = !receives;
        if (!receives) action->depends = 1;
    }
    plan_wait_after(action, plan_after_chunk(chunk, steps, at));
    return true;
}

uint64_t plan_binomial_scratch(const struct weft_plan_args *args)
{
    if (args->kind == WEFT_COLL_GATHER || args->kind == WEFT_COLL_SCATTER)
        return plan_gather_tree_scratch(args);
    if (args->kind != WEFT_COLL_REDUCE) return 0;
    return part_at(args, 0, 3) * (plan_vector_chunks(args) > 1 ? 2 : 1);
}
