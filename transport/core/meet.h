/* meet.h - how two endpoints meet: they prove to each other that they hold the job's secret, hand over one blob of
 * parameters each (and descriptors, on one host), and keep the socket as the line that says when the other is gone.
 *
 *     smaller id: dials                               larger id: accepts
 *         hello (ids, fresh challenge)  ------------>
 *                                       <------------  hello (its own fresh challenge)
 *         proof                         ------------>  nothing more is said to a stranger before this one is right
 *                                       <------------  proof
 *         parameters, descriptors       <----------->  parameters, descriptors     => `met` on both sides
 *         messages                      <----------->  messages                    ... until one end closes => `gone`
 *
 * Both sides call meet_connect, in any order; who dials follows from the ids. One that is dialled before its owner has
 * asked for that peer keeps the (proven) connection until he does. Without a secret the job's nonce is the key, and only
 * endpoints of the same user (MEET_UNIX) or of this host (MEET_TCP) meet.
 *
 * Everything after the proofs carries a MAC under a key of this one connection, with direction and number: what is
 * changed, repeated or left out ends the connection. Nothing is encrypted.
 *
 * One thread: the engine's. Nothing here blocks. A stranger costs a bounded record until he has proven himself, for at
 * most half_open_ns; when there are too many, the oldest stranger goes. Every refusal is counted with its reason and,
 * at most once a second, logged. Callbacks come from meet_progress only, never from another call; they may call anything
 * here but meet_progress and meet_close.
 *
 * Use in a backend: meet_open in ops->open; put meet_fd into the backend's own epoll, or give it out as the descriptor
 * (deadlines are in it too: nothing else has to wake anybody); meet_progress in ops->progress; meet_connect in ops->connect
 * with the struct weft_peer as owner; meet_forget in ops->disconnect and after `gone`; meet_close in ops->free. A call of
 * meet_progress costs one system call: where progress is polled for microseconds, make it each time meet_fd was readable
 * and otherwise every so many polls. */
#ifndef WEFT_TRANSPORT_MEET_H
#define WEFT_TRANSPORT_MEET_H

#include "base/base.h"

#define MEET_PARAMETER_BYTES_MAX 4096u
#define MEET_MESSAGE_BYTES_MAX 4096u
#define MEET_DESCRIPTORS_MAX 8u /* with one blob or message; MEET_UNIX only */
#define MEET_ADDRESS_BYTES_MAX 64u
#define MEET_QUEUE_BYTES_MAX 65536u /* of messages that wait to be sent on one connection */

struct meet;      /* one endpoint's place */
struct meet_peer; /* from meet_connect until meet_forget */

enum meet_family {
    MEET_UNIX = 1, /* abstract Unix socket under a random name: endpoints of one host and network namespace */
    MEET_TCP,
};

/* Why a connection was refused; the index into meet_stats.refused. */
enum meet_reason {
    MEET_GARBAGE = 1, /* not our protocol, a wrong length, a frame out of turn */
    MEET_VERSION,     /* our protocol, of another version, or one side has a secret and the other has none */
    MEET_WRONG_JOB,
    MEET_WRONG_ID,    /* meant for, or coming from, another endpoint; or the wrong side dialled */
    MEET_REFLECTED,   /* our own challenge or role came back */
    MEET_WRONG_SECRET,
    MEET_TAMPERED,    /* after the proofs: a MAC that does not fit */
    MEET_DESCRIPTORS, /* descriptors before the proofs, too many, or too few */
    MEET_WRONG_USER,
    MEET_SLOW,        /* half open for longer than half_open_ns */
    MEET_CROWDED,     /* too many strangers, or too many that nobody expected yet */
    MEET_TWICE,       /* this peer is connected already */
    MEET_HUNG_UP,     /* closed before it had proven itself */
    MEET_NO_RESOURCE, /* no memory or no descriptor left here */
    MEET_REASONS,
};
const char *meet_reason_text(enum meet_reason reason); /* static; "it does not hold the job's secret" */

struct meet_callbacks {
    /* The peer has proven itself and its parameters are here; ours are on their way. `parameters` are valid during the
     * call. A descriptor is the callee's when he takes it by writing -1 over it; the others are closed afterwards.
     * From here on meet_send works. */
    void (*met)(void *owner, struct meet_peer *peer, const void *parameters, size_t bytes, int *descriptors, uint32_t count);
    /* One message of a peer that was met, in the order sent; arguments as above. May be NULL: such a message is dropped. */
    void (*message)(void *owner, struct meet_peer *peer, const void *data, size_t bytes, int *descriptors, uint32_t count);
    /* The end, once: before met the two could not meet (WEFT_ERR_UNREACHABLE, _AUTH, _VERSION, _MISMATCH), after it the
     * peer closed, died or broke the protocol (WEFT_ERR_PEER_LOST, _MALFORMED), or there was no memory for it
     * (WEFT_ERR_NO_MEMORY). Call meet_forget now or later. */
    void (*gone)(void *owner, struct meet_peer *peer, enum weft_status status, const char *text);
};

struct meet_options {
    size_t size;             /* sizeof(struct meet_options) */
    enum meet_family family; /* required */
    uint32_t id;             /* this endpoint's; required */
    uint64_t nonce;          /* of the job */
    const void *secret;      /* of the job; not kept. NULL: none, see above */
    size_t secret_bytes;
    const char *bind_host;   /* MEET_TCP: numeric address to listen on; default NULL: weft_loopback_host(). Not a wildcard unless advertise is given */
    const char *advertise;   /* MEET_TCP: numeric address told to others; default NULL: bind_host */
    uint16_t port_first;     /* MEET_TCP: the first free port of first..last; default 0: any port of the system's choice */
    uint16_t port_last;
    uint32_t half_open_max;  /* connections not proven yet; default 256 */
    uint64_t half_open_ns;   /* for this long at most; also one attempt to dial; default 5 s */
    uint32_t early_max;      /* proven ones that nobody asked for yet; default 4096 */
    uint64_t meet_ns;        /* from meet_connect to `met`, else `gone`; default 60 s */
    uint64_t liveness_ns;    /* MEET_TCP: a silent host is gone after about this, whole seconds, at least 2; default 2 s */
    struct meet_callbacks callbacks;
};
void meet_options_init(struct meet_options *options);
/* "first-last" or one port, of transport.ports; NULL: as it is. WEFT_ERR_INVALID with a sentence. */
enum weft_status meet_options_ports(struct meet_options *options, const char *text, struct weft_error *error);

struct meet_stats {
    uint64_t refused[MEET_REASONS];
    uint64_t refused_count;          /* their sum */
    uint64_t met_count, gone_count;  /* peers */
    uint32_t half_open, early, peers; /* now */
};

/* Listens from here on. WEFT_ERR_INVALID, _NOT_FOUND (no such address here), _EXISTS (no free port in the range),
 * _AUTH (TCP beyond this host without a secret), _LIMIT (descriptors), _NO_MEMORY, _IO; with a sentence. */
enum weft_status meet_open(struct weft_env *env, const struct meet_options *options, struct meet **meet_out, struct weft_error *error);
/* Closes every connection, calls nobody. NULL is fine. */
void meet_close(struct meet *meet);

/* The blob that others give to meet_connect: valid until meet_close. */
const void *meet_address(const struct meet *meet, size_t *bytes_out);
/* One descriptor, readable (level-triggered) when meet_progress has work; may be nested in another epoll. */
int meet_fd(const struct meet *meet);
/* Do about `budget` pieces of work; returns how many were done. */
int meet_progress(struct meet *meet, int budget);

/* Ask for a peer; everything is copied (descriptors are duplicated) before it returns, and `owner` comes back in the
 * callbacks. WEFT_OK: `met` or `gone` follows. WEFT_ERR_MALFORMED (address), _INVALID (own id, sizes, descriptors over
 * TCP), _EXISTS (asked for already), _LIMIT (descriptors), _NO_MEMORY: nothing was done. */
enum weft_status meet_connect(struct meet *meet, uint32_t peer_id, const void *address, size_t address_bytes, const void *parameters,
                              size_t bytes, const int *descriptors, uint32_t count, void *owner, struct meet_peer **peer_out);
/* Queue a message; copied, descriptors duplicated. WEFT_OK; WEFT_ERR_STATE (not met yet, or gone), _AGAIN (as much waits
 * already as may: a slow peer; try after some progress), _INVALID, _LIMIT (descriptors), _NO_MEMORY: nothing was queued. */
enum weft_status meet_send(struct meet_peer *peer, const void *data, size_t bytes, const int *descriptors, uint32_t count);
/* The peer's socket becomes the caller's, with the other side's bytes that were read behind its parameters; they are valid until the callback
 * returns. From `met` only, MEET_TCP only; from here on the meeting knows nothing of the connection, and meet_send answers WEFT_ERR_STATE.
 * -1: our parameters are not with the system yet; nothing was done. */
int meet_take(struct meet_peer *peer, const void **rest_out, size_t *rest_bytes_out);
/* Everything sent was handed to the system (or nobody will take it any more). */
bool meet_flushed(const struct meet_peer *peer);
/* Close the connection, if there is one, and forget the peer: no callback for it comes any more. What waits unsent is lost. */
void meet_forget(struct meet_peer *peer);

uint32_t meet_peer_id(const struct meet_peer *peer);
/* MEET_UNIX, after met: the other process; 0 when it is not visible here (another pid namespace), and for MEET_TCP. */
int32_t meet_peer_pid(const struct meet_peer *peer);
void meet_stats(const struct meet *meet, struct meet_stats *stats_out);

#endif
