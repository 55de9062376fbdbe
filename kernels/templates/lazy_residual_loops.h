/* lazy_residual_loops.h - a low-rank residual formed, the gradient added to it and the sum multiplied, in
 * bands of rows that stay in the second-level cache between the three. Each variant compiles this text
 * with its own kernels, defining LAZY(name) first. Private to the module. */

/* 64 KiB: four rows of 4,096 columns measured best. */
enum { LAZY_RANK_MAX = 64, LAZY_BAND_ELEMS = 1 << 14, LAZY_BAND_ROWS_MAX = 64 };

static uint32_t lazy_in_bands(float *m, const struct weft_lazy_residual *lazy, const float *a, float factor,
                              float *p, const float *q, size_t rows, size_t cols, size_t rank)
{
    float band_p[LAZY_RANK_MAX * LAZY_BAND_ROWS_MAX];
    const size_t fitting =
        LAZY_BAND_ELEMS / cols < LAZY_BAND_ROWS_MAX ? LAZY_BAND_ELEMS / cols : LAZY_BAND_ROWS_MAX;
    const size_t band = fitting < 1 ? 1 : fitting;
    uint32_t max_bits = 0;
    for (size_t row = 0; row < rows; row += band) {
        const size_t count = rows - row < band ? rows - row : band, at = row * cols;
        for (size_t r = 0; r < rank; r++)
            memcpy(band_p + r * count, lazy->p + r * rows + row, count * sizeof *band_p);
        memcpy(m + at, lazy->m + at, count * cols * sizeof *m);
        LAZY(outer_sub_f32)(m + at, band_p, lazy->q, count, cols, rank);
        const uint32_t bits = LAZY(scale_add_f32)(m + at, a + at, factor, m + at, count * cols);
        LAZY(matmul_f32)(p + row, rows, m + at, q, count, cols, rank);
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}
