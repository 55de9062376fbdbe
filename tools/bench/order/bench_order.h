/* bench_order.h - `weft bench order`: small tensors that travel together, and an urgent tensor behind
 * others. */
#ifndef WEFT_TOOLS_BENCH_ORDER_BENCH_ORDER_H
#define WEFT_TOOLS_BENCH_ORDER_BENCH_ORDER_H

#include <stdbool.h>
#include <stdint.h>

struct bench_order {
    uint32_t processes; /* -n; 0: take part in the job of the environment */
    uint32_t shards;    /* 0: all-reduce mode, else server mode */
    uint32_t small_count, large_count, iters;
    uint64_t small_bytes, large_bytes, urgent_bytes;
    bool json;
};

/* -1: continue; otherwise the exit status. argv[0] is "order". */
int bench_order_parse(struct bench_order *order, int argc, char **argv);
/* Measures one rank. Returns the exit status. */
int bench_order_run(const struct bench_order *order);

#endif
