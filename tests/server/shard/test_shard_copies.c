/* test_shard_copies.c - replication of single messages: what a leader holds back, and what a copy refuses. */
#include <math.h>
#include <string.h>

#include "server/shard/shard_clock.h"
#include "shard_check.h"

enum { WORKERS = 2, SHARDS = 2 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "w", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {100}},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {500}},
};

static const struct fleet_tensor_spec clocks[] = {
    {.name = "a", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {100}, .consistency = "asp"},
    {.name = "s", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {500}, .consistency = "ssp:1"}
};

/* Chunk 0 (w): leader shard 0, copy shard 1. Chunk 1 (mean): the other way round. */
static struct fleet *start_with(const struct fleet_tensor_spec both[2])
{
    struct fleet_options options = {.seed = 3,
                                    .shards = SHARDS,
                                    .workers = WORKERS,
                                    .tensors = both,
                                    .tensor_count = 2,
                                    .hash_every = 4,
                                    .copies = true};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    return fleet;
}

static struct fleet *start(void) { return start_with(tensors); }

static struct shard_chunk *chunk_at(struct fleet *fleet, uint32_t shard, uint32_t number)
{
    struct shard_tensor *tensor = shard_table_tensor(fleet->shard[shard].engine, fleet->chunk[number].tensor);
    return shard_table_chunk(tensor, fleet->chunk[number].index);
}

static void first_weights_are_copied(void **state)
{
    struct fleet *fleet = start();
    const struct shard_chunk *leader = chunk_at(fleet, 0, 0), *copy = chunk_at(fleet, 1, 0);
    fleet_settle(fleet, WEFT_MS(10));
    assert_true(copy->initialised);
    assert_memory_equal(leader->values, copy->values, 100 * sizeof(float));
    /* a step costs one payload more, whatever the number of workers */
    struct weft_shard_engine_stats before, after;
    weft_shard_engine_stats(fleet->shard[0].engine, &before);
    assert_true(fleet_train(fleet, 1, 10));
    weft_shard_engine_stats(fleet->shard[0].engine, &after);
    assert_int_equal(after.replicated - before.replicated, 10);
    assert_int_equal(after.replicated_bytes - before.replicated_bytes, 10 * 100 * sizeof(float));
    fleet_free(fleet);
}

/* So are states that rank 0 restores: here the velocity, with values that no step has made. */
static void states_are_copied(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request = {0};
    float velocity[100];
    for (int i = 0; i < 100; i++) velocity[i] = (float)i + 0.5f;
    struct weft_wire_header header = fleet_header(fleet, 0, 0, WEFT_WIRE_STATE_INIT, 0);
    fleet_send(fleet, 0, 0, &request, &header, velocity, sizeof velocity);
    assert_true(fleet_await(fleet, &request));
    assert_int_equal(request.status, WEFT_OK);
    for (uint32_t s = 0; s < SHARDS; s++)
        assert_memory_equal(chunk_at(fleet, s, 0)->states[0], velocity, sizeof velocity);
    fleet_request_free(fleet, &request);
    fleet_free(fleet);
}

/* While the copy cannot be reached, no result leaves; a pull waits, too. */
static void no_result_before_the_copy_holds_it(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request[WORKERS] = {0}, pull = {0}, repeated = {0};
    fleet_settle(fleet, WEFT_MS(10));
    weft_sim_partition(fleet->sim, 0, 1, true);
    for (uint32_t w = 0; w < WORKERS; w++) fleet_push(fleet, w, 0, WEFT_WIRE_PUSH_PULL, 1, &request[w]);
    fleet_settle(fleet, WEFT_MS(20));
    assert_int_equal(chunk_at(fleet, 0, 0)->closed_step, 1);
    struct weft_wire_header header = fleet_header(fleet, 0, 0, WEFT_WIRE_PULL, 1);
    fleet_send(fleet, 0, 0, &pull, &header, NULL, 0);
    fleet_push(fleet, 1, 0, WEFT_WIRE_PUSH_PULL, 1, &repeated); /* noted, not answered */
    fleet_settle(fleet, WEFT_MS(20));
    for (uint32_t w = 0; w < WORKERS; w++) assert_false(request[w].done);
    assert_false(pull.done);
    assert_false(repeated.done);
    weft_sim_partition(fleet->sim, 0, 1, false);
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_true(fleet_await(fleet, &request[w]));
        assert_int_equal(request[w].status, WEFT_OK);
        assert_int_equal(request[w].result.term, 1);
    }
    assert_true(fleet_await(fleet, &pull) && fleet_await(fleet, &repeated));
    assert_int_equal(pull.status, WEFT_OK);
    assert_int_equal(repeated.status, WEFT_OK);
    assert_int_equal(chunk_at(fleet, 1, 0)->closed_step, 1);
    for (uint32_t w = 0; w < WORKERS; w++) fleet_request_free(fleet, &request[w]);
    fleet_request_free(fleet, &pull);
    fleet_request_free(fleet, &repeated);
    fleet_free(fleet);
}

struct message {
    struct weft_completion sent;
    float payload[100];
    bool done;
};

static void message_sent(struct weft_completion *completion, enum weft_status status)
{
    weft_container_of(completion, struct message, sent)->done = true;
}

/* A message of shard 0's engine to shard 1, about chunk 0. */
static void replicate(struct fleet *fleet, struct message *message, uint32_t term, uint64_t step,
                      uint64_t step_before)
{
    struct weft_wire_header header = {.kind = WEFT_WIRE_REPLICATE,
                                      .dtype = WEFT_F32,
                                      .job = FLEET_JOB,
                                      .incarnation = step_before,
                                      .epoch = FLEET_EPOCH,
                                      .step = step,
                                      .payload_bytes = sizeof message->payload,
                                      .lr = 0.5f,
                                      .weight_sum = 1,
                                      .term = term};
    uint8_t bytes[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(&header, bytes);
    struct weft_message out = {.tag = WEFT_TAG(WEFT_CHANNEL_SHARD, 0),
                               .header = bytes,
                               .header_bytes = sizeof bytes,
                               .payload = message->payload,
                               .payload_bytes = sizeof message->payload};
    *message = (struct message){.payload = {1}};
    weft_completion_init(&message->sent, 1, message_sent);
    struct weft_peer *peer = weft_transport_peer(fleet->shard[0].transport, fleet->shard[1].endpoint);
    assert_true(weft_transport_send(peer, &out, &message->sent) >= 0);
    fleet_settle(fleet, WEFT_MS(10));
}

/* A leader that was replaced changes nothing at the shard that leads now. */
static void lower_term_is_refused(void **state)
{
    struct fleet *fleet = start();
    struct message message;
    assert_true(fleet_train(fleet, 1, 2));
    fleet_fail_over(fleet, 0, 0);
    fleet_settle(fleet, WEFT_MS(10));
    const struct shard_chunk *chunk = chunk_at(fleet, 1, 0);
    assert_int_equal(shard_map_term(chunk), 2);
    assert_int_equal(chunk->closed_step, 2);
    replicate(fleet, &message, 1, 3, 2);
    assert_true(message.done);
    assert_int_equal(chunk->closed_step, 2);
    assert_int_equal(chunk->copy.ack.status, WEFT_ERR_STALE);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_free(fleet);
}

/* The copy is dropped at the next comparison. The one that is made again has the leader's bits. */
static void check_other_bits(const struct fleet_tensor_spec both[2])
{
    struct fleet *fleet = start_with(both);
    const struct shard_chunk *leader = chunk_at(fleet, 0, 0), *copy = chunk_at(fleet, 1, 0);
    assert_true(fleet_train(fleet, 1, 7));
    fleet_settle(fleet, WEFT_MS(10));
    copy->values[7] += 1;
    assert_true(fleet_train(fleet, 8, 8));
    fleet_settle(fleet, WEFT_MS(10));
    assert_int_equal(fleet->counts.diverged, 1);
    assert_int_equal(fleet->chunk[0].copy, 0);
    fleet_copy(fleet, 0, 1);
    fleet_settle(fleet, WEFT_MS(20));
    assert_int_equal(fleet->counts.moved, 1);
    assert_memory_equal(leader->values, copy->values, 100 * sizeof(float));
    assert_true(fleet_train(fleet, 9, 16));
    fleet_settle(fleet, WEFT_MS(10));
    assert_int_equal(fleet->counts.diverged, 1);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_free(fleet);
}

static void a_copy_with_other_bits(void **state) { check_other_bits(tensors); }

/* Compared by the number of the last change: each push of a worker is one. */
static void a_copy_with_clocks_and_other_bits(void **state) { check_other_bits(clocks); }

/* At 2,000 bytes a second the 800 bytes of the first chunk and its state delay the next one by 400 ms. */
static void new_copies_keep_their_rate(void **state)
{
    static const struct fleet_tensor_spec spec[] = {
        {.name = "a", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {100}},
        {.name = "b", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {100}},
        {.name = "c", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {100}},
        {.name = "d", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {100}}};
    struct fleet_options options = {.seed = 3,
                                    .shards = 3,
                                    .workers = WORKERS,
                                    .tensors = spec,
                                    .tensor_count = 4,
                                    .move_rate = 2000,
                                    .copies = true};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, 2));
    fleet_settle(fleet, WEFT_MS(10));
    uint32_t number[2], count = 0; /* two chunks of one leader */
    for (uint32_t c = 0; c < fleet->chunk_count; c++)
        if (fleet->chunk[c].shard == fleet->chunk[0].shard) number[count++ % 2] = c;
    assert_true(count == 2);
    for (int i = 0; i < 2; i++) {
        const struct fleet_chunk *chunk = &fleet->chunk[number[i]];
        fleet_copy(fleet, number[i], 3 - chunk->shard - (chunk->copy - 1));
    }
    fleet_settle(fleet, WEFT_MS(100));
    assert_int_equal(fleet->counts.moved, 1);
    assert_true(fleet_train(fleet, 3, 4)); /* the chunk that waits serves */
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(fleet->counts.moved, 2);
    assert_true(fleet_train(fleet, 5, 6));
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_free(fleet);
}

/* A copy without the step before does not apply; one with a newer term waits for the Map; both by the same
 * message. */
static void other_steps_and_terms(void **state)
{
    struct fleet *fleet = start();
    struct message behind, again, newer;
    assert_true(fleet_train(fleet, 1, 2));
    fleet_settle(fleet, WEFT_MS(10));
    const struct shard_chunk *copy = chunk_at(fleet, 1, 0);
    replicate(fleet, &behind, 1, 5, 4);
    assert_int_equal(copy->closed_step, 2);
    assert_int_equal(copy->copy.ack.status, WEFT_ERR_STATE);
    replicate(fleet, &again, 1, 2, 1); /* repeated: acknowledged, not applied */
    assert_int_equal(copy->copy.ack.status, WEFT_OK);
    assert_int_equal(copy->copy.ack.step, 2);
    assert_memory_equal(copy->values, chunk_at(fleet, 0, 0)->values, 100 * sizeof(float));
    replicate(fleet, &newer, 7, 3, 2);
    assert_int_equal(copy->closed_step, 2);
    assert_false(weft_list_empty(&fleet->shard[1].engine->replication.waiting));
    fleet_free(fleet);
}

static void push_nan(struct fleet *fleet, uint32_t rank, struct fleet_request *request)
{
    float gradient[100];
    struct weft_wire_header header = fleet_header(fleet, rank, 0, WEFT_WIRE_PUSH_PULL, 2);
    for (int i = 0; i < 100; i++) gradient[i] = NAN;
    header.flags = WEFT_WIRE_MAY_SKIP | WEFT_WIRE_CHECKED;
    fleet_send(fleet, rank, fleet->chunk[0].shard, request, &header, gradient, sizeof gradient);
}

/* The answer that step 2 is skipped has reached rank 0 when the leader dies. The new leader gives it to rank
 * 1, and continues. */
static void skipped_step(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request[WORKERS] = {0}, again = {0}, next[WORKERS] = {0};
    assert_true(fleet_train(fleet, 1, 1));
    weft_sim_partition(fleet->sim, 0, 1, true);
    for (uint32_t w = 0; w < WORKERS; w++) push_nan(fleet, w, &request[w]);
    fleet_settle(fleet, WEFT_MS(20));
    for (uint32_t w = 0; w < WORKERS; w++) assert_false(request[w].done);
    weft_sim_partition(fleet->sim, 0, 1, false);
    assert_true(fleet_await(fleet, &request[0]));
    assert_int_equal(request[0].status, WEFT_ERR_SKIPPED);
    fleet_kill_shard(fleet, 0);
    fleet_fail_over(fleet, 0, 0);
    fleet_settle(fleet, WEFT_SECONDS(1));
    push_nan(fleet, 1, &again);
    assert_true(fleet_await(fleet, &again));
    assert_int_equal(again.status, WEFT_ERR_SKIPPED);
    for (uint32_t w = 0; w < WORKERS; w++) fleet_push(fleet, w, 0, WEFT_WIRE_PUSH_PULL, 3, &next[w]);
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_true(fleet_await(fleet, &next[w]));
        assert_int_equal(next[w].status, WEFT_OK);
        fleet_request_free(fleet, &next[w]);
    }
    fleet_free(fleet);
}

/* Each worker lacks the result of another chunk of the lost shard, so each repeats a round that it has. */
static bool ends_after_fail_over(uint32_t map_mutants)
{
    static const struct fleet_tensor_spec codes = {.name = "codes",
                                                   .codec = "int8:min_count=0",
                                                   .optimizer = "sgd",
                                                   .dim_count = 1,
                                                   .dims = {1024},
                                                   .chunk_elems = 256};
    struct fleet_options options = {.seed = 5,
                                    .shards = SHARDS,
                                    .workers = WORKERS,
                                    .tensors = &codes,
                                    .tensor_count = 1,
                                    .faults.map_mutants = map_mutants,
                                    .copies = true};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    fleet->worker[0].map.deaf_chunk = 1 + 0;
    fleet->worker[1].map.deaf_chunk = 1 + 2;
    fleet_train_begin(fleet, 1, 3);
    assert_false(fleet_train_end(fleet, weft_sim_now_ns(fleet->sim) + WEFT_MS(10)));
    assert_int_equal(chunk_at(fleet, 0, 0)->open.round, 1); /* all have pushed round 0 */
    assert_int_equal(chunk_at(fleet, 0, 2)->open.round, 1);
    fleet_kill_shard(fleet, 0);
    fleet_fail_over(fleet, 0, 0);
    const bool ends = fleet_train_end(fleet, weft_sim_now_ns(fleet->sim) + WEFT_SECONDS(1));
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    assert_int_equal(chunk_at(fleet, 1, 0)->closed_step, ends ? 3 : 0);
    fleet_free(fleet);
    return ends;
}

static void rounds_are_repeated(void **state)
{
    assert_true(ends_after_fail_over(0));
    assert_false(ends_after_fail_over(FLEET_MUTANT_NO_REPEAT));
}

/* The shard serves the same workers in the next epoch, which discards steps after `committed`. */
static void enter_epoch(struct fleet *fleet, uint32_t shard, uint64_t committed)
{
    uint32_t endpoints[WORKERS];
    uint64_t incarnations[WORKERS];
    struct weft_error error;
    for (uint32_t w = 0; w < WORKERS; w++) {
        endpoints[w] = fleet->worker[w].endpoint;
        incarnations[w] = 2000 + w;
    }
    assert_int_equal(weft_shard_engine_enter_epoch(fleet->shard[shard].engine, FLEET_EPOCH + 1, committed,
                                                   WORKERS, endpoints, incarnations, &error),
                     WEFT_OK);
    fleet_settle(fleet, WEFT_MS(10));
}

enum { NEW = 2, ELEMS = 620 };

/* Three shards, and a chunk with a residual at the shard that shard 0 leads, after 3 steps. */
static struct fleet *start_debt(void)
{
    static const struct fleet_tensor_spec debt = {.name = "debt",
                                                  .codec = "topk:ratio=0.1,min_count=64,global=1",
                                                  .optimizer = "sgd:momentum=0.9",
                                                  .dim_count = 1,
                                                  .dims = {ELEMS}};
    struct fleet_options options = {.seed = 6,
                                    .shards = SHARDS + 1,
                                    .workers = WORKERS,
                                    .tensors = &debt,
                                    .tensor_count = 1,
                                    .elastic = true,
                                    .copies = true};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, 3));
    return fleet;
}

/* Each allocation of the new copy fails once: the slot keeps the set of before, and can be copied again. */
static void a_new_copy_without_memory(void **state)
{
    struct fleet *fleet = start_debt();
    struct fleet_shard *shard = &fleet->shard[NEW];
    for (uint64_t n = 1; fleet->counts.moved == 0; n++) {
        assert_true(n < 100);
        shard->allocation_to_fail = shard->allocations + n;
        fleet_copy(fleet, 0, NEW);
        fleet_settle(fleet, WEFT_MS(20));
    }
    shard->allocation_to_fail = 0;
    assert_true(fleet->counts.moves_failed > 5);
    assert_int_equal(fleet_wrong_copies(fleet, 3), 0);
    fleet_free(fleet);
}

/* An epoch undoes the last step at the leader and at a new copy, whether that has got the chunk before or
 * after it. A new copy that is in the epoch before the leader refuses what the leader sends until then. */
static void new_copy_follows_an_epoch(bool copy_is_first)
{
    struct fleet *fleet = start_debt();
    if (copy_is_first) enter_epoch(fleet, NEW, 2);
    fleet_copy(fleet, 0, NEW);
    fleet_settle(fleet, WEFT_MS(20));
    assert_int_equal(fleet->counts.moved, !copy_is_first);
    for (uint32_t s = 0; s < SHARDS + (uint32_t)!copy_is_first; s++) enter_epoch(fleet, s, 2);
    fleet_settle(fleet, WEFT_MS(20));
    assert_int_equal(fleet->counts.moved, 1);
    const struct shard_chunk *leader = chunk_at(fleet, 0, 0), *copy = chunk_at(fleet, NEW, 0);
    const size_t bytes = ELEMS * sizeof(float);
    assert_int_equal(copy->closed_step, 2);
    assert_int_equal(leader->closed_step, 2);
    assert_memory_equal(copy->values, reference_values(fleet->reference, 0, 2), bytes);
    assert_memory_equal(copy->states[0], leader->states[0], bytes);
    assert_memory_equal(weft_combiner_residual(copy->coding.combiner),
                        weft_combiner_residual(leader->coding.combiner), bytes);
    fleet_free(fleet);
}

static void a_new_copy_in_the_epoch_of_the_leader(void **state)
{
    new_copy_follows_an_epoch(false);
}

static void a_new_copy_in_a_later_epoch(void **state)
{
    new_copy_follows_an_epoch(true);
}

static void hand_over(struct fleet *fleet, uint32_t leader)
{
    fleet_hand_over(fleet, 0);
    fleet_settle(fleet, WEFT_MS(10));
    assert_int_equal(fleet->chunk[0].shard, leader);
}

/* A contribution to a chunk with a clock is being received while two changes of leader pass. Its worker has
 * sent it to the other leader, so it is not applied again. The next one waits until it has arrived. */
static void a_late_contribution_counts_once(void **state)
{
    enum { LONG = 4000 };
    static const struct fleet_tensor_spec spec = {.name = "clock",
                                                  .codec = "dense",
                                                  .optimizer = "sgd",
                                                  .dim_count = 1,
                                                  .dims = {LONG},
                                                  .consistency = "asp"};
    const struct fleet_options options = {
        .seed = 3, .shards = SHARDS, .workers = WORKERS, .tensors = &spec, .tensor_count = 1, .copies = true};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request late = {0}, again = {0}, next = {0};
    float first[LONG], second[LONG];
    fleet_install(fleet);
    fleet_settle(fleet, WEFT_MS(10));
    const struct shard_chunk *chunk = chunk_at(fleet, 0, 0);
    fleet_push(fleet, 0, 0, WEFT_WIRE_PUSH_PULL, 1, &late);
    while (shard_contribution_state(chunk, 0) != SHARD_CONTRIBUTION_RECEIVING) {
        assert_false(late.done);
        fleet_settle(fleet, 100);
    }
    weft_sim_partition(fleet->sim, 0, SHARDS, true); /* the first shard and the first worker */
    hand_over(fleet, 1);
    fleet_push(fleet, 0, 0, WEFT_WIRE_PUSH_PULL, 1, &again);
    fleet_settle(fleet, WEFT_MS(10));
    hand_over(fleet, 0);
    assert_int_equal(chunk->clock->counts->clock[0], 1);
    assert_int_equal(shard_contribution_state(chunk, 0), SHARD_CONTRIBUTION_RECEIVING);
    fleet_push(fleet, 0, 0, WEFT_WIRE_PUSH_PULL, 2, &next);
    weft_sim_partition(fleet->sim, 0, SHARDS, false);
    assert_true(fleet_await(fleet, &next));
    assert_int_equal(next.status, WEFT_OK);
    fleet_settle(fleet, WEFT_MS(10));
    fleet_gradient(fleet, 0, 0, 1, first);
    fleet_gradient(fleet, 0, 0, 2, second);
    for (uint32_t s = 0; s < SHARDS; s++) {
        const struct shard_chunk *at = chunk_at(fleet, s, 0);
        assert_int_equal(at->clock->counts->clock[0], 2);
        for (int i = 0; i < LONG; i++) assert_true(at->values[i] == -(first[i] + second[i]) / WORKERS);
    }
    fleet_request_free(fleet, &late);
    fleet_request_free(fleet, &again);
    fleet_request_free(fleet, &next);
    fleet_free(fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(first_weights_are_copied),
                                       cmocka_unit_test(states_are_copied),
                                       cmocka_unit_test(no_result_before_the_copy_holds_it),
                                       cmocka_unit_test(lower_term_is_refused),
                                       cmocka_unit_test(other_steps_and_terms),
                                       cmocka_unit_test(skipped_step),
                                       cmocka_unit_test(rounds_are_repeated),
                                       cmocka_unit_test(a_copy_with_other_bits),
                                       cmocka_unit_test(a_copy_with_clocks_and_other_bits),
                                       cmocka_unit_test(new_copies_keep_their_rate),
                                       cmocka_unit_test(a_late_contribution_counts_once),
                                       cmocka_unit_test(a_new_copy_without_memory),
                                       cmocka_unit_test(a_new_copy_in_the_epoch_of_the_leader),
                                       cmocka_unit_test(a_new_copy_in_a_later_epoch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
