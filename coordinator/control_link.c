/* control_link.c - see control_link.h. */
#include "coordinator/control_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS WEFT_MS(20)
#define ATTEMPT_NS WEFT_MS(500) /* at one candidate: its host may not answer */

static enum weft_status connect_again(struct weft_control_link *link);

void weft_control_link_init(struct weft_control_link *link, struct weft_env *env)
{
    *link = (struct weft_control_link){.env = env};
    weft_resume_init(&link->resume, env);
}

void weft_control_link_fini(struct weft_control_link *link)
{
    if (!link->env) return;
    weft_seal_wipe(&link->seal);
    weft_seal_wipe(&link->next.seal);
    weft_resume_fini(&link->resume);
    weft_frame_release(link->declare);
    weft_frame_release(link->question);
    weft_frame_release(link->fetch);
    weft_frame_release(link->agreement);
    weft_free_bytes(link->env, link->candidates.all);
    link->declare = link->question = link->fetch = link->agreement = NULL;
    link->candidates.all = NULL;
    link->candidates.count = 0;
}

static void end(struct weft_control_link *link, enum weft_status reason, const char *text)
{
    link->next.until_ns = 0;
    if (link->next.connection) weft_net_close(link->next.connection);
    link->next.connection = NULL;
    link->ended(link->context, reason, text);
}

static void end_lost(struct weft_control_link *link)
{
    end(link, WEFT_ERR_PEER_LOST, "its process has ended, or no connection to it succeeds");
}

/* ---- requests that need an answer ---- */

static void hold(struct weft_frame **held, struct weft_frame *frame)
{
    weft_frame_release(*held);
    *held = frame;
    if (frame) frame->references++;
}

/* Kinds that another coordinator may not have received. It requests the other kinds itself. */
static bool stays(const struct weft_frame *frame)
{
    switch ((Weft__Control__Control__BodyCase)frame->kind) {
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT:
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE:
    case WEFT__CONTROL__CONTROL__BODY_WEIGHT_HASH:
    case WEFT__CONTROL__CONTROL__BODY_ABORT:
    case WEFT__CONTROL__CONTROL__BODY_LEAVE:
    case WEFT__CONTROL__CONTROL__BODY_CLOSE: return true;
    default: return false;
    }
}

static void restart(struct weft_control_link *link)
{
    weft_resume_restart(&link->resume, stays);
    if (link->declare) weft_resume_keep(&link->resume, link->declare);
    if (link->question) weft_resume_keep(&link->resume, link->question);
    if (link->fetch) weft_resume_keep(&link->resume, link->fetch);
    if (link->agreement) weft_resume_keep(&link->resume, link->agreement);
    link->reign = link->next.reign;
    link->is_replaced = true;
    if (link->next.target == 0) return;
    link->host = link->candidates.all[link->next.target - 1].host;
    link->port = link->candidates.all[link->next.target - 1].port;
}

static void hold_request(struct weft_control_link *link, struct weft_frame *frame)
{
    switch ((Weft__Control__Control__BodyCase)frame->kind) {
    case WEFT__CONTROL__CONTROL__BODY_DECLARE: hold(&link->declare, frame); break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH: hold(&link->fetch, frame); break;
    case WEFT__CONTROL__CONTROL__BODY_SHRINK:
    case WEFT__CONTROL__CONTROL__BODY_JOIN: hold(&link->agreement, frame); break;
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE:
        if (link->is_elastic) hold(&link->agreement, frame);
        break;
    default:
        if (frame->is_question) hold(&link->question, frame);
        break;
    }
}

/* Version 1 has no epoch in Resume. */
static void note_epoch(struct weft_control_link *link, uint32_t epoch)
{
    link->resume.epoch = link->wire_version > 1 ? epoch : 0;
}

/* Any Shrunk answers Shrink. A Shrunk with `last` answers Join: every worker has joined. */
static void note_shrunk(struct weft_control_link *link, const Weft__Control__Shrunk *shrunk)
{
    note_epoch(link, shrunk->epoch);
    if (!link->agreement || (link->agreement->kind == WEFT__CONTROL__CONTROL__BODY_JOIN && shrunk->last == 0))
        return;
    hold(&link->agreement, NULL);
}

static void note_freed(struct weft_control_link *link)
{
    if (link->agreement && link->agreement->kind == WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE)
        hold(&link->agreement, NULL);
}

/* ---- sending ---- */

static enum weft_status seal_and_send(void *context, struct weft_frame *frame)
{
    struct weft_control_link *link = context;
    size_t bytes = frame->bytes;
    WEFT_TRY(weft_seal_append(&link->seal, frame->data, &bytes));
    return weft_net_send(link->connection, frame->data, bytes);
}

enum weft_status weft_control_link_send_frame(struct weft_control_link *link, struct weft_frame *frame)
{
    if (!weft_control_link_is_open(link)) return WEFT_ERR_CLOSED;
    weft_resume_keep(&link->resume, frame);
    if (link->reign > 0) hold_request(link, frame);
    if (!link->connection) return WEFT_OK;
    const enum weft_status status = seal_and_send(link, frame);
    /* its end will be reported; the frame is kept */
    return status == WEFT_ERR_CLOSED && link->resume.is_possible ? WEFT_OK : status;
}

static enum weft_status send_hello(struct weft_control_link *link, struct weft_frame *frame, bool has_seal)
{
    if (!link->connection) return WEFT_ERR_CLOSED;
    WEFT_TRY(weft_net_send(link->connection, frame->data, frame->bytes));
    return has_seal ? weft_seal_start(&link->seal, WEFT_SEAL_MEMBER, link->secret, frame->data, frame->bytes)
                    : WEFT_OK;
}

enum weft_status weft_control_link_send(struct weft_control_link *link,
                                        const Weft__Control__Control *message)
{
    struct weft_frame *frame;
    enum weft_status status;
    if (!weft_control_link_is_open(link)) return WEFT_ERR_CLOSED;
    WEFT_TRY(weft_frame_pack(link->env, message, &frame));
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HELLO)
        status = send_hello(link, frame, message->hello->seals > 0);
    else if (message->body_case != WEFT__CONTROL__CONTROL__BODY_ACK)
        status = weft_control_link_send_frame(link, frame);
    else status = link->connection ? seal_and_send(link, frame) : WEFT_OK;
    weft_frame_release(frame);
    return status;
}

/* ---- receiving ---- */

void weft_control_link_challenged(struct weft_control_link *link, const Weft__Control__Challenge *challenge)
{
    link->reign = challenge->reign;
}

void weft_control_link_welcomed(struct weft_control_link *link, const Weft__Control__Welcome *welcome)
{
    weft_resume_begin(&link->resume, welcome);
    link->is_elastic = welcome->workers_min > 0;
    link->candidates.takeover_ns = link->resume.is_possible && link->reign > 0 ? welcome->takeover_ns : 0;
}

bool weft_control_address_parse(const char *text, struct weft_control_address *address_out)
{
    const char *colon = strrchr(text, ':');
    const bool is_v6 = text[0] == '[';
    const unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    const size_t bytes = colon ? (size_t)(colon - text) : 0;
    if (port == 0 || port > 65535 || bytes <= 2 * is_v6 || bytes - 2 * is_v6 >= sizeof address_out->host)
        return false;
    snprintf(address_out->host, sizeof address_out->host, "%.*s", (int)(bytes - 2 * is_v6), text + is_v6);
    address_out->port = (uint16_t)port;
    return true;
}

/* Without memory the session ends with its coordinator. */
static void take_candidates(struct weft_control_link *link, const Weft__Control__Roster *roster)
{
    if (link->candidates.takeover_ns == 0 || link->candidates.all || link->is_leaving) return;
    link->candidates.all = weft_alloc_array(link->env, roster->n_members, sizeof *link->candidates.all);
    for (size_t i = 0; link->candidates.all && i < roster->n_members; i++)
        link->candidates.count += weft_control_address_parse(roster->members[i]->candidate,
                                                             &link->candidates.all[link->candidates.count]);
}

static void note_answer(struct weft_control_link *link, const Weft__Control__Control *message)
{
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_ROSTER:
        link->wire_version = message->roster->wire_version ? message->roster->wire_version : 1;
        note_epoch(link, message->roster->epoch);
        take_candidates(link, message->roster);
        break;
    case WEFT__CONTROL__CONTROL__BODY_SHRUNK: note_shrunk(link, message->shrunk); break;
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE: note_freed(link); break;
    case WEFT__CONTROL__CONTROL__BODY_GO: link->resume.has_begun = true; break;
    case WEFT__CONTROL__CONTROL__BODY_DECLARED: hold(&link->declare, NULL); break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED: hold(&link->fetch, NULL); break;
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT:
        if (message->heartbeat->answer) hold(&link->question, NULL);
        break;
    default: break;
    }
}

static void close_if_acknowledged(struct weft_control_link *link)
{
    if (link->is_leaving && link->connection && weft_list_empty(&link->resume.kept))
        weft_net_close(link->connection);
}

bool weft_control_link_received(struct weft_control_link *link, const Weft__Control__Control *message,
                                size_t bytes, bool *is_valid_out)
{
    Weft__Control__Ack ack;
    Weft__Control__Control reply = WEFT__CONTROL__CONTROL__INIT;
    *is_valid_out = true;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_ACK) {
        *is_valid_out = weft_resume_acknowledge(&link->resume, message->ack->received);
        close_if_acknowledged(link);
        return false;
    }
    note_answer(link, message);
    if (!weft_resume_count(&link->resume, message, bytes)) return true;
    weft_resume_report(&link->resume, &ack);
    reply.body_case = WEFT__CONTROL__CONTROL__BODY_ACK;
    reply.ack = &ack;
    (void)weft_control_link_send(link, &reply); /* a later one has its number, too */
    return true;
}

/* ---- closing ---- */

static void end_replacement(void *context)
{
    struct weft_control_link *link = context;
    if (link->next.until_ns) end_lost(link);
}

static void send_close(struct weft_control_link *link)
{
    Weft__Control__Close close_body = WEFT__CONTROL__CLOSE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_CLOSE;
    message.close = &close_body;
    if (link->resume.is_possible) (void)weft_control_link_send(link, &message);
}

void weft_control_link_close(struct weft_control_link *link)
{
    if (link->connection) {
        send_close(link);
        weft_net_close(link->connection);
    } else if (link->next.until_ns && weft_net_timer_once(link->net, 0, end_replacement, link) < 0) {
        link->next.until_ns = 1; /* the next attempt finds the time over */
    }
}

void weft_control_link_leave(struct weft_control_link *link, bool has_left)
{
    if (!has_left && !link->is_leaving) send_close(link);
    link->is_leaving = true;
    if (!link->resume.is_possible) weft_control_link_close(link);
    else close_if_acknowledged(link);
}

/* ---- the handshake of the next connection ---- */

/* State of the session at the coordinator of the next connection. The copy keeps no frames. */
static struct weft_resume resume_of_next(const struct weft_control_link *link)
{
    struct weft_resume resume = link->resume;
    if (link->next.reign > link->reign) resume.sent = resume.acked = resume.received = 0;
    return resume;
}

/* For another coordinator the proof alone is checked. */
static bool accept(struct weft_control_link *link, const Weft__Control__Resumed *answer)
{
    struct weft_resume resume = resume_of_next(link);
    if (link->next.reign == link->reign)
        return weft_resume_accept(&link->resume, link->secret, link->next.nonce, answer);
    if (!weft_resume_accept(&resume, link->secret, link->next.nonce, answer)) return false;
    restart(link);
    return true;
}

static enum weft_status send_request(struct weft_control_link *link,
                                     const Weft__Control__Challenge *challenge)
{
    uint8_t proof[WEFT_PROOF_BYTES];
    Weft__Control__Resume request;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    struct weft_frame *frame;
    const struct weft_resume resume = resume_of_next(link);
    WEFT_TRY(
        weft_resume_request(&resume, link->secret, &challenge->nonce, link->next.nonce, proof, &request));
    message.body_case = WEFT__CONTROL__CONTROL__BODY_RESUME;
    message.resume = &request;
    WEFT_TRY(weft_frame_pack(link->env, &message, &frame));
    enum weft_status status = weft_net_send(link->next.connection, frame->data, frame->bytes);
    if (status == WEFT_OK)
        status = weft_seal_start(&link->next.seal, WEFT_SEAL_MEMBER, link->secret, frame->data, frame->bytes);
    weft_frame_release(frame);
    return status;
}

static void take_connection(struct weft_control_link *link, struct weft_net_connection *connection)
{
    link->connection = connection;
    link->seal = link->next.seal;
    link->next.connection = NULL;
    link->next.until_ns = 0;
    weft_log(link->env, WEFT_LOG_WARN, "member", "the control connection with %s:%u is up again", link->host,
             link->port);
    link->resumed(link->context);
    if (weft_resume_send_kept(&link->resume, seal_and_send, link) < 0) weft_net_close(connection);
    close_if_acknowledged(link);
}

/* The answer to Resume: Resumed with a MAC, or without one the refusal of this member (PEER_LOST). Otherwise
 * another attempt follows: the coordinator may have had no time or no place for this connection. */
static void take_answer(struct weft_control_link *link, struct weft_net_connection *connection,
                        const uint8_t *data, size_t bytes)
{
    Weft__Control__Control *message;
    const bool is_sealed = weft_seal_check(&link->next.seal, data, &bytes);
    if (weft_control_unpack(link->env, data, bytes, &message) != WEFT_OK) {
        weft_net_close(connection);
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_ABORT &&
        message->abort->status == WEFT_ERR_PEER_LOST)
        end(link, WEFT_ERR_ABORTED, message->abort->text);
    else if (is_sealed && message->body_case == WEFT__CONTROL__CONTROL__BODY_RESUMED &&
             accept(link, message->resumed))
        take_connection(link, connection);
    else weft_net_close(connection);
    weft_control_free(link->env, message);
}

/* Does this coordinator speak the wire version of the job? */
static bool speaks_job(const struct weft_control_link *link, const Weft__Control__Challenge *challenge)
{
    const struct weft_wire_range its = weft_wire_range_of_challenge(challenge);
    return link->wire_version == 0 || weft_wire_range_has(its, link->wire_version);
}

static void take_challenge(struct weft_control_link *link, struct weft_net_connection *connection,
                           const uint8_t *data, size_t bytes)
{
    Weft__Control__Control *message;
    enum weft_status status = weft_seal_challenge(&link->next.seal, data, bytes);
    if (status == WEFT_OK) status = weft_control_unpack(link->env, data, bytes, &message);
    if (status == WEFT_OK) {
        const bool is_challenge = message->body_case == WEFT__CONTROL__CONTROL__BODY_CHALLENGE;
        link->next.has_challenge = true;
        link->next.reign = is_challenge ? message->challenge->reign : 0;
        /* a lower one is that of a coordinator that was replaced */
        status = is_challenge && link->next.reign >= link->reign && speaks_job(link, message->challenge)
                     ? send_request(link, message->challenge)
                     : WEFT_ERR_STALE;
        weft_control_free(link->env, message);
    }
    if (status < 0) weft_net_close(connection);
}

/* ---- the next connection ---- */

static void on_frame(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes)
{
    struct weft_control_link *link = context;
    if (connection == link->connection) link->frame(link->context, data, bytes);
    else if (connection != link->next.connection) return; /* of an attempt that has ended */
    else if (link->next.has_challenge) take_answer(link, connection, data, bytes);
    else take_challenge(link, connection, data, bytes);
}

static void on_retry(void *context)
{
    struct weft_control_link *link = context;
    if (!link->next.until_ns || link->next.connection) return; /* resumed or ended meanwhile */
    if (weft_now_ns(link->env) >= link->next.until_ns || connect_again(link) < 0) end_lost(link);
}

/* This attempt has failed: the next one is at the next candidate. */
static void try_next(struct weft_control_link *link)
{
    link->next.connection = NULL;
    link->next.target = (link->next.target + 1) % (link->candidates.count + 1);
    if (!link->next.until_ns || weft_net_timer_once(link->net, RETRY_NS, on_retry, link) < 0) end_lost(link);
}

static void on_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                      const char *text)
{
    struct weft_control_link *link = context;
    if (connection == link->connection) {
        weft_control_link_closed(link, connection, reason, text);
        return;
    }
    if (connection != link->next.connection) return;
    const bool has_candidates = link->candidates.count > 0;
    const bool is_refused = reason == WEFT_ERR_UNREACHABLE && weft_now_ns(link->env) < link->next.limit_ns;
    if (reason == WEFT_ERR_IO || (reason == WEFT_ERR_UNREACHABLE && !has_candidates)) {
        link->next.connection = NULL;
        end_lost(link);
        return;
    }
    const bool is_coordinator = link->next.target == 0;
    try_next(link);
    if (is_refused && is_coordinator && link->refused) link->refused(link->context);
}

/* A process that is stopped accepts connections and does not answer. */
static void on_attempt_limit(void *context)
{
    struct weft_control_link *link = context;
    if (!link->next.connection || weft_now_ns(link->env) < link->next.limit_ns) return;
    weft_net_close(link->next.connection);
    try_next(link);
}

static const struct weft_net_handler handler = {.frame = on_frame,
                                                .closed = on_closed,
                                                .frame_bytes_max = WEFT_LIMIT_FRAME_BYTES + WEFT_SEAL_BYTES,
                                                .refusal_ends = true};

static enum weft_status connect_again(struct weft_control_link *link)
{
    const bool has_candidates = link->candidates.count > 0;
    const struct weft_control_address *candidate =
        link->next.target > 0 ? &link->candidates.all[link->next.target - 1] : NULL;
    const uint64_t limit_ns = weft_deadline_ns(weft_now_ns(link->env), ATTEMPT_NS);
    weft_nonce_draw(link->env, link->next.nonce);
    link->next.has_challenge = false;
    link->next.reign = 0;
    link->next.limit_ns = has_candidates && limit_ns < link->next.until_ns ? limit_ns : link->next.until_ns;
    WEFT_TRY(weft_net_connect(link->net, candidate ? candidate->host : link->host,
                              candidate ? candidate->port : link->port, &handler, link, link->next.limit_ns,
                              &link->next.connection));
    return has_candidates ? weft_net_timer_once(link->net, ATTEMPT_NS + WEFT_MS(1), on_attempt_limit, link)
                          : WEFT_OK;
}

/* An attempt that is connected may wait for an answer: the network, or the coordinator, has stopped. */
static void on_limit(void *context)
{
    struct weft_control_link *link = context;
    if (link->next.until_ns && weft_now_ns(link->env) >= link->next.until_ns) end_lost(link);
}

static bool begin_replacement(struct weft_control_link *link, uint32_t target)
{
    uint64_t period_ns = link->resume.period_ns;
    if (link->candidates.count > 0) period_ns += link->candidates.takeover_ns;
    link->next.until_ns = weft_deadline_ns(weft_now_ns(link->env), period_ns);
    link->next.target = target;
    return weft_net_timer_once(link->net, period_ns + WEFT_MS(1), on_limit, link) == WEFT_OK &&
           connect_again(link) == WEFT_OK;
}

void weft_control_link_closed(struct weft_control_link *link, struct weft_net_connection *connection,
                              enum weft_status reason, const char *text)
{
    const bool has_left = link->is_leaving && weft_list_empty(&link->resume.kept);
    if (link->has_abandoned && connection != link->connection) return;
    link->connection = NULL;
    if (reason == WEFT_ERR_PEER_LOST && link->resume.is_possible && !has_left && begin_replacement(link, 0))
        return;
    end(link, reason, text);
}

bool weft_control_link_replace(struct weft_control_link *link)
{
    if (link->candidates.count == 0 || !link->resume.is_possible || !link->connection) return false;
    link->has_abandoned = true;
    weft_net_close(link->connection);
    link->connection = NULL;
    if (!begin_replacement(link, 1)) end_lost(link);
    return true;
}
