/* shard_slots.c - receive memory of a shard engine: one arena, from which rounds reserve blocks of slots.
 *
 * Contributions and partial sums are stored only here, so receive_bytes_max bounds them exactly. An announced
 * payload stays at its worker until it has a slot.
 *
 * The arena is a first-fit allocator, so few open rounds use the same pages again. Its address-ordered free
 * list lies in the free memory; neighbours merge on release. Rounds are few, open in the order of
 * announcement, and every open round ends. A block that does not fit now fits at the latest in an empty
 * arena: declare refuses a tensor whose smallest block is larger than the arena.
 *
 * A slot is a 64-byte header (completion, owner) and the payload. The fold uses payloads as partial sums and
 * returns them by pointer; shard_slot_of finds the header. */
#include "server/shard/shard_engine.h"

#define GRAIN 64u

struct shard_span {
    size_t bytes;
    struct shard_span *next; /* at a higher address, not adjacent */
};

static size_t grains(size_t bytes)
{
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

/* Takes pages up to `end`. false: the system has none. */
static bool commit(struct shard_arena *arena, size_t end)
{
    if (end <= arena->committed_bytes) return true;
    end = (end + WEFT_MEMORY_STEP_BYTES - 1) / WEFT_MEMORY_STEP_BYTES * WEFT_MEMORY_STEP_BYTES;
    if (end > arena->bytes) end = arena->bytes;
    if (weft_memory_commit(arena->memory + arena->committed_bytes, end - arena->committed_bytes) < 0)
        return false;
    arena->committed_bytes = end;
    return true;
}

enum weft_status shard_arena_init(struct shard_arena *arena, struct weft_env *env, size_t bytes,
                                  bool is_mapped)
{
    bytes = bytes / GRAIN * GRAIN;
    WEFT_ASSERT(bytes >= GRAIN);
    *arena = (struct shard_arena){.bytes = bytes, .committed_bytes = is_mapped ? 0 : bytes};
    void *memory = NULL;
    if (is_mapped) WEFT_TRY(weft_memory_reserve(env, bytes, &memory, NULL));
    else memory = weft_alloc_bytes(env, bytes);
    arena->memory = memory;
    if (!memory || !commit(arena, GRAIN)) return WEFT_ERR_NO_MEMORY;
    arena->free_spans = (struct shard_span *)(void *)arena->memory;
    *arena->free_spans = (struct shard_span){.bytes = bytes};
    return WEFT_OK;
}

void shard_arena_fini(struct shard_arena *arena, struct weft_env *env)
{
    weft_memory_free(env, arena->memory);
    arena->memory = NULL;
}

void *shard_arena_reserve(struct shard_arena *arena, size_t bytes)
{
    bytes = grains(bytes);
    for (struct shard_span **link = &arena->free_spans; *link; link = &(*link)->next) {
        struct shard_span *span = *link;
        if (span->bytes < bytes) continue;
        const size_t end = (size_t)((uint8_t *)span - arena->memory) + bytes;
        if (!commit(arena, span->bytes == bytes ? end : end + GRAIN)) return NULL; /* and the rest's head */
        if (span->bytes == bytes) {
            *link = span->next;
        } else {
            struct shard_span *rest = (struct shard_span *)(void *)((uint8_t *)span + bytes);
            *rest = (struct shard_span){.bytes = span->bytes - bytes, .next = span->next};
            *link = rest;
        }
        arena->used_bytes += bytes;
        if (arena->used_bytes > arena->peak_bytes) arena->peak_bytes = arena->used_bytes;
        return span;
    }
    return NULL;
}

static bool adjacent(const struct shard_span *low, const struct shard_span *high)
{
    return (const uint8_t *)low + low->bytes == (const uint8_t *)high;
}

void shard_arena_release(struct shard_arena *arena, void *memory, size_t bytes)
{
    struct shard_span *span = memory, *before = NULL, *after = arena->free_spans;
    bytes = grains(bytes);
    WEFT_ASSERT(bytes <= arena->used_bytes);
    arena->used_bytes -= bytes;
    while (after && after < span) before = after, after = after->next;

    *span = (struct shard_span){.bytes = bytes, .next = after};
    if (before) before->next = span;
    else arena->free_spans = span;
    if (after && adjacent(span, after)) {
        span->bytes += after->bytes;
        span->next = after->next;
    }
    if (before && adjacent(before, span)) {
        before->bytes += span->bytes;
        before->next = span->next;
    }
}

/* ---- a round's slots ---- */

static size_t slot_stride(size_t payload_bytes)
{
    return SHARD_SLOT_HEAD_BYTES + grains(payload_bytes);
}

size_t shard_slots_bytes(uint32_t slot_count, size_t payload_bytes)
{
    return slot_count * slot_stride(payload_bytes);
}

bool shard_slots_open(struct shard_slots *slots, struct shard_arena *arena, uint32_t slot_count,
                      size_t payload_bytes)
{
    size_t bytes = shard_slots_bytes(slot_count, payload_bytes);
    void *block = shard_arena_reserve(arena, bytes);
    if (!block) return false;
    *slots = (struct shard_slots){.block = block, .block_bytes = bytes, .count = slot_count};
    for (uint32_t i = slot_count; i-- > 0;) {
        struct shard_slot *slot =
            (struct shard_slot *)(void *)((uint8_t *)block + i * slot_stride(payload_bytes));
        slot->next_free = slots->free_slots;
        slots->free_slots = slot;
    }
    return true;
}

void shard_slots_close(struct shard_slots *slots, struct shard_arena *arena)
{
    if (!slots->block) return;
    shard_arena_release(arena, slots->block, slots->block_bytes);
    *slots = (struct shard_slots){0};
}

struct shard_slot *shard_slots_alloc(struct shard_slots *slots)
{
    struct shard_slot *slot = slots->free_slots;
    WEFT_ASSERT(slot != NULL);
    slots->free_slots = slot->next_free;
    slots->used++;
    return slot;
}

void shard_slots_free(struct shard_slots *slots, struct shard_slot *slot)
{
    WEFT_ASSERT(slots->used > 0);
    slots->used--;
    slot->next_free = slots->free_slots;
    slots->free_slots = slot;
}
