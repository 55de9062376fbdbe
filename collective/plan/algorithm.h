/* algorithm.h - what each algorithm file of plan/ provides, and the arithmetic of slices that they share.
 * Private to collective/. */
#ifndef WEFT_COLLECTIVE_PLAN_ALGORITHM_H
#define WEFT_COLLECTIVE_PLAN_ALGORITHM_H

#include "collective/collective.h"

/* ---- algorithms ---- Writes step `index` into *action_out, which is zeroed (kind NONE) on entry. `index`
 * does not count the two steps of the header check (plan.c). Returns false past the last step. */
bool plan_direct_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_ring_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_binomial_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_broadcast_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_barrier_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_pairwise_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_linear_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_doubling_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_halving_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_chain_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_double_tree_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_pat_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_gather_tree_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);
bool plan_bruck_all_to_all_step(const struct weft_plan_args *args, uint64_t index,
                                struct weft_action *action_out);
bool plan_bruck_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);

bool plan_hierarchy_step(const struct weft_plan_args *args, uint64_t index, struct weft_action *action_out);

bool plan_hierarchy_pieces_step(const struct weft_plan_args *args, uint64_t index,
                                struct weft_action *action_out);

uint32_t plan_hierarchy_folds(const struct weft_plan_args *args);
uint64_t plan_hierarchy_chunk_elems(const struct weft_plan_args *args); /* elements of the longest chunk */
uint64_t plan_hierarchy_scratch(const struct weft_plan_args *args);
uint32_t plan_hierarchy_pieces_folds(const struct weft_plan_args *args);
uint64_t plan_hierarchy_pieces_scratch(const struct weft_plan_args *args);
/* Steps of one chunk (halving: of one segment), for a plan that runs them as part of its own. */
uint64_t plan_doubling_steps(const struct weft_plan_args *args);
uint64_t plan_halving_steps(const struct weft_plan_args *args);
uint64_t plan_broadcast_steps(const struct weft_plan_args *args);
uint32_t plan_direct_folds(const struct weft_plan_args *args);
/* Elements of scratch. */
uint64_t plan_direct_scratch(const struct weft_plan_args *args);
uint64_t plan_ring_scratch(const struct weft_plan_args *args);
uint64_t plan_binomial_scratch(const struct weft_plan_args *args);
uint64_t plan_doubling_scratch(const struct weft_plan_args *args);
uint64_t plan_halving_scratch(const struct weft_plan_args *args);
uint64_t plan_double_tree_scratch(const struct weft_plan_args *args);
uint64_t plan_pat_scratch(const struct weft_plan_args *args);
uint64_t plan_gather_tree_scratch(const struct weft_plan_args *args);
uint64_t plan_bruck_scratch(const struct weft_plan_args *args);
uint64_t plan_bruck_all_to_all_scratch(const struct weft_plan_args *args);
uint64_t plan_chain_scratch(const struct weft_plan_args *args);

/* cost_messages.c: nanoseconds for each byte, in messages as the plan sends them. And the factor by which
 * all takes longer if more ranks share the cores than in the measurement. */
double cost_messages_byte_ns(const struct weft_link_runs *runs, const struct weft_plan_question *question,
                             enum weft_plan_id plan);
double cost_messages_oversubscription(const struct weft_link_runs *runs, uint32_t ranks);

/* ---- slices and chunks ---- */
/* A chunk of a slice; count 0: no such chunk. */
struct plan_range {
    uint64_t first; /* within the slice */
    uint64_t count;
};

/* Returns whether the plan cuts the vector into slices (all_reduce, reduce). Other kinds have pieces. */
bool plan_is_sliced(const struct weft_plan_args *args);
/* The longest chunk, rounded up so that chunks in scratch begin on cache lines. */
uint64_t plan_chunk_elems_padded(const struct weft_plan_args *args);
uint64_t plan_chunk_elems_max(const struct weft_plan_args *args); /* not rounded */
/* For plans that process the whole vector, not slices: chunk `chunk` of the vector. */
uint64_t plan_vector_chunks(const struct weft_plan_args *args);
struct plan_range plan_vector_chunk(const struct weft_plan_args *args, uint64_t chunk);

/* ---- limits of the one-host path, for the cost model and onehost/ ---- */
/* limits of copy-in, bytes of one rank: one small slot (onehost.h) ... */
#define PLAN_ONEHOST_COPYIN_SMALL_BYTES 4096
#define PLAN_ONEHOST_COPYIN_BYTES_MAX (256 << 10) /* ... and several large slots */
/* copyin_limit.c: most bytes that one rank copies in, pieces for all ranks together. is_oversubscribed:
 * more ranks than cores. */
uint64_t plan_onehost_copyin_limit(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed);
/* nt_store_limit.c: if the buffers of all ranks together have at least this many bytes, sums, copies between
 * buffers, and staged copies use non-temporal stores. last_cache_bytes: of the last-level cache;
 * core_cache_bytes: of the private caches of all working cores; 0: unknown. */
/* clamped to the range in which the figure is plausible */
uint64_t plan_onehost_last_cache_bytes(uint64_t last_cache_bytes);
uint64_t plan_onehost_nt_sum_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes);
uint64_t plan_onehost_nt_copy_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes);
uint64_t plan_onehost_nt_stage_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes);
/* the limit if all ranks map all buffers */
uint64_t plan_onehost_copyin_limit_direct(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed);

/* ---- tuning/chunk_size.c ---- */
/* Pipelined plans, chunks over `stages` links: the chunk that balances the fill time against the cost of a
 * message, sqrt(bytes * PLAN_HOP_BYTES / stages), as a power of two from 4 KiB to chunk_bytes. It uses
 * constants, not measured links, because the double tree's bits depend on it. */
#define PLAN_HOP_BYTES 32768.0 /* bytes that a 10 Gbit/s link moves in a message time of 25 us */
uint64_t plan_pipeline_chunk(enum weft_plan_id plan, uint32_t ranks, uint64_t bytes, uint64_t chunk_bytes);
uint32_t plan_pipeline_stages(enum weft_plan_id plan, uint32_t ranks); /* 0: not pipelined */

/* Messages of halving get shorter by half each round. With many ranks the first ones are longer than
 * chunk_bytes, up to PLAN_HALVING_CHUNK_MAX, so that the mean is about one chunk. In bytes. Depends on
 * ranks only; the bits of halving do not depend on it. */
#define PLAN_HALVING_CHUNK_MAX ((uint64_t)1 << 20)
uint64_t plan_halving_chunk(uint32_t ranks, uint64_t chunk_bytes);

/* On links that hold more bytes in flight than a chunk, each chunk would wait for a message time. There
 * chunks are longer: a power of two times chunk_bytes, up to the bytes in flight and PLAN_LINK_CHUNK_MAX.
 * Not for the double tree, whose bits depend on the chunk. cost: of the group, equal on all ranks. With
 * the default chunk_bytes or more, chunks are at least message_bytes, the transport's fastest message size
 * (0: unknown). */
#define PLAN_LINK_CHUNK_MAX ((uint64_t)4 << 20)
uint64_t plan_link_chunk(enum weft_plan_id plan, const struct weft_link_cost *cost, uint64_t chunk_bytes,
                         uint64_t message_bytes);
/* Chunk of an operation with an urgency: over a known slow link a message takes about a millisecond. A
 * more urgent operation waits that long for it. Equal on all ranks. */
#define PLAN_URGENT_CHUNK_MIN ((uint64_t)32 << 10)
#define PLAN_URGENT_CHUNK_SECONDS 1e-3
uint64_t plan_urgent_chunk(const struct weft_link_cost *cost, uint64_t chunk_bytes);

/* Weighted slices use several chunks: several messages in flight keep both directions of a slow link busy.
 * In bytes. */
uint64_t plan_weighted_chunk(uint64_t longest_slice, uint64_t chunk_bytes);

/* ---- blocks: ranks cut into powers of two, the largest first, as in T ---- */
struct plan_block {
    uint32_t first, size, log2;
    uint32_t next_size; /* size of the next block; 0: this is the last one */
    uint32_t prev_size; /* size of the previous block; 0: this is the first one */
};
struct plan_block plan_block_of(uint32_t ranks, uint32_t rank);

/* Every second chunk uses the same scratch: step `place` of the `steps` of chunk `chunk` waits for all
 * steps of chunk - 2. */
static inline uint64_t plan_after_chunk(uint64_t chunk, uint64_t steps, uint64_t place)
{
    return chunk >= 2 ? steps + place + 1 : 0;
}
static inline void plan_wait_after(struct weft_action *action, uint64_t after)
{
    if (after > 0 && (action->after == 0 || after < action->after)) action->after = after;
}

/* Chunks of the longest slice. Every rank walks this many, so step numbers agree on all ranks. */
uint64_t plan_slice_chunks(const struct weft_plan_args *args);

/* Chunk `chunk` of slice `slice`. */
struct plan_range plan_chunk_range(const struct weft_plan_args *args, uint32_t slice, uint64_t chunk);

/* Begin of slice `slice` in the input and in the output of this rank. A vector with only this rank's piece
 * (output of reduce_scatter, input of all_gather) begins with that piece. */
uint64_t plan_slice_in(const struct weft_plan_args *args, uint32_t slice);
uint64_t plan_slice_out(const struct weft_plan_args *args, uint32_t slice);

static inline uint32_t plan_rank_after(const struct weft_plan_args *args, uint32_t distance)
{
    return (uint32_t)(((uint64_t)args->rank + distance) % args->ranks);
}

static inline uint32_t plan_rank_before(const struct weft_plan_args *args, uint32_t distance)
{
    return (uint32_t)(((uint64_t)args->rank + args->ranks - distance % args->ranks) % args->ranks);
}

/* Ring order: host by host in the order of measured links (weft_plan_hosts.ring_order) if hosts are known,
 * else by number. */
static inline uint32_t plan_ring_rank(const struct weft_plan_args *args, uint64_t turn)
{
    return args->hosts ? args->hosts->ring_order[turn % args->ranks] : (uint32_t)(turn % args->ranks);
}
static inline uint32_t plan_ring_position(const struct weft_plan_args *args)
{
    return args->hosts ? args->hosts->ring_position[args->rank] : args->rank;
}

#endif
