/* test_stall.c - operations that take much longer than usual: which rank, link or host is named. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "tests/coordinator/coordinator_harness.h"
#include "tests/lib/check.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name
enum { WORKERS = 3 };

struct report {
    uint64_t open_ms, usual_ms;
    uint32_t waits_for;
    bool is_stalled;
};

static void send(struct harness *h, uint64_t connection, struct report report)
{
    Weft__Control__Progress progress = WEFT__CONTROL__PROGRESS__INIT;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    progress.operations = 70;
    progress.open_ns = WEFT_MS(report.open_ms);
    progress.usual_ns = WEFT_MS(report.usual_ms);
    progress.waits_for = report.waits_for;
    progress.is_stalled = report.is_stalled;
    progress.call = (char *)(report.open_ms ? "all_reduce 7" : "");
    heartbeat.progress = &progress;
    message.body_case = BODY(HEARTBEAT), message.heartbeat = &heartbeat;
    harness_deliver(h, connection, &message);
}

static void pass(struct harness *h, uint64_t ms)
{
    h->now_ns += WEFT_MS(ms);
    weft_coordinator_tick(h->coordinator);
}

static void expect_questions(struct harness *h, const uint64_t *connections, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_true(harness_expect(h, connections[i], BODY(HEARTBEAT))->heartbeat->ask_progress);
}

static const char *stall_text(struct harness *h)
{
    return h->coordinator->stall.text;
}

static void expect_text(struct harness *h, const char *wanted)
{
    if (strcmp(stall_text(h), wanted) != 0) fail_msg("'%s' is not '%s'", stall_text(h), wanted);
}

static const struct report waits = {.open_ms = 2000, .usual_ms = 20, .is_stalled = true};

/* One rank waits for rank 1: the others report, and the job continues. */
static void a_rank_that_has_not_called(void **state)
{
    struct harness *h = harness_create(WORKERS, 0, NULL);
    uint64_t c[WORKERS];
    harness_run(h, c, 1);
    struct report report = waits;
    report.waits_for = 2;
    send(h, c[0], report);
    expect_questions(h, c, WORKERS);
    assert_string_equal(stall_text(h), "");
    send(h, c[0], report);
    report.waits_for = 1; /* of a ring: follows rank 0 to rank 1 */
    send(h, c[2], report);
    send(h, c[1], (struct report){.usual_ms = 20});
    pass(h, 1000);
    expect_text(
        h, "rank 0 (hostb, pid 41) and 1 more have waited 3.0 s in all_reduce 7 (usually at most 0.020 s): "
           "rank 1 (hostb, pid 42) has not called it");
    char *json = weft_coordinator_status_json(h->coordinator);
    assert_non_null(strstr(json, "\"stall_ms\":3000"));
    assert_non_null(strstr(json, "rank 1 (hostb, pid 42) has not called it"));
    assert_non_null(strstr(json, "\"operations\":70"));
    weft_free_bytes(weft_env_system(), json);
    struct weft_coordinator_stats stats;
    weft_coordinator_stats(h->coordinator, &stats);
    assert_int_equal(stats.stall_ns / WEFT_MS(1), 3000);

    send(h, c[0], (struct report){.usual_ms = 3000});
    pass(h, 1000); /* one still waits */
    assert_string_not_equal(stall_text(h), "");
    send(h, c[2], (struct report){.usual_ms = 3000});
    pass(h, 1000);
    assert_string_equal(stall_text(h), "");
    weft_coordinator_stats(h->coordinator, &stats);
    assert_int_equal(stats.stall_ns, 0);
    harness_free(h);
}

static void a_rank_that_does_not_answer(void **state)
{
    struct harness *h = harness_create(WORKERS, 0, NULL);
    uint64_t c[WORKERS];
    harness_run(h, c, 1);
    send(h, c[0], waits);
    send(h, c[0], waits);
    send(h, c[1], waits);
    pass(h, 600);
    expect_text(
        h, "rank 0 (hostb, pid 41) and 1 more have waited 2.6 s in all_reduce 7 (usually at most 0.020 s): "
           "rank 2 (hostb, pid 43) does not answer: stopped, or cut off");
    /* The coordinator requests progress again, so the text is updated. */
    for (int i = 0; i < 5; i++) pass(h, 1000);
    send(h, c[0], waits);
    send(h, c[1], waits);
    send(h, c[2], (struct report){.usual_ms = 20});
    pass(h, 1000);
    assert_non_null(strstr(stall_text(h), "rank 2 (hostb, pid 43) has no operation open"));
    harness_free(h);
}

static void a_broken_link(void **state)
{
    struct harness *h = harness_create(WORKERS, 0, NULL);
    uint64_t c[WORKERS];
    harness_run(h, c, 1);
    const uint32_t waits_for[] = {3, 1, 1}; /* ranks 0 and 2 wait for each other, rank 1 for rank 0 */
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < WORKERS; i++) {
            struct report report = waits;
            report.waits_for = waits_for[i];
            send(h, c[i], report);
        }
    pass(h, 1000);
    if (!strstr(stall_text(h), "wait for each other: see the link between these two hosts") ||
        !strstr(stall_text(h), "rank 0 (hostb, pid 41)") ||
        !strstr(stall_text(h), "rank 2 (hostb, pid 43)") || strstr(stall_text(h), "rank 1 "))
        fail_msg("'%s'", stall_text(h));
    harness_free(h);
}

/* The shard has no contribution of rank 1, and rank 1 has called. */
static void a_link_to_a_shard(void **state)
{
    struct harness *h = harness_create(2, 1, NULL);
    uint64_t c[3];
    harness_run(h, c, 1);
    for (int round = 0; round < 2; round++) {
        send(h, c[0], waits);
        send(h, c[1], waits);
    }
    send(h, c[2], (struct report){.open_ms = 1900, .waits_for = 2});
    pass(h, 1000);
    assert_non_null(strstr(stall_text(h),
                           "shard 0 (hostb, pid 43) waits for rank 1 (hostb, pid 42), which has "
                           "called it: see the link between these two hosts"));
    harness_free(h);
}

/* A slow operation that ends before the answers are due is no stall. */
static void no_stall(void **state)
{
    struct harness *h = harness_create(WORKERS, 0, NULL);
    uint64_t c[WORKERS];
    harness_run(h, c, 1);
    pass(h, 1000);
    send(h, c[0], (struct report){.open_ms = 1900, .usual_ms = 700});
    harness_expect_nothing(h, c[0]);
    send(h, c[0], waits);
    expect_questions(h, c, WORKERS);
    for (int i = 0; i < WORKERS; i++) send(h, c[i], (struct report){.usual_ms = 2000});
    pass(h, 1000);
    assert_string_equal(stall_text(h), "");
    assert_int_equal(h->coordinator->stall.asked_ns, 0);
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_has_not_called),
        cmocka_unit_test(a_rank_that_does_not_answer),
        cmocka_unit_test(a_broken_link),
        cmocka_unit_test(a_link_to_a_shard),
        cmocka_unit_test(no_stall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
