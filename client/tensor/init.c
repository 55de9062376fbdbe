/* init.c - weft_tensor_init: rank 0 sends its weights to the shards, then broadcasts them to the workers. A
 * rank that has received the broadcast knows that the shards have the weights. If the shards have restored
 * the tensor from a snapshot, rank 0 receives their weights instead, and the arrays of its own optimiser. */
#include <stdio.h>

#include "client/call/call.h"
#include "client/call/input_backup.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"

static enum weft_status restore(struct weft_tensor *tensor, void *weights, const char *what)
{
    struct weft_request request = {{0}};
    WEFT_TRY(client_tensor_start_pull(tensor, weights, "init", &request));
    WEFT_TRY(client_request_wait_internal(tensor->session, &request, what));
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX && tensor->arrays.states[s]; s++) {
        WEFT_TRY(client_tensor_start_state(tensor, WEFT_WIRE_PART_OPTIMIZER + s, NULL,
                                           tensor->arrays.states[s], &request));
        WEFT_TRY(client_request_wait_internal(tensor->session, &request, what));
    }
    return WEFT_OK;
}

static enum weft_status install(struct weft_tensor *tensor, void *weights, const char *what)
{
    struct weft_request request = {{0}};
    if (tensor->progress.is_restored) return restore(tensor, weights, what);
    WEFT_TRY(client_tensor_start_init(tensor, weights, &request));
    return client_request_wait_internal(tensor->session, &request, what);
}

static enum weft_status reduce_word(struct weft_tensor *tensor, uint32_t *word, enum weft_op op,
                                    const char *what)
{
    struct weft_request request = {{0}};
    WEFT_TRY(weft_all_reduce(tensor->session, word, word, 1, WEFT_U32, op, &request));
    return client_request_wait_internal(tensor->session, &request, what);
}

/* Checks whether all ranks have weights. After a loss some ranks may have received the broadcast and others
 * not. */
static enum weft_status all_initialised(struct weft_tensor *tensor, const char *what, bool *all_out)
{
    uint32_t have = tensor->progress.initialised;
    WEFT_TRY(reduce_word(tensor, &have, WEFT_MIN, what));
    *all_out = have != 0;
    return WEFT_OK;
}

enum weft_status client_tensor_shards_have_weights(struct weft_tensor *tensor, const char *what,
                                                   bool *have_out)
{
    /* what this rank knows; the most of all ranks decides */
    enum { UNKNOWN = 0, NO_WEIGHTS = 1, WEIGHTS = 2 };
    const struct weft_session *session = tensor->session;
    const bool is_older = session->membership.is_newcomer && tensor->id < session->control.tensors;
    uint32_t known = tensor->progress.initialised ? WEIGHTS : is_older ? UNKNOWN : NO_WEIGHTS;
    WEFT_TRY(reduce_word(tensor, &known, WEFT_MAX, what));
    *have_out = known != NO_WEIGHTS;
    return WEFT_OK;
}

static enum weft_status broadcast_array(struct weft_tensor *tensor, void *array, const char *what)
{
    const struct client_simple_call call = client_simple_broadcast(array, tensor->elems, tensor->dtype, 0);
    return client_call_run_internal(tensor->session, WEFT_COLL_LABEL_TENSOR_INIT, &call, what);
}

static enum weft_status broadcast_weights(struct weft_tensor *tensor, void *weights, const char *what)
{
    WEFT_TRY(broadcast_array(tensor, weights, what));
    for (uint32_t s = 0;
         tensor->progress.is_restored && s < WEFT_OPTIMIZER_STATES_MAX && tensor->arrays.states[s]; s++)
        WEFT_TRY(broadcast_array(tensor, tensor->arrays.states[s], what));
    return WEFT_OK;
}

/* Returns when all ranks know that the weights are incomplete; only then may they change. */
static enum weft_status wait_for_all(struct weft_tensor *tensor, const char *what)
{
    const struct client_simple_call call = {.kind = WEFT_COLL_BARRIER, .dtype = WEFT_F32, .op = WEFT_SUM};
    return client_call_run_internal(tensor->session, WEFT_COLL_LABEL_TENSOR_INIT, &call, what);
}

/* In an elastic job with shards all ranks call it again after a loss. A rank without complete weights keeps
 * its own, which may be the next to install. No step can complete while a rank has no weights.
 *
 * A rank that has weights while others have none drops them before rank 0 installs its own. Otherwise a
 * further loss could leave it among ranks, or with shards, that have the new weights. */
enum weft_status client_tensor_init_elastic(struct weft_tensor *tensor, void *weights, const char *what)
{
    struct weft_session *session = tensor->session;
    bool all;
    WEFT_TRY(all_initialised(tensor, what, &all));
    if (all) return WEFT_OK;
    tensor->progress.initialised = false;
    WEFT_TRY(wait_for_all(tensor, what));
    if (session->rank == 0) WEFT_TRY(install(tensor, weights, what));
    else WEFT_TRY(client_backup_copy(session, weights, tensor->bytes));
    const enum weft_status status = broadcast_weights(tensor, weights, what);
    client_backup_close(session, status < 0);
    if (status == WEFT_OK) tensor->progress.initialised = true;
    return status;
}

enum weft_status weft_tensor_init(struct weft_tensor *tensor, void *weights)
{
    WEFT_DEFAULT_FLOATS;
    if (!tensor) return client_null_argument("tensor_init", "tensor");
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_usable(session));
    WEFT_TRY(client_tensor_check_no_group(tensor, "init"));
    if (!weights)
        return client_error(session, WEFT_ERR_INVALID, "init of tensor '%s': weights is NULL", tensor->name);
    WEFT_TRY(client_deliver(session));
    const bool shards_hold_state =
        tensor->mode == WEFT_MODE_SERVER && !client_tensor_has_codec_choice(tensor);
    const bool again = session->membership.is_elastic && shards_hold_state && session->step.number == 0;
    if (session->step.open || (tensor->progress.initialised && !again))
        return client_error(
            session, WEFT_ERR_STATE, "init of tensor '%s' %s; weights are given once, before the first step",
            tensor->name, tensor->progress.initialised ? "for the second time" : "inside a step");
    char what[300];
    snprintf(what, sizeof what, "init of tensor '%s'", tensor->name);
    tensor->buffers.weights = weights;
    if (session->membership.is_elastic && shards_hold_state)
        return client_tensor_init_elastic(tensor, weights, what);
    if (shards_hold_state && session->rank == 0) WEFT_TRY(install(tensor, weights, what));
    WEFT_TRY(broadcast_weights(tensor, weights, what));
    tensor->progress.initialised = true;
    return WEFT_OK;
}
