/* ucx.h - inside the UCX backend. UCX's headers appear in this folder only.
 *
 *   ucx_wire.c      our bytes: message header, words, keys, address blob
 *   ucx_seal.c      proofs that blobs and messages come from who holds the job's secret
 *   ucx_settings.c  what the user chose: lanes, devices, ports, tuning; his UCX_* environment wins
 *   ucx_context.c   UCX's context: settings, the user's environment, devices
 *   ucx_open.c      worker, address, close and free
 *   ucx_sleep.c     what it sleeps on, and when it listens
 *   ucx_peer.c      connect; how a peer is lost and when its operations may complete
 *   ucx_lane.c      which lanes UCX chose towards a peer
 *   ucx_process.c   the processes of peers on this host, watched by pidfd
 *   ucx_message.c   send, arrivals, accept, discard
 *   ucx_batch.c     small words to a peer, gathered into one message
 *   ucx_gather.c    small messages to a peer over tcp, gathered likewise
 *   ucx_stream.c    payloads cut into fragments, for buffers that the receiver has named
 *   ucx_window.c    one-sided: windows, put, get, by messages
 *   ucx_direct.c    put and get by UCX's own remote access
 *   ucx_table.c     numbers for what is in flight
 *
 * A message goes one of three ways
 *   eager       up to eager_bytes_max, while its receiver lets more bytes wait: one UCX active message
 *   announced   else: a word ANNOUNCE ─► GRANT (a buffer is named) or TAKEN (nobody needs it) ─► DATA
 *               fragments, each one active message of at most a TCP segment of UCX. Over tcp this is faster
 *               than UCX's own rendezvous (which puts the whole payload into the socket at once, out of the
 *               caches).
 *   by UCX      where the kernel copies between processes (shared memory): UCX's rendezvous
 *
 * UCX callbacks only note what happened (an arrival queued, an operation finished, a peer failed); all
 * the rest runs after ucp_worker_progress has returned, so no user code ever runs inside UCX.
 *
 * An operation has two owners, the user and UCX, and is recycled when both have let go:
 *   finished   its completion is queued (the user gets his buffer back)     delivered   and has run
 *   holds      requests of UCX that still use it
 * An operation finishes when UCX holds nothing of it, also when a peer is lost: a forced close ends UCX's
 * requests. A put or get by hardware UCX ends while the device may still be at it, so the buffers of those
 * that failed are kept until the connection is gone and UCX's worker flushed (`parked`).
 * Should a request remain after that, its user gets it back all the same, and its memory waits here for
 * UCX. A buffer that waits for DATA is written by our own hand only, so it can be given back at any time. */
#ifndef WEFT_TRANSPORT_UCX_H
#define WEFT_TRANSPORT_UCX_H

#include <ucp/api/ucp.h>

#include "transport/core/core.h"
#include "transport/ucx/wire/ucx_seal.h"
#include "transport/ucx/ucx_settings.h"
#include "transport/ucx/ucx_table.h"
#include "transport/ucx/wire/ucx_wire.h"

enum {
    UCX_AM_ID = 17,            /* one active message id for everything; kinds are in our header */
    /* sends, puts and gets in flight of one endpoint; more answer WEFT_ERR_AGAIN */
    UCX_SENDS_MAX = 8192,
    UCX_SMALL_BYTES = 256,     /* eager payloads up to this are kept inside the arrival */
    UCX_REORDER_MAX = 16384,   /* how far a message may run ahead of an earlier one */
    UCX_POOL_BLOCK = 32,
    UCX_POOL_BLOCK_BYTES = 256 << 10,
    UCX_EAGER_FIRST = 64 << 10, /* what may wait untaken before the receiver has said more in its HELLO */
    UCX_EAGER_EXTRA = 64,       /* a message counts for this much more than its payload */
    UCX_BATCH_BYTES = 4096,
    UCX_KEPT_BYTES = 60 << 10,  /* eager payloads above this are kept in buffers of the largest size,
                                 * others in these */
    UCX_GATHER_BYTES = 60 << 10,      /* less than a TCP segment of UCX, also of one that the user has set
                                       * to 64 KiB */
    UCX_GATHER_MESSAGE_MAX = 16 << 10, /* payload: larger ones are cheap enough alone */
    UCX_BATCHES_MAX = 64,       /* waiting for a peer that is not connected yet; more words are lost */
    UCX_FRAGMENTS_MAX = 8,      /* in flight towards one peer */
    UCX_PUSH_MAX = 16,          /* fragments started in a row towards one peer */
    UCX_INCOMING_MAX = 4096,    /* puts of one peer that are under way here */
};

/* A free list that grows by blocks to the peak in flight and is given back when the endpoint is freed. */
struct ucx_pool {
    size_t item_bytes;
    void *free_items, *blocks; /* singly linked through their first word */
};

enum ucx_op_kind {
    UCX_OP_MESSAGE = 1, /* struct ucx_send; these four have a user */
    UCX_OP_PUT,         /* struct ucx_send */
    UCX_OP_RECEIVE,     /* struct ucx_arrival */
    UCX_OP_GET,         /* struct ucx_landing */
    UCX_OP_SERVE,       /* struct ucx_send: the answer to a peer's get */
    UCX_OP_CONTROL,     /* struct ucx_send: HELLO, BYE, BYE_TOO */
    UCX_OP_BATCH,       /* struct ucx_batch */
    UCX_OP_GATHER,      /* struct ucx_gather */
};

struct ucx_op {
    struct core_done done; /* first */
    struct weft_list link; /* in ucx_peer.operations until recycled */
    struct ucx_peer *peer;
    enum ucx_op_kind kind;
    uint64_t id;           /* in endpoint->operations; 0: none */
    uint32_t holds;
    enum weft_status failed; /* finishes with this as soon as UCX holds nothing of it */
    bool rendezvous;         /* by UCX; also a put or get by its remote access */
    bool finished, delivered;
    /* UCX has let go of it by an error, a device perhaps not: finishes with the connection */
    bool parked;
};

/* Something on its way out: a message, a put, the answer to a get. */
struct ucx_send {
    struct ucx_op op;         /* first */
    struct weft_list sending; /* in ucx_peer.sending while there are fragments to start */
    const char *source;
    uint64_t bytes, started, piece; /* all, handed to UCX, one fragment's */
    uint64_t landing;         /* DATA: where to, at the receiver; 0: not granted yet */
    struct ucx_window *served;
    struct ucx_remote *ucx_remote;   /* a put by UCX: into this one */
    struct ucx_wire_put put;
    uint64_t put_offset;
    bool answered;            /* a put: the peer has it all, or has refused it */
    enum weft_status answer;
    uint32_t header_bytes;
    uint8_t header[UCX_WIRE_HEADER_BYTES_MAX]; /* UCX 1.13 reads it until the send completes */
};

struct ucx_fragment {
    struct ucx_send *send;
    uint8_t header[UCX_WIRE_HEADER_BYTES_MAX];
};

struct ucx_batch {
    struct ucx_op op; /* first */
    struct weft_list link;
    uint32_t used;
    uint8_t header[UCX_WIRE_HEADER_BYTES_MAX];
    uint8_t entries[UCX_BATCH_BYTES];
};

struct ucx_gather {
    struct ucx_op op; /* first */
    uint32_t used;
    uint8_t header[UCX_WIRE_HEADER_BYTES_MAX];
    uint8_t records[UCX_GATHER_BYTES];
};

/* A buffer that DATA fragments fill. */
struct ucx_landing {
    struct ucx_op op; /* first */
    char *buffer;
    uint64_t bytes, received;
    struct ucx_remote *ucx_remote; /* a get by UCX: from this one */
};

struct ucx_arrival {
    struct core_arrival core; /* first */
    struct ucx_landing landing; /* its acceptance */
    struct weft_list link;    /* in endpoint->arrived, or in ucx_peer.ahead */
    struct ucx_peer *from;
    uint64_t sequence;
    uint64_t send_id;         /* announced: of its sender; 0: not announced */
    bool rendezvous, bye;
    bool unordered;      /* a notification: not in the sequence of messages */
    uint32_t held_bytes; /* counted in ucx_peer.held_bytes */
    const void *borrowed; /* eager data where UCX has it, inside its callback only */
    void *descriptor; /* UCX's, held: rendezvous, or eager data that could stay where it came in */
    void *big;        /* eager data copied into a buffer of endpoint->eager_buffers or large_buffers */
    uint8_t small[UCX_SMALL_BYTES];
};

/* A put of several fragments on its way in. */
struct ucx_incoming {
    struct weft_list link; /* in ucx_peer.incoming */
    struct ucx_window *window;
    uint64_t put_id, bytes, received;
    struct ucx_arrival *notification; /* NULL: none, or its fragment has not come */
};

struct ucx_window {
    struct weft_window *window;
    uint64_t id, secret;
    ucp_mem_h memory;        /* NULL: only by messages */
    struct weft_list holders; /* who has UCX's key of it */
    uint32_t serving;        /* answers to gets that read it */
    bool is_revoked;               /* closes: found by nobody any more */
};

struct ucx_holder {
    struct weft_list link;
    struct ucx_peer *peer;
    uint32_t count; /* keys given and not let go of */
};

struct ucx_remote {
    struct weft_remote *remote;
    struct weft_list link;   /* in ucx_peer.remotes */
    uint64_t window, secret, address;
    ucp_rkey_h rkey;         /* NULL: only by messages */
    bool asked;              /* for the key */
    bool is_revoked;               /* its owner closes it: no new access, LET_GO when the last has ended */
    uint32_t direct;         /* puts and gets by UCX under way */
};

/* How a connection ends; see ucx_peer.c. */
enum ucx_end {
    UCX_END_NONE = 0,
    UCX_END_GRACEFUL, /* both are alive: BYE, answer, then close */
    UCX_END_FORCE,    /* the peer is dead, or said to be */
    UCX_END_CLOSING,  /* UCX works on it */
    UCX_END_DONE,
};

struct ucx_peer {
    struct ucx_endpoint *endpoint;
    struct weft_peer *peer;
    ucp_ep_h ep;                /* NULL: an early peer, or closed */
    void *close_request;        /* of the close, then of the flush behind it */
    bool flushed;
    uint32_t parked;            /* operations */
    enum ucx_end end;
    enum weft_status end_status;
    uint64_t end_deadline_ns;   /* of the present phase */
    bool direct;                /* the kernel reaches its memory: large payloads go by UCX's rendezvous */
    bool remote_access;         /* in hardware, without the peer's processor: puts and gets go by UCX */
    char lanes[80];             /* "tcp/lo", "rc_verbs/mlx5_0:1 + ud_verbs/mlx5_0:1" */
    bool hello_received, hello_sent; /* both: UCX knows both ends of the connection */
    bool answered;              /* BYE or its answer has come */
    bool failed;                /* the connection broke, or its process has died */
    struct ucx_process *process; /* watched; NULL: not */
    uint64_t token_out, token_in; /* ucx_seal.h: in what we send, in what we take */
    ucs_status_t failed_status;
    uint64_t send_sequence, receive_sequence;
    uint64_t credit;            /* eager bytes that may still be sent */
    uint64_t held_bytes, credit_due; /* eager bytes of his that wait here; taken, but not told yet */
    uint32_t queued;            /* of his in endpoint->arrived */
    uint32_t fragments;         /* in flight to him */
    uint32_t incoming_count;
    struct weft_list operations, reordered, link_failed, link;
    struct weft_list sending, busy; /* busy: in endpoint->busy while `sending` is not empty */
    /* talking: in endpoint->talking while `batches` is not empty or messages are gathered */
    struct weft_list batches, talking;
    struct ucx_gather *gather;  /* NULL: none gathered */
    uint64_t last_send_round;       /* the round of the last small message to him */
    struct weft_list incoming, remotes;
};

/* Another process of this host, in which peers live. */
struct ucx_process {
    struct weft_list link; /* in endpoint->processes */
    struct ucx_wire_process identity;
    int fd;                /* a pidfd in endpoint->fd; -1: dead */
    uint32_t peers;
};

struct ucx_endpoint {
    struct weft_transport *transport;
    struct ucx_settings settings;
    struct ucx_seal seal;
    ucp_context_h context;
    ucp_worker_h worker;
    int fd;                /* an epoll: UCX's own descriptor, while `listens`, and the processes */
    int ucx_fd;
    bool is_listening;
    struct ucx_wire_process self;
    struct weft_list processes;
    bool armed;            /* since the descriptors were looked at last */
    uint32_t looks;
    uint64_t look_ns;
    size_t address_bytes;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    struct ucx_pool sends, arrivals, eager_buffers, large_buffers, fragments, batches, gathers, landings,
        incomings;
    uint64_t pool_bytes;
    uint64_t round;        /* calls of progress, from 1 */
    bool reaches_cuda;     /* UCX in this process knows the memory of CUDA devices */
    struct ucx_table operations, windows;
    uint32_t send_count;
    struct weft_list arrived, failed, peers, busy, talking;
    uint32_t ending_count; /* peers that close or drain */
    bool forced;           /* some connection was closed by force */
    void *flush_request;   /* closing: the worker's last flush */
    uint64_t flush_ns;     /* when it began */
    bool is_quiesced;          /* closed and nothing pending inside UCX: it is not progressed any more */
};

/* ucx_context.c */
enum weft_status ucx_context_open(struct ucx_endpoint *endpoint, struct weft_error *error);

/* ucx_open.c */
void *ucx_pool_take(struct ucx_endpoint *endpoint, struct ucx_pool *pool);
void ucx_pool_give(struct ucx_pool *pool, void *item);

/* ucx_peer.c */
/* made when missing; NULL: no memory */
struct ucx_peer *ucx_peer_get_or_add(struct ucx_endpoint *endpoint, struct weft_peer *peer);
enum weft_status ucx_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes);
void ucx_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);
void ucx_peer_leave(struct ucx_peer *ucx_peer, enum weft_status status);
void ucx_peer_left(struct ucx_peer *ucx_peer);
void ucx_peer_failed(struct ucx_peer *ucx_peer, ucs_status_t status);
int ucx_peers_progress(struct ucx_endpoint *endpoint, bool quiet);
bool ucx_peers_can_sleep(struct ucx_endpoint *endpoint); /* false: some end must be polled, not slept for */
enum weft_status ucx_status(const struct ucx_peer *ucx_peer, ucs_status_t status);

/* NULL: the token is wrong, or there are too many peers, or no memory. */
struct ucx_peer *ucx_peer_proven(struct ucx_endpoint *endpoint, uint32_t peer_id, uint64_t token);

/* ucx_descriptors.c: called before and after UCX is opened. */
enum { UCX_DESCRIPTORS_MAX = 16384 }; /* descriptors above it count as new */
struct ucx_descriptors {
    uint64_t open[UCX_DESCRIPTORS_MAX / 64];
    bool unknown; /* /proc is not readable */
};
void ucx_descriptors_note(struct ucx_descriptors *before);
void ucx_descriptors_seal(struct ucx_descriptors *before);

/* ucx_sleep.c */
enum weft_status ucx_sleep_open(struct ucx_endpoint *endpoint, struct weft_error *error);
bool ucx_sleep_arm(struct ucx_endpoint *endpoint); /* false: there is something to do */
/* after a round that was quiet. How many processes have died */
int ucx_sleep_check(struct ucx_endpoint *endpoint);

/* ucx_process.c */
void ucx_process_self(struct ucx_wire_process *self_out);
void ucx_process_watch(struct ucx_peer *ucx_peer, const struct ucx_wire_process *process);
void ucx_process_forget(struct ucx_peer *ucx_peer);
int ucx_processes_progress(struct ucx_endpoint *endpoint);

/* ucx_lane.c */
void ucx_lane_learn(struct ucx_peer *ucx_peer);
void ucx_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes);

/* ucx_message.c */
ucs_status_t ucx_on_message(void *context, const void *header, size_t header_bytes, void *data,
                            size_t data_bytes, const ucp_am_recv_param_t *param);
enum weft_status ucx_message_send(struct weft_transport *transport, struct weft_peer *peer,
                                  const struct weft_message *message, struct weft_completion *completion);
enum weft_status ucx_message_accept(struct weft_transport *transport, struct weft_arrival *face, void *buffer,
                                    struct weft_completion *completion);
void ucx_message_discard(struct weft_transport *transport, struct weft_arrival *face);
/* One small message whose payload is valid during the call only. */
void ucx_on_eager(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *payload);
void ucx_message_control(struct ucx_peer *ucx_peer, enum ucx_wire_kind kind); /* HELLO, BYE, BYE_TOO */
/* NULL: no memory */
struct ucx_send *ucx_send_take(struct ucx_peer *ucx_peer, enum ucx_op_kind kind,
                               struct weft_completion *completion);
/* An arrival without payload of its own: an announced message, a notification. NULL: no memory, the peer is
 * failed. */
struct ucx_arrival *ucx_arrival_make(struct ucx_peer *ucx_peer, uint64_t tag, uint64_t sequence,
                                     uint64_t payload_bytes, const uint8_t *header, uint32_t header_bytes);
void ucx_arrival_queue(struct ucx_arrival *arrival);
int ucx_arrivals_progress(struct ucx_endpoint *endpoint);
void ucx_arrival_release(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival);

/* ucx_op.c */
void ucx_op_init(struct ucx_op *op, enum ucx_op_kind kind, struct ucx_peer *ucx_peer,
                 struct weft_completion *completion);
bool ucx_op_number(struct ucx_op *op); /* give it an id; false: no memory */
void ucx_op_finish(struct ucx_op *op, enum weft_status status);
bool ucx_op_park(struct ucx_op *op, ucs_status_t status);      /* true: it finishes later, see `parked` */
/* finish, now or when UCX holds nothing of it any more */
void ucx_op_fail(struct ucx_op *op, enum weft_status status);
void ucx_op_started(struct ucx_op *op, void *request);        /* what UCX answered to its start */
void ucx_op_ended(struct ucx_op *op, void *request, ucs_status_t status);
void ucx_op_release(struct ucx_op *op);                       /* recycle it if nobody holds it any more */
void ucx_op_drop(struct ucx_op *op);                          /* it was never started */

/* ucx_batch.c */
void ucx_send_control(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
void ucx_batch_flush(struct ucx_peer *ucx_peer);
int ucx_batches_flush(struct ucx_endpoint *endpoint);
void ucx_batches_drop(struct ucx_peer *ucx_peer);
/* One eager active message to op->peer: a header written into `room`, and what was gathered in the op's
 * own memory. */
void ucx_bundle_send(struct ucx_op *op, enum ucx_wire_kind kind, uint8_t room[UCX_WIRE_HEADER_BYTES_MAX],
                     const void *body, size_t bytes);

/* ucx_gather.c */
bool ucx_gather_accepts(struct ucx_peer *ucx_peer, const struct weft_message *message); /* an eager one */
bool ucx_gather_add(struct ucx_peer *ucx_peer, const struct weft_message *message);   /* false: no memory */
void ucx_gather_send(struct ucx_peer *ucx_peer);
void ucx_gather_drop(struct ucx_peer *ucx_peer);
void ucx_on_gather(struct ucx_peer *ucx_peer, uint8_t *data, size_t bytes);
void ucx_on_batch(struct ucx_peer *ucx_peer, const uint8_t *data, size_t bytes);

/* ucx_stream.c */
void ucx_stream_begin(struct ucx_send *send);
void ucx_stream_stop(struct ucx_send *send);
void ucx_stream_check(struct ucx_send *send); /* is it over? */
int ucx_streams_push(struct ucx_endpoint *endpoint);
bool ucx_streams_waiting(const struct ucx_endpoint *endpoint); /* fragments could be started right now */
void ucx_on_data(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *data,
                 size_t data_bytes);

/* ucx_window.c */
enum weft_status ucx_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error);
void ucx_window_close(struct weft_transport *transport, struct weft_window *window);
/* ucx_memory_register.c: weft_transport_ops.memory_register and memory_unregister. */
enum weft_status ucx_memory_register(struct weft_transport *transport, void *address, size_t bytes,
                                     void **registered_out, struct weft_error *error);
void ucx_memory_unregister(struct weft_transport *transport, void *kept);
void ucx_window_free(struct weft_transport *transport, struct weft_window *window);
enum weft_status ucx_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                            size_t bytes);
void ucx_release(struct weft_transport *transport, struct weft_remote *remote);
void *ucx_map(struct weft_transport *transport, struct weft_remote *remote);
enum weft_status ucx_put(struct weft_transport *transport, struct weft_remote *remote,
                         const struct weft_put *put, struct weft_completion *completion);
enum weft_status ucx_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                         void *destination, size_t bytes, struct weft_completion *completion);
void ucx_on_put(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *data,
                size_t data_bytes);
void ucx_on_get(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
/* The window that this peer may reach with one of these rights, or NULL. */
struct ucx_window *ucx_window_find(struct ucx_peer *ucx_peer, uint64_t id, uint64_t secret, unsigned rights);
void ucx_window_check(struct ucx_window *ucx_window); /* is its closing over? */
void ucx_on_notify(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
void ucx_windows_peer_gone(struct ucx_peer *ucx_peer); /* no word will come from him any more */
void ucx_serve_ended(struct ucx_send *send);

/* ucx_direct.c */
void ucx_direct_map(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window);
void ucx_direct_unmap(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window);
void ucx_direct_revoke_keys(struct ucx_window *ucx_window);
void ucx_direct_free(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window);
void ucx_direct_request_key(struct ucx_remote *ucx_remote, struct ucx_peer *ucx_peer);
void ucx_direct_release(struct ucx_remote *ucx_remote);
void ucx_direct_peer_gone(struct ucx_peer *ucx_peer);
/* They end by ucx_op_finish, whatever happens. */
void ucx_direct_put(struct ucx_send *send, struct ucx_remote *ucx_remote, const struct weft_put *put);
void ucx_direct_get(struct ucx_landing *landing, struct ucx_remote *ucx_remote, uint64_t offset);
void ucx_on_key_request(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
void ucx_on_key(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
void ucx_on_key_revoke(struct ucx_peer *ucx_peer, uint64_t window);
void ucx_on_key_released(struct ucx_peer *ucx_peer, uint64_t window);

#endif
