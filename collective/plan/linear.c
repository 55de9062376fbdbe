/* linear.c - gather and scatter, the root directly with each rank; pieces may differ in length.
 *
 * The root walks the ranks by distance, root+1, root+2 ..., all chunks of one rank after the other. Only the
 * root knows all lengths, so the first message of each pair travels even if the piece is empty.
 * No deadlock: every other rank has one peer.
 * Per rank one message of a chunk, ranks-1 at the root, whose link carries all bytes. No scratch. */
#include "collective/plan/algorithm.h"

bool plan_linear_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    uint64_t chunks = plan_slice_chunks(args);
    bool root = args->rank == args->root, gathers = args->kind == WEFT_COLL_GATHER;
    if (chunks == 0 || index >= chunks * (root ? args->ranks : 1)) return false;
    uint32_t distance = (uint32_t)(index / chunks),
             peer = root ? plan_rank_after(args, distance) : args->root;
    uint64_t chunk = index % chunks;
    struct plan_range part = plan_chunk_range(args, root ? peer : 0, chunk);
    bool says_length = args->own_lengths && chunk == 0 && peer != args->rank;
    if (part.count == 0 && !says_length) return true;
    /* in the vector of all pieces */
    uint64_t whole = root ? weft_plan_slice_first(args, peer) + part.first : part.first;
    action->count = part.count;
    action->offset_in = gathers && root ? part.first : whole;
    action->offset = !gathers && root ? part.first : whole;
    if (root && distance == 0) {
        action->kind = WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_INPUT;
        return true;
    }
    bool sends = root != gathers;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = sends ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    action->peer = peer;
    action->message = (uint32_t)(chunk + 1);
    return true;
}
