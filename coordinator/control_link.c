/* control_link.c - see control_link.h. */
#include "coordinator/control_link.h"

#include <string.h>

#define RETRY_NS WEFT_MS(20)

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

static enum weft_status send_request(struct weft_control_link *link,
                                     const Weft__Control__Challenge *challenge)
{
    uint8_t proof[WEFT_PROOF_BYTES];
    Weft__Control__Resume request;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    struct weft_frame *frame;
    WEFT_TRY(weft_resume_request(&link->resume, link->secret, &challenge->nonce, link->next.nonce, proof,
                                 &request));
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
             weft_resume_accept(&link->resume, link->secret, link->next.nonce, message->resumed))
        take_connection(link, connection);
    else weft_net_close(connection);
    weft_control_free(link->env, message);
}

static void take_challenge(struct weft_control_link *link, struct weft_net_connection *connection,
                           const uint8_t *data, size_t bytes)
{
    Weft__Control__Control *message;
    enum weft_status status = weft_seal_challenge(&link->next.seal, data, bytes);
    if (status == WEFT_OK) status = weft_control_unpack(link->env, data, bytes, &message);
    if (status == WEFT_OK) {
        link->next.has_challenge = true;
        status = message->body_case == WEFT__CONTROL__CONTROL__BODY_CHALLENGE
                     ? send_request(link, message->challenge)
                     : WEFT_ERR_MALFORMED;
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

static void on_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                      const char *text)
{
    struct weft_control_link *link = context;
    if (connection == link->connection) {
        weft_control_link_closed(link, reason, text);
        return;
    }
    if (connection != link->next.connection) return;
    link->next.connection = NULL;
    if (reason == WEFT_ERR_UNREACHABLE || reason == WEFT_ERR_IO || !link->next.until_ns ||
        weft_net_timer_once(link->net, RETRY_NS, on_retry, link) < 0)
        end_lost(link);
}

static const struct weft_net_handler handler = {.frame = on_frame,
                                                .closed = on_closed,
                                                .frame_bytes_max = WEFT_LIMIT_FRAME_BYTES + WEFT_SEAL_BYTES,
                                                .refusal_ends = true};

static enum weft_status connect_again(struct weft_control_link *link)
{
    weft_nonce_draw(link->env, link->next.nonce);
    link->next.has_challenge = false;
    return weft_net_connect(link->net, link->host, link->port, &handler, link, link->next.until_ns,
                            &link->next.connection);
}

/* An attempt that is connected may wait for an answer: the network, or the coordinator, has stopped. */
static void on_limit(void *context)
{
    struct weft_control_link *link = context;
    if (link->next.until_ns && weft_now_ns(link->env) >= link->next.until_ns) end_lost(link);
}

void weft_control_link_closed(struct weft_control_link *link, enum weft_status reason, const char *text)
{
    const bool has_left = link->is_leaving && weft_list_empty(&link->resume.kept);
    link->connection = NULL;
    if (reason == WEFT_ERR_PEER_LOST && link->resume.is_possible && !has_left) {
        link->next.until_ns = weft_deadline_ns(weft_now_ns(link->env), link->resume.period_ns);
        if (weft_net_timer_once(link->net, link->resume.period_ns + WEFT_MS(1), on_limit, link) == WEFT_OK &&
            connect_again(link) == WEFT_OK)
            return;
    }
    end(link, reason, text);
}
