/* weftd_snapshot_parts.c - the workers' parts, in the process that coordinates: into a snapshot, and out of
 * the restored one.
 *
 *     net      bytes of a worker -> task -> writer: piece on disk -> net: manifest, coordinator
 *     net      request -> engine thread: piece from disk -> net: answer of the coordinator
 *
 * A part is opaque: only workers interpret it. */
#include <stdio.h>
#include <string.h>

#include "server/daemon/weftd.h"
#include "server/daemon/weftd_snapshot.h"

/* ---- storing ---- */

/* Adds the stored piece to the manifest that is being made. */
static enum weft_status add_piece(struct weftd_snapshots *snapshots, const struct snapshot_task *task)
{
    struct weft_snapshot *manifest = &snapshots->manifest;
    if (task->part.offset == 0) WEFT_TRY(weft_snapshot_add_part(manifest, task->part.rank, task->part.total));
    struct weft_snapshot_piece *piece = weft_snapshot_add_piece(manifest, 1);
    if (!piece) return WEFT_ERR_NO_MEMORY;
    piece->ref = task->ref;
    piece->ranges[0] = (struct weft_snapshot_range){.tensor = task->part.rank,
                                                    .part = WEFT_PIECE_WORKER,
                                                    .offset = task->part.offset,
                                                    .count = task->part.bytes,
                                                    .step = task->part.step};
    return WEFT_OK;
}

/* Net thread. The text of the task is why it was not stored. */
static void on_stored(struct weft_command *command)
{
    struct snapshot_task *task = weft_container_of(command, struct snapshot_task, command);
    struct weftd_snapshots *snapshots = task->snapshots;
    struct weftd *weftd = snapshots->weftd;
    const bool is_current = task->begun == snapshots->begun;
    if (is_current && !task->text[0]) {
        const enum weft_status status = add_piece(snapshots, task);
        if (status < 0)
            snprintf(task->text, sizeof task->text, "no manifest entry for a part of rank %u: %s",
                     task->part.rank, weft_reason_text(status));
    }
    if (is_current)
        weft_coordinator_snapshot_stored(weft_coordinator_server_inner(weftd->coordinator), task->part.id,
                                         task->part.member, task->part.bytes, task->text);
    weft_list_remove(&task->in_flight);
    weft_free_bytes(weftd->env, task);
}

void weftd_snapshot_parts_free(struct weftd_snapshots *snapshots)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &snapshots->parts) {
        struct snapshot_task *task = weft_container_of(node, struct snapshot_task, in_flight);
        weft_list_remove(node);
        weft_piece_free(task->piece);
        weft_free_bytes(snapshots->weftd->env, task);
    }
}

void weftd_snapshot_part_write(struct weftd_snapshots *snapshots, struct snapshot_task *task)
{
    struct weft_error error = {0};
    const size_t bytes = task->piece->bytes;
    if (weft_piece_store(task->piece, snapshots->folder, NULL, NULL, &task->ref, &error) == WEFT_OK) {
        weftd_snapshot_put_piece(snapshots, &task->ref);
        atomic_fetch_add(&snapshots->stats.pieces, 1);
        atomic_fetch_add(&snapshots->stats.bytes, bytes);
        atomic_fetch_add(&snapshots->stats.stored_bytes, task->ref.stored);
    } else snprintf(task->text, sizeof task->text, "%.199s", error.text);
    weft_piece_free(task->piece);
    task->piece = NULL;
    task->command.fn = on_stored;
    weft_net_post(snapshots->weftd->net, &task->command);
}

void weftd_snapshot_on_part(void *context, const struct weft_snapshot_bytes *bytes)
{
    struct weftd *weftd = context;
    struct weftd_snapshots *snapshots = weftd->snapshots;
    struct snapshot_task *task = weft_alloc_zero(weftd->env, sizeof *task);
    if (!task) { /* the coordinator ends the snapshot after its deadline */
        weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "no memory for a part of rank %u", bytes->rank);
        return;
    }
    task->kind = SNAPSHOT_TASK_PART;
    task->snapshots = snapshots;
    task->begun = snapshots->begun;
    task->part = *bytes;
    task->part.data = NULL; /* valid in this call only */
    weft_list_init(&task->link);
    weft_list_append(&snapshots->parts, &task->in_flight);
    task->piece = weft_piece_create_worker(weftd->env, bytes->rank, bytes->offset, bytes->data, bytes->bytes);
    if (task->piece) {
        weftd_snapshot_task_put(snapshots, task);
        return;
    }
    snprintf(task->text, sizeof task->text, "no memory for a part of rank %u", bytes->rank);
    task->command.fn = on_stored;
    weft_net_post(weftd->net, &task->command);
}

/* ---- the restored snapshot ---- */

struct fetch_request {
    struct weftd_command base; /* must be the first member */
    uint32_t member, rank;
    uint64_t offset, total;
    uint8_t *data; /* (bytes,) owned */
    size_t bytes;
    struct weft_error error;
};

static void fetch_release(struct weftd_command *command)
{
    struct fetch_request *request = weft_container_of(command, struct fetch_request, base);
    weft_free_bytes(command->engine->weftd->env, request->data);
}

/* Net thread. */
static void on_fetched(struct weft_command *command)
{
    struct fetch_request *request = weft_container_of(command, struct fetch_request, base.command);
    struct weftd *weftd = request->base.engine->weftd;
    Weft__Control__SnapFetched fetched = WEFT__CONTROL__SNAP_FETCHED__INIT;
    fetched.rank = request->rank;
    fetched.offset = request->offset;
    fetched.bytes = request->total;
    fetched.data.data = request->data;
    fetched.data.len =
        request->bytes < WEFT_LIMIT_SNAP_DATA_BYTES ? request->bytes : WEFT_LIMIT_SNAP_DATA_BYTES;
    if (request->error.text[0]) fetched.error = request->error.text;
    if (!weftd->state.failing)
        weft_coordinator_snapshot_fetched(weft_coordinator_server_inner(weftd->coordinator), request->member,
                                          &fetched);
    weftd_command_reply(&request->base);
}

/* Engine thread. */
static void on_fetch(struct weft_command *command)
{
    struct fetch_request *request = weft_container_of(command, struct fetch_request, base.command);
    const struct weftd *weftd = request->base.engine->weftd;
    const struct weft_snapshot_worker *part = weft_snapshot_find_part(weftd->restored, request->rank);
    if (part) {
        request->total = part->bytes;
        (void)weft_snapshot_load_part(weftd->restored, weftd->restored_folder, request->rank, request->offset,
                                      &request->data, &request->bytes, &request->error);
    }
    request->base.command.fn = on_fetched;
    weft_net_post(weftd->net, &request->base.command);
}

static void on_fetch_request(void *context, uint32_t member, uint32_t rank, uint64_t offset)
{
    struct weftd *weftd = context;
    struct fetch_request *request = weft_alloc_zero(weftd->env, sizeof *request);
    if (!request) {
        weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory to read the part of rank %u of a snapshot", rank);
        return;
    }
    request->base.release = fetch_release;
    request->member = member;
    request->rank = rank;
    request->offset = offset;
    weftd_command_post(&request->base, &weftd->engines[0], on_fetch);
}

void weftd_restore_coordinate(struct weftd *weftd, struct weft_coordinator_options *options)
{
    const struct weft_snapshot *restored = weftd->restored;
    if (!restored) return;
    options->snapshots.restored_step = restored->step;
    options->snapshot_calls.fetch = on_fetch_request;
    if (restored->part_count > 0)
        options->snapshots.restored_parts = restored->parts[restored->part_count - 1].rank + 1;
}
