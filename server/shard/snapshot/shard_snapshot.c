/* shard_snapshot.c - captures the chunks of an engine as they are after one step.
 *
 *     arm(s) -> first push of a step above s -> passed -> groups of chunks are copied into pieces -> ended
 *
 * A worker pushes a step above s after its step s has ended, and then every round of s has closed. So from
 * the first such push on all values are those of s, until a round of a later step closes. A chunk is
 * captured before its own push of a later step is accepted; other chunks follow on a timer, one group per
 * step of the loop. If no memory is reserved, the push is deferred, which is the only stall.
 *
 * A chunk with consistency ssp or asp has no step: it is captured between two updates, on the timer or before
 * its next update, and its arrays have the snapshot's step.
 *
 * A step may be skipped (shard_skip.c): a chunk whose last close may be undone is captured at its own next
 * push, which undoes it first. Groups are chunks in the order of the table, up to `piece_bytes` or one
 * larger chunk: the layout of a piece is the same in each snapshot, so that one can be the base of the
 * next. A push that has waited STALL_NS without any progress ends the snapshot. */
#include <string.h>

#include "server/shard/shard_engine.h"
#include "server/shard/snapshot/shard_snapshot.h"

#define STALL_NS WEFT_SECONDS(30)
#define BUSY_NS WEFT_MS(1) /* a chunk that is being updated is tried again after that */

struct capture_entry {
    struct shard_chunk *chunk; /* NULL: captured */
    uint32_t group;
    uint32_t piece, array; /* its first array, once the group is reserved */
};

struct capture_group {
    uint32_t first, count, left; /* entries; entries that are not captured */
    size_t bytes, piece_bytes;   /* of all arrays; not yet passed to `captured` */
    uint32_t array_count, piece_count;
    struct weft_piece **pieces; /* (piece_count,) owned; NULL: nothing is reserved */
};

struct shard_snapshot {
    struct weft_shard_engine *engine;
    struct shard_snapshot_ops ops;
    uint32_t id;
    uint64_t step;
    bool has_passed;
    bool is_last;     /* no worker pushes again */
    bool knows_skips; /* a push of a later step has arrived here, with this number of skipped steps */
    uint16_t skips;
    struct capture_entry *entries; /* (entry_count,) owned */
    struct capture_group *groups;  /* (group_count,) owned */
    uint32_t entry_count, group_count, groups_left, cursor;
    uint64_t blocked_ns, stall_ns; /* since when a push waits, 0: none does; all waits */
    struct weft_timer timer;
};

/* ---- layout ---- */

/* Parts of a chunk in order; NULL: it has no such part. */
static float *part_of(const struct shard_chunk *chunk, uint32_t part)
{
    if (part == WEFT_PIECE_VALUES) return chunk->values;
    if (part == WEFT_PIECE_RESIDUAL)
        return chunk->coding.combiner ? weft_combiner_residual(chunk->coding.combiner) : NULL;
    return part - WEFT_PIECE_STATE < WEFT_OPTIMIZER_STATES_MAX ? chunk->states[part - WEFT_PIECE_STATE]
                                                               : NULL;
}
_Static_assert(WEFT_OPTIMIZER_STATES_MAX <= WEFT_PIECE_RESIDUAL - WEFT_PIECE_STATE, "a part for each state");

static uint32_t parts_count(const struct shard_chunk *chunk)
{
    uint32_t count = 0;
    for (uint32_t part = 0; part < WEFT_PIECE_PARTS; part++) count += part_of(chunk, part) != NULL;
    return count;
}

/* Without an optimiser the weights are the workers'. */
static bool is_captured(const struct shard_tensor *tensor)
{
    return tensor && !tensor->released && tensor->optimizer.kind != WEFT_OPTIMIZER_NONE;
}

static void group_add(struct shard_snapshot *snapshot, struct shard_chunk *chunk)
{
    const uint32_t parts = parts_count(chunk);
    const size_t bytes = chunk->count * sizeof(float) * parts;
    struct capture_group *group = snapshot->group_count ? &snapshot->groups[snapshot->group_count - 1] : NULL;
    if (!group || group->bytes + bytes > snapshot->ops.piece_bytes ||
        group->array_count + parts > WEFT_PIECE_ARRAYS_MAX) {
        group = &snapshot->groups[snapshot->group_count++];
        group->first = snapshot->entry_count;
    }
    snapshot->entries[snapshot->entry_count] =
        (struct capture_entry){.chunk = chunk, .group = snapshot->group_count - 1};
    chunk->links.capture = ++snapshot->entry_count;
    group->count++;
    group->left++;
    group->bytes += bytes;
    group->array_count += parts;
}

static bool lay_out(struct shard_snapshot *snapshot)
{
    struct weft_shard_engine *engine = snapshot->engine;
    uint32_t chunks = 0;
    for (uint32_t id = 0; id < engine->table.capacity; id++)
        if (is_captured(engine->table.tensors[id])) chunks += engine->table.tensors[id]->chunk_count;
    snapshot->entries = weft_alloc_zero(engine->env, (chunks + 1) * sizeof *snapshot->entries);
    snapshot->groups = weft_alloc_zero(engine->env, (chunks + 1) * sizeof *snapshot->groups);
    if (!snapshot->entries || !snapshot->groups) return false;
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; is_captured(tensor) && i < tensor->chunk_count; i++) {
            struct shard_chunk *chunk = &tensor->chunks[i];
            if (chunk->values && shard_map_leads(chunk)) group_add(snapshot, chunk); /* no copies */
        }
    }
    snapshot->groups_left = snapshot->group_count;
    return true;
}

/* ---- pieces of a group ---- */

static size_t piece_bytes_of(const struct shard_snapshot *snapshot, const struct capture_group *group,
                             uint32_t index)
{
    const size_t most = snapshot->ops.piece_bytes, rest = group->bytes - index * most;
    return rest < most ? rest : most;
}

/* Places the arrays of one chunk, split where a piece is full. */
static void place_chunk(struct capture_group *group, struct capture_entry *entry, uint32_t *piece)
{
    const struct shard_chunk *chunk = entry->chunk;
    entry->piece = *piece;
    entry->array = group->pieces[*piece]->array_count;
    for (uint32_t part = 0; part < WEFT_PIECE_PARTS; part++) {
        if (!part_of(chunk, part)) continue;
        struct weft_piece_array array = {
            .part = (uint8_t)part, .offset = chunk->offset, .tensor_id = chunk->tensor->id};
        memcpy(array.tensor, chunk->tensor->name, sizeof array.tensor);
        for (uint64_t left = chunk->count; left > 0; left -= array.count, array.offset += array.count) {
            struct weft_piece *into = group->pieces[*piece];
            if (into->bytes == into->capacity) into = group->pieces[++*piece];
            const uint64_t space = (into->capacity - into->bytes) / sizeof(float);
            array.count = left < space ? left : space;
            (void)weft_piece_place(into, &array);
        }
    }
}

static void group_free(struct shard_snapshot *snapshot, struct capture_group *group)
{
    for (uint32_t i = 0; group->pieces && i < group->piece_count; i++) weft_piece_free(group->pieces[i]);
    weft_free_bytes(snapshot->engine->env, group->pieces);
    group->pieces = NULL;
    if (group->piece_bytes > 0) snapshot->ops.unreserve(snapshot->ops.context, group->piece_bytes);
    group->piece_bytes = 0;
}

/* WEFT_ERR_AGAIN: no memory is free. */
static enum weft_status group_reserve(struct shard_snapshot *snapshot, struct capture_group *group)
{
    struct weft_env *env = snapshot->engine->env;
    if (group->pieces) return WEFT_OK;
    if (!snapshot->ops.reserve(snapshot->ops.context, group->bytes)) return WEFT_ERR_AGAIN;
    group->piece_bytes = group->bytes;
    group->piece_count =
        (uint32_t)((group->bytes + snapshot->ops.piece_bytes - 1) / snapshot->ops.piece_bytes);
    group->pieces = weft_alloc_zero(env, group->piece_count * sizeof(struct weft_piece *));
    bool is_made = group->pieces != NULL;
    for (uint32_t i = 0; is_made && i < group->piece_count; i++) {
        group->pieces[i] = weft_piece_create(env, group->array_count, piece_bytes_of(snapshot, group, i));
        is_made = group->pieces[i] != NULL;
    }
    if (!is_made) {
        group_free(snapshot, group);
        return WEFT_ERR_NO_MEMORY;
    }
    uint32_t piece = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        if (group->pieces[piece]->bytes == group->pieces[piece]->capacity) piece++;
        place_chunk(group, &snapshot->entries[group->first + i], &piece);
    }
    return WEFT_OK;
}

/* ---- capturing ---- */

static void snapshot_end(struct shard_snapshot *snapshot, enum weft_status status, const char *text)
{
    struct weft_shard_engine *engine = snapshot->engine;
    const struct shard_snapshot_ops ops = snapshot->ops;
    const uint64_t blocked_ns =
        snapshot->blocked_ns ? weft_elapsed_ns(snapshot->blocked_ns, weft_now_ns(engine->env)) : 0;
    const uint64_t stall_ns = snapshot->stall_ns + blocked_ns;
    const uint32_t id = snapshot->id;
    shard_snapshot_forget(engine);
    ops.ended(ops.context, id, status, text, stall_ns);
}

void shard_snapshot_forget(struct weft_shard_engine *engine)
{
    struct shard_snapshot *snapshot = engine->snapshot;
    if (!snapshot) return;
    engine->snapshot = NULL;
    weft_timer_stop(engine->loop, &snapshot->timer);
    for (uint32_t i = 0; snapshot->entries && i < snapshot->entry_count; i++)
        if (snapshot->entries[i].chunk) snapshot->entries[i].chunk->links.capture = 0;
    for (uint32_t i = 0; i < snapshot->group_count; i++) group_free(snapshot, &snapshot->groups[i]);
    weft_free_bytes(engine->env, snapshot->entries);
    weft_free_bytes(engine->env, snapshot->groups);
    weft_free_bytes(engine->env, snapshot);
}

static void group_hand_over(struct shard_snapshot *snapshot, struct capture_group *group)
{
    for (uint32_t i = 0; i < group->piece_count; i++) {
        group->piece_bytes -= group->pieces[i]->bytes;
        snapshot->ops.captured(snapshot->ops.context, snapshot->id, group->pieces[i]);
    }
    WEFT_ASSERT(group->piece_bytes == 0);
    weft_free_bytes(snapshot->engine->env, group->pieces);
    group->pieces = NULL;
    snapshot->groups_left--;
}

static void copy_chunk(const struct capture_group *group, const struct capture_entry *entry, uint64_t step)
{
    const struct shard_chunk *chunk = entry->chunk;
    uint32_t piece = entry->piece, index = entry->array;
    for (uint32_t part = 0; part < WEFT_PIECE_PARTS; part++) {
        const float *from = part_of(chunk, part);
        for (uint64_t done = 0; from && done < chunk->count; index++) {
            if (index == group->pieces[piece]->array_count) {
                piece++;
                index = 0;
            }
            struct weft_piece_array *array = &group->pieces[piece]->arrays[index];
            WEFT_ASSERT(array->part == part && array->offset == chunk->offset + done);
            memcpy(group->pieces[piece]->data + array->at, from + done, array->count * sizeof *from);
            array->step = step;
            done += array->count;
        }
    }
}

/* Its group is reserved. The last chunk of the last group ends the snapshot: the caller must not use it. */
static void capture_chunk(struct shard_snapshot *snapshot, struct capture_entry *entry)
{
    struct capture_group *group = &snapshot->groups[entry->group];
    copy_chunk(group, entry, entry->chunk->clock ? snapshot->step : entry->chunk->closed_step);
    entry->chunk->links.capture = 0;
    entry->chunk = NULL;
    if (--group->left > 0) return;
    group_hand_over(snapshot, group);
    if (snapshot->groups_left == 0) snapshot_end(snapshot, WEFT_OK, "");
}

/* Its values are those of the step, and no request will undo that step. */
static bool is_final(const struct shard_snapshot *snapshot, const struct shard_chunk *chunk)
{
    const bool is_settled = !chunk->backup.valid || chunk->closed_step < snapshot->step ||
                            (snapshot->knows_skips && chunk->backup.skips == snapshot->skips);
    return chunk->open.phase == SHARD_PHASE_IDLE && chunk->open.step == 0 && !chunk->work.computing &&
           is_settled;
}

/* Captures the chunks of a group that are final. WEFT_ERR_AGAIN: no memory is free. */
static enum weft_status capture_group(struct shard_snapshot *snapshot, uint32_t index)
{
    struct weft_shard_engine *engine = snapshot->engine;
    const struct capture_group group = snapshot->groups[index];
    if (group.left == 0) return WEFT_OK;
    WEFT_TRY(group_reserve(snapshot, &snapshot->groups[index]));
    for (uint32_t i = 0; i < group.count && engine->snapshot == snapshot; i++) {
        struct capture_entry *entry = &snapshot->entries[group.first + i];
        if (entry->chunk && is_final(snapshot, entry->chunk)) capture_chunk(snapshot, entry);
    }
    return WEFT_OK;
}

void shard_snapshot_capture(struct shard_chunk *chunk)
{
    struct shard_snapshot *snapshot = chunk->tensor->engine->snapshot;
    if (!snapshot || chunk->links.capture == 0) return;
    struct capture_entry *entry = &snapshot->entries[chunk->links.capture - 1];
    if (is_final(snapshot, chunk) && group_reserve(snapshot, &snapshot->groups[entry->group]) == WEFT_OK)
        capture_chunk(snapshot, entry);
}

/* Of the group at the cursor, a chunk with a clock was being updated. No later push captures it. */
static bool has_clocks_left(const struct shard_snapshot *snapshot)
{
    const struct capture_group *group = &snapshot->groups[snapshot->cursor];
    for (uint32_t i = 0; i < group->count && group->left > 0; i++) {
        const struct shard_chunk *chunk = snapshot->entries[group->first + i].chunk;
        if (chunk && chunk->clock) return true;
    }
    return false;
}

/* ---- the step has passed ---- */

static void on_timer(struct weft_timer *timer)
{
    struct shard_snapshot *snapshot = weft_container_of(timer, struct shard_snapshot, timer);
    struct weft_shard_engine *engine = snapshot->engine;
    const uint64_t now_ns = weft_now_ns(engine->env);
    if (snapshot->blocked_ns && weft_elapsed_ns(snapshot->blocked_ns, now_ns) >= STALL_NS) {
        weft_shard_engine_snapshot_abandon(engine, "pushes waited for its disk for 30 s");
        return;
    }
    enum weft_status status = WEFT_OK;
    if (snapshot->cursor < snapshot->group_count) status = capture_group(snapshot, snapshot->cursor);
    if (engine->snapshot != snapshot) return;
    if (status == WEFT_ERR_NO_MEMORY) {
        weft_shard_engine_snapshot_abandon(engine, "no memory for a piece");
        return;
    }
    const bool is_busy =
        status == WEFT_OK && snapshot->cursor < snapshot->group_count && has_clocks_left(snapshot);
    if (status == WEFT_OK && !is_busy) snapshot->cursor++;
    if (is_busy) (void)weft_timer_start(engine->loop, timer, now_ns + BUSY_NS);
    else if (status == WEFT_OK && snapshot->cursor < snapshot->group_count)
        (void)weft_timer_start_now(engine->loop, timer);
    else if (snapshot->blocked_ns)
        (void)weft_timer_start(engine->loop, timer, weft_deadline_ns(snapshot->blocked_ns, STALL_NS));
    else if (snapshot->is_last && snapshot->cursor >= snapshot->group_count)
        weft_shard_engine_snapshot_abandon(engine, "the last step may be one that was skipped");
}

/* The first call lays out all tensors that are declared by now. */
static void pass(struct shard_snapshot *snapshot)
{
    if (!snapshot->has_passed) {
        snapshot->has_passed = true;
        snapshot->ops.passed(snapshot->ops.context, snapshot->id);
        if (!lay_out(snapshot)) {
            weft_shard_engine_snapshot_abandon(snapshot->engine, "no memory for a list of chunks");
            return;
        }
    }
    if (snapshot->group_count == 0) snapshot_end(snapshot, WEFT_OK, "");
    else (void)weft_timer_start_now(snapshot->engine->loop, &snapshot->timer);
}

static void block(struct shard_snapshot *snapshot)
{
    struct weft_shard_engine *engine = snapshot->engine;
    if (snapshot->blocked_ns) return;
    snapshot->blocked_ns = weft_now_ns(engine->env);
    (void)weft_timer_start(engine->loop, &snapshot->timer, weft_deadline_ns(snapshot->blocked_ns, STALL_NS));
}

bool shard_snapshot_admit(struct shard_chunk *chunk, const struct weft_wire_header *header)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_snapshot *snapshot = engine->snapshot;
    if (header->step > engine->newest_step) engine->newest_step = header->step;
    if (!snapshot || header->step <= snapshot->step) return true;
    if (!snapshot->knows_skips) {
        snapshot->knows_skips = true;
        snapshot->skips = header->skips;
        snapshot->cursor = 0;
        pass(snapshot);
    }
    if (engine->snapshot != snapshot || chunk->links.capture == 0) return true;
    struct capture_entry *entry = &snapshot->entries[chunk->links.capture - 1];
    const enum weft_status status = group_reserve(snapshot, &snapshot->groups[entry->group]);
    if (status == WEFT_ERR_AGAIN) {
        block(snapshot);
        return false;
    }
    if (status == WEFT_OK) capture_chunk(snapshot, entry);
    else weft_shard_engine_snapshot_abandon(engine, "no memory for a piece");
    return true;
}

/* ---- calls of the owner ---- */

bool weft_shard_engine_snapshot_arm(struct weft_shard_engine *engine, uint32_t id, uint64_t step,
                                    const struct shard_snapshot_ops *ops, uint64_t *newest_out)
{
    WEFT_ASSERT(ops->piece_bytes >= sizeof(float) && ops->piece_bytes % sizeof(float) == 0 &&
                ops->piece_bytes <= WEFT_PIECE_BYTES_MAX);
    *newest_out = engine->newest_step;
    if (engine->newest_step > step || engine->end.closed) return false;
    weft_shard_engine_snapshot_abandon(engine, "another snapshot began");
    struct shard_snapshot *snapshot = weft_alloc_zero(engine->env, sizeof *snapshot);
    if (!snapshot) return false;
    snapshot->engine = engine;
    snapshot->ops = *ops;
    snapshot->id = id;
    snapshot->step = step;
    weft_timer_init(&snapshot->timer, on_timer);
    engine->snapshot = snapshot;
    return true;
}

void weft_shard_engine_snapshot_passed(struct weft_shard_engine *engine, uint32_t id)
{
    struct shard_snapshot *snapshot = engine->snapshot;
    if (!snapshot || snapshot->id != id || snapshot->has_passed) return;
    pass(snapshot);
}

void weft_shard_engine_snapshot_finish(struct weft_shard_engine *engine)
{
    struct shard_snapshot *snapshot = engine->snapshot;
    if (!snapshot || !snapshot->has_passed) return;
    snapshot->is_last = true;
    (void)weft_timer_start_now(engine->loop, &snapshot->timer);
}

void weft_shard_engine_snapshot_resume(struct weft_shard_engine *engine)
{
    struct shard_snapshot *snapshot = engine->snapshot;
    if (!snapshot || !snapshot->has_passed) return;
    if (snapshot->blocked_ns)
        snapshot->stall_ns += weft_elapsed_ns(snapshot->blocked_ns, weft_now_ns(engine->env));
    snapshot->blocked_ns = 0;
    (void)weft_timer_start_now(engine->loop, &snapshot->timer);
    shard_engine_resume(engine);
}

void weft_shard_engine_snapshot_abandon(struct weft_shard_engine *engine, const char *text)
{
    if (!engine->snapshot) return;
    snapshot_end(engine->snapshot, WEFT_ERR_ABORTED, text);
    shard_engine_resume(engine); /* deferred pushes no longer wait */
}
