/* shard_table.c - tensors and chunks of one engine, created when the coordinator declares them.
 *
 * A declaration lists every chunk of a tensor with the endpoint that owns it. The engine allocates everything
 * its chunks need (values, optimiser state, combiners), so that the data
 * path does not allocate. A tensor that does not fit is refused with a sentence.
 *
 * Dense tensors may be cut anywhere, tensors of a blockwise codec between blocks (weft_codec_can_split).
 * Any other codec needs the whole tensor in one chunk. A tensor with codec "auto" has dense chunks and
 * chunks of every candidate; a step uses the chunks of one candidate. */
#include <stdio.h>
#include <string.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

enum {
    LINE_BYTES = 64,
    VALUES_EAGER_BYTES = 8192, /* shared memory sends shorter results inside its ring */
    SPARE_CHUNKS_MIN = 8,      /* the spare adds at most an eighth */
};

struct shard_tensor *shard_table_tensor(struct weft_shard_engine *engine, uint32_t id)
{
    struct shard_tensor *tensor = id < engine->table.capacity ? engine->table.tensors[id] : NULL;
    return tensor && !tensor->released ? tensor : NULL;
}

struct shard_chunk *shard_table_chunk(struct shard_tensor *tensor, uint32_t index)
{
    uint32_t low = 0, high = tensor->chunk_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tensor->chunks[middle].index < index) low = middle + 1;
        else high = middle;
    }
    return low < tensor->chunk_count && tensor->chunks[low].index == index ? &tensor->chunks[low] : NULL;
}

size_t shard_chunk_contribution_bytes(const struct shard_chunk *chunk, uint8_t round)
{
    if (shard_chunk_is_dense(chunk)) return chunk->count * weft_dtype_bytes(chunk->tensor->dtype);
    return weft_codec_contribution_bytes_max(&chunk->coding.codec, &chunk->coding.shape, round);
}

float *shard_chunk_state(const struct shard_chunk *chunk, uint8_t part)
{
    if (part < WEFT_OPTIMIZER_STATES_MAX) return chunk->states[part];
    if (part == WEFT_WIRE_PART_WEIGHTS) return chunk->half ? chunk->values : NULL; /* else PULL has them */
    return part == WEFT_WIRE_PART_RESIDUAL && chunk->coding.combiner
               ? weft_combiner_residual(chunk->coding.combiner)
               : NULL;
}

size_t shard_chunk_slot_bytes(const struct shard_chunk *chunk, uint8_t round)
{
    return shard_chunk_is_dense(chunk) ? chunk->count * sizeof(float)
                                       : shard_chunk_contribution_bytes(chunk, round);
}

/* A dense round keeps partial sums in its slots; a combiner copies its input, and consistency ssp and asp
 * apply it. */
static uint32_t slots_min(const struct shard_chunk *chunk, uint32_t workers)
{
    const bool has_rounds = chunk->tensor->consistency.kind == WEFT_CONSISTENCY_BSP;
    return shard_chunk_is_dense(chunk) && has_rounds ? weft_tree_reduce_buffer_count(workers) : 1;
}

uint32_t shard_chunk_slots_min(const struct shard_chunk *chunk)
{
    return slots_min(chunk, chunk->tensor->engine->workers);
}

/* ---- declare ---- */

/* The resolved codec, or the candidates of codec "auto". */
static enum weft_status codecs_parse(struct shard_tensor *tensor, const Weft__Control__Declare *declare,
                                        struct weft_error *error)
{
    struct weft_codec_spec codec;
    if (weft_codec_candidates_requested(declare->codec)) {
        WEFT_TRY(weft_codec_candidates_parse(declare->codec, &tensor->candidates, error));
        weft_codec_candidates_resolve(&tensor->candidates, &tensor->shape);
        return WEFT_OK;
    }
    WEFT_TRY(weft_codec_parse(declare->codec[0] ? declare->codec : "dense", &codec, error));
    tensor->candidates.count = 1;
    tensor->candidates.specs[0] = weft_codec_resolve(&codec, &tensor->shape);
    return WEFT_OK;
}

/* An update is applied alone: the shard needs the whole gradient of one worker, and an optimiser. */
static enum weft_status consistency_parse(struct shard_tensor *tensor, const Weft__Control__Declare *declare,
                                          struct weft_error *error)
{
    WEFT_TRY(weft_consistency_parse(declare->consistency, &tensor->consistency, error));
    if (tensor->consistency.kind == WEFT_CONSISTENCY_BSP) return WEFT_OK;
    if (tensor->candidates.count == 1 && tensor->candidates.specs[0].id == WEFT_CODEC_DENSE &&
        tensor->optimizer.kind != WEFT_OPTIMIZER_NONE && !tensor->engine->settings.elastic &&
        !declare->skip_nonfinite)
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                          "tensor '%s' has consistency %s: shards serve that for dense tensors with an "
                          "optimizer, without skip_nonfinite, in a job that ends with a lost rank",
                          tensor->name, declare->consistency);
}

static enum weft_status dtypes_set(struct shard_tensor *tensor, const Weft__Control__Declare *declare,
                                   struct weft_error *error)
{
    const struct weft_tensor_dtypes dtypes = {.dtype = declare->dtype,
                                              .pull_dtype = declare->pull_dtype,
                                              .mode = declare->mode,
                                              .is_dense = tensor->candidates.count == 1 &&
                                                          tensor->candidates.specs[0].id == WEFT_CODEC_DENSE,
                                              .has_optimizer = tensor->optimizer.kind != WEFT_OPTIMIZER_NONE,
                                              .has_rounds = tensor->consistency.kind == WEFT_CONSISTENCY_BSP};
    tensor->dtype = (enum weft_dtype)declare->dtype;
    tensor->pull_dtype = (enum weft_dtype)(declare->pull_dtype ? declare->pull_dtype : declare->dtype);
    return weft_tensor_dtypes_check(&dtypes, error);
}

static enum weft_status tensor_describe(struct shard_tensor *tensor, const Weft__Control__Declare *declare,
                                        struct weft_error *error)
{
    snprintf(tensor->name, sizeof tensor->name, "%s", declare->name);
    if (declare->mode != WEFT_WIRE_MODE_SERVER)
        return weft_error_set(error, WEFT_ERR_INVALID, "tensor '%s' is not of server mode", tensor->name);
    if (declare->n_dims < 1 || declare->n_dims > WEFT_TENSOR_DIMS_MAX)
        return weft_error_set(error, WEFT_ERR_INVALID, "tensor '%s' has %zu dimensions, allowed are 1 to %d",
                              tensor->name, declare->n_dims, WEFT_TENSOR_DIMS_MAX);
    tensor->shape.dim_count = (uint32_t)declare->n_dims;
    for (size_t i = 0; i < declare->n_dims; i++) tensor->shape.dims[i] = declare->dims[i];
    uint64_t elems = weft_shape_elems(&tensor->shape);
    if (elems == 0 || elems > WEFT_LIMIT_TENSOR_ELEMS)
        return weft_error_set(error, WEFT_ERR_INVALID, "tensor '%s' has no elements or too many",
                              tensor->name);

    WEFT_TRY(codecs_parse(tensor, declare, error));
    WEFT_TRY(weft_optimizer_parse(declare->optimizer, &tensor->optimizer, error));
    if (tensor->candidates.count > 1) tensor->optimizer.kind = WEFT_OPTIMIZER_NONE;
    WEFT_TRY(consistency_parse(tensor, declare, error));
    return dtypes_set(tensor, declare, error);
}

static enum weft_status chunk_check(const struct shard_tensor *tensor, const Weft__Control__Chunk *chunk,
                                    size_t chunks, struct weft_error *error)
{
    if (chunk->candidate >= tensor->candidates.count)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "a chunk of tensor '%s' is for a codec that it does not have", tensor->name);
    const struct weft_codec_spec *codec = &tensor->candidates.specs[chunk->candidate];
    const bool whole = codec->id != WEFT_CODEC_DENSE && !weft_codec_can_split(codec);
    if (chunk->candidate > 0) chunks = 1; /* it is checked alone, beside the dense chunks */
    uint64_t elems = weft_shape_elems(&tensor->shape);
    if (chunk->count == 0 || chunk->count > elems || chunk->offset > elems - chunk->count)
        return weft_error_set(error, WEFT_ERR_INVALID, "a chunk of tensor '%s' lies outside its elements",
                              tensor->name);
    if (weft_codec_can_split(codec) &&
        (chunk->offset % WEFT_CODEC_PIECE != 0 ||
         (chunk->count % WEFT_CODEC_PIECE != 0 && chunk->offset + chunk->count != elems)))
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "a chunk of tensor '%s' begins or ends inside a block of %u elements of its codec", tensor->name,
            WEFT_CODEC_PIECE);
    if (whole && (chunks != 1 || chunk->count != elems))
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "tensor '%s' has a codec and must be one chunk, not %zu", tensor->name, chunks);
    if (weft_optimizer_is_whole(&tensor->optimizer) && (chunks != 1 || chunk->count != elems))
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "tensor '%s' has an optimizer of whole tensors and must be one chunk, not %zu",
                              tensor->name, chunks);
    return WEFT_OK;
}

static enum weft_status states_make(struct shard_chunk *chunk)
{
    for (uint32_t s = 0; s < weft_optimizer_states(&chunk->tensor->optimizer); s++) {
        if (!chunk->states[s])
            chunk->states[s] = weft_alloc_zero(chunk->tensor->engine->env, chunk->count * sizeof(float));
        if (!chunk->states[s]) return WEFT_ERR_NO_MEMORY;
    }
    return WEFT_OK;
}

static enum weft_status combiner_make(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (shard_chunk_is_dense(chunk) || chunk->coding.combiner) return WEFT_OK;
    return weft_combiner_create(engine->env, &chunk->coding.codec, &chunk->coding.shape, engine->workers,
                                &chunk->coding.combiner);
}

static enum weft_status chunk_make(struct shard_chunk *chunk, struct weft_error *error)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    weft_list_init(&chunk->links.waiting);
    weft_list_init(&chunk->links.round);
    weft_list_init(&chunk->links.reply);
    weft_list_init(&chunk->hold.link);
    weft_list_init(&chunk->copy.ack_link);
    weft_list_init(&chunk->copy.leave_link);
    weft_list_init(&chunk->workers.held);
    weft_list_init(&chunk->links.held);
    weft_task_init(&chunk->work.task);

    for (uint8_t round = 0; round < chunk->coding.rounds; round++) {
        size_t needed = shard_slots_bytes(slots_min(chunk, engine->members.workers_max),
                                          shard_chunk_slot_bytes(chunk, round));
        if (needed > engine->memory.arena.bytes)
            return weft_error_set(error, WEFT_ERR_LIMIT,
                                  "a chunk of tensor '%s' needs %zu bytes of receive memory for %u workers, "
                                  "the shard has %zu: raise "
                                  "the shard's receive memory or lower chunk_bytes",
                                  tensor->name, needed, engine->members.workers_max,
                                  engine->memory.arena.bytes);
    }
    const size_t words = (engine->members.workers_max + 63) / 64;
    chunk->error.unsent = weft_alloc_zero(engine->env, words * sizeof *chunk->error.unsent);
    if (chunk->coding.rounds > 1)
        chunk->workers.weights =
            weft_alloc_zero(engine->env, engine->members.workers_max * sizeof *chunk->workers.weights);
    if (!chunk->error.unsent || (chunk->coding.rounds > 1 && !chunk->workers.weights) ||
        (chunk->placement.is_here && states_make(chunk) < 0))
        return weft_error_set(error, WEFT_ERR_NO_MEMORY,
                              "no memory for a chunk of %llu elements of tensor '%s'",
                              (unsigned long long)chunk->count, tensor->name);
    const enum weft_status status = chunk->placement.is_here ? combiner_make(chunk) : WEFT_OK;
    if (status < 0)
        return weft_error_set(error, status, "no combiner for tensor '%s': %s", tensor->name,
                              weft_reason_text(status));
    return WEFT_OK;
}

/* Most bytes of a step that a copy of the chunk receives; they must fit the memory for copies. */
static bool copy_fits(const struct shard_chunk *chunk)
{
    return shard_replicate_bytes_max(chunk) <= chunk->tensor->engine->replication.memory.bytes;
}

/* For a job with copies, if the chunk is here: memory of its own for what closed a codec's step, and for
 * the states of workers that repeat rounds, which must not wait for chunks of later rounds. */
static enum weft_status coded_make(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (chunk->coding.combiner && !chunk->hold.coded)
        chunk->hold.coded = weft_alloc_bytes(engine->env, shard_replicate_coded_bytes_max(chunk));
    if (shard_rounds_are_repeated(chunk) && !chunk->workers.own_contributions)
        chunk->workers.own_contributions = weft_alloc_array(engine->env, engine->members.workers_max,
                                                            sizeof *chunk->workers.own_contributions);
    return (chunk->coding.combiner && !chunk->hold.coded) ||
                   (shard_rounds_are_repeated(chunk) && !chunk->workers.own_contributions)
               ? WEFT_ERR_NO_MEMORY
               : WEFT_OK;
}

static enum weft_status chunk_make_copies(struct shard_chunk *chunk, struct weft_error *error)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    if (!shard_map_is_on(engine)) return WEFT_OK;
    if (!copy_fits(chunk))
        return weft_error_set(error, WEFT_ERR_LIMIT,
                              "a chunk of tensor '%s' has %zu bytes, and the shard has %zu for the steps of "
                              "copies: raise server.copy_bytes or lower chunk_bytes",
                              chunk->tensor->name, shard_replicate_bytes_max(chunk),
                              engine->replication.memory.bytes);
    if (chunk->placement.is_here && coded_make(chunk) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the copies of tensor '%s'",
                              chunk->tensor->name);
    return WEFT_OK;
}

static bool chunk_has_values(const struct shard_chunk *chunk)
{
    return shard_chunk_is_dense(chunk) || chunk->tensor->candidates.count == 1;
}

/* Memory for `count` chunks of `stride` bytes. Results above the eager limit of shared memory are copied from
 * it by the workers of this host. NULL: no memory. */
static void *results_alloc(const struct weft_shard_engine *engine, size_t count, size_t stride)
{
    void *memory = NULL;
    if (!engine->settings.maps || stride <= VALUES_EAGER_BYTES)
        return weft_alloc_zero(engine->env, count * stride);
    (void)weft_memory_alloc(engine->env, count * stride, &memory, NULL);
    return memory;
}

static enum weft_status halves_make(struct shard_tensor *tensor, size_t count, struct weft_error *error)
{
    if (tensor->pull_dtype == WEFT_F32) return WEFT_OK;
    tensor->halves = results_alloc(tensor->engine, count, tensor->half_stride);
    if (!tensor->halves)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the results of tensor '%s'",
                              tensor->name);
    uint8_t *at = tensor->halves;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        if (!tensor->chunks[i].placement.is_here) continue;
        tensor->chunks[i].half = (uint16_t *)(void *)at;
        at += tensor->half_stride;
    }
    return WEFT_OK;
}

static size_t stride_of(uint64_t count, size_t element_bytes)
{
    return (count * element_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

/* One block for the values of all chunks, in equal strides. Of many chunks without an optimiser, one more is
 * spare. */
static enum weft_status values_make(struct shard_tensor *tensor, struct weft_error *error)
{
    const struct weft_shard_engine *engine = tensor->engine;
    size_t count = 0, largest = 0;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct shard_chunk *chunk = &tensor->chunks[i];
        if (!chunk_has_values(chunk)) continue;
        count += chunk->placement.is_here;
        if (chunk->count > largest) largest = chunk->count;
    }
    tensor->values_stride = stride_of(largest, sizeof(float));
    tensor->half_stride = stride_of(largest, sizeof(uint16_t));
    if (count == 0) return WEFT_OK;
    const bool is_mapped = engine->settings.maps && tensor->values_stride > VALUES_EAGER_BYTES,
               has_spare = is_mapped && count >= SPARE_CHUNKS_MIN && tensor->pull_dtype == WEFT_F32 &&
                           tensor->optimizer.kind == WEFT_OPTIMIZER_NONE;
    const size_t bytes = (count + has_spare) * tensor->values_stride;
    tensor->values = results_alloc(engine, count + has_spare, tensor->values_stride);
    if (!tensor->values)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the %zu bytes of tensor '%s'", bytes,
                              tensor->name);
    uint8_t *at = tensor->values;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        if (!chunk_has_values(&tensor->chunks[i]) || !tensor->chunks[i].placement.is_here) continue;
        tensor->chunks[i].values = (float *)(void *)at;
        at += tensor->values_stride;
    }
    if (has_spare) tensor->spare = (float *)(void *)at;
    return halves_make(tensor, count, error);
}

static enum weft_status clocks_make(struct shard_tensor *tensor, struct weft_error *error)
{
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        if (tensor->chunks[i].placement.is_here && shard_clock_reserve(&tensor->chunks[i]) < 0)
            return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the clocks of tensor '%s'",
                                  tensor->name);
    return WEFT_OK;
}

/* With copies a chunk that is elsewhere may be copied here later. */
static bool is_listed(const struct weft_shard_engine *engine, const Weft__Control__Chunk *chunk)
{
    return shard_map_is_on(engine) || shard_map_has(engine, chunk);
}

static enum weft_status chunks_make(struct shard_tensor *tensor, const Weft__Control__Declared *declared,
                                    struct weft_error *error)
{
    struct weft_shard_engine *engine = tensor->engine;
    uint32_t own = 0;
    for (size_t i = 0; i < declared->n_chunks; i++) {
        WEFT_TRY(chunk_check(tensor, declared->chunks[i], declared->n_chunks, error));
        own += is_listed(engine, declared->chunks[i]);
    }
    if (own == 0) return WEFT_OK;
    tensor->chunks = weft_alloc_zero(engine->env, own * sizeof *tensor->chunks);
    if (!tensor->chunks)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for %u chunks of tensor '%s'", own,
                              tensor->name);
    for (size_t i = 0; i < declared->n_chunks; i++) {
        if (!is_listed(engine, declared->chunks[i])) continue;
        struct shard_chunk *chunk = &tensor->chunks[tensor->chunk_count++];
        chunk->tensor = tensor;
        chunk->placement.is_here = shard_map_has(engine, declared->chunks[i]);
        chunk->index = (uint32_t)i;
        chunk->placement.slot = declared->chunks[i]->slot;
        chunk->offset = declared->chunks[i]->offset;
        chunk->count = declared->chunks[i]->count;
        chunk->coding.codec = tensor->candidates.specs[declared->chunks[i]->candidate];
        chunk->coding.shape = tensor->shape;
        if (weft_codec_can_split(&chunk->coding.codec)) {
            chunk->coding.codec = weft_codec_of_piece(&chunk->coding.codec);
            chunk->coding.shape = (struct weft_shape){1, {chunk->count}};
        }
        chunk->coding.rounds = weft_codec_rounds(&chunk->coding.codec);
        WEFT_ASSERT(chunk->coding.rounds >= 1 && chunk->coding.rounds <= WEFT_CODEC_ROUNDS_MAX);
        chunk->placement.is_at_home = declared->chunks[i]->endpoint == engine->endpoint;
        tensor->home_count += chunk->placement.is_at_home;
        WEFT_TRY(chunk_make(chunk, error));
        WEFT_TRY(chunk_make_copies(chunk, error));
    }
    WEFT_TRY(values_make(tensor, error));
    return clocks_make(tensor, error);
}

static uint64_t longest(const struct shard_tensor *tensor)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        if (tensor->chunks[i].count > count) count = tensor->chunks[i].count;
    return count;
}

/* Replaces the scratch. A task may still write into the old one, so it is kept until the end. Each is at
 * least twice as large as the one before, so all old ones together are smaller than the newest. */
static enum weft_status scratch_grow(struct weft_shard_engine *engine, uint64_t count)
{
    if (count <= engine->scratches.count) return WEFT_OK;
    if (count < 2 * engine->scratches.count) count = 2 * engine->scratches.count;
    float *scratch = weft_alloc_array(engine->env, count, sizeof(float));
    if (!scratch) return WEFT_ERR_NO_MEMORY;
    WEFT_ASSERT(engine->scratches.retired_count < SHARD_SCRATCHES);
    if (engine->scratches.scratch)
        engine->scratches.retired[engine->scratches.retired_count++] = engine->scratches.scratch;
    engine->scratches.scratch = scratch;
    engine->scratches.count = count;
    return WEFT_OK;
}

/* The optimiser of a codec's tensor needs the scratch. Chunks that are not here have no combiner. */
static enum weft_status scratch_make(const struct shard_tensor *tensor)
{
    bool decodes = false;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) decodes |= tensor->chunks[i].coding.combiner != NULL;
    return decodes && tensor->optimizer.kind != WEFT_OPTIMIZER_NONE
               ? scratch_grow(tensor->engine, longest(tensor))
               : WEFT_OK;
}

static enum weft_status capacity_grow(struct weft_shard_engine *engine, uint32_t id)
{
    if (id < engine->table.capacity) return WEFT_OK;
    uint32_t capacity = engine->table.capacity ? engine->table.capacity : 64;
    while (capacity <= id) capacity *= 2;
    struct shard_tensor **tensors = weft_alloc_zero(engine->env, capacity * sizeof *tensors);
    if (!tensors) return WEFT_ERR_NO_MEMORY;
    if (engine->table.capacity)
        memcpy(tensors, engine->table.tensors, engine->table.capacity * sizeof *tensors);
    weft_free_bytes(engine->env, engine->table.tensors);
    engine->table.tensors = tensors;
    engine->table.capacity = capacity;
    return WEFT_OK;
}

void shard_table_count(struct shard_chunk *chunk, bool is_here)
{
    struct weft_shard_engine_stats *stats = &chunk->tensor->engine->stats;
    const uint64_t bytes = chunk->values ? chunk->count * sizeof(float) : 0;
    if (is_here) {
        stats->chunks++;
        stats->weights_bytes += bytes;
    } else if (chunk->placement.is_here) {
        stats->chunks--;
        stats->weights_bytes -= bytes;
    }
    chunk->placement.is_here = is_here;
}

/* `memory` of its own, unless the chunk has an array of the tensor's block. */
static enum weft_status own_reserve(const struct weft_shard_engine *engine, size_t stride, void *array,
                                    void **memory)
{
    if (!array && !*memory) *memory = results_alloc(engine, 1, stride);
    return array || *memory ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static enum weft_status own_values_reserve(struct shard_chunk *chunk)
{
    const struct shard_tensor *tensor = chunk->tensor;
    if (!chunk_has_values(chunk)) return WEFT_OK;
    WEFT_TRY(own_reserve(tensor->engine, tensor->values_stride, chunk->values, &chunk->placement.own_values));
    if (!chunk->values) chunk->values = chunk->placement.own_values;
    if (tensor->pull_dtype == WEFT_F32) return WEFT_OK;
    WEFT_TRY(own_reserve(tensor->engine, tensor->half_stride, chunk->half, &chunk->placement.own_half));
    if (!chunk->half) chunk->half = chunk->placement.own_half;
    return WEFT_OK;
}

static enum weft_status memory_make(struct shard_chunk *chunk)
{
    WEFT_TRY(states_make(chunk));
    WEFT_TRY(own_values_reserve(chunk));
    WEFT_TRY(shard_clock_reserve(chunk));
    WEFT_TRY(combiner_make(chunk));
    WEFT_TRY(coded_make(chunk));
    WEFT_TRY(scratch_make(chunk->tensor));
    return copy_fits(chunk) ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

enum weft_status shard_table_reserve_chunk(struct shard_chunk *chunk)
{
    if (chunk->placement.is_here) return WEFT_OK;
    const enum weft_status status = memory_make(chunk);
    if (status < 0) shard_table_release_chunk(chunk);
    else shard_table_count(chunk, true);
    return status;
}

static void codec_release(struct shard_chunk *chunk)
{
    struct weft_env *env = chunk->tensor->engine->env;
    shard_contributions_drop(chunk);
    weft_free_bytes(env, chunk->workers.own_contributions);
    weft_free_bytes(env, chunk->hold.coded);
    weft_combiner_free(chunk->coding.combiner);
    chunk->workers.own_contributions = NULL;
    chunk->hold.coded = NULL;
    chunk->hold.coded_bytes = 0;
    chunk->coding.combiner = NULL;
}

void shard_table_release_chunk(struct shard_chunk *chunk)
{
    struct weft_env *env = chunk->tensor->engine->env;
    shard_table_count(chunk, false);
    for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) {
        weft_free_bytes(env, chunk->states[s]);
        chunk->states[s] = NULL;
    }
    shard_clock_free(chunk);
    if (chunk->placement.own_values) { /* an undone step has exchanged its values with those of the backup */
        shard_skip_free(chunk);
        chunk->backup = (struct shard_backup){0};
        weft_memory_free(env, chunk->placement.own_values);
        weft_memory_free(env, chunk->placement.own_half);
        chunk->placement.own_values = chunk->values = NULL;
        chunk->placement.own_half = NULL;
        chunk->half = NULL;
    }
    shard_verdict_free(chunk);
    codec_release(chunk);
    chunk->backup.valid = false;
    chunk->result.is_resendable = chunk->initialised = false;
    chunk->closed_step = chunk->open.step = chunk->result.step = chunk->error.step = 0;
    chunk->backup.skips = 0;
    chunk->open.round = 0;
    chunk->copy.synced_term = 0;
}

void shard_table_drop(struct shard_tensor *tensor)
{
    struct weft_env *env = tensor->engine->env;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) weft_free_bytes(env, tensor->chunks[i].states[s]);
        shard_skip_free(&tensor->chunks[i]);
        shard_clock_free(&tensor->chunks[i]);
        shard_verdict_free(&tensor->chunks[i]);
        weft_free_bytes(env, tensor->chunks[i].installation.buffer);
        codec_release(&tensor->chunks[i]);
        weft_free_bytes(env, tensor->chunks[i].error.unsent);
        weft_free_bytes(env, tensor->chunks[i].workers.weights);
        weft_memory_free(env, tensor->chunks[i].placement.own_values);
        weft_memory_free(env, tensor->chunks[i].placement.own_half);
        weft_free_bytes(env, tensor->chunks[i].move);
        weft_list_remove(&tensor->chunks[i].copy.leave_link);
    }
    weft_memory_free(env, tensor->values);
    weft_memory_free(env, tensor->halves);
    weft_free_bytes(env, tensor->chunks);
    weft_free_bytes(env, tensor);
}

enum weft_status shard_table_add(struct weft_shard_engine *engine, const Weft__Control__Declared *declared,
                                 struct weft_error *error)
{
    if (!declared->declare || declared->tensor >= WEFT_LIMIT_TENSORS || declared->n_chunks < 1 ||
        declared->n_chunks > WEFT_LIMIT_CHUNKS)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "a declaration of tensor %u without content or beyond the limits",
                              declared->tensor);
    if (shard_table_tensor(engine, declared->tensor))
        return weft_error_set(error, WEFT_ERR_EXISTS, "tensor %u is declared already", declared->tensor);
    if (capacity_grow(engine, declared->tensor) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the table of tensors");
    struct shard_tensor *tensor = weft_alloc_zero(engine->env, sizeof *tensor);
    if (!tensor)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for tensor %u", declared->tensor);
    tensor->engine = engine;
    tensor->id = declared->tensor;

    enum weft_status status = tensor_describe(tensor, declared->declare, error);
    if (status == WEFT_OK) status = chunks_make(tensor, declared, error);
    if (status == WEFT_OK) {
        status = scratch_make(tensor);
        if (status < 0) weft_error_set(error, status, "no memory to decode tensor '%s'", tensor->name);
    }
    if (status < 0 || tensor->chunk_count == 0) {
        shard_table_drop(tensor);
        return status;
    }
    engine->table.tensors[tensor->id] = tensor;
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        if (tensor->chunks[i].placement.is_here) shard_table_count(&tensor->chunks[i], true);
    shard_move_tensor_added(tensor);
    return WEFT_OK;
}

void shard_table_free(struct weft_shard_engine *engine)
{
    for (uint32_t i = 0; i < engine->table.capacity; i++)
        if (engine->table.tensors[i]) shard_table_drop(engine->table.tensors[i]);
    weft_free_bytes(engine->env, engine->table.tensors);
    weft_free_bytes(engine->env, engine->scratches.scratch);
    while (engine->scratches.retired_count > 0)
        weft_free_bytes(engine->env, engine->scratches.retired[--engine->scratches.retired_count]);
    engine->table.tensors = NULL;
    engine->scratches.scratch = NULL;
    engine->table.capacity = 0;
}
