/* test_sendrecv.c - sends and recvs started in any order, of any length, waited for in any order, tested,
 * or never waited for: every message arrives unchanged, and every request completes if the job ends. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/client/crowd.h"
#include "tests/lib/check.h"

enum { ROUNDS = 300, OPEN = 6, COUNT_MAX = 100000 };

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state >> 11;
}

static int32_t value_of(uint64_t seed, uint32_t from, uint32_t k, uint64_t i)
{
    return (int32_t)(seed * 31 + from * 7 + k * 1000003 + i);
}

static enum weft_status ended(struct weft_request *request, bool looks)
{
    enum weft_status status = WEFT_IN_PROGRESS;
    if (!looks) return weft_wait(request, 0);
    for (int i = 0; i < 400000 && (status = weft_test(request)) == WEFT_IN_PROGRESS; i++) usleep(50);
    return status;
}

/* Each rank sends to the next rank and receives from the previous one; number and lengths are equal. */
static void any_order(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static _Thread_local int32_t in[OPEN][COUNT_MAX], out[OPEN][COUNT_MAX];
    struct weft_request sends[OPEN], recvs[OPEN], sum = {{0}};
    uint32_t next = (rank + 1) % crowd->workers, before = (rank + crowd->workers - 1) % crowd->workers;
    uint64_t shared = 88172645463325252ull, own = shared + 977 * (rank + 1);
    memset(sends, 0, sizeof sends), memset(recvs, 0, sizeof recvs);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t open = 1 + (uint32_t)(draw(&shared) % OPEN), sent = 0, received = 0, k;
        uint64_t seed = draw(&shared), counts[OPEN];
        float one = 1;
        bool right = true;
        for (k = 0; k < open; k++)
            counts[k] = draw(&shared) % (draw(&shared) % 8 ? 30 : draw(&shared) % 4 ? 2000 : COUNT_MAX);
        for (k = 0; k < open; k++)
            for (uint64_t i = 0; i < counts[k]; i++) in[k][i] = value_of(seed, rank, k, i), out[k][i] = -1;
        if (draw(&shared) % 8 == 0)
            CROWD_OK(crowd, session, weft_all_reduce(session, &one, &one, 1, WEFT_F32, WEFT_SUM, &sum));
        while (sent + received < 2 * open) {
            bool sends_now = received == open || (sent < open && draw(&own) % 2);
            if (sends_now)
                CROWD_OK(crowd, session,
                         weft_send(session, in[sent], counts[sent], WEFT_I32, next, &sends[sent]));
            else
                CROWD_OK(
                    crowd, session,
                    weft_recv(session, out[received], counts[received], WEFT_I32, before, &recvs[received]));
            if (sends_now) sent++;
            else received++;
        }
        bool looks = draw(&own) % 32 == 0, backwards = draw(&own) % 2;
        for (k = 0; k < open; k++)
            CROWD_OK(crowd, session, ended(&recvs[backwards ? open - 1 - k : k], looks));
        for (k = 0; k < open; k++) CROWD_OK(crowd, session, ended(&sends[k], false));
        CROWD_OK(crowd, session, weft_wait(&sum, 0));
        for (k = 0; k < open; k++)
            for (uint64_t i = 0; i < counts[k]; i++) right &= out[k][i] == value_of(seed, before, k, i);
        if (!CROWD_CHECK(crowd, session, right)) return;
    }
}

static void test_any_order(void **state)
{
    for (uint32_t workers = 2; workers <= 3; workers++) {
        struct crowd crowd = {0};
        crowd_run(&crowd, workers, any_order);
        assert_int_equal(crowd.failures, 0);
    }
}

/* One rank sends some messages and leaves. The other ranks continue, and receive its messages, however
 * many recvs they have open. */
enum { EXCHANGES = 2000, LEFT_BEHIND = 3 };
static void leaver(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request requests[LEFT_BEHIND];
    int32_t words[LEFT_BEHIND] = {5, 6, 7}, outgoing[1500] = {0}, incoming[1500] = {0};
    memset(requests, 0, sizeof requests);
    CROWD_OK(crowd, session, weft_barrier(session, &requests[0]));
    CROWD_OK(crowd, session, weft_wait(&requests[0], 0));
    for (uint32_t i = 0; i < LEFT_BEHIND && rank == 2; i++) {
        CROWD_OK(crowd, session, weft_send(session, &words[i], 1, WEFT_I32, 0, &requests[i]));
        CROWD_OK(crowd, session, weft_wait(&requests[i], 0));
    }
    if (rank == 2) return;
    for (int32_t i = 0; i < EXCHANGES; i++) {
        const uint64_t count = i % 16 == 15 ? 1500 : 1;
        outgoing[count - 1] = i + (int32_t)rank;
        CROWD_OK(crowd, session, weft_recv(session, incoming, count, WEFT_I32, !rank, &requests[0]));
        CROWD_OK(crowd, session, weft_send(session, outgoing, count, WEFT_I32, !rank, &requests[1]));
        CROWD_OK(crowd, session, weft_wait(&requests[0], 0));
        CROWD_OK(crowd, session, weft_wait(&requests[1], 0));
        if (!CROWD_CHECK(crowd, session, incoming[count - 1] == i + (int32_t)!rank)) return;
        if (i == EXCHANGES / 2) usleep(20000); /* the rank has probably left */
    }
    memset(words, 0, sizeof words);
    for (uint32_t i = 0; i < LEFT_BEHIND && rank == 0; i++)
        CROWD_OK(crowd, session, weft_recv(session, &words[i], 1, WEFT_I32, 2, &requests[i]));
    for (uint32_t i = 0; i < LEFT_BEHIND && rank == 0; i++) {
        CROWD_OK(crowd, session, weft_wait(&requests[i], 0));
        CROWD_CHECK(crowd, session, words[i] == 5 + (int32_t)i);
    }
}

static void test_leaver(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, leaver);
    assert_int_equal(crowd.failures, 0);
}

/* One persistent request, beside other requests of the caller. */
static void persistent(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request requests[2];
    int64_t sent = 0, received = -1;
    memset(requests, 0, sizeof requests);
    CROWD_OK(crowd, session,
             weft_call_init(session,
                            WEFT_CALL(.kind = WEFT_CALL_RECV, .out = &received, .count = 1, .dtype = WEFT_I64,
                                      .root = !rank),
                            &requests[0]));
    CROWD_OK(crowd, session,
             weft_call_init(
                 session,
                 WEFT_CALL(.kind = WEFT_CALL_SEND, .in = &sent, .count = 1, .dtype = WEFT_I64, .root = !rank),
                 &requests[1]));
    for (int64_t round = 0; round < 200; round++) {
        sent = round;
        if (round % 3 == 2) {
            CROWD_OK(crowd, session, weft_start_all(requests, 2));
        } else {
            CROWD_OK(crowd, session, weft_start(&requests[0]));
            CROWD_OK(crowd, session, weft_start(&requests[1]));
        }
        CROWD_OK(crowd, session, weft_wait(&requests[round % 2], 0));
        CROWD_OK(crowd, session, weft_wait(&requests[!(round % 2)], 0));
        CROWD_CHECK(crowd, session, received == round);
    }
}

static void test_persistent(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, persistent);
    assert_int_equal(crowd.failures, 0);
}

/* Rank 0 has as many open recvs from rank 1 as a group accepts. A recv from rank 2 waits for space, and
 * the next one, whose message may have arrived, waits behind it. */
enum { PLACES = 1024, FULL_ROUNDS = 600 };
static struct full {
    _Atomic uint32_t round; /* begun by rank 0; other ranks read it */
    struct weft_request open[PLACES];
    int32_t words[PLACES];
} full;

static void full_of_others(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request requests[2];
    memset(requests, 0, sizeof requests);
    for (uint32_t i = 0; i < PLACES && rank == 0; i++)
        CROWD_OK(crowd, session, weft_recv(session, &full.words[i], 1, WEFT_I32, 1, &full.open[i]));
    for (uint32_t round = 1; round <= FULL_ROUNDS; round++) {
        int32_t pair[2] = {(int32_t)(2 * round), (int32_t)(2 * round + 1)};
        pthread_barrier_wait(&crowd->meet);
        if (rank == 0) atomic_store(&full.round, round);
        while (atomic_load(&full.round) < round) {}
        for (int i = 0; i < 2 && rank == 0; i++)
            CROWD_OK(crowd, session, weft_recv(session, &pair[i], 1, WEFT_I32, 2, &requests[i]));
        for (int i = 0; i < 2 && rank == 2; i++)
            CROWD_OK(crowd, session, weft_send(session, &pair[i], 1, WEFT_I32, 0, &requests[i]));
        pthread_barrier_wait(&crowd->meet);
        for (int i = 0; i < 2 && rank == 1; i++)
            CROWD_OK(crowd, session, weft_send(session, &pair[i], 1, WEFT_I32, 0, &requests[i]));
        for (uint32_t i = 0; i < 2 && rank == 0; i++)
            CROWD_OK(crowd, session, weft_wait(&full.open[(2 * round - 2 + i) % PLACES], 0));
        for (int i = 0; i < 2; i++) CROWD_OK(crowd, session, weft_wait(&requests[i], 0));
        CROWD_CHECK(crowd, session, pair[0] == (int32_t)(2 * round) && pair[1] == (int32_t)(2 * round + 1));
        for (uint32_t k = 2 * round - 2; k < 2 * round && rank == 0; k++)
            CROWD_OK(crowd, session,
                     weft_recv(session, &full.words[k % PLACES], 1, WEFT_I32, 1, &full.open[k % PLACES]));
    }
    for (uint32_t i = 0; i < PLACES && rank == 1; i++) {
        CROWD_OK(crowd, session, weft_send(session, &(int32_t){0}, 1, WEFT_I32, 0, &requests[0]));
        CROWD_OK(crowd, session, weft_wait(&requests[0], 0));
    }
    for (uint32_t i = 0; i < PLACES && rank == 0; i++) CROWD_OK(crowd, session, weft_wait(&full.open[i], 0));
    pthread_barrier_wait(&crowd->meet); /* no rank leaves before */
}

static void test_full_of_others(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, full_of_others);
    assert_int_equal(crowd.failures, 0);
}

/* No rank sends. The deadline's sentence names the missing sender, also if the caller only tests. */
static void own_deadline(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    int32_t word;
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) {
        CROWD_OK(crowd, session,
                 weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_RECV, .out = &word, .count = 1,
                                           .dtype = WEFT_I32, .root = 1, .deadline_ms = 200),
                                 &request));
        CROWD_REFUSED(crowd, session, ended(&request, true), WEFT_ERR_DEADLINE, "rank 1");
    }
    pthread_barrier_wait(&crowd->meet);
}

static void test_own_deadline(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, own_deadline);
    assert_int_equal(crowd.failures, 0);
}

/* A wait with a short timeout names the rank it waits for, and may be repeated; also in a group with other
 * rank numbers. */
static void impatient(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    struct weft_comm *comm;
    int32_t word = 7;
    /* in reverse order */
    CROWD_OK(crowd, session, weft_split(session, NULL, 0, (int)(crowd->workers - rank), &comm));
    for (int of_comm = 0; of_comm < 2; of_comm++) {
        uint32_t other = of_comm ? 1 - weft_comm_rank(comm) : !rank;
        struct weft_call call = {.size = sizeof call,
                                 .kind = rank ? WEFT_CALL_SEND : WEFT_CALL_RECV,
                                 .in = &word,
                                 .out = &word,
                                 .count = 1,
                                 .dtype = WEFT_I32,
                                 .root = other,
                                 .comm = of_comm ? comm : NULL};
        pthread_barrier_wait(&crowd->meet);
        if (rank == 0) CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
        if (rank == 0)
            CROWD_REFUSED(crowd, session, weft_wait(&request, 30), WEFT_ERR_DEADLINE,
                          "recv (1 elements of i32) waits for rank 1");
        pthread_barrier_wait(&crowd->meet);
        if (rank == 1) CROWD_OK(crowd, session, weft_call_start(session, &call, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
    }
    CROWD_OK(crowd, session, weft_comm_free(comm));
}

static void test_impatient(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, impatient);
    assert_int_equal(crowd.failures, 0);
}

/* An abort, from another rank or another thread of this one. */
static void *abort_soon(void *session)
{
    usleep(20000);
    weft_abort(session, "enough");
    return NULL;
}

static void aborted(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    pthread_t thread;
    int32_t word;
    bool here = crowd->user != NULL;
    pthread_barrier_wait(&crowd->meet);
    CROWD_OK(crowd, session, weft_recv(session, &word, 1, WEFT_I32, !rank, &request));
    bool aborts = rank == (here ? 0 : 1);
    if (aborts) pthread_create(&thread, NULL, abort_soon, session);
    CROWD_CHECK(crowd, session, weft_wait(&request, 0) == WEFT_ERR_ABORTED);
    if (aborts) pthread_join(thread, NULL);
}

static void test_aborted(void **state)
{
    for (int here = 0; here < 2; here++) {
        struct crowd crowd = {.user = here ? &crowd : NULL};
        crowd_run(&crowd, 2, aborted);
        assert_int_equal(crowd.failures, 0);
    }
}

/* A cancelled thread sends to a rank that mostly sleeps: the wake-up is a cancellation point. */
enum { CANCELLED = 100 };
struct last_send {
    struct weft_session *session;
    int32_t word;
};

static void *send_cancelled(void *argument)
{
    struct last_send *last = argument;
    struct weft_request request = {{0}};
    pthread_cancel(pthread_self());
    (void)weft_send(last->session, &last->word, 1, WEFT_I32, 1, &request);
    (void)weft_wait(&request, 0);
    pthread_testcancel();
    return NULL;
}

static void cancelled(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    for (int32_t round = 0; round < CANCELLED; round++) {
        struct last_send last = {session, round};
        struct weft_request request = {{0}};
        int32_t word = -1;
        pthread_t thread;
        void *result = NULL;
        if (rank == 0) {
            pthread_create(&thread, NULL, send_cancelled, &last);
            pthread_join(thread, &result);
            CROWD_CHECK(crowd, session, result == PTHREAD_CANCELED);
        } else {
            CROWD_OK(crowd, session, weft_recv(session, &word, 1, WEFT_I32, 0, &request));
            CROWD_OK(crowd, session, weft_wait(&request, 0));
            CROWD_CHECK(crowd, session, word == round);
        }
    }
    struct weft_request request = {{0}};
    if (!CROWD_OK(crowd, session, weft_barrier(session, &request))) return;
    CROWD_OK(crowd, session, weft_wait(&request, 0));
}

static void test_cancelled(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, cancelled);
    assert_int_equal(crowd.failures, 0);
}

/* An open recv when the session ends. */
static void left_open(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct weft_request requests[2];
    static int32_t words[2];
    pthread_barrier_wait(&crowd->meet); /* the first to finalize ends the job */
    CROWD_OK(crowd, session, weft_recv(session, &words[rank], 1, WEFT_I32, !rank, &requests[rank]));
    pthread_barrier_wait(&crowd->meet);
}

static void test_left_open(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, left_open);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),    cmocka_unit_test(test_leaver),
        cmocka_unit_test(test_persistent),   cmocka_unit_test(test_full_of_others),
        cmocka_unit_test(test_own_deadline), cmocka_unit_test(test_impatient),
        cmocka_unit_test(test_aborted),      cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_left_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
