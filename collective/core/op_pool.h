/* op_pool.h - memory that groups keep between operations. */
#ifndef WEFT_COLLECTIVE_CORE_OP_POOL_H
#define WEFT_COLLECTIVE_CORE_OP_POOL_H

#include "collective/collective.h"
#include "collective/core/control/group_control.h"

struct weft_group;
struct peer_table;

/* Memory that groups keep between operations. One pool serves all groups that share it. */
struct op_pool {
    struct weft_list idle;        /* struct weft_coll.link */
    void *idle_stages;            /* staged.c */
    void *idle_buffers;           /* onehost/pool.c: free buffers */
    struct onehost_slot_pool {    /* onehost/pool.c, by enum onehost_slot_class */
        void *idle;               /* free slots */
        struct weft_list holders; /* struct onehost_copyin_slots.link */
        uint32_t count;           /* free and held slots */
    } copyin_slots[2];
    struct weft_list idle_codec_ops; /* compressed/all_reduce.c: free operations */
    struct peer_table *peer_tables;
    struct status_reply replies[GROUP_REPLIES_MAX];
    uint32_t groups, window;
};

/* true: coll_prepare allocates nothing */
bool op_pool_has_scratch(struct weft_group *group, size_t scratch_bytes);
/* Returns the pool of `with` if its window has the same size, else a new one. with may be NULL. NULL: no
 * memory. */
struct op_pool *op_pool_acquire(struct weft_env *env, const struct weft_group *with, uint32_t window);
/* the last user frees it; NULL is fine */
void op_pool_release(struct weft_env *env, struct op_pool *op_pool);

/* compressed/all_reduce.c */
void op_pool_free_codec_ops(struct weft_env *env, struct op_pool *op_pool);

#endif
