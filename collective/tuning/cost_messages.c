/* cost_messages.c - cost of a byte in messages between ranks of one host. No single rate fits all lengths.
 *
 * On sockets a short message costs system calls, a middle one copies in caches, a long one a handshake and
 * copies through memory. So the rate is measured at several vector lengths for five patterns, each with one
 * plan:
 *
 *     whole   doubling     the vector, with one peer at a time      binomial, bruck, direct's trees
 *     halves  halving      half of it, then half of that            pat
 *     round   ring         slices, from the previous to the next    chain
 *     all     direct       slices, with all peers at once           hierarchy, messages of their own
 *     trees   double_tree  chunks in a pipeline, up and down
 *
 * Between two lengths the time of all bytes is linear; outside, the nearest rate applies. Bisection finds the
 * rate with which the plan's formula (cost_model.c) gives the measured time. Message time a and hand-over
 * time o are derived from short all_reduces: doubling takes rounds of a + o, direct 2 a and o for each
 * message. If more ranks share the cores than in the measurement, all times grow by the ratio of ranks per
 * core. Pure. */
#include "collective/plan/algorithm.h"

#include <math.h>
#include <string.h>

#define BISECTIONS 40
#define WINDOW 16.0        /* as cost_model.c assumes if none is given */
#define PS_MAX 999999999.0 /* a link table has nine digits */

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
    const bool has_pieces = coll_kind_info_of(question->kind)->has_pieces;
    double n = (double)question->bytes * (has_pieces ? question->ranks : 1);
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

/* With two ranks both plans take the same time. Then the cost of one more message is inject_ns, measured
 * before. */
static void fit_messages(uint32_t ranks, double doubling_ns, double direct_ns,
                         const struct weft_link_cost *cost, struct weft_link_runs *runs)
{
    double both = doubling_ns / rounds_of_doubling(ranks), inject = cost->inject_ns;
    /* direct hands over each message; the window holds some of them */
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
    /* a longer message never costs less */
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
