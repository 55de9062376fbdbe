/* state_broadcast.c - weft_tensor_share: one rank's weights and optimiser arrays reach all ranks. Required
 * after newcomers were admitted or ranks returned from weft_join, and again after each change of ranks until
 * a step has ended well.
 *
 *     new or returned ranks: broadcast_required ──► weft_tensor_share in this epoch ──► push_pull
 *                                               ──► step_end WEFT_OK: cleared
 *
 * In server mode each rank pulls the weights from the shards, which may be newer than those of any remaining
 * rank, and with a codec the optimiser arrays, of which ranks have copies. No chunk advances meanwhile,
 * because that needs this rank's contribution. If ranks know that the shards have no weights of a tensor,
 * which was declared later than others, rank 0 installs its own (init.c).
 *
 * push_pull returns WEFT_ERR_STATE until the call was made: otherwise ranks would diverge unnoticed. The same
 * copies restore the state before a repeated or skipped step (input_backup.c, skip_nonfinite.c). */
#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/call/input_backup.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/device/device_update.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

static bool has_optimizer(const struct weft_tensor *tensor)
{
    return tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE;
}

enum weft_status client_state_broadcast_check(struct weft_tensor *tensor, const char *call)
{
    struct weft_session *session = tensor->session;
    if (!has_optimizer(tensor) || !tensor->elastic.broadcast.is_required ||
        tensor->elastic.broadcast.epoch == session->epoch)
        return WEFT_OK;
    return client_error(session, WEFT_ERR_STATE,
                        "%s of tensor '%s', which has an optimiser: ranks are new or have returned; call "
                        "weft_tensor_share on all ranks first",
                        call, tensor->name);
}

void client_state_broadcast_require(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->tensors->list)
        weft_container_of(node, struct weft_tensor, registration.session_link)
            ->elastic.broadcast.is_required = true;
}

void client_state_broadcast_confirm(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->progress.last_step == session->step.number) tensor->elastic.broadcast.is_required = false;
    }
}

static enum weft_status copy_state(struct weft_tensor *tensor, void *weights)
{
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_backup_copy_update(session, weights, tensor->bytes));
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX && tensor->arrays.states[s]; s++)
        WEFT_TRY(client_backup_copy_update(session, tensor->arrays.states[s], tensor->bytes));
    return WEFT_OK;
}

/* The update fills the copies slice by slice. */
static enum weft_status reserve_state(struct weft_tensor *tensor, void *weights)
{
    struct weft_session *session = tensor->session;
    WEFT_TRY(
        client_backup_reserve_update(session, weights, tensor->bytes, &tensor->elastic.backup.arrays[0]));
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX && tensor->arrays.states[s]; s++)
        WEFT_TRY(client_backup_reserve_update(session, tensor->arrays.states[s], tensor->bytes,
                                              &tensor->elastic.backup.arrays[1 + s]));
    return WEFT_OK;
}

enum weft_status client_state_backup(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    tensor->elastic.backup.step = 0;
    memset(tensor->elastic.backup.arrays, 0, sizeof tensor->elastic.backup.arrays);
    if (!has_optimizer(tensor) || (!session->membership.is_elastic && !client_skip_needs_backup(tensor)))
        return WEFT_OK;
    /* an update on a device cannot be undone (skip_nonfinite.c) */
    if (weft_memory_is_device(tensor->buffers.memory) && !session->membership.is_elastic) return WEFT_OK;
    if (weft_memory_is_device(tensor->buffers.memory))
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "tensor '%s' has an optimiser and is on a device; in an elastic job (weft run "
                            "--min-workers) its weights must be in host memory",
                            tensor->name);
    WEFT_TRY(client_tensor_has_local_optimizer(tensor) ? reserve_state(tensor, tensor->op.out)
                                                       : copy_state(tensor, tensor->op.out));
    tensor->elastic.backup.step = session->step.number;
    return WEFT_OK;
}

static enum weft_status broadcast_array(uint32_t root, struct weft_tensor *tensor, void *buffer,
                                        const char *what)
{
    const struct client_simple_call call =
        client_simple_broadcast(buffer, tensor->elems, tensor->dtype, root);
    return client_call_run_internal(tensor->session, WEFT_COLL_LABEL_TENSOR_SHARE, &call, what);
}

static enum weft_status broadcast_state(struct weft_tensor *tensor, void *weights, uint32_t root,
                                        const char *what)
{
    if (root != tensor->session->rank) WEFT_TRY(copy_state(tensor, weights));
    WEFT_TRY(broadcast_array(root, tensor, weights, what));
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX && tensor->arrays.states[s]; s++)
        WEFT_TRY(broadcast_array(root, tensor, tensor->arrays.states[s], what));
    return WEFT_OK;
}

static enum weft_status pull_state(struct weft_tensor *tensor, void *weights, const char *what)
{
    bool shards_have_weights;
    WEFT_TRY(client_tensor_shards_have_weights(tensor, what, &shards_have_weights));
    if (!shards_have_weights) return client_tensor_init_elastic(tensor, weights, what);
    struct weft_request request = {{0}};
    WEFT_TRY(copy_state(tensor, weights));
    WEFT_TRY(client_tensor_start_pull(tensor, weights, "tensor_share", &request));
    WEFT_TRY(client_request_wait_internal(tensor->session, &request, what));
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX && tensor->arrays.states[s]; s++) {
        WEFT_TRY(client_tensor_start_state(tensor, s, NULL, tensor->arrays.states[s], &request));
        WEFT_TRY(client_request_wait_internal(tensor->session, &request, what));
    }
    return WEFT_OK;
}

enum weft_status weft_tensor_share(struct weft_tensor *tensor, void *weights, uint32_t root)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("tensor_share", "tensor");
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_tensor_check_between_steps(tensor, weights, "tensor_share"));
    WEFT_TRY(client_update_to_host(tensor));
    WEFT_TRY(client_tensor_check_no_group(tensor, "tensor_share"));
    const bool shards_hold_state =
        tensor->mode == WEFT_MODE_SERVER && has_optimizer(tensor) && !client_tensor_has_codec_choice(tensor);
    if (tensor->mode == WEFT_MODE_SERVER && !session->membership.is_elastic)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "tensor_share of tensor '%s': in server mode the shards hold the weights",
                            tensor->name);
    if (weft_memory_is_device(tensor->buffers.memory))
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "tensor_share of tensor '%s': its weights must be in host memory", tensor->name);
    if (root >= session->ranks)
        return client_error(session, WEFT_ERR_INVALID,
                            "tensor_share of tensor '%s': root is %u, the ranks are 0 to %u", tensor->name,
                            root, session->ranks - 1);
    char what[300];
    snprintf(what, sizeof what, "tensor_share of tensor '%s'", tensor->name);
    const enum weft_status status =
        shards_hold_state ? pull_state(tensor, weights, what) : broadcast_state(tensor, weights, root, what);
    client_backup_close(session, status < 0); /* after a loss of the root this rank's state may be the next to
                                               * broadcast: restore it as a whole */
    if (status < 0) return status;
    tensor->buffers.weights = weights;
    tensor->progress.initialised = true;
    tensor->elastic.broadcast.epoch = session->epoch;
    tensor->elastic.broadcast.step = session->step.number;
    return WEFT_OK;
}
