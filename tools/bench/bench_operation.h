/* bench_operation.h - the operations that are benchmarked: buffers, bus factor, call, contents.
 *
 * Sizes are those of nccl-tests: of operations on pieces, the pieces of all ranks together. busbw is algbw
 * times the least share of the bytes that the busiest link carries: 2 (n - 1) / n of an all_reduce, (n - 1) /
 * n where each rank keeps its own piece, 1 otherwise. */
#ifndef WEFT_TOOLS_BENCH_BENCH_OPERATION_H
#define WEFT_TOOLS_BENCH_BENCH_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/bench_pattern.h"
#include "weft/weft.h"

enum bench_operation_kind {
    BENCH_DO_ALL_REDUCE,
    BENCH_DO_REDUCE_SCATTER,
    BENCH_DO_ALL_GATHER,
    BENCH_DO_BROADCAST,
    BENCH_DO_REDUCE,
    BENCH_DO_GATHER,
    BENCH_DO_SCATTER,
    BENCH_DO_ALL_TO_ALL,
    BENCH_DO_BARRIER,
    BENCH_DO_SENDRECV,
};

struct bench_operation {
    const char *name;     /* "reduce_scatter_v" */
    const char *plans_of; /* the operation whose plans it takes; NULL: it has none */
    enum bench_operation_kind kind;
    bool reduces, rooted;
    bool pieces;                 /* the size is that of the pieces of all ranks */
    bool unequal;                /* the pieces have different lengths */
    bool in_place, out_of_place; /* the forms that the operation has */
    const char *about;           /* one line of --help */
};

/* NULL: no operation has that name. */
const struct bench_operation *bench_operation_find(const char *name);
/* The i-th operation; NULL after the last. */
const struct bench_operation *bench_operation_at(uint32_t index);
double bench_bus_factor(const struct bench_operation *operation, uint32_t ranks);

/* One operation of one size, as this rank calls it. */
struct bench_args {
    const struct bench_operation *operation;
    enum weft_dtype dtype;
    enum weft_op op; /* 0: no reduction */
    uint32_t root, rank, ranks;
    uint64_t total_elems; /* elements of the longest buffer of any rank; 0: a barrier */
    /* equal pieces: elements of one; otherwise elements of the buffer */
    uint64_t piece_elems;
    uint64_t own_elems, own_offset; /* own_offset: elements before this rank's piece */
    uint64_t in_elems, out_elems;   /* of this rank's buffers */
    uint64_t *counts, *counts_out;  /* (ranks,) of unequal pieces; owned */
    void *in, *out;                 /* borrowed; in place: `in` lies in `out`, or `out` in `in` */
    void *base;                     /* in place: the buffer that holds both; otherwise NULL */
};

/* Sets the sizes for about `bytes`; the caller has set the fields up to `ranks`. False: out of memory. */
bool bench_args_set_size(struct bench_args *args, uint64_t bytes);
void bench_args_free(struct bench_args *args);
/* in and out have (total_elems,) elements each; with `in_place` both are in `out`. */
void bench_args_set_buffers(struct bench_args *args, void *in, void *out, bool in_place);

struct bench_call {
    struct weft_request requests[2];
};
/* Starts the operation; WEFT_IN_PROGRESS or an error. `call` is zeroed before its first use. */
enum weft_status bench_args_start(struct bench_args *args, struct weft_session *session,
                                  struct bench_call *call);
enum weft_status bench_call_wait(struct bench_call *call);

void bench_args_fill_input(const struct bench_args *args, uint32_t salt);
/* Number of wrong elements in the result of this rank. */
uint64_t bench_args_count_wrong(const struct bench_args *args, uint32_t salt);

#endif
