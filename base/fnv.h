/* fnv.h - FNV-1a hash of words or bytes (draft-eastlake-fnv). Two sides use it to detect different data. Not
 * collision resistant against an attacker. */
#ifndef WEFT_BASE_FNV_H
#define WEFT_BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_FNV_BASIS 0xcbf29ce484222325ull /* initial value */

static inline uint64_t weft_fnv(uint64_t number, uint64_t word) { return (number ^ word) * 0x100000001b3ull; }

static inline uint64_t weft_fnv_bytes(uint64_t number, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) number = weft_fnv(number, ((const uint8_t *)data)[i]);
    return number;
}

#endif
