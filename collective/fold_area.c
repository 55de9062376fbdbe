/* fold_area.c - the owner's side of the direct plan: contributions of all ranks to one chunk, folded by T.
 *
 * Contributions arrive in any order and are folded in rank order as far as they are there, so most of
 * the sum is done when the last one comes. Each has its own buffer: whoever comes first is never held up
 * by the order of the fold. f32 is folded in the receive buffers themselves; 16-bit types are widened into
 * log2(ranks)+1 f32 partials and rounded once, after scaling; i64 sums exactly, so its order is free.
 *
 * Memory of one area: ranks * chunk elements, and for 16-bit types the partials. */
#include "collective/internal.h"

#include <string.h>

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }
static bool narrow_type(enum weft_dtype dtype) { return dtype == WEFT_F16 || dtype == WEFT_BF16; }

size_t fold_area_bytes(uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems)
{
    size_t bytes = round_up(ranks) + ranks * round_up(chunk_elems * weft_dtype_bytes(dtype));
    if (narrow_type(dtype)) bytes += weft_fold_slots(ranks) * round_up(chunk_elems * sizeof(float));
    return bytes;
}

void fold_area_init(struct fold_area *area, uint8_t *memory, uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems)
{
    memset(area, 0, sizeof *area);
    area->present = memory;
    area->raw = memory + round_up(ranks);
    area->raw_bytes = round_up(chunk_elems * weft_dtype_bytes(dtype));
    if (!narrow_type(dtype)) return;
    uint8_t *partials = area->raw + ranks * area->raw_bytes;
    area->free_count = weft_fold_slots(ranks);
    for (uint32_t i = 0; i < area->free_count; i++)
        area->free_partials[i] = (float *)(partials + i * round_up(chunk_elems * sizeof(float)));
}

void fold_area_open(struct fold_area *area, uint32_t ranks, uint64_t offset_in, uint64_t count)
{
    area->open = true;
    area->offset_in = offset_in;
    area->count = count;
    area->next = 0;
    memset(area->present, 0, ranks);
    weft_fold_init(&area->fold, count);
}

static void give_back(struct fold_area *area, float *const *freed, uint32_t freed_count)
{
    for (uint32_t i = 0; i < freed_count; i++) area->free_partials[area->free_count++] = freed[i];
}

static void add(struct weft_coll *coll, struct fold_area *area, uint32_t rank)
{
    enum weft_dtype dtype = coll->args.dtype;
    const uint8_t *own = (const uint8_t *)coll->args.in + area->offset_in * coll->elem_bytes;
    bool mine = rank == coll->group->rank;
    float *freed[32];
    if (dtype == WEFT_I64) {
        if (mine) memcpy(fold_area_buffer(area, rank), own, area->count * sizeof(int64_t));
        int64_t *total = (int64_t *)fold_area_buffer(area, 0);
        if (rank > 0) weft_kernels()->sum_i64(total, total, (int64_t *)fold_area_buffer(area, rank), area->count);
    } else if (dtype == WEFT_F32) {
        if (mine) memcpy(fold_area_buffer(area, rank), own, area->count * sizeof(float));
        weft_fold_add(&area->fold, (float *)fold_area_buffer(area, rank), freed);
    } else {
        WEFT_ASSERT(area->free_count > 0);
        float *partial = area->free_partials[--area->free_count];
        const void *source = mine ? own : fold_area_buffer(area, rank);
        if (dtype == WEFT_F16) weft_kernels()->cast_f16_f32(partial, source, area->count);
        else weft_kernels()->cast_bf16_f32(partial, source, area->count);
        give_back(area, freed, weft_fold_add(&area->fold, partial, freed));
    }
}

bool fold_area_advance(struct weft_coll *coll, struct fold_area *area, size_t *budget)
{
    uint32_t ranks = coll->group->ranks, own = coll->group->rank;
    size_t bytes = area->count * coll->elem_bytes;
    while (area->next < ranks && (area->next == own || area->present[area->next]) && *budget > 0) {
        add(coll, area, area->next++);
        *budget = *budget > bytes ? *budget - bytes : 0;
    }
    return area->next == ranks;
}

void fold_area_finish(struct weft_coll *coll, struct fold_area *area, void *out)
{
    enum weft_dtype dtype = coll->args.dtype;
    uint32_t ranks = coll->group->ranks, freed_count;
    area->open = false;
    if (dtype == WEFT_I64) {
        sum_finish(dtype, coll->args.op, ranks, out, fold_area_buffer(area, 0), area->count);
        return;
    }
    float *freed[32];
    float *total = weft_fold_finish(&area->fold, freed, &freed_count);
    if (dtype == WEFT_F32) {
        sum_finish(dtype, coll->args.op, ranks, out, total, area->count);
        return;
    }
    sum_finish(WEFT_F32, coll->args.op, ranks, total, total, area->count);
    if (dtype == WEFT_F16) weft_kernels()->cast_f32_f16(out, total, area->count);
    else weft_kernels()->cast_f32_bf16(out, total, area->count);
    give_back(area, freed, freed_count);
    give_back(area, &total, 1);
}
