/* server.h - public header of the server module, for tools and tests.
 *
 *   shard engine    one thread, one loop, one endpoint and the chunks placed there
 *   control client  a process's end of its control connection to the coordinator
 *   weftd           options, coordinator (optional), shard engines and HTTP in one process */
#ifndef WEFT_SERVER_H
#define WEFT_SERVER_H

#include "base/base.h"
#include "coordinator/coordinator.h"
#include "proto/proto.h"
#include "transport/transport.h"

/* ---- control client: Challenge, Hello, Welcome, proofs, heartbeats ---- */
struct weft_control_client;
struct weft_control_client_options {
    size_t size;
    const char *host;         /* of the coordinator */
    uint16_t port;
    const char *job, *secret; /* secret NULL: none; copied */
    Weft__Control__Role role;
    int wanted_index;         /* rank or shard number; default -1: any */
    uint32_t endpoints;       /* of this process; default 1 */
    bool has_snapshots;       /* a shard with a folder for snapshots; default false */
    bool joins;               /* a shard that joins a job that runs; default false */
    const char *candidate;    /* HOST:PORT where this process would coordinate; copied; default NULL: it would
                               * not */
    const char *zone;         /* failure domain of a shard; copied; default NULL: unknown */
    uint32_t wire_newest;     /* newest wire version that this process speaks; default 0: WEFT_WIRE_VERSION */
    uint64_t join_ns;         /* from start until Welcome; default 30 s */
    /* Callbacks on the net thread. welcomed: once, after admission and, if there is a secret, after the
     * coordinator's proof. message: every later message. closed: exactly once, with the reason (refused,
     * lost, silent, closed here). */
    void (*welcomed)(void *context, const Weft__Control__Welcome *welcome);
    /* The members that the job waits for, as a sentence: first 1.5 s after Welcome, then every 10 s until the
     * job begins. May be NULL. */
    void (*awaited)(void *context, const char *text);
    void (*message)(void *context, const Weft__Control__Control *message);
    /* The address of the coordinator of this reign refuses connections, and the candidates are tried. May be
     * NULL. */
    void (*refused)(void *context, uint64_t reign);
    void (*closed)(void *context, enum weft_status status, const char *text);
    void *context;
};
/* `closed` with WEFT_ERR_PEER_LOST after Welcome: "the coordinator at HOST:PORT", this, the reason. */
#define WEFT_CONTROL_LOST_TEXT " is lost: "
/* Behind "the process at HOST:PORT", which accepts connections and sends no Challenge. */
#define WEFT_CONTROL_SILENT_TEXT                                                                            \
    " accepts connections and does not answer: it is stopped, or that port is no control port of weft (is " \
    "it the HTTP port?)"
void weft_control_client_options_init(struct weft_control_client_options *options);
/* Starts connecting. Does not block. Copies the options and their texts except host. Net thread. */
enum weft_status weft_control_client_start(struct weft_env *env, struct weft_net *net,
                                           const struct weft_control_client_options *options,
                                           struct weft_control_client **out, struct weft_error *error);
/* Net thread. WEFT_ERR_CLOSED: the connection is closed. */
enum weft_status weft_control_client_send(struct weft_control_client *client,
                                          const Weft__Control__Control *message);
/* sends Leave, then closes */
enum weft_status weft_control_client_leave(struct weft_control_client *client, const char *text);
/* sends Abort; stays open */
enum weft_status weft_control_client_abort(struct weft_control_client *client, enum weft_status status,
                                           const char *text);
/* Another process coordinates than the one that the Roster names. Net thread. */
bool weft_control_client_is_replaced(const struct weft_control_client *client);
/* Returns the reign of the last coordinator that answered; 0: none did, or the job has no store. Call
 * after the net has ended. */
uint64_t weft_control_client_reign(const struct weft_control_client *client);
/* Address of the coordinator, "host:port" or "[v6]:port". Call after the net has ended. */
void weft_control_client_address(const struct weft_control_client *client, char address_out[300]);
/* Call after weft_net_free. NULL has no effect. */
void weft_control_client_free(struct weft_control_client *client);
/* Splits "host:port" or "[v6]:port". WEFT_ERR_INVALID and a sentence if it is neither. */
enum weft_status weft_host_port_parse(const char *text, char host_out[256], uint16_t *port_out,
                                      struct weft_error *error);

/* ---- one shard engine (also run by the simulator) ---- */
struct weft_shard_engine;
/* What an engine reports of a slot that it leads. */
struct weft_slot_report {
    uint32_t slot, term;
    uint32_t to;     /* endpoint of the new copy */
    uint32_t chunks; /* that it has completely; `is_done`: all of the slot */
    uint64_t bytes;  /* copied so far */
    bool is_quiet;   /* hand over: the copy holds every change, and no request is served under this term */
    bool is_done;    /* copy: `to` has all chunks and holds each change before workers get its result */
    enum weft_status status; /* an error: the copy cannot be made */
};
struct weft_shard_engine_options {
    size_t size;
    struct weft_transport *transport; /* borrowed */
    struct weft_loop *loop;           /* borrowed */
    struct weft_event_ring *events;   /* borrowed, may be NULL */
    uint32_t endpoint;                /* the transport's id; the engine owns the chunks placed on this
                                       * endpoint */
    uint32_t wire_version;            /* of the job: messages of newer ones are refused; default
                                       * WEFT_WIRE_VERSION */
    uint64_t job;
    uint32_t epoch, workers;
    const uint32_t *worker_endpoints;    /* (workers,) copied */
    const uint64_t *worker_incarnations; /* (workers,) copied */
    bool elastic;                        /* the job may go on without lost workers: _leave_epoch and
                                          * _enter_epoch; default false */
    uint32_t workers_max;                /* elastic: most workers of a later epoch; default 0: `workers` */
    size_t receive_bytes_max;            /* memory for contributions and partial sums; default 256 MiB */
    /* a further round opens only while those that are open have less of it, so that their memory stays in the
     * caches; default 4 MiB. 0: one round at a time */
    size_t round_bytes;
    uint64_t round_deadline_ns;          /* from a round's first contribution; default 300 s. Then
                                          * WEFT_ERR_DEADLINE names the missing ranks */
    bool keeps_copies;     /* the job keeps copies: weft_shard_engine_map is called before the first declare;
                             * default false */
    uint64_t move_rate;    /* bytes per s of new copies; default 0: no limit */
    size_t copy_bytes_max; /* memory for steps that copies have received and not applied; default 64 MiB */
    uint32_t mutants;      /* for tests: faults to make, bits of enum weft_shard_mutant; default 0 */
    /* keeps_copies: reports of weft_shard_engine_copy and _hand_over; loop owner, must not call back. NULL:
     * none */
    void (*report)(void *context, const struct weft_slot_report *report);
    void *report_context;
    uint32_t hash_every; /* steps between comparisons of copies, and of weights with codecs other than
                          * dense; default 50, 0: no comparison */
};
/* Faults of the replication that the simulator must detect. */
enum weft_shard_mutant {
    WEFT_MUTANT_LOWER_TERM = 1 << 20, /* the copy acknowledges a step of a leader that was replaced */
    WEFT_MUTANT_OLDER_MAP = 1 << 21,  /* a Map lowers the term of a slot */
    WEFT_MUTANT_REPLY_BEFORE_ACK = 1, /* the leader replies before the copy holds the step */
    WEFT_MUTANT_ACK_BEFORE_HELD = 2,  /* the copy acknowledges before the payload has arrived */
    WEFT_MUTANT_RESULT_NOT_KEPT = 4,  /* the copy cannot answer a repeated push of its last step */
    WEFT_MUTANT_ROUND_OPENS_EARLY =
        8, /* a codec's round overwrites the aggregate that a worker may need again */
    WEFT_MUTANT_REPLY_BEFORE_NEW_COPY = 16,  /* the leader replies before the new copy holds the step */
    WEFT_MUTANT_COPY_WITHOUT_STATES = 32,    /* the leader copies no state of the optimiser */
    WEFT_MUTANT_COPY_REPORTED_EARLY = 64,    /* the leader reports a copy whose last part is under way */
    WEFT_MUTANT_QUIET_EARLY = 128,           /* the leader hands over while a change is not held */
    WEFT_MUTANT_COPY_WITHOUT_RESIDUAL = 256, /* the leader does not copy the residual of a codec */
    WEFT_MUTANT_COPY_WITHOUT_RESULT = 512,   /* the leader does not copy the result of a codec's last step */
    WEFT_MUTANT_STEP_KEPT_OPEN = 1024,       /* a leader that becomes the copy keeps a codec's step open */
    WEFT_MUTANT_SUM_NOT_COPIED = 2048,       /* the leader does not send the sum of a step with clip_norm */
    WEFT_MUTANT_FACTOR_NOT_KEPT = 4096,      /* the copy applies the sum without its factor */
    WEFT_MUTANT_CLOCK_NOT_KEPT = 8192,       /* the copy applies a contribution and does not move its clock */
    WEFT_MUTANT_COPY_WITHOUT_CLOCKS = 16384, /* the leader does not copy the clocks of the workers */
};
void weft_shard_engine_options_init(struct weft_shard_engine_options *options);
enum weft_status weft_shard_engine_create(struct weft_env *env,
                                          const struct weft_shard_engine_options *options,
                                          struct weft_shard_engine **out, struct weft_error *error);
/* Stops serving. Call before weft_transport_close. Returns all buffers to the transport. The transport
 * reports the closed shard to waiting peers. Then: weft_transport_close, progress until drained,
 * weft_shard_engine_free. */
void weft_shard_engine_close(struct weft_shard_engine *engine);
/* Call when the transport is drained or freed, and before weft_loop_free. Does not use the transport. NULL
 * has no effect. */
void weft_shard_engine_free(struct weft_shard_engine *engine);
/* Allocates the chunks that are placed on this engine's endpoint. Loop owner. */
enum weft_status weft_shard_engine_declare(struct weft_shard_engine *engine,
                                           const Weft__Control__Declared *declared, struct weft_error *error);
/* All workers have freed the tensor. Later requests for it are refused; its memory is released when nothing
 * in flight uses it. No effect if the engine owns none of its chunks. Loop owner. */
void weft_shard_engine_release(struct weft_shard_engine *engine, uint32_t tensor);
/* New leaders, copies and terms of slots. A leader whose copy is lost replies without it; a copy that leads
 * now serves the workers. Entries whose term is not newer have no effect. Loop owner. */
void weft_shard_engine_map(struct weft_shard_engine *engine, const Weft__Control__Map *map);
/* Copies the chunks of a slot that this engine leads under `term` to another engine, and each later change of
 * them, until Map brings a newer term. Reports: the first one that is done, then each change of the number of
 * chunks; progress every 0.5 s; an error ends it. Repeated: reports again. Loop owner. */
void weft_shard_engine_copy(struct weft_shard_engine *engine, uint32_t slot, uint32_t term, uint32_t to);
/* Admits no further request of the slot under `term`, and reports when its copy holds every change: the
 * copy can lead then, and this engine can be its copy. The next term ends that. Loop owner. */
void weft_shard_engine_hand_over(struct weft_shard_engine *engine, uint32_t slot, uint32_t term);
/* Fails the engine: a worker is lost or the job ends. Open rounds are dropped; their workers get a RESULT
 * with this status and text. */
void weft_shard_engine_fail(struct weft_shard_engine *engine, enum weft_status status, const char *text);
/* A worker is lost and the others go on in `epoch`. Open rounds are discarded without a RESULT. Requests of
 * older epochs are ignored; requests of newer epochs wait. Loop owner, as are the functions below. */
void weft_shard_engine_leave_epoch(struct weft_shard_engine *engine, uint32_t epoch);
/* The worker at that endpoint has left. Rounds without its contribution, and pulls that wait for them, end
 * with WEFT_ERR_PEER_LOST. */
void weft_shard_engine_worker_left(struct weft_shard_engine *engine, uint32_t endpoint);
/* Sets the workers of the epoch, by rank; at most workers_max. The transport is connected to each of them.
 * committed: their last good step. Dense tensors: a worker that repeats a push of a closed step gets its
 * result again. Tensors with a codec: a later step is undone. */
enum weft_status weft_shard_engine_enter_epoch(struct weft_shard_engine *engine, uint32_t epoch,
                                               uint64_t committed, uint32_t workers,
                                               const uint32_t *endpoints, const uint64_t *incarnations,
                                               struct weft_error *error);
/* A worker's hash of a tensor after a step. WEFT_ERR_DIVERGED: it differs from this engine's; the text has
 * both. */
enum weft_status weft_shard_engine_check_hash(struct weft_shard_engine *engine,
                                              const Weft__Control__WeightHash *hash,
                                              struct weft_error *error);

/* The open round whose first contribution is the oldest. */
struct weft_shard_oldest_round {
    uint64_t ns;      /* time since its first contribution; 0: no round is open */
    uint64_t missing; /* workers that have not contributed to it */
    uint64_t rank;    /* a rank that has not contributed to it, plus one; 0: none */
};
/* For weft rebalance --by load. */
struct weft_shard_load {
    uint64_t bytes; /* of contributions */
    uint64_t ns;    /* in which a contribution was received, or summed in place */
};
struct weft_shard_engine_stats {
    uint64_t chunks, weights_bytes, receive_bytes_used, receive_bytes_peak;
    uint64_t rounds_closed, pushes, pulls, duplicates, refused;
    uint64_t received_bytes, sent_bytes;
    struct weft_shard_load load;
    uint64_t replicated, replicated_bytes; /* sent to copies */
    uint64_t copied_bytes;                 /* sent to make new copies */
    uint64_t receive_bytes_max;
    uint64_t rounds_open;          /* chunks with a round that has a contribution and is not closed */
    struct weft_shard_oldest_round oldest_round;
    uint64_t last_round_ns; /* time since the last contribution to the round that closed last; 0: none has */
    struct weft_histogram round;        /* closed rounds: from the first contribution to the close */
    struct weft_histogram spread;       /* closed rounds: from the first to the last contribution */
    struct weft_histogram close;        /* closed rounds: from the last contribution to the close */
    struct weft_histogram push_wait;    /* accepted pushes: from the announcement to the receive */
    struct weft_histogram push_receive; /* received pushes: from the start of the receive to its end */
    struct weft_histogram replicate;    /* steps that a copy has acknowledged: from the close to that */
};
void weft_shard_engine_stats(const struct weft_shard_engine *engine,
                             struct weft_shard_engine_stats *stats_out);

/* ---- weftd as a function: blocks until the job ends or a signal arrives ---- */
struct weftd_options {
    size_t size;
    const char *job, *secret;     /* job: default job.name; secret: NULL: none; read by the caller */
    const char *coordinator;      /* "host:port" of an existing coordinator; NULL: embed one */
    const char *listen;           /* address to listen on; NULL: server.listen (127.0.0.1). Anything but
                                   * loopback requires a secret */
    int port;                     /* of the embedded coordinator; 0: any free port; default -1: server.port */
    int http_port;                /* 0: any free port; default -1: no HTTP */
    const char *port_file;        /* file for "coordinator=HOST:PORT\nhttp=HOST:PORT\n", renamed into
                                   * place; NULL: none */
    uint32_t workers, shards;     /* expected by the embedded coordinator */
    uint32_t workers_min;         /* embedded coordinator: a lost worker does not end the job while this
                                   * many remain; default 0: it does */
    uint32_t workers_max;         /* embedded coordinator: newcomers are admitted while there are fewer
                                   * workers; requires workers_min; default 0: none are */
    int index;                    /* shard number; default -1: any */
    bool joins;                   /* a further shard of a job with copies that runs; needs coordinator, no
                                   * index and no restore; default false */
    uint32_t engines;             /* engine threads, each with one endpoint; 0: server.engines */
    const char *lanes, *devices;  /* of the transport; NULL: transport.lanes, transport.devices */
    const char *restore;          /* FOLDER[:STEP] of a snapshot; NULL: snapshot.restore */
    struct weft_config *config;   /* borrowed; required */
};
void weftd_options_init(struct weftd_options *options);
/* Checks options and configuration as weftd_run does before it opens a socket. WEFT_ERR_INVALID,
 * WEFT_ERR_AUTH: weftd_run would fail with this sentence. */
enum weft_status weftd_options_check(const struct weftd_options *options, struct weft_error *error);
/* Returns 0 if the job finished, otherwise 1 after logging one sentence. Handles SIGTERM and SIGINT while it
 * runs. */
int weftd_run(struct weft_env *env, const struct weftd_options *options);

#endif
