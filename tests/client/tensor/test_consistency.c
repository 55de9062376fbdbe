/* test_consistency.c - tensors with consistency ssp and asp in a real job with one slow rank. Rank 0 pushes
 * only when rank 1 is as many pushes ahead as the rule allows.
 *
 * The gradient of rank r is BASE^r times the number of ranks, with rate 1, so that a weight is minus a number
 * in base BASE whose digit r counts the applied pushes of rank r. */
#include "tests/lib/check.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/client/fleet.h"
#include "tests/client/matrix_options.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { RANKS = 2, SHARDS = 2, ROWS = 24, COLS = 40, ELEMS = ROWS * COLS, STEPS = 40, BASE = 64 };

static const struct rule {
    const char *text;
    uint32_t staleness; /* STEPS: rank 1 ends before rank 0 begins */
} rules[] = {{"ssp:0", 0}, {"ssp:3", 3}, {"asp", STEPS}};
static const struct rule *rule; /* set before the processes are forked */

struct shared {
    _Atomic uint32_t pushed[RANKS]; /* pushes that the rank has begun */
};

static int refused(struct weft_session *session, struct weft_tensor_options options, enum weft_status wanted,
                   const char *words)
{
    struct weft_tensor *tensor;
    const enum weft_status status = weft_declare(session, &options, &tensor);
    if (status == wanted && strstr(weft_error_text(session), words)) return 0;
    fprintf(stderr, "got %s: %s; wanted %s: %s\n", weft_status_name(status), weft_error_text(session),
            weft_status_name(wanted), words);
    return 1;
}

static int refusals(struct weft_session *session, struct weft_tensor_options options)
{
    struct weft_tensor_options other = options;
    other.consistency = "ssp:many";
    if (refused(session, other, WEFT_ERR_INVALID, "none of bsp, ssp:S")) return 1;
    other = options, other.codec = "int8";
    if (refused(session, other, WEFT_ERR_UNSUPPORTED, "dense, has an optimizer")) return 1;
    other = options, other.optimizer = "none";
    if (refused(session, other, WEFT_ERR_UNSUPPORTED, "dense, has an optimizer")) return 1;
    other = options, other.skip_nonfinite = true;
    if (refused(session, other, WEFT_ERR_UNSUPPORTED, "no skip_nonfinite")) return 1;
    other = options, other.mode = WEFT_MODE_ALL_REDUCE;
    return refused(session, other, WEFT_ERR_UNSUPPORTED, "needs server mode");
}

/* The slow rank waits until the other one has begun the push whose result needs this one. */
static void be_slow(struct shared *shared, uint32_t step)
{
    const uint32_t most = step + rule->staleness;
    while (atomic_load(&shared->pushed[1]) < (most < STEPS ? most : STEPS)) sched_yield();
}

static int check(const struct shared *shared, const float *out, uint32_t rank, uint32_t step)
{
    for (uint32_t i = 0; i < ELEMS; i++) {
        const uint32_t number = (uint32_t)-out[i], mine = rank == 0 ? number % BASE : number / BASE,
                       other = rank == 0 ? number / BASE : number % BASE,
                       begun = atomic_load(&shared->pushed[1 - rank]);
        if (mine == step && other + rule->staleness >= step && other <= begun) continue;
        fprintf(stderr, "%s, rank %u, step %u, element %u: %u own pushes and %u of %u of the other rank\n",
                rule->text, rank, step, i, mine, other, begun);
        return 1;
    }
    return 0;
}

/* One step; odd ones with the halves of push_pull. */
static int step_once(struct weft_session *session, struct weft_tensor *tensor, struct shared *shared,
                     uint32_t step)
{
    static float grad[ELEMS], out[ELEMS];
    struct weft_request push = {{0}}, pull = {{0}};
    const uint32_t rank = weft_rank(session);
    for (uint32_t i = 0; i < ELEMS; i++) grad[i] = rank == 0 ? RANKS : RANKS * BASE;
    MUST(session, weft_step_begin(session, &(struct weft_step){step, 1, 1}));
    if (rank == 0) be_slow(shared, step);
    atomic_store(&shared->pushed[rank], step);
    if (step % 2) {
        MUST(session, weft_push(tensor, grad, &push));
        MUST(session, weft_wait(&push, 0));
        MUST(session, weft_pull(tensor, out, &pull));
        MUST(session, weft_wait(&pull, 0));
    } else {
        MUST(session, weft_push_pull(tensor, grad, out, &push));
        MUST(session, weft_wait(&push, 0));
    }
    MUST(session, weft_step_end(session));
    return check(shared, out, rank, step);
}

static int train(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    struct weft_request request = {{0}};
    static float weights[ELEMS];
    char name[16];
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    matrix_options(&options, name, 0, ROWS, COLS, NULL);
    options.optimizer = "sgd";
    options.chunk_bytes = 1024;
    options.consistency = rule->text;
    if (refusals(session, options)) return 1;
    MUST(session, weft_declare(session, &options, &tensor));
    MUST(session, weft_tensor_init(tensor, weights));
    for (uint32_t step = 1; step <= STEPS; step++)
        if (step_once(session, tensor, fleet->user, step)) return 1;
    MUST(session, weft_barrier(session, &request));
    MUST(session, weft_wait(&request, 0));
    MUST(session, weft_pull(tensor, weights, &request));
    MUST(session, weft_wait(&request, 0));
    for (uint32_t i = 0; i < ELEMS; i++)
        if (weights[i] != -(STEPS + STEPS * BASE)) return 1;
    MUST(session, weft_finalize(session));
    return 0;
}

static void test_a_slow_rank_delays_the_others_by_the_rule(void **state)
{
    for (rule = rules; rule < rules + sizeof rules / sizeof rules[0]; rule++) {
        struct fleet_result result;
        if (!fleet_run(RANKS, SHARDS, train, &result, NULL)) fail_msg("%s", rule->text);
    }
}

/* ---- beside a tensor with bsp, whose gradient or rank skips steps ---- */

enum { TRIES = 4, NONFINITE = 1, REQUESTED = 2 };

static int try_step(struct weft_session *session, struct weft_tensor *const tensors[2], uint32_t try)
{
    static float grad[2][ELEMS], out[2][ELEMS];
    struct weft_request request[2];
    const uint32_t rank = weft_rank(session);
    memset(request, 0, sizeof request);
    for (uint32_t i = 0; i < ELEMS; i++) grad[0][i] = rank == 0 ? RANKS : RANKS * BASE, grad[1][i] = 1;
    if (try == NONFINITE && rank == 1) grad[1][7] = NAN;
    MUST(session,
         weft_step_begin_with(session, WEFT_STEP(.step = weft_step_next(session), .lr = 1, .weight = 1,
                                                 .skip = try == REQUESTED && rank == 1)));
    for (int t = 0; t < 2; t++) MUST(session, weft_push_pull(tensors[t], grad[t], out[t], &request[t]));
    MUST(session, weft_wait(&request[0], 0)); /* not skipped */
    const enum weft_status status = weft_step_end(session);
    if (status == (try == NONFINITE || try == REQUESTED ? WEFT_ERR_SKIPPED : WEFT_OK)) return 0;
    fprintf(stderr, "rank %u, try %u: %s: %s\n", rank, try, weft_status_name(status),
            weft_error_text(session));
    return 1;
}

static int train_beside(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    struct weft_tensor *tensors[2];
    struct weft_request request = {{0}};
    static float weights[ELEMS];
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (uint32_t t = 0; t < 2; t++) {
        struct weft_tensor_options options;
        char name[16];
        matrix_options(&options, name, t, ROWS, COLS, NULL);
        options.optimizer = "sgd";
        if (t == 0) options.consistency = "asp";
        else options.skip_nonfinite = true;
        MUST(session, weft_declare(session, &options, &tensors[t]));
        MUST(session, weft_tensor_init(tensors[t], weights));
    }
    for (uint32_t try = 0; try < TRIES; try++)
        if (try_step(session, tensors, try)) return 1;
    if (weft_step_next(session) != 3) return 1;
    MUST(session, weft_barrier(session, &request));
    MUST(session, weft_wait(&request, 0));
    for (uint32_t t = 0; t < 2; t++) {
        /* a skipped step keeps the pushes; the rank that has requested the skip had no gradient in it */
        const float wanted = t == 0 ? -(TRIES + (TRIES - 1) * BASE) : -2;
        MUST(session, weft_pull(tensors[t], weights, &request));
        MUST(session, weft_wait(&request, 0));
        for (uint32_t i = 0; i < ELEMS; i++)
            if (weights[i] != wanted) return 1;
    }
    MUST(session, weft_finalize(session));
    return 0;
}

static void test_a_skipped_step_keeps_the_pushes(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(RANKS, SHARDS, train_beside, &result, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_slow_rank_delays_the_others_by_the_rule),
                                       cmocka_unit_test(test_a_skipped_step_keeps_the_pushes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
