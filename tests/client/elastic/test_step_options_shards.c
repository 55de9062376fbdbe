/* test_step_options_shards.c - options of a step in server mode: the weights have the bits of all-reduce
 * mode, what the shards cannot do is refused, and a rank can skip the step. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/fleet.h"
#include "tests/client/matrix_options.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { RANKS = 2, STEPS = 4 };

static const struct mode_plan plans[] = {
    {"dense", "dense", "adam", 2, {24, 40}, 1024, 4},
    {"sgd", "dense", "sgd:momentum=0.9", 2, {24, 40}, 0, 0},
    {"mean", "dense", "none", 2, {24, 40}, 0, 0},
    {"int8", "int8:min_count=0", "adamw", 2, {24, 40}, 0, 0},
    {"powersgd", "powersgd:rank=2", "sgd:momentum=0.9", 2, {24, 40}, 0, 0},
};
enum { PLANS = sizeof plans / sizeof plans[0] };

static int push(struct weft_session *session, struct mode_pair *pair, uint32_t step, float scale)
{
    for (uint64_t i = 0; i < pair->elems; i++)
        pair->grad[i] = mode_pseudo(weft_rank(session), step, i) * scale;
    for (int mode = 0; mode < 2; mode++)
        MUST(session, weft_push_pull(pair->tensor[mode], pair->grad, pair->out[mode], &pair->request[mode]));
    for (int mode = 0; mode < 2; mode++) MUST(session, weft_wait(&pair->request[mode], 0));
    return 0;
}

static int refused(struct weft_session *session, enum weft_status status, enum weft_status wanted,
                   const char *words)
{
    if (status == wanted && strstr(weft_error_text(session), words)) return 0;
    fprintf(stderr, "got %s: %s; wanted %s: %s\n", weft_status_name(status), weft_error_text(session),
            weft_status_name(wanted), words);
    return 1;
}

/* Step STEPS + 1: what the shards refuse; then the same tensors are pushed without it. */
static int refusals(struct weft_session *session, struct mode_pair *pairs)
{
    struct weft_request request = {{0}};
    MUST(session,
         weft_step_begin_with(session, WEFT_STEP(.step = STEPS + 1, .lr = 1, .weight = 1, .clip_norm = 1)));
    for (uint32_t plan = 0; plan < PLANS; plan++) {
        struct mode_pair *pair = &pairs[plan];
        const bool is_dense = !strcmp(plans[plan].codec, "dense");
        if (!strcmp(plans[plan].optimizer, "none")) continue;
        if (refused(session,
                    is_dense ? weft_push(pair->tensor[0], pair->grad, &request)
                             : weft_push_pull(pair->tensor[0], pair->grad, pair->out[0], &request),
                    WEFT_ERR_UNSUPPORTED, "clip_norm needs push_pull, a dense tensor"))
            return 1;
    }
    MUST(session, weft_step_end(session));
    return 0;
}

static int train(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    static struct mode_pair pairs[PLANS];
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (uint32_t plan = 0; plan < PLANS; plan++)
        if (mode_pair_declare(session, &plans[plan], &pairs[plan])) return 1;
    for (uint32_t step = 1; step <= STEPS; step++) {
        const float lr = 0.05f * (float)step, scale = ldexpf(1, 5 + (int)step), decay = 0.1f * (float)step;
        const bool own = step == 2; /* this step keeps the decay of the optimiser's text */
        MUST(session, weft_step_begin_with(session, WEFT_STEP(.step = step, .lr = 77, .loss_scale = scale,
                                                              .weight = step % 2 ? 1 : 0.5f + (float)rank,
                                                              .group_count = 1, .group_lr = &lr,
                                                              .group_weight_decay = own ? NULL : &decay)));
        for (uint32_t plan = 0; plan < PLANS; plan++)
            if (push(session, &pairs[plan], step, scale)) return 1;
        MUST(session, weft_step_end(session));
        for (uint32_t plan = 0; plan < PLANS; plan++) {
            if (!mode_pair_equal(&pairs[plan], plans[plan].name, rank, step)) return 1;
            /* neither the scale nor `lr` has reached the weights */
            for (uint64_t i = 0; i < pairs[plan].elems; i++)
                if (!(fabsf(pairs[plan].out[0][i]) < 10)) return 1;
        }
    }
    if (refusals(session, pairs)) return 1;
    MUST(session, weft_finalize(session));
    return 0;
}

static void test_both_modes_give_the_same_bits(void **state)
{
    struct fleet_result result;
    /* with a codec a shard holds weights too, and compares them with those of the workers */
    setenv("WEFT_CLIENT_HASH_EVERY", "1", 1);
    setenv("WEFT_SERVER_HASH_EVERY", "1", 1);
    assert_true(fleet_run(RANKS, 2, train, &result, NULL));
}

/* ---- skip: one rank has no usable gradient, and all tensors are in server mode ---- */

static const char *const codecs[] = {"dense", "int8:min_count=0", "powersgd:rank=2", "auto"};
enum { TENSORS = sizeof codecs / sizeof codecs[0], SIDE = 24, ELEMS = SIDE * SIDE };

struct skipper {
    struct weft_tensor *tensor[TENSORS];
    float grad[TENSORS][ELEMS], out[TENSORS][ELEMS], before[TENSORS][ELEMS];
    struct weft_request request[TENSORS];
};

static uint32_t tensors; /* without the last one the ranks exchange no record of the step */
static bool weightless;  /* the sample weights of all ranks are 0 */

static int push_all(struct weft_session *session, struct skipper *own, enum weft_status wanted)
{
    for (uint32_t t = 0; t < tensors; t++) {
        for (uint32_t i = 0; i < ELEMS; i++) own->grad[t][i] = mode_pseudo(weft_rank(session), t, i);
        MUST(session, weft_push_pull(own->tensor[t], own->grad[t], own->out[t], &own->request[t]));
    }
    for (uint32_t t = 0; t < tensors; t++)
        if (refused(session, weft_wait(&own->request[t], 0), wanted, "")) return 1;
    return 0;
}

static int train_with_skips(struct fleet *fleet, uint32_t rank)
{
    static struct skipper own;
    struct weft_session *session;
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (uint32_t t = 0; t < tensors; t++) {
        struct weft_tensor_options options;
        char name[16];
        matrix_options(&options, name, t, SIDE, SIDE, codecs[t]);
        options.optimizer = "adam";
        options.chunk_bytes = 1024;
        MUST(session, weft_declare(session, &options, &own.tensor[t]));
        for (uint32_t i = 0; i < ELEMS; i++) own.out[t][i] = mode_pseudo(7, t, i);
        MUST(session, weft_tensor_init(own.tensor[t], own.out[t]));
    }
    for (uint32_t try = 0; try < 5; try++) {
        const bool skips = try % 2;
        const uint64_t step = weft_step_next(session);
        memcpy(own.before, own.out, sizeof own.out);
        const char *words = !skips ? "" : weightless ? "the sample weights of all ranks are 0" : "rank 1 (";
        MUST(session, weft_step_begin_with(session, WEFT_STEP(.step = step, .lr = 0.1f,
                                                              .weight = skips && weightless ? 0 : 1,
                                                              .skip = skips && !weightless && rank == 1)));
        if (push_all(session, &own, skips ? WEFT_ERR_SKIPPED : WEFT_OK)) return 1;
        if (refused(session, weft_step_end(session), skips ? WEFT_ERR_SKIPPED : WEFT_OK, words)) return 1;
        if (skips && ((!weightless && !strstr(weft_error_text(session), "has no usable gradient")) ||
                      memcmp(own.before, own.out, sizeof own.out) != 0))
            return 1;
        if (!skips && memcmp(own.before, own.out, sizeof own.out) == 0) return 1;
    }
    if (weft_step_next(session) != 4) return 1; /* a skipped step has no number of its own */
    MUST(session, weft_finalize(session));
    return 0;
}

static void test_a_rank_skips_the_step_of_all(void **state)
{
    struct fleet_result result;
    for (tensors = TENSORS - 1; tensors <= TENSORS; tensors++)
        assert_true(fleet_run(RANKS, 2, train_with_skips, &result, NULL));
}

static void test_ranks_without_samples_skip_the_step(void **state)
{
    struct fleet_result result;
    weightless = true;
    for (tensors = TENSORS - 1; tensors <= TENSORS; tensors++)
        assert_true(fleet_run(RANKS, 2, train_with_skips, &result, NULL));
    weightless = false;
}

/* ---- clipping by the global norm: both modes have the same bits, with any number of shards ---- */

enum { DENSE = 3, CLIPPED = 5, PLAN_ELEMS = 24 * 40 };

struct clipped {
    double norm[CLIPPED];
    float out[DENSE][PLAN_ELEMS];
};

static int clip_steps(struct weft_session *session, struct mode_pair *pairs, struct clipped *result)
{
    static const float limits[CLIPPED] = {0.25f, INFINITY, 1e30f, 2, 0.5f};
    for (uint32_t data = 0; data < CLIPPED; data++) {
        double norm = -1;
        MUST(session, weft_step_begin_with(session, WEFT_STEP(.step = weft_step_next(session), .lr = 0.1f,
                                                              .weight = 1, .loss_scale = 4,
                                                              .clip_norm = limits[data], .norm_out = &norm)));
        for (uint32_t plan = 0; plan < DENSE; plan++)
            if (push(session, &pairs[plan], data + 1, 4)) return 1;
        MUST(session, weft_step_end(session));
        if (!(norm > 1)) return 1;
        result->norm[data] = norm;
        for (uint32_t plan = 0; plan < DENSE; plan++)
            if (!mode_pair_equal(&pairs[plan], "clipped", weft_rank(session), data + 1)) return 1;
    }
    for (uint32_t plan = 0; plan < DENSE; plan++)
        memcpy(result->out[plan], pairs[plan].out[0], sizeof result->out[plan]);
    return 0;
}

/* A skipped step leaves nothing: its held sums are dropped. */
static int clip_and_skip(struct weft_session *session, struct mode_pair *pairs)
{
    struct mode_pair *pair = &pairs[0];
    static float before[PLAN_ELEMS];
    for (uint32_t try = 0; try < 2; try++) {
        memcpy(before, pair->out[0], sizeof before);
        MUST(session, weft_step_begin_with(session, WEFT_STEP(.step = CLIPPED + 1, .lr = 0.1f, .weight = 1,
                                                              .clip_norm = 0.1f,
                                                              .skip = try == 0 && weft_rank(session) == 1)));
        for (int mode = 0; mode < 2; mode++)
            MUST(session,
                 weft_push_pull(pair->tensor[mode], pair->grad, pair->out[mode], &pair->request[mode]));
        const enum weft_status status = weft_step_end(session);
        if (status != (try == 0 ? WEFT_ERR_SKIPPED : WEFT_OK)) return 1;
        if ((memcmp(before, pair->out[0], sizeof before) == 0) != (try == 0)) return 1;
        if (try == 1 && !mode_pair_equal(pair, "after a skip", weft_rank(session), CLIPPED + 1)) return 1;
    }
    return 0;
}

/* A norm that is not a number reaches the weights, as without a limit. */
static int clip_nan(struct weft_session *session, struct mode_pair *pairs)
{
    struct mode_pair *pair = &pairs[1];
    MUST(session, weft_step_begin_with(
                      session, WEFT_STEP(.step = CLIPPED + 2, .lr = 0.1f, .weight = 1, .clip_norm = 1)));
    pair->grad[0] = NAN;
    MUST(session, weft_push_pull(pair->tensor[0], pair->grad, pair->out[0], &pair->request[0]));
    MUST(session, weft_step_end(session));
    return !isnan(pair->out[0][1]);
}

static int train_clipped(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    static struct mode_pair pairs[DENSE];
    struct clipped *results = fleet->user;
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (uint32_t plan = 0; plan < DENSE; plan++)
        if (mode_pair_declare(session, &plans[plan], &pairs[plan])) return 1;
    if (clip_steps(session, pairs, &results[rank]) || clip_and_skip(session, pairs) ||
        clip_nan(session, pairs))
        return 1;
    MUST(session, weft_finalize(session));
    return 0;
}

static void test_clipping_does_not_depend_on_the_shards(void **state)
{
    static struct clipped first[RANKS];
    for (uint32_t run = 0; run < 3; run++) {
        struct fleet_result result;
        struct clipped *shared;
        assert_true(fleet_run(RANKS, 1 + run, train_clipped, &result, (void **)&shared));
        if (run == 0) memcpy(first, shared, sizeof first);
        assert_memory_equal(shared, first, sizeof first);
        assert_memory_equal(&shared[0], &shared[1], sizeof shared[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_modes_give_the_same_bits),
                                       cmocka_unit_test(test_a_rank_skips_the_step_of_all),
                                       cmocka_unit_test(test_ranks_without_samples_skip_the_step),
                                       cmocka_unit_test(test_clipping_does_not_depend_on_the_shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
