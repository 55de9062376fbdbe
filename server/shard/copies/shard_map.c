/* shard_map.c - the slot map of an engine: which engine leads a chunk, which one copies it, and under which
 * term.
 *
 *     Map(slot, term, leader, copy)  -> newer term: entered; its chunks change their role
 *     request of a lower term        -> discarded: the worker pushes again when it has the Map
 *     request of a higher term       -> waits in newer_terms until this engine has the Map
 *
 * A copy that becomes the leader serves at once: it has applied, or is applying, the last step that any
 * worker can have received. Requests wait while it applies. A leader that is replaced discards its open
 * rounds and replies to no worker. */
#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/snapshot/shard_snapshot.h"

enum weft_status shard_map_init(struct weft_shard_engine *engine, size_t copy_bytes)
{
    struct shard_replication *replication = &engine->replication;
    replication->slots = weft_alloc_zero(engine->env, WEFT_LIMIT_SLOTS * sizeof *replication->slots);
    if (!replication->slots) return WEFT_ERR_NO_MEMORY;
    weft_transport_handler(engine->transport, WEFT_CHANNEL_SHARD, shard_copy_arrived, engine);
    return shard_arena_init(&replication->memory, engine->env, copy_bytes, false);
}

void shard_map_fini(struct weft_shard_engine *engine)
{
    shard_move_fini(engine);
    if (engine->replication.memory.memory) shard_arena_fini(&engine->replication.memory, engine->env);
    weft_free_bytes(engine->env, engine->replication.slots);
    engine->replication.slots = NULL;
}

void shard_map_close(struct weft_shard_engine *engine)
{
    if (!shard_map_is_on(engine)) return;
    weft_transport_handler(engine->transport, WEFT_CHANNEL_SHARD, NULL, NULL);
    shard_engine_discard_all(engine, &engine->replication.waiting);
    shard_engine_discard_all(engine, &engine->replication.newer_terms);
}

bool shard_map_has(const struct weft_shard_engine *engine, const Weft__Control__Chunk *chunk)
{
    if (!shard_map_is_on(engine)) return chunk->endpoint == engine->endpoint;
    if (chunk->slot >= WEFT_LIMIT_SLOTS) return false;
    const struct shard_map_slot *slot = &engine->replication.slots[chunk->slot];
    return slot->term > 0 && (slot->leader == engine->endpoint || slot->copy == engine->endpoint + 1);
}

bool shard_map_admits(struct shard_chunk *chunk, const struct weft_wire_header *header,
                      struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const uint32_t term = shard_map_term(chunk);
    if (!shard_map_is_on(engine) && header->term == 0) return true;
    if (header->term > term && shard_map_is_on(engine)) {
        weft_list_append(&engine->replication.newer_terms, &arrival->link);
    } else if (header->term != term || !shard_map_leads(chunk) || !chunk->placement.is_here) {
        weft_transport_discard(engine->transport, arrival);
    } else if (shard_map_slot(chunk)->is_quiet) {
        weft_list_append(&engine->replication.newer_terms, &arrival->link); /* until the next Map */
    } else if (chunk->copy.payload) {
        shard_reply_defer(engine, arrival);
    } else {
        return true;
    }
    shard_contributions_release(chunk); /* it may have got its block for this request */
    return false;
}

void shard_map_forget_step(struct shard_chunk *chunk)
{
    if (chunk->tensor->engine->replication.mutants & WEFT_MUTANT_STEP_KEPT_OPEN) return;
    chunk->open.step = 0;
    chunk->open.round = 0;
}

/* A close that is running ends. */
void shard_map_stop_leading(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    shard_members_clear_replies(chunk);
    if (chunk->clock) shard_clock_stop_leading(chunk);
    else if (!shard_round_is_closing(chunk)) {
        if (chunk->open.arrived > 0 || !weft_list_empty(&chunk->links.round)) shard_round_forget(chunk);
        shard_map_forget_step(chunk);
    }
    for (uint32_t worker = 0; chunk->workers.pulls_waiting > 0 && worker < engine->workers; worker++) {
        struct weft_arrival *arrival = chunk->workers.contributions[worker].pull;
        if (!arrival) continue;
        shard_engine_pull_removed(engine, arrival);
        weft_transport_discard(engine->transport, arrival);
    }
    shard_contributions_release(chunk);
}

static void chunk_changed(struct shard_chunk *chunk, const struct shard_map_slot *before)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    shard_copy_leave(chunk);
    if (before->leader != engine->endpoint) return; /* a copy, which leads now or loses its place */
    if (!shard_map_leads(chunk)) shard_map_stop_leading(chunk);
    shard_move_end_chunk(chunk);
    shard_replicate_map_changed(chunk);
}

static void chunks_changed(struct weft_shard_engine *engine, uint32_t slot,
                           const struct shard_map_slot *before)
{
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            if (tensor->chunks[i].placement.slot == slot) chunk_changed(&tensor->chunks[i], before);
    }
}

void weft_shard_engine_map(struct weft_shard_engine *engine, const Weft__Control__Map *map)
{
    if (engine->end.closed || !shard_map_is_on(engine)) return;
    bool leaders_changed = map->lost > 0;
    for (size_t i = 0; i < map->n_slots; i++) {
        const Weft__Control__Slot *entry = map->slots[i];
        if (entry->slot >= WEFT_LIMIT_SLOTS) continue;
        struct shard_map_slot *slot = &engine->replication.slots[entry->slot];
        if (entry->term <= slot->term && !(engine->replication.mutants & WEFT_MUTANT_OLDER_MAP)) continue;
        const struct shard_map_slot before = *slot;
        engine->replication.quiet_count -= slot->is_quiet && !slot->is_reported;
        *slot = (struct shard_map_slot){.term = entry->term,
                                        .leader = entry->leader,
                                        .copy = entry->n_copies > 0 ? entry->copies[0] + 1 : 0};
        if (before.term == 0) continue;
        engine->replication.leaders_changed |= before.leader != slot->leader;
        chunks_changed(engine, entry->slot, &before);
        shard_move_end(engine, entry->slot);
        leaders_changed |= before.leader != slot->leader;
    }
    if (leaders_changed)
        weft_shard_engine_snapshot_abandon(engine, "a shard was lost, or slots have other leaders");
    shard_reply_defer_all(engine, &engine->replication.newer_terms);
    shard_engine_resume(engine);
}
