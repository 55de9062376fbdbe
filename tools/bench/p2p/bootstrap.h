/* bootstrap.h - bootstrap of a point-to-point benchmark: an all-gather of small records outside of the
 * transport under test. Between rows no process polls it. */
#ifndef WEFT_TOOLS_BENCH_P2P_BOOTSTRAP_H
#define WEFT_TOOLS_BENCH_P2P_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench/p2p/options.h"

enum { P2P_RECORD_BYTES_MAX = 8192 };

struct weft_session;

struct p2p_bootstrap {
    uint32_t rank, ranks;
    int fd; /* to the hub; -1: by session */
    struct weft_session *session;
};

/* All-gather of `bytes` per rank, the same number on all ranks; `all` has (ranks, bytes). Blocks. False: a
 * process has ended. */
bool p2p_all_gather(struct p2p_bootstrap *bootstrap, const void *mine, size_t bytes, void *all);

/* Starts options->processes children, pinned as the options require; each runs `body` and exits with its
 * result. This process serves their all-gathers until all have ended; if one fails it ends the others. 0, or
 * 1 with a sentence on stderr. */
int p2p_launch(const struct p2p_options *options, int (*body)(void *context, struct p2p_bootstrap *bootstrap),
               void *context);

/* Joins the job of the environment (`weft run`, or a launcher that the library supports). */
bool p2p_bootstrap_join(struct p2p_bootstrap *bootstrap);
void p2p_bootstrap_leave(struct p2p_bootstrap *bootstrap);

#endif
