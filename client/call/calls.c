/* calls.c - see calls.h: state of the folder, and what the engine calls in it. */
#include "client/call/calls.h"

#include <string.h>

#include "client/call/call.h"
#include "client/call/call_group.h"
#include "client/call/device_staging.h"
#include "client/call/fastpath.h"
#include "client/call/input_backup.h"
#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/session/session.h"

static void start(struct weft_session *session)
{
    /* until weft_set_plan */
    memcpy(session->calls->plans, session->settings.plans, sizeof session->calls->plans);
    client_fastpath_init(session);
}

static void completed(struct client_request *request)
{
    if (request->device.stage) client_stage_done(request);
    if (request->device.host_call) request->session->calls->nccl_ops->completed(request);
    client_fastpath_completed(request);
}

static bool is_filling(const struct client_request *request)
{
    return request->device.stage && client_stage_is_filling(request);
}

static enum weft_status copy_out(struct client_request *request, struct weft_error *error)
{
    return request->device.stage ? client_stage_copy_out(request, error) : WEFT_OK;
}

void client_calls_init(struct weft_session *session, struct client_calls *calls)
{
    static const struct client_engine_call_ops ops = {
        .start = start,
        .post_deferred = client_fastpath_post_deferred,
        .wait_begins = client_fastpath_wait_begins,
        .operation = client_call_group_operation,
        .is_filling = is_filling,
        .copy_out = copy_out,
        .completed = completed,
    };
    session->calls = calls;
    session->engine->ops.call = &ops;
    calls->session = session;
    weft_list_init(&calls->weighted_averages);
    weft_list_init(&calls->backups);
    weft_list_init(&calls->idle_backups);
    client_call_group_init(&calls->call_group);
    client_staging_init(session);
}

void client_calls_close(struct weft_session *session)
{
    if (session->calls->nccl_ops) session->calls->nccl_ops->close(session);
}

void client_calls_free(struct weft_session *session)
{
    if (session->calls->nccl_ops) session->calls->nccl_ops->free(session);
    client_call_group_free(session);
    client_staging_free(session);
    client_weighted_averages_free(session);
    client_backup_free(session);
}
