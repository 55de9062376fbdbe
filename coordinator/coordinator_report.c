/* coordinator_report.c - the figures that members send with their heartbeats. The coordinator keeps the
 * newest ones of each member for /metrics and the status, and does not act on them. */
#include "coordinator/coordinator_state.h"

#define FIGURE(field, factor) offsetof(struct weft_member_report, figures.field), factor

const struct weft_report_metric weft_report_metrics[WEFT_REPORT_METRICS] = {
    {"weft_worker_steps_total", "counter", "Steps that the rank has ended well.", "steps", FIGURE(steps, 0)},
    {"weft_worker_step_seconds_total", "counter", "Time of these steps, from begin to end.", "step_ns",
     FIGURE(step_ns, 1e-9)},
    {"weft_worker_exposed_seconds_total", "counter",
     "Part of the step time that the rank waited in weft calls.", "exposed_ns", FIGURE(exposed_ns, 1e-9)},
    {"weft_worker_exposed_peers_seconds_total", "counter",
     "Part of the exposed time in which another rank had not begun the operation.", "exposed_peers_ns",
     FIGURE(exposed_peers_ns, 1e-9)},
    {"weft_worker_wait_seconds_total", "counter",
     "Time that threads of the rank slept or polled in weft calls, inside steps and outside.", "wait_ns",
     FIGURE(wait_ns, 1e-9)},
    {"weft_worker_operations_total", "counter", "Operations completed, failed ones too.", "operations",
     FIGURE(requests, 0)},
    {"weft_worker_codec_seconds_total", "counter",
     "Time of the engine and its compute thread in codecs and optimizers.", "encode_ns",
     FIGURE(encode_ns, 1e-9)},
    {"weft_worker_snapshot_seconds_total", "counter",
     "Time in which the rank copied its residuals and data for snapshots, between two steps.", "snapshot_ns",
     FIGURE(snapshot_ns, 1e-9)},
    {"weft_worker_sent_bytes_total", "counter",
     "Bytes that the rank has sent, and that peers on its host have read.", "sent_bytes",
     FIGURE(sent_bytes, 0)},
    {"weft_worker_received_bytes_total", "counter",
     "Bytes that the rank has received, and has read from peers on its host.", "received_bytes",
     FIGURE(received_bytes, 0)},
    {"weft_worker_last_operation_age_seconds", "gauge",
     "Time from the report that first counted the last completed operation to the newest report.", "idle_ns",
     FIGURE(idle_ns, 1e-9)},
    {"weft_worker_open_operation_age_seconds", "gauge",
     "Age of the oldest open operation at the newest report; 0 if none was open.", "open_ns",
     FIGURE(open_ns, 1e-9)},
    {"weft_worker_report_age_seconds", "gauge", "Time since the newest report of the rank arrived.", "age_ms",
     offsetof(struct weft_member_report, age_ns), 1e-9},
};

/* Replaces the text. Without memory it is empty: the figures are kept. */
static void store_open(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       const char *text)
{
    weft_free_bytes(coordinator->env, member->figures.report_open);
    member->figures.report_open = text[0] ? weft_alloc_text(coordinator->env, text) : NULL;
    member->figures.report.open = member->figures.report_open ? member->figures.report_open : (char *)"";
}

/* report is UNTRUSTED. */
static void store_links(struct coordinator_member *member, const Weft__Control__Report *report)
{
    member->figures.link_count = 0;
    for (size_t i = 0; i < WEFT_LIMIT_REPORT_LINKS && i < report->n_link_members && i < report->n_link_bytes;
         i++) {
        member->figures.link_members[i] = report->link_members[i];
        member->figures.link_bytes[i] = report->link_bytes[i];
        member->figures.link_count++;
    }
}

/* Adds what a worker has counted since its report before. */
static void add_increase(struct weft_histogram *job, struct weft_histogram *seen, const uint64_t *buckets,
                         size_t bucket_count, uint64_t sum_ns)
{
    for (size_t i = 0; i < bucket_count && i <= WEFT_HISTOGRAM_BOUNDS; i++) {
        job->counts[i] += buckets[i] > seen->counts[i] ? buckets[i] - seen->counts[i] : 0;
        seen->counts[i] = buckets[i];
    }
    job->sum += weft_elapsed_ns(seen->sum, sum_ns);
    seen->sum = sum_ns;
}

/* Kinds are UNTRUSTED. Returns the index of the kind; WEFT_OPERATION_KINDS for a name that is no kind, or one
 * too many. */
static uint32_t find_operation(struct weft_coordinator *coordinator, const char *kind)
{
    const size_t bytes = strspn(kind, "abcdefghijklmnopqrstuvwxyz_");
    uint32_t i = 0;
    if (bytes == 0 || kind[bytes] || bytes >= sizeof coordinator->times.operations[0].kind)
        return WEFT_OPERATION_KINDS;
    while (i < coordinator->times.operation_count && strcmp(coordinator->times.operations[i].kind, kind) != 0)
        i++;
    if (i == coordinator->times.operation_count && i < WEFT_OPERATION_KINDS) {
        memcpy(coordinator->times.operations[i].kind, kind, bytes + 1);
        coordinator->times.operation_count++;
    }
    return i;
}

/* Without memory the times are left out. */
static void add_operations(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__Report *report)
{
    if (report->n_operations > 0 && !member->figures.operations_seen)
        member->figures.operations_seen =
            weft_alloc_zero(coordinator->env, WEFT_OPERATION_KINDS * sizeof *member->figures.operations_seen);
    for (size_t i = 0; i < report->n_operations && member->figures.operations_seen; i++) {
        const Weft__Control__OperationTimes *times = report->operations[i];
        const uint32_t index = find_operation(coordinator, times->kind);
        if (index < WEFT_OPERATION_KINDS)
            add_increase(&coordinator->times.operations[index].times, &member->figures.operations_seen[index],
                         times->buckets, times->n_buckets, times->ns);
    }
}

static void add_bytes(uint64_t *job, uint64_t *seen, uint64_t bytes)
{
    *job += bytes > *seen ? bytes - *seen : 0;
    *seen = bytes;
}

static void add_codec(struct weft_codec_figures *job, struct weft_codec_figures *seen,
                      const Weft__Control__CodecFigures *codec)
{
    add_increase(&job->encode, &seen->encode, codec->encode_buckets, codec->n_encode_buckets,
                 codec->encode_ns);
    add_increase(&job->decode, &seen->decode, codec->decode_buckets, codec->n_decode_buckets,
                 codec->decode_ns);
    add_bytes(&job->gradient_bytes, &seen->gradient_bytes, codec->gradient_bytes);
    add_bytes(&job->encoded_bytes, &seen->encoded_bytes, codec->encoded_bytes);
}

void coordinator_report(struct weft_coordinator *coordinator, struct coordinator_member *member,
                        const Weft__Control__Report *report)
{
    add_increase(&coordinator->times.step, &member->figures.step_seen, report->step_buckets,
                 report->n_step_buckets, report->step_ns);
    add_increase(&coordinator->times.exposed, &member->figures.exposed_seen, report->exposed_buckets,
                 report->n_exposed_buckets, report->exposed_ns);
    add_increase(&coordinator->times.failover, &member->figures.failover_seen, report->failover_buckets,
                 report->n_failover_buckets, report->failover_ns);
    add_operations(coordinator, member, report);
    if (report->codec) add_codec(&coordinator->times.codec, &member->figures.codec_seen, report->codec);
    if (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD)
        coordinator_load_report(member, report, weft_now_ns(coordinator->env));
    member->figures.report = *report;
    /* the buckets end with the message */
    member->figures.report.n_step_buckets = member->figures.report.n_exposed_buckets =
        member->figures.report.n_failover_buckets = 0;
    member->figures.report.step_buckets = member->figures.report.exposed_buckets =
        member->figures.report.failover_buckets = NULL;
    store_links(member, report);
    member->figures.report.n_link_members = member->figures.report.n_link_bytes = 0;
    member->figures.report.link_members = NULL;
    member->figures.report.link_bytes = NULL;
    member->figures.report.n_operations = 0;
    member->figures.report.operations = NULL;
    member->figures.report.codec = NULL;
    /* unknown fields end with the message */
    member->figures.report.base.n_unknown_fields = 0;
    member->figures.report.base.unknown_fields = NULL;
    member->figures.reported_ns = weft_now_ns(coordinator->env);
    member->figures.has_report = true;
    store_open(coordinator, member, report->open);
}

uint32_t weft_coordinator_member_count(const struct weft_coordinator *coordinator)
{
    return coordinator->membership.member_count;
}

uint32_t weft_coordinator_reports(const struct weft_coordinator *coordinator,
                                  struct weft_member_report *reports_out, uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count && count < capacity; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        if (!member->figures.has_report || member->newcomer || member->state >= MEMBER_LEFT) continue;
        struct weft_member_report *report = &reports_out[count++];
        *report = (struct weft_member_report){
            .role = member->role,
            .index = member->index,
            .age_ns = weft_elapsed_ns(member->figures.reported_ns, weft_now_ns(coordinator->env)),
            .figures = member->figures.report,
        };
        report->figures.open = (char *)"";
    }
    return count;
}
