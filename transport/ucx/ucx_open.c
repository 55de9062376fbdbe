/* ucx_open.c - one UCX context and worker per endpoint: open, progress, close. */
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "transport/ucx/ucx.h"
#include "transport/ucx/ucx_ops.h"

/* ---- pools ---- */

void *ucx_pool_alloc(struct ucx_endpoint *endpoint, struct ucx_pool *pool)
{
    if (!pool->free_items) {
        size_t step = (pool->item_bytes + 63) / 64 * 64, count = UCX_POOL_BLOCK;
        while (count > 1 && step * count > UCX_POOL_BLOCK_BYTES) count /= 2;
        char *block = weft_alloc_bytes(endpoint->transport->env, 64 + step * count);
        if (!block) return NULL;
        *(void **)block = pool->blocks;
        pool->blocks = block;
        endpoint->pools.pool_bytes += 64 + step * count;
        for (size_t i = 0; i < count; i++) ucx_pool_release(pool, block + 64 + step * (size_t)i);
    }
    void *item = pool->free_items;
    pool->free_items = *(void **)item;
    return item;
}

void ucx_pool_release(struct ucx_pool *pool, void *item)
{
    *(void **)item = pool->free_items;
    pool->free_items = item;
}

static void pool_free(struct ucx_endpoint *endpoint, struct ucx_pool *pool)
{
    while (pool->blocks) {
        void *block = pool->blocks;
        pool->blocks = *(void **)block;
        weft_free_bytes(endpoint->transport->env, block);
    }
}

/* ---- open ---- */

static enum weft_status open_worker(struct ucx_endpoint *endpoint, struct weft_error *error)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* one thread at a time, not always the same */
    };
    ucs_status_t ucs = ucp_worker_create(endpoint->context, &params, &endpoint->worker);
    if (ucs != UCS_OK) goto err;
    ucp_worker_attr_t attributes = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucs = ucp_worker_query(endpoint->worker, &attributes);
    if (ucs != UCS_OK) goto err_destroy;
    if (attributes.max_am_header < UCX_WIRE_HEADER_BYTES_MAX) {
        ucp_worker_destroy(endpoint->worker);
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "UCX on these lanes carries message headers of %zu bytes, %d are needed",
            attributes.max_am_header, UCX_WIRE_HEADER_BYTES_MAX);
    }
    ucp_am_handler_param_t handler = {
        .field_mask =
            UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UCX_AM_ID,
        .cb = ucx_on_message,
        .arg = endpoint,
    };
    ucs = ucp_worker_set_am_recv_handler(endpoint->worker, &handler);
    if (ucs != UCS_OK) goto err_destroy;
    return WEFT_OK;

err_destroy:
    ucp_worker_destroy(endpoint->worker);
err:
    return (enum weft_status)weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                            "UCX cannot make a worker on lanes %s: %s",
                                            endpoint->transport->name, ucs_status_string(ucs));
}

static enum weft_status open_address(struct ucx_endpoint *endpoint, struct weft_error *error)
{
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t ucs = ucp_worker_get_address(endpoint->worker, &address, &bytes);
    if (ucs != UCS_OK) {
        return (enum weft_status)weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                                "UCX has no address on lanes %s: %s",
                                                endpoint->transport->name, ucs_status_string(ucs));
    }
    enum weft_status status = WEFT_OK;
    if (bytes > sizeof endpoint->own_address.address - UCX_WIRE_AROUND_BYTES) {
        status = (enum weft_status)weft_error_set(
            error, WEFT_ERR_LIMIT, "the UCX address has %zu bytes, at most %zu fit: name fewer devices",
            bytes, sizeof endpoint->own_address.address - UCX_WIRE_AROUND_BYTES);
    } else {
        struct ucx_wire_address blob = {
            .mark = endpoint->seal.mark,
            .id = endpoint->transport->id,
            .challenge = endpoint->seal.challenge,
            .process = endpoint->self,
            .packed = address,
            .packed_bytes = (uint32_t)bytes,
        };
        ucx_wire_address_encode(&blob, endpoint->own_address.address);
        endpoint->own_address.address_bytes = UCX_WIRE_AROUND_BYTES + bytes;
        size_t proven = UCX_WIRE_ADDRESS_BYTES + bytes;
        status = ucx_seal_prove(&endpoint->seal, endpoint->own_address.address, proven,
                                endpoint->own_address.address + proven);
    }
    ucp_worker_release_address(endpoint->worker, address);
    return status;
}

static void pools_init(struct ucx_endpoint *endpoint)
{
    uint64_t eager_bytes = endpoint->settings.eager_bytes_max;
    endpoint->transport->eager_bytes_max = eager_bytes;
    endpoint->pools.sends.item_bytes = sizeof(struct ucx_send);
    endpoint->pools.arrivals.item_bytes = sizeof(struct ucx_arrival);
    endpoint->pools.eager_buffers.item_bytes = eager_bytes > UCX_KEPT_BYTES ? UCX_KEPT_BYTES
                                         : eager_bytes > 64           ? eager_bytes
                                                                      : 64;
    endpoint->pools.large_buffers.item_bytes = eager_bytes;
    endpoint->pools.fragments.item_bytes = sizeof(struct ucx_fragment);
    endpoint->pools.batches.item_bytes = sizeof(struct ucx_batch);
    endpoint->pools.gathers.item_bytes = sizeof(struct ucx_gather);
    endpoint->round = 1;
    endpoint->pools.landings.item_bytes = sizeof(struct ucx_landing);
    endpoint->pools.incomings.item_bytes = sizeof(struct ucx_incoming);
    struct weft_list *const lists[] = {&endpoint->arrived, &endpoint->failed, &endpoint->peers,
                                       &endpoint->busy,    &endpoint->talking, &endpoint->processes};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) weft_list_init(lists[i]);
}

static enum weft_status ucx_open(struct weft_transport *transport,
                                 const struct weft_transport_options *options, struct weft_error *error)
{
    struct ucx_endpoint *endpoint = weft_alloc_zero(transport->env, sizeof *endpoint);
    if (!endpoint)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a UCX endpoint");
    endpoint->transport = transport;
    enum weft_status status = ucx_settings_read(options, &endpoint->settings, error);
    endpoint->settings.eager_window = core_unread_bytes(options, endpoint->settings.eager_window);
    if (status < 0) goto err_free;
    status = ucx_seal_init(transport->env, &endpoint->seal, options->nonce, options->secret,
                           options->secret_bytes);
    if (status < 0) goto err_free;
    ucx_process_self(&endpoint->self);
    pools_init(endpoint);
    struct ucx_descriptors before;
    ucx_descriptors_note(&before);
    weft_environment(); /* UCX reads `environ` during open */
    status = ucx_context_open(endpoint, error);
    if (status < 0) goto err_free;
    status = open_worker(endpoint, error);
    if (status < 0) goto err_cleanup;
    status = ucx_sleep_open(endpoint, error);
    if (status < 0) goto err_destroy;
    status = open_address(endpoint, error);
    if (status < 0) goto err_close;
    ucx_descriptors_seal(&before);
    transport->backend = endpoint;
    return WEFT_OK;

err_close:
    close(endpoint->events.fd);
err_destroy:
    ucp_worker_destroy(endpoint->worker);
err_cleanup:
    ucp_cleanup(endpoint->context);
err_free:
    ucx_seal_fini(&endpoint->seal);
    weft_free_bytes(transport->env, endpoint);
    return status;
}

static enum weft_status ucx_address(struct weft_transport *transport, const void **blob_out,
                                    size_t *bytes_out)
{
    struct ucx_endpoint *endpoint = transport->backend;
    *blob_out = endpoint->own_address.address;
    *bytes_out = endpoint->own_address.address_bytes;
    return WEFT_OK;
}

/* ---- progress and sleep ---- */

/* UCX 1.13 aborts the process if a worker is destroyed while a reply to a connection request is queued. So
 * the last step is a flush of the worker, repeated until it has nothing to do. Data queued to a dead
 * process over shared memory stays queued and is harmless, so after a forced close the flush has a short
 * deadline. */
static void quiesce(struct ucx_endpoint *endpoint)
{
    uint64_t now_ns = weft_now_ns(endpoint->transport->env);
    if (endpoint->closing.flush_request) {
        endpoint->closing.is_quiesced =
            endpoint->closing.forced && now_ns > endpoint->closing.flush_ns + WEFT_MS(50);
        if (ucp_request_check_status(endpoint->closing.flush_request) == UCS_INPROGRESS) return;
        ucp_request_free(endpoint->closing.flush_request);
    }
    ucp_request_param_t param = {.op_attr_mask = 0};
    void *request = ucp_worker_flush_nbx(endpoint->worker, &param);
    endpoint->closing.flush_request = UCS_PTR_IS_PTR(request) ? request : NULL;
    endpoint->closing.flush_ns = now_ns;
    endpoint->closing.is_quiesced = endpoint->closing.flush_request == NULL;
}

static int ucx_progress(struct weft_transport *transport, int budget)
{
    struct ucx_endpoint *endpoint = transport->backend;
    int count = 0;
    if (endpoint->closing.is_quiesced) return 0;
    bool quiet = false;
    endpoint->round++;
    ucx_batches_flush(endpoint);
    /* Stops at an operation that has ended: its caller may post the receive for the next message. */
    while (count < budget && !quiet && weft_list_empty(&transport->done)) {
        int pushed = ucx_streams_push(endpoint);
        quiet = ucp_worker_progress(endpoint->worker) == 0 && pushed == 0;
        if (!quiet) count++;
    }
    count += ucx_arrivals_progress(endpoint);
    if (quiet) count += ucx_sleep_check(endpoint); /* messages of a dead process precede its end */
    count += ucx_batches_flush(endpoint);
    count += ucx_peers_progress(endpoint, quiet);
    if (transport->closed && endpoint->ending_count == 0) quiesce(endpoint);
    return count;
}

static bool has_queued_controls(const struct ucx_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->talking) {
        if (weft_container_of(node, struct ucx_peer, output.talking)->ep) return true;
    }
    return false;
}

static enum weft_status ucx_arm(struct weft_transport *transport)
{
    struct ucx_endpoint *endpoint = transport->backend;
    if (!weft_list_empty(&endpoint->arrived) || !weft_list_empty(&endpoint->failed)) return WEFT_ERR_AGAIN;
    if (ucx_streams_waiting(endpoint) || has_queued_controls(endpoint) || !ucx_peers_can_sleep(endpoint))
        return WEFT_ERR_AGAIN;
    return ucx_sleep_arm(endpoint) ? WEFT_OK : WEFT_ERR_AGAIN;
}

static int ucx_fd(struct weft_transport *transport)
{
    return ((struct ucx_endpoint *)transport->backend)->events.fd;
}

static void ucx_count(struct weft_transport *transport)
{
    const struct ucx_endpoint *endpoint = transport->backend;
    transport->stats.memory_bytes = endpoint->pools.pool_bytes;
    transport->stats.memory_peer_bytes = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        const struct ucx_peer *ucx_peer = weft_container_of(node, struct ucx_peer, link);
        uint64_t held_bytes = sizeof *ucx_peer + ucx_peer->flow.held_bytes;
        if (held_bytes > transport->stats.memory_peer_bytes) transport->stats.memory_peer_bytes = held_bytes;
    }
}

/* ---- end ---- */

static void ucx_close(struct weft_transport *transport)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        struct ucx_peer *ucx_peer = weft_container_of(node, struct ucx_peer, link);
        if (ucx_peer->ep && ucx_peer->closing.end == UCX_END_NONE) ucx_peer_leave(ucx_peer, WEFT_ERR_CLOSED);
    }
}

static bool ucx_drained(struct weft_transport *transport)
{
    struct ucx_endpoint *endpoint = transport->backend;
    return endpoint->closing.is_quiesced;
}

static void release_all(struct ucx_endpoint *endpoint, struct weft_list *arrivals)
{
    while (!weft_list_empty(arrivals)) {
        struct ucx_arrival *arrival = weft_list_first(arrivals, struct ucx_arrival, link);
        weft_list_remove(&arrival->link);
        ucx_arrival_release(endpoint, arrival);
    }
}

static void ucx_free(struct weft_transport *transport)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    release_all(endpoint, &endpoint->arrived);
    weft_list_foreach(node, spare, &endpoint->peers)
        release_all(endpoint, &weft_container_of(node, struct ucx_peer, link)->reordered);
    uint64_t patience_ns = weft_now_ns(transport->env) + WEFT_MS(100);
    while (!endpoint->closing.is_quiesced && weft_now_ns(transport->env) < patience_ns)
        ucx_progress(transport, 64);
    if (!endpoint->closing.is_quiesced) {
        weft_log(transport->env, WEFT_LOG_WARN, "transport",
                 "endpoint %u is freed before it has drained: its UCX worker is left behind", transport->id);
        return;
    }
    weft_list_foreach(node, spare, &endpoint->peers)
        ucx_process_forget(weft_container_of(node, struct ucx_peer, link));
    close(endpoint->events.fd);
    ucp_worker_destroy(endpoint->worker); /* may still call back: the operations are freed after it */
    ucp_cleanup(endpoint->context);
    weft_list_foreach(node, spare, &endpoint->peers) {
        weft_free_bytes(transport->env, weft_container_of(node, struct ucx_peer, link));
    }
    struct ucx_pool *const pools[] = {
        &endpoint->pools.sends,         &endpoint->pools.arrivals,  &endpoint->pools.eager_buffers,
        &endpoint->pools.large_buffers, &endpoint->pools.fragments, &endpoint->pools.batches,
        &endpoint->pools.gathers,       &endpoint->pools.landings,  &endpoint->pools.incomings};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) pool_free(endpoint, pools[i]);
    ucx_table_free(transport->env, &endpoint->operations);
    ucx_table_free(transport->env, &endpoint->windows);
    ucx_seal_fini(&endpoint->seal);
    weft_free_bytes(transport->env, endpoint);
}

const struct weft_transport_ops ucx_transport_ops = {
    .name = "ucx",
    .abilities = WEFT_TRANSPORT_WINDOWS,
    .open = ucx_open,
    .close = ucx_close,
    .drained = ucx_drained,
    .free = ucx_free,
    .address = ucx_address,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .send = ucx_message_send,
    .accept = ucx_message_accept,
    .discard = ucx_message_discard,
    .window_open = ucx_window_open,
    .window_close = ucx_window_close,
    .window_free = ucx_window_free,
    .import = ucx_import,
    .release = ucx_release,
    .put = ucx_put,
    .get = ucx_get,
    .memory.pin = ucx_memory_register,
    .memory.unpin = ucx_memory_unregister,
    .describe = ucx_describe,
    .count = ucx_count,
    .progress = ucx_progress,
    .arm = ucx_arm,
    .fd = ucx_fd,
};
