/* test_wait_reason.c - the reply to a wait-reason request names the awaited members, for each kind of wait.
 */
#include "tests/coordinator/coordinator_harness.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name
#define WORKER WEFT__CONTROL__ROLE__ROLE_WORKER
#define SHARD WEFT__CONTROL__ROLE__ROLE_SHARD

static void ask(struct harness *h, uint64_t connection)
{
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    heartbeat.wait_reason = true;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &heartbeat;
    harness_deliver(h, connection, &message);
}

static void expect_awaited(struct harness *h, uint64_t connection, const char *text)
{
    ask(h, connection);
    Control *message = harness_expect(h, connection, BODY(HEARTBEAT));
    assert_true(message->heartbeat->wait_reason);
    assert_string_equal(message->heartbeat->text, text);
}

static void coming_in(void **state)
{
    struct harness *h = harness_create(3, 1, NULL);
    uint64_t c[4];
    c[0] = harness_join(h, WORKER, 0, 1, NULL);
    harness_endpoints(h, c[0], 1);
    c[1] = harness_join(h, WORKER, 1, 1, NULL);
    expect_awaited(h, c[0],
                   "rank 1 (hostb, pid 42), rank 2, shard 0 have not joined; 1 of 3 ranks is present: 0");
    harness_endpoints(h, c[1], 1);
    c[2] = harness_join(h, WORKER, 2, 1, NULL);
    c[3] = harness_join(h, SHARD, 0, 1, NULL);
    harness_endpoints(h, c[2], 1);
    harness_endpoints(h, c[3], 1);
    for (int i = 0; i < 4; i++) harness_expect(h, c[i], BODY(ROSTER));
    for (int i = 0; i < 3; i++) harness_ready(h, c[i]);
    h->now_ns += WEFT_SECONDS(25);
    expect_awaited(h, c[0], "shard 0 (hostb, pid 44) [silent for 25.0 s] has not connected to the others");
    harness_ready(h, c[3]);
    for (int i = 0; i < 4; i++) harness_expect(h, c[i], BODY(GO));
    expect_awaited(h, c[0], "");
    harness_free(h);
}

/* A shard waits for the begin of the job, and not for an agreement of the workers. */
static void shards_after_a_loss(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create_elastic_shards(2, 1, 1);
    harness_run(h, c, 1);
    harness_close(h, c[1], "killed");
    for (int i = 0; i < 3; i += 2) harness_expect(h, c[i], BODY(MEMBER_LOST));
    expect_awaited(h, c[0], "rank 0 (hostb, pid 41) has not agreed");
    expect_awaited(h, c[2], "");
    harness_free(h);
}

static void declaring(void **state)
{
    uint64_t c[4];
    struct harness *h = harness_create(3, 1, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    harness_declare_init(&declare, 0, "fc1");
    harness_declare(h, c[1], &declare);
    expect_awaited(h, c[1], "rank 0 (hostb, pid 41), rank 2 (hostb, pid 43) have not declared it");
    harness_declare(h, c[0], &declare);
    harness_declare(h, c[2], &declare);
    harness_expect(h, c[3], BODY(DECLARED));
    expect_awaited(h, c[1], "shard 0 (hostb, pid 44) has not taken it");
    harness_declared_ok(h, c[3], 0);
    for (int i = 0; i < 3; i++) harness_expect(h, c[i], BODY(DECLARED));
    expect_awaited(h, c[1], "");
    harness_free(h);
}

static void say_shrink(struct harness *h, uint64_t connection, uint32_t epoch)
{
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    shrink.epoch = epoch;
    message.body_case = BODY(SHRINK);
    message.shrink = &shrink;
    harness_deliver(h, connection, &message);
}

static void say_join(struct harness *h, uint64_t connection)
{
    Weft__Control__Join join = WEFT__CONTROL__JOIN__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = BODY(JOIN);
    message.join = &join;
    harness_deliver(h, connection, &message);
}

/* After a loss, as a newcomer, and after a join. */
static void agreeing(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create_growing(3, 0, 1, 4);
    harness_run(h, c, 1);
    harness_close(h, c[2], "reset");
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(MEMBER_LOST));
    say_shrink(h, c[0], 2);
    expect_awaited(h, c[0], "rank 1 (hostb, pid 42) has not agreed");
    say_shrink(h, c[1], 2);
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(SHRUNK));
    uint64_t newcomer = harness_join(h, WORKER, -1, 1, NULL);
    harness_endpoints(h, newcomer, 1);
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(GROW));
    say_shrink(h, c[1], 3);
    expect_awaited(h, newcomer, "rank 0 (hostb, pid 41) has not ended a step since");
    say_shrink(h, c[0], 3);
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(SHRUNK));
    harness_expect(h, newcomer, BODY(ROSTER));
    harness_ready(h, newcomer);
    harness_expect(h, newcomer, BODY(GO));
    say_join(h, c[1]);
    harness_expect(h, c[1], BODY(JOINED));
    expect_awaited(h, c[1], "rank 0 (hostb, pid 41), rank 2 (hostb, pid 44) have not joined");
    harness_free(h);
}

/* Of many members some are described, some numbered, the others counted. */
static void many(void **state)
{
    struct harness *h = harness_create(20, 0, NULL);
    uint64_t c[20];
    for (int i = 0; i < 6; i++) c[i] = harness_join(h, WORKER, i, 1, NULL);
    harness_endpoints(h, c[0], 1);
    expect_awaited(h, c[0],
                   "rank 1 (hostb, pid 42), rank 2 (hostb, pid 43), rank 3 (hostb, pid 44), rank 4, rank 5, "
                   "rank 6, rank 7, rank 8 and 11 more have not joined; 1 of 20 ranks is present: 0");
    harness_free(h);
}

static char logged[8][600];
static int logged_count;

static void keep_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    if (level > WEFT_LOG_WARN) return;
    assert_true(logged_count < 8);
    assert_string_equal(module, "coordinator");
    snprintf(logged[logged_count++], sizeof logged[0], "%s", text);
}

static void tick_after(struct harness *h, uint64_t ns)
{
    h->now_ns += ns;
    weft_coordinator_tick(h->coordinator);
}

/* Within 2 s, then every 10 s until the job begins. */
static void reports(void **state)
{
    struct harness *h = harness_create(2, 1, NULL);
    uint64_t c[3];
    h->env.log = keep_log;
    logged_count = 0;
    c[0] = harness_join(h, WORKER, 0, 1, NULL);
    harness_endpoints(h, c[0], 1);
    tick_after(h, WEFT_SECONDS(1));
    assert_int_equal(logged_count, 0);
    tick_after(h, WEFT_MS(900));
    assert_int_equal(logged_count, 1);
    assert_string_equal(logged[0], "job mnist has waited 1.9 s to begin: rank 1, shard 0 have not joined; "
                                   "1 of 2 ranks is present: 0");
    c[2] = harness_join(h, SHARD, 0, 1, NULL);
    harness_endpoints(h, c[2], 1);
    tick_after(h, WEFT_MS(9900));
    assert_int_equal(logged_count, 1);
    tick_after(h, WEFT_MS(200));
    assert_int_equal(logged_count, 2);
    assert_string_equal(logged[1], "job mnist has waited 12.0 s to begin: rank 1 has not joined; "
                                   "1 of 2 ranks is present: 0");
    c[1] = harness_join(h, WORKER, 1, 1, NULL);
    harness_endpoints(h, c[1], 1);
    harness_ready(h, c[0]);
    harness_ready(h, c[1]);
    tick_after(h, WEFT_SECONDS(10));
    assert_int_equal(logged_count, 3);
    assert_string_equal(
        logged[2],
        "job mnist has waited 22.0 s to begin: shard 0 (hostb, pid 42) has not connected to the others");
    harness_ready(h, c[2]);
    tick_after(h, WEFT_SECONDS(10));
    assert_int_equal(logged_count, 3);
    harness_free(h);
}

/* An observer may request it too; in a job that has begun no member is missing. */
static void observing(void **state)
{
    struct harness *h = harness_create(2, 0, NULL);
    uint64_t c[2];
    c[0] = harness_join(h, WORKER, 0, 1, NULL);
    harness_endpoints(h, c[0], 1);
    uint64_t observer = harness_hello(h, &(struct harness_hello){.role = WEFT__CONTROL__ROLE__ROLE_OBSERVER,
                                                                 .wanted_index = -1,
                                                                 .job = "mnist",
                                                                 .wire_version = WEFT_WIRE_VERSION,
                                                                 .endpoints = 1});
    harness_expect(h, observer, BODY(WELCOME));
    expect_awaited(h, observer, "rank 1 has not joined; 1 of 2 ranks is present: 0");
    c[1] = harness_join(h, WORKER, 1, 1, NULL);
    harness_endpoints(h, c[1], 1);
    for (int i = 0; i < 2; i++) harness_ready(h, c[i]);
    expect_awaited(h, observer, "");
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(coming_in), cmocka_unit_test(shards_after_a_loss),
                                       cmocka_unit_test(declaring), cmocka_unit_test(agreeing),
                                       cmocka_unit_test(many),      cmocka_unit_test(reports),
                                       cmocka_unit_test(observing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
