/* check_products.c - the CUDA low-rank products and the orthogonalisation against the scalar ones, bit for
 * bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_check.h"
#include "tests/kernels/vectors.h"

enum { LARGE_MAX = 600 * 1100, LARGE_FACTOR = 64 * 1100 };
enum { M, A, P, Q, OUT, ARRAYS };
static const struct weft_kernels *scalar;
static float *host[ARRAYS], *slow[ARRAYS], *device[ARRAYS], *got;
static uint32_t *device_max;
static void *device_workspace;

static void open_arrays(void)
{
    if (host[0]) return;
    for (int i = 0; i < ARRAYS; i++) {
        const size_t bytes = (LARGE_MAX + 8) * sizeof(float);
        host[i] = check_malloc(bytes);
        slow[i] = check_malloc(bytes);
        device[i] = check_device_malloc(bytes);
    }
    got = check_malloc((LARGE_MAX + 8) * sizeof(float));
    device_max = check_device_malloc(sizeof *device_max);
    device_workspace = check_device_malloc(weft_cuda_matmul_t_workspace(1100, 1100, 64) +
                                           weft_cuda_orthogonalise_workspace());
}

static void fill(struct sample *sample, enum sample_kind kind, int i, size_t count)
{
    sample_fill(sample, kind, host[i], count);
    memcpy(slow[i], host[i], count * sizeof(float));
    device_put(device[i], host[i], count * sizeof(float));
}

#define MUST(call)                                                                           \
    do {                                                                                     \
        const enum weft_status status_ = (call);                                             \
        if (status_ != WEFT_OK) fail_msg("%s answers %s", #call, weft_status_name(status_)); \
    } while (0)

static void same(int i, size_t count, const char *kernel, size_t rows, size_t cols, size_t rank)
{
    device_get(got, device[i], count * sizeof *got);
    if (memcmp(got, slow[i], count * sizeof *got) != 0)
        fail_msg("cuda %s differs from scalar: %zu x %zu rank %zu", kernel, rows, cols, rank);
}

/* Everything a step does, on inputs that start `shift` elements late. */
static void check(struct sample *sample, enum sample_kind kind, size_t rows, size_t cols, size_t rank,
                  size_t shift)
{
    const size_t elems = rows * cols, stride = rows + 1;
    const float factor = sample_normal(sample);
    uint32_t max;
    for (int i = M; i <= A; i++) fill(sample, kind, i, elems + shift);
    fill(sample, kind, P, rank * rows + shift);
    fill(sample, kind, Q, rank * cols + shift);
    fill(sample, SAMPLE_NORMAL, OUT, elems > rank * stride ? elems + shift : rank * stride + shift);
#define D(i) (device[i] + shift)
#define S(i) (slow[i] + shift)
    MUST(weft_cuda_matmul_f32(D(OUT), stride, D(M), D(Q), rows, cols, rank, NULL));
    scalar->matmul_f32(S(OUT), stride, S(M), S(Q), rows, cols, rank);
    same(OUT, rank * stride + shift, "matmul", rows, cols, rank);
    device_set(device_max, 0, sizeof max);
    MUST(weft_cuda_scale_add_matmul_f32(D(M), D(A), factor, D(M), D(OUT), stride, D(Q), rows, cols, rank,
                                        device_max, NULL));
    const uint32_t expected =
        scalar->scale_add_matmul_f32(S(M), S(A), factor, S(M), S(OUT), stride, S(Q), rows, cols, rank);
    same(OUT, rank * stride + shift, "scale_add_matmul", rows, cols, rank);
    same(M, elems + shift, "scale_add_matmul, sum", rows, cols, rank);
    device_get(&max, device_max, sizeof max);
    assert_int_equal(max, expected);
    MUST(weft_cuda_matmul_t_f32(D(Q), D(M), D(P), rows, cols, rank, device_workspace, NULL));
    scalar->matmul_t_f32(S(Q), S(M), S(P), rows, cols, rank);
    same(Q, rank * cols + shift, "matmul_t", rows, cols, rank);
    MUST(weft_cuda_outer_sub_f32(D(M), D(P), D(Q), rows, cols, rank, NULL));
    scalar->outer_sub_f32(S(M), S(P), S(Q), rows, cols, rank);
    same(M, elems + shift, "outer_sub", rows, cols, rank);
    MUST(weft_cuda_outer_f32(D(OUT), D(P), D(Q), rows, cols, rank, NULL));
    scalar->outer_f32(S(OUT), S(P), S(Q), rows, cols, rank);
    same(OUT, elems + shift, "outer", rows, cols, rank);
#undef D
#undef S
}

static void test_products(void **state)
{
    struct sample sample = {sample_seed(71)};
    for (size_t a = 0; a < VECTOR_SIZES; a++)
        for (size_t b = 0; b < VECTOR_SIZES; b++)
            if (check_this())
                check(&sample, (enum sample_kind)((a + b) % SAMPLE_KINDS), vector_sizes[a], vector_sizes[b],
                      vector_ranks[(a * 5 + b) % VECTOR_RANKS], a + b < 4 ? 0 : (a + b) % 2);
}

/* Three matrices by one call of each, beside the scalar kernels one by one. */
static void check_many(struct sample *sample, size_t rows, size_t cols, size_t rank)
{
    enum { MANY = 3 };
    const size_t elems = rows * cols, scratch = (weft_cuda_orthogonalise_workspace() + 63) / 16 * 16;
    struct weft_matrix matrices[MANY];
    uint32_t max, expected = 0;
    for (int i = M; i <= OUT; i++)
        fill(sample, SAMPLE_NORMAL, i, MANY * (i == P || i == Q ? rank * (rows + cols) : elems));
    for (size_t b = 0; b < MANY; b++)
        matrices[b] = (struct weft_matrix){.m = device[M] + b * elems,
                                           .a = device[A] + b * elems,
                                           .b = device[OUT] + b * elems,
                                           .p = device[P] + b * rank * rows,
                                           .q = device[Q] + b * rank * cols,
                                           .max_bits = device_max,
                                           .scratch = (char *)device_workspace + b * scratch,
                                           .factor = 0.5f};
    device_set(device_max, 0, sizeof max);
#define EACH(call)                                                                                           \
    for (size_t b = 0; b < MANY; b++) {                                                                      \
        float *const m = slow[M] + b * elems, *const p = slow[P] + b * rank * rows,                          \
                    *const q = slow[Q] + b * rank * cols;                                                    \
        call;                                                                                                \
    }                                                                                                        \
    same(M, MANY * elems, #call, rows, cols, rank);                                                          \
    same(P, MANY * rank * rows, #call, rows, cols, rank);                                                    \
    same(Q, MANY * rank * cols, #call, rows, cols, rank)
    MUST(weft_cuda_matmul_many_f32(matrices, MANY, true, rows, cols, rank, NULL));
    EACH(const float *const grad = slow[A] + b * elems; const float *const residual = slow[OUT] + b * elems;
         const uint32_t bits =
             scalar->scale_add_matmul_f32(m, grad, 0.5f, residual, p, rows, q, rows, cols, rank);
         if (bits > expected) expected = bits);
    device_get(&max, device_max, sizeof max);
    assert_int_equal(max, expected);
    MUST(weft_cuda_orthogonalise_many(matrices, MANY, rows, rank, NULL));
    EACH((void)m; (void)q; weft_orthogonalise(p, rows, rank, NULL));
    MUST(weft_cuda_matmul_t_many_f32(matrices, MANY, rows, cols, rank, NULL));
    EACH(scalar->matmul_t_f32(q, m, p, rows, cols, rank));
    MUST(weft_cuda_outer_many_f32(matrices, MANY, true, rows, cols, rank, NULL));
    EACH(scalar->outer_sub_f32(m, p, q, rows, cols, rank));
    MUST(weft_cuda_matmul_many_f32(matrices, MANY, false, rows, cols, rank, NULL));
    EACH(scalar->matmul_f32(p, rows, m, q, rows, cols, rank));
    MUST(weft_cuda_outer_many_f32(matrices, MANY, false, rows, cols, rank, NULL));
    EACH(scalar->outer_f32(m, p, q, rows, cols, rank));
#undef EACH
}

static void test_many(void **state)
{
    static const struct weft_matrix none[WEFT_MATRICES_MAX + 1];
    struct sample sample = {sample_seed(74)};
    check_many(&sample, 37, 52, 4);
    check_many(&sample, 33, 21, 9);
    assert_int_equal(weft_cuda_matmul_many_f32(none, WEFT_MATRICES_MAX + 1, false, 1, 1, 1, NULL),
                     WEFT_ERR_INVALID);
    assert_int_equal(weft_cuda_outer_many_f32(none, 1, false, 1, 1, 65, NULL), WEFT_ERR_INVALID);
}

/* Several bands of rows, several blocks of columns. */
static void test_large_products(void **state)
{
    static const size_t shapes[][3] = {
        {257, 300, 4}, {512, 256, 8}, {600, 129, 9}, {33, 1100, 2}, {1024, 20, 1}};
    struct sample sample = {sample_seed(72)};
    for (size_t t = 0; t < sizeof shapes / sizeof shapes[0]; t++)
        if (check_this())
            check(&sample, t % 2 ? SAMPLE_WILD : SAMPLE_NORMAL, shapes[t][0], shapes[t][1], shapes[t][2], 0);
    assert_int_equal(weft_cuda_matmul_f32(device[OUT], 4, device[M], device[Q], 4, 4, 65, NULL),
                     WEFT_ERR_INVALID);
    assert_int_equal(weft_cuda_matmul_f32(device[OUT], 4, device[M], device[Q], 4, 4, 0, NULL),
                     WEFT_ERR_INVALID);
}

static void check_basis(size_t rows, size_t rank, const char *what)
{
    bool dropped[64];
    uint8_t got_dropped[64], *device_dropped = (uint8_t *)device[OUT];
    uint32_t kept, *device_kept = device_max;
    device_put(device[P], slow[P], rank * rows * sizeof(float));
    const size_t expected = weft_orthogonalise(slow[P], rows, rank, dropped);
    MUST(weft_cuda_orthogonalise(device[P], rows, rank, device_dropped, device_kept, device_workspace, NULL));
    device_get(got, device[P], rank * rows * sizeof *got);
    if (memcmp(got, slow[P], rank * rows * sizeof *got) != 0)
        fail_msg("cuda orthogonalise differs: %s, %zu rows, rank %zu", what, rows, rank);
    device_get(&kept, device_kept, sizeof kept);
    device_get(got_dropped, device_dropped, rank);
    assert_int_equal(kept, expected);
    for (size_t r = 0; r < rank; r++) assert_int_equal(got_dropped[r], dropped[r]);
}

/* Random, nearly parallel (the correction is due), duplicate, zero, poisoned, denormal, huge, and more
 * vectors than rows. */
static void test_orthogonalise(void **state)
{
    static const size_t rows_of[] = {1, 3, 15, 16, 17, 200, 1000};
    static const size_t ranks[] = {1, 2, 4, 6, 8, 9, 33, 64};
    struct sample sample = {sample_seed(73)};
    for (size_t t = 0; t < 7; t++)
        for (size_t c = 0; c < 8; c++) {
            const size_t rows = rows_of[t], rank = ranks[c], count = rows * rank;
            float *p = slow[P];
            if (!check_this()) continue;
            sample_fill(&sample, SAMPLE_NORMAL, p, count);
            check_basis(rows, rank, "normal");
            for (double kappa = 1e2; kappa < 1e8; kappa *= 1e2) {
                for (size_t i = 0; i < count; i++)
                    p[i] = (i < rows ? sample_normal(&sample) : p[i % rows]) +
                           (i < rows ? 0.0f : (float)((double)sample_normal(&sample) / kappa));
                check_basis(rows, rank, "nearly parallel");
            }
            sample_fill(&sample, SAMPLE_NORMAL, p, count);
            if (rank > 1) memcpy(p + rows, p, rows * sizeof *p);
            if (rank > 2) memset(p + 2 * rows, 0, rows * sizeof *p);
            if (rank > 3) p[3 * rows] = NAN;
            check_basis(rows, rank, "deficient");
            sample_fill(&sample, SAMPLE_DENORMAL, p, count);
            check_basis(rows, rank, "denormal");
            for (size_t i = 0; i < count; i++)
                p[i] = sample_normal(&sample) * (i / rows % 2 ? 1e30f : 1e-30f);
            check_basis(rows, rank, "huge and tiny");
        }
    assert_int_equal(weft_cuda_orthogonalise(device[P], 10, 65, NULL, NULL, device_workspace, NULL),
                     WEFT_ERR_INVALID);
}

int check_products(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_large_products), cmocka_unit_test(test_many),
        cmocka_unit_test(test_orthogonalise),
    };
    scalar = weft_kernels_by_name("scalar");
    open_arrays();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
