/* weftd_page.c - a page that grows as it is written. Without memory the page is marked as failed. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/daemon/weftd_page.h"

static bool page_reserve(struct weftd_page *page, size_t bytes)
{
    if (page->failed || page->bytes + bytes <= page->capacity) return !page->failed;
    size_t capacity = (page->bytes + bytes) * 2;
    char *more = weft_alloc_bytes(page->env, capacity);
    page->failed = more == NULL;
    if (page->failed) return false;
    if (page->bytes) memcpy(more, page->text, page->bytes);
    weft_free_bytes(page->env, page->text);
    page->text = more;
    page->capacity = capacity;
    return true;
}

void weftd_page_print(struct weftd_page *page, const char *format, ...)
{
    char line[700];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    size_t kept = bytes < 0 ? 0 : (size_t)bytes < sizeof line ? (size_t)bytes : sizeof line - 1;
    if (!page_reserve(page, kept)) return;
    memcpy(page->text + page->bytes, line, kept);
    page->bytes += kept;
}

void weftd_page_json(struct weftd_page *page, const json_t *root)
{
    size_t bytes = root ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0;
    if (bytes == 0) page->failed = true;
    if (!page_reserve(page, bytes)) return;
    json_dumpb(root, page->text + page->bytes, bytes, JSON_COMPACT);
    page->bytes += bytes;
}

void weftd_page_label(struct weftd_page *page, const char *text)
{
    while (*text) {
        const size_t plain = strcspn(text, "\\\"\n");
        if (plain > 0) weftd_page_print(page, "%.*s", (int)plain, text);
        text += plain;
        if (*text == '\n') weftd_page_print(page, "\\n");
        else if (*text) weftd_page_print(page, "\\%c", *text);
        if (*text) text++;
    }
}

void weftd_page_head(struct weftd_page *page, const char *name, const char *kind, const char *help)
{
    weftd_page_print(page, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

void weftd_page_name(struct weftd_page *page, const struct weftd *weftd, const char *name)
{
    weftd_page_print(page, "%s{weft_job=\"", name);
    weftd_page_label(page, weftd->options.job);
    weftd_page_print(page, "\"");
}

struct series {
    struct weftd_page *page;
    const struct weftd *weftd;
    const char *name, *labels;
};

/* The name with its suffix, and the labels. */
static void print_start(const struct series *series, const char *suffix)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", series->name, suffix);
    weftd_page_name(series->page, series->weftd, full);
    weftd_page_print(series->page, "%s", series->labels);
}

/* One _bucket series per bound, each with the values up to it; then _sum and _count. */
static void print_histogram(const struct series *series, const struct weft_histogram *histogram,
                            const struct weft_histogram_bound *bounds, const char *sum)
{
    uint64_t below = 0;
    for (uint32_t i = 0; i <= WEFT_HISTOGRAM_BOUNDS; i++) {
        below += histogram->counts[i];
        print_start(series, "_bucket");
        weftd_page_print(series->page, ",le=\"%s\"} %llu\n",
                         i < WEFT_HISTOGRAM_BOUNDS ? bounds[i].text : "+Inf", (unsigned long long)below);
    }
    print_start(series, "_sum");
    weftd_page_print(series->page, "} %s\n", sum);
    print_start(series, "_count");
    weftd_page_print(series->page, "} %llu\n", (unsigned long long)below);
}

void weftd_page_histogram(struct weftd_page *page, const struct weftd *weftd, const char *name,
                          const char *labels, const struct weft_histogram *histogram)
{
    char seconds[40];
    snprintf(seconds, sizeof seconds, "%.9f", (double)histogram->sum * 1e-9);
    print_histogram(&(struct series){page, weftd, name, labels}, histogram, weft_histogram_bounds, seconds);
}

void weftd_page_byte_histogram(struct weftd_page *page, const struct weftd *weftd, const char *name,
                               const char *labels, const struct weft_histogram *histogram)
{
    char bytes[24];
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)histogram->sum);
    print_histogram(&(struct series){page, weftd, name, labels}, histogram,
                    weft_histogram_byte_bounds, bytes);
}
