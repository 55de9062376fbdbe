/* bench_report.c - see bench_report.h. Rows are printed as they come: a sweep of large sizes takes a
 * while. */
#include "tools/bench_report.h"
#include "tools/benchlib/rows.h"

#include <inttypes.h>
#include <jansson.h>

static bool has_in_place(const struct bench_report *report)
{
    return report->options->kind == BENCH_ALL_REDUCE;
}

static const char *plan_name(const struct bench_report *report)
{
    return report->options->kind == BENCH_PUSH_PULL ? "server" : report->options->plan;
}

void bench_report_begin(struct bench_report *report)
{
    const struct bench_options *options = report->options;
    if (options->json) return;
    fprintf(report->out,
            "# weft bench %s: %" PRIu32 " workers, %" PRIu32
            " shards, plan %s, transport %s, %u iterations after %u\n",
            bench_kind_name(options->kind), report->ranks, report->shards, plan_name(report),
            report->transport, options->iters, options->warmup);
    fprintf(report->out, "# memcpy on this host moves %.1f GB/s (read plus written)\n#\n", report->copy_gbps);
    if (has_in_place(report)) {
        fprintf(report->out, "#%43s%37s%37s\n", "", "out-of-place", "in-place");
    }
    fprintf(report->out, "#%12s %13s %7s %6s", "size", "count", "type", "redop");
    for (int part = 0; part <= has_in_place(report); part++)
        fprintf(report->out, " %10s %8s %8s %7s", "time", "algbw", "busbw", "#wrong");
    fprintf(report->out, "%s\n#%12s %13s %7s %6s", has_in_place(report) ? "" : "       step", "(B)",
            "(elements)", "", "");
    for (int part = 0; part <= has_in_place(report); part++)
        fprintf(report->out, " %10s %8s %8s %7s", "(us)", "(GB/s)", "(GB/s)", "");
    fprintf(report->out, "%s\n", has_in_place(report) ? "" : "       (us)");
    fflush(report->out);
}

static void print_timing(FILE *out, const struct bench_timing *timing)
{
    int digits = timing->time_us < 100 ? 2 : timing->time_us < 10000 ? 1 : 0;
    fprintf(out, " %10.*f %8.3f %8.3f %7" PRIu64, digits, timing->time_us, timing->algbw, timing->busbw,
            timing->wrong);
}

static void print_row(struct bench_report *report, const struct bench_row *row)
{
    const struct bench_options *options = report->options;
    const char *redop = options->kind == BENCH_PUSH_PULL ? "mean" : weft_op_name(options->op);
    fprintf(report->out, " %12" PRIu64 " %13" PRIu64 " %7s %6s", row->bytes, row->count,
            weft_dtype_name(options->dtype), redop);
    print_timing(report->out, &row->out_of_place);
    if (has_in_place(report)) print_timing(report->out, &row->in_place);
    else fprintf(report->out, " %10.1f", row->step_us);
    fputc('\n', report->out);
}

static void set_timing(json_t *object, const struct bench_timing *timing)
{
    const struct bench_summary *summary = &timing->summary;
    json_object_set_new(object, "time_us", json_real(timing->time_us));
    json_object_set_new(object, "algbw_GBps", json_real(timing->algbw));
    json_object_set_new(object, "busbw_GBps", json_real(timing->busbw));
    json_object_set_new(object, "p50_us", json_real(summary->p50));
    json_object_set_new(object, "p90_us", json_real(summary->p90));
    json_object_set_new(object, "p99_us", json_real(summary->p99));
    json_object_set_new(object, "min_us", json_real(summary->min));
    json_object_set_new(object, "max_us", json_real(summary->max));
}

static void print_json(struct bench_report *report, const struct bench_row *row)
{
    const struct bench_options *options = report->options;
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:I, s:I}", "op", bench_kind_name(options->kind), "plan",
                  plan_name(report), "transport", report->transport, "ranks", (json_int_t)report->ranks,
                  "shards", (json_int_t)report->shards, "dtype", weft_dtype_name(options->dtype), "bytes",
                  (json_int_t)row->bytes, "count", (json_int_t)row->count);
    uint64_t wrong = row->out_of_place.wrong + (has_in_place(report) ? row->in_place.wrong : 0);
    set_timing(object, &row->out_of_place);
    json_object_set_new(object, "wrong", json_integer((json_int_t)wrong));
    json_object_set_new(object, "redop",
                        json_string(options->kind == BENCH_PUSH_PULL ? "mean" : weft_op_name(options->op)));
    json_object_set_new(object, "iters", json_integer((json_int_t)options->iters));
    json_object_set_new(object, "copy_GBps", json_real(report->copy_gbps));
    if (has_in_place(report)) {
        json_t *in_place = json_object();
        json_object_set_new(object, "plan_taken", json_string(row->plan_taken));
        set_timing(in_place, &row->in_place);
        json_object_set_new(in_place, "wrong", json_integer((json_int_t)row->in_place.wrong));
        json_object_set_new(object, "in_place", in_place);
    } else {
        json_object_set_new(object, "step_us", json_real(row->step_us));
    }
    bench_row_print(report->out, object, 8);
}

void bench_report_row(struct bench_report *report, const struct bench_row *row)
{
    if (report->options->json) print_json(report, row);
    else print_row(report, row);
    fflush(report->out);
    report->plan_taken = row->plan_taken;
    report->busbw_sum += row->out_of_place.busbw + (has_in_place(report) ? row->in_place.busbw : 0);
    report->row_count += has_in_place(report) ? 2 : 1;
    report->wrong += row->out_of_place.wrong + (has_in_place(report) ? row->in_place.wrong : 0);
}

bool bench_report_end(struct bench_report *report)
{
    if (!report->options->json) {
        fprintf(report->out, "# wrong elements: %" PRIu64 "%s\n", report->wrong,
                report->wrong ? "  FAILED" : "");
        if (report->plan_taken) fprintf(report->out, "# plan taken (last row): %s\n", report->plan_taken);
        fprintf(report->out, "# average bus bandwidth: %.3f GB/s\n",
                report->row_count ? report->busbw_sum / (double)report->row_count : 0.0);
    }
    return fflush(report->out) == 0 && !ferror(report->out);
}
