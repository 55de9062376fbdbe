/* quantise.h - the bytes of int8 and int4, shared by worker and combiner. Private to the module.
 *
 *   round 0   one exponent byte per block of 256 elements, 0..247 (contributions and the aggregate, their
 *             maximum)
 *   round 1   contribution   int8: one code per element, -127..127
 *                            int4: two codes per byte, the even element in the low half, -7..7; an odd last
 *                            half is 0
 *             aggregate      one sum per element: i8, i16 or i32, the narrowest that holds ranks * limit */
#ifndef WEFT_COMPRESS_QUANTISE_H
#define WEFT_COMPRESS_QUANTISE_H

#include "compress/compress.h"

/* Magnitudes stay below 2^120, so no exponent byte is above 127 + 120 - 1 - 1 (int4 of 7 * 2^117..). */
enum { QUANTISE_EXPONENT_MAX = 247 };

unsigned quantise_limit(enum weft_codec_id id);  /* 127 or 7 */
size_t quantise_blocks(size_t elems);
size_t quantise_contribution_bytes(enum weft_codec_id id, size_t elems, uint32_t round);
size_t quantise_aggregate_bytes(enum weft_codec_id id, size_t elems, uint32_t round, uint32_t ranks);

void quantise_pack(enum weft_codec_id id, uint8_t *out, const int8_t *codes, size_t elems);
/* Codes of an UNTRUSTED contribution of round 1: WEFT_ERR_MALFORMED for a wrong size or a code beyond the
 * limit; then codes_out is undefined. */
enum weft_status quantise_unpack(enum weft_codec_id id, int8_t *codes_out, const void *data, size_t bytes,
                                 size_t elems);
/* Sums as the aggregate of round 1, and back (UNTRUSTED: sizes and |sum| <= ranks * limit are checked
 * first). */
/* UNTRUSTED, round 0: the size, and none below `own` (blocks,), which would clip what we send: no honest
 * maximum is. */
enum weft_status quantise_check_exponents(const void *data, size_t bytes, size_t elems, const uint8_t *own);
/* UNTRUSTED, round 1: as quantise_read_sums, without the sums. */
enum weft_status quantise_check_sums(enum weft_codec_id id, const void *data, size_t bytes, size_t elems,
                                     uint32_t ranks);
void quantise_write_sums(enum weft_codec_id id, void *out, const int32_t *sums, size_t elems, uint32_t ranks);
enum weft_status quantise_read_sums(enum weft_codec_id id, const void *data, size_t bytes, size_t elems,
                                    uint32_t ranks, int32_t *sums_out);

#endif
