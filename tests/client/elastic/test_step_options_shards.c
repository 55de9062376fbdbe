/* test_step_options_shards.c - options of a step in server mode: the weights have the bits of all-reduce
 * mode, and what the shards cannot do is refused. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/client/fleet.h"
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
enum { PLANS = sizeof plans / sizeof plans[0], FIRST_CODEC = 3 };

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
    const float lr = 0.1f, decay = 0.1f;
    const struct weft_step_options *skips = WEFT_STEP(.step = STEPS + 1, .lr = 1, .weight = 1, .skip = true);
    if (refused(session, weft_step_begin_with(session, skips), WEFT_ERR_UNSUPPORTED,
                "skip needs all tensors in all-reduce mode"))
        return 1;
    MUST(session,
         weft_step_begin_with(session, WEFT_STEP(.step = STEPS + 1, .lr = 1, .weight = 1, .clip_norm = 1)));
    for (uint32_t plan = 0; plan < PLANS; plan++) {
        struct mode_pair *pair = &pairs[plan];
        if (!strcmp(plans[plan].optimizer, "none")) continue;
        if (refused(session, weft_push_pull(pair->tensor[0], pair->grad, pair->out[0], &request),
                    WEFT_ERR_UNSUPPORTED, "server mode: clip_norm needs all-reduce mode"))
            return 1;
    }
    MUST(session, weft_step_end(session));
    MUST(session,
         weft_step_begin_with(session, WEFT_STEP(.step = STEPS + 2, .lr = 1, .weight = 1, .group_count = 1,
                                                 .group_lr = &lr, .group_weight_decay = &decay)));
    if (refused(session, weft_push_pull(pairs[0].tensor[0], pairs[0].grad, pairs[0].out[0], &request),
                WEFT_ERR_UNSUPPORTED, "server mode: group_weight_decay needs all-reduce mode"))
        return 1;
    /* with a codec the workers make the update */
    if (push(session, &pairs[FIRST_CODEC], STEPS + 2, 1)) return 1;
    MUST(session, weft_step_end(session));
    return !mode_pair_equal(&pairs[FIRST_CODEC], "own decay", weft_rank(session), STEPS + 2);
}

static int train(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    static struct mode_pair pairs[PLANS];
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (uint32_t plan = 0; plan < PLANS; plan++)
        if (mode_pair_declare(session, &plans[plan], &pairs[plan])) return 1;
    for (uint32_t step = 1; step <= STEPS; step++) {
        const float lr = 0.05f * (float)step, scale = ldexpf(1, 5 + (int)step);
        MUST(session, weft_step_begin_with(session, WEFT_STEP(.step = step, .lr = 77, .loss_scale = scale,
                                                              .weight = step % 2 ? 1 : 0.5f + (float)rank,
                                                              .group_count = 1, .group_lr = &lr)));
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
    assert_true(fleet_run(RANKS, 2, train, &result, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_modes_give_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
