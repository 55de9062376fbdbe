/* slices.h - one round of a codec in slices (compress/split/slice.h), in place of an all_gather of
 * contributions.
 *
 * Private to collective/. Order of calls: open, prepare each exchange, cut, (pieces), combine; for a codec
 * with a peak (peaks), repack; (sums), take, close. */
#ifndef WEFT_COLLECTIVE_COMPRESSED_SLICES_H
#define WEFT_COLLECTIVE_COMPRESSED_SLICES_H

#include "collective/collective.h"

enum codec_slices_exchange {
    CODEC_SLICES_PIECES, /* exchange_bytes of the contribution's pieces */
    CODEC_SLICES_PEAKS,  /* all_gather_bytes of the largest magnitude of each sum; f16 only */
    CODEC_SLICES_SUMS,   /* all_gather_bytes of the sums */
};

struct codec_slices {
    struct weft_slices form;
    struct weft_combiner *combiner; /* owned; of the own slice. NULL: no elements, or not open */
    uint32_t rank, round;
    uint32_t peak_bits;         /* of the own sum */
    uint32_t culprit;           /* rank whose piece could not be added; UINT32_MAX: none */
    /* borrowed: pieces of the contribution; received bytes, at most ranks * stride */
    uint8_t *pieces, *gathered;
    uint8_t *aggregate,
        *packed;             /* borrowed: the whole aggregate; the own sum as it is sent */
    uint64_t *piece_lengths; /* borrowed, (ranks,): of the own pieces */
    uint64_t *lengths;       /* borrowed, (ranks,): of the received bytes */
};

/* Returns whether slices send fewer bytes than a gather of contributions. Pure, equal on all ranks.
 * from_ranks: option of the group. */
bool codec_slices_is_used(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks,
                         uint32_t round, uint32_t from_ranks);
/* Bytes out of one rank, without headers. */
double codec_slices_traffic(const struct weft_slices *form);

size_t codec_slices_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t ranks,
                          uint32_t round);
/* memory: codec_slices_bytes, 64-byte aligned. contribution: output of encode, ranks * piece_bytes.
 * Returns WEFT_ERR_NO_MEMORY. */
enum weft_status codec_slices_open(struct codec_slices *slices, struct weft_group *group,
                                   const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                   uint32_t round, uint8_t *contribution, uint8_t *memory);
void codec_slices_close(struct codec_slices *slices); /* also if it is not open */

/* The arguments of one exchange. */
struct weft_coll_args codec_slices_args(const struct codec_slices *slices,
                                        enum codec_slices_exchange exchange);
/* Cuts the own contribution into pieces. poisoned: empty pieces. */
void codec_slices_cut(struct codec_slices *slices, const uint8_t *contribution, bool poisoned);
/* After the pieces: `next` sends the own sum, or its peak. WEFT_ERR_INVALID: the gradient of *rank_out is
 * not finite. */
enum weft_status codec_slices_combine(struct codec_slices *slices, struct weft_coll *next,
                                      uint32_t *rank_out);
/* After the peaks: `next` sends the own sum. WEFT_ERR_MALFORMED: *rank_out has no peak. */
enum weft_status codec_slices_repack(struct codec_slices *slices, struct weft_coll *next, uint32_t *rank_out);
/* After the sums. WEFT_ERR_MALFORMED: *rank_out, if set, has no usable sum. */
enum weft_status codec_slices_take(struct codec_slices *slices, struct weft_codec *codec, uint32_t *rank_out);

#endif
