/* test_export.c - verify finds damage that the manifest does not show; export writes what a reader of
 * safetensors expects. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/temp_dir.h"
#include "tests/snapshot/snapshot_fixture.h"

#include "tests/lib/check.h"

static uint64_t reported, reported_total;

static void on_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    reported = done_bytes;
    reported_total = total_bytes;
}

static void load(const char *folder, struct weft_snapshot *snapshot)
{
    struct weft_error error = {0};
    if (weft_snapshot_load(weft_env_system(), folder, WEFT_NEVER, snapshot, &error) < 0)
        fail_msg("%s", error.text);
}

/* Reads the file; returns its header, and its data in *data_out. */
static json_t *read_file(const char *path, uint8_t **data_out, size_t *bytes_out)
{
    uint8_t size[8];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(size, 1, 8, file), 8);
    const size_t bytes = (size_t)get_le64(size);
    assert_true(bytes % 8 == 0 && bytes < 10000);
    char *text = malloc(bytes);
    *data_out = malloc(100000);
    assert_int_equal(fread(text, 1, bytes, file), bytes);
    *bytes_out = fread(*data_out, 1, 100000, file);
    fclose(file);
    json_t *root = json_loadb(text, bytes, 0, NULL);
    assert_non_null(root);
    free(text);
    return root;
}

static void check_export(const char *folder, bool with_states)
{
    const struct weft_snapshot_progress progress = {on_progress, NULL};
    struct weft_snapshot snapshot;
    struct weft_error error = {0};
    char path[4200];
    uint8_t *data;
    size_t bytes;
    snprintf(path, sizeof path, "%s/out.safetensors", folder);
    load(folder, &snapshot);
    assert_int_equal(weft_snapshot_export(&snapshot, folder, path, with_states, &progress, &error), WEFT_OK);
    weft_snapshot_fini(&snapshot);
    assert_int_equal(reported, 2 * FIXTURE_COUNT * sizeof(float) + 1000); /* with the bytes of a worker */
    assert_int_equal(reported_total, reported);
    json_t *root = read_file(path, &data, &bytes);
    struct weft_piece *piece = fixture_piece(2);
    assert_int_equal(bytes, (with_states ? 2u : 1u) * FIXTURE_COUNT * sizeof(float));
    assert_int_equal(json_object_size(root), with_states ? 3 : 2);
    for (uint32_t part = 0; part < (with_states ? 2u : 1u); part++) {
        const json_t *entry = json_object_get(root, part == 0 ? "layer" : "layer.state0"),
                     *range = json_object_get(entry, "data_offsets");
        const size_t begin = (size_t)json_integer_value(json_array_get(range, 0));
        assert_string_equal(json_string_value(json_object_get(entry, "dtype")), "F32");
        assert_int_equal(json_integer_value(json_array_get(json_object_get(entry, "shape"), 0)),
                         FIXTURE_COUNT);
        assert_int_equal(json_integer_value(json_array_get(range, 1)) - (json_int_t)begin,
                         FIXTURE_COUNT * sizeof(float));
        assert_memory_equal(data + begin, piece->data + piece->arrays[part].at,
                            FIXTURE_COUNT * sizeof(float));
    }
    weft_piece_free(piece);
    json_decref(root);
    free(data);
}

static void test_export(void **state)
{
    char *folder = temp_dir_make();
    struct weft_error error = {0};
    assert_int_equal(fixture_save(folder, 1, 0, &error), WEFT_OK);
    assert_int_equal(fixture_save(folder, 2, 1, &error), WEFT_OK);
    check_export(folder, false);
    check_export(folder, true);
    temp_dir_remove(folder);
}

/* A failed export leaves no file. */
static void test_missing_piece(void **state)
{
    char *folder = temp_dir_make(), path[4300], out[4200];
    struct weft_error error = {0};
    struct weft_snapshot snapshot;
    assert_int_equal(fixture_save(folder, 1, 0, &error), WEFT_OK);
    load(folder, &snapshot);
    assert_int_equal(weft_snapshot_verify(&snapshot, folder, NULL, &error), WEFT_OK);
    snprintf(path, sizeof path, "%s/pieces/%.2s/%s.st.zst", folder, snapshot.pieces[0].ref.name,
             snapshot.pieces[0].ref.name);
    snprintf(out, sizeof out, "%s/out", folder);
    assert_int_equal(unlink(path), 0);
    assert_true(weft_snapshot_verify(&snapshot, folder, NULL, &error) < 0);
    assert_non_null(strstr(error.text, snapshot.pieces[0].ref.name));
    error = (struct weft_error){0};
    assert_true(weft_snapshot_export(&snapshot, folder, out, false, NULL, &error) < 0);
    assert_int_not_equal(access(out, F_OK), 0);
    weft_snapshot_fini(&snapshot);
    temp_dir_remove(folder);
}

/* Devices and pipes stay what they are. They are named by links of the test. */
static void test_devices(void **state)
{
    char *folder = temp_dir_make(), out[4200];
    struct weft_error error = {0};
    struct weft_snapshot snapshot;
    struct stat about;
    assert_int_equal(fixture_save(folder, 1, 0, &error), WEFT_OK);
    load(folder, &snapshot);
    snprintf(out, sizeof out, "%s/out", folder);
    assert_int_equal(symlink("/dev/full", out), 0);
    assert_int_equal(weft_snapshot_export(&snapshot, folder, out, false, NULL, &error), WEFT_ERR_IO);
    assert_non_null(strstr(error.text, "No space left on device"));
    assert_true(lstat(out, &about) == 0 && S_ISLNK(about.st_mode));
    assert_int_equal(unlink(out), 0);
    assert_int_equal(symlink("/dev/null", out), 0);
    error = (struct weft_error){0};
    assert_int_equal(weft_snapshot_export(&snapshot, folder, out, false, NULL, &error), WEFT_OK);
    assert_true(lstat(out, &about) == 0 && S_ISLNK(about.st_mode));
    assert_int_equal(unlink(out), 0);
    assert_int_equal(mkfifo(out, 0600), 0);
    const int reader = open(out, O_RDONLY | O_NONBLOCK);
    assert_int_equal(weft_snapshot_export(&snapshot, folder, out, false, NULL, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "not a pipe"));
    assert_true(lstat(out, &about) == 0 && S_ISFIFO(about.st_mode));
    close(reader);
    weft_snapshot_fini(&snapshot);
    temp_dir_remove(folder);
}

/* The manifest names a piece with another content: its hash is right, its arrays are not. */
static void test_other_arrays(void **state)
{
    char *folder = temp_dir_make();
    struct weft_error error = {0};
    struct weft_snapshot snapshot;
    assert_int_equal(fixture_save(folder, 1, 0, &error), WEFT_OK);
    load(folder, &snapshot);
    snapshot.pieces[0].ranges[1].part = WEFT_PIECE_RESIDUAL;
    assert_int_equal(weft_snapshot_verify(&snapshot, folder, NULL, &error), WEFT_ERR_MALFORMED);
    weft_snapshot_fini(&snapshot);
    temp_dir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_export), cmocka_unit_test(test_missing_piece),
                                       cmocka_unit_test(test_devices), cmocka_unit_test(test_other_arrays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
