/* clip.c - gradients clipped by their global norm (weft_step_options.clip_norm), in all-reduce mode.
 *
 *     engine         sum complete ──► sum of squares, slice by slice ──► request complete (allreduce_mode.c)
 *     weft_step_end  all requests complete, no skip ──► norm of all tensors ──► update with scale * factor
 *
 * All ranks have the same sums, and add the squares in the order of declaration: the factor has the same bits
 * on all ranks, so nothing is exchanged. The update needs every mean of the step. It therefore waits for
 * weft_step_end, and a discarded or skipped step has changed no weights. */
#include "client/elastic/clip.h"

#include <math.h>

#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* As torch.nn.utils.clip_grad_norm_, so that both give the same factor. */
#define NORM_EPSILON 1e-6

static bool is_pending(const struct weft_tensor *tensor)
{
    return tensor->clip.is_pending && tensor->last_step == tensor->session->step.number;
}

static double global_norm(struct weft_session *session)
{
    double squares = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, session_link);
        const double scale = (double)tensor->clip.scale;
        if (is_pending(tensor)) squares += tensor->clip.squares * scale * scale;
    }
    return sqrt(squares);
}

static void update(struct weft_tensor *tensor, double factor)
{
    struct client_clip *clip = &tensor->clip;
    tensor->op = (struct client_tensor_op){.kind = CLIENT_OP_NONE,
                                           .step = tensor->last_step,
                                           .lr = clip->lr,
                                           .has_decay = clip->has_decay,
                                           .weight_decay = clip->weight_decay,
                                           .out = clip->out};
    const float scale = (float)((double)clip->scale * factor);
    while (!client_update_slice(tensor, tensor->scratch, scale)) continue;
    clip->is_pending = false;
}

void client_clip_update(struct weft_session *session)
{
    const struct client_step *step = &session->step;
    if (step->clip_norm <= 0) return;
    const double norm = global_norm(session), limit = (double)step->clip_norm / (norm + NORM_EPSILON);
    struct weft_list *node, *spare;
    if (step->norm_out) *step->norm_out = norm;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, session_link);
        if (is_pending(tensor)) update(tensor, limit < 1 || isnan(limit) ? limit : 1);
    }
}
