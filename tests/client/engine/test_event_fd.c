/* test_event_fd.c - weft_event_fd: programs with an event loop of their own, which never wait in a weft
 * call. */
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "client/session/session.h"
#include "tests/client/crowd.h"

enum { RANKS = 2, CALLS = 3, LARGE = 1 << 20, PATIENCE_MS = 15000 };

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, timeout_ms) == 1 && (polled.revents & POLLIN);
}

/* The loop of such a program: sleep in epoll, clear, test. Returns whether all requests have completed
 * well. */
static bool complete(struct weft_session *session, int fd, struct weft_request *requests, size_t count)
{
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    size_t done = 0;
    bool well = epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
    while (well && done < count) {
        well = epoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && weft_event_clear(session) == WEFT_OK;
        while (well && done < count) {
            enum weft_status status = weft_test(&requests[done]);
            if (status == WEFT_IN_PROGRESS) break;
            well = status == WEFT_OK;
            done++;
        }
    }
    close(epoll);
    return well;
}

/* Operations of all lengths; each rank calls first in turn; alone and as a group of calls. */
static void collectives(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const uint64_t counts[] = {1, 1000, LARGE};
    float *values = calloc(CALLS * (size_t)LARGE, sizeof *values);
    struct weft_request requests[CALLS];
    int fd = -1, again = -1;
    memset(requests, 0, sizeof requests);
    CROWD_OK(crowd, session, weft_event_fd(session, &fd));
    CROWD_OK(crowd, session, weft_event_fd(session, &again));
    CROWD_CHECK(crowd, session,
                fd >= 0 && again == fd && is_readable(fd, 0) && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    for (uint32_t turn = 0; turn < 2 * CALLS * RANKS; turn++) {
        uint64_t count = counts[turn / 2 % CALLS];
        bool grouped = turn / 2 / CALLS % 2;
        for (int i = 0; i < CALLS; i++) values[(size_t)i * LARGE] = 1 + (float)i;
        if (turn % RANKS != rank) pthread_barrier_wait(&crowd->meet); /* the other rank has called */
        if (grouped) CROWD_OK(crowd, session, weft_group_start(session));
        for (int i = 0; i < CALLS; i++) {
            float *own = values + (size_t)i * LARGE;
            CROWD_OK(crowd, session,
                     weft_all_reduce(session, own, own, count, WEFT_F32, WEFT_SUM, &requests[i]));
        }
        if (grouped) CROWD_OK(crowd, session, weft_group_end(session));
        if (turn % RANKS == rank) pthread_barrier_wait(&crowd->meet);
        CROWD_CHECK(crowd, session, complete(session, fd, requests, CALLS));
        for (int i = 0; i < CALLS; i++)
            CROWD_CHECK(crowd, session, values[(size_t)i * LARGE] == RANKS * (1 + (float)i));
    }
    free(values);
}

/* A cleared descriptor is not readable until a request completes. */
static void quiet(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    int fd = -1;
    int32_t value = 5;
    CROWD_REFUSED(crowd, session, weft_event_clear(session), WEFT_ERR_STATE, "weft_event_fd");
    CROWD_OK(crowd, session, weft_event_fd(session, &fd));
    CROWD_OK(crowd, session, weft_event_clear(session));
    CROWD_OK(crowd, session, weft_event_clear(session)); /* also without an event */
    if (rank == 0) CROWD_OK(crowd, session, weft_recv(session, &value, 1, WEFT_I32, 1, &request));
    CROWD_CHECK(crowd, session, !is_readable(fd, 30));
    pthread_barrier_wait(&crowd->meet);
    if (rank == 1) CROWD_OK(crowd, session, weft_send(session, &(int32_t){9}, 1, WEFT_I32, 0, &request));
    CROWD_CHECK(crowd, session, complete(session, fd, &request, 1));
    CROWD_CHECK(crowd, session, value == (rank == 0 ? 9 : 5));
    CROWD_CHECK(crowd, session, !is_readable(fd, 0));
}

/* The requests of a failed session complete, and the descriptor becomes readable. */
static void failing(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_request request = {{0}};
    int fd = -1;
    int32_t value = 0;
    CROWD_OK(crowd, session, weft_event_fd(session, &fd));
    CROWD_OK(crowd, session, weft_event_clear(session));
    CROWD_OK(crowd, session, weft_recv(session, &value, 1, WEFT_I32, 1 - rank, &request));
    pthread_barrier_wait(&crowd->meet);
    if (rank == 0) weft_abort(session, "for this test");
    CROWD_CHECK(crowd, session, is_readable(fd, PATIENCE_MS));
    CROWD_CHECK(crowd, session, weft_test(&request) == WEFT_ERR_ABORTED);
}

/* The descriptor is the session's. */
static void closing(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    int fd = -1;
    CROWD_OK(crowd, session, weft_event_fd(session, &fd));
    crowd->sessions[rank] = NULL;
    CROWD_CHECK(crowd, NULL, weft_finalize(session) == WEFT_OK);
    CROWD_CHECK(crowd, NULL, fcntl(fd, F_GETFD) < 0 && errno == EBADF);
}

static void run(uint32_t workers, crowd_fn fn)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, workers, fn);
    assert_int_equal(crowd.failures, 0);
}

static void test_collectives(void **state)
{
    (void)state;
    run(RANKS, collectives);
}
static void test_quiet(void **state)
{
    (void)state;
    run(RANKS, quiet);
}
static void test_failing(void **state)
{
    (void)state;
    run(RANKS, failing);
}
static void test_closing(void **state)
{
    (void)state;
    run(1, closing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collectives), cmocka_unit_test(test_quiet),
                                       cmocka_unit_test(test_failing), cmocka_unit_test(test_closing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
