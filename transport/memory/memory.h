/* memory.h - inside weft_memory_alloc: one arena per process, and other processes' arenas seen from here.
 *
 *   this process                                    a peer on this host
 *   arena: one memfd, sealed, sparse  --descriptor-->  view: the whole arena mapped once
 *   pointer -> offset (O(1))          ----offset---->  view + offset -> the same bytes
 *
 * One sparse file per process and not one per allocation: a pointer finds its offset without a search, a
 * peer needs one descriptor and one mapping however many tensors there are, and an offset is never out of
 * date. Freed ranges become holes, which read as zeros; the file never shrinks, so a mapping can never
 * fault for a peer. */
#ifndef WEFT_TRANSPORT_MEMORY_H
#define WEFT_TRANSPORT_MEMORY_H

#include "base/base.h"

#define MEMORY_NO_OFFSET UINT64_MAX

struct memory_arena {
    uint64_t id; /* random: the same arena from wherever it is seen */
    size_t bytes;
    int fd;      /* the arena's own: duplicate it, do not close it */
};

/* This process's arena; made on first use. false: this system or its limits allow none. Any thread. */
bool memory_arena(struct memory_arena *arena_out);
/* Where (bytes,) at `address` lie in this process's arena, or MEMORY_NO_OFFSET. Any thread, no lock. */
uint64_t memory_offset(const void *address, size_t bytes);

/* Another process's arena, mapped here; shared by all endpoints of this process and counted. */
struct memory_view {
    uint8_t *base;
    size_t bytes;
    uint64_t id;
    uint32_t users;
    struct memory_view *next;
};
/* `fd` is only read, and stays the caller's. NULL: it is not a sealed arena of that size, or it cannot be
 * mapped. */
struct memory_view *memory_view_open(int fd, uint64_t id, size_t bytes);
void memory_view_ref(struct memory_view *view); /* one more user */
void memory_view_unref(struct memory_view *view); /* NULL is fine */

/* A small sealed memory file of its own, mapped and zero; others_write false: who maps it later can only
 * read. *fd_out is the caller's. NULL: errno says why. */
void *memory_file_create(const char *name, size_t bytes, bool others_write, int *fd_out);
/* Map such a file of somebody else, after a look at its size and seals; the descriptor stays the caller's. */
void *memory_file_map(int fd, size_t bytes, bool writable);
void memory_file_unmap(void *memory, size_t bytes); /* NULL is fine */

#endif
