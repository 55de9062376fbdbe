/* tensor_names.c - finds a declared tensor by its name: a hash table of ordinals, with open addressing.
 *
 * A freed tensor stays in the table and no longer has its name; another tensor of that name is a further
 * entry. The table is at most half full and grows with the tensors. */
#include <string.h>

#include "base/fnv.h"
#include "coordinator/coordinator_state.h"

static uint32_t slot_of(const struct weft_coordinator *coordinator, const char *name)
{
    return (uint32_t)weft_fnv_bytes(WEFT_FNV_BASIS, name, strlen(name)) & (coordinator->table.name_slots - 1);
}

static void insert(struct weft_coordinator *coordinator, uint32_t ordinal)
{
    uint32_t slot = slot_of(coordinator, coordinator->table.tensors[ordinal]->declare.name);
    while (coordinator->table.names[slot] != 0) slot = (slot + 1) & (coordinator->table.name_slots - 1);
    coordinator->table.names[slot] = ordinal + 1;
}

enum weft_status coordinator_names_reserve(struct weft_coordinator *coordinator)
{
    const uint32_t wanted = 2 * (coordinator->table.tensor_count + 1);
    if (wanted <= coordinator->table.name_slots) return WEFT_OK;
    uint32_t slots = coordinator->table.name_slots ? coordinator->table.name_slots : 32;
    while (slots < wanted) slots *= 2;
    uint32_t *names = weft_alloc_zero(coordinator->env, slots * sizeof *names);
    if (!names) return WEFT_ERR_NO_MEMORY;
    weft_free_bytes(coordinator->env, coordinator->table.names);
    coordinator->table.names = names;
    coordinator->table.name_slots = slots;
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++) insert(coordinator, i);
    return WEFT_OK;
}

void coordinator_names_add(struct weft_coordinator *coordinator, uint32_t ordinal)
{
    WEFT_ASSERT(coordinator->table.name_slots >= 2 * coordinator->table.tensor_count);
    insert(coordinator, ordinal);
}

bool coordinator_name_is_taken(const struct weft_coordinator *coordinator, const char *name)
{
    if (coordinator->table.name_slots == 0) return false;
    uint32_t slot = slot_of(coordinator, name);
    for (; coordinator->table.names[slot] != 0; slot = (slot + 1) & (coordinator->table.name_slots - 1)) {
        const struct coordinator_tensor *tensor =
            coordinator->table.tensors[coordinator->table.names[slot] - 1];
        if (tensor->freed_count == 0 && strcmp(tensor->declare.name, name) == 0) return true;
    }
    return false;
}
