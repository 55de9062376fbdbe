/* server.h - the face of the server room, for tools and tests: the coordinator and the shard.
 *
 *   coordinator   membership, roster, declarations, placement, who is lost: a state machine without
 *                 sockets (coordinator.c) and its driver over base/net (coordinator_net.c)
 *   shard         one or more engines, each one thread = one endpoint, one loop, its chunks
 *   member        the other end: one process's control connection to a coordinator
 *   weftd         options + (coordinator) + shard + HTTP: the process */
#ifndef WEFT_SERVER_H
#define WEFT_SERVER_H

#include "base/base.h"
#include "proto/proto.h"
#include "transport/transport.h"

/* ---- coordinator, sans I/O ---- */
struct weft_coordinator;
struct weft_coordinator_options {
    size_t size;
    const char *job;          /* name; members of another job are refused */
    const char *secret;       /* NULL: none */
    uint32_t workers, shards; /* expected; 1..limits, shards may be 0 */
    uint32_t workers_max;     /* of a job that may go on without workers: newcomers come in at the end of a
                               * step while there are fewer; 0: none do */
    uint32_t workers_min;     /* a lost worker does not end the job while so many are left; default 0: it
                               * does */
    uint64_t heartbeat_ns;    /* silence after which a member is lost; default 30 s */
    uint64_t join_ns;         /* from creation until everybody must have joined and connected; default 300
                               * s */
    const char *host;         /* of the coordinating process, with its pid: a member of the same host and
                               * pid lives in the */
    uint64_t pid;             /* same process, and whoever loses the coordinator has lost that member.
                               * Default "", 0 */
    /* Send one control message to a connection (packed at once; the message is the coordinator's). Neither
     * this nor close may call back into the coordinator. */
    void (*send)(void *context, uint64_t connection, const Weft__Control__Control *message);
    void (*close)(void *context, uint64_t connection, const char *why);
    /* The job is over (in order: WEFT_OK; or lost/aborted: text). Called once. */
    void (*ended)(void *context, enum weft_status status, const char *text);
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
/* about once a second: heartbeats, late joiners */
void weft_coordinator_tick(struct weft_coordinator *coordinator);
/* This process itself was stopped for so long (a debugger, a machine that was moved): what the others have
 * said meanwhile may not have been read yet, so it counts as nobody's silence. */
void weft_coordinator_paused(struct weft_coordinator *coordinator, uint64_t pause_ns);
/* JSON of members, tensors, state; allocated with env. */
char *weft_coordinator_status_json(struct weft_coordinator *coordinator);

/* ---- coordinator over sockets: for weftd and for `weft run -s 0` ---- */
struct weft_coordinator_server;
/* Without a secret only a loopback address may be listened on: WEFT_ERR_AUTH and a sentence otherwise. */
enum weft_status weft_listen_check(const char *host, const char *secret, struct weft_error *error);
/* Listens and ticks from now on. The port in use: WEFT_ERR_EXISTS. `ended` and `context` of the options
 * are the caller's and run on the net thread; host and pid are filled in. */
enum weft_status weft_coordinator_server_start(struct weft_env *env, struct weft_net *net, const char *host,
                                               uint16_t port,
                                               /* send, close: ignored */
                                               const struct weft_coordinator_options *options,
                                               uint16_t *port_out, struct weft_coordinator_server **out,
                                               struct weft_error *error);
/* How many connections are still there, observers not counted: after the job has ended, who still has
 * something to read. Net thread. */
uint32_t weft_coordinator_server_connections(const struct weft_coordinator_server *server);
/* After weft_net_free (its callbacks use the server). NULL is fine. */
void weft_coordinator_server_free(struct weft_coordinator_server *server);
char *weft_coordinator_server_status_json(struct weft_coordinator_server *server); /* net thread */

/* A member that waits for the job to begin reports the missing members at these times: within 2 s, then
 * periodically. */
#define WEFT_WAIT_REASON_FIRST_NS WEFT_MS(1500)
#define WEFT_WAIT_REASON_PERIOD_NS WEFT_SECONDS(10)

/* ---- a member's control connection: Challenge, Hello, Welcome, proofs, heartbeats ---- */
struct weft_control_client;
struct weft_control_client_options {
    size_t size;
    const char *host;         /* of the coordinator */
    uint16_t port;
    const char *job, *secret; /* secret NULL: none */
    Weft__Control__Role role;
    int wanted_index;         /* default -1: any */
    uint32_t endpoints;       /* default 1 */
    uint64_t join_ns;         /* from start until Welcome; default 30 s */
    /* All on the net thread. welcomed: once, admitted (and the coordinator knows the secret, when there is
     * one). message: everything after that. closed: exactly once; refused, lost, silent or closed here, in
     * a sentence. */
    void (*welcomed)(void *context, const Weft__Control__Welcome *welcome);
    /* Which members the job waits for, in words; 1.5 s after Welcome and then every 10 s until the job has
     * begun. May be NULL. */
    void (*awaited)(void *context, const char *text);
    void (*message)(void *context, const Weft__Control__Control *message);
    void (*closed)(void *context, enum weft_status status, const char *text);
    void *context;
};
void weft_control_client_options_init(struct weft_control_client_options *options);
/* Never blocks; copies what it needs. Net thread. */
enum weft_status weft_control_client_start(struct weft_env *env, struct weft_net *net,
                                           const struct weft_control_client_options *options,
                                           struct weft_control_client **out, struct weft_error *error);
/* Net thread. WEFT_ERR_CLOSED when the connection is gone. */
enum weft_status weft_control_client_send(struct weft_control_client *client,
                                          const Weft__Control__Control *message);
/* Leave, then close */
enum weft_status weft_control_client_leave(struct weft_control_client *client, const char *text);
/* Abort; stays open */
enum weft_status weft_control_client_abort(struct weft_control_client *client, enum weft_status status,
                                           const char *text);
/* After weft_net_free. NULL is fine. */
void weft_control_client_free(struct weft_control_client *client);
/* "host:port" into its parts; WEFT_ERR_INVALID and a sentence. `host_out` of 256 bytes is enough. */
enum weft_status weft_host_port_parse(const char *text, char host_out[256], uint16_t *port_out,
                                      struct weft_error *error);

/* ---- one shard engine (also run by the simulator) ---- */
struct weft_shard_engine;
struct weft_shard_engine_options {
    size_t size;
    struct weft_transport *transport; /* borrowed */
    struct weft_loop *loop;           /* borrowed */
    struct weft_event_ring *events;   /* borrowed, may be NULL */
    uint32_t endpoint;                /* the transport's id: chunks of this endpoint are ours */
    uint64_t job;
    uint32_t epoch, workers;
    const uint32_t *worker_endpoints; /* (workers,) copied */
    const uint64_t *worker_incarnations; /* (workers,) copied */
    bool elastic;                     /* it may go on without lost workers: weft_shard_engine_leave_epoch,
                                       * _follow; default false */
    size_t receive_bytes_max;         /* memory of contributions and partials; default 256 MiB */
    uint64_t round_deadline_ns;       /* from a round's first contribution; default 300 s: then
                                       * WEFT_ERR_DEADLINE names the missing */
    uint32_t hash_every;              /* compressed modes: compare weights every so many steps; default 50,
                                       * 0: never */
};
void weft_shard_engine_options_init(struct weft_shard_engine_options *options);
enum weft_status weft_shard_engine_create(struct weft_env *env,
                                          const struct weft_shard_engine_options *options,
                                          struct weft_shard_engine **out, struct weft_error *error);
/* Serves nobody any more: call it before weft_transport_close. Gives back what it holds of the transport;
 * whoever waits hears from the transport that the shard is gone. Then weft_transport_close, progress until
 * drained, free. */
void weft_shard_engine_close(struct weft_shard_engine *engine);
/* When nothing in flight uses the engine's memory any more: the transport is drained (or freed). Before
 * weft_loop_free. Does not touch the transport. NULL is fine. */
void weft_shard_engine_free(struct weft_shard_engine *engine);
/* Memory for the chunks of a tensor that this engine owns (endpoint == the transport's id). Loop's thread. */
enum weft_status weft_shard_engine_declare(struct weft_shard_engine *engine,
                                           const Weft__Control__Declared *declared, struct weft_error *error);
/* All workers have freed the tensor: requests for it are refused from now on, and its memory is released
 * when nothing in flight uses it. Ignores a tensor of which this engine owns nothing. Loop's thread. */
void weft_shard_engine_release(struct weft_shard_engine *engine, uint32_t tensor);
/* A worker is lost (or the job ends): open rounds are dropped, survivors get a RESULT with this status and
 * text. */
void weft_shard_engine_fail(struct weft_shard_engine *engine, enum weft_status status, const char *text);
/* A worker is lost and the others go on in that epoch: open rounds are forgotten, who waits gets no
 * answer, and requests of older epochs none from now on; those of newer ones wait. Loop's thread, as what
 * follows. */
void weft_shard_engine_leave_epoch(struct weft_shard_engine *engine, uint32_t epoch);
/* The worker of that endpoint left in order. Rounds without its contribution, and pulls that wait for
 * them, end with WEFT_ERR_PEER_LOST. */
void weft_shard_engine_worker_left(struct weft_shard_engine *engine, uint32_t endpoint);
/* The workers of the epoch, by rank; at most as many as at create. What has been closed before is told
 * whoever pushes it again. */
enum weft_status weft_shard_engine_enter_epoch(struct weft_shard_engine *engine, uint32_t epoch,
                                               uint32_t workers, const uint32_t *endpoints,
                                               const uint64_t *incarnations, struct weft_error *error);
/* A worker's hash of a tensor after a step; WEFT_ERR_DIVERGED names both hashes. */
enum weft_status weft_shard_engine_check_hash(struct weft_shard_engine *engine,
                                              const Weft__Control__WeightHash *hash,
                                              struct weft_error *error);

struct weft_shard_engine_stats {
    uint64_t chunks, weights_bytes, receive_bytes_used, receive_bytes_peak;
    uint64_t rounds_closed, pushes, pulls, duplicates, refused;
    uint64_t received_bytes, sent_bytes;
};
void weft_shard_engine_stats(const struct weft_shard_engine *engine,
                             struct weft_shard_engine_stats *stats_out);

/* ---- weftd as a library call: blocks until the job ends or a signal; returns the exit status ---- */
struct weftd_options {
    size_t size;
    const char *job, *secret;     /* default: job.name; the secret is the caller's to read */
    const char *coordinator;      /* "host:port" of an existing one; NULL: embed it */
    const char *listen;           /* host to bind; NULL: server.listen (127.0.0.1); others need a secret */
    int port;                     /* of the embedded coordinator; 0: free; default -1: server.port */
    int http_port;                /* 0: free; default -1: none */
    const char *port_file;        /* NULL, or a file that gets "coordinator=HOST:PORT\nhttp=HOST:PORT\n",
                                   * written whole */
    uint32_t workers, shards;     /* expected, when the coordinator is embedded */
    uint32_t workers_min;         /* the embedded coordinator's: a lost worker does not end the job while
                                   * so many are left; default 0: it does */
    int index;                    /* shard index wanted; default -1: any */
    uint32_t engines;             /* threads with an endpoint each; 0: server.engines */
    const char *lanes, *devices;  /* of the transport; NULL: transport.lanes, transport.devices */
    struct weft_config *config;   /* borrowed; required */
};
void weftd_options_init(struct weftd_options *options);
/* 0: the job ended in order; 1: it did not, and one sentence has gone to the log. Takes SIGTERM and SIGINT
 * while it runs. */
int weftd_run(struct weft_env *env, const struct weftd_options *options);

#endif
