/* test_shard_members.c - a shard with changing workers (shard_members.c): what is kept, what is discarded,
 * which requests wait. Three workers; the second is lost, or the third is new. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS = 3, LOST = 1, SUM = 0, MEAN = 1, LONG = 2, LONG_ELEMS = 1 << 20 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "sum", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {40}},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {50}},
    {.name = "long", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {LONG_ELEMS}},
};

static struct fleet *start_with(uint32_t first_workers)
{
    struct fleet_options options = {.seed = 11,
                                    .first_workers = first_workers,
                                    .shards = 1,
                                    .workers = WORKERS,
                                    .tensors = tensors,
                                    .tensor_count = 3,
                                    .elastic = true,
                                    .round_deadline_ns = WEFT_SECONDS(500),
                                    .receive_bytes_max = (size_t)64 << 20};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    return fleet;
}

static struct fleet *start(void)
{
    return start_with(0);
}

static struct weft_shard_engine *engine_of(struct fleet *fleet) { return fleet->shard[0].engine; }

/* All workers again. */
static void follow_all(struct fleet *fleet, uint32_t epoch, const uint64_t *incarnations)
{
    const uint32_t endpoints[] = {fleet->worker[0].endpoint, fleet->worker[1].endpoint,
                                  fleet->worker[2].endpoint};
    struct weft_error error = {0};
    assert_int_equal(
        weft_shard_engine_enter_epoch(engine_of(fleet), epoch, 0, WORKERS, endpoints, incarnations, &error),
        WEFT_OK);
}

/* The members of the epoch: all but LOST, in their order. */
static void follow(struct fleet *fleet, uint32_t epoch)
{
    const uint32_t endpoints[] = {fleet->worker[0].endpoint, fleet->worker[2].endpoint};
    const struct shard_worker *workers = engine_of(fleet)->members.worker;
    const uint64_t incarnations[] = {workers[0].incarnation,
                                     workers[engine_of(fleet)->workers - 1].incarnation};
    struct weft_error error = {0};
    assert_int_equal(
        weft_shard_engine_enter_epoch(engine_of(fleet), epoch, 0, 2, endpoints, incarnations, &error),
        WEFT_OK);
}

/* A push, or another request, of the worker that is `rank` in that epoch. Every element of a push is `value`.
 */
static void send_request(struct fleet *fleet, uint32_t worker, uint32_t rank, uint32_t epoch, uint32_t chunk,
                enum weft_wire_kind kind, uint64_t step, float value, struct fleet_request *request)
{
    struct weft_wire_header header = fleet_header(fleet, worker, chunk, kind, step);
    const uint64_t count = kind == WEFT_WIRE_PULL ? 0 : fleet->chunk[chunk].count;
    float *values = malloc((count + 1) * sizeof *values);
    for (uint64_t i = 0; i < count; i++) values[i] = value;
    header.worker = rank;
    header.epoch = epoch;
    header.weight = 1;
    header.lr = 1;
    header.payload_bytes = count * sizeof(float);
    *request = (struct fleet_request){0};
    fleet_send(fleet, worker, 0, request, &header, values, count * sizeof(float));
    free(values);
}

static void expect_all(struct fleet *fleet, struct fleet_request *request, uint32_t chunk, float value)
{
    assert_true(fleet_await(fleet, request));
    assert_int_equal(request->status, WEFT_OK);
    assert_int_equal(request->out_bytes, fleet->chunk[chunk].count * sizeof(float));
    for (uint64_t i = 0; i < fleet->chunk[chunk].count; i++)
        assert_true(((const float *)(const void *)request->out)[i] == value);
}

static void finish(struct fleet *fleet, struct fleet_request *requests, uint32_t count)
{
    struct weft_shard_engine_stats stats;
    fleet_settle(fleet, WEFT_SECONDS(1));
    weft_shard_engine_stats(engine_of(fleet), &stats);
    assert_int_equal(stats.receive_bytes_used, 0);
    assert_true(weft_list_empty(&engine_of(fleet)->queues.pulls) &&
                weft_list_empty(&engine_of(fleet)->epoch_change.newer_epoch) &&
                weft_list_empty(&engine_of(fleet)->queues.deferred));
    /* every request's buffer is free */
    for (uint32_t i = 0; i < count; i++) assert_false(requests[i].sending);
    for (uint32_t i = 0; i < count; i++) fleet_request_free(fleet, &requests[i]);
    fleet_free(fleet);
}

static void closed_steps_are_replied_again_and_others_restart(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[10];
    for (uint32_t w = 0; w < WORKERS; w++)
        send_request(fleet, w, w, FLEET_EPOCH, MEAN, WEFT_WIRE_PUSH_PULL, 1, (float)(3 * w), &r[w]);
    for (uint32_t w = 0; w < WORKERS; w++) expect_all(fleet, &r[w], MEAN, 3);
    send_request(fleet, 0, 0, FLEET_EPOCH, LONG, WEFT_WIRE_PUSH_PULL, 1, 10, &r[3]);
    send_request(fleet, LOST, LOST, FLEET_EPOCH, LONG, WEFT_WIRE_PUSH_PULL, 1, 1000, &r[4]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    const uint64_t closed = engine_of(fleet)->stats.rounds_closed;
    fleet_kill_worker(fleet, LOST);
    weft_shard_engine_leave_epoch(engine_of(fleet), FLEET_EPOCH + 1);
    follow(fleet, FLEET_EPOCH + 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        /* not handled */
        send_request(fleet, 2 * rank, rank, FLEET_EPOCH + 1, MEAN, WEFT_WIRE_PUSH_PULL, 1, 70, &r[5 + rank]);
        send_request(fleet, 2 * rank, rank, FLEET_EPOCH + 1, LONG, WEFT_WIRE_PUSH_PULL, 1,
                     (float)(4 + rank * 2), &r[7 + rank]);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        expect_all(fleet, &r[5 + rank], MEAN, 3);
        expect_all(fleet, &r[7 + rank], LONG, 5);
        assert_int_equal(r[5 + rank].result.epoch, FLEET_EPOCH + 1);
    }
    assert_int_equal(engine_of(fleet)->stats.rounds_closed, closed + 1);
    assert_false(r[3].done && r[3].answered); /* of the old epoch: no reply */
    r[4].sending = false;                     /* the lost worker's */
    finish(fleet, r, 9);
}

/* One has joined and is back: two means of two, then one of three. Its pull gets the newest step, whichever
 * it knew. */
static void who_rested_counts_again(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[12];
    uint64_t incarnations[WORKERS];
    for (uint32_t w = 0; w < WORKERS; w++) incarnations[w] = engine_of(fleet)->members.worker[w].incarnation;
    for (uint32_t w = 0; w < WORKERS; w++)
        send_request(fleet, w, w, FLEET_EPOCH, MEAN, WEFT_WIRE_PUSH_PULL, 1, (float)(3 * w), &r[w]);
    for (uint32_t w = 0; w < WORKERS; w++) expect_all(fleet, &r[w], MEAN, 3);
    follow(fleet, FLEET_EPOCH + 1);
    for (uint32_t step = 2; step <= 3; step++) {
        for (uint32_t rank = 0; rank < 2; rank++)
            send_request(fleet, 2 * rank, rank, FLEET_EPOCH + 1, MEAN, WEFT_WIRE_PUSH_PULL, step,
                (float)(4 + rank * 2), &r[2 * step - 1 + rank]);
        for (uint32_t rank = 0; rank < 2; rank++) expect_all(fleet, &r[2 * step - 1 + rank], MEAN, 5);
    }
    follow_all(fleet, FLEET_EPOCH + 2, incarnations);
    send_request(fleet, LOST, LOST, FLEET_EPOCH + 2, MEAN, WEFT_WIRE_PULL, 1, 0, &r[7]);
    expect_all(fleet, &r[7], MEAN, 5);
    assert_int_equal(r[7].result.step, 3);
    for (uint32_t w = 0; w < WORKERS; w++)
        send_request(fleet, w, w, FLEET_EPOCH + 2, MEAN, WEFT_WIRE_PUSH_PULL, 4, (float)(6 * w), &r[8 + w]);
    for (uint32_t w = 0; w < WORKERS; w++) expect_all(fleet, &r[8 + w], MEAN, 6);
    finish(fleet, r, 11);
}

static void epochs_before_get_no_answer_and_epochs_behind_wait(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[8];
    /* it is in an epoch that the shard has not reached */
    send_request(fleet, 0, 0, FLEET_EPOCH + 1, MEAN, WEFT_WIRE_PUSH_PULL, 1, 4, &r[0]);
    fleet_settle(fleet, WEFT_MS(1));
    assert_false(r[0].answered);
    assert_false(weft_list_empty(&engine_of(fleet)->epoch_change.newer_epoch));
    fleet_kill_worker(fleet, LOST);
    weft_shard_engine_leave_epoch(engine_of(fleet), FLEET_EPOCH + 1);
    assert_false(weft_list_empty(&engine_of(fleet)->epoch_change.newer_epoch));
    /* it is in an epoch that the shard has left */
    send_request(fleet, 2, 2, FLEET_EPOCH, MEAN, WEFT_WIRE_PUSH_PULL, 1, 1000, &r[1]);
    fleet_settle(fleet, WEFT_MS(1));
    assert_false(r[0].answered || r[1].answered || r[1].sending);
    assert_int_equal(engine_of(fleet)->stats.pushes, 0);
    follow(fleet, FLEET_EPOCH + 1);
    send_request(fleet, 2, 2, FLEET_EPOCH, LONG, WEFT_WIRE_PUSH_PULL, 1, 1000, &r[2]);
    send_request(fleet, 2, 1, FLEET_EPOCH + 1, MEAN, WEFT_WIRE_PUSH_PULL, 1, 8, &r[3]);
    expect_all(fleet, &r[0], MEAN, 6);
    expect_all(fleet, &r[3], MEAN, 6);
    assert_false(r[1].answered || r[2].answered);
    finish(fleet, r, 4);
}

static void pulls_and_answers_are_forgotten(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[8];
    send_request(fleet, 0, 0, FLEET_EPOCH, MEAN, WEFT_WIRE_PULL, 1, 0, &r[0]);
    send_request(fleet, 2, 2, FLEET_EPOCH, MEAN, WEFT_WIRE_PULL, 1, 0, &r[1]);
    fleet_settle(fleet, WEFT_MS(1));
    assert_false(weft_list_empty(&engine_of(fleet)->queues.pulls));
    fleet_kill_worker(fleet, LOST);
    weft_shard_engine_leave_epoch(engine_of(fleet), FLEET_EPOCH + 1);
    assert_true(weft_list_empty(&engine_of(fleet)->queues.pulls));
    follow(fleet, FLEET_EPOCH + 1);
    send_request(fleet, 0, 0, FLEET_EPOCH + 1, MEAN, WEFT_WIRE_PUSH_PULL, 1, 2, &r[2]);
    send_request(fleet, 2, 1, FLEET_EPOCH + 1, MEAN, WEFT_WIRE_PUSH_PULL, 1, 4, &r[3]);
    expect_all(fleet, &r[2], MEAN, 3);
    expect_all(fleet, &r[3], MEAN, 3);
    assert_false(r[0].answered || r[1].answered);
    finish(fleet, r, 4);
}

/* Receives into a round's memory end before ranks are renumbered. */
static void members_come_when_all_is_quiet(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[8];
    for (uint32_t w = 0; w < WORKERS; w++)
        send_request(fleet, w, w, FLEET_EPOCH, LONG, WEFT_WIRE_PUSH_PULL, 1, 7, &r[w]);
    struct shard_chunk *chunk = fleet_shard_chunk(fleet, LONG);
    for (int i = 0; i < 100000 && chunk->open.receiving < 2; i++) fleet_settle(fleet, 100);
    assert_true(chunk->open.receiving >= 2);
    weft_shard_engine_leave_epoch(engine_of(fleet), FLEET_EPOCH + 1);
    follow(fleet, FLEET_EPOCH + 1);
    assert_int_equal(chunk->open.phase, SHARD_PHASE_DRAINING);
    assert_int_equal(engine_of(fleet)->epoch, FLEET_EPOCH);
    send_request(fleet, 0, 0, FLEET_EPOCH + 1, LONG, WEFT_WIRE_PUSH_PULL, 1, 2, &r[3]);
    send_request(fleet, 2, 1, FLEET_EPOCH + 1, LONG, WEFT_WIRE_PUSH_PULL, 1, 4, &r[4]);
    expect_all(fleet, &r[3], LONG, 3);
    expect_all(fleet, &r[4], LONG, 3);
    assert_int_equal(engine_of(fleet)->epoch, FLEET_EPOCH + 1);
    assert_false(r[0].answered || r[1].answered || r[2].answered);
    finish(fleet, r, 5);
}

/* First weights in flight are received, but get no reply in the new epoch: the sender may have another rank,
 * or be lost. */
static void requests_of_the_old_epoch_get_no_reply(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[6];
    send_request(fleet, 0, 0, FLEET_EPOCH, LONG, WEFT_WIRE_INIT, 0, 9, &r[0]);
    struct shard_chunk *chunk = fleet_shard_chunk(fleet, LONG);
    for (int i = 0; i < 100000 && chunk->open.phase != SHARD_PHASE_INSTALLING; i++) fleet_settle(fleet, 100);
    assert_int_equal(chunk->open.phase, SHARD_PHASE_INSTALLING);
    weft_shard_engine_leave_epoch(engine_of(fleet), FLEET_EPOCH + 1);
    follow(fleet, FLEET_EPOCH + 1);
    assert_int_equal(engine_of(fleet)->epoch, FLEET_EPOCH);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(engine_of(fleet)->epoch, FLEET_EPOCH + 1);
    assert_int_equal(chunk->result.replies_pending, 0);
    assert_false(r[0].answered);
    send_request(fleet, 0, 0, FLEET_EPOCH + 1, LONG, WEFT_WIRE_PULL, 0, 0, &r[1]);
    expect_all(fleet, &r[1], LONG, 9);
    for (uint32_t rank = 0; rank < 2; rank++)
        send_request(fleet, 2 * rank, rank, FLEET_EPOCH + 1, LONG, WEFT_WIRE_PUSH_PULL, 1,
                     (float)(2 + 2 * rank), &r[2 + rank]);
    for (uint32_t rank = 0; rank < 2; rank++) expect_all(fleet, &r[2 + rank], LONG, 3);
    assert_int_equal(fleet->worker[0].unexpected, 0);
    finish(fleet, r, 4);
}

/* Two workers, then a third: it pulls the step that the others have closed. A request that it sends before
 * the shard knows of it waits. */
static void a_new_worker_pulls_and_contributes(void **state)
{
    struct fleet *fleet = start_with(2);
    struct fleet_request r[9];
    uint64_t incarnations[WORKERS];
    for (uint32_t w = 0; w < WORKERS; w++)
        incarnations[w] = fleet_header(fleet, w, MEAN, WEFT_WIRE_PULL, 0).incarnation;
    for (uint32_t w = 0; w < 2; w++)
        send_request(fleet, w, w, FLEET_EPOCH, LONG, WEFT_WIRE_PUSH_PULL, 1, (float)(4 + 2 * w), &r[w]);
    for (uint32_t w = 0; w < 2; w++) expect_all(fleet, &r[w], LONG, 5);
    send_request(fleet, 2, 2, FLEET_EPOCH + 1, LONG, WEFT_WIRE_PULL, 0, 0, &r[2]);
    fleet_settle(fleet, WEFT_MS(1));
    assert_false(r[2].answered);
    follow_all(fleet, FLEET_EPOCH + 1, incarnations);
    expect_all(fleet, &r[2], LONG, 5);
    assert_int_equal(r[2].result.step, 1);
    for (uint32_t tensor = MEAN; tensor <= LONG; tensor++) {
        const uint64_t step = tensor == LONG ? 2 : 1;
        for (uint32_t w = 0; w < WORKERS; w++)
            send_request(fleet, w, w, FLEET_EPOCH + 1, tensor, WEFT_WIRE_PUSH_PULL, step, (float)(6 * w),
                         &r[3 * tensor + w]);
        for (uint32_t w = 0; w < WORKERS; w++) expect_all(fleet, &r[3 * tensor + w], tensor, 6);
    }
    assert_int_equal(engine_of(fleet)->workers, WORKERS);
    finish(fleet, r, 9);
}

static void members_that_cannot_be_are_refused(void **state)
{
    struct fleet *fleet = start();
    const uint32_t endpoints[WORKERS + 1] = {0};
    const uint64_t incarnations[WORKERS + 1] = {0};
    struct weft_error error = {0};
    assert_int_equal(weft_shard_engine_enter_epoch(engine_of(fleet), FLEET_EPOCH + 1, 0, WORKERS + 1,
                                                   endpoints, incarnations, &error),
                     WEFT_ERR_MALFORMED);
    assert_int_equal(weft_shard_engine_enter_epoch(engine_of(fleet), FLEET_EPOCH + 1, 0, 0, endpoints,
                                                   incarnations, &error),
                     WEFT_ERR_MALFORMED);
    assert_int_equal(
        weft_shard_engine_enter_epoch(engine_of(fleet), FLEET_EPOCH, 0, 2, endpoints, incarnations, &error),
        WEFT_ERR_MALFORMED);
    finish(fleet, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_steps_are_replied_again_and_others_restart),
        cmocka_unit_test(who_rested_counts_again),
        cmocka_unit_test(epochs_before_get_no_answer_and_epochs_behind_wait),
        cmocka_unit_test(pulls_and_answers_are_forgotten),
        cmocka_unit_test(members_come_when_all_is_quiet),
        cmocka_unit_test(requests_of_the_old_epoch_get_no_reply),
        cmocka_unit_test(a_new_worker_pulls_and_contributes),
        cmocka_unit_test(members_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
