/* bench_replay.c - see bench_replay.h.
 *
 * Every rank follows its own record: it posts the calls in their order. Before it posts a call, it waits for
 * the calls that had ended when that call was posted in the record. Calls that overlapped therefore overlap
 * again, and dependent calls remain in order. The data are zeros. Records are rings that may have lost their
 * beginning: the ranks begin with the first operation that all of them have, and end with the last. */
#include "tools/bench/replay/bench_replay.h"
#include "tools/bench/bench_cli.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/replay/replay_calls.h"
#include "tools/common.h"

int bench_replay_parse(struct bench_replay *replay, int argc, char **argv)
{
    static const char *const gaps[] = {"none", "original", NULL};
    uint32_t gap = 0, processes = UINT32_MAX; /* UINT32_MAX: not given */
    *replay = (struct bench_replay){.repeat = 1};
    const struct cli_option table[] = {
        {"processes", 'n', "N", "processes to start on this host",
         "as many as were recorded; inside a job: none, take part in it", CLI_U32(&processes, 0, 256)},
        {"gaps", 0, "HOW", "time between calls. original: as recorded; none: back to back",
         CLI_CHOICE(&gap, gaps)},
        {"repeat", 0, "N", "repetitions of the whole record", CLI_U32(&replay->repeat, 1, 1000000)},
        BENCH_JSON_OPTION(&replay->json),
    };
    const struct cli_command command = {"weft bench replay",
                                        "weft bench replay [options] RECORD",
                                        "Repeats the calls of a recorded job with zeros for data, and prints "
                                        "what each kind of call took then and now.\n"
                                        "RECORD is a directory with a flight record of every rank, or the "
                                        "file of one rank that all ranks follow. A job\n"
                                        "writes the records at its end into the directory "
                                        "WEFT_RECORDER_CALLS; WEFT_RECORDER_OPERATIONS is the number\n"
                                        "of calls that a record keeps (default 2000).\n",
                                        CLI_TABLE(table),
                                        .notes = "Groups of some ranks are created again if the records of "
                                                 "all their members hold them. With the file of one\n"
                                                 "rank, calls of such groups, sends and receives, and "
                                                 "gather, scatter and all_to_all of unequal pieces are left\n"
                                                 "out and counted.\n",
                                        .takes_arguments = true};
    int first, status = cli_parse(&command, argc, argv, &first);
    if (status >= 0) return status;
    replay->gaps = gap == 1;
    replay->has_processes = processes != UINT32_MAX;
    if (replay->has_processes) replay->processes = processes;
    if (first + 1 != argc)
        return tool_usage_error(command.name, "expected one RECORD, a directory or a file");
    replay->path = argv[first];
    return -1;
}

/* ---- files ---- */

/* In a directory, the record of this rank; otherwise the path itself. */
static bool path_of(const char *path, uint32_t rank, char *out, size_t capacity)
{
    struct stat file_stat;
    char ending[40];
    if (stat(path, &file_stat) != 0)
        return fprintf(stderr, "weft bench replay: %s: %s\n", path, strerror(errno)), false;
    if (!S_ISDIR(file_stat.st_mode)) return snprintf(out, capacity, "%s", path), true;
    DIR *directory = opendir(path);
    bool found = false;
    snprintf(ending, sizeof ending, "-rank%" PRIu32 ".json", rank);
    for (struct dirent *entry; directory && !found && (entry = readdir(directory));) {
        size_t length = strlen(entry->d_name), tail = strlen(ending);
        found = strncmp(entry->d_name, "flight-", 7) == 0 && length > tail &&
                strcmp(entry->d_name + length - tail, ending) == 0;
        if (found) snprintf(out, capacity, "%s/%s", path, entry->d_name);
    }
    if (directory) closedir(directory);
    if (!found)
        fprintf(stderr, "weft bench replay: %s has no flight record of rank %" PRIu32 " (flight-JOB%s)\n",
                path, rank, ending);
    return found;
}

static bool read_calls(const char *directory, uint32_t rank, struct replay_calls *calls)
{
    char path[4096], why[300];
    struct flight flight;
    if (!path_of(directory, rank, path, sizeof path)) return false;
    bool fine = flight_read(path, &flight, why, sizeof why);
    if (fine) {
        fine = replay_calls_extract(&flight, calls, why, sizeof why);
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

/* ---- replay ---- */

struct kind_times {
    int64_t calls, bytes, recorded_ns, replayed_ns;
};

struct player {
    struct bench_rank rank; /* session, buffers, reductions over the ranks */
    const struct bench_replay *options;
    struct replay_calls calls;
    struct {
        struct weft_request request;
        const struct replay_call *call; /* NULL: free */
        double began_us;
    } slots[REPLAY_WINDOW];
    struct kind_times kinds[REPLAY_KINDS];
    struct {
        struct weft_comm *comm; /* NULL: all ranks */
        uint64_t first, last;   /* operations that all its ranks have on record; first > last: none */
    } groups[REPLAY_GROUPS_MAX];
    bool
        /* some rank follows the record of another rank, whose number is in calls that differ between ranks */
        foreign;
    /* calls of groups that could not be created again, and of sends and receives without their other side */
    int64_t left_out;
};

static enum weft_status post(struct player *player, const struct replay_call *call,
                             struct weft_request *request)
{
    static const enum weft_call_kind kinds[REPLAY_KINDS] = {
        [REPLAY_ALL_REDUCE] = WEFT_CALL_ALL_REDUCE,
        [REPLAY_REDUCE_SCATTER] = WEFT_CALL_REDUCE_SCATTER,
        [REPLAY_ALL_GATHER] = WEFT_CALL_ALL_GATHER,
        [REPLAY_BROADCAST] = WEFT_CALL_BROADCAST,
        [REPLAY_REDUCE] = WEFT_CALL_REDUCE,
        [REPLAY_GATHER] = WEFT_CALL_GATHER,
        [REPLAY_SCATTER] = WEFT_CALL_SCATTER,
        [REPLAY_ALL_TO_ALL] = WEFT_CALL_ALL_TO_ALL,
        [REPLAY_BARRIER] = WEFT_CALL_BARRIER,
        [REPLAY_SEND] = WEFT_CALL_SEND,
        [REPLAY_RECV] = WEFT_CALL_RECV,
    };
    return weft_call_start(player->rank.session,
                           WEFT_CALL(.kind = kinds[call->kind], .comm = player->groups[call->group].comm,
                                     .in = player->rank.in, .out = player->rank.out, .count = call->count,
                                     .counts = call->lengths, .counts_out = call->lengths_out,
                                     .unequal = call->unequal, .dtype = call->dtype, .op = call->op,
                                     .factor = 1, .root = call->root),
                           request);
}

static bool complete_call(struct player *player, uint32_t slot)
{
    const struct replay_call *call = player->slots[slot].call;
    struct kind_times *times = &player->kinds[call->kind];
    player->slots[slot].call = NULL;
    enum weft_status status = weft_wait(&player->slots[slot].request, 0);
    if (status < 0) return bench_print_failure(&player->rank, replay_kind_names[call->kind], status);
    times->calls++;
    times->bytes += (int64_t)call->bytes;
    times->recorded_ns += (int64_t)(call->ended_ns - call->posted_ns);
    times->replayed_ns += (int64_t)(1e3 * (bench_now_us() - player->slots[slot].began_us));
    return true;
}

/* Completes the calls that had ended when `call` was posted; NULL: all calls. */
static bool complete_earlier_calls(struct player *player, const struct replay_call *call)
{
    for (uint32_t slot = 0; slot < REPLAY_WINDOW; slot++) {
        const struct replay_call *open = player->slots[slot].call;
        if (open && (!call || open->ended_ns <= call->posted_ns) && !complete_call(player, slot))
            return false;
    }
    return true;
}

static bool should_run(const struct player *player, const struct replay_call *call, bool pairs)
{
    bool made = call->group == 0 || player->groups[call->group].comm;
    if (call->kind == REPLAY_SEND || call->kind == REPLAY_RECV) return pairs && made;
    if (player->foreign && (call->unequal || call->lengths_out)) return false;
    return made && call->sequence >= player->groups[call->group].first &&
           call->sequence <= player->groups[call->group].last;
}

static bool run_calls(struct player *player, bool pairs)
{
    player->left_out = player->calls.skipped;
    for (uint32_t i = 0; i < player->calls.count; i++) {
        const struct replay_call *call = &player->calls.calls[i];
        uint32_t slot = i % REPLAY_WINDOW;
        if (!should_run(player, call, pairs)) {
            player->left_out++;
            continue;
        }
        if (!complete_earlier_calls(player, call)) return false;
        if (player->slots[slot].call && !complete_call(player, slot)) return false;
        if (player->options->gaps)
            nanosleep(
                &(struct timespec){(time_t)(call->gap_ns / 1000000000), (long)(call->gap_ns % 1000000000)},
                NULL);
        player->slots[slot].began_us = bench_now_us();
        enum weft_status status = post(player, call, &player->slots[slot].request);
        if (status < 0) return bench_print_failure(&player->rank, replay_kind_names[call->kind], status);
        player->slots[slot].call = call;
    }
    return complete_earlier_calls(player, NULL);
}

/* ---- groups ---- */

/* The identity of a group on all ranks, in an order common to all. */
struct key {
    uint32_t id, members, epoch, ranks;
};

static int by_key(const void *left, const void *right)
{
    return memcmp(left, right, sizeof(struct key));
}

/* Gathers the groups that any rank has, each once, into *keys_out (to be freed), so that all ranks create the
 * same groups in the same order. */
static bool gather_keys(struct player *player, struct key **keys_out, uint32_t *count_out)
{
    const struct replay_calls *calls = &player->calls;
    bool own = calls->rank ==
               player->rank.rank; /* a record of another rank does not describe the groups of this rank */
    uint32_t mine = own ? calls->group_count - 1 : 0;
    int64_t most = mine;
    struct weft_request request = {{0}};
    if (!bench_reduce_over_ranks(&player->rank, &most, 1, WEFT_MAX)) return false;
    size_t all = (size_t)most * player->rank.ranks;
    struct key *keys = calloc(all + 1, sizeof *keys), *sent = keys + (size_t)most * player->rank.rank;
    if (!keys) return fprintf(stderr, "weft bench replay: no memory for the groups of the record\n"), false;
    for (uint32_t i = 0; i < mine; i++)
        sent[i] = (struct key){calls->groups[i + 1].id, calls->groups[i + 1].members,
                               calls->groups[i + 1].epoch, calls->groups[i + 1].ranks};
    if (!bench_wait(&player->rank, "all_gather",
                    weft_all_gather(player->rank.session, sent, keys, (uint64_t)most * sizeof *keys, WEFT_U8,
                                    &request),
                    &request)) {
        free(keys);
        return false;
    }
    qsort(keys, all, sizeof *keys, by_key);
    *count_out = 0;
    for (size_t i = 0; i < all; i++) {
        if (keys[i].ranks && (*count_out == 0 || by_key(&keys[i], &keys[*count_out - 1]) != 0))
            keys[(*count_out)++] = keys[i];
    }
    *keys_out = keys;
    return true;
}

/* Index of the group in the record of this rank; 0: not in it. */
static uint32_t group_index(const struct player *player, const struct key *key)
{
    const struct replay_calls *calls = &player->calls;
    for (uint32_t i = 1; i < calls->group_count && calls->rank == player->rank.rank; i++) {
        const struct replay_group *group = &calls->groups[i];
        if (group->id == key->id && group->members == key->members && group->epoch == key->epoch &&
            group->ranks == key->ranks)
            return i;
    }
    return 0;
}

/* Creates the groups. A group that some member has not on record gets no comm, and its calls are left out. */
static bool make_groups(struct player *player, const struct key *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct weft_comm *comm = NULL;
        uint32_t place = group_index(player, &keys[i]);
        enum weft_status status = weft_split(player->rank.session, NULL, place ? 0 : -1,
                                             (int)player->calls.groups[place].rank, &comm);
        if (status < 0) return bench_print_failure(&player->rank, "split", status);
        if (comm && weft_comm_ranks(comm) == keys[i].ranks) player->groups[place].comm = comm;
    }
    return true;
}

/* The first operation of a group on record, and the last one, negated; without any, a range that is empty. */
static void find_range(const struct replay_calls *calls, uint32_t group, int64_t ends[2])
{
    bool any = false;
    for (uint32_t i = 0; i < calls->count; i++) {
        const struct replay_call *call = &calls->calls[i];
        if (call->group != group || call->kind == REPLAY_SEND || call->kind == REPLAY_RECV) continue;
        int64_t sequence = (int64_t)call->sequence;
        if (!any || sequence < ends[0]) ends[0] = sequence;
        if (!any || -sequence < ends[1]) ends[1] = -sequence;
        any = true;
    }
    if (!any) ends[0] = INT64_MAX, ends[1] = INT64_MIN + 1;
}

/* Finds, for each group, the range of operations that all its ranks have; whether sends and receives can be
 * replayed (no rank has lost any); and whether a rank follows the record of another. */
static bool exchange_ranges(struct player *player, const struct key *keys, uint32_t count, bool *pairs)
{
    int64_t *ends = calloc(2 * ((size_t)count + 1), sizeof *ends),
            foreign = player->calls.rank != player->rank.rank, lost[] = {foreign, foreign};
    int64_t own[REPLAY_GROUPS_MAX][2];
    if (!ends) return fprintf(stderr, "weft bench replay: no memory for the groups of the record\n"), false;
    for (uint32_t i = 0; i <= count; i++) {
        uint32_t place = i > 0 ? group_index(player, &keys[i - 1]) : 0;
        bool in = i == 0 || place > 0;
        ends[2 * i] = ends[2 * i + 1] = INT64_MIN;
        if (!in) continue;
        find_range(&player->calls, place, own[place]);
        memcpy(&ends[2 * i], own[place], sizeof own[place]);
    }
    bool fine = bench_reduce_over_ranks(&player->rank, ends, 2 * ((uint64_t)count + 1), WEFT_MAX);
    for (uint32_t i = 0; fine && i <= count; i++) {
        uint32_t place = i > 0 ? group_index(player, &keys[i - 1]) : 0;
        if (i > 0 && place == 0) continue;
        lost[0] |= own[place][0] != ends[2 * i];
        player->groups[place].first = (uint64_t)ends[2 * i];
        player->groups[place].last = ends[2 * i + 1] > 0 ? 0 : (uint64_t)-ends[2 * i + 1];
    }
    free(ends);
    fine = fine && bench_reduce_over_ranks(&player->rank, lost, 2, WEFT_MAX);
    *pairs = !lost[0];
    player->foreign = lost[1];
    return fine;
}

static bool exchange_groups(struct player *player, bool *pairs)
{
    struct key *keys;
    uint32_t count;
    if (!gather_keys(player, &keys, &count)) return false;
    bool fine = make_groups(player, keys, count) && exchange_ranges(player, keys, count, pairs);
    free(keys);
    return fine;
}

/* ---- the whole record ---- */

static void print_kind(const struct player *player, enum replay_kind kind, const struct kind_times *times)
{
    double recorded = 1e-3 * (double)times->recorded_ns / (double)times->calls,
           replayed = 1e-3 * (double)times->replayed_ns / (double)times->calls;
    if (player->options->json) {
        json_t *row =
            json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:s}", "op", "replay", "kind",
                      replay_kind_names[kind], "ranks", (json_int_t)player->rank.ranks, "calls",
                      (json_int_t)times->calls, "total_bytes", (json_int_t)times->bytes, "time_us", replayed,
                      "recorded_us", recorded, "gaps", player->options->gaps ? "original" : "none");
        bench_row_print(stdout, row, 8);
        return;
    }
    printf(" %16s %10" PRId64 " %16" PRId64 " %14.2f %14.2f %8.2f\n", replay_kind_names[kind], times->calls,
           times->bytes, recorded, replayed, replayed > 0 ? recorded / replayed : 0);
}

static bool report(struct player *player, double wall_us)
{
    enum { FIELDS = sizeof(struct kind_times) / sizeof(int64_t) };
    int64_t totals[REPLAY_KINDS * FIELDS + 1], wall_ns = (int64_t)(1e3 * wall_us);
    memcpy(totals, player->kinds, sizeof player->kinds);
    totals[REPLAY_KINDS * FIELDS] = player->left_out;
    if (!bench_reduce_over_ranks(&player->rank, totals, REPLAY_KINDS * FIELDS + 1, WEFT_SUM) ||
        !bench_reduce_over_ranks(&player->rank, &wall_ns, 1, WEFT_MAX))
        return false;
    if (player->rank.rank != 0) return true;
    if (!player->options->json) {
        printf("# weft bench replay: %" PRIu32 " ranks, %s, %s, %" PRIu32 " times\n", player->rank.ranks,
               player->options->path, player->options->gaps ? "original gaps" : "back to back",
               player->options->repeat);
        printf("#%16s %10s %16s %14s %14s %8s\n#%16s %10s %16s %14s %14s %8s\n", "kind", "calls", "bytes",
               "recorded", "replayed", "faster", "", "(of ranks)", "(sum)", "(us, mean)", "(us, mean)",
               "(times)");
    }
    memcpy(player->kinds, totals, sizeof player->kinds);
    for (int kind = 0; kind < REPLAY_KINDS; kind++) {
        if (player->kinds[kind].calls > 0) print_kind(player, (enum replay_kind)kind, &player->kinds[kind]);
    }
    if (!player->options->json)
        printf("# %.3f ms from the first call to the end of the last; %" PRId64
               " operations of all ranks' records left out\n",
               1e-6 * (double)wall_ns, totals[REPLAY_KINDS * FIELDS]);
    return bench_flush_output("replay");
}

static bool replay_all(struct player *player)
{
    bool pairs = false;
    size_t capacity = player->calls.bytes_max > 8 ? player->calls.bytes_max : 8;
    if (player->rank.ranks != player->calls.ranks) {
        fprintf(stderr,
                "weft bench replay: the record is of %" PRIu32 " ranks and this job has %" PRIu32 "\n",
                player->calls.ranks, player->rank.ranks);
        return false;
    }
    player->rank.in = weft_alloc(player->rank.session, capacity);
    player->rank.out = weft_alloc(player->rank.session, capacity);
    if (!player->rank.in || !player->rank.out)
        return fprintf(stderr, "weft bench replay: no memory for two buffers of %zu bytes\n", capacity),
               false;
    if (!exchange_groups(player, &pairs) || !bench_barrier(&player->rank)) return false;
    double began = bench_now_us();
    for (uint32_t i = 0; i < player->options->repeat; i++) {
        if (!run_calls(player, pairs)) return false;
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
    weft_finalize(player->rank.session); /* also frees the buffers */
    replay_calls_free(&player->calls);
    free(player);
    return fine ? 0 : 1;
}
