/* memory.c - registrations, and the end of access to memory.
 *
 * NCCL frees the memory as soon as deregMr returns, also with requests open after an abort. If requests of
 * the registration are open, deregMr fails the connection and progresses until they have completed: then
 * neither the peer nor this process accesses the memory. A peer that is stopped in the middle of a copy
 * may delay that; after DEREGISTER_LIMIT_NS the endpoint is freed. */
#include "nccl/net/net.h"

#define DEREGISTER_LIMIT_NS WEFT_MS(500)

enum nccl_result net_reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out)
{
    struct net_comm *own = comm;
    if (!own || !memory_out) return net_report(WEFT_ERR_STATE, "regMr without a connection");
    if (pointer != NCCL_POINTER_HOST)
        return net_report(WEFT_ERR_STATE, "regMr of memory of kind %d: only host memory (%d) is supported",
                          pointer, NCCL_POINTER_HOST);
    struct net_memory *memory = weft_alloc_zero(&net_process()->env, sizeof *memory);
    if (!memory) return net_report(WEFT_ERR_NO_MEMORY, "no memory for a registration");
    pthread_mutex_lock(&own->lock);
    weft_list_append(&own->memories, &memory->link);
    pthread_mutex_unlock(&own->lock);
    *memory_out = memory;
    return NCCL_RESULT_SUCCESS;
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
    pthread_mutex_unlock(&own->lock);
    weft_free_bytes(&net_process()->env, ended);
    return NCCL_RESULT_SUCCESS;
}
