/* pairwise.c - all_to_all, all pairs: at distance s send to rank + s and receive from rank - s.
 *
 * At each s a rank sends to one rank and receives from one, so no link has two senders. Piece i of the input
 * goes to rank i and becomes piece `rank` of its output. Pieces may differ in length. The number of chunks
 * follows the longest piece of this rank; a pair counts its own chunks, so the numbers of two ranks may
 * differ. The first chunk of a piece travels even if it is empty: its header has the length of the piece.
 *
 * No deadlock: messages ordered by (s, chunk); both ends walk this order, a send before the receive of the
 * same key.
 * Per rank: ranks-1 messages of a chunk; (ranks-1)/ranks of the vector in bytes each way. No scratch. */
#include "collective/plan/algorithm.h"

static struct plan_range piece_chunk_range(const struct weft_plan_args *args, const uint64_t *cuts,
                                           uint32_t piece, uint64_t chunk)
{
    struct weft_plan_args cut = *args;
    cut.displs_in = cuts;
    struct plan_range part = plan_chunk_range(&cut, piece, chunk);
    part.first += weft_plan_slice_first(&cut, piece);
    return part;
}

bool plan_pairwise_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    uint64_t chunks = plan_slice_chunks(args);
    if (chunks == 0) return false;
    if (index < chunks) {
        struct plan_range from = piece_chunk_range(args, args->displs_in, args->rank, index);
        if (from.count > 0) action->kind = WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_INPUT;
        action->offset_in = from.first;
        action->offset = piece_chunk_range(args, args->displs_out, args->rank, index).first;
        action->count = from.count;
        return true;
    }
    index -= chunks;
    uint64_t distance = index / (2 * chunks) + 1, chunk = index % (2 * chunks) / 2;
    if (distance >= args->ranks) return false;
    bool sends = index % 2 == 0;
    uint32_t peer =
        sends ? plan_rank_after(args, (uint32_t)distance) : plan_rank_before(args, (uint32_t)distance);
    struct plan_range part = piece_chunk_range(args, sends ? args->displs_in : args->displs_out, peer, chunk);
    if (part.count == 0 && !(args->own_lengths && chunk == 0)) return true;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = sends ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    action->peer = peer;
    action->message = (uint32_t)(chunk + 1);
    action->offset_in = action->offset = part.first;
    action->count = part.count;
    return true;
}
