/* server_mode.c - a tensor in server mode: sends its chunks to their shards and receives the results.
 *
 *     dense    PUSH_PULL(step s)      -->  shard: reduce, optimiser   RESULT: new weights, received in `out`
 *     codec    PUSH_PULL(s, round k)  -->  shard: combine             RESULT: aggregate of round k
 *              take, encode round k+1 ... last round: finish, optimiser in this process
 *     auto     as the choice in force; dense: RESULT is the mean, optimiser in this process
 *     clip     PUSH_HOLD(s)           -->  shard: reduce, hold        RESULT: squares of the sum
 *              APPLY(s, factor)       -->  shard: optimiser           RESULT: new weights, received in `out`
 *     INIT, STATE_INIT, PUSH: a payload, an empty RESULT. PULL, STATE_PULL: no payload, RESULT with payload.
 *
 * In a job with copies a lost shard is no error: Map names another leader and a higher term for the chunk,
 * and the request is sent again from the same buffer. The new leader answers it, as a repetition if it has
 * closed the step. A result of another term than the chunk's is dropped. The new leader lacks the rounds of a
 * codec's open step. So every worker repeats them from round 0, also those whose results it has, and drops
 * these results.
 *
 * A chunk is settled when its result has arrived and the transport holds none of its buffers. A round ends
 * when all chunks are settled. The number of chunks in flight has no limit: the shard grants buffers, and
 * WEFT_ERR_AGAIN is retried. */
#include "client/tensor/server_mode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/call/device_staging.h"
#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/engine/work.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/order/push_group.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* Results of longer tensors bypass the caches: with the inputs and outputs of all ranks they do not fit. */
#define STREAMED_ELEMS_MIN ((uint64_t)2 << 20)

/* Arithmetic on shorter tensors is done at once, so that their requests travel in one message group. */
#define INLINE_ELEMS 4096u

static void advance_op(struct weft_tensor *tensor);
static void send_again(struct client_chunk *chunk);

/* A transfer with the chunk's leader that fails is no failure of the session. */
static bool leader_may_change(const struct client_chunk *chunk)
{
    return chunk->term > 0;
}

/* The operation has rounds of a codec: its contributions are stored until it ends. */
static bool has_codec_rounds(const struct weft_tensor *tensor)
{
    return tensor->execution.has_begun && tensor->codec && tensor->op.kind == CLIENT_OP_PUSH_PULL;
}

static bool is_in_use(const struct client_chunk *chunk)
{
    const struct client_tensor_op *op = &chunk->tensor->op;
    return chunk->index >= op->chunk_first && chunk->index - op->chunk_first < op->chunk_count;
}

static bool has_rounds_left(const struct client_chunk *chunk)
{
    return has_codec_rounds(chunk->tensor) && is_in_use(chunk) && chunk->round <= chunk->tensor->op.round;
}

/* Its result is to be dropped. Between rounds nothing is repeated: start_round continues. */
static bool is_repeating(const struct client_chunk *chunk)
{
    const struct client_tensor_op *op = &chunk->tensor->op;
    return has_rounds_left(chunk) && op->results_left > 0 &&
           (chunk->round < op->round || !chunk->awaits_result);
}

static bool wants_payload(const struct client_tensor_op *op)
{
    return op->kind == CLIENT_OP_PUSH_PULL || op->kind == CLIENT_OP_PULL || op->kind == CLIENT_OP_APPLY ||
           op->kind == CLIENT_OP_STATE_PULL;
}

/* States are f32, whatever the tensor's dtype. */
static bool is_state(const struct client_tensor_op *op)
{
    return op->kind == CLIENT_OP_STATE_PULL || op->kind == CLIENT_OP_STATE_INIT;
}

/* The dtype of a dense result. */
static enum weft_dtype result_dtype(const struct weft_tensor *tensor)
{
    return is_state(&tensor->op) ? WEFT_F32 : tensor->wire.pull_dtype;
}

/* ---- sending ---- */

static enum weft_wire_kind wire_kind(const struct client_tensor_op *op)
{
    switch (op->kind) {
    case CLIENT_OP_INIT: return WEFT_WIRE_INIT;
    case CLIENT_OP_PUSH: return WEFT_WIRE_PUSH;
    case CLIENT_OP_PULL: return WEFT_WIRE_PULL;
    case CLIENT_OP_STATE_PULL: return WEFT_WIRE_STATE_PULL;
    case CLIENT_OP_STATE_INIT: return WEFT_WIRE_STATE_INIT;
    case CLIENT_OP_APPLY: return WEFT_WIRE_APPLY;
    default: return op->holds ? WEFT_WIRE_PUSH_HOLD : WEFT_WIRE_PUSH_PULL;
    }
}

/* ---- bytes of a codec's chunk; all chunks but the last have one length ---- */

static size_t contribution_bytes(const struct client_chunk *chunk, uint32_t round)
{
    const struct weft_shape shape = {1, {chunk->count}};
    return weft_codec_contribution_bytes_max(&chunk->tensor->options.codec_spec, &shape, round);
}

static size_t aggregate_bytes(const struct client_chunk *chunk, uint32_t round)
{
    const struct weft_shape shape = {1, {chunk->count}};
    return weft_codec_aggregate_bytes_max(&chunk->tensor->options.codec_spec, &shape, round,
                                          chunk->tensor->session->ranks);
}

static size_t bytes_before(const struct client_chunk *chunk, uint32_t round,
                           size_t (*bytes_of)(const struct client_chunk *, uint32_t))
{
    const uint32_t first = chunk->tensor->op.chunk_first;
    return (chunk->index - first) * bytes_of(&chunk->tensor->chunk_table.chunks[first], round);
}

/* Of earlier rounds a finite contribution was sent. */
static bool is_nonfinite(const struct client_chunk *chunk)
{
    return chunk->tensor->op.checks.grad_is_nonfinite && chunk->round == chunk->tensor->op.round;
}

static void chunk_payload(const struct client_chunk *chunk, const void **payload_out, size_t *bytes_out)
{
    const struct weft_tensor *tensor = chunk->tensor;
    const struct client_tensor_op *op = &tensor->op;
    if (op->kind == CLIENT_OP_PULL || op->kind == CLIENT_OP_STATE_PULL || op->kind == CLIENT_OP_APPLY ||
        is_nonfinite(chunk)) {
        *payload_out = NULL;
        *bytes_out = 0;
    } else if (tensor->codec && op->kind == CLIENT_OP_PUSH_PULL) {
        const bool cut = op->chunk_count > 1;
        const uint32_t round = chunk->round;
        const size_t before = cut ? bytes_before(chunk, round, contribution_bytes) : 0;
        *payload_out = tensor->wire.contribution[round] + before;
        *bytes_out = cut ? contribution_bytes(chunk, round) : tensor->wire.contribution_bytes[round];
    } else {
        const uint8_t *source = op->gradient.scaled ? (const uint8_t *)op->gradient.scaled : op->in;
        const size_t elem_bytes = is_state(op) ? sizeof(float) : weft_dtype_bytes(tensor->dtype);
        *payload_out = source + chunk->offset * elem_bytes;
        *bytes_out = chunk->count * elem_bytes;
    }
}

static void fill_skip_fields(const struct client_chunk *chunk, struct weft_wire_header *header)
{
    const struct weft_tensor *tensor = chunk->tensor;
    const struct client_tensor_op *op = &tensor->op;
    const bool contributes = op->kind == CLIENT_OP_PUSH_PULL || op->kind == CLIENT_OP_PUSH;
    if (contributes) header->flags |= op->wire_flags | (is_nonfinite(chunk) ? WEFT_WIRE_NOT_FINITE : 0);
    if (client_tensor_has_clock(tensor)) return; /* a skipped step does not undo its contributions */
    header->skips = tensor->session->tensors->skip.count;
    const uint64_t good = contributes ? tensor->progress.step_before : tensor->progress.last_step;
    if (header->skips)
        header->good =
            (uint32_t)(good > tensor->elastic.broadcast.step ? good : tensor->elastic.broadcast.step);
}

/* The shards run the optimiser, with a codec as the workers do: they get the weight decay of the group. */
static void fill_decay(const struct weft_tensor *tensor, struct weft_wire_header *header)
{
    const struct client_tensor_op *op = &tensor->op;
    if (!op->rates.has_decay || tensor->options.optimizer.kind == WEFT_OPTIMIZER_NONE ||
        client_tensor_has_codec_choice(tensor))
        return;
    header->flags |= WEFT_WIRE_DECAY;
    header->weight_sum = op->rates.weight_decay;
}

void client_server_mode_request(const struct client_chunk *chunk, struct client_chunk_request *request)
{
    const struct weft_tensor *tensor = chunk->tensor;
    const struct weft_session *session = tensor->session;
    const struct client_tensor_op *op = &tensor->op;
    chunk_payload(chunk, &request->payload, &request->payload_bytes);
    struct weft_wire_header header = {
        .kind = (uint8_t)wire_kind(op),
        .codec = op->kind == CLIENT_OP_PUSH_PULL || op->kind == CLIENT_OP_PUSH
                     ? (uint8_t)tensor->options.codec_spec.id
                     : (uint8_t)WEFT_CODEC_DENSE,
        .dtype = (uint8_t)(is_state(op) ? WEFT_F32 : tensor->dtype),
        .round = chunk->round,
        .job = session->membership.job_id,
        .incarnation = session->membership.incarnation,
        .worker = session->rank,
        .epoch = session->epoch,
        .tensor = tensor->id,
        .chunk = chunk->index,
        .step = op->step,
        .payload_bytes = request->payload_bytes,
        .term = chunk->term,
        .lr = op->rates.lr,
        .weight = op->rates.weight,
        .loss_exponent = op->rates.loss_exponent,
    };
    fill_skip_fields(chunk, &header);
    fill_decay(tensor, &header);
    weft_wire_encode(&header, request->header);
}

void client_server_mode_sent(const struct client_chunk *chunk, size_t payload_bytes)
{
    weft_event_ring_add(chunk->tensor->session->flight.events, "push", WEFT_EVENT_BEGIN,
                        (uint64_t)chunk->tensor->id << 32 | chunk->index, chunk->endpoint, payload_bytes,
                        WEFT_OK);
}

/* WEFT_ERR_AGAIN: nothing was queued. Any other error has failed the session. */
static enum weft_status send_chunk(struct client_chunk *chunk)
{
    struct weft_tensor *tensor = chunk->tensor;
    struct weft_session *session = tensor->session;
    struct client_chunk_request request;
    client_server_mode_request(chunk, &request);
    const struct weft_message message = {
        .tag = WEFT_TAG(WEFT_CHANNEL_PUSH, (uint64_t)tensor->id << 20 | chunk->index),
        .header = request.header,
        .header_bytes = sizeof request.header,
        .payload = request.payload,
        .payload_bytes = request.payload_bytes,
    };
    struct weft_peer *peer = weft_transport_peer(session->engine->transport, chunk->endpoint);
    enum weft_status status = peer ? weft_transport_send(peer, &message, &chunk->sent) : WEFT_ERR_UNREACHABLE;
    if (status == WEFT_ERR_AGAIN) return status;
    chunk->sent_term = chunk->term;
    chunk->sent_round = chunk->round;
    if (status < 0 && leader_may_change(chunk)) return WEFT_OK; /* Map sends it again */
    if (status < 0) {
        client_tensor_fail(tensor, status, "cannot be sent to %s: %s",
                           client_endpoint_name(session, chunk->endpoint), weft_reason_text(status));
        return status;
    }
    client_server_mode_sent(chunk, message.payload_bytes);
    chunk->group = 0;
    tensor->op.in_transport++;
    chunk->is_sending = true;
    return WEFT_OK;
}

static void on_sent(struct weft_completion *completion, enum weft_status status)
{
    struct client_chunk *chunk = weft_container_of(completion, struct client_chunk, sent);
    struct weft_tensor *tensor = chunk->tensor;
    tensor->op.in_transport--;
    chunk->is_sending = false;
    if (leader_may_change(chunk)) send_again(chunk);
    else if (status < 0)
        client_tensor_fail(tensor, status, "was not taken by %s: %s",
                           client_endpoint_name(tensor->session, chunk->endpoint), weft_reason_text(status));
    client_server_mode_resend(tensor->session);
    advance_op(tensor);
}

void client_server_mode_send_alone(struct client_chunk *chunk)
{
    struct weft_session *session = chunk->tensor->session;
    struct client_engine *engine = session->engine;
    weft_completion_init(&chunk->sent, 1, on_sent);
    if (weft_list_empty(&engine->session->tensors->send_queue) && send_chunk(chunk) != WEFT_ERR_AGAIN) return;
    weft_list_append(&engine->session->tensors->send_queue, &chunk->send_link);
    client_engine_retry_soon(session);
}

static void start_chunk(struct client_chunk *chunk)
{
    const void *payload;
    size_t payload_bytes;
    chunk->is_started = true;
    client_tensor_transfer_starts(chunk->tensor, weft_now_ns(chunk->tensor->session->env));
    chunk_payload(chunk, &payload, &payload_bytes);
    if (!client_push_group_add(chunk, payload_bytes)) client_server_mode_send_alone(chunk);
}

static bool is_sent(const struct client_chunk *chunk)
{
    return chunk->sent_term == chunk->term && chunk->sent_round == chunk->round;
}

/* If a Map has arrived after the last send, or the next round is to be repeated, and the transport has
 * released the buffers of the last send. A chunk that is not in use may await the result of a discarded step,
 * which had another codec of `auto`. */
static void send_again(struct client_chunk *chunk)
{
    const struct weft_tensor *tensor = chunk->tensor;
    if ((!chunk->awaits_result && !is_repeating(chunk)) || !is_in_use(chunk) || !chunk->is_started ||
        chunk->is_sending || chunk->is_receiving || is_sent(chunk) || !weft_list_empty(&chunk->send_link) ||
        tensor->op.status < 0 || tensor->session->engine->failed ||
        tensor->op.epoch != tensor->session->epoch)
        return;
    start_chunk(chunk);
}

void client_server_mode_follow(struct client_chunk *chunk, uint32_t endpoint, uint32_t term)
{
    const struct weft_tensor *tensor = chunk->tensor;
    chunk->endpoint = endpoint;
    chunk->term = term;
    /* with the result of the last round the step has closed, and the new leader has it */
    const bool is_open =
        has_codec_rounds(tensor) && is_in_use(chunk) &&
        (chunk->awaits_result || tensor->op.round + 1 < weft_codec_rounds(&tensor->options.codec_spec));
    if (is_open) chunk->round = 0;
    send_again(chunk);
}

void client_server_mode_resend(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    client_push_groups_resend(session);
    while (!weft_list_empty(&engine->session->tensors->send_queue)) {
        struct client_chunk *chunk =
            weft_list_first(&engine->session->tensors->send_queue, struct client_chunk, send_link);
        if (send_chunk(chunk) == WEFT_ERR_AGAIN) {
            client_engine_retry_soon(session);
            return;
        }
        weft_list_remove(&chunk->send_link);
    }
}

static void expect_results(struct weft_tensor *tensor)
{
    struct client_tensor_op *op = &tensor->op;
    for (uint32_t i = 0; i < op->chunk_count; i++) {
        struct client_chunk *chunk = &tensor->chunk_table.chunks[op->chunk_first + i];
        chunk->awaits_result = true;
        chunk->is_started = false;
        if (!has_codec_rounds(tensor) || op->round == 0) chunk->round = (uint8_t)op->round;
    }
    op->results_left = op->chunk_count;
    op->coding.aggregate_bytes = 0;
}

static void start_round(struct weft_tensor *tensor)
{
    expect_results(tensor);
    const struct client_tensor_op *op = &tensor->op;
    for (uint32_t i = 0; i < op->chunk_count && op->status == WEFT_OK; i++) {
        struct client_chunk *chunk = &tensor->chunk_table.chunks[op->chunk_first + i];
        if (is_repeating(chunk) && is_sent(chunk)) chunk->is_started = true; /* its result continues */
        else start_chunk(chunk);
    }
}

/* ---- computing ---- */

/* Dense with a sample weight: scales a slice. A chunk is sent when its last slice is scaled. */
static bool run_scale(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    struct client_tensor_op *op = &tensor->op;
    struct client_chunk *chunk = &tensor->chunk_table.chunks[op->gradient.chunks_scaled];
    if (!client_scale_slice(tensor, chunk->offset + chunk->count)) return false;
    op->gradient.chunks_scaled++;
    start_chunk(chunk);
    return op->gradient.chunks_scaled == op->chunk_count;
}

/* Runs the tensor's work, or queues it if it is long. */
static void start_work(struct weft_tensor *tensor, bool (*run)(struct client_work *work))
{
    struct weft_session *session = tensor->session;
    tensor->execution.work.run = run;
    if (tensor->elems > INLINE_ELEMS) {
        client_engine_queue_work(session, &tensor->execution.work);
        return;
    }
    const uint64_t began_ns = weft_now_ns(session->env);
    while (!run(&tensor->execution.work)) {}
    session->engine->counters.encode_ns += weft_elapsed_ns(began_ns, weft_now_ns(session->env));
}

/* Codec arithmetic: short tensors at once or in turn on the engine thread, others on the compute thread. The
 * run_ functions access only the codec, its buffers and op->coding.computed. op->in_transport counts a task
 * on the compute thread, so the operation cannot end meanwhile. A codec encodes the whole tensor before it
 * sends, so that nothing is sent of a gradient that is not finite. If it can be cut, each chunk is combined
 * alone, and the aggregates are stored one after the other. */

static void encode_round(struct weft_tensor *tensor, uint32_t round)
{
    struct client_tensor_op *op = &tensor->op;
    const float *in = op->gradient.scaled ? op->gradient.scaled : op->in;
    struct weft_codec_exchange *exchange = &op->coding.exchange;
    op->coding.encoding_round = round;
    if (exchange->began_ns == 0) exchange->began_ns = weft_now_ns(tensor->session->env);
    op->coding.computed = weft_codec_encode(
        tensor->codec, round, round == 0 ? in : NULL, op->gradient.scaled ? 1.0f : op->rates.factor,
        tensor->wire.contribution[round], &tensor->wire.contribution_bytes[round]);
    op->checks.grad_is_nonfinite = op->coding.computed == WEFT_ERR_INVALID;
    if (op->coding.computed != WEFT_OK) return;
    exchange->encode_ns += weft_elapsed_ns(exchange->began_ns, weft_now_ns(tensor->session->env));
    exchange->began_ns = 0;
    exchange->encoded_bytes += tensor->wire.contribution_bytes[round];
}

static void run_encode(struct weft_task *task)
{
    encode_round(weft_container_of(task, struct weft_tensor, execution.task), 0);
}

/* The device has run what the encode of the last call queued: the next part of it. */
static void run_encode_more(struct weft_task *task)
{
    struct weft_tensor *tensor = weft_container_of(task, struct weft_tensor, execution.task);
    encode_round(tensor, tensor->op.coding.encoding_round);
}

/* A round's aggregate has arrived: takes it, then encodes the next round or writes the gradient. */
static void run_take(struct weft_task *task)
{
    struct weft_tensor *tensor = weft_container_of(task, struct weft_tensor, execution.task);
    struct client_tensor_op *op = &tensor->op;
    const uint64_t began_ns = weft_now_ns(tensor->session->env);
    const bool is_last = op->round + 1 == weft_codec_rounds(&tensor->options.codec_spec);
    op->coding.computed = weft_codec_take(tensor->codec, op->round, tensor->wire.aggregate,
                                          op->coding.aggregate_bytes, tensor->session->ranks);
    op->coding.aggregate_is_damaged = op->coding.computed < 0;
    if (op->coding.aggregate_is_damaged) return;
    if (is_last)
        op->coding.computed = weft_codec_finish(
            tensor->codec, op->rates.grad_scale,
            tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE ? tensor->arrays.scratch : op->out);
    op->coding.exchange.decode_ns += weft_elapsed_ns(began_ns, weft_now_ns(tensor->session->env));
    if (!is_last) encode_round(tensor, op->round + 1);
}

static void run_hash(struct weft_task *task)
{
    client_hash_weights(weft_container_of(task, struct weft_tensor, execution.task));
}

static void compute(struct weft_tensor *tensor, void (*run)(struct weft_task *task),
                    void (*next)(struct weft_tensor *tensor));

/* Names the shard whose chunk holds the first invalid byte. */
static void aggregate_damaged(struct weft_tensor *tensor)
{
    const struct client_tensor_op *op = &tensor->op;
    const struct client_chunk *chunk = &tensor->chunk_table.chunks[op->chunk_first],
                              *last = chunk + op->chunk_count - 1;
    const uint64_t at = op->chunk_count > 1 ? weft_codec_malformed_elem(tensor->codec) : 0;
    while (chunk < last && at >= chunk->offset + chunk->count) chunk++;
    client_tensor_fail(tensor, op->coding.computed, "got a damaged aggregate (round %u, chunk %u) from %s",
                       op->round, chunk->index, client_endpoint_name(tensor->session, chunk->endpoint));
}

static void compute_failed(struct weft_tensor *tensor)
{
    struct client_tensor_op *op = &tensor->op;
    if (op->coding.aggregate_is_damaged) aggregate_damaged(tensor);
    else
        client_tensor_fail(tensor, op->coding.computed, "could not be encoded or decoded: %s",
                           weft_codec_device_error(tensor->codec)[0] ? weft_codec_device_error(tensor->codec)
                                                                     : weft_reason_text(op->coding.computed));
}

static void skip(struct weft_tensor *tensor)
{
    client_codec_tuner_exchange_completed(tensor);
    client_skip_tensor(tensor);
}

static void complete(struct weft_tensor *tensor)
{
    client_request_complete(tensor->op.request, WEFT_OK, NULL);
}

static bool run_codec_update(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    if (!client_update_slice(tensor, tensor->arrays.scratch, 1.0f)) return false;
    if (!client_tensor_has_codec_choice(tensor) && client_hash_due(tensor))
        compute(tensor, run_hash, complete);
    else complete(tensor);
    return true;
}

/* The mean gradient is complete: updates the weights, or completes the request. */
static void on_decoded(struct weft_tensor *tensor)
{
    client_codec_tuner_exchange_completed(tensor);
    if (tensor->options.optimizer.kind == WEFT_OPTIMIZER_NONE) {
        complete(tensor);
        return;
    }
    tensor->op.gradient.work_at = 0;
    start_work(tensor, run_codec_update);
}

static void on_encoded(struct weft_tensor *tensor) { start_round(tensor); }

static void on_aggregate_taken(struct weft_tensor *tensor)
{
    if (tensor->op.round + 1 < weft_codec_rounds(&tensor->options.codec_spec)) {
        tensor->op.round++;
        on_encoded(tensor);
    } else {
        tensor->op.coding.exchange.gradient_bytes = tensor->elems * sizeof(float);
        weft_codec_times_add(&tensor->session->engine->counters.codec, &tensor->op.coding.exchange);
        on_decoded(tensor);
    }
}

/* Continues an encode on a device when the device has run what is queued. */
static void poll_device(struct weft_timer *timer)
{
    struct weft_tensor *tensor = weft_container_of(timer, struct weft_tensor, execution.device_timer);
    struct client_tensor_op *op = &tensor->op;
    const uint64_t now_ns = weft_now_ns(tensor->session->env);
    if (weft_codec_pending(tensor->codec) == WEFT_IN_PROGRESS) {
        weft_timer_start(tensor->session->loop, timer,
                         now_ns + weft_memory_look_ns(weft_elapsed_ns(op->coding.device_since_ns, now_ns)));
        return;
    }
    op->in_transport--;
    compute(tensor, run_encode_more, op->coding.next);
}

static void wait_for_device(struct weft_tensor *tensor)
{
    tensor->op.in_transport++;
    tensor->op.coding.device_since_ns = weft_now_ns(tensor->session->env);
    tensor->execution.device_timer.fn = poll_device;
    weft_timer_start(tensor->session->loop, &tensor->execution.device_timer,
                     tensor->op.coding.device_since_ns + weft_memory_look_ns(0));
}

static void on_computed(struct weft_tensor *tensor)
{
    if (tensor->op.coding.computed == WEFT_IN_PROGRESS) wait_for_device(tensor);
    else if (tensor->op.coding.computed < 0 && !tensor->op.checks.grad_is_nonfinite) compute_failed(tensor);
    /* a gradient that is not finite sends no contribution; the shard answers all ranks with
     * WEFT_ERR_SKIPPED */
    else tensor->op.coding.next(tensor);
}

static void on_task_done(struct weft_task *task)
{
    struct weft_tensor *tensor = weft_container_of(task, struct weft_tensor, execution.task);
    struct client_engine *engine = tensor->session->engine;
    engine->counters.encode_ns += tensor->op.coding.compute_ns;
    tensor->op.in_transport--;
    if (engine->failed || tensor->op.epoch != tensor->session->epoch) advance_op(tensor);
    else on_computed(tensor);
}

static void run_timed(struct weft_task *task)
{
    struct weft_tensor *tensor = weft_container_of(task, struct weft_tensor, execution.task);
    struct weft_env *env = tensor->session->env;
    uint64_t began_ns = weft_now_ns(env);
    tensor->op.coding.run(task);
    tensor->op.coding.compute_ns = weft_now_ns(env) - began_ns;
}

static bool run_on_engine(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    tensor->op.coding.run(&tensor->execution.task);
    on_computed(tensor);
    return true;
}

static void compute(struct weft_tensor *tensor, void (*run)(struct weft_task *task),
                    void (*next)(struct weft_tensor *tensor))
{
    struct client_tensor_op *op = &tensor->op;
    op->coding.run = run;
    op->coding.next = next;
    op->coding.computed = WEFT_OK;
    op->coding.aggregate_is_damaged = false;
    if (tensor->elems <= WEFT_LOOP_SLICE) {
        start_work(tensor, run_on_engine);
        return;
    }
    op->in_transport++;
    tensor->execution.task.run = run_timed;
    tensor->execution.task.done = on_task_done;
    weft_loop_compute(tensor->session->loop, &tensor->execution.task, tensor->elems);
}

/* ---- results ---- */

/* Returns the chunk whose operation the result belongs to. NULL: a result of another tensor, step, round or
 * shard, which is dropped. */
static struct client_chunk *chunk_of(struct weft_session *session, uint32_t peer_id,
                                     const struct weft_wire_header *header)
{
    struct weft_tensor *tensor = client_tensor_find(session, header->tensor);
    if (!tensor || header->chunk >= tensor->chunk_table.count) return NULL;
    struct client_chunk *chunk = &tensor->chunk_table.chunks[header->chunk];
    const struct client_tensor_op *op = &tensor->op;
    if (chunk->endpoint != peer_id || header->term != chunk->term || chunk->is_receiving ||
        (!chunk->awaits_result && !has_rounds_left(chunk)) || op->kind == CLIENT_OP_NONE || op->status < 0)
        return NULL;
    /* a rank that has rested may receive a later step */
    const bool pulls = op->kind == CLIENT_OP_PULL || op->kind == CLIENT_OP_STATE_PULL;
    if ((pulls ? header->step < op->step : header->step != op->step) || header->round != chunk->round ||
        header->job != session->membership.job_id || header->epoch != session->epoch)
        return NULL;
    return chunk;
}

/* The result of a chunk is in tensor->wire.rounded. */
static void widen(const struct client_chunk *chunk)
{
    const struct weft_tensor *tensor = chunk->tensor;
    const uint16_t *in = tensor->wire.rounded + chunk->offset;
    float *out = (float *)tensor->op.out + chunk->offset;
    if (tensor->wire.pull_dtype == WEFT_F16) weft_kernels()->cast_f16_f32(out, in, chunk->count);
    else weft_kernels()->cast_bf16_f32(out, in, chunk->count);
}

static bool is_rounded(const struct weft_tensor *tensor)
{
    return wants_payload(&tensor->op) && !tensor->op.holds && tensor->wire.rounded &&
           result_dtype(tensor) != WEFT_F32;
}

static void settle_chunk(struct client_chunk *chunk)
{
    struct weft_tensor *tensor = chunk->tensor;
    chunk->awaits_result = false;
    chunk->round = (uint8_t)(tensor->op.round + 1);
    tensor->op.results_left--;
    weft_event_ring_add(tensor->session->flight.events, "push", WEFT_EVENT_END,
                        (uint64_t)tensor->id << 32 | chunk->index, chunk->endpoint, 0, WEFT_OK);
    advance_op(tensor);
}

/* The result of a round that was repeated. false: it is needed. */
static bool drop_repeated(struct client_chunk *chunk)
{
    if (chunk->awaits_result && chunk->round == chunk->tensor->op.round) return false;
    chunk->round++;
    send_again(chunk);
    return true;
}

/* The shard has skipped the step. */
static void skip_chunk(struct client_chunk *chunk)
{
    chunk->tensor->op.checks.shard_skips_step = true;
    if (chunk->awaits_result) settle_chunk(chunk);
    else chunk->round = (uint8_t)(chunk->tensor->op.round + 1);
}

static void on_received(struct weft_completion *completion, enum weft_status status)
{
    struct client_chunk *chunk = weft_container_of(completion, struct client_chunk, received);
    struct weft_tensor *tensor = chunk->tensor;
    tensor->op.in_transport--;
    chunk->is_receiving = false;
    if (status < 0 && leader_may_change(chunk)) {
        send_again(chunk);
        advance_op(tensor);
        return;
    }
    if (status < 0) {
        client_tensor_fail(tensor, status, "got no whole result from %s: %s",
                           client_endpoint_name(tensor->session, chunk->endpoint), weft_reason_text(status));
        advance_op(tensor);
        return;
    }
    if (is_rounded(tensor)) widen(chunk);
    settle_chunk(chunk);
}

/* Sets where the payload goes. Returns whether its length is correct. */
static bool result_buffer(struct client_chunk *chunk, size_t payload_bytes, void **buffer_out)
{
    const struct weft_tensor *tensor = chunk->tensor;
    const struct client_tensor_op *op = &tensor->op;
    if (!wants_payload(op)) {
        *buffer_out = NULL;
        return payload_bytes == 0;
    }
    if (op->holds) {
        *buffer_out = &chunk->squares;
        return payload_bytes == sizeof chunk->squares;
    }
    if (tensor->codec && op->kind == CLIENT_OP_PUSH_PULL) {
        const bool cut = op->chunk_count > 1;
        *buffer_out = tensor->wire.aggregate + (cut ? bytes_before(chunk, op->round, aggregate_bytes) : 0);
        return cut ? payload_bytes == aggregate_bytes(chunk, op->round)
                   : payload_bytes <= tensor->wire.aggregate_bytes_max;
    }
    const bool updates = op->kind == CLIENT_OP_PUSH_PULL && client_tensor_has_local_optimizer(tensor);
    const size_t elem_bytes = weft_dtype_bytes(result_dtype(tensor));
    void *const out = updates              ? tensor->arrays.scratch
                      : is_rounded(tensor) ? (void *)tensor->wire.rounded
                                           : op->out;
    *buffer_out = (uint8_t *)out + chunk->offset * elem_bytes;
    return payload_bytes == chunk->count * elem_bytes;
}

/* Counts the time that the shard waited for late ranks. The header is UNTRUSTED: it changes statistics
 * only. */
static void count_late(const struct weft_tensor *tensor, const struct weft_wire_header *header)
{
    struct weft_session *session = tensor->session;
    if (header->late_us == 0 || tensor->op.kind == CLIENT_OP_PULL) return;
    const uint64_t from_ns = tensor->op.request->started_ns, now_ns = weft_now_ns(session->env);
    const uint64_t to_ns = weft_deadline_ns(from_ns, (uint64_t)header->late_us * 1000);
    weft_straggler_time_add(&session->totals.straggler_time, from_ns, to_ns < now_ns ? to_ns : now_ns);
}

/* Checks a result with status WEFT_OK and counts it. false: it does not fit and has failed the session. */
static bool result_fits(struct client_chunk *chunk, const struct weft_wire_header *header, void **buffer_out)
{
    struct weft_tensor *tensor = chunk->tensor;
    struct client_tensor_op *op = &tensor->op;
    const size_t payload_bytes = (size_t)header->payload_bytes;
    const bool is_scaled_here = op->holds || (tensor->codec && op->kind == CLIENT_OP_PUSH_PULL);
    const bool weight_sum_is_valid =
        !is_scaled_here || (isfinite(header->weight_sum) && header->weight_sum > 0);
    if (!result_buffer(chunk, payload_bytes, buffer_out) || !weight_sum_is_valid) {
        client_tensor_fail(tensor, WEFT_ERR_MALFORMED,
                           "got a result of %zu bytes for chunk %u that does not fit from %s", payload_bytes,
                           chunk->index, client_endpoint_name(tensor->session, chunk->endpoint));
        return false;
    }
    count_late(tensor, header);
    op->coding.aggregate_bytes += payload_bytes;
    if (is_scaled_here)
        op->rates.grad_scale = weft_optimizer_grad_scale(&tensor->options.optimizer, header->weight_sum);
    /* before the result may overwrite the gradient */
    if (op->checks.warns_late && !(header->flags & WEFT_WIRE_FINITE))
        client_skip_warn(tensor, chunk->offset, chunk->count);
    return true;
}

void client_server_mode_result(struct weft_session *session, uint32_t peer_id,
                               const struct weft_wire_header *header, const void *payload)
{
    struct client_chunk *chunk = session->engine->failed ? NULL : chunk_of(session, peer_id, header);
    void *buffer;
    if (!chunk || drop_repeated(chunk) || !result_fits(chunk, header, &buffer)) return;
    if (header->payload_bytes > 0) memcpy(buffer, payload, (size_t)header->payload_bytes);
    if (is_rounded(chunk->tensor)) widen(chunk);
    settle_chunk(chunk);
}

static void accept_result(struct client_chunk *chunk, struct weft_arrival *arrival,
                          const struct weft_wire_header *header)
{
    struct weft_tensor *tensor = chunk->tensor;
    struct weft_session *session = tensor->session;
    struct weft_transport *transport = session->engine->transport;
    struct client_tensor_op *op = &tensor->op;
    void *buffer;
    if (!result_fits(chunk, header, &buffer)) {
        weft_transport_discard(transport, arrival);
        return;
    }
    if (arrival->payload_bytes == 0) {
        weft_transport_discard(transport, arrival);
        settle_chunk(chunk);
        return;
    }
    size_t bytes = arrival->payload_bytes;
    weft_completion_init(&chunk->received, 1, on_received);
    arrival->is_streamed = tensor->elems >= STREAMED_ELEMS_MIN;
    enum weft_status status = weft_transport_accept(transport, arrival, buffer, bytes, &chunk->received);
    if (status < 0 && leader_may_change(chunk)) {
        weft_transport_discard(transport, arrival);
        return;
    }
    if (status < 0) {
        client_tensor_fail(tensor, status, "cannot receive the result of %s: %s",
                           client_endpoint_name(session, chunk->endpoint), weft_reason_text(status));
        weft_transport_discard(transport, arrival);
        return;
    }
    op->in_transport++;
    chunk->is_receiving = true;
}

static void on_result(void *context, struct weft_arrival *arrival)
{
    struct weft_session *session = context;
    struct weft_wire_header header;
    enum weft_status status = weft_wire_decode(arrival->header, arrival->header_bytes, &header);
    if (status < 0 || header.kind != WEFT_WIRE_RESULT || header.payload_bytes != arrival->payload_bytes) {
        client_fail(session, status < 0 ? status : WEFT_ERR_MALFORMED, true,
                    "rank %u: a message from %s is no valid result: %s", session->rank,
                    client_endpoint_name(session, arrival->peer_id),
                    weft_reason_text(status < 0 ? status : WEFT_ERR_MALFORMED));
        weft_transport_discard(session->engine->transport, arrival);
        return;
    }
    struct client_chunk *chunk =
        session->engine->failed ? NULL : chunk_of(session, arrival->peer_id, &header);
    if (!chunk) { /* its operation has ended */
        weft_transport_discard(session->engine->transport, arrival);
        return;
    }
    if (header.status == WEFT_ERR_SKIPPED && chunk->tensor->op.kind != CLIENT_OP_PULL) {
        weft_transport_discard(session->engine->transport, arrival);
        skip_chunk(chunk);
        return;
    }
    if (header.status < 0) {
        char text[WEFT_LIMIT_RESULT_TEXT_BYTES + 1];
        weft_wire_text(arrival->header, &header, text);
        /* A sentence of full length may be truncated before the name of the culprit. If it ends the job, the
         * coordinator has all of it. */
        const bool cut = header.text_bytes == WEFT_LIMIT_RESULT_TEXT_BYTES;
        /* reported by the coordinator: suspect no link */
        if (header.status == WEFT_ERR_PEER_LOST)
            client_tensor_remote_lost(chunk->tensor, "was refused by %s: %s",
                                      client_endpoint_name(session, arrival->peer_id),
                                      text[0] ? text : "a rank is lost");
        else
            (cut ? client_tensor_fail_later : client_tensor_fail)(
                chunk->tensor, (enum weft_status)header.status, "was refused by %s: %s",
                client_endpoint_name(session, arrival->peer_id),
                text[0] ? text : weft_status_text((enum weft_status)header.status));
        weft_transport_discard(session->engine->transport, arrival);
        return;
    }
    if (drop_repeated(chunk)) weft_transport_discard(session->engine->transport, arrival);
    else accept_result(chunk, arrival, &header);
}

void client_server_mode_listen(struct weft_session *session)
{
    weft_transport_handler(session->engine->transport, WEFT_CHANNEL_RESULT, on_result, session);
    client_push_groups_listen(session);
}

/* ---- the operation as a whole ---- */

/* The shards hold the sum: weft_step_end makes the update (elastic/clip.c). The squares are added in the
 * order of the chunks, whatever shards have them. */
static void on_measured(struct weft_tensor *tensor)
{
    const struct client_tensor_op *op = &tensor->op;
    tensor->clip = (struct client_clip){.is_pending = true, .scale = op->rates.grad_scale, .out = op->out};
    for (uint32_t i = 0; i < op->chunk_count; i++)
        tensor->clip.squares += tensor->chunk_table.chunks[op->chunk_first + i].squares;
    complete(tensor);
}

/* A chunk settled: continues after the round, or completes a failed operation. */
static void advance_op(struct weft_tensor *tensor)
{
    struct client_tensor_op *op = &tensor->op;
    struct weft_session *session = tensor->session;
    struct client_engine *engine = session->engine;
    if (!tensor->execution.has_begun || op->in_transport > 0) return;
    if (engine->failed) {
        client_request_complete(op->request, engine->failed, engine->failed_text);
        return;
    }
    if (op->epoch != session->epoch) {
        /* the job continues without a rank, and the last buffer is free only now */
        client_request_complete(op->request, WEFT_ERR_PEER_LOST, engine->epoch_end.text);
        return;
    }
    if (op->status < 0 || op->results_left > 0) return; /* a failed operation ends with the session's fail
                                                         * message */
    if (op->checks.shard_skips_step) skip(tensor);
    else if (op->holds) on_measured(tensor);
    else if (tensor->codec && op->kind == CLIENT_OP_PUSH_PULL) compute(tensor, run_take, on_aggregate_taken);
    else if (client_tensor_has_codec_choice(tensor)) on_decoded(tensor);
    else complete(tensor);
}

/* A codec with a carry or weight scales the whole tensor before it encodes. */
static bool run_scale_whole(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    if (!client_scale_slice(tensor, tensor->elems)) return false;
    compute(tensor, run_encode, on_encoded);
    return true;
}

/* Selects the chunks of the codec in use. */
static void select_chunks(struct weft_tensor *tensor)
{
    struct client_tensor_op *op = &tensor->op;
    const uint32_t choice = client_tensor_has_codec_choice(tensor) ? tensor->codec_choice.chosen : 0;
    op->chunk_first = tensor->chunk_table.choice_first[choice];
    op->chunk_count = tensor->chunk_table.choice_first[choice + 1] - op->chunk_first;
    /* Set here, because several calls make the codec anew. A codec that has encoded in this step has the
     * value already. */
    if (tensor->codec && op->chunk_count > 1)
        (void)weft_codec_set_pieces(tensor->codec, tensor->chunk_table.chunks[op->chunk_first].count);
}

/* The input is readable: starts the computation or the sends. */
static void on_input_ready(struct client_request *request)
{
    struct weft_tensor *tensor = request->tensor;
    struct client_tensor_op *op = &tensor->op;
    if (op->kind == CLIENT_OP_PUSH_PULL) client_codec_tuner_exchange_posted(tensor);
    if (op->checks.grad_is_nonfinite) { /* nothing to encode or to scale: the shards skip the step */
        start_round(tensor);
    } else if (tensor->codec && op->kind == CLIENT_OP_PUSH_PULL) {
        if (!op->gradient.scaled) {
            compute(tensor, run_encode, on_encoded);
            return;
        }
        start_work(tensor, run_scale_whole);
    } else if (op->gradient.scaled) {
        expect_results(tensor);
        start_work(tensor, run_scale);
    } else {
        start_round(tensor);
    }
}

void client_server_mode_start(struct weft_command *command)
{
    struct client_request *request = weft_container_of(command, struct client_request, command);
    request->tensor->op.epoch = request->session->epoch;
    if (!client_request_begin(request)) return;
    select_chunks(request->tensor);
    if (request->device.stage) client_stage_when_ready(request, on_input_ready);
    else on_input_ready(request);
}

void client_server_mode_failed(struct weft_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->chunk_table.count; i++)
        weft_list_remove(&tensor->chunk_table.chunks[i].send_link);
    client_engine_cancel_work(&tensor->execution.work);
    if (weft_timer_is_running(&tensor->execution.device_timer)) {
        weft_timer_stop(tensor->session->loop, &tensor->execution.device_timer);
        tensor->op.in_transport--;
    }
    advance_op(tensor);
}
