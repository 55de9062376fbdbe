/* server.h - the face of the server room, for tools and tests: the coordinator and the shard.
 *
 *   coordinator   membership, roster, declarations, placement, who is lost: a state machine without
 *                 sockets (coordinator.c) and its driver over base/net (coordinator_net.c)
 *   shard         one or more engines, each one thread = one endpoint, one loop, its chunks
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
    uint64_t heartbeat_ns;    /* silence after which a member is lost; default 30 s */
    uint64_t join_ns;         /* from creation until everybody must have joined and connected; default 300 s */
    /* Send one control message to a connection (packed at once; the message is the coordinator's). Neither this nor
     * close may call back into the coordinator. */
    void (*send)(void *context, uint64_t connection, const Weft__Control__Control *message);
    void (*close)(void *context, uint64_t connection, const char *why);
    /* The job is over (in order: WEFT_OK; or lost/aborted: text). Called once. */
    void (*ended)(void *context, enum weft_status status, const char *text);
    void *context;
};
void weft_coordinator_options_init(struct weft_coordinator_options *options);
enum weft_status weft_coordinator_create(struct weft_env *env, const struct weft_coordinator_options *options, struct weft_coordinator **out);
void weft_coordinator_free(struct weft_coordinator *coordinator);
void weft_coordinator_opened(struct weft_coordinator *coordinator, uint64_t connection, const char *peer_name);
void weft_coordinator_message(struct weft_coordinator *coordinator, uint64_t connection, const Weft__Control__Control *message);
void weft_coordinator_closed(struct weft_coordinator *coordinator, uint64_t connection, const char *why);
void weft_coordinator_tick(struct weft_coordinator *coordinator); /* about once a second: heartbeats, late joiners */
/* JSON of members, tensors, state; allocated with env. */
char *weft_coordinator_status_json(struct weft_coordinator *coordinator);

/* ---- coordinator over sockets: for weftd and for `weft run -s 0` ---- */
struct weft_coordinator_server;
enum weft_status weft_coordinator_server_start(struct weft_env *env, struct weft_net *net, const char *host, uint16_t port,
                                               const struct weft_coordinator_options *options, /* send, close: ignored */
                                               uint16_t *port_out, struct weft_coordinator_server **out, struct weft_error *error);
void weft_coordinator_server_free(struct weft_coordinator_server *server);
char *weft_coordinator_server_status_json(struct weft_coordinator_server *server); /* net thread */

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
    size_t receive_bytes_max;         /* memory of contributions and partials; default 256 MiB */
    uint64_t round_deadline_ns;       /* from a round's first contribution; default 300 s: then WEFT_ERR_DEADLINE names the missing */
    uint32_t hash_every;              /* compressed modes: compare weights every so many steps; default 50, 0: never */
};
void weft_shard_engine_options_init(struct weft_shard_engine_options *options);
enum weft_status weft_shard_engine_create(struct weft_env *env, const struct weft_shard_engine_options *options,
                                          struct weft_shard_engine **out, struct weft_error *error);
/* After weft_transport_close and drained (nothing in flight reads or writes the engine's memory any more), before
 * weft_transport_free. NULL is fine. */
void weft_shard_engine_free(struct weft_shard_engine *engine);
/* Memory for the chunks of a tensor that this engine owns (endpoint == the transport's id). Loop's thread. */
enum weft_status weft_shard_engine_declare(struct weft_shard_engine *engine, const Weft__Control__Declared *declared, struct weft_error *error);
/* A worker is lost (or the job ends): open rounds are dropped, survivors get a RESULT with this status and text. */
void weft_shard_engine_fail(struct weft_shard_engine *engine, enum weft_status status, const char *text);
/* A worker's hash of a tensor after a step; WEFT_ERR_DIVERGED names both hashes. */
enum weft_status weft_shard_engine_check_hash(struct weft_shard_engine *engine, const Weft__Control__WeightHash *hash, struct weft_error *error);

struct weft_shard_engine_stats {
    uint64_t chunks, weights_bytes, receive_bytes_used, receive_bytes_peak;
    uint64_t rounds_closed, pushes, pulls, duplicates, refused;
    uint64_t received_bytes, sent_bytes;
};
void weft_shard_engine_stats(const struct weft_shard_engine *engine, struct weft_shard_engine_stats *stats_out);

/* ---- weftd as a library call: blocks until the job ends or a signal; returns the exit status ---- */
struct weftd_options {
    size_t size;
    const char *job, *secret;
    const char *coordinator;      /* "host:port" of an existing one; NULL: embed it */
    const char *listen;           /* host to bind; default 127.0.0.1; others need a secret */
    uint16_t port;                /* of the embedded coordinator; 0: free */
    int http_port;                /* -1: none; 0: free */
    const char *port_file;        /* NULL, or a file that gets "coordinator=HOST:PORT\nhttp=HOST:PORT\n", written whole */
    uint32_t workers, shards;     /* expected, when the coordinator is embedded */
    int index;                    /* shard index wanted; -1: any */
    uint32_t engines;             /* threads with an endpoint each; default 1 */
    const char *lanes, *devices;  /* of the transport */
    struct weft_config *config;
};
void weftd_options_init(struct weftd_options *options);
int weftd_run(struct weft_env *env, const struct weftd_options *options);

#endif
