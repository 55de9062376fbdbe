/* verify.c - reads the pieces of a snapshot and compares them with its manifest. */
#include <string.h>

#include "snapshot/snapshot.h"

void weft_snapshot_sizes(const struct weft_snapshot *snapshot, uint64_t *bytes_out, uint64_t *stored_out)
{
    *bytes_out = *stored_out = 0;
    for (uint32_t i = 0; i < snapshot->piece_count; i++) {
        *bytes_out += snapshot->pieces[i].ref.bytes;
        *stored_out += snapshot->pieces[i].ref.stored;
    }
}

static bool is_array_of(const struct weft_piece_array *array, const struct weft_snapshot_range *range,
                        const struct weft_snapshot_tensor *tensor)
{
    return array->part == range->part && array->offset == range->offset && array->count == range->count &&
           strcmp(array->tensor, tensor->name) == 0;
}

enum weft_status weft_snapshot_load_piece(const struct weft_snapshot *snapshot, const char *folder,
                                          uint32_t index, struct weft_piece **out, struct weft_error *error)
{
    const struct weft_snapshot_piece *from = &snapshot->pieces[index];
    struct weft_piece *piece;
    WEFT_TRY(weft_piece_load(snapshot->env, folder, from->ref.name, &piece, error));
    bool is_same = piece->array_count == from->range_count && piece->bytes == from->ref.bytes;
    for (uint32_t i = 0; is_same && i < from->range_count; i++) {
        is_same =
            is_array_of(&piece->arrays[i], &from->ranges[i], &snapshot->tensors[from->ranges[i].tensor]);
        piece->arrays[i].step = from->ranges[i].step;
    }
    *out = piece;
    if (is_same) return WEFT_OK;
    weft_piece_free(piece);
    *out = NULL;
    return weft_error_set(error, WEFT_ERR_MALFORMED, "piece %s has other arrays than the manifest says",
                          from->ref.name);
}

enum weft_status weft_snapshot_verify(const struct weft_snapshot *snapshot, const char *folder,
                                      const struct weft_snapshot_progress *progress, struct weft_error *error)
{
    uint64_t total, stored, done = 0;
    weft_snapshot_sizes(snapshot, &total, &stored);
    for (uint32_t i = 0; i < snapshot->piece_count; i++) {
        struct weft_piece *piece;
        WEFT_TRY(weft_snapshot_load_piece(snapshot, folder, i, &piece, error));
        weft_piece_free(piece);
        done += snapshot->pieces[i].ref.bytes;
        if (progress && progress->fn) progress->fn(progress->context, done, total);
    }
    return WEFT_OK;
}
