/* link.h - one process's side of a point-to-point benchmark: an endpoint connected to all others, two
 * stretches of memory, and one way to wait that has a deadline.
 *
 *   out  what is sent, put, or read by peers        in  where it arrives, or where gets are read into
 *
 * Both hold options->buffers buffers of the largest size and are open to all peers as windows where the
 * transport has them. */
#ifndef WEFT_TOOLS_BENCH_P2P_LINK_H
#define WEFT_TOOLS_BENCH_P2P_LINK_H

#include "tools/bench/p2p/bootstrap.h"
#include "transport/transport.h"

struct p2p_counter {
    uint64_t finished; /* operations whose completion has run */
};

struct p2p_link {
    const struct p2p_options *options;
    struct p2p_bootstrap *bootstrap;
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_loop *loop;            /* NULL: the wait mode is to poll */
    struct weft_peer **peers;          /* (ranks,); own place NULL */
    struct weft_remote **in_remotes, **out_remotes; /* (ranks,); NULL without windows */
    struct weft_window *in_window, *out_window;
    uint8_t *in, *out;                 /* (buffers, buffer_bytes) */
    size_t buffer_bytes;
    bool mapped;                       /* in and out came from weft_memory_alloc */
    char path_text[96];                      /* how the next rank is reached */
    const struct p2p_counter *watched; /* of a wait that sleeps */
    uint64_t target;
    bool reached;
    bool failed;                       /* told on stderr already */
};

/* Opens and connects; every rank calls it at once. False: told on stderr. Close in any case. */
bool p2p_link_open(struct p2p_link *link, const struct p2p_options *options, struct p2p_bootstrap *bootstrap);
void p2p_link_close(struct p2p_link *link);

/* Told on stderr once; answers false. */
bool p2p_link_fail(struct p2p_link *link, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A gather failed. Answers false. */
bool p2p_link_fail_gather(struct p2p_link *link);
/* A completion has run: count it. */
static inline void p2p_link_count(struct p2p_link *link, struct p2p_counter *counter)
{
    counter->finished++;
    if (counter == link->watched && counter->finished >= link->target) link->reached = true;
}
/* Until counter->finished >= target. False: failed, or nothing came within the deadline. */
bool p2p_link_wait(struct p2p_link *link, const struct p2p_counter *counter, uint64_t target,
                   const char *what);
/* Do some work, until the counter moves or for at most a millisecond: for a transport that said AGAIN.
 * counter: may be NULL. */
void p2p_link_progress(struct p2p_link *link, const struct p2p_counter *counter);
uint64_t p2p_now_ns(void);

#endif
