/* skip_nonfinite.c - skips a step on all ranks if a gradient is NaN or infinite.
 *
 * In all-reduce mode all ranks have the same sum, bit for bit, and a sum with a contribution that is not
 * finite is not finite. So each rank decides alone, and a good step exchanges nothing for it. In server mode
 * the shard returns WEFT_ERR_SKIPPED to every rank; a rank without a usable gradient (weft_step_options.skip)
 * contributes to each tensor that it has none. A skipped step gathers one word per rank, to name the
 * rank with the gradient.
 *
 * The affected tensor is not updated. Other tensors may be updated before the decision. If another tensor can
 * skip the step, weights and arrays are copied before the update (state_broadcast.c), and weft_step_end
 * restores them. A shard restores its copy when the next request carries the incremented number of skipped
 * steps (server/shard/shard_skip.c); in an elastic job only tensors with a codec have one. Codecs change
 * residuals only at a commit. weft_step_end decrements the step's number, so optimisers do not count it. */
#include "client/tensor/skip_nonfinite.h"

#include <stdio.h>

#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

bool client_skip_has_nonfinite(const struct weft_session *session)
{
    return atomic_load(&session->tensors->skip.found) || session->step.skips;
}

bool client_skip_needs_backup(const struct weft_tensor *tensor)
{
    const bool skips = client_tensor_can_skip_step(tensor);
    if (client_tensor_has_clock(tensor)) return false; /* its pushes stay */
    if (tensor->session->tensors->skip.tensors > skips) return true;
    /* another chunk of the tensor */
    return skips && tensor->mode == WEFT_MODE_SERVER && tensor->chunk_table.count > 1;
}

bool client_skip_is_finite(const struct weft_tensor *tensor, const void *values, uint64_t at, uint64_t count)
{
    switch (tensor->dtype) {
    case WEFT_F32: return weft_kernels()->finite_f32((const float *)values + at, count);
    case WEFT_F16: return weft_halves_finite((const uint16_t *)values + at, count, WEFT_F16_EXPONENT);
    case WEFT_BF16: return weft_halves_finite((const uint16_t *)values + at, count, WEFT_BF16_EXPONENT);
    default: return true; /* integers */
    }
}

bool client_skip_should_warn(const struct weft_tensor *tensor)
{
    return !tensor->progress.warned && !client_tensor_can_skip_step(tensor) &&
           !weft_memory_is_device(tensor->buffers.memory) && tensor->op.in != tensor->buffers.none.zeros;
}

void client_skip_warn(struct weft_tensor *tensor, uint64_t at, uint64_t count)
{
    const struct weft_session *session = tensor->session;
    if (tensor->progress.warned || client_skip_is_finite(tensor, tensor->op.in, at, count)) return;
    tensor->progress.warned = true;
    weft_log(session->env, WEFT_LOG_WARN, "client",
             "rank %u: step %llu: the gradient of tensor '%s' is not finite (NaN or infinity) and enters "
             "the mean of all ranks; "
             "skip_nonfinite of struct weft_tensor_options skips such steps",
             session->rank, (unsigned long long)tensor->op.step, tensor->name);
}

static void store_lower(_Atomic uint64_t *place, uint64_t value)
{
    const uint64_t before = atomic_load(place);
    if (before == 0 || value < before) atomic_store(place, value);
}

void client_skip_record_nonfinite(struct weft_tensor *tensor, bool grad_is_nonfinite)
{
    struct client_skip *skip = &tensor->session->tensors->skip;
    tensor->progress.skipped_step = tensor->op.step;
    store_lower(&skip->first, (uint64_t)tensor->id + 1);
    if (grad_is_nonfinite) store_lower(&skip->grad_is_nonfinite, (uint64_t)tensor->id + 1);
    atomic_store(&skip->found, true);
}

/* Returns whether this rank's gradient, if still readable, makes the mean not finite. Codecs also refuse
 * magnitudes of 2^120 and above. */
static bool has_nonfinite_gradient(const struct weft_tensor *tensor)
{
    const struct client_tensor_op *op = &tensor->op;
    if (op->checks.grad_is_nonfinite) return true;
    if (weft_memory_is_device(tensor->buffers.memory)) return false;
    if (tensor->codec)
        return weft_kernels()->max_abs_bits_f32(op->gradient.scaled ? op->gradient.scaled : op->in,
                                                tensor->elems) >= WEFT_RESIDUAL_LIMIT_BITS;
    /* a weighted copy may be overwritten */
    return op->in != op->out && !client_skip_is_finite(tensor, op->in, 0, tensor->elems);
}

static void describe_request(struct weft_session *session, uint32_t rank, char *out, size_t out_bytes)
{
    char name[128];
    client_rank_name(session, rank, name, sizeof name);
    snprintf(out, out_bytes, "%s has no usable gradient (weft_step_options.skip)", name);
}

static void describe_weights(char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "the sample weights of all ranks are 0");
}

static void describe_records(struct weft_session *session, char *out, size_t out_bytes)
{
    const uint32_t rank = session->step.skip_rank;
    if (rank == CLIENT_SKIP_RANK_NONE) describe_weights(out, out_bytes);
    else describe_request(session, rank, out, out_bytes);
}

/* Every rank has the `skip` and the weights of all ranks in the step's records: all ranks skip the step, or
 * none does. */
static void skip_tensor_of_step(struct weft_tensor *tensor)
{
    char why[320], text[400];
    describe_records(tensor->session, why, sizeof why);
    snprintf(text, sizeof text, "step %llu: %s; weft_step_end skips the step on all ranks",
             (unsigned long long)tensor->op.step, why);
    tensor->progress.skipped_step = tensor->op.step;
    client_request_complete(tensor->op.request, WEFT_ERR_SKIPPED, text);
}

void client_skip_tensor(struct weft_tensor *tensor)
{
    char name[192], text[400];
    if (tensor->session->step.skips) {
        skip_tensor_of_step(tensor);
        return;
    }
    client_tensor_op_name(tensor, name, sizeof name);
    snprintf(
        text, sizeof text, "%s: %s; weft_step_end skips the step on all ranks", name,
        client_step_skips_here(&tensor->session->step) ? "this rank has no usable gradient"
        : tensor->mode == WEFT_MODE_SERVER
            ? "the mean gradient is not finite (NaN or infinity), or a rank has none, or all weights are 0"
        : tensor->op.carrier.leader
            ? "its mean gradient, or that of a tensor in the same operation, is not finite (NaN or infinity)"
            : "the mean gradient is not finite (NaN or infinity)");
    client_skip_record_nonfinite(tensor, has_nonfinite_gradient(tensor));
    client_request_complete(tensor->op.request, WEFT_ERR_SKIPPED, text);
}

void client_skip_begin(struct weft_session *session)
{
    struct client_skip *skip = &session->tensors->skip;
    atomic_store(&skip->found, false);
    atomic_store(&skip->first, 0);
    atomic_store(&skip->grad_is_nonfinite, 0);
}

enum weft_status client_skip_gather(struct weft_session *session)
{
    struct client_skip *skip = &session->tensors->skip;
    const uint32_t ranks = session->ranks;
    /* The records name the rank. Where there are shards, no rank repeats the step before the pushes of all
     * ranks are answered. */
    if (session->step.skips && session->tensors->reduce_count == session->tensors->live_count) return WEFT_OK;
    if (skip->all_capacity < ranks) {
        weft_free_bytes(session->env, skip->all);
        skip->all = weft_alloc_array(session->env, ranks, sizeof *skip->all);
        skip->all_capacity = skip->all ? ranks : 0;
    }
    if (!skip->all)
        return client_error(session, WEFT_ERR_NO_MEMORY, "no memory for the finiteness checks of %u ranks",
                            ranks);
    skip->mine = atomic_load(&skip->grad_is_nonfinite);
    if (client_step_skips_here(&session->step)) skip->mine = CLIENT_SKIP_REQUESTED;
    else if (skip->mine == 0 && session->step.weight == 0) skip->mine = CLIENT_SKIP_WEIGHTLESS;
    enum weft_status status = weft_all_gather(session, &skip->mine, skip->all, 1, WEFT_I64, &skip->request);
    if (status == WEFT_IN_PROGRESS) status = weft_wait(&skip->request, 0);
    return status;
}

static const struct weft_tensor *tensor_of(const struct weft_session *session, uint64_t id)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->id == id) return tensor;
    }
    return NULL;
}

/* Finds a tensor that this step has updated without a copy of the state before. */
static const struct weft_tensor *find_final_update(const struct weft_session *session)
{
    const uint64_t step = session->step.number;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->progress.last_step != step) continue;
        if (tensor->mode == WEFT_MODE_SERVER && session->membership.is_elastic &&
            tensor->progress.skipped_step != step && !client_tensor_can_skip_step(tensor))
            return tensor;
        if (client_tensor_has_local_optimizer(tensor) && tensor->progress.skipped_step != step &&
            tensor->elastic.backup.step != step)
            return tensor;
    }
    return NULL;
}

/* "the gradient of tensor 'w' is not finite (NaN or infinity) on rank 0 (hosta, pid 40) and 2 more ranks" */
static void describe_cause(struct weft_session *session, char *out, size_t out_bytes)
{
    struct client_skip *skip = &session->tensors->skip;
    char name[128];
    uint32_t at = 0, more = 0, weightless = 0;
    if (session->step.skips) {
        describe_records(session, out, out_bytes);
        return;
    }
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        if (skip->all[rank] == CLIENT_SKIP_REQUESTED) {
            describe_request(session, rank, out, out_bytes);
            return;
        }
        if (skip->all[rank] != CLIENT_SKIP_WEIGHTLESS) continue;
        skip->all[rank] = 0;
        weightless++;
    }
    if (weightless == session->ranks) {
        describe_weights(out, out_bytes);
        return;
    }
    while (at < session->ranks && skip->all[at] == 0) at++;
    const struct weft_tensor *tensor =
        tensor_of(session, (at < session->ranks ? skip->all[at] : atomic_load(&skip->first)) - 1);
    const char *tensor_name = tensor ? tensor->name : "?";
    if (at == session->ranks) {
        snprintf(out, out_bytes, "the mean gradient of tensor '%.100s' is not finite (NaN or infinity)",
                 tensor_name);
        return;
    }
    for (uint32_t rank = at + 1; rank < session->ranks; rank++) more += skip->all[rank] != 0;
    client_rank_name(session, at, name, sizeof name);
    const int used =
        snprintf(out, out_bytes, "the gradient of tensor '%.100s' is not finite (NaN or infinity) on %s",
                 tensor_name, name);
    if (more > 0 && used > 0 && (size_t)used < out_bytes)
        snprintf(out + used, out_bytes - (size_t)used, " and %u more rank%s", more, more > 1 ? "s" : "");
}

/* The next requests to the shards carry the count. */
static void increment_skip_count(struct weft_session *session)
{
    session->tensors->skip.count = (uint16_t)((session->tensors->skip.count + 1u) % WEFT_WIRE_SKIPS);
}

enum weft_status client_skip_step(struct weft_session *session)
{
    const unsigned long long step = session->step.number;
    const struct weft_tensor *left = find_final_update(session);
    char why[320];
    describe_cause(session, why, sizeof why);
    if (left) {
        client_fail(session, WEFT_ERR_INVALID, true,
                    "rank %u: step %llu: %s, and the step cannot be skipped: tensor '%.60s' was updated %s",
                    session->rank, step, why, left->name,
                    left->mode == WEFT_MODE_SERVER ? "at the shards" : "on a device");
        return client_usable(session);
    }
    increment_skip_count(session);
    return client_error(
        session, WEFT_ERR_SKIPPED,
        "step %llu is skipped on all ranks: %s; weights, residuals and optimisers are as before it", step,
        why);
}
