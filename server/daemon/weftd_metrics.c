/* weftd_metrics.c - /metrics in the text format of Prometheus, version 0.0.4.
 *
 *     process   every weftd: build, up, resources
 *     job       the weftd with the coordinator: members by state, age of a wait
 *     worker    the weftd with the coordinator: the newest report of each worker, by rank
 *     snapshot  every weftd with a folder for them (weftd_snapshot_metrics.c)
 *     shard     every engine: memory, rounds, age of the oldest open round, messages, histograms of times
 *
 * Names end in their unit, counters in _total. The label of the job is weft_job, since Prometheus sets a
 * label `job` of its own. Every figure is a published copy (weftd_view.c): a scrape waits for no thread. */
#include <stdio.h>
#include <string.h>

#include "base/net/log_limit.h"
#include "server/daemon/weftd_page.h"

#define NS 1e-9 /* factor of a value in ns that is shown in seconds */

struct metric {
    const char *name, *kind, *help;
    size_t offset; /* of a uint64_t in the struct of its table */
    double factor; /* shown value per unit of the uint64_t; 0: shown as it is */
};
#define SHARD(field) offsetof(struct weftd_engine_view, shard.field), 0
#define SHARD_NS(field) offsetof(struct weftd_engine_view, shard.field), NS
#define TRANSPORT(field) offsetof(struct weftd_engine_view, transport.field), 0
#define JOB(field) offsetof(struct weft_coordinator_stats, field), 0
#define JOB_NS(field) offsetof(struct weft_coordinator_stats, field), NS
#define ROLE(field) offsetof(struct weft_coordinator_role_stats, field), 0
#define ROLE_NS(field) offsetof(struct weft_coordinator_role_stats, field), NS

static const struct metric engine_metrics[] = {
    {"weft_shard_chunks", "gauge", "Chunks that the engine owns.", SHARD(chunks)},
    {"weft_shard_weights_bytes", "gauge", "Memory of weights, without optimizer state.",
     SHARD(weights_bytes)},
    {"weft_shard_receive_used_bytes", "gauge", "Memory of contributions to open rounds.",
     SHARD(receive_bytes_used)},
    {"weft_shard_receive_peak_bytes", "gauge", "Largest memory of contributions since the start.",
     SHARD(receive_bytes_peak)},
    {"weft_shard_receive_limit_bytes", "gauge", "Upper bound of the memory of contributions.",
     SHARD(receive_bytes_max)},
    {"weft_shard_open_rounds", "gauge", "Chunks with a round that has a contribution and is not closed.",
     SHARD(rounds_open)},
    {"weft_shard_oldest_round_age_seconds", "gauge",
     "Time since the first contribution of the oldest open round; 0 without an open round.",
     SHARD_NS(oldest_round.ns)},
    {"weft_shard_oldest_round_missing_workers", "gauge",
     "Workers that have not contributed to the oldest open round.", SHARD(oldest_round.missing)},
    {"weft_shard_last_round_age_seconds", "gauge",
     "Time since the last contribution to the round that closed last; 0 before the first close.",
     SHARD_NS(last_round_ns)},
    {"weft_shard_rounds_total", "counter", "Rounds closed: all workers had contributed.",
     SHARD(rounds_closed)},
    {"weft_shard_pushes_total", "counter", "Contributions that were due, of dropped rounds too.",
     SHARD(pushes)},
    {"weft_shard_pulls_total", "counter", "Pulls answered with weights or optimizer state.", SHARD(pulls)},
    {"weft_shard_duplicates_total", "counter", "Contributions that had been accepted before.",
     SHARD(duplicates)},
    {"weft_shard_refused_total", "counter", "Requests refused or dropped.", SHARD(refused)},
    {"weft_shard_replicated_total", "counter", "Steps of chunks sent to copies.", SHARD(replicated)},
    {"weft_shard_replicated_bytes_total", "counter", "Bytes of steps sent to copies.",
     SHARD(replicated_bytes)},
    {"weft_shard_received_bytes_total", "counter",
     "Payload of contributions, first weights and first states.", SHARD(received_bytes)},
    {"weft_shard_sent_bytes_total", "counter", "Headers, texts and payload of results.", SHARD(sent_bytes)},
    {"weft_transport_received_bytes_total", "counter", "Headers and payload of data messages received.",
     TRANSPORT(received_bytes)},
    {"weft_transport_sent_bytes_total", "counter", "Headers and payload of data messages sent.",
     TRANSPORT(sent_bytes)},
    {"weft_transport_received_messages_total", "counter", "Data messages received.",
     TRANSPORT(received_count)},
    {"weft_transport_sent_messages_total", "counter", "Data messages sent.", TRANSPORT(sent_count)},
    {"weft_transport_unexpected_messages_total", "counter", "Messages that arrived before their receive.",
     TRANSPORT(unexpected_count)},
    {"weft_transport_refused_messages_total", "counter",
     "Messages dropped: wrong nonce, unknown sender, bad length.", TRANSPORT(refused_count)},
};

static const struct metric engine_histograms[] = {
    {"weft_shard_round_seconds", "histogram", "Closed rounds: time from the first contribution to the close.",
     SHARD(round)},
    {"weft_shard_round_spread_seconds", "histogram",
     "Closed rounds: time from the first to the last contribution.", SHARD(spread)},
    {"weft_shard_round_close_seconds", "histogram",
     "Closed rounds: time from the last contribution to the close.", SHARD(close)},
    {"weft_shard_push_wait_seconds", "histogram",
     "Contributions with payload: time from the announcement to the start of the receive.", SHARD(push_wait)},
    {"weft_shard_push_receive_seconds", "histogram",
     "Contributions with payload: time from the start of the receive to its end.", SHARD(push_receive)},
    {"weft_shard_replicate_seconds", "histogram",
     "Steps of chunks that a copy has acknowledged: time from the close to the acknowledgement.",
     SHARD(replicate)},
};

static const struct metric job_metrics[] = {
    {"weft_job_epoch", "gauge", "Number of the membership in force.", JOB(epoch)},
    {"weft_job_tensors", "gauge", "Tensors that a worker has declared, freed ones too.", JOB(tensors)},
    {"weft_job_sick_hosts", "gauge", "Hosts on which `weft doctor --notify` has found a failing GPU.",
     JOB(sick_hosts)},
    {"weft_job_snapshot_failures_total", "counter",
     "Snapshots that have failed since this process coordinates.", JOB(snapshot_failures)},
    {"weft_job_start_wait_seconds", "gauge",
     "Time that the job has waited for its members; 0 once it has begun.", JOB_NS(start_wait_ns)},
    {"weft_job_agreement_age_seconds", "gauge",
     "Age of the open agreement on a membership; 0 if none is open.", JOB_NS(agreement_ns)},
    {"weft_job_stall_seconds", "gauge",
     "How long an operation has been open that takes much longer than usual; 0 if none.", JOB_NS(stall_ns)},
    {"weft_job_slots", "gauge", "Sets of chunks with one leader and one copy; 0 in a job without copies.",
     JOB(slots)},
    {"weft_job_slots_without_copy", "gauge",
     "Slots whose copy or leader was lost: a further loss of a shard can end the job.",
     JOB(slots_without_copy)},
    {"weft_codec_gradient_bytes_total", "counter", WEFT_CODEC_GRADIENT_BYTES_HELP, JOB(codec.gradient_bytes)},
    {"weft_codec_encoded_bytes_total", "counter", WEFT_CODEC_ENCODED_BYTES_HELP, JOB(codec.encoded_bytes)},
};

static const struct metric role_metrics[] = {
    {"weft_job_members_expected", "gauge", "Members that the membership in force has.", ROLE(expected)},
    {"weft_job_silence_seconds", "gauge", "Longest time since the last message of a connected member.",
     ROLE_NS(silence_ns)},
};

static const struct metric member_states[] = {
    {.name = "joined", .offset = offsetof(struct weft_coordinator_role_stats, joined)},
    {.name = "connecting", .offset = offsetof(struct weft_coordinator_role_stats, connecting)},
    {.name = "ready", .offset = offsetof(struct weft_coordinator_role_stats, ready)},
    {.name = "left", .offset = offsetof(struct weft_coordinator_role_stats, left)},
    {.name = "lost", .offset = offsetof(struct weft_coordinator_role_stats, lost)},
};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static void write_value(struct weftd_page *page, const struct metric *metric, const void *values)
{
    uint64_t value;
    memcpy(&value, (const char *)values + metric->offset, sizeof value);
    if (metric->factor > 0) weftd_page_print(page, "} %.3f\n", (double)value * metric->factor);
    else weftd_page_print(page, "} %llu\n", (unsigned long long)value);
}

static void write_process(struct weftd *weftd, struct weftd_page *page)
{
    struct weftd_process_usage usage;
    weftd_page_head(page, "weft_build_info", "gauge", "The running release; always 1.");
    weftd_page_print(page, "weft_build_info{version=\"%s\",wire_version=\"%d\"} 1\n", weft_proto_release(),
                     WEFT_WIRE_VERSION);
    weftd_page_head(page, "weft_up", "gauge", "1 while the job runs.");
    weftd_page_print(page, "weft_up %d\n", page->job->running && !page->job->failing);
    weftd_page_head(page, "weft_uptime_seconds", "gauge", "Time since this process started.");
    weftd_page_print(page, "weft_uptime_seconds %.3f\n",
                     (double)(weft_now_ns(weftd->env) - weftd->started_ns) / 1e9);
    weftd_page_head(
        page, "weft_log_messages_total", "counter",
        "Log lines of this process at its log level, with the repeated lines that it only counts.");
    for (unsigned level = 0; level < WEFT_LOG_LEVELS; level++)
        weftd_page_print(page, "weft_log_messages_total{level=\"%s\"} %llu\n",
                         weft_log_level_name((enum weft_log_level)level),
                         (unsigned long long)weft_log_count((enum weft_log_level)level));
    weftd_page_head(page, "weft_refused_connections_total", "counter",
                    "Connections and requests that this process has refused.");
    weftd_page_print(page,
                     "weft_refused_connections_total{listener=\"control\"} %llu\n"
                     "weft_refused_connections_total{listener=\"http\"} %llu\n",
                     (unsigned long long)weft_log_limited_count(false),
                     (unsigned long long)weft_log_limited_count(true));
    weftd_page_head(page, "weft_connections", "gauge", "Open connections that this process has accepted.");
    weftd_page_print(page,
                     "weft_connections{listener=\"control\"} %llu\n"
                     "weft_connections{listener=\"http\"} %llu\n",
                     (unsigned long long)weft_open_connections(false),
                     (unsigned long long)weft_open_connections(true));
    if (!weftd_process_usage(&usage)) return;
    weftd_page_head(page, "process_cpu_seconds_total", "counter", "User and system time of all threads.");
    weftd_page_print(page, "process_cpu_seconds_total %.2f\n", usage.cpu_seconds);
    weftd_page_head(page, "process_resident_memory_bytes", "gauge", "Resident memory.");
    weftd_page_print(page, "process_resident_memory_bytes %llu\n", (unsigned long long)usage.resident_bytes);
    weftd_page_head(page, "process_open_fds", "gauge", "Open file descriptors.");
    weftd_page_print(page, "process_open_fds %llu\n", (unsigned long long)usage.open_fds);
    weftd_page_head(page, "process_max_fds", "gauge", "Limit of open file descriptors.");
    weftd_page_print(page, "process_max_fds %llu\n", (unsigned long long)usage.max_fds);
    weftd_page_head(page, "process_start_time_seconds", "gauge", "Start of this process, since 1970.");
    weftd_page_print(page, "process_start_time_seconds %.2f\n", usage.start_seconds);
}

static void write_members(const struct weftd *weftd, const struct weft_coordinator_stats *stats,
                          struct weftd_page *page)
{
    const struct weft_coordinator_role_stats *const roles[] = {&stats->workers, &stats->shards};
    static const char *const role_names[] = {"worker", "shard"};
    weftd_page_head(page, "weft_job_members", "gauge", "Members by state, with the state names of /status.");
    for (size_t i = 0; i < COUNT(roles) * COUNT(member_states); i++) {
        const struct metric *state = &member_states[i % COUNT(member_states)];
        const size_t role = i / COUNT(member_states);
        weftd_page_name(page, weftd, "weft_job_members");
        weftd_page_print(page, ",role=\"%s\",state=\"%s\"", role_names[role], state->name);
        write_value(page, state, roles[role]);
    }
    for (size_t m = 0; m < COUNT(role_metrics); m++) {
        weftd_page_head(page, role_metrics[m].name, role_metrics[m].kind, role_metrics[m].help);
        for (size_t role = 0; role < COUNT(roles); role++) {
            weftd_page_name(page, weftd, role_metrics[m].name);
            weftd_page_print(page, ",role=\"%s\"", role_names[role]);
            write_value(page, &role_metrics[m], roles[role]);
        }
    }
}

/* One series per rank of a uint64_t in its report. `labels`: the start of the label list. One print per line:
 * a job of 4,096 workers has 49,152 lines. */
static void write_worker_metric(const struct weft_member_report *reports, uint32_t count,
                                const struct weft_report_metric *metric, const char *labels,
                                struct weftd_page *page)
{
    weftd_page_head(page, metric->name, metric->kind, metric->help);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t value;
        if (reports[i].role != WEFT__CONTROL__ROLE__ROLE_WORKER) continue;
        memcpy(&value, (const char *)&reports[i] + metric->offset, sizeof value);
        if (metric->factor > 0)
            weftd_page_print(page, "%s%s,rank=\"%u\"} %.3f\n", metric->name, labels, reports[i].index,
                             (double)value * metric->factor);
        else
            weftd_page_print(page, "%s%s,rank=\"%u\"} %llu\n", metric->name, labels, reports[i].index,
                             (unsigned long long)value);
    }
}

static void write_workers(const struct weftd *weftd, const struct weft_member_report *reports, uint32_t count,
                          struct weftd_page *page)
{
    struct weftd_page labels = {.env = weftd->env}; /* {weft_job="name" */
    uint64_t steps = 0;
    for (uint32_t i = 0; i < count; i++)
        if (reports[i].figures.steps > steps) steps = reports[i].figures.steps;
    weftd_page_head(page, "weft_job_step", "gauge",
                    "Highest number of steps that a connected worker has reported.");
    weftd_page_name(page, weftd, "weft_job_step");
    weftd_page_print(page, "} %llu\n", (unsigned long long)steps);
    weftd_page_name(&labels, weftd, "");
    weftd_page_print(&labels, "%c", 0);
    if (labels.failed) page->failed = true;
    for (size_t m = 0; m < WEFT_REPORT_METRICS && !page->failed; m++)
        write_worker_metric(reports, count, &weft_report_metrics[m], labels.text, page);
    weft_free_bytes(weftd->env, labels.text);
}

static void write_operations(struct weftd *weftd, struct weftd_page *page,
                             const struct weft_coordinator_stats *stats)
{
    char labels[48];
    weftd_page_head(page, "weft_operation_seconds", "histogram",
                    "Time from the call to the completion of an operation, at the engines of workers.");
    for (uint32_t i = 0; i < stats->operation_count; i++) {
        snprintf(labels, sizeof labels, ",op=\"%s\"", stats->operations[i].kind);
        weftd_page_histogram(page, weftd, "weft_operation_seconds", labels, &stats->operations[i].times);
    }
}

static void write_codec(struct weftd *weftd, struct weftd_page *page, const struct weft_codec_figures *codec)
{
    weftd_page_head(
        page, "weft_codec_seconds", "histogram",
        "Exchanges of tensors through a codec: time of a worker in a stage, all rounds together.");
    weftd_page_histogram(page, weftd, "weft_codec_seconds", ",stage=\"encode\"", &codec->encode);
    weftd_page_histogram(page, weftd, "weft_codec_seconds", ",stage=\"decode\"", &codec->decode);
    weftd_page_head(page, "weft_codec_ratio", "gauge", WEFT_CODEC_RATIO_HELP);
    weftd_page_name(page, weftd, "weft_codec_ratio");
    weftd_page_print(page, "} %.6g\n",
                     codec->encoded_bytes ? (double)codec->gradient_bytes / (double)codec->encoded_bytes
                                          : 0.0);
}

static void write_job(struct weftd *weftd, struct weftd_page *page)
{
    const struct weft_coordinator_stats stats = page->job->stats;
    weftd_page_head(page, "weft_job_state", "gauge", "1 for the state of the job, 0 for every other state.");
    for (size_t i = 0; i < WEFT_COORDINATOR_STATES; i++) {
        const char *state = weft_coordinator_states[i];
        weftd_page_name(page, weftd, "weft_job_state");
        weftd_page_print(page, ",state=\"%s\"} %d\n", state, strcmp(state, stats.state) == 0);
    }
    for (size_t m = 0; m < COUNT(job_metrics); m++) {
        weftd_page_head(page, job_metrics[m].name, job_metrics[m].kind, job_metrics[m].help);
        weftd_page_name(page, weftd, job_metrics[m].name);
        write_value(page, &job_metrics[m], &stats);
    }
    write_members(weftd, &stats, page);
    weftd_page_head(page, "weft_step_seconds", "histogram", "Duration of the successful steps of workers.");
    weftd_page_histogram(page, weftd, "weft_step_seconds", "", &stats.step);
    weftd_page_head(page, "weft_exposed_seconds", "histogram",
                    "Time of each successful step that the worker waited in weft calls.");
    weftd_page_histogram(page, weftd, "weft_exposed_seconds", "", &stats.exposed);
    weftd_page_head(
        page, "weft_failover_seconds", "histogram",
        "Time that a worker's open operations took in a fail-over of a shard that the job survived.");
    weftd_page_histogram(page, weftd, "weft_failover_seconds", "", &stats.failover);
    write_operations(weftd, page, &stats);
    write_codec(weftd, page, &stats.codec);
    uint32_t count;
    const struct weft_member_report *reports = weftd_view_lock_reports(weftd, &count);
    write_workers(weftd, reports, count, page);
    weftd_view_unlock_reports(weftd);
}

static void write_engine_histograms(const struct weftd *weftd, const struct weftd_engine_view *views,
                                    uint32_t engines, struct weftd_page *page)
{
    char labels[64];
    for (size_t m = 0; m < COUNT(engine_histograms); m++) {
        const struct metric *metric = &engine_histograms[m];
        weftd_page_head(page, metric->name, metric->kind, metric->help);
        for (uint32_t i = 0; i < engines; i++) {
            struct weft_histogram histogram;
            memcpy(&histogram, (const char *)&views[i] + metric->offset, sizeof histogram);
            snprintf(labels, sizeof labels, ",shard=\"%u\",engine=\"%u\"", page->job->index, i);
            weftd_page_histogram(page, weftd, metric->name, labels, &histogram);
        }
    }
}

static void write_engines(struct weftd *weftd, struct weftd_page *page)
{
    const uint32_t engines = page->job->engines;
    struct weftd_engine_view views[WEFT_LIMIT_ENGINES];
    for (uint32_t i = 0; i < engines; i++) weftd_view_engine(&weftd->engines[i], &views[i]);
    for (size_t m = 0; m < COUNT(engine_metrics); m++) {
        weftd_page_head(page, engine_metrics[m].name, engine_metrics[m].kind, engine_metrics[m].help);
        for (uint32_t i = 0; i < engines; i++) {
            weftd_page_name(page, weftd, engine_metrics[m].name);
            weftd_page_print(page, ",shard=\"%u\",engine=\"%u\"", page->job->index, i);
            write_value(page, &engine_metrics[m], &views[i]);
        }
    }
    write_engine_histograms(weftd, views, engines, page);
}

void weftd_metrics_write(struct weftd *weftd, struct weftd_page *page)
{
    write_process(weftd, page);
    if (page->job->coordinates) write_job(weftd, page);
    write_engines(weftd, page);
    weftd_snapshot_metrics_write(weftd, page);
}
