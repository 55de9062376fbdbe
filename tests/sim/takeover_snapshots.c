/* takeover_snapshots.c - see takeover_snapshots.h. Linked with --wrap of the calls that write files. */
#define _XOPEN_SOURCE 700
#include "tests/sim/takeover_snapshots.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include "snapshot/snapshot.h"
#include "tests/sim/sim_process.h"

static struct {
    const char *folder;
    uint32_t host, die_at, calls;
    bool is_behind, is_dead;
    void (*dies)(void);
    uint64_t committed_elsewhere;
} state;

/* ---- the folder ---- */

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)remove(path);
    return 0;
}

void takeover_snapshots_clear(const char *folder)
{
    (void)nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

void takeover_snapshots_begin(const char *folder, uint32_t host, uint32_t die_at, bool is_behind,
                              void (*dies)(void))
{
    takeover_snapshots_clear(folder);
    state.folder = folder;
    state.host = host;
    state.die_at = die_at;
    state.is_behind = is_behind;
    state.dies = dies;
    state.calls = 0;
    state.is_dead = false;
    state.committed_elsewhere = 0;
}

void takeover_snapshots_stop(void)
{
    state.is_dead = true;
}

/* ---- calls that write files ---- */

/* false: the process has died before the call. */
static bool may_write(struct weft_env *env, bool *dies_behind)
{
    *dies_behind = false;
    if (sim_process_host(env) != state.host) return true;
    if (state.is_dead) return false;
    if (++state.calls != state.die_at) return true;
    *dies_behind = state.is_behind;
    if (state.is_behind) return true;
    state.is_dead = true;
    state.dies();
    return false;
}

static void die_behind(bool dies)
{
    if (!dies) return;
    state.is_dead = true;
    state.dies();
}

enum weft_status __real_weft_piece_store(const struct weft_piece *piece, const char *folder,
                                         const struct weft_piece *base, const struct weft_piece_ref *base_ref,
                                         struct weft_piece_ref *ref_out, struct weft_error *error);
enum weft_status __wrap_weft_piece_store(const struct weft_piece *piece, const char *folder,
                                         const struct weft_piece *base, const struct weft_piece_ref *base_ref,
                                         struct weft_piece_ref *ref_out, struct weft_error *error);
enum weft_status __wrap_weft_piece_store(const struct weft_piece *piece, const char *folder,
                                         const struct weft_piece *base, const struct weft_piece_ref *base_ref,
                                         struct weft_piece_ref *ref_out, struct weft_error *error)
{
    bool dies_behind;
    if (!may_write(piece->env, &dies_behind))
        return weft_error_set(error, WEFT_ERR_IO, "the process is dead");
    const enum weft_status status = __real_weft_piece_store(piece, folder, base, base_ref, ref_out, error);
    die_behind(dies_behind);
    return status;
}

enum weft_status __real_weft_snapshot_commit(const struct weft_snapshot *snapshot, const char *folder,
                                             struct weft_error *error);
enum weft_status __wrap_weft_snapshot_commit(const struct weft_snapshot *snapshot, const char *folder,
                                             struct weft_error *error);
enum weft_status __wrap_weft_snapshot_commit(const struct weft_snapshot *snapshot, const char *folder,
                                             struct weft_error *error)
{
    bool dies_behind;
    if (!may_write(snapshot->env, &dies_behind))
        return weft_error_set(error, WEFT_ERR_IO, "the process is dead");
    const enum weft_status status = __real_weft_snapshot_commit(snapshot, folder, error);
    state.committed_elsewhere += status == WEFT_OK && sim_process_host(snapshot->env) != state.host;
    die_behind(dies_behind);
    return status;
}

/* ---- check ---- */

/* Counts the elements of "weights" with the right value. */
static bool check_piece(const struct weft_snapshot *snapshot, uint32_t index,
                        float (*value)(uint64_t step, uint32_t index), uint32_t *right, char *why,
                        size_t why_bytes)
{
    struct weft_error error = {0};
    struct weft_piece *piece;
    float element;
    if (weft_snapshot_load_piece(snapshot, state.folder, index, &piece, &error) < 0) {
        snprintf(why, why_bytes, "a piece of step %llu: %s", (unsigned long long)snapshot->step, error.text);
        return false;
    }
    bool is_right = true;
    for (uint32_t a = 0; a < piece->array_count && is_right; a++) {
        const struct weft_piece_array *array = &piece->arrays[a];
        if (array->part != WEFT_PIECE_VALUES) continue;
        for (uint64_t i = 0; i < array->count && is_right; i++) {
            weft_piece_values(piece, a, i, 1, &element);
            is_right = element == value(snapshot->step, (uint32_t)(array->offset + i));
            *right += is_right;
        }
    }
    weft_piece_free(piece);
    if (!is_right)
        snprintf(why, why_bytes, "the snapshot of step %llu has other weights than the job had",
                 (unsigned long long)snapshot->step);
    return is_right;
}

static bool check_step(struct weft_env *env, uint64_t step, float (*value)(uint64_t step, uint32_t index),
                       uint32_t count, char *why, size_t why_bytes)
{
    struct weft_snapshot snapshot;
    struct weft_error error = {0};
    uint32_t right = 0;
    if (weft_snapshot_load(env, state.folder, step, &snapshot, &error) < 0 ||
        weft_snapshot_verify(&snapshot, state.folder, NULL, &error) < 0) {
        snprintf(why, why_bytes, "the snapshot of step %llu: %s", (unsigned long long)step, error.text);
        return false;
    }
    for (uint32_t i = 0; i < snapshot.piece_count; i++)
        if (!weft_snapshot_is_worker_piece(&snapshot.pieces[i]) &&
            !check_piece(&snapshot, i, value, &right, why, why_bytes))
            return false;
    if (right == count) return true;
    snprintf(why, why_bytes, "the snapshot of step %llu has %u of %u weights", (unsigned long long)step,
             right, count);
    return false;
}

bool takeover_snapshots_check(struct weft_env *env, float (*value)(uint64_t step, uint32_t index),
                              uint32_t count, uint64_t *committed_out, char *why_out, size_t why_bytes)
{
    struct weft_error error = {0};
    uint64_t *steps = NULL;
    uint32_t step_count = 0;
    *committed_out = state.committed_elsewhere;
    if (weft_snapshot_steps(env, state.folder, &steps, &step_count, &error) < 0) {
        snprintf(why_out, why_bytes, "the folder of snapshots: %s", error.text);
        return false;
    }
    for (uint32_t i = 0; i < step_count; i++)
        if (!check_step(env, steps[i], value, count, why_out, why_bytes)) return false;
    return true;
}
