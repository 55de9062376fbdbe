/* fold_area.c - the owner's side of the direct plan: contributions of all ranks to one chunk, folded by T.
 *
 * Contributions arrive in any order and are folded in rank order as far as they are there, so most of
 * the sum is done when the last one comes. Each has its own buffer: whoever comes first is never held up
 * by the order of the fold. Types that are their own partials are folded in the receive buffers themselves; narrower floats
 * are widened into log2(ranks)+1 f32 partials and rounded once, after scaling.
 *
 * Memory of one area: ranks * chunk elements, and for narrower floats the partials. */
#include "collective/internal.h"

#include <string.h>

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

void fold_area_open(struct fold_area *area, const struct sum *sum, uint64_t offset_in, uint64_t count)
{
    area->open = true;
    area->offset_in = offset_in;
    area->count = count;
    area->next = 0;
    memset(area->present, 0, sum->ranks);
    weft_fold_init_op(&area->fold, count, sum_is_narrow(sum->dtype) ? WEFT_F32 : sum->dtype, sum->op);
}

static void give_back(struct fold_area *area, float *const *freed, uint32_t freed_count)
{
    for (uint32_t i = 0; i < freed_count; i++) area->free_partials[area->free_count++] = freed[i];
}

static void add(struct weft_coll *coll, struct fold_area *area, uint32_t rank)
{
    const uint8_t *own = (const uint8_t *)coll->in + area->offset_in * coll->elem_bytes;
    bool mine = rank == coll->group->rank;
    float *freed[32];
    if (!sum_is_narrow(coll->sum.dtype)) {
        if (mine) memcpy(fold_area_buffer(area, rank), own, area->count * coll->elem_bytes);
        weft_fold_add(&area->fold, (float *)fold_area_buffer(area, rank), freed);
    } else {
        WEFT_ASSERT(area->free_count > 0);
        float *partial = area->free_partials[--area->free_count];
        sum_widen(coll->sum.dtype, partial, mine ? own : fold_area_buffer(area, rank), area->count);
        give_back(area, freed, weft_fold_add(&area->fold, partial, freed));
    }
}

bool fold_area_advance(struct weft_coll *coll, struct fold_area *area, size_t *budget)
{
    uint32_t ranks = coll->group->ranks, own = coll->group->rank;
    size_t bytes = area->count * coll->elem_bytes;
    while (area->next < ranks && (area->next == own || area->present[area->next]) && *budget > 0) {
        if (coll->group->timing_only) {
            area->next++;
            continue;
        }
        add(coll, area, area->next++);
        *budget = *budget > bytes ? *budget - bytes : 0;
    }
    return area->next == ranks;
}

void fold_area_finish(struct weft_coll *coll, struct fold_area *area, void *out)
{
    float *freed[32];
    uint32_t freed_count;
    area->open = false;
    if (coll->group->timing_only) return;
    float *total = weft_fold_finish(&area->fold, freed, &freed_count);
    sum_copy(&coll->sum, (struct sum_out){out, .last = true}, (struct sum_in){total, .wide = true}, area->count);
    if (!sum_is_narrow(coll->sum.dtype)) return;
    give_back(area, freed, freed_count);
    give_back(area, &total, 1);
}
