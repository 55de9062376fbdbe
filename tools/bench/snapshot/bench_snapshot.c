/* bench_snapshot.c - `weft bench snapshot`: step time with and without snapshots, in one job.
 *
 *     step      S + 1 .. S + W           S + W + 1 .. S + 2 W          S: a multiple of 2 W, for W of --steps
 *               with: chunks are         without
 *               captured and written
 *
 * So both sides are measured in turn. A snapshot counts if its manifest is in the folder. The extra time of a
 * snapshot is the difference of the two sums of step times. A time is that of rank 0. */
#include "tools/bench/snapshot/bench_snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "snapshot/snapshot.h"
#include "tools/bench/bench_cli.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/samples.h"
#include "weft/weft.h"

#define NAME "weft bench snapshot"
enum { COMMIT_WAIT_MS = 60000, POLL_MS = 50, PATH_BYTES = 1200 };

struct snapshot_bench {
    struct bench_rank rank;
    const struct bench_snapshot *options;
    struct weft_tensor **tensors;     /* (tensors,) */
    struct weft_request *requests;    /* (tensors,) */
    float **weights, *gradient;       /* of each tensor; one for all */
    double *step_us;                  /* (last step,) */
    double *with, *without, *scratch; /* (snapshots,) sums of step times */
};

int bench_snapshot_parse(struct bench_snapshot *options, int argc, char **argv)
{
    *options = (struct bench_snapshot){
        .shards = 1, .tensors = 8, .steps = 50, .snapshots = 5, .bytes = 64u << 20, .codec = "dense"};
    const struct cli_option table[] = {
        BENCH_PROCESSES_OPTION(&options->processes, 256),
        {"shards", 's', "N", "parameter-server shards", CLI_U32(&options->shards, 1, 256)},
        {"bytes", 'b', "SIZE", "weights of the model, f32; optimizer adam",
         CLI_SIZE(&options->bytes, 4, TOOL_SIZE_MAX)},
        {"tensors", 0, "N", "tensors that share them", CLI_U32(&options->tensors, 1, 1000)},
        {"codec", 0, "SPEC", "codec of the tensors", CLI_TEXT(&options->codec)},
        {"steps", 0, "N", "steps behind a snapshot, and as many without one",
         CLI_U32(&options->steps, 1, 1000000)},
        {"snapshots", 0, "N", "snapshots", CLI_U32(&options->snapshots, 1, 1000)},
        {"pause", 0, "MS", "computation of a step, as a sleep", CLI_U32(&options->pause_ms, 0, 10000)},
        {"folder", 0, "DIR", "folder of the snapshots; default: a temporary one", CLI_TEXT(&options->folder)},
        BENCH_TRANSPORT_OPTION,
        BENCH_JSON_OPTION(&options->json),
    };
    const struct cli_command command = {
        NAME, NAME " [options]", "Step time with and without snapshots of the shards, in turn.\n",
        CLI_TABLE(table),
        .notes = "Without -n: the shards have snapshot.folder and snapshot.every = \"2 x STEPS steps\".\n"
                 "A snapshot must be written within --steps steps: raise them, or --pause.\n"};
    return cli_parse(&command, argc, argv, NULL);
}

/* ---- folder ---- */

static bool set(const char *name, const char *value)
{
    return setenv(name, value, 1) == 0;
}

bool bench_snapshot_prepare(struct bench_snapshot *options)
{
    char every[32], keep[16];
    const char *temporary = getenv("TMPDIR");
    if (!temporary || strlen(temporary) > 40) temporary = "/tmp";
    if (!options->folder) {
        snprintf(options->temporary, sizeof options->temporary, "%s/weft-snap-XXXXXX", temporary);
        if (!mkdtemp(options->temporary)) {
            options->temporary[0] = 0;
            return fprintf(stderr, NAME ": cannot make a folder under %s\n", temporary), false;
        }
    }
    snprintf(every, sizeof every, "%" PRIu32 " steps", 2 * options->steps);
    snprintf(keep, sizeof keep, "%" PRIu32, options->snapshots + 1);
    return set("WEFT_SNAPSHOT_FOLDER", options->folder ? options->folder : options->temporary) &&
           set("WEFT_SNAPSHOT_EVERY", every) && set("WEFT_SNAPSHOT_KEEP", keep);
}

void bench_snapshot_clean(const struct bench_snapshot *options)
{
    char command[160];
    if (!options->temporary[0]) return;
    snprintf(command, sizeof command, "rm -rf -- '%s'", options->temporary);
    if (system(command) != 0) fprintf(stderr, NAME ": cannot remove %s\n", options->temporary);
}

static bool is_committed(uint32_t number, uint32_t steps)
{
    char file[WEFT_SNAPSHOT_FILE_BYTES], path[PATH_BYTES];
    const char *folder = getenv("WEFT_SNAPSHOT_FOLDER");
    weft_snapshot_manifest_file((uint64_t)2 * steps * number, file);
    snprintf(path, sizeof path, "%s/%s", folder ? folder : ".", file);
    return access(path, R_OK) == 0;
}

/* ---- the job ---- */

static bool declare(struct snapshot_bench *bench, uint32_t index, uint64_t elems)
{
    struct weft_tensor_options options;
    char name[32];
    weft_tensor_options_init(&options);
    snprintf(name, sizeof name, "tensor%" PRIu32, index);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = elems;
    options.mode = WEFT_MODE_SERVER;
    options.optimizer = "adam";
    options.codec = bench->options->codec;
    enum weft_status status = weft_declare(bench->rank.session, &options, &bench->tensors[index]);
    if (status < 0) return bench_print_failure(&bench->rank, "declare", status);
    bench->weights[index] = weft_alloc(bench->rank.session, elems * sizeof(float));
    if (!bench->weights[index]) return bench_print_failure(&bench->rank, "alloc", WEFT_ERR_NO_MEMORY);
    memset(bench->weights[index], 0, elems * sizeof(float));
    status = weft_tensor_init(bench->tensors[index], bench->weights[index]);
    return status >= 0 || bench_print_failure(&bench->rank, "tensor_init", status);
}

static bool create(struct snapshot_bench *bench)
{
    const struct bench_snapshot *options = bench->options;
    const uint64_t elems = options->bytes / sizeof(float) / options->tensors + 1,
                   last = (uint64_t)2 * options->steps * (options->snapshots + 1);
    bench->tensors = calloc(options->tensors, sizeof *bench->tensors);
    bench->requests = calloc(options->tensors, sizeof *bench->requests);
    bench->weights = calloc(options->tensors, sizeof *bench->weights);
    bench->gradient = weft_alloc(bench->rank.session, elems * sizeof(float));
    bench->step_us = calloc(last, sizeof *bench->step_us);
    bench->with = calloc(options->snapshots, sizeof *bench->with);
    bench->without = calloc(options->snapshots, sizeof *bench->without);
    bench->scratch = calloc(last, sizeof *bench->scratch);
    if (!bench->tensors || !bench->requests || !bench->weights || !bench->gradient || !bench->step_us ||
        !bench->with || !bench->without || !bench->scratch)
        return fprintf(stderr, NAME ": no memory for the model\n"), false;
    for (uint64_t i = 0; i < elems; i++) bench->gradient[i] = (float)(i * 31 % 61) * 0.01f - 0.3f;
    for (uint32_t i = 0; i < options->tensors; i++)
        if (!declare(bench, i, elems)) return false;
    return true;
}

static bool run_step(struct snapshot_bench *bench, uint64_t number)
{
    const uint32_t pause_ms = bench->options->pause_ms;
    const double began_us = bench_now_us();
    const struct weft_step step = {.step = number, .lr = 0.001f, .weight = 1};
    enum weft_status status = weft_step_begin(bench->rank.session, &step);
    if (status < 0) return bench_print_failure(&bench->rank, "step_begin", status);
    if (pause_ms > 0) nanosleep(&(struct timespec){pause_ms / 1000, (long)(pause_ms % 1000) * 1000000}, NULL);
    for (uint32_t i = 0; i < bench->options->tensors; i++) {
        status = weft_push_pull(bench->tensors[i], bench->gradient, bench->weights[i], &bench->requests[i]);
        if (status < 0) return bench_print_failure(&bench->rank, "push_pull", status);
    }
    for (uint32_t i = 0; i < bench->options->tensors; i++)
        if (!bench_wait(&bench->rank, "push_pull", WEFT_IN_PROGRESS, &bench->requests[i])) return false;
    status = weft_step_end(bench->rank.session);
    if (status < 0) return bench_print_failure(&bench->rank, "step_end", status);
    bench->step_us[number - 1] = bench_now_us() - began_us;
    return true;
}

/* ---- the result ---- */

/* Adds the two blocks behind the snapshot. */
static void add_snapshot(struct snapshot_bench *bench, uint32_t number, uint32_t index)
{
    const uint32_t steps = bench->options->steps;
    const double *first = bench->step_us + (size_t)2 * steps * number;
    bench->with[index] = bench->without[index] = 0;
    for (uint32_t i = 0; i < steps; i++) {
        bench->with[index] += first[i];
        bench->without[index] += first[steps + i];
    }
}

static void print_result(struct snapshot_bench *bench, uint32_t count)
{
    const struct bench_snapshot *options = bench->options;
    const double ratio = bench_compare(bench->without, bench->with, count, bench->scratch).median;
    for (uint32_t i = 0; i < count; i++) bench->scratch[i] = bench->with[i] - bench->without[i];
    const double extra_us = bench_summarise(bench->scratch, count).p50,
                 with = bench_summarise(bench->with, count).p50 / options->steps,
                 without = bench_summarise(bench->without, count).p50 / options->steps,
                 percent = 100 * extra_us / 60e6;
    if (options->json)
        printf("{\"measure\": \"snapshot\", \"ranks\": %" PRIu32 ", \"bytes\": %" PRIu64
               ", \"codec\": \"%s\", \"snapshots\": %" PRIu32 ", \"without_us\": %.1f, \"with_us\": %.1f"
               ", \"ratio\": %.4f, \"extra_ms\": %.3f, \"percent_of_a_minute\": %.4f}\n",
               bench->rank.ranks, options->bytes, options->codec, count, without, with, ratio,
               extra_us / 1000, percent);
    else
        printf("# " NAME ": %" PRIu32 " ranks, %" PRIu64 " bytes of weights, %" PRIu32
               " snapshots; step time\n%14s %14s %10s %14s %26s\n%14.1f %14.1f %10.4f %14.3f %26.4f\n",
               bench->rank.ranks, options->bytes, count, "without us", "with us", "ratio", "extra ms",
               "% of time at one a minute", without, with, ratio, extra_us / 1000, percent);
    fflush(stdout);
}

static uint32_t add_committed(struct snapshot_bench *bench)
{
    uint32_t count = 0;
    for (uint32_t number = 1; number <= bench->options->snapshots; number++)
        if (is_committed(number, bench->options->steps)) add_snapshot(bench, number, count++);
    return count;
}

/* Rank 0: the snapshots that have been committed; waits for one if there is none yet. */
static bool report(struct snapshot_bench *bench)
{
    uint32_t count = add_committed(bench);
    for (uint32_t waited = 0; count == 0 && waited < COMMIT_WAIT_MS; waited += POLL_MS) {
        nanosleep(&(struct timespec){0, POLL_MS * 1000000L}, NULL);
        count = add_committed(bench);
    }
    if (count == 0)
        return fprintf(stderr,
                       NAME ": no snapshot was committed; raise --steps, and see the logs of the shards\n"),
               false;
    print_result(bench, count);
    return true;
}

int bench_snapshot_run(const struct bench_snapshot *options)
{
    struct snapshot_bench bench = {.options = options};
    const uint64_t last = (uint64_t)2 * options->steps * (options->snapshots + 1);
    if (!bench_join(&bench.rank, NAME)) return 1;
    bool well = create(&bench);
    for (uint64_t step = 1; well && step <= last; step++) well = run_step(&bench, step);
    if (well && bench.rank.rank == 0) well = report(&bench);
    well = well && bench_barrier(&bench.rank);
    weft_finalize(bench.rank.session); /* frees weights and gradient */
    free(bench.tensors);
    free(bench.requests);
    free(bench.weights);
    free(bench.step_us);
    free(bench.with);
    free(bench.without);
    free(bench.scratch);
    return well ? 0 : 1;
}
