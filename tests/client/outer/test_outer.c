/* test_outer.c - outer steps beside an oracle: the mean of local weights, Nesterov momentum, fragments with
 * overlap; a checkpoint continues bit for bit; weights that are not finite; wrong calls. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/crowd.h"

enum { RANKS = 2, PARTS = 4, ELEMS = 96, STEPS = 12, SAVED_MAX = 1 << 16 };

struct plan {
    struct weft_outer_options options;
    float momentum; /* of the oracle */
};

/* The inner update of a rank at a step: any function of its weights will do. */
static float inner(float weight, uint32_t rank, uint64_t step, uint32_t part, uint32_t elem)
{
    const uint32_t mixed =
        (rank * 1000003u + (uint32_t)step * 7919u + part * 104729u + elem * 2654435761u) >> 8;
    return weight - 0.01f * (weight + (float)mixed * 0x1p-24f);
}

static void inner_all(float weights[PARTS][ELEMS], uint32_t rank, uint64_t step)
{
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < ELEMS; i++) weights[p][i] = inner(weights[p][i], rank, step, p, i);
}

/* Ranks begin with different weights; rank 0's count. */
static void first_weights(float weights[PARTS][ELEMS], uint32_t rank)
{
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < ELEMS; i++)
            weights[p][i] = (float)(p + 1) * 0.25f + (float)i * 0x1p-7f + (float)rank;
}

static struct weft_outer *make(struct crowd *crowd, struct weft_session *session,
                               const struct weft_outer_options *options, float weights[PARTS][ELEMS])
{
    static const char *const names[PARTS] = {"a", "b", "c", "d"};
    const uint64_t dims[2] = {8, ELEMS / 8};
    struct weft_outer *outer = NULL;
    CROWD_OK(crowd, session, weft_outer_create(session, options, &outer));
    for (uint32_t p = 0; p < PARTS; p++)
        CROWD_OK(crowd, session, weft_outer_add(outer, names[p], weights[p], 2, dims));
    return outer;
}

/* ---- the oracle: all ranks in one process, in double ---- */

struct oracle {
    double weights[RANKS][PARTS][ELEMS], anchor[PARTS][ELEMS], velocity[PARTS][ELEMS];
    double start[RANKS][PARTS][ELEMS], mean[PARTS][ELEMS];
};

static void oracle_begin_exchange(struct oracle *all, uint32_t p)
{
    for (uint32_t i = 0; i < ELEMS; i++) {
        all->mean[p][i] = 0;
        for (uint32_t r = 0; r < RANKS; r++) {
            all->start[r][p][i] = all->weights[r][p][i];
            all->mean[p][i] += (all->anchor[p][i] - all->weights[r][p][i]) / RANKS;
        }
    }
}

static void oracle_end_exchange(struct oracle *all, const struct plan *plan, uint32_t p)
{
    for (uint32_t i = 0; i < ELEMS; i++) {
        const double gradient = all->mean[p][i];
        double *velocity = &all->velocity[p][i];
        *velocity = plan->momentum * *velocity + gradient;
        all->anchor[p][i] -= plan->options.lr * (gradient + plan->momentum * *velocity);
        for (uint32_t r = 0; r < RANKS; r++) all->weights[r][p][i] += all->anchor[p][i] - all->start[r][p][i];
    }
}

static void oracle_run(struct oracle *all, const struct plan *plan)
{
    static float first[PARTS][ELEMS];
    const uint64_t every = plan->options.every,
                   fragments = plan->options.fragments ? plan->options.fragments : 1;
    first_weights(first, 0);
    memset(all, 0, sizeof *all);
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < ELEMS; i++) {
            all->anchor[p][i] = first[p][i];
            for (uint32_t r = 0; r < RANKS; r++) all->weights[r][p][i] = first[p][i];
        }
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint32_t r = 0; r < RANKS; r++)
            for (uint32_t p = 0; p < PARTS; p++)
                for (uint32_t i = 0; i < ELEMS; i++)
                    all->weights[r][p][i] = inner((float)all->weights[r][p][i], r, step, p, i);
        for (uint32_t p = 0; p < PARTS;
             p++) { /* parts of equal length: part p is in fragment p * fragments / PARTS */
            const uint64_t offset = (p * fragments / PARTS + 1) * every / fragments;
            if (step >= offset && step % every == offset % every) oracle_begin_exchange(all, p);
            const uint64_t overlap = plan->options.overlap;
            if (step >= offset + overlap && (step - overlap) % every == offset % every)
                oracle_end_exchange(all, plan, p);
        }
    }
}

static void train_beside_oracle(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    static struct oracle all;
    const struct plan *plan = crowd->user;
    first_weights(weights[rank], rank);
    struct weft_outer *outer = make(crowd, session, &plan->options, weights[rank]);
    CROWD_OK(crowd, session, weft_outer_begin(outer, NULL, 0));
    for (uint64_t step = 1; step <= STEPS; step++) {
        inner_all(weights[rank], rank, step);
        CROWD_OK(crowd, session, weft_outer_step(outer));
    }
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) oracle_run(&all, plan);
    pthread_barrier_wait(&crowd->meet);
    double largest = 0;
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < ELEMS; i++)
            largest = fmax(largest, fabs(all.weights[rank][p][i] - weights[rank][p][i]));
    CROWD_CHECK(crowd, session, largest < 1e-5);
    CROWD_OK(crowd, session, weft_outer_sync(outer));
    pthread_barrier_wait(&crowd->meet);
    CROWD_CHECK(crowd, session, memcmp(weights[0], weights[rank], sizeof weights[0]) == 0);
    pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session, weft_outer_free(outer));
}

static void test_oracle(void **state)
{
    struct plan plans[] = {
        {{.codec = "dense", .optimizer = "sgd", .lr = 1, .every = 3}, 0},
        {{.codec = "dense", .lr = 0.7f, .every = 4}, 0.9f},
        {{.codec = "dense", .lr = 0.7f, .every = 4, .fragments = 4}, 0.9f},
        {{.codec = "dense", .lr = 0.7f, .every = 6, .fragments = 2, .overlap = 2}, 0.9f},
    };
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        plans[i].options.size = sizeof plans[i].options;
        struct crowd crowd = {.user = &plans[i]};
        crowd_run(&crowd, RANKS, train_beside_oracle);
        assert_int_equal(crowd.failures, 0);
    }
}

/* ---- checkpoints ---- */

static struct saved {
    uint64_t bytes;
    uint8_t data[SAVED_MAX];
    float weights[PARTS][ELEMS];
} saved[CROWD_MAX];
static float wanted[CROWD_MAX][PARTS][ELEMS];
static const struct weft_outer_options int8_options = {
    .size = sizeof(struct weft_outer_options), .codec = "int8:min_count=0", .every = 3, .fragments = 2};

static void save_in_the_middle(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    first_weights(weights[rank], rank);
    struct weft_outer *outer = make(crowd, session, &int8_options, weights[rank]);
    CROWD_OK(crowd, session, weft_outer_begin(outer, NULL, 0));
    for (uint64_t step = 1; step <= STEPS; step++) {
        inner_all(weights[rank], rank, step);
        CROWD_OK(crowd, session, weft_outer_step(outer));
        if (step != STEPS / 2 + 1) continue;
        saved[rank].bytes = weft_outer_bytes(outer);
        CROWD_CHECK(crowd, session, saved[rank].bytes <= SAVED_MAX);
        CROWD_REFUSED(crowd, session, weft_outer_save(outer, saved[rank].data, saved[rank].bytes - 1),
                      WEFT_ERR_INVALID, "weft_outer_bytes");
        CROWD_OK(crowd, session, weft_outer_save(outer, saved[rank].data, saved[rank].bytes));
        memcpy(saved[rank].weights, weights[rank], sizeof weights[rank]);
    }
    memcpy(wanted[rank], weights[rank], sizeof weights[rank]);
    CROWD_OK(crowd, session, weft_outer_free(outer));
}

static void continue_saved(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    memcpy(weights[rank], saved[rank].weights, sizeof weights[rank]);
    struct weft_outer *outer = make(crowd, session, &int8_options, weights[rank]);
    CROWD_OK(crowd, session, weft_outer_begin(outer, saved[rank].data, saved[rank].bytes));
    for (uint64_t step = STEPS / 2 + 2; step <= STEPS; step++) {
        inner_all(weights[rank], rank, step);
        CROWD_OK(crowd, session, weft_outer_step(outer));
    }
    CROWD_CHECK(crowd, session, memcmp(wanted[rank], weights[rank], sizeof weights[rank]) == 0);
    CROWD_OK(crowd, session, weft_outer_free(outer));
}

/* A third rank has no state: it begins with the anchors. */
static void continue_with_more(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    const bool has_saved = rank < RANKS;
    if (has_saved) memcpy(weights[rank], saved[rank].weights, sizeof weights[rank]);
    struct weft_outer *outer = make(crowd, session, &int8_options, weights[rank]);
    CROWD_OK(crowd, session,
             weft_outer_begin(outer, has_saved ? saved[rank].data : NULL, has_saved ? saved[rank].bytes : 0));
    CROWD_CHECK(crowd, session, isfinite(weights[rank][0][0]) && weights[rank][0][0] != 0);
    CROWD_OK(crowd, session, weft_outer_sync(outer));
    pthread_barrier_wait(&crowd->meet);
    CROWD_CHECK(crowd, session, memcmp(weights[0], weights[rank], sizeof weights[0]) == 0);
    pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session, weft_outer_free(outer));
}

/* A damaged byte on one rank: no rank begins, nothing is changed, and the ranks can begin without it. */
static void damaged(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    static uint8_t data[CROWD_MAX][SAVED_MAX];
    const size_t at = *(size_t *)crowd->user;
    memcpy(data[rank], saved[rank].data, saved[rank].bytes);
    first_weights(weights[rank], rank);
    struct weft_outer *outer = make(crowd, session, &int8_options, weights[rank]);
    if (rank == 1) data[rank][at] ^= 0x40;
    CROWD_REFUSED(crowd, session, weft_outer_begin(outer, data[rank], saved[rank].bytes), WEFT_ERR_MALFORMED,
                  "nothing was changed");
    CROWD_CHECK(crowd, session, weights[rank][0][0] == 0.25f + (float)rank);
    CROWD_OK(crowd, session, weft_outer_begin(outer, NULL, 0));
    CROWD_CHECK(crowd, session, weights[rank][0][0] == 0.25f);
    CROWD_OK(crowd, session, weft_outer_free(outer));
}

static void test_checkpoint(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, save_in_the_middle);
    assert_int_equal(crowd.failures, 0);
    crowd = (struct crowd){0};
    crowd_run(&crowd, RANKS, continue_saved);
    assert_int_equal(crowd.failures, 0);
    crowd = (struct crowd){0};
    crowd_run(&crowd, RANKS + 1, continue_with_more);
    assert_int_equal(crowd.failures, 0);
    size_t places[] = {0, 9, 20, 60, 200, saved[1].bytes - 20, saved[1].bytes - 1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        crowd = (struct crowd){.user = &places[i]};
        crowd_run(&crowd, RANKS, damaged);
        assert_int_equal(crowd.failures, 0);
    }
}

/* ---- faults ---- */

static void not_finite(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    const struct weft_outer_options *options = crowd->user;
    first_weights(weights[rank], 0);
    struct weft_outer *outer = make(crowd, session, options, weights[rank]);
    CROWD_OK(crowd, session, weft_outer_begin(outer, NULL, 0));
    inner_all(weights[rank], rank, 1);
    if (rank == 1) weights[1][2][5] = NAN;
    CROWD_REFUSED(crowd, session, weft_outer_step(outer), WEFT_ERR_SKIPPED, "outer/c");
    CROWD_CHECK(crowd, session, weights[rank][0][0] == 0.25f);
    CROWD_CHECK(crowd, session, weights[rank][2][5] == 0.75f + 5 * 0x1p-7f);
    inner_all(weights[rank], rank, 2);
    CROWD_OK(crowd, session, weft_outer_step(outer)); /* the training continues */
    CROWD_CHECK(crowd, session, isfinite(weights[rank][2][5]) && weights[rank][2][5] != 0.75f + 5 * 0x1p-7f);
    CROWD_OK(crowd, session, weft_outer_free(outer));
}

static void test_not_finite(void **state)
{
    struct weft_outer_options options[] = {
        {.size = sizeof options[0], .codec = "dense", .every = 1},
        {.size = sizeof options[0], .codec = "int8:min_count=0", .every = 1}};
    for (size_t i = 0; i < 2; i++) {
        struct crowd crowd = {.user = &options[i]};
        crowd_run(&crowd, RANKS, not_finite);
        assert_int_equal(crowd.failures, 0);
    }
}

static void wrong_calls(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    struct weft_outer *outer = NULL;
    CROWD_REFUSED(crowd, session, weft_outer_create(session, WEFT_OUTER(.lr = -1), &outer), WEFT_ERR_INVALID,
                  "lr");
    CROWD_REFUSED(crowd, session, weft_outer_create(session, WEFT_OUTER(.lr = NAN), &outer), WEFT_ERR_INVALID,
                  "lr");
    CROWD_REFUSED(crowd, session, weft_outer_create(session, WEFT_OUTER(.every = 4, .fragments = 5), &outer),
                  WEFT_ERR_INVALID, "fragments");
    CROWD_REFUSED(crowd, session,
                  weft_outer_create(session, WEFT_OUTER(.every = 8, .fragments = 2, .overlap = 4), &outer),
                  WEFT_ERR_INVALID, "overlap");
    CROWD_REFUSED(crowd, session, weft_outer_create(session, WEFT_OUTER(.optimizer = "none"), &outer),
                  WEFT_ERR_INVALID, "outer optimizer");
    CROWD_REFUSED(crowd, session, weft_outer_create(session, WEFT_OUTER(.optimizer = "sgdd"), &outer),
                  WEFT_ERR_INVALID, "sgdd");
    CROWD_REFUSED(crowd, session, weft_outer_create(session, NULL, NULL), WEFT_ERR_INVALID, "outer_out");
    CROWD_CHECK(crowd, session, outer == NULL);
    CROWD_OK(crowd, session,
             weft_outer_create(session, WEFT_OUTER(.every = 8, .overlap = 3, .codec = "int9"), &outer));
    const uint64_t dims[2] = {8, ELEMS / 8}, huge[2] = {1ull << 40, 1ull << 40};
    CROWD_REFUSED(crowd, session, weft_outer_add(outer, "a", weights[rank][0], 2, dims), WEFT_ERR_INVALID,
                  "int9");
    CROWD_OK(crowd, session, weft_outer_free(outer));
    CROWD_OK(crowd, session, weft_outer_create(session, WEFT_OUTER(.every = 2, .overlap = 1), &outer));
    CROWD_REFUSED(crowd, session, weft_outer_begin(outer, NULL, 0), WEFT_ERR_STATE, "weft_outer_add");
    CROWD_REFUSED(crowd, session, weft_outer_step(outer), WEFT_ERR_STATE, "before outer_begin");
    CROWD_REFUSED(crowd, session, weft_outer_add(outer, NULL, weights[rank][0], 2, dims), WEFT_ERR_INVALID,
                  "name");
    CROWD_REFUSED(crowd, session, weft_outer_add(outer, "a", NULL, 2, dims), WEFT_ERR_INVALID, "weights");
    CROWD_REFUSED(crowd, session, weft_outer_add(outer, "a", weights[rank][0], 2, NULL), WEFT_ERR_INVALID,
                  "dims");
    CROWD_REFUSED(crowd, session, weft_outer_add(outer, "a", weights[rank][0], 2, huge), WEFT_ERR_INVALID,
                  "2^32");
    CROWD_OK(crowd, session, weft_outer_add(outer, "a", weights[rank][0], 2, dims));
    CROWD_REFUSED(crowd, session, weft_outer_add(outer, "a", weights[rank][0], 2, dims), WEFT_ERR_EXISTS,
                  "outer/a");
    CROWD_OK(crowd, session, weft_outer_begin(outer, NULL, 0));
    CROWD_REFUSED(crowd, session, weft_outer_begin(outer, NULL, 0), WEFT_ERR_STATE, "second time");
    CROWD_REFUSED(crowd, session, weft_outer_add(outer, "b", weights[rank][1], 2, dims), WEFT_ERR_STATE,
                  "after outer_begin");
    for (int i = 0; i < 2; i++) CROWD_OK(crowd, session, weft_outer_step(outer)); /* opens an exchange */
    static uint8_t out[CROWD_MAX][SAVED_MAX];
    CROWD_REFUSED(crowd, session, weft_outer_save(outer, out[rank], SAVED_MAX), WEFT_ERR_STATE,
                  "weft_outer_wait");
    CROWD_REFUSED(crowd, session, weft_outer_share(outer), WEFT_ERR_STATE, "inside an exchange");
    CROWD_REFUSED(crowd, session, weft_outer_free(outer), WEFT_ERR_BUSY, "weft_outer_wait");
    CROWD_OK(crowd, session, weft_outer_wait(outer));
    CROWD_OK(crowd, session, weft_outer_save(outer, out[rank], weft_outer_bytes(outer)));
    CROWD_OK(crowd, session, weft_outer_free(outer));
    CROWD_CHECK(crowd, session, weft_outer_free(NULL) == WEFT_OK && weft_outer_bytes(NULL) == 0);
    CROWD_CHECK(crowd, session, weft_outer_step(NULL) == WEFT_ERR_INVALID);
}

static void test_wrong_calls(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, wrong_calls);
    assert_int_equal(crowd.failures, 0);
}

/* Only rank 1 has a state, and rank 0's anchors are the ones that are broadcast. */
static void state_without_root(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float weights[CROWD_MAX][PARTS][ELEMS];
    struct weft_outer *outer = make(crowd, session, &int8_options, weights[rank]);
    CROWD_REFUSED(
        crowd, session,
        weft_outer_begin(outer, rank == 1 ? saved[rank].data : NULL, rank == 1 ? saved[rank].bytes : 0),
        WEFT_ERR_INVALID, "rank 0");
    CROWD_OK(crowd, session, weft_outer_begin(outer, NULL, 0));
    CROWD_OK(crowd, session, weft_outer_free(outer));
}

static void test_state_without_root(void **state)
{
    struct crowd crowd = {0};
    assert_true(saved[1].bytes > 0);
    crowd_run(&crowd, RANKS, state_without_root);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle),
        cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_state_without_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
