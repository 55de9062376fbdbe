/* free.c - weft_tensor_free: all ranks agree, then each frees the tensor.
 *
 *     caller    all_gather of the tensor's id ──► TensorFree to the coordinator ──► message ──► free memory
 *     engine                                                                        remove from its table
 *
 * In an elastic job each rank keeps the tensor until the coordinator has TensorFree of all ranks and sends it
 * back. If a rank is lost before, all ranks receive MemberLost instead, and none frees the tensor
 * (coordinator/tensor_free.c).
 *
 * All requests on the tensor have completed before. A hash of its weights may still be queued on the net
 * thread. The caller waits for that first, so that no hash follows TensorFree. */
#include <stdio.h>

#include "client/comm/comm.h"
#include "client/engine/event_fd.h"
#include "client/session/control.h"
#include "client/session/epoch_change.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
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
        WEFT_TRY(client_wire_check(session, 2, "tensor_free in an elastic job"));
    if (!session->control.welcome->welcome->frees)
        return client_error(session, WEFT_ERR_VERSION,
                            "tensor_free of tensor '%s': the coordinator is of an older weft, which keeps "
                            "all tensors; use one release of weft in a job",
                            tensor->name);
    return WEFT_OK;
}

enum { WORD_ID, WORD_OTHERS_REST, WORDS };

/* Checks that all ranks free the same tensor, and that no rank rests. */
static enum weft_status compare_ranks(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    const int64_t mine[WORDS] = {tensor->id, atomic_load(&session->epoch_change.others_rest)}, *all;
    WEFT_TRY(client_comm_exchange(session, NULL, WEFT_COLL_LABEL_TENSOR_FREE, mine, WORDS, &all));
    bool others_rest = false;
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        const int64_t id = all[rank * WORDS + WORD_ID];
        others_rest |= all[rank * WORDS + WORD_OTHERS_REST] != 0;
        if (id == all[WORD_ID]) continue;
        return client_error(session, WEFT_ERR_MISMATCH,
                            "tensor_free of tensor '%s': rank 0 frees tensor %lld, rank %u tensor %lld (in "
                            "the order of their declaration); nothing was freed",
                            tensor->name, (long long)all[WORD_ID], rank, (long long)id);
    }
    if (!others_rest) return WEFT_OK;
    return client_error(session, WEFT_ERR_STATE,
                        "tensor_free of tensor '%s': a rank rests in weft_join, and all ranks must free it; "
                        "nothing was freed: call it when weft_join has returned on all ranks",
                        tensor->name);
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

static bool is_freed_by_all(const struct weft_tensor *tensor)
{
    return atomic_load(&tensor->session->control.freed_tensor) == tensor->id + 1;
}

static bool is_decided(void *context)
{
    const struct weft_tensor *tensor = context;
    return is_freed_by_all(tensor) || client_failed(tensor->session) < 0 ||
           client_is_leaving_epoch(tensor->session);
}

/* Elastic jobs: waits until the coordinator has TensorFree of all ranks, or the membership ends. */
static enum weft_status wait_decision(struct weft_tensor *tensor, uint64_t until_ns)
{
    struct weft_session *session = tensor->session;
    char text[sizeof session->epoch_change.text];
    if (client_wait_for(session, is_decided, tensor, until_ns) < 0) {
        client_control_wait_reason(session, text, sizeof text);
        if (!is_decided(tensor)) /* the decision arrived meanwhile */
            client_fail(session, WEFT_ERR_DEADLINE, true,
                        "rank %u: tensor_free of tensor '%.60s' waited %.1f s for the coordinator: %.300s",
                        session->rank, tensor->name, (double)session->settings.deadline_ns / 1e9, text);
    }
    WEFT_TRY(client_usable(session));
    if (is_freed_by_all(tensor)) return WEFT_OK;
    client_epoch_change_text(session, text, sizeof text);
    return client_error(session, WEFT_ERR_PEER_LOST,
                        "tensor_free of tensor '%.100s': %.250s; nothing was freed: call weft_shrink, then "
                        "weft_tensor_free again",
                        tensor->name, text);
}

/* Removes it from the lists that calls and steps use. */
static void unlink_tensor(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    weft_list_remove(&tensor->registration.session_link);
    weft_list_append(&session->tensors->freed, &tensor->registration.session_link);
    session->tensors->live_count--;
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
    if (session->membership.is_elastic) WEFT_TRY(wait_decision(tensor, until_ns));
    unlink_tensor(tensor);
    tensor->registration.detach_command.fn = detach;
    client_event_post(session, &tensor->registration.detach_command);
    (void)client_wait_for(session, is_detached, tensor, until_ns);
    const bool held = !atomic_load(&tensor->registration.detached) || atomic_load(&tensor->hash.is_posted);
    if (!held) client_tensor_free(tensor); /* else weft_finalize frees it */
    return WEFT_OK;
}
