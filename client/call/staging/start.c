/* start.c - the start of a call on device memory: checks of its buffers, its pieces, the first copies.
 * Caller's thread. */
#include "client/call/staging/stage.h"

#include <stdio.h>

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"

static void codec_leave(void *context, int before)
{
    const struct client_device *device = context;
    client_device_restore(device->session, device, before);
}

static enum weft_status check_address(struct weft_session *session, const char *name,
                                      const struct weft_memory_ops *ops, const char *which,
                                      const void *address, int *device_out)
{
    struct weft_error error = {0};
    enum weft_memory_kind kind;
    int device;
    enum weft_status status = ops->find(address, &kind, &device, &error);
    if (status < 0) return client_error(session, status, "%s: %.380s", name, error.text);
    if (!weft_memory_is_device(kind))
        return client_error(session, WEFT_ERR_INVALID,
                            "%s: `%s` at %p is declared as %s memory and is host memory", name, which,
                            address, ops->name);
    if (*device_out >= 0 && *device_out != device)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s: `in` lies on device %d and `out` on device %d; they must share one", name,
                            *device_out, device);
    *device_out = device;
    return WEFT_OK;
}

static enum weft_status find_device(struct weft_session *session, const char *name,
                                    enum weft_memory_kind memory, const void *in, const void *out,
                                    struct client_extents extents, const struct weft_memory_ops **ops_out,
                                    int *device_out)
{
    struct weft_error error = {0};
    enum weft_status status = weft_memory_ops(memory, ops_out, &error);
    if (status < 0) return client_error(session, status, "%s: %.400s", name, error.text);
    *device_out = -1;
    if (extents.in > 0) WEFT_TRY(check_address(session, name, *ops_out, "in", in, device_out));
    if (extents.out > 0) WEFT_TRY(check_address(session, name, *ops_out, "out", out, device_out));
    return WEFT_OK;
}

/* Depends on call and job alone, so all ranks choose the same pieces. */
static void choose_pieces(const struct weft_session *session, struct client_stage *stage,
                          const struct client_request *request)
{
    uint64_t elems = session->calls->staging.piece_bytes / stage->elem_bytes;
    stage->pieces = 1;
    stage->piece_elems = stage->extents.in > stage->extents.out ? stage->extents.in : stage->extents.out;
    if (!session->calls->staging.cuts_long_calls || request->tensor || !coll_can_be_cut(request->args.kind) ||
        request->args.count <= elems)
        return;
    stage->piece_elems = elems;
    stage->pieces = (request->args.count + elems - 1) / elems;
}

/* Orders the copies after the work on the caller's stream. Copies up wait for that event when they are
 * queued, so that results of other calls do not wait for this stream. The device is current. */
static enum weft_status begin_stage(struct weft_session *session, struct client_stage *stage,
                                    struct weft_error *error)
{
    if (stage->coded) {
        stage->windows[0].state = WINDOW_FILLING;
        stage->windows[0].filling_ns = weft_now_ns(session->env);
        WEFT_TRY(stage->device->ops->record(stage->begun, stage->stream, error));
        return stage->request->device.on_stream ? client_stage_hold_stream(session, stage, error) : WEFT_OK;
    }
    if (stage->device) {
        const struct weft_memory_ops *ops = stage->device->ops;
        for (uint32_t w = 0; w < stage->pieces && w < STAGE_WINDOWS; w++)
            WEFT_TRY(client_window_reserve(session, stage, &stage->windows[w], error));
        WEFT_TRY(ops->record(stage->begun, stage->stream, error));
        if (stage->request->device.on_stream) WEFT_TRY(client_stage_hold_stream(session, stage, error));
        if (stage->device->has_stream_order) {
            client_stage_gate(stage);
            return WEFT_OK;
        }
        WEFT_TRY(ops->wait(stage->device->down, stage->begun, error));
    }
    return client_window_copy_in_first(stage, error);
}

static enum weft_status start_on(struct client_request *request, const struct weft_memory_ops *ops,
                                 int number, struct client_extents extents, bool keeps_out, bool may_code,
                                 struct weft_error *error)
{
    struct weft_session *session = request->session;
    struct client_device *device = NULL;
    struct client_stage *stage = NULL;
    bool coded = false;
    float *sum = NULL;
    if (ops) WEFT_TRY(client_device_find(session, ops, number, &device, error));
    if (may_code) {
        const struct weft_codec_device where = {.memory = ops,
                                                .number = number,
                                                .ranks = session->ranks,
                                                .stream = device->coding,
                                                .leave = codec_leave,
                                                .context = device,
                                                .batcher = device->batcher,
                                                .hangs = &device->is_stuck};
        WEFT_TRY(session->calls->tensor_ops->place_update(request->tensor, &where, &sum, error));
        WEFT_TRY(session->calls->tensor_ops->place_codec(request->tensor, &where, &coded, error));
    }
    WEFT_TRY(client_stage_alloc(session, device, &stage, error));
    stage->coded = coded;
    stage->request = request;
    stage->stream = request->device.stream;
    stage->extents = extents;
    stage->elem_bytes = weft_dtype_bytes((enum weft_dtype)request->args.dtype);
    stage->has_separate_areas = request->tensor || !coll_can_be_cut(request->args.kind);
    stage->keeps_out = keeps_out && !sum;
    stage->sum = sum;
    stage->resume = NULL;
    choose_pieces(session, stage, request);
    enum weft_status status = begin_stage(session, stage, error);
    if (status < 0) { /* a device that refuses has started no copy of it, or is lost */
        client_stage_release(session, stage);
        return status;
    }
    request->device.stage = stage;
    return WEFT_OK;
}

enum weft_status client_stage_start(struct client_request *request, struct client_extents extents)
{
    struct weft_session *session = request->session;
    const char *name = weft_coll_kind_name((enum weft_coll_kind)request->args.kind);
    bool on_device = weft_memory_is_device(request->device.memory) && (extents.in > 0 || extents.out > 0);
    const struct weft_memory_ops *ops = NULL;
    int number = -1, before = -1;
    struct weft_error error = {0};
    request->device.stage = NULL;
    if (!on_device) {
        bool is_long = session->calls->staging.cuts_long_calls && coll_can_be_cut(request->args.kind) &&
                       request->args.count > session->calls->staging.piece_bytes /
                                            weft_dtype_bytes((enum weft_dtype)request->args.dtype);
        if (!is_long) return WEFT_OK;
    } else {
        WEFT_TRY(find_device(session, name, (enum weft_memory_kind)request->device.memory, request->args.in,
                             request->args.out, extents, &ops, &number));
    }
    enum weft_status status = ops ? ops->enter(number, &before, &error) : WEFT_OK;
    if (status == WEFT_OK) status = start_on(request, ops, number, extents, false, false, &error);
    if (ops && before >= 0) ops->leave(before);
    return status < 0 ? client_error(session, status, "%s: %.400s", name, error.text) : WEFT_OK;
}

enum weft_status client_stage_start_tensor(struct client_request *request, enum weft_memory_kind memory,
                                           void *stream, struct client_extents extents, bool keeps_out,
                                           bool may_code, const void **host_in_out, void **host_out_out)
{
    struct weft_session *session = request->session;
    char name[300];
    const struct weft_memory_ops *ops;
    int number, before;
    struct weft_error error = {0};
    snprintf(name, sizeof name, "tensor '%s'", session->calls->tensor_ops->name(request->tensor));
    WEFT_TRY(find_device(session, name, memory, request->args.in, request->args.out, extents, &ops, &number));
    request->device.memory = (uint8_t)memory;
    request->device.stream = stream;
    enum weft_status status = ops->enter(number, &before, &error);
    if (status == WEFT_OK) {
        status = start_on(request, ops, number, extents, keeps_out, may_code, &error);
        ops->leave(before);
    }
    if (status < 0) return client_error(session, status, "%s: %.150s", name, error.text);
    if (request->device.stage->coded) return WEFT_OK;
    *host_in_out = request->device.stage->windows[0].memory;
    *host_out_out = client_window_output(request->device.stage, &request->device.stage->windows[0]);
    return WEFT_OK;
}
