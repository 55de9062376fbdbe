/* barrier.c - dissemination: in round t send a signal to rank + 2^t and receive one from rank - 2^t.
 *
 * Round 0 is the header check of plan.c. A rank starts round t after it received the signals of all earlier
 * rounds, so after round t it knows that 2^(t+1) ranks have arrived: ceil(log2(ranks)) rounds for any number
 * of ranks. A signal waits for all steps before it (after 1). Receives wait for nothing, so a rank that
 * completes and leaves at once finds all its signals matched.
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
