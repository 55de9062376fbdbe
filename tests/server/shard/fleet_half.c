/* fleet_half.c - tensors of f16 and bf16 in a fleet: rounding to nearest even by arithmetic, no kernels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shard_fleet.h"

static enum weft_dtype either(enum weft_dtype dtype, enum weft_dtype other)
{
    return dtype ? dtype : other;
}

enum weft_dtype fleet_dtype(const struct fleet *fleet, uint32_t tensor)
{
    return either(fleet->options.tensors[tensor].dtype, WEFT_F32);
}

enum weft_dtype fleet_pull_dtype(const struct fleet *fleet, uint32_t tensor)
{
    return either(fleet->options.tensors[tensor].pull_dtype, fleet_dtype(fleet, tensor));
}

float fleet_half_round(enum weft_dtype dtype, float value)
{
    const int bits = dtype == WEFT_F16 ? 11 : 8, least = dtype == WEFT_F16 ? -14 : -126;
    if (dtype == WEFT_F32 || value == 0) return value;
    const int exponent = ilogbf(value) > least ? ilogbf(value) : least, unit = exponent - bits + 1;
    return ldexpf(rintf(ldexpf(value, -unit)), unit); /* exact, but for the rint to nearest even */
}

static uint16_t half_bits(enum weft_dtype dtype, float rounded)
{
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    if (dtype == WEFT_BF16) return (uint16_t)(bits >> 16);
    const uint16_t sign = bits >> 31 ? 0x8000 : 0;
    const float size = fabsf(rounded);
    if (size < ldexpf(1, -14)) return (uint16_t)(sign | (uint16_t)ldexpf(size, 24));
    const int exponent = ilogbf(size);
    return (uint16_t)(sign | ((uint32_t)(exponent + 15) << 10) |
                      ((uint32_t)ldexpf(size, 10 - exponent) & 1023));
}

void *fleet_pack(enum weft_dtype dtype, const float *values, uint64_t count, size_t *bytes_out)
{
    *bytes_out = count * weft_dtype_bytes(dtype);
    uint16_t *out = malloc(*bytes_out);
    if (dtype == WEFT_F32) memcpy(out, values, *bytes_out);
    for (uint64_t i = 0; dtype != WEFT_F32 && i < count; i++)
        out[i] = half_bits(dtype, fleet_half_round(dtype, values[i]));
    return out;
}

bool fleet_result_is(const struct fleet *fleet, const struct fleet_chunk *chunk, const float *expected,
                     const void *result, size_t bytes)
{
    size_t expected_bytes;
    void *const packed =
        fleet_pack(fleet_pull_dtype(fleet, chunk->tensor), expected, chunk->count, &expected_bytes);
    const bool is_equal = bytes == expected_bytes && memcmp(packed, result, bytes) == 0;
    free(packed);
    return is_equal;
}
