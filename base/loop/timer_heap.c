/* timer_heap.c - see timer_heap.h. */
#include "base/loop/timer_heap.h"

#include <string.h>

#include "base/weft_assert.h"

#define FIRST_CAPACITY 64

enum weft_status timer_heap_init(struct timer_heap *heap, struct weft_env *env)
{
    *heap = (struct timer_heap){0};
    heap->entries = weft_alloc_array(env, FIRST_CAPACITY, sizeof heap->entries[0]);
    if (!heap->entries) return WEFT_ERR_NO_MEMORY;
    heap->capacity = FIRST_CAPACITY;
    return WEFT_OK;
}

void timer_heap_fini(struct timer_heap *heap, struct weft_env *env)
{
    for (size_t i = 0; i < heap->count; i++) heap->entries[i].timer->heap_index = SIZE_MAX;
    weft_free_bytes(env, heap->entries);
    *heap = (struct timer_heap){0};
}

static bool before(const struct timer_heap_entry *a, const struct timer_heap_entry *b)
{
    if (a->deadline_ns != b->deadline_ns) return a->deadline_ns < b->deadline_ns;
    return a->order < b->order;
}

static void place(struct timer_heap *heap, size_t index, struct timer_heap_entry entry)
{
    heap->entries[index] = entry;
    entry.timer->heap_index = index;
}

/* Moves the hole at `index` up until `entry` fits, and puts it there. */
static void sift_up(struct timer_heap *heap, size_t index, struct timer_heap_entry entry)
{
    while (index > 0) {
        size_t parent = (index - 1) / 2;
        if (!before(&entry, &heap->entries[parent])) break;
        place(heap, index, heap->entries[parent]);
        index = parent;
    }
    place(heap, index, entry);
}

/* Moves the hole at `index` down until `entry` fits, and puts it there. */
static void sift_down(struct timer_heap *heap, size_t index, struct timer_heap_entry entry)
{
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && before(&heap->entries[child + 1], &heap->entries[child])) child++;
        if (!before(&heap->entries[child], &entry)) break;
        place(heap, index, heap->entries[child]);
        index = child;
    }
    place(heap, index, entry);
}

static enum weft_status grow(struct timer_heap *heap, struct weft_env *env)
{
    struct timer_heap_entry *entries = weft_alloc_array(env, heap->capacity * 2, sizeof entries[0]);
    if (!entries) return WEFT_ERR_NO_MEMORY;
    memcpy(entries, heap->entries, heap->count * sizeof entries[0]);
    weft_free_bytes(env, heap->entries);
    heap->entries = entries;
    heap->capacity *= 2;
    return WEFT_OK;
}

enum weft_status timer_heap_insert(struct timer_heap *heap, struct weft_env *env, struct weft_timer *timer)
{
    WEFT_ASSERT(timer->heap_index == SIZE_MAX);
    if (heap->count == heap->capacity) WEFT_TRY(grow(heap, env));
    struct timer_heap_entry entry = {timer->deadline_ns, heap->next_order++, timer};
    sift_up(heap, heap->count++, entry);
    return WEFT_OK;
}

void timer_heap_remove(struct timer_heap *heap, struct weft_timer *timer)
{
    size_t index = timer->heap_index;
    WEFT_ASSERT(index < heap->count && heap->entries[index].timer == timer);
    timer->heap_index = SIZE_MAX;
    struct timer_heap_entry last = heap->entries[--heap->count];
    if (last.timer == timer) return;
    if (index > 0 && before(&last, &heap->entries[(index - 1) / 2])) sift_up(heap, index, last);
    else sift_down(heap, index, last);
}
