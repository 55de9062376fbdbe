/* copyin.c - contributions that a rank says with its announcement, instead of where its buffers lie (how
 * long: copyin_limit.c).
 *
 *     up to 16 bytes       in the line itself
 *     up to 4 KiB          in a room of the rank, with places for 32 operations in turn
 *     longer               in a hall, with 16 slots of 64 KiB, in the first that are free: those that the caches hold
 *
 * Which of them are said at all, copyin_limit.c knows. Who only gives needs not even the one round of words
 * that is left: it goes ahead of the others by as many operations as there are places (sequence.c).
 *
 * Every rank finds the same from the call and from what all know of their processors (setup.c). Those
 * whose buffers are mapped lend them above a length at which others still say theirs
 * (onehost_may_allow_stealing): all find in the announcements whether all lend, or all say. Where some do
 * one and some the other, the operation goes by messages; it has the memory for that, so what is said of
 * these is not tried within its call (onehost/fastpath.c). */
#include "collective/onehost/onehost.h"

_Static_assert(3 * PLAN_ONEHOST_COPYIN_BYTES_MAX <= ONEHOST_LARGE_POOL_BYTES,
               "what is said has a place, whatever is said in the operation before and wherever that lies");
_Static_assert(PLAN_ONEHOST_COPYIN_SMALL_BYTES <= ONEHOST_SMALL_SLOT_BYTES, "likewise in a room");

bool onehost_copyin_has_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
}

static uint64_t contribution_bytes(const struct weft_group *group, const struct weft_coll_args *args)
{
    /* fits: checked at the door */
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

bool onehost_may_allow_stealing(const struct weft_group *group, const struct weft_coll_args *args)
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
        if (root) return 0; /* it has its own itself */
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

/* Before the vote nobody knows whether ranks will take turns: then for the longer of the two. */
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
    /* the root reads it */
    if (args->kind == WEFT_COLL_REDUCE || args->kind == WEFT_COLL_GATHER) return copyin;
    return onehost_copyin_has_pieces(args->kind) && args->kind != WEFT_COLL_REDUCE_SCATTER
               ? copyin / group->ranks * others
               : copyin * others;
}
