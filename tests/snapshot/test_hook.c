/* test_hook.c - the program of a snapshot's hook: tries, an end by cancel, and what a fetch gets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/temp_dir.h"
#include "tests/snapshot/snapshot_fixture.h"

#include "tests/lib/check.h"

/* A program in the folder; returns its path, which the next call overwrites. */
static const char *script(const char *folder, const char *text)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/hook", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\ncd '%s' || exit 1\n%s\n", folder, text);
    fclose(file);
    assert_int_equal(chmod(path, 0755), 0);
    return path;
}

static struct weft_snapshot_hook *hook_of(const char *program)
{
    struct weft_snapshot_hook *hook;
    struct weft_error error = {0};
    if (weft_snapshot_hook_create(weft_env_system(), program, &hook, &error) < 0) fail_msg("%s", error.text);
    return hook;
}

static long lines_of(const char *folder, const char *name)
{
    char path[4300];
    long lines = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    for (int c; file && (c = fgetc(file)) != EOF;) lines += c == '\n';
    if (file) fclose(file);
    return lines;
}

static void tries_three_times(void **state)
{
    char *folder = temp_dir_make();
    struct weft_error error = {0};
    struct weft_snapshot_hook *hook = hook_of(script(folder, "echo \"$1 $2 $3\" >> calls; [ $3 != bad ]"));
    for (int i = 0; i < 6; i++) weft_snapshot_hook_put(hook, "f", "good");
    assert_int_equal(weft_snapshot_hook_wait(hook, &error), WEFT_OK);
    assert_int_equal(lines_of(folder, "calls"), 6);
    weft_snapshot_hook_put(hook, "f", "bad");
    weft_snapshot_hook_put(hook, "f", "good");
    assert_int_equal(weft_snapshot_hook_wait(hook, &error), WEFT_ERR_IO);
    assert_non_null(strstr(error.text, "failed 3 times"));
    assert_non_null(strstr(error.text, "put f/bad"));
    assert_int_equal(lines_of(folder, "calls"), 6 + 3 + 1);
    error = (struct weft_error){0};
    assert_int_equal(weft_snapshot_hook_wait(hook, &error), WEFT_OK); /* the error is reported once */
    weft_snapshot_hook_free(hook);
    temp_dir_remove(folder);
}

/* A program that hangs does not hold the caller after a cancel, nor is it tried again. */
static void ends_by_cancel(void **state)
{
    char *folder = temp_dir_make();
    struct weft_error error = {0};
    struct weft_snapshot_hook *hook = hook_of(script(folder, "echo x >> calls; exec sleep 1000"));
    weft_snapshot_hook_put(hook, "f", "n");
    weft_snapshot_hook_cancel(hook);
    assert_int_equal(weft_snapshot_hook_wait(hook, &error), WEFT_ERR_IO);
    assert_true(lines_of(folder, "calls") <= 1);
    weft_snapshot_hook_put(hook, "f", "n"); /* a running call is ended by free */
    weft_snapshot_hook_free(hook);
    temp_dir_remove(folder);
}

static void fetches_bases_too(void **state)
{
    char *store = temp_dir_make(), *folder = temp_dir_make(), target[4200];
    struct weft_error error = {0};
    uint64_t step = WEFT_NEVER;
    assert_int_equal(fixture_save(store, 9, 0, &error), WEFT_OK);
    assert_int_equal(fixture_save(store, 10, 9, &error), WEFT_OK);
    struct weft_snapshot_hook *hook =
        hook_of(script(store, "echo \"$1 $2\" >> calls\ncase $1 in list) ls;; get) cp \"$2\" \"$3\";; esac"));
    snprintf(target, sizeof target, "%s/copy", folder);
    assert_int_equal(weft_snapshot_hook_fetch(hook, target, &step, &error), WEFT_OK);
    assert_int_equal(step, 10);
    assert_true(fixture_is_whole(target, 10, &error));
    assert_int_equal(lines_of(store, "calls"),
                     6); /* the list, the manifest, the piece, its base, bytes of a worker */
    assert_int_equal(weft_snapshot_hook_fetch(hook, target, &step, &error), WEFT_OK);
    assert_int_equal(lines_of(store, "calls"), 6); /* the folder has all */
    step = 11;
    assert_true(weft_snapshot_hook_fetch(hook, target, &step, &error) < 0);
    weft_snapshot_hook_free(hook);
    temp_dir_remove(store);
    temp_dir_remove(folder);
}

static void needs_a_program(void **state)
{
    struct weft_snapshot_hook *hook;
    struct weft_error error = {0};
    assert_int_equal(weft_snapshot_hook_create(weft_env_system(), "/nonexistent/hook", &hook, &error),
                     WEFT_ERR_INVALID);
    assert_null(hook);
    assert_non_null(strstr(error.text, "/nonexistent/hook"));
}

/* The newest snapshots stay whole in the store, and the bases of their pieces. */
static void prunes_the_store(void **state)
{
    char *store = temp_dir_make(), *folder = temp_dir_make();
    struct weft_error error = {0};
    for (uint64_t step = 1; step <= 4; step++)
        assert_int_equal(fixture_save(store, step, step == 4 ? 2 : 0, &error), WEFT_OK);
    struct weft_snapshot_hook *hook = hook_of(script(
        store,
        "echo \"$1 $2\" >> calls\ncase $1 in list) ls;; get) cp \"$2\" \"$3\";; delete) rm \"$2\";; esac"));
    assert_int_equal(weft_snapshot_hook_prune(hook, folder, 4, &error), WEFT_OK);
    assert_int_equal(lines_of(store, "calls"), 1); /* the list: there are four */
    assert_int_equal(weft_snapshot_hook_prune(hook, folder, 2, &error), WEFT_OK);
    /* two lists, four manifests, deleted: two of them, the piece of step 1, two of a worker of steps 1 and 2
     * */
    assert_int_equal(lines_of(store, "calls"), 2 + 4 + 2 + 1 + 4);
    assert_true(fixture_is_whole(store, 3, &error) && fixture_is_whole(store, 4, &error));
    assert_false(fixture_is_whole(store, 2, &error));
    weft_snapshot_hook_free(hook);
    hook = hook_of(
        script(store, "[ $1 != delete ] || exit 1\ncase $1 in list) ls;; get) cp \"$2\" \"$3\";; esac"));
    assert_int_equal(weft_snapshot_hook_prune(hook, folder, 1, &error), WEFT_ERR_IO);
    assert_true(fixture_is_whole(store, 3, &error) && fixture_is_whole(store, 4, &error));
    weft_snapshot_hook_free(hook);
    temp_dir_remove(store);
    temp_dir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tries_three_times), cmocka_unit_test(ends_by_cancel),
        cmocka_unit_test(fetches_bases_too), cmocka_unit_test(prunes_the_store),
        cmocka_unit_test(needs_a_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
