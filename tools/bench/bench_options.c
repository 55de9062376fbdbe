/* bench_options.c - see bench_options.h. One table has the options of all benchmarks in a job, each with the
 * kinds of benchmarks that have it. */
#include "tools/bench/bench_options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench_cli.h"

/* Kinds of benchmarks; an option has a mask of them. */
enum {
    OF_OPERATIONS = 1,
    OF_PUSH_PULL = 2,
    OF_WAITING = 4,
    OF_EXPOSED = 8,
    OF_CHECKS = 16,
    OF_REDUCING = 32, /* operations that reduce */
    OF_ROOTED = 64,   /* operations with a root */
    OF_PLANNED = 128, /* operations with plans */
    OF_MEASURES = OF_OPERATIONS | OF_PUSH_PULL,
    OF_SWEEPS = OF_MEASURES | OF_CHECKS,
    OF_ALL = OF_SWEEPS | OF_WAITING | OF_EXPOSED,
};

const char *bench_name(const struct bench_options *options)
{
    static const char *const names[] = {[BENCH_PUSH_PULL] = "push_pull",
                                        [BENCH_WAITING] = "waiting",
                                        [BENCH_EXPOSED] = "exposed",
                                        [BENCH_CHECKS] = "checks"};
    return options->kind == BENCH_OPERATION ? options->operation->name : names[options->kind];
}

int bench_set_transport(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    static const char *const backends[] = {"auto", "shm", "verbs", "ucx", "tcp"};
    bool backend = false;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        backend |= strcmp(text, backends[i]) == 0;
    if (setenv("WEFT_TRANSPORT_BACKEND", backend ? text : "ucx", 1) == 0 &&
        (backend || setenv("WEFT_TRANSPORT_LANES", text, 1) == 0))
        return -1;
    fprintf(stderr, "%s: no memory for --transport\n", command->name);
    return 1;
}

static int set_types(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    static const enum weft_dtype all[] = {WEFT_F32, WEFT_F64, WEFT_F16, WEFT_BF16, WEFT_F8_E4M3, WEFT_F8_E5M2,
                                          WEFT_I8,  WEFT_U8,  WEFT_I32, WEFT_U32,  WEFT_I64,     WEFT_U64};
    static const char *const others[][2] = {
        {"float", "f32"}, {"double", "f64"}, {"half", "f16"},   {"bfloat16", "bf16"}, {"int8", "i8"},
        {"uint8", "u8"},  {"int32", "i32"},  {"uint32", "u32"}, {"int64", "i64"},     {"uint64", "u64"}};
    struct bench_options *options = option->value;
    char expected[160];
    const char *name = text;
    options->types.dtype_count = 0;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(text, others[i][0]) == 0) name = others[i][1]; /* nccl-tests has these names */
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(name, "all") == 0 || strcmp(name, weft_dtype_name(all[i])) == 0)
            options->types.dtypes[options->types.dtype_count++] = all[i];
    }
    if (options->types.dtype_count > 0) return -1;
    snprintf(expected, sizeof expected, "f32, f64, f16, bf16, %s, %s, i8, u8, i32, u32, i64, u64 or all",
             weft_dtype_name(WEFT_F8_E4M3), weft_dtype_name(WEFT_F8_E5M2));
    return cli_value_error(command, "--datatype", text, expected);
}

static int set_ops(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    static const char *const names[] = {"sum", "avg", "prod", "min",    "max",
                                        "and", "or",  "xor",  "mulsum", "all"};
    static const enum weft_op ops[] = {WEFT_SUM, WEFT_AVG, WEFT_PROD, WEFT_MIN,       WEFT_MAX,
                                       WEFT_AND, WEFT_OR,  WEFT_XOR,  WEFT_SCALED_SUM};
    enum { COUNT = sizeof ops / sizeof ops[0], ALL = COUNT };
    struct bench_options *options = option->value;
    const bool scales = options->operation->kind == BENCH_DO_ALL_REDUCE;
    int found = 0;
    while (found <= ALL && strcmp(text, names[found]) != 0) found++;
    if (found > ALL)
        return cli_value_error(command, "--op", text,
                               "sum, avg, prod, min, max, and, or, xor, mulsum or all");
    if (ops[found % COUNT] == WEFT_SCALED_SUM && !scales)
        return tool_usage_error(command->name, "--op mulsum: only all_reduce has scaled sums");
    options->types.op_count = 0;
    for (int i = 0; i < COUNT; i++) {
        if (found == i || (found == ALL && (ops[i] != WEFT_SCALED_SUM || scales)))
            options->types.ops[options->types.op_count++] = ops[i];
    }
    return -1;
}

static int set_root(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct bench_options *options = option->value;
    char *end;
    unsigned long rank = strtoul(text, &end, 10);
    options->all_roots = strcmp(text, "all") == 0 && options->kind == BENCH_OPERATION;
    if (options->all_roots) return -1;
    if (text[0] < '0' || text[0] > '9' || *end || rank > 65535)
        return cli_value_error(command, "--root", text, "a whole number from 0 to 65535, or all");
    options->root = (uint32_t)rank;
    return -1;
}

static int set_copies(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    static const char *const lists[] = {"0", "1", "0,1"};
    struct bench_options *options = option->value;
    for (uint32_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (strcmp(text, lists[i]) == 0) options->copies = i + 1;
    return options->copies > 0 ? -1 : cli_value_error(command, "--copies", text, "0, 1 or 0,1");
}

static int set_step(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct bench_sweep *sweep = option->value;
    if (!tool_size_parse(text, &sweep->step) || sweep->step == 0)
        return cli_value_error(command, "--stepbytes", text, "a size of at least 1, such as 64K");
    sweep->factor = 0;
    return -1;
}

static const char *bus_formula(const struct bench_operation *operation)
{
    if (operation->kind == BENCH_DO_ALL_REDUCE)
        return "algbw * 2 (n - 1) / n, the least that each rank sends.";
    return operation->pieces ? "algbw * (n - 1) / n: a rank keeps its own piece." : "algbw.";
}

static const char push_pull_about[] =
    "One dense tensor is pushed to the shards and its mean is pulled: time, bandwidth, wrong elements.\n";
static const char push_pull_notes[] =
    "time: mean over the ranks of the mean of one operation, from start to the end of wait.\n"
    "algbw: size / time. busbw: algbw * max(1, workers / shards), what the busiest link carries in each\n"
    "direction.\n"
    "#wrong: elements, on all ranks, that differ from the sum that is known beforehand.\n";
static const char copies_notes[] =
    "--copies: time and bytes of a step without and with copies. extra: what the copies add, as a part of\n"
    "the contributions of all workers; one sum is 1/workers. --json: shard_bytes_per_step,\n"
    "extra_bytes_share.\n";
static const char waiting_about[] =
    "Cost of waiting: CPU of an idle session, CPU of ranks that wait for a late one, and the throughput\n"
    "of ranks that compute with an 8-byte all_reduce after each computation, against computing alone.\n";
static const char waiting_notes[] =
    "With more ranks than cores, the rows show what a waiting rank takes from a computing one:\n"
    "-n $((2 * $(nproc))).\n";
static const char exposed_about[] =
    "Time for which a training step waits. Each step computes for --piece-us. Rows: alone (no\n"
    "communication), equal (an all_reduce after the computation), slow (the same, and one rank computes\n"
    "--late-us longer).\n";
static const char exposed_notes[] =
    "Microseconds of one step, means over its ranks. exposed-peers: waiting for a rank that had not begun\n"
    "the operation. exposed-net: the rest of the wait. step-alone: the step of the row alone, for\n"
    "comparison.\n";
static const char checks_about[] =
    "Cost of the checks of a step, each in turn with the step without it. Each step all-reduces one\n"
    "tensor.\n";
static const char checks_notes[] =
    "warning: a tensor whose gradients are checked for the warning, against one without checks.\n"
    "nonfinite: a tensor with skip_nonfinite, against one without checks.\n"
    "copies: a tensor with adam while another tensor may skip the step, against the same alone.\n"
    "weights: a step that compares the weights of all ranks; a job does so every client.hash_every steps\n"
    "(default 50).\n"
    "pushed: the step, against the same without its step_end, in which ranks compare what they pushed.\n";
static const char operation_notes[] =
    "-n differs from nccl-tests: it is the number of processes, and --iters that of iterations.\n"
    "time: from start to the end of wait. algbw: size / time. busbw: %s\n"
    "#wrong: elements, on all ranks, that differ from the result that is known beforehand.\n"
    "overlap: 100 (1 - (overall - compute) / time), not below 0.\n"
    "memory: the largest Pss of a rank after any row.\n";

/* The texts of one benchmark; those of an operation are made of its description. */
struct texts {
    char usage[80], about[512], notes[1024];
};

static void write_texts(const struct bench_options *options, struct texts *texts)
{
    static const char *const abouts[] = {[BENCH_PUSH_PULL] = push_pull_about,
                                         [BENCH_WAITING] = waiting_about,
                                         [BENCH_EXPOSED] = exposed_about,
                                         [BENCH_CHECKS] = checks_about};
    static const char *const notes[] = {[BENCH_PUSH_PULL] = push_pull_notes,
                                        [BENCH_WAITING] = waiting_notes,
                                        [BENCH_EXPOSED] = exposed_notes,
                                        [BENCH_CHECKS] = checks_notes};
    const struct bench_operation *operation = options->operation;
    snprintf(texts->usage, sizeof texts->usage, "weft bench %s [options]", bench_name(options));
    if (options->kind != BENCH_OPERATION) {
        snprintf(texts->about, sizeof texts->about, "%s", abouts[options->kind]);
        snprintf(texts->notes, sizeof texts->notes, "%s%s", notes[options->kind],
                 options->kind == BENCH_PUSH_PULL ? copies_notes : "");
        return;
    }
    snprintf(texts->about, sizeof texts->about, "Time and bandwidth: %s.\nEvery result is checked.%s\n",
             operation->about,
             operation->pieces ? " Sizes are those of the pieces of all ranks together." : "");
    snprintf(texts->notes, sizeof texts->notes, operation_notes, bus_formula(operation));
}

/* -1: continue; otherwise the exit status. */
static int parse(struct bench_options *options, int argc, char **argv)
{
    static const char *const plans[] = {"auto",  "direct", "ring",  "doubling", "halving",   "double_tree",
                                        "bruck", "pat",    "chain", "binomial", "hierarchy", NULL};
    static const char *const memories[] = {"mapped", "plain", NULL};
    static const char *const binds[] = {"none", "core", "auto", NULL};
    const struct bench_operation *operation = options->operation;
    const char *op_help =
        operation && operation->kind == BENCH_DO_ALL_REDUCE
            ? "sum, avg, prod, min, max; of integers and, or, xor; mulsum: each rank's input times a "
              "factor of its own; all"
            : "sum, avg, prod, min, max; of integers and, or, xor; all";
    uint32_t average = options->average, memory = 0;
    const struct {
        int of;
        struct cli_option option;
    } lines[] = {
        {OF_ALL,
         {"processes", 'n', "N", "processes to start on this host as one job",
          "0: take part in the job of weft run, mpirun, srun or torchrun",
          CLI_U32(&options->processes, 0, 256)}},
        {OF_PUSH_PULL | OF_CHECKS,
         {"shards", 's', "N", "parameter-server shards",
          options->kind == BENCH_CHECKS ? "0: all-reduce mode" : "1", CLI_U32(&options->shards, 1, 256)}},
        {OF_PUSH_PULL,
         {"copies", 0, "LIST",
          "with -n, copies of each chunk: 0, 1 or 0,1, a job for each; rows have the bytes that the shards "
          "receive in a step",
          "as configured", CLI_CALL(set_copies, options)}},
        {OF_SWEEPS | OF_EXPOSED,
         {"minbytes", 'b', "SIZE", "first size: 8, 64K, 25M, 1G",
          CLI_SIZE(&options->sweep.first, 1, TOOL_SIZE_MAX)}},
        {OF_SWEEPS, {"maxbytes", 'e', "SIZE", "last size", CLI_SIZE(&options->sweep.last, 1, TOOL_SIZE_MAX)}},
        {OF_SWEEPS,
         {"stepfactor", 'f', "F", "ratio of a size to the one before",
          CLI_REAL(&options->sweep.factor, 1.001, 1e6)}},
        {OF_SWEEPS,
         {"stepbytes", 'i', "SIZE", "difference of a size to the one before, instead of a ratio", "",
          CLI_CALL(set_step, &options->sweep)}},
        {OF_OPERATIONS | OF_PUSH_PULL,
         {"datatype", 'd', "TYPE",
          options->kind == BENCH_PUSH_PULL
              ? "f32, f16 or bf16, of gradients and results"
              : "f32, f64, f16, bf16, e4m3, e5m2, i8, u8, i32, u32, i64, u64 or all",
          "f32", CLI_CALL(set_types, options)}},
        {OF_REDUCING, {"op", 'o', "OP", op_help, "sum", CLI_CALL(set_ops, options)}},
        {OF_ROOTED | OF_EXPOSED,
         {"root", 'r', "RANK",
          options->kind == BENCH_EXPOSED ? "the slow rank" : "root of the operation, or all", "0",
          CLI_CALL(set_root, options)}},
        {OF_WAITING | OF_EXPOSED,
         {"piece-us", 0, "US", "length of one computation, microseconds",
          CLI_U32(&options->compute_us, 1, 10000000)}},
        {OF_EXPOSED,
         {"late-us", 0, "US", "additional computation of the slow rank, microseconds",
          CLI_U32(&options->straggler_us, 1, 10000000)}},
        {OF_ALL,
         {"iters", 0, "N",
          options->kind == BENCH_WAITING   ? "computations of one timing"
          : options->kind == BENCH_EXPOSED ? "steps of a row"
          : options->kind == BENCH_CHECKS  ? "steps of a measurement, of which there are 5"
                                           : "timed operations of a size",
          CLI_U32(&options->iters, 1, 1000000)}},
        {OF_MEASURES,
         {"warmup", 'w', "N", "operations before the timed ones", CLI_U32(&options->warmup, 0, 1000000)}},
        {OF_OPERATIONS,
         {"check", 'c', "N", "operations of a size whose results are checked; 0: none",
          CLI_U32(&options->checks, 0, 1000)}},
        {OF_OPERATIONS,
         {"together", 'm', "N", "operations in flight at once; time is that of one of them",
          CLI_U32(&options->inflight, 1, 256)}},
        {OF_OPERATIONS,
         {"blocking", 'z', "0|1",
          "1: a barrier between two operations, in CPU but not in time; 0: a rank may be ahead of others",
          CLI_U32(&options->blocking, 0, 1)}},
        {OF_MEASURES,
         {"average", 'a', "HOW",
          "time is that of 0: rank 0; 1: the mean of the ranks; 2: the fastest; 3: the slowest rank",
          CLI_U32(&average, 0, 3)}},
        {OF_OPERATIONS,
         {"cycles", 'N', "N", "repetitions of the whole sweep", CLI_U32(&options->cycles, 1, 1000000)}},
        {OF_OPERATIONS,
         {"memory", 0, "KIND", "mapped: from weft_alloc; plain: from malloc", CLI_CHOICE(&memory, memories)}},
        {OF_ALL,
         {"bind", 0, "HOW",
          "with -n, processors of the processes. core: one core each, as with mpirun -n 2; auto: an equal "
          "share of the "
          "cores, or none with fewer cores than processes; none: any",
          CLI_NAME(&options->bind, binds)}},
        {OF_ALL, BENCH_TRANSPORT_OPTION},
        {OF_PLANNED,
         {"plan", 0, "PLAN",
          "plan of the operation: auto, direct, ring, doubling, halving, double_tree, bruck, pat, chain, "
          "binomial or "
          "hierarchy, as far as the operation has it",
          CLI_NAME(&options->plan, plans)}},
        {OF_PLANNED,
         {"explain", 0, NULL, "before each row, the plan and the modelled times of the others",
          CLI_FLAG(&options->report.explain)}},
        {OF_OPERATIONS,
         {"percentiles", 0, NULL,
          "columns with min, p50, p95, p99 and max of one operation, of the mean of the ranks",
          CLI_FLAG(&options->report.percentiles)}},
        {OF_OPERATIONS,
         {"overlap", 0, NULL,
          "columns of start, computation as long as the operation, and wait: the hidden part",
          CLI_FLAG(&options->report.overlap)}},
        {OF_OPERATIONS,
         {"limit", 0, NULL,
          "of all_reduce, the time in which all ranks at once load and store as many bytes each: the least "
          "time on one "
          "host",
          CLI_FLAG(&options->report.limit)}},
        {OF_OPERATIONS,
         {"cpu", 'C', NULL, "processor time of one operation, all threads of all ranks",
          CLI_FLAG(&options->report.cpu)}},
        {OF_ALL, BENCH_JSON_OPTION(&options->report.json)},
        {OF_OPERATIONS,
         {"plot", 0, "FILE", "busbw over size as an SVG, or as a PNG (by rsvg-convert) for the ending .png",
          "", CLI_TEXT(&options->plot)}},
    };
    enum { COUNT = sizeof lines / sizeof lines[0] };
    static const int kinds[] = {[BENCH_OPERATION] = OF_OPERATIONS,
                                [BENCH_PUSH_PULL] = OF_PUSH_PULL,
                                [BENCH_WAITING] = OF_WAITING,
                                [BENCH_EXPOSED] = OF_EXPOSED,
                                [BENCH_CHECKS] = OF_CHECKS};
    int of = kinds[options->kind];
    if (operation)
        of |= (operation->reduces ? OF_REDUCING : 0) | (operation->rooted ? OF_ROOTED : 0) |
              (operation->plans_of ? OF_PLANNED : 0);
    struct cli_option table[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        table[i] = lines[i].option;
        if (!(lines[i].of & of)) table[i].not_of = bench_name(options);
    }
    struct texts texts;
    char name[64];
    write_texts(options, &texts);
    snprintf(name, sizeof name, "weft bench %s", bench_name(options));
    const struct cli_command command = {name, texts.usage, texts.about, CLI_TABLE(table),
                                        .notes = texts.notes};
    int status = cli_parse(&command, argc, argv, NULL);
    options->average = (enum bench_average)average;
    options->uses_malloc = memory == 1;
    return status;
}

static int usage_error(const struct bench_options *options, const char *sentence)
{
    char name[64];
    snprintf(name, sizeof name, "weft bench %s", bench_name(options));
    return tool_usage_error(name, "%s", sentence);
}

/* -1: continue; otherwise the exit status. */
static int check_consistency(struct bench_options *options)
{
    char text[96];
    if (options->sweep.first > options->sweep.last)
        return usage_error(options, "the first size (-b) is larger than the last (-e)");
    snprintf(text, sizeof text, "there is no rank %" PRIu32 " (-r) among %" PRIu32, options->root,
             options->processes);
    if (options->processes > 0 && options->root >= options->processes) return usage_error(options, text);
    if (options->report.overlap && options->inflight > 1)
        return usage_error(options, "--overlap is of one operation, not of several in flight (-m)");
    if (options->report.limit && options->operation->kind != BENCH_DO_ALL_REDUCE)
        return usage_error(options, "--limit is of an all_reduce");
    if (options->report.limit && options->inflight > 1)
        return usage_error(options, "--limit is of one all_reduce, not of several in flight (-m)");
    bool barrier = options->kind == BENCH_OPERATION && options->operation->kind == BENCH_DO_BARRIER;
    if (barrier) options->sweep.last = options->sweep.first; /* one row */
    options->sweep.unit = weft_dtype_bytes(options->types.dtypes[0]);
    if (options->kind == BENCH_PUSH_PULL && options->shards == 0) options->shards = options->copies ? 2 : 1;
    if (options->copies > 1 && options->shards < 2)
        return usage_error(options, "--copies 1 needs at least 2 shards (-s): a copy is on another shard");
    const enum weft_dtype type = options->types.dtypes[0];
    const bool shards_have_it = type == WEFT_F32 || type == WEFT_F16 || type == WEFT_BF16;
    if (options->kind == BENCH_PUSH_PULL && (options->types.dtype_count > 1 || !shards_have_it))
        return usage_error(options, "shards exchange f32, f16 and bf16 (-d)");
    return -1;
}

/* Call before the measurement starts processes. Returns -1 if the plot can be written, else the exit
 * status. */
static int check_plot(const struct bench_options *options)
{
    const char *path = options->plot, *slash = path ? strrchr(path, '/') : NULL;
    if (!path || options->processes == 0 || access(path, W_OK) == 0) return -1;
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    const int reason = !folder ? ENOMEM : access(folder, W_OK) < 0 ? errno : 0;
    free(folder);
    if (reason == 0) return -1;
    fprintf(stderr, "weft bench %s: the plot %s cannot be written: %s\n", bench_name(options), path,
            strerror(reason));
    return 1;
}

int bench_options_parse(struct bench_options *options, enum bench_kind kind,
                        const struct bench_operation *operation, int argc, char **argv)
{
    const bool one_size = kind == BENCH_EXPOSED, from_1m = one_size || kind == BENCH_CHECKS;
    *options = (struct bench_options){
        .kind = kind,
        .operation = operation,
        .types.dtypes = {WEFT_F32},
        .types.dtype_count = 1,
        .types.op_count = 1,
        .iters = 20,
        .warmup = 5,
        .checks = 1,
        .cycles = 1,
        .inflight = 1,
        .average = BENCH_AVERAGE_MEAN,
        .plan = "auto",
        .bind = kind == BENCH_OPERATION ? "auto" : "none", /* shards and computations have further threads */
        .compute_us = kind == BENCH_EXPOSED ? 5000 : 2000,
        .straggler_us = 20000,
        .sweep = {.first = kind == BENCH_PUSH_PULL ? 64 << 10
                           : from_1m               ? 1 << 20
                                                   : 8,
                  .last = one_size ? UINT64_MAX : 16 << 20,
                  .factor = 4},
    };
    if (operation && operation->reduces) options->types.ops[0] = WEFT_SUM;
    if (kind == BENCH_PUSH_PULL) options->types.ops[0] = WEFT_AVG;
    int status = parse(options, argc, argv);
    if (status < 0) status = check_consistency(options);
    return status >= 0 ? status : check_plot(options);
}
