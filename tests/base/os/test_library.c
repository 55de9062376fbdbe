/* test_library.c - which functions an opened shared object calls. Built three times: as an ordinary program,
 * at a fixed address with the address of malloc taken, and with its own allocator. */
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/library.h"
#include "tests/lib/check.h"
#include "weft/status.h"

extern char **environ;

int apart_number(void);
WEFT_API int apart_number(void)
{
    return 2;
}

static void *(*volatile take)(size_t bytes);

static void *open_apart(void)
{
    void *library = weft_library_open(APART);
    if (!library) fail_msg("%s", dlerror());
    return library;
}

/* The object does not call the program's functions, unless the program has its own malloc. */
static void whose_functions(void **state)
{
    void *library = open_apart(), *memory;
    take = malloc; /* a program at a fixed address gets an undefined entry for malloc, with an address */
    memory = take(8);
    int (*ask)(void) = (int (*)(void))(uintptr_t)dlsym(library, "apart_ask");
    int (*copy)(const char *text) = (int (*)(const char *))(uintptr_t)dlsym(library, "apart_copy");
    assert_non_null(ask);
    assert_non_null(copy);
#ifdef MALLOC_REPLACED
    assert_int_equal(ask(), 2);
#else
    assert_int_equal(ask(), 1);
#endif
    for (int i = 0; i < 100; i++) assert_true(copy("allocated there, freed here"));
    free(memory);
}

/* The object's symbols are not visible to the program. */
static void whose_symbols(void **state)
{
    open_apart();
    assert_null(dlsym(RTLD_DEFAULT, "apart_ask"));
}

static void missing_file(void **state)
{
    assert_null(weft_library_open("/nonexistent/libapart.so"));
    assert_non_null(strstr(dlerror(), "/nonexistent/libapart.so"));
}

static void folders(void **state)
{
    char folder[PATH_MAX], expected[PATH_MAX];
    assert_true(weft_library_folder(dlsym(open_apart(), "apart_ask"), folder, sizeof folder));
    assert_non_null(realpath(APART, expected));
    *strrchr(expected, '/') = 0;
    assert_string_equal(folder, expected);
    /* the program itself, also after chdir */
    assert_int_equal(chdir("/"), 0);
    assert_true(weft_library_folder((void *)(uintptr_t)&apart_number, folder, sizeof folder));
    assert_string_equal(folder, expected);
    assert_false(weft_library_folder((void *)(uintptr_t)&apart_number, folder, strlen(expected)));
    assert_false(weft_library_folder(&folder, folder, sizeof folder));
}

/* The object's `environ` is the program's, whichever copy it reads. */
static void the_environment(void **state)
{
    void *library = open_apart();
    char **(*environment)(void) = (char **(*)(void))(uintptr_t)dlsym(library, "apart_environment");
    int found = 0;
    assert_non_null(environment);
    assert_non_null(environ);
    assert_int_equal(setenv("WEFT_TEST_LIBRARY", "set by the program", 1), 0);
    for (char **entry = weft_environment(); *entry; entry++)
        found += strcmp(*entry, "WEFT_TEST_LIBRARY=set by the program") == 0;
    assert_int_equal(found, 1);
    assert_ptr_equal(environment(), environ);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whose_functions), cmocka_unit_test(whose_symbols), cmocka_unit_test(missing_file),
        cmocka_unit_test(the_environment), cmocka_unit_test(folders), /* changes the directory: last */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
