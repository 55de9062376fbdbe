/* top_print.c - the screen and the JSON of `weft top`. */
#include <string.h>

#include "tools/size.h"
#include "tools/target.h"
#include "tools/top/top.h"

struct screen {
    FILE *out;
    unsigned lines_left, columns; /* columns 0: no limit */
};

/* Cuts a line to the screen. Texts of other processes are ASCII or '?', so a byte is a column. */
static void print_line(struct screen *screen, const char *text)
{
    if (screen->columns > 0) fprintf(screen->out, "%.*s\n", (int)screen->columns, text);
    else fprintf(screen->out, "%s\n", text);
    if (screen->lines_left > 0) screen->lines_left--;
}

static void format_rate(double bytes, char out[32])
{
    char text[24];
    tool_bytes_format((long long)bytes, text);
    snprintf(out, 32, "%s/s", text);
}

static void format_part(bool known, double part, char out[16])
{
    if (known) snprintf(out, 16, "%.1f%%", part * 100);
    else snprintf(out, 16, "-");
}

static void print_row(struct screen *screen, const struct top_row *row)
{
    char line[320], name[32], sent[32], received[32], step[16] = "-", exposed[16], peers[16], age[16] = "-";
    snprintf(name, sizeof name, "%s %lld", row->is_worker ? "rank" : "shard", row->index);
    format_rate(row->sent_bytes, sent);
    format_rate(row->received_bytes, received);
    const bool has_steps = row->step_seconds > 0;
    if (has_steps) snprintf(step, sizeof step, "%.3g ms", row->step_seconds * 1000);
    format_part(has_steps, row->exposed, exposed);
    format_part(has_steps, row->exposed_peers, peers);
    if (row->has_report) snprintf(age, sizeof age, "%.1f s", row->age);
    snprintf(line, sizeof line, "%-10s %-10s %-16.16s %9.4g %10s %9s %9s %9.4g %12s %12s %8.1f s %8s", name,
             row->state, row->host, row->steps, step, exposed, peers, row->operations, sent, received,
             row->open_seconds, age);
    print_line(screen, line);
}

static void print_head(struct screen *screen, const json_t *status)
{
    char line[640];
    snprintf(line, sizeof line,
             "job %.200s is %s for %.1f s: %lld workers, %lld shards, epoch %lld, weft %.20s",
             tool_json_text(status, "job"), tool_json_text(status, "state"),
             (double)tool_json_number(status, "uptime_ms") / 1000, tool_json_number(status, "workers"),
             tool_json_number(status, "shards"), tool_json_number(status, "epoch"),
             tool_json_text(status, "weft_version"));
    print_line(screen, line);
    snprintf(line, sizeof line, "%-10s %-10s %-16s %9s %10s %9s %9s %9s %12s %12s %10s %8s", "member",
             "state", "host", "steps/s", "step", "exposed", "peers", "ops/s", "sent", "received", "open",
             "report");
    print_line(screen, line);
}

/* What a member waits for: a worker's oldest operation, a shard's oldest round. */
static void print_waits(struct screen *screen, const struct top_rows *rows)
{
    char line[500];
    for (size_t i = 0; i < rows->count && screen->lines_left > 0; i++) {
        const struct top_row *row = &rows->rows[i];
        if (row->open_seconds < TOP_WAITS_SECONDS) continue;
        if (row->is_worker)
            snprintf(line, sizeof line, "rank %lld: %.1f s in %s", row->index, row->open_seconds,
                     row->open[0] ? row->open : "an operation");
        else
            snprintf(line, sizeof line,
                     "shard %lld: %lld open rounds, the oldest for %.1f s; it lacks %lld workers", row->index,
                     row->rounds_open, row->open_seconds, row->missing);
        print_line(screen, line);
    }
}

/* One line for each pair of hosts, while lines are left. */
static void print_links(struct screen *screen, const struct top_rows *rows)
{
    char line[320], rate[32];
    if (rows->link_count == 0 || screen->lines_left < 2) return;
    snprintf(line, sizeof line, "%-16s %-16s %12s %8s", "from host", "to host", "sent", "pairs");
    print_line(screen, line);
    for (size_t i = 0; i < rows->link_count && screen->lines_left > 0; i++) {
        const struct top_link *link = &rows->links[i];
        format_rate(link->sent_bytes, rate);
        snprintf(line, sizeof line, "%-16.16s %-16.16s %12s %8lld", link->from, link->to, rate, link->pairs);
        print_line(screen, line);
    }
}

static unsigned count_waits(const struct top_rows *rows)
{
    unsigned count = 0;
    for (size_t i = 0; i < rows->count; i++) count += rows->rows[i].open_seconds >= TOP_WAITS_SECONDS;
    return count;
}

void top_print(FILE *out, const json_t *status, const struct top_rows *rows, unsigned lines, unsigned columns)
{
    struct screen screen = {.out = out, .lines_left = lines ? lines : ~0u, .columns = columns};
    unsigned waits = count_waits(rows), reserved;
    char line[64];
    size_t shown = 0;
    print_head(&screen, status);
    if (waits > screen.lines_left / 3) waits = screen.lines_left / 3;
    reserved = waits + 1; /* and the count of rows that do not fit */
    for (; shown < rows->count && screen.lines_left > reserved; shown++)
        print_row(&screen, &rows->rows[shown]);
    if (shown < rows->count) {
        snprintf(line, sizeof line, "... and %zu more members", rows->count - shown);
        print_line(&screen, line);
    }
    print_waits(&screen, rows);
    print_links(&screen, rows);
}

static json_t *json_of_row(const struct top_row *row)
{
    return json_pack(
        "{s:s, s:I, s:s, s:s, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:s}",
        "role", row->is_worker ? "worker" : "shard", "index", (json_int_t)row->index, "state", row->state,
        "host", row->host, "pid", (json_int_t)row->pid, "has_report", (int)row->has_report,
        "report_age_seconds", row->age, "interval_seconds", row->seconds,
        row->is_worker ? "steps_per_second" : "rounds_per_second", row->steps, "operations_per_second",
        row->operations, "sent_bytes_per_second", row->sent_bytes, "received_bytes_per_second",
        row->received_bytes, "step_seconds", row->step_seconds, "exposed_ratio", row->exposed,
        "exposed_peers_ratio", row->exposed_peers, "open_seconds", row->open_seconds, "rounds_open",
        (json_int_t)row->rounds_open, "missing_workers", (json_int_t)row->missing, "open", row->open);
}

void top_print_json(FILE *out, const json_t *status, const struct top_rows *rows)
{
    json_t *members = json_array(), *links = json_array();
    for (size_t i = 0; i < rows->link_count; i++)
        json_array_append_new(links, json_pack("{s:s, s:s, s:f, s:I}", "from", rows->links[i].from, "to",
                                               rows->links[i].to, "sent_bytes_per_second",
                                               rows->links[i].sent_bytes, "pairs",
                                               (json_int_t)rows->links[i].pairs));
    for (size_t i = 0; i < rows->count; i++) json_array_append_new(members, json_of_row(&rows->rows[i]));
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "job", tool_json_text(status, "job"),
                             "state", tool_json_text(status, "state"), "uptime_ms",
                             (json_int_t)tool_json_number(status, "uptime_ms"), "workers",
                             (json_int_t)tool_json_number(status, "workers"), "shards",
                             (json_int_t)tool_json_number(status, "shards"), "epoch",
                             (json_int_t)tool_json_number(status, "epoch"), "members", members,
                             "links", links);
    if (!root) return;
    json_dumpf(root, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(root);
}
