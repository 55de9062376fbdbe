/* verbs_open.c - life of an endpoint: open on its devices, statistics, close, free. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/verbs/verbs_endpoint.h"

/* ---- pools ---- */

void *verbs_pool_alloc(struct verbs_endpoint *endpoint, struct verbs_pool *pool)
{
    if (!pool->free_items) {
        char *block = weft_alloc_bytes(endpoint->transport->env, 64 + pool->item_bytes * VERBS_POOL_BLOCK);
        if (!block) return NULL;
        *(void **)(void *)block = pool->blocks;
        pool->blocks = block;
        pool->block_count++;
        for (int i = 0; i < VERBS_POOL_BLOCK; i++)
            verbs_pool_release(pool, block + 64 + pool->item_bytes * (size_t)i);
    }
    void *item = pool->free_items;
    pool->free_items = *(void **)item;
    return item;
}

void verbs_pool_release(struct verbs_pool *pool, void *item)
{
    *(void **)item = pool->free_items;
    pool->free_items = item;
}

static void pool_init(struct verbs_pool *pool, size_t item_bytes)
{
    *pool = (struct verbs_pool){.item_bytes = (item_bytes + 63) / 64 * 64};
}

static void pool_free(struct verbs_endpoint *endpoint, struct verbs_pool *pool)
{
    while (pool->blocks) {
        void *block = pool->blocks;
        pool->blocks = *(void **)block;
        weft_free_bytes(endpoint->transport->env, block);
    }
}

/* ---- open ---- */

static enum weft_status read_options(struct verbs_endpoint *endpoint,
                                     const struct weft_transport_options *options, struct weft_error *error)
{
    char rest[512];
    struct verbs_tuning *tuning = &endpoint->tuning;
    *tuning = (struct verbs_tuning){.chunk = 64 << 10,
                                    .ring = 64 << 10,
                                    .budget = 256 << 10,
                                    .peers = 16,
                                    .direct = 1,
                                    .lost_ns = WEFT_SECONDS(10)};
    verbs_options_init(&endpoint->options);
    endpoint->options.send_depth = 256;
    WEFT_TRY(verbs_tune(options->tune, tuning, rest, sizeof rest, error));
    WEFT_TRY(verbs_options_parse(rest, false, &endpoint->options, error));
    if (endpoint->options.send_depth < 16) endpoint->options.send_depth = 16;
    bool named = options->devices && options->devices[0] && strcmp(options->devices, "lo") != 0;
    if (!named) return WEFT_OK;
    if (strlen(options->devices) >= sizeof endpoint->options.devices) {
        return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID,
                                                "the list of verbs devices is too long");
    }
    snprintf(endpoint->options.devices, sizeof endpoint->options.devices, "%s", options->devices);
    return WEFT_OK;
}

/* Where the bootstrap listens: with a secret on the network of the first rail, if it has an IPv4 address. */
static const char *link_host(struct verbs_endpoint *endpoint, bool secret, char text[INET_ADDRSTRLEN])
{
    const uint8_t *gid = endpoint->rails[0].port.gid.raw;
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (endpoint->tuning.host[0]) return endpoint->tuning.host;
    if (!secret || memcmp(gid, mapped, sizeof mapped) != 0) return weft_loopback_host();
    return inet_ntop(AF_INET, gid + 12, text, INET_ADDRSTRLEN);
}

static enum weft_status open_link(struct verbs_endpoint *endpoint,
                                  const struct weft_transport_options *options, struct weft_error *error)
{
    struct weft_transport *transport = endpoint->transport;
    struct bootstrap_options bootstrap;
    char host[INET_ADDRSTRLEN];
    bootstrap_options_init(&bootstrap);
    bootstrap.family = BOOTSTRAP_TCP;
    bootstrap.id = transport->id;
    bootstrap.nonce = transport->nonce;
    bootstrap.secret = options->secret;
    bootstrap.secret_bytes = options->secret_bytes;
    bootstrap.bind_host = link_host(endpoint, options->secret != NULL, host);
    bootstrap.callbacks = verbs_link_callbacks;
    /* The bootstrap often shares the wire with the queue pairs, so it uses the same timeout. */
    uint64_t seconds = (endpoint->tuning.lost_ns + WEFT_SECONDS(1) - 1) / WEFT_SECONDS(1);
    bootstrap.liveness_ns = WEFT_SECONDS(seconds > 2 ? seconds : 2);
    WEFT_TRY(bootstrap_options_ports(&bootstrap, options->ports, error));
    WEFT_TRY(bootstrap_open(transport->env, &bootstrap, &endpoint->bootstrap, error));
    size_t bytes;
    const void *address = bootstrap_address(endpoint->bootstrap, &bytes);
    WEFT_ASSERT(bytes <= BOOTSTRAP_ADDRESS_BYTES_MAX);
    endpoint->own_address.blob_bytes =
        address_blob_encode(verbs_blob_kind, core_nonce_hash(transport->nonce), transport->id, address,
                            (uint32_t)bytes, endpoint->own_address.blob);
    return WEFT_OK;
}

static bool watch(struct verbs_endpoint *endpoint, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static enum weft_status open_epoll(struct verbs_endpoint *endpoint, struct weft_error *error)
{
    endpoint->epoll = epoll_create1(EPOLL_CLOEXEC);
    bool good = endpoint->epoll >= 0 && watch(endpoint, bootstrap_fd(endpoint->bootstrap));
    for (uint32_t i = 0; i < endpoint->rail_count && good; i++) {
        good = watch(endpoint, verbs_rail_fd(&endpoint->rails[i])) &&
               watch(endpoint, verbs_rail_async_fd(&endpoint->rails[i])) &&
               (!endpoint->cms[i] || watch(endpoint, verbs_cm_fd(endpoint->cms[i])));
    }
    if (good) return WEFT_OK;
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_LIMIT,
        "no descriptor to sleep on is left: raise the limit of open files (ulimit -n)");
}

static void close_all(struct verbs_endpoint *endpoint)
{
    if (endpoint->epoll >= 0) close(endpoint->epoll);
    bootstrap_close(endpoint->bootstrap);
    verbs_cms_close(endpoint);
    if (endpoint->memory) verbs_memory_close(endpoint->memory);
    for (uint32_t i = 0; i < endpoint->rail_count; i++) verbs_rail_close(&endpoint->rails[i]);
    weft_free_bytes(endpoint->transport->env, endpoint);
}

static enum weft_status verbs_open(struct weft_transport *transport,
                                   const struct weft_transport_options *options, struct weft_error *error)
{
    struct verbs_endpoint *endpoint = weft_alloc_zero(transport->env, sizeof *endpoint);
    if (!endpoint)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a verbs endpoint");
    endpoint->transport = transport;
    endpoint->epoll = -1;
    weft_list_init(&endpoint->peers);
    weft_list_init(&endpoint->dirty);
    weft_list_init(&endpoint->needs_check);
    weft_list_init(&endpoint->fencing);
    weft_list_init(&endpoint->slabs);
    weft_list_init(&endpoint->self_arrivals);
    weft_list_init(&endpoint->directs);
    pool_init(&endpoint->sends, sizeof(struct verbs_send));
    pool_init(&endpoint->arrivals, sizeof(struct verbs_arrival));
    pool_init(&endpoint->payloads, 64); /* until the ring size is known */
    uint32_t rail_count = 0;
    enum weft_status status = read_options(endpoint, options, error);
    if (status == WEFT_OK)
        status = verbs_rails_open(transport->env, &endpoint->options, endpoint->rails, &rail_count, error);
    endpoint->rail_count = status == WEFT_OK ? rail_count : 0;
    if (status == WEFT_OK)
        status = verbs_memory_open(transport->env, endpoint->rails, endpoint->rail_count, &endpoint->memory,
                                   error);
    if (status == WEFT_OK) status = verbs_cms_open(endpoint, error);
    if (status == WEFT_OK) status = open_link(endpoint, options, error);
    if (status == WEFT_OK) status = open_epoll(endpoint, error);
    if (status < 0) {
        close_all(endpoint);
        return status;
    }
    if (endpoint->tuning.lanes == 0) endpoint->tuning.lanes = endpoint->rail_count;
    uint32_t record = endpoint->tuning.ring / 4; /* largest record in the ring */
    pool_init(&endpoint->payloads, transport->eager_bytes_max < record ? transport->eager_bytes_max : record);
    snprintf(transport->name, sizeof transport->name, "verbs %.50s", endpoint->rails[0].port.device);
    transport->backend = endpoint;
    return WEFT_OK;
}

static enum weft_status verbs_address(struct weft_transport *transport, const void **blob_out,
                                      size_t *bytes_out)
{
    struct verbs_endpoint *endpoint = transport->backend;
    *blob_out = endpoint->own_address.blob;
    *bytes_out = endpoint->own_address.blob_bytes;
    return WEFT_OK;
}

static int verbs_fd(struct weft_transport *transport)
{
    return ((struct verbs_endpoint *)transport->backend)->epoll;
}

/* ---- statistics ---- */

/* Bytes per peer: ring, staging, tables of the stream and the present queue pairs. */
uint64_t verbs_peer_memory(const struct verbs_peer *verbs_peer)
{
    uint64_t own, each, bytes = sizeof *verbs_peer;
    if (verbs_peer->stream)
        bytes += 2ull * verbs_peer->endpoint->tuning.ring + stream_memory(verbs_peer->stream);
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) {
        if (!verbs_peer->lanes[i].queue_pair) continue;
        verbs_rail_memory(verbs_peer->lanes[i].queue_pair->rail, &own, &each);
        bytes += each;
    }
    return bytes;
}

static void verbs_count(struct weft_transport *transport)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct weft_transport_stats *stats = &transport->stats;
    struct bootstrap_stats bootstrap;
    bootstrap_stats(endpoint->bootstrap, &bootstrap);
    stats->refused_count += bootstrap.refused_count - endpoint->traffic.refused_reported;
    endpoint->traffic.refused_reported = bootstrap.refused_count;
    stats->copied_bytes = endpoint->traffic.copied_bytes;
    stats->system_call_count = endpoint->traffic.system_calls;
    stats->work_request_count = stats->doorbell_count = stats->signalled_count = 0;
    stats->memory_bytes = stats->memory_peer_bytes = 0;
    for (uint32_t i = 0; i < endpoint->rail_count; i++) {
        const struct verbs_rail *rail = &endpoint->rails[i];
        uint64_t own, each;
        verbs_rail_memory(rail, &own, &each);
        stats->work_request_count += rail->counters.work_requests;
        stats->doorbell_count += rail->counters.doorbells;
        stats->signalled_count += rail->counters.signalled;
        stats->memory_bytes += own + each * rail->queue_pair_count;
    }
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->slabs) {
        const struct verbs_slab *slab = weft_container_of(node, struct verbs_slab, link);
        stats->memory_bytes += (uint64_t)slab->piece_count * 2 * endpoint->tuning.ring;
    }
    weft_list_foreach(node, spare, &endpoint->peers) {
        const struct verbs_peer *verbs_peer = weft_container_of(node, struct verbs_peer, of_endpoint);
        if (!verbs_peer->stream) continue;
        stats->copied_bytes += verbs_peer->stream->copied_bytes;
        uint64_t bytes = verbs_peer_memory(verbs_peer);
        if (bytes > stats->memory_peer_bytes) stats->memory_peer_bytes = bytes;
        stats->memory_bytes += sizeof *verbs_peer + stream_memory(verbs_peer->stream);
    }
    stats->memory_bytes +=
        VERBS_POOL_BLOCK * (endpoint->sends.block_count * endpoint->sends.item_bytes +
                            endpoint->arrivals.block_count * endpoint->arrivals.item_bytes +
                            endpoint->payloads.block_count * endpoint->payloads.item_bytes);
}

/* ---- end ---- */

static void verbs_close(struct weft_transport *transport)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->peers)
        verbs_peer_leave(weft_container_of(node, struct verbs_peer, of_endpoint));
}

static bool verbs_drained(struct weft_transport *transport)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        const struct verbs_peer *verbs_peer = weft_container_of(node, struct verbs_peer, of_endpoint);
        if (!verbs_peer->ended || verbs_peer->link) return false;
    }
    return weft_list_empty(&endpoint->fencing) && weft_list_empty(&endpoint->self_arrivals);
}

static bool verbs_flushed(struct weft_transport *transport)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->peers) {
        const struct verbs_peer *verbs_peer = weft_container_of(node, struct verbs_peer, of_endpoint);
        if (verbs_peer->stream && !stream_is_flushed(verbs_peer->stream)) return false;
    }
    return true;
}

/* Ends before the drain: destroys the queue pairs first, so that no device accesses memory any more. */
static void endpoint_end_now(struct verbs_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        struct verbs_peer *verbs_peer = weft_container_of(node, struct verbs_peer, of_endpoint);
        if (verbs_peer->link) bootstrap_forget(verbs_peer->link);
        verbs_peer->link = NULL;
        if (!verbs_peer->stream) continue;
        stream_end(verbs_peer->stream, WEFT_ERR_CLOSED);
        for (uint32_t i = 0; i < STREAM_LANES_MAX; i++) {
            struct verbs_lane *lane = &verbs_peer->lanes[i];
            verbs_lane_destroy(lane);
            stream_lane_fenced(verbs_peer->stream, i, lane->epoch);
        }
    }
    while (!weft_list_empty(&endpoint->transport->done)) { /* these completions never run */
        struct core_done *done = weft_list_first(&endpoint->transport->done, struct core_done, link);
        weft_list_remove(&done->link);
        if (done->recycle) done->recycle(endpoint->transport, done);
    }
}

static void verbs_free(struct weft_transport *transport)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    endpoint_end_now(endpoint);
    weft_list_foreach (node, spare, &endpoint->peers)
        verbs_peer_free(weft_container_of(node, struct verbs_peer, of_endpoint));
    weft_list_foreach(node, spare, &endpoint->slabs) {
        struct verbs_slab *slab = weft_container_of(node, struct verbs_slab, link);
        verbs_memory_unregister(endpoint->memory, &slab->region);
        weft_free_bytes(transport->env, slab->memory);
        weft_free_bytes(transport->env, slab->free_pieces);
        weft_free_bytes(transport->env, slab);
    }
    pool_free(endpoint, &endpoint->sends);
    pool_free(endpoint, &endpoint->arrivals);
    pool_free(endpoint, &endpoint->payloads);
    transport->backend = NULL;
    close_all(endpoint);
}

const struct weft_transport_ops verbs_transport_ops = {
    .name = "verbs",
    .open = verbs_open,
    .close = verbs_close,
    .drained = verbs_drained,
    .flushed = verbs_flushed,
    .free = verbs_free,
    .address = verbs_address,
    .connect = verbs_connect,
    .disconnect = verbs_disconnect,
    .send = verbs_send_message,
    .accept = verbs_accept,
    .discard = verbs_discard,
    .abilities = WEFT_TRANSPORT_WINDOWS,
    .window_open = verbs_window_open,
    .window_close = verbs_window_close,
    .window_free = verbs_window_free,
    .import = verbs_import,
    .release = verbs_release,
    .put = verbs_put,
    .get = verbs_get,
    .memory = {.pin = verbs_memory_pin,
               .unpin = verbs_memory_unpin,
               .direct_kinds = verbs_direct_kinds,
               .direct_pin = verbs_direct_pin,
               .direct_unpin = verbs_direct_unpin},
    .describe = verbs_describe,
    .count = verbs_count,
    .progress = verbs_progress,
    .arm = verbs_arm,
    .fd = verbs_fd,
};
