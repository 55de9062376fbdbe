/* test_device_batch.c - small tensors on a device whose encodes share one launch and one copy
 * (compress/device/device_batch.h): the number of launches, and the bytes, gradients and states of the same
 * codecs in host memory. Over a runtime and kernels without a device (tests/lib/fake_cuda). */
#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compress/compress.h"
#include "kernels/device_segment.h"
#include "kernels/device_table.h"
#include "kernels/kernels.h"
#include "tests/lib/fake_cuda/fake_cuda.h"

enum { TENSORS = 40, ELEMS_MAX = 3000, STEPS = 3, RANKS = 2 };

static const char *const codecs[] = {
    "int8:min_count=1",
    "int4:min_count=1,seed=5",
    "sign:min_count=1",
    "e4m3:min_count=1",
    "e5m2:min_count=1",
    "bf16",
    "f16",
};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

/* One tensor: its codec on the host and on the device, and another rank's on the host. */
struct tensor {
    struct weft_codec_spec spec;
    struct weft_shape shape;
    size_t elems, bytes_max;
    struct weft_codec *host, *device, *other;
    float *grad[RANKS], *out, *grad_there, *out_there;
    uint8_t *bytes[RANKS], *there;
    size_t length[RANKS], length_there;
    enum weft_status status;
};

struct many {
    struct weft_codec_device where;
    struct tensor tensors[TENSORS];
    uint32_t count;
    bool takes_sums; /* powersgd on the device takes sums, as in an all-reduce */
};

static uint64_t drawn;

static uint32_t draw(void)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(drawn >> 33);
}

static void tensor_open(struct many *many, struct tensor *tensor, const char *text, struct weft_shape shape)
{
    struct weft_error error = {0};
    tensor->elems = weft_shape_elems(&shape);
    tensor->shape = shape;
    assert_int_equal(weft_codec_parse(text, &tensor->spec, &error), WEFT_OK);
    tensor->spec = weft_codec_resolve(&tensor->spec, &tensor->shape);
    assert_int_equal(weft_codec_create(weft_env_system(), &tensor->spec, &tensor->shape, &tensor->host),
                     WEFT_OK);
    assert_int_equal(weft_codec_create(weft_env_system(), &tensor->spec, &tensor->shape, &tensor->other),
                     WEFT_OK);
    if (weft_codec_create_on(weft_env_system(), &tensor->spec, &tensor->shape, &many->where, &tensor->device,
                             &error) < 0)
        fail_msg("%s: %s", text, error.text);
    for (uint32_t k = 0; k < weft_codec_rounds(&tensor->spec); k++) {
        const size_t bytes = weft_codec_contribution_bytes_max(&tensor->spec, &tensor->shape, k);
        if (bytes > tensor->bytes_max) tensor->bytes_max = bytes;
    }
    for (int r = 0; r < RANKS; r++) {
        assert_non_null(tensor->grad[r] = calloc(tensor->elems, sizeof(float)));
        assert_non_null(tensor->bytes[r] = calloc(1, tensor->bytes_max));
    }
    assert_non_null(tensor->there = calloc(1, tensor->bytes_max));
    assert_non_null(tensor->out = calloc(tensor->elems, sizeof(float)));
    assert_int_equal(cudaMalloc((void **)&tensor->grad_there, tensor->elems * sizeof(float)), 0);
    assert_int_equal(cudaMalloc((void **)&tensor->out_there, tensor->elems * sizeof(float)), 0);
}

static struct many *many_open(uint64_t seed, uint32_t count)
{
    struct many *many = calloc(1, sizeof *many);
    struct weft_error error = {0};
    assert_non_null(many);
    drawn = seed * 31 + 3;
    fake_cuda_setup(seed, 50, 1);
    assert_int_equal(weft_memory_ops(WEFT_MEMORY_CUDA, &many->where.memory, &error), WEFT_OK);
    assert_int_equal(weft_device_kernels(&many->where.kernels, &error), WEFT_OK);
    many->where.ranks = RANKS;
    assert_int_equal(cudaStreamCreateWithFlags(&many->where.stream, 0), 0);
    many->where.batcher =
        weft_codec_batcher_create(weft_env_system(), many->where.memory, many->where.stream);
    assert_non_null(many->where.batcher);
    many->count = count;
    for (uint32_t t = 0; t < count; t++)
        tensor_open(many, &many->tensors[t], codecs[(t + seed) % CODECS],
                    (struct weft_shape){.dim_count = 2, .dims = {1, 1 + draw() % ELEMS_MAX}});
    return many;
}

static void many_close(struct many *many)
{
    for (uint32_t t = 0; t < many->count; t++) {
        struct tensor *tensor = &many->tensors[t];
        weft_codec_free(tensor->host);
        weft_codec_free(tensor->device);
        weft_codec_free(tensor->other);
        for (int r = 0; r < RANKS; r++) {
            free(tensor->grad[r]);
            free(tensor->bytes[r]);
        }
        free(tensor->there);
        free(tensor->out);
        cudaFree(tensor->grad_there);
        cudaFree(tensor->out_there);
    }
    weft_codec_batcher_free(many->where.batcher, false);
    cudaStreamDestroy(many->where.stream);
    free(many);
}

static void draw_gradients(struct many *many)
{
    fake_cuda_synchronize();
    for (uint32_t t = 0; t < many->count; t++) {
        struct tensor *tensor = &many->tensors[t];
        for (int r = 0; r < RANKS; r++)
            for (size_t i = 0; i < tensor->elems; i++)
                tensor->grad[r][i] = ((float)draw() * 0x1p-30f - 1.0f) * (draw() % 9 == 0 ? 1e-6f : 1.0f);
        memcpy(fake_cuda_shadow(tensor->grad_there), tensor->grad[0], tensor->elems * sizeof(float));
    }
}

static bool has_round(const struct tensor *tensor, uint32_t round)
{
    return round < weft_codec_rounds(&tensor->spec);
}

/* Every tensor begins its encode before any is polled, as an engine does within one turn of its loop. */
static void encode_all(struct many *many, uint32_t round)
{
    for (bool more = true; more;) {
        more = false;
        for (uint32_t t = 0; t < many->count; t++) {
            struct tensor *tensor = &many->tensors[t];
            if (!has_round(tensor, round) || tensor->status != WEFT_IN_PROGRESS) continue;
            tensor->status = weft_codec_encode(tensor->device, round, round == 0 ? tensor->grad_there : NULL,
                                               0.5f, tensor->there, &tensor->length_there);
            more |= tensor->status == WEFT_IN_PROGRESS;
        }
        for (uint32_t t = 0; t < many->count; t++)
            while (weft_codec_pending(many->tensors[t].device) == WEFT_IN_PROGRESS) usleep(20);
    }
}

/* T of two contributions. */
static void take_sum(struct tensor *tensor, uint32_t round)
{
    const size_t bytes = tensor->length[0], count = bytes / sizeof(float);
    float *sum = malloc(bytes), *other = malloc(bytes);
    assert_true(sum && other);
    memcpy(sum, tensor->bytes[0], bytes);
    memcpy(other, tensor->bytes[1], bytes);
    weft_kernels()->sum_f32(sum, sum, other, count);
    assert_int_equal(weft_codec_take_sum(tensor->device, round, sum, bytes, RANKS), WEFT_OK);
    free(sum);
    free(other);
}

static void combine(struct tensor *tensor, uint32_t round, bool takes_sums)
{
    struct weft_combiner *combiner;
    const void *aggregate;
    size_t bytes;
    assert_int_equal(tensor->length_there, tensor->length[0]);
    assert_memory_equal(tensor->there, tensor->bytes[0], tensor->length[0]);
    assert_int_equal(weft_combiner_create(weft_env_system(), &tensor->spec, &tensor->shape, RANKS, &combiner),
                     WEFT_OK);
    weft_combiner_begin(combiner, round);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(weft_combiner_add(combiner, tensor->bytes[r], tensor->length[r]), WEFT_OK);
    assert_int_equal(weft_combiner_close(combiner, &aggregate, &bytes), WEFT_OK);
    struct weft_codec *const all[] = {tensor->host, tensor->device, tensor->other};
    for (int c = 0; c < 3; c++) {
        if (c == 1 && takes_sums) take_sum(tensor, round);
        else assert_int_equal(weft_codec_take(all[c], round, aggregate, bytes, RANKS), WEFT_OK);
    }
    weft_combiner_free(combiner);
}

static void one_round(struct many *many, uint32_t round)
{
    for (uint32_t t = 0; t < many->count; t++) many->tensors[t].status = WEFT_IN_PROGRESS;
    encode_all(many, round);
    for (uint32_t t = 0; t < many->count; t++) {
        struct tensor *tensor = &many->tensors[t];
        if (!has_round(tensor, round)) continue;
        assert_int_equal(tensor->status, WEFT_OK);
        assert_int_equal(weft_codec_encode(tensor->host, round, tensor->grad[0], 0.5f, tensor->bytes[0],
                                           &tensor->length[0]),
                         WEFT_OK);
        assert_int_equal(weft_codec_encode(tensor->other, round, tensor->grad[1], 1.0f, tensor->bytes[1],
                                           &tensor->length[1]),
                         WEFT_OK);
        combine(tensor, round, many->takes_sums);
    }
}

static void finish_all(struct many *many)
{
    for (uint32_t t = 0; t < many->count; t++) {
        struct tensor *tensor = &many->tensors[t];
        assert_int_equal(weft_codec_finish(tensor->host, 0.5f, tensor->out), WEFT_OK);
        assert_int_equal(weft_codec_finish_begin(tensor->device, 0.5f, tensor->out_there), WEFT_OK);
    }
    for (uint32_t t = 0; t < many->count; t++) {
        struct tensor *tensor = &many->tensors[t];
        assert_int_equal(weft_codec_settle(tensor->device), WEFT_OK);
        weft_codec_commit(tensor->host);
        weft_codec_commit(tensor->device);
        weft_codec_commit(tensor->other);
    }
    fake_cuda_synchronize();
    for (uint32_t t = 0; t < many->count; t++)
        assert_memory_equal(fake_cuda_shadow(many->tensors[t].out_there), many->tensors[t].out,
                            many->tensors[t].elems * sizeof(float));
}

static void same_state(struct tensor *tensor)
{
    const size_t bytes = weft_codec_state_bytes(tensor->host);
    uint8_t *host = malloc(bytes + 1), *device = malloc(bytes + 1);
    assert_true(host && device);
    assert_int_equal(weft_codec_save(tensor->host, host), WEFT_OK);
    assert_int_equal(weft_codec_save(tensor->device, device), WEFT_OK);
    assert_memory_equal(device, host, bytes);
    free(host);
    free(device);
}

/* Steps of tensors of all codecs: bytes, results, states. */
static void test_steps(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const int before = fake_cuda_live_count();
        struct many *many = many_open(seed, TENSORS);
        for (int s = 0; s < STEPS; s++) {
            draw_gradients(many);
            one_round(many, 0);
            one_round(many, 1);
            finish_all(many);
        }
        for (uint32_t t = 0; t < TENSORS; t++) same_state(&many->tensors[t]);
        many_close(many);
        assert_int_equal(fake_cuda_live_count(), before);
    }
}

/* 32 tensors of one part each are one launch; 40 are two; a second part of some (f16) is one more. */
static void test_launches(void **state)
{
    struct many *many = many_open(2, TENSORS);
    const uint64_t before_bytes = fake_cuda_copied_bytes();
    draw_gradients(many);
    const int before = fake_cuda_launches();
    one_round(many, 0);
    assert_int_equal(fake_cuda_launches() - before, 3);
    uint64_t sent = 0;
    for (uint32_t t = 0; t < TENSORS; t++) sent += many->tensors[t].length[0];
    const uint64_t crossed = fake_cuda_copied_bytes() - before_bytes;
    /* encoded bytes, what aligns them, and a word for each entry: zeroed, then copied */
    assert_in_range(crossed, sent - 4 * TENSORS, sent + TENSORS * 64 + 3 * 2 * WEFT_SEGMENTS_MAX * 4);
    const int second = fake_cuda_launches();
    one_round(many, 1);
    assert_int_equal(fake_cuda_launches() - second, 1); /* of int8 and int4, fewer than 32 */
    many_close(many);
}

/* Members that leave: the others' bytes arrive; a batch that all have left is used again. */
static void test_leaving(void **state)
{
    struct many *many = many_open(5, TENSORS);
    for (int again = 0; again < 12; again++) {
        size_t bytes;
        draw_gradients(many);
        for (uint32_t t = 0; t < TENSORS; t++)
            assert_int_equal(weft_codec_encode(many->tensors[t].device, 0, many->tensors[t].grad_there, 1.0f,
                                               many->tensors[t].there, &bytes),
                             WEFT_IN_PROGRESS);
        if (again % 3 == 1) (void)weft_codec_pending(many->tensors[draw() % TENSORS].device);
        if (again % 3 == 2) weft_codec_settle(many->tensors[TENSORS - 1].device);
        for (uint32_t t = 0; t < TENSORS; t++) weft_codec_abandon(many->tensors[t].device);
    }
    draw_gradients(many);
    const int before = fake_cuda_launches();
    one_round(many, 0);
    assert_int_equal(fake_cuda_launches() - before, 3); /* so batches were idle */
    one_round(many, 1);
    finish_all(many);
    /* some leave a batch that collects */
    draw_gradients(many);
    for (uint32_t t = 0; t < TENSORS; t += 3) {
        size_t bytes;
        assert_int_equal(weft_codec_encode(many->tensors[t].device, 0, many->tensors[t].grad_there, 1.0f,
                                           many->tensors[t].there, &bytes),
                         WEFT_IN_PROGRESS);
        weft_codec_abandon(many->tensors[t].device);
    }
    one_round(many, 0);
    one_round(many, 1);
    finish_all(many);
    many_close(many);
}

/* ---- matrices of equal shape ---- */

enum { EQUAL = 7, OTHER = 3 };

/* EQUAL tensors of one shape, OTHER of another. */
static struct many *matrices_open(uint64_t seed)
{
    struct many *many = many_open(seed, 0);
    for (; many->count < EQUAL + OTHER; many->count++)
        tensor_open(many, &many->tensors[many->count], "powersgd:rank=2",
                    many->count < EQUAL ? (struct weft_shape){.dim_count = 2, .dims = {24, 30}}
                                        : (struct weft_shape){.dim_count = 2, .dims = {17, 40}});
    for (uint32_t t = 0; t < many->count; t++)
        assert_int_equal(many->tensors[t].spec.id, WEFT_CODEC_POWERSGD);
    return many;
}

static int launches_of_round(struct many *many, uint32_t round)
{
    const int before = fake_cuda_launches();
    one_round(many, round);
    return fake_cuda_launches() - before;
}

/* One launch of each kernel for each of the two shapes. */
static void test_equal_matrices(void **state)
{
    struct many *many = matrices_open(8);
    for (int s = 0; s < STEPS; s++) {
        draw_gradients(many);
        /* from the second step on the lazy residual, too */
        assert_int_equal(launches_of_round(many, 0), s == 0 ? 2 : 4);
        assert_int_equal(launches_of_round(many, 1), many->takes_sums ? 4 : 2);
        const int before = fake_cuda_launches();
        finish_all(many);
        assert_int_equal(fake_cuda_launches() - before, 2);
        many->takes_sums = s == 0; /* the next step's P is orthogonalised on the device */
    }
    for (uint32_t t = 0; t < many->count; t++) same_state(&many->tensors[t]);
    many_close(many);
}

/* A member that leaves before its batch is queued has its residual, and the others go on. */
static void test_matrices_leave(void **state)
{
    struct many *many = matrices_open(9);
    for (int s = 0; s < STEPS; s++) {
        size_t bytes;
        draw_gradients(many);
        for (uint32_t t = 0; t < many->count; t++)
            assert_int_equal(weft_codec_encode(many->tensors[t].device, 0, many->tensors[t].grad_there, 1.0f,
                                               many->tensors[t].there, &bytes),
                             WEFT_IN_PROGRESS);
        for (uint32_t t = 0; t < many->count; t++) weft_codec_abandon(many->tensors[t].device);
        for (uint32_t round = 0; round < 2; round++) one_round(many, round);
        finish_all(many);
    }
    for (uint32_t t = 0; t < many->count; t++) same_state(&many->tensors[t]);
    many_close(many);
}

/* A gradient that is not finite is refused alone. */
static void test_not_finite(void **state)
{
    struct many *many = many_open(4, 9);
    draw_gradients(many);
    for (uint32_t t = 0; t < many->count; t++) many->tensors[t].status = WEFT_IN_PROGRESS;
    ((float *)fake_cuda_shadow(many->tensors[3].grad_there))[0] = NAN;
    encode_all(many, 0);
    for (uint32_t t = 0; t < many->count; t++)
        assert_int_equal(many->tensors[t].status, t == 3 ? WEFT_ERR_INVALID : WEFT_OK);
    many_close(many);
}

/* The kernel or the copy fails: every member gets the status and the device's text. */
static void test_failures(void **state)
{
    for (int n = 1; n <= 2; n++) {
        struct many *many = many_open((uint64_t)n, 9);
        draw_gradients(many);
        for (uint32_t t = 0; t < many->count; t++) many->tensors[t].status = WEFT_IN_PROGRESS;
        if (n == 1) fake_cuda_fail_launch(1);
        else fake_cuda_fail_copy(1);
        encode_all(many, 0);
        for (uint32_t t = 0; t < many->count; t++) {
            assert_int_equal(many->tensors[t].status, WEFT_ERR_STATE);
            assert_non_null(strstr(weft_codec_device_error(many->tensors[t].device), "CUDA"));
            weft_codec_abandon(many->tensors[t].device);
            weft_codec_free(many->tensors[t].device);
            many->tensors[t].device = NULL;
        }
        fake_cuda_reset();
        many_close(many);
    }
    assert_int_equal(fake_cuda_live_count(), 0);
}

/* Without memory for batches each codec launches its own kernels. */
static void test_no_memory(void **state)
{
    const struct weft_shape shape = {.dim_count = 2, .dims = {1, 100}};
    struct many *many = many_open(6, 0);
    struct weft_codec *codec;
    struct weft_codec_spec spec;
    struct weft_error error = {0};
    float *grad;
    uint8_t bytes[400];
    size_t length;
    assert_int_equal(weft_codec_parse("bf16", &spec, &error), WEFT_OK);
    assert_int_equal(cudaMalloc((void **)&grad, 400), 0);
    fake_cuda_fail_alloc(4); /* bf16 has three arrays */
    assert_int_equal(weft_codec_create_on(weft_env_system(), &spec, &shape, &many->where, &codec, &error),
                     WEFT_OK);
    fake_cuda_fail_alloc(0);
    const int before = fake_cuda_launches();
    assert_int_equal(weft_codec_encode(codec, 0, grad, 1.0f, bytes, &length), WEFT_IN_PROGRESS);
    assert_int_equal(fake_cuda_launches() - before, 2); /* the largest magnitude, the cast */
    weft_codec_free(codec);
    cudaFree(grad);
    many_close(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),          cmocka_unit_test(test_launches),
        cmocka_unit_test(test_leaving),        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_failures),       cmocka_unit_test(test_equal_matrices),
        cmocka_unit_test(test_matrices_leave), cmocka_unit_test(test_no_memory),
    };
    setenv("WEFT_CUDA_RUNTIME", FAKE_CUDART, 1);
    setenv("WEFT_CUDA_KERNELS", FAKE_KERNELS, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
