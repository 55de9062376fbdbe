/* test_death.c - a process dies by SIGKILL at each step of an operation: `test_death METHOD`: tcp or shm
 * (lanes of UCX), or weft's own shared memory: mapped, cma, granted, staged; auto; some behind wrappers;
 * or verbs.
 *
 * Every case forks first and opens its endpoints in both processes afterwards (UCX does not survive a
 * fork). The survivor must detect the death on every path. Then every operation has completed once,
 * peer_failed ran once, and close, drain and free work. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/transport/process_pair.h"

enum { BIG = 48 << 20, FLOOD = 3000 };
enum step { IDLE, POSTED, ANNOUNCED, RECEIVING, SENDING, FLOODED, HELD };
#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

static const struct way {
    struct flavour flavour;
    bool child_memory, parent_memory; /* large buffers are from weft_memory_alloc */
} ways[] = {
    {{"tcp", "tcp"}},
    {{"ucx-tcp", "ucx", "tcp"}},
    {{"ucx-shm", "ucx", "shm"}},
    {{"mapped", "shm"}, true, true},
    {{"cma", "shm"}},
    {{"staged", "shm", .tune = "cma=off"}},
    {{"granted", "shm", .tune = "cma=off"}, false, true},
    {{"auto", "auto", "tcp"}, true, true},
    {{"auto-ucx", "auto", "tcp", .tune = "use=ucx"}},
    {{"fault-tcp", "fault:tcp"}},
    {{"delay-ucx", "delay:ucx", "tcp", .wrap = "delay_us=50,seed=3"}},
    {{"trace-mapped", "trace:shm", .wrap = "file=/dev/null"}, true, true},
    {{"fault-cma", "fault:shm"}},
    {{"verbs", "verbs"}}, /* in the virtual machine */
}, *way;

static void on_held(void *context, struct weft_arrival *arrival)
{
    struct weft_list *held = context;
    weft_list_append(held, &arrival->link);
}

/* The process that dies: does its part and then progresses for ever. */
static void child(int fd, enum step step)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct side side;
    struct op hello, work[3];
    char *big = side_alloc(way->child_memory, BIG);
    side_open(&side, &way->flavour, NULL, CHILD, fd);
    op_send(&hello, side.peer, TAG(99), NULL, "hi", 2);
    if (step == RECEIVING || step == HELD) op_send(&work[0], side.peer, TAG(1), NULL, big, BIG);
    if (step == HELD) op_send(&work[1], side.peer, TAG(2), NULL, big, 5000);
    if (step == SENDING) op_recv(&work[0], side.transport, 11, TAG(1), big, BIG);
    bool ready = false;
    for (uint64_t end_ns = net_now_ns() + WEFT_SECONDS(60); net_now_ns() < end_ns;) {
        weft_transport_progress(side.transport, 64);
        if (hello.fired && !ready) {
            ready = true;
            side_write(fd, "r", 1);
        }
    }
    _exit(3);
}

static void kill_child(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

static void expect_lost(const struct op *op)
{
    assert_int_equal(op->fired, 1);
    if (op->status != WEFT_ERR_PEER_LOST && op->status != WEFT_OK)
        fail_msg("status %s", weft_status_name(op->status));
}

static void run_case(enum step step)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        child(fds[1], step);
    }
    close(fds[1]);
    struct side side;
    struct op hello, posted, work;
    static struct op flood[FLOOD];
    char word[2], *big = side_alloc(way->parent_memory, BIG), byte;
    int taken = 0;
    side_open(&side, &way->flavour, NULL, PARENT, fds[0]);
    op_recv(&hello, side.transport, 10, TAG(99), word, 2);
    SPIN(&side, hello.fired);
    side_read(fds[0], &byte, 1);

    struct weft_list held;
    weft_list_init(&held);
    op_init(&posted);
    op_init(&work);
    if (step == POSTED) op_recv(&posted, side.transport, 10, TAG(5), word, 2);
    if (step == ANNOUNCED || step == SENDING)
        assert_int_equal(op_send(&work, side.peer, TAG(1), NULL, big, BIG), WEFT_IN_PROGRESS);
    if (step == RECEIVING)
        assert_int_equal(op_recv(&work, side.transport, 10, TAG(1), big, BIG), WEFT_IN_PROGRESS);
    if (step == HELD) {
        weft_transport_handler(side.transport, WEFT_CHANNEL_TEST, on_held, &held);
        SPIN(&side, !weft_list_empty(&held) && held.next->next != &held);
    }
    for (int i = 0; i < 12; i++) weft_transport_progress(side.transport, 1);
    if (step == FLOODED) {
        kill(pid, SIGSTOP);
        for (int i = 0; i < FLOOD; i++) {
            if (op_send(&flood[taken], side.peer, TAG(i), NULL, big, 4000) == WEFT_IN_PROGRESS) taken++;
            weft_transport_progress(side.transport, 8);
        }
        assert_true(taken > 0);
    }
    kill_child(pid);
    SPIN(&side, side.failed);
    assert_int_equal(side.failed_status, WEFT_ERR_PEER_LOST);

    if (step == POSTED) assert_int_equal(posted.fired && posted.status == WEFT_ERR_PEER_LOST, 1);
    if (step == ANNOUNCED || step == SENDING || step == RECEIVING) expect_lost(&work);
    if (step == ANNOUNCED) assert_int_equal(work.status, WEFT_ERR_PEER_LOST);
    for (int i = 0; i < taken; i++) expect_lost(&flood[i]);
    while (!weft_list_empty(&held)) {
        struct weft_arrival *arrival = weft_list_first(&held, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        assert_true(arrival->lost);
        weft_transport_discard(side.transport, arrival);
    }
    memset(big, 0xEE, BIG); /* the buffer is free: nothing may write it any more */
    for (int i = 0; i < 200; i++) weft_transport_progress(side.transport, 64);
    for (size_t i = 0; i < BIG; i++) {
        if ((unsigned char)big[i] != 0xEE) fail_msg("byte %zu was written after its completion", i);
    }
    side_release_memory(way->parent_memory, big);
    assert_int_equal(side.failed, 1);
    assert_int_equal(posted.fired + work.fired, step == IDLE || step == FLOODED || step == HELD ? 0 : 1);
    assert_int_equal(op_send(&work, side.peer, TAG(1), NULL, "x", 1), WEFT_ERR_PEER_LOST);
    side_close(&side);
    close(fds[0]);
}

static void test_idle(void **state) { run_case(IDLE); }
static void test_posted(void **state) { run_case(POSTED); }
static void test_announced(void **state) { run_case(ANNOUNCED); }
static void test_receiving(void **state) { run_case(RECEIVING); }
static void test_sending(void **state) { run_case(SENDING); }
static void test_flooded(void **state) { run_case(FLOODED); }
static void test_held(void **state) { run_case(HELD); }

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "tcp";
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].flavour.name, name) == 0) way = &ways[i];
    }
    if (!way) return 2;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle),      cmocka_unit_test(test_posted),  cmocka_unit_test(test_announced),
        cmocka_unit_test(test_receiving), cmocka_unit_test(test_sending), cmocka_unit_test(test_flooded),
        cmocka_unit_test(test_held),
    };
    return cmocka_run_group_tests_name(way->flavour.name, tests, NULL, NULL);
}
