/* algorithm.h - inside the room: what a plan file provides, and the arithmetic of slices they share. */
#ifndef WEFT_COLLECTIVE_PLAN_ALGORITHM_H
#define WEFT_COLLECTIVE_PLAN_ALGORITHM_H

#include "collective/collective.h"

/* ---- what each file provides ----
 * Step number `index` (counted after the two of the greeting, if it has one: plan.c) into *action_out,
 * which comes zeroed (kind NONE). `greeting` is how many steps precede index 0. Returns false past the
 * last step. */
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
uint64_t plan_hierarchy_chunk_elems(const struct weft_plan_args *args); /* elements of the longest */
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

/* cost_messages.c: per byte of messages as the plan sends them, nanoseconds; and how much longer all takes
 * where more ranks share the processors than did when it was measured. */
double cost_messages_byte_ns(const struct weft_link_runs *runs, const struct weft_plan_question *question,
                             enum weft_plan_id plan);
double cost_messages_oversubscription(const struct weft_link_runs *runs, uint32_t ranks);

/* ---- cuts ---- */
/* A chunk of a slice: where it starts within the slice and how long it is (0: no such part). */
struct plan_range {
    uint64_t first; /* within the slice */
    uint64_t count;
};

/* Is the vector cut into slices by us (all_reduce, reduce), or does it come in pieces? */
bool plan_is_sliced(const struct weft_plan_args *args);
/* The longest part that any step moves, rounded up so that parts in scratch start on cache lines. */
uint64_t plan_chunk_elems_padded(const struct weft_plan_args *args);
uint64_t plan_chunk_elems_max(const struct weft_plan_args *args); /* as it is */
/* Plans that pass over the whole vector, not over slices of it: chunk `chunk` of it. */
uint64_t plan_vector_chunks(const struct weft_plan_args *args);
struct plan_range plan_vector_chunk(const struct weft_plan_args *args, uint64_t chunk);

/* Plans in which chunks follow each other over `stages` links: the chunk that balances filling the line
 * against the price of a message, sqrt(bytes * PLAN_HOP_BYTES / stages), as a power of two from 4 KiB to
 * chunk_bytes. Made of constants, not of measured links: the double tree's bits depend on it. */
/* contributions up to this lie in the announcements (onehost.h) */
#define PLAN_ONEHOST_COPYIN_SMALL_BYTES 4096
#define PLAN_ONEHOST_COPYIN_BYTES_MAX (256 << 10) /* and longer ones up to this at most: */
/* What one rank says in an announcement, at most, pieces for all ranks together. crowded: more ranks than
 * processors. */
uint64_t plan_onehost_copyin_limit(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed);
/* nt_store_limit.c: all buffers of all ranks together, from so many bytes on sums are stored past the
 * caches. last_cache_bytes: of the last cache; core_cache_bytes: of the own ones of all processors that
 * work; 0: not known. */
uint64_t plan_onehost_last_cache_bytes(uint64_t last_cache_bytes); /* as far as that tells */
uint64_t plan_onehost_nt_sum_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes);
/* times what own caches hold: all of it misses them (cost_onehost.c) */
#define PLAN_ONEHOST_NT_CORE_CACHE_FACTOR 4
/* where all buffers are in memory that all map */
uint64_t plan_onehost_copyin_limit_direct(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed);
#define PLAN_HOP_BYTES 32768.0 /* what a 10 Gbit/s link moves in a message time of 25 us */
uint64_t plan_pipeline_chunk(enum weft_plan_id plan, uint32_t ranks, uint64_t bytes, uint64_t chunk_bytes);
uint32_t plan_pipeline_stages(enum weft_plan_id plan, uint32_t ranks); /* 0: not such a plan */

/* Halving's messages are half as long from round to round: of many ranks the first is longer than a chunk,
 * so that they are about one in the mean. Bytes; at least chunk_bytes, and beyond that 1 MiB at most. Made
 * of ranks alone; halving's bits do not depend on it. */
#define PLAN_HALVING_CHUNK_MAX ((uint64_t)1 << 20)
uint64_t plan_halving_chunk(uint32_t ranks, uint64_t chunk_bytes);

/* Over links that hold more bytes on the way than a chunk has, each chunk would wait for a message's whole
 * time: there chunks are longer, a power of two times chunk_bytes, up to what the link holds and 4 MiB at
 * most. The double tree's are not, because its bits depend on them. cost: of the group, the same on all
 * ranks. Nor are they shorter than the messages that the transport moves best (message_bytes; 0: it does
 * not say), unless chunks shorter than the default are wished for. */
#define PLAN_LINK_CHUNK_MAX ((uint64_t)4 << 20)
uint64_t plan_link_chunk(enum weft_plan_id plan, const struct weft_link_cost *cost, uint64_t chunk_bytes,
                         uint64_t message_bytes);

/* Slices of unequal length go in several chunks: only those behind each other keep both directions of a
 * slow link at work. Bytes. */
uint64_t plan_weighted_chunk(uint64_t longest_slice, uint64_t chunk_bytes);

/* ---- blocks: ranks 0.. cut into powers of two, the largest first, as T cuts them ---- */
struct plan_block {
    uint32_t first, size, log2;
    uint32_t next_size; /* of the block behind it; 0: the last one */
    uint32_t prev_size; /* of the block before it; 0: the first one */
};
struct plan_block plan_block_of(uint32_t ranks, uint32_t rank);

/* Scratch is used again by every second chunk: step `place` of one of `steps` of chunk `chunk` waits for
 * all of chunk - 2. */
static inline uint64_t plan_after_chunk(uint64_t chunk, uint64_t steps, uint64_t place)
{
    return chunk >= 2 ? steps + place + 1 : 0;
}
static inline void plan_wait_after(struct weft_action *action, uint64_t after)
{
    if (after > 0 && (action->after == 0 || after < action->after)) action->after = after;
}

/* Chunks of the longest slice: every rank walks this many, so that positions agree everywhere. */
uint64_t plan_slice_chunks(const struct weft_plan_args *args);

/* Chunk `chunk` of slice `slice`. */
struct plan_range plan_chunk_range(const struct weft_plan_args *args, uint32_t slice, uint64_t chunk);

/* Where slice `slice` starts in the input and in the output vector of this rank. The vector that holds only
 * one rank's piece (output of reduce_scatter, input of all_gather) starts with that piece. */
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

/* The way round: host by host where hosts are known, in the order that measured links give
 * (weft_plan_hosts.round), else by number. */
static inline uint32_t plan_ring_rank(const struct weft_plan_args *args, uint64_t turn)
{
    return args->hosts ? args->hosts->ring_order[turn % args->ranks] : (uint32_t)(turn % args->ranks);
}
static inline uint32_t plan_ring_position(const struct weft_plan_args *args)
{
    return args->hosts ? args->hosts->ring_position[args->rank] : args->rank;
}

#endif
