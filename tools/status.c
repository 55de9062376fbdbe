/* status.c - `weft status HOST:PORT`: the status of a job as tables, or as JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/size.h"
#include "tools/target.h"

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

/* Of `weft doctor --notify`. */
static void print_host_findings(const json_t *findings)
{
    size_t i;
    json_t *finding;
    json_array_foreach (findings, i, finding)
        printf("host %s: %s: %s; advice: %s\n", tool_json_text(finding, "host"),
               tool_json_text(finding, "subject"), tool_json_text(finding, "text"),
               tool_json_text(finding, "advice"));
}

/* Of a job that makes snapshots. */
static void print_snapshots(const json_t *snapshots)
{
    const long long complete = tool_json_number(snapshots, "complete_step"),
                    failures = tool_json_number(snapshots, "failures"),
                    age_ms = tool_json_number(snapshots, "complete_age_ms");
    if (!json_is_object(snapshots)) return;
    if (complete == 0) printf("snapshots: none is complete");
    else printf("snapshots: the last complete one is of step %lld", complete);
    if (age_ms > 0) printf(", %.1f s old", (double)age_ms / 1000);
    if (failures > 0)
        printf("; %lld failed, the last one of step %lld: %s", failures,
               tool_json_number(snapshots, "failed_step"), tool_json_text(snapshots, "failed_text"));
    puts("");
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
    print_host_findings(json_object_get(root, "host_findings"));
    print_snapshots(json_object_get(root, "snapshots"));
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
