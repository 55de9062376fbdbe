/* delivery.c - weft_tensor_wait: waits for the result of a tensor, with the step open, closed or completed.
 *
 *     caller   start: started_serial++ ........................ waits until both serials are equal
 *     engine   result: status -> release: not busy -> request done -> delivered_serial = serial
 *
 * The caller may start the next operation as soon as the request is done. The serial then differs from that
 * of the new operation, so a late store of the engine completes nothing. */
#include "client/elastic/elastic.h"
#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

static bool is_delivered(const struct weft_tensor *tensor)
{
    return atomic_load_explicit(&tensor->delivery.serial, memory_order_acquire) ==
           tensor->delivery.started_serial;
}

static bool delivered(void *context)
{
    return is_delivered(context);
}

static bool delivered_or_failed(void *context)
{
    const struct weft_tensor *tensor = context;
    return is_delivered(tensor) || client_failed(tensor->session) < 0;
}

/* The final status; its sentence becomes the session's error. */
static enum weft_status result_of(const struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    char text[480];
    if (tensor->delivery.status >= 0) return WEFT_OK;
    const enum weft_status status = (enum weft_status)tensor->delivery.status;
    client_text_get(session, tensor->delivery.text, status, text, sizeof text);
    return client_error(session, status, "%s", text);
}

static enum weft_status wait_open(struct weft_tensor *tensor, uint64_t timeout_ns)
{
    struct weft_session *session = tensor->session;
    char text[480];
    client_tensor_wait_begins(tensor);
    if (client_wait_within(session, delivered_or_failed, tensor, timeout_ns) == WEFT_ERR_DEADLINE) {
        client_tensor_wait_ends(tensor);
        client_request_describe_open(session, tensor->delivery.request, text, sizeof text);
        if (!delivered_or_failed(tensor))
            return client_error(session, WEFT_ERR_DEADLINE,
                                "tensor_wait of tensor '%.100s': %.280s and has not ended within %.3f s; "
                                "wait again or finalize",
                                tensor->name, text, (double)timeout_ns / 1e9);
    }
    if (client_wait_within(session, delivered, tensor, CLIENT_BUFFER_RELEASE_NS) == WEFT_OK ||
        client_engine_halt(session))
        return result_of(tensor);
    return client_error(session, client_failed(session), "%.400s (keep the buffers until weft_finalize)",
                        session->failure.text);
}

enum weft_status weft_tensor_wait(struct weft_tensor *tensor, uint64_t timeout_ms)
{
    if (!tensor) return client_null_argument("tensor_wait", "tensor");
    struct weft_session *session = tensor->session;
    if (session->live.pid != weft_process_id()) return client_usable(session);
    if (client_tensor_is_gathered(session, tensor))
        return client_error(
            session, WEFT_ERR_STATE,
            "tensor_wait of tensor '%s': its group of calls is open; call weft_group_end first",
            tensor->name);
    client_learned_order_waited(tensor);
    if (is_delivered(tensor) && tensor->delivery.status >= 0) return WEFT_OK;
    uint64_t timeout_ns = session->settings.deadline_ns + CLIENT_WAIT_SLACK_NS;
    if (timeout_ms > 0) timeout_ns = timeout_ms > WEFT_NEVER / WEFT_MS(1) ? WEFT_NEVER : WEFT_MS(timeout_ms);
    if (is_delivered(tensor)) return client_request_wait_failed(session, result_of(tensor));
    if (timeout_ms == 0) atomic_fetch_add(&session->engine->waiting_threads, 1);
    const enum weft_status status = wait_open(tensor, timeout_ns);
    if (timeout_ms == 0) atomic_fetch_sub(&session->engine->waiting_threads, 1);
    return status < 0 ? client_request_wait_failed(session, status) : status;
}

static bool has_ended(void *context)
{
    struct weft_session *session = context;
    return atomic_load(&session->open_requests) == 0 || client_failed(session) < 0;
}

void client_delivery_finish(struct weft_session *session, uint64_t until_ns)
{
    if (session->step.is_delivering) (void)client_wait_for(session, has_ended, session, until_ns);
}
