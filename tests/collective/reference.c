/* reference.c - see reference.h. */
#include "tests/collective/reference.h"

#include <math.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (uint16_t)(rounded >> 16);
}
static float from_bf16(uint16_t half) { return bits_float((uint32_t)half << 16); }

/* Through doubles: scale to the spacing of the result, round to nearest even, scale back. No NaN here. */
static uint16_t to_f16(float value)
{
    uint16_t sign = value < 0 || (value == 0 && signbit(value)) ? 0x8000 : 0;
    double magnitude = fabs((double)value);
    if (magnitude >= 65520.0) return sign | 0x7c00;
    int exponent = magnitude > 0 ? ilogb(magnitude) : -14;
    if (exponent < -14) exponent = -14;
    double steps = nearbyint(ldexp(magnitude, 10 - exponent)); /* 0..2048 */
    uint32_t bits = (uint32_t)((exponent + 14) << 10) + (uint32_t)steps;
    return sign | (uint16_t)bits; /* normal: the hidden 1024 adds one to the exponent field, which starts at 1 for -14 */
}
static float from_f16(uint16_t half)
{
    int exponent = (half >> 10) & 31;
    double mantissa = half & 1023;
    double value = exponent == 31 ? INFINITY : exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return (float)(half & 0x8000 ? -value : value);
}

static float load(enum weft_dtype dtype, const void *from)
{
    uint16_t half;
    float value;
    if (dtype == WEFT_F32) {
        memcpy(&value, from, 4);
        return value;
    }
    memcpy(&half, from, 2);
    return dtype == WEFT_F16 ? from_f16(half) : from_bf16(half);
}
static void store(enum weft_dtype dtype, void *to, float value)
{
    uint16_t half = dtype == WEFT_F16 ? to_f16(value) : to_bf16(value);
    if (dtype == WEFT_F32) memcpy(to, &value, 4);
    else memcpy(to, &half, 2);
}

static bool gathers(const struct call *c) { return c->kind == WEFT_COLL_ALL_GATHER; }

uint64_t call_in_elems(const struct call *c)
{
    if (c->kind == WEFT_COLL_BARRIER) return 0;
    return c->kind == WEFT_COLL_REDUCE_SCATTER ? c->count * c->ranks : c->count;
}
uint64_t call_out_elems(const struct call *c)
{
    if (c->kind == WEFT_COLL_BARRIER) return 0;
    return gathers(c) ? c->count * c->ranks : c->count;
}

void reference_input(const struct call *c, uint32_t rank, uint64_t i, void *out)
{
    uint64_t random = mix(c->seed * 1000003 + rank * 7919ull + mix(i));
    if (c->dtype == WEFT_I64) {
        int64_t value = (int64_t)random;
        memcpy(out, &value, 8);
        return;
    }
    int spread = c->dtype == WEFT_F16 ? 5 : 20;
    float value = ldexpf((float)((random & 0xffffff) + 1) / 16777216.0f, (int)((random >> 32) % (2 * spread)) - spread);
    store(c->dtype, out, random >> 63 ? -value : value);
}

/* T(a,b) from its definition. */
static float tree(const float *values, uint32_t a, uint32_t b)
{
    if (b - a == 1) return values[a];
    uint32_t h = 1;
    while (h * 2 < b - a) h *= 2;
    float left = tree(values, a, a + h), right = tree(values, a + h, b);
    return left + right;
}

static void reduced(const struct call *c, uint64_t element, uint32_t slice, void *out)
{
    float values[1024];
    if (c->dtype == WEFT_I64) {
        uint64_t total = 0;
        for (uint32_t r = 0; r < c->ranks; r++) {
            int64_t value;
            reference_input(c, r, element, &value);
            total += (uint64_t)value;
        }
        int64_t result = c->op == WEFT_AVG ? (int64_t)total / (int64_t)c->ranks : (int64_t)total;
        memcpy(out, &result, 8);
        return;
    }
    for (uint32_t r = 0; r < c->ranks; r++) {
        uint8_t bytes[8];
        reference_input(c, r, element, bytes);
        values[r] = load(c->dtype, bytes);
    }
    float total;
    if (c->ranks == 1 || c->plan == WEFT_PLAN_DIRECT) {
        total = tree(values, 0, c->ranks);
    } else { /* the ring's declared order; the element type on every hop but the last */
        total = values[(slice + 1) % c->ranks];
        for (uint32_t n = 2; n <= c->ranks; n++) {
            total = total + values[(slice + n) % c->ranks];
            uint8_t hop[8];
            store(c->dtype, hop, total);
            if (n < c->ranks) total = load(c->dtype, hop);
        }
    }
    if (c->op == WEFT_AVG && c->ranks > 1) total = total * (1.0f / (float)c->ranks);
    store(c->dtype, out, total);
}

void reference_output(const struct call *c, uint32_t rank, uint64_t i, void *out)
{
    if (c->kind == WEFT_COLL_BROADCAST) {
        reference_input(c, c->root, i, out);
    } else if (gathers(c)) {
        reference_input(c, (uint32_t)(i / c->count), i % c->count, out);
    } else if (c->kind == WEFT_COLL_REDUCE_SCATTER) {
        reduced(c, rank * c->count + i, rank, out);
    } else {
        uint32_t slice = (uint32_t)(i * c->ranks / c->count); /* near; corrected by the definition */
        while (c->count * (slice + 1) / c->ranks <= i) slice++;
        while (c->count * slice / c->ranks > i) slice--;
        reduced(c, i, slice, out);
    }
}
