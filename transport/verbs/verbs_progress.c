/* verbs_progress.c - reports device events to the streams and posts the work that they produce.
 *
 * Under traffic no system call is made: completions are polled from memory. The bootstrap and the devices'
 * event descriptors are polled after a sleep and every 10 ms, or every millisecond while a peer connects,
 * closes or fails. */
#include <stdio.h>
#include <sys/epoll.h>

#include "transport/verbs/verbs_endpoint.h"

/* ---- completions ---- */

static void completion_failed(struct verbs_lane *lane, const struct verbs_completion *completion)
{
    char text[200];
    verbs_completion_describe(completion, text, sizeof text);
    if (completion->status != WEFT_ERR_CANCELLED) {
        const struct weft_transport *transport = lane->verbs_peer->endpoint->transport;
        weft_log(transport->env, WEFT_LOG_INFO, "transport", "endpoint %u lane %u: %s", transport->id,
                 lane->index, text);
        bool refused = completion->cause == IBV_WC_REM_ACCESS_ERR || completion->cause == IBV_WC_REM_OP_ERR ||
                       completion->cause == IBV_WC_REM_INV_REQ_ERR;
        bool window = refused && completion->event == VERBS_SENT &&
                      stream_work_refused(lane->verbs_peer->stream, lane->index, lane->epoch, completion->id);
        if (!window && (refused || !verbs_may_rebuild(completion->cause)))
            stream_fail(lane->verbs_peer->stream, completion->status, text);
    }
    stream_lane_broke(lane->verbs_peer->stream, lane->index, lane->epoch, text);
}

static void completion_take(const struct verbs_completion *completion)
{
    struct verbs_lane *lane = completion->queue_pair->owner;
    struct stream *stream = lane->verbs_peer->stream;
    verbs_dirty(lane->verbs_peer);
    if (completion->status < 0) completion_failed(lane, completion);
    else if (completion->event == VERBS_ARRIVED)
        stream_imm(stream, lane->index, lane->epoch, completion->immediate);
    else stream_acked(stream, lane->index, lane->epoch, completion->id);
}

/* When a rail was found empty after the last flush of a fenced queue pair, the queue pair has no
 * completions left. */
static void rail_found_empty(struct verbs_endpoint *endpoint, const struct verbs_rail *rail)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->fencing) {
        struct verbs_lane *lane = weft_container_of(node, struct verbs_lane, link);
        if (lane->queue_pair->rail == rail && lane->queue_pair->state == VERBS_FLUSHED) lane->drained = true;
    }
}

static int rail_poll(struct verbs_endpoint *endpoint, struct verbs_rail *rail, int budget)
{
    struct verbs_completion completions[VERBS_POLL];
    int count = 0;
    while (count < budget) {
        int want = budget - count < VERBS_POLL ? budget - count : VERBS_POLL;
        int got = verbs_rail_poll(rail, completions, want);
        for (int i = 0; i < got; i++) completion_take(&completions[i]);
        if (got > 0) count += got;
        if (got < want) {
            if (!weft_list_empty(&endpoint->fencing)) rail_found_empty(endpoint, rail);
            break;
        }
    }
    return count;
}

/* ---- fences ---- */

static int fences(struct verbs_endpoint *endpoint, uint64_t now_ns)
{
    int count = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->fencing) {
        struct verbs_lane *lane = weft_container_of(node, struct verbs_lane, link);
        if (!lane->drained && now_ns < lane->fence_limit_ns) continue;
        weft_list_remove(&lane->link);
        lane->fencing = false;
        verbs_lane_destroy(lane); /* nothing can be written through it from here on */
        verbs_dirty(lane->verbs_peer);
        stream_lane_fenced(lane->verbs_peer->stream, lane->index, lane->epoch);
        count++;
    }
    return count;
}

/* ---- bootstrap and device events ---- */

static void break_rail(struct verbs_endpoint *endpoint, const struct verbs_rail *rail, const char *text)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        struct verbs_peer *verbs_peer = weft_container_of(node, struct verbs_peer, of_endpoint);
        for (uint32_t i = 0; i < STREAM_LANES_MAX && verbs_peer->stream; i++) {
            struct verbs_lane *lane = &verbs_peer->lanes[i];
            if (!lane->queue_pair || lane->queue_pair->rail != rail || lane->fencing) continue;
            stream_lane_broke(verbs_peer->stream, i, lane->epoch, text);
            verbs_dirty(verbs_peer);
        }
    }
}

static int rail_events(struct verbs_endpoint *endpoint, struct verbs_rail *rail)
{
    struct verbs_async event;
    int count = 0;
    while (verbs_rail_async(rail, &event)) {
        count++;
        endpoint->traffic.system_calls++;
        weft_log(endpoint->transport->env, WEFT_LOG_INFO, "transport", "endpoint %u: %s",
                 endpoint->transport->id, event.text);
        if (event.kind == VERBS_ASYNC_QUEUE_PAIR && event.queue_pair) {
            struct verbs_lane *lane = event.queue_pair->owner;
            if (!lane->fencing)
                stream_lane_broke(lane->verbs_peer->stream, lane->index, lane->epoch, event.text);
            verbs_dirty(lane->verbs_peer);
        } else if (event.kind == VERBS_ASYNC_DEVICE || event.kind == VERBS_ASYNC_ADDRESS) {
            break_rail(endpoint, rail, event.text);
        }
    }
    return count;
}

static int poll_bootstrap(struct verbs_endpoint *endpoint, int budget)
{
    struct epoll_event events[3 * VERBS_RAILS_MAX + 1];
    int count = 0, got = epoll_wait(endpoint->epoll, events, 3 * VERBS_RAILS_MAX + 1, 0);
    endpoint->traffic.system_calls++;
    for (int e = 0; e < got; e++) {
        if (events[e].data.fd == bootstrap_fd(endpoint->bootstrap)) {
            count += bootstrap_progress(endpoint->bootstrap, budget);
            endpoint->traffic.system_calls++;
        }
        for (uint32_t i = 0; i < endpoint->rail_count; i++) {
            struct verbs_rail *rail = &endpoint->rails[i];
            if (events[e].data.fd == verbs_rail_fd(rail)) verbs_rail_woken(rail);
            if (events[e].data.fd == verbs_rail_async_fd(rail)) count += rail_events(endpoint, rail);
            if (endpoint->cms[i] && events[e].data.fd == verbs_cm_fd(endpoint->cms[i]))
                count += verbs_lanes_joined(endpoint->cms[i]);
        }
    }
    return count;
}

/* Peers with time limits. */
static void check_restless(struct verbs_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->needs_check)
        verbs_dirty(weft_container_of(node, struct verbs_peer, needs_check));
}

static void post_dirty(struct verbs_endpoint *endpoint, uint64_t now_ns)
{
    /* a peer that becomes dirty meanwhile waits for the next progress */
    uint32_t rounds = endpoint->transport->peer_table.peer_count + 1;
    while (rounds-- > 0 && !weft_list_empty(&endpoint->dirty)) {
        struct verbs_peer *verbs_peer = weft_list_first(&endpoint->dirty, struct verbs_peer, dirty);
        weft_list_remove(&verbs_peer->dirty);
        verbs_peer_check(verbs_peer, now_ns);
    }
}

int verbs_progress(struct weft_transport *transport, int budget)
{
    struct verbs_endpoint *endpoint = transport->backend;
    int count = 0;
    for (uint32_t i = 0; i < endpoint->rail_count && count < budget; i++)
        count += rail_poll(endpoint, &endpoint->rails[i], budget - count);
    if (count < budget) count += verbs_self_progress(endpoint, budget - count);
    bool aside = endpoint->slept || transport->closed || ++endpoint->polls % VERBS_CLOCK_EVERY == 0;
    if (!aside && weft_list_empty(&endpoint->dirty) && weft_list_empty(&endpoint->fencing)) return count;
    uint64_t now_ns = weft_now_ns(transport->env);
    if (aside && (endpoint->slept || now_ns >= endpoint->bootstrap_poll_ns)) {
        endpoint->slept = false;
        count += poll_bootstrap(endpoint, 64);
        check_restless(endpoint);
        endpoint->bootstrap_poll_ns =
            now_ns + (weft_list_empty(&endpoint->needs_check) ? VERBS_BOOTSTRAP_IDLE_POLL_NS
                                                              : VERBS_BOOTSTRAP_POLL_NS);
    }
    count += fences(endpoint, now_ns);
    post_dirty(endpoint, now_ns);
    return count;
}

/* ---- sleeping ---- */

enum weft_status verbs_arm(struct weft_transport *transport)
{
    struct verbs_endpoint *endpoint = transport->backend;
    if (!weft_list_empty(&endpoint->dirty) || !weft_list_empty(&endpoint->fencing) ||
        !weft_list_empty(&endpoint->self_arrivals))
        return WEFT_ERR_AGAIN;
    for (uint32_t i = 0; i < endpoint->rail_count; i++) {
        /* some rails may be armed: check all channels after the sleep, whatever the others return */
        endpoint->slept = true;
        WEFT_TRY(verbs_rail_arm(&endpoint->rails[i]));
    }
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->needs_check) {
        const struct verbs_peer *verbs_peer = weft_container_of(node, struct verbs_peer, needs_check);
        uint64_t wake_ns = stream_next_ns(verbs_peer->stream);
        if ((verbs_peer->leaving || verbs_peer->ended) && verbs_peer->end_limit_ns < wake_ns)
            wake_ns = verbs_peer->end_limit_ns;
        if (wake_ns != WEFT_NEVER) core_wake_at(transport, wake_ns);
    }
    return WEFT_OK;
}
