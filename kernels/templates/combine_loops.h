/* combine_loops.h - out = a (op) b for every element type that sums in itself; every variant compiles this
 * text with its own instruction set, defining COMBINE(name) first. Private to the module.
 *
 *   sum, prod   floats: one rounding, a NaN is the canonical one; integers wrap
 *   min, max    a NaN on either side gives the canonical NaN; -0 is below +0: so the order of operands never
 *               shows
 *   and or xor  bits of integers
 *
 * The operation is chosen outside the loops: each is a plain loop that becomes vectors. */
#include "kernels/float_bits.h"
#include "kernels/kernels.h"

static inline uint64_t combine_bits64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline double combine_from64(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline double combine_canonical(double value)
{
    return value == value ? value : combine_from64(0x7ff8000000000000ull);
}

/* Equal floats differ at most in the sign of zero: or gives the lower one, and the higher one. */
static inline float combine_min_f32(float a, float b)
{
    float equal = float_from_bits(float_bits(a) | float_bits(b)), least = a < b ? a : b < a ? b : equal;
    return a == a && b == b ? least : float_from_bits(FLOAT_NAN);
}
static inline float combine_max_f32(float a, float b)
{
    float equal = float_from_bits(float_bits(a) & float_bits(b)), most = a > b ? a : b > a ? b : equal;
    return a == a && b == b ? most : float_from_bits(FLOAT_NAN);
}
static inline double combine_min_f64(double a, double b)
{
    double equal = combine_from64(combine_bits64(a) | combine_bits64(b)), least = a < b   ? a
                                                                                  : b < a ? b
                                                                                          : equal;
    return a == a && b == b ? least : combine_canonical(a + b);
}
static inline double combine_max_f64(double a, double b)
{
    double equal = combine_from64(combine_bits64(a) & combine_bits64(b)), most = a > b   ? a
                                                                                 : b > a ? b
                                                                                         : equal;
    return a == a && b == b ? most : combine_canonical(a + b);
}

#define COMBINE_LOOP(type, expression)                                                                       \
    do {                                                                                                     \
        type *z = out;                                                                                       \
        const type *from_a = a, *from_b = b;                                                                 \
        for (size_t i = 0; i < count; i++) {                                                                 \
            const type x = from_a[i], y = from_b[i];                                                         \
            z[i] = (type)(expression);                                                                       \
        }                                                                                                    \
    } while (0)

/* `u`: the unsigned type of the same length, in which sums and products wrap. */
#define COMBINE_INTEGERS(name, type, u)                                                                      \
    static void combine_##name(enum weft_op op, void *out, const void *a, const void *b, size_t count)       \
    {                                                                                                        \
        switch (op) {                                                                                        \
        case WEFT_PROD: COMBINE_LOOP(type, (u)((u)x * 1u * (u)y)); break;                                    \
        case WEFT_MIN: COMBINE_LOOP(type, x < y ? x : y); break;                                             \
        case WEFT_MAX: COMBINE_LOOP(type, x > y ? x : y); break;                                             \
        case WEFT_AND: COMBINE_LOOP(type, x & y); break;                                                     \
        case WEFT_OR: COMBINE_LOOP(type, x | y); break;                                                      \
        case WEFT_XOR: COMBINE_LOOP(type, x ^ y); break;                                                     \
        default: COMBINE_LOOP(type, (u)((u)x + (u)y)); break;                                                \
        }                                                                                                    \
    }

COMBINE_INTEGERS(i8, int8_t, uint8_t)
COMBINE_INTEGERS(u8, uint8_t, uint8_t)
COMBINE_INTEGERS(i32, int32_t, uint32_t)
COMBINE_INTEGERS(u32, uint32_t, uint32_t)
COMBINE_INTEGERS(i64, int64_t, uint64_t)
COMBINE_INTEGERS(u64, uint64_t, uint64_t)

static void combine_f32(enum weft_op op, void *out, const void *a, const void *b, size_t count)
{
    switch (op) {
    case WEFT_PROD: COMBINE_LOOP(float, canonical(x * y)); break;
    case WEFT_MIN: COMBINE_LOOP(float, combine_min_f32(x, y)); break;
    case WEFT_MAX: COMBINE_LOOP(float, combine_max_f32(x, y)); break;
    default: COMBINE_LOOP(float, canonical(x + y)); break;
    }
}

static void combine_f64(enum weft_op op, void *out, const void *a, const void *b, size_t count)
{
    switch (op) {
    case WEFT_PROD: COMBINE_LOOP(double, combine_canonical(x * y)); break;
    case WEFT_MIN: COMBINE_LOOP(double, combine_min_f64(x, y)); break;
    case WEFT_MAX: COMBINE_LOOP(double, combine_max_f64(x, y)); break;
    default: COMBINE_LOOP(double, combine_canonical(x + y)); break;
    }
}

void COMBINE(combine)(enum weft_dtype dtype, enum weft_op op, void *out, const void *a, const void *b,
                      size_t count)
{
    switch (dtype) {
    case WEFT_F64: combine_f64(op, out, a, b, count); break;
    case WEFT_I8: combine_i8(op, out, a, b, count); break;
    case WEFT_U8: combine_u8(op, out, a, b, count); break;
    case WEFT_I32: combine_i32(op, out, a, b, count); break;
    case WEFT_U32: combine_u32(op, out, a, b, count); break;
    case WEFT_I64: combine_i64(op, out, a, b, count); break;
    case WEFT_U64: combine_u64(op, out, a, b, count); break;
    default: combine_f32(op, out, a, b, count); break;
    }
}
