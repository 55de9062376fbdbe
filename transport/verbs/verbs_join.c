/* verbs_join.c - connects the two queue pairs of a lane, by blobs over the authenticated link.
 *
 *   connect=exchange  a blob is the address of a queue pair; both connect at once (verbs_queue_pair.c)
 *   connect=cm        the smaller id dials. The peer's blob holds the address of its connection manager and a
 *                     token for this connection; the dialler's own blob only announces the dial. Takes
 *                     several round trips, so the stream is informed later (verbs_cm.h) */
#include <string.h>

#include "transport/verbs/verbs_endpoint.h"

enum { CM_BLOB_BYTES = VERBS_CM_ADDRESS_BYTES + VERBS_CM_TOKEN_BYTES };

static const uint8_t will_dial[] = {'W', 'D'};

static bool dials(const struct verbs_peer *verbs_peer)
{
    return verbs_peer->endpoint->transport->id < verbs_peer->peer->id;
}

static struct verbs_cm *cm_of(const struct verbs_lane *lane)
{
    return lane->queue_pair ? lane->verbs_peer->endpoint->cms[lane->queue_pair->rail->index] : NULL;
}

enum weft_status verbs_lane_blob(struct verbs_lane *lane, uint8_t *blob, uint32_t *bytes_out)
{
    struct verbs_cm *cm = cm_of(lane);
    if (!cm) {
        verbs_queue_pair_address(lane->queue_pair, blob);
        *bytes_out = VERBS_ADDRESS_BYTES;
    } else if (dials(lane->verbs_peer)) {
        memcpy(blob, will_dial, sizeof will_dial);
        *bytes_out = sizeof will_dial;
    } else {
        verbs_cm_address(cm, blob);
        *bytes_out = CM_BLOB_BYTES;
        return verbs_cm_expect(cm, lane->queue_pair, blob + VERBS_CM_ADDRESS_BYTES);
    }
    return WEFT_OK;
}

enum weft_status verbs_lane_connect(struct verbs_lane *lane, const uint8_t *blob, uint32_t bytes,
                                    struct weft_error *error)
{
    struct verbs_cm *cm = cm_of(lane);
    if (!cm && bytes == VERBS_ADDRESS_BYTES)
        return verbs_queue_pair_connect(lane->queue_pair, blob, bytes, error);
    bool fits =
        cm && (dials(lane->verbs_peer) ? bytes == CM_BLOB_BYTES
                                       : bytes == sizeof will_dial && memcmp(blob, will_dial, bytes) == 0);
    if (!fits) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_MALFORMED,
            "the peer connects queue pairs in another way: the setting connect must be the same everywhere");
    }
    if (dials(lane->verbs_peer))
        WEFT_TRY(verbs_cm_dial(cm, lane->queue_pair, blob, blob + VERBS_CM_ADDRESS_BYTES, error));
    return WEFT_IN_PROGRESS;
}

void verbs_lane_destroy(struct verbs_lane *lane)
{
    struct verbs_cm *cm = cm_of(lane);
    if (cm) verbs_cm_drop(cm, lane->queue_pair);
    verbs_queue_pair_destroy(lane->queue_pair);
    lane->queue_pair = NULL;
}

int verbs_lanes_joined(struct verbs_cm *cm)
{
    struct verbs_cm_event event;
    int count = 0;
    while (verbs_cm_next(cm, &event)) {
        struct verbs_lane *lane = event.queue_pair->owner;
        count++;
        if (event.kind == VERBS_CM_CONNECTED)
            stream_lane_joined(lane->verbs_peer->stream, lane->index, lane->epoch);
        else stream_lane_broke(lane->verbs_peer->stream, lane->index, lane->epoch, event.text);
        verbs_dirty(lane->verbs_peer);
    }
    return count;
}

void verbs_cms_close(struct verbs_endpoint *endpoint)
{
    for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
        verbs_cm_close(endpoint->cms[i]);
        endpoint->cms[i] = NULL;
    }
}

enum weft_status verbs_cms_open(struct verbs_endpoint *endpoint, struct weft_error *error)
{
    for (uint32_t i = 0; i < endpoint->rail_count && endpoint->options.connect == VERBS_CONNECT_CM; i++) {
        WEFT_TRY(verbs_cm_open(&endpoint->rails[i], &endpoint->cms[i], error));
    }
    return WEFT_OK;
}
