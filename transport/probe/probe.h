/* probe.h - measures the links of one endpoint to its peers: latency and bandwidth in both directions, one
 * pair at a time.
 *
 * Every endpoint starts a probe with the same list of ids. Pairs follow the rounds of a tournament (circle
 * method): in each round an endpoint has at most one partner, so measurements do not disturb each other's
 * ends. The endpoint earlier in the list measures and sends the result to its partner.
 *
 *   ask ──► grant ◄──   ping ──► pong ◄──  (x pings)   bulk ──► ack ◄──  (a window of them)
 *   pull ──► bulk ◄── ...   result ──►
 *
 * A pair takes at most pair_ns. A peer that does not answer costs contact_ns and gets a row with the
 * reason. The probe uses only the channel WEFT_CHANNEL_PROBE; other traffic may continue and then affects
 * the numbers. Input is checked; invalid messages are dropped. Runs on the thread of the loop; nothing
 * blocks. */
#ifndef WEFT_TRANSPORT_PROBE_H
#define WEFT_TRANSPORT_PROBE_H

#include "base/base.h"

struct weft_transport;
struct weft_probe;

struct weft_probe_result {
    uint32_t peer_id;
    enum weft_status status;       /* WEFT_OK; WEFT_IN_PROGRESS: pending; else why there are no numbers */
    uint64_t latency_ns;           /* one way: half the median round trip of a message without payload */
    uint64_t out_bytes_per_second; /* from here to the peer */
    uint64_t in_bytes_per_second;  /* from the peer to here */
    char text[160];                /* the path to the peer, or the reason */
};

struct weft_probe_options {
    size_t size;          /* sizeof(struct weft_probe_options) */
    /* (count,) of all endpoints including this one, in the same order everywhere; copied */
    const uint32_t *ids;
    uint32_t count;       /* at most WEFT_PROBE_PEERS_MAX; every other id is connected already */
    uint32_t pings;       /* round trips whose median is the latency; default 32 */
    /* bulk messages in each direction; default 80; fewer if a slow link uses a quarter of pair_ns */
    uint32_t bulk_count;
    size_t bulk_bytes;    /* of one of them; default 256 KiB */
    /* allowed silence of a partner; default 500 ms; a busy partner that answers gets 8 times that */
    uint64_t contact_ns;
    uint64_t pair_ns;     /* time limit of one pair; default 1 s */
    void (*done)(void *context); /* every peer has a result; must not free the probe; may be NULL */
    void *context;
};
#define WEFT_PROBE_PEERS_MAX 4096u
void weft_probe_options_init(struct weft_probe_options *options);

/* Starts at once; `transport` is attached to `loop`. Allocates all memory here: about 2 * bulk_bytes plus
 * 300 B per peer. WEFT_ERR_INVALID (own id missing or duplicate, an id not connected, counts), _NO_MEMORY,
 * with a sentence. */
enum weft_status weft_probe_start(struct weft_transport *transport, struct weft_loop *loop,
                                  const struct weft_probe_options *options, struct weft_probe **probe_out,
                                  struct weft_error *error);
bool weft_probe_done(const struct weft_probe *probe);
/* (count - 1,) results in the order of ids, without this endpoint, filled one by one. Valid until free. */
const struct weft_probe_result *weft_probe_results(const struct weft_probe *probe, uint32_t *count_out);
/* Starts no more measurements and answers no more requests. */
void weft_probe_close(struct weft_probe *probe);
/* After close: true if no operation of the probe is in flight and it may be freed. Also true once its
 * transport is drained. */
bool weft_probe_drained(const struct weft_probe *probe);
void weft_probe_free(struct weft_probe *probe); /* NULL is fine */

/* The partner of `index` in round `round` (0 .. weft_probe_rounds - 1) among `count`; UINT32_MAX: none
 * this round. Pure. */
uint32_t weft_probe_partner(uint32_t index, uint32_t round, uint32_t count);
uint32_t weft_probe_rounds(uint32_t count);

#endif
