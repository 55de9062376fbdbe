/* slices.c - one round of a codec in slices: an exchange and an all_gather in place of one all_gather.
 *
 *     encode ─► cut ─► exchange_bytes (piece r to rank r) ─► add the pieces of ranks 0.. for the own slice
 *            ─► (f16: all_gather_bytes of peaks) ─► all_gather_bytes of the sums ─► join ─► take
 *
 * A gather of contributions of c bytes sends (ranks - 1) c. Slices send (ranks - 1) / ranks (c + a); a: bytes
 * of the aggregate. A rank whose gradient is not finite sends empty pieces, so all ranks detect it after the
 * first exchange. If a receiver cannot read a piece, it sends an empty sum or peak, so all ranks fail. */
#include "collective/compressed/slices.h"

#include "collective/core/group.h"
#include "collective/core/op.h"

#include <string.h>

/* Cost of a second exchange in bytes. Below this saving the gather's shorter chain of messages is faster. */
#define SECOND_EXCHANGE_BYTES (4u << 10)

static size_t round_up(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

double codec_slices_traffic(const struct weft_slices *form)
{
    const double others = (double)form->ranks - 1;
    return others *
           (double)(form->piece_bytes + form->sum_bytes_expected + (form->has_peak ? sizeof(uint32_t) : 0));
}

bool codec_slices_is_used(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks,
                         uint32_t round, uint32_t from_ranks)
{
    struct weft_slices form;
    if (!weft_slices_of(spec, shape, ranks, round, &form)) return false;
    if (from_ranks > 0) return ranks >= from_ranks;
    const double one = (double)weft_codec_contribution_bytes_max(spec, shape, round);
    return codec_slices_traffic(&form) + SECOND_EXCHANGE_BYTES < ((double)ranks - 1) * one;
}

/* ---- memory: pieces, unless they are the contribution | received pieces | aggregate | own packed sum | 2
 * length arrays */
struct layout {
    size_t pieces_bytes, gathered_bytes, aggregate_bytes, packed_bytes, lengths_bytes;
};

static struct layout layout_of(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                               uint32_t round, const struct weft_slices *form)
{
    const size_t stride = form->piece_bytes > form->sum_bytes ? form->piece_bytes : form->sum_bytes;
    return (struct layout){
        .pieces_bytes = weft_slices_are_contribution(form) ? 0 : round_up(form->ranks * form->piece_bytes),
        .gathered_bytes = round_up(form->ranks * (stride > sizeof(uint32_t) ? stride : sizeof(uint32_t))),
        .aggregate_bytes = round_up(weft_codec_aggregate_bytes_max(spec, shape, round, form->ranks)),
        .packed_bytes = weft_slices_need_packing(form) ? round_up(form->sum_bytes) : 0,
        .lengths_bytes = round_up(form->ranks * sizeof(uint64_t)),
    };
}

size_t codec_slices_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks,
                          uint32_t round)
{
    struct weft_slices form;
    if (!weft_slices_of(spec, shape, ranks, round, &form)) return 0;
    const struct layout layout = layout_of(spec, shape, round, &form);
    return layout.pieces_bytes + layout.gathered_bytes + layout.aggregate_bytes + layout.packed_bytes +
           2 * layout.lengths_bytes;
}

enum weft_status codec_slices_open(struct codec_slices *slices, struct weft_group *group,
                                   const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                   uint32_t round, uint8_t *contribution, uint8_t *memory)
{
    *slices = (struct codec_slices){.rank = group->rank, .round = round, .culprit = UINT32_MAX};
    const bool possible = weft_slices_of(spec, shape, group->ranks, round, &slices->form);
    WEFT_ASSERT(possible);
    const struct layout layout = layout_of(spec, shape, round, &slices->form);
    slices->pieces = layout.pieces_bytes > 0 ? memory : contribution;
    slices->gathered = memory + layout.pieces_bytes;
    slices->aggregate = slices->gathered + layout.gathered_bytes;
    slices->packed = slices->aggregate + layout.aggregate_bytes;
    slices->piece_lengths = (uint64_t *)(void *)(slices->packed + layout.packed_bytes);
    slices->lengths = (uint64_t *)(void *)(slices->packed + layout.packed_bytes + layout.lengths_bytes);
    const struct weft_codec_spec of_piece = weft_codec_of_piece(spec);
    const struct weft_shape own = {.dim_count = 1, .dims = {weft_slices_elems(&slices->form, group->rank)}};
    if (own.dims[0] == 0) return WEFT_OK;
    return weft_combiner_create(group->env, &of_piece, &own, group->ranks, &slices->combiner);
}

void codec_slices_close(struct codec_slices *slices)
{
    weft_combiner_free(slices->combiner);
    slices->combiner = NULL;
}

/* ---- the exchanges ---- */
struct weft_coll_args codec_slices_args(const struct codec_slices *slices,
                                        enum codec_slices_exchange exchange)
{
    const size_t strides[] = {slices->form.piece_bytes, sizeof(uint32_t), slices->form.sum_bytes};
    return (struct weft_coll_args){
        .kind = exchange == CODEC_SLICES_PIECES ? WEFT_COLL_EXCHANGE_BYTES : WEFT_COLL_ALL_GATHER_BYTES,
        .in = slices->pieces, /* of an all_gather: set when its bytes are known */
        .out = slices->gathered,
        .piece_bytes_max = strides[exchange],
        .piece_bytes_in = slices->piece_lengths,
        .piece_bytes_out = slices->lengths,
    };
}

void codec_slices_cut(struct codec_slices *slices, const uint8_t *contribution, bool poisoned)
{
    if (poisoned) memset(slices->piece_lengths, 0, slices->form.ranks * sizeof *slices->piece_lengths);
    else weft_slices_split(&slices->form, contribution, slices->pieces, slices->piece_lengths);
}

static void send_next(struct weft_coll *next, const void *data, size_t bytes)
{
    next->args.in = next->data.in = data;
    next->args.count = bytes;
}

/* Adds the pieces of the own slice. */
static enum weft_status add_all(struct codec_slices *slices, const void **reduce_dst, size_t *bytes_out)
{
    weft_combiner_begin(slices->combiner, slices->round);
    for (uint32_t rank = 0; rank < slices->form.ranks; rank++) {
        slices->culprit = rank;
        WEFT_TRY(weft_combiner_add(slices->combiner, slices->gathered + rank * slices->form.piece_bytes,
                                   slices->lengths[rank]));
    }
    slices->culprit = UINT32_MAX;
    WEFT_TRY(weft_combiner_close(slices->combiner, reduce_dst, bytes_out));
    if (!weft_slices_need_packing(&slices->form)) return WEFT_OK;
    *bytes_out = weft_slices_pack(&slices->form, slices->rank, *reduce_dst, slices->packed);
    *reduce_dst = slices->packed;
    return WEFT_OK;
}

enum weft_status codec_slices_combine(struct codec_slices *slices, struct weft_coll *next, uint32_t *rank_out)
{
    static const uint8_t no_elements = 0;
    const void *sum = &no_elements;
    size_t bytes = sizeof no_elements;
    for (uint32_t rank = 0; rank < slices->form.ranks; rank++) {
        if (slices->lengths[rank] > 0) continue;
        *rank_out = rank;
        return WEFT_ERR_INVALID;
    }
    slices->peak_bits = 0;
    if (slices->combiner && add_all(slices, &sum, &bytes) < 0) {
        send_next(next, slices->pieces, 0);
        return WEFT_OK; /* the next exchange carries the failure to all ranks */
    }
    if (!slices->form.has_peak) {
        send_next(next, sum, bytes);
        return WEFT_OK;
    }
    if (slices->combiner) slices->peak_bits = weft_combiner_peak(slices->combiner);
    send_next(next, &slices->peak_bits, sizeof slices->peak_bits);
    return WEFT_OK;
}

/* WEFT_ERR_MALFORMED: *rank_out sent nothing. If this rank sent nothing, *rank_out is the rank whose piece
 * it could not add. */
static enum weft_status all_present(const struct codec_slices *slices, uint32_t *rank_out)
{
    for (uint32_t rank = 0; rank < slices->form.ranks; rank++) {
        if (slices->lengths[rank] > 0) continue;
        *rank_out = slices->culprit != UINT32_MAX ? slices->culprit : rank;
        return WEFT_ERR_MALFORMED;
    }
    return WEFT_OK;
}

enum weft_status codec_slices_repack(struct codec_slices *slices, struct weft_coll *next, uint32_t *rank_out)
{
    static const uint8_t no_elements = 0;
    const void *sum = &no_elements;
    size_t bytes = sizeof no_elements;
    uint32_t peak = 0;
    WEFT_TRY(all_present(slices, rank_out));
    for (uint32_t rank = 0; rank < slices->form.ranks; rank++) {
        uint32_t bits;
        *rank_out = rank;
        if (slices->lengths[rank] != sizeof bits) return WEFT_ERR_MALFORMED;
        memcpy(&bits, slices->gathered + rank * sizeof bits, sizeof bits);
        peak = bits > peak ? bits : peak;
    }
    if (slices->combiner) weft_combiner_repack(slices->combiner, peak, &sum, &bytes);
    send_next(next, sum, bytes);
    return WEFT_OK;
}

enum weft_status codec_slices_take(struct codec_slices *slices, struct weft_codec *codec, uint32_t *rank_out)
{
    const void *aggregate;
    size_t bytes;
    WEFT_TRY(all_present(slices, rank_out));
    WEFT_TRY(weft_slices_join(&slices->form, slices->gathered, slices->lengths, slices->aggregate, &aggregate,
                              &bytes, rank_out));
    *rank_out = UINT32_MAX;
    return weft_codec_take(codec, slices->round, aggregate, bytes, slices->form.ranks);
}
