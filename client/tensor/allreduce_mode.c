/* allreduce_mode.c - a tensor in all-reduce mode: all ranks sum the gradients, then each makes the same
 * update, so that weights stay equal and are never sent.
 *
 *     dense   (scale) -> all_reduce by the canonical tree T -> wait for the records -> (check) -> update
 *     codec   wait for the step's records -> weft_coll_codec_all_reduce -> update
 *
 * Tensors of one leader (order/codec_batch.c, call_group_leader.c) share one operation. It starts when all
 * inputs are ready and the group of calls is closed, and completes for all together.
 *
 * The records (step.c) hold the weights of all ranks; their sum gives grad_scale. A codec needs it before it
 * starts, because decoding applies the scale. Group operations are posted in call order on every rank. An
 * operation that is not ready holds back the later ones (group.h); the records were posted first. */
#include "client/tensor/allreduce_mode.h"

#include <stdio.h>
#include <string.h>

#include "client/call/device_staging.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/engine/work.h"
#include "client/session/session.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/order/push_order.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* Buffer of a dense tensor's sum. */
static void *sum_buffer(const struct weft_tensor *tensor)
{
    if (tensor->op.sum) return tensor->op.sum; /* the update is on the device */
    return tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE ? tensor->arrays.scratch : tensor->op.out;
}

static const float *gradient_of(const struct client_tensor_op *op)
{
    return op->gradient.scaled ? op->gradient.scaled : op->in;
}

const void *client_allreduce_mode_input(const struct weft_tensor *tensor) { return gradient_of(&tensor->op); }

enum weft_op client_allreduce_mode_op(const struct weft_tensor *tensor)
{
    return tensor->dtype == WEFT_F32 || tensor->options.optimizer.is_sum ? WEFT_SUM : WEFT_AVG;
}

/* Turns the sum into the mean, or into the result of optimizer "sum". Valid once the records have arrived. */
static float mean_scale(const struct weft_tensor *tensor)
{
    const float scale = tensor->options.optimizer.is_sum ? 1.0f : tensor->session->step.grad_scale;
    return scale * client_mean_unscale(tensor);
}

/* A codec has applied the scale to its sum. */
static float sum_scale(const struct weft_tensor *tensor)
{
    return tensor->codec ? 1.0f : tensor->op.rates.grad_scale;
}

static bool run_update(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    struct client_tensor_op *op = &tensor->op;
    if (!client_update_slice(tensor, sum_buffer(tensor), sum_scale(tensor))) return false;
    client_request_complete(op->request, WEFT_OK, NULL);
    return true;
}

static bool clips(const struct weft_tensor *tensor)
{
    return tensor->session->step.clip_norm > 0 && tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE;
}

/* With clip_norm: weft_step_end makes the update (elastic/clip.c). */
static bool run_measure(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    struct client_tensor_op *op = &tensor->op;
    const float *sum = tensor->arrays.scratch + op->gradient.work_at;
    const uint64_t left = tensor->elems - op->gradient.work_at,
                   count = left > CLIENT_SLICE_ELEMS ? CLIENT_SLICE_ELEMS : left;
    tensor->clip.squares += weft_kernels()->dot_f32(sum, sum, count);
    op->gradient.work_at += count;
    if (op->gradient.work_at < tensor->elems) return false;
    client_request_complete(op->request, WEFT_OK, NULL);
    return true;
}

/* The result is not finite, or no pass over the data has checked it. */
static bool may_be_nonfinite(const struct weft_tensor *tensor)
{
    return tensor->op.checks.sum_finite != WEFT_COLL_FINITE;
}

static void update(struct weft_tensor *tensor)
{
    struct client_tensor_op *op = &tensor->op;
    bool update_is_done = tensor->dtype != WEFT_F32 ||
                          (tensor->codec && tensor->options.optimizer.kind == WEFT_OPTIMIZER_NONE) ||
                          op->sum; /* the completion queues the update */
    if (update_is_done) {
        client_request_complete(op->request, WEFT_OK, NULL);
        return;
    }
    tensor->clip = (struct client_clip){.is_pending = clips(tensor),
                                        .lr = op->rates.lr,
                                        .scale = sum_scale(tensor),
                                        .has_decay = op->rates.has_decay,
                                        .weight_decay = op->rates.weight_decay,
                                        .out = op->out};
    op->gradient.work_at = 0;
    tensor->execution.work.run = clips(tensor) ? run_measure : run_update;
    client_engine_queue_work(tensor->session, &tensor->execution.work);
}

static bool run_check(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    struct client_tensor_op *op = &tensor->op;
    const uint64_t left = tensor->elems - op->gradient.work_at,
                   count = left > CLIENT_SLICE_ELEMS ? CLIENT_SLICE_ELEMS : left;
    const bool finite = client_skip_is_finite(tensor, sum_buffer(tensor), op->gradient.work_at, count);
    op->gradient.work_at += count;
    if (finite && op->gradient.work_at < tensor->elems) return false;
    if (finite) update(tensor);
    else client_skip_tensor(tensor);
    return true;
}

/* The mean is not finite, or unknown: is it because of this rank's gradient? */
static bool run_warn(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    struct client_tensor_op *op = &tensor->op;
    const uint64_t left = tensor->elems - op->gradient.work_at,
                   count = left > CLIENT_SLICE_ELEMS ? CLIENT_SLICE_ELEMS : left;
    client_skip_warn(tensor, op->gradient.work_at, count);
    op->gradient.work_at += count;
    if (!tensor->progress.warned && op->gradient.work_at < tensor->elems) return false;
    update(tensor);
    return true;
}

/* Call when the sum and the records have arrived. Codecs check their sum themselves. */
static void check_or_update(struct weft_tensor *tensor)
{
    const bool skips = !tensor->codec && client_tensor_can_skip_step(tensor);
    if (tensor->session->step.skips || (skips && tensor->op.checks.sum_finite == WEFT_COLL_NOT_FINITE)) {
        client_skip_tensor(tensor);
        return;
    }
    if (!may_be_nonfinite(tensor) || !(skips || tensor->op.checks.warns_late)) {
        update(tensor);
        return;
    }
    tensor->op.gradient.work_at = 0;
    tensor->execution.work.run = skips ? run_check : run_warn;
    client_engine_queue_work(tensor->session, &tensor->execution.work);
}

/* The tensor's sum has arrived, or the session has failed. */
static void reduce_completed(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    struct client_engine *engine = session->engine;
    tensor->op.in_transport--;
    tensor->op.sum_has_arrived = true;
    if (engine->failed) {
        client_request_complete(tensor->op.request, engine->failed, engine->failed_text);
    } else if (session->step.records.agree) {
        tensor->op.rates.grad_scale = mean_scale(tensor);
        check_or_update(tensor);
    } else {
        weft_list_append(&engine->session->tensors->record_waiters, &tensor->execution.record_link);
    }
}

/* Updates the weights directly from the sum, which needs no check. */
static void update_from(struct weft_tensor *tensor, const float *sum)
{
    struct client_tensor_op *op = &tensor->op;
    op->in_transport--;
    op->sum_has_arrived = true;
    op->rates.grad_scale = mean_scale(tensor);
    op->gradient.work_at = 0;
    while (!client_update_slice(tensor, sum, op->rates.grad_scale)) {}
    client_request_complete(op->request, WEFT_OK, NULL);
}

void client_allreduce_mode_reduced(struct weft_tensor *tensor, const void *sum)
{
    const struct weft_session *session = tensor->session;
    const bool failed = session->engine->failed != WEFT_OK;
    if (!failed && session->step.records.agree && tensor->dtype == WEFT_F32 && !session->step.skips &&
        !clips(tensor) && !tensor->op.sum && !client_tensor_can_skip_step(tensor)) {
        update_from(tensor, sum);
        return;
    }
    if (!failed) memcpy(sum_buffer(tensor), sum, tensor->bytes);
    reduce_completed(tensor);
}

static void on_reduced(struct client_group_op *group_op, enum weft_status status, const char *text)
{
    struct weft_tensor *tensor = weft_container_of(group_op, struct weft_tensor, execution.group_op);
    const bool failed = tensor->session->engine->failed;
    for (struct weft_tensor *each = tensor; each && !failed; each = each->op.carrier.follower)
        client_codec_tuner_exchange_completed(each);
    if (status == WEFT_ERR_INVALID && tensor->codec && !failed) {
        /* a gradient is not finite; all ranks get this status */
        for (struct weft_tensor *each = tensor, *next; each; each = next) {
            next = each->op.carrier.follower;
            each->op.in_transport--;
            client_skip_tensor(each);
        }
        return;
    }
    if (status < 0 && !failed) {
        char name[192];
        char sentence[480];
        if (status == WEFT_ERR_MISMATCH && text) { /* the sentence names the tensors already */
            client_engine_group_op_failed(group_op, status, text);
            return;
        }
        client_tensor_op_name(tensor, name, sizeof name);
        snprintf(sentence, sizeof sentence, "%s: %.280s", name, text ? text : weft_reason_text(status));
        client_engine_group_op_failed(group_op, status, sentence);
        return;
    }
    for (struct weft_tensor *each = tensor, *next; each; each = next) {
        next = each->op.carrier.follower; /* a completed operation belongs to the caller */
        reduce_completed(each);
    }
}

/* One operation for the leader and its followers. */
static enum weft_status post_compressed(struct weft_tensor *tensor, struct weft_error *error)
{
    struct weft_coll_codec_member members[WEFT_CODEC_BATCH_MAX];
    uint32_t count = 0;
    for (const struct weft_tensor *each = tensor; each; each = each->op.carrier.follower) {
        WEFT_ASSERT(count < WEFT_CODEC_BATCH_MAX);
        members[count++] = (struct weft_coll_codec_member){
            .codec = each->codec,
            .subject = client_tensor_subject(each),
            .urgency = client_tensor_urgency(each),
            .grad = gradient_of(&each->op),
            .grad_scale = each->op.gradient.scaled ? 1.0f : each->op.rates.factor,
            .out = sum_buffer(each)};
    }
    const struct weft_coll_codec_args args = {
        .members = members,
        .count = count,
        .resolved = &tensor->options.codec_spec,
        .shape = &tensor->options.shape,
        .result_scale = tensor->op.rates.grad_scale,
        .times = &tensor->session->engine->counters.codec,
    };
    return weft_coll_codec_all_reduce(tensor->session->engine->group, &args, client_engine_group_op_done,
                                      &tensor->execution.group_op, error);
}

/* Returns the variable in which the kernel records whether the sum is finite; NULL: no check needs it. */
static enum weft_coll_finite *finite_out(struct weft_tensor *tensor)
{
    const bool is_checked = client_tensor_can_skip_step(tensor) || tensor->op.checks.warns_late;
    return tensor->dtype == WEFT_F32 && is_checked ? &tensor->op.checks.sum_finite : NULL;
}

/* The sum overwrites the gradient: check it before, to name the rank later. */
void client_allreduce_mode_check_input(struct weft_tensor *tensor)
{
    tensor->op.checks.grad_is_nonfinite = tensor->options.skip_nonfinite &&
                                   gradient_of(&tensor->op) == sum_buffer(tensor) &&
                                   !weft_memory_is_device(tensor->buffers.memory) &&
                                   !client_skip_is_finite(tensor, gradient_of(&tensor->op), 0, tensor->elems);
}

static enum weft_status post_reduce(struct client_group_op *group_op, struct weft_error *error)
{
    struct weft_tensor *tensor = weft_container_of(group_op, struct weft_tensor, execution.group_op);
    struct client_tensor_op *op = &tensor->op;
    enum weft_status status;
    if (tensor->codec) {
        status = post_compressed(tensor, error);
    } else {
        client_allreduce_mode_check_input(tensor);
        struct weft_coll_args args = {
            .kind = WEFT_COLL_ALL_REDUCE,
            .in = gradient_of(op),
            .out = sum_buffer(tensor),
            .count = tensor->elems,
            .dtype = tensor->dtype,
            .op = client_allreduce_mode_op(tensor),
            .subject = client_tensor_subject(tensor),
            .urgency = client_tensor_urgency(tensor),
            .reproducible = true,
            .finite_out = finite_out(tensor),
        };
        status = weft_coll_post(tensor->session->engine->group, &args, client_engine_group_op_done, group_op,
                                &group_op->coll, error);
    }
    const uint64_t now_ns = weft_now_ns(tensor->session->env);
    for (struct weft_tensor *each = tensor; each && status >= 0; each = each->op.carrier.follower) {
        client_tensor_transfer_starts(each, now_ns);
        client_codec_tuner_exchange_posted(each);
    }
    return status;
}

/* Returns whether all inputs of the operation are ready. */
static bool can_start(const struct weft_tensor *tensor)
{
    if (tensor->op.carrier.leader && !tensor->op.carrier.group_is_closed) return false;
    for (const struct weft_tensor *each = tensor; each; each = each->op.carrier.follower) {
        if (!each->op.gradient.input_is_ready ||
            (each->op.gradient.scaled && !each->op.gradient.scaled_is_ready))
            return false;
        if (each->codec && !each->session->step.records.agree) return false;
    }
    return true;
}

/* Call when an input of the tensor has become ready. */
static void update_readiness(struct weft_tensor *tensor)
{
    struct weft_tensor *leader = tensor->op.carrier.leader ? tensor->op.carrier.leader : tensor;
    leader->execution.group_op.ready = can_start(leader);
    if (leader->execution.group_op.ready) client_push_order_ready(leader);
}

void client_allreduce_mode_hand_over(struct weft_tensor *tensor)
{
    for (struct weft_tensor *each = tensor; each; each = each->op.carrier.follower) each->op.in_transport++;
}

void client_allreduce_mode_group_closed(struct weft_command *command)
{
    struct weft_tensor *first = weft_container_of(command, struct weft_tensor, order.call_group.command);
    for (struct weft_tensor *tensor = first; tensor; tensor = tensor->order.call_group.next) {
        /* it has failed meanwhile */
        if (tensor->op.kind == CLIENT_OP_NONE || tensor->op.carrier.leader != tensor) continue;
        tensor->op.carrier.group_is_closed = true;
        update_readiness(tensor);
    }
    client_engine_pump_group(first->session);
}

void client_allreduce_mode_follow(struct weft_tensor *leader, struct weft_tensor *tensor)
{
    struct client_op_carrier *carrier = &leader->op.carrier;
    struct weft_tensor *last = carrier->last_follower ? carrier->last_follower : leader;
    last->op.carrier.follower = tensor;
    carrier->last_follower = tensor;
    tensor->op.carrier.leader = leader;
}

static bool run_scale(struct client_work *work)
{
    struct weft_tensor *tensor = weft_container_of(work, struct weft_tensor, execution.work);
    if (!client_scale_slice(tensor, tensor->elems)) return false;
    tensor->op.gradient.scaled_is_ready = true;
    update_readiness(tensor);
    client_engine_pump_group(tensor->session);
    return true;
}

/* The gradient is readable. */
static void on_input_ready(struct client_request *request)
{
    struct weft_tensor *tensor = request->tensor;
    tensor->op.gradient.input_is_ready = true;
    if (tensor->op.gradient.scaled) {
        tensor->execution.work.run = run_scale;
        client_engine_queue_work(tensor->session, &tensor->execution.work);
        return;
    }
    update_readiness(tensor);
    client_engine_pump_group(tensor->session);
}

void client_allreduce_mode_start(struct weft_command *command)
{
    struct client_request *request = weft_container_of(command, struct client_request, command);
    struct weft_tensor *tensor = request->tensor;
    struct weft_session *session = tensor->session;
    struct client_tensor_op *op = &tensor->op;
    if (!client_request_begin(request)) return;
    tensor->execution.group_op.post = post_reduce;
    tensor->execution.group_op.done = on_reduced;
    tensor->execution.group_op.ready = false;
    op->checks.sum_finite = WEFT_COLL_FINITE_UNKNOWN;
    op->rates.grad_scale = mean_scale(tensor); /* valid if the records have arrived */
    if (tensor->codec && !session->step.records.agree)
        weft_list_append(&session->tensors->record_waiters, &tensor->execution.record_link);
    if (op->carrier.leader && op->carrier.leader != tensor)
        client_allreduce_mode_follow(op->carrier.leader, tensor);
    else client_push_order_add(tensor);
    if (request->device.stage) client_stage_when_ready(request, on_input_ready);
    else on_input_ready(request);
}

void client_allreduce_mode_records_agree(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    while (!weft_list_empty(&engine->session->tensors->record_waiters)) {
        struct weft_tensor *tensor = weft_list_first(&engine->session->tensors->record_waiters,
                                                     struct weft_tensor, execution.record_link);
        weft_list_remove(&tensor->execution.record_link);
        tensor->op.rates.grad_scale = mean_scale(tensor);
        if (!tensor->op.sum_has_arrived)
            update_readiness(tensor); /* a codec that waits to start */
        else
            check_or_update(tensor);
    }
    client_engine_pump_group(session);
}

void client_allreduce_mode_failed(struct weft_tensor *tensor)
{
    struct client_tensor_op *op = &tensor->op;
    struct client_engine *engine = tensor->session->engine;
    client_engine_cancel_work(&tensor->execution.work);
    weft_list_remove(&tensor->execution.record_link);
    if (tensor->order.batch) weft_list_remove(&tensor->order.push_link);
    tensor->order.batch = NULL;
    /* While the group holds it, on_reduced completes it; fail_queued has completed queued ones. */
    if (tensor->execution.has_begun && op->in_transport == 0)
        client_request_complete(op->request, engine->failed, engine->failed_text);
}
