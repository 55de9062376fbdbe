/* timer_heap.h - running timers of one loop: a binary heap ordered by (deadline, order of start).
 *
 * Equal deadlines run in the order of start, so that a simulation is reproducible. A timer knows its
 * heap_index, so a stop is O(log n). Internal to base. */
#ifndef WEFT_BASE_LOOP_TIMER_HEAP_H
#define WEFT_BASE_LOOP_TIMER_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"

struct timer_heap_entry {
    uint64_t deadline_ns;
    uint64_t order;
    struct weft_timer *timer;
};

struct timer_heap {
    struct timer_heap_entry *entries; /* owned */
    size_t count, capacity;
    uint64_t next_order;
};

enum weft_status timer_heap_init(struct timer_heap *heap, struct weft_env *env);
void timer_heap_fini(struct timer_heap *heap, struct weft_env *env); /* all timers count as stopped */
enum weft_status timer_heap_insert(struct timer_heap *heap, struct weft_env *env, struct weft_timer *timer);
void timer_heap_remove(struct timer_heap *heap, struct weft_timer *timer);

#endif
