/* input_backup.c - copies of memory that the open step overwrites, to restore it if the step is repeated or
 * skipped.
 *
 *     in-place calls with preserve_input, results of shards  copied by the call, as a whole
 *     updates by an optimiser in this process                reserved by the call; each slice is copied
 *                                                            before its update, while in the cache
 *
 * The memory of a copy is reused by the next step. The caller's thread owns the lists. The engine fills a
 * reserved copy until the request of its update has completed. */
#include "client/call/input_backup.h"

#include <string.h>

#include "client/call/calls.h"
#include "client/session/failure.h"
#include "client/session/session.h"

struct backup {
    struct weft_list link;
    void *buffer;  /* the caller's memory */
    size_t capacity;
    size_t filled; /* bytes of `copy` that hold the old content; only these are restored */
    bool update;   /* an optimiser overwrites it: restored also if the step is skipped */
    uint8_t *copy; /* (capacity,) owned */
};

static void backup_free(struct weft_session *session, struct backup *backup)
{
    weft_list_remove(&backup->link);
    weft_free_bytes(session->env, backup->copy);
    weft_free_bytes(session->env, backup);
}

/* The smallest idle copy of sufficient capacity. */
static struct backup *find_idle(struct weft_session *session, size_t bytes)
{
    struct backup *best = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->calls->idle_backups) {
        struct backup *backup = weft_container_of(node, struct backup, link);
        if (backup->capacity >= bytes && (!best || backup->capacity < best->capacity)) best = backup;
    }
    if (best) weft_list_remove(&best->link);
    return best;
}

static enum weft_status reserve(struct weft_session *session, void *buffer, size_t bytes, bool update,
                                struct backup **backup_out)
{
    struct backup *backup = find_idle(session, bytes);
    if (!backup) {
        backup = weft_alloc_zero(session->env, sizeof *backup);
        if (backup) backup->copy = weft_alloc_bytes(session->env, bytes);
        if (!backup || !backup->copy) {
            weft_free_bytes(session->env, backup);
            return client_error(session, WEFT_ERR_NO_MEMORY,
                                "no memory to keep %zu bytes that the step overwrites", bytes);
        }
        weft_list_init(&backup->link);
        backup->capacity = bytes;
    }
    backup->buffer = buffer;
    backup->update = update;
    backup->filled = 0;
    weft_list_append(&session->calls->backups, &backup->link);
    *backup_out = backup;
    return WEFT_OK;
}

/* Non-temporal stores: the copy is read only if the step fails. */
void client_backup_fill(struct backup *backup, size_t to)
{
    weft_copy_nontemporal(backup->copy + backup->filled, (const uint8_t *)backup->buffer + backup->filled,
                          to - backup->filled);
    backup->filled = to;
}

static enum weft_status copy(struct weft_session *session, void *buffer, size_t bytes, bool update)
{
    struct backup *backup;
    if (bytes == 0) return WEFT_OK;
    WEFT_TRY(reserve(session, buffer, bytes, update, &backup));
    client_backup_fill(backup, bytes);
    return WEFT_OK;
}

enum weft_status client_backup_copy(struct weft_session *session, void *buffer, size_t bytes)
{
    return copy(session, buffer, bytes, false);
}

enum weft_status client_backup_copy_update(struct weft_session *session, void *buffer, size_t bytes)
{
    return copy(session, buffer, bytes, true);
}

enum weft_status client_backup_reserve_update(struct weft_session *session, void *buffer, size_t bytes,
                                              struct backup **backup_out)
{
    return reserve(session, buffer, bytes, true, backup_out);
}

static void close_all(struct weft_session *session, bool updates, bool inputs)
{
    while (!weft_list_empty(&session->calls->backups)) {
        /* newest first, so that the oldest copy of a buffer wins */
        struct backup *backup = weft_container_of(session->calls->backups.prev, struct backup, link);
        if (backup->update ? updates : inputs) memcpy(backup->buffer, backup->copy, backup->filled);
        weft_list_remove(&backup->link);
        weft_list_append(&session->calls->idle_backups, &backup->link);
    }
}

void client_backup_close(struct weft_session *session, bool restore) { close_all(session, restore, restore); }

void client_backup_undo(struct weft_session *session) { close_all(session, true, false); }

void client_backup_free(struct weft_session *session)
{
    struct weft_list *lists[] = {&session->calls->backups, &session->calls->idle_backups};
    for (size_t i = 0; i < 2; i++)
        while (!weft_list_empty(lists[i]))
            backup_free(session, weft_list_first(lists[i], struct backup, link));
}
