/* ucx_table.h - ids that travel to a peer and back: an id finds its item until the item is removed, and
 * never another one. */
#ifndef WEFT_TRANSPORT_UCX_TABLE_H
#define WEFT_TRANSPORT_UCX_TABLE_H

#include "base/base.h"

struct ucx_table {
    struct ucx_table_slot {
        void *item;          /* NULL: free */
        uint32_t generation; /* generation of the present or next item */
        uint32_t next_free;  /* 1 + index; 0: none */
    } *slots;
    uint32_t capacity, first_free; /* 1 + index */
};

/* Returns an id, never 0; 0: no memory. */
uint64_t ucx_table_put(struct weft_env *env, struct ucx_table *table, void *item);
void *ucx_table_get(const struct ucx_table *table, uint64_t id); /* NULL: not in the table */
void ucx_table_remove(struct ucx_table *table, uint64_t id);
void ucx_table_free(struct weft_env *env, struct ucx_table *table);

#endif
