/* test_thread.c - threads of the library block all signals except their own faults. */
#include <pthread.h>
#include <signal.h>

#include "base/base.h"
#include "tests/lib/check.h"

struct seen {
    sigset_t blocked;
};

static void *look(void *argument)
{
    struct seen *seen = argument;
    pthread_sigmask(SIG_BLOCK, NULL, &seen->blocked);
    return NULL;
}

static void signals_of_a_thread(void **state)
{
    pthread_t thread;
    struct seen seen;
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(weft_thread_start(&thread, "weft looks", look, &seen), 0);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    pthread_join(thread, NULL);
    const int theirs[] = {SIGTERM, SIGINT, SIGUSR1, SIGCHLD, SIGPIPE, SIGALRM},
              own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
        assert_int_equal(sigismember(&seen.blocked, theirs[i]), 1);
        /* the caller's mask is unchanged */
        assert_int_equal(sigismember(&after, theirs[i]), sigismember(&before, theirs[i]));
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        assert_int_equal(sigismember(&seen.blocked, own[i]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(signals_of_a_thread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
