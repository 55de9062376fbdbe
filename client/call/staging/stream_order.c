/* stream_order.c - order between the caller's stream and the copies of a call.
 *
 * A stream-ordered call (on_stream) makes its stream wait for a word of the stage. The stream `up` stores the
 * word behind the last copy of the call. While a stream may wait for a word, `down` and `up` must not wait
 * for that stream, also not through others. Then each stage is gated: its copies are queued after `begun` has
 * passed. */
#include "client/call/staging/stage.h"

#include <sched.h>

#include "client/call/calls.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"

#define END_NS WEFT_SECONDS(1) /* a driver that refuses to release a stream */

/* Makes the caller's stream wait for the end of the call. If the driver cannot do it, the caller blocks. */
enum weft_status client_stage_hold_stream(struct weft_session *session, struct client_stage *stage,
                                          struct weft_error *error)
{
    struct client_device *device = stage->device;
    const struct weft_memory_ops *ops = device->ops;
    struct weft_error refused = {0};
    enum weft_status status = device->words_refused ? WEFT_ERR_UNSUPPORTED : WEFT_OK;
    if (status == WEFT_OK && !stage->hold.word) status = ops->word_create(&stage->hold.word, &refused);
    if (status == WEFT_OK)
        status = ops->wait_word(stage->stream, stage->hold.word, stage->hold.value + 1, &refused);
    if (status == WEFT_ERR_UNSUPPORTED) {
        if (!device->words_refused)
            weft_log(session->env, WEFT_LOG_WARN, "client", "stream-ordered calls block their caller: %s",
                     refused.text);
        device->words_refused = true;
        stage->request->device.must_block = true;
        return WEFT_OK;
    }
    if (status < 0) return (enum weft_status)weft_error_set(error, status, "%s", refused.text);
    stage->hold.value++;
    stage->hold.is_held = true;
    device->has_stream_order = true;
    return WEFT_OK;
}

void client_stage_gate(struct client_stage *stage)
{
    stage->is_gated = true;
    for (uint32_t w = 0; w < STAGE_WINDOWS; w++) {
        stage->windows[w].piece = w;
        stage->windows[w].state = WINDOW_FILLING;
    }
}

/* Orders all later work of the caller's stream after the copies of this call. */
static enum weft_status order_after_copies(struct client_stage *stage, struct window *unused,
                                           struct weft_error *error)
{
    if (stage->coded) { /* the codec's work, also of a failed call, uses the caller's buffers */
        stage->session->calls->tensor_ops->settle_codec(stage->request->tensor);
        WEFT_TRY(stage->device->ops->record(stage->windows[0].emptied, stage->device->coding, error));
    }
    void *follower = stage->hold.is_held ? stage->device->up : stage->stream;
    for (uint32_t w = 0; w < STAGE_WINDOWS; w++) {
        WEFT_TRY(stage->device->ops->wait(follower, stage->windows[w].filled, error));
        WEFT_TRY(stage->device->ops->wait(follower, stage->windows[w].emptied, error));
    }
    return WEFT_OK;
}

/* Lets the caller's stream continue behind the copies of this call. The stage is used again after `emptied`,
 * so no store of an earlier value is pending then. */
static enum weft_status release_stream(struct client_stage *stage, struct window *unused,
                                       struct weft_error *error)
{
    const struct weft_memory_ops *ops = stage->device->ops;
    WEFT_TRY(order_after_copies(stage, NULL, error));
    WEFT_TRY(ops->write_word(stage->device->up, stage->hold.word, stage->hold.value, error));
    return ops->record(stage->windows[0].emptied, stage->device->up, error);
}

/* The stream is not ordered behind some copies, which may still write to its buffers. Waits for these
 * copies, at most END_NS. A device that has failed copies no more. */
static void wait_for_copies(struct client_stage *stage)
{
    struct weft_env *env = stage->session->env;
    const uint64_t limit_ns = weft_now_ns(env) + END_NS;
    while (client_stage_on_device(stage, client_stage_copies_ended, NULL, NULL) == WEFT_IN_PROGRESS &&
           weft_now_ns(env) < limit_ns)
        sched_yield();
}

/* The call has ended, or does not start. */
void client_stage_end_order(struct client_stage *stage)
{
    if (!stage->hold.is_held) {
        /* if the device refuses, the caller's stream cannot run either */
        client_stage_on_device(stage, order_after_copies, NULL, NULL);
        return;
    }
    struct weft_error error = {0};
    const enum weft_status status = client_stage_on_device(stage, release_stream, NULL, &error);
    if (status < 0) {
        wait_for_copies(stage);
        atomic_store(stage->hold.word, stage->hold.value);
        client_fail(stage->session, status, true,
                    "rank %u: the stream of a call was released without its result: %.300s",
                    stage->session->rank, error.text);
    }
    stage->hold.is_held = false;
}
