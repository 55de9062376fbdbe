/* gather_tree.c - gather and scatter over a binomial tree: log2(p) message times for short pieces, any root.
 *
 * Ranks count from the root: v = rank - root modulo p. The parent of v is v without its lowest set bit b. The
 * subtree of v are the min(b, p - v) ranks from v on; their pieces are consecutive. An inner rank stores them
 * in scratch, a leaf uses its own buffer. At the root a subtree past the last rank is two ranges of the
 * vector, so two messages.
 *
 * No deadlock: messages go one way, up or down a tree. A message is as long as its subtree, up to half the
 * vector: a plan for short pieces of equal length. Scratch: the pieces of the subtree. */
#include "collective/plan/algorithm.h"

struct layout {
    uint32_t place;    /* v */
    uint32_t subtree;  /* number of ranks in it */
    uint32_t children;
    bool gathers;
};

static uint32_t subtree_of(const struct weft_plan_args *args, uint32_t place)
{
    uint32_t lowest = place & (~place + 1);
    return place == 0 ? args->ranks : lowest < args->ranks - place ? lowest : args->ranks - place;
}

static struct layout layout_of(const struct weft_plan_args *args)
{
    struct layout layout = {.place = plan_rank_before(args, args->root),
                            .gathers = args->kind == WEFT_COLL_GATHER};
    layout.subtree = subtree_of(args, layout.place);
    while (1ull << layout.children < layout.subtree) layout.children++;
    return layout;
}

/* Range 0 or 1 of the subtree at `place`, a child of the root, in pieces of the vector. */
struct stretch {
    uint64_t first, count;
};
static struct stretch stretch_of(const struct weft_plan_args *args, uint32_t place, uint32_t which)
{
    uint64_t first = ((uint64_t)args->root + place) % args->ranks, end = first + subtree_of(args, place),
             ranks = args->ranks;
    if (which == 0) return (struct stretch){first, (end < ranks ? end : ranks) - first};
    return (struct stretch){0, end > ranks ? end - ranks : 0};
}

static void move(struct weft_action *action, bool sends, uint32_t peer, uint32_t stretch, uint64_t count)
{
    if (count == 0) return;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->peer = peer;
    action->message = stretch + 1;
    action->count = count;
}

static uint32_t rank_at(const struct weft_plan_args *args, uint32_t place)
{
    return (uint32_t)(((uint64_t)args->root + place) % args->ranks);
}

/* The root: its own piece, then two ranges of each child. */
static bool root_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t index,
                      struct weft_action *action)
{
    if (index > 2ull * layout->children) return false;
    action->place = layout->gathers == (index > 0) ? WEFT_PLACE_OUTPUT : WEFT_PLACE_INPUT;
    if (index == 0) {
        action->kind = WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_INPUT;
        action->count = args->count;
        if (layout->gathers) action->offset = args->root * args->count;
        else action->offset_in = args->root * args->count;
        return true;
    }
    uint32_t child = (uint32_t)(index - 1) / 2, which = (uint32_t)(index - 1) % 2;
    uint32_t place = 1u << (layout->gathers ? child : layout->children - 1 - child);
    struct stretch stretch = stretch_of(args, place, which);
    move(action, !layout->gathers, rank_at(args, place), which, stretch.count * args->count);
    action->offset_in = action->offset = stretch.first * args->count;
    return true;
}

/* To or from the parent. Scratch begins with the own piece. */
static void parent_step(const struct weft_plan_args *args, const struct layout *layout, uint32_t which,
                        struct weft_action *action)
{
    uint32_t parent = layout->place & (layout->place - 1);
    struct stretch stretch = {0, which == 0 ? layout->subtree : 0};
    if (parent == 0) stretch = stretch_of(args, layout->place, which);
    bool leaf = layout->subtree == 1;
    action->place = !leaf ? WEFT_PLACE_SCRATCH : layout->gathers ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    action->scratch = which == 0 || leaf ? 0 : (layout->subtree - stretch.count) * args->count;
    move(action, layout->gathers, rank_at(args, parent), which, stretch.count * args->count);
}

static void child_step(const struct weft_plan_args *args, const struct layout *layout, uint32_t child,
                       struct weft_action *action)
{
    uint32_t distance = 1u << (layout->gathers ? child : layout->children - 1 - child),
             place = layout->place + distance;
    action->place = WEFT_PLACE_SCRATCH;
    action->scratch = distance * args->count;
    move(action, !layout->gathers, rank_at(args, place), 0, subtree_of(args, place) * args->count);
}

bool plan_gather_tree_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout layout = layout_of(args);
    bool leaf = layout.subtree == 1;
    if (args->count == 0) return false;
    if (layout.place == 0) return root_step(args, &layout, index, action);
    uint64_t own = leaf ? 0 : 1; /* step that moves the own piece between its buffer and scratch */
    if (index >= own + layout.children + 2) return false;
    /* a scatter runs in reverse order */
    uint64_t at = layout.gathers ? index : layout.children + own + 1 - index;
    if (at < own) {
        action->kind = layout.gathers ? WEFT_ACTION_PACK : WEFT_ACTION_COPY;
        action->place = layout.gathers ? WEFT_PLACE_INPUT : WEFT_PLACE_SCRATCH;
        action->count = args->count;
        if (!layout.gathers) action->after = index - 1;
    } else if (at < own + layout.children) {
        uint32_t child = (uint32_t)(at - own);
        child_step(args, &layout, layout.gathers ? child : layout.children - 1 - child, action);
        if (!layout.gathers) action->after = index - 1;
    } else {
        uint32_t which = (uint32_t)(at - own - layout.children);
        parent_step(args, &layout, layout.gathers ? which : 1 - which, action);
        if (layout.gathers && !leaf) action->after = which + 1;
    }
    return true;
}

uint64_t plan_gather_tree_scratch(const struct weft_plan_args *args)
{
    struct layout layout = layout_of(args);
    return layout.place == 0 || layout.subtree == 1 ? 0 : layout.subtree * args->count;
}
