/* fnv.h - FNV-1a (Fowler, Noll and Vo; draft-eastlake-fnv): words or bytes in, one number out by which two
 * sides see that theirs are not the same. Not against somebody who wants two to have the same number. */
#ifndef WEFT_BASE_FNV_H
#define WEFT_BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_FNV_BASIS 0xcbf29ce484222325ull /* to begin with */

static inline uint64_t weft_fnv(uint64_t number, uint64_t word) { return (number ^ word) * 0x100000001b3ull; }

static inline uint64_t weft_fnv_bytes(uint64_t number, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) number = weft_fnv(number, ((const uint8_t *)data)[i]);
    return number;
}

#endif
