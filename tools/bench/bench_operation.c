/* bench_operation.c - see bench_operation.h. */
#include "tools/bench/bench_operation.h"

#include <stdlib.h>
#include <string.h>

static const struct bench_operation operations[] = {
    {"all_reduce", "all_reduce", BENCH_DO_ALL_REDUCE, .reduces = true, .in_place = true, .out_of_place = true,
     .about = "all ranks reduce one buffer, and all get the result"},
    {"reduce_scatter", "reduce_scatter", BENCH_DO_REDUCE_SCATTER, .reduces = true, .pieces = true,
     .in_place = true, .out_of_place = true,
     .about = "all ranks reduce one buffer, and each gets its piece of the result"},
    {"reduce_scatter_v", "reduce_scatter", BENCH_DO_REDUCE_SCATTER, .reduces = true, .pieces = true,
     .unequal = true, .in_place = true, .out_of_place = true,
     .about = "the same with pieces in proportion to rank + 1"},
    {"all_gather", "all_gather", BENCH_DO_ALL_GATHER, .pieces = true, .in_place = true, .out_of_place = true,
     .about = "each rank contributes a piece, and all get all of them"},
    {"all_gather_v", "all_gather", BENCH_DO_ALL_GATHER, .pieces = true, .unequal = true, .in_place = true,
     .out_of_place = true, .about = "the same with pieces in proportion to rank + 1"},
    {"broadcast", "broadcast", BENCH_DO_BROADCAST, .rooted = true, .in_place = true,
     .about = "the buffer of the root is copied to all ranks"},
    {"reduce", "reduce", BENCH_DO_REDUCE, .reduces = true, .rooted = true, .in_place = true,
     .out_of_place = true, .about = "all ranks reduce one buffer, and the root gets the result"},
    {"gather", "gather", BENCH_DO_GATHER, .rooted = true, .pieces = true, .in_place = true,
     .out_of_place = true, .about = "each rank contributes a piece, and the root gets all of them"},
    {"gather_v", "gather", BENCH_DO_GATHER, .rooted = true, .pieces = true, .unequal = true, .in_place = true,
     .out_of_place = true, .about = "the same with pieces in proportion to rank + 1"},
    {"scatter", "scatter", BENCH_DO_SCATTER, .rooted = true, .pieces = true, .in_place = true,
     .out_of_place = true, .about = "each rank gets its piece of the root's buffer"},
    {"scatter_v", "scatter", BENCH_DO_SCATTER, .rooted = true, .pieces = true, .unequal = true,
     .in_place = true, .out_of_place = true, .about = "the same with pieces in proportion to rank + 1"},
    {"all_to_all", "all_to_all", BENCH_DO_ALL_TO_ALL, .pieces = true, .in_place = true, .out_of_place = true,
     .about = "each rank has a piece for each"},
    {"all_to_all_v", "all_to_all", BENCH_DO_ALL_TO_ALL, .pieces = true, .unequal = true, .out_of_place = true,
     .about = "the same with pieces in proportion to (rank + receiver) % ranks + 1"},
    {"barrier", "barrier", BENCH_DO_BARRIER, .out_of_place = true,
     .about = "every rank waits for all others; the sizes have no effect"},
    {"sendrecv", NULL, BENCH_DO_SENDRECV, .out_of_place = true,
     .about = "each rank sends to the next and receives from the one before"},
};
enum { OPERATION_COUNT = sizeof operations / sizeof operations[0] };

const struct bench_operation *bench_operation_at(uint32_t index)
{
    return index < OPERATION_COUNT ? &operations[index] : NULL;
}

const struct bench_operation *bench_operation_find(const char *name)
{
    for (size_t i = 0; i < OPERATION_COUNT; i++) {
        if (strcmp(operations[i].name, name) == 0) return &operations[i];
    }
    return NULL;
}

double bench_bus_factor(const struct bench_operation *operation, uint32_t ranks)
{
    double others = (double)(ranks - 1) / ranks;
    return operation->kind == BENCH_DO_ALL_REDUCE ? 2 * others : operation->pieces ? others : 1;
}

/* ---- sizes ---- */

static uint64_t sum_of(const uint64_t *counts, uint32_t count)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < count; r++) total += counts[r];
    return total;
}

static bool size_unequal(struct bench_args *args, uint64_t elems)
{
    uint64_t ranks = args->ranks, weights = ranks * (ranks + 1) / 2;
    bool all_to_all = args->operation->kind == BENCH_DO_ALL_TO_ALL;
    args->counts = calloc(ranks, sizeof *args->counts);
    args->counts_out = calloc(ranks, sizeof *args->counts_out);
    if (!args->counts || !args->counts_out) return false;
    for (uint32_t r = 0; r < ranks; r++)
        args->counts[r] = args->counts_out[r] =
            elems / weights * (all_to_all ? (args->rank + r) % ranks + 1 : r + 1);
    if (!all_to_all) args->counts[ranks - 1] += elems % weights;
    args->total_elems = sum_of(args->counts, args->ranks);
    args->piece_elems = args->total_elems;
    args->own_elems = args->counts[args->rank];
    args->own_offset = sum_of(args->counts, args->rank);
    return true;
}

bool bench_args_set_size(struct bench_args *args, uint64_t bytes)
{
    uint64_t elems = bytes / weft_dtype_bytes(args->dtype), ranks = args->ranks;
    enum bench_operation_kind kind = args->operation->kind;
    bool at_root = args->rank == args->root;
    args->total_elems = args->piece_elems = args->own_elems = kind == BENCH_DO_BARRIER ? 0 : elems;
    args->own_offset = 0;
    bench_args_free(args);
    if (args->operation->unequal && !size_unequal(args, elems)) return false;
    if (args->operation->pieces && !args->operation->unequal) {
        args->piece_elems = args->own_elems = elems / ranks > 0 ? elems / ranks : 1;
        args->total_elems = args->piece_elems * ranks;
        args->own_offset = args->piece_elems * args->rank;
    }
    args->in_elems =
        kind == BENCH_DO_ALL_GATHER || kind == BENCH_DO_GATHER ? args->own_elems : args->total_elems;
    args->out_elems =
        kind == BENCH_DO_REDUCE_SCATTER || kind == BENCH_DO_SCATTER ? args->own_elems : args->total_elems;
    if (kind == BENCH_DO_SCATTER && !at_root) args->in_elems = 0;
    if ((kind == BENCH_DO_GATHER || kind == BENCH_DO_REDUCE) && !at_root) args->out_elems = 0;
    return true;
}

void bench_args_free(struct bench_args *args)
{
    free(args->counts);
    free(args->counts_out);
    args->counts = args->counts_out = NULL;
}

void bench_args_set_buffers(struct bench_args *args, void *in, void *out, bool in_place)
{
    enum bench_operation_kind kind = args->operation->kind;
    size_t at = args->own_offset * weft_dtype_bytes(args->dtype);
    args->in = in;
    args->out = out;
    args->base = in_place ? out : NULL;
    if (!in_place) return;
    args->in = kind == BENCH_DO_ALL_GATHER || kind == BENCH_DO_GATHER ? (uint8_t *)out + at : out;
    args->out = kind == BENCH_DO_REDUCE_SCATTER || kind == BENCH_DO_SCATTER ? (uint8_t *)out + at : out;
}

/* ---- the call ---- */

static enum weft_status start_equal(struct bench_args *args, struct weft_session *session,
                                    struct weft_request *request)
{
    uint64_t count = args->piece_elems;
    enum weft_dtype dtype = args->dtype;
    switch (args->operation->kind) {
    case BENCH_DO_ALL_REDUCE:
        return args->op == WEFT_SCALED_SUM
                   ? weft_all_reduce_scaled(session, args->in, args->out, count, dtype,
                                            bench_pattern_factor(args->rank), request)
                   : weft_all_reduce(session, args->in, args->out, count, dtype, args->op, request);
    case BENCH_DO_REDUCE_SCATTER:
        return weft_reduce_scatter(session, args->in, args->out, count, dtype, args->op, request);
    case BENCH_DO_ALL_GATHER: return weft_all_gather(session, args->in, args->out, count, dtype, request);
    case BENCH_DO_BROADCAST: return weft_broadcast(session, args->out, count, dtype, args->root, request);
    case BENCH_DO_REDUCE:
        return weft_reduce(session, args->in, args->out, count, dtype, args->op, args->root, request);
    case BENCH_DO_GATHER: return weft_gather(session, args->in, args->out, count, dtype, args->root, request);
    case BENCH_DO_SCATTER:
        return weft_scatter(session, args->in, args->out, count, dtype, args->root, request);
    case BENCH_DO_ALL_TO_ALL: return weft_all_to_all(session, args->in, args->out, count, dtype, request);
    default: return weft_barrier(session, request);
    }
}

static enum weft_status start_unequal(struct bench_args *args, struct weft_session *session,
                                      struct weft_request *request)
{
    const uint64_t *counts = args->counts;
    enum weft_dtype dtype = args->dtype;
    switch (args->operation->kind) {
    case BENCH_DO_REDUCE_SCATTER:
        return weft_reduce_scatter_v(session, args->in, args->out, counts, dtype, args->op, request);
    case BENCH_DO_ALL_GATHER: return weft_all_gather_v(session, args->in, args->out, counts, dtype, request);
    case BENCH_DO_GATHER:
        return weft_gather_v(session, args->in, args->out, args->own_elems, counts, dtype, args->root,
                             request);
    case BENCH_DO_SCATTER:
        return weft_scatter_v(session, args->in, args->out, args->own_elems, counts, dtype, args->root,
                              request);
    default: return weft_all_to_all_v(session, args->in, counts, args->out, args->counts_out, dtype, request);
    }
}

enum weft_status bench_args_start(struct bench_args *args, struct weft_session *session,
                                  struct bench_call *call)
{
    uint32_t next = (args->rank + 1) % args->ranks, before = (args->rank + args->ranks - 1) % args->ranks;
    if (args->operation->kind != BENCH_DO_SENDRECV)
        return args->operation->unequal ? start_unequal(args, session, &call->requests[0])
                                        : start_equal(args, session, &call->requests[0]);
    enum weft_status status =
        weft_recv(session, args->out, args->piece_elems, args->dtype, before, &call->requests[1]);
    return status < 0
               ? status
               : weft_send(session, args->in, args->piece_elems, args->dtype, next, &call->requests[0]);
}

enum weft_status bench_call_wait(struct bench_call *call)
{
    enum weft_status first = weft_wait(&call->requests[0], 0), second = weft_wait(&call->requests[1], 0);
    return first < 0 ? first : second;
}

/* ---- contents ---- */

static struct bench_pattern pattern_of(const struct bench_args *args, uint32_t salt)
{
    return (struct bench_pattern){.dtype = args->dtype, .op = args->op, .ranks = args->ranks, .salt = salt};
}

void bench_args_fill_input(const struct bench_args *args, uint32_t salt)
{
    struct bench_pattern pattern = pattern_of(args, salt);
    size_t element = weft_dtype_bytes(args->dtype);
    if (args->base) memset(args->base, 0xa5, args->total_elems * element);
    else memset(args->out, 0xa5, args->out_elems * element);
    if (args->operation->kind != BENCH_DO_BROADCAST)
        bench_pattern_fill(&pattern, args->in, 0, args->in_elems, args->rank);
    else if (args->rank == args->root)
        bench_pattern_fill(&pattern, args->out, 0, args->total_elems, args->rank);
}

/* Offset of this rank's piece in the buffer of rank `from`. */
static uint64_t offset_from(const struct bench_args *args, uint32_t from)
{
    uint64_t unit = 0, before = 0, ranks = args->ranks;
    if (!args->operation->unequal) return args->piece_elems * args->rank;
    unit = args->counts[0] / (args->rank + 1);
    for (uint32_t r = 0; r < args->rank; r++) before += unit * ((from + r) % ranks + 1);
    return before;
}

/* Counts wrong elements of the concatenated pieces of all ranks. */
static uint64_t pieces_wrong(const struct bench_args *args, const struct bench_pattern *pattern)
{
    uint64_t wrong = 0, at = 0;
    for (uint32_t r = 0; r < args->ranks; r++) {
        bool exchanged = args->operation->kind == BENCH_DO_ALL_TO_ALL;
        uint64_t count = !args->operation->unequal ? args->piece_elems
                         : exchanged               ? args->counts_out[r]
                                                   : args->counts[r];
        const uint8_t *data = (const uint8_t *)args->out + at * weft_dtype_bytes(args->dtype);
        wrong +=
            bench_pattern_count_wrong_moved(pattern, data, exchanged ? offset_from(args, r) : 0, count, r);
        at += count;
    }
    return wrong;
}

uint64_t bench_args_count_wrong(const struct bench_args *args, uint32_t salt)
{
    struct bench_pattern pattern = pattern_of(args, salt);
    switch (args->operation->kind) {
    case BENCH_DO_BARRIER: return 0;
    case BENCH_DO_ALL_REDUCE:
    case BENCH_DO_REDUCE: return bench_pattern_count_wrong(&pattern, args->out, 0, args->out_elems);
    case BENCH_DO_REDUCE_SCATTER:
        return bench_pattern_count_wrong(&pattern, args->out, args->own_offset, args->own_elems);
    case BENCH_DO_BROADCAST:
        return bench_pattern_count_wrong_moved(&pattern, args->out, 0, args->total_elems, args->root);
    case BENCH_DO_SCATTER:
        return bench_pattern_count_wrong_moved(&pattern, args->out, args->own_offset, args->own_elems,
                                               args->root);
    case BENCH_DO_SENDRECV:
        return bench_pattern_count_wrong_moved(&pattern, args->out, 0, args->total_elems,
                                               (args->rank + args->ranks - 1) % args->ranks);
    default: return args->out_elems == 0 ? 0 : pieces_wrong(args, &pattern);
    }
}
