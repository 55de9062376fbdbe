/* weftd_engine.c - one engine thread: a transport, a loop and a shard engine, from Welcome to the end.
 *
 *     thread starts -> opens its transport -> replies with its address
 *     command connect -> connects to every worker, creates the shard engine -> replies
 *     loop runs: data messages and commands (declarations, hashes, statistics, failure)
 *     loop stops -> close, drain for at most DRAIN_NS, free
 *
 * While the loop runs, other threads reach the engine only by commands. */
#include <stdio.h>
#include <string.h>

#include "base/os/cpu_cache.h"
#include "server/daemon/weftd.h"

#define DRAIN_NS WEFT_SECONDS(1)
#define UNREAD_BYTES_MAX ((size_t)512 << 10)

/* ---- engine thread ---- */

static void on_peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct weftd_engine *engine = context;
    /* Also called when a worker that has left closes. The coordinator decides which member is lost. */
    const bool is_closed = status == WEFT_ERR_PEER_LOST || status == WEFT_ERR_CLOSED;
    weft_log(engine->weftd->env, is_closed ? WEFT_LOG_INFO : WEFT_LOG_WARN, "weftd",
             "engine %u: endpoint %u is lost: %s", engine->index, peer_id,
             text ? text : weft_reason_text(status));
}

/* Eager pushes of all workers that wait for receive memory: a quarter of it, or the least that transports
 * have. Of one worker a chunk suffices, so that a tensor of one chunk saves the round trip. */
static size_t unread_bytes(const struct weftd *weftd)
{
    const Weft__Control__Welcome *welcome = &weftd->welcome;
    const uint32_t most = welcome->workers_max > welcome->workers ? welcome->workers_max : welcome->workers;
    const size_t share = weft_config_u64(weftd->options.config, "server.receive_bytes") / 4 / most;
    return share < UNREAD_BYTES_MAX ? share : UNREAD_BYTES_MAX;
}

static enum weft_status open_transport(struct weftd_engine *engine)
{
    struct weftd *weftd = engine->weftd;
    struct weft_transport_options options;
    char backend[WEFT_TRANSPORT_BACKEND_BYTES_MAX];
    const char *wrap = weft_config_text(weftd->options.config, "transport.wrap"),
               *secret = weftd->options.secret;
    weft_transport_options_init(&options);
    if (weft_transport_options_wrap(&options, weft_config_text(weftd->options.config, "transport.backend"),
                                    wrap, backend) < 0)
        return weft_error_set(&engine->error, WEFT_ERR_INVALID,
                              "the option transport.wrap is too long: '%.100s...'", wrap);
    options.id = weftd->welcome.endpoint_first + engine->index;
    options.nonce = weftd->welcome.transport_nonce;
    options.lanes = weftd->options.lanes;
    options.devices = weftd->options.devices;
    options.eager_bytes_max = weft_config_u64(weftd->options.config, "transport.eager_bytes");
    options.unread_bytes_max = unread_bytes(weftd);
    options.secret = secret && secret[0] ? secret : NULL;
    options.secret_bytes = options.secret ? strlen(secret) : 0;
    options.ports = weft_config_text(weftd->options.config, "transport.ports");
    options.tune = weft_config_text(weftd->options.config, "transport.tune");
    options.peer_failed = on_peer_failed;
    options.peer_failed_context = engine;
    WEFT_TRY(weft_transport_open(weftd->env, &options, &engine->transport, &engine->error));
    const void *blob;
    size_t bytes;
    enum weft_status status = weft_transport_address(engine->transport, &blob, &bytes);
    if (status == WEFT_OK && bytes > sizeof engine->address)
        status = weft_limit_note(
            "an address has %zu bytes, at most %zu fit; name fewer devices (transport.devices)", bytes,
            sizeof engine->address);
    if (status == WEFT_OK) status = weft_transport_attach(engine->transport, engine->loop);
    if (status != WEFT_OK)
        return weft_error_set(&engine->error, status, "the transport has no usable address: %s",
                              weft_reason_text(status));
    memcpy(engine->address, blob, bytes);
    engine->address_bytes = bytes;
    return WEFT_OK;
}

enum weft_status weftd_engine_connect_worker(struct weftd_engine *engine, const Weft__Control__Member *worker,
                                             struct weft_error *error)
{
    struct weft_peer *peer;
    const enum weft_status status =
        weft_transport_connect(engine->transport, worker->endpoint_first, worker->addresses[0].data,
                               worker->addresses[0].len, &peer);
    if (status == WEFT_OK) return WEFT_OK;
    return weft_error_set(error, status, "cannot connect to %s: %s%s", worker->name, weft_reason_text(status),
                          weft_transport_connect_hint(status));
}

enum weft_status weftd_engine_connect_shard(struct weftd_engine *engine, const Weft__Control__Member *shard,
                                            struct weft_error *error)
{
    struct weft_peer *peer;
    for (size_t e = 0; e < shard->n_addresses; e++) {
        const enum weft_status status =
            weft_transport_connect(engine->transport, shard->endpoint_first + (uint32_t)e,
                                   shard->addresses[e].data, shard->addresses[e].len, &peer);
        if (status != WEFT_OK)
            return weft_error_set(error, status, "cannot connect to %s: %s%s", shard->name,
                                  weft_reason_text(status), weft_transport_connect_hint(status));
    }
    return WEFT_OK;
}

/* Connects to every engine of the other shards, for the copies of chunks. */
static enum weft_status connect_shards(struct weftd_engine *engine)
{
    const Weft__Control__Roster *roster = engine->weftd->roster->roster;
    for (size_t i = 0; i < roster->n_members; i++) {
        const Weft__Control__Member *member = roster->members[i];
        if (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD &&
            member->member != engine->weftd->welcome.member)
            WEFT_TRY(weftd_engine_connect_shard(engine, member, &engine->error));
    }
    return WEFT_OK;
}

/* Connects to every worker of the roster. Writes endpoint ids and incarnations by rank. */
static enum weft_status connect_workers(struct weftd_engine *engine, uint32_t *endpoints,
                                        uint64_t *incarnations)
{
    const Weft__Control__Roster *roster = engine->weftd->roster->roster;
    for (size_t i = 0; i < roster->n_members; i++) {
        const Weft__Control__Member *member = roster->members[i];
        if (member->role != WEFT__CONTROL__ROLE__ROLE_WORKER) continue;
        WEFT_TRY(weftd_engine_connect_worker(engine, member, &engine->error));
        endpoints[member->index] = member->endpoint_first;
        incarnations[member->index] = member->incarnation;
    }
    return WEFT_OK;
}

static size_t round_bytes(const struct weftd *weftd)
{
    const size_t bytes = weft_config_u64(weftd->options.config, "server.round_bytes"),
                 share = weft_last_level_cache_bytes() / 2 / weftd->options.engines;
    return share > 0 && share < bytes ? share : bytes;
}

/* Shorter than the deadline of every worker: the shard can name the missing ranks, a worker cannot. */
static uint64_t round_deadline_ns(const struct weftd *weftd)
{
    const uint64_t workers_ms = weftd->roster->roster->deadline_ms;
    uint64_t deadline_ns = weft_config_u64(weftd->options.config, "client.deadline");
    if (workers_ms > 0 && workers_ms < deadline_ns / WEFT_MS(1)) deadline_ns = WEFT_MS(workers_ms);
    return deadline_ns / 10 * 9;
}

static enum weft_status shard_create(struct weftd_engine *engine)
{
    struct weftd *weftd = engine->weftd;
    struct weft_config *config = weftd->options.config;
    uint32_t workers = weftd->welcome.workers;
    uint32_t *endpoints = weft_alloc_array(weftd->env, workers, sizeof *endpoints);
    uint64_t *incarnations = weft_alloc_array(weftd->env, workers, sizeof *incarnations);
    enum weft_status status = WEFT_ERR_NO_MEMORY;
    if (endpoints && incarnations) status = connect_workers(engine, endpoints, incarnations);
    if (status == WEFT_OK && weftd->welcome.copies > 0) status = connect_shards(engine);
    if (status == WEFT_OK) {
        struct weft_shard_engine_options options;
        weft_shard_engine_options_init(&options);
        options.transport = engine->transport;
        options.loop = engine->loop;
        options.events = engine->events;
        options.endpoint = weftd->welcome.endpoint_first + engine->index;
        options.job = weftd->welcome.job_id;
        options.epoch = weftd->roster->roster->epoch;
        options.wire_version = weftd_job_version(weftd);
        options.workers = workers;
        options.elastic = weftd->welcome.workers_min > 0;
        options.workers_max = weftd->welcome.workers_max;
        options.worker_endpoints = endpoints;
        options.worker_incarnations = incarnations;
        options.receive_bytes_max = weft_config_u64(config, "server.receive_bytes");
        options.round_bytes = round_bytes(weftd);
        options.keeps_copies = weftd->welcome.copies > 0;
        options.report = weftd_move_report;
        options.report_context = engine;
        options.copy_bytes_max = weft_config_u64(config, "server.copy_bytes");
        options.move_rate = weft_config_u64(config, "server.move_rate");
        options.round_deadline_ns = round_deadline_ns(weftd);
        options.hash_every = (uint32_t)weft_config_u64(config, "server.hash_every");
        status = weft_shard_engine_create(weftd->env, &options, &engine->shard, &engine->error);
    }
    weft_free_bytes(weftd->env, endpoints);
    weft_free_bytes(weftd->env, incarnations);
    return status;
}

static void reply_status(struct weftd_engine *engine, enum weft_status status)
{
    /* keeps an earlier sentence */
    if (status != WEFT_OK) weft_error_set(&engine->error, status, "%s", weft_reason_text(status));
    engine->reply.fn = weftd_engine_replied;
    weft_net_post(engine->weftd->net, &engine->reply);
}

static void on_connect(struct weft_command *command)
{
    struct weftd_engine *engine = weft_container_of(command, struct weftd_engine, request);
    reply_status(engine, shard_create(engine));
}

static void on_fail(struct weft_command *command)
{
    struct weftd_engine *engine = weft_container_of(command, struct weftd_engine, fail_command);
    struct weftd *weftd = engine->weftd;
    /* Shared memory does not detect a dead peer, and operations with it would never end. */
    if (engine->transport && weftd->outcome.lost_endpoint != UINT32_MAX &&
        weft_transport_peer(engine->transport, weftd->outcome.lost_endpoint))
        weft_transport_fail_peer(engine->transport, weftd->outcome.lost_endpoint, WEFT_ERR_PEER_LOST,
                                 weftd->outcome.fail_error.text);
    if (engine->shard)
        weft_shard_engine_fail(engine->shard, (enum weft_status)weftd->outcome.fail_error.status,
                               weftd->outcome.fail_error.text);
}

static void drain(struct weftd_engine *engine)
{
    struct weft_env *env = engine->weftd->env;
    if (!engine->transport) return;
    if (engine->shard) weft_shard_engine_close(engine->shard);
    weft_transport_close(engine->transport);
    uint64_t deadline_ns = weft_now_ns(env) + DRAIN_NS;
    while (!weft_transport_drained(engine->transport) && weft_now_ns(env) < deadline_ns)
        /* the loop no longer calls progress */
        if (weft_transport_progress(engine->transport, 64) == 0) weft_pause(env, WEFT_MS(1));
    if (!weft_transport_drained(engine->transport))
        weft_log(env, WEFT_LOG_WARN, "weftd",
                 "engine %u: messages were still under way after %llu ms; dropped", engine->index,
                 (unsigned long long)(DRAIN_NS / WEFT_MS(1)));
    weft_transport_free(engine->transport); /* first: operations in flight may still use the shard's memory */
    engine->transport = NULL;
    weft_shard_engine_free(engine->shard);
    engine->shard = NULL;
}

static void *engine_main(void *argument)
{
    struct weftd_engine *engine = argument;
    reply_status(engine, open_transport(engine));
    weftd_view_begin_engine(engine);
    weft_loop_run(engine->loop);
    weftd_view_end_engine(engine);
    drain(engine);
    return NULL;
}

/* ---- other threads ---- */

void weftd_engine_post_connect(struct weftd_engine *engine)
{
    engine->request.fn = on_connect;
    weft_loop_post(engine->loop, &engine->request);
}

void weftd_engine_post_failure(struct weftd_engine *engine)
{
    engine->fail_command.fn = on_fail;
    weft_loop_post(engine->loop, &engine->fail_command);
}

static enum weft_status engine_start(struct weftd *weftd, struct weftd_engine *engine, uint32_t index)
{
    struct weft_loop_options options;
    engine->weftd = weftd;
    engine->index = index;
    weft_loop_options_init(&options);
    WEFT_TRY(weft_loop_create(weftd->env, &options, &engine->loop));
    WEFT_TRY(weft_event_ring_create(
        weftd->env, (uint32_t)weft_config_u64(weftd->options.config, "events.capacity"), &engine->events));
    if (weftd->env->virtual_time) {
        reply_status(engine, open_transport(engine));
        engine->thread_started = weftd->env->virtual_time->run(weftd->env, engine->loop) == WEFT_OK;
        return engine->thread_started ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    engine->thread_started = pthread_create(&engine->thread, NULL, engine_main, engine) == 0;
    return engine->thread_started ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

enum weft_status weftd_engines_start(struct weftd *weftd, struct weft_error *error)
{
    weftd->engines = weft_alloc_zero(weftd->env, weftd->options.engines * sizeof *weftd->engines);
    enum weft_status status = weftd->engines ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    weftd->pending.engines_waited_for = weftd->options.engines;
    if (status == WEFT_OK) weftd_snapshots_attach(weftd);
    for (uint32_t i = 0; status == WEFT_OK && i < weftd->options.engines; i++)
        status = engine_start(weftd, &weftd->engines[i], i);
    if (status != WEFT_OK)
        return weft_error_set(error, status, "cannot start %u engines: %s", weftd->options.engines,
                              weft_reason_text(status));
    return WEFT_OK;
}

static void stop_virtual(struct weftd_engine *engine)
{
    const struct weft_virtual_time *virtual_time = engine->weftd->env->virtual_time;
    virtual_time->end(engine->weftd->env, engine->loop);
    drain(engine);
}

void weftd_engines_stop(struct weftd *weftd)
{
    for (uint32_t i = 0; weftd->env->virtual_time && weftd->engines && i < weftd->options.engines; i++) {
        if (weftd->engines[i].thread_started) stop_virtual(&weftd->engines[i]);
        weftd->engines[i].thread_started = false;
    }
    for (uint32_t i = 0; weftd->engines && i < weftd->options.engines; i++)
        if (weftd->engines[i].thread_started) weft_loop_stop(weftd->engines[i].loop);
    for (uint32_t i = 0; weftd->engines && i < weftd->options.engines; i++)
        if (weftd->engines[i].thread_started) pthread_join(weftd->engines[i].thread, NULL);
}

/* Call after weft_net_free: commands that it still runs may use the engines. */
void weftd_engines_free(struct weftd *weftd)
{
    for (uint32_t i = 0; weftd->engines && i < weftd->options.engines; i++) {
        weft_event_ring_free(weftd->engines[i].events);
        weft_piece_free(weftd->engines[i].restored_piece);
        weft_loop_free(weftd->engines[i].loop);
    }
    weft_free_bytes(weftd->env, weftd->engines);
    weftd->engines = NULL;
}
