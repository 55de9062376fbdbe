/* tensor_free.c - frees a tensor: all workers send TensorFree, then the owning shards release it.
 *
 *     elastic job   TensorFree of every worker -> commit -> TensorFree to the shards and to every worker
 *                   a worker is lost before    -> MemberLost to all, the tensor stays
 *
 * The workers agree on the free before they send it, so no rank still uses the tensor. In an elastic job a
 * worker keeps its tensor until the coordinator sends TensorFree. Every worker receives TensorFree and
 * MemberLost in the same order, so all free the tensor or none does. The entry stays in the table without its
 * chunks, since ordinals are not reused. A new worker declares the tensors that are left. */
#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

static bool is_elastic(const struct weft_coordinator *coordinator)
{
    return coordinator->options.workers_min > 0;
}

uint32_t coordinator_next_live_tensor(const struct weft_coordinator *coordinator, uint32_t ordinal)
{
    while (ordinal < coordinator->table.tensor_count && coordinator->table.tensors[ordinal]->is_freed)
        ordinal++;
    return ordinal;
}

/* Returns whether an endpoint of the shard owns a chunk of the tensor. With copies all shards have its
 * table. */
static bool shard_owns(const struct weft_coordinator *coordinator, const struct coordinator_member *shard,
                       const struct coordinator_tensor *tensor)
{
    if (coordinator->slots.count > 0) return true;
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        if (tensor->chunks[i].endpoint - shard->endpoint_first < shard->endpoint_count) return true;
    return false;
}

static void unload(struct weft_coordinator *coordinator, const struct coordinator_tensor *tensor)
{
    const size_t elem_bytes = weft_dtype_bytes((enum weft_dtype)tensor->declare.dtype);
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        coordinator_slot_remove_chunk(coordinator, tensor->chunks[i].slot,
                                      tensor->chunks[i].count * elem_bytes);
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        for (uint32_t e = 0; e < coordinator->table.endpoint_count; e++)
            if (tensor->chunks[i].candidate == 0 &&
                coordinator->table.endpoints[e].id == tensor->chunks[i].endpoint)
                coordinator->table.endpoints[e].load_bytes -= tensor->chunks[i].count * elem_bytes;
    if (tensor->coded_endpoint > 0)
        coordinator->table.endpoints[tensor->coded_endpoint - 1].coded_bytes -= tensor->elems * elem_bytes;
}

static void send_free(struct weft_coordinator *coordinator, const struct coordinator_member *to,
                      const struct coordinator_tensor *tensor)
{
    Weft__Control__TensorFree freed = WEFT__CONTROL__TENSOR_FREE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    freed.tensor = tensor->declare.ordinal;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE;
    message.tensor_free = &freed;
    coordinator_send(coordinator, to, &message);
}

void coordinator_tensor_send_free(struct weft_coordinator *coordinator,
                                  const struct coordinator_member *shard,
                                  const struct coordinator_tensor *tensor)
{
    if (shard->abilities.supports_free) send_free(coordinator, shard, tensor);
}

void coordinator_tensor_frees_repeat(struct weft_coordinator *coordinator,
                                     const struct coordinator_member *worker)
{
    for (uint32_t i = 0; is_elastic(coordinator) && i < coordinator->table.tensor_count; i++)
        if (coordinator->table.tensors[i]->is_freed)
            send_free(coordinator, worker, coordinator->table.tensors[i]);
}

static void forget_workers(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    weft_free_bytes(coordinator->env, tensor->freed_by);
    tensor->freed_by = NULL;
    tensor->freed_count = 0;
}

void coordinator_tensor_frees_cancel(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++)
        if (!coordinator->table.tensors[i]->is_freed)
            forget_workers(coordinator, coordinator->table.tensors[i]);
}

static void release(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    for (uint32_t s = 0; s < coordinator->options.shards; s++) {
        const struct coordinator_member *shard = coordinator->membership.shards[s];
        if (shard && shard_owns(coordinator, shard, tensor))
            coordinator_tensor_send_free(coordinator, shard, tensor);
    }
    for (uint32_t i = 0; is_elastic(coordinator) && i < coordinator->options.workers; i++)
        send_free(coordinator, coordinator->membership.workers[i], tensor);
    unload(coordinator, tensor);
    weft_free_bytes(coordinator->env, tensor->chunks);
    weft_free_bytes(coordinator->env, tensor->freed_by);
    tensor->freed_by = NULL;
    tensor->chunks = NULL;
    tensor->chunk_count = 0;
    weft_log(coordinator->env, WEFT_LOG_DEBUG, "coordinator", "tensor %u '%s' freed", tensor->declare.ordinal,
             tensor->declare.name);
}

/* Returns false if the message is refused, or was handled before by the former coordinator. */
static bool accepts(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                    const struct coordinator_tensor *tensor)
{
    const bool is_valid =
        tensor && tensor->announced && worker->index < coordinator->options.workers && !tensor->is_freed;
    if (is_valid && !(tensor->freed_by && tensor->freed_by[worker->index])) {
        const struct coordinator_member *resting = coordinator_find_joined(coordinator);
        /* otherwise Joined, which the worker has not received yet, ends its call */
        if (resting && coordinator->epochs.epoch == coordinator->epochs.epoch_in_force)
            coordinator_abort(coordinator, NULL, WEFT_ERR_MISMATCH,
                              "rank %u frees tensor '%.100s', but %s has joined: all ranks must free it",
                              worker->index, tensor->declare.name, resting->label);
        return !resting;
    }
    if (coordinator->records.is_restored && tensor) { /* the former coordinator has handled it */
        if (tensor->is_freed && is_elastic(coordinator)) send_free(coordinator, worker, tensor);
        return false;
    }
    coordinator_member_lost(coordinator, worker, "it freed a tensor that it does not have");
    return false;
}

void coordinator_tensor_free(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                             uint32_t ordinal)
{
    struct coordinator_tensor *tensor =
        ordinal < coordinator->table.tensor_count ? coordinator->table.tensors[ordinal] : NULL;
    const uint32_t workers = coordinator->options.workers;
    if (!accepts(coordinator, worker, tensor)) return;
    if (!tensor->freed_by)
        tensor->freed_by = weft_alloc_zero(coordinator->env, workers * sizeof *tensor->freed_by);
    if (!tensor->freed_by) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory to free tensor '%.150s'", tensor->declare.name);
        return;
    }
    tensor->freed_by[worker->index] = true;
    tensor->freed_count++;
    tensor->is_freed = tensor->freed_count == workers;
    /* workers of an elastic job repeat TensorFree until it is answered */
    if (tensor->is_freed || !is_elastic(coordinator)) coordinator_records_tensor(coordinator, tensor);
    /* written while it has chunks */
    if (coordinator_records_commit(coordinator) && tensor->is_freed) release(coordinator, tensor);
}
