/* foreign_names.c - see foreign_names.h. Default sizes are those of the other suite. */
#include "tools/bench/foreign/foreign_names.h"

#include <stddef.h>
#include <string.h>

#define NCCL_SIZES " -b 32M -e 32M"
#define OSU_SIZES " -b 4 -e 1M -f 2"
#define OSU_PAIR_SIZES " -b 1 -e 4M -f 2"

static const struct bench_foreign_name names[] = {
    {"all_reduce_perf", BENCH_NCCL_TESTS, "all_reduce" NCCL_SIZES},
    {"all_gather_perf", BENCH_NCCL_TESTS, "all_gather" NCCL_SIZES},
    {"alltoall_perf", BENCH_NCCL_TESTS, "all_to_all" NCCL_SIZES},
    {"broadcast_perf", BENCH_NCCL_TESTS, "broadcast" NCCL_SIZES},
    {"gather_perf", BENCH_NCCL_TESTS, "gather" NCCL_SIZES},
    {"reduce_perf", BENCH_NCCL_TESTS, "reduce" NCCL_SIZES},
    {"reduce_scatter_perf", BENCH_NCCL_TESTS, "reduce_scatter" NCCL_SIZES},
    {"scatter_perf", BENCH_NCCL_TESTS, "scatter" NCCL_SIZES},
    {"sendrecv_perf", BENCH_NCCL_TESTS, "sendrecv" NCCL_SIZES},
    {"osu_allgather", BENCH_OSU_COLLECTIVE, "all_gather" OSU_SIZES},
    {"osu_allgatherv", BENCH_OSU_COLLECTIVE, "all_gather_v" OSU_SIZES},
    {"osu_allreduce", BENCH_OSU_COLLECTIVE, "all_reduce" OSU_SIZES},
    {"osu_alltoall", BENCH_OSU_COLLECTIVE, "all_to_all" OSU_SIZES},
    {"osu_alltoallv", BENCH_OSU_COLLECTIVE, "all_to_all_v" OSU_SIZES},
    {"osu_barrier", BENCH_OSU_COLLECTIVE, "barrier"},
    {"osu_bcast", BENCH_OSU_COLLECTIVE, "broadcast" OSU_SIZES},
    {"osu_gather", BENCH_OSU_COLLECTIVE, "gather" OSU_SIZES},
    {"osu_gatherv", BENCH_OSU_COLLECTIVE, "gather_v" OSU_SIZES},
    {"osu_reduce", BENCH_OSU_COLLECTIVE, "reduce" OSU_SIZES},
    {"osu_reduce_scatter", BENCH_OSU_COLLECTIVE, "reduce_scatter" OSU_SIZES},
    {"osu_scatter", BENCH_OSU_COLLECTIVE, "scatter" OSU_SIZES},
    {"osu_scatterv", BENCH_OSU_COLLECTIVE, "scatter_v" OSU_SIZES},
    {"osu_iallgather", BENCH_OSU_COLLECTIVE, "all_gather --overlap" OSU_SIZES},
    {"osu_iallreduce", BENCH_OSU_COLLECTIVE, "all_reduce --overlap" OSU_SIZES},
    {"osu_ialltoall", BENCH_OSU_COLLECTIVE, "all_to_all --overlap" OSU_SIZES},
    {"osu_ibarrier", BENCH_OSU_COLLECTIVE, "barrier --overlap"},
    {"osu_ibcast", BENCH_OSU_COLLECTIVE, "broadcast --overlap" OSU_SIZES},
    {"osu_igather", BENCH_OSU_COLLECTIVE, "gather --overlap" OSU_SIZES},
    {"osu_ireduce", BENCH_OSU_COLLECTIVE, "reduce --overlap" OSU_SIZES},
    {"osu_iscatter", BENCH_OSU_COLLECTIVE, "scatter --overlap" OSU_SIZES},
    {"osu_latency", BENCH_OSU_PAIR, "p2p --measure lat" OSU_PAIR_SIZES},
    {"osu_bw", BENCH_OSU_PAIR, "p2p --measure bw" OSU_PAIR_SIZES},
    {"osu_bibw", BENCH_OSU_PAIR, "p2p --measure duplex" OSU_PAIR_SIZES},
    {"osu_mbw_mr", BENCH_OSU_PAIR, "p2p --measure bw,rate" OSU_PAIR_SIZES},
    {"osu_multi_lat", BENCH_OSU_PAIR, "p2p --measure lat" OSU_PAIR_SIZES},
    {"osu_get_bw", BENCH_OSU_PAIR, "p2p --op get --measure bw" OSU_PAIR_SIZES},
    {"osu_get_latency", BENCH_OSU_PAIR, "p2p --op get --measure lat" OSU_PAIR_SIZES},
    {"osu_put_bibw", BENCH_OSU_PAIR, "p2p --op put --measure duplex" OSU_PAIR_SIZES},
    {"osu_put_bw", BENCH_OSU_PAIR, "p2p --op put --measure bw" OSU_PAIR_SIZES},
    {"osu_put_latency", BENCH_OSU_PAIR, "p2p --op put --measure lat" OSU_PAIR_SIZES},
    {"ib_read_bw", BENCH_PERFTEST, "p2p --transport verbs --op get --measure bw -b 64K -e 64K"},
    {"ib_read_lat", BENCH_PERFTEST, "p2p --transport verbs --op get --measure lat -b 2 -e 2"},
    {"ib_send_bw", BENCH_PERFTEST, "p2p --transport verbs --op send --measure bw -b 64K -e 64K"},
    {"ib_send_lat", BENCH_PERFTEST, "p2p --transport verbs --op send --measure lat -b 2 -e 2"},
    {"ib_write_bw", BENCH_PERFTEST, "p2p --transport verbs --op put --measure bw -b 64K -e 64K"},
    {"ib_write_lat", BENCH_PERFTEST, "p2p --transport verbs --op put --measure lat -b 2 -e 2"},
};

static const struct bench_foreign_option nccl_options[] = {
    {'a', "average", BENCH_FOREIGN_VALUE, "-a"},
    {'b', "minbytes", BENCH_FOREIGN_VALUE, "-b"},
    {'c', "check", BENCH_FOREIGN_VALUE, "-c"},
    {'C', "report_cputime", BENCH_FOREIGN_SWITCH, "-C"},
    {'d', "datatype", BENCH_FOREIGN_VALUE, "-d"},
    {'e', "maxbytes", BENCH_FOREIGN_VALUE, "-e"},
    {'f', "stepfactor", BENCH_FOREIGN_VALUE, "-f"},
    {'g', "ngpus", BENCH_FOREIGN_PROCESSES, NULL},
    {'G', "cudagraph", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'i', "stepbytes", BENCH_FOREIGN_VALUE, "-i"},
    {'m', "agg_iters", BENCH_FOREIGN_VALUE, "-m"},
    {'n', "iters", BENCH_FOREIGN_VALUE, "--iters"},
    {'N', "run_cycles", BENCH_FOREIGN_VALUE, "-N"},
    {'o', "op", BENCH_FOREIGN_VALUE, "-o"},
    {'p', "parallel_init", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'r', "root", BENCH_FOREIGN_VALUE, "-r"},
    {'R', "local_register", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'t', "nthreads", BENCH_FOREIGN_PROCESSES, NULL},
    {'T', "timeout", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'w', "warmup_iters", BENCH_FOREIGN_VALUE, "-w"},
    {'y', "stream_null", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'z', "blocking", BENCH_FOREIGN_VALUE, "-z"},
    {0, NULL, BENCH_FOREIGN_NO_EFFECT, NULL},
};

static const struct bench_foreign_option osu_options[] = {
    {'c', "validation", BENCH_FOREIGN_NO_EFFECT_FLAG, NULL}, /* every result is checked in any case */
    {'d', "accelerator", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'f', "full", BENCH_FOREIGN_FLAG, "--percentiles"},
    {'i', "iterations", BENCH_FOREIGN_VALUE, "--iters"},
    {'m', "message-size", BENCH_FOREIGN_RANGE, NULL},
    {'M', "mem-limit", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'t', "num-test-calls", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'x', "warmup", BENCH_FOREIGN_VALUE, "-w"},
    {0, NULL, BENCH_FOREIGN_NO_EFFECT, NULL},
};

static const struct bench_foreign_option osu_pair_options[] = {
    {'c', "validation", BENCH_FOREIGN_NO_EFFECT_FLAG, NULL},
    {'d', "accelerator", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'i', "iterations", BENCH_FOREIGN_VALUE, "--iters"},
    {'m', "message-size", BENCH_FOREIGN_RANGE, NULL},
    {'W', "window-size", BENCH_FOREIGN_VALUE, "--window"},
    {'x', "warmup", BENCH_FOREIGN_NO_EFFECT, NULL},
    {0, NULL, BENCH_FOREIGN_NO_EFFECT, NULL},
};

static const struct bench_foreign_option perftest_options[] = {
    {'a', "all", BENCH_FOREIGN_FLAG, "-b 2 -e 8M -f 2"},
    {'b', "bidirectional", BENCH_FOREIGN_FLAG, "--measure duplex"},
    {'d', "ib-dev", BENCH_FOREIGN_VALUE, "--devices"},
    {'D', "duration", BENCH_FOREIGN_SECONDS, "--row-ms"},
    {'F', "CPU-freq", BENCH_FOREIGN_NO_EFFECT_FLAG, NULL},
    {'i', "ib-port", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'m', "mtu", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'n', "iters", BENCH_FOREIGN_VALUE, "--iters"},
    {'q', "qp", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'R', "rdma_cm", BENCH_FOREIGN_NO_EFFECT_FLAG, NULL},
    {'s', "size", BENCH_FOREIGN_SIZE, NULL},
    {'S', "sl", BENCH_FOREIGN_NO_EFFECT, NULL},
    {'t', "tx-depth", BENCH_FOREIGN_VALUE, "--window"},
    {'x', "gid-index", BENCH_FOREIGN_NO_EFFECT, NULL},
    {0, "report_gbits", BENCH_FOREIGN_NO_EFFECT_FLAG, NULL},
    {0, NULL, BENCH_FOREIGN_NO_EFFECT, NULL},
};

const struct bench_foreign_name *bench_foreign_find(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, name) == 0) return &names[i];
    return NULL;
}

const struct bench_foreign_option *bench_foreign_option(enum bench_foreign_suite suite, char short_name,
                                                        const char *long_name)
{
    static const struct bench_foreign_option *const tables[] = {[BENCH_NCCL_TESTS] = nccl_options,
                                                                [BENCH_OSU_COLLECTIVE] = osu_options,
                                                                [BENCH_OSU_PAIR] = osu_pair_options,
                                                                [BENCH_PERFTEST] = perftest_options};
    for (const struct bench_foreign_option *at = tables[suite]; at->short_name || at->long_name; at++) {
        if (long_name ? at->long_name && strcmp(at->long_name, long_name) == 0
                      : short_name && at->short_name == short_name)
            return at;
    }
    return NULL;
}

const char *bench_foreign_suite_name(enum bench_foreign_suite suite)
{
    return suite == BENCH_NCCL_TESTS ? "nccl-tests" : suite == BENCH_PERFTEST ? "perftest" : "OSU";
}
