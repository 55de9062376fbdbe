/* shm_doorbell.c - polled rings, doorbells, and the wake-up of a sleeping endpoint.
 *
 * An endpoint polls up to SHM_HOT_MAX busy rings. For all other events (another ring, space in a ring, end
 * of a peer) the peer sets a bit in the endpoint's doorbell bitmap. The bitmap has two levels, so one poll
 * reads one line.
 *
 *   writer                                    reader
 *   publish                                   before sleeping: sleeping = 1
 *   fence                                     fence
 *   reader polls? else set its bit            check every hot ring and the summary again
 *   sleeping? clear the flag, write eventfd   nothing: sleep on the eventfd
 *
 * One side sees the other's first step, so no message is missed. A writer makes a system call only if the
 * reader sleeps, and only the writer that clears the flag. The same protocol guards "the reader stops
 * polling this ring". */
#include <errno.h>
#include <unistd.h>

#include "transport/shm/shm.h"

static void doorbell_wake(struct shm_pair *pair)
{
    struct shm_doorbell_bitmap *doorbells = pair->mapped.doorbells;
    if (atomic_load_explicit(&doorbells->sleeping, memory_order_relaxed) == 0) return;
    if (atomic_exchange_explicit(&doorbells->sleeping, 0, memory_order_seq_cst) == 0) return;
    uint64_t one = 1;
    /* EAGAIN: it is readable already */
    while (write(pair->mapped.event_fd, &one, sizeof one) < 0 && errno == EINTR) {}
    pair->endpoint->transport->stats.system_call_count++;
}

static void doorbell_set(struct shm_pair *pair)
{
    uint32_t bit = pair->peer_doorbell_bit;
    atomic_fetch_or_explicit(&pair->mapped.doorbells->words[bit / 64], 1ull << (bit % 64),
                             memory_order_seq_cst);
    atomic_fetch_or_explicit(&pair->mapped.doorbells->summary, 1ull << (bit / 64), memory_order_seq_cst);
}

void shm_doorbell_ring(struct shm_pair *pair)
{
    doorbell_set(pair);
    doorbell_wake(pair);
}

/* The peer announced in its own memory that it will sleep, but may be awake still: the bit prevents the
 * sleep. */
void shm_wake(struct weft_transport *transport, struct weft_peer *peer)
{
    struct shm_pair *pair = peer->backend;
    if (pair->state == SHM_PAIR_CONNECTED) shm_doorbell_ring(pair);
}

void shm_notify_reader(struct shm_pair *pair)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&pair->out.shared->reader.is_polling, memory_order_relaxed) == 0)
        doorbell_set(pair);
    doorbell_wake(pair);
}

/* Handles this pair in the next progress. */
void shm_doorbell_ring_self(struct shm_pair *pair)
{
    struct shm_doorbell_bitmap *doorbells = pair->endpoint->doorbells;
    atomic_fetch_or_explicit(&doorbells->words[pair->doorbell_bit / 64], 1ull << (pair->doorbell_bit % 64),
                             memory_order_relaxed);
    atomic_fetch_or_explicit(&doorbells->summary, 1ull << (pair->doorbell_bit / 64), memory_order_relaxed);
}

/* ---- hot rings ---- */

static void stop_polling(struct shm_endpoint *endpoint, uint32_t at)
{
    struct shm_pair *pair = endpoint->polling.hot[at];
    pair->hot = false;
    atomic_store_explicit(&pair->in.shared->reader.is_polling, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (ring_reader_ready(&pair->in)) shm_doorbell_ring_self(pair); /* a cell arrived in between */
    endpoint->polling.hot[at] = endpoint->polling.hot[--endpoint->polling.hot_count];
}

/* Polls an active ring from now on, in a free place or in that of an idle ring. */
static void start_polling(struct shm_endpoint *endpoint, struct shm_pair *pair)
{
    if (pair->hot || pair->state != SHM_PAIR_CONNECTED) return;
    for (uint32_t i = 0; i < endpoint->polling.hot_count && endpoint->polling.hot_count == SHM_HOT_MAX; i++) {
        if (endpoint->polling.hot[i]->idle > SHM_HOT_IDLE) stop_polling(endpoint, i);
    }
    if (endpoint->polling.hot_count == SHM_HOT_MAX) return;
    endpoint->polling.hot[endpoint->polling.hot_count++] = pair;
    pair->hot = true;
    pair->idle = 0;
    atomic_store_explicit(&pair->in.shared->reader.is_polling, 1, memory_order_relaxed);
}

void shm_doorbell_join(struct shm_endpoint *endpoint, struct shm_pair *pair)
{
    pair->doorbell_bit = endpoint->polling.next_doorbell++ % SHM_DOORBELL_BITS;
    pair->next_doorbell = endpoint->polling.pairs_by_bit[pair->doorbell_bit];
    endpoint->polling.pairs_by_bit[pair->doorbell_bit] = pair;
}

void shm_doorbell_leave(struct shm_endpoint *endpoint, struct shm_pair *pair)
{
    for (uint32_t i = 0; i < endpoint->polling.hot_count && pair->hot; i++) {
        if (endpoint->polling.hot[i] == pair) stop_polling(endpoint, i);
    }
    struct shm_pair **at = &endpoint->polling.pairs_by_bit[pair->doorbell_bit];
    while (*at && *at != pair) at = &(*at)->next_doorbell;
    if (*at) *at = pair->next_doorbell;
}

/* ---- progress ---- */

/* Handles everything a doorbell can announce: cells, space, the end of the peer. */
static int handle_doorbell(struct shm_pair *pair, int budget)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    if (pair->state != SHM_PAIR_CONNECTED) return 0;
    start_polling(endpoint, pair);
    int count = shm_pair_poll(pair, budget);
    if (pair->state != SHM_PAIR_CONNECTED || ring_reader_ready(&pair->in)) return count;
    if (pair->in.cells != pair->in.cells_reported && ring_reader_report(&pair->in)) shm_doorbell_ring(pair);
    uint32_t state = atomic_load_explicit(&pair->in.shared->writer.state, memory_order_acquire);
    if (state != RING_OPEN && !ring_reader_ready(&pair->in)) {
        if (state == RING_LEFT) core_peer_left(endpoint->transport, pair->peer, "the endpoint has closed");
        else
            core_peer_lost(endpoint->transport, pair->peer, WEFT_ERR_PEER_LOST,
                           "the peer has closed this connection");
    }
    return count;
}

static int doorbells_handle(struct shm_endpoint *endpoint, int budget)
{
    struct shm_doorbell_bitmap *doorbells = endpoint->doorbells;
    uint64_t summary = atomic_exchange_explicit(&doorbells->summary, 0, memory_order_seq_cst);
    int count = 0;
    while (summary) {
        uint32_t word = (uint32_t)__builtin_ctzll(summary);
        summary &= summary - 1;
        uint64_t bits = atomic_exchange_explicit(&doorbells->words[word], 0, memory_order_seq_cst);
        for (; bits; bits &= bits - 1) {
            uint32_t bit = word * 64 + (uint32_t)__builtin_ctzll(bits);
            struct shm_pair *pair = endpoint->polling.pairs_by_bit[bit], *next;
            for (; pair; pair = next) {
                next = pair->next_doorbell;
                count += handle_doorbell(pair, budget - count > 1 ? budget - count : 1);
                if (pair->state == SHM_PAIR_CONNECTED && ring_reader_ready(&pair->in)) {
                    /* the budget is used up: continue in the next progress */
                    atomic_fetch_or_explicit(&doorbells->words[word], 1ull << (bit % 64),
                                             memory_order_relaxed);
                    atomic_fetch_or_explicit(&doorbells->summary, 1ull << word, memory_order_relaxed);
                }
            }
        }
    }
    shm_stalled_resume(endpoint);
    return count + 1;
}

int shm_doorbells_progress(struct shm_endpoint *endpoint, int budget)
{
    int count = 0;
    /* starts at another ring each time, so a full ring does not starve the others */
    uint32_t at = endpoint->polling.hot_first++;
    for (uint32_t i = 0; i < endpoint->polling.hot_count && count < budget; i++, at++) {
        if (at >= endpoint->polling.hot_count) at = 0;
        struct shm_pair *pair = endpoint->polling.hot[at];
        if (!ring_reader_ready(&pair->in)) {
            if (pair->idle <= SHM_HOT_IDLE) pair->idle++;
            if (ring_reader_should_report(&pair->in) && ring_reader_report(&pair->in))
                shm_doorbell_ring(pair);
            continue;
        }
        pair->idle = 0;
        count += shm_pair_poll(pair, budget - count);
    }
    if (endpoint->polling.hot_first >= endpoint->polling.hot_count) endpoint->polling.hot_first = 0;
    if (atomic_load_explicit(&endpoint->doorbells->summary, memory_order_relaxed) == 0) return count;
    return count + doorbells_handle(endpoint, budget - count > 1 ? budget - count : 1);
}

/* ---- sleeping ---- */

static bool has_work(struct shm_endpoint *endpoint)
{
    for (uint32_t i = 0; i < endpoint->polling.hot_count; i++) {
        if (ring_reader_ready(&endpoint->polling.hot[i]->in)) return true;
    }
    return atomic_load_explicit(&endpoint->doorbells->summary, memory_order_relaxed) != 0;
}

enum weft_status shm_arm(struct weft_transport *transport)
{
    struct shm_endpoint *endpoint = transport->backend;
    if (!weft_list_empty(&endpoint->lists.active)) return WEFT_ERR_AGAIN;
    for (uint32_t i = 0; i < endpoint->polling.hot_count; i++) {
        /* reports space, so that no writer waits while this endpoint sleeps */
        struct shm_pair *pair = endpoint->polling.hot[i];
        if (pair->in.cells != pair->in.cells_reported && ring_reader_report(&pair->in))
            shm_doorbell_ring(pair);
    }
    endpoint->armed = true;
    atomic_store_explicit(&endpoint->doorbells->sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!has_work(endpoint)) return WEFT_OK;
    atomic_store_explicit(&endpoint->doorbells->sleeping, 0, memory_order_relaxed);
    return WEFT_ERR_AGAIN;
}

void shm_disarm(struct shm_endpoint *endpoint)
{
    endpoint->armed = false;
    endpoint->bootstrap_due = true;
    atomic_store_explicit(&endpoint->doorbells->sleeping, 0, memory_order_relaxed);
    uint64_t wakes;
    /* EAGAIN: another event woke this endpoint */
    while (read(endpoint->event_fd, &wakes, sizeof wakes) < 0 && errno == EINTR) {}
}
