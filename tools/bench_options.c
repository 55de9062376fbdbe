/* bench_options.c - see bench_options.h. */
#include "tools/bench_options.h"
#include "tools/benchlib/usage.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_PLAN = 256, OPTION_TRANSPORT, OPTION_ITERS, OPTION_WARMUP, OPTION_JSON, OPTION_STEP, OPTION_PIECE, OPTION_EXPLAIN };

static const struct option long_options[] = {
    {"minbytes", required_argument, NULL, 'b'},
    {"maxbytes", required_argument, NULL, 'e'},
    {"stepfactor", required_argument, NULL, 'f'},
    {"stepbytes", required_argument, NULL, OPTION_STEP},
    {"processes", required_argument, NULL, 'n'},
    {"shards", required_argument, NULL, 's'},
    {"datatype", required_argument, NULL, 'd'},
    {"op", required_argument, NULL, 'o'},
    {"plan", required_argument, NULL, OPTION_PLAN},
    {"transport", required_argument, NULL, OPTION_TRANSPORT},
    {"iters", required_argument, NULL, OPTION_ITERS},
    {"warmup", required_argument, NULL, OPTION_WARMUP},
    {"json", no_argument, NULL, OPTION_JSON},
    {"explain", no_argument, NULL, OPTION_EXPLAIN},
    {"piece-us", required_argument, NULL, OPTION_PIECE},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

const char *bench_kind_name(enum bench_kind kind)
{
    return kind == BENCH_ALL_REDUCE ? "all_reduce" : kind == BENCH_PUSH_PULL ? "push_pull" : "waiting";
}

static void print_waiting_help(void)
{
    printf("usage: weft bench waiting [options]\n\n"
           "What waiting costs: CPU of an idle session, CPU of ranks that wait for a late one, and the throughput of ranks\n"
           "that compute pieces with an 8-byte all_reduce after each, against computing alone.\n\n"
           "  -n, --processes N     start a job of N workers on this host (without it: take part in the job of `weft run`)\n"
           "      --piece-us US     length of one computation (default 2000)\n"
           "      --iters N         computations of one timing (default 20)\n"
           "      --transport WAY   auto, shm, verbs, ucx, or lanes of UCX: tcp (default: as configured, auto)\n"
           "      --json            one JSON object per measure\n"
           "  -h, --help            this text\n\n"
           "More ranks than cores show what a waiting rank takes from one that computes: -n $((2 * $(nproc))).\n");
}

static void print_help(enum bench_kind kind)
{
    if (kind == BENCH_WAITING) {
        print_waiting_help();
        return;
    }
    bool push_pull = kind == BENCH_PUSH_PULL;
    printf("usage: weft bench %s [options]\n\n%s\n\n", bench_kind_name(kind),
           push_pull ? "One dense tensor goes to the shards and its mean comes back: time, bandwidth, wrong elements."
                     : "All ranks reduce one buffer, out of place and in place: time, bandwidth, wrong elements.");
    printf("  -n, --processes N     start a job of N workers on this host (without it: take part in the job of `weft run`)\n");
    if (push_pull) printf("  -s, --shards N        and N shards (default 1)\n");
    printf("  -b, --minbytes SIZE   first size: 8, 64K, 25M, 1G (default %s)\n", push_pull ? "64K" : "8");
    printf("  -e, --maxbytes SIZE   last size (default 16M)\n"
           "  -f, --stepfactor F    next size = size * F (default %s)\n"
           "      --stepbytes SIZE  next size = size + SIZE instead\n", push_pull ? "4" : "4");
    if (!push_pull) {
        printf("  -d, --datatype TYPE   f32, f16, bf16, i64 (default f32)\n"
               "  -o, --op OP           sum, avg (default sum)\n"
               "      --plan PLAN       auto, direct, ring, doubling, halving, double_tree (default auto)\n"
               "      --explain         before each row the plan and what the model of cost says of the others\n");
    }
    printf("      --transport WAY   auto, shm, verbs, ucx, or lanes of UCX: tcp (default: as configured, auto)\n"
           "      --iters N         timed operations of a size (default 20)\n"
           "      --warmup N        untimed ones before (default 5)\n"
           "      --json            one JSON object per row instead of the table\n"
           "  -h, --help            this text\n\n"
           "time: mean over the ranks of the mean of one operation, start to end of wait. algbw: size / time.\n");
    if (push_pull) {
        printf("busbw: algbw * max(1, workers / shards), what the busiest link carries in each direction.\n");
    } else {
        printf("busbw: algbw * 2 (n - 1) / n, what each rank must send at least.\n");
    }
    printf("#wrong counts elements, on all ranks, that differ from the sum that is known beforehand.\n");
}

static bool parse_u32(const char *name, const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (end == text || *end || errno || *text == '-' || value < min || value > max) {
        fprintf(stderr, "weft bench: %s %s: expected a whole number from %" PRIu32 " to %" PRIu32 "\n", name, text, min, max);
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

static bool parse_choice(const char *name, const char *text, const char *const *choices, const char *listed)
{
    for (; *choices; choices++) {
        if (strcmp(text, *choices) == 0) return true;
    }
    fprintf(stderr, "weft bench: %s %s: expected %s\n", name, text, listed);
    return false;
}

/* For this process and those it starts, the shards too: by the environment, as a user would. */
static bool use_transport(const char *text)
{
    static const char *const backends[] = {"auto", "shm", "verbs", "ucx"};
    bool backend = false;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) backend |= strcmp(text, backends[i]) == 0;
    if (setenv("WEFT_TRANSPORT_BACKEND", backend ? text : "ucx", 1) == 0 &&
        (backend || setenv("WEFT_TRANSPORT_LANES", text, 1) == 0))
        return true;
    fprintf(stderr, "weft bench: no memory for --transport\n");
    return false;
}

static bool set_option(struct bench_options *options, int found, const char *text)
{
    static const char *const types[] = {"f32", "f16", "bf16", "i64", NULL}, *const ops[] = {"sum", "avg", NULL};
    static const char *const plans[] = {"auto", "direct", "ring", "doubling", "halving", "double_tree", NULL};
    switch (found) {
    case 'b': return parse_size("-b", text, &options->sweep.first);
    case 'e': return parse_size("-e", text, &options->sweep.last);
    case 'f': return parse_factor(text, &options->sweep.factor);
    case OPTION_STEP: options->sweep.factor = 0; return parse_size("--stepbytes", text, &options->sweep.step);
    case 'n': return parse_u32("-n", text, 0, 256, &options->processes);
    case 's': return parse_u32("-s", text, 1, 256, &options->shards);
    case OPTION_ITERS: return parse_u32("--iters", text, 1, 1000000, &options->iters);
    case OPTION_WARMUP: return parse_u32("--warmup", text, 0, 1000000, &options->warmup);
    case OPTION_TRANSPORT: return use_transport(text);
    case OPTION_JSON: options->json = true; return true;
    case OPTION_EXPLAIN: options->explain = true; return true;
    case OPTION_PIECE: return parse_u32("--piece-us", text, 1, 10000000, &options->piece_us);
    case 'd':
        if (!parse_choice("-d", text, types, "f32, f16, bf16 or i64")) return false;
        options->dtype = strcmp(text, "f32") == 0 ? WEFT_F32 : strcmp(text, "f16") == 0 ? WEFT_F16
                         : strcmp(text, "bf16") == 0 ? WEFT_BF16 : WEFT_I64;
        return true;
    case 'o':
        if (!parse_choice("-o", text, ops, "sum or avg")) return false;
        options->op = strcmp(text, "avg") == 0 ? WEFT_AVG : WEFT_SUM;
        return true;
    default:
        options->plan = text;
        return parse_choice("--plan", text, plans, "auto, direct, ring, doubling, halving or double_tree");
    }
}

static int complain_foreign(int found, enum bench_kind kind)
{
    const struct option *option = long_options;
    while (option->name && option->val != found) option++;
    fprintf(stderr, "weft bench: --%s is not an option of %s; see `weft bench %s --help`\n", option->name ? option->name : "?",
            bench_kind_name(kind), bench_kind_name(kind));
    return 3;
}

int bench_options_parse(struct bench_options *options, enum bench_kind kind, int argc, char **argv)
{
    bool push_pull = kind == BENCH_PUSH_PULL;
    *options = (struct bench_options){.kind = kind, .dtype = WEFT_F32, .op = WEFT_SUM, .iters = 20, .warmup = 5, .plan = "auto", .piece_us = 2000,
                                      .sweep = {.first = push_pull ? 64 << 10 : 8, .last = 16 << 20, .factor = 4}};
    int found;
    opterr = 0;
    optind = 1;
    while ((found = getopt_long(argc, argv, push_pull ? ":b:e:f:n:s:h" : ":b:e:f:n:d:o:h", long_options, NULL)) != -1) {
        if (found == 'h') return print_help(kind), 1;
        if (found == '?' || found == ':') return bench_option_error(bench_kind_name(kind), argv, found) + 1;
        bool foreign = push_pull ? found == OPTION_EXPLAIN || found == 'd' || found == 'o' || found == OPTION_PLAN : found == 's';
        if (kind == BENCH_WAITING)
            foreign = found != 'n' && found != OPTION_ITERS && found != OPTION_TRANSPORT && found != OPTION_JSON && found != OPTION_PIECE;
        else foreign |= found == OPTION_PIECE;
        if (foreign) {
            return complain_foreign(found, kind);
        }
        if (!set_option(options, found, optarg)) return 3;
    }
    if (optind < argc) {
        fprintf(stderr, "weft bench: unexpected argument '%s'; see `weft bench %s --help`\n", argv[optind], bench_kind_name(kind));
        return 3;
    }
    options->sweep.unit = weft_dtype_bytes(options->dtype);
    if (options->sweep.first > options->sweep.last) {
        fprintf(stderr, "weft bench: the first size (-b) is larger than the last (-e)\n");
        return 3;
    }
    if (push_pull && options->shards == 0) options->shards = 1;
    return 0;
}
