/* calibrate.c - `weft bench calibrate`: measures the figures from which plans are chosen, and writes the link
 * table of the cluster (collective.links; docs/decisions/0008).
 *
 *     a job with ranks on each host -> one pair of hosts at a time: latency and bandwidth of messages
 *                                   -> price of posting a message, of sums, of passes over memory, of incast
 *                                   -> link table: rows of lane "session", one "machine" line a host
 *
 * If all ranks share one host and use messages, one rate does not describe them: operations of several sizes
 * by five plans are measured, too. All figures are measured through the public API, on one host by all ranks
 * at once. The number of ranks per host should therefore be that of the jobs. */
#include "tools/bench/calibrate/calibrate.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collective/collective.h"
#include "kernels/kernels.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/lib/output.h"

enum {
    PINGS = 201,
    LONG_BYTES = 8 << 20,
    LONGS = 5,
    RING_BYTES = 2 << 20,
    BURST = 32,
    BLOCKS = 15,
    BLOCK_ROUNDS = 40,
    PER_ROUND = 4,
    CROWD_BYTES = 256 << 10,
    CROWD_MIN = 10,
    SUM_ELEMS = 65536,
    PASS_BYTES = 64 << 20,
    HOST_BYTES = 72
};

struct settings {
    uint32_t processes;
    const char *path;
};

struct calibration {
    struct bench_rank rank;
    uint8_t *names;    /* (ranks, HOST_BYTES): name, fingerprint */
    uint32_t *host_of; /* (ranks,) index of the host of each rank */
    uint32_t host_count;
    struct weft_link_table *table;
    struct weft_link_machine machine;
    struct weft_link_memory memory;
    struct weft_link_runs runs;
    struct weft_link_cost cost; /* of the last measured pair */
};

/* -1: continue; otherwise the exit status. */
static int parse(struct settings *settings, int argc, char **argv)
{
    *settings = (struct settings){0};
    const struct cli_option table[] = {
        BENCH_PROCESSES_OPTION(&settings->processes, 4096),
        {"write", 0, "FILE", "file for the link table, written by rank 0", "", CLI_TEXT(&settings->path)},
        BENCH_TRANSPORT_OPTION,
    };
    const struct cli_command command = {
        "weft bench calibrate", "weft bench calibrate [options]",
        "Latency and bandwidth between the hosts of a job, and the processor time of messages and sums:\n"
        "the figures from which plans are chosen.\n"
        "  weft bench calibrate -n 2 --write links          this host; in a job over many hosts, without -n\n"
        "  WEFT_COLLECTIVE_LINKS=links ...                  a job that chooses plans by them\n",
        CLI_TABLE(table),
        .notes = "Start it with as many ranks a host as jobs have, on an idle machine. Incast is measured\n"
                 "with 10 ranks and more.\n"};
    return cli_parse(&command, argc, argv, NULL);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

/* ---- messages ---- */
static bool send_or_recv(struct bench_rank *rank, bool sends, uint32_t other, uint64_t bytes)
{
    struct weft_request request = {{0}};
    enum weft_status status =
        weft_call_start(rank->session,
                        WEFT_CALL(.kind = sends ? WEFT_CALL_SEND : WEFT_CALL_RECV, .in = rank->in,
                                  .out = rank->out, .count = bytes, .dtype = WEFT_U8, .root = other),
                        &request);
    return bench_wait(rank, sends ? "send" : "recv", status, &request);
}

/* Sends `bytes` one way and one byte back; `first` sends first and has the time. */
static bool ping_pong(struct bench_rank *rank, bool first, uint32_t other, uint64_t bytes, double *us_out)
{
    double began_us = bench_now_us();
    bool fine = send_or_recv(rank, first, other, bytes) && send_or_recv(rank, !first, other, 1);
    *us_out = bench_now_us() - began_us;
    return fine;
}

/* Every rank sends and receives `count` messages at once, to and from the next rank, the one after it, and so
 * on. */
static bool exchange(struct bench_rank *rank, uint64_t bytes, int count, double *us_out)
{
    struct weft_request requests[2 * BURST] = {{{0}}};
    double began_us = bench_now_us();
    for (int i = 0; i < 2 * count; i++) {
        uint32_t distance = 1 + (uint32_t)(i % count) % (rank->ranks - 1);
        uint32_t other = (rank->rank + (i < count ? rank->ranks - distance : distance)) % rank->ranks;
        enum weft_status status =
            weft_call_start(rank->session,
                            WEFT_CALL(.kind = i < count ? WEFT_CALL_RECV : WEFT_CALL_SEND, .in = rank->in,
                                      .out = rank->out, .count = bytes, .dtype = WEFT_U8, .root = other),
                            &requests[i]);
        if (status < 0) return bench_print_failure(rank, "messages of all ranks", status);
    }
    bool fine = true;
    for (int i = 0; i < 2 * count; i++)
        fine &= bench_wait(rank, "messages of all ranks", WEFT_OK, &requests[i]);
    *us_out = bench_now_us() - began_us;
    return fine;
}

/* An all_reduce by ring: each rank sends what it has received, both directions at once. RING_BYTES lies
 * between sizes that fit the caches and sizes that do not, because the rate differs between them. */
static bool ring(struct bench_rank *rank, double *us_out)
{
    struct weft_request request = {{0}};
    double began_us = bench_now_us();
    enum weft_status status = weft_all_reduce(rank->session, rank->in, rank->out, RING_BYTES / sizeof(float),
                                              WEFT_F32, WEFT_SUM, &request);
    bool fine = bench_wait(rank, "all_reduce by ring", status, &request);
    *us_out = bench_now_us() - began_us;
    return fine;
}

/* One rank may begin a round before others: only the mean over many rounds is exact. */
static bool exchanges(struct bench_rank *rank, int count, double *us_out)
{
    double us;
    *us_out = 0;
    for (int i = 0; i < BLOCK_ROUNDS; i++) {
        if (!exchange(rank, 8, count, &us)) return false;
        *us_out += us / BLOCK_ROUNDS;
    }
    return true;
}

/* Figures of messages while all ranks exchange messages, as in an operation. They differ from those of a
 * single pair if ranks outnumber the processors or share one memory. figures: as in measure_pair, and the
 * time that one more message adds; sum_ps: price of summing a byte. Rings, exchanges and bursts alternate,
 * and the medians count. */
static bool measure_ring(struct bench_rank *rank, uint32_t sum_ps, int64_t figures[3])
{
    double blocks[PER_ROUND * BLOCKS], rings[PER_ROUND * BLOCKS], bursts[BLOCKS], hops = rank->ranks - 1;
    int many = rank->ranks == 2 ? BURST : rank->ranks - 1 < BURST ? (int)rank->ranks - 1 : BURST;
    if (weft_set_plan(rank->session, "all_reduce=ring") < 0)
        return bench_print_failure(rank, "the plan ring", WEFT_ERR_INVALID);
    memset(rank->in, 0, RING_BYTES);
    /* block -1 touches pages and connections for the first time and is overwritten */
    for (int i = -1; i < BLOCKS; i++) {
        int at = i < 0 ? 0 : i;
        for (int k = PER_ROUND * at; k < PER_ROUND * (at + 1); k++)
            if (!bench_barrier(rank) || !ring(rank, &rings[k])) return false;
        if (!bench_barrier(rank)) return false;
        for (int k = PER_ROUND * at; k < PER_ROUND * (at + 1); k++)
            if (!exchanges(rank, 1, &blocks[k])) return false;
        if (!exchanges(rank, many, &bursts[at])) return false;
    }
    if (weft_set_plan(rank->session, "all_reduce=auto") < 0)
        return bench_print_failure(rank, "the plan auto", WEFT_ERR_INVALID);
    double round_us = bench_median(blocks, PER_ROUND * BLOCKS),
           ring_us = bench_median(rings, PER_ROUND * BLOCKS),
           more_us = (bench_median(bursts, BLOCKS) - round_us) / (many - 1);
    double slice = (double)RING_BYTES / rank->ranks,
           rest_us = ring_us - hops * (2 * round_us + slice * sum_ps * 1e-6);
    int64_t least[1] = {
        (int64_t)(2 * hops * slice / (rest_us > 0.1 * ring_us ? rest_us : 0.1 * ring_us) * 1e6)};
    figures[0] = (int64_t)(round_us * 1e3) + 1;
    figures[2] = more_us > 0 ? (int64_t)(more_us * 1e3) + 1 : 1;
    bool fine = bench_reduce_over_ranks(rank, figures, 3, WEFT_MAX) &&
                bench_reduce_over_ranks(rank, least, 1, WEFT_MIN);
    figures[1] = least[0];
    return fine;
}

/* Measures one pair while all other ranks wait. All ranks get the figures: nanoseconds, bytes per second. */
static bool measure_pair(struct bench_rank *rank, uint32_t a, uint32_t b, int64_t figures[2])
{
    double pings[PINGS], longs[LONGS];
    bool first = rank->rank == a, takes_part = first || rank->rank == b, fine = true;
    uint32_t other = first ? b : a;
    for (int i = 0; i < PINGS && takes_part && fine; i++) fine = ping_pong(rank, first, other, 8, &pings[i]);
    for (int i = 0; i < LONGS && takes_part && fine; i++)
        fine = ping_pong(rank, first, other, LONG_BYTES, &longs[i]);
    memset(figures, 0, 2 * sizeof *figures);
    if (fine && first) {
        double trip_us = bench_median(pings, PINGS), long_us = bench_median(longs, LONGS);
        figures[0] = (int64_t)(trip_us / 2 * 1e3) + 1;
        figures[1] =
            (int64_t)(LONG_BYTES / (long_us > 1.1 * trip_us ? long_us - trip_us : 0.1 * trip_us) * 1e6);
    }
    return fine && bench_reduce_over_ranks(rank, figures, 2, WEFT_MAX);
}

/* All other ranks send to rank 0 at once: by how much that takes longer than one after the other. */
static bool measure_incast(struct bench_rank *rank, uint32_t *milli_out)
{
    double times_us[2][LONGS];
    int64_t milli = 0;
    if (rank->ranks < CROWD_MIN) return true;
    for (int all = 0; all < 2; all++)
        for (int i = 0; i < LONGS; i++) {
            if (!bench_barrier(rank)) return false;
            double began_us = bench_now_us();
            if (rank->rank > 0 && (all || rank->rank == 1) && !send_or_recv(rank, true, 0, CROWD_BYTES))
                return false;
            for (uint32_t other = 1; rank->rank == 0 && other < (all ? rank->ranks : 2); other++)
                if (!send_or_recv(rank, false, other, CROWD_BYTES)) return false;
            times_us[all][i] = bench_now_us() - began_us;
        }
    if (rank->rank == 0) {
        double others = rank->ranks - 1,
               longer = bench_median(times_us[1], LONGS) / (others * bench_median(times_us[0], LONGS));
        milli = longer > 1 ? (int64_t)(1e3 * (longer - 1) / (others - 8)) + 1 : 1;
    }
    if (!bench_reduce_over_ranks(rank, &milli, 1, WEFT_MAX)) return false;
    *milli_out = milli < 1000 ? (uint32_t)milli : 1000;
    return true;
}

/* ---- sums and memory ---- */
static bool measure_processor(struct bench_rank *rank, struct weft_link_machine *machine)
{
    double sums[PINGS], passes[LONGS];
    float *x = rank->in, *y = rank->out;
    memset(x, 0, 2 * SUM_ELEMS * sizeof *x);
    for (int i = 0; i < PINGS; i++) {
        double began_us = bench_thread_us();
        for (int k = 0; k < 16; k++) weft_kernels()->sum_f32(y, y, x, SUM_ELEMS);
        sums[i] = (bench_thread_us() - began_us) / 16;
        memset(y, 0, SUM_ELEMS * sizeof *y);
    }
    char *from = malloc(PASS_BYTES), *to = malloc(PASS_BYTES);
    bool fine = from && to;
    if (fine) memset(from, 1, PASS_BYTES), memset(to, 1, PASS_BYTES);
    for (int i = 0; i < LONGS && fine; i++) {
        /* processor time: other ranks that share the processor do not count */
        double began_us = bench_thread_us();
        memcpy(to, from, PASS_BYTES);
        passes[i] = bench_thread_us() - began_us;
    }
    free(from);
    free(to);
    if (!fine)
        return fprintf(stderr, "weft bench calibrate: no memory for %d MiB\n", 2 * PASS_BYTES >> 20), false;
    int64_t ps[2] = {(int64_t)(bench_median(sums, PINGS) * 1e6 / (SUM_ELEMS * sizeof *x)) + 1,
                     (int64_t)(bench_median(passes, LONGS) * 1e6 / (2.0 * PASS_BYTES)) + 1};
    if (!bench_reduce_over_ranks(rank, ps, 2, WEFT_MAX)) return false;
    machine->sum_ps = (uint32_t)ps[0];
    machine->pass_ps = (uint32_t)ps[1];
    return true;
}

/* ---- hosts ---- */
static bool find_hosts(struct calibration *c)
{
    struct bench_rank *rank = &c->rank;
    uint8_t mine[HOST_BYTES] = {0};
    struct weft_request request = {{0}};
    uint64_t fingerprint = weft_host_fingerprint("/");
    if (gethostname((char *)mine, HOST_BYTES - 9) != 0 || !mine[0]) memcpy(mine, "localhost", 10);
    memcpy(mine + HOST_BYTES - 8, &fingerprint, 8);
    c->names = calloc(rank->ranks, HOST_BYTES);
    c->host_of = calloc(rank->ranks, sizeof *c->host_of);
    if (!c->names || !c->host_of || weft_link_table_create(weft_env_system(), &c->table) < 0)
        return fprintf(stderr, "weft bench calibrate: no memory\n"), false;
    if (!bench_wait(rank, "hosts",
                    weft_all_gather(rank->session, mine, c->names, HOST_BYTES, WEFT_U8, &request), &request))
        return false;
    for (uint32_t r = 0; r < rank->ranks; r++) {
        memcpy(&fingerprint, c->names + r * HOST_BYTES + HOST_BYTES - 8, 8);
        enum weft_status status =
            weft_link_table_host(c->table, (char *)c->names + r * HOST_BYTES, fingerprint, &c->host_of[r]);
        if (status < 0) return bench_print_failure(rank, "the name of a host", status);
    }
    c->host_count = weft_link_table_host_count(c->table);
    return true;
}

/* The n-th rank of a host; the number of ranks if the host has fewer. */
static uint32_t rank_of(const struct calibration *c, uint32_t host, uint32_t n)
{
    uint32_t r = 0;
    while (r < c->rank.ranks && (c->host_of[r] != host || n-- > 0)) r++;
    return r;
}

static bool measure_links(struct calibration *c)
{
    int64_t together[3] = {0};
    if (!measure_ring(&c->rank, c->machine.sum_ps, together)) return false;
    c->machine.inject_ns = (uint32_t)together[2];
    for (uint32_t from = 0; from < c->host_count; from++)
        for (uint32_t to = 0; to < c->host_count; to++) {
            uint32_t a = rank_of(c, from, 0), b = rank_of(c, to, from == to);
            /* of one host: measured by all its ranks at once */
            int64_t figures[2] = {together[0], together[1]};
            if (b == c->rank.ranks) continue;
            if (c->host_count > 1 && !measure_pair(&c->rank, a, b, figures)) return false;
            struct weft_link link = {.from = from,
                                     .to = to,
                                     .state = WEFT_LINK_WORKS,
                                     .latency_ns = (uint64_t)figures[0],
                                     .bytes_per_second = (uint64_t)figures[1],
                                     .lane = "session",
                                     .text = "weft bench calibrate"};
            c->cost.pairs = 1, c->cost.latency_ns = link.latency_ns,
            c->cost.bytes_per_second = link.bytes_per_second;
            if (weft_link_table_set(c->table, &link) < 0)
                return fprintf(stderr, "weft bench calibrate: no memory for a row\n"), false;
            if (c->rank.rank == 0)
                printf("%s to %s: %.2f us, %.2f GB/s\n", weft_link_table_host_name(c->table, from),
                       weft_link_table_host_name(c->table, to), (double)figures[0] / 1e3,
                       (double)figures[1] / 1e9);
        }
    return true;
}

/* All ranks share a host: their operations use mapped memory, or messages. */
static bool measure_shared_host(struct calibration *c)
{
    if (!bench_calibrate_memory(&c->rank, &c->memory)) return false;
    c->cost.inject_ns = c->machine.inject_ns, c->cost.sum_ps = c->machine.sum_ps,
    c->cost.pass_ps = c->machine.pass_ps, c->cost.incast_milli = c->machine.incast_milli;
    return c->memory.flag_round_ns > 0 || bench_calibrate_messages(&c->rank, &c->cost, &c->runs);
}

static void print_runs(const struct weft_link_runs *runs)
{
    if (runs->ranks == 0) return;
    printf("of %u ranks on %u processors: a message %.2f us, handed over %.2f us; ns a byte", runs->ranks,
           runs->processors, runs->trip_ns / 1e3, runs->inject_ns / 1e3);
    for (int pattern = 0; pattern < WEFT_LINK_PATTERNS; pattern++) {
        printf("%s by %s", pattern ? "," : "",
               weft_plan_name(weft_plan_of_pattern((enum weft_link_pattern)pattern)));
        for (uint32_t length = 0; length < WEFT_LINK_LENGTHS; length++)
            printf(" %.3f", runs->byte_ps[pattern][length] / 1e3);
    }
    printf(" of 4 KiB, twice that, and so on to 8 MiB\n");
}

static bool write_table(struct calibration *c, const char *path)
{
    struct weft_error error = {0};
    for (uint32_t host = 0; host < c->host_count; host++) {
        weft_link_table_set_machine(c->table, host, &c->machine);
        weft_link_table_set_memory(c->table, host, &c->memory);
        weft_link_table_set_runs(c->table, host, &c->runs);
    }
    printf("posting a message: %.2f us; sums: %.3f ns a byte; a pass over memory: %.3f ns a byte; incast: ",
           c->machine.inject_ns / 1e3, c->machine.sum_ps / 1e3, c->machine.pass_ps / 1e3);
    if (c->machine.incast_milli) printf("%.1f %% for each sender beyond 8\n", c->machine.incast_milli / 10.0);
    else printf("not measured (%d ranks)\n", CROWD_MIN);
    if (c->memory.flag_round_ns)
        printf("in mapped memory: descriptors: %.2f us; slices: %.2f us more; a copied-in byte: %.3f ns; a "
               "byte of "
               "buffers: %.4f ns in caches of %u KiB, %.4f ns beyond, %.4f ns by non-temporal stores\n",
               c->memory.flag_round_ns / 1e3, c->memory.slices_overhead_ns / 1e3, c->memory.copyin_ps / 1e3,
               c->memory.private_cache_ps / 1e3, c->memory.private_cache_kib, c->memory.last_cache_ps / 1e3,
               c->memory.nt_store_ps / 1e3);
    print_runs(&c->runs);
    if (!path || weft_link_table_save(c->table, path, &error) >= 0) return true;
    fprintf(stderr, "weft bench calibrate: %s\n", error.text);
    return false;
}

static int take_part(const struct settings *settings)
{
    struct calibration c = {0};
    if (!bench_join(&c.rank, "weft bench")) return 1;
    c.rank.in = weft_alloc(c.rank.session, LONG_BYTES);
    c.rank.out = weft_alloc(c.rank.session, LONG_BYTES);
    bool fine = c.rank.in && c.rank.out && c.rank.ranks > 1;
    if (!fine)
        fprintf(stderr, "weft bench calibrate: two ranks and memory for two buffers of %d MiB are needed\n",
                LONG_BYTES >> 20);
    fine = fine && find_hosts(&c) && measure_processor(&c.rank, &c.machine) && measure_links(&c) &&
           measure_incast(&c.rank, &c.machine.incast_milli) && (c.host_count > 1 || measure_shared_host(&c));
    if (fine && c.rank.rank == 0) fine = write_table(&c, settings->path);
    if (c.rank.in) weft_free(c.rank.session, c.rank.in);
    if (c.rank.out) weft_free(c.rank.session, c.rank.out);
    weft_finalize(c.rank.session);
    weft_link_table_free(c.table);
    free(c.names);
    free(c.host_of);
    return fine && bench_flush_output("calibrate") ? 0 : 1;
}

int weft_bench_calibrate_main(int argc, char **argv)
{
    struct settings settings;
    int answer = parse(&settings, argc, argv);
    if (answer >= 0) return answer;
    const struct bench_launch launch = {
        .processes = settings.processes, .bind = "auto", .what = "calibrate", .argc = argc, .argv = argv};
    if (settings.processes > 0) return bench_launch(&launch);
    if (getenv("WEFT_COORDINATOR")) return take_part(&settings);
    fprintf(stderr,
            "weft bench calibrate: there is no job to take part in; use -n 2 to start one on this host\n");
    return 2;
}
