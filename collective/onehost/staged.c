/* staged.c - the staged method: unmapped buffers go through staging memory that peers map, without system
 * calls.
 *
 * A stage has STAGE_SLOTS slots, small enough to stay in the caches. Vectors go through them in rounds; round
 * r uses slot r % STAGE_SLOTS:
 *
 *   copy in     own input -> own stage
 *   reduce      own share of the round: own input and the peers' stages -> own output and own stage
 *   copy out    the peers' stages -> own output
 *
 * Each rank publishes how many rounds of each action it has done. With three slots a rank waits for what a
 * peer did one round ago. A rank stores to its own memory only, apart from lines that it claims after reading
 * (weft_claim_lines). A round moves one block: half a slot, or a whole one if ranks are oversubscribed; the
 * largest wish of all ranks counts. A slot of a sum has one cell per rank. Cells begin half a page off the
 * usual alignment of buffers: a load stalls behind a store to the same offset within a page. */
#include "collective/onehost/onehost.h"

#include <string.h>

enum {
    STAGE_SLOTS = 3,
    STAGE_SLOT_BYTES = 256 << 10,
    CELL_BYTES = STAGE_SLOT_BYTES / ONEHOST_RANKS_MAX,
    SKEW_BYTES = 2048,
    LINE = 64,
    ACTIONS_AT_ONCE = 8
};
_Static_assert(STAGE_SLOTS *STAGE_SLOT_BYTES + SKEW_BYTES <= ONEHOST_STAGE_BYTES && CELL_BYTES % 4096 == 0,
               "all slots fit into a stage");

uint32_t onehost_stage_block(bool is_oversubscribed)
{
    return is_oversubscribed ? STAGE_SLOT_BYTES : STAGE_SLOT_BYTES / 2;
}
bool onehost_stage_block_is_valid(uint64_t block)
{
    return block >= CELL_BYTES && block <= STAGE_SLOT_BYTES;
}

/* ---- idle stages ---- */
struct idle_stage_memory {
    struct idle_stage_memory *next;
};

uint8_t *onehost_stage_acquire(struct weft_group *group)
{
    struct idle_stage_memory *idle = group->ops.op_pool->idle_stages;
    if (idle) {
        group->ops.op_pool->idle_stages = idle->next;
        return (uint8_t *)idle;
    }
    void *memory;
    return weft_memory_alloc(group->env, ONEHOST_STAGE_BYTES, &memory, NULL) == WEFT_OK ? memory : NULL;
}

void onehost_stage_release(struct op_pool *op_pool, uint8_t *stage)
{
    if (!stage) return;
    struct idle_stage_memory *idle = (struct idle_stage_memory *)stage;
    idle->next = op_pool->idle_stages;
    op_pool->idle_stages = idle;
}

void onehost_stages_free(struct weft_env *env, struct op_pool *op_pool)
{
    while (op_pool->idle_stages) {
        struct idle_stage_memory *idle = op_pool->idle_stages;
        op_pool->idle_stages = idle->next;
        weft_memory_free(env, idle);
    }
}

/* ---- rounds ---- */
static bool sums(const struct weft_coll *coll)
{
    return coll_is_reduction(coll->args.kind);
}
/* One vector, of which each rank reduces a share. */
static bool shares_vector(const struct weft_coll *coll)
{
    return coll->args.kind == WEFT_COLL_ALL_REDUCE || coll->args.kind == WEFT_COLL_REDUCE;
}
/* The input has a piece for each rank. */
static bool has_input_pieces(const struct weft_coll *coll)
{
    return coll->args.kind == WEFT_COLL_REDUCE_SCATTER || coll->args.kind == WEFT_COLL_SCATTER ||
           coll->args.kind == WEFT_COLL_ALL_TO_ALL;
}
/* The output has a piece of each rank. */
static bool has_output_pieces(const struct weft_coll *coll)
{
    return coll->args.kind == WEFT_COLL_ALL_GATHER || coll->args.kind == WEFT_COLL_GATHER ||
           coll->args.kind == WEFT_COLL_ALL_TO_ALL;
}
static bool has_cells(const struct weft_coll *coll)
{
    return sums(coll) || has_input_pieces(coll);
}

static bool has_action(const struct weft_coll *coll, uint32_t rank, enum onehost_stage_action action)
{
    bool root = rank == coll->args.root;
    switch (coll->args.kind) {
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_SCATTER: return action == (root ? ONEHOST_COPY_IN : ONEHOST_COPY_OUT);
    case WEFT_COLL_GATHER: return action == (root ? ONEHOST_COPY_OUT : ONEHOST_COPY_IN);
    case WEFT_COLL_REDUCE: return action != ONEHOST_COPY_OUT || root;
    case WEFT_COLL_REDUCE_SCATTER: return action != ONEHOST_COPY_OUT;
    default: return action != ONEHOST_REDUCE || sums(coll);
    }
}

/* Several rounds, so that ranks work at the same time. */
void onehost_stage_begin(struct weft_coll *coll)
{
    uint64_t ranks = coll->group->ranks, bytes = coll->args.count * coll->data.elem_bytes,
             parts = has_cells(coll) ? ranks : 1;
    if (has_input_pieces(coll)) bytes *= ranks;
    uint64_t block = bytes / 4, most = coll->onehost.stage_info.block;
    if (block < most / 4) block = most / 4;
    if (block > most) block = most;
    uint64_t cell = block / parts / CELL_BYTES * CELL_BYTES;
    if (cell < CELL_BYTES) cell = CELL_BYTES;
    coll->onehost.cell = cell / coll->data.elem_bytes;
    uint64_t elems = coll->onehost.cell * (shares_vector(coll) ? ranks : 1);
    coll->onehost.rounds = (coll->args.count + elems - 1) / elems;
    for (int action = 0; action < ONEHOST_STAGE_ACTIONS; action++)
        coll->onehost.done[action] =
            has_action(coll, coll->group->rank, (enum onehost_stage_action)action) ? 0 : coll->onehost.rounds;
}

/* Elements in the cell of `rank` in this round: of the vector, or of each piece. */
static struct onehost_range cell_range_of(const struct weft_coll *coll, uint64_t round, uint32_t rank)
{
    uint64_t cell = coll->onehost.cell, ranks = coll->group->ranks, count = coll->args.count;
    if (!shares_vector(coll)) {
        uint64_t first = round * cell, left = count - first;
        return (struct onehost_range){first, left < cell ? left : cell};
    }
    uint64_t first = round * cell * ranks, left = count - first, share = cell;
    if (left < cell * ranks) { /* the last round is split among all ranks */
        uint64_t line = LINE / coll->data.elem_bytes;
        share = (left + ranks * line - 1) / (ranks * line) * line;
    }
    uint64_t from = rank * share < left ? rank * share : left, to = from + share < left ? from + share : left;
    return (struct onehost_range){first + from, to - from};
}

static uint8_t *cell_of(const struct weft_coll *coll, uint8_t *stage, uint64_t round, uint32_t rank)
{
    return stage + SKEW_BYTES + round % STAGE_SLOTS * STAGE_SLOT_BYTES +
           (has_cells(coll) ? rank * coll->onehost.cell * coll->data.elem_bytes : 0);
}

/* ---- actions ---- */
static void store_out(const struct weft_coll *coll, uint8_t *to, const uint8_t *from, size_t bytes)
{
    bool in_place = coll->args.kind == WEFT_COLL_ALL_TO_ALL || shares_vector(coll);
    bool is_disjoint = !in_place || coll->args.in != coll->args.out; /* else it was loaded just before */
    if (is_disjoint && onehost_stage_uses_nt_stores(coll->group->onehost, coll))
        weft_copy_nontemporal(to, from, bytes);
    else memcpy(to, from, bytes);
}

/* Copies this rank's piece for itself. */
static void copy_own(const struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t own = coll->group->rank;
    struct onehost_range cell_range = cell_range_of(coll, round, own);
    const uint8_t *in =
        (const uint8_t *)args->in +
        ((has_input_pieces(coll) ? own * args->count : 0) + cell_range.first) * coll->data.elem_bytes;
    uint8_t *out =
        (uint8_t *)args->out +
        ((has_output_pieces(coll) ? own * args->count : 0) + cell_range.first) * coll->data.elem_bytes;
    if (in != out) store_out(coll, out, in, cell_range.count * coll->data.elem_bytes);
}

static void copy_in(struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t ranks = coll->group->ranks, own = coll->group->rank;
    const uint8_t *in = args->kind == WEFT_COLL_BROADCAST ? args->out : args->in;
    size_t piece = has_input_pieces(coll) ? args->count : 0;
    for (uint32_t r = 0; r < ranks; r++) {
        if (has_cells(coll) ? r == own : r != own) continue;
        struct onehost_range cell_range = cell_range_of(coll, round, r);
        const uint8_t *from = in + (r * piece + cell_range.first) * coll->data.elem_bytes;
        memcpy(cell_of(coll, coll->onehost.stage, round, r), from, cell_range.count * coll->data.elem_bytes);
    }
    if (args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_ALL_TO_ALL ||
        args->kind == WEFT_COLL_SCATTER)
        copy_own(coll, round);
}

static void reduce_step(struct onehost *onehost, struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    uint32_t ranks = coll->group->ranks, own = coll->group->rank;
    size_t piece = args->kind == WEFT_COLL_REDUCE_SCATTER ? own * args->count : 0;
    struct onehost_range cell_range = cell_range_of(coll, round, own);
    const uint8_t *sources[ONEHOST_RANKS_MAX];
    for (uint32_t r = 0; r < ranks; r++)
        sources[r] = r == own ? (const uint8_t *)args->in + (piece + cell_range.first) * coll->data.elem_bytes
                              : cell_of(coll, onehost->buffers[r].stage, round, own);
    bool for_root = args->kind == WEFT_COLL_REDUCE && args->root != own;
    uint8_t *outs[2];
    uint32_t out_count = 0;
    if (!for_root) outs[out_count++] = (uint8_t *)args->out + cell_range.first * coll->data.elem_bytes;
    if (for_root || args->kind == WEFT_COLL_ALL_REDUCE)
        outs[out_count++] = cell_of(coll, coll->onehost.stage, round, own);
    onehost_reduce(coll, sources, outs, out_count, cell_range.count);
    for (uint32_t r = 0; r < ranks; r++)
        if (r != own) weft_claim_lines(sources[r], cell_range.count * coll->data.elem_bytes);
}

static void copy_out(struct onehost *onehost, struct weft_coll *coll, uint64_t round)
{
    const struct weft_coll_args *args = &coll->args;
    size_t piece = has_output_pieces(coll) ? args->count : 0;
    if (args->kind == WEFT_COLL_GATHER) copy_own(coll, round);
    for (uint32_t r = 0; r < coll->group->ranks; r++) {
        if (r == coll->group->rank || !has_action(coll, r, sums(coll) ? ONEHOST_REDUCE : ONEHOST_COPY_IN))
            continue;
        struct onehost_range cell_range = cell_range_of(coll, round, r);
        uint8_t *to = (uint8_t *)args->out + (r * piece + cell_range.first) * coll->data.elem_bytes;
        const uint8_t *from =
            cell_of(coll, onehost->buffers[r].stage, round, sums(coll) ? r : coll->group->rank);
        store_out(coll, to, from, cell_range.count * coll->data.elem_bytes);
        if (onehost_has_single_reader(coll->group, args->kind))
            weft_claim_lines(from, cell_range.count * coll->data.elem_bytes);
    }
}

/* ---- scheduling ---- */

/* Have all ranks that perform `action` done it `times` times? Else awaited_rank has not. */
static bool peers_have_done(struct onehost *onehost, const struct weft_coll *coll,
                            enum onehost_stage_action action, uint64_t times)
{
    uint32_t ranks = coll->group->ranks, rank = onehost->awaited_rank < ranks ? onehost->awaited_rank : 0;
    for (uint32_t i = 0; i < ranks; i++, rank = rank + 1 < ranks ? rank + 1 : 0) {
        if (rank == coll->group->rank || !has_action(coll, rank, action) ||
            onehost_has_done_rounds(onehost, rank, coll->onehost.seq, action, times))
            continue;
        onehost->awaited_rank = rank;
        return false;
    }
    return true;
}

static bool can_act(struct onehost *onehost, const struct weft_coll *coll, enum onehost_stage_action action)
{
    uint64_t round = coll->onehost.done[action], reused = round >= STAGE_SLOTS ? round + 1 - STAGE_SLOTS : 0;
    if (round == coll->onehost.rounds) return false;
    switch (action) {
    case ONEHOST_COPY_IN:
        return reused == 0 ||
               peers_have_done(onehost, coll, sums(coll) ? ONEHOST_REDUCE : ONEHOST_COPY_OUT, reused);
    case ONEHOST_REDUCE:
        return (reused == 0 || peers_have_done(onehost, coll, ONEHOST_COPY_OUT, reused)) &&
               peers_have_done(onehost, coll, ONEHOST_COPY_IN, round + 1);
    default: /* in place a copy-out overwrites the input of its copy-in */
        return (coll->args.kind != WEFT_COLL_ALL_TO_ALL || coll->onehost.done[ONEHOST_COPY_IN] > round) &&
               peers_have_done(onehost, coll, sums(coll) ? ONEHOST_REDUCE : ONEHOST_COPY_IN, round + 1);
    }
}

/* What peers wait for first, then what frees their slots. */
static enum onehost_stage_action next_action(struct onehost *onehost, const struct weft_coll *coll)
{
    if (can_act(onehost, coll, ONEHOST_REDUCE)) return ONEHOST_REDUCE;
    if (can_act(onehost, coll, ONEHOST_COPY_OUT)) return ONEHOST_COPY_OUT;
    return can_act(onehost, coll, ONEHOST_COPY_IN) ? ONEHOST_COPY_IN : ONEHOST_STAGE_ACTIONS;
}

bool onehost_stage_can_act(struct onehost *onehost, const struct weft_coll *coll)
{
    return next_action(onehost, coll) != ONEHOST_STAGE_ACTIONS;
}

bool onehost_stage_step(struct onehost *onehost, struct weft_coll *coll, bool *complete_out)
{
    uint64_t *done = coll->onehost.done, rounds = coll->onehost.rounds;
    int acted = 0;
    *complete_out = false;
    for (; acted < ACTIONS_AT_ONCE; acted++) {
        enum onehost_stage_action action = next_action(onehost, coll);
        if (action == ONEHOST_STAGE_ACTIONS || !onehost_buffers_enter(onehost, coll->onehost.seq)) break;
        if (action == ONEHOST_COPY_IN) copy_in(coll, done[ONEHOST_COPY_IN]);
        else if (action == ONEHOST_REDUCE) reduce_step(onehost, coll, done[ONEHOST_REDUCE]);
        else copy_out(onehost, coll, done[ONEHOST_COPY_OUT]);
        onehost_buffers_leave(onehost);
        onehost_publish_rounds(onehost, coll->onehost.seq, action, ++done[action]);
    }
    *complete_out =
        done[ONEHOST_COPY_IN] == rounds && done[ONEHOST_REDUCE] == rounds && done[ONEHOST_COPY_OUT] == rounds;
    return acted > 0;
}
