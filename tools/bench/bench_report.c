/* bench_report.c - see bench_report.h. Each row is printed at once, because large sizes take long. */
#include "tools/bench/bench_report.h"
#include "tools/bench/lib/rows.h"

#include <inttypes.h>
#include <jansson.h>

static bool is_operation(const struct bench_report *report)
{
    return report->options->kind == BENCH_OPERATION;
}

static bool has_in_place(const struct bench_report *report)
{
    return is_operation(report);
}

static const char *plan_name(const struct bench_report *report)
{
    return is_operation(report) ? report->options->plan : "server";
}

static const char *redop_name(const struct bench_report *report, const struct bench_row *row)
{
    if (!is_operation(report)) return "mean";
    return row->op == WEFT_SCALED_SUM ? "mulsum" : row->op ? weft_op_name(row->op) : "none";
}

/* ---- the table ---- */

static void print_head(const struct bench_report *report, bool units)
{
    const struct bench_options *options = report->options;
    FILE *out = report->out;
    fprintf(out, "#%12s %13s %7s %6s %4s", units ? "(B)" : "size", units ? "(elements)" : "count",
            units ? "" : "type", units ? "" : "redop", units ? "" : "root");
    for (int form = 0; form <= has_in_place(report); form++) {
        fprintf(out, " %10s %8s %8s %7s", units ? "(us)" : "time", units ? "(GB/s)" : "algbw",
                units ? "(GB/s)" : "busbw", units ? "" : "#wrong");
        if (options->report.percentiles)
            fprintf(out, " %9s %9s %9s %9s %9s", units ? "(us)" : "min", units ? "(us)" : "p50",
                    units ? "(us)" : "p95", units ? "(us)" : "p99", units ? "(us)" : "max");
        if (options->report.cpu) fprintf(out, " %9s", units ? "(us)" : "CPU");
    }
    if (options->report.overlap)
        fprintf(out, " %9s %9s %8s %9s %8s", units ? "(us)" : "overall", units ? "(us)" : "compute",
                units ? "(us)" : "start", units ? "(us)" : "wait", units ? "(%)" : "overlap");
    if (options->report.limit)
        fprintf(out, " %9s %8s %8s", units ? "(us)" : "limit", units ? "(GB/s)" : "memory",
                units ? "(%)" : "of limit");
    fprintf(out, "%s\n", is_operation(report) ? "" : units ? "       (us)" : "       step");
}

void bench_report_begin(struct bench_report *report)
{
    const struct bench_options *options = report->options;
    if (options->report.json) return;
    fprintf(report->out,
            "# weft bench %s: %" PRIu32 " workers, %" PRIu32
            " shards, plan %s, transport %s, %u iterations after %u\n",
            bench_name(options), report->ranks, report->shards, plan_name(report), report->transport,
            options->iters, options->warmup);
    fprintf(report->out, "# memcpy on this host moves %.1f GB/s (read plus written)\n#\n", report->copy_gbps);
    int width = 37 + 50 * options->report.percentiles + 10 * options->report.cpu;
    if (has_in_place(report))
        fprintf(report->out, "#%48s%*s%*s\n", "", width, "out-of-place", width, "in-place");
    print_head(report, false);
    print_head(report, true);
    fflush(report->out);
}

static void print_us(FILE *out, int width, double us)
{
    fprintf(out, " %*.*f", width, us < 100 ? 2 : us < 10000 ? 1 : 0, us);
}

static void print_timing(const struct bench_report *report, const struct bench_timing *timing)
{
    const struct bench_options *options = report->options;
    const struct bench_summary *summary = &timing->summary;
    FILE *out = report->out;
    if (!timing->has_value) {
        fprintf(out, " %10s %8s %8s %7s", "-", "-", "-", "-");
        for (int i = 0; i < 5 * options->report.percentiles + options->report.cpu; i++)
            fprintf(out, " %9s", "-");
        return;
    }
    print_us(out, 10, timing->time_us);
    fprintf(out, " %8.3f %8.3f", timing->algbw, timing->busbw);
    if (timing->checked) fprintf(out, " %7" PRIu64, timing->wrong);
    else fprintf(out, " %7s", "N/A");
    const double percentiles[] = {summary->min, summary->p50, summary->p95, summary->p99, summary->max};
    for (int i = 0; options->report.percentiles && i < 5; i++) print_us(out, 9, percentiles[i]);
    if (options->report.cpu) print_us(out, 9, timing->cpu_us);
}

static void print_row(struct bench_report *report, const struct bench_row *row)
{
    fprintf(report->out, " %12" PRIu64 " %13" PRIu64 " %7s %6s %4d", row->bytes, row->count,
            weft_dtype_name(row->dtype), redop_name(report, row), row->root);
    print_timing(report, &row->out_of_place);
    if (has_in_place(report)) print_timing(report, &row->in_place);
    else fprintf(report->out, " %10.1f", row->step_us);
    if (row->overlap.has_value) {
        print_us(report->out, 9, row->overlap.overall_us);
        print_us(report->out, 9, row->overlap.compute_us);
        print_us(report->out, 8, row->overlap.start_us);
        print_us(report->out, 9, row->overlap.wait_us);
        fprintf(report->out, " %8.1f", row->overlap.percent);
    }
    if (row->limit.has_value) {
        print_us(report->out, 9, row->limit.us);
        fprintf(report->out, " %8.2f %8.1f", row->limit.gbps, row->limit.percent);
    }
    fputc('\n', report->out);
}

/* ---- JSON ---- */

static void set_timing(json_t *object, const struct bench_timing *timing)
{
    const struct bench_summary *summary = &timing->summary;
    json_object_set_new(object, "time_us", json_real(timing->time_us));
    json_object_set_new(object, "algbw_GBps", json_real(timing->algbw));
    json_object_set_new(object, "busbw_GBps", json_real(timing->busbw));
    json_object_set_new(object, "p50_us", json_real(summary->p50));
    json_object_set_new(object, "p90_us", json_real(summary->p90));
    json_object_set_new(object, "p95_us", json_real(summary->p95));
    json_object_set_new(object, "p99_us", json_real(summary->p99));
    json_object_set_new(object, "min_us", json_real(summary->min));
    json_object_set_new(object, "max_us", json_real(summary->max));
    json_object_set_new(object, "cpu_us_per_op", json_real(timing->cpu_us));
}

static void set_overlap(json_t *object, const struct bench_overlap *overlap)
{
    if (!overlap->has_value) return;
    json_object_set_new(object, "overlap",
                        json_pack("{s:f, s:f, s:f, s:f, s:f}", "percent", overlap->percent, "overall_us",
                                  overlap->overall_us, "compute_us", overlap->compute_us, "start_us",
                                  overlap->start_us, "wait_us", overlap->wait_us));
}

static uint64_t wrong_of(const struct bench_row *row)
{
    return row->out_of_place.wrong + row->in_place.wrong;
}

static void print_json(struct bench_report *report, const struct bench_row *row)
{
    const struct bench_options *options = report->options;
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:I, s:I}", "op", bench_name(options), "plan",
                  plan_name(report), "transport", report->transport, "ranks", (json_int_t)report->ranks,
                  "shards", (json_int_t)report->shards, "dtype", weft_dtype_name(row->dtype), "bytes",
                  (json_int_t)row->bytes, "count", (json_int_t)row->count);
    bool only_in_place = !row->out_of_place.has_value;
    set_timing(object, only_in_place ? &row->in_place : &row->out_of_place);
    if (row->out_of_place.checked || row->in_place.checked)
        json_object_set_new(object, "wrong", json_integer((json_int_t)wrong_of(row)));
    json_object_set_new(object, "redop", json_string(redop_name(report, row)));
    if (row->root >= 0) json_object_set_new(object, "root", json_integer(row->root));
    json_object_set_new(object, "iters", json_integer((json_int_t)options->iters));
    if (is_operation(report))
        json_object_set_new(object, "memory", json_string(options->uses_malloc ? "plain" : "mapped"));
    json_object_set_new(object, "copy_GBps", json_real(report->copy_gbps));
    json_object_set_new(object, "pss_bytes", json_integer((json_int_t)row->pss_bytes));
    if (row->last_plan) json_object_set_new(object, "plan_taken", json_string(row->last_plan));
    if (row->in_place.has_value) {
        json_t *in_place = json_object();
        set_timing(in_place, &row->in_place);
        if (row->in_place.checked)
            json_object_set_new(in_place, "wrong", json_integer((json_int_t)row->in_place.wrong));
        json_object_set_new(object, "in_place", in_place);
    }
    set_overlap(object, &row->overlap);
    if (row->limit.has_value)
        json_object_set_new(object, "limit",
                            json_pack("{s:f, s:f, s:f}", "time_us", row->limit.us, "memory_GBps",
                                      row->limit.gbps, "percent", row->limit.percent));
    if (!is_operation(report)) json_object_set_new(object, "step_us", json_real(row->step_us));
    if (row->shard_bytes > 0)
        json_object_set_new(object, "shard_bytes_per_step", json_real(row->shard_bytes));
    bench_row_print(report->out, object, 8);
}

/* ---- report ---- */

void bench_report_row(struct bench_report *report, const struct bench_row *row)
{
    const struct bench_timing *forms[] = {&row->out_of_place, &row->in_place};
    if (report->options->report.json) print_json(report, row);
    else print_row(report, row);
    fflush(report->out);
    report->last_plan = row->last_plan;
    report->wrong += wrong_of(row);
    if (row->pss_bytes > report->pss_bytes) report->pss_bytes = row->pss_bytes;
    for (int form = 0; form < 2; form++) {
        report->busbw_sum += forms[form]->busbw;
        report->row_count += forms[form]->has_value;
        report->cpu_us += forms[form]->cpu_us * report->options->iters * report->options->inflight;
    }
    if (report->options->plot) bench_curves_add(&report->curves, row);
}

static bool draw(const struct bench_report *report)
{
    char title[80], subtitle[256];
    if (!report->options->plot) return true;
    snprintf(title, sizeof title, "weft bench %s, %" PRIu32 " ranks", bench_name(report->options),
             report->ranks);
    snprintf(subtitle, sizeof subtitle, "plan %s; %s", plan_name(report), report->transport);
    return bench_curves_write(report->curves, report->options->plot, title, subtitle);
}

bool bench_report_end(struct bench_report *report)
{
    if (!report->options->report.json) {
        /* these two lines as nccl-tests prints them: scripts search for them */
        fprintf(report->out, "# Out of bounds values : %" PRIu64 " %s\n", report->wrong,
                report->wrong ? "FAILED" : "OK");
        fprintf(report->out, "# Avg bus bandwidth    : %g \n",
                report->row_count ? report->busbw_sum / (double)report->row_count : 0.0);
        if (report->last_plan && is_operation(report))
            fprintf(report->out, "# plan taken (last row): %s\n", report->last_plan);
        fprintf(report->out,
                "# processor time of the timed operations: %.3f s, all ranks; memory of the largest rank: "
                "%.1f MiB (Pss), the buffers in it\n",
                1e-6 * report->cpu_us, (double)report->pss_bytes / (1 << 20));
    }
    bool drawn = draw(report);
    return fflush(report->out) == 0 && !ferror(report->out) && drawn;
}

void bench_report_free(struct bench_report *report)
{
    bench_curves_free(report->curves);
    report->curves = NULL;
}
