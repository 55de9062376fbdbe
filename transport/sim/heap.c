/* heap.c - a binary heap of intrusive nodes, earliest first, equal times in the order scheduled. */
#include <string.h>

#include "transport/sim/sim.h"

bool sim_heap_reserve(struct sim_heap *heap, struct weft_env *env, size_t nodes)
{
    size_t need = heap->reserved + nodes;
    if (need > heap->capacity) {
        size_t capacity = heap->capacity ? heap->capacity * 2 : 256;
        while (capacity < need) capacity *= 2;
        struct sim_due **grown = weft_alloc_array(env, capacity, sizeof *grown);
        if (!grown) return false;
        if (heap->count) memcpy(grown, heap->nodes, heap->count * sizeof *grown);
        weft_free_bytes(env, heap->nodes);
        heap->nodes = grown;
        heap->capacity = capacity;
    }
    heap->reserved = need;
    return true;
}

static bool before(const struct sim_due *a, const struct sim_due *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

static void place(struct sim_heap *heap, size_t index, struct sim_due *due)
{
    heap->nodes[index] = due;
    due->index = index;
}

static void sift_up(struct sim_heap *heap, size_t index, struct sim_due *due)
{
    while (index > 0 && before(due, heap->nodes[(index - 1) / 2])) {
        place(heap, index, heap->nodes[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    place(heap, index, due);
}

static void sift_down(struct sim_heap *heap, size_t index, struct sim_due *due)
{
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && before(heap->nodes[child + 1], heap->nodes[child])) child++;
        if (!before(heap->nodes[child], due)) break;
        place(heap, index, heap->nodes[child]);
        index = child;
    }
    place(heap, index, due);
}

void sim_heap_push(struct sim_heap *heap, struct sim_due *due)
{
    WEFT_ASSERT(due->index == SIM_IDLE);
    WEFT_ASSERT(heap->count < heap->capacity);
    sift_up(heap, heap->count++, due);
}

void sim_heap_remove(struct sim_heap *heap, struct sim_due *due)
{
    size_t index = due->index;
    WEFT_ASSERT(index < heap->count && heap->nodes[index] == due);
    due->index = SIM_IDLE;
    struct sim_due *last = heap->nodes[--heap->count];
    if (last == due) return;
    if (index > 0 && before(last, heap->nodes[(index - 1) / 2])) sift_up(heap, index, last);
    else sift_down(heap, index, last);
}

struct sim_due *sim_heap_pop(struct sim_heap *heap)
{
    struct sim_due *due = heap->nodes[0];
    sim_heap_remove(heap, due);
    return due;
}
