/* weftd_http.c - HTTP pages of weftd: /metrics (Prometheus text), /healthz, /status (JSON). Net thread, GET
 * only.
 *
 * Metric names end in their unit, counters in _total. The engine thread copies its statistics on request
 * (weftd_engine_view), so a scrape costs the data path one command and no lock. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/daemon/weftd.h"

/* ---- page buffer ---- */

struct page {
    struct weft_env *env;
    char *text; /* owned; moves to the reply */
    size_t bytes, capacity;
    bool failed; /* no memory; the reply is 503 */
};

static bool page_reserve(struct page *page, size_t bytes)
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

static void page_print(struct page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void page_print(struct page *page, const char *format, ...)
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

static void page_json(struct page *page, const json_t *root)
{
    size_t bytes = root ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0;
    if (bytes == 0) page->failed = true;
    if (!page_reserve(page, bytes)) return;
    json_dumpb(root, page->text + page->bytes, bytes, JSON_COMPACT);
    page->bytes += bytes;
}

/* ---- /metrics ---- */

struct metric {
    const char *name, *kind, *help;
    size_t offset; /* of a uint64_t in struct weftd_engine_view */
};
#define SHARD(field) offsetof(struct weftd_engine_view, shard.field)
#define TRANSPORT(field) offsetof(struct weftd_engine_view, transport.field)

static const struct metric metrics[] = {
    {"weft_shard_chunks", "gauge", "Chunks that the engine owns.", SHARD(chunks)},
    {"weft_shard_weights_bytes", "gauge", "Memory of weights and optimizer state.", SHARD(weights_bytes)},
    {"weft_shard_receive_used_bytes", "gauge", "Memory of contributions waiting in open rounds.",
     SHARD(receive_bytes_used)},
    {"weft_shard_receive_peak_bytes", "gauge", "Most memory of contributions so far.",
     SHARD(receive_bytes_peak)},
    {"weft_shard_rounds_total", "counter", "Rounds closed: all workers had contributed.",
     SHARD(rounds_closed)},
    {"weft_shard_pushes_total", "counter", "Contributions taken.", SHARD(pushes)},
    {"weft_shard_pulls_total", "counter", "Pulls answered.", SHARD(pulls)},
    {"weft_shard_duplicates_total", "counter", "Contributions that had been taken before.",
     SHARD(duplicates)},
    {"weft_shard_refused_total", "counter", "Requests refused.", SHARD(refused)},
    {"weft_shard_received_bytes_total", "counter", "Payload of requests.", SHARD(received_bytes)},
    {"weft_shard_sent_bytes_total", "counter", "Payload of results.", SHARD(sent_bytes)},
    {"weft_transport_received_bytes_total", "counter", "Headers and payload of data messages received.",
     TRANSPORT(received_bytes)},
    {"weft_transport_sent_bytes_total", "counter", "Headers and payload of data messages sent.",
     TRANSPORT(sent_bytes)},
    {"weft_transport_received_messages_total", "counter", "Data messages received.",
     TRANSPORT(received_count)},
    {"weft_transport_sent_messages_total", "counter", "Data messages sent.", TRANSPORT(sent_count)},
    {"weft_transport_unexpected_messages_total", "counter", "Messages that arrived before their receive.",
     TRANSPORT(unexpected_count)},
    {"weft_transport_refused_messages_total", "counter",
     "Messages dropped: wrong nonce, unknown sender, bad length.", TRANSPORT(refused_count)},
};

/* Writes a label value with backslash, quote and newline escaped for Prometheus. */
static void write_label(struct page *page, const char *text)
{
    for (; *text; text++) {
        const char *before = *text == '\\' || *text == '"' ? "\\" : "";
        if (*text == '\n') page_print(page, "\\n");
        else page_print(page, "%s%c", before, *text);
    }
}

static void write_metrics(struct weftd *weftd, struct page *page)
{
    uint32_t engines = weftd->engines ? weftd->options.engines : 0;
    struct weftd_engine_view views[WEFT_LIMIT_ENGINES];
    for (uint32_t i = 0; i < engines; i++) weftd_engine_view(&weftd->engines[i], &views[i]);
    page_print(page,
               "# HELP weft_build_info The running release.\n# TYPE weft_build_info "
               "gauge\nweft_build_info{version=\"%s\",wire_version=\"%d\"} 1\n",
               weft_proto_release(), WEFT_WIRE_VERSION);
    page_print(page, "# HELP weft_up 1 while the job runs.\n# TYPE weft_up gauge\nweft_up %d\n",
               weftd->running && !weftd->failing);
    page_print(page,
               "# HELP weft_uptime_seconds Since this process started.\n# TYPE weft_uptime_seconds "
               "gauge\nweft_uptime_seconds %.3f\n",
               (double)(weft_now_ns(weftd->env) - weftd->started_ns) / 1e9);
    for (size_t m = 0; m < sizeof metrics / sizeof metrics[0]; m++) {
        page_print(page, "# HELP %s %s\n# TYPE %s %s\n", metrics[m].name, metrics[m].help, metrics[m].name,
                   metrics[m].kind);
        for (uint32_t i = 0; i < engines; i++) {
            uint64_t value;
            memcpy(&value, (const char *)&views[i] + metrics[m].offset, sizeof value);
            page_print(page, "%s{job=\"", metrics[m].name);
            write_label(page, weftd->options.job);
            page_print(page, "\",shard=\"%u\",engine=\"%u\"} %llu\n", weftd->welcome.index, i,
                       (unsigned long long)value);
        }
    }
}

/* ---- /status ---- */

static json_t *json_of_engine(struct weftd *weftd, uint32_t index)
{
    struct weftd_engine_view view;
    weftd_engine_view(&weftd->engines[index], &view);
    return json_pack("{s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "endpoint",
                     (json_int_t)(weftd->welcome.endpoint_first + index), "ready", (int)view.ready, "chunks",
                     (json_int_t)view.shard.chunks, "weights_bytes", (json_int_t)view.shard.weights_bytes,
                     "receive_bytes_used", (json_int_t)view.shard.receive_bytes_used, "rounds_closed",
                     (json_int_t)view.shard.rounds_closed, "pushes", (json_int_t)view.shard.pushes,
                     "received_bytes", (json_int_t)view.transport.received_bytes, "sent_bytes",
                     (json_int_t)view.transport.sent_bytes);
}

static const char *state_name(const struct weftd *weftd)
{
    return weftd->failing ? "failed" : weftd->running ? "running" : weftd->joined ? "connecting" : "joining";
}

static void write_status(struct weftd *weftd, struct page *page)
{
    json_t *engines = json_array(), *coordinator = NULL;
    for (uint32_t i = 0; weftd->engines && i < weftd->options.engines; i++)
        json_array_append_new(engines, json_of_engine(weftd, i));
    if (weftd->coordinator) {
        char *text = weft_coordinator_server_status_json(weftd->coordinator);
        coordinator = text ? json_loads(text, 0, NULL) : NULL;
        weft_free_bytes(weftd->env, text);
    }
    json_t *root = json_pack("{s:s, s:I, s:s, s:s, s:o, s:o}", "role", "shard", "index",
                             (json_int_t)weftd->welcome.index, "state", state_name(weftd), "weft_version",
                             weft_proto_release(), "engines", engines, "coordinator",
                             coordinator ? coordinator : json_null());
    page_json(page, root);
    page_print(page, "\n");
    json_decref(root);
}

/* ---- requests ---- */

static void write_health(struct weftd *weftd, struct page *page)
{
    if (weftd->failing) page_print(page, "failing: %s\n", weftd->end.text);
    else page_print(page, "ok %s\n", state_name(weftd));
}

static void on_request(void *context, const char *path, struct weft_net_http_reply *reply)
{
    struct weftd *weftd = context;
    void (*write_page)(struct weftd *, struct page *) = NULL;
    reply->code = 200;
    reply->content_type = "text/plain; charset=utf-8";
    if (strcmp(path, "/metrics") == 0) {
        write_page = write_metrics;
        reply->content_type = "text/plain; version=0.0.4; charset=utf-8";
    } else if (strcmp(path, "/status") == 0) {
        write_page = write_status;
        reply->content_type = "application/json";
    } else if (strcmp(path, "/healthz") == 0) {
        write_page = write_health;
        reply->code = weftd->failing ? 503 : 200;
    }
    if (!write_page) {
        reply->code = 404;
        return;
    }
    struct page page = {.env = weftd->env};
    write_page(weftd, &page);
    if (page.failed || page.bytes == 0) {
        weft_free_bytes(weftd->env, page.text);
        reply->code = 503;
        return;
    }
    reply->body = page.text;
    reply->body_bytes = page.bytes;
}

enum weft_status weftd_http_start(struct weftd *weftd, uint16_t *port_out, struct weft_error *error)
{
    WEFT_TRY(weft_listen_check(weftd->options.listen, weftd->options.secret, error));
    return weft_net_http(weftd->net, weftd->options.listen, (uint16_t)weftd->options.http_port, on_request,
                         weftd, port_out, error);
}
