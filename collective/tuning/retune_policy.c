/* retune_policy.c - the plan that a cell tries next and the plan that it keeps; rank 0's part of retune.h.
 * Pure.
 *
 * Each candidate is tried once, in the order of the modelled time; then the fastest one is kept. It is
 * replaced only by a plan that took at least a tenth less, so noise changes nothing. If the kept plan takes
 * 1.5 times its earlier time, all candidates are tried again. The caller bounds how often that happens: it
 * measures a settled cell less and less often. */
#include "collective/plan/algorithm.h"
#include "collective/tuning/retune_cell.h"

uint32_t retune_candidates(const struct weft_plan_question *question, enum weft_retune policy, bool ordered)
{
    uint64_t times_ns[WEFT_PLAN_COUNT];
    enum weft_plan_id best = weft_plan_choose(question, times_ns);
    bool best_is_tree = weft_plan_reproducible(best, question->hosts);
    uint32_t mask = 0;
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) {
        if (times_ns[plan] == UINT64_MAX || times_ns[plan] / RETUNE_COST_RATIO_MAX > times_ns[best]) continue;
        bool same_order =
            !ordered || plan == (int)best || (best_is_tree && weft_plan_reproducible(plan, question->hosts));
        if (policy == WEFT_RETUNE_ANY || same_order) mask |= 1u << plan;
    }
    return mask;
}

static enum weft_plan_id next_untried(const struct retune_cell *cell)
{
    uint64_t times_ns[WEFT_PLAN_COUNT];
    enum weft_plan_id found = WEFT_PLAN_AUTO;
    weft_plan_choose(&cell->question, times_ns);
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) {
        bool open = cell->candidates >> plan & 1 && cell->times_ns[plan] == 0;
        if (open && (found == WEFT_PLAN_AUTO || times_ns[plan] < times_ns[found])) found = plan;
    }
    return found;
}

enum weft_plan_id retune_pick(struct retune_cell *cell, enum weft_plan_id in_force, uint64_t worst_ns)
{
    uint64_t before_ns = cell->times_ns[in_force];
    if (cell->settled == in_force && before_ns && worst_ns / 3 > before_ns / 2)
        for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++) cell->times_ns[plan] = 0;
    cell->times_ns[in_force] = worst_ns ? worst_ns : 1;
    enum weft_plan_id next = next_untried(cell), best = in_force;
    if (next != WEFT_PLAN_AUTO) return next;
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++)
        if (cell->candidates >> plan & 1 && cell->times_ns[plan] < cell->times_ns[best]) best = plan;
    bool keeps =
        cell->settled != WEFT_PLAN_AUTO && cell->times_ns[cell->settled] / 10 <= cell->times_ns[best] / 9;
    if (!keeps) cell->settled = best;
    return cell->settled;
}
