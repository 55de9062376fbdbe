/* plan.c - parts common to all plans: the header check, slices, their division into chunks, names,
 * dispatch.
 *
 * A plan is a pure function (arguments, step number) -> step. Only the number of the next step is stored, so
 * a ring of thousands of ranks needs no memory, and a step can be computed alone.
 *
 * Header check: each plan begins with an empty message to the next rank and one from the previous rank. Each
 * message carries the call of its sender (core/header.c). If two calls differ, some rank differs from its
 * predecessor in the ring and finds out, whatever the plans send later. All plans use the same ring; with two
 * rings ranks could wait for each other without a message between them. Where the first messages of the plan
 * itself go to the next rank (weft_plan_checks_headers), they are the check. doubling.c has the proof for its
 * messages.
 *
 * Slices: rank i owns slice i. all_reduce and reduce: [count*i/ranks, count*(i+1)/ranks), or by
 * slice_weights. Kinds with pieces: piece i. A slice longer than chunk_elems is cut into chunks. */
#include "collective/plan/algorithm.h"

#include <string.h>

#define HEADER_CHECK_STEPS 2u

void weft_plan_begin(struct weft_plan_cursor *cursor, const struct weft_plan_args *args)
{
    WEFT_ASSERT(args->ranks > 0 && args->rank < args->ranks);
    WEFT_ASSERT(args->chunk_elems > 0 && args->lanes > 0);
    WEFT_ASSERT(weft_plan_supports(args->plan, args->kind) &&
                (args->plan != WEFT_PLAN_HIERARCHY || args->hosts));
    cursor->args = *args;
    cursor->next = 0;
}

/* With one rank the contribution, chunk by chunk, is the result. */
static bool alone_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    bool copies = args->kind != WEFT_COLL_BROADCAST && args->kind != WEFT_COLL_BARRIER;
    if (!copies || index >= plan_vector_chunks(args)) return false;
    struct plan_range part = plan_vector_chunk(args, index);
    action->kind = WEFT_ACTION_COPY;
    action->place = WEFT_PLACE_INPUT;
    action->offset_in = action->offset = part.first;
    action->count = part.count;
    action->last = plan_is_sliced(args) || args->kind == WEFT_COLL_REDUCE_SCATTER;
    return true;
}

/* A send or recv is one message of any length: the transport cuts it. */
static bool pair_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    if (index > 0) return false;
    bool sends = args->kind == WEFT_COLL_SEND;
    action->kind = sends ? WEFT_ACTION_SEND : WEFT_ACTION_RECV;
    action->place = sends ? WEFT_PLACE_INPUT : WEFT_PLACE_OUTPUT;
    action->peer = args->root;
    action->message = 1;
    action->count = args->count;
    return true;
}

static bool direct_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    switch (args->kind) {
    case WEFT_COLL_BARRIER: return plan_barrier_step(args, index, action);
    case WEFT_COLL_BROADCAST: return plan_broadcast_step(args, index, action);
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER: return plan_linear_step(args, index, action);
    case WEFT_COLL_ALL_TO_ALL:
    case WEFT_COLL_EXCHANGE_BYTES: return plan_pairwise_step(args, index, action);
    default: return plan_direct_step(args, index, action);
    }
}

static bool on_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_ALL_GATHER;
}
static bool hierarchy_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    return on_pieces(args->kind) ? plan_hierarchy_pieces_step(args, index, action)
                                 : plan_hierarchy_step(args, index, action);
}
static uint64_t hierarchy_scratch(const struct weft_plan_args *args)
{
    return on_pieces(args->kind) ? plan_hierarchy_pieces_scratch(args) : plan_hierarchy_scratch(args);
}

/* ---- the plans ---- */
#define KIND(name) (1u << WEFT_COLL_##name)
#define KINDS_UNEQUAL \
    (KIND(REDUCE_SCATTER) | KIND(ALL_GATHER) | KIND(GATHER) | KIND(SCATTER) | KIND(ALL_TO_ALL))

struct plan {
    const char *name;
    uint32_t kinds, unequal_kinds;     /* kinds that it supports; the ones with unequal pieces */
    bool reproducible;        /* evaluates T */
    bool wide;                /* partials in scratch and in messages */
    bool (*step)(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
    uint64_t (*scratch)(const struct weft_plan_args *args);
};

static const struct plan plans[WEFT_PLAN_COUNT] = {
    [WEFT_PLAN_AUTO] = {.name = "auto"},
    [WEFT_PLAN_DIRECT] = {"direct", (1u << WEFT_COLL_KIND_COUNT) - 2, KINDS_UNEQUAL, true, false, direct_step,
                          plan_direct_scratch},
    [WEFT_PLAN_RING] = {"ring", KIND(ALL_REDUCE) | KIND(REDUCE_SCATTER) | KIND(ALL_GATHER),
                        KIND(REDUCE_SCATTER) | KIND(ALL_GATHER), false, false, plan_ring_step,
                        plan_ring_scratch},
    [WEFT_PLAN_DOUBLING] = {"doubling", KIND(ALL_REDUCE), 0, true, true, plan_doubling_step,
                            plan_doubling_scratch},
    [WEFT_PLAN_HALVING] = {"halving", KIND(ALL_REDUCE), 0, true, true, plan_halving_step,
                           plan_halving_scratch},
    [WEFT_PLAN_DOUBLE_TREE] = {"double_tree", KIND(ALL_REDUCE), 0, false, true, plan_double_tree_step,
                               plan_double_tree_scratch},
    [WEFT_PLAN_BRUCK] = {"bruck", KIND(ALL_GATHER) | KIND(ALL_TO_ALL), KIND(ALL_GATHER), true, false,
                         plan_bruck_step, plan_bruck_scratch},
    [WEFT_PLAN_PAT] = {"pat", KIND(REDUCE_SCATTER) | KIND(ALL_GATHER), 0, false, true, plan_pat_step,
                       plan_pat_scratch},
    [WEFT_PLAN_CHAIN] = {"chain", KIND(BROADCAST) | KIND(REDUCE), 0, false, true, plan_chain_step,
                         plan_chain_scratch},
    [WEFT_PLAN_HIERARCHY] = {"hierarchy",
                             KIND(ALL_REDUCE) | KIND(BROADCAST) | KIND(REDUCE_SCATTER) | KIND(ALL_GATHER),
                             KIND(REDUCE_SCATTER) | KIND(ALL_GATHER), false, true, hierarchy_step,
                             hierarchy_scratch},
    [WEFT_PLAN_ONE_HOST] = {.name = "one-host", .reproducible = true},
    [WEFT_PLAN_BINOMIAL] = {"binomial", KIND(BROADCAST) | KIND(REDUCE) | KIND(GATHER) | KIND(SCATTER), 0,
                            true, true, plan_binomial_step, plan_binomial_scratch},
};

/* A number without a plan returns the entry of AUTO, which supports nothing. */
static const struct plan *plan_of(enum weft_plan_id plan)
{
    return (unsigned)plan < WEFT_PLAN_COUNT ? &plans[plan] : &plans[0];
}

bool weft_plan_supports(enum weft_plan_id plan, enum weft_coll_kind kind)
{
    return (unsigned)kind < WEFT_COLL_KIND_COUNT && (plan_of(plan)->kinds >> kind & 1);
}
bool weft_plan_supports_unequal(enum weft_plan_id plan, enum weft_coll_kind kind)
{
    return (unsigned)kind < WEFT_COLL_KIND_COUNT && (plan_of(plan)->unequal_kinds >> kind & 1);
}
bool weft_plan_reproducible(enum weft_plan_id plan, const struct weft_plan_hosts *hosts)
{
    return plan == WEFT_PLAN_HIERARCHY ? hosts && hosts->subtrees : plan_of(plan)->reproducible;
}
bool weft_plan_wide(enum weft_plan_id plan, enum weft_coll_kind kind)
{
    return coll_is_reduction(kind) && plan_of(plan)->wide;
}
const char *weft_plan_name(enum weft_plan_id plan)
{
    return (unsigned)plan < WEFT_PLAN_COUNT && plans[plan].name ? plans[plan].name : "?";
}

enum weft_plan_id weft_plan_parse(const char *name)
{
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++)
        if (plans[plan].name && strcmp(name, plans[plan].name) == 0) return (enum weft_plan_id)plan;
    return WEFT_PLAN_AUTO;
}

uint32_t weft_plan_fold_count(const struct weft_plan_args *args)
{
    if (args->ranks == 1) return 0;
    if (args->plan == WEFT_PLAN_DIRECT) return plan_direct_folds(args);
    if (args->plan != WEFT_PLAN_HIERARCHY) return 0;
    return on_pieces(args->kind) ? plan_hierarchy_pieces_folds(args) : plan_hierarchy_folds(args);
}

bool weft_plan_folds_within_host(enum weft_plan_id plan) { return plan == WEFT_PLAN_HIERARCHY; }

uint64_t weft_plan_scratch(const struct weft_plan_args *args)
{
    const struct plan *plan = plan_of(args->plan);
    return plan->scratch && args->ranks > 1 ? plan->scratch(args) : 0;
}

bool weft_plan_checks_headers(const struct weft_plan_args *args)
{
    bool slices = args->kind == WEFT_COLL_ALL_REDUCE,
         pieces = args->kind == WEFT_COLL_REDUCE_SCATTER || args->kind == WEFT_COLL_ALL_GATHER;
    if (args->ranks == 1 || args->displs_in || args->own_lengths || args->slice_weights ||
        !(slices || pieces))
        return false;
    if (args->plan == WEFT_PLAN_DOUBLING) return args->count > 0 && (args->ranks & (args->ranks - 1)) == 0;
    if (args->count < (slices ? args->ranks : 1)) return false; /* no slice and no piece is empty */
    /* otherwise the ring of the plan has another order */
    if (args->plan == WEFT_PLAN_RING) return !args->hosts || args->hosts->ring_is_identity;
    if (args->plan == WEFT_PLAN_DIRECT) return true;
    return args->ranks == 2 && args->plan == WEFT_PLAN_HALVING;
}

static bool plan_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action)
{
    if (coll_is_sendrecv(args->kind)) return pair_step(args, index, action);
    if (args->ranks == 1) return alone_step(args, index, action);
    if (weft_plan_checks_headers(args)) return plan_of(args->plan)->step(args, index, action);
    if (index == 0) {
        action->kind = WEFT_ACTION_SEND;
        action->place = WEFT_PLACE_INPUT;
        action->peer = plan_rank_after(args, 1);
        return true;
    }
    if (index == 1) {
        action->kind = WEFT_ACTION_RECV;
        action->peer = plan_rank_before(args, 1);
        return true;
    }
    return plan_of(args->plan)->step(args, index - HEADER_CHECK_STEPS, action);
}

void weft_plan_next(struct weft_plan_cursor *cursor, struct weft_action *action_out)
{
    memset(action_out, 0, sizeof *action_out);
    if (plan_step(&cursor->args, cursor->next, action_out)) {
        WEFT_ASSERT(action_out->depends <= cursor->next && action_out->after <= cursor->next);
        cursor->next++;
        return;
    }
    memset(action_out, 0, sizeof *action_out);
    action_out->kind = WEFT_ACTION_DONE;
}

/* ---- slices, chunks, blocks ---- */
bool plan_is_sliced(const struct weft_plan_args *args)
{
    return args->kind == WEFT_COLL_ALL_REDUCE || args->kind == WEFT_COLL_REDUCE;
}

uint64_t weft_plan_slice_first(const struct weft_plan_args *args, uint32_t index)
{
    if (args->displs_in) return args->displs_in[index];
    if (!plan_is_sliced(args)) return args->count * index;
    if (args->slice_weights) {
        uint64_t parts = args->slice_weights[args->ranks], each = args->count / parts,
                 left = args->count % parts;
        return each * args->slice_weights[index] + left * args->slice_weights[index] / parts;
    }
    /* count*index/ranks without a product that could overflow */
    uint64_t whole = args->count / args->ranks, rest = args->count % args->ranks;
    return whole * index + rest * index / args->ranks;
}

uint64_t weft_plan_piece(const struct weft_plan_args *args, uint32_t peer, bool sends)
{
    struct weft_plan_args cut = *args;
    if (args->kind != WEFT_COLL_ALL_TO_ALL && args->rank != args->root) return args->count;
    if (args->kind == WEFT_COLL_ALL_TO_ALL && !sends) cut.displs_in = args->displs_out;
    return weft_plan_slice_first(&cut, peer + 1) - weft_plan_slice_first(&cut, peer);
}

static uint64_t longest_slice(const struct weft_plan_args *args)
{
    if (plan_is_sliced(args) && args->slice_weights) {
        uint64_t parts = args->slice_weights[args->ranks], longest = args->slice_weights[args->ranks + 1],
                 left = args->count % parts;
        return args->count / parts * longest + (left * longest + parts - 1) / parts;
    }
    return plan_is_sliced(args) ? args->count / args->ranks + (args->count % args->ranks != 0) : args->count;
}

uint64_t weft_plan_fold_elems(const struct weft_plan_args *args)
{
    if (args->plan == WEFT_PLAN_HIERARCHY && !on_pieces(args->kind)) return plan_hierarchy_chunk_elems(args);
    return plan_chunk_elems_max(args);
}

static uint64_t chunks_of(uint64_t length, uint64_t chunk) { return length / chunk + (length % chunk != 0); }

uint64_t plan_slice_chunks(const struct weft_plan_args *args)
{
    uint64_t chunks = chunks_of(longest_slice(args), args->chunk_elems);
    return chunks == 0 && args->own_lengths ? 1 : chunks;
}
uint64_t plan_vector_chunks(const struct weft_plan_args *args)
{
    return chunks_of(args->count, args->chunk_elems);
}

uint64_t plan_chunk_elems_max(const struct weft_plan_args *args)
{
    return longest_slice(args) < args->chunk_elems ? longest_slice(args) : args->chunk_elems;
}
uint64_t plan_chunk_elems_padded(const struct weft_plan_args *args)
{
    return (plan_chunk_elems_max(args) + 63) & ~63ull;
}

static struct plan_range part_of(uint64_t length, uint64_t chunk_elems, uint64_t chunk)
{
    struct plan_range part = {chunk * chunk_elems, 0};
    if (part.first < length) {
        part.count = length - part.first;
        if (part.count > chunk_elems) part.count = chunk_elems;
    }
    return part;
}

struct plan_range plan_vector_chunk(const struct weft_plan_args *args, uint64_t chunk)
{
    return part_of(args->count, args->chunk_elems, chunk);
}

struct plan_range plan_chunk_range(const struct weft_plan_args *args, uint32_t slice, uint64_t chunk)
{
    uint64_t length = weft_plan_slice_first(args, slice + 1) - weft_plan_slice_first(args, slice),
             chunks = plan_slice_chunks(args);
    if (!plan_is_sliced(args) || !args->slice_weights || chunks == 0)
        return part_of(length, args->chunk_elems, chunk);
    /* Weighted slices are all cut into the same number of chunks, so each link carries its share at any
     * time. */
    uint64_t each = length / chunks, left = length % chunks, first = each * chunk + left * chunk / chunks;
    if (chunk >= chunks) return (struct plan_range){length, 0};
    return (struct plan_range){first, each * (chunk + 1) + left * (chunk + 1) / chunks - first};
}

uint64_t plan_slice_in(const struct weft_plan_args *args, uint32_t slice)
{
    bool piece = args->kind == WEFT_COLL_ALL_GATHER || args->kind == WEFT_COLL_ALL_GATHER_BYTES;
    return piece ? 0 : weft_plan_slice_first(args, slice);
}

uint64_t plan_slice_out(const struct weft_plan_args *args, uint32_t slice)
{
    return args->kind == WEFT_COLL_REDUCE_SCATTER ? 0 : weft_plan_slice_first(args, slice);
}

struct plan_block plan_block_of(uint32_t ranks, uint32_t rank)
{
    struct plan_block block = {0};
    for (uint32_t left = ranks, bit; left > 0; left -= bit) {
        bit = 1u << (31 - (uint32_t)__builtin_clz(left));
        if (block.size > 0 && rank < block.first + block.size) {
            block.next_size = bit;
            break;
        }
        block.first += block.size;
        block.prev_size = block.size;
        block.size = bit;
    }
    if (block.size > 0) block.log2 = (uint32_t)__builtin_ctz(block.size);
    return block;
}
