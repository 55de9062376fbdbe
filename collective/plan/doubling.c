/* doubling.c - recursive doubling for any number of ranks: the fewest message times for a short vector.
 *
 * Ranks are cut into blocks of powers of two, the largest first, as in T: T(0,p) = B1 + (B2 + (B3 + ...)). In
 * a block of 2^k ranks the halves of 2, 4, 8 ... ranks exchange partials: after k rounds each rank has the
 * block's T. The tail R = B(m+1) + ... of a block is sent by the next block:
 *
 *     rounds   t = 0 .. k-1     i <-> i xor (2^(t+1) - 1) in the block: halves as mirror images
 *     tail     rank j of the next block sends R to place j of this one; place j forwards it to j + q for each
 *              power of two q > j from the smaller block's length up (binomial); each rank adds: own + R
 *     up       rank j sends own + R to place j of the previous block
 *     result   place j of the first block sends the finished vector to rank j + its length, if it exists
 *
 * These messages are the header check: with mirror images each rank of a power of two sends to the next rank
 * in some round (t: number of trailing ones of i). Proof that a differing call is found. Take the smallest
 * adjacent halves A, B that are mirror images, where all ranks of A made one call and all ranks of B another.
 * They exist whenever not all calls are equal.
 * 1. Both call this plan: the rounds inside each half complete, and the halves exchange in the next round.
 * 2. Only A calls it: its last rank completes its rounds inside A, and then sends to the first rank of B,
 *    which waits for a header check.
 * 3. Only B calls it: its first rank waits, after its rounds, for the last rank of A, whose header
 *    check has been sent.
 *
 * Order: T. Partials are f32 for narrower floats, also in messages; a single rank sends its contribution
 * unchanged.
 * No deadlock: messages ordered by (rounds of all blocks, tails from the last block to the first by hop,
 * results); both ends walk this order.
 * Per rank: log2(p) messages of the vector for a power of two; for other numbers up to two more, and the hops
 * of the tail, which overlap with the rounds of the larger block.
 * Scratch: three chunks, six with several chunks. Source: Thakur, Rabenseifner, Gropp, IJHPCA 2005 (power of
 * two); the blocks keep T for other numbers. */
#include "collective/plan/algorithm.h"

struct layout {
    struct plan_block block;
    uint32_t place;    /* within the block */
    uint32_t rounds;   /* 2 * log2: a send and a receive each */
    uint32_t tail;     /* 1: this rank adds a tail */
    uint32_t passes;   /* positions that it forwards the tail to */
    uint32_t first_pass; /* distance to the nearest of them */
    bool raw_tail;     /* the next block is one rank: the tail is its contribution */
    bool receives, hands_out; /* result from, or to, another block */
    /* two ranks: the input, which may be the output, is still being sent when the sum is made */
    bool copies;
    uint64_t steps;    /* of one chunk */
};

static struct layout layout_of(const struct weft_plan_args *args)
{
    struct layout layout = {.block = plan_block_of(args->ranks, args->rank)};
    const struct plan_block *block = &layout.block;
    layout.place = args->rank - block->first;
    layout.rounds = 2 * block->log2;
    if (block->next_size > 0) {
        layout.tail = 1;
        layout.first_pass = block->next_size;
        while (layout.first_pass <= layout.place) layout.first_pass *= 2;
        for (uint32_t q = layout.first_pass; q < block->size; q *= 2) layout.passes++;
        layout.raw_tail = block->next_size == 1; /* a block of one rank is the last */
    }
    layout.receives = block->first > 0;
    layout.hands_out = block->first == 0 && (uint64_t)args->rank + block->size < args->ranks;
    layout.copies = args->ranks == 2;
    layout.steps = layout.rounds + layout.tail + layout.passes +
                   (layout.receives                     ? 2u
                    : layout.hands_out || layout.copies ? 1u
                                                        : 0u);
    return layout;
}

enum { STAGE_TAIL = 40, STAGE_RESULT = 41, STAGES = 64 }; /* rounds are stages 0..31 */

/* Three chunks of scratch, other ones for every second chunk: the rounds alternate between two, the third
 * gets the tail. */
static uint64_t part_at(const struct weft_plan_args *args, uint64_t chunk, uint32_t part)
{
    uint64_t longest = args->count < args->chunk_elems ? args->count : args->chunk_elems;
    return ((chunk & 1) * 3 + part) * ((longest + 63) & ~63ull);
}

/* Sends the own partial after `rounds` rounds: the contribution, or what is in scratch. */
static void own_send(const struct weft_plan_args *args, uint64_t chunk, uint32_t rounds,
                     struct weft_action *action)
{
    action->kind = WEFT_ACTION_SEND;
    action->place = rounds == 0 ? WEFT_PLACE_INPUT : WEFT_PLACE_SCRATCH;
    action->scratch = rounds == 0 ? 0 : part_at(args, chunk, (rounds - 1) & 1);
    action->wide = rounds > 0;
}

static void round_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                       uint32_t at, struct weft_action *action)
{
    uint32_t t = at / 2;
    own_send(args, chunk, t, action);
    action->peer = layout->block.first + (layout->place ^ ((2u << t) - 1));
    action->message = (uint32_t)(chunk * STAGES + t + 1);
    if (at % 2 == 0) {
        if (t > 0) action->depends = 1; /* the sum of the previous round */
        return;
    }
    action->kind = WEFT_ACTION_RECV_SUM;
    action->scratch_own = action->scratch;
    action->scratch = part_at(args, chunk, t & 1);
    action->own_first = !(layout->place >> t & 1);
    action->last = layout->block.size == args->ranks && 2 * (t + 1) == layout->rounds && !layout->copies;
    if (t > 0) action->after = 2; /* that sum, and the send that last used this scratch */
}

static void tail_step(const struct weft_plan_args *args, const struct layout *layout, uint64_t chunk,
                      uint32_t at, struct weft_action *action)
{
    const struct plan_block *block = &layout->block;
    action->message = (uint32_t)(chunk * STAGES + STAGE_TAIL);
    action->place = WEFT_PLACE_SCRATCH;
    action->scratch = part_at(args, chunk, 2);
    action->wide = !layout->raw_tail;
    if (at > 0) {
        action->kind = WEFT_ACTION_SEND;
        action->peer = args->rank + (layout->first_pass << (at - 1));
        action->depends = at;
        return;
    }
    uint32_t from = block->next_size; /* parent of place j: without its highest bit */
    while (from * 2 <= layout->place) from *= 2;
    action->kind = WEFT_ACTION_RECV_SUM;
    action->peer =
        layout->place < block->next_size ? block->first + block->size + layout->place : args->rank - from;
    action->scratch_own = part_at(args, chunk, (block->log2 - 1) & 1);
    action->own_first = true;
    action->into_own = true; /* the tail itself is still to be forwarded */
    action->last = block->first == 0;
    action->after = 1;
}

bool plan_doubling_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    struct layout layout = layout_of(args);
    uint64_t chunk = index < layout.steps ? 0 : index / layout.steps;
    uint32_t at = (uint32_t)(index - chunk * layout.steps), place = at;
    if (chunk >= plan_vector_chunks(args)) return false;
    struct plan_range part = plan_vector_chunk(args, chunk);
    action->offset_in = action->offset = part.first;
    action->count = part.count;
    if (at < layout.rounds) {
        round_step(args, &layout, chunk, at, action);
    } else if ((at -= layout.rounds) < layout.tail + layout.passes) {
        tail_step(args, &layout, chunk, at, action);
    } else if (at -= layout.tail + layout.passes, layout.receives && at == 0) {
        own_send(args, chunk, layout.block.log2, action);
        action->peer = layout.block.first - layout.block.prev_size + layout.place;
        action->message = (uint32_t)(chunk * STAGES + STAGE_TAIL);
        action->after = layout.rounds > 0 ? 1 : 0;
    } else if (layout.copies) {
        action->kind = WEFT_ACTION_COPY;
        action->place = WEFT_PLACE_SCRATCH;
        action->scratch = part_at(args, chunk, 0);
        action->last = true;
        action->after = 1;
    } else {
        uint32_t first_block = plan_block_of(args->ranks, 0).size;
        action->kind = layout.receives ? WEFT_ACTION_RECV : WEFT_ACTION_SEND;
        action->place = WEFT_PLACE_OUTPUT;
        action->peer = layout.receives ? args->rank - first_block : args->rank + first_block;
        action->message = (uint32_t)(chunk * STAGES + STAGE_RESULT);
        if (!layout.receives) action->after = 1;
    }
    plan_wait_after(action, plan_after_chunk(chunk, layout.steps, place));
    return true;
}

uint64_t plan_doubling_steps(const struct weft_plan_args *args) { return layout_of(args).steps; }

uint64_t plan_doubling_scratch(const struct weft_plan_args *args)
{
    return part_at(args, 0, 3) * (plan_vector_chunks(args) > 1 ? 2 : 1);
}
