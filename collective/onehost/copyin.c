/* copyin.c - copy-in: a rank publishes its contribution itself instead of the address of its buffer.
 *
 *   up to 16 B    inline in the descriptor
 *   up to 4 KiB   in a small slot, one of 32
 *   longer        in consecutive large slots, of 16 with 64 KiB each
 *
 * The limits are in tuning/copyin_limit.c. All ranks find the same from the call and the number of cores
 * (setup.c). A rank that only contributes completes early (sequence.c). If all buffers are mapped,
 * contributions above a lower limit are read where they are (onehost_can_prefer_direct). The descriptors
 * show what each rank did. If ranks differ, the operation falls back to messages. */
#include "collective/onehost/onehost.h"

_Static_assert(3 * PLAN_ONEHOST_COPYIN_BYTES_MAX <= ONEHOST_LARGE_POOL_BYTES,
               "a contribution has free slots, whatever the operation before occupies");
_Static_assert(PLAN_ONEHOST_COPYIN_SMALL_BYTES <= ONEHOST_SMALL_SLOT_BYTES, "it fits into a small slot");

bool onehost_copyin_has_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
}

static uint64_t contribution_bytes(const struct weft_group *group, const struct weft_coll_args *args)
{
    /* no overflow: weft_coll_check has checked it */
    return args->count * weft_dtype_bytes(args->dtype) *
           (onehost_copyin_has_pieces(args->kind) ? group->ranks : 1);
}

static bool fits_copyin(const struct weft_group *group, const struct weft_coll_args *args,
                        bool is_oversubscribed)
{
    if (args->kind == WEFT_COLL_BARRIER) return true;
    return !args->counts && !args->unequal &&
           contribution_bytes(group, args) <=
               plan_onehost_copyin_limit(args->kind, group->ranks, is_oversubscribed);
}

bool onehost_uses_copyin(const struct weft_group *group, const struct weft_coll_args *args)
{
    return fits_copyin(group, args, group->onehost->is_oversubscribed);
}

bool onehost_can_prefer_direct(const struct weft_group *group, const struct weft_coll_args *args)
{
    return onehost_uses_copyin(group, args) && args->kind != WEFT_COLL_BARRIER &&
           contribution_bytes(group, args) >
               plan_onehost_copyin_limit_direct(args->kind, group->ranks, group->onehost->is_oversubscribed);
}

size_t onehost_copyin_bytes_of(const struct weft_group *group, const struct weft_coll_args *args,
                               uint32_t rank)
{
    bool root = args->root == rank;
    switch (args->kind) {
    case WEFT_COLL_BARRIER: return 0;
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_SCATTER:
        if (!root) return 0;
        break;
    case WEFT_COLL_REDUCE:
    case WEFT_COLL_GATHER:
        if (root) return 0; /* the root reads its own input */
        break;
    default: break;
    }
    return args->count * weft_dtype_bytes(args->dtype) *
           (onehost_copyin_has_pieces(args->kind) ? group->ranks : 1);
}

bool onehost_has_single_reader(const struct weft_group *group, enum weft_coll_kind kind)
{
    return group->ranks == 2 ||
           (kind != WEFT_COLL_BROADCAST && kind != WEFT_COLL_ALL_GATHER && kind != WEFT_COLL_ALL_REDUCE);
}

size_t onehost_copyin_bytes(const struct weft_group *group, const struct weft_coll_args *args)
{
    return onehost_copyin_bytes_of(group, args, group->rank);
}

/* Before the vote it is unknown whether ranks are oversubscribed: the larger of both cases. */
size_t onehost_slot_bytes(const struct onehost *onehost, const struct weft_coll_args *args)
{
    bool is_oversubscribed = onehost->state != ONEHOST_ENABLED || onehost->is_oversubscribed;
    size_t copyin =
        fits_copyin(onehost->group, args, is_oversubscribed) ? onehost_copyin_bytes(onehost->group, args) : 0;
    return copyin == 0 && onehost_publishes_cuts(onehost->group, args) ? ONEHOST_SMALL_SLOT_BYTES : copyin;
}

bool onehost_copyin_reserve(struct onehost *onehost, const struct weft_coll_args *args)
{
    size_t bytes = onehost_slot_bytes(onehost, args);
    return !onehost_needs_slot(bytes) || onehost_slots_acquire(onehost, onehost_slot_class_of(bytes));
}

uint64_t onehost_copyin_moved_bytes(const struct weft_group *group, const struct weft_coll_args *args)
{
    uint64_t copyin = onehost_copyin_bytes(group, args), others = group->ranks - 1;
    /* read by the root only */
    if (args->kind == WEFT_COLL_REDUCE || args->kind == WEFT_COLL_GATHER) return copyin;
    return onehost_copyin_has_pieces(args->kind) && args->kind != WEFT_COLL_REDUCE_SCATTER
               ? copyin / group->ranks * others
               : copyin * others;
}
