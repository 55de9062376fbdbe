/* test_weighted_average.c - averages weighted by samples: sum(w*x) / sum(w), bit for bit by
 * docs/collectives.md, over plans, types, groups and ways of calling; ranks of weight 0; refused calls.
 * Several sessions in one process. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/crowd.h"
#include "kernels/kernels.h"

#define COUNT 1501u
#define RANKS 3u

static const double samples[RANKS] = {48, 7, 33}; /* the largest is 48: factors are divided by 64 */

static float value(uint32_t rank, uint32_t i)
{
    return sinf((float)(rank * 7919 + i)) * expf((float)(i % 23) - 11);
}

static enum weft_status finish(enum weft_status started, struct weft_request *request)
{
    return started < 0 ? started : weft_wait(request, 0);
}

/* Reference: tree T over three ranks, products rounded to f32, times one f32 reciprocal. */
static void reference(const double *weights, float *out)
{
    double total = weights[0] + weights[1] + weights[2];
    for (uint32_t i = 0; i < COUNT; i++) {
        volatile float part[RANKS], sum;
        for (uint32_t r = 0; r < RANKS; r++) part[r] = value(r, i) * (float)weights[r];
        sum = part[0] + part[1];
        sum = sum + part[2];
        out[i] = sum * (1.0f / (float)total);
    }
}

static void fill(uint32_t rank, float *in)
{
    for (uint32_t i = 0; i < COUNT; i++) in[i] = value(rank, i);
}

static void bits(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const char *const plans[] = {"auto", "direct", "doubling", "halving"};
    float in[COUNT], out[COUNT], wanted[COUNT];
    struct weft_request request = {{0}};
    reference(samples, wanted);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        CROWD_OK(crowd, session, weft_set_plan(session, plans[p]));
        fill(rank, in);
        CROWD_OK(crowd, session,
                 finish(weft_all_reduce_weighted(session, in, out, COUNT, WEFT_F32, samples[rank], &request),
                        &request));
        CROWD_CHECK(crowd, session, memcmp(out, wanted, sizeof out) == 0);
        CROWD_OK(crowd, session,
                 finish(weft_all_reduce_weighted(session, in, in, COUNT, WEFT_F32, samples[rank], &request),
                        &request));
        CROWD_CHECK(crowd, session, memcmp(in, wanted, sizeof in) == 0);
    }
    /* Plans with another order of sums: close to the reference, and equal bits on all ranks. */
    float all[RANKS * COUNT];
    CROWD_OK(crowd, session, weft_set_plan(session, "all_reduce=ring"));
    fill(rank, in);
    CROWD_OK(crowd, session,
             finish(weft_all_reduce_weighted(session, in, out, COUNT, WEFT_F32, samples[rank], &request),
                    &request));
    CROWD_OK(crowd, session, finish(weft_all_gather(session, out, all, COUNT, WEFT_F32, &request), &request));
    for (uint32_t r = 0; r < RANKS; r++)
        CROWD_CHECK(crowd, session, memcmp(all + (size_t)r * COUNT, out, sizeof out) == 0);
    for (uint32_t i = 0; i < COUNT; i++)
        CROWD_CHECK(crowd, session, fabsf(out[i] - wanted[i]) <= 1e-6f * expf((float)(i % 23) - 11));
}

static void test_bits(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, bits);
    assert_int_equal(crowd.failures, 0);
}

/* Equal weights that are a power of two: the plain average. Halves with 512 samples each do not overflow. */
static void equal_weights(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const enum weft_dtype types[] = {WEFT_F32,  WEFT_F64,     WEFT_F16,
                                            WEFT_BF16, WEFT_F8_E4M3, WEFT_F8_E5M2};
    struct weft_request request = {{0}};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        double in[64], plain[64] = {0}, weighted[64] = {0};
        uint8_t *bytes = (uint8_t *)in;
        for (uint32_t i = 0; i < 64; i++) in[i] = (double)value(rank, i);
        if (types[t] != WEFT_F64) /* random bits of finite numbers, up to the largest of each type */
            for (uint32_t i = 0; i < sizeof in; i++)
                bytes[i] = (uint8_t)(i % weft_dtype_bytes(types[t]) + 1 == weft_dtype_bytes(types[t])
                                         ? 0x30 + (rank + i) % 15
                                         : i * 37 + rank);
        uint64_t count = types[t] == WEFT_F64 ? 64 : sizeof in / weft_dtype_bytes(types[t]);
        CROWD_OK(crowd, session,
                 finish(weft_call_start(session,
                                        WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in, .out = plain,
                                                  .count = count, .dtype = types[t], .op = WEFT_AVG,
                                                  .reproducible = true),
                                        &request),
                        &request));
        CROWD_OK(crowd, session,
                 finish(weft_call_start(session,
                                        WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in, .out = weighted,
                                                  .count = count, .dtype = types[t], .op = WEFT_AVG,
                                                  .reproducible = true, .weighted = true, .weight = 512),
                                        &request),
                        &request));
        CROWD_CHECK(crowd, session, memcmp(plain, weighted, sizeof plain) == 0);
    }
}

static void test_equal_weights(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, equal_weights);
    crowd_run(&crowd, 1, equal_weights);
    assert_int_equal(crowd.failures, 0);
}

/* The sum, or a product with a normalised weight, would overflow the type; the mean does not. */
static void large_numbers(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const struct {
        enum weft_dtype dtype;
        uint16_t code;         /* three quarters of the largest, about */
        uint16_t step;         /* largest distance of the result's code: products are rounded */
    } types[] = {
        {WEFT_F16, 0x7a00, 1}, {WEFT_BF16, 0x7f40, 1}, {WEFT_F8_E4M3, 0x7b, 1}, {WEFT_F8_E5M2, 0x7a, 1}};
    static const double weights[][RANKS] = {
        {48, 7, 1}, {0x1p-300, 0x1p-310, 0}, {0x1p300, 0x1p299, 1}, {1, 1, 1}, {5, 5, 0}};
    static const char *const plans[] = {"auto", "direct", "all_reduce=ring", "all_reduce=double_tree"};
    struct weft_request request = {{0}};
    for (size_t n = 0; n < sizeof plans / sizeof *plans * 4; n++) {
        enum weft_dtype dtype = types[n % 4].dtype;
        uint16_t in[64], plain[64], weighted[64], code = types[n % 4].code;
        bool bytes = weft_dtype_bytes(dtype) == 1;
        uint64_t count = bytes ? 128 : 64;
        if (bytes) code |= (uint16_t)(code << 8);
        for (uint32_t i = 0; i < 64; i++) in[i] = code;
        CROWD_OK(crowd, session, weft_set_plan(session, plans[n / 4]));
        CROWD_OK(crowd, session,
                 finish(weft_all_reduce(session, in, plain, count, dtype, WEFT_AVG, &request), &request));
        for (uint32_t i = 0; i < 64; i++) CROWD_CHECK(crowd, session, plain[i] == code);
        for (size_t w = 0; w < sizeof weights / sizeof *weights; w++) {
            CROWD_OK(crowd, session,
                     finish(weft_all_reduce_weighted(session, in, weighted, count, dtype, weights[w][rank],
                                                     &request),
                            &request));
            uint16_t mask = bytes ? 0xff : 0xffff;
            for (uint32_t i = 0; i < 64; i++)
                CROWD_CHECK(crowd, session, abs((weighted[i] & mask) - (code & mask)) <= types[n % 4].step);
        }
    }
}

static void test_large_numbers(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, large_numbers);
    assert_int_equal(crowd.failures, 0);
}

/* A rank of weight 0 gets the mean of the other ranks; its own buffer has no influence. */
static void nothing_from_one(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const double weights[RANKS] = {3, 0, 1};
    float in[4] = {(float)rank, 8, -2, 0.5f}, out[4];
    struct weft_request request = {{0}};
    if (rank == 1) in[0] = NAN, in[1] = INFINITY, in[2] = 5;
    CROWD_OK(
        crowd, session,
        finish(weft_all_reduce_weighted(session, in, out, 4, WEFT_F32, weights[rank], &request), &request));
    CROWD_CHECK(crowd, session, out[0] == 0.5f && out[1] == 8 && out[2] == -2 && out[3] == 0.5f);
    /* reduce, reduce_scatter, persistent, in a group of calls, on a group of ranks */
    struct weft_request requests[3] = {{{0}}, {{0}}, {{0}}};
    float at_root[4] = {0}, piece[1], pieces[3] = {1, 2, 3}, repeated[4];
    CROWD_OK(crowd, session,
             weft_call_init(session,
                            WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in, .out = repeated, .count = 4,
                                      .dtype = WEFT_F32, .op = WEFT_AVG, .weighted = true,
                                      .weight = weights[rank]),
                            &requests[2]));
    for (int round = 0; round < 3; round++) {
        CROWD_OK(crowd, session, weft_group_start(session));
        CROWD_OK(
            crowd, session,
            weft_call_start(session,
                            WEFT_CALL(.kind = WEFT_CALL_REDUCE, .in = in, .out = rank == 2 ? at_root : NULL,
                                      .count = 4, .dtype = WEFT_F32, .op = WEFT_AVG, .root = 2,
                                      .weighted = true, .weight = weights[rank]),
                            &requests[0]));
        CROWD_OK(crowd, session,
                 weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_REDUCE_SCATTER, .in = pieces, .out = piece,
                                           .count = 1, .dtype = WEFT_F32, .op = WEFT_AVG, .weighted = true,
                                           .weight = weights[rank]),
                                 &requests[1]));
        CROWD_OK(crowd, session, weft_start(&requests[2]));
        CROWD_OK(crowd, session, weft_group_end(session));
        for (int i = 0; i < 3; i++) CROWD_OK(crowd, session, weft_wait(&requests[i], 0));
        CROWD_CHECK(crowd, session, rank != 2 || (at_root[0] == 0.5f && at_root[1] == 8));
        CROWD_CHECK(crowd, session,
                    piece[0] == (float)rank + 1 && repeated[0] == 0.5f && repeated[3] == 0.5f);
    }
    struct weft_comm *pair = NULL;
    CROWD_OK(crowd, session, weft_split(session, NULL, rank == 1 ? -1 : 0, 0, &pair));
    if (pair) {
        float own = (float)rank;
        CROWD_OK(crowd, session,
                 finish(weft_call_start(session,
                                        WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = pair, .in = &own,
                                                  .out = &own, .count = 1, .dtype = WEFT_F32, .op = WEFT_AVG,
                                                  .weighted = true, .weight = weights[rank]),
                                        &request),
                        &request));
        CROWD_CHECK(crowd, session, own == 0.5f);
    }
    CROWD_OK(crowd, session, weft_comm_free(pair));
}

static void test_nothing_from_one(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, nothing_from_one);
    assert_int_equal(crowd.failures, 0);
}

/* All ranks skip a step to which none has a sample. */
static void no_samples(struct crowd *crowd, struct weft_session *session, struct weft_tensor *first,
                       struct weft_tensor *second)
{
    struct weft_tensor *const tensors[2] = {first, second};
    struct weft_request requests[2] = {{{0}}, {{0}}};
    float grad[2] = {7, 7}, mean[2];
    const uint64_t step = weft_step_next(session);
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = step, .weight = 0}));
    for (int t = 0; t < 2 && tensors[t]; t++)
        CROWD_OK(crowd, session, weft_push_pull(tensors[t], grad, mean, &requests[t]));
    for (int t = 0; t < 2 && tensors[t]; t++)
        CROWD_REFUSED(crowd, session, weft_wait(&requests[t], 0), WEFT_ERR_SKIPPED,
                      "weights of all ranks are 0");
    CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_SKIPPED, "weights of all ranks are 0");
    CROWD_CHECK(crowd, session, weft_step_next(session) == step);
}

/* Steps with weight 0: tensors, dense and with a codec, in all-reduce mode. */
static void steps(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor_options options;
    struct weft_tensor *dense = NULL, *coded = NULL;
    struct weft_request requests[2] = {{{0}}, {{0}}};
    weft_tensor_options_init(&options);
    options.name = "dense";
    options.dim_count = 1;
    options.dims[0] = 2;
    CROWD_OK(crowd, session, weft_declare(session, &options, &dense));
    options.name = "coded";
    options.codec = "bf16";
    CROWD_OK(crowd, session, weft_declare(session, &options, &coded));
    for (uint64_t step = 1; step <= 3; step++) {
        bool out_of_data = rank == 2 || (rank == 1 && step > 1);
        if (step == 2) no_samples(crowd, session, dense, coded);
        float grad[2] = {out_of_data ? NAN : (float)(2 * rank + 1), 4}, mean[2];
        float half[2] = {out_of_data ? 77.0f : (float)(2 * rank + 1), 4};
        CROWD_OK(
            crowd, session,
            weft_step_begin(session, &(struct weft_step){.step = step, .weight = out_of_data ? 0.0f : 2.0f}));
        CROWD_OK(crowd, session, weft_push_pull(dense, grad, mean, &requests[0]));
        CROWD_OK(crowd, session, weft_push_pull(coded, half, half, &requests[1]));
        CROWD_OK(crowd, session, weft_step_end(session));
        float wanted = step == 1 ? 2 : 1;
        CROWD_CHECK(crowd, session, mean[0] == wanted && mean[1] == 4 && half[0] == wanted && half[1] == 4);
    }
    no_samples(crowd, session, dense, NULL);
    no_samples(crowd, session, NULL, NULL);
}

static void test_steps(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, steps);
    assert_int_equal(crowd.failures, 0);
}

static void refused(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    float in[2] = {1, 2}, out[2];
    int32_t whole = 1;
    struct weft_request request = {{0}};
    CROWD_REFUSED(crowd, session, weft_all_reduce_weighted(session, in, out, 2, WEFT_F32, -1, &request),
                  WEFT_ERR_INVALID, "weight is -1");
    CROWD_REFUSED(crowd, session, weft_all_reduce_weighted(session, in, out, 2, WEFT_F32, NAN, &request),
                  WEFT_ERR_INVALID, "weight is");
    CROWD_REFUSED(crowd, session, weft_all_reduce_weighted(session, &whole, &whole, 1, WEFT_I32, 1, &request),
                  WEFT_ERR_UNSUPPORTED, "i32");
    CROWD_REFUSED(crowd, session,
                  weft_call_start(session,
                                  WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in, .out = out, .count = 2,
                                            .dtype = WEFT_F32, .weighted = true, .weight = 1),
                                  &request),
                  WEFT_ERR_INVALID, "WEFT_AVG");
    /* All weights 0: an error on all ranks, and the group still works. */
    CROWD_REFUSED(crowd, session,
                  finish(weft_all_reduce_weighted(session, in, out, 2, WEFT_F32, 0, &request), &request),
                  WEFT_ERR_INVALID, "sum to 0");
    CROWD_OK(crowd, session,
             finish(weft_all_reduce_weighted(session, in, out, 2, WEFT_F32, rank, &request), &request));
    CROWD_CHECK(crowd, session, out[0] == 1 && out[1] == 2);
    /* One with a weight, one without. */
    enum weft_status status = rank == 0 ? weft_all_reduce_weighted(session, in, out, 2, WEFT_F32, 1, &request)
                                        : weft_all_reduce(session, in, out, 2, WEFT_F32, WEFT_AVG, &request);
    CROWD_REFUSED(crowd, session, finish(status, &request), WEFT_ERR_MISMATCH, "all_reduce");
}

static void test_refused(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, refused);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),          cmocka_unit_test(test_equal_weights),
        cmocka_unit_test(test_large_numbers), cmocka_unit_test(test_nothing_from_one),
        cmocka_unit_test(test_steps),         cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
