/* test_process_identity.c - a process is dead from its exit on, also as a zombie; others are unknown. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/lib/check.h"

static enum weft_process_state state_of(const struct weft_process_identity *identity)
{
    return weft_process_state(weft_env_system(), identity);
}

static void this_process_is_alive(void **state)
{
    struct weft_process_identity own, decoded;
    uint8_t bytes[WEFT_PROCESS_IDENTITY_BYTES];
    weft_process_identify(weft_env_system(), &own);
    assert_true(own.space != 0);
    assert_int_equal(own.pid, getpid());
    assert_int_equal(state_of(&own), WEFT_PROCESS_ALIVE);
    weft_process_identity_encode(&own, bytes);
    weft_process_identity_decode(bytes, &decoded);
    assert_memory_equal(&own, &decoded, sizeof own);
}

/* Starts a child that writes its identity and waits to be killed. */
static pid_t start_child(struct weft_process_identity *identity_out)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct weft_process_identity own;
        weft_process_identify(weft_env_system(), &own);
        if (write(ends[1], &own, sizeof own) != sizeof own) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ends[0], identity_out, sizeof *identity_out), sizeof *identity_out);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void a_killed_process_is_dead(void **state)
{
    struct weft_process_identity child;
    siginfo_t info;
    const pid_t pid = start_child(&child);
    assert_int_equal(child.pid, pid);
    assert_int_equal(state_of(&child), WEFT_PROCESS_ALIVE);
    kill(pid, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(state_of(&child), WEFT_PROCESS_DEAD); /* a zombie */
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(state_of(&child), WEFT_PROCESS_DEAD);
}

static void a_reused_pid_is_another_process(void **state)
{
    struct weft_process_identity own;
    weft_process_identify(weft_env_system(), &own);
    own.start--;
    assert_int_equal(state_of(&own), WEFT_PROCESS_DEAD);
}

static void processes_elsewhere_are_unknown(void **state)
{
    struct weft_process_identity own;
    weft_process_identify(weft_env_system(), &own);
    struct weft_process_identity other_host = {.space = own.space + 1, .pid = own.pid, .start = own.start};
    struct weft_process_identity none = {.pid = own.pid, .start = own.start};
    assert_int_equal(state_of(&other_host), WEFT_PROCESS_UNKNOWN);
    assert_int_equal(state_of(&none), WEFT_PROCESS_UNKNOWN);
    own.pid = UINT64_MAX;
    assert_int_equal(state_of(&own), WEFT_PROCESS_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_process_is_alive),
        cmocka_unit_test(a_killed_process_is_dead),
        cmocka_unit_test(a_reused_pid_is_another_process),
        cmocka_unit_test(processes_elsewhere_are_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
