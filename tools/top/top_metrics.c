/* top_metrics.c - metrics of a job from its status, with the names of weftd's /metrics: for jobs without
 * shards, which have no HTTP port. The textfile collector of node_exporter reads a file of them. */
#include <string.h>

#include "tools/target.h"
#include "tools/top/top.h"

static const char *const member_states[] = {"joined", "connecting", "ready", "left", "lost"};

static void print_head(FILE *out, const char *name, const char *kind, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

/* Writes the name and the first label, and leaves the label list open. */
static void print_name(FILE *out, const char *name, const json_t *status)
{
    fprintf(out, "%s{weft_job=\"", name);
    for (const char *at = tool_json_text(status, "job"); *at; at++) {
        if (*at == '\\' || *at == '"') fputc('\\', out);
        fputc(*at == '\n' ? ' ' : *at, out);
    }
    fputc('"', out);
}

/* A connected member of that role; NULL: it is of another role, or has left or is lost. */
static const json_t *active(const json_t *member, const char *role)
{
    const char *state = tool_json_text(member, "state");
    if (strcmp(state, "left") == 0 || strcmp(state, "lost") == 0) return NULL;
    return strcmp(tool_json_text(member, "role"), role) == 0 ? member : NULL;
}

static void print_states(FILE *out, const json_t *status)
{
    const char *state = tool_json_text(status, "state");
    print_head(out, "weft_job_state", "gauge", "1 for the state of the job, 0 for every other state.");
    for (unsigned i = 0; i < WEFT_COORDINATOR_STATES; i++) {
        print_name(out, "weft_job_state", status);
        fprintf(out, ",state=\"%s\"} %d\n", weft_coordinator_states[i],
                strcmp(state, weft_coordinator_states[i]) == 0);
    }
}

/* A shard that is draining is ready, as on /metrics. */
static const char *metric_state(const json_t *member)
{
    const char *state = tool_json_text(member, "state");
    return strcmp(state, "draining") == 0 ? "ready" : state;
}

static unsigned count_members(const json_t *status, const char *role, const char *state)
{
    unsigned count = 0;
    size_t i;
    json_t *member;
    json_array_foreach (json_object_get(status, "members"), i, member)
        count +=
            strcmp(tool_json_text(member, "role"), role) == 0 && strcmp(metric_state(member), state) == 0;
    return count;
}

static void print_members(FILE *out, const json_t *status)
{
    static const char *const roles[] = {"worker", "shard"};
    print_head(out, "weft_job_members", "gauge", "Members by state, with the state names of /status.");
    for (unsigned role = 0; role < 2; role++)
        for (unsigned i = 0; i < sizeof member_states / sizeof member_states[0]; i++) {
            print_name(out, "weft_job_members", status);
            fprintf(out, ",role=\"%s\",state=\"%s\"} %u\n", roles[role], member_states[i],
                    count_members(status, roles[role], member_states[i]));
        }
    print_head(out, "weft_job_silence_seconds", "gauge",
               "Longest time since the last message of a connected member.");
    for (unsigned role = 0; role < 2; role++) {
        long long longest = 0;
        size_t i;
        json_t *member;
        json_array_foreach (json_object_get(status, "members"), i, member)
            if (active(member, roles[role]) && tool_json_number(member, "silent_ms") > longest)
                longest = tool_json_number(member, "silent_ms");
        print_name(out, "weft_job_silence_seconds", status);
        fprintf(out, ",role=\"%s\"} %.3f\n", roles[role], (double)longest / 1000);
    }
}

static void print_figure(FILE *out, const json_t *status, const struct weft_report_metric *metric)
{
    const size_t bytes = strlen(metric->key);
    const char *unit = bytes > 3 ? metric->key + bytes - 3 : "";
    const double factor = strcmp(unit, "_ns") == 0 ? 1e-9 : strcmp(unit, "_ms") == 0 ? 1e-3 : 0;
    size_t i;
    json_t *member;
    print_head(out, metric->name, metric->kind, metric->help);
    json_array_foreach (json_object_get(status, "members"), i, member) {
        const json_t *report = json_object_get(member, "report");
        if (!active(member, "worker") || !json_is_object(report)) continue;
        print_name(out, metric->name, status);
        fprintf(out, ",rank=\"%lld\"} ", tool_json_number(member, "index"));
        if (factor > 0) fprintf(out, "%.3f\n", (double)tool_json_number(report, metric->key) * factor);
        else fprintf(out, "%lld\n", tool_json_number(report, metric->key));
    }
}

static void print_count(FILE *out, const json_t *status, const char *name, const char *help, long long value)
{
    print_head(out, name, "counter", help);
    print_name(out, name, status);
    fprintf(out, "} %lld\n", value);
}

/* A coordinator of an earlier release has no figures. */
static void print_codec(FILE *out, const json_t *status)
{
    const json_t *codec = json_object_get(status, "codec");
    if (!json_is_object(codec)) return;
    const long long gradient_bytes = tool_json_number(codec, "gradient_bytes"),
                    encoded_bytes = tool_json_number(codec, "encoded_bytes");
    print_count(out, status, "weft_codec_gradient_bytes_total", WEFT_CODEC_GRADIENT_BYTES_HELP,
                gradient_bytes);
    print_count(out, status, "weft_codec_encoded_bytes_total", WEFT_CODEC_ENCODED_BYTES_HELP, encoded_bytes);
    print_head(out, "weft_codec_ratio", "gauge", WEFT_CODEC_RATIO_HELP);
    print_name(out, "weft_codec_ratio", status);
    fprintf(out, "} %.6g\n", encoded_bytes > 0 ? (double)gradient_bytes / (double)encoded_bytes : 0.0);
}

void top_print_metrics(FILE *out, const json_t *status)
{
    print_states(out, status);
    print_members(out, status);
    print_codec(out, status);
    for (unsigned i = 0; i < WEFT_REPORT_METRICS; i++) print_figure(out, status, &weft_report_metrics[i]);
}
