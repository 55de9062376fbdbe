/* report.h - rows of `weft bench p2p` in the columns of perftest, or as JSON lines. Each row is printed at
 * once. */
#ifndef WEFT_TOOLS_BENCH_P2P_REPORT_H
#define WEFT_TOOLS_BENCH_P2P_REPORT_H

#include <stdio.h>

#include "tools/bench/p2p/measure.h"

struct p2p_report {
    FILE *out;
    const struct p2p_options *options;
    const char *transport; /* name of the open endpoint */
    bool mapped;
    uint32_t ranks, rows, rows_total;
    unsigned last_measure, last_op;
    uint64_t wrong;
};

void p2p_report_begin(struct p2p_report *report);
/* Shows the progress on a terminal. */
void p2p_report_progress(struct p2p_report *report, unsigned op, unsigned measure, uint64_t bytes);
void p2p_report_row(struct p2p_report *report, const struct p2p_row *row);
/* False: the stream failed. */
bool p2p_report_end(struct p2p_report *report);

#endif
