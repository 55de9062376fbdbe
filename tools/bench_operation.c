/* bench_operation.c - see bench_operation.h. */
#include "tools/bench_operation.h"

#include <stdlib.h>
#include <string.h>

static const struct bench_operation operations[] = {
    {"all_reduce", "all_reduce", DO_ALL_REDUCE, .reduces = true, .in_place = true, .out_of_place = true,
     .about = "all ranks reduce one buffer, and all get the result"},
    {"reduce_scatter", "reduce_scatter", DO_REDUCE_SCATTER, .reduces = true, .pieces = true, .in_place = true, .out_of_place = true,
     .about = "all ranks reduce one buffer, and each gets its piece of the result"},
    {"reduce_scatter_v", "reduce_scatter", DO_REDUCE_SCATTER, .reduces = true, .pieces = true, .unequal = true, .in_place = true,
     .out_of_place = true, .about = "the same with pieces in proportion to rank + 1"},
    {"all_gather", "all_gather", DO_ALL_GATHER, .pieces = true, .in_place = true, .out_of_place = true,
     .about = "each rank contributes a piece, and all get all of them"},
    {"all_gather_v", "all_gather", DO_ALL_GATHER, .pieces = true, .unequal = true, .in_place = true, .out_of_place = true,
     .about = "the same with pieces in proportion to rank + 1"},
    {"broadcast", "broadcast", DO_BROADCAST, .rooted = true, .in_place = true, .about = "the root's buffer to all"},
    {"reduce", "reduce", DO_REDUCE, .reduces = true, .rooted = true, .in_place = true, .out_of_place = true,
     .about = "all ranks reduce one buffer, and the root gets the result"},
    {"gather", "gather", DO_GATHER, .rooted = true, .pieces = true, .in_place = true, .out_of_place = true,
     .about = "each rank contributes a piece, and the root gets all of them"},
    {"gather_v", "gather", DO_GATHER, .rooted = true, .pieces = true, .unequal = true, .in_place = true, .out_of_place = true,
     .about = "the same with pieces in proportion to rank + 1"},
    {"scatter", "scatter", DO_SCATTER, .rooted = true, .pieces = true, .in_place = true, .out_of_place = true,
     .about = "each rank gets its piece of the root's buffer"},
    {"scatter_v", "scatter", DO_SCATTER, .rooted = true, .pieces = true, .unequal = true, .in_place = true, .out_of_place = true,
     .about = "the same with pieces in proportion to rank + 1"},
    {"all_to_all", "all_to_all", DO_ALL_TO_ALL, .pieces = true, .in_place = true, .out_of_place = true,
     .about = "each rank has a piece for each"},
    {"all_to_all_v", "all_to_all", DO_ALL_TO_ALL, .pieces = true, .unequal = true, .out_of_place = true,
     .about = "the same with pieces in proportion to (rank + receiver) % ranks + 1"},
    {"barrier", "barrier", DO_BARRIER, .out_of_place = true, .about = "nobody goes on before all have come; the sizes mean nothing"},
    {"sendrecv", NULL, DO_SENDRECV, .out_of_place = true, .about = "each rank sends to the next and receives from the one before"},
};
enum { OPERATION_COUNT = sizeof operations / sizeof operations[0] };

const struct bench_operation *bench_operation_at(uint32_t index) { return index < OPERATION_COUNT ? &operations[index] : NULL; }

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
    return operation->what == DO_ALL_REDUCE ? 2 * others : operation->pieces ? others : 1;
}

/* ---- sizes ---- */

static uint64_t sum_of(const uint64_t *counts, uint32_t count)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < count; r++) total += counts[r];
    return total;
}

static bool size_unequal(struct bench_part *part, uint64_t elems)
{
    uint64_t ranks = part->ranks, weights = ranks * (ranks + 1) / 2;
    bool all_to_all = part->operation->what == DO_ALL_TO_ALL;
    part->counts = calloc(ranks, sizeof *part->counts);
    part->counts_out = calloc(ranks, sizeof *part->counts_out);
    if (!part->counts || !part->counts_out) return false;
    for (uint32_t r = 0; r < ranks; r++)
        part->counts[r] = part->counts_out[r] = elems / weights * (all_to_all ? (part->rank + r) % ranks + 1 : r + 1);
    if (!all_to_all) part->counts[ranks - 1] += elems % weights;
    part->whole = sum_of(part->counts, part->ranks);
    part->piece = part->whole;
    part->own = part->counts[part->rank];
    part->at = sum_of(part->counts, part->rank);
    return true;
}

bool bench_part_size(struct bench_part *part, uint64_t bytes)
{
    uint64_t elems = bytes / weft_dtype_bytes(part->dtype), ranks = part->ranks;
    enum bench_what what = part->operation->what;
    bool at_root = part->rank == part->root;
    part->whole = part->piece = part->own = what == DO_BARRIER ? 0 : elems;
    part->at = 0;
    bench_part_free(part);
    if (part->operation->unequal && !size_unequal(part, elems)) return false;
    if (part->operation->pieces && !part->operation->unequal) {
        part->piece = part->own = elems / ranks > 0 ? elems / ranks : 1;
        part->whole = part->piece * ranks;
        part->at = part->piece * part->rank;
    }
    part->in_elems = what == DO_ALL_GATHER || what == DO_GATHER ? part->own : part->whole;
    part->out_elems = what == DO_REDUCE_SCATTER || what == DO_SCATTER ? part->own : part->whole;
    if (what == DO_SCATTER && !at_root) part->in_elems = 0;
    if ((what == DO_GATHER || what == DO_REDUCE) && !at_root) part->out_elems = 0;
    return true;
}

void bench_part_free(struct bench_part *part)
{
    free(part->counts);
    free(part->counts_out);
    part->counts = part->counts_out = NULL;
}

void bench_part_place(struct bench_part *part, void *in, void *out, bool in_place)
{
    enum bench_what what = part->operation->what;
    size_t at = part->at * weft_dtype_bytes(part->dtype);
    part->in = in;
    part->out = out;
    part->base = in_place ? out : NULL;
    if (!in_place) return;
    part->in = what == DO_ALL_GATHER || what == DO_GATHER ? (uint8_t *)out + at : out;
    part->out = what == DO_REDUCE_SCATTER || what == DO_SCATTER ? (uint8_t *)out + at : out;
}

/* ---- the call ---- */

static enum weft_status start_equal(struct bench_part *part, struct weft_session *session, struct weft_request *request)
{
    uint64_t count = part->piece;
    enum weft_dtype dtype = part->dtype;
    switch (part->operation->what) {
    case DO_ALL_REDUCE:
        return part->op == WEFT_SCALED_SUM
                   ? weft_all_reduce_scaled(session, part->in, part->out, count, dtype, bench_pattern_factor(part->rank), request)
                   : weft_all_reduce(session, part->in, part->out, count, dtype, part->op, request);
    case DO_REDUCE_SCATTER: return weft_reduce_scatter(session, part->in, part->out, count, dtype, part->op, request);
    case DO_ALL_GATHER: return weft_all_gather(session, part->in, part->out, count, dtype, request);
    case DO_BROADCAST: return weft_broadcast(session, part->out, count, dtype, part->root, request);
    case DO_REDUCE: return weft_reduce(session, part->in, part->out, count, dtype, part->op, part->root, request);
    case DO_GATHER: return weft_gather(session, part->in, part->out, count, dtype, part->root, request);
    case DO_SCATTER: return weft_scatter(session, part->in, part->out, count, dtype, part->root, request);
    case DO_ALL_TO_ALL: return weft_all_to_all(session, part->in, part->out, count, dtype, request);
    default: return weft_barrier(session, request);
    }
}

static enum weft_status start_unequal(struct bench_part *part, struct weft_session *session, struct weft_request *request)
{
    const uint64_t *counts = part->counts;
    enum weft_dtype dtype = part->dtype;
    switch (part->operation->what) {
    case DO_REDUCE_SCATTER: return weft_reduce_scatter_v(session, part->in, part->out, counts, dtype, part->op, request);
    case DO_ALL_GATHER: return weft_all_gather_v(session, part->in, part->out, counts, dtype, request);
    case DO_GATHER: return weft_gather_v(session, part->in, part->out, part->own, counts, dtype, part->root, request);
    case DO_SCATTER: return weft_scatter_v(session, part->in, part->out, part->own, counts, dtype, part->root, request);
    default: return weft_all_to_all_v(session, part->in, counts, part->out, part->counts_out, dtype, request);
    }
}

enum weft_status bench_part_start(struct bench_part *part, struct weft_session *session, struct bench_call *call)
{
    uint32_t next = (part->rank + 1) % part->ranks, before = (part->rank + part->ranks - 1) % part->ranks;
    if (part->operation->what != DO_SENDRECV)
        return part->operation->unequal ? start_unequal(part, session, &call->requests[0]) : start_equal(part, session, &call->requests[0]);
    enum weft_status status = weft_recv(session, part->out, part->piece, part->dtype, before, &call->requests[1]);
    return status < 0 ? status : weft_send(session, part->in, part->piece, part->dtype, next, &call->requests[0]);
}

enum weft_status bench_call_wait(struct bench_call *call)
{
    enum weft_status first = weft_wait(&call->requests[0], 0), second = weft_wait(&call->requests[1], 0);
    return first < 0 ? first : second;
}

/* ---- contents ---- */

static struct bench_pattern pattern_of(const struct bench_part *part, uint32_t salt)
{
    return (struct bench_pattern){.dtype = part->dtype, .op = part->op, .ranks = part->ranks, .salt = salt};
}

void bench_part_fill(const struct bench_part *part, uint32_t salt)
{
    struct bench_pattern pattern = pattern_of(part, salt);
    size_t element = weft_dtype_bytes(part->dtype);
    if (part->base) memset(part->base, 0xa5, part->whole * element);
    else memset(part->out, 0xa5, part->out_elems * element);
    if (part->operation->what != DO_BROADCAST) bench_pattern_fill(&pattern, part->in, 0, part->in_elems, part->rank);
    else if (part->rank == part->root) bench_pattern_fill(&pattern, part->out, 0, part->whole, part->rank);
}

/* How much of what rank `from` had for everybody lies before what it had for this rank. */
static uint64_t before_mine(const struct bench_part *part, uint32_t from)
{
    uint64_t unit = 0, before = 0, ranks = part->ranks;
    if (!part->operation->unequal) return part->piece * part->rank;
    unit = part->counts[0] / (part->rank + 1);
    for (uint32_t r = 0; r < part->rank; r++) before += unit * ((from + r) % ranks + 1);
    return before;
}

/* Every rank's piece, one behind the other. */
static uint64_t pieces_wrong(const struct bench_part *part, const struct bench_pattern *pattern)
{
    uint64_t wrong = 0, at = 0;
    for (uint32_t r = 0; r < part->ranks; r++) {
        bool exchanged = part->operation->what == DO_ALL_TO_ALL;
        uint64_t count = !part->operation->unequal ? part->piece : exchanged ? part->counts_out[r] : part->counts[r];
        const uint8_t *data = (const uint8_t *)part->out + at * weft_dtype_bytes(part->dtype);
        wrong += bench_pattern_moved_wrong(pattern, data, exchanged ? before_mine(part, r) : 0, count, r);
        at += count;
    }
    return wrong;
}

uint64_t bench_part_wrong(const struct bench_part *part, uint32_t salt)
{
    struct bench_pattern pattern = pattern_of(part, salt);
    switch (part->operation->what) {
    case DO_BARRIER: return 0;
    case DO_ALL_REDUCE:
    case DO_REDUCE: return bench_pattern_wrong(&pattern, part->out, 0, part->out_elems);
    case DO_REDUCE_SCATTER: return bench_pattern_wrong(&pattern, part->out, part->at, part->own);
    case DO_BROADCAST: return bench_pattern_moved_wrong(&pattern, part->out, 0, part->whole, part->root);
    case DO_SCATTER: return bench_pattern_moved_wrong(&pattern, part->out, part->at, part->own, part->root);
    case DO_SENDRECV:
        return bench_pattern_moved_wrong(&pattern, part->out, 0, part->whole, (part->rank + part->ranks - 1) % part->ranks);
    default: return part->out_elems == 0 ? 0 : pieces_wrong(part, &pattern);
    }
}
