/* calibrate_messages.c - figures of operations by messages between ranks of one host: times of all_reduces of
 * several sizes by five plans, from which the cost model makes its rates.
 *
 * Sizes and plans alternate as in calibrate_memory.c, and the median over the rounds counts, because rounds
 * differ if ranks outnumber the processors. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collective/collective.h"
#include "tools/bench/calibrate/calibrate.h"

enum { ROUNDS = 11, PATTERNS = WEFT_LINK_PATTERNS, SAMPLES = WEFT_PLAN_MESSAGE_COST_SAMPLES };

static uint64_t bytes_of(int sample)
{
    return sample == 0 ? WEFT_PLAN_MESSAGE_COST_SHORT_BYTES : weft_link_length((uint32_t)sample - 1);
}

static bool measure(struct bench_rank *rank, double rounds_us[PATTERNS][SAMPLES][ROUNDS])
{
    char plan[64];
    for (int round = 0; round < ROUNDS; round++)
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            snprintf(plan, sizeof plan, "all_reduce=%s",
                     weft_plan_name(weft_plan_of_pattern((enum weft_link_pattern)pattern)));
            if (weft_set_plan(rank->session, plan) < 0)
                return bench_print_failure(rank, plan, WEFT_ERR_INVALID);
            for (int sample = 0; sample < SAMPLES; sample++)
                if (!bench_calibrate_all_reduce(rank, rank->in, rank->out, bytes_of(sample),
                                                &rounds_us[pattern][sample][round]))
                    return false;
        }
    return weft_set_plan(rank->session, "all_reduce=auto") >= 0 ||
           bench_print_failure(rank, "the plan auto", WEFT_ERR_INVALID);
}

bool bench_calibrate_messages(struct bench_rank *rank, const struct weft_link_cost *cost,
                              struct weft_link_runs *runs_out)
{
    uint32_t processors = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    double rounds_us[PATTERNS][SAMPLES][ROUNDS], times_ns[PATTERNS][SAMPLES];
    memset(rank->in, 0, weft_link_length(WEFT_LINK_LENGTHS - 1));
    memset(rank->out, 0, weft_link_length(WEFT_LINK_LENGTHS - 1));
    if (!measure(rank, rounds_us)) return false;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int sample = 0; sample < SAMPLES; sample++)
            times_ns[pattern][sample] = 1e3 * bench_median(rounds_us[pattern][sample], ROUNDS);
    weft_plan_fit_message_costs(rank->ranks, processors, times_ns, cost, runs_out);
    return true;
}
