/* test_prune.c - prune keeps what the newest manifests need, bases included, and removes the rest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/temp_dir.h"
#include "tests/snapshot/snapshot_fixture.h"

#include "tests/lib/check.h"

static void save(const char *folder, uint64_t step, uint64_t base)
{
    struct weft_error error = {0};
    if (fixture_save(folder, step, base, &error) < 0) fail_msg("%s", error.text);
}

static bool is_whole(const char *folder, uint64_t step)
{
    struct weft_error error = {0};
    return fixture_is_whole(folder, step, &error);
}

static void put(const char *folder, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs("x", file);
    fclose(file);
}

static bool has(const char *folder, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void test_keep(void **state)
{
    char *folder = temp_dir_make();
    struct weft_snapshot_prune_result result;
    struct weft_error error = {0};
    save(folder, 1, 0);
    save(folder, 2, 0);
    save(folder, 3, 2); /* its base is of step 2 */
    save(folder, 4, 3); /* a chain of two */
    put(folder, "snap-5.json.part.abcdef");
    put(folder, "notes.part.txt");
    put(folder, "pieces/notes.txt");
    assert_int_equal(weft_snapshot_prune(weft_env_system(), folder, 1, 3600, &result, &error), WEFT_OK);
    assert_int_equal(result.manifests, 3);
    assert_int_equal(result.pieces, 0); /* all are new */
    assert_true(is_whole(folder, 4));
    assert_int_equal(weft_snapshot_prune(weft_env_system(), folder, 1, 0, &result, &error), WEFT_OK);
    assert_int_equal(result.manifests, 0);
    assert_int_equal(result.pieces, 8); /* the piece of step 1, the part, bytes of workers of steps 1 to 3 */
    assert_true(result.bytes > 0);
    assert_true(is_whole(folder, 4));
    assert_true(has(folder, "notes.part.txt") && has(folder, "pieces/notes.txt"));
    assert_false(has(folder, "snap-5.json.part.abcdef"));
    assert_false(is_whole(folder, 3));
    temp_dir_remove(folder);
}

/* The pieces of a manifest that cannot be read are unknown: nothing is removed. */
static void test_damaged_manifest(void **state)
{
    char *folder = temp_dir_make();
    struct weft_snapshot_prune_result result;
    struct weft_error error = {0};
    save(folder, 1, 0);
    save(folder, 2, 0);
    put(folder, "snap-3.json");
    assert_true(weft_snapshot_prune(weft_env_system(), folder, 2, 0, &result, &error) < 0);
    assert_non_null(strstr(error.text, "snap-3.json"));
    assert_int_equal(result.pieces + result.manifests, 0);
    assert_true(is_whole(folder, 1) && is_whole(folder, 2));
    temp_dir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keep), cmocka_unit_test(test_damaged_manifest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
