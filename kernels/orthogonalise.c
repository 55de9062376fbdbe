/* orthogonalise.c - an orthonormal basis of a few long vectors, for PowerSGD's P.
 *
 * Every rank must get the same bits and nothing may become NaN, whatever gradient comes: zero (a frozen
 * layer), rank-deficient, or with magnitudes whose squares leave the range of f32. So
 *
 *     1. each vector is scaled by a power of two until its largest element lies in [1, 2): exact, and
 *        invisible in the result, which is normalised anyway;
 *     2. the earlier basis vectors are subtracted, twice (once leaves an error of kappa * eps);
 *     3. what is left is normalised, or dropped when it is no more than rounding noise.
 *
 * Dots and norms are f64 in the fixed 16-lane order; elements are stored as f32 after each projection.
 * One code for all instruction sets: P is small (rank <= 64 vectors), only its dots are worth a kernel. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

/* False when the vector is zero or holds an Inf or NaN. */
static bool scale_to_unit_range(float *vector, size_t rows)
{
    const uint32_t max_bits = weft_kernels()->max_abs_bits_f32(vector, rows);
    if (max_bits == 0 || max_bits >= FLOAT_INF) return false;
    const double factor = ldexp(1.0, -ilogbf(float_from_bits(max_bits)));
    for (size_t i = 0; i < rows; i++)
        vector[i] = (float)((double)vector[i] * factor);
    return true;
}

static void subtract_projections(float *vector, const float *basis, size_t basis_count, size_t rows)
{
    for (size_t b = 0; b < basis_count; b++) {
        const float *unit = basis + b * rows;
        const double along = weft_kernels()->dot_f32(unit, vector, rows);
        if (along == 0.0) continue; /* also the dropped ones, which are all zero */
        for (size_t i = 0; i < rows; i++)
            vector[i] = (float)((double)vector[i] - along * (double)unit[i]);
    }
}

static double norm(const float *vector, size_t rows)
{
    return sqrt(weft_kernels()->dot_f32(vector, vector, rows));
}

size_t weft_orthogonalise(float *p, size_t rows, size_t rank, bool *dropped)
{
    const double noise = 32.0 * sqrt((double)rows) * (double)FLT_EPSILON;
    size_t kept = 0;
    for (size_t r = 0; r < rank; r++) {
        float *vector = p + r * rows;
        bool keep = scale_to_unit_range(vector, rows);
        if (keep) {
            const double before = norm(vector, rows);
            subtract_projections(vector, p, r, rows);
            subtract_projections(vector, p, r, rows);
            const double after = norm(vector, rows);
            keep = after > noise * before;
            for (size_t i = 0; keep && i < rows; i++)
                vector[i] = (float)((double)vector[i] / after);
        }
        if (!keep) memset(vector, 0, rows * sizeof *vector);
        if (dropped) dropped[r] = !keep;
        kept += keep;
    }
    return kept;
}
