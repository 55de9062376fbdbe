/* count_kernels.c - see count_kernels.h. */
#include "tests/lib/count_kernels.h"

#include <pthread.h>
#include <stddef.h>

#include "kernels/kernels.h"

static _Thread_local uint64_t counted;
static const struct weft_kernels *real;
static struct weft_kernels counting;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct weft_loop *watched[8];
static unsigned watched_count;
static uint64_t longest, total;

const struct weft_kernels *__real_weft_kernels(void);
const struct weft_kernels *__wrap_weft_kernels(void);
int __real_weft_loop_step(struct weft_loop *loop);
int __wrap_weft_loop_step(struct weft_loop *loop);

static void count_sum(float *out, const float *a, const float *b, size_t n)
{
    counted += n;
    real->sum_f32(out, a, b, n);
}
static void count_tree(float *const *outs, size_t out_count, const float *const *sources, size_t source_count,
                       float factor, size_t n)
{
    counted += n * source_count;
    real->sum_tree_f32(outs, out_count, sources, source_count, factor, n);
}
static void count_tree_stream(float *const *outs, size_t out_count, const float *const *sources,
                              size_t source_count, float factor, size_t n)
{
    counted += n * source_count;
    real->sum_tree_stream_f32(outs, out_count, sources, source_count, factor, n);
}
static void count_scale(float *out, const float *in, float factor, size_t n)
{
    counted += n;
    real->scale_f32(out, in, factor, n);
}
static void count_to_f16(uint16_t *out, const float *in, size_t n)
{
    counted += n;
    real->cast_f32_f16(out, in, n);
}
static void count_from_f16(float *out, const uint16_t *in, size_t n)
{
    counted += n;
    real->cast_f16_f32(out, in, n);
}
static void count_to_bf16(uint16_t *out, const float *in, size_t n)
{
    counted += n;
    real->cast_f32_bf16(out, in, n);
}
static void count_from_bf16(float *out, const uint16_t *in, size_t n)
{
    counted += n;
    real->cast_bf16_f32(out, in, n);
}
static void count_sgd(float *w, float *v, const float *g, float scale, const struct weft_sgd *sgd, size_t n)
{
    counted += n;
    real->sgd_f32(w, v, g, scale, sgd, n);
}
static uint32_t count_max(const float *in, size_t n) { counted += n; return real->max_abs_bits_f32(in, n); }
static bool count_finite(const float *in, size_t n) { counted += n; return real->finite_f32(in, n); }
static uint32_t count_scale_add(float *out, const float *a, float factor, const float *b, size_t n)
{
    counted += n;
    return real->scale_add_f32(out, a, factor, b, n);
}
static size_t count_scale_add_above(float *out, const float *a, float factor, const float *b, size_t n,
                                    uint32_t floor_bits, uint32_t first, uint32_t *indices, float *values,
                                    uint32_t *max_bits)
{
    counted += n;
    return real->scale_add_above_f32(out, a, factor, b, n, floor_bits, first, indices, values, max_bits);
}
static void count_matmul(float *p, size_t stride, const float *m, const float *q, size_t rows, size_t cols,
                         size_t rank)
{
    counted += rows * cols;
    real->matmul_f32(p, stride, m, q, rows, cols, rank);
}
static void count_matmul_t(float *q, const float *m, const float *p, size_t rows, size_t cols, size_t rank)
{
    counted += rows * cols;
    real->matmul_t_f32(q, m, p, rows, cols, rank);
}
static void count_outer(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank)
{
    counted += rows * cols;
    real->outer_f32(out, p, q, rows, cols, rank);
}
static void count_outer_sub(float *m, const float *p, const float *q, size_t rows, size_t cols, size_t rank)
{
    counted += rows * cols;
    real->outer_sub_f32(m, p, q, rows, cols, rank);
}

static void wrap(void)
{
    real = __real_weft_kernels();
    counting = *real;
    counting.sum_f32 = count_sum;
    counting.sum_tree_f32 = count_tree;
    counting.sum_tree_stream_f32 = count_tree_stream;
    counting.scale_f32 = count_scale;
    counting.cast_f32_f16 = count_to_f16;
    counting.cast_f16_f32 = count_from_f16;
    counting.cast_f32_bf16 = count_to_bf16;
    counting.cast_bf16_f32 = count_from_bf16;
    counting.sgd_f32 = count_sgd;
    counting.max_abs_bits_f32 = count_max;
    counting.finite_f32 = count_finite;
    counting.scale_add_f32 = count_scale_add;
    counting.scale_add_above_f32 = count_scale_add_above;
    counting.matmul_f32 = count_matmul;
    counting.matmul_t_f32 = count_matmul_t;
    counting.outer_f32 = count_outer;
    counting.outer_sub_f32 = count_outer_sub;
}

const struct weft_kernels *__wrap_weft_kernels(void)
{
    pthread_once(&once, wrap);
    return &counting;
}

int __wrap_weft_loop_step(struct weft_loop *loop)
{
    uint64_t before = counted;
    int work = __real_weft_loop_step(loop);
    for (unsigned i = 0; i < watched_count; i++) {
        if (watched[i] != loop) continue;
        if (counted - before > longest) longest = counted - before;
        total += counted - before;
    }
    return work;
}

void count_kernels_watch(struct weft_loop *loop)
{
    if (watched_count < sizeof watched / sizeof *watched) watched[watched_count++] = loop;
    longest = total = 0;
}

void count_kernels_forget(void)
{
    watched_count = 0;
    longest = total = 0;
}

uint64_t count_kernels_longest(void) { return longest; }
uint64_t count_kernels_total(void) { return total; }
