/* exposed_report.c - weft_tensor_stats_get, and the report of client.exposed_report: which tensors the steps
 * of this rank waited for, and what to change.
 *
 * The engine counts the times of a tensor when its operation completes (tensor/tensor.c). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/elastic/elastic.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/sized.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

enum { ROWS = 12, PATH_BYTES = 4096 };
/* The report has advice if the steps waited for more than this part of their time. */
#define NEGLIGIBLE 0.05

static void stats_of(const struct weft_tensor *tensor, struct weft_tensor_stats *stats)
{
    const struct client_tensor_times *times = &tensor->times;
    *stats = (struct weft_tensor_stats){
        .size = sizeof *stats,
        .bytes = tensor->bytes,
        .operations = times->operations,
        .queued_ns = times->queued_ns,
        .transfer_ns = times->transfer_ns,
        .ahead_ns = times->ahead_ns,
        .exposed_ns = times->exposed_ns,
        .exposed_operations = times->exposed_operations,
        .ready_ns = times->ready_ns,
        .started_ns = times->began_ns,
        .done_ns = times->done_ns,
        .waited_from_ns = times->waited_from_ns,
    };
}

enum weft_status weft_tensor_stats_get(struct weft_tensor *tensor, struct weft_tensor_stats *stats_out)
{
    struct weft_tensor_stats stats;
    struct weft_error error = {0};
    if (!tensor) return client_null_argument("tensor_stats_get", "tensor");
    if (client_sized_check(stats_out, sizeof *stats_out, "tensor_stats_get: stats", &error) < 0)
        return client_error(tensor->session, WEFT_ERR_INVALID, "%s", error.text);
    stats_of(tensor, &stats);
    client_sized_copy_out(&stats, sizeof stats, stats_out);
    return WEFT_OK;
}

/* ---- the report ---- */

struct row {
    const struct weft_tensor *tensor;
    struct weft_tensor_stats stats;
};

struct report {
    struct weft_session *session;
    struct row *rows; /* (count,), most exposed first */
    uint32_t count;
    double exposed_ns, tensors_ns, step_ns;
};

static int compare_rows(const void *a, const void *b)
{
    const struct row *one = a, *other = b;
    if (one->stats.exposed_ns != other->stats.exposed_ns)
        return one->stats.exposed_ns < other->stats.exposed_ns ? 1 : -1;
    return one->tensor->id < other->tensor->id ? -1 : 1;
}

static bool collect(struct report *report)
{
    struct weft_session *session = report->session;
    struct weft_list *node, *spare;
    report->rows = weft_alloc_array(session->env, session->tensors->count + 1u, sizeof *report->rows);
    if (!report->rows) return false;
    weft_list_foreach (node, spare, &session->tensors->list) {
        struct row *row = &report->rows[report->count++];
        row->tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        stats_of(row->tensor, &row->stats);
        report->tensors_ns += (double)row->stats.exposed_ns;
    }
    qsort(report->rows, report->count, sizeof *report->rows, compare_rows);
    report->exposed_ns = (double)session->totals.exposed_ns;
    report->step_ns = (double)session->totals.step_ns;
    return true;
}

static double per(uint64_t ns, uint64_t count)
{
    return count ? 1e-6 * (double)ns / (double)count : 0;
}

static void print_rows(const struct report *report, FILE *out)
{
    fprintf(out, "%-32s %12s %10s %10s %12s %12s %12s %8s\n", "tensor", "bytes", "operations", "ahead-ms",
            "queued-ms", "transfer-ms", "exposed-ms", "share");
    for (uint32_t i = 0; i < report->count && i < ROWS; i++) {
        const struct weft_tensor_stats *stats = &report->rows[i].stats;
        if (stats->operations == 0) continue;
        fprintf(out, "%-32.32s %12llu %10llu %10.3f %12.3f %12.3f %12.3f %6.1f %%\n",
                report->rows[i].tensor->name, (unsigned long long)stats->bytes,
                (unsigned long long)stats->operations, per(stats->ahead_ns, stats->operations),
                per(stats->queued_ns, stats->operations), per(stats->transfer_ns, stats->operations),
                per(stats->exposed_ns, stats->operations),
                report->exposed_ns > 0 ? 100 * (double)stats->exposed_ns / report->exposed_ns : 0);
    }
    if (report->count > ROWS) fprintf(out, "and %u more\n", report->count - ROWS);
}

/* What to change for the most exposed tensors. */
static void print_advice(const struct report *report, FILE *out)
{
    const struct weft_session *session = report->session;
    const struct row *most = &report->rows[0];
    const double peers_ns = (double)session->totals.exposed_peers_ns;
    if (report->exposed_ns <= NEGLIGIBLE * report->step_ns) {
        fprintf(out, "Communication is hidden: nothing to change.\n");
        return;
    }
    if (peers_ns > report->exposed_ns / 2)
        fprintf(out,
                "Most of it is waiting for slower ranks: balance the batches, or see what delays them.\n");
    if (report->exposed_ns - report->tensors_ns > report->exposed_ns / 2)
        fprintf(out,
                "Most of it is in calls without a tensor (section 4 of weft.h): start them earlier, and wait "
                "for them later.\n");
    if (report->count == 0 || most->stats.exposed_ns == 0 ||
        report->exposed_ns - peers_ns <= NEGLIGIBLE * report->step_ns)
        return;
    const struct weft_tensor_stats *stats = &most->stats;
    if (stats->ahead_ns < (stats->queued_ns + stats->transfer_ns) / 4 && !session->totals.delivers_late)
        fprintf(out,
                "Tensor '%s' is pushed just before it is waited for: push it as soon as its gradient is "
                "complete, inside the backward pass.\n",
                most->tensor->name);
    else if (stats->queued_ns > stats->transfer_ns)
        fprintf(out, "Tensor '%s' waits behind others: push it earlier, or wait for it later.\n",
                most->tensor->name);
    else
        fprintf(out,
                "The transfer of tensor '%s' takes longer than the computation beside it: use a codec "
                "(\"bf16\", \"auto:lossy\"), a larger batch, or a faster link.\n",
                most->tensor->name);
    if (!session->totals.delivers_late)
        fprintf(out, "Steps with deliver_late and weft_tensor_wait let results arrive under the next forward "
                     "pass.\n");
}

static void print_report(const struct report *report, FILE *out)
{
    const struct client_totals *totals = &report->session->totals;
    const double all = report->step_ns > 0 ? report->step_ns : 1;
    fprintf(out,
            "rank %u of %u: %llu steps of %.3f ms; %.1f %% of it waiting in weft: %.1f %% for slower ranks, "
            "%.1f %% for the network\n",
            report->session->rank, report->session->ranks, (unsigned long long)totals->steps_ended,
            per(totals->step_ns, totals->steps_ended), 100 * report->exposed_ns / all,
            100 * (double)totals->exposed_peers_ns / all,
            100 * (report->exposed_ns - (double)totals->exposed_peers_ns) / all);
    fprintf(out, "waiting outside steps: %.3f ms in all\n", 1e-6 * (double)totals->waited_outside_ns);
    if (report->count > 0) print_rows(report, out);
    print_advice(report, out);
}

/* 0, or the errno of the failure. */
static int write_report(const struct report *report, const char *directory)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/exposed-rank%u.txt", directory, report->session->rank) >=
        (int)sizeof path)
        return ENAMETOOLONG;
    FILE *file = fopen(path, "we");
    if (!file) return errno;
    errno = 0;
    print_report(report, file);
    const int reason = ferror(file) ? (errno ? errno : EIO) : 0;
    return fclose(file) != 0 && !reason ? errno : reason;
}

void client_exposed_report(struct weft_session *session)
{
    const char *directory = weft_config_text(session->settings.config, "client.exposed_report");
    struct report report = {.session = session};
    if (!directory[0]) return;
    const int reason = collect(&report) ? write_report(&report, directory) : ENOMEM;
    if (reason)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "the report of waiting times cannot be written to %s: %s", directory, strerror(reason));
    weft_free_bytes(session->env, report.rows);
}
