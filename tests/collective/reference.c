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
    /* normal: the hidden 1024 adds one to the exponent field, which starts at 1 for -14 */
    return sign | (uint16_t)bits;
}
static float from_f16(uint16_t half)
{
    int exponent = (half >> 10) & 31;
    double mantissa = half & 1023;
    double value = exponent == 31  ? INFINITY
                   : exponent == 0 ? ldexp(mantissa, -24)
                                   : ldexp(1024 + mantissa, exponent - 25);
    return (float)(half & 0x8000 ? -value : value);
}

/* 8-bit floats through doubles: the value of each code, and of the codes the nearest, ties to the even
 * one. */
static double value_fp8(uint8_t code, bool e4m3)
{
    int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
    int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    double value = exponent == 0 ? ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return code & 0x80 ? -value : value;
}
static uint8_t to_fp8(double value, bool e4m3)
{
    uint8_t top = e4m3 ? 0x7e : 0x7b, best = 0, sign = signbit(value) ? 0x80 : 0;
    double magnitude = fabs(value);
    for (uint8_t code = 1; code <= top; code++) {
        double before = fabs(value_fp8(best, e4m3) - magnitude),
               now = fabs(value_fp8(code, e4m3) - magnitude);
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    /* Above half a step beyond the largest number: NaN, which has no sign, or Inf. */
    double limit = value_fp8(top, e4m3) + (value_fp8(top, e4m3) - value_fp8(top - 1, e4m3)) / 2;
    if (magnitude > limit || (magnitude == limit && top % 2 == 1)) return e4m3 ? 0x7f : 0x7c | sign;
    return best | sign;
}

/* Type of the sums: double for f64, float for the other float types. */
static bool floats(enum weft_dtype dtype)
{
    return dtype == WEFT_F64 || dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16 ||
           dtype == WEFT_F8_E4M3 || dtype == WEFT_F8_E5M2;
}

static double load(enum weft_dtype dtype, const void *from)
{
    uint16_t half;
    float value;
    double wide;
    switch (dtype) {
    case WEFT_F64: memcpy(&wide, from, 8); return wide;
    case WEFT_F32: memcpy(&value, from, 4); return value;
    case WEFT_F8_E4M3:
        if ((*(const uint8_t *)from & 0x7f) == 0x7f) return NAN;
        return value_fp8(*(const uint8_t *)from, true);
    case WEFT_F8_E5M2:
        if ((*(const uint8_t *)from & 0x7f) == 0x7c)
            return *(const uint8_t *)from & 0x80 ? -INFINITY : INFINITY;
        if ((*(const uint8_t *)from & 0x7f) > 0x7c) return NAN;
        return value_fp8(*(const uint8_t *)from, false);
    default:
        memcpy(&half, from, 2);
        return dtype == WEFT_F16 ? from_f16(half) : from_bf16(half);
    }
}
static void store(enum weft_dtype dtype, void *to, double value)
{
    float single = (float)value;
    uint16_t half;
    switch (dtype) {
    case WEFT_F64: memcpy(to, &value, 8); break;
    case WEFT_F32: memcpy(to, &single, 4); break;
    case WEFT_F8_E4M3: *(uint8_t *)to = value != value ? 0x7f : to_fp8(value, true); break;
    case WEFT_F8_E5M2: *(uint8_t *)to = value != value ? 0x7e : to_fp8(value, false); break;
    default:
        half = dtype == WEFT_F16 ? to_f16(single) : to_bf16(single);
        memcpy(to, &half, 2);
    }
}

uint64_t call_in_elems(const struct call *c, uint32_t rank)
{
    switch (c->kind) {
    case WEFT_COLL_BARRIER: return 0;
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_ALL_TO_ALL: return c->count * c->ranks;
    case WEFT_COLL_SCATTER: return rank == c->root ? c->count * c->ranks : 0;
    default: return c->count;
    }
}
uint64_t call_out_elems(const struct call *c, uint32_t rank)
{
    switch (c->kind) {
    case WEFT_COLL_BARRIER: return 0;
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_ALL_TO_ALL: return c->count * c->ranks;
    case WEFT_COLL_GATHER: return rank == c->root ? c->count * c->ranks : 0;
    case WEFT_COLL_REDUCE: return rank == c->root ? c->count : 0;
    default: return c->count;
    }
}

double call_factor(uint32_t rank) { return 0.5 + rank; }

void reference_input(const struct call *c, uint32_t rank, uint64_t i, void *out)
{
    uint64_t random = mix(c->seed * 1000003 + rank * 7919ull + mix(i));
    if (!floats(c->dtype)) {
        memcpy(out, &random, weft_dtype_bytes(c->dtype));
        return;
    }
    int spread = c->dtype == WEFT_F8_E4M3 ? 3 : c->dtype == WEFT_F16 || c->dtype == WEFT_F8_E5M2 ? 5 : 20;
    if (c->op == WEFT_PROD && c->dtype != WEFT_F64) spread = c->ranks > 8 ? 1 : 3;
    double value =
        ldexp((double)((random & 0xffffff) + 1) / 16777216.0, (int)((random >> 32) % (2 * spread)) - spread);
    store(c->dtype, out, random >> 63 ? -value : value);
}

/* One operation on two numbers of the type in which sums are made. */
static double pair(const struct call *c, double a, double b)
{
    bool is_double = c->dtype == WEFT_F64;
    switch (c->op) {
    case WEFT_PROD: return is_double ? a * b : (float)a * (float)b;
    case WEFT_MIN: return a != a || b != b ? NAN : a < b ? a : b;
    case WEFT_MAX: return a != a || b != b ? NAN : a > b ? a : b;
    default: return is_double ? a + b : (float)a + (float)b;
    }
}

/* T(a,b) from its definition. */
static double tree(const struct call *c, const double *values, uint32_t a, uint32_t b)
{
    if (b - a == 1) return values[a];
    uint32_t h = 1;
    while (h * 2 < b - a) h *= 2;
    double left = tree(c, values, a, a + h), right = tree(c, values, a + h, b);
    return pair(c, left, right);
}

#define WHOLE(type, unsigned_type)                                                     \
    do {                                                                               \
        type total = 0, value;                                                         \
        for (uint32_t r = 0; r < c->ranks; r++) {                                      \
            reference_input(c, r, element, &value);                                    \
            if (r == 0) total = value;                                                 \
            else if (c->op == WEFT_PROD)                                               \
                total = (type)((uint64_t)(unsigned_type)total * (unsigned_type)value); \
            else if (c->op == WEFT_MIN) total = value < total ? value : total;         \
            else if (c->op == WEFT_MAX) total = value > total ? value : total;         \
            else if (c->op == WEFT_AND) total = (type)(total & value);                 \
            else if (c->op == WEFT_OR) total = (type)(total | value);                  \
            else if (c->op == WEFT_XOR) total = (type)(total ^ value);                 \
            else total = (type)((unsigned_type)total + (unsigned_type)value);          \
        }                                                                              \
        if (c->op == WEFT_AVG) total = (type)(total / (type)c->ranks);                 \
        memcpy(out, &total, sizeof total);                                             \
    } while (0)

static bool reduced_whole(const struct call *c, uint64_t element, void *out)
{
    switch (c->dtype) {
    case WEFT_I8: WHOLE(int8_t, uint8_t); return true;
    case WEFT_U8: WHOLE(uint8_t, uint8_t); return true;
    case WEFT_I32: WHOLE(int32_t, uint32_t); return true;
    case WEFT_U32: WHOLE(uint32_t, uint32_t); return true;
    case WEFT_I64: WHOLE(int64_t, uint64_t); return true;
    case WEFT_U64: WHOLE(uint64_t, uint64_t); return true;
    default: return false;
    }
}

/* Declared order of a ring or chain: from the rank after `last` around to it. Ring sums keep the element
 * type on every hop but the last; averages are added in partials. */
static double around(const struct call *c, const double *values, uint32_t last)
{
    double total = values[(last + 1) % c->ranks];
    for (uint32_t n = 2; n <= c->ranks; n++) {
        total = pair(c, total, values[(last + n) % c->ranks]);
        uint8_t hop[8];
        store(c->dtype, hop, total);
        if (n < c->ranks && c->plan == WEFT_PLAN_RING && c->op != WEFT_AVG) total = load(c->dtype, hop);
    }
    return total;
}

/* The double tree's sum at a place of one tree: (lower child + own) + upper child. */
static uint32_t parent_place(uint32_t place, uint32_t ranks)
{
    uint32_t lowest = place & (~place + 1), up = (place - lowest) | 2 * lowest;
    return up < ranks ? up : place - lowest;
}
static double tree_at(const struct call *c, const double *values, bool second, uint32_t place)
{
    uint32_t ranks = c->ranks;
    double value = values[!second ? place : ranks % 2 ? (place + 1) % ranks : ranks - 1 - place];
    for (uint32_t child = 1; child < place; child++)
        if (parent_place(child, ranks) == place) value = pair(c, tree_at(c, values, second, child), value);
    for (uint32_t child = place + 1; child < ranks; child++)
        if (parent_place(child, ranks) == place) value = pair(c, value, tree_at(c, values, second, child));
    return value;
}

/* sqrt(bytes * 32 KiB / stages), as a power of two from 4 KiB to the group's. */
static uint64_t chunk_of(const struct call *c)
{
    uint64_t most = c->chunk_bytes ? c->chunk_bytes : WEFT_COLL_CHUNK_BYTES, chunk = 4096,
             elem = weft_dtype_bytes(c->dtype);
    while (chunk < most &&
           (double)chunk * (double)chunk < (double)(c->count * elem) * 32768 / (2 * ceil(log2(c->ranks))))
        chunk *= 2;
    return (chunk < most ? chunk : most) / elem;
}

static void reduced(const struct call *c, uint64_t element, uint32_t slice, void *out)
{
    double values[1024];
    if (reduced_whole(c, element, out)) return;
    for (uint32_t r = 0; r < c->ranks; r++) {
        uint8_t bytes[8];
        reference_input(c, r, element, bytes);
        values[r] = load(c->dtype, bytes);
        if (c->op != WEFT_SCALED_SUM) continue;
        double scaled = c->dtype == WEFT_F64 ? values[r] * call_factor(r)
                                             : (double)((float)values[r] * (float)call_factor(r));
        store(c->dtype, bytes, scaled);
        values[r] = load(c->dtype, bytes);
    }
    bool by_tree = c->ranks == 1 || c->plan == WEFT_PLAN_AUTO || weft_plan_reproducible(c->plan, NULL);
    uint64_t chunk = chunk_of(c);
    double turned[1024]; /* PAT: T over the ranks from the owner of the piece on */
    for (uint32_t r = 0; r < c->ranks; r++) turned[r] = values[(slice + r) % c->ranks];
    if (c->plan == WEFT_PLAN_HIERARCHY && c->ranks > 1) {
        double sums[1024], members[1024];
        for (uint32_t h = 0; h < c->hosts->count; h++) {
            uint32_t first = c->hosts->first[h], size = c->hosts->first[h + 1] - first;
            for (uint32_t i = 0; i < size; i++) members[i] = values[c->hosts->members[first + i]];
            sums[h] = tree(c, members, 0, size);
        }
        turned[0] = tree(c, sums, 0, c->hosts->count);
    }
    uint32_t last = c->plan == WEFT_PLAN_CHAIN ? c->root : slice;
    bool in_row = c->plan == WEFT_PLAN_RING || c->plan == WEFT_PLAN_CHAIN || c->plan == WEFT_PLAN_DOUBLE_TREE;
    if (in_row && c->hosts && c->ranks > 1) { /* host by host */
        double row[1024];
        for (uint32_t i = 0; i < c->ranks; i++) row[i] = values[c->hosts->ring_order[i]];
        memcpy(values, row, c->ranks * sizeof *values);
        last = c->hosts->ring_position[last];
    }
    double total = c->plan == WEFT_PLAN_HIERARCHY && c->ranks > 1 ? turned[0]
                   : by_tree                                      ? tree(c, values, 0, c->ranks)
                   : c->plan == WEFT_PLAN_PAT                     ? tree(c, turned, 0, c->ranks)
                   : c->plan == WEFT_PLAN_DOUBLE_TREE             ? tree_at(c, values, element / chunk & 1, 0)
                                                                  : around(c, values, last);
    if (c->op == WEFT_AVG && c->ranks > 1)
        total = c->dtype == WEFT_F64 ? total * (1.0 / c->ranks)
                                     : (double)((float)total * (1.0f / (float)c->ranks));
    store(c->dtype, out, total);
}

void reference_output(const struct call *c, uint32_t rank, uint64_t i, void *out)
{
    switch (c->kind) {
    case WEFT_COLL_BROADCAST: reference_input(c, c->root, i, out); break;
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_GATHER: reference_input(c, (uint32_t)(i / c->count), i % c->count, out); break;
    case WEFT_COLL_SCATTER: reference_input(c, c->root, rank * c->count + i, out); break;
    case WEFT_COLL_ALL_TO_ALL:
        reference_input(c, (uint32_t)(i / c->count), rank * c->count + i % c->count, out);
        break;
    case WEFT_COLL_REDUCE_SCATTER: reduced(c, rank * c->count + i, rank, out); break;
    default: {
        uint32_t slice = (uint32_t)(i * c->ranks / c->count); /* approximate; corrected by the definition */
        while (c->count * (slice + 1) / c->ranks <= i) slice++;
        while (c->count * slice / c->ranks > i) slice--;
        reduced(c, i, slice, out);
    }
    }
}
