/* pat.c - reduce_scatter and all_gather over one binomial tree per rank: log2(p) message times, any number of
 * ranks.
 *
 * The piece of rank o is summed (or spread) over a tree of distances from o: at distance d is rank o + d
 * (modulo p); its parent is d without its lowest set bit b. So near links carry most messages and the
 * farthest link one piece. All ranks walk the same distances: the message of rank r for d goes to r - b
 * (all_gather: to r + b, from the parent of d).
 *
 * Aggregation: with B = 2^low, the distances l, l + B, l + 2B ... of one l < B travel in one message, as many
 * as fit into a chunk.
 *
 *     reduce_scatter   low part: l in post order of the tree, nearest child first
 *                      top part: l = 0; distances 0, B, 2B ... are halved in rounds at B, 2B, 4B ...
 *     all_gather       the same in reverse
 *
 * If half of all pieces fit into a chunk, log2(p) messages suffice; pieces of a chunk take p - 1 messages,
 * with a few buffers for each bit of p. Longer pieces go chunk by chunk.
 *
 * Order of a sum: T over the ranks from the owner on, T(x[o], x[o+1] ... x[o+p-1]), indices modulo p:
 * deterministic. Partials are f32 for narrower floats, in scratch and in messages.
 * No deadlock: messages ordered by their place in the walk; every rank sends, then receives, the one of a
 * place. Scratch: 4 low + 3 messages.
 * Source: Jeaugey, arXiv 2506.20252; the order of the walk differs. */
#include "collective/plan/algorithm.h"

struct layout {
    uint32_t low, top; /* B = 2^low, rounds of the top part */
    uint64_t stride;   /* B */
    uint64_t held;     /* distances of l = 0, the most of any l */
    uint64_t pairs;    /* the low part runs in pairs of an odd l and the even one below */
    uint64_t top_steps, low_steps, steps; /* of one chunk */
    uint64_t buffer;   /* elements */
    uint64_t chunks;
};

/* Steps before pair m of the low part: 2 * held copies for each pair, and two for each l that is complete
 * with it: 1 + the number of trailing zeros of m + 1. */
static uint64_t pair_at(const struct layout *layout, uint64_t m)
{
    return 2 * layout->held * m + 2 * (2 * m - (uint64_t)__builtin_popcountll(m));
}

static struct layout layout_of(const struct weft_plan_args *args)
{
    struct layout layout = {.chunks = plan_slice_chunks(args)};
    uint32_t log2 = 0;
    uint64_t part = args->count < args->chunk_elems ? args->count : args->chunk_elems;
    while (1ull << log2 < args->ranks) log2++;
    while (layout.top + 1 < log2 && (2ull << layout.top) * part <= args->chunk_elems) layout.top++;
    layout.low = log2 - layout.top;
    layout.stride = 1ull << layout.low;
    layout.held = (args->ranks - 1) / layout.stride + 1;
    layout.pairs = layout.stride / 2;
    layout.low_steps = pair_at(&layout, layout.pairs);
    layout.top_steps = 2 * (layout.held - 1) + 2ull * layout.top;
    layout.steps =
        layout.low_steps + layout.top_steps + (args->kind == WEFT_COLL_ALL_GATHER ? layout.held + 1 : 0);
    layout.buffer = (layout.held * part + 63) & ~63ull;
    return layout;
}

/* Number of distances l, l + B ... */
static uint64_t held_at(const struct weft_plan_args *args, const struct layout *layout, uint64_t l)
{
    return l >= args->ranks ? 0 : (args->ranks - 1 - l) / layout->stride + 1;
}

/* Pieces of round `round` of the top part: odd multiples of 2^round below `held`; and of all earlier
 * rounds. */
static uint64_t round_pieces(const struct layout *layout, uint32_t round)
{
    return ((layout->held - (1ull << round) - 1) >> (round + 1)) + 1;
}

/* ---- scratch: two alternating send buffers for each level of l, as many for receives; then the buffers
 * of the top part ---- */
static uint64_t buffer_of(const struct layout *layout, uint64_t l)
{
    if (l == 0) return 4ull * layout->low * layout->buffer;
    uint32_t level = (uint32_t)__builtin_ctzll(l);
    return (2 * level + (l >> (level + 1) & 1)) * layout->buffer;
}
static uint64_t incoming_of(const struct layout *layout, uint64_t l)
{
    return buffer_of(layout, l) + 2ull * layout->low * layout->buffer;
}
static uint64_t top_send(const struct layout *layout) { return (4ull * layout->low + 1) * layout->buffer; }
static uint64_t top_recv(const struct layout *layout) { return (4ull * layout->low + 2) * layout->buffer; }

uint64_t plan_pat_scratch(const struct weft_plan_args *args)
{
    if (args->count == 0) return 0;
    struct layout layout = layout_of(args);
    return (4ull * layout.low + 3) * layout.buffer;
}

/* ---- one chunk ---- */
struct place {
    struct plan_range part;
    uint64_t chunk, index; /* within the chunk */
};

/* Position of the piece at distance d in the long vector. */
static uint64_t piece_at(const struct weft_plan_args *args, const struct place *place, uint64_t distance)
{
    return plan_rank_before(args, (uint32_t)distance) * args->count + place->part.first;
}

static void message_step(const struct weft_plan_args *args, const struct layout *layout,
                         const struct place *place, bool sends, uint64_t distance, uint64_t number,
                         struct weft_action *action)
{
    bool down = args->kind == WEFT_COLL_ALL_GATHER;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = WEFT_PLACE_SCRATCH;
    action->wide = !down;
    action->peer = sends == down ? plan_rank_after(args, (uint32_t)distance)
                                 : plan_rank_before(args, (uint32_t)distance);
    action->message = (uint32_t)(place->chunk * 2 * layout->stride + number);
}

/* A round of the top part moves every second one of the pieces 0, 2^round B, 2 * 2^round B ...: packed,
 * sent. The received pieces are added to the others, or stored between them. */
static void top_step(const struct weft_plan_args *args, const struct layout *layout,
                     const struct place *place, uint64_t at, struct weft_action *action)
{
    bool down = args->kind == WEFT_COLL_ALL_GATHER;
    uint32_t round = 0;
    uint64_t before = 0, start = 0, elems = place->part.count;
    for (uint32_t n = 0; n < layout->top; n++) {
        round = down ? layout->top - 1 - n : n;
        uint64_t steps = 2 * round_pieces(layout, round) + 2;
        if (at < start + steps) break;
        start += steps;
        before += round_pieces(layout, round);
    }
    uint64_t pieces = round_pieces(layout, round), x = at - start, total = buffer_of(layout, 0);
    uint64_t out_at = top_send(layout) + before * elems, in_at = top_recv(layout) + before * elems;
    if (x == pieces || x == pieces + 1) {
        bool sends = x == pieces;
        message_step(args, layout, place, sends, layout->stride << round, layout->stride + round, action);
        action->scratch = sends ? out_at : in_at;
        action->count = pieces * elems;
        if (sends) action->depends = 1;
        return;
    }
    bool packs = x < pieces;
    if (!packs) x -= pieces + 2;
    uint64_t even = total + (2 * x << round) * elems, odd = total + ((2 * x + 1) << round) * elems;
    action->place = WEFT_PLACE_SCRATCH;
    action->count = elems;
    action->depends = 1;
    if (x == 0) action->after = at - start + 1; /* all steps before this round */
    if (packs) {
        action->kind = WEFT_ACTION_PACK;
        action->scratch = out_at + x * elems;
        action->scratch_own = down ? even : odd;
        if (x == 0) action->depends = 0;
    } else if (down) {
        action->kind = WEFT_ACTION_PACK;
        action->scratch = odd;
        action->scratch_own = in_at + x * elems;
    } else {
        action->kind = WEFT_ACTION_SUM;
        action->scratch = in_at + x * elems;
        action->scratch_own = even;
        action->own_first = action->into_own = action->wide = true;
        action->last = round + 1 == layout->top;
    }
}

/* ---- the low part of a reduce_scatter ---- */
/* Every second pair uses the same buffers: this pair waits for the pair two before it. */
static uint64_t after_pair(const struct layout *layout, const struct place *place, uint64_t m)
{
    if (m >= 2) return place->index + 1 - pair_at(layout, m - 1);
    return place->chunk > 0 ? place->index + 1 : 0;
}

static void contribute_step(const struct weft_plan_args *args, const struct layout *layout,
                            const struct place *place, uint64_t m, uint64_t at, struct weft_action *action)
{
    uint64_t l = 2 * m + 1 - at / layout->held, x = at % layout->held;
    if (x > 0) action->depends = 1;
    else action->after = after_pair(layout, place, m);
    if (x >= held_at(args, layout, l)) return;
    action->kind = WEFT_ACTION_PACK;
    action->place = WEFT_PLACE_INPUT;
    action->offset_in = piece_at(args, place, l + x * layout->stride);
    action->scratch = buffer_of(layout, l) + x * place->part.count;
    action->count = place->part.count;
}

static void reduce_low_step(const struct weft_plan_args *args, const struct layout *layout,
                            const struct place *place, uint64_t m, uint64_t at, struct weft_action *action)
{
    if (at < 2 * layout->held) {
        contribute_step(args, layout, place, m, at, action);
        return;
    }
    at -= 2 * layout->held;
    uint32_t level = (uint32_t)(at / 2);
    bool sends = at % 2 == 0;
    uint64_t bit = 1ull << level, l = 2 * m + 2 - bit, parent = l - bit;
    if (held_at(args, layout, l) > 0) {
        message_step(args, layout, place, sends, bit, l, action);
        action->scratch = sends ? buffer_of(layout, l) : incoming_of(layout, l);
        action->count = held_at(args, layout, l) * place->part.count;
    }
    if (sends) {
        action->depends = level == 0 ? layout->held + 1 : 1; /* its copies, or its last sum */
        return;
    }
    action->scratch_own = buffer_of(layout, parent);
    if (action->kind != WEFT_ACTION_NONE) action->kind = WEFT_ACTION_RECV_SUM;
    action->own_first = action->into_own = true;
    action->last = parent == 0 && layout->top == 0 && level + 1 == layout->low;
    /* the copies, or the previous sum */
    action->depends = level == 0 ? 2 : level == 1 ? pair_at(layout, m) - pair_at(layout, m - 1) + 2 : 0;
    action->after = after_pair(layout, place, m);
}

static uint64_t pair_of(const struct layout *layout, uint64_t index)
{
    uint64_t low = 0, high = layout->pairs; /* pair_at(low) <= index < pair_at(high) */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (pair_at(layout, middle) <= index) low = middle;
        else high = middle;
    }
    return low;
}

static void reduce_step(const struct weft_plan_args *args, const struct layout *layout,
                        const struct place *place, struct weft_action *action)
{
    if (place->index >= layout->low_steps) {
        top_step(args, layout, place, place->index - layout->low_steps, action);
        action->offset = place->part.first;
        return;
    }
    uint64_t m = pair_of(layout, place->index);
    reduce_low_step(args, layout, place, m, place->index - pair_at(layout, m), action);
    action->offset = place->part.first;
}

/* ---- an all_gather: own piece | top | copies of l = 0 | pairs, the last first ---- */
static uint64_t low_at(const struct layout *layout) { return 2 + layout->top_steps + layout->held - 1; }
static uint64_t back_at(const struct layout *layout, uint64_t m)
{
    return low_at(layout) + layout->low_steps - pair_at(layout, m + 1);
}

/* The step after which the pieces of l are here. */
static uint64_t here_at(const struct layout *layout, uint64_t l)
{
    if (l == 0) return 1 + layout->top_steps;
    uint32_t level = (uint32_t)__builtin_ctzll(l);
    uint64_t m = (l + (1ull << level)) / 2 - 1, levels = 1 + (uint64_t)__builtin_ctzll(m + 1);
    return back_at(layout, m) + 2 * (levels - 1 - level) + 1;
}

static void unpack_step(const struct weft_plan_args *args, const struct layout *layout,
                        const struct place *place, uint64_t l, uint64_t x, struct weft_action *action)
{
    if (x >= held_at(args, layout, l)) return;
    action->kind = WEFT_ACTION_COPY;
    action->place = WEFT_PLACE_SCRATCH;
    action->scratch = buffer_of(layout, l) + x * place->part.count;
    action->offset = piece_at(args, place, l + x * layout->stride);
    action->count = place->part.count;
    action->depends = place->index - here_at(layout, l);
}

static void spread_low_step(const struct weft_plan_args *args, const struct layout *layout,
                            const struct place *place, struct weft_action *action)
{
    uint64_t m = 0, high = layout->pairs - 1; /* the least m with back_at(m) <= index */
    while (m < high) {
        uint64_t middle = m + (high - m) / 2;
        if (back_at(layout, middle) <= place->index) high = middle;
        else m = middle + 1;
    }
    uint64_t at = place->index - back_at(layout, m), levels = 1 + (uint64_t)__builtin_ctzll(m + 1);
    if (at >= 2 * levels) {
        at -= 2 * levels;
        uint64_t l = 2 * m + 1 - at / layout->held;
        if (l > 0) unpack_step(args, layout, place, l, at % layout->held, action); /* l = 0 is done */
        return;
    }
    uint32_t level = (uint32_t)(levels - 1 - at / 2);
    bool sends = at % 2 == 0;
    uint64_t bit = 1ull << level, l = 2 * m + 2 - bit, parent = l - bit;
    if (held_at(args, layout, l) == 0) return;
    message_step(args, layout, place, sends, bit, l, action);
    action->scratch = buffer_of(layout, sends ? parent : l);
    action->count = held_at(args, layout, l) * place->part.count;
    if (sends) action->depends = place->index - here_at(layout, parent);
    else if (m + 2 < layout->pairs) action->after = place->index + 1 - back_at(layout, m + 1);
    else if (place->chunk > 0) action->after = place->index + 1;
}

static void spread_step(const struct weft_plan_args *args, const struct layout *layout,
                        const struct place *place, struct weft_action *action)
{
    if (place->index < 2) {
        bool packs = place->index == 1;
        action->kind = packs ? WEFT_ACTION_PACK : WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_INPUT;
        action->offset_in = place->part.first;
        action->offset = piece_at(args, place, 0);
        action->scratch = buffer_of(layout, 0);
        action->count = place->part.count;
        if (packs && place->chunk > 0) action->after = place->index + 1;
    } else if (place->index < 2 + layout->top_steps) {
        top_step(args, layout, place, place->index - 2, action);
    } else if (place->index < low_at(layout)) {
        unpack_step(args, layout, place, 0, place->index - 2 - layout->top_steps + 1, action);
    } else {
        spread_low_step(args, layout, place, action);
    }
}

bool plan_pat_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    if (args->count == 0) return false;
    struct layout layout = layout_of(args);
    struct place place = {.chunk = index / layout.steps, .index = index % layout.steps};
    if (place.chunk >= layout.chunks) return false;
    place.part.first = place.chunk * args->chunk_elems;
    place.part.count = args->count - place.part.first < args->chunk_elems ? args->count - place.part.first
                                                                          : args->chunk_elems;
    if (args->kind == WEFT_COLL_ALL_GATHER) spread_step(args, &layout, &place, action);
    else reduce_step(args, &layout, &place, action);
    return true;
}
