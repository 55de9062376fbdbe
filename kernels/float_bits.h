/* float_bits.h - floats as bit patterns, and the one NaN that arithmetic may leave behind.
 * Private to the module. */
#ifndef WEFT_KERNELS_FLOAT_BITS_H
#define WEFT_KERNELS_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

/* What C and CUDA compile from one text. */
#ifdef __CUDACC__
#define KERNEL_INLINE static inline __host__ __device__
#else
#define KERNEL_INLINE static inline
#endif

#define FLOAT_SIGN 0x80000000u
#define FLOAT_ABS 0x7fffffffu
#define FLOAT_INF 0x7f800000u
#define FLOAT_QUIET 0x00400000u
#define FLOAT_NAN 0x7fc00000u

KERNEL_INLINE uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

KERNEL_INLINE float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* x86 keeps the payload of the *first* NaN operand and a compiler may swap operands of + and *, so two
 * builds of one expression can differ in a NaN's payload. Storing one NaN for all ends that. */
KERNEL_INLINE float canonical(float value)
{
    return value == value ? value : float_from_bits(FLOAT_NAN);
}

#endif
