/* status.c - `weft status HOST:PORT`: joins a coordinator as an observer, sends one query, prints tables or
 * the JSON. */
#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/size.h"
#include "tools/target.h"

#define REFUSAL_MS 500 /* a refusal needs one round trip */

/* ---- query ---- */

struct status_query {
    struct weft_control_client *member;
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
    struct status_query status_query = {.json = NULL};
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

/* ---- output ---- */

static void print_members(const json_t *members)
{
    size_t i;
    json_t *member;
    char bytes[24];
    printf("%-10s %-11s %-20s %8s %9s %12s %9s %9s\n", "member", "state", "host", "pid", "endpoints",
           "weights", "silent", "waits");
    json_array_foreach (members, i, member) {
        char name[32];
        bool worker = strcmp(tool_json_text(member, "role"), "worker") == 0;
        snprintf(name, sizeof name, "%s %lld", worker ? "rank" : "shard", tool_json_number(member, "index"));
        tool_bytes_format(tool_json_number(member, "weights_bytes"), bytes);
        printf("%-10s %-11s %-20s %8lld %9lld %12s %7.1f s %7.1f s\n", name, tool_json_text(member, "state"),
               tool_json_text(member, "host"), tool_json_number(member, "pid"),
               tool_json_number(member, "endpoints"), worker ? "-" : bytes,
               (double)tool_json_number(member, "silent_ms") / 1000,
               (double)tool_json_number(member, "open_ms") / 1000);
    }
}

/* What the steps of each worker waited for, as of its last report. */
static void print_exposed(const json_t *members)
{
    size_t i;
    json_t *member;
    bool any = false;
    json_array_foreach (members, i, member) {
        const json_t *report = json_object_get(member, "report");
        const double steps = (double)tool_json_number(report, "steps");
        const double step_ns = (double)tool_json_number(report, "step_ns");
        const double exposed_ns = (double)tool_json_number(report, "exposed_ns"),
                     peers_ns = (double)tool_json_number(report, "exposed_peers_ns");
        if (steps < 1 || step_ns < 1) continue;
        if (!any)
            printf("\n%-10s %10s %12s %10s %14s %10s  %s\n", "member", "steps", "step", "waiting",
                   "slower ranks", "network", "longest for tensor");
        any = true;
        printf("rank %-5lld %10.0f %9.3f ms %8.1f %% %12.1f %% %8.1f %%  %s\n",
               tool_json_number(member, "index"), steps, step_ns / steps / 1e6, 100 * exposed_ns / step_ns,
               100 * peers_ns / step_ns, 100 * (exposed_ns - peers_ns) / step_ns,
               tool_json_number(report, "exposed_tensor_ns") > 0 ? tool_json_text(report, "exposed_tensor")
                                                                 : "-");
    }
}

static void print_tensors(const json_t *root)
{
    size_t i, k;
    json_t *tensor, *dim;
    char bytes[24];
    long long total = 0;
    printf("\n%6s %-24s %-5s %-16s %-10s %-24s %6s %12s\n", "tensor", "name", "dtype", "shape", "mode",
           "codec", "chunks", "bytes");
    json_array_foreach (json_object_get(root, "tensors"), i, tensor) {
        char shape[200] = "";
        json_array_foreach (json_object_get(tensor, "dims"), k, dim) {
            size_t used = strlen(shape);
            snprintf(shape + used, sizeof shape - used, "%s%lld", k ? "x" : "",
                     (long long)json_integer_value(dim));
        }
        total += tool_json_number(tensor, "bytes");
        tool_bytes_format(tool_json_number(tensor, "bytes"), bytes);
        printf("%6lld %-24s %-5s %-16s %-10s %-24s %6lld %12s\n", tool_json_number(tensor, "tensor"),
               tool_json_text(tensor, "name"), tool_json_text(tensor, "dtype"), shape,
               tool_json_text(tensor, "mode"), tool_json_text(tensor, "codec"),
               tool_json_number(tensor, "chunks"), bytes);
    }
    long long count = tool_json_number(root, "tensor_count"),
              listed = (long long)json_array_size(json_object_get(root, "tensors"));
    tool_bytes_format(total, bytes);
    printf("%lld tensors, %s%s\n", count, bytes, listed < count ? " in those listed" : "");
}

static int print_table(const char *json)
{
    json_t *root = json_loads(json, 0, NULL);
    if (!root) {
        fprintf(stderr, "weft status: the coordinator's answer is not JSON\n");
        return 1;
    }
    printf("job %s is %s for %.1f s: %lld workers, %lld shards, epoch %lld, weft %s\n",
           tool_json_text(root, "job"), tool_json_text(root, "state"),
           (double)tool_json_number(root, "uptime_ms") / 1000, tool_json_number(root, "workers"),
           tool_json_number(root, "shards"), tool_json_number(root, "epoch"),
           tool_json_text(root, "weft_version"));
    if (tool_json_text(root, "end_text")[0]) printf("%s\n", tool_json_text(root, "end_text"));
    if (tool_json_number(root, "stall_ms") > 0)
        printf("stalled for %.1f s: %s\n", (double)tool_json_number(root, "stall_ms") / 1000,
               tool_json_text(root, "stall_text"));
    puts("");
    print_members(json_object_get(root, "members"));
    print_exposed(json_object_get(root, "members"));
    if (tool_json_number(root, "tensor_count") > 0) print_tensors(root);
    json_decref(root);
    return 0;
}

/* ---- the command ---- */

static int print_http_token(const char *secret_file)
{
    char *secret, token[WEFT_HTTP_TOKEN_BYTES];
    if (!tool_read_secret("weft status", secret_file, NULL, &secret)) return 1;
    if (!secret)
        return tool_usage_error("weft status", "--http-token is made from the secret of the job: give "
                                               "--secret-file, WEFT_SECRET or WEFT_SECRET_FILE");
    const enum weft_status status = weft_http_token(secret, token);
    free(secret);
    if (status != WEFT_OK) return fprintf(stderr, "weft status: %s\n", weft_reason_text(status)), 1;
    puts(token);
    return 0;
}

int weft_status_main(int argc, char **argv)
{
    struct tool_target target;
    struct weft_error error = {0};
    bool json = false, http_token = false;
    int first;
    tool_target_init(&target);
    const struct cli_option table[] = {
        TOOL_TARGET_OPTIONS(&target),
        {"json", 0, NULL, "the answer of the coordinator instead of the tables", CLI_FLAG(&json)},
        {"http-token", 0, NULL,
         "print the token for HTTP beyond loopback (Authorization: Bearer), made from the secret, and end",
         CLI_FLAG(&http_token)},
    };
    const struct cli_command command = {"weft status", "weft status [options] [HOST:PORT]",
                                        "Members, tensors and bytes of a running job. HOST:PORT is its "
                                        "coordinator (default WEFT_COORDINATOR).\n",
                                        CLI_TABLE(table), .takes_arguments = true};
    int status = cli_parse(&command, argc, argv, &first);
    if (status < 0 && http_token) return print_http_token(target.secret_file);
    if (status < 0) status = tool_target_resolve("weft status", &target, argc, argv, first);
    if (status >= 0) return status;
    char *answer = tool_target_status(&target, &error);
    tool_target_free(&target);
    if (!answer) {
        fprintf(stderr, "weft status: %s\n", error.text);
        return 1;
    }
    status = 0;
    if (json) puts(answer);
    else status = print_table(answer);
    free(answer);
    return status;
}
