/* test_harness.c - tests of the test library. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/lib/check.h"
#include "tests/lib/fail_env.h"
#include "tests/lib/log_capture.h"
#include "tests/lib/process.h"
#include "tests/lib/temp_dir.h"

static enum weft_status two_allocations(struct weft_env *env, void *context)
{
    ++*(int *)context;
    void *a = weft_alloc_bytes(env, 10);
    if (!a) return WEFT_ERR_NO_MEMORY;
    void *b = weft_alloc_array(env, 3, 7);
    weft_free_bytes(env, b);
    weft_free_bytes(env, a);
    return b ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static void every_allocation_fails_once(void **state)
{
    int attempts = 0;
    check_failing_allocations(two_allocations, &attempts);
    assert_int_equal(attempts, 3);
    struct fail_env fail;
    fail_env_init(&fail, 2);
    void *first = weft_alloc_bytes(&fail.env, 1);
    assert_null(weft_alloc_bytes(&fail.env, 1));
    assert_int_equal(fail.live, 1);
    weft_free_bytes(&fail.env, first);
    assert_int_equal(fail.live, 0);
}

static void log_lines_are_kept(void **state)
{
    struct log_capture capture;
    log_capture_init(&capture);
    assert_false(log_capture_contains(&capture, ""));
    weft_log(&capture.env, WEFT_LOG_WARN, "lib", "seven is %d", 7);
    weft_log(&capture.env, WEFT_LOG_TRACE, "lib", "and eight");
    assert_true(log_capture_contains(&capture, "warn lib: seven is 7\ntrace lib: and eight\n"));
    log_capture_clear(&capture);
    assert_false(log_capture_contains(&capture, "seven"));
    log_capture_fini(&capture);
}

static void a_directory_is_removed_with_its_content(void **state)
{
    char *path = temp_dir_make(), inner[200], file[220];
    snprintf(inner, sizeof inner, "%s/inner", path);
    snprintf(file, sizeof file, "%s/file", inner);
    assert_int_equal(mkdir(inner, 0700), 0);
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    fclose(out);
    char *kept = strdup(path);
    temp_dir_remove(path);
    assert_int_equal(access(kept, F_OK), -1);
    assert_int_equal(errno, ENOENT);
    free(kept);
    assert_true(free_tcp_port() > 0);
}

/* Neither ended nor a zombie that init has not reaped yet. */
static bool is_running(int pid)
{
    char path[40], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    fclose(file);
    return state != 'Z' && state != 'X';
}

static void processes_are_watched(void **state)
{
    const char *const good[] = {"sh", "-c", "echo out; echo \"$WEFT_TEST_WORD\" >&2; exit 3", NULL};
    const char *const variables[] = {"WEFT_TEST_WORD=spoken", NULL};
    struct process *process = process_start(good, variables);
    assert_true(process_wait(process, 60000));
    assert_int_equal(process_exit_code(process), 3);
    assert_string_equal(process_output(process), "out\nspoken\n");
    assert_false(process_wait_output(process, "never", 60000)); /* the process has ended: no waiting */
    process_free(process);

    const char *const lasting[] = {"sh", "-c", "sleep 1000 & echo child $!. ready; wait", NULL};
    process = process_start(lasting, NULL);
    assert_true(process_wait_output(process, "ready", 60000));
    assert_false(process_wait(process, 20));
    int child = 0;
    assert_int_equal(sscanf(process_output(process), "child %d", &child), 1);
    assert_true(is_running(child));
    process_signal(process, SIGTERM);
    assert_true(process_wait(process, 60000));
    assert_int_equal(process_exit_code(process), 128 + SIGTERM);
    process_free(process); /* also kills the sleep in the background */
    for (int i = 0; i < 6000 && is_running(child); i++) usleep(10000);
    assert_false(is_running(child));

    const char *const missing[] = {"/nonexistent/program", NULL};
    process = process_start(missing, NULL);
    assert_true(process_wait(process, 60000));
    assert_int_equal(process_exit_code(process), 127);
    assert_non_null(strstr(process_output(process), "cannot start /nonexistent/program"));
    process_free(process);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(log_lines_are_kept),
        cmocka_unit_test(a_directory_is_removed_with_its_content),
        cmocka_unit_test(processes_are_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
