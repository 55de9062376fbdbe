/* tensor_free.c - frees a tensor: all workers send TensorFree, then the owning shards release it.
 *
 * The workers agree on the free before they send it, so no rank still uses the tensor. The entry stays in the
 * table without its chunks, since ordinals are not reused. */
#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

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

void coordinator_tensor_send_free(struct weft_coordinator *coordinator,
                                  const struct coordinator_member *shard,
                                  const struct coordinator_tensor *tensor)
{
    Weft__Control__TensorFree freed = WEFT__CONTROL__TENSOR_FREE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    freed.tensor = tensor->declare.ordinal;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE;
    message.tensor_free = &freed;
    if (shard->abilities.supports_free) coordinator_send(coordinator, shard, &message);
}

static void release(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    for (uint32_t s = 0; s < coordinator->options.shards; s++) {
        const struct coordinator_member *shard = coordinator->membership.shards[s];
        if (shard && shard_owns(coordinator, shard, tensor))
            coordinator_tensor_send_free(coordinator, shard, tensor);
    }
    unload(coordinator, tensor);
    weft_free_bytes(coordinator->env, tensor->chunks);
    tensor->chunks = NULL;
    tensor->chunk_count = 0;
    weft_log(coordinator->env, WEFT_LOG_DEBUG, "coordinator", "tensor %u '%s' freed", tensor->declare.ordinal,
             tensor->declare.name);
}

void coordinator_tensor_free(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                             uint32_t ordinal)
{
    struct coordinator_tensor *tensor =
        ordinal < coordinator->table.tensor_count ? coordinator->table.tensors[ordinal] : NULL;
    const uint32_t workers = coordinator->options.workers;
    if (!tensor || !tensor->announced || worker->index >= workers ||
        (tensor->freed_by && tensor->freed_by[worker->index])) {
        if (coordinator->records.is_restored && tensor) return; /* the former coordinator has it */
        coordinator_member_lost(coordinator, worker, "it freed a tensor that it does not have");
        return;
    }
    if (coordinator->options.workers_min > 0) {
        coordinator_member_lost(coordinator, worker, "it freed a tensor in a job whose ranks may change");
        return;
    }
    if (!tensor->freed_by)
        tensor->freed_by = weft_alloc_zero(coordinator->env, workers * sizeof *tensor->freed_by);
    if (!tensor->freed_by) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory to free tensor '%.150s'", tensor->declare.name);
        return;
    }
    tensor->freed_by[worker->index] = true;
    tensor->freed_count++;
    coordinator_records_tensor(coordinator, tensor);
    /* written while it has chunks */
    if (coordinator_records_commit(coordinator) && tensor->freed_count == workers)
        release(coordinator, tensor);
}
