/* control.c - the connection to the coordinator: a state machine on the net thread.
 *
 *     coordinator       Challenge      Welcome      Roster      Go      Declared ...  MemberLost / Abort
 *                          |              |           |         |          |                 |
 *     this side          Hello        Endpoints     Ready     (data)   Declare ...    the session fails
 *
 * The control link (coordinator/control_link.h) replaces a connection that the network has broken.
 * The net thread answers the Challenge. It stores the other messages for the caller's thread, which waits
 * in weft_init or weft_declare, or it ends the session. The caller and the engine pack their messages on
 * their own thread; the net thread only writes the bytes. Messages that were not sent are freed with the
 * session. Every received byte is untrusted until weft_control_unpack has checked it. This file checks
 * order and identity. */
#include "client/session/control.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/session/control/heartbeat.h"
#include "client/session/failure.h"
#include "client/session/flight.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/settings.h"
#include "client/session/topology.h"
#include "client/session/wait.h"

#define PROGRESS_NS WEFT_SECONDS(1)

struct outgoing {
    struct weft_command command;
    struct weft_list link; /* in control->outgoing until it is sent */
    struct weft_session *session;
    bool closes;              /* close the connection after the frame */
    struct weft_frame *frame; /* owned reference; NULL: only close */
};

static void set_phase(struct weft_session *session, enum client_phase phase)
{
    WEFT_ASSERT((int)phase >= atomic_load(&session->control.phase));
    atomic_store(&session->control.phase, phase);
    weft_loop_notify(session->loop);
}

/* ---- sending ---- */

const char *client_control_coordinator_name(const struct weft_session *session)
{
    if (session->control.link.is_replaced) return "the coordinator";
    if (session->control.roster) return session->control.roster->roster->coordinator;
    return session->settings.port_count > 0 ? "rank 0, which coordinates the job" : "the coordinator";
}

static void free_outgoing(struct weft_session *session, struct outgoing *outgoing)
{
    weft_frame_release(outgoing->frame);
    weft_free_bytes(session->env, outgoing);
}

static void send_outgoing(struct weft_command *command)
{
    struct outgoing *outgoing = weft_container_of(command, struct outgoing, command);
    struct weft_session *session = outgoing->session;
    struct client_control *control = &session->control;
    pthread_mutex_lock(&control->lock);
    weft_list_remove(&outgoing->link);
    pthread_mutex_unlock(&control->lock);
    if (outgoing->frame) /* on_ended reports an end */
        (void)weft_control_link_send_frame(&control->link, outgoing->frame);
    if (outgoing->closes) weft_control_link_leave(&control->link, outgoing->frame != NULL);
    free_outgoing(session, outgoing);
}

static enum weft_status post_outgoing(struct weft_session *session, const Weft__Control__Control *message,
                                      bool closes)
{
    struct client_control *control = &session->control;
    struct outgoing *outgoing = weft_alloc_zero(session->env, sizeof *outgoing);
    if (!outgoing) return WEFT_ERR_NO_MEMORY;
    if (message) {
        enum weft_status status = weft_frame_pack(session->env, message, &outgoing->frame);
        if (status < 0) {
            weft_free_bytes(session->env, outgoing);
            return status;
        }
    }
    outgoing->session = session;
    outgoing->closes = closes;
    outgoing->command.fn = send_outgoing;
    pthread_mutex_lock(&control->lock);
    weft_list_append(&control->outgoing, &outgoing->link);
    pthread_mutex_unlock(&control->lock);
    weft_net_post(control->net, &outgoing->command);
    return WEFT_OK;
}

enum weft_status client_control_send(struct weft_session *session, const Weft__Control__Control *message)
{
    return post_outgoing(session, message, false);
}

void client_control_send_abort(struct weft_session *session, enum weft_status status, const char *text)
{
    Weft__Control__Abort abort_body = WEFT__CONTROL__ABORT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    abort_body.status = status;
    abort_body.text = (char *)text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ABORT;
    message.abort = &abort_body;
    /* the coordinator has not accepted this worker */
    if (client_control_phase(&session->control) < CLIENT_WELCOME) return;
    if (post_outgoing(session, &message, false) < 0)
        weft_log(session->env, WEFT_LOG_WARN, "client", "the coordinator does not receive the failure: %s",
                 text);
}

void client_control_send_now(struct weft_session *session, const Weft__Control__Control *message)
{
    const enum weft_status status = weft_control_link_send(&session->control.link, message);
    if (status < 0 && status != WEFT_ERR_CLOSED)
        client_fail(session, status, false, "cannot send to the coordinator at %s:%u: %s",
                    session->settings.host, session->settings.port, weft_reason_text(status));
}

void client_control_send_hash(struct weft_session *session, uint32_t tensor, uint64_t step, uint32_t endpoint,
                              uint64_t hash)
{
    Weft__Control__WeightHash body = WEFT__CONTROL__WEIGHT_HASH__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    body.tensor = tensor;
    body.step = step;
    body.hash = hash;
    body.worker = session->rank;
    body.home = endpoint + 1;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_WEIGHT_HASH;
    message.weight_hash = &body;
    client_control_send_now(session, &message);
}

/* ---- receiving ---- */

static void take_challenge(struct weft_session *session, const Weft__Control__Challenge *challenge)
{
    struct client_control *control = &session->control;
    const struct client_settings *settings = &session->settings;
    char own_text[WEFT_WIRE_RANGE_TEXT_BYTES], text[WEFT_WIRE_RANGE_TEXT_BYTES];
    const struct weft_wire_range own = weft_wire_range_own(settings->wire_newest),
                                 its = weft_wire_range_of_challenge(challenge);
    if (weft_wire_range_common(own, its) == 0) {
        client_fail(session, WEFT_ERR_VERSION, false,
                    "the coordinator at %s:%u (weft %s) speaks wire version %s and this library (weft %s) "
                    "version %s; use releases that are at most one wire version apart",
                    settings->host, settings->port, challenge->weft_version, weft_wire_range_text(its, text),
                    weft_version(), weft_wire_range_text(own, own_text));
        return;
    }
    if (settings->secret && challenge->auth_required && challenge->seals < WEFT_SEAL_VERSION) {
        client_fail(session, WEFT_ERR_VERSION, false,
                    "the coordinator at %s:%u (weft %s) does not authenticate its control frames, as a job "
                    "with a secret requires (weft %s here): use the same release on both sides",
                    settings->host, settings->port, challenge->weft_version, weft_version());
        return;
    }
    uint8_t proof[WEFT_PROOF_BYTES], process[WEFT_PROCESS_IDENTITY_BYTES];
    Weft__Control__Hello hello = WEFT__CONTROL__HELLO__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    weft_control_link_challenged(&control->link, challenge);
    weft_wire_range_hello(own, weft_wire_range_common(own, its), &hello);
    hello.weft_version = (char *)weft_version();
    hello.job = (char *)settings->job;
    hello.role = WEFT__CONTROL__ROLE__ROLE_WORKER;
    hello.name = control->name;
    hello.wanted_index = settings->rank;
    hello.host = control->host;
    hello.device = weft_memory_device_in_use();
    hello.pid = (uint64_t)session->live.pid;
    hello.nonce.data = control->nonce;
    hello.nonce.len = sizeof control->nonce;
    hello.endpoints = 1;
    hello.progress = hello.slots = hello.chunk_runs = hello.resume = hello.snapshots = hello.takeovers = true;
    hello.additions = true;
    hello.deadline_ms = (settings->deadline_ns + WEFT_MS(1) - 1) / WEFT_MS(1);
    hello.process.data = process;
    hello.process.len = weft_process_identity_own(session->env, process);
    hello.seals = challenge->seals < WEFT_SEAL_VERSION ? 0 : WEFT_SEAL_VERSION;
    if (challenge->auth_required) {
        if (!settings->secret) {
            client_fail(session, WEFT_ERR_AUTH, false,
                        "the job '%s' at %s:%u wants a secret; set WEFT_SECRET or WEFT_SECRET_FILE as on its "
                        "other processes",
                        settings->job, settings->host, settings->port);
            return;
        }
        enum weft_status status = weft_proof_make(settings->secret, WEFT_PROOF_JOIN, challenge->nonce.data,
                                                  settings->job, control->name, proof);
        if (status < 0) {
            client_fail(session, status, false, "cannot make the proof of the job's secret: %s",
                        weft_reason_text(status));
            return;
        }
        hello.proof.data = proof;
        hello.proof.len = sizeof proof;
    }
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HELLO;
    message.hello = &hello;
    client_control_send_now(session, &message);
    set_phase(session, CLIENT_HELLO_SENT);
}

/* This side has a secret. The coordinator must prove that it knows the secret: another process may listen
 * on its port. */
static bool welcome_is_genuine(struct weft_session *session, const Weft__Control__Welcome *welcome)
{
    uint8_t wanted[WEFT_PROOF_BYTES];
    if (!session->settings.secret) return true;
    return weft_proof_make(session->settings.secret, WEFT_PROOF_WELCOME, session->control.nonce,
                           session->settings.job, session->control.name, wanted) == WEFT_OK &&
           weft_proof_check(welcome->proof.data, welcome->proof.len, wanted);
}

static void take_welcome(struct weft_session *session, const Weft__Control__Welcome *welcome)
{
    if (!welcome_is_genuine(session, welcome)) {
        client_fail(
            session, WEFT_ERR_AUTH, false,
            "the coordinator at %s:%u has another secret of job '%s'; check WEFT_SECRET on its side",
            session->settings.host, session->settings.port, session->settings.job);
        return;
    }
    if (welcome->index >= welcome->workers) {
        client_fail(session, WEFT_ERR_MALFORMED, false,
                    "the coordinator at %s:%u assigned rank %u of %u workers", session->settings.host,
                    session->settings.port, welcome->index, welcome->workers);
        return;
    }
    weft_control_link_welcomed(&session->control.link, welcome);
    session->control.copies = welcome->copies;
    uint64_t period_ns = welcome->heartbeat_ns / 4;
    if (welcome->silence_ns > 0 && period_ns > welcome->silence_ns / 4) period_ns = welcome->silence_ns / 4;
    if (period_ns < WEFT_MS(50)) period_ns = WEFT_MS(50);
    if (period_ns > WEFT_SECONDS(10)) period_ns = WEFT_SECONDS(10);
    weft_silence_start(&session->control.silence, weft_control_silence_limit_ns(welcome), period_ns,
                       weft_now_ns(session->env));
    enum weft_status status =
        weft_net_timer_periodic(session->control.net, period_ns, client_heartbeat_periodic, session);
    uint64_t report_ns = session->settings.report_period_ns;
    if (report_ns > 0 && report_ns < WEFT_MS(50)) report_ns = WEFT_MS(50);
    if (status == WEFT_OK && report_ns > 0)
        status = weft_net_timer_periodic(session->control.net, report_ns, client_heartbeat_request_report,
                                         session);
    if (status == WEFT_OK)
        status = weft_net_timer_periodic(session->control.net, PROGRESS_NS, client_heartbeat_check_progress,
                                         session);
    if (status < 0)
        client_fail(session, status, true, "no timer for heartbeats: %s", weft_reason_text(status));
}

/* Marks the member in the newest table. The engine may install another table meanwhile; it copies the
 * marks of the previous table once. */
static const struct client_member *mark_lost(struct weft_session *session, uint32_t number)
{
    const struct client_member *table;
    struct client_member *member;
    do {
        table = session->membership.members;
        member = client_member_of_number(session, number);
        if (member) atomic_store(&member->is_lost, true);
    } while (table != session->membership.members);
    return member;
}

static void take_member_lost(struct weft_session *session, const Weft__Control__MemberLost *lost)
{
    const struct client_member *member = mark_lost(session, lost->member);
    if (lost->epoch > 0 && session->membership.is_elastic) {
        session->ops.epoch_ends(session, lost->epoch, lost->text);
        return;
    }
    client_fail(session, WEFT_ERR_PEER_LOST, false, "lost %s: %s",
                member ? member->name : "a process of the job", lost->text);
}

/* Keeps a Map or ShardAdded for the engine. false: no memory, and the session has failed. */
static bool store_map(struct weft_session *session, Weft__Control__Control *message)
{
    struct client_control *control = &session->control;
    struct client_map_message *entry = weft_alloc_zero(session->env, sizeof *entry);
    if (!entry) {
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory for the map of the shards",
                    session->rank);
        return false;
    }
    entry->message = message;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_MAP && message->map->lost > 0)
        (void)mark_lost(session, message->map->lost - 1);
    pthread_mutex_lock(&control->lock);
    struct client_map_message **link = &control->maps;
    while (*link) link = &(*link)->next;
    *link = entry;
    pthread_mutex_unlock(&control->lock);
    session->ops.map_arrived(session);
    return true;
}

void client_map_messages_free(struct weft_session *session, struct client_map_message *messages)
{
    while (messages) {
        struct client_map_message *next = messages->next;
        weft_control_free(session->env, messages->message);
        weft_free_bytes(session->env, messages);
        messages = next;
    }
}

static void take_abort(struct weft_session *session, const Weft__Control__Abort *body)
{
    enum weft_status status = (enum weft_status)body->status;
    if (body->status >= 0 || body->status < -99) status = WEFT_ERR_ABORTED;
    client_fail(session, status, false, "%s",
                body->text[0] ? body->text : "the job was aborted without a reason");
}

/* Stores a message for the caller's thread. Returns true if `slot` was empty; control then owns the
 * message. */
static bool store_message(struct weft_session *session, Weft__Control__Control **slot,
                          Weft__Control__Control *message)
{
    struct client_control *control = &session->control;
    pthread_mutex_lock(&control->lock);
    bool is_free = *slot == NULL;
    if (is_free) *slot = message;
    pthread_mutex_unlock(&control->lock);
    if (is_free) weft_loop_notify(session->loop);
    return is_free;
}

static void fail_out_of_order(struct weft_session *session)
{
    client_fail(session, WEFT_ERR_MALFORMED, true, "the coordinator at %s:%u sent a message out of order",
                session->settings.host, session->settings.port);
}

/* Keeps the newcomers of every Shrunk message: a later epoch may need their addresses. */
static bool store_newcomers(struct weft_session *session, Weft__Control__Control *message)
{
    if (message->shrunk->n_newcomers == 0) return true;
    struct client_newcomer_message *newcomer = weft_alloc_zero(session->env, sizeof *newcomer);
    if (!newcomer) {
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory for new members", session->rank);
        return false;
    }
    newcomer->message = message;
    pthread_mutex_lock(&session->control.lock);
    newcomer->next = session->membership.newcomer_messages;
    session->membership.newcomer_messages = newcomer;
    pthread_mutex_unlock(&session->control.lock);
    return true;
}

/* Returns true if the session owns the message now. */
static bool dispatch(struct weft_session *session, Weft__Control__Control *message)
{
    struct client_control *control = &session->control;
    enum client_phase phase = client_control_phase(control);
    bool kept = false;
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_CHALLENGE:
        if (phase != CLIENT_CONNECTING) break;
        take_challenge(session, message->challenge);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_WELCOME:
        if (phase != CLIENT_HELLO_SENT) break;
        take_welcome(session, message->welcome);
        if (client_failed(session) < 0) return false;
        kept = store_message(session, &control->welcome, message);
        if (kept) set_phase(session, CLIENT_WELCOME);
        return kept;
    case WEFT__CONTROL__CONTROL__BODY_ROSTER:
        if (phase != CLIENT_WELCOME) break;
        kept = store_message(session, &control->roster, message);
        if (kept) set_phase(session, CLIENT_ROSTER);
        return kept;
    case WEFT__CONTROL__CONTROL__BODY_GO:
        if (phase != CLIENT_ROSTER) break;
        if (message->go->cost && client_link_cost_set(session, message->go->cost) < 0) {
            client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory for the links of the job",
                        session->rank);
            return false;
        }
        control->committed = message->go->committed;
        control->codec_steps = message->go->codec_steps;
        control->tensors = message->go->tensors;
        control->parts = message->go->parts;
        set_phase(session, CLIENT_GO);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_DECLARED:
        if (phase != CLIENT_GO) break;
        kept = store_message(session, &control->declared, message);
        if (!kept) break;
        return true;
    case WEFT__CONTROL__CONTROL__BODY_SHRUNK:
        if (phase != CLIENT_GO || !session->membership.is_elastic) break;
        if (!store_newcomers(session, message)) return false;
        /* the other ranks have agreed on the epoch */
        session->ops.epoch_ends(session, message->shrunk->epoch,
                                "new workers have joined while this rank rests");
        pthread_mutex_lock(&control->lock);
        if (message->shrunk->last > 0) atomic_store(&session->epoch_change.others_rest, false);
        Weft__Control__Control *older = control->shrunk;
        control->shrunk = message;
        pthread_mutex_unlock(&control->lock);
        client_shrunk_release(session, older);
        weft_loop_notify(session->loop);
        return true;
    case WEFT__CONTROL__CONTROL__BODY_JOINED:
        if (phase < CLIENT_ROSTER || !session->membership.is_elastic) break;
        atomic_store(&session->epoch_change.others_rest, true);
        session->ops.epoch_ends(session, message->joined->epoch, message->joined->text);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE:
        if (phase != CLIENT_GO || !session->membership.is_elastic) break;
        atomic_store(&control->freed_tensor, message->tensor_free->tensor + 1);
        weft_loop_notify(session->loop);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_GROW:
        if (phase < CLIENT_ROSTER || !session->membership.is_elastic) break;
        session->ops.newcomer_waits(session, message->grow->epoch, message->grow->text);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_MAP:
    case WEFT__CONTROL__CONTROL__BODY_SHARD_ADDED:
        if (phase < CLIENT_ROSTER || control->copies == 0) break;
        return store_map(session, message);
    case WEFT__CONTROL__CONTROL__BODY_SNAP:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_WANTED:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED:
        if (phase != CLIENT_GO) break;
        return session->ops.snapshot_message(session, message);
    case WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST:
        take_member_lost(session, message->member_lost);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_ABORT:
        take_abort(session, message->abort);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT:
        if (message->heartbeat->ask || message->heartbeat->ask_progress)
            client_heartbeat_send(session, message->heartbeat->ask);
        if (message->heartbeat->answer) session->ops.all_alive(session);
        if (message->heartbeat->wait_reason) client_heartbeat_wait_reason(session, message->heartbeat->text);
        return false;
    case WEFT__CONTROL__CONTROL__BODY_FINISHED:
        return false;
    default:
        break;
    }
    fail_out_of_order(session);
    return false;
}

static void on_opened(void *context, struct weft_net_connection *connection)
{
    struct weft_session *session = context;
    session->control.link.connection = connection; /* the coordinator sends the Challenge first */
    atomic_store(&session->control.is_connected, true);
}

/* false: the frame is not the coordinator's next one, and the session has failed. A refusal has no MAC: a
 * member with another secret must be able to read it. */
static bool take_seal(struct weft_session *session, const uint8_t *data, size_t *bytes)
{
    struct client_control *control = &session->control;
    const struct client_settings *settings = &session->settings;
    if (client_control_phase(control) == CLIENT_CONNECTING) { /* the Challenge */
        const enum weft_status status = weft_seal_challenge(&control->link.seal, data, *bytes);
        if (status < 0)
            client_fail(session, status, false, "no memory for the key of the control connection");
        return status == WEFT_OK;
    }
    if (weft_seal_check(&control->link.seal, data, bytes)) return true;
    if (client_control_phase(control) > CLIENT_HELLO_SENT)
        client_fail(session, WEFT_ERR_PEER_LOST, false, "lost %s at %s:%u: %s",
                    client_control_coordinator_name(session), settings->host, settings->port,
                    WEFT_SEAL_BROKEN_TEXT);
    else if (weft_control_is_refusal(session->env, data, *bytes)) return true;
    else
        client_fail(session, WEFT_ERR_AUTH, false,
                    "the coordinator at %s:%u has another secret of job '%s', or its answer was "
                    "changed on the way; check WEFT_SECRET on its side",
                    settings->host, settings->port, settings->job);
    weft_control_link_close(&session->control.link);
    return false;
}

static void take_frame(void *context, const uint8_t *data, size_t bytes)
{
    struct weft_session *session = context;
    Weft__Control__Control *message;
    if (!take_seal(session, data, &bytes)) return;
    weft_silence_received(&session->control.silence, weft_now_ns(session->env));
    enum weft_status status = weft_control_unpack(session->env, data, bytes, &message);
    if (status < 0) {
        client_fail(session, status, false, "the process at %s:%u does not speak weft's control protocol: %s",
                    session->settings.host, session->settings.port, weft_reason_text(status));
        return;
    }
    struct weft_control_link *link = &session->control.link;
    bool is_valid;
    const bool is_for_session = weft_control_link_received(link, message, bytes, &is_valid);
    if (!is_valid) fail_out_of_order(session);
    if (!is_for_session || link->is_leaving || !dispatch(session, message))
        weft_control_free(session->env, message);
}

static void on_frame(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes)
{
    take_frame(context, data, bytes);
}

static void on_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                      const char *text)
{
    struct weft_session *session = context;
    weft_control_link_closed(&session->control.link, connection, reason, text);
}

static void on_resumed(void *context)
{
    struct weft_session *session = context;
    weft_silence_received(&session->control.silence, weft_now_ns(session->env));
}

/* The connection has ended and is not replaced. */
static void on_ended(void *context, enum weft_status reason, const char *text)
{
    struct weft_session *session = context;
    const struct weft_control_link *link =
        &session->control.link; /* its address: another may coordinate now */
    if (atomic_load(&session->control.leaving)) {
        /* this side closed it */
    } else if (reason == WEFT_ERR_IO) { /* an error of this process, not of the coordinator */
        client_fail(session, WEFT_ERR_IO, false, "rank %u: %s", session->rank, text);
    } else if (client_control_phase(&session->control) == CLIENT_CONNECTING) {
        client_fail(session, WEFT_ERR_UNREACHABLE, false, "cannot reach the coordinator at %s:%u: %s",
                    link->host, link->port, text);
    } else if (reason == WEFT_ERR_ABORTED) { /* it has refused to resume */
        client_fail(session, WEFT_ERR_PEER_LOST, false, "lost %s at %s:%u: %s",
                    client_control_coordinator_name(session), link->host, link->port, text);
    } else if (session->control.roster) {
        client_fail(session, WEFT_ERR_PEER_LOST, false, "lost %s: the control connection with %s:%u closed",
                    client_control_coordinator_name(session), link->host, link->port);
    } else {
        client_fail(session, WEFT_ERR_PEER_LOST, false, "lost %s at %s:%u: %s",
                    client_control_coordinator_name(session), link->host, link->port, text);
    }
    set_phase(session, CLIENT_ENDED);
}

static const struct weft_net_handler handler = {.opened = on_opened,
                                                .frame = on_frame,
                                                .closed = on_closed,
                                                .frame_bytes_max = WEFT_LIMIT_FRAME_BYTES + WEFT_SEAL_BYTES};

/* ---- life ---- */

static void link_init(struct weft_session *session)
{
    struct weft_control_link *link = &session->control.link;
    weft_control_link_init(link, session->env);
    link->net = session->control.net;
    link->secret = session->settings.secret;
    link->host = session->settings.host;
    link->port = session->settings.port;
    link->frame = take_frame;
    link->resumed = on_resumed;
    link->ended = on_ended;
    link->context = session;
}

enum weft_status client_control_start(struct weft_session *session, struct weft_error *error)
{
    struct client_control *control = &session->control;
    struct weft_net_connection *connection;
    const char *named = weft_config_text(session->settings.config, "client.host");
    if (named[0]) snprintf(control->host, sizeof control->host, "%s", named);
    else if (gethostname(control->host, sizeof control->host) != 0)
        snprintf(control->host, sizeof control->host, "unknown host");
    control->host[sizeof control->host - 1] = 0;
    if (session->settings.rank >= 0)
        snprintf(control->name, sizeof control->name, "rank %d (%s, pid %ld)", session->settings.rank,
                 control->host, (long)session->live.pid);
    else
        snprintf(control->name, sizeof control->name, "worker (%s, pid %ld)", control->host,
                 (long)session->live.pid);
    weft_nonce_draw(session->env, control->nonce);
    enum weft_status status = weft_net_create(session->env, &control->net);
    if (status < 0)
        return weft_error_set(error, status, "cannot set up the control connection: %s",
                              weft_reason_text(status));
    link_init(session);
    /* Before the deadline of weft_init, so that the error has the reason of the last failed connection. */
    const uint64_t connect_ns = session->settings.deadline_ns - session->settings.deadline_ns / 16;
    status = weft_net_connect(control->net, session->settings.host, session->settings.port, &handler, session,
                              client_deadline(session, connect_ns), &connection);
    if (status == WEFT_OK) WEFT_TRY(client_flight_signal_start(session, error));
    if (status == WEFT_OK) status = weft_net_start(control->net);
    if (status < 0)
        return weft_error_set(error, status, "cannot connect to the coordinator at %s:%u: %s",
                              session->settings.host, session->settings.port, weft_reason_text(status));
    return WEFT_OK;
}

static bool connection_ended(void *context)
{
    struct client_control *control = context;
    return client_control_phase(control) == CLIENT_ENDED;
}

void client_control_leave(struct weft_session *session, uint64_t until_ns)
{
    struct client_control *control = &session->control;
    Weft__Control__Leave leave = WEFT__CONTROL__LEAVE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_LEAVE;
    message.leave = &leave;
    leave.text = (char *)"done";
    /* the other ranks may be agreeing on the last good step */
    leave.committed = session->step.number - session->step.open;
    enum client_phase phase = client_control_phase(control);
    atomic_store(&control->leaving, true);
    if (phase == CLIENT_ENDED || phase == CLIENT_CONNECTING) return; /* no connection */
    /* A failed session only closes: the coordinator knows the reason. */
    const bool sends_leave = client_failed(session) == WEFT_OK;
    if (post_outgoing(session, sends_leave ? &message : NULL, true) < 0) return;
    if (client_wait_for(session, connection_ended, control, until_ns) < 0 && sends_leave)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "rank %u leaves, and the coordinator at %s:%u has not acknowledged that: other ranks may "
                 "treat it as lost%s",
                 session->rank, session->settings.host, session->settings.port,
                 session->membership.is_elastic ? ", and run its last step again without it" : "");
}

void client_control_stop(struct weft_session *session)
{
    struct client_control *control = &session->control;
    const enum client_phase phase = client_control_phase(control);
    atomic_store(&control->leaving, true);
    if (phase >= CLIENT_WELCOME && phase < CLIENT_ENDED) (void)post_outgoing(session, NULL, true);
    weft_net_free(control->net);
    control->net = NULL;
    weft_control_link_fini(&control->link);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &control->outgoing) {
        struct outgoing *outgoing = weft_container_of(node, struct outgoing, link);
        weft_list_remove(node);
        free_outgoing(session, outgoing);
    }
    if (control->welcome) weft_control_free(session->env, control->welcome);
    if (control->roster) weft_control_free(session->env, control->roster);
    if (control->declared) weft_control_free(session->env, control->declared);
    client_map_messages_free(session, control->maps);
    control->maps = NULL;
    client_shrunk_release(session, control->shrunk);
    client_shrunk_release(session, session->epoch_change.shrunk_message);
    control->shrunk = session->epoch_change.shrunk_message = NULL;
    control->welcome = control->roster = control->declared = NULL;
}
