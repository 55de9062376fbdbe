/* bench_start.c - `weft bench start`: time from the launch of a job to the end of its first barrier, and the
 * memory of a rank: at its begin, joined, after the first operation, and with further groups of all ranks.
 * The figures contain no buffers of a user.
 *
 * Pss divides a page that several processes share among them: the memory of all ranks is the sum of their
 * Pss. */
#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench_options.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"

#define BEGAN "WEFT_BENCH_BEGAN_US"

enum { GROUPS_MAX = 4096 };

struct settings {
    uint32_t processes, groups;
    bool json;
};

/* -1: continue; otherwise the exit status. */
static int parse(struct settings *settings, int argc, char **argv)
{
    *settings = (struct settings){.groups = 16};
    const struct cli_option table[] = {
        BENCH_PROCESSES_OPTION(&settings->processes, GROUPS_MAX),
        {"groups", 0, "N", "further groups of all ranks, with a barrier on each",
         CLI_U32(&settings->groups, 0, GROUPS_MAX)},
        BENCH_TRANSPORT_OPTION,
        BENCH_JSON_OPTION(&settings->json),
    };
    const struct cli_command command = {"weft bench start", "weft bench start [options]",
                                        "Time from the launch of a job to the end of the first barrier of "
                                        "all its ranks, and the memory (Pss) of the\n"
                                        "largest rank.\n",
                                        CLI_TABLE(table),
                                        .notes = "For the memory of UCX, compare --transport shm, which "
                                                 "opens no UCX, with the other transports.\n"};
    return cli_parse(&command, argc, argv, NULL);
}

/* Figures, each the maximum over the ranks. */
enum { JOIN_US, FIRST_US, GROUPS_US, PSS_BEGAN, PSS_JOINED, PSS_FIRST, PSS_GROUPS, FIGURES };

static bool make_groups(struct bench_rank *rank, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct weft_comm *comm;
        struct weft_request request = {{0}};
        enum weft_status status = weft_split(rank->session, NULL, 0, (int)rank->rank, &comm);
        if (status < 0) return bench_print_failure(rank, "split", status);
        status = weft_call_start(rank->session, WEFT_CALL(.kind = WEFT_CALL_BARRIER, .comm = comm), &request);
        if (!bench_wait(rank, "barrier of a group", status, &request)) return false;
    }
    return true;
}

static bool measure(struct bench_rank *rank, const struct settings *settings, double began_us,
                    int64_t figures[FIGURES])
{
    figures[PSS_BEGAN] = (int64_t)bench_pss();
    if (!bench_join(rank, "weft bench")) return false;
    figures[JOIN_US] = (int64_t)(bench_now_us() - began_us);
    figures[PSS_JOINED] = (int64_t)bench_pss();
    if (!bench_barrier(rank)) return false;
    double first_us = bench_now_us();
    figures[FIRST_US] = (int64_t)(first_us - began_us);
    if (!bench_barrier(rank)) return false; /* the figures of all ranks are of the same moment */
    figures[PSS_FIRST] = (int64_t)bench_pss();
    first_us = bench_now_us();
    if (!bench_barrier(rank) || !make_groups(rank, settings->groups)) return false;
    figures[GROUPS_US] = (int64_t)(bench_now_us() - first_us);
    figures[PSS_GROUPS] = (int64_t)bench_pss();
    return bench_reduce_over_ranks(rank, figures, FIGURES, WEFT_MAX);
}

static void print(const struct settings *settings, const struct bench_rank *rank,
                  const int64_t figures[FIGURES])
{
    double mib = 1 << 20;
    if (settings->json) {
        bench_row_print(
            stdout,
            json_pack("{ss sI sI sf sf sf sI sI sI sI}", "op", "start", "ranks", (json_int_t)rank->ranks,
                      "groups", (json_int_t)settings->groups, "joined_s", (double)figures[JOIN_US] / 1e6,
                      "first_barrier_s", (double)figures[FIRST_US] / 1e6, "groups_s",
                      (double)figures[GROUPS_US] / 1e6, "pss_began_bytes", (json_int_t)figures[PSS_BEGAN],
                      "pss_joined_bytes", (json_int_t)figures[PSS_JOINED], "pss_bytes",
                      (json_int_t)figures[PSS_FIRST], "pss_groups_bytes", (json_int_t)figures[PSS_GROUPS]),
            6);
        return;
    }
    printf("%" PRIu32
           " ranks: from the launch all had joined after %.3f s, the first barrier was over after %.3f s\n",
           rank->ranks, (double)figures[JOIN_US] / 1e6, (double)figures[FIRST_US] / 1e6);
    printf("memory of the largest rank (Pss): %.2f MiB as it begins, %.2f MiB joined, %.2f MiB after the "
           "first barriers\n",
           (double)figures[PSS_BEGAN] / mib, (double)figures[PSS_JOINED] / mib,
           (double)figures[PSS_FIRST] / mib);
    if (settings->groups == 0) return;
    printf("%" PRIu32 " more groups of all ranks, a barrier on each: %.3f s, %.2f MiB, %.1f KiB a group\n",
           settings->groups, (double)figures[GROUPS_US] / 1e6, (double)figures[PSS_GROUPS] / mib,
           (double)(figures[PSS_GROUPS] - figures[PSS_FIRST]) / 1024 / settings->groups);
}

static int take_part(const struct settings *settings)
{
    const char *began = getenv(BEGAN);
    struct bench_rank rank = {0};
    int64_t figures[FIGURES] = {0};
    bool fine = measure(&rank, settings, began ? strtod(began, NULL) : bench_now_us(), figures);
    if (fine && rank.rank == 0) print(settings, &rank, figures);
    if (rank.session) weft_finalize(rank.session);
    return fine && bench_flush_output("start") ? 0 : 1;
}

int weft_bench_start_main(int argc, char **argv)
{
    struct settings settings;
    char text[32];
    int answer = parse(&settings, argc, argv);
    if (answer >= 0) return answer;
    if (settings.processes == 0 && getenv("WEFT_COORDINATOR")) return take_part(&settings);
    if (settings.processes == 0) {
        fprintf(stderr,
                "weft bench start: there is no job to take part in; use -n 64 to start one on this host\n");
        return 2;
    }
    snprintf(text, sizeof text, "%.0f", bench_now_us());
    setenv(BEGAN, text, 1);
    return bench_launch(&(struct bench_launch){
        .processes = settings.processes, .bind = "none", .what = "start", .argc = argc, .argv = argv});
}
