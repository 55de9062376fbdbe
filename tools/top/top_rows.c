/* top_rows.c - see top.h. A rate is the difference of two reports of a member over the time between them,
 * which follows from the ages of both. */
#include <stdlib.h>
#include <string.h>

#include "tools/target.h"
#include "tools/top/top.h"

/* The same member in another status; NULL: none. A rank that was replaced is another member. */
static const json_t *find_member(const json_t *status, const json_t *member)
{
    size_t i;
    json_t *other;
    json_array_foreach (json_object_get(status, "members"), i, other)
        if (tool_json_number(other, "incarnation") == tool_json_number(member, "incarnation") &&
            strcmp(tool_json_text(other, "role"), tool_json_text(member, "role")) == 0)
            return other;
    return NULL;
}

/* The report of the same member in an earlier status; NULL: none. */
static const json_t *report_of(const json_t *before, const json_t *member)
{
    const json_t *earlier = before ? find_member(before, member) : NULL;
    const json_t *report = earlier ? json_object_get(earlier, "report") : NULL;
    return json_is_object(report) ? report : NULL;
}

static double seconds_of(const json_t *report, const char *key)
{
    return (double)tool_json_number(report, key) / 1e9;
}

/* Increase of a counter; a smaller one began anew. */
static double increase(const json_t *before, const json_t *now, const char *key)
{
    const long long from = before ? tool_json_number(before, key) : 0, to = tool_json_number(now, key);
    return (double)(to >= from ? to - from : to);
}

static void fill_rates(struct top_row *row, const json_t *before, const json_t *now)
{
    const double steps = increase(before, now, "steps"), step_ns = increase(before, now, "step_ns");
    if (row->seconds <= 0) return;
    row->steps = (row->is_worker ? steps : increase(before, now, "rounds")) / row->seconds;
    row->operations = increase(before, now, "operations") / row->seconds;
    row->sent_bytes = increase(before, now, "sent_bytes") / row->seconds;
    row->received_bytes = increase(before, now, "received_bytes") / row->seconds;
    if (steps <= 0 || step_ns <= 0) return;
    row->step_seconds = step_ns / 1e9 / steps;
    row->exposed = increase(before, now, "exposed_ns") / step_ns;
    row->exposed_peers = increase(before, now, "exposed_peers_ns") / step_ns;
}

/* earlier: the report of the member before; NULL: none. */
static void fill_report(struct top_row *row, const json_t *earlier, const json_t *report, double seconds)
{
    row->has_report = true;
    row->age = (double)tool_json_number(report, "age_ms") / 1000;
    row->seconds = seconds - row->age;
    if (earlier) row->seconds += (double)tool_json_number(earlier, "age_ms") / 1000;
    if (row->seconds < 0.05) row->seconds = 0; /* the same report twice */
    row->open_seconds = seconds_of(report, row->is_worker ? "open_ns" : "round_ns");
    row->rounds_open = tool_json_number(report, "rounds_open");
    row->missing = tool_json_number(report, "missing");
    if (row->is_worker) snprintf(row->open, sizeof row->open, "%s", tool_json_text(report, "open"));
    fill_rates(row, earlier, report);
}

static int compare(const void *a, const void *b)
{
    const struct top_row *left = a, *right = b;
    if (left->is_worker != right->is_worker) return left->is_worker ? -1 : 1;
    return (left->index > right->index) - (left->index < right->index);
}

bool top_rows_make(const json_t *before, const json_t *now, double seconds, struct top_rows *rows_out)
{
    const json_t *members = json_object_get(now, "members");
    size_t i;
    json_t *member;
    *rows_out = (struct top_rows){.count = json_array_size(members)};
    rows_out->rows = calloc(rows_out->count + 1, sizeof *rows_out->rows);
    if (!rows_out->rows) return false;
    if (!before) seconds = (double)tool_json_number(now, "uptime_ms") / 1000;
    json_array_foreach (members, i, member) {
        struct top_row *row = &rows_out->rows[i];
        row->is_worker = strcmp(tool_json_text(member, "role"), "worker") == 0;
        row->index = tool_json_number(member, "index");
        row->pid = tool_json_number(member, "pid");
        snprintf(row->state, sizeof row->state, "%s", tool_json_text(member, "state"));
        snprintf(row->host, sizeof row->host, "%s", tool_json_text(member, "host"));
        const json_t *report = json_object_get(member, "report"), *earlier = report_of(before, member);
        if (!json_is_object(report)) continue;
        fill_report(row, earlier, report, seconds);
        if (row->seconds > 0 && !top_links_add(rows_out, members, member, earlier, row->seconds)) {
            top_rows_free(rows_out);
            return false;
        }
    }
    qsort(rows_out->rows, rows_out->count, sizeof *rows_out->rows, compare);
    top_links_sort(rows_out);
    return true;
}

void top_rows_free(struct top_rows *rows)
{
    free(rows->rows);
    free(rows->links);
    *rows = (struct top_rows){.rows = NULL};
}
