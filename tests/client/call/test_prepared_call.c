/* test_prepared_call.c - a call equal to the prepared one of its kind is not checked again
 * (client/call/fastpath.c). A call that differs is. */
#include <string.h>
#include <unistd.h>

#include "tests/client/crowd.h"
#include "tests/lib/check.h"

enum { RANKS = 3, TIMES = 40, AHEAD = 100 };

static void same_again(struct crowd *crowd, struct weft_session *session, struct weft_request *request,
                       int64_t *word, uint32_t root)
{
    for (int64_t i = 0; i < TIMES; i++) {
        int64_t sent = 100 * root + i;
        *word = weft_rank(session) == root ? sent : -1;
        CROWD_OK(crowd, session, weft_broadcast(session, word, 1, WEFT_I64, root, request));
        CROWD_OK(crowd, session, weft_wait(request, 0));
        CROWD_CHECK(crowd, session, *word == sent);
    }
}

/* Kinds, roots, counts, types and buffers in turn with one request: each result is that of its own call. */
static void in_turn(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    int64_t words[2][RANKS * 2], word;
    float floats[2];
    for (int64_t round = 0; round < TIMES; round++) {
        for (uint32_t root = 0; root < RANKS; root++) {
            uint64_t count = 1 + (uint64_t)(round + root) % 2;
            int64_t *in = words[round % 2], *out = words[!(round % 2)];
            for (uint64_t i = 0; i < count; i++) in[i] = 10 * rank + (int64_t)i;
            CROWD_OK(crowd, session, weft_gather(session, in, out, count, WEFT_I64, root, &request));
            CROWD_OK(crowd, session, weft_wait(&request, 0));
            for (uint64_t i = 0; i < count * RANKS && rank == root; i++)
                CROWD_CHECK(crowd, session, out[i] == 10 * (int64_t)(i / count) + (int64_t)(i % count));
            word = rank == root ? round : -1;
            CROWD_OK(crowd, session, weft_broadcast(session, &word, 1, WEFT_I64, root, &request));
            CROWD_OK(crowd, session, weft_wait(&request, 0));
            CROWD_CHECK(crowd, session, word == round);
            in[0] = (int64_t)rank + round;
            enum weft_op op = round % 3 == 0 ? WEFT_SUM : round % 3 == 1 ? WEFT_MAX : WEFT_MIN;
            CROWD_OK(crowd, session,
                     weft_all_reduce(session, in, round % 2 ? in : out, 1, WEFT_I64, op, &request));
            CROWD_OK(crowd, session, weft_wait(&request, 0));
            CROWD_CHECK(crowd, session,
                        (round % 2 ? in : out)[0] == (op == WEFT_SUM   ? 3 * round + 3
                                                      : op == WEFT_MAX ? round + 2
                                                                       : round));
            floats[0] = floats[1] = 0.5f * (float)rank;
            CROWD_OK(crowd, session,
                     weft_all_reduce(session, floats, floats, 2, WEFT_F32, WEFT_SUM, &request));
            CROWD_OK(crowd, session, weft_wait(&request, 0));
            CROWD_CHECK(crowd, session, floats[0] == 1.5f && floats[1] == 1.5f);
        }
    }
}

/* Only the buffers differ, or only the operation. */
static void buffers_and_operations(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const enum weft_op ops[] = {WEFT_SUM, WEFT_MAX, WEFT_MIN};
    struct weft_request request = {{0}};
    int64_t in[4], out[4][RANKS];
    for (int64_t i = 0; i < TIMES; i++) {
        in[i % 4] = 10 * i + rank;
        CROWD_OK(crowd, session, weft_gather(session, &in[i % 4], out[i / 2 % 4], 1, WEFT_I64, 2, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        for (int64_t r = 0; r < RANKS && rank == 2; r++)
            CROWD_CHECK(crowd, session, out[i / 2 % 4][r] == 10 * i + r);
    }
    for (int64_t i = 0; i < TIMES; i++) {
        in[0] = i + rank;
        CROWD_OK(crowd, session,
                 weft_all_reduce(session, in, &in[i / 3 % 4], 1, WEFT_I64, ops[i % 3], &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        CROWD_CHECK(crowd, session, in[i / 3 % 4] == (i % 3 == 0 ? 3 * i + 3 : i % 3 == 1 ? i + 2 : i));
    }
}

/* An error that the first call would return is returned by the later calls too. */
static void refused(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}}, unclean;
    int64_t word;
    memset(&unclean, 0x5a, sizeof unclean);
    same_again(crowd, session, &request, &word, 1);
    CROWD_REFUSED(crowd, session, weft_broadcast(session, NULL, 1, WEFT_I64, 1, &request), WEFT_ERR_INVALID,
                  "NULL");
    CROWD_REFUSED(crowd, session, weft_broadcast(session, &word, 1, WEFT_I64, RANKS, &request),
                  WEFT_ERR_INVALID, "beyond");
    CROWD_REFUSED(crowd, session, weft_broadcast(session, &word, 1, (enum weft_dtype)99, 1, &request),
                  WEFT_ERR_INVALID, "dtype");
    CROWD_REFUSED(crowd, session, weft_broadcast(session, &word, UINT64_MAX / 2, WEFT_I64, 1, &request),
                  WEFT_ERR_INVALID, "memory");
    CROWD_REFUSED(crowd, session, weft_broadcast(session, &word, 1, WEFT_I64, 1, NULL), WEFT_ERR_INVALID,
                  "request is NULL");
    CROWD_REFUSED(crowd, session, weft_broadcast(session, &word, 1, WEFT_I64, 1, &unclean), WEFT_ERR_INVALID,
                  "zeroed");
    same_again(crowd, session, &request, &word, 1);
    word = 0;
    CROWD_OK(crowd, session,
             weft_call_init(session,
                            WEFT_CALL(.kind = WEFT_CALL_BROADCAST, .out = &word, .count = 1,
                                      .dtype = WEFT_I64, .root = 1),
                            &request));
    CROWD_OK(crowd, session, weft_start(&request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    same_again(crowd, session, &request, &word, 1); /* it is not persistent any more */
    CROWD_REFUSED(crowd, session, weft_start(&request), WEFT_ERR_STATE, "not persistent");
    same_again(crowd, session, &request, &word, 1);
}

/* With a forced plan; with gathered calls; with an open request. */
static void otherwise(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}}, other = {{0}};
    int64_t word, more;
    same_again(crowd, session, &request, &word, 0);
    CROWD_CHECK(crowd, session, strcmp(weft_plan_taken(session), "one-host") == 0);
    CROWD_OK(crowd, session, weft_set_plan(session, "broadcast=binomial"));
    same_again(crowd, session, &request, &word, 0);
    CROWD_CHECK(crowd, session, strcmp(weft_plan_taken(session), "binomial") == 0);
    CROWD_OK(crowd, session, weft_set_plan(session, "broadcast=auto"));
    same_again(crowd, session, &request, &word, 0);
    CROWD_CHECK(crowd, session, strcmp(weft_plan_taken(session), "one-host") == 0);

    word = more = rank == 0 ? 7 : -1;
    CROWD_OK(crowd, session, weft_group_start(session));
    CROWD_OK(crowd, session, weft_broadcast(session, &word, 1, WEFT_I64, 0, &request));
    CROWD_REFUSED(crowd, session, weft_wait(&request, 0), WEFT_ERR_STATE, "weft_group_end");
    CROWD_OK(crowd, session, weft_broadcast(session, &more, 1, WEFT_I64, 0, &other));
    CROWD_OK(crowd, session, weft_group_end(session));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session, weft_wait(&other, 0));
    CROWD_CHECK(crowd, session, word == 7 && more == 7);
    same_again(crowd, session, &request, &word, 0);

    float sums[2] = {1, 1};
    /* the request holds the fields of another call */
    CROWD_OK(crowd, session, weft_all_reduce(session, sums, sums, 2, WEFT_F32, WEFT_SUM, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    int64_t late = rank == 0 ? 8 : -1; /* the other ranks are late, so the call falls back to the queue */
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session, weft_broadcast(session, &late, 1, WEFT_I64, 0, &request));
    if (rank > 0) {
        CROWD_REFUSED(crowd, session, weft_wait(&request, 20), WEFT_ERR_DEADLINE, "broadcast");
        CROWD_REFUSED(crowd, session, weft_wait(&request, 20), WEFT_ERR_DEADLINE, "waits for rank ");
        CROWD_REFUSED(crowd, session, weft_broadcast(session, &word, 1, WEFT_I64, 0, &request), WEFT_ERR_BUSY,
                      "still in use");
        pthread_barrier_wait(&crowd->meet);
    }
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_CHECK(crowd, session, late == 8);
    same_again(crowd, session, &request, &word, 0);
}

/* The request is open in another group, and the group of all workers is idle. */
static void under_way(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { LONG = 400000 };
    static float floats[RANKS][LONG];
    struct weft_request request = {{0}};
    struct weft_comm *comm = NULL;
    int64_t word;
    CROWD_OK(crowd, session, weft_split(session, NULL, 0, (int)rank, &comm));
    same_again(crowd, session, &request, &word, 0);
    if (rank == 0) pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session,
             weft_call_start(session,
                             WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comm, .in = floats[rank],
                                       .out = floats[rank], .count = LONG, .dtype = WEFT_F32, .op = WEFT_SUM),
                             &request));
    if (rank > 0) {
        /* the engine has run its start */
        CROWD_REFUSED(crowd, session, weft_wait(&request, 20), WEFT_ERR_DEADLINE, "all_reduce");
        CROWD_REFUSED(crowd, session, weft_broadcast(session, &word, 1, WEFT_I64, 0, &request), WEFT_ERR_BUSY,
                      "still in use");
        pthread_barrier_wait(&crowd->meet);
    }
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    same_again(crowd, session, &request, &word, 0);
    CROWD_OK(crowd, session, weft_comm_free(comm));
}

/* One rank calls another operation: both ranks get the sentence. */
static void differs(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    int64_t words[2] = {0};
    same_again(crowd, session, &request, words, 0);
    enum weft_status status = weft_broadcast(session, words, 1 + (rank == 2), WEFT_I64, 0, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    for (int i = 0; i < AHEAD && status >= 0; i++) { /* a rank that runs ahead detects it some calls later */
        status = weft_broadcast(session, words, 1, WEFT_I64, 0, &request);
        if (status >= 0) status = weft_wait(&request, 0);
    }
    crowd_refused(crowd, session, status, WEFT_ERR_MISMATCH, "count", "a broadcast of another count",
                  __FILE__, __LINE__);
}

static void run(crowd_fn fn)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, fn);
    assert_int_equal(crowd.failures, 0);
}

static void test_in_turn(void **state) { run(in_turn); }
static void test_buffers_and_operations(void **state) { run(buffers_and_operations); }
static void test_under_way(void **state) { run(under_way); }
static void test_refused(void **state) { run(refused); }
static void test_otherwise(void **state) { run(otherwise); }
static void test_differs(void **state) { run(differs); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_turn),
        cmocka_unit_test(test_buffers_and_operations),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_under_way),
        cmocka_unit_test(test_otherwise),
        cmocka_unit_test(test_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
