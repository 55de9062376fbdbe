/* bench_options.c - see bench_options.h. */
#include "tools/bench/bench_options.h"
#include "tools/bench/lib/usage.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_PLAN = 256,
    OPTION_BIND,
    OPTION_TRANSPORT,
    OPTION_ITERS,
    OPTION_JSON,
    OPTION_PIECE,
    OPTION_EXPLAIN,
    OPTION_MEMORY,
    OPTION_PERCENTILES,
    OPTION_OVERLAP,
    OPTION_LIMIT,
    OPTION_PLOT,
    OPTION_LATE
};

/* Which benchmarks have an option. */
enum {
    OF_OPERATIONS = 1,
    OF_PUSH_PULL = 2,
    OF_WAITING = 4,
    OF_EXPOSED = 8,
    OF_CHECKS = 16,
    OF_ALL = 31,
    OF_MEASURES = OF_OPERATIONS | OF_PUSH_PULL
};

static const struct {
    struct option option;
    int of;
} known[] = {
    {{"minbytes", required_argument, NULL, 'b'}, OF_MEASURES | OF_CHECKS | OF_EXPOSED},
    {{"maxbytes", required_argument, NULL, 'e'}, OF_MEASURES | OF_CHECKS},
    {{"stepfactor", required_argument, NULL, 'f'}, OF_MEASURES | OF_CHECKS},
    {{"stepbytes", required_argument, NULL, 'i'}, OF_MEASURES | OF_CHECKS},
    {{"processes", required_argument, NULL, 'n'}, OF_ALL},
    {{"shards", required_argument, NULL, 's'}, OF_PUSH_PULL | OF_CHECKS},
    {{"datatype", required_argument, NULL, 'd'}, OF_OPERATIONS},
    {{"op", required_argument, NULL, 'o'}, OF_OPERATIONS},
    {{"root", required_argument, NULL, 'r'}, OF_OPERATIONS | OF_EXPOSED},
    {{"check", required_argument, NULL, 'c'}, OF_OPERATIONS},
    {{"together", required_argument, NULL, 'm'}, OF_OPERATIONS},
    {{"average", required_argument, NULL, 'a'}, OF_OPERATIONS},
    {{"cycles", required_argument, NULL, 'N'}, OF_OPERATIONS},
    {{"cpu", no_argument, NULL, 'C'}, OF_OPERATIONS},
    {{"memory", required_argument, NULL, OPTION_MEMORY}, OF_OPERATIONS},
    {{"plan", required_argument, NULL, OPTION_PLAN}, OF_OPERATIONS},
    {{"explain", no_argument, NULL, OPTION_EXPLAIN}, OF_OPERATIONS},
    {{"percentiles", no_argument, NULL, OPTION_PERCENTILES}, OF_OPERATIONS},
    {{"overlap", no_argument, NULL, OPTION_OVERLAP}, OF_OPERATIONS},
    {{"limit", no_argument, NULL, OPTION_LIMIT}, OF_OPERATIONS},
    {{"plot", required_argument, NULL, OPTION_PLOT}, OF_OPERATIONS},
    {{"bind", required_argument, NULL, OPTION_BIND}, OF_ALL},
    {{"transport", required_argument, NULL, OPTION_TRANSPORT}, OF_ALL},
    {{"iters", required_argument, NULL, OPTION_ITERS}, OF_ALL},
    {{"warmup", required_argument, NULL, 'w'}, OF_MEASURES},
    {{"json", no_argument, NULL, OPTION_JSON}, OF_ALL},
    {{"piece-us", required_argument, NULL, OPTION_PIECE}, OF_WAITING | OF_EXPOSED},
    {{"late-us", required_argument, NULL, OPTION_LATE}, OF_EXPOSED},
    {{"help", no_argument, NULL, 'h'}, OF_ALL},
};
enum { KNOWN_COUNT = sizeof known / sizeof known[0] };
static const char letters[] = ":b:e:f:i:n:s:d:o:r:c:m:a:N:w:Ch";

const char *bench_name(const struct bench_options *options)
{
    static const char *const names[] = {[BENCH_PUSH_PULL] = "push_pull",
                                        [BENCH_WAITING] = "waiting",
                                        [BENCH_EXPOSED] = "exposed",
                                        [BENCH_CHECKS] = "checks"};
    return options->kind == BENCH_OPERATION ? options->operation->name : names[options->kind];
}

static bool parse_u32(const char *name, const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (end == text || *end || errno || *text == '-' || value < min || value > max) {
        fprintf(stderr, "weft bench: %s %s: expected a whole number from %" PRIu32 " to %" PRIu32 "\n", name,
                text, min, max);
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static bool parse_size(const char *name, const char *text, uint64_t *out)
{
    if (bench_size_parse(text, out) && *out > 0) return true;
    fprintf(stderr, "weft bench: %s %s: expected a size such as 8, 64K, 25M or 1G\n", name, text);
    return false;
}

static bool parse_factor(const char *text, double *out)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 1) || value > 1e6) {
        fprintf(stderr, "weft bench: -f %s: expected a number above 1\n", text);
        return false;
    }
    *out = value;
    return true;
}

/* The position of `text` among the choices; -1: said what there is. */
static int parse_choice(const char *name, const char *text, const char *const *choices, const char *listed)
{
    for (int i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0) return i;
    }
    fprintf(stderr, "weft bench: %s %s: expected %s\n", name, text, listed);
    return -1;
}

bool bench_use_transport(const char *text)
{
    static const char *const backends[] = {"auto", "shm", "verbs", "ucx", "tcp"};
    bool backend = false;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        backend |= strcmp(text, backends[i]) == 0;
    if (setenv("WEFT_TRANSPORT_BACKEND", backend ? text : "ucx", 1) == 0 &&
        (backend || setenv("WEFT_TRANSPORT_LANES", text, 1) == 0))
        return true;
    fprintf(stderr, "weft bench: no memory for --transport\n");
    return false;
}

static bool set_types(struct bench_options *options, const char *text)
{
    static const enum weft_dtype all[] = {WEFT_F32, WEFT_F64, WEFT_F16, WEFT_BF16, WEFT_F8_E4M3, WEFT_F8_E5M2,
                                          WEFT_I8,  WEFT_U8,  WEFT_I32, WEFT_U32,  WEFT_I64,     WEFT_U64};
    static const char *const others[][2] = {
        {"float", "f32"}, {"double", "f64"}, {"half", "f16"},   {"bfloat16", "bf16"}, {"int8", "i8"},
        {"uint8", "u8"},  {"int32", "i32"},  {"uint32", "u32"}, {"int64", "i64"},     {"uint64", "u64"}};
    options->dtype_count = 0;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(text, others[i][0]) == 0) text = others[i][1]; /* as nccl-tests calls it */
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(text, "all") == 0 || strcmp(text, weft_dtype_name(all[i])) == 0)
            options->dtypes[options->dtype_count++] = all[i];
    }
    if (options->dtype_count > 0) return true;
    fprintf(stderr,
            "weft bench: -d %s: expected f32, f64, f16, bf16, %s, %s, i8, u8, i32, u32, i64, u64 or all\n",
            text, weft_dtype_name(WEFT_F8_E4M3), weft_dtype_name(WEFT_F8_E5M2));
    return false;
}

static bool set_ops(struct bench_options *options, const char *text)
{
    static const char *const names[] = {"sum", "avg", "prod",   "min", "max", "and",
                                        "or",  "xor", "mulsum", "all", NULL};
    static const enum weft_op ops[] = {WEFT_SUM, WEFT_AVG, WEFT_PROD, WEFT_MIN,       WEFT_MAX,
                                       WEFT_AND, WEFT_OR,  WEFT_XOR,  WEFT_SCALED_SUM};
    enum { COUNT = sizeof ops / sizeof ops[0] };
    bool scales = options->operation->kind == BENCH_DO_ALL_REDUCE;
    int found = parse_choice("-o", text, names, "sum, avg, prod, min, max, and, or, xor, mulsum or all");
    options->op_count = 0;
    if (found == COUNT - 1 && !scales) {
        fprintf(stderr, "weft bench: -o mulsum: only all_reduce scales what it sums\n");
        return false;
    }
    for (int i = 0; i < COUNT; i++) {
        if (found == i || (found == COUNT && (i < COUNT - 1 || scales)))
            options->ops[options->op_count++] = ops[i];
    }
    return found >= 0;
}

static bool set_root(struct bench_options *options, const char *text)
{
    options->all_roots = strcmp(text, "all") == 0;
    return options->all_roots || parse_u32("-r", text, 0, 65535, &options->root);
}

static bool set_plan(struct bench_options *options, const char *text)
{
    static const char *const plans[] = {"auto",  "direct", "ring",  "doubling", "halving",   "double_tree",
                                        "bruck", "pat",    "chain", "binomial", "hierarchy", NULL};
    options->plan = text;
    return parse_choice("--plan", text, plans,
                        "auto, direct, ring, doubling, halving, double_tree, bruck, pat, chain, binomial or "
                        "hierarchy") >= 0;
}

static bool set_memory(struct bench_options *options, const char *text)
{
    static const char *const kinds[] = {"mapped", "plain", NULL};
    int found = parse_choice("--memory", text, kinds, "mapped or plain");
    options->uses_malloc = found == 1;
    return found >= 0;
}

static bool set_bind(struct bench_options *options, const char *text)
{
    static const char *const kinds[] = {"none", "core", "auto", NULL};
    options->bind = text;
    return parse_choice("--bind", text, kinds, "none, core or auto") >= 0;
}

static bool set_average(struct bench_options *options, const char *text)
{
    uint32_t how = 0;
    bool fine = parse_u32("-a", text, 0, 3, &how);
    options->average = (enum bench_average)how;
    return fine;
}

static bool set_option(struct bench_options *options, int found, const char *text)
{
    switch (found) {
    case 'b': return parse_size("-b", text, &options->sweep.first);
    case 'e': return parse_size("-e", text, &options->sweep.last);
    case 'f': return parse_factor(text, &options->sweep.factor);
    case 'i': options->sweep.factor = 0; return parse_size("-i", text, &options->sweep.step);
    case 'n': return parse_u32("-n", text, 0, 256, &options->processes);
    case 's': return parse_u32("-s", text, 1, 256, &options->shards);
    case 'd': return set_types(options, text);
    case 'o': return set_ops(options, text);
    case 'r': return set_root(options, text);
    case 'c': return parse_u32("-c", text, 0, 1000, &options->checks);
    case 'm': return parse_u32("-m", text, 1, 256, &options->inflight);
    case 'a': return set_average(options, text);
    case 'N': return parse_u32("-N", text, 1, 1000000, &options->cycles);
    case 'C': options->cpu = true; return true;
    case 'w': return parse_u32("-w", text, 0, 1000000, &options->warmup);
    case OPTION_ITERS: return parse_u32("--iters", text, 1, 1000000, &options->iters);
    case OPTION_BIND: return set_bind(options, text);
    case OPTION_TRANSPORT: return bench_use_transport(text);
    case OPTION_JSON: options->json = true; return true;
    case OPTION_EXPLAIN: options->explain = true; return true;
    case OPTION_PERCENTILES: options->percentiles = true; return true;
    case OPTION_OVERLAP: options->overlap = true; return true;
    case OPTION_LIMIT: options->limit = true; return true;
    case OPTION_PLOT: options->plot = text; return true;
    case OPTION_PIECE: return parse_u32("--piece-us", text, 1, 10000000, &options->compute_us);
    case OPTION_LATE: return parse_u32("--late-us", text, 1, 10000000, &options->straggler_us);
    case OPTION_MEMORY: return set_memory(options, text);
    default: return set_plan(options, text);
    }
}

/* An option of other benchmarks than this one? Then that is said. */
static bool foreign(const struct bench_options *options, int found)
{
    static const int kinds[] = {[BENCH_OPERATION] = OF_OPERATIONS,
                                [BENCH_PUSH_PULL] = OF_PUSH_PULL,
                                [BENCH_WAITING] = OF_WAITING,
                                [BENCH_EXPOSED] = OF_EXPOSED,
                                [BENCH_CHECKS] = OF_CHECKS};
    const int kind = kinds[options->kind];
    size_t i = 0;
    while (i < KNOWN_COUNT - 1 && known[i].option.val != found) i++;
    bool none = !(known[i].of & kind);
    if (kind == OF_OPERATIONS) {
        const struct bench_operation *operation = options->operation;
        none |= (found == 'o' && !operation->reduces) || (found == 'r' && !operation->rooted) ||
                ((found == OPTION_PLAN || found == OPTION_EXPLAIN) && !operation->plans_of);
    }
    if (none)
        fprintf(stderr, "weft bench: --%s is not an option of %s; see `weft bench %s --help`\n",
                known[i].option.name, bench_name(options), bench_name(options));
    return none;
}

static bool consistent(struct bench_options *options)
{
    if (options->sweep.first > options->sweep.last) {
        fprintf(stderr, "weft bench: the first size (-b) is larger than the last (-e)\n");
        return false;
    }
    if (options->processes > 0 && options->root >= options->processes) {
        fprintf(stderr, "weft bench: there is no rank %" PRIu32 " (-r) among %" PRIu32 "\n", options->root,
                options->processes);
        return false;
    }
    if (options->overlap && options->inflight > 1) {
        fprintf(stderr, "weft bench: --overlap is of one operation, not of several together (-m)\n");
        return false;
    }
    if (options->limit && (options->operation->kind != BENCH_DO_ALL_REDUCE || options->inflight > 1)) {
        fprintf(stderr, "weft bench: --limit is of one all_reduce, not of %s\n",
                options->inflight > 1 ? "several together (-m)" : bench_name(options));
        return false;
    }
    bool barrier = options->kind == BENCH_OPERATION && options->operation->kind == BENCH_DO_BARRIER;
    if (barrier) options->sweep.last = options->sweep.first; /* one row */
    options->sweep.unit = weft_dtype_bytes(options->dtypes[0]);
    if (options->kind == BENCH_PUSH_PULL && options->shards == 0) options->shards = 1;
    return true;
}

int bench_options_parse(struct bench_options *options, enum bench_kind kind,
                        const struct bench_operation *operation, int argc, char **argv)
{
    struct option table[KNOWN_COUNT + 1] = {{NULL, 0, NULL, 0}};
    for (size_t i = 0; i < KNOWN_COUNT; i++) table[i] = known[i].option;
    *options =
        (struct bench_options){.kind = kind,
                               .operation = operation,
                               .dtypes = {WEFT_F32},
                               .dtype_count = 1,
                               .op_count = 1,
                               .iters = 20,
                               .warmup = 5,
                               .checks = 1,
                               .cycles = 1,
                               .inflight = 1,
                               .average = BENCH_AVERAGE_MEAN,
                               .plan = "auto",
                               /* shards and computations have threads to spare */
                               .bind = kind == BENCH_OPERATION ? "auto" : "none",
                               .compute_us = kind == BENCH_EXPOSED ? 5000 : 2000,
                               .straggler_us = 20000,
                               .sweep = {.first = kind == BENCH_PUSH_PULL                         ? 64 << 10
                                                  : kind == BENCH_EXPOSED || kind == BENCH_CHECKS ? 1 << 20
                                                                                                  : 8,
                                         .last = kind == BENCH_EXPOSED ? UINT64_MAX : 16 << 20,
                                         .factor = 4}};
    if (operation && operation->reduces) options->ops[0] = WEFT_SUM;
    if (kind == BENCH_PUSH_PULL) options->ops[0] = WEFT_AVG;
    int found;
    opterr = 0;
    optind = 1;
    while ((found = getopt_long(argc, argv, letters, table, NULL)) != -1) {
        if (found == 'h') return bench_help(options), 1;
        if (found == '?' || found == ':') return bench_option_error(bench_name(options), argv, found) + 1;
        if (foreign(options, found) || !set_option(options, found, optarg)) return 3;
    }
    if (optind < argc) {
        fprintf(stderr, "weft bench: unexpected argument '%s'; see `weft bench %s --help`\n", argv[optind],
                bench_name(options));
        return 3;
    }
    return consistent(options) ? 0 : 3;
}
