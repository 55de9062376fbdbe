/* init.c - first weights: rank 0 installs them at the shards, then broadcasts them over the group of workers.
 * A rank that has the broadcast knows by it that the shards have the weights too. */
#include <stdio.h>

#include "client/call/call.h"
#include "client/call/input_backup.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"

static enum weft_status install(struct weft_tensor *tensor, const void *weights, const char *what)
{
    struct weft_request request = {{0}};
    WEFT_TRY(client_tensor_start_init(tensor, weights, &request));
    return client_request_wait_internal(tensor->session, &request, what);
}

/* Have all ranks got them? A loss may have come between one's broadcast and another's. */
static enum weft_status all_initialised(struct weft_tensor *tensor, const char *what, bool *all_out)
{
    struct weft_request request = {{0}};
    uint32_t have = tensor->initialised;
    WEFT_TRY(weft_all_reduce(tensor->session, &have, &have, 1, WEFT_U32, WEFT_MIN, &request));
    WEFT_TRY(client_request_wait_internal(tensor->session, &request, what));
    *all_out = have != 0;
    return WEFT_OK;
}

static enum weft_status broadcast_weights(struct weft_tensor *tensor, void *weights, const char *what)
{
    const struct client_simple_call call = client_simple_broadcast(weights, tensor->elems, tensor->dtype, 0);
    return client_call_run_internal(tensor->session, WEFT_COLL_LABEL_TENSOR_INIT, &call, what);
}

/* All others, too, know that these are not the first weights: from here on they may become others. */
static enum weft_status wait_for_all(struct weft_tensor *tensor, const char *what)
{
    const struct client_simple_call call = {.kind = WEFT_COLL_BARRIER, .dtype = WEFT_F32, .op = WEFT_SUM};
    return client_call_run_internal(tensor->session, WEFT_COLL_LABEL_TENSOR_INIT, &call, what);
}

/* In a job that goes on without lost ranks it is called again after a loss: on all ranks, also where it had
 * gone well. Whose weights are not all there keeps his own, which may be the ones to install next. While one
 * rank has none no step can have closed.
 *
 * Who has had some and finds that others have not has none any more, before rank 0, which may be another
 * than theirs came from, installs its own: with the next loss he may be left among ranks that have the new
 * ones, or with the shards alone that do. */
static enum weft_status init_elastic(struct weft_tensor *tensor, void *weights, const char *what)
{
    struct weft_session *session = tensor->session;
    bool all;
    WEFT_TRY(all_initialised(tensor, what, &all));
    if (all) return WEFT_OK;
    tensor->initialised = false;
    WEFT_TRY(wait_for_all(tensor, what));
    if (session->rank == 0) WEFT_TRY(install(tensor, weights, what));
    else WEFT_TRY(client_backup_copy(session, weights, tensor->bytes));
    const enum weft_status status = broadcast_weights(tensor, weights, what);
    client_backup_close(session, status < 0);
    if (status == WEFT_OK) tensor->initialised = true;
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
    const bool shards_hold_state =
        tensor->mode == WEFT_MODE_SERVER && !client_tensor_has_codec_choice(tensor);
    const bool again = session->is_elastic && shards_hold_state && session->step.number == 0;
    if (session->step.open || (tensor->initialised && !again))
        return client_error(session, WEFT_ERR_STATE,
                            "init of tensor '%s' %s; weights are given once, before the first step",
                            tensor->name, tensor->initialised ? "for the second time" : "inside a step");
    char what[300];
    snprintf(what, sizeof what, "init of tensor '%s'", tensor->name);
    tensor->weights = weights;
    if (session->is_elastic && shards_hold_state) return init_elastic(tensor, weights, what);
    if (shards_hold_state && session->rank == 0) WEFT_TRY(install(tensor, weights, what));
    WEFT_TRY(broadcast_weights(tensor, weights, what));
    tensor->initialised = true;
    return WEFT_OK;
}
