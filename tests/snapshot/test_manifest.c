/* test_manifest.c - manifests: all fields survive, and each damage is refused with a sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/temp_dir.h"
#include "tests/snapshot/snapshot_fixture.h"

#include "tests/lib/check.h"

#define NAME "0123456789abcdef0123456789abcdef"

static struct weft_snapshot_range *build(struct weft_snapshot *snapshot)
{
    weft_snapshot_init(snapshot, weft_env_system());
    snprintf(snapshot->job, sizeof snapshot->job, "a job");
    snapshot->step = 12;
    snapshot->time_s = 1700000000;
    snapshot->workers = 3;
    snapshot->shards = 2;
    snapshot->weights = WEFT_PIECE_BF16;
    struct weft_snapshot_tensor *tensor = weft_snapshot_add_tensor(snapshot);
    snprintf(tensor->name, sizeof tensor->name, "layer \"one\"");
    snprintf(tensor->optimizer, sizeof tensor->optimizer, "adam");
    tensor->dim_count = 2;
    tensor->dims[0] = 5;
    tensor->dims[1] = 2;
    struct weft_snapshot_piece *piece = weft_snapshot_add_piece(snapshot, 3);
    snprintf(piece->ref.name, sizeof piece->ref.name, NAME);
    snprintf(piece->ref.base, sizeof piece->ref.base, NAME);
    piece->ref.chain = 1;
    piece->ref.bytes = 80;
    piece->ref.stored = 44;
    piece->ranges[0] = (struct weft_snapshot_range){.offset = 6, .count = 4, .step = 12};
    piece->ranges[1] = (struct weft_snapshot_range){.offset = 0, .count = 6, .step = 12};
    piece->ranges[2] = (struct weft_snapshot_range){.part = WEFT_PIECE_STATE, .count = 10, .step = 11};
    return piece->ranges;
}

static enum weft_status read_back(const struct weft_snapshot *snapshot, struct weft_snapshot *out,
                                  struct weft_error *error)
{
    char *text;
    size_t bytes;
    assert_int_equal(weft_snapshot_write(snapshot, &text, &bytes), WEFT_OK);
    *error = (struct weft_error){0};
    const enum weft_status status = weft_snapshot_read(weft_env_system(), text, bytes, out, error);
    weft_free_bytes(weft_env_system(), text);
    return status;
}

static void test_fields(void **state)
{
    struct weft_snapshot snapshot, again;
    struct weft_error error = {0};
    uint32_t index;
    build(&snapshot);
    assert_int_equal(read_back(&snapshot, &again, &error), WEFT_OK);
    assert_string_equal(again.job, "a job");
    assert_int_equal(again.step, 12);
    assert_int_equal(again.time_s, 1700000000);
    assert_int_equal(again.workers, 3);
    assert_int_equal(again.shards, 2);
    assert_int_equal(again.weights, WEFT_PIECE_BF16);
    const struct weft_snapshot_tensor *tensor = weft_snapshot_find(&again, "layer \"one\"", &index);
    assert_non_null(tensor);
    assert_int_equal(index, 0);
    assert_memory_equal(tensor, &snapshot.tensors[0], sizeof *tensor);
    assert_int_equal(again.piece_count, 1);
    assert_memory_equal(&again.pieces[0].ref, &snapshot.pieces[0].ref, sizeof again.pieces[0].ref);
    assert_memory_equal(again.pieces[0].ranges, snapshot.pieces[0].ranges,
                        3 * sizeof *again.pieces[0].ranges);
    assert_null(weft_snapshot_find(&again, "other", &index));
    weft_snapshot_fini(&again);
    weft_snapshot_fini(&snapshot);
}

static void check_refused(struct weft_snapshot *snapshot, const char *text)
{
    struct weft_snapshot again;
    struct weft_error error = {0};
    assert_true(read_back(snapshot, &again, &error) < 0);
    if (!strstr(error.text, text)) fail_msg("'%s' lacks '%s'", error.text, text);
    weft_snapshot_fini(snapshot);
}

static void test_refused(void **state)
{
    struct weft_snapshot snapshot;
    build(&snapshot)[0].offset = 5;
    check_refused(&snapshot, "overlap or leave gaps");
    build(&snapshot)[0].offset = 7;
    check_refused(&snapshot, "outside its tensor");
    build(&snapshot)[1].count = 5;
    check_refused(&snapshot, "overlap or leave gaps");
    build(&snapshot)[2].count = 9;
    check_refused(&snapshot, "overlap or leave gaps");
    build(&snapshot)[2].step = 13;
    check_refused(&snapshot, "outside its tensor");
    build(&snapshot);
    snapshot.pieces[0].ref.name[3] = '/';
    check_refused(&snapshot, "no valid name");
    build(&snapshot);
    snapshot.pieces[0].ref.chain = 0;
    check_refused(&snapshot, "no valid name");
    build(&snapshot);
    snapshot.tensors[0].dims[1] = WEFT_LIMIT_TENSOR_ELEMS;
    check_refused(&snapshot, "a tensor has no valid name");
}

/* Adds the part of rank 7 in two pieces; returns the second one. */
static struct weft_snapshot_piece *build_part(struct weft_snapshot *snapshot)
{
    struct weft_snapshot_piece *piece = NULL;
    build(snapshot);
    assert_int_equal(weft_snapshot_add_part(snapshot, 7, 100), WEFT_OK);
    assert_int_equal(weft_snapshot_add_part(snapshot, 7, 100), WEFT_ERR_EXISTS);
    for (uint32_t i = 0; i < 2; i++) {
        piece = weft_snapshot_add_piece(snapshot, 1);
        snprintf(piece->ref.name, sizeof piece->ref.name, NAME);
        piece->ref.bytes = i ? 40 : 60;
        piece->ranges[0] = (struct weft_snapshot_range){
            .tensor = 7, .part = WEFT_PIECE_WORKER, .offset = i ? 60 : 0, .count = i ? 40 : 60, .step = 12};
    }
    return piece;
}

static void test_parts(void **state)
{
    struct weft_snapshot snapshot, again;
    struct weft_error error = {0};
    build_part(&snapshot);
    assert_int_equal(read_back(&snapshot, &again, &error), WEFT_OK);
    assert_true(again.part_count == 1 && weft_snapshot_find_part(&again, 7)->bytes == 100);
    assert_null(weft_snapshot_find_part(&again, 6));
    assert_null(weft_snapshot_find_part(&again, 8));
    weft_snapshot_fini(&again);
    weft_snapshot_fini(&snapshot);

    struct weft_snapshot_piece *piece = build_part(&snapshot);
    piece->ranges[0].count = piece->ref.bytes = 39;
    check_refused(&snapshot, "overlap or leave gaps");
    build_part(&snapshot)->ref.bytes = 39;
    check_refused(&snapshot, "a piece has bytes of a worker and other ranges");
    build_part(&snapshot)->ranges[0].tensor = 6;
    check_refused(&snapshot, "outside its tensor");
    build_part(&snapshot)->ranges[0].offset = 61;
    check_refused(&snapshot, "outside its tensor");
    build_part(&snapshot);
    while (snapshot.piece_count > 1) /* no bytes of the part */
        weft_free_bytes(snapshot.env, snapshot.pieces[--snapshot.piece_count].ranges);
    check_refused(&snapshot, "overlap or leave gaps");
    build_part(&snapshot);
    snapshot.parts[0].bytes = 0;
    check_refused(&snapshot, "no valid rank or size");
    build_part(&snapshot);
    snapshot.parts[0].rank = WEFT_LIMIT_WORKERS;
    check_refused(&snapshot, "no valid rank or size");
    build_part(&snapshot);
    assert_int_equal(weft_snapshot_add_part(&snapshot, 3, 100), WEFT_OK);
    snapshot.parts[0].rank = 7;
    check_refused(&snapshot, "two parts");
    build_part(&snapshot);
    snapshot.pieces[0].ranges[0].part = WEFT_PIECE_WORKER; /* beside a tensor */
    snapshot.pieces[0].ranges[0].tensor = 7;
    check_refused(&snapshot, "bytes of a worker and other ranges");
}

/* Each changed byte is refused. */
static void test_damage(void **state)
{
    struct weft_snapshot snapshot, again;
    char *text;
    size_t bytes;
    build(&snapshot);
    assert_int_equal(weft_snapshot_write(&snapshot, &text, &bytes), WEFT_OK);
    for (size_t at = 0; at < bytes; at++) {
        struct weft_error error = {0};
        text[at] ^= 1;
        assert_true(weft_snapshot_read(weft_env_system(), text, bytes, &again, &error) < 0);
        assert_true(error.text[0] != 0);
        text[at] ^= 1;
    }
    for (size_t length = 0; length < bytes; length++) {
        struct weft_error error = {0};
        assert_true(weft_snapshot_read(weft_env_system(), text, length, &again, &error) < 0);
    }
    weft_free_bytes(weft_env_system(), text);
    weft_snapshot_fini(&snapshot);
}

/* The format is read before the checksum, which a newer release may make in another way. */
static void test_other_format(void **state)
{
    static const struct {
        char number;
        const char *text;
    } cases[] = {{'2', "the manifest has the format weft-snapshot-2 of a newer release, and this one reads "
                       "weft-snapshot-1: use a newer release of weft"},
                 {'x', "the manifest is not of the format weft-snapshot-1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct weft_snapshot snapshot, again;
        struct weft_error error = {0};
        char *text;
        size_t bytes;
        build(&snapshot);
        assert_int_equal(weft_snapshot_write(&snapshot, &text, &bytes), WEFT_OK);
        char *format = memmem(text, bytes, "weft-snapshot-1", 15);
        assert_non_null(format);
        format[14] = cases[i].number;
        assert_int_equal(weft_snapshot_read(weft_env_system(), text, bytes, &again, &error),
                         WEFT_ERR_VERSION);
        assert_string_equal(error.text, cases[i].text);
        weft_free_bytes(weft_env_system(), text);
        weft_snapshot_fini(&snapshot);
    }
}

static void test_name_is_not_utf8(void **state)
{
    struct weft_snapshot snapshot;
    char *text;
    size_t bytes;
    build(&snapshot);
    memcpy(snapshot.tensors[0].name, "\xff\xfe", 3);
    assert_int_equal(weft_snapshot_write(&snapshot, &text, &bytes), WEFT_ERR_INVALID);
    weft_snapshot_fini(&snapshot);
}

static void test_folder(void **state)
{
    char *folder = temp_dir_make();
    struct weft_error error = {0};
    struct weft_snapshot snapshot;
    uint64_t *steps;
    uint32_t count;
    assert_int_equal(weft_snapshot_load(weft_env_system(), folder, WEFT_NEVER, &snapshot, &error),
                     WEFT_ERR_NOT_FOUND);
    error = (struct weft_error){0};
    assert_int_equal(fixture_save(folder, 9, 0, &error), WEFT_OK);
    assert_int_equal(fixture_save(folder, 10, 9, &error), WEFT_OK);
    assert_int_equal(weft_snapshot_steps(weft_env_system(), folder, &steps, &count, &error), WEFT_OK);
    assert_int_equal(count, 2);
    assert_int_equal(steps[0], 9);
    assert_int_equal(steps[1], 10);
    weft_free_bytes(weft_env_system(), steps);
    assert_int_equal(weft_snapshot_load(weft_env_system(), folder, WEFT_NEVER, &snapshot, &error), WEFT_OK);
    assert_int_equal(snapshot.step, 10);
    assert_int_equal(snapshot.pieces[0].ref.chain, 1);
    weft_snapshot_fini(&snapshot);
    assert_true(fixture_is_whole(folder, 9, &error));
    assert_true(fixture_is_whole(folder, 10, &error));
    temp_dir_remove(folder);
}

static void test_places(void **state)
{
    char folder[16];
    uint64_t step;
    struct weft_error error = {0};
    assert_int_equal(weft_snapshot_place_parse("a:b", folder, sizeof folder, &step, &error), WEFT_OK);
    assert_string_equal(folder, "a:b");
    assert_true(step == WEFT_NEVER);
    assert_int_equal(weft_snapshot_place_parse("a:b:17", folder, sizeof folder, &step, &error), WEFT_OK);
    assert_string_equal(folder, "a:b");
    assert_int_equal(step, 17);
    assert_int_equal(weft_snapshot_place_parse("", folder, sizeof folder, &step, &error), WEFT_ERR_INVALID);
    error = (struct weft_error){0};
    assert_int_equal(
        weft_snapshot_place_parse("a:99999999999999999999", folder, sizeof folder, &step, &error),
        WEFT_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),  cmocka_unit_test(test_parts),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_other_format),
        cmocka_unit_test(test_damage),  cmocka_unit_test(test_name_is_not_utf8),
        cmocka_unit_test(test_folder),  cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
