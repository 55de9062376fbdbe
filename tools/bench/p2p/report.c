/* report.c - see report.h. */
#include "tools/bench/p2p/report.h"
#include "tools/bench/lib/rows.h"
#include "tools/size.h"

#include <inttypes.h>
#include <jansson.h>

void p2p_report_begin(struct p2p_report *report)
{
    const struct p2p_options *options = report->options;
    if (options->json) return;
    fprintf(
        report->out,
        "# weft bench p2p: %" PRIu32 " processes, transport %s, wait %s, %s memory, pattern %s, eager %s\n",
        report->ranks, report->transport, p2p_wait_name(options->wait), report->mapped ? "mapped" : "plain",
        p2p_pattern_name(options->pattern), options->eager_bytes == UINT64_MAX ? "default" : "as given");
    fflush(report->out);
}

static void clear_progress(const struct p2p_report *report)
{
    if (report->options->progress) fputs("\r\033[K", stderr);
}

void p2p_report_progress(struct p2p_report *report, unsigned op, unsigned measure, uint64_t bytes)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1], size[24];
    if (!report->options->progress || report->rows_total == 0) return;
    uint32_t filled = report->rows * WIDTH / report->rows_total;
    for (uint32_t i = 0; i < WIDTH; i++) bar[i] = i < filled ? '#' : '.';
    bar[WIDTH] = 0;
    tool_size_format(bytes, size, sizeof size);
    fprintf(stderr, "\r\033[K[%s] %" PRIu32 "/%" PRIu32 " %s %s %s", bar, report->rows + 1,
            report->rows_total, p2p_op_name(op), p2p_measure_name(measure), size);
    fflush(stderr);
}

static void print_head(struct p2p_report *report, const struct p2p_row *row)
{
    if (row->measure == report->last_measure && row->op == report->last_op) return;
    report->last_measure = row->measure;
    report->last_op = row->op;
    fprintf(report->out, "# %s %s, window %" PRIu32 ", way: %s\n", p2p_op_name(row->op),
            p2p_measure_name(row->measure), row->window, row->path_text);
    if (row->measure == P2P_LATENCY) {
        fprintf(report->out, "#%11s %9s %9s %9s %9s %9s %9s %9s %9s %7s\n", "bytes", "iters", "t_min",
                "t_max", "t_typical", "t_avg", "t_stdev", "99%", "99.9%", "#wrong");
        fprintf(report->out, "#%11s %9s %9s %9s %9s %9s %9s %9s %9s %7s\n", "", "", "(us)", "(us)", "(us)",
                "(us)", "(us)", "(us)", "(us)", "");
    } else {
        fprintf(report->out, "#%11s %9s %9s %9s %9s %9s %9s %9s %7s\n", "bytes", "iters", "BW peak", "BW avg",
                "MsgRate", "CPU", "copies", "syscalls", "#wrong");
        fprintf(report->out, "#%11s %9s %9s %9s %9s %9s %9s %9s %7s\n", "", "", "(GB/s)", "(GB/s)", "(M/s)",
                "(s/GB)", "(/msg)", "(/msg)", "");
    }
}

static void print_row(struct p2p_report *report, const struct p2p_row *row)
{
    print_head(report, row);
    fprintf(report->out, " %11" PRIu64 " %9" PRIu64, row->bytes, row->iters);
    if (row->measure == P2P_LATENCY) {
        fprintf(report->out, " %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f", row->t_min, row->t_max,
                row->t_typical, row->t_avg, row->t_stdev, row->t_99, row->t_999);
    } else {
        fprintf(report->out, " %9.3f %9.3f %9.4f %9.3f %9.2f %9.2f", row->peak_GBps, row->avg_GBps,
                row->rate_Mps, row->cpu_s_per_GB, row->copies, row->system_calls);
    }
    fprintf(report->out, " %7" PRIu64 "\n", row->wrong);
}

static void print_json(struct p2p_report *report, const struct p2p_row *row)
{
    const struct p2p_options *options = report->options;
    json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "bench",
                               "p2p", "op", p2p_op_name(row->op), "measure", p2p_measure_name(row->measure),
                               "transport", options->transport.text, "way", row->path_text, "wait",
                               p2p_wait_name(options->wait), "pattern", p2p_pattern_name(options->pattern),
                               "memory", report->mapped ? "mapped" : "plain", "ranks", (json_int_t)row->ranks,
                               "bytes", (json_int_t)row->bytes, "iters", (json_int_t)row->iters, "window",
                               (json_int_t)row->window, "wrong", (json_int_t)row->wrong);
    if (row->measure == P2P_LATENCY) {
        json_object_update_new(object, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "t_min_us",
                                                 row->t_min, "t_max_us", row->t_max, "t_typical_us",
                                                 row->t_typical, "t_avg_us", row->t_avg, "t_stdev_us",
                                                 row->t_stdev, "t_99_us", row->t_99, "t_999_us", row->t_999));
    } else {
        json_object_update_new(object,
                               json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "peak_GBps", row->peak_GBps,
                                         "avg_GBps", row->avg_GBps, "rate_Mps", row->rate_Mps, "cpu_s_per_GB",
                                         row->cpu_s_per_GB, "copies", row->copies, "system_calls",
                                         row->system_calls, "seconds", row->seconds));
    }
    bench_row_print(report->out, object, 8);
}

void p2p_report_row(struct p2p_report *report, const struct p2p_row *row)
{
    clear_progress(report);
    if (report->options->json) print_json(report, row);
    else print_row(report, row);
    fflush(report->out);
    report->rows++;
    report->wrong += row->wrong;
}

bool p2p_report_end(struct p2p_report *report)
{
    if (!report->options->json)
        fprintf(report->out, "# wrong messages: %" PRIu64 "%s\n", report->wrong,
                report->wrong ? "  FAILED" : "");
    return fflush(report->out) == 0 && !ferror(report->out);
}
