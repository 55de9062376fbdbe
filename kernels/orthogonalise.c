/* orthogonalise.c - an orthonormal basis of a few long vectors, for PowerSGD's P.
 *
 * Every rank must get the same bits and nothing may become NaN, for any gradient: zero (a frozen
 * layer), rank-deficient, or with magnitudes whose squares leave the range of f32. So
 *
 *     1. each vector is scaled by a power of two until its largest element lies in [1, 2): exact, and
 *        invisible in the result, which is normalised anyway. A zero or non-finite vector is dropped;
 *     2. Gram matrix G(i,j) = <p_i, p_j>, f64 in the fixed 16-lane order, brought to a unit diagonal;
 *     3. pivoted Cholesky of it: the next vector is the one of which most is left (the first of equals). When
 *        that is no more than rounding noise, it and all others are dropped;
 *     4. basis = L^-1 p: every element one f64 sum in the order of the pivots, rounded to f32 once;
 *     5. the correction, for vectors that were not nearly orthogonal: 2 to 4 once more on the result, in the
 *        same order, without dropping.
 *
 * Why the Gram matrix and not Gram-Schmidt: all that decides (pivots, noise, coefficients) happens in an r by
 * r matrix of doubles, the long vectors are only read for dots and combined once a pass, in blocks that stay
 * in the first cache. The Gram matrix squares the condition number, but in f64: the noise limit keeps
 * conditions below 1/(32 eps_f32), whose square times eps_f64 is below eps_f32, and the correction takes away
 * what is left of that. Pivoting makes what is dropped independent of the order of the vectors.
 *
 * One code for all instruction sets: P is small (rank <= 64 vectors), only its dots are worth a kernel. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

enum { RANK_MAX = 64, PART = 32 };

/* Conditions up to about 2^8 lose no more than 2^16 eps_f64 * rank: nothing that an f32 could show. */
#define CORRECT_BELOW 0x1p-16

/* basis k stands where vector pivots[k] stood, and is the sum over m <= k of coefficients[k][m] * vector
 * pivots[m]. */
struct basis {
    size_t count;
    double least; /* of what was left of a vector, as a square, when it was chosen */
    size_t pivots[RANK_MAX];
    double coefficients[RANK_MAX][RANK_MAX];
};

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

/* The lower half of the Gram matrix of the candidates, scaled to ones on the diagonal by inverse_norms. */
static void gram(double (*out)[RANK_MAX], double *inverse_norms, const float *p, size_t rows,
                 const struct basis *candidates)
{
    for (size_t a = 0; a < candidates->count; a++) {
        const float *left = p + candidates->pivots[a] * rows;
        inverse_norms[a] = 1.0 / sqrt(weft_kernels()->dot_f32(left, left, rows));
        out[a][a] = 1.0;
        for (size_t b = 0; b < a; b++)
            out[a][b] = weft_kernels()->dot_f32(left, p + candidates->pivots[b] * rows, rows) *
                        inverse_norms[a] * inverse_norms[b];
    }
}

/* Row and column a of a symmetric matrix of which the lower half is there. */
static double entry(double (*matrix)[RANK_MAX], size_t a, size_t b)
{
    return a >= b ? matrix[a][b] : matrix[b][a];
}

/* Cholesky over the candidates; `noise` as a share of a vector's norm, negative: take all, in the order
 * they stand. */
static void factorise(struct basis *basis, double (*matrix)[RANK_MAX], const double *inverse_norms,
                      double noise)
{
    const struct basis candidates = {.count = basis->count};
    double lower[RANK_MAX][RANK_MAX], left[RANK_MAX]; /* <candidate, basis k>; its squared norm that no
                                                       * basis vector has */
    size_t from[RANK_MAX], at[RANK_MAX];
    memcpy(at, basis->pivots, sizeof at);
    for (size_t a = 0; a < candidates.count; a++) {
        from[a] = a;
        left[a] = 1.0;
    }
    size_t k = 0;
    for (; k < candidates.count; k++) {
        size_t best = k;
        for (size_t a = k + 1; a < candidates.count && noise >= 0; a++)
            if (left[from[a]] > left[from[best]]) best = a;
        const size_t pivot = from[best];
        if (noise >= 0 && !(left[pivot] > noise * noise)) break;
        /* the others keep their order: the first of equals */
        memmove(from + k + 1, from + k, (best - k) * sizeof *from);
        from[k] = pivot;
        const double norm = sqrt(left[pivot]);
        basis->least = left[pivot] < basis->least ? left[pivot] : basis->least;
        for (size_t m = 0; m < k; m++) { /* (p - sum over earlier of <p, b> b) / norm, in terms of the p */
            double sum = 0;
            for (size_t b = m; b < k; b++)
                sum += lower[pivot][b] * basis->coefficients[b][m];
            basis->coefficients[k][m] = -sum / norm;
        }
        basis->coefficients[k][k] = inverse_norms[pivot] / norm;
        basis->pivots[k] = at[pivot];
        for (size_t a = k + 1; a < candidates.count; a++) {
            double sum = entry(matrix, from[a], pivot);
            for (size_t b = 0; b < k; b++)
                sum -= lower[from[a]][b] * lower[pivot][b];
            lower[from[a]][k] = sum / norm;
            left[from[a]] -= lower[from[a]][k] * lower[from[a]][k];
        }
    }
    basis->count = k;
}

/* The vectors at the pivots become the basis. */
static void combine(float *p, size_t rows, const struct basis *basis)
{
    double parts[RANK_MAX][PART];
    for (size_t at = 0; at < rows; at += PART) {
        const size_t count = rows - at < PART ? rows - at : PART;
        for (size_t k = 0; k < basis->count; k++) {
            float *to = p + basis->pivots[k] * rows + at;
            double sums[PART] = {0};
            for (size_t i = 0; i < count; i++)
                parts[k][i] = (double)to[i];
            for (size_t i = count; i < PART; i++)
                parts[k][i] = 0.0;
            for (size_t m = 0; m <= k; m++) {
                const double coefficient = basis->coefficients[k][m];
                for (size_t i = 0; i < PART; i++)
                    sums[i] += coefficient * parts[m][i];
            }
            for (size_t i = 0; i < count; i++)
                to[i] = (float)sums[i];
        }
    }
}

size_t weft_orthogonalise(float *p, size_t rows, size_t rank, bool *dropped)
{
    const double noise = 32.0 * sqrt((double)rows) * (double)FLT_EPSILON;
    double matrix[RANK_MAX][RANK_MAX], inverse_norms[RANK_MAX];
    struct basis basis = {.least = 1.0};
    bool kept[RANK_MAX] = {false};
    for (size_t r = 0; r < rank; r++)
        if (scale_to_unit_range(p + r * rows, rows)) basis.pivots[basis.count++] = r;
    for (int pass = 0; pass < (basis.least < CORRECT_BELOW ? 2 : 1); pass++) {
        gram(matrix, inverse_norms, p, rows, &basis);
        factorise(&basis, matrix, inverse_norms, pass == 0 ? noise : -1.0);
        combine(p, rows, &basis);
    }
    for (size_t k = 0; k < basis.count; k++)
        kept[basis.pivots[k]] = true;
    for (size_t r = 0; r < rank; r++) {
        if (!kept[r]) memset(p + r * rows, 0, rows * sizeof *p);
        if (dropped) dropped[r] = !kept[r];
    }
    return basis.count;
}
