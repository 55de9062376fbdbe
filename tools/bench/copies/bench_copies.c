/* bench_copies.c - `weft bench push_pull --copies 0,1`: what copies at the shards cost.
 *
 * A job for each number of copies. The bytes are those that the transports of the shards have received, of
 * their reports to the coordinator. A copy adds one sum to the contributions of N workers: 1/N. Contributions
 * that a shard reads in the memory of its host are in no transport, so the share is one of their size. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_job.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/target.h"

enum { JOBS = 2, POLL_MS = 100, REPORTS_MS = 30000 };

/* ---- in the job ---- */

/* Adds up the reports. False: a shard has sent none since `since_ms` ago. */
static bool add_reports(const json_t *status, double since_ms, double *bytes_out)
{
    size_t i;
    json_t *member;
    *bytes_out = 0;
    json_array_foreach (json_object_get(status, "members"), i, member) {
        const json_t *report = json_object_get(member, "report");
        if (strcmp(tool_json_text(member, "role"), "shard") != 0) continue;
        if (!json_is_object(report) || (double)tool_json_number(report, "age_ms") >= since_ms) return false;
        *bytes_out += (double)tool_json_number(report, "received_bytes");
    }
    return true;
}

bool bench_shard_bytes(double *bytes_out)
{
    static const char name[] = "weft bench push_pull";
    struct tool_target target;
    struct weft_error error = {0};
    const double began_us = bench_now_us();
    bool found = false;
    tool_target_init(&target);
    if (tool_target_resolve(name, &target, 0, NULL, 0) >= 0) return false;
    while (!found && bench_now_us() - began_us < 1e3 * REPORTS_MS && error.text[0] == 0) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
        const double asked_us = bench_now_us(); /* a report can arrive before the answer does */
        char *text = tool_target_status(&target, &error);
        json_t *status = text ? json_loads(text, 0, NULL) : NULL;
        found = status && add_reports(status, (asked_us - began_us) / 1e3, bytes_out);
        json_decref(status);
        free(text);
    }
    tool_target_free(&target);
    if (!found)
        fprintf(stderr, "%s: the bytes of the shards are unknown: %s\n", name,
                error.text[0] ? error.text : "a shard has sent no report for 30 s");
    return found;
}

/* ---- the jobs ---- */

static json_t *run_job(const struct bench_options *options, const char *copies, int argc, char **argv)
{
    char *const added[] = {NULL};
    const struct bench_launch launch = {.shards = options->shards,
                                        .processes = options->processes,
                                        .bind = options->bind,
                                        .what = "push_pull",
                                        .argc = argc,
                                        .argv = argv};
    /* all copies are on this host, as the shards are; each row waits for reports */
    if (setenv("WEFT_SERVER_COPIES", copies, 1) == 0 &&
        setenv("WEFT_SERVER_COPIES_ON_ONE_HOST", "yes", 1) == 0 &&
        setenv("WEFT_CLIENT_REPORT_PERIOD", "200ms", 1) == 0)
        return bench_launch_rows(&launch, added);
    fprintf(stderr, "weft bench push_pull: no memory\n");
    return NULL;
}

static double number_of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

/* `plain`: the row of the same size without copies; NULL: not measured. */
static void print_row(const struct bench_options *options, json_t *row, uint32_t copies, const json_t *plain)
{
    const double bytes = number_of(row, "shard_bytes_per_step"),
                 contributions = number_of(row, "bytes") * options->processes,
                 share = (bytes - number_of(plain, "shard_bytes_per_step")) / contributions;
    if (options->report.json) {
        json_object_set_new(row, "copies", json_integer((json_int_t)copies));
        if (plain) json_object_set_new(row, "extra_bytes_share", json_real(share));
        bench_row_print(stdout, json_incref(row), 8);
        return;
    }
    printf("%12.0f %6" PRIu32 " %12.1f %12.1f %14.0f", number_of(row, "bytes"), copies,
           number_of(row, "time_us"), number_of(row, "step_us"), bytes);
    if (plain) printf(" %9.4f %9.4f\n", share, (double)copies / options->processes);
    else printf(" %9s %9s\n", "-", "-");
}

static void print_rows(const struct bench_options *options, json_t *const rows[JOBS])
{
    if (!options->report.json)
        printf("# weft bench push_pull --copies: %" PRIu32 " workers, %" PRIu32
               " shards; bytes: received by all shards in a step\n%12s %6s %12s %12s %14s %9s %9s\n",
               options->processes, options->shards, "size (B)", "copies", "time (us)", "step (us)", "bytes",
               "extra", "1/workers");
    const size_t count = json_array_size(rows[0] ? rows[0] : rows[1]);
    for (size_t i = 0; i < count; i++)
        for (uint32_t copies = 0; copies < JOBS; copies++) {
            json_t *row = json_array_get(rows[copies], i);
            const json_t *plain = copies > 0 ? json_array_get(rows[0], i) : NULL;
            if (row) print_row(options, row, copies, plain);
        }
}

int bench_copies_run(const struct bench_options *options, int argc, char **argv)
{
    static const char *const texts[JOBS] = {"0", "1"};
    json_t *rows[JOBS] = {NULL};
    bool fine = true;
    for (uint32_t copies = 0; copies < JOBS && fine; copies++) {
        if (!(options->copies & 1u << copies)) continue;
        rows[copies] = run_job(options, texts[copies], argc, argv);
        fine = rows[copies] != NULL;
    }
    if (fine) print_rows(options, rows);
    fine = fine && bench_flush_output("push_pull");
    for (int i = 0; i < JOBS; i++) json_decref(rows[i]);
    return fine ? 0 : 1;
}
