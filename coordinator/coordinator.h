/* coordinator.h - public header of the coordinator module: membership, roster, declarations, placement, loss.
 *
 *   coordinator         a state machine without sockets, threads or sleeping (coordinator.c)
 *   coordinator server  its driver over base/net (coordinator_net.c), on a net thread of the caller
 *   coordinator thread  the driver on a net thread of its own (coordinator_thread.c)
 *   control link        a member's end of its control session (control_link.h)
 *   store               keys and values that outlive a coordinator (store/store.h)
 *   find                the port of a job's coordinator (coordinator_find.c)
 *
 * weftd, `weft run` and the library of rank 0 contain one. */
#ifndef WEFT_COORDINATOR_H
#define WEFT_COORDINATOR_H

#include "base/base.h"
#include "coordinator/control_link.h"
#include "coordinator/store/store.h"
#include "proto/proto.h"

/* ---- coordinator, sans I/O ---- */
struct weft_coordinator;
/* Bytes of a worker's part of a snapshot. */
struct weft_snapshot_bytes {
    uint32_t id, member; /* for weft_coordinator_snapshot_stored */
    uint32_t rank;
    uint64_t offset, total; /* of these bytes in the part; of the part */
    uint64_t step;
    const uint8_t *data; /* (bytes,) valid during the call */
    size_t bytes;
};
/* Snapshots of the shards. */
struct weft_coordinator_snapshots {
    /* Every so many steps, or ns; 0 and 0: none. The driver reports the end of a commit
     * (weft_coordinator_snapshot_committed). */
    uint64_t steps, period_ns;
    uint64_t last_ns;        /* of a candidate: when the last snapshot began, on its clock; 0: unknown */
    uint64_t restored_step;  /* the shards restore the snapshot of this step; 0: none */
    uint32_t restored_parts; /* 1 + the largest rank with a part in the restored snapshot; 0: none */
    bool allow_rollback;     /* with a snapshot the loss of chunks without a copy does not end the job */
    bool is_rolled_back;     /* the job begins again from the restored snapshot, without shards that do not
                              * join */
};
/* Callbacks of a coordinator for snapshots; `context` is that of the options. Unused without snapshots. */
struct weft_coordinator_snapshot_calls {
    /* A new snapshot of the step begins: forget the pieces of the one before. */
    void (*begin)(void *context, uint64_t step);
    /* Pieces that a shard has stored. */
    void (*pieces)(void *context, const Weft__Control__SnapPieces *pieces);
    /* Store these bytes, then call weft_coordinator_snapshot_stored, not inside this call. NULL: snapshots
     * have no parts of workers. */
    void (*part)(void *context, const struct weft_snapshot_bytes *bytes);
    /* Read the rank's part in the restored snapshot from `offset` on, then call
     * weft_coordinator_snapshot_fetched, not inside this call. */
    void (*fetch)(void *context, uint32_t member, uint32_t rank, uint64_t offset);
    /* All shards and workers have stored everything: write the manifest. */
    void (*commit)(void *context, uint64_t step);
};
/* Callbacks of a coordinator for its connections. */
struct weft_coordinator_net_calls {
    /* Sends one control message; packs it before returning. send and close must not call back into the
     * coordinator. */
    void (*send)(void *context, uint64_t connection, const Weft__Control__Control *message);
    /* Sends of this message, which does not change, to many members begin; NULL: they end. Pairs may nest.
     * May be NULL. */
    void (*send_same)(void *context, const Weft__Control__Control *message);
    void (*close)(void *context, uint64_t connection, const char *why);
};
/* A member with this host and pid is in the coordinating process: both are lost together. */
struct weft_coordinator_process {
    const char *host;
    uint64_t pid;
};
struct weft_coordinator_options {
    size_t size;
    const char *job;          /* members of another job are refused */
    const char *secret;       /* NULL: none */
    uint32_t workers, shards; /* expected at the start; 1 to WEFT_LIMIT_WORKERS, 0 to WEFT_LIMIT_SHARDS */
    uint32_t workers_max;     /* elastic jobs: newcomers are admitted while there are fewer workers; 0: no
                               * newcomers */
    uint32_t workers_min;     /* a lost worker does not end the job while this many remain; default 0: it
                               * does */
    uint32_t copies;          /* of each slot of chunks: a lost shard does not end the job while every slot
                               * has a copy; 0 to WEFT_LIMIT_COPIES; default 0 */
    const char *store;        /* the driver's: path of a file in which another process finds the job if this
                               * one ends (candidate below); needs copies and resume_ns, and with
                               * workers_min wire version 2; default NULL: none */
    const char *reachable;    /* the driver's: address of this process for members and other programs, as
                               * host name or number, IPv6 in brackets; default NULL: that of the listener */
    bool begins_again;        /* the former coordinator of the store was lost before the job began: its shard
                               * is probably lost, too; default false */
    bool copies_on_one_host;  /* a copy may be on the host of the original; default false */
    uint32_t wire_newest;     /* newest wire version that this process speaks; default 0: WEFT_WIRE_VERSION */
    uint64_t heartbeat_ns;    /* a member without messages for this time is lost; default 30 s */
    uint64_t beat_ns;         /* the driver sends a Heartbeat to a member after this time without a message;
                               * default 0: it does not */
    uint64_t resume_ns;       /* a member may replace a broken connection for this time; default 5 s. 0: it is
                               * lost */
    uint64_t join_ns;         /* from creation until all members have joined and connected; default 300 s */
    uint32_t newcomers_max;   /* connections that have not joined; at the limit the oldest one is closed;
                               * default 256 */
    struct weft_coordinator_process process; /* the coordinating one; default "", 0 */
    struct weft_coordinator_snapshots snapshots;
    struct weft_coordinator_snapshot_calls snapshot_calls;
    struct weft_coordinator_net_calls net;
    /* The job has ended: WEFT_OK if it finished, otherwise the status and sentence of the failure. Called
     * once. */
    void (*ended)(void *context, enum weft_status status, const char *text);
    /* With a store: this process does not coordinate any more, and all connections are closed. `ended` is not
     * called. The driver's; may be NULL. */
    void (*replaced)(void *context);
    void *context;
};
void weft_coordinator_options_init(struct weft_coordinator_options *options);
enum weft_status weft_coordinator_create(struct weft_env *env, const struct weft_coordinator_options *options,
                                         struct weft_coordinator **out);
void weft_coordinator_free(struct weft_coordinator *coordinator);
void weft_coordinator_opened(struct weft_coordinator *coordinator, uint64_t connection,
                             const char *peer_name);
void weft_coordinator_message(struct weft_coordinator *coordinator, uint64_t connection,
                              const Weft__Control__Control *message);
void weft_coordinator_closed(struct weft_coordinator *coordinator, uint64_t connection, const char *why);
/* The member of the request cannot resume: sends the reason and closes this new connection. */
void weft_coordinator_refuse_resume(struct weft_coordinator *coordinator, uint64_t connection,
                                    const Weft__Control__Resume *request);
/* call about once a second: heartbeats, deadlines */
void weft_coordinator_tick(struct weft_coordinator *coordinator);
/* This process was suspended for pause_ns (debugger, live migration). Messages of the members may be unread,
 * so the pause does not count as silence. */
void weft_coordinator_paused(struct weft_coordinator *coordinator, uint64_t pause_ns);
/* The manifest is on disk, or writing it has failed. */
void weft_coordinator_snapshot_committed(struct weft_coordinator *coordinator, bool is_good);
/* Bytes of snapshot_part are on disk; error: they are not, and the snapshot fails with this sentence. */
void weft_coordinator_snapshot_stored(struct weft_coordinator *coordinator, uint32_t id, uint32_t member,
                                      uint64_t bytes, const char *error);
/* The answer to snapshot_fetch. */
void weft_coordinator_snapshot_fetched(struct weft_coordinator *coordinator, uint32_t member,
                                       const Weft__Control__SnapFetched *fetched);
/* Returns whether the job begins again from a snapshot (WEFT_ERR_ROLLED_BACK), and then sets the numbers of
 * the job that begins; the caller sets the other options. */
bool weft_coordinator_rolled_back(const struct weft_coordinator *coordinator,
                                  struct weft_coordinator_options *options_out);
/* The declaration of a tensor; NULL: not known, or freed. */
const Weft__Control__Declare *weft_coordinator_declare_of(const struct weft_coordinator *coordinator,
                                                          uint32_t ordinal);
/* JSON of members, tensors and state, allocated with the env; NULL without memory. */
char *weft_coordinator_status_json(struct weft_coordinator *coordinator);

/* Names of the states of a job: "joining", "connecting", "running", "ended". */
#define WEFT_COORDINATOR_STATES 4u
extern const char *const weft_coordinator_states[WEFT_COORDINATOR_STATES];

/* Figures of the job for monitoring. Members are counted by the state names of the status. */
struct weft_coordinator_role_stats {
    uint64_t expected; /* members of the membership in force; at the start: that the job waits for */
    uint64_t joined, connecting, ready, left, lost;
    uint64_t silence_ns; /* longest time since the last message of a connected member; 0: no member */
};
/* Times of the operations of one kind. */
struct weft_operation_times {
    char kind[24]; /* "all_reduce": lower-case letters and '_' */
    struct weft_histogram times;
};
#define WEFT_OPERATION_KINDS 24u
/* Exchanges through a codec, of all workers; see CodecFigures. */
struct weft_codec_figures {
    struct weft_histogram encode, decode;
    uint64_t gradient_bytes, encoded_bytes;
};
#define WEFT_CODEC_RATIO_HELP \
    "Bytes of the gradients by bytes of the contributions in their place; 0: no exchange."
#define WEFT_CODEC_GRADIENT_BYTES_HELP "Gradients that passed through a codec, as f32."
#define WEFT_CODEC_ENCODED_BYTES_HELP "Contributions that workers sent in place of these gradients."

struct weft_coordinator_stats {
    const char *state; /* one of weft_coordinator_states */
    struct weft_coordinator_role_stats workers, shards;
    uint64_t epoch, tensors;
    uint64_t start_wait_ns; /* time that the job has waited to begin; 0: it has begun or ended */
    uint64_t agreement_ns;  /* age of the open agreement on a membership; 0: none is open */
    uint64_t stall_ns;      /* age of an operation that takes much longer than usual; 0: none */
    struct weft_histogram step, exposed; /* reported steps of all workers: their time; its exposed part */
    struct weft_histogram failover; /* survived losses of shards, of all workers; see Report */
    struct weft_operation_times operations[WEFT_OPERATION_KINDS]; /* of all workers */
    uint32_t operation_count;
    struct weft_codec_figures codec;
    uint64_t sick_hosts; /* for which `weft doctor --notify` has sent findings */
    uint64_t snapshot_failures;         /* since this process coordinates */
    uint64_t slots, slots_without_copy; /* without_copy: with chunks whose loss would end the job; 0 in a job
                                         * without copies */
};
void weft_coordinator_stats(const struct weft_coordinator *coordinator,
                            struct weft_coordinator_stats *stats_out);

/* The newest figures that a member has sent. */
struct weft_member_report {
    Weft__Control__Role role;
    uint32_t index;
    uint64_t age_ns;               /* time since they arrived */
    Weft__Control__Report figures; /* `open` is "": the text is in the status only */
};
/* Copies the reports of the membership in force, in the order of joining; returns their number, at most
 * `capacity`. A member that has sent none is left out. */
uint32_t weft_coordinator_reports(const struct weft_coordinator *coordinator,
                                  struct weft_member_report *reports_out, uint32_t capacity);
uint32_t weft_coordinator_member_count(const struct weft_coordinator *coordinator); /* a capacity for all */

/* A figure of a worker as a metric. */
struct weft_report_metric {
    const char *name, *kind, *help; /* on /metrics */
    const char *key;                /* in the status: members[].report; ends in _ns or _ms if it is a time */
    size_t offset;                  /* of a uint64_t in struct weft_member_report */
    double factor;                  /* shown value per unit; 0: shown as it is */
};
#define WEFT_REPORT_METRICS 13u
extern const struct weft_report_metric weft_report_metrics[WEFT_REPORT_METRICS];

/* ---- coordinator over sockets ---- */
struct weft_coordinator_server;
/* Returns WEFT_ERR_AUTH and a sentence if host is not a loopback address and there is no secret. */
enum weft_status weft_listen_check(const char *host, const char *secret, struct weft_error *error);
/* Starts listening and ticking. WEFT_ERR_EXISTS: the port is in use. `ended` and `context` are the caller's
 * and run on the net thread; host and pid are filled in here. If *out is set, free it after the net, also on
 * failure. */
enum weft_status weft_coordinator_server_start(struct weft_env *env, struct weft_net *net, const char *host,
                                               uint16_t port,
                                               /* send, close: ignored; snapshot_... get `context` */
                                               const struct weft_coordinator_options *options,
                                               uint16_t *port_out, struct weft_coordinator_server **out,
                                               struct weft_error *error);
/* Open connections without observers. After the job has ended: members that have not read everything yet. Net
 * thread. */
uint32_t weft_coordinator_server_connections(const struct weft_coordinator_server *server);
/* Call after weft_net_free, whose callbacks use the server. NULL has no effect. */
void weft_coordinator_server_free(struct weft_coordinator_server *server);
char *weft_coordinator_server_status_json(struct weft_coordinator_server *server); /* net thread */
/* Net thread. */
struct weft_coordinator *weft_coordinator_server_inner(struct weft_coordinator_server *server);
void weft_coordinator_server_stats(const struct weft_coordinator_server *server,
                                   struct weft_coordinator_stats *stats_out); /* net thread */
/* Net thread. The reports are allocated with the env; NULL with *count_out 0: none, or no memory. */
struct weft_member_report *weft_coordinator_server_reports(struct weft_coordinator_server *server,
                                                           uint32_t *count_out);
/* Which rank, link or host a stall is due to, as a sentence; "" without a stall. Net thread. */
void weft_coordinator_server_describe_stall(const struct weft_coordinator_server *server, char *out,
                                            size_t out_bytes);
/* The workers that have neither left nor been lost, as a sentence; "" if there are none. Net thread. */
void weft_coordinator_server_describe_active(const struct weft_coordinator_server *server, char *out,
                                             size_t out_bytes);

/* ---- candidate: a process that coordinates if the coordinator ends (takeover/candidate.c) ---- */
struct weft_candidate;
struct weft_candidate_options {
    const char *store; /* path of the job's file, which the coordinator has, too; copied */
    const char *job, *secret;
    const char *host;      /* to listen on; "0.0.0.0" as in server.listen */
    const char *reachable; /* by members, as host name or address, an IPv6 address in brackets */
    uint32_t wire_newest;  /* as in weft_coordinator_options */
    /* This process coordinates now. Net thread. */
    void (*took_over)(void *context, struct weft_coordinator_server *server);
    /* Fills in the snapshot callbacks and snapshot_last_ns of a coordinator in this process. May be NULL. */
    void (*prepare)(void *context, struct weft_coordinator_options *options);
    /* Called once, on the net thread, if the coordinator was lost before the job began. The process must
     * join again (weft_takeover_next). */
    void (*begins_again)(void *context);
    /* Of the job that it coordinates. */
    void (*ended)(void *context, enum weft_status status, const char *text);
    void (*replaced)(void *context);
    void *context;
};
/* Listens, and closes each connection until this process coordinates. Net thread, or before it starts. Free
 * after the net, also on failure if *out is set. */
enum weft_status weft_candidate_start(struct weft_env *env, struct weft_net *net,
                                      const struct weft_candidate_options *options,
                                      struct weft_candidate **out, struct weft_error *error);
uint16_t weft_candidate_port(const struct weft_candidate *candidate);
const char *weft_candidate_address(const struct weft_candidate *candidate); /* HOST:PORT, for Hello */
/* The process is a member of the job: opens the store, and watches the coordinator's lease.
 * WEFT_ERR_MISMATCH: the store is another job's. Net thread. */
enum weft_status weft_candidate_watch(struct weft_candidate *candidate, uint64_t job_id,
                                      struct weft_error *error);
/* The address of the coordinator of this reign refuses connections: this process takes over at once if it
 * can. Net thread. */
void weft_candidate_suspect(struct weft_candidate *candidate, uint64_t reign);
/* The job ends for this process: it will not take over. Net thread. */
void weft_candidate_stop(struct weft_candidate *candidate);
void weft_candidate_free(struct weft_candidate *candidate); /* NULL has no effect */
/* HOST:PORT of the process that coordinates the job now, as the store at `path` has it. Any thread; may wait
 * for another process that is in a call of the store. WEFT_ERR_CLOSED: no process coordinates.
 * WEFT_ERR_MISMATCH: the store is another job's. */
enum weft_status weft_takeover_address(struct weft_env *env, const char *path, const char *job,
                                       char address_out[256], struct weft_error *error);

/* Result of weft_takeover_next, for a process whose coordinator was lost before the job began. */
struct weft_takeover_next {
    char address[256];                       /* of the next coordinator; "": this process may coordinate */
    uint64_t reign;                          /* of that coordinator */
    struct weft_coordinator_options options; /* if this process may coordinate: options of the job; the
                                              * caller sets the rest */
};
struct weft_takeover_search {
    const char *store, *job; /* path of the store; name of the job */
    uint64_t reign;          /* of the lost coordinator; 0: none was reached */
    bool may_coordinate;     /* this process */
    uint64_t until_ns;       /* 0: it reads the store once */
};
/* Waits until another process coordinates the job of the store, or this one may and the right is free.
 * WEFT_ERR_DEADLINE: neither until until_ns. WEFT_ERR_STALE: the job has begun or ended. Blocks. Any thread
 * without a loop. */
enum weft_status weft_takeover_next(struct weft_env *env, const struct weft_takeover_search *search,
                                    struct weft_takeover_next *next_out, struct weft_error *error);
/* Timeout of a member for weft_takeover_next: the lease of a lost coordinator ends, and another one
 * begins. */
#define WEFT_TAKEOVER_NEXT_NS WEFT_SECONDS(15)

/* ---- coordinator on a net thread of its own ---- */
struct weft_coordinator_thread;
/* Starts the thread, which listens on host:port; port 0: any free one. The port in use is written to
 * *port_out, which may be NULL. `send`, `close`, `ended` and `context` of the options are ignored. Statuses
 * and sentences are those of weft_coordinator_server_start. Any thread. */
enum weft_status weft_coordinator_thread_start(struct weft_env *env, const char *host, uint16_t port,
                                               const struct weft_coordinator_options *options,
                                               uint16_t *port_out, struct weft_coordinator_thread **out,
                                               struct weft_error *error);
/* The job has ended in order. Any thread. */
bool weft_coordinator_thread_ended_in_order(struct weft_coordinator_thread *thread);
/* Blocks until the job has ended and its members have disconnected, at most timeout_ns. Logs the members that
 * are left every 10 s. Once per coordinator. Not from its net thread. */
void weft_coordinator_thread_wait(struct weft_coordinator_thread *thread, uint64_t timeout_ns);
/* Stop the thread between two events while the process exits, and let it go on (weft_net_pause). */
void weft_coordinator_thread_pause(struct weft_coordinator_thread *thread, uint64_t timeout_ns);
void weft_coordinator_thread_resume(struct weft_coordinator_thread *thread);
/* Ends the thread, closes all connections and frees. NULL has no effect. Not from its net thread. */
void weft_coordinator_thread_stop(struct weft_coordinator_thread *thread);

/* ---- which port? ---- */
#define WEFT_COORDINATOR_PORTS_MAX 8u
/* Finds the coordinator of `job` that still waits for ranks, among `count` ports of `host`. Blocks for at
 * most timeout_ns; processes that do not listen yet are tried again. WEFT_ERR_DEADLINE: not found. `seen`
 * gets what each port has answered, for error sentences. Other statuses: no memory or descriptors. Any
 * thread. */
enum weft_status weft_coordinator_find(struct weft_env *env, const char *host, const uint16_t *ports,
                                       uint32_t count, const char *job, uint64_t timeout_ns,
                                       uint16_t *port_out, char *seen, size_t seen_bytes);

/* Times of the reports about missing members, from the start of the wait: the first is logged within 2 s. */
#define WEFT_WAIT_REASON_FIRST_NS WEFT_MS(1500)
#define WEFT_WAIT_REASON_PERIOD_NS WEFT_SECONDS(10)

#endif
