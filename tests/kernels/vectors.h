/* vectors.h - the inputs that the tests of the CPU's and of the GPU's kernels share: lengths around every
 * width and block, what breaks a select, parameters of the update rules. */
#ifndef WEFT_TESTS_KERNELS_VECTORS_H
#define WEFT_TESTS_KERNELS_VECTORS_H

#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

/* Arrays have guard elements on both sides, and start up to SHIFT_MAX elements late. */
enum { COUNT_MAX = 1100, SHIFT_MAX = 3, GUARD = 8, ARRAY_ELEMS = COUNT_MAX + SHIFT_MAX + 2 * GUARD };

static const size_t vector_counts[] = {0,  1,  2,  7,  8,   9,   15,  16,  17,  31,   32,   33,
                                       47, 63, 64, 65, 127, 129, 255, 256, 257, 1000, 1024, 1037};
enum { VECTOR_COUNTS = sizeof vector_counts / sizeof vector_counts[0] };

static const struct weft_sgd vector_sgds[] = {
    {.lr = 0.1f},
    {.lr = 0.1f, .weight_decay = 1e-4f},
    {.lr = 0.01f, .momentum = 0.9f},
    {.lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-2f},
    {.lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-2f, .nesterov = true},
    {.lr = 3e38f, .momentum = 3e38f, .nesterov = true},
};
enum { VECTOR_SGDS = sizeof vector_sgds / sizeof vector_sgds[0] };

static const struct weft_adam vector_adams[] = {
    {.lr = 0.1f,
     .step_size = 0.19f,
     .root_scale = 3.1f,
     .beta1 = 0.9f,
     .beta2 = 0.999f,
     .eps = 1e-8f,
     .weight_decay = 0.1f},
    {.lr = 0.1f,
     .step_size = 0.1f,
     .root_scale = 1.0f,
     .beta1 = 0.5f,
     .beta2 = 0.9f,
     .eps = 1.0f,
     .weight_decay = 0.1f,
     .decoupled = true},
};
enum { VECTOR_ADAMS = sizeof vector_adams / sizeof vector_adams[0] };

static const struct weft_ftrl vector_ftrl = {.alpha = 0.1f, .beta = 1.0f, .l1 = 0.3f, .l2 = 0.1f};

static const struct weft_lamb vector_lambs[] = {
    {.first_scale = 1.9f,
     .root_scale = 3.1f,
     .beta1 = 0.9f,
     .beta2 = 0.999f,
     .eps = 1e-6f,
     .weight_decay = 0.01f},
    {.first_scale = 1.0f, .root_scale = 1.0f, .beta1 = 0.5f, .beta2 = 0.9f, .eps = 1.0f},
};
enum { VECTOR_LAMBS = sizeof vector_lambs / sizeof vector_lambs[0] };

/* What breaks radix selects: everything equal, in one coarse bucket, apart in the last bit only, +-0,
 * denormals, NaN, Inf. */
static const char *const vector_selects[] = {
    "normal", "wild",   "equal",   "zero",        "two values",   "denormal", "last bits", "middle bits",
    "narrow", "rising", "falling", "mostly zero", "one infinite", "one nan",  "all nan",   "all infinite"};
enum { VECTOR_SELECTS = sizeof vector_selects / sizeof vector_selects[0] };

static inline void vector_select_fill(const char *what, struct sample *sample, float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t word = sample_u64(sample);
        if (strcmp(what, "normal") == 0) x[i] = sample_normal(sample);
        if (strcmp(what, "wild") == 0) x[i] = sample_wild(sample);
        if (strcmp(what, "equal") == 0) x[i] = word & 1 ? 2.5f : -2.5f;
        if (strcmp(what, "zero") == 0) x[i] = word & 1 ? 0.0f : -0.0f;
        if (strcmp(what, "two values") == 0) x[i] = word % 3 ? 1.0f : -7.0f;
        if (strcmp(what, "denormal") == 0) x[i] = sample_from_bits((uint32_t)word & 0x807fffff);
        if (strcmp(what, "last bits") == 0) x[i] = sample_from_bits(0x3f800000 + (uint32_t)(word % 5));
        if (strcmp(what, "middle bits") == 0)
            x[i] = sample_from_bits(0x3f800000 + ((uint32_t)(word % 1000) << 9));
        if (strcmp(what, "narrow") == 0)
            x[i] = 1.0f + (float)(word % 1000) * 3e-8f; /* [1, 1.00003): one bucket of the top 12 bits */
        if (strcmp(what, "rising") == 0) x[i] = (float)i;
        if (strcmp(what, "falling") == 0) x[i] = -(float)(count - i);
        if (strcmp(what, "mostly zero") == 0) x[i] = word % 100 ? 0.0f : sample_normal(sample);
        if (strcmp(what, "one infinite") == 0) x[i] = i == count / 2 ? -INFINITY : sample_normal(sample);
        if (strcmp(what, "one nan") == 0)
            x[i] = i == count / 3 ? sample_from_bits(0xffc12345) : sample_normal(sample);
        if (strcmp(what, "all nan") == 0) x[i] = sample_from_bits(0x7f800001 + (uint32_t)(word & 0x807ffffe));
        if (strcmp(what, "all infinite") == 0) x[i] = word & 1 ? INFINITY : -INFINITY;
    }
}

/* Around the vectors, the blocks of 256, a warp's strip of a GPU's select and its tiles. */
static const size_t vector_select_counts[] = {1,   2,   31,   32,   33,   63,   64,  65,
                                              255, 257, 1000, 2047, 2048, 2049, 4097};
enum { VECTOR_SELECT_COUNTS = sizeof vector_select_counts / sizeof vector_select_counts[0], VECTOR_KS = 5 };

static inline size_t vector_select_k(size_t count, size_t which)
{
    const size_t ks[VECTOR_KS] = {1, count / 100 + 1, count / 2 + 1, count > 1 ? count - 1 : 1, count};
    return ks[which] < count ? ks[which] : count;
}

/* Matrices: around half a warp, a warp, the ranks a kernel holds in registers. */
static const size_t vector_sizes[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 79};
static const size_t vector_ranks[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 64};
enum {
    VECTOR_SIZES = sizeof vector_sizes / sizeof vector_sizes[0],
    VECTOR_RANKS = sizeof vector_ranks / sizeof vector_ranks[0],
    MATRIX_MAX = 80 * 80,
    FACTOR_MAX = 64 * 80
};

#endif
