/* snapshot_fixture.c - pieces and manifests for the tests of snapshot. */
#include "tests/snapshot/snapshot_fixture.h"

#include <stdio.h>
#include <string.h>

static void values_of(uint64_t step, uint8_t part, float out[FIXTURE_COUNT])
{
    for (uint32_t i = 0; i < FIXTURE_COUNT; i++)
        out[i] = (float)(i + 1) * (part == WEFT_PIECE_VALUES ? 0.5f : -0.25f) + 0.001f * (float)step;
}

struct weft_piece *fixture_piece(uint64_t step)
{
    float values[FIXTURE_COUNT];
    struct weft_piece *piece = weft_piece_create(weft_env_system(), 2, 2 * sizeof values);
    for (uint8_t part = 0; piece && part < 2; part++) {
        const struct weft_piece_array array = {
            .tensor = "layer", .part = part, .count = FIXTURE_COUNT, .step = step};
        values_of(step, part, values);
        weft_piece_add(piece, &array, values);
    }
    return piece;
}

/* Bytes first .. first + PART_PIECE_BYTES of the part of rank 3. */
enum { PART_PIECE_BYTES = 500, PART_PIECES = 2 };
static void part_bytes(uint64_t step, uint32_t first, uint8_t out[PART_PIECE_BYTES])
{
    for (uint32_t i = 0; i < PART_PIECE_BYTES; i++) out[i] = (uint8_t)(step * 41 + (first + i) * 7 / 3);
}

static enum weft_status save_part(const char *folder, struct weft_snapshot *snapshot,
                                  struct weft_error *error)
{
    WEFT_TRY(weft_snapshot_add_part(snapshot, 3, (uint64_t)PART_PIECES * PART_PIECE_BYTES));
    for (uint32_t i = 0; i < PART_PIECES; i++) {
        uint8_t bytes[PART_PIECE_BYTES];
        part_bytes(snapshot->step, i * PART_PIECE_BYTES, bytes);
        struct weft_piece *piece =
            weft_piece_create_worker(snapshot->env, 3, i * PART_PIECE_BYTES, bytes, sizeof bytes);
        struct weft_snapshot_piece *added = weft_snapshot_add_piece(snapshot, 1);
        added->ranges[0] = (struct weft_snapshot_range){.tensor = 3,
                                                        .part = WEFT_PIECE_WORKER,
                                                        .offset = i * PART_PIECE_BYTES,
                                                        .count = PART_PIECE_BYTES,
                                                        .step = snapshot->step};
        const enum weft_status status = weft_piece_store(piece, folder, NULL, NULL, &added->ref, error);
        weft_piece_free(piece);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

/* The part has the bytes of the step. */
static bool part_is_whole(const char *folder, const struct weft_snapshot *snapshot, struct weft_error *error)
{
    for (uint32_t i = 0; i < PART_PIECES; i++) {
        uint8_t wanted[PART_PIECE_BYTES], *found;
        size_t bytes;
        part_bytes(snapshot->step, i * PART_PIECE_BYTES, wanted);
        if (weft_snapshot_load_part(snapshot, folder, 3, i * PART_PIECE_BYTES, &found, &bytes, error) < 0)
            return false;
        const bool is_same = bytes == sizeof wanted && memcmp(found, wanted, sizeof wanted) == 0;
        weft_free_bytes(snapshot->env, found);
        if (!is_same) {
            weft_error_set(error, WEFT_ERR_DIVERGED, "the part of rank 3 has other bytes");
            return false;
        }
    }
    return true;
}

static enum weft_status commit(const char *folder, uint64_t step, const struct weft_piece_ref *ref,
                               struct weft_error *error)
{
    struct weft_snapshot snapshot;
    weft_snapshot_init(&snapshot, weft_env_system());
    snprintf(snapshot.job, sizeof snapshot.job, "test");
    snapshot.step = step;
    struct weft_snapshot_tensor *tensor = weft_snapshot_add_tensor(&snapshot);
    snprintf(tensor->name, sizeof tensor->name, "layer");
    snprintf(tensor->codec, sizeof tensor->codec, "dense");
    snprintf(tensor->optimizer, sizeof tensor->optimizer, "sgd:momentum=0.9");
    tensor->dim_count = 1;
    tensor->dims[0] = FIXTURE_COUNT;
    struct weft_snapshot_piece *piece = weft_snapshot_add_piece(&snapshot, 2);
    piece->ref = *ref;
    for (uint8_t part = 0; part < 2; part++)
        piece->ranges[part] =
            (struct weft_snapshot_range){.part = part, .count = FIXTURE_COUNT, .step = step};
    enum weft_status status = save_part(folder, &snapshot, error);
    if (status == WEFT_OK) status = weft_snapshot_commit(&snapshot, folder, error);
    weft_snapshot_fini(&snapshot);
    return status;
}

static enum weft_status stored_ref(const char *folder, uint64_t step, struct weft_piece_ref *ref_out,
                                   struct weft_error *error)
{
    struct weft_snapshot snapshot;
    WEFT_TRY(weft_snapshot_load(weft_env_system(), folder, step, &snapshot, error));
    *ref_out = snapshot.pieces[0].ref;
    weft_snapshot_fini(&snapshot);
    return WEFT_OK;
}

enum weft_status fixture_save(const char *folder, uint64_t step, uint64_t base_step, struct weft_error *error)
{
    struct weft_piece *piece = fixture_piece(step), *base = base_step ? fixture_piece(base_step) : NULL;
    struct weft_piece_ref ref, base_ref = {.chain = 0};
    enum weft_status status = weft_snapshot_folder_make(folder, error);
    if (base && status == WEFT_OK) status = stored_ref(folder, base_step, &base_ref, error);
    if (status == WEFT_OK) status = weft_piece_store(piece, folder, base, &base_ref, &ref, error);
    if (status == WEFT_OK) status = commit(folder, step, &ref, error);
    weft_piece_free(piece);
    weft_piece_free(base);
    return status;
}

bool fixture_is_whole(const char *folder, uint64_t step, struct weft_error *error)
{
    struct weft_snapshot snapshot;
    struct weft_piece *piece;
    float wanted[FIXTURE_COUNT], found[FIXTURE_COUNT];
    if (weft_snapshot_load(weft_env_system(), folder, step, &snapshot, error) < 0) return false;
    bool is_whole =
        part_is_whole(folder, &snapshot, error) &&
        weft_piece_load(weft_env_system(), folder, snapshot.pieces[0].ref.name, &piece, error) == WEFT_OK;
    weft_snapshot_fini(&snapshot);
    if (!is_whole) return false;
    for (uint8_t part = 0; is_whole && part < 2; part++) {
        values_of(step, part, wanted);
        weft_piece_values(piece, part, 0, FIXTURE_COUNT, found);
        if (memcmp(wanted, found, sizeof wanted) != 0) {
            weft_error_set(error, WEFT_ERR_DIVERGED, "part %u of step %llu has other bits", part,
                           (unsigned long long)step);
            is_whole = false;
        }
    }
    weft_piece_free(piece);
    return is_whole;
}
