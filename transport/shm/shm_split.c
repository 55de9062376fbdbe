/* shm_split.c - a large CMA payload, copied by both sides at once.
 *
 * CMA walks page tables for every page, so two processors copy nearly twice as fast as one. The receiver
 * sends the address of its buffer (SPLIT) and reads chunks from the front. The sender, when it progresses,
 * writes chunks from the back. Both claim chunks by compare-and-swap in one word of the ring:
 *
 *   epoch (32 bits) | chunks claimed from the front, by the receiver (16) | from the back, by the sender (16)
 *
 *   receiver                                   sender
 *   SPLIT            ───────────────────►
 *   claims and reads until none is left        claims and writes until none is left
 *   the sender claimed some? waits   ◄───      DONE, if it claimed any
 *   DONE             ───────────────────►      complete
 *
 * The receiver waits for claimed chunks only: a sender that computes delays nothing, and a sleeping one is
 * not asked. The sender writes between shm_access_begin and shm_access_end, as after a GRANT. The receiver
 * reads chunks that the sender failed to write. If the receiver cannot read, the whole payload is staged.
 *
 * Each side counts its own claims: where it copies does not depend on what the peer stores in the word. */
#include "transport/shm/shm.h"

enum { CHUNK_MIN = 32 << 10, CHUNK_MAX = 128 << 10, CHUNKS_MAX = 0x7fff, PAGE_BYTES = 4096 };

static uint64_t chunks_of(const struct shm_op *op)
{
    return (op->copy.bytes + op->chunk - 1) / op->chunk;
}

static uint64_t chunk_for(size_t bytes)
{
    uint64_t chunk = bytes / 4, least = bytes / CHUNKS_MAX + 1;
    chunk = chunk < CHUNK_MIN ? CHUNK_MIN : chunk > CHUNK_MAX ? CHUNK_MAX : chunk;
    if (chunk < least) chunk = least;
    return (chunk + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
}

static _Atomic uint64_t *word_of(struct ring_shared *shared, uint32_t slot)
{
    const uint32_t lines = RING_SPLITS / 8;
    return &shared->splits[slot % lines].taken[slot / lines];
}

/* Claims one more chunk for this side. */
static bool take(struct shm_op *op)
{
    _Atomic uint64_t *word =
        word_of(op->is_arrival ? op->pair->in.shared : op->pair->out.shared, op->split - 1);
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    do {
        uint64_t front = seen >> 16 & 0xffff, back = seen & 0xffff;
        if (seen >> 32 != op->split_epoch || front + back >= chunks_of(op)) return false;
        if ((op->is_arrival ? front : back) != op->taken) return false;
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, seen + (op->is_arrival ? 1u << 16 : 1u),
                                                    memory_order_acq_rel, memory_order_relaxed));
    op->copy.at = (op->is_arrival ? op->taken : chunks_of(op) - 1 - op->taken) * op->chunk;
    op->taken++;
    return true;
}

void shm_split_end(struct shm_op *op)
{
    if (op->split && op->is_arrival) op->pair->splits &= ~(1u << (op->split - 1));
    op->split = 0;
}

/* Receiver: no side copies any more. */
static void finish_if_done(struct shm_op *op)
{
    struct shm_arrival *arrival = weft_container_of(op, struct shm_arrival, op);
    uint64_t mine = op->taken * op->chunk;
    shm_split_end(op);
    if (op->split_status < 0) {
        shm_copy_failed(op, op->split_status);
    } else if (op->split_reported && op->split_peer_status < 0 && mine < op->copy.bytes) {
        op->copy.at = mine; /* the rest, without the sender */
        op->phase = SHM_COPYING;
        weft_list_append(&op->pair->endpoint->lists.active, &op->link);
    } else {
        shm_receive_finish(arrival, shm_is_still_valid(op->pair) ? WEFT_OK : WEFT_ERR_PEER_LOST);
    }
}

/* No chunk is left to claim. */
static void taken_all(struct shm_op *op)
{
    if (op->is_arrival) {
        if (op->split_reported || op->taken == chunks_of(op)) finish_if_done(op);
        else op->phase = SHM_GRANTED; /* the sender still writes; its DONE follows */
        return;
    }
    op->phase = SHM_AT_OWNER;
    if (op->taken == 0) return;
    op->cell.body.done.status = op->split_status;
    shm_answer(op, RING_DONE, op->copy.peer_op);
}

void shm_split_step(struct shm_op *op)
{
    struct shm_endpoint *endpoint = op->pair->endpoint;
    for (size_t moved = 0; moved < SHM_SLICE_BYTES && endpoint->step_bytes < SHM_STEP_BYTES;
         moved += op->chunk) {
        bool gives_up = op->split_status < 0 && !op->is_arrival; /* the receiver copies the rest */
        if (gives_up || !take(op)) {
            taken_all(op);
            return;
        }
        /* the receiver has failed: it claims the rest so that the sender stops */
        if (op->split_status < 0) continue;
        uint64_t left = op->copy.bytes - op->copy.at;
        op->split_status = shm_copy_slice(op, left < op->chunk ? left : op->chunk);
    }
    weft_list_append(&endpoint->lists.active, &op->link);
}

static void begin(struct shm_op *op, uint32_t slot, uint32_t epoch, uint64_t chunk, uint64_t peer_address)
{
    op->split = slot + 1;
    op->split_epoch = epoch;
    op->chunk = chunk;
    op->taken = 0;
    op->split_reported = false;
    op->split_status = op->split_peer_status = WEFT_OK;
    op->phase = SHM_COPYING;
    op->copy.method = SHM_COPY_CMA;
    op->copy.peer_address = peer_address;
    op->copy.outward = !op->is_arrival;
    op->copy.stream = false;
}

static void split_start(struct shm_op *op)
{
    struct shm_endpoint *endpoint = op->pair->endpoint;
    if (op->copy.bytes <= SHM_DIRECT_BYTES && endpoint->step_bytes < SHM_STEP_BYTES) shm_split_step(op);
    else weft_list_append(&endpoint->lists.active, &op->link);
}

/* Whether the peer has a payload of ours to read, so that both processors copy already. Checks the last
 * few operations only. */
static bool peer_can_read(const struct shm_pair *pair)
{
    const struct weft_list *node = pair->ops.prev;
    for (int steps = 0; steps < 8 && node != &pair->ops; steps++, node = node->prev) {
        const struct shm_op *op = weft_container_of(node, struct shm_op, of_pair);
        if (!op->is_arrival && (op->phase == SHM_ANNOUNCED || op->phase == SHM_AT_OWNER) &&
            op->copy.bytes >= SHM_SPLIT_MIN)
            return true;
    }
    return false;
}

bool shm_split_start(struct shm_arrival *arrival)
{
    struct shm_op *op = &arrival->op;
    struct shm_pair *pair = op->pair;
    uint32_t slot = 0;
    while (slot < RING_SPLITS && (pair->splits >> slot & 1)) slot++;
    if (!pair->endpoint->access.allow_split || pair->state != SHM_PAIR_CONNECTED || pair->flags.self ||
        arrival->window)
        return false;
    if (op->copy.bytes < SHM_SPLIT_MIN || slot == RING_SPLITS || peer_can_read(pair)) return false;
    if (atomic_load_explicit(&pair->mapped.doorbells->sleeping, memory_order_relaxed)) return false;
    struct ring_cell cell = {.kind = RING_SPLIT, .a = arrival->sender_op};
    uint64_t chunk = chunk_for(op->copy.bytes);
    cell.body.split.op = shm_op_name(op);
    cell.body.split.address = (uintptr_t)op->copy.local;
    cell.body.split.chunk = chunk;
    cell.body.split.slot = slot;
    cell.body.split.epoch = ++pair->split_epoch;
    atomic_store_explicit(word_of(pair->in.shared, slot), (uint64_t)cell.body.split.epoch << 32,
                          memory_order_relaxed);
    if (!shm_write(pair, &cell, NULL, NULL, 0)) return false;
    pair->splits |= 1u << slot;
    begin(op, slot, cell.body.split.epoch, chunk, arrival->address);
    split_start(op);
    return true;
}

bool shm_on_split(struct shm_pair *pair, const struct ring_cell *cell)
{
    struct shm_op *op = shm_op_find(pair, cell->a);
    uint64_t chunk = cell->body.split.chunk;
    if (!op || op->phase != SHM_ANNOUNCED || op->is_arrival || op->copy.window != 0) return false;
    if (cell->body.split.slot >= RING_SPLITS || chunk < PAGE_BYTES || chunk > op->copy.bytes ||
        op->copy.bytes / chunk >= CHUNKS_MAX * 2)
        return false;
    op->copy.peer_op = cell->body.split.op;
    begin(op, cell->body.split.slot, cell->body.split.epoch, chunk, cell->body.split.address);
    if (pair->flags.read_by_cma) split_start(op);
    else op->phase = SHM_AT_OWNER;
    return true;
}

bool shm_split_on_done(struct shm_op *op, enum weft_status status)
{
    if (!op->is_arrival) {
        if (op->phase != SHM_COPYING && op->phase != SHM_AT_OWNER) return false;
        shm_op_finish(op, status); /* the sender may have copied nothing */
        return true;
    }
    if (op->split_reported) return false;
    op->split_reported = true;
    op->split_peer_status = status;
    if (op->phase == SHM_GRANTED) finish_if_done(op);
    return true;
}
