/* bench_pattern.c - see bench_pattern.h. */
#include "tools/bench/bench_pattern.h"

#include <math.h>
#include <string.h>

enum { PERIOD = 4093 };

static bool is_float(enum weft_dtype dtype)
{
    return dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16 || dtype == WEFT_F64 ||
           dtype == WEFT_F8_E4M3 || dtype == WEFT_F8_E5M2;
}

static bool is_sum(enum weft_op op)
{
    return op == WEFT_SUM || op == WEFT_AVG || op == WEFT_SCALED_SUM;
}

bool bench_pattern_supports(enum weft_dtype dtype, enum weft_op op)
{
    if (op == WEFT_AND || op == WEFT_OR || op == WEFT_XOR) return !is_float(dtype);
    return op != WEFT_SCALED_SUM || is_float(dtype);
}

double bench_pattern_factor(uint32_t rank)
{
    return rank % 2 ? 2 : 1;
}

/* Half of the range in which the type holds every integer. */
static uint32_t sum_max(enum weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F8_E5M2: return 4;
    case WEFT_F8_E4M3: return 8;
    case WEFT_I8: return 63;
    case WEFT_BF16:
    case WEFT_U8: return 127;
    case WEFT_F16: return 1024;
    default: return 1u << 20;
    }
}

uint32_t bench_pattern_ranks_max(enum weft_dtype dtype, enum weft_op op)
{
    return !is_sum(op) ? UINT32_MAX : op == WEFT_SCALED_SUM ? sum_max(dtype) / 2 : sum_max(dtype);
}

/* Values are 0 .. value_count - 1; the sum over all ranks is an exact integer of the type. */
static uint32_t value_count(const struct bench_pattern *pattern)
{
    if (!is_sum(pattern->op)) return 8;
    uint32_t values = 2 * bench_pattern_ranks_max(pattern->dtype, pattern->op) / pattern->ranks;
    return values > 16 ? 16 : values < 2 ? 2 : values;
}

static uint32_t mix_bits(uint32_t phase, uint32_t rank, uint32_t salt)
{
    uint32_t bits = (phase * 2654435761u) ^ (rank * 2246822519u) ^ (salt * 3266489917u);
    bits ^= bits >> 15;
    bits *= 2246822519u;
    return bits >> 13;
}

/* Factors of a product are 1, except 1 or 2 for two ranks: the product is exact for any number of ranks. */
static uint32_t factor_at(const struct bench_pattern *pattern, uint32_t phase, uint32_t rank)
{
    uint32_t bits = mix_bits(phase, 0, pattern->salt), factor = 1;
    if (bits % pattern->ranks == rank) factor *= 1 + (bits >> 16 & 1);
    if (bits / 64 % pattern->ranks == rank) factor *= 1 + (bits >> 17 & 1);
    return factor;
}

static uint32_t value_at(const struct bench_pattern *pattern, uint32_t phase, uint32_t rank, uint32_t values)
{
    return pattern->op == WEFT_PROD ? factor_at(pattern, phase, rank)
                                    : mix_bits(phase, rank, pattern->salt) % values;
}

/* An integer from 0 to 15 (e4m3) or 0 to 8 (e5m2) as an 8-bit float. */
static uint8_t small_to_fp8(uint32_t value, uint32_t fraction_bits, uint32_t bias)
{
    if (value == 0) return 0;
    uint32_t exponent = 31 - (uint32_t)__builtin_clz(value), fraction = value << fraction_bits >> exponent;
    return (uint8_t)((exponent + bias) << fraction_bits | (fraction & ((1u << fraction_bits) - 1)));
}

static double fp8_to_double(uint8_t bits, uint32_t fraction_bits, uint32_t bias)
{
    uint32_t exponent = (bits & 127u) >> fraction_bits, fraction = bits & ((1u << fraction_bits) - 1),
             whole = 1u << fraction_bits;
    if ((bits & 127) == 127) return NAN; /* infinities of e5m2 are wrong, too */
    double magnitude = exponent ? ldexp(whole + fraction, (int)exponent - (int)bias - (int)fraction_bits)
                                : ldexp(fraction, 1 - (int)bias - (int)fraction_bits);
    return bits >> 7 ? -magnitude : magnitude;
}

static float half_to_float(uint16_t bits)
{
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent     ? ldexpf((float)(1024 + fraction), (int)exponent - 25)
                                     : ldexpf((float)fraction, -24);
    return bits >> 15 ? -magnitude : magnitude;
}

static uint16_t small_to_half(uint32_t value) /* exact for 0 .. 2047 */
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
    case WEFT_F8_E4M3: ((uint8_t *)out)[index] = small_to_fp8(value, 3, 7); break;
    case WEFT_F8_E5M2: ((uint8_t *)out)[index] = small_to_fp8(value, 2, 15); break;
    default: ((uint8_t *)out)[index] = (uint8_t)value; break; /* sums of small values fit 8 bits */
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
    case WEFT_F8_E4M3: return fp8_to_double(((const uint8_t *)data)[index], 3, 7);
    case WEFT_F8_E5M2: return fp8_to_double(((const uint8_t *)data)[index], 2, 15);
    default: return NAN;
    }
}

void bench_pattern_fill(const struct bench_pattern *pattern, void *out, uint64_t first, uint64_t count,
                        uint32_t rank)
{
    uint32_t values = value_count(pattern);
    for (uint64_t i = 0; i < count; i++)
        store(out, i, pattern->dtype, value_at(pattern, (uint32_t)((first + i) % PERIOD), rank, values));
}

static double reduce_pair(enum weft_op op, double so_far, double next)
{
    switch (op) {
    case WEFT_PROD: return so_far * next;
    case WEFT_MIN: return fmin(so_far, next);
    case WEFT_MAX: return fmax(so_far, next);
    case WEFT_AND: return (double)((uint32_t)so_far & (uint32_t)next);
    case WEFT_OR: return (double)((uint32_t)so_far | (uint32_t)next);
    case WEFT_XOR: return (double)((uint32_t)so_far ^ (uint32_t)next);
    default: return so_far + next;
    }
}

static double expected_at(const struct bench_pattern *pattern, uint32_t phase)
{
    uint32_t values = value_count(pattern);
    double total = 0;
    for (uint32_t rank = 0; rank < pattern->ranks; rank++) {
        double value = value_at(pattern, phase, rank, values);
        if (pattern->op == WEFT_SCALED_SUM) value *= bench_pattern_factor(rank);
        total = rank == 0 ? value : reduce_pair(pattern->op, total, value);
    }
    if (pattern->op != WEFT_AVG) return total;
    return is_float(pattern->dtype) ? total / pattern->ranks : trunc(total / pattern->ranks);
}

static double one_rounding(enum weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F8_E5M2: return 0x1p-2;
    case WEFT_F8_E4M3: return 0x1p-3;
    case WEFT_BF16: return 0x1p-7;
    case WEFT_F16: return 0x1p-10;
    case WEFT_F64: return 0x1p-51;
    default: return 0x1p-22;
    }
}

static uint64_t differ(const struct bench_pattern *pattern, const void *data, uint64_t first, uint64_t count,
                       const double *expected, double slack)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++) {
        double wanted = expected[(first + i) % PERIOD];
        wrong += !(fabs(load(data, i, pattern->dtype) - wanted) <= slack * wanted); /* counts NaN as wrong */
    }
    return wrong;
}

uint64_t bench_pattern_count_wrong(const struct bench_pattern *pattern, const void *data, uint64_t first,
                                   uint64_t count)
{
    double expected[PERIOD];
    for (uint64_t i = 0; i < PERIOD && i < count; i++)
        expected[(first + i) % PERIOD] = expected_at(pattern, (uint32_t)((first + i) % PERIOD));
    bool rounded = pattern->op == WEFT_AVG && is_float(pattern->dtype);
    return differ(pattern, data, first, count, expected, rounded ? one_rounding(pattern->dtype) : 0);
}

uint64_t bench_pattern_count_wrong_moved(const struct bench_pattern *pattern, const void *data,
                                         uint64_t first, uint64_t count, uint32_t rank)
{
    double expected[PERIOD];
    uint32_t values = value_count(pattern);
    for (uint32_t phase = 0; phase < PERIOD; phase++)
        expected[phase] = value_at(pattern, phase, rank, values);
    return differ(pattern, data, first, count, expected, 0);
}
