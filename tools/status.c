/* status.c - `weft status HOST:PORT`: joins a coordinator as an observer, sends one query, prints tables or
 * the JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"

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
        weft_error_set(&status_query->error, WEFT_ERR_DEADLINE, "the coordinator at %s:%u did not answer",
                       given->host, given->port);
    weft_net_free(net);
    weft_control_client_free(status_query->member);
}

/* ---- output ---- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "?";
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static void format_bytes(long long bytes, char out[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) value /= 1024, unit++;
    snprintf(out, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void print_members(const json_t *members)
{
    size_t i;
    json_t *member;
    char bytes[24];
    printf("%-10s %-11s %-20s %8s %9s %12s %9s\n", "member", "state", "host", "pid", "endpoints", "weights",
           "silent");
    json_array_foreach (members, i, member) {
        char name[32];
        bool worker = strcmp(text_of(member, "role"), "worker") == 0;
        snprintf(name, sizeof name, "%s %lld", worker ? "rank" : "shard", number_of(member, "index"));
        format_bytes(number_of(member, "weights_bytes"), bytes);
        printf("%-10s %-11s %-20s %8lld %9lld %12s %7.1f s\n", name, text_of(member, "state"),
               text_of(member, "host"), number_of(member, "pid"), number_of(member, "endpoints"),
               worker ? "-" : bytes, (double)number_of(member, "silent_ms") / 1000);
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
        total += number_of(tensor, "bytes");
        format_bytes(number_of(tensor, "bytes"), bytes);
        printf("%6lld %-24s %-5s %-16s %-10s %-24s %6lld %12s\n", number_of(tensor, "tensor"),
               text_of(tensor, "name"), text_of(tensor, "dtype"), shape, text_of(tensor, "mode"),
               text_of(tensor, "codec"), number_of(tensor, "chunks"), bytes);
    }
    long long count = number_of(root, "tensor_count"),
              listed = (long long)json_array_size(json_object_get(root, "tensors"));
    format_bytes(total, bytes);
    printf("%lld tensors, %s%s\n", count, bytes, listed < count ? " in those listed" : "");
}

static int print_table(const char *json)
{
    json_t *root = json_loads(json, 0, NULL);
    if (!root) {
        fprintf(stderr, "weft status: the coordinator's answer is not JSON\n");
        return 1;
    }
    printf("job %s is %s for %.1f s: %lld workers, %lld shards, epoch %lld, weft %s\n", text_of(root, "job"),
           text_of(root, "state"), (double)number_of(root, "uptime_ms") / 1000, number_of(root, "workers"),
           number_of(root, "shards"), number_of(root, "epoch"), text_of(root, "weft_version"));
    if (text_of(root, "end_text")[0]) printf("%s\n", text_of(root, "end_text"));
    puts("");
    print_members(json_object_get(root, "members"));
    if (number_of(root, "tensor_count") > 0) print_tensors(root);
    json_decref(root);
    return 0;
}

/* ---- the command ---- */

int weft_status_main(int argc, char **argv)
{
    struct weft_control_client_options options;
    struct status_query status_query = {.json = NULL};
    struct weft_error error = {0};
    const char *secret_file = NULL, *address = getenv("WEFT_COORDINATOR");
    char *secret, host[256];
    bool json = false;
    uint64_t seconds = 5;
    int first;
    weft_control_client_options_init(&options);
    if (getenv("WEFT_JOB") && getenv("WEFT_JOB")[0]) options.job = getenv("WEFT_JOB");
    const struct cli_option table[] = {
        {"job", 'j', "NAME", "name of the job", "WEFT_JOB, then weft", CLI_TEXT(&options.job)},
        {"secret-file", 0, "FILE", "file with the secret of the job", "WEFT_SECRET, then WEFT_SECRET_FILE",
         CLI_TEXT(&secret_file)},
        {"timeout", 0, "SECONDS", "longest wait for the answer", CLI_U64(&seconds, 1, 3600)},
        {"json", 0, NULL, "the answer of the coordinator instead of the tables", CLI_FLAG(&json)},
    };
    const struct cli_command command = {"weft status", "weft status [options] [HOST:PORT]",
                                        "Members, tensors and bytes of a running job. HOST:PORT is its "
                                        "coordinator (default WEFT_COORDINATOR).\n",
                                        CLI_TABLE(table), .takes_arguments = true};
    int status = cli_parse(&command, argc, argv, &first);
    if (status >= 0) return status;
    if (first < argc) address = argv[first++];
    if (first < argc)
        return tool_usage_error("weft status", "unexpected argument '%s': give one HOST:PORT", argv[first]);
    if (!address || !address[0])
        return tool_usage_error("weft status", "HOST:PORT of the coordinator is missing");
    if (weft_host_port_parse(address, host, &options.port, &error) != WEFT_OK)
        return tool_usage_error("weft status", "%s", error.text);
    if (!tool_read_secret("weft status", secret_file, NULL, &secret)) return 1;
    options.host = host;
    options.secret = secret;
    options.join_ns = WEFT_SECONDS(seconds);
    query_status(weft_env_system(), &options, &status_query);
    free(secret);
    if (!status_query.json) {
        fprintf(stderr, "weft status: %s\n", status_query.error.text);
        return 1;
    }
    status = 0;
    if (json) puts(status_query.json);
    else status = print_table(status_query.json);
    free(status_query.json);
    return status;
}
