/* test_process_id.c - the cached id is the calling process's, also in forked children and their children. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/lib/check.h"

static int ask_in_a_child(int generations)
{
    pid_t parent = getpid(), child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        /* asks the kernel first, then reads the cache */
        bool right = weft_process_id() == getpid() && weft_process_id() != parent;
        _exit(!right || (generations > 1 && ask_in_a_child(generations - 1) != 0));
    }
    int status = 1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void a_fork_is_another_process(void **state)
{
    for (int i = 0; i < 3; i++) assert_int_equal(weft_process_id(), getpid());
    assert_int_equal(ask_in_a_child(3), 0);
    assert_int_equal(weft_process_id(), getpid());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_fork_is_another_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
