/* heap.c - the event queue: a heap of intrusive nodes, earliest first, equal times in scheduling order.
 *
 * Four children per node, with the keys beside the pointers: a sift touches few cache lines of the array
 * and no node. A *tracked* heap stores the index in each node, for fast removal. */
#include <string.h>

#include "transport/sim/sim.h"

enum { CHILDREN = 4 };

bool sim_heap_reserve(struct sim_heap *heap, struct weft_env *env, size_t nodes)
{
    size_t need = heap->reserved + nodes;
    if (need > heap->capacity) {
        size_t capacity = heap->capacity ? heap->capacity * 2 : 256;
        while (capacity < need) capacity *= 2;
        struct sim_heap_entry *grown = weft_alloc_array(env, capacity, sizeof *grown);
        if (!grown) return false;
        if (heap->count) memcpy(grown, heap->entries, heap->count * sizeof *grown);
        weft_free_bytes(env, heap->entries);
        heap->entries = grown;
        heap->capacity = capacity;
    }
    heap->reserved = need;
    return true;
}

static bool entry_is_before(const struct sim_heap_entry *a, const struct sim_heap_entry *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

static void entry_store(struct sim_heap *heap, size_t index, struct sim_heap_entry entry)
{
    heap->entries[index] = entry;
    if (heap->tracked) entry.due->index = index;
}

static void sift_up(struct sim_heap *heap, size_t index, struct sim_heap_entry entry)
{
    while (index > 0 && entry_is_before(&entry, &heap->entries[(index - 1) / CHILDREN])) {
        entry_store(heap, index, heap->entries[(index - 1) / CHILDREN]);
        index = (index - 1) / CHILDREN;
    }
    entry_store(heap, index, entry);
}

static void sift_down(struct sim_heap *heap, size_t index, struct sim_heap_entry entry)
{
    for (;;) {
        size_t child = CHILDREN * index + 1, end = child + CHILDREN;
        if (child >= heap->count) break;
        if (end > heap->count) end = heap->count;
        for (size_t other = child + 1; other < end; other++) {
            if (entry_is_before(&heap->entries[other], &heap->entries[child])) child = other;
        }
        if (!entry_is_before(&heap->entries[child], &entry)) break;
        entry_store(heap, index, heap->entries[child]);
        index = child;
    }
    entry_store(heap, index, entry);
}

void sim_heap_push(struct sim_heap *heap, struct sim_due *due)
{
    WEFT_ASSERT(due->index == SIM_IDLE);
    WEFT_ASSERT(heap->count < heap->capacity);
    due->index = 0;
    sift_up(heap, heap->count++, (struct sim_heap_entry){due->time_ns, due->order, due});
}

static void entry_remove(struct sim_heap *heap, size_t index)
{
    heap->entries[index].due->index = SIM_IDLE;
    struct sim_heap_entry last = heap->entries[--heap->count];
    if (index == heap->count) return;
    if (index > 0 && entry_is_before(&last, &heap->entries[(index - 1) / CHILDREN]))
        sift_up(heap, index, last);
    else sift_down(heap, index, last);
}

void sim_heap_remove(struct sim_heap *heap, struct sim_due *due)
{
    size_t index = heap->tracked ? due->index : 0;
    while (index < heap->count && heap->entries[index].due != due) index++;
    WEFT_ASSERT(index < heap->count);
    entry_remove(heap, index);
}

struct sim_due *sim_heap_pop(struct sim_heap *heap)
{
    struct sim_due *due = heap->entries[0].due;
    entry_remove(heap, 0);
    return due;
}
