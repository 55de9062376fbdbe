/* points_oracle.c - CollNet's results against a scalar oracle, for all types and reductions that the plugin
 * claims: values whose sum depends on the order, NaN with any payload, infinities, both zeros, denormals,
 * overflow, integers that wrap.
 *
 * The oracle is written from docs/collectives.md, without the library's kernels. A reduction in an order that
 * the plan may choose must have the bits of one binary tree over the ranks, with partial results in f32 or
 * rounded to the element type at each hop. With nccl.reproducible, and through shards, the bits are those of
 * the canonical tree. All ranks have equal bits. */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/nccl/collnet_nodes.h"

enum {
    SHORT = 31,
    MEDIUM = 600,
    LONG = 150000,
    STRIDE = 251,
    SUM = 0,
    PROD = 1,
    MAX = 2,
    MIN = 3,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
    E4M3 = 10
};

/* ---- element types: bits to values, and back ---- */

static const struct format {
    int mantissa, bias, largest; /* bits; the largest exponent of a number, without bias */
    bool has_infinity;
} formats[COLL_DTYPES] = {[6] = {10, 15, 15, true},  [7] = {23, 127, 127, true}, [8] = {52, 1023, 1023, true},
                          [9] = {7, 127, 127, true}, [10] = {3, 7, 8, false},    [11] = {2, 15, 15, true}};

static bool is_float(int dtype)
{
    return formats[dtype].mantissa > 0;
}

static uint64_t sign_bit(int dtype)
{
    return 1ull << (coll_dtype_bytes[dtype] * 8 - 1);
}

static double value_of(int dtype, uint64_t bits)
{
    const struct format *format = &formats[dtype];
    const uint64_t magnitude = bits & (sign_bit(dtype) - 1), one = 1ull << format->mantissa;
    const uint64_t infinity = (sign_bit(dtype) - 1) / one * one; /* all bits of the exponent */
    const bool is_negative = bits & sign_bit(dtype);
    const int exponent = (int)(magnitude / one);
    double value;
    if (format->has_infinity ? magnitude > infinity : magnitude == sign_bit(dtype) - 1) return NAN;
    if (format->has_infinity && magnitude == infinity) value = INFINITY;
    else if (exponent == 0) value = ldexp((double)magnitude, 1 - format->bias - format->mantissa);
    else value = ldexp((double)(magnitude % one + one), exponent - format->bias - format->mantissa);
    return is_negative ? -value : value;
}

/* To nearest even; NaN is the canonical one, and so is an overflow without infinity. */
static uint64_t bits_of(int dtype, double value)
{
    const struct format *format = &formats[dtype];
    const uint64_t one = 1ull << format->mantissa, top = (sign_bit(dtype) - 1) / one * one;
    const uint64_t nan = format->has_infinity ? top | one >> 1 : sign_bit(dtype) - 1;
    const uint64_t sign = signbit(value) ? sign_bit(dtype) : 0;
    int exponent = 0;
    if (isnan(value)) return nan;
    if (value == 0) return sign;
    if (isinf(value)) return format->has_infinity ? sign | top : nan;
    (void)frexp(value, &exponent); /* value = 0.5 .. 1 times 2^exponent */
    int step = exponent - 1 - format->mantissa;
    if (step < 1 - format->bias - format->mantissa) step = 1 - format->bias - format->mantissa;
    uint64_t digits = (uint64_t)nearbyint(ldexp(fabs(value), -step)); /* up to 2 * one */
    uint64_t magnitude = (uint64_t)(step + format->bias + format->mantissa - 1) * one + digits;
    const uint64_t largest = format->has_infinity ? top - 1 : nan - 1;
    if (magnitude > largest) return format->has_infinity ? sign | top : nan;
    return sign | magnitude;
}

/* ---- reductions ---- */

static uint64_t integer(int dtype, int op, uint64_t a, uint64_t b)
{
    const bool is_signed = dtype % 2 == 0; /* i8 u8 i32 u32 i64 u64 */
    const uint64_t flip = is_signed ? sign_bit(dtype) : 0;
    const uint64_t all = sign_bit(dtype) * 2 - 1;
    if (op == SUM) return (a + b) & all;
    if (op == PROD) return (a * b) & all;
    return ((a ^ flip) > (b ^ flip)) == (op == MAX) ? a : b;
}

static double combine(int dtype, int op, double a, double b)
{
    if (op == SUM || op == PROD) {
        const double result = op == SUM ? a + b : a * b;
        return dtype == F64 ? result : (double)(float)result; /* f32 from f64: rounded once, as in f32 */
    }
    if (isnan(a) || isnan(b)) return NAN;
    if (a == 0 && b == 0) return (op == MAX) == (signbit(a) != 0) ? b : a;
    return (op == MAX) == (a > b) ? a : b;
}

/* The canonical tree over ranks a..b-1. */
static double tree(int dtype, int op, const double *values, int a, int b)
{
    int half = 1;
    if (b - a == 1) return values[a];
    while (half * 2 < b - a) half *= 2;
    return combine(dtype, op, tree(dtype, op, values, a, a + half), tree(dtype, op, values, a + half, b));
}

struct search {
    int dtype, op;
    const double *values;
    bool rounds; /* at each hop */
    uint64_t wanted;
};

/* Returns whether a tree over `count` partial results has the wanted bits. Combines each pair first, in
 * turn, and recurses. */
static bool has_tree(const struct search *search, const double *values, int count)
{
    if (count == 1) return bits_of(search->dtype, values[0]) == search->wanted;
    for (int a = 0; a < count; a++) {
        for (int b = a + 1; b < count; b++) {
            double rest[NODES_MAX], both = combine(search->dtype, search->op, values[a], values[b]);
            int kept = 0;
            for (int i = 0; i < count; i++)
                if (i != a && i != b) rest[kept++] = values[i];
            if (search->rounds) both = value_of(search->dtype, bits_of(search->dtype, both));
            rest[kept++] = both;
            if (has_tree(search, rest, kept)) return true;
        }
    }
    return false;
}

static bool is_right(int dtype, int op, const uint64_t *inputs, int ranks, bool is_canonical, uint64_t bits)
{
    double values[NODES_MAX];
    uint64_t folded = inputs[0];
    if (ranks == 1) return bits == inputs[0];
    for (int rank = 1; !is_float(dtype) && rank < ranks; rank++)
        folded = integer(dtype, op, folded, inputs[rank]);
    if (!is_float(dtype)) return bits == folded;
    for (int rank = 0; rank < ranks; rank++) values[rank] = value_of(dtype, inputs[rank]);
    if (bits == bits_of(dtype, tree(dtype, op, values, 0, ranks))) return true;
    struct search search = {.dtype = dtype, .op = op, .wanted = bits};
    if (is_canonical) return false;
    if (has_tree(&search, values, ranks)) return true;
    search.rounds = true;
    return has_tree(&search, values, ranks);
}

/* ---- inputs ---- */

static uint64_t special(int dtype, uint64_t which)
{
    const uint64_t sign = sign_bit(dtype), one = 1ull << formats[dtype].mantissa,
                   top = (sign - 1) / one * one;
    const uint64_t floats[] = {0,       1,   2,       one - 1,        one,      one + 1,
                               top - 1, top, top | 1, top | one >> 1, sign - 1, one * 3};
    const uint64_t integers[] = {
        0, 1, 2, 3, sign - 1, sign, sign + 1, sign * 2 - 1, sign * 2 - 2, 7, sign / 2, sign / 2 + 1};
    const uint64_t bits = is_float(dtype) ? floats[which % 12] : integers[which % 12];
    return is_float(dtype) && which / 12 % 2 ? bits | sign : bits;
}

/* An element is of one class on all ranks: any bits, special values, one special value beside numbers, or
 * numbers near one, whose sums and products are rounded at each hop. */
static uint64_t input_of(int dtype, int op, int rank, size_t i)
{
    uint64_t random = (((uint64_t)dtype * 4 + (uint64_t)op) << 32 | i) * 64 + (uint64_t)rank;
    const uint64_t draw = random_next(&random), more = random_next(&random), all = sign_bit(dtype) * 2 - 1;
    if (i % 6 == 0) return draw & all;
    if (i % 6 == 1 || (i % 6 == 2 && (int)(i / 6 % 4) == rank)) return special(dtype, more >> 20);
    if (!is_float(dtype)) return draw & all;
    const struct format *format = &formats[dtype];
    const uint64_t fraction = draw & ((1ull << format->mantissa) - 1);
    const uint64_t exponent = (uint64_t)format->bias - 2 + (more >> 30) % 4;
    return exponent << format->mantissa | fraction | (more & 1ull << 40 ? sign_bit(dtype) : 0);
}

/* ---- the point ---- */

static bool is_canonical(int dtype, int op)
{
    const bool sums = op == SUM && (dtype == F32 || dtype == F16 || dtype == BF16);
    return getenv("WEFT_NCCL_REPRODUCIBLE") || (getenv("WEFT_NCCL_FLEET") && sums);
}

static uint64_t load(const unsigned char *memory, size_t size)
{
    uint64_t bits = 0;
    memcpy(&bits, memory, size);
    return bits;
}

/* A long call is checked at every STRIDE-th element. */
static void check(const struct node *node, int dtype, int op, const unsigned char *out, size_t count)
{
    const size_t size = (size_t)coll_dtype_bytes[dtype];
    for (size_t i = 0; i < count; i += count == LONG ? STRIDE : 1) {
        uint64_t inputs[NODES_MAX], bits = load(out + i * size, size);
        for (int rank = 0; rank < node->ranks; rank++) inputs[rank] = input_of(dtype, op, rank, i);
        CHECK(is_right(dtype, op, inputs, node->ranks, is_canonical(dtype, op), bits),
              "type %d, reduction %d, element %zu of %zu on %d ranks: %#llx of %#llx, %#llx, ...", dtype, op,
              i, count, node->ranks, (unsigned long long)bits, (unsigned long long)inputs[0],
              (unsigned long long)(node->ranks > 1 ? inputs[1] : 0));
    }
}

static void one_call(struct node *node, int dtype, int op, size_t count)
{
    static unsigned char *results[NODES_MAX];
    const size_t size = (size_t)coll_dtype_bytes[dtype];
    unsigned char *in = malloc(count * size), *out = malloc(count * size);
    void *request = NULL;
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = input_of(dtype, op, node->rank, i);
        memcpy(in + i * size, &bits, size);
    }
    memset(out, 0xee, count * size);
    while (!request)
        CHECK_OK(coll_iallreduce(node->comm, in, out, count, dtype, op, node->in_memory, node->out_memory,
                                 &request));
    node_wait(request, NULL);
    results[node->rank] = out;
    pthread_barrier_wait(node->barrier);
    if (node->rank == 0) check(node, dtype, op, out, count);
    CHECK(memcmp(results[0], out, count * size) == 0,
          "type %d, reduction %d: ranks 0 and %d of %d have different bits", dtype, op, node->rank,
          node->ranks);
    pthread_barrier_wait(node->barrier);
    free(in);
    free(out);
}

static void *all_values(void *context)
{
    struct node *node = context;
    node_open(node);
    for (int dtype = 0; dtype < COLL_DTYPES; dtype++) {
        for (int op = 0; op < COLL_OPS; op++) {
            int is_supported = 0;
            CHECK_OK(EACH(reduce_support(dtype, op, &is_supported)));
            if (is_supported) one_call(node, dtype, op, SHORT);
            if (is_supported) one_call(node, dtype, op, MEDIUM);
            if (is_supported && is_float(dtype) && op == SUM) one_call(node, dtype, op, LONG);
        }
    }
    node_close(node);
    return NULL;
}

static void values(struct harness *harness)
{
    if (!coll_open(harness)) return;
    for (int ranks = 2; !harness->ranks && ranks <= 4; ranks++) run_nodes(harness, ranks, all_values);
    if (harness->ranks) run_nodes(harness, harness->ranks, all_values);
}

const struct point oracle_points[] = {{"coll-values", values}, {NULL, NULL}};
