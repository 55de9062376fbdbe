/* memory.c - memory that peers on this host can map. See weft_memory_alloc in transport.h. */
#include <string.h>

#include "transport/transport.h"

enum weft_status weft_memory_alloc(struct weft_env *env, size_t bytes, void **memory_out, struct weft_error *error)
{
    if (bytes == 0) return weft_error_set(error, WEFT_ERR_INVALID, "cannot allocate 0 bytes");
    void *memory = weft_alloc_bytes(env, bytes);
    if (!memory) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    memset(memory, 0, bytes);
    *memory_out = memory;
    return WEFT_OK;
}

void weft_memory_free(struct weft_env *env, void *memory) { weft_free_bytes(env, memory); }
