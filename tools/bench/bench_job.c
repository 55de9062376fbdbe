/* bench_job.c - see bench_rank.h.
 *
 * Each row: out of place and in place as far as the operation has both; warm-up, timed operations, then
 * operations on new contents whose results are checked element by element. */
#include "tools/bench/bench_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/output.h"

static bool is_operation(const struct bench_rank *rank)
{
    return rank->options->kind == BENCH_OPERATION;
}

/* ---- one row ---- */

static void name_bandwidth(const struct bench_rank *rank, uint64_t bytes, struct bench_timing *timing)
{
    uint32_t shards = weft_shards(rank->session);
    double factor = is_operation(rank)     ? bench_bus_factor(rank->options->operation, rank->ranks)
                    : rank->ranks > shards ? (double)rank->ranks / shards
                                           : 1;
    timing->algbw = timing->time_us > 0 ? 1e-3 * (double)bytes / timing->time_us : 0;
    timing->busbw = timing->algbw * factor;
}

static bool run_form(struct bench_rank *rank, bool in_place, uint64_t bytes, struct bench_timing *timing)
{
    bench_args_set_buffers(&rank->args, rank->in, rank->out, in_place);
    if (!bench_time(rank, timing)) return false;
    name_bandwidth(rank, bytes, timing);
    return true;
}

static void explain(struct bench_rank *rank)
{
    const struct bench_args *args = &rank->args;
    char text[1024];
    uint64_t count = args->operation->unequal ? args->total_elems / args->ranks : args->piece_elems;
    if (rank->rank == 0 && !rank->options->report.json && args->operation->plans_of &&
        weft_explain(rank->session, args->operation->plans_of, count, args->dtype, text, sizeof text) ==
            WEFT_OK)
        fprintf(rank->report.out, "# %s\n", text);
}

static bool note_memory(struct bench_rank *rank, struct bench_row *row)
{
    int64_t pss = (int64_t)bench_pss();
    if (!bench_reduce_over_ranks(rank, &pss, 1, WEFT_MAX)) return false;
    row->pss_bytes = (uint64_t)pss;
    if (rank->rank == 0) {
        bench_report_row(&rank->report, row);
    } else {
        rank->report.wrong += row->out_of_place.wrong + row->in_place.wrong;
    }
    return true;
}

/* rank->args has type, reduction and root. */
static bool run_size(struct bench_rank *rank, uint64_t bytes)
{
    struct bench_args *args = &rank->args;
    const struct bench_operation *operation = args->operation;
    if (!bench_args_set_size(args, bytes)) return fprintf(stderr, "weft bench: out of memory\n"), false;
    bytes = args->total_elems * weft_dtype_bytes(args->dtype);
    struct bench_row row = {.bytes = bytes,
                            .count = args->piece_elems,
                            .dtype = args->dtype,
                            .op = args->op,
                            .root = operation->rooted ? (int)args->root : -1};
    if (rank->options->report.explain) explain(rank);
    if (operation->out_of_place) {
        if (!run_form(rank, false, bytes, &row.out_of_place)) return false;
        row.last_plan = rank->last_plan;
        if (!bench_check(rank, &row.out_of_place)) return false;
    }
    if (operation->in_place) {
        if (!run_form(rank, true, bytes, &row.in_place)) return false;
        row.last_plan = rank->last_plan;
        if (!bench_check(rank, &row.in_place)) return false;
    }
    double alone = operation->out_of_place ? row.out_of_place.time_us : row.in_place.time_us;
    bench_args_set_buffers(args, rank->in, rank->out, !operation->out_of_place);
    if (rank->options->report.overlap && !bench_overlap(rank, alone, &row.overlap)) return false;
    if (rank->options->report.limit && !bench_limit(rank, row.in_place.time_us, &row.limit)) return false;
    return note_memory(rank, &row);
}

static bool declare_size(struct bench_rank *rank, uint64_t count)
{
    char name[48];
    snprintf(name, sizeof(name), "bench.%" PRIu64, count);
    struct weft_tensor_options declared;
    weft_tensor_options_init(&declared);
    declared.name = name;
    declared.dim_count = 1;
    declared.dims[0] = count;
    declared.dtype = rank->args.dtype;
    declared.mode = WEFT_MODE_SERVER;
    enum weft_status status = weft_declare(rank->session, &declared, &rank->tensor);
    return status < 0 ? bench_print_failure(rank, "declare", status) : true;
}

/* With --copies: bytes that the shards have received so far. The other ranks wait. */
static bool shard_bytes(struct bench_rank *rank, double *bytes_out)
{
    if (rank->options->copies == 0) return true;
    int64_t failed = rank->rank == 0 && !bench_shard_bytes(bytes_out);
    return bench_barrier(rank) && bench_reduce_over_ranks(rank, &failed, 1, WEFT_MAX) && !failed;
}

/* The result equals that of an all_reduce out of place, and is filled and checked as one. */
static bool run_push_pull_size(struct bench_rank *rank, uint64_t bytes)
{
    struct bench_args *args = &rank->args;
    struct bench_row row = {.dtype = args->dtype, .op = args->op, .root = -1};
    if (!bench_args_set_size(args, bytes) || !declare_size(rank, args->total_elems)) return false;
    row.count = args->total_elems;
    row.bytes = row.count * weft_dtype_bytes(args->dtype);
    const uint64_t step_before = rank->step;
    double before = 0, after = 0;
    if (!shard_bytes(rank, &before) || !run_form(rank, false, row.bytes, &row.out_of_place)) return false;
    row.step_us = rank->step_us / rank->options->iters;
    if (!bench_check(rank, &row.out_of_place) || !shard_bytes(rank, &after)) return false;
    row.shard_bytes = (after - before) / (double)(rank->step - step_before);
    return note_memory(rank, &row);
}

/* ---- the sweep ---- */

/* The transports in use, each once: "shm mapped, other memory by CMA", "ucx tcp/eth0". Reasons against other
 * transports are left out. */
static void name_transport(struct bench_rank *rank)
{
    /* limit 2 s: a neighbour that took no part in our barrier messages may connect later */
    enum { TRIES = 200, TRY_NS = 10000000 };
    static char text[64 << 10];
    char *rest = text, *line, *into = rank->report.transport;
    size_t capacity = sizeof rank->report.transport;
    snprintf(into, capacity, "none");
    for (int i = 0; i < TRIES; i++) {
        if (weft_describe_links(rank->session, text, sizeof text) < 0) return;
        if (!strstr(text, "not met yet")) break;
        nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
    }
    for (size_t at = 0; (line = strtok_r(rest, "\n", &rest));) {
        char *description = strstr(line, "): "), *reasons;
        description = description ? description + 3 : line;
        if ((reasons = strstr(description, " (not "))) *reasons = 0;
        if (at > 0 && strstr(into, description)) continue;
        at += (size_t)snprintf(into + at, capacity - at, "%s%s", at > 0 ? "; " : "", description);
        if (at >= capacity) return;
    }
}

static bool run_sizes(struct bench_rank *rank)
{
    struct bench_sweep sweep = rank->options->sweep;
    const struct bench_operation *operation = rank->args.operation;
    uint64_t pieces = operation->unequal  ? (uint64_t)rank->ranks * (rank->ranks + 1) / 2
                      : operation->pieces ? rank->ranks
                                          : 1;
    sweep.unit = weft_dtype_bytes(rank->args.dtype) * pieces;
    for (uint64_t bytes = 0; (bytes = bench_sweep_next(&sweep, bytes)) != 0;) {
        if (!(is_operation(rank) ? run_size(rank, bytes) : run_push_pull_size(rank, bytes))) return false;
    }
    return true;
}

/* Runs every reduction that the type supports. A single unsupported reduction is left to the library to
 * refuse. */
static bool run_types(struct bench_rank *rank)
{
    const struct bench_options *options = rank->options;
    for (uint32_t d = 0; d < options->types.dtype_count; d++) {
        for (uint32_t o = 0; o < options->types.op_count; o++) {
            enum weft_dtype dtype = options->types.dtypes[d];
            enum weft_op op = options->types.ops[o];
            bool several = options->types.dtype_count > 1 || options->types.op_count > 1;
            if (several &&
                (!bench_pattern_supports(dtype, op) || rank->ranks > bench_pattern_ranks_max(dtype, op)))
                continue;
            rank->args.dtype = dtype;
            rank->args.op = op;
            if (!run_sizes(rank)) return false;
        }
    }
    return true;
}

static bool run_sweep(struct bench_rank *rank)
{
    const struct bench_options *options = rank->options;
    bool rooted = is_operation(rank) && options->operation->rooted && options->all_roots;
    if (!bench_barrier(rank)) return false;
    if (rank->rank == 0) {
        rank->report.copy_gbps = bench_copy_bandwidth(rank->out, rank->in, options->sweep.last);
        name_transport(rank);
        bench_report_begin(&rank->report);
    }
    if (!bench_barrier(rank)) return false;
    for (uint32_t cycle = 0; cycle < options->cycles; cycle++) {
        for (uint32_t root = rooted ? 0 : options->root; root < (rooted ? rank->ranks : options->root + 1);
             root++) {
            rank->args.root = root;
            if (!run_types(rank)) return false;
        }
    }
    if (rank->rank != 0) return true;
    bool ended = bench_report_end(&rank->report); /* writes the plot, too */
    return bench_flush_output(bench_name(options)) && ended;
}

/* ---- join ---- */

static bool fits(struct bench_rank *rank)
{
    const struct bench_options *options = rank->options;
    if (!is_operation(rank) && weft_shards(rank->session) == 0) {
        fprintf(
            stderr,
            "weft bench: push_pull needs shards; start the job with `weft run -s 1 ...` or use -n and -s\n");
        return false;
    }
    if (options->root >= rank->ranks) {
        fprintf(stderr, "weft bench: there is no rank %" PRIu32 " (-r) among %" PRIu32 "\n", options->root,
                rank->ranks);
        return false;
    }
    if (options->types.dtype_count == 1 && options->types.op_count == 1 &&
        rank->ranks > bench_pattern_ranks_max(options->types.dtypes[0], options->types.ops[0])) {
        fprintf(stderr,
                "weft bench: sums over %" PRIu32
                " ranks are not exact in %s, so they cannot be checked; use f32\n",
                rank->ranks, weft_dtype_name(options->types.dtypes[0]));
        return false;
    }
    return true;
}

static void *allocate(struct bench_rank *rank, size_t bytes)
{
    if (!rank->options->uses_malloc) return weft_alloc(rank->session, bytes);
    void *memory = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static bool prepare(struct bench_rank *rank)
{
    const struct bench_options *options = rank->options;
    uint64_t least = 8u * (uint64_t)rank->ranks * (rank->ranks + 1); /* one element of every piece */
    rank->capacity = options->sweep.last > least ? options->sweep.last : least;
    rank->in = allocate(rank, rank->capacity);
    rank->out = allocate(rank, rank->capacity);
    rank->times = calloc(options->iters, sizeof *rank->times);
    rank->reduced = calloc(options->iters, sizeof *rank->reduced);
    rank->calls = calloc(options->inflight, sizeof *rank->calls);
    if (rank->in && rank->out && rank->times && rank->reduced && rank->calls) return true;
    fprintf(stderr, "weft bench: out of memory for two buffers of %zu bytes; make -e smaller\n",
            rank->capacity);
    return false;
}

static bool set_plan(struct bench_rank *rank)
{
    char text[80];
    if (!is_operation(rank) || strcmp(rank->options->plan, "auto") == 0) return true;
    snprintf(text, sizeof text, "%s=%s", rank->options->operation->plans_of, rank->options->plan);
    enum weft_status status = weft_set_plan(rank->session, text);
    return status < 0 ? bench_print_failure(rank, "plan", status) : true;
}

static void release(struct bench_rank *rank)
{
    if (rank->options->uses_malloc) {
        weft_finalize(rank->session); /* operations in flight end before their memory is freed */
        free(rank->in);
        free(rank->out);
    } else {
        weft_free(rank->session, rank->in);
        weft_free(rank->session, rank->out);
        weft_finalize(rank->session);
    }
    bench_args_free(&rank->args);
    free(rank->times);
    free(rank->reduced);
    free(rank->calls);
}

int bench_job_run(const struct bench_options *options)
{
    struct bench_rank rank = {.options = options};
    if (!bench_join(&rank, "weft bench")) return 1;
    rank.args = (struct bench_args){.operation = options->operation,
                                    .dtype = options->types.dtypes[0],
                                    .op = options->types.ops[0],
                                    .rank = rank.rank,
                                    .ranks = rank.ranks};
    /* push_pull gives the mean of an all_reduce */
    if (!is_operation(&rank)) rank.args.operation = bench_operation_find("all_reduce");
    rank.report = (struct bench_report){
        .out = stdout, .options = options, .ranks = rank.ranks, .shards = weft_shards(rank.session)};
    bool fine = fits(&rank) && prepare(&rank) && set_plan(&rank) && run_sweep(&rank);
    release(&rank);
    bench_report_free(&rank.report);
    return fine && rank.report.wrong == 0 ? 0 : 1;
}
