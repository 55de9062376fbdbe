/* target_status.c - a request to a running job: joins its coordinator as an observer, sends it, returns the
 * answer. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/target.h"

#define REFUSAL_MS 500   /* a refusal needs one round trip */
#define STORE_POLL_MS 50 /* until the lease of a lost coordinator has ended */

struct query {
    struct weft_control_client *member;
    const Weft__Control__Control *first; /* sent before the request; NULL: none */
    const Weft__Control__Control *request;
    char *answer; /* owned; NULL: none yet */
    struct weft_error error;
    bool done;
};

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct query *query = context;
    if (query->first) (void)weft_control_client_send(query->member, query->first);
    (void)weft_control_client_send(query->member, query->request);
}

/* As JSON; owned. NULL: no memory. */
static char *plan_of(const Weft__Control__Rebalance *rebalance)
{
    json_t *moves = json_array(), *speeds = json_array();
    for (size_t i = 0; i < rebalance->n_moves; i++) {
        const Weft__Control__RebalanceMove *move = rebalance->moves[i];
        json_array_append_new(moves, json_pack("{s:i, s:i, s:i, s:b, s:I}", "slot", (int)move->slot, "from",
                                               (int)move->from, "to", (int)move->to, "leads",
                                               (int)move->leads, "bytes", (json_int_t)move->bytes));
    }
    for (size_t i = 0; i < rebalance->n_speeds; i++)
        json_array_append_new(speeds, json_integer((json_int_t)rebalance->speeds[i]));
    json_t *plan = json_pack("{s:o, s:o}", "speeds", speeds, "moves", moves);
    char *text = plan ? json_dumps(plan, JSON_COMPACT) : NULL;
    json_decref(plan);
    return text;
}

/* The caller frees the text. NULL: the coordinator does not answer this request, or there is no memory. */
static char *text_of(const Weft__Control__Control *message)
{
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_STATUS_REPLY: return strdup(message->status_reply->json);
    case WEFT__CONTROL__CONTROL__BODY_DRAIN: return strdup(message->drain->text);
    case WEFT__CONTROL__CONTROL__BODY_REBALANCE:
        if (message->rebalance->plan && !message->rebalance->text[0]) return plan_of(message->rebalance);
        return strdup(message->rebalance->text);
    default: return NULL;
    }
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct query *query = context;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_ABORT)
        weft_error_set(&query->error, message->abort->status, "%s", message->abort->text);
    char *answer = text_of(message);
    if (!answer) return;
    if (query->answer) free(answer);
    else query->answer = answer;
    (void)weft_control_client_leave(query->member, "");
    query->done = true;
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    struct query *query = context;
    if (!query->answer) weft_error_set(&query->error, status, "%s", text);
    query->done = true;
}

/* Steps the network in this thread until the answer or an error arrives, or the timeout expires. */
static void ask(struct weft_env *env, const struct weft_control_client_options *given, struct query *query)
{
    struct weft_net *net;
    struct weft_control_client_options options = *given;
    options.role = WEFT__CONTROL__ROLE__ROLE_OBSERVER;
    options.welcomed = on_welcomed;
    options.message = on_message;
    options.closed = on_closed;
    options.context = query;
    enum weft_status status = weft_net_create(env, &net);
    if (status != WEFT_OK) {
        weft_error_set(&query->error, status, "cannot start networking: %s", weft_reason_text(status));
        return;
    }
    uint64_t deadline_ns = weft_now_ns(env) + options.join_ns + WEFT_SECONDS(2);
    status = weft_control_client_start(env, net, &options, &query->member, &query->error);
    while (status == WEFT_OK && !query->done && weft_now_ns(env) < deadline_ns) weft_net_step(net, 100);
    if (status == WEFT_OK && !query->done)
        weft_error_set(&query->error, WEFT_ERR_DEADLINE, "the process at %s:%u%s", given->host, given->port,
                       WEFT_CONTROL_SILENT_TEXT);
    weft_net_free(net);
    weft_control_client_free(query->member);
}

static char *answer_at(const struct weft_control_client_options *options, struct query query,
                       struct weft_error *error)
{
    const char *host = options->host;
    char port[8];
    snprintf(port, sizeof port, "%u", options->port);
    /* a member waits for a coordinator that starts later; a query does not. It names other failures itself */
    if (weft_net_probe(host, port, REFUSAL_MS) == ECONNREFUSED) {
        weft_error_set(error, WEFT_ERR_UNREACHABLE,
                       "no process listens at %s:%u (connection refused); start weftd or weft run there, or "
                       "correct the address",
                       host, options->port);
        return NULL;
    }
    ask(weft_env_system(), options, &query);
    if (!query.answer) *error = query.error;
    return query.answer;
}

/* Waits while the store names the process that has not answered: its lease may not have ended. false: there
 * is no other one. */
static bool find_other(const struct tool_target *target, char host_out[256], uint16_t *port_out)
{
    struct weft_env *env = weft_env_system();
    const uint64_t until_ns = weft_deadline_ns(weft_now_ns(env), WEFT_SECONDS(target->seconds));
    char address[256];
    bool was_named = false;
    for (;;) {
        const enum weft_status status =
            weft_takeover_address(env, target->store, target->options.job, address, NULL);
        if (status == WEFT_OK && weft_host_port_parse(address, host_out, port_out, NULL) < 0) return false;
        const bool is_same = status == WEFT_OK && *port_out == target->options.port &&
                             strcmp(host_out, target->options.host) == 0;
        was_named |= is_same;
        if (status == WEFT_OK && !is_same) return true;
        if (!was_named || (status < 0 && status != WEFT_ERR_CLOSED) || weft_now_ns(env) >= until_ns)
            return false;
        (void)poll(NULL, 0, STORE_POLL_MS);
    }
}

static char *answer_of(const struct tool_target *target, struct query query, struct weft_error *error)
{
    struct weft_control_client_options other = target->options;
    struct weft_error other_error = {0};
    char host[256];
    char *answer = answer_at(&target->options, query, error);
    if (answer || !target->store || !find_other(target, host, &other.port)) return answer;
    other.host = host;
    answer = answer_at(&other, query, &other_error);
    if (!answer) *error = other_error;
    return answer;
}

char *tool_target_request(const struct tool_target *target, const Weft__Control__Control *request,
                          struct weft_error *error)
{
    return answer_of(target, (struct query){.request = request}, error);
}

char *tool_target_send(const struct tool_target *target, const Weft__Control__Control *first,
                       struct weft_error *error)
{
    Weft__Control__StatusRequest body = WEFT__CONTROL__STATUS_REQUEST__INIT;
    Weft__Control__Control request = WEFT__CONTROL__CONTROL__INIT;
    request.body_case = WEFT__CONTROL__CONTROL__BODY_STATUS_REQUEST;
    request.status_request = &body;
    return answer_of(target, (struct query){.first = first, .request = &request}, error);
}

char *tool_target_status(const struct tool_target *target, struct weft_error *error)
{
    return tool_target_send(target, NULL, error);
}
