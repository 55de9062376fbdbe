/* tcp.h - inside the tcp backend: one endpoint, its peers, its operations.
 *
 *   tcp_open.c      options, the place where peers meet; close, free, statistics
 *   tcp_peer.c      connect, the socket taken over from the meeting; how a peer ends
 *   tcp_out.c       what is on its way into a socket
 *   tcp_in.c        what comes out of one: frames, and payloads straight into their place
 *   tcp_message.c   send, accept, discard; messages of an endpoint to itself
 *   tcp_progress.c  which sockets are read when; sleeping, silent hosts
 *   tcp_tune.c      settings as text
 *   tcp_wire.h      frames as bytes
 *
 * A pair has one socket: that on which the two have met and proven themselves (meet.h), taken over when
 * both have said their parameters. */
#ifndef WEFT_TRANSPORT_TCP_H
#define WEFT_TRANSPORT_TCP_H

#include "transport/core/core.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/tcp/tcp_ops.h"
#include "transport/tcp/tcp_wire.h"

enum {
    TCP_SENDS_MAX = 8192,         /* operations in flight of one endpoint; more answer WEFT_ERR_AGAIN */
    TCP_EAGER_BYTES = 512 << 10,  /* each system call and each wake-up has its price */
    TCP_SMALL_BYTES = 256,        /* payloads up to this are kept inside the arrival */
    TCP_KEPT_BYTES_MAX = 4 << 20, /* of bounce buffers kept for the next message */
    TCP_SCRATCH_BYTES = 16 << 10, /* read behind a payload, or alone */
    TCP_PIECE_BYTES = 1 << 20,    /* of a granted payload, before others get a turn */
    TCP_LONG_BYTES = 8 << 10,     /* what is shorter may wait for others until the next progress */
    TCP_READS = 16,               /* of one socket in a row */
    TCP_WRITES = 16,              /* into one: a long payload to somebody fast must not keep the others
                                   * waiting */
    TCP_GATHER = 16,              /* of what waits, in one write */
    TCP_DIRECT_PEERS = 2,         /* so many sockets are read without asking which */
    TCP_CLOCK_EVERY = 32,         /* polls between two looks at the clock */
    TCP_BOOTSTRAP_POLL_NS = 1000000,       /* between two looks at the door while peers come or go */
    TCP_BOOTSTRAP_IDLE_POLL_NS = 10000000,       /* ... and when none does */
};

struct tcp_tuning {
    uint32_t budget;  /* budget=  bytes of messages each peer may leave here untaken; default 4m */
    uint64_t lost_ns; /* lost_ms= a silent host is given up after about this; default 10,000 */
    char host[64];    /* host=    numeric address to listen on; default that of the first device */
};
enum weft_status tcp_tune(const char *text, struct tcp_tuning *tuning, struct weft_error *error);

enum tcp_phase {
    TCP_PEER_CONNECTING = 1, /* no socket yet */
    TCP_PEER_OPEN,
    TCP_PEER_CLOSING,     /* this endpoint closes: LEAVE is on its way, what comes is thrown away until the
                           * other end closes, too */
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

struct tcp_out { /* a frame, and what follows it */
    struct weft_list link; /* in known->out, or with its owner */
    enum tcp_out_kind kind;
    uint32_t frame_bytes;  /* with the header */
    uint8_t *frame;
    const uint8_t *payload;
    size_t payload_bytes, sent; /* sent: of both */
};

struct tcp_peer {
    struct tcp_endpoint *endpoint;
    struct weft_peer *peer;
    struct bootstrap_peer *link; /* NULL: not any more */
    struct weft_list of_endpoint, open; /* open: in endpoint->open while there is a socket */
    enum tcp_phase phase;
    int fd;
    bool write_failed;              /* writing has failed: reading finds out why */
    bool has_unacked_bytes;       /* something that may not have arrived */
    int write_errno;            /* errno of a write that failed */
    uint32_t interest;      /* epoll events asked for */
    uint32_t wrote_at;      /* endpoint->polls when something was last written at once */
    uint64_t end_limit_ns;  /* patience while leaving */
    uint64_t silent_ns;     /* since when it owes an acknowledgement and says nothing; 0: it does not */

    struct weft_list out;       /* struct tcp_out, the first perhaps in part */
    struct weft_list announced; /* of sends that wait for their grant */
    struct tcp_out controls[2];    /* TAKEN, LEAVE */
    uint8_t control_frames[2][TCP_FRAME_BYTES];
    uint64_t announce_count;
    uint64_t credit, credit_max; /* of what the other side keeps */

    struct tcp_in {
        struct tcp_arrival *arrival; /* whose payload comes; NULL: none */
        uint64_t left;               /* of it, in this frame */
        uint8_t head[TCP_FRAME_BYTES + WEFT_TRANSPORT_HEADER_BYTES_MAX];
        uint32_t head_bytes;         /* of a frame that is not whole yet */
    } in;
    struct weft_list accepted;  /* struct tcp_arrival: granted */
    uint64_t arrival_count;     /* announcements so far */
    uint32_t waiting_count;     /* announced and not accepted yet */
    uint64_t used, unreported_taken;        /* of our budget; of it, taken and not told yet */
};

struct tcp_send {
    struct core_done done; /* first */
    struct tcp_peer *tcp_peer;
    struct tcp_out out;
    uint64_t number;       /* of its announcement */
    const uint8_t *payload;
    size_t payload_bytes, moved; /* announced: of the payload, put into frames */
    uint8_t frame[TCP_FRAME_BYTES + WEFT_TRANSPORT_HEADER_BYTES_MAX];
};

struct tcp_arrival {
    struct core_arrival core; /* first */
    struct core_done done;
    struct tcp_peer *tcp_peer;
    bool announced, accepted, discarded;
    uint64_t number;
    size_t got;               /* of the payload */
    uint8_t *buffer;          /* the receiver's, once accepted */
    uint8_t *kept;            /* until then: `small`, a bounce buffer, or NULL */
    size_t kept_bytes;        /* of a bounce buffer; 0: `small` */
    struct weft_list link;    /* in known->accepted; to itself: to be told */
    struct tcp_send *sender;  /* to itself, large */
    struct tcp_out out;       /* its grant or refusal */
    uint8_t frame[TCP_FRAME_BYTES];
    uint8_t small[TCP_SMALL_BYTES];
};

struct tcp_endpoint {
    struct weft_transport *transport;
    struct tcp_tuning tuning;
    struct bootstrap *bootstrap;
    int epoll;
    uint8_t blob[ADDRESS_BLOB_BYTES_MAX];
    uint32_t blob_bytes;
    struct weft_list peers, open, self_arrivals;
    uint32_t open_count, connecting_count, leaving_count;
    uint32_t send_count;
    void *free_sends, *free_arrivals, *free_bounces; /* singly linked through their first word */
    uint64_t record_bytes, bounce_bytes;             /* held: records; bounce buffers that nobody uses */
    uint32_t polls;
    bool slept, epoll_has_events;       /* listens: the sockets of a few peers are in the epoll with their
                                         * events */
    uint64_t bootstrap_poll_ns, listened_ns, alive_ns;
    uint64_t system_calls, copied_bytes, refused_reported;
    uint8_t scratch[TCP_SCRATCH_BYTES];
};

/* tcp_peer.c */
enum weft_status tcp_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes);
void tcp_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status);
void tcp_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes);
void tcp_peer_leave(struct tcp_peer *tcp_peer);
/* The socket has ended, by errno `reason` or in order (0). */
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
/* At the end of what waits; written now if nothing does, and if it is the first since the last progress or
 * long. */
void tcp_out_push(struct tcp_peer *tcp_peer, struct tcp_out *out);
void tcp_flush(struct tcp_peer *tcp_peer);
void tcp_send_control(struct tcp_peer *tcp_peer, enum tcp_kind kind);
/* Everything that waits ends with `status`. but_begun: but not what is partly in the socket. */
void tcp_out_drop(struct tcp_peer *tcp_peer, enum weft_status status, bool but_begun);
void tcp_frame_put(struct tcp_peer *tcp_peer, struct tcp_out *out, const struct tcp_frame *frame);

/* tcp_in.c */
int tcp_read(struct tcp_peer *tcp_peer);
/* Bytes that have come from the socket; may end the peer. */
void tcp_consume(struct tcp_peer *tcp_peer, const uint8_t *data, size_t bytes);
void tcp_in_drop(struct tcp_peer *tcp_peer, enum weft_status status);
/* So much of our budget is free again. */
void tcp_budget_return(struct tcp_peer *tcp_peer, uint64_t cost);

/* tcp_message.c */
enum weft_status tcp_send_message(struct weft_transport *transport, struct weft_peer *peer,
                                  const struct weft_message *message, struct weft_completion *completion);
enum weft_status tcp_accept(struct weft_transport *transport, struct weft_arrival *face, void *buffer,
                            struct weft_completion *completion);
void tcp_discard(struct weft_transport *transport, struct weft_arrival *face);
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
/* A socket has come or gone. */
void tcp_sockets_changed(struct tcp_endpoint *endpoint);
static inline bool tcp_polls_directly(const struct tcp_endpoint *endpoint)
{
    return endpoint->open_count <= TCP_DIRECT_PEERS;
}

#endif
