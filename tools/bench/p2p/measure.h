/* measure.h - the loops of `weft bench p2p`: one row is one operation, one measurement, one size. */
#ifndef WEFT_TOOLS_BENCH_P2P_MEASURE_H
#define WEFT_TOOLS_BENCH_P2P_MEASURE_H

#include "tools/bench/p2p/link.h"

struct p2p_row {
    unsigned op, measure;
    uint64_t bytes, iters;
    uint32_t ranks, window;
    /* latency of the first pair, one way, microseconds */
    double t_min, t_max, t_typical, t_avg, t_stdev, t_99, t_999;
    /* bandwidth of all peers and directions together */
    double peak_GBps, avg_GBps, rate_Mps;
    double seconds; /* of the slowest rank */
    double cpu_s_per_GB;
    double copies;       /* passes over the payload per message */
    double system_calls; /* per message */
    uint64_t wrong;      /* messages with wrong contents */
    char path_text[96];
};

/* Measures one row. Collective, with equal arguments; the row is filled on rank 0. False: a sentence is on
 * stderr. */
bool p2p_measure(struct p2p_link *link, unsigned op, unsigned measure, uint64_t bytes, struct p2p_row *row);

#endif
