/* probe.h - measures the links of one endpoint to its peers: latency and bandwidth both ways, one pair at a
 * time.
 *
 * Every endpoint of the group starts a probe with the same list of ids. Pairs meet in the rounds of a
 * tournament (circle method), so in each round everybody has at most one partner and no measurement disturbs
 * another's two ends; the endpoint that stands earlier in the list measures, and tells its partner what it
 * found.
 *
 *   ask ──► grant ◄──   ping ──► pong ◄──  (x pings)   bulk ──► ack ◄──  (a window of them)   pull ──► bulk ◄── ...   result ──►
 *
 * A pair takes a few milliseconds and at most pair_ns; a peer that does not answer costs contact_ns and
 * becomes a row that says so. Uses the channel WEFT_CHANNEL_PROBE and nothing else of the endpoint: other
 * traffic may go on (and then shows in the numbers). What peers send is checked; nonsense is dropped. One
 * thread: the loop's. Nothing blocks. */
#ifndef WEFT_TRANSPORT_PROBE_H
#define WEFT_TRANSPORT_PROBE_H

#include "base/base.h"

struct weft_transport;
struct weft_probe;

struct weft_probe_result {
    uint32_t peer_id;
    enum weft_status status;       /* WEFT_OK; WEFT_IN_PROGRESS: not yet; else why there are no numbers */
    uint64_t latency_ns;           /* one way: half the median round trip of a message without payload */
    uint64_t out_bytes_per_second; /* from here to the peer */
    uint64_t in_bytes_per_second;  /* from the peer to here */
    char text[160];                /* the way to the peer, or the reason */
};

struct weft_probe_options {
    size_t size;          /* sizeof(struct weft_probe_options) */
    const uint32_t *ids;  /* (count,) of all endpoints, this one among them, in the same order everywhere;
                           * copied */
    uint32_t count;       /* at most WEFT_PROBE_PEERS_MAX; every other id is connected already */
    uint32_t pings;       /* round trips whose median is the latency; default 32 */
    uint32_t bulk_count;  /* large messages each way; default 80; fewer on a slow link, where a quarter of
                           * pair_ns ends it */
    size_t bulk_bytes;    /* of one of them; default 256 KiB */
    uint64_t contact_ns;  /* how long a partner may be silent; default 500 ms. One that answers, but is
                           * busy, gets 8 times that */
    uint64_t pair_ns;     /* how long one pair may take; default 1 s */
    void (*done)(void *context); /* every peer has a result; must not free the probe; may be NULL */
    void *context;
};
#define WEFT_PROBE_PEERS_MAX 4096u
void weft_probe_options_init(struct weft_probe_options *options);

/* Begins at once; `transport` is attached to `loop`. All memory is taken here: about 2 * bulk_bytes plus
 * 300 B per peer. WEFT_ERR_INVALID (own id missing or twice, an id not connected, counts), _NO_MEMORY,
 * with a sentence. */
enum weft_status weft_probe_start(struct weft_transport *transport, struct weft_loop *loop,
                                  const struct weft_probe_options *options, struct weft_probe **probe_out,
                                  struct weft_error *error);
bool weft_probe_done(const struct weft_probe *probe);
/* (count - 1,) results in the order of ids, own left out; filled as they come. Valid until free. */
const struct weft_probe_result *weft_probe_results(const struct weft_probe *probe, uint32_t *count_out);
/* Start nothing more and answer nobody any more. */
void weft_probe_close(struct weft_probe *probe);
/* After close: no operation of the probe is in flight, it may be freed. Also true once its transport is
 * drained. */
bool weft_probe_drained(const struct weft_probe *probe);
void weft_probe_free(struct weft_probe *probe); /* NULL is fine */

/* The partner of `index` in round `round` (0 .. weft_probe_rounds - 1) among `count`; UINT32_MAX: none
 * this round. Pure. */
uint32_t weft_probe_partner(uint32_t index, uint32_t round, uint32_t count);
uint32_t weft_probe_rounds(uint32_t count);

#endif
