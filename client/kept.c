/* kept.c - copies of memory that the open step overwrites, to restore it if the step is run again or skipped.
 *
 *     in-place calls with preserve_input, results of shards     copied by the call, as a whole
 *     updates by an optimiser in this process                   reserved by the call; copied slice by slice before the
 *                                                               update of the slice, while the slice is in the cache
 *
 * The memory of a copy is kept for the next step. The caller's thread owns the lists. The engine fills a reserved copy until the
 * request of its update has completed. */
#include <string.h>

#include "client/session.h"

struct kept {
    struct weft_list link;
    void *buffer;        /* the caller's */
    size_t capacity;
    size_t filled;       /* bytes of `copy` that hold the old content; only these are restored */
    bool update;         /* an optimiser overwrites it: restored also if the step is skipped */
    uint8_t *copy;       /* (capacity,) owned */
};

static void kept_free(struct weft_session *session, struct kept *kept)
{
    weft_list_remove(&kept->link);
    weft_free_bytes(session->env, kept->copy);
    weft_free_bytes(session->env, kept);
}

/* The smallest idle one that is large enough. */
static struct kept *take_idle(struct weft_session *session, size_t bytes)
{
    struct kept *best = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->kept_idle) {
        struct kept *kept = weft_container_of(node, struct kept, link);
        if (kept->capacity >= bytes && (!best || kept->capacity < best->capacity)) best = kept;
    }
    if (best) weft_list_remove(&best->link);
    return best;
}

static enum weft_status reserve(struct weft_session *session, void *buffer, size_t bytes, bool update, struct kept **kept_out)
{
    struct kept *kept = take_idle(session, bytes);
    if (!kept) {
        kept = weft_alloc_zero(session->env, sizeof *kept);
        if (kept) kept->copy = weft_alloc_bytes(session->env, bytes);
        if (!kept || !kept->copy) {
            weft_free_bytes(session->env, kept);
            return client_error(session, WEFT_ERR_NO_MEMORY, "no memory to keep %zu bytes that the step overwrites", bytes);
        }
        weft_list_init(&kept->link);
        kept->capacity = bytes;
    }
    kept->buffer = buffer;
    kept->update = update;
    kept->filled = 0;
    weft_list_append(&session->kept, &kept->link);
    *kept_out = kept;
    return WEFT_OK;
}

/* Past the cache: a copy is read only if the step fails. */
void client_kept_fill(struct kept *kept, size_t to)
{
    weft_copy_past_cache(kept->copy + kept->filled, (const uint8_t *)kept->buffer + kept->filled, to - kept->filled);
    kept->filled = to;
}

static enum weft_status copy(struct weft_session *session, void *buffer, size_t bytes, bool update)
{
    struct kept *kept;
    if (bytes == 0) return WEFT_OK;
    WEFT_TRY(reserve(session, buffer, bytes, update, &kept));
    client_kept_fill(kept, bytes);
    return WEFT_OK;
}

enum weft_status client_kept_copy(struct weft_session *session, void *buffer, size_t bytes) { return copy(session, buffer, bytes, false); }

enum weft_status client_kept_copy_update(struct weft_session *session, void *buffer, size_t bytes) { return copy(session, buffer, bytes, true); }

enum weft_status client_kept_reserve_update(struct weft_session *session, void *buffer, size_t bytes, struct kept **kept_out)
{
    return reserve(session, buffer, bytes, true, kept_out);
}

static void close_all(struct weft_session *session, bool updates, bool inputs)
{
    while (!weft_list_empty(&session->kept)) { /* the last one first: of a buffer used twice the oldest copy stays */
        struct kept *kept = weft_container_of(session->kept.prev, struct kept, link);
        if (kept->update ? updates : inputs) memcpy(kept->buffer, kept->copy, kept->filled);
        weft_list_remove(&kept->link);
        weft_list_append(&session->kept_idle, &kept->link);
    }
}

void client_kept_close(struct weft_session *session, bool restore) { close_all(session, restore, restore); }

void client_kept_undo(struct weft_session *session) { close_all(session, true, false); }

void client_kept_free(struct weft_session *session)
{
    struct weft_list *lists[] = {&session->kept, &session->kept_idle};
    for (size_t i = 0; i < 2; i++)
        while (!weft_list_empty(lists[i])) kept_free(session, weft_list_first(lists[i], struct kept, link));
}
