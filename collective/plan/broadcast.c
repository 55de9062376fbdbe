/* broadcast.c - a binomial tree from the root, pipelined in chunks.
 *
 * Ranks count from the root (place v = rank - root). The parent of v is v without its lowest set bit. Its
 * children are v + 2^j for each 2^j below that bit (any 2^j for the root), the largest first because its
 * subtree is deepest. A rank forwards chunk c as soon as it has received it.
 *
 * No deadlock: messages ordered by (chunk, depth, child); both ends walk this order.
 * Per rank: at most log2(ranks) sends of a chunk; depth log2(ranks). A scatter with an all_gather would serve
 * very long vectors better. */
#include "collective/plan/algorithm.h"

static uint32_t children_of(const struct weft_plan_args *args, uint32_t place)
{
    uint64_t lowest = place == 0 ? UINT64_MAX : (uint64_t)(place & (~place + 1));
    uint32_t children = 0;
    while (1ull << children < lowest && place + (1ull << children) < args->ranks) children++;
    return children;
}

uint64_t plan_broadcast_steps(const struct weft_plan_args *args)
{
    uint32_t place = plan_rank_before(args, args->root);
    return (place != 0) + children_of(args, place);
}

bool plan_broadcast_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    uint32_t place = plan_rank_before(args, args->root), lowest = place & (~place + 1),
             children = children_of(args, place);
    uint64_t receives = place != 0, steps = receives + children;
    uint64_t chunk = index / steps, at = index % steps;
    if (chunk >= plan_vector_chunks(args)) return false;
    struct plan_range part = plan_vector_chunk(args, chunk);
    action->offset = part.first;
    action->count = part.count;
    action->message = (uint32_t)(chunk + 1);
    if (at < receives) {
        action->kind = WEFT_ACTION_RECV;
        action->place = WEFT_PLACE_OUTPUT;
        action->peer = (uint32_t)((place - lowest + args->root) % args->ranks);
        return true;
    }
    uint64_t child = place + (1ull << (children - 1 - (at - receives)));
    action->kind = WEFT_ACTION_SEND;
    action->place = WEFT_PLACE_OUTPUT;
    action->peer = (uint32_t)((child + args->root) % args->ranks);
    action->depends = receives ? at : 0;
    return true;
}
