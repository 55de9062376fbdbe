/* weftd_http.c - HTTP pages of weftd, on a thread of its own: /metrics (weftd_metrics.c), /status (JSON) and
 * the health pages.
 *
 *     /livez     the net thread works                     503: it hangs, or the process ends
 *     /startupz  it has joined and its engines are open   503: it has not
 *     /readyz    the job runs and is not stalled          503: it does not
 *     /healthz   all of it in words; 503 as /livez
 *
 * Beyond loopback a page needs the job's token. Health pages are public, since a kubelet has no token; then
 * they are one word, without names and reasons. */
#include <jansson.h>
#include <string.h>

#include "server/daemon/weftd_page.h"

/* ---- /status ---- */

static json_t *json_of_engine(struct weftd *weftd, const struct weftd_job_view *job, uint32_t index)
{
    struct weftd_engine_view view;
    weftd_view_engine(&weftd->engines[index], &view);
    return json_pack("{s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "endpoint",
                     (json_int_t)(job->endpoint_first + index), "ready", (int)view.ready, "chunks",
                     (json_int_t)view.shard.chunks, "weights_bytes", (json_int_t)view.shard.weights_bytes,
                     "receive_bytes_used", (json_int_t)view.shard.receive_bytes_used, "rounds_closed",
                     (json_int_t)view.shard.rounds_closed, "pushes", (json_int_t)view.shard.pushes,
                     "received_bytes", (json_int_t)view.transport.received_bytes, "sent_bytes",
                     (json_int_t)view.transport.sent_bytes);
}

static const char *state_name(const struct weftd_job_view *job)
{
    return job->failing ? "failed" : job->running ? "running" : job->joined ? "connecting" : "joining";
}

static void write_status(struct weftd *weftd, struct weftd_page *page)
{
    const struct weftd_job_view *job = page->job;
    json_t *engines = json_array(), *coordinator = NULL;
    for (uint32_t i = 0; i < job->engines; i++) json_array_append_new(engines, json_of_engine(weftd, job, i));
    if (job->coordinates) {
        char *text = weftd_view_status_json(weftd);
        page->failed = text == NULL;
        coordinator = text ? json_loads(text, 0, NULL) : NULL;
        weft_free_bytes(weftd->env, text);
    }
    json_t *root =
        json_pack("{s:s, s:I, s:s, s:s, s:o, s:o}", "role", "shard", "index", (json_int_t)job->index, "state",
                  state_name(job), "weft_version", weft_proto_release(), "engines", engines, "coordinator",
                  coordinator ? coordinator : json_null());
    weftd_page_json(page, root);
    weftd_page_print(page, "\n");
    json_decref(root);
}

/* ---- health pages ---- */

#define HANG_NS WEFT_SECONDS(30) /* the net thread publishes ten times per second */

static uint64_t hang_ns(const struct weftd *weftd, const struct weftd_job_view *job)
{
    const uint64_t age_ns = weft_elapsed_ns(job->published_ns, weft_now_ns(weftd->env));
    return age_ns > HANG_NS ? age_ns : 0;
}

/* otherwise: before the state, if nothing is wrong with it. */
static void write_words(struct weftd *weftd, struct weftd_page *page, const char *otherwise)
{
    if (page->job->failing) weftd_page_print(page, "failing: %s\n", page->job->end_text);
    else if (hang_ns(weftd, page->job) > 0)
        weftd_page_print(page, "the net thread hangs for %.0f s\n", (double)hang_ns(weftd, page->job) / 1e9);
    else if (page->job->stats.stall_ns > 0)
        weftd_page_print(page, "stalled for %.1f s: %s\n", (double)page->job->stats.stall_ns / 1e9,
                         page->job->stall_text);
    else weftd_page_print(page, "%s%s\n", otherwise, state_name(page->job));
}

static void write_health(struct weftd *weftd, struct weftd_page *page)
{
    write_words(weftd, page, "ok ");
}

/* Pages with status 503: before the job runs, the reason is its state. */
static void write_bad_health(struct weftd *weftd, struct weftd_page *page)
{
    write_words(weftd, page, "not ok: ");
}

enum health_page { HEALTH_LIVE, HEALTH_STARTED, HEALTH_READY, HEALTH_ALL, HEALTH_NONE };

static enum health_page health_page_of(const char *path)
{
    static const char *const paths[] = {"/livez", "/startupz", "/readyz", "/healthz"};
    for (int i = 0; i < HEALTH_NONE; i++)
        if (strcmp(path, paths[i]) == 0) return (enum health_page)i;
    return HEALTH_NONE;
}

static bool health_is_good(const struct weftd *weftd, enum health_page page, const struct weftd_job_view *job)
{
    const bool is_live = !job->failing && hang_ns(weftd, job) == 0;
    switch (page) {
    case HEALTH_STARTED: return is_live && job->is_started;
    case HEALTH_READY: return is_live && job->running && job->stats.stall_ns == 0;
    default: return is_live;
    }
}

static void write_word(struct weftd *weftd, struct weftd_page *page)
{
    weftd_page_print(page, "ok\n");
}

static void write_bad_word(struct weftd *weftd, struct weftd_page *page)
{
    weftd_page_print(page, "not ok\n");
}

/* ---- requests ---- */

static bool is_public(const char *path)
{
    return health_page_of(path) != HEALTH_NONE;
}

static void on_request(void *context, const char *path, bool is_trusted, struct weft_http_reply *reply)
{
    struct weftd *weftd = context;
    struct weftd_job_view job;
    const enum health_page health = health_page_of(path);
    void (*write_page)(struct weftd *, struct weftd_page *) = NULL;
    weftd_view_job(weftd, &job);
    reply->code = 200;
    reply->content_type = "text/plain; charset=utf-8";
    if (strcmp(path, "/metrics") == 0) {
        write_page = weftd_metrics_write;
        reply->content_type = "text/plain; version=0.0.4; charset=utf-8";
    } else if (strcmp(path, "/status") == 0) {
        write_page = write_status;
        reply->content_type = "application/json";
    } else if (health != HEALTH_NONE) {
        const bool is_good = health_is_good(weftd, health, &job);
        if (is_good) write_page = is_trusted ? write_health : write_word;
        else write_page = is_trusted ? write_bad_health : write_bad_word;
        reply->code = is_good ? 200 : 503;
    }
    if (!write_page) {
        reply->code = 404;
        return;
    }
    struct weftd_page page = {.env = weftd->env, .job = &job};
    write_page(weftd, &page);
    if (page.failed || page.bytes == 0) {
        weft_free_bytes(weftd->env, page.text);
        reply->code = 503;
        return;
    }
    reply->body = page.text;
    reply->body_bytes = page.bytes;
}

/* ---- life ---- */

enum weft_status weftd_http_start(struct weftd *weftd, uint16_t *port_out, struct weft_error *error)
{
    struct weft_http_options options;
    char token[WEFT_HTTP_TOKEN_BYTES];
    WEFT_TRY(weft_listen_check(weftd->options.listen, weftd->options.secret, error));
    weft_http_options_init(&options);
    options.host = weftd->options.listen;
    options.port = (uint16_t)weftd->options.http_port;
    options.is_public = is_public;
    options.answer = on_request;
    options.context = weftd;
    enum weft_status status = WEFT_OK;
    /* Without a secret only loopback passes the check. */
    if (weft_listen_check(options.host, NULL, NULL) != WEFT_OK) {
        status = weft_http_token(weftd->options.secret, token);
        options.token = token;
    }
    if (status == WEFT_OK) status = weft_net_create(weftd->env, &weftd->http);
    if (status == WEFT_OK) status = weftd_view_begin(weftd);
    if (status == WEFT_OK) status = weft_http_start(weftd->http, &options, port_out, error);
    weft_wipe(token, sizeof token);
    if (status == WEFT_OK) status = weft_net_start(weftd->http);
    if (status != WEFT_OK)
        return weft_error_set(error, status, "cannot serve HTTP: %s", weft_reason_text(status));
    return WEFT_OK;
}
