/* sparse.c - a sparse all-reduce split by regions: two exchanges in place of one all_gather.
 *
 *     encode ─► cut ─► exchange_bytes (piece r to rank r) ─► add the pieces of ranks 0.. for the own region
 *            ─► all_gather_bytes of the regions' sums ─► join ─► take
 *
 * With an all_gather a rank receives (ranks - 1) k pairs, which for many ranks exceeds the vector. Split by
 * regions it moves its contribution once and the union once. The union is at most the vector: a region whose
 * sum is no longer sparse travels as a dense vector, and its header marks that (compress/split/region.c).
 * codec_sparse_is_used chooses between the two, a pure function of values that all ranks share. It assumes
 * independent supports, the worst case for regions: if ranks select the same elements, the union is smaller.
 * A rank whose gradient is not finite sends empty pieces; all ranks detect it after the first exchange. If
 * the owner of a region cannot read a piece, it sends an empty sum, so all ranks detect it after the second
 * exchange. */
#include "collective/compressed/sparse.h"

#include "collective/core/group.h"
#include "collective/core/op.h"

#include <string.h>

/* cost of a second message time in bytes */
#define HOP_BYTES (64u << 10)

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* 1 - (1 - density)^ranks by squaring only: equal bits on every machine. */
static double union_density(double density, uint32_t ranks)
{
    double none = 1.0;
    for (double power = 1.0 - density; ranks > 0; ranks /= 2, power *= power)
        if (ranks % 2) none *= power;
    return 1.0 - none;
}

double codec_sparse_union_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                uint32_t ranks)
{
    const double elems = (double)weft_shape_elems(shape);
    const uint64_t pairs = (uint64_t)(elems * union_density(spec->ratio, ranks));
    const double sparse = (double)weft_index_bytes_max((uint64_t)elems, pairs) + 4.0 * (double)pairs,
                 dense = 4.0 * elems;
    return sparse < dense ? sparse : dense;
}

bool codec_sparse_is_used(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks,
                          uint32_t from_ranks)
{
    if (!weft_regions_possible(spec, shape, ranks)) return false;
    if (from_ranks > 0) return ranks >= from_ranks;
    const double one = (double)weft_codec_contribution_bytes_max(spec, shape, 0), others = (double)ranks - 1;
    return others / (double)ranks * (one + codec_sparse_union_bytes(spec, shape, ranks)) + HOP_BYTES <
           others * one;
}

/* ---- memory: own pieces | their lengths | received pieces | their lengths ---- */
struct layout {
    size_t piece_stride, sum_stride, received_bytes, lengths_bytes, total_bytes;
};

static struct layout layout_of(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                               uint32_t ranks)
{
    struct layout layout = {
        .piece_stride = round_up(weft_regions_piece_bytes_max(spec, shape, ranks)),
        .sum_stride = round_up(weft_regions_sum_bytes_max(spec, shape, ranks)),
        .lengths_bytes = round_up(ranks * sizeof(uint64_t)),
    };
    layout.received_bytes =
        ranks * (layout.piece_stride > layout.sum_stride ? layout.piece_stride : layout.sum_stride);
    layout.total_bytes = ranks * layout.piece_stride + layout.received_bytes + 2 * layout.lengths_bytes;
    return layout;
}

size_t codec_sparse_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks)
{
    return layout_of(spec, shape, ranks).total_bytes;
}

enum weft_status codec_sparse_open(struct codec_sparse *sparse, struct weft_group *group,
                                   const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                   uint8_t *memory)
{
    const struct layout layout = layout_of(spec, shape, group->ranks);
    *sparse = (struct codec_sparse){
        .ranks = group->ranks, .piece_stride = layout.piece_stride, .sum_stride = layout.sum_stride};
    sparse->pieces = memory;
    sparse->received = memory + group->ranks * layout.piece_stride;
    sparse->piece_lengths = (uint64_t *)(void *)(sparse->received + layout.received_bytes);
    sparse->lengths = (uint64_t *)(void *)(sparse->received + layout.received_bytes + layout.lengths_bytes);
    return weft_regions_create(group->env, spec, shape, group->ranks, group->rank, &sparse->regions);
}

void codec_sparse_close(struct codec_sparse *sparse)
{
    weft_regions_free(sparse->regions);
    sparse->regions = NULL;
}

/* ---- the two exchanges ---- */
struct weft_coll_args codec_sparse_args(const struct codec_sparse *sparse, uint32_t exchange)
{
    return (struct weft_coll_args){
        .kind = exchange == 0 ? WEFT_COLL_EXCHANGE_BYTES : WEFT_COLL_ALL_GATHER_BYTES,
        .in = sparse->pieces,
        .out = sparse->received,
        .piece_bytes_max = exchange == 0 ? sparse->piece_stride : sparse->sum_stride,
        .piece_bytes_in = sparse->piece_lengths,
        .piece_bytes_out = sparse->lengths,
    };
}

enum weft_status codec_sparse_cut(struct codec_sparse *sparse, const void *contribution, size_t bytes,
                                  bool poisoned)
{
    if (!poisoned)
        return weft_regions_split(sparse->regions, contribution, bytes, sparse->pieces, sparse->piece_stride,
                                  sparse->piece_lengths);
    memset(sparse->piece_lengths, 0, sparse->ranks * sizeof *sparse->piece_lengths);
    return WEFT_OK;
}

enum weft_status codec_sparse_sum(struct codec_sparse *sparse, struct weft_coll *next, uint32_t *empty_out)
{
    struct weft_combiner *combiner = weft_regions_combiner(sparse->regions);
    const void *sum = NULL;
    size_t bytes = 0;
    for (uint32_t rank = 0; rank < sparse->ranks; rank++) {
        if (sparse->lengths[rank] > 0) continue;
        *empty_out = rank;
        return WEFT_ERR_INVALID;
    }
    enum weft_status status = WEFT_OK;
    weft_combiner_begin(combiner, 0);
    for (uint32_t rank = 0; rank < sparse->ranks && status == WEFT_OK; rank++)
        status = weft_combiner_add(combiner, sparse->received + rank * sparse->piece_stride,
                                   sparse->lengths[rank]);
    if (status == WEFT_OK) WEFT_TRY(weft_combiner_close(combiner, &sum, &bytes));
    next->args.in = next->data.in = sum;
    next->args.count = bytes; /* 0: unreadable */
    return WEFT_OK;
}

enum weft_status codec_sparse_take(struct codec_sparse *sparse, struct weft_codec *codec,
                                   uint32_t *at_rank_out)
{
    const void *aggregate;
    size_t bytes;
    for (uint32_t rank = 0; rank < sparse->ranks; rank++) {
        if (sparse->lengths[rank] > 0) continue;
        *at_rank_out = rank; /* the owner of a region that received an unreadable piece */
        return WEFT_ERR_MALFORMED;
    }
    WEFT_TRY(weft_regions_join(sparse->regions, sparse->received, sparse->sum_stride, sparse->lengths,
                               &aggregate, &bytes));
    return weft_codec_take(codec, 0, aggregate, bytes, sparse->ranks);
}
