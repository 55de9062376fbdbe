/* check_segments.c - one launch over a table of small tensors writes the scalar kernels' bits, and nothing
 * else: each segment and its guards lie in one block of memory, which is compared whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_check.h"
#include "tests/kernels/vectors.h"
#include "tests/lib/segment_scalar.h"

enum { COUNT_LARGE = 9000, TABLES = 40 };

static struct sample sample;
static unsigned char *host, *device, *back;
static size_t used, capacity;

/* (bytes,) of the block, at 8 bytes plus a shift; guards around it. */
static size_t reserve(size_t bytes, size_t shift)
{
    const size_t at = (used + 15) / 8 * 8 + shift;
    used = at + bytes;
    assert_true(used <= capacity);
    return at;
}

static size_t draw_count(void)
{
    const uint64_t draw = sample_u64(&sample);
    if (draw % 11 == 0) return 1 + sample_u64(&sample) % COUNT_LARGE;
    return vector_counts[1 + draw / 16 % (VECTOR_COUNTS - 1)];
}

static void fill(size_t at, enum sample_kind kind, size_t count)
{
    sample_fill(&sample, kind, (float *)(void *)(host + at), count);
}

/* Exponents under which x can be coded, as a group of workers agrees on them. */
static void set_exponents(const struct weft_segment *g, uint8_t *exponents)
{
    float *zero = calloc(g->count, sizeof *zero), *sum = check_malloc(g->count * sizeof *sum);
    assert_non_null(zero);
    weft_kernels_by_name("scalar")->scale_add_blocks_f32(sum, g->x, 1.0f, zero, g->count,
                                                         g->kind == WEFT_SEGMENT_INT4 ? 7 : 127, exponents);
    free(zero);
    free(sum);
}

/* Adds a segment: pointers into `host`. */
static void segment_add(struct weft_segment *g)
{
    const size_t count = draw_count(), blocks = (count + WEFT_BLOCK - 1) / WEFT_BLOCK,
                 shift = sample_u64(&sample) % 2 * 4;
    *g = (struct weft_segment){.kind = (uint32_t)(sample_u64(&sample) % (WEFT_SEGMENT_E5M2 + 1)),
                               .count = (uint32_t)count,
                               .factor = sample_u64(&sample) % 2 ? 1.0f : 0.5f,
                               .factor2 = sample_u64(&sample) % 2 ? 1.0f : 0x1p-3f,
                               .limit = sample_u64(&sample) % 2 ? 7 : 127,
                               .noise = {{(uint32_t)sample_u64(&sample), 3}, sample_u64(&sample), 0}};
    const bool any =
        g->kind == WEFT_SEGMENT_MAX || g->kind == WEFT_SEGMENT_F16 || g->kind == WEFT_SEGMENT_BF16;
    enum sample_kind kind = (enum sample_kind)(sample_u64(&sample) % SAMPLE_KINDS);
    if (kind == SAMPLE_WILD && !any) kind = SAMPLE_NORMAL;
    const size_t a = reserve(count * 4, shift), b = reserve(count * 4, shift), x = reserve(count * 4, shift),
                 exponents = reserve(blocks, 0), scales = reserve(blocks * 4, 0),
                 codes = reserve(count * 2, sample_u64(&sample) % 4 * 2), max = reserve(4, 0);
    fill(a, kind, count);
    fill(b, kind, count);
    fill(x, kind, count);
    g->a = (float *)(void *)(host + a);
    g->b = (float *)(void *)(host + b);
    g->x = (float *)(void *)(host + x);
    g->exponents = host + exponents;
    g->scales = host + scales;
    g->codes = host + codes;
    g->max_bits = (uint32_t *)(void *)(host + max);
    *g->max_bits = 0;
    if (g->kind == WEFT_SEGMENT_INT8 || g->kind == WEFT_SEGMENT_INT4) set_exponents(g, host + exponents);
    if (g->kind == WEFT_SEGMENT_INT8 || g->kind == WEFT_SEGMENT_INT4) g->max_bits = NULL;
}

static void *there(const void *at)
{
    return at ? device + ((const unsigned char *)at - host) : NULL;
}

static void check_table(size_t count)
{
    struct weft_segment segments[WEFT_SEGMENTS_MAX], on_device[WEFT_SEGMENTS_MAX];
    used = 0;
    for (size_t i = 0; i < capacity; i++) host[i] = (unsigned char)sample_u64(&sample);
    for (size_t i = 0; i < count; i++) {
        segment_add(&segments[i]);
        on_device[i] = segments[i];
        on_device[i].a = there(segments[i].a);
        on_device[i].b = there(segments[i].b);
        on_device[i].x = there(segments[i].x);
        on_device[i].exponents = there(segments[i].exponents);
        on_device[i].codes = there(segments[i].codes);
        on_device[i].scales = there(segments[i].scales);
        on_device[i].max_bits = there(segments[i].max_bits);
    }
    device_put(device, host, capacity);
    assert_int_equal(weft_cuda_encode_segments(on_device, count, NULL), WEFT_OK);
    for (size_t i = 0; i < count; i++) segment_encode_scalar(&segments[i]);
    device_get(back, device, capacity);
    for (size_t byte = 0; byte < capacity; byte++)
        if (back[byte] != host[byte]) fail_msg("a table of %zu segments differs from byte %zu", count, byte);
}

static void test_tables(void **state)
{
    sample = (struct sample){sample_seed(61)};
    for (size_t t = 0; t < TABLES; t++) {
        if (t > 0 && !check_this()) continue;
        check_table(t == 0 ? WEFT_SEGMENTS_MAX : sample_u64(&sample) % (WEFT_SEGMENTS_MAX + 1));
    }
}

static void test_refused(void **state)
{
    struct weft_segment segments[WEFT_SEGMENTS_MAX + 1] = {{0}};
    assert_int_equal(weft_cuda_encode_segments(segments, WEFT_SEGMENTS_MAX + 1, NULL), WEFT_ERR_INVALID);
    segments[1].kind = WEFT_SEGMENT_E5M2 + 1;
    assert_int_equal(weft_cuda_encode_segments(segments, 2, NULL), WEFT_ERR_INVALID);
    segments[1] = (struct weft_segment){.kind = WEFT_SEGMENT_MAX, .count = WEFT_SEGMENT_ELEMS_MAX + 1};
    assert_int_equal(weft_cuda_encode_segments(segments, 2, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_cuda_encode_segments(segments, 1, NULL), WEFT_OK); /* no work */
}

int check_segments(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables), cmocka_unit_test(test_refused)};
    capacity = WEFT_SEGMENTS_MAX * (size_t)COUNT_LARGE * 16;
    host = check_malloc(capacity);
    back = check_malloc(capacity);
    device = check_device_malloc(capacity);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_free(device);
    free(host);
    free(back);
    return failed;
}
