/* shm_transfer.c - moves an announced payload to its receiver by the methods in shm.h.
 *
 * The receiver names a buffer and chooses the method. The copying side copies in slices from progress,
 * small payloads at once. After the last slice it reports DONE, unless the peer detects it itself
 * (pieces).
 *
 * A read of a peer's memory cannot harm the peer, but the peer may end the pair meanwhile and reuse the
 * buffer. It stores its state before the reuse, and the reader checks that state after the copy. Writes
 * are bracketed by shm_access_begin and shm_access_end for each slice. */
#include <string.h>

#include "transport/shm/shm.h"

uint8_t *shm_view_at(const struct memory_view *view, uint64_t offset, uint64_t bytes)
{
    if (!view || offset > view->bytes || bytes > view->bytes - offset) return NULL;
    return view->base + offset;
}

bool shm_is_still_valid(const struct shm_pair *pair)
{
    atomic_thread_fence(memory_order_acquire);
    return pair->state == SHM_PAIR_CONNECTED &&
           atomic_load_explicit(&pair->in.shared->writer.state, memory_order_relaxed) == RING_OPEN;
}

static void stage_ask(struct shm_arrival *arrival)
{
    struct shm_op *op = &arrival->op;
    op->phase = SHM_RECEIVING;
    op->copy.at = 0;
    op->cell.body.stage.op = shm_op_name(op);
    shm_answer(op, RING_STAGE, arrival->sender_op);
}

static void grant(struct shm_arrival *arrival, uint64_t offset)
{
    struct shm_op *op = &arrival->op;
    op->phase = SHM_GRANTED;
    op->cell.body.grant.op = shm_op_name(op);
    op->cell.body.grant.offset = offset;
    shm_answer(op, RING_GRANT, arrival->sender_op);
}

/* Ends a receive, or a put that this owner copies. notify_sender: report to the sender. */
static void receive_finish(struct shm_arrival *arrival, enum weft_status status, bool notify_sender)
{
    struct shm_op *op = &arrival->op;
    bool notify = arrival->notify && status == WEFT_OK;
    if (notify_sender) {
        op->cell.body.done.status = status;
        shm_answer(op, RING_DONE, arrival->sender_op);
    }
    if (!notify) {
        shm_op_finish(op, status);
        return;
    }
    struct shm_arrival *notification = shm_arrival_take(
        op->pair, arrival->core.handle.tag, arrival->core.handle.header, arrival->core.handle.header_bytes);
    struct shm_pair *pair = op->pair;
    shm_op_finish(op, status);
    if (notification) shm_arrival_deliver(notification);
    else
        core_peer_lost(pair->endpoint->transport, pair->peer, WEFT_ERR_NO_MEMORY,
                       "no memory for a notification of this peer");
}

void shm_receive_start(struct shm_arrival *arrival)
{
    struct shm_op *op = &arrival->op;
    struct shm_pair *pair = op->pair;
    bool cma = pair->flags.read_by_cma && (pair->remote.abilities & SHM_CMA) && arrival->address != 0;
    if (op->copy.bytes == 0) {
        receive_finish(arrival, WEFT_OK, true);
        return;
    }
    op->copy.peer_op = arrival->sender_op;
    op->copy.notify_done = true;
    if (arrival->offset != RING_NO_OFFSET &&
        shm_view_at(pair->mapped.view, arrival->offset, op->copy.bytes)) {
        shm_copy_start(op, SHM_COPY_MAPPED, arrival->offset, false);
        return;
    }
    uint64_t here = RING_NO_OFFSET;
    bool may_grant =
        !arrival->window && pair->endpoint->access.allow_maps && (pair->remote.abilities & SHM_MAPS);
    if (may_grant && (!cma || op->copy.bytes >= SHM_GRANT_MIN))
        here = memory_offset(op->copy.local, op->copy.bytes);
    if (here != RING_NO_OFFSET) grant(arrival, here);
    else if (cma && shm_split_start(arrival)) return;
    else if (cma) shm_copy_start(op, SHM_COPY_CMA, arrival->address, false);
    else stage_ask(arrival);
}

void shm_receive_finish(struct shm_arrival *arrival, enum weft_status status)
{
    receive_finish(arrival, status, true);
}

/* ---- copies by this side ---- */

/* The copy is complete or has failed: continues by the kind of operation. */
static void copy_finish(struct shm_op *op, enum weft_status status)
{
    if (op->is_arrival) {
        receive_finish(weft_container_of(op, struct shm_arrival, op), status, true);
        return;
    }
    struct shm_send *send = weft_container_of(op, struct shm_send, op);
    if (op->copy.notify_done) {
        op->cell.body.done.status = status;
        shm_answer(op, RING_DONE, op->copy.peer_op);
    }
    if (!send->notify || status < 0) {
        shm_op_finish(op, status);
        return;
    }
    struct weft_message notification = {
        .tag = send->tag, .header = send->header, .header_bytes = send->header_bytes};
    shm_message_start(op, &notification);
}

enum weft_status shm_copy_slice(struct shm_op *op, size_t bytes)
{
    struct shm_pair *pair = op->pair;
    struct weft_transport_stats *stats = &pair->endpoint->transport->stats;
    bool guarded = op->copy.outward || op->copy.window != 0;
    uint8_t *local = op->copy.local + op->copy.at;
    enum weft_status status = WEFT_OK;
    if (pair->state != SHM_PAIR_CONNECTED) return WEFT_ERR_PEER_LOST;
    if (guarded && !shm_access_begin(pair, op->copy.window, op->copy.window_generation))
        return op->copy.window ? WEFT_ERR_CANCELLED : WEFT_ERR_PEER_LOST;
    if (op->copy.method == SHM_COPY_CMA) {
        status = shm_pair_cma(pair, local, op->copy.peer_address + op->copy.at, bytes, op->copy.outward);
        stats->system_call_count++;
    } else {
        uint8_t *peer_address = pair->mapped.view->base + op->copy.peer_address + op->copy.at;
        shm_copy(op->copy.outward ? peer_address : local, op->copy.outward ? local : peer_address, bytes,
                 op->copy.stream);
    }
    if (guarded) shm_access_end(pair);
    if (status < 0) return status;
    stats->copied_bytes += bytes;
    op->copy.at += bytes;
    pair->endpoint->step_bytes += bytes;
    return !op->copy.outward && op->copy.at == op->copy.bytes && !op->split && !shm_is_still_valid(pair)
               ? WEFT_ERR_PEER_LOST
               : WEFT_OK;
}

/* CMA was permitted at connect but fails now: falls back to another method. */
static bool copy_fall_back(struct shm_op *op, enum weft_status status)
{
    if (op->copy.method != SHM_COPY_CMA || status == WEFT_ERR_PEER_LOST || status == WEFT_ERR_CANCELLED)
        return false;
    weft_list_remove(&op->link);
    if (op->is_arrival) stage_ask(weft_container_of(op, struct shm_arrival, op));
    else return shm_ask_owner(op);
    return true;
}

void shm_copy_failed(struct shm_op *op, enum weft_status status)
{
    if (copy_fall_back(op, status)) return;
    if (status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_INVALID) status = WEFT_ERR_IO;
    copy_finish(op, status);
}

/* Copies one slice. The operation then stays in the active list or is complete. */
static void copy_step(struct shm_op *op)
{
    size_t left = op->copy.bytes - op->copy.at;
    enum weft_status status = shm_copy_slice(op, left < SHM_SLICE_BYTES ? left : SHM_SLICE_BYTES);
    if (status < 0) shm_copy_failed(op, status);
    else if (op->copy.at == op->copy.bytes) copy_finish(op, WEFT_OK);
    else if (weft_list_empty(&op->link)) weft_list_append(&op->pair->endpoint->lists.active, &op->link);
}

void shm_copy_start(struct shm_op *op, enum shm_copy_method method, uint64_t peer_address, bool outward)
{
    struct shm_endpoint *endpoint = op->pair->endpoint;
    op->phase = SHM_COPYING;
    op->copy.method = method;
    op->copy.peer_address = peer_address;
    op->copy.outward = outward;
    op->copy.stream |= op->copy.bytes >= SHM_STREAM_BYTES;
    op->copy.at = 0;
    if (op->copy.bytes <= SHM_DIRECT_BYTES && endpoint->step_bytes < SHM_STEP_BYTES) copy_step(op);
    else weft_list_append(&endpoint->lists.active, &op->link);
}

/* ---- pieces out ---- */

/* Staging memory in the arena for all peers: allocated and touched at first use, then reused. */
static void staging_make(struct shm_endpoint *endpoint)
{
    endpoint->staging_area.staging_tried = true;
    void *memory;
    if (!endpoint->access.allow_maps) return;
    if (weft_memory_alloc(endpoint->transport->env, (size_t)SHM_SLOTS * SHM_SLOT_BYTES, &memory, NULL) < 0)
        return;
    endpoint->staging_area.staging_offset = memory_offset(memory, (size_t)SHM_SLOTS * SHM_SLOT_BYTES);
    if (endpoint->staging_area.staging_offset == MEMORY_NO_OFFSET)
        weft_memory_free(endpoint->transport->env, memory);
    else endpoint->staging_area.staging = memory;
}

static struct shm_slot *slot_take(struct shm_op *op)
{
    struct shm_endpoint *endpoint = op->pair->endpoint;
    if (!(op->pair->remote.abilities & SHM_MAPS) || op->copy.slots >= SHM_SLOTS_OF_OP) return NULL;
    if (!endpoint->staging_area.staging_tried) staging_make(endpoint);
    for (uint32_t i = 0; i < SHM_SLOTS && endpoint->staging_area.staging; i++) {
        if (endpoint->staging_area.slots[i].pair) continue;
        endpoint->staging_area.slots[i] = (struct shm_slot){op->pair, op, op->generation};
        return &endpoint->staging_area.slots[i];
    }
    return NULL;
}

/* Sends the next bytes of op, in a slot or behind their cell. 0: no space in either. */
static size_t piece_send(struct shm_op *op)
{
    struct shm_pair *pair = op->pair;
    struct shm_endpoint *endpoint = pair->endpoint;
    struct ring_cell cell = {.kind = RING_PIECE, .a = op->copy.peer_op};
    size_t left = op->copy.bytes - op->copy.at;
    if (!ring_writer_space(&pair->out, 0, &pair->flags.broken)) return 0;
    struct shm_slot *slot = slot_take(op);
    if (slot) {
        uint32_t number = (uint32_t)(slot - endpoint->staging_area.slots);
        size_t bytes = left < SHM_SLOT_BYTES ? left : SHM_SLOT_BYTES;
        shm_copy(endpoint->staging_area.staging + (size_t)number * SHM_SLOT_BYTES,
                 op->copy.local + op->copy.at, bytes, false);
        cell.body.piece.bytes = bytes;
        cell.body.piece.offset = endpoint->staging_area.staging_offset + (uint64_t)number * SHM_SLOT_BYTES;
        cell.body.piece.slot = number;
        op->copy.slots++;
        bool written = shm_write(pair, &cell, NULL, NULL, 0);
        WEFT_ASSERT(written);
        return bytes;
    }
    if (op->copy.slots > 0) return 0; /* a slot will be free soon */
    cell.body.piece.bytes = left < SHM_PIECE_BYTES ? left : SHM_PIECE_BYTES;
    cell.body.piece.offset = RING_NO_OFFSET;
    return shm_write(pair, &cell, NULL, op->copy.local + op->copy.at, cell.body.piece.bytes)
               ? cell.body.piece.bytes
               : 0;
}

static void stage_step(struct shm_op *op)
{
    struct shm_endpoint *endpoint = op->pair->endpoint;
    while (op->copy.at < op->copy.bytes && endpoint->step_bytes < SHM_STEP_BYTES) {
        size_t bytes = piece_send(op);
        if (bytes == 0) {
            bool broken = false;
            if (ring_writer_wait(&op->pair->out, RING_DATA_BYTES / 2, &broken) && op->copy.slots == 0)
                continue;
            weft_list_append(&endpoint->lists.stalled, &op->link);
            return;
        }
        op->copy.at += bytes;
        endpoint->step_bytes += bytes;
        endpoint->transport->stats.copied_bytes += bytes;
    }
    if (op->copy.at < op->copy.bytes) weft_list_append(&endpoint->lists.active, &op->link);
    /* a put: the owner reports when all bytes have arrived */
    else if (op->copy.window != 0) op->phase = SHM_AT_OWNER;
    else shm_op_finish(op, WEFT_OK);
}

void shm_stalled_resume(struct shm_endpoint *endpoint)
{
    while (!weft_list_empty(&endpoint->lists.stalled)) {
        struct weft_list *node = endpoint->lists.stalled.next;
        weft_list_remove(node);
        weft_list_append(&endpoint->lists.active, node);
    }
}

int shm_transfers_progress(struct shm_endpoint *endpoint, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&endpoint->lists.active) &&
           endpoint->step_bytes < SHM_STEP_BYTES) {
        struct shm_op *op = weft_list_first(&endpoint->lists.active, struct shm_op, link);
        weft_list_remove(&op->link);
        count++;
        if (op->phase == SHM_COPYING && op->split) shm_split_step(op);
        else if (op->phase == SHM_COPYING) copy_step(op);
        else stage_step(op);
    }
    return count;
}

void shm_slots_free(struct shm_endpoint *endpoint, const struct shm_pair *pair)
{
    for (uint32_t i = 0; i < SHM_SLOTS; i++) {
        if (endpoint->staging_area.slots[i].pair == pair) endpoint->staging_area.slots[i].pair = NULL;
    }
    shm_stalled_resume(endpoint);
}

/* ---- cells of the peer ---- */

static enum weft_status status_of(int32_t value)
{
    if (value == WEFT_OK) return WEFT_OK;
    return value < 0 && value > -128 ? (enum weft_status)value : WEFT_ERR_INTERNAL;
}

bool shm_on_done(struct shm_pair *pair, const struct ring_cell *cell)
{
    struct shm_op *op = shm_op_find(pair, cell->a);
    enum weft_status status = status_of(cell->body.done.status);
    if (!op || op->phase == SHM_DONE) return true; /* it failed here before the peer could know */
    if (op->split) return shm_split_on_done(op, status);
    if (op->phase == SHM_GRANTED && op->is_arrival)
        receive_finish(weft_container_of(op, struct shm_arrival, op), status, false);
    else if (op->phase == SHM_ANNOUNCED || op->phase == SHM_AT_OWNER || op->phase == SHM_GRANTED)
        shm_op_finish(op, status);
    else if ((op->phase == SHM_STAGING || op->phase == SHM_RECEIVING) && status < 0 && !op->is_arrival)
        shm_op_finish(op, status);
    else return false;
    return true;
}

bool shm_on_grant(struct shm_pair *pair, const struct ring_cell *cell)
{
    struct shm_op *op = shm_op_find(pair, cell->a);
    if (!op || op->phase != SHM_ANNOUNCED || op->is_arrival || op->copy.window != 0) return false;
    if (!shm_view_at(pair->mapped.view, cell->body.grant.offset, op->copy.bytes)) return false;
    op->copy.peer_op = cell->body.grant.op;
    op->copy.notify_done = true;
    shm_copy_start(op, SHM_COPY_MAPPED, cell->body.grant.offset, true);
    return true;
}

bool shm_on_stage(struct shm_pair *pair, const struct ring_cell *cell)
{
    struct shm_op *op = shm_op_find(pair, cell->a);
    if (!op || op->is_arrival || op->queued) return false;
    if (op->phase != SHM_ANNOUNCED && !(op->split && (op->phase == SHM_AT_OWNER || op->phase == SHM_COPYING)))
        return false;
    shm_split_end(op);
    weft_list_remove(&op->link);
    op->copy.peer_op = cell->body.stage.op;
    op->copy.at = 0;
    op->phase = SHM_STAGING;
    weft_list_append(&pair->endpoint->lists.active, &op->link);
    return true;
}

/* Whether the next bytes may still go to the target of this operation. */
static bool piece_accept(struct shm_op *op)
{
    if (!op->is_arrival) return true;
    struct shm_window *window = weft_container_of(op, struct shm_arrival, op)->window;
    return !window || !window->handle->closing;
}

bool shm_on_piece(struct shm_pair *pair, const struct ring_cell *cell, const uint8_t *data)
{
    struct shm_op *op = shm_op_find(pair, cell->a);
    uint64_t bytes = cell->body.piece.bytes;
    if (cell->body.piece.offset != RING_NO_OFFSET) {
        if (bytes > SHM_SLOT_BYTES || cell->body.piece.slot >= SHM_SLOTS) return false;
        data = shm_view_at(pair->mapped.view, cell->body.piece.offset, bytes);
        if (!data) return false;
        /* reported after this copy, by the flush */
        pair->pieces_taken |= 1u << cell->body.piece.slot;
        shm_block(pair);
    }
    if (!op || (op->phase != SHM_RECEIVING && op->phase != SHM_DONE)) return !op;
    if (op->phase == SHM_DONE) return true;
    if (bytes == 0 || bytes > op->copy.bytes - op->copy.at) return false;
    struct shm_arrival *arrival = op->is_arrival ? weft_container_of(op, struct shm_arrival, op) : NULL;
    if (!piece_accept(op)) {
        receive_finish(arrival, WEFT_ERR_CANCELLED, true);
        return true;
    }
    shm_copy(op->copy.local + op->copy.at, data, bytes, false);
    if (shm_access_begin(pair, 0, 0)) { /* after the end of the pair a slot belongs to the peer */
        weft_claim_lines(data, bytes);
        shm_access_end(pair);
    }
    if (!shm_is_still_valid(pair)) return true; /* the pair is about to end, and this operation with it */
    op->copy.at += bytes;
    pair->endpoint->step_bytes += bytes;
    pair->endpoint->transport->stats.copied_bytes += bytes;
    if (op->copy.at < op->copy.bytes) return true;
    if (arrival) receive_finish(arrival, WEFT_OK, arrival->window != NULL);
    else shm_op_finish(op, WEFT_OK);
    return true;
}

bool shm_on_piece_taken(struct shm_pair *pair, const struct ring_cell *cell)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    for (uint32_t i = 0; i < SHM_SLOTS; i++) {
        struct shm_slot *slot = &endpoint->staging_area.slots[i];
        if (!(cell->a >> i & 1)) continue;
        if (slot->pair != pair) return false;
        if (slot->op->generation == slot->op_generation && slot->op->copy.slots > 0) slot->op->copy.slots--;
        slot->pair = NULL;
    }
    shm_stalled_resume(endpoint);
    return true;
}
