/* weftd_page.h - the text of an HTTP page, and the sources of /metrics. HTTP thread. */
#ifndef WEFT_SERVER_DAEMON_WEFTD_PAGE_H
#define WEFT_SERVER_DAEMON_WEFTD_PAGE_H

#include <jansson.h>

#include "server/daemon/weftd.h"

struct weftd_page {
    struct weft_env *env;
    const struct weftd_job_view *job; /* borrowed; for all figures of one page */
    char *text; /* owned; moves to the reply */
    size_t bytes, capacity;
    bool failed; /* no memory; the reply is 503 */
};
/* weftd_page.c; one call appends at most 699 bytes and cuts the rest */
void weftd_page_print(struct weftd_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
void weftd_page_json(struct weftd_page *page, const json_t *root);
/* Appends a label value, with backslash, quote and newline escaped for Prometheus. */
void weftd_page_label(struct weftd_page *page, const char *text);
/* The lines of a metric: HELP and TYPE; its name and first label, with the label list left open; a histogram.
 * labels: further labels, each with a comma before. kind: "gauge", "counter" or "histogram". */
void weftd_page_head(struct weftd_page *page, const char *name, const char *kind, const char *help);
void weftd_page_name(struct weftd_page *page, const struct weftd *weftd, const char *name);
void weftd_page_histogram(struct weftd_page *page, const struct weftd *weftd, const char *name,
                          const char *labels, const struct weft_histogram *histogram);
void weftd_page_byte_histogram(struct weftd_page *page, const struct weftd *weftd, const char *name,
                               const char *labels, const struct weft_histogram *histogram);

/* weftd_process.c: resources of this process, read from /proc */
struct weftd_process_usage {
    double cpu_seconds;   /* user and system time of all threads */
    double start_seconds; /* since 1970 */
    uint64_t resident_bytes, open_fds, max_fds;
};
/* false: /proc cannot be read; nothing is written */
bool weftd_process_usage(struct weftd_process_usage *usage_out);

/* weftd_snapshot_metrics.c; nothing without snapshots */
void weftd_snapshot_metrics_write(struct weftd *weftd, struct weftd_page *page);

/* weftd_metrics.c */
void weftd_metrics_write(struct weftd *weftd, struct weftd_page *page);

#endif
