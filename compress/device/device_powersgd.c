/* device_powersgd.c - low rank on a device; the equations are in powersgd_codec.c, whose host code keeps
 * the factors.
 *
 *     encode(0)  Q to the device; the lazy residual is formed from the previous M (outer_sub), M = gradient +
 *                that and P = M Q; P to the host
 *     encode(1)  P^ to the device; Q_i = M^T P^ to the host, and stays on the device for the residual
 *     finish     (sum Q) * scale goes up; out = P^ times it
 *
 * Up and down go factors, rank (rows + cols) elements each. They are orthogonalised on the host, where
 * every rank does it on the same sum: it takes rank^2 rows operations, and a rank without a device must
 * have the same bits. M never leaves the device. */
#include "compress/device/device.h"
#include "compress/powersgd.h"

#include <string.h>

#include "kernels/kernels.h"

struct device_powersgd {
    struct weft_codec base;
    size_t rows, cols, rank, matrices;
    uint64_t steps;
    float *p, *q;                /* device: a round's product or what it begins with */
    float *basis;                /* device: P^ */
    float *lazy_p, *lazy_q;      /* device: e = residual - lazy_p^T lazy_q, if residual_is_lazy */
    float *last_q;               /* device: Q_i of the last round */
    void *work;                  /* device: of matmul_t */
    bool residual_is_lazy;
    float *q_start;              /* window: what the step begins with, and after it every iteration */
    float *q_begin;              /* owned host memory: warm start, committed */
    float *sent[WEFT_CODEC_ROUNDS_MAX]; /* window */
    float *basis_seen, *q_scaled; /* window */
    float *q_sum;                /* owned host memory */
};

static size_t count_of(const struct device_powersgd *self, uint32_t round)
{
    return powersgd_count(&self->base.spec, &self->base.shape, round);
}

/* e = M of before - P^T Q, of every matrix, into the residual. With the device current. */
static enum weft_status residual_materialise(struct device_powersgd *self)
{
    struct weft_codec *codec = &self->base;
    for (size_t b = 0; b < self->matrices && self->residual_is_lazy; b++)
        WEFT_TRY(device_launch_status(codec, device_kernels(codec)->outer_sub_f32(
                                                 codec->residual + b * self->rows * self->cols,
                                                 self->lazy_p + b * self->rank * self->rows,
                                                 self->lazy_q + b * self->rank * self->cols, self->rows,
                                                 self->cols, self->rank, device_stream(codec))));
    self->residual_is_lazy = false;
    return WEFT_OK;
}

static enum weft_status queue_first(struct device_powersgd *self, const float *grad, float grad_scale)
{
    struct weft_codec *codec = &self->base;
    const size_t rows = self->rows, cols = self->cols, rank = self->rank;
    WEFT_TRY(residual_materialise(self));
    WEFT_TRY(device_clear_max(codec));
    memcpy(self->q_start, self->q_begin, count_of(self, 1) * sizeof(float));
    WEFT_TRY(device_copy(codec, self->q, self->q_start, count_of(self, 1) * sizeof(float)));
    for (size_t b = 0; b < self->matrices; b++) {
        const size_t at = b * rows * cols;
        WEFT_TRY(
            device_launch_status(codec, device_kernels(codec)->scale_add_matmul_f32(
                                            codec->shadow + at, grad + at, grad_scale, codec->residual + at,
                                            self->p + b * rank * rows, rows, self->q + b * rank * cols, rows,
                                            cols, rank, codec->device->max_bits, device_stream(codec))));
    }
    return device_fetch_max(codec);
}

/* P = M Q_next in even rounds, Q = M^T P^ in odd ones. */
static enum weft_status queue_later(struct device_powersgd *self, uint32_t round)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    const size_t rows = self->rows, cols = self->cols, rank = self->rank;
    if (round % 2 == 0) {
        powersgd_next_q(&codec->spec, &codec->shape, self->q_sum, self->steps, round / 2, self->q_start);
        WEFT_TRY(device_copy(codec, self->q, self->q_start, count_of(self, 1) * sizeof(float)));
    } else {
        WEFT_TRY(device_copy(codec, self->basis, self->basis_seen, count_of(self, 0) * sizeof(float)));
    }
    for (size_t b = 0; b < self->matrices; b++) {
        const float *m = codec->shadow + b * rows * cols;
        const size_t p_at = b * rank * rows, q_at = b * rank * cols;
        WEFT_TRY(device_launch_status(
            codec, round % 2 == 0 ? kernels->matmul_f32(self->p + p_at, rows, m, self->q + q_at, rows, cols,
                                                        rank, device_stream(codec))
                                  : kernels->matmul_t_f32(self->last_q + q_at, m, self->basis + p_at, rows,
                                                          cols, rank, self->work, device_stream(codec))));
    }
    return WEFT_OK;
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    if (codec->device->part == 0) {
        WEFT_TRY(round == 0 ? queue_first(self, grad, grad_scale) : queue_later(self, round));
        WEFT_TRY(device_copy(codec, self->sent[round], round % 2 == 0 ? self->p : self->last_q,
                             count_of(self, round) * sizeof(float)));
        return device_record_event(codec);
    }
    if (round == 0 && *codec->device->max_seen >= CODEC_MAGNITUDE_LIMIT_BITS) return WEFT_ERR_INVALID;
    if (weft_kernels()->max_abs_bits_f32(self->sent[round], count_of(self, round)) >=
        CODEC_MAGNITUDE_LIMIT_BITS)
        return WEFT_ERR_INVALID;
    return codec_send(codec, round, self->sent[round], count_of(self, round) * sizeof(float), out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    if (bytes != count_of(self, round) * sizeof(float)) return WEFT_ERR_MALFORMED;
    if (round % 2 == 0) return powersgd_take_basis(self->basis_seen, aggregate, count_of(self, round));
    memcpy(self->q_sum, aggregate, bytes);
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    const size_t rows = self->rows, cols = self->cols, rank = self->rank, q_count = count_of(self, 1);
    weft_kernels()->scale_f32(self->q_scaled, self->q_sum, scale, q_count);
    WEFT_TRY(device_copy(codec, self->q, self->q_scaled, q_count * sizeof(float)));
    for (size_t b = 0; b < self->matrices; b++)
        WEFT_TRY(device_launch_status(
            codec, device_kernels(codec)->outer_f32(out + b * rows * cols, self->basis + b * rank * rows,
                                                    self->q + b * rank * cols, rows, cols, rank,
                                                    device_stream(codec))));
    return WEFT_OK;
}

static void commit(struct weft_codec *codec)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    self->steps++;
    codec_swap(&self->lazy_p, &self->basis);
    codec_swap(&self->lazy_q, &self->last_q);
    self->residual_is_lazy = true;
    powersgd_next_q(&codec->spec, &codec->shape, self->q_sum, self->steps, 0, self->q_begin);
}

/* If the device failed, the next read returns its error. */
static void materialise(struct weft_codec *codec)
{
    (void)residual_materialise((struct device_powersgd *)codec);
}

static void state(struct weft_codec *codec, struct codec_state *state)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    state->steps = &self->steps;
    state->values[1] = self->q_begin;
    state->counts[1] = count_of(self, 1);
}

static void powersgd_free(struct weft_codec *codec)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    weft_free_bytes(codec->env, self->q_begin);
    weft_free_bytes(codec->env, self->q_sum);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .materialise = materialise,
    .state = state,
    .free = powersgd_free,
};

static enum weft_status open_arrays(struct device_powersgd *self, const struct weft_codec_device *at,
                                    uint32_t rounds, size_t elems)
{
    const size_t p_bytes = self->matrices * self->rank * self->rows * sizeof(float),
                 q_bytes = self->matrices * self->rank * self->cols * sizeof(float);
    const struct device_array arrays[] = {
        {&self->base.residual, elems * sizeof(float)},
        {&self->base.shadow, elems * sizeof(float)},
        {&self->p, p_bytes},
        {&self->q, q_bytes},
        {&self->basis, p_bytes},
        {&self->lazy_p, p_bytes},
        {&self->lazy_q, q_bytes},
        {&self->last_q, q_bytes},
        {&self->work, at->kernels->matmul_t_workspace(self->rows, self->cols, self->rank)},
    };
    const size_t pair = device_window_bytes(p_bytes) + device_window_bytes(q_bytes);
    WEFT_TRY(device_open(&self->base, at, arrays, sizeof arrays / sizeof arrays[0],
                         (rounds / 2 + 1) * pair + device_window_bytes(q_bytes)));
    for (uint32_t round = 0; round < rounds; round++)
        self->sent[round] = device_window(&self->base, round % 2 == 0 ? p_bytes : q_bytes);
    self->basis_seen = device_window(&self->base, p_bytes);
    self->q_scaled = device_window(&self->base, q_bytes);
    self->q_start = device_window(&self->base, q_bytes);
    return WEFT_OK;
}

enum weft_status device_powersgd_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                        const struct weft_shape *shape, const struct weft_codec_device *at,
                                        struct weft_codec **codec_out)
{
    const size_t q_count = powersgd_count(spec, shape, 1);
    struct device_powersgd *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return WEFT_ERR_NO_MEMORY;
    self->base = (struct weft_codec){.ops = &ops, .env = env};
    *codec_out = &self->base;
    self->matrices = matrix_count(spec, shape);
    self->rows = matrix_rows(spec, shape);
    self->cols = matrix_cols(spec, shape);
    self->rank = spec->rank;
    self->q_begin = weft_alloc_array(env, q_count, sizeof *self->q_begin);
    self->q_sum = weft_alloc_array(env, q_count, sizeof *self->q_sum);
    if (!self->q_begin || !self->q_sum) return WEFT_ERR_NO_MEMORY;
    powersgd_first_q(spec, shape, self->q_begin);
    return open_arrays(self, at, weft_codec_rounds(spec), weft_shape_elems(shape));
}
