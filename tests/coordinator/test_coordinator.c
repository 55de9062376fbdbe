/* test_coordinator.c - states of the coordinator, refusals, sentences, ends. */
#include <stdio.h>

#include "tests/coordinator/coordinator_harness.h"

#define WORKER WEFT__CONTROL__ROLE__ROLE_WORKER
#define SHARD WEFT__CONTROL__ROLE__ROLE_SHARD
#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name

static void whole_life(void **state)
{
    struct harness *h = harness_create(2, 2, NULL);
    Weft__Control__Welcome welcome[4];
    uint64_t c[4];
    c[0] = harness_join(h, SHARD, 1, 2, &welcome[0]);
    c[1] = harness_join(h, WORKER, -1, 0, &welcome[1]);
    c[2] = harness_join(h, WORKER, -1, 1, &welcome[2]);
    assert_int_equal(welcome[0].index, 1);
    assert_int_equal(welcome[1].index, 0);
    assert_int_equal(welcome[2].index, 1);
    assert_int_equal(welcome[1].endpoint_first, welcome[0].endpoint_first + 2);
    assert_int_equal(welcome[2].endpoint_first, welcome[1].endpoint_first + 1);
    assert_true(welcome[0].job_id == welcome[2].job_id &&
                welcome[0].transport_nonce == welcome[1].transport_nonce);
    assert_true(welcome[1].incarnation != welcome[2].incarnation);
    assert_true(welcome[0].heartbeat_ns == WEFT_SECONDS(30));
    for (int i = 0; i < 3; i++) harness_endpoints(h, c[i], i == 0 ? 2 : 1);
    for (int i = 0; i < 3; i++) harness_expect_nothing(h, c[i]); /* shard 0 has not joined yet */
    c[3] = harness_join(h, SHARD, -1, 1, &welcome[3]);
    assert_int_equal(welcome[3].index, 0);
    harness_endpoints(h, c[3], 1);
    for (int i = 0; i < 4; i++) {
        Weft__Control__Roster *roster = harness_expect(h, c[i], BODY(ROSTER))->roster;
        assert_int_equal(roster->n_members, 4);
        assert_string_equal(roster->coordinator, "shard 1 (hostb, pid 41)");
        assert_string_equal(roster->members[1]->name, "rank 0 (hostb, pid 42)");
        assert_string_equal(roster->members[0]->name, "shard 1 (hostb, pid 41)");
        assert_int_equal(roster->members[0]->n_addresses, 2);
        assert_int_equal(roster->members[2]->addresses[0].data[0], c[2]);
        assert_int_equal(roster->members[3]->endpoint_first, welcome[3].endpoint_first);
    }
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 4; k++) harness_expect_nothing(h, c[k]);
        Weft__Control__LinkCost cost = WEFT__CONTROL__LINK_COST__INIT;
        cost.pairs = 2;
        /* every rank sends another one: rank 0's is used, although it joined second */
        cost.latency_ns = 100 + (uint64_t)i;
        /* blobs travel unread: no valid calibration, and figures of an earlier release */
        uint8_t blob[WEFT_LIMIT_CALIBRATION_BYTES], runs[WEFT_RUNS_BYTES];
        memset(blob, 0xf0 + i, sizeof blob);
        memset(runs, 0x10 + i, sizeof runs);
        cost.calibration = (ProtobufCBinaryData){sizeof blob, blob};
        cost.runs = (ProtobufCBinaryData){sizeof runs, runs};
        cost.words_ns = 200 + (uint32_t)i;
        harness_ready_with(h, c[i], &cost);
    }
    for (int i = 0; i < 4; i++) {
        const Weft__Control__Go *go = harness_expect(h, c[i], BODY(GO))->go;
        assert_non_null(go->cost);
        assert_int_equal(go->cost->pairs, 2);
        assert_int_equal(go->cost->latency_ns, 101);
        assert_int_equal(go->cost->words_ns, 201);
        assert_int_equal(go->cost->calibration.len, WEFT_LIMIT_CALIBRATION_BYTES);
        for (size_t k = 0; k < go->cost->calibration.len; k++)
            assert_int_equal(go->cost->calibration.data[k], 0xf1);
        assert_int_equal(go->cost->runs.len, WEFT_RUNS_BYTES);
        assert_int_equal(go->cost->runs.data[0], 0x11);
    }

    struct harness_declare declare;
    harness_declare_init(&declare, 0, "fc1");
    harness_declare(h, c[1], &declare);
    harness_expect_nothing(h, c[0]);
    harness_declare(h, c[2], &declare);
    Weft__Control__Declared *at_shard = harness_expect(h, c[0], BODY(DECLARED))->declared;
    harness_expect(h, c[3], BODY(DECLARED));
    assert_int_equal(at_shard->n_chunks, 4); /* 3,211,264 bytes cut at 1 MiB */
    harness_declared_ok(h, c[3], 0);
    harness_expect_nothing(h, c[1]);
    harness_declared_ok(h, c[0], 0);
    for (int i = 1; i < 3; i++)
        assert_int_equal(harness_expect(h, c[i], BODY(DECLARED))->declared->n_chunks, 4);

    harness_leave(h, c[1], "");
    harness_close(h, c[1], "");
    for (int i = 0; i < 4; i += 3) { /* shards wait for pushes of the workers */
        const Weft__Control__Left *left = harness_expect(h, c[i], BODY(LEFT))->left;
        assert_int_equal(left->member, 1);
        assert_int_equal(left->index, 0);
        assert_non_null(strstr(left->text, "rank 0 ("));
    }
    for (int i = 0; i < 4; i++) harness_expect_nothing(h, c[i]);
    harness_leave(h, c[2], "");
    harness_expect(h, c[0], BODY(FINISHED));
    harness_expect(h, c[3], BODY(FINISHED));
    harness_leave(h, c[0], "");
    assert_int_equal(h->ended_count, 0);
    harness_leave(h, c[3], "");
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_OK);
    for (int i = 0; i < 4; i++)
        if (i != 1) harness_close(h, c[i], "");
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

static void refusals(void **state)
{
    struct harness *h = harness_create(2, 1, NULL);
    uint64_t c =
        harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = -1, .wire_version = 7});
    harness_expect_abort(h, c, WEFT_ERR_VERSION,
                         "newcomer 1 speaks wire version 7 (weft 9.9), the coordinator 1 to 2 (weft 0.1.0): "
                         "use releases of weft that are at most one wire version apart",
                         true);
    c = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = -1, .job = "other"});
    harness_expect_abort(h, c, WEFT_ERR_INVALID,
                         "newcomer 2 names job other, this coordinator serves job mnist", true);
    c = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = 2});
    harness_expect_abort(h, c, WEFT_ERR_INVALID,
                         "job mnist has 2 workers, numbered 0 to 1; rank 2 cannot join", true);
    harness_join(h, WORKER, 1, 1, NULL);
    c = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = 1});
    harness_expect_abort(h, c, WEFT_ERR_EXISTS, "rank 1 is taken: rank 1 (hostb, pid 44) has joined as that",
                         true);
    harness_join(h, SHARD, -1, 1, NULL);
    c = harness_hello(h, &(struct harness_hello){.role = SHARD, .wanted_index = -1});
    harness_expect_abort(h, c, WEFT_ERR_EXISTS, "job mnist is full: 1 of 1 shards have joined", true);
    c = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = 0, .secret = "s"});
    harness_expect_abort(
        h, c, WEFT_ERR_AUTH,
        "newcomer 8 has a job secret and this job has none: give the secret to all processes or to none",
        true);
    c = harness_open(h);
    harness_next(h, c);
    harness_ready(h, c);
    harness_expect_abort(h, c, WEFT_ERR_STATE, "the first message to a coordinator must be Hello", true);
    harness_ready(h, c); /* after the refusal: ignored */
    harness_close(h, c, "");
    c = harness_open(h);
    harness_next(h, c);
    h->now_ns += WEFT_SECONDS(11);
    weft_coordinator_tick(h->coordinator);
    harness_expect_abort(h, c, WEFT_ERR_DEADLINE, "no Hello within 10 s", true);
    assert_int_equal(h->ended_count, 0); /* the job was not affected */
    harness_free(h);
    h = harness_create(1, 0, NULL);
    c = harness_hello(h, &(struct harness_hello){.role = SHARD, .wanted_index = 0});
    harness_expect_abort(h, c, WEFT_ERR_INVALID, "job mnist has no shards; shard 0 cannot join", true);
    harness_free(h);
}

static void proofs(void **state)
{
    struct harness *h = harness_create(2, 0, "s3cret");
    uint64_t c = harness_open(h);
    assert_true(harness_expect(h, c, BODY(CHALLENGE))->challenge->auth_required);
    c = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = -1});
    harness_expect_abort(
        h, c, WEFT_ERR_AUTH,
        "this job has a secret and newcomer 2 sent none: set WEFT_SECRET or WEFT_SECRET_FILE", true);
    c = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = -1, .secret = "guess"});
    harness_expect_abort(h, c, WEFT_ERR_AUTH, "newcomer 3 has another secret than this job", true);
    c = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = -1, .secret = "s3cret"});
    Weft__Control__Welcome *welcome = harness_expect(h, c, BODY(WELCOME))->welcome;
    uint8_t nonce[WEFT_NONCE_BYTES], proof[WEFT_PROOF_BYTES];
    memset(nonce, (int)c, sizeof nonce);
    weft_proof_make("s3cret", WEFT_PROOF_WELCOME, nonce, "mnist", "newcomer 4", proof);
    assert_true(weft_proof_check(welcome->proof.data, welcome->proof.len, proof));
    c = harness_hello(h, &(struct harness_hello){
                             .role = WORKER, .wanted_index = -1, .secret = "s3cret", .has_no_seal = true});
    harness_expect_abort(h, c, WEFT_ERR_VERSION,
                         "newcomer 5 (weft 9.9) does not authenticate its control frames as this coordinator "
                         "(weft 0.1.0) does, and this job has a secret: use one release of weft in a job",
                         true);
    uint64_t d = harness_open(h), e = harness_open(h);
    assert_memory_not_equal(harness_next(h, d)->challenge->nonce.data,
                            harness_next(h, e)->challenge->nonce.data, WEFT_NONCE_BYTES);
    harness_free(h);
}

/* A job without a secret serves members of the earlier release, which add no MAC. */
static void members_without_a_seal(void **state)
{
    struct harness *h = harness_create(1, 0, NULL);
    uint64_t c = harness_hello(
        h, &(struct harness_hello){.role = WORKER, .wanted_index = -1, .has_no_seal = true});
    harness_expect(h, c, BODY(WELCOME));
    harness_free(h);
}

static void lost_members(void **state)
{
    uint64_t c[3], observer;
    struct harness *h = harness_create(2, 1, NULL);
    observer = harness_join(h, WEFT__CONTROL__ROLE__ROLE_OBSERVER, -1, 0, NULL);
    harness_run(h, c, 1);
    harness_close(h, c[1], "");
    Weft__Control__MemberLost *observed = harness_expect(h, observer, BODY(MEMBER_LOST))->member_lost;
    assert_int_equal(observed->role, WORKER);
    assert_int_equal(observed->index, 1);
    for (int i = 0; i < 3; i += 2) {
        Weft__Control__MemberLost *lost = harness_expect(h, c[i], BODY(MEMBER_LOST))->member_lost;
        assert_string_equal(lost->text, "rank 1 (hostb, pid 43) lost: connection closed");
        assert_int_equal(lost->member, 1);
    }
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_ERR_PEER_LOST);
    harness_close(h, c[0], "");
    harness_leave(h, c[2], "");
    uint64_t late = harness_hello(h, &(struct harness_hello){.role = WORKER, .wanted_index = -1});
    harness_expect_abort(h, late, WEFT_ERR_CLOSED,
                         "job mnist is over: rank 1 (hostb, pid 43) lost: connection closed", true);
    assert_int_equal(h->ended_count, 1);
    harness_free(h);

    h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    h->now_ns += WEFT_SECONDS(29);
    Weft__Control__Heartbeat beat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &beat;
    harness_deliver(h, c[0], &message);
    harness_deliver(h, c[1], &message);
    h->now_ns += WEFT_SECONDS(2);
    weft_coordinator_tick(h->coordinator);
    assert_string_equal(harness_expect(h, c[0], BODY(MEMBER_LOST))->member_lost->text,
                        "shard 0 (hostb, pid 43) lost: silent for 30 s");
    assert_string_equal(harness_expect(h, c[2], BODY(ABORT))->abort->text,
                        "shard 0 (hostb, pid 43) counts as lost at the coordinator: it was silent for 30 "
                        "s; the job has ended for it");
    assert_true(h->connections[c[2]].closed_by_coordinator);
    harness_free(h);

    h = harness_create(2, 1, NULL); /* a pause of the coordinator does not count as silence; longer silence
                                     * does */
    harness_run(h, c, 1);
    h->now_ns += WEFT_SECONDS(40);
    weft_coordinator_paused(h->coordinator, WEFT_SECONDS(39));
    weft_coordinator_tick(h->coordinator);
    assert_int_equal(h->ended_count, 0);
    harness_deliver(h, c[0], &message);
    h->now_ns += WEFT_SECONDS(1);
    /* longer than the time since rank 0's last message */
    weft_coordinator_paused(h->coordinator, WEFT_SECONDS(20));
    weft_coordinator_tick(h->coordinator);
    assert_int_equal(h->ended_count, 0);
    h->now_ns += WEFT_SECONDS(31);
    weft_coordinator_tick(h->coordinator);
    assert_int_equal(h->ended_count, 1);
    harness_free(h);

    h = harness_create(2, 0, NULL); /* a member that has left and does not close gets no Abort */
    harness_run(h, c, 1);
    harness_leave(h, c[0], "");
    h->now_ns += WEFT_SECONDS(20);
    harness_deliver(h, c[1], &message);
    h->now_ns += WEFT_SECONDS(20);
    weft_coordinator_tick(h->coordinator);
    assert_true(h->connections[c[0]].closed_by_coordinator);
    harness_expect_nothing(h, c[0]);
    harness_expect_nothing(h, c[1]);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);

    h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    harness_leave(h, c[2], "terminated by SIGTERM");
    assert_string_equal(
        harness_expect(h, c[1], BODY(MEMBER_LOST))->member_lost->text,
        "shard 0 (hostb, pid 43) lost: it left while workers were running: terminated by SIGTERM");
    harness_free(h);

    h = harness_create(2, 0, NULL); /* while joining */
    c[0] = harness_join(h, WORKER, 0, 1, NULL);
    c[1] = harness_join(h, WORKER, 1, 1, NULL);
    harness_leave(h, c[0], "");
    assert_string_equal(harness_expect(h, c[1], BODY(MEMBER_LOST))->member_lost->text,
                        "rank 0 (hostb, pid 41) lost: it left before the job had begun");
    harness_free(h);
}

static void join_deadline(void **state)
{
    struct harness *h = harness_create(11, 1, NULL);
    uint64_t c = harness_join(h, WORKER, 3, 1, NULL);
    harness_endpoints(h, c, 1);
    h->now_ns += WEFT_SECONDS(299);
    harness_leave(h, harness_open(h), ""); /* messages of another connection do not count for this member */
    Weft__Control__Heartbeat beat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &beat;
    harness_deliver(h, c, &message);
    h->now_ns += WEFT_SECONDS(2);
    weft_coordinator_tick(h->coordinator);
    harness_expect_abort(h, c, WEFT_ERR_DEADLINE,
                         "job mnist could not begin within 300 s: rank 0, rank 1, rank 2, rank 4, rank 5, "
                         "rank 6, rank 7, rank 8 and 3 more have not joined; 1 of 11 ranks is present: 3",
                         false);
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

static void aborts(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    Weft__Control__Abort abort = WEFT__CONTROL__ABORT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    abort.status = WEFT_ERR_ABORTED;
    abort.text = (char *)"loss is not a number";
    message.body_case = BODY(ABORT);
    message.abort = &abort;
    harness_deliver(h, c[1], &message);
    harness_expect_abort(h, c[0], WEFT_ERR_ABORTED, "aborted by rank 1 (hostb, pid 42): loss is not a number",
                         false);
    harness_expect_abort(h, c[2], WEFT_ERR_ABORTED, "aborted by rank 1 (hostb, pid 42): loss is not a number",
                         false);
    harness_expect_nothing(h, c[1]);
    assert_int_equal(h->end_status, WEFT_ERR_ABORTED);
    for (int i = 0; i < 3; i++) harness_close(h, c[i], "");
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

static void broken_protocol(void **state)
{
    static const char *const expected[] = {"it declared a tensor, as only workers do",
                                           "it sent DeclaredOk when that was not due",
                                           "it sent Ready when that was not due",
                                           "it sent Endpoints twice",
                                           "it declared tensors out of order",
                                           "it confirmed a tensor that it was not asked about",
                                           "it sent a message that only the coordinator sends",
                                           "it sent a weight hash of a tensor that no shard has"};
    for (int i = 0; i < 8; i++) {
        uint64_t c[3], bad;
        char text[160];
        struct harness *h = harness_create(2, 1, NULL);
        struct harness_declare declare;
        harness_run(h, c, 1);
        harness_declare_init(&declare, i == 4 ? 1 : 0, "fc1");
        bad = i == 0 || i == 5 ? c[2] : c[1];
        if (i == 0 || i == 4) harness_declare(h, bad, &declare);
        if (i == 1 || i == 5) harness_declared_ok(h, bad, 0);
        if (i == 2) harness_ready(h, bad);
        if (i == 3) harness_endpoints(h, bad, 1);
        if (i >= 6) {
            Control message = WEFT__CONTROL__CONTROL__INIT;
            Weft__Control__Go go = WEFT__CONTROL__GO__INIT;
            Weft__Control__WeightHash hash = WEFT__CONTROL__WEIGHT_HASH__INIT;
            hash.worker = 1;
            message.body_case = i == 6 ? BODY(GO) : BODY(WEIGHT_HASH);
            if (i == 6) message.go = &go;
            else message.weight_hash = &hash;
            harness_deliver(h, bad, &message);
        }
        snprintf(text, sizeof text, "%s lost: %s",
                 bad == c[2] ? "shard 0 (hostb, pid 43)" : "rank 1 (hostb, pid 42)", expected[i]);
        assert_string_equal(harness_expect(h, c[0], BODY(MEMBER_LOST))->member_lost->text, text);
        assert_true(h->connections[bad].closed_by_coordinator);
        assert_int_equal(h->ended_count, 1);
        harness_free(h);
    }
}

/* 70 hosts, of which 64 are kept; one is well again, and one has another finding. */
static void report_health(struct harness *h, uint64_t observer)
{
    Weft__Control__StatusRequest request = WEFT__CONTROL__STATUS_REQUEST__INIT;
    Weft__Control__HostFinding finding = WEFT__CONTROL__HOST_FINDING__INIT, *findings[] = {&finding};
    Weft__Control__HostHealth health = WEFT__CONTROL__HOST_HEALTH__INIT;
    struct weft_coordinator_stats stats;
    char host[16];
    Control message = WEFT__CONTROL__CONTROL__INIT;
    finding.subject = (char *)"GPU 0", finding.text = (char *)"lost", finding.advice = (char *)"restart";
    health.host = host, health.findings = findings;
    message.body_case = BODY(HOST_HEALTH);
    message.host_health = &health;
    for (int i = 0; i < 72; i++) {
        snprintf(host, sizeof host, "host%d", i < 70 ? i : i - 70);
        health.n_findings = i != 70;
        if (i == 71) finding.text = (char *)"\"2 errors\"";
        harness_deliver(h, observer, &message);
    }
    weft_coordinator_stats(h->coordinator, &stats);
    assert_int_equal(stats.sick_hosts, 63);
    message.body_case = BODY(STATUS_REQUEST);
    message.status_request = &request;
    harness_deliver(h, observer, &message);
    const char *json = harness_expect(h, observer, BODY(STATUS_REPLY))->status_reply->json;
    assert_non_null(strstr(json, "{\"host\":\"host1\",\"subject\":\"GPU 0\",\"text\":\"\\\"2 errors\\\"\","
                                 "\"advice\":\"restart\"}"));
    assert_null(strstr(json, "\"host0\""));
    assert_non_null(strstr(json, "\"host63\""));
}

static void observers(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create(2, 1, "key");
    uint64_t o = harness_hello(
        h, &(struct harness_hello){.role = WEFT__CONTROL__ROLE__ROLE_OBSERVER, .wanted_index = -1});
    harness_expect(h, o, BODY(ABORT)); /* without the secret an observer sees nothing */
    o = harness_join(h, WEFT__CONTROL__ROLE__ROLE_OBSERVER, -1, 0, NULL);
    Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__StatusRequest request = WEFT__CONTROL__STATUS_REQUEST__INIT;
    message.body_case = BODY(STATUS_REQUEST);
    message.status_request = &request;
    harness_deliver(h, o, &message);
    assert_non_null(
        strstr(harness_expect(h, o, BODY(STATUS_REPLY))->status_reply->json, "\"state\":\"joining\""));
    harness_run(h, c, 1);
    harness_deliver(h, o, &message);
    const char *json = harness_expect(h, o, BODY(STATUS_REPLY))->status_reply->json;
    assert_non_null(strstr(json, "\"state\":\"running\""));
    assert_non_null(
        strstr(json, "\"role\":\"shard\",\"index\":0,\"state\":\"ready\",\"host\":\"hostb\",\"pid\":45"));
    assert_null(strstr(json, "key"));
    report_health(h, o);
    harness_close(h, o, "");
    assert_int_equal(h->ended_count, 0);
    o = harness_join(h, WEFT__CONTROL__ROLE__ROLE_OBSERVER, -1, 0, NULL);
    harness_leave(h, o, "");
    assert_true(h->connections[o].closed_by_coordinator);
    harness_free(h);
}

static void newcomers_are_bounded(void **state)
{
    struct harness *h = harness_create(1, 0, NULL);
    for (int i = 0; i < 300; i++) harness_open(h);
    int closed = 0;
    for (int i = 1; i <= 300; i++) closed += h->connections[i].closed_by_coordinator;
    assert_int_equal(closed, 300 - 256);
    assert_true(h->connections[1].closed_by_coordinator); /* the oldest first */
    harness_join(h, WORKER, 0, 1, NULL);
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_life),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(proofs),
                                       cmocka_unit_test(members_without_a_seal),
                                       cmocka_unit_test(lost_members),
                                       cmocka_unit_test(join_deadline),
                                       cmocka_unit_test(aborts),
                                       cmocka_unit_test(broken_protocol),
                                       cmocka_unit_test(observers),
                                       cmocka_unit_test(newcomers_are_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
