/* capture.c - this rank's part of a snapshot: armed by the coordinator, captured at the end of the step, sent
 * when the coordinator requests it.
 *
 *     net thread   Snap(id, step) -> the step has not ended: armed, SnapArmed; else SnapArmed(late)
 *     caller       weft_step_end of the step -> blob and residuals are copied -> SnapPart(bytes)
 *     net thread   SnapWanted(offset) -> SnapData, until all is stored -> the copy is freed
 *
 * SnapArmed is queued under the lock, so that it precedes SnapPart. A failure to capture ends the snapshot,
 * and the job continues. */
#include <stdio.h>
#include <string.h>

#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "client/tensor/snapshot/part.h"
#include "client/tensor/snapshot/snapshot.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

static struct client_snapshot *snapshot_of(const struct weft_session *session)
{
    return &session->tensors->snapshot;
}

void client_snapshot_init(struct weft_session *session)
{
    pthread_mutex_init(&snapshot_of(session)->lock, NULL);
    session->ops.snapshot_message = client_snapshot_message;
}

/* Under the lock. */
static void free_part(struct weft_session *session)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    weft_free_bytes(session->env, snapshot->part);
    snapshot->part = NULL;
    weft_loop_notify(session->loop); /* weft_finalize may wait for it */
}

/* ---- net thread ---- */

static void on_snap(struct weft_session *session, const Weft__Control__Snap *snap)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    Weft__Control__SnapArmed armed = WEFT__CONTROL__SNAP_ARMED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    pthread_mutex_lock(&snapshot->lock);
    if (snapshot->part) free_part(session); /* of an older one */
    armed.id = snap->id;
    armed.late = snapshot->ended >= snap->step;
    armed.newest = armed.late ? snapshot->ended + 1 : 0; /* that step may be running */
    snapshot->is_armed = !snap->drop && !armed.late;
    snapshot->id = snapshot->is_armed ? snap->id : 0;
    snapshot->step = snap->step;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_ARMED;
    message.snap_armed = &armed;
    if (!snap->drop)
        (void)client_control_send(session, &message); /* else the next one doubles the distance */
    pthread_mutex_unlock(&snapshot->lock);
}

static void on_wanted(struct weft_session *session, const Weft__Control__SnapWanted *wanted)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    Weft__Control__SnapData data = WEFT__CONTROL__SNAP_DATA__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    pthread_mutex_lock(&snapshot->lock);
    if (snapshot->part && wanted->id == snapshot->id && wanted->offset >= snapshot->part_bytes) {
        free_part(session);
    } else if (snapshot->part && wanted->id == snapshot->id) {
        const uint64_t rest = snapshot->part_bytes - wanted->offset;
        data.id = wanted->id;
        data.offset = wanted->offset;
        data.data.data = snapshot->part + wanted->offset;
        data.data.len = rest < WEFT_LIMIT_SNAP_DATA_BYTES ? rest : WEFT_LIMIT_SNAP_DATA_BYTES;
        message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_DATA;
        message.snap_data = &data;
        (void)client_control_send(session,
                                  &message); /* the coordinator ends the snapshot after its deadline */
    }
    pthread_mutex_unlock(&snapshot->lock);
}

bool client_snapshot_message(struct weft_session *session, Weft__Control__Control *message)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP) on_snap(session, message->snap);
    else if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP_WANTED)
        on_wanted(session, message->snap_wanted);
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED) return false;
    pthread_mutex_lock(&snapshot->lock);
    Weft__Control__Control *older = snapshot->answer;
    snapshot->answer = message;
    pthread_mutex_unlock(&snapshot->lock);
    if (older) weft_control_free(session->env, older);
    weft_loop_notify(session->loop);
    return true;
}

/* ---- caller's thread ---- */

static bool has_residual(const struct weft_tensor *tensor)
{
    return tensor->codec || tensor->arrays.carry;
}

static enum weft_status write_part(struct weft_session *session, uint8_t *out, uint64_t bytes,
                                   uint32_t records)
{
    const struct client_snapshot *snapshot = snapshot_of(session);
    const struct client_part_head head = {.step = session->step.number,
                                          .blob_bytes = snapshot->blob_bytes,
                                          .ranks = session->ranks,
                                          .records = records};
    struct weft_list *node, *spare;
    uint8_t *at = client_part_begin(out, &head, snapshot->blob), *data;
    weft_list_foreach (node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (!has_residual(tensor)) continue;
        const uint64_t residual_bytes = weft_residual_bytes(tensor);
        at = client_part_add(at, tensor->name, residual_bytes, &data);
        WEFT_TRY(weft_residual_save(tensor, data, residual_bytes));
    }
    client_part_end(out, bytes);
    return WEFT_OK;
}

static enum weft_status capture(struct weft_session *session, uint8_t **part_out, uint64_t *bytes_out)
{
    uint64_t record_bytes = 0;
    uint32_t records = 0;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (!has_residual(tensor)) continue;
        record_bytes += client_part_record_bytes((uint32_t)strlen(tensor->name), weft_residual_bytes(tensor));
        records++;
    }
    *bytes_out = client_part_bytes(snapshot_of(session)->blob_bytes, record_bytes);
    if (*bytes_out > WEFT_LIMIT_SNAP_PART_BYTES) return WEFT_ERR_LIMIT;
    *part_out = weft_alloc_bytes(session->env, *bytes_out);
    if (!*part_out) return WEFT_ERR_NO_MEMORY;
    const enum weft_status status = write_part(session, *part_out, *bytes_out, records);
    if (status < 0) weft_free_bytes(session->env, *part_out);
    return status;
}

/* Announces the part, or that there is none. */
static void announce(struct weft_session *session, uint32_t id, enum weft_status status, uint8_t *data,
                     uint64_t bytes)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    Weft__Control__SnapPart part = WEFT__CONTROL__SNAP_PART__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    char why[120];
    snprintf(why, sizeof why, "its residuals could not be copied: %s", weft_reason_text(status));
    part.id = id;
    part.rank = session->rank;
    if (status < 0) part.error = why;
    else part.bytes = bytes;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PART;
    message.snap_part = &part;
    pthread_mutex_lock(&snapshot->lock);
    const bool is_current = snapshot->id == id && client_control_send(session, &message) == WEFT_OK;
    if (is_current && status == WEFT_OK) {
        snapshot->part = data;
        snapshot->part_bytes = bytes;
        data = NULL;
    }
    pthread_mutex_unlock(&snapshot->lock);
    if (status == WEFT_OK) weft_free_bytes(session->env, data); /* the snapshot has ended meanwhile */
}

void client_snapshot_step_ended(struct weft_session *session)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    uint8_t *data = NULL;
    uint64_t bytes = 0;
    pthread_mutex_lock(&snapshot->lock);
    const bool is_due = snapshot->is_armed && snapshot->step == session->step.number;
    const uint32_t id = snapshot->id;
    snapshot->ended = session->step.number;
    if (is_due) snapshot->is_armed = false;
    pthread_mutex_unlock(&snapshot->lock);
    client_snapshot_restored_end(session);
    if (!is_due) return;
    const uint64_t began_ns = weft_now_ns(session->env);
    const enum weft_status status = capture(session, &data, &bytes);
    session->totals.snapshot_ns += weft_elapsed_ns(began_ns, weft_now_ns(session->env));
    announce(session, id, status, data, bytes);
}

static bool is_stored(void *context)
{
    struct weft_session *session = context;
    struct client_snapshot *snapshot = snapshot_of(session);
    pthread_mutex_lock(&snapshot->lock);
    const bool has_part = snapshot->part != NULL;
    pthread_mutex_unlock(&snapshot->lock);
    return !has_part || client_failed(session) < 0;
}

void client_snapshot_finish(struct weft_session *session, uint64_t until_ns)
{
    if (client_wait_for(session, is_stored, session, until_ns) < 0)
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "rank %u leaves before its part of the snapshot of step %llu is stored: that snapshot fails",
                 session->rank, (unsigned long long)snapshot_of(session)->step);
}

enum weft_status weft_snapshot_blob(struct weft_session *session, const void *data, uint64_t bytes)
{
    if (!session) return client_null_argument("snapshot_blob", "session");
    WEFT_TRY(client_usable(session));
    struct client_snapshot *snapshot = snapshot_of(session);
    if (!data && bytes > 0)
        return client_error(session, WEFT_ERR_INVALID, "snapshot_blob: data is NULL, and bytes is %llu",
                            (unsigned long long)bytes);
    if (bytes > CLIENT_PART_BLOB_BYTES_MAX)
        return client_error(
            session, WEFT_ERR_LIMIT,
            "snapshot_blob: %llu bytes, and at most %llu are allowed: keep large data in files, "
            "and their names in the blob",
            (unsigned long long)bytes, (unsigned long long)CLIENT_PART_BLOB_BYTES_MAX);
    uint8_t *copy = bytes > 0 ? weft_alloc_bytes(session->env, bytes) : NULL;
    if (bytes > 0 && !copy)
        return client_error(session, WEFT_ERR_NO_MEMORY, "snapshot_blob: no memory for a copy of %llu bytes",
                            (unsigned long long)bytes);
    if (copy) memcpy(copy, data, bytes);
    weft_free_bytes(session->env, snapshot->blob);
    snapshot->blob = copy;
    snapshot->blob_bytes = bytes;
    return WEFT_OK;
}
