/* device_powersgd.c - low rank on a device; the equations are in powersgd_codec.c, whose host code keeps
 * the factors.
 *
 *     encode(0)  Q to the device; the lazy residual is formed from the previous M (outer_sub), M = gradient +
 *                that and P = M Q; P to the host
 *     encode(1)  P^ to the device; Q_i = M^T P^ to the host, and stays on the device for the residual
 *     finish     (sum Q) * scale goes up; out = P^ times it
 *
 * Up and down go factors, rank (rows + cols) elements each. In an all-reduce the sum of all P_i goes up and
 * is orthogonalised on the device: every rank has the same sum, and the kernel writes the bits of
 * weft_orthogonalise, which ranks without a device call. A shard sends a basis. M never leaves the device. */
#include "compress/device/device.h"
#include "compress/device/device_batch.h"
#include "compress/powersgd.h"

#include <string.h>

#include "kernels/kernels.h"

/* Larger tensors gain nothing from a shared launch. */
#define BATCH_ELEMS_MAX (1u << 20)

struct device_powersgd {
    struct weft_codec base;
    size_t rows, cols, rank, matrices;
    uint64_t steps;
    float *p, *q;                /* device: a round's product or what it begins with */
    float *basis;                /* device: P^ */
    float *lazy_p, *lazy_q;      /* device: e = residual - lazy_p^T lazy_q, if residual_is_lazy */
    float *last_q;               /* device: Q_i of the last round */
    void *work;                  /* device: work_bytes for each matrix, of orthogonalise, then of matmul_t */
    size_t work_bytes;
    bool residual_is_lazy;
    bool basis_is_sum;           /* basis_seen is the sum of all P_i: to be orthogonalised */
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

/* ---- stages: of all matrices, some at a time ---- */

/* Arrays of matrix b; a stage sets the pointers that its kernels use. */
static struct weft_matrix matrix_at(const struct device_powersgd *self, size_t b, float *m, float *p,
                                    float *q)
{
    return (struct weft_matrix){.m = m ? m + b * self->rows * self->cols : NULL,
                                .p = p + b * self->rank * self->rows,
                                .q = q ? q + b * self->rank * self->cols : NULL,
                                .max_bits = self->base.device->max_bits,
                                .scratch = (uint8_t *)self->work + b * self->work_bytes};
}

/* What a stage needs beside the factors. */
struct stage_input {
    enum device_matrix_stage stage;
    const float *grad;
    float factor, *out;
};

static struct weft_matrix stage_matrix(struct device_powersgd *self, const struct stage_input *input,
                                       size_t b)
{
    const size_t at = b * self->rows * self->cols;
    struct weft_matrix matrix;
    switch (input->stage) {
    case DEVICE_MATRIX_Q: return matrix_at(self, b, self->base.shadow, self->basis, self->last_q);
    case DEVICE_MATRIX_RESULT: return matrix_at(self, b, input->out, self->basis, self->q);
    default: break;
    }
    matrix = matrix_at(self, b, self->base.shadow, self->p, self->q);
    if (input->stage != DEVICE_MATRIX_FIRST) return matrix;
    matrix.a = input->grad + at;
    matrix.b = self->base.residual + at;
    matrix.factor = input->factor;
    return matrix;
}

/* Matrices first .. of a stage, at most WEFT_MATRICES_MAX. */
static void job_fill(struct device_powersgd *self, const struct stage_input *input, size_t first,
                     struct device_matrix_job *job)
{
    const size_t left = self->matrices - first;
    job->key = (struct device_matrix_key){input->stage, self->rows, self->cols, self->rank};
    job->count = (uint32_t)(left < WEFT_MATRICES_MAX ? left : WEFT_MATRICES_MAX);
    job->before_count = 0;
    for (size_t b = first; b < first + job->count; b++) {
        job->matrices[b - first] = stage_matrix(self, input, b);
        if (input->stage == DEVICE_MATRIX_FIRST && self->residual_is_lazy)
            job->before[job->before_count++] =
                matrix_at(self, b, self->base.residual, self->lazy_p, self->lazy_q);
        if (input->stage == DEVICE_MATRIX_Q && self->basis_is_sum)
            job->before[job->before_count++] = matrix_at(self, b, NULL, self->basis, NULL);
    }
}

static enum weft_status queue_alone(struct device_powersgd *self, const struct stage_input *input,
                                    struct device_matrix_job *job)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    WEFT_TRY(device_copy(codec, job->up.to, job->up.from, job->up.bytes));
    if (input->stage == DEVICE_MATRIX_FIRST) WEFT_TRY(device_clear_max(codec));
    for (size_t first = 0; first < self->matrices; first += WEFT_MATRICES_MAX) {
        job_fill(self, input, first, job);
        WEFT_TRY(device_launch_status(codec,
                                      device_matrix_launch(kernels, &job->key, job->before, job->before_count,
                                                           job->matrices, job->count, device_stream(codec))));
    }
    WEFT_TRY(device_copy(codec, job->down.to, job->down.from, job->down.bytes));
    return input->stage == DEVICE_MATRIX_FIRST ? device_fetch_max(codec) : WEFT_OK;
}

/* Queues a stage with copies around it, or adds it to a batch. *queued_out: it is queued here. */
static enum weft_status run_stage(struct device_powersgd *self, const struct stage_input *input,
                                  struct device_matrix_copy up, struct device_matrix_copy down,
                                  bool *queued_out)
{
    struct device_matrix_job job = {.up = up, .down = down};
    enum weft_status status = WEFT_OK;
    *queued_out = true;
    job_fill(self, input, 0, &job);
    if (self->matrices <= WEFT_MATRICES_MAX && self->base.elems <= BATCH_ELEMS_MAX)
        *queued_out = !device_batch_add_matrices(&self->base, &job);
    if (*queued_out) status = queue_alone(self, input, &job);
    if (input->stage == DEVICE_MATRIX_FIRST) self->residual_is_lazy = false;
    return status;
}

/* e = M of before - P^T Q, of every matrix, into the residual. With the device current. */
static enum weft_status residual_materialise(struct device_powersgd *self)
{
    struct weft_codec *codec = &self->base;
    const size_t rows = self->rows, cols = self->cols, rank = self->rank;
    struct weft_matrix some[WEFT_MATRICES_MAX];
    for (size_t b = 0; b < self->matrices && self->residual_is_lazy; b += WEFT_MATRICES_MAX) {
        size_t count = 0;
        for (; count < WEFT_MATRICES_MAX && b + count < self->matrices; count++)
            some[count] = matrix_at(self, b + count, codec->residual, self->lazy_p, self->lazy_q);
        WEFT_TRY(device_launch_status(codec, device_kernels(codec)->outer_many_f32(
                                                 some, count, true, rows, cols, rank, device_stream(codec))));
    }
    self->residual_is_lazy = false;
    return WEFT_OK;
}

/* P = M Q in even rounds, Q = M^T P^ in odd ones. */
static enum weft_status queue_round(struct device_powersgd *self, uint32_t round, const float *grad,
                                    float grad_scale, bool *queued_out)
{
    struct weft_codec *codec = &self->base;
    const size_t p_bytes = count_of(self, 0) * sizeof(float), q_bytes = count_of(self, 1) * sizeof(float);
    const struct stage_input input = {.stage = round == 0       ? DEVICE_MATRIX_FIRST
                                               : round % 2 == 0 ? DEVICE_MATRIX_P
                                                                : DEVICE_MATRIX_Q,
                                      .grad = grad,
                                      .factor = grad_scale};
    if (round % 2 != 0)
        return run_stage(self, &input, (struct device_matrix_copy){self->basis, self->basis_seen, p_bytes},
                         (struct device_matrix_copy){self->sent[round], self->last_q, q_bytes}, queued_out);
    /* after an abandoned step the copy of the same bytes may still read them */
    if (round == 0 && memcmp(self->q_start, self->q_begin, q_bytes) != 0)
        memcpy(self->q_start, self->q_begin, q_bytes);
    if (round > 0)
        powersgd_next_q(&codec->spec, &codec->shape, self->q_sum, self->steps, round / 2, self->q_start);
    return run_stage(self, &input, (struct device_matrix_copy){self->q, self->q_start, q_bytes},
                     (struct device_matrix_copy){self->sent[round], self->p, p_bytes}, queued_out);
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    if (codec->device->part == 0) {
        bool is_queued;
        WEFT_TRY(queue_round(self, round, grad, grad_scale, &is_queued));
        return is_queued ? device_record_event(codec) : WEFT_IN_PROGRESS;
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
    self->basis_is_sum = self->basis_is_sum && round % 2 != 0;
    if (round % 2 == 0) return powersgd_take_basis(self->basis_seen, aggregate, count_of(self, round));
    memcpy(self->q_sum, aggregate, bytes);
    return WEFT_OK;
}

static enum weft_status take_sum(struct weft_codec *codec, uint32_t round, const float *sum, size_t bytes)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    if (bytes != count_of(self, round) * sizeof(float)) return WEFT_ERR_MALFORMED;
    memcpy(round % 2 == 0 ? self->basis_seen : self->q_sum, sum, bytes);
    if (round % 2 == 0) self->basis_is_sum = true;
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct device_powersgd *self = (struct device_powersgd *)codec;
    const size_t q_count = count_of(self, 1);
    const struct stage_input input = {.stage = DEVICE_MATRIX_RESULT, .out = out};
    bool is_queued;
    weft_kernels()->scale_f32(self->q_scaled, self->q_sum, scale, q_count);
    return run_stage(self, &input,
                     (struct device_matrix_copy){self->q, self->q_scaled, q_count * sizeof(float)},
                     (struct device_matrix_copy){0}, &is_queued);
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
    .take_sum = take_sum,
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
    const size_t product = at->kernels->matmul_t_workspace(self->rows, self->cols, self->rank),
                 basis = at->kernels->orthogonalise_workspace();
    self->work_bytes = ((product > basis ? product : basis) + 15) / 16 * 16;
    const struct device_array arrays[] = {
        {&self->base.residual, elems * sizeof(float)},
        {&self->base.shadow, elems * sizeof(float)},
        {&self->p, p_bytes},
        {&self->q, q_bytes},
        {&self->basis, p_bytes},
        {&self->lazy_p, p_bytes},
        {&self->lazy_q, q_bytes},
        {&self->last_q, q_bytes},
        {&self->work, self->matrices * self->work_bytes},
    };
    const size_t pair = device_window_bytes(p_bytes) + device_window_bytes(q_bytes);
    WEFT_TRY(device_open(&self->base, at, arrays, sizeof arrays / sizeof arrays[0],
                         (rounds / 2 + 1) * pair + device_window_bytes(q_bytes)));
    for (uint32_t round = 0; round < rounds; round++)
        self->sent[round] = device_window(&self->base, round % 2 == 0 ? p_bytes : q_bytes);
    self->basis_seen = device_window(&self->base, p_bytes);
    self->q_scaled = device_window(&self->base, q_bytes);
    self->q_start = device_window(&self->base, q_bytes);
    if (elems <= BATCH_ELEMS_MAX) device_batch_reserve(&self->base);
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
