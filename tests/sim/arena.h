/* arena.h - memory of a seed: one piece, forgotten after it with all that the dead have left; what is
 * freed goes back to its size class. */
#ifndef WEFT_TESTS_ARENA_H
#define WEFT_TESTS_ARENA_H

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define ARENA_BYTES (512u << 20)
static uint8_t *arena;
static size_t arena_used;
static struct arena_block { struct arena_block *next; } *arena_classes[40];

/* A block is preceded by 64 bytes that hold its class. */
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
    memset(memory, 0xa5, (size_t)1 << class); /* who reads it still shall notice */
    block->next = arena_classes[class];
    arena_classes[class] = block;
}

static inline void arena_reset(void)
{
    arena_used = 0;
    memset(arena_classes, 0, sizeof arena_classes);
}

/* `env` takes its memory from it; false: there is none. To be freed: arena. */
static inline bool arena_make(struct weft_env *env)
{
    arena = malloc(ARENA_BYTES);
    env->alloc = arena_alloc;
    env->free = arena_free;
    return arena != NULL;
}

#endif
