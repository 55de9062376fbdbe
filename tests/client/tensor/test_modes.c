/* test_modes.c - server mode and all-reduce mode give the same weights, bit for bit, after every step.
 *
 * Each job declares every tensor twice, once per mode, pushes the same gradients and sample weights to both,
 * and compares the weights after each step. Ranks compare with each other through shared memory. Argument
 * "small" (suite quick): two workers and one step size. Otherwise: 2 and 4 workers, 2 shards, a matrix of
 * several chunks. The data depend on (rank, step, element) only. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "codec_threads.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"
#include "proto/proto.h"
#include "weft/weft.h"

#define STEPS 6
#define TENSORS_MAX 12

static bool small;

static const struct mode_plan tensors_small[] = {
    {"matrix", "dense", "sgd:momentum=0.9,weight_decay=1e-4", 2, {120, 70}},
    {"bias", "dense", "sgd", 1, {513}},
    {"sum", "dense", "sum", 1, {700}},
};
static const struct mode_plan tensors_full[] = {
    /* of 256 KiB, on both shards */
    {"matrix", "dense", "sgd:momentum=0.9,weight_decay=1e-4,nesterov=1", 2, {700, 1100}, .chunks = 12},
    {"bias", "dense", "sgd:momentum=0.5", 1, {1001}},
    {"moments", "dense", "adam:weight_decay=0.01", 2, {90, 40}},
    {"sparse", "dense", "ftrl:l1=0.05,l2=0.1", 1, {777}},
    {"layer", "dense", "lamb:weight_decay=0.02", 2, {500, 700}, .chunks = 1}, /* 1.4 MB */
    {"mean", "dense", "none", 2, {300, 1000}},
};
static const struct mode_plan tensors_codec[] = {
    {"lowrank", "powersgd:rank=2", "sgd:momentum=0.9", 2, {256, 300}, 4096, .chunks = 1},
    {"sparse", "topk:ratio=0.02", "sgd:momentum=0.9", 2, {200, 250}, 4096, .chunks = 1},
    {"half", "bf16", "adamw:beta2=0.95,weight_decay=0.1", 1, {5000}, 4096, .chunks = 5},
    {"shared", "f16", "sgd", 1, {5000}, 4096, .chunks = 1},
    /* min_count is of the tensor, not of its last chunk of 904 */
    {"eight", "int8", "adagrad", 1, {5000}, 8192, .chunks = 3},
    {"four", "int4:min_count=0", "sgd", 1, {3001}, 2100, .chunks = 6}, /* of 2,048 bytes: between blocks */
    {"signs", "sign:min_count=0", "sgd", 1, {3001}, 4096, .chunks = 1},
    {"eighths", "e4m3:min_count=0", "sgd", 1, {1500}, 1024, .chunks = 6},
    {"wide", "e5m2:min_count=0", "none", 2, {50, 90}, 8192, .chunks = 3},
    {"layer", "bf16", "lamb:weight_decay=0.02", 2, {50, 90}, 8192, .chunks = 1},
    {"drawn", "randomk:ratio=0.02,min_count=0", "sgd", 2, {40, 75}, 4096, .chunks = 1},
    {"sum", "int8:min_count=0", "sum", 1, {3001}, 4096, .chunks = 3},
};

/* Several slices each: the codec runs on the compute thread. */
static const struct mode_plan tensors_long[] = {
    {"lowrank", "powersgd:rank=2", "sgd:momentum=0.9", 2, {500, 400}},
    {"sparse", "topk:ratio=0.02", "sgd:momentum=0.9", 2, {500, 400}},
    {"half", "bf16", "sgd", 1, {200001}, .chunks = 4}, /* each chunk is at most a slice, the tensor is more */
};

static int run_steps(struct weft_session *session, struct fleet *fleet, struct mode_pair *pairs, size_t count,
                     const struct mode_plan *plans)
{
    uint64_t *hashes = fleet->user; /* [rank][step][tensor] */
    uint32_t rank = weft_rank(session);
    for (uint32_t step = 1; step <= STEPS; step++) {
        float weight = step <= 2 ? 1.0f : 0.3f + (float)rank * 0.7f;
        MUST(session,
             weft_step_begin(session,
                             &(struct weft_step){.step = step, .lr = 0.1f / (float)step, .weight = weight}));
        for (size_t t = 0; t < count; t++) {
            struct mode_pair *pair = &pairs[t];
            for (uint64_t i = 0; i < pair->elems; i++) pair->grad[i] = mode_pseudo(rank, step, i);
            /* The order of the modes alternates: no result may depend on it. */
            for (int k = 0; k < 2; k++) {
                int mode = (step + (uint32_t)k) % 2;
                MUST(session,
                     weft_push_pull(pair->tensor[mode], pair->grad, pair->out[mode], &pair->request[mode]));
            }
        }
        MUST(session, weft_step_end(session));
        for (size_t t = 0; t < count; t++) {
            struct mode_pair *pair = &pairs[t];
            if (!mode_pair_equal(pair, plans[t].name, rank, step)) return 1;
            hashes[(rank * STEPS + step - 1) * TENSORS_MAX + t] =
                weft_weight_hash(pair->out[0], pair->elems * 4);
        }
    }
    return 0;
}

static int worker(struct fleet *fleet, uint32_t rank, const struct mode_plan *plans, size_t count)
{
    struct weft_session *session;
    struct mode_pair pairs[TENSORS_MAX] = {0};
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    int rc = 0;
    for (size_t t = 0; t < count && rc == 0; t++) rc = mode_pair_declare(session, &plans[t], &pairs[t]);
    if (rc == 0) rc = run_steps(session, fleet, pairs, count, plans);
    weft_finalize(session);
    return rc;
}

static int worker_small(struct fleet *fleet, uint32_t rank) { return worker(fleet, rank, tensors_small, 2); }
static int worker_full(struct fleet *fleet, uint32_t rank)
{
    return worker(fleet, rank, tensors_full, sizeof tensors_full / sizeof tensors_full[0]);
}
static int worker_codec(struct fleet *fleet, uint32_t rank)
{
    return worker(fleet, rank, tensors_codec, sizeof tensors_codec / sizeof tensors_codec[0]);
}

static int worker_long(struct fleet *fleet, uint32_t rank)
{
    int rc = worker(fleet, rank, tensors_long, 3);
    if (rc == 0 && codec_threads_longest_step() > WEFT_LOOP_SLICE)
        rc = fprintf(stderr, "a codec of %llu elements ran in a step of the engine\n",
                     (unsigned long long)codec_threads_longest_step());
    if (rc == 0 && codec_threads_apart() == 0)
        rc = fprintf(stderr, "nothing ran on the compute thread: the test sees nothing\n");
    return rc;
}

/* The same counting finds short tensors on the engine thread. */
static int worker_short(struct fleet *fleet, uint32_t rank)
{
    static const struct mode_plan tensors[] = {{"short", "topk:ratio=0.02", "sgd", 2, {200, 250}}};
    int rc = worker(fleet, rank, tensors, 1);
    if (rc == 0 && (codec_threads_longest_step() != 50000 || codec_threads_apart() != 0))
        rc = fprintf(stderr, "short codecs are not seen\n");
    return rc;
}

static void check_job(uint32_t workers, uint32_t shards, fleet_worker_fn fn, size_t tensors)
{
    struct fleet_result result;
    void *user;
    assert_true(fleet_run(workers, shards, fn, &result, &user));
    const uint64_t *hashes = user;
    for (uint32_t rank = 1; rank < workers; rank++)
        for (uint32_t step = 0; step < STEPS; step++)
            for (size_t t = 0; t < tensors; t++)
                assert_int_equal(hashes[step * TENSORS_MAX + t],
                                 hashes[(rank * STEPS + step) * TENSORS_MAX + t]);
    assert_int_not_equal(hashes[0], hashes[TENSORS_MAX]); /* the weights do change */
    for (uint32_t i = 0; i < shards; i++) assert_int_equal(result.shard_status[i], 0);
}

static void test_dense_small(void **state) { check_job(2, 1, worker_small, 2); }
static void test_dense_two_workers(void **state)
{
    check_job(2, 2, worker_full, sizeof tensors_full / sizeof tensors_full[0]);
}
static void test_dense_four_workers(void **state)
{
    check_job(4, 2, worker_full, sizeof tensors_full / sizeof tensors_full[0]);
}
static void test_dense_three_workers(void **state)
{
    check_job(3, 1, worker_full, sizeof tensors_full / sizeof tensors_full[0]);
}
static void test_codec_two_workers(void **state)
{
    setenv("WEFT_SERVER_HASH_EVERY", "1", 1); /* the shards' copies equal the workers' weights */
    check_job(2, 2, worker_codec, sizeof tensors_codec / sizeof tensors_codec[0]);
    unsetenv("WEFT_SERVER_HASH_EVERY");
}
static void test_codec_three_workers(void **state)
{
    check_job(3, 2, worker_codec, sizeof tensors_codec / sizeof tensors_codec[0]);
}

/* One element of one rank's weights is changed: the shard that has its chunk must detect it. */
static uint64_t spoilt; /* the workers are forked */
static int worker_differs(struct fleet *fleet, uint32_t rank)
{
    static const struct mode_plan plan = {"half", "bf16", "sgd", 1, {5000}, 4096, .chunks = 5};
    struct weft_session *session;
    struct mode_pair pair = {0};
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    if (mode_pair_declare(session, &plan, &pair) != 0) return 1;
    enum weft_status status = WEFT_OK;
    for (uint32_t step = 1; step <= 1000 && status >= 0; step++) {
        status = weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.1f, .weight = 1});
        for (uint64_t i = 0; i < pair.elems; i++) pair.grad[i] = mode_pseudo(rank, step, i);
        if (step == 2 && rank == 1) pair.out[0][spoilt] += 1;
        if (status >= 0) status = weft_push_pull(pair.tensor[0], pair.grad, pair.out[0], &pair.request[0]);
        if (status >= 0) status = weft_step_end(session);
    }
    const bool matches = status == WEFT_ERR_DIVERGED &&
                      strstr(weft_error_text(session), "weights of tensor 'half.0'") &&
                      strstr(weft_error_text(session), "rank 1 has hash");
    if (!matches)
        fprintf(stderr, "rank %u: %s: %s\n", rank, weft_status_name(status), weft_error_text(session));
    weft_finalize(session);
    return !matches;
}

/* An aggregate is invalid: the sentence names its shard. Exponents of four chunks, one byte each of two
 * blocks. */
static int worker_hears_nonsense(struct fleet *fleet, uint32_t rank)
{
    static const struct mode_plan plan = {"eight", "int8", "none", 1, {2000}, 2048, .chunks = 4};
    struct weft_session *session;
    struct mode_pair pair = {0};
    char wanted[128];
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    if (mode_pair_declare(session, &plan, &pair) != 0) return 1;
    struct weft_request met = {{0}};
    MUST(session, weft_barrier(session, &met));
    MUST(session, weft_wait(&met, 0));
    if (rank == 0) codec_threads_spoil((size_t)spoilt);
    weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0.1f, .weight = 1});
    for (uint64_t i = 0; i < pair.elems; i++) pair.grad[i] = mode_pseudo(rank, 1, i);
    enum weft_status status = weft_push_pull(pair.tensor[0], pair.grad, pair.out[0], &pair.request[0]);
    if (status >= 0) status = weft_step_end(session);
    const uint32_t chunk = (uint32_t)spoilt / 2;
    snprintf(wanted, sizeof wanted, "(round 0, chunk %u) from %.40s", chunk,
             client_endpoint_name(session, pair.tensor[0]->chunk_table.chunks[chunk].endpoint));
    const bool matches = status == WEFT_ERR_MALFORMED && strstr(weft_error_text(session), wanted);
    if (!matches && rank == 0)
        fprintf(stderr, "%s: %s, not %s\n", weft_status_name(status), weft_error_text(session), wanted);
    weft_finalize(session);
    return rank == 0 && !matches; /* the other rank gets the failure, or has ended its step before */
}

static void test_a_damaged_chunk_is_named(void **state)
{
    for (spoilt = 0; spoilt < 8; spoilt += 3) {
        struct fleet_result result;
        assert_true(fleet_run(2, 2, worker_hears_nonsense, &result, NULL));
    }
}

static void test_weights_that_differ(void **state)
{
    setenv("WEFT_SERVER_HASH_EVERY", "1", 1);
    setenv("WEFT_CLIENT_HASH_EVERY", "0", 1); /* else the workers may find it before the shard */
    for (spoilt = 0; spoilt < 5000; spoilt += 1249) { /* the last is in the last chunk */
        struct fleet_result result;
        assert_true(fleet_run(2, 2, worker_differs, &result, NULL));
    }
    unsetenv("WEFT_CLIENT_HASH_EVERY");
    unsetenv("WEFT_SERVER_HASH_EVERY");
}

static void test_long_codecs(void **state) { check_job(2, 1, worker_long, 3); }
/* A rank leaves while long codecs compute, at another moment each time: the task ends before its memory is
 * freed. */
static uint32_t leaving_turn; /* the workers are forked */
static int worker_leaves(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    struct mode_pair pairs[TENSORS_MAX] = {0};
    if (fleet_join(fleet, rank, 30000, &session) != 0) return 1;
    for (size_t t = 0; t < 3; t++)
        if (mode_pair_declare(session, &tensors_long[t], &pairs[t]) != 0) return 1;
    /* all have declared: from here on the other rank may leave first, and calls may fail */
    struct weft_request met = {{0}};
    if (weft_barrier(session, &met) >= 0) weft_wait(&met, 0);
    weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0.1f, .weight = 1});
    for (size_t t = 0; t < 3; t++) {
        for (uint64_t i = 0; i < pairs[t].elems; i++) pairs[t].grad[i] = mode_pseudo(rank, 1, i);
        for (int mode = 0; mode < 2; mode++)
            if (weft_push_pull(pairs[t].tensor[mode], pairs[t].grad, pairs[t].out[mode],
                               &pairs[t].request[mode]) < 0)
                break;
    }
    poll(NULL, 0, (int)(leaving_turn % 5));
    if (rank == 0 && leaving_turn % 2) weft_abort(session, "the test ends it");
    weft_finalize(session);
    return 0;
}

static void test_leaving_long_codecs(void **state)
{
    for (uint32_t turn = 0; turn < 10; turn++) {
        struct fleet_result result;
        void *user;
        leaving_turn = turn;
        fleet_run(2, 1, worker_leaves, &result, &user);
        for (int rank = 0; rank < 2; rank++) assert_int_equal(result.worker_status[rank], 0);
    }
}

static void test_short_codecs(void **state) { check_job(2, 1, worker_short, 1); }

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = {cmocka_unit_test(test_dense_small)};
    const struct CMUnitTest full[] = {
        cmocka_unit_test(test_dense_two_workers),   cmocka_unit_test(test_dense_three_workers),
        cmocka_unit_test(test_dense_four_workers),  cmocka_unit_test(test_codec_two_workers),
        cmocka_unit_test(test_codec_three_workers), cmocka_unit_test(test_long_codecs),
        cmocka_unit_test(test_short_codecs),        cmocka_unit_test(test_leaving_long_codecs),
        cmocka_unit_test(test_weights_that_differ), cmocka_unit_test(test_a_damaged_chunk_is_named),
    };
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    return small ? cmocka_run_group_tests(quick, NULL, NULL) : cmocka_run_group_tests(full, NULL, NULL);
}
