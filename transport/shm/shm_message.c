/* shm_message.c - messages as cells: send, receive, accept, discard.
 *
 * A message is written to the ring (inline in its cell, or eager behind it) or announced. The receiver
 * keeps unexpected eager messages, at most endpoint->credit_bytes per peer. The sender counts and announces
 * what exceeds the credit, so no message is refused and memory is bounded.
 *
 * Cells without space wait in their pair: messages in order, answers before them. An operation whose
 * answer waits is complete for its caller but not recycled. */
#include <stdio.h>
#include <string.h>

#include "transport/shm/shm.h"

/* ---- operations ---- */

void shm_op_start(struct shm_op *op, struct shm_pair *pair, struct weft_completion *completion,
                  struct weft_remote *remote)
{
    op->done = (struct core_done){
        .peer = pair->peer, .completion = completion, .remote = remote, .recycle = shm_op_recycle};
    op->pair = pair;
    op->has_user = completion != NULL;
    op->delivered = op->queued = false;
    op->held_window = NULL;
    op->copy.outward = op->copy.stream = op->copy.notify_done = false;
    op->copy.at = 0;
    op->copy.window = 0;
    op->copy.slots = 0;
    op->split = 0;
    op->payload = NULL;
    weft_list_append(&pair->ops, &op->of_pair);
}

static void op_release(struct shm_op *op)
{
    if (op->is_arrival) shm_arrival_release(weft_container_of(op, struct shm_arrival, op));
    else shm_pool_release(op->pair->endpoint, op);
}

void shm_op_recycle(struct weft_transport *transport, struct core_done *done)
{
    struct shm_op *op = weft_container_of(done, struct shm_op, done);
    op->delivered = true;
    if (!op->queued) op_release(op);
}

void shm_op_finish(struct shm_op *op, enum weft_status status)
{
    WEFT_ASSERT(op->phase != SHM_DONE && op->phase != SHM_FREE);
    op->phase = SHM_DONE;
    weft_list_remove(&op->of_pair);
    if (!op->queued) weft_list_remove(&op->link);
    shm_split_end(op);
    if (op->held_window) {
        WEFT_ASSERT(op->held_window->users > 0);
        op->held_window->users--;
        op->held_window = NULL;
    }
    if (op->has_user) core_finish(op->pair->endpoint->transport, &op->done, status);
    else if (!op->queued) op_release(op);
}

/* ---- cells out ---- */

/* Bytes behind the cell; SIZE_MAX: impossible. Used by both ends. */
static size_t data_bytes_of(const struct ring_cell *cell)
{
    if (cell->header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX) return SIZE_MAX;
    switch (cell->kind) {
    case RING_INLINE:
        return cell->header_bytes + (size_t)cell->inline_bytes <= RING_BODY_BYTES ? 0 : SIZE_MAX;
    case RING_EAGER:
        if (cell->body.eager.bytes > SHM_EAGER_MAX) return SIZE_MAX;
        return ring_align(cell->header_bytes) + cell->body.eager.bytes;
    case RING_ANNOUNCE:
    case RING_PUT: return cell->header_bytes;
    case RING_PIECE:
        if (cell->body.piece.offset != RING_NO_OFFSET) return 0;
        return cell->body.piece.bytes <= SHM_PIECE_BYTES ? cell->body.piece.bytes : SIZE_MAX;
    default: return 0;
    }
}

bool shm_write(struct shm_pair *pair, struct ring_cell *cell, const void *header, const void *payload,
               size_t payload_bytes)
{
    size_t data_bytes = data_bytes_of(cell);
    WEFT_ASSERT(data_bytes != SIZE_MAX);
    if (!ring_writer_space(&pair->out, data_bytes, &pair->flags.broken)) return false;
    if (data_bytes > 0) {
        uint8_t *data = ring_writer_data(&pair->out, data_bytes);
        if (cell->header_bytes > 0) memcpy(data, header, cell->header_bytes);
        if (payload_bytes > 0) memcpy(data + ring_align(cell->header_bytes), payload, payload_bytes);
    }
    struct ring_cell *shared = ring_writer_cell(&pair->out);
    memcpy((uint8_t *)shared + sizeof shared->seq, (const uint8_t *)cell + sizeof cell->seq,
           sizeof *cell - sizeof cell->seq);
    ring_writer_publish(&pair->out);
    shm_notify_reader(pair);
    return true;
}

void shm_block(struct shm_pair *pair)
{
    if (weft_list_empty(&pair->links.blocked))
        weft_list_append(&pair->endpoint->lists.blocked, &pair->links.blocked);
}

/* Writes the cell of a message or put, and the bytes behind it. */
static bool write_message(struct shm_op *op)
{
    struct shm_send *send = weft_container_of(op, struct shm_send, op);
    bool eager = op->cell.kind == RING_EAGER;
    if (!shm_write(op->pair, &op->cell, send->header, op->payload, eager ? op->cell.body.eager.bytes : 0))
        return false;
    if (eager) op->pair->endpoint->transport->stats.copied_bytes += op->cell.body.eager.bytes;
    if (eager || op->cell.kind == RING_INLINE) shm_op_finish(op, WEFT_OK);
    else if (op->cell.kind != RING_GET) op->phase = SHM_ANNOUNCED;
    else op->phase = op->cell.body.get.offset != RING_NO_OFFSET ? SHM_GRANTED : SHM_RECEIVING;
    return true;
}

void shm_queue(struct shm_op *op)
{
    struct shm_pair *pair = op->pair;
    op->phase = SHM_QUEUED;
    if (pair->state == SHM_PAIR_CONNECTED && weft_list_empty(&pair->queue) && write_message(op)) return;
    weft_list_append(&pair->queue, &op->link);
    shm_block(pair);
}

void shm_answer(struct shm_op *op, enum ring_kind kind, uint64_t a)
{
    struct shm_pair *pair = op->pair;
    op->cell.kind = (uint8_t)kind;
    op->cell.inline_bytes = 0;
    op->cell.header_bytes = 0;
    op->cell.a = a;
    if (pair->state != SHM_PAIR_CONNECTED) return; /* the peer does not read any more */
    if (weft_list_empty(&pair->answers) && shm_write(pair, &op->cell, NULL, NULL, 0)) return;
    op->queued = true;
    weft_list_remove(&op->link);
    weft_list_append(&pair->answers, &op->link);
    shm_block(pair);
}

static bool write_answer(struct shm_op *op)
{
    if (!shm_write(op->pair, &op->cell, NULL, NULL, 0)) return false;
    weft_list_remove(&op->link);
    op->queued = false;
    if (op->phase == SHM_DONE && (!op->has_user || op->delivered)) op_release(op);
    return true;
}

static bool write_taken(struct shm_pair *pair)
{
    struct ring_cell cell = {.kind = RING_PIECE_TAKEN, .a = pair->pieces_taken};
    if (!shm_write(pair, &cell, NULL, NULL, 0)) return false;
    pair->pieces_taken = 0;
    return true;
}

/* Writes waiting cells while there is space; else requests a report of space. */
void shm_pair_flush(struct shm_pair *pair)
{
    if (pair->state != SHM_PAIR_CONNECTED) return;
    bool more = true;
    while (more && !pair->flags.broken) {
        more = true;
        if (pair->pieces_taken) more = write_taken(pair);
        else if (!weft_list_empty(&pair->answers))
            more = write_answer(weft_list_first(&pair->answers, struct shm_op, link));
        else if (!weft_list_empty(&pair->queue)) {
            struct shm_op *op = weft_list_first(&pair->queue, struct shm_op, link);
            weft_list_remove(&op->link);
            more = write_message(op);
            if (!more) weft_list_insert_before(pair->queue.next, &op->link);
        } else {
            weft_list_remove(&pair->links.blocked);
            return;
        }
        if (!more) more = ring_writer_wait(&pair->out, RING_DATA_BYTES / 2, &pair->flags.broken);
    }
}

/* ---- send ---- */

/* Takes credit for one eager message. False: too much waits at the peer. */
static bool credit_take(struct shm_pair *pair, size_t cost)
{
    if (pair->credit.used + cost - pair->out.credit_taken > pair->credit.max) {
        if (pair->state != SHM_PAIR_CONNECTED) return false;
        uint64_t taken = atomic_load_explicit(&pair->out.shared->reader.credit_taken, memory_order_relaxed);
        if (taken < pair->out.credit_taken || taken > pair->credit.used) {
            pair->flags.broken = true;
            return false;
        }
        pair->out.credit_taken = taken;
        if (pair->credit.used + cost - taken > pair->credit.max) return false;
    }
    pair->credit.used += cost;
    return true;
}

static bool is_eager(struct shm_pair *pair, const struct weft_message *message, uint64_t offset)
{
    size_t limit = pair->endpoint->transport->eager_bytes_max;
    if (message->payload_bytes > (limit < SHM_EAGER_MAX ? limit : SHM_EAGER_MAX)) return false;
    if (message->payload_bytes > SHM_MAPPED_MIN && offset != RING_NO_OFFSET &&
        (pair->remote.abilities & SHM_MAPS))
        return false;
    return credit_take(pair, message->payload_bytes + SHM_MESSAGE_COST);
}

/* The cell that carries or announces `message`. */
static void message_cell(struct shm_op *op, const struct weft_message *message)
{
    struct ring_cell *cell = &op->cell;
    size_t bytes = message->payload_bytes;
    uint64_t offset = RING_NO_OFFSET;
    if (bytes > SHM_MAPPED_MIN && op->pair->endpoint->access.allow_maps)
        offset = memory_offset(message->payload, bytes);
    cell->a = message->tag;
    cell->inline_bytes = 0;
    cell->header_bytes = (uint16_t)message->header_bytes;
    if (!is_eager(op->pair, message, offset)) {
        cell->kind = RING_ANNOUNCE;
        cell->body.announce.op = shm_op_name(op);
        cell->body.announce.bytes = bytes;
        cell->body.announce.address = (uintptr_t)message->payload;
        cell->body.announce.offset = offset;
    } else if (message->header_bytes + bytes <= RING_BODY_BYTES) {
        cell->kind = RING_INLINE;
        cell->inline_bytes = (uint8_t)bytes;
        if (message->header_bytes > 0) memcpy(cell->body.bytes, message->header, message->header_bytes);
        if (bytes > 0) memcpy(cell->body.bytes + message->header_bytes, message->payload, bytes);
    } else {
        cell->kind = RING_EAGER;
        cell->body.eager.bytes = bytes;
    }
}

void shm_message_start(struct shm_op *op, const struct weft_message *message)
{
    struct shm_send *send = weft_container_of(op, struct shm_send, op);
    op->payload = message->payload;
    op->copy.local = (uint8_t *)(uintptr_t)message->payload;
    op->copy.bytes = message->payload_bytes;
    if (message->header_bytes > 0 && message->header != send->header)
        memcpy(send->header, message->header, message->header_bytes);
    message_cell(op, message);
    shm_queue(op);
}

bool shm_notification_reserve(struct shm_pair *pair, size_t header_bytes)
{
    return pair->state == SHM_PAIR_CONNECTED && header_bytes <= RING_BODY_BYTES &&
           weft_list_empty(&pair->queue) && ring_writer_space(&pair->out, 0, &pair->flags.broken) &&
           credit_take(pair, SHM_MESSAGE_COST);
}

void shm_notification_write(struct shm_pair *pair, uint64_t tag, const void *header, size_t header_bytes)
{
    struct ring_cell cell = {.kind = RING_INLINE, .header_bytes = (uint16_t)header_bytes, .a = tag};
    if (header_bytes > 0) memcpy(cell.body.bytes, header, header_bytes);
    bool written = shm_write(pair, &cell, header, NULL, 0);
    WEFT_ASSERT(written);
}

void shm_notification_cancel(struct shm_pair *pair) { pair->credit.used -= SHM_MESSAGE_COST; }

/* Writes the message in place if it fits into a cell and nothing waits before it. Only the completion
 * remains. */
static bool send_inline(struct shm_pair *pair, const struct weft_message *message)
{
    uint32_t header_bytes = message->header_bytes;
    size_t bytes = message->payload_bytes;
    if (header_bytes + bytes > RING_BODY_BYTES || bytes > pair->endpoint->transport->eager_bytes_max)
        return false;
    if (pair->state != SHM_PAIR_CONNECTED || !weft_list_empty(&pair->queue)) return false;
    if (!ring_writer_has_cell(&pair->out) && !ring_writer_space(&pair->out, 0, &pair->flags.broken))
        return false;
    if (!credit_take(pair, bytes + SHM_MESSAGE_COST)) return false;
    struct ring_cell *cell = ring_writer_cell(&pair->out);
    cell->kind = RING_INLINE;
    cell->inline_bytes = (uint8_t)bytes;
    cell->header_bytes = (uint16_t)header_bytes;
    cell->a = message->tag;
    if (header_bytes > 0) memcpy(cell->body.bytes, message->header, header_bytes);
    /* inline */
    if (bytes == sizeof(uint64_t))
        memcpy(cell->body.bytes + header_bytes, message->payload, sizeof(uint64_t));
    else if (bytes > 0) memcpy(cell->body.bytes + header_bytes, message->payload, bytes);
    ring_writer_publish(&pair->out);
    shm_notify_reader(pair);
    return true;
}

enum weft_status shm_send(struct weft_transport *transport, struct weft_peer *peer,
                          const struct weft_message *message, struct weft_completion *completion)
{
    struct shm_endpoint *endpoint = transport->backend;
    if (endpoint->op_table.ops_used >= SHM_OPS_MAX) return WEFT_ERR_AGAIN;
    if (!shm_pool_has(endpoint, &endpoint->sends)) return WEFT_ERR_NO_MEMORY;
    bool over = send_inline(peer->backend, message); /* first of all: the peer can read from here on */
    struct shm_send *send = shm_pool_alloc(endpoint, &endpoint->sends);
    if (over) {
        send->op.done = (struct core_done){.peer = peer, .completion = completion, .recycle = shm_op_recycle};
        send->op.pair = peer->backend;
        send->op.phase = SHM_DONE;
        send->op.has_user = true;
        send->op.delivered = send->op.queued = false;
        core_finish(transport, &send->op.done, WEFT_OK);
        return WEFT_IN_PROGRESS;
    }
    shm_op_start(&send->op, peer->backend, completion, NULL);
    shm_message_start(&send->op, message);
    return WEFT_IN_PROGRESS;
}

/* ---- arrivals ---- */

struct shm_arrival *shm_arrival_take(struct shm_pair *pair, uint64_t tag, const uint8_t *header,
                                     uint32_t header_bytes)
{
    struct shm_arrival *arrival = shm_pool_alloc(pair->endpoint, &pair->endpoint->arrivals);
    if (!arrival) return NULL;
    struct weft_arrival *handle = &arrival->core.handle;
    handle->peer_id = pair->peer->id;
    handle->tag = tag;
    handle->header_bytes = header_bytes;
    handle->payload_bytes = 0;
    if (header_bytes > 0) memcpy(handle->header, header, header_bytes);
    arrival->core.is_complete = true;
    arrival->announced = arrival->notify = false;
    arrival->window = NULL;
    arrival->cost = 0;
    arrival->payload = NULL;
    arrival->kept = NULL;
    arrival->peeked = NULL;
    arrival->op.pair = pair;
    arrival->op.phase = SHM_ARRIVED;
    arrival->op.queued = arrival->op.has_user = arrival->op.delivered = false;
    arrival->op.held_window = NULL;
    arrival->op.copy.window = 0;
    weft_list_init(&arrival->op.link);
    weft_list_init(&arrival->op.of_pair);
    return arrival;
}

/* The message was consumed: returns its credit. The sender reads the counter when it has none left. */
static void credit_give(struct shm_arrival *arrival)
{
    struct shm_pair *pair = arrival->op.pair;
    pair->credit.kept -= arrival->cost;
    pair->credit.given += arrival->cost;
    arrival->cost = 0;
    if (pair->in.shared)
        atomic_store_explicit(&pair->in.shared->reader.credit_taken, pair->credit.given,
                              memory_order_relaxed);
}

void shm_arrival_release(struct shm_arrival *arrival)
{
    struct shm_endpoint *endpoint = arrival->op.pair->endpoint;
    if (arrival->cost > 0) credit_give(arrival);
    weft_free_bytes(endpoint->transport->env, arrival->kept);
    arrival->kept = NULL;
    memory_view_unref(arrival->peeked);
    arrival->peeked = NULL;
    shm_pool_release(endpoint, &arrival->op);
}

/* No receive yet: moves the payload out of the ring. */
static void arrival_keep(struct shm_arrival *arrival)
{
    struct shm_pair *pair = arrival->op.pair;
    size_t bytes = arrival->core.handle.payload_bytes;
    if (bytes == 0) return;
    arrival->kept = weft_alloc_bytes(pair->endpoint->transport->env, bytes);
    if (!arrival->kept) {
        core_peer_lost(pair->endpoint->transport, pair->peer, WEFT_ERR_NO_MEMORY,
                       "no memory to keep a message of this peer");
        return;
    }
    memcpy(arrival->kept, arrival->payload, bytes);
    arrival->payload = arrival->kept;
    pair->endpoint->transport->stats.copied_bytes += bytes;
}

void shm_arrival_deliver(struct shm_arrival *arrival)
{
    struct shm_pair *pair = arrival->op.pair;
    pair->current = arrival;
    core_arrived(pair->endpoint->transport, &arrival->core);
    bool is_waiting = pair->current == arrival;
    pair->current = NULL;
    if (is_waiting && pair->state == SHM_PAIR_CONNECTED && !arrival->announced) arrival_keep(arrival);
}

enum weft_status shm_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                            struct weft_completion *completion)
{
    struct shm_arrival *arrival = weft_container_of(handle, struct shm_arrival, core.handle);
    struct shm_pair *pair = arrival->op.pair;
    if (pair->current == arrival) pair->current = NULL;
    shm_op_start(&arrival->op, pair, completion, NULL);
    arrival->op.copy.local = buffer;
    arrival->op.copy.bytes = handle->payload_bytes;
    arrival->op.copy.stream = handle->is_streamed;
    arrival->op.phase = SHM_QUEUED;
    if (arrival->announced) {
        shm_receive_start(arrival);
        return WEFT_IN_PROGRESS;
    }
    if (handle->payload_bytes > 0) {
        memcpy(buffer, arrival->payload, handle->payload_bytes);
        if (!arrival->kept) weft_claim_lines(arrival->payload, handle->payload_bytes);
        transport->stats.copied_bytes += handle->payload_bytes;
    }
    credit_give(arrival);
    shm_op_finish(&arrival->op, WEFT_OK);
    return WEFT_IN_PROGRESS;
}

void shm_discard(struct weft_transport *transport, struct weft_arrival *handle)
{
    struct shm_arrival *arrival = weft_container_of(handle, struct shm_arrival, core.handle);
    struct shm_pair *pair = arrival->op.pair;
    if (pair->current == arrival) pair->current = NULL;
    arrival->op.phase = SHM_DONE;
    if (arrival->announced) {
        arrival->op.cell.body.done.status = WEFT_OK;
        shm_answer(&arrival->op, RING_DONE, arrival->sender_op);
    }
    if (!arrival->op.queued) shm_arrival_release(arrival);
}

/* The reference keeps the mapping beyond the end of the pair, for readers on other threads. */
const void *shm_peek(struct weft_transport *transport, struct weft_arrival *handle)
{
    struct shm_arrival *arrival = weft_container_of(handle, struct shm_arrival, core.handle);
    struct memory_view *view = arrival->op.pair->mapped.view;
    if (!arrival->announced || arrival->offset == RING_NO_OFFSET) return NULL;
    const void *payload = shm_view_at(view, arrival->offset, handle->payload_bytes);
    if (payload && !arrival->peeked) memory_view_ref(arrival->peeked = view);
    return payload;
}

bool shm_peek_is_valid(struct weft_transport *transport, const struct weft_arrival *handle)
{
    return shm_is_still_valid(weft_container_of(handle, struct shm_arrival, core.handle)->op.pair);
}

/* ---- cells in ---- */

static bool on_message(struct shm_pair *pair, const struct ring_cell *cell, const uint8_t *data)
{
    const uint8_t *header = cell->kind == RING_INLINE ? cell->body.bytes : data;
    struct shm_arrival *arrival = shm_arrival_take(pair, cell->a, header, cell->header_bytes);
    if (!arrival) {
        core_peer_lost(pair->endpoint->transport, pair->peer, WEFT_ERR_NO_MEMORY,
                       "no memory for a message of this peer");
        return true;
    }
    struct weft_arrival *handle = &arrival->core.handle;
    if (cell->kind == RING_ANNOUNCE) {
        arrival->announced = true;
        arrival->core.is_complete = false;
        handle->payload_bytes = cell->body.announce.bytes;
        arrival->sender_op = cell->body.announce.op;
        arrival->address = cell->body.announce.address;
        arrival->offset = cell->body.announce.offset;
    } else if (cell->kind == RING_INLINE) {
        handle->payload_bytes = cell->inline_bytes;
        arrival->payload = cell->body.bytes + cell->header_bytes;
    } else {
        handle->payload_bytes = cell->body.eager.bytes;
        arrival->payload = data + ring_align(cell->header_bytes);
    }
    if (!arrival->announced) arrival->cost = (uint32_t)handle->payload_bytes + SHM_MESSAGE_COST;
    pair->credit.kept += arrival->cost;
    bool fair = pair->credit.kept <= pair->endpoint->credit_bytes; /* false: it sent more than its credit */
    if (fair) shm_arrival_deliver(arrival);
    else shm_arrival_release(arrival);
    return fair;
}

static bool on_hello(struct shm_pair *pair, const struct ring_cell *cell)
{
    if (pair->flags.answered) return false;
    pair->flags.answered = true;
    pair->remote.abilities = (uint32_t)cell->a & (SHM_MAPS | SHM_CMA);
    const uint64_t credit = cell->a >> 32; /* UNTRUSTED */
    if (credit > SHM_CREDIT_FIRST) pair->credit.max = credit < SHM_CREDIT_BYTES ? credit : SHM_CREDIT_BYTES;
    return true;
}

/* Handles one cell. False: the peer breaks the protocol. */
static bool dispatch(struct shm_pair *pair, const struct ring_cell *cell, const uint8_t *data)
{
    if (!pair->flags.answered && cell->kind != RING_HELLO) return false;
    switch (cell->kind) {
    case RING_HELLO: return on_hello(pair, cell);
    case RING_INLINE:
    case RING_EAGER:
    case RING_ANNOUNCE: return on_message(pair, cell, data);
    case RING_PUT: return shm_on_put(pair, cell, data);
    case RING_GET: return shm_on_get(pair, cell);
    case RING_DONE: return shm_on_done(pair, cell);
    case RING_GRANT: return shm_on_grant(pair, cell);
    case RING_STAGE: return shm_on_stage(pair, cell);
    case RING_SPLIT: return shm_on_split(pair, cell);
    case RING_PIECE: return shm_on_piece(pair, cell, data);
    case RING_PIECE_TAKEN: return shm_on_piece_taken(pair, cell);
    default: return false;
    }
}

/* An inline message for a posted receive: copies from the ring into the user's buffer, without a record.
 * Size and place are loaded once. If the writer changes the contents meanwhile, only its own message is
 * affected. */
static bool receive_inline(struct shm_pair *pair)
{
    const struct ring_cell *cell = &pair->in.shared->cells[pair->in.at];
    struct ring_head head = ring_reader_head(&pair->in);
    const uint8_t *header = cell->body.bytes, *payload = header + head.header_bytes;
    uint64_t tag = *(const volatile uint64_t *)&cell->a;
    size_t bytes = head.inline_bytes, data_bytes = 0;
    if (head.kind == RING_EAGER) {
        bytes = *(const volatile uint64_t *)&cell->body.eager.bytes;
        if (bytes > SHM_EAGER_MAX || head.header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX) return false;
        data_bytes = ring_align(head.header_bytes) + bytes;
        header = ring_reader_data(&pair->in, data_bytes);
        if (!header) return false;
        payload = header + ring_align(head.header_bytes);
    } else if (head.kind != RING_INLINE || head.header_bytes + bytes > RING_BODY_BYTES) {
        return false;
    }
    struct weft_transport *transport = pair->endpoint->transport;
    if (!pair->flags.answered ||
        !core_arrived_complete(transport, pair->peer, tag, header, head.header_bytes, payload, bytes))
        return false;
    transport->stats.copied_bytes += bytes;
    pair->credit.given += bytes + SHM_MESSAGE_COST;
    atomic_store_explicit(&pair->in.shared->reader.credit_taken, pair->credit.given, memory_order_relaxed);
    ring_reader_next(&pair->in, data_bytes);
    return true;
}

int shm_pair_poll(struct shm_pair *pair, int budget)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    int count = 0;
    while (count < budget && pair->state == SHM_PAIR_CONNECTED && endpoint->step_bytes < SHM_STEP_BYTES &&
           ring_reader_ready(&pair->in)) {
        if (receive_inline(pair)) {
            count++;
            if (ring_reader_should_report(&pair->in) && ring_reader_report(&pair->in))
                shm_doorbell_ring(pair);
            continue;
        }
        struct ring_cell cell;
        ring_reader_copy(&pair->in, &cell);
        size_t data_bytes = data_bytes_of(&cell);
        const uint8_t *data = data_bytes == SIZE_MAX ? NULL : ring_reader_data(&pair->in, data_bytes);
        count++;
        if (!data || !dispatch(pair, &cell, data)) {
            shm_pair_broken(pair, "the data that it wrote into shared memory are invalid");
            return count;
        }
        if (pair->state != SHM_PAIR_CONNECTED) return count; /* the cell ended the pair */
        ring_reader_next(&pair->in, data_bytes);
        if (ring_reader_should_report(&pair->in) && ring_reader_report(&pair->in)) shm_doorbell_ring(pair);
    }
    return count;
}
