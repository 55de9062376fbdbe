/* core.h - the interface between the core and the backends.
 *
 * The core does what is equal for all backends: peers, matching of receives and arrivals, order of
 * completions, report of lost peers. A backend moves bytes.
 *
 *  owner ── weft_transport_send ─► core ── ops->send ─► backend ═ wire ═ backend ── core_arrived ─► core
 *                                                                                     │ posted receive?
 *  completion ◄── core (progress) ◄── core_finish ◄─ backend ◄─ ops->accept / discard ◄─┘ handler? else kept
 *
 * Rules for a backend
 * - An operation that returned WEFT_IN_PROGRESS ends with exactly one core_finish. The core runs the
 *   completion later, from progress, so core_finish may be called anywhere, also in ops->send. A put or
 *   get that returned WEFT_OK gets no core_finish.
 * - core_arrived and core_peer_lost are called from ops->progress only. Messages of a peer arrive in the
 *   order sent.
 * - An arrival embeds the memory for its acceptance: ops->accept cannot run out of memory. A later failure
 *   is the status of the completion.
 * - ops->accept and ops->discard end an arrival; the core forgets it before the call. */
#ifndef WEFT_TRANSPORT_CORE_H
#define WEFT_TRANSPORT_CORE_H

#include "transport/transport.h"

/* The core's part of one operation, embedded in the backend's record. */
struct core_done {
    struct weft_list link;
    struct weft_peer *peer; /* NULL: no peer (the close of a window) */
    struct weft_completion *completion;
    enum weft_status status;
    struct weft_remote *remote; /* of a put or get; else NULL */
    /* Frees the backend's record, just before the completion runs. NULL: nothing to do. */
    void (*recycle)(struct weft_transport *transport, struct core_done *done);
};

enum core_arrival_state {
    CORE_ARRIVAL_EARLY = 1,  /* from an endpoint that is not connected here yet */
    CORE_ARRIVAL_UNEXPECTED, /* no receive and no handler yet */
    CORE_ARRIVAL_HELD,       /* passed to a handler, not ended */
    CORE_ARRIVAL_ENDED,      /* accepted or discarded; owned by the backend */
};

/* First member of every backend's arrival. The backend fills handle and is_complete, the core the rest. */
struct core_arrival {
    struct weft_arrival handle; /* the public part; first, because callers hold a pointer to it */
    struct weft_peer *peer;
    enum core_arrival_state state;
    bool is_complete;               /* the payload is in this process; the sender is not needed */
    struct weft_list of_peer; /* in peer->arrivals until ended, in arrival order */
};

struct weft_peer {
    struct weft_transport *transport;
    uint32_t id;
    bool connected;           /* false: known only by its messages, see CORE_ARRIVAL_EARLY */
    bool early;               /* connected, but early arrivals wait for the next progress */
    enum weft_status status;  /* WEFT_OK, or why it is lost */
    bool watcher_notified;    /* lost, and the watcher was called */
    bool has_left;            /* closed in order: its complete messages can still be received */
    bool announces_all;       /* weft_peer_announce_all */
    uint32_t operations;      /* sends and accepts in flight */
    uint64_t sent_bytes;      /* messages and puts started */
    char *text;               /* reason of the loss: core_peer_text */
    struct weft_peer *next;   /* next in the hash bucket */
    struct weft_list link;    /* in transport->peers, in the order added */
    struct weft_list failing; /* in transport->failing until peer_failed has been called */
    struct weft_list arrivals;
    void *backend;
    uint32_t marks;           /* for `auto`: why other backends were not chosen, 8 bits each */
};

/* The core sets transport and options before ops->window_open. */
struct weft_window {
    struct weft_transport *transport;
    struct weft_window_options options;
    struct core_done done; /* of the close */
    bool closing;
    struct weft_list link; /* in transport->windows */
    uint8_t key[WEFT_WINDOW_KEY_BYTES_MAX];
    size_t key_bytes;
    void *backend;
};

struct weft_remote {
    struct weft_peer *peer;
    uint64_t bytes;      /* set by ops->import, as is `rights` */
    unsigned rights;
    uint32_t operations; /* puts and gets in flight; the core decrements by core_done.remote */
    struct weft_list link; /* in transport->remotes */
    void *backend;
};

/* Events of a posted receive for ops->observe. MATCHED is followed by ops->accept. ENDED: no data moved;
 * `state` is the status. */
enum core_moment { CORE_RECEIVE_POSTED = 1, CORE_RECEIVE_MATCHED, CORE_RECEIVE_ENDED };

enum { CORE_MATCH_BUCKETS = 512, CORE_CHANNELS = 256 };
enum { CORE_EAGER_BYTES = 8192 }; /* default if neither user nor backend chooses */

/* Bounds for peers and messages that arrive before the local connect. */
enum { CORE_EARLY_PEERS_MAX = 4096, CORE_EARLY_ARRIVALS_MAX = 16384 };

/* Callbacks for lost peers. */
struct core_losses {
    void (*peer_failed)(void *context, uint32_t peer_id, enum weft_status status, const char *text);
    void *peer_failed_context;
    weft_peer_lost_fn watcher;
    void *watcher_context;
    bool has_unreported_loss; /* a peer is lost and the watcher was not called */
};
/* Peers by endpoint id, and their memory. */
struct core_peer_table {
    struct weft_peer **peer_buckets;
    uint32_t peer_bucket_count, peer_count, early_peer_count, early_arrival_count;
    struct core_peer_batch *peer_batches; /* memory of the peers, newest batch first */
    struct weft_peer *unused_peers;       /* free peers of the batches, linked by next */
};
/* Windows, remotes and registrations of this endpoint. */
struct core_memory {
    struct weft_list windows, remotes;
    struct weft_list registrations;       /* struct weft_registration */
};
/* Receives and arrivals by tag. */
struct core_matching {
    struct weft_list posted[CORE_MATCH_BUCKETS];     /* struct weft_receive */
    struct weft_list unexpected[CORE_MATCH_BUCKETS]; /* struct weft_arrival */
    struct {
        weft_arrival_fn fn;
        void *context;
    } handlers[CORE_CHANNELS];
};
/* Messages that are dropped on arrival. */
struct core_discards {
    struct {
        weft_discard_filter_fn fn;
        void *context;
    } discard_filters[CORE_CHANNELS];
    struct core_discard_rule {
        uint64_t tag, mask;
    } *discard_rules; /* tags out of use, oldest first */
    uint32_t discard_rule_count, discard_rule_capacity;
};
/* A composite endpoint (auto/): peers, receives and arrivals live in the children; the public functions
 * delegate. */
struct core_composite {
    /* A composite endpoint (auto/): peers, receives and arrivals live in the children; the public
     * functions delegate. */
    struct weft_transport **children; /* NULL: an ordinary endpoint */
    uint32_t child_count;
    struct weft_transport *parent;  /* the composite endpoint, or NULL */
};
/* Attachment to the loop that drives the endpoint. */
struct core_attachment {
    struct weft_loop *loop; /* while attached */
    struct weft_pollable pollable;
    struct weft_timer wake;
    uint64_t wake_ns;
};

struct weft_transport {
    struct weft_env *env;
    const struct weft_transport_ops *ops;
    void *backend;
    char name[64]; /* a backend may refine it in open */

    uint32_t id;
    uint64_t nonce;
    size_t eager_bytes_max;
    size_t message_bytes; /* weft_transport_message_bytes; set in open */
    struct core_losses losses;

    struct core_peer_table peer_table;
    struct weft_list peers, failing;
    struct core_memory memory;
    unsigned abilities; /* of ops->abilities; open may clear bits */

    struct core_matching matching;
    struct core_discards discards;

    struct weft_list done;  /* struct core_done */
    struct weft_list ended; /* struct weft_receive without a record at the backend; state is the status */
    /* usually NULL */
    void (*observe)(struct weft_transport *transport, enum core_moment moment, struct weft_receive *receive);
    bool rescan;            /* a handler or peer is new: waiting arrivals may match */
    bool progressing, closed;

    struct core_composite composite;

    struct core_attachment attachment;

    struct weft_transport_stats stats;
};

/* ---- for backends ---- */

/* unread_bytes_max within the bounds of a backend whose choice is `choice`. */
static inline size_t core_unread_bytes(const struct weft_transport_options *options, size_t choice)
{
    const size_t wanted = options->unread_bytes_max;
    return wanted == 0 || wanted > choice             ? choice
           : wanted < WEFT_TRANSPORT_UNREAD_BYTES_MIN ? WEFT_TRANSPORT_UNREAD_BYTES_MIN
                                                      : wanted;
}

/* Ends one operation. */
void core_finish(struct weft_transport *transport, struct core_done *done, enum weft_status status);
/* A message of `peer_id` with the right nonce was announced; `handle` is filled. The core takes the
 * arrival. */
void core_arrived(struct weft_transport *transport, struct core_arrival *arrival);
/* As core_arrived if a receive is posted for it. Runs no user code, so a callback of a library may call
 * it. False: no receive is posted, nothing was done. */
bool core_arrived_posted(struct weft_transport *transport, struct core_arrival *arrival);
/* As core_arrived for a complete message in the backend's memory. If a posted receive matches, the payload
 * is copied at once and no record is needed. False: nothing was done; call core_arrived. */
bool core_arrived_complete(struct weft_transport *transport, struct weft_peer *peer, uint64_t tag,
                           const void *header, uint32_t header_bytes, const void *payload,
                           size_t payload_bytes);
/* As weft_transport_fail_peer. No effect if `peer` is lost already. */
void core_peer_lost(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status,
                    const char *text);
/* As core_peer_lost for a peer that closed in order: its complete messages can still be received. */
void core_peer_left(struct weft_transport *transport, struct weft_peer *peer, const char *text);
/* Reason of the loss; "" if the peer is not lost. */
const char *core_peer_text(const struct weft_peer *peer);
/* The peer, or a new early one. NULL: the bound of early peers, or no memory. */
struct weft_peer *core_peer_find_or_add(struct weft_transport *transport, uint32_t peer_id);
static inline void core_count_refused(struct weft_transport *transport) { transport->stats.refused_count++; }
/* The backend has work at that time and no descriptor for it: the loop calls progress then. */
void core_wake_at(struct weft_transport *transport, uint64_t time_ns);
/* Keyed hash of the job's nonce: address blobs carry the hash, messages the nonce. */
uint32_t core_nonce_hash(uint64_t nonce);

/* ---- inside the core ---- */

/* transport.c: as struct weft_pollable.arm, for one transport inside another. */
enum weft_status core_arm(struct weft_transport *transport);

/* peers.c */
enum weft_status core_peers_init(struct weft_transport *transport);
void core_peers_free(struct weft_transport *transport);
/* connected or not; not in children */
struct weft_peer *core_peer_find(struct weft_transport *transport, uint32_t peer_id);
struct weft_peer *core_peer_add(struct weft_transport *transport, uint32_t peer_id);  /* NULL: no memory */
void core_peer_remove(struct weft_transport *transport, struct weft_peer *peer);
int core_peers_report(struct weft_transport *transport);

/* match.c */
void core_match_init(struct weft_transport *transport);
bool core_match_posted(struct weft_transport *transport, struct core_arrival *arrival);
struct core_arrival *core_match_unexpected(struct weft_transport *transport, uint32_t peer_id, uint64_t tag);
void core_match_post(struct weft_transport *transport, struct weft_receive *receive);
void core_match_keep(struct weft_transport *transport, struct core_arrival *arrival);
void core_receive_match(struct weft_transport *transport, struct weft_receive *receive,
                        struct core_arrival *arrival);
/* Ends every posted receive of the peer (NULL: of all). */
void core_match_end_posted(struct weft_transport *transport, const struct weft_peer *peer,
                           enum weft_status status);
/* Ends every arrival of the peer: held ones are marked lost, others are discarded. keep_whole: complete
 * ones stay. */
void core_arrivals_drop(struct weft_transport *transport, struct weft_peer *peer, bool keep_whole);
void core_arrivals_rescan(struct weft_transport *transport);
bool core_is_discarded(const struct weft_transport *transport, uint64_t tag);
void core_discard(struct weft_transport *transport, struct core_arrival *arrival);
void core_peers_notify_watcher(struct weft_transport *transport);
int core_match_deliver(struct weft_transport *transport, int budget);

/* window.c */
void core_windows_init(struct weft_transport *transport);
/* windows and remotes that the user left open */
void core_windows_free(struct weft_transport *transport);

/* registration.c */
void core_registrations_init(struct weft_transport *transport);
void core_registrations_free(struct weft_transport *transport); /* those that were not unregistered */

/* backends.c: looks up "ucx", "sim", "fault:...", "delay:...". The first use of a backend in a module
 * opens the module (module.h) and blocks. WEFT_ERR_UNSUPPORTED with a sentence: unknown name, not in this
 * build, or the module cannot be opened. Any thread. */
enum weft_status core_backend_find(const char *name, const struct weft_transport_ops **ops_out,
                                   struct weft_error *error);
bool core_backend_is_known(const char *name); /* in this build; opens nothing */
const char *core_backend_names(void);

#endif
