/* arena.h - memory of one seed: one block, reset after the seed, with all memory that dead hosts left.
 * Freed memory returns to its size class. */
#ifndef WEFT_TESTS_ARENA_H
#define WEFT_TESTS_ARENA_H

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define ARENA_BYTES (1024u << 20)
static uint8_t *arena;
static size_t arena_used;
static struct arena_block { struct arena_block *next; } *arena_classes[40];

/* 64 bytes before each block hold its class. */
static void *arena_alloc(struct weft_env *env, size_t bytes)
{
    uint32_t class = 6;
    while ((size_t)1 << class < bytes) class++;
    struct arena_block *block = arena_classes[class];
    if (block) {
        arena_classes[class] = block->next;
        return block;
    }
    size_t whole = ((size_t)1 << class) + 64;
    if (whole > ARENA_BYTES - arena_used) return NULL;
    uint8_t *at = arena + arena_used;
    arena_used += whole;
    memcpy(at, &class, sizeof class);
    return at + 64;
}

static void arena_free(struct weft_env *env, void *memory)
{
    uint32_t class;
    memcpy(&class, (uint8_t *)memory - 64, sizeof class);
    struct arena_block *block = memory;
    memset(memory, 0xa5, (size_t)1 << class); /* a later read of freed memory gets visible garbage */
    block->next = arena_classes[class];
    arena_classes[class] = block;
}

static inline void arena_reset(void)
{
    arena_used = 0;
    memset(arena_classes, 0, sizeof arena_classes);
}

/* env allocates from the arena; false: no memory. The caller frees `arena`. */
static inline bool arena_make(struct weft_env *env)
{
    arena = malloc(ARENA_BYTES);
    env->alloc = arena_alloc;
    env->free = arena_free;
    return arena != NULL;
}

#endif
