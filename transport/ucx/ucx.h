/* ucx.h - inside the UCX backend. UCX headers are included in this folder only.
 *
 *   wire/ucx_wire.c encoding: message header, control entries, keys, address blob
 *   wire/ucx_seal.c authentication of blobs and messages by the job's secret
 *   ucx_settings.c  lanes, devices, ports, tuning; UCX_* variables of the user take precedence
 *   ucx_context.c   UCX context: settings, environment, devices
 *   ucx_open.c      worker, address, progress, close and free
 *   ucx_sleep.c     the descriptors that the endpoint sleeps on
 *   ucx_peer.c      connect; loss of a peer, and when its operations may complete
 *   ucx_lane.c      the lanes that UCX chose towards a peer
 *   ucx_process.c   processes of peers on this host, watched by pidfd
 *   ucx_message.c   send, arrivals, accept, discard
 *   ucx_batch.c     control entries to a peer, several per message
 *   ucx_gather.c    small messages to a peer over tcp, several per message
 *   ucx_stream.c    payloads in fragments
 *   ucx_window.c    windows, put, get, by messages
 *   ucx_direct.c    put and get by UCX remote access
 *   ucx_register.c  user memory registered with devices
 *   ucx_table.c     ids of objects in flight
 *
 * Protocols of a message
 *   eager       up to eager_bytes_max, within the receiver's credit: one UCX active message
 *   announced   otherwise: ANNOUNCE ─► GRANT (a buffer is named) or TAKEN (not needed) ─► DATA fragments,
 *               each one active message of at most a TCP segment of UCX. Over tcp faster than UCX's
 *               rendezvous, which writes the whole payload into the socket at once and misses the caches.
 *   by UCX      if the kernel copies between processes (shared memory): UCX's rendezvous
 *
 * UCX callbacks only record events (an arrival, a finished operation, a failed peer). Everything else runs
 * after ucp_worker_progress has returned, so no user code runs inside UCX.
 *
 * An operation is shared by the caller and UCX and recycled when both have released it:
 *   finished   its completion is queued and the buffer is free     delivered   the completion has run
 *   holds      UCX requests that still use it
 *
 * An operation finishes when UCX holds nothing of it, also for a lost peer: a forced close ends UCX's
 * requests. UCX ends a hardware put or get although the device may still access the buffer. The buffers of
 * failed ones are therefore kept until the connection is closed and the worker is flushed (`parked`). If a
 * request remains after that, the caller gets its buffer back and the record is kept for UCX. A buffer
 * that waits for DATA is written by this backend only, so it can be released at any time. */
#ifndef WEFT_TRANSPORT_UCX_H
#define WEFT_TRANSPORT_UCX_H

#include <ucp/api/ucp.h>

#include "transport/core/core.h"
#include "transport/ucx/wire/ucx_seal.h"
#include "transport/ucx/ucx_settings.h"
#include "transport/ucx/ucx_table.h"
#include "transport/ucx/wire/ucx_wire.h"

enum {
    UCX_AM_ID = 17,            /* one active message id; the kind is in the message header */
    /* sends, puts and gets in flight per endpoint; more return WEFT_ERR_AGAIN */
    UCX_SENDS_MAX = 8192,
    UCX_SMALL_BYTES = 256,     /* eager payloads up to this are stored inside the arrival */
    UCX_REORDER_MAX = 16384,   /* how far a message may arrive before an earlier one */
    UCX_POOL_BLOCK = 32,
    UCX_POOL_BLOCK_BYTES = 256 << 10,
    UCX_EAGER_FIRST = 64 << 10, /* eager credit before the receiver's HELLO */
    UCX_EAGER_EXTRA = 64,       /* credit that a message costs besides its payload */
    UCX_BATCH_BYTES = 4096,
    UCX_KEPT_BYTES = 60 << 10,  /* eager payloads up to this use small buffers, larger ones the largest */
    UCX_GATHER_BYTES = 60 << 10, /* less than a TCP segment of UCX, also if the user has set it to 64 KiB */
    UCX_GATHER_MESSAGE_MAX = 16 << 10, /* payload; larger messages are sent alone */
    UCX_BATCHES_MAX = 64,       /* batches that wait for the connection; further control entries are lost */
    UCX_FRAGMENTS_MAX = 8,      /* in flight per peer */
    UCX_PUSH_MAX = 16,          /* fragments started in a row per peer */
    UCX_INCOMING_MAX = 4096,    /* puts of one peer in progress */
};

/* A free list that grows in blocks to the peak in flight; freed with the endpoint. */
struct ucx_pool {
    size_t item_bytes;
    void *free_items, *blocks; /* linked by their first word */
};

enum ucx_op_kind {
    UCX_OP_MESSAGE = 1, /* struct ucx_send; the first four have a caller */
    UCX_OP_PUT,         /* struct ucx_send */
    UCX_OP_RECEIVE,     /* struct ucx_arrival */
    UCX_OP_GET,         /* struct ucx_landing */
    UCX_OP_SERVE,       /* struct ucx_send: answer to a peer's get */
    UCX_OP_CONTROL,     /* struct ucx_send: HELLO, BYE, BYE_REPLY */
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
    enum weft_status failed; /* finishes with this status when UCX holds nothing of it */
    bool rendezvous;         /* UCX rendezvous, or a put or get by UCX remote access */
    bool finished, delivered;
    /* UCX has ended it with an error, but a device may still use it: finishes with the connection */
    bool parked;
};

/* An outgoing transfer: message, put, or answer to a get. */
struct ucx_send {
    struct ucx_op op;         /* first */
    struct weft_list sending; /* in ucx_peer.sending while fragments remain */
    const char *source;
    uint64_t bytes, started, piece; /* total; passed to UCX; size of a fragment */
    uint64_t landing;         /* DATA: target id at the receiver; 0: not granted */
    struct ucx_window *served;
    struct ucx_remote *ucx_remote;   /* target of a put by UCX */
    struct ucx_wire_put put;
    uint64_t put_offset;
    bool answered;            /* put: the peer has received all or has refused */
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

/* A buffer that receives DATA fragments. */
struct ucx_landing {
    struct ucx_op op; /* first */
    char *buffer;
    uint64_t bytes, received;
    struct ucx_remote *ucx_remote; /* source of a get by UCX */
};

struct ucx_arrival {
    struct core_arrival core; /* first */
    struct ucx_landing landing; /* the acceptance */
    struct weft_list link;    /* in endpoint->arrived, or in ucx_peer.reordered */
    struct ucx_peer *from;
    uint64_t sequence;
    uint64_t send_id;         /* announced: id of the send; 0: not announced */
    bool rendezvous, bye;
    bool unordered;      /* a notification: outside the message sequence */
    uint32_t held_bytes; /* counted in ucx_peer.held_bytes */
    const void *borrowed; /* eager data in UCX's buffer, during its callback only */
    void *descriptor; /* UCX descriptor that is held: rendezvous, or eager data left in place */
    void *big;        /* eager data in a buffer of endpoint->eager_buffers or large_buffers */
    uint8_t small[UCX_SMALL_BYTES];
};

/* An incoming put of several fragments. */
struct ucx_incoming {
    struct weft_list link; /* in ucx_peer.incoming */
    struct ucx_window *window;
    uint64_t put_id, bytes, received;
    struct ucx_arrival *notification; /* NULL: none, or not arrived */
};

struct ucx_window {
    struct weft_window *window;
    uint64_t id, secret;
    ucp_mem_h memory;        /* NULL: by messages only */
    struct weft_list holders; /* peers that have UCX's key */
    uint32_t serving;        /* answers to gets that read it */
    bool is_revoked;               /* closing: look-ups do not find it */
};

struct ucx_holder {
    struct weft_list link;
    struct ucx_peer *peer;
    uint32_t count; /* keys sent and not released */
};

struct ucx_remote {
    struct weft_remote *remote;
    struct weft_list link;   /* in ucx_peer.remotes */
    uint64_t window, secret, address;
    ucp_rkey_h rkey;         /* NULL: by messages only */
    bool asked;              /* the key was requested */
    bool is_revoked;               /* the owner closes it: no new access, KEY_RELEASED after the last */
    uint32_t direct;         /* puts and gets by UCX in flight */
};

/* State of the end of a connection; see ucx_peer.c. */
enum ucx_end {
    UCX_END_NONE = 0,
    UCX_END_GRACEFUL, /* both live: BYE, reply, close */
    UCX_END_FORCE,    /* the peer is dead or was reported dead */
    UCX_END_CLOSING,  /* UCX closes the endpoint */
    UCX_END_DONE,
};

/* The end of the connection. */
struct ucx_peer_closing {
    void *close_request;        /* request of the close, then of the flush after it */
    bool flushed;
    uint32_t parked;            /* number of parked operations */
    enum ucx_end end;
    enum weft_status end_status;
    uint64_t end_deadline_ns;   /* deadline of the present state */
};
/* Control messages of the connection. */
struct ucx_handshake {
    bool hello_received, hello_sent; /* both: UCX has connected both ends */
    bool answered;              /* BYE or BYE_REPLY has arrived */
    bool failed;                /* the connection broke or the process died */
};
/* Eager bytes. */
struct ucx_flow {
    uint64_t credit;            /* eager bytes that may be sent */
    uint64_t held_bytes, credit_due; /* its eager bytes stored here; consumed and not reported */
};
/* Small messages that are gathered or wait. */
struct ucx_output {
    struct weft_list sending, busy; /* busy: in endpoint->busy while `sending` is not empty */
    /* talking: in endpoint->talking while `batches` or `gather` hold anything */
    struct weft_list batches, talking;
    struct ucx_gather *gather;  /* NULL: nothing gathered */
    uint64_t last_send_round;       /* progress round of the last small message to it */
};

struct ucx_peer {
    struct ucx_endpoint *endpoint;
    struct weft_peer *peer;
    ucp_ep_h ep;                /* NULL: an early peer, or closed */
    struct ucx_peer_closing closing;
    bool direct;                /* the kernel can access its memory: UCX rendezvous for large payloads */
    bool remote_access;         /* hardware access without the peer's processor: UCX puts and gets */
    char lanes[80];             /* "tcp/lo", "rc_verbs/mlx5_0:1 + ud_verbs/mlx5_0:1" */
    struct ucx_handshake handshake;
    struct ucx_process *process; /* NULL: not watched */
    uint64_t token_out, token_in; /* ucx_seal.h: in messages sent; required in messages received */
    ucs_status_t failed_status;
    uint64_t send_sequence, receive_sequence;
    struct ucx_flow flow;
    uint32_t queued;            /* its arrivals in endpoint->arrived */
    uint32_t fragments;         /* fragments in flight to it */
    uint32_t incoming_count;
    struct weft_list operations, reordered, link_failed, link;
    struct ucx_output output;
    struct weft_list incoming, remotes;
};

/* Another process of this host that has peers. */
struct ucx_process {
    struct weft_list link; /* in endpoint->processes */
    struct ucx_wire_process identity;
    int fd;                /* pidfd in endpoint->fd; -1: dead */
    uint32_t peers;
};

/* Descriptors. */
struct ucx_events {
    int fd;                /* epoll over UCX's descriptor (while is_listening) and the pidfds */
    int ucx_fd;
    bool is_listening;
    bool armed;            /* since the last check of the descriptors */
    uint32_t looks;
    uint64_t look_ns;
};
/* Address that peers connect to. */
struct ucx_own_address {
    size_t address_bytes;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
};
/* Memory of operations. */
struct ucx_pools {
    struct ucx_pool sends, arrivals, eager_buffers, large_buffers, fragments, batches, gathers, landings,
        incomings;
    uint64_t pool_bytes;
};
/* The end of the endpoint. */
struct ucx_endpoint_closing {
    bool forced;           /* a connection was closed by force */
    void *flush_request;   /* closing: the final flush of the worker */
    uint64_t flush_ns;     /* start of that flush */
    bool is_quiesced;          /* closed, and nothing is pending in UCX: no more progress */
};

struct ucx_endpoint {
    struct weft_transport *transport;
    struct ucx_settings settings;
    struct ucx_seal seal;
    ucp_context_h context;
    ucp_worker_h worker;
    struct ucx_events events;
    struct ucx_wire_process self;
    struct weft_list processes;
    struct ucx_own_address own_address;
    struct ucx_pools pools;
    uint64_t round;        /* calls of progress, from 1 */
    uint64_t memory_types; /* UCS_BIT of each kind of memory that UCX in this process supports */
    struct ucx_table operations, windows;
    uint32_t send_count;
    struct weft_list arrived, failed, peers, busy, talking;
    uint32_t ending_count; /* peers that close or drain */
    struct ucx_endpoint_closing closing;
};

/* ucx_context.c */
enum weft_status ucx_context_open(struct ucx_endpoint *endpoint, struct weft_error *error);

/* ucx_open.c */
void *ucx_pool_alloc(struct ucx_endpoint *endpoint, struct ucx_pool *pool);
void ucx_pool_release(struct ucx_pool *pool, void *item);

/* ucx_peer.c */
/* created if missing; NULL: no memory */
struct ucx_peer *ucx_peer_get_or_add(struct ucx_endpoint *endpoint, struct weft_peer *peer);
enum weft_status ucx_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes);
void ucx_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);
void ucx_peer_leave(struct ucx_peer *ucx_peer, enum weft_status status);
void ucx_peer_left(struct ucx_peer *ucx_peer);
void ucx_peer_failed(struct ucx_peer *ucx_peer, ucs_status_t status);
int ucx_peers_progress(struct ucx_endpoint *endpoint, bool quiet);
bool ucx_peers_can_sleep(struct ucx_endpoint *endpoint); /* false: a closing peer needs polling */
enum weft_status ucx_status(const struct ucx_peer *ucx_peer, ucs_status_t status);

/* NULL: wrong token, too many peers, or no memory. */
struct ucx_peer *ucx_peer_proven(struct ucx_endpoint *endpoint, uint32_t peer_id, uint64_t token);

/* ucx_descriptors.c: called before and after UCX is opened. */
enum { UCX_DESCRIPTORS_MAX = 16384 }; /* higher descriptors count as new */
struct ucx_descriptors {
    uint64_t open[UCX_DESCRIPTORS_MAX / 64];
    bool unknown; /* /proc cannot be read */
};
void ucx_descriptors_note(struct ucx_descriptors *before);
void ucx_descriptors_seal(struct ucx_descriptors *before);

/* ucx_sleep.c */
enum weft_status ucx_sleep_open(struct ucx_endpoint *endpoint, struct weft_error *error);
bool ucx_sleep_arm(struct ucx_endpoint *endpoint); /* false: there is work */
/* after a quiet round; returns how many processes have died */
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
enum weft_status ucx_message_accept(struct weft_transport *transport, struct weft_arrival *handle,
                                    void *buffer, struct weft_completion *completion);
void ucx_message_discard(struct weft_transport *transport, struct weft_arrival *handle);
/* A small message whose payload is valid during the call only. */
void ucx_on_eager(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *payload);
void ucx_message_control(struct ucx_peer *ucx_peer, enum ucx_wire_kind kind); /* HELLO, BYE, BYE_REPLY */
/* NULL: no memory */
struct ucx_send *ucx_send_alloc(struct ucx_peer *ucx_peer, enum ucx_op_kind kind,
                                struct weft_completion *completion);
/* An arrival without stored payload: an announcement or a notification. NULL: no memory, and the peer is
 * failed. */
struct ucx_arrival *ucx_arrival_make(struct ucx_peer *ucx_peer, uint64_t tag, uint64_t sequence,
                                     uint64_t payload_bytes, const uint8_t *header, uint32_t header_bytes);
void ucx_arrival_queue(struct ucx_arrival *arrival);
int ucx_arrivals_progress(struct ucx_endpoint *endpoint);
void ucx_arrival_release(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival);

/* ucx_op.c */
void ucx_op_init(struct ucx_op *op, enum ucx_op_kind kind, struct ucx_peer *ucx_peer,
                 struct weft_completion *completion);
bool ucx_op_number(struct ucx_op *op); /* assigns an id; false: no memory */
void ucx_op_finish(struct ucx_op *op, enum weft_status status);
bool ucx_op_park(struct ucx_op *op, ucs_status_t status);      /* true: finishes later, see `parked` */
/* finishes with a status, now or when UCX holds nothing of it */
void ucx_op_fail(struct ucx_op *op, enum weft_status status);
void ucx_op_started(struct ucx_op *op, void *request); /* handles the result of starting a UCX request */
void ucx_op_ended(struct ucx_op *op, void *request, ucs_status_t status);
void ucx_op_release(struct ucx_op *op);                       /* recycles it if nothing holds it */
void ucx_op_drop(struct ucx_op *op);                          /* frees an operation that was not started */

/* ucx_batch.c */
void ucx_send_control(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
void ucx_batch_flush(struct ucx_peer *ucx_peer);
int ucx_batches_flush(struct ucx_endpoint *endpoint);
void ucx_batches_drop(struct ucx_peer *ucx_peer);
/* Sends one eager active message to op->peer: a header written into `header_out`, and the entries gathered in
 * the op. */
void ucx_bundle_send(struct ucx_op *op, enum ucx_wire_kind kind,
                     uint8_t header_out[UCX_WIRE_HEADER_BYTES_MAX], const void *body, size_t bytes);

/* ucx_gather.c */
/* whether an eager message may be gathered */
bool ucx_gather_accepts(struct ucx_peer *ucx_peer, const struct weft_message *message);
bool ucx_gather_add(struct ucx_peer *ucx_peer, const struct weft_message *message);   /* false: no memory */
void ucx_gather_send(struct ucx_peer *ucx_peer);
void ucx_gather_drop(struct ucx_peer *ucx_peer);
void ucx_on_gather(struct ucx_peer *ucx_peer, uint8_t *data, size_t bytes);
void ucx_on_batch(struct ucx_peer *ucx_peer, const uint8_t *data, size_t bytes);

/* ucx_stream.c */
void ucx_stream_begin(struct ucx_send *send);
void ucx_stream_stop(struct ucx_send *send);
void ucx_stream_check(struct ucx_send *send); /* finishes it if all fragments have ended */
int ucx_streams_push(struct ucx_endpoint *endpoint);
bool ucx_streams_waiting(const struct ucx_endpoint *endpoint); /* fragments could be started now */
void ucx_on_data(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *data,
                 size_t data_bytes);

/* ucx_window.c */
enum weft_status ucx_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error);
void ucx_window_close(struct weft_transport *transport, struct weft_window *window);
/* ucx_register.c: UCX's name of a memory kind (UCS_MEMORY_TYPE_UNKNOWN: none), whether UCX supports it, and
 * pin and unpin of weft_transport_memory_ops. */
ucs_memory_type_t ucx_memory_type(enum weft_memory_kind kind);
bool ucx_reaches_device(const struct ucx_endpoint *endpoint, enum weft_memory_kind kind);
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
/* The window, if this peer may access it with one of these rights; or NULL. */
struct ucx_window *ucx_window_find(struct ucx_peer *ucx_peer, uint64_t id, uint64_t secret, unsigned rights);
void ucx_window_check(struct ucx_window *ucx_window); /* completes its close if nothing uses it */
void ucx_on_notify(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
/* no control message of this peer will arrive any more */
void ucx_windows_peer_lost(struct ucx_peer *ucx_peer);
void ucx_serve_ended(struct ucx_send *send);

/* ucx_direct.c */
void ucx_direct_map(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window);
void ucx_direct_unmap(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window);
void ucx_direct_revoke_keys(struct ucx_window *ucx_window);
void ucx_direct_free(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window);
void ucx_direct_request_key(struct ucx_remote *ucx_remote, struct ucx_peer *ucx_peer);
void ucx_direct_release(struct ucx_remote *ucx_remote);
void ucx_direct_peer_lost(struct ucx_peer *ucx_peer);
/* These end by ucx_op_finish in all cases. */
void ucx_direct_put(struct ucx_send *send, struct ucx_remote *ucx_remote, const struct weft_put *put);
void ucx_direct_get(struct ucx_landing *landing, struct ucx_remote *ucx_remote, uint64_t offset);
void ucx_on_key_request(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
void ucx_on_key(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry);
void ucx_on_key_revoke(struct ucx_peer *ucx_peer, uint64_t window);
void ucx_on_key_released(struct ucx_peer *ucx_peer, uint64_t window);

#endif
