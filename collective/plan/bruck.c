/* bruck.c - all_gather in ceil(log2 p) message times for any number of ranks.
 *
 * Before round t rank r has the pieces of ranks r .. r + 2^t - 1 (modulo p). It sends them, or as many as are
 * still missing, to rank r - 2^t and receives the next ones from r + 2^t. A range past the last rank is two
 * ranges of the output, so two messages. Nothing is rotated, and there is no scratch.
 *
 * No deadlock: messages ordered by (round, range).
 * Per rank: up to 2 messages a round, (p-1)/p of the result in bytes. A message has up to half the result: a
 * plan for short pieces. Source: Bruck et al., IEEE TPDS
 * 1997. */
#include "collective/plan/algorithm.h"

bool plan_bruck_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    uint64_t ranks = args->ranks;
    if (args->kind == WEFT_COLL_ALL_TO_ALL) return plan_bruck_all_to_all_step(args, index, action);
    if (args->count == 0) return false;
    if (index == 0) {
        action->kind = WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_INPUT;
        action->offset = plan_slice_out(args, args->rank);
        action->count = weft_plan_slice_first(args, args->rank + 1) - action->offset;
        return true;
    }
    index -= 1;
    uint64_t round = index / 4, distance = 1ull << round;
    if (round >= 32 || distance >= ranks) return false;
    bool sends = index % 2 == 0, wrapped = index % 4 >= 2;
    uint64_t pieces = distance < ranks - distance ? distance : ranks - distance;
    uint64_t start = sends ? args->rank : plan_rank_after(args, (uint32_t)distance);
    uint64_t end = start + pieces;
    if (wrapped) start = 0, end = end > ranks ? end - ranks : 0;
    else if (end > ranks) end = ranks;
    action->offset = weft_plan_slice_first(args, (uint32_t)start);
    action->count = weft_plan_slice_first(args, (uint32_t)end) - action->offset;
    if (sends) action->after = index % 4 + 1; /* all earlier rounds */
    if (action->count == 0) return true;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = WEFT_PLACE_OUTPUT;
    action->peer =
        sends ? plan_rank_before(args, (uint32_t)distance) : plan_rank_after(args, (uint32_t)distance);
    action->message = (uint32_t)(index / 2 + 1);
    return true;
}

uint64_t plan_bruck_scratch(const struct weft_plan_args *args)
{
    return args->kind == WEFT_COLL_ALL_TO_ALL ? plan_bruck_all_to_all_scratch(args) : 0;
}
