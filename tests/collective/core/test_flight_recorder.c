/* test_flight_recorder.c - the flight recorder keeps the last operations whole and shows the rank that
 * each waits for; another thread reads it at any time. */
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/collective/world.h"
#include "tests/lib/check.h"
#include "tests/lib/fail_env.h"

static json_t *dump(struct weft_recorder *recorder)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    fputc('{', out);
    weft_recorder_dump(recorder, out);
    fputc('}', out);
    fclose(out);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s at %d: %s", error.text, error.position, text);
    free(text);
    return root;
}

static uint64_t number(json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    if (!json_is_integer(value)) fail_msg("no number %s", name);
    return (uint64_t)json_integer_value(value);
}

static const char *text(json_t *object, const char *name)
{
    const char *value = json_string_value(json_object_get(object, name));
    if (!value) fail_msg("no text %s", name);
    return value;
}

static void keeps_the_last(void **state)
{
    struct weft_recorder *recorder;
    assert_int_equal(weft_recorder_create(weft_env_system(), 0, &recorder), WEFT_ERR_INVALID);
    assert_int_equal(weft_recorder_create(weft_env_system(), 5, &recorder), WEFT_OK);
    struct weft_record record = {.kind = WEFT_COLL_BARRIER, .phase = "posted", .peer = WEFT_RECORD_NO_PEER},
                       got;
    for (uint64_t i = 0; i < 12; i++) {
        record.sequence = 100 + i;
        assert_int_equal(weft_recorder_add(recorder, &record), i);
    }
    record.status = WEFT_ERR_DEADLINE;
    record.sequence = 106;
    weft_recorder_update(recorder, 6, &record); /* overwritten by number 11: does nothing */
    record.sequence = 107;
    weft_recorder_update(recorder, 7, &record); /* the oldest record */
    assert_false(weft_recorder_read(recorder, 6, &got));
    assert_false(weft_recorder_read(recorder, 12, &got));
    for (uint64_t i = 7; i < 12; i++) {
        assert_true(weft_recorder_read(recorder, i, &got));
        assert_int_equal(got.sequence, 100 + i);
        assert_int_equal(got.status, i == 7 ? WEFT_ERR_DEADLINE : WEFT_OK);
    }
    json_t *root = dump(recorder);
    assert_int_equal(number(root, "recorded"), 12);
    assert_int_equal(json_array_size(json_object_get(root, "operations")), 5);
    assert_int_equal(number(json_array_get(json_object_get(root, "operations"), 0), "sequence"), 107);
    json_decref(root);
    weft_recorder_free(recorder);
    assert_int_equal(weft_recorder_add(NULL, &record), 0);
    weft_recorder_update(NULL, 0, &record);
}

/* The lengths of unequal pieces live as long as their record and the ring allow, and belong to one record. */
static void keeps_lengths(void **state)
{
    struct weft_recorder *recorder;
    struct weft_record record = {.kind = WEFT_COLL_ALL_TO_ALL, .phase = "done", .peer = WEFT_RECORD_NO_PEER};
    uint64_t in[3] = {5, 0, 7}, out[3] = {1, 2, 3};
    assert_int_equal(weft_recorder_create(weft_env_system(), 4, &recorder), WEFT_OK);
    /* not enabled: not kept */
    weft_recorder_lengths(recorder, weft_recorder_add(recorder, &record), in, 3, NULL, 0);
    assert_int_equal(weft_recorder_keep_lengths(recorder, UINT64_MAX), WEFT_ERR_INVALID);
    assert_int_equal(weft_recorder_keep_lengths(recorder, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_recorder_keep_lengths(recorder, 8), WEFT_OK);
    /* overwritten by those of the third and fourth */
    weft_recorder_lengths(recorder, weft_recorder_add(recorder, &record), in, 3, NULL, 0);
    weft_recorder_lengths(recorder, weft_recorder_add(recorder, &record), in, 3, out, 3);
    weft_recorder_lengths(recorder, weft_recorder_add(recorder, &record), in + 2, 1, NULL, 0);
    weft_recorder_lengths(recorder, 3, in, 3, (uint64_t[6]){0}, 6); /* longer than the ring */
    json_t *root = dump(recorder), *operations = json_object_get(root, "operations");
    assert_int_equal(json_array_size(operations), 4);
    assert_null(json_object_get(json_array_get(operations, 0), "lengths"));
    assert_null(json_object_get(json_array_get(operations, 1), "lengths_out"));
    json_t *third = json_array_get(operations, 2), *lengths = json_object_get(third, "lengths"),
           *lengths_out = json_object_get(third, "lengths_out");
    assert_int_equal(json_array_size(lengths), 3);
    assert_int_equal(json_array_size(lengths_out), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(json_integer_value(json_array_get(lengths, i)), in[i]);
        assert_int_equal(json_integer_value(json_array_get(lengths_out, i)), out[i]);
    }
    lengths = json_object_get(json_array_get(operations, 3), "lengths");
    assert_int_equal(json_array_size(lengths), 1);
    assert_int_equal(json_integer_value(json_array_get(lengths, 0)), 7);
    json_decref(root);
    weft_recorder_add(recorder, &record);
    for (int i = 0; i < 2; i++)
        weft_recorder_lengths(recorder, weft_recorder_add(recorder, &record), out, 3, NULL, 0);
    /* the slot of the third record now belongs to a record without lengths or with its own */
    root = dump(recorder);
    operations = json_object_get(root, "operations");
    assert_null(json_object_get(json_array_get(operations, 1), "lengths"));
    assert_int_equal(json_array_size(json_object_get(json_array_get(operations, 2), "lengths")), 3);
    assert_int_equal(json_array_size(json_object_get(json_array_get(operations, 3), "lengths")), 3);
    json_decref(root);
    weft_recorder_free(recorder);
    weft_recorder_lengths(NULL, 0, in, 3, NULL, 0);
}

/* One writer and one reader: the reader gets whole records only. */
static struct weft_recorder *shared;
static atomic_bool stop;

static void *write_records(void *context)
{
    for (uint64_t i = 0; !atomic_load(&stop) || i < 20000; i++) {
        struct weft_record record = {
            .sequence = i, .count = i, .posted_ns = i, .ended_ns = i, .phase = "posted", .steps = i};
        uint64_t at = weft_recorder_add(shared, &record);
        record.sequence = record.count = record.posted_ns = record.ended_ns = record.steps = i + 1;
        weft_recorder_update(shared, at, &record);
    }
    return NULL;
}

static void read_while_written(void **state)
{
    pthread_t writer;
    uint64_t whole = 0;
    atomic_store(&stop, false);
    assert_int_equal(weft_recorder_create(weft_env_system(), 4, &shared), WEFT_OK);
    assert_int_equal(pthread_create(&writer, NULL, write_records, NULL), 0);
    for (uint64_t tries = 0; tries < 20000 || (whole == 0 && tries < 100000000); tries++) {
        struct weft_record record;
        uint64_t count = weft_recorder_count(shared);
        if (count == 0 || !weft_recorder_read(shared, count - 1, &record)) continue;
        whole++;
        assert_true(record.sequence == record.count && record.count == record.posted_ns &&
                    record.posted_ns == record.ended_ns && record.ended_ns == record.steps);
    }
    atomic_store(&stop, true);
    pthread_join(writer, NULL);
    assert_true(whole > 0);
    weft_recorder_free(shared);
}

static void *write_lengths(void *context)
{
    for (uint64_t i = 0; !atomic_load(&stop) || i < 20000; i++) {
        struct weft_record record = {.sequence = i, .phase = "posted"};
        uint64_t lengths[5] = {i, i, i, i, i};
        weft_recorder_lengths(shared, weft_recorder_add(shared, &record), lengths, 1 + i % 3, lengths, i % 2);
    }
    return NULL;
}

/* The reader gets the lengths of the same record only. */
static void read_lengths_while_written(void **state)
{
    pthread_t writer;
    atomic_store(&stop, false);
    assert_int_equal(weft_recorder_create(weft_env_system(), 4, &shared), WEFT_OK);
    assert_int_equal(weft_recorder_keep_lengths(shared, 7), WEFT_OK);
    assert_int_equal(pthread_create(&writer, NULL, write_lengths, NULL), 0);
    for (int tries = 0; tries < 2000; tries++) {
        json_t *root = dump(shared), *operation, *value;
        size_t i, k;
        json_array_foreach(json_object_get(root, "operations"), i, operation) {
            json_array_foreach (json_object_get(operation, "lengths"), k, value)
                assert_int_equal(json_integer_value(value), number(operation, "sequence"));
            json_array_foreach (json_object_get(operation, "lengths_out"), k, value)
                assert_int_equal(json_integer_value(value), number(operation, "sequence"));
        }
        json_decref(root);
    }
    atomic_store(&stop, true);
    pthread_join(writer, NULL);
    weft_recorder_free(shared);
}

/* ---- records of groups ---- */
#define RANKS 4

static struct weft_record last_of(struct weft_recorder *recorder)
{
    struct weft_record record;
    assert_true(weft_recorder_read(recorder, weft_recorder_count(recorder) - 1, &record));
    return record;
}

/* Rank 2 calls the first all_reduce and not the second. */
static void awaited_ranks(void **state)
{
    static float buffers[RANKS][1000];
    struct weft_recorder *recorders[RANKS];
    struct weft_group *groups[RANKS];
    struct outcome outcomes[2][RANKS] = {0};
    struct weft_env silent = *weft_env_system();
    silent.log_level = WEFT_LOG_ERROR;
    struct world *world = world_create(&silent, RANKS, 3, NULL);
    uint32_t ids[RANKS] = {100, 101, 102, 103}, pending = RANKS;
    bool done = false, never = false;
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(weft_recorder_create(&silent, WEFT_RECORD_OPERATIONS, &recorders[r]), WEFT_OK);
        struct weft_group_options options;
        weft_group_options_init(&options);
        options.transport = world->transports[r], options.loop = world->loops[r],
        options.recorder = recorders[r];
        options.rank = r, options.ranks = RANKS, options.endpoint_ids = ids, options.group_id = 9,
        options.epoch = 2;
        assert_int_equal(weft_group_create(world->envs[r], &options, &groups[r], NULL), WEFT_OK);
    }
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                          .in = buffers[r],
                                          .out = buffers[r],
                                          .count = 1000,
                                          .dtype = WEFT_F32,
                                          .op = WEFT_AVG,
                                          .plan = WEFT_PLAN_RING,
                                          .deadline_ns = WEFT_SECONDS(5)};
            outcomes[turn][r].pending = &pending, outcomes[turn][r].all_done = &done;
            if (turn == 0 || r != 2)
                assert_int_equal(
                    weft_coll_post(groups[r], &args, outcome_done, &outcomes[turn][r], NULL, NULL),
                    WEFT_IN_PROGRESS);
        }
        if (turn == 0) assert_int_equal(world_run(world, &done, WEFT_SECONDS(1)), WEFT_OK);
    }
    world_run(world, &never, WEFT_SECONDS(2)); /* longer than the poll interval of the group */
    for (uint32_t r = 0; r < RANKS; r++) {
        struct weft_record first, last = last_of(recorders[r]);
        assert_true(weft_recorder_read(recorders[r], 0, &first));
        assert_int_equal(first.status, WEFT_OK);
        assert_true(first.posted_ns <= first.started_ns && first.started_ns < first.ended_ns);
        assert_int_equal(last.sequence, r == 2 ? 0 : 1);
        assert_int_equal(weft_recorder_count(recorders[r]), r == 2 ? 1 : 2);
        /* equal on the members of one group */
        assert_int_equal(last.members_hash, last_of(recorders[0]).members_hash);
        if (r == 2) continue;
        assert_int_equal(last.status, WEFT_IN_PROGRESS);
        /* in a ring each rank waits for the previous one */
        assert_int_equal(last.peer, (r + RANKS - 1) % RANKS);
        assert_true(last.kind == WEFT_COLL_ALL_REDUCE && last.op == WEFT_AVG && last.dtype == WEFT_F32 &&
                    last.count == 1000 && last.group == 9 && last.epoch == 2 && last.rank == r &&
                    last.ranks == RANKS && last.plan == WEFT_PLAN_RING && last.ended_ns == 0);
    }
    world_run(world, &never, WEFT_SECONDS(5)); /* the deadline passes */
    for (uint32_t r = 0; r < RANKS; r++) {
        struct weft_record last = last_of(recorders[r]);
        if (r == 2) continue;
        assert_int_equal(last.status, WEFT_ERR_DEADLINE);
        assert_int_equal(last.peer, (r + RANKS - 1) % RANKS);
        assert_true(last.ended_ns >= last.posted_ns + WEFT_SECONDS(5));
    }
    json_t *root = dump(recorders[3]), *operation = json_array_get(json_object_get(root, "operations"), 1);
    assert_string_equal(text(operation, "kind"), "all_reduce");
    assert_string_equal(text(operation, "status"), "WEFT_ERR_DEADLINE");
    assert_string_equal(text(operation, "plan"), "ring");
    assert_string_equal(text(operation, "op"), weft_op_name(WEFT_AVG));
    assert_string_equal(text(operation, "dtype"), "f32");
    assert_int_equal(number(operation, "peer"), 2);
    json_decref(root);
    for (uint32_t r = 0; r < RANKS; r++) weft_group_free(groups[r]);
    world_free(world);
    for (uint32_t r = 0; r < RANKS; r++) weft_recorder_free(recorders[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_the_last),     cmocka_unit_test(keeps_lengths),
        cmocka_unit_test(read_while_written), cmocka_unit_test(read_lengths_while_written),
        cmocka_unit_test(awaited_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
