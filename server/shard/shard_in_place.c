/* shard_in_place.c - a dense round whose contributions lie in mapped memory of workers on this host.
 *
 *     WAITING, all announced with a source --> memory for the sum --> sum --> sources valid? --> CLOSING
 *                                                                              \ no --> WAITING, without them
 *
 * The sum evaluates T over the workers' memory, so no contribution is copied into a slot. A round that mixes
 * both kinds receives all of them (shard_receive.c). A worker that ends during the sum may reuse its memory:
 * the sum then has no meaning, is dropped before the values change, and the round waits as if that worker had
 * not pushed. The arrivals end after the last read, also if the round is dropped meanwhile. */
#include "server/shard/shard_engine.h"

void shard_in_place_find(struct shard_chunk *chunk, struct shard_contribution *contribution)
{
    const bool can_sum =
        shard_chunk_is_dense(chunk) && chunk->tensor->engine->workers <= WEFT_SUM_SOURCES_MAX;
    const void *source = can_sum ? weft_transport_peek(contribution->arrival) : NULL;
    /* the address within the worker's memory is the worker's choice */
    if ((uintptr_t)source % weft_dtype_bytes(chunk->tensor->dtype) != 0) source = NULL;
    contribution->source = source;
    chunk->open.sources += source != NULL;
}

bool shard_in_place_is_possible(const struct shard_chunk *chunk)
{
    return chunk->open.sources > 0 && chunk->open.sources == chunk->open.arrived;
}

/* Returns the memory for the mean, which is exchanged with the values afterwards; NULL: none. The backup
 * may be overwritten: it would undo the last closed step, which all workers have accepted. */
static float *memory_take(struct shard_chunk *chunk)
{
    struct shard_tensor *tensor = chunk->tensor;
    float *const spare = tensor->spare;
    if (!shard_skip_needs_copy(chunk)) {
        tensor->spare = NULL;
        return spare;
    }
    if (shard_skip_reserve(chunk) < 0) return NULL;
    chunk->backup.valid = false;
    return chunk->backup.values;
}

bool shard_in_place_takes_spare(struct shard_chunk *chunk)
{
    if (shard_half_is_pushed(chunk) || chunk->half || chunk->placement.own_values ||
        chunk->tensor->optimizer.kind != WEFT_OPTIMIZER_NONE || shard_result_is_in_use(chunk) ||
        !shard_round_scale(chunk))
        return false;
    /* the mean of a finite sum may be infinite */
    if (chunk->open.flags & WEFT_WIRE_CHECKED && chunk->work.grad_scale > 1) return false;
    chunk->open.mean = memory_take(chunk);
    return chunk->open.mean;
}

static void sum(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    const uint32_t workers = chunk->tensor->engine->workers;
    const float *sources[WEFT_SUM_SOURCES_MAX];
    if (shard_half_is_pushed(chunk)) {
        chunk->open.fold.max_bits = shard_half_sum(chunk, shard_slot_data(chunk->work.folding));
        return;
    }
    for (uint32_t worker = 0; worker < workers; worker++)
        sources[worker] = chunk->workers.contributions[worker].source;
    float *const out = chunk->open.mean ? chunk->open.mean : shard_slot_data(chunk->work.folding);
    const float factor = chunk->open.mean ? chunk->work.grad_scale : 1.0f;
    chunk->open.fold.max_bits = weft_sum_sources_f32(out, sources, workers, factor, chunk->count);
}

/* Returns the memory of a sum that is not used. */
static void memory_release(struct shard_chunk *chunk)
{
    if (chunk->open.mean && chunk->open.mean != chunk->backup.values) chunk->tensor->spare = chunk->open.mean;
    chunk->open.mean = NULL;
    shard_slots_close(&chunk->open.slots, &chunk->tensor->engine->memory.arena);
}

/* The mean becomes the chunk's values. Nothing reads the old ones (shard_in_place_takes_spare). */
static void exchange(struct shard_chunk *chunk)
{
    if (chunk->open.mean == chunk->backup.values) {
        shard_skip_exchange(chunk);
    } else {
        chunk->tensor->spare = chunk->values;
        chunk->values = chunk->open.mean;
        chunk->backup.valid = false;
    }
    chunk->open.mean = NULL;
    chunk->result.data = chunk->values;
    chunk->result.bytes = chunk->count * sizeof(float);
    chunk->work.computed = WEFT_OK;
}

static void close_mean(struct shard_chunk *chunk)
{
    shard_round_enter(chunk, SHARD_PHASE_CLOSING);
    if (shard_round_is_skipped(chunk)) {
        chunk->work.computed = WEFT_ERR_SKIPPED;
        memory_release(chunk);
    } else {
        exchange(chunk);
    }
    shard_round_closed(chunk);
}

static bool source_is_valid(const struct shard_contribution *contribution)
{
    return weft_transport_peek_is_valid(contribution->arrival);
}

/* The round waits for the workers whose contributions are lost; the others stay announced. */
static void sources_lost(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    memory_release(chunk);
    chunk->open.in_place = false;
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        struct shard_contribution *contribution = &chunk->workers.contributions[worker];
        if (source_is_valid(contribution)) continue;
        weft_transport_discard(engine->transport, contribution->arrival);
        contribution->arrival = NULL;
        contribution->source = NULL;
        contribution->state = SHARD_CONTRIBUTION_NONE;
        chunk->open.arrived--;
        chunk->open.sources--;
        shard_engine_worker_lost(engine, worker);
    }
    engine->members.worker_left_check_due = engine->members.left_count > 0;
    shard_round_enter(chunk, SHARD_PHASE_WAITING);
    shard_engine_resume(engine);
}

static void summed(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    float *freed[32];
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        if (source_is_valid(&chunk->workers.contributions[worker])) continue;
        sources_lost(chunk);
        return;
    }
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        struct shard_contribution *contribution = &chunk->workers.contributions[worker];
        engine->stats.received_bytes += contribution->arrival->payload_bytes;
        engine->stats.load.bytes += contribution->arrival->payload_bytes;
        weft_transport_discard(engine->transport, contribution->arrival);
        contribution->arrival = NULL;
        contribution->source = NULL;
        contribution->state = SHARD_CONTRIBUTION_FOLDED;
    }
    chunk->open.next = engine->workers;
    if (chunk->open.mean) {
        close_mean(chunk);
        return;
    }
    weft_tree_reduce_push(&chunk->open.fold, shard_slot_data(chunk->work.folding), freed);
    shard_round_advance(chunk);
}

static void sum_done(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computing = false;
    shard_work_end(chunk->tensor->engine);
    if (chunk->open.phase == SHARD_PHASE_DRAINING) shard_round_finish_drain(chunk);
    else summed(chunk);
}

bool shard_in_place_sum(struct shard_chunk *chunk)
{
    const uint32_t workers = chunk->tensor->engine->workers;
    const uint64_t elements = chunk->count * (workers > 1 ? workers - 1 : 1);
    if (!chunk->open.mean) chunk->work.folding = shard_slots_alloc(&chunk->open.slots);
    shard_work_begin(chunk->tensor->engine);
    if (elements > WEFT_LOOP_SLICE) {
        shard_round_start_task(chunk, sum, sum_done, elements);
        return false;
    }
    sum(&chunk->work.task);
    shard_work_end(chunk->tensor->engine);
    summed(chunk);
    return true;
}

void shard_in_place_drained(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        struct shard_contribution *contribution = &chunk->workers.contributions[worker];
        if (!contribution->arrival) continue;
        weft_transport_discard(engine->transport, contribution->arrival);
        contribution->arrival = NULL;
    }
    memory_release(chunk);
}
