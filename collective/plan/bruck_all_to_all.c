/* bruck_all_to_all.c - all_to_all in ceil(log2 p) messages, any number of ranks, for pieces whose message
 * costs more than their bytes.
 *
 *     rotate    block i of scratch = the piece for rank + i
 *     round t   the blocks whose number has bit t set travel to rank + 2^t: packed, sent, received, unpacked
 *     finish    block i, which has moved i ranks, is the piece of rank - i
 *
 * No deadlock: messages ordered by round.
 * Per rank: log2(p) messages of half the vector. The blocks of a round are runs of 2^t blocks, so packing
 * takes about p copies. Scratch: the vector, and half of it twice.
 * Source: Bruck et al., IEEE TPDS 1997. */
#include "collective/plan/algorithm.h"

struct round {
    uint32_t log2;    /* t */
    uint64_t at;      /* first step of the round */
    uint64_t runs;    /* runs of blocks with bit t */
    uint64_t blocks;
};

static uint64_t run_length(const struct weft_plan_args *args, uint32_t log2, uint64_t run)
{
    uint64_t length = 1ull << log2, first = length * (2 * run + 1);
    return args->ranks - first < length ? args->ranks - first : length;
}

static struct round round_of(const struct weft_plan_args *args, uint32_t log2, uint64_t at)
{
    struct round round = {
        .log2 = log2, .at = at, .runs = ((args->ranks - (1ull << log2) - 1) >> (log2 + 1)) + 1};
    round.blocks = ((round.runs - 1) << log2) + run_length(args, log2, round.runs - 1);
    return round;
}

static uint64_t send_at(const struct weft_plan_args *args) { return args->ranks * args->count; }
static uint64_t recv_at(const struct weft_plan_args *args)
{
    return send_at(args) + (args->ranks / 2 + 1ull) * args->count;
}

static void turn_step(const struct weft_plan_args *args, bool second, struct weft_action *action)
{
    uint64_t before = args->ranks - args->rank;
    action->kind = WEFT_ACTION_PACK;
    action->place = WEFT_PLACE_INPUT;
    action->offset_in = second ? 0 : args->rank * args->count;
    action->scratch = second ? before * args->count : 0;
    action->count = (second ? args->rank : before) * args->count;
    if (action->count == 0) action->kind = WEFT_ACTION_NONE;
}

static void round_step(const struct weft_plan_args *args, const struct round *round, uint64_t at,
                       struct weft_action *action)
{
    action->place = WEFT_PLACE_SCRATCH;
    /* packs in sequence, the send after the last; unpacks in sequence after the receive */
    action->depends = 1;
    if (at == round->runs || at == round->runs + 1) {
        bool sends = at == round->runs;
        action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
        action->peer =
            sends ? plan_rank_after(args, 1u << round->log2) : plan_rank_before(args, 1u << round->log2);
        action->message = round->log2 + 1;
        action->scratch = sends ? send_at(args) : recv_at(args);
        action->count = round->blocks * args->count;
        if (!sends) action->depends = 2, action->after = at + 1; /* the previous round is unpacked */
        return;
    }
    bool packs = at < round->runs;
    uint64_t run = packs ? at : at - round->runs - 2;
    uint64_t block = (2 * run + 1) << round->log2, place = run << round->log2;
    action->kind = WEFT_ACTION_PACK;
    action->scratch = packs ? send_at(args) + place * args->count : block * args->count;
    action->scratch_own = packs ? block * args->count : recv_at(args) + place * args->count;
    action->count = run_length(args, round->log2, run) * args->count;
    if (at == 0) action->depends = 0, action->after = 1;
}

bool plan_bruck_all_to_all_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    if (args->count == 0) return false;
    if (index < 2) {
        turn_step(args, index == 1, action);
        return true;
    }
    uint64_t at = 2;
    for (uint32_t log2 = 0; 1ull << log2 < args->ranks; log2++) {
        struct round round = round_of(args, log2, at);
        at += 2 * round.runs + 2;
        if (index >= at) continue;
        round_step(args, &round, index - round.at, action);
        return true;
    }
    uint64_t block = index - at;
    if (block >= args->ranks) return false;
    action->kind = WEFT_ACTION_COPY;
    action->place = WEFT_PLACE_SCRATCH;
    action->scratch = block * args->count;
    action->offset = plan_rank_before(args, (uint32_t)block) * args->count;
    action->count = args->count;
    action->after = block + 1;
    return true;
}

uint64_t plan_bruck_all_to_all_scratch(const struct weft_plan_args *args)
{
    return args->count == 0 ? 0 : recv_at(args) + (args->ranks / 2 + 1ull) * args->count;
}
