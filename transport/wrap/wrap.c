/* wrap.c - life of a wrapped endpoint: open, peers, progress, close; see wrap.h.
 *
 * Loss. Transports are reliable, so a lost message is a broken connection that is not detected: from then
 * on the peer is silent in both directions. Its operations are accepted and never complete, its messages
 * never arrive, its death is not reported. A deadline of the caller then calls weft_transport_fail_peer or
 * close. `kill` does this for all peers. `break` is a broken connection that is detected: the peer is
 * reported as lost.
 *
 * Rate and delay. An operation leaves when the endpoint's link is free (rate_bytes per second) and travels
 * delay plus jitter. An arrival is delivered after its transfer time on the incoming link. */
#include <stdio.h>
#include <string.h>

#include "transport/wrap/wrap.h"
#include "transport/wrap/wrap_ops.h"

enum { FRAMING_BYTES = 64 };

/* splitmix64 */
uint64_t wrap_random(struct wrap *wrap)
{
    uint64_t z = (wrap->random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static bool chance(struct wrap *wrap, double probability)
{
    return probability > 0 && (double)(wrap_random(wrap) >> 11) * 0x1p-53 < probability;
}

bool wrap_lets_pass(struct wrap *wrap, struct wrap_peer *peer)
{
    wrap->message_count++;
    if (wrap->options.kill_after > 0 && wrap->message_count > wrap->options.kill_after) wrap->killed = true;
    if (chance(wrap, wrap->options.drop)) peer->cut = true;
    if (chance(wrap, wrap->options.breaks)) peer->cut = peer->broken = wrap->break_pending = true;
    if (wrap->break_pending) core_wake_at(wrap->outer, weft_now_ns(wrap->outer->env));
    return !wrap->killed && !peer->cut;
}

static uint64_t link_ns(const struct wrap *wrap, uint64_t bytes)
{
    return wrap->options.rate_bytes
               ? (uint64_t)((double)(bytes + FRAMING_BYTES) * 1e9 / (double)wrap->options.rate_bytes)
               : 0;
}

uint64_t wrap_due_out(struct wrap *wrap, uint64_t bytes)
{
    uint64_t now_ns = weft_now_ns(wrap->outer->env);
    const struct wrap_options *options = &wrap->options;
    if (wrap->out_free_ns < now_ns) wrap->out_free_ns = now_ns;
    wrap->out_free_ns += link_ns(wrap, bytes);
    uint64_t due_ns = wrap->out_free_ns + options->delay_ns +
                      (options->jitter_ns ? wrap_random(wrap) % options->jitter_ns : 0);
    if (wrap->out_due_ns < due_ns) wrap->out_due_ns = due_ns; /* keeps the order */
    return wrap->out_due_ns;
}

uint64_t wrap_due_in(struct wrap *wrap, uint64_t bytes)
{
    uint64_t now_ns = weft_now_ns(wrap->outer->env);
    wrap->in_due_ns += link_ns(wrap, bytes);
    if (wrap->in_due_ns < now_ns) wrap->in_due_ns = now_ns;
    return wrap->in_due_ns;
}

/* ---- peers ---- */

static void inner_peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct wrap *wrap = context;
    struct weft_peer *peer = core_peer_find(wrap->outer, peer_id);
    if (!peer) return;
    struct wrap_peer *wrap_peer = peer->backend;
    if (wrap->killed || wrap_peer->cut) return; /* a silent peer reports nothing */
    if (wrap->trace)
        weft_trace_mark(wrap->trace, wrap_peer->inner->has_left ? "peer left" : "peer lost", peer_id, text);
    wrap_flush_arriving(wrap, peer);
    if (wrap_peer->inner->has_left) core_peer_left(wrap->outer, peer, text);
    else core_peer_lost(wrap->outer, peer, status, text);
}

static enum weft_status wrap_connect(struct weft_transport *transport, struct weft_peer *peer,
                                     const void *blob, size_t bytes)
{
    struct wrap_peer *wrap_peer = weft_alloc_zero(transport->env, sizeof *wrap_peer);
    if (!wrap_peer) return WEFT_ERR_NO_MEMORY;
    weft_list_init(&wrap_peer->vanished);
    enum weft_status status =
        weft_transport_connect(wrap_of(transport)->inner, peer->id, blob, bytes, &wrap_peer->inner);
    if (status < 0) {
        weft_free_bytes(transport->env, wrap_peer);
        return status;
    }
    peer->backend = wrap_peer;
    if (wrap_of(transport)->trace) weft_trace_mark(wrap_of(transport)->trace, "connect", peer->id, NULL);
    return WEFT_OK;
}

static void wrap_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct wrap *wrap = wrap_of(transport);
    struct wrap_peer *wrap_peer = peer->backend;
    if (wrap->trace && peer->status < 0)
        weft_trace_mark(wrap->trace, "disconnect", peer->id, core_peer_text(peer));
    wrap_end_ops(transport, &wrap->leaving, peer, status);
    wrap_end_ops(transport, &wrap_peer->vanished, NULL, status);
    weft_transport_fail_peer(wrap->inner, peer->id, status,
                             core_peer_text(peer)); /* ends its operations with the same status */
}

/* Reports connections that the wrapper broke. */
static int report_broken(struct wrap *wrap)
{
    int count = 0;
    struct weft_list *node, *spare;
    wrap->break_pending = false;
    weft_list_foreach (node, spare, &wrap->outer->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        struct wrap_peer *wrap_peer = peer->backend;
        if (!wrap_peer || !wrap_peer->broken) continue;
        wrap_peer->broken = false;
        core_peer_lost(wrap->outer, peer, WEFT_ERR_PEER_LOST, "the fault wrapper broke the connection");
        count++;
    }
    return count;
}

/* The outermost fault wrapper at or inside this transport, or NULL. */
static struct weft_transport *fault_of(struct weft_transport *transport)
{
    while (transport->ops == &delay_transport_ops || transport->ops == &trace_transport_ops)
        transport = wrap_of(transport)->inner;
    return transport->ops == &fault_transport_ops ? transport : NULL;
}

enum weft_status weft_transport_fault_cut(struct weft_transport *transport, uint32_t peer_id)
{
    struct weft_transport *fault = fault_of(transport);
    if (!fault) return WEFT_ERR_UNSUPPORTED;
    struct weft_peer *peer = weft_transport_peer(fault, peer_id);
    if (!peer) return WEFT_ERR_NOT_FOUND;
    ((struct wrap_peer *)peer->backend)->cut = true;
    return WEFT_OK;
}

enum weft_status weft_transport_fault_kill(struct weft_transport *transport)
{
    struct weft_transport *fault = fault_of(transport);
    if (!fault) return WEFT_ERR_UNSUPPORTED;
    wrap_of(fault)->killed = true;
    return WEFT_OK;
}

/* ---- life ---- */

static enum wrap_role role_of(const struct weft_transport_ops *ops)
{
    if (ops == &trace_transport_ops) return WRAP_TRACE;
    return ops == &fault_transport_ops ? WRAP_FAULT : WRAP_DELAY;
}

/* Opens the inner endpoint: the rest of the name, and the parameters after the first ';'. */
static enum weft_status open_inner(struct wrap *wrap, const struct weft_transport_options *options,
                                   struct weft_error *error)
{
    struct weft_transport_options inner = *options;
    const char *more = options->wrap ? strchr(options->wrap, ';') : NULL;
    inner.backend = strchr(options->backend, ':') + 1;
    inner.wrap = more ? more + 1 : NULL;
    if (more && more[1] && !strchr(inner.backend, ':')) {
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "transport wrapper parameters \"%.80s\" belong to no wrapper: \"%.80s\" has no more", inner.wrap,
            options->backend);
    }
    inner.peer_failed = inner_peer_failed;
    inner.peer_failed_context = wrap;
    return weft_transport_open(wrap->outer->env, &inner, &wrap->inner, error);
}

static enum weft_status wrap_open(struct weft_transport *transport,
                                  const struct weft_transport_options *options, struct weft_error *error)
{
    struct wrap *wrap = weft_alloc_zero(transport->env, sizeof *wrap);
    if (!wrap)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY,
                                                "no memory for a transport wrapper");
    enum wrap_role role = role_of(transport->ops);
    wrap->outer = transport;
    wrap->matched_posted_ns = wrap->slept_ns = WEFT_NEVER;
    struct weft_list *const lists[] = {&wrap->leaving, &wrap->arriving, &wrap->sunk, &wrap->unused_ops,
                                       &wrap->unused_arrivals};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) weft_list_init(lists[i]);
    enum weft_status status = wrap_options_parse(options->wrap, role, &wrap->options, error);
    if (status == WEFT_OK) status = open_inner(wrap, options, error);
    if (status < 0) {
        weft_free_bytes(transport->env, wrap);
        return status;
    }
    wrap->random = wrap->options.seed * 0x9e3779b97f4a7c15ull + options->id;
    for (int channel = 0; channel < CORE_CHANNELS; channel++) {
        weft_transport_handler(wrap->inner, (uint8_t)channel, wrap_arrived, wrap);
    }
    snprintf(transport->name, sizeof transport->name, "%s:%.50s", transport->ops->name,
             weft_transport_name(wrap->inner));
    transport->message_bytes = weft_transport_message_bytes(wrap->inner);
    transport->abilities = weft_transport_abilities(wrap->inner);
    if (wrap_can_alter(wrap))
        transport->abilities &= ~(unsigned)WEFT_TRANSPORT_MAPS; /* loads and stores cannot be delayed */
    transport->backend = wrap;
    if (role == WRAP_TRACE) {
        char title[80];
        snprintf(title, sizeof title, "endpoint %u %.50s", transport->id, weft_transport_name(wrap->inner));
        wrap->trace = weft_trace_open(transport->env, wrap->options.file, wrap->options.limit_bytes,
                                      transport->id, title);
        transport->observe = wrap_observe;
    }
    return WEFT_OK;
}

static enum weft_status wrap_address(struct weft_transport *transport, const void **blob_out,
                                     size_t *bytes_out)
{
    return weft_transport_address(wrap_of(transport)->inner, blob_out, bytes_out);
}

static void wrap_close(struct weft_transport *transport)
{
    struct wrap *wrap = wrap_of(transport);
    wrap_end_ops(transport, &wrap->leaving, NULL, WEFT_ERR_CLOSED);
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        wrap_end_ops(transport, &((struct wrap_peer *)peer->backend)->vanished, NULL, WEFT_ERR_CLOSED);
    }
    while (!weft_list_empty(&wrap->arriving)) {
        struct wrap_arrival *arrival = weft_list_first(&wrap->arriving, struct wrap_arrival, link);
        weft_list_remove(&arrival->link);
        wrap_discard(transport, &arrival->core.handle);
    }
    while (!weft_list_empty(&wrap->sunk)) {
        struct weft_arrival *inner = weft_list_first(&wrap->sunk, struct weft_arrival, link);
        weft_list_remove(&inner->link);
        weft_transport_discard(wrap->inner, inner);
    }
    if (wrap->trace) weft_trace_mark(wrap->trace, "close", WEFT_ANY_PEER, NULL);
    weft_transport_close(wrap->inner);
}

static bool wrap_drained(struct weft_transport *transport)
{
    return weft_transport_drained(wrap_of(transport)->inner);
}

static bool wrap_flushed(struct weft_transport *transport)
{
    return weft_transport_is_flushed(wrap_of(transport)->inner);
}

static void wrap_free(struct weft_transport *transport)
{
    struct wrap *wrap = wrap_of(transport);
    weft_transport_free(wrap->inner);
    while (!weft_list_empty(&transport->done)) { /* the caller gave up: these never run */
        struct core_done *done = weft_list_first(&transport->done, struct core_done, link);
        weft_list_remove(&done->link);
        done->recycle(transport, done);
    }
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &transport->peers) {
        weft_free_bytes(transport->env, weft_container_of(node, struct weft_peer, link)->backend);
    }
    weft_list_foreach (node, spare, &wrap->unused_ops)
        weft_free_bytes(transport->env, weft_container_of(node, struct wrap_op, link));
    weft_list_foreach (node, spare, &wrap->unused_arrivals)
        weft_free_bytes(transport->env, weft_container_of(node, struct wrap_arrival, link));
    weft_trace_close(wrap->trace);
    weft_free_bytes(transport->env, wrap);
}

/* Schedules the next progress of this wrapper and of the inner endpoint. */
static void wake_next(struct wrap *wrap)
{
    if (!weft_list_empty(&wrap->leaving))
        core_wake_at(wrap->outer, weft_list_first(&wrap->leaving, struct wrap_op, link)->due_ns);
    if (!weft_list_empty(&wrap->arriving))
        core_wake_at(wrap->outer, weft_list_first(&wrap->arriving, struct wrap_arrival, link)->due_ns);
    if (wrap->inner->attachment.wake_ns == WEFT_NEVER) return;
    if (wrap->inner->attachment.wake_ns <= weft_now_ns(wrap->outer->env))
        wrap->inner->attachment.wake_ns = WEFT_NEVER;
    else core_wake_at(wrap->outer, wrap->inner->attachment.wake_ns);
}

static int wrap_progress(struct weft_transport *transport, int budget)
{
    struct wrap *wrap = wrap_of(transport);
    if (wrap->trace && wrap->slept_ns != WEFT_NEVER) {
        weft_trace_state(wrap->trace, "sleep", wrap->slept_ns, weft_now_ns(transport->env));
        wrap->slept_ns = WEFT_NEVER;
    }
    int count = wrap_send_due(wrap, budget);
    count += weft_transport_progress(wrap->inner, budget);
    count += wrap_deliver_due(wrap, budget);
    if (wrap->break_pending) count += report_broken(wrap);
    wake_next(wrap);
    return count;
}

static enum weft_status wrap_arm(struct weft_transport *transport)
{
    struct wrap *wrap = wrap_of(transport);
    uint64_t now_ns = weft_now_ns(transport->env);
    if (!weft_list_empty(&wrap->leaving) &&
        weft_list_first(&wrap->leaving, struct wrap_op, link)->due_ns <= now_ns)
        return WEFT_ERR_AGAIN;
    if (!weft_list_empty(&wrap->arriving) &&
        weft_list_first(&wrap->arriving, struct wrap_arrival, link)->due_ns <= now_ns) {
        return WEFT_ERR_AGAIN;
    }
    if (wrap->break_pending) return WEFT_ERR_AGAIN;
    WEFT_TRY(core_arm(wrap->inner));
    wake_next(wrap);
    if (wrap->slept_ns == WEFT_NEVER) wrap->slept_ns = wrap_trace_now(wrap);
    return WEFT_OK;
}

static int wrap_fd(struct weft_transport *transport)
{
    struct weft_transport *inner = wrap_of(transport)->inner;
    return inner->ops->fd(inner);
}

static void wrap_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes)
{
    weft_peer_describe(((struct wrap_peer *)peer->backend)->inner, out, bytes);
}

/* The inner endpoint knows the cost of the work. */
static void wrap_count(struct weft_transport *transport)
{
    struct weft_transport_stats inner, *stats = &transport->stats;
    weft_transport_stats(wrap_of(transport)->inner, &inner);
    stats->refused_count = inner.refused_count;
    stats->copied_bytes = inner.copied_bytes;
    stats->system_call_count = inner.system_call_count;
    stats->work_request_count = inner.work_request_count;
    stats->doorbell_count = inner.doorbell_count;
    stats->signalled_count = inner.signalled_count;
    stats->memory_bytes = inner.memory_bytes;
    stats->memory_peer_bytes = inner.memory_peer_bytes;
}

#define WRAP_OPS(the_name)                                                                                  \
    {                                                                                                       \
        .name = the_name, .open = wrap_open, .close = wrap_close, .drained = wrap_drained,                  \
        .free = wrap_free, .address = wrap_address, .connect = wrap_connect, .disconnect = wrap_disconnect, \
        .flushed = wrap_flushed, .send = wrap_send, .accept = wrap_accept, .discard = wrap_discard,         \
        .progress = wrap_progress,                                                                          \
        .arm = wrap_arm, .fd = wrap_fd, .window_open = wrap_window_open, .window_close = wrap_window_close, \
        .window_free = wrap_window_free, .import = wrap_import, .release = wrap_release, .map = wrap_map,   \
        .put = wrap_put, .get = wrap_get, .map_peer = wrap_map_peer, .wake = wrap_wake,                     \
        .memory.pin = wrap_memory_register, .memory.unpin = wrap_memory_unregister,                         \
        .is_detached = wrap_is_detached, .copy_peer = wrap_copy_peer, .describe = wrap_describe,            \
        .count = wrap_count,                                                                                \
    }

const struct weft_transport_ops fault_transport_ops = WRAP_OPS("fault");
const struct weft_transport_ops delay_transport_ops = WRAP_OPS("delay");
const struct weft_transport_ops trace_transport_ops = WRAP_OPS("trace");
