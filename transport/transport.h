/* transport.h - moves bytes between endpoints; has no notion of tensors or ranks.
 *
 * An *endpoint* is one opened transport: one backend instance with one address. One thread at a time uses
 * it, the engine thread that owns its loop. Endpoints of a job have distinct 32-bit ids, assigned by the
 * caller.
 *
 *   open -> address (opaque blob, carried to the peers by the control plane)
 *        -> connect(id, blob) for each peer, on both sides -> send / recv ... -> close -> drain -> free
 *
 * A message is a tag, a small header and a payload. The header travels with the announcement. The payload
 * moves when the receiver names a buffer (rendezvous), except that payloads up to eager_bytes_max may
 * travel with the header and wait inside the transport (eager).
 *
 * A message matches a receive posted for the same (peer, tag), in posting order. If none is posted and the
 * *channel* (the top byte of the tag) has a handler, the handler gets it. Messages of one pair of
 * endpoints with equal tags match in the order sent; different tags have no order.
 *
 * Every call that returns WEFT_IN_PROGRESS completes exactly once, inside weft_transport_progress. A put
 * or get may complete inside its call: it then returns WEFT_OK and its completion never runs.
 * WEFT_ERR_AGAIN: nothing was queued.
 *
 * If a peer dies, every operation with it completes with WEFT_ERR_PEER_LOST and `peer_failed` runs once.
 * The same holds for a peer that closed in order, but eager messages that have arrived can still be
 * received. A shared-memory backend may miss a death; the caller then reports it by
 * weft_transport_fail_peer.
 *
 * Buffers: after a completion has run, no peer and no backend accesses the buffer. A deadline of the
 * caller ends its wait only; the buffer stays busy until the completion. To free it earlier, cancel the
 * receive, close the window or fail the peer.
 *
 * One-sided access: the owner of memory opens a *window* and sends its key to a peer. The peer imports the
 * key as a *remote* and puts and gets without calls of the owner. A put may carry a *notification*: a
 * message without payload that arrives after the bytes of the put are readable. */
#ifndef WEFT_TRANSPORT_H
#define WEFT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define WEFT_TRANSPORT_HEADER_BYTES_MAX 256
#define WEFT_TRANSPORT_UNREAD_BYTES_MIN ((size_t)64 << 10) /* smallest unread_bytes_max */
#define WEFT_TRANSPORT_ADDRESS_BYTES_MAX 4096

/* tag = channel (8 bits) | 56 bits chosen by the owner of the channel */
#define WEFT_TAG(channel, rest) (((uint64_t)(channel) << 56) | ((uint64_t)(rest) & 0x00ffffffffffffffull))
enum weft_channel {
    WEFT_CHANNEL_COLLECTIVE = 1, /* posted receives */
    WEFT_CHANNEL_PUSH = 2,       /* worker -> shard requests: handler at the shard */
    WEFT_CHANNEL_RESULT = 3,     /* shard -> worker results: handler at the worker */
    /* control messages between the ranks of a group: handler (collective/core/control/control_router.c) */
    WEFT_CHANNEL_GROUP_CONTROL = 4,
    /* a rank calls the members of a new group: handler at the workers (client/comm/creation.c) */
    WEFT_CHANNEL_GROUP_CREATE = 5,
    WEFT_CHANNEL_SHARD = 5, /* between the engines of shards, which have no groups: handler at the shards */
    WEFT_CHANNEL_NCCL = 6,       /* messages of NCCL's network plugin (nccl/): posted receives */
    WEFT_CHANNEL_PUSH_GROUP = 10,   /* worker -> shard: several requests in one message; handler */
    WEFT_CHANNEL_RESULT_GROUP = 11, /* shard -> worker: several results in one message; handler */
    WEFT_CHANNEL_PROBE = 14,     /* link measurements (probe/): handler on both sides */
    WEFT_CHANNEL_TEST = 15,
};

struct weft_transport; /* one endpoint */
struct weft_mapping;
struct weft_peer;      /* one connected remote endpoint; owned by the transport */
struct weft_arrival;   /* an announced message without a buffer; owned by the transport */

struct weft_message {
    uint64_t tag;
    const void *header;     /* copied before send returns; up to WEFT_TRANSPORT_HEADER_BYTES_MAX */
    uint32_t header_bytes;
    const void *payload;    /* borrowed until the completion runs; NULL only when payload_bytes is 0 */
    size_t payload_bytes;
};

/* A posted receive: memory of the caller, which must not change it until the completion has run. */
struct weft_receive {
    struct weft_completion *completion; /* WEFT_ERR_TRUNCATED when the message was longer than the buffer */
    void *buffer;                       /* (buffer_bytes,) */
    size_t buffer_bytes;
    /* set before the completion runs */
    size_t payload_bytes;
    uint32_t header_bytes;
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
    /* private to the transport */
    uint32_t peer_id;
    uint64_t tag;
    int state;
    uint64_t posted_ns; /* post time while a trace is written */
    struct weft_list link;
    void *backend;
};

/* Called on the engine thread from progress, for a message of a channel with a handler. Must not block.
 * The arrival ends by exactly one weft_transport_accept or weft_transport_discard, now or later on the
 * same thread. */
typedef void (*weft_arrival_fn)(void *context, struct weft_arrival *arrival);

/* Functions of an arrival that the holder of a message has made for a part of it. accept and discard end the
 * arrival, as those of the transport; the completion of accept runs later on the same thread. */
struct weft_arrival_ops {
    enum weft_status (*accept)(struct weft_arrival *arrival, void *buffer, size_t buffer_bytes,
                               struct weft_completion *completion);
    void (*discard)(struct weft_arrival *arrival);
    const void *(*peek)(struct weft_arrival *arrival);
    bool (*peek_is_valid)(const struct weft_arrival *arrival);
};

struct weft_arrival {
    const struct weft_arrival_ops *ops; /* NULL: the transport's own */
    uint32_t peer_id;
    uint64_t tag;
    size_t payload_bytes;
    uint32_t header_bytes;
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
    struct weft_list link; /* free for the holder's use between handler and accept/discard */
    bool lost;             /* the peer was lost: accept returns WEFT_ERR_PEER_LOST; discard the arrival */
    /* set by the holder before accept: the payload is part of a buffer larger than the caches. A backend that
     * copies it may use non-temporal stores. */
    bool is_streamed;
};

/* ---- one-sided memory ---- */

enum weft_window_rights { WEFT_WINDOW_READ = 1, WEFT_WINDOW_WRITE = 2 };

#define WEFT_WINDOW_KEY_BYTES_MAX 192 /* fits into a message's header */
#define WEFT_ANY_PEER UINT32_MAX

/* a range of local memory that peers can access; owned by the transport until closed */
struct weft_window;
struct weft_registration; /* registered user memory; owned by the transport until unregistered */
struct weft_remote; /* an imported window of a peer; owned by the transport until released */

struct weft_window_options {
    size_t size;     /* sizeof(struct weft_window_options) */
    void *address;   /* (bytes,); borrowed until the completion of weft_window_close has run */
    size_t bytes;    /* > 0 */
    enum weft_memory_kind kind;
    unsigned rights; /* enum weft_window_rights, or-ed */
    /* the peer that may use it, or WEFT_ANY_PEER (of this job); not every backend can enforce one peer */
    uint32_t peer_id;
};

/* Memory that the processor does not access. Payloads in it are moved by devices alone, at every size. */
struct weft_direct_memory {
    void *address;   /* (bytes,) in operations */
    size_t bytes;    /* > 0 */
    int descriptor;  /* dma-buf of the memory, borrowed; -1: the devices' driver resolves the address */
    uint64_t offset; /* of the range in the dma-buf */
};
/* Ways to register direct memory; bits. */
enum weft_direct_kinds { WEFT_DIRECT_DMABUF = 1, WEFT_DIRECT_POINTER = 2 };

struct weft_put {
    const void *source; /* (bytes,); borrowed until the completion runs */
    size_t bytes;       /* 0: only the notification */
    uint64_t offset;    /* in the remote window */
    bool notify;        /* send the message below after the bytes */
    uint64_t tag;
    const void *header; /* copied before put returns; up to WEFT_TRANSPORT_HEADER_BYTES_MAX */
    uint32_t header_bytes;
};

/* Abilities beyond messages; bits. */
enum weft_transport_abilities {
    WEFT_TRANSPORT_WINDOWS = 1, /* windows, put, get */
    /* weft_remote_map works for weft_memory_alloc memory of peers on this host with the same ability */
    WEFT_TRANSPORT_MAPS = 2,
};

struct weft_transport_stats {
    uint64_t sent_bytes, received_bytes;         /* header + payload of data messages, counted once at the
                                                  * wire */
    uint64_t sent_payload_bytes, received_payload_bytes;
    uint64_t sent_count, received_count;         /* messages */
    uint64_t unexpected_count;                   /* messages that arrived before their receive */
    uint64_t refused_count;                      /* wrong nonce, unknown sender, bad length: dropped */
    uint64_t put_bytes, get_bytes, put_count, get_count; /* one-sided operations started here */
    /* cost of the work; 0 if the backend cannot count it */
    uint64_t copied_bytes; /* bytes copied by the processor, once per pass over the payload */
    uint64_t system_call_count;                  /* for data or to wake a peer; sleeping is not counted */
    uint64_t work_request_count, doorbell_count, signalled_count; /* verbs */
    uint64_t memory_bytes, memory_peer_bytes;    /* current memory of all peers; of the peer with most */
};

struct weft_transport_options {
    size_t size;              /* sizeof(struct weft_transport_options) */
    /* "auto" (best backend for each peer), "shm", "verbs", "ucx", "tcp", "sim", or wrapped: "fault:ucx",
     * "delay:sim"; required */
    const char *backend;
    uint32_t id;              /* this endpoint's id, unique in the job; required */
    uint64_t nonce;           /* of the job; messages with another nonce are dropped and counted */
    /* default 0: chosen by the backend (tcp 512 KiB, ucx over tcp 256 KiB, else 8 KiB) */
    size_t eager_bytes_max;
    /* bytes of eager messages of one peer that may wait here; beyond them a peer announces. 64 KiB at least;
     * default 0: chosen by the backend. verbs and sim have no such bound */
    size_t unread_bytes_max;
    const char *lanes;        /* ucx: "tcp", "shm" or a UCX_TLS list; default "tcp" */
    const char *devices;      /* network devices for ucx and tcp, RDMA devices for verbs, comma separated;
                               * default "lo" */
    /* sim: the simulation of this endpoint; borrowed. NULL: simulation and host of the env */
    struct weft_sim *sim;
    uint32_t sim_host;        /* sim: index of its host */
    /* of the job: endpoints prove to each other that they hold it; NULL: peers of one host and user only */
    const void *secret;
    size_t secret_bytes;
    const char *ports;        /* "first-last": TCP ports to listen on; NULL or "": any */
    /* settings of the backend, "name=value,name=value", listed in its header; NULL or "": none */
    const char *tune;
    const char *wrap;         /* parameters of fault:, delay:, trace:, e.g.
                               * "drop=0.01,delay_us=100,kill_after=1000,seed=7"; of nested wrappers from
                               * the outermost in, separated by ';', each of which may begin with its name
                               * and ':' */
    /* Runs once for a lost peer, from progress, after all operations with it have completed. */
    void (*peer_failed)(void *context, uint32_t peer_id, enum weft_status status, const char *text);
    void *peer_failed_context;
};
void weft_transport_options_init(struct weft_transport_options *options);
/* Sets options->backend and ->wrap from the name of a backend and a wrapper with parameters in user
 * notation: "fault:drop=0.01,seed=7", "delay", several from the outermost in
 * ("delay:delay_us=5;trace:file=t-%e.json"), or "" (none). `composed_out` receives the composed name.
 * `composed_out` and `wrap` must live until the endpoint is open. WEFT_ERR_LIMIT: the name is too long. */
#define WEFT_TRANSPORT_BACKEND_BYTES_MAX 128
enum weft_status weft_transport_options_wrap(struct weft_transport_options *options, const char *backend,
                                             const char *wrap,
                                             char composed_out[WEFT_TRANSPORT_BACKEND_BYTES_MAX]);

/* ---- functions of a backend; called by the core only ---- */

/* Registrations of user memory. */
struct weft_transport_memory_ops {
    /* Registers (bytes,) at `address` with the devices until unpin; operations then find the registration.
     * May block. *registered_out stays NULL if the backend needs no registration. */
    enum weft_status (*pin)(struct weft_transport *transport, void *address, size_t bytes,
                            void **registered_out, struct weft_error *error);
    void (*unpin)(struct weft_transport *transport, void *kept);
    /* As weft_transport_direct_kinds and weft_transport_register_direct; all NULL: no direct memory. */
    unsigned (*direct_kinds)(struct weft_transport *transport);
    enum weft_status (*direct_pin)(struct weft_transport *transport, const struct weft_direct_memory *memory,
                                   void **registered_out, struct weft_error *error);
    void (*direct_unpin)(struct weft_transport *transport, void *kept);
};

struct weft_transport_ops {
    const char *name;

    /* Creates the backend part of `transport`. May block. On failure nothing remains. */
    enum weft_status (*open)(struct weft_transport *transport, const struct weft_transport_options *options,
                             struct weft_error *error);
    /* Stops new work; operations in flight complete with WEFT_ERR_CLOSED. Does not block. */
    void (*close)(struct weft_transport *transport);
    /* True if nothing is in flight and free may be called. Call progress in between. */
    bool (*drained)(struct weft_transport *transport);
    /* After drained, or to give up waiting for it. Cannot fail. */
    void (*free)(struct weft_transport *transport);

    /* The blob for ops->connect of peers; valid until free. */
    enum weft_status (*address)(struct weft_transport *transport, const void **blob_out, size_t *bytes_out);
    /* Does not block. WEFT_OK: messages may be sent; the peer may still be unreachable. Malformed blob:
     * WEFT_ERR_MALFORMED. */
    enum weft_status (*connect)(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                                size_t bytes);
    /* Forgets a peer: its operations complete with `status`, exactly once each, as soon as their buffers
     * are safe. May be called again if a peer that closes in order turns out to be dead. */
    void (*disconnect)(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);

    /* WEFT_IN_PROGRESS: a completion follows. WEFT_ERR_AGAIN or another error: nothing was queued. */
    enum weft_status (*send)(struct weft_transport *transport, struct weft_peer *peer,
                             const struct weft_message *message, struct weft_completion *completion);
    /* Moves the payload of `arrival` into `buffer` (>= payload_bytes), then completes. Ends the arrival. */
    enum weft_status (*accept)(struct weft_transport *transport, struct weft_arrival *arrival, void *buffer,
                               struct weft_completion *completion);
    /* Drops the payload; the send of the peer completes with WEFT_OK. */
    void (*discard)(struct weft_transport *transport, struct weft_arrival *arrival);
    /* As weft_transport_peek and weft_transport_peek_is_valid. Both NULL: the backend maps no payload. */
    const void *(*peek)(struct weft_transport *transport, struct weft_arrival *arrival);
    bool (*peek_is_valid)(struct weft_transport *transport, const struct weft_arrival *arrival);

    /* One-sided access; all NULL if the backend has none. The core has checked ranges and rights. */
    unsigned abilities; /* bits of enum weft_transport_abilities that an endpoint of this backend can have */
    /* Fill window->key and key_bytes. May block for the registration. */
    enum weft_status (*window_open)(struct weft_transport *transport, struct weft_window *window,
                                    struct weft_error *error);
    /* Rejects new access; calls core_finish(&window->done) when no peer can access the memory. Does not
     * block. */
    void (*window_close)(struct weft_transport *transport, struct weft_window *window);
    /* Frees the record, after window_close has finished or when the endpoint is given up. */
    void (*window_free)(struct weft_transport *transport, struct weft_window *window);
    /* Fills remote->bytes, rights and backend from a key of `remote->peer`. WEFT_ERR_MALFORMED: not such a
     * key. */
    enum weft_status (*import)(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                               size_t bytes);
    /* called with nothing in flight on it */
    void (*release)(struct weft_transport *transport, struct weft_remote *remote);
    /* NULL: not possible; the pointer itself may be NULL */
    void *(*map)(struct weft_transport *transport, struct weft_remote *remote);
    /* As send. WEFT_OK: complete, its record is freed and `completion` is untouched. */
    enum weft_status (*put)(struct weft_transport *transport, struct weft_remote *remote,
                            const struct weft_put *put, struct weft_completion *completion);
    enum weft_status (*get)(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                            void *destination, size_t bytes, struct weft_completion *completion);
    /* Maps all weft_memory_alloc memory of the peer; WEFT_ERR_UNSUPPORTED: not possible. These four may be
     * NULL. */
    enum weft_status (*map_peer)(struct weft_transport *transport, struct weft_peer *peer,
                                 struct weft_mapping *mapping_out);
    void (*wake)(struct weft_transport *transport, struct weft_peer *peer);
    bool (*is_detached)(struct weft_transport *transport, const struct weft_peer *peer);
    enum weft_status (*copy_peer)(struct weft_transport *transport, struct weft_peer *peer, bool outward,
                                  /* bytes 0: tests whether a copy would work */
                                  uint64_t address, void *local, size_t bytes);
    struct weft_transport_memory_ops memory; /* all NULL: the backend needs no registration */
    /* Writes one line about the path to the peer: "mapped", "CMA", "rc mlx5_0:1 gid 3 mtu 4096". NULL: the
     * endpoint's name. */
    void (*describe)(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes);
    /* Updates those fields of transport->stats that are not counted at once. May be NULL. */
    void (*count)(struct weft_transport *transport);

    /* As weft_transport_is_flushed; NULL: always true. */
    bool (*flushed)(struct weft_transport *transport);
    /* Does at most `budget` units of work. Completions and handlers run here only. */
    int (*progress)(struct weft_transport *transport, int budget);
    /* As struct weft_pollable.arm. */
    enum weft_status (*arm)(struct weft_transport *transport);
    /* Readable when progress has work after a successful arm; -1: the endpoint must be polled (sim). */
    int (*fd)(struct weft_transport *transport);
};

/* ---- public functions ---- */
enum weft_status weft_transport_open(struct weft_env *env, const struct weft_transport_options *options,
                                     struct weft_transport **transport_out, struct weft_error *error);
void weft_transport_close(struct weft_transport *transport);
bool weft_transport_drained(struct weft_transport *transport);
void weft_transport_free(struct weft_transport *transport); /* NULL is fine */

enum weft_status weft_transport_address(struct weft_transport *transport, const void **blob_out,
                                        size_t *bytes_out);
enum weft_status weft_transport_connect(struct weft_transport *transport, uint32_t peer_id, const void *blob,
                                        size_t bytes, struct weft_peer **peer_out);
/* What a user can do if connect returned this status, as the end of a sentence; "" if nothing is known. */
const char *weft_transport_connect_hint(enum weft_status status);
struct weft_peer *weft_transport_peer(struct weft_transport *transport, uint32_t peer_id); /* NULL: unknown */
uint32_t weft_peer_id(const struct weft_peer *peer);
enum weft_status weft_peer_status(const struct weft_peer *peer); /* WEFT_OK, or why the peer is lost */
/* Reports the death of a peer to the transport. peer_failed runs from progress, as if the backend had
 * detected it. */
void weft_transport_fail_peer(struct weft_transport *transport, uint32_t peer_id, enum weft_status status,
                              const char *text);

enum weft_status weft_transport_send(struct weft_peer *peer, const struct weft_message *message,
                                     struct weft_completion *completion);
/* Post a receive for (peer_id, tag). WEFT_IN_PROGRESS, or an error (nothing posted). */
enum weft_status weft_transport_recv(struct weft_transport *transport, uint32_t peer_id, uint64_t tag,
                                     struct weft_receive *receive);
/* Completes the receive with WEFT_ERR_CANCELLED, unless it has matched a message: then it completes
 * normally. */
void weft_transport_cancel(struct weft_transport *transport, struct weft_receive *receive);
/* False while the receive can be cancelled: no message has matched it, and it has not ended. */
bool weft_receive_is_matched(const struct weft_receive *receive);

/* Discards messages with (tag & mask) == tag that match no posted receive: those that wait already and all
 * later ones, before any handler, until the rule is removed by `on` false. Their sends complete with
 * WEFT_OK. For the owner of tags that are out of use, such as those of an ended group. The newest
 * WEFT_DISCARD_RULES_MAX rules count, which bounds memory and look-up. WEFT_OK or WEFT_ERR_NO_MEMORY. */
#define WEFT_DISCARD_RULES_MAX 512u
enum weft_status weft_transport_discard_tags(struct weft_transport *transport, uint64_t tag, uint64_t mask,
                                             bool on);

/* Discards by predicate: called for a message of `channel` that matches no posted receive. For the owner
 * of too many tags for rules. The predicate must not call the transport. NULL: none. Messages that wait
 * already stay. */
typedef bool (*weft_discard_filter_fn)(void *context, uint64_t tag);
void weft_transport_set_discard_filter(struct weft_transport *transport, uint8_t channel,
                                       weft_discard_filter_fn fn, void *context);

void weft_transport_handler(struct weft_transport *transport, uint8_t channel, weft_arrival_fn fn,
                            void *context);
/* NULL: no handler */
void *weft_transport_handler_context(const struct weft_transport *transport, uint8_t channel);
/* Reports each peer that is lost or has closed, once, from progress, before its operations have completed.
 * One watcher per endpoint, in addition to peer_failed. fn NULL: none. */
typedef void (*weft_peer_lost_fn)(void *context, uint32_t peer_id, enum weft_status status);
void weft_transport_watch(struct weft_transport *transport, weft_peer_lost_fn fn, void *context);
enum weft_status weft_transport_accept(struct weft_transport *transport, struct weft_arrival *arrival,
                                       void *buffer, size_t buffer_bytes, struct weft_completion *completion);
void weft_transport_discard(struct weft_transport *transport, struct weft_arrival *arrival);
/* weft_transport_peek() - (payload_bytes,) of an announced payload in the memory of its sender, mapped into
 * this process. NULL: the payload cannot be mapped; accept it. Any thread may read it until the arrival ends
 * (accept, discard, or the free of the endpoint). The sender keeps the payload until then, unless its end of
 * the connection has ended: after the last read the caller checks weft_transport_peek_is_valid. UNTRUSTED:
 * the sender may change it meanwhile. */
const void *weft_transport_peek(struct weft_arrival *arrival);
/* False: the sender may have reused the payload before this call, so bytes read from it have no meaning. */
bool weft_transport_peek_is_valid(const struct weft_arrival *arrival);

/* ---- one-sided ---- */

/* weft_memory_alloc() - page-aligned, zeroed and touched host memory. Peers on this host can map it, and
 * devices register it once. For every endpoint of the process, any thread; blocks for the first touch. Do
 * not free memory that an operation or window uses. */
enum weft_status weft_memory_alloc(struct weft_env *env, size_t bytes, void **memory_out,
                                   struct weft_error *error);
void weft_memory_free(struct weft_env *env, void *memory); /* NULL is fine */

/* weft_memory_reserve() - as weft_memory_alloc, but no page is taken: weft_memory_commit takes the pages of
 * (bytes,) at `at` inside it, zeroed at the first time. Do not access memory that is not committed. Steps of
 * WEFT_MEMORY_STEP_BYTES, from the start of the range, can be huge pages. WEFT_ERR_NO_MEMORY: the system has
 * no pages, and the caller may try again. Any thread. */
#define WEFT_MEMORY_STEP_BYTES ((size_t)2 << 20)
enum weft_status weft_memory_reserve(struct weft_env *env, size_t bytes, void **memory_out,
                                     struct weft_error *error);
enum weft_status weft_memory_commit(void *at, size_t bytes);

/* weft_transport_register() - registers (bytes,) at `address`, readable and writable host memory of the
 * user, with the devices of the backend, so that the first operation does not pay for it. Grants no access
 * to peers. The memory must stay mapped until weft_transport_unregister or weft_transport_free. May block.
 * WEFT_OK with backends that need no registration. WEFT_ERR_LIMIT: the process may not lock more memory. */
enum weft_status weft_transport_register(struct weft_transport *transport, void *address, size_t bytes,
                                         struct weft_registration **registration_out,
                                         struct weft_error *error);
void weft_transport_unregister(struct weft_registration *registration); /* NULL is fine */
/* Which memory the devices of this endpoint can access directly: bits of enum weft_direct_kinds, 0: none. */
unsigned weft_transport_direct_kinds(struct weft_transport *transport);
/* weft_transport_register_direct() - registers direct memory. Sends from it and receives into it then move
 * payloads by the devices alone, and so do puts and gets with it as local memory. Peers must announce what is
 * received into it: they call weft_peer_announce_all first. Ranges may overlap and end in any order. The
 * memory must stay allocated until weft_transport_unregister, and until the operations on it have completed.
 * May block. WEFT_ERR_UNSUPPORTED (the backend, or this kind), WEFT_ERR_INVALID, WEFT_ERR_LIMIT,
 * WEFT_ERR_NO_MEMORY. */
enum weft_status weft_transport_register_direct(struct weft_transport *transport,
                                                const struct weft_direct_memory *memory,
                                                struct weft_registration **registration_out,
                                                struct weft_error *error);
/* From now on every payload to this peer is announced, at any size, and moves when the peer has a buffer.
 * Call it before the first send. No effect on backends without direct memory. */
void weft_peer_announce_all(struct weft_peer *peer);

unsigned weft_transport_abilities(const struct weft_transport *transport);

/* Opens `options->address` to peers. May block for the registration. WEFT_ERR_UNSUPPORTED: the backend has
 * no windows or cannot access this kind of memory. On failure nothing is open. */
enum weft_status weft_window_open(struct weft_transport *transport, const struct weft_window_options *options,
                                  struct weft_window **window_out, struct weft_error *error);
/* The key for peers: at most WEFT_WINDOW_KEY_BYTES_MAX bytes, valid until the window is closed. */
void weft_window_key(const struct weft_window *window, const void **key_out, size_t *bytes_out);
/* Rejects new access. `completion` runs from progress when no peer can access the memory, including lost
 * and stopped peers; until then the memory is busy. The handle is invalid after the completion. */
void weft_window_close(struct weft_window *window, struct weft_completion *completion);

/* Imports a key of `peer`. Does not block. WEFT_ERR_MALFORMED: not a key of this peer and backend. */
enum weft_status weft_transport_import(struct weft_peer *peer, const void *key, size_t bytes,
                                       struct weft_remote **remote_out);
size_t weft_remote_bytes(const struct weft_remote *remote);
/* The window's memory mapped into this process, or NULL if only put and get can access it. Valid until
 * release. The caller synchronises with the owner, by messages for example. After the peer's death the
 * memory stays readable. */
void *weft_remote_map(struct weft_remote *remote);
/* WEFT_ERR_BUSY: operations are in flight, nothing was released. */
enum weft_status weft_remote_release(struct weft_remote *remote);

/* Writes into a remote window. WEFT_OK: complete; `completion` does not run for this put (a completion
 * that counts several needs weft_completion_finish). WEFT_IN_PROGRESS: the completion runs from progress.
 * WEFT_ERR_AGAIN or another error: nothing is queued. Equal puts may return either. Complete means that
 * the source is reusable and the bytes are in the peer's memory; the peer's processor may read them after
 * the notification. Puts are not ordered with other puts or messages. WEFT_ERR_INVALID: outside the
 * window, or no such right. Completes with WEFT_ERR_CANCELLED if the window was closed. */
enum weft_status weft_transport_put(struct weft_remote *remote, const struct weft_put *put,
                                    struct weft_completion *completion);
/* Reads (bytes,) at `offset` of a remote window into `destination`; otherwise as put. */
enum weft_status weft_transport_get(struct weft_remote *remote, uint64_t offset, void *destination,
                                    size_t bytes, struct weft_completion *completion);

/* ---- shared memory of peers ---- for protocols in mapped memory (the one-host collectives) */

/* Offset of (bytes,) at `address` in the weft_memory_alloc memory of this process, as a peer that maps it
 * needs it. False: not entirely such memory. Any thread. */
bool weft_memory_locate(const void *address, size_t bytes, uint64_t *offset_out);

/* Bits of enum weft_transport_abilities of the path to this peer. MAPS: weft_peer_map works, unless the
 * peer has no such memory. */
unsigned weft_peer_abilities(const struct weft_peer *peer);

/* All weft_memory_alloc memory of the peer's process, mapped here: the peer's offset o is base + o. Stays
 * mapped until released, also after the peer's end. Ranges that the peer has freed read as zeros, so an
 * access cannot fault. The two processes agree on ranges and times of access. */
struct weft_mapping {
    uint8_t *base;
    size_t bytes;
    void *view; /* private to the transport */
};
/* WEFT_ERR_UNSUPPORTED: cannot be mapped. This may change when the first message of the peer arrives. */
enum weft_status weft_peer_map(struct weft_peer *peer, struct weft_mapping *mapping_out);
void weft_mapping_release(struct weft_mapping *mapping); /* a zeroed one is fine */
/* Copies (bytes,) of ordinary memory of the peer, at `address` in the peer's process, to `local`; outward:
 * the other direction. One system call, complete on return. The two processes agree on ranges and times of
 * access. bytes 0: tests whether the system allows it. WEFT_ERR_UNSUPPORTED: it does not. _PEER_LOST: the
 * process has ended. _INVALID: no such memory. */
enum weft_status weft_peer_copy(struct weft_peer *peer, bool outward, uint64_t address, void *local,
                                size_t bytes);
/* A memcpy with non-temporal (streaming) stores: the destination is neither read before nor left in a
 * cache. Complete on return, with the store order of a memcpy. */
void weft_copy_nontemporal(void *to, const void *from, size_t bytes);
/* Makes the lines of (bytes,) of mapped memory exclusive to this core, by storing into each line its own
 * value. For memory that the peer wrote, only this process has read, and the peer writes next: a line in
 * two caches makes its writer wait, an exclusive line moves. During the call the peer must neither write
 * nor free the memory. Does nothing below a minimum size (docs/decisions/0015-readers-take-lines.md). */
void weft_claim_lines(const void *memory, size_t bytes);
/* Makes a peer that may sleep step its loop, after a store that it waits for. One system call, only if the
 * peer sleeps. */
void weft_peer_wake(struct weft_peer *peer);
/* True if the peer's process has ended or has closed its endpoint, so it accesses no memory. A lost peer
 * whose process runs, or is stopped, is not detached. */
bool weft_peer_is_detached(struct weft_peer *peer);

/* Largest payload that travels with its header to this peer. A larger payload is announced and waits for
 * the grant: two more one-way trips. */
size_t weft_peer_eager_bytes(const struct weft_peer *peer);

/* Message size at which a long payload moves fastest; 0: unknown. Equal for all endpoints of a backend,
 * whatever their options. */
size_t weft_transport_message_bytes(const struct weft_transport *transport);

/* Writes one line about the path to this peer: "shm mapped", "ucx tcp", "verbs mlx5_0:1 gid 3 mtu 4096".
 * Cut to `bytes`. */
void weft_peer_describe(struct weft_peer *peer, char *out, size_t bytes);

/* Bytes of the messages and puts to this peer that were started. */
uint64_t weft_peer_sent_bytes(const struct weft_peer *peer);

int weft_transport_progress(struct weft_transport *transport, int budget);
/* True: all that complete operations have sent reaches the peers without further progress of this endpoint.
 * A caller that progresses only while it has open operations keeps them open until then. */
bool weft_transport_is_flushed(struct weft_transport *transport);
/* Makes the endpoint a pollable of `loop`; close removes it. */
enum weft_status weft_transport_attach(struct weft_transport *transport, struct weft_loop *loop);
void weft_transport_stats(struct weft_transport *transport, struct weft_transport_stats *stats_out);
const char *weft_transport_name(const struct weft_transport *transport); /* "ucx tcp", "fault:sim" */
struct weft_env *weft_transport_env(struct weft_transport *transport);
uint32_t weft_transport_id(const struct weft_transport *transport);

/* Fault wrapper, for tests: from now on messages to and from this peer are lost / the endpoint is silent. */
enum weft_status weft_transport_fault_cut(struct weft_transport *transport, uint32_t peer_id);
enum weft_status weft_transport_fault_kill(struct weft_transport *transport);

/* ---- the simulator ---- (transport/sim) one thread, virtual time, one seed */
struct weft_sim;
struct weft_topology; /* a network read from a file; grammar and meaning: docs/simulator.md */

/* Reads a topology file. WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_MALFORMED (the text names file, line
 * and what to write instead), WEFT_ERR_NO_MEMORY. weft_topology_parse reads text in memory; `name` stands
 * for the file. */
enum weft_status weft_topology_load(struct weft_env *env, const char *path,
                                    struct weft_topology **topology_out, struct weft_error *error);
enum weft_status weft_topology_parse(struct weft_env *env, const char *name, const char *content,
                                     size_t bytes, struct weft_topology **topology_out,
                                     struct weft_error *error);
/* NULL is fine; after every simulation that uses it */
void weft_topology_free(struct weft_topology *topology);
uint32_t weft_topology_hosts(const struct weft_topology *topology);
void weft_topology_describe(const struct weft_topology *topology, char *out, size_t bytes); /* one line */

struct weft_sim_options {
    size_t size;
    uint64_t seed;
    uint32_t host_count;          /* default 1; a topology sets its own number */
    /* borrowed until weft_sim_free; NULL: an ideal network with the values below */
    const struct weft_topology *topology;
    uint64_t latency_ns;          /* one way between hosts, default 5,000 */
    uint64_t jitter_ns;           /* uniform 0..jitter added, default 1,000 */
    uint64_t bytes_per_second;    /* of one host's link, each direction; default 12,500,000,000; 0:
                                   * unlimited */
    uint64_t detect_ns;           /* from a death to peer_failed at its peers, default 100 ms */
    /* a host's clock advances only with the simulation; default: also 1 ns at each reading */
    bool still_clock;
    /* every announced payload can be peeked, as between processes of one host; no peer can be mapped */
    bool maps_payloads;
    bool timing_only; /* payloads take time but are not read, written or copied; any address is legal */
    /* allocation unit for objects in flight, default 256 KiB; 0: one allocation per object */
    size_t slab_bytes;
};
void weft_sim_options_init(struct weft_sim_options *options);
enum weft_status weft_sim_create(struct weft_env *env, const struct weft_sim_options *options,
                                 struct weft_sim **sim_out);
void weft_sim_free(struct weft_sim *sim);
/* The env of one host: virtual clock, seeded random, the outer env's allocator and log. Owned by the sim. */
struct weft_env *weft_sim_env(struct weft_sim *sim, uint32_t host);
/* Adds a loop (virtual_time) to a host; a host may have several. Removed by weft_sim_remove or by the
 * host's death. */
enum weft_status weft_sim_add(struct weft_sim *sim, uint32_t host, struct weft_loop *loop);
void weft_sim_remove(struct weft_sim *sim, struct weft_loop *loop);
/* Steps the host before time moves: a timer or message of one of its loops was added from outside. */
void weft_sim_wake(struct weft_sim *sim, uint32_t host);
/* Runs until *done, until virtual until_ns (WEFT_ERR_DEADLINE), or until no event is left
 * (WEFT_ERR_STATE). */
enum weft_status weft_sim_run(struct weft_sim *sim, const bool *done, uint64_t until_ns);
void weft_sim_kill(struct weft_sim *sim, uint32_t host); /* at once; its loops are not stepped again */
void weft_sim_kill_at(struct weft_sim *sim, uint32_t host, uint64_t time_ns);
/* Stops stepping the loops of a host, as for a stopped process. Transfers in flight go on; arrivals wait. */
void weft_sim_freeze(struct weft_sim *sim, uint32_t host, bool frozen);
/* its links are this many times slower */
void weft_sim_slow(struct weft_sim *sim, uint32_t host, uint32_t factor);
void weft_sim_partition(struct weft_sim *sim, uint32_t host_a, uint32_t host_b, bool cut);
uint64_t weft_sim_now_ns(const struct weft_sim *sim);
uint64_t weft_sim_event_count(const struct weft_sim *sim);
/* Counters of a topology's links. */
struct weft_sim_traffic {
    uint64_t bursts;       /* bursts sent, including retries */
    /* lost: bursts and acknowledgements; overflowed: those lost to a full buffer */
    uint64_t retried, lost, duplicated, overflowed;
    uint64_t queue_max_ns; /* longest wait for a link */
};
void weft_sim_traffic(const struct weft_sim *sim, struct weft_sim_traffic *traffic_out);
/* Load of the links of one [link] section, both directions together. The ideal network has one section,
 * "host link". False: there is no section `index`. */
struct weft_sim_link_use {
    char name[32];
    uint64_t links;               /* directed links */
    uint64_t bytes, busiest_bytes;/* sum; of the link with most */
    double bytes_per_second;      /* of one link; 0: unlimited */
};
bool weft_sim_link_use(const struct weft_sim *sim, uint32_t index, struct weft_sim_link_use *use_out);
/* One-way latency and lowest rate (0: unlimited) on the path between two hosts, from port `rail` to port
 * `rail`, without other traffic. */
void weft_sim_path(const struct weft_sim *sim, uint32_t host_a, uint32_t host_b, uint32_t rail,
                   uint64_t *latency_ns_out, double *bytes_per_second_out);
/* number of ports; 1 on the ideal network */
uint32_t weft_sim_rails(const struct weft_sim *sim, uint32_t host);
/* Hash of all events so far, in order. Equal seeds and calls give equal traces. */
uint64_t weft_sim_trace(const struct weft_sim *sim);

/* ---- link measurements ---- */
#include "transport/probe/calibration.h"
#include "transport/probe/link_cost.h"
#include "transport/probe/link_ring.h"
#include "transport/probe/link_sites.h"
#include "transport/probe/link_table.h"
#include "transport/probe/probe.h"

#endif
