/* shard_snapshot.h - an engine's side of a snapshot, for server/daemon and tests. Loop owner. */
#ifndef WEFT_SERVER_SHARD_SHARD_SNAPSHOT_H
#define WEFT_SERVER_SHARD_SHARD_SNAPSHOT_H

#include "server/server.h"
#include "snapshot/snapshot.h"

/* Callbacks of the owner, on the engine's thread. */
struct weft_optimizer;
struct shard_snapshot_ops {
    /* Reserves memory of captured pieces. false: none is free; weft_shard_engine_snapshot_resume follows. */
    bool (*reserve)(void *context, size_t bytes);
    /* Returns what has been reserved and not been passed to `captured`. */
    void (*unreserve)(void *context, size_t bytes);
    /* A complete piece, which the owner frees. Its bytes stay reserved until the owner returns them. */
    void (*captured)(void *context, uint32_t id, struct weft_piece *piece);
    /* A worker has ended the step: no chunk of any shard changes before it is captured. */
    void (*passed)(void *context, uint32_t id);
    /* The last call of a snapshot. WEFT_OK: every chunk is captured. stall_ns: time that pushes waited. */
    void (*ended)(void *context, uint32_t id, enum weft_status status, const char *text, uint64_t stall_ns);
    void *context;
    size_t piece_bytes; /* of the largest piece; a multiple of 4, at most WEFT_PIECE_BYTES_MAX */
};

/* The engine captures all its chunks with an optimizer as they are after `step`. *newest_out: the largest
 * step that a worker has pushed. false: that is above `step`, and nothing is armed. Another armed snapshot
 * ends. */
bool weft_shard_engine_snapshot_arm(struct weft_shard_engine *engine, uint32_t id, uint64_t step,
                                    const struct shard_snapshot_ops *ops, uint64_t *newest_out);
/* Another shard has seen that a worker has ended the step. */
void weft_shard_engine_snapshot_passed(struct weft_shard_engine *engine, uint32_t id);
/* All workers have left: a chunk that waits for a push is not captured any more. */
void weft_shard_engine_snapshot_finish(struct weft_shard_engine *engine);
/* Memory is free again. */
void weft_shard_engine_snapshot_resume(struct weft_shard_engine *engine);
/* Ends the armed snapshot; no effect without one. */
void weft_shard_engine_snapshot_abandon(struct weft_shard_engine *engine, const char *text);

/* ---- restore: after declare, before any request (shard_restore.c) ---- */

/* Copies array `index` of the piece where it overlaps chunks of the tensor. */
enum weft_status weft_shard_engine_restore(struct weft_shard_engine *engine, uint32_t id,
                                           const struct weft_piece *piece, uint32_t index,
                                           struct weft_error *error);
/* Does a chunk of the tensor on this engine overlap these elements? */
bool weft_shard_engine_overlaps(struct weft_shard_engine *engine, uint32_t id, uint64_t offset,
                                uint64_t count);
/* NULL: no chunk of the tensor is on this engine. */
const struct weft_optimizer *weft_shard_engine_optimizer(struct weft_shard_engine *engine, uint32_t id);

#endif
