/* verbs_peer.c - one peer: its link, its stream, its queue pairs, and how all that ends.
 *
 *   weft_transport_close ─ stream_leave ─► (the peer has heard everything) LEAVE_TOO ─► stream_end(CLOSED) ─► fenced ─► ended
 *   LEAVE came ─ core_peer_left ─► disconnect: LEAVE_TOO, stream_end ─► fenced ─► ended; the link stays until it is sent
 *   link gone, stream failed, weft_transport_fail_peer ─► disconnect: LOST, stream_end ─► fenced ─► ended, link dropped
 *
 * A peer that does not answer a leave within a second is ended all the same. */
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs_endpoint.h"

#define END_PATIENCE_NS WEFT_SECONDS(1)
#define FENCE_PATIENCE_NS WEFT_SECONDS(2)

/* ---- rings and stagings ---- */

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
        verbs_memory_register(endpoint->memory, slab->memory, bytes, VERBS_REMOTE_WRITE, &slab->region, error) == WEFT_OK) {
        for (uint32_t i = 0; i < pieces; i++) slab->free_pieces[i] = pieces - 1 - i;
        weft_list_append(&endpoint->slabs, &slab->link);
        return slab;
    }
    weft_free_bytes(env, slab->memory);
    weft_free_bytes(env, slab->free_pieces);
    weft_free_bytes(env, slab);
    return NULL;
}

/* One registration for many peers; a further one only when they outgrow it, or smaller when memory cannot be locked. */
static bool piece_take(struct verbs_peer *known, struct weft_error *error)
{
    struct verbs_endpoint *endpoint = known->endpoint;
    struct weft_list *node, *spare;
    struct verbs_slab *slab = NULL;
    weft_list_foreach(node, spare, &endpoint->slabs) {
        slab = weft_container_of(node, struct verbs_slab, link);
        if (slab->free_count > 0) break;
        slab = NULL;
    }
    for (uint32_t pieces = endpoint->tuning.peers; !slab && pieces > 0; pieces /= 2) slab = slab_new(endpoint, pieces, pieces == 1 ? error : NULL);
    if (!slab) return false;
    known->slab = slab;
    known->piece = slab->free_pieces[--slab->free_count];
    return true;
}

/* ---- queue pairs: what the stream orders ---- */

static struct verbs_rail *rail_of(struct verbs_endpoint *endpoint, uint32_t lane) { return &endpoint->rails[lane % endpoint->rail_count]; }

static enum weft_status lane_make(void *context, uint32_t lane_at, uint32_t epoch, uint8_t *blob, uint32_t *bytes)
{
    struct verbs_peer *known = context;
    struct verbs_lane *lane = &known->lanes[lane_at];
    char name[VERBS_NAME_BYTES];
    struct weft_error error = {0};
    WEFT_ASSERT(!lane->queue_pair);
    snprintf(name, sizeof name, "endpoint %u", known->peer->id);
    enum weft_status status = verbs_queue_pair_create(rail_of(known->endpoint, lane_at), name, lane, &lane->queue_pair, &error);
    if (status < 0) {
        lane->queue_pair = NULL;
        weft_log(known->endpoint->transport->env, WEFT_LOG_INFO, "transport", "endpoint %u: %s", known->endpoint->transport->id, error.text);
        return status;
    }
    lane->queue_pair->signal_every = known->endpoint->options.send_depth; /* the stream knows when */
    lane->epoch = epoch;
    if (epoch > 1) known->rebuilt_count++;
    status = verbs_lane_blob(lane, blob, bytes);
    if (status < 0) verbs_lane_destroy(lane);
    return status;
}

static enum weft_status lane_join(void *context, uint32_t lane_at, uint32_t epoch, const uint8_t *blob, uint32_t bytes)
{
    struct verbs_peer *known = context;
    struct weft_error error = {0};
    enum weft_status status = verbs_lane_connect(&known->lanes[lane_at], blob, bytes, &error);
    if (status < 0) weft_log(known->endpoint->transport->env, WEFT_LOG_INFO, "transport", "endpoint %u: %s", known->endpoint->transport->id, error.text);
    return status;
}

/* To the error state; verbs_progress.c goes on when everything it has left behind was taken. */
static void lane_fence(void *context, uint32_t lane_at, uint32_t epoch)
{
    struct verbs_peer *known = context;
    struct verbs_lane *lane = &known->lanes[lane_at];
    verbs_queue_pair_break(lane->queue_pair);
    lane->fencing = true;
    lane->drained = false;
    lane->fence_limit_ns = weft_now_ns(known->endpoint->transport->env) + FENCE_PATIENCE_NS;
    weft_list_append(&known->endpoint->fencing, &lane->link);
}

static enum weft_status lane_post(void *context, uint32_t lane_at, const struct stream_work *works, uint32_t count)
{
    struct verbs_peer *known = context;
    struct verbs_queue_pair *queue_pair = known->lanes[lane_at].queue_pair;
    struct verbs_work out[STREAM_BATCH];
    static const enum verbs_opcode opcodes[] = {
        [STREAM_WORK_WRITE] = VERBS_WRITE, [STREAM_WORK_WRITE_IMM] = VERBS_WRITE_IMMEDIATE, [STREAM_WORK_READ] = VERBS_READ};
    for (uint32_t i = 0; i < count; i++) {
        const struct stream_work *work = &works[i];
        out[i] = (struct verbs_work){
            .opcode = opcodes[work->kind],
            .signalled = work->signalled,
            .inlined = work->kind != STREAM_WORK_READ && work->bytes > 0 && work->bytes <= queue_pair->inline_bytes,
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

static enum weft_status link_say(void *context, const void *bytes, uint32_t count)
{
    struct verbs_peer *known = context;
    if (!known->link) return WEFT_OK; /* nobody is there to hear it */
    enum weft_status status = meet_send(known->link, bytes, count, NULL, 0);
    return status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY ? WEFT_ERR_AGAIN : WEFT_OK; /* gone: its callback says so */
}

static void peer_left(void *context)
{
    struct verbs_peer *known = context;
    known->left = true;
    verbs_dirty(known);
}

static void stream_over(void *context)
{
    struct verbs_peer *known = context;
    known->ended = true;
    verbs_dirty(known);
}

static const struct stream_ops stream_orders = {
    .lane_make = lane_make,
    .lane_join = lane_join,
    .lane_fence = lane_fence,
    .post = lane_post,
    .control = link_say,
    .arrived = verbs_arrived,
    .left = peer_left,
    .sent = verbs_sent,
    .received = verbs_received,
    .ended = stream_over,
};

/* ---- the link ---- */

static void link_met(void *owner, struct meet_peer *link, const void *parameters, size_t bytes, int *descriptors, uint32_t count)
{
    struct verbs_peer *known = owner;
    stream_start(known->stream);
    verbs_dirty(known);
}

static void link_message(void *owner, struct meet_peer *link, const void *data, size_t bytes, int *descriptors, uint32_t count)
{
    struct verbs_peer *known = owner;
    stream_control(known->stream, data, (uint32_t)bytes);
    verbs_dirty(known);
}

/* "over rxe0 port 1 and rxe2 port 1: " and the cause, unless that says already which device. */
static void say_where(const struct verbs_peer *known, const char *cause, char *out, size_t bytes)
{
    const struct verbs_endpoint *endpoint = known->endpoint;
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < endpoint->rail_count && at < bytes / 2 && !strstr(cause, " port "); i++) {
        const struct verbs_port *port = &endpoint->rails[i].port;
        at += (size_t)snprintf(out + at, bytes - at, "%s%s port %u", i == 0 ? "over " : " and ", port->device, port->port);
    }
    if (at < bytes) snprintf(out + at, bytes - at, "%s%s", at > 0 ? ": " : "", cause);
}

/* A link that ends while queue pairs break ends for the same reason. */
static void link_gone(void *owner, struct meet_peer *link, enum weft_status status, const char *text)
{
    struct verbs_peer *known = owner;
    struct weft_transport *transport = known->endpoint->transport;
    char cause[300], where[300];
    const char *trouble = stream_trouble(known->stream);
    known->link = NULL;
    meet_forget(link);
    verbs_dirty(known);
    if (trouble) snprintf(cause, sizeof cause, "%s, after this: %s", text, trouble);
    say_where(known, trouble ? cause : text, where, sizeof where);
    if (transport->closed) stream_end(known->stream, WEFT_ERR_CLOSED);
    else core_peer_lost(transport, known->peer, status < 0 ? status : WEFT_ERR_PEER_LOST, where);
}

const struct meet_callbacks verbs_link_callbacks = {.met = link_met, .message = link_message, .gone = link_gone};

/* ---- connect ---- */

void verbs_keys(const struct verbs_endpoint *endpoint, const uint32_t *by_rail, struct stream_keys *keys_out)
{
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) keys_out->key[i] = by_rail[i % endpoint->rail_count];
}

static struct stream *make_stream(struct verbs_peer *known)
{
    struct verbs_endpoint *endpoint = known->endpoint;
    const struct verbs_tuning *tuning = &endpoint->tuning;
    struct stream_options options;
    stream_options_init(&options);
    options.lane_count = tuning->lanes;
    options.lane_depth = endpoint->options.send_depth;
    /* With several lanes their acknowledgements steer the load: ask more often. */
    options.signal_every = tuning->lanes > 1 && options.lane_depth > 32 ? 16 : options.lane_depth / 2;
    options.chunk_bytes = tuning->chunk;
    options.eager_budget = tuning->budget;
    options.lost_ns = tuning->lost_ns;
    options.ring_bytes = tuning->ring;
    options.ring = known->slab->memory + (size_t)known->piece * 2 * tuning->ring;
    options.staging = options.ring + tuning->ring;
    verbs_keys(endpoint, known->slab->region.rkey, &options.ring_keys);
    verbs_keys(endpoint, known->slab->region.lkey, &options.staging_keys);
    return stream_create(endpoint->transport->env, &options, &stream_orders, known);
}

static struct verbs_peer *peer_new(struct verbs_endpoint *endpoint, struct weft_peer *peer, struct weft_error *error)
{
    struct verbs_peer *known = weft_alloc_zero(endpoint->transport->env, sizeof *known);
    if (!known) return NULL;
    known->endpoint = endpoint;
    known->peer = peer;
    weft_list_init(&known->dirty);
    weft_list_init(&known->restless);
    weft_list_append(&endpoint->peers, &known->of_endpoint);
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) {
        known->lanes[i] = (struct verbs_lane){.known = known, .index = i};
        weft_list_init(&known->lanes[i].link);
    }
    if (peer->id == endpoint->transport->id) { /* to itself: no queue pair */
        known->ended = true;
        return known;
    }
    if (piece_take(known, error) && (known->stream = make_stream(known))) return known;
    verbs_peer_free(known);
    return NULL;
}

void verbs_peer_free(struct verbs_peer *known)
{
    stream_free(known->stream);
    if (known->slab) known->slab->free_pieces[known->slab->free_count++] = known->piece;
    weft_list_remove(&known->dirty);
    weft_list_remove(&known->restless);
    weft_list_remove(&known->of_endpoint);
    weft_free_bytes(known->endpoint->transport->env, known);
}

enum weft_status verbs_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob, size_t bytes)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct weft_error error = {0};
    const void *address;
    size_t address_bytes;
    WEFT_TRY(meet_blob_decode(verbs_blob_kind, blob, bytes, core_nonce_hash(transport->nonce), peer->id, &address, &address_bytes));
    struct verbs_peer *known = peer_new(endpoint, peer, &error);
    if (!known) {
        weft_log(transport->env, WEFT_LOG_WARN, "transport", "endpoint %u peer %u: no room for it: %s", transport->id, peer->id, error.text);
        return WEFT_ERR_NO_MEMORY;
    }
    if (known->stream) {
        enum weft_status status = meet_connect(endpoint->meet, peer->id, address, address_bytes, NULL, 0, NULL, 0, known, &known->link);
        if (status < 0) {
            verbs_peer_free(known);
            return status;
        }
    }
    peer->backend = known;
    if (known->stream) verbs_dirty(known);
    return WEFT_OK;
}

void verbs_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct verbs_peer *known = peer->backend;
    const struct verbs_port *port = &endpoint->rails[0].port;
    if (!known || !known->stream) {
        snprintf(out, bytes, "verbs self");
        return;
    }
    snprintf(out, bytes, "verbs rc %s:%u gid %d mtu %u, %u of %u lanes, %llu KiB", port->device, port->port, port->gid_index, port->mtu_bytes,
             stream_lanes_up(known->stream), known->stream->options.lane_count, (unsigned long long)(verbs_peer_memory(known) + 1023) / 1024);
}

enum weft_status verbs_force_error(struct weft_transport *transport, uint32_t peer_id, uint32_t lane_at)
{
    struct weft_peer *peer = weft_transport_peer(transport, peer_id);
    struct verbs_peer *known = peer ? peer->backend : NULL;
    if (!known || lane_at >= STREAM_LANES_MAX || !known->lanes[lane_at].queue_pair) return WEFT_ERR_NOT_FOUND;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    return ibv_modify_qp(known->lanes[lane_at].queue_pair->qp, &attr, IBV_QP_STATE) == 0 ? WEFT_OK : WEFT_ERR_IO;
}

void verbs_lanes(struct weft_transport *transport, uint32_t peer_id, uint32_t *up_out, uint32_t *rebuilt_out)
{
    struct weft_peer *peer = weft_transport_peer(transport, peer_id);
    struct verbs_peer *known = peer ? peer->backend : NULL;
    *up_out = known && known->stream ? stream_lanes_up(known->stream) : 0;
    *rebuilt_out = known ? known->rebuilt_count : 0;
}

/* ---- the end ---- */

static void end_patience(struct verbs_peer *known)
{
    known->end_limit_ns = weft_now_ns(known->endpoint->transport->env) + END_PATIENCE_NS;
    verbs_dirty(known);
}

/* The endpoint closes. */
void verbs_peer_leave(struct verbs_peer *known)
{
    if (!known->stream || known->stream->phase != STREAM_RUNS) {
        if (known->stream) end_patience(known);
        return;
    }
    end_patience(known);
    if (known->link && known->stream->hello_came) {
        known->leaving = true;
        stream_leave(known->stream, false);
        stream_pump(known->stream);
    } else { /* they never met */
        if (known->link) meet_forget(known->link);
        known->link = NULL;
        stream_end(known->stream, WEFT_ERR_CLOSED);
    }
}

void verbs_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct verbs_peer *known = peer->backend;
    if (!known || !known->stream) return;
    bool orderly = known->left && known->link && known->stream->phase == STREAM_RUNS;
    if (orderly) stream_leave(known->stream, true);
    else stream_tell_lost(known->stream, peer->text); /* the link goes when that was said */
    if (known->link && !known->stream->hello_sent) {
        meet_forget(known->link);
        known->link = NULL;
    }
    end_patience(known);
    stream_end(known->stream, status);
}

void verbs_push(struct verbs_peer *known)
{
    if (known->endpoint->transport->progressing) verbs_dirty(known);
    else if (stream_pump(known->stream) || known->stream->failure < 0) verbs_dirty(known);
}

/* What has become of it; at the end of progress, whenever something happened to it. */
void verbs_peer_look(struct verbs_peer *known, uint64_t now_ns)
{
    struct weft_transport *transport = known->endpoint->transport;
    struct stream *stream = known->stream;
    if (!stream) return;
    stream_tick(stream, now_ns);
    stream_pump(stream);
    if (stream->failure < 0 && stream->phase == STREAM_RUNS) {
        char where[300];
        say_where(known, stream->failure_text, where, sizeof where);
        if (transport->closed) stream_end(stream, WEFT_ERR_CLOSED);
        else core_peer_lost(transport, known->peer, stream->failure, where);
    }
    if (known->left && !known->left_told) {
        known->left_told = true;
        if (transport->closed) stream_leave(stream, true);
        else core_peer_left(transport, known->peer, "it has closed its endpoint");
    }
    if (known->leaving && (stream_leave_answered(stream) || now_ns >= known->end_limit_ns)) {
        known->leaving = false;
        known->end_limit_ns = now_ns + END_PATIENCE_NS;
        stream_end(stream, WEFT_ERR_CLOSED);
    }
    if (known->ended && known->link && (meet_flushed(known->link) || now_ns >= known->end_limit_ns)) {
        meet_forget(known->link);
        known->link = NULL;
    }
    bool restless = stream_next_ns(stream) != WEFT_NEVER || known->leaving || (known->ended && known->link) || stream->control_queued > 0;
    restless |= known->link && !stream->hello_came;
    if (!restless) {
        weft_list_remove(&known->restless);
    } else if (weft_list_empty(&known->restless)) {
        weft_list_append(&known->endpoint->restless, &known->restless);
        known->endpoint->aside_ns = 0;
    }
}
