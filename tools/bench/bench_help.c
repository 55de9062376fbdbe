/* bench_help.c - what `weft bench WHAT --help` says. */
#include "tools/bench/bench_options.h"

#include <stdio.h>

/* Lines that several of the texts have. */
#define JOB_OPTION \
    "  -n, --processes N     start a job of N workers on this host (without it: take part in the job of `weft run`)\n"
#define SWEEP_OPTIONS \
    "  -e, --maxbytes SIZE   last size (default 16M)\n" \
    "  -f, --stepfactor F    next size = size * F (default 4)\n" \
    "  -i, --stepbytes SIZE  next size = size + SIZE instead\n"
#define PLACE_OPTIONS \
    "      --bind HOW        with -n, where the processes run. core: each on a core of its own, as mpirun has two; auto: on an\n" \
    "                        equal share of the cores, or as none where they are too few; none: anywhere (default none)\n" \
    "      --transport WAY   auto, shm, verbs, tcp, ucx, or lanes of UCX: rc (default: as configured, auto)\n"

static const char waiting_help[] =
    "usage: weft bench waiting [options]\n\n"
    "What waiting costs: CPU of an idle session, CPU of ranks that wait for a late one, and the throughput "
    "of ranks\n"
    "that compute pieces with an 8-byte all_reduce after each, against computing alone.\n\n" JOB_OPTION
    "      --piece-us US     length of one computation (default 2000)\n"
    "      --iters N         computations of one timing (default 20)\n" PLACE_OPTIONS
    "      --json            one JSON object per measure\n"
    "  -h, --help            this text\n\n"
    "More ranks than cores show what a waiting rank takes from one that computes: -n $((2 * $(nproc))).\n";

static const char exposed_help[] =
    "usage: weft bench exposed [options]\n\n"
    "What a training step waits for. Every step computes for --piece-us; rows: alone (no communication), "
    "equal (an\n"
    "all_reduce behind the computation), slow (the same, and one rank computes --late-us "
    "longer).\n\n" JOB_OPTION "  -b, --minbytes SIZE   of the all_reduce (default 1M)\n"
    "      --piece-us US     length of the computation (default 5000)\n"
    "  -r, --root RANK       the slow rank (default 0)\n"
    "      --late-us US      how much longer it computes (default 20000)\n"
    "      --iters N         steps of a row (default 20)\n" PLACE_OPTIONS
    "      --json            one JSON object per row instead of the table\n"
    "  -h, --help            this text\n\n"
    "Microseconds of one step, means over its ranks. exposed-peers: the ranks waited for one that had not "
    "begun the operation.\n"
    "exposed-net: the rest of their wait. step-alone: the step of row alone, to compare with.\n";

static const char checks_help[] =
    "usage: weft bench checks [options]\n\n"
    "What the checks of a step cost, each beside the step without it, in turn. One tensor goes around in "
    "each step.\n\n" JOB_OPTION "  -s, --shards N        and N shards (default 0: all-reduce mode)\n"
    "  -b, --minbytes SIZE   first size of the tensor (default 1M)\n" SWEEP_OPTIONS PLACE_OPTIONS
    "      --iters N         steps of a measurement (default 20), of which there are 5\n"
    "      --json            one JSON object per row instead of the table\n"
    "  -h, --help            this text\n\n"
    "nonfinite: a tensor with skip_nonfinite, beside one without. copies: a tensor with adam while another "
    "tensor may skip the\n"
    "step, beside the same alone. weights: a step that compares the weights of all ranks; a job does so "
    "every client.hash_every\n"
    "steps (default 50). pushed: the step, beside the same without its step_end, where ranks compare what "
    "they pushed.\n";

static const char push_pull_help[] =
    "usage: weft bench push_pull [options]\n\n"
    "One dense tensor goes to the shards and its mean comes back: time, bandwidth, wrong elements.\n\n"
    JOB_OPTION
    "  -s, --shards N        and N shards (default 1)\n"
    "  -b, --minbytes SIZE   first size: 8, 64K, 25M, 1G (default 64K)\n"
    SWEEP_OPTIONS
    PLACE_OPTIONS
    "      --iters N         timed operations of a size (default 20)\n"
    "  -w, --warmup N        untimed ones before (default 5)\n"
    "      --json            one JSON object per row instead of the table\n"
    "  -h, --help            this text\n\n"
    "time: mean over the ranks of the mean of one operation, start to end of wait. algbw: size / time.\n"
    "busbw: algbw * max(1, workers / shards), what the busiest link carries in each direction.\n"
    "#wrong counts elements, on all ranks, that differ from the sum that is known beforehand.\n";

static const char operation_options[] =
    "  -n, --processes N     start a job of N workers on this host (without it: take part in the job of "
    "`weft run`,\n"
    "                        mpirun, srun or torchrun)\n"
    "  -b, --minbytes SIZE   first size: 8, 64K, 25M, 1G (default 8)\n" SWEEP_OPTIONS
    "  -d, --datatype TYPE   f32, f64, f16, bf16, e4m3, e5m2, i8, u8, i32, u32, i64, u64 or all (default "
    "f32)\n";
static const char reducing_options[] = "  -o, --op OP           sum, avg, prod, min, max, and of integers "
                                       "and, or, xor, or all (default sum)%s\n";
static const char rooted_options[] = "  -r, --root RANK       or all (default 0)\n";
static const char more_options[] =
    "      --iters N         timed operations of a size (default 20)\n"
    "  -w, --warmup N        untimed ones before (default 5)\n"
    "  -c, --check N         operations of a size whose results are checked; 0: none (default 1)\n"
    "  -m, --together N      operations in flight at once; time is of one of them (default 1)\n"
    "  -a, --average HOW     time is 0: of rank 0; 1: mean of the ranks; 2: of the fastest; 3: of the "
    "slowest (default 1)\n"
    "  -N, --cycles N        the whole sweep N times (default 1)\n"
    "      --memory KIND     mapped: from weft_alloc; plain: from malloc (default mapped)\n"
    "      --bind HOW        with -n, where the processes run. core: each on a core of its own, as mpirun "
    "has two; auto: on an\n"
    "                        equal share of the cores, or as none where they are too few; none: anywhere "
    "(default auto)\n"
    "      --transport WAY   auto, shm, verbs, tcp, ucx, or lanes of UCX: rc (default: as configured, auto)\n"
    "      --plan PLAN       auto or one that this operation has: direct, ring, doubling, halving, "
    "double_tree, bruck,\n"
    "                        pat, chain, binomial, hierarchy (default auto)\n"
    "      --explain         before each row the plan and what the model of cost says of the others\n"
    "      --percentiles     also min, p50, p95, p99 and max of one operation, of the ranks' mean\n"
    "      --overlap         also start, compute for as long as the operation takes, wait: how much of it "
    "was hidden\n"
    "      --limit           of all_reduce, also the time in which all ranks at once load and store as many "
    "bytes each:\n"
    "                        on one host no way is faster\n"
    "  -C, --cpu             also processor time of one operation, all threads of all ranks\n"
    "      --json            one JSON object per row instead of the table\n"
    "      --plot FILE       busbw over size, as an SVG, or as a PNG if FILE ends so (by rsvg-convert)\n"
    "  -h, --help            this text\n\n"
    "-n is not nccl-tests': it counts processes, and --iters iterations.\n"
    "time: start to end of wait. algbw: size / time. busbw: %s\n"
    "#wrong counts elements, on all ranks, that differ from the result that is known beforehand.\n"
    "overlap: 100 (1 - (overall - compute) / time), not below 0. memory: the largest Pss of a rank after any "
    "row.\n";

static const char *bus_formula(const struct bench_operation *operation)
{
    if (operation->kind == BENCH_DO_ALL_REDUCE)
        return "algbw * 2 (n - 1) / n, what each rank must send at least.";
    return operation->pieces ? "algbw * (n - 1) / n: a rank's own piece stays at home." : "algbw.";
}

void bench_help(const struct bench_options *options)
{
    const struct bench_operation *operation = options->operation;
    if (options->kind != BENCH_OPERATION) {
        static const char *const texts[] = {[BENCH_PUSH_PULL] = push_pull_help,
                                            [BENCH_WAITING] = waiting_help,
                                            [BENCH_EXPOSED] = exposed_help,
                                            [BENCH_CHECKS] = checks_help};
        fputs(texts[options->kind], stdout);
        return;
    }
    printf("usage: weft bench %s [options]\n\nTime and bandwidth: %s. Every result is checked.\n",
           operation->name, operation->about);
    if (operation->pieces) printf("Sizes are those of all ranks' pieces together.\n");
    printf("\n%s", operation_options);
    if (operation->reduces)
        printf(reducing_options,
               operation->kind == BENCH_DO_ALL_REDUCE
                   ? ",\n                        mulsum: each rank's times a factor of its own"
                   : "");
    if (operation->rooted) fputs(rooted_options, stdout);
    printf(more_options, bus_formula(operation));
}
