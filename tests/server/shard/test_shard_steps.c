/* test_shard_steps.c - chunks of several slices: folds, closes and optimisers run as tasks, so that no step
 * of the engine thread is long (in elements of arithmetic), and every result is unchanged, bit for bit. */
#include "shard_check.h"
#include "tests/lib/count_kernels.h"

#include <stdio.h>
#include <string.h>

/* Each a multiple of WEFT_LOOP_SLICE, except a small one. */
static const struct fleet_tensor_spec tensors[] = {
    {.name = "wide", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 2, .dims = {600, 500}},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {200001}},
    {.name = "half", .codec = "bf16", .optimizer = "sgd:momentum=0.9", .dim_count = 2, .dims = {500, 400}},
    {.name = "low",
     .codec = "powersgd:rank=2",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {500, 400}},
    {.name = "top",
     .codec = "topk:ratio=0.05,min_count=64",
     .optimizer = "sgd",
     .dim_count = 2,
     .dims = {500, 400}},
    {.name = "bias", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {37}},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static struct fleet_options options_of(bool ucx)
{
    return (struct fleet_options){.seed = 21,
                                  .shards = 1,
                                  .workers = 3,
                                  .receive_bytes_max = 32 << 20,
                                  .tensors = tensors,
                                  .tensor_count = TENSORS,
                                  .ucx = ucx,
                                  .weighted = true,
                                  .faults.repeat_percent = 20,
                                  .round_deadline_ns = WEFT_SECONDS(60)};
}

static void train(const struct fleet_options *options, uint64_t steps)
{
    struct fleet *fleet = fleet_create(options);
    count_kernels_forget();
    count_kernels_watch(fleet->shard[0].loop);
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, steps));
    for (uint32_t w = 0; w < options->workers; w++) {
        if (fleet->worker[w].training.failure < 0)
            printf("rank %u: %s\n", w, fleet->worker[w].training.failure_text);
        assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    }
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_free(fleet);
}

static void no_step_is_long(void **state)
{
    struct fleet_options options = options_of(true);
    train(&options, 3);
    print_message("longest step: %llu elements, all steps: %llu\n",
                  (unsigned long long)count_kernels_longest(), (unsigned long long)count_kernels_total());
    assert_true(count_kernels_total() > 0); /* at least the small tensor's: the counter works */
    assert_true(count_kernels_longest() <= WEFT_LOOP_SLICE);
}

/* In virtual time there is no other thread: tasks run inside the step, and the counter counts them. */
static void the_counter_sees_a_long_step(void **state)
{
    struct fleet_options options = options_of(false);
    train(&options, 2);
    assert_true(count_kernels_longest() > WEFT_LOOP_SLICE);
}

/* Failed and freed during long folds: a task ends before its memory is freed. */
static void leaves_in_a_fold(void **state)
{
    static struct fleet_request request[8];
    for (int round = 0; round < 20; round++) {
        struct fleet_options options = options_of(true);
        options.tensor_count = 2;
        struct fleet *fleet = fleet_create(&options);
        fleet_install(fleet);
        for (uint32_t c = 0; c < 2; c++)
            for (uint32_t w = 0; w < 3; w++)
                fleet_push(fleet, w, c, WEFT_WIRE_PUSH_PULL, 1, &request[c * 3 + w]);
        for (int i = 0;
             i < 2000 && fleet->shard[0].engine->stats.received_bytes < (uint64_t)(round + 1) * 200000; i++)
            fleet_settle(fleet, WEFT_MS(1) / 10);
        if (round % 2) weft_shard_engine_fail(fleet->shard[0].engine, WEFT_ERR_ABORTED, "the test ends it");
        if (round % 4 == 1) fleet_settle(fleet, WEFT_MS(5));
        fleet_free(fleet);
        for (int i = 0; i < 6; i++) fleet_request_free(fleet, &request[i]);
        memset(request, 0, sizeof request);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_step_is_long),
                                       cmocka_unit_test(the_counter_sees_a_long_step),
                                       cmocka_unit_test(leaves_in_a_fold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
