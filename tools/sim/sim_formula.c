/* sim_formula.c - the closed formulas of plans, as the cost model of the library evaluates them: p ranks, n
 * bytes, a = latency of one message, b = seconds per byte, m = a chunk. The formulas assume one link between
 * any two ranks and no sharing. On an over-subscribed network the simulated time is longer; the difference is
 * the result of the simulation. Processors of the simulator take no time, and the cost model uses that. */
#include <stddef.h>

#include "tools/sim/sim.h"

struct weft_link_cost sim_link_cost(const struct sim_settings *settings, uint64_t latency_ns,
                                    double bytes_per_second)
{
    struct weft_link_cost cost = {
        .pairs = 1, .latency_ns = latency_ns, .bytes_per_second = (uint64_t)bytes_per_second};
    cost.eager_bytes = settings->eager_bytes;
    cost.inject_ns = cost.sum_ps = cost.pass_ps = cost.incast_milli = 1;
    return cost;
}

struct weft_plan_question sim_question_of(const struct sim_settings *settings, uint64_t elems,
                                          const struct weft_link_cost *cost,
                                          const struct weft_plan_hosts *hosts,
                                          const struct weft_link_cost *local)
{
    return (struct weft_plan_question){.kind = settings->kind,
                                       .ranks = settings->ranks,
                                       .bytes = elems * sizeof(float),
                                       .elem_bytes = sizeof(float),
                                       .wide_bytes = sizeof(float),
                                       .forced_plan = settings->plan,
                                       .chunk_bytes = settings->chunk_bytes,
                                       .window = settings->inflight,
                                       .cost = cost,
                                       .hosts = hosts,
                                       .local_cost = local};
}

static const char *text_of(enum weft_coll_kind kind, enum weft_plan_id plan)
{
    bool halves = kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_ALL_GATHER;
    switch (plan) {
    case WEFT_PLAN_RING: return halves ? "(p-1)a + n(p-1)/p b" : "2(p-1)a + 2n(p-1)/p b";
    case WEFT_PLAN_DIRECT:
        if (kind == WEFT_COLL_BARRIER) return "ceil(log2 p) a";
        if (kind == WEFT_COLL_BROADCAST) return "log2(p)(a + n b)";
        return halves ? "max(1, 2(p-1)/w)a + n(p-1)/p b" : "max(2, 4(p-1)/w)a + 2n(p-1)/p b";
    case WEFT_PLAN_DOUBLING: return "log2(p)(a + n b)";
    case WEFT_PLAN_HALVING: return "2 log2(p)a max(1, n/4m) + 2(n/2m - 1)a + 2n(p-1)/p b";
    case WEFT_PLAN_DOUBLE_TREE: return "2 log2(p)(a + m b) + 2n b, or the window's round trips";
    case WEFT_PLAN_BRUCK: return "log2(p)a + n(p-1)/p b";
    case WEFT_PLAN_PAT: return "log2(p)a + n(p-1)/p b";
    case WEFT_PLAN_CHAIN: return "(p-1)(a + m b) + n b";
    case WEFT_PLAN_HIERARCHY:
        return halves ? "max(2, N(2g+1)/w)a + max(N n g/p b, n(g-1)/g b in the host)"
                      : "inside, between and inside hosts";
    case WEFT_PLAN_BINOMIAL: return "log2(p)(a + n b)";
    default: return "";
    }
}

enum weft_plan_id sim_formulas_of(const struct sim_settings *settings, uint64_t elems,
                                  const struct weft_link_cost *cost, const struct weft_plan_hosts *hosts,
                                  const struct weft_link_cost *local,
                                  struct sim_formula formulas_out[WEFT_PLAN_COUNT])
{
    struct weft_plan_question question = sim_question_of(settings, elems, cost, hosts, local);
    uint64_t times_ns[WEFT_PLAN_COUNT];
    question.forced_plan = WEFT_PLAN_AUTO;
    enum weft_plan_id chosen = weft_plan_choose(&question, times_ns);
    for (int plan = 0; plan < WEFT_PLAN_COUNT; plan++) {
        bool fits = times_ns[plan] != UINT64_MAX && settings->ranks > 1;
        formulas_out[plan] = (struct sim_formula){fits ? text_of(settings->kind, plan) : NULL,
                                                  fits ? (double)times_ns[plan] / 1e9 : 0};
    }
    return chosen;
}
