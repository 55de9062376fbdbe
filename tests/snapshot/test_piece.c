/* test_piece.c - pieces: bits survive encoding with and without base, types, names, damaged files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/lib/temp_dir.h"
#include "tests/snapshot/snapshot_fixture.h"

#include "tests/lib/check.h"

static struct weft_piece *decode(const uint8_t *file, size_t bytes, struct weft_piece_ref *ref)
{
    struct weft_piece *piece = NULL;
    struct weft_error error = {0};
    if (weft_piece_decode(weft_env_system(), file, bytes, &piece, ref, &error) < 0)
        fail_msg("%s", error.text);
    return piece;
}

static void test_bits(void **state)
{
    struct weft_piece *piece = fixture_piece(3), *base = fixture_piece(2);
    for (int with_base = 0; with_base < 2; with_base++) {
        char name[WEFT_PIECE_NAME_BYTES], base_name[WEFT_PIECE_NAME_BYTES], found[WEFT_PIECE_NAME_BYTES];
        uint8_t *file;
        size_t bytes;
        struct weft_piece_ref ref;
        assert_int_equal(weft_piece_name(piece, name), WEFT_OK);
        assert_int_equal(weft_piece_name(base, base_name), WEFT_OK);
        assert_int_equal(weft_piece_encode(piece, with_base ? base : NULL, base_name, 1, &file, &bytes),
                         WEFT_OK);
        struct weft_piece *again = decode(file, bytes, &ref);
        assert_string_equal(ref.base, with_base ? base_name : "");
        assert_int_equal(ref.chain, with_base);
        if (with_base) assert_int_equal(weft_piece_rebase(again, base), WEFT_OK);
        assert_int_equal(weft_piece_name(again, found), WEFT_OK);
        assert_string_equal(found, name);
        assert_int_equal(again->array_count, 2);
        assert_int_equal(again->bytes, piece->bytes);
        assert_memory_equal(again->data, piece->data, piece->bytes);
        weft_piece_free(again);
        weft_free_bytes(weft_env_system(), file);
    }
    weft_piece_free(piece);
    weft_piece_free(base);
}

static void test_layouts_differ(void **state)
{
    struct weft_piece *piece = fixture_piece(1), *other = fixture_piece(1);
    other->arrays[1].offset = 7;
    assert_int_equal(weft_piece_rebase(piece, other), WEFT_ERR_MALFORMED);
    weft_piece_free(piece);
    weft_piece_free(other);
}

static struct weft_piece *noise(uint32_t count, float *values)
{
    const struct weft_piece_array arrays[] = {
        {.tensor = "a \"name\" of\\ bytes@7", .count = count, .offset = 4},
        {.tensor = "s", .part = WEFT_PIECE_STATE + 1, .count = count},
        {.tensor = "s", .part = WEFT_PIECE_RESIDUAL, .count = count}};
    uint32_t seed = 12345;
    for (uint32_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(int32_t)seed / 2147483648.0f * 0.05f;
    }
    struct weft_piece *piece = weft_piece_create(weft_env_system(), 3, 3 * count * sizeof(float));
    for (int i = 0; i < 3; i++) weft_piece_add(piece, &arrays[i], values);
    return piece;
}

static void check_type(enum weft_piece_dtype dtype, double error_max)
{
    enum { COUNT = 1027 };
    static float values[COUNT], found[COUNT];
    struct weft_piece_ref ref;
    uint8_t *file;
    size_t bytes;
    struct weft_piece *piece = noise(COUNT, values);
    weft_piece_quantise(piece, dtype);
    assert_int_equal(weft_piece_encode(piece, NULL, NULL, 0, &file, &bytes), WEFT_OK);
    struct weft_piece *again = decode(file, bytes, &ref);
    assert_int_equal(again->array_count, 3);
    assert_string_equal(again->arrays[0].tensor, "a \"name\" of\\ bytes@7");
    assert_int_equal(again->arrays[0].offset, 4);
    assert_int_equal(again->arrays[1].part, WEFT_PIECE_STATE + 1);
    assert_int_equal(again->arrays[2].part, WEFT_PIECE_RESIDUAL);
    weft_piece_values(again, 0, 0, COUNT, found);
    for (uint32_t i = 0; i < COUNT; i++) assert_true(fabs((double)found[i] - (double)values[i]) <= error_max);
    weft_piece_values(again, 0, 1000, 27, found + 1000);
    for (uint32_t i = 1000; i < COUNT; i++)
        assert_true(fabs((double)found[i] - (double)values[i]) <= error_max);
    for (uint32_t part = 1; part < 3; part++) { /* states and residuals have their bits */
        weft_piece_values(again, part, 0, COUNT, found);
        assert_memory_equal(found, values, sizeof values);
    }
    weft_piece_free(again);
    weft_piece_free(piece);
    weft_free_bytes(weft_env_system(), file);
}

static void test_types(void **state)
{
    check_type(WEFT_PIECE_F32, 0);
    check_type(WEFT_PIECE_BF16, 0.05 / 256);
    check_type(WEFT_PIECE_I8, 0.05 / 127 / 2 * 1.001);
}

/* Normal weights alone, against f32 in memory: bf16 is at least 60 % smaller, int8 at least 75 %. */
static void test_sizes(void **state)
{
    enum { COUNT = 1 << 18 };
    float *values = malloc(COUNT * sizeof *values);
    uint64_t seed = 99;
    for (uint32_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int k = 0; k < 12; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(seed >> 40) / (double)(1 << 24);
        }
        values[i] = (float)((sum - 6) * 0.02);
    }
    const struct weft_piece_array array = {.tensor = "w", .count = COUNT};
    const double most[] = {0.95, 0.40, 0.25};
    for (uint32_t dtype = 0; dtype < WEFT_PIECE_WEIGHT_DTYPES; dtype++) {
        uint8_t *file;
        size_t bytes;
        struct weft_piece *piece = weft_piece_create(weft_env_system(), 1, COUNT * sizeof *values);
        weft_piece_add(piece, &array, values);
        weft_piece_quantise(piece, (enum weft_piece_dtype)dtype);
        assert_int_equal(weft_piece_encode(piece, NULL, NULL, 0, &file, &bytes), WEFT_OK);
        print_message("%s: %.3f of f32\n", weft_piece_dtype_text((enum weft_piece_dtype)dtype),
                      (double)bytes / COUNT / sizeof *values);
        assert_true((double)bytes <= most[dtype] * COUNT * sizeof *values);
        weft_free_bytes(weft_env_system(), file);
        weft_piece_free(piece);
    }
    free(values);
}

static void test_not_finite(void **state)
{
    float values[WEFT_PIECE_SCALE_BLOCK + 1] = {0}, found[WEFT_PIECE_SCALE_BLOCK + 1];
    const struct weft_piece_array array = {.tensor = "w", .count = WEFT_PIECE_SCALE_BLOCK + 1};
    values[5] = INFINITY;
    values[WEFT_PIECE_SCALE_BLOCK] = -3;
    struct weft_piece *piece = weft_piece_create(weft_env_system(), 1, sizeof values);
    weft_piece_add(piece, &array, values);
    weft_piece_quantise(piece, WEFT_PIECE_I8);
    weft_piece_values(piece, 0, 0, array.count, found);
    assert_true(isnan(found[5]));
    assert_true(found[WEFT_PIECE_SCALE_BLOCK] == -3);
    weft_piece_free(piece);
}

/* Each changed byte of a stored piece is found by its hash, or by a check before it. */
static void test_damage(void **state)
{
    char *folder = temp_dir_make(), path[4200], name[WEFT_PIECE_NAME_BYTES];
    struct weft_error error = {0};
    assert_int_equal(fixture_save(folder, 5, 0, &error), WEFT_OK);
    struct weft_piece *piece = fixture_piece(5);
    assert_int_equal(weft_piece_name(piece, name), WEFT_OK);
    weft_piece_free(piece);
    snprintf(path, sizeof path, "%s/pieces/%.2s/%s.st.zst", folder, name, name);
    struct stat size;
    assert_int_equal(stat(path, &size), 0);
    for (long at = 0; at < size.st_size; at += 7) {
        FILE *file = fopen(path, "r+b");
        fseek(file, at, SEEK_SET);
        const int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 0x10, file);
        fclose(file);
        error = (struct weft_error){0};
        if (weft_piece_load(weft_env_system(), folder, name, &piece, &error) == WEFT_OK) {
            weft_piece_free(piece); /* a bit of the frame's header without meaning */
            assert_true(fixture_is_whole(folder, 5, &error));
        } else assert_true(error.text[0] != 0);
        file = fopen(path, "r+b");
        fseek(file, at, SEEK_SET);
        fputc(byte, file);
        fclose(file);
    }
    error = (struct weft_error){0};
    assert_true(fixture_is_whole(folder, 5, &error));
    temp_dir_remove(folder);
}

/* Equal content is stored once; a damaged file is replaced. */
static void test_stored_once(void **state)
{
    char *folder = temp_dir_make();
    struct weft_error error = {0};
    struct weft_piece *piece = fixture_piece(1), *base = fixture_piece(9);
    struct weft_piece_ref ref, again, base_ref = {.chain = 0};
    assert_int_equal(weft_piece_name(base, base_ref.name), WEFT_OK);
    assert_int_equal(weft_snapshot_folder_make(folder, &error), WEFT_OK);
    assert_int_equal(weft_piece_store(piece, folder, NULL, NULL, &ref, &error), WEFT_OK);
    assert_int_equal(weft_piece_store(piece, folder, base, &base_ref, &again, &error), WEFT_OK);
    assert_string_equal(again.base, "");
    assert_memory_equal(&ref, &again, sizeof ref);
    char path[4200];
    snprintf(path, sizeof path, "%s/pieces/%.2s/%s.st.zst", folder, ref.name, ref.name);
    FILE *file = fopen(path, "wb");
    fputs("damaged", file);
    fclose(file);
    assert_int_equal(weft_piece_store(piece, folder, NULL, NULL, &again, &error), WEFT_OK);
    struct weft_piece *found;
    assert_int_equal(weft_piece_load(weft_env_system(), folder, ref.name, &found, &error), WEFT_OK);
    weft_piece_free(found);
    weft_piece_free(piece);
    weft_piece_free(base);
    temp_dir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),        cmocka_unit_test(test_layouts_differ),
        cmocka_unit_test(test_types),       cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_stored_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
