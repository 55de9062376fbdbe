/* test_bundle.c - no file of a bundle has a secret, also not at a cut or in the output of a program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check.h"
#include "tests/lib/temp_dir.h"
#include "tools/support/bundle.h"

#define SECRET "0123456789abcdef"

static void read_part(const struct bundle *bundle, const char *name, char *out, size_t bytes)
{
    char path[700];
    snprintf(path, sizeof path, "%s/weft-support/%s", bundle->folder, name);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    out[fread(out, 1, bytes - 1, file)] = 0;
    fclose(file);
}

static void open_with_secret(struct bundle *bundle)
{
    assert_true(bundle_open(bundle));
    bundle_add_secret(bundle, SECRET);
    bundle_add_secret(bundle, "abc"); /* too short to be one */
    bundle_add_secret(bundle, NULL);
}

static void texts_lose_their_secrets(void **state)
{
    struct bundle bundle;
    char out[400];
    const char text[] =
        "a " SECRET " b\n" SECRET SECRET "\nWEFT_SECRET=other c\n'WEFT_SECRET=x'abc\nWEFT_SECRET=";
    open_with_secret(&bundle);
    assert_true(bundle_add(&bundle, "a.txt", text, strlen(text), 1000));
    read_part(&bundle, "a.txt", out, sizeof out);
    assert_string_equal(out, "a (removed) b\n(removed)(removed)\nWEFT_SECRET=(removed) c\n"
                             "'WEFT_SECRET=(removed)'abc\nWEFT_SECRET=");
    bundle_close(&bundle);
}

/* A cut before the removal would leave the end of a secret. */
static void a_cut_leaves_no_part_of_a_secret(void **state)
{
    const char text[] = "first line\n" SECRET "\nlast";
    char out[400];
    for (size_t most = 1; most < sizeof text; most++) {
        struct bundle bundle;
        open_with_secret(&bundle);
        assert_true(bundle_add(&bundle, "a.txt", text, strlen(text), most));
        read_part(&bundle, "a.txt", out, sizeof out);
        assert_null(strstr(out, "ef\n"));
        assert_true(strlen(out) <= most);
        bundle_close(&bundle);
    }
}

static void programs_and_files(void **state)
{
    struct bundle bundle;
    char out[4000], path[600];
    const char *const echo[] = {"sh", "-c", "echo key " SECRET "; echo error >&2; exit 3", NULL};
    const char *const hang[] = {"sh", "-c", "echo before; sleep 1000", NULL};
    open_with_secret(&bundle);
    assert_true(bundle_add_output(&bundle, "echo.txt", echo, 30));
    read_part(&bundle, "echo.txt", out, sizeof out);
    assert_string_equal(out, "key (removed)\nerror\n\n(exit status 3)\n");
    assert_true(bundle_add_output(&bundle, "hang.txt", hang, 1));
    read_part(&bundle, "hang.txt", out, sizeof out);
    assert_non_null(strstr(out, "(not ended after 1 s: killed)"));
    snprintf(path, sizeof path, "%s/weft-support/echo.txt", bundle.folder);
    assert_true(bundle_add_file(&bundle, "copy.txt", path, 100));
    assert_false(bundle_add_file(&bundle, "none.txt", "/nonexistent", 100));
    assert_false(bundle_add_file(&bundle, "none.txt", "/dev/zero", 100));
    bundle_close(&bundle);
}

static void the_pack_is_its_owners(void **state)
{
    struct bundle bundle;
    struct stat info;
    char *folder = temp_dir_make(), path[600], command[800];
    open_with_secret(&bundle);
    assert_true(bundle_add(&bundle, "a.txt", SECRET "!", strlen(SECRET) + 1, 100));
    snprintf(path, sizeof path, "%s/out:1.tar.gz", folder);
    assert_true(bundle_pack(&bundle, path));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    snprintf(command, sizeof command,
             "test \"$(tar -xzOf %s --force-local weft-support/a.txt)\" = '(removed)!'", path);
    assert_int_equal(system(command), 0);
    assert_false(bundle_pack(&bundle, "/nonexistent/out.tar.gz"));
    /* a full device: what is not a file is not removed */
    snprintf(path, sizeof path, "%s/full", folder);
    assert_int_equal(symlink("/dev/full", path), 0);
    assert_false(bundle_pack(&bundle, path));
    assert_int_equal(lstat(path, &info), 0);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s", bundle.folder);
    bundle_close(&bundle);
    assert_int_not_equal(stat(path, &info), 0); /* nothing stays */
    temp_dir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_lose_their_secrets),
        cmocka_unit_test(a_cut_leaves_no_part_of_a_secret),
        cmocka_unit_test(programs_and_files),
        cmocka_unit_test(the_pack_is_its_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
