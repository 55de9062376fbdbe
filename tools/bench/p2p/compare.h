/* compare.h - `weft bench p2p --compare ucx_perftest`: weft and its peers in turn, and the ratios. */
#ifndef WEFT_TOOLS_BENCH_P2P_COMPARE_H
#define WEFT_TOOLS_BENCH_P2P_COMPARE_H

#include "tools/bench/p2p/measure.h"

/* Returns the exit status: 0, or 1 if a measurement failed. A missed goal is printed and is no failure,
 * because machines are noisy. */
int p2p_compare(const struct p2p_options *options);

/* ---- the peers, one measurement each (compare_peers.c) ---- */

struct p2p_peer_run {
    const char *test;    /* ucx_perftest -t */
    const char *tls;     /* UCX_TLS */
    bool error_handling; /* -e */
    bool latency;        /* microseconds one way (median); otherwise GB/s */
    uint64_t bytes, iters;
};

/* Runs ucx_perftest as two processes, pinned and waiting as the processes of weft. False: `error` has the
 * sentence. */
bool p2p_run_ucx_perftest(const struct p2p_options *options, const struct p2p_peer_run *run,
                          double *value_out, char *error, size_t capacity);
/* GB/s of process_vm_readv from another process. */
bool p2p_run_vm_readv(const struct p2p_options *options, uint64_t bytes, double *value_out, char *error,
                      size_t capacity);
/* GB/s of memcpy between two buffers of this size. */
bool p2p_run_memcpy(const struct p2p_options *options, uint64_t bytes, double *value_out, char *error,
                    size_t capacity);

#endif
