/* connector.c - connect, one step for each call.
 *
 * NCCL repeats connect with the same handle at the same address until it has a connection. The attempt is
 * kept in the context under both, not in the handle, since another process has written its bytes. */
#include "nccl/net/net.h"

#include <string.h>

struct net_connector {
    struct weft_list link; /* in context->connectors */
    const void *handle;    /* address; with `bytes` the identity of the attempt */
    uint8_t bytes[WIRE_HANDLE_BYTES];
    struct exchange exchange;
    struct net_comm *comm;
    uint64_t limit_ns;
    uint8_t key[WEFT_HMAC_BYTES], challenge[WIRE_SECRET_BYTES];
    char name[NET_NAME_BYTES];
};

static void connector_free(struct net_context *context, struct net_connector *connector)
{
    pthread_mutex_lock(&context->lock);
    weft_list_remove(&connector->link);
    pthread_mutex_unlock(&context->lock);
    exchange_close(&connector->exchange);
    if (connector->comm) net_comm_close(connector->comm);
    weft_wipe(connector->key, sizeof connector->key);
    weft_free_bytes(&net_process()->env, connector);
}

void net_connectors_free(struct net_context *context)
{
    while (!weft_list_empty(&context->connectors))
        connector_free(context, weft_list_first(&context->connectors, struct net_connector, link));
}

static struct net_connector *connector_find(struct net_context *context, const void *handle)
{
    struct net_connector *found = NULL;
    pthread_mutex_lock(&context->lock);
    for (struct weft_list *node = context->connectors.next; node != &context->connectors; node = node->next) {
        struct net_connector *connector = weft_container_of(node, struct net_connector, link);
        if (connector->handle == handle && memcmp(connector->bytes, handle, WIRE_HANDLE_BYTES) == 0)
            found = connector;
    }
    pthread_mutex_unlock(&context->lock);
    return found;
}

/* Opens the endpoint, prepares the hello and starts to dial. */
static enum weft_status connector_begin(struct net_connector *connector, struct net_context *context,
                                        int device, struct weft_error *error)
{
    struct net_process *process = net_process();
    struct wire_handle handle;
    struct wire_message hello = {.kind = WIRE_HELLO};
    uint8_t secret[WEFT_HMAC_BYTES];
    const void *blob;
    size_t bytes;
    enum weft_status status = wire_handle_decode(connector->bytes, &handle);
    if (status != WEFT_OK)
        return weft_error_set(error, status, "the handle is not one of this version of the plugin");
    exchange_describe(&handle.address, handle.address_bytes, connector->name, sizeof connector->name);
    weft_random_bytes(&process->env, connector->challenge, sizeof connector->challenge);
    WEFT_TRY(wire_key(handle.secret, process->secret, connector->key));
    WEFT_TRY(wire_connection_secret(connector->key, connector->challenge, secret));
    WEFT_TRY(net_comm_create(context, device, true, secret, &connector->comm, error));
    weft_wipe(secret, sizeof secret);
    WEFT_TRY(weft_transport_address(connector->comm->transport, &blob, &bytes));
    hello.listener = handle.listener;
    memcpy(hello.challenge, connector->challenge, sizeof hello.challenge);
    hello.blob = blob;
    hello.blob_bytes = (uint32_t)bytes;
    WEFT_TRY(exchange_dial(&connector->exchange, &handle));
    connector->exchange.out_bytes = wire_message_encode(&hello, connector->key, connector->exchange.out);
    return connector->exchange.out_bytes > 0 ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* WEFT_OK: connected. WEFT_IN_PROGRESS. */
static enum weft_status connector_step(struct net_connector *connector, struct weft_error *error)
{
    struct wire_message reply;
    enum weft_status status = exchange_write(&connector->exchange);
    if (status == WEFT_OK) status = exchange_read(&connector->exchange);
    if (status == WEFT_IN_PROGRESS && weft_now_ns(&net_process()->env) >= connector->limit_ns)
        return weft_error_set(error, WEFT_ERR_DEADLINE, "no answer within nccl.deadline");
    if (status == WEFT_IN_PROGRESS) return status;
    if (status != WEFT_OK)
        return weft_error_set(error, status, "the rank has ended, or refuses this connection");
    status = wire_message_decode(WIRE_ANSWER, connector->exchange.in, connector->exchange.in_bytes,
                                 connector->key, &reply);
    if (status == WEFT_OK && memcmp(reply.challenge, connector->challenge, sizeof reply.challenge) != 0)
        status = WEFT_ERR_AUTH;
    if (status != WEFT_OK) return weft_error_set(error, status, "its answer is not valid");
    status = net_comm_connect(connector->comm, reply.blob, reply.blob_bytes, connector->name);
    if (status != WEFT_OK) return weft_error_set(error, status, "%s", weft_transport_connect_hint(status));
    if (reply.flags & WIRE_ANNOUNCE_ALL) weft_peer_announce_all(connector->comm->peer);
    return WEFT_OK;
}

static struct net_connector *connector_create(struct net_context *context, const void *handle)
{
    struct net_process *process = net_process();
    struct net_connector *connector = weft_alloc_zero(&process->env, sizeof *connector);
    if (!connector) return NULL;
    connector->handle = handle;
    memcpy(connector->bytes, handle, WIRE_HANDLE_BYTES);
    exchange_init(&connector->exchange, -1);
    connector->limit_ns = weft_now_ns(&process->env) + process->deadline_ns;
    pthread_mutex_lock(&context->lock);
    weft_list_append(&context->connectors, &connector->link);
    pthread_mutex_unlock(&context->lock);
    return connector;
}

enum nccl_result net_connect(void *context, int device, void *handle, void **comm_out,
                             struct nccl_device_handle **handle_out)
{
    struct net_context *own = context;
    struct net_process *process = net_process();
    struct weft_error error = {0};
    enum weft_status status = WEFT_OK;
    *comm_out = NULL;
    if (handle_out) *handle_out = NULL;
    if (!process || !own || device < 0 || device >= process->device_count)
        return net_report(WEFT_ERR_STATE, "connect on device %d without a communicator", device);
    struct net_connector *connector = connector_find(own, handle);
    if (!connector) {
        connector = connector_create(own, handle);
        if (!connector) return net_report(WEFT_ERR_NO_MEMORY, "no memory for a connection");
        status = connector_begin(connector, own, device, &error);
    }
    if (status == WEFT_OK) status = connector_step(connector, &error);
    if (status == WEFT_IN_PROGRESS) return NCCL_RESULT_SUCCESS;
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    if (status == WEFT_OK) {
        net_watch_begin(connector->comm, &connector->exchange);
        *comm_out = connector->comm;
        connector->comm = NULL;
    } else {
        result = net_report(status, "connect to %s: %s", connector->name, error.text);
    }
    connector_free(own, connector);
    return result;
}
