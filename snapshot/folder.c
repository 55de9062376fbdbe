/* folder.c - files of the snapshot folder: written whole, read with a bound.
 *
 *     NAME.part.XXXXXX -> fsync -> rename -> fsync of the folder
 *
 * A process that ends at any of these calls leaves the old file or the new one, and possibly a part, which
 * prune removes. Two processes that store one content rename equal files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "snapshot/folder.h"

#define PIECE_FILE_BYTES_MAX (2 * WEFT_PIECE_BYTES_MAX)

/* ---- paths ---- */

static enum weft_status path_make(char *out, struct weft_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum weft_status path_make(char *out, struct weft_error *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int bytes = vsnprintf(out, SNAPSHOT_PATH_BYTES, format, args);
    va_end(args);
    if (bytes >= 0 && bytes < SNAPSHOT_PATH_BYTES) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_INVALID, "the path of a snapshot has more than %d bytes: %.100s...",
                          SNAPSHOT_PATH_BYTES - 1, out);
}

void weft_snapshot_piece_file(const char *name, char file_out[WEFT_SNAPSHOT_FILE_BYTES])
{
    snprintf(file_out, WEFT_SNAPSHOT_FILE_BYTES, "pieces/%.2s/%s.st.zst", name, name);
}

void weft_snapshot_manifest_file(uint64_t step, char file_out[WEFT_SNAPSHOT_FILE_BYTES])
{
    snprintf(file_out, WEFT_SNAPSHOT_FILE_BYTES, "snap-%" PRIu64 ".json", step);
}

enum weft_status snapshot_piece_path(const char *folder, const char *name, char *out,
                                     struct weft_error *error)
{
    char file[WEFT_SNAPSHOT_FILE_BYTES];
    weft_snapshot_piece_file(name, file);
    return path_make(out, error, "%s/%s", folder, file);
}

enum weft_status snapshot_manifest_path(const char *folder, uint64_t step, char *out,
                                        struct weft_error *error)
{
    char file[WEFT_SNAPSHOT_FILE_BYTES];
    weft_snapshot_manifest_file(step, file);
    return path_make(out, error, "%s/%s", folder, file);
}

static enum weft_status io_error(struct weft_error *error, const char *what, const char *path)
{
    return weft_error_set(error, errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_IO, "cannot %s %.300s: %s",
                          what, path, strerror(errno));
}

/* ---- writing ---- */

static enum weft_status folder_sync(const char *path, struct weft_error *error)
{
    char folder[SNAPSHOT_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    const int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool is_synced = fd >= 0 && fsync(fd) == 0;
    const enum weft_status status = is_synced ? WEFT_OK : io_error(error, "flush the folder of", path);
    if (fd >= 0) close(fd);
    return status;
}

enum weft_status snapshot_file_write(const char *path, const void *data, size_t bytes,
                                     struct weft_error *error)
{
    struct weft_replace_file file;
    int reason = weft_replace_file_open(&file, path, 0644);
    if (reason == 0) {
        reason = fchmod(file.fd, 0644) == 0 ? weft_replace_file_write(&file, data, bytes) : errno;
        reason = weft_replace_file_close(&file, reason, true);
    }
    if (reason == 0) return folder_sync(path, error);
    errno = reason;
    return io_error(error, "write", path);
}

static enum weft_status folder_make(const char *path, struct weft_error *error)
{
    if (mkdir(path, 0755) == 0) return folder_sync(path, error);
    return errno == EEXIST ? WEFT_OK : io_error(error, "make the folder", path);
}

enum weft_status weft_snapshot_folder_make(const char *folder, struct weft_error *error)
{
    char pieces[SNAPSHOT_PATH_BYTES];
    WEFT_TRY(path_make(pieces, error, "%s/pieces", folder));
    WEFT_TRY(folder_make(folder, error));
    return folder_make(pieces, error);
}

enum weft_status snapshot_folder_make_inner(const char *folder, const char *name, struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES];
    WEFT_TRY(path_make(path, error, "%s/%s", folder, name));
    return folder_make(path, error);
}

static enum weft_status piece_write(const struct weft_piece *piece, const struct weft_piece *base,
                                    const char *path, struct weft_piece_ref *ref, struct weft_error *error)
{
    char folder[SNAPSHOT_PATH_BYTES];
    uint8_t *file;
    size_t bytes;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    WEFT_TRY(folder_make(folder, error));
    enum weft_status status = weft_piece_encode(piece, base, ref->base, ref->chain, &file, &bytes);
    if (status < 0)
        return weft_error_set(error, status, "cannot encode a piece: %s", weft_status_name(status));
    status = snapshot_file_write(path, file, bytes, error);
    ref->stored = bytes;
    weft_free_bytes(piece->env, file);
    return status;
}

/* The content is in the folder: what the manifest has to name. WEFT_ERR_NOT_FOUND: it is not, or damaged. */
static enum weft_status find_stored(const struct weft_piece *piece, const char *folder, const char *name,
                                    const char *path, struct weft_piece_ref *ref_out)
{
    struct stat found;
    struct weft_piece *stored;
    if (stat(path, &found) != 0) return WEFT_ERR_NOT_FOUND;
    (void)utimensat(AT_FDCWD, path, NULL, 0); /* prune spares new files */
    if (snapshot_piece_read(piece->env, folder, name, &stored, ref_out, NULL) < 0) return WEFT_ERR_NOT_FOUND;
    weft_piece_free(stored);
    return WEFT_OK;
}

enum weft_status weft_piece_store(const struct weft_piece *piece, const char *folder,
                                  const struct weft_piece *base, const struct weft_piece_ref *base_ref,
                                  struct weft_piece_ref *ref_out, struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES], name[WEFT_PIECE_NAME_BYTES];
    if (weft_piece_name(piece, name) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the name of a piece");
    WEFT_TRY(snapshot_piece_path(folder, name, path, error));
    if (find_stored(piece, folder, name, path, ref_out) == WEFT_OK) return WEFT_OK;
    *ref_out = (struct weft_piece_ref){.bytes = piece->bytes};
    memcpy(ref_out->name, name, sizeof name);
    if (base && base_ref->chain < WEFT_PIECE_CHAIN_MAX && strcmp(base_ref->name, name) != 0) {
        memcpy(ref_out->base, base_ref->name, sizeof ref_out->base);
        ref_out->chain = base_ref->chain + 1;
    } else base = NULL;
    return piece_write(piece, base, path, ref_out, error);
}

enum weft_status weft_snapshot_commit(const struct weft_snapshot *snapshot, const char *folder,
                                      struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES], *text;
    size_t bytes;
    WEFT_TRY(snapshot_manifest_path(folder, snapshot->step, path, error));
    enum weft_status status = weft_snapshot_write(snapshot, &text, &bytes);
    if (status < 0)
        return weft_error_set(error, status,
                              "the manifest of step %" PRIu64 " cannot be written as JSON: %s (names of "
                              "tensors must be UTF-8)",
                              snapshot->step, weft_status_name(status));
    status = snapshot_file_write(path, text, bytes, error);
    weft_free_bytes(snapshot->env, text);
    return status;
}

/* ---- reading ---- */

enum weft_status snapshot_file_read(struct weft_env *env, const char *path, size_t bytes_max,
                                    uint8_t **data_out, size_t *bytes_out, struct weft_error *error)
{
    struct stat found;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return io_error(error, "open", path);
    enum weft_status status = WEFT_OK;
    uint8_t *data = NULL;
    if (fstat(fd, &found) != 0) status = io_error(error, "read", path);
    else if (!S_ISREG(found.st_mode) || found.st_size <= 0 || (uint64_t)found.st_size > bytes_max)
        status =
            weft_error_set(error, WEFT_ERR_MALFORMED, "%.300s is no file of 1 to %zu bytes", path, bytes_max);
    else data = weft_alloc_bytes(env, (size_t)found.st_size);
    if (status == WEFT_OK && !data)
        status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to read %.300s", path);
    size_t used = 0;
    while (status == WEFT_OK && used < (size_t)found.st_size) {
        const ssize_t got = read(fd, data + used, (size_t)found.st_size - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = io_error(error, "read", path);
        else if (got == 0) status = weft_error_set(error, WEFT_ERR_MALFORMED, "%.300s became shorter", path);
        else used += (size_t)got;
    }
    close(fd);
    if (status < 0) weft_free_bytes(env, data);
    *data_out = status < 0 ? NULL : data;
    *bytes_out = used;
    return status;
}

enum weft_status snapshot_piece_read(struct weft_env *env, const char *folder, const char *name,
                                     struct weft_piece **out, struct weft_piece_ref *ref_out,
                                     struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES];
    uint8_t *file;
    size_t bytes;
    struct weft_error inner = {0};
    WEFT_TRY(snapshot_piece_path(folder, name, path, error));
    WEFT_TRY(snapshot_file_read(env, path, PIECE_FILE_BYTES_MAX, &file, &bytes, error));
    const enum weft_status status = weft_piece_decode(env, file, bytes, out, ref_out, &inner);
    weft_free_bytes(env, file);
    if (status < 0) return weft_error_set(error, status, "%.200s: %.250s", path, inner.text);
    snprintf(ref_out->name, sizeof ref_out->name, "%s", name);
    return WEFT_OK;
}

/* depth: pieces that may still follow. */
static enum weft_status load(struct weft_env *env, const char *folder, const char *name, uint32_t depth,
                             struct weft_piece **out, struct weft_error *error)
{
    struct weft_piece_ref ref;
    struct weft_piece *base;
    char found[WEFT_PIECE_NAME_BYTES];
    WEFT_TRY(snapshot_piece_read(env, folder, name, out, &ref, error));
    enum weft_status status = WEFT_OK;
    if (ref.base[0] && depth == 0)
        status = weft_error_set(error, WEFT_ERR_MALFORMED, "piece %s has a chain of more than %u bases", name,
                                WEFT_PIECE_CHAIN_MAX);
    else if (ref.base[0]) {
        status = load(env, folder, ref.base, depth - 1, &base, error);
        if (status == WEFT_OK) {
            status = weft_piece_rebase(*out, base);
            weft_piece_free(base);
            if (status < 0)
                weft_error_set(error, status, "piece %s does not fit its base %s", name, ref.base);
        }
    }
    if (status == WEFT_OK) status = weft_piece_name(*out, found);
    if (status == WEFT_OK && strcmp(found, name) != 0)
        status = weft_error_set(error, WEFT_ERR_MALFORMED, "piece %s is damaged: its content has the hash %s",
                                name, found);
    if (status == WEFT_OK) return WEFT_OK;
    weft_piece_free(*out);
    *out = NULL;
    return weft_error_set(error, status, "no memory for piece %s", name);
}

enum weft_status weft_piece_load(struct weft_env *env, const char *folder, const char *name,
                                 struct weft_piece **out, struct weft_error *error)
{
    return load(env, folder, name, WEFT_PIECE_CHAIN_MAX, out, error);
}

/* ---- the snapshots of a folder ---- */

static int compare_steps(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

bool snapshot_manifest_step(const char *name, uint64_t *step_out)
{
    char again[WEFT_SNAPSHOT_FILE_BYTES];
    if (sscanf(name, "snap-%20" SCNu64, step_out) != 1) return false;
    weft_snapshot_manifest_file(*step_out, again);
    return strcmp(name, again) == 0;
}

enum weft_status weft_snapshot_steps(struct weft_env *env, const char *folder, uint64_t **steps_out,
                                     uint32_t *count_out, struct weft_error *error)
{
    uint32_t capacity = 0;
    *steps_out = NULL;
    *count_out = 0;
    DIR *stream = opendir(folder);
    if (!stream) return io_error(error, "read the folder", folder);
    enum weft_status status = WEFT_OK;
    for (struct dirent *entry; status == WEFT_OK && (entry = readdir(stream));) {
        uint64_t step;
        if (!snapshot_manifest_step(entry->d_name, &step)) continue;
        if (*count_out == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            uint64_t *more = weft_alloc_array(env, capacity, sizeof *more);
            if (!more) {
                status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a list of snapshots");
                break;
            }
            if (*count_out) memcpy(more, *steps_out, *count_out * sizeof *more);
            weft_free_bytes(env, *steps_out);
            *steps_out = more;
        }
        (*steps_out)[(*count_out)++] = step;
    }
    closedir(stream);
    if (*count_out > 0) qsort(*steps_out, *count_out, sizeof **steps_out, compare_steps);
    return status;
}

static enum weft_status newest_step(struct weft_env *env, const char *folder, uint64_t *step_out,
                                    struct weft_error *error)
{
    uint64_t *steps;
    uint32_t count;
    WEFT_TRY(weft_snapshot_steps(env, folder, &steps, &count, error));
    if (count > 0) *step_out = steps[count - 1];
    weft_free_bytes(env, steps);
    return count > 0 ? WEFT_OK
                     : weft_error_set(error, WEFT_ERR_NOT_FOUND,
                                      "%.300s has no snapshot: no file is named snap-STEP.json", folder);
}

enum weft_status weft_snapshot_load(struct weft_env *env, const char *folder, uint64_t step,
                                    struct weft_snapshot *out, struct weft_error *error)
{
    char path[SNAPSHOT_PATH_BYTES];
    uint8_t *text;
    size_t bytes;
    struct weft_error inner = {0};
    if (step == WEFT_NEVER) WEFT_TRY(newest_step(env, folder, &step, error));
    WEFT_TRY(snapshot_manifest_path(folder, step, path, error));
    WEFT_TRY(snapshot_file_read(env, path, WEFT_SNAPSHOT_MANIFEST_BYTES_MAX, &text, &bytes, error));
    enum weft_status status = weft_snapshot_read(env, (const char *)text, bytes, out, &inner);
    weft_free_bytes(env, text);
    if (status < 0) return weft_error_set(error, status, "%.200s: %.250s", path, inner.text);
    if (out->step == step) return WEFT_OK;
    weft_snapshot_fini(out);
    return weft_error_set(error, WEFT_ERR_MALFORMED, "%.300s names another step than its file", path);
}

enum weft_status weft_snapshot_place_parse(const char *text, char *folder_out, size_t folder_bytes,
                                           uint64_t *step_out, struct weft_error *error)
{
    const char *colon = strrchr(text, ':');
    const bool has_step = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
    const size_t bytes = has_step ? (size_t)(colon - text) : strlen(text);
    if (bytes == 0 || bytes >= folder_bytes)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "'%.100s' names no snapshot; it is FOLDER, or FOLDER:STEP", text);
    memcpy(folder_out, text, bytes);
    folder_out[bytes] = 0;
    *step_out = WEFT_NEVER;
    if (!has_step) return WEFT_OK;
    errno = 0;
    *step_out = strtoull(colon + 1, NULL, 10);
    return errno == 0 && *step_out != WEFT_NEVER
               ? WEFT_OK
               : weft_error_set(error, WEFT_ERR_INVALID, "the step of '%.100s' is too large", text);
}
