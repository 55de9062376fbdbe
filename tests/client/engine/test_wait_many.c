/* test_wait_many.c - weft_wait_any and weft_wait_all. */
#include "tests/lib/check.h"

#include <string.h>

#include "client/session/session.h"
#include "tests/client/crowd.h"

enum { COUNT = 4 };

/* Rank 0 receives COUNT numbers. Rank 1 sends them in another order, each after the previous one was
 * received. */
static void any(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request requests[COUNT], none = {{0}}, *waited[COUNT + 1];
    int32_t values[COUNT] = {0}, word = 1;
    size_t index = 0;
    memset(requests, 0, sizeof requests);
    if (rank == 1) {
        for (int i = 0; i < COUNT; i++) {
            values[i] = 10 + i;
            CROWD_OK(crowd, session, weft_recv(session, &word, 1, WEFT_I32, 0, &none));
            CROWD_OK(crowd, session, weft_wait(&none, 0));
            CROWD_OK(crowd, session, weft_send(session, &values[i], 1, WEFT_I32, 0, &requests[i]));
        }
        for (int i = 0; i < COUNT; i++) waited[i] = &requests[i];
        CROWD_OK(crowd, session, weft_wait_all(waited, COUNT, 0));
        return;
    }
    for (int i = 0; i < COUNT; i++) {
        CROWD_OK(crowd, session, weft_recv(session, &values[i], 1, WEFT_I32, 1, &requests[i]));
        waited[COUNT - i] = &requests[i]; /* the first request to complete is the last entry */
    }
    waited[0] = &none; /* never started */
    CROWD_REFUSED(crowd, session, weft_wait_any(waited, COUNT + 1, 20, &index), WEFT_ERR_DEADLINE, "recv");
    CROWD_CHECK(crowd, session, index == SIZE_MAX);
    CROWD_REFUSED(crowd, session, weft_wait_all(waited, COUNT + 1, 20), WEFT_ERR_DEADLINE, "recv");
    for (int i = 0; i < COUNT; i++) {
        struct weft_request go = {{0}};
        CROWD_OK(crowd, session, weft_send(session, &word, 1, WEFT_I32, 1, &go));
        CROWD_OK(crowd, session, weft_wait_any(waited, COUNT + 1, 0, &index));
        CROWD_CHECK(crowd, session, index == (size_t)(COUNT - i) && values[i] == 10 + i);
        if (index <= COUNT) waited[index] = NULL;
        CROWD_OK(crowd, session, weft_wait(&go, 0));
    }
    CROWD_OK(crowd, session, weft_wait_any(waited, COUNT + 1, 0, &index));
    CROWD_CHECK(crowd, session, index == SIZE_MAX);
    CROWD_OK(crowd, session, weft_wait_all(waited, COUNT + 1, 0));
}

/* One of several requests fails: wait_all and wait_any return its sentence, and all requests complete. */
static void failing(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request requests[3], *waited[3];
    float x[3] = {1, 1, 1};
    size_t index = 0;
    memset(requests, 0, sizeof requests);
    CROWD_OK(crowd, session, weft_recv(session, &x[0], 1, WEFT_F32, 1 - rank, &requests[0]));
    for (int i = 0; i < 3; i++) waited[i] = &requests[i];
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) weft_abort(session, "for this test");
    enum weft_status status = weft_wait_any(waited, 3, 0, &index);
    CROWD_CHECK(crowd, session,
                status == WEFT_ERR_ABORTED && strstr(weft_error_text(session), "for this test"));
    status = weft_wait_all(waited, 3, 0);
    CROWD_CHECK(crowd, session,
                status == WEFT_ERR_ABORTED && strstr(weft_error_text(session), "for this test"));
    CROWD_CHECK(crowd, session, weft_test(&requests[0]) == WEFT_ERR_ABORTED);
}

static void run_two(crowd_fn fn)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, fn);
    assert_int_equal(crowd.failures, 0);
}

static void test_any_and_all(void **state) { (void)state; run_two(any); }
static void test_errors(void **state) { (void)state; run_two(failing); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_and_all), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
