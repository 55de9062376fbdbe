/* host_said.c - contributions that a rank says with its announcement, instead of where its buffers lie (how long: choose_said.c).
 *
 *     up to 16 bytes       in the line itself
 *     up to 4 KiB          in a room of the rank, with places for 32 operations in turn
 *     longer               in a hall, with 16 slots of 64 KiB, in the first that are free: those that the caches hold
 *
 * Which of them are said at all, choose_said.c knows. Who only gives needs not even the one round of words that is left: it goes ahead of the others
 * by as many operations as there are places (host_ahead.c).
 *
 * Every rank finds the same from the call and from what all know of their processors (host_setup.c). Those whose buffers are
 * mapped lend them above a length at which others still say theirs (host_may_lend): all find in the announcements whether all lend, or all say. Where
 * some do one and some the other, the operation goes by messages; it has the memory for that, so what is said of these is not tried within its call
 * (host_brief.c). */
#include "collective/host.h"

_Static_assert(3 * PLAN_ONE_HOST_SAID <= HOST_HALL_BYTES, "what is said has a place, whatever is said in the operation before and wherever that lies");
_Static_assert(PLAN_ONE_HOST_SHORT <= HOST_SHORT_BYTES, "likewise in a room");

bool host_says_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
}

static uint64_t contribution_bytes(const struct weft_group *group, const struct weft_coll_args *args)
{
    return args->count * weft_dtype_bytes(args->dtype) * (host_says_pieces(args->kind) ? group->ranks : 1); /* fits: checked at the door */
}

static bool is_said(const struct weft_group *group, const struct weft_coll_args *args, bool crowded)
{
    if (args->kind == WEFT_COLL_BARRIER) return true;
    return !args->counts && !args->unequal && contribution_bytes(group, args) <= plan_one_host_said(args->kind, group->ranks, crowded);
}

bool host_is_short(const struct weft_group *group, const struct weft_coll_args *args) { return is_said(group, args, group->host->crowded); }

bool host_may_lend(const struct weft_group *group, const struct weft_coll_args *args)
{
    return host_is_short(group, args) && args->kind != WEFT_COLL_BARRIER &&
           contribution_bytes(group, args) > plan_one_host_said_mapped(args->kind, group->ranks, group->host->crowded);
}

size_t host_said_bytes(const struct weft_group *group, const struct weft_coll_args *args, uint32_t rank)
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
    return args->count * weft_dtype_bytes(args->dtype) * (host_says_pieces(args->kind) ? group->ranks : 1);
}

bool host_one_reads(const struct weft_group *group, enum weft_coll_kind kind)
{
    return group->ranks == 2 || (kind != WEFT_COLL_BROADCAST && kind != WEFT_COLL_ALL_GATHER && kind != WEFT_COLL_ALL_REDUCE);
}

size_t host_short_bytes(const struct weft_group *group, const struct weft_coll_args *args) { return host_said_bytes(group, args, group->rank); }

/* Before the vote nobody knows whether ranks will take turns: then for the longer of the two. */
size_t host_room_bytes(const struct host *host, const struct weft_coll_args *args)
{
    bool crowded = host->state != HOST_ON || host->crowded;
    size_t said = is_said(host->group, args, crowded) ? host_short_bytes(host->group, args) : 0;
    return said == 0 && host_says_cuts(host->group, args) ? HOST_SHORT_BYTES : said;
}

bool host_may_say(struct host *host, const struct weft_coll_args *args)
{
    size_t bytes = host_room_bytes(host, args);
    return !host_needs_room(bytes) || host_room_take(host, host_room_of(bytes));
}

uint64_t host_moved_short(const struct weft_group *group, const struct weft_coll_args *args)
{
    uint64_t said = host_short_bytes(group, args), others = group->ranks - 1;
    if (args->kind == WEFT_COLL_REDUCE || args->kind == WEFT_COLL_GATHER) return said; /* the root reads it */
    return host_says_pieces(args->kind) && args->kind != WEFT_COLL_REDUCE_SCATTER ? said / group->ranks * others : said * others;
}
