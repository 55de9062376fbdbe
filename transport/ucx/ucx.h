/* ucx.h - inside the UCX backend. UCX's headers appear in this folder only.
 *
 *   ucx_wire.c      our bytes: message header, address blob
 *   ucx_open.c      context, worker, address, sleeping, close and free
 *   ucx_peer.c      connect; how a peer is lost and when its operations may complete
 *   ucx_message.c   send, arrivals, accept, discard, progress
 *
 * One message is one UCX active message. Up to eager_bytes_max the payload travels along; above it UCX
 * announces the message (rendezvous) and moves the payload when ucp_am_recv_data_nbx names the buffer.
 *
 * UCX callbacks only note what happened (an arrival queued, an operation finished, a peer failed); all
 * the rest runs after ucp_worker_progress has returned, so no user code ever runs inside UCX.
 *
 * An operation has two owners, the user and UCX, and is recycled when both have let go:
 *   finished   its completion is queued (the user gets his buffer back)     delivered   and has run
 *   ucx_live   UCX still holds its request
 * UCX lets go first, also when a peer is lost: a forced close ends its requests. Should one remain after
 * the connection is gone, its user gets it back all the same, and its memory waits here for UCX. */
#ifndef WEFT_TRANSPORT_UCX_H
#define WEFT_TRANSPORT_UCX_H

#include <ucp/api/ucp.h>

#include "transport/core/core.h"
#include "transport/ucx/ucx_wire.h"

enum {
    UCX_AM_ID = 17,            /* one active message id for everything; kinds are in our header */
    UCX_SENDS_MAX = 8192,      /* sends in flight of one endpoint; more answer WEFT_ERR_AGAIN */
    UCX_SMALL_BYTES = 256,     /* eager payloads up to this are kept inside the arrival */
    UCX_REORDER_MAX = 4096,    /* how far a message may run ahead of an earlier one */
    UCX_POOL_BLOCK = 32,
    UCX_EAGER_HELD_MAX = 256 << 20, /* bytes of eager messages waiting to be taken; a peer that goes beyond is lost */
};

/* A free list that grows by blocks to the peak in flight and is given back when the endpoint is freed. */
struct ucx_pool {
    size_t item_bytes;
    void *free_items, *blocks; /* singly linked through their first word */
};

struct ucx_op {
    struct core_done done; /* first */
    struct weft_list link; /* in ucx_peer.operations until recycled */
    struct ucx_peer *peer;
    void *request;
    bool is_send, rendezvous, control, finished, delivered, ucx_live;
};

struct ucx_send {
    struct ucx_op op; /* first */
    uint8_t header[UCX_WIRE_HEADER_BYTES_MAX]; /* UCX 1.13 reads it until the send completes */
};

struct ucx_arrival {
    struct core_arrival core; /* first */
    struct ucx_op op;         /* its acceptance */
    struct weft_list link;    /* in endpoint->arrived, or in ucx_peer.ahead */
    uint64_t sequence;
    bool rendezvous, bye;
    uint32_t held_bytes; /* counted in endpoint->eager_held */
    void *descriptor; /* UCX's, held: rendezvous, or eager data that could stay where it came in */
    void *big;        /* eager data copied into a buffer of endpoint->eager_buffers */
    uint8_t small[UCX_SMALL_BYTES];
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
    void *close_request;
    enum ucx_end end;
    enum weft_status end_status;
    uint64_t end_deadline_ns;   /* of the present phase */
    bool hello_came, hello_went; /* both: UCX knows both ends of the connection */
    bool answered;              /* BYE or its answer has come */
    bool failed;                /* UCX says that the connection broke */
    ucs_status_t failed_status;
    uint64_t send_sequence, receive_sequence;
    struct weft_list operations, ahead, link_failed, link;
};

struct ucx_endpoint {
    struct weft_transport *transport;
    ucp_context_h context;
    ucp_worker_h worker;
    int fd;
    size_t address_bytes;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    struct ucx_pool sends, arrivals, eager_buffers;
    uint32_t send_count;
    uint64_t eager_held;
    struct weft_list arrived, failed, peers;
    uint32_t ending_count; /* peers that close or drain */
    bool forced;           /* some connection was closed by force */
    void *flush_request;   /* closing: the worker's last flush */
    uint64_t flush_ns;     /* when it began */
    bool at_rest;          /* closed and nothing pending inside UCX: it is not progressed any more */
};

/* ucx_open.c */
void *ucx_pool_take(struct ucx_endpoint *endpoint, struct ucx_pool *pool);
void ucx_pool_give(struct ucx_pool *pool, void *item);

/* ucx_peer.c */
struct ucx_peer *ucx_peer_of(struct ucx_endpoint *endpoint, struct weft_peer *peer); /* made when missing; NULL: no memory */
enum weft_status ucx_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob, size_t bytes);
void ucx_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);
void ucx_peer_leave(struct ucx_peer *known, enum weft_status status);
void ucx_peer_left(struct ucx_peer *known);
void ucx_peer_failed(struct ucx_peer *known, ucs_status_t status);
int ucx_peers_progress(struct ucx_endpoint *endpoint, bool quiet);
bool ucx_peers_patient(struct ucx_endpoint *endpoint); /* false: some end must be polled, not slept for */
enum weft_status ucx_status(const struct ucx_peer *known, ucs_status_t status);

/* ucx_message.c */
ucs_status_t ucx_on_message(void *context, const void *header, size_t header_bytes, void *data, size_t data_bytes,
                            const ucp_am_recv_param_t *param);
enum weft_status ucx_message_send(struct weft_transport *transport, struct weft_peer *peer, const struct weft_message *message,
                                  struct weft_completion *completion);
enum weft_status ucx_message_accept(struct weft_transport *transport, struct weft_arrival *face, void *buffer,
                                    struct weft_completion *completion);
void ucx_message_discard(struct weft_transport *transport, struct weft_arrival *face);
void ucx_message_control(struct ucx_peer *known, enum ucx_wire_kind kind); /* HELLO, BYE, BYE_TOO */
void ucx_op_finish(struct ucx_op *op, enum weft_status status);
int ucx_arrivals_progress(struct ucx_endpoint *endpoint);
void ucx_arrival_release(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival);

#endif
