/* manifest.c - a snapshot in memory, and its manifest as JSON.
 *
 *     {"format":"weft-snapshot-1","job":..,"step":..,"time":..,"workers":..,"shards":..,"weights":"f32",
 *      "tensors":[{"name":..,"dims":[..],"codec":..,"optimizer":..}],
 *      "parts":[[rank,bytes],..],
 *      "pieces":[{"name":..,"base":..,"chain":..,"bytes":..,"stored":..,
 *                 "ranges":[[tensor,part,offset,count,step],..]}],
 *      "checksum":XXH3-128 of this text without the checksum}
 *
 * Keys are sorted and there are no spaces, so a reader can write the same text and compare the checksum. */
#include <jansson.h>
#include <string.h>

#include "snapshot/manifest.h"

void weft_snapshot_init(struct weft_snapshot *snapshot, struct weft_env *env)
{
    *snapshot = (struct weft_snapshot){.env = env};
}

void weft_snapshot_fini(struct weft_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->piece_count; i++)
        weft_free_bytes(snapshot->env, snapshot->pieces[i].ranges);
    weft_free_bytes(snapshot->env, snapshot->pieces);
    weft_free_bytes(snapshot->env, snapshot->tensors);
    weft_free_bytes(snapshot->env, snapshot->parts);
    weft_snapshot_init(snapshot, snapshot->env);
}

/* Memory for one more entry of `bytes`. */
static bool grow(struct weft_env *env, void **entries, uint32_t count, uint32_t *capacity, size_t bytes)
{
    if (count < *capacity) return true;
    const uint32_t wanted = *capacity ? 2 * *capacity : 16;
    void *more = weft_alloc_array(env, wanted, bytes);
    if (!more) return false;
    if (count > 0) memcpy(more, *entries, count * bytes);
    weft_free_bytes(env, *entries);
    *entries = more;
    *capacity = wanted;
    return true;
}

struct weft_snapshot_tensor *weft_snapshot_add_tensor(struct weft_snapshot *snapshot)
{
    void *entries = snapshot->tensors;
    if (!grow(snapshot->env, &entries, snapshot->tensor_count, &snapshot->tensor_capacity,
              sizeof *snapshot->tensors))
        return NULL;
    snapshot->tensors = entries;
    struct weft_snapshot_tensor *tensor = &snapshot->tensors[snapshot->tensor_count++];
    *tensor = (struct weft_snapshot_tensor){.dim_count = 0};
    return tensor;
}

struct weft_snapshot_piece *weft_snapshot_add_piece(struct weft_snapshot *snapshot, uint32_t range_count)
{
    void *entries = snapshot->pieces;
    struct weft_snapshot_range *ranges =
        weft_alloc_zero(snapshot->env, (range_count ? range_count : 1) * sizeof *ranges);
    if (!ranges || !grow(snapshot->env, &entries, snapshot->piece_count, &snapshot->piece_capacity,
                         sizeof *snapshot->pieces)) {
        weft_free_bytes(snapshot->env, ranges);
        return NULL;
    }
    snapshot->pieces = entries;
    struct weft_snapshot_piece *piece = &snapshot->pieces[snapshot->piece_count++];
    *piece = (struct weft_snapshot_piece){.ranges = ranges, .range_count = range_count};
    return piece;
}

enum weft_status weft_snapshot_add_part(struct weft_snapshot *snapshot, uint32_t rank, uint64_t bytes)
{
    void *entries = snapshot->parts;
    if (weft_snapshot_find_part(snapshot, rank)) return WEFT_ERR_EXISTS;
    if (!grow(snapshot->env, &entries, snapshot->part_count, &snapshot->part_capacity,
              sizeof *snapshot->parts))
        return WEFT_ERR_NO_MEMORY;
    snapshot->parts = entries;
    uint32_t at = snapshot->part_count++;
    for (; at > 0 && snapshot->parts[at - 1].rank > rank; at--) snapshot->parts[at] = snapshot->parts[at - 1];
    snapshot->parts[at] = (struct weft_snapshot_worker){.rank = rank, .bytes = bytes};
    return WEFT_OK;
}

const struct weft_snapshot_worker *weft_snapshot_find_part(const struct weft_snapshot *snapshot,
                                                           uint32_t rank)
{
    uint32_t low = 0, high = snapshot->part_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (snapshot->parts[middle].rank < rank) low = middle + 1;
        else high = middle;
    }
    return low < snapshot->part_count && snapshot->parts[low].rank == rank ? &snapshot->parts[low] : NULL;
}

bool weft_snapshot_is_worker_piece(const struct weft_snapshot_piece *piece)
{
    return piece->range_count == 1 && piece->ranges[0].part == WEFT_PIECE_WORKER;
}

const struct weft_snapshot_tensor *weft_snapshot_find(const struct weft_snapshot *snapshot, const char *name,
                                                      uint32_t *index_out)
{
    for (uint32_t i = 0; i < snapshot->tensor_count; i++) {
        if (strcmp(snapshot->tensors[i].name, name) != 0) continue;
        *index_out = i;
        return &snapshot->tensors[i];
    }
    return NULL;
}

/* ---- JSON ---- */

static json_t *tensors_json(const struct weft_snapshot *snapshot)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < snapshot->tensor_count; i++) {
        const struct weft_snapshot_tensor *tensor = &snapshot->tensors[i];
        json_t *dims = json_array();
        for (uint32_t d = 0; d < tensor->dim_count; d++)
            (void)json_array_append_new(dims, json_integer((json_int_t)tensor->dims[d]));
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:o, s:s, s:s}", "name", tensor->name, "dims", dims,
                                              "codec", tensor->codec, "optimizer", tensor->optimizer));
    }
    return list;
}

static json_t *parts_json(const struct weft_snapshot *snapshot)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < snapshot->part_count; i++)
        (void)json_array_append_new(list, json_pack("[I, I]", (json_int_t)snapshot->parts[i].rank,
                                                    (json_int_t)snapshot->parts[i].bytes));
    return list;
}

static json_t *piece_json(const struct weft_snapshot_piece *piece)
{
    const struct weft_piece_ref *ref = &piece->ref;
    json_t *ranges = json_array();
    for (uint32_t i = 0; i < piece->range_count; i++) {
        const struct weft_snapshot_range *range = &piece->ranges[i];
        (void)json_array_append_new(ranges, json_pack("[I, I, I, I, I]", (json_int_t)range->tensor,
                                                      (json_int_t)range->part, (json_int_t)range->offset,
                                                      (json_int_t)range->count, (json_int_t)range->step));
    }
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:o}", "name", ref->name, "base", ref->base, "chain",
                     (json_int_t)ref->chain, "bytes", (json_int_t)ref->bytes, "stored",
                     (json_int_t)ref->stored, "ranges", ranges);
}

static json_t *snapshot_json(const struct weft_snapshot *snapshot)
{
    json_t *pieces = json_array();
    for (uint32_t i = 0; i < snapshot->piece_count; i++)
        (void)json_array_append_new(pieces, piece_json(&snapshot->pieces[i]));
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:o, s:o}", "format", MANIFEST_FORMAT, "job",
                     snapshot->job, "step", (json_int_t)snapshot->step, "time", (json_int_t)snapshot->time_s,
                     "workers", (json_int_t)snapshot->workers, "shards", (json_int_t)snapshot->shards,
                     "weights", weft_piece_dtype_text(snapshot->weights), "tensors", tensors_json(snapshot),
                     "parts", parts_json(snapshot), "pieces", pieces);
}

enum weft_status manifest_text(struct weft_env *env, const json_t *root, char **text_out, size_t *bytes_out)
{
    const size_t flags = JSON_COMPACT | JSON_SORT_KEYS, bytes = json_dumpb(root, NULL, 0, flags);
    if (bytes == 0) return WEFT_ERR_INVALID;
    *text_out = weft_alloc_bytes(env, bytes + 1);
    if (!*text_out) return WEFT_ERR_NO_MEMORY;
    *bytes_out = json_dumpb(root, *text_out, bytes, flags);
    (*text_out)[bytes] = 0;
    return WEFT_OK;
}

enum weft_status manifest_checksum(struct weft_env *env, const json_t *root,
                                   char text_out[WEFT_PIECE_NAME_BYTES])
{
    uint8_t hash[WEFT_CONTENT_HASH_BYTES];
    char *text;
    size_t bytes;
    WEFT_TRY(manifest_text(env, root, &text, &bytes));
    weft_content_hash(MANIFEST_FORMAT, strlen(MANIFEST_FORMAT), text, bytes, hash);
    weft_hex_encode(hash, sizeof hash, text_out);
    weft_free_bytes(env, text);
    return WEFT_OK;
}

/* An entry is missing if a name is not UTF-8 or without memory. */
static bool is_whole(const struct weft_snapshot *snapshot, const json_t *root)
{
    return root && json_array_size(json_object_get(root, "tensors")) == snapshot->tensor_count &&
           json_array_size(json_object_get(root, "parts")) == snapshot->part_count &&
           json_array_size(json_object_get(root, "pieces")) == snapshot->piece_count;
}

enum weft_status weft_snapshot_write(const struct weft_snapshot *snapshot, char **text_out, size_t *bytes_out)
{
    char checksum[WEFT_PIECE_NAME_BYTES];
    json_t *root = snapshot_json(snapshot);
    enum weft_status status = is_whole(snapshot, root) ? WEFT_OK : WEFT_ERR_INVALID;
    if (status == WEFT_OK) status = manifest_checksum(snapshot->env, root, checksum);
    if (status == WEFT_OK && json_object_set_new(root, "checksum", json_string(checksum)) != 0)
        status = WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) status = manifest_text(snapshot->env, root, text_out, bytes_out);
    json_decref(root);
    return status;
}
