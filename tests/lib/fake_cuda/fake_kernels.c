/* fake_kernels.c - the table of device kernels (kernels/device_table.h) over the fake runtime. Each call
 * queues the scalar kernel of that name on the stream, which runs it later on the shadows. Written from
 * kernels.h, not from the CUDA sources. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "kernels/device_table.h"
#include "kernels/kernels.h"
#include "kernels/optimizer.h"
#include "tests/lib/segment_scalar.h"

struct call {
    void (*fn)(const struct call *call);
    const void *p[9]; /* of sum_tree_f32: out and up to 8 sources */
    size_t a, b, c;
    float factor;
    unsigned option;
    struct weft_noise noise;
};

static const struct weft_kernels *scalar(void)
{
    return weft_kernels_by_name("scalar");
}

static void run(void *context)
{
    struct call *call = context;
    call->fn(call);
}

static enum weft_status queue(struct call call, weft_cuda_stream stream)
{
    struct call *own = malloc(sizeof *own);
    if (!own) abort();
    *own = call;
    if (fake_cuda_launch_owned(stream, run, own) == 0) return WEFT_OK;
    free(own);
    return WEFT_ERR_STATE;
}

static void *at(const struct call *call, int i)
{
    return call->p[i] ? fake_cuda_shadow(call->p[i]) : NULL;
}

static void raise(uint32_t *max_bits, uint32_t bits)
{
    if (max_bits && bits > *max_bits) *max_bits = bits;
}

#define QUEUE(run, ...) return queue((struct call){.fn = run, __VA_ARGS__}, stream)

/* ---- element by element ---- */

static void do_sum(const struct call *c)
{
    scalar()->sum_f32(at(c, 0), at(c, 1), at(c, 2), c->a);
}
static enum weft_status sum_f32(float *out, const float *a, const float *b, size_t count,
                                weft_cuda_stream stream)
{
    QUEUE(do_sum, .p = {out, a, b}, .a = count);
}

static void do_sum_tree(const struct call *c)
{
    float *out = at(c, 0);
    const float *sources[8];
    for (size_t s = 0; s < c->b; s++) sources[s] = at(c, 1 + (int)s);
    scalar()->sum_tree_f32(&out, 1, sources, c->b, c->factor, c->a);
}
static enum weft_status sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                                     size_t source_count, float factor, size_t count, weft_cuda_stream stream)
{
    struct call call = {.fn = do_sum_tree, .p = {outs[0]}, .factor = factor, .a = count, .b = source_count};
    if (out_count != 1 || source_count > 8) return WEFT_ERR_INVALID;
    for (size_t s = 0; s < source_count; s++) call.p[1 + s] = sources[s];
    return queue(call, stream);
}

static void do_scale(const struct call *c)
{
    scalar()->scale_f32(at(c, 0), at(c, 1), c->factor, c->a);
}
static enum weft_status scale_f32(float *out, const float *in, float factor, size_t count,
                                  weft_cuda_stream stream)
{
    QUEUE(do_scale, .p = {out, in}, .factor = factor, .a = count);
}

static void do_scale_add(const struct call *c)
{
    raise(at(c, 3), scalar()->scale_add_f32(at(c, 0), at(c, 1), c->factor, at(c, 2), c->a));
}
static enum weft_status scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                      uint32_t *max_bits, weft_cuda_stream stream)
{
    QUEUE(do_scale_add, .p = {out, a, b, max_bits}, .factor = factor, .a = count);
}

static void do_max_abs(const struct call *c)
{
    raise(at(c, 0), scalar()->max_abs_bits_f32(at(c, 1), c->a));
}
static enum weft_status max_abs_bits_f32(uint32_t *max_bits, const float *in, size_t count,
                                         weft_cuda_stream stream)
{
    QUEUE(do_max_abs, .p = {max_bits, in}, .a = count);
}

static void do_to_f16(const struct call *c)
{
    scalar()->cast_f32_f16(at(c, 0), at(c, 1), c->a);
}
static enum weft_status cast_f32_f16(uint16_t *out, const float *in, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_to_f16, .p = {out, in}, .a = count);
}

static void do_from_f16(const struct call *c)
{
    scalar()->cast_f16_f32(at(c, 0), at(c, 1), c->a);
}
static enum weft_status cast_f16_f32(float *out, const uint16_t *in, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_from_f16, .p = {out, in}, .a = count);
}

static void do_to_bf16(const struct call *c)
{
    scalar()->cast_f32_bf16(at(c, 0), at(c, 1), c->a);
}
static enum weft_status cast_f32_bf16(uint16_t *out, const float *in, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_to_bf16, .p = {out, in}, .a = count);
}

static void do_from_bf16(const struct call *c)
{
    scalar()->cast_bf16_f32(at(c, 0), at(c, 1), c->a);
}
static enum weft_status cast_bf16_f32(float *out, const uint16_t *in, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_from_bf16, .p = {out, in}, .a = count);
}

/* ---- blocks ---- */

static void do_blocks(const struct call *c)
{
    raise(at(c, 4),
          scalar()->scale_add_blocks_f32(at(c, 0), at(c, 1), c->factor, at(c, 2), c->a, c->option, at(c, 3)));
}
static enum weft_status scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                             size_t count, unsigned limit, uint8_t *exponents_out,
                                             uint32_t *max_bits, weft_cuda_stream stream)
{
    QUEUE(do_blocks, .p = {out, a, b, exponents_out, max_bits}, .factor = factor, .a = count,
          .option = limit);
}

static void do_quantise(const struct call *c)
{
    scalar()->quantise_f32(at(c, 0), at(c, 1), at(c, 2), c->a, c->option, c->b ? &c->noise : NULL);
}
static enum weft_status quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                                     unsigned limit, const struct weft_noise *noise, weft_cuda_stream stream)
{
    struct call call = {
        .fn = do_quantise, .p = {codes_out, x, exponents}, .a = count, .b = noise != NULL, .option = limit};
    if (noise) call.noise = *noise; /* the variable of the caller may no longer exist when the kernel runs */
    return queue(call, stream);
}

static void do_add_i8_i16(const struct call *c)
{
    scalar()->add_i8_i16(at(c, 0), at(c, 1), c->a);
}
static enum weft_status add_i8_i16(int16_t *sums, const int8_t *codes, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_add_i8_i16, .p = {sums, codes}, .a = count);
}

static void do_from_i16(const struct call *c)
{
    scalar()->dequantise_i16_f32(at(c, 0), at(c, 1), at(c, 2), c->factor, c->a);
}
static enum weft_status dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents,
                                           float factor, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_from_i16, .p = {out, sums, exponents}, .factor = factor, .a = count);
}

static void do_from_i32(const struct call *c)
{
    scalar()->dequantise_i32_f32(at(c, 0), at(c, 1), at(c, 2), c->factor, c->a);
}
static enum weft_status dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents,
                                           float factor, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_from_i32, .p = {out, sums, exponents}, .factor = factor, .a = count);
}

static void do_pack_i4(const struct call *c)
{
    uint8_t *out = at(c, 0);
    const int8_t *codes = at(c, 1);
    memset(out, 0, (c->a + 1) / 2);
    for (size_t i = 0; i < c->a; i++) out[i / 2] = (uint8_t)(out[i / 2] | (codes[i] & 0xf) << 4 * (i % 2));
}
static enum weft_status pack_i4(uint8_t *out, const int8_t *codes, size_t count, weft_cuda_stream stream)
{
    QUEUE(do_pack_i4, .p = {out, codes}, .a = count);
}

/* A block with a value that is not finite has exponent 255 and codes 0; `out` keeps the sum. */
static void do_fp8(const struct call *c)
{
    uint8_t *codes = at(c, 0), *exponents = at(c, 1);
    float *out = at(c, 2);
    const float *a = at(c, 3), *b = at(c, 4);
    for (size_t i = 0; i < c->a; i += WEFT_BLOCK) {
        const size_t count = c->a - i < WEFT_BLOCK ? c->a - i : WEFT_BLOCK;
        const uint32_t bits = scalar()->scale_add_f32(out + i, a + i, c->factor, b + i, count);
        raise(at(c, 5), bits);
        exponents[i / WEFT_BLOCK] =
            bits >= 0x7f800000u ? 255 : weft_fp8_exponent(bits, (enum weft_fp8)c->option);
        if (bits >= 0x7f800000u) memset(codes + i, 0, count);
        else
            scalar()->quantise_fp8_f32(codes + i, out + i, exponents + i / WEFT_BLOCK, count,
                                       (enum weft_fp8)c->option);
    }
}
static enum weft_status scale_add_quantise_fp8_f32(uint8_t *codes_out, uint8_t *exponents_out, float *out,
                                                   const float *a, float factor, const float *b, size_t count,
                                                   enum weft_fp8 format, uint32_t *max_bits,
                                                   weft_cuda_stream stream)
{
    QUEUE(do_fp8, .p = {codes_out, exponents_out, out, a, b, max_bits}, .factor = factor, .a = count,
          .option = format);
}

static void do_sign(const struct call *c)
{
    const uint32_t bits = scalar()->scale_add_f32(at(c, 2), at(c, 3), c->factor, at(c, 4), c->a);
    raise(at(c, 5), bits);
    if (bits < 0x7f800000u) scalar()->quantise_sign_f32(at(c, 0), at(c, 1), at(c, 2), c->a);
}
static enum weft_status scale_add_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *out,
                                                    const float *a, float factor, const float *b,
                                                    size_t count, uint32_t *max_bits, weft_cuda_stream stream)
{
    QUEUE(do_sign, .p = {bits_out, scales_out, out, a, b, max_bits}, .factor = factor, .a = count);
}

/* ---- many small tensors ---- */

struct segments {
    struct weft_segment of[WEFT_SEGMENTS_MAX];
    size_t count;
};

static void run_segments(void *context)
{
    struct segments *segments = context;
    for (size_t i = 0; i < segments->count; i++) {
        struct weft_segment g = segments->of[i];
        const void **const pointers[] = {(const void **)&g.a,         (const void **)&g.b,
                                         (const void **)&g.x,         (const void **)&g.exponents,
                                         (const void **)&g.codes,     (const void **)&g.scales,
                                         (const void **)&g.max_bits};
        for (size_t p = 0; p < sizeof pointers / sizeof pointers[0]; p++)
            if (*pointers[p]) *pointers[p] = fake_cuda_shadow(*pointers[p]);
        segment_encode_scalar(&g);
    }
}

static enum weft_status encode_segments(const struct weft_segment *segments, size_t count,
                                        weft_cuda_stream stream)
{
    if (count > WEFT_SEGMENTS_MAX) return WEFT_ERR_INVALID;
    struct segments *own = malloc(sizeof *own);
    if (!own) abort();
    memcpy(own->of, segments, count * sizeof *segments);
    own->count = count;
    if (fake_cuda_launch_owned(stream, run_segments, own) == 0) return WEFT_OK;
    free(own);
    return WEFT_ERR_STATE;
}

/* ---- select ---- */

static size_t select_workspace(size_t count)
{
    return 2 * count + 64;
}

static void do_select(const struct call *c)
{
    uint32_t *indices = at(c, 0), *scratch = malloc((c->a + 1) * sizeof *scratch);
    float *values = at(c, 1), *out = at(c, 2);
    if (!scratch) abort();
    raise(at(c, 5), scalar()->scale_add_f32(out, at(c, 3), c->factor, at(c, 4), c->a));
    weft_select_top(indices, out, c->a, c->b, scratch);
    for (size_t i = 0; i < c->b; i++) values[i] = out[indices[i]], out[indices[i]] = 0;
    free(scratch);
}
static enum weft_status scale_add_select_top_f32(uint32_t *indices_out, float *values_out, float *out,
                                                 const float *a, float factor, const float *b, size_t count,
                                                 size_t k, uint32_t *max_bits, void *workspace,
                                                 weft_cuda_stream stream)
{
    if (!workspace) return WEFT_ERR_INVALID;
    QUEUE(do_select, .p = {indices_out, values_out, out, a, b, max_bits}, .factor = factor, .a = count,
          .b = k);
}

static void do_draw(const struct call *c)
{
    weft_sample_strata(at(c, 0), c->a, c->b, &c->noise);
}
static enum weft_status sample_strata(uint32_t *indices_out, uint64_t count, uint64_t k,
                                      const struct weft_noise *noise, weft_cuda_stream stream)
{
    QUEUE(do_draw, .p = {indices_out}, .a = count, .b = k, .noise = *noise);
}

static void do_take(const struct call *c)
{
    float *values = at(c, 0), *x = at(c, 1);
    const uint32_t *indices = at(c, 2);
    for (size_t i = 0; i < c->a; i++) values[i] = x[indices[i]], x[indices[i]] = 0;
}
static enum weft_status take_f32(float *values_out, float *x, const uint32_t *indices, size_t k,
                                 weft_cuda_stream stream)
{
    QUEUE(do_take, .p = {values_out, x, indices}, .a = k);
}

static void do_scatter(const struct call *c)
{
    float *out = at(c, 0);
    const uint32_t *indices = at(c, 1);
    const float *values = at(c, 2);
    memset(out, 0, c->a * sizeof *out);
    for (size_t i = 0; i < c->b; i++) out[indices[i]] = values[i] * c->factor;
}
static enum weft_status scatter_f32(float *out, size_t count, const uint32_t *indices, const float *values,
                                    float factor, size_t k, weft_cuda_stream stream)
{
    QUEUE(do_scatter, .p = {out, indices, values}, .factor = factor, .a = count, .b = k);
}

static size_t matmul_t_workspace(size_t rows, size_t cols, size_t rank)
{
    return (rows / WEFT_MATMUL_T_BAND + 1) * cols * rank * sizeof(float);
}

static size_t orthogonalise_workspace(void)
{
    return 64;
}

/* ---- matrices of one shape ---- */

enum many { MATMUL, ADD_MATMUL, MATMUL_T, OUTER, OUTER_SUB, ORTHOGONALISE };

struct matrices {
    struct weft_matrix of[WEFT_MATRICES_MAX];
    enum many what;
    size_t count, rows, cols, rank;
};

static void run_matrix(const struct matrices *all, const struct weft_matrix *x)
{
    float *const m = x->m ? fake_cuda_shadow(x->m) : NULL, *const p = fake_cuda_shadow(x->p),
                 *const q = x->q ? fake_cuda_shadow(x->q) : NULL;
    const size_t rows = all->rows, cols = all->cols, rank = all->rank;
    switch (all->what) {
    case ADD_MATMUL:
        raise(x->max_bits ? fake_cuda_shadow(x->max_bits) : NULL,
              scalar()->scale_add_f32(m, fake_cuda_shadow(x->a), x->factor, fake_cuda_shadow(x->b),
                                      rows * cols));
        /* fall through */
    case MATMUL: scalar()->matmul_f32(p, rows, m, q, rows, cols, rank); return;
    case MATMUL_T: scalar()->matmul_t_f32(q, m, p, rows, cols, rank); return;
    case OUTER: scalar()->outer_f32(m, p, q, rows, cols, rank); return;
    case OUTER_SUB: scalar()->outer_sub_f32(m, p, q, rows, cols, rank); return;
    case ORTHOGONALISE: weft_orthogonalise(p, rows, rank, NULL); return;
    }
}

static void run_matrices(void *context)
{
    const struct matrices *all = context;
    for (size_t i = 0; i < all->count; i++) run_matrix(all, &all->of[i]);
}

static enum weft_status queue_many(enum many what, const struct weft_matrix *matrices, size_t count,
                                   size_t rows, size_t cols, size_t rank, weft_cuda_stream stream)
{
    if (count > WEFT_MATRICES_MAX) return WEFT_ERR_INVALID;
    if (count == 0) return WEFT_OK;
    for (size_t i = 0; i < count; i++)
        if ((what == MATMUL_T || what == ORTHOGONALISE) && !matrices[i].scratch) return WEFT_ERR_INVALID;
    struct matrices *own = malloc(sizeof *own);
    if (!own) abort();
    *own = (struct matrices){.what = what, .count = count, .rows = rows, .cols = cols, .rank = rank};
    memcpy(own->of, matrices, count * sizeof *matrices);
    if (fake_cuda_launch_owned(stream, run_matrices, own) == 0) return WEFT_OK;
    free(own);
    return WEFT_ERR_STATE;
}

static enum weft_status matmul_many_f32(const struct weft_matrix *matrices, size_t count, bool adds,
                                        size_t rows, size_t cols, size_t rank, weft_cuda_stream stream)
{
    return queue_many(adds ? ADD_MATMUL : MATMUL, matrices, count, rows, cols, rank, stream);
}
static enum weft_status matmul_t_many_f32(const struct weft_matrix *matrices, size_t count, size_t rows,
                                          size_t cols, size_t rank, weft_cuda_stream stream)
{
    return queue_many(MATMUL_T, matrices, count, rows, cols, rank, stream);
}
static enum weft_status outer_many_f32(const struct weft_matrix *matrices, size_t count, bool subtracts,
                                       size_t rows, size_t cols, size_t rank, weft_cuda_stream stream)
{
    return queue_many(subtracts ? OUTER_SUB : OUTER, matrices, count, rows, cols, rank, stream);
}
static enum weft_status orthogonalise_many(const struct weft_matrix *matrices, size_t count, size_t rows,
                                           size_t rank, weft_cuda_stream stream)
{
    return queue_many(ORTHOGONALISE, matrices, count, rows, 0, rank, stream);
}

/* ---- update rules ---- */

struct update {
    enum weft_optimizer_kind kind;
    float *weights, *states[2];
    const float *grad;
    float grad_scale, lr, eps, weight_decay;
    struct weft_sgd sgd;
    struct weft_adam adam;
    struct weft_ftrl ftrl;
    struct weft_lamb lamb;
    size_t count;
};

static void run_update(void *context)
{
    const struct update *u = context;
    float *const weights = fake_cuda_shadow(u->weights),
                 *const first = u->states[0] ? fake_cuda_shadow(u->states[0]) : NULL,
                 *const second = u->states[1] ? fake_cuda_shadow(u->states[1]) : NULL;
    const float *const grad = fake_cuda_shadow(u->grad);
    switch (u->kind) {
    case WEFT_OPTIMIZER_SGD:
        scalar()->sgd_f32(weights, first, grad, u->grad_scale, &u->sgd, u->count);
        return;
    case WEFT_OPTIMIZER_ADAM:
        scalar()->adam_f32(weights, first, second, grad, u->grad_scale, &u->adam, u->count);
        return;
    case WEFT_OPTIMIZER_ADAGRAD:
        scalar()->adagrad_f32(weights, first, grad, u->grad_scale, u->lr, u->eps, u->weight_decay, u->count);
        return;
    case WEFT_OPTIMIZER_FTRL:
        scalar()->ftrl_f32(weights, first, second, grad, u->grad_scale, &u->ftrl, u->count);
        return;
    default: weft_lamb_step(&u->lamb, u->lr, weights, first, second, grad, u->grad_scale, u->count); return;
    }
}

static enum weft_status queue_update(struct update update, weft_cuda_stream stream)
{
    struct update *own = malloc(sizeof *own);
    if (!own) abort();
    *own = update;
    if (fake_cuda_launch_owned(stream, run_update, own) == 0) return WEFT_OK;
    free(own);
    return WEFT_ERR_STATE;
}

static enum weft_status sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                                const struct weft_sgd *sgd, size_t count, weft_cuda_stream stream)
{
    return queue_update((struct update){.kind = WEFT_OPTIMIZER_SGD,
                                        .weights = weights,
                                        .states = {velocity},
                                        .grad = grad,
                                        .grad_scale = grad_scale,
                                        .sgd = *sgd,
                                        .count = count},
                        stream);
}
static enum weft_status adam_f32(float *weights, float *first, float *second, const float *grad,
                                 float grad_scale, const struct weft_adam *adam, size_t count,
                                 weft_cuda_stream stream)
{
    return queue_update((struct update){.kind = WEFT_OPTIMIZER_ADAM,
                                        .weights = weights,
                                        .states = {first, second},
                                        .grad = grad,
                                        .grad_scale = grad_scale,
                                        .adam = *adam,
                                        .count = count},
                        stream);
}
static enum weft_status adagrad_f32(float *weights, float *sums, const float *grad, float grad_scale,
                                    float lr, float eps, float weight_decay, size_t count,
                                    weft_cuda_stream stream)
{
    return queue_update((struct update){.kind = WEFT_OPTIMIZER_ADAGRAD,
                                        .weights = weights,
                                        .states = {sums},
                                        .grad = grad,
                                        .grad_scale = grad_scale,
                                        .lr = lr,
                                        .eps = eps,
                                        .weight_decay = weight_decay,
                                        .count = count},
                        stream);
}
static enum weft_status ftrl_f32(float *weights, float *z, float *n, const float *grad, float grad_scale,
                                 const struct weft_ftrl *ftrl, size_t count, weft_cuda_stream stream)
{
    return queue_update((struct update){.kind = WEFT_OPTIMIZER_FTRL,
                                        .weights = weights,
                                        .states = {z, n},
                                        .grad = grad,
                                        .grad_scale = grad_scale,
                                        .ftrl = *ftrl,
                                        .count = count},
                        stream);
}
static size_t lamb_workspace(size_t count)
{
    return count + 16;
}
static enum weft_status lamb_f32(float *weights, float *first, float *second, const float *grad,
                                 float grad_scale, const struct weft_lamb *lamb, float lr, size_t count,
                                 void *workspace, weft_cuda_stream stream)
{
    if (!workspace) return WEFT_ERR_INVALID;
    return queue_update((struct update){.kind = WEFT_OPTIMIZER_LAMB,
                                        .weights = weights,
                                        .states = {first, second},
                                        .grad = grad,
                                        .grad_scale = grad_scale,
                                        .lamb = *lamb,
                                        .lr = lr,
                                        .count = count},
                        stream);
}

extern const struct weft_device_kernels weft_cuda_kernels_table;
__attribute__((visibility("default"))) const struct weft_device_kernels weft_cuda_kernels_table = {
    .version = WEFT_DEVICE_KERNELS_VERSION,
    .bytes = sizeof(struct weft_device_kernels),
#define ENTRY(name, arguments) .name = name,
    WEFT_DEVICE_CALLS(ENTRY)
#undef ENTRY
    .select_workspace = select_workspace,
    .matmul_t_workspace = matmul_t_workspace,
    .orthogonalise_workspace = orthogonalise_workspace,
    .lamb_workspace = lamb_workspace,
};
