/* target_status.c - the status of a running job: joins its coordinator as an observer, sends one query. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/target.h"

#define REFUSAL_MS 500 /* a refusal needs one round trip */

struct status_query {
    struct weft_control_client *member;
    const Weft__Control__Control *first; /* sent before the query; NULL: none */
    char *json; /* owned; the answer; NULL: none yet */
    struct weft_error error;
    bool done;
};

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct status_query *status_query = context;
    Weft__Control__StatusRequest request = WEFT__CONTROL__STATUS_REQUEST__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_STATUS_REQUEST;
    message.status_request = &request;
    if (status_query->first) (void)weft_control_client_send(status_query->member, status_query->first);
    (void)weft_control_client_send(status_query->member, &message);
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct status_query *status_query = context;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_ABORT)
        weft_error_set(&status_query->error, message->abort->status, "%s", message->abort->text);
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_STATUS_REPLY) return;
    if (!status_query->json) status_query->json = strdup(message->status_reply->json);
    (void)weft_control_client_leave(status_query->member, "");
    status_query->done = true;
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    struct status_query *status_query = context;
    if (!status_query->json) weft_error_set(&status_query->error, status, "%s", text);
    status_query->done = true;
}

/* Steps the network in this thread until the answer or an error arrives, or the timeout expires. */
static void query_status(struct weft_env *env, const struct weft_control_client_options *given,
                         struct status_query *status_query)
{
    struct weft_net *net;
    struct weft_control_client_options options = *given;
    options.role = WEFT__CONTROL__ROLE__ROLE_OBSERVER;
    options.welcomed = on_welcomed;
    options.message = on_message;
    options.closed = on_closed;
    options.context = status_query;
    enum weft_status status = weft_net_create(env, &net);
    if (status != WEFT_OK) {
        weft_error_set(&status_query->error, status, "cannot start networking: %s", weft_reason_text(status));
        return;
    }
    uint64_t deadline_ns = weft_now_ns(env) + options.join_ns + WEFT_SECONDS(2);
    status = weft_control_client_start(env, net, &options, &status_query->member, &status_query->error);
    while (status == WEFT_OK && !status_query->done && weft_now_ns(env) < deadline_ns)
        weft_net_step(net, 100);
    if (status == WEFT_OK && !status_query->done)
        weft_error_set(&status_query->error, WEFT_ERR_DEADLINE,
                       "the process at %s:%u accepts connections and does not answer: it is stopped, or no "
                       "coordinator of weft",
                       given->host, given->port);
    weft_net_free(net);
    weft_control_client_free(status_query->member);
}

/* A member waits for a coordinator that starts later; a query does not. Other failures are left to the query,
 * which names them. */
static bool is_refused(const char *host, uint16_t port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    char service[8];
    bool refused = false;
    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0) return false;
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        struct pollfd writable = {.fd = fd, .events = POLLOUT};
        int reason = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
        socklen_t bytes = sizeof reason;
        if (reason == EINPROGRESS && poll(&writable, 1, REFUSAL_MS) == 1)
            (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &bytes);
        refused = reason == ECONNREFUSED;
        close(fd);
        if (!refused) break;
    }
    freeaddrinfo(found);
    return refused;
}

char *tool_target_status(const struct tool_target *target, struct weft_error *error)
{
    return tool_target_send(target, NULL, error);
}

char *tool_target_send(const struct tool_target *target, const Weft__Control__Control *first,
                       struct weft_error *error)
{
    struct status_query status_query = {.first = first};
    const char *host = target->options.host;
    if (is_refused(host, target->options.port)) {
        weft_error_set(error, WEFT_ERR_UNREACHABLE,
                       "no process listens at %s:%u (connection refused); start weftd or weft run there, or "
                       "correct the address",
                       host, target->options.port);
        return NULL;
    }
    query_status(weft_env_system(), &target->options, &status_query);
    if (!status_query.json) *error = status_query.error;
    return status_query.json;
}
