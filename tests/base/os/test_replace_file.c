/* test_replace_file.c - a file is replaced whole; a link stays a link; a device and a pipe stay what they
 * are. Devices are named by links in a folder of the test, so that no fault can replace a real device. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/replace_file.h"
#include "tests/lib/check.h"

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[2][128];
    static unsigned turn;
    snprintf(path[++turn % 2], sizeof path[0], "%s/%s", folder, name);
    return path[turn % 2];
}

static int make_folder(void **state)
{
    strcpy(folder, "/tmp/weft-replace-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

/* Asserts that the folder has the files of the test and no part. */
static int remove_folder(void **state)
{
    static const char *const names[] = {"file", "link", "pipe", "out"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) (void)unlink(in_folder(names[i]));
    return rmdir(folder);
}

static void assert_content(const char *path, const char *expected)
{
    char text[64] = "";
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, text, sizeof text - 1), strlen(expected));
    assert_string_equal(text, expected);
    close(fd);
}

static mode_t mode_of(const char *path)
{
    struct stat about;
    assert_int_equal(lstat(path, &about), 0);
    return about.st_mode;
}

static void a_file_is_new_or_replaced(void **state)
{
    const char *path = in_folder("file");
    const mode_t mask = umask(027);
    assert_int_equal(weft_replace_file(path, "one", 3, 0644), 0);
    umask(mask);
    assert_int_equal(mode_of(path), S_IFREG | 0640);
    assert_content(path, "one");
    assert_int_equal(weft_replace_file(path, "second", 6, 0600), 0);
    assert_content(path, "second");
    assert_int_equal(mode_of(path), S_IFREG | 0600);
}

static void a_failure_keeps_the_old_content(void **state)
{
    struct weft_replace_file file;
    const char *path = in_folder("file");
    assert_int_equal(weft_replace_file(path, "old", 3, 0644), 0);
    assert_int_equal(weft_replace_file_open(&file, path, 0644), 0);
    assert_false(file.is_in_place);
    assert_int_equal(weft_replace_file_write(&file, "n", 1), 0);
    assert_int_equal(weft_replace_file_close(&file, ENOSPC, true), ENOSPC);
    assert_content(path, "old");
}

static void a_link_stays_and_its_file_is_replaced(void **state)
{
    const char *path = in_folder("file"), *link = in_folder("link");
    assert_int_equal(weft_replace_file(path, "old", 3, 0644), 0);
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(weft_replace_file(link, "new", 3, 0644), 0);
    assert_true(S_ISLNK(mode_of(link)));
    assert_true(S_ISREG(mode_of(path)));
    assert_content(path, "new");
}

static void a_full_device_is_an_error_and_stays(void **state)
{
    struct stat before, after;
    const char *link = in_folder("link");
    assert_int_equal(symlink("/dev/full", link), 0);
    assert_int_equal(stat(link, &before), 0);
    assert_int_equal(weft_replace_file(link, "text", 4, 0644), ENOSPC);
    assert_true(S_ISLNK(mode_of(link)));
    assert_int_equal(stat(link, &after), 0);
    assert_true(S_ISCHR(after.st_mode));
    assert_int_equal(after.st_rdev, before.st_rdev);
}

static void a_pipe_gets_the_text_and_stays(void **state)
{
    char text[8] = "";
    const char *path = in_folder("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(weft_replace_file(path, "text", 4, 0644), ENXIO); /* no reader */
    const int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(weft_replace_file(path, "text", 4, 0644), 0);
    assert_int_equal(read(reader, text, sizeof text), 4);
    assert_string_equal(text, "text");
    assert_true(S_ISFIFO(mode_of(path)));
    close(reader);
}

/* As with /dev/stdout of a command whose output is a file. */
static void a_descriptor_keeps_its_other_output(void **state)
{
    char name[64];
    const char *path = in_folder("out");
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_true(fd >= 0);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    assert_int_equal(write(fd, "before ", 7), 7);
    assert_int_equal(weft_replace_file(name, "text", 4, 0644), 0);
    assert_int_equal(write(fd, " after", 6), 6);
    close(fd);
    assert_content(path, "before text after");
}

static void other_places_are_errors(void **state)
{
    char name[WEFT_REPLACE_PATH_BYTES + 10];
    assert_int_equal(weft_replace_file(folder, "text", 4, 0644), EISDIR);
    assert_int_equal(weft_replace_file(in_folder("none/file"), "text", 4, 0644), ENOENT);
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(weft_replace_file(name, "text", 4, 0644), ENAMETOOLONG);
    name[WEFT_REPLACE_PATH_BYTES - 4] = 0; /* the path fits, the name of the part does not */
    for (size_t i = 0; i < WEFT_REPLACE_PATH_BYTES - 4; i += 100) name[i] = '/';
    assert_true(weft_replace_file(name, "text", 4, 0644) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
        TEST(a_file_is_new_or_replaced),
        TEST(a_failure_keeps_the_old_content),
        TEST(a_link_stays_and_its_file_is_replaced),
        TEST(a_full_device_is_an_error_and_stays),
        TEST(a_pipe_gets_the_text_and_stays),
        TEST(a_descriptor_keeps_its_other_output),
        TEST(other_places_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
