/* test_stats.c - the figures of the job: members by state, silence, age of a wait. */
#include "tests/coordinator/coordinator_harness.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name
#define WORKER WEFT__CONTROL__ROLE__ROLE_WORKER
#define SHARD WEFT__CONTROL__ROLE__ROLE_SHARD

static struct weft_coordinator_stats stats_of(const struct harness *h)
{
    struct weft_coordinator_stats stats;
    weft_coordinator_stats(h->coordinator, &stats);
    return stats;
}

static void states_of_a_start(void **state)
{
    struct harness *h = harness_create(2, 1, NULL);
    uint64_t c[3];
    h->now_ns += WEFT_SECONDS(3);
    assert_int_equal(stats_of(h).start_wait_ns / WEFT_SECONDS(1), 3);
    c[0] = harness_join(h, WORKER, 0, 1, NULL);
    c[1] = harness_join(h, WORKER, 1, 1, NULL);
    harness_endpoints(h, c[1], 1);
    struct weft_coordinator_stats stats = stats_of(h);
    assert_string_equal(stats.state, "joining");
    assert_int_equal(stats.workers.expected, 2);
    assert_int_equal(stats.workers.joined, 1);
    assert_int_equal(stats.workers.connecting, 1);
    assert_int_equal(stats.shards.expected, 1);
    assert_int_equal(stats.shards.joined + stats.shards.connecting, 0);
    assert_int_equal(stats.shards.silence_ns, 0);
    c[2] = harness_join(h, SHARD, 0, 1, NULL);
    harness_endpoints(h, c[0], 1);
    harness_endpoints(h, c[2], 1);
    assert_string_equal(stats_of(h).state, "connecting");
    for (int i = 0; i < 3; i++) harness_ready(h, c[i]);
    stats = stats_of(h);
    assert_string_equal(stats.state, "running");
    assert_int_equal(stats.workers.ready, 2);
    assert_int_equal(stats.shards.ready, 1);
    assert_int_equal(stats.start_wait_ns, 0);
    assert_int_equal(stats.epoch, 1);
    harness_free(h);
}

/* The member that is silent longest counts; a member that has left does not. */
static void silence(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create(2, 1, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    h->now_ns += WEFT_SECONDS(4);
    harness_declare_init(&declare, 0, "fc1");
    harness_declare(h, c[1], &declare);
    h->now_ns += WEFT_SECONDS(1);
    struct weft_coordinator_stats stats = stats_of(h);
    assert_int_equal(stats.workers.silence_ns / WEFT_SECONDS(1), 5);
    assert_int_equal(stats.shards.silence_ns / WEFT_SECONDS(1), 5);
    assert_int_equal(stats.tensors, 1);
    harness_leave(h, c[0], "done");
    stats = stats_of(h);
    assert_int_equal(stats.workers.left, 1);
    assert_int_equal(stats.workers.silence_ns / WEFT_SECONDS(1), 1);
    harness_free(h);
}

static void a_loss_and_its_agreement(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create_elastic(3, 1);
    harness_run(h, c, 1);
    assert_int_equal(stats_of(h).agreement_ns, 0);
    harness_close(h, c[2], "killed");
    h->now_ns += WEFT_SECONDS(2);
    struct weft_coordinator_stats stats = stats_of(h);
    assert_int_equal(stats.workers.lost, 1);
    assert_int_equal(stats.workers.ready, 2);
    assert_int_equal(stats.agreement_ns / WEFT_SECONDS(1), 2);
    for (int i = 0; i < 2; i++) {
        Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
        Control message = WEFT__CONTROL__CONTROL__INIT;
        shrink.epoch = 2;
        message.body_case = BODY(SHRINK);
        message.shrink = &shrink;
        harness_deliver(h, c[i], &message);
    }
    stats = stats_of(h);
    assert_int_equal(stats.agreement_ns, 0);
    assert_int_equal(stats.epoch, 2);
    assert_int_equal(stats.workers.expected, 2);
    assert_int_equal(stats.workers.lost, 1);
    harness_free(h);
}

static void send_report(struct harness *h, uint64_t connection, uint64_t steps, const char *open)
{
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    report.steps = steps;
    report.wait_ns = UINT64_MAX;
    report.snapshot_ns = 5000000 + steps;
    report.open = (char *)open;
    heartbeat.report = &report;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &heartbeat;
    weft_coordinator_message(h->coordinator, connection, &message);
}

/* The newest report of a member counts; one of a member that has left does not. */
static void reports(void **state)
{
    uint64_t c[3];
    struct weft_member_report all[3];
    struct harness *h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    assert_int_equal(weft_coordinator_member_count(h->coordinator), 3);
    assert_int_equal(weft_coordinator_reports(h->coordinator, all, 3), 0);
    send_report(h, c[1], 4, "all_reduce waits for rank 0");
    h->now_ns += WEFT_SECONDS(2);
    send_report(h, c[1], 5, "send waits for rank 0");
    h->now_ns += WEFT_SECONDS(3);
    assert_int_equal(weft_coordinator_reports(h->coordinator, all, 3), 1);
    assert_int_equal(all[0].role, WORKER);
    assert_int_equal(all[0].index, 1);
    assert_int_equal(all[0].age_ns / WEFT_SECONDS(1), 3);
    assert_int_equal(all[0].figures.steps, 5);
    char *json = weft_coordinator_status_json(h->coordinator);
    assert_non_null(strstr(json, "\"steps\":5"));
    assert_non_null(strstr(json, "\"open\":\"send waits for rank 0\""));
    assert_non_null(strstr(json, "\"wait_ns\":9223372036854775807"));
    assert_non_null(strstr(json, "\"snapshot_ns\":5000005"));
    assert_non_null(strstr(json, "\"report\":null"));
    weft_free_bytes(&h->env, json);
    send_report(h, c[0], 6, "");
    assert_int_equal(weft_coordinator_reports(h->coordinator, all, 1), 1);
    assert_int_equal(weft_coordinator_reports(h->coordinator, all, 3), 2);
    harness_leave(h, c[1], "done");
    assert_int_equal(weft_coordinator_reports(h->coordinator, all, 3), 1);
    assert_int_equal(all[0].index, 0);
    harness_free(h);
}

static void send_steps(struct harness *h, uint64_t connection, uint64_t fast, uint64_t slow, uint64_t step_ns)
{
    uint64_t buckets[WEFT_HISTOGRAM_BOUNDS + 1] = {[3] = fast, [WEFT_HISTOGRAM_BOUNDS] = slow};
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    report.n_step_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
    report.step_buckets = buckets;
    report.step_ns = step_ns;
    report.n_failover_buckets = 4;
    report.failover_buckets = buckets;
    report.failover_ns = 2 * step_ns;
    Weft__Control__OperationTimes times[3], *operations[3];
    const char *const kinds[3] = {"all_reduce", "push_pull", "bad\"kind"};
    for (unsigned i = 0; i < 3; i++) {
        weft__control__operation_times__init(operations[i] = &times[i]);
        times[i].kind = (char *)kinds[i];
        times[i].n_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
        times[i].buckets = buckets;
        times[i].ns = (i + 1) * step_ns;
    }
    Weft__Control__CodecFigures codec = WEFT__CONTROL__CODEC_FIGURES__INIT;
    codec.n_encode_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
    codec.n_decode_buckets = 4;
    codec.encode_buckets = codec.decode_buckets = buckets;
    codec.encode_ns = 3 * step_ns;
    codec.decode_ns = step_ns;
    codec.gradient_bytes = 400 * step_ns;
    codec.encoded_bytes = 100 * step_ns;
    report.codec = &codec;
    report.n_operations = 3;
    report.operations = operations;
    heartbeat.report = &report;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &heartbeat;
    weft_coordinator_message(h->coordinator, connection, &message);
}

/* The steps of all workers are added, and stay when a worker leaves. */
static void steps_of_all_workers(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    send_steps(h, c[0], 5, 1, 1000);
    send_steps(h, c[1], 7, 0, 100);
    send_steps(h, c[0], 6, 1, 1200);
    struct weft_coordinator_stats stats = stats_of(h);
    assert_int_equal(stats.step.counts[3], 13);
    assert_int_equal(stats.step.counts[WEFT_HISTOGRAM_BOUNDS], 1);
    assert_int_equal(stats.step.sum, 1300);
    assert_int_equal(stats.failover.counts[3], 13);
    assert_int_equal(stats.failover.sum, 2600);
    assert_int_equal(weft_histogram_count(&stats.failover), 13);
    assert_int_equal(weft_histogram_count(&stats.exposed), 0);
    assert_int_equal(stats.operation_count, 2); /* a name that is no label is refused */
    for (unsigned i = 0; i < 2; i++) {
        assert_string_equal(stats.operations[i].kind, i == 0 ? "all_reduce" : "push_pull");
        assert_int_equal(stats.operations[i].times.counts[3], 13);
        assert_int_equal(stats.operations[i].times.sum, (i + 1) * 1300);
    }
    assert_int_equal(weft_histogram_count(&stats.codec.encode), 14);
    assert_int_equal(weft_histogram_count(&stats.codec.decode), 13);
    assert_int_equal(stats.codec.encode.sum, 3900);
    assert_int_equal(stats.codec.decode.sum, 1300);
    assert_int_equal(stats.codec.gradient_bytes, 520000);
    assert_int_equal(stats.codec.encoded_bytes, 130000);
    send_steps(h, c[0], 6, 1, 7); /* counters that fall add nothing */
    assert_int_equal(stats_of(h).codec.gradient_bytes, 520000);
    char *json = weft_coordinator_status_json(h->coordinator);
    assert_non_null(strstr(json, "\"codec\":{\"exchanges\":14,\"encode_ns\":3900,\"decode_ns\":1300,"
                                 "\"gradient_bytes\":520000,\"encoded_bytes\":130000}"));
    weft_free_bytes(&h->env, json);
    harness_leave(h, c[1], "done");
    assert_int_equal(stats_of(h).step.counts[3], 13);
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_of_a_start), cmocka_unit_test(silence),
                                       cmocka_unit_test(reports),
        cmocka_unit_test(steps_of_all_workers), cmocka_unit_test(a_loss_and_its_agreement)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
