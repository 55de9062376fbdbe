/* bench_options.h - what the benchmarks take from the command line. */
#ifndef WEFT_TOOLS_BENCH_OPTIONS_H
#define WEFT_TOOLS_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/benchlib/sweep.h"
#include "weft/types.h"

enum bench_kind { BENCH_ALL_REDUCE = 1, BENCH_PUSH_PULL = 2, BENCH_WAITING = 3 };

struct bench_options {
    enum bench_kind kind;
    struct bench_sweep sweep;
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t iters, warmup;
    uint32_t processes;    /* -n; 0: take part in the job of the environment */
    uint32_t shards;       /* -s; push_pull only */
    uint32_t piece_us;     /* waiting: length of a computation */
    const char *plan;
    bool json;
    bool explain;          /* which plan each size takes, and why */
};

const char *bench_kind_name(enum bench_kind kind);
/* 0: go on; otherwise the exit status plus one. argv[0] is the benchmark's name. */
int bench_options_parse(struct bench_options *options, enum bench_kind kind, int argc, char **argv);

#endif
