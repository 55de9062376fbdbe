/* stage.c - stages: allocated, used again by later calls, freed with the session. */
#include "client/call/staging/stage.h"

#include <sched.h>
#include <string.h>

#include "client/call/calls.h"
#include "client/engine/request.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define LEAVE_NS WEFT_SECONDS(1)

static void stage_free(struct weft_session *session, struct client_stage *stage)
{
    const struct weft_memory_ops *ops = stage->of ? stage->of->ops : NULL;
    int before;
    bool entered = ops && client_device_enter(stage->of, &before, NULL) == WEFT_OK;
    for (uint32_t w = 0; ops && w < STAGE_WINDOWS; w++) {
        client_window_free(session, &stage->windows[w], ops);
        ops->event_free(stage->windows[w].filled);
        ops->event_free(stage->windows[w].emptied);
    }
    if (ops) ops->event_free(stage->begun);
    if (ops) ops->word_free(stage->hold.word);
    if (entered) ops->leave(before);
    weft_free_bytes(session->env, stage);
}

static enum weft_status make_events(struct client_stage *stage, struct weft_error *error)
{
    const struct weft_memory_ops *ops = stage->of->ops;
    WEFT_TRY(ops->event_create(&stage->begun, error));
    for (uint32_t w = 0; w < STAGE_WINDOWS; w++) {
        WEFT_TRY(ops->event_create(&stage->windows[w].filled, error));
        WEFT_TRY(ops->event_create(&stage->windows[w].emptied, error));
    }
    return WEFT_OK;
}

/* An idle stage of this device, or a new one. The device is current: it gets the new events. */
enum weft_status client_stage_alloc(struct weft_session *session, struct client_device *device,
                                    struct client_stage **out, struct weft_error *error)
{
    struct client_staging *staging = &session->calls->staging;
    struct client_stage *stage = NULL;
    struct weft_list *node, *spare;
    pthread_mutex_lock(&staging->lock);
    weft_list_foreach (node, spare, &staging->idle) {
        struct client_stage *idle = weft_container_of(node, struct client_stage, link);
        if (idle->of != device) continue;
        weft_list_remove(node);
        stage = idle;
        break;
    }
    pthread_mutex_unlock(&staging->lock);
    if (!stage) {
        stage = weft_alloc_zero(session->env, sizeof *stage);
        if (!stage)
            return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to stage a call");
        weft_list_init(&stage->link);
        stage->of = device;
        stage->session = session;
        for (uint32_t w = 0; w < STAGE_WINDOWS; w++) stage->windows[w].stage = stage;
        enum weft_status status = device ? make_events(stage, error) : WEFT_OK;
        if (status < 0) {
            stage_free(session, stage);
            return status;
        }
    }
    for (uint32_t w = 0; w < STAGE_WINDOWS; w++) stage->windows[w].state = WINDOW_IDLE;
    stage->coded = stage->is_gated = stage->hold.is_held = false;
    stage->device = device;
    stage->posted = stage->done = 0;
    stage->emptying_ns = 0;
    stage->ended = false;
    stage->status = WEFT_OK;
    *out = stage;
    return WEFT_OK;
}

void client_stage_release(struct weft_session *session, struct client_stage *stage)
{
    pthread_mutex_lock(&session->calls->staging.lock);
    weft_list_insert_before(session->calls->staging.idle.next, &stage->link);
    pthread_mutex_unlock(&session->calls->staging.lock);
}

void client_stage_drop(struct client_request *request)
{
    struct client_stage *stage = request->device.stage;
    if (!stage) return;
    request->device.stage = NULL;
    if (stage->device) client_stage_end_order(stage);
    /* the engine may use the stage in this moment: it is freed with the session */
    pthread_mutex_lock(&request->session->calls->staging.lock);
    weft_list_append(&request->session->calls->staging.idle, &stage->link);
    pthread_mutex_unlock(&request->session->calls->staging.lock);
}

void client_staging_configure(struct weft_session *session, const Weft__Control__Roster *roster)
{
    struct client_staging *staging = &session->calls->staging;
    staging->piece_bytes = weft_config_u64(session->settings.config, "client.piece_bytes");
    staging->cuts_long_calls = false;
    for (size_t i = 0; i < roster->n_members; i++)
        if (roster->members[i]->role == WEFT__CONTROL__ROLE__ROLE_WORKER && roster->members[i]->device)
            staging->cuts_long_calls = true;
}

void client_staging_init(struct weft_session *session)
{
    struct client_staging *staging = &session->calls->staging;
    pthread_mutex_init(&staging->lock, NULL);
    weft_list_init(&staging->idle);
    weft_list_init(&staging->devices);
    weft_list_init(&staging->open);
    weft_list_init(&staging->copying_out);
    weft_timer_init(&staging->timer, client_stage_poll);
}

static void free_all(struct weft_session *session, struct weft_list *stages, uint64_t until_ns)
{
    bool forked = session->live.pid != weft_process_id();
    while (!weft_list_empty(stages)) {
        struct client_stage *stage = weft_list_first(stages, struct client_stage, link);
        weft_list_remove(&stage->link);
        enum weft_status status = WEFT_OK;
        while (!forked &&
               (status = client_stage_on_device(stage, client_stage_copies_ended, NULL, NULL)) ==
                   WEFT_IN_PROGRESS &&
               weft_now_ns(session->env) < until_ns)
            sched_yield();
        /* a device may still write there; a forked child has no device */
        if (forked || status == WEFT_IN_PROGRESS) continue;
        stage_free(session, stage);
    }
}

void client_staging_free(struct weft_session *session)
{
    struct client_staging *staging = &session->calls->staging;
    uint64_t until_ns = client_deadline(session, LEAVE_NS);
    free_all(session, &staging->open, until_ns);
    free_all(session, &staging->copying_out, until_ns);
    free_all(session, &staging->idle, until_ns);
    while (!weft_list_empty(&staging->devices)) {
        struct client_device *device = weft_list_first(&staging->devices, struct client_device, link);
        weft_list_remove(&device->link);
        if (session->live.pid == weft_process_id()) client_device_free(session, device);
    }
    pthread_mutex_destroy(&staging->lock);
}
