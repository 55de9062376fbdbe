/* memory.c - registrations, flushes, and the end of access to memory.
 *
 * NCCL frees the memory as soon as deregMr returns, also with requests open after an abort. If requests of
 * the registration are open, deregMr fails the connection and progresses until they have completed: then
 * neither the peer nor this process accesses the memory. A peer that is stopped in the middle of a copy
 * may delay that; after DEREGISTER_LIMIT_NS the endpoint is freed. */
#include "base/memory/memory_kind.h"
#include "nccl/net/net.h"

#define DEREGISTER_LIMIT_NS WEFT_MS(500)

static enum weft_status direct_register(struct net_comm *comm, const struct weft_direct_memory *range,
                                        struct net_memory *memory, struct weft_error *error)
{
    if (!comm->transport) return weft_error_set(error, WEFT_ERR_CLOSED, "the connection has ended");
    return weft_transport_register_direct(comm->transport, range, &memory->direct, error);
}

/* `range` describes device memory. NULL: host memory, which needs no registration. */
static enum nccl_result memory_add(struct net_comm *comm, const struct weft_direct_memory *range,
                                   void **memory_out)
{
    struct weft_error error = {0};
    enum weft_status status = WEFT_OK;
    struct net_memory *memory = weft_alloc_zero(&net_process()->env, sizeof *memory);
    if (!memory) return net_report(WEFT_ERR_NO_MEMORY, "no memory for a registration");
    pthread_mutex_lock(&comm->lock);
    if (range) status = direct_register(comm, range, memory, &error);
    if (status == WEFT_OK) weft_list_append(&comm->memories, &memory->link);
    pthread_mutex_unlock(&comm->lock);
    if (status != WEFT_OK) {
        weft_free_bytes(&net_process()->env, memory);
        if (status == WEFT_ERR_UNSUPPORTED) status = WEFT_ERR_STATE; /* the properties do not offer it */
        return net_report(status, "regMr of %zu bytes of device memory at %p: %s", range->bytes,
                          range->address, error.text);
    }
    *memory_out = memory;
    return NCCL_RESULT_SUCCESS;
}

enum nccl_result net_reg_mr_dmabuf(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd,
                                   void **memory_out)
{
    const struct weft_direct_memory range = {
        .address = data, .bytes = bytes, .descriptor = fd, .offset = offset};
    if (!comm || !memory_out) return net_report(WEFT_ERR_STATE, "regMr without a connection");
    if (pointer == NCCL_POINTER_HOST) return memory_add(comm, NULL, memory_out);
    if (pointer == NCCL_POINTER_CUDA) return memory_add(comm, &range, memory_out);
    return net_report(WEFT_ERR_STATE, "regMr of memory of kind %d: it is neither host (%d) nor CUDA (%d)",
                      pointer, NCCL_POINTER_HOST, NCCL_POINTER_CUDA);
}

enum nccl_result net_reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out)
{
    return net_reg_mr_dmabuf(comm, data, bytes, pointer, 0, -1, memory_out);
}

void net_comm_abandon(struct net_comm *comm)
{
    struct weft_env *env = &net_process()->env;
    uint64_t limit_ns = weft_now_ns(env) + DEREGISTER_LIMIT_NS;
    if (!comm->transport) return;
    net_comm_fail(comm, WEFT_ERR_CANCELLED, "closed with open requests");
    while (net_request_is_pending(comm) && weft_now_ns(env) < limit_ns)
        if (weft_transport_progress(comm->transport, NET_PROGRESS_BUDGET) == 0) sched_yield();
    if (!net_request_is_pending(comm)) return;
    net_report(WEFT_ERR_DEADLINE, "%s holds memory of an ended connection: the endpoint is abandoned",
               comm->peer_name);
    weft_transport_close(comm->transport);
    weft_transport_free(comm->transport);
    comm->transport = NULL;
}

enum nccl_result net_dereg_mr(void *comm, void *memory)
{
    struct net_comm *own = comm;
    struct net_memory *ended = memory;
    if (!own || !ended) return net_report(WEFT_ERR_STATE, "deregMr without a registration");
    pthread_mutex_lock(&own->lock);
    if (ended->open_count > 0) net_comm_abandon(own);
    net_request_forget(own, ended);
    weft_list_remove(&ended->link);
    if (own->transport) weft_transport_unregister(ended->direct); /* else freed with its endpoint */
    pthread_mutex_unlock(&own->lock);
    weft_free_bytes(&net_process()->env, ended);
    return NCCL_RESULT_SUCCESS;
}

/* NULL is a request that is complete: host memory needs no flush, and that of a device is flushed at once. */
enum nccl_result net_iflush(void *comm, int count, void **data, int *bytes, void **memories,
                            void **request_out)
{
    struct weft_error error = {0};
    bool is_direct = false;
    *request_out = NULL;
    for (int i = 0; i < count; i++) {
        const struct net_memory *memory = memories ? memories[i] : NULL;
        is_direct |= memory && memory->direct;
    }
    if (!is_direct) return NCCL_RESULT_SUCCESS;
    enum weft_status status = weft_memory_flush(WEFT_MEMORY_CUDA, &error);
    if (status == WEFT_OK) return NCCL_RESULT_SUCCESS;
    return net_report(status, "iflush: %s; set NCCL_NET_GDR_LEVEL=LOC", error.text);
}
