/* push_pull.c - weft_push_pull, weft_push_none, weft_push, weft_pull: validate arguments, then queue the
 * request on the engine thread. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/call/calls.h"
#include "client/call/device_staging.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/open_step.h"
#include "client/session/session.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/codec_placement.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/device/device_update.h"
#include "client/tensor/server_mode.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* Checks of all calls. On WEFT_OK the tensor is idle and its op is empty. */
static enum weft_status check_call(struct weft_tensor *tensor, const void *buffer, const char *call)
{
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_usable(session));
    if (!buffer)
        return client_error(session, WEFT_ERR_INVALID, "%s of tensor '%s': a buffer is NULL", call,
                            tensor->name);
    return client_tensor_claim(tensor, call);
}

/* A shard can hold its sum of the tensor, and apply it later. */
static bool shards_can_clip(const struct weft_tensor *tensor, const char *call)
{
    return !tensor->codec && !client_tensor_has_codec_choice(tensor) && !client_tensor_has_clock(tensor) &&
           !tensor->session->membership.is_elastic && strcmp(call, "push") != 0;
}

/* Shards of wire version 1 do not support what the step requires. */
static enum weft_status check_version(struct weft_tensor *tensor, const char *call)
{
    const bool clips = tensor->session->step.clip_norm > 0;
    char text[WEFT_LIMIT_NAME_BYTES + 100];
    snprintf(text, sizeof text, "%s of tensor '%s', which is in server mode: %s", call, tensor->name,
             clips ? "clip_norm" : "group_weight_decay");
    return client_wire_check(tensor->session, 2, text);
}

/* Checks that this rank can make the update that the step requires. */
static enum weft_status check_update(struct weft_tensor *tensor, const char *call)
{
    struct weft_session *session = tensor->session;
    const struct client_step *step = &session->step;
    if (step->group_count > 0 && tensor->options.group >= step->group_count)
        return client_error(session, WEFT_ERR_INVALID,
                            "%s of tensor '%s', which is in parameter group %u; the step's group_count is %u",
                            call, tensor->name, tensor->options.group, step->group_count);
    if (step->clip_norm <= 0 && !step->has_decays) return WEFT_OK;
    if (tensor->mode == WEFT_MODE_SERVER) WEFT_TRY(check_version(tensor, call));
    if (step->clip_norm > 0 && tensor->mode == WEFT_MODE_SERVER && !shards_can_clip(tensor, call))
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s of tensor '%s', which is in server mode: clip_norm needs push_pull, a dense "
                            "tensor with consistency bsp, and a job that ends when a rank is lost",
                            call, tensor->name);
    if (step->clip_norm > 0 && weft_memory_is_device(tensor->buffers.memory))
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s of tensor '%s', which is on a device: clip_norm needs weights in host memory",
                            call, tensor->name);
    if (step->has_decays && tensor->options.optimizer.kind == WEFT_OPTIMIZER_FTRL &&
        tensor->progress.group_decay != 0)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s of tensor '%s': the optimiser ftrl has no weight decay; "
                            "group_weight_decay[%u] must be 0",
                            call, tensor->name, tensor->options.group);
    return WEFT_OK;
}

/* Checks of a contribution: a step is open, weights exist, and it is the first of the step. */
static enum weft_status check_contribution(struct weft_tensor *tensor, const char *call)
{
    struct weft_session *session = tensor->session;
    const struct client_step *step = &session->step;
    if (!step->open)
        return client_error(session, WEFT_ERR_STATE,
                            "%s of tensor '%s' outside a step; call weft_step_begin first", call,
                            tensor->name);
    WEFT_TRY(client_state_broadcast_check(tensor, call));
    if (tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE && !tensor->progress.initialised)
        return client_error(
            session, WEFT_ERR_STATE,
            "%s of tensor '%s', which has an optimiser but no weights yet; call weft_tensor_init", call,
            tensor->name);
    if (tensor->progress.last_step == step->number)
        return client_error(session, WEFT_ERR_STATE,
                            "%s of tensor '%s' twice in step %llu; push each tensor once per step", call,
                            tensor->name, (unsigned long long)step->number);
    if (tensor->mode == WEFT_MODE_ALL_REDUCE && tensor->dtype != WEFT_F32 &&
        (step->weight != 1.0f || step->loss_scale != 1.0f))
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s of tensor '%s' of %s: a sample weight or loss_scale other than 1 needs f32",
                            call, tensor->name, weft_dtype_name(tensor->dtype));
    return tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE ? check_update(tensor, call) : WEFT_OK;
}

/* Ranks form the operations of a group of calls after its end, so a stream must not wait for one before. */
static enum weft_status check_on_stream(const struct weft_tensor *tensor)
{
    if (!tensor->buffers.on_stream || !client_call_group_is_open(tensor->session)) return WEFT_OK;
    return client_error(tensor->session, WEFT_ERR_UNSUPPORTED,
                        "tensor '%s' is stream-ordered (weft_tensor_on_stream) and a group of calls is open; "
                        "call weft_group_end first",
                        tensor->name);
}

/* Device buffers: copies them to and from host memory for the engine, unless the codec runs on the device. */
static enum weft_status stage(struct weft_tensor *tensor, enum client_op_kind kind,
                              struct client_request *request)
{
    struct client_tensor_op *op = &tensor->op;
    const bool host = kind == CLIENT_OP_INIT || kind == CLIENT_OP_STATE_PULL ||
                      kind == CLIENT_OP_STATE_INIT || kind == CLIENT_OP_APPLY;
    struct weft_error error = {0};
    if (host) return WEFT_OK;
    if (!weft_memory_is_device(tensor->buffers.memory)) {
        enum weft_status status = client_codec_place_on_host(tensor, &error);
        if (status == WEFT_OK) status = client_update_place_on_host(tensor, &error);
        return status < 0
                   ? client_error(tensor->session, status, "tensor '%s': %.200s", tensor->name, error.text)
                   : WEFT_OK;
    }
    WEFT_TRY(check_on_stream(tensor));
    const struct client_extents extents = {op->in ? tensor->elems : 0, op->out ? tensor->elems : 0};
    bool scaled_in_out = op->gradient.scaled && op->gradient.scaled == op->out;
    request->args.in = op->in;
    request->args.out = op->out;
    request->args.count = tensor->elems;
    request->args.dtype = (uint8_t)tensor->dtype;
    request->args.kind = WEFT_COLL_ALL_REDUCE;
    request->device.on_stream = tensor->buffers.on_stream;
    WEFT_TRY(
        client_stage_start_tensor(request, tensor->buffers.memory, tensor->buffers.stream, extents,
                                  kind == CLIENT_OP_PUSH_PULL && client_tensor_has_local_optimizer(tensor),
                                  kind == CLIENT_OP_PUSH_PULL, &op->in, &op->out));
    if (scaled_in_out) op->gradient.scaled = op->out;
    op->sum = client_stage_sum(request);
    return WEFT_OK;
}

enum weft_status weft_tensor_memory(struct weft_tensor *tensor, enum weft_memory_kind memory, void *stream)
{
    if (!tensor) return client_null_argument("tensor_memory", "tensor");
    WEFT_TRY(client_usable(tensor->session));
    if (!weft_memory_is_kind((int)memory))
        return client_error(tensor->session, WEFT_ERR_INVALID,
                            "tensor_memory: memory %d of tensor '%s' is not a valid weft_memory_kind "
                            "(WEFT_MEMORY_HOST .. WEFT_MEMORY_DEVICE)",
                            (int)memory, tensor->name);
    if (tensor->buffers.memory != memory)
        tensor->buffers.host_codec_logged = tensor->buffers.host_update_logged = false;
    tensor->buffers.memory = memory;
    tensor->buffers.stream = stream;
    return WEFT_OK;
}

enum weft_status weft_tensor_on_stream(struct weft_tensor *tensor, bool on_stream)
{
    if (!tensor) return client_null_argument("tensor_on_stream", "tensor");
    WEFT_TRY(client_usable(tensor->session));
    tensor->buffers.on_stream = on_stream;
    return WEFT_OK;
}

/* If the sum does not overwrite the gradient, the gradient is checked after the sum, and only if the sum
 * may not be finite. In server mode each chunk is checked before its result overwrites it (server_mode.c). */
static bool can_warn_late(const struct weft_tensor *tensor)
{
    const struct client_tensor_op *op = &tensor->op;
    if (tensor->codec || tensor->elems <= CLIENT_SLICE_ELEMS) return false;
    if (tensor->mode == WEFT_MODE_SERVER) return op->in != op->gradient.scaled;
    return tensor->dtype == WEFT_F32 && op->in != op->out && op->in != tensor->arrays.scratch;
}

/* Short gradients are in the caller's cache here. */
static void warn_if_not_finite(struct weft_tensor *tensor)
{
    tensor->op.checks.warns_late = false;
    if (!client_skip_should_warn(tensor)) return;
    tensor->op.checks.warns_late = can_warn_late(tensor);
    if (!tensor->op.checks.warns_late) client_skip_warn(tensor, 0, tensor->elems);
}

static float contribution_factor(const struct weft_tensor *tensor)
{
    const struct client_step *step = &tensor->session->step;
    if (client_tensor_shards_scale(tensor)) return 1.0f;
    return client_mean_unscale(tensor) == 1.0f ? step->weight / step->loss_scale : step->weight;
}

/* Takes the request, copies the step's parameters, and queues it. op has in, out and scaled. */
static enum weft_status start(struct weft_tensor *tensor, enum client_op_kind kind,
                              struct weft_request *user_request)
{
    struct weft_session *session = tensor->session;
    static const char *const calls[] = {"operation", "init",       "push_pull",  "push",
                                        "pull",      "state_save", "state_load", "update"};
    struct client_request *request;
    WEFT_TRY(client_request_claim(session, calls[kind], user_request, &request));
    tensor->op.kind = kind;
    tensor->op.request = request;
    tensor->op.order_words = (client_tensors_declared(session) + 63) / 64;
    request->tensor = tensor;
    const enum weft_status staged = stage(tensor, kind, request);
    if (staged < 0) { /* the request was not started */
        tensor->op = (struct client_tensor_op){.kind = CLIENT_OP_NONE};
        return staged;
    }
    /* nothing fails from here on */
    if (kind == CLIENT_OP_PUSH_PULL) tensor->op.carrier.leader = client_tensor_group_leader(tensor);
    if (kind == CLIENT_OP_PUSH_PULL || kind == CLIENT_OP_PUSH) {
        tensor->op.checks.grad_is_nonfinite =
            tensor->mode == WEFT_MODE_SERVER && client_step_skips_here(&session->step);
        tensor->progress.skipped_step = 0;
        tensor->progress.step_before = tensor->progress.last_step;
        tensor->progress.last_step = session->step.number;
        tensor->op.step =
            client_tensor_has_clock(tensor) ? ++tensor->progress.clock : tensor->progress.last_step;
        client_learned_order_pushed(tensor);
        if (!tensor->op.checks.grad_is_nonfinite) warn_if_not_finite(tensor);
        tensor->op.rates.lr = session->step.group_count > 0 ? tensor->progress.group_lr : session->step.lr;
        tensor->op.rates.weight = session->step.weight;
        tensor->op.rates.factor = contribution_factor(tensor);
        if (client_tensor_shards_scale(tensor))
            tensor->op.rates.loss_exponent = (int8_t)ilogbf(session->step.loss_scale);
        tensor->op.rates.has_decay = session->step.has_decays;
        tensor->op.rates.weight_decay = tensor->progress.group_decay;
        tensor->clip.is_pending = false;
        if (client_skip_needs_backup(tensor)) tensor->op.wire_flags |= WEFT_WIRE_MAY_SKIP;
        if (!tensor->codec && client_tensor_can_skip_step(tensor)) tensor->op.wire_flags |= WEFT_WIRE_CHECKED;
        tensor->op.holds = tensor->mode == WEFT_MODE_SERVER && session->step.clip_norm > 0 &&
                           tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE;
    } else if (kind == CLIENT_OP_APPLY) {
        tensor->op.step = tensor->progress.last_step;
    } else {
        const uint64_t step =
            client_tensor_has_clock(tensor) ? tensor->progress.clock : tensor->progress.last_step;
        tensor->op.step = kind == CLIENT_OP_PULL || kind == CLIENT_OP_STATE_PULL ? step : 0;
        tensor->op.rates.weight = 1.0f;
    }
    atomic_store_explicit(&tensor->delivery.busy, true, memory_order_relaxed);
    tensor->delivery.started_serial++;
    tensor->times.started_ns = 0;
    atomic_store(&tensor->times.wait_from_ns, 0);
    tensor->delivery.request = request;
    atomic_fetch_add(&session->step.open_deliveries, 1);
    if (tensor->mode == WEFT_MODE_ALL_REDUCE) atomic_fetch_add(&session->step.open_reductions, 1);
    const bool must_block = request->device.must_block; /* the engine may complete the request at once */
    client_request_post(request, tensor->mode == WEFT_MODE_SERVER ? client_server_mode_start
                                                                  : client_allreduce_mode_start);
    if (!must_block) return WEFT_IN_PROGRESS;
    const enum weft_status ended = weft_wait(user_request, 0);
    return ended < 0 ? ended : WEFT_IN_PROGRESS;
}

enum weft_status client_tensor_start_init(struct weft_tensor *tensor, const void *weights,
                                          struct weft_request *request)
{
    WEFT_TRY(check_call(tensor, weights, "init"));
    tensor->op.in = weights;
    return start(tensor, CLIENT_OP_INIT, request);
}

enum weft_status client_tensor_start_pull(struct weft_tensor *tensor, void *weights, const char *call,
                                          struct weft_request *request)
{
    WEFT_TRY(check_call(tensor, weights, call));
    tensor->op.out = weights;
    return start(tensor, CLIENT_OP_PULL, request);
}

enum weft_status client_tensor_start_state(struct weft_tensor *tensor, uint32_t part, const float *in,
                                           float *out, struct weft_request *request)
{
    WEFT_TRY(check_call(tensor, in ? (const void *)in : out, in ? "state_load" : "state_save"));
    tensor->op.in = in;
    tensor->op.out = out;
    tensor->op.round = part;
    return start(tensor, in ? CLIENT_OP_STATE_INIT : CLIENT_OP_STATE_PULL, request);
}

enum weft_status client_tensor_start_apply(struct weft_tensor *tensor, float factor, float *out)
{
    WEFT_TRY(check_call(tensor, out, "update"));
    tensor->op.out = out;
    tensor->op.round = isnan(factor);
    tensor->op.rates.weight = isnan(factor) ? 0 : factor;
    return start(tensor, CLIENT_OP_APPLY, &tensor->clip.request);
}

static enum weft_status check_overlap(struct weft_tensor *tensor, const void *grad, const void *out)
{
    const uintptr_t in = (uintptr_t)grad, to = (uintptr_t)out;
    if (in == to && client_tensor_has_local_optimizer(tensor))
        return client_error(
            tensor->session, WEFT_ERR_INVALID,
            "push_pull of tensor '%s': grad and out are one buffer, and out holds the weights "
            "that the optimizer updates; give separate buffers",
            tensor->name);
    if (in == to || (in - to >= tensor->bytes && to - in >= tensor->bytes)) return WEFT_OK;
    return client_error(tensor->session, WEFT_ERR_INVALID,
                        "push_pull of tensor '%s': grad and out, %lld bytes behind it, overlap; give "
                        "separate buffers, or the same one",
                        tensor->name, (long long)(to - in));
}

/* Starts the push_pull whose buffers are op.in and op.out. */
static enum weft_status contribute(struct weft_tensor *tensor, struct weft_request *request)
{
    struct client_tensor_op *op = &tensor->op;
    WEFT_TRY(client_state_backup(tensor));
    if (tensor->codec_choice.candidates.count > 0) client_codec_tuner_tensor_ready(tensor);
    if ((contribution_factor(tensor) != 1.0f && !tensor->codec) || tensor->arrays.carry) {
        /* `out` is free until the result arrives, unless it holds the weights that this rank updates */
        op->gradient.scaled = client_tensor_has_local_optimizer(tensor) ? tensor->arrays.scratch : op->out;
    }
    return start(tensor, CLIENT_OP_PUSH_PULL, request);
}

enum weft_status weft_push_pull(struct weft_tensor *tensor, const void *grad, void *out,
                                struct weft_request *request)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("push_pull", "tensor");
    WEFT_TRY(check_call(tensor, grad && out ? grad : NULL, "push_pull"));
    WEFT_TRY(check_contribution(tensor, "push_pull"));
    WEFT_TRY(check_overlap(tensor, grad, out));
    tensor->op.in = grad;
    tensor->op.out = out;
    const enum weft_status status = contribute(tensor, request);
    if (status >= 0) tensor->buffers.weights = out;
    return status;
}

/* Contributes zeros. With an optimiser the result goes to the last weights buffer. */
enum weft_status weft_push_none(struct weft_tensor *tensor)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("push_none", "tensor");
    struct weft_session *session = tensor->session;
    const bool updates = tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE;
    const enum weft_memory_kind memory = tensor->buffers.memory;
    WEFT_TRY(check_call(tensor, tensor, "push_none"));
    WEFT_TRY(check_contribution(tensor, "push_none"));
    if (updates && weft_memory_is_device(memory))
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "push_none of tensor '%s', which has an optimiser and lies on a device; "
                            "push_pull a gradient of zeros",
                            tensor->name);
    if (!tensor->buffers.none.zeros)
        tensor->buffers.none.zeros = weft_alloc_zero(session->env, tensor->bytes);
    if (!tensor->buffers.none.zeros)
        return client_error(session, WEFT_ERR_NO_MEMORY,
                            "push_none of tensor '%s': no memory for %zu bytes of zeros", tensor->name,
                            tensor->bytes);
    if (!updates) memset(tensor->buffers.none.zeros, 0, tensor->bytes); /* it holds the last result */
    tensor->op.in = tensor->buffers.none.zeros;
    tensor->op.out = updates ? tensor->buffers.weights : tensor->buffers.none.zeros;
    tensor->buffers.memory = WEFT_MEMORY_HOST;
    const enum weft_status status = contribute(tensor, &tensor->buffers.none.request);
    tensor->buffers.memory = memory;
    return status == WEFT_IN_PROGRESS ? WEFT_OK : status;
}

/* push and pull transfer whole dense chunks. Codec rounds and all-reduce have no halves, and with a codec
 * choice the shards hold no weights. */
static enum weft_status check_half_call(struct weft_tensor *tensor, const char *call)
{
    if (tensor->mode == WEFT_MODE_SERVER && !tensor->codec && !client_tensor_has_codec_choice(tensor))
        return WEFT_OK;
    return client_error(tensor->session, WEFT_ERR_UNSUPPORTED,
                        "%s of tensor '%s': only dense tensors in server mode have it; use push_pull", call,
                        tensor->name);
}

enum weft_status weft_push(struct weft_tensor *tensor, const void *grad, struct weft_request *request)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("push", "tensor");
    WEFT_TRY(check_call(tensor, grad, "push"));
    WEFT_TRY(check_half_call(tensor, "push"));
    WEFT_TRY(check_contribution(tensor, "push"));
    tensor->op.in = grad;
    if (contribution_factor(tensor) != 1.0f || tensor->arrays.carry) {
        WEFT_TRY(client_tensor_alloc_scratch(tensor));
        tensor->op.gradient.scaled = tensor->arrays.scratch;
    }
    return start(tensor, CLIENT_OP_PUSH, request);
}

enum weft_status weft_pull(struct weft_tensor *tensor, void *out, struct weft_request *request)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("pull", "tensor");
    WEFT_TRY(check_call(tensor, out, "pull"));
    WEFT_TRY(check_half_call(tensor, "pull"));
    if (tensor->progress.last_step == 0 && !tensor->progress.initialised)
        return client_error(tensor->session, WEFT_ERR_STATE,
                            "pull of tensor '%s', which has neither weights nor a closed step yet",
                            tensor->name);
    tensor->op.out = out;
    return start(tensor, CLIENT_OP_PULL, request);
}
