/* blocks.h - blocks of WEFT_BLOCK elements under one exponent byte E, scale 2^(E - 127). Private to the kernels room. */
#ifndef WEFT_KERNELS_BLOCKS_H
#define WEFT_KERNELS_BLOCKS_H

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

/* The last block of a tensor may be shorter. */
static inline size_t block_length(size_t at, size_t count)
{
    return count - at < WEFT_BLOCK ? count - at : WEFT_BLOCK;
}

static inline float block_scale(uint8_t exponent)
{
    return float_from_bits(exponent == 0 ? 0x00400000u : (uint32_t)exponent << 23);
}

/* 2^(127 - E); E is at most 254. */
static inline float block_inverse(uint8_t exponent)
{
    return float_from_bits(exponent == 254 ? 0x00400000u : (uint32_t)(254 - exponent) << 23);
}

#endif
