/* shm_bell.c - who looks where, and how one that sleeps is woken.
 *
 * An endpoint looks at up to SHM_HOT_MAX rings by itself, the busy ones. For all others (and for the news that there is
 * room again, or that a peer has left) its peers set a bit in its board: two levels, so that a look costs one line.
 *
 *   writer                                    reader
 *   publish                                   going to sleep: sleeping = 1
 *   fence                                     fence
 *   reader looks here? else set its bit       look at every hot ring and at the summary once more
 *   sleeping? take the flag, write eventfd    nothing: sleep on the eventfd
 *
 * One of the two sees the other's first step, so no message lies beside a sleeper, and a writer makes a system call only
 * when somebody sleeps: the first one that takes the flag. The same two steps guard "I stop looking at this ring". */
#include <errno.h>
#include <unistd.h>

#include "transport/shm/shm.h"

static void bell_wake(struct shm_pair *pair)
{
    struct shm_board *board = pair->board;
    if (atomic_load_explicit(&board->sleeping, memory_order_relaxed) == 0) return;
    if (atomic_exchange_explicit(&board->sleeping, 0, memory_order_seq_cst) == 0) return;
    uint64_t one = 1;
    while (write(pair->event_fd, &one, sizeof one) < 0 && errno == EINTR) {} /* EAGAIN: it is readable already */
    pair->endpoint->transport->stats.system_call_count++;
}

static void bell_set(struct shm_pair *pair)
{
    uint32_t bit = pair->peer_bell;
    atomic_fetch_or_explicit(&pair->board->words[bit / 64], 1ull << (bit % 64), memory_order_seq_cst);
    atomic_fetch_or_explicit(&pair->board->summary, 1ull << (bit / 64), memory_order_seq_cst);
}

void shm_bell_ring(struct shm_pair *pair)
{
    bell_set(pair);
    bell_wake(pair);
}

/* He said somewhere in his memory that he is about to sleep. Whether he has got there yet is not known: the bit keeps him
 * awake if he has not. */
void shm_wake(struct weft_transport *transport, struct weft_peer *peer)
{
    struct shm_pair *pair = peer->backend;
    if (pair->state == SHM_MET) shm_bell_ring(pair);
}

void shm_published(struct shm_pair *pair)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&pair->out.shared->reader.looks, memory_order_relaxed) == 0) bell_set(pair);
    bell_wake(pair);
}

/* As if the peer had rung: look at this pair in the next progress. */
void shm_bell_self(struct shm_pair *pair)
{
    struct shm_board *board = pair->endpoint->board;
    atomic_fetch_or_explicit(&board->words[pair->bell / 64], 1ull << (pair->bell % 64), memory_order_relaxed);
    atomic_fetch_or_explicit(&board->summary, 1ull << (pair->bell / 64), memory_order_relaxed);
}

/* ---- hot rings ---- */

static void cool(struct shm_endpoint *endpoint, uint32_t at)
{
    struct shm_pair *pair = endpoint->hot[at];
    pair->hot = false;
    atomic_store_explicit(&pair->in.shared->reader.looks, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (ring_reader_ready(&pair->in)) shm_bell_self(pair); /* it came in between */
    endpoint->hot[at] = endpoint->hot[--endpoint->hot_count];
}

/* A place among the hot for one that has just spoken: a free one, or that of a ring long silent. */
static void warm(struct shm_endpoint *endpoint, struct shm_pair *pair)
{
    if (pair->hot || pair->state != SHM_MET) return;
    for (uint32_t i = 0; i < endpoint->hot_count && endpoint->hot_count == SHM_HOT_MAX; i++) {
        if (endpoint->hot[i]->idle > SHM_HOT_IDLE) cool(endpoint, i);
    }
    if (endpoint->hot_count == SHM_HOT_MAX) return;
    endpoint->hot[endpoint->hot_count++] = pair;
    pair->hot = true;
    pair->idle = 0;
    atomic_store_explicit(&pair->in.shared->reader.looks, 1, memory_order_relaxed);
}

void shm_bell_join(struct shm_endpoint *endpoint, struct shm_pair *pair)
{
    pair->bell = endpoint->next_bell++ % SHM_BELLS;
    pair->next_bell = endpoint->bells[pair->bell];
    endpoint->bells[pair->bell] = pair;
}

void shm_bell_leave(struct shm_endpoint *endpoint, struct shm_pair *pair)
{
    for (uint32_t i = 0; i < endpoint->hot_count && pair->hot; i++) {
        if (endpoint->hot[i] == pair) cool(endpoint, i);
    }
    struct shm_pair **at = &endpoint->bells[pair->bell];
    while (*at && *at != pair) at = &(*at)->next_bell;
    if (*at) *at = pair->next_bell;
}

/* ---- looking ---- */

/* Its ring, its room, and whether it has left: all that a bell can mean. */
static int heed(struct shm_pair *pair, int budget)
{
    struct shm_endpoint *endpoint = pair->endpoint;
    if (pair->state != SHM_MET) return 0;
    warm(endpoint, pair);
    int count = shm_pair_poll(pair, budget);
    if (pair->state != SHM_MET || ring_reader_ready(&pair->in)) return count;
    if (pair->in.cells != pair->in.cells_told && ring_reader_tell(&pair->in)) shm_bell_ring(pair);
    uint32_t state = atomic_load_explicit(&pair->in.shared->writer.state, memory_order_acquire);
    if (state != RING_OPEN && !ring_reader_ready(&pair->in)) {
        if (state == RING_LEFT) core_peer_left(endpoint->transport, pair->peer, "the endpoint has closed");
        else core_peer_lost(endpoint->transport, pair->peer, WEFT_ERR_PEER_LOST, "the peer has given up this connection");
    }
    return count;
}

static int bells_heed(struct shm_endpoint *endpoint, int budget)
{
    struct shm_board *board = endpoint->board;
    uint64_t summary = atomic_exchange_explicit(&board->summary, 0, memory_order_seq_cst);
    int count = 0;
    while (summary) {
        uint32_t word = (uint32_t)__builtin_ctzll(summary);
        summary &= summary - 1;
        uint64_t bits = atomic_exchange_explicit(&board->words[word], 0, memory_order_seq_cst);
        for (; bits; bits &= bits - 1) {
            uint32_t bit = word * 64 + (uint32_t)__builtin_ctzll(bits);
            struct shm_pair *pair = endpoint->bells[bit], *next;
            for (; pair; pair = next) {
                next = pair->next_bell;
                count += heed(pair, budget - count > 1 ? budget - count : 1);
                if (pair->state == SHM_MET && ring_reader_ready(&pair->in)) { /* more than one step may do: next time */
                    atomic_fetch_or_explicit(&board->words[word], 1ull << (bit % 64), memory_order_relaxed);
                    atomic_fetch_or_explicit(&board->summary, 1ull << word, memory_order_relaxed);
                }
            }
        }
    }
    shm_stalled_resume(endpoint);
    return count + 1;
}

int shm_bells_progress(struct shm_endpoint *endpoint, int budget)
{
    int count = 0;
    uint32_t at = endpoint->hot_first++; /* another one first each time: a ring that is always full starves nobody */
    for (uint32_t i = 0; i < endpoint->hot_count && count < budget; i++, at++) {
        if (at >= endpoint->hot_count) at = 0;
        struct shm_pair *pair = endpoint->hot[at];
        if (!ring_reader_ready(&pair->in)) {
            if (pair->idle <= SHM_HOT_IDLE) pair->idle++;
            if (ring_reader_owes(&pair->in) && ring_reader_tell(&pair->in)) shm_bell_ring(pair);
            continue;
        }
        pair->idle = 0;
        count += shm_pair_poll(pair, budget - count);
    }
    if (endpoint->hot_first >= endpoint->hot_count) endpoint->hot_first = 0;
    if (atomic_load_explicit(&endpoint->board->summary, memory_order_relaxed) == 0) return count;
    return count + bells_heed(endpoint, budget - count > 1 ? budget - count : 1);
}

/* ---- sleeping ---- */

static bool anything(struct shm_endpoint *endpoint)
{
    for (uint32_t i = 0; i < endpoint->hot_count; i++) {
        if (ring_reader_ready(&endpoint->hot[i]->in)) return true;
    }
    return atomic_load_explicit(&endpoint->board->summary, memory_order_relaxed) != 0;
}

enum weft_status shm_arm(struct weft_transport *transport)
{
    struct shm_endpoint *endpoint = transport->backend;
    if (!weft_list_empty(&endpoint->active)) return WEFT_ERR_AGAIN;
    for (uint32_t i = 0; i < endpoint->hot_count; i++) { /* nobody waits for room that is there while this one sleeps */
        struct shm_pair *pair = endpoint->hot[i];
        if (pair->in.cells != pair->in.cells_told && ring_reader_tell(&pair->in)) shm_bell_ring(pair);
    }
    endpoint->armed = true;
    atomic_store_explicit(&endpoint->board->sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!anything(endpoint)) return WEFT_OK;
    atomic_store_explicit(&endpoint->board->sleeping, 0, memory_order_relaxed);
    return WEFT_ERR_AGAIN;
}

void shm_disarm(struct shm_endpoint *endpoint)
{
    endpoint->armed = false;
    endpoint->meet_due = true;
    atomic_store_explicit(&endpoint->board->sleeping, 0, memory_order_relaxed);
    uint64_t wakes;
    while (read(endpoint->event_fd, &wakes, sizeof wakes) < 0 && errno == EINTR) {} /* EAGAIN: woken by something else */
}
