/* weftd_snapshot_writer.c - the thread that writes captured pieces and commits manifests.
 *
 *     PIECE   -> quantise -> xor with the last full piece of its layout -> file -> memory is free
 *     END of every engine -> report to the net thread
 *     PART of a worker -> file -> net thread
 *     COMMIT  -> manifest -> prune -> net thread
 *
 * With a hook each file is copied too: the pieces before the report, the manifest last.
 *
 * A newer snapshot's first task discards what is left of the one before. At the end the thread empties its
 * queue, so that a snapshot whose pieces are all captured is committed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/daemon/weftd_snapshot.h"

#define BASE_USES_MAX 7u /* a piece is written in full every so many snapshots, plus one */
#define PRUNE_AGE_S 3600u

static struct weft_env *env_of(const struct weftd_snapshots *snapshots)
{
    return snapshots->weftd->env;
}

/* ---- bases ---- */

static struct snapshot_base *base_find(struct weftd_snapshots *snapshots, uint64_t layout)
{
    for (uint32_t i = 0; i < snapshots->writer.base_count; i++)
        if (snapshots->writer.bases[i].layout == layout) return &snapshots->writer.bases[i];
    return NULL;
}

/* NULL: no memory, so the next piece of this layout is written in full too. */
static struct snapshot_base *base_add(struct weftd_snapshots *snapshots, uint64_t layout)
{
    struct snapshot_base *found = base_find(snapshots, layout);
    if (found) return found;
    if (snapshots->writer.base_count == snapshots->writer.base_capacity) {
        const uint32_t capacity = snapshots->writer.base_capacity ? 2 * snapshots->writer.base_capacity : 64;
        struct snapshot_base *more = weft_alloc_array(env_of(snapshots), capacity, sizeof *more);
        if (!more) return NULL;
        if (snapshots->writer.base_count > 0)
            memcpy(more, snapshots->writer.bases, snapshots->writer.base_count * sizeof *more);
        weft_free_bytes(env_of(snapshots), snapshots->writer.bases);
        snapshots->writer.bases = more;
        snapshots->writer.base_capacity = capacity;
    }
    snapshots->writer.bases[snapshots->writer.base_count].layout = layout;
    return &snapshots->writer.bases[snapshots->writer.base_count++];
}

/* Stores the piece on its base, or in full. A base that cannot be read is not used. */
static enum weft_status store(struct weftd_snapshots *snapshots, const struct weft_piece *piece,
                              struct weft_piece_ref *ref_out, struct weft_error *error)
{
    uint64_t layout;
    struct weft_piece *base = NULL;
    if (weft_piece_layout(piece, &layout) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a piece");
    struct snapshot_base *last = base_find(snapshots, layout);
    const bool is_on_base =
        last && last->uses < BASE_USES_MAX &&
        weft_piece_load(env_of(snapshots), snapshots->folder, last->ref.name, &base, NULL) == WEFT_OK;
    const enum weft_status status = weft_piece_store(piece, snapshots->folder, is_on_base ? base : NULL,
                                                     is_on_base ? &last->ref : NULL, ref_out, error);
    if (is_on_base) weft_piece_free(base);
    if (status < 0) return status;
    if (is_on_base) last->uses++;
    else if (ref_out->chain == 0) {
        last = base_add(snapshots, layout);
        if (last) *last = (struct snapshot_base){.layout = layout, .ref = *ref_out};
    }
    return WEFT_OK;
}

/* ---- the report ---- */

static void report_free(struct weftd_snapshots *snapshots)
{
    if (!snapshots->writer.report) return;
    weft_snapshot_fini(&snapshots->writer.report->stored);
    weft_free_bytes(env_of(snapshots), snapshots->writer.report);
    snapshots->writer.report = NULL;
}

/* The report of the task's snapshot; NULL: the task is of an older one, or no memory. */
static struct snapshot_report *report_of(struct weftd_snapshots *snapshots, const struct snapshot_task *task)
{
    if (snapshots->writer.report && snapshots->writer.report->id == task->id) return snapshots->writer.report;
    if (task->id <= snapshots->writer.newest_id) return NULL;
    report_free(snapshots);
    snapshots->writer.newest_id = task->id;
    snapshots->writer.ended = 0;
    snapshots->writer.report = weft_alloc_zero(env_of(snapshots), sizeof *snapshots->writer.report);
    if (!snapshots->writer.report) return NULL;
    snapshots->writer.report->command.fn = weftd_snapshot_on_report;
    snapshots->writer.report->snapshots = snapshots;
    snapshots->writer.report->id = task->id;
    weft_snapshot_init(&snapshots->writer.report->stored, env_of(snapshots));
    return snapshots->writer.report;
}

static void report_fail(struct snapshot_report *report, const char *text)
{
    if (!report->text[0]) snprintf(report->text, sizeof report->text, "%s", text);
}

static void report_add(struct snapshot_report *report, const struct weft_piece *piece,
                       const struct weft_piece_ref *ref)
{
    struct weft_snapshot_piece *added = weft_snapshot_add_piece(&report->stored, piece->array_count);
    if (!added) {
        report_fail(report, "no memory for a list of pieces");
        return;
    }
    added->ref = *ref;
    for (uint32_t i = 0; i < piece->array_count; i++) {
        const struct weft_piece_array *array = &piece->arrays[i];
        added->ranges[i] = (struct weft_snapshot_range){.tensor = array->tensor_id,
                                                        .part = array->part,
                                                        .offset = array->offset,
                                                        .count = array->count,
                                                        .step = array->step};
    }
}

/* ---- tasks ---- */

static bool is_base_of_ours(const struct weftd_snapshots *snapshots, const char *name)
{
    for (uint32_t i = 0; i < snapshots->writer.base_count; i++)
        if (strcmp(snapshots->writer.bases[i].ref.name, name) == 0) return true;
    return false;
}

void weftd_snapshot_put_piece(struct weftd_snapshots *snapshots, const struct weft_piece_ref *ref)
{
    char name[WEFT_SNAPSHOT_FILE_BYTES];
    if (!snapshots->writer.hook) return;
    weft_snapshot_piece_file(ref->name, name);
    weft_snapshot_hook_put(snapshots->writer.hook, snapshots->folder, name);
    if (!ref->base[0] || is_base_of_ours(snapshots, ref->base)) return;
    /* content of an earlier process, whose base may not have been copied */
    weft_snapshot_piece_file(ref->base, name);
    weft_snapshot_hook_put(snapshots->writer.hook, snapshots->folder, name);
}

static void write_piece(struct weftd_snapshots *snapshots, struct snapshot_task *task)
{
    struct snapshot_report *report = report_of(snapshots, task);
    struct weft_error error = {0};
    struct weft_piece_ref ref;
    const uint64_t began_ns = weft_now_ns(env_of(snapshots));
    const size_t bytes = task->piece->bytes;
    if (report && !report->text[0]) {
        weft_piece_quantise(task->piece, snapshots->weights);
        if (store(snapshots, task->piece, &ref, &error) == WEFT_OK) {
            report_add(report, task->piece, &ref);
            weftd_snapshot_put_piece(snapshots, &ref);
            atomic_fetch_add(&snapshots->stats.pieces, 1);
            atomic_fetch_add(&snapshots->stats.bytes, bytes);
            atomic_fetch_add(&snapshots->stats.stored_bytes, ref.stored);
        } else report_fail(report, error.text);
    }
    atomic_fetch_add(&snapshots->stats.write_ns, weft_elapsed_ns(began_ns, weft_now_ns(env_of(snapshots))));
    weft_piece_free(task->piece);
    weftd_snapshot_give_back(snapshots, bytes);
}

static void end_engine(struct weftd_snapshots *snapshots, const struct snapshot_task *task)
{
    struct snapshot_report *report = report_of(snapshots, task);
    if (!report) return;
    if (task->text[0]) report_fail(report, task->text);
    if (++snapshots->writer.ended < snapshots->weftd->options.engines) return;
    struct weft_error error = {0};
    if (snapshots->writer.hook && weft_snapshot_hook_wait(snapshots->writer.hook, &error) < 0)
        report_fail(report, error.text);
    snapshots->writer.report = NULL; /* the net thread frees it */
    weft_net_post(snapshots->weftd->net, &report->command);
}

/* After a commit. */
static void count_commit(struct weftd_snapshots *snapshots, const struct snapshot_task *task)
{
    const uint64_t took_ns = weft_elapsed_ns(task->passed_ns, weft_now_ns(env_of(snapshots)));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < task->manifest.piece_count; i++) bytes += task->manifest.pieces[i].ref.stored;
    pthread_mutex_lock(&snapshots->writer.lock);
    weft_histogram_add(&snapshots->writer.seconds, took_ns);
    weft_histogram_add_bytes(&snapshots->writer.bytes, bytes);
    pthread_mutex_unlock(&snapshots->writer.lock);
    atomic_store(&snapshots->stats.step, task->manifest.step);
    atomic_store(&snapshots->stats.time_s, task->manifest.time_s);
    atomic_fetch_add(&snapshots->stats.committed, 1);
}

static void commit(struct weftd_snapshots *snapshots, struct snapshot_task *task)
{
    struct weft_env *env = env_of(snapshots);
    struct weft_error error = {0}, prune_error = {0}, hook_error = {0};
    struct weft_snapshot_prune_result result;
    char name[WEFT_SNAPSHOT_FILE_BYTES];
    /* the workers' parts have been put since the pieces */
    bool is_good =
        !snapshots->writer.hook || weft_snapshot_hook_wait(snapshots->writer.hook, &error) == WEFT_OK;
    if (is_good) is_good = weft_snapshot_commit(&task->manifest, snapshots->folder, &error) == WEFT_OK;
    if (is_good && snapshots->writer.hook) {
        weft_snapshot_manifest_file(task->manifest.step, name);
        weft_snapshot_hook_put(snapshots->writer.hook, snapshots->folder, name);
        is_good = weft_snapshot_hook_wait(snapshots->writer.hook, &error) == WEFT_OK;
    }
    if (is_good) {
        count_commit(snapshots, task);
    } else {
        atomic_fetch_add(&snapshots->stats.failed, 1);
        weft_log(env, WEFT_LOG_WARN, "weftd", "snapshot: %s", error.text);
    }
    if (is_good &&
        weft_snapshot_prune(env, snapshots->folder, snapshots->keep, PRUNE_AGE_S, &result, &prune_error) < 0)
        weft_log(env, WEFT_LOG_WARN, "weftd", "old snapshots stay: %s", prune_error.text);
    if (is_good && snapshots->writer.hook && snapshots->hook_keep > 0 &&
        weft_snapshot_hook_prune(snapshots->writer.hook, snapshots->folder, snapshots->hook_keep,
                                 &hook_error) < 0)
        weft_log(env, WEFT_LOG_WARN, "weftd", "old snapshots stay in the other store: %s", hook_error.text);
    weft_snapshot_fini(&task->manifest);
    snapshots->commit_is_good = is_good;
    weft_net_post(snapshots->weftd->net, &snapshots->committed);
}

void weftd_snapshot_writer_run(struct weftd_snapshots *snapshots, struct snapshot_task *task)
{
    switch (task->kind) {
    case SNAPSHOT_TASK_PIECE: write_piece(snapshots, task); break;
    case SNAPSHOT_TASK_END: end_engine(snapshots, task); break;
    case SNAPSHOT_TASK_COMMIT: commit(snapshots, task); break;
    case SNAPSHOT_TASK_PART: weftd_snapshot_part_write(snapshots, task); return; /* the net thread frees it */
    }
    weft_free_bytes(env_of(snapshots), task);
}

static void *writer_main(void *argument)
{
    struct weftd_snapshots *snapshots = argument;
    pthread_mutex_lock(&snapshots->writer.lock);
    for (;;) {
        while (weft_list_empty(&snapshots->writer.queue) && !snapshots->writer.stops)
            pthread_cond_wait(&snapshots->writer.changed, &snapshots->writer.lock);
        if (weft_list_empty(&snapshots->writer.queue)) break;
        struct snapshot_task *task = weft_list_first(&snapshots->writer.queue, struct snapshot_task, link);
        weft_list_remove(&task->link);
        pthread_mutex_unlock(&snapshots->writer.lock);
        weftd_snapshot_writer_run(snapshots, task);
        pthread_mutex_lock(&snapshots->writer.lock);
    }
    pthread_mutex_unlock(&snapshots->writer.lock);
    return NULL;
}

/* ---- life ---- */

enum weft_status weftd_snapshot_writer_start(struct weftd_snapshots *snapshots, struct weft_error *error)
{
    if (env_of(snapshots)->virtual_time) return WEFT_OK;
    const int reason = pthread_create(&snapshots->writer.thread, NULL, writer_main, snapshots);
    snapshots->writer.has_thread = reason == 0;
    if (reason == 0) return WEFT_OK;
    return weft_limit_error(error, "the snapshot thread", reason, "cannot start the snapshot thread");
}

void weftd_snapshot_writer_fini(struct weftd_snapshots *snapshots)
{
    report_free(snapshots);
    weft_snapshot_hook_free(snapshots->writer.hook);
    weft_free_bytes(env_of(snapshots), snapshots->writer.bases);
}
