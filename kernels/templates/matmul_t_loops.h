/* matmul_t_loops.h - Q = M^T P in bands of rows and panels of columns: the walk that the vector variants
 * share.
 *
 * Included by a variant's products.c behind its own WIDTH, ROW_BLOCK, PANEL_ELEMS, canonical() and
 *
 *     add_rows(sums, m, p, p_stride, cols, width, row_count, rank)
 *
 * sums (rank, width): row r += sum over the rows of m(i, :) * p(r, i), in row order. */

/* A band of rows for one panel of columns, all ranks; sums (rank, width) and a few rows of M stay in the
 * first-level cache. */
static void band_sums(float *sums, const float *m, const float *p, size_t p_stride, size_t rows, size_t cols,
                      size_t width, size_t rank)
{
    size_t i = 0;
    for (size_t j = 0; j < rank * width; j++)
        sums[j] = 0.0f;
    for (; i + ROW_BLOCK <= rows; i += ROW_BLOCK)
        add_rows(sums, m + i * cols, p + i, p_stride, cols, width, ROW_BLOCK, rank);
    for (; i < rows; i++)
        add_rows(sums, m + i * cols, p + i, p_stride, cols, width, 1, rank);
}

/* panel: columns at a time; rank * panel is at most PANEL_ELEMS. */
static void matmul_t_in_bands(float *q, const float *m, const float *p, size_t rows, size_t cols, size_t rank,
                              size_t panel)
{
    float sums[PANEL_ELEMS];
    for (size_t j = 0; j < rank * cols; j++)
        q[j] = 0.0f;
    for (size_t first = 0; first < cols; first += panel)
        for (size_t i = 0; i < rows; i += WEFT_MATMUL_T_BAND) {
            const size_t width = cols - first < panel ? cols - first : panel;
            const size_t band = rows - i < WEFT_MATMUL_T_BAND ? rows - i : WEFT_MATMUL_T_BAND;
            band_sums(sums, m + i * cols + first, p + i, rows, band, cols, width, rank);
            for (size_t r = 0; r < rank; r++)
                for (size_t j = 0; j < width; j++)
                    q[r * cols + first + j] += sums[r * width + j];
        }
    for (size_t j = 0; j < rank * cols; j++)
        q[j] = canonical(q[j]);
}
