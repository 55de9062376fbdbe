/* pool.c - see pool.h. */
#include "nccl/profiler/pool.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum slot_state { SLOT_FREE = 0, SLOT_OPEN, SLOT_CLOSED };
enum { TRIES = 64 };

struct slot {
    _Atomic uint32_t state;      /* enum slot_state */
    _Atomic uint32_t generation; /* of the event; rises when the slot is opened */
    /* for children, which may read while the slot gets its next event */
    _Atomic uint32_t comm;
    _Atomic uint64_t sequence;
    const char *_Atomic name;
    struct profiler_event event; /* owned by the thread that opened it, then by the one that drains */
};

static struct slot slots[POOL_SLOTS];
static _Atomic uint32_t cursor, closed;
static _Atomic uint64_t dropped;

/* Generations begin at 1, so a handle is not NULL. */
static void *handle_of(const struct slot *slot, uint32_t generation)
{
    return (void *)((uintptr_t)generation << 16 | (uintptr_t)(slot - slots));
}

/* The slot of a handle, if it still has that event. */
static struct slot *slot_of(void *handle)
{
    const uintptr_t number = (uintptr_t)handle;
    if ((number & 0xffff) >= POOL_SLOTS) return NULL;
    struct slot *slot = &slots[number & 0xffff];
    return atomic_load_explicit(&slot->generation, memory_order_acquire) == number >> 16 && number >> 16
               ? slot
               : NULL;
}

struct profiler_event *pool_open(void **handle_out)
{
    for (int i = 0; i < TRIES; i++) {
        struct slot *slot = &slots[atomic_fetch_add_explicit(&cursor, 1, memory_order_relaxed) % POOL_SLOTS];
        uint32_t expected = SLOT_FREE;
        if (!atomic_compare_exchange_strong_explicit(&slot->state, &expected, SLOT_OPEN, memory_order_acquire,
                                                     memory_order_relaxed))
            continue;
        const uint32_t generation = atomic_fetch_add(&slot->generation, 1) + 1;
        memset(&slot->event, 0, sizeof slot->event);
        *handle_out = handle_of(slot, generation);
        return &slot->event;
    }
    atomic_fetch_add_explicit(&dropped, 1, memory_order_relaxed);
    *handle_out = NULL;
    return NULL;
}

static struct slot *slot_of_event(struct profiler_event *event)
{
    return (struct slot *)(void *)((char *)event - offsetof(struct slot, event));
}

void pool_publish(struct profiler_event *event)
{
    struct slot *slot = slot_of_event(event);
    atomic_store_explicit(&slot->comm, event->comm, memory_order_relaxed);
    atomic_store_explicit(&slot->name, event->name, memory_order_relaxed);
    atomic_store_explicit(&slot->sequence, event->sequence, memory_order_release);
}

struct profiler_event *pool_find(void *handle)
{
    struct slot *slot = handle ? slot_of(handle) : NULL;
    return slot && atomic_load_explicit(&slot->state, memory_order_acquire) == SLOT_OPEN ? &slot->event
                                                                                         : NULL;
}

/* Copied between two reads of the generation: if both are equal, the copy is of that event. */
bool pool_inherit(void *parent, struct profiler_event *event)
{
    const struct slot *slot = parent ? slot_of(parent) : NULL;
    if (!slot) return false;
    const uint64_t sequence = atomic_load(&slot->sequence);
    const char *name = atomic_load(&slot->name);
    const uint32_t comm = atomic_load(&slot->comm);
    if (slot_of(parent) != slot) return false;
    event->sequence = sequence;
    event->name = name;
    event->comm = comm;
    return true;
}

bool pool_close(struct profiler_event *event)
{
    atomic_store_explicit(&slot_of_event(event)->state, SLOT_CLOSED, memory_order_release);
    return atomic_fetch_add_explicit(&closed, 1, memory_order_relaxed) + 1 >= POOL_DRAIN_AT;
}

void pool_drain(void (*write)(void *context, const struct profiler_event *event), void *context)
{
    for (uint32_t i = 0; i < POOL_SLOTS; i++) {
        struct slot *slot = &slots[i];
        if (atomic_load_explicit(&slot->state, memory_order_acquire) != SLOT_CLOSED) continue;
        write(context, &slot->event);
        atomic_fetch_sub_explicit(&closed, 1, memory_order_relaxed);
        atomic_store_explicit(&slot->state, SLOT_FREE, memory_order_release);
    }
}

uint64_t pool_dropped(void)
{
    return atomic_load_explicit(&dropped, memory_order_relaxed);
}
