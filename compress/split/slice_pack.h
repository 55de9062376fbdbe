/* slice_pack.h - the sum of a slice as it travels: without the bits that no sum has. Lossless. Private to
 * the module.
 *
 *   integers   int8, int4 of 16-bit sums: 8 + high_bits bits hold ranks * limit. A block is its low bytes,
 *              then high_bits planes of 32 bytes
 *   windows    bf16: a block has a base exponent. If all exponents are 0 or in base+1 .. base+127, an element
 *              has 15 bits, of which 7 are in planes; else the block is 16-bit elements
 *
 * Blocks are 256 elements, the last one the rest. Bit g of byte t of a plane belongs to element 32 g + t. */
#ifndef WEFT_COMPRESS_SPLIT_SLICE_PACK_H
#define WEFT_COMPRESS_SPLIT_SLICE_PACK_H

#include "compress/split/slice.h"

/* Bytes of `elems` packed sums: at most, and where all blocks of windows have 15 bits. */
size_t slice_packed_bytes_max(const struct weft_slice_packing *packing, uint64_t elems);
size_t slice_packed_bytes(const struct weft_slice_packing *packing, uint64_t elems);
/* `in` (elems,) 16-bit sums into out of slice_packed_bytes_max. Returns the bytes written. */
size_t slice_pack(const struct weft_slice_packing *packing, uint8_t *out, const uint8_t *in, uint64_t elems);
/* UNTRUSTED data into out (elems,) 16-bit sums. WEFT_ERR_MALFORMED: a wrong length or base. Integers may
 * be beyond ranks * limit: take checks them. */
enum weft_status slice_unpack(const struct weft_slice_packing *packing, uint8_t *out, const uint8_t *data,
                              size_t bytes, uint64_t elems);

#endif
