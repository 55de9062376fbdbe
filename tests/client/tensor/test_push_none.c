/* test_push_none.c - weft_push_none equals a push_pull of zeros: all ranks have the same bits either way, at
 * shards and by all-reduce, dense and with codecs, with and without optimisers, whichever ranks have a
 * gradient. */
#include "tests/lib/check.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/client/fleet.h"
#include "tests/client/matrix_options.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { ROWS = 12, COLS = 20, ELEMS = ROWS * COLS, STEPS = 5, RANKS = 3 };

static const struct {
    const char *codec, *optimizer;
} kinds[] = {
    {"dense", "none"},
    {"dense", "adam:weight_decay=0.1"},
    {"dense", "sgd:momentum=0.9"},
    {"bf16", "sgd"},
    {"int8:min_count=0", "adamw"},
    {"powersgd:rank=2", "sgd:momentum=0.9"},
    {"topk:ratio=0.1,min_count=0", "sgd"},
    {"sign:min_count=0", "none"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0], TENSORS = 2 * KINDS };

static bool by_push_none;  /* set before the processes are forked */
static uint32_t shards;

struct results {
    _Atomic bool has_asked; /* rank 0, what it waits for */
    float weights[RANKS][TENSORS][ELEMS];
};
_Static_assert(sizeof(struct results) <= FLEET_SHARED_BYTES, "what the processes share");

static bool has_gradient(uint32_t rank, uint32_t tensor, uint32_t step)
{
    return step != 4 && (rank + tensor + step) % 3 != 0; /* no rank has a gradient in step 4 */
}

static int declare(struct weft_session *session, uint32_t t, struct weft_tensor **tensor_out)
{
    struct weft_tensor_options options;
    char name[16];
    matrix_options(&options, name, t, ROWS, COLS, kinds[t % KINDS].codec);
    options.optimizer = kinds[t % KINDS].optimizer;
    options.mode = t < KINDS && shards > 0 ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
    MUST(session, weft_declare(session, &options, tensor_out));
    return 0;
}

static int step_once(struct weft_session *session, struct weft_tensor **tensors, uint32_t rank, uint32_t step,
                     struct results *results)
{
    static float grads[TENSORS][ELEMS];
    struct weft_request requests[TENSORS] = {{{0}}};
    MUST(session, weft_step_begin(session, &(struct weft_step){
                                               .step = step, .lr = 0.1f, .weight = 1 + 0.5f * (float)rank}));
    for (uint32_t t = 0; t < TENSORS; t++) {
        const bool none = !has_gradient(rank, t, step);
        for (uint32_t i = 0; i < ELEMS; i++)
            grads[t][i] = none ? 0.0f : mode_pseudo(rank, step * TENSORS + t, i);
        if (none && by_push_none) MUST(session, weft_push_none(tensors[t]));
        else MUST(session, weft_push_pull(tensors[t], grads[t], results->weights[rank][t], &requests[t]));
    }
    if (by_push_none && !has_gradient(rank, 0, step) && weft_push_none(tensors[0]) >= 0) {
        fprintf(stderr, "push_none twice in step %u was not refused\n", step);
        return 1;
    }
    for (uint32_t t = 0; t < TENSORS; t++) MUST(session, weft_wait(&requests[t], 0));
    MUST(session, weft_step_end(session));
    return 0;
}

/* Rank 1 pushes after the wait of rank 0 has reported its reason: the shard waits for all ranks. */
static int wait_for_a_push(struct weft_session *session, struct weft_tensor *tensor, uint32_t rank,
                           struct results *results)
{
    static float grad[ELEMS];
    struct weft_request request = {{0}};
    while (rank == 1 && !atomic_load(&results->has_asked)) sched_yield();
    MUST(session, weft_step_begin(session, &(struct weft_step){.step = STEPS + 1, .lr = 0.1f, .weight = 1}));
    MUST(session, weft_push_pull(tensor, grad, results->weights[rank][0], &request));
    if (rank == 0) {
        const enum weft_status status = weft_wait(&request, 1);
        const bool is_named =
            strstr(weft_error_text(session), "or for a rank that has not pushed it") != NULL;
        atomic_store(&results->has_asked, true);
        if (status != WEFT_ERR_DEADLINE || !is_named) return 1;
    }
    MUST(session, weft_wait(&request, 0));
    MUST(session, weft_step_end(session));
    return 0;
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
    if (weft_push_none(tensors[0]) != WEFT_ERR_STATE) return 1; /* outside a step */
    for (uint32_t step = 1; step <= STEPS; step++)
        if (step_once(session, tensors, rank, step, results)) return 1;
    if (shards > 0 && wait_for_a_push(session, tensors[0], rank, results)) return 1;
    weft_finalize(session);
    return 0;
}

static void compare(uint32_t shard_count)
{
    struct fleet_result result;
    struct results *zeros, *none;
    shards = shard_count;
    by_push_none = false;
    assert_true(fleet_run(RANKS, shards, train, &result, (void **)&zeros));
    by_push_none = true;
    assert_true(fleet_run(RANKS, shards, train, &result, (void **)&none));
    for (uint32_t t = 0; t < TENSORS; t++) {
        /* a rank without a gradient receives no mean */
        if (!strcmp(kinds[t % KINDS].optimizer, "none")) continue;
        for (uint32_t rank = 0; rank < RANKS; rank++)
            if (memcmp(none->weights[rank][t], zeros->weights[0][t], sizeof zeros->weights[0][t]) != 0)
                fail_msg("tensor %u (%s, %s), rank %u of %u shards: the weights differ", t,
                         kinds[t % KINDS].codec, kinds[t % KINDS].optimizer, rank, shards);
    }
    for (uint32_t t = 0; t < TENSORS; t++) /* step 5: a rank with a gradient receives the mean */
        for (uint32_t rank = 0; rank < RANKS; rank++)
            if (has_gradient(rank, t, STEPS))
                assert_memory_equal(none->weights[rank][t], zeros->weights[rank][t],
                                    sizeof zeros->weights[0][t]);
}

static void test_all_reduce(void **state)
{
    (void)state;
    compare(0);
}

static void test_shards(void **state)
{
    (void)state;
    compare(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_reduce), cmocka_unit_test(test_shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
