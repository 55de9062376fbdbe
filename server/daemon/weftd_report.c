/* weftd_report.c - the figures of this shard for the coordinator, with a heartbeat. Net thread.
 *
 *     every PERIOD_NS: request a copy of each engine's statistics -> COPY_NS later: send the sum
 *
 * The net thread does not wait: of a busy engine the report has an earlier copy. */
#include "server/daemon/weftd.h"

#define PERIOD_NS WEFT_SECONDS(5)
#define COPY_NS WEFT_MS(50) /* for the engines to copy their statistics */

static void add_engine(const struct weftd_engine_view *view, Weft__Control__Report *report)
{
    report->sent_bytes += view->transport.sent_bytes;
    report->received_bytes += view->transport.received_bytes;
    report->rounds += view->shard.rounds_closed;
    report->rounds_open += view->shard.rounds_open;
    if (view->shard.oldest_round_ns <= report->round_ns) return;
    report->round_ns = view->shard.oldest_round_ns;
    report->missing = view->shard.oldest_round_missing;
}

static void send_report(void *context)
{
    struct weftd *weftd = context;
    struct weftd_engine_view view;
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    if (weftd->failing || weftd->member_done) return;
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        weftd_engine_last_view(&weftd->engines[i], &view);
        add_engine(&view, &report);
    }
    heartbeat.time_ns = weft_now_ns(weftd->env);
    heartbeat.report = &report;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    /* a closed connection is reported by `closed` */
    (void)weft_control_client_send(weftd->member, &message);
}

static void begin_report(void *context)
{
    struct weftd *weftd = context;
    if (!weftd->running || weftd->failing || weftd->member_done || !weftd->engines) return;
    for (uint32_t i = 0; i < weftd->options.engines; i++) weftd_engine_request_view(&weftd->engines[i]);
    /* without memory this report is left out */
    (void)weft_net_timer_once(weftd->net, COPY_NS, send_report, weftd);
}

enum weft_status weftd_report_start(struct weftd *weftd)
{
    return weft_net_timer_periodic(weftd->net, PERIOD_NS, begin_report, weftd);
}
