/* transport.c - life and progress of one endpoint; core.h has the drawing.
 *
 * Progress runs in a fixed order: due completions, the work of the backend, completions that this work
 * produced, reports of lost peers. User callbacks run from nowhere else, so no call can re-enter its
 * caller. */
#include <stdio.h>
#include <string.h>

#include "transport/core/core.h"

void weft_transport_options_init(struct weft_transport_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->lanes = "tcp";
    options->devices = "lo";
}

enum weft_status weft_transport_options_wrap(struct weft_transport_options *options, const char *backend,
                                             const char *wrap,
                                             char composed_out[WEFT_TRANSPORT_BACKEND_BYTES_MAX])
{
    size_t used = 0;
    for (const char *at = wrap; *at;) {
        /* "fault:drop=0.01;trace:file=x": names go to the backend, parameters stay */
        size_t name_bytes = strcspn(at, ":;");
        if (used + name_bytes + 1 >= WEFT_TRANSPORT_BACKEND_BYTES_MAX) return WEFT_ERR_LIMIT;
        memcpy(composed_out + used, at, name_bytes);
        used += name_bytes;
        composed_out[used++] = ':';
        at += strcspn(at, ";");
        if (*at == ';') at++;
    }
    if (used + strlen(backend) >= WEFT_TRANSPORT_BACKEND_BYTES_MAX) return WEFT_ERR_LIMIT;
    memcpy(composed_out + used, backend, strlen(backend) + 1);
    const char *parameters = wrap + strcspn(wrap, ":;");
    if (*parameters == ':') parameters++;
    options->backend = composed_out;
    options->wrap = wrap[0] == 0 ? NULL : parameters;
    return WEFT_OK;
}

uint32_t core_nonce_hash(uint64_t nonce)
{
    nonce ^= nonce >> 33;
    nonce *= 0xff51afd7ed558ccdull;
    nonce ^= nonce >> 33;
    nonce *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(nonce >> 32);
}

static int pollable_progress(struct weft_pollable *pollable, int budget)
{
    return weft_transport_progress(weft_container_of(pollable, struct weft_transport, attachment.pollable),
                                   budget);
}

enum weft_status core_arm(struct weft_transport *transport)
{
    if (!weft_list_empty(&transport->done) || !weft_list_empty(&transport->ended) || transport->rescan ||
        transport->losses.has_unreported_loss)
        return WEFT_ERR_AGAIN;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->failing) {
        if (weft_container_of(node, struct weft_peer, failing)->operations == 0) return WEFT_ERR_AGAIN;
    }
    return transport->ops->arm(transport);
}

static enum weft_status pollable_arm(struct weft_pollable *pollable)
{
    return core_arm(weft_container_of(pollable, struct weft_transport, attachment.pollable));
}

static void wake_due(struct weft_timer *timer)
{
    struct weft_transport *transport = weft_container_of(timer, struct weft_transport, attachment.wake);
    transport->attachment.wake_ns = WEFT_NEVER;
    weft_transport_progress(transport, 64);
}

enum weft_status weft_transport_open(struct weft_env *env, const struct weft_transport_options *options,
                                     struct weft_transport **transport_out, struct weft_error *error)
{
    WEFT_ASSERT(env && options && transport_out);
    if (options->size != sizeof *options) {
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "transport options have size %zu, this build expects %zu: call weft_transport_options_init",
            options->size, sizeof *options);
    }
    const char *backend = options->backend ? options->backend : "";
    const struct weft_transport_ops *ops;
    WEFT_TRY(core_backend_find(backend, &ops, error));
    struct weft_transport *transport = weft_alloc_zero(env, sizeof *transport);
    if (!transport) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a transport endpoint");
    transport->env = env;
    transport->ops = ops;
    snprintf(transport->name, sizeof transport->name, "%s", options->backend);
    transport->id = options->id;
    transport->nonce = options->nonce;
    transport->eager_bytes_max = options->eager_bytes_max ? options->eager_bytes_max : CORE_EAGER_BYTES;
    transport->losses.peer_failed = options->peer_failed;
    transport->losses.peer_failed_context = options->peer_failed_context;
    core_match_init(transport);
    core_windows_init(transport);
    core_registrations_init(transport);
    transport->abilities = ops->abilities;
    weft_list_init(&transport->attachment.pollable.link);
    weft_timer_init(&transport->attachment.wake, wake_due);
    transport->attachment.wake_ns = WEFT_NEVER;
    if (core_peers_init(transport) < 0) {
        weft_free_bytes(env, transport);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a transport endpoint");
    }
    struct weft_transport_options settled = *options; /* a backend sees an empty text as NULL */
    if (settled.ports && settled.ports[0] == 0) settled.ports = NULL;
    if (settled.tune && settled.tune[0] == 0) settled.tune = NULL;
    enum weft_status status = ops->open(transport, &settled, error);
    if (status < 0) {
        core_peers_free(transport);
        weft_free_bytes(env, transport);
        return weft_error_set(error, status, "transport backend \"%s\" could not be opened",
                              options->backend);
    }
    *transport_out = transport;
    return WEFT_OK;
}

/* Leaves the loop: the loop may be freed before the transport. */
static void detach(struct weft_transport *transport)
{
    if (!transport->attachment.loop) return;
    weft_timer_stop(transport->attachment.loop, &transport->attachment.wake);
    weft_loop_remove(transport->attachment.loop, &transport->attachment.pollable);
    transport->attachment.loop = NULL;
}

void weft_transport_close(struct weft_transport *transport)
{
    if (transport->closed) return;
    detach(transport);
    core_match_end_posted(transport, NULL, WEFT_ERR_CLOSED);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        core_arrivals_drop(transport, weft_container_of(node, struct weft_peer, link), false);
    }
    transport->closed = true;
    transport->ops->close(transport);
}

bool weft_transport_drained(struct weft_transport *transport)
{
    return transport->closed && weft_list_empty(&transport->done) && weft_list_empty(&transport->ended) &&
           transport->ops->drained(transport);
}

bool weft_transport_is_flushed(struct weft_transport *transport)
{
    return !transport->ops->flushed || transport->ops->flushed(transport);
}

void weft_transport_free(struct weft_transport *transport)
{
    if (!transport) return;
    WEFT_ASSERT(!transport->progressing);
    weft_transport_close(transport);
    core_windows_free(transport);
    core_registrations_free(transport);
    transport->ops->free(transport);
    core_peers_free(transport);
    weft_free_bytes(transport->env, transport->discards.discard_rules);
    weft_free_bytes(transport->env, transport);
}

enum weft_status weft_transport_address(struct weft_transport *transport, const void **blob_out,
                                        size_t *bytes_out)
{
    if (transport->closed) return WEFT_ERR_CLOSED;
    return transport->ops->address(transport, blob_out, bytes_out);
}

enum weft_status weft_transport_send(struct weft_peer *peer, const struct weft_message *message,
                                     struct weft_completion *completion)
{
    struct weft_transport *transport = peer->transport;
    WEFT_ASSERT(completion && completion->count > 0);
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (peer->status < 0) return peer->status;
    if (message->header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX) return WEFT_ERR_INVALID;
    if (message->header_bytes > 0 && !message->header) return WEFT_ERR_INVALID;
    if (message->payload_bytes > 0 && !message->payload) return WEFT_ERR_INVALID;
    enum weft_status status = transport->ops->send(transport, peer, message, completion);
    if (status != WEFT_IN_PROGRESS) {
        WEFT_ASSERT(status < 0);
        return status;
    }
    peer->operations++;
    peer->sent_bytes += message->header_bytes + message->payload_bytes;
    transport->stats.sent_count++;
    transport->stats.sent_bytes += message->header_bytes + message->payload_bytes;
    transport->stats.sent_payload_bytes += message->payload_bytes;
    return WEFT_IN_PROGRESS;
}

enum weft_status weft_transport_recv(struct weft_transport *transport, uint32_t peer_id, uint64_t tag,
                                     struct weft_receive *receive)
{
    WEFT_ASSERT(receive->completion && receive->completion->count > 0);
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (receive->buffer_bytes > 0 && !receive->buffer) return WEFT_ERR_INVALID;
    struct weft_peer *peer = weft_transport_peer(transport, peer_id);
    if (!peer) return WEFT_ERR_NOT_FOUND;
    transport = peer->transport;
    /* also from a peer that has closed */
    struct core_arrival *arrival = core_match_unexpected(transport, peer_id, tag);
    if (peer->status < 0 && !arrival) return peer->status;
    receive->peer_id = peer_id;
    receive->tag = tag;
    receive->payload_bytes = 0;
    receive->header_bytes = 0;
    receive->backend = NULL;
    weft_list_init(&receive->link);
    if (transport->observe) transport->observe(transport, CORE_RECEIVE_POSTED, receive);
    if (arrival) core_receive_match(transport, receive, arrival);
    else core_match_post(transport, receive);
    return WEFT_IN_PROGRESS;
}

void weft_transport_handler(struct weft_transport *transport, uint8_t channel, weft_arrival_fn fn,
                            void *context)
{
    for (uint32_t i = 0; i < transport->composite.child_count; i++)
        weft_transport_handler(transport->composite.children[i], channel, fn, context);
    transport->matching.handlers[channel].fn = fn;
    transport->matching.handlers[channel].context = context;
    if (fn && !transport->composite.children) transport->rescan = true;
}

void weft_transport_set_discard_filter(struct weft_transport *transport, uint8_t channel,
                                       weft_discard_filter_fn fn, void *context)
{
    for (uint32_t i = 0; i < transport->composite.child_count; i++)
        weft_transport_set_discard_filter(transport->composite.children[i], channel, fn, context);
    transport->discards.discard_filters[channel].fn = fn;
    transport->discards.discard_filters[channel].context = context;
}

void *weft_transport_handler_context(const struct weft_transport *transport, uint8_t channel)
{
    return transport->matching.handlers[channel].fn ? transport->matching.handlers[channel].context : NULL;
}

void weft_transport_watch(struct weft_transport *transport, weft_peer_lost_fn fn, void *context)
{
    for (uint32_t i = 0; i < transport->composite.child_count; i++)
        weft_transport_watch(transport->composite.children[i], fn, context);
    transport->losses.watcher = fn;
    transport->losses.watcher_context = context;
}

void core_finish(struct weft_transport *transport, struct core_done *done, enum weft_status status)
{
    done->status = status;
    weft_list_append(&transport->done, &done->link);
}

static int deliver(struct weft_transport *transport, int budget)
{
    int count = core_match_deliver(transport, budget);
    while (count < budget && !weft_list_empty(&transport->done)) {
        struct core_done *done = weft_list_first(&transport->done, struct core_done, link);
        struct weft_completion *completion = done->completion;
        enum weft_status status = done->status;
        weft_list_remove(&done->link);
        if (done->peer) {
            WEFT_ASSERT(done->peer->operations > 0);
            done->peer->operations--;
        }
        if (done->remote) {
            WEFT_ASSERT(done->remote->operations > 0);
            done->remote->operations--;
        }
        if (done->recycle) done->recycle(transport, done);
        count++;
        weft_completion_finish(completion, status);
    }
    return count;
}

static inline bool has_finished(const struct weft_transport *transport)
{
    return !weft_list_empty(&transport->done) || !weft_list_empty(&transport->ended);
}

int weft_transport_progress(struct weft_transport *transport, int budget)
{
    WEFT_ASSERT(!transport->progressing); /* a callback of this endpoint must not progress it */
    transport->progressing = true;
    int count = has_finished(transport) ? deliver(transport, budget) : 0;
    if (transport->rescan) {
        core_arrivals_rescan(transport);
        count++;
    }
    if (count < budget) count += transport->ops->progress(transport, budget - count);
    if (count < budget && has_finished(transport)) count += deliver(transport, budget - count);
    if (!transport->closed && transport->losses.has_unreported_loss) core_peers_notify_watcher(transport);
    /* peer_failed follows the last operation with the peer, including ended receives */
    if (!weft_list_empty(&transport->failing) && weft_list_empty(&transport->ended) && !transport->closed) {
        count += core_peers_report(transport);
    }
    transport->progressing = false;
    return count;
}

enum weft_status weft_transport_attach(struct weft_transport *transport, struct weft_loop *loop)
{
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (transport->attachment.loop) return WEFT_ERR_EXISTS;
    transport->attachment.pollable.fd = transport->ops->fd(transport);
    transport->attachment.pollable.progress = pollable_progress;
    transport->attachment.pollable.arm = pollable_arm;
    WEFT_TRY(weft_loop_add(loop, &transport->attachment.pollable));
    transport->attachment.loop = loop;
    if (transport->attachment.wake_ns != WEFT_NEVER) {
        uint64_t wake_ns = transport->attachment.wake_ns;
        transport->attachment.wake_ns = WEFT_NEVER;
        core_wake_at(transport, wake_ns);
    }
    return WEFT_OK;
}

void core_wake_at(struct weft_transport *transport, uint64_t time_ns)
{
    if (transport->closed || time_ns >= transport->attachment.wake_ns) return;
    transport->attachment.wake_ns = time_ns;
    if (!transport->attachment.loop) return;
    if (weft_timer_start(transport->attachment.loop, &transport->attachment.wake, time_ns) < 0) {
        transport->attachment.wake_ns =
            WEFT_NEVER; /* no memory for a timer: the next progress requests it again */
    }
}

void weft_transport_stats(struct weft_transport *transport, struct weft_transport_stats *stats_out)
{
    if (transport->ops->count) transport->ops->count(transport);
    *stats_out = transport->stats;
}

size_t weft_transport_message_bytes(const struct weft_transport *transport)
{
    return transport->message_bytes;
}

const char *weft_transport_name(const struct weft_transport *transport) { return transport->name; }
struct weft_env *weft_transport_env(struct weft_transport *transport) { return transport->env; }
uint32_t weft_transport_id(const struct weft_transport *transport) { return transport->id; }
