/* kernels.h - element-wise arithmetic and small dense linear algebra on host memory.
 *
 * One table of function pointers, filled once at start with the fastest variant this CPU has.
 * `scalar/` is the specification: every other variant gives the same bits on every input (random,
 * NaN, Inf, denormal, any length, any alignment to one element), which tests/kernels checks.
 *
 * Rules of equal bits:
 *   - no contraction of a*b+c, no fast-math, no flush to zero;
 *   - every horizontal sum (dot, norm, matmul) uses ONE order: 16 lanes, lane j takes elements
 *     j, j+16, j+32 ... in order, starting from +0; then lanes fold 8+8, 4+4, 2+2, 1+1
 *     (lane j += lane j+half);
 *   - a NaN that arithmetic produces (sum, scale, sgd, dot, products) is stored as the canonical one,
 *     0x7fc00000: which operand's payload survives is the compiler's choice, so it must not be visible;
 *   - casts round to nearest even, keep denormals and Inf, quiet NaN keeping sign and top payload.
 *
 * Shapes: `count` elements, contiguous. Matrices are row-major, element (i,j) at i*cols + j. Low-rank
 * factors are stored *rank-major*, one contiguous vector per rank: P is (rank, rows), Q is (rank, cols);
 * every product then runs over contiguous memory and a column of P is a plain vector.
 * No function allocates, blocks, fails or keeps a pointer. in/out ranges are equal or disjoint. */
#ifndef WEFT_KERNELS_H
#define WEFT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/optimizer.h"
#include "kernels/parameters.h"
#include "weft/types.h"

/* A lazy residual: m - p^T q, not yet subtracted; m (rows, cols), p (rank, rows), q (rank, cols). */
struct weft_lazy_residual {
    const float *m, *p, *q;
};

struct weft_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "avx512bf16" */

    /* sum: out[i] = a[i] + b[i], in this operand order. out may equal a or b. */
    void (*sum_f32)(float *out, const float *a, const float *b, size_t count);
    void (*sum_i64)(int64_t *out, const int64_t *a, const int64_t *b, size_t count); /* wraps */

    /* sum_tree: every outs[o][i] = factor * T(0, source_count) over sources[s][i] (the tree of struct
     * weft_tree_reduce, below), each source read once; with a factor of 1 the bits of the sum. 1 to 8
     * sources; any number of outs. An out may equal a source; otherwise all are disjoint. */
    void (*sum_tree_f32)(float *const *outs, size_t out_count, const float *const *sources,
                         size_t source_count, float factor, size_t count);
    /* The same with non-temporal stores, if all outs have one alignment: for outs that are no sources, in
     * vectors longer than the caches. */
    void (*sum_tree_stream_f32)(float *const *outs, size_t out_count, const float *const *sources,
                                size_t source_count, float factor, size_t count);
    /* One of the two, which also returns max_abs_bits_f32 of the result. */
    uint32_t (*sum_tree_max_f32)(float *const *outs, size_t out_count, const float *const *sources,
                                 size_t source_count, float factor, size_t count, bool stream);

    /* combine: out[i] = a[i] (op) b[i], in this operand order; out may equal a or b. dtype: f32, f64 or an
     * integer type (narrower floats are widened before); op: sum (also for avg and scaled sum), prod, min,
     * max; and, or, xor for integers. Integers wrap. min and max: a NaN on either side gives the canonical
     * NaN, -0 is below +0. NaN of f64: 0x7ff8000000000000. */
    void (*combine)(enum weft_dtype dtype, enum weft_op op, void *out, const void *a, const void *b,
                    size_t count);

    /* scale: out[i] = in[i] * factor. out may equal in. */
    void (*scale_f32)(float *out, const float *in, float factor, size_t count);

    /* cast between f32 and the 16-bit floats (bits in uint16_t). */
    void (*cast_f32_f16)(uint16_t *out, const float *in, size_t count);
    void (*cast_f16_f32)(float *out, const uint16_t *in, size_t count);
    void (*cast_f32_bf16)(uint16_t *out, const float *in, size_t count);
    void (*cast_bf16_f32)(float *out, const uint16_t *in, size_t count);

    /* SGD with momentum, in this order of single operations (each rounded):
     *   g = grad*grad_scale;  if wd: g = g + wd*w;  if momentum: v = momentum*v + g, and
     *   g = nesterov ? g + momentum*v : v;   w = w - lr*g.
     * velocity (count,) is NULL exactly when momentum is 0. */
    void (*sgd_f32)(float *weights, float *velocity, const float *grad, float grad_scale,
                    const struct weft_sgd *sgd, size_t count);

    /* The other rules of optimizer.h, each operation rounded; arrays disjoint.
     *   adam:     g = grad*grad_scale (+ wd*w);  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*(g*g);
     *             w = w - step_size * (m / (sqrt(v)*root_scale + eps))
     *   adagrad:  s = s + g*g;  w = w - lr * (g / (sqrt(s) + eps))
     *   ftrl:     n' = n + g*g;  z = z + (g - (sqrt(n') - sqrt(n))/alpha * w);
     *             w = |z| <= l1 ? 0 : (sign(z)*l1 - z) / ((beta + sqrt(n'))/alpha + l2) */
    void (*adam_f32)(float *weights, float *first, float *second, const float *grad, float grad_scale,
                     const struct weft_adam *adam, size_t count);
    void (*adagrad_f32)(float *weights, float *sums, const float *grad, float grad_scale, float lr, float eps,
                        float weight_decay, size_t count);
    void (*ftrl_f32)(float *weights, float *z, float *n, const float *grad, float grad_scale,
                     const struct weft_ftrl *ftrl, size_t count);

    /* LAMB in two passes, because its step length depends on two norms of the whole tensor:
     *   lamb_moments: g = grad*grad_scale;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*(g*g);
     *                 d = (m*first_scale) / (sqrt(v)*root_scale + eps), and + wd*w if wd;
     *                 squares_out = {sum of w*w, sum of d*d}, f64 in the fixed 16-lane order
     *   lamb_apply:   d as above, from the m, v and w of lamb_moments;  w = w - rate*d */
    void (*lamb_moments_f32)(float *first, float *second, const float *weights, const float *grad,
                             float grad_scale, const struct weft_lamb *lamb, size_t count,
                             double squares_out[2]);
    void (*lamb_apply_f32)(float *weights, const float *first, const float *second,
                           const struct weft_lamb *lamb, float rate, size_t count);

    /* dot in the fixed 16-lane order; f32 inputs widened, accumulated in f64. */
    double (*dot_f32)(const float *a, const float *b, size_t count);

    /* true when every element is finite. */
    bool (*finite_f32)(const float *in, size_t count);

    /* bits of the largest |x| (0 for none): a float pattern without its sign; >= 0x7f800000: not all are
     * finite. */
    uint32_t (*max_abs_bits_f32)(const float *in, size_t count);

    /* The indices i, rising, of all in[i] whose bits without the sign are at least floor_bits (<=
     * 0x7fffffff); returns how many. indices_out holds `count`: entries past the result are
     * undefined. count <= 2^32 - 1. */
    size_t (*indices_above_f32)(uint32_t *indices_out, const float *in, size_t count, uint32_t floor_bits);

    /* Error feedback: out[i] = a[i]*factor + b[i] (two roundings); returns max_abs_bits of out. out may
     * equal b. */
    uint32_t (*scale_add_f32)(float *out, const float *a, float factor, const float *b, size_t count);

    /* scale_add and a select by threshold in one pass: besides writing out, appends to indices_out the
     * rising numbers first + i of all out[i] whose bits without the sign are at least floor_bits, and to
     * values_out their values; returns how many. *max_bits is raised to max_abs_bits of out. Both lists
     * hold `count`. */
    size_t (*scale_add_above_f32)(float *out, const float *a, float factor, const float *b, size_t count,
                                  uint32_t floor_bits, uint32_t first, uint32_t *indices_out,
                                  float *values_out, uint32_t *max_bits);

    /* Block quantisation with power-of-two scales: block b holds elements 256 b .. 256 b + 255 and scale
     * 2^(E-127), E one byte; `limit` is 127 or 7. scale_add_blocks: scale_add, and per block the smallest
     * E that keeps every |out| at most limit * scale (weft_block_exponent; 255 where out is not finite);
     * returns max_abs_bits of out. */
    uint32_t (*scale_add_blocks_f32)(float *out, const float *a, float factor, const float *b, size_t count,
                                     unsigned limit, uint8_t *exponents_out);
    /* quantise: code = x/scale rounded (noise NULL: to nearest, ties to even; else down after adding (byte
     * + 1/2)/256, byte drawn for this element), clamped to +-limit; and x becomes the residual x -
     * code*scale. x finite. E <= 254. */
    void (*quantise_f32)(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count, unsigned limit,
                         const struct weft_noise *noise);
    /* Sums of codes: exact as long as they fit. */
    void (*add_i8_i16)(int16_t *sums, const int8_t *codes, size_t count);
    void (*add_i8_i32)(int32_t *sums, const int8_t *codes, size_t count);
    /* out[i] = sums[i] * scale of its block * factor (in this order). */
    void (*dequantise_i16_f32)(float *out, const int16_t *sums, const uint8_t *exponents, float factor,
                               size_t count);
    void (*dequantise_i32_f32)(float *out, const int32_t *sums, const uint8_t *exponents, float factor,
                               size_t count);

    /* 8-bit floats under block scales 2^(E-127), as above: code = x/scale to nearest even, |x| at most the
     * format's largest * scale (weft_fp8_exponent), x finite; x becomes the residual x - code*scale. Back:
     * out = code*scale, exact. */
    void (*quantise_fp8_f32)(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                             enum weft_fp8 format);
    void (*dequantise_fp8_f32)(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count,
                               enum weft_fp8 format);
    /* Signs: per block of 256 the mean |x| (sum in f64 by the 16-lane order, rounded once), and one bit
     * per element, the first the lowest of its byte, set for x < 0; unused bits of the last byte are 0. x
     * becomes x - (+-mean), x finite. */
    void (*quantise_sign_f32)(uint8_t *bits_out, float *scales_out, float *x, size_t count);
    void (*dequantise_sign_f32)(float *out, const uint8_t *bits, const float *scales, size_t count);

    /* PowerSGD products; M (rows, cols), P (rank, rows), Q (rank, cols), rank <= 64.
     *   matmul:     P = M Q         P(r,i): dot of row i of M and row r of Q in the fixed 16-lane order, f32
     *   matmul_t:   Q = M^T P       Q(r,j): in bands of WEFT_MATMUL_T_BAND rows, each from +0 and over its
     *                               rows in order, f32;
     *                               then from +0 over the bands in order
     *   outer:      out = P^T Q     out(i,j): the r = 0 product, then plus r = 1, 2, ... in order, f32
     *   outer_sub:  m = m - P^T Q   the outer sum first, then one subtraction: the low-rank residual
     * p_stride: elements between two ranks of P (>= rows): a caller may work on a band of rows. */
    void (*matmul_f32)(float *p, size_t p_stride, const float *m, const float *q, size_t rows, size_t cols,
                       size_t rank);
    /* scale_add and matmul in one pass: m = a*factor + b, all (rows, cols), then P = M Q as matmul; returns
     * max_abs_bits of m. m may equal b. */
    uint32_t (*scale_add_matmul_f32)(float *m, const float *a, float factor, const float *b, float *p,
                                     size_t p_stride, const float *q, size_t rows, size_t cols, size_t rank);
    /* The same for a lazy residual: m = a*factor + (lazy->m - lazy->p^T lazy->q) by the operations of
     * outer_sub and scale_add, then P = M Q (p (rank, rows)). m and lazy->m are disjoint. */
    uint32_t (*lazy_residual_add_matmul_f32)(float *m, const struct weft_lazy_residual *lazy, const float *a,
                                             float factor, float *p, const float *q, size_t rows, size_t cols,
                                             size_t rank);
    void (*matmul_t_f32)(float *q, const float *m, const float *p, size_t rows, size_t cols, size_t rank);
    void (*outer_f32)(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank);
    void (*outer_sub_f32)(float *m, const float *p, const float *q, size_t rows, size_t cols, size_t rank);
};

/* weft_kernels() - the table for this CPU (environment WEFT_KERNELS=scalar|avx2|avx512 overrides; an
 * unknown or unavailable name falls back to the best one). Any thread; never NULL; same pointer for life. */
const struct weft_kernels *weft_kernels(void);

/* weft_kernels_by_name() - one variant, or NULL when this CPU or build does not have it. */
const struct weft_kernels *weft_kernels_by_name(const char *name);

/* weft_block_exponent() - E of a block whose largest |x| has the bits max_bits (finite): 0 for an all-zero
 * block, else 1..254, the smallest with |x| / 2^(E-127) <= limit; limit = 2^n - 1 <= 127. */
uint8_t weft_block_exponent(uint32_t max_bits, unsigned limit);

/* weft_fp8_exponent() - likewise for 8-bit floats: the smallest E with |x| / 2^(E-127) <= the format's
 * largest number. */
uint8_t weft_fp8_exponent(uint32_t max_bits, enum weft_fp8 format);

/* weft_cast_fp8_f32(), weft_cast_f32_fp8() - arrays of WEFT_F8_E4M3 or WEFT_F8_E5M2, without a scale. To
 * nearest even; too large becomes Inf (e5m2) or NaN (e4m3 has no Inf); NaN is the positive canonical one,
 * 0x7f and 0x7e. */
void weft_cast_fp8_f32(enum weft_dtype dtype, float *out, const uint8_t *in, size_t count);
void weft_cast_f32_fp8(enum weft_dtype dtype, uint8_t *out, const float *in, size_t count);

/* weft_lamb_step() - one step of LAMB on a whole tensor (You et al. 2020, algorithm 2, trust ratio without
 * a bound): moments, both norms (blocks of WEFT_LAMB_BLOCK elements in the 16-lane order, the blocks by
 * the tree T), then w = w - lr * |w|/|d| * d. weights, first, second (count,). */
void weft_lamb_step(const struct weft_lamb *lamb, float lr, float *weights, float *first, float *second,
                    const float *grad, float grad_scale, size_t count);

/* weft_noise_of() - key of the stochastic rounding of one step, tensor and worker: the first two words of
 * Philox with key `seed` and counter {tensor, worker}, so no two of them draw the same numbers. */
struct weft_noise weft_noise_of(uint64_t seed, uint64_t tensor, uint32_t worker, uint64_t step);

/* weft_sample_strata() - one index of each of k strata [floor(j n / k), floor((j + 1) n / k)) of n
 * elements, k <= n < 2^32: rising, each index of a stratum with equal probability up to 2^-32 of its
 * width. Draw j is word j % 4 of Philox with counter {j / 4, 0, step}; noise->first_block is not used. */
void weft_sample_strata(uint32_t *indices_out, uint64_t count, uint64_t k, const struct weft_noise *noise);

/* weft_orthogonalise() - replace P (rank, rows), rank-major, rank <= 64, by an orthonormal basis of its
 * vectors' span. Each vector is scaled by a power of two (so 1e-40 and 1e30 are equivalent), then a
 * pivoted Cholesky factorisation of the f64 Gram matrix, in the fixed order, gives the basis, and a second
 * one corrects it. A vector whose part outside the span of earlier pivots is below 32*sqrt(rows)*eps_f32
 * of its norm (or that is zero, or not finite) is set to zero: rank-deficient, zero and duplicate columns
 * never give NaN. A smaller part is rounding noise of the product P. Elements are orthonormal to about
 * eps_f32. The same bits on every instruction set. Returns the number of vectors kept. `dropped` (rank,)
 * may be NULL; true where a vector was zeroed. Source: Vogels et al. 2019 (PowerSGD), section 3;
 * CholeskyQR2, Yamamoto et al. 2015, with pivots. */
size_t weft_orthogonalise(float *p, size_t rows, size_t rank, bool *dropped);

/* weft_select_top() - the k largest |x| of x (count,) by bit pattern (so NaN above Inf), ties to the smaller
 * index. Writes k indices in rising order. `scratch` (count,) uint32. 1 <= k <= count < 2^32. Exact and
 * deterministic: radix select on the bit pattern of |x|. */
void weft_select_top(uint32_t *indices_out, const float *x, size_t count, size_t k,
                     uint32_t *scratch);

/* The k largest out of candidates: `values` (candidate_count,) of all elements at or above some threshold,
 * in index order, k <= candidate_count. Writes their positions to picked_out (k,), rising; returns the
 * bits of the k-th largest |value|. The same k as weft_select_top of the whole: elements that are no
 * candidates are smaller. */
uint32_t weft_select_among(uint32_t *picked_out, const float *values, size_t candidate_count, size_t k);

/* ---- The canonical tree of sums, T --------------------------------------------------------
 * T(a,b) over rank indices: one rank is its contribution; else T(a,a+h) + T(a+h,b), h the largest
 * power of two below b-a. Fed in rank order it is a binary counter of partials: at most
 * log2(ranks)+1 buffers live at once. The shard and each reproducible plan sum by it. */
/* weft_sum_sources_f32() - factor * T over 1 to WEFT_SUM_SOURCES_MAX sources; `out` and each source are
 * (count,). The bits are those of weft_tree_reduce and scale. `out` overlaps no source. Returns
 * max_abs_bits_f32 of `out`. */
#define WEFT_SUM_SOURCES_MAX 64u
uint32_t weft_sum_sources_f32(float *out, const float *const *sources, size_t source_count, float factor,
                              size_t count);

struct weft_tree_reduce {
    size_t count;                /* elements of one contribution */
    enum weft_dtype dtype;       /* F32, or the type of weft_tree_reduce_init_op; the float pointers then
                                  * point to that type */
    enum weft_op op;
    uint32_t added;              /* ranks added so far */
    uint32_t depth;              /* live partials */
    float *partials[33];         /* borrowed buffers, oldest (left) first */
    uint32_t spans[33];          /* ranks each one covers */
    bool finds_max;              /* f32 sums: the caller sets it after init if it needs max_bits */
    uint32_t max_bits;           /* largest max_abs_bits_f32 of all partial sums, which end with the sum; not
                                  * of a single contribution */
};

void weft_tree_reduce_init(struct weft_tree_reduce *reduce, size_t count);
/* The same tree over another type and operation of kernels' combine. */
void weft_tree_reduce_init_op(struct weft_tree_reduce *reduce, size_t count, enum weft_dtype dtype,
                              enum weft_op op);

/* weft_tree_reduce_add() - adds the contribution of the next rank, `buffer` (count,) f32. The tree borrows
 * `buffer` as a partial until it is merged. freed_out gets the buffers that are free again (up to 32);
 * returns their number. */
uint32_t weft_tree_reduce_add(struct weft_tree_reduce *reduce, float *buffer, float *freed_out[32]);

/* weft_tree_reduce_finish() - merges the rest and returns the buffer of the sum (NULL if none was added).
 * freed_out gets the other buffers, *freed_count_out their number. */
float *weft_tree_reduce_finish(struct weft_tree_reduce *reduce, float *freed_out[32],
                               uint32_t *freed_count_out);

/* The same in pieces, for callers with a time limit per step. weft_tree_reduce_merge() merges elements
 * from..from+count of the next contribution, stored at `piece`, with all its partials. After each element
 * was merged once, in any order, weft_tree_reduce_push() adds `buffer` to the tree, as
 * weft_tree_reduce_add() does. If weft_tree_reduce_needs_merge(), the pieces need not lie in `buffer`: it
 * is freed unread. At the end weft_tree_reduce_merge_rest() merges the rest and returns the buffer that
 * then holds these elements of the sum; weft_tree_reduce_close() returns the buffers and the sum. */
bool weft_tree_reduce_needs_merge(const struct weft_tree_reduce *reduce);
void weft_tree_reduce_merge(struct weft_tree_reduce *reduce, const void *piece, size_t from, size_t count);
uint32_t weft_tree_reduce_push(struct weft_tree_reduce *reduce, float *buffer, float *freed_out[32]);
float *weft_tree_reduce_merge_rest(struct weft_tree_reduce *reduce, size_t from, size_t count);
float *weft_tree_reduce_close(struct weft_tree_reduce *reduce, float *freed_out[32],
                              uint32_t *freed_count_out);

/* weft_tree_reduce_buffer_count() - buffers that a tree of `ranks` holds at most, including the one being
 * added. */
uint32_t weft_tree_reduce_buffer_count(uint32_t ranks);

#include "kernels/device_optimizer.h" /* update rules on a device */
#include "kernels/device_table.h" /* kernels on a device */

/* If a number is not finite, max_abs_bits_f32 of the array is at least this. */
#define WEFT_F32_INFINITY_BITS 0x7f800000u
/* Masks of the exponent bits of 16-bit floats: all 1 in a number that is not finite. */
#define WEFT_F16_EXPONENT 0x7c00u
#define WEFT_BF16_EXPONENT 0x7f80u
/* Returns whether all values (count,) of a 16-bit float type are finite. */
static inline bool weft_halves_finite(const uint16_t *values, size_t count, uint32_t exponent)
{
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) found |= (values[i] & exponent) == exponent;
    return found == 0;
}

#endif
