/* failover.c - see failover.h. */
#include "tools/bench/failover/failover.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/samples.h"
#include "tools/progress.h"
#include "tools/target.h"

const char *const failover_ways[] = {[FAILOVER_KILL] = "kill", [FAILOVER_STOP] = "stop", NULL};

int failover_options_parse(struct failover_options *options, int argc, char **argv)
{
    *options = (struct failover_options){.shards = 3, .kills = 5, .bytes = 4 << 20, .steps = 20, .seed = 1};
    const struct cli_option table[] = {
        BENCH_PROCESSES_OPTION(&options->processes, 256),
        {"shards", 's', "N", "parameter-server shards", CLI_U32(&options->shards, 2, 256)},
        {"kills", 0, "K", "jobs, of which each loses one shard", CLI_U32(&options->kills, 1, 10000)},
        {"how", 0, "HOW", "kill: SIGKILL; stop: SIGSTOP, as with a host that is cut off",
         CLI_CHOICE(&options->how, failover_ways)},
        {"bytes", 'b', "SIZE", "each of the two tensors", CLI_SIZE(&options->bytes, 8, TOOL_SIZE_MAX)},
        {"steps", 0, "N", "steps before the kill, and as many after it", CLI_U32(&options->steps, 3, 100000)},
        {"seed", 0, "N", "choice of shards and moments", CLI_U64(&options->seed, 0, UINT64_MAX)},
        BENCH_TRANSPORT_OPTION,
        BENCH_JSON_OPTION(&options->json),
    };
    const struct cli_command command = {
        "weft bench failover", "weft bench failover [options]",
        "Loss of a shard whose chunks have copies, in the middle of a push_pull: every result is checked.\n",
        CLI_TABLE(table),
        .notes =
            "A shard other than that of the coordinator is lost. A step ends when all ranks have ended it.\n"
            "usual step: median before the kill. next step: from the kill to the end of the next step.\n"
            "longest step: the longest step after the kill, less the usual one.\n"
            "Exit status: 0 no wrong element; 1 a job failed, or an element is wrong.\n"};
    return cli_parse(&command, argc, argv, NULL);
}

void failover_print_heading(const struct failover_options *options, const struct failover_result *result)
{
    printf("# weft bench failover: %" PRIu32 " workers, %" PRIu32 " shards, two tensors of %" PRIu64
           " bytes, SIG%s to one shard\n",
           result->workers, result->shards, options->bytes, options->how == FAILOVER_STOP ? "STOP" : "KILL");
}

/* ---- one job ---- */

/* Runs a job that loses a shard, and returns its row. NULL: it failed. */
static json_t *run_job(const struct failover_options *options, uint32_t index, int argc, char **argv)
{
    char seed[24];
    char *const added[] = {(char *)"--seed", seed, NULL};
    const struct bench_launch launch = {.shards = options->shards,
                                        .processes = options->processes,
                                        .bind = "none",
                                        .what = "failover",
                                        .argc = argc,
                                        .argv = argv};
    snprintf(seed, sizeof seed, "%" PRIu64, options->seed + index);
    json_t *rows = bench_launch_rows(&launch, added), *row = json_incref(json_array_get(rows, 0));
    json_decref(rows);
    if (!row)
        fprintf(stderr, "weft bench failover: job %" PRIu32 " of %" PRIu32 " (--seed %s) failed\n", index + 1,
                options->kills, seed);
    return row;
}

/* ---- all jobs ---- */

enum { USUAL, NEXT, EXTRA, FIGURES };
static const char *const keys[FIGURES] = {"step_ms", "next_step_ms", "extra_ms"};
static const char *const titles[FIGURES] = {"usual step", "next step", "longest step"};

static void print_summary(const struct failover_options *options, double *const values[FIGURES])
{
    const struct failover_result sizes = {.workers = options->processes, .shards = options->shards};
    struct bench_summary summaries[FIGURES];
    for (int i = 0; i < FIGURES; i++) summaries[i] = bench_summarise(values[i], options->kills);
    if (options->json) {
        json_t *row = json_pack("{ss ss sI sI sI sI sI}", "measure", "failover_summary", "how",
                                failover_ways[options->how], "workers", (json_int_t)options->processes,
                                "shards", (json_int_t)options->shards, "bytes", (json_int_t)options->bytes,
                                "kills", (json_int_t)options->kills, "wrong", (json_int_t)0);
        for (int i = 0; row && i < FIGURES; i++)
            json_object_set_new(row, keys[i],
                                json_pack("{sf sf sf}", "p50", summaries[i].p50, "p99", summaries[i].p99,
                                          "max", summaries[i].max));
        bench_row_print(stdout, row, 6);
        return;
    }
    failover_print_heading(options, &sizes);
    printf("%-14s %8s %12s %12s %12s\n", "ms", "kills", "p50", "p99", "max");
    for (int i = 0; i < FIGURES; i++)
        printf("%-14s %8" PRIu32 " %12.1f %12.1f %12.1f\n", titles[i], options->kills, summaries[i].p50,
               summaries[i].p99, summaries[i].max);
    printf("every element of every step is correct\n");
}

static bool run_jobs(const struct failover_options *options, int argc, char **argv, double *const values[])
{
    struct progress_bar bar;
    progress_begin(&bar, "failover", "kills");
    for (uint32_t k = 0; k < options->kills; k++) {
        progress_draw(&bar, k, options->kills);
        json_t *row = run_job(options, k, argc, argv);
        if (!row) return false;
        for (int i = 0; i < FIGURES; i++) values[i][k] = json_number_value(json_object_get(row, keys[i]));
        if (options->json) {
            json_object_set_new(row, "kill", json_integer(k + 1));
            bench_row_print(stdout, row, 6); /* owns the row from here on */
        } else {
            json_decref(row);
        }
    }
    progress_end(&bar);
    return true;
}

int failover_run_jobs(const struct failover_options *options, int argc, char **argv)
{
    double *memory = calloc((size_t)FIGURES * options->kills, sizeof *memory);
    double *values[FIGURES];
    bool fine = memory &&
                /* all copies are on this host, as the shards are */
                setenv("WEFT_SERVER_COPIES", "1", 1) == 0 &&
                setenv("WEFT_SERVER_COPIES_ON_ONE_HOST", "yes", 1) == 0;
    if (!fine) fprintf(stderr, "weft bench failover: no memory\n");
    for (uint32_t i = 0; i < FIGURES; i++) values[i] = memory + (size_t)i * options->kills;
    fine = fine && run_jobs(options, argc, argv, values);
    if (fine) {
        print_summary(options, values);
        fine = bench_flush_output("failover");
    }
    free(memory);
    return fine ? 0 : 1;
}
