/* prune.c - removes old manifests and the pieces that no manifest needs.
 *
 *     manifests, newest first -> the first `keep` -> set of names: their pieces, and bases of these
 *     files in pieces/ that are neither in the set nor new -> removed
 *
 * A manifest is removed before its pieces, so that no manifest names a missing piece. A manifest that cannot
 * be read stops the run: its pieces are unknown. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "snapshot/folder.h"
#include "snapshot/names.h"
#include "snapshot/piece_header.h"

/* The base of a piece is in its file. */
static enum weft_status add_bases(struct snapshot_names *names, const char *folder,
                                  const struct weft_piece_ref *ref, struct weft_error *error)
{
    struct weft_piece_ref at = *ref;
    for (uint32_t depth = 0; at.base[0] && depth < WEFT_PIECE_CHAIN_MAX; depth++) {
        struct weft_piece *piece;
        char name[WEFT_PIECE_NAME_BYTES];
        memcpy(name, at.base, sizeof name);
        if (snapshot_names_add(names, name) < 0)
            return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for names");
        if (at.chain <= 1) break;
        WEFT_TRY(snapshot_piece_read(names->env, folder, name, &piece, &at, error));
        weft_piece_free(piece);
    }
    return WEFT_OK;
}

static enum weft_status keep_manifest(struct snapshot_names *names, const char *folder, uint64_t step,
                                      struct weft_error *error)
{
    struct weft_snapshot snapshot;
    WEFT_TRY(weft_snapshot_load(names->env, folder, step, &snapshot, error));
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; status == WEFT_OK && i < snapshot.piece_count; i++) {
        if (snapshot_names_add(names, snapshot.pieces[i].ref.name) < 0)
            status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for names");
        if (status == WEFT_OK) status = add_bases(names, folder, &snapshot.pieces[i].ref, error);
    }
    weft_snapshot_fini(&snapshot);
    return status;
}

/* ---- removing ---- */

struct sweep {
    const struct snapshot_names *names;
    time_t newest; /* files that were written later stay */
    bool is_top;   /* the folder of the manifests */
    struct weft_snapshot_prune_result *result;
};

/* A piece that is not needed, or a part of a process that has ended. */
static bool is_garbage(const struct sweep *sweep, const char *file)
{
    char name[WEFT_PIECE_NAME_BYTES] = "";
    const bool is_manifest = strncmp(file, "snap-", 5) == 0;
    if (strstr(file, SNAPSHOT_PART_MARK)) return is_manifest == sweep->is_top;
    if (sweep->is_top || strlen(file) < WEFT_PIECE_NAME_BYTES - 1) return false;
    memcpy(name, file, WEFT_PIECE_NAME_BYTES - 1);
    return piece_name_is_valid(name) && strcmp(file + WEFT_PIECE_NAME_BYTES - 1, ".st.zst") == 0 &&
           !snapshot_names_has(sweep->names, name);
}

static void remove_file(const struct sweep *sweep, const char *path)
{
    struct stat found;
    if (stat(path, &found) != 0 || found.st_mtime > sweep->newest || unlink(path) != 0) return;
    sweep->result->pieces++;
    sweep->result->bytes += (uint64_t)found.st_size;
}

static void sweep_folder(const struct sweep *sweep, const char *folder, bool has_folders)
{
    DIR *stream = opendir(folder);
    if (!stream) return;
    for (struct dirent *entry; (entry = readdir(stream));) {
        char path[SNAPSHOT_PATH_BYTES];
        if (entry->d_name[0] == '.' ||
            (size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= sizeof path)
            continue;
        if (has_folders && strlen(entry->d_name) == 2) sweep_folder(sweep, path, false);
        else if (is_garbage(sweep, entry->d_name)) remove_file(sweep, path);
    }
    closedir(stream);
}

static enum weft_status remove_manifests(const char *folder, const uint64_t *steps, uint32_t count,
                                         struct weft_snapshot_prune_result *result, struct weft_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        char path[SNAPSHOT_PATH_BYTES];
        WEFT_TRY(snapshot_manifest_path(folder, steps[i], path, error));
        if (unlink(path) != 0 && errno != ENOENT)
            return weft_error_set(error, WEFT_ERR_IO, "cannot remove %.300s: %s", path, strerror(errno));
        result->manifests++;
    }
    return WEFT_OK;
}

enum weft_status weft_snapshot_prune(struct weft_env *env, const char *folder, uint32_t keep, uint64_t age_s,
                                     struct weft_snapshot_prune_result *result_out, struct weft_error *error)
{
    struct snapshot_names names = {.env = env};
    struct timespec now;
    char pieces[SNAPSHOT_PATH_BYTES];
    uint64_t *steps;
    uint32_t count;
    *result_out = (struct weft_snapshot_prune_result){0};
    WEFT_TRY(weft_snapshot_steps(env, folder, &steps, &count, error));
    const uint32_t old = count > keep ? count - keep : 0;
    enum weft_status status = WEFT_OK;
    for (uint32_t i = old; status == WEFT_OK && i < count; i++)
        status = keep_manifest(&names, folder, steps[i], error);
    if (status == WEFT_OK) status = remove_manifests(folder, steps, old, result_out, error);
    if (status == WEFT_OK) {
        snapshot_names_sort(&names);
        (void)timespec_get(&now, TIME_UTC);
        struct sweep sweep = {.names = &names, .newest = now.tv_sec - (time_t)age_s, .result = result_out};
        snprintf(pieces, sizeof pieces, "%s/pieces", folder);
        sweep_folder(&sweep, pieces, true);
        sweep.is_top = true;
        sweep_folder(&sweep, folder, false);
    }
    snapshot_names_free(&names);
    weft_free_bytes(env, steps);
    return status;
}
