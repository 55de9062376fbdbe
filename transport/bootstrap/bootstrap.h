/* bootstrap.h - authenticated connections between endpoints (UCX: wireup). Two endpoints prove to each
 * other that they hold the job's secret and exchange one parameter blob each (on one host also
 * descriptors). The socket then carries messages and reports the end of the peer.
 *
 *   smaller id: dials                               larger id: accepts
 *       hello (ids, fresh challenge)  ------------>
 *                                     <------------  hello (its own fresh challenge)
 *       proof                         ------------>  the accepter sends nothing before this is valid
 *                                     <------------  proof
 *       parameters, descriptors       <----------->  parameters, descriptors  => `connected`
 *       messages                      <----------->  messages ... one end closes  => `disconnected`
 *
 * Both sides call bootstrap_connect, in any order; the smaller id dials. If a peer dials before the local
 * bootstrap_connect, its proven connection waits for that call. Without a secret the job's nonce is the
 * key, and only endpoints of the same user (BOOTSTRAP_UNIX) or of this host (BOOTSTRAP_TCP) connect.
 *
 * Every frame after the proofs carries a MAC under a key of this connection, with direction and sequence
 * number. A changed, repeated or missing frame ends the connection. Nothing is encrypted.
 *
 * All calls run on the engine thread and none blocks. An unproven connection costs one bounded record for
 * at most half_open_ns. If half_open_max of them exist, the oldest is closed. Every refusal is counted by
 * reason; at most one per second is logged. Callbacks run from bootstrap_progress only. They may call any
 * function of this header except bootstrap_progress and bootstrap_close.
 *
 * Use in a backend:
 * - ops->open calls bootstrap_open. The backend adds bootstrap_fd to its own epoll or returns it from
 *   ops->fd. The descriptor covers deadlines, too.
 * - ops->connect calls bootstrap_connect with the struct weft_peer as owner. ops->disconnect and the
 *   callback `disconnected` call bootstrap_forget. ops->free calls bootstrap_close.
 * - ops->progress calls bootstrap_progress, which costs one system call. A backend that polls for
 *   microseconds calls it when bootstrap_fd was readable, else once in many polls. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H
#define WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H

#include "base/base.h"

#define BOOTSTRAP_PARAMETER_BYTES_MAX 4096u
#define BOOTSTRAP_MESSAGE_BYTES_MAX 4096u
#define BOOTSTRAP_DESCRIPTORS_MAX 8u /* in one blob or message; BOOTSTRAP_UNIX only */
#define BOOTSTRAP_ADDRESS_BYTES_MAX 64u
#define BOOTSTRAP_QUEUE_BYTES_MAX 65536u /* unsent messages of one connection */

struct bootstrap;      /* the bootstrap of one endpoint */
struct bootstrap_peer; /* valid from bootstrap_connect until bootstrap_forget */

enum bootstrap_family {
    /* abstract Unix socket with a random name: endpoints of one host and network namespace */
    BOOTSTRAP_UNIX = 1,
    BOOTSTRAP_TCP,
};

/* Why a connection was refused; the index into bootstrap_stats.refused. */
enum bootstrap_refusal {
    BOOTSTRAP_MALFORMED = 1, /* another protocol, a wrong length, or a frame in the wrong state */
    BOOTSTRAP_VERSION,     /* another protocol version, or only one side has a secret */
    BOOTSTRAP_WRONG_JOB,
    BOOTSTRAP_WRONG_ID, /* another endpoint is meant, another endpoint answered, or the wrong side dialled */
    BOOTSTRAP_REFLECTED,   /* the peer sent back our own challenge or role */
    BOOTSTRAP_WRONG_SECRET,
    BOOTSTRAP_BAD_MAC,    /* a frame after the proofs with an invalid MAC */
    BOOTSTRAP_DESCRIPTORS, /* descriptors before the proofs, too many, or too few */
    BOOTSTRAP_WRONG_USER,
    BOOTSTRAP_TIMED_OUT,        /* half open for longer than half_open_ns */
    /* too many unproven connections, or too many proven ones without a local bootstrap_connect */
    BOOTSTRAP_TOO_MANY,
    BOOTSTRAP_DUPLICATE,       /* the peer has a connection already */
    BOOTSTRAP_CLOSED_EARLY,     /* the peer closed before its proof */
    BOOTSTRAP_NO_RESOURCE, /* no memory or no descriptor left in this process */
    BOOTSTRAP_REFUSALS,
};
/* static text, such as "the job secrets differ" */
const char *bootstrap_refusal_text(enum bootstrap_refusal reason);

struct bootstrap_callbacks {
    /* The peer is authenticated and its parameters have arrived; our parameters are queued. `parameters`
     * are valid during the call. The callback takes a descriptor by writing -1 over it; the others are
     * closed afterwards. From here on bootstrap_send works. */
    void (*connected)(void *owner, struct bootstrap_peer *peer, const void *parameters, size_t bytes,
                      int *descriptors, uint32_t count);
    /* One message of a connected peer, in the order sent; arguments as above. NULL: messages are dropped. */
    void (*message)(void *owner, struct bootstrap_peer *peer, const void *data, size_t bytes,
                    int *descriptors, uint32_t count);
    /* Called once for the end of the peer. Before `connected`: WEFT_ERR_UNREACHABLE, _AUTH, _VERSION,
     * _MISMATCH. After it: the peer closed, died or broke the protocol (WEFT_ERR_PEER_LOST, _MALFORMED).
     * WEFT_ERR_NO_MEMORY is possible in both. The owner calls bootstrap_forget, now or later. */
    void (*disconnected)(void *owner, struct bootstrap_peer *peer, enum weft_status status, const char *text);
};

struct bootstrap_options {
    size_t size;             /* sizeof(struct bootstrap_options) */
    enum bootstrap_family family; /* required */
    uint32_t id;             /* id of this endpoint; required */
    uint64_t nonce;          /* of the job */
    const void *secret;      /* of the job; not kept. NULL: none, see above */
    size_t secret_bytes;
    /* BOOTSTRAP_TCP: numeric address to listen on; default NULL: weft_loopback_host(). A wildcard requires
     * `advertise` */
    const char *bind_host;
    const char *advertise;   /* BOOTSTRAP_TCP: numeric address in the blob; default NULL: bind_host */
    uint16_t port_first;     /* BOOTSTRAP_TCP: first port to try, up to port_last; default 0: any free port */
    uint16_t port_last;
    uint32_t half_open_max;  /* unproven connections; default 256 */
    uint64_t half_open_ns;   /* limit for an unproven connection and for one dial; default 5 s */
    uint32_t early_max;      /* proven connections without a local bootstrap_connect; default 4096 */
    /* from bootstrap_connect to `connected`, else `disconnected`; default 60 s */
    uint64_t connect_timeout_ns;
    /* BOOTSTRAP_TCP: silence after which a host is lost; whole seconds, at least 2; default 2 s */
    uint64_t liveness_ns;
    struct bootstrap_callbacks callbacks;
};
void bootstrap_options_init(struct bootstrap_options *options);
/* Parses "first-last" or one port, the text of transport.ports. NULL: no change. WEFT_ERR_INVALID with a
 * sentence. */
enum weft_status bootstrap_options_ports(struct bootstrap_options *options, const char *text,
                                         struct weft_error *error);

struct bootstrap_stats {
    uint64_t refused[BOOTSTRAP_REFUSALS];
    uint64_t refused_count;          /* sum of `refused` */
    uint64_t connected_count, disconnected_count;  /* peers, since the start */
    uint32_t half_open, early, peers; /* current numbers */
};

/* Opens the bootstrap and listens. WEFT_ERR_INVALID, _NOT_FOUND (this host has no such address), _EXISTS
 * (no free port in the range), _AUTH (TCP beyond this host without a secret), _LIMIT (descriptors),
 * _NO_MEMORY, _IO; with a sentence. */
enum weft_status bootstrap_open(struct weft_env *env, const struct bootstrap_options *options,
                                struct bootstrap **bootstrap_out, struct weft_error *error);
/* Closes every connection; calls no callback. NULL is fine. */
void bootstrap_close(struct bootstrap *bootstrap);

/* The blob that peers pass to bootstrap_connect. Valid until bootstrap_close. */
const void *bootstrap_address(const struct bootstrap *bootstrap, size_t *bytes_out);
/* One descriptor, readable (level-triggered) while bootstrap_progress has work. May be nested in another
 * epoll. */
int bootstrap_fd(const struct bootstrap *bootstrap);
/* Handles about `budget` events and returns how many were handled. */
int bootstrap_progress(struct bootstrap *bootstrap, int budget);

/* Connects to a peer. All arguments are copied (descriptors are duplicated); the callbacks receive
 * `owner`. WEFT_OK: `connected` or `disconnected` follows. WEFT_ERR_MALFORMED (address), _INVALID (own id,
 * sizes, descriptors over TCP), _EXISTS (already requested), _LIMIT (descriptors), _NO_MEMORY: nothing was
 * done. */
enum weft_status bootstrap_connect(struct bootstrap *bootstrap, uint32_t peer_id, const void *address,
                                   size_t address_bytes, const void *parameters, size_t bytes,
                                   const int *descriptors, uint32_t count, void *owner,
                                   struct bootstrap_peer **peer_out);
/* Queues a message; data is copied, descriptors are duplicated. WEFT_OK; WEFT_ERR_STATE (not connected),
 * _AGAIN (the queue is full: retry after progress), _INVALID, _LIMIT (descriptors), _NO_MEMORY: nothing
 * was queued. */
enum weft_status bootstrap_send(struct bootstrap_peer *peer, const void *data, size_t bytes,
                                const int *descriptors, uint32_t count);
/* Transfers the peer's socket to the caller, with the bytes that were read behind the peer's parameters.
 * Those bytes are valid until the callback returns. Callable from `connected` only, BOOTSTRAP_TCP only.
 * Afterwards the bootstrap does not know the connection, and bootstrap_send returns WEFT_ERR_STATE.
 * Returns the descriptor, or -1 if our parameters are not in the socket yet (nothing was done). */
int bootstrap_detach_socket(struct bootstrap_peer *peer, const void **unconsumed_out,
                            size_t *unconsumed_bytes_out);
/* True if every queued byte is in the socket, or the connection has ended. */
bool bootstrap_is_flushed(const struct bootstrap_peer *peer);
/* Closes the connection, if there is one, and frees the peer. No callback follows. Unsent messages are
 * lost. */
void bootstrap_forget(struct bootstrap_peer *peer);

uint32_t bootstrap_peer_id(const struct bootstrap_peer *peer);
/* BOOTSTRAP_UNIX, after `connected`: process id of the peer. 0: another pid namespace, or BOOTSTRAP_TCP. */
int32_t bootstrap_peer_pid(const struct bootstrap_peer *peer);
void bootstrap_stats(const struct bootstrap *bootstrap, struct bootstrap_stats *stats_out);

#endif
