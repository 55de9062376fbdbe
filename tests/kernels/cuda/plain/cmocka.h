/* cmocka.h - as much of cmocka as the tests of the kernels use, where the library is not at hand: the same
 * test files then build into kernel_check with a compiler alone. A test ends at its first failed
 * assertion. */
#ifndef WEFT_TESTS_PLAIN_CMOCKA_H
#define WEFT_TESTS_PLAIN_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

extern jmp_buf plain_failed; /* kernel_check.c */

#define cmocka_unit_test(function) {#function, function}
#define cmocka_run_group_tests(tests, setup, teardown) plain_run(tests, sizeof(tests) / sizeof((tests)[0]))
int plain_run(const struct CMUnitTest *tests, size_t count);

#define fail_msg(...)                                        \
    do {                                                     \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);      \
        fprintf(stderr, __VA_ARGS__);                        \
        fputc('\n', stderr);                                 \
        longjmp(plain_failed, 1);                            \
    } while (0)
#define fail() fail_msg("failed")
#define assert_true(x)                          \
    do {                                        \
        if (!(x)) fail_msg("%s is false", #x);  \
    } while (0)
#define assert_null(x) assert_true((x) == NULL)
#define assert_non_null(x) assert_true((x) != NULL)
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))
#define assert_int_equal(a, b)                                                                           \
    do {                                                                                                 \
        const unsigned long long left_ = (unsigned long long)(a), right_ = (unsigned long long)(b);      \
        if (left_ != right_) fail_msg("%s is %#llx, %s is %#llx", #a, left_, #b, right_);                \
    } while (0)
#define assert_string_equal(a, b)                                               \
    do {                                                                        \
        if (strcmp(a, b) != 0) fail_msg("'%s' is not '%s'", (a), (b));          \
    } while (0)
#define assert_memory_equal(a, b, bytes)                                                     \
    do {                                                                                     \
        if (memcmp(a, b, bytes) != 0) fail_msg("the bytes of %s and %s differ", #a, #b);     \
    } while (0)
#define assert_memory_not_equal(a, b, bytes)                                                 \
    do {                                                                                     \
        if (memcmp(a, b, bytes) == 0) fail_msg("the bytes of %s and %s are equal", #a, #b);  \
    } while (0)
#define test_malloc malloc
#define test_free free

#endif
