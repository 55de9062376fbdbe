/* codec_sparse.h - a sparse all-reduce shared out by regions: what all_reduce.c does in place of one
 * all_gather. Private to the room. Calls in this order: open, prepare 0, prepare 1, cut, (exchange), sum,
 * (all_gather), take, close. */
#ifndef WEFT_COLLECTIVE_COMPRESSED_SPARSE_H
#define WEFT_COLLECTIVE_COMPRESSED_SPARSE_H

#include "collective/collective.h"

struct codec_sparse {
    struct weft_regions *regions;      /* owned; NULL: not open */
    uint32_t ranks, subject;           /* subject: carried by its exchanges; set by the caller after open */
    size_t piece_stride, sum_stride;
    uint8_t *pieces, *received;            /* borrowed from the operation's memory */
    uint64_t *piece_lengths, *lengths; /* (ranks,) likewise */
};

/* Pure: the same on all ranks. from_ranks: the group's option. */
bool codec_sparse_is_used(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks,
                          uint32_t from_ranks);
/* Bytes of the sum of contributions whose elements are independent. */
double codec_sparse_union_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                uint32_t ranks);

size_t codec_sparse_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks);
/* `memory` of codec_sparse_bytes, 64-byte aligned. WEFT_ERR_NO_MEMORY. */
enum weft_status codec_sparse_open(struct codec_sparse *sparse, struct weft_group *group,
                                   const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                   uint8_t *memory);
void codec_sparse_close(struct codec_sparse *sparse); /* also of one that is not open */

/* Exchange 0 or 1. */
enum weft_status codec_sparse_prepare(struct codec_sparse *sparse, struct weft_group *group,
                                      uint32_t exchange, uint64_t deadline_ns, weft_coll_done_fn done,
                                      void *context, struct weft_coll **coll_out, struct weft_error *error);
/* The own contribution into pieces; poisoned: empty ones. */
enum weft_status codec_sparse_cut(struct codec_sparse *sparse, const void *contribution, size_t bytes,
                                  bool poisoned);
/* After exchange 0: the own region's sum becomes what `next` (exchange 1) sends. WEFT_ERR_INVALID: the
 * gradient of rank *empty_out is not finite. */
enum weft_status codec_sparse_sum(struct codec_sparse *sparse, struct weft_coll *next, uint32_t *empty_out);
/* After exchange 1. WEFT_ERR_MALFORMED: *at_rank_out, when written, could not sum its region. */
enum weft_status codec_sparse_take(struct codec_sparse *sparse, struct weft_codec *codec,
                                   uint32_t *at_rank_out);

#endif
