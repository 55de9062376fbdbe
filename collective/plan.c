/* plan.c - what all plans share: the greeting, the cut into slices and chunks, names, dispatch.
 *
 * A plan is a pure function (arguments, step number) -> step. Nothing is stored but the number of the
 * next step, so a ring over thousands of ranks costs no memory and any step can be looked at alone.
 *
 * Every plan opens with the greeting: a message without payload to the rank ahead, and one from the rank
 * behind. Each message carries a header that says how its sender called (wire.c). If not all ranks
 * called alike, some rank differs from the one behind it on the circle and finds out from the greeting
 * at once, whatever the two plans would have sent. It also makes operations without elements real.
 *
 * Slices: rank i owns slice i of the vector. For all_reduce slice i is [count*i/ranks, count*(i+1)/ranks),
 * so lengths differ by at most one; for reduce_scatter and all_gather it is piece i of `count` elements. A
 * slice longer than chunk_elems is cut into chunks. */
#include "collective/plan.h"

#include <string.h>

#define GREETING_STEPS 2u

void weft_plan_begin(struct weft_plan_cursor *cursor, const struct weft_plan_args *args)
{
    WEFT_ASSERT(args->ranks > 0 && args->rank < args->ranks);
    WEFT_ASSERT(args->chunk_elems > 0 && args->lanes > 0);
    WEFT_ASSERT(weft_plan_supports(args->plan, args->kind));
    cursor->args = *args;
    cursor->next = 0;
}

/* One rank has nobody to talk to: its contribution, chunk by chunk, is the result. */
static bool alone_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    bool copies = args->kind != WEFT_COLL_BROADCAST && args->kind != WEFT_COLL_BARRIER;
    if (!copies || index >= plan_chunks(args)) return false;
    struct plan_part part = plan_part_of(args, 0, index);
    action->kind = WEFT_ACTION_COPY;
    action->offset_in = action->offset = part.first;
    action->count = part.count;
    action->last = args->kind == WEFT_COLL_ALL_REDUCE || args->kind == WEFT_COLL_REDUCE_SCATTER;
    return true;
}

static bool plan_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    if (args->ranks == 1) return alone_step(args, index, action);
    if (index == 0) {
        action->kind = WEFT_ACTION_SEND;
        action->place = WEFT_PLACE_INPUT;
        action->peer = plan_ahead(args, 1);
        return true;
    }
    if (index == 1) {
        action->kind = WEFT_ACTION_RECV;
        action->peer = plan_behind(args, 1);
        return true;
    }
    index -= GREETING_STEPS;
    if (args->kind == WEFT_COLL_BARRIER) return plan_barrier_step(args, index, action);
    if (args->kind == WEFT_COLL_BROADCAST) return plan_broadcast_step(args, index, action);
    if (args->plan == WEFT_PLAN_RING) return plan_ring_step(args, index, action);
    return plan_direct_step(args, index, action);
}

void weft_plan_next(struct weft_plan_cursor *cursor, struct weft_action *action_out)
{
    memset(action_out, 0, sizeof *action_out);
    if (plan_step(&cursor->args, cursor->next, action_out)) {
        WEFT_ASSERT(action_out->depends <= cursor->next);
        cursor->next++;
        return;
    }
    memset(action_out, 0, sizeof *action_out);
    action_out->kind = WEFT_ACTION_DONE;
}

bool weft_plan_supports(enum weft_plan_id plan, enum weft_coll_kind kind)
{
    switch (plan) {
    case WEFT_PLAN_DIRECT:
        return kind >= WEFT_COLL_ALL_REDUCE && kind <= WEFT_COLL_ALL_GATHER_BYTES;
    case WEFT_PLAN_RING:
        return kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_ALL_GATHER;
    default:
        return false;
    }
}

bool weft_plan_reproducible(enum weft_plan_id plan) { return plan == WEFT_PLAN_DIRECT; }

uint32_t weft_plan_areas(const struct weft_plan_args *args)
{
    bool sums = args->kind == WEFT_COLL_ALL_REDUCE || args->kind == WEFT_COLL_REDUCE_SCATTER;
    if (!sums || args->ranks == 1) return 0;
    return args->plan == WEFT_PLAN_RING ? plan_ring_areas(args) : plan_direct_areas(args);
}

uint64_t weft_plan_slice_first(const struct weft_plan_args *args, uint32_t index)
{
    if (args->kind != WEFT_COLL_ALL_REDUCE) return args->count * index;
    /* count*index/ranks without a product that could overflow */
    uint64_t whole = args->count / args->ranks, rest = args->count % args->ranks;
    return whole * index + rest * index / args->ranks;
}

uint64_t plan_chunks(const struct weft_plan_args *args)
{
    uint64_t longest = args->count;
    if (args->kind == WEFT_COLL_ALL_REDUCE) longest = args->count / args->ranks + (args->count % args->ranks != 0);
    return longest / args->chunk_elems + (longest % args->chunk_elems != 0);
}

struct plan_part plan_part_of(const struct weft_plan_args *args, uint32_t slice, uint64_t chunk)
{
    uint64_t length = args->kind == WEFT_COLL_BROADCAST
        ? args->count : weft_plan_slice_first(args, slice + 1) - weft_plan_slice_first(args, slice);
    struct plan_part part = {chunk * args->chunk_elems, 0};
    if (part.first < length) {
        part.count = length - part.first;
        if (part.count > args->chunk_elems) part.count = args->chunk_elems;
    }
    return part;
}

uint64_t plan_slice_in(const struct weft_plan_args *args, uint32_t slice)
{
    bool piece = args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_ALL_GATHER_BYTES;
    return piece ? 0 : weft_plan_slice_first(args, slice);
}

uint64_t plan_slice_out(const struct weft_plan_args *args, uint32_t slice)
{
    return args->kind == WEFT_COLL_REDUCE_SCATTER ? 0 : weft_plan_slice_first(args, slice);
}

const char *weft_plan_name(enum weft_plan_id plan)
{
    switch (plan) {
    case WEFT_PLAN_AUTO: return "auto";
    case WEFT_PLAN_DIRECT: return "direct";
    case WEFT_PLAN_RING: return "ring";
    }
    return "?";
}

enum weft_plan_id weft_plan_parse(const char *name)
{
    if (strcmp(name, "direct") == 0) return WEFT_PLAN_DIRECT;
    if (strcmp(name, "ring") == 0) return WEFT_PLAN_RING;
    return WEFT_PLAN_AUTO;
}

const char *weft_coll_kind_name(enum weft_coll_kind kind)
{
    switch (kind) {
    case WEFT_COLL_ALL_REDUCE: return "all_reduce";
    case WEFT_COLL_REDUCE_SCATTER: return "reduce_scatter";
    case WEFT_COLL_ALL_GATHER: return "all_gather";
    case WEFT_COLL_BROADCAST: return "broadcast";
    case WEFT_COLL_BARRIER: return "barrier";
    case WEFT_COLL_ALL_GATHER_BYTES: return "all_gather_bytes";
    }
    return "?";
}
