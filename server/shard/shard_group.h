/* shard_group.h - message groups of a shard engine: requests and results of small tensors, several in one
 * message. Included by shard_engine.h, which declares struct shard_arena.
 *
 *     group of requests --> payload mapped, or received --> an arrival for each entry --> shard_request.c
 *     shard_reply.c --> result of at most SHARD_GROUP_ENTRY_BYTES_MAX --> open group of its worker --> flush
 *
 * Blocks of both kinds are in one pool of their own. If it has no space, a group of requests is refused and
 * its worker sends the entries alone; a result is sent alone. So the pool cannot cause a deadlock. */
#ifndef WEFT_SERVER_SHARD_SHARD_GROUP_H
#define WEFT_SERVER_SHARD_SHARD_GROUP_H

struct weft_shard_engine;

/* A longer result gains less by a group than its copy costs. */
#define SHARD_GROUP_ENTRY_BYTES_MAX ((size_t)16 << 10)

struct shard_result_group;

/* Groups of one worker. */
struct shard_group_worker {
    uint32_t endpoint;               /* it has sent a group, so it reads groups; UINT32_MAX: none has */
    struct shard_result_group *open; /* results that are not sent; NULL: none */
};

struct shard_groups {
    struct shard_arena memory;         /* blocks of both kinds */
    struct weft_list waiting;          /* arrivals: groups that could be neither read nor refused */
    struct weft_list accepted;         /* struct shard_entry.link: copied, the completion is due */
    struct weft_list unsent;           /* struct shard_result_group.link: the transport had no space */
    struct shard_group_worker *worker; /* (workers_max,) owned */
    uint32_t open_count;               /* workers with an open group */
    uint32_t corks;                    /* replies are gathered until the last cork is removed */
    uint32_t number;                   /* of the last group of results */
    struct weft_timer accepted_timer;
};

/* shard_push_group.c */
void shard_groups_on_timer(struct weft_timer *timer); /* accepted_timer */
enum weft_status shard_groups_init(struct weft_shard_engine *engine, size_t receive_bytes);
/* The engine closes: no handler and no timer any more. */
void shard_groups_close(struct weft_shard_engine *engine);
void shard_groups_free(struct weft_shard_engine *engine);
/* Memory or a reply became free: handles the groups that wait. */
void shard_groups_resume(struct weft_shard_engine *engine);

/* shard_result_group.c */
/* Replies queue until the last cork is removed, which sends them. */
void shard_group_cork(struct weft_shard_engine *engine);
void shard_group_uncork(struct weft_shard_engine *engine);
/* Adds a RESULT to the open group of its worker. false: send it alone. */
bool shard_result_group_add(struct weft_shard_engine *engine, const struct weft_wire_header *header,
                            const void *payload);
/* Sends the open groups. */
void shard_result_groups_flush(struct weft_shard_engine *engine);
/* Returns a block to the pool. */
void shard_group_release(struct weft_shard_engine *engine, void *block, size_t bytes);

#endif
