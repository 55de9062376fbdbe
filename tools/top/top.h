/* top.h - rows of `weft top`: what each member did between two statuses of its job. */
#ifndef WEFT_TOOLS_TOP_TOP_H
#define WEFT_TOOLS_TOP_TOP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#define TOP_WAITS_SECONDS 1.0 /* an open operation of this age is shown with what it waits for */

struct top_row {
    bool is_worker;
    long long index, pid;
    char state[16], host[64], open[300]; /* open: the oldest open operation and what it waits for */
    bool has_report;
    double age;     /* of the report, s */
    double seconds; /* that the rates below are of; 0: no newer report */
    /* per second; of a worker steps and operations, of a shard rounds */
    double steps, operations, sent_bytes, received_bytes;
    double step_seconds;            /* mean of one step */
    double exposed, exposed_peers;  /* part of the step time, 0 to 1 */
    double open_seconds;            /* age of the oldest open operation or round; 0: none */
    long long rounds_open, missing; /* shards */
};

/* What the workers of a host send to the members on another one, or on their own through a transport. */
struct top_link {
    char from[64], to[64]; /* hosts */
    double sent_bytes;     /* per second */
    long long pairs;       /* of a worker and a member to which it sends */
};

struct top_rows {
    struct top_row *rows; /* (count,) owned; workers by rank, then shards */
    size_t count;
    struct top_link *links; /* (link_count,) owned; the busiest first */
    size_t link_count;
};

/* Rows of `now`, a status, with rates since `before`, an earlier one `seconds` ago; NULL: since the job
 * began. false: no memory. */
bool top_rows_make(const json_t *before, const json_t *now, double seconds, struct top_rows *rows_out);
void top_rows_free(struct top_rows *rows);
/* Adds to the links what a worker, a member of `members`, has sent between two reports `seconds` apart.
 * before: the report of the earlier status; NULL: none. false: no memory. (top_links.c) */
bool top_links_add(struct top_rows *rows, const json_t *members, const json_t *worker, const json_t *before,
                   double seconds);
/* Call after the last addition: the busiest first. */
void top_links_sort(struct top_rows *rows);
/* At most `lines` lines, each at most `columns` long; 0: no limit. Rows that do not fit are counted. */
void top_print(FILE *out, const json_t *status, const struct top_rows *rows, unsigned lines,
               unsigned columns);
/* The metrics of the job and its workers, in the text format of Prometheus. */
void top_print_metrics(FILE *out, const json_t *status);
/* One JSON object in one line. */
void top_print_json(FILE *out, const json_t *status, const struct top_rows *rows);

#endif
