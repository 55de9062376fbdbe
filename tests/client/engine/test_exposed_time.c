/* test_exposed_time.c - weft_stats: waiting time of a rank, split into late ranks and network. */
#include "tests/lib/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/session/session.h"
#include "tests/client/crowd.h"

enum { RANKS_MAX = 4, STEPS = 6, LATE_MS = 50, SLOW = 1 };

struct shape {
    uint64_t elems;
    bool slow; /* rank SLOW computes LATE_MS longer */
    const char *plan;
};

static void rest_ms(long ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

static struct weft_stats stats_of(struct crowd *crowd, struct weft_session *session)
{
    struct weft_stats stats = {.size = sizeof stats};
    CROWD_OK(crowd, session, weft_stats_get(session, &stats));
    return stats;
}

/* Steps with one all_reduce each. A barrier before each step, so that only time inside the step counts. */
static void steps(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct shape *shape = crowd->user;
    float *values = calloc(shape->elems, sizeof *values);
    CROWD_OK(crowd, session, weft_set_plan(session, shape->plan));
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct weft_request request = {{0}};
        pthread_barrier_wait(&crowd->meet);
        CROWD_OK(crowd, session,
                 weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1}));
        if (shape->slow && rank == SLOW) rest_ms(LATE_MS);
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, values, values, shape->elems, WEFT_F32, WEFT_SUM, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        CROWD_OK(crowd, session, weft_step_end(session));
    }
    const struct weft_stats stats = stats_of(crowd, session);
    const double late_ns = STEPS * LATE_MS * 1e6, peers = (double)stats.exposed_peers_ns;
    CROWD_CHECK(crowd, session, stats.exposed_peers_ns + stats.exposed_network_ns == stats.exposed_ns);
    CROWD_CHECK(crowd, session, stats.exposed_ns <= stats.step_ns);
    if (shape->slow && rank != SLOW)
        CROWD_CHECK(crowd, session, peers > late_ns / 2 && peers > 0.5 * (double)stats.exposed_ns);
    if (shape->slow && rank == SLOW) CROWD_CHECK(crowd, session, peers < late_ns / 2);
    if (!shape->slow) CROWD_CHECK(crowd, session, peers < late_ns / 2);
    free(values);
}

static void run(uint32_t ranks, const struct shape *shape)
{
    struct crowd crowd = {.user = (void *)(uintptr_t)shape};
    crowd_run(&crowd, ranks, steps);
    if (crowd.failures > 0)
        fail_msg("%u ranks, %llu elements, plan %s", ranks, (unsigned long long)shape->elems, shape->plan);
}

static void test_slow_rank(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 5000, 100000};
    for (size_t i = 0; i < 3; i++) run(RANKS_MAX, &(struct shape){lengths[i], true, "auto"});
}

static void test_equal_ranks(void **state)
{
    (void)state;
    run(RANKS_MAX, &(struct shape){5000, false, "auto"});
}

/* Plans in which a rank gets no message from the slow rank itself. */
static void test_plans(void **state)
{
    (void)state;
    static const char *const plans[] = {"direct", "ring", "doubling", "halving", "double_tree"};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        run(RANKS_MAX, &(struct shape){20000, true, plans[i]});
}

/* A receive whose sender is late; outside a step nothing counts. */
static void late_send(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    int32_t value = 1;
    for (int in_step = 0; in_step < 2; in_step++) {
        if (in_step)
            CROWD_OK(crowd, session,
                     weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
        pthread_barrier_wait(&crowd->meet);
        if (rank == SLOW) rest_ms(LATE_MS);
        if (rank == SLOW) CROWD_OK(crowd, session, weft_send(session, &value, 1, WEFT_I32, 0, &request));
        else CROWD_OK(crowd, session, weft_recv(session, &value, 1, WEFT_I32, SLOW, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        if (in_step) CROWD_OK(crowd, session, weft_step_end(session));
        const double peers = (double)stats_of(crowd, session).exposed_peers_ns;
        CROWD_CHECK(crowd, session,
                    in_step && rank != SLOW ? peers > LATE_MS * 0.5e6 : peers < LATE_MS * 0.5e6);
    }
}

static void test_late_send(void **state)
{
    (void)state;
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, late_send);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow_rank), cmocka_unit_test(test_equal_ranks),
                                       cmocka_unit_test(test_plans), cmocka_unit_test(test_late_send)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
