/* export.c - one plain safetensors file of a snapshot, that any reader of the format can load.
 *
 *     header from the manifest -> file of its final size -> each array is written at its place -> rename
 *
 * Memory is that of one piece. A tensor and part without ranges is left out. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "snapshot/folder.h"

/* Where each tensor and part begins in the file; 0: it is left out. */
struct places {
    struct weft_env *env;
    uint64_t (*begin)[WEFT_PIECE_PARTS]; /* (tensors,) owned */
    uint64_t end;
};

static uint64_t elems_of(const struct weft_snapshot_tensor *tensor)
{
    uint64_t elems = 1;
    for (uint32_t i = 0; i < tensor->dim_count; i++) elems *= tensor->dims[i];
    return elems;
}

/* Marks the parts that the snapshot has, and are asked for, with 1. */
static void mark(const struct weft_snapshot *snapshot, bool with_states, struct places *places)
{
    for (uint32_t i = 0; i < snapshot->piece_count; i++) {
        const struct weft_snapshot_piece *piece = &snapshot->pieces[i];
        if (weft_snapshot_is_worker_piece(piece)) continue;
        for (uint32_t k = 0; k < piece->range_count; k++)
            if (piece->ranges[k].part == WEFT_PIECE_VALUES ||
                (with_states && piece->ranges[k].part < WEFT_PIECE_RESIDUAL))
                places->begin[piece->ranges[k].tensor][piece->ranges[k].part] = 1;
    }
}

static json_t *entry_json(const struct weft_snapshot_tensor *tensor, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->dim_count; d++)
        (void)json_array_append_new(shape, json_integer((json_int_t)tensor->dims[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

/* Assigns the places, relative to the data, and describes them. NULL: no memory. */
static json_t *header_json(const struct weft_snapshot *snapshot, struct places *places)
{
    char step[24];
    snprintf(step, sizeof step, "%" PRIu64, snapshot->step);
    json_t *root = json_pack("{s:{s:s, s:s, s:s}}", "__metadata__", "format", "weft-export-1", "job",
                             snapshot->job, "step", step);
    for (uint32_t t = 0; root && t < snapshot->tensor_count; t++) {
        const uint64_t bytes = elems_of(&snapshot->tensors[t]) * sizeof(float);
        for (uint32_t part = 0; part < WEFT_PIECE_PARTS; part++) {
            char name[WEFT_LIMIT_NAME_BYTES + 16];
            if (places->begin[t][part] == 0) continue;
            if (part == WEFT_PIECE_VALUES) snprintf(name, sizeof name, "%s", snapshot->tensors[t].name);
            else
                snprintf(name, sizeof name, "%s.state%u", snapshot->tensors[t].name, part - WEFT_PIECE_STATE);
            places->begin[t][part] = places->end;
            places->end += bytes;
            if (json_object_set_new(
                    root, name, entry_json(&snapshot->tensors[t], places->begin[t][part], places->end)) == 0)
                continue;
            json_decref(root);
            return NULL;
        }
    }
    return root;
}

static bool write_at(int fd, const void *data, size_t bytes, uint64_t at)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        const ssize_t written = pwrite(fd, from, bytes, (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        from += written;
        at += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return true;
}

/* A device keeps its size. */
static bool set_size(int fd, uint64_t bytes)
{
    struct stat about;
    return fstat(fd, &about) == 0 && (!S_ISREG(about.st_mode) || ftruncate(fd, (off_t)bytes) == 0);
}

/* The header, padded to 8 bytes. Places become positions in the file. */
static enum weft_status write_header(const struct weft_snapshot *snapshot, int fd, struct places *places,
                                     bool with_states)
{
    mark(snapshot, with_states, places);
    json_t *root = header_json(snapshot, places);
    const size_t bytes = root ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0, padded = (bytes + 7) / 8 * 8;
    uint8_t *text = bytes > 0 ? weft_alloc_bytes(snapshot->env, 8 + padded) : NULL;
    if (text) {
        put_le64(text, padded);
        memset(text + 8, ' ', padded);
        (void)json_dumpb(root, (char *)text + 8, bytes, JSON_COMPACT);
    }
    json_decref(root);
    if (!text) return WEFT_ERR_NO_MEMORY;
    const bool is_written = write_at(fd, text, 8 + padded, 0) && set_size(fd, 8 + padded + places->end);
    weft_free_bytes(snapshot->env, text);
    for (uint32_t t = 0; t < snapshot->tensor_count; t++)
        for (uint32_t part = 0; part < WEFT_PIECE_PARTS; part++) places->begin[t][part] += 8 + padded;
    return is_written ? WEFT_OK : WEFT_ERR_IO;
}

static enum weft_status write_piece(const struct weft_snapshot *snapshot, int fd, const struct places *places,
                                    const bool (*has)[WEFT_PIECE_PARTS], uint32_t index,
                                    const struct weft_piece *piece)
{
    for (uint32_t k = 0; k < piece->array_count; k++) {
        const struct weft_snapshot_range *range = &snapshot->pieces[index].ranges[k];
        if (!has[range->tensor][range->part]) continue;
        float *values = weft_alloc_array(snapshot->env, range->count, sizeof *values);
        if (!values) return WEFT_ERR_NO_MEMORY;
        weft_piece_values(piece, k, 0, range->count, values);
        const bool is_written =
            write_at(fd, values, range->count * sizeof *values,
                     places->begin[range->tensor][range->part] + range->offset * sizeof *values);
        weft_free_bytes(snapshot->env, values);
        if (!is_written) return WEFT_ERR_IO;
    }
    return WEFT_OK;
}

static enum weft_status write_file(const struct weft_snapshot *snapshot, const char *folder, int fd,
                                   bool with_states, const struct weft_snapshot_progress *progress,
                                   struct weft_error *error)
{
    struct places places = {.env = snapshot->env};
    uint64_t total, stored, done = 0;
    const size_t tensors = snapshot->tensor_count + 1;
    bool(*has)[WEFT_PIECE_PARTS] = weft_alloc_zero(snapshot->env, tensors * sizeof *has);
    places.begin = weft_alloc_zero(snapshot->env, tensors * sizeof *places.begin);
    enum weft_status status = has && places.begin ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    weft_snapshot_sizes(snapshot, &total, &stored);
    if (status == WEFT_OK) {
        mark(snapshot, with_states, &places);
        for (size_t t = 0; t < tensors; t++)
            for (uint32_t part = 0; part < WEFT_PIECE_PARTS; part++)
                has[t][part] = places.begin[t][part] != 0;
        status = write_header(snapshot, fd, &places, with_states);
    }
    for (uint32_t i = 0; status == WEFT_OK && i < snapshot->piece_count; i++) {
        if (!weft_snapshot_is_worker_piece(&snapshot->pieces[i])) {
            struct weft_piece *piece;
            status = weft_snapshot_load_piece(snapshot, folder, i, &piece, error);
            if (status < 0) break;
            status = write_piece(snapshot, fd, &places, (const bool(*)[WEFT_PIECE_PARTS])has, i, piece);
            weft_piece_free(piece);
        }
        done += snapshot->pieces[i].ref.bytes;
        if (progress && progress->fn) progress->fn(progress->context, done, total);
    }
    weft_free_bytes(snapshot->env, has);
    weft_free_bytes(snapshot->env, places.begin);
    return status;
}

/* A terminal or a pipe cannot seek. A regular file that is written in place may have the output of other
 * commands. */
static bool has_positions(int fd)
{
    struct stat about;
    return fstat(fd, &about) == 0 && !S_ISREG(about.st_mode) && lseek(fd, 0, SEEK_CUR) >= 0;
}

enum weft_status weft_snapshot_export(const struct weft_snapshot *snapshot, const char *folder,
                                      const char *path, bool with_states,
                                      const struct weft_snapshot_progress *progress, struct weft_error *error)
{
    struct weft_replace_file file;
    int reason = weft_replace_file_open(&file, path, 0644);
    if (reason != 0)
        return weft_error_set(error, WEFT_ERR_IO, "cannot write %.300s: %s", path,
                              reason == ENXIO ? "no process reads this pipe" : strerror(reason));
    if (file.is_in_place && !has_positions(file.fd)) {
        (void)weft_replace_file_close(&file, 0, false);
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "cannot write %.300s: an export is not written in order; name a file, not a pipe", path);
    }
    enum weft_status status = write_file(snapshot, folder, file.fd, with_states, progress, error);
    reason = status == WEFT_OK ? 0 : status == WEFT_ERR_IO && errno != 0 ? errno : EIO;
    reason = weft_replace_file_close(&file, reason, true);
    if (status == WEFT_OK && reason != 0) status = WEFT_ERR_IO;
    if (status == WEFT_OK) return WEFT_OK;
    return weft_error_set(error, status, "cannot write %.300s: %s", path,
                          status == WEFT_ERR_IO ? strerror(reason) : weft_status_name(status));
}
