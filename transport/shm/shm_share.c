/* shm_share.c - a large payload by CMA, copied from both its ends at once.
 *
 * Beside the bytes, the kernel has page tables to walk for every page it copies between processes, so two
 * processors are nearly twice as quick as one. The receiver, who has named his buffer, tells the sender where
 * it is (SHARE). Then he reads chunks from the front, and the sender, when he looks, writes chunks from the
 * back. Whose a chunk is, is settled in a word of the ring that both may write, by compare and swap:
 *
 *   epoch (32 bits) | taken from the front, by the receiver (16) | taken from the back, by the sender (16)
 *
 *   receiver                                   sender
 *   SHARE            ───────────────────►
 *   takes and reads until nothing is left      takes and writes until nothing is left
 *   has the sender taken any? waits  ◄───      DONE, if he has taken any
 *   DONE             ───────────────────►      over
 *
 * So nobody waits for a chunk that nobody has taken: a sender that computes delays nothing, and one that
 * sleeps is not asked. The sender writes between shm_enter and shm_leave, as after a GRANT. What one cannot
 * copy, the other does: the receiver reads what the sender could not write; what he cannot read himself is
 * staged as a whole.
 *
 * Each side counts what it has taken itself: where it copies does not depend on what the other writes into
 * the word. */
#include "transport/shm/shm.h"

enum { CHUNK_MIN = 32 << 10, CHUNK_MAX = 128 << 10, CHUNKS_MAX = 0x7fff, PAGE_BYTES = 4096 };

static uint64_t chunks_of(const struct shm_op *op)
{
    return (op->bytes + op->chunk - 1) / op->chunk;
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
    const uint32_t lines = RING_SHARES / 8;
    return &shared->shares[slot % lines].taken[slot / lines];
}

/* One more chunk for this side. */
static bool take(struct shm_op *op)
{
    _Atomic uint64_t *word =
        word_of(op->is_arrival ? op->pair->in.shared : op->pair->out.shared, op->share - 1);
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    do {
        uint64_t front = seen >> 16 & 0xffff, back = seen & 0xffff;
        if (seen >> 32 != op->share_epoch || front + back >= chunks_of(op)) return false;
        if ((op->is_arrival ? front : back) != op->taken) return false;
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, seen + (op->is_arrival ? 1u << 16 : 1u),
                                                    memory_order_acq_rel, memory_order_relaxed));
    op->at = (op->is_arrival ? op->taken : chunks_of(op) - 1 - op->taken) * op->chunk;
    op->taken++;
    return true;
}

void shm_share_end(struct shm_op *op)
{
    if (op->share && op->is_arrival) op->pair->shares &= ~(1u << (op->share - 1));
    op->share = 0;
}

/* The receiver's: neither side has any more to copy, or is at it. */
static void settle(struct shm_op *op)
{
    struct shm_arrival *arrival = weft_container_of(op, struct shm_arrival, op);
    uint64_t mine = op->taken * op->chunk;
    shm_share_end(op);
    if (op->share_status < 0) {
        shm_copy_failed(op, op->share_status);
    } else if (op->share_heard && op->share_theirs < 0 && mine < op->bytes) {
        op->at = mine; /* alone */
        op->phase = SHM_COPYING;
        weft_list_append(&op->pair->endpoint->active, &op->link);
    } else {
        shm_receive_over(arrival, shm_still_valid(op->pair) ? WEFT_OK : WEFT_ERR_PEER_LOST);
    }
}

/* Nothing is left to take. */
static void taken_all(struct shm_op *op)
{
    if (op->is_arrival) {
        if (op->share_heard || op->taken == chunks_of(op)) settle(op);
        else op->phase = SHM_GRANTED; /* the sender is still writing: his DONE follows */
        return;
    }
    op->phase = SHM_WAITING;
    if (op->taken == 0) return;
    op->cell.body.done.status = op->share_status;
    shm_answer(op, RING_DONE, op->peer_op);
}

void shm_share_step(struct shm_op *op)
{
    struct shm_endpoint *endpoint = op->pair->endpoint;
    for (size_t moved = 0; moved < SHM_SLICE_BYTES && endpoint->step_bytes < SHM_STEP_BYTES;
         moved += op->chunk) {
        bool gives_up = op->share_status < 0 && !op->is_arrival; /* what is left is the receiver's */
        if (gives_up || !take(op)) {
            taken_all(op);
            return;
        }
        if (op->share_status < 0) continue; /* the receiver gives up: taken so that the sender stops */
        uint64_t left = op->bytes - op->at;
        op->share_status = shm_copy_slice(op, left < op->chunk ? left : op->chunk);
    }
    weft_list_append(&endpoint->active, &op->link);
}

static void begin(struct shm_op *op, uint32_t slot, uint32_t epoch, uint64_t chunk, uint64_t there)
{
    op->share = slot + 1;
    op->share_epoch = epoch;
    op->chunk = chunk;
    op->taken = 0;
    op->share_heard = false;
    op->share_status = op->share_theirs = WEFT_OK;
    op->phase = SHM_COPYING;
    op->way = SHM_WAY_CMA;
    op->there = there;
    op->outward = !op->is_arrival;
    op->stream = false;
}

static void go(struct shm_op *op)
{
    struct shm_endpoint *endpoint = op->pair->endpoint;
    if (op->bytes <= SHM_DIRECT_BYTES && endpoint->step_bytes < SHM_STEP_BYTES) shm_share_step(op);
    else weft_list_append(&endpoint->active, &op->link);
}

/* It has one of ours to read as well: then both processors are at work already. Only the last few operations are looked at. */
static bool peer_reads(const struct shm_pair *pair)
{
    const struct weft_list *node = pair->ops.prev;
    for (int looks = 0; looks < 8 && node != &pair->ops; looks++, node = node->prev) {
        const struct shm_op *op = weft_container_of(node, struct shm_op, of_pair);
        if (!op->is_arrival && (op->phase == SHM_ANNOUNCED || op->phase == SHM_WAITING) && op->bytes >= SHM_SHARE_MIN) return true;
    }
    return false;
}

bool shm_share_start(struct shm_arrival *arrival)
{
    struct shm_op *op = &arrival->op;
    struct shm_pair *pair = op->pair;
    uint32_t slot = 0;
    while (slot < RING_SHARES && (pair->shares >> slot & 1)) slot++;
    if (!pair->endpoint->allow_share || pair->state != SHM_MET || pair->self || arrival->window) return false;
    if (op->bytes < SHM_SHARE_MIN || slot == RING_SHARES || peer_reads(pair)) return false;
    if (atomic_load_explicit(&pair->board->sleeping, memory_order_relaxed)) return false;
    struct ring_cell cell = {.kind = RING_SHARE, .a = arrival->sender_op};
    uint64_t chunk = chunk_for(op->bytes);
    cell.body.share.op = shm_op_name(op);
    cell.body.share.address = (uintptr_t)op->local;
    cell.body.share.chunk = chunk;
    cell.body.share.slot = slot;
    cell.body.share.epoch = ++pair->share_epoch;
    atomic_store_explicit(word_of(pair->in.shared, slot), (uint64_t)cell.body.share.epoch << 32,
                          memory_order_relaxed);
    if (!shm_write(pair, &cell, NULL, NULL, 0)) return false;
    pair->shares |= 1u << slot;
    begin(op, slot, cell.body.share.epoch, chunk, arrival->address);
    go(op);
    return true;
}

bool shm_on_share(struct shm_pair *pair, const struct ring_cell *cell)
{
    struct shm_op *op = shm_op_find(pair, cell->a);
    uint64_t chunk = cell->body.share.chunk;
    if (!op || op->phase != SHM_ANNOUNCED || op->is_arrival || op->window != 0) return false;
    if (cell->body.share.slot >= RING_SHARES || chunk < PAGE_BYTES || chunk > op->bytes ||
        op->bytes / chunk >= CHUNKS_MAX * 2)
        return false;
    op->peer_op = cell->body.share.op;
    begin(op, cell->body.share.slot, cell->body.share.epoch, chunk, cell->body.share.address);
    if (pair->read_by_cma) go(op);
    else op->phase = SHM_WAITING;
    return true;
}

bool shm_share_on_done(struct shm_op *op, enum weft_status status)
{
    if (!op->is_arrival) {
        if (op->phase != SHM_COPYING && op->phase != SHM_WAITING) return false;
        shm_op_over(op, status); /* perhaps without having had a look */
        return true;
    }
    if (op->share_heard) return false;
    op->share_heard = true;
    op->share_theirs = status;
    if (op->phase == SHM_GRANTED) settle(op);
    return true;
}
