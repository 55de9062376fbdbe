/* test_job_version.c - wire versions: which members a job admits, its version, what the version refuses. */
#include <stdio.h>

#include "tests/coordinator/coordinator_harness.h"

#define WORKER WEFT__CONTROL__ROLE__ROLE_WORKER
#define SHARD WEFT__CONTROL__ROLE__ROLE_SHARD
#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name

/* Members as processes with these versions write Hello. */
static const struct harness_hello
    old_worker = {.role = WORKER, .wanted_index = -1, .wire_version = 1},
    new_worker = {.role = WORKER, .wanted_index = -1, .wire_version = 2, .wire_oldest = 1, .wire_newest = 2},
    next_worker = {.role = WORKER, .wanted_index = -1, .wire_version = 2, .wire_oldest = 2, .wire_newest = 3},
    old_shard = {.role = SHARD, .wanted_index = -1, .wire_version = 1},
    new_shard = {.role = SHARD, .wanted_index = -1, .wire_version = 2, .wire_oldest = 1, .wire_newest = 2},
    next_shard = {.role = SHARD, .wanted_index = -1, .wire_version = 2, .wire_oldest = 2, .wire_newest = 3};

static uint64_t join(struct harness *h, const struct harness_hello *hello)
{
    uint64_t c = harness_hello(h, hello);
    harness_expect(h, c, BODY(WELCOME));
    harness_endpoints(h, c, 1);
    return c;
}

/* The job begins with these two workers and one shard. Returns its version by the Roster. */
static uint32_t begin(struct harness *h, const struct harness_hello *worker,
                      const struct harness_hello *shard, uint64_t c[3])
{
    uint32_t version = 0;
    c[0] = join(h, worker), c[1] = join(h, worker), c[2] = join(h, shard);
    for (int i = 0; i < 3; i++) version = harness_expect(h, c[i], BODY(ROSTER))->roster->wire_version;
    for (int i = 0; i < 3; i++) harness_ready(h, c[i]);
    for (int i = 0; i < 3; i++) harness_expect(h, c[i], BODY(GO));
    return version;
}

static void lowest_newest_version(void **state)
{
    static const struct {
        const struct harness_hello *worker, *shard;
        uint32_t coordinator, version, newest[3];
    } jobs[] = {
        {&new_worker, &new_shard, 0, 2, {2, 2, 2}},  {&old_worker, &new_shard, 0, 1, {0, 0, 2}},
        {&new_worker, &old_shard, 0, 1, {2, 2, 0}},  {&old_worker, &old_shard, 0, 1, {0, 0, 0}},
        {&next_worker, &new_shard, 0, 2, {3, 3, 2}}, {&new_worker, &next_shard, 0, 2, {2, 2, 3}},
        {&new_worker, &new_shard, 1, 0, {0, 0, 0}},  {&old_worker, &old_shard, 1, 0, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct harness *h = harness_create_version(2, 1, 0, jobs[i].coordinator);
        struct harness_hello worker = *jobs[i].worker, shard = *jobs[i].shard;
        if (jobs[i].coordinator == 1) worker.wire_version = shard.wire_version = 1; /* that both speak */
        uint64_t c[3] = {join(h, &worker), join(h, &worker), join(h, &shard)};
        for (int k = 0; k < 3; k++) {
            const Weft__Control__Roster *roster = harness_expect(h, c[k], BODY(ROSTER))->roster;
            assert_int_equal(roster->wire_version, jobs[i].version);
            for (int m = 0; m < 3; m++) assert_int_equal(roster->members[m]->wire_newest, jobs[i].newest[m]);
        }
        harness_free(h);
    }
}

/* A member of version 1 refuses every other number in Challenge.wire_version. */
static void challenge_as_version_1(void **state)
{
    for (uint32_t newest = 0; newest <= 2; newest++) {
        struct harness *h = harness_create_version(2, 1, 0, newest);
        const uint64_t c = harness_open(h);
        const Weft__Control__Challenge *challenge = harness_expect(h, c, BODY(CHALLENGE))->challenge;
        assert_int_equal(challenge->wire_version, 1);
        assert_int_equal(challenge->wire_newest, newest == 1 ? 0 : 2);
        harness_free(h);
    }
}

static void members_without_a_common_version(void **state)
{
    struct harness *h = harness_create_version(2, 1, 0, 0);
    (void)join(h, &old_shard);
    uint64_t c = harness_hello(h, &next_worker);
    harness_expect_abort(
        h, c, WEFT_ERR_VERSION,
        "newcomer 2 speaks wire version 2 to 3 (weft 9.9) and shard 0 (hostb, pid 41) 1: use "
        "releases of weft that are at most one wire version apart",
        true);
    (void)join(h, &new_worker);
    c = harness_hello(h, &old_worker);
    harness_expect_abort(h, c, WEFT_ERR_VERSION,
                         "newcomer 4 speaks wire version 1 (weft 9.9) and rank 0 (hostb, pid 43) version 2: "
                         "workers exchange data with each other, use one release of weft in all workers of a "
                         "job",
                         true);
    (void)join(h, &new_worker);
    harness_free(h);
    /* version 1 alone does not serve a member without it */
    h = harness_create_version(2, 1, 0, 1);
    c = harness_hello(h, &(struct harness_hello){.role = SHARD, .wanted_index = -1, .wire_version = 2});
    harness_expect_abort(h, c, WEFT_ERR_VERSION,
                         "newcomer 1 speaks wire version 2 (weft 9.9), the coordinator 1 (weft 0.1.0): use "
                         "releases of weft that are at most one wire version apart",
                         true);
    harness_free(h);
}

/* The job has shard 0 of version 1. */
static void refuses(void (*change)(struct harness_declare *), const char *what)
{
    uint64_t c[3];
    char text[400];
    struct harness_declare declare;
    struct harness *h = harness_create_version(2, 1, 0, 0);
    begin(h, &new_worker, &old_shard, c);
    harness_declare_init(&declare, 0, "fc1");
    declare.declare.optimizer = (char *)"sgd";
    change(&declare);
    harness_declare(h, c[0], &declare);
    snprintf(text, sizeof text,
             "rank 0, tensor 'fc1': %s needs wire version 2 and this job has version 1, because shard 0 "
             "(hostb, pid 43) spoke no newer one when it began: upgrade that process, then start the job "
             "again",
             what);
    for (int i = 0; i < 3; i++) harness_expect_abort(h, c[i], WEFT_ERR_VERSION, text, false);
    harness_free(h);
}

static void change_consistency(struct harness_declare *d)
{
    d->declare.consistency = (char *)"ssp:2";
}
static void change_pull_dtype(struct harness_declare *d)
{
    d->declare.pull_dtype = WEFT_BF16;
}
static void change_dtype(struct harness_declare *d)
{
    d->declare.dtype = WEFT_BF16;
}

static void features_of_version_2(void **state)
{
    refuses(change_consistency, "consistency ssp or asp");
    refuses(change_pull_dtype, "pull_dtype");
    refuses(change_dtype, "a 16-bit dtype in server mode");
    /* the rest is served */
    uint64_t c[3];
    struct harness_declare declare;
    struct harness *h = harness_create_version(2, 1, 0, 0);
    begin(h, &new_worker, &old_shard, c);
    harness_declare_init(&declare, 0, "fc1");
    for (int i = 0; i < 2; i++) harness_declare(h, c[i], &declare);
    harness_expect(h, c[2], BODY(DECLARED));
    harness_free(h);
}

/* The version of a job stays: a later member must speak it, and an upgrade does not raise it. */
static void later_members(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create_version(2, 1, 4, 0);
    assert_int_equal(begin(h, &new_worker, &new_shard, c), 2);
    uint64_t late = harness_hello(h, &old_worker);
    harness_expect_abort(h, late, WEFT_ERR_VERSION,
                         "newcomer 4 speaks wire version 1 (weft 9.9) and rank 0 (hostb, pid 41) version 2: "
                         "workers exchange data with each other, use one release of weft in all workers of a "
                         "job",
                         true);
    late = harness_hello(h, &new_worker);
    harness_expect(h, late, BODY(WELCOME));
    harness_free(h);

    h = harness_create_version(2, 1, 4, 0);
    assert_int_equal(begin(h, &new_worker, &old_shard, c), 1);
    late = harness_hello(h, &new_worker);
    harness_expect_abort(h, late, WEFT_ERR_VERSION,
                         "a new worker in a job with shards needs wire version 2 and this job has version 1, "
                         "because shard 0 (hostb, pid 43) spoke no newer one when it began: upgrade that "
                         "process, then start the job again",
                         true);
    late = harness_hello(h, &next_shard);
    harness_expect_abort(h, late, WEFT_ERR_VERSION,
                         "newcomer 5 speaks wire version 2 to 3 (weft 9.9) and job mnist has version 1 since "
                         "its start: use a release of weft that speaks it",
                         true);
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_newest_version), cmocka_unit_test(challenge_as_version_1),
        cmocka_unit_test(members_without_a_common_version), cmocka_unit_test(features_of_version_2),
        cmocka_unit_test(later_members)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
