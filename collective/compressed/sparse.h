/* sparse.h - a sparse all-reduce split by regions, in place of one all_gather of all_reduce.c.
 *
 * Private to collective/. Order of calls: open, prepare 0, prepare 1, cut, (exchange), sum, (all_gather),
 * take, close. */
#ifndef WEFT_COLLECTIVE_COMPRESSED_SPARSE_H
#define WEFT_COLLECTIVE_COMPRESSED_SPARSE_H

#include "collective/collective.h"

struct codec_sparse {
    struct weft_regions *regions;      /* owned; NULL: not open */
    uint32_t ranks;
    size_t piece_stride, sum_stride;
    uint8_t *pieces, *received;            /* borrowed from the operation's memory */
    uint64_t *piece_lengths, *lengths; /* (ranks,) borrowed */
};

/* Pure, equal on all ranks. from_ranks: option of the group. */
bool codec_sparse_is_used(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks,
                          uint32_t from_ranks);
/* Bytes of the sum of contributions with independent elements. */
double codec_sparse_union_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                uint32_t ranks);

size_t codec_sparse_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks);
/* memory: codec_sparse_bytes, 64-byte aligned. Returns WEFT_ERR_NO_MEMORY. */
enum weft_status codec_sparse_open(struct codec_sparse *sparse, struct weft_group *group,
                                   const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                   uint8_t *memory);
void codec_sparse_close(struct codec_sparse *sparse); /* also if it is not open */

/* Arguments of an exchange (0 or 1), without subject and urgency. */
struct weft_coll_args codec_sparse_args(const struct codec_sparse *sparse, uint32_t exchange);
/* Cuts the own contribution into pieces. poisoned: empty pieces. */
enum weft_status codec_sparse_cut(struct codec_sparse *sparse, const void *contribution, size_t bytes,
                                  bool poisoned);
/* After exchange 0: `next` (exchange 1) sends the sum of the own region. WEFT_ERR_INVALID: the gradient of
 * rank *empty_out is not finite. */
enum weft_status codec_sparse_sum(struct codec_sparse *sparse, struct weft_coll *next, uint32_t *empty_out);
/* After exchange 1. WEFT_ERR_MALFORMED: *at_rank_out, if set, could not sum its region. */
enum weft_status codec_sparse_take(struct codec_sparse *sparse, struct weft_codec *codec,
                                   uint32_t *at_rank_out);

#endif
