/* owed_loops.h - a low-rank residual formed, the gradient added to it and the sum multiplied, in bands of rows that stay in
 * the second-level cache between the three. Each variant compiles this text with its own kernels, defining OWED(name) first.
 * Private to the kernels room. */

/* 64 KiB: four rows of 4,096 columns measured best. */
enum { OWED_RANK_MAX = 64, OWED_BAND_ELEMS = 1 << 14, OWED_BAND_ROWS_MAX = 64 };

static uint32_t owed_in_bands(float *m, const struct weft_owed *owed, const float *a, float factor, float *p, const float *q,
                              size_t rows, size_t cols, size_t rank)
{
    float band_p[OWED_RANK_MAX * OWED_BAND_ROWS_MAX];
    const size_t fitting = OWED_BAND_ELEMS / cols < OWED_BAND_ROWS_MAX ? OWED_BAND_ELEMS / cols : OWED_BAND_ROWS_MAX;
    const size_t band = fitting < 1 ? 1 : fitting;
    uint32_t max_bits = 0;
    for (size_t row = 0; row < rows; row += band) {
        const size_t count = rows - row < band ? rows - row : band, at = row * cols;
        for (size_t r = 0; r < rank; r++)
            memcpy(band_p + r * count, owed->p + r * rows + row, count * sizeof *band_p);
        memcpy(m + at, owed->m + at, count * cols * sizeof *m);
        OWED(outer_sub_f32)(m + at, band_p, owed->q, count, cols, rank);
        const uint32_t bits = OWED(scale_add_f32)(m + at, a + at, factor, m + at, count * cols);
        OWED(matmul_f32)(p + row, rows, m + at, q, count, cols, rank);
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}
