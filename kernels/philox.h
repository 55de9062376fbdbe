/* philox.h - Philox 4x32-10: random bits as a pure function of a key and a counter.
 *
 * Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). No state: the same
 * element of the same tensor in the same step draws the same bits on every machine, on a CPU or a GPU, and
 * again in a retry. */
#ifndef WEFT_KERNELS_PHILOX_H
#define WEFT_KERNELS_PHILOX_H

#include <stdint.h>

#include "kernels/float_bits.h"

#define PHILOX_M0 0xd2511f53u
#define PHILOX_M1 0xcd9e8d57u
#define PHILOX_W0 0x9e3779b9u
#define PHILOX_W1 0xbb67ae85u
enum { PHILOX_ROUNDS = 10 };

KERNEL_INLINE void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t a = (uint64_t)PHILOX_M0 * c0, b = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
