/* bench_rank.h - inside `weft bench`: one rank of a benchmark of operations or of push_pull.
 *
 *   bench_job.c      joins, sweeps over cycles, roots, types, reductions and sizes, prints
 *   bench_timing.c   times one size: warm-up, iterations, percentiles, overlap
 *   bench_limit.c    what memory alone allows
 *   bench_machine.c  what the process used: processor time, memory; computing for so long; copy bandwidth */
#ifndef WEFT_TOOLS_BENCH_BENCH_RANK_H
#define WEFT_TOOLS_BENCH_BENCH_RANK_H

#include "tools/bench/bench_operation.h"
#include "tools/bench/bench_report.h"

struct bench_rank {
    const struct bench_options *options;
    struct weft_session *session;
    uint32_t rank, ranks;
    void *in, *out;              /* (room,) bytes; of weft_alloc, or of malloc */
    size_t capacity;
    double *times;               /* (iters,) microseconds */
    int64_t *reduced;             /* (iters,) */
    struct bench_call *calls;    /* (together,) */
    struct bench_args args;      /* of the row at hand */
    struct weft_tensor *tensor;  /* push_pull: of the size at hand */
    uint64_t step;
    double step_us;              /* push_pull: sum of whole steps while timing */
    const char *last_plan;      /* of the operations timed last; static */
    uint32_t salt;               /* of the last check */
    struct bench_report report;
};

/* Takes part in the job as one of its ranks: session, rank and ranks. False, and said on stderr after
 * `name`: it cannot. */
bool bench_join(struct bench_rank *rank, const char *name);
/* False, and said on stderr: an operation failed. */
bool bench_wait(const struct bench_rank *rank, const char *what, enum weft_status started,
                struct weft_request *request);
/* false */
bool bench_print_failure(const struct bench_rank *rank, const char *what, enum weft_status status);
bool bench_barrier(struct bench_rank *rank);
/* (count,) values of all ranks reduced, on all ranks. */
bool bench_reduce_over_ranks(struct bench_rank *rank, int64_t *values, uint64_t count, enum weft_op op);

/* This rank's microseconds as -a asks for those of all. */
bool bench_average_over_ranks(struct bench_rank *rank, double us, double *us_out);

/* bench_timing.c: the operation of rank->part as it is placed, or push_pull of the tensor. Collective. */
bool bench_time(struct bench_rank *rank, struct bench_timing *timing);
bool bench_overlap(struct bench_rank *rank, double time_us, struct bench_overlap *overlap);
bool bench_check(struct bench_rank *rank, struct bench_timing *timing);

/* bench_limit.c: beside an all_reduce of rank->part that takes time_us in place. Collective. */
bool bench_limit(struct bench_rank *rank, double time_us, struct bench_limit *limit);

/* bench_machine.c */
double bench_now_us(void);
double bench_cpu_us(void); /* of all threads of this process */
double bench_thread_us(void); /* processor time of the calling thread */
/* This process' share of the memory it uses, in bytes; 0 where the kernel does not say. */
uint64_t bench_pss(void);
/* Turns of a loop that nothing else takes part in, for so long on a processor of its own. */
uint64_t bench_calibrate_compute(double us);
void bench_compute(uint64_t turns);
/* GB/s, read plus written, of the best of a few copies of (bytes,). */
double bench_copy_bandwidth(void *to, const void *from, uint64_t bytes);

#endif
