/* report.c - the figures of this rank for the coordinator.
 *
 *     net: timer -> client_report_request -> engine: fill -> net: send_report -> coordinator
 *
 * At most one report is under way. An engine that computes or hangs sends none, so the age of the last report
 * at the coordinator shows it. */
#include "client/engine/report/report.h"

#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/session/control.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"

#define OLD_NS WEFT_SECONDS(1) /* an open request of this age is described */

/* The fast path reads no clock for a report, so the time of the last request is that of the report that saw
 * the count change. */
static void fill_requests(struct client_engine *engine, uint64_t now_ns)
{
    struct client_report *report = &engine->report;
    report->figures.requests = engine->counters.requests_done;
    if (report->requests_seen != engine->counters.requests_done) report->progress_ns = now_ns;
    report->requests_seen = engine->counters.requests_done;
    report->figures.idle_ns = report->progress_ns > 0 ? weft_elapsed_ns(report->progress_ns, now_ns) : 0;
    report->figures.open_ns = 0;
    report->open[0] = 0;
    if (weft_list_empty(&engine->open_requests)) return;
    const struct client_request *oldest =
        weft_list_first(&engine->open_requests, struct client_request, link);
    report->figures.open_ns = weft_elapsed_ns(oldest->started_ns, now_ns);
    if (report->figures.open_ns > OLD_NS) client_request_describe(oldest, report->open, sizeof report->open);
}

/* Net thread. */
static void send_report(struct weft_command *command)
{
    struct client_report *report = weft_container_of(command, struct client_report, reply);
    report->is_pending = false;
    if (client_failed(report->session) == WEFT_OK)
        client_control_send_report(report->session, &report->figures);
}

static void fill_histograms(struct client_report *report, struct weft_session *session)
{
    pthread_mutex_lock(&session->control.lock);
    report->step = session->totals.step;
    report->exposed = session->totals.exposed;
    pthread_mutex_unlock(&session->control.lock);
    report->figures.step_buckets = report->step.counts;
    report->figures.exposed_buckets = report->exposed.counts;
    report->failover = session->totals.failover;
    report->figures.failover_buckets = report->failover.counts;
    report->figures.failover_ns = report->failover.sum;
    report->figures.n_failover_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
    client_operation_times_report(&report->operations, &report->figures);
    report->figures.n_step_buckets = report->figures.n_exposed_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
}

static void fill_codec(struct client_report *report, const struct client_engine *engine)
{
    struct client_report_codec *codec = &report->codec;
    codec->times = engine->counters.codec;
    if (codec->times.gradient_bytes == 0) return;
    weft__control__codec_figures__init(&codec->figures);
    codec->figures.encode_buckets = codec->times.encode.counts;
    codec->figures.decode_buckets = codec->times.decode.counts;
    codec->figures.n_encode_buckets = codec->figures.n_decode_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
    codec->figures.encode_ns = codec->times.encode.sum;
    codec->figures.decode_ns = codec->times.decode.sum;
    codec->figures.gradient_bytes = codec->times.gradient_bytes;
    codec->figures.encoded_bytes = codec->times.encoded_bytes;
    report->figures.codec = &codec->figures;
}

static uint64_t sent_to(const struct client_engine *engine, const struct client_member *member)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < member->endpoint_count; i++) {
        const struct weft_peer *peer = weft_transport_peer(engine->transport, member->endpoint_first + i);
        if (peer) bytes += weft_peer_sent_bytes(peer);
    }
    return bytes;
}

/* Copies mapped from the memory of a peer are no bytes of a link. */
static void fill_links(struct client_report *report, const struct client_engine *engine)
{
    const struct weft_session *session = report->session;
    struct client_report_links *links = &report->links;
    uint32_t count = 0;
    for (uint32_t i = 0; i < session->membership.member_count; i++) {
        const uint64_t bytes = sent_to(engine, &session->membership.members[i]);
        uint32_t at = count;
        if (bytes == 0 || (count == WEFT_LIMIT_REPORT_LINKS && bytes <= links->bytes[count - 1])) continue;
        if (count < WEFT_LIMIT_REPORT_LINKS) count++;
        else at--;
        for (; at > 0 && links->bytes[at - 1] < bytes; at--) {
            links->bytes[at] = links->bytes[at - 1];
            links->members[at] = links->members[at - 1];
        }
        links->bytes[at] = bytes;
        links->members[at] = session->membership.members[i].member;
    }
    report->figures.link_members = links->members;
    report->figures.link_bytes = links->bytes;
    report->figures.n_link_members = report->figures.n_link_bytes = count;
}

/* Engine thread. */
static void fill(struct weft_command *command)
{
    struct client_report *report = weft_container_of(command, struct client_report, ask);
    struct weft_session *session = report->session;
    struct client_engine *engine = session->engine;
    weft__control__report__init(&report->figures);
    report->figures.open = report->open;
    report->figures.steps = session->totals.steps_ended;
    report->figures.step_ns = session->totals.step_ns;
    report->figures.exposed_ns = session->totals.exposed_ns;
    report->figures.exposed_peers_ns = session->totals.exposed_peers_ns;
    report->figures.wait_ns = session->totals.wait_ns;
    report->figures.snapshot_ns = session->totals.snapshot_ns;
    report->figures.exposed_tensor = (uint32_t)session->totals.exposed_tensor;
    report->figures.exposed_tensor_ns = session->totals.exposed_tensor_ns;
    fill_histograms(report, session);
    fill_links(report, engine);
    report->figures.encode_ns = client_engine_encode_ns(engine);
    fill_codec(report, engine);
    client_engine_count_bytes(engine, &report->figures.sent_bytes, &report->figures.received_bytes);
    fill_requests(engine, weft_now_ns(session->env));
    weft_net_post(session->control.net, &report->reply);
}

void client_report_request(struct weft_session *session)
{
    struct client_report *report = &session->engine->report;
    if (report->is_pending || !session->loop) return;
    report->is_pending = true;
    report->session = session;
    report->ask.fn = fill;
    report->reply.fn = send_report;
    weft_loop_post(session->loop, &report->ask);
}
