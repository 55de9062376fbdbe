/* slice.c - see slice.h. */
#include "compress/split/slice.h"

#include <string.h>

#include "compress/codec.h"
#include "compress/lowbit.h"
#include "compress/quantise.h"
#include "compress/split/slice_pack.h"
#include "kernels/kernels.h"

#define CAST_UNIT 32u /* elements: 64 bytes of a 16-bit type */

static const uint8_t NO_ELEMENTS = 0;

static struct weft_slice_layout contribution_of(const struct weft_codec_spec *spec, uint32_t round)
{
    switch (spec->id) {
    case WEFT_CODEC_F16: return (struct weft_slice_layout){.head_bytes = sizeof(int32_t), .elem_bits = 16};
    case WEFT_CODEC_BF16: return (struct weft_slice_layout){.elem_bits = 16};
    case WEFT_CODEC_SIGN: return (struct weft_slice_layout){.block_bytes = sizeof(float), .elem_bits = 1};
    case WEFT_CODEC_E4M3:
    case WEFT_CODEC_E5M2: return (struct weft_slice_layout){.block_bytes = 1, .elem_bits = 8};
    default: break; /* int8, int4 */
    }
    if (round == 0) return (struct weft_slice_layout){.block_bytes = 1};
    return (struct weft_slice_layout){.elem_bits = spec->id == WEFT_CODEC_INT4 ? 4 : 8};
}

static struct weft_slice_layout aggregate_of(const struct weft_codec_spec *spec, uint32_t round,
                                             uint32_t ranks)
{
    const bool integers = spec->id == WEFT_CODEC_INT8 || spec->id == WEFT_CODEC_INT4;
    if (integers && round == 0) return (struct weft_slice_layout){.block_bytes = 1};
    if (integers) {
        const size_t bytes = quantise_aggregate_bytes(spec->id, 1, round, ranks);
        return (struct weft_slice_layout){.elem_bits = 8 * (uint32_t)bytes};
    }
    return (struct weft_slice_layout){.head_bytes = spec->id == WEFT_CODEC_F16 ? sizeof(int32_t) : 0,
                                      .elem_bits = 16};
}

static struct weft_slice_packing packing_of(const struct weft_codec_spec *spec, uint32_t round,
                                            uint32_t ranks)
{
    const bool integers = spec->id == WEFT_CODEC_INT8 || spec->id == WEFT_CODEC_INT4;
    if (is_lowbit(spec->id)) return (struct weft_slice_packing){.kind = WEFT_SLICE_WINDOWS};
    if (!integers || round == 0 || quantise_aggregate_bytes(spec->id, 1, round, ranks) != 2)
        return (struct weft_slice_packing){.kind = WEFT_SLICE_PLAIN};
    const uint32_t most = ranks * quantise_limit(spec->id);
    uint32_t bits = 9;
    while (most >> (bits - 1) > 0) bits++;
    if (bits == 16) return (struct weft_slice_packing){.kind = WEFT_SLICE_PLAIN};
    return (struct weft_slice_packing){.kind = WEFT_SLICE_INTEGERS, .high_bits = bits - 8};
}

static size_t scales_bytes(const struct weft_slice_layout *layout, uint64_t elems)
{
    return layout->block_bytes * quantise_blocks(elems);
}

static size_t codes_bytes(const struct weft_slice_layout *layout, uint64_t elems)
{
    return (elems * layout->elem_bits + 7) / 8;
}

static size_t layout_bytes(const struct weft_slice_layout *layout, uint64_t elems)
{
    return layout->head_bytes + scales_bytes(layout, elems) + codes_bytes(layout, elems);
}

/* Returns whether slices of this layout lie one behind the other in the whole. */
static bool is_one_run(const struct weft_slice_layout *layout)
{
    return layout->head_bytes == 0 && (layout->block_bytes == 0 || layout->elem_bits == 0);
}

bool weft_slices_of(const struct weft_codec_spec *resolved, const struct weft_shape *shape, uint32_t ranks,
                    uint32_t round, struct weft_slices *slices_out)
{
    const bool is_cast = resolved->id == WEFT_CODEC_F16 || resolved->id == WEFT_CODEC_BF16;
    if (ranks < 2 || (!is_cast && !weft_codec_can_split(resolved) && resolved->id != WEFT_CODEC_SIGN))
        return false;
    const uint64_t elems = weft_shape_elems(shape), unit = is_cast ? CAST_UNIT : WEFT_BLOCK;
    const uint64_t units = elems / unit + (elems % unit != 0), each = units / ranks + (units % ranks != 0);
    struct weft_slices slices = {
        .contribution = contribution_of(resolved, round),
        .aggregate = aggregate_of(resolved, round, ranks),
        .packing = packing_of(resolved, round, ranks),
        .elems = elems,
        .slice_elems = each * unit,
        .ranks = ranks,
        .has_peak = resolved->id == WEFT_CODEC_F16,
    };
    slices.piece_bytes = layout_bytes(&slices.contribution, slices.slice_elems);
    slices.sum_bytes = slices.sum_bytes_expected = layout_bytes(&slices.aggregate, slices.slice_elems);
    if (weft_slices_need_packing(&slices)) {
        slices.sum_bytes = slice_packed_bytes_max(&slices.packing, slices.slice_elems);
        slices.sum_bytes_expected = slice_packed_bytes(&slices.packing, slices.slice_elems);
    }
    *slices_out = slices;
    return true;
}

static uint64_t first_of(const struct weft_slices *slices, uint32_t rank)
{
    const uint64_t first = rank * slices->slice_elems;
    return first < slices->elems ? first : slices->elems;
}

uint64_t weft_slices_elems(const struct weft_slices *slices, uint32_t rank)
{
    return first_of(slices, rank + 1) - first_of(slices, rank);
}

bool weft_slices_are_contribution(const struct weft_slices *slices)
{
    return is_one_run(&slices->contribution);
}

/* Where the scales and the codes of a rank's slice lie in the bytes of the whole. */
static size_t scales_at(const struct weft_slices *slices, const struct weft_slice_layout *layout,
                        uint32_t rank)
{
    return layout->head_bytes + scales_bytes(layout, first_of(slices, rank));
}

static size_t codes_at(const struct weft_slices *slices, const struct weft_slice_layout *layout,
                       uint32_t rank)
{
    return layout->head_bytes + scales_bytes(layout, slices->elems) +
           codes_bytes(layout, first_of(slices, rank));
}

void weft_slices_split(const struct weft_slices *slices, const void *contribution, uint8_t *pieces_out,
                     uint64_t *lengths_out)
{
    const struct weft_slice_layout *layout = &slices->contribution;
    const uint8_t *whole = contribution;
    for (uint32_t rank = 0; rank < slices->ranks; rank++) {
        const uint64_t elems = weft_slices_elems(slices, rank);
        lengths_out[rank] = elems > 0 ? layout_bytes(layout, elems) : sizeof NO_ELEMENTS;
        if (is_one_run(layout)) continue;
        uint8_t *out = pieces_out + rank * slices->piece_bytes;
        if (elems == 0) {
            *out = NO_ELEMENTS;
            continue;
        }
        const size_t scales = scales_bytes(layout, elems);
        memcpy(out, whole, layout->head_bytes);
        memcpy(out + layout->head_bytes, whole + scales_at(slices, layout, rank), scales);
        memcpy(out + layout->head_bytes + scales, whole + codes_at(slices, layout, rank),
               codes_bytes(layout, elems));
    }
}

bool weft_slices_need_packing(const struct weft_slices *slices)
{
    return slices->packing.kind != WEFT_SLICE_PLAIN;
}

size_t weft_slices_pack(const struct weft_slices *slices, uint32_t rank, const void *aggregate, uint8_t *out)
{
    return slice_pack(&slices->packing, out, aggregate, weft_slices_elems(slices, rank));
}

/* One rank's sum, of `elems` elements, into its places in the whole. */
static enum weft_status join_one(const struct weft_slices *slices, uint32_t rank, const uint8_t *sum,
                                 size_t bytes, uint64_t elems, uint8_t *whole)
{
    const struct weft_slice_layout *layout = &slices->aggregate;
    if (weft_slices_need_packing(slices))
        return slice_unpack(&slices->packing, whole + codes_at(slices, layout, rank), sum, bytes, elems);
    if (bytes != layout_bytes(layout, elems)) return WEFT_ERR_MALFORMED;
    if (is_one_run(layout)) return WEFT_OK; /* the sums are the aggregate */
    const size_t scales = scales_bytes(layout, elems);
    if (rank == 0) memcpy(whole, sum, layout->head_bytes);
    if (memcmp(whole, sum, layout->head_bytes) != 0) return WEFT_ERR_MALFORMED;
    memcpy(whole + scales_at(slices, layout, rank), sum + layout->head_bytes, scales);
    memcpy(whole + codes_at(slices, layout, rank), sum + layout->head_bytes + scales,
           codes_bytes(layout, elems));
    return WEFT_OK;
}

enum weft_status weft_slices_join(const struct weft_slices *slices, const uint8_t *sums,
                                  const uint64_t *lengths, void *scratch, const void **aggregate_out,
                                  size_t *bytes_out, uint32_t *rank_out)
{
    for (uint32_t rank = 0; rank < slices->ranks; rank++) {
        const uint64_t elems = weft_slices_elems(slices, rank);
        *rank_out = rank;
        if (elems > 0)
            WEFT_TRY(join_one(slices, rank, sums + rank * slices->sum_bytes, lengths[rank], elems, scratch));
        else if (lengths[rank] != sizeof NO_ELEMENTS) return WEFT_ERR_MALFORMED;
    }
    *aggregate_out = is_one_run(&slices->aggregate) && !weft_slices_need_packing(slices) ? sums : scratch;
    *bytes_out = layout_bytes(&slices->aggregate, slices->elems);
    return WEFT_OK;
}
