/* traffic.c - bytes and message times of one compressed all-reduce: the arithmetic of all_reduce.c without
 * the network. */
#include "collective/compressed/slices.h"
#include "collective/compressed/sparse.h"

bool weft_coll_codec_slices(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                            uint32_t ranks, uint32_t round, struct weft_slices *slices_out)
{
    return codec_slices_is_used(resolved, shape, ranks, round, 0) &&
           weft_slices_of(resolved, shape, ranks, round, slices_out);
}

void weft_coll_codec_traffic(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                             uint32_t ranks, const size_t *contribution_bytes,
                             struct weft_coll_traffic *traffic_out)
{
    const double others = (double)ranks - 1;
    struct weft_coll_traffic traffic = {0};
    for (uint32_t round = 0; round < weft_codec_rounds(resolved) && ranks > 1; round++) {
        const double most = (double)weft_codec_contribution_bytes_max(resolved, shape, round);
        const double bytes = contribution_bytes ? (double)contribution_bytes[round] : most;
        struct weft_slices slices;
        if (codec_sparse_is_used(resolved, shape, ranks,
                                0)) { /* a contribution and the union, each without the own part */
            traffic.bytes +=
                others / (double)ranks * (bytes + codec_sparse_union_bytes(resolved, shape, ranks));
            traffic.hops += 2;
        } else if (weft_codec_combine_kind(resolved, round) ==
                   WEFT_COMBINE_SUM_F32) { /* slices to their owners, sums back */
            traffic.bytes += 2 * others / (double)ranks * bytes;
            traffic.hops += 2;
        } else if (weft_coll_codec_slices(resolved, shape, ranks, round, &slices)) {
            traffic.bytes += bytes / most * codec_slices_traffic(&slices);
            traffic.hops += slices.has_peak ? 3 : 2;
        } else {
            traffic.bytes += others * bytes;
            traffic.hops += 1;
        }
    }
    *traffic_out = traffic;
}
