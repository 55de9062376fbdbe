/* verbs_peer.c - one peer: link, stream, queue pairs, and their end.
 *
 *   weft_transport_close ─ stream_leave ─► LEAVE_REPLY ─► stream_end(CLOSED) ─► fenced ─► ended
 *   LEAVE arrived ─ core_peer_left ─► disconnect: LEAVE_REPLY, stream_end ─► fenced ─► ended (link stays
 *     until the reply is sent)
 *   link lost, stream failed, weft_transport_fail_peer ─► disconnect: LOST, stream_end ─► fenced ─► ended,
 *     link closed
 *
 * A peer that does not answer a LEAVE within a second is ended anyway. */
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs_endpoint.h"

#define END_PATIENCE_NS WEFT_SECONDS(1)
#define FENCE_PATIENCE_NS WEFT_SECONDS(2)

/* ---- rings and staging ---- */

static struct verbs_slab *slab_new(struct verbs_endpoint *endpoint, uint32_t pieces, struct weft_error *error)
{
    struct weft_env *env = endpoint->transport->env;
    size_t bytes = (size_t)pieces * 2 * endpoint->tuning.ring;
    struct verbs_slab *slab = weft_alloc_zero(env, sizeof *slab);
    if (!slab) return NULL;
    slab->memory = weft_alloc_zero(env, bytes);
    slab->free_pieces = weft_alloc_array(env, pieces, sizeof *slab->free_pieces);
    slab->piece_count = slab->free_count = pieces;
    if (slab->memory && slab->free_pieces &&
        verbs_memory_register(endpoint->memory, slab->memory, bytes, VERBS_REMOTE_WRITE, &slab->region,
                              error) == WEFT_OK) {
        for (uint32_t i = 0; i < pieces; i++) slab->free_pieces[i] = pieces - 1 - i;
        weft_list_append(&endpoint->slabs, &slab->link);
        return slab;
    }
    weft_free_bytes(env, slab->memory);
    weft_free_bytes(env, slab->free_pieces);
    weft_free_bytes(env, slab);
    return NULL;
}

/* One registration for many peers. Another one if they outgrow it, smaller if memory cannot be locked. */
static bool piece_take(struct verbs_peer *verbs_peer, struct weft_error *error)
{
    struct verbs_endpoint *endpoint = verbs_peer->endpoint;
    struct weft_list *node, *spare;
    struct verbs_slab *slab = NULL;
    weft_list_foreach(node, spare, &endpoint->slabs) {
        slab = weft_container_of(node, struct verbs_slab, link);
        if (slab->free_count > 0) break;
        slab = NULL;
    }
    for (uint32_t pieces = endpoint->tuning.peers; !slab && pieces > 0; pieces /= 2)
        slab = slab_new(endpoint, pieces, pieces == 1 ? error : NULL);
    if (!slab) return false;
    verbs_peer->slab = slab;
    verbs_peer->piece = slab->free_pieces[--slab->free_count];
    return true;
}

/* ---- queue pairs, as the stream requests them ---- */

static struct verbs_rail *rail_of(struct verbs_endpoint *endpoint, uint32_t lane)
{
    return &endpoint->rails[lane % endpoint->rail_count];
}

static enum weft_status lane_make(void *context, uint32_t lane_at, uint32_t epoch, uint8_t *blob,
                                  uint32_t *bytes)
{
    struct verbs_peer *verbs_peer = context;
    struct verbs_lane *lane = &verbs_peer->lanes[lane_at];
    char name[VERBS_NAME_BYTES];
    struct weft_error error = {0};
    WEFT_ASSERT(!lane->queue_pair);
    snprintf(name, sizeof name, "endpoint %u", verbs_peer->peer->id);
    enum weft_status status = verbs_queue_pair_create(rail_of(verbs_peer->endpoint, lane_at), name, lane,
                                                      &lane->queue_pair, &error);
    if (status < 0) {
        lane->queue_pair = NULL;
        weft_log(verbs_peer->endpoint->transport->env, WEFT_LOG_INFO, "transport", "endpoint %u: %s",
                 verbs_peer->endpoint->transport->id, error.text);
        return status;
    }
    /* the stream requests signals itself */
    lane->queue_pair->signal_every = verbs_peer->endpoint->options.send_depth;
    lane->epoch = epoch;
    if (epoch > 1) verbs_peer->rebuilt_count++;
    status = verbs_lane_blob(lane, blob, bytes);
    if (status < 0) verbs_lane_destroy(lane);
    return status;
}

static enum weft_status lane_join(void *context, uint32_t lane_at, uint32_t epoch, const uint8_t *blob,
                                  uint32_t bytes)
{
    struct verbs_peer *verbs_peer = context;
    struct weft_error error = {0};
    enum weft_status status = verbs_lane_connect(&verbs_peer->lanes[lane_at], blob, bytes, &error);
    if (status < 0)
        weft_log(verbs_peer->endpoint->transport->env, WEFT_LOG_INFO, "transport", "endpoint %u: %s",
                 verbs_peer->endpoint->transport->id, error.text);
    return status;
}

/* To the error state; verbs_progress.c continues when all its completions were taken. */
static void lane_fence(void *context, uint32_t lane_at, uint32_t epoch)
{
    struct verbs_peer *verbs_peer = context;
    struct verbs_lane *lane = &verbs_peer->lanes[lane_at];
    verbs_queue_pair_break(lane->queue_pair);
    lane->fencing = true;
    lane->drained = false;
    lane->fence_limit_ns = weft_now_ns(verbs_peer->endpoint->transport->env) + FENCE_PATIENCE_NS;
    weft_list_append(&verbs_peer->endpoint->fencing, &lane->link);
}

static enum weft_status lane_post(void *context, uint32_t lane_at, const struct stream_work *works,
                                  uint32_t count)
{
    struct verbs_peer *verbs_peer = context;
    struct verbs_queue_pair *queue_pair = verbs_peer->lanes[lane_at].queue_pair;
    struct verbs_work out[STREAM_BATCH];
    static const enum verbs_opcode opcodes[] = {[STREAM_WORK_WRITE] = VERBS_WRITE,
                                                [STREAM_WORK_WRITE_IMM] = VERBS_WRITE_IMMEDIATE,
                                                [STREAM_WORK_READ] = VERBS_READ};
    for (uint32_t i = 0; i < count; i++) {
        const struct stream_work *work = &works[i];
        out[i] = (struct verbs_work){
            .opcode = opcodes[work->kind],
            .signalled = work->signalled,
            .inlined = work->kind != STREAM_WORK_READ && !work->is_direct && work->bytes > 0 &&
                       work->bytes <= queue_pair->inline_bytes,
            .bytes = work->bytes,
            .local = work->local,
            .lkey = work->local_key,
            .rkey = work->remote_key,
            .remote = work->remote,
            .immediate = work->imm,
            .id = work->index,
        };
    }
    return verbs_queue_pair_post(queue_pair, out, count);
}

static enum weft_status link_send(void *context, const void *bytes, uint32_t count)
{
    struct verbs_peer *verbs_peer = context;
    if (!verbs_peer->link) return WEFT_OK; /* there is no link to send on */
    enum weft_status status = bootstrap_send(verbs_peer->link, bytes, count, NULL, 0);
    /* lost: the callback reports it */
    return status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY ? WEFT_ERR_AGAIN : WEFT_OK;
}

static void peer_left(void *context)
{
    struct verbs_peer *verbs_peer = context;
    verbs_peer->left = true;
    verbs_dirty(verbs_peer);
}

static void stream_ended(void *context)
{
    struct verbs_peer *verbs_peer = context;
    verbs_peer->ended = true;
    verbs_dirty(verbs_peer);
}

static const struct stream_ops stream_orders = {
    .lane_make = lane_make,
    .lane_join = lane_join,
    .lane_fence = lane_fence,
    .post = lane_post,
    .control = link_send,
    .arrived = verbs_arrived,
    .left = peer_left,
    .sent = verbs_sent,
    .received = verbs_received,
    .ended = stream_ended,
};

/* ---- the link ---- */

static void link_connected(void *owner, struct bootstrap_peer *link, const void *parameters, size_t bytes,
                           int *descriptors, uint32_t count)
{
    struct verbs_peer *verbs_peer = owner;
    stream_start(verbs_peer->stream);
    verbs_dirty(verbs_peer);
}

static void link_message(void *owner, struct bootstrap_peer *link, const void *data, size_t bytes,
                         int *descriptors, uint32_t count)
{
    struct verbs_peer *verbs_peer = owner;
    stream_control(verbs_peer->stream, data, (uint32_t)bytes);
    verbs_dirty(verbs_peer);
}

/* "over rxe0 port 1 and rxe2 port 1: " and the cause, unless the cause names the device. */
static void describe_location(const struct verbs_peer *verbs_peer, const char *cause, char *out, size_t bytes)
{
    const struct verbs_endpoint *endpoint = verbs_peer->endpoint;
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < endpoint->rail_count && at < bytes / 2 && !strstr(cause, " port "); i++) {
        const struct verbs_port *port = &endpoint->rails[i].port;
        at += (size_t)snprintf(out + at, bytes - at, "%s%s port %u", i == 0 ? "over " : " and ", port->device,
                               port->port);
    }
    if (at < bytes) snprintf(out + at, bytes - at, "%s%s", at > 0 ? ": " : "", cause);
}

/* If a link ends while queue pairs break, both have the same cause. */
static void link_disconnected(void *owner, struct bootstrap_peer *link, enum weft_status status,
                              const char *text)
{
    struct verbs_peer *verbs_peer = owner;
    struct weft_transport *transport = verbs_peer->endpoint->transport;
    char cause[300], where[300];
    const char *trouble = stream_trouble(verbs_peer->stream);
    verbs_peer->link = NULL;
    bootstrap_forget(link);
    verbs_dirty(verbs_peer);
    if (trouble) snprintf(cause, sizeof cause, "%s, after this: %s", text, trouble);
    describe_location(verbs_peer, trouble ? cause : text, where, sizeof where);
    if (transport->closed) stream_end(verbs_peer->stream, WEFT_ERR_CLOSED);
    else core_peer_lost(transport, verbs_peer->peer, status < 0 ? status : WEFT_ERR_PEER_LOST, where);
}

const struct bootstrap_callbacks verbs_link_callbacks = {
    .connected = link_connected, .message = link_message, .disconnected = link_disconnected};

/* ---- connect ---- */

void verbs_keys(const struct verbs_endpoint *endpoint, const uint32_t *by_rail, struct stream_keys *keys_out)
{
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) keys_out->key[i] = by_rail[i % endpoint->rail_count];
}

static struct stream *make_stream(struct verbs_peer *verbs_peer)
{
    struct verbs_endpoint *endpoint = verbs_peer->endpoint;
    const struct verbs_tuning *tuning = &endpoint->tuning;
    struct stream_options options;
    stream_options_init(&options);
    options.lane_count = tuning->lanes;
    options.lane_depth = endpoint->options.send_depth;
    /* With several lanes acknowledgements steer the load: requests them more often. */
    options.signal_every = tuning->lanes > 1 && options.lane_depth > 32 ? 16 : options.lane_depth / 2;
    options.chunk_bytes = tuning->chunk;
    options.eager_budget = tuning->budget;
    options.lost_ns = tuning->lost_ns;
    options.ring_bytes = tuning->ring;
    options.ring = verbs_peer->slab->memory + (size_t)verbs_peer->piece * 2 * tuning->ring;
    options.staging = options.ring + tuning->ring;
    verbs_keys(endpoint, verbs_peer->slab->region.rkey, &options.ring_keys);
    verbs_keys(endpoint, verbs_peer->slab->region.lkey, &options.staging_keys);
    return stream_create(endpoint->transport->env, &options, &stream_orders, verbs_peer);
}

static struct verbs_peer *peer_new(struct verbs_endpoint *endpoint, struct weft_peer *peer,
                                   struct weft_error *error)
{
    struct verbs_peer *verbs_peer = weft_alloc_zero(endpoint->transport->env, sizeof *verbs_peer);
    if (!verbs_peer) return NULL;
    verbs_peer->endpoint = endpoint;
    verbs_peer->peer = peer;
    weft_list_init(&verbs_peer->dirty);
    weft_list_init(&verbs_peer->needs_check);
    weft_list_append(&endpoint->peers, &verbs_peer->of_endpoint);
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) {
        verbs_peer->lanes[i] = (struct verbs_lane){.verbs_peer = verbs_peer, .index = i};
        weft_list_init(&verbs_peer->lanes[i].link);
    }
    if (peer->id == endpoint->transport->id) { /* to itself: no queue pair */
        verbs_peer->ended = true;
        return verbs_peer;
    }
    if (piece_take(verbs_peer, error) && (verbs_peer->stream = make_stream(verbs_peer))) return verbs_peer;
    verbs_peer_free(verbs_peer);
    return NULL;
}

void verbs_peer_free(struct verbs_peer *verbs_peer)
{
    stream_free(verbs_peer->stream);
    if (verbs_peer->slab) verbs_peer->slab->free_pieces[verbs_peer->slab->free_count++] = verbs_peer->piece;
    weft_list_remove(&verbs_peer->dirty);
    weft_list_remove(&verbs_peer->needs_check);
    weft_list_remove(&verbs_peer->of_endpoint);
    weft_free_bytes(verbs_peer->endpoint->transport->env, verbs_peer);
}

enum weft_status verbs_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                               size_t bytes)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct weft_error error = {0};
    const void *address;
    size_t address_bytes;
    WEFT_TRY(address_blob_decode(verbs_blob_kind, blob, bytes, core_nonce_hash(transport->nonce), peer->id,
                                 &address, &address_bytes));
    struct verbs_peer *verbs_peer = peer_new(endpoint, peer, &error);
    if (!verbs_peer) {
        weft_log(transport->env, WEFT_LOG_WARN, "transport", "endpoint %u peer %u: no memory for it: %s",
                 transport->id, peer->id, error.text);
        return WEFT_ERR_NO_MEMORY;
    }
    if (verbs_peer->stream) {
        enum weft_status status = bootstrap_connect(endpoint->bootstrap, peer->id, address, address_bytes,
                                                    NULL, 0, NULL, 0, verbs_peer, &verbs_peer->link);
        if (status < 0) {
            verbs_peer_free(verbs_peer);
            return status;
        }
    }
    peer->backend = verbs_peer;
    if (verbs_peer->stream) verbs_dirty(verbs_peer);
    return WEFT_OK;
}

void verbs_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct verbs_peer *verbs_peer = peer->backend;
    const struct verbs_port *port = &endpoint->rails[0].port;
    if (!verbs_peer || !verbs_peer->stream) {
        snprintf(out, bytes, "verbs self");
        return;
    }
    snprintf(out, bytes, "verbs rc %s:%u gid %d mtu %u, %u of %u lanes, %llu KiB", port->device, port->port,
             port->gid_index, port->mtu_bytes, stream_lanes_up(verbs_peer->stream),
             verbs_peer->stream->options.lane_count,
             (unsigned long long)(verbs_peer_memory(verbs_peer) + 1023) / 1024);
}

enum weft_status verbs_force_error(struct weft_transport *transport, uint32_t peer_id, uint32_t lane_at)
{
    struct weft_peer *peer = weft_transport_peer(transport, peer_id);
    struct verbs_peer *verbs_peer = peer ? peer->backend : NULL;
    if (!verbs_peer || lane_at >= STREAM_LANES_MAX || !verbs_peer->lanes[lane_at].queue_pair)
        return WEFT_ERR_NOT_FOUND;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    return ibv_modify_qp(verbs_peer->lanes[lane_at].queue_pair->qp, &attr, IBV_QP_STATE) == 0 ? WEFT_OK
                                                                                              : WEFT_ERR_IO;
}

void verbs_lanes(struct weft_transport *transport, uint32_t peer_id, uint32_t *up_out, uint32_t *rebuilt_out)
{
    struct weft_peer *peer = weft_transport_peer(transport, peer_id);
    struct verbs_peer *verbs_peer = peer ? peer->backend : NULL;
    *up_out = verbs_peer && verbs_peer->stream ? stream_lanes_up(verbs_peer->stream) : 0;
    *rebuilt_out = verbs_peer ? verbs_peer->rebuilt_count : 0;
}

/* ---- the end ---- */

static void end_patience(struct verbs_peer *verbs_peer)
{
    verbs_peer->end_limit_ns = weft_now_ns(verbs_peer->endpoint->transport->env) + END_PATIENCE_NS;
    verbs_dirty(verbs_peer);
}

/* The local endpoint closes. */
void verbs_peer_leave(struct verbs_peer *verbs_peer)
{
    if (!verbs_peer->stream || verbs_peer->stream->phase != STREAM_RUNNING) {
        if (verbs_peer->stream) end_patience(verbs_peer);
        return;
    }
    end_patience(verbs_peer);
    if (verbs_peer->link && verbs_peer->stream->hello.hello_received) {
        verbs_peer->leaving = true;
        stream_leave(verbs_peer->stream, false);
        stream_pump(verbs_peer->stream);
    } else { /* never connected */
        if (verbs_peer->link) bootstrap_forget(verbs_peer->link);
        verbs_peer->link = NULL;
        stream_end(verbs_peer->stream, WEFT_ERR_CLOSED);
    }
}

void verbs_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct verbs_peer *verbs_peer = peer->backend;
    if (!verbs_peer || !verbs_peer->stream) return;
    bool orderly = verbs_peer->left && verbs_peer->link && verbs_peer->stream->phase == STREAM_RUNNING;
    if (orderly) stream_leave(verbs_peer->stream, true);
    else stream_report_lost(verbs_peer->stream, peer->text); /* the link closes after this was sent */
    if (verbs_peer->link && !verbs_peer->stream->hello.hello_sent) {
        bootstrap_forget(verbs_peer->link);
        verbs_peer->link = NULL;
    }
    end_patience(verbs_peer);
    stream_end(verbs_peer->stream, status);
}

void verbs_push(struct verbs_peer *verbs_peer)
{
    if (verbs_peer->endpoint->transport->progressing) verbs_dirty(verbs_peer);
    else if (stream_pump(verbs_peer->stream) || verbs_peer->stream->failure < 0) verbs_dirty(verbs_peer);
}

/* Updates the state of a peer, at the end of progress, after an event for it. */
void verbs_peer_check(struct verbs_peer *verbs_peer, uint64_t now_ns)
{
    struct weft_transport *transport = verbs_peer->endpoint->transport;
    struct stream *stream = verbs_peer->stream;
    if (!stream) return;
    stream_tick(stream, now_ns);
    stream_pump(stream);
    if (stream->failure < 0 && stream->phase == STREAM_RUNNING) {
        char where[300];
        describe_location(verbs_peer, stream->failure_text, where, sizeof where);
        if (transport->closed) stream_end(stream, WEFT_ERR_CLOSED);
        else core_peer_lost(transport, verbs_peer->peer, stream->failure, where);
    }
    if (verbs_peer->left && !verbs_peer->left_reported) {
        verbs_peer->left_reported = true;
        if (transport->closed) stream_leave(stream, true);
        else core_peer_left(transport, verbs_peer->peer, "it has closed its endpoint");
    }
    if (verbs_peer->leaving && (stream_leave_is_acked(stream) || now_ns >= verbs_peer->end_limit_ns)) {
        verbs_peer->leaving = false;
        verbs_peer->end_limit_ns = now_ns + END_PATIENCE_NS;
        stream_end(stream, WEFT_ERR_CLOSED);
    }
    if (verbs_peer->ended && verbs_peer->link &&
        (bootstrap_is_flushed(verbs_peer->link) || now_ns >= verbs_peer->end_limit_ns)) {
        bootstrap_forget(verbs_peer->link);
        verbs_peer->link = NULL;
    }
    bool needs_check = stream_next_ns(stream) != WEFT_NEVER || verbs_peer->leaving ||
                       (verbs_peer->ended && verbs_peer->link) || stream->control.control_queued > 0;
    needs_check |= verbs_peer->link && !stream->hello.hello_received;
    if (!needs_check) {
        weft_list_remove(&verbs_peer->needs_check);
    } else if (weft_list_empty(&verbs_peer->needs_check)) {
        weft_list_append(&verbs_peer->endpoint->needs_check, &verbs_peer->needs_check);
        verbs_peer->endpoint->bootstrap_poll_ns = 0;
    }
}
