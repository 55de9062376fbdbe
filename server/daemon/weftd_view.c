/* weftd_view.c - what HTTP shows of the other threads: copies that they publish, so that a scrape never waits
 * for them.
 *
 *     engine thread, every PERIOD_NS    engine->published       \
 *     control thread, every PERIOD_NS   weftd->views.published   > sequence lock -> HTTP thread
 *     control thread, every REPORTS_NS  weftd->views.reports     a list: a lock, which the writer only tries
 *     control thread, on request        status_json              any length: a lock, at most WAIT_NS
 *
 * Sequence lock: one writer makes the number odd, writes the words, makes it even. A reader whose number was
 * odd or has changed reads again. A writer that was descheduled in between would block it, so after TRIES it
 * keeps its previous copy. Without HTTP nothing is published. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "server/daemon/weftd.h"

#define PERIOD_NS WEFT_MS(100)
#define REPORTS_NS WEFT_SECONDS(1)
#define JSON_WAIT_NS WEFT_SECONDS(1)
#define JSON_AGE_NS WEFT_MS(500) /* a younger text answers the next request too */
#define TRIES 1000

/* ---- sequence lock ---- */

static void publish(atomic_uint *sequence, _Atomic uint64_t *to, const void *value, size_t words)
{
    const unsigned before = atomic_load_explicit(sequence, memory_order_relaxed);
    atomic_store_explicit(sequence, before + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, (const char *)value + i * sizeof word, sizeof word);
        atomic_store_explicit(&to[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(sequence, before + 2, memory_order_release);
}

/* false: *value is unchanged, or partly written; the caller keeps its previous copy. */
static bool read_once(const atomic_uint *sequence, const _Atomic uint64_t *from, void *value, size_t words)
{
    const unsigned before = atomic_load_explicit(sequence, memory_order_acquire);
    if (before % 2) return false;
    for (size_t i = 0; i < words; i++) {
        const uint64_t word = atomic_load_explicit(&from[i], memory_order_relaxed);
        memcpy((char *)value + i * sizeof word, &word, sizeof word);
    }
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(sequence, memory_order_relaxed) == before;
}

static bool read_published(const atomic_uint *sequence, const _Atomic uint64_t *from, void *value,
                           size_t words)
{
    for (int i = 0; i < TRIES; i++) {
        if (read_once(sequence, from, value, words)) return true;
        sched_yield();
    }
    return false;
}

/* ---- engines ---- */

static void publish_engine(struct weftd_engine *engine)
{
    struct weftd_engine_view view = {.ready = engine->shard != NULL};
    if (engine->shard) weft_shard_engine_stats(engine->shard, &view.shard);
    if (engine->transport) weft_transport_stats(engine->transport, &view.transport);
    publish(&engine->published.sequence, engine->published.words, &view, WEFTD_WORDS(view));
}

static void on_engine_timer(struct weft_timer *timer)
{
    struct weftd_engine *engine = weft_container_of(timer, struct weftd_engine, publish_timer);
    struct weft_env *env = engine->weftd->env;
    publish_engine(engine);
    if (weft_timer_start(engine->loop, timer, weft_now_ns(env) + PERIOD_NS) < 0)
        weft_log(env, WEFT_LOG_WARN, "weftd",
                 "engine %u: no memory for its timer; /metrics shows no later figures", engine->index);
}

void weftd_view_begin_engine(struct weftd_engine *engine)
{
    if (!engine->weftd->http) return;
    weft_timer_init(&engine->publish_timer, on_engine_timer);
    on_engine_timer(&engine->publish_timer);
}

void weftd_view_end_engine(struct weftd_engine *engine)
{
    if (engine->publish_timer.fn) weft_timer_stop(engine->loop, &engine->publish_timer);
}

void weftd_view_engine(struct weftd_engine *engine, struct weftd_engine_view *view_out)
{
    struct weftd_engine_view view;
    if (read_published(&engine->published.sequence, engine->published.words, &view, WEFTD_WORDS(view)))
        engine->seen = view;
    *view_out = engine->seen;
}

/* ---- the job and this process ---- */

/* A coordinator that was replaced keeps its last figures, which are no longer true. */
static bool coordinates(const struct weftd *weftd)
{
    return weftd->coordinator && !weftd->state.is_replaced;
}

static void publish_job(void *context)
{
    struct weftd *weftd = context;
    struct weftd_job_view view = {.published_ns = weft_now_ns(weftd->env),
                                  .joined = weftd->state.joined,
                                  .running = weftd->state.running,
                                  .failing = weftd->state.failing,
                                  .is_started = weftd->engines &&
                                                (weftd->roster || weftd->pending.engines_waited_for == 0),
                                  .index = weftd->welcome.index,
                                  .endpoint_first = weftd->welcome.endpoint_first,
                                  .engines = weftd->engines ? weftd->options.engines : 0,
                                  .coordinates = coordinates(weftd)};
    snprintf(view.end_text, sizeof view.end_text, "%s", weftd->outcome.end.text);
    if (view.coordinates) {
        weft_coordinator_server_stats(weftd->coordinator, &view.stats);
        weft_coordinator_server_describe_stall(weftd->coordinator, view.stall_text, sizeof view.stall_text);
    }
    publish(&weftd->views.published.sequence, weftd->views.published.words, &view, WEFTD_WORDS(view));
}

/* While a page is written from the list, it stays as it is. */
static void publish_reports(void *context)
{
    struct weftd *weftd = context;
    struct weftd_reports_view *view = &weftd->views.reports;
    if (!coordinates(weftd) || pthread_mutex_trylock(&view->lock) != 0) return;
    weft_free_bytes(weftd->env, view->reports);
    view->reports = weft_coordinator_server_reports(weftd->coordinator, &view->count);
    pthread_mutex_unlock(&view->lock);
}

const struct weft_member_report *weftd_view_lock_reports(struct weftd *weftd, uint32_t *count_out)
{
    pthread_mutex_lock(&weftd->views.reports.lock);
    *count_out = weftd->views.reports.count;
    return weftd->views.reports.reports;
}

void weftd_view_unlock_reports(struct weftd *weftd) { pthread_mutex_unlock(&weftd->views.reports.lock); }

void weftd_view_free(struct weftd *weftd)
{
    weft_free_bytes(weftd->env, weftd->views.status.json);
    weft_free_bytes(weftd->env, weftd->views.reports.reports);
}

enum weft_status weftd_view_begin(struct weftd *weftd)
{
    pthread_condattr_t monotonic;
    pthread_mutex_init(&weftd->views.reports.lock, NULL);
    pthread_mutex_init(&weftd->views.status.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&weftd->views.status.answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    publish_job(weftd);
    WEFT_TRY(weft_net_timer_periodic(weftd->net, REPORTS_NS, publish_reports, weftd));
    return weft_net_timer_periodic(weftd->net, PERIOD_NS, publish_job, weftd);
}

void weftd_view_job(struct weftd *weftd, struct weftd_job_view *view_out)
{
    struct weftd_job_view view;
    if (read_published(&weftd->views.published.sequence, weftd->views.published.words, &view,
                       WEFTD_WORDS(view)))
        weftd->views.seen = view;
    *view_out = weftd->views.seen;
}

/* ---- the coordinator's JSON ---- */

static void on_status_request(struct weft_command *command)
{
    struct weftd_status_text *status = weft_container_of(command, struct weftd_status_text, command);
    struct weftd *weftd = weft_container_of(status, struct weftd, views.status);
    char *json = coordinates(weftd) ? weft_coordinator_server_status_json(weftd->coordinator) : NULL;
    pthread_mutex_lock(&status->lock);
    weft_free_bytes(weftd->env, status->json);
    status->json = json;
    status->made_ns = weft_now_ns(weftd->env);
    status->is_requested = false;
    pthread_cond_signal(&status->answered);
    pthread_mutex_unlock(&status->lock);
}

char *weftd_view_status_json(struct weftd *weftd)
{
    struct weftd_status_text *status = &weftd->views.status;
    const uint64_t now_ns = weft_now_ns(weftd->env), until_ns = now_ns + JSON_WAIT_NS;
    const struct timespec until = {(time_t)(until_ns / WEFT_SECONDS(1)), (long)(until_ns % WEFT_SECONDS(1))};
    pthread_mutex_lock(&status->lock);
    const bool is_young = status->json && weft_elapsed_ns(status->made_ns, now_ns) < JSON_AGE_NS;
    if (!status->is_requested && !is_young) {
        status->is_requested = true;
        status->command.fn = on_status_request;
        weft_net_post(weftd->net, &status->command);
    }
    while (status->is_requested && pthread_cond_timedwait(&status->answered, &status->lock, &until) == 0) {
    }
    char *copy = status->is_requested || !status->json ? NULL : weft_alloc_text(weftd->env, status->json);
    pthread_mutex_unlock(&status->lock);
    return copy;
}
