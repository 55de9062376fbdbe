/* test_secret_file.c - modes and lengths at and beyond their bounds, and the sentence of each refusal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/lib/check.h"
#include "tests/lib/temp_dir.h"

static char *directory, path[300], secret[WEFT_SECRET_BYTES_MAX + 1];

static void write_bytes(const char *bytes, size_t count, mode_t mode)
{
    (void)unlink(path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void refuse(enum weft_status status, const char *word)
{
    struct weft_error error = {0};
    memset(secret, 'x', sizeof secret);
    assert_int_equal(weft_secret_file_read(path, secret, &error), status);
    assert_int_equal(error.status, status);
    assert_string_equal(secret, "");
    if (!strstr(error.text, word) || !strstr(error.text, path))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", error.text, word, path);
}

static void accept(const char *expected)
{
    struct weft_error error = {0};
    if (weft_secret_file_read(path, secret, &error) != WEFT_OK) fail_msg("%s", error.text);
    assert_string_equal(secret, expected);
}

static void other_users_have_no_access(void **state)
{
    static const mode_t closed[] = {0400, 0440, 0600, 0640, 0660, 0700, 0711};
    static const struct { mode_t mode; const char *word; } open_to_others[] = {
        {0604, "has mode 0604, so other users of this host can read it"},
        {0644, "has mode 0644, so other users of this host can read it"},
        {0666, "read it"},
        {0602, "has mode 0602, so other users of this host can replace it"},
    };
    for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
        write_bytes("0123456789abcdef", 16, closed[i]);
        accept("0123456789abcdef");
    }
    for (size_t i = 0; i < sizeof open_to_others / sizeof open_to_others[0]; i++) {
        write_bytes("0123456789abcdef", 16, open_to_others[i].mode);
        refuse(WEFT_ERR_INVALID, open_to_others[i].word);
    }
}

static void lengths_are_bounded(void **state)
{
    char longest[WEFT_SECRET_BYTES_MAX + 2];
    memset(longest, 's', sizeof longest);
    write_bytes("0123456789abcdef \t\r\n\n", 21, 0600);
    accept("0123456789abcdef");
    write_bytes(longest, WEFT_SECRET_BYTES_MAX, 0600);
    assert_int_equal(weft_secret_file_read(path, secret, NULL), WEFT_OK);
    assert_int_equal(strlen(secret), WEFT_SECRET_BYTES_MAX);
    write_bytes(longest, WEFT_SECRET_BYTES_MAX + 1, 0600);
    refuse(WEFT_ERR_INVALID, "one line of 16 to 4096 characters");
    write_bytes("0123456789abcde\n\n\n", 18, 0600);
    refuse(WEFT_ERR_INVALID, "one line of 16 to 4096 characters");
    write_bytes("", 0, 0600);
    refuse(WEFT_ERR_INVALID, "one line of 16");
    write_bytes("0123456789abcdef\0more", 21, 0600);
    refuse(WEFT_ERR_INVALID, "one line of 16");
}

static void unreadable_files_are_named(void **state)
{
    (void)unlink(path);
    refuse(WEFT_ERR_IO, "No such file");
    assert_int_equal(mkdir(path, 0700), 0);
    refuse(WEFT_ERR_IO, "Is a directory");
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_users_have_no_access),
        cmocka_unit_test(lengths_are_bounded),
        cmocka_unit_test(unreadable_files_are_named),
    };
    directory = temp_dir_make();
    if (!directory) return 1;
    snprintf(path, sizeof path, "%s/secret", directory);
    int failed = cmocka_run_group_tests_name("secret_file", tests, NULL, NULL);
    temp_dir_remove(directory);
    return failed;
}
