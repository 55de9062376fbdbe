/* shard_fleet.c - the fleet: hosts, engines, workers that use the wire protocol, and training. */
#include "shard_fleet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport/core/core.h"

#define FLEET_NONCE 77u
#define FLEET_LONG_NS WEFT_SECONDS(1000)

static uint64_t next_random(struct fleet *fleet)
{
    fleet->random = fleet_mix(fleet->random);
    return fleet->random;
}

uint64_t fleet_random(struct fleet *fleet)
{
    return next_random(fleet);
}

static uint64_t incarnation_of(uint32_t rank)
{
    return 1000 + rank;
}

/* ---- requests ---- */

static void request_finish(struct fleet_request *request, enum weft_status status)
{
    struct fleet_request **link = &request->worker->open;
    while (*link && *link != request) link = &(*link)->next;
    if (*link) *link = request->next;
    request->open = false;
    request->done = true;
    request->status = status;
}

static void training_result(struct fleet_request *request);

/* A request is done when it has a reply and its payload is free. */
static void request_ended(struct fleet_request *request, enum weft_status status)
{
    if (!request->open) return;
    if (request->sending) {
        request->answered = true;
        request->status = status;
        return;
    }
    request_finish(request, status);
    if (request->timed) training_result(request);
}

/* A shard that is given up and continues may still read the payload of a failed send, as it can read mapped
 * memory of a worker that has freed it. */
static void payload_keep(struct fleet *fleet, uint8_t *payload)
{
    struct fleet_kept *kept = malloc(sizeof *kept);
    WEFT_ASSERT(kept);
    *kept = (struct fleet_kept){fleet->kept, payload};
    fleet->kept = kept;
}

static void kept_free(struct fleet *fleet)
{
    while (fleet->kept) {
        struct fleet_kept *kept = fleet->kept;
        fleet->kept = kept->next;
        free(kept->payload);
        free(kept);
    }
}

static void request_sent(struct weft_completion *completion, enum weft_status status)
{
    struct fleet_request *request = weft_container_of(completion, struct fleet_request, sent);
    request->sending = false;
    if (status < 0 && request->payload) payload_keep(request->worker->fleet, request->payload);
    else free(request->payload);
    request->payload = NULL;
    if (request->answered) request_ended(request, request->status);
    else if (request->timed && request->worker->fleet->options.copies) fleet_copies_resend(request);
    else if (status < 0) request_ended(request, status);
}

static void request_received(struct weft_completion *completion, enum weft_status status)
{
    struct fleet_request *request = weft_container_of(completion, struct fleet_request, received);
    if (status < 0 && request->timed && request->worker->fleet->options.copies) {
        fleet_copies_resend(request); /* the leader is lost */
        return;
    }
    request_ended(request, status < 0 ? status : (enum weft_status)request->result.status);
}

/* Finds the open request by tensor, chunk, step and round. NULL: none waits for this result. */
static struct fleet_request *request_of(struct fleet_worker *worker, const struct weft_wire_header *header)
{
    struct fleet_request *request = worker->open;
    for (; request; request = request->next) {
        const struct weft_wire_header *asked = &request->header;
        bool step_fits = asked->kind == WEFT_WIRE_PULL && header->status == WEFT_OK
                             ? header->step >= asked->step
                             : header->step == asked->step;
        const bool is_squares = header->payload_bytes == sizeof(double);
        if (header->status == WEFT_OK && request->timed && asked->kind == WEFT_WIRE_APPLY && is_squares)
            continue; /* repeated: the push has had its result */
        if (asked->tensor == header->tensor && asked->chunk == header->chunk && step_fits &&
            asked->round == header->round && request->received.count == 0 && !request->answered &&
            (!request->timed || !worker->fleet->options.copies ||
             fleet_copies_admit(worker, request->chunk_number, header)))
            break;
    }
    return request;
}

void fleet_result(struct fleet_worker *worker, const struct weft_wire_header *header, const void *payload)
{
    struct fleet_request *request = request_of(worker, header);
    if (!request) {
        worker->unexpected++;
        return;
    }
    request->result = *header;
    request->text[0] = 0;
    free(request->out);
    request->out = header->payload_bytes ? malloc(header->payload_bytes) : NULL;
    request->out_bytes = header->payload_bytes;
    if (request->out) memcpy(request->out, payload, request->out_bytes);
    request_ended(request, (enum weft_status)header->status);
}

/* Handler of RESULT in the worker. */
static void result_arrived(void *context, struct weft_arrival *arrival)
{
    struct fleet_worker *worker = context;
    struct weft_wire_header header;
    if (worker->hold) { /* the payload stays at the shard */
        WEFT_ASSERT(worker->held_count < 8);
        worker->held[worker->held_count++] = arrival;
        return;
    }
    bool readable = weft_wire_decode(arrival->header, arrival->header_bytes, &header) == WEFT_OK &&
                    header.kind == WEFT_WIRE_RESULT;
    struct fleet_request *request = readable ? request_of(worker, &header) : NULL;
    if (!request) {
        worker->unexpected++;
        weft_transport_discard(worker->transport, arrival);
        return;
    }
    request->result = header;
    weft_wire_text(arrival->header, &header, request->text);
    if (arrival->payload_bytes == 0) {
        weft_transport_discard(worker->transport, arrival);
        request_ended(request, (enum weft_status)header.status);
        return;
    }
    free(request->out);
    request->out = malloc(arrival->payload_bytes);
    request->out_bytes = arrival->payload_bytes;
    weft_completion_init(&request->received, 1, request_received);
    enum weft_status status = weft_transport_accept(worker->transport, arrival, request->out,
                                                    arrival->payload_bytes, &request->received);
    if (status < 0) {
        weft_transport_discard(worker->transport, arrival);
        request_ended(request, status);
    }
}

void fleet_hold(struct fleet *fleet, uint32_t rank, bool hold)
{
    struct fleet_worker *worker = &fleet->worker[rank];
    worker->hold = hold;
    for (uint32_t i = 0; !hold && i < worker->held_count; i++) result_arrived(worker, worker->held[i]);
    if (!hold) worker->held_count = 0;
}

void fleet_send_raw(struct fleet *fleet, uint32_t rank, uint32_t shard, struct fleet_request *request,
                    const void *header, uint32_t header_bytes, const void *payload, size_t bytes)
{
    struct fleet_worker *worker = &fleet->worker[rank];
    request->worker = worker;
    request->open = true;
    request->done = request->answered = false;
    request->text[0] = 0;
    memset(&request->result, 0, sizeof request->result);
    request->received.count = 0;
    request->next = worker->open;
    worker->open = request;
    if (fleet_sends_groups(fleet, rank) && header_bytes == WEFT_WIRE_HEADER_BYTES) {
        request->sending = false;
        request->payload = NULL;
        fleet_group_add(worker, shard, header, payload, bytes);
        return;
    }
    const size_t odd = fleet->options.faults.odd_rank == rank + 1;
    request->payload = bytes ? malloc(bytes + odd) : NULL;
    if (bytes) memcpy(request->payload + odd, payload, bytes);
    request->payload_bytes = bytes;
    struct weft_message message = {
        .tag = WEFT_TAG(WEFT_CHANNEL_PUSH, rank),
        .header = header,
        .header_bytes = header_bytes,
        .payload = bytes ? request->payload + odd : NULL,
        .payload_bytes = bytes,
    };
    weft_completion_init(&request->sent, 1, request_sent);
    request->sending = true;
    struct weft_peer *peer = weft_transport_peer(worker->transport, fleet->shard[shard].endpoint);
    enum weft_status status = peer ? weft_transport_send(peer, &message, &request->sent) : WEFT_ERR_PEER_LOST;
    if (status >= 0) return;
    request->sending = false;
    free(request->payload);
    request->payload = NULL;
    if (request->timed && fleet->options.copies) return; /* the leader is lost: a Map follows */
    request_ended(request, status);
}

void fleet_send(struct fleet *fleet, uint32_t rank, uint32_t shard, struct fleet_request *request,
                const struct weft_wire_header *header, const void *payload, size_t bytes)
{
    uint8_t encoded[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(header, encoded);
    request->header = *header;
    fleet_send_raw(fleet, rank, shard, request, encoded, sizeof encoded, payload, bytes);
}

void fleet_request_free(struct fleet *fleet, struct fleet_request *request)
{
    (void)fleet;
    free(request->out);
    request->out = NULL;
}

struct weft_wire_header fleet_header(struct fleet *fleet, uint32_t rank, uint32_t chunk_number,
                                     enum weft_wire_kind kind, uint64_t step)
{
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    const bool contributes = weft_wire_contributes((uint8_t)kind),
               asks = kind == WEFT_WIRE_PULL || kind == WEFT_WIRE_STATE_PULL || kind == WEFT_WIRE_APPLY;
    const bool is_state = kind == WEFT_WIRE_STATE_PULL || kind == WEFT_WIRE_STATE_INIT;
    const enum weft_dtype dtype = is_state ? WEFT_F32 : fleet_dtype(fleet, chunk->tensor);
    return (struct weft_wire_header){
        .kind = (uint8_t)kind,
        .codec = (uint8_t)(contributes ? fleet->codec[chunk->tensor].id : WEFT_CODEC_DENSE),
        .dtype = (uint8_t)dtype,
        .job = FLEET_JOB,
        .incarnation = incarnation_of(rank),
        .worker = rank,
        .epoch = FLEET_EPOCH,
        .tensor = chunk->tensor,
        .chunk = chunk->index,
        .step = step,
        .payload_bytes = asks ? 0 : chunk->count * weft_dtype_bytes(dtype),
        .term = fleet->options.copies ? fleet->worker[rank].map.term[chunk_number] : 0,
        .lr = !contributes                            ? 0
              : fleet_has_clock(fleet, chunk->tensor) ? 1
                                                      : fleet_lr(step),
        .weight = !contributes                            ? 0
                  : fleet_has_clock(fleet, chunk->tensor) ? 1
                                                          : fleet_weight(fleet, rank, step),
        .loss_exponent = contributes && dtype != WEFT_F32 ? fleet->options.loss_exponent : 0,
    };
}

/* grad * weight of one chunk, as a client computes it; of f16 and bf16 the scaled gradient. */
static void *dense_contribution(struct fleet *fleet, uint32_t rank, const struct fleet_chunk *chunk,
                                uint64_t step, size_t *bytes_out)
{
    const enum weft_dtype dtype = fleet_dtype(fleet, chunk->tensor);
    float *grad = malloc(weft_shape_elems(&fleet->shape[chunk->tensor]) * sizeof(float));
    const float weight = fleet_has_clock(fleet, chunk->tensor) ? 1.0f
                         : dtype == WEFT_F32                   ? fleet_weight(fleet, rank, step)
                                                               : ldexpf(1.0f, fleet->options.loss_exponent);
    fleet_gradient(fleet, rank, chunk->tensor, step, grad);
    memmove(grad, grad + chunk->offset, chunk->count * sizeof(float));
    if (weight != 1.0f)
        for (uint64_t i = 0; i < chunk->count; i++) grad[i] *= weight;
    void *const packed = fleet_pack(dtype, grad, chunk->count, bytes_out);
    free(grad);
    return packed;
}

void fleet_push(struct fleet *fleet, uint32_t rank, uint32_t chunk_number, enum weft_wire_kind kind,
                uint64_t step, struct fleet_request *request)
{
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    struct weft_wire_header header = fleet_header(fleet, rank, chunk_number, kind, step);
    size_t bytes;
    void *const grad = dense_contribution(fleet, rank, chunk, step, &bytes);
    fleet_send(fleet, rank, chunk->shard, request, &header, grad, bytes);
    free(grad);
}

/* ---- create ---- */

static void shard_saw_death(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct fleet_shard *shard = context;
    struct fleet *fleet = shard->fleet;
    if (!fleet->options.coordinate || peer_id < 100) return; /* a worker's id is 100 or more */
    char reason[64];
    snprintf(reason, sizeof reason, "rank %u is lost", peer_id - 100);
    weft_shard_engine_fail(shard->engine, WEFT_ERR_PEER_LOST, reason);
}

static void worker_ends(struct fleet_worker *worker, enum weft_status status, const char *text)
{
    if (worker->training.finished) return;
    worker->training.finished = true;
    worker->training.failure = status;
    snprintf(worker->training.failure_text, sizeof worker->training.failure_text, "%s", text);
    WEFT_ASSERT(worker->fleet->training > 0);
    if (--worker->fleet->training == 0) worker->fleet->done = true;
}

static void worker_saw_death(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct fleet_worker *worker = context;
    uint32_t shard = peer_id - 1;
    worker->lost[shard] = true;
    if (worker->fleet->options.copies) return; /* a Map follows */
    /* As a client: requests to the lost one get no reply. */
    for (struct fleet_request *request = worker->open, *next; request; request = next) {
        next = request->next;
        if (request->sending || request->received.count > 0) continue;
        uint32_t owner = UINT32_MAX;
        for (uint32_t c = 0; c < worker->fleet->chunk_count; c++)
            if (worker->fleet->chunk[c].tensor == request->header.tensor &&
                worker->fleet->chunk[c].index == request->header.chunk)
                owner = worker->fleet->chunk[c].shard;
        if (owner == shard) request_ended(request, WEFT_ERR_PEER_LOST);
    }
}

static void endpoint_open(struct fleet *fleet, uint32_t host, uint32_t id, struct weft_env **env,
                          struct weft_loop **loop, struct weft_transport **transport,
                          void (*peer_failed)(void *, uint32_t, enum weft_status, const char *),
                          void *context)
{
    struct weft_loop_options loop_options;
    struct weft_transport_options options;
    struct weft_error error = {0};
    *env = fleet->sim ? weft_sim_env(fleet->sim, host) : &fleet->env;
    weft_loop_options_init(&loop_options);
    loop_options.virtual_time = fleet->sim != NULL;
    enum weft_status status = weft_loop_create(*env, &loop_options, loop);
    WEFT_ASSERT(status == WEFT_OK);
    if (fleet->sim) status = weft_sim_add(fleet->sim, host, *loop);
    WEFT_ASSERT(status == WEFT_OK);
    weft_transport_options_init(&options);
    options.backend = fleet->sim ? "sim" : "ucx";
    options.id = id;
    options.nonce = FLEET_NONCE;
    options.eager_bytes_max = 1024; /* small tensors are sent eagerly, chunks wait for a buffer */
    options.sim = fleet->sim;
    options.sim_host = host;
    options.peer_failed = peer_failed;
    options.peer_failed_context = context;
    status = weft_transport_open(*env, &options, transport, &error);
    if (status < 0) fprintf(stderr, "%s\n", error.text);
    WEFT_ASSERT(status == WEFT_OK);
    status = weft_transport_attach(*transport, *loop);
    WEFT_ASSERT(status == WEFT_OK);
}

static void connect_pair(struct weft_transport *a, uint32_t a_id, struct weft_transport *b, uint32_t b_id)
{
    const void *blob;
    size_t bytes;
    struct weft_peer *peer;
    enum weft_status status = weft_transport_address(b, &blob, &bytes);
    if (status == WEFT_OK) status = weft_transport_connect(a, b_id, blob, bytes, &peer);
    WEFT_ASSERT(status == WEFT_OK);
    status = weft_transport_address(a, &blob, &bytes);
    if (status == WEFT_OK) status = weft_transport_connect(b, a_id, blob, bytes, &peer);
    WEFT_ASSERT(status == WEFT_OK);
}

void fleet_connect_shard(struct fleet *fleet, uint32_t shard, uint32_t except_worker)
{
    const struct fleet_shard *own = &fleet->shard[shard];
    for (uint32_t w = 0; w < fleet->options.workers; w++)
        if (!fleet->worker[w].killed && w + 1 != except_worker)
            connect_pair(fleet->worker[w].transport, fleet->worker[w].endpoint, own->transport,
                         own->endpoint);
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        const struct fleet_shard *other = &fleet->shard[s];
        if (s != shard && !other->killed && !other->given_up && !other->is_absent)
            connect_pair(own->transport, own->endpoint, other->transport, other->endpoint);
    }
}

static void *counted_alloc(struct weft_env *env, size_t bytes)
{
    struct fleet_shard *shard = weft_container_of(env, struct fleet_shard, engine_env);
    if (++shard->allocations == shard->allocation_to_fail) return NULL;
    void *memory = weft_alloc_bytes(shard->env, bytes);
    shard->outstanding += memory != NULL;
    return memory;
}

static void counted_free(struct weft_env *env, void *memory)
{
    struct fleet_shard *shard = weft_container_of(env, struct fleet_shard, engine_env);
    shard->outstanding -= memory != NULL;
    weft_free_bytes(shard->env, memory);
}

enum weft_status fleet_engine_create(struct fleet_shard *shard, struct weft_shard_engine **out,
                                     struct weft_error *error)
{
    struct fleet *fleet = shard->fleet;
    struct weft_shard_engine_options options;
    uint32_t endpoints[FLEET_WORKERS_MAX];
    uint64_t incarnations[FLEET_WORKERS_MAX];
    for (uint32_t w = 0; w < fleet->options.workers; w++) {
        endpoints[w] = 100 + w;
        incarnations[w] = incarnation_of(w);
    }
    weft_shard_engine_options_init(&options);
    options.transport = shard->transport;
    options.loop = shard->loop;
    options.endpoint = shard->endpoint;
    options.job = FLEET_JOB;
    options.epoch = FLEET_EPOCH;
    options.workers = fleet->options.workers;
    options.worker_endpoints = endpoints;
    options.worker_incarnations = incarnations;
    options.receive_bytes_max =
        fleet->options.receive_bytes_max ? fleet->options.receive_bytes_max : 4u << 20;
    if (fleet->options.round_deadline_ns) options.round_deadline_ns = fleet->options.round_deadline_ns;
    options.hash_every = fleet->options.hash_every;
    options.move_rate = fleet->options.move_rate;
    options.elastic = fleet->options.elastic;
    options.workers_max = fleet->options.workers;
    if (fleet->options.first_workers) options.workers = fleet->options.first_workers;
    options.keeps_copies = fleet->options.copies;
    options.mutants = fleet->options.faults.mutants;
    options.report = fleet_slot_report;
    options.report_context = shard;
    options.copy_bytes_max = 16384; /* of the simulated tensors: a few chunks */
    if (fleet->options.copy_bytes_max > 0) options.copy_bytes_max = fleet->options.copy_bytes_max;
    return weft_shard_engine_create(&shard->engine_env, &options, out, error);
}

/* A transport that sometimes returns WEFT_ERR_AGAIN. */
static const struct weft_transport_ops *patient_ops;
static struct weft_transport_ops busy_ops;
static struct fleet *busy_fleet;

static enum weft_status busy_send(struct weft_transport *transport, struct weft_peer *peer,
                                  const struct weft_message *message, struct weft_completion *completion)
{
    if (next_random(busy_fleet) % 100 < busy_fleet->options.faults.again_percent) return WEFT_ERR_AGAIN;
    return patient_ops->send(transport, peer, message, completion);
}

static void make_busy(struct fleet *fleet, struct weft_transport *transport)
{
    busy_fleet = fleet;
    patient_ops = transport->ops;
    busy_ops = *patient_ops;
    busy_ops.send = busy_send;
    transport->ops = &busy_ops;
}

static void engine_create(struct fleet_shard *shard)
{
    struct weft_error error = {0};
    shard->engine_env = *shard->env;
    shard->engine_env.alloc = counted_alloc;
    shard->engine_env.free = counted_free;
    enum weft_status status = fleet_engine_create(shard, &shard->engine, &error);
    if (status < 0) fprintf(stderr, "%s\n", error.text);
    WEFT_ASSERT(status == WEFT_OK);
    const struct fleet_options *options = &shard->fleet->options;
    if (options->state_blocks == 0) return;
    struct shard_arena *pool = &shard->engine->memory.contributions;
    const size_t block = (options->workers * sizeof(struct shard_contribution) + 63) / 64 * 64;
    shard_arena_fini(pool, shard->engine->env);
    status = shard_arena_init(pool, shard->engine->env, options->state_blocks * block, false);
    WEFT_ASSERT(status == WEFT_OK);
}

/* As the coordinator places candidates that cannot be cut: on the endpoint with the fewest such elements. */
static uint32_t coded_home(const struct fleet *fleet)
{
    uint64_t load[FLEET_SHARDS_MAX] = {0};
    uint32_t best = 0, counted = UINT32_MAX;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct fleet_chunk *chunk = &fleet->chunk[c];
        if (chunk->candidate == 0 || chunk->tensor == counted) continue;
        if (weft_codec_can_split(&fleet->candidates[chunk->tensor].specs[chunk->candidate])) continue;
        load[chunk->shard] += chunk->count;
        counted = chunk->tensor;
    }
    for (uint32_t s = 1; s < fleet->options.shards - fleet->options.late; s++)
        if (load[s] < load[best]) best = s;
    return best;
}

static void add_chunk(struct fleet *fleet, const struct fleet_chunk *chunk)
{
    WEFT_ASSERT(fleet->chunk_count < FLEET_CHUNKS_MAX);
    fleet->chunk[fleet->chunk_count++] = *chunk;
}

/* ---- chunks of a codec's tensor ---- */

static uint32_t chunks_of(const struct fleet *fleet, uint32_t tensor)
{
    uint32_t count = 0;
    for (uint32_t c = 0; c < fleet->chunk_count; c++)
        count += fleet->chunk[c].tensor == tensor && fleet->chunk[c].candidate == 0;
    return count;
}

static struct weft_shape shape_of(const struct fleet *fleet, const struct fleet_chunk *chunk, uint64_t elems)
{
    return weft_codec_can_split(&fleet->codec[chunk->tensor]) ? (struct weft_shape){1, {elems}}
                                                              : fleet->shape[chunk->tensor];
}

/* Earlier chunks are as long as the first one: count or more. */
static uint64_t first_elems(const struct fleet_chunk *chunk)
{
    return chunk->index > 0 ? chunk->offset / chunk->index : chunk->count;
}

struct fleet_share fleet_contribution(const struct fleet *fleet, const struct fleet_chunk *chunk,
                                      uint32_t round)
{
    const struct weft_shape own = shape_of(fleet, chunk, chunk->count),
                            first = shape_of(fleet, chunk, first_elems(chunk));
    const struct weft_codec_spec *codec = &fleet->codec[chunk->tensor];
    return (struct fleet_share){chunk->index * weft_codec_contribution_bytes_max(codec, &first, round),
                                weft_codec_contribution_bytes_max(codec, &own, round)};
}

struct fleet_share fleet_aggregate(const struct fleet *fleet, const struct fleet_chunk *chunk, uint32_t round)
{
    const struct weft_shape own = shape_of(fleet, chunk, chunk->count),
                            first = shape_of(fleet, chunk, first_elems(chunk));
    const struct weft_codec_spec *codec = &fleet->codec[chunk->tensor];
    return (struct fleet_share){
        chunk->index * weft_codec_aggregate_bytes_max(codec, &first, round, fleet->options.workers),
        weft_codec_aggregate_bytes_max(codec, &own, round, fleet->options.workers)};
}

/* Cuts a tensor and assigns the chunks to the shards in turn. */
static void cut(struct fleet *fleet, uint32_t tensor)
{
    const struct fleet_tensor_spec *spec = &fleet->options.tensors[tensor];
    uint64_t elems = weft_shape_elems(&fleet->shape[tensor]);
    const bool cuts =
        fleet->codec[tensor].id == WEFT_CODEC_DENSE || weft_codec_can_split(&fleet->codec[tensor]);
    uint64_t length = spec->chunk_elems && cuts ? spec->chunk_elems : elems;
    uint32_t index = 0;
    for (uint64_t offset = 0; offset < elems; offset += length, index++) {
        const uint64_t count = elems - offset < length ? elems - offset : length;
        add_chunk(fleet, &(struct fleet_chunk){.tensor = tensor,
                                               .index = index,
                                               .shard = fleet->chunk_count %
                                                        (fleet->options.shards - fleet->options.late),
                                               .offset = offset,
                                               .count = count});
    }
    const uint32_t pieces = index, first = fleet->chunk_count - pieces, home = coded_home(fleet);
    for (uint32_t candidate = 1; candidate < fleet->candidates[tensor].count; candidate++) {
        struct fleet_chunk whole = {
            .tensor = tensor, .index = index, .shard = home, .candidate = candidate, .count = elems};
        if (!weft_codec_can_split(&fleet->candidates[tensor].specs[candidate])) {
            add_chunk(fleet, &whole);
            index++;
            continue;
        }
        for (uint32_t i = 0; i < pieces; i++) {
            struct fleet_chunk piece = fleet->chunk[first + i];
            piece.index = index++;
            piece.candidate = candidate;
            add_chunk(fleet, &piece);
        }
    }
}

enum weft_status fleet_declare(struct fleet *fleet, uint32_t tensor, struct weft_shard_engine *engine,
                               struct weft_error *error)
{
    const struct fleet_tensor_spec *spec = &fleet->options.tensors[tensor];
    Weft__Control__Chunk chunks[FLEET_CHUNKS_MAX], *chunk_list[FLEET_CHUNKS_MAX];
    size_t count = 0;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        if (fleet->chunk[c].tensor != tensor) continue;
        weft__control__chunk__init(&chunks[count]);
        chunks[count].offset = fleet->chunk[c].offset;
        chunks[count].count = fleet->chunk[c].count;
        chunks[count].candidate = fleet->chunk[c].candidate;
        chunks[count].endpoint = fleet->shard[fleet->chunk[c].shard].endpoint;
        chunks[count].slot = fleet->options.copies ? c : 0;
        chunk_list[count] = &chunks[count];
        count++;
    }
    Weft__Control__Declare declare = WEFT__CONTROL__DECLARE__INIT;
    declare.ordinal = tensor;
    declare.name = (char *)(uintptr_t)spec->name;
    declare.dtype = fleet_dtype(fleet, tensor);
    declare.pull_dtype = spec->pull_dtype;
    declare.n_dims = spec->dim_count;
    declare.dims = (uint64_t *)(uintptr_t)spec->dims;
    declare.codec = (char *)(uintptr_t)spec->codec;
    declare.optimizer = (char *)(uintptr_t)spec->optimizer;
    declare.mode = WEFT_WIRE_MODE_SERVER;
    if (spec->consistency) declare.consistency = (char *)(uintptr_t)spec->consistency;
    Weft__Control__Declared declared = WEFT__CONTROL__DECLARED__INIT;
    declared.tensor = tensor;
    declared.declare = &declare;
    declared.n_chunks = count;
    declared.chunks = chunk_list;
    return weft_shard_engine_declare(engine, &declared, error);
}

static void declare_everywhere(struct fleet *fleet, uint32_t tensor)
{
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        struct weft_error error = {0};
        if (fleet->shard[s].is_absent) continue;
        enum weft_status status = fleet_declare(fleet, tensor, fleet->shard[s].engine, &error);
        if (status < 0) fprintf(stderr, "%s\n", error.text);
        WEFT_ASSERT(status == WEFT_OK);
        fleet->shard[s].allocations_declared = fleet->shard[s].allocations;
    }
}

static void tensors_resolve(struct fleet *fleet)
{
    for (uint32_t t = 0; t < fleet->options.tensor_count; t++) {
        const struct fleet_tensor_spec *spec = &fleet->options.tensors[t];
        struct weft_codec_spec codec;
        fleet->shape[t].dim_count = spec->dim_count;
        memcpy(fleet->shape[t].dims, spec->dims, sizeof spec->dims);
        const bool is_auto = weft_codec_candidates_requested(spec->codec);
        enum weft_status status = is_auto
                                      ? weft_codec_candidates_parse(spec->codec, &fleet->candidates[t], NULL)
                                      : weft_codec_parse(spec->codec, &codec, NULL);
        WEFT_ASSERT(status == WEFT_OK);
        if (is_auto) {
            weft_codec_candidates_resolve(&fleet->candidates[t], &fleet->shape[t]);
            codec = fleet->candidates[t].specs[0];
        }
        fleet->codec[t] = weft_codec_resolve(&codec, &fleet->shape[t]);
        status = weft_optimizer_parse(spec->optimizer, &fleet->optimizer[t], NULL);
        WEFT_ASSERT(status == WEFT_OK);
    }
}

static void request_timer(struct weft_timer *timer);

struct fleet *fleet_create(const struct fleet_options *options)
{
    struct fleet *fleet = calloc(1, sizeof *fleet);
    WEFT_ASSERT(options->shards <= FLEET_SHARDS_MAX && options->workers <= FLEET_WORKERS_MAX &&
                options->tensor_count <= FLEET_TENSORS_MAX);
    fleet->options = *options;
    fleet->random = fleet_mix(options->seed);
    struct weft_sim_options sim_options;
    weft_sim_options_init(&sim_options);
    sim_options.seed = options->seed;
    sim_options.host_count = options->shards + options->workers;
    sim_options.topology = options->topology;
    sim_options.maps_payloads = options->maps_payloads;
    fleet->env = *weft_env_system();
    /* lost connections and deadlines are expected */
    if (!getenv("WEFT_LOG")) fleet->env.log_level = WEFT_LOG_ERROR;
    enum weft_status status =
        options->ucx ? WEFT_OK : weft_sim_create(&fleet->env, &sim_options, &fleet->sim);
    WEFT_ASSERT(status == WEFT_OK);

    tensors_resolve(fleet);
    for (uint32_t s = 0; s < options->shards; s++) {
        struct fleet_shard *shard = &fleet->shard[s];
        shard->fleet = fleet;
        shard->host = s;
        shard->is_absent = s >= options->shards - options->late;
        shard->endpoint = 1 + s;
        endpoint_open(fleet, shard->host, shard->endpoint, &shard->env, &shard->loop, &shard->transport,
                      shard_saw_death, shard);
        if (options->faults.again_percent > 0) make_busy(fleet, shard->transport);
        engine_create(shard);
    }
    for (uint32_t w = 0; w < options->workers; w++) {
        struct fleet_worker *worker = &fleet->worker[w];
        worker->fleet = fleet;
        worker->rank = w;
        worker->host = options->shards + w;
        worker->endpoint = 100 + w;
        endpoint_open(fleet, worker->host, worker->endpoint, &worker->env, &worker->loop, &worker->transport,
                      worker_saw_death, worker);
        weft_transport_handler(worker->transport, WEFT_CHANNEL_RESULT, result_arrived, worker);
        fleet_groups_init(worker);
        for (uint32_t s = 0; s < options->shards - options->late; s++)
            connect_pair(worker->transport, worker->endpoint, fleet->shard[s].transport,
                         fleet->shard[s].endpoint);
    }
    for (uint32_t t = 0; t < options->tensor_count; t++) cut(fleet, t);
    for (uint32_t s = 0; options->copies && s < options->shards - options->late; s++)
        for (uint32_t other = 0; other < s; other++)
            connect_pair(fleet->shard[s].transport, fleet->shard[s].endpoint, fleet->shard[other].transport,
                         fleet->shard[other].endpoint);
    if (options->copies) fleet_copies_begin(fleet);
    for (uint32_t t = 0; t < options->tensor_count; t++) declare_everywhere(fleet, t);
    fleet->reference = reference_create(fleet);
    for (uint32_t w = 0; w < options->workers; w++) {
        for (uint32_t t = 0; t < options->tensor_count; t++) {
            if (fleet->codec[t].id == WEFT_CODEC_DENSE) continue;
            status = weft_codec_create(weft_env_system(), &fleet->codec[t], &fleet->shape[t],
                                       &fleet->worker[w].codecs.codec[t]);
            WEFT_ASSERT(status == WEFT_OK);
            if (chunks_of(fleet, t) > 1)
                status =
                    weft_codec_set_pieces(fleet->worker[w].codecs.codec[t], options->tensors[t].chunk_elems);
            WEFT_ASSERT(status == WEFT_OK);
            size_t most = 0;
            for (uint32_t round = 0; round < weft_codec_rounds(&fleet->codec[t]); round++) {
                const size_t bytes = weft_codec_aggregate_bytes_max(&fleet->codec[t], &fleet->shape[t], round,
                                                                    options->workers);
                if (bytes > most) most = bytes;
            }
            fleet->worker[w].codecs.aggregate[t] = malloc(most);
            fleet->worker[w].codecs.weights[t] = malloc(weft_shape_elems(&fleet->shape[t]) * sizeof(float));
            fleet_first_weights(fleet, t, fleet->worker[w].codecs.weights[t]);
        }
        for (uint32_t c = 0; c < fleet->chunk_count; c++) {
            fleet->worker[w].request[c].worker = &fleet->worker[w];
            fleet->worker[w].request[c].chunk_number = c;
            weft_timer_init(&fleet->worker[w].request[c].timer, request_timer);
        }
    }
    return fleet;
}

static bool drained(struct weft_transport *transport)
{
    weft_transport_progress(transport, 64);
    return weft_transport_drained(transport);
}

static void drain_all(struct fleet *fleet)
{
    for (uint32_t w = 0; w < fleet->options.workers; w++) weft_transport_close(fleet->worker[w].transport);
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        weft_shard_engine_close(fleet->shard[s].engine);
        weft_transport_close(fleet->shard[s].transport);
    }
    for (int turn = 0, left = 1; left > 0 && turn < 10000; turn++) {
        left = 0;
        for (uint32_t w = 0; w < fleet->options.workers; w++) left += !drained(fleet->worker[w].transport);
        for (uint32_t s = 0; s < fleet->options.shards; s++) left += !drained(fleet->shard[s].transport);
        if (left > 0 && !fleet->sim) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

void fleet_free(struct fleet *fleet)
{
    if (!fleet) return;
    for (uint32_t w = 0; w < fleet->options.workers; w++) {
        for (uint32_t c = 0; c < fleet->chunk_count; c++) {
            weft_timer_stop(fleet->worker[w].loop, &fleet->worker[w].request[c].timer);
            fleet->worker[w].request[c].timed = false;
        }
        if (fleet->options.copies) weft_timer_stop(fleet->worker[w].loop, &fleet->worker[w].map.timer);
        fleet->worker[w].training.finished = true;
    }
    for (uint32_t s = 0; fleet->options.copies && s < fleet->options.shards; s++)
        weft_timer_stop(fleet->shard[s].loop, &fleet->shard[s].map_timer);
    drain_all(fleet);
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        struct fleet_shard *shard = &fleet->shard[s];
        if (fleet->sim) weft_sim_remove(fleet->sim, shard->loop);
        weft_transport_free(shard->transport);
        weft_shard_engine_free(shard->engine);
        WEFT_ASSERT(shard->outstanding == 0);
        weft_loop_free(shard->loop);
    }
    for (uint32_t w = 0; w < fleet->options.workers; w++) {
        struct fleet_worker *worker = &fleet->worker[w];
        if (fleet->sim) weft_sim_remove(fleet->sim, worker->loop);
        weft_timer_stop(worker->loop, &worker->groups.timer);
        weft_transport_free(worker->transport);
        fleet_groups_free(worker);
        weft_loop_free(worker->loop);
        for (uint32_t t = 0; t < fleet->options.tensor_count; t++) {
            if (worker->codecs.codec[t]) weft_codec_free(worker->codecs.codec[t]);
            free(worker->codecs.weights[t]);
            free(worker->codecs.aggregate[t]);
        }
        for (uint32_t c = 0; c < fleet->chunk_count; c++) {
            free(worker->request[c].payload);
            fleet_request_free(fleet, &worker->request[c]);
        }
    }
    kept_free(fleet);
    reference_free(fleet->reference);
    weft_sim_free(fleet->sim);
    free(fleet);
}

/* ---- run ---- */

static uint64_t now_ns(struct fleet *fleet)
{
    return fleet->sim ? weft_sim_now_ns(fleet->sim) : weft_now_ns(&fleet->env);
}

/* Real time: every loop in turn, with a pause after an idle pass. */
static void run_real(struct fleet *fleet, const bool *done, uint64_t until_ns)
{
    while (!*done && now_ns(fleet) < until_ns) {
        int work = 0;
        for (uint32_t s = 0; s < fleet->options.shards; s++) work += weft_loop_step(fleet->shard[s].loop);
        for (uint32_t w = 0; w < fleet->options.workers; w++) work += weft_loop_step(fleet->worker[w].loop);
        if (work == 0) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

static void run(struct fleet *fleet, const bool *done, uint64_t until_ns)
{
    if (fleet->sim) weft_sim_run(fleet->sim, done, until_ns);
    else run_real(fleet, done, until_ns);
}

bool fleet_await(struct fleet *fleet, struct fleet_request *request)
{
    if (!request->done) run(fleet, &request->done, now_ns(fleet) + FLEET_LONG_NS);
    return request->done;
}

void fleet_settle(struct fleet *fleet, uint64_t ns)
{
    bool never = false;
    run(fleet, &never, now_ns(fleet) + ns);
}

void fleet_kill_worker(struct fleet *fleet, uint32_t rank)
{
    struct fleet_worker *worker = &fleet->worker[rank];
    if (worker->killed) return;
    worker->killed = true;
    weft_sim_kill(fleet->sim, worker->host);
    if (fleet->training > 0) worker_ends(worker, WEFT_ERR_CLOSED, "killed");
}

void fleet_kill_shard(struct fleet *fleet, uint32_t shard)
{
    fleet->shard[shard].killed = true;
    weft_sim_kill(fleet->sim, fleet->shard[shard].host);
}

void fleet_install(struct fleet *fleet)
{
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct fleet_chunk *chunk = &fleet->chunk[c];
        struct weft_wire_header header = fleet_header(fleet, 0, c, WEFT_WIRE_INIT, 0);
        float *weights = malloc(weft_shape_elems(&fleet->shape[chunk->tensor]) * sizeof(float));
        fleet_first_weights(fleet, chunk->tensor, weights);
        size_t bytes;
        void *const packed =
            fleet_pack(fleet_dtype(fleet, chunk->tensor), weights + chunk->offset, chunk->count, &bytes);
        fleet_send(fleet, 0, chunk->shard, &fleet->worker[0].request[c], &header, packed, bytes);
        free(packed);
        free(weights);
    }
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        bool answered = fleet_await(fleet, &fleet->worker[0].request[c]);
        WEFT_ASSERT(answered && fleet->worker[0].request[c].status == WEFT_OK);
    }
}

/* ---- training ---- */

struct spare_message {
    struct weft_completion sent;
    uint8_t payload[];
};

static void spare_sent(struct weft_completion *completion, enum weft_status status)
{
    free(weft_container_of(completion, struct spare_message, sent));
}

void fleet_send_copy(struct fleet_worker *worker, uint32_t shard,
                     const uint8_t header[WEFT_WIRE_HEADER_BYTES], const void *payload, size_t bytes)
{
    struct spare_message *spare = malloc(sizeof *spare + bytes);
    if (bytes > 0) memcpy(spare->payload, payload, bytes);
    weft_completion_init(&spare->sent, 1, spare_sent);
    struct weft_message message = {
        .tag = WEFT_TAG(WEFT_CHANNEL_PUSH, worker->rank),
        .header = header,
        .header_bytes = WEFT_WIRE_HEADER_BYTES,
        .payload = bytes > 0 ? spare->payload : NULL,
        .payload_bytes = bytes,
    };
    struct weft_peer *peer = weft_transport_peer(worker->transport, worker->fleet->shard[shard].endpoint);
    if (!peer || weft_transport_send(peer, &message, &spare->sent) < 0) free(spare);
}

/* The same message again, as after a retry; no reply of its own is expected. */
static void send_again(struct fleet *fleet, uint32_t rank, uint32_t shard,
                       const struct weft_wire_header *header, const void *payload, size_t bytes)
{
    uint8_t encoded[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(header, encoded);
    if (fleet_sends_groups(fleet, rank))
        fleet_group_add(&fleet->worker[rank], shard, encoded, payload, bytes);
    else fleet_send_copy(&fleet->worker[rank], shard, encoded, payload, bytes);
    fleet->counts.repeats++;
}

static bool percent(struct fleet *fleet, uint32_t share)
{
    return share > 0 && next_random(fleet) % 100 < share;
}

static void training_push(struct fleet_request *request, uint8_t round)
{
    struct fleet_worker *worker = request->worker;
    struct fleet *fleet = worker->fleet;
    const struct fleet_chunk *chunk = &fleet->chunk[request->chunk_number];
    uint32_t t = chunk->tensor;
    const enum weft_wire_kind kind = request->measured                     ? WEFT_WIRE_APPLY
                                     : fleet_clips(fleet, t, worker->training.step) ? WEFT_WIRE_PUSH_HOLD
                                                                           : WEFT_WIRE_PUSH_PULL;
    struct weft_wire_header header =
        fleet_header(fleet, worker->rank, request->chunk_number, kind, worker->training.step);
    void *payload = NULL;
    size_t bytes = 0;
    header.round = round;
    request->pushed = true;
    if (fleet->options.faults.other_lr_step > 0 && worker->rank == fleet->options.faults.other_lr_rank &&
        worker->training.step >= fleet->options.faults.other_lr_step)
        header.lr *= 2;
    if (request->measured) {
        header.weight = fleet_factor(fleet, worker->training.step);
    } else if (fleet->codec[t].id == WEFT_CODEC_DENSE) {
        payload = dense_contribution(fleet, worker->rank, chunk, worker->training.step, &bytes);
    } else {
        float *grad = malloc(weft_shape_elems(&fleet->shape[t]) * sizeof(float));
        fleet_gradient(fleet, worker->rank, t, worker->training.step, grad);
        payload = malloc(weft_codec_contribution_bytes_max(&fleet->codec[t], &fleet->shape[t], round));
        /* For each chunk again: the bytes are those of the first time. */
        enum weft_status status =
            weft_codec_encode(worker->codecs.codec[t], round, grad, header.weight, payload, &bytes);
        WEFT_ASSERT(status == WEFT_OK);
        if (chunks_of(fleet, t) > 1) {
            const struct fleet_share share = fleet_contribution(fleet, chunk, round);
            bytes = share.bytes_max;
            memmove(payload, (uint8_t *)payload + share.at, bytes);
        }
        free(grad);
    }
    header.payload_bytes = bytes;
    const uint32_t shard = fleet->options.copies ? worker->map.leader[request->chunk_number] : chunk->shard;
    fleet_send(fleet, worker->rank, shard, request, &header, payload, bytes);
    if (percent(fleet, fleet->options.faults.repeat_percent))
        send_again(fleet, worker->rank, shard, &header, payload, bytes);
    if (worker->training.step > 1 && !request->measured &&
        percent(fleet, fleet->options.faults.repeat_percent)) {
        header.step -= 1 + next_random(fleet) % (worker->training.step - 1);
        header.lr = fleet_lr(header.step);
        send_again(fleet, worker->rank, shard, &header, payload, bytes);
    }
    free(payload);
}

void fleet_push_again(struct fleet_request *request, uint8_t round)
{
    struct fleet_request **link = &request->worker->open;
    while (*link && *link != request) link = &(*link)->next;
    if (*link) *link = request->next;
    training_push(request, round);
}

static void request_timer(struct weft_timer *timer)
{
    struct fleet_request *request = weft_container_of(timer, struct fleet_request, timer);
    if (!request->worker->training.finished) training_push(request, 0);
}

static void training_step(struct fleet_worker *worker)
{
    struct fleet *fleet = worker->fleet;
    worker->training.step++;
    worker->training.step_began_ns = weft_now_ns(worker->env);
    worker->training.left = fleet->chunk_count;
    worker->training.unmeasured = 0;
    memset(worker->codecs.round, 0, sizeof worker->codecs.round);
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        uint64_t at = weft_now_ns(worker->env) +
                      (fleet->options.think_ns ? next_random(fleet) % fleet->options.think_ns : 0);
        worker->request[c].timed = true;
        worker->request[c].pushed = worker->request[c].settled = worker->request[c].repeating = false;
        worker->request[c].measured = false;
        worker->training.unmeasured += fleet_clips(fleet, fleet->chunk[c].tensor, worker->training.step);
        enum weft_status status = weft_timer_start(worker->loop, &worker->request[c].timer, at);
        WEFT_ASSERT(status == WEFT_OK);
    }
}

/* A request that repeats earlier rounds continues by itself. Under a new term the next round is not the
 * first one. */
static void next_round(struct fleet_request *request)
{
    const struct fleet_worker *worker = request->worker;
    const uint32_t c = request->chunk_number;
    if (request->repeating) return;
    if (worker->fleet->options.copies && request->header.term < worker->map.term[c])
        fleet_copies_resend(request);
    else training_push(request, worker->codecs.round[worker->fleet->chunk[c].tensor]);
}

/* Number of chunks that have ended their step. */
static uint32_t codec_result(struct fleet_request *request)
{
    struct fleet_worker *worker = request->worker;
    struct fleet *fleet = worker->fleet;
    const struct fleet_chunk *chunk = &fleet->chunk[request->chunk_number];
    uint32_t t = chunk->tensor, round = request->header.round, chunks = chunks_of(fleet, t);
    size_t all;
    const uint8_t *expected = reference_aggregate(fleet->reference, t, worker->training.step, round, &all);
    const struct fleet_share share = fleet_aggregate(fleet, chunk, round);
    const size_t bytes = chunks > 1 ? share.bytes_max : all;
    if (bytes != request->out_bytes || memcmp(expected + share.at, request->out, bytes) != 0)
        fleet->counts.wrong++;
    else memcpy(worker->codecs.aggregate[t] + share.at, request->out, bytes);
    request->settled = true;
    if (++worker->codecs.gathered[t] < chunks) {
        if (fleet->options.copies)
            fleet_copies_resend(request); /* a Map may have arrived before the send has ended */
        return 0;
    }
    worker->codecs.gathered[t] = 0;
    if (weft_codec_take(worker->codecs.codec[t], round, worker->codecs.aggregate[t], all,
                        fleet->options.workers) < 0)
        fleet->counts.wrong++;
    if (round + 1 < weft_codec_rounds(&fleet->codec[t])) {
        worker->codecs.round[t]++;
        for (uint32_t c = 0; c < fleet->chunk_count; c++) {
            if (fleet->chunk[c].tensor != t) continue;
            worker->request[c].settled = false;
            next_round(&worker->request[c]);
        }
        return 0;
    }
    float *grad = malloc(weft_shape_elems(&fleet->shape[t]) * sizeof(float));
    if (weft_codec_finish(worker->codecs.codec[t], (float)(1.0 / (double)request->result.weight_sum), grad) <
        0)
        fleet->counts.wrong++;
    weft_codec_commit(worker->codecs.codec[t]);
    free(grad);
    return chunks;
}

/* The squares of a clipped step. All ranks have one factor when they have all squares. */
static void squares_result(struct fleet_request *request)
{
    struct fleet_worker *worker = request->worker;
    struct fleet *fleet = worker->fleet;
    const struct fleet_chunk *chunk = &fleet->chunk[request->chunk_number];
    const float *sum = reference_sum(fleet->reference, chunk->tensor, worker->training.step) + chunk->offset;
    const double squares = weft_kernels()->dot_f32(sum, sum, chunk->count);
    if (request->out_bytes != sizeof squares || memcmp(request->out, &squares, sizeof squares) != 0)
        fleet->counts.wrong++;
    request->measured = true;
    if (--worker->training.unmeasured > 0) return;
    for (uint32_t c = 0; c < fleet->chunk_count; c++)
        if (fleet_clips(fleet, fleet->chunk[c].tensor, worker->training.step))
            training_push(&worker->request[c], 0);
}

/* Every contribution is at least 0 and has been applied at most once; the own ones are in the result. */
static void clock_result(const struct fleet_request *request)
{
    struct fleet *fleet = request->worker->fleet;
    const struct fleet_chunk *chunk = &fleet->chunk[request->chunk_number];
    const uint64_t elems = weft_shape_elems(&fleet->shape[chunk->tensor]);
    const float *least =
        reference_values(fleet->reference, chunk->tensor, request->worker->training.last_step);
    const float *result = (const float *)(const void *)request->out;
    float *own = calloc(elems, sizeof *own), *grad = malloc(elems * sizeof *grad);
    for (uint64_t step = 1; step <= request->worker->training.step; step++) {
        fleet_gradient(fleet, request->worker->rank, chunk->tensor, step, grad);
        for (uint64_t i = 0; i < elems; i++) own[i] -= grad[i] / (float)fleet->options.workers;
    }
    bool fits = request->out_bytes == chunk->count * sizeof *result;
    for (uint64_t i = 0; fits && i < chunk->count; i++)
        fits = result[i] >= least[chunk->offset + i] && result[i] <= own[chunk->offset + i];
    fleet->counts.wrong += !fits;
    free(own);
    free(grad);
}

static void training_result(struct fleet_request *request)
{
    struct fleet_worker *worker = request->worker;
    struct fleet *fleet = worker->fleet;
    if (worker->training.finished) return;
    if (request->status < 0) {
        for (uint32_t c = 0; c < fleet->chunk_count; c++)
            weft_timer_stop(worker->loop, &worker->request[c].timer);
        worker_ends(worker, request->status, request->text);
        return;
    }
    const struct fleet_chunk *chunk = &fleet->chunk[request->chunk_number];
    const bool ends_step = request->header.round + 1u == weft_codec_rounds(&fleet->codec[chunk->tensor]);
    uint32_t ended = 1;
    if (request->header.kind == WEFT_WIRE_PUSH_HOLD) {
        squares_result(request);
        return;
    }
    if (fleet_has_clock(fleet, chunk->tensor)) {
        clock_result(request);
        worker->map.answered[request->chunk_number] = request->header.step;
    } else if (fleet->codec[chunk->tensor].id == WEFT_CODEC_DENSE) {
        const float *expected =
            reference_values(fleet->reference, chunk->tensor, worker->training.step) + chunk->offset;
        if (!fleet_result_is(fleet, chunk, expected, request->out, request->out_bytes)) fleet->counts.wrong++;
    } else {
        if (fleet->options.copies && fleet_copies_repeated(request)) return;
        ended = codec_result(request);
    }
    if (ends_step && request->header.step > fleet->chunk[request->chunk_number].answered)
        fleet->chunk[request->chunk_number].answered = request->header.step;
    worker->training.left -= ended;
    if (ended == 0 || worker->training.left > 0) return;
    const uint64_t took_ns = weft_elapsed_ns(worker->training.step_began_ns, weft_now_ns(worker->env));
    if (took_ns > fleet->counts.longest_step_ns) fleet->counts.longest_step_ns = took_ns;
    if (worker->training.step == worker->training.last_step) worker_ends(worker, WEFT_OK, "");
    else training_step(worker);
}

void fleet_train_begin(struct fleet *fleet, uint64_t first, uint64_t last)
{
    fleet->done = false;
    fleet->training = 0;
    for (uint32_t w = 0; w < fleet->options.workers; w++) fleet->training += !fleet->worker[w].killed;
    for (uint32_t w = 0; w < fleet->options.workers; w++) {
        struct fleet_worker *worker = &fleet->worker[w];
        if (worker->killed) continue;
        worker->training.finished = false;
        memset(worker->codecs.gathered, 0, sizeof worker->codecs.gathered);
        worker->training.step = first - 1;
        worker->training.last_step = last;
        training_step(worker);
    }
}

bool fleet_train_end(struct fleet *fleet, uint64_t until_ns)
{
    if (!fleet->done) run(fleet, &fleet->done, until_ns);
    return fleet->done;
}

bool fleet_train(struct fleet *fleet, uint64_t first, uint64_t last)
{
    fleet_train_begin(fleet, first, last);
    return fleet_train_end(fleet, now_ns(fleet) + FLEET_LONG_NS);
}

struct shard_chunk *fleet_shard_chunk(struct fleet *fleet, uint32_t chunk_number)
{
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    return fleet_chunk_at(fleet, chunk->shard, chunk_number);
}

struct shard_chunk *fleet_chunk_at(const struct fleet *fleet, uint32_t shard, uint32_t chunk_number)
{
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    struct shard_tensor *tensor = shard_table_tensor(fleet->shard[shard].engine, chunk->tensor);
    return shard_table_chunk(tensor, chunk->index);
}

uint32_t fleet_wrong_values(struct fleet *fleet)
{
    uint32_t wrong = 0;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct fleet_chunk *chunk = &fleet->chunk[c];
        const struct shard_chunk *real = fleet_shard_chunk(fleet, c);
        if (fleet->shard[chunk->shard].killed || !real->initialised) continue;
        const float *expected =
            reference_values(fleet->reference, chunk->tensor, real->closed_step) + chunk->offset;
        wrong += memcmp(expected, real->values, chunk->count * sizeof(float)) != 0;
    }
    return wrong;
}
