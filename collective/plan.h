/* plan.h - inside the room: what a plan file provides, and the arithmetic of slices they share. */
#ifndef WEFT_COLLECTIVE_PLAN_H
#define WEFT_COLLECTIVE_PLAN_H

#include "collective/collective.h"

/* Step number `index` (counted after the two of the greeting, plan.c) into *action_out, which comes zeroed
 * (kind NONE). `greeting` is how many steps precede index 0. Returns false past the last step. */
bool plan_direct_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_ring_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_broadcast_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_barrier_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);

uint32_t plan_direct_areas(const struct weft_plan_args *args);
uint32_t plan_ring_areas(const struct weft_plan_args *args);

/* Chunks of the longest slice: every rank walks this many, so that positions agree everywhere. */
uint64_t plan_chunks(const struct weft_plan_args *args);

/* Chunk `chunk` of slice `slice`: where it starts within the slice and how long it is (0: no such part). */
struct plan_part {
    uint64_t first; /* within the slice */
    uint64_t count;
};
struct plan_part plan_part_of(const struct weft_plan_args *args, uint32_t slice, uint64_t chunk);

/* Where slice `slice` starts in the input and in the output vector of this rank. The vector that holds only
 * one rank's piece (output of reduce_scatter, input of all_gather) starts with that piece. */
uint64_t plan_slice_in(const struct weft_plan_args *args, uint32_t slice);
uint64_t plan_slice_out(const struct weft_plan_args *args, uint32_t slice);

static inline uint32_t plan_ahead(const struct weft_plan_args *args, uint32_t distance)
{
    return (uint32_t)(((uint64_t)args->rank + distance) % args->ranks);
}

static inline uint32_t plan_behind(const struct weft_plan_args *args, uint32_t distance)
{
    return (uint32_t)(((uint64_t)args->rank + args->ranks - distance % args->ranks) % args->ranks);
}

#endif
