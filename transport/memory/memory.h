/* memory.h - inside weft_memory_alloc: one arena per process, and arenas of peers mapped here.
 *
 *   this process                                    a peer on this host
 *   arena: one memfd, sealed, sparse  --descriptor-->  view: the whole arena mapped once
 *   pointer -> offset (O(1))          ----offset---->  view + offset -> the same bytes
 *
 * One sparse file per process: a pointer has its offset without a search, a peer needs one descriptor and
 * one mapping for any number of tensors, and an offset never becomes stale. Freed ranges become holes,
 * which read as zeros. The file never shrinks, so a mapping cannot fault. */
#ifndef WEFT_TRANSPORT_MEMORY_H
#define WEFT_TRANSPORT_MEMORY_H

#include "base/base.h"

#define MEMORY_NO_OFFSET UINT64_MAX

struct memory_arena {
    uint64_t id; /* random; identifies the arena in every process */
    size_t bytes;
    int fd;      /* owned by the arena: duplicate it, do not close it */
};

/* The arena of this process, created at first use. False: the system or a limit allows none. Any thread. */
bool memory_arena(struct memory_arena *arena_out);
/* Offset of (bytes,) at `address` in the arena of this process, or MEMORY_NO_OFFSET. Any thread, no lock. */
uint64_t memory_offset(const void *address, size_t bytes);

/* The arena of another process, mapped here; shared by all endpoints of this process and counted. */
struct memory_view {
    uint8_t *base;
    size_t bytes;
    uint64_t id;
    uint32_t users;
    struct memory_view *next;
};
/* `fd` stays the caller's. NULL: not a sealed arena of that size, or it cannot be mapped. */
struct memory_view *memory_view_open(int fd, uint64_t id, size_t bytes);
void memory_view_ref(struct memory_view *view); /* adds a reference */
void memory_view_unref(struct memory_view *view); /* NULL is fine */

/* Creates a small sealed memory file, mapped and zeroed. others_write false: later mappings are read-only.
 * *fd_out belongs to the caller. NULL: errno is the reason. */
void *memory_file_create(const char *name, size_t bytes, bool others_write, int *fd_out);
/* Maps such a file of another process, after a check of size and seals. The descriptor stays the caller's. */
void *memory_file_map(int fd, size_t bytes, bool writable);
void memory_file_unmap(void *memory, size_t bytes); /* NULL is fine */

#endif
