/* test_kills.c - a process is killed before and after each change of the folder: the snapshot before stays
 * whole, and the new one is whole or absent. Then the folder takes a further snapshot and a prune. */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/temp_dir.h"
#include "tests/snapshot/snapshot_fixture.h"

#include "tests/lib/check.h"

/* In the child: changes so far, and the one to die at; 0: none. */
static int changes, die_at;
static bool dies_after;

static void before(void)
{
    if (++changes == die_at && !dies_after) raise(SIGKILL);
}
static void after(void)
{
    if (changes == die_at && dies_after) raise(SIGKILL);
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    before();
    /* half of the bytes reach the file */
    if (changes == die_at && dies_after) (void)!__real_write(fd, data, bytes / 2);
    after();
    return __real_write(fd, data, bytes);
}

#define WRAP(name, parameters, arguments)           \
    int __real_##name parameters;                   \
    int __wrap_##name parameters;                   \
    int __wrap_##name parameters                    \
    {                                               \
        before();                                   \
        const int result = __real_##name arguments; \
        after();                                    \
        return result;                              \
    }
WRAP(fsync, (int fd), (fd))
WRAP(rename, (const char *from, const char *to), (from, to))
WRAP(unlink, (const char *path), (path))
WRAP(mkdir, (const char *path, mode_t mode), (path, mode))

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (flags & O_CREAT) before();
    const int fd = __real_open(path, flags, mode);
    if (flags & O_CREAT) after();
    return fd;
}

/* What a job does: a snapshot on the base of the one before, then a prune that keeps two. */
static bool run(const char *folder)
{
    struct weft_error error = {0};
    struct weft_snapshot_prune_result result;
    return fixture_save(folder, 3, 2, &error) == WEFT_OK &&
           weft_snapshot_prune(weft_env_system(), folder, 2, 0, &result, &error) == WEFT_OK;
}

/* Returns whether the child was killed. */
static bool run_child(const char *folder, int at, bool is_after)
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        changes = 0;
        die_at = at;
        dies_after = is_after;
        _exit(run(folder) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) return true;
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

static void test_kills(void **state)
{
    for (int is_after = 0; is_after < 2; is_after++) {
        bool was_killed = true;
        for (int at = 1; was_killed; at++) {
            char *folder = temp_dir_make();
            struct weft_error error = {0};
            uint64_t *steps;
            uint32_t count;
            assert_int_equal(fixture_save(folder, 1, 0, &error), WEFT_OK);
            assert_int_equal(fixture_save(folder, 2, 0, &error), WEFT_OK);
            was_killed = run_child(folder, at, is_after);
            assert_int_equal(weft_snapshot_steps(weft_env_system(), folder, &steps, &count, &error), WEFT_OK);
            assert_true(count >= 2 && steps[count - 1] >= 2);
            for (uint32_t i = 0; i < count; i++)
                if (!fixture_is_whole(folder, steps[i], &error))
                    fail_msg("killed at change %d: step %d: %s", at, (int)steps[i], error.text);
            weft_free_bytes(weft_env_system(), steps);
            assert_true(run(folder)); /* over what the killed process left */
            assert_true(fixture_is_whole(folder, 3, &error));
            assert_true(fixture_is_whole(folder, 2, &error));
            temp_dir_remove(folder);
            if (!was_killed)
                assert_true(at > 10); /* parts, writes, flushes and renames of piece and manifest */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kills)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
