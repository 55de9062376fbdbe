/* chain.c - a pipeline along a chain of ranks: broadcast and reduce of long vectors.
 *
 *     broadcast   root -> root+1 -> ... -> root+p-1: each rank forwards what it received
 *     reduce      root+1 -> root+2 -> ... -> root: each rank adds its own contribution
 *
 * Order of a reduce: ((x[root+1] + x[root+2]) + ... + x[root-1]) + x[root] in ring order modulo p (ring.c):
 * it depends on the ring and the root only. Partials are f32 for narrower floats, also in messages.
 *
 * No deadlock: messages ordered by (chunk, link).
 * Per rank: one message of a chunk each way; time (p-2+chunks) message times. Scratch of a reduce: 2 `lanes`
 * chunks. */
#include "collective/plan/algorithm.h"

/* Distance of this rank from `first` in the ring, and its neighbours. */
static uint32_t ring_distance(const struct weft_plan_args *args, uint32_t first_turn)
{
    return (uint32_t)(((uint64_t)plan_ring_position(args) + args->ranks - first_turn) % args->ranks);
}
static uint32_t root_position(const struct weft_plan_args *args)
{
    return args->hosts ? args->hosts->ring_position[args->root] : args->root;
}
static uint32_t ring_predecessor(const struct weft_plan_args *args)
{
    return plan_ring_rank(args, (uint64_t)plan_ring_position(args) + args->ranks - 1);
}
static uint32_t ring_rank_before(const struct weft_plan_args *args)
{
    return plan_ring_rank(args, (uint64_t)plan_ring_position(args) + 1);
}

static bool broadcast_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    uint32_t place = ring_distance(args, root_position(args));
    bool receives = place > 0, sends = place + 1 < args->ranks;
    uint64_t steps = receives + sends, chunk = index / steps;
    if (chunk >= plan_vector_chunks(args)) return false;
    struct plan_range part = plan_vector_chunk(args, chunk);
    bool receive = receives && index % steps == 0;
    action->kind = receive ? WEFT_ACTION_RECV : WEFT_ACTION_SEND;
    action->place = WEFT_PLACE_OUTPUT;
    action->peer = receive ? ring_predecessor(args) : ring_rank_before(args);
    action->message = (uint32_t)(chunk + 1);
    action->offset = part.first;
    action->count = part.count;
    if (!receive && receives) action->depends = 1;
    return true;
}

static uint64_t part_max(const struct weft_plan_args *args)
{
    uint64_t longest = args->count < args->chunk_elems ? args->count : args->chunk_elems;
    return (longest + 63) & ~63ull;
}

static uint64_t slots(const struct weft_plan_args *args)
{
    uint64_t chunks = plan_vector_chunks(args), most = 2ull * args->lanes;
    return chunks < most ? chunks : most;
}

bool plan_chain_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    if (args->kind == WEFT_COLL_BROADCAST) return broadcast_step(args, index, action);
    uint32_t place = ring_distance(args, (root_position(args) + 1) % args->ranks); /* the root is the last */
    bool receives = place > 0, sends = place + 1 < args->ranks;
    uint64_t steps = receives + sends, chunk = index / steps;
    if (chunk >= plan_vector_chunks(args)) return false;
    struct plan_range part = plan_vector_chunk(args, chunk);
    bool receive = receives && index % steps == 0;
    action->message = (uint32_t)(chunk + 1);
    action->offset_in = action->offset = part.first;
    action->count = part.count;
    action->scratch = chunk % slots(args) * part_max(args);
    if (!receive) {
        action->kind = WEFT_ACTION_SEND;
        action->peer = ring_rank_before(args);
        action->place = receives ? WEFT_PLACE_SCRATCH : WEFT_PLACE_INPUT;
        action->wide = receives;
        action->depends = receives;
        return true;
    }
    action->kind = WEFT_ACTION_RECV_SUM;
    action->peer = ring_predecessor(args);
    action->place = WEFT_PLACE_INPUT;
    action->wide = place > 1;
    action->last = !sends;
    /* The last user of this scratch: the send of an earlier chunk, or the sum at the root. */
    if (chunk >= slots(args)) action->depends = sends ? slots(args) * steps - 1 : slots(args);
    return true;
}

uint64_t plan_chain_scratch(const struct weft_plan_args *args)
{
    return args->kind == WEFT_COLL_REDUCE ? slots(args) * part_max(args) : 0;
}
