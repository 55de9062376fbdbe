/* chunk_size.c - bytes of a chunk: by the plan's pipeline, the links, urgency, halving, weighted slices.
 * core/op.c combines them with collective.chunk_bytes; the cost model uses the same functions. Pure, and
 * equal on all ranks. The reasons are in plan/algorithm.h. */
#include "collective/plan/algorithm.h"

uint32_t plan_pipeline_stages(enum weft_plan_id plan, uint32_t ranks)
{
    uint32_t depth = 0;
    while (1ull << depth < ranks) depth++;
    return plan == WEFT_PLAN_CHAIN ? ranks - 1 : plan == WEFT_PLAN_DOUBLE_TREE ? 2 * depth : 0;
}

uint64_t plan_pipeline_chunk(enum weft_plan_id plan, uint32_t ranks, uint64_t bytes, uint64_t chunk_bytes)
{
    uint32_t stages = plan_pipeline_stages(plan, ranks);
    uint64_t chunk = 4096;
    if (stages == 0) return chunk_bytes;
    while (chunk < chunk_bytes && (double)chunk * (double)chunk < (double)bytes * PLAN_HOP_BYTES / stages)
        chunk *= 2;
    return chunk < chunk_bytes ? chunk : chunk_bytes;
}

uint64_t plan_link_chunk(enum weft_plan_id plan, const struct weft_link_cost *cost, uint64_t chunk_bytes,
                         uint64_t message_bytes)
{
    bool known = cost && cost->bytes_per_second > 0;
    double on_the_way = known ? (double)cost->latency_ns * 1e-9 * (double)cost->bytes_per_second : 0;
    uint64_t chunk = chunk_bytes;
    if (plan == WEFT_PLAN_DOUBLE_TREE) return chunk;
    if (chunk >= WEFT_COLL_CHUNK_BYTES && chunk < message_bytes) chunk = message_bytes;
    while ((double)chunk < on_the_way && 2 * chunk <= PLAN_LINK_CHUNK_MAX) chunk *= 2;
    return chunk;
}

uint64_t plan_urgent_chunk(const struct weft_link_cost *cost, uint64_t chunk_bytes)
{
    if (!cost || cost->bytes_per_second == 0) return chunk_bytes;
    const double rate = (double)cost->bytes_per_second, far = rate * 1e-9 * (double)cost->latency_ns;
    uint64_t chunk = chunk_bytes;
    while (chunk / 2 >= PLAN_URGENT_CHUNK_MIN && (double)chunk > rate * PLAN_URGENT_CHUNK_SECONDS &&
           (double)chunk / 2 > 4 * far)
        chunk /= 2;
    return chunk;
}

uint64_t plan_halving_chunk(uint32_t ranks, uint64_t chunk_bytes)
{
    uint32_t halvings = 31 - (uint32_t)__builtin_clz(ranks);
    uint64_t chunk = chunk_bytes;
    for (uint32_t longer = 2; 2 * longer <= halvings && 2 * chunk <= PLAN_HALVING_CHUNK_MAX; longer *= 2)
        chunk *= 2;
    return chunk;
}

uint64_t plan_weighted_chunk(uint64_t longest_slice, uint64_t chunk_bytes)
{
    uint64_t chunk = longest_slice / 8 > 16384 ? longest_slice / 8 : 16384;
    return chunk < chunk_bytes ? chunk : chunk_bytes;
}
