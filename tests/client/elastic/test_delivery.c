/* test_delivery.c - steps with deliver_late: results arrive after weft_step_end, and weft_tensor_wait waits
 * for them. The same job without the option is the oracle for weights, states and residuals, in every mode.
 * */
#include "tests/lib/check.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/session/session.h"
#include "proto/proto.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { STEPS = 4, PAIRS_MAX = 8, SAVED_BYTES = 1 << 16 };

static const struct mode_plan plans[] = {
    {"matrix", "dense", "sgd:momentum=0.9,weight_decay=1e-4", 2, {120, 70}},
    {"moments", "dense", "adamw", 1, {513}},
    {"mean", "dense", "none", 1, {900}},
    {"lowrank", "powersgd:rank=2", "sgd:momentum=0.9", 2, {64, 60}},
    {"sparse", "topk:ratio=0.05,min_count=0", "adam", 2, {40, 30}},
    {"half", "bf16", "adam", 1, {1000}},
    {"four", "int4:min_count=0", "sgd", 1, {1001}},
};
enum { PLANS = sizeof plans / sizeof plans[0] };

/* set before the processes are forked */
static bool late;
static enum weft_mode mode;
static const char *codec;

struct shared {
    uint64_t weights[2][STEPS][PAIRS_MAX][2]; /* hashes: rank, step, plan, mode */
    uint64_t saved[2][PAIRS_MAX][2];          /* of state and residual after the last step */
    _Atomic uint32_t arrived;                 /* ranks that have passed a place of the test */
};

static enum weft_status begin(struct weft_session *session, uint64_t step)
{
    const float weight = step == 2 ? 0.3f + (float)weft_rank(session) : 1.0f;
    return weft_step_begin_with(
        session, WEFT_STEP(.step = step, .lr = 0.1f / (float)step, .weight = weight, .deliver_late = late));
}

static void wait_for_arrivals(struct fleet *fleet, uint32_t wanted)
{
    struct shared *shared = fleet->user;
    while (atomic_load(&shared->arrived) < wanted) usleep(100);
}

static void arrive(struct fleet *fleet)
{
    atomic_fetch_add(&((struct shared *)fleet->user)->arrived, 1);
}

/* ---- the same values ---- */

static int wait_and_hash(struct weft_session *session, struct fleet *fleet, struct mode_pair *pairs,
                         uint32_t step)
{
    struct shared *shared = fleet->user;
    for (uint32_t p = 0; p < PLANS; p++)
        for (int m = 0; m < 2; m++) {
            MUST(session, weft_tensor_wait(pairs[p].tensor[m], 0));
            shared->weights[weft_rank(session)][step - 1][p][m] =
                weft_weight_hash(pairs[p].out[m], pairs[p].elems * 4);
        }
    return 0;
}

/* These calls directly follow weft_step_end. */
static int save_and_hash(struct weft_session *session, struct fleet *fleet, struct mode_pair *pairs)
{
    static uint8_t bytes[SAVED_BYTES];
    struct shared *shared = fleet->user;
    const uint32_t rank = weft_rank(session);
    for (uint32_t p = 0; p < PLANS; p++) {
        for (int m = 0; m < 2; m++) {
            if (weft_state_bytes(pairs[p].tensor[m]) > SAVED_BYTES) return 1;
            if (rank == 0)
                MUST(session,
                     weft_state_save(pairs[p].tensor[m], bytes, weft_state_bytes(pairs[p].tensor[m])));
            if (rank == 0)
                shared->saved[rank][p][m] +=
                    weft_weight_hash(bytes, weft_state_bytes(pairs[p].tensor[m]) & ~3ull);
            const uint64_t count = weft_residual_bytes(pairs[p].tensor[m]);
            if (count == 0 || count > SAVED_BYTES) return 1;
            MUST(session, weft_residual_save(pairs[p].tensor[m], bytes, count));
            shared->saved[rank][p][m] += weft_weight_hash(bytes, count & ~3ull);
        }
    }
    return 0;
}

/* Where no wait ended early, the time of an operation is hidden or exposed. */
static bool times_fit(const struct weft_tensor_stats *stats, uint64_t elems)
{
    return stats->bytes == elems * 4 && stats->operations == STEPS && stats->ready_ns > 0 &&
           stats->ready_ns <= stats->started_ns && stats->started_ns <= stats->done_ns &&
           (stats->waited_from_ns == 0 ||
            (stats->waited_from_ns >= stats->ready_ns && stats->waited_from_ns <= stats->done_ns)) &&
           stats->transfer_ns > 0 && stats->exposed_operations <= STEPS &&
           stats->ahead_ns + stats->exposed_ns == stats->queued_ns + stats->transfer_ns;
}

static int check_times(struct weft_session *session, struct mode_pair *pairs)
{
    for (uint32_t p = 0; p < PLANS; p++)
        for (int m = 0; m < 2; m++) {
            struct weft_tensor_stats stats = {.size = sizeof stats};
            MUST(session, weft_tensor_stats_get(pairs[p].tensor[m], &stats));
            if (!times_fit(&stats, pairs[p].elems))
                return fprintf(stderr, "rank %u, %s, mode %d: the times do not fit\n", weft_rank(session),
                               plans[p].name, m);
        }
    return 0;
}

/* The flight recorder has the spans of the operations. */
static int check_spans(struct weft_session *session)
{
    static char text[1 << 22];
    char path[200];
    snprintf(path, sizeof path, "/tmp/weft-delivery-%d.perfetto.json", (int)getpid());
    MUST(session, weft_dump_events(session, path));
    FILE *file = fopen(path, "r");
    if (!file) return 1;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    remove(path);
    if (strstr(text, "\"tensor queued\"") && strstr(text, "\"tensor transfer\"")) return 0;
    return fprintf(stderr, "the trace has no spans of tensors\n");
}

static int values_worker(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    static struct mode_pair pairs[PLANS];
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    for (uint32_t p = 0; p < PLANS; p++)
        if (mode_pair_declare(session, &plans[p], &pairs[p]) != 0) return 1;
    for (uint32_t step = 1; step <= STEPS; step++) {
        if (late && step > 1 && wait_and_hash(session, fleet, pairs, step - 1) != 0) return 1;
        MUST(session, begin(session, step));
        for (uint32_t p = 0; p < PLANS; p++) {
            for (uint64_t i = 0; i < pairs[p].elems; i++) pairs[p].grad[i] = mode_pseudo(rank, step, i);
            for (int m = 0; m < 2; m++)
                MUST(session, weft_push_pull(pairs[p].tensor[m], pairs[p].grad, pairs[p].out[m],
                                             &pairs[p].request[m]));
        }
        MUST(session, weft_step_end(session));
        if (!late && wait_and_hash(session, fleet, pairs, step) != 0) return 1;
    }
    if (save_and_hash(session, fleet, pairs) != 0) return 1;
    if (late && wait_and_hash(session, fleet, pairs, STEPS) != 0) return 1;
    struct weft_stats stats = {.size = sizeof stats};
    MUST(session, weft_stats_get(session, &stats));
    if (check_times(session, pairs) != 0 || check_spans(session) != 0) return 1;
    weft_finalize(session);
    return stats.steps == STEPS && stats.step_ns >= stats.exposed_ns ? 0 : 1;
}

static void test_values(void **state)
{
    struct fleet_result result;
    void *at_once, *later;
    late = false;
    assert_true(fleet_run(2, 2, values_worker, &result, &at_once));
    late = true;
    assert_true(fleet_run(2, 2, values_worker, &result, &later));
    struct shared *one = at_once, *other = later;
    assert_memory_equal(one->weights, other->weights, sizeof one->weights);
    assert_memory_equal(one->saved, other->saved, sizeof one->saved);
    assert_true(one->saved[0][0][0] != 0 && one->weights[1][STEPS - 1][0][0] != 0);
}

/* ---- one tensor or three ---- */

enum { TENSORS = 3, ELEMS = 600 };

struct model {
    struct weft_tensor *tensors[TENSORS];
    struct weft_request requests[TENSORS];
    float weights[TENSORS][ELEMS], grads[TENSORS][ELEMS];
};
static struct model model;

static int join(struct fleet *fleet, uint32_t rank, struct weft_session **session_out)
{
    if (fleet_join(fleet, rank, 20000, session_out) != 0) return 1;
    for (int t = 0; t < TENSORS; t++) {
        struct weft_tensor_options options;
        char name[16];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "t%d", t);
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = 20;
        options.dims[1] = ELEMS / 20;
        options.codec = codec;
        options.optimizer = "sgd:momentum=0.9";
        options.mode = mode;
        options.skip_nonfinite = true;
        MUST(*session_out, weft_declare(*session_out, &options, &model.tensors[t]));
        for (int i = 0; i < ELEMS; i++) model.weights[t][i] = (float)(t + 1);
        MUST(*session_out, weft_tensor_init(model.tensors[t], model.weights[t]));
    }
    return 0;
}

static enum weft_status push(struct weft_session *session, uint32_t rank, int t, uint64_t step)
{
    for (uint64_t i = 0; i < ELEMS; i++) model.grads[t][i] = mode_pseudo(rank, (uint32_t)step, i);
    return weft_push_pull(model.tensors[t], model.grads[t], model.weights[t], &model.requests[t]);
}

static int failed(struct weft_session *session, const char *what, enum weft_status status)
{
    fprintf(stderr, "rank %u, %s, mode %d: %s: %s: %s\n", weft_rank(session), codec, mode, what,
            weft_status_name(status), weft_error_text(session));
    return 1;
}
#define EXPECT(session, wanted, call)                              \
    do {                                                           \
        const enum weft_status got_ = (call);                      \
        if (got_ != (wanted)) return failed(session, #call, got_); \
    } while (0)

static void run_all(fleet_worker_fn worker, uint32_t codec_count)
{
    static const char *const codecs[] = {"dense", "powersgd:rank=2", "auto"};
    for (uint32_t c = 0; c < codec_count; c++)
        for (uint32_t shards = 0; shards < 2; shards++) {
            struct fleet_result result;
            void *shared;
            late = true;
            codec = codecs[c];
            mode = shards ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
            assert_true(fleet_run(2, shards, worker, &result, &shared));
        }
}

/* Rank 1 pushes after weft_step_end of rank 0 has returned. Until then rank 0 has no results. */
static int early_worker(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    if (join(fleet, rank, &session) != 0) return 1;
    EXPECT(session, WEFT_OK, weft_tensor_wait(model.tensors[0], 0)); /* after init */
    EXPECT(session, WEFT_OK, weft_step_wait(session));
    EXPECT(session, WEFT_OK, begin(session, 1));
    EXPECT(session, WEFT_ERR_STATE, weft_step_wait(session));
    if (rank == 1) wait_for_arrivals(fleet, 1);
    for (int t = 0; t < TENSORS; t++) MUST(session, push(session, rank, t, 1));
    EXPECT(session, WEFT_OK, weft_step_end(session));
    EXPECT(session, WEFT_ERR_STATE, weft_step_end(session));
    if (weft_step_next(session) != 2) return failed(session, "step_next", WEFT_OK);
    if (rank == 0) {
        EXPECT(session, WEFT_ERR_DEADLINE, weft_tensor_wait(model.tensors[1], 1));
        if (!strstr(weft_error_text(session), "'t1'"))
            return failed(session, "the sentence", WEFT_ERR_DEADLINE);
        EXPECT(session, WEFT_ERR_STATE,
               weft_push_pull(model.tensors[2], model.grads[2], model.weights[2], &model.requests[2]));
        arrive(fleet);
    }
    for (int t = 0; t < TENSORS; t++) EXPECT(session, WEFT_OK, weft_tensor_wait(model.tensors[t], 0));
    EXPECT(session, WEFT_OK, weft_step_wait(session));
    EXPECT(session, WEFT_OK, weft_step_wait(session));
    struct weft_tensor_stats stats = {.size = sizeof stats};
    MUST(session, weft_tensor_stats_get(model.tensors[1], &stats));
    if (rank == 0 && stats.exposed_ns < 1000000) return failed(session, "the wait of 1 ms", WEFT_OK);
    weft_finalize(session);
    return 0;
}

static void test_step_end_does_not_wait(void **state)
{
    run_all(early_worker, 2);
}

struct waiter {
    struct fleet *fleet;
    struct weft_session *session;
};

static void *arrive_when_waiting(void *argument)
{
    struct waiter *waiter = argument;
    while (atomic_load(&waiter->session->step.wait_mark_ns) == 0) usleep(100);
    arrive(waiter->fleet);
    return NULL;
}

/* Rank 1 pushes when weft_step_end of rank 0 waits: the wait is counted for the tensors, once. */
static int step_end_worker(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    if (join(fleet, rank, &session) != 0) return 1;
    struct waiter waiter = {fleet, session};
    pthread_t thread;
    MUST(session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0.1f, .weight = 1}));
    if (rank == 1) wait_for_arrivals(fleet, 1);
    for (int t = 0; t < TENSORS; t++) MUST(session, push(session, rank, t, 1));
    if (rank == 0 && pthread_create(&thread, NULL, arrive_when_waiting, &waiter) != 0) return 1;
    EXPECT(session, WEFT_OK, weft_step_end(session));
    if (rank == 0) pthread_join(thread, NULL);
    struct weft_stats all = {.size = sizeof all};
    uint64_t exposed_ns = 0;
    MUST(session, weft_stats_get(session, &all));
    for (int t = 0; t < TENSORS; t++) {
        struct weft_tensor_stats stats = {.size = sizeof stats};
        MUST(session, weft_tensor_stats_get(model.tensors[t], &stats));
        exposed_ns += stats.exposed_ns;
    }
    if (rank == 0 && (exposed_ns == 0 || exposed_ns > all.step_ns))
        return failed(session, "exposed", WEFT_OK);
    weft_finalize(session);
    return 0;
}

static void test_step_end_counts(void **state)
{
    run_all(step_end_worker, 1);
}

/* One gradient is not finite: the step is skipped, and the next one has its number and the weights before it.
 * */
static int skip_worker(struct fleet *fleet, uint32_t rank)
{
    static float before[TENSORS][ELEMS];
    struct weft_session *session;
    if (join(fleet, rank, &session) != 0) return 1;
    for (uint64_t attempt = 1; attempt <= 4; attempt++) {
        const uint64_t step = attempt > 2 ? attempt - 1 : attempt;
        /* the first call after the delivery returns the fate of the step, whatever the call is */
        static uint8_t saved[SAVED_BYTES];
        const enum weft_status begun =
            attempt == 3 && rank == 0
                ? weft_state_save(model.tensors[2], saved, weft_state_bytes(model.tensors[2]))
                : begin(session, attempt == 3 ? 3 : step);
        if (attempt == 3) {
            EXPECT(session, WEFT_ERR_SKIPPED, begun);
            if (!strstr(weft_error_text(session), "rank 1") || !strstr(weft_error_text(session), "'t1'") ||
                memcmp(before, model.weights, sizeof before) != 0)
                return failed(session, "the skipped step", begun);
            EXPECT(session, WEFT_OK, begin(session, weft_step_next(session)));
        } else {
            EXPECT(session, WEFT_OK, begun);
        }
        memcpy(before, model.weights, sizeof before);
        for (int t = 0; t < TENSORS; t++) {
            for (int i = 0; i < ELEMS; i++)
                model.grads[t][i] = mode_pseudo(rank, (uint32_t)step, (uint64_t)i);
            if (attempt == 2 && t == 1 && rank == 1) model.grads[t][7] = NAN;
            MUST(session,
                 weft_push_pull(model.tensors[t], model.grads[t], model.weights[t], &model.requests[t]));
        }
        EXPECT(session, WEFT_OK, weft_step_end(session));
        for (int t = 0; t < TENSORS; t++)
            EXPECT(session, attempt == 2 && t == 1 ? WEFT_ERR_SKIPPED : WEFT_OK,
                   weft_tensor_wait(model.tensors[t], 0));
    }
    EXPECT(session, WEFT_OK, weft_step_wait(session));
    if (weft_step_next(session) != 4) return failed(session, "step_next", WEFT_OK);
    weft_finalize(session);
    return 0;
}

static void test_skipped(void **state)
{
    run_all(skip_worker, 3);
}

/* Rank 1 leaves out the last tensor: rank 0 gets its name and the rank's before the deadline. */
static int missing_worker(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    if (join(fleet, rank, &session) != 0) return 1;
    EXPECT(session, WEFT_OK, begin(session, 1));
    for (int t = 0; t < TENSORS; t++)
        if (rank == 0 || t < TENSORS - 1) MUST(session, push(session, rank, t, 1));
    enum weft_status status = weft_step_end(session);
    if (status == WEFT_OK && rank == 0) status = weft_tensor_wait(model.tensors[TENSORS - 1], 0);
    if (status == WEFT_OK) status = begin(session, 2);
    const char *text = weft_error_text(session);
    if (status != WEFT_ERR_MISMATCH || !strstr(text, "'t2'") || !strstr(text, "rank 1"))
        return failed(session, "a tensor that is missing", status);
    weft_finalize(session);
    return 0;
}

static void test_missing(void **state)
{
    run_all(missing_worker, 2);
}

/* weft_finalize right behind weft_step_end: the results arrive first. */
static int finalize_worker(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    if (join(fleet, rank, &session) != 0) return 1;
    EXPECT(session, WEFT_OK, begin(session, 1));
    if (rank == 1) wait_for_arrivals(fleet, 1);
    for (int t = 0; t < TENSORS; t++) MUST(session, push(session, rank, t, 1));
    EXPECT(session, WEFT_OK, weft_step_end(session));
    if (rank == 0) arrive(fleet);
    const enum weft_status status = weft_finalize(session);
    for (int t = 0; t < TENSORS; t++)
        if (status != WEFT_OK || model.weights[t][5] == (float)(t + 1) ||
            fabsf(model.weights[t][5] - (float)(t + 1)) > 0.1f) {
            fprintf(stderr, "rank %u, %s, mode %d: finalize %d, weight %g\n", rank, codec, mode, status,
                    (double)model.weights[t][5]);
            return 1;
        }
    return 0;
}

static void test_finalize(void **state)
{
    run_all(finalize_worker, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),          cmocka_unit_test(test_step_end_does_not_wait),
        cmocka_unit_test(test_step_end_counts), cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_missing),         cmocka_unit_test(test_finalize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
