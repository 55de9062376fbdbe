/* pieces.c - the operations of a call, one for each piece, and its end. Engine thread. */
#include "client/call/staging/stage.h"

#include <stdio.h>

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/session.h"

enum weft_status client_stage_copy_out(struct client_request *request, struct weft_error *error)
{
    /* the codec wrote the result to `out`, or to the sum */
    if (request->device.stage->coded && !request->device.stage->sum) return WEFT_OK;
    if (request->device.stage->coded)
        return client_stage_on_device(request->device.stage, client_stage_queue_update, NULL, error);
    return client_stage_on_device(request->device.stage, client_window_copy_out,
                                  &request->device.stage->windows[0], error);
}

void client_stage_done(struct client_request *request)
{
    struct client_stage *stage = request->device.stage;
    stage->resume = NULL;
    struct weft_session *session = request->session;
    request->device.stage = NULL;
    weft_list_remove(&stage->link);
    if (!stage->device) {
        client_stage_release(session, stage);
        return;
    }
    client_stage_end_order(stage);
    weft_list_append(&session->calls->staging.copying_out, &stage->link);
    client_stage_poll_soon(session);
}

/* All posted pieces are done, and no further piece will be posted. */
static void complete_request(struct client_stage *stage)
{
    struct client_request *request = stage->request;
    struct weft_session *session = request->session;
    if (session->engine->failed)
        client_request_complete(request, session->engine->failed, session->engine->failed_text);
    else if (stage->status < 0) client_call_failed(&request->op, stage->status, stage->text);
    else client_request_complete(request, WEFT_OK, NULL);
}

static void stop_stage(struct client_stage *stage, enum weft_status status, const char *text)
{
    if (stage->status < 0) return;
    stage->status = status;
    snprintf(stage->text, sizeof stage->text, "%.299s", text ? text : weft_reason_text(status));
    if (stage->posted < stage->pieces && !stage->ended) {
        stage->ended = true;
        weft_list_remove(&stage->request->op.link); /* no further piece: the call leaves the queue */
    }
}

/* Copies the result out of the window, and the piece `STAGE_WINDOWS` later into it. */
static enum weft_status refill_window(struct client_stage *stage, struct window *window,
                                      struct weft_error *error)
{
    uint64_t next = window->piece + STAGE_WINDOWS;
    WEFT_TRY(client_window_copy_out(stage, window, error));
    return next < stage->pieces ? client_window_copy_in(stage, next, error) : WEFT_OK;
}

static void piece_done(void *context, enum weft_status status, const char *text)
{
    struct window *window = context;
    struct client_stage *stage = window->stage;
    struct client_request *request = stage->request;
    struct weft_session *session = request->session;
    struct weft_error error = {0};
    window->coll = NULL;
    request->op.coll = NULL;
    for (uint32_t w = 0; w < STAGE_WINDOWS; w++) /* for the sentence about what the call waits for */
        if (stage->windows[w].coll) request->op.coll = stage->windows[w].coll;
    stage->done++;
    window->state = WINDOW_IDLE;
    if (status == WEFT_OK && stage->status == WEFT_OK && !stage->ended) {
        window->state = WINDOW_POSTED;
        status = client_stage_on_device(stage, refill_window, window, &error);
        text = error.text;
    }
    if (status < 0) stop_stage(stage, status, text);
    bool all_posted = stage->posted == stage->pieces || stage->ended;
    struct weft_list *queue = client_engine_group_queue(&request->op);
    /* the request may be freed now */
    if (all_posted && stage->done == stage->posted) complete_request(stage);
    if (!session->engine->failed) client_engine_pump(queue);
}

static void *offset_or_null(const void *memory, size_t bytes)
{
    return memory ? (uint8_t *)memory + bytes : NULL;
}

enum weft_status client_stage_post(struct client_request *request, struct weft_error *error)
{
    struct client_stage *stage = request->device.stage;
    while (stage->posted < stage->pieces) {
        struct window *window = &stage->windows[stage->posted % STAGE_WINDOWS];
        /* the window still has an earlier piece, whose end pumps the queue */
        if (window->piece != stage->posted) return WEFT_ERR_AGAIN;
        WEFT_TRY(client_window_is_full(request->session, stage, window, error));
        struct weft_coll_args args;
        client_call_args(request, &args);
        uint64_t at = stage->posted * stage->piece_elems * stage->elem_bytes;
        if (stage->pieces > 1) args.count = client_window_count(stage, request->args.count, stage->posted);
        args.in = stage->device ? window->memory : offset_or_null(request->args.in, at);
        args.out =
            stage->device ? client_window_output(stage, window) : offset_or_null(request->args.out, at);
        WEFT_TRY(
            weft_coll_post(client_request_group(request), &args, piece_done, window, &window->coll, error));
        request->op.coll = window->coll;
        atomic_store_explicit(&request->session->calls->last_plan, (int)weft_coll_plan(window->coll),
                              memory_order_relaxed);
        request->is_next = false;
        window->state = WINDOW_POSTED;
        stage->posted++;
    }
    return WEFT_IN_PROGRESS;
}

bool client_stage_ended(struct client_request *request, enum weft_status status, const char *text)
{
    struct client_stage *stage = request->device.stage;
    stage->ended = true; /* the call is out of the queue */
    if (status < 0) stop_stage(stage, status, text);
    return stage->done == stage->posted;
}

bool client_stage_in_pieces(const struct client_request *request)
{
    return request->device.stage && request->device.stage->pieces > 1;
}
bool client_stage_is_filling(const struct client_request *request)
{
    return request->device.stage->device && request->device.stage->posted == 0;
}
