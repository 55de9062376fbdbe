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
