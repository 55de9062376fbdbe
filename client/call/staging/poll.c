/* poll.c - the engine polls the events of the windows that it needs, first often and later at most every
 * millisecond. Engine thread. */
#include "client/call/staging/stage.h"

#include "client/call/calls.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"

void client_stage_poll_soon(struct weft_session *session)
{
    struct client_staging *staging = &session->calls->staging;
    if (weft_timer_is_running(&staging->timer)) return;
    staging->idle_since_ns = weft_now_ns(session->env);
    weft_timer_start(session->loop, &staging->timer, staging->idle_since_ns + weft_memory_look_ns(0));
}

/* A span of the device in the flight recorder, and so in the Perfetto trace. Its end is the time at which the
 * engine saw the event, up to 1 ms after the device (weft_memory_look_ns). */
static void add_span(struct weft_session *session, const char *name, uint64_t from_ns, uint64_t bytes)
{
    struct weft_event_ring *events = session->flight.events;
    const uint64_t id = ++session->calls->staging.span_count;
    weft_event_ring_add_at(events, from_ns, name, WEFT_EVENT_BEGIN, id, UINT32_MAX, bytes, WEFT_OK);
    weft_event_ring_add_at(events, weft_now_ns(session->env), name, WEFT_EVENT_END, id, UINT32_MAX, bytes,
                           WEFT_OK);
}

/* Releases stages whose copies have ended. If a copy fails after its request was done, the device is lost
 * and the session fails. */
static bool release_copied_out(struct weft_session *session)
{
    bool any = false;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->calls->staging.copying_out) {
        struct client_stage *stage = weft_container_of(node, struct client_stage, link);
        struct weft_error error = {0};
        enum weft_status status = client_stage_on_device(stage, client_stage_copies_ended, NULL, &error);
        if (status == WEFT_IN_PROGRESS) continue;
        any = true;
        weft_list_remove(&stage->link);
        if (status == WEFT_OK && stage->emptying_ns)
            add_span(session, "device copy out", stage->emptying_ns, stage->extents.out * stage->elem_bytes);
        client_stage_release(session, stage); /* a failed device runs no copy */
        if (status < 0)
            client_fail(session, status, true, "rank %u: a result could not be copied to the device: %.300s",
                        session->rank, error.text);
    }
    return any;
}

static void try_to_resume(struct client_stage *stage)
{
    struct weft_error error = {0};
    struct client_request *request = stage->request;
    enum weft_status status = client_stage_ready(request, &error);
    if (status == WEFT_ERR_AGAIN) return;
    void (*resume)(struct client_request *) = stage->resume;
    stage->resume = NULL;
    if (status < 0) request->session->calls->tensor_ops->fail(request->tensor, status, error.text);
    else resume(request);
}

void client_stage_when_ready(struct client_request *request, void (*resume)(struct client_request *request))
{
    client_stage_opened(request);
    request->device.stage->resume = resume;
    try_to_resume(request->device.stage);
}

void client_stage_poll(struct weft_timer *timer)
{
    struct client_staging *staging = weft_container_of(timer, struct client_staging, timer);
    struct weft_session *session = weft_container_of(staging, struct client_calls, staging)->session;
    const uint64_t idle_since_ns = staging->idle_since_ns;
    uint64_t now_ns = weft_now_ns(session->env), posted_before = 0, posted = 0;
    struct weft_list *node, *spare;
    bool waiting = false;
    weft_list_foreach (node, spare, &staging->open)
        posted_before += weft_container_of(node, struct client_stage, link)->posted;
    if (!session->engine->failed) client_engine_pump_all(session);
    weft_list_foreach (node, spare, &staging->open) {
        struct client_stage *stage = weft_container_of(node, struct client_stage, link);
        if (stage->resume && !session->engine->failed) try_to_resume(stage);
    }
    weft_list_foreach (node, spare, &staging->open) {
        const struct client_stage *stage = weft_container_of(node, struct client_stage, link);
        posted += stage->posted;
        waiting = waiting || stage->posted < stage->pieces;
    }
    const bool progressed = release_copied_out(session) || posted != posted_before;
    /* a timer restart by a waiting stage does not count as progress */
    staging->idle_since_ns = progressed ? now_ns : idle_since_ns;
    if (!waiting && weft_list_empty(&staging->copying_out)) return;
    weft_timer_start(session->loop, timer,
                     now_ns + weft_memory_look_ns(weft_elapsed_ns(staging->idle_since_ns, now_ns)));
}

void client_stage_opened(struct client_request *request)
{
    struct client_stage *stage = request->device.stage;
    weft_list_init(&stage->link);
    weft_list_append(&request->session->calls->staging.open, &stage->link);
}

/* Has the input of the next piece arrived? */
static enum weft_status input_has_arrived(struct client_stage *stage, struct window *window,
                                          struct weft_error *error)
{
    return stage->device->ops->passed(stage->coded ? stage->begun : window->filled, error);
}

/* Queues the first copies of a gated stage, if its stream has reached the call. */
static enum weft_status open_gate(struct client_stage *stage, struct window *unused, struct weft_error *error)
{
    const enum weft_status status = stage->device->ops->passed(stage->begun, error);
    if (status != WEFT_OK) return status;
    stage->is_gated = false;
    return client_window_copy_in_first(stage, error);
}

enum weft_status client_window_is_full(struct weft_session *session, struct client_stage *stage,
                                       struct window *window, struct weft_error *error)
{
    if (stage->is_gated) {
        const enum weft_status status = client_stage_on_device(stage, open_gate, NULL, error);
        if (status < 0) return status;
    }
    if (stage->is_gated) {
        client_stage_poll_soon(session);
        return WEFT_ERR_AGAIN;
    }
    if (window->state == WINDOW_FILLING) {
        enum weft_status status = client_stage_on_device(stage, input_has_arrived, window, error);
        if (status < 0) return status;
        if (status == WEFT_OK) {
            const uint64_t count = stage->coded
                                       ? stage->extents.in
                                       : client_window_count(stage, stage->extents.in, window->piece);
            window->state = WINDOW_FULL;
            add_span(session, stage->coded ? "device input" : "device copy in", window->filling_ns,
                     count * stage->elem_bytes);
        }
    }
    if (window->state == WINDOW_FULL) return WEFT_OK;
    if (window->state == WINDOW_FILLING) client_stage_poll_soon(session);
    return WEFT_ERR_AGAIN;
}

enum weft_status client_stage_ready(struct client_request *request, struct weft_error *error)
{
    struct client_stage *stage = request->device.stage;
    WEFT_TRY(client_window_is_full(request->session, stage, &stage->windows[0], error));
    stage->posted = stage->done = 1; /* the operation that carries several calls posts it */
    return WEFT_OK;
}

void *client_stage_memory(const struct client_request *request)
{
    return request->device.stage->windows[0].memory;
}
