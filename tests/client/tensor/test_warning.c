/* test_warning.c - in server mode a gradient that is not finite is found, in any element of a short and of a
 * long tensor, by the rank that has it; the means have the bits of the sum, whatever is checked. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/tensor/tensor.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { RANKS = 2 };

/* Elements; the one that rank 1 sets to infinity, UINT64_MAX: none. */
static const struct {
    uint64_t elems, at;
} cases[] = {
    {1000, UINT64_MAX}, {1000, 999},      {200001, UINT64_MAX}, {200001, 0},
    {200001, 65536},    {200001, 200000}, {300000, 131071},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static int check(struct weft_session *session, struct weft_tensor *tensor, uint32_t c, uint32_t rank)
{
    float *grad = weft_alloc(session, cases[c].elems * sizeof(float)),
          *out = weft_alloc(session, cases[c].elems * sizeof(float));
    struct weft_request request = {{0}};
    for (uint64_t i = 0; i < cases[c].elems; i++) grad[i] = mode_pseudo(rank, c, i);
    if (rank == 1 && cases[c].at != UINT64_MAX) grad[cases[c].at] = INFINITY;
    MUST(session, weft_push_pull(tensor, grad, out, &request));
    MUST(session, weft_wait(&request, 0));
    const bool should_warn = rank == 1 && cases[c].at != UINT64_MAX;
    if (tensor->warned != should_warn) {
        fprintf(stderr, "rank %u case %u: warned %d\n", rank, c, tensor->warned);
        return 1;
    }
    for (uint64_t i = 0; i < cases[c].elems; i++) {
        const float sum = mode_pseudo(0, c, i) + (i == cases[c].at ? INFINITY : mode_pseudo(1, c, i));
        if (out[i] == 0.5f * sum) continue;
        fprintf(stderr, "rank %u case %u element %llu: %g\n", rank, c, (unsigned long long)i, (double)out[i]);
        return 1;
    }
    weft_free(session, grad);
    weft_free(session, out);
    return 0;
}

static int train(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    struct weft_tensor *tensors[CASES];
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (uint32_t c = 0; c < CASES; c++) {
        struct weft_tensor_options options;
        char name[16];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "t%u", c);
        options.name = name;
        options.dim_count = 1;
        options.dims[0] = cases[c].elems;
        options.mode = WEFT_MODE_SERVER;
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_gradient_that_is_not_finite_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
