/* test_skip_nonfinite_shards.c - a skipped step leaves no trace at shards: a run with such steps has the bits
 * of the run without them. One run has every kind of tensor, some in several chunks, some by all-reduce.
 * Before each step another tensor skips it. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/fleet.h"
#include "tests/client/matrix_options.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { ROWS = 24, COLS = 40, ELEMS = ROWS * COLS, RANKS = 3 };

static const struct kind {
    const char *codec, *optimizer;
    uint64_t chunk_bytes;
    bool skips, all_reduce;
} kinds[] = {
    {"dense", "adam", 1024, false, false},
    {"dense", "adam", 1024, true, false},
    {"dense", "none", 0, true, false},
    {"dense", "sgd:momentum=0.9", 0, false, false},
    {"bf16", "sgd:momentum=0.9", 1024, true, false},
    {"int8", "adamw", 0, true, false},
    {"powersgd:rank=2", "sgd:momentum=0.9", 0, true, false},
    {"topk:ratio=0.1,min_count=0", "sgd", 0, true, false},
    {"topk:ratio=0.1,min_count=0,global=1", "sgd", 0, true, false},
    {"sign:min_count=0", "none", 0, true, false},
    {"auto", "sgd:momentum=0.9", 0, true, false},
    {"dense", "adam", 0, true, true},
    {"powersgd:rank=2", "adam", 0, true, true},
};
enum { TENSORS = sizeof kinds / sizeof kinds[0], STEPS = TENSORS + 2 };

static bool hurt; /* set before the processes are forked */

struct results {
    float weights[RANKS][TENSORS][ELEMS];
};
_Static_assert(sizeof(struct results) <= FLEET_SHARED_BYTES, "what the processes share");

static int declare(struct weft_session *session, uint32_t t, struct weft_tensor **tensor_out)
{
    struct weft_tensor_options options;
    char name[16];
    matrix_options(&options, name, t, ROWS, COLS, kinds[t].codec);
    options.optimizer = kinds[t].optimizer;
    options.chunk_bytes = kinds[t].chunk_bytes;
    options.skip_nonfinite = kinds[t].skips;
    options.mode = kinds[t].all_reduce ? WEFT_MODE_ALL_REDUCE : WEFT_MODE_SERVER;
    MUST(session, weft_declare(session, &options, tensor_out));
    return 0;
}

/* One attempt of a step; TENSORS: no tensor is hit. The cause is rank 1, or for odd tensors rank 2. */
static enum weft_status try_step(struct weft_session *session, struct weft_tensor **tensors, uint32_t data,
                                 uint32_t hit, struct results *results)
{
    static float grads[TENSORS][ELEMS];
    static struct weft_request requests[TENSORS]; /* static: open requests outlive a failed check below */
    memset(requests, 0, sizeof requests);
    const uint32_t rank = weft_rank(session);
    enum weft_status status = weft_step_begin(
        session,
        &(struct weft_step){.step = weft_step_next(session), .lr = 0.1f, .weight = 1 + 0.5f * (float)rank});
    for (uint32_t t = 0; t < TENSORS && status >= 0; t++) {
        for (uint32_t i = 0; i < ELEMS; i++) grads[t][i] = mode_pseudo(rank, data * TENSORS + t, i);
        if (t == hit && rank == 1 + t % 2) grads[t][ELEMS - 3] = t % 3 ? NAN : -INFINITY;
        status = weft_push_pull(tensors[t], grads[t], results->weights[rank][t], &requests[t]);
    }
    for (uint32_t t = 0; t < TENSORS && status >= 0; t++) {
        const enum weft_status waited = weft_wait(&requests[t], 0);
        if (waited != (t == hit ? WEFT_ERR_SKIPPED : WEFT_OK)) {
            fprintf(stderr, "rank %u, tensor %u, hit %u: weft_wait returned %d: %s\n", rank, t, hit, waited,
                    weft_error_text(session));
            return WEFT_ERR_INTERNAL;
        }
    }
    return status < 0 ? status : weft_step_end(session);
}

static int skip_one(struct weft_session *session, struct weft_tensor **tensors, uint32_t hit,
                    struct results *results)
{
    static float before[TENSORS][ELEMS], pulled[ELEMS];
    const uint32_t rank = weft_rank(session);
    char words[80];
    struct weft_request request = {{0}};
    memcpy(before, results->weights[rank], sizeof before);
    const enum weft_status status = try_step(session, tensors, 1000 + hit, hit, results);
    snprintf(words, sizeof words, "tensor 't%u' is not finite (NaN or infinity) on rank %u", hit,
             1 + hit % 2);
    if (status != WEFT_ERR_SKIPPED || !strstr(weft_error_text(session), words)) {
        fprintf(stderr, "rank %u, hit %u: weft_step_end returned %d: %s\n", rank, hit, status,
                weft_error_text(session));
        return 1;
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (!strcmp(kinds[t].optimizer, "none")) continue; /* the mean of a skipped step is undefined */
        if (memcmp(before[t], results->weights[rank][t], sizeof before[t]) != 0) {
            fprintf(stderr, "rank %u, hit %u: tensor %u has other weights than before\n", rank, hit, t);
            return 1;
        }
    }
    /* else the next request to the shards is a pull, of dense weights in several chunks */
    if (hit % 2) return 0;
    MUST(session, weft_pull(tensors[0], pulled, &request));
    MUST(session, weft_wait(&request, 0));
    return memcmp(pulled, before[0], sizeof pulled) != 0;
}

static int train(struct fleet *fleet, uint32_t rank)
{
    struct results *results = fleet->user;
    struct weft_session *session;
    struct weft_tensor *tensors[TENSORS];
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (declare(session, t, &tensors[t])) return 1;
        for (uint32_t i = 0; i < ELEMS; i++) results->weights[rank][t][i] = mode_pseudo(7, t, i);
        MUST(session, weft_tensor_init(tensors[t], results->weights[rank][t]));
    }
    for (uint32_t data = 0; data < STEPS; data++) {
        for (uint32_t again = 0; hurt && data < TENSORS && kinds[data].skips && again < 1 + data % 2; again++)
            if (skip_one(session, tensors, data, results)) return 1;
        const enum weft_status status = try_step(session, tensors, data, TENSORS, results);
        if (status < 0) fprintf(stderr, "rank %u, step %u: %s\n", rank, data + 1, weft_error_text(session));
        if (status < 0) return 1;
    }
    MUST(session, weft_finalize(session));
    return 0;
}

static void compare(uint32_t shards)
{
    static struct results plain;
    struct fleet_result result;
    struct results *shared;
    hurt = false;
    assert_true(fleet_run(RANKS, shards, train, &result, (void **)&shared));
    plain = *shared;
    hurt = true;
    assert_true(fleet_run(RANKS, shards, train, &result, (void **)&shared));
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            /* by measured times: may differ in the other run */
            const bool chooses = !strcmp(kinds[t].codec, "auto");
            const float *wanted = chooses ? shared->weights[0][t] : plain.weights[0][t];
            if (memcmp(shared->weights[rank][t], wanted, sizeof plain.weights[0][t]) != 0)
                fail_msg("tensor %u (%s, %s), rank %u, %u shards: the weights differ", t, kinds[t].codec,
                         kinds[t].optimizer, rank, shards);
        }
}

static void test_one_shard(void **state) { compare(1); }
static void test_two_shards(void **state) { compare(2); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_shard), cmocka_unit_test(test_two_shards)};
    setenv("WEFT_SERVER_HASH_EVERY", "1", 1); /* shards compare the weights of every step with the workers' */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
