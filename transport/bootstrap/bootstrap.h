/* meet.h - how two endpoints meet: they prove to each other that they hold the job's secret, hand over one
 * blob of parameters each (and descriptors, on one host), and keep the socket as the line that says when the
 * other is gone.
 *
 *     smaller id: dials                               larger id: accepts
 *         hello (ids, fresh challenge)  ------------>
 *                                       <------------  hello (its own fresh challenge)
 *         proof                         ------------>  nothing more is said to a stranger before this one is right
 *                                       <------------  proof
 *         parameters, descriptors       <----------->  parameters, descriptors     => `met` on both sides
 *         messages                      <----------->  messages                    ... until one end closes => `gone`
 *
 * Both sides call bootstrap_connect, in any order; who dials follows from the ids. One that is dialled before
 * its owner has asked for that peer keeps the (proven) connection until he does. Without a secret the job's
 * nonce is the key, and only endpoints of the same user (BOOTSTRAP_UNIX) or of this host (BOOTSTRAP_TCP)
 * meet.
 *
 * Everything after the proofs carries a MAC under a key of this one connection, with direction and number:
 * what is changed, repeated or left out ends the connection. Nothing is encrypted.
 *
 * One thread: the engine's. Nothing here blocks. A stranger costs a bounded record until he has proven
 * himself, for at most half_open_ns; when there are too many, the oldest stranger goes. Every refusal is
 * counted with its reason and, at most once a second, logged. Callbacks come from bootstrap_progress only,
 * never from another call; they may call anything here but bootstrap_progress and bootstrap_close.
 *
 * Use in a backend: bootstrap_open in ops->open; put bootstrap_fd into the backend's own epoll, or give it
 * out as the descriptor (deadlines are in it too: nothing else has to wake anybody); bootstrap_progress in
 * ops->progress; bootstrap_connect in ops->connect with the struct weft_peer as owner; bootstrap_forget in
 * ops->disconnect and after `gone`; bootstrap_close in ops->free. A call of bootstrap_progress costs one
 * system call: where progress is polled for microseconds, make it each time bootstrap_fd was readable and
 * otherwise every so many polls. */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H
#define WEFT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H

#include "base/base.h"

#define BOOTSTRAP_PARAMETER_BYTES_MAX 4096u
#define BOOTSTRAP_MESSAGE_BYTES_MAX 4096u
#define BOOTSTRAP_DESCRIPTORS_MAX 8u /* with one blob or message; BOOTSTRAP_UNIX only */
#define BOOTSTRAP_ADDRESS_BYTES_MAX 64u
#define BOOTSTRAP_QUEUE_BYTES_MAX 65536u /* of messages that wait to be sent on one connection */

struct bootstrap;      /* one endpoint's place */
struct bootstrap_peer; /* from bootstrap_connect until bootstrap_forget */

enum bootstrap_family {
    BOOTSTRAP_UNIX = 1, /* abstract Unix socket under a random name: endpoints of one host and network
                         * namespace */
    BOOTSTRAP_TCP,
};

/* Why a connection was refused; the index into bootstrap_stats.refused. */
enum bootstrap_refusal {
    BOOTSTRAP_MALFORMED = 1, /* not our protocol, a wrong length, a frame out of turn */
    BOOTSTRAP_VERSION,     /* our protocol, of another version, or one side has a secret and the other has
                            * none */
    BOOTSTRAP_WRONG_JOB,
    BOOTSTRAP_WRONG_ID,    /* meant for, or coming from, another endpoint; or the wrong side dialled */
    BOOTSTRAP_REFLECTED,   /* our own challenge or role came back */
    BOOTSTRAP_WRONG_SECRET,
    BOOTSTRAP_BAD_MAC,    /* after the proofs: a MAC that does not fit */
    BOOTSTRAP_DESCRIPTORS, /* descriptors before the proofs, too many, or too few */
    BOOTSTRAP_WRONG_USER,
    BOOTSTRAP_TIMED_OUT,        /* half open for longer than half_open_ns */
    BOOTSTRAP_TOO_MANY,     /* too many strangers, or too many that nobody expected yet */
    BOOTSTRAP_DUPLICATE,       /* this peer is connected already */
    BOOTSTRAP_CLOSED_EARLY,     /* closed before it had proven itself */
    BOOTSTRAP_NO_RESOURCE, /* no memory or no descriptor left here */
    BOOTSTRAP_REFUSALS,
};
/* static; "it does not hold the job's secret" */
const char *bootstrap_refusal_text(enum bootstrap_refusal reason);

struct bootstrap_callbacks {
    /* The peer has proven itself and its parameters are here; ours are on their way. `parameters` are
     * valid during the call. A descriptor is the callee's when he takes it by writing -1 over it; the
     * others are closed afterwards. From here on bootstrap_send works. */
    void (*connected)(void *owner, struct bootstrap_peer *peer, const void *parameters, size_t bytes,
                      int *descriptors, uint32_t count);
    /* One message of a peer that was met, in the order sent; arguments as above. May be NULL: such a
     * message is dropped. */
    void (*message)(void *owner, struct bootstrap_peer *peer, const void *data, size_t bytes,
                    int *descriptors, uint32_t count);
    /* The end, once: before met the two could not meet (WEFT_ERR_UNREACHABLE, _AUTH, _VERSION, _MISMATCH),
     * after it the peer closed, died or broke the protocol (WEFT_ERR_PEER_LOST, _MALFORMED), or there was
     * no memory for it (WEFT_ERR_NO_MEMORY). Call bootstrap_forget now or later. */
    void (*disconnected)(void *owner, struct bootstrap_peer *peer, enum weft_status status, const char *text);
};

struct bootstrap_options {
    size_t size;             /* sizeof(struct bootstrap_options) */
    enum bootstrap_family family; /* required */
    uint32_t id;             /* this endpoint's; required */
    uint64_t nonce;          /* of the job */
    const void *secret;      /* of the job; not kept. NULL: none, see above */
    size_t secret_bytes;
    const char *bind_host;   /* BOOTSTRAP_TCP: numeric address to listen on; default NULL:
                              * weft_loopback_host(). Not a wildcard unless advertise is given */
    const char *advertise;   /* BOOTSTRAP_TCP: numeric address told to others; default NULL: bind_host */
    uint16_t port_first;     /* BOOTSTRAP_TCP: the first free port of first..last; default 0: any port of
                              * the system's choice */
    uint16_t port_last;
    uint32_t half_open_max;  /* connections not proven yet; default 256 */
    uint64_t half_open_ns;   /* for this long at most; also one attempt to dial; default 5 s */
    uint32_t early_max;      /* proven ones that nobody asked for yet; default 4096 */
    uint64_t connect_timeout_ns;        /* from bootstrap_connect to `met`, else `gone`; default 60 s */
    uint64_t liveness_ns;    /* BOOTSTRAP_TCP: a silent host is gone after about this, whole seconds, at
                              * least 2; default 2 s */
    struct bootstrap_callbacks callbacks;
};
void bootstrap_options_init(struct bootstrap_options *options);
/* "first-last" or one port, of transport.ports; NULL: as it is. WEFT_ERR_INVALID with a sentence. */
enum weft_status bootstrap_options_ports(struct bootstrap_options *options, const char *text,
                                         struct weft_error *error);

struct bootstrap_stats {
    uint64_t refused[BOOTSTRAP_REFUSALS];
    uint64_t refused_count;          /* their sum */
    uint64_t connected_count, disconnected_count;  /* peers */
    uint32_t half_open, early, peers; /* now */
};

/* Listens from here on. WEFT_ERR_INVALID, _NOT_FOUND (no such address here), _EXISTS (no free port in the
 * range), _AUTH (TCP beyond this host without a secret), _LIMIT (descriptors), _NO_MEMORY, _IO; with a
 * sentence. */
enum weft_status bootstrap_open(struct weft_env *env, const struct bootstrap_options *options,
                                struct bootstrap **meet_out, struct weft_error *error);
/* Closes every connection, calls nobody. NULL is fine. */
void bootstrap_close(struct bootstrap *bootstrap);

/* The blob that others give to bootstrap_connect: valid until bootstrap_close. */
const void *bootstrap_address(const struct bootstrap *bootstrap, size_t *bytes_out);
/* One descriptor, readable (level-triggered) when bootstrap_progress has work; may be nested in another
 * epoll. */
int bootstrap_fd(const struct bootstrap *bootstrap);
/* Do about `budget` pieces of work; returns how many were done. */
int bootstrap_progress(struct bootstrap *bootstrap, int budget);

/* Ask for a peer; everything is copied (descriptors are duplicated) before it returns, and `owner` comes
 * back in the callbacks. WEFT_OK: `met` or `gone` follows. WEFT_ERR_MALFORMED (address), _INVALID (own id,
 * sizes, descriptors over TCP), _EXISTS (asked for already), _LIMIT (descriptors), _NO_MEMORY: nothing was
 * done. */
enum weft_status bootstrap_connect(struct bootstrap *bootstrap, uint32_t peer_id, const void *address,
                                   size_t address_bytes, const void *parameters, size_t bytes,
                                   const int *descriptors, uint32_t count, void *owner,
                                   struct bootstrap_peer **peer_out);
/* Queue a message; copied, descriptors duplicated. WEFT_OK; WEFT_ERR_STATE (not met yet, or gone), _AGAIN
 * (as much waits already as may: a slow peer; try after some progress), _INVALID, _LIMIT (descriptors),
 * _NO_MEMORY: nothing was queued. */
enum weft_status bootstrap_send(struct bootstrap_peer *peer, const void *data, size_t bytes,
                                const int *descriptors, uint32_t count);
/* The peer's socket becomes the caller's, with the other side's bytes that were read behind its
 * parameters; they are valid until the callback returns. From `met` only, BOOTSTRAP_TCP only; from here on
 * the meeting knows nothing of the connection, and bootstrap_send answers WEFT_ERR_STATE. -1: our
 * parameters are not with the system yet; nothing was done. */
int bootstrap_detach_socket(struct bootstrap_peer *peer, const void **rest_out, size_t *rest_bytes_out);
/* Everything sent was handed to the system (or nobody will take it any more). */
bool bootstrap_is_flushed(const struct bootstrap_peer *peer);
/* Close the connection, if there is one, and forget the peer: no callback for it comes any more. What
 * waits unsent is lost. */
void bootstrap_forget(struct bootstrap_peer *peer);

uint32_t bootstrap_peer_id(const struct bootstrap_peer *peer);
/* BOOTSTRAP_UNIX, after met: the other process; 0 when it is not visible here (another pid namespace), and
 * for BOOTSTRAP_TCP. */
int32_t bootstrap_peer_pid(const struct bootstrap_peer *peer);
void bootstrap_stats(const struct bootstrap *bootstrap, struct bootstrap_stats *stats_out);

#endif
