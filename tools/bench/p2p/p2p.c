/* p2p.c - `weft bench p2p`: starts the processes; each runs all rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/p2p/compare.h"
#include "tools/bench/p2p/report.h"
#include "tools/common.h"

static const unsigned ops[] = {P2P_SEND, P2P_PUT, P2P_GET},
                      measures[] = {P2P_LATENCY, P2P_BANDWIDTH, P2P_DUPLEX, P2P_RATE};

static uint32_t count_rows(const struct p2p_options *options)
{
    uint32_t sizes = 0;
    for (uint64_t bytes = 0; (bytes = bench_sweep_next(&options->sweep, bytes)) != 0;) sizes++;
    return sizes * (uint32_t)__builtin_popcount(options->ops) *
           (uint32_t)__builtin_popcount(options->measures);
}

static bool run_rows(struct p2p_link *link, struct p2p_report *report)
{
    const struct p2p_options *options = link->options;
    bool is_leader = link->bootstrap->rank == 0;
    for (size_t o = 0; o < 3; o++) {
        for (size_t m = 0; m < 4; m++) {
            if (!(options->ops & ops[o]) || !(options->measures & measures[m])) continue;
            for (uint64_t bytes = 0; (bytes = bench_sweep_next(&options->sweep, bytes)) != 0;) {
                struct p2p_row row;
                if (is_leader) p2p_report_progress(report, ops[o], measures[m], bytes);
                if (!p2p_measure(link, ops[o], measures[m], bytes, &row)) return false;
                if (is_leader) p2p_report_row(report, &row);
                if (is_leader && !bench_flush_output("p2p")) return false;
            }
        }
    }
    return true;
}

/* Runs one process. */
static int take_part(void *context, struct p2p_bootstrap *bootstrap)
{
    const struct p2p_options *options = context;
    struct p2p_link link;
    struct p2p_report report = {
        .out = stdout, .options = options, .ranks = bootstrap->ranks, .rows_total = count_rows(options)};
    bool fine = p2p_link_open(&link, options, bootstrap);
    if (fine) {
        report.transport = weft_transport_name(link.transport);
        report.mapped = link.mapped;
        if (bootstrap->rank == 0) p2p_report_begin(&report);
        fine = run_rows(&link, &report);
        if (fine && bootstrap->rank == 0) fine = p2p_report_end(&report) && report.wrong == 0;
    }
    p2p_link_close(&link);
    return fine ? 0 : 1;
}

static int run_rank_of_job(struct p2p_options *options)
{
    struct p2p_bootstrap bootstrap;
    if (!p2p_bootstrap_join(&bootstrap)) return 1;
    int answer = take_part(options, &bootstrap);
    p2p_bootstrap_leave(&bootstrap);
    return answer;
}

int weft_bench_p2p_main(int argc, char **argv)
{
    struct p2p_options options;
    int answer = p2p_options_parse(&options, argc, argv);
    if (answer >= 0) return answer;
    if (!tool_read_secret("weft bench p2p", options.secret_file, NULL, &options.secret)) return TOOL_USAGE;
    if (options.compares) answer = p2p_compare(&options);
    else
        answer =
            options.processes > 0 ? p2p_launch(&options, take_part, &options) : run_rank_of_job(&options);
    free(options.secret);
    return answer;
}
