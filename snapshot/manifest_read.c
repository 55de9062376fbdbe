/* manifest_read.c - reads a manifest: every field is checked before it is used.
 *
 *     text -> JSON -> checksum -> counts, names, ranges -> struct weft_snapshot
 *
 * Ranges lie inside their tensor. Of each tensor and part they neither overlap nor leave gaps, or the part is
 * absent: a restore can rely on every element. Of each worker's part the ranges cover its bytes. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/format.h"
#include "snapshot/manifest.h"
#include "snapshot/piece_header.h"

static enum weft_status refuse(struct weft_error *error, const char *what)
{
    return weft_error_set(error, WEFT_ERR_MALFORMED, "the manifest is damaged: %s", what);
}

static bool get_text(const json_t *object, const char *key, char *out, size_t out_bytes)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    const size_t bytes = json_string_length(value);
    if (!text || bytes >= out_bytes || strlen(text) != bytes || !weft_text_is_printable(text)) return false;
    memcpy(out, text, bytes + 1);
    return true;
}

static bool to_number(const json_t *value, uint64_t most, uint64_t *out)
{
    const json_int_t number = json_integer_value(value);
    *out = (uint64_t)number;
    return json_is_integer(value) && number >= 0 && (uint64_t)number <= most;
}

static bool get_number(const json_t *object, const char *key, uint64_t most, uint64_t *out)
{
    return to_number(json_object_get(object, key), most, out);
}

static uint64_t tensor_elems(const struct weft_snapshot_tensor *tensor)
{
    uint64_t elems = 1;
    for (uint32_t i = 0; i < tensor->dim_count; i++) elems *= tensor->dims[i];
    return elems;
}

static bool read_tensor(const json_t *entry, struct weft_snapshot_tensor *tensor)
{
    const json_t *dims = json_object_get(entry, "dims");
    uint64_t elems = 1;
    if (!get_text(entry, "name", tensor->name, sizeof tensor->name) || tensor->name[0] == 0 ||
        !get_text(entry, "codec", tensor->codec, sizeof tensor->codec) ||
        !get_text(entry, "optimizer", tensor->optimizer, sizeof tensor->optimizer) ||
        json_array_size(dims) < 1 || json_array_size(dims) > WEFT_LIMIT_DIMS)
        return false;
    tensor->dim_count = (uint32_t)json_array_size(dims);
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        if (!to_number(json_array_get(dims, i), WEFT_LIMIT_TENSOR_ELEMS / elems, &tensor->dims[i]) ||
            tensor->dims[i] == 0)
            return false;
        elems *= tensor->dims[i];
    }
    return true;
}

/* Bytes of a worker's part. */
static bool read_worker_range(const json_t *entry, const struct weft_snapshot *snapshot, uint64_t rank,
                              struct weft_snapshot_range *range)
{
    const struct weft_snapshot_worker *part = weft_snapshot_find_part(snapshot, (uint32_t)rank);
    if (!part) return false;
    range->tensor = (uint32_t)rank;
    range->part = WEFT_PIECE_WORKER;
    return to_number(json_array_get(entry, 2), part->bytes, &range->offset) &&
           to_number(json_array_get(entry, 3), part->bytes - range->offset, &range->count) &&
           range->count > 0 && to_number(json_array_get(entry, 4), snapshot->step, &range->step);
}

static bool read_range(const json_t *entry, const struct weft_snapshot *snapshot,
                       struct weft_snapshot_range *range)
{
    uint64_t tensor, part;
    if (json_array_size(entry) != 5 || !to_number(json_array_get(entry, 0), UINT32_MAX, &tensor) ||
        !to_number(json_array_get(entry, 1), WEFT_PIECE_WORKER, &part))
        return false;
    if (part == WEFT_PIECE_WORKER) return read_worker_range(entry, snapshot, tensor, range);
    if (tensor >= snapshot->tensor_count) return false;
    const uint64_t elems = tensor_elems(&snapshot->tensors[tensor]);
    range->tensor = (uint32_t)tensor;
    range->part = (uint8_t)part;
    return to_number(json_array_get(entry, 2), elems, &range->offset) &&
           to_number(json_array_get(entry, 3), elems - range->offset, &range->count) && range->count > 0 &&
           to_number(json_array_get(entry, 4), snapshot->step, &range->step);
}

static bool read_ref(const json_t *entry, struct weft_piece_ref *ref)
{
    uint64_t chain;
    if (!get_text(entry, "name", ref->name, sizeof ref->name) || !piece_name_is_valid(ref->name) ||
        !get_text(entry, "base", ref->base, sizeof ref->base) ||
        (ref->base[0] && !piece_name_is_valid(ref->base)) ||
        !get_number(entry, "chain", WEFT_PIECE_CHAIN_MAX, &chain) || (chain > 0) != (ref->base[0] != 0) ||
        !get_number(entry, "bytes", WEFT_PIECE_BYTES_MAX, &ref->bytes) ||
        !get_number(entry, "stored", 2 * WEFT_PIECE_BYTES_MAX, &ref->stored))
        return false;
    ref->chain = (uint32_t)chain;
    return true;
}

/* Bytes of a worker are alone in their piece, which has no base. */
static bool ranges_fit(const struct weft_snapshot_piece *piece)
{
    if (weft_snapshot_is_worker_piece(piece))
        return !piece->ref.base[0] && piece->ranges[0].count == piece->ref.bytes;
    for (uint32_t i = 0; i < piece->range_count; i++)
        if (piece->ranges[i].part == WEFT_PIECE_WORKER) return false;
    return true;
}

static enum weft_status read_pieces(const json_t *list, struct weft_snapshot *snapshot,
                                    struct weft_error *error)
{
    const json_t *entry;
    size_t index;
    if (!json_is_array(list) || json_array_size(list) > WEFT_SNAPSHOT_PIECES_MAX)
        return refuse(error, "it has no list of pieces, or too many");
    json_array_foreach (list, index, entry) {
        const json_t *ranges = json_object_get(entry, "ranges");
        const size_t count = json_array_size(ranges);
        if (count < 1 || count > WEFT_PIECE_ARRAYS_MAX)
            return refuse(error, "a piece has no ranges, or too many");
        struct weft_snapshot_piece *piece = weft_snapshot_add_piece(snapshot, (uint32_t)count);
        if (!piece) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a manifest");
        if (!read_ref(entry, &piece->ref)) return refuse(error, "a piece has no valid name, base or size");
        for (uint32_t i = 0; i < count; i++)
            if (!read_range(json_array_get(ranges, i), snapshot, &piece->ranges[i]))
                return refuse(error, "a range of a piece lies outside its tensor");
        if (!ranges_fit(piece)) return refuse(error, "a piece has bytes of a worker and other ranges");
    }
    return WEFT_OK;
}

static enum weft_status read_tensors(const json_t *list, struct weft_snapshot *snapshot,
                                     struct weft_error *error)
{
    const json_t *entry;
    size_t index;
    if (!json_is_array(list) || json_array_size(list) > WEFT_LIMIT_TENSORS)
        return refuse(error, "it has no list of tensors, or too many");
    json_array_foreach (list, index, entry) {
        struct weft_snapshot_tensor *tensor = weft_snapshot_add_tensor(snapshot);
        if (!tensor) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a manifest");
        if (!read_tensor(entry, tensor)) return refuse(error, "a tensor has no valid name, shape or codec");
    }
    return WEFT_OK;
}

/* Releases before the workers' parts wrote none. */
static enum weft_status read_parts(const json_t *list, struct weft_snapshot *snapshot,
                                   struct weft_error *error)
{
    const json_t *entry;
    size_t index;
    if (list && (!json_is_array(list) || json_array_size(list) > WEFT_LIMIT_WORKERS))
        return refuse(error, "its workers' parts are no list, or too many");
    json_array_foreach (list, index, entry) {
        uint64_t rank, bytes;
        if (json_array_size(entry) != 2 ||
            !to_number(json_array_get(entry, 0), WEFT_LIMIT_WORKERS - 1, &rank) ||
            !to_number(json_array_get(entry, 1), WEFT_LIMIT_SNAP_PART_BYTES, &bytes) || bytes == 0)
            return refuse(error, "a worker's part has no valid rank or size");
        const enum weft_status status = weft_snapshot_add_part(snapshot, (uint32_t)rank, bytes);
        if (status == WEFT_ERR_EXISTS) return refuse(error, "a rank has two parts");
        if (status < 0) return weft_error_set(error, status, "no memory for a manifest");
    }
    return WEFT_OK;
}

/* ---- are the ranges whole? ---- */

static int compare_ranges(const void *a, const void *b)
{
    const struct weft_snapshot_range *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool is_same_part(const struct weft_snapshot_range *a, const struct weft_snapshot_range *b)
{
    return a->tensor == b->tensor && a->part == b->part;
}

static uint64_t end_of(const struct weft_snapshot *snapshot, const struct weft_snapshot_range *range)
{
    return range->part == WEFT_PIECE_WORKER ? weft_snapshot_find_part(snapshot, range->tensor)->bytes
                                            : tensor_elems(&snapshot->tensors[range->tensor]);
}

static enum weft_status check_ranges(const struct weft_snapshot *snapshot, struct weft_error *error)
{
    size_t count = 0, used = 0;
    uint32_t parts = 0;
    for (uint32_t i = 0; i < snapshot->piece_count; i++) count += snapshot->pieces[i].range_count;
    struct weft_snapshot_range *all = weft_alloc_array(snapshot->env, count + 1, sizeof *all);
    if (!all) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a manifest");
    for (uint32_t i = 0; i < snapshot->piece_count; i++) {
        const struct weft_snapshot_piece *piece = &snapshot->pieces[i];
        memcpy(all + used, piece->ranges, piece->range_count * sizeof *all);
        used += piece->range_count;
    }
    qsort(all, count, sizeof *all, compare_ranges);
    bool is_good = true;
    for (size_t i = 0; i < count && is_good; i++) {
        const bool is_first = i == 0 || !is_same_part(&all[i - 1], &all[i]),
                   is_last = i + 1 == count || !is_same_part(&all[i], &all[i + 1]);
        is_good = all[i].offset == (is_first ? 0 : all[i - 1].offset + all[i - 1].count) &&
                  (!is_last || all[i].offset + all[i].count == end_of(snapshot, &all[i]));
        parts += is_first && all[i].part == WEFT_PIECE_WORKER;
    }
    is_good &= parts == snapshot->part_count;
    weft_free_bytes(snapshot->env, all);
    return is_good ? WEFT_OK : refuse(error, "the ranges of a tensor overlap or leave gaps");
}

/* ---- the whole manifest ---- */

static enum weft_status check_checksum(struct weft_env *env, json_t *root, struct weft_error *error)
{
    char given[WEFT_PIECE_NAME_BYTES], found[WEFT_PIECE_NAME_BYTES];
    if (!get_text(root, "checksum", given, sizeof given) || json_object_del(root, "checksum") != 0)
        return refuse(error, "it has no checksum");
    if (manifest_checksum(env, root, found) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a manifest");
    return strcmp(given, found) == 0 ? WEFT_OK : refuse(error, "its checksum differs");
}

static enum weft_status read_fields(json_t *root, struct weft_snapshot *snapshot, struct weft_error *error)
{
    char format[32], weights[16];
    uint64_t workers, shards;
    const bool has_format = get_text(root, "format", format, sizeof format);
    WEFT_TRY(snapshot_format_check(has_format ? format : NULL, MANIFEST_FORMAT, "the manifest", error));
    WEFT_TRY(check_checksum(snapshot->env, root, error));
    if (!get_text(root, "job", snapshot->job, sizeof snapshot->job) ||
        !get_number(root, "step", INT64_MAX - 1, &snapshot->step) ||
        !get_number(root, "time", INT64_MAX, &snapshot->time_s) ||
        !get_number(root, "workers", WEFT_LIMIT_WORKERS, &workers) ||
        !get_number(root, "shards", WEFT_LIMIT_SHARDS, &shards) ||
        !get_text(root, "weights", weights, sizeof weights) ||
        !weft_piece_dtype_parse(weights, &snapshot->weights))
        return refuse(error, "a field is missing or out of range");
    snapshot->workers = (uint32_t)workers;
    snapshot->shards = (uint32_t)shards;
    WEFT_TRY(read_tensors(json_object_get(root, "tensors"), snapshot, error));
    WEFT_TRY(read_parts(json_object_get(root, "parts"), snapshot, error));
    WEFT_TRY(read_pieces(json_object_get(root, "pieces"), snapshot, error));
    return check_ranges(snapshot, error);
}

enum weft_status weft_snapshot_read(struct weft_env *env, const char *text, size_t bytes,
                                    struct weft_snapshot *out, struct weft_error *error)
{
    weft_snapshot_init(out, env);
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    const enum weft_status status =
        json_is_object(root) ? read_fields(root, out, error) : refuse(error, "it is not JSON");
    json_decref(root);
    if (status < 0) weft_snapshot_fini(out);
    return status;
}
