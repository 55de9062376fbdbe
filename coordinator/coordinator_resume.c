/* coordinator_resume.c - a member's connection outlives its socket: suspended, then resumed or lost.
 *
 *     socket ended by the peer or the network
 *        | process dead, member has left or closed on purpose          -> lost at once
 *        | else suspended: frames to the member are kept
 *              | Resume with a valid proof                             -> the new socket, kept frames again
 *              | its process dies                                      -> lost
 *              | another member has lost a data connection, too        -> lost after SUSPECTED_NS
 *              | resume_ns                                             -> lost
 *
 * A process that dies and a connection that is cut end a socket by the same FIN or RST. The kernel decides on
 * the coordinator's host (base/os/process_identity.h). For other hosts the second evidence is a liveness
 * request: a worker sends it when a data connection has ended, too. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_net.h"
#include "coordinator/takeover/records.h"

#define CHECK_NS WEFT_MS(50)
#define SUSPECTED_NS WEFT_MS(300) /* a live member that the network has cut is back within a round trip */

static bool is_suspended(const struct server_connection *connection)
{
    return !connection->net && connection->is_welcomed;
}

/* ---- suspended connections ---- */

/* Why a suspended connection ends now; NULL: it waits. */
static const char *reason_to_end(const struct server_connection *connection, uint64_t now_ns)
{
    const struct weft_coordinator_server *server = connection->server;
    const uint64_t resume_ns = server->coordinator->options.resume_ns;
    const uint64_t limit_ns = connection->is_suspected && resume_ns > SUSPECTED_NS ? SUSPECTED_NS : resume_ns;
    const bool is_late = weft_elapsed_ns(connection->suspended_ns, now_ns) >= limit_ns;
    const bool can_resume = connection->resume.is_possible && !connection->is_final;
    if (is_late || !can_resume) return connection->why;
    const bool is_dead = weft_process_state(server->env, &connection->process) == WEFT_PROCESS_DEAD;
    return is_dead ? connection->why : NULL;
}

static void start_checks(struct weft_coordinator_server *server);

static void check_suspended(void *context)
{
    struct weft_coordinator_server *server = context;
    const uint64_t now_ns = weft_now_ns(server->env);
    bool any = false;
    server->checks_suspended = false;
    if (coordinator_records_is_fenced(server->coordinator)) return; /* the next event closes all */
    for (size_t i = server->connection_count; i-- > 0;) { /* an end may end further connections */
        if (i >= server->connection_count || server->connections[i]->net) continue;
        struct server_connection *connection = server->connections[i];
        const char *why = reason_to_end(connection, now_ns);
        any |= !why;
        if (!why) continue;
        char text[sizeof connection->why];
        snprintf(text, sizeof text, "%s", why);
        coordinator_server_remove(connection, text);
    }
    if (any) start_checks(server);
}

static void start_checks(struct weft_coordinator_server *server)
{
    if (server->checks_suspended || server->is_replaced) return;
    server->checks_suspended = weft_net_timer_once(server->net, CHECK_NS, check_suspended, server) == WEFT_OK;
}

static bool is_unknown(const struct server_connection *connection)
{
    return weft_process_state(connection->server->env, &connection->process) == WEFT_PROCESS_UNKNOWN;
}

/* A worker has lost a data connection: a member whose control connection has ended, too, may be dead. */
static void suspect_suspended(struct weft_coordinator_server *server)
{
    server->asked_ns = weft_now_ns(server->env);
    for (size_t i = 0; i < server->connection_count; i++) {
        struct server_connection *connection = server->connections[i];
        connection->is_suspected |= is_suspended(connection) && is_unknown(connection);
    }
}

bool coordinator_resume_watch(struct weft_coordinator_server *server)
{
    start_checks(server);
    return server->checks_suspended;
}

bool coordinator_resume_suspend(struct server_connection *connection, const char *why)
{
    struct weft_coordinator_server *server = connection->server;
    snprintf(connection->why, sizeof connection->why, "%s", why);
    connection->suspended_ns = weft_now_ns(server->env);
    /* the worker's request may be faster than the end of this connection */
    connection->is_suspected = server->asked_ns > 0 &&
                               weft_elapsed_ns(server->asked_ns, connection->suspended_ns) < SUSPECTED_NS &&
                               is_unknown(connection);
    if (reason_to_end(connection, connection->suspended_ns)) return false;
    start_checks(server);
    if (!server->checks_suspended) return false;
    weft_log(server->env, WEFT_LOG_WARN, "coordinator",
             "the control connection with member %u has ended; it may resume within %.1f s",
             connection->resume.member, (double)server->coordinator->options.resume_ns / 1e9);
    return true;
}

void coordinator_resume_drop(struct server_connection *connection, const char *why)
{
    if (why != connection->why) snprintf(connection->why, sizeof connection->why, "%s", why);
    connection->is_final = true;
    start_checks(connection->server);
}

/* ---- frames ---- */

bool coordinator_resume_received(struct server_connection *connection, const Weft__Control__Control *message,
                                 size_t bytes)
{
    struct weft_coordinator_server *server = connection->server;
    connection->is_final |= message->body_case == WEFT__CONTROL__CONTROL__BODY_LEAVE ||
                            message->body_case == WEFT__CONTROL__CONTROL__BODY_CLOSE;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HEARTBEAT && message->heartbeat->ask)
        suspect_suspended(server);
    return weft_resume_count(&connection->resume, message, bytes);
}

void coordinator_resume_acknowledge(struct weft_coordinator_server *server, uint64_t id)
{
    struct server_connection *connection = coordinator_server_find(server, id);
    Weft__Control__Ack ack;
    if (!connection || !coordinator_records_commit(server->coordinator)) return;
    Weft__Control__Control reply = WEFT__CONTROL__CONTROL__INIT;
    weft_resume_report(&connection->resume, &ack);
    reply.body_case = WEFT__CONTROL__CONTROL__BODY_ACK;
    reply.ack = &ack;
    coordinator_server_send(server, connection->id, &reply);
}

/* ---- Resume ---- */

static struct server_connection *find_session(const struct server_connection *newcomer,
                                              const Weft__Control__Resume *request)
{
    const struct weft_coordinator_server *server = newcomer->server;
    for (size_t i = 0; i < server->connection_count; i++) {
        struct server_connection *connection = server->connections[i];
        if (connection != newcomer && connection->is_welcomed && !connection->is_final &&
            weft_resume_check(&connection->resume, server->secret, newcomer->challenge, request))
            return connection;
    }
    return NULL;
}

/* The member's connection gets the newcomer's socket and key; the newcomer ends without one. */
static void take_socket(struct server_connection *connection, struct server_connection *newcomer)
{
    if (connection->net) { /* the coordinator has not noticed its end yet */
        weft_net_set_context(connection->net, NULL);
        weft_net_close(connection->net);
    }
    connection->net = newcomer->net;
    connection->seal = newcomer->seal;
    weft_net_set_context(connection->net, connection);
    newcomer->net = NULL;
    coordinator_server_remove(newcomer, "it resumes the connection of a member");
}

static enum weft_status send_again(void *context, struct weft_frame *frame)
{
    struct server_connection *connection = context;
    size_t bytes = frame->bytes;
    WEFT_TRY(weft_seal_append(&connection->seal, frame->data, &bytes));
    return weft_net_send(connection->net, frame->data, bytes);
}

void coordinator_resume_accept(struct server_connection *newcomer, const Weft__Control__Resume *request,
                               const uint8_t *frame, size_t bytes)
{
    struct weft_coordinator_server *server = newcomer->server;
    uint8_t proof[WEFT_PROOF_BYTES];
    Weft__Control__Resumed answer;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    struct server_connection *connection = find_session(newcomer, request);
    newcomer->has_hello = true;
    if (!connection || weft_resume_answer(&connection->resume, server->secret, request, proof, &answer) < 0 ||
        weft_seal_start(&newcomer->seal, WEFT_SEAL_COORDINATOR, server->secret, frame, bytes) < 0) {
        weft_coordinator_refuse_resume(server->coordinator, newcomer->id, request);
        return;
    }
    take_socket(connection, newcomer);
    (void)weft_resume_acknowledge(&connection->resume, request->received); /* checked in find_session */
    message.body_case = WEFT__CONTROL__CONTROL__BODY_RESUMED;
    message.resumed = &answer;
    struct weft_frame *reply;
    enum weft_status status = weft_frame_pack(server->env, &message, &reply);
    if (status == WEFT_OK) {
        status = send_again(connection, reply);
        weft_frame_release(reply);
    }
    if (status == WEFT_OK) status = weft_resume_send_kept(&connection->resume, send_again, connection);
    weft_log(server->env, WEFT_LOG_INFO, "coordinator", "member %u has resumed its control connection%s%s",
             request->member, status < 0 ? ", and the answer failed: " : "",
             status < 0 ? weft_reason_text(status) : "");
    if (connection->is_awaited)
        coordinator_welcome_back(server->coordinator, connection->id, request->has_begun, request->epoch);
    connection->is_awaited = false;
    if (status < 0) weft_net_close(connection->net);
}
