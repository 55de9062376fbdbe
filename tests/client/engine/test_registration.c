/* test_registration.c - weft_register and weft_unregister, and how a transport hands them to its backend. */
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

#include "client/session/session.h"
#include "tests/client/crowd.h"
#include "transport/core/core.h"

enum { RANKS = 2, ELEMS = 1 << 18, RANGES = 40 };

/* ---- a backend that records its calls ---- */

static struct {
    void *address[2];
    size_t bytes[2];
    uint32_t kept, ended;
    bool refuses;
} seen;

static enum weft_status keep(struct weft_transport *transport, void *address, size_t bytes, void **kept_out,
                             struct weft_error *error)
{
    (void)transport;
    if (seen.refuses) return weft_error_set(error, WEFT_ERR_LIMIT, "no more memory can be locked");
    assert_true(seen.kept < 2);
    seen.address[seen.kept] = address;
    seen.bytes[seen.kept] = bytes;
    *kept_out = &seen.address[seen.kept++];
    return WEFT_OK;
}

static void keep_end(struct weft_transport *transport, void *kept)
{
    (void)transport;
    assert_true(kept == &seen.address[0] || kept == &seen.address[1]);
    seen.ended++;
}

static void test_backend(void **state)
{
    (void)state;
    const struct weft_transport_ops ops = {.memory = {.pin = keep, .unpin = keep_end}},
                                    none = {.name = "none"};
    struct weft_transport transport = {.env = weft_env_system(), .ops = &ops};
    struct weft_registration *first = NULL, *second = NULL;
    struct weft_error error = {0};
    char memory[64];
    memset(&seen, 0, sizeof seen);
    core_registrations_init(&transport);
    assert_int_equal(weft_transport_register(&transport, memory, 0, &first, &error), WEFT_ERR_INVALID);
    assert_int_equal(weft_transport_register(&transport, memory, SIZE_MAX, &first, &error), WEFT_ERR_INVALID);
    assert_int_equal(weft_transport_register(&transport, memory, 64, &first, &error), WEFT_OK);
    assert_int_equal(weft_transport_register(&transport, memory + 8, 16, &second, &error), WEFT_OK);
    assert_true(seen.kept == 2 && seen.address[1] == memory + 8 && seen.bytes[0] == 64 &&
                seen.bytes[1] == 16);
    seen.refuses = true;
    struct weft_registration *third = NULL;
    struct weft_error refused = {0};
    assert_int_equal(weft_transport_register(&transport, memory, 64, &third, &refused), WEFT_ERR_LIMIT);
    assert_true(third == NULL && strstr(refused.text, "locked"));
    weft_transport_unregister(first);
    assert_int_equal(seen.ended, 1);
    core_registrations_free(&transport); /* the second one */
    assert_int_equal(seen.ended, 2);
    transport.ops = &none;
    assert_int_equal(weft_transport_register(&transport, memory, 64, &first, &error), WEFT_OK);
    weft_transport_unregister(first);
    assert_int_equal(seen.ended, 2);
}

/* ---- in a session ---- */

/* Operations on registered memory, on a part of it, and after it was unregistered. */
static void session(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    float *values = malloc(ELEMS * sizeof *values);
    struct weft_request request = {{0}};
    for (int turn = 0; turn < 3; turn++) {
        float *own = values + (turn == 1 ? 100 : 0);
        uint64_t count = turn == 1 ? 5000 : ELEMS;
        if (turn < 2) CROWD_OK(crowd, session, weft_register(session, values, ELEMS * sizeof *values));
        for (uint64_t i = 0; i < count; i++) own[i] = (float)(rank + 1);
        CROWD_OK(crowd, session, weft_all_reduce(session, own, own, count, WEFT_F32, WEFT_SUM, &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        CROWD_CHECK(crowd, session, own[0] == 3 && own[count - 1] == 3);
        if (turn < 2) CROWD_OK(crowd, session, weft_unregister(session, values));
        CROWD_REFUSED(crowd, session, weft_unregister(session, values), WEFT_ERR_NOT_FOUND, "not registered");
    }
    for (int i = 0; i < RANGES; i++) CROWD_OK(crowd, session, weft_register(session, values + i, 4096));
    CROWD_REFUSED(crowd, session, weft_register(session, values + 1, 8), WEFT_ERR_EXISTS,
                  "registered already");
    CROWD_OK(crowd, session, weft_unregister(session, values + RANGES / 2));
    crowd->sessions[rank] = NULL;
    CROWD_CHECK(crowd, NULL, weft_finalize(session) == WEFT_OK); /* the other ranks finalize here */
    free(values);
}

/* A failed session refuses a new registration, and releases old ones at its end. */
static void failing(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static _Thread_local char memory[2][4096];
    CROWD_OK(crowd, session, weft_register(session, memory[0], sizeof memory[0]));
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) weft_abort(session, "for this test");
    struct weft_request request = {{0}};
    int32_t value;
    (void)(weft_recv(session, &value, 1, WEFT_I32, 1 - rank, &request) >= 0 &&
           weft_wait(&request, 0) == WEFT_OK);
    CROWD_REFUSED(crowd, session, weft_register(session, memory[1], sizeof memory[1]), WEFT_ERR_ABORTED,
                  "for this test");
    CROWD_OK(crowd, session, weft_unregister(session, memory[0]));
}

static void run(crowd_fn fn)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, fn);
    assert_int_equal(crowd.failures, 0);
}

static void test_session(void **state)
{
    (void)state;
    run(session);
}
static void test_failing(void **state)
{
    (void)state;
    run(failing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_backend), cmocka_unit_test(test_session),
                                       cmocka_unit_test(test_failing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
