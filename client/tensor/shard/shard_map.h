/* shard_map.h - the slots of the shards in a job with copies: struct client_shard_map. */
#ifndef WEFT_CLIENT_TENSOR_SHARD_SHARD_MAP_H
#define WEFT_CLIENT_TENSOR_SHARD_SHARD_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

struct weft_session;
struct weft_tensor;

struct client_map_slot {
    uint32_t term, leader; /* endpoint; term 0: no Map has named the slot */
};

struct client_shard_map {
    struct client_map_slot *slots; /* (WEFT_LIMIT_SLOTS,) owned; NULL: no Map has arrived. Engine thread */
    struct weft_command command;   /* to the engine: apply the Maps that have arrived */
    _Atomic bool is_queued;        /* `command` is queued */
    /* fail-over under way; engine thread */
    uint32_t spanning; /* operations that were open when a shard was lost, and still are */
    uint64_t began_ns; /* start of the oldest of them */
};

void client_shard_map_init(struct weft_session *session);
void client_shard_map_free(struct weft_session *session); /* the engine has ended */
/* Sets in the chunks of a tensor the leaders and terms of their slots. Engine thread. */
void client_shard_map_follow(struct weft_tensor *tensor);
/* The operation of a tensor has ended. The last one that a loss has interrupted is counted. Engine thread. */
void client_shard_map_op_done(struct weft_tensor *tensor);

#endif
