/* window.c - windows of a stage: pinned memory, and the copies of one piece into it and out of it.
 *
 *     idle ──copy down queued──► filling ──event has passed──► full ──► posted ──operation done──► emptying
 *                                   ▲                                            (copy up queued)      │
 *                                   └─────────── piece + STAGE_WINDOWS; down waits for up ─────────────┘
 *
 * No host thread waits for a device: events order the streams. */
#include "client/call/staging/stage.h"

#include "client/call/calls.h"
#include "client/engine/request.h"
#include "client/session/session.h"
#include "transport/transport.h"

void client_window_free(struct weft_session *session, struct window *window,
                        const struct weft_memory_ops *ops)
{
    if (window->pinned) ops->unpin(window->memory);
    weft_memory_free(session->env, window->memory);
    window->memory = NULL;
    window->capacity = 0;
    window->pinned = false;
}

static size_t round_up_to_line(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t window_bytes(const struct client_stage *stage)
{
    if (stage->pieces > 1) return stage->piece_elems * stage->elem_bytes;
    size_t in = stage->extents.in * stage->elem_bytes, out = stage->extents.out * stage->elem_bytes;
    if (stage->has_separate_areas) return round_up_to_line(in) + out;
    return in > out ? in : out;
}

enum weft_status client_window_reserve(struct weft_session *session, struct client_stage *stage,
                                       struct window *window, struct weft_error *error)
{
    const struct weft_memory_ops *ops = stage->device->ops;
    size_t bytes = window_bytes(stage);
    void *memory;
    if (window->capacity >= bytes) return WEFT_OK;
    client_window_free(session, window, ops);
    WEFT_TRY(weft_memory_alloc(session->env, bytes, &memory, error));
    window->memory = memory;
    window->capacity = bytes;
    window->pinned = ops->pin(memory, bytes, NULL) == WEFT_OK; /* without pinning, copies are slower */
    if (!window->pinned)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "%zu bytes of host memory cannot be pinned: copies will be slower", bytes);
    return WEFT_OK;
}

uint64_t client_window_count(const struct client_stage *stage, uint64_t whole, uint64_t piece)
{
    uint64_t at = piece * stage->piece_elems;
    if (at >= whole) return 0;
    return whole - at < stage->piece_elems ? whole - at : stage->piece_elems;
}

uint8_t *client_window_output(const struct client_stage *stage, const struct window *window)
{
    return window->memory +
           (stage->has_separate_areas ? round_up_to_line(stage->extents.in * stage->elem_bytes) : 0);
}

float *client_stage_sum(const struct client_request *request)
{
    const struct client_stage *stage = request->device.stage;
    if (!stage->sum || stage->coded) return stage->sum;
    return (float *)(void *)client_window_output(stage, &stage->windows[0]);
}

/* Queues the copy of a piece into its window, after the previous result has left the window. */
enum weft_status client_window_copy_in(struct client_stage *stage, uint64_t piece, struct weft_error *error)
{
    struct window *window = &stage->windows[piece % STAGE_WINDOWS];
    bool used = window->state == WINDOW_EMPTYING;
    uint64_t count = client_window_count(stage, stage->extents.in, piece);
    window->piece = piece;
    window->filling_ns = weft_now_ns(stage->session->env);
    if (!stage->device) {
        window->state = WINDOW_FULL;
        return WEFT_OK;
    }
    const struct weft_memory_ops *ops = stage->device->ops;
    if (used) WEFT_TRY(ops->wait(stage->device->down, window->emptied, error));
    if (count > 0) {
        const uint8_t *from =
            (const uint8_t *)stage->request->args.in + piece * stage->piece_elems * stage->elem_bytes;
        WEFT_TRY(ops->copy(window->memory, from, count * stage->elem_bytes, stage->device->down, error));
    }
    if (stage->keeps_out) {
        WEFT_TRY(ops->copy(client_window_output(stage, window), stage->request->args.out,
                           stage->extents.out * stage->elem_bytes, stage->device->down, error));
        used = true;
    }
    if (count > 0 || used) WEFT_TRY(ops->record(window->filled, stage->device->down, error));
    window->state = count > 0 || used ? WINDOW_FILLING : WINDOW_FULL;
    return WEFT_OK;
}

enum weft_status client_window_copy_in_first(struct client_stage *stage, struct weft_error *error)
{
    for (uint64_t piece = 0; piece < stage->pieces && piece < STAGE_WINDOWS; piece++)
        WEFT_TRY(client_window_copy_in(stage, piece, error));
    return WEFT_OK;
}

/* Queues the update of the weights from the sum. The device is current. */
enum weft_status client_stage_queue_update(struct client_stage *stage, struct window *unused,
                                           struct weft_error *error)
{
    return stage->session->calls->tensor_ops->queue_update(stage->request->tensor, stage->request->args.out,
                                                           stage->device->coding, error);
}

/* Queues the copy of a result out of its window, or to the sum and the update from it. The device is
 * current. */
enum weft_status client_window_copy_out(struct client_stage *stage, struct window *window,
                                        struct weft_error *error)
{
    uint64_t count = client_window_count(stage, stage->extents.out, window->piece);
    window->state = WINDOW_IDLE;
    if (!stage->device || count == 0) return WEFT_OK;
    const struct weft_memory_ops *ops = stage->device->ops;
    uint8_t *to =
        (uint8_t *)stage->request->args.out + window->piece * stage->piece_elems * stage->elem_bytes;
    void *stream = stage->device->up;
    if (stage->sum) { /* all updates of a tensor are on one stream */
        to = (uint8_t *)stage->sum;
        stream = stage->device->coding;
    }
    WEFT_TRY(ops->wait(stream, stage->begun, error));
    WEFT_TRY(ops->copy(to, client_window_output(stage, window), count * stage->elem_bytes, stream, error));
    if (stage->sum) WEFT_TRY(client_stage_queue_update(stage, NULL, error));
    WEFT_TRY(ops->record(window->emptied, stream, error));
    window->state = WINDOW_EMPTYING;
    stage->emptying_ns = weft_now_ns(stage->session->env);
    return WEFT_OK;
}

/* WEFT_OK: the device uses no window of the stage any more. The device is current. */
enum weft_status client_stage_copies_ended(struct client_stage *stage, struct window *unused,
                                           struct weft_error *error)
{
    if (!stage->device) return WEFT_OK;
    for (uint32_t w = 0; w < STAGE_WINDOWS; w++) {
        enum weft_status status = stage->device->ops->passed(stage->windows[w].filled, error);
        if (status == WEFT_OK) status = stage->device->ops->passed(stage->windows[w].emptied, error);
        if (status != WEFT_OK) return status;
    }
    return WEFT_OK;
}
