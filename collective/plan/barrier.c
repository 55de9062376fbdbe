/* barrier.c - dissemination: in round t signal rank + 2^t and hear from rank - 2^t.
 *
 * Round 0 is the greeting that opens every plan. A rank starts round t only when it has heard all rounds
 * before, so after round t it knows that 2^(t+1) ranks have arrived: done in ceil(log2(ranks)) rounds for
 * any number of ranks. A signal waits for everything before it (after 1); receives wait for nothing, so that
 * whoever is through the barrier and leaves at once finds all its signals awaited.
 * Source: Hensgen, Finkel, Manber, IJPP 1988. */
#include "collective/plan/algorithm.h"

bool plan_barrier_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    uint64_t round = index / 2 + 1;
    if (round >= 32 || 1ull << round >= args->ranks) return false;
    bool sends = index % 2 == 0;
    uint32_t distance = 1u << round;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = WEFT_PLACE_INPUT;
    action->peer = sends ? plan_rank_after(args, distance) : plan_rank_before(args, distance);
    action->message = (uint32_t)round;
    action->after = sends ? 1 : 0;
    return true;
}
