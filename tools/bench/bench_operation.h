/* bench_operation.h - what the operations differ in: buffers, bandwidth that counts, the call, and what must
 * come out.
 *
 * Sizes are those of nccl-tests: of operations on pieces, the pieces of all ranks together. Busbw is algbw
 * times what the busiest link must carry of it at least: 2 (n - 1) / n of an all_reduce, (n - 1) / n where
 * each rank's own piece stays at home, all of it otherwise. */
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
    const char *name;          /* "reduce_scatter_v" */
    const char *plans_of;      /* the operation whose plans it takes; NULL: it has none */
    enum bench_operation_kind kind;
    bool reduces, rooted;
    bool pieces;               /* the size is that of all ranks' pieces */
    bool unequal;              /* the pieces are not of one length */
    bool in_place, out_of_place; /* forms that there are */
    const char *about;         /* a line for people */
};

/* NULL: there is none of that name. */
const struct bench_operation *bench_operation_find(const char *name);
/* The i-th; NULL behind the last. */
const struct bench_operation *bench_operation_at(uint32_t index);
double bench_bus_factor(const struct bench_operation *operation, uint32_t ranks);

/* One rank's part in an operation of one size. */
struct bench_args {
    const struct bench_operation *operation;
    enum weft_dtype dtype;
    enum weft_op op;                     /* 0: it reduces nothing */
    uint32_t root, rank, ranks;
    uint64_t total_elems;                      /* elements of the longest buffer of any rank; 0: a barrier */
    uint64_t piece_elems;                      /* of equal pieces: elements of one; otherwise of the buffer */
    uint64_t own_elems, own_offset;                    /* elements of this rank's piece, and before it */
    uint64_t in_elems, out_elems;        /* of this rank's buffers */
    uint64_t *counts, *counts_out;       /* (ranks,) of unequal pieces; owned */
    void *in, *out;                      /* in place: in lies in out, or out in in; borrowed */
    void *base;                          /* in place: of the buffer that holds both */
};

/* Sizes for about `bytes`; the other fields to `ranks` are given. False: out of memory. */
bool bench_args_set_size(struct bench_args *args, uint64_t bytes);
void bench_args_free(struct bench_args *args);
/* in and out of (whole,) elements each; `in_place` lays both into out. */
void bench_args_set_buffers(struct bench_args *args, void *in, void *out, bool in_place);

struct bench_call {
    struct weft_request requests[2];
};
/* Starts it; WEFT_IN_PROGRESS or an error. `call` zeroed before its first use. */
enum weft_status bench_args_start(struct bench_args *args, struct weft_session *session,
                                  struct bench_call *call);
enum weft_status bench_call_wait(struct bench_call *call);

void bench_args_fill_input(const struct bench_args *args, uint32_t salt);
/* Wrong elements in this rank's result. */
uint64_t bench_args_count_wrong(const struct bench_args *args, uint32_t salt);

#endif
