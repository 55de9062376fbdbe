/* test_warning.c - a gradient that is not finite is found, in any element of a short and of a long tensor, by
 * the rank that has it, in both modes; the means have the bits of the sum, whatever is checked. In all-reduce
 * mode the pass that sums a long tensor checks it, where ranks map or copy each other's memory. */
#include "tests/lib/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tensor/tensor.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { RANKS = 2 };

/* Elements; the one that rank 1 sets to infinity, UINT64_MAX: none; whether the mean overwrites the
 * gradient. */
static const struct {
    uint64_t elems, at;
    bool in_place;
} cases[] = {
    {1000, UINT64_MAX, false},  {1000, 999, false},     {200001, UINT64_MAX, false},
    {200001, 0, false},         {200001, 65536, false}, {200001, 200000, false},
    {200001, UINT64_MAX, true}, {200001, 199999, true}, {300000, 131071, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static int check(struct weft_session *session, struct weft_tensor *tensor, uint32_t c, uint32_t rank)
{
    float *grad = weft_alloc(session, cases[c].elems * sizeof(float)),
          *other = weft_alloc(session, cases[c].elems * sizeof(float)),
          *const out = cases[c].in_place ? grad : other;
    struct weft_request request = {{0}};
    for (uint64_t i = 0; i < cases[c].elems; i++) grad[i] = mode_pseudo(rank, c, i);
    if (rank == 1 && cases[c].at != UINT64_MAX) grad[cases[c].at] = INFINITY;
    MUST(session, weft_push_pull(tensor, grad, out, &request));
    MUST(session, weft_wait(&request, 0));
    const bool should_warn = rank == 1 && cases[c].at != UINT64_MAX;
    if (tensor->progress.warned != should_warn) {
        fprintf(stderr, "rank %u case %u: warned %d\n", rank, c, tensor->progress.warned);
        return 1;
    }
    for (uint64_t i = 0; i < cases[c].elems; i++) {
        const float sum = mode_pseudo(0, c, i) + (i == cases[c].at ? INFINITY : mode_pseudo(1, c, i));
        if (out[i] == 0.5f * sum) continue;
        fprintf(stderr, "rank %u case %u element %llu: %g\n", rank, c, (unsigned long long)i, (double)out[i]);
        return 1;
    }
    weft_free(session, grad);
    weft_free(session, other);
    return 0;
}

/* After a few operations ranks of one host use shared memory. */
static int warm_up(struct weft_session *session)
{
    struct weft_request request = {{0}};
    float x = 1;
    for (int i = 0; i < 20; i++) {
        MUST(session, weft_all_reduce(session, &x, &x, 1, WEFT_F32, WEFT_MAX, &request));
        MUST(session, weft_wait(&request, 0));
    }
    return 0;
}

static int train(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    struct weft_tensor *tensors[CASES];
    if (fleet_join(fleet, rank, 20000, &session) || warm_up(session)) return 1;
    for (uint32_t c = 0; c < CASES; c++) {
        struct weft_tensor_options options;
        char name[16];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "t%u", c);
        options.name = name;
        options.dim_count = 1;
        options.dims[0] = cases[c].elems;
        options.mode = fleet->shards > 0 ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
        MUST(session, weft_declare(session, &options, &tensors[c]));
    }
    MUST(session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0, .weight = 1}));
    for (uint32_t c = 0; c < CASES; c++)
        if (check(session, tensors[c], c, rank)) return 1;
    MUST(session, weft_step_end(session));
    weft_finalize(session);
    return 0;
}

static void a_gradient_that_is_not_finite_is_found(void **state)
{
    struct fleet_result result;
    void *user;
    (void)state;
    assert_true(fleet_run(RANKS, 1, train, &result, &user));
    assert_true(fleet_run(RANKS, 2, train, &result, &user));
    assert_true(fleet_run(RANKS, 0, train, &result, &user));
}

/* ---- all-reduce mode: all ranks reach the same verdict about a long sum ---- */

enum { LONG_ELEMS = 500001 };

/* The value of rank 0, of rank 1 and the element. A sum of finite gradients can be infinite. */
static const struct {
    float value[RANKS];
    uint64_t at;
    const char *words;
} sums[] = {
    {{1, 1}, 0, NULL},
    {{NAN, 1}, 0, "on rank 0"},
    {{1, INFINITY}, 0, "on rank 1"},
    {{-INFINITY, INFINITY}, LONG_ELEMS - 1, "on rank 0 ("},
    {{FLT_MAX, FLT_MAX}, LONG_ELEMS / 2, "the mean gradient of tensor 'long' is not finite"},
    {{1, NAN}, LONG_ELEMS - 1, "on rank 1"},
    {{FLT_MAX, -FLT_MAX}, 77777, NULL},
};

static int sum_long(struct weft_session *session, struct weft_tensor *tensor, float *grad, float *out,
                    uint32_t rank)
{
    for (size_t s = 0; s < sizeof sums / sizeof sums[0]; s++) {
        struct weft_request request = {{0}};
        const enum weft_status wanted = sums[s].words ? WEFT_ERR_SKIPPED : WEFT_OK;
        for (uint64_t i = 0; i < LONG_ELEMS; i++) grad[i] = mode_pseudo(rank, (uint32_t)s, i);
        grad[sums[s].at] = sums[s].value[rank];
        MUST(session,
             weft_step_begin(session, &(struct weft_step){.step = weft_step_next(session), .weight = 1}));
        MUST(session, weft_push_pull(tensor, grad, out, &request));
        const enum weft_status waited = weft_wait(&request, 0), ended = weft_step_end(session);
        const char *text = weft_error_text(session);
        if (waited == wanted && ended == wanted && (!sums[s].words || strstr(text, sums[s].words))) continue;
        fprintf(stderr, "rank %u sum %zu: %s, %s: %s\n", rank, s, weft_status_name(waited),
                weft_status_name(ended), text);
        return 1;
    }
    return strcmp(weft_plan_taken(session), "one-host") != 0;
}

static int train_long(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    if (fleet_join(fleet, rank, 20000, &session) || warm_up(session)) return 1;
    weft_tensor_options_init(&options);
    options.name = "long";
    options.dim_count = 1;
    options.dims[0] = LONG_ELEMS;
    options.skip_nonfinite = true;
    MUST(session, weft_declare(session, &options, &tensor));
    const size_t bytes = LONG_ELEMS * sizeof(float);
    float *mapped[2] = {weft_alloc(session, bytes), weft_alloc(session, bytes)},
          *own[2] = {malloc(bytes), malloc(bytes)};
    if (sum_long(session, tensor, mapped[0], mapped[1],
                 rank) || /* not in place, in place, not mapped, mixed */
        sum_long(session, tensor, mapped[0], mapped[0], rank) ||
        sum_long(session, tensor, own[0], own[1], rank) ||
        sum_long(session, tensor, rank ? own[0] : mapped[0], rank ? own[1] : mapped[1], rank))
        return 1;
    free(own[0]);
    free(own[1]);
    weft_finalize(session);
    return 0;
}

static void a_long_sum_that_is_not_finite_is_skipped(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(RANKS, 0, train_long, &result, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_gradient_that_is_not_finite_is_found),
                                       cmocka_unit_test(a_long_sum_that_is_not_finite_is_skipped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
