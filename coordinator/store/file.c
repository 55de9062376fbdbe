/* file.c - the engine "file": an append-only file of records, shared by the processes of a host or folder.
 *
 *     PATH     "WEFTSTO1", then records (record.c), each with the hash of the one before
 *     begin    lock; read the records that other processes have appended; a torn tail is cut
 *     commit   append one record, fsync: then it is done
 *     end      compact if the file is long (write PATH.part, fsync, rename, fsync of the folder); unlock
 *
 * Torn tail: a process was killed, or its host lost power, before its fsync returned: the record was never
 * acknowledged, and it is the last one. A bad record with a whole one behind it is damage: cutting it would
 * lose acknowledged records, so the store is refused. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/store/file.h"
#include "coordinator/store/state.h"

static const char magic[8] = {'W', 'E', 'F', 'T', 'S', 'T', 'O', '1'};
#define FILE_BYTES_MAX ((uint64_t)1 << 30)

struct store_file {
    struct store_disk *disk;
    char name[256];  /* for sentences */
    uint64_t offset; /* end of the last record */
    uint64_t chain;  /* its hash */
    bool is_loaded;  /* false: the state is read from the beginning by the next call */
    bool has_failed; /* a write failed and could not be taken back: only opening the store again helps */
};

static enum weft_status fail(const struct store_file *file, struct weft_error *error, enum weft_status status,
                             const char *what)
{
    return weft_error_set(error, status, "the store %s %s%s%s", file->name, what,
                          status == WEFT_ERR_IO ? ": " : "", status == WEFT_ERR_IO ? strerror(errno) : "");
}

/* ---- reading ---- */

/* Applies the records of `data`, which begins at file->offset. Stops at the first that is not whole. */
static enum weft_status apply_records(struct store_state *state, struct store_file *file, const uint8_t *data,
                                      size_t bytes, struct weft_list *watches, size_t *applied_out)
{
    size_t at = 0, used;
    enum weft_status status = WEFT_OK;
    *applied_out = 0;
    while (status == WEFT_OK && at < bytes) {
        struct store_record record = {0};
        uint64_t chain = file->chain;
        status = store_record_decode(state->env, data + at, bytes - at, &chain, &record, &used);
        if (status == WEFT_OK && record.revision < state->revision) status = WEFT_ERR_MALFORMED;
        if (status == WEFT_OK) status = store_state_prepare(state, record.changes, record.change_count);
        if (status == WEFT_OK) {
            store_state_apply(state, record.changes, record.change_count, record.revision, watches);
            file->chain = chain;
            at += used;
            *applied_out = at;
        }
        store_record_free(state->env, &record);
    }
    const bool is_torn = status == WEFT_ERR_MALFORMED || status == WEFT_ERR_TRUNCATED;
    if (!is_torn) return status;
    return store_record_is_in(data + at + 1, bytes - at - 1) ? WEFT_ERR_MALFORMED : WEFT_ERR_TRUNCATED;
}

static enum weft_status cut_tail(struct store_file *file, struct weft_error *error)
{
    if (file->disk->truncate(file->disk, file->offset) < 0 || file->disk->sync(file->disk) < 0)
        return fail(file, error, WEFT_ERR_IO, "has a torn tail that cannot be cut");
    return WEFT_OK;
}

/* Reads everything from file->offset on into `state`. */
static enum weft_status read_on(struct store_state *state, struct store_file *file, struct weft_list *watches,
                                struct weft_error *error)
{
    uint64_t size;
    size_t applied;
    if (file->disk->size(file->disk, &size) < 0) return fail(file, error, WEFT_ERR_IO, "cannot be read");
    if (size == file->offset) return WEFT_OK;
    if (size < file->offset || size - file->offset > FILE_BYTES_MAX)
        return fail(file, error, WEFT_ERR_MALFORMED, "has become shorter, or is longer than 1 GiB");
    const size_t bytes = (size_t)(size - file->offset);
    uint8_t *data = weft_alloc_bytes(state->env, bytes);
    if (!data) return fail(file, error, WEFT_ERR_NO_MEMORY, "does not fit into memory");
    enum weft_status status = file->disk->read(file->disk, file->offset, data, bytes);
    if (status < 0) {
        weft_free_bytes(state->env, data);
        return fail(file, error, status, "cannot be read");
    }
    status = apply_records(state, file, data, bytes, watches, &applied);
    weft_free_bytes(state->env, data);
    file->offset += applied;
    if (status == WEFT_ERR_TRUNCATED) return cut_tail(file, error);
    if (status == WEFT_ERR_MALFORMED)
        return fail(file, error, status, "is damaged before its end; restore it from a copy");
    return status < 0 ? fail(file, error, status, "does not fit into memory") : WEFT_OK;
}

/* What a process that stopped while it created the file may leave: a part of the magic, then zeros. */
static bool is_unfinished(const char *found, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && found[at] == magic[at]) at++;
    while (at < bytes && found[at] == 0) at++;
    return at == bytes;
}

/* Checks the magic, or writes it into a file that has no record yet. */
static enum weft_status read_magic(struct store_file *file, struct weft_error *error)
{
    char found[sizeof magic] = "";
    uint64_t size;
    struct store_disk *disk = file->disk;
    if (disk->size(disk, &size) < 0) return fail(file, error, WEFT_ERR_IO, "cannot be read");
    const size_t bytes = size < sizeof magic ? (size_t)size : sizeof magic;
    if (bytes > 0 && disk->read(disk, 0, found, bytes) < 0)
        return fail(file, error, WEFT_ERR_IO, "cannot be read");
    if (memcmp(found, magic, sizeof magic) == 0) return WEFT_OK;
    if (memcmp(found, magic, sizeof magic - 1) == 0 && found[sizeof magic - 1] > '1' &&
        found[sizeof magic - 1] <= '9')
        return fail(
            file, error, WEFT_ERR_VERSION,
            "has a format of a newer release than this one, which reads WEFTSTO1: use a newer release of "
            "weft, or another server.store");
    if (size > sizeof magic || !is_unfinished(found, bytes))
        return fail(file, error, WEFT_ERR_MALFORMED, "is another file: it does not begin with WEFTSTO1");
    if (disk->write(disk, 0, magic, sizeof magic) < 0 || disk->sync(disk) < 0 || disk->sync_folder(disk) < 0)
        return fail(file, error, WEFT_ERR_IO, "cannot be created");
    return WEFT_OK;
}

static enum weft_status load(struct weft_store *store, struct weft_error *error)
{
    struct store_file *file = store->context;
    struct store_state fresh = {.env = store->state.env};
    file->is_loaded = false;
    if (file->disk->open(file->disk) < 0) return fail(file, error, WEFT_ERR_IO, "cannot be opened");
    WEFT_TRY(read_magic(file, error));
    file->offset = sizeof magic;
    file->chain = 0;
    const enum weft_status status = read_on(&fresh, file, NULL, error);
    if (status == WEFT_OK) store_state_replace(&store->state, &fresh, &store->watches);
    store_state_free(&fresh);
    file->is_loaded = status == WEFT_OK;
    return status;
}

static enum weft_status file_begin(struct weft_store *store, struct weft_error *error)
{
    struct store_file *file = store->context;
    if (file->has_failed) return fail(file, error, WEFT_ERR_IO, "has failed before; open it again");
    enum weft_status status = file->disk->lock(file->disk);
    if (status < 0)
        return fail(file, error, status,
                    status == WEFT_ERR_BUSY ? "is in use by another process" : "cannot be locked");
    if (!file->is_loaded || file->disk->is_replaced(file->disk)) status = load(store, error);
    else status = read_on(&store->state, file, &store->watches, error);
    if (status < 0) file->disk->unlock(file->disk);
    return status;
}

/* ---- writing ---- */

static enum weft_status append(struct store_file *file, const uint8_t *record, size_t bytes)
{
    struct store_disk *disk = file->disk;
    if (disk->write(disk, file->offset, record, bytes) == WEFT_OK && disk->sync(disk) == WEFT_OK)
        return WEFT_OK;
    /* the record must not become durable later */
    if (disk->truncate(disk, file->offset) < 0 || disk->sync(disk) < 0) file->has_failed = true;
    return WEFT_ERR_IO;
}

static enum weft_status file_commit(struct weft_store *store, const struct store_change *changes,
                                    size_t count, uint64_t revision)
{
    struct store_file *file = store->context;
    const size_t bytes = store_record_bytes(changes, count);
    uint8_t *record = weft_alloc_bytes(store->state.env, bytes);
    if (!record) return WEFT_ERR_NO_MEMORY;
    const uint64_t chain = store_record_encode(changes, count, revision, file->chain, record);
    const enum weft_status status = append(file, record, bytes);
    weft_free_bytes(store->state.env, record);
    if (status < 0) return status;
    file->offset += bytes;
    file->chain = chain;
    return WEFT_OK;
}

/* ---- compaction ---- */

/* The i-th change of a file that holds only what is alive: leases first. */
static struct store_change live_change(const struct store_state *state, size_t i)
{
    if (i >= state->lease_count)
        return (struct store_change){.kind = STORE_PUT, .entry = state->keys[i - state->lease_count]->entry};
    const struct store_lease *lease = &state->leases[i];
    return (struct store_change){
        .kind = STORE_LEASE, .entry.lease = lease->id, .ttl_ns = lease->ttl_ns, .beats = lease->beats};
}

/* One record for each change: *bytes_out of them, in `out` if it is not NULL. */
static void write_live(const struct store_state *state, uint8_t *out, size_t *bytes_out)
{
    uint64_t chain = 0;
    size_t bytes = sizeof magic;
    if (out) memcpy(out, magic, sizeof magic);
    for (size_t i = 0; i < state->lease_count + state->key_count; i++) {
        const struct store_change change = live_change(state, i);
        if (out) chain = store_record_encode(&change, 1, state->revision, chain, out + bytes);
        bytes += store_record_bytes(&change, 1);
    }
    /* also an empty store keeps its revision */
    if (out) (void)store_record_encode(NULL, 0, state->revision, chain, out + bytes);
    *bytes_out = bytes + store_record_bytes(NULL, 0);
}

static void compact(struct weft_store *store)
{
    struct store_file *file = store->context;
    struct store_disk *disk = file->disk;
    size_t bytes;
    write_live(&store->state, NULL, &bytes);
    uint8_t *data = weft_alloc_bytes(store->state.env, bytes);
    if (!data) return; /* a later call tries again */
    write_live(&store->state, data, &bytes);
    const bool is_written = disk->write_part(disk, data, bytes) == WEFT_OK;
    weft_free_bytes(store->state.env, data);
    if (!is_written) return; /* the file itself is unchanged */
    file->is_loaded = false; /* whichever of the two files has the path now */
    if (disk->rename_part(disk) < 0) return;
    /* until then a power loss could bring back the old file without the records that follow */
    if (disk->sync_folder(disk) < 0) file->has_failed = true;
}

static bool is_long(const struct weft_store *store)
{
    const struct store_file *file = store->context;
    size_t live_bytes;
    if (file->offset <= STORE_FILE_COMPACT_BYTES) return false;
    write_live(&store->state, NULL, &live_bytes);
    return file->offset > 2 * live_bytes + STORE_FILE_COMPACT_BYTES;
}

static void file_end(struct weft_store *store)
{
    struct store_file *file = store->context;
    if (!file->has_failed && file->is_loaded && is_long(store)) compact(store);
    file->disk->unlock(file->disk);
}

static void file_close(struct weft_store *store)
{
    struct store_file *file = store->context;
    file->disk->close(file->disk);
    weft_free_bytes(store->state.env, file);
}

static const struct store_engine engine = {
    .begin = file_begin, .end = file_end, .commit = file_commit, .close = file_close};

enum weft_status store_file_open(struct weft_env *env, struct store_disk *disk, const char *name,
                                 struct weft_store **out, struct weft_error *error)
{
    struct store_file *file = weft_alloc_zero(env, sizeof *file);
    struct weft_store *store = NULL;
    if (!file || store_create(env, &engine, file, &store) < 0) {
        weft_free_bytes(env, file);
        disk->close(disk);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the store %.200s", name);
    }
    file->disk = disk;
    snprintf(file->name, sizeof file->name, "%s", name);
    enum weft_status status = disk->open(disk);
    if (status < 0) (void)fail(file, error, status, "cannot be opened");
    else status = file_begin(store, error);
    if (status < 0) {
        weft_store_close(store);
        return status;
    }
    file_end(store);
    *out = store;
    return WEFT_OK;
}

enum weft_status weft_store_open_file(struct weft_env *env, const char *path, struct weft_store **out,
                                      struct weft_error *error)
{
    struct store_disk *disk;
    const enum weft_status status = store_disk_create(env, path, &disk);
    if (status < 0)
        return weft_error_set(error, status, "the store's path has 1 to 4095 bytes, and memory is needed");
    return store_file_open(env, disk, path, out, error);
}
