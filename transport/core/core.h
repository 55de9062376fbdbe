/* core.h - what the core and the backends of this room say to each other.
 *
 * The core keeps everything that is the same for every backend: the peers, which posted receive meets
 * which arrival, when completions run, and how a lost peer is reported. A backend only moves bytes.
 *
 *      owner ── weft_transport_send ─► core ── ops->send ─► backend ═══ wire ═══ backend ── core_arrived ─►
 *      core
 *                                                                                              │ posted
 *                                                                                              receive?
 *      completion ◄── core (progress) ◄── core_finish ◄── backend ◄── ops->accept / discard ◄──┘ handler?
 *      else kept
 *
 * Rules for a backend
 *   - An operation that answered WEFT_IN_PROGRESS ends with exactly one core_finish. The core runs the
 *     completion later, from progress: so core_finish may be called from anywhere, ops->send included.
 *     A put or get that answered WEFT_OK is over: no core_finish.
 *   - core_arrived, core_peer_lost: from ops->progress only. Messages of one peer arrive in the order sent.
 *   - An arrival embeds all memory its acceptance needs: ops->accept cannot be out of memory; what goes
 *     wrong afterwards is the status of its completion.
 *   - ops->accept and ops->discard end an arrival: the core forgets it before it calls them. */
#ifndef WEFT_TRANSPORT_CORE_H
#define WEFT_TRANSPORT_CORE_H

#include "transport/transport.h"

/* The tail of one operation. Embedded in the backend's own record of it. */
struct core_done {
    struct weft_list link;
    struct weft_peer *peer; /* NULL: the operation belongs to no peer (the closing of a window) */
    struct weft_completion *completion;
    enum weft_status status;
    struct weft_remote *remote; /* of a put or get; else NULL */
    /* Give the record back, just before the completion runs; NULL: nothing to do. */
    void (*recycle)(struct weft_transport *transport, struct core_done *done);
};

enum core_arrival_state {
    CORE_ARRIVAL_EARLY = 1,  /* from an endpoint that is not connected here yet */
    CORE_ARRIVAL_UNEXPECTED, /* waits for a receive */
    CORE_ARRIVAL_HELD,       /* given to a handler, not ended yet */
    CORE_ARRIVAL_ENDED,      /* accepted or discarded: the backend's alone */
};

/* Every backend's arrival starts with this. The backend fills `face`, the core the rest. */
struct core_arrival {
    struct weft_arrival face; /* first: callers hold a pointer to it */
    struct weft_peer *peer;
    enum core_arrival_state state;
    bool is_complete;               /* set by the backend: the payload is here, its sender is not needed
                                     * any more */
    struct weft_list of_peer; /* in peer->arrivals until ended, in the order arrived */
};

struct weft_peer {
    struct weft_transport *transport;
    uint32_t id;
    bool connected;           /* false: known only by what it sent, see CORE_ARRIVAL_EARLY */
    bool early;               /* connected, but early arrivals wait for the next progress */
    enum weft_status status;  /* WEFT_OK, or why it is lost */
    bool told;                /* lost, and the watcher knows */
    bool left;                /* lost, but in order: its whole messages can still be received */
    uint32_t operations;      /* sends and accepts in flight */
    char *text;               /* why it is lost: core_peer_text */
    struct weft_peer *next;   /* in its hash bucket */
    struct weft_list link;    /* in transport->peers, in the order met */
    struct weft_list failing; /* in transport->failing until peer_failed has been called */
    struct weft_list arrivals;
    void *backend;
    uint32_t marks;           /* of the composite endpoint that chose this part for it (route/) */
};

/* The core fills the first part before ops->window_open. */
struct weft_window {
    struct weft_transport *transport;
    struct weft_window_options options;
    struct core_done done; /* of its closing */
    bool closing;
    struct weft_list link; /* in transport->windows */
    uint8_t key[WEFT_WINDOW_KEY_BYTES_MAX];
    size_t key_bytes;
    void *backend;
};

struct weft_remote {
    struct weft_peer *peer;
    uint64_t bytes;      /* these two by ops->import */
    unsigned rights;
    uint32_t operations; /* puts and gets in flight: the backend's core_done.remote makes the core count
                          * them down */
    struct weft_list link; /* in transport->remotes */
    void *backend;
};

/* What a backend that wants to know is told of posted receives: MATCHED is followed at once by
 * ops->accept, ENDED means over without having moved anything, with the status in `state`. */
enum core_moment { CORE_RECEIVE_POSTED = 1, CORE_RECEIVE_MATCHED, CORE_RECEIVE_ENDED };

enum { CORE_MATCH_BUCKETS = 512, CORE_CHANNELS = 256 };
enum { CORE_EAGER_BYTES = 8192 }; /* where neither the user nor the backend has said otherwise */

/* Bounds of what strangers with the right nonce may leave here before they are connected. */
enum { CORE_EARLY_PEERS_MAX = 4096, CORE_EARLY_ARRIVALS_MAX = 16384 };

struct weft_transport {
    struct weft_env *env;
    const struct weft_transport_ops *ops;
    void *backend;
    char name[64]; /* a backend may make it more precise while it opens */

    uint32_t id;
    uint64_t nonce;
    size_t eager_bytes_max;
    size_t message_bytes; /* weft_transport_message_bytes; a backend may set it while it opens */
    void (*peer_failed)(void *context, uint32_t peer_id, enum weft_status status, const char *text);
    void *peer_failed_context;
    weft_peer_lost_fn watcher;
    void *watcher_context;
    bool has_unreported_loss; /* some peer is lost and the watcher does not know */

    struct weft_peer **peer_buckets;
    uint32_t peer_bucket_count, peer_count, early_peer_count, early_arrival_count;
    struct core_peer_batch *peer_batches; /* their memory, the newest first */
    struct weft_peer *unused_peers;       /* in it, by next */
    struct weft_list peers, failing;
    struct weft_list windows, remotes;
    struct weft_list registrations;       /* struct weft_registration */
    unsigned abilities; /* from ops->abilities; open may take some away */

    struct weft_list posted[CORE_MATCH_BUCKETS];     /* struct weft_receive */
    struct weft_list unexpected[CORE_MATCH_BUCKETS]; /* struct weft_arrival */
    struct {
        weft_arrival_fn fn;
        void *context;
    } handlers[CORE_CHANNELS];
    struct {
        weft_discard_filter_fn fn;
        void *context;
    } discard_filters[CORE_CHANNELS];

    struct core_discard_rule {
        uint64_t tag, mask;
    } *discard_rules; /* tags nobody will receive under any more, oldest first */
    uint32_t discard_rule_count, discard_rule_capacity;

    struct weft_list done;  /* struct core_done */
    struct weft_list ended; /* struct weft_receive that has no record at the backend (any more); state
                             * holds the status */
    /* mostly NULL */
    void (*observe)(struct weft_transport *transport, enum core_moment moment, struct weft_receive *receive);
    bool rescan;            /* a handler or a peer is new: arrivals that wait may have a taker */
    bool progressing, closed;

    /* An endpoint made of several (route/): its peers, receives and arrivals live in the parts, and the
     * face hands them on. */
    struct weft_transport **children; /* NULL: an ordinary one */
    uint32_t child_count;
    struct weft_transport *parent;  /* of a part: what it belongs to; else NULL */

    struct weft_loop *loop; /* while attached */
    struct weft_pollable pollable;
    struct weft_timer wake;
    uint64_t wake_ns;

    struct weft_transport_stats stats;
};

/* ---- for backends ---- */

/* One operation is over. */
void core_finish(struct weft_transport *transport, struct core_done *done, enum weft_status status);
/* A message of `peer_id` with the right nonce was announced; `face` is filled. Takes the arrival, always. */
void core_arrived(struct weft_transport *transport, struct core_arrival *arrival);
/* As core_arrived, but only if a receive is posted for it: then it is taken, and no code of a user has
 * run, so this may be called from inside a library's callback. false: nothing was done. */
bool core_arrived_posted(struct weft_transport *transport, struct core_arrival *arrival);
/* As core_arrived, of a message that is whole and in the backend's hands: copied at once if a receive is
 * posted that holds it, and then no record of it is needed. false: nothing was done, and core_arrived it
 * must be. */
bool core_arrived_complete(struct weft_transport *transport, struct weft_peer *peer, uint64_t tag,
                           const void *header, uint32_t header_bytes, const void *payload,
                           size_t payload_bytes);
/* As weft_transport_fail_peer. `peer` may be one that is lost already: then nothing happens. */
void core_peer_lost(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status,
                    const char *text);
/* As core_peer_lost, but it took its leave in order: whole messages it had sent can still be received. */
void core_peer_left(struct weft_transport *transport, struct weft_peer *peer, const char *text);
/* Why it is lost; "" while it is not. */
const char *core_peer_text(const struct weft_peer *peer);
/* The peer, or an early one made for this id; NULL when there are too many of those (or no memory). */
struct weft_peer *core_peer_find_or_add(struct weft_transport *transport, uint32_t peer_id);
static inline void core_count_refused(struct weft_transport *transport) { transport->stats.refused_count++; }
/* The backend has work at that time (and no descriptor that would say so): the loop looks again then. */
void core_wake_at(struct weft_transport *transport, uint64_t time_ns);
/* A small keyed scramble of the job's nonce: address blobs carry it in the open, messages the nonce
 * itself. */
uint32_t core_nonce_hash(uint64_t nonce);

/* ---- inside the core ---- */

/* transport.c: as struct weft_pollable.arm, for one transport inside another. */
enum weft_status core_arm(struct weft_transport *transport);

/* peers.c */
enum weft_status core_peers_init(struct weft_transport *transport);
void core_peers_free(struct weft_transport *transport);
/* connected or not; not in parts */
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
/* End every posted receive of the peer (NULL: of all). */
void core_match_end_posted(struct weft_transport *transport, const struct weft_peer *peer,
                           enum weft_status status);
/* Let go of every arrival of the peer: those held become lost, the others are discarded. keep_whole:
 * except those that are whole. */
void core_arrivals_drop(struct weft_transport *transport, struct weft_peer *peer, bool keep_whole);
void core_arrivals_rescan(struct weft_transport *transport);
bool core_is_discarded(const struct weft_transport *transport, uint64_t tag);
void core_discard(struct weft_transport *transport, struct core_arrival *arrival);
void core_peers_notify_watcher(struct weft_transport *transport);
int core_match_deliver(struct weft_transport *transport, int budget);

/* window.c */
void core_windows_init(struct weft_transport *transport);
/* those nobody closed, and remotes nobody released */
void core_windows_free(struct weft_transport *transport);

/* registration.c */
void core_registrations_init(struct weft_transport *transport);
void core_registrations_free(struct weft_transport *transport); /* those that were not unregistered */

/* backends.c: by "ucx", "sim", "fault:...", "delay:...". The first use of a backend in a module opens it
 * (module.h), which blocks. WEFT_ERR_UNSUPPORTED with a sentence: the name is unknown, it is not in this
 * build, or its module cannot be opened. Any thread. */
enum weft_status core_backend_find(const char *name, const struct weft_transport_ops **ops_out,
                                   struct weft_error *error);
bool core_backend_is_known(const char *name); /* in this build; opens nothing */
const char *core_backend_names(void);

#endif
