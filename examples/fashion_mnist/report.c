/* report.c - see report.h. Rows are flushed at once, so that a reader can follow a run. */
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static void write_json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') fprintf(out, "\\%c", *c);
        else if (*c < 0x20) fprintf(out, "\\u%04x", *c);
        else fputc(*c, out);
    }
    fputc('"', out);
}

static FILE *open_for_writing(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file) fprintf(stderr, "fashion_mnist: cannot write the report %s: %s\n", path, strerror(errno));
    return file;
}

bool report_open(struct report *report, const char *csv_path, const char *json_path)
{
    *report =
        (struct report){.csv_path = csv_path, .json_path = json_path, .bar = isatty(STDERR_FILENO) == 1};
    if (csv_path && !(report->csv = open_for_writing(csv_path))) return false;
    if (json_path && !(report->json = open_for_writing(json_path))) {
        if (report->csv) fclose(report->csv);
        return false;
    }
    if (report->csv)
        fprintf(report->csv, "step,epoch,seconds,sent_bytes,received_bytes,train_loss,test_loss,accuracy\n");
    if (report->json) fprintf(report->json, "{\"evaluations\": [");
    return true;
}

void report_add(struct report *report, const struct measurement *m)
{
    if (report->csv) {
        fprintf(report->csv, "%" PRIu64 ",%.4f,%.4f,%.0f,%.0f,%.6f,%.6f,%.4f\n", m->step, m->epoch,
                m->seconds, m->sent_bytes, m->received_bytes, m->train_loss, m->test_loss, m->accuracy);
        fflush(report->csv);
    }
    if (report->json) {
        fprintf(report->json,
                "%s\n  {\"step\": %" PRIu64 ", \"epoch\": %.4f, \"seconds\": %.4f, \"sent_bytes\": %.0f, "
                "\"received_bytes\": %.0f, \"train_loss\": %.6f, \"test_loss\": %.6f, \"accuracy\": %.4f}",
                report->any ? "," : "", m->step, m->epoch, m->seconds, m->sent_bytes, m->received_bytes,
                m->train_loss, m->test_loss, m->accuracy);
    }
    report->last = *m;
    report->any = true;
}

void report_progress(struct report *report, uint64_t step, uint64_t steps, double seconds, double loss)
{
    if (!report->bar) return;
    enum { WIDTH = 30 };
    char filled[WIDTH + 1];
    int full = (int)(step * WIDTH / (steps ? steps : 1));
    for (int i = 0; i < WIDTH; i++) filled[i] = i < full ? '#' : '.';
    filled[WIDTH] = 0;
    fprintf(stderr, "\r[%s] step %" PRIu64 " of %" PRIu64 "  %.1f s  loss %.3f  accuracy %.2f %%  ", filled,
            step, steps, seconds, loss, 100 * report->last.accuracy);
    if (step == steps) fputc('\n', stderr);
}

static bool close_file(FILE *file, const char *path)
{
    if (!file) return true;
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        fprintf(stderr, "fashion_mnist: cannot write the report %s: %s\n", path,
                errno ? strerror(errno) : "write failed");
        return false;
    }
    return true;
}

/* Prints a line for each tensor whose codec the library chose, and writes all tensors to the JSON. */
static void write_tensors(FILE *json, const struct summary *s)
{
    if (json) fprintf(json, "\"tensors\": [");
    for (size_t i = 0; i < s->tensor_count; i++) {
        const struct tensor_summary *t = &s->tensors[i];
        if (t->chosen)
            printf("  %s: %s since step %" PRIu64 ", changed %" PRIu64
                   " times, %.1f MB and %.2f s of exchange saved\n",
                   t->name, t->codec, t->since_step, t->changes, t->saved_bytes / 1e6, t->saved_seconds);
        if (!json) continue;
        fprintf(json, "%s{\"name\": ", i ? ",\n  " : "");
        write_json_text(json, t->name);
        fprintf(json, ", \"codec\": ");
        write_json_text(json, t->codec);
        fprintf(json,
                ", \"chosen\": %s, \"since_step\": %" PRIu64 ", \"changes\": %" PRIu64
                ", \"saved_bytes\": %.0f, \"saved_seconds\": %.4f}",
                t->chosen ? "true" : "false", t->since_step, t->changes, t->saved_bytes, t->saved_seconds);
    }
    if (json) fprintf(json, "],\n");
}

bool report_close(struct report *report, const struct summary *s)
{
    const struct measurement *m = &report->last;
    printf("mode %s, codec %s, workers %u, shards %u, seed %" PRIu64 ", steps %" PRIu64 "\n", s->mode,
           s->codec, s->workers, s->shards, s->seed, s->steps);
    printf("test accuracy %.2f %%, %.1f s of training, %.0f images/s, %.1f MB sent and %.1f MB received per "
           "worker, "
           "%.1f %% of step time waiting, weights %016" PRIx64 "\n",
           100 * m->accuracy, s->seconds, s->images_per_second, m->sent_bytes / 1e6, m->received_bytes / 1e6,
           100 * s->exposed_share, s->weight_hash);
    if (report->json) fprintf(report->json, "],\n");
    write_tensors(report->json, s);
    if (report->json) {
        fprintf(report->json, "\"mode\": ");
        write_json_text(report->json, s->mode);
        fprintf(report->json, ", \"codec\": ");
        write_json_text(report->json, s->codec);
        fprintf(report->json, ", \"workers\": %u, \"shards\": %u, \"batch\": %u, \"seed\": %" PRIu64 ",\n",
                s->workers, s->shards, s->batch, s->seed);
        fprintf(report->json,
                "\"steps\": %" PRIu64 ", \"steps_planned\": %" PRIu64
                ", \"seconds\": %.4f, \"images_per_second\": %.1f, "
                "\"exposed_share\": %.5f,\n",
                s->steps, s->steps_planned, s->seconds, s->images_per_second, s->exposed_share);
        fprintf(report->json,
                "\"sent_bytes\": %.0f, \"received_bytes\": %.0f, \"accuracy\": %.4f, \"test_loss\": %.6f, "
                "\"weight_hash\": \"%016" PRIx64 "\", \"finished\": true}\n",
                m->sent_bytes, m->received_bytes, m->accuracy, m->test_loss, s->weight_hash);
    }
    bool csv_fine = close_file(report->csv, report->csv_path);
    return close_file(report->json, report->json_path) && csv_fine;
}

void report_abandon(struct report *report, const char *why)
{
    if (report->json) {
        fprintf(report->json, "], \"finished\": false, \"error\": ");
        write_json_text(report->json, why);
        fprintf(report->json, "}\n");
    }
    close_file(report->csv, report->csv_path);
    close_file(report->json, report->json_path);
}
