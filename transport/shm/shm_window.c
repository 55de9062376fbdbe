/* shm_window.c - windows: one-sided access to memory.
 *
 * A window has a number and a generation (odd: open) in memory that peers map read-only. A user stores the
 * window in its line of the ring, then checks that the window is open. The owner increments the
 * generation, then checks the lines of all users. So once no user is inside, none can enter: no message is
 * needed, and a peer that computes or sleeps delays nothing (shm_fence.c proves the memory order). If a
 * user stopped inside, or holds the window mapped (a bit in its ring), the close waits until it continues,
 * releases the window or dies.
 *
 * A put or get of mapped memory up to SHM_DIRECT_BYTES completes inside its call. If neither mapped access
 * nor CMA works, the request is a message to the owner. */
#include <stdio.h>
#include <string.h>

#include "transport/shm/shm.h"

#define KEY_MAGIC 0x794b4d53u

struct key {
    uint32_t magic, owner, peer_id, window, generation, rights;
    uint64_t bytes, address, offset, check;
};

static uint64_t key_check(const struct key *key)
{
    return weft_fnv_bytes(WEFT_FNV_BASIS, key, offsetof(struct key, check));
}

/* ---- the owner ---- */

enum weft_status shm_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error)
{
    struct shm_endpoint *endpoint = transport->backend;
    if (weft_memory_is_device(window->options.kind)) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "shared memory windows are host memory: copy device memory out first");
    }
    uint32_t number = 0;
    while (number < RING_WINDOWS && endpoint->windows[number]) number++;
    if (number == RING_WINDOWS) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_LIMIT, "%d windows are open on this endpoint already: close one", RING_WINDOWS);
    }
    struct shm_window *mine = weft_alloc_zero(transport->env, sizeof *mine);
    if (!mine) return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    mine->handle = window;
    mine->number = number;
    mine->generation = atomic_load(&endpoint->window_generations->generation[number]) + 1;
    weft_list_init(&mine->closing);
    endpoint->windows[number] = mine;
    window->backend = mine;
    const struct weft_window_options *options = &window->options;
    struct key key = {
        .magic = KEY_MAGIC,
        .owner = transport->id,
        .peer_id = options->peer_id,
        .window = number,
        .generation = mine->generation,
        .rights = options->rights,
        .bytes = options->bytes,
        .address = (uintptr_t)options->address,
        .offset =
            endpoint->access.allow_maps ? memory_offset(options->address, options->bytes) : RING_NO_OFFSET,
    };
    key.check = key_check(&key);
    memcpy(window->key, &key, sizeof key);
    window->key_bytes = sizeof key;
    atomic_store(&endpoint->window_generations->generation[number], mine->generation);
    return WEFT_OK;
}

static bool is_accessed(const struct shm_endpoint *endpoint, const struct shm_window *window)
{
    const struct weft_list *node;
    for (node = endpoint->lists.pairs.next; node != &endpoint->lists.pairs; node = node->next) {
        const struct shm_pair *pair = weft_container_of(node, struct shm_pair, links.link);
        if (!pair->in.shared || pair->flags.dead) continue;
        if (atomic_load(&pair->in.shared->writer.inside) == window->number + 1 ||
            shm_fence_is_uncertain(pair))
            return true;
        if (atomic_load(&pair->in.shared->writer.maps[window->number / 64]) >> (window->number % 64) & 1)
            return true;
    }
    return false;
}

int shm_windows_progress(struct shm_endpoint *endpoint)
{
    int count = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->lists.closing) {
        struct shm_window *window = weft_container_of(node, struct shm_window, closing);
        if (window->users > 0 || is_accessed(endpoint, window)) continue;
        weft_list_remove(&window->closing);
        core_finish(endpoint->transport, &window->handle->done, WEFT_OK);
        count++;
    }
    return count;
}

void shm_window_close(struct weft_transport *transport, struct weft_window *window)
{
    struct shm_endpoint *endpoint = transport->backend;
    struct shm_window *mine = window->backend;
    atomic_store(&endpoint->window_generations->generation[mine->number], mine->generation + 1);
    shm_fence_users(endpoint);
    weft_list_append(&endpoint->lists.closing, &mine->closing);
    shm_windows_progress(endpoint);
}

void shm_window_free(struct weft_transport *transport, struct weft_window *window)
{
    struct shm_endpoint *endpoint = transport->backend;
    struct shm_window *mine = window->backend;
    if (!window->closing)
        atomic_store(&endpoint->window_generations->generation[mine->number], mine->generation + 1);
    weft_list_remove(&mine->closing);
    endpoint->windows[mine->number] = NULL;
    weft_free_bytes(transport->env, mine);
}

/* ---- the user ---- */

static inline void pair_leave(struct shm_pair *pair)
{
    atomic_store_explicit(&pair->out.shared->writer.inside, 0, memory_order_release);
}

static inline bool enter(struct shm_pair *pair, uint32_t window, uint32_t generation)
{
    struct ring_shared *shared = pair->out.shared;
    atomic_store_explicit(&shared->writer.inside, window ? window : SHM_INSIDE_GRANT, memory_order_relaxed);
    if (pair->flags.light) atomic_signal_fence(memory_order_seq_cst); /* the owner fences for both */
    else atomic_thread_fence(memory_order_seq_cst);
    bool open = atomic_load_explicit(&shared->reader.state, memory_order_acquire) == RING_OPEN;
    if (open && window)
        open = atomic_load_explicit(&pair->mapped.window_generations->generation[window - 1],
                                    memory_order_acquire) == generation;
    if (!open) pair_leave(pair);
    return open;
}

bool shm_access_begin(struct shm_pair *pair, uint32_t window, uint32_t generation)
{
    return enter(pair, window, generation);
}
void shm_access_end(struct shm_pair *pair)
{
    pair_leave(pair);
}

enum weft_status shm_import(struct weft_transport *transport, struct weft_remote *remote, const void *data,
                            size_t bytes)
{
    struct key key;
    if (bytes != sizeof key) return WEFT_ERR_MALFORMED;
    memcpy(&key, data, sizeof key);
    if (key.magic != KEY_MAGIC || key.check != key_check(&key) || key.owner != remote->peer->id)
        return WEFT_ERR_MALFORMED;
    if (key.peer_id != WEFT_ANY_PEER && key.peer_id != transport->id) return WEFT_ERR_MALFORMED;
    if (key.window >= RING_WINDOWS || key.bytes == 0 || (key.rights & ~3u)) return WEFT_ERR_MALFORMED;
    struct shm_remote *mine = weft_alloc_zero(transport->env, sizeof *mine);
    if (!mine) return WEFT_ERR_NO_MEMORY;
    mine->pair = remote->peer->backend;
    mine->window = key.window + 1;
    mine->generation = key.generation;
    mine->address = key.address;
    mine->offset = key.offset;
    remote->bytes = key.bytes;
    remote->rights = key.rights;
    remote->backend = mine;
    return WEFT_OK;
}

/* The mapping of a connected pair stays until its end. */
static inline bool is_mapped(const struct weft_remote *remote)
{
    struct shm_remote *mine = remote->backend;
    if (mine->pair->state != SHM_PAIR_CONNECTED) return false;
    if (!mine->memory && mine->offset != RING_NO_OFFSET)
        mine->memory = shm_view_at(mine->pair->mapped.view, mine->offset, remote->bytes);
    return mine->memory != NULL;
}

static void maps_mark(const struct shm_remote *mine, bool on)
{
    _Atomic uint64_t *word = &mine->pair->out.shared->writer.maps[(mine->window - 1) / 64];
    uint64_t bit = 1ull << ((mine->window - 1) % 64);
    if (on) atomic_fetch_or(word, bit);
    else atomic_fetch_and(word, ~bit);
}

/* Several remotes of one window share its bit. */
static bool is_mapped_by_peer(struct weft_transport *transport, const struct weft_remote *remote)
{
    const struct shm_remote *mine = remote->backend;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->memory.remotes) {
        struct weft_remote *other = weft_container_of(node, struct weft_remote, link);
        struct shm_remote *theirs = other->backend;
        if (other != remote && theirs->pair == mine->pair && theirs->window == mine->window && theirs->view)
            return true;
    }
    return false;
}

void *shm_map(struct weft_transport *transport, struct weft_remote *remote)
{
    struct shm_remote *mine = remote->backend;
    if (!mine->view) {
        if (!is_mapped(remote)) return NULL;
        maps_mark(mine, true);
        atomic_thread_fence(memory_order_seq_cst);
        bool open = shm_access_begin(mine->pair, mine->window, mine->generation);
        if (open) shm_access_end(mine->pair);
        else if (!is_mapped_by_peer(transport, remote)) maps_mark(mine, false);
        if (!open) return NULL;
        mine->view = mine->pair->mapped.view;
        memory_view_ref(mine->view);
    }
    return shm_view_at(mine->view, mine->offset, remote->bytes);
}

void shm_release(struct weft_transport *transport, struct weft_remote *remote)
{
    struct shm_remote *mine = remote->backend;
    if (mine->view) {
        if (mine->pair->out.shared && !is_mapped_by_peer(transport, remote)) maps_mark(mine, false);
        memory_view_unref(mine->view);
    }
    weft_free_bytes(transport->env, mine);
}

bool shm_ask_owner(struct shm_op *op)
{
    struct shm_send *send = weft_container_of(op, struct shm_send, op);
    struct ring_cell *cell = &op->cell;
    struct weft_remote *remote = op->done.remote;
    const struct shm_remote *mine = remote->backend;
    uint64_t at = op->copy.peer_address - (op->copy.method == SHM_COPY_MAPPED ? mine->offset : mine->address);
    uint64_t offset = op->pair->endpoint->access.allow_maps ? memory_offset(op->copy.local, op->copy.bytes)
                                                            : RING_NO_OFFSET;
    cell->inline_bytes = 0;
    cell->header_bytes = 0;
    op->copy.at = 0;
    if (op->copy.outward) {
        cell->kind = RING_PUT;
        cell->a = send->tag;
        cell->header_bytes = send->notify ? (uint16_t)send->header_bytes : 0;
        cell->body.put.op = shm_op_name(op);
        cell->body.put.bytes = op->copy.bytes;
        cell->body.put.at = at;
        cell->body.put.offset = offset;
        cell->body.put.window = op->copy.window;
        cell->body.put.generation = op->copy.window_generation;
        cell->body.put.notify = send->notify;
    } else {
        cell->kind = RING_GET;
        cell->a = shm_op_name(op);
        cell->body.get.bytes = op->copy.bytes;
        cell->body.get.at = at;
        cell->body.get.offset = op->pair->remote.abilities & SHM_MAPS ? offset : RING_NO_OFFSET;
        cell->body.get.window = op->copy.window;
        cell->body.get.generation = op->copy.window_generation;
    }
    shm_queue(op);
    return true;
}

/* Starts an access by the cheapest method: mapped, CMA, or the owner. */
static void access_start(struct shm_op *op, uint64_t at, bool outward)
{
    struct weft_remote *remote = op->done.remote;
    const struct shm_remote *mine = remote->backend;
    struct shm_pair *pair = op->pair;
    op->copy.window = mine->window;
    op->copy.window_generation = mine->generation;
    if (is_mapped(remote)) {
        shm_copy_start(op, SHM_COPY_MAPPED, mine->offset + at, outward);
    } else if (pair->state == SHM_PAIR_CONNECTED && pair->flags.read_by_cma &&
               (pair->remote.abilities & SHM_CMA)) {
        shm_copy_start(op, SHM_COPY_CMA, mine->address + at, outward);
    } else {
        op->copy.method = SHM_COPY_CMA;
        op->copy.peer_address = mine->address + at;
        op->copy.outward = outward;
        shm_ask_owner(op);
    }
}

/* Accesses mapped memory at once, without a record, if the window is open and the step has budget. False:
 * nothing was done. */
static inline bool access_now(const struct weft_remote *remote, uint64_t at, void *local, size_t bytes,
                              bool outward)
{
    const struct shm_remote *mine = remote->backend;
    struct shm_pair *pair = mine->pair;
    struct shm_endpoint *endpoint = pair->endpoint;
    if (bytes > SHM_DIRECT_BYTES || endpoint->step_bytes >= SHM_DIRECT_STEP || !is_mapped(remote))
        return false;
    if (!enter(pair, mine->window, mine->generation)) return false;
    uint8_t *to = outward ? mine->memory + at : local, *from = outward ? local : mine->memory + at;
    /* a flag or counter: one store */
    if (bytes == sizeof(uint64_t)) memcpy(to, from, sizeof(uint64_t));
    else memcpy(to, from, bytes);
    pair_leave(pair);
    endpoint->step_bytes += bytes + SHM_DIRECT_COST;
    endpoint->transport->stats.copied_bytes += bytes;
    return true;
}

/* The same, followed by a notification. */
static bool put_and_notify_now(const struct weft_remote *remote, const struct weft_put *put)
{
    void *source = (void *)(uintptr_t)put->source;
    struct shm_pair *pair = ((const struct shm_remote *)remote->backend)->pair;
    if (!shm_notification_reserve(pair, put->header_bytes)) return false;
    bool done = access_now(remote, put->offset, source, put->bytes, true);
    if (done) shm_notification_write(pair, put->tag, put->header, put->header_bytes);
    else shm_notification_cancel(pair);
    return done;
}

/* Not inlined: the fast path then needs no stack and no saved registers for it. */
__attribute__((noinline)) static enum weft_status put_recorded(struct weft_transport *transport,
                                                               struct weft_remote *remote,
                                                               const struct weft_put *put,
                                                               struct weft_completion *completion)
{
    struct shm_endpoint *endpoint = transport->backend;
    if (put->notify && put->bytes > 0 && put_and_notify_now(remote, put)) return WEFT_OK;
    if (endpoint->op_table.ops_used >= SHM_OPS_MAX) return WEFT_ERR_AGAIN;
    struct shm_send *send = shm_pool_alloc(endpoint, &endpoint->sends);
    if (!send) return WEFT_ERR_NO_MEMORY;
    struct shm_op *op = &send->op;
    shm_op_start(op, remote->peer->backend, completion, remote);
    send->notify = put->notify;
    if (put->notify) {
        send->tag = put->tag;
        send->header_bytes = put->header_bytes;
        if (put->header_bytes > 0) memcpy(send->header, put->header, put->header_bytes);
    }
    if (put->bytes == 0) {
        struct weft_message notification = {
            .tag = put->tag, .header = put->header, .header_bytes = put->header_bytes};
        shm_message_start(op, &notification);
        return WEFT_IN_PROGRESS;
    }
    op->copy.local = (uint8_t *)(uintptr_t)put->source;
    op->copy.bytes = put->bytes;
    access_start(op, put->offset, true);
    return WEFT_IN_PROGRESS;
}

enum weft_status shm_put(struct weft_transport *transport, struct weft_remote *remote,
                         const struct weft_put *put, struct weft_completion *completion)
{
    bool bare = !put->notify && put->bytes > 0;
    if (bare && access_now(remote, put->offset, (void *)(uintptr_t)put->source, put->bytes, true))
        return WEFT_OK;
    return put_recorded(transport, remote, put, completion);
}

enum weft_status shm_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                         void *destination, size_t bytes, struct weft_completion *completion)
{
    struct shm_endpoint *endpoint = transport->backend;
    if (access_now(remote, offset, destination, bytes, false)) return WEFT_OK;
    if (endpoint->op_table.ops_used >= SHM_OPS_MAX) return WEFT_ERR_AGAIN;
    struct shm_send *send = shm_pool_alloc(endpoint, &endpoint->sends);
    if (!send) return WEFT_ERR_NO_MEMORY;
    struct shm_op *op = &send->op;
    shm_op_start(op, remote->peer->backend, completion, remote);
    send->notify = false;
    op->copy.local = destination;
    op->copy.bytes = bytes;
    access_start(op, offset, false);
    return WEFT_IN_PROGRESS;
}

/* ---- puts and gets that the owner copies ---- */

/* The open window that a peer names, if the peer has the right. */
static struct shm_window *window_for(struct shm_pair *pair, uint32_t window, uint32_t generation, uint64_t at,
                                     uint64_t bytes, unsigned right)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    struct shm_window *mine = window > 0 && window <= RING_WINDOWS ? endpoint->windows[window - 1] : NULL;
    if (!mine || mine->generation != generation || mine->handle->closing) return NULL;
    const struct weft_window_options *options = &mine->handle->options;
    if (!(options->rights & right) ||
        (options->peer_id != WEFT_ANY_PEER && options->peer_id != pair->peer->id))
        return NULL;
    if (bytes == 0 || at > options->bytes || bytes > options->bytes - at) return NULL;
    return mine;
}

/* Answers a refused request. */
static bool refuse(struct shm_pair *pair, uint64_t name, enum weft_status status)
{
    struct shm_send *send = shm_pool_alloc(pair->endpoint, &pair->endpoint->sends);
    if (!send) {
        core_peer_lost(pair->endpoint->transport, pair->peer, WEFT_ERR_NO_MEMORY,
                       "no memory to answer this peer");
        return true;
    }
    shm_op_start(&send->op, pair, NULL, NULL);
    send->op.phase = SHM_AT_OWNER;
    send->op.cell.body.done.status = status;
    shm_answer(&send->op, RING_DONE, name);
    shm_op_finish(&send->op, status);
    return true;
}

bool shm_on_put(struct shm_pair *pair, const struct ring_cell *cell, const uint8_t *header)
{
    struct shm_window *window = window_for(pair, cell->body.put.window, cell->body.put.generation,
                                           cell->body.put.at, cell->body.put.bytes, WEFT_WINDOW_WRITE);
    if (!window) return refuse(pair, cell->body.put.op, WEFT_ERR_CANCELLED);
    struct shm_arrival *arrival = shm_arrival_take(pair, cell->a, header, cell->header_bytes);
    if (!arrival) return refuse(pair, cell->body.put.op, WEFT_ERR_NO_MEMORY);
    struct shm_op *op = &arrival->op;
    arrival->window = window;
    arrival->notify = cell->body.put.notify != 0;
    arrival->sender_op = cell->body.put.op;
    arrival->address = 0;
    arrival->offset = cell->body.put.offset;
    shm_op_start(op, pair, NULL, NULL);
    op->held_window = window;
    window->users++;
    op->copy.local = (uint8_t *)window->handle->options.address + cell->body.put.at;
    op->copy.bytes = cell->body.put.bytes;
    op->phase = SHM_QUEUED;
    shm_receive_start(arrival);
    return true;
}

bool shm_on_get(struct shm_pair *pair, const struct ring_cell *cell)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    struct shm_window *window = window_for(pair, cell->body.get.window, cell->body.get.generation,
                                           cell->body.get.at, cell->body.get.bytes, WEFT_WINDOW_READ);
    if (!window) return refuse(pair, cell->a, WEFT_ERR_CANCELLED);
    struct shm_send *send = shm_pool_alloc(endpoint, &endpoint->sends);
    if (!send) return refuse(pair, cell->a, WEFT_ERR_NO_MEMORY);
    struct shm_op *op = &send->op;
    shm_op_start(op, pair, NULL, NULL);
    op->phase = SHM_AT_OWNER;
    send->notify = false;
    op->held_window = window;
    window->users++;
    op->copy.local = (uint8_t *)window->handle->options.address + cell->body.get.at;
    op->copy.bytes = cell->body.get.bytes;
    op->copy.peer_op = cell->a;
    uint64_t offset = cell->body.get.offset;
    if (offset != RING_NO_OFFSET && shm_view_at(pair->mapped.view, offset, op->copy.bytes)) {
        op->copy.notify_done = true;
        shm_copy_start(op, SHM_COPY_MAPPED, offset, true);
    } else if (offset != RING_NO_OFFSET) { /* the peer expects that this side can write there */
        shm_op_finish(op, WEFT_ERR_CANCELLED);
        return false;
    } else {
        op->phase = SHM_STAGING;
        weft_list_append(&endpoint->lists.active, &op->link);
    }
    return true;
}
