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
 * Everything that answers WEFT_IN_PROGRESS completes exactly once, from inside weft_transport_progress, never
 * from inside the call that started it. A put or get may also end inside its call: it then answers WEFT_OK,
 * and its completion is not run, now or later. WEFT_ERR_AGAIN means nothing was queued.
 *
 * A dead peer: every operation with it completes with WEFT_ERR_PEER_LOST and `peer_failed` is called
 * once. One that closed in order ends the same way, except that small messages it had sent before, whose
 * payload has travelled along, can still be received. A backend may see a death late or not at all (shared
 * memory): it is told by weft_transport_fail_peer.
 * Buffer rule: when a completion has run, no peer and no backend touches the buffer any more. A deadline ends
 * the *wait* of somebody above; his buffer is busy until its completion has run. To get it back sooner he
 * cancels the receive, closes the window, or fails the peer.
 *
 * One-sided: the owner of memory opens a *window* on it and gives its key to a peer (in a message's
 * header); the peer imports the key as a *remote* and puts into or gets from it, without any call of the
 * owner. A put may carry a *notification*: a message without payload that arrives after the put's bytes
 * can be read. */
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
    WEFT_CHANNEL_GROUP_CONTROL = 4,       /* between the ranks of groups, beside their operations: handler
                                           * (collective/core/control_router.c) */
    WEFT_CHANNEL_PROBE = 14,     /* link measurements (probe/): handler on both sides */
    WEFT_CHANNEL_TEST = 15,
};

struct weft_transport; /* one endpoint */
struct weft_mapping;
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
    uint64_t posted_ns; /* while somebody traces */
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

/* ---- memory that peers reach by themselves ---- */

enum weft_window_rights { WEFT_WINDOW_READ = 1, WEFT_WINDOW_WRITE = 2 };

#define WEFT_WINDOW_KEY_BYTES_MAX 192 /* fits into a message's header */
#define WEFT_ANY_PEER UINT32_MAX

/* a range of the owner's memory that peers may reach; owned by the transport until closed */
struct weft_window;
struct weft_registration; /* of the user's memory; owned by the transport until unregistered */
struct weft_remote; /* a peer's window, as seen from here; owned by the transport until released */

struct weft_window_options {
    size_t size;     /* sizeof(struct weft_window_options) */
    void *address;   /* (bytes,); borrowed until the completion of weft_window_close has run */
    size_t bytes;    /* > 0 */
    enum weft_memory_kind kind;
    unsigned rights; /* enum weft_window_rights, or-ed */
    uint32_t peer_id; /* who may use it, or WEFT_ANY_PEER (of this job); a backend may be unable to tell
                       * peers apart */
};

struct weft_put {
    const void *source; /* (bytes,); borrowed until the completion runs */
    size_t bytes;       /* 0: only the notification */
    uint64_t offset;    /* in the remote window */
    bool notify;        /* send the message below behind the bytes */
    uint64_t tag;
    const void *header; /* copied before put returns; up to WEFT_TRANSPORT_HEADER_BYTES_MAX */
    uint32_t header_bytes;
};

/* What an endpoint can do beyond messages (or-ed). */
enum weft_transport_abilities {
    WEFT_TRANSPORT_WINDOWS = 1, /* windows, put, get */
    WEFT_TRANSPORT_MAPS = 2,    /* weft_remote_map answers for memory from weft_memory_alloc, with a peer
                                 * on this host that says so, too */
};

struct weft_transport_stats {
    uint64_t sent_bytes, received_bytes;         /* header + payload of data messages, counted once at the
                                                  * wire */
    uint64_t sent_payload_bytes, received_payload_bytes;
    uint64_t sent_count, received_count;         /* messages */
    uint64_t unexpected_count;                   /* messages that came before their receive */
    uint64_t refused_count;                      /* wrong nonce, unknown sender, bad length: dropped */
    uint64_t put_bytes, get_bytes, put_count, get_count; /* one-sided operations started here */
    /* what the work cost; 0 where a backend cannot know */
    uint64_t copied_bytes;                       /* by the processor, every pass over payload counted once */
    uint64_t system_call_count;                  /* made for data or for waking a peer; sleeping not
                                                  * counted */
    uint64_t work_request_count, doorbell_count, signalled_count; /* verbs */
    uint64_t memory_bytes, memory_peer_bytes;    /* held now for all peers; the most for one of them */
};

struct weft_transport_options {
    size_t size;              /* sizeof(struct weft_transport_options) */
    const char *backend;      /* "auto" (the best for each peer), "shm", "verbs", "ucx", "tcp", "sim", or
                               * wrapped: "fault:ucx", "delay:sim" ...; required */
    uint32_t id;              /* this endpoint's id, unique in the job; required */
    uint64_t nonce;           /* of the job; messages with another nonce are dropped and counted */
    size_t eager_bytes_max;   /* default 0: the backend's choice (tcp 512 KiB, ucx over tcp 256 KiB, else 8
                               * KiB) */
    const char *lanes;        /* ucx: "tcp", "shm" or a UCX_TLS list; default "tcp" */
    const char *devices;      /* network devices for ucx and tcp, RDMA devices for verbs, comma separated;
                               * default "lo" */
    struct weft_sim *sim;     /* sim: the simulation this endpoint lives in; borrowed. NULL: that of the
                               * env, and its host */
    uint32_t sim_host;        /* sim: index of its host */
    const void *secret;       /* of the job: endpoints prove to each other that they hold it; NULL: one
                               * host, one user only */
    size_t secret_bytes;
    const char *ports;        /* "first-last": TCP ports to listen on; NULL or "": any */
    const char *tune;         /* the backend's own settings, "name=value,name=value"; its header lists
                               * them; NULL or "": none */
    const char *wrap;         /* parameters of fault:, delay:, trace:, e.g.
                               * "drop=0.01,delay_us=100,kill_after=1000,seed=7"; of nested wrappers from
                               * the outermost in, separated by ';', each of which may begin with its name
                               * and ':' */
    /* A peer is gone; called once per peer, from progress, after its operations have completed. */
    void (*peer_failed)(void *context, uint32_t peer_id, enum weft_status status, const char *text);
    void *peer_failed_context;
};
void weft_transport_options_init(struct weft_transport_options *options);
/* Set options->backend and ->wrap from a backend's name and a wrapper with its parameters as a user writes
 * it: "fault:drop=0.01,seed=7", "delay", several from the outermost in
 * ("delay:delay_us=5;trace:file=t-%e.json"), or "" (none). `room` holds the composed name: keep it, and
 * `wrap`, until the endpoint is open. WEFT_ERR_LIMIT: it does not fit. */
#define WEFT_TRANSPORT_BACKEND_BYTES_MAX 128
enum weft_status weft_transport_options_wrap(struct weft_transport_options *options, const char *backend,
                                             const char *wrap, char room[WEFT_TRANSPORT_BACKEND_BYTES_MAX]);

/* ---- what each backend provides; reached only through the functions below ---- */
struct weft_transport_ops {
    const char *name;

    /* Make the backend's part of `transport`. May block for set-up. On failure nothing is left behind. */
    enum weft_status (*open)(struct weft_transport *transport, const struct weft_transport_options *options,
                             struct weft_error *error);
    /* No new work; operations in flight complete with WEFT_ERR_CLOSED. Never blocks. */
    void (*close)(struct weft_transport *transport);
    /* true when nothing is in flight any more and free may be called; call progress in between. */
    bool (*drained)(struct weft_transport *transport);
    /* After drained (or when giving up on it); never fails. */
    void (*free)(struct weft_transport *transport);

    /* The blob others connect with; valid until free. */
    enum weft_status (*address)(struct weft_transport *transport, const void **blob_out, size_t *bytes_out);
    /* Never blocks; WEFT_OK means "messages may be sent", not "reached". Malformed blob:
     * WEFT_ERR_MALFORMED. */
    enum weft_status (*connect)(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                                size_t bytes);
    /* Forget a peer: its operations complete with `status` (exactly once each) as soon as their buffers
     * are safe. May be called again for a peer that was taking its leave in order and is now known to be
     * dead. */
    void (*disconnect)(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);

    /* WEFT_IN_PROGRESS (completion follows), WEFT_ERR_AGAIN (nothing queued), or another error (nothing
     * queued). */
    enum weft_status (*send)(struct weft_transport *transport, struct weft_peer *peer,
                             const struct weft_message *message, struct weft_completion *completion);
    /* Move the payload of `arrival` into `buffer` (>= payload_bytes); then `completion`. Ends the arrival. */
    enum weft_status (*accept)(struct weft_transport *transport, struct weft_arrival *arrival, void *buffer,
                               struct weft_completion *completion);
    /* Drop it; its sender completes with WEFT_OK (the bytes were delivered to nobody). */
    void (*discard)(struct weft_transport *transport, struct weft_arrival *arrival);

    /* One-sided; all NULL when the backend has none. The core has checked ranges and rights. */
    unsigned abilities; /* enum weft_transport_abilities that can ever hold; see also the open endpoint's */
    /* Fill window->key and key_bytes. May block for the registration. */
    enum weft_status (*window_open)(struct weft_transport *transport, struct weft_window *window,
                                    struct weft_error *error);
    /* No new access from now on; core_finish(&window->done) when nobody can touch the memory any more.
     * Never blocks. */
    void (*window_close)(struct weft_transport *transport, struct weft_window *window);
    /* After window_close has finished, or when everything is given up: the record goes. */
    void (*window_free)(struct weft_transport *transport, struct weft_window *window);
    /* Fill remote->bytes, rights and backend from a key of `remote->peer`. WEFT_ERR_MALFORMED for anything
     * else. */
    enum weft_status (*import)(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                               size_t bytes);
    /* nothing is in flight on it */
    void (*release)(struct weft_transport *transport, struct weft_remote *remote);
    /* NULL: not possible; may itself be NULL */
    void *(*map)(struct weft_transport *transport, struct weft_remote *remote);
    /* As send; or WEFT_OK: it is over, its record is gone, and `completion` is not touched. */
    enum weft_status (*put)(struct weft_transport *transport, struct weft_remote *remote,
                            const struct weft_put *put, struct weft_completion *completion);
    enum weft_status (*get)(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                            void *destination, size_t bytes, struct weft_completion *completion);
    /* All of the peer's memory from weft_memory_alloc; WEFT_ERR_UNSUPPORTED: not possible. These four may
     * be NULL. */
    enum weft_status (*map_peer)(struct weft_transport *transport, struct weft_peer *peer,
                                 struct weft_mapping *mapping_out);
    void (*wake)(struct weft_transport *transport, struct weft_peer *peer);
    bool (*is_detached)(struct weft_transport *transport, const struct weft_peer *peer);
    enum weft_status (*copy_peer)(struct weft_transport *transport, struct weft_peer *peer, bool outward,
                                  uint64_t address, void *local, size_t bytes); /* bytes 0: would it work? */
    /* Register (bytes,) at `address` with the devices until memory_unregister, so that operations on it
     * find the registration. May block. *registered_out stays NULL if no registration is needed. Both
     * NULL: it never is. */
    enum weft_status (*memory_register)(struct weft_transport *transport, void *address, size_t bytes,
                                        void **registered_out, struct weft_error *error);
    void (*memory_unregister)(struct weft_transport *transport, void *kept);
    /* One line about the way to this peer: "mapped", "CMA", "rc mlx5_0:1 gid 3 mtu 4096". NULL: the
     * endpoint's name. */
    void (*describe)(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes);
    /* Bring the fields of transport->stats up to date that are not counted as they happen; may be NULL. */
    void (*count)(struct weft_transport *transport);

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

enum weft_status weft_transport_address(struct weft_transport *transport, const void **blob_out,
                                        size_t *bytes_out);
enum weft_status weft_transport_connect(struct weft_transport *transport, uint32_t peer_id, const void *blob,
                                        size_t bytes, struct weft_peer **peer_out);
/* What a user can do about a connect that answered so, to follow the status in a sentence; "" when nothing
 * is known. */
const char *weft_transport_connect_hint(enum weft_status status);
struct weft_peer *weft_transport_peer(struct weft_transport *transport, uint32_t peer_id); /* NULL: unknown */
uint32_t weft_peer_id(const struct weft_peer *peer);
enum weft_status weft_peer_status(const struct weft_peer *peer); /* WEFT_OK, or why it is lost */
/* The outside says that a peer is dead. As if the backend had noticed: peer_failed is called from
 * progress. */
void weft_transport_fail_peer(struct weft_transport *transport, uint32_t peer_id, enum weft_status status,
                              const char *text);

enum weft_status weft_transport_send(struct weft_peer *peer, const struct weft_message *message,
                                     struct weft_completion *completion);
/* Post a receive for (peer_id, tag). WEFT_IN_PROGRESS, or an error (nothing posted). */
enum weft_status weft_transport_recv(struct weft_transport *transport, uint32_t peer_id, uint64_t tag,
                                     struct weft_receive *receive);
/* Its completion runs with WEFT_ERR_CANCELLED unless it already matched (then it completes normally). */
void weft_transport_cancel(struct weft_transport *transport, struct weft_receive *receive);
/* Returns false while the posted receive can still be cancelled: no message was matched to it, and it has
 * not ended. */
bool weft_receive_is_matched(const struct weft_receive *receive);

/* Messages with (tag & mask) == tag that no posted receive takes are discarded, those that wait here
 * already and all that come later (a handler of their channel does not see them), until the same rule is
 * taken back with `on` false: their senders complete as if they had been received. For an owner of tags
 * who will never receive under them again (an ended group). The newest WEFT_DISCARD_RULES_MAX rules count,
 * so that their memory, and the look through them for a message, are bounded. WEFT_OK, or
 * WEFT_ERR_NO_MEMORY. */
#define WEFT_DISCARD_RULES_MAX 512u
enum weft_status weft_transport_discard_tags(struct weft_transport *transport, uint64_t tag, uint64_t mask,
                                             bool on);

/* The same by question: of a message of `channel` that no posted receive takes. For an owner of very many
 * tags, who need not keep a rule for each. It asks nothing of the transport. NULL: none. What waits
 * already stays. */
typedef bool (*weft_discard_filter_fn)(void *context, uint64_t tag);
void weft_transport_set_discard_filter(struct weft_transport *transport, uint8_t channel,
                                       weft_discard_filter_fn fn, void *context);

void weft_transport_handler(struct weft_transport *transport, uint8_t channel, weft_arrival_fn fn,
                            void *context);
/* NULL: no handler */
void *weft_transport_handler_context(const struct weft_transport *transport, uint8_t channel);
/* Hear of each peer that is lost or has left, once, from progress: at once, not only when its last
 * operation is over as peer_failed does. One watcher per endpoint, beside the opener's peer_failed; fn
 * NULL: no more. */
typedef void (*weft_peer_lost_fn)(void *context, uint32_t peer_id, enum weft_status status);
void weft_transport_watch(struct weft_transport *transport, weft_peer_lost_fn fn, void *context);
enum weft_status weft_transport_accept(struct weft_transport *transport, struct weft_arrival *arrival,
                                       void *buffer, size_t buffer_bytes, struct weft_completion *completion);
void weft_transport_discard(struct weft_transport *transport, struct weft_arrival *arrival);

/* ---- one-sided ---- */

/* weft_memory_alloc() - page-aligned, zeroed, touched host memory that peers on this host can map and that
 * is registered with a device only once. For any endpoint of this process, any thread; blocks for the
 * first touch. Freed memory must not be in use by any operation or window. */
enum weft_status weft_memory_alloc(struct weft_env *env, size_t bytes, void **memory_out,
                                   struct weft_error *error);
void weft_memory_free(struct weft_env *env, void *memory); /* NULL is fine */

/* weft_transport_register() - keep (bytes,) at `address`, readable and writable host memory of the user,
 * registered with the backend's devices, so that the first operation on it does not pay for the
 * registration. Gives no peer access. The memory stays mapped until weft_transport_unregister or
 * weft_transport_free. May block. WEFT_OK with backends that need no registration. WEFT_ERR_LIMIT: the
 * process may lock no more memory. */
enum weft_status weft_transport_register(struct weft_transport *transport, void *address, size_t bytes,
                                         struct weft_registration **registration_out,
                                         struct weft_error *error);
void weft_transport_unregister(struct weft_registration *registration); /* NULL is fine */

unsigned weft_transport_abilities(const struct weft_transport *transport);

/* Open `options->address` to peers. May block for the registration. WEFT_ERR_UNSUPPORTED: the backend has
 * no windows or cannot reach this kind of memory. On failure nothing is opened. */
enum weft_status weft_window_open(struct weft_transport *transport, const struct weft_window_options *options,
                                  struct weft_window **window_out, struct weft_error *error);
/* The key to carry to peers; at most WEFT_WINDOW_KEY_BYTES_MAX bytes; valid until the window is closed. */
void weft_window_key(const struct weft_window *window, const void **key_out, size_t *bytes_out);
/* No new access; `completion` runs (from progress) when no peer can touch the memory any more, a lost or a
 * stopped one neither: until then the memory is busy. The handle is gone with the completion. */
void weft_window_close(struct weft_window *window, struct weft_completion *completion);

/* A key of `peer`. Does not block. WEFT_ERR_MALFORMED: not a key of this peer and backend. */
enum weft_status weft_transport_import(struct weft_peer *peer, const void *key, size_t bytes,
                                       struct weft_remote **remote_out);
size_t weft_remote_bytes(const struct weft_remote *remote);
/* The window's memory in this process, to load and store in place, or NULL when only put and get can reach
 * it. Valid until release; the caller orders accesses with the owner himself (messages do). After the
 * peer's death it stays readable. */
void *weft_remote_map(struct weft_remote *remote);
/* WEFT_ERR_BUSY while operations on it are in flight (nothing is released then). */
enum weft_status weft_remote_release(struct weft_remote *remote);

/* Write into a remote window. WEFT_OK: it is done, and `completion` is left alone: it never runs for this
 * put (count it down yourself with weft_completion_finish where it stands for several). WEFT_IN_PROGRESS:
 * the completion says so later, from progress. WEFT_ERR_AGAIN or another error: nothing is queued. Which
 * of the two a put answers may change from call to call. Done means that the source may be reused and that
 * the bytes have reached the peer's memory; its own processor may read them once the notification has
 * arrived. Two puts, or a put and a message, are not ordered with each other. WEFT_ERR_INVALID: outside
 * the window, or no such right. Completes with WEFT_ERR_CANCELLED when the window was closed. */
enum weft_status weft_transport_put(struct weft_remote *remote, const struct weft_put *put,
                                    struct weft_completion *completion);
/* Read (bytes,) at `offset` of a remote window into `destination`; otherwise as put. */
enum weft_status weft_transport_get(struct weft_remote *remote, uint64_t offset, void *destination,
                                    size_t bytes, struct weft_completion *completion);

/* ---- peers that share memory ---- for a protocol of its own in mapped memory (the collectives of one host) */

/* Where (bytes,) at `address` lie in this process's memory from weft_memory_alloc, which is what a peer
 * that maps it must know. false: some of it is other memory. Any thread. */
bool weft_memory_locate(const void *address, size_t bytes, uint64_t *offset_out);

/* enum weft_transport_abilities of the way to this peer; MAPS: weft_peer_map will answer, unless the peer
 * has no such memory. */
unsigned weft_peer_abilities(const struct weft_peer *peer);

/* All memory that the peer's process has from weft_memory_alloc, to load and store in place: his offset o
 * is base + o. Stays mapped until the release, also beyond the peer's end; ranges he has freed read as
 * zeros, so nothing here can fault. Which range may be touched, and when, is between the two. */
struct weft_mapping {
    uint8_t *base;
    size_t bytes;
    void *view; /* the transport's own */
};
/* WEFT_ERR_UNSUPPORTED: cannot be mapped; before a first message of his has come that may yet change. */
enum weft_status weft_peer_map(struct weft_peer *peer, struct weft_mapping *mapping_out);
void weft_mapping_release(struct weft_mapping *mapping); /* a zeroed one is fine */
/* Copy (bytes,) of the peer's ordinary memory, at `address` as he sees it, to `local`, or outward: the
 * other way; here and now, by a system call. As above, whether he wants that is between the two. bytes 0:
 * does the system allow it? WEFT_ERR_UNSUPPORTED: it does not; _PEER_LOST: his process is gone; _INVALID:
 * he has no such memory. */
enum weft_status weft_peer_copy(struct weft_peer *peer, bool outward, uint64_t address, void *local,
                                size_t bytes);
/* A memcpy for mapped memory whose destination nobody finds in a cache afterwards: it is not read before
 * it is written. Over when it returns, as a memcpy is: what is stored later is seen later. */
void weft_copy_nontemporal(void *to, const void *from, size_t bytes);
/* For (bytes,) of mapped memory that the peer has written, this process alone has read, and the peer
 * writes next: its lines are made this processor's own, by storing into each what it holds. A line that
 * has been read only is shared by two caches, and then its writer waits until the other one has dropped
 * it; one that was stored into just moves (docs/performance.md). As long as this process is not through
 * the memory stays what it is: the peer neither writes there nor gives it back. Nothing is done for less
 * than pays. */
void weft_claim_lines(const void *memory, size_t bytes);
/* After a store that the peer may be asleep for: he steps his loop soon. A system call only when he
 * sleeps. */
void weft_peer_wake(struct weft_peer *peer);
/* The peer's process has ended, or has closed its endpoint: it loads and stores nothing any more. A peer
 * that is given up but runs, or is stopped, is not harmless. */
bool weft_peer_is_detached(struct weft_peer *peer);

/* The longest payload that goes to this peer along with its header; a longer one is announced, and waits
 * until it is granted: two trips more. */
size_t weft_peer_eager_bytes(const struct weft_peer *peer);

/* A long payload moves fastest in messages of so many bytes; 0: the backend does not say. The same for all
 * endpoints of a backend, whatever they were opened with. */
size_t weft_transport_message_bytes(const struct weft_transport *transport);

/* How this peer is reached, one line: "shm mapped", "ucx tcp", "verbs mlx5_0:1 gid 3 mtu 4096". Cuts to
 * `bytes`. */
void weft_peer_describe(struct weft_peer *peer, char *out, size_t bytes);

int weft_transport_progress(struct weft_transport *transport, int budget);
/* Make it a pollable of `loop` (and take it out on close). */
enum weft_status weft_transport_attach(struct weft_transport *transport, struct weft_loop *loop);
void weft_transport_stats(struct weft_transport *transport, struct weft_transport_stats *stats_out);
const char *weft_transport_name(const struct weft_transport *transport); /* "ucx tcp", "fault:sim" */
struct weft_env *weft_transport_env(struct weft_transport *transport);
uint32_t weft_transport_id(const struct weft_transport *transport);

/* Fault wrapper, by hand (tests): from now on messages to and from this peer vanish / the endpoint falls
 * silent. */
enum weft_status weft_transport_fault_cut(struct weft_transport *transport, uint32_t peer_id);
enum weft_status weft_transport_fault_kill(struct weft_transport *transport);

/* ---- the simulator ---- (transport/sim) one thread, virtual time, everything from one seed */
struct weft_sim;
struct weft_topology; /* a network read from a file: docs/simulator.md has its grammar and what it means */

/* weft_topology_load() - read a topology file. WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_MALFORMED (the
 * text names file, line and what to write instead), WEFT_ERR_NO_MEMORY. weft_topology_parse: the same of
 * text in memory; `name` stands for the file. */
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
    uint32_t host_count;          /* default 1; with a topology its own number counts */
    const struct weft_topology *topology; /* borrowed until weft_sim_free; NULL: an ideal network with the
                                           * numbers below */
    uint64_t latency_ns;          /* one way between hosts, default 5,000 */
    uint64_t jitter_ns;           /* uniform 0..jitter added, default 1,000 */
    uint64_t bytes_per_second;    /* of one host's link, each direction; default 12,500,000,000; 0:
                                   * unlimited */
    uint64_t detect_ns;           /* from a death to peer_failed at the others, default 100 ms */
    bool still_clock;             /* a host's clock advances only with the simulation; default: also 1 ns
                                   * at each reading */
    bool timing_only;             /* payloads take time but are never read, written or copied: any address
                                   * will do for them */
    size_t slab_bytes;            /* memory of what is in flight is taken so many at a time, default 256
                                   * KiB; 0: one by one */
};
void weft_sim_options_init(struct weft_sim_options *options);
enum weft_status weft_sim_create(struct weft_env *env, const struct weft_sim_options *options,
                                 struct weft_sim **sim_out);
void weft_sim_free(struct weft_sim *sim);
/* The env of one host: virtual clock, seeded random, the outer env's allocator and log. Owned by the sim. */
struct weft_env *weft_sim_env(struct weft_sim *sim, uint32_t host);
/* Loops (virtual_time) that the simulation steps; one host may have several. Removed by weft_sim_remove or
 * death. */
enum weft_status weft_sim_add(struct weft_sim *sim, uint32_t host, struct weft_loop *loop);
void weft_sim_remove(struct weft_sim *sim, struct weft_loop *loop);
/* A timer or letter of one of the host's loops is new, by somebody else's hand: the host is stepped before
 * time moves. */
void weft_sim_wake(struct weft_sim *sim, uint32_t host);
/* Step everything and move time until *done, until virtual until_ns, or until nothing is left to happen
 * (WEFT_ERR_STATE: idle, nobody will ever wake). WEFT_OK / WEFT_ERR_DEADLINE / WEFT_ERR_STATE. */
enum weft_status weft_sim_run(struct weft_sim *sim, const bool *done, uint64_t until_ns);
void weft_sim_kill(struct weft_sim *sim, uint32_t host);          /* now; its loops are never stepped again */
void weft_sim_kill_at(struct weft_sim *sim, uint32_t host, uint64_t time_ns);
/* Its loops are not stepped until it thaws, as of a process that was stopped; what it had begun goes on,
 * what comes waits. */
void weft_sim_freeze(struct weft_sim *sim, uint32_t host, bool frozen);
/* its links are this many times slower */
void weft_sim_slow(struct weft_sim *sim, uint32_t host, uint32_t factor);
void weft_sim_partition(struct weft_sim *sim, uint32_t host_a, uint32_t host_b, bool cut);
uint64_t weft_sim_now_ns(const struct weft_sim *sim);
uint64_t weft_sim_event_count(const struct weft_sim *sim);
/* What a topology's links did. */
struct weft_sim_traffic {
    uint64_t bursts;       /* put on the wire, those that were sent again too */
    uint64_t retried, lost, duplicated, overflowed; /* lost: bursts and acknowledgements; overflowed: of
                                                     * them, by a full buffer */
    uint64_t queue_max_ns; /* the longest wait for a link */
};
void weft_sim_traffic(const struct weft_sim *sim, struct weft_sim_traffic *traffic_out);
/* What the links of one [link] section carried, both directions together; on the ideal network there is
 * one, "host link", what hosts sent. Answers false when there is no section `index`. */
struct weft_sim_link_use {
    char name[32];
    uint64_t links;               /* directed */
    uint64_t bytes, busiest_bytes;/* of all of them; of the one that carried most */
    double bytes_per_second;      /* of one link; 0: unlimited */
};
bool weft_sim_link_use(const struct weft_sim *sim, uint32_t index, struct weft_sim_link_use *use_out);
/* The way between two hosts, from port `rail` of one to that of the other, when nobody else is there:
 * one-way latency, and the slowest link's rate (0: unlimited). */
void weft_sim_path(const struct weft_sim *sim, uint32_t host_a, uint32_t host_b, uint32_t rail,
                   uint64_t *latency_ns_out, double *bytes_per_second_out);
uint32_t weft_sim_rails(const struct weft_sim *sim, uint32_t host); /* its ports; 1 on the ideal network */
/* A hash of everything that happened so far, in order: equal seeds and calls give equal traces. */
uint64_t weft_sim_trace(const struct weft_sim *sim);

/* ---- what the links are like ---- */
#include "transport/probe/link_cost.h"
#include "transport/probe/link_ring.h"
#include "transport/probe/link_sites.h"
#include "transport/probe/link_table.h"
#include "transport/probe/probe.h"

#endif
