/* verbs_self.c - an endpoint's messages and accesses to itself: no queue pair, one copy. */
#include <string.h>

#include "transport/verbs/verbs_endpoint.h"

enum weft_status verbs_self_send(struct verbs_peer *verbs_peer, const struct weft_message *message,
                                 struct weft_completion *completion)
{
    struct verbs_endpoint *endpoint = verbs_peer->endpoint;
    struct verbs_send *send = verbs_send_new(verbs_peer, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    bool large = message->payload_bytes > endpoint->transport->eager_bytes_max;
    struct stream_arrival incoming = {
        .tag = message->tag,
        .header = message->header,
        .header_bytes = message->header_bytes,
        .payload = message->payload,
        .payload_bytes = message->payload_bytes,
        .announced = large,
    };
    struct verbs_arrival *arrival = verbs_arrival_new(verbs_peer, &incoming);
    if (!arrival) {
        verbs_send_drop(send);
        return WEFT_ERR_NO_MEMORY;
    }
    send->stream.payload = message->payload;
    weft_list_append(&endpoint->self_arrivals, &arrival->link);
    if (large) arrival->sender = send;
    else core_finish(endpoint->transport, &send->done, WEFT_OK);
    return WEFT_IN_PROGRESS;
}

int verbs_self_progress(struct verbs_endpoint *endpoint, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&endpoint->self_arrivals)) {
        struct verbs_arrival *arrival = weft_list_first(&endpoint->self_arrivals, struct verbs_arrival, link);
        weft_list_remove(&arrival->link);
        core_arrived(endpoint->transport, &arrival->core);
        count++;
    }
    return count;
}

void verbs_self_accept(struct verbs_arrival *arrival, void *buffer)
{
    struct verbs_endpoint *endpoint = arrival->verbs_peer->endpoint;
    memcpy(buffer, arrival->sender->stream.payload, arrival->core.handle.payload_bytes);
    endpoint->traffic.copied_bytes += arrival->core.handle.payload_bytes;
    core_finish(endpoint->transport, &arrival->sender->done, WEFT_OK);
    core_finish(endpoint->transport, &arrival->done, WEFT_OK);
}

void verbs_self_discard(struct verbs_arrival *arrival)
{
    core_finish(arrival->verbs_peer->endpoint->transport, &arrival->sender->done, WEFT_OK);
    verbs_arrival_release(arrival);
}

enum weft_status verbs_self_access(struct verbs_peer *verbs_peer, void *to, const void *from, size_t bytes,
                                   const struct weft_put *put, struct weft_remote *remote,
                                   struct weft_completion *completion)
{
    struct verbs_endpoint *endpoint = verbs_peer->endpoint;
    struct verbs_send *send = verbs_send_new(verbs_peer, completion);
    struct verbs_arrival *arrival = NULL;
    if (!send) return WEFT_ERR_NO_MEMORY;
    if (put && put->notify) {
        struct stream_arrival incoming = {
            .tag = put->tag, .header = put->header, .header_bytes = put->header_bytes};
        arrival = verbs_arrival_new(verbs_peer, &incoming);
        if (!arrival) {
            verbs_send_drop(send);
            return WEFT_ERR_NO_MEMORY;
        }
        weft_list_append(&endpoint->self_arrivals, &arrival->link);
    }
    if (bytes > 0) memmove(to, from, bytes);
    endpoint->traffic.copied_bytes += bytes;
    send->done.remote = remote;
    core_finish(endpoint->transport, &send->done, WEFT_OK);
    return WEFT_IN_PROGRESS;
}
