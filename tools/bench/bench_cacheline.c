/* bench_cacheline.c - `weft bench cacheline`: memory that one core writes and another reads in turn, with and
 * without claiming the lines (weft_claim_lines; docs/decisions/0015-readers-take-lines.md). Two threads, each
 * bound to a processor. */
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/samples.h"
#include "tools/bench/lib/sweep.h"
#include "tools/bench/lib/table.h"
#include "tools/size.h"
#include "transport/transport.h"

enum variant { READ_PLAIN, READ_CLAIMED, WRITE_NONTEMPORAL, VARIANTS };
static const char *const variant_names[VARIANTS] = {"read", "taken", "past"};
enum { TURNS = 100, FIRST_TURNS = 20, ROUNDS_MAX = 1000, BYTES_MAX = 64 << 20, SPINS = 4096 };

/* Turn 2 n belongs to the writer, turn 2 n + 1 to the reader. Only the thread whose turn it is accesses the
 * other fields. */
struct cacheline {
    _Atomic uint32_t turn;
    size_t bytes;
    enum variant variant;
    uint8_t *shared, *from, *to;
    int processors[2];
    double us[2]; /* of the turns after FIRST_TURNS, microseconds; [0] writer, [1] reader */
};

static void wait_for_turn(struct cacheline *cacheline, uint32_t turn)
{
    for (uint32_t spins = 1; atomic_load_explicit(&cacheline->turn, memory_order_acquire) != turn; spins++)
        if (spins % SPINS == 0) sched_yield();
}

static void one_turn(struct cacheline *cacheline, bool reads, uint32_t n)
{
    wait_for_turn(cacheline, 2 * n + reads);
    double began_us = bench_now_us();
    if (reads) memcpy(cacheline->to, cacheline->shared, cacheline->bytes);
    else if (cacheline->variant == WRITE_NONTEMPORAL)
        weft_copy_nontemporal(cacheline->shared, cacheline->from, cacheline->bytes);
    else memcpy(cacheline->shared, cacheline->from, cacheline->bytes);
    if (reads && cacheline->variant == READ_CLAIMED) weft_claim_lines(cacheline->shared, cacheline->bytes);
    if (n >= FIRST_TURNS) cacheline->us[reads] += bench_now_us() - began_us;
    atomic_store_explicit(&cacheline->turn, 2 * n + reads + 1, memory_order_release);
}

static void bind_to(int processor)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    /* if the processor has been taken offline, the thread runs on any */
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static void *reader(void *context)
{
    struct cacheline *cacheline = context;
    bind_to(cacheline->processors[1]);
    for (uint32_t n = 0; n < FIRST_TURNS + TURNS; n++) one_turn(cacheline, true, n);
    return NULL;
}

/* 0, or the errno of creating the second thread. */
static int measure(struct cacheline *cacheline)
{
    pthread_t thread;
    atomic_store(&cacheline->turn, 0);
    cacheline->us[0] = cacheline->us[1] = 0;
    int reason = pthread_create(&thread, NULL, reader, cacheline);
    if (reason != 0) return reason;
    for (uint32_t n = 0; n < FIRST_TURNS + TURNS; n++) one_turn(cacheline, false, n);
    pthread_join(thread, NULL);
    return 0;
}

/* ---- output ---- */
static const struct bench_column columns[] = {
    {"size", "B", false},    {"reader", "", true},  {"write", "GB/s", false},
    {"read", "GB/s", false}, {"both", "us", false}, {"faster", "times", false},
};

static void print_row(struct bench_table *table, bool json, uint64_t bytes, enum variant variant,
                      double write_us, double read_us, double faster)
{
    double write = 1e-3 * (double)bytes / write_us, read = 1e-3 * (double)bytes / read_us;
    if (json) {
        bench_row_print(stdout,
                        json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f}", "op", "lines", "plan",
                                  variant_names[variant], "bytes", (json_int_t)bytes, "write_GBps", write,
                                  "read_GBps", read, "time_us", write_us + read_us, "faster", faster),
                        6);
        return;
    }
    bench_table_row(table);
    bench_table_cell(table, 0, "%llu", (unsigned long long)bytes);
    bench_table_cell(table, 1, "%s", variant_names[variant]);
    bench_table_cell(table, 2, "%.1f", write);
    bench_table_cell(table, 3, "%.1f", read);
    bench_table_cell(table, 4, "%.2f", write_us + read_us);
    bench_table_cell(table, 5, "%.2f", faster);
}

static double median(double *values, uint32_t count)
{
    return bench_summarise(values, count).p50;
}

static int measure_size(struct cacheline *cacheline, uint32_t rounds, bool json, struct bench_table *table)
{
    static double us[VARIANTS][2][ROUNDS_MAX], faster[VARIANTS][ROUNDS_MAX];
    for (uint32_t round = 0; round < rounds; round++)
        for (int i = 0; i < VARIANTS; i++) {
            cacheline->variant = (enum variant)i;
            int reason = measure(cacheline);
            if (reason != 0) return reason;
            for (int reads = 0; reads < 2; reads++) us[i][reads][round] = cacheline->us[reads] / TURNS;
            faster[i][round] =
                (us[READ_PLAIN][0][round] + us[READ_PLAIN][1][round]) / (us[i][0][round] + us[i][1][round]);
        }
    for (int i = 0; i < VARIANTS; i++)
        print_row(table, json, cacheline->bytes, (enum variant)i, median(us[i][0], rounds),
                  median(us[i][1], rounds), median(faster[i], rounds));
    return 0;
}

/* The first two processors that this thread may run on. */
static bool find_processors(int found[2])
{
    cpu_set_t allowed;
    int count = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    for (int i = 0; i < CPU_SETSIZE && count < 2; i++)
        if (CPU_ISSET(i, &allowed)) found[count++] = i;
    return count == 2;
}

static int run(uint64_t first, uint64_t last, uint32_t rounds, bool json)
{
    struct cacheline cacheline = {.bytes = last};
    struct bench_table table;
    int reason = 0;
    if (!find_processors(cacheline.processors)) {
        fprintf(stderr, "weft bench cacheline: one processor is all there is for this process: memory that "
                        "two cores share needs two\n");
        return 1;
    }
    const size_t capacity = (last / 4096 + 1) * 4096;
    uint8_t *memory = aligned_alloc(4096, 3 * capacity);
    if (!memory) {
        fprintf(stderr,
                "weft bench cacheline: no memory for three buffers of %llu bytes: use a smaller --maxbytes\n",
                (unsigned long long)last);
        return 1;
    }
    memset(memory, 1, 3 * capacity);
    cacheline.shared = memory, cacheline.from = memory + capacity, cacheline.to = cacheline.from + capacity;
    bench_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    if (!json)
        printf("processors %d and %d, %u rounds\n", cacheline.processors[0], cacheline.processors[1], rounds);
    bind_to(cacheline.processors[0]);
    for (uint64_t bytes = first; reason == 0 && bytes <= last; bytes *= 4) {
        cacheline.bytes = bytes;
        reason = measure_size(&cacheline, rounds, json, &table);
    }
    if (!json && reason == 0) bench_table_print(&table, stdout, "");
    bench_table_free(&table);
    free(memory);
    if (reason != 0) fprintf(stderr, "weft bench cacheline: no second thread: %s\n", strerror(reason));
    return bench_flush_output("cacheline") && reason == 0 ? 0 : 1;
}

int weft_bench_cacheline_main(int argc, char **argv)
{
    uint64_t first = 4096, last = 1 << 20;
    uint32_t rounds = 9;
    bool json = false;
    const struct cli_option table[] = {
        {"minbytes", 'b', "SIZE", "first size; each further size is four times the one before",
         CLI_SIZE(&first, 64, BYTES_MAX)},
        {"maxbytes", 'e', "SIZE", "last size", CLI_SIZE(&last, 64, BYTES_MAX)},
        {"rounds", 'r', "N", "measured rounds", CLI_U32(&rounds, 1, ROUNDS_MAX)},
        BENCH_JSON_OPTION(&json),
    };
    const struct cli_command command = {"weft bench cacheline", "weft bench cacheline [options]",
                                        "One thread copies into a buffer, a second thread on another core "
                                        "copies out of it, in turn. Variants:\n"
                                        "  read    the reader copies\n"
                                        "  taken   the reader copies and stores into each line what it "
                                        "holds, as the readers of the library do\n"
                                        "  past    the writer uses non-temporal stores, the reader copies\n",
                                        CLI_TABLE(table),
                                        .notes = "Columns: write and read are the speeds of the two copies, "
                                                 "both is their time together. faster is the time of\n"
                                                 "`read` over it, the median over the rounds. Where `taken` "
                                                 "is not faster than `read`, this processor hands\n"
                                                 "over shared lines as fast as exclusive ones.\n"};
    int status = cli_parse(&command, argc, argv, NULL);
    if (status >= 0) return status;
    if (first > last)
        return tool_usage_error(command.name, "the first size (-b) is larger than the last (-e)");
    return run(first, last, rounds, json);
}
