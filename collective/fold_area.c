/* fold_area.c - the owner's side of the direct plan: contributions of all ranks to one chunk, folded by T; of the hierarchy:
 * those of the ranks of its host.
 *
 * Contributions arrive in any order and are folded in rank order as far as they are there, so most of
 * the sum is done when the last one comes. Each has its own buffer: whoever comes first is never held up
 * by the order of the fold. Types that are their own partials are folded in the receive buffers themselves; narrower floats
 * are widened into log2(ranks)+1 f32 partials and rounded once, after scaling.
 *
 * All of it in units of COLL_UNIT_BYTES, paid from the budget of the engine's step: a contribution's unit goes up the tree as
 * far as it can while it is in the cache.
 *
 * Memory of one area: ranks * chunk elements, and for narrower floats the partials. */
#include "collective/internal.h"

#include <string.h>

enum { TILE = 2048 }; /* elements */

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

size_t fold_area_bytes(uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems)
{
    size_t bytes = round_up(ranks) + ranks * round_up(chunk_elems * weft_dtype_bytes(dtype));
    if (sum_is_narrow(dtype)) bytes += weft_fold_slots(ranks) * round_up(chunk_elems * sizeof(float));
    return bytes;
}

void fold_area_init(struct fold_area *area, uint8_t *memory, uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems)
{
    memset(area, 0, sizeof *area);
    area->present = memory;
    area->raw = memory + round_up(ranks);
    area->raw_bytes = round_up(chunk_elems * weft_dtype_bytes(dtype));
    if (!sum_is_narrow(dtype)) return;
    uint8_t *partials = area->raw + ranks * area->raw_bytes;
    area->free_count = weft_fold_slots(ranks);
    for (uint32_t i = 0; i < area->free_count; i++)
        area->free_partials[i] = (float *)(partials + i * round_up(chunk_elems * sizeof(float)));
}

uint32_t fold_area_place(const struct weft_coll *coll, uint32_t rank)
{
    return weft_plan_folds_host(coll->cursor.args.plan) ? coll->cursor.args.hosts->place[rank] : rank;
}

void fold_area_open(struct weft_coll *coll, struct fold_area *area, uint64_t offset_in, uint64_t count)
{
    const struct sum *sum = &coll->sum;
    area->open = true;
    area->offset_in = offset_in;
    area->count = count;
    area->next = 0;
    area->done = 0;
    memset(area->present, 0, coll->fold_ranks);
    weft_fold_init_op(&area->fold, count, sum_is_narrow(sum->dtype) ? WEFT_F32 : sum->dtype, sum->op);
}

static void give_back(struct fold_area *area, float *const *freed, uint32_t freed_count)
{
    for (uint32_t i = 0; i < freed_count; i++) area->free_partials[area->free_count++] = freed[i];
}

/* Widened a little at a time: what is merged at once is never written to memory. */
static void widen_and_merge(const struct weft_coll *coll, struct fold_area *area, const uint8_t *in, uint64_t count)
{
    float tile[TILE];
    for (uint64_t at = 0; at < count; at += TILE) {
        const uint64_t n = count - at < TILE ? count - at : TILE;
        sum_contribution(&coll->sum, tile, in + at * coll->elem_bytes, n);
        weft_fold_merge(&area->fold, tile, area->done + at, n);
    }
}

/* Elements from area->done on, of the contribution that is next. */
static void add_unit(struct weft_coll *coll, struct fold_area *area, uint64_t count)
{
    const bool mine = area->next == fold_area_place(coll, coll->group->rank), merges = weft_fold_merges(&area->fold);
    const size_t at = area->done * coll->elem_bytes;
    uint8_t *raw = fold_area_buffer(area, area->next) + at;
    const uint8_t *in = mine ? (const uint8_t *)coll->in + area->offset_in * coll->elem_bytes + at : raw;
    if (sum_is_narrow(coll->sum.dtype)) {
        if (merges) widen_and_merge(coll, area, in, count);
        else sum_contribution(&coll->sum, area->partial + area->done, in, count);
    } else {
        if (merges) weft_fold_merge(&area->fold, in, area->done, count);
        else if (mine) memcpy(raw, in, count * coll->elem_bytes);
    }
}

static void begin_rank(struct weft_coll *coll, struct fold_area *area)
{
    area->partial = (float *)fold_area_buffer(area, area->next);
    if (!sum_is_narrow(coll->sum.dtype)) return;
    WEFT_ASSERT(area->free_count > 0);
    area->partial = area->free_partials[--area->free_count];
}

static void end_rank(struct weft_coll *coll, struct fold_area *area)
{
    float *freed[32];
    const uint32_t freed_count = weft_fold_added(&area->fold, area->partial, freed);
    if (sum_is_narrow(coll->sum.dtype)) give_back(area, freed, freed_count);
    area->next++;
    area->done = 0;
}

/* The next piece of the chunk's `count` elements, paid for. */
static uint64_t take_unit(const struct weft_coll *coll, const struct fold_area *area, size_t *budget)
{
    uint64_t unit = COLL_UNIT_BYTES / coll->elem_bytes;
    if (unit > area->count - area->done) unit = area->count - area->done;
    const size_t bytes = unit * coll->elem_bytes;
    *budget = *budget > bytes ? *budget - bytes : 0;
    return unit;
}

bool fold_area_advance(struct weft_coll *coll, struct fold_area *area, size_t *budget)
{
    uint32_t ranks = coll->fold_ranks, own = fold_area_place(coll, coll->group->rank);
    while (area->next < ranks && (area->next == own || area->present[area->next]) && *budget > 0) {
        if (coll->group->timing_only) {
            area->next++;
            continue;
        }
        if (area->done == 0) begin_rank(coll, area);
        const uint64_t unit = take_unit(coll, area, budget);
        add_unit(coll, area, unit);
        area->done += unit;
        if (area->done >= area->count) end_rank(coll, area);
    }
    return area->next == ranks;
}

bool fold_area_finish(struct weft_coll *coll, struct fold_area *area, struct sum_out out, size_t *budget)
{
    float *freed[32];
    uint32_t freed_count;
    while (area->done < area->count && !coll->group->timing_only) {
        if (*budget == 0) return false;
        const uint64_t unit = take_unit(coll, area, budget);
        const uint8_t *total = (const uint8_t *)weft_fold_total(&area->fold, area->done, unit);
        const size_t at = area->done * (out.wide ? coll->scratch_elem_bytes : coll->elem_bytes);
        sum_copy(&coll->sum, (struct sum_out){(uint8_t *)out.data + at, out.wide, out.last},
                 (struct sum_in){total + area->done * sum_partial_bytes(coll->sum.dtype), .wide = true}, unit);
        area->done += unit;
    }
    area->open = false;
    if (coll->group->timing_only) return true;
    float *total = weft_fold_close(&area->fold, freed, &freed_count);
    if (!sum_is_narrow(coll->sum.dtype)) return true;
    give_back(area, freed, freed_count);
    give_back(area, &total, 1);
    return true;
}
