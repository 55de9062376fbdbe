/* declare.c - tensor declarations: all workers must declare the same, chunks are placed, shards allocate.
 *
 *     Declare (n) of every worker -> compare -> place -> Declared to the owning shards
 *                                                     <- DeclaredOk of each -> Declared to all workers
 *
 * Workers declare in order, so tensor n completes after tensor n-1, and placement runs in ordinal order.
 * Placement therefore depends on the declarations alone, not on their timing. Dense tensors and tensors of a
 * blockwise codec are cut into chunks; other tensors are one chunk. Each chunk goes to the endpoint with the
 * fewest bytes. Among equals the first engine of every shard precedes the second engine of any shard. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"
#include "kernels/kernels.h"
#include "proto/proto.h"

#define STORED_CHUNKS_MAX 32768u /* a record is one value of the store */

/* ---- comparing ---- */

static void format_dims(size_t count, const uint64_t *dims, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < count && used + 1 < out_bytes; i++) {
        int n = snprintf(out + used, out_bytes - used, "%s%llu", i ? "x" : "", (unsigned long long)dims[i]);
        used += (size_t)n;
    }
}

static const char *mode_name(uint32_t mode)
{
    return mode == WEFT_WIRE_MODE_SERVER ? "server" : "all_reduce";
}

static const char *name_bool(bool value)
{
    return value ? "true" : "false";
}

/* The first field that differs: its name and both values as text. */
struct difference {
    const char *field;
    char mine[180], theirs[180];
};

static bool texts_differ(struct difference *difference, const char *field, const char *mine,
                         const char *theirs)
{
    if (strcmp(mine, theirs) == 0) return false;
    difference->field = field;
    snprintf(difference->mine, sizeof difference->mine, "%.170s", mine);
    snprintf(difference->theirs, sizeof difference->theirs, "%.170s", theirs);
    return true;
}

static const char *consistency_name(const Weft__Control__Declare *declare)
{
    return declare->consistency[0] ? declare->consistency : "bsp";
}

static const char *pull_dtype_name(const Weft__Control__Declare *declare)
{
    return weft_dtype_name((enum weft_dtype)(declare->pull_dtype ? declare->pull_dtype : declare->dtype));
}

static bool declares_differ(const Weft__Control__Declare *mine, const Weft__Control__Declare *theirs,
                            struct difference *difference)
{
    char a[200], b[200];
    format_dims(mine->n_dims, mine->dims, a, sizeof a);
    format_dims(theirs->n_dims, theirs->dims, b, sizeof b);
    if (texts_differ(difference, "shape", a, b)) return true;
    if (texts_differ(difference, "dtype", weft_dtype_name((enum weft_dtype)mine->dtype),
                     weft_dtype_name((enum weft_dtype)theirs->dtype)))
        return true;
    if (texts_differ(difference, "pull_dtype", pull_dtype_name(mine), pull_dtype_name(theirs))) return true;
    if (texts_differ(difference, "codec", mine->codec, theirs->codec)) return true;
    if (texts_differ(difference, "optimizer", mine->optimizer, theirs->optimizer)) return true;
    if (texts_differ(difference, "mode", mode_name(mine->mode), mode_name(theirs->mode))) return true;
    snprintf(a, sizeof a, "%llu", (unsigned long long)mine->chunk_bytes);
    snprintf(b, sizeof b, "%llu", (unsigned long long)theirs->chunk_bytes);
    if (texts_differ(difference, "chunk_bytes", a, b)) return true;
    snprintf(a, sizeof a, "%d", (int)mine->priority);
    snprintf(b, sizeof b, "%d", (int)theirs->priority);
    if (texts_differ(difference, "priority", a, b)) return true;
    if (texts_differ(difference, "consistency", consistency_name(mine), consistency_name(theirs)))
        return true;
    return texts_differ(difference, "alone", name_bool(mine->alone), name_bool(theirs->alone)) ||
           texts_differ(difference, "skip_nonfinite", name_bool(mine->skip_nonfinite),
                        name_bool(theirs->skip_nonfinite));
}

/* The higher rank is named first, so the sentence does not depend on which rank declared first. */
static void abort_different(struct weft_coordinator *coordinator, uint32_t rank,
                            const Weft__Control__Declare *declare, uint32_t first_rank,
                            const Weft__Control__Declare *first)
{
    bool swap = rank < first_rank;
    const Weft__Control__Declare *high = swap ? first : declare, *low = swap ? declare : first;
    uint32_t high_rank = swap ? first_rank : rank, low_rank = swap ? rank : first_rank;
    struct difference difference;
    if (strcmp(high->name, low->name) != 0)
        coordinator_abort(coordinator, NULL, WEFT_ERR_MISMATCH,
                          "rank %u declares tensor '%.150s' as its number %u, rank %u declares '%.150s': "
                          "declare the same tensors in the same order",
                          high_rank, high->name, declare->ordinal, low_rank, low->name);
    else if (declares_differ(high, low, &difference))
        coordinator_abort(coordinator, NULL, WEFT_ERR_MISMATCH,
                          "rank %u declares tensor '%.150s' with %s %.120s, rank %u with %.120s", high_rank,
                          high->name, difference.field, difference.mine, low_rank, difference.theirs);
}

/* ---- the first declaration of a tensor ---- */

static void tensor_free(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    if (!tensor) return;
    struct weft_env *env = coordinator->env;
    weft_free_bytes(env, tensor->declare.name);
    weft_free_bytes(env, tensor->declare.codec);
    weft_free_bytes(env, tensor->declare.optimizer);
    weft_free_bytes(env, tensor->declare.consistency);
    weft_free_bytes(env, tensor->declare.dims);
    weft_free_bytes(env, tensor->chunks);
    weft_free_bytes(env, tensor->shard_reply_pending);
    weft_free_bytes(env, tensor->freed_by);
    weft_free_bytes(env, tensor);
}

void coordinator_tensors_free(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++)
        tensor_free(coordinator, coordinator->table.tensors[i]);
    weft_free_bytes(coordinator->env, coordinator->table.tensors);
    weft_free_bytes(coordinator->env, coordinator->table.names);
}

bool coordinator_shards_see_steps(const struct weft_coordinator *coordinator)
{
    bool has_bsp = false;
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++) {
        const struct coordinator_tensor *tensor = coordinator->table.tensors[i];
        if (!tensor || tensor->chunk_count == 0) continue;
        if (strcmp(consistency_name(&tensor->declare), "bsp") != 0) return false;
        has_bsp = true;
    }
    return has_bsp;
}

static enum weft_status check_shards(const struct weft_coordinator *coordinator, struct weft_error *error)
{
    if (coordinator->options.shards == 0)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "server mode needs shards and this job has none: start some, or use mode all_reduce");
    return WEFT_OK;
}

static enum weft_status check_version(const struct weft_coordinator *coordinator,
                                      const Weft__Control__Declare *declare, bool is_dense,
                                      struct weft_error *error)
{
    const bool is_elastic = coordinator->options.workers_min > 0;
    const char *what;
    const uint32_t version = weft_wire_version_of_declare(declare, is_dense, is_elastic, &what);
    return coordinator_wire_check(coordinator, version, what, error);
}

/* Checks one declaration alone. Writes the codec in canonical form to codec_text. */
static enum weft_status check_declare(struct weft_coordinator *coordinator,
                                      const Weft__Control__Declare *declare, char *codec_text,
                                      size_t codec_bytes, struct weft_codec_spec *resolved_out,
                                      uint32_t *candidates_out, struct weft_error *error)
{
    struct weft_codec_spec spec;
    struct weft_optimizer optimizer;
    struct weft_shape shape = {.dim_count = (uint32_t)declare->n_dims};
    _Static_assert(WEFT_LIMIT_DIMS == WEFT_TENSOR_DIMS_MAX, "one limit of dimensions");
    _Static_assert(WEFT_LIMIT_CANDIDATES == WEFT_CODEC_CANDIDATES_MAX, "one limit of candidates");
    memcpy(shape.dims, declare->dims, declare->n_dims * sizeof shape.dims[0]);
    const bool is_auto = weft_codec_candidates_requested(declare->codec);
    *candidates_out = 0;
    if (is_auto) {
        struct weft_codec_candidates candidates;
        WEFT_TRY((enum weft_status)weft_codec_candidates_parse(declare->codec, &candidates, error));
        weft_codec_candidates_resolve(&candidates, &shape);
        *candidates_out = candidates.count;
        spec = candidates.specs[0];
        snprintf(codec_text, codec_bytes, "%s", declare->codec);
    } else {
        WEFT_TRY(
            (enum weft_status)weft_codec_parse(declare->codec[0] ? declare->codec : "dense", &spec, error));
        weft_codec_format(&spec, codec_text, codec_bytes);
    }
    struct weft_consistency consistency;
    WEFT_TRY((enum weft_status)weft_optimizer_parse(declare->optimizer, &optimizer, error));
    WEFT_TRY(weft_consistency_parse(declare->consistency, &consistency, error));
    *resolved_out = weft_codec_resolve(&spec, &shape);
    const struct weft_tensor_dtypes dtypes = {.dtype = declare->dtype,
                                              .pull_dtype = declare->pull_dtype,
                                              .mode = declare->mode,
                                              .is_dense = !is_auto && spec.id == WEFT_CODEC_DENSE,
                                              .has_optimizer = optimizer.kind != WEFT_OPTIMIZER_NONE,
                                              .has_rounds = consistency.kind == WEFT_CONSISTENCY_BSP};
    WEFT_TRY(weft_tensor_dtypes_check(&dtypes, error));
    WEFT_TRY(check_version(coordinator, declare, dtypes.is_dense, error));
    if (declare->mode == WEFT_WIRE_MODE_SERVER) return check_shards(coordinator, error);
    return WEFT_OK;
}

static struct coordinator_tensor *tensor_create(struct weft_coordinator *coordinator,
                                                const Weft__Control__Declare *declare, const char *codec_text,
                                                uint32_t rank)
{
    struct weft_env *env = coordinator->env;
    if (coordinator_names_reserve(coordinator) < 0) return NULL;
    if (coordinator->table.tensor_count == coordinator->table.tensor_capacity) {
        uint32_t capacity = coordinator->table.tensor_capacity ? coordinator->table.tensor_capacity * 2 : 16;
        struct coordinator_tensor **more = weft_alloc_array(env, capacity, sizeof *more);
        if (!more) return NULL;
        if (coordinator->table.tensor_count)
            memcpy(more, coordinator->table.tensors, coordinator->table.tensor_count * sizeof *more);
        weft_free_bytes(env, coordinator->table.tensors);
        coordinator->table.tensors = more;
        coordinator->table.tensor_capacity = capacity;
    }
    struct coordinator_tensor *tensor = weft_alloc_zero(env, sizeof *tensor);
    if (!tensor) return NULL;
    weft__control__declare__init(&tensor->declare);
    tensor->declare.ordinal = declare->ordinal;
    tensor->declare.dtype = declare->dtype;
    tensor->declare.mode = declare->mode;
    tensor->declare.chunk_bytes = declare->chunk_bytes;
    tensor->declare.skip_nonfinite = declare->skip_nonfinite;
    tensor->declare.priority = declare->priority;
    tensor->declare.alone = declare->alone;
    tensor->declare.pull_dtype = declare->pull_dtype;
    tensor->declare.n_dims = declare->n_dims;
    tensor->declare.dims = weft_alloc_array(env, declare->n_dims, sizeof *declare->dims);
    tensor->declare.name = weft_alloc_text(env, declare->name);
    tensor->declare.codec = weft_alloc_text(env, codec_text);
    tensor->declare.optimizer = weft_alloc_text(env, declare->optimizer);
    tensor->declare.consistency = weft_alloc_text(env, declare->consistency);
    tensor->shard_reply_pending =
        weft_alloc_zero(env, (coordinator->options.shards + 1) * sizeof *tensor->shard_reply_pending);
    tensor->first_rank = rank;
    if (!tensor->declare.dims || !tensor->declare.name || !tensor->declare.codec ||
        !tensor->declare.optimizer || !tensor->declare.consistency || !tensor->shard_reply_pending) {
        tensor_free(coordinator, tensor);
        return NULL;
    }
    memcpy(tensor->declare.dims, declare->dims, declare->n_dims * sizeof *declare->dims);
    tensor->elems = 1;
    for (size_t i = 0; i < declare->n_dims; i++) tensor->elems *= declare->dims[i];
    coordinator->table.tensors[coordinator->table.tensor_count++] = tensor;
    coordinator_names_add(coordinator, coordinator->table.tensor_count - 1);
    return tensor;
}

/* ---- placement ---- */

enum weft_status coordinator_placement_init(struct weft_coordinator *coordinator)
{
    uint32_t count = 0, engines_max = 0;
    for (uint32_t s = 0; s < coordinator->options.shards; s++) {
        uint32_t engines = coordinator->membership.shards[s]->endpoint_count;
        count += engines;
        if (engines > engines_max) engines_max = engines;
    }
    if (count == 0) return WEFT_OK;
    coordinator->table.endpoints =
        weft_alloc_array(coordinator->env, count, sizeof *coordinator->table.endpoints);
    if (!coordinator->table.endpoints) return WEFT_ERR_NO_MEMORY;
    for (uint32_t engine = 0; engine < engines_max; engine++)
        for (uint32_t s = 0; s < coordinator->options.shards; s++)
            if (engine < coordinator->membership.shards[s]->endpoint_count)
                coordinator->table.endpoints[coordinator->table.endpoint_count++] =
                    (struct coordinator_endpoint){
                        .id = coordinator->membership.shards[s]->endpoint_first + engine, .shard = s};
    return WEFT_OK;
}

static bool can_place(const struct weft_coordinator *coordinator, const struct coordinator_endpoint *endpoint)
{
    return coordinator->membership.shards[endpoint->shard]->state < MEMBER_LEFT &&
           coordinator_slot_can_choose(coordinator, endpoint);
}

static bool drains(const struct weft_coordinator *coordinator, const struct coordinator_endpoint *endpoint)
{
    return coordinator->membership.shards[endpoint->shard]->is_draining;
}

static uint64_t load_of(const struct coordinator_endpoint *endpoint, bool is_coded)
{
    return is_coded ? endpoint->coded_bytes : endpoint->load_bytes;
}

/* The endpoint for the next chunk: the one with the fewest bytes, is_coded: of candidates with a codec.
 * One of a shard that is to leave only if all are of such shards. NULL: there is none. */
static struct coordinator_endpoint *least_loaded(struct weft_coordinator *coordinator, bool is_coded)
{
    struct coordinator_endpoint *best = NULL;
    for (uint32_t i = 0; i < coordinator->table.endpoint_count; i++) {
        struct coordinator_endpoint *endpoint = &coordinator->table.endpoints[i];
        if (!can_place(coordinator, endpoint)) continue;
        const bool leaves = drains(coordinator, endpoint), best_leaves = best && drains(coordinator, best);
        if (!best ||
            (leaves == best_leaves ? load_of(endpoint, is_coded) < load_of(best, is_coded) : best_leaves))
            best = endpoint;
    }
    return best;
}

static void expect_reply(struct coordinator_tensor *tensor, const struct coordinator_endpoint *home)
{
    if (!tensor->shard_reply_pending[home->shard])
        tensor->shard_reply_pending[home->shard] = true, tensor->replies_pending++;
}

/* With copies any shard may get a chunk later (move.c): all of them have the table of the tensor. */
static void expect_all_replies(const struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    for (uint32_t e = 0; coordinator->slots.count > 0 && e < coordinator->table.endpoint_count; e++)
        if (coordinator->membership.shards[coordinator->table.endpoints[e].shard]->state < MEMBER_LEFT)
            expect_reply(tensor, &coordinator->table.endpoints[e]);
}

static void add_chunk(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor,
                      uint64_t offset, uint64_t count, uint32_t endpoint, uint32_t candidate, uint32_t slot)
{
    Weft__Control__Chunk *chunk = &tensor->chunks[tensor->chunk_count++];
    weft__control__chunk__init(chunk);
    chunk->offset = offset;
    chunk->count = count;
    chunk->endpoint = endpoint;
    chunk->candidate = candidate;
    chunk->slot = slot;
    coordinator_slot_add_chunk(coordinator, slot,
                               count * weft_dtype_bytes((enum weft_dtype)tensor->declare.dtype));
}

/* Chunks of the candidates of a codec "auto". A candidate that can be cut has the same chunks on the same
 * endpoints as the dense one. The candidates that encode the whole tensor share one endpoint. */
static void place_candidates(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor,
                             const bool *cuts, uint32_t pieces)
{
    struct coordinator_endpoint *home = NULL;
    uint32_t slot = 0;
    for (uint32_t candidate = 1; candidate < tensor->candidates; candidate++) {
        for (uint32_t i = 0; cuts[candidate] && i < pieces; i++)
            add_chunk(coordinator, tensor, tensor->chunks[i].offset, tensor->chunks[i].count,
                      tensor->chunks[i].endpoint, candidate, tensor->chunks[i].slot);
        if (cuts[candidate]) continue;
        if (!home) {
            home = least_loaded(coordinator, true);
            tensor->coded_endpoint = (uint32_t)(home - coordinator->table.endpoints) + 1;
            home->coded_bytes += tensor->elems * weft_dtype_bytes((enum weft_dtype)tensor->declare.dtype);
            slot = coordinator_slot_choose(coordinator, home);
            expect_reply(tensor, home);
        }
        add_chunk(coordinator, tensor, 0, tensor->elems, home->id, candidate, slot);
    }
}

/* The parsed texts of a declaration that check_declare has accepted. */
struct parsed_texts {
    struct weft_optimizer optimizer;
    struct weft_codec_candidates candidates;
};

static struct weft_chunking cut_of(const struct coordinator_tensor *tensor, struct parsed_texts *parsed)
{
    struct weft_shape shape = {.dim_count = (uint32_t)tensor->declare.n_dims};
    *parsed = (struct parsed_texts){0};
    memcpy(shape.dims, tensor->declare.dims, tensor->declare.n_dims * sizeof shape.dims[0]);
    (void)weft_optimizer_parse(tensor->declare.optimizer, &parsed->optimizer, NULL);
    if (tensor->candidates > 1)
        (void)weft_codec_candidates_parse(tensor->declare.codec, &parsed->candidates, NULL);
    if (tensor->candidates > 1) weft_codec_candidates_resolve(&parsed->candidates, &shape);
    return (struct weft_chunking){.elems = tensor->elems,
                                  .elem_bytes = weft_dtype_bytes((enum weft_dtype)tensor->declare.dtype),
                                  .chunk_bytes = tensor->declare.chunk_bytes,
                                  .codec = &tensor->codec,
                                  .optimizer = &parsed->optimizer,
                                  .candidates = &parsed->candidates};
}

/* Cuts and places a tensor. false: the job was aborted. */
static bool place(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    size_t elem_bytes = weft_dtype_bytes((enum weft_dtype)tensor->declare.dtype);
    const bool choice = tensor->candidates > 1;
    struct parsed_texts texts;
    const struct weft_chunking cut = cut_of(tensor, &texts);
    bool cuts[WEFT_LIMIT_CANDIDATES] = {false};
    const uint64_t piece = weft_chunking_elems(&cut), count = (tensor->elems + piece - 1) / piece,
                   all = weft_chunking_count(&cut, cuts);
    if (all > WEFT_LIMIT_CHUNKS) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_LIMIT,
                          "tensor '%.150s' would be cut into %llu chunks of %llu bytes, at most %u are "
                          "allowed: declare a larger chunk_bytes",
                          tensor->declare.name, (unsigned long long)all,
                          (unsigned long long)tensor->declare.chunk_bytes, WEFT_LIMIT_CHUNKS);
        return false;
    }
    if (coordinator->records.reign && all > STORED_CHUNKS_MAX) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_LIMIT,
                          "tensor '%.150s' would be cut into %llu chunks, at most %u are allowed with "
                          "server.store: declare a larger chunk_bytes",
                          tensor->declare.name, (unsigned long long)all, STORED_CHUNKS_MAX);
        return false;
    }
    tensor->chunks = weft_alloc_array(coordinator->env, (size_t)all, sizeof *tensor->chunks);
    if (!tensor->chunks) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the chunks of tensor '%.150s'",
                          tensor->declare.name);
        return false;
    }
    for (uint64_t i = 0, offset = 0; i < count; i++, offset += piece) {
        uint64_t elems = offset + piece <= tensor->elems ? piece : tensor->elems - offset;
        struct coordinator_endpoint *home = least_loaded(coordinator, false);
        home->load_bytes += elems * elem_bytes;
        const uint32_t slot = coordinator_slot_choose(coordinator, home);
        add_chunk(coordinator, tensor, offset, elems, home->id, 0, slot);
        expect_reply(tensor, home);
    }
    expect_all_replies(coordinator, tensor);
    if (choice) place_candidates(coordinator, tensor, cuts, (uint32_t)count);
    return true;
}

/* Do all members read runs of chunks? */
static bool read_chunk_runs(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->options.workers; i++)
        if (coordinator->membership.workers[i] &&
            !coordinator->membership.workers[i]->abilities.reads_chunk_runs)
            return false;
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (coordinator->membership.shards[i] &&
            !coordinator->membership.shards[i]->abilities.reads_chunk_runs)
            return false;
    return true;
}

/* Sends Declared to the owning shards, or to all workers; only: to this one of them. */
static void send_declared(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor,
                          bool to_workers, const struct coordinator_member *only)
{
    Weft__Control__Declared declared = WEFT__CONTROL__DECLARED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    struct weft_chunk_runs runs;
    void *memory =
        weft_alloc_array(coordinator->env, tensor->chunk_count + 1, sizeof(Weft__Control__Chunk *));
    if (!memory) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory to announce tensor '%.150s'", tensor->declare.name);
        return;
    }
    declared.tensor = tensor->declare.ordinal;
    declared.declare = &tensor->declare;
    if (read_chunk_runs(coordinator) &&
        weft_chunk_runs_make(tensor->chunks, tensor->chunk_count, &runs, memory)) {
        declared.n_runs = runs.count;
        declared.runs = runs.pointers;
    } else {
        declared.n_chunks = tensor->chunk_count;
        declared.chunks = memory;
        for (uint32_t i = 0; i < tensor->chunk_count; i++) declared.chunks[i] = &tensor->chunks[i];
    }
    declared.restored = tensor->restored;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_DECLARED;
    message.declared = &declared;
    coordinator_send_same(coordinator, &message);
    for (uint32_t i = 0; to_workers && i < coordinator->options.workers; i++)
        if (!only || only == coordinator->membership.workers[i]) {
            coordinator_send(coordinator, coordinator->membership.workers[i], &message);
            if (!coordinator->membership.workers[i]->record.is_awaited)
                coordinator->membership.workers[i]->record.announced = tensor->declare.ordinal + 1;
        }
    for (uint32_t i = 0; !to_workers && i < coordinator->options.shards; i++)
        if (tensor->shard_reply_pending[i] && (!only || only == coordinator->membership.shards[i]))
            coordinator_send(coordinator, coordinator->membership.shards[i], &message);
    coordinator_send_same(coordinator, NULL);
    weft_free_bytes(coordinator->env, memory);
}

static void announce(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    WEFT_ASSERT(!tensor->announced && tensor->replies_pending == 0);
    tensor->announced = true;
    coordinator_records_tensor(coordinator, tensor);
    weft_log(coordinator->env, WEFT_LOG_DEBUG, "coordinator", "tensor %u '%s' declared, %u chunks",
             tensor->declare.ordinal, tensor->declare.name, tensor->chunk_count);
    send_declared(coordinator, tensor, true, NULL);
}

/* ---- messages ---- */

static struct coordinator_tensor *first_declare(struct weft_coordinator *coordinator,
                                                const struct coordinator_member *worker,
                                                const Weft__Control__Declare *declare, const char *codec_text)
{
    if (coordinator_name_is_taken(coordinator, declare->name)) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_EXISTS,
                          "rank %u declares tensor '%.150s' twice: names are unique in a job", worker->index,
                          declare->name);
        return NULL;
    }
    struct coordinator_tensor *tensor = tensor_create(coordinator, declare, codec_text, worker->index);
    if (!tensor)
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for tensor '%.150s'", declare->name);
    return tensor;
}

/* The former coordinator had this declaration of all workers, and may not have answered it. */
static void declare_again(struct weft_coordinator *coordinator, const struct coordinator_member *worker,
                          uint32_t ordinal)
{
    struct coordinator_tensor *tensor = coordinator->table.tensors[ordinal];
    if (tensor->announced && worker->record.announced <= ordinal)
        send_declared(coordinator, tensor, true, worker);
}

void coordinator_declare(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                         const Weft__Control__Declare *declare)
{
    /* a new worker does not declare freed tensors */
    const uint32_t ordinal = coordinator_next_live_tensor(coordinator, declare->ordinal);
    if (coordinator->records.is_restored && ordinal < worker->declared_count) {
        declare_again(coordinator, worker, ordinal);
        return;
    }
    if (ordinal != coordinator_next_live_tensor(coordinator, worker->declared_count)) {
        coordinator_member_lost(coordinator, worker, "it declared tensors out of order");
        return;
    }
    /* announced before: only a newcomer declares it now */
    bool known = ordinal < coordinator->table.tensor_count && coordinator->table.tensors[ordinal]->announced;
    const struct coordinator_member *resting = coordinator_find_joined(coordinator);
    if (resting && !known) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_MISMATCH,
                          "rank %u declares tensor '%.100s', but %s has joined: all ranks must declare it",
                          worker->index, declare->name, resting->label);
        return;
    }
    char codec_text[WEFT_LIMIT_NAME_BYTES + 1];
    struct weft_codec_spec resolved;
    struct weft_error error = {0};
    uint32_t candidates;
    enum weft_status status =
        check_declare(coordinator, declare, codec_text, sizeof codec_text, &resolved, &candidates, &error);
    if (status != WEFT_OK) {
        coordinator_abort(coordinator, NULL, status, "rank %u, tensor '%.100s': %.300s", worker->index,
                          declare->name, error.text);
        return;
    }
    Weft__Control__Declare canonical = *declare;
    canonical.codec = codec_text;
    canonical.ordinal = ordinal;
    struct coordinator_tensor *tensor;
    if (ordinal == coordinator->table.tensor_count) {
        tensor = first_declare(coordinator, worker, &canonical, codec_text);
        if (!tensor) return;
        tensor->codec = resolved;
        tensor->candidates = candidates;
    } else {
        tensor = coordinator->table.tensors[ordinal];
        abort_different(coordinator, worker->index, &canonical, tensor->first_rank, &tensor->declare);
        if (coordinator->state == COORDINATOR_ENDED) return;
    }
    worker->declared_count = ordinal + 1;
    if (tensor->announced) { /* a newcomer declares it later */
        send_declared(coordinator, tensor, true, worker);
        return;
    }
    coordinator_check_left(coordinator);
    if (coordinator->state == COORDINATOR_ENDED) return;
    if (++tensor->declared_count < coordinator->options.workers) return;

    WEFT_ASSERT(!tensor->placed);
    if (tensor->declare.mode == WEFT_WIRE_MODE_SERVER) {
        if (!place(coordinator, tensor)) return;
        tensor->placed = true;
        coordinator_records_tensor(coordinator, tensor);
        send_declared(coordinator, tensor, false, NULL);
    } else {
        announce(coordinator, tensor);
    }
}

/* Aborts if a worker has left without declaring a tensor, since no other worker could complete the
 * declaration. */
void coordinator_check_left(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; coordinator->membership.worker_left_count && i < coordinator->options.workers; i++) {
        const struct coordinator_member *worker = coordinator->membership.workers[i];
        const uint32_t next = coordinator_next_live_tensor(coordinator, worker->declared_count);
        if (worker->state != MEMBER_LEFT || next == coordinator->table.tensor_count) continue;
        const struct coordinator_tensor *tensor = coordinator->table.tensors[next];
        coordinator_abort(coordinator, NULL, WEFT_ERR_MISMATCH,
                          "rank %u left without declaring tensor '%.150s', which rank %u declares",
                          worker->index, tensor->declare.name, tensor->first_rank);
        return;
    }
}

/* The answer of the shard is not waited for any more. */
static void forget_reply(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor,
                         uint32_t shard)
{
    tensor->shard_reply_pending[shard] = false;
    if (--tensor->replies_pending == 0 && !tensor->announced) announce(coordinator, tensor);
}

void coordinator_declared_ok(struct weft_coordinator *coordinator, struct coordinator_member *shard,
                             const Weft__Control__DeclaredOk *ok)
{
    const uint32_t ordinal = ok->tensor;
    if (coordinator->records.is_restored && ordinal < coordinator->table.tensor_count &&
        !coordinator->table.tensors[ordinal]->shard_reply_pending[shard->index])
        return; /* the second answer: to the former coordinator, and to the repeated request */
    if (ordinal >= coordinator->table.tensor_count ||
        !coordinator->table.tensors[ordinal]->shard_reply_pending[shard->index] ||
        !coordinator->table.tensors[ordinal]->placed) {
        coordinator_member_lost(coordinator, shard, "it confirmed a tensor that it was not asked about");
        return;
    }
    struct coordinator_tensor *tensor = coordinator->table.tensors[ordinal];
    const bool adds = shard->addition.is_entering; /* it has no chunk of the tensor */
    if (tensor->has_answer && tensor->restored != ok->restored && !adds) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_MISMATCH,
                          "%s has restored tensor '%.150s' from another snapshot than the shards before: "
                          "give all shards the same --restore FOLDER:STEP",
                          shard->label, tensor->declare.name);
        return;
    }
    if (!adds) tensor->has_answer = true;
    if (!adds) tensor->restored = ok->restored;
    forget_reply(coordinator, tensor, shard->index);
    if (adds) coordinator_add_continue(coordinator);
}

void coordinator_declare_forget_shard(struct weft_coordinator *coordinator, uint32_t shard)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++) {
        struct coordinator_tensor *tensor = coordinator->table.tensors[i];
        if (tensor->placed && tensor->shard_reply_pending[shard]) forget_reply(coordinator, tensor, shard);
    }
}

/* The endpoint that holds the chunks of a weight hash. home: endpoint + 1, 0: the first. false: no chunk is
 * there. */
static bool find_endpoint(const struct coordinator_tensor *tensor, uint32_t home, uint32_t *endpoint_out)
{
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        *endpoint_out = tensor->chunks[i].endpoint;
        if (home == 0 || tensor->chunks[i].endpoint == home - 1) return true;
    }
    return false;
}

void coordinator_weight_hash(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                             const Weft__Control__WeightHash *hash)
{
    uint32_t home;
    const bool is_announced = hash->worker == worker->index &&
                              hash->tensor < coordinator->table.tensor_count &&
                              coordinator->table.tensors[hash->tensor]->announced;
    if (!is_announced || !find_endpoint(coordinator->table.tensors[hash->tensor], hash->home, &home)) {
        if (is_announced && coordinator->options.copies > 0) return; /* of a shard that was lost */
        coordinator_member_lost(coordinator, worker, "it sent a weight hash of a tensor that no shard has");
        return;
    }
    Weft__Control__WeightHash copy = *hash;
    copy.home = home + 1;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_WEIGHT_HASH;
    message.weight_hash = &copy;
    for (uint32_t i = 0; i < coordinator->table.endpoint_count; i++)
        if (coordinator->table.endpoints[i].id == home)
            coordinator_send(coordinator,
                             coordinator->membership.shards[coordinator->table.endpoints[i].shard], &message);
}

/* ---- a further shard ---- */

enum weft_status coordinator_declare_reserve_shard(struct weft_coordinator *coordinator)
{
    const uint32_t shards = coordinator->options.shards;
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++) {
        struct coordinator_tensor *tensor = coordinator->table.tensors[i];
        bool *more = weft_alloc_zero(coordinator->env, (shards + 2) * sizeof *more);
        if (!more) return WEFT_ERR_NO_MEMORY; /* the longer arrays are valid */
        memcpy(more, tensor->shard_reply_pending, shards * sizeof *more);
        weft_free_bytes(coordinator->env, tensor->shard_reply_pending);
        tensor->shard_reply_pending = more;
    }
    return WEFT_OK;
}

void coordinator_declare_expect_shard(struct weft_coordinator *coordinator,
                                      const struct coordinator_member *shard)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++) {
        struct coordinator_tensor *tensor = coordinator->table.tensors[i];
        if (!tensor->placed || tensor->is_freed || tensor->shard_reply_pending[shard->index]) continue;
        tensor->shard_reply_pending[shard->index] = true;
        tensor->replies_pending++;
    }
}

bool coordinator_declare_is_awaited(const struct weft_coordinator *coordinator,
                                    const struct coordinator_member *shard)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++)
        if (coordinator->table.tensors[i]->shard_reply_pending[shard->index]) return true;
    return false;
}

enum weft_status coordinator_placement_add(struct weft_coordinator *coordinator,
                                           const struct coordinator_member *shard)
{
    const uint32_t before = coordinator->table.endpoint_count, count = before + shard->endpoint_count;
    struct coordinator_endpoint *more = weft_alloc_array(coordinator->env, count, sizeof *more);
    if (!more) return WEFT_ERR_NO_MEMORY;
    memcpy(more, coordinator->table.endpoints, before * sizeof *more);
    for (uint32_t e = before; e < count; e++)
        more[e] =
            (struct coordinator_endpoint){.id = shard->endpoint_first + e - before, .shard = shard->index};
    weft_free_bytes(coordinator->env, coordinator->table.endpoints);
    coordinator->table.endpoints = more;
    coordinator->table.endpoint_count = count;
    return WEFT_OK;
}

/* ---- another coordinator continues ---- */

/* Chunks follow their slots: a record may be older than the last fail-over. */
static enum weft_status restore_chunks(struct weft_coordinator *coordinator,
                                       struct coordinator_tensor *tensor,
                                       const Weft__Control__Declared *declared)
{
    const size_t elem_bytes = weft_dtype_bytes((enum weft_dtype)tensor->declare.dtype);
    if (declared->n_chunks == 0) return WEFT_OK;
    tensor->chunks = weft_alloc_array(coordinator->env, declared->n_chunks, sizeof *tensor->chunks);
    if (!tensor->chunks) return WEFT_ERR_NO_MEMORY;
    for (size_t i = 0; i < declared->n_chunks; i++) {
        const Weft__Control__Chunk *chunk = declared->chunks[i];
        if (chunk->slot >= coordinator->slots.count) return WEFT_ERR_MALFORMED;
        struct coordinator_endpoint *home =
            &coordinator->table.endpoints[coordinator->slots.all[chunk->slot].leader];
        add_chunk(coordinator, tensor, chunk->offset, chunk->count, home->id, chunk->candidate, chunk->slot);
        home->load_bytes += chunk->count * elem_bytes;
    }
    if (!tensor->announced) expect_all_replies(coordinator, tensor);
    return WEFT_OK;
}

static enum weft_status restore_freed(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor,
                                      const Weft__Control__StoredTensor *stored)
{
    const uint32_t workers = coordinator->options.workers;
    if (stored->n_freed_by == 0) return WEFT_OK;
    if (coordinator->options.workers_min > 0) { /* forget the ranks of the former membership */
        tensor->freed_count = (uint32_t)stored->n_freed_by;
        tensor->is_freed = true;
        return stored->announced ? WEFT_OK : WEFT_ERR_MALFORMED;
    }
    tensor->freed_by = weft_alloc_zero(coordinator->env, workers * sizeof *tensor->freed_by);
    if (!tensor->freed_by) return WEFT_ERR_NO_MEMORY;
    for (size_t i = 0; i < stored->n_freed_by; i++) {
        const uint32_t rank = stored->freed_by[i];
        if (rank >= workers || tensor->freed_by[rank] || !stored->announced) return WEFT_ERR_MALFORMED;
        tensor->freed_by[rank] = true;
        tensor->freed_count++;
    }
    tensor->is_freed = tensor->freed_count == workers;
    return WEFT_OK;
}

enum weft_status coordinator_tensor_restore(struct weft_coordinator *coordinator,
                                            const Weft__Control__StoredTensor *stored)
{
    const Weft__Control__Declare *declare = stored->declared->declare;
    char codec_text[WEFT_LIMIT_NAME_BYTES + 1];
    struct weft_codec_spec resolved;
    struct weft_error error = {0};
    uint32_t candidates;
    if (declare->ordinal != coordinator->table.tensor_count || stored->declared->n_runs > 0)
        return WEFT_ERR_MALFORMED;
    if (check_declare(coordinator, declare, codec_text, sizeof codec_text, &resolved, &candidates, &error) <
        0)
        return WEFT_ERR_MALFORMED;
    struct coordinator_tensor *tensor = tensor_create(coordinator, declare, codec_text, 0);
    if (!tensor) return WEFT_ERR_NO_MEMORY;
    tensor->codec = resolved;
    tensor->candidates = candidates;
    tensor->declared_count = coordinator->options.workers;
    tensor->placed = declare->mode == WEFT_WIRE_MODE_SERVER;
    tensor->announced = stored->announced;
    tensor->restored = stored->declared->restored;
    tensor->has_answer = stored->announced;
    WEFT_TRY(restore_freed(coordinator, tensor, stored));
    if (tensor->is_freed) return WEFT_OK;
    return restore_chunks(coordinator, tensor, stored->declared);
}

void coordinator_declare_repeat(struct weft_coordinator *coordinator, const struct coordinator_member *shard)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++) {
        struct coordinator_tensor *tensor = coordinator->table.tensors[i];
        if (tensor->placed && tensor->shard_reply_pending[shard->index])
            send_declared(coordinator, tensor, false, shard);
        if (tensor->placed && tensor->is_freed) coordinator_tensor_send_free(coordinator, shard, tensor);
    }
}

void coordinator_declare_check(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++)
        if (!coordinator->table.tensors[i]->announced && coordinator->table.tensors[i]->replies_pending == 0)
            announce(coordinator, coordinator->table.tensors[i]);
}
