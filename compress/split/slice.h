/* slice.h - a contribution in slices: each rank combines one slice of the elements for all ranks.
 *
 *     encode ─► cut ─► exchange (slice r to rank r) ─► combiner of the own slice ─► pack
 *            ─► all_gather of the packed sums ─► join ─► take
 *
 * A rank sends (ranks - 1) / ranks of its contribution and of the aggregate. An all_gather of
 * contributions sends ranks - 1 contributions. Slices begin at multiples of the codec's block, so the bits
 * are those of one combiner. f16 has one exponent for the whole aggregate: the ranks exchange the peaks of
 * their sums before they pack them. A slice without elements travels as one zero byte, so that a length of
 * 0 can mark a missing contribution. */
#ifndef WEFT_COMPRESS_SPLIT_SLICE_H
#define WEFT_COMPRESS_SPLIT_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

struct weft_codec_spec;
struct weft_shape;

/* Bytes of `elems` elements: head, then scales by block of 256, then elements. */
struct weft_slice_layout {
    uint32_t head_bytes, block_bytes, elem_bits;
};

/* How the sum of a slice travels (compress/split/slice_pack.h). */
struct weft_slice_packing {
    enum { WEFT_SLICE_PLAIN, WEFT_SLICE_INTEGERS, WEFT_SLICE_WINDOWS } kind;
    uint32_t high_bits; /* of integers: beyond 8 */
};

/* How one round of a codec is sliced. Pure: the same on all ranks. */
struct weft_slices {
    struct weft_slice_layout contribution, aggregate;
    struct weft_slice_packing packing;
    uint64_t elems, slice_elems;   /* of the tensor; of each slice but the last ones */
    size_t piece_bytes, sum_bytes; /* of a full slice: contribution, and packed sum at most */
    size_t sum_bytes_expected;     /* of gradients: windows fit */
    uint32_t ranks;
    bool has_peak; /* f16: weft_combiner_repack needs the peak of the whole sum */
};

/* false: this round cannot be sliced (dense, powersgd, topk, randomk, or one rank). */
bool weft_slices_of(const struct weft_codec_spec *resolved, const struct weft_shape *shape, uint32_t ranks,
                    uint32_t round, struct weft_slices *slices_out);
uint64_t weft_slices_elems(const struct weft_slices *slices,
                           uint32_t rank); /* of this rank's slice; may be 0 */
/* Whether a contribution already is its pieces, one behind the other at a stride of piece_bytes. */
bool weft_slices_are_contribution(const struct weft_slices *slices);
/* Piece r, at least 1 byte, to pieces_out + r * piece_bytes, its length to lengths_out[r]. If the
 * contribution is its pieces, only lengths are written and pieces_out may be NULL. */
void weft_slices_split(const struct weft_slices *slices, const void *contribution, uint8_t *pieces_out,
                     uint64_t *lengths_out);
/* Whether weft_slices_pack has to be called; else a combiner's aggregate is the sum that travels. */
bool weft_slices_need_packing(const struct weft_slices *slices);
/* The aggregate of the combiner of `rank`'s slice into out of sum_bytes. Returns the bytes written. */
size_t weft_slices_pack(const struct weft_slices *slices, uint32_t rank, const void *aggregate, uint8_t *out);
/* The aggregate of all, from UNTRUSTED sums at a stride of sum_bytes. scratch has the size of the whole
 * aggregate; *aggregate_out lies in scratch or in sums. WEFT_ERR_MALFORMED: *rank_out sent a sum that
 * cannot be read or has another head. */
enum weft_status weft_slices_join(const struct weft_slices *slices, const uint8_t *sums,
                                  const uint64_t *lengths, void *scratch, const void **aggregate_out,
                                  size_t *bytes_out, uint32_t *rank_out);

#endif
