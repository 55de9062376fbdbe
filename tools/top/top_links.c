/* top_links.c - bytes between hosts, from the links of all workers (top.h). A worker reports the members to
 * which it has sent most bytes. */
#include <stdlib.h>
#include <string.h>

#include "tools/target.h"
#include "tools/top/top.h"

/* Bytes that a report has for a member; 0: none. */
static long long bytes_to(const json_t *report, long long member)
{
    size_t i;
    json_t *pair;
    json_array_foreach (report ? json_object_get(report, "links") : NULL, i, pair)
        if (json_integer_value(json_array_get(pair, 0)) == member)
            return json_integer_value(json_array_get(pair, 1));
    return 0;
}

/* NULL: no memory. */
static struct top_link *find_link(struct top_rows *rows, const char *from, const char *to)
{
    for (size_t i = 0; i < rows->link_count; i++)
        if (strcmp(rows->links[i].from, from) == 0 && strcmp(rows->links[i].to, to) == 0)
            return &rows->links[i];
    struct top_link *links = realloc(rows->links, (rows->link_count + 1) * sizeof *links);
    if (!links) return NULL;
    rows->links = links;
    links[rows->link_count] = (struct top_link){.sent_bytes = 0};
    snprintf(links[rows->link_count].from, sizeof links->from, "%s", from);
    snprintf(links[rows->link_count].to, sizeof links->to, "%s", to);
    return &links[rows->link_count++];
}

bool top_links_add(struct top_rows *rows, const json_t *members, const json_t *worker, const json_t *before,
                   double seconds)
{
    size_t i;
    json_t *pair;
    json_array_foreach (json_object_get(json_object_get(worker, "report"), "links"), i, pair) {
        const json_int_t member = json_integer_value(json_array_get(pair, 0));
        const json_t *peer = member >= 0 ? json_array_get(members, (size_t)member) : NULL;
        const long long from = bytes_to(before, member), to = json_integer_value(json_array_get(pair, 1));
        if (!peer || to <= from) continue;
        struct top_link *link =
            find_link(rows, tool_json_text(worker, "host"), tool_json_text(peer, "host"));
        if (!link) return false;
        link->sent_bytes += (double)(to - from) / seconds;
        link->pairs++;
    }
    return true;
}

static int compare(const void *a, const void *b)
{
    const struct top_link *left = a, *right = b;
    if (left->sent_bytes != right->sent_bytes) return left->sent_bytes > right->sent_bytes ? -1 : 1;
    const int from = strcmp(left->from, right->from);
    return from ? from : strcmp(left->to, right->to);
}

void top_links_sort(struct top_rows *rows)
{
    if (rows->link_count > 0) qsort(rows->links, rows->link_count, sizeof *rows->links, compare);
}
