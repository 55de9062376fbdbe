/* memory.c - weft_alloc: zeroed (so every page is touched here and not in the first step), 64-byte aligned, and freed
 * with the session. A block carries its list node in the 64 bytes before the caller's pointer. */
#include <string.h>

#include "client/session.h"

struct block {
    struct weft_list link;
    struct weft_session *session;
    uint64_t magic;
    uint8_t padding[64 - sizeof(struct weft_list) - sizeof(void *) - sizeof(uint64_t)];
};
_Static_assert(sizeof(struct block) == 64, "keeps the caller's pointer aligned");
#define BLOCK_MAGIC 0x6b636f6c62746677ull

void *weft_alloc(struct weft_session *session, size_t bytes)
{
    if (!session || client_usable(session) == WEFT_ERR_FORKED) return NULL;
    if (bytes == 0) bytes = 1;
    struct block *block = bytes <= SIZE_MAX - sizeof *block ? weft_alloc_zero(session->env, sizeof *block + bytes) : NULL;
    if (!block) {
        client_error(session, WEFT_ERR_NO_MEMORY, "weft_alloc: no memory for %zu bytes", bytes);
        return NULL;
    }
    block->session = session;
    block->magic = BLOCK_MAGIC;
    pthread_mutex_lock(&session->memory_lock);
    weft_list_append(&session->memory, &block->link);
    pthread_mutex_unlock(&session->memory_lock);
    return block + 1;
}

void weft_free(struct weft_session *session, void *memory)
{
    if (!session || !memory) return;
    struct block *block = (struct block *)memory - 1;
    if (block->magic != BLOCK_MAGIC || block->session != session) { /* not ours: better leaked than corrupted */
        weft_log(session->env, WEFT_LOG_ERROR, "client", "weft_free: %p is not from weft_alloc of this session; ignored", memory);
        return;
    }
    pthread_mutex_lock(&session->memory_lock);
    weft_list_remove(&block->link);
    pthread_mutex_unlock(&session->memory_lock);
    block->magic = 0;
    weft_free_bytes(session->env, block);
}

void client_memory_free_all(struct weft_session *session)
{
    while (!weft_list_empty(&session->memory)) {
        struct block *block = weft_list_first(&session->memory, struct block, link);
        weft_list_remove(&block->link);
        weft_free_bytes(session->env, block);
    }
}
