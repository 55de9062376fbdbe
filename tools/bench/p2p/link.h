/* link.h - one process of a point-to-point benchmark: an endpoint connected to all others, two memory areas,
 * and one way to wait with a deadline.
 *
 *   out  source of sends and puts, read by gets of peers        in  destination of receives, puts and gets
 *
 * Both hold options->buffers buffers of the largest size. If the transport has windows, both are open to all
 * peers. */
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
    struct weft_loop *loop;                         /* NULL: the wait mode is to poll */
    struct weft_peer **peers;                       /* (ranks,); the own entry is NULL */
    struct weft_remote **in_remotes, **out_remotes; /* (ranks,); NULL without windows */
    struct weft_window *in_window, *out_window;
    uint8_t *in, *out; /* (buffers, buffer_bytes) */
    size_t buffer_bytes;
    bool mapped;                       /* `in` and `out` are from weft_memory_alloc */
    char path_text[96];                /* description of the path to the next rank */
    const struct p2p_counter *watched; /* the counter and target of a wait that sleeps */
    uint64_t target;
    bool reached;
    bool failed; /* a sentence is on stderr already */
};

/* Opens and connects; collective. False: a sentence is on stderr. Close in any case. */
bool p2p_link_open(struct p2p_link *link, const struct p2p_options *options, struct p2p_bootstrap *bootstrap);
void p2p_link_close(struct p2p_link *link);

/* Prints the first failure on stderr; returns false. */
bool p2p_link_fail(struct p2p_link *link, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reports a failed all-gather; returns false. */
bool p2p_link_fail_gather(struct p2p_link *link);
/* Counts a completion. */
static inline void p2p_link_count(struct p2p_link *link, struct p2p_counter *counter)
{
    counter->finished++;
    if (counter == link->watched && counter->finished >= link->target) link->reached = true;
}
/* Waits until counter->finished >= target. False: a failure, or no progress within the deadline. */
bool p2p_link_wait(struct p2p_link *link, const struct p2p_counter *counter, uint64_t target,
                   const char *what);
/* Makes progress until the counter changes, at most for a millisecond, after a transport has returned AGAIN.
 * `counter` may be NULL. */
void p2p_link_progress(struct p2p_link *link, const struct p2p_counter *counter);
uint64_t p2p_now_ns(void);

#endif
