/* step_options.c - the options of a step: checked, resolved for each tensor, and hashed.
 *
 *     options ──► check ──► each tensor: learning rate and weight decay of its group
 *                       ──► record: step, lr, weight, hash of the rest ──► compared on all ranks (step.c)
 *
 * The arrays are the caller's and are not read after weft_step_begin_with. The hash covers everything that
 * must be equal on all ranks, with the tensors' groups; it is 0 for the defaults. */
#include "client/elastic/step_options.h"

#include <math.h>
#include <stdlib.h>

#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

#define LOSS_SCALE_EXPONENT_MAX 60
#define WEIGHT_EXPONENT_MAX 100 /* the sum over all ranks, and its reciprocal, are finite in f32 */

static bool weight_is_usable(float weight)
{
    const float most = ldexpf(1.0f, WEIGHT_EXPONENT_MAX);
    return weight == 0 ? !signbit(weight) : weight >= 1 / most && weight <= most;
}

static enum weft_status check_numbers(struct weft_session *session, const struct weft_step_options *options)
{
    const unsigned long long wanted = session->step.number + 1;
    if (options->step != wanted)
        return client_error(session, WEFT_ERR_INVALID, "step_begin: step is %llu; the next one is %llu",
                            (unsigned long long)options->step, wanted);
    if (!isfinite(options->lr))
        return client_error(session, WEFT_ERR_INVALID, "step_begin: lr is %g; it must be finite",
                            (double)options->lr);
    if (!weight_is_usable(options->weight))
        return client_error(
            session, WEFT_ERR_INVALID,
            "step_begin: weight is %g; it must be zero (no samples), or from 2^-%d to 2^%d (1 "
            "when all ranks have equal batches)",
            (double)options->weight, WEIGHT_EXPONENT_MAX, WEIGHT_EXPONENT_MAX);
    int exponent = 1;
    if (options->loss_scale != 0 &&
        (!isfinite(options->loss_scale) || frexpf(options->loss_scale, &exponent) != 0.5f ||
         abs(exponent - 1) > LOSS_SCALE_EXPONENT_MAX))
        return client_error(session, WEFT_ERR_INVALID,
                            "step_begin: loss_scale is %g; it must be a power of two from 2^-%d to 2^%d",
                            (double)options->loss_scale, LOSS_SCALE_EXPONENT_MAX, LOSS_SCALE_EXPONENT_MAX);
    if (isnan(options->clip_norm) || options->clip_norm < 0)
        return client_error(session, WEFT_ERR_INVALID,
                            "step_begin: clip_norm is %g; it must be positive, or 0 for no limit",
                            (double)options->clip_norm);
    if (options->clip_norm > 0 && options->deliver_late)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "step_begin: clip_norm needs all means of the step in weft_step_end, and "
                            "deliver_late lets them arrive later; set one of them");
    return WEFT_OK;
}

static enum weft_status check_groups(struct weft_session *session, const struct weft_step_options *options)
{
    if (options->group_count > 0 && !options->group_lr)
        return client_error(session, WEFT_ERR_INVALID, "step_begin: group_count is %u and group_lr is NULL",
                            options->group_count);
    for (uint32_t group = 0; group < options->group_count; group++) {
        const float decay = options->group_weight_decay ? options->group_weight_decay[group] : 0;
        if (!isfinite(options->group_lr[group]))
            return client_error(session, WEFT_ERR_INVALID,
                                "step_begin: group_lr[%u] is %g; it must be finite", group,
                                (double)options->group_lr[group]);
        if (!isfinite(decay) || decay < 0)
            return client_error(session, WEFT_ERR_INVALID,
                                "step_begin: group_weight_decay[%u] is %g; it must be zero or positive",
                                group, (double)decay);
    }
    return WEFT_OK;
}

/* The record of the step carries `skip` to the ranks, and each contribution carries it to its shard. The
 * shards of an elastic job have no copies of what another chunk may have updated. */
static enum weft_status check_skip(struct weft_session *session, const struct weft_step_options *options)
{
    const struct client_tensors *tensors = session->tensors;
    if (!options->skip) return WEFT_OK;
    if (tensors->live_count == 0)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "step_begin: skip reaches the other ranks with the tensors of the step, and none "
                            "is declared");
    if (!session->membership.is_elastic || tensors->reduce_count == tensors->live_count) return WEFT_OK;
    return client_error(session, WEFT_ERR_UNSUPPORTED,
                        "step_begin: skip in an elastic job needs all tensors in all-reduce mode, and %u of "
                        "%u are; push gradients of zeros",
                        tensors->reduce_count, tensors->live_count);
}

enum weft_status client_step_options_check(struct weft_session *session,
                                           const struct weft_step_options *options)
{
    if (session->step.open)
        return client_error(session, WEFT_ERR_STATE,
                            "step_begin: step %llu is still open; call weft_step_end first",
                            (unsigned long long)session->step.number);
    WEFT_TRY(check_numbers(session, options));
    WEFT_TRY(check_groups(session, options));
    return check_skip(session, options);
}

/* 31 bits; 0 for the defaults. */
static uint32_t hash_parameters(const struct weft_session *session, const struct weft_step_options *options)
{
    const struct client_step *step = &session->step;
    const size_t bytes = options->group_count * sizeof *options->group_lr;
    const float numbers[] = {step->loss_scale, step->clip_norm};
    if (options->group_count == 0 && step->loss_scale == 1.0f && step->clip_norm == 0) return 0;
    uint64_t hash = weft_fnv_bytes(WEFT_FNV_BASIS, numbers, sizeof numbers);
    if (bytes > 0) hash = weft_fnv_bytes(hash, options->group_lr, bytes);
    if (step->has_decays) hash = weft_fnv_bytes(hash, options->group_weight_decay, bytes);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (bytes > 0) hash = weft_fnv_bytes(hash, &tensor->options.group, sizeof tensor->options.group);
    }
    return (uint32_t)(hash >> 33) | 1u;
}

void client_step_options_apply(struct weft_session *session, const struct weft_step_options *options)
{
    struct client_step *step = &session->step;
    step->lr = options->lr;
    step->weight = options->weight;
    step->loss_scale = options->loss_scale != 0 ? options->loss_scale : 1.0f;
    step->clip_norm = options->clip_norm;
    step->norm_out = options->norm_out;
    step->group_count = options->group_count;
    step->has_decays = options->group_count > 0 && options->group_weight_decay;
    step->skips = false;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->options.group >= options->group_count) continue;
        tensor->progress.group_lr = options->group_lr[tensor->options.group];
        if (step->has_decays)
            tensor->progress.group_decay = options->group_weight_decay[tensor->options.group];
    }
    step->records.mine = (struct client_step_record){.step = options->step,
                                                     .lr = options->lr,
                                                     .weight = options->weight,
                                                     .revision = session->tensors->codec_tuner.revision,
                                                     .parameters = hash_parameters(session, options)};
    if (options->skip) step->records.mine.parameters |= CLIENT_RECORD_SKIPS;
}
