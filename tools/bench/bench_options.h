/* bench_options.h - options of the benchmarks that run in a job. */
#ifndef WEFT_TOOLS_BENCH_BENCH_OPTIONS_H
#define WEFT_TOOLS_BENCH_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/bench_operation.h"
#include "tools/bench/lib/sweep.h"
#include "weft/types.h"

enum bench_kind {
    BENCH_OPERATION = 1,
    BENCH_PUSH_PULL = 2,
    BENCH_WAITING = 3,
    BENCH_EXPOSED = 4,
    BENCH_CHECKS = 5
};
enum bench_average {
    BENCH_AVERAGE_RANK_0,
    BENCH_AVERAGE_MEAN,
    BENCH_AVERAGE_MIN,
    BENCH_AVERAGE_MAX
}; /* Element types and reductions to run. */
struct bench_types {
    enum weft_dtype dtypes[WEFT_DTYPE_COUNT];
    enum weft_op ops[WEFT_OP_COUNT]; /* one entry, 0, if nothing is reduced */
    uint32_t dtype_count, op_count;
};
/* What is printed besides the times. */
struct bench_printout {
    bool percentiles, overlap, limit, cpu, json;
    bool explain; /* print the plan of each size and the modelled times */
};

/* values of -a, as in nccl-tests */

struct bench_options {
    enum bench_kind kind;
    const struct bench_operation *operation; /* BENCH_OPERATION only */
    struct bench_sweep sweep;
    struct bench_types types;
    uint32_t root;
    bool all_roots;
    uint32_t iters, warmup, checks, cycles;
    uint32_t inflight; /* -m: operations in flight at once */
    enum bench_average average;
    uint32_t processes;    /* -n; 0: take part in the job of the environment */
    uint32_t shards;       /* -s; push_pull only */
    uint32_t copies;       /* --copies; bit 0: jobs without copies, bit 1: with one; 0: as configured */
    uint32_t compute_us;   /* waiting, exposed: length of a computation */
    uint32_t straggler_us; /* exposed: additional computation of the slow rank */
    const char *bind;      /* for `weft run` */
    const char *plan, *plot;
    bool uses_malloc;  /* memory from malloc instead of weft_alloc */
    uint32_t blocking; /* -z; 1: a barrier between two operations, not part of their time */
    struct bench_printout report;
};

const char *bench_name(const struct bench_options *options);
/* -1: continue; otherwise the exit status. argv[0] is the benchmark's name. `operation` NULL: not of this
 * kind. */
int bench_options_parse(struct bench_options *options, enum bench_kind kind,
                        const struct bench_operation *operation, int argc, char **argv);

#endif
