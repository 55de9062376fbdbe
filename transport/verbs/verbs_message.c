/* verbs_message.c - send and receive of messages.
 *
 *   send     small: copied into the staging memory, complete at once; large: registered and announced
 *   receive  small: copied out of the ring into the buffer; large: written into it by the peer's device
 *
 * Payloads in direct memory (verbs_direct.c) are large at every size. */
#include <string.h>

#include "transport/verbs/verbs_endpoint.h"

static struct stream *running(const struct verbs_peer *verbs_peer)
{
    return verbs_peer->stream && verbs_peer->stream->phase == STREAM_RUNNING ? verbs_peer->stream : NULL;
}

/* ---- send ---- */

static void send_recycle(struct weft_transport *transport, struct core_done *done)
{
    verbs_send_drop(weft_container_of(done, struct verbs_send, done));
}

struct verbs_send *verbs_send_new(struct verbs_peer *verbs_peer, struct weft_completion *completion)
{
    struct verbs_endpoint *endpoint = verbs_peer->endpoint;
    struct verbs_send *send = verbs_pool_alloc(endpoint, &endpoint->sends);
    if (!send) return NULL;
    /* leaves the 256 bytes of the header as they are */
    memset(send, 0, offsetof(struct verbs_send, stream.header));
    send->done =
        (struct core_done){.peer = verbs_peer->peer, .completion = completion, .recycle = send_recycle};
    send->verbs_peer = verbs_peer;
    weft_list_init(&send->link);
    weft_list_init(&send->stream.outgoing.link);
    endpoint->send_count++;
    return send;
}

void verbs_send_drop(struct verbs_send *send)
{
    struct verbs_endpoint *endpoint = send->verbs_peer->endpoint;
    if (send->region) verbs_region_put(endpoint, send->region);
    endpoint->send_count--;
    verbs_pool_release(&endpoint->sends, send);
}

static enum weft_status register_payload(struct verbs_send *send, const void *payload, size_t bytes)
{
    struct verbs_endpoint *endpoint = send->verbs_peer->endpoint;
    struct weft_error error = {0};
    enum weft_status status =
        verbs_memory_get(endpoint->memory, payload, bytes, VERBS_LOCAL, &send->region, &error);
    if (status < 0) {
        send->region = NULL;
        weft_log(endpoint->transport->env, WEFT_LOG_WARN, "transport", "endpoint %u peer %u: %s",
                 endpoint->transport->id, send->verbs_peer->peer->id, error.text);
        return status;
    }
    verbs_keys(endpoint, send->region->lkey, &send->stream.transfer.local_keys);
    return WEFT_OK;
}

enum weft_status verbs_send_message(struct weft_transport *transport, struct weft_peer *peer,
                                    const struct weft_message *message, struct weft_completion *completion)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct verbs_peer *verbs_peer = peer->backend;
    if (endpoint->send_count >= VERBS_SENDS_MAX) return WEFT_ERR_AGAIN;
    if (!verbs_peer->stream)
        return verbs_is_direct(endpoint, message->payload, message->payload_bytes)
                   ? WEFT_ERR_UNSUPPORTED
                   : verbs_self_send(verbs_peer, message, completion);
    if (!running(verbs_peer)) return WEFT_ERR_PEER_LOST;
    struct verbs_send *send = verbs_send_new(verbs_peer, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    send->region = verbs_direct_get(endpoint, message->payload, message->payload_bytes);
    send->stream.transfer.is_direct = send->region != NULL;
    uint32_t eager_bytes =
        (uint32_t)(transport->eager_bytes_max < endpoint->tuning.ring ? transport->eager_bytes_max
                                                                      : endpoint->tuning.ring);
    if (send->region || peer->announces_all) eager_bytes = 0;
    enum weft_status status = WEFT_OK;
    bool eager =
        stream_takes_eager(verbs_peer->stream, message->header_bytes, message->payload_bytes, eager_bytes);
    if (send->region) verbs_keys(endpoint, send->region->lkey, &send->stream.transfer.local_keys);
    else if (!eager && message->payload_bytes > 0)
        status = register_payload(send, message->payload, message->payload_bytes);
    struct stream_send *out = &send->stream;
    out->tag = message->tag;
    out->payload = message->payload;
    out->payload_bytes = message->payload_bytes;
    out->header_bytes = message->header_bytes;
    if (message->header_bytes > 0) memcpy(out->header, message->header, message->header_bytes);
    if (status == WEFT_OK) status = stream_send_message(verbs_peer->stream, out, eager_bytes);
    if (status < 0) {
        verbs_send_drop(send);
        return status;
    }
    verbs_push(verbs_peer);
    return WEFT_IN_PROGRESS;
}

void verbs_sent(void *context, struct stream_send *stream_send, enum weft_status status)
{
    struct verbs_send *send = weft_container_of(stream_send, struct verbs_send, stream);
    core_finish(send->verbs_peer->endpoint->transport, &send->done, status);
}

/* ---- receive ---- */

static void arrival_recycle(struct weft_transport *transport, struct core_done *done)
{
    verbs_arrival_release(weft_container_of(done, struct verbs_arrival, done));
}

void verbs_arrival_release(struct verbs_arrival *arrival)
{
    struct verbs_endpoint *endpoint = arrival->verbs_peer->endpoint;
    if (arrival->region) verbs_region_put(endpoint, arrival->region);
    if (arrival->alone) weft_free_bytes(endpoint->transport->env, arrival->big);
    else if (arrival->big) verbs_pool_release(&endpoint->payloads, arrival->big);
    verbs_pool_release(&endpoint->arrivals, arrival);
}

/* Allocates a payload. The peer may send larger payloads eagerly than this side would; those are rare. */
static bool payload_space(struct verbs_arrival *arrival, size_t bytes)
{
    struct verbs_endpoint *endpoint = arrival->verbs_peer->endpoint;
    arrival->big = NULL;
    arrival->alone = bytes > endpoint->payloads.item_bytes && bytes > VERBS_SMALL_BYTES;
    if (arrival->alone) arrival->big = weft_alloc_bytes(endpoint->transport->env, bytes);
    else if (bytes > VERBS_SMALL_BYTES) arrival->big = verbs_pool_alloc(endpoint, &endpoint->payloads);
    return arrival->big || bytes <= VERBS_SMALL_BYTES;
}

/* Creates an arrival and copies a small payload; NULL: no memory. */
struct verbs_arrival *verbs_arrival_new(struct verbs_peer *verbs_peer, const struct stream_arrival *incoming)
{
    struct verbs_endpoint *endpoint = verbs_peer->endpoint;
    size_t copy = incoming->announced ? 0 : incoming->payload_bytes;
    struct verbs_arrival *arrival = verbs_pool_alloc(endpoint, &endpoint->arrivals);
    if (!arrival) return NULL;
    arrival->verbs_peer = verbs_peer;
    arrival->region = NULL;
    arrival->sender = NULL;
    arrival->announced = incoming->announced;
    arrival->receive.id = incoming->id;
    weft_list_init(&arrival->link);
    weft_list_init(&arrival->receive.outgoing.link);
    if (!payload_space(arrival, copy)) {
        verbs_pool_release(&endpoint->arrivals, arrival);
        return NULL;
    }
    if (copy > 0) memcpy(arrival->big ? arrival->big : arrival->small, incoming->payload, copy);
    endpoint->traffic.copied_bytes += copy;
    struct weft_arrival *handle = &arrival->core.handle;
    arrival->core.is_complete = !incoming->announced;
    handle->peer_id = verbs_peer->peer->id;
    handle->tag = incoming->tag;
    handle->payload_bytes = incoming->payload_bytes;
    handle->header_bytes = incoming->header_bytes;
    if (incoming->header_bytes > 0) memcpy(handle->header, incoming->header, incoming->header_bytes);
    return arrival;
}

void verbs_arrived(void *context, const struct stream_arrival *incoming)
{
    struct verbs_peer *verbs_peer = context;
    struct verbs_arrival *arrival = verbs_arrival_new(verbs_peer, incoming);
    if (!arrival) {
        stream_fail(verbs_peer->stream, WEFT_ERR_NO_MEMORY, "there is no memory to keep its messages");
        return;
    }
    core_arrived(verbs_peer->endpoint->transport, &arrival->core);
}

static struct verbs_arrival *arrival_of(struct weft_arrival *handle)
{
    return weft_container_of(handle, struct verbs_arrival, core.handle);
}

static void eager_taken(struct verbs_arrival *arrival)
{
    struct verbs_peer *verbs_peer = arrival->verbs_peer;
    if (!running(verbs_peer)) return;
    stream_eager_taken(verbs_peer->stream, arrival->core.handle.header_bytes,
                       arrival->core.handle.payload_bytes);
    verbs_dirty(verbs_peer);
}

static void refuse(struct verbs_arrival *arrival)
{
    stream_discard(arrival->verbs_peer->stream, &arrival->receive);
    verbs_push(arrival->verbs_peer);
}

/* Direct memory takes announced payloads of other endpoints only: the processor cannot copy into it. */
static bool copy_is_refused(struct verbs_arrival *arrival, const void *buffer)
{
    struct verbs_peer *verbs_peer = arrival->verbs_peer;
    struct weft_transport *transport = verbs_peer->endpoint->transport;
    if (verbs_peer->stream && arrival->announced) return false;
    if (!verbs_is_direct(verbs_peer->endpoint, buffer, arrival->core.handle.payload_bytes)) return false;
    if (arrival->sender) core_finish(transport, &arrival->sender->done, WEFT_OK);
    if (verbs_peer->stream) {
        stream_fail(verbs_peer->stream, WEFT_ERR_MALFORMED,
                    "it sent a payload inside its message, but the receive is for device memory, into which "
                    "only a device writes");
        eager_taken(arrival);
    }
    core_finish(transport, &arrival->done, WEFT_ERR_UNSUPPORTED);
    return true;
}

enum weft_status verbs_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                              struct weft_completion *completion)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct verbs_arrival *arrival = arrival_of(handle);
    struct verbs_peer *verbs_peer = arrival->verbs_peer;
    arrival->done =
        (struct core_done){.peer = arrival->core.peer, .completion = completion, .recycle = arrival_recycle};
    if (copy_is_refused(arrival, buffer)) return WEFT_IN_PROGRESS;
    if (!arrival->announced) {
        if (handle->payload_bytes > 0)
            memcpy(buffer, arrival->big ? arrival->big : arrival->small, handle->payload_bytes);
        endpoint->traffic.copied_bytes += handle->payload_bytes;
        if (verbs_peer->stream) eager_taken(arrival);
        core_finish(transport, &arrival->done, WEFT_OK);
        return WEFT_IN_PROGRESS;
    }
    if (!verbs_peer->stream) {
        verbs_self_accept(arrival, buffer);
        return WEFT_IN_PROGRESS;
    }
    if (!running(verbs_peer)) {
        core_finish(transport, &arrival->done, verbs_peer->stream->end_status);
        return WEFT_IN_PROGRESS;
    }
    struct weft_error error = {0};
    enum weft_status status = WEFT_OK;
    if (handle->payload_bytes > 0) {
        arrival->region = verbs_direct_get(endpoint, buffer, handle->payload_bytes);
        if (!arrival->region)
            status = verbs_memory_get(endpoint->memory, buffer, handle->payload_bytes,
                                      VERBS_REMOTE_WRITE | VERBS_RELAXED, &arrival->region, &error);
    }
    arrival->receive.bytes = handle->payload_bytes;
    arrival->receive.buffer = buffer;
    if (status < 0) { /* discards at the peer; the receiver gets the status */
        arrival->region = NULL;
        weft_log(transport->env, WEFT_LOG_WARN, "transport", "endpoint %u peer %u: %s", transport->id,
                 handle->peer_id, error.text);
        arrival->receive.failed = status;
        refuse(arrival);
        return WEFT_IN_PROGRESS;
    }
    if (arrival->region) verbs_keys(endpoint, arrival->region->rkey, &arrival->receive.keys);
    arrival->receive.failed = WEFT_OK;
    stream_accept(verbs_peer->stream, &arrival->receive);
    verbs_push(verbs_peer);
    return WEFT_IN_PROGRESS;
}

void verbs_received(void *context, struct stream_receive *receive, enum weft_status status)
{
    struct verbs_arrival *arrival = weft_container_of(receive, struct verbs_arrival, receive);
    if (receive->discarded && receive->failed == WEFT_OK) verbs_arrival_release(arrival);
    else
        core_finish(arrival->verbs_peer->endpoint->transport, &arrival->done,
                    receive->failed < 0 ? receive->failed : status);
}

void verbs_discard(struct weft_transport *transport, struct weft_arrival *handle)
{
    struct verbs_arrival *arrival = arrival_of(handle);
    if (!arrival->verbs_peer->stream && arrival->announced) {
        verbs_self_discard(arrival);
        return;
    }
    if (arrival->announced && running(arrival->verbs_peer)) {
        arrival->receive.failed = WEFT_OK;
        refuse(arrival);
        return;
    }
    if (!arrival->announced && arrival->verbs_peer->stream) eager_taken(arrival);
    verbs_arrival_release(arrival);
}
