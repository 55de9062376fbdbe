/* bench_replay.c - see bench_replay.h.
 *
 * Every rank follows its own record: it posts the calls in their order, and before one of them waits for those that had ended when it was
 * posted then. So what overlapped overlaps again, and what depended depends. The contents are zeros. Records are rings that may have lost
 * their beginning: the ranks begin with the first operation that all of them have, and end with the last. */
#include "tools/bench_replay.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tools/bench_rank.h"
#include "tools/benchlib/rows.h"
#include "tools/benchlib/usage.h"
#include "tools/common.h"
#include "tools/replay_calls.h"

static const char help[] =
    "usage: weft bench replay [options] RECORD\n\n"
    "Repeats the calls of a recorded job with zeros for data, and prints what each kind of call took then and now.\n"
    "RECORD is a directory with a flight record of every rank, or one rank's file that all ranks follow. A job writes them when it\n"
    "ends, where WEFT_RECORDER_CALLS=DIRECTORY says; WEFT_RECORDER_OPERATIONS=N keeps the last N calls (default 2000).\n\n"
    "  -n, --processes N     start so many processes on this host (default: as many as were recorded; without a job around)\n"
    "      --gaps HOW        original: sleep between calls as long as the job did other things; none: back to back (default none)\n"
    "      --repeat N        all of it N times (default 1)\n"
    "      --json            one JSON object per kind of call\n"
    "  -h, --help            this text\n\n"
    "The record has no lengths of unequal pieces: such calls are repeated with equal ones of the longest (gather, scatter, all_to_all: of none).\n"
    "Calls of groups of some ranks are left out, and counted.\n";

enum { OPTION_GAPS = 256, OPTION_REPEAT, OPTION_JSON };
static const struct option long_options[] = {{"processes", required_argument, NULL, 'n'}, {"gaps", required_argument, NULL, OPTION_GAPS},
                                             {"repeat", required_argument, NULL, OPTION_REPEAT}, {"json", no_argument, NULL, OPTION_JSON},
                                             {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};

int bench_replay_parse(struct bench_replay *replay, int argc, char **argv)
{
    int found;
    uint64_t number = 0;
    *replay = (struct bench_replay){.repeat = 1};
    opterr = 0;
    optind = 1;
    while ((found = getopt_long(argc, argv, ":n:h", long_options, NULL)) != -1) {
        switch (found) {
        case 'h': fputs(help, stdout); return 1;
        case 'n':
            if (!tool_parse_number("weft bench replay", "-n", optarg, 0, 256, &number)) return 3;
            replay->processes = (uint32_t)number;
            replay->told = true;
            break;
        case OPTION_REPEAT:
            if (!tool_parse_number("weft bench replay", "--repeat", optarg, 1, 1000000, &number)) return 3;
            replay->repeat = (uint32_t)number;
            break;
        case OPTION_GAPS:
            replay->gaps = strcmp(optarg, "original") == 0;
            if (replay->gaps || strcmp(optarg, "none") == 0) break;
            fprintf(stderr, "weft bench replay: --gaps %s: expected original or none\n", optarg);
            return 3;
        case OPTION_JSON: replay->json = true; break;
        default: return bench_option_error("replay", argv, found) + 1;
        }
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "weft bench replay: expected one RECORD, a directory or a file; see --help\n");
        return 3;
    }
    replay->path = argv[optind];
    return 0;
}

/* ---- files ---- */

/* In a directory, the record of this rank; else the path itself. */
static bool path_of(const char *path, uint32_t rank, char *out, size_t room)
{
    struct stat there;
    char ending[40];
    if (stat(path, &there) != 0) return fprintf(stderr, "weft bench replay: %s: %s\n", path, strerror(errno)), false;
    if (!S_ISDIR(there.st_mode)) return snprintf(out, room, "%s", path), true;
    DIR *directory = opendir(path);
    bool found = false;
    snprintf(ending, sizeof ending, "-rank%" PRIu32 ".json", rank);
    for (struct dirent *entry; directory && !found && (entry = readdir(directory));) {
        size_t length = strlen(entry->d_name), tail = strlen(ending);
        found = strncmp(entry->d_name, "flight-", 7) == 0 && length > tail && strcmp(entry->d_name + length - tail, ending) == 0;
        if (found) snprintf(out, room, "%s/%s", path, entry->d_name);
    }
    if (directory) closedir(directory);
    if (!found) fprintf(stderr, "weft bench replay: %s has no flight record of rank %" PRIu32 " (flight-JOB%s)\n", path, rank, ending);
    return found;
}

static bool read_calls(const char *directory, uint32_t rank, struct replay_calls *calls)
{
    char path[4096], why[300];
    struct flight flight;
    if (!path_of(directory, rank, path, sizeof path)) return false;
    bool fine = flight_read(path, &flight, why, sizeof why);
    if (fine) {
        fine = replay_calls_take(&flight, calls, why, sizeof why);
        flight_free(&flight);
    }
    if (!fine) fprintf(stderr, "weft bench replay: %s: %s\n", path, why);
    return fine;
}

uint32_t bench_replay_ranks(const char *path)
{
    struct replay_calls calls;
    if (!read_calls(path, 0, &calls)) return 0;
    replay_calls_free(&calls);
    return calls.ranks;
}

/* ---- playing ---- */

struct kind_times {
    int64_t calls, bytes, recorded_ns, replayed_ns;
};

struct player {
    struct bench_rank rank; /* session, buffers, agreement */
    const struct bench_replay *options;
    struct replay_calls calls;
    struct {
        struct weft_request request;
        const struct replay_call *call; /* NULL: free */
        double began_us;
    } slots[REPLAY_WINDOW];
    struct kind_times kinds[REPLAY_KINDS];
};

static enum weft_status post(struct player *player, const struct replay_call *call, struct weft_request *request)
{
    struct weft_session *session = player->rank.session;
    void *in = player->rank.in, *out = player->rank.out;
    switch (call->kind) {
    case REPLAY_ALL_REDUCE:
        return call->op == WEFT_SCALED_SUM ? weft_all_reduce_scaled(session, in, out, call->count, call->dtype, 1, request)
                                           : weft_all_reduce(session, in, out, call->count, call->dtype, call->op, request);
    case REPLAY_REDUCE_SCATTER: return weft_reduce_scatter(session, in, out, call->count, call->dtype, call->op, request);
    case REPLAY_ALL_GATHER: return weft_all_gather(session, in, out, call->count, call->dtype, request);
    case REPLAY_BROADCAST: return weft_broadcast(session, out, call->count, call->dtype, call->root, request);
    case REPLAY_REDUCE: return weft_reduce(session, in, out, call->count, call->dtype, call->op, call->root, request);
    case REPLAY_GATHER: return weft_gather(session, in, out, call->count, call->dtype, call->root, request);
    case REPLAY_SCATTER: return weft_scatter(session, in, out, call->count, call->dtype, call->root, request);
    case REPLAY_ALL_TO_ALL: return weft_all_to_all(session, in, out, call->count, call->dtype, request);
    case REPLAY_SEND: return weft_send(session, in, call->count, call->dtype, call->root, request);
    case REPLAY_RECV: return weft_recv(session, out, call->count, call->dtype, call->root, request);
    default: return weft_barrier(session, request);
    }
}

static bool finish(struct player *player, uint32_t slot)
{
    const struct replay_call *call = player->slots[slot].call;
    struct kind_times *times = &player->kinds[call->kind];
    player->slots[slot].call = NULL;
    enum weft_status status = weft_wait(&player->slots[slot].request, 0);
    if (status < 0) return bench_failed(&player->rank, replay_kind_names[call->kind], status);
    times->calls++;
    times->bytes += (int64_t)call->bytes;
    times->recorded_ns += (int64_t)(call->ended_ns - call->posted_ns);
    times->replayed_ns += (int64_t)(1e3 * (bench_now_us() - player->slots[slot].began_us));
    return true;
}

/* Those that had ended when `call` was posted (NULL: all). */
static bool finish_before(struct player *player, const struct replay_call *call)
{
    for (uint32_t slot = 0; slot < REPLAY_WINDOW; slot++) {
        const struct replay_call *open = player->slots[slot].call;
        if (open && (!call || open->ended_ns <= call->posted_ns) && !finish(player, slot)) return false;
    }
    return true;
}

static bool play(struct player *player, uint64_t first, uint64_t last, bool pairs)
{
    for (uint32_t i = 0; i < player->calls.count; i++) {
        const struct replay_call *call = &player->calls.calls[i];
        bool pair = call->kind == REPLAY_SEND || call->kind == REPLAY_RECV;
        uint32_t slot = i % REPLAY_WINDOW;
        if (pair ? !pairs : call->sequence < first || call->sequence > last) continue;
        if (!finish_before(player, call)) return false;
        if (player->slots[slot].call && !finish(player, slot)) return false;
        if (player->options->gaps)
            nanosleep(&(struct timespec){(time_t)(call->gap_ns / 1000000000), (long)(call->gap_ns % 1000000000)}, NULL);
        player->slots[slot].began_us = bench_now_us();
        enum weft_status status = post(player, call, &player->slots[slot].request);
        if (status < 0) return bench_failed(&player->rank, replay_kind_names[call->kind], status);
        player->slots[slot].call = call;
    }
    return finish_before(player, NULL);
}

/* From which operation to which all ranks have them; pairs only where nobody has lost any. */
static bool agree_range(struct player *player, uint64_t *first, uint64_t *last, bool *pairs)
{
    int64_t ends[2] = {INT64_MAX, INT64_MIN}; /* first, -last; who has nothing leaves nothing to play */
    bool any = false;
    for (uint32_t i = 0; i < player->calls.count; i++) {
        const struct replay_call *call = &player->calls.calls[i];
        if (call->kind == REPLAY_SEND || call->kind == REPLAY_RECV) continue;
        int64_t sequence = (int64_t)call->sequence;
        if (!any || sequence < ends[0]) ends[0] = sequence;
        if (!any || -sequence < ends[1]) ends[1] = -sequence;
        any = true;
    }
    int64_t own = ends[0], trimmed;
    if (!bench_agree(&player->rank, ends, 2, WEFT_MAX)) return false;
    trimmed = own != ends[0] || player->calls.rank != player->rank.rank; /* or it is another rank's record */
    if (!bench_agree(&player->rank, &trimmed, 1, WEFT_MAX)) return false;
    *pairs = !trimmed;
    *first = ends[0] < 0 ? 0 : (uint64_t)ends[0];
    *last = ends[1] > 0 ? 0 : (uint64_t)-ends[1];
    return true;
}

/* ---- the whole ---- */

static void print_kind(const struct player *player, enum replay_kind kind, const struct kind_times *times)
{
    double recorded = 1e-3 * (double)times->recorded_ns / (double)times->calls, replayed = 1e-3 * (double)times->replayed_ns / (double)times->calls;
    if (player->options->json) {
        json_t *row = json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:s}", "op", "replay", "kind", replay_kind_names[kind], "ranks",
                                (json_int_t)player->rank.ranks, "calls", (json_int_t)times->calls, "total_bytes", (json_int_t)times->bytes,
                                "time_us", replayed, "recorded_us", recorded, "gaps", player->options->gaps ? "original" : "none");
        bench_row_print(stdout, row, 8);
        return;
    }
    printf(" %16s %10" PRId64 " %16" PRId64 " %14.2f %14.2f %8.2f\n", replay_kind_names[kind], times->calls, times->bytes, recorded, replayed,
           replayed > 0 ? recorded / replayed : 0);
}

static bool report(struct player *player, double wall_us)
{
    enum { FIELDS = sizeof(struct kind_times) / sizeof(int64_t) };
    int64_t totals[REPLAY_KINDS * FIELDS + 1], wall_ns = (int64_t)(1e3 * wall_us);
    memcpy(totals, player->kinds, sizeof player->kinds);
    totals[REPLAY_KINDS * FIELDS] = player->calls.skipped;
    if (!bench_agree(&player->rank, totals, REPLAY_KINDS * FIELDS + 1, WEFT_SUM) || !bench_agree(&player->rank, &wall_ns, 1, WEFT_MAX)) return false;
    if (player->rank.rank != 0) return true;
    if (!player->options->json) {
        printf("# weft bench replay: %" PRIu32 " ranks, %s, %s, %" PRIu32 " times\n", player->rank.ranks, player->options->path,
               player->options->gaps ? "original gaps" : "back to back", player->options->repeat);
        printf("#%16s %10s %16s %14s %14s %8s\n#%16s %10s %16s %14s %14s %8s\n", "kind", "calls", "bytes", "recorded", "replayed", "faster", "",
               "(of ranks)", "(sum)", "(us, mean)", "(us, mean)", "(times)");
    }
    memcpy(player->kinds, totals, sizeof player->kinds);
    for (int kind = 0; kind < REPLAY_KINDS; kind++) {
        if (player->kinds[kind].calls > 0) print_kind(player, (enum replay_kind)kind, &player->kinds[kind]);
    }
    if (!player->options->json)
        printf("# %.3f ms from the first call to the end of the last; %" PRId64 " operations of all ranks' records left out\n", 1e-6 * (double)wall_ns,
               totals[REPLAY_KINDS * FIELDS]);
    return bench_printed("replay");
}

static bool replay_all(struct player *player)
{
    uint64_t first = 0, last = 0;
    bool pairs = false;
    size_t room = player->calls.bytes_max > 8 ? player->calls.bytes_max : 8;
    if (player->rank.ranks != player->calls.ranks) {
        fprintf(stderr, "weft bench replay: the record is of %" PRIu32 " ranks and this job has %" PRIu32 "\n", player->calls.ranks, player->rank.ranks);
        return false;
    }
    player->rank.in = weft_alloc(player->rank.session, room);
    player->rank.out = weft_alloc(player->rank.session, room);
    if (!player->rank.in || !player->rank.out) return fprintf(stderr, "weft bench replay: no memory for two buffers of %zu bytes\n", room), false;
    if (!agree_range(player, &first, &last, &pairs) || !bench_barrier(&player->rank)) return false;
    double began = bench_now_us();
    for (uint32_t i = 0; i < player->options->repeat; i++) {
        if (!play(player, first, last, pairs)) return false;
    }
    return report(player, bench_now_us() - began);
}

int bench_replay_run(const struct bench_replay *options)
{
    struct player *player = calloc(1, sizeof *player);
    if (!player) return 1;
    player->options = options;
    if (!bench_join(&player->rank, "weft bench replay")) {
        free(player);
        return 1;
    }
    bool fine = read_calls(options->path, player->rank.rank, &player->calls) && replay_all(player);
    weft_finalize(player->rank.session); /* frees the buffers, too */
    replay_calls_free(&player->calls);
    free(player);
    return fine ? 0 : 1;
}
