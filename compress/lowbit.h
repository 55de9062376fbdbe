/* lowbit.h - the bytes of sign, e4m3 and e5m2: every worker has its own scales, so contributions are widened
 * before they are added. Private to the module. Blocks are 256 elements; the scales of all blocks, then all
 * codes:
 *
 *   sign         one f32 per block, the mean magnitude; one bit per element, lowest first, 1 is negative;
 *                padding 0
 *   e4m3, e5m2   one exponent byte E per block (0..247, scale 2^(E-127)); one code per element */
#ifndef WEFT_COMPRESS_LOWBIT_H
#define WEFT_COMPRESS_LOWBIT_H

#include "compress/compress.h"

bool is_lowbit(enum weft_codec_id id);
size_t lowbit_bytes(enum weft_codec_id id, size_t elems);
size_t lowbit_scales_bytes(enum weft_codec_id id, size_t elems); /* they are first */
/* p = grad * factor + residual into x, packed into out; x becomes the residual. False when an
 * element of p is not finite or is 2^120 or more: x and out are then undefined. */
bool lowbit_pack(enum weft_codec_id id, void *out, float *x, const float *grad, float factor,
                 const float *residual, size_t elems);
/* UNTRUSTED bytes: length, scales, no NaN and no Inf code, padding. */
bool lowbit_well_formed(enum weft_codec_id id, const void *data, size_t bytes, size_t elems);
void lowbit_unpack(enum weft_codec_id id, float *out, const void *data, size_t elems);

#endif
