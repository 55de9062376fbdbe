/* transport.h - moves bytes between endpoints; knows no tensors and no ranks.
 *
 * An *endpoint* is one opened transport: one backend instance, one address, used by ONE thread at a
 * time (the engine that owns its loop). Endpoints of a job have distinct 32-bit ids, given from above.
 *
 *   open -> address (opaque blob, carried to the others by the control plane)
 *        -> connect(id, blob) for each peer, on both sides -> send / recv ... -> close -> drain -> free
 *
 * One message = tag + small header + payload. The header travels with the announcement; the payload
 * moves only when the receiver names a buffer (receiver-driven: no bounce, exact back-pressure),
 * except payloads up to eager_bytes_max, which may travel along and wait inside the transport.
 * A message is met either by a posted receive of the same (peer, tag), in the order posted, or, when its
 * *channel* (the tag's top byte) has a handler, by that handler. Messages between one pair of endpoints
 * with the same tag match in the order sent; between different tags no order is promised.
 *
 * Everything completes exactly once, from inside weft_transport_progress, never from inside the call
 * that started it. WEFT_ERR_AGAIN means nothing was queued.
 *
 * A dead peer: every operation with it completes with WEFT_ERR_PEER_LOST and `peer_failed` is called
 * once. One that closed in order ends the same way, except that small messages it had sent before, whose
 * payload has travelled along, can still be received. A backend may see a death late or not at all (shared
 * memory): it is told by weft_transport_fail_peer.
 * Buffer rule: when a completion has run, no peer and no backend touches the buffer any more. */
#ifndef WEFT_TRANSPORT_H
#define WEFT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define WEFT_TRANSPORT_HEADER_BYTES_MAX 256
#define WEFT_TRANSPORT_ADDRESS_BYTES_MAX 4096

/* tag = channel (8 bits) | the owner's 56 bits */
#define WEFT_TAG(channel, rest) (((uint64_t)(channel) << 56) | ((uint64_t)(rest) & 0x00ffffffffffffffull))
enum weft_channel {
    WEFT_CHANNEL_COLLECTIVE = 1, /* posted receives */
    WEFT_CHANNEL_PUSH = 2,       /* worker -> shard requests: handler at the shard */
    WEFT_CHANNEL_RESULT = 3,     /* shard -> worker results: handler at the worker */
    WEFT_CHANNEL_TEST = 15,
};

struct weft_transport; /* one endpoint */
struct weft_peer;      /* one connected remote endpoint; owned by the transport */
struct weft_arrival;   /* an announced message waiting for a buffer; owned by the transport */

struct weft_message {
    uint64_t tag;
    const void *header;     /* copied before send returns; up to WEFT_TRANSPORT_HEADER_BYTES_MAX */
    uint32_t header_bytes;
    const void *payload;    /* borrowed until the completion runs; NULL only when payload_bytes is 0 */
    size_t payload_bytes;
};

/* A posted receive; memory of the caller, untouched by him until the completion has run. */
struct weft_receive {
    struct weft_completion *completion; /* WEFT_ERR_TRUNCATED when the message was longer than the buffer */
    void *buffer;                       /* (buffer_bytes,) */
    size_t buffer_bytes;
    /* filled before the completion runs */
    size_t payload_bytes;
    uint32_t header_bytes;
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
    /* the transport's own */
    uint32_t peer_id;
    uint64_t tag;
    int state;
    struct weft_list link;
    void *backend;
};

/* Called on the owner's thread from progress, for a message on a channel that has a handler. The handler
 * must not wait; it (or anybody later, on the same thread) ends the arrival by exactly one of
 * weft_transport_accept / weft_transport_discard. */
typedef void (*weft_arrival_fn)(void *context, struct weft_arrival *arrival);

struct weft_arrival {
    uint32_t peer_id;
    uint64_t tag;
    size_t payload_bytes;
    uint32_t header_bytes;
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
    struct weft_list link; /* free for the holder's use between handler and accept/discard */
    bool lost;             /* the peer died meanwhile: accept answers WEFT_ERR_PEER_LOST; discard it */
};

struct weft_transport_stats {
    uint64_t sent_bytes, received_bytes;         /* header + payload of data messages, counted once at the wire */
    uint64_t sent_payload_bytes, received_payload_bytes;
    uint64_t sent_count, received_count;         /* messages */
    uint64_t unexpected_count;                   /* messages that came before their receive */
    uint64_t refused_count;                      /* wrong nonce, unknown sender, bad length: dropped */
};

struct weft_transport_options {
    size_t size;              /* sizeof(struct weft_transport_options) */
    const char *backend;      /* "ucx", "sim", or wrapped: "fault:ucx", "delay:sim" ...; required */
    uint32_t id;              /* this endpoint's id, unique in the job; required */
    uint64_t nonce;           /* of the job; messages with another nonce are dropped and counted */
    size_t eager_bytes_max;   /* default 8192 */
    const char *lanes;        /* ucx: "tcp", "shm" or a UCX_TLS list; default "tcp" */
    const char *devices;      /* ucx: network devices, comma separated; default "lo" */
    struct weft_sim *sim;     /* sim: the simulation this endpoint lives in; borrowed */
    uint32_t sim_host;        /* sim: index of its host */
    const char *wrap;         /* fault, delay: parameters, e.g. "drop=0.01,delay_us=100,kill_after=1000,seed=7" */
    /* A peer is gone; called once per peer, from progress, after its operations have completed. */
    void (*peer_failed)(void *context, uint32_t peer_id, enum weft_status status, const char *text);
    void *peer_failed_context;
};
void weft_transport_options_init(struct weft_transport_options *options);

/* ---- what each backend provides; reached only through the functions below ---- */
struct weft_transport_ops {
    const char *name;

    /* Make the backend's part of `transport`. May block for set-up. On failure nothing is left behind. */
    enum weft_status (*open)(struct weft_transport *transport, const struct weft_transport_options *options, struct weft_error *error);
    /* No new work; operations in flight complete with WEFT_ERR_CLOSED. Never blocks. */
    void (*close)(struct weft_transport *transport);
    /* true when nothing is in flight any more and free may be called; call progress in between. */
    bool (*drained)(struct weft_transport *transport);
    /* After drained (or when giving up on it); never fails. */
    void (*free)(struct weft_transport *transport);

    /* The blob others connect with; valid until free. */
    enum weft_status (*address)(struct weft_transport *transport, const void **blob_out, size_t *bytes_out);
    /* Never blocks; WEFT_OK means "messages may be sent", not "reached". Malformed blob: WEFT_ERR_MALFORMED. */
    enum weft_status (*connect)(struct weft_transport *transport, struct weft_peer *peer, const void *blob, size_t bytes);
    /* Forget a peer: its operations complete with `status` (exactly once each) as soon as their buffers are safe. May be
     * called again for a peer that was taking its leave in order and is now known to be dead. */
    void (*disconnect)(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);

    /* WEFT_IN_PROGRESS (completion follows), WEFT_ERR_AGAIN (nothing queued), or another error (nothing queued). */
    enum weft_status (*send)(struct weft_transport *transport, struct weft_peer *peer, const struct weft_message *message,
                             struct weft_completion *completion);
    /* Move the payload of `arrival` into `buffer` (>= payload_bytes); then `completion`. Ends the arrival. */
    enum weft_status (*accept)(struct weft_transport *transport, struct weft_arrival *arrival, void *buffer,
                               struct weft_completion *completion);
    /* Drop it; its sender completes with WEFT_OK (the bytes were delivered to nobody). */
    void (*discard)(struct weft_transport *transport, struct weft_arrival *arrival);

    /* Do at most `budget` pieces of work; the only place where completions and handlers run. */
    int (*progress)(struct weft_transport *transport, int budget);
    /* As struct weft_pollable.arm. */
    enum weft_status (*arm)(struct weft_transport *transport);
    /* Readable when progress has work after a successful arm; -1: must be polled (sim). */
    int (*fd)(struct weft_transport *transport);
};

/* ---- the face ---- */
enum weft_status weft_transport_open(struct weft_env *env, const struct weft_transport_options *options,
                                     struct weft_transport **transport_out, struct weft_error *error);
void weft_transport_close(struct weft_transport *transport);
bool weft_transport_drained(struct weft_transport *transport);
void weft_transport_free(struct weft_transport *transport); /* NULL is fine */

enum weft_status weft_transport_address(struct weft_transport *transport, const void **blob_out, size_t *bytes_out);
enum weft_status weft_transport_connect(struct weft_transport *transport, uint32_t peer_id, const void *blob, size_t bytes,
                                        struct weft_peer **peer_out);
struct weft_peer *weft_transport_peer(struct weft_transport *transport, uint32_t peer_id); /* NULL: unknown */
uint32_t weft_peer_id(const struct weft_peer *peer);
enum weft_status weft_peer_status(const struct weft_peer *peer); /* WEFT_OK, or why it is lost */
/* The outside says that a peer is dead. As if the backend had noticed: peer_failed is called from progress. */
void weft_transport_fail_peer(struct weft_transport *transport, uint32_t peer_id, enum weft_status status, const char *text);

enum weft_status weft_transport_send(struct weft_peer *peer, const struct weft_message *message, struct weft_completion *completion);
/* Post a receive for (peer_id, tag). WEFT_IN_PROGRESS, or an error (nothing posted). */
enum weft_status weft_transport_recv(struct weft_transport *transport, uint32_t peer_id, uint64_t tag, struct weft_receive *receive);
/* Its completion runs with WEFT_ERR_CANCELLED unless it already matched (then it completes normally). */
void weft_transport_cancel(struct weft_transport *transport, struct weft_receive *receive);

/* Messages with (tag & mask) == tag that no posted receive takes are discarded, those that wait here already and all that
 * come later, until the same rule is taken back with `on` false: their senders complete as if they had been received. For
 * an owner of tags who will never receive under them again (an ended group). WEFT_OK, or WEFT_ERR_NO_MEMORY. */
enum weft_status weft_transport_refuse(struct weft_transport *transport, uint64_t tag, uint64_t mask, bool on);

void weft_transport_handler(struct weft_transport *transport, uint8_t channel, weft_arrival_fn fn, void *context);
enum weft_status weft_transport_accept(struct weft_transport *transport, struct weft_arrival *arrival, void *buffer, size_t buffer_bytes,
                                       struct weft_completion *completion);
void weft_transport_discard(struct weft_transport *transport, struct weft_arrival *arrival);

int weft_transport_progress(struct weft_transport *transport, int budget);
/* Make it a pollable of `loop` (and take it out on close). */
enum weft_status weft_transport_attach(struct weft_transport *transport, struct weft_loop *loop);
void weft_transport_stats(const struct weft_transport *transport, struct weft_transport_stats *stats_out);
const char *weft_transport_name(const struct weft_transport *transport); /* "ucx tcp", "fault:sim" */
struct weft_env *weft_transport_env(struct weft_transport *transport);

/* Fault wrapper, by hand (tests): from now on messages to and from this peer vanish / the endpoint falls silent. */
enum weft_status weft_transport_fault_cut(struct weft_transport *transport, uint32_t peer_id);
enum weft_status weft_transport_fault_kill(struct weft_transport *transport);

/* ---- the simulator ---- (transport/sim) one thread, virtual time, everything from one seed */
struct weft_sim;
struct weft_sim_options {
    size_t size;
    uint64_t seed;
    uint32_t host_count;
    uint64_t latency_ns;          /* one way between hosts, default 5,000 */
    uint64_t jitter_ns;           /* uniform 0..jitter added, default 1,000 */
    uint64_t bytes_per_second;    /* of one host's link, each direction; default 12,500,000,000; 0: unlimited */
    uint64_t detect_ns;           /* from a death to peer_failed at the others, default 100 ms */
};
void weft_sim_options_init(struct weft_sim_options *options);
enum weft_status weft_sim_create(struct weft_env *env, const struct weft_sim_options *options, struct weft_sim **sim_out);
void weft_sim_free(struct weft_sim *sim);
/* The env of one host: virtual clock, seeded random, the outer env's allocator and log. Owned by the sim. */
struct weft_env *weft_sim_env(struct weft_sim *sim, uint32_t host);
/* Loops (virtual_time) that the simulation steps; one host may have several. Removed by weft_sim_remove or death. */
enum weft_status weft_sim_add(struct weft_sim *sim, uint32_t host, struct weft_loop *loop);
void weft_sim_remove(struct weft_sim *sim, struct weft_loop *loop);
/* Step everything and move time until *done, until virtual until_ns, or until nothing is left to happen
 * (WEFT_ERR_STATE: idle, nobody will ever wake). WEFT_OK / WEFT_ERR_DEADLINE / WEFT_ERR_STATE. */
enum weft_status weft_sim_run(struct weft_sim *sim, const bool *done, uint64_t until_ns);
void weft_sim_kill(struct weft_sim *sim, uint32_t host);          /* now; its loops are never stepped again */
void weft_sim_kill_at(struct weft_sim *sim, uint32_t host, uint64_t time_ns);
void weft_sim_slow(struct weft_sim *sim, uint32_t host, uint32_t factor); /* its links are this many times slower */
void weft_sim_partition(struct weft_sim *sim, uint32_t host_a, uint32_t host_b, bool cut);
uint64_t weft_sim_now_ns(const struct weft_sim *sim);
uint64_t weft_sim_event_count(const struct weft_sim *sim);

#endif
