/* pool.c - blocks of one size, reused last in, first out.
 *
 * The allocator supplies the slabs and gets them back at the end of the simulation, so the peak in flight
 * sets the memory. Slab size 0 allocates each block separately, so that a memory checker sees it. */
#include "transport/sim/sim.h"

struct sim_block {
    struct sim_block *next;
};

enum { HEAD_BYTES = 64 }; /* of a slab, or of a single block: its link in pool->slabs */

void sim_pool_init(struct sim_pool *pool, size_t block_bytes)
{
    size_t step = block_bytes < 64 ? 16 : 64; /* small blocks are many and idle: no cache line each */
    *pool = (struct sim_pool){.block_bytes = (block_bytes + step - 1) / step * step};
    weft_list_init(&pool->slabs);
}

/* A slab of `count` blocks behind its head. */
static unsigned char *slab_new(struct sim_pool *pool, struct weft_env *env, size_t count)
{
    unsigned char *slab = weft_alloc_bytes(env, HEAD_BYTES + count * pool->block_bytes);
    if (!slab) return NULL;
    weft_list_append(&pool->slabs, (struct weft_list *)slab);
    return slab + HEAD_BYTES;
}

static bool grow(struct sim_pool *pool, struct weft_env *env, size_t slab_bytes)
{
    size_t count = slab_bytes > HEAD_BYTES ? (slab_bytes - HEAD_BYTES) / pool->block_bytes : 0;
    if (count == 0) count = 1;
    unsigned char *blocks = slab_new(pool, env, count);
    if (!blocks) return false;
    for (size_t i = count; i-- > 0;) {
        struct sim_block *block = (struct sim_block *)(blocks + i * pool->block_bytes);
        block->next = pool->unused;
        pool->unused = block;
    }
    return true;
}

void *sim_pool_alloc(struct sim_pool *pool, struct weft_env *env, size_t slab_bytes)
{
    if (slab_bytes == 0) return slab_new(pool, env, 1);
    if (!pool->unused && !grow(pool, env, slab_bytes)) return NULL;
    struct sim_block *block = pool->unused;
    pool->unused = block->next;
    return block;
}

void sim_pool_release(struct sim_pool *pool, struct weft_env *env, size_t slab_bytes, void *memory)
{
    if (slab_bytes == 0) {
        struct weft_list *slab = (struct weft_list *)((unsigned char *)memory - HEAD_BYTES);
        weft_list_remove(slab);
        weft_free_bytes(env, slab);
        return;
    }
    struct sim_block *block = memory;
    block->next = pool->unused;
    pool->unused = block;
}

void sim_pool_free(struct sim_pool *pool, struct weft_env *env)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &pool->slabs) weft_free_bytes(env, node);
    weft_list_init(&pool->slabs);
    pool->unused = NULL;
}

/* ---- payload copies: one pool per power of two ---- */

static int class_of(size_t bytes)
{
    int class = 0;
    while (class < SIM_COPY_CLASSES && ((size_t)SIM_COPY_BYTES_MIN << class) < bytes) class++;
    return class;
}

void *sim_copy_alloc(struct weft_sim *sim, size_t bytes)
{
    int class = class_of(bytes);
    if (class == SIM_COPY_CLASSES) return weft_alloc_bytes(sim->env, bytes);
    return sim_pool_alloc(&sim->pools.copies[class], sim->env, sim->options.slab_bytes);
}

void sim_copy_release(struct weft_sim *sim, void *memory, size_t bytes)
{
    int class = class_of(bytes);
    if (class == SIM_COPY_CLASSES) weft_free_bytes(sim->env, memory);
    else sim_pool_release(&sim->pools.copies[class], sim->env, sim->options.slab_bytes, memory);
}
