/* products.c - the specification of dot and of the low-rank products of PowerSGD.
 *
 * Horizontal sums run in 16 lanes (kernels.h): enough independent chains for two AVX2 registers or one
 * AVX-512 register, and a fixed order for all variants. matmul_t and outer have no horizontal sum: every
 * output element adds its terms in index order (matmul_t in bands of rows, which a GPU sums side by side),
 * and the vector runs over output elements. */
#include "kernels/float_bits.h"
#include "kernels/scalar/scalar.h"

enum { LANES = 16 };

double weft_scalar_dot_f32(const float *a, const float *b, size_t count)
{
    double lanes[LANES] = {0};
    for (size_t i = 0; i < count; i++)
        lanes[i % LANES] += (double)a[i] * (double)b[i];
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return lanes[0] == lanes[0] ? lanes[0] : (double)float_from_bits(FLOAT_NAN);
}

static float dot_in_f32(const float *a, const float *b, size_t count)
{
    float lanes[LANES] = {0};
    for (size_t i = 0; i < count; i++)
        lanes[i % LANES] += a[i] * b[i];
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return canonical(lanes[0]);
}

void weft_scalar_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows,
                            size_t cols, size_t rank)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t r = 0; r < rank; r++)
            p[r * p_stride + i] = dot_in_f32(m + i * cols, q + r * cols, cols);
}

uint32_t weft_scalar_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b, float *p,
                                          size_t p_stride, const float *q, size_t rows, size_t cols,
                                          size_t rank)
{
    const uint32_t max_bits = weft_scalar_scale_add_f32(m, a, factor, b, rows * cols);
    weft_scalar_matmul_f32(p, p_stride, m, q, rows, cols, rank);
    return max_bits;
}

/* One band of rows for some columns, from +0. */
static void band_sums(float *sums, const float *m, const float *p, size_t rows, size_t cols, size_t width)
{
    for (size_t j = 0; j < width; j++)
        sums[j] = 0.0f;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < width; j++)
            sums[j] += m[i * cols + j] * p[i];
}

void weft_scalar_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols, size_t rank)
{
    enum { PANEL = 1024 };
    float sums[PANEL];
    for (size_t j = 0; j < rank * cols; j++)
        q[j] = 0.0f;
    for (size_t i = 0; i < rows; i += WEFT_MATMUL_T_BAND)
        for (size_t first = 0; first < cols; first += PANEL)
            for (size_t r = 0; r < rank; r++) {
                const size_t band = rows - i < WEFT_MATMUL_T_BAND ? rows - i : WEFT_MATMUL_T_BAND;
                const size_t width = cols - first < PANEL ? cols - first : PANEL;
                band_sums(sums, m + i * cols + first, p + r * rows + i, band, cols, width);
                for (size_t j = 0; j < width; j++)
                    q[r * cols + first + j] += sums[j];
            }
    for (size_t j = 0; j < rank * cols; j++)
        q[j] = canonical(q[j]);
}

static float outer_element(const float *p, const float *q, size_t rows, size_t cols, size_t rank, size_t i,
                           size_t j)
{
    float sum = p[i] * q[j];
    for (size_t r = 1; r < rank; r++)
        sum += p[r * rows + i] * q[r * cols + j];
    return sum;
}

void weft_scalar_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            out[i * cols + j] = canonical(outer_element(p, q, rows, cols, rank, i, j));
}

void weft_scalar_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols,
                               size_t rank)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            m[i * cols + j] = canonical(m[i * cols + j] - outer_element(p, q, rows, cols, rank, i, j));
}

#define LAZY(name) weft_scalar_##name
#include "kernels/templates/lazy_residual_loops.h"

uint32_t weft_scalar_lazy_residual_add_matmul_f32(float *m, const struct weft_lazy_residual *lazy,
                                                  const float *a, float factor, float *p, const float *q,
                                                  size_t rows, size_t cols, size_t rank)
{
    return lazy_in_bands(m, lazy, a, factor, p, q, rows, cols, rank);
}
