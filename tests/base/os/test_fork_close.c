/* test_fork_close.c - a forked child has no copy of an added descriptor, and has those that were removed or
 * not added. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fork_close.h"
#include "tests/lib/check.h"

static bool open_in_child(int fd)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) _exit(fcntl(fd, F_GETFD) >= 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status) == 1;
}

static void added_and_removed(void **state)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(open_in_child(ends[0]));
    fork_close_add(ends[0]);
    assert_false(open_in_child(ends[0]));
    assert_true(open_in_child(ends[1]));
    assert_true(fcntl(ends[0], F_GETFD) >= 0); /* the parent keeps it */
    fork_close_remove(ends[0]);
    fork_close_remove(ends[0]);
    assert_true(open_in_child(ends[0]));
    fork_close_add(-1);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(added_and_removed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
