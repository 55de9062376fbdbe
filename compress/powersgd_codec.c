/* powersgd_codec.c - the worker's side of low-rank compression with error feedback (Vogels et al., NeurIPS
 * 2019).
 *
 *     encode(0)   M = grad * scale + e              P_i = M Q
 *     take(0)     P^ = basis of sum P_i             (orthogonalised once, by the combiner)
 *     encode(1)   Q_i = M^T P^                      e' = M - P^ Q_i^T
 *     take(1)     sum Q_i
 *     finish      out = P^ (sum Q_i)^T * scale
 *     commit      e = e',  Q = sum Q_i, each column scaled by a power of two to [1, 2)
 *
 * With several iterations Q = sum Q_i, its columns scaled as at commit, goes back into encode(0)'s product
 * with the same M (rounds 2, 3 and so on); the residual is formed in the last round. One iteration a step
 * with the warm start suffices where gradients of one step resemble those of the next; more turn the basis
 * faster, for the price of two rounds each.
 *
 * Choices that matter:
 *   - the residual is *local*: M - P^ Q_i^T with the own Q_i. Taking the mean of all Q instead (common in the
 *     wild) also stores every worker's deviation from the mean, which never cancels and grows like a random
 *     walk.
 *   - warm start: the next step begins with this step's Q, so repeated steps are a power iteration. Only its
 *     directions matter (P is orthogonalised), so each column is scaled, exactly, to keep products in range.
 *   - a column that vanished (P^ had it dropped: zero gradient, duplicate directions, true rank below ours)
 *     would stay zero for ever; it is drawn anew from a generator keyed by (seed, step, iteration, column):
 *     the same on all ranks.
 *   - magnitudes from 2^120 count as non-finite: below that no product or sum of this file can overflow.
 *
 * The residual is lazy: e' is not formed at the end of a step; commit keeps M (in `residual`) and the factors
 * P^ and Q_i, and the next encode subtracts them while it reads M anyway, before the sum with the gradient.
 * The same operations on every element in the same order, so the same bits. What moves for each element of M:
 * 12 bytes in encode(0) (M of before, the gradient, M), 4 in encode(1), 4 in finish: 20 instead of 28, and
 * that is what `weft bench kernels` counts. A checkpoint, the norm and rescale form it first (materialise).
 *
 * With stacked=1 the first dimension counts matrices: layers of one shape that a model keeps in one array.
 * Each has its own factors and basis; all of a round's are one contribution, so that 32 layers wait for one
 * exchange instead of 32.
 *
 * M of the open step lives in `shadow`; commit swaps, abandon needs to do nothing. Factors are rank-major. */
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "compress/powersgd.h"
#include "kernels/kernels.h"

struct powersgd_codec {
    struct weft_codec base;
    size_t rows, cols, rank;
    size_t matrices;            /* of that shape, one after the other; all factors likewise */
    uint64_t steps;             /* committed so far: keys the generator */
    float *q;                   /* owned (matrices, rank, cols), as all of Q below: warm start */
    float *q_next;              /* owned (rank, cols): what the later iterations of a step begin with */
    float *sent[WEFT_CODEC_ROUNDS_MAX]; /* owned: this step's contributions, kept for a retry */
    float *basis;               /* owned (rank, rows): P^ */
    float *lazy_p, *lazy_q;     /* owned (rank, rows), (rank, cols): e = residual - lazy_p^T lazy_q, if
                                 * residual_is_lazy */
    bool residual_is_lazy;
    float *q_sum, *q_scaled;    /* owned (rank, cols) */
};

static bool in_range(const float *values, size_t count)
{
    return weft_kernels()->max_abs_bits_f32(values, count) < CODEC_MAGNITUDE_LIMIT_BITS;
}

static size_t count_of(const struct powersgd_codec *self, uint32_t round)
{
    return powersgd_count(&self->base.spec, &self->base.shape, round);
}

/* M = grad * scale + e and P = M Q in one walk over memory. */
static enum weft_status encode_first(struct powersgd_codec *self, const float *grad, float grad_scale)
{
    const struct weft_kernels *kernels = weft_kernels();
    const size_t rows = self->rows, cols = self->cols, rank = self->rank;
    uint32_t max_bits = 0;
    for (size_t b = 0; b < self->matrices; b++) {
        const size_t at = b * rows * cols, p_at = b * rank * rows, q_at = b * rank * cols;
        const struct weft_lazy_residual lazy = {self->base.residual + at, self->lazy_p + p_at,
                                                self->lazy_q + q_at};
        float *m = self->base.shadow + at, *p = self->sent[0] + p_at;
        const uint32_t bits = self->residual_is_lazy
                                  ? kernels->lazy_residual_add_matmul_f32(m, &lazy, grad + at, grad_scale, p,
                                                                          self->q + q_at, rows, cols, rank)
                                  : kernels->scale_add_matmul_f32(m, grad + at, grad_scale, lazy.m, p, rows,
                                                                  self->q + q_at, rows, cols, rank);
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits >= CODEC_MAGNITUDE_LIMIT_BITS ? WEFT_ERR_INVALID : WEFT_OK;
}

/* The products of the later rounds: P = M Q_next, or Q = M^T P^. */
static void encode_later(struct powersgd_codec *self, uint32_t round)
{
    const struct weft_kernels *kernels = weft_kernels();
    const size_t rows = self->rows, cols = self->cols, rank = self->rank;
    for (size_t b = 0; b < self->matrices; b++) {
        const float *m = self->base.shadow + b * rows * cols;
        const size_t p_at = b * rank * rows, q_at = b * rank * cols;
        if (round % 2 == 0)
            kernels->matmul_f32(self->sent[round] + p_at, rows, m, self->q_next + q_at, rows, cols, rank);
        else kernels->matmul_t_f32(self->sent[round] + q_at, m, self->basis + p_at, rows, cols, rank);
    }
}

static void materialise(struct weft_codec *codec)
{
    struct powersgd_codec *self = (struct powersgd_codec *)codec;
    for (size_t b = 0; b < self->matrices && self->residual_is_lazy; b++)
        weft_kernels()->outer_sub_f32(
            codec->residual + b * self->rows * self->cols, self->lazy_p + b * self->rank * self->rows,
            self->lazy_q + b * self->rank * self->cols, self->rows, self->cols, self->rank);
    self->residual_is_lazy = false;
}

static void next_q(struct powersgd_codec *self, float *q, uint32_t iteration);

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct powersgd_codec *self = (struct powersgd_codec *)codec;
    if (round > 0 && round % 2 == 0) next_q(self, self->q_next, round / 2);
    if (round == 0) WEFT_TRY(encode_first(self, grad, grad_scale));
    else encode_later(self, round);
    if (!in_range(self->sent[round], count_of(self, round))) return WEFT_ERR_INVALID;
    return codec_send(codec, round, self->sent[round], count_of(self, round) * sizeof(float), out, bytes_out);
}

/* basis and q_sum are read only after a take that succeeded, so they may be written before the checks end. */
static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct powersgd_codec *self = (struct powersgd_codec *)codec;
    const size_t count = count_of(self, round);
    const bool basis = round % 2 == 0;
    if (bytes != count * sizeof(float)) return WEFT_ERR_MALFORMED;
    if (basis) return powersgd_take_basis(self->basis, aggregate, count);
    memcpy(self->q_sum, aggregate, bytes);
    return WEFT_OK;
}

enum weft_status powersgd_take_basis(float *basis, const void *aggregate, size_t count)
{
    memcpy(basis, aggregate, count * sizeof *basis);
    /* Elements of unit vectors: a peer's nonsense must not get into the residual. 0x3f808000 is 1 + 2^-8. */
    return weft_kernels()->max_abs_bits_f32(basis, count) > 0x3f808000u ? WEFT_ERR_MALFORMED : WEFT_OK;
}

void powersgd_decode(const struct weft_codec_spec *spec, const struct weft_shape *shape, const float *basis,
                     const float *q_sum, float *q_scaled, float scale, float *out)
{
    const size_t rows = matrix_rows(spec, shape), cols = matrix_cols(spec, shape), rank = spec->rank;
    const size_t matrices = matrix_count(spec, shape);
    weft_kernels()->scale_f32(q_scaled, q_sum, scale, matrices * rank * cols);
    for (size_t b = 0; b < matrices; b++)
        weft_kernels()->outer_f32(out + b * rows * cols, basis + b * rank * rows, q_scaled + b * rank * cols,
                                  rows, cols, rank);
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct powersgd_codec *self = (struct powersgd_codec *)codec;
    powersgd_decode(&codec->spec, &codec->shape, self->basis, self->q_sum, self->q_scaled, scale, out);
    return WEFT_OK;
}

/* ---- the warm start ---- */

/* splitmix64's finaliser (Steele, Lea, Flood 2014): a counter in, 64 well-mixed bits out. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Nearly normal: the sum of four 16-bit uniforms, an integer, so no rounding can differ between machines. */
static void random_column(float *column, size_t count, uint64_t seed, uint64_t step, uint64_t rank_index)
{
    const uint64_t key = mix(mix(mix(seed + 0x9e3779b97f4a7c15u) ^ step) + rank_index);
    for (size_t j = 0; j < count; j++) {
        const uint64_t word = mix(key + j * 0x9e3779b97f4a7c15u);
        const int32_t sum = (int32_t)(word & 0xffff) + (int32_t)(word >> 16 & 0xffff) +
                            (int32_t)(word >> 32 & 0xffff) + (int32_t)(word >> 48) - 131070;
        column[j] = (float)sum * 0x1p-16f;
    }
}

void powersgd_next_q(const struct weft_codec_spec *spec, const struct weft_shape *shape, const float *q_sum,
                     uint64_t step, uint32_t iteration, float *q)
{
    const size_t cols = matrix_cols(spec, shape), columns = matrix_count(spec, shape) * spec->rank;
    for (size_t r = 0; r < columns; r++) { /* every column of every matrix */
        const float *from = q_sum + r * cols;
        float *to = q + r * cols, max;
        const uint32_t max_bits = weft_kernels()->max_abs_bits_f32(from, cols);
        if (max_bits == 0 || max_bits >= WEFT_F32_INFINITY_BITS) {
            random_column(to, cols, spec->seed, step, (uint64_t)iteration << 32 | r);
            continue;
        }
        memcpy(&max, &max_bits, sizeof max);
        const double factor = ldexp(1.0, -ilogbf(max));
        for (size_t j = 0; j < cols; j++)
            to[j] = (float)((double)from[j] * factor);
    }
}

void powersgd_first_q(const struct weft_codec_spec *spec, const struct weft_shape *shape, float *q)
{
    const size_t cols = matrix_cols(spec, shape), columns = matrix_count(spec, shape) * spec->rank;
    for (size_t r = 0; r < columns; r++)
        random_column(q + r * cols, cols, spec->seed, 0, r);
}

static void next_q(struct powersgd_codec *self, float *q, uint32_t iteration)
{
    powersgd_next_q(&self->base.spec, &self->base.shape, self->q_sum, self->steps, iteration, q);
}

static void commit(struct weft_codec *codec)
{
    struct powersgd_codec *self = (struct powersgd_codec *)codec;
    self->steps++;
    codec_swap(&self->lazy_p, &self->basis);
    codec_swap(&self->lazy_q, &self->sent[codec->rounds - 1]);
    self->residual_is_lazy = true;
    next_q(self, self->q, 0);
}

static void state(struct weft_codec *codec, struct codec_state *state)
{
    struct powersgd_codec *self = (struct powersgd_codec *)codec;
    state->steps = &self->steps;
    state->values[1] = self->q;
    state->counts[1] = self->matrices * self->rank * self->cols;
}

/* ---- life ---- */

static void powersgd_free(struct weft_codec *codec)
{
    struct powersgd_codec *self = (struct powersgd_codec *)codec;
    float *const all[] = {self->q,        self->q_next, self->basis, self->q_sum,
                          self->q_scaled, self->lazy_p, self->lazy_q};
    for (uint32_t round = 0; round < WEFT_CODEC_ROUNDS_MAX; round++)
        weft_free_bytes(codec->env, self->sent[round]);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        weft_free_bytes(codec->env, all[i]);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops powersgd_ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .materialise = materialise,
    .state = state,
    .free = powersgd_free,
};

struct weft_codec *powersgd_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                         const struct weft_shape *shape)
{
    struct powersgd_codec *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base = (struct weft_codec){.ops = &powersgd_ops, .env = env};
    self->matrices = matrix_count(spec, shape);
    self->rows = matrix_rows(spec, shape);
    self->cols = matrix_cols(spec, shape);
    self->rank = spec->rank;

    const size_t p_count = powersgd_count(spec, shape, 0), q_count = powersgd_count(spec, shape, 1);
    const struct { float **place; size_t count;
    } parts[] = {
        {&self->q, q_count},      {&self->q_next, q_count},   {&self->basis, p_count},
        {&self->q_sum, q_count},  {&self->q_scaled, q_count}, {&self->lazy_p, p_count},
        {&self->lazy_q, q_count},
    };
    bool enough = codec_residual_open(&self->base, weft_shape_elems(shape));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && enough; i++) {
        *parts[i].place = weft_alloc_array(env, parts[i].count, sizeof(float));
        enough = *parts[i].place != NULL;
    }
    for (uint32_t round = 0; round < weft_codec_rounds(spec) && enough; round++) {
        self->sent[round] = weft_alloc_array(env, powersgd_count(spec, shape, round), sizeof(float));
        enough = self->sent[round] != NULL;
    }
    if (!enough) {
        weft_codec_free(&self->base);
        return NULL;
    }
    powersgd_first_q(spec, shape, self->q);
    return &self->base;
}
