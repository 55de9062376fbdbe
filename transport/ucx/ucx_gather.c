/* ucx_gather.c - several small messages to one peer over tcp in one active message.
 *
 * An active message over tcp costs a system call at the sender and part of one at the receiver, which
 * dominates for a few kilobytes. The first message of a progress round leaves at once. Later ones to the
 * same peer are copied into one buffer and leave together: when it is full, before anything else to that
 * peer, and at the latest at the next progress. A gathered message is complete for its sender.
 *
 *   records   tag u64 | sequence u64 | payload bytes u32 | header bytes u16 | 0 u16 | header | payload
 *
 * Order, credit and storage at the receiver are those of single messages. */
#include <string.h>

#include "transport/ucx/ucx.h"

void ucx_gather_send(struct ucx_peer *ucx_peer)
{
    struct ucx_gather *gather = ucx_peer->output.gather;
    if (!gather) return;
    ucx_peer->output.gather = NULL;
    ucx_bundle_send(&gather->op, UCX_WIRE_GATHER, gather->header, gather->records, gather->used);
}

void ucx_gather_drop(struct ucx_peer *ucx_peer)
{
    if (ucx_peer->output.gather) ucx_op_drop(&ucx_peer->output.gather->op);
    ucx_peer->output.gather = NULL;
}

bool ucx_gather_accepts(struct ucx_peer *ucx_peer, const struct weft_message *message)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    if (!endpoint->settings.tcp || endpoint->settings.verbs || ucx_peer->direct) return false;
    if (message->payload_bytes > UCX_GATHER_MESSAGE_MAX) return false;
    bool follows = ucx_peer->output.last_send_round == endpoint->round;
    ucx_peer->output.last_send_round = endpoint->round;
    return follows;
}

bool ucx_gather_add(struct ucx_peer *ucx_peer, const struct weft_message *message)
{
    size_t bytes = UCX_WIRE_RECORD_BYTES + message->header_bytes + message->payload_bytes;
    if (ucx_peer->output.gather && ucx_peer->output.gather->used + bytes > UCX_GATHER_BYTES)
        ucx_gather_send(ucx_peer);
    struct ucx_gather *gather = ucx_peer->output.gather;
    if (!gather) {
        gather = ucx_pool_alloc(ucx_peer->endpoint, &ucx_peer->endpoint->pools.gathers);
        if (!gather) return false;
        ucx_op_init(&gather->op, UCX_OP_GATHER, ucx_peer, NULL);
        gather->used = 0;
        ucx_peer->output.gather = gather;
        if (weft_list_empty(&ucx_peer->output.talking))
            weft_list_append(&ucx_peer->endpoint->talking, &ucx_peer->output.talking);
    }
    struct ucx_wire_record record = {
        .tag = message->tag,
        .sequence = ucx_peer->send_sequence,
        .payload_bytes = (uint32_t)message->payload_bytes,
        .header_bytes = message->header_bytes,
        .header = message->header,
        .payload = message->payload,
    };
    gather->used += (uint32_t)ucx_wire_record_encode(&record, gather->records + gather->used);
    ucx_peer->endpoint->transport->stats.copied_bytes += message->payload_bytes;
    return true;
}

void ucx_on_gather(struct ucx_peer *ucx_peer, uint8_t *data, size_t bytes)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    while (bytes > 0 && !endpoint->transport->closed && ucx_peer->peer->status >= 0 &&
           !ucx_peer->handshake.failed) {
        struct ucx_wire_record record;
        size_t used = ucx_wire_record_decode(data, bytes, &record);
        if (used == 0 || record.payload_bytes > endpoint->transport->eager_bytes_max) {
            core_count_refused(endpoint->transport);
            return;
        }
        struct ucx_wire_header header = {
            .kind = UCX_WIRE_MESSAGE,
            .header_bytes = record.header_bytes,
            .tag = record.tag,
            .sequence = record.sequence,
            .payload_bytes = record.payload_bytes,
            .header = record.header,
        };
        ucx_on_eager(ucx_peer, &header, record.payload);
        data += used;
        bytes -= used;
    }
}
