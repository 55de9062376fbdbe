/* engine.c - the engine thread's life and its queues. See engine.h for what belongs to it.
 *
 *     letters ----> start of a request ----> group_queue --in call order--> weft_coll_post --> done
 *                                     \----> chunks ------------> transport --> result --> settled
 *                                      \---> work: one slice per letter to itself, so that the transport, timers and
 *                                            other letters get their turn in between
 *
 * Ending: once `failed` is set nothing new starts. Queued group operations are answered, posted ones end
 * through weft_group_fail, chunks that wait for a result are settled, and the transport is closed, which
 * completes whatever it still holds; a request completes when the last buffer of it is free. */
#include "client/engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/comm/comm.h"
#include "client/engine/plan_cache.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/server_mode.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"

#define DRAIN_PAUSE_NS_MIN (WEFT_MS(1) / 20)
#define DRAIN_PAUSE_NS_MAX WEFT_MS(20)
/* of sends the transport had no room for, when no completion comes first */
#define RETRY_NS WEFT_MS(1)
/* The group's own verdict on a late operation names the rank: it goes first. It may first listen to
 * another rank's question (1 s), and its own waits half a second for those that do not answer. */
#define DEADLINE_SLACK_NS WEFT_MS(1750)
#define LEAVE_NS WEFT_SECONDS(1)     /* for ranks that are not met yet to hear that this one leaves */
/* patience with the coordinator once it has said that all live, or where a rank has left in order: it
 * knows that, and no word about it will come. Before, its word may be under way over a connection that is
 * cut for a while: as long as it needs to find a silent rank (session->silence_ns) */
#define SUSPICION_NS WEFT_MS(500)

/* ---- computations ---- */

static void run_work(struct weft_command *command)
{
    struct client_engine *engine = weft_container_of(command, struct client_engine, work_mail);
    engine->work_posted = false;
    if (weft_list_empty(&engine->work)) return;
    struct client_work *work = weft_list_first(&engine->work, struct client_work, link);
    struct weft_env *env = weft_loop_env(engine->loop);
    uint64_t began_ns = weft_now_ns(env);
    weft_list_remove(&work->link);
    bool finished = work->run(work); /* may free the tensor's request, queue other work, or this one anew */
    engine->encode_ns += weft_now_ns(env) - began_ns;
    if (!finished) weft_list_insert_before(engine->work.next, &work->link); /* first come, first finished */
    if (!weft_list_empty(&engine->work) && !engine->work_posted) {
        engine->work_posted = true;
        weft_loop_post(engine->loop, &engine->work_mail);
    }
}

void client_engine_queue_work(struct weft_session *session, struct client_work *work)
{
    struct client_engine *engine = &session->engine;
    WEFT_ASSERT(weft_list_empty(&work->link));
    weft_list_append(&engine->work, &work->link);
    if (engine->work_posted) return;
    engine->work_posted = true;
    weft_loop_post(engine->loop, &engine->work_mail);
}

void client_engine_cancel_work(struct client_work *work)
{
    weft_list_remove(&work->link);
}

/* ---- each group, in the order of the calls ---- */

struct weft_list *client_engine_group_queue(const struct client_group_op *op)
{
    return op->comm ? &op->comm->queue : &op->session->engine.group_queue;
}

static void pump(struct weft_list *queue)
{
    while (!weft_list_empty(queue)) {
        struct client_group_op *op = weft_list_first(queue, struct client_group_op, link);
        /* The operation after one that could not be posted would take its number. The session's failure
         * ends the queue. */
        if (!op->ready || client_failed(op->session) < 0) return;
        struct weft_error error;
        error.status = WEFT_OK, error.text[0] = 0; /* the rest is written with them */
        enum weft_status status = op->post(op, &error);
        if (status == WEFT_ERR_AGAIN) return; /* the end of a posted one pumps again */
        weft_list_remove(&op->link);
        if (status < 0) op->done(op, status, error.text[0] ? error.text : weft_reason_text(status));
    }
}

void client_engine_group_op_done(void *context, enum weft_status status, const char *text)
{
    struct client_group_op *op = context;
    struct weft_list *queue = client_engine_group_queue(op);
    op->coll = NULL;
    op->done(op, status, text); /* it may be gone now */
    pump(queue);
}

void client_engine_pump_group(struct weft_session *session)
{
    pump(&session->engine.group_queue);
}

void client_engine_pump_all(struct weft_session *session)
{
    struct weft_list *node, *spare;
    pump(&session->engine.group_queue);
    weft_list_foreach (node, spare, &session->engine.comms)
        pump(&weft_container_of(node, struct weft_comm, engine_link)->queue);
}

void client_engine_pump(struct weft_list *queue) { pump(queue); }

void client_engine_queue_group_op(struct weft_session *session, struct client_group_op *op)
{
    op->session = session;
    op->coll = NULL;
    weft_list_append(client_engine_group_queue(op), &op->link);
    pump(client_engine_group_queue(op));
}

/* ---- tensors by id ---- */

struct weft_tensor *client_engine_tensor(struct client_engine *engine, uint32_t id)
{
    struct weft_tensor *tensor = engine->tensors[id % CLIENT_TENSOR_BUCKETS];
    while (tensor && tensor->id != id) tensor = tensor->engine_next;
    return tensor;
}

/* ---- suspicions ---- */

static void suspicion_expired(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, suspicion_timer);
    struct weft_session *session = weft_container_of(engine, struct weft_session, engine);
    char explanation[120] = "";
    if (engine->all_alive)
        snprintf(explanation, sizeof explanation,
                 "; all ranks answer the coordinator: the link between two of them is broken");
    else if (engine->awaits_coordinator)
        snprintf(explanation, sizeof explanation, "; and no word about it from the coordinator at %.60s:%u",
                 session->settings.host, session->settings.port);
    client_fail(session, (enum weft_status)engine->suspected.status, true, "%.350s%s", engine->suspected.text,
                explanation);
}

/* of_lost: of a loss, or another end of the job, about which the coordinator has its word. */
static void suspect(struct weft_session *session, enum weft_status status, bool of_lost, uint64_t patience_ns,
                    const char *format, va_list arguments)
{
    struct client_engine *engine = &session->engine;
    if (engine->failed || engine->suspected.status < 0) return;
    vsnprintf(engine->suspected.text, sizeof engine->suspected.text, format, arguments);
    engine->suspected.status = status;
    engine->all_alive = false;
    engine->awaits_coordinator = of_lost;
    if (weft_timer_start(engine->loop, &engine->suspicion_timer, client_deadline(session, patience_ns)) < 0)
        suspicion_expired(&engine->suspicion_timer);
}

void client_engine_suspect(struct weft_session *session, enum weft_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const bool first = session->engine.suspected.status == WEFT_OK;
    suspect(session, status, true, session->silence_ns, format, arguments);
    va_end(arguments);
    if (first && session->engine.suspected.status < 0) client_control_check_liveness(session);
}

/* It is the link, then. A process that died after it had answered is still lost in a moment. */
static void all_alive_on_engine(struct weft_command *command)
{
    struct client_engine *engine = weft_container_of(command, struct client_engine, all_alive_message);
    struct weft_session *session = weft_container_of(engine, struct weft_session, engine);
    atomic_store(&engine->all_alive_is_posted, false);
    if (engine->failed || engine->suspected.status == WEFT_OK) return;
    engine->all_alive = true;
    if (weft_timer_start(engine->loop, &engine->suspicion_timer, client_deadline(session, SUSPICION_NS)) < 0)
        suspicion_expired(&engine->suspicion_timer);
}

void client_engine_all_alive(struct weft_session *session)
{
    struct client_engine *engine = &session->engine;
    /* the letter is the engine's until it has run */
    if (atomic_exchange(&engine->all_alive_is_posted, true)) return;
    engine->all_alive_message.fn = all_alive_on_engine;
    weft_loop_post(engine->loop, &engine->all_alive_message);
}

void client_engine_remote_lost(struct weft_session *session, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    suspect(session, WEFT_ERR_PEER_LOST, false, SUSPICION_NS, format, arguments);
    va_end(arguments);
}

/* Rank of the job that wrote the sentence of the group's failure: this rank, or the sender of a FAIL
 * message. */
static uint32_t failure_source_rank(const struct weft_session *session, const struct weft_comm *comm,
                                    const struct weft_group *group)
{
    if (!group) return session->rank;
    const uint32_t rank = weft_group_end_rank(group);
    return comm ? comm->members[rank] : rank;
}

/* A group has ended by this. */
static void suspect_lost_rank(struct weft_session *session, const struct weft_group *group, uint32_t found_by,
                              const char *text)
{
    if (group && weft_group_ended_by_leave(group))
        client_engine_remote_lost(session, "rank %u: %s", found_by, text);
    else client_engine_suspect(session, WEFT_ERR_PEER_LOST, "rank %u: %s", found_by, text);
}

void client_engine_group_op_failed(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct weft_session *session = op->session;
    if (!text) text = weft_reason_text(status);
    weft_list_append(&session->engine.ended_ops, &op->link);
    const struct weft_group *group = op->comm ? op->comm->group : session->engine.group;
    const uint32_t found_by = failure_source_rank(session, op->comm, group);
    if (status == WEFT_ERR_PEER_LOST) suspect_lost_rank(session, group, found_by, text);
    else client_fail(session, status, true, "rank %u: %s", found_by, text);
}

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
    struct client_engine *engine = &session->engine;
    fail_ops(engine, &engine->ended_ops);
    fail_ops(engine, &engine->group_queue);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &engine->comms) {
        struct weft_comm *comm = weft_container_of(node, struct weft_comm, engine_link);
        fail_ops(engine, &comm->queue);
        if (comm->group) weft_group_fail(comm->group, engine->failed, engine->failed_text);
    }
    if (engine->group) weft_group_fail(engine->group, engine->failed, engine->failed_text);
    for (size_t i = 0; i < CLIENT_TENSOR_BUCKETS; i++)
        for (struct weft_tensor *tensor = engine->tensors[i]; tensor; tensor = tensor->engine_next)
            client_tensor_failed(tensor);
}

/* A dead peer that the transport itself cannot see (shared memory) must not keep its drain waiting. */
static void fail_lost_members(struct weft_session *session)
{
    for (uint32_t i = 0; i < session->member_count; i++) {
        const struct client_member *member = &session->members[i];
        if (!atomic_load(&session->members[i].is_lost)) continue;
        for (uint32_t e = 0; e < member->endpoint_count; e++)
            if (member->endpoint_first + e != session->endpoint)
                weft_transport_fail_peer(session->engine.transport, member->endpoint_first + e,
                                         WEFT_ERR_PEER_LOST, member->name);
    }
}

void client_engine_end_operations(struct weft_session *session, enum weft_status status, const char *text)
{
    struct client_engine *engine = &session->engine;
    engine->failed = status;
    engine->failed_text = text;
    engine->suspected.status = WEFT_OK;
    weft_timer_stop(engine->loop, &engine->suspicion_timer);
    fail_queued(session);
    fail_lost_members(session);
}

/* A closed transport is out of the loop; it is progressed from here until it has let go of every buffer. */
static void drain(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, drain_timer);
    struct weft_env *env = weft_loop_env(engine->loop);
    bool moved = weft_transport_progress(engine->transport, 64) > 0;
    if (weft_transport_drained(engine->transport)) return;
    engine->drain_pause_ns = moved ? DRAIN_PAUSE_NS_MIN : engine->drain_pause_ns * 2;
    if (engine->drain_pause_ns > DRAIN_PAUSE_NS_MAX) engine->drain_pause_ns = DRAIN_PAUSE_NS_MAX;
    weft_timer_start(engine->loop, timer, weft_now_ns(env) + engine->drain_pause_ns);
}

static void close_transport(struct weft_session *session)
{
    struct client_engine *engine = &session->engine;
    weft_transport_close(engine->transport);
    engine->drain_pause_ns = DRAIN_PAUSE_NS_MIN;
    weft_timer_start(engine->loop, &engine->drain_timer, 0);
}

/* Left in order: the groups go when all ranks know that this one does, or are not to be reached. Those
 * that it has not met yet would take its closed endpoint for a death, and end what they do without it. */
static void finish_leave(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, leave_timer);
    struct weft_session *session = weft_container_of(engine, struct weft_session, engine);
    const uint64_t now_ns = weft_now_ns(session->env);
    const bool all_know =
        (!engine->group || weft_group_has_left(engine->group)) && client_comms_have_left(session);
    if (!all_know && now_ns < engine->leave_until_ns &&
        weft_timer_start(engine->loop, timer, now_ns + RETRY_NS) >= 0)
        return;
    client_comms_leave(session);
    client_plans_save(session);
    weft_group_free(engine->group);
    engine->group = NULL;
    fail_queued(session);
    fail_lost_members(session);
    close_transport(session);
}

static void leave_on_engine(struct weft_session *session)
{
    struct client_engine *engine = &session->engine;
    client_comms_send_leave(session);
    if (engine->group) weft_group_leave(engine->group);
    engine->leave_until_ns = client_deadline(session, LEAVE_NS);
    finish_leave(&engine->leave_timer);
}

static void fail_on_engine(struct weft_command *command)
{
    struct client_engine *engine = weft_container_of(command, struct client_engine, fail_mail);
    struct weft_session *session = weft_container_of(engine, struct weft_session, engine);
    if (engine->failed && !engine->leaves_epoch) return;
    engine->leaves_epoch = false;
    engine->failed = client_failed(session);
    engine->failed_text = session->failure.text;
    weft_timer_stop(engine->loop, &engine->suspicion_timer);
    if (engine->failed == WEFT_ERR_CLOSED && atomic_load(&engine->leaving)) {
        leave_on_engine(session);
        return;
    }
    weft_event_ring_add(engine->events, "session_failed", WEFT_EVENT_MARK, 0, UINT32_MAX, 0, engine->failed);
    if (engine->group && engine->failed != WEFT_ERR_CLOSED) {
        weft_group_update_records(engine->group);
        client_comms_record(session);
        client_flight_dump(session, engine->failed_text); /* before anybody learns of it and exits */
    }
    fail_queued(session);
    fail_lost_members(session);
    close_transport(session);
}

void client_engine_post_fail(struct weft_session *session)
{
    /* client_fail calls this once per session, so the letter is free. */
    session->engine.fail_mail.fn = fail_on_engine;
    weft_loop_post(session->engine.loop, &session->engine.fail_mail);
}

static void on_peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct weft_session *session = context;
    const struct client_member *member = client_member_of_endpoint(session, peer_id);
    weft_event_ring_add(session->engine.events, "peer_lost", WEFT_EVENT_MARK, 0, peer_id, 0, status);
    if (!member || session->engine.failed) return;
    if (member->is_shard) {
        client_engine_suspect(session, WEFT_ERR_PEER_LOST, "lost %s: %s", member->name,
                              text ? text : weft_reason_text(status));
    } else {
        /* It may have left in order. If anything still needs it, that operation fails and says so. */
        weft_log(session->env, WEFT_LOG_DEBUG, "client", "connection with %s is gone: %s", member->name,
                 text ? text : "");
    }
}

/* ---- deadlines and retries ---- */

/* What is suspected is said, whatever patience there was, a moment from now at the latest: the
 * coordinator's word may be here and not be read. */
static void shorten_suspicion(struct weft_session *session)
{
    struct client_engine *engine = &session->engine;
    const uint64_t until_ns = client_deadline(session, SUSPICION_NS);
    if (weft_timer_is_running(&engine->suspicion_timer) && engine->suspicion_timer.deadline_ns <= until_ns)
        return;
    if (weft_timer_start(engine->loop, &engine->suspicion_timer, until_ns) < 0)
        suspicion_expired(&engine->suspicion_timer);
}

/* Its time is over. The group may have ended already, and the operation only wait for a buffer that went
 * to whom the verdict names. Where that is a loss, it may be this rank that the others have lost: stopped,
 * it finds them gone and its time over before it has read that it was given up. */
static void request_overdue(struct weft_session *session, const struct client_request *request)
{
    struct client_engine *engine = &session->engine;
    char text[400];
    const char *diagnosis;
    const enum weft_status ended =
        engine->group && !engine->leaves_epoch ? weft_group_end_status(engine->group, &diagnosis) : WEFT_OK;
    if (ended == WEFT_ERR_PEER_LOST)
        suspect_lost_rank(session, engine->group, failure_source_rank(session, NULL, engine->group),
                          diagnosis);
    if (engine->suspected.status < 0) {
        shorten_suspicion(session);
    } else if (ended < 0) {
        client_fail(session, ended, true, "%s", diagnosis);
    } else {
        client_request_describe(request, text, sizeof text);
        client_fail(session, WEFT_ERR_DEADLINE, true, "rank %u: %s, over the deadline of %.1f s",
                    session->rank, text, (double)session->settings.deadline_ns / 1e9);
    }
}

static void watch_deadlines(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, deadline_timer);
    struct weft_session *session = weft_container_of(engine, struct weft_session, engine);
    uint64_t now_ns = weft_now_ns(session->env), limit_ns = session->settings.deadline_ns + DEADLINE_SLACK_NS;
    uint64_t next_ns = client_deadline(session, limit_ns); /* no younger request can be due before */
    if (!weft_list_empty(&engine->open_requests)) {
        struct client_request *oldest = weft_list_first(&engine->open_requests, struct client_request, link);
        uint64_t age_ns = weft_elapsed_ns(oldest->started_ns, now_ns);
        if (age_ns < limit_ns) next_ns = now_ns + (limit_ns - age_ns);
        else if (!engine->failed) request_overdue(session, oldest);
    }
    if (!engine->failed) weft_timer_start(engine->loop, timer, next_ns);
}

void client_engine_watch_deadlines(struct weft_session *session)
{
    watch_deadlines(&session->engine.deadline_timer);
}

static void retry_sends(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, retry_timer);
    struct weft_session *session = weft_container_of(engine, struct weft_session, engine);
    client_server_mode_resend(session);
}

void client_engine_retry_soon(struct weft_session *session)
{
    struct client_engine *engine = &session->engine;
    if (!weft_timer_is_running(&engine->retry_timer))
        weft_timer_start(engine->loop, &engine->retry_timer, client_deadline(session, RETRY_NS));
}

/* ---- questions ---- */

static bool query_is_answered(void *context)
{
    struct client_engine_query *query = context;
    return atomic_load_explicit(&query->state, memory_order_acquire) == 2;
}

enum weft_status client_engine_query_run(struct weft_session *session, struct client_engine_query *query)
{
    uint64_t until_ns = client_deadline(session, WEFT_SECONDS(1));
    if (session->engine.is_halted) { /* nobody else steps: answer it here */
        query->session = session;
        query->command.fn(&query->command);
        atomic_store(&query->state, 0);
        return WEFT_OK;
    }
    if (atomic_load(&query->state) == 1 && client_wait_for(session, query_is_answered, query, until_ns) < 0)
        return WEFT_ERR_BUSY;
    query->session = session;
    atomic_store(&query->state, 1);
    weft_loop_post_lazy(session->engine.loop, &query->command);
    if (client_wait_for(session, query_is_answered, query, until_ns) < 0) return WEFT_ERR_BUSY;
    atomic_store(&query->state, 0);
    return WEFT_OK;
}

/* ---- life ---- */

static bool requests_are_open(void *context)
{
    struct weft_session *session = context;
    return atomic_load(&session->open_requests) > 0;
}

enum weft_status client_engine_create(struct weft_session *session, struct weft_error *error)
{
    struct client_engine *engine = &session->engine;
    weft_list_init(&engine->open_requests);
    weft_list_init(&engine->group_queue);
    weft_list_init(&engine->comms);
    weft_list_init(&engine->ended_ops);
    weft_list_init(&engine->send_queue);
    weft_list_init(&engine->work);
    weft_list_init(&engine->record_waiters);
    engine->work_mail.fn = run_work;
    weft_timer_init(&engine->deadline_timer, watch_deadlines);
    weft_timer_init(&engine->retry_timer, retry_sends);
    weft_timer_init(&engine->drain_timer, drain);
    weft_timer_init(&engine->suspicion_timer, suspicion_expired);
    weft_timer_init(&engine->leave_timer, finish_leave);
    enum weft_status status = weft_loop_create(session->env, NULL, &engine->loop);
    if (status == WEFT_OK) weft_loop_set_pending_check(engine->loop, requests_are_open, session);
    if (status == WEFT_OK)
        status = weft_event_ring_create(
            session->env, (uint32_t)weft_config_u64(session->settings.config, "events.capacity"),
            &engine->events);
    uint64_t operations = weft_config_u64(session->settings.config, "recorder.operations");
    if (status == WEFT_OK)
        status = weft_recorder_create(session->env, (uint32_t)operations, &engine->recorder);
    if (status < 0)
        return weft_error_set(error, status, "cannot make the engine: %s", weft_reason_text(status));
    return WEFT_OK;
}

enum weft_status client_engine_open(struct weft_session *session, uint64_t nonce, struct weft_error *error)
{
    struct client_engine *engine = &session->engine;
    const struct client_settings *settings = &session->settings;
    const char *wrap = weft_config_text(settings->config, "transport.wrap");
    struct weft_transport_options options;
    char backend[WEFT_TRANSPORT_BACKEND_BYTES_MAX];
    weft_transport_options_init(&options);
    if (weft_transport_options_wrap(&options, weft_config_text(settings->config, "transport.backend"), wrap,
                                    backend) < 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "the option transport.wrap is too long: '%.100s...'",
                              wrap);
    options.id = session->endpoint;
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
    client_server_mode_listen(session);
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
        if (endpoint == session->endpoint) continue;
        enum weft_status status = weft_transport_connect(
            session->engine.transport, endpoint, member->addresses[e].data, member->addresses[e].len, &peer);
        if (status < 0)
            return weft_error_set(error, status, "cannot connect to %.100s: %s%s", member->name,
                                  weft_reason_text(status), weft_transport_connect_hint(status));
        if (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD) lower_eager_bytes(&session->engine, peer);
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

static void describe_rank(void *context, uint32_t rank, char *out, size_t out_bytes)
{
    client_rank_name(context, rank, out, out_bytes);
}

static void describe_subject(void *context, uint32_t subject, char *out, size_t out_bytes)
{
    struct weft_session *session = context;
    if (subject & WEFT_SUBJECT_BATCH) return;
    const struct weft_tensor *tensor = client_engine_tensor(&session->engine, subject - 1);
    if (tensor) snprintf(out, out_bytes, "tensor '%.90s'", tensor->name);
    else snprintf(out, out_bytes, "a tensor that this rank has not declared");
}

void client_engine_group_options(struct weft_session *session, struct weft_group_options *options)
{
    weft_group_options_init(options);
    options->transport = session->engine.transport;
    options->loop = session->engine.loop;
    options->events = session->engine.events;
    options->recorder = session->engine.recorder;
    options->straggler_time = &session->engine.straggler_time;
    options->epoch = session->epoch;
    options->chunk_bytes = weft_config_u64(session->settings.config, "collective.chunk_bytes");
    options->inflight_max = (uint32_t)weft_config_u64(session->settings.config, "collective.inflight");
    options->keeps_affinity = !weft_config_bool(session->settings.config, "collective.move_threads");
    options->deadline_ns = session->settings.deadline_ns;
    /* The connections are needed by the next epoch, and whoever is lost the coordinator names: else the
     * job would end by a cut of seconds in which somebody else is lost. Less than what the others wait for
     * this rank as they agree. */
    if (session->is_elastic && options->release_timeout_ns < session->settings.deadline_ns / 2)
        options->release_timeout_ns = session->settings.deadline_ns / 2;
    options->ids_increase = true; /* comm.c says why */
}

enum weft_status client_engine_create_group(struct weft_session *session, struct weft_error *error)
{
    uint32_t *ids = weft_alloc_array(session->env, session->ranks, sizeof *ids);
    if (!ids)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a group of %u ranks", session->ranks);
    for (uint32_t i = 0; i < session->member_count; i++)
        if (!session->members[i].is_shard && session->members[i].index < session->ranks)
            ids[session->members[i].index] = session->members[i].endpoint_first;
    struct weft_group_options options;
    client_engine_group_options(session, &options);
    options.rank = session->rank;
    options.ranks = session->ranks;
    options.endpoint_ids = ids;
    options.hosts = &atomic_load(&session->engine.hosts)->plan;
    options.group_id = CLIENT_GROUP_ID;
    /* lost again: the coordinator says so; left in order: it may be needed no more */
    options.defers_peer_loss = session->is_elastic;
    options.retune = client_plans_retune(session);
    options.share = session->engine.group; /* NULL, or that of the epoch before */
    options.describe = describe_rank;
    options.describe_context = session;
    options.describe_subject = describe_subject;
    enum weft_status status = weft_group_create(session->env, &options, &session->engine.group, error);
    weft_free_bytes(session->env, ids);
    if (status < 0)
        return weft_error_set(error, status, "cannot make the group of all workers: %s",
                              weft_reason_text(status));
    client_plans_load(session);
    return WEFT_OK;
}

static void *engine_thread(void *context)
{
    struct client_engine *engine = context;
    weft_loop_run(engine->loop);
    return NULL;
}

/* In virtual time there is none. */
static int start_thread(struct client_engine *engine)
{
    struct weft_env *env = weft_loop_env(engine->loop);
    if (env->virtual_time) return env->virtual_time->run(env, engine->loop);
    return weft_thread_start(&engine->thread, "weft engine", engine_thread, engine);
}

/* Where calls are recorded to be repeated: two of each rank for each operation, so that none is gone
 * before its record. */
static enum weft_status record_lengths(struct weft_session *session, struct weft_error *error)
{
    if (!weft_config_text(session->settings.config, "recorder.calls")[0]) return WEFT_OK;
    const uint64_t operations = weft_config_u64(session->settings.config, "recorder.operations");
    if (weft_recorder_keep_lengths(session->engine.recorder, 2 * operations * session->ranks) == WEFT_OK)
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_NO_MEMORY,
                          "no memory for the lengths of %llu recorded operations of %u ranks",
                          (unsigned long long)operations, session->ranks);
}

enum weft_status client_engine_start(struct weft_session *session, const Weft__Control__Roster *roster,
                                     struct weft_error *error)
{
    struct client_engine *engine = &session->engine;
    WEFT_TRY(connect_members(session, roster, error));
    WEFT_TRY(record_lengths(session, error));
    WEFT_TRY(client_hosts_create(session, roster, error));
    memcpy(session->plans, session->settings.plans, sizeof session->plans); /* until weft_set_plan */
    WEFT_TRY(client_engine_create_group(session, error));
    client_fastpath_init(session);
    enum weft_status status = weft_transport_attach(engine->transport, engine->loop);
    if (status == WEFT_OK) status = weft_timer_start(engine->loop, &engine->deadline_timer,
                                                     client_deadline(session, session->settings.deadline_ns));
    if (status < 0)
        return weft_error_set(error, status, "cannot set up the engine's loop: %s", weft_reason_text(status));
    if (start_thread(engine) != 0)
        return weft_error_set(error, weft_limit_status("the engine", EAGAIN), "cannot start: %s",
                              weft_reason_text(WEFT_ERR_LIMIT));
    engine->thread_started = true;
    return WEFT_OK;
}

static bool stopped(void *context) { return weft_loop_is_stopped(context); }

/* Its loop has been told to stop, or somebody will tell it. */
static void join_thread(struct client_engine *engine)
{
    struct weft_env *env = weft_loop_env(engine->loop);
    if (env->virtual_time) {
        (void)env->virtual_time->wait(env, stopped, engine->loop, WEFT_NEVER);
        env->virtual_time->end(env, engine->loop);
    } else {
        pthread_join(engine->thread, NULL);
    }
    engine->thread_started = false;
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
    struct client_engine *engine = &session->engine;
    if (weft_loop_acquire(engine->loop, client_deadline(session, WEFT_MS(300))) < 0) return false;
    /* A request whose start is still a letter would never end. Read the letters, but move nothing: in a
     * failed engine what starts ends at once. A second halt finds those that were posted during the first. */
    if (!engine->failed) {
        engine->failed = client_failed(session);
        engine->failed_text = session->failure.text;
    }
    while (!weft_list_empty(&engine->work)) weft_list_remove(engine->work.next);
    weft_loop_compute_cancel_all(engine->loop); /* it reads and writes the callers' buffers */
    (void)client_fastpath_post_deferred(session);
    weft_loop_run_commands(engine->loop);
    end_requests(engine, engine->failed, engine->failed_text);
    bool first = !engine->is_halted;
    if (first) weft_loop_stop(engine->loop); /* before give: the thread sees it first and ends without
                                              * another step */
    weft_loop_release(engine->loop);
    engine->is_halted = true;
    if (first) weft_log(session->env, WEFT_LOG_WARN, "client", "the engine is halted: %s", why);
    return true;
}

bool client_engine_halt(struct weft_session *session)
{
    return client_engine_halt_because(session, "the transport did not let go of its buffers in time");
}

void client_engine_stop(struct weft_session *session, uint64_t until_ns)
{
    struct client_engine *engine = &session->engine;
    if (!engine->thread_started) return;
    if (engine->is_halted) {
        join_thread(engine);
        return;
    }
    /* The fail letter (posted before: the session is closed by now) runs first and closes the transport. */
    struct stopping stopping = {.command.fn = begin_stop, .engine = engine, .until_ns = until_ns};
    weft_timer_init(&stopping.timer, stop_when_drained);
    weft_loop_post(engine->loop, &stopping.command);
    join_thread(engine);
    weft_timer_stop(engine->loop, &stopping.timer);
    weft_loop_compute_cancel_all(engine->loop);
    client_comms_leave(session);
    if (engine->failed == WEFT_OK || engine->failed == WEFT_ERR_CLOSED) client_plans_save(session);
    weft_group_free(engine->group); /* ends what it still has, through the requests' own callbacks */
    engine->group = NULL;
    /* What the transport could not let go of in time: its buffers are ours no longer to promise. */
    end_requests(engine, WEFT_ERR_CLOSED, "weft_finalize closed the session");
}

/* What a halted engine leaves behind may still be read or written by a peer: it stays, and stays findable. */
static void leak_halted(struct weft_env *env, struct weft_transport *transport, struct weft_group *group,
                        struct client_hosts *hosts)
{
    static struct kept {
        struct weft_transport *transport;
        struct weft_group *group;
        struct client_hosts *hosts; /* which the group points into */
        struct kept *next;
    } *_Atomic all;
    struct kept *kept = weft_alloc_zero(env, sizeof *kept);
    if (!kept) return;
    *kept = (struct kept){transport, group, hosts, atomic_load(&all)};
    while (!atomic_compare_exchange_weak(&all, &kept->next, kept)) {}
}

void client_engine_free(struct weft_session *session)
{
    struct client_engine *engine = &session->engine;
    if (engine->is_halted) {
        leak_halted(session->env, engine->transport, engine->group, engine->hosts);
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, &engine->comms)
            leak_halted(session->env, engine->transport,
                        weft_container_of(node, struct weft_comm, engine_link)->group, NULL);
    } else {
        client_comms_leave(session);
        weft_group_free(engine->group);
        weft_transport_free(engine->transport); /* closes it too, when that was not done yet */
        client_hosts_free(session);
    }
    engine->hosts = NULL;
    weft_event_ring_free(engine->events);
    weft_recorder_free(engine->recorder);
    weft_loop_free(engine->loop);
    engine->group = NULL;
    engine->transport = NULL;
    engine->events = NULL;
    engine->recorder = NULL;
    engine->loop = NULL;
}
