/* meet.h - how the processes of a point-to-point benchmark find each other: one all-gather of small
 * records outside of the transport under test. Between rows nobody spins on it. */
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
    int fd;                       /* to the hub; -1: by session */
    struct weft_session *session;
};

/* Every rank gives `bytes` (the same number) and gets (ranks, bytes). Blocks. False: somebody is gone. */
bool p2p_all_gather(struct p2p_bootstrap *bootstrap, const void *mine, size_t bytes, void *all);

/* Start options->processes children of this process, pinned as the options say; each runs body and leaves
 * with its answer. This process serves them until all are gone; when one fails the others are ended. 0, or 1
 * (told on stderr). */
int p2p_launch(const struct p2p_options *options, int (*body)(void *context, struct p2p_bootstrap *bootstrap),
               void *context);

/* Take part in the job of the environment (`weft run`, or any launcher that weft knows). */
bool p2p_bootstrap_join(struct p2p_bootstrap *bootstrap);
void p2p_bootstrap_leave(struct p2p_bootstrap *bootstrap);

#endif
