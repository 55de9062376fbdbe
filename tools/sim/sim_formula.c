/* sim_formula.c - closed formulas of docs/collectives.md: p ranks, n bytes, a = one message's latency, b = seconds a byte.
 * They know one link between any two ranks, nothing of what flows share: where a network is over-subscribed the simulated
 * time is longer, and that difference is what one looks for. */
#include <math.h>
#include <stddef.h>

#include "tools/sim/sim.h"

static double rounds_of(uint32_t ranks) { return ranks > 1 ? ceil(log2((double)ranks)) : 0; }

struct sim_formula sim_formula_of(const struct sim_settings *settings, const struct sim_result *result, uint64_t latency_ns, double bytes_per_second)
{
    double p = settings->ranks, n = (double)result->vector_bytes, b = bytes_per_second > 0 ? 1 / bytes_per_second : 0, rounds = rounds_of(settings->ranks);
    bool halves = settings->kind == WEFT_COLL_REDUCE_SCATTER || settings->kind == WEFT_COLL_ALL_GATHER;
    bool reduces = settings->kind == WEFT_COLL_ALL_REDUCE;
    double slice = result->plan == WEFT_PLAN_RING || result->plan == WEFT_PLAN_DIRECT ? n / p : n;
    if (slice > (double)settings->chunk_bytes) slice = (double)settings->chunk_bytes;
    double trips = slice > (double)settings->eager_bytes ? 3 : 1, a = trips * (double)latency_ns / 1e9;
    struct sim_formula formula = {.latency_s = a, .bytes_per_second = bytes_per_second};
    if (settings->ranks < 2) return formula;
    if (result->plan == WEFT_PLAN_RING && (reduces || halves)) {
        formula.text = halves ? "(p-1)a + n(p-1)/p b" : "2(p-1)a + 2n(p-1)/p b";
        formula.seconds = (halves ? 1 : 2) * ((p - 1) * a + n * (p - 1) / p * b);
        /* A step ends with its last byte: a slice that does not fill the pipe of the path pays its own time in each. */
    } else if (result->plan == WEFT_PLAN_DIRECT && (reduces || halves)) {
        formula.text = halves ? "a + n(p-1)/p b" : "2a + 2n(p-1)/p b";
        formula.seconds = (halves ? 1 : 2) * (a + n * (p - 1) / p * b);
    } else if (settings->kind == WEFT_COLL_BROADCAST) {
        formula.text = "log2(p)(a + n b)";
        formula.seconds = rounds * (a + n * b);
    } else if (settings->kind == WEFT_COLL_BARRIER) {
        formula.text = "ceil(log2 p) a";
        formula.latency_s = (double)latency_ns / 1e9;
        formula.seconds = rounds * formula.latency_s;
    }
    return formula;
}
