/* free.c - weft_tensor_free: all ranks agree, then each frees the tensor.
 *
 *     caller    all_gather of the tensor's id ──► TensorFree to the coordinator ──► message ──► free memory
 *     engine                                                                        remove from its table
 *
 * All requests on the tensor have completed before. A hash of its weights may still be queued on the net
 * thread. The caller waits for that first, so that no hash follows TensorFree. */
#include <stdio.h>

#include "client/comm/comm.h"
#include "client/engine/event_fd.h"
#include "client/session/control.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

static bool hash_is_sent(void *context)
{
    const struct weft_tensor *tensor = context;
    return !atomic_load(&tensor->hash.is_posted);
}

static bool is_detached(void *context)
{
    const struct weft_tensor *tensor = context;
    return atomic_load_explicit(&tensor->registration.detached, memory_order_acquire) ||
           client_failed(tensor->session) < 0;
}

static void detach(struct weft_command *command)
{
    struct weft_tensor *tensor = weft_container_of(command, struct weft_tensor, registration.detach_command),
                       **at;
    at = &tensor->session->tensors->by_id[tensor->id % CLIENT_TENSOR_BUCKETS];
    while (*at && *at != tensor) at = &(*at)->registration.engine_next;
    if (*at) *at = tensor->registration.engine_next;
    struct weft_loop *loop = tensor->session->loop;
    atomic_store_explicit(&tensor->registration.detached, true, memory_order_release);
    weft_loop_notify(loop);
}

/* Local checks; nothing was sent. */
static enum weft_status check(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    WEFT_TRY(client_usable(session));
    WEFT_TRY(client_tensor_check_no_group(tensor, "tensor_free"));
    if (session->step.open)
        return client_error(session, WEFT_ERR_STATE,
                            "tensor_free of tensor '%s' inside step %llu; call it after weft_step_end",
                            tensor->name, (unsigned long long)session->step.number);
    WEFT_TRY(client_deliver(session));
    if (atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire))
        return client_error(session, WEFT_ERR_BUSY,
                            "tensor_free of tensor '%s': its last request is still open; wait for it first",
                            tensor->name);
    if (session->membership.is_elastic)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "tensor_free of tensor '%s': an elastic job keeps its tensors until "
                            "weft_finalize, because newcomers declare all of them in the same order; use the "
                            "tensor again in place of a new one",
                            tensor->name);
    if (!session->control.welcome->welcome->frees)
        return client_error(session, WEFT_ERR_VERSION,
                            "tensor_free of tensor '%s': the coordinator is of an older weft, which keeps "
                            "all tensors; use one release of weft in a job",
                            tensor->name);
    return WEFT_OK;
}

/* Checks that all ranks free the same tensor. */
static enum weft_status compare_ranks(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    const int64_t mine = tensor->id, *all;
    WEFT_TRY(client_comm_exchange(session, NULL, WEFT_COLL_LABEL_TENSOR_FREE, &mine, 1, &all));
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        if (all[rank] == all[0]) continue;
        return client_error(session, WEFT_ERR_MISMATCH,
                            "tensor_free of tensor '%s': rank 0 frees tensor %lld, rank %u tensor %lld (in "
                            "the order of their declaration); nothing was freed",
                            tensor->name, (long long)all[0], rank, (long long)all[rank]);
    }
    return WEFT_OK;
}

static enum weft_status send_tensor_free(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    Weft__Control__TensorFree freed = WEFT__CONTROL__TENSOR_FREE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    freed.tensor = tensor->id;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE;
    message.tensor_free = &freed;
    const enum weft_status status = client_control_send(session, &message);
    if (status == WEFT_OK) return WEFT_OK;
    client_fail(session, status, true, "rank %u cannot free tensor '%s': %s", session->rank, tensor->name,
                weft_reason_text(status)); /* the other ranks have freed it */
    return client_usable(session);
}

/* Removes it from the lists that calls and steps use. */
static void unlink_tensor(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    weft_list_remove(&tensor->registration.session_link);
    weft_list_append(&session->tensors->freed, &tensor->registration.session_link);
    if (tensor->mode == WEFT_MODE_ALL_REDUCE) session->tensors->reduce_count--;
    if (client_tensor_can_skip_step(tensor)) session->tensors->skip.tensors--;
    client_codec_tuner_remove(session, tensor);
}

enum weft_status weft_tensor_free(struct weft_tensor *tensor)
{
    if (!tensor) return client_null_argument("tensor_free", "tensor");
    struct weft_session *session = tensor->session;
    WEFT_TRY(check(tensor));
    WEFT_TRY(compare_ranks(tensor));
    const uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    (void)client_wait_for(session, hash_is_sent, tensor, until_ns);
    WEFT_TRY(send_tensor_free(tensor));
    unlink_tensor(tensor);
    tensor->registration.detach_command.fn = detach;
    client_event_post(session, &tensor->registration.detach_command);
    (void)client_wait_for(session, is_detached, tensor, until_ns);
    const bool held = !atomic_load(&tensor->registration.detached) || atomic_load(&tensor->hash.is_posted);
    if (!held) client_tensor_free(tensor); /* else weft_finalize frees it */
    return WEFT_OK;
}
