/* clip.c - gradients clipped by their global norm (weft_step_options.clip_norm).
 *
 *     engine         sum complete ──► sum of squares, slice by slice ──► request complete (allreduce_mode.c)
 *                    squares of each chunk, from the shard that holds its sum ──► complete (server_mode.c)
 *     weft_step_end  all requests complete, no skip ──► norm of all tensors ──► update with scale * factor,
 *                    here, or by the shards, which then send the weights
 *
 * All ranks have the same squares, and add them in the order of declaration: the factor has the same bits on
 * all ranks, so nothing is exchanged. The update needs every mean of the step. It therefore waits for
 * weft_step_end, and a discarded or skipped step has changed no weights. */
#include "client/elastic/clip.h"

#include <math.h>

#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* As torch.nn.utils.clip_grad_norm_, so that both give the same factor. */
#define NORM_EPSILON 1e-6

static bool is_pending(const struct weft_tensor *tensor)
{
    return tensor->clip.is_pending && tensor->progress.last_step == tensor->session->step.number;
}

static double global_norm(struct weft_session *session)
{
    double squares = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        const double scale = (double)tensor->clip.scale;
        if (is_pending(tensor)) squares += tensor->clip.squares * scale * scale;
    }
    return sqrt(squares);
}

static void update(struct weft_tensor *tensor, float factor)
{
    struct client_clip *clip = &tensor->clip;
    tensor->op = (struct client_tensor_op){.kind = CLIENT_OP_NONE,
                                           .step = tensor->progress.last_step,
                                           .rates.lr = clip->lr,
                                           .rates.has_decay = clip->has_decay,
                                           .rates.weight_decay = clip->weight_decay,
                                           .out = clip->out};
    const float scale = (float)((double)clip->scale * (double)factor);
    while (!client_update_slice(tensor, tensor->arrays.scratch, scale)) continue;
    clip->is_pending = false;
}

/* Starts the updates of the shards, which overlap with those of this rank. */
static enum weft_status start_updates(struct weft_session *session, float factor)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (!is_pending(tensor) || tensor->mode != WEFT_MODE_SERVER) continue;
        const enum weft_status status = client_tensor_start_apply(tensor, factor, tensor->clip.out);
        if (status >= 0) continue;
        client_fail(session, status, true, "rank %u: the shards have the update of step %llu in part: %.300s",
                    session->rank, (unsigned long long)session->step.number, session->failure.error.text);
        return client_usable(session);
    }
    weft_list_foreach (node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (is_pending(tensor) && tensor->mode == WEFT_MODE_ALL_REDUCE) update(tensor, factor);
    }
    return WEFT_OK;
}

enum weft_status client_clip_update(struct weft_session *session)
{
    const struct client_step *step = &session->step;
    if (step->clip_norm <= 0) return WEFT_OK;
    const double norm = global_norm(session), limit = (double)step->clip_norm / (norm + NORM_EPSILON);
    enum weft_status status = start_updates(session, limit < 1 || isnan(limit) ? (float)limit : 1);
    struct weft_list *node, *spare;
    if (step->norm_out) *step->norm_out = norm;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (!is_pending(tensor) || tensor->mode != WEFT_MODE_SERVER) continue;
        tensor->clip.is_pending = false;
        if (status == WEFT_OK) status = weft_wait(&tensor->clip.request, 0);
    }
    return status;
}
