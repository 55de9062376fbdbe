/* test_snapshot.c - the coordinator's side of snapshots: which step is named, when the manifest is committed,
 * and what ends a snapshot. */
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "tests/coordinator/coordinator_harness.h"
#include "tests/lib/check.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name
enum { WORKERS = 2, SHARDS = 3, MEMBERS = WORKERS + SHARDS };

static struct {
    uint64_t begun, committed;
    uint32_t begins, commits, pieces;
    struct weft_snapshot_bytes part; /* the last one */
    uint32_t parts, fetches;
} seen;

static void on_begin(void *context, uint64_t step) { seen.begun = step, seen.begins++; }
static void on_pieces(void *context, const Weft__Control__SnapPieces *pieces) { seen.pieces++; }
static void on_commit(void *context, uint64_t step) { seen.committed = step, seen.commits++; }

static void on_part(void *context, const struct weft_snapshot_bytes *bytes)
{
    seen.part = *bytes, seen.parts++;
}
static void on_fetch(void *context, uint32_t member, uint32_t rank, uint64_t offset)
{
    seen.fetches++;
}

/* A running job. ids: connections of the workers, then of the shards. */
static struct harness *running_in(struct harness *h, uint64_t steps, uint64_t ns, uint64_t *ids)
{
    struct weft_coordinator_options *options = &h->coordinator->options;
    memset(&seen, 0, sizeof seen);
    options->snapshots.steps = steps;
    options->snapshots.period_ns = ns;
    options->snapshot_calls.begin = on_begin;
    options->snapshot_calls.pieces = on_pieces;
    options->snapshot_calls.commit = on_commit;
    options->snapshot_calls.part = on_part;
    options->snapshot_calls.fetch = on_fetch;
    assert_int_equal(coordinator_snapshot_init(h->coordinator), WEFT_OK);
    harness_run(h, ids, 1);
    for (uint32_t i = 0; i < SHARDS; i++)
        h->coordinator->membership.shards[i]->abilities.has_snapshots = true;
    h->coordinator->snapshot.due_ns = ns > 0 ? h->now_ns + ns : 0;
    return h;
}

static struct harness *running(uint64_t steps, uint64_t ns, uint64_t *ids)
{
    return running_in(harness_create(WORKERS, SHARDS, NULL), steps, ns, ids);
}

static void tick(struct harness *h, uint64_t ns)
{
    h->now_ns += ns;
    /* no member is silent */
    for (size_t i = 0; i < h->coordinator->membership.connection_count; i++)
        h->coordinator->membership.connections[i]->last_received_ns = h->now_ns;
    weft_coordinator_tick(h->coordinator);
}

/* Reads Snap at every shard; returns its id. */
static uint32_t expect_snap(struct harness *h, const uint64_t *ids, uint64_t step, bool drops)
{
    uint32_t id = 0;
    for (uint32_t i = WORKERS; i < MEMBERS; i++) {
        const Weft__Control__Snap *snap = harness_expect(h, ids[i], BODY(SNAP))->snap;
        assert_int_equal(snap->step, step);
        assert_int_equal(snap->drop, drops);
        id = snap->id;
    }
    return id;
}

static void answer(struct harness *h, uint64_t connection, uint32_t id, uint64_t newest, bool is_late)
{
    Weft__Control__SnapArmed armed = WEFT__CONTROL__SNAP_ARMED__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    armed.id = id, armed.newest = newest, armed.late = is_late;
    message.body_case = BODY(SNAP_ARMED), message.snap_armed = &armed;
    harness_deliver(h, connection, &message);
}

static void answer_all(struct harness *h, const uint64_t *ids, uint32_t id, uint64_t newest, bool is_late)
{
    for (uint32_t i = WORKERS; i < MEMBERS; i++) answer(h, ids[i], id, newest, is_late && i == WORKERS + 1);
}

static void send_passed(struct harness *h, uint64_t connection, uint32_t id)
{
    Weft__Control__SnapPassed passed = WEFT__CONTROL__SNAP_PASSED__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    passed.id = id;
    message.body_case = BODY(SNAP_PASSED), message.snap_passed = &passed;
    harness_deliver(h, connection, &message);
}

static void send_pieces(struct harness *h, uint64_t connection, uint32_t id, bool is_last, const char *error)
{
    Weft__Control__SnapPieces pieces = WEFT__CONTROL__SNAP_PIECES__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    pieces.id = id, pieces.last = is_last, pieces.error = (char *)error;
    message.body_case = BODY(SNAP_PIECES), message.snap_pieces = &pieces;
    harness_deliver(h, connection, &message);
}

static void expect_passed(struct harness *h, const uint64_t *ids)
{
    for (uint32_t i = WORKERS; i < MEMBERS; i++) (void)harness_expect(h, ids[i], BODY(SNAP_PASSED));
}

static void commits_once(void **state)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running(10, 0, ids);
    tick(h, WEFT_SECONDS(1));
    const uint32_t id = expect_snap(h, ids, 10, false);
    answer(h, ids[WORKERS], id, 3, false);
    answer(h, ids[WORKERS], id, 3, false); /* a repeated answer does not count */
    answer(h, ids[WORKERS + 1], id, 4, false);
    assert_int_equal(seen.begins, 0);
    answer(h, ids[WORKERS + 2], id, 0, false);
    assert_int_equal(seen.begins, 1);
    assert_int_equal(seen.begun, 10);
    send_passed(h, ids[WORKERS + 2], id + 1); /* of another snapshot */
    harness_expect_nothing(h, ids[WORKERS]);
    send_passed(h, ids[WORKERS + 2], id);
    send_passed(h, ids[WORKERS], id);
    expect_passed(h, ids);
    send_pieces(h, ids[WORKERS], id, false, "");
    for (uint32_t i = WORKERS; i < MEMBERS; i++) {
        assert_int_equal(seen.commits, 0);
        send_pieces(h, ids[i], id, true, "");
        send_pieces(h, ids[WORKERS], id, true, "");
    }
    assert_int_equal(seen.commits, 1);
    assert_int_equal(seen.committed, 10);
    tick(h, WEFT_SECONDS(5)); /* the next one begins after the commit */
    harness_expect_nothing(h, ids[WORKERS]);
    weft_coordinator_snapshot_committed(h->coordinator, true);
    (void)expect_snap(h, ids, 20, false);
    harness_free(h);
}

static void names_a_later_step(void **state)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running(10, 0, ids);
    tick(h, WEFT_SECONDS(1));
    uint32_t id = expect_snap(h, ids, 10, false);
    send_passed(h, ids[WORKERS], id); /* before all have answered */
    answer_all(h, ids, id, 12, true);
    (void)expect_snap(h, ids, 10, true);
    id = expect_snap(h, ids, 20, false);
    answer_all(h, ids, id, 29, true);
    (void)expect_snap(h, ids, 20, true);
    id = expect_snap(h, ids, 40, false); /* at least two steps above 29 */
    send_passed(h, ids[WORKERS], id);
    answer_all(h, ids, id, 39, false);
    assert_int_equal(seen.begun, 40);
    expect_passed(h, ids); /* a shard saw the end of the step before another answered */
    harness_free(h);
}

static void asks_for_the_newest_step(void **state)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running(0, WEFT_SECONDS(60), ids);
    tick(h, WEFT_SECONDS(59));
    harness_expect_nothing(h, ids[WORKERS]);
    tick(h, WEFT_SECONDS(2));
    uint32_t id = expect_snap(h, ids, 0, false);
    answer_all(h, ids, id, 0, false); /* no step has begun */
    (void)expect_snap(h, ids, 0, true);
    tick(h, WEFT_SECONDS(2));
    id = expect_snap(h, ids, 0, false);
    answer_all(h, ids, id, 41, true);
    (void)expect_snap(h, ids, 0, true);
    id = expect_snap(h, ids, 42, false);
    answer_all(h, ids, id, 42, false);
    assert_int_equal(seen.begun, 42);
    harness_free(h);
}

/* An error of a shard, or its silence, ends the snapshot and not the job. */
static void fails_alone(void **state)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running(0, WEFT_SECONDS(60), ids);
    tick(h, WEFT_SECONDS(61));
    uint32_t id = expect_snap(h, ids, 0, false);
    answer_all(h, ids, id, 7, true);
    (void)expect_snap(h, ids, 0, true);
    id = expect_snap(h, ids, 8, false);
    answer_all(h, ids, id, 8, false);
    send_passed(h, ids[WORKERS], id);
    expect_passed(h, ids);
    send_pieces(h, ids[WORKERS], id, true, "");
    send_pieces(h, ids[WORKERS + 1], id, false, "disk full");
    (void)expect_snap(h, ids, 8, true);
    char *status = weft_coordinator_status_json(h->coordinator);
    assert_non_null(strstr(status, "\"snapshots\":{\"complete_step\":0,\"complete_age_ms\":0,\"failures\":1,"
                                   "\"failed_step\":8,\"failed_text\":\"shard 1 "));
    assert_non_null(strstr(status, ": disk full\"}"));
    weft_free_bytes(h->coordinator->env, status);
    send_pieces(h, ids[WORKERS + 2], id, true, "");
    assert_int_equal(seen.commits, 0);
    tick(h, WEFT_SECONDS(59));
    harness_expect_nothing(h, ids[WORKERS]);
    tick(h, WEFT_SECONDS(2));
    id = expect_snap(h, ids, 0, false);
    answer_all(h, ids, id, 9, true);
    (void)expect_snap(h, ids, 0, true);
    id = expect_snap(h, ids, 10, false);
    answer_all(h, ids, id, 9, false);
    send_passed(h, ids[WORKERS], id);
    expect_passed(h, ids);
    tick(h, WEFT_SECONDS(601)); /* no shard reports */
    (void)expect_snap(h, ids, 10, true);
    assert_int_equal(seen.commits, 0);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

/* A shard without a folder, or of an earlier release: no message that it does not know is sent. */
static void needs_every_shard(void **state)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running(10, 0, ids);
    h->coordinator->membership.shards[2]->abilities.has_snapshots = false;
    tick(h, WEFT_SECONDS(1));
    tick(h, WEFT_SECONDS(100));
    for (uint32_t i = WORKERS; i < MEMBERS; i++) harness_expect_nothing(h, ids[i]);
    send_pieces(h, ids[WORKERS], 0, true, ""); /* without a snapshot it has no effect */
    assert_int_equal(seen.pieces, 0);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

/* ---- workers' parts ---- */

enum { PART = WEFT_LIMIT_SNAP_DATA_BYTES + 100 }; /* two messages */

/* All workers declare a tensor at the shards; the messages about it are read. */
static void declare(struct harness *h, const uint64_t *ids, const char *consistency)
{
    struct harness_declare declare;
    harness_declare_init(&declare, 0, "w");
    declare.declare.consistency = (char *)consistency;
    for (uint32_t i = 0; i < WORKERS; i++) harness_declare(h, ids[i], &declare);
    for (uint32_t i = 0; i < MEMBERS; i++)
        while (harness_next(h, ids[i])) continue;
}

/* A snapshot of step 10 that the shards of a running job have armed; workers send parts. Returns its id. */
static struct harness *arm_workers(struct harness *h, const uint64_t *ids, uint32_t *id_out)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        h->coordinator->membership.workers[i]->abilities.has_snapshots = true;
    tick(h, WEFT_SECONDS(1));
    *id_out = expect_snap(h, ids, 10, false);
    for (uint32_t i = 0; i < WORKERS; i++)
        assert_int_equal(harness_expect(h, ids[i], BODY(SNAP))->snap->step, 10);
    answer_all(h, ids, *id_out, 3, false);
    assert_int_equal(seen.begins, 0); /* the workers have not answered */
    return h;
}

static struct harness *arming_workers(uint64_t *ids, uint32_t *id_out)
{
    struct harness *h = running(10, 0, ids);
    declare(h, ids, "bsp");
    return arm_workers(h, ids, id_out);
}

static void send_part(struct harness *h, uint64_t connection, uint32_t id, uint32_t rank, uint64_t bytes,
                      const char *error)
{
    Weft__Control__SnapPart part = WEFT__CONTROL__SNAP_PART__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    part.id = id, part.rank = rank, part.bytes = bytes, part.error = (char *)error;
    message.body_case = BODY(SNAP_PART), message.snap_part = &part;
    harness_deliver(h, connection, &message);
}

static void send_data(struct harness *h, uint64_t connection, uint32_t id, uint64_t offset, size_t bytes)
{
    static uint8_t data[PART];
    Weft__Control__SnapData body = WEFT__CONTROL__SNAP_DATA__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    body.id = id, body.offset = offset, body.data.data = data, body.data.len = bytes;
    message.body_case = BODY(SNAP_DATA), message.snap_data = &body;
    harness_deliver(h, connection, &message);
}

static void expect_wanted(struct harness *h, uint64_t connection, uint64_t offset)
{
    assert_int_equal(harness_expect(h, connection, BODY(SNAP_WANTED))->snap_wanted->offset, offset);
}

static void stored(struct harness *h, const char *error)
{
    weft_coordinator_snapshot_stored(h->coordinator, seen.part.id, seen.part.member, seen.part.bytes, error);
}

/* Bytes are requested message by message; the manifest waits for shards and workers. */
static void parts_are_stored(void **state)
{
    uint64_t ids[MEMBERS];
    uint32_t id;
    struct harness *h = arming_workers(ids, &id);
    answer(h, ids[0], id, 0, false);
    send_part(h, ids[0], id, 0, PART, ""); /* it has ended the step before another has armed it */
    harness_expect_nothing(h, ids[0]);
    answer(h, ids[1], id, 0, false);
    assert_int_equal(seen.begins, 1);
    expect_wanted(h, ids[0], 0);
    send_part(h, ids[1], id, 1, 50, "");
    expect_wanted(h, ids[1], 0);
    send_data(h, ids[0], id, 0, WEFT_LIMIT_SNAP_DATA_BYTES);
    assert_true(seen.part.rank == 0 && seen.part.total == PART && seen.part.step == 10);
    harness_expect_nothing(h, ids[0]); /* not stored yet */
    stored(h, "");
    expect_wanted(h, ids[0], WEFT_LIMIT_SNAP_DATA_BYTES);
    send_passed(h, ids[WORKERS], id);
    expect_passed(h, ids);
    for (uint32_t i = WORKERS; i < MEMBERS; i++) send_pieces(h, ids[i], id, true, "");
    send_data(h, ids[0], id, WEFT_LIMIT_SNAP_DATA_BYTES, 100);
    stored(h, "");
    expect_wanted(h, ids[0], PART); /* forget it */
    assert_int_equal(seen.commits, 0);
    send_data(h, ids[1], id, 0, 50);
    stored(h, "");
    expect_wanted(h, ids[1], 50);
    assert_int_equal(seen.commits, 1);
    assert_int_equal(seen.parts, 3);
    stored(h, ""); /* a late answer has no effect */
    assert_int_equal(seen.commits, 1);
    harness_free(h);
}

/* A worker that has ended the step is late: a later step is named to all. */
static void a_late_worker(void **state)
{
    uint64_t ids[MEMBERS];
    uint32_t id;
    struct harness *h = arming_workers(ids, &id);
    answer(h, ids[0], id, 0, false);
    answer(h, ids[1], id, 12, true);
    (void)expect_snap(h, ids, 10, true);
    (void)expect_snap(h, ids, 20, false);
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_true(harness_expect(h, ids[i], BODY(SNAP))->snap->drop);
        assert_int_equal(harness_expect(h, ids[i], BODY(SNAP))->snap->step, 20);
    }
    send_part(h, ids[0], id, 0, 50, ""); /* of the dropped one */
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

static void workers_report_steps_of(const char *consistency)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running(0, WEFT_SECONDS(60), ids);
    if (consistency) declare(h, ids, consistency);
    for (uint32_t i = 0; i < WORKERS; i++)
        h->coordinator->membership.workers[i]->abilities.has_snapshots = true;
    tick(h, WEFT_SECONDS(61));
    uint32_t id = expect_snap(h, ids, 0, false);
    answer_all(h, ids, id, 0, false);
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(harness_expect(h, ids[i], BODY(SNAP))->snap->step, 0);
        answer(h, ids[i], id, 5 + i, true);
    }
    (void)expect_snap(h, ids, 0, true);
    id = expect_snap(h, ids, 7, false);
    answer_all(h, ids, id, 0, false);
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_true(harness_expect(h, ids[i], BODY(SNAP))->snap->drop);
        assert_int_equal(harness_expect(h, ids[i], BODY(SNAP))->snap->step, 7);
        answer(h, ids[i], id, 0, false);
    }
    harness_expect_nothing(h, ids[WORKERS]);
    send_part(h, ids[1], id, 1, 50, "");
    expect_passed(h, ids);
    send_part(h, ids[0], id, 0, 50, "");
    harness_expect_nothing(h, ids[WORKERS]);
    harness_free(h);
}

/* Shards see no step without a bsp tensor: workers report the newest step and its end. */
static void workers_report_the_steps(void **state)
{
    workers_report_steps_of("asp");
    workers_report_steps_of(NULL); /* no tensor at the shards */
}

static void leave(struct harness *h, uint64_t connection, uint64_t committed)
{
    Weft__Control__Leave body = WEFT__CONTROL__LEAVE__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    body.committed = committed;
    message.body_case = BODY(LEAVE), message.leave = &body;
    harness_deliver(h, connection, &message);
}

/* Failures end the snapshot, not the job. A worker that leaves before the step is not waited for. */
static void parts_fail_alone(void **state)
{
    static const char *const errors[] = {"no memory", "disk full", "left before the step", "left after it"};
    for (int kind = 0; kind < 4; kind++) {
        uint64_t ids[MEMBERS];
        uint32_t id;
        struct harness *h = arming_workers(ids, &id);
        print_message("%s\n", errors[kind]);
        answer(h, ids[0], id, 0, false);
        if (kind < 2) answer(h, ids[1], id, 0, false);
        if (kind == 0) send_part(h, ids[0], id, 0, 0, errors[kind]);
        if (kind == 1) {
            send_part(h, ids[0], id, 0, 50, "");
            expect_wanted(h, ids[0], 0);
            send_data(h, ids[0], id, 0, 50);
            stored(h, errors[kind]);
        }
        if (kind >= 2) leave(h, ids[1], kind == 2 ? 9 : 10);
        if (kind == 2) {
            assert_int_equal(seen.begins, 1);
            send_part(h, ids[0], id, 0, 50, "");
            expect_wanted(h, ids[0], 0);
        } else {
            (void)expect_snap(h, ids, 10, true);
            assert_true(harness_expect(h, ids[0], BODY(SNAP))->snap->drop);
        }
        assert_int_equal(seen.commits, 0);
        assert_int_equal(h->ended_count, 0);
        harness_free(h);
    }
}

/* Ranks have new numbers after a loss, so parts of before and after it do not mix. */
static void ends_with_the_membership(void **state)
{
    uint64_t ids[MEMBERS];
    uint32_t id;
    struct harness *h = running_in(harness_create_elastic_shards(WORKERS, SHARDS, 1), 10, 0, ids);
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    (void)arm_workers(h, ids, &id);
    answer(h, ids[0], id, 0, false);
    answer(h, ids[1], id, 0, false);
    send_part(h, ids[1], id, 1, 50, "");
    expect_wanted(h, ids[1], 0);
    send_data(h, ids[1], id, 0, 50);
    harness_close(h, ids[1], "reset");
    shrink.epoch = harness_expect(h, ids[0], BODY(MEMBER_LOST))->member_lost->epoch;
    message.body_case = BODY(SHRINK), message.shrink = &shrink;
    harness_deliver(h, ids[0], &message);
    assert_true(harness_expect(h, ids[0], BODY(SNAP))->snap->drop);
    (void)harness_expect(h, ids[0], BODY(SHRUNK));
    stored(h, ""); /* of the dropped one */
    send_part(h, ids[0], id, 0, 50, "");
    assert_int_equal(seen.commits, 0);
    assert_int_equal(h->ended_count, 0);
    tick(h, WEFT_SECONDS(2)); /* the next one waits for the worker that is left */
    assert_int_equal(harness_expect(h, ids[0], BODY(SNAP))->snap->drop, false);
    assert_int_equal(h->coordinator->snapshot.parts.arming, 1);
    harness_free(h);
}

/* Bytes that were not requested, and fetches without a restored snapshot, end the job with a sentence. */
static void refuses_unasked_bytes(void **state)
{
    for (int kind = 0; kind < 4; kind++) {
        uint64_t ids[MEMBERS];
        uint32_t id;
        struct harness *h = arming_workers(ids, &id);
        Weft__Control__SnapFetch fetch = WEFT__CONTROL__SNAP_FETCH__INIT;
        Control message = WEFT__CONTROL__CONTROL__INIT;
        message.body_case = BODY(SNAP_FETCH), message.snap_fetch = &fetch;
        if (kind == 0) send_part(h, ids[0], id, 0, 50, ""); /* not armed */
        else if (kind == 1) harness_deliver(h, ids[0], &message);
        else answer(h, ids[0], id, 0, false), answer(h, ids[1], id, 0, false);
        if (kind == 2) send_data(h, ids[0], id, 0, 50);
        if (kind == 3) {
            send_part(h, ids[0], id, 0, 50, "");
            send_data(h, ids[0], id, 0, 49);
        }
        assert_int_equal(h->ended_count, 1);
        assert_non_null(strstr(h->end_text, kind < 1   ? "had not armed"
                                            : kind < 2 ? "not due"
                                                       : "not requested"));
        assert_true(seen.parts == 0 && seen.fetches == 0);
        harness_free(h);
    }
}

/* One request of a worker at a time reaches the driver; its answer reaches the worker. */
static void fetches(void **state)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running(10, 0, ids);
    Weft__Control__SnapFetch fetch = WEFT__CONTROL__SNAP_FETCH__INIT;
    Weft__Control__SnapFetched fetched = WEFT__CONTROL__SNAP_FETCHED__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    h->coordinator->options.snapshots.restored_parts = 2;
    fetch.rank = 1;
    message.body_case = BODY(SNAP_FETCH), message.snap_fetch = &fetch;
    harness_deliver(h, ids[0], &message);
    assert_int_equal(seen.fetches, 1);
    fetched.rank = 1;
    weft_coordinator_snapshot_fetched(h->coordinator, h->coordinator->membership.workers[0]->member,
                                      &fetched);
    assert_int_equal(harness_expect(h, ids[0], BODY(SNAP_FETCHED))->snap_fetched->rank, 1);
    harness_deliver(h, ids[0], &message);
    harness_deliver(h, ids[0], &message);
    assert_int_equal(seen.fetches, 2);
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

/* ---- rollback ---- */

/* A running job without copies. complete: step of the last snapshot; 0: none. */
static struct harness *running_with_rollback(uint64_t complete, uint64_t *ids)
{
    struct harness *h = running(10, 0, ids);
    h->coordinator->options.snapshots.allow_rollback = true;
    h->coordinator->snapshot.complete = complete;
    for (uint32_t i = 0; i < SHARDS; i++)
        h->coordinator->membership.shards[i]->abilities.supports_rollback = true;
    return h;
}

static void expect_rolled_back(struct harness *h, uint64_t connection, uint64_t step)
{
    Control *message;
    while ((message = harness_next(h, connection)) != NULL && message->body_case != BODY(ABORT)) continue;
    assert_non_null(message);
    assert_int_equal(message->abort->status, WEFT_ERR_ROLLED_BACK);
    assert_int_equal(message->abort->rollback_step, step);
    assert_non_null(strstr(message->abort->text, "shard 1 ("));
}

static void rolls_back(void **state)
{
    uint64_t ids[MEMBERS];
    struct weft_coordinator_options next;
    struct harness *h = running_with_rollback(20, ids);
    assert_false(weft_coordinator_rolled_back(h->coordinator, &next));
    harness_close(h, ids[WORKERS + 1], "reset");
    for (uint32_t i = 0; i < MEMBERS; i++)
        if (i != WORKERS + 1) expect_rolled_back(h, ids[i], 20);
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_ERR_ROLLED_BACK);
    assert_true(weft_coordinator_rolled_back(h->coordinator, &next));
    assert_int_equal(next.shards, SHARDS - 1);
    assert_int_equal(next.workers, WORKERS);
    assert_int_equal(next.snapshots.restored_step, 20);
    harness_close(h, ids[WORKERS + 2], "reset"); /* a further loss changes nothing */
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

/* The snapshot whose manifest is being written is the last one. */
static void check_awaited_manifest(uint64_t complete, bool is_good)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running_with_rollback(complete, ids);
    h->coordinator->snapshot.state = SNAPSHOT_COMMITTING;
    h->coordinator->snapshot.step = 30;
    harness_close(h, ids[WORKERS + 1], "reset");
    assert_int_equal(h->ended_count, 0);
    harness_close(h, ids[WORKERS], "reset");
    assert_int_equal(h->ended_count, 0);
    weft_coordinator_snapshot_committed(h->coordinator, is_good);
    assert_int_equal(h->ended_count, 1);
    if (is_good || complete > 0) expect_rolled_back(h, ids[0], is_good ? 30 : complete);
    else assert_non_null(strstr(h->end_text, "it cannot be rolled back: no snapshot is complete"));
    harness_free(h);
}

static void a_manifest_is_awaited(void **state)
{
    check_awaited_manifest(20, true);
    check_awaited_manifest(20, false);
    check_awaited_manifest(0, true); /* the first snapshot of the job */
    check_awaited_manifest(0, false);
}

static void expect_refusal(struct harness *h, const uint64_t *ids, const char *reason)
{
    harness_close(h, ids[WORKERS + 1], "reset");
    assert_int_equal(h->end_status, WEFT_ERR_PEER_LOST);
    assert_non_null(strstr(h->end_text, "shard 1 ("));
    assert_non_null(strstr(h->end_text, "; it cannot be rolled back: "));
    assert_non_null(strstr(h->end_text, reason));
    harness_free(h);
}

static void rollbacks_are_refused(void **state)
{
    uint64_t ids[MEMBERS];
    struct harness *h = running_with_rollback(0, ids);
    expect_refusal(h, ids, "no snapshot is complete");
    h = running_with_rollback(20, ids);
    h->coordinator->membership.shards[2]->abilities.supports_rollback = false;
    expect_refusal(h, ids, "no other shard can begin again");
    h = running_with_rollback(20, ids);
    leave(h, ids[0], 25);
    expect_refusal(h, ids, "its workers are not those of its start");
    h = running_with_rollback(20, ids);
    h->coordinator->options.snapshots.allow_rollback = false;
    harness_close(h, ids[WORKERS + 1], "reset");
    assert_int_equal(h->end_status, WEFT_ERR_PEER_LOST);
    assert_null(strstr(h->end_text, "rolled back"));
    harness_free(h);
}

/* Shards that do not join the job again are left out. */
static void begins_with_the_shards_that_join(void **state)
{
    struct weft_coordinator_options next;
    struct harness *h = harness_create(1, 2, NULL);
    h->coordinator->options.snapshots.allow_rollback = true;
    h->coordinator->options.snapshots.is_rolled_back = true;
    h->coordinator->options.snapshots.restored_step = 7;
    (void)harness_join(h, WEFT__CONTROL__ROLE__ROLE_SHARD, -1, 1, NULL);
    h->coordinator->membership.shards[0]->abilities.supports_rollback = true;
    tick(h, WEFT_SECONDS(29));
    assert_int_equal(h->ended_count, 0);
    tick(h, WEFT_SECONDS(2));
    assert_int_equal(h->end_status, WEFT_ERR_ROLLED_BACK);
    assert_true(weft_coordinator_rolled_back(h->coordinator, &next));
    assert_int_equal(next.shards, 1);
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_once),
        cmocka_unit_test(names_a_later_step),
        cmocka_unit_test(asks_for_the_newest_step),
        cmocka_unit_test(fails_alone),
        cmocka_unit_test(needs_every_shard),
        cmocka_unit_test(parts_are_stored),
        cmocka_unit_test(a_late_worker),
        cmocka_unit_test(workers_report_the_steps),
        cmocka_unit_test(parts_fail_alone),
        cmocka_unit_test(ends_with_the_membership),
        cmocka_unit_test(refuses_unasked_bytes),
        cmocka_unit_test(fetches),
        cmocka_unit_test(rolls_back),
        cmocka_unit_test(a_manifest_is_awaited),
        cmocka_unit_test(rollbacks_are_refused),
        cmocka_unit_test(begins_with_the_shards_that_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
