/* weftd_report.c - what this shard sends to the coordinator about its engines, with a heartbeat.
 *
 *     report     every client.report_period: counters, for /metrics and the status
 *     progress   on ask_progress: closed rounds, age of the oldest open one, a rank that it waits for
 *
 *     net: command to each engine -> engine: figures -> net: after the last one, what is due
 *
 * The net thread does not wait. An engine that does not answer keeps the shard from answering, and the
 * coordinator names it. What becomes due meanwhile is sent with the same answer. */
#include "server/daemon/weftd.h"

#define PERIOD_NS_MIN WEFT_MS(50)

static void fill_progress(const struct weftd *weftd, Weft__Control__Progress *progress)
{
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        const struct weft_shard_engine_stats *stats = &weftd->engines[i].figures.shard;
        progress->operations += stats->rounds_closed;
        if (stats->oldest_round.ns <= progress->open_ns) continue;
        progress->open_ns = stats->oldest_round.ns;
        progress->waits_for = (uint32_t)stats->oldest_round.rank;
    }
}

static void fill_report(const struct weftd *weftd, Weft__Control__Report *report)
{
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        const struct weftd_figures *figures = &weftd->engines[i].figures;
        report->sent_bytes += figures->transport.sent_bytes;
        report->received_bytes += figures->transport.received_bytes;
        report->rounds += figures->shard.rounds_closed;
        report->rounds_open += figures->shard.rounds_open;
        report->pushed_bytes += figures->shard.load.bytes;
        report->work_ns += figures->shard.load.ns;
        if (figures->shard.oldest_round.ns <= report->round_ns) continue;
        report->round_ns = figures->shard.oldest_round.ns;
        report->missing = figures->shard.oldest_round.missing;
    }
}

static void send_due(struct weftd *weftd)
{
    Weft__Control__Progress progress = WEFT__CONTROL__PROGRESS__INIT;
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    fill_progress(weftd, &progress);
    fill_report(weftd, &report);
    heartbeat.time_ns = weft_now_ns(weftd->env);
    if (weftd->pending.progress_is_due) heartbeat.progress = &progress;
    if (weftd->pending.report_is_due) heartbeat.report = &report;
    weftd->pending.progress_is_due = weftd->pending.report_is_due = false;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    (void)weft_control_client_send(weftd->member, &message); /* `closed` reports a lost connection */
}

static void on_replied(struct weft_command *command)
{
    struct weftd_figures *figures = weft_container_of(command, struct weftd_figures, command);
    struct weftd *weftd = weft_container_of(figures, struct weftd_engine, figures)->weftd;
    if (--weftd->pending.figures_pending == 0 && !weftd->state.failing && !weftd->state.member_done)
        send_due(weftd);
}

static void on_ask(struct weft_command *command)
{
    struct weftd_figures *figures = weft_container_of(command, struct weftd_figures, command);
    struct weftd_engine *engine = weft_container_of(figures, struct weftd_engine, figures);
    figures->shard = (struct weft_shard_engine_stats){0};
    figures->transport = (struct weft_transport_stats){0};
    if (engine->shard) weft_shard_engine_stats(engine->shard, &figures->shard);
    if (engine->transport) weft_transport_stats(engine->transport, &figures->transport);
    figures->command.fn = on_replied;
    weft_net_post(engine->weftd->net, &figures->command);
}

static void ask_engines(struct weftd *weftd)
{
    if (weftd->pending.figures_pending > 0) return;
    weftd->pending.figures_pending = weftd->options.engines;
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        weftd->engines[i].figures.command.fn = on_ask;
        weft_loop_post(weftd->engines[i].loop, &weftd->engines[i].figures.command);
    }
}

void weftd_progress_asked(struct weftd *weftd)
{
    if (!weftd->engines || weftd->state.failing) return;
    weftd->pending.progress_is_due = true;
    ask_engines(weftd);
}

static void begin_report(void *context)
{
    struct weftd *weftd = context;
    if (!weftd->state.running || weftd->state.failing || weftd->state.member_done || !weftd->engines) return;
    weftd->pending.report_is_due = true;
    ask_engines(weftd);
}

enum weft_status weftd_report_start(struct weftd *weftd)
{
    uint64_t period_ns = weft_config_u64(weftd->options.config, "client.report_period");
    if (period_ns == 0) return WEFT_OK;
    if (period_ns < PERIOD_NS_MIN) period_ns = PERIOD_NS_MIN;
    return weft_net_timer_periodic(weftd->net, period_ns, begin_report, weftd);
}
