/* bench_rank.h - inside `weft bench`: one rank of a benchmark of operations or of push_pull.
 *
 *   bench_job.c      joins; sweeps over cycles, roots, types, reductions and sizes; prints
 *   bench_timing.c   times one size: warm-up, iterations, percentiles, overlap
 *   copies/bench_copies.c   a job for each number of copies; bytes that the shards receive
 *   bench_limit.c    least time by memory bandwidth
 *   bench_machine.c  processor time and memory of the process; timed computation; copy bandwidth */
#ifndef WEFT_TOOLS_BENCH_BENCH_RANK_H
#define WEFT_TOOLS_BENCH_BENCH_RANK_H

#include "tools/bench/bench_operation.h"
#include "tools/bench/bench_report.h"

struct bench_rank {
    const struct bench_options *options;
    struct weft_session *session;
    uint32_t rank, ranks;
    void *in, *out; /* (capacity,) bytes, from weft_alloc or malloc */
    size_t capacity;
    double *times;              /* (iters,) microseconds */
    int64_t *reduced;           /* (iters,) values to reduce over the ranks */
    struct bench_call *calls;   /* (inflight,) */
    struct bench_args args;     /* of the current row */
    struct weft_tensor *tensor; /* push_pull: of the current size */
    uint64_t step;
    double step_us;        /* push_pull: sum of whole steps while timing, microseconds */
    const char *last_plan; /* of the operations timed last; static string */
    uint32_t salt;         /* of the last check */
    struct bench_report report;
};

/* Joins the job: sets session, rank and ranks. False: the sentence, which begins with `name`, is on
 * stderr. */
bool bench_join(struct bench_rank *rank, const char *name);
/* Waits for a started operation. False: the operation failed, and the sentence is on stderr. */
bool bench_wait(const struct bench_rank *rank, const char *what, enum weft_status started,
                struct weft_request *request);
/* prints the failure; returns false */
bool bench_print_failure(const struct bench_rank *rank, const char *what, enum weft_status status);
bool bench_barrier(struct bench_rank *rank);
/* Reduces (count,) values over all ranks; all get the result. Collective. */
bool bench_reduce_over_ranks(struct bench_rank *rank, int64_t *values, uint64_t count, enum weft_op op);

/* Combines the times of all ranks as -a requires. Collective. */
bool bench_average_over_ranks(struct bench_rank *rank, double us, double *us_out);

/* bench_timing.c: times the operation of rank->args in its current buffers, or push_pull of the tensor.
 * Collective. */
bool bench_time(struct bench_rank *rank, struct bench_timing *timing);
bool bench_overlap(struct bench_rank *rank, double time_us, struct bench_overlap *overlap);
bool bench_check(struct bench_rank *rank, struct bench_timing *timing);

/* bench_limit.c: the limit of an all_reduce of rank->args that takes time_us in place. Collective. */
bool bench_limit(struct bench_rank *rank, double time_us, struct bench_limit *limit);

/* copies/bench_copies.c: bytes that all shards have received, of reports that are newer than the call; waits
 * for them. False: the sentence is on stderr. */
bool bench_shard_bytes(double *bytes_out);

/* bench_machine.c */
double bench_now_us(void);
double bench_cpu_us(void);    /* of all threads of this process */
double bench_thread_us(void); /* processor time of the calling thread */
/* Share of this process of the memory it uses (Pss), bytes; 0: unknown. */
uint64_t bench_pss(void);
/* Number of loop iterations that compute for `us` microseconds on an idle processor. */
uint64_t bench_calibrate_compute(double us);
void bench_compute(uint64_t iterations);
/* GB/s, read plus written, of the fastest of several copies of (bytes,). */
double bench_copy_bandwidth(void *to, const void *from, uint64_t bytes);

#endif
