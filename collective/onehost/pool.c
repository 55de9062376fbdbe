/* pool.c - memory that peers map, shared by all groups of a process, so that it grows with the traffic and
 * not with groups.
 *
 *   blocks          segments, message calls, send rings: a few KiB each, cut from chunks
 *   peer memories   the mapping of each other process
 *   copy-in slots   assigned to groups; an idle group loses them to the next group that needs them
 *   buffers         peer buffer tables of operations */
#include "collective/onehost/onehost.h"

#include <pthread.h>
#include <string.h>

enum {
    CHUNK_BYTES = 16384,
    LINE = 64,
    BLOCKS_MAX = 64,
    SMALL_POOLS_MIN = 16,
    LARGE_POOLS_MIN = 1,
    RECLAIM_TRIES = 8
};
_Static_assert(2 * sizeof(struct onehost_segment) <= CHUNK_BYTES &&
                   sizeof(struct onehost_message_calls) <= CHUNK_BYTES &&
                   2 * ONEHOST_SMALL_SLOT_BYTES <= (int)CHUNK_BYTES,
               "pieces of a chunk");

/* ---- blocks ---- */
struct chunk {
    struct chunk *next;
    uint8_t *memory; /* (CHUNK_BYTES,) */
    size_t block_bytes;
    uint64_t used; /* one bit per block */
};

static struct {
    pthread_mutex_t mutex;
    struct chunk *first;
} chunks = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static uint64_t full_mask(const struct chunk *chunk)
{
    size_t count = CHUNK_BYTES / chunk->block_bytes;
    return count < BLOCKS_MAX ? ((uint64_t)1 << count) - 1 : UINT64_MAX;
}

/* Caller holds the mutex. A child after fork does not find the chunks of its parent. */
static struct chunk *chunk_find(size_t block_bytes)
{
    uint64_t at;
    for (struct chunk *chunk = chunks.first; chunk; chunk = chunk->next)
        if (chunk->block_bytes == block_bytes && chunk->used != full_mask(chunk) &&
            weft_memory_locate(chunk->memory, CHUNK_BYTES, &at))
            return chunk;
    return NULL;
}

static enum weft_status chunk_create(size_t block_bytes, struct chunk **chunk_out)
{
    struct weft_env *env = weft_env_system();
    struct chunk *chunk = weft_alloc_zero(env, sizeof *chunk);
    void *memory = NULL;
    uint64_t at;
    enum weft_status status = chunk ? weft_memory_alloc(env, CHUNK_BYTES, &memory, NULL) : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK && !weft_memory_locate(memory, CHUNK_BYTES, &at)) status = WEFT_ERR_UNSUPPORTED;
    if (status < 0) {
        weft_memory_free(env, memory);
        weft_free_bytes(env, chunk);
        return status;
    }
    *chunk = (struct chunk){.next = chunks.first, .memory = memory, .block_bytes = block_bytes};
    chunks.first = *chunk_out = chunk;
    return WEFT_OK;
}

enum weft_status onehost_block_alloc(size_t bytes, void **block_out, uint64_t *at_out)
{
    size_t block_bytes = (bytes + LINE - 1) & ~(size_t)(LINE - 1);
    pthread_mutex_lock(&chunks.mutex);
    struct chunk *chunk = chunk_find(block_bytes);
    enum weft_status status = chunk ? WEFT_OK : chunk_create(block_bytes, &chunk);
    if (status == WEFT_OK) {
        unsigned index = (unsigned)__builtin_ctzll(~chunk->used);
        chunk->used |= (uint64_t)1 << index;
        *block_out = chunk->memory + index * block_bytes;
        weft_memory_locate(*block_out, block_bytes, at_out);
    }
    pthread_mutex_unlock(&chunks.mutex);
    if (status == WEFT_OK) memset(*block_out, 0, block_bytes);
    return status;
}

void onehost_block_free(void *block)
{
    if (!block) return;
    pthread_mutex_lock(&chunks.mutex);
    struct chunk **at = &chunks.first;
    while (*at && (uintptr_t)block - (uintptr_t)(*at)->memory >= CHUNK_BYTES) at = &(*at)->next;
    struct chunk *chunk = *at;
    WEFT_ASSERT(chunk);
    chunk->used &= ~((uint64_t)1 << (size_t)((uint8_t *)block - chunk->memory) / chunk->block_bytes);
    bool empty = chunk->used == 0;
    if (empty) *at = chunk->next;
    pthread_mutex_unlock(&chunks.mutex);
    if (!empty) return;
    weft_memory_free(weft_env_system(), chunk->memory);
    weft_free_bytes(weft_env_system(), chunk);
}

/* ---- peer memories ---- */
static struct {
    pthread_mutex_t mutex;
    struct onehost_peer_memory *first;
} peer_memories = {.mutex = PTHREAD_MUTEX_INITIALIZER};

enum weft_status onehost_peer_memory_acquire(struct weft_peer *peer,
                                             const struct onehost_peer_memory **memory_out)
{
    struct weft_mapping mapping;
    WEFT_TRY(weft_peer_map(peer, &mapping));
    pthread_mutex_lock(&peer_memories.mutex);
    struct onehost_peer_memory *memory = peer_memories.first;
    while (memory && memory->mapping.view != mapping.view) memory = memory->next;
    if (memory) {
        weft_mapping_release(&mapping); /* it is mapped already */
    } else if ((memory = weft_alloc_zero(weft_env_system(), sizeof *memory))) {
        memory->mapping = mapping;
        memory->next = peer_memories.first;
        peer_memories.first = memory;
    }
    if (memory) memory->users++;
    pthread_mutex_unlock(&peer_memories.mutex);
    if (!memory) weft_mapping_release(&mapping);
    *memory_out = memory;
    return memory ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

void onehost_peer_memory_release(const struct onehost_peer_memory *released)
{
    if (!released) return;
    pthread_mutex_lock(&peer_memories.mutex);
    struct onehost_peer_memory **at = &peer_memories.first;
    while (*at && *at != released) at = &(*at)->next;
    struct onehost_peer_memory *memory = *at;
    WEFT_ASSERT(memory);
    bool last = --memory->users == 0;
    if (last) *at = memory->next;
    pthread_mutex_unlock(&peer_memories.mutex);
    if (!last) return;
    weft_mapping_release(&memory->mapping);
    weft_free_bytes(weft_env_system(), memory);
}

/* ---- copy-in slots ---- */
struct idle_slots {
    struct idle_slots *next;
};

static const struct {
    size_t bytes;
    uint32_t created_min; /* created before a group loses its slots to another */
} slot_classes[ONEHOST_SLOT_CLASSES] = {[ONEHOST_SMALL] = {ONEHOST_SMALL_POOL_BYTES, SMALL_POOLS_MIN},
                                        [ONEHOST_LARGE] = {ONEHOST_LARGE_POOL_BYTES, LARGE_POOLS_MIN}};
_Static_assert(sizeof((struct op_pool *)0)->copyin_slots / sizeof(struct onehost_slot_pool) ==
                   ONEHOST_SLOT_CLASSES,
               "one each");

/* Can `rank` still read a slot of this rank? A rank that has published an operation has read all before it.
 * Contributions to a root are read by the root only. retired_seq is not required: a rank that ran ahead
 * updates it later. */
static bool may_still_read(const struct onehost *onehost, uint32_t rank)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    if (!peer->segment || !peer->memory || !onehost_peer_reads_segment(peer, onehost->next_seq)) return false;
    const uint64_t last = onehost->next_seq - 1; /* the peer has not retired all, so there was an operation */
    const struct onehost_descriptor *descriptor = onehost_descriptor_of(onehost->segment, last);
    /* otherwise the root has published its cuts */
    bool to_root = (descriptor->kind == WEFT_COLL_REDUCE || descriptor->kind == WEFT_COLL_GATHER) &&
                   !(descriptor->flags & ONEHOST_UNEQUAL);
    return !to_root || rank == descriptor->root ||
           !onehost_peer_has_arrived(onehost, onehost->group->rank, last) ||
           !onehost_peer_has_arrived(onehost, rank, last);
}

static bool is_idle(const struct onehost *onehost)
{
    const struct weft_group *group = onehost->group;
    if (group->ops.active_count + group->ops.prepared_count > 0) return false;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (may_still_read(onehost, rank)) return false;
    return true;
}

/* Takes the slots of an idle group. Tries those that have held theirs longest. */
static uint8_t *slots_reclaim(struct onehost_slot_pool *pool, enum onehost_slot_class slot_class)
{
    struct weft_list *node, *spare;
    unsigned tried = 0;
    weft_list_foreach (node, spare, &pool->holders) {
        struct onehost_copyin_slots *copyin_slots =
            weft_container_of(node, struct onehost_copyin_slots, link);
        struct onehost *holder =
            weft_container_of(copyin_slots - slot_class, struct onehost, copyin_slots[0]);
        weft_list_remove(node);
        if (is_idle(holder)) {
            uint8_t *memory = copyin_slots->memory;
            copyin_slots->memory = NULL;
            return memory;
        }
        weft_list_append(&pool->holders, node);
        if (++tried == RECLAIM_TRIES) break;
    }
    return NULL;
}

/* In memory that peers map; NULL: none is left. */
static uint8_t *slots_create(size_t bytes)
{
    void *memory;
    uint64_t at;
    if (weft_memory_alloc(weft_env_system(), bytes, &memory, NULL) < 0) return NULL;
    if (weft_memory_locate(memory, bytes, &at)) return memory;
    weft_memory_free(weft_env_system(), memory);
    return NULL;
}

bool onehost_slots_acquire(struct onehost *onehost, enum onehost_slot_class slot_class)
{
    struct onehost_slot_pool *pool = &onehost->group->ops.op_pool->copyin_slots[slot_class];
    struct onehost_copyin_slots *copyin_slots = &onehost->copyin_slots[slot_class];
    if (copyin_slots->memory) return true;
    weft_loop_guard_thread(onehost->group->loop);
    if (slot_class == ONEHOST_LARGE && !onehost->large_slot_seqs &&
        !(onehost->large_slot_seqs =
              weft_alloc_array(onehost->group->env, ONEHOST_LARGE_SLOTS, sizeof *onehost->large_slot_seqs)))
        return false;
    struct idle_slots *idle = pool->idle;
    uint8_t *memory = (uint8_t *)idle;
    if (idle) pool->idle = idle->next;
    else if (pool->count >= slot_classes[slot_class].created_min) memory = slots_reclaim(pool, slot_class);
    if (!memory && (memory = slots_create(slot_classes[slot_class].bytes))) pool->count++;
    /* a child after fork finds no memory of its parent */
    if (!memory || !weft_memory_locate(memory, slot_classes[slot_class].bytes, &copyin_slots->at))
        return false;
    copyin_slots->memory = memory;
    /* no peer reads from it */
    if (slot_class == ONEHOST_LARGE)
        memset(onehost->large_slot_seqs, 0, ONEHOST_LARGE_SLOTS * sizeof *onehost->large_slot_seqs);
    weft_list_append(&pool->holders, &copyin_slots->link);
    return true;
}

uint8_t *onehost_slots_detach(struct onehost *onehost, enum onehost_slot_class slot_class)
{
    struct onehost_copyin_slots *copyin_slots = &onehost->copyin_slots[slot_class];
    uint8_t *memory = copyin_slots->memory;
    if (!memory) return NULL;
    weft_list_remove(&copyin_slots->link);
    copyin_slots->memory = NULL;
    onehost->group->ops.op_pool->copyin_slots[slot_class].count--;
    return memory;
}

void onehost_slots_release(struct op_pool *op_pool, enum onehost_slot_class slot_class, uint8_t *memory)
{
    struct onehost_slot_pool *pool = &op_pool->copyin_slots[slot_class];
    if (!memory) return;
    struct idle_slots *idle = (struct idle_slots *)memory;
    idle->next = pool->idle;
    pool->idle = idle;
    pool->count++;
}

/* ---- peer buffer tables ---- */
struct idle_buffers {
    struct idle_buffers *next;
};

struct onehost_buffers *onehost_buffers_acquire(struct weft_group *group)
{
    struct idle_buffers *idle = group->ops.op_pool->idle_buffers;
    if (idle) group->ops.op_pool->idle_buffers = idle->next;
    return idle ? (struct onehost_buffers *)idle
                : weft_alloc_array(group->env, ONEHOST_RANKS_MAX, sizeof(struct onehost_buffers));
}

void onehost_buffers_release(struct op_pool *op_pool, struct onehost_buffers *buffers)
{
    if (!buffers) return;
    struct idle_buffers *idle = (struct idle_buffers *)buffers;
    idle->next = op_pool->idle_buffers;
    op_pool->idle_buffers = idle;
}

void onehost_pools_free(struct weft_env *env, struct op_pool *op_pool)
{
    for (int slot_class = 0; slot_class < ONEHOST_SLOT_CLASSES; slot_class++)
        for (struct idle_slots *idle; (idle = op_pool->copyin_slots[slot_class].idle);
             weft_memory_free(weft_env_system(), idle))
            op_pool->copyin_slots[slot_class].idle = idle->next;
    for (struct idle_buffers *idle; (idle = op_pool->idle_buffers); weft_free_bytes(env, idle))
        op_pool->idle_buffers = idle->next;
}
