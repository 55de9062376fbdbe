/* tensor_init.c - first weights: rank 0 installs them at the shards, then broadcasts them over the group of workers.
 * A rank that has the broadcast knows by it that the shards have the weights too. */
#include <stdio.h>

#include "client/session.h"
#include "client/tensor.h"

static enum weft_status install(struct weft_tensor *tensor, const void *weights, const char *what)
{
    struct weft_request request = {{0}};
    WEFT_TRY(client_tensor_start_init(tensor, weights, &request));
    return client_request_finish(tensor->session, &request, what);
}

enum weft_status weft_tensor_init(struct weft_tensor *tensor, void *weights)
{
    if (!tensor) return WEFT_ERR_INVALID;
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_usable(session));
    if (!weights) return client_error(session, WEFT_ERR_INVALID, "init of tensor '%s': weights is NULL", tensor->name);
    if (session->step.open || tensor->initialised)
        return client_error(session, WEFT_ERR_STATE, "init of tensor '%s' %s; weights are given once, before the first step", tensor->name,
                            tensor->initialised ? "for the second time" : "inside a step");
    char what[300];
    snprintf(what, sizeof what, "init of tensor '%s'", tensor->name);
    const bool shards_keep = tensor->mode == WEFT_MODE_SERVER && !client_tensor_judged(tensor);
    if (shards_keep && session->rank == 0) WEFT_TRY(install(tensor, weights, what));

    struct weft_request request = {{0}};
    WEFT_TRY(weft_broadcast(session, weights, tensor->elems, tensor->dtype, 0, &request));
    WEFT_TRY(client_request_finish(session, &request, what));
    tensor->initialised = true;
    return WEFT_OK;
}
