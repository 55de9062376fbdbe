/* weftd.h - the threads of weftd and what each owns.
 *
 *     main thread      starts everything, waits for a signal or the end, stops everything: weftd.c
 *     net thread       coordinator, control connection; struct weftd: weftd_control.c
 *     HTTP thread      pages, from copies that the other threads publish: weftd_http.c, weftd_view.c
 *     engine threads   one transport, one loop, one shard engine each: weftd_engine.c
 *
 * Threads communicate by commands: net -> engine through the loop's mailbox, engine -> net by weft_net_post.
 * The net thread wakes the main thread by an eventfd. The sender owns a command's memory and must not reuse
 * it before the reply. */
#ifndef WEFT_SERVER_DAEMON_WEFTD_H
#define WEFT_SERVER_DAEMON_WEFTD_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/server.h"
#include "snapshot/snapshot.h"

struct weftd;

/* A struct behind a sequence lock (weftd_view.c). */
#define WEFTD_WORDS(value) (sizeof(value) / sizeof(uint64_t))
#define WEFTD_PUBLISHED(type)                                    \
    struct {                                                     \
        atomic_uint sequence;                                    \
        _Atomic uint64_t words[sizeof(type) / sizeof(uint64_t)]; \
    }

/* What HTTP shows of an engine; published by the engine thread. */
struct weftd_engine_view {
    bool ready; /* it has a shard engine */
    struct weft_shard_engine_stats shard;
    struct weft_transport_stats transport;
};

_Static_assert(sizeof(struct weftd_engine_view) % sizeof(uint64_t) == 0, "published in words");

/* What HTTP shows of this process and of the job; published by the net thread. */
struct weftd_job_view {
    bool joined, running, failing;
    bool is_started;  /* the engines have opened their transports */
    bool coordinates; /* `stats` is set */
    uint32_t index, endpoint_first, engines;
    uint64_t published_ns;
    struct weft_coordinator_stats stats;
    char end_text[512], stall_text[480];
};
_Static_assert(sizeof(struct weftd_job_view) % sizeof(uint64_t) == 0, "published in words");

/* The coordinator's status as text, made by the net thread on request of the HTTP thread. */
struct weftd_status_text {
    struct weft_command command;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t answered;
    bool is_requested;
    char *json; /* owned; the last one; NULL: none, or no memory */
    uint64_t made_ns;
};

/* The newest reports of the members, where the coordinator runs; replaced by the net thread. */
struct weftd_reports_view {
    pthread_mutex_t lock; /* guards the fields below; the net thread does not wait for it */
    struct weft_member_report *reports; /* (count,) owned */
    uint32_t count;
};

/* Figures for the coordinator (weftd_report.c); written by the engine thread while the command runs. */
struct weftd_figures {
    struct weft_command command;
    struct weft_shard_engine_stats shard;
    struct weft_transport_stats transport;
};

struct weftd_engine {
    struct weftd *weftd;
    uint32_t index;
    pthread_t thread;
    bool thread_started;
    struct weft_loop *loop; /* created by the net thread, run by the engine thread */

    /* engine thread only */
    struct weft_transport *transport;
    struct weft_shard_engine *shard;
    struct weft_event_ring *events;
    struct weft_piece *restored_piece; /* owned; the last piece that was restored from; NULL: none */
    uint32_t restored_index;       /* its index in the manifest */

    /* one request at a time: open (at thread start), then connect (at the roster) */
    struct weft_command request, reply;
    struct weft_error error; /* result of that request */
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t address_bytes;

    struct weft_command fail_command; /* posted at most once */

    struct weftd_figures figures;
    struct weft_timer publish_timer; /* fn NULL: nothing is published */
    WEFTD_PUBLISHED(struct weftd_engine_view) published;
    struct weftd_engine_view seen; /* HTTP thread: its last copy */
};

/* Of the declarations by ordinal: another coordinator may repeat them. */
struct weftd_tensor_states {
    struct weftd_tensor_state {
        enum { TENSOR_UNKNOWN = 0, TENSOR_DECLARING, TENSOR_DECLARED, TENSOR_FREED } state;
        uint64_t restored; /* as in DeclaredOk */
    } * all;               /* (count,) owned */
    uint32_t count;
};

/* Copies for the HTTP thread. */
struct weftd_views {
    WEFTD_PUBLISHED(struct weftd_job_view) published;
    struct weftd_job_view seen; /* HTTP thread: its last copy */
    struct weftd_status_text status;
    struct weftd_reports_view reports;
};

/* Answers of the engines that the net thread waits for. */
struct weftd_pending {
    uint32_t engines_waited_for, figures_pending; /* engines that have not answered */
    bool progress_is_due, report_is_due;          /* to be sent after the last answer */
};

/* Net thread only. */
struct weftd_state {
    bool joined, running, failing;
    bool is_draining;      /* after the first signal, in a job with copies: its slots move to other shards */
    bool member_done;      /* the control connection has closed */
    bool coordinator_done; /* the embedded job has ended; true if the coordinator is elsewhere */
    bool is_replaced;      /* another process coordinates the job that this one has coordinated */
};

/* State of a job that begins again from a snapshot (weftd_rollback.c). */
struct weftd_rollback {
    uint64_t step; /* step of the snapshot; 0: none */
    uint16_t port; /* port of the coordinator of this process; 0: unknown */
};

/* Written by the net thread before it sets `stopped`, read by the main thread afterwards. */
struct weftd_outcome {
    struct weftd_rollback rollback;
    struct weft_error fail_error; /* what engines report to their workers; written before the commands are
                                   * posted */
    uint32_t lost_endpoint;       /* endpoint of the lost worker; UINT32_MAX: none, or a shard was lost */
    int exit_status;
    struct weft_error end;
    atomic_bool stopped;
};

/* Timeouts to reach a coordinator. NEXT: the store names it, so it listens or is lost. REACH: the options
 * name it, in a job with a store. ALL: limit for all attempts. */
#define WEFTD_REACH_NEXT_NS WEFT_SECONDS(2)
#define WEFTD_REACH_NS WEFT_SECONDS(10)
#define WEFTD_REACH_ALL_NS WEFT_SECONDS(30)
/* State of a process that joins again, or coordinates, because its coordinator was lost before the job
 * began (weftd_takeover.c). */
struct weftd_again {
    struct weft_takeover_next next;
    uint64_t began_ns;
    bool is_due;    /* not the first begin */
    uint64_t reign; /* of the lost coordinator; 0: none was reached */
    uint16_t port;  /* port of this process as a candidate; 0: it was no candidate */
    bool is_rolled_back; /* the job begins again from a snapshot (weftd_rollback.c) */
    /* is_rolled_back: address of the coordinator ("": this process), and FOLDER:STEP */
    char address[300], restore[1100];
};

struct weftd {
    struct weft_env *env;
    struct weftd_options options;
    const struct weftd_again *again; /* borrowed */
    struct weft_net *net;
    struct weft_net *http;                       /* of the HTTP thread; NULL: no HTTP */
    struct weft_coordinator_server *coordinator; /* NULL: in another process */
    struct weft_candidate *candidate;            /* NULL: this process does not take over */
    struct weft_control_client *member;
    uint64_t started_ns;
    int wake_fd; /* eventfd: the net thread wakes the main thread */

    struct weftd_views views;
    struct weftd_snapshots *snapshots; /* owned; NULL: snapshot.folder is empty (weftd_snapshot.c) */
    struct weft_snapshot *restored;    /* owned; snapshot to restore; NULL: none. Not changed after start */
    char restored_folder[1024];

    /* net thread only */
    Weft__Control__Welcome welcome; /* without the proof */
    Weft__Control__Control *roster; /* owned; engines read it */
    struct weftd_newcomers *newcomers; /* owned (weftd_members.c); engines read them */
    struct weftd_added *added;         /* owned (weftd_shard_added.c); engines read the messages */
    struct weftd_engine *engines;   /* (options.engines,) */
    struct weftd_tensor_states tensors;
    struct weft_list requests; /* struct weftd_command.link: commands without a reply */
    struct weftd_pending pending;
    struct weftd_state state;
    char label[32];        /* "shard 1" */
    struct weftd_outcome outcome;
};

/* weftd_control.c; net thread */
/* Returns a copy of a message, owned by the caller; NULL: no memory. */
Weft__Control__Control *weftd_copy_message(struct weftd *weftd, const Weft__Control__Control *message);
enum weft_status weftd_control_start(struct weftd *weftd, const char *host, uint16_t port,
                                     struct weft_error *error);
void weftd_coordinator_ended(void *context, enum weft_status status, const char *text);

/* Newest wire version that this process speaks by its options. */
static inline uint32_t weftd_wire_newest(const struct weftd *weftd)
{
    return (uint32_t)weft_config_u64(weftd->options.config, "job.wire_version");
}
/* Wire version of the job; after the roster. */
static inline uint32_t weftd_job_version(const struct weftd *weftd)
{
    const uint32_t version = weftd->roster->roster->wire_version;
    return version ? version : 1;
}

/* weftd_takeover.c; net thread */
/* Before the control connection: listens. No effect without server.store, or if this process coordinates. */
enum weft_status weftd_takeover_start(struct weftd *weftd, const char *reachable, struct weft_error *error);
void weftd_takeover_welcomed(struct weftd *weftd, const Weft__Control__Welcome *welcome);
void weftd_takeover_refused(void *context, uint64_t reign);
void weftd_coordinator_replaced(void *context);
/* Time to reach the coordinator. */
uint64_t weftd_takeover_reach_ns(const struct weftd *weftd);
/* Returns whether the coordinator may have been lost before the job began, and then sets `again`. Main
 * thread, after the net has ended. */
bool weftd_takeover_is_early(const struct weftd *weftd, const struct weft_error *error,
                             struct weftd_again *again);
/* Waits for the next coordinator, or for the right to coordinate, and sets the options. Returns false if
 * there is neither. Main thread. */
bool weftd_takeover_begin_again(struct weft_env *env, struct weftd_options *options,
                                struct weftd_again *again);
/* weftd_rollback.c */
/* Net thread: an Abort of the coordinator. Returns whether the job begins again. */
bool weftd_rolled_back(struct weftd *weftd, const Weft__Control__Abort *abort);
/* Main thread, after the net has ended and before the coordinator is freed. Returns whether this process
 * begins again, and then sets `again`, to which the options will point. */
bool weftd_rollback_is_due(const struct weftd *weftd, struct weftd_again *again);
/* Sets the options of this process, which begins again. Main thread. */
void weftd_rollback_begin_again(struct weft_env *env, struct weftd_options *options,
                                struct weftd_again *again);
/* Fails the process: the engines notify their workers, the member leaves, and the process ends with this
 * sentence. Only the first call has an effect. */
/* Stops the process if the member is done and, where it coordinates, the job has ended. */
void weftd_stop_if_done(struct weftd *weftd);
void weftd_fail(struct weftd *weftd, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* After SIGTERM or SIGINT. */
void weftd_interrupted(struct weftd *weftd, const char *signal_name);

/* weftd_engine.c */
/* net thread, after Welcome */
enum weft_status weftd_engines_start(struct weftd *weftd, struct weft_error *error);
void weftd_engines_stop(struct weftd *weftd);                                        /* main thread; joins */
void weftd_engines_free(struct weftd *weftd);
void weftd_engine_post_connect(struct weftd_engine *engine); /* reply: weftd_engine_replied */
/* Engine thread. */
enum weft_status weftd_engine_connect_worker(struct weftd_engine *engine, const Weft__Control__Member *worker,
                                             struct weft_error *error);
/* Engine thread. Connects to every engine of another shard. */
enum weft_status weftd_engine_connect_shard(struct weftd_engine *engine, const Weft__Control__Member *shard,
                                            struct weft_error *error);
/* fails the engine with weftd->fail_error; no reply */
void weftd_engine_post_failure(struct weftd_engine *engine);
/* weftd_control.c: an engine has replied to open or connect; result in engine->error. */
void weftd_engine_replied(struct weft_command *command);

/* weftd_command.c: base of a command with a reply; must be the first member */
struct weftd_command {
    struct weft_command command;
    struct weft_list link; /* weftd->requests; net thread */
    struct weftd_engine *engine;
    struct weft_error error; /* result; an error ends the job */
    void (*release)(struct weftd_command *request); /* frees what it owns besides; NULL: nothing */
};
/* A copy of a message; NULL: no memory (weftd_control.c). */
Weft__Control__Control *weftd_copy_message(struct weftd *weftd, const Weft__Control__Control *message);
/* net thread; the command is zeroed memory of the env */
void weftd_command_post(struct weftd_command *request, struct weftd_engine *engine,
                        void (*fn)(struct weft_command *command));
void weftd_command_reply(struct weftd_command *request); /* engine thread, from fn or later */
/* main thread, after the net thread and the engines have ended: frees commands without a reply */
void weftd_commands_free(struct weftd *weftd);

/* weftd_members.c; net thread */
/* false: the job ends */
bool weftd_members_lost(struct weftd *weftd, const Weft__Control__MemberLost *lost);
void weftd_members_left(struct weftd *weftd, const Weft__Control__Left *left);
void weftd_members_joined(struct weftd *weftd, const Weft__Control__Joined *joined);
void weftd_members_grow(struct weftd *weftd, const Weft__Control__Grow *grow);
void weftd_members_shrunk(struct weftd *weftd, const Weft__Control__Control *message);
/* A worker of the roster, or of a later membership; NULL: none has this number. */
const Weft__Control__Member *weftd_members_worker(const struct weftd *weftd, uint32_t number);
void weftd_members_free(struct weftd *weftd); /* main thread, after the engines */

/* weftd_shard_added.c; net thread */
void weftd_shard_added(struct weftd *weftd, const Weft__Control__Control *message);
/* A shard of the roster, or a further one; NULL: none has this number. */
const Weft__Control__Member *weftd_shard_of(const struct weftd *weftd, uint32_t number);
void weftd_shards_added_free(struct weftd *weftd); /* main thread, after the engines */

/* weftd_map.c; net thread. A Map of the coordinator: posts it to the engines */
void weftd_map(struct weftd *weftd, const Weft__Control__Control *message);

/* weftd_move.c */
/* Net thread: SlotCopy or SlotQuiet of the coordinator. */
void weftd_move(struct weftd *weftd, const Weft__Control__Control *message);
/* Engine thread; context: the engine. Sends the report to the coordinator. */
void weftd_move_report(void *context, const struct weft_slot_report *report);

/* weftd_report.c; net thread. Once: sends the figures of this shard to the coordinator periodically */
enum weft_status weftd_report_start(struct weftd *weftd);

/* weftd_view.c */
enum weft_status weftd_view_begin(struct weftd *weftd);    /* net thread, before it starts */
void weftd_view_begin_engine(struct weftd_engine *engine); /* engine thread, before its loop runs */
void weftd_view_end_engine(struct weftd_engine *engine);   /* engine thread, after its loop */
/* HTTP thread: newest copies. Never wait for the other threads. */
void weftd_view_job(struct weftd *weftd, struct weftd_job_view *view_out);
void weftd_view_engine(struct weftd_engine *engine, struct weftd_engine_view *view_out);
/* HTTP thread: the coordinator's status, allocated with the env. Waits at most 1 s for the net thread. NULL:
 * no answer, or no memory. */
char *weftd_view_status_json(struct weftd *weftd);
/* HTTP thread: the newest reports, borrowed until weftd_view_unlock_reports. */
const struct weft_member_report *weftd_view_lock_reports(struct weftd *weftd, uint32_t *count_out);
void weftd_view_unlock_reports(struct weftd *weftd);
void weftd_view_free(struct weftd *weftd); /* after both threads */

/* weftd_snapshot.c */
enum weft_status weftd_snapshots_check(const struct weftd_options *options, struct weft_error *error);
/* The folder is made and the thread started before the net thread. */
enum weft_status weftd_snapshots_start(struct weftd *weftd, struct weft_error *error);
/* Net thread, when the engines have been made and before they run. */
void weftd_snapshots_attach(struct weftd *weftd);
/* Fills in the options of an embedded coordinator. */
void weftd_snapshots_coordinate(struct weftd *weftd, struct weft_coordinator_options *options);
void weftd_snapshots_message(struct weftd *weftd, const Weft__Control__Control *message); /* net thread */
/* Net thread. true: a snapshot is being stored, and the process leaves the job after its report. */
bool weftd_snapshots_defer_leave(struct weftd *weftd);
/* Main thread, after the engines have ended: writes what is captured, then ends the thread. After a failure
 * the hook is cancelled. */
void weftd_snapshots_stop(struct weftd *weftd);
void weftd_snapshots_free(struct weftd *weftd); /* after the net */

/* weftd_restore.c */
/* Reads the manifest of the snapshot to restore. */
enum weft_status weftd_restore_load(struct weftd *weftd, struct weft_error *error);
void weftd_restore_free(struct weftd *weftd);
/* Fills in the options of an embedded coordinator (weftd_snapshot_parts.c). */
void weftd_restore_coordinate(struct weftd *weftd, struct weft_coordinator_options *options);
/* Engine thread, after the declaration: fills the engine's chunks of the tensor. *restored_out: 1 + its last
 * closed step; 0: it is not in the snapshot. */
enum weft_status weftd_restore_tensor(struct weftd_engine *engine, const Weft__Control__Declared *declared,
                                      uint64_t *restored_out, struct weft_error *error);

/* weftd_report.c; net thread: replies to ask_progress of the coordinator */
void weftd_progress_asked(struct weftd *weftd);

/* weftd_http.c; before the net thread starts */
enum weft_status weftd_http_start(struct weftd *weftd, uint16_t *port_out, struct weft_error *error);

#endif
