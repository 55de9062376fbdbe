/* double_tree.c - two complementary binary trees, each for every other chunk: all_reduce in 2 log2(p) message
 * times at nearly the bandwidth of the ring, for any number of ranks.
 *
 * First tree, positions 0 .. p-1, b the lowest set bit of a position: the parent clears b and sets the next
 * bit, or only clears b if that is past the last position. The children are position - b/2 and position +
 * b/2, the latter halved until it exists. Position 0 is the root; its only child is the largest power of two
 * below p. Second tree: the mirror image for an even p, the first tree shifted by one rank for an odd p. No
 * rank (odd p: one rank) has children in both trees, so over two chunks a rank sends and receives about two
 * chunks up and two down.
 *
 *     up    (U)  lower child's partial + own contribution + upper child's partial; send to the parent
 *     down  (D)  receive the finished chunk from the parent, send it to the children
 *
 *     U0 U1 ... U(e-1) | D0 U(e) | D1 U(e+1) | ...      e: about twice the depth
 *
 * Positions follow the ring order (ring.c), so few edges connect distant hosts.
 *
 * Order: at each position (lower child + own) + upper child, in the tree of the element's chunk: it
 * depends on p and on the chunk. Partials are f32 for narrower floats, also in messages upward. No
 * deadlock: messages ordered by (position above, up: height, down: depth); both ends walk this order. Per
 * rank: up to 3 messages of a chunk each way. Scratch: 8 chunks. Source: Sanders, Speck, Traff, Parallel
 * Computing 2009. */
#include "collective/plan/algorithm.h"

#define SLOTS 4u /* chunks on their way up */

struct node {
    uint32_t parent, lower, upper; /* ranks; UINT32_MAX: none */
    uint32_t children;
    uint64_t steps;                /* of one U, and of one D */
};

static uint32_t rank_of(const struct weft_plan_args *args, uint32_t tree, uint32_t position)
{
    if (tree == 0) return plan_ring_rank(args, position);
    return plan_ring_rank(args, args->ranks % 2 == 0 ? args->ranks - 1 - position : position + 1);
}
static uint32_t position_of(const struct weft_plan_args *args, uint32_t tree)
{
    uint32_t turn = plan_ring_position(args);
    if (tree == 0) return turn;
    return args->ranks % 2 == 0 ? args->ranks - 1 - turn : (turn + args->ranks - 1) % args->ranks;
}

static struct node node_of(const struct weft_plan_args *args, uint32_t tree)
{
    uint32_t position = position_of(args, tree), lowest = position & (~position + 1);
    struct node node = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, 0};
    if (position == 0) {
        uint32_t child = 1;
        while ((uint64_t)child * 2 < args->ranks) child *= 2;
        node.upper = rank_of(args, tree, child);
    } else {
        uint64_t up = ((uint64_t)position ^ lowest) | (uint64_t)lowest << 1;
        node.parent = rank_of(args, tree, up < args->ranks ? (uint32_t)up : position ^ lowest);
        uint32_t reach = lowest / 2;
        if (reach > 0) node.lower = rank_of(args, tree, position - reach);
        while (reach > 0 && (uint64_t)position + reach >= args->ranks) reach /= 2;
        if (reach > 0) node.upper = rank_of(args, tree, position + reach);
    }
    node.children = (node.lower != UINT32_MAX) + (node.upper != UINT32_MAX);
    node.steps = node.children + (node.parent != UINT32_MAX);
    return node;
}

struct layout {
    struct node nodes[2];
    uint64_t chunks, ahead; /* ahead: the e of the file head */
};

static struct layout layout_of(const struct weft_plan_args *args)
{
    struct layout layout = {.chunks = plan_vector_chunks(args), .ahead = 4};
    for (uint32_t ranks = args->ranks; ranks > 1; ranks /= 2) layout.ahead += 2;
    if (layout.ahead > layout.chunks) layout.ahead = layout.chunks;
    for (uint32_t tree = 0; tree < 2; tree++) layout.nodes[tree] = node_of(args, tree);
    return layout;
}

/* Steps of the U, or the D, of chunks before `chunk`. */
static uint64_t steps_before(const struct layout *layout, uint64_t chunk)
{
    return chunk / 2 * (layout->nodes[0].steps + layout->nodes[1].steps) +
           (chunk % 2 ? layout->nodes[0].steps : 0);
}
static uint64_t up_at(const struct layout *layout, uint64_t chunk)
{
    if (chunk < layout->ahead) return steps_before(layout, chunk);
    uint64_t pair = chunk - layout->ahead; /* the D before it */
    return steps_before(layout, layout->ahead) + steps_before(layout, pair) + steps_before(layout, pair + 1) +
           (steps_before(layout, chunk) - steps_before(layout, layout->ahead) - steps_before(layout, pair));
}
static uint64_t down_at(const struct layout *layout, uint64_t chunk)
{
    uint64_t paired = layout->chunks - layout->ahead, ups = layout->ahead + (chunk < paired ? chunk : paired);
    return steps_before(layout, ups) + steps_before(layout, chunk);
}

static uint64_t part_elems(const struct weft_plan_args *args)
{
    uint64_t longest = args->count < args->chunk_elems ? args->count : args->chunk_elems;
    return (longest + 63) & ~63ull;
}
static uint64_t part_at(const struct weft_plan_args *args, uint64_t chunk, uint32_t part)
{
    return (2 * (chunk % SLOTS) + part) * part_elems(args);
}

static void up_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                    uint64_t at, struct weft_action *action)
{
    const struct node *node = &layout->nodes[chunk & 1];
    action->message = (uint32_t)(2 * chunk + 1);
    action->place = at == 0 ? WEFT_PLACE_INPUT : WEFT_PLACE_SCRATCH;
    if (at == node->children) {
        action->kind = WEFT_ACTION_SEND;
        action->peer = node->parent;
        action->scratch = part_at(args, chunk, 0);
        action->wide = at > 0;
        action->depends = at > 0 ? 1 : 0;
        return;
    }
    bool lower = at == 0 && node->lower != UINT32_MAX;
    action->kind = WEFT_ACTION_RECV_SUM;
    action->peer = lower ? node->lower : node->upper;
    action->own_first = !lower;
    action->scratch_own = part_at(args, chunk, 0);
    action->scratch = part_at(args, chunk, (uint32_t)at);
    action->into_own = at > 0;
    action->last = node->parent == UINT32_MAX && at + 1 == node->children;
    if (at > 0) action->depends = 1;
    else if (chunk >= SLOTS)
        action->depends = up_at(layout, chunk) - (up_at(layout, chunk - SLOTS) + node->steps - 1);
}

static void down_step(const struct layout *layout, uint64_t chunk, uint64_t at, struct weft_action *action)
{
    const struct node *node = &layout->nodes[chunk & 1];
    bool receives = node->parent != UINT32_MAX;
    action->message = (uint32_t)(2 * chunk + 2);
    action->place = WEFT_PLACE_OUTPUT;
    if (receives && at == 0) {
        action->kind = WEFT_ACTION_RECV;
        action->peer = node->parent;
        return;
    }
    action->kind = WEFT_ACTION_SEND;
    action->peer = at == (receives ? 1 : 0) && node->lower != UINT32_MAX ? node->lower : node->upper;
    action->depends = receives ? at : down_at(layout, chunk) + at - (up_at(layout, chunk) + node->steps - 1);
}

/* Returns whether the child sends its contribution, not a partial. */
static bool is_leaf(const struct weft_plan_args *args, uint32_t tree, uint32_t rank)
{
    struct weft_plan_args other = *args;
    other.rank = rank;
    return node_of(&other, tree).children == 0;
}

/* Returns the chunk that contains step *at of a sequence of D or U, each counted `times` times. *at
 * becomes the step in the chunk. */
static uint64_t chunk_of(const struct layout *layout, uint64_t first, uint64_t times, uint64_t *at)
{
    uint64_t steps[2] = {times * layout->nodes[first & 1].steps, times * layout->nodes[~first & 1].steps};
    uint64_t chunk = first + *at / (steps[0] + steps[1]) * 2;
    *at %= steps[0] + steps[1];
    if (*at < steps[0]) return chunk;
    *at -= steps[0];
    return chunk + 1;
}

bool plan_double_tree_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout layout = layout_of(args);
    uint64_t chunks = layout.chunks, paired = chunks - layout.ahead, chunk, at = index;
    bool up = true;
    if (at < steps_before(&layout, layout.ahead)) {
        chunk = chunk_of(&layout, 0, 1, &at);
    } else if (at -= steps_before(&layout, layout.ahead), at < 2 * steps_before(&layout, paired)) {
        chunk = chunk_of(&layout, 0, 2, &at); /* e is even, so D and U of one group belong to one tree */
        uint64_t steps = layout.nodes[chunk & 1].steps;
        up = at >= steps;
        if (up) at -= steps, chunk += layout.ahead;
    } else {
        at -= 2 * steps_before(&layout, paired);
        chunk = chunk_of(&layout, paired, 1, &at);
        up = false;
        if (chunk >= chunks) return false;
    }
    struct plan_range part = plan_vector_chunk(args, chunk);
    action->offset_in = action->offset = part.first;
    action->count = part.count;
    if (!up) {
        down_step(&layout, chunk, at, action);
        return true;
    }
    up_step(args, &layout, chunk, at, action);
    if (action->kind == WEFT_ACTION_RECV_SUM) action->wide = !is_leaf(args, chunk & 1, action->peer);
    return true;
}

uint64_t plan_double_tree_scratch(const struct weft_plan_args *args)
{
    uint64_t chunks = plan_vector_chunks(args);
    return 2 * (chunks < SLOTS ? chunks : SLOTS) * part_elems(args);
}
