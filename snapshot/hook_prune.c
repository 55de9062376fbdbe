/* hook_prune.c - removes old snapshots from the other store, by the hook.
 *
 *     list -> manifests, newest first -> the first `keep` -> names of their pieces and bases
 *     delete of each older manifest -> delete of its pieces that no kept manifest has
 *
 * Manifests are read from the folder, or fetched into a temporary file. Only pieces that an old manifest
 * names are removed, so pieces of a snapshot that is not committed stay. A call that fails stops the run:
 * the next one begins with the manifests that are left. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "snapshot/hook.h"
#include "snapshot/names.h"

static enum weft_status fetch_manifest(struct weft_snapshot_hook *hook, const char *folder, const char *name,
                                       struct weft_snapshot *out, struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES];
    struct weft_env *env = snapshot_hook_env(hook);
    uint8_t *text;
    size_t bytes;
    if ((size_t)snprintf(path, sizeof path, "%s/%s" SNAPSHOT_PART_MARK "XXXXXX", folder, name) >= sizeof path)
        return weft_error_set(error, WEFT_ERR_LIMIT, "a path for the hook is too long: %.100s", name);
    const int fd = mkstemp(path);
    if (fd < 0) return weft_error_set(error, WEFT_ERR_IO, "cannot make %.300s", path);
    close(fd);
    enum weft_status status = snapshot_hook_run(hook, "get", name, path, error);
    if (status == WEFT_OK)
        status = snapshot_file_read(env, path, WEFT_SNAPSHOT_MANIFEST_BYTES_MAX, &text, &bytes, error);
    (void)unlink(path);
    WEFT_TRY(status);
    status = weft_snapshot_read(env, (const char *)text, bytes, out, error);
    weft_free_bytes(env, text);
    return status;
}

/* Adds the pieces of a manifest, and their bases. */
static enum weft_status add_pieces(struct weft_snapshot_hook *hook, const char *folder, uint64_t step,
                                   struct snapshot_names *names, struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES], name[WEFT_SNAPSHOT_FILE_BYTES];
    struct weft_snapshot snapshot;
    weft_snapshot_manifest_file(step, name);
    WEFT_TRY(snapshot_manifest_path(folder, step, path, error));
    if (access(path, R_OK) == 0)
        WEFT_TRY(weft_snapshot_load(snapshot_hook_env(hook), folder, step, &snapshot, error));
    else WEFT_TRY(fetch_manifest(hook, folder, name, &snapshot, error));
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; status == WEFT_OK && i < snapshot.piece_count; i++) {
        const struct weft_piece_ref *ref = &snapshot.pieces[i].ref;
        if (ref->chain > 1)
            status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                    "the bases of piece %s are not in its manifest", ref->name);
        else if (snapshot_names_add(names, ref->name) < 0 ||
                 (ref->base[0] && snapshot_names_add(names, ref->base) < 0))
            status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for names");
    }
    weft_snapshot_fini(&snapshot);
    return status;
}

static enum weft_status delete_file(struct weft_snapshot_hook *hook, const char *name,
                                    struct weft_error *error)
{
    return snapshot_hook_run(hook, "delete", name, "", error);
}

enum weft_status weft_snapshot_hook_prune(struct weft_snapshot_hook *hook, const char *folder, uint32_t keep,
                                          struct weft_error *error)
{
    struct snapshot_names kept = {.env = snapshot_hook_env(hook)}, old = {.env = kept.env};
    uint64_t *steps;
    uint32_t count;
    char file[WEFT_SNAPSHOT_FILE_BYTES];
    WEFT_TRY(snapshot_hook_steps(hook, &steps, &count, error));
    const uint32_t old_count = count > keep ? count - keep : 0;
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; old_count > 0 && status == WEFT_OK && i < count; i++)
        status = add_pieces(hook, folder, steps[i], i < old_count ? &old : &kept, error);
    snapshot_names_sort(&kept);
    snapshot_names_sort(&old);
    for (uint32_t i = 0; status == WEFT_OK && i < old_count; i++) {
        weft_snapshot_manifest_file(steps[i], file);
        status = delete_file(hook, file, error);
    }
    for (size_t i = 0; status == WEFT_OK && i < old.count; i++) {
        if (snapshot_names_has(&kept, old.list[i])) continue;
        weft_snapshot_piece_file(old.list[i], file);
        status = delete_file(hook, file, error);
    }
    snapshot_names_free(&kept);
    snapshot_names_free(&old);
    weft_free_bytes(kept.env, steps);
    return status;
}
