/* tcp.h - inside the tcp backend: one endpoint, its peers, its operations.
 *
 *   tcp_open.c      options and bootstrap; close, free, statistics
 *   tcp_peer.c      connect, the socket taken over from the bootstrap; end of a peer
 *   tcp_out.c       frames and payloads into a socket
 *   tcp_in.c        frames and payloads out of a socket
 *   tcp_message.c   send, accept, discard; messages of an endpoint to itself
 *   tcp_progress.c  order of reads, sleep, silent hosts
 *   tcp_tune.c      settings as text
 *   tcp_wire.h      encoding of frames
 *
 * A pair has one socket: the bootstrap authenticates it (bootstrap.h), and the backend takes it over when
 * both sides have exchanged parameters. */
#ifndef WEFT_TRANSPORT_TCP_H
#define WEFT_TRANSPORT_TCP_H

#include "transport/core/core.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/tcp/tcp_ops.h"
#include "transport/tcp/tcp_wire.h"

enum {
    TCP_SENDS_MAX = 8192,         /* operations in flight per endpoint; more return WEFT_ERR_AGAIN */
    TCP_EAGER_BYTES = 512 << 10,  /* large, because every system call and wake-up costs */
    TCP_SMALL_BYTES = 256,        /* payloads up to this are stored inside the arrival */
    TCP_KEPT_BYTES_MAX = 4 << 20, /* bytes of idle bounce buffers kept for reuse */
    TCP_SCRATCH_BYTES = 16 << 10, /* one read beyond the current payload */
    TCP_PIECE_BYTES = 1 << 20,    /* bytes of one granted payload before other output gets a turn */
    TCP_LONG_BYTES = 8 << 10,     /* shorter frames may wait for the next progress and leave together */
    TCP_READS = 16,               /* reads of one socket in a row */
    TCP_WRITES = 16, /* writes to one socket in a row: a long payload must not starve other peers */
    TCP_GATHER = 16,              /* frames in one write */
    TCP_GATHER_BYTES = 256 << 10, /* then no further frame: acknowledgements wait while a write copies */
    TCP_DIRECT_PEERS = 2,         /* up to this many sockets are read without asking epoll */
    TCP_CLOCK_EVERY = 32,         /* polls between two clock reads */
    TCP_BOOTSTRAP_POLL_NS = 1000000, /* between two polls of the bootstrap while peers connect or close */
    TCP_BOOTSTRAP_IDLE_POLL_NS = 10000000,       /* between two polls of the bootstrap otherwise */
};

struct tcp_tuning {
    uint32_t budget;  /* budget=  bytes of unconsumed messages of one peer; default 4m */
    uint64_t lost_ns; /* lost_ms= silence after which a host is lost, in ms; default 10,000 */
    char host[64];    /* host=    numeric address to listen on; default: address of the first device */
};
enum weft_status tcp_tune(const char *text, struct tcp_tuning *tuning, struct weft_error *error);

enum tcp_phase {
    TCP_PEER_CONNECTING = 1, /* no socket yet */
    TCP_PEER_OPEN,
    TCP_PEER_CLOSING,     /* this endpoint closes: LEAVE is queued, input is dropped until the peer closes */
    TCP_PEER_ENDED,
};

enum tcp_out_kind {
    TCP_OUT_MESSAGE = 1,
    TCP_OUT_ANNOUNCE,
    TCP_OUT_DATA,
    TCP_OUT_GRANT,
    TCP_OUT_REFUSE,
    TCP_OUT_CONTROL
};

struct tcp_out { /* a frame and its payload */
    struct weft_list link; /* in tcp_peer->out, or owned by the operation */
    enum tcp_out_kind kind;
    uint32_t frame_bytes;  /* including the message header */
    uint8_t *frame;
    const uint8_t *payload;
    size_t payload_bytes, sent; /* sent: of frame and payload */
};

/* State of the last writes. */
struct tcp_writing {
    bool write_failed;              /* a write failed; the next read finds the reason */
    bool has_unacked_bytes;       /* sent bytes may be unacknowledged */
    int write_errno;            /* errno of the failed write */
};

struct tcp_peer {
    struct tcp_endpoint *endpoint;
    struct weft_peer *peer;
    struct bootstrap_peer *link; /* NULL: after the socket was taken over, or at the end */
    struct weft_list of_endpoint, open; /* open: in endpoint->open while there is a socket */
    enum tcp_phase phase;
    int fd;
    struct tcp_writing writing;
    uint32_t interest;      /* epoll events requested */
    uint32_t wrote_at;      /* value of endpoint->polls at the last immediate write */
    uint64_t end_limit_ns;  /* while closing: when to stop waiting for the peer */
    uint64_t silent_ns;     /* time since which an acknowledgement is due; 0: none is due */

    struct weft_list out;       /* struct tcp_out; the first may be partly sent */
    struct weft_list announced; /* sends that wait for their grant */
    struct tcp_out controls[2];    /* TAKEN, LEAVE */
    uint8_t control_frames[2][TCP_FRAME_BYTES];
    uint64_t announce_count;
    uint64_t credit, credit_max; /* bytes that the peer can still take; its budget */

    struct tcp_in {
        struct tcp_arrival *arrival; /* arrival whose payload is being received, or NULL */
        uint64_t left;               /* bytes of that payload in the current frame */
        uint8_t head[TCP_FRAME_BYTES + WEFT_TRANSPORT_HEADER_BYTES_MAX];
        uint32_t head_bytes;         /* of an incomplete frame */
    } in;
    struct weft_list accepted;  /* struct tcp_arrival: granted */
    uint64_t arrival_count;     /* announcements received */
    uint32_t waiting_count;     /* announcements without acceptance */
    uint64_t used, unreported_taken; /* part of the local budget in use; consumed and not yet reported */
};

struct tcp_send {
    struct core_done done; /* first */
    struct tcp_peer *tcp_peer;
    struct tcp_out out;
    uint64_t number;       /* number of its announcement */
    const uint8_t *payload;
    size_t payload_bytes, moved; /* announced payload already put into frames */
    uint8_t frame[TCP_FRAME_BYTES + WEFT_TRANSPORT_HEADER_BYTES_MAX];
};

struct tcp_arrival {
    struct core_arrival core; /* first */
    struct core_done done;
    struct tcp_peer *tcp_peer;
    bool announced, accepted, discarded;
    uint64_t number;
    size_t got;               /* payload bytes received */
    uint8_t *buffer;          /* buffer of the receiver, once accepted */
    uint8_t *kept;            /* until accepted: `small`, a bounce buffer, or NULL */
    size_t kept_bytes;        /* size of the bounce buffer; 0: `small` */
    struct weft_list link;    /* in tcp_peer->accepted; to itself: waits for delivery */
    struct tcp_send *sender;  /* large message to itself: the send */
    struct tcp_out out;       /* the grant or refusal */
    uint8_t frame[TCP_FRAME_BYTES];
    uint8_t small[TCP_SMALL_BYTES];
};

/* Address that peers connect to. */
struct tcp_own_address {
    uint8_t blob[ADDRESS_BLOB_BYTES_MAX];
    uint32_t blob_bytes;
};
/* Figures for the stats. */
struct tcp_traffic {
    uint64_t system_calls, copied_bytes, refused_reported;
};

struct tcp_endpoint {
    struct weft_transport *transport;
    struct tcp_tuning tuning;
    struct bootstrap *bootstrap;
    int epoll;
    struct tcp_own_address own_address;
    struct weft_list peers, open, self_arrivals;
    uint32_t open_count, connecting_count, leaving_count;
    uint32_t send_count;
    void *free_sends, *free_arrivals, *free_bounces; /* linked by their first word */
    uint64_t record_bytes, bounce_bytes;             /* bytes of records; of idle bounce buffers */
    uint32_t polls;
    bool slept, epoll_has_events; /* epoll_has_events: the sockets of few peers have their events in epoll */
    uint64_t bootstrap_poll_ns, listened_ns, alive_ns;
    struct tcp_traffic traffic;
    uint8_t scratch[TCP_SCRATCH_BYTES];
};

/* tcp_peer.c */
enum weft_status tcp_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes);
void tcp_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);
void tcp_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes);
void tcp_peer_leave(struct tcp_peer *tcp_peer);
/* The socket has ended: by errno `reason`, or in order (0). */
void tcp_peer_on_socket_end(struct tcp_peer *tcp_peer, int reason);
void tcp_peer_fail_malformed(struct tcp_peer *tcp_peer, const char *text);
void tcp_peer_end(struct tcp_peer *tcp_peer, enum weft_status status);
void tcp_peer_free(struct tcp_peer *tcp_peer);
extern const struct bootstrap_callbacks tcp_callbacks;
static inline bool tcp_is_self(const struct tcp_peer *tcp_peer)
{
    return tcp_peer->peer->id == tcp_peer->peer->transport->id;
}

/* tcp_out.c */
/* Queues a frame. Writes at once if the queue is empty and the frame is the first since the last progress,
 * or long. */
void tcp_out_push(struct tcp_peer *tcp_peer, struct tcp_out *out);
void tcp_flush(struct tcp_peer *tcp_peer);
void tcp_send_control(struct tcp_peer *tcp_peer, enum tcp_kind kind);
/* Ends all queued frames with `status`. but_begun: except one that is partly sent. */
void tcp_out_drop(struct tcp_peer *tcp_peer, enum weft_status status, bool but_begun);
void tcp_frame_put(struct tcp_peer *tcp_peer, struct tcp_out *out, const struct tcp_frame *frame);

/* tcp_in.c */
int tcp_read(struct tcp_peer *tcp_peer);
/* Handles bytes from the socket; may end the peer. */
void tcp_consume(struct tcp_peer *tcp_peer, const uint8_t *data, size_t bytes);
void tcp_in_drop(struct tcp_peer *tcp_peer, enum weft_status status);
/* Returns `cost` to the local budget. */
void tcp_budget_return(struct tcp_peer *tcp_peer, uint64_t cost);

/* tcp_message.c */
enum weft_status tcp_send_message(struct weft_transport *transport, struct weft_peer *peer,
                                  const struct weft_message *message, struct weft_completion *completion);
enum weft_status tcp_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                            struct weft_completion *completion);
void tcp_discard(struct weft_transport *transport, struct weft_arrival *handle);
struct tcp_arrival *tcp_arrival_new(struct tcp_peer *tcp_peer, uint64_t tag, const void *header,
                                    uint32_t header_bytes, uint64_t payload_bytes);
bool tcp_arrival_alloc(struct tcp_arrival *arrival);
void tcp_arrival_release(struct tcp_arrival *arrival);
void tcp_arrival_complete(struct tcp_arrival *arrival);
void tcp_on_grant(struct tcp_peer *tcp_peer, uint64_t number, bool refused);
void tcp_data_next(struct tcp_send *send);
int tcp_self_progress(struct tcp_endpoint *endpoint, int budget);
void tcp_records_free(struct tcp_endpoint *endpoint);

/* tcp_progress.c */
int tcp_progress(struct weft_transport *transport, int budget);
enum weft_status tcp_arm(struct weft_transport *transport);
void tcp_set_events(struct tcp_peer *tcp_peer, uint32_t events);
/* Adapts epoll to the number of open sockets. */
void tcp_sockets_changed(struct tcp_endpoint *endpoint);
static inline bool tcp_polls_directly(const struct tcp_endpoint *endpoint)
{
    return endpoint->open_count <= TCP_DIRECT_PEERS;
}

#endif
