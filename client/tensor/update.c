/* update.c - arithmetic on whole tensors, one slice at a time, so that the engine handles other events in
 * between.
 *
 * Shards apply the same rules to their chunks, so the modes give equal bits:
 *     contribution = weight * gradient, rounded once; unchanged if the weight is 1, zero if it is 0;
 *                    plus the carry of an earlier codec, once
 *     grad_scale   = (float)(1 / (double)sum of weights)
 *     loss scale S   a power of two: contribution / S, or grad_scale / S after a dense all-reduce
 *     update       = weft_optimizer_step(weights, states, sum, grad_scale, step, ...) */
#include <string.h>

#include "client/call/input_backup.h"
#include "client/engine/work.h"
#include "client/session/control.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"

static uint64_t slice_end(uint64_t at, uint64_t end)
{
    return end - at > CLIENT_SLICE_ELEMS ? at + CLIENT_SLICE_ELEMS : end;
}

float client_mean_unscale(const struct weft_tensor *tensor)
{
    const bool of_mean = tensor->mode == WEFT_MODE_ALL_REDUCE && !tensor->codec;
    return of_mean ? 1.0f / tensor->session->step.loss_scale : 1.0f;
}

bool client_scale_slice(struct weft_tensor *tensor, uint64_t end)
{
    struct client_tensor_op *op = &tensor->op;
    uint64_t stop = slice_end(op->gradient.work_at, end);
    if (op->rates.factor == 0) /* zeros, even for NaN and infinity */
        memset(op->gradient.scaled + op->gradient.work_at, 0, (stop - op->gradient.work_at) * sizeof(float));
    else
        weft_kernels()->scale_f32(op->gradient.scaled + op->gradient.work_at,
                                  (const float *)op->in + op->gradient.work_at, op->rates.factor,
                                  stop - op->gradient.work_at);
    if (tensor->arrays.carry) /* it is unscaled */
        weft_kernels()->scale_add_f32(
            op->gradient.scaled + op->gradient.work_at, tensor->arrays.carry + op->gradient.work_at,
            1.0f / client_mean_unscale(tensor), op->gradient.scaled + op->gradient.work_at,
            stop - op->gradient.work_at);
    op->gradient.work_at = stop;
    return stop == end;
}

bool client_update_slice(struct weft_tensor *tensor, const float *grad, float scale)
{
    struct client_tensor_op *op = &tensor->op;
    bool whole = weft_optimizer_is_whole(&tensor->options.optimizer);
    uint64_t at = op->gradient.work_at, stop = whole ? tensor->elems : slice_end(at, tensor->elems);
    float *out = op->out;
    if (tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE) {
        float *states[WEFT_OPTIMIZER_STATES_MAX];
        for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++)
            states[s] = tensor->arrays.states[s] ? tensor->arrays.states[s] + at : NULL;
        for (int i = 0; i < 1 + WEFT_OPTIMIZER_STATES_MAX; i++)
            if (tensor->elastic.backup.arrays[i])
                client_backup_fill(tensor->elastic.backup.arrays[i], stop * sizeof(float));
        struct weft_optimizer rule = tensor->options.optimizer;
        if (op->rates.has_decay) rule.weight_decay = op->rates.weight_decay;
        weft_optimizer_step(&rule, op->rates.lr, op->step, out + at, states, grad + at, scale, stop - at);
    } else {
        weft_kernels()->scale_f32(out + at, grad + at, scale, stop - at);
    }
    op->gradient.work_at = stop;
    return stop == tensor->elems;
}

static void send_hash(struct weft_command *command)
{
    struct weft_tensor *tensor = weft_container_of(command, struct weft_tensor, hash.command);
    for (uint32_t i = 0; i < tensor->hash.endpoint_count; i++)
        client_control_send_hash(tensor->session, tensor->id, tensor->hash.step,
                                 tensor->hash.endpoints[i].endpoint, tensor->hash.endpoints[i].hash);
    struct weft_loop *loop = tensor->session->loop;
    atomic_store(&tensor->hash.is_posted, false); /* weft_tensor_free may free it now */
    weft_loop_notify(loop);
}

bool client_hash_due(const struct weft_tensor *tensor)
{
    uint64_t every = tensor->session->settings.hash_every;
    return tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE && every != 0 &&
           tensor->op.step % every == 0;
}

void client_hash_weights(struct weft_tensor *tensor)
{
    const struct client_tensor_op *op = &tensor->op;
    /* the last hash is not sent yet: skip this one */
    if (atomic_exchange(&tensor->hash.is_posted, true)) return;
    for (uint32_t i = 0; i < tensor->hash.endpoint_count; i++) tensor->hash.endpoints[i].hash = 0;
    for (uint32_t i = 0; i < tensor->chunk_table.count; i++) {
        const struct client_chunk *chunk = &tensor->chunk_table.chunks[i];
        tensor->hash.endpoints[chunk->hash_index].hash +=
            weft_chunk_hash(i, (const float *)op->out + chunk->offset, chunk->count * sizeof(float));
    }
    tensor->hash.step = op->step;
    tensor->hash.is_made = true;
}

void client_hash_step_ended(struct weft_tensor *tensor, bool good)
{
    if (!tensor->hash.is_made) return;
    tensor->hash.is_made = false;
    tensor->hash.command.fn = send_hash;
    if (good) weft_net_post(tensor->session->control.net, &tensor->hash.command);
    else atomic_store(&tensor->hash.is_posted, false);
}
