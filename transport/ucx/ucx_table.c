/* ucx_table.c - see ucx_table.h. An id is generation (32 bits) | index (32 bits). The generation counts
 * reuses of the slot, so a late id of an old item finds nothing. */
#include "transport/ucx/ucx_table.h"

#include <string.h>

static bool grow(struct weft_env *env, struct ucx_table *table)
{
    uint32_t capacity = table->capacity ? table->capacity * 2 : 64;
    if (capacity > UINT32_MAX / 2) return false;
    struct ucx_table_slot *slots = weft_alloc_array(env, capacity, sizeof *slots);
    if (!slots) return false;
    if (table->capacity > 0) memcpy(slots, table->slots, table->capacity * sizeof *slots);
    for (uint32_t i = table->capacity; i < capacity; i++) {
        slots[i] = (struct ucx_table_slot){.generation = 1,
                                           .next_free = i + 1 < capacity ? i + 2 : table->first_free};
    }
    table->first_free = table->capacity + 1;
    weft_free_bytes(env, table->slots);
    table->slots = slots;
    table->capacity = capacity;
    return true;
}

uint64_t ucx_table_put(struct weft_env *env, struct ucx_table *table, void *item)
{
    if (table->first_free == 0 && !grow(env, table)) return 0;
    uint32_t index = table->first_free - 1;
    struct ucx_table_slot *slot = &table->slots[index];
    table->first_free = slot->next_free;
    slot->item = item;
    return (uint64_t)slot->generation << 32 | index;
}

void *ucx_table_get(const struct ucx_table *table, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index >= table->capacity || table->slots[index].generation != (uint32_t)(id >> 32)) return NULL;
    return table->slots[index].item;
}

void ucx_table_remove(struct ucx_table *table, uint64_t id)
{
    if (!ucx_table_get(table, id)) return;
    struct ucx_table_slot *slot = &table->slots[(uint32_t)id];
    slot->item = NULL;
    if (++slot->generation == 0) slot->generation = 1;
    slot->next_free = table->first_free;
    table->first_free = (uint32_t)id + 1;
}

void ucx_table_free(struct weft_env *env, struct ucx_table *table)
{
    weft_free_bytes(env, table->slots);
    *table = (struct ucx_table){0};
}
