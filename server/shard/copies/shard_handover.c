/* shard_handover.c - the leader's side of a change of leader while both engines live.
 *
 *     hand over --> no request is admitted, open rounds are discarded
 *               --> each close that was running has ended, and the copy holds it --> report (quiet)
 *               --> Map: the copy leads under the next term, this engine may be its copy
 *
 * When the report leaves, leader and copy have closed the same steps, so either can lead and neither is a
 * step ahead. Requests wait for the Map, as those of a newer term do: then they are discarded, and the
 * workers send them to the new leader. A loss of the copy ends the state, too: Map has a newer term for the
 * same leader. */
#include "server/shard/shard_engine.h"

static bool is_quiet(const struct shard_chunk *chunk)
{
    if (chunk->tensor->engine->replication.mutants & WEFT_MUTANT_QUIET_EARLY) return true;
    return chunk->open.phase == SHARD_PHASE_IDLE && !chunk->work.computing && !chunk->hold.is_due &&
           !shard_move_holds(chunk->move) && !chunk->copy.payload;
}

static bool slot_is_quiet(struct weft_shard_engine *engine, uint32_t slot)
{
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        const struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            if (tensor->chunks[i].placement.slot == slot && tensor->chunks[i].placement.is_here &&
                !is_quiet(&tensor->chunks[i]))
                return false;
    }
    return true;
}

void weft_shard_engine_hand_over(struct weft_shard_engine *engine, uint32_t slot, uint32_t term)
{
    if (engine->end.closed || engine->end.failed < 0 || !shard_map_is_on(engine) || slot >= WEFT_LIMIT_SLOTS)
        return;
    struct shard_map_slot *at = &engine->replication.slots[slot];
    if (at->term != term || at->leader != engine->endpoint || at->copy == 0) return;
    if (at->is_reported || !at->is_quiet) engine->replication.quiet_count++;
    at->is_quiet = true;
    at->is_reported = false;
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            if (tensor->chunks[i].placement.slot == slot && tensor->chunks[i].placement.is_here)
                shard_map_stop_leading(&tensor->chunks[i]);
    }
    shard_engine_resume(engine);
}

void shard_handover_pump(struct weft_shard_engine *engine)
{
    struct shard_replication *replication = &engine->replication;
    for (uint32_t slot = 0; replication->quiet_count > 0 && slot < WEFT_LIMIT_SLOTS; slot++) {
        struct shard_map_slot *at = &replication->slots[slot];
        if (!at->is_quiet || at->is_reported || !slot_is_quiet(engine, slot)) continue;
        at->is_reported = true;
        replication->quiet_count--;
        if (replication->report)
            replication->report(replication->report_context,
                                &(struct weft_slot_report){.slot = slot, .term = at->term, .is_quiet = true});
    }
}
