/* test_limits.c - a limit that is reached is named, with its value and the setting to raise. */
#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "weft/weft.h"

static void test_notes(void **state)
{
    char value[32];
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    snprintf(value, sizeof value, "all %llu open files", (unsigned long long)limit.rlim_cur);
    assert_null(strstr(weft_reason_text(WEFT_ERR_LIMIT), "a named limit"));
    assert_int_equal(weft_limit_status("a ring", EMFILE), WEFT_ERR_LIMIT);
    assert_non_null(strstr(weft_reason_text(WEFT_ERR_LIMIT), value));
    assert_non_null(strstr(weft_reason_text(WEFT_ERR_LIMIT), "ulimit -n"));
    assert_int_equal(weft_limit_status("the engine", EAGAIN), WEFT_ERR_LIMIT);
    assert_non_null(strstr(weft_reason_text(WEFT_ERR_LIMIT), "ulimit -u"));
    assert_int_equal(weft_limit_status("a ring", ENOMEM), WEFT_ERR_NO_MEMORY);
    assert_string_equal(weft_reason_text(WEFT_ERR_NO_MEMORY), weft_status_text(WEFT_ERR_NO_MEMORY));
    assert_int_equal(weft_limit_note("%d hosts\nat most", 7), WEFT_ERR_LIMIT);
    assert_string_equal(weft_reason_text(WEFT_ERR_LIMIT), "7 hosts\\nat most");
}

static void test_error(void **state)
{
    struct weft_error error;
    weft_limit_note("another limit");
    assert_int_equal(weft_limit_error(&error, "a ring", EMFILE, "port %u cannot open", 7), WEFT_ERR_LIMIT);
    assert_int_equal(strncmp(error.text, "port 7 cannot open: no descriptor for a ring: ", 46), 0);
}

/* Runs in a process of its own. 0: the sentence names the limit; 1: enough descriptors; 2: the sentence
 * does not name it. */
static int join_with(unsigned descriptors)
{
    struct weft_options options;
    struct weft_session *session = NULL;
    const struct rlimit limit = {descriptors, descriptors};
    weft_options_init(&options);
    options.coordinator = "127.0.0.1:9"; /* no process listens there */
    options.deadline_ms = 100;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    const enum weft_status status = weft_init(&options, &session);
    const char *text = weft_error_text(NULL);
    if (status != WEFT_ERR_LIMIT) return status < 0 && !strstr(text, "a named limit") ? 1 : 2;
    if (strstr(text, "ulimit -n") && !strstr(text, "a named limit")) return 0;
    fprintf(stderr, "with %u descriptors: %s\n", descriptors, text);
    return 2;
}

static void test_few_descriptors(void **state)
{
    int limit_named = 0;
    for (unsigned descriptors = 4; descriptors < 16; descriptors++) {
        int status = -1;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) _exit(10 + join_with(descriptors));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status)); /* the library did not exit for lack of descriptors */
        assert_in_range(WEXITSTATUS(status), 10, 11);
        limit_named += WEXITSTATUS(status) == 10;
    }
    assert_true(limit_named > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_notes), cmocka_unit_test(test_error),
                                       cmocka_unit_test(test_few_descriptors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
