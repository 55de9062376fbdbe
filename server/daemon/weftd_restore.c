/* weftd_restore.c - restores tensors from a snapshot when they are declared.
 *
 *     start      manifest -> weftd->restored
 *     declared   ranges of the tensor -> pieces that overlap chunks of the engine -> chunks   (engine thread)
 *
 * Shapes, placement and number of shards of the snapshot may differ: ranges are in elements of the tensor. An
 * engine reads each piece once for a tensor, and checks its hash. A tensor that the snapshot lacks starts
 * afresh; one with another shape or optimizer ends the job. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "compress/compress.h"
#include "kernels/kernels.h"
#include "server/daemon/weftd.h"
#include "server/shard/snapshot/shard_snapshot.h"

/* With a hook: copies what the folder lacks. */
static enum weft_status fetch(struct weftd *weftd, uint64_t *step, struct weft_error *error)
{
    struct weft_snapshot_hook *hook;
    const char *program = weft_config_text(weftd->options.config, "snapshot.hook");
    if (!program[0]) return WEFT_OK;
    WEFT_TRY(weft_snapshot_hook_create(weftd->env, program, &hook, error));
    const enum weft_status status = weft_snapshot_hook_fetch(hook, weftd->restored_folder, step, error);
    weft_snapshot_hook_free(hook);
    return status;
}

enum weft_status weftd_restore_load(struct weftd *weftd, struct weft_error *error)
{
    uint64_t step;
    const char *place = weftd->options.restore;
    if (!place[0]) return WEFT_OK;
    WEFT_TRY(weft_snapshot_place_parse(place, weftd->restored_folder, sizeof weftd->restored_folder, &step,
                                       error));
    WEFT_TRY(fetch(weftd, &step, error));
    struct weft_snapshot *snapshot = weft_alloc_zero(weftd->env, sizeof *snapshot);
    if (!snapshot) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a manifest");
    const enum weft_status status =
        weft_snapshot_load(weftd->env, weftd->restored_folder, step, snapshot, error);
    if (status < 0) {
        weft_free_bytes(weftd->env, snapshot);
        return status;
    }
    weft_log(weftd->env, WEFT_LOG_INFO, "weftd", "restores step %" PRIu64 " of %.300s", snapshot->step,
             weftd->restored_folder);
    if (snapshot->weights != WEFT_PIECE_F32)
        weft_log(weftd->env, WEFT_LOG_WARN, "weftd",
                 "the weights of step %" PRIu64 " are %s: the job continues from rounded weights",
                 snapshot->step, weft_piece_dtype_text(snapshot->weights));
    weftd->restored = snapshot;
    return WEFT_OK;
}

void weftd_restore_free(struct weftd *weftd)
{
    if (weftd->restored) weft_snapshot_fini(weftd->restored);
    weft_free_bytes(weftd->env, weftd->restored);
}

/* The tensor's step, and which parts the snapshot has of it. */
struct tensor_ranges {
    uint32_t parts; /* bits */
    uint64_t step;
    bool has_one_step;
};

static struct tensor_ranges ranges_of(const struct weft_snapshot *snapshot, uint32_t tensor)
{
    struct tensor_ranges found = {.has_one_step = true};
    for (uint32_t i = 0; i < snapshot->piece_count; i++) {
        const struct weft_snapshot_piece *piece = &snapshot->pieces[i];
        for (uint32_t k = 0; k < piece->range_count; k++) {
            if (piece->ranges[k].tensor != tensor || piece->ranges[k].part == WEFT_PIECE_WORKER) continue;
            if (found.parts && piece->ranges[k].step != found.step) found.has_one_step = false;
            found.parts |= 1u << piece->ranges[k].part;
            found.step = piece->ranges[k].step;
        }
    }
    return found;
}

static enum weft_status check_tensor(const struct weft_snapshot_tensor *tensor,
                                     const struct weft_optimizer *optimizer,
                                     const struct tensor_ranges *ranges, struct weft_error *error)
{
    struct weft_optimizer stored;
    const uint32_t states = weft_optimizer_states(optimizer);
    WEFT_TRY(weft_optimizer_parse(tensor->optimizer, &stored, error));
    if (stored.kind != optimizer->kind)
        return weft_error_set(
            error, WEFT_ERR_MISMATCH,
            "the snapshot has tensor '%.100s' with optimizer %.60s, the job declares another "
            "one: declare that, or start without --restore",
            tensor->name, tensor->optimizer);
    for (uint32_t state = 0; state < states; state++)
        if (!(ranges->parts & 1u << (WEFT_PIECE_STATE + state)))
            return weft_error_set(error, WEFT_ERR_MISMATCH,
                                  "the snapshot lacks state %u of the optimizer of tensor '%.100s'", state,
                                  tensor->name);
    if (!ranges->has_one_step)
        return weft_error_set(error, WEFT_ERR_MALFORMED, "the snapshot has tensor '%.100s' after two steps",
                              tensor->name);
    return WEFT_OK;
}

/* Small tensors share pieces, so the last one is kept. */
static enum weft_status load_piece(struct weftd_engine *engine, uint32_t index, struct weft_error *error)
{
    const struct weftd *weftd = engine->weftd;
    if (engine->restored_piece && engine->restored_index == index) return WEFT_OK;
    weft_piece_free(engine->restored_piece);
    engine->restored_piece = NULL;
    engine->restored_index = index;
    return weft_snapshot_load_piece(weftd->restored, weftd->restored_folder, index, &engine->restored_piece,
                                    error);
}

static enum weft_status restore_piece(struct weftd_engine *engine, uint32_t id, uint32_t tensor,
                                      uint32_t index, struct weft_error *error)
{
    const struct weft_snapshot_piece *from = &engine->weftd->restored->pieces[index];
    WEFT_TRY(load_piece(engine, index, error));
    for (uint32_t k = 0; k < from->range_count; k++)
        if (from->ranges[k].tensor == tensor)
            WEFT_TRY(weft_shard_engine_restore(engine->shard, id, engine->restored_piece, k, error));
    return WEFT_OK;
}

/* Is one of its ranges in a chunk of the engine? */
static bool is_needed(const struct weftd_engine *engine, uint32_t id, uint32_t tensor,
                      const struct weft_snapshot_piece *piece)
{
    if (weft_snapshot_is_worker_piece(piece)) return false;
    for (uint32_t k = 0; k < piece->range_count; k++)
        if (piece->ranges[k].tensor == tensor &&
            weft_shard_engine_overlaps(engine->shard, id, piece->ranges[k].offset, piece->ranges[k].count))
            return true;
    return false;
}

enum weft_status weftd_restore_tensor(struct weftd_engine *engine, const Weft__Control__Declared *declared,
                                      uint64_t *restored_out, struct weft_error *error)
{
    const struct weft_snapshot *snapshot = engine->weftd->restored;
    const Weft__Control__Declare *declare = declared->declare;
    const struct weft_optimizer *optimizer = weft_shard_engine_optimizer(engine->shard, declared->tensor);
    uint32_t index = 0;
    const struct weft_snapshot_tensor *tensor =
        snapshot && optimizer ? weft_snapshot_find(snapshot, declare->name, &index) : NULL;
    *restored_out = 0;
    if (!tensor) return WEFT_OK;
    const struct tensor_ranges ranges = ranges_of(snapshot, index);
    if (!(ranges.parts & 1u << WEFT_PIECE_VALUES)) return WEFT_OK; /* its weights are the workers' */
    if (tensor->dim_count != declare->n_dims ||
        memcmp(tensor->dims, declare->dims, declare->n_dims * sizeof *declare->dims) != 0)
        return weft_error_set(error, WEFT_ERR_MISMATCH, "the snapshot has tensor '%.100s' with another shape",
                              declare->name);
    WEFT_TRY(check_tensor(tensor, optimizer, &ranges, error));
    for (uint32_t i = 0; i < snapshot->piece_count; i++)
        if (is_needed(engine, declared->tensor, index, &snapshot->pieces[i]))
            WEFT_TRY(restore_piece(engine, declared->tensor, index, i, error));
    *restored_out = ranges.step + 1;
    return WEFT_OK;
}
