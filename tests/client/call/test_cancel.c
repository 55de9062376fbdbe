/* test_cancel.c - weft_cancel: gathered calls, recvs before their sends, and requests that cannot be
 * cancelled. */
#include "tests/lib/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/session/session.h"
#include "tests/client/crowd.h"

enum { RANKS = 2, LONG = 200000, RECVS = 5, ROUNDS = 60 };

/* The same calls on both ranks: the first and the last of a group are cancelled, the one between them
 * runs. */
static void gathered(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    float values[3] = {1, 2, 3};
    struct weft_request requests[3];
    memset(requests, 0, sizeof requests);
    CROWD_OK(crowd, session, weft_group_start(session));
    for (int i = 0; i < 3; i++)
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, &values[i], &values[i], 1, WEFT_F32, WEFT_SUM, &requests[i]));
    CROWD_OK(crowd, session, weft_cancel(&requests[0]));
    CROWD_OK(crowd, session, weft_cancel(&requests[2]));
    CROWD_REFUSED(crowd, session, weft_cancel(&requests[2]), WEFT_ERR_STATE, "has ended");
    CROWD_CHECK(crowd, session, weft_test(&requests[0]) == WEFT_ERR_CANCELLED);
    CROWD_OK(crowd, session, weft_group_end(session));
    CROWD_OK(crowd, session, weft_wait(&requests[1], 0));
    CROWD_CHECK(crowd, session,
                weft_wait(&requests[2], 0) == WEFT_ERR_CANCELLED &&
                    strstr(weft_error_text(session), "weft_cancel"));
    CROWD_CHECK(crowd, session, values[1] == 4);
    CROWD_OK(
        crowd, session,
        /* the request is free again */
        weft_all_reduce(session, values, values, 1, WEFT_F32, WEFT_SUM, &requests[0]));
    CROWD_OK(crowd, session, weft_wait(&requests[0], 0));
    (void)rank;
}

/* Rank 0 posts recvs and cancels some; what rank 1 then sends arrives in the other recvs, in order. */
static void recvs_of(struct crowd *crowd, struct weft_session *session, uint32_t rank, uint64_t count,
                     uint32_t round)
{
    static _Thread_local int32_t values[RECVS][LONG];
    struct weft_request requests[RECVS];
    memset(requests, 0, sizeof requests);
    uint32_t cancelled = (round * 7 + 3) % (1u << RECVS); /* a bit for each recv */
    uint64_t used = count;
    if (rank == 0)
        for (int i = 0; i < RECVS; i++)
            CROWD_OK(crowd, session, weft_recv(session, values[i], used, WEFT_I32, 1, &requests[i]));
    if (rank == 0)
        for (int i = 0; i < RECVS; i++)
            if (cancelled >> i & 1) {
                CROWD_OK(crowd, session, weft_cancel(&requests[i]));
                CROWD_CHECK(crowd, session, weft_test(&requests[i]) == WEFT_ERR_CANCELLED);
                values[i][0] = -1;
            }
    pthread_barrier_wait(&crowd->meet);
    int32_t next = 0;
    for (int i = 0; i < RECVS; i++) {
        if (cancelled >> i & 1) continue;
        if (rank == 1) {
            for (uint64_t at = 0; at < used; at++) values[i][at] = next + (int32_t)at;
            CROWD_OK(crowd, session, weft_send(session, values[i], used, WEFT_I32, 0, &requests[i]));
        }
        CROWD_OK(crowd, session, weft_wait(&requests[i], 0));
        CROWD_CHECK(crowd, session, values[i][0] == next && values[i][used - 1] == next + (int32_t)used - 1);
        next++;
    }
    if (rank == 0)
        for (int i = 0; i < RECVS; i++)
            if (cancelled >> i & 1) CROWD_CHECK(crowd, session, values[i][0] == -1);
}

static void recvs(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    for (uint32_t round = 0; round < ROUNDS; round++)
        recvs_of(crowd, session, rank, round % 3 == 0 ? LONG : round % 3 == 1 ? 1 : 3000, round);
    crowd->sessions[rank] = NULL;
    CROWD_CHECK(crowd, NULL,
                weft_finalize(session) == WEFT_OK); /* it compares the counts of sent and received messages */
}

/* A cancel that races with the send: the recv has completed, or it was cancelled and the next recv gets
 * the send. */
static void races(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    for (int32_t round = 0; round < 200; round++) {
        int32_t value = rank == 1 ? round : -1;
        pthread_barrier_wait(&crowd->meet);
        if (rank == 1) {
            CROWD_OK(crowd, session, weft_send(session, &value, 1, WEFT_I32, 0, &request));
            CROWD_OK(crowd, session, weft_wait(&request, 0));
            continue;
        }
        CROWD_OK(crowd, session, weft_recv(session, &value, 1, WEFT_I32, 1, &request));
        enum weft_status status = weft_cancel(&request);
        CROWD_CHECK(crowd, session, status == WEFT_OK || status == WEFT_ERR_BUSY || status == WEFT_ERR_STATE);
        if (status == WEFT_OK) {
            CROWD_CHECK(crowd, session, weft_test(&request) == WEFT_ERR_CANCELLED);
            CROWD_OK(crowd, session, weft_recv(session, &value, 1, WEFT_I32, 1, &request));
        }
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        CROWD_CHECK(crowd, session, value == round);
    }
}

/* A collective is not cancelled and continues; so does an operation behind it. */
static void collectives(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static _Thread_local float values[2][LONG];
    struct weft_request requests[2] = {{{0}}, {{0}}};
    for (int i = 0; i < 2; i++) values[i][0] = 1;
    if (rank == 1) pthread_barrier_wait(&crowd->meet);
    for (int i = 0; i < 2; i++)
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, values[i], values[i], LONG, WEFT_F32, WEFT_SUM, &requests[i]));
    if (rank == 0)
        for (int i = 0; i < 2; i++)
            CROWD_REFUSED(crowd, session, weft_cancel(&requests[i]), WEFT_ERR_BUSY, "under way");
    if (rank == 0) pthread_barrier_wait(&crowd->meet);
    for (int i = 0; i < 2; i++) CROWD_OK(crowd, session, weft_wait(&requests[i], 0));
    for (int i = 0; i < 2; i++) CROWD_CHECK(crowd, session, values[i][0] == RANKS);
    CROWD_REFUSED(crowd, session, weft_cancel(&requests[0]), WEFT_ERR_STATE, "has ended");
}

/* A persistent recv is started again after it was cancelled. */
static void persistent(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    int32_t value = (int32_t)rank;
    const struct weft_call call =
        *WEFT_CALL(.kind = rank == 0 ? WEFT_CALL_RECV : WEFT_CALL_SEND, .in = &value, .out = &value,
                   .count = 1, .dtype = WEFT_I32, .root = 1 - rank);
    CROWD_OK(crowd, session, weft_call_init(session, &call, &request));
    CROWD_REFUSED(crowd, session, weft_cancel(&request), WEFT_ERR_STATE, "not open");
    if (rank == 0) {
        CROWD_OK(crowd, session, weft_start(&request));
        CROWD_OK(crowd, session, weft_cancel(&request));
        CROWD_CHECK(crowd, session, weft_wait(&request, 0) == WEFT_ERR_CANCELLED);
    }
    pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session, weft_start(&request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_CHECK(crowd, session, value == 1);
    CROWD_OK(crowd, session, weft_request_free(&request));
}

static void run(crowd_fn fn)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, fn);
    assert_int_equal(crowd.failures, 0);
}

static void test_gathered(void **state)
{
    (void)state;
    run(gathered);
}
static void test_recvs(void **state)
{
    (void)state;
    run(recvs);
}
static void test_races(void **state)
{
    (void)state;
    run(races);
}
static void test_collectives(void **state)
{
    (void)state;
    run(collectives);
}
static void test_persistent(void **state)
{
    (void)state;
    run(persistent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gathered), cmocka_unit_test(test_recvs),
                                       cmocka_unit_test(test_races), cmocka_unit_test(test_collectives),
                                       cmocka_unit_test(test_persistent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
