/* push_group.h - requests of small chunks travel to an endpoint of a shard as one message, a message group.
 *
 *     start of an operation ──► pending list of the endpoint ──► end of the loop's step: group ──► shard
 *                                                                  \ one chunk: its own message
 *     group of results ──► server_mode.c, one result after the other
 *
 * A chunk waits for the end of the step, never for a peer, so ranks may push in different orders. A request
 * that is the only open one does not wait. The
 * requests are copied into a buffer: the transport holds no memory of the tensors. A shard without memory for
 * a group refuses it, and its chunks are sent alone. Engine thread. */
#ifndef WEFT_CLIENT_TENSOR_ORDER_PUSH_GROUP_H
#define WEFT_CLIENT_TENSOR_ORDER_PUSH_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

struct client_chunk;
struct weft_session;

enum { CLIENT_PUSH_GROUP_BLOCKS = 4 };

struct client_push_groups {
    struct weft_list targets;               /* struct push_target.link: endpoints of shards, owned */
    struct weft_list idle;                  /* struct push_group.link: buffers */
    struct weft_list unsent;                /* struct push_group.link: the transport had no space */
    void *blocks[CLIENT_PUSH_GROUP_BLOCKS]; /* memory of buffers, which peers on this host can map; owned */
    struct weft_list groups;                /* struct push_group.all, owned */
    uint32_t number;                        /* of the last group */
    struct weft_timer flush;
    struct {
        struct weft_list waiting; /* arrivals: groups of results */
        uint8_t *buffer;          /* payload of the one that is received; owned; NULL: not yet */
        struct weft_completion done;
        uint32_t peer_id;
        size_t bytes;
        bool is_receiving;
    } results;
};

void client_push_groups_init(struct weft_session *session);
void client_push_groups_listen(struct weft_session *session); /* the transport is open */
void client_push_groups_free(struct weft_session *session);   /* the engine has ended */
/* The request of the chunk, with a payload of payload_bytes, joins the next group to its endpoint. false:
 * send it alone. */
bool client_push_group_add(struct client_chunk *chunk, size_t payload_bytes);
/* The transport may have space. */
void client_push_groups_resend(struct weft_session *session);

#endif
