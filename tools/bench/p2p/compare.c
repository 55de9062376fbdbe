/* compare.c - see compare.h.
 *
 * Every round measures every column of a cell once, one after the other, so that slow spells of the machine
 * affect all of them. A ratio is the median over the rounds of ours / the fastest peer of that cell; the
 * fastest peer is the one with the best median over all rounds. */
#include "tools/bench/p2p/compare.h"
#include "tools/size.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/samples.h"
#include "tools/bench/lib/table.h"

enum { PEERS_MAX = 4, ROUNDS_MAX = 99, SIZES_MAX = 8 };

struct peer {
    const char *name;       /* of the column */
    const char *test, *tls; /* of ucx_perftest; test NULL: a raw measurement */
    bool error_handling;
    bool (*raw)(const struct p2p_options *, uint64_t, double *, char *, size_t);
    bool shown_only; /* a column without a goal */
};

struct goal {
    uint64_t from_bytes, to_bytes;
    double ratio; /* bandwidth: at least; latency: at most */
    int peer;     /* index of the peer; -1: the fastest */
};

struct section {
    const char *name, *title, *transport;
    unsigned op, measure;
    enum p2p_memory memory;
    double guess_GBps; /* rate by which the number of messages of the peers is chosen: about row_ms */
    struct peer peers[PEERS_MAX];
    uint64_t sizes[SIZES_MAX];
    struct goal goals[4];
};

#define K(n) ((uint64_t)(n) << 10)
#define M(n) ((uint64_t)(n) << 20)

static const struct section sections[] = {
    {"shm-latency",
     "send, one way, shared memory",
     "shm",
     P2P_SEND,
     P2P_LATENCY,
     P2P_MEMORY_MAPPED,
     0.03,
     {{"ucx posix", "tag_lat", "posix,self"},
      {"ucx sysv", "tag_lat", "sysv,self"},
      {"ucx posix,cma", "tag_lat", "posix,cma,self"}},
     {8, 64, K(1), K(4)},
     {{8, 8, 1.25, -1}}},
    {"shm-send",
     "send, shared memory, memory from the library",
     "shm",
     P2P_SEND,
     P2P_BANDWIDTH,
     P2P_MEMORY_MAPPED,
     8,
     {{"ucx posix", "tag_bw", "posix,self"},
      {"ucx sysv", "tag_bw", "sysv,self"},
      {"ucx posix,cma", "tag_bw", "posix,cma,self"}},
     {K(4), K(64), M(1), M(4), M(64)},
     {{M(1), M(1), 1.2, -1}, {M(64), M(64), 1.0, -1}}},
    {"shm-put",
     "put, shared memory, mapped",
     "shm",
     P2P_PUT,
     P2P_BANDWIDTH,
     P2P_MEMORY_MAPPED,
     20,
     {{"ucx put", "ucp_put_bw", "posix,self"}, {.name = "memcpy", .raw = p2p_run_memcpy, .shown_only = true}},
     {8, K(4), K(64), M(1), M(4), M(64)},
     {{0, UINT64_MAX, 0.95, 0}}},
    {"cma",
     "send, shared memory, other memory",
     "shm",
     P2P_SEND,
     P2P_BANDWIDTH,
     P2P_MEMORY_PLAIN,
     8,
     {{.name = "vm_readv", .raw = p2p_run_vm_readv}, {"ucx posix,cma", "tag_bw", "posix,cma,self"}},
     {K(64), M(1), M(4), M(64)},
     {{0, UINT64_MAX, 0.90, 0}, {0, UINT64_MAX, 1.0, 1}}},
    {"tcp",
     "send, ucx over tcp loopback",
     "ucx:tcp",
     P2P_SEND,
     P2P_BANDWIDTH,
     P2P_MEMORY_PLAIN,
     3,
     {{"ucx tcp", "tag_bw", "tcp,self"}, {"ucx tcp -e", "tag_bw", "tcp,self", true}},
     {K(4), K(16), K(64), K(256), M(1), M(4), M(64)},
     {{K(4), UINT64_MAX, 0.95, -1}}},
};

struct cell {
    double ours[ROUNDS_MAX], peers[PEERS_MAX][ROUNDS_MAX], copies;
    uint32_t rounds, peer_count;
    uint64_t wrong;
    char path_text[96];
};

/* ---- one measurement of weft ---- */

struct ours {
    struct p2p_options options;
    int output;
};

static int measure_ours(void *context, struct p2p_bootstrap *bootstrap)
{
    struct ours *ours = context;
    struct p2p_link link;
    struct p2p_row row = {0};
    bool fine =
        p2p_link_open(&link, &ours->options, bootstrap) &&
        p2p_measure(&link, ours->options.ops, ours->options.measures, ours->options.sweep.first, &row);
    if (fine && bootstrap->rank == 0) fine = write(ours->output, &row, sizeof row) == sizeof row;
    p2p_link_close(&link);
    return fine ? 0 : 1;
}

static bool run_ours(const struct p2p_options *options, const struct section *section, uint64_t bytes,
                     struct p2p_row *row)
{
    int output[2];
    struct ours ours = {.options = *options};
    ours.options.ops = section->op;
    ours.options.measures = section->measure;
    ours.options.memory = section->memory;
    ours.options.sweep.first = ours.options.sweep.last = bytes;
    ours.options.processes = 2;
    if (!p2p_transport_parse(section->transport, &ours.options.transport) || pipe(output) != 0) return false;
    ours.output = output[1];
    bool fine = p2p_launch(&ours.options, measure_ours, &ours) == 0 &&
                read(output[0], row, sizeof *row) == sizeof *row;
    close(output[0]);
    close(output[1]);
    return fine;
}

static bool run_peer(const struct p2p_options *options, const struct section *section,
                     const struct peer *peer, uint64_t bytes, double *value_out)
{
    char error[160] = "";
    bool latency = section->measure == P2P_LATENCY, fine;
    double messages = 1e-3 * options->row_ms * section->guess_GBps * 1e9 / (double)bytes;
    if (latency) messages = options->row_ms * 300.0;
    struct p2p_peer_run run = {.test = peer->test,
                               .tls = peer->tls,
                               .error_handling = peer->error_handling,
                               .latency = latency,
                               .bytes = bytes,
                               .iters = messages > 5e6 ? 5000000
                                        : messages < 8 ? 8
                                                       : (uint64_t)messages};
    if (peer->raw) fine = peer->raw(options, bytes, value_out, error, sizeof error);
    else fine = p2p_run_ucx_perftest(options, &run, value_out, error, sizeof error);
    if (!fine) fprintf(stderr, "weft bench p2p: %s\n", error);
    return fine;
}

static bool measure_cell(const struct p2p_options *options, const struct section *section, uint64_t bytes,
                         struct cell *cell)
{
    for (uint32_t round = 0; round < options->rounds; round++) {
        struct p2p_row row;
        if (options->progress)
            fprintf(stderr, "\r\033[K%s %llu B, round %u of %u", section->name, (unsigned long long)bytes,
                    round + 1, options->rounds);
        if (!run_ours(options, section, bytes, &row)) return false;
        cell->ours[round] = section->measure == P2P_LATENCY ? row.t_typical : row.avg_GBps;
        cell->copies = row.copies;
        cell->wrong += row.wrong;
        memcpy(cell->path_text, row.path_text, sizeof cell->path_text);
        for (uint32_t i = 0; i < PEERS_MAX && section->peers[i].name; i++) {
            if (!run_peer(options, section, &section->peers[i], bytes, &cell->peers[i][round])) return false;
            cell->peer_count = i + 1;
        }
        cell->rounds = round + 1;
    }
    return true;
}

/* ---- output ---- */

static double median(const double *values, uint32_t count)
{
    double copy[ROUNDS_MAX];
    memcpy(copy, values, count * sizeof *values);
    return bench_summarise(copy, count).p50;
}

static int fastest(const struct section *section, const struct cell *cell)
{
    int best = -1;
    for (uint32_t i = 0; i < cell->peer_count; i++) {
        if (section->peers[i].shown_only) continue;
        double mine = median(cell->peers[i], cell->rounds),
               other = best < 0 ? 0 : median(cell->peers[best], cell->rounds);
        if (best < 0 || (section->measure == P2P_LATENCY ? mine < other : mine > other)) best = (int)i;
    }
    return best;
}

static struct bench_ratio ratio_to(const struct cell *cell, int peer)
{
    double scratch[ROUNDS_MAX];
    return bench_compare(cell->peers[peer], cell->ours, cell->rounds, scratch);
}

static bool is_goal_met(const struct section *section, const struct goal *goal, double ratio)
{
    return section->measure == P2P_LATENCY ? ratio <= goal->ratio : ratio >= goal->ratio;
}

/* "0.97 (0.95-1.02) goal 0.95" for each goal of this size, or the ratio alone. */
static void write_ratios(const struct section *section, const struct cell *cell, uint64_t bytes, char *ratios,
                         char *goals, size_t capacity)
{
    bool any = false;
    ratios[0] = goals[0] = 0;
    for (size_t i = 0; i < 4; i++) {
        const struct goal *goal = &section->goals[i];
        if (goal->ratio <= 0 || bytes < goal->from_bytes || bytes > goal->to_bytes) continue;
        struct bench_ratio ratio = ratio_to(cell, goal->peer < 0 ? fastest(section, cell) : goal->peer);
        size_t at = strlen(ratios), goal_at = strlen(goals);
        snprintf(ratios + at, capacity - at, "%s%.2f (%.2f-%.2f)", any ? ", " : "", ratio.median, ratio.low,
                 ratio.high);
        snprintf(goals + goal_at, capacity - goal_at, "%s%s %.2f %s", any ? ", " : "",
                 section->measure == P2P_LATENCY ? "<=" : ">=", goal->ratio,
                 is_goal_met(section, goal, ratio.median) ? "yes" : "NO");
        any = true;
    }
    if (any || cell->peer_count == 0) return;
    struct bench_ratio ratio = ratio_to(cell, fastest(section, cell));
    snprintf(ratios, capacity, "%.2f (%.2f-%.2f)", ratio.median, ratio.low, ratio.high);
}

static void print_json(const struct section *section, const struct cell *cell, uint64_t bytes)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:I, s:s}", "bench", "p2p-beside", "section", section->name,
        "unit", section->measure == P2P_LATENCY ? "us" : "GB/s", "bytes", (json_int_t)bytes, "rounds",
        (json_int_t)cell->rounds, "weft", median(cell->ours, cell->rounds), "copies", cell->copies, "wrong",
        (json_int_t)cell->wrong, "way", cell->path_text);
    for (uint32_t i = 0; i < cell->peer_count; i++) {
        struct bench_ratio ratio = ratio_to(cell, (int)i);
        json_object_set_new(object, section->peers[i].name,
                            json_pack("{s:f, s:f, s:f, s:f}", "value", median(cell->peers[i], cell->rounds),
                                      "ratio", ratio.median, "ratio_low", ratio.low, "ratio_high",
                                      ratio.high));
    }
    bench_row_print(stdout, object, 6);
}

static void add_row(struct bench_table *table, const struct section *section, const struct cell *cell,
                    uint64_t bytes)
{
    char size[24], ratios[BENCH_TABLE_CELL_MAX], goals[BENCH_TABLE_CELL_MAX];
    size_t column = 0;
    tool_size_format(bytes, size, sizeof size);
    bench_table_row(table);
    bench_table_cell(table, column++, "%s", size);
    bench_table_cell(table, column++, "%.3f", median(cell->ours, cell->rounds));
    for (uint32_t i = 0; i < cell->peer_count; i++)
        bench_table_cell(table, column++, "%.3f", median(cell->peers[i], cell->rounds));
    write_ratios(section, cell, bytes, ratios, goals, sizeof ratios);
    bench_table_cell(table, column++, "%s", ratios);
    bench_table_cell(table, column++, "%s", goals);
    bench_table_cell(table, column++, "%.2f", cell->copies);
    bench_table_cell(table, column++, "%llu", (unsigned long long)cell->wrong);
    bench_table_cell(table, column, "%s", cell->path_text);
}

static size_t columns_of(const struct section *section, struct bench_column *columns)
{
    const char *unit = section->measure == P2P_LATENCY ? "(us)" : "(GB/s)";
    size_t count = 0;
    columns[count++] = (struct bench_column){"bytes", "", false};
    columns[count++] = (struct bench_column){"weft", unit, false};
    for (uint32_t i = 0; i < PEERS_MAX && section->peers[i].name; i++)
        columns[count++] = (struct bench_column){section->peers[i].name, unit, false};
    columns[count++] = (struct bench_column){"weft/peer", "(middle half)", true};
    columns[count++] = (struct bench_column){"goal", "", true};
    columns[count++] = (struct bench_column){"copies", "(/msg)", false};
    columns[count++] = (struct bench_column){"#wrong", "", false};
    columns[count++] = (struct bench_column){"way", "", true};
    return count;
}

static bool run_section(const struct p2p_options *options, const struct section *section)
{
    struct bench_column columns[PEERS_MAX + 7];
    struct bench_table table;
    bool fine = true;
    bench_table_init(&table, columns, columns_of(section, columns));
    for (size_t i = 0; fine && i < SIZES_MAX && section->sizes[i]; i++) {
        struct cell *cell = calloc(1, sizeof *cell);
        fine = cell && measure_cell(options, section, section->sizes[i], cell);
        if (options->progress) fputs("\r\033[K", stderr);
        if (fine && options->json) print_json(section, cell, section->sizes[i]);
        else if (fine) add_row(&table, section, cell, section->sizes[i]);
        fine = fine && cell->wrong == 0;
        free(cell);
    }
    if (!options->json) {
        printf("# %s: %s; transport %s, %u rounds%s\n", section->name, section->title, section->transport,
               options->rounds, fine ? "" : "; NOT COMPLETE, see above");
        bench_table_print(&table, stdout, "#");
        putchar('\n');
        fflush(stdout);
    }
    bench_table_free(&table);
    return fine;
}

/* Whether `name` is in the comma-separated list; NULL lists every name. */
static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return true;
    }
    return !list;
}

int p2p_compare(const struct p2p_options *given)
{
    struct p2p_options options = *given;
    bool fine = true;
    uint32_t ran = 0;
    if (options.cpu_count == 0 && sysconf(_SC_NPROCESSORS_ONLN) >= 2) {
        options.cpu_count = 2;
        options.cpus[0] = 0;
        options.cpus[1] = 1;
    }
    if (!options.json) {
        printf("# weft bench p2p and ucx_perftest: wait %s, pinned to CPUs %u and %u, medians of %u rounds, "
               "interleaved\n",
               p2p_wait_name(options.wait), options.cpus[0],
               options.cpus[1 % (options.cpu_count ? options.cpu_count : 1)], options.rounds);
        printf("# ratios: latency, lower is better; bandwidth, higher is better; of the medians' fastest "
               "peer unless the goal names one\n\n");
    }
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
        if (!is_listed(options.sections, sections[i].name)) continue;
        ran++;
        fine = run_section(&options, &sections[i]) && fine;
    }
    if (ran == 0)
        fprintf(stderr,
                "weft bench p2p: --only %s: no such section; there are shm-latency, shm-send, shm-put,\n"
                "cma, tcp\n",
                options.sections);
    return ran == 0 ? 2 : bench_flush_output("p2p") && fine ? 0 : 1;
}
