/* alloc.c - weft_alloc: zeroed, 64-byte aligned memory, freed with the session. Zeroing touches every page
 * before the first step.
 *
 * If the transport may use shared memory (auto, shm), the transport allocates blocks. Peers on this host
 * map them, and a payload is copied once, directly between two blocks. The list of blocks lies in other
 * memory: after a fork the parent shares the blocks, and peers can write to them.
 *
 * Disowned blocks outlive their session, in a list of the process. */
#include <string.h>

#include "client/session/failure.h"
#include "client/session/session.h"

struct block {
    struct weft_list link;
    void *memory;
};

static pthread_mutex_t disowned_lock = PTHREAD_MUTEX_INITIALIZER;
static struct weft_list disowned = {&disowned, &disowned};

void *client_transport_memory_alloc(struct weft_session *session, size_t bytes)
{
    const char *backend = weft_config_text(session->settings.config, "transport.backend");
    void *memory;
    if (strcmp(backend, "shm") != 0 && strcmp(backend, "auto") != 0)
        return weft_alloc_zero(session->env, bytes);
    return weft_memory_alloc(session->env, bytes, &memory, NULL) < 0 ? NULL : memory;
}

static void block_free(struct weft_env *env, struct block *block)
{
    weft_memory_free(env, block->memory); /* finds the allocator of the block */
    weft_free_bytes(env, block);
}

void *weft_alloc(struct weft_session *session, size_t bytes)
{
    if (!session || client_usable(session) == WEFT_ERR_FORKED) return NULL;
    struct block *block = weft_alloc_zero(session->env, sizeof *block);
    void *memory = block ? client_transport_memory_alloc(session, bytes > 0 ? bytes : 1) : NULL;
    if (!memory) {
        weft_free_bytes(session->env, block);
        client_error(session, WEFT_ERR_NO_MEMORY, "weft_alloc: no memory for %zu bytes", bytes);
        return NULL;
    }
    block->memory = memory;
    pthread_mutex_lock(&session->alloc.lock);
    weft_list_append(&session->alloc.blocks, &block->link);
    pthread_mutex_unlock(&session->alloc.lock);
    return memory;
}

/* Removes the block from the list; NULL: not found. Searches from the oldest: programs mostly free in the
 * order of allocation. */
static struct block *block_take(pthread_mutex_t *lock, struct weft_list *blocks, const void *memory)
{
    struct weft_list *node, *spare;
    struct block *found = NULL;
    pthread_mutex_lock(lock);
    weft_list_foreach(node, spare, blocks) {
        struct block *block = weft_container_of(node, struct block, link);
        if (block->memory != memory) continue;
        weft_list_remove(node);
        found = block;
        break;
    }
    pthread_mutex_unlock(lock);
    return found;
}

/* In a simulated environment, that environment allocates the memory of a session; it cannot outlive it. */
enum weft_status weft_disown(struct weft_session *session, void *memory)
{
    if (!session) return client_null_argument("disown", "session");
    enum weft_status usable = client_usable(session); /* also in a session that has failed */
    if (usable == WEFT_ERR_FORKED) return usable;
    struct block *block = session->env == weft_env_system()
                              ? block_take(&session->alloc.lock, &session->alloc.blocks, memory)
                              : NULL;
    if (!block)
        return client_error(session, WEFT_ERR_NOT_FOUND,
                            "disown: memory %p is not from weft_alloc of this session", memory);
    pthread_mutex_lock(&disowned_lock);
    weft_list_append(&disowned, &block->link);
    pthread_mutex_unlock(&disowned_lock);
    return WEFT_OK;
}

/* In a failed session operations may still use the memory while the program frees it on its way out. Such
 * blocks are freed with the session. */
void weft_free(struct weft_session *session, void *memory)
{
    if (!memory) return;
    if (!session) {
        struct block *block = block_take(&disowned_lock, &disowned, memory);
        if (block) block_free(weft_env_system(), block);
        return;
    }
    if (client_failed(session) < 0 && atomic_load(&session->open_requests) > 0) return;
    struct block *block = block_take(&session->alloc.lock, &session->alloc.blocks, memory);
    if (block) block_free(session->env, block);
    else
        weft_log(session->env, WEFT_LOG_ERROR, "client",
                 "weft_free: %p is not from weft_alloc of this session; ignored", memory);
}

void client_memory_free_all(struct weft_session *session)
{
    while (!weft_list_empty(&session->alloc.blocks)) {
        struct block *block = weft_list_first(&session->alloc.blocks, struct block, link);
        weft_list_remove(&block->link);
        block_free(session->env, block);
    }
}
