/* shm_open.c - life of an endpoint: open, progress, close.
 *
 * The endpoint sleeps on one epoll descriptor over two: the eventfd that peers write to a sleeping
 * endpoint, and the bootstrap sockets, which break when a peer's process ends. Progress polls the sockets
 * every SHM_BOOTSTRAP_POLL_EVERY calls (earlier after large copies), so the fast path makes no system
 * call. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/shm/shm.h"
#include "transport/shm/shm_ops.h"

/* ---- pools ---- */

static void *item_of(const struct shm_pool *pool, struct shm_op *op)
{
    return (uint8_t *)op - pool->op_offset;
}

static bool ops_grow(struct shm_endpoint *endpoint)
{
    if (endpoint->op_table.op_count + SHM_POOL_BLOCK <= endpoint->op_table.op_capacity) return true;
    struct weft_env *env = endpoint->transport->env;
    uint32_t capacity = endpoint->op_table.op_capacity ? endpoint->op_table.op_capacity * 2 : 256;
    struct shm_op **ops = weft_alloc_array(env, capacity, sizeof *ops);
    if (!ops) return false;
    if (endpoint->op_table.op_count > 0)
        memcpy(ops, endpoint->op_table.ops, endpoint->op_table.op_count * sizeof *ops);
    weft_free_bytes(env, endpoint->op_table.ops);
    endpoint->op_table.ops = ops;
    endpoint->op_table.op_capacity = capacity;
    return true;
}

static bool pool_grow(struct shm_endpoint *endpoint, struct shm_pool *pool)
{
    size_t item_bytes = (pool->item_bytes + 63) & ~(size_t)63;
    if (!ops_grow(endpoint)) return false;
    uint8_t *block = weft_alloc_zero(endpoint->transport->env, 64 + SHM_POOL_BLOCK * item_bytes);
    if (!block) return false;
    *(void **)block = pool->blocks;
    pool->blocks = block;
    for (uint32_t i = 0; i < SHM_POOL_BLOCK; i++) {
        struct shm_op *op = (struct shm_op *)(block + 64 + i * item_bytes + pool->op_offset);
        op->index = endpoint->op_table.op_count;
        op->generation = 1;
        op->is_arrival = pool->is_arrival;
        endpoint->op_table.ops[endpoint->op_table.op_count++] = op;
        weft_list_append(&pool->free, &op->link);
    }
    return true;
}

bool shm_pool_has(struct shm_endpoint *endpoint, struct shm_pool *pool)
{
    return !weft_list_empty(&pool->free) || pool_grow(endpoint, pool);
}

void *shm_pool_alloc(struct shm_endpoint *endpoint, struct shm_pool *pool)
{
    if (!shm_pool_has(endpoint, pool)) return NULL;
    struct shm_op *op = weft_list_first(&pool->free, struct shm_op, link);
    weft_list_remove(&op->link);
    weft_list_init(&op->of_pair);
    if (!pool->is_arrival) endpoint->op_table.ops_used++;
    return item_of(pool, op);
}

/* A name is never reused: late cells for it are ignored. */
void shm_pool_release(struct shm_endpoint *endpoint, struct shm_op *op)
{
    struct shm_pool *pool = op->is_arrival ? &endpoint->arrivals : &endpoint->sends;
    WEFT_ASSERT(weft_list_empty(&op->link) && weft_list_empty(&op->of_pair));
    op->generation++;
    op->phase = SHM_FREE;
    if (!pool->is_arrival) endpoint->op_table.ops_used--;
    weft_list_insert_before(pool->free.next, &op->link); /* recently used records are reused first */
}

struct shm_op *shm_op_find(struct shm_pair *pair, uint64_t name)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    uint32_t index = (uint32_t)name;
    if (index >= endpoint->op_table.op_count) return NULL;
    struct shm_op *op = endpoint->op_table.ops[index];
    return op->generation == (uint32_t)(name >> 32) && op->phase > SHM_ARRIVED && op->pair == pair ? op
                                                                                                   : NULL;
}

static void pool_free(struct shm_endpoint *endpoint, struct shm_pool *pool)
{
    while (pool->blocks) {
        void *block = pool->blocks;
        pool->blocks = *(void **)block;
        weft_free_bytes(endpoint->transport->env, block);
    }
}

/* ---- open ---- */

#define SWITCH(name_, member_) \
    {.name = name_, .type = WEFT_KEY_CHOICE, .choices = "off|on", \
     WEFT_KEY_AT(WEFT_FIELD_BOOL, struct shm_endpoint, member_)}

/* For tests, and for comparisons of their cost. */
static const struct weft_key keys[] = {SWITCH("cma", access.allow_cma),
                                       SWITCH("maps", access.allow_maps),
                                       SWITCH("membarrier", access.allow_fences),
                                       SWITCH("share", access.allow_split),
                                       {0}};

static enum weft_status tune(struct shm_endpoint *endpoint, const char *text, struct weft_error *error)
{
    struct weft_key_value item;
    endpoint->access.allow_cma = endpoint->access.allow_maps = endpoint->access.allow_fences =
        endpoint->access.allow_split = true;
    while (text && weft_key_value_next(&text, "", &item)) {
        if (weft_key_value_set(keys, 0, &item, endpoint) == WEFT_KEY_STORED) continue;
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID,
            "shm has no setting \"%.*s\": it has cma, maps, membarrier and share, each =on or =off",
            (int)item.item_bytes, item.item);
    }
    if (!endpoint->access.allow_maps) endpoint->transport->abilities &= ~(unsigned)WEFT_TRANSPORT_MAPS;
    return WEFT_OK;
}

static enum weft_status open_memory(struct shm_endpoint *endpoint, struct weft_error *error)
{
    endpoint->doorbells =
        memory_file_create("weft-board", sizeof *endpoint->doorbells, true, &endpoint->doorbells_fd);
    if (endpoint->doorbells)
        endpoint->window_generations = memory_file_create("weft-facts", sizeof *endpoint->window_generations,
                                                          false, &endpoint->window_generations_fd);
    if (endpoint->window_generations) return WEFT_OK;
    return weft_limit_error(error, "shared memory", errno, "shared memory cannot be made");
}

static bool watch(int epoll_fd, int fd)
{
    struct epoll_event interest = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &interest) == 0;
}

static enum weft_status open_descriptors(struct shm_endpoint *endpoint, struct weft_error *error)
{
    endpoint->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    endpoint->epoll_fd = endpoint->event_fd >= 0 ? epoll_create1(EPOLL_CLOEXEC) : -1;
    if (endpoint->epoll_fd >= 0 && watch(endpoint->epoll_fd, endpoint->event_fd) &&
        watch(endpoint->epoll_fd, bootstrap_fd(endpoint->bootstrap)))
        return WEFT_OK;
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_LIMIT, "no descriptor for an endpoint: %s; raise ulimit -n", strerror(errno));
}

static enum weft_status open_meet(struct shm_endpoint *endpoint, const struct weft_transport_options *options,
                                  struct weft_error *error)
{
    struct bootstrap_options socket_options;
    bootstrap_options_init(&socket_options);
    socket_options.family = BOOTSTRAP_UNIX;
    socket_options.id = options->id;
    socket_options.nonce = options->nonce;
    socket_options.secret = options->secret;
    socket_options.secret_bytes = options->secret_bytes;
    socket_options.callbacks = (struct bootstrap_callbacks){.connected = shm_pair_connected,
                                                     .message = shm_pair_on_message,
                                                     .disconnected = shm_pair_disconnected};
    return bootstrap_open(endpoint->transport->env, &socket_options, &endpoint->bootstrap, error);
}

static void endpoint_free(struct shm_endpoint *endpoint)
{
    struct weft_env *env = endpoint->transport->env;
    bootstrap_close(endpoint->bootstrap);
    if (endpoint->epoll_fd >= 0) close(endpoint->epoll_fd);
    if (endpoint->event_fd >= 0) close(endpoint->event_fd);
    if (endpoint->doorbells_fd >= 0) close(endpoint->doorbells_fd);
    if (endpoint->window_generations_fd >= 0) close(endpoint->window_generations_fd);
    memory_file_unmap(endpoint->doorbells, sizeof *endpoint->doorbells);
    memory_file_unmap(endpoint->window_generations, sizeof *endpoint->window_generations);
    weft_memory_free(env, endpoint->staging_area.staging);
    pool_free(endpoint, &endpoint->sends);
    pool_free(endpoint, &endpoint->arrivals);
    weft_free_bytes(env, endpoint->op_table.ops);
    weft_free_bytes(env, endpoint);
}

static enum weft_status shm_open_endpoint(struct weft_transport *transport,
                                          const struct weft_transport_options *options,
                                          struct weft_error *error)
{
    struct shm_endpoint *endpoint = weft_alloc_zero(transport->env, sizeof *endpoint);
    if (!endpoint)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for an endpoint");
    endpoint->transport = transport;
    endpoint->epoll_fd = endpoint->event_fd = endpoint->doorbells_fd = endpoint->window_generations_fd = -1;
    endpoint->probe = weft_random_u64(transport->env);
    endpoint->sends =
        (struct shm_pool){.item_bytes = sizeof(struct shm_send), .op_offset = offsetof(struct shm_send, op)};
    endpoint->arrivals = (struct shm_pool){.item_bytes = sizeof(struct shm_arrival),
                                           .op_offset = offsetof(struct shm_arrival, op),
                                           .is_arrival = true};
    struct weft_list *lists[] = {&endpoint->sends.free,   &endpoint->arrivals.free, &endpoint->lists.pairs,
                                 &endpoint->lists.active, &endpoint->lists.stalled, &endpoint->lists.blocked,
                                 &endpoint->lists.ending, &endpoint->lists.closing};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) weft_list_init(lists[i]);
    enum weft_status status = tune(endpoint, options->tune, error);
    if (status == WEFT_OK) status = open_memory(endpoint, error);
    if (status == WEFT_OK) status = open_meet(endpoint, options, error);
    if (status == WEFT_OK) status = open_descriptors(endpoint, error);
    if (status == WEFT_OK) status = shm_address_make(endpoint);
    if (status < 0) {
        endpoint_free(endpoint);
        return status;
    }
    endpoint->credit_bytes = core_unread_bytes(options, SHM_CREDIT_BYTES);
    endpoint->access.fences = endpoint->access.allow_fences && shm_fence_register();
    struct memory_arena arena;
    if (!endpoint->access.allow_maps || !memory_arena(&arena))
        transport->abilities &= ~(unsigned)WEFT_TRANSPORT_MAPS;
    transport->backend = endpoint;
    return WEFT_OK;
}

static enum weft_status shm_address(struct weft_transport *transport, const void **blob_out,
                                    size_t *bytes_out)
{
    struct shm_endpoint *endpoint = transport->backend;
    *blob_out = endpoint->own_address.address;
    *bytes_out = endpoint->own_address.address_bytes;
    return WEFT_OK;
}

static int shm_fd(struct weft_transport *transport)
{
    return ((struct shm_endpoint *)transport->backend)->epoll_fd;
}

/* ---- progress ---- */

static bool sockets_due(struct shm_endpoint *endpoint)
{
    endpoint->bootstrap_poll_count += 1 + (uint32_t)(endpoint->step_bytes / SHM_BOOTSTRAP_POLL_BYTES);
    endpoint->step_bytes = 0;
    return endpoint->bootstrap_due || endpoint->connecting_count > 0 ||
           endpoint->bootstrap_poll_count >= SHM_BOOTSTRAP_POLL_EVERY;
}

static int sockets_progress(struct shm_endpoint *endpoint)
{
    endpoint->bootstrap_due = false;
    endpoint->bootstrap_poll_count = 0;
    return bootstrap_progress(endpoint->bootstrap, 64);
}

static void flush_blocked(struct shm_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->lists.blocked) {
        struct shm_pair *pair = weft_container_of(node, struct shm_pair, links.blocked);
        shm_pair_flush(pair);
        if (pair->flags.broken)
            shm_pair_broken(pair, "the data that it wrote into shared memory are invalid");
    }
}

static int shm_progress(struct weft_transport *transport, int budget)
{
    struct shm_endpoint *endpoint = transport->backend;
    if (endpoint->armed) shm_disarm(endpoint);
    int count = sockets_due(endpoint) ? sockets_progress(endpoint) : 0;
    count += shm_doorbells_progress(endpoint, budget);
    if (!weft_list_empty(&endpoint->lists.blocked)) flush_blocked(endpoint);
    if (!weft_list_empty(&endpoint->lists.active)) count += shm_transfers_progress(endpoint, budget);
    if (!weft_list_empty(&endpoint->lists.ending) || !weft_list_empty(&endpoint->lists.closing)) {
        count += shm_pairs_ending(endpoint) + shm_windows_progress(endpoint);
        /* a peer that is inside does not report when it leaves */
        core_wake_at(transport, weft_now_ns(transport->env) + WEFT_MS(1));
    }
    return count;
}

static void shm_count(struct weft_transport *transport)
{
    struct shm_endpoint *endpoint = transport->backend;
    struct weft_transport_stats *stats = &transport->stats;
    uint64_t kept = 0, most = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->lists.pairs) {
        const struct shm_pair *pair = weft_container_of(node, struct shm_pair, links.link);
        uint64_t mine = sizeof *pair + (pair->in.shared ? RING_SEGMENT_BYTES : 0) + pair->credit.kept;
        kept += mine;
        if (mine > most) most = mine;
    }
    struct bootstrap_stats socket_stats;
    bootstrap_stats(endpoint->bootstrap, &socket_stats);
    stats->refused_count += socket_stats.refused_count - endpoint->refused_seen;
    endpoint->refused_seen = socket_stats.refused_count;
    stats->memory_bytes = kept + (endpoint->staging_area.staging ? (uint64_t)SHM_SLOTS * SHM_SLOT_BYTES : 0);
    stats->memory_peer_bytes = most;
}

/* ---- end ---- */

static void shm_close(struct weft_transport *transport)
{
    struct shm_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->lists.pairs)
        shm_pair_leave(weft_container_of(node, struct shm_pair, links.link));
}

static bool shm_drained(struct weft_transport *transport)
{
    struct shm_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->lists.ending) {
        if (!weft_list_empty(&weft_container_of(node, struct shm_pair, links.ending)->ops)) return false;
    }
    return weft_list_empty(&endpoint->lists.closing);
}

/* Frees the payloads of arrivals that a handler still holds, and their mappings. */
static void kept_free(struct shm_endpoint *endpoint)
{
    for (uint32_t i = 0; i < endpoint->op_table.op_count; i++) {
        struct shm_op *op = endpoint->op_table.ops[i];
        if (!op->is_arrival) continue;
        struct shm_arrival *arrival = weft_container_of(op, struct shm_arrival, op);
        weft_free_bytes(endpoint->transport->env, arrival->kept);
        memory_view_unref(arrival->peeked);
    }
}

static void shm_free(struct weft_transport *transport)
{
    struct shm_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    kept_free(endpoint);
    weft_list_foreach (node, spare, &endpoint->lists.pairs)
        shm_pair_free(weft_container_of(node, struct shm_pair, links.link));
    endpoint_free(endpoint);
}

const struct weft_transport_ops shm_transport_ops = {
    .name = "shm",
    .open = shm_open_endpoint,
    .close = shm_close,
    .drained = shm_drained,
    .free = shm_free,
    .address = shm_address,
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .send = shm_send,
    .accept = shm_accept,
    .discard = shm_discard,
    .peek = shm_peek,
    .peek_is_valid = shm_peek_is_valid,
    .abilities = WEFT_TRANSPORT_WINDOWS | WEFT_TRANSPORT_MAPS,
    .window_open = shm_window_open,
    .window_close = shm_window_close,
    .window_free = shm_window_free,
    .import = shm_import,
    .release = shm_release,
    .map = shm_map,
    .put = shm_put,
    .get = shm_get,
    .map_peer = shm_map_peer,
    .wake = shm_wake,
    .copy_peer = shm_copy_peer,
    .is_detached = shm_is_detached,
    .describe = shm_describe,
    .count = shm_count,
    .progress = shm_progress,
    .arm = shm_arm,
    .fd = shm_fd,
};
