/* session.h - struct weft_session: identity, membership, connection to the coordinator, failure, waits.
 *
 *     caller's thread                  net thread (control.c)             engine thread (engine/engine.c)
 *     weft_* calls, steps, errors      join, declare, lost, abort         transport, group, chunks, codecs
 *            |  commands (weft_net_post) ^      |  commands (weft_loop_post)  ^
 *            +---------------------------+      +-----------------------------+
 *     all three -> failure (the first one is kept), weft_loop_notify (waiting callers)
 *
 * The folders above own the rest of a session: engine <- call <- {comm, tensor, elastic}. Each has one
 * sub-struct, reached by a pointer that only its header completes. "Engine thread" is the thread that owns
 * the loop: the engine's own thread, or a waiting caller that steps the loop meanwhile (wait.c,
 * docs/threads.md). */
#ifndef WEFT_CLIENT_SESSION_SESSION_H
#define WEFT_CLIENT_SESSION_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/base.h"
#include "client/session/control.h"
#include "client/session/epoch_change.h"
#include "client/session/open_step.h"
#include "client/session/settings.h"
#include "collective/collective.h"
#include "coordinator/coordinator.h"
#include "proto/proto.h"

struct client_engine;   /* engine/engine.h */
struct client_calls;    /* call/calls.h */
struct client_comms;    /* comm/comms.h */
struct client_tensors;  /* tensor/tensors.h */
struct client_elastic;  /* elastic/elastic.h */
struct client_hosts;    /* topology.h */
struct client_member;   /* membership.h */

/* What the session calls in the folders above. Each function is registered before the control connection
 * starts. */
struct client_session_ops {
    /* engine/ */
    /* the session has failed: end all operations. Any thread, once */
    void (*fail_engine)(struct weft_session *session);
    /* the session has failed: wait until no request is open */
    void (*wait_requests)(struct weft_session *session);
    /* the liveness check found every rank alive. Net thread */
    void (*all_alive)(struct weft_session *session);
    /* of the operations of this worker. Net thread */
    void (*progress)(struct weft_session *session, Weft__Control__Progress *progress_out);
    enum weft_status (*connect)(struct weft_session *session, const Weft__Control__Member *member,
                                struct weft_error *error);
    bool (*is_running)(const struct weft_session *session);    /* the engine's thread was started */
    /* the caller owns the loop: release it, and step no more */
    void (*halt_at_exit)(struct weft_session *session);
    /* sends the figures of this rank (engine/report/report.c). Net thread, after Go */
    void (*report)(struct weft_session *session);
    /* elastic/ */
    /* a member is lost. Net thread */
    void (*epoch_ends)(struct weft_session *session, uint32_t epoch, const char *text);
    /* tensor/: Snap, SnapWanted, SnapFetched. Returns whether the session owns the message now. Net thread */
    bool (*snapshot_message)(struct weft_session *session, Weft__Control__Control *message);
    /* tensor/: a Map is in control.maps. Net thread */
    void (*map_arrived)(struct weft_session *session);
    /* Net thread */
    void (*newcomer_waits)(struct weft_session *session, uint32_t epoch, const char *text);
    /* Completes the step whose results are still arriving. Caller's thread, step.is_delivering */
    enum weft_status (*deliver)(struct weft_session *session);
};

/* Sentences of failed requests until weft_wait or weft_test reads them: the newest CLIENT_TEXTS. */
#define CLIENT_TEXTS 16
struct client_texts {
    pthread_mutex_t lock;
    uint32_t serial; /* of the newest sentence; 0: none */
    char text[CLIENT_TEXTS][480];
};

struct client_failure {
    pthread_mutex_t lock;
    _Atomic int status;         /* stored last: a thread that reads a failure may read `text` without the
                                 * lock */
    char text[480];
    struct client_texts texts;
    pthread_mutex_t error_lock; /* guards `error`: several threads may fail in weft_wait at once */
    struct weft_error error;    /* of the last failed call */
};

struct client_live {
    pid_t pid; /* of the process that called weft_init; calls of a forked child are refused */
    struct weft_list link;      /* in the list of the sessions of this process (live.c) */
    bool init_has_returned;     /* weft_init has returned the session */
    bool loop_held_at_exit;     /* the exiting thread owns the engine's loop */
    uint64_t init_began_ns;     /* time of weft_init */
    uint64_t init_report_ns;    /* time of the next log line about what weft_init waits for */
};

struct client_membership {
    uint32_t shards, endpoint;  /* endpoint: this worker's id in the transport */
    bool is_elastic;            /* the job may go on after the loss of a worker */
    _Atomic uint32_t member_count;         /* stored last: the net thread reads `members` too */
    struct client_member *_Atomic members; /* (member_count,) owned; a new table for each epoch */
    _Atomic(struct client_hosts *) hosts;  /* owned; ranks by host */
    uint64_t job_id, incarnation;
    uint64_t silence_ns;        /* a coordinator declares a member lost that was silent for this long */
    bool is_newcomer;           /* the job ran before this worker joined */
    uint32_t shards_added;      /* further shards that have joined; the engine's */
    struct client_old_member_table *old_tables;        /* owned; member tables of earlier epochs, still
                                                        * readable */
    struct client_newcomer_message *newcomer_messages; /* owned; guarded by control.lock */
};

struct client_link {
    struct weft_link_cost cost; /* rank 0's, from Go; zero: unknown */
    uint8_t *ring;              /* owned; LinkCost.ring of Go; NULL: unknown */
    uint32_t ring_hosts;        /* hosts in `ring` */
};

struct client_flight {
    struct weft_event_ring *events;  /* owned by the engine; any thread dumps it */
    struct weft_recorder *recorder;  /* owned by the engine; any thread dumps it */
    unsigned signals_seen;           /* signals that flight_signal.c had counted at its last poll; the net
                                      * thread */
};

struct client_totals { /* over all steps that ended well; written by the caller's thread, any thread reads */
    _Atomic uint64_t steps_ended, step_ns, exposed_ns, exposed_peers_ns;
    _Atomic uint64_t snapshot_ns; /* in which parts of snapshots were copied */
    _Atomic uint64_t wait_ns; /* of waits of any thread, inside steps and outside */
    _Atomic uint64_t waited_outside_ns; /* of these, outside steps */
    bool delivers_late;                 /* the last step was begun with deliver_late; the caller's thread */
    /* the tensor that was waited for longest: id + 1, and its exposed time; written by the engine */
    _Atomic uint64_t exposed_tensor, exposed_tensor_ns;
    struct weft_histogram step, exposed; /* steps by time, and by its exposed part; guarded by control.lock */
    struct weft_histogram failover; /* survived losses of shards (tensor/shard/shard_map.c); the engine's */
    struct weft_straggler_time straggler_time; /* of all groups; counts while a step is open */
};

struct weft_session {
    struct weft_env *env;           /* borrowed */
    struct client_session_ops ops;
    struct client_live live;
    struct client_settings settings;

    /* Membership: written in weft_init, and in an elastic job while the session is idle, by the engine.
     * Any thread reads. */
    _Atomic uint32_t rank, ranks, epoch;
    struct client_membership membership;
    struct client_epoch_change epoch_change;
    struct client_link link;

    struct client_failure failure;
    struct client_control control;
    struct weft_coordinator_thread *coordinator; /* owned; rank 0 coordinates the job; NULL: it does not */
    struct client_flight flight;

    struct weft_loop *loop;         /* owned by the engine; calls wait on it */
    _Atomic uint32_t open_requests; /* requests that have begun and not completed */
    struct client_step step;
    struct client_totals totals;
    struct {
        pthread_mutex_t lock;
        struct weft_list blocks;    /* of weft_alloc (alloc.c) */
    } alloc;

    struct client_engine *engine;
    struct client_calls *calls;
    struct client_comms *comms;
    struct client_tensors *tensors;
    struct client_elastic *elastic;
};

/* WEFT_OK, or the status the session failed with. Any thread. */
static inline enum weft_status client_failed(const struct weft_session *session)
{
    return (enum weft_status)atomic_load_explicit(&session->failure.status, memory_order_acquire);
}
/* For calls between steps: completes a delivery that is open (weft_step_begin_with). WEFT_OK if there is
 * none; else as weft_step_wait. Caller's thread. */
static inline enum weft_status client_deliver(struct weft_session *session)
{
    return session->step.is_delivering ? session->ops.deliver(session) : WEFT_OK;
}
/* The membership ends: the coordinator has announced a newer epoch. Any thread. */
static inline bool client_is_leaving_epoch(const struct weft_session *session)
{
    return atomic_load_explicit(&session->epoch_change.epoch, memory_order_acquire) > session->epoch;
}

/* Copies the reason of the last change of the membership, which names the lost rank. Any thread. session.c */
void client_epoch_change_text(struct weft_session *session, char *out, size_t out_bytes);

/* session.c: locks and lists of a session, and their end. The threads have not started, or have ended. */
void client_session_init(struct weft_session *session, struct weft_env *env);
void client_session_free(struct weft_session *session);
void client_memory_free_all(struct weft_session *session); /* alloc.c: memory of weft_alloc */

/* Allocates zeroed memory that peers on this host can map, if the transport may use shared memory. NULL: no
 * memory. Free it with weft_memory_free. Any thread. */
void *client_transport_memory_alloc(struct weft_session *session, size_t bytes);

/* ---- the sessions of this process (live.c). Any thread. ---- */
void client_live_add(struct weft_session *session);           /* before the session has threads */
void client_live_init_returned(struct weft_session *session); /* weft_init returns the session */
void client_live_remove(struct weft_session *session);        /* before its threads end */
/* Gives the coordinator of this session, which leaves, to a live session of the same job in this process, if
 * there is one: it leaves later, perhaps on this thread. */
void client_live_hand_over_coordinator(struct weft_session *session);
/* weft_init has returned the session, and weft_finalize was not called. */
bool client_session_is_live(struct weft_session *session);

#endif
