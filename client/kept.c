/* kept.c - preserve_input: what in-place calls of the open step overwrite (and updates by an optimiser, share.c) is copied aside, and put back when
 * the step is to be run again. One copy per call; its memory is kept and serves the next step. */
#include <string.h>

#include "client/session.h"

struct kept {
    struct weft_list link;
    void *buffer;        /* the caller's */
    size_t bytes, capacity;
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

static enum weft_status keep(struct weft_session *session, void *buffer, size_t bytes, bool update)
{
    if (bytes == 0) return WEFT_OK;
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
    kept->bytes = bytes;
    kept->update = update;
    memcpy(kept->copy, buffer, bytes);
    weft_list_append(&session->kept, &kept->link);
    return WEFT_OK;
}

enum weft_status client_kept_copy(struct weft_session *session, void *buffer, size_t bytes) { return keep(session, buffer, bytes, false); }

enum weft_status client_kept_update(struct weft_session *session, void *buffer, size_t bytes) { return keep(session, buffer, bytes, true); }

static void close_all(struct weft_session *session, bool updates, bool inputs)
{
    while (!weft_list_empty(&session->kept)) { /* the last one first: of a buffer used twice the oldest copy stays */
        struct kept *kept = weft_container_of(session->kept.prev, struct kept, link);
        if (kept->update ? updates : inputs) memcpy(kept->buffer, kept->copy, kept->bytes);
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
