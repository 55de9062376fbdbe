/* fleet_rank.c - see fleet.h. Messages are those of weft_send and weft_recv, as a trainer's.
 *
 * Rounds pair the ranks as a tournament does: a rank has at most one partner in a round, and each other rank
 * once. A barrier separates rounds. In a pair:
 *
 *   lower <-> higher   round trips of 8 bytes
 *   lower --> higher   a few messages; the number of messages that take a third of options->ms; three times
 *                      these. The fastest counts, since other processes delay some
 *   lower <-- higher   the same
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/fleet/fleet.h"
#include "tools/net_device.h"

enum {
    WINDOW = 8,
    RUNS = 3,
    TRIAL = 8,
    COUNT_MAX = 1 << 20,
    TRIPS_WARM = 10,
    TRIPS = 100,
    NO_PARTNER = -1,
    WAY_LINE_BYTES = 512
};

struct fleet_rank {
    const struct fleet_options *options;
    struct bench_rank bench; /* session, rank, ranks */
    uint8_t *memory;         /* (WINDOW, bytes) */
    double *row;             /* (ranks, 2): GB/s, us of the links from this rank */
    uint64_t wrong;
};

/* ---- messages ---- */

static enum weft_status start(struct fleet_rank *rank, bool sends, uint32_t peer, void *data, uint64_t bytes,
                              struct weft_request *request)
{
    return sends ? weft_send(rank->bench.session, data, bytes, WEFT_U8, peer, request)
                 : weft_recv(rank->bench.session, data, bytes, WEFT_U8, peer, request);
}

static bool exchange_word(struct fleet_rank *rank, bool sends, uint32_t peer, uint64_t *word)
{
    struct weft_request request = {{0}};
    return bench_wait(&rank->bench, sends ? "send" : "recv",
                      start(rank, sends, peer, word, sizeof *word, &request), &request);
}

static bool measure_latency(struct fleet_rank *rank, uint32_t peer, double *us_out)
{
    const bool first = rank->bench.rank < peer;
    uint64_t word = 0;
    double began = 0;
    for (int i = 0; i < TRIPS_WARM + TRIPS; i++) {
        if (i == TRIPS_WARM) began = bench_now_us();
        if (!exchange_word(rank, first, peer, &word) || !exchange_word(rank, !first, peer, &word))
            return false;
    }
    *us_out = (bench_now_us() - began) / TRIPS / 2;
    return true;
}

/* Moves `count` messages with WINDOW in flight; ends with an acknowledgement. */
static bool stream(struct fleet_rank *rank, bool sends, uint32_t peer, uint64_t count, double *us_out)
{
    const uint64_t bytes = rank->options->bytes;
    struct weft_request requests[WINDOW] = {0};
    uint64_t word = 0;
    const double began = bench_now_us();
    for (uint64_t i = 0; i < count + WINDOW; i++) {
        struct weft_request *request = &requests[i % WINDOW];
        if (i >= WINDOW && i - WINDOW < count && !bench_wait(&rank->bench, "stream", WEFT_OK, request))
            return false;
        if (i >= count) continue;
        uint8_t *data = rank->memory + (sends ? 0 : (i % WINDOW) * bytes);
        enum weft_status status = start(rank, sends, peer, data, bytes, request);
        if (status < 0) return bench_print_failure(&rank->bench, "stream", status);
    }
    if (!exchange_word(rank, !sends, peer, &word)) return false;
    *us_out = bench_now_us() - began;
    return true;
}

/* ---- one link ---- */

static struct bench_pattern pattern_of(const struct fleet_rank *rank, uint32_t from, uint32_t to)
{
    return (struct bench_pattern){
        .dtype = WEFT_U8, .ranks = rank->bench.ranks, .salt = from * rank->bench.ranks + to + 1};
}

static bool measure_bandwidth(struct fleet_rank *rank, bool sends, uint32_t peer, double *gbps_out)
{
    const uint64_t bytes = rank->options->bytes;
    const uint32_t from = sends ? rank->bench.rank : peer, to = sends ? peer : rank->bench.rank;
    const struct bench_pattern pattern = pattern_of(rank, from, to);
    uint64_t count = 0;
    double us = 0;
    if (sends) bench_pattern_fill(&pattern, rank->memory, 0, bytes, from);
    if (!stream(rank, sends, peer, TRIAL, &us)) return false;
    if (sends) {
        const double fits = 1e3 * rank->options->ms / RUNS * TRIAL / fmax(us, 1);
        count = fits > COUNT_MAX ? COUNT_MAX : fits < TRIAL ? TRIAL : (uint64_t)fits;
    }
    if (!exchange_word(rank, sends, peer, &count)) return false;
    if (count > COUNT_MAX) count = COUNT_MAX; /* no peer can send more */
    *gbps_out = 0;
    for (int run = 0; run < RUNS; run++) {
        if (!stream(rank, sends, peer, count, &us)) return false;
        *gbps_out = fmax(*gbps_out, 1e-3 * (double)(count * bytes) / us);
    }
    for (int i = 0; !sends && i < WINDOW; i++)
        rank->wrong +=
            bench_pattern_count_wrong_moved(&pattern, rank->memory + (size_t)i * bytes, 0, bytes, from);
    return true;
}

static bool measure_pair(struct fleet_rank *rank, uint32_t peer)
{
    const bool first = rank->bench.rank < peer;
    double *link = rank->row + 2 * (size_t)peer, ignored;
    return measure_latency(rank, peer, &link[1]) &&
           measure_bandwidth(rank, first, peer, first ? &link[0] : &ignored) &&
           measure_bandwidth(rank, !first, peer, first ? &ignored : &link[0]);
}

/* ---- rounds ---- */

/* The partner of a rank in a round of a tournament, by the circle method; NO_PARTNER: it rests. */
static int partner_in_round(uint32_t ranks, uint32_t round, uint32_t rank)
{
    const uint32_t places = ranks + ranks % 2, last = places - 1;
    const uint32_t partner = rank == last    ? round
                             : rank == round ? last
                                             : (2 * round + last - rank % last) % last;
    return partner < ranks ? (int)partner : NO_PARTNER;
}

static bool measure_at_once(struct fleet_rank *rank)
{
    const uint32_t ranks = rank->bench.ranks, rounds = ranks + ranks % 2 - 1;
    for (uint32_t round = 0; round < rounds; round++) {
        const int partner = partner_in_round(ranks, round, rank->bench.rank);
        if (partner != NO_PARTNER && !measure_pair(rank, (uint32_t)partner)) return false;
        if (!bench_barrier(&rank->bench)) return false;
    }
    return true;
}

static bool measure_in_turn(struct fleet_rank *rank)
{
    const uint32_t ranks = rank->bench.ranks, self = rank->bench.rank;
    for (uint32_t a = 0; a < ranks; a++) {
        for (uint32_t b = a + 1; b < ranks; b++) {
            if ((self == a || self == b) && !measure_pair(rank, self == a ? b : a)) return false;
            if (!bench_barrier(&rank->bench)) return false;
        }
    }
    return true;
}

/* ---- the matrix ---- */

static bool gather(struct fleet_rank *rank, const void *in, void *out, uint64_t count, enum weft_dtype dtype)
{
    struct weft_request request = {{0}};
    return bench_wait(&rank->bench, "gathering the results",
                      weft_all_gather(rank->bench.session, in, out, count, dtype, &request), &request);
}

/* Hosts with several ranks: "name#rank". */
static void separate_names(struct fleet_matrix *matrix)
{
    bool is_shared[FLEET_HOSTS_MAX] = {0};
    matrix->is_one_host = true;
    for (uint32_t i = 0; i < matrix->count; i++) {
        matrix->names[i][FLEET_NAME_BYTES - 1] = 0;
        matrix->is_one_host &= strncmp(matrix->names[i], matrix->names[0], FLEET_NAME_BYTES) == 0;
        for (uint32_t j = 0; j < matrix->count; j++)
            is_shared[i] |= i != j && strncmp(matrix->names[i], matrix->names[j], FLEET_NAME_BYTES) == 0;
    }
    for (uint32_t i = 0; i < matrix->count; i++) {
        char name[FLEET_NAME_BYTES - 8];
        if (!is_shared[i]) continue;
        snprintf(name, sizeof name, "%.*s", (int)sizeof name - 1, matrix->names[i]);
        snprintf(matrix->names[i], FLEET_NAME_BYTES, "%s#%" PRIu32, name, i);
    }
}

/* The transport to each rank, from lines such as "rank 1 (host b, pid 41): shm mapped (not ucx: ...)". */
static void read_ways(struct fleet_rank *rank, char (*ways)[FLEET_WAY_BYTES])
{
    const size_t bytes = (size_t)rank->bench.ranks * WAY_LINE_BYTES;
    char *text = calloc(1, bytes);
    if (text) weft_describe_links(rank->bench.session, text, bytes);
    for (char *rest = text, *line; rest && (line = strsep(&rest, "\n"));) {
        unsigned peer;
        char *way = strstr(line, "): ");
        if (!way || sscanf(line, "rank %u (", &peer) != 1 || peer >= rank->bench.ranks) continue;
        char *reasons = strstr(way, " (not ");
        if (reasons) *reasons = 0;
        snprintf(ways[peer], FLEET_WAY_BYTES, "%s", way + 3);
    }
    free(text);
}

static bool gather_ways(struct fleet_rank *rank, struct fleet_matrix *matrix)
{
    const uint32_t ranks = rank->bench.ranks;
    char(*own)[FLEET_WAY_BYTES] = calloc(ranks, sizeof *own);
    if (own) read_ways(rank, own);
    const bool fine = own && gather(rank, own, matrix->ways, (uint64_t)ranks * FLEET_WAY_BYTES, WEFT_U8);
    for (size_t i = 0; fine && i < (size_t)ranks * ranks; i++) matrix->ways[i][FLEET_WAY_BYTES - 1] = 0;
    free(own);
    return fine;
}

static bool gather_matrix(struct fleet_rank *rank, struct fleet_matrix *matrix)
{
    const uint32_t ranks = rank->bench.ranks, self = rank->bench.rank;
    char name[FLEET_NAME_BYTES] = {0};
    int64_t wrong = (int64_t)rank->wrong;
    double *all = calloc((size_t)ranks * ranks * 2, sizeof *all);
    if (rank->options->name) snprintf(name, sizeof name, "%s", rank->options->name);
    else if (gethostname(name, sizeof name - 1) != 0) snprintf(name, sizeof name, "rank");
    bool fine = all && gather(rank, name, matrix->names, sizeof name, WEFT_U8) &&
                gather(rank, rank->row, all, 2 * (uint64_t)ranks, WEFT_F64) && gather_ways(rank, matrix) &&
                bench_reduce_over_ranks(&rank->bench, &wrong, 1, WEFT_SUM);
    for (uint32_t from = 0; fine && from < ranks; from++) {
        for (uint32_t to = 0; to < ranks; to++) {
            const double *link = all + 2 * ((size_t)from * ranks + to);
            if (from == to) continue;
            matrix->gbps[(size_t)from * ranks + to] = link[0];
            matrix->us[(size_t)from * ranks + to] = link[1];
        }
    }
    free(all);
    separate_names(matrix);
    if (fine && wrong && self == 0) fprintf(stderr, "weft bench fleet: %" PRId64 " wrong bytes\n", wrong);
    return fine && !wrong;
}

/* Without transport.devices the device that leads to the coordinator, which is at the host of rank 0. */
static void choose_device(void)
{
    const char *coordinator = getenv("WEFT_COORDINATOR");
    struct weft_launcher launcher;
    char host[256], device[32];
    if (!coordinator && weft_launcher_find(false, &launcher, NULL) == WEFT_OK)
        coordinator = launcher.coordinator;
    if (getenv("WEFT_TRANSPORT_DEVICES") || !coordinator) return;
    const bool bracket = coordinator[0] == '[';
    const char *end = bracket ? strchr(coordinator, ']') : strrchr(coordinator, ':');
    if (!end) return;
    snprintf(host, sizeof host, "%.*s", (int)(end - coordinator - bracket), coordinator + bracket);
    tool_net_device_to(host, device, sizeof device);
    if (strcmp(device, "lo") != 0) setenv("WEFT_TRANSPORT_DEVICES", device, 1);
}

static int measure(struct fleet_rank *rank)
{
    struct fleet_matrix matrix;
    const uint32_t ranks = rank->bench.ranks;
    if (ranks < 2 || ranks > FLEET_HOSTS_MAX) {
        fprintf(stderr, "weft bench fleet: the job has %" PRIu32 " ranks; it needs 2 to %d\n", ranks,
                FLEET_HOSTS_MAX);
        return 1;
    }
    rank->memory = weft_alloc(rank->bench.session, WINDOW * rank->options->bytes);
    rank->row = calloc(2 * (size_t)ranks, sizeof *rank->row);
    if (!rank->memory || !rank->row || !fleet_matrix_init(&matrix, ranks)) {
        fprintf(stderr, "weft bench fleet: out of memory for %d messages; make --bytes smaller\n", WINDOW);
        return 1;
    }
    bool fine = (rank->options->serial ? measure_in_turn(rank) : measure_at_once(rank)) &&
                gather_matrix(rank, &matrix);
    int answer = fine ? 0 : 1;
    if (fine && rank->bench.rank == 0) answer = fleet_matrix_report(&matrix, rank->options);
    fleet_matrix_free(&matrix);
    return answer == FLEET_EXIT_SLOW ? 0 : answer; /* a launcher would report that rank 0 failed */
}

int fleet_run_rank(const struct fleet_options *options)
{
    struct fleet_rank rank = {.options = options};
    choose_device();
    if (!bench_join(&rank.bench, "weft bench fleet")) return 1;
    const int answer = measure(&rank);
    if (rank.memory) weft_free(rank.bench.session, rank.memory);
    weft_finalize(rank.bench.session);
    free(rank.row);
    return answer;
}
