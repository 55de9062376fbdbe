/* reduce_buffer.c - contributions of all ranks (hierarchy: of the ranks of a host) to one chunk, folded by T.
 *
 * Contributions arrive in any order, each into its own buffer, and are folded in rank order as far as they
 * are present. So most of the sum is done when the last one arrives, and no sender waits for the order of the
 * fold. Types that are their own partials are folded in the receive buffers. Narrower floats are widened into
 * log2(ranks)+1 f32 partials and rounded once, after scaling. The work runs in units of
 * COLL_COMPUTE_UNIT_BYTES within the budget of the loop step. A unit passes as far up the tree as it can
 * while it is in the cache. Memory: ranks * chunk elements, and the partials of narrower floats. */
#include "collective/core/reduce_buffer.h"

#include "collective/core/group.h"
#include "collective/core/op.h"

#include <string.h>

enum { TILE = 2048 }; /* elements */

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

size_t reduce_buffer_bytes(uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems)
{
    size_t bytes = round_up(ranks) + ranks * round_up(chunk_elems * weft_dtype_bytes(dtype));
    if (reduce_is_widened(dtype))
        bytes += weft_tree_reduce_buffer_count(ranks) * round_up(chunk_elems * sizeof(float));
    return bytes;
}

void reduce_buffer_init(struct reduce_buffer *area, uint8_t *memory, uint32_t ranks, enum weft_dtype dtype,
                        uint64_t chunk_elems)
{
    memset(area, 0, sizeof *area);
    area->present = memory;
    area->raw = memory + round_up(ranks);
    area->raw_bytes = round_up(chunk_elems * weft_dtype_bytes(dtype));
    if (!reduce_is_widened(dtype)) return;
    uint8_t *partials = area->raw + ranks * area->raw_bytes;
    area->free_count = weft_tree_reduce_buffer_count(ranks);
    for (uint32_t i = 0; i < area->free_count; i++)
        area->free_partials[i] = (float *)(partials + i * round_up(chunk_elems * sizeof(float)));
}

uint32_t reduce_buffer_index(const struct weft_coll *coll, uint32_t rank)
{
    return weft_plan_folds_within_host(coll->steps.cursor.args.plan)
               ? coll->steps.cursor.args.hosts->place[rank]
               : rank;
}

void reduce_buffer_open(struct weft_coll *coll, struct reduce_buffer *area, uint64_t offset_in,
                        uint64_t count)
{
    const struct reduce_spec *sum = &coll->data.sum;
    area->open = true;
    area->offset_in = offset_in;
    area->count = count;
    area->next = 0;
    area->done = 0;
    memset(area->present, 0, coll->buffers.reduce_buffer_ranks);
    weft_tree_reduce_init_op(&area->fold, count, reduce_is_widened(sum->dtype) ? WEFT_F32 : sum->dtype,
                             sum->op);
}

static void release_partials(struct reduce_buffer *area, float *const *freed, uint32_t freed_count)
{
    for (uint32_t i = 0; i < freed_count; i++) area->free_partials[area->free_count++] = freed[i];
}

/* Widens in tiles: a tile that is merged at once is never written to memory. */
static void reduce_widen_and_merge(const struct weft_coll *coll, struct reduce_buffer *area,
                                   const uint8_t *in, uint64_t count)
{
    float tile[TILE];
    for (uint64_t at = 0; at < count; at += TILE) {
        const uint64_t n = count - at < TILE ? count - at : TILE;
        reduce_load(&coll->data.sum, tile, in + at * coll->data.elem_bytes, n);
        weft_tree_reduce_merge(&area->fold, tile, area->done + at, n);
    }
}

/* Folds elements from area->done on of the next contribution. */
static void add_unit(struct weft_coll *coll, struct reduce_buffer *area, uint64_t count)
{
    const bool is_own = area->next == reduce_buffer_index(coll, coll->group->rank),
               merges = weft_tree_reduce_needs_merge(&area->fold);
    const size_t at = area->done * coll->data.elem_bytes;
    uint8_t *raw = reduce_buffer_slot(area, area->next) + at;
    const uint8_t *in =
        is_own ? (const uint8_t *)coll->data.in + area->offset_in * coll->data.elem_bytes + at : raw;
    if (reduce_is_widened(coll->data.sum.dtype)) {
        if (merges) reduce_widen_and_merge(coll, area, in, count);
        else reduce_load(&coll->data.sum, area->partial + area->done, in, count);
    } else {
        if (merges) weft_tree_reduce_merge(&area->fold, in, area->done, count);
        else if (is_own) memcpy(raw, in, count * coll->data.elem_bytes);
    }
}

static void contribution_begin(struct weft_coll *coll, struct reduce_buffer *area)
{
    area->partial = (float *)reduce_buffer_slot(area, area->next);
    if (!reduce_is_widened(coll->data.sum.dtype)) return;
    WEFT_ASSERT(area->free_count > 0);
    area->partial = area->free_partials[--area->free_count];
}

static void contribution_end(struct weft_coll *coll, struct reduce_buffer *area)
{
    float *freed[32];
    const uint32_t freed_count = weft_tree_reduce_push(&area->fold, area->partial, freed);
    if (reduce_is_widened(coll->data.sum.dtype)) release_partials(area, freed, freed_count);
    area->next++;
    area->done = 0;
}

/* The next unit of the chunk, taken from the budget. */
static uint64_t next_unit(const struct weft_coll *coll, const struct reduce_buffer *area, size_t *budget)
{
    uint64_t unit = COLL_COMPUTE_UNIT_BYTES / coll->data.elem_bytes;
    if (unit > area->count - area->done) unit = area->count - area->done;
    const size_t bytes = unit * coll->data.elem_bytes;
    *budget = *budget > bytes ? *budget - bytes : 0;
    return unit;
}

bool reduce_buffer_advance(struct weft_coll *coll, struct reduce_buffer *area, size_t *budget)
{
    uint32_t ranks = coll->buffers.reduce_buffer_ranks, own = reduce_buffer_index(coll, coll->group->rank);
    while (area->next < ranks && (area->next == own || area->present[area->next]) && *budget > 0) {
        if (coll->group->modes.timing_only) {
            area->next++;
            continue;
        }
        if (area->done == 0) contribution_begin(coll, area);
        const uint64_t unit = next_unit(coll, area, budget);
        add_unit(coll, area, unit);
        area->done += unit;
        if (area->done >= area->count) contribution_end(coll, area);
    }
    return area->next == ranks;
}

bool reduce_buffer_finish(struct weft_coll *coll, struct reduce_buffer *area, struct reduce_dst out,
                          size_t *budget)
{
    float *freed[32];
    uint32_t freed_count;
    while (area->done < area->count && !coll->group->modes.timing_only) {
        if (*budget == 0) return false;
        const uint64_t unit = next_unit(coll, area, budget);
        const uint8_t *total = (const uint8_t *)weft_tree_reduce_merge_rest(&area->fold, area->done, unit);
        const size_t at = area->done * (out.wide ? coll->data.scratch_elem_bytes : coll->data.elem_bytes);
        reduce_copy(&coll->data.sum, (struct reduce_dst){(uint8_t *)out.data + at, out.wide, out.last},
                    (struct reduce_src){total + area->done * reduce_partial_bytes(coll->data.sum.dtype),
                                        .wide = true},
                    unit);
        area->done += unit;
    }
    area->open = false;
    if (coll->group->modes.timing_only) return true;
    float *total = weft_tree_reduce_close(&area->fold, freed, &freed_count);
    if (!reduce_is_widened(coll->data.sum.dtype)) return true;
    release_partials(area, freed, freed_count);
    release_partials(area, &total, 1);
    return true;
}
