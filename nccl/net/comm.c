/* comm.c - one connection: its endpoint, its fixed pool of requests, its end. */
#include "nccl/net/net.h"

#include <stdio.h>
#include <string.h>

/* Keeps the reason for the request that fails by it. A peer that has closed in order is no failure: nothing
 * may be open, and what it has sent can still be received. */
static void peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct net_comm *comm = context;
    snprintf(comm->lost_text, sizeof comm->lost_text, "%s", text);
}

enum weft_status net_endpoint_open(const struct net_endpoint_options *own,
                                   struct weft_transport **transport_out, struct weft_error *error)
{
    struct net_process *process = net_process();
    struct weft_transport_options options;
    char composed[WEFT_TRANSPORT_BACKEND_BYTES_MAX];
    weft_transport_options_init(&options);
    options.id = own->id;
    options.nonce = get_le64(own->secret);
    options.secret = own->secret;
    options.secret_bytes = WEFT_HMAC_BYTES;
    options.lanes = process->lanes;
    options.devices = process->devices[own->device].name;
    options.ports = process->ports;
    options.tune = process->tune;
    options.eager_bytes_max = process->eager_bytes;
    options.peer_failed = own->peer_failed;
    options.peer_failed_context = own->context;
    WEFT_TRY(weft_transport_options_wrap(&options, process->backend, process->wrap, composed));
    return weft_transport_open(&process->env, &options, transport_out, error);
}

static enum weft_status pool_create(struct net_comm *comm)
{
    struct weft_env *env = &net_process()->env;
    int count = comm->is_send ? NCCL_REQUESTS_MAX * NCCL_RECVS_LIMIT : NCCL_REQUESTS_MAX;
    comm->requests = weft_alloc_zero(env, (size_t)count * sizeof *comm->requests);
    if (!comm->is_send)
        comm->receives = weft_alloc_zero(env, (size_t)count * NCCL_RECVS_LIMIT * sizeof *comm->receives);
    if (!comm->requests || (!comm->is_send && !comm->receives)) return WEFT_ERR_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        struct net_request *request = &comm->requests[i];
        request->comm = comm;
        if (!comm->is_send) request->receives = &comm->receives[i * NCCL_RECVS_LIMIT];
        weft_list_append(&comm->free_requests, &request->link);
    }
    return WEFT_OK;
}

void net_comm_free(struct net_comm *comm)
{
    struct weft_env *env = &net_process()->env;
    net_watch_end(comm);
    weft_transport_free(comm->transport);
    while (!weft_list_empty(&comm->memories)) { /* registrations that NCCL did not end */
        struct net_memory *memory = weft_list_first(&comm->memories, struct net_memory, link);
        weft_list_remove(&memory->link);
        weft_free_bytes(env, memory);
    }
    weft_free_bytes(env, comm->requests);
    weft_free_bytes(env, comm->receives);
    pthread_mutex_destroy(&comm->lock);
    weft_free_bytes(env, comm);
}

enum weft_status net_comm_create(struct net_context *context, int device, bool is_send, const uint8_t *secret,
                                 struct net_comm **comm_out, struct weft_error *error)
{
    struct net_comm *comm = weft_alloc_zero(&net_process()->env, sizeof *comm);
    if (!comm) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a connection");
    comm->context = context;
    comm->is_send = is_send;
    pthread_mutex_init(&comm->lock, NULL);
    weft_list_init(&comm->free_requests);
    weft_list_init(&comm->open_requests);
    weft_list_init(&comm->memories);
    weft_list_init(&comm->linger_link);
    enum weft_status status = pool_create(comm);
    struct net_endpoint_options endpoint = {.device = device,
                                            .id = is_send ? NET_CONNECTOR_ID : NET_LISTENER_ID,
                                            .secret = secret,
                                            .peer_failed = peer_failed,
                                            .context = comm};
    if (status == WEFT_OK) status = net_endpoint_open(&endpoint, &comm->transport, error);
    if (status != WEFT_OK) {
        net_comm_free(comm);
        return weft_error_set(error, status, "no memory for the requests of a connection");
    }
    pthread_mutex_lock(&context->lock);
    context->comm_count++;
    pthread_mutex_unlock(&context->lock);
    *comm_out = comm;
    return WEFT_OK;
}

enum weft_status net_comm_connect(struct net_comm *comm, const void *blob, size_t bytes,
                                  const char *peer_name)
{
    snprintf(comm->peer_name, sizeof comm->peer_name, "%s", peer_name);
    return weft_transport_connect(comm->transport, comm->is_send ? NET_LISTENER_ID : NET_CONNECTOR_ID, blob,
                                  bytes, &comm->peer);
}

enum nccl_result net_comm_fail(struct net_comm *comm, enum weft_status status, const char *text)
{
    if (comm->failed != NCCL_RESULT_SUCCESS) return comm->failed;
    comm->failed = net_result(status);
    if (status != WEFT_ERR_CANCELLED)
        net_report(status, "the connection with %s has failed: %s", comm->peer_name, text);
    if (comm->transport && comm->peer)
        weft_transport_fail_peer(comm->transport, weft_peer_id(comm->peer), status, text);
    return comm->failed;
}

void net_comm_close(struct net_comm *comm)
{
    struct net_context *context = comm->context;
    pthread_mutex_lock(&comm->lock);
    net_watch_end(comm);
    if (!weft_list_empty(&comm->open_requests)) net_comm_abandon(comm);
    pthread_mutex_unlock(&comm->lock);
    pthread_mutex_lock(&context->lock);
    bool is_last = --context->comm_count == 0;
    pthread_mutex_unlock(&context->lock);
    if (comm->transport) net_linger_add(comm, is_last);
    else net_comm_free(comm);
}
