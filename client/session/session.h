/* session.h - the private side of struct weft_session, and who may touch what.
 *
 *     caller's thread                  net thread (control.c)             engine thread (engine.c)
 *     weft_* calls, steps, errors      join, declare, lost, abort         transport, group, chunks, codecs
 *            |  letters (weft_net_post)  ^      |  letters (weft_loop_post)   ^
 *            +---------------------------+      +-----------------------------+
 *     all of them -> failure (first one wins), weft_loop_notify (waiting callers)
 *
 * What is called "the engine thread" here and below is whoever holds the loop's baton: the engine's own
 * thread, or a caller that waits and drives the engine meanwhile (wait.c, docs/threads.md).
 *
 * After weft_init membership is constant, or changes as a whole while the session is at rest (shrink.c),
 * so any thread may read it. A session fails once and for good: client_fail() keeps the first status and
 * sentence, tells the engine (which ends every request) and, when the failure was found here, the
 * coordinator (which ends the job everywhere). */
#ifndef WEFT_CLIENT_SESSION_SESSION_H
#define WEFT_CLIENT_SESSION_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/base.h"
#include "client/call/call_group.h"
#include "client/session/control.h"
#include "client/engine/engine.h"
#include "client/tensor/codec_tuner.h"
#include "client/engine/request.h"
#include "client/session/settings.h"
#include "client/call/device_staging.h"
#include "client/elastic/step.h"
#include "client/elastic/step_compare.h"
#include "proto/proto.h"
#include "weft/weft.h"

/* One process of the job, from the roster. */
struct client_member {
    uint32_t member;         /* the coordinator's number */
    bool is_shard;
    bool states;             /* a shard that knows STATE_PULL and STATE_INIT: older ones, and older
                              * coordinators, do not say so */
    uint32_t index;          /* rank or shard index */
    uint32_t endpoint_first, endpoint_count;
    _Atomic bool is_lost;       /* the coordinator said so */
    char name[128];          /* "rank 3 (hostb, pid 41)", "shard 1 (hostb, pid 77)" */
};

struct client_failure {
    pthread_mutex_t lock;
    _Atomic int status;      /* set last: whoever sees it may read `text` without the lock */
    char text[480];
};

/* Ranks are lost and the others agree to go on (shrink.c). */
struct client_epoch_change {
    _Atomic uint32_t epoch;  /* the coordinator's last word; above session->epoch: nothing runs until all
                              * have agreed */
    pthread_mutex_t lock;    /* guards text; a leaf */
    char text[480];          /* who is lost */
    struct weft_command command;   /* to the engine: end what runs */
    _Atomic bool mail_sent;
    Weft__Control__Control *shrunk_message; /* owned; what the coordinator said of those who go on */
    struct weft_command enter_mail; /* to the engine: the new group */
    _Atomic int enter_state;     /* 1 sent, 2 answered */
    struct weft_error enter_error;
    _Atomic uint32_t grow_epoch;  /* somebody new waits to be let in as this epoch, at the end of a step */
    bool growth_unreported;                    /* the caller's: ranks are new, and the caller has not been
                                                * told */
    bool shrink_unreported; /* other ranks go on, and no call has said so: the step was good with those
                             * before */
    uint64_t codec_steps;         /* codecs count on from here, at least: where ranks have come in */
    bool is_resting;                  /* the caller's: out of data, rests until all ranks are (join.c) */
};
/* What Shrunk said of new members: kept, for whoever gets no further with that epoch needs it with the
 * next one. */
struct client_newcomer_message {
    struct client_newcomer_message *next;
    Weft__Control__Control *message; /* owned; Shrunk with newcomers */
};
struct client_old_member_table {
    struct client_old_member_table *next;
    struct client_member *members;
};

/* Sentences of failed requests, kept until weft_wait or weft_test asks: the newest CLIENT_TEXTS of them. */
#define CLIENT_TEXTS 16
struct client_texts {
    pthread_mutex_t lock;
    uint32_t serial; /* of the newest; 0: none yet */
    char text[CLIENT_TEXTS][480];
};

/* State of the finiteness check of the open step (skip_nonfinite.c). */
struct client_skip {
    uint32_t tensors;                     /* number of tensors whose mean is checked; written by the
                                           * caller's thread */
    _Atomic bool found;                   /* a mean is not finite; equal on all ranks. Written by the
                                           * engine until the step ends */
    _Atomic uint64_t first, grad_is_nonfinite;     /* lowest tensor id + 1 whose mean, or whose gradient on
                                                    * this rank, is not finite; 0: none */
    uint16_t count;                       /* skipped steps, modulo WEFT_WIRE_SKIPS; every request to a
                                           * shard carries it */
    uint64_t mine, *all;                  /* `poisoned` of this rank; of all ranks, (all_capacity,) owned */
    uint32_t all_capacity;
    struct weft_request request;
};

struct weft_session {
    struct weft_env *env;    /* borrowed */
    pid_t pid;               /* of the process that made it: a forked child is told so */
    struct weft_list live;   /* in the list of all sessions of this process (live.c) */
    bool init_has_returned;        /* weft_init has returned it */
    bool loop_held_at_exit;       /* the exiting thread holds the engine's loop */
    struct client_settings settings;

    /* membership: written during weft_init, and where a job has shrunk (shrink.c) */
    _Atomic uint32_t rank, ranks, epoch; /* epoch: of the membership; of an elastic job all three change
                                          * (shrink.c) */
    uint32_t shards;
    bool is_elastic;            /* a lost worker need not end the job */
    uint64_t silence_ns;     /* a silent member is lost to the coordinator by then */
    struct {
        uint64_t began_ns;   /* time of weft_init */
        uint64_t report_ns;  /* time of its next log line about what it waits for */
    } init_wait;
    bool is_newcomer;           /* the job ran before this worker came */
    uint64_t job_id, incarnation;
    uint32_t endpoint;       /* this worker's endpoint id */
    _Atomic uint32_t member_count; /* set last: the net thread reads `members` too */
    struct client_member *_Atomic members; /* (member_count,) owned; a new table for each epoch, the old
                                            * ones stay readable */
    struct client_old_member_table *old_tables;      /* owned */
    struct client_newcomer_message *newcomer_messages;            /* owned; under control.lock */
    struct client_epoch_change epoch_change;

    unsigned flight_signals; /* flight_signal.c: how many had come at its last look */
    struct weft_link_cost cost;    /* rank 0's, from Go; zero: not known */
    uint8_t *ring;                 /* owned; LinkCost.ring of the same; NULL: not known */
    uint32_t host_ring_count;

    struct client_failure failure;
    struct client_texts texts;
    struct client_control control;
    struct client_engine engine;

    /* the caller's: one thread at a time */
    struct weft_error error;          /* of the last failing call */
    pthread_mutex_t error_lock;       /* several threads may fail in weft_wait at once */
    struct client_step step;
    struct client_codec_tuner codec_tuner;
    struct weft_list tensors;         /* struct weft_tensor.session_link */
    struct weft_list freed_tensors;           /* the same: freed by the caller, and another thread may
                                               * still hold them; weft_finalize ends them */
    uint32_t tensor_count, reduce_tensor_count;
    enum weft_plan_id plans[WEFT_COLL_KIND_COUNT]; /* weft_set_plan */
    struct client_fastpath {                 /* call/fastpath.c */
        /* begun by its call, and left to the engine: by itself no reason to look at it */
        _Atomic(const struct client_request *) fallen_back;
        uint32_t calls_since_step;              /* the loop's borrower's: so many calls since one stepped
                                                 * it */
        _Atomic uint32_t queued_calls_left;            /* so many calls go to the engine at once */
        _Atomic bool at_once;             /* the last call that stayed open was waited for at once; false
                                           * while that is not known */
        _Atomic(struct client_request *) deferred; /* called, and its start is not posted; written by the
                                                    * loop's holder */
        struct weft_pollable pollable;
        uint32_t deferred_open;                   /* the loop's holder's: open requests that were in the
                                                   * pocket; they have no callback */
        struct weft_timestamp stamp;          /* the loop's holder's: when a send or recv was called */
        _Atomic uint32_t calls_without_shm;           /* so many of the group of all, whose ranks share no
                                                       * memory */
        /* the caller's: by kind, the last plain call of all ranks that was over within itself, as it was
         * checked */
        struct client_prepared_call {
            uint64_t shape, count;        /* weft_coll_prepared_id; 0: none */
            enum weft_dtype dtype;
            enum weft_op op;
            uint32_t root;
        } prepared[WEFT_COLL_KIND_COUNT];
    } fastpath;
    _Atomic int last_plan;           /* enum weft_plan_id of the operation posted last */
    pthread_mutex_t memory_lock;
    struct weft_list memory;          /* weft_alloc's blocks */
    struct weft_list registrations;   /* the caller's: weft_register's (registration.c) */
    struct client_leave_check *leaving;   /* owned; made by weft_finalize (leave_check.c) */
    struct client_call_group call_group;        /* weft_group_start ... weft_group_end */
    struct client_staging staging;    /* calls on memory of devices */
    struct weft_list weighted_averages;       /* struct client_weighted_average.link (weighted_average.c):
                                               * idle ones; the engine's */
    struct weft_list comms;           /* struct weft_comm.session_link */
    struct weft_error comm_error;     /* of the group that the engine was told to make last */
    struct weft_list meshes;          /* struct weft_mesh.link */
    struct client_skip skip;
    struct client_compare compare;
    struct weft_list backup, idle_backups; /* struct kept.link (input_backup.c): of the open step, and
                                            * spare memory */
    uint32_t next_group_id, split_count;   /* ids below have been used by groups that this rank knows of */
    struct client_comm_exchange_state {           /* of ranks that make a group */
        struct weft_request request;
        int64_t mine[28], *all;       /* all: (capacity,) owned */
        size_t capacity;
    } exchange;
    uint64_t steps_ended, step_ns, exposed_ns, exposed_peers_ns;
    _Atomic uint32_t open_requests;
    _Atomic int event_fd;             /* owned; weft_event_fd; -1: the caller has not asked for it */
};

/* ---- failing (failure.c) ---- */
/* Any thread. The first failure is kept. `tell`: found here, so the coordinator must end the job for the
 * others. */
void client_fail(struct weft_session *session, enum weft_status status, bool tell, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* WEFT_OK, or the status the session failed with. Any thread. */
static inline enum weft_status client_failed(const struct weft_session *session)
{
    return (enum weft_status)atomic_load_explicit(&session->failure.status, memory_order_acquire);
}
/* Keep a sentence; returns its serial number for client_text_get. Any thread. */
uint32_t client_text_put(struct weft_session *session, const char *text);
/* Copies the sentence, or the status's own text when it has been overwritten. */
void client_text_get(struct weft_session *session, uint32_t serial, enum weft_status status, char *out,
                     size_t out_bytes);
/* Forget the last error, set this one; returns the status. Caller's thread. */
enum weft_status client_error(struct weft_session *session, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Refuse a call that has no session. The sentence is stored for weft_error_text(NULL) of this thread.
 * WEFT_ERR_INVALID. */
enum weft_status client_null_argument(const char *call, const char *what);
enum weft_status client_invalid_request(const char *call);
enum weft_status client_unusable(struct weft_session *session); /* the same, where it may not be */
/* What every public call asks first: fork, then failure. Sets the error text. */
static inline enum weft_status client_usable(struct weft_session *session)
{
    bool well = session->pid == weft_process_id() && client_failed(session) == WEFT_OK &&
                !session->epoch_change.is_resting;
    return well ? WEFT_OK : client_unusable(session);
}

/* caller: weft_group_start was called */
static inline bool client_call_group_is_open(const struct weft_session *session)
{
    return session->call_group.depth > 0;
}

/* ---- members (membership.c) ---- */
enum weft_status client_members_set(struct weft_session *session, const Weft__Control__Roster *roster,
                                    struct weft_error *error);
/* Engine, nothing runs: the members of a new epoch by their ranks (count,), coordinator's numbers. */
enum weft_status client_members_renumber(struct weft_session *session, const uint32_t *numbers,
                                         uint32_t count, uint32_t epoch, struct weft_error *error);
/* Engine: how to reach a member that the table does not have; NULL: there is no such one. */
const Weft__Control__Member *client_member_find_newcomer(struct weft_session *session, uint32_t number);
/* Of a Shrunk that nobody needs any more; one with newcomers stays with the session. NULL is fine. */
void client_shrunk_release(struct weft_session *session, Weft__Control__Control *message);
void client_members_free(struct weft_session *session);
const struct client_member *client_member_of_endpoint(const struct weft_session *session, uint32_t endpoint);
struct client_member *client_member_of_number(const struct weft_session *session, uint32_t member);
const char *client_endpoint_name(const struct weft_session *session, uint32_t endpoint); /* never NULL */
/* UINT32_MAX: no such rank */
uint32_t client_rank_endpoint(const struct weft_session *session, uint32_t rank);
void client_rank_name(const struct weft_session *session, uint32_t rank, char *out, size_t out_bytes);

/* ---- the flight recorder's files (flight_dump.c, flight_signal.c) ---- */
/* Write the record into recorder.directory, if there is one. `why`: a sentence for the file. A directory
 * or disk that refuses costs one sentence in the log. Any thread. */
void client_flight_dump(struct weft_session *session, const char *why);
void client_flight_dump_calls(struct weft_session *session); /* recorder.calls, at the end of the session */
/* recorder.signal: install its handler and look for it from the net thread. Before the net starts. */
enum weft_status client_flight_signal_start(struct weft_session *session, struct weft_error *error);

/* ---- shrinking (shrink.c) ---- */
/* Net thread: a member is lost, and the job may go on as `epoch`. */
void client_leave_epoch(struct weft_session *session, uint32_t epoch, const char *text);
/* Net thread: somebody new waits; the ranks agree on it by the vote at the end of a step. */
void client_newcomer_announced(struct weft_session *session, uint32_t epoch, const char *text);
static inline bool client_is_leaving_epoch(const struct weft_session *session)
{
    return atomic_load_explicit(&session->epoch_change.epoch, memory_order_acquire) > session->epoch;
}
/* Caller's thread, parted, nothing open: agree with the others and install what is left. `committed`: the
 * last step this rank knows to be good; *committed_out: the last one that is. Blocks up to the deadline. */
enum weft_status client_shrink(struct weft_session *session, uint64_t committed, uint64_t *committed_out);

/* Caller's thread: take what the coordinator has said of those who go on, and let the engine make their
 * group. */
enum weft_status client_enter_epoch(struct weft_session *session, uint64_t until_ns);
/* Caller's thread: the most that a codec of this rank has counted. Where ranks have come in all count on
 * from the most of all ranks (parting.codec_steps), because some codecs draw by that number. */
uint64_t client_codecs_steps_max(struct weft_session *session);
/* Between steps: the codecs' debts follow the number of ranks, and their counts parting.codec_steps. */
void client_codecs_set_membership(struct weft_session *session);

/* ---- skipped steps (skip_nonfinite.c); the caller's thread ---- */
static inline bool client_skip_has_nonfinite(const struct weft_session *session)
{
    return atomic_load(&session->skip.found);
}
void client_skip_begin(struct weft_session *session);
/* Call when all requests of the step have completed and a mean is not finite. Gathers which ranks have the
 * gradient that is not finite. Blocks up to the deadline. */
enum weft_status client_skip_gather(struct weft_session *session);
/* WEFT_ERR_SKIPPED with its sentence. If an update cannot be undone, the session fails instead. */
enum weft_status client_skip_step(struct weft_session *session);

/* ---- copies for a step that is run again or skipped (input_backup.c); the caller's thread ---- */
struct backup;
enum weft_status client_backup_copy(struct weft_session *session, void *buffer, size_t bytes);
/* the same for memory that updates overwrite */
enum weft_status client_backup_copy_update(struct weft_session *session, void *buffer, size_t bytes);
/* The same without the copy: client_backup_fill makes it. */
enum weft_status client_backup_reserve_update(struct weft_session *session, void *buffer, size_t bytes,
                                              struct backup **backup_out);
/* copies up to byte `to`, before it is overwritten. Engine */
void client_backup_fill(struct backup *backup, size_t to);
void client_backup_close(struct weft_session *session, bool restore); /* the step is over */
/* the step is skipped: restores only what updates overwrote */
void client_backup_undo(struct weft_session *session);
void client_backup_free(struct weft_session *session);

/* leave_check.c: send LEAVE to the other ranks and compare what all ranks called. Caller's thread, no
 * request open. Blocks for at most 2 s. A mismatch fails the session. */
void client_leave_check_run(struct weft_session *session);

void client_weighted_averages_free(struct weft_session *session); /* weighted_average.c; memory only */
void client_meshes_free(struct weft_session *session); /* mesh.c; memory only */

void client_memory_free_all(struct weft_session *session); /* memory.c */
/* registration.c; memory only, the transport is gone */
void client_registrations_free(struct weft_session *session);

/* session/link_cost.c: what the worst link among the workers costs, from the file collective.links; false:
 * nothing is known here. Blocks for a file. cost_out->ring.data and ->runs.data are the caller's, to be
 * freed. */
enum weft_status client_link_cost_read(struct weft_session *session, const Weft__Control__Roster *roster,
                                       Weft__Control__LinkCost *cost_out, bool *known_out,
                                       struct weft_error *error);
enum weft_status client_link_cost_set(struct weft_session *session, const Weft__Control__LinkCost *cost);

/* session/topology.c: which workers share a host, into engine.hosts, or an error and those of before; and,
 * once Go has come, what was measured of their links: once for each membership, before its first
 * operation. */
enum weft_status client_hosts_apply_links(struct weft_session *session, struct weft_error *error);
/* zeroed, of one user; NULL: no memory */
struct client_hosts *client_hosts_alloc(struct weft_session *session, uint32_t ranks);
void client_hosts_free(struct weft_session *session); /* those of all epochs; the groups are gone */
/* The same for some of the ranks: `hosts`, of memory, are theirs (members (ranks,), by rank of the
 * session). False: no memory. */
bool client_hosts_apply_links_subset(struct weft_session *session, const uint32_t *members, uint32_t ranks,
                                     uint32_t *memory, struct weft_plan_hosts *hosts);
enum weft_status client_hosts_create(struct weft_session *session, const Weft__Control__Roster *roster,
                                     struct weft_error *error);

/* session.c: weft_init in another env than the process's own, which may be of virtual time. */
enum weft_status client_init(struct weft_env *env, const struct weft_options *options,
                             struct weft_session **session_out);

/* ---- the sessions of this process (live.c). Any thread. ---- */
void client_live_add(struct weft_session *session);    /* before it has threads */
void client_live_init_returned(struct weft_session *session); /* weft_init returns it */
void client_live_remove(struct weft_session *session); /* before its threads end */
/* weft_init has returned it, and weft_finalize was not called */
bool client_session_is_live(struct weft_session *session);

/* ---- the descriptor to poll (event_fd.c) ---- */
static inline bool client_event_is_enabled(const struct weft_session *session)
{
    return atomic_load_explicit(&session->event_fd, memory_order_relaxed) >= 0;
}
/* Holder of the engine's loop: a request has completed. */
void client_event_signal(struct weft_session *session);
/* Caller's thread: posts the message that starts a call. It wakes the engine at once only if the caller
 * polls the descriptor. */
void client_event_post(struct weft_session *session, struct weft_command *command);
void client_event_close(struct weft_session *session);

/* ---- waiting (wait.c) ---- */
typedef bool (*client_condition_fn)(void *context);
/* Sleep until fact(context) holds or until_ns passes: WEFT_OK or WEFT_ERR_DEADLINE. Counts exposed time
 * inside a step. */
enum weft_status client_wait_for(struct weft_session *session, client_condition_fn fact, void *context,
                                 uint64_t until_ns);
/* The same with a timeout: no clock is read where the fact holds soon (weft_loop_wait_within). */
enum weft_status client_wait_within(struct weft_session *session, client_condition_fn fact, void *context,
                                    uint64_t timeout_ns);
/* Caller's thread, in weft_init (init_wait.c): waits for a message of the coordinator and logs what it
 * waits for. missing: of the error at until_ns, "but ...". Returns the session's status. begin: once,
 * before the first wait. */
void client_init_wait_begin(struct weft_session *session);
enum weft_status client_init_wait(struct weft_session *session, enum client_phase phase, uint64_t until_ns,
                                  const char *missing);
/* now + duration without overflow */
uint64_t client_deadline(struct weft_session *session, uint64_t duration_ns);

#endif
