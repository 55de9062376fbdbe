/* device_segment.h - the encode of one small tensor as an entry of a table, so that one launch encodes many
 * (encode_segments of device_table.h). Plain data for C, C++ and CUDA.
 *
 *     kind    reads                writes                                    kernels of kernels.h
 *     MAX     a                    max_bits                                  max_abs_bits
 *     F16     a                    codes (2 bytes each)                      scale, scale, cast
 *     BF16    a                    codes (2 bytes each), max_bits of a       max_abs_bits, scale, cast
 *     BLOCKS  a, b                 x, scales (a byte each), max_bits of x    scale_add_blocks
 *     INT8    x, exponents         x, codes (a byte each)                    quantise
 *     INT4    x, exponents         x, codes (two in a byte)                  quantise, pack_i4
 *     SIGN    a, b                 x, scales (f32 each), codes, max_bits     scale_add_quantise_sign
 *     E4M3    a, b                 x, scales, codes, max_bits                scale_add_quantise_fp8
 *     E5M2    as E4M3
 *
 * Scales are one for each block of WEFT_BLOCK elements. F16 and BF16 multiply by factor, then by factor2;
 * the others compute x = a * factor + b. */
#ifndef WEFT_KERNELS_DEVICE_SEGMENT_H
#define WEFT_KERNELS_DEVICE_SEGMENT_H

#include "kernels/parameters.h"

enum weft_segment_kind {
    WEFT_SEGMENT_NONE = 0, /* an entry without work */
    WEFT_SEGMENT_MAX,
    WEFT_SEGMENT_F16,
    WEFT_SEGMENT_BF16,
    WEFT_SEGMENT_BLOCKS,
    WEFT_SEGMENT_INT8,
    WEFT_SEGMENT_INT4,
    WEFT_SEGMENT_SIGN,
    WEFT_SEGMENT_E4M3,
    WEFT_SEGMENT_E5M2,
};

/* Pointers are device memory. max_bits is 0 before the launch. */
struct weft_segment {
    const float *a, *b; /* gradient and residual (count,) */
    float *x;           /* (count,): the sum, then the residual of the step */
    const uint8_t *exponents;
    void *codes, *scales;
    uint32_t *max_bits;
    uint32_t count, kind; /* elements, 1 to WEFT_SEGMENT_ELEMS_MAX; weft_segment_kind */
    float factor, factor2;
    uint32_t limit; /* of BLOCKS: the largest code */
    struct weft_noise noise;
};

/* Entries of one launch: the table is an argument of the kernel, which has at most 4096 bytes. */
#define WEFT_SEGMENTS_MAX 32u
#define WEFT_SEGMENT_ELEMS_MAX 65536u

#endif
