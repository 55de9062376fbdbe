/* fuzz_snapshot_manifest.c - any text is a valid manifest, which can be written and read again, or refused
 * with a sentence. A second run corrects the checksum, so that inputs reach the checks behind it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/manifest.h"
#include "tests/fuzz/fuzz.h"

static void read(const char *text, size_t bytes)
{
    struct weft_error error = {0};
    struct weft_snapshot snapshot, again;
    char *written;
    size_t written_bytes;
    if (weft_snapshot_read(weft_env_system(), text, bytes, &snapshot, &error) < 0) {
        if (!error.text[0]) abort();
        return;
    }
    if (weft_snapshot_write(&snapshot, &written, &written_bytes) < 0) abort();
    if (weft_snapshot_read(weft_env_system(), written, written_bytes, &again, &error) < 0) abort();
    if (again.piece_count != snapshot.piece_count || again.step != snapshot.step) abort();
    weft_snapshot_fini(&again);
    weft_snapshot_fini(&snapshot);
    weft_free_bytes(weft_env_system(), written);
}

static void read_with_checksum(json_t *root)
{
    char checksum[WEFT_PIECE_NAME_BYTES], *text;
    size_t bytes;
    (void)json_object_del(root, "checksum");
    if (manifest_checksum(weft_env_system(), root, checksum) < 0 ||
        json_object_set_new(root, "checksum", json_string(checksum)) != 0 ||
        manifest_text(weft_env_system(), root, &text, &bytes) < 0)
        return;
    read(text, bytes);
    weft_free_bytes(weft_env_system(), text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read((const char *)data, bytes);
    json_t *root = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(root)) read_with_checksum(root);
    json_decref(root);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    struct weft_snapshot snapshot;
    char *text;
    size_t bytes;
    weft_snapshot_init(&snapshot, weft_env_system());
    snprintf(snapshot.job, sizeof snapshot.job, "job %d", (int)number);
    snapshot.step = number * 1000;
    snapshot.weights = (enum weft_piece_dtype)(number % WEFT_PIECE_WEIGHT_DTYPES);
    for (uint32_t i = 0; i <= number % 3; i++) {
        struct weft_snapshot_tensor *tensor = weft_snapshot_add_tensor(&snapshot);
        struct weft_snapshot_piece *piece = weft_snapshot_add_piece(&snapshot, 2);
        snprintf(tensor->name, sizeof tensor->name, "layer%d", (int)i);
        tensor->dim_count = 2;
        tensor->dims[0] = 8;
        tensor->dims[1] = number + 1;
        memset(piece->ref.name, 'a' + (int)i, WEFT_PIECE_NAME_BYTES - 1);
        piece->ranges[0] = (struct weft_snapshot_range){.tensor = i, .count = 5};
        piece->ranges[1] =
            (struct weft_snapshot_range){.tensor = i, .offset = 5, .count = 8 * (number + 1) - 5};
    }
    if (number % 2) { /* a worker's part of two pieces */
        if (weft_snapshot_add_part(&snapshot, (uint32_t)number, 100) < 0) abort();
        for (uint32_t i = 0; i < 2; i++) {
            struct weft_snapshot_piece *piece = weft_snapshot_add_piece(&snapshot, 1);
            memset(piece->ref.name, 'd' + (int)i, WEFT_PIECE_NAME_BYTES - 1);
            piece->ref.bytes = i ? 40 : 60;
            piece->ranges[0] = (struct weft_snapshot_range){.tensor = (uint32_t)number,
                                                            .part = WEFT_PIECE_WORKER,
                                                            .offset = i ? 60 : 0,
                                                            .count = piece->ref.bytes};
        }
    }
    if (weft_snapshot_write(&snapshot, &text, &bytes) < 0) abort();
    weft_snapshot_fini(&snapshot);
    if (bytes <= capacity) memcpy(out, text, bytes);
    weft_free_bytes(weft_env_system(), text);
    return bytes <= capacity ? bytes : 0;
}
