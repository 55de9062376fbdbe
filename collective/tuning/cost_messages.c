/* cost_messages.c - what a byte costs ranks of one host that move messages: no one rate holds.
 *
 * Over sockets a short message costs its calls, a middle one copies in caches, a long one a hand-shake and
 * copies through memory; and where ranks outnumber processors, whether they wait for each other decides. So
 * the rate is measured for five patterns of messages, each by the plan that is nothing else, at a few lengths
 * of the vector:
 *
 *     whole   doubling     the vector, with one other at a time     binomial, bruck, direct's trees
 *     halves  halving      half of it, then half of that            pat
 *     round   ring         slices, from the one before to the next  chain
 *     all     direct       slices, with all others at once          hierarchy, messages of their own
 *     trees   double_tree  chunks behind each other, up and down
 *
 * Between two lengths the time of all bytes is linear, so the model has no cliff; outside the rate is that of
 * the nearest. The rate is what makes the plan's formula (cost_model.c) say the time that was measured, found
 * by bisection: whatever a formula leaves out is in it. A message's time a and its hand-over o come from
 * all_reduces of a few bytes: doubling takes rounds of a + o, direct 2 a and o for each message.
 *
 * All is as so many ranks on so many processors saw it. More of them take turns: everything then takes
 * longer by the ranks a processor has now over those it had. Pure. */
#include "collective/plan/algorithm.h"

#include <math.h>
#include <string.h>

#define BISECTIONS 40
#define WINDOW 16.0        /* that cost_model.c assumes where none is told */
#define PS_MAX 999999999.0 /* a table has nine digits */

static double max_of(double x, double y) { return x > y ? x : y; }
static uint32_t to_ps(double value)
{
    return value < 1 ? 1 : value < PS_MAX ? (uint32_t)(value + 0.5) : (uint32_t)PS_MAX;
}

enum weft_plan_id weft_plan_of_pattern(enum weft_link_pattern pattern)
{
    static const enum weft_plan_id plans[WEFT_LINK_PATTERNS] = {[WEFT_LINK_DOUBLING] = WEFT_PLAN_DOUBLING,
                                                                [WEFT_LINK_HALVING] = WEFT_PLAN_HALVING,
                                                                [WEFT_LINK_RING] = WEFT_PLAN_RING,
                                                                [WEFT_LINK_DIRECT] = WEFT_PLAN_DIRECT,
                                                                [WEFT_LINK_DOUBLE_TREE] =
                                                                    WEFT_PLAN_DOUBLE_TREE};
    return plans[pattern];
}

static enum weft_link_pattern pattern_of(enum weft_plan_id plan, enum weft_coll_kind kind)
{
    switch (plan) {
    case WEFT_PLAN_RING:
    case WEFT_PLAN_CHAIN: return WEFT_LINK_RING;
    case WEFT_PLAN_HALVING:
    case WEFT_PLAN_PAT: return WEFT_LINK_HALVING;
    case WEFT_PLAN_DIRECT:
        return kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_BARRIER ? WEFT_LINK_DOUBLING
                                                                        : WEFT_LINK_DIRECT;
    case WEFT_PLAN_HIERARCHY: return WEFT_LINK_DIRECT;
    case WEFT_PLAN_DOUBLE_TREE: return WEFT_LINK_DOUBLE_TREE;
    default: return WEFT_LINK_DOUBLING;
    }
}

double cost_messages_byte_ns(const struct weft_link_runs *runs, const struct weft_plan_question *question,
                             enum weft_plan_id plan)
{
    const uint32_t *ps = runs->byte_ps[pattern_of(plan, question->kind)];
    double n = (double)question->bytes * (coll_kind_info_of(question->kind)->has_pieces ? question->ranks : 1);
    uint32_t i = 0;
    while (i < WEFT_LINK_LENGTHS && (double)weft_link_length(i) < n) i++;
    if (i == 0) return 1e-3 * ps[0];
    if (i == WEFT_LINK_LENGTHS) return 1e-3 * ps[i - 1];
    double low = (double)weft_link_length(i - 1), high = (double)weft_link_length(i),
           part = (n - low) / (high - low);
    return 1e-3 * (ps[i - 1] * low * (1 - part) + ps[i] * high * part) / n;
}

static double ranks_per_core(uint32_t ranks, uint32_t processors)
{
    return max_of(1, (double)ranks / processors);
}

double cost_messages_oversubscription(const struct weft_link_runs *runs, uint32_t ranks)
{
    return ranks_per_core(ranks, runs->processors) / ranks_per_core(runs->ranks, runs->processors);
}

/* ---- calibration ---- */
static double rounds_of_doubling(uint32_t ranks)
{
    double floor2 = 31 - __builtin_clz(ranks);
    return ranks & (ranks - 1) ? 2 * floor2 - __builtin_ctz(ranks) : floor2;
}

/* Of two ranks both plans say the same: then what one message more took in a burst is it, as it was
 * measured before (inject_ns). */
static void fit_messages(uint32_t ranks, double doubling_ns, double direct_ns,
                         const struct weft_link_cost *cost, struct weft_link_runs *runs)
{
    double both = doubling_ns / rounds_of_doubling(ranks), inject = cost->inject_ns;
    /* of direct: each is handed over, and the window holds some */
    double messages = 2.0 * (ranks - 1), trips = max_of(2, 2 * messages / WINDOW);
    if (ranks > 2) inject = (direct_ns - trips * both) / (messages - trips);
    inject = max_of(both / 16, inject < both / 2 ? inject : both / 2);
    runs->inject_ns = to_ps(inject);
    runs->trip_ns = to_ps(both - inject);
}

static void fit_length(uint32_t ranks, const struct weft_link_cost *cost, enum weft_link_pattern pattern,
                       uint32_t length, double ns, struct weft_link_runs *runs)
{
    struct weft_link_cost trial = *cost;
    enum weft_plan_id plan = weft_plan_of_pattern(pattern);
    struct weft_plan_question question = {.kind = WEFT_COLL_ALL_REDUCE,
                                          .ranks = ranks,
                                          .bytes = weft_link_length(length),
                                          .elem_bytes = 4,
                                          .wide_bytes = 4,
                                          .cost = &trial};
    double low = 0, high = log2(PS_MAX);
    for (int i = 0; i < BISECTIONS; i++) {
        uint64_t times_ns[WEFT_PLAN_COUNT];
        trial.runs = *runs;
        trial.runs.byte_ps[pattern][length] = to_ps(exp2((low + high) / 2));
        weft_plan_choose(&question, times_ns);
        if ((double)times_ns[plan] < ns) low = (low + high) / 2;
        else high = (low + high) / 2;
    }
    double least = length > 0 ? (double)runs->byte_ps[pattern][length - 1] *
                                    (double)weft_link_length(length - 1) / (double)weft_link_length(length)
                              : 0;
    /* longer is never cheaper */
    runs->byte_ps[pattern][length] = to_ps(max_of(ceil(least), exp2((low + high) / 2)));
}

void weft_plan_fit_message_costs(uint32_t ranks, uint32_t processors,
                                 double times_ns[WEFT_LINK_PATTERNS][WEFT_PLAN_MESSAGE_COST_SAMPLES],
                                 const struct weft_link_cost *cost, struct weft_link_runs *runs_out)
{
    struct weft_link_runs runs = {.ranks = ranks, .processors = processors > 0 ? processors : 1};
    fit_messages(ranks, times_ns[WEFT_LINK_DOUBLING][0], times_ns[WEFT_LINK_DIRECT][0], cost, &runs);
    for (int pattern = 0; pattern < WEFT_LINK_PATTERNS; pattern++)
        for (uint32_t length = 0; length < WEFT_LINK_LENGTHS; length++)
            fit_length(ranks, cost, (enum weft_link_pattern)pattern, length, times_ns[pattern][1 + length],
                       &runs);
    *runs_out = runs;
}
