/* verify.c - reads the pieces of a snapshot and compares them with its manifest. */
#include <stdio.h>
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

static bool is_array_of(const struct weft_snapshot *snapshot, const struct weft_piece_array *array,
                        const struct weft_snapshot_range *range)
{
    char worker[24];
    const bool is_worker = range->part == WEFT_PIECE_WORKER;
    if (is_worker) snprintf(worker, sizeof worker, "rank%u", range->tensor);
    return array->part == range->part && array->offset == range->offset && array->count == range->count &&
           strcmp(array->tensor, is_worker ? worker : snapshot->tensors[range->tensor].name) == 0;
}

enum weft_status weft_snapshot_load_piece(const struct weft_snapshot *snapshot, const char *folder,
                                          uint32_t index, struct weft_piece **out, struct weft_error *error)
{
    const struct weft_snapshot_piece *from = &snapshot->pieces[index];
    struct weft_piece *piece;
    WEFT_TRY(weft_piece_load(snapshot->env, folder, from->ref.name, &piece, error));
    bool is_same = piece->array_count == from->range_count && piece->bytes == from->ref.bytes;
    for (uint32_t i = 0; is_same && i < from->range_count; i++) {
        is_same = is_array_of(snapshot, &piece->arrays[i], &from->ranges[i]);
        piece->arrays[i].step = from->ranges[i].step;
    }
    *out = piece;
    if (is_same) return WEFT_OK;
    weft_piece_free(piece);
    *out = NULL;
    return weft_error_set(error, WEFT_ERR_MALFORMED, "piece %s has other arrays than the manifest states",
                          from->ref.name);
}

enum weft_status weft_snapshot_load_part(const struct weft_snapshot *snapshot, const char *folder,
                                         uint32_t rank, uint64_t offset, uint8_t **data_out,
                                         size_t *bytes_out, struct weft_error *error)
{
    for (uint32_t i = 0; i < snapshot->piece_count; i++) {
        const struct weft_snapshot_range *range = &snapshot->pieces[i].ranges[0];
        struct weft_piece *piece;
        if (range->part != WEFT_PIECE_WORKER || range->tensor != rank || offset < range->offset ||
            offset - range->offset >= range->count)
            continue;
        WEFT_TRY(weft_snapshot_load_piece(snapshot, folder, i, &piece, error));
        const size_t skipped = (size_t)(offset - range->offset), bytes = piece->bytes - skipped;
        *data_out = weft_alloc_bytes(snapshot->env, bytes);
        if (*data_out) memcpy(*data_out, piece->data + skipped, bytes);
        *bytes_out = bytes;
        weft_piece_free(piece);
        return *data_out ? WEFT_OK
                         : weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a part of rank %u", rank);
    }
    return weft_error_set(error, WEFT_ERR_NOT_FOUND,
                          "the snapshot of step %llu has no bytes of rank %u there",
                          (unsigned long long)snapshot->step, rank);
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
