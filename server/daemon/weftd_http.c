/* weftd_http.c - HTTP pages of weftd: /metrics (weftd_metrics.c), /healthz, /status (JSON). Net thread, GET
 * only. */
#include <jansson.h>
#include <string.h>

#include "server/daemon/weftd_page.h"

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

static void write_status(struct weftd *weftd, struct weftd_page *page)
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
    weftd_page_json(page, root);
    weftd_page_print(page, "\n");
    json_decref(root);
}

/* ---- requests ---- */

static void write_health(struct weftd *weftd, struct weftd_page *page)
{
    if (weftd->failing) weftd_page_print(page, "failing: %s\n", weftd->end.text);
    else weftd_page_print(page, "ok %s\n", state_name(weftd));
}

static void on_request(void *context, const char *path, struct weft_net_http_reply *reply)
{
    struct weftd *weftd = context;
    void (*write_page)(struct weftd *, struct weftd_page *) = NULL;
    reply->code = 200;
    reply->content_type = "text/plain; charset=utf-8";
    if (strcmp(path, "/metrics") == 0) {
        write_page = weftd_metrics_write;
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
    struct weftd_page page = {.env = weftd->env};
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
