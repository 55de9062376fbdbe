/* bench_pattern.c - see bench_pattern.h. */
#include "tools/bench_pattern.h"

#include <math.h>
#include <string.h>

enum { PERIOD = 4093 };

uint32_t bench_pattern_ranks_max(enum weft_dtype dtype)
{
    if (dtype == WEFT_I8) return 64;
    if (dtype == WEFT_BF16 || dtype == WEFT_U8) return 128;
    return dtype == WEFT_F16 ? 1024 : 1u << 20;
}

/* Values are 0..spread-1; the sum over all ranks stays within the type's exact whole numbers. */
static uint32_t spread(enum weft_dtype dtype, uint32_t ranks)
{
    uint32_t values = 2 * bench_pattern_ranks_max(dtype) / ranks;
    return values > 16 ? 16 : values < 2 ? 2 : values;
}

static uint32_t value_at(uint32_t phase, uint32_t rank, uint32_t salt, uint32_t values)
{
    uint32_t mixed = (phase * 2654435761u) ^ (rank * 2246822519u) ^ (salt * 3266489917u);
    mixed ^= mixed >> 15;
    mixed *= 2246822519u;
    return (mixed >> 13) % values;
}

static float half_to_float(uint16_t bits)
{
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent     ? ldexpf((float)(1024 + fraction), (int)exponent - 25)
                                     : ldexpf((float)fraction, -24);
    return bits >> 15 ? -magnitude : magnitude;
}

static uint16_t small_to_half(uint32_t value) /* 0..2047: exact */
{
    if (value == 0) return 0;
    uint32_t exponent = 31 - (uint32_t)__builtin_clz(value);
    return (uint16_t)((exponent + 15) << 10 | ((value << (10 - exponent)) & 1023));
}

static void store(void *out, uint64_t index, enum weft_dtype dtype, uint32_t value)
{
    float as_float = (float)value;
    uint32_t bits;
    memcpy(&bits, &as_float, sizeof(bits));
    switch (dtype) {
    case WEFT_F32: ((float *)out)[index] = as_float; break;
    case WEFT_F16: ((uint16_t *)out)[index] = small_to_half(value); break;
    case WEFT_BF16: ((uint16_t *)out)[index] = (uint16_t)(bits >> 16); break;
    case WEFT_I64: ((int64_t *)out)[index] = value; break;
    case WEFT_F64: ((double *)out)[index] = value; break;
    case WEFT_I32:
    case WEFT_U32: ((uint32_t *)out)[index] = value; break;
    case WEFT_U64: ((uint64_t *)out)[index] = value; break;
    default: ((uint8_t *)out)[index] = (uint8_t)value; break; /* sums of small values stay small */
    }
}

static double load(const void *data, uint64_t index, enum weft_dtype dtype)
{
    uint32_t bits = (uint32_t)(dtype == WEFT_BF16 ? ((const uint16_t *)data)[index] : 0) << 16;
    float widened;
    memcpy(&widened, &bits, sizeof(widened));
    switch (dtype) {
    case WEFT_F32: return ((const float *)data)[index];
    case WEFT_F16: return half_to_float(((const uint16_t *)data)[index]);
    case WEFT_BF16: return widened;
    case WEFT_I64: return (double)((const int64_t *)data)[index];
    case WEFT_F64: return ((const double *)data)[index];
    case WEFT_I32: return ((const int32_t *)data)[index];
    case WEFT_U32: return ((const uint32_t *)data)[index];
    case WEFT_U64: return (double)((const uint64_t *)data)[index];
    case WEFT_I8: return ((const int8_t *)data)[index];
    case WEFT_U8: return ((const uint8_t *)data)[index];
    default: return NAN;
    }
}

void bench_pattern_fill(void *out, uint64_t count, enum weft_dtype dtype, uint32_t rank, uint32_t ranks,
                        uint32_t salt)
{
    uint32_t values = spread(dtype, ranks);
    for (uint64_t i = 0; i < count; i++)
        store(out, i, dtype, value_at((uint32_t)(i % PERIOD), rank, salt, values));
}

uint64_t bench_pattern_check(const void *data, uint64_t count, enum weft_dtype dtype, enum weft_op op,
                             uint32_t ranks, uint32_t salt)
{
    double expected[PERIOD], slack[PERIOD];
    uint32_t values = spread(dtype, ranks), phases = count < PERIOD ? (uint32_t)count : PERIOD;
    double one_rounding = dtype == WEFT_BF16 ? 0x1p-7 : dtype == WEFT_F16 ? 0x1p-10 : 0x1p-22;
    for (uint32_t phase = 0; phase < phases; phase++) {
        double sum = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) sum += value_at(phase, rank, salt, values);
        bool mean = op == WEFT_AVG;
        expected[phase] = !mean ? sum : dtype == WEFT_I64 ? trunc(sum / ranks) : sum / ranks;
        slack[phase] = mean && dtype != WEFT_I64 ? expected[phase] * one_rounding : 0;
    }
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t phase = (uint32_t)(i % PERIOD);
        wrong += !(fabs(load(data, i, dtype) - expected[phase]) <= slack[phase]); /* a NaN is wrong */
    }
    return wrong;
}
