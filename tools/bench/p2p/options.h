/* options.h - the options of `weft bench p2p`. */
#ifndef WEFT_TOOLS_BENCH_P2P_OPTIONS_H
#define WEFT_TOOLS_BENCH_P2P_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/lib/sweep.h"

enum p2p_op { P2P_SEND = 1, P2P_PUT = 2, P2P_GET = 4 };
enum p2p_measure { P2P_LATENCY = 1, P2P_BANDWIDTH = 2, P2P_DUPLEX = 4, P2P_RATE = 8 };
enum p2p_wait { P2P_WAIT_POLL = 1, P2P_WAIT_SLEEP, P2P_WAIT_AUTO };
enum p2p_pattern { P2P_PAIRS = 1, P2P_INCAST, P2P_FANOUT, P2P_ALL };
enum p2p_memory { P2P_MEMORY_PLAIN = 1, P2P_MEMORY_MAPPED };

enum {
    P2P_CPUS_MAX = 64,
    P2P_WINDOW_MAX = 1024,
    P2P_ITERS_MAX = 5000000,
    P2P_RANKS_MAX = 256,
    P2P_BUFFERS_MAX = 64
};

struct p2p_transport_spec {
    char text[96];    /* as given */
    char backend[48]; /* "ucx", "fault:shm" */
    char lanes[48];   /* "": the default of the backend */
};

struct p2p_options {
    unsigned ops, measures; /* masks of enum p2p_op, enum p2p_measure */
    enum p2p_wait wait;
    enum p2p_pattern pattern;
    enum p2p_memory memory;
    struct p2p_transport_spec transport;
    const char *devices, *wrap; /* NULL: the default */
    const char *secret_file;    /* NULL: from the environment */
    char *secret;               /* of all processes; NULL: none. Owned */
    struct bench_sweep sweep;
    uint32_t processes; /* -n; 0: take part in the job of the environment */
    uint32_t window, buffers;
    uint32_t iters; /* 0: as many as row_ms allows */
    uint32_t row_ms, deadline_s;
    uint64_t eager_bytes; /* UINT64_MAX: the default of the transport */
    uint32_t cpus[P2P_CPUS_MAX], cpu_count;
    bool json, progress;
    bool compares; /* --compare: run the peers in turn with weft and print ratios */
    uint32_t rounds;
    const char *sections; /* --only: sections of --compare, separated by commas; NULL: all */
};

const char *p2p_op_name(unsigned op);
const char *p2p_measure_name(unsigned measure);
const char *p2p_wait_name(enum p2p_wait wait);
const char *p2p_pattern_name(enum p2p_pattern pattern);

/* Parses "ucx:tcp", "shm", "fault:ucx:shm", "auto". False: a sentence is on stderr. */
bool p2p_transport_parse(const char *text, struct p2p_transport_spec *spec);
/* -1: continue; otherwise the exit status. */
int p2p_options_parse(struct p2p_options *options, int argc, char **argv);

#endif
