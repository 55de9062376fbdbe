/* engine.c - life of the engine thread: start, deadlines, failure, stop.
 *
 *     commands ----> start of a request ----> queue of its group (group.c) -> weft_coll_post --> done
 *                          \---> chunks -> transport --> result --> settled (tensor/server_mode.c)
 *                           \--> work (work.c)
 *
 * End: `failed` is set first, and nothing starts after it. Queued group operations complete, posted ones
 * end through weft_group_fail, and chunks that wait for a result are settled. Then the transport is
 * closed, which completes the buffers that it holds. A request completes when its last buffer is free. */
#include "client/engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/engine/event_fd.h"
#include "client/engine/group.h"
#include "client/engine/plan_cache.h"
#include "client/engine/request.h"
#include "client/engine/suspicion.h"
#include "client/engine/work.h"
#include "client/session/failure.h"
#include "client/session/flight.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/settings.h"
#include "client/session/topology.h"
#include "client/session/wait.h"

#define DRAIN_PAUSE_NS_MIN (WEFT_MS(1) / 20)
#define DRAIN_PAUSE_NS_MAX WEFT_MS(20)
/* of sends that found no space in the transport, if no completion arrives first */
#define RETRY_NS WEFT_MS(1)
/* From the deadline of a request to its failure. A late operation is first diagnosed by its group, which
 * names the rank. The group may first answer another rank's query (1 s), and its own query waits 0.5 s for
 * ranks that do not answer. */
#define DEADLINE_SLACK_NS WEFT_MS(1750)
#define LEAVE_NS WEFT_SECONDS(1)     /* for ranks that are not connected yet to receive LEAVE */

/* ---- ending ---- */

static void fail_ops(struct client_engine *engine, struct weft_list *ops)
{
    while (!weft_list_empty(ops)) {
        struct client_group_op *op = weft_list_first(ops, struct client_group_op, link);
        weft_list_remove(&op->link);
        op->done(op, engine->failed, engine->failed_text);
    }
}

static void fail_queued(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    fail_ops(engine, &engine->ended_ops);
    fail_ops(engine, &engine->group_queue);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &engine->comms) {
        struct weft_comm *comm = weft_container_of(node, struct weft_comm, engine_link);
        fail_ops(engine, &comm->queue);
        if (comm->group) weft_group_fail(comm->group, engine->failed, engine->failed_text);
    }
    if (engine->group) weft_group_fail(engine->group, engine->failed, engine->failed_text);
    engine->ops.tensor->fail(session);
}

/* The transport does not detect a dead peer of shared memory: fail the peer here, so that the drain does
 * not wait for it. */
static void fail_lost_members(struct weft_session *session)
{
    for (uint32_t i = 0; i < session->membership.member_count; i++) {
        const struct client_member *member = &session->membership.members[i];
        if (!atomic_load(&session->membership.members[i].is_lost)) continue;
        for (uint32_t e = 0; e < member->endpoint_count; e++)
            if (member->endpoint_first + e != session->membership.endpoint)
                weft_transport_fail_peer(session->engine->transport, member->endpoint_first + e,
                                         WEFT_ERR_PEER_LOST, member->name);
    }
}

void client_engine_end_operations(struct weft_session *session, enum weft_status status, const char *text)
{
    struct client_engine *engine = session->engine;
    engine->failed = status;
    engine->failed_text = text;
    engine->suspicion.error.status = WEFT_OK;
    weft_timer_stop(engine->loop, &engine->suspicion.timer);
    fail_queued(session);
    fail_lost_members(session);
}

/* A closed transport is out of the loop: this timer progresses it until it has released every buffer. */
static void drain(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, timers.drain);
    struct weft_env *env = weft_loop_env(engine->loop);
    bool moved = weft_transport_progress(engine->transport, 64) > 0;
    if (weft_transport_drained(engine->transport)) return;
    engine->timers.drain_pause_ns = moved ? DRAIN_PAUSE_NS_MIN : engine->timers.drain_pause_ns * 2;
    if (engine->timers.drain_pause_ns > DRAIN_PAUSE_NS_MAX)
        engine->timers.drain_pause_ns = DRAIN_PAUSE_NS_MAX;
    weft_timer_start(engine->loop, timer, weft_now_ns(env) + engine->timers.drain_pause_ns);
}

static void close_transport(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    weft_transport_close(engine->transport);
    engine->timers.drain_pause_ns = DRAIN_PAUSE_NS_MIN;
    weft_timer_start(engine->loop, &engine->timers.drain, 0);
}

/* Leaves in order: frees the groups when all ranks know that this rank leaves, or cannot be reached. A
 * rank that is not connected yet would take the closed endpoint for a death and end its operations. */
static void finish_leave(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, timers.leave);
    struct weft_session *session = engine->session;
    const uint64_t now_ns = weft_now_ns(session->env);
    const bool all_know =
        (!engine->group || weft_group_has_left(engine->group)) && engine->ops.comm->have_left(session);
    if (!all_know && now_ns < engine->timers.leave_until_ns &&
        weft_timer_start(engine->loop, timer, now_ns + RETRY_NS) >= 0)
        return;
    engine->ops.comm->leave(session);
    client_plans_save(session);
    weft_group_free(engine->group);
    engine->group = NULL;
    fail_queued(session);
    fail_lost_members(session);
    close_transport(session);
}

static void leave_on_engine(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    engine->ops.comm->send_leave(session);
    if (engine->group) weft_group_leave(engine->group);
    engine->timers.leave_until_ns = client_deadline(session, LEAVE_NS);
    finish_leave(&engine->timers.leave);
}

static void fail_on_engine(struct weft_command *command)
{
    struct client_engine *engine = weft_container_of(command, struct client_engine, end.command);
    struct weft_session *session = engine->session;
    if (engine->failed && !engine->epoch_end.is_leaving) return;
    engine->epoch_end.is_leaving = false;
    engine->failed = client_failed(session);
    engine->failed_text = session->failure.text;
    weft_timer_stop(engine->loop, &engine->suspicion.timer);
    if (engine->failed == WEFT_ERR_CLOSED && atomic_load(&engine->end.is_orderly)) {
        leave_on_engine(session);
        return;
    }
    weft_event_ring_add(session->flight.events, "session_failed", WEFT_EVENT_MARK, 0, UINT32_MAX, 0,
                        engine->failed);
    if (engine->group && engine->failed != WEFT_ERR_CLOSED) {
        weft_group_update_records(engine->group);
        engine->ops.comm->record(session);
        /* before another rank learns of the failure and exits */
        client_flight_dump(session, engine->failed_text);
    }
    fail_queued(session);
    fail_lost_members(session);
    close_transport(session);
}

static void post_fail(struct weft_session *session)
{
    /* client_fail calls this once per session, so the command is free. */
    session->engine->end.command.fn = fail_on_engine;
    weft_loop_post(session->loop, &session->engine->end.command);
}

static void on_peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct weft_session *session = context;
    const struct client_member *member = client_member_of_endpoint(session, peer_id);
    weft_event_ring_add(session->flight.events, "peer_lost", WEFT_EVENT_MARK, 0, peer_id, 0, status);
    if (!member || session->engine->failed) return;
    if (member->is_shard && session->control.copies > 0) {
        weft_log(session->env, WEFT_LOG_WARN, "client", "connection with %s lost: %s; its copies lead next",
                 member->name, text ? text : "");
    } else if (member->is_shard) {
        client_engine_suspect(session, WEFT_ERR_PEER_LOST, "lost %s: %s", member->name,
                              text ? text : weft_reason_text(status));
    } else {
        /* It may have left in order. An operation that still needs it fails with its own sentence. */
        weft_log(session->env, WEFT_LOG_DEBUG, "client", "connection with %s closed: %s", member->name,
                 text ? text : "");
    }
}

/* ---- deadlines and retries ---- */

/* The deadline of a request has passed. The group may have ended before, while the operation waits for a
 * buffer that went to the lost rank. If the end is a loss, the other ranks may have declared this rank
 * lost: a stopped process reads its clock first. */
static void request_overdue(struct weft_session *session, const struct client_request *request)
{
    struct client_engine *engine = session->engine;
    char text[400];
    const char *diagnosis;
    const enum weft_status ended = engine->group && !engine->epoch_end.is_leaving
                                       ? weft_group_end_status(engine->group, &diagnosis)
                                       : WEFT_OK;
    if (ended == WEFT_ERR_PEER_LOST)
        client_engine_suspect_lost_rank(session, engine->group,
                                        client_engine_failure_source_rank(session, NULL, engine->group),
                                        diagnosis);
    if (engine->suspicion.error.status < 0) {
        client_engine_shorten_suspicion(session);
    } else if (ended < 0) {
        client_fail(session, ended, true, "%s", diagnosis);
    } else {
        client_request_describe(request, text, sizeof text);
        client_fail(session, WEFT_ERR_DEADLINE, true, "rank %u: %s, over the deadline of %.1f s",
                    session->rank, text, (double)session->settings.deadline_ns / 1e9);
    }
}

/* A request may wait for earlier operations before its own is posted, whose deadline is then later. */
static void request_due(struct weft_session *session, const struct client_request *request)
{
    const struct client_engine *engine = session->engine;
    struct weft_group *group = request->op.comm ? request->op.comm->group : engine->group;
    if (!group || engine->epoch_end.is_leaving) return;
    if (request->device.stage && engine->ops.call->is_filling(request)) return;
    if (request->tensor && !engine->ops.tensor->is_in_group(request->tensor)) return;
    weft_group_expire(group);
}

static void watch_deadlines(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, timers.deadline);
    struct weft_session *session = engine->session;
    const uint64_t now_ns = weft_now_ns(session->env), due_ns = session->settings.deadline_ns,
                   limit_ns = due_ns + DEADLINE_SLACK_NS;
    uint64_t next_ns = client_deadline(session, due_ns); /* a younger request cannot be due earlier */
    if (!weft_list_empty(&engine->open_requests)) {
        struct client_request *oldest = weft_list_first(&engine->open_requests, struct client_request, link);
        const uint64_t age_ns = weft_elapsed_ns(oldest->started_ns, now_ns);
        if (age_ns < due_ns) next_ns = now_ns + (due_ns - age_ns);
        else if (age_ns < limit_ns) next_ns = now_ns + (limit_ns - age_ns);
        if (age_ns >= limit_ns && !engine->failed) request_overdue(session, oldest);
        else if (age_ns >= due_ns && !engine->failed) request_due(session, oldest);
    }
    if (!engine->failed) weft_timer_start(engine->loop, timer, next_ns);
}

void client_engine_watch_deadlines(struct weft_session *session)
{
    watch_deadlines(&session->engine->timers.deadline);
}

static void retry_sends(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, timers.retry);
    struct weft_session *session = engine->session;
    engine->ops.tensor->resend(session);
}

void client_engine_retry_soon(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    if (!weft_timer_is_running(&engine->timers.retry))
        weft_timer_start(engine->loop, &engine->timers.retry, client_deadline(session, RETRY_NS));
}

/* ---- life ---- */

static bool requests_are_open(void *context)
{
    struct weft_session *session = context;
    return atomic_load(&session->open_requests) > 0;
}

static bool thread_is_started(const struct weft_session *session)
{
    return session->engine->thread.is_started;
}

static void halt_at_exit(struct weft_session *session)
{
    weft_loop_stop(session->loop); /* before the release: the engine thread then ends without another step */
    weft_loop_release(session->loop);
    atomic_store(&session->engine->thread.is_halted, true);
}

void client_engine_init(struct weft_session *session, struct client_engine *engine)
{
    session->engine = engine;
    session->ops.fail_engine = post_fail;
    session->ops.wait_requests = client_requests_wait_all;
    session->ops.all_alive = client_engine_all_alive;
    session->ops.progress = client_progress_sample;
    session->ops.connect = client_engine_connect;
    session->ops.report = client_report_request;
    session->ops.is_running = thread_is_started;
    session->ops.halt_at_exit = halt_at_exit;
    engine->session = session;
    atomic_init(&engine->event_fd, -1);
    pthread_mutex_init(&engine->queries.describe.lock, NULL);
    weft_list_init(&engine->registrations);
    weft_list_init(&engine->open_requests);
    weft_list_init(&engine->group_queue);
    weft_list_init(&engine->comms);
    weft_list_init(&engine->ended_ops);
    weft_list_init(&engine->work.queue);
    engine->work.command.fn = client_engine_run_work;
    weft_timer_init(&engine->timers.deadline, watch_deadlines);
    weft_timer_init(&engine->timers.retry, retry_sends);
    weft_timer_init(&engine->timers.drain, drain);
    weft_timer_init(&engine->timers.leave, finish_leave);
    weft_timer_init(&engine->suspicion.timer, client_suspicion_expired);
}

enum weft_status client_engine_create(struct weft_session *session, struct weft_error *error)
{
    struct client_engine *engine = session->engine;
    enum weft_status status = weft_loop_create(session->env, NULL, &engine->loop);
    session->loop = engine->loop;
    if (status == WEFT_OK) weft_loop_set_pending_check(engine->loop, requests_are_open, session);
    if (status == WEFT_OK)
        status = weft_event_ring_create(
            session->env, (uint32_t)weft_config_u64(session->settings.config, "events.capacity"),
            &session->flight.events);
    uint64_t operations = weft_config_u64(session->settings.config, "recorder.operations");
    if (status == WEFT_OK)
        status = weft_recorder_create(session->env, (uint32_t)operations, &session->flight.recorder);
    if (status < 0)
        return weft_error_set(error, status, "cannot make the engine: %s", weft_reason_text(status));
    return WEFT_OK;
}

enum weft_status client_engine_open(struct weft_session *session, uint64_t nonce, struct weft_error *error)
{
    struct client_engine *engine = session->engine;
    const struct client_settings *settings = &session->settings;
    const char *wrap = weft_config_text(settings->config, "transport.wrap");
    struct weft_transport_options options;
    char backend[WEFT_TRANSPORT_BACKEND_BYTES_MAX];
    weft_transport_options_init(&options);
    if (weft_transport_options_wrap(&options, weft_config_text(settings->config, "transport.backend"), wrap,
                                    backend) < 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "the option transport.wrap is too long: '%.100s...'",
                              wrap);
    options.id = session->membership.endpoint;
    options.nonce = nonce;
    options.eager_bytes_max = weft_config_u64(settings->config, "transport.eager_bytes");
    options.lanes = settings->lanes;
    options.devices = settings->devices;
    options.secret = settings->secret;
    options.secret_bytes = settings->secret ? strlen(settings->secret) : 0;
    options.ports = weft_config_text(settings->config, "transport.ports");
    options.tune = weft_config_text(settings->config, "transport.tune");
    options.peer_failed = on_peer_failed;
    options.peer_failed_context = session;
    enum weft_status status = weft_transport_open(session->env, &options, &engine->transport, error);
    if (status < 0)
        return weft_error_set(error, status, "cannot open transport '%s' (lanes %s, devices %s): %s",
                              options.backend, options.lanes, options.devices, weft_reason_text(status));
    engine->ops.tensor->listen(session);
    engine->ops.comm->listen(session);
    return WEFT_OK;
}

/* A shard is connected. */
static void lower_eager_bytes(struct client_engine *engine, const struct weft_peer *peer)
{
    const size_t bytes = weft_peer_eager_bytes(peer);
    if (engine->shards_eager_bytes == 0 || bytes < engine->shards_eager_bytes)
        engine->shards_eager_bytes = bytes;
}

enum weft_status client_engine_connect(struct weft_session *session, const Weft__Control__Member *member,
                                       struct weft_error *error)
{
    for (size_t e = 0; e < member->n_addresses; e++) {
        uint32_t endpoint = member->endpoint_first + (uint32_t)e;
        struct weft_peer *peer;
        if (endpoint == session->membership.endpoint) continue;
        enum weft_status status = weft_transport_connect(
            session->engine->transport, endpoint, member->addresses[e].data, member->addresses[e].len, &peer);
        if (status < 0)
            return weft_error_set(error, status, "cannot connect to %.100s: %s%s", member->name,
                                  weft_reason_text(status), weft_transport_connect_hint(status));
        if (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD) lower_eager_bytes(session->engine, peer);
    }
    return WEFT_OK;
}

static enum weft_status connect_members(struct weft_session *session, const Weft__Control__Roster *roster,
                                        struct weft_error *error)
{
    for (size_t i = 0; i < roster->n_members; i++)
        WEFT_TRY(client_engine_connect(session, roster->members[i], error));
    return WEFT_OK;
}

static void *engine_thread(void *context)
{
    struct client_engine *engine = context;
    weft_loop_run(engine->loop);
    return NULL;
}

/* Virtual time has no threads. */
static int start_thread(struct client_engine *engine)
{
    struct weft_env *env = weft_loop_env(engine->loop);
    if (env->virtual_time) return env->virtual_time->run(env, engine->loop);
    return weft_thread_start(&engine->thread.id, "weft engine", engine_thread, engine);
}

/* For recorded calls: two entries of each rank for each operation, so that no entry is overwritten before
 * its record is complete. */
static enum weft_status record_lengths(struct weft_session *session, struct weft_error *error)
{
    if (!weft_config_text(session->settings.config, "recorder.calls")[0]) return WEFT_OK;
    const uint64_t operations = weft_config_u64(session->settings.config, "recorder.operations");
    if (weft_recorder_keep_lengths(session->flight.recorder, 2 * operations * session->ranks) == WEFT_OK)
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_NO_MEMORY,
                          "no memory for the lengths of %llu recorded operations of %u ranks",
                          (unsigned long long)operations, session->ranks);
}

enum weft_status client_engine_start(struct weft_session *session, const Weft__Control__Roster *roster,
                                     struct weft_error *error)
{
    struct client_engine *engine = session->engine;
    WEFT_TRY(connect_members(session, roster, error));
    WEFT_TRY(record_lengths(session, error));
    WEFT_TRY(client_hosts_create(session, roster, error));
    WEFT_TRY(client_engine_create_group(session, error));
    engine->ops.call->start(session);
    enum weft_status status = weft_transport_attach(engine->transport, engine->loop);
    if (status == WEFT_OK) status = weft_timer_start(engine->loop, &engine->timers.deadline,
                                                     client_deadline(session, session->settings.deadline_ns));
    if (status < 0)
        return weft_error_set(error, status, "cannot set up the engine's loop: %s", weft_reason_text(status));
    if (start_thread(engine) != 0)
        return weft_limit_error(error, "the engine", EAGAIN, "cannot start");
    engine->thread.is_started = true;
    return WEFT_OK;
}

static bool stopped(void *context) { return weft_loop_is_stopped(context); }

/* The loop is stopped, or another thread will stop it. */
static void join_thread(struct client_engine *engine)
{
    struct weft_env *env = weft_loop_env(engine->loop);
    if (env->virtual_time) {
        (void)env->virtual_time->wait(env, stopped, engine->loop, WEFT_NEVER);
        env->virtual_time->end(env, engine->loop);
    } else {
        pthread_join(engine->thread.id, NULL);
    }
    engine->thread.is_started = false;
}

struct stopping {
    struct weft_command command;
    struct weft_timer timer;
    struct client_engine *engine;
    uint64_t until_ns;
};

static void stop_when_drained(struct weft_timer *timer)
{
    struct stopping *stopping = weft_container_of(timer, struct stopping, timer);
    struct client_engine *engine = stopping->engine;
    uint64_t now_ns = weft_now_ns(weft_loop_env(engine->loop));
    if (weft_transport_drained(engine->transport) || now_ns >= stopping->until_ns ||
        weft_timer_start(engine->loop, timer, now_ns + RETRY_NS) < 0)
        weft_loop_stop(engine->loop);
}

static void begin_stop(struct weft_command *command)
{
    struct stopping *stopping = weft_container_of(command, struct stopping, command);
    stop_when_drained(&stopping->timer);
}

static void end_requests(struct client_engine *engine, enum weft_status status, const char *text)
{
    while (!weft_list_empty(&engine->open_requests))
        client_request_complete(weft_list_first(&engine->open_requests, struct client_request, link), status,
                                text);
}

bool client_engine_halt_because(struct weft_session *session, const char *why)
{
    struct client_engine *engine = session->engine;
    if (weft_loop_acquire(engine->loop, client_deadline(session, WEFT_MS(300))) < 0) return false;
    /* A request whose start is still queued would never complete. Run the queued commands, but move no
     * data: in a failed engine a start completes at once. A second halt handles starts that were posted
     * during the first. */
    if (!engine->failed) {
        engine->failed = client_failed(session);
        engine->failed_text = session->failure.text;
    }
    while (!weft_list_empty(&engine->work.queue)) weft_list_remove(engine->work.queue.next);
    weft_loop_compute_cancel_all(engine->loop); /* a computation reads and writes the callers' buffers */
    (void)engine->ops.call->post_deferred(session);
    weft_loop_run_commands(engine->loop);
    end_requests(engine, engine->failed, engine->failed_text);
    bool first = !engine->thread.is_halted;
    if (first) weft_loop_stop(engine->loop); /* before the release: the engine thread then ends without
                                              * another step */
    weft_loop_release(engine->loop);
    engine->thread.is_halted = true;
    if (first) weft_log(session->env, WEFT_LOG_WARN, "client", "the engine is halted: %s", why);
    return true;
}

bool client_engine_halt(struct weft_session *session)
{
    return client_engine_halt_because(session, "the transport did not release its buffers in time");
}

void client_engine_stop(struct weft_session *session, uint64_t until_ns)
{
    struct client_engine *engine = session->engine;
    if (!engine->thread.is_started) return;
    if (engine->thread.is_halted) {
        join_thread(engine);
        return;
    }
    /* The command of client_fail was posted before: it runs first and closes the transport. */
    struct stopping stopping = {.command.fn = begin_stop, .engine = engine, .until_ns = until_ns};
    weft_timer_init(&stopping.timer, stop_when_drained);
    weft_loop_post(engine->loop, &stopping.command);
    join_thread(engine);
    weft_timer_stop(engine->loop, &stopping.timer);
    weft_loop_compute_cancel_all(engine->loop);
    engine->ops.comm->leave(session);
    if (engine->failed == WEFT_OK || engine->failed == WEFT_ERR_CLOSED) client_plans_save(session);
    weft_group_free(engine->group); /* completes the operations that it still has */
    engine->group = NULL;
    /* The transport still holds buffers of these requests; the caller may free them now. */
    end_requests(engine, WEFT_ERR_CLOSED, "weft_finalize closed the session");
}

/* A peer may still read or write the memory of a halted engine. It is never freed, and stays reachable for
 * leak checkers. */
static void leak_halted(struct weft_env *env, struct weft_transport *transport, struct weft_group *group,
                        struct client_hosts *hosts)
{
    static struct kept {
        struct weft_transport *transport;
        struct weft_group *group;
        struct client_hosts *hosts; /* the group points into it */
        struct kept *next;
    } *_Atomic all;
    struct kept *kept = weft_alloc_zero(env, sizeof *kept);
    if (!kept) return;
    *kept = (struct kept){transport, group, hosts, atomic_load(&all)};
    while (!atomic_compare_exchange_weak(&all, &kept->next, kept)) {}
}

void client_engine_free(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    if (engine->thread.is_halted) {
        leak_halted(session->env, engine->transport, engine->group, session->membership.hosts);
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, &engine->comms)
            leak_halted(session->env, engine->transport,
                        weft_container_of(node, struct weft_comm, engine_link)->group, NULL);
    } else {
        engine->ops.comm->leave(session);
        weft_group_free(engine->group);
        weft_transport_free(engine->transport); /* also closes it, if it is open */
        client_hosts_free(session);
    }
    session->membership.hosts = NULL;
    weft_event_ring_free(session->flight.events);
    weft_recorder_free(session->flight.recorder);
    weft_loop_free(engine->loop);
    engine->group = NULL;
    engine->transport = NULL;
    engine->loop = session->loop = NULL;
    session->flight.events = NULL;
    session->flight.recorder = NULL;
}

void client_engine_close(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    client_event_close(session);
    client_registrations_free(session);
    weft_free_bytes(session->env, engine->queries.links.text);
    pthread_mutex_destroy(&engine->queries.describe.lock);
}
