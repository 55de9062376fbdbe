/* test_device.c - codecs whose arrays lie on a device beside the same in host memory: the same bytes,
 * gradients and states, bit for bit, whatever happens to their steps. Over a runtime and kernels without a
 * device (tests/lib/fake_cuda), whose streams run late. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compress/compress.h"
#include "kernels/device_table.h"
#include "kernels/kernels.h"
#include "tests/lib/fake_cuda/fake_cuda.h"

enum { ROWS = 41, COLS = 53, ELEMS = ROWS * COLS, RANKS = 3, STEPS = 7 };

static const char *const codecs[] = {
    "f16",
    "bf16",
    "int8:min_count=1",
    "int4:min_count=1,seed=3",
    "sign:min_count=1",
    "e4m3:min_count=1",
    "e5m2:min_count=1",
    "randomk:ratio=0.05,min_count=1",
    "randomk:ratio=0.1,feedback=0.7,seed=9,min_count=1",
    "topk:ratio=0.03",
    "topk:ratio=0.4",
    "topk:ratio=0.02,momentum=0.9,warmup_steps=3",
    "topk:ratio=0.05,momentum=0.5,nesterov=1,masking=0",
    "powersgd:rank=2",
    "powersgd:rank=3,iterations=2",
};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

static const struct weft_shape shape = {.dim_count = 2, .dims = {ROWS, COLS}};

/* One worker's codec on the host and on the device, and the other workers on the host. */
struct pair {
    struct weft_codec_spec spec;
    struct weft_codec *host, *device, *others[RANKS - 1];
    struct weft_codec_device where;
    float grad[RANKS][ELEMS], out[2][ELEMS];
    float *grad_there, *out_there;
    uint8_t *bytes[RANKS], *again;
};

static uint64_t drawn;

static uint32_t draw(void)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(drawn >> 33);
}

static void draw_gradients(struct pair *pair)
{
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < ELEMS; i++)
            pair->grad[r][i] =
                ((float)draw() * 0x1p-30f - 1.0f) * (draw() % 9 == 0 ? 1e-6f : 1.0f) * (draw() % 7 != 0);
}

static void put(struct pair *pair)
{
    fake_cuda_synchronize();
    memcpy(fake_cuda_shadow(pair->grad_there), pair->grad[0], sizeof pair->grad[0]);
}

static const float *got(struct pair *pair)
{
    fake_cuda_synchronize();
    return fake_cuda_shadow(pair->out_there);
}

static enum weft_status open_device(struct pair *pair, struct weft_codec **codec_out,
                                    struct weft_error *error)
{
    return weft_codec_create_on(weft_env_system(), &pair->spec, &shape, &pair->where, codec_out, error);
}

static struct pair *pair_open(const char *text, uint64_t seed)
{
    struct pair *pair = calloc(1, sizeof *pair);
    struct weft_error error = {0};
    assert_non_null(pair);
    drawn = seed * 77 + 5;
    fake_cuda_setup(seed, 50, 1);
    assert_int_equal(weft_codec_parse(text, &pair->spec, &error), WEFT_OK);
    pair->spec = weft_codec_resolve(&pair->spec, &shape);
    assert_int_equal(weft_memory_ops(WEFT_MEMORY_CUDA, &pair->where.memory, &error), WEFT_OK);
    assert_int_equal(weft_device_kernels(&pair->where.kernels, &error), WEFT_OK);
    pair->where.ranks = RANKS;
    assert_int_equal(cudaStreamCreateWithFlags(&pair->where.stream, 0), 0);
    assert_int_equal(cudaMalloc((void **)&pair->grad_there, sizeof pair->grad[0]), 0);
    assert_int_equal(cudaMalloc((void **)&pair->out_there, sizeof pair->out[0]), 0);
    assert_int_equal(weft_codec_create(weft_env_system(), &pair->spec, &shape, &pair->host), WEFT_OK);
    for (int r = 1; r < RANKS; r++)
        assert_int_equal(weft_codec_create(weft_env_system(), &pair->spec, &shape, &pair->others[r - 1]),
                         WEFT_OK);
    if (open_device(pair, &pair->device, &error) < 0) fail_msg("%s: %s", text, error.text);
    size_t most = 0;
    for (uint32_t k = 0; k < weft_codec_rounds(&pair->spec); k++) {
        const size_t bytes = weft_codec_contribution_bytes_max(&pair->spec, &shape, k);
        most = bytes > most ? bytes : most;
    }
    for (int r = 0; r < RANKS; r++) assert_non_null(pair->bytes[r] = malloc(most));
    assert_non_null(pair->again = malloc(most));
    return pair;
}

static void pair_close(struct pair *pair)
{
    weft_codec_free(pair->host);
    weft_codec_free(pair->device);
    for (int r = 1; r < RANKS; r++) weft_codec_free(pair->others[r - 1]);
    cudaFree(pair->grad_there);
    cudaFree(pair->out_there);
    cudaStreamDestroy(pair->where.stream);
    for (int r = 0; r < RANKS; r++) free(pair->bytes[r]);
    free(pair->again);
    free(pair);
}

/* As an engine does: polls, and continues with other work. An encode that is called when nothing is pending
 * completes or queues more. */
static enum weft_status encode_there(struct pair *pair, uint32_t round, float scale, uint8_t *out,
                                     size_t *bytes)
{
    enum weft_status status;
    int launches = -1;
    while ((status = weft_codec_encode(pair->device, round, round == 0 ? pair->grad_there : NULL, scale, out,
                                       bytes)) == WEFT_IN_PROGRESS) {
        assert_int_not_equal(fake_cuda_launches(), launches);
        launches = fake_cuda_launches();
        while (weft_codec_pending(pair->device) == WEFT_IN_PROGRESS) usleep(20);
    }
    return status;
}

/* The device's codec takes the sum of the contributions, as in an all-reduce. */
static void take_sum(struct pair *pair, uint32_t round)
{
    const size_t bytes = weft_codec_contribution_bytes_max(&pair->spec, &shape, round),
                 count = bytes / sizeof(float);
    float *sum = malloc(bytes), *part = malloc(bytes);
    assert_true(sum && part);
    memcpy(sum, pair->bytes[0], bytes);
    for (int r = 1; r < RANKS; r++) { /* T of three: (0 + 1) + 2 */
        memcpy(part, pair->bytes[r], bytes);
        weft_kernels()->sum_f32(sum, sum, part, count);
    }
    assert_int_equal(weft_codec_take_sum(pair->device, round, sum, bytes, RANKS), WEFT_OK);
    assert_int_equal(weft_codec_take_sum(pair->device, round, sum, bytes, RANKS), WEFT_ERR_STATE);
    free(sum);
    free(part);
}

/* One round on all ranks; both of rank 0's codecs give the same bytes, twice, and take the same aggregate. */
static void one_round(struct pair *pair, uint32_t round, float scale, struct weft_combiner *combiner)
{
    size_t bytes[RANKS], there, twice;
    const void *aggregate;
    assert_int_equal(weft_codec_encode(pair->host, round, pair->grad[0], scale, pair->bytes[0], &bytes[0]),
                     WEFT_OK);
    assert_int_equal(encode_there(pair, round, scale, pair->again, &there), WEFT_OK);
    assert_int_equal(there, bytes[0]);
    assert_memory_equal(pair->again, pair->bytes[0], there);
    memset(pair->again, 0, there);
    assert_int_equal(encode_there(pair, round, scale, pair->again, &twice), WEFT_OK); /* a retry */
    assert_memory_equal(pair->again, pair->bytes[0], there);
    weft_combiner_begin(combiner, round);
    for (int r = 0; r < RANKS; r++) {
        if (r > 0)
            assert_int_equal(
                weft_codec_encode(pair->others[r - 1], round, pair->grad[r], 1.0f, pair->bytes[r], &bytes[r]),
                WEFT_OK);
        assert_int_equal(weft_combiner_add(combiner, pair->bytes[r], bytes[r]), WEFT_OK);
    }
    size_t aggregate_bytes;
    assert_int_equal(weft_combiner_close(combiner, &aggregate, &aggregate_bytes), WEFT_OK);
    assert_int_equal(weft_codec_take(pair->device, round, aggregate, aggregate_bytes - 1, RANKS),
                     WEFT_ERR_MALFORMED);
    assert_int_equal(weft_codec_take(pair->host, round, aggregate, aggregate_bytes, RANKS), WEFT_OK);
    if (weft_codec_combine_kind(&pair->spec, round) == WEFT_COMBINE_SUM_F32 && draw() % 2)
        take_sum(pair, round);
    else assert_int_equal(weft_codec_take(pair->device, round, aggregate, aggregate_bytes, RANKS), WEFT_OK);
    for (int r = 1; r < RANKS; r++)
        assert_int_equal(weft_codec_take(pair->others[r - 1], round, aggregate, aggregate_bytes, RANKS),
                         WEFT_OK);
}

/* `rounds` of a step; all of them: the gradients are compared and the step is committed; else it is
 * abandoned. */
static void step(struct pair *pair, float scale, uint32_t rounds)
{
    struct weft_combiner *combiner;
    const uint32_t all = weft_codec_rounds(&pair->spec);
    assert_int_equal(weft_combiner_create(weft_env_system(), &pair->spec, &shape, RANKS, &combiner), WEFT_OK);
    draw_gradients(pair);
    put(pair);
    for (uint32_t round = 0; round < rounds; round++) one_round(pair, round, scale, combiner);
    weft_combiner_free(combiner);
    if (rounds == all) {
        assert_int_equal(weft_codec_finish(pair->host, 1.0f / RANKS, pair->out[0]), WEFT_OK);
        assert_int_equal(weft_codec_finish(pair->device, 1.0f / RANKS, pair->out_there), WEFT_OK);
        if (draw() % 2) assert_memory_equal(got(pair), pair->out[0], sizeof pair->out[0]);
    }
    struct weft_codec *const both[] = {pair->host, pair->device, pair->others[0], pair->others[1]};
    for (int c = 0; c < 4; c++) {
        if (rounds == all) weft_codec_commit(both[c]);
        else weft_codec_abandon(both[c]);
    }
    if (rounds == all) assert_memory_equal(got(pair), pair->out[0], sizeof pair->out[0]);
}

static void same_states(struct pair *pair)
{
    const size_t bytes = weft_codec_state_bytes(pair->host);
    uint8_t *host = malloc(bytes), *device = malloc(bytes);
    float *residual = malloc(ELEMS * sizeof *residual), *device_residual = malloc(ELEMS * sizeof *residual);
    assert_true(host && device && residual && device_residual);
    assert_int_equal(weft_codec_state_bytes(pair->device), bytes);
    assert_int_equal(weft_codec_save(pair->host, host), WEFT_OK);
    assert_int_equal(weft_codec_save(pair->device, device), WEFT_OK);
    assert_memory_equal(device, host, bytes);
    assert_true(weft_codec_residual_norm(pair->host) == weft_codec_residual_norm(pair->device));
    assert_int_equal(weft_codec_residual_copy(pair->host, residual), WEFT_OK);
    assert_int_equal(weft_codec_residual_copy(pair->device, device_residual), WEFT_OK);
    assert_memory_equal(device_residual, residual, ELEMS * sizeof *residual);
    /* and into a new one there, which goes on in its place */
    struct weft_codec *next;
    struct weft_error error = {0};
    assert_int_equal(open_device(pair, &next, &error), WEFT_OK);
    assert_int_equal(weft_codec_load(next, host, bytes), WEFT_OK);
    assert_int_equal(weft_codec_load(next, host, bytes - 1), WEFT_ERR_MALFORMED);
    weft_codec_free(pair->device);
    pair->device = next;
    free(host), free(device), free(residual), free(device_residual);
}

/* Steps that end, steps that do not, in any round, and an encode left in the middle. */
static void test_steps(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        const int before = fake_cuda_live_count();
        struct pair *pair = pair_open(codecs[c], (uint64_t)c + 1);
        const uint32_t all = weft_codec_rounds(&pair->spec);
        const int launches = fake_cuda_launches();
        size_t bytes;
        for (int s = 0; s < STEPS; s++) {
            step(pair, s % 3 == 2 ? 2.5f : 1.0f, all);
            if (s == 1 || s == 4) step(pair, 1.0f, draw() % all);
            if (s == 2)
                assert_int_equal(
                    weft_codec_encode(pair->device, 0, pair->grad_there, 1.0f, pair->again, &bytes),
                    WEFT_IN_PROGRESS);
            if (s == 2) weft_codec_abandon(pair->device);
            if (s == 3) {
                same_states(pair);
                assert_int_equal(weft_codec_set_ranks(pair->host, 4), WEFT_OK);
                assert_int_equal(weft_codec_set_ranks(pair->device, 4), WEFT_OK);
                assert_int_equal(weft_codec_set_ranks(pair->host, RANKS), WEFT_OK);
                assert_int_equal(weft_codec_set_ranks(pair->device, RANKS), WEFT_OK);
                assert_int_equal(weft_codec_rescale(pair->device, 0), WEFT_ERR_INVALID);
            }
        }
        same_states(pair);
        assert_true(fake_cuda_launches() > launches + 2 * STEPS);
        pair_close(pair);
        assert_int_equal(fake_cuda_live_count(), before);
    }
}

/* During an encode the codec cannot be saved, loaded or scaled; the call does not
 * disturb it. */
static void test_in_progress(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        struct pair *pair = pair_open(codecs[c], (uint64_t)c + 90);
        step(pair, 1.0f, weft_codec_rounds(&pair->spec));
        const size_t state_bytes = weft_codec_state_bytes(pair->host);
        uint8_t *saved = malloc(state_bytes + ELEMS * sizeof(float));
        size_t bytes, there;
        assert_non_null(saved);
        assert_int_equal(weft_codec_save(pair->host, saved), WEFT_OK);
        draw_gradients(pair);
        put(pair);
        assert_int_equal(weft_codec_encode(pair->host, 0, pair->grad[0], 1.0f, pair->bytes[0], &bytes),
                         WEFT_OK);
        assert_int_equal(weft_codec_encode(pair->device, 0, pair->grad_there, 1.0f, pair->again, &there),
                         WEFT_IN_PROGRESS);
        assert_int_equal(weft_codec_state_bytes(pair->device), state_bytes);
        assert_int_equal(weft_codec_save(pair->device, saved + sizeof(float)), WEFT_ERR_STATE);
        assert_int_equal(weft_codec_load(pair->device, saved, state_bytes), WEFT_ERR_STATE);
        assert_int_equal(weft_codec_residual_copy(pair->device, (float *)(void *)(saved)), WEFT_ERR_STATE);
        assert_int_equal(weft_codec_rescale(pair->device, 2), WEFT_ERR_STATE);
        assert_int_equal(weft_codec_set_ranks(pair->device, RANKS + 1), WEFT_ERR_STATE);
        assert_true(weft_codec_residual_norm(pair->device) >= 0);
        assert_int_equal(encode_there(pair, 0, 1.0f, pair->again, &there), WEFT_OK);
        assert_int_equal(there, bytes);
        assert_memory_equal(pair->again, pair->bytes[0], bytes);
        weft_codec_abandon(pair->host);
        weft_codec_abandon(pair->device);
        same_states(pair);
        step(pair, 1.0f, weft_codec_rounds(&pair->spec));
        free(saved);
        pair_close(pair);
    }
}

/* No memory for the n-th array of a codec, for every n: the codec is refused, and all memory is freed. */
static void test_no_memory(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        struct pair *pair = pair_open(codecs[c], 7);
        const int before = fake_cuda_live_count();
        struct weft_error error = {0};
        struct weft_codec *codec = NULL;
        int n = 0;
        enum weft_status status;
        do {
            fake_cuda_fail_alloc(++n);
            status = open_device(pair, &codec, &error);
            fake_cuda_fail_alloc(0);
            if (status == WEFT_OK) break;
            assert_int_equal(status, WEFT_ERR_NO_MEMORY);
            assert_non_null(strstr(error.text, "cudaErrorMemoryAllocation"));
            assert_null(codec);
            assert_int_equal(fake_cuda_live_count(), before);
            error = (struct weft_error){0};
        } while (n < 100);
        assert_int_equal(status, WEFT_OK);
        assert_true(n > 3); /* its arrays and the one of the largest magnitude */
        weft_codec_free(codec);
        assert_int_equal(fake_cuda_live_count(), before);
        step(pair, 1.0f, weft_codec_rounds(&pair->spec));
        pair_close(pair);
    }
}

/* A gradient that is not finite, or too large, is refused by both and changes neither. */
static void test_not_finite(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int c = 0; c < CODECS; c++) {
        struct pair *pair = pair_open(codecs[c], (uint64_t)c + 50);
        step(pair, 1.0f, weft_codec_rounds(&pair->spec));
        for (int b = 0; b < 3; b++) {
            size_t bytes;
            pair->grad[0][draw() % ELEMS] = bad[b];
            put(pair);
            assert_int_equal(weft_codec_encode(pair->host, 0, pair->grad[0], 1.0f, pair->bytes[0], &bytes),
                             WEFT_ERR_INVALID);
            assert_int_equal(encode_there(pair, 0, 1.0f, pair->again, &bytes), WEFT_ERR_INVALID);
            weft_codec_abandon(pair->host);
            weft_codec_abandon(pair->device);
        }
        same_states(pair);
        step(pair, 1.0f, weft_codec_rounds(&pair->spec));
        pair_close(pair);
    }
}

/* The n-th kernel or copy of a step fails: the call returns a status and the device's text, and all memory
 * is freed. */
static void test_failures(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        for (int n = 1, failed = 1; failed; n++) {
            struct pair *pair = pair_open(codecs[c], (uint64_t)n);
            enum weft_status status = WEFT_OK;
            size_t bytes;
            draw_gradients(pair);
            put(pair);
            if (n % 2) fake_cuda_fail_launch(n / 2 + 1);
            else fake_cuda_fail_copy(n / 2);
            status = encode_there(pair, 0, 1.5f, pair->again, &bytes);
            failed = status < 0 || n % 2; /* copies are as many as kernels, or more */
            if (status < 0) {
                assert_int_equal(status, WEFT_ERR_STATE);
                assert_non_null(strstr(weft_codec_device_error(pair->device), "CUDA"));
            }
            weft_codec_abandon(pair->device);
            weft_codec_free(pair->device);
            pair->device = NULL;
            fake_cuda_reset();
            pair_close(pair);
        }
    }
    assert_int_equal(fake_cuda_live_count(), 0);
}

static void test_refused(void **state)
{
    static const char *const texts[] = {"dense", "topk:ratio=0.1,clip=3"};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        struct pair *pair = pair_open("bf16", 3);
        struct weft_codec *codec = NULL;
        struct weft_error error = {0};
        assert_int_equal(weft_codec_parse(texts[t], &pair->spec, &error), WEFT_OK);
        pair->spec = weft_codec_resolve(&pair->spec, &shape);
        assert_int_equal(open_device(pair, &codec, &error), WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "no form on a device"));
        assert_null(codec);
        pair_close(pair);
    }
}

/* ---- a device that hangs ---- */

static atomic_bool held;
/* whose clock goes a second further whenever it is read while the device hangs */
static struct weft_env hurried;
static _Atomic uint64_t hurried_ns;

static void hold(void *context)
{
    while (atomic_load(&held)) usleep(100);
}

static uint64_t hurried_now_ns(struct weft_env *env)
{
    return atomic_fetch_add(&hurried_ns, atomic_load(&held) ? WEFT_SECONDS(1) : 1);
}

/* A wait for it times out, names the device, and keeps all memory that the device may still write. */
static void test_hangs(void **state)
{
    struct pair *pair = pair_open("int8:min_count=1", 3);
    struct weft_codec *codec;
    struct weft_error error = {0};
    uint8_t *saved;
    hurried = *weft_env_system();
    hurried.now_ns = hurried_now_ns;
    assert_int_equal(weft_codec_create_on(&hurried, &pair->spec, &shape, &pair->where, &codec, &error),
                     WEFT_OK);
    assert_non_null(saved = malloc(weft_codec_state_bytes(codec)));
    assert_int_equal(weft_codec_save(codec, saved), WEFT_OK);
    atomic_store(&held, true);
    assert_int_equal(fake_cuda_launch(pair->where.stream, hold, NULL), 0);
    assert_int_equal(weft_codec_save(codec, saved), WEFT_ERR_DEADLINE);
    assert_string_equal(weft_codec_device_error(codec),
                        "device 0 has not completed the work queued on it for 30 s");
    atomic_store(&held, false);
    fake_cuda_synchronize();
    weft_codec_free(codec);
    free(saved);
    pair_close(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_in_progress),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hangs),
    };
    setenv("WEFT_CUDA_RUNTIME", FAKE_CUDART, 1);
    setenv("WEFT_CUDA_KERNELS", FAKE_KERNELS, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
