/* halving.c - recursive halving, then doubling, over binary blocks: log2(p) message times, bytes of the ring.
 *
 * Blocks as in doubling.c. At distance 1, 2, 4 ... two ranks halve the range that both hold: each sends one
 * half and adds the peer's contribution to the half that its bit of the distance selects. After k rounds
 * place j of a block has the block's T of one 2^k-th of the vector, selected by the bits of j from the lowest
 * up. So the piece of a place in a larger block is inside the piece of the place with the same low bits in a
 * smaller block.
 *
 *     halve    t = 0 .. k-1     send one half to i xor 2^t, receive the own half from it and add
 *     up       last block to first: the piece, cut for the ranks of the larger previous block; own + R
 *     down     the finished pieces return the same way, first block to last
 *     double   t = k-1 .. 0     exchange all finished elements with i xor 2^t
 *
 * The vector is cut into segments of two chunks, so no message is longer than a chunk (with many ranks
 * longer: plan_halving_chunk). Two segments are in flight.
 *
 * Order: T. Partials are f32 for narrower floats, also in messages; a single rank sends its contribution
 * unchanged.
 * No deadlock: messages ordered by (segment, halve, up from the last block, down from the first, double);
 * both ends walk this order.
 * Per rank of a power of two: 2 log2(p) messages and 2n(p-1)/p elements each way in a segment. A rank of a
 * smaller block also sends and receives its whole piece once.
 * Scratch: about a segment, twice if there are several. Source: Rabenseifner, ICCS 2004; ordered blocks and
 * ascending distances give T. */
#include "collective/plan/algorithm.h"

struct layout {
    struct plan_block block;
    uint32_t place, log2;
    /* ranks of the previous block for each rank of this one; 0: this is the first block */
    uint32_t fan;
    bool next;             /* there is a next block */
    uint64_t halve, up, down; /* end of each phase, in steps */
    uint64_t steps;        /* of one segment */
};

static struct layout layout_of(const struct weft_plan_args *args)
{
    struct layout layout = {.block = plan_block_of(args->ranks, args->rank)};
    layout.place = args->rank - layout.block.first;
    layout.log2 = layout.block.log2;
    layout.next = layout.block.next_size > 0;
    layout.fan = layout.block.prev_size / layout.block.size;
    layout.halve = 2ull * layout.log2;
    layout.up = layout.halve + layout.next + layout.fan;
    layout.down = layout.up + layout.fan + layout.next;
    layout.steps = layout.down + 2ull * layout.log2;
    return layout;
}

/* halving rounds are stages 0..31 */
enum { STAGE_UP = 40, STAGE_DOWN = 41, STAGE_DOUBLE = 64, STAGES = 128 };

struct segment {
    uint64_t number, first, count, scratch;
};

static uint64_t segment_elems(const struct weft_plan_args *args) { return 2 * args->chunk_elems; }
static uint64_t segments_of(const struct weft_plan_args *args)
{
    return args->count / segment_elems(args) + (args->count % segment_elems(args) != 0);
}

/* Position of the sums of round t in a segment's scratch: after those of earlier rounds, each half as
 * long, rounded up. Data from the next block lies after all of them and is as long as the last one.
 * Together: one segment and the roundings. */
static uint64_t round_at(uint64_t count, uint32_t t)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < t; i++) at += (count >> (i + 1)) + 16;
    return at;
}

/* The range of the segment that the low `rounds` bits of a place select. */
struct range {
    uint64_t first, count;
};
static struct range range_of(uint64_t count, uint32_t place, uint32_t rounds)
{
    uint64_t low = 0, high = count;
    for (uint32_t t = 0; t < rounds; t++) {
        uint64_t middle = low + (high - low) / 2;
        if (place >> t & 1) low = middle;
        else high = middle;
    }
    return (struct range){low, high - low};
}

static void cover(struct weft_action *action, const struct segment *segment, struct range range)
{
    action->offset_in = action->offset = segment->first + range.first;
    action->count = range.count;
}

/* Sends `range` of the partial after `rounds` rounds (0: the contribution). */
static void partial_send(const struct layout *layout, const struct segment *segment, uint32_t rounds,
                         uint32_t held_rounds, struct range range, struct weft_action *action)
{
    uint64_t held = range_of(segment->count, layout->place, held_rounds).first;
    cover(action, segment, range);
    action->kind = WEFT_ACTION_SEND;
    action->place = rounds == 0 ? WEFT_PLACE_INPUT : WEFT_PLACE_SCRATCH;
    action->wide = rounds > 0;
    if (rounds > 0)
        action->scratch = segment->scratch + round_at(segment->count, rounds - 1) + range.first - held;
}

static void halve_step(const struct weft_plan_args *args, const struct layout *layout,
                       const struct segment *segment, uint32_t at, struct weft_action *action)
{
    uint32_t t = at / 2, other = layout->place ^ 1u << t;
    bool sends = at % 2 == 0;
    partial_send(layout, segment, t, t, range_of(segment->count, sends ? other : layout->place, t + 1),
                 action);
    action->peer = layout->block.first + other;
    action->message = (uint32_t)(segment->number * STAGES + t + 1);
    if (t > 0) action->depends = sends ? 1 : 2; /* the sum of the previous round */
    if (sends) return;
    action->kind = WEFT_ACTION_RECV_SUM;
    action->scratch_own = action->scratch;
    action->scratch = segment->scratch + round_at(segment->count, t);
    action->own_first = !(layout->place >> t & 1);
    action->last = layout->block.size == args->ranks && t + 1 == layout->log2;
}

static void up_step(const struct weft_plan_args *args, const struct layout *layout,
                    const struct segment *segment, uint32_t at, struct weft_action *action)
{
    const struct plan_block *block = &layout->block;
    struct range mine = range_of(segment->count, layout->place, layout->log2);
    action->message = (uint32_t)(segment->number * STAGES + STAGE_UP);
    if (layout->next && at == 0) {
        partial_send(layout, segment, layout->log2, layout->log2, mine, action);
        action->kind = WEFT_ACTION_RECV_SUM;
        action->peer = block->first + block->size + layout->place % block->next_size;
        action->wide = block->next_size > 1; /* the last block is one rank: it sends its contribution */
        action->scratch_own = action->scratch;
        action->scratch = segment->scratch + round_at(segment->count, layout->log2);
        action->own_first = true;
        action->last = block->first == 0;
        action->after = 1;
        return;
    }
    uint32_t target = layout->place + (at - layout->next) * block->size; /* place in the previous block */
    uint32_t target_log2 = layout->log2;
    while (1u << target_log2 < block->prev_size) target_log2++;
    uint32_t rounds = layout->next ? layout->log2 + 1 : layout->log2;
    partial_send(layout, segment, rounds, layout->log2, range_of(segment->count, target, target_log2),
                 action);
    action->peer = block->first - block->prev_size + target;
    action->message = (uint32_t)(segment->number * STAGES + STAGE_UP);
    if (layout->next || layout->log2 > 0) action->depends = at - layout->next + 1;
}

static void down_step(const struct weft_plan_args *args, const struct layout *layout,
                      const struct segment *segment, uint32_t at, struct weft_action *action)
{
    const struct plan_block *block = &layout->block;
    action->message = (uint32_t)(segment->number * STAGES + STAGE_DOWN);
    action->place = WEFT_PLACE_OUTPUT;
    if (at < layout->fan) {
        uint32_t source = layout->place + at * block->size, source_log2 = layout->log2;
        while (1u << source_log2 < block->prev_size) source_log2++;
        cover(action, segment, range_of(segment->count, source, source_log2));
        action->kind = WEFT_ACTION_RECV;
        action->peer = block->first - block->prev_size + source;
        return;
    }
    cover(action, segment, range_of(segment->count, layout->place, layout->log2));
    action->kind = WEFT_ACTION_SEND;
    action->peer = block->first + block->size + layout->place % block->next_size;
    action->after = 1;
}

static void double_step(const struct layout *layout, const struct segment *segment, uint32_t at,
                        struct weft_action *action)
{
    uint32_t t = layout->log2 - 1 - at / 2, other = layout->place ^ 1u << t;
    bool sends = at % 2 == 0;
    cover(action, segment, range_of(segment->count, sends ? layout->place : other, t + 1));
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = WEFT_PLACE_OUTPUT;
    action->peer = layout->block.first + other;
    action->message = (uint32_t)(segment->number * STAGES + STAGE_DOUBLE + t);
    if (sends) action->after = 1; /* the whole range is here */
}

static uint64_t segment_scratch(const struct weft_plan_args *args)
{
    uint64_t count = args->count < segment_elems(args) ? args->count : segment_elems(args);
    return (count + 16ull * (plan_block_of(args->ranks, 0).log2 + 2) + 63) & ~63ull;
}

bool plan_halving_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout layout = layout_of(args);
    struct segment segment = {.number = index / layout.steps};
    uint64_t at = index % layout.steps;
    if (segment.number >= segments_of(args)) return false;
    segment.first = segment.number * segment_elems(args);
    segment.count =
        args->count - segment.first < segment_elems(args) ? args->count - segment.first : segment_elems(args);
    segment.scratch = (segment.number & 1) * segment_scratch(args);
    if (at < layout.halve) halve_step(args, &layout, &segment, (uint32_t)at, action);
    else if (at < layout.up) up_step(args, &layout, &segment, (uint32_t)(at - layout.halve), action);
    else if (at < layout.down) down_step(args, &layout, &segment, (uint32_t)(at - layout.up), action);
    else double_step(&layout, &segment, (uint32_t)(at - layout.down), action);
    /* fewer elements than ranks; both ends compute the same */
    if (action->count == 0) action->kind = WEFT_ACTION_NONE;
    plan_wait_after(action, plan_after_chunk(segment.number, layout.steps, at));
    return true;
}

uint64_t plan_halving_steps(const struct weft_plan_args *args) { return layout_of(args).steps; }

uint64_t plan_halving_scratch(const struct weft_plan_args *args)
{
    return segment_scratch(args) * (segments_of(args) > 1 ? 2 : 1);
}
