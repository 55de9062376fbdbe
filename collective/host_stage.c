/* host_stage.c - the one-host plan for buffers that peers do not map: through stages, without system calls.
 *
 * While its operation is under way each rank has a *stage*, memory that its peers map: SLOTS slots, small enough to stay in the caches
 * between who writes and who reads. The vectors go through them in rounds, each round through the slot of its number:
 *
 *     fill     what the peers need of this rank's input -> own stage
 *     sum      own share of the round: own input and the peers' stages -> own output and, for the peers, own stage
 *     drain    the peers' stages -> own output
 *
 * all_reduce does all three, reduce_scatter has nothing to drain, reduce at its root alone; the others have nothing to sum, and of those with a
 * root it fills or drains and the others do the opposite. Each rank counts in its
 * segment how many rounds it has filled, summed and drained; who wants to go on looks there. With more than two slots nobody waits for
 * what a peer does at this moment, but for what it did a round ago.
 *
 * A rank writes into its own memory only, but for the lines that it takes when it has read them (weft_take_lines). What is loaded from a stage whose owner has ended the operation is never a result:
 * host_enter refuses the next step.
 *
 * A round moves one *block* of the vector, half a slot where ranks have a processor each and a whole one where they take turns: fewer
 * turns. Ranks may see that differently, so each says what it wants and the largest block is taken.
 *
 * In a slot of a sum each rank has a place: the others' contributions to it, or in its owner's stage its sum; and so in one of scatter and
 * all_to_all: the piece for it. Places begin half a page
 * away from where most buffers do: a processor compares addresses within a page first, and a load that seems to touch what was just stored
 * waits until that store is through, which here takes as long as fetching a line from another core. */
#include "collective/host.h"

#include <string.h>

enum { SLOTS = 3, SLOT_BYTES = 256 << 10, PLACE_BYTES = SLOT_BYTES / HOST_RANKS_MAX, SKEW_BYTES = 2048, LINE = 64, ACTIONS_AT_ONCE = 8 };
_Static_assert(SLOTS * SLOT_BYTES + SKEW_BYTES <= HOST_STAGE_BYTES && PLACE_BYTES % 4096 == 0, "as the peers are told");

uint32_t host_stage_block(bool crowded) { return crowded ? SLOT_BYTES : SLOT_BYTES / 2; }
bool host_stage_allows(uint64_t block) { return block >= PLACE_BYTES && block <= SLOT_BYTES; }

/* ---- stages that are not in use ---- */
struct idle_stage {
    struct idle_stage *next;
};

uint8_t *host_stage_take(struct weft_group *group)
{
    struct idle_stage *idle = group->records->stages;
    if (idle) {
        group->records->stages = idle->next;
        return (uint8_t *)idle;
    }
    void *memory;
    return weft_memory_alloc(group->env, HOST_STAGE_BYTES, &memory, NULL) == WEFT_OK ? memory : NULL;
}

void host_stage_give(struct records *records, uint8_t *stage)
{
    if (!stage) return;
    struct idle_stage *idle = (struct idle_stage *)stage;
    idle->next = records->stages;
    records->stages = idle;
}

void host_stages_free(struct weft_env *env, struct records *records)
{
    while (records->stages) {
        struct idle_stage *idle = records->stages;
        records->stages = idle->next;
        weft_memory_free(env, idle);
    }
}

/* ---- rounds ---- */
static bool sums(const struct weft_coll *coll) { return coll_sums(coll->args.kind); }
/* One vector of all ranks, each of which sums a share of it. */
static bool shares_out(const struct weft_coll *coll) { return coll->args.kind == WEFT_COLL_ALL_REDUCE || coll->args.kind == WEFT_COLL_REDUCE; }
/* The input has a piece for each rank, */
static bool sends_pieces(const struct weft_coll *coll)
{
    return coll->args.kind == WEFT_COLL_REDUCE_SCATTER || coll->args.kind == WEFT_COLL_SCATTER || coll->args.kind == WEFT_COLL_ALL_TO_ALL;
}
/* or the output one of each. */
static bool gets_pieces(const struct weft_coll *coll)
{
    return coll->args.kind == WEFT_COLL_ALL_GATHER || coll->args.kind == WEFT_COLL_GATHER || coll->args.kind == WEFT_COLL_ALL_TO_ALL;
}
static bool has_places(const struct weft_coll *coll) { return sums(coll) || sends_pieces(coll); }

static bool acts(const struct weft_coll *coll, uint32_t rank, enum host_action action)
{
    bool root = rank == coll->args.root;
    switch (coll->args.kind) {
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_SCATTER: return action == (root ? HOST_FILL : HOST_DRAIN);
    case WEFT_COLL_GATHER: return action == (root ? HOST_DRAIN : HOST_FILL);
    case WEFT_COLL_REDUCE: return action != HOST_DRAIN || root;
    case WEFT_COLL_REDUCE_SCATTER: return action != HOST_DRAIN;
    default: return action != HOST_SUM || sums(coll);
    }
}

/* Several rounds of a vector that is not long, so that ranks work at the same time. */
void host_stage_begin(struct weft_coll *coll)
{
    uint64_t ranks = coll->group->ranks, bytes = coll->args.count * coll->elem_bytes, parts = has_places(coll) ? ranks : 1;
    if (sends_pieces(coll)) bytes *= ranks;
    uint64_t block = bytes / 4, most = coll->host.stage_word.block;
    if (block < most / 4) block = most / 4;
    if (block > most) block = most;
    uint64_t place = block / parts / PLACE_BYTES * PLACE_BYTES;
    if (place < PLACE_BYTES) place = PLACE_BYTES;
    coll->host.place = place / coll->elem_bytes;
    uint64_t elems = coll->host.place * (shares_out(coll) ? ranks : 1);
    coll->host.rounds = (coll->args.count + elems - 1) / elems;
    for (int action = 0; action < HOST_ACTIONS; action++)
        coll->host.done[action] = acts(coll, coll->group->rank, (enum host_action)action) ? 0 : coll->host.rounds;
}

/* What lies at the place of `rank` in this round: elements of the vector, or of each piece. */
static struct host_range part_of(const struct weft_coll *coll, uint64_t round, uint32_t rank)
{
    uint64_t place = coll->host.place, ranks = coll->group->ranks, count = coll->args.count;
    if (!shares_out(coll)) {
        uint64_t first = round * place, left = count - first;
        return (struct host_range){first, left < place ? left : place};
    }
    uint64_t first = round * place * ranks, left = count - first, share = place;
    if (left < place * ranks) { /* the last round is everybody's, too */
        uint64_t line = LINE / coll->elem_bytes;
        share = (left + ranks * line - 1) / (ranks * line) * line;
    }
    uint64_t from = rank * share < left ? rank * share : left, to = from + share < left ? from + share : left;
    return (struct host_range){first + from, to - from};
}

static uint8_t *place_of(const struct weft_coll *coll, uint8_t *stage, uint64_t round, uint32_t rank)
{
    return stage + SKEW_BYTES + round % SLOTS * SLOT_BYTES + (has_places(coll) ? rank * coll->host.place * coll->elem_bytes : 0);
}

/* ---- the three actions ---- */
static void copy_out(const struct weft_coll *coll, uint8_t *to, const uint8_t *from, size_t bytes)
{
    bool in_place = coll->args.kind == WEFT_COLL_ALL_TO_ALL || shares_out(coll);
    bool apart = !in_place || coll->args.in != coll->args.out; /* not what was loaded a moment ago */
    if (apart && host_stages_past(coll->group->host, coll)) weft_copy_past_cache(to, from, bytes);
    else memcpy(to, from, bytes);
}

/* What this rank has for itself. */
static void keep(const struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t own = coll->group->rank;
    struct host_range part = part_of(coll, round, own);
    const uint8_t *in = (const uint8_t *)args->in + ((sends_pieces(coll) ? own * args->count : 0) + part.first) * coll->elem_bytes;
    uint8_t *out = (uint8_t *)args->out + ((gets_pieces(coll) ? own * args->count : 0) + part.first) * coll->elem_bytes;
    if (in != out) copy_out(coll, out, in, part.count * coll->elem_bytes);
}

static void fill(struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t ranks = coll->group->ranks, own = coll->group->rank;
    const uint8_t *in = args->kind == WEFT_COLL_BROADCAST ? args->out : args->in;
    size_t piece = sends_pieces(coll) ? args->count : 0;
    for (uint32_t r = 0; r < ranks; r++) {
        if (has_places(coll) ? r == own : r != own) continue;
        struct host_range part = part_of(coll, round, r);
        const uint8_t *from = in + (r * piece + part.first) * coll->elem_bytes;
        memcpy(place_of(coll, coll->host.stage, round, r), from, part.count * coll->elem_bytes);
    }
    if (args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_ALL_TO_ALL || args->kind == WEFT_COLL_SCATTER) keep(coll, round);
}

static void sum(struct host *host, struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t ranks = coll->group->ranks, own = coll->group->rank;
    size_t piece = args->kind == WEFT_COLL_REDUCE_SCATTER ? own * args->count : 0;
    struct host_range part = part_of(coll, round, own);
    const uint8_t *sources[HOST_RANKS_MAX];
    for (uint32_t r = 0; r < ranks; r++)
        sources[r] = r == own ? (const uint8_t *)args->in + (piece + part.first) * coll->elem_bytes : place_of(coll, host->reach[r].stage, round, own);
    bool for_root = args->kind == WEFT_COLL_REDUCE && args->root != own;
    uint8_t *outs[2];
    uint32_t out_count = 0;
    if (!for_root) outs[out_count++] = (uint8_t *)args->out + part.first * coll->elem_bytes;
    if (for_root || args->kind == WEFT_COLL_ALL_REDUCE) outs[out_count++] = place_of(coll, coll->host.stage, round, own);
    host_sum(coll, sources, outs, out_count, part.count);
    for (uint32_t r = 0; r < ranks; r++)
        if (r != own) weft_take_lines(sources[r], part.count * coll->elem_bytes);
}

static void drain(struct host *host, struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    size_t piece = gets_pieces(coll) ? args->count : 0;
    if (args->kind == WEFT_COLL_GATHER) keep(coll, round);
    for (uint32_t r = 0; r < coll->group->ranks; r++) {
        if (r == coll->group->rank || !acts(coll, r, sums(coll) ? HOST_SUM : HOST_FILL)) continue;
        struct host_range part = part_of(coll, round, r);
        uint8_t *to = (uint8_t *)args->out + (r * piece + part.first) * coll->elem_bytes;
        const uint8_t *from = place_of(coll, host->reach[r].stage, round, sums(coll) ? r : coll->group->rank);
        copy_out(coll, to, from, part.count * coll->elem_bytes);
        if (host_one_reads(coll->group, args->kind)) weft_take_lines(from, part.count * coll->elem_bytes);
    }
}

/* ---- whose turn it is ---- */

/* Have all ranks that do it done `action` so many times? host->seen: a rank that has not. */
static bool all_have(struct host *host, const struct weft_coll *coll, enum host_action action, uint64_t times)
{
    uint32_t ranks = coll->group->ranks, rank = host->seen < ranks ? host->seen : 0;
    for (uint32_t i = 0; i < ranks; i++, rank = rank + 1 < ranks ? rank + 1 : 0) {
        if (rank == coll->group->rank || !acts(coll, rank, action) || host_has_done(host, rank, coll->host.number, action, times)) continue;
        host->seen = rank;
        return false;
    }
    return true;
}

static bool may(struct host *host, const struct weft_coll *coll, enum host_action action)
{
    uint64_t round = coll->host.done[action], reused = round >= SLOTS ? round + 1 - SLOTS : 0;
    if (round == coll->host.rounds) return false;
    switch (action) {
    case HOST_FILL: return reused == 0 || all_have(host, coll, sums(coll) ? HOST_SUM : HOST_DRAIN, reused);
    case HOST_SUM: return (reused == 0 || all_have(host, coll, HOST_DRAIN, reused)) && all_have(host, coll, HOST_FILL, round + 1);
    default: /* in place a drain takes the place of what it is exchanged for */
        return (coll->args.kind != WEFT_COLL_ALL_TO_ALL || coll->host.done[HOST_FILL] > round) && all_have(host, coll, sums(coll) ? HOST_SUM : HOST_FILL, round + 1);
    }
}

/* What the peers wait for goes first; then what frees their slots. */
static enum host_action next_action(struct host *host, const struct weft_coll *coll)
{
    if (may(host, coll, HOST_SUM)) return HOST_SUM;
    if (may(host, coll, HOST_DRAIN)) return HOST_DRAIN;
    return may(host, coll, HOST_FILL) ? HOST_FILL : HOST_ACTIONS;
}

bool host_stage_may_act(struct host *host, const struct weft_coll *coll) { return next_action(host, coll) != HOST_ACTIONS; }

bool host_stage_step(struct host *host, struct weft_coll *coll, bool *over_out)
{
    uint64_t *done = coll->host.done, rounds = coll->host.rounds;
    int acted = 0;
    *over_out = false;
    for (; acted < ACTIONS_AT_ONCE; acted++) {
        enum host_action action = next_action(host, coll);
        if (action == HOST_ACTIONS || !host_enter(host, coll->host.number)) break;
        if (action == HOST_FILL) fill(coll, done[HOST_FILL]);
        else if (action == HOST_SUM) sum(host, coll, done[HOST_SUM]);
        else drain(host, coll, done[HOST_DRAIN]);
        host_leave(host);
        host_say_done(host, coll->host.number, action, ++done[action]);
    }
    *over_out = done[HOST_FILL] == rounds && done[HOST_SUM] == rounds && done[HOST_DRAIN] == rounds;
    return acted > 0;
}
