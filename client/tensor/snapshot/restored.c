/* restored.c - the workers' parts of the snapshot that the job has restored.
 *
 *     weft_init       part of rank r -> rank r; with fewer ranks n: also parts r + n, r + 2n, ...
 *                     with more ranks: rank r shares part r % parts with other ranks
 *     weft_declare    the tensor's residual in each of these parts -> the tensor
 *     first step      the parts are freed
 *
 * weft_residual_load scales a residual so that the mean over the ranks is kept. Ranks that share a part
 * restore equal shares of its residual, and all of its warm start and counters: those are equal on all
 * ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "client/tensor/snapshot/part.h"
#include "client/tensor/snapshot/snapshot.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

#define FIRST_BYTES ((uint64_t)1 << 16) /* of a buffer, which doubles as bytes arrive */

static struct client_snapshot *snapshot_of(const struct weft_session *session)
{
    return &session->tensors->snapshot;
}

static void parts_free(struct weft_session *session)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    for (uint32_t i = 0; i < snapshot->restored_count; i++)
        weft_free_bytes(session->env, snapshot->restored[i].data);
    weft_free_bytes(session->env, snapshot->restored);
    snapshot->restored = NULL;
    snapshot->restored_count = 0;
}

void client_snapshot_free(struct weft_session *session)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    parts_free(session);
    weft_free_bytes(session->env, snapshot->blob);
    weft_free_bytes(session->env, snapshot->part);
    if (snapshot->answer) weft_control_free(session->env, snapshot->answer);
    pthread_mutex_destroy(&snapshot->lock);
}

/* ---- fetching ---- */

static bool has_answer(void *context)
{
    struct weft_session *session = context;
    struct client_snapshot *snapshot = snapshot_of(session);
    pthread_mutex_lock(&snapshot->lock);
    const bool has = snapshot->answer != NULL;
    pthread_mutex_unlock(&snapshot->lock);
    return has || client_failed(session) < 0;
}

/* The answer to the open request; the caller frees it. */
static enum weft_status wait_answer(struct weft_session *session, Weft__Control__Control **answer_out)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    const enum weft_status waited = client_wait_for(session, has_answer, session,
                                                    client_deadline(session, session->settings.deadline_ns));
    pthread_mutex_lock(&snapshot->lock);
    *answer_out = snapshot->answer;
    snapshot->answer = NULL;
    pthread_mutex_unlock(&snapshot->lock);
    if (*answer_out) snapshot->is_fetching = false;
    else if (waited == WEFT_OK) return client_usable(session);
    return *answer_out
               ? WEFT_OK
               : client_error(session, WEFT_ERR_DEADLINE,
                              "the coordinator at %.100s:%u has not sent bytes of the restored snapshot "
                              "within %.0f s",
                              session->settings.host, session->settings.port,
                              (double)session->settings.deadline_ns / 1e9);
}

static enum weft_status request_bytes(struct weft_session *session, uint32_t rank, uint64_t offset,
                                      Weft__Control__Control **answer_out)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    Weft__Control__SnapFetch fetch = WEFT__CONTROL__SNAP_FETCH__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    if (snapshot->is_fetching) { /* of a call that has timed out */
        WEFT_TRY(wait_answer(session, answer_out));
        weft_control_free(session->env, *answer_out);
    }
    fetch.rank = rank;
    fetch.offset = offset;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH;
    message.snap_fetch = &fetch;
    WEFT_TRY(client_control_send(session, &message));
    snapshot->is_fetching = true;
    return wait_answer(session, answer_out);
}

/* Appends the bytes of an answer to the part. */
static enum weft_status append(struct weft_session *session, struct client_restored_part *part,
                               uint64_t *capacity, const Weft__Control__SnapFetched *fetched)
{
    if (fetched->error[0])
        return client_error(session, WEFT_ERR_IO,
                            "the part of rank %u in the snapshot cannot be read: %.300s", part->rank,
                            fetched->error);
    if (fetched->bytes == 0) return WEFT_ERR_NOT_FOUND;
    if (fetched->rank != part->rank || fetched->offset != part->bytes)
        return client_error(session, WEFT_ERR_MALFORMED,
                            "the coordinator has sent other bytes of the snapshot than rank %u requested",
                            session->rank);
    if (part->bytes + fetched->data.len > *capacity) {
        uint64_t more = *capacity ? 2 * *capacity : FIRST_BYTES;
        while (more < part->bytes + fetched->data.len) more *= 2;
        if (more > fetched->bytes) more = fetched->bytes;
        uint8_t *data = weft_alloc_bytes(session->env, more);
        if (!data) return client_error(session, WEFT_ERR_NO_MEMORY, "no memory for a part of a snapshot");
        if (part->bytes > 0) memcpy(data, part->data, part->bytes);
        weft_free_bytes(session->env, part->data);
        part->data = data;
        *capacity = more;
    }
    memcpy(part->data + part->bytes, fetched->data.data, fetched->data.len);
    part->bytes += fetched->data.len;
    return WEFT_OK;
}

/* Extent of a fetch of a part; the blob follows the head. */
enum extent { HEAD, BLOB, WHOLE };

static bool is_enough(const struct client_restored_part *part, uint64_t total, enum extent extent)
{
    struct client_part_head head;
    if (part->bytes >= total) return true;
    if (extent == WHOLE || part->bytes < CLIENT_PART_HEAD_BYTES) return false;
    return extent == HEAD || !client_part_read_head(part->data, part->bytes, total, &head) ||
           part->bytes >= CLIENT_PART_HEAD_BYTES + head.blob_bytes;
}

/* Fetches the rank's part, or its first bytes. WEFT_ERR_NOT_FOUND without a sentence: the rank has none. On
 * an error `part` has no memory. */
static enum weft_status fetch_part(struct weft_session *session, uint32_t rank, enum extent extent,
                                   struct client_restored_part *part, uint64_t *total_out)
{
    uint64_t capacity = 0;
    enum weft_status status;
    *part = (struct client_restored_part){.rank = rank};
    do {
        Weft__Control__Control *answer = NULL;
        status = request_bytes(session, rank, part->bytes, &answer);
        if (status == WEFT_OK) {
            *total_out = answer->snap_fetched->bytes;
            status = append(session, part, &capacity, answer->snap_fetched);
            weft_control_free(session->env, answer);
        }
    } while (status == WEFT_OK && !is_enough(part, *total_out, extent));
    struct client_part_head head;
    const bool is_valid =
        status == WEFT_OK &&
        (extent == WHOLE ? client_part_is_whole(part->data, part->bytes)
                         : client_part_read_head(part->data, part->bytes, *total_out, &head));
    if (status == WEFT_OK && !is_valid)
        status = client_error(session, WEFT_ERR_MALFORMED,
                              "the part of rank %u in the snapshot is damaged, or of another version of weft",
                              rank);
    if (status == WEFT_OK) return WEFT_OK;
    weft_free_bytes(session->env, part->data);
    part->data = NULL;
    return status;
}

/* Ranks below `ranks` that restore the part. */
static uint32_t shares_of(uint32_t part, uint32_t parts, uint32_t ranks)
{
    return ranks <= part ? 1 : (ranks - part + parts - 1) / parts;
}

enum weft_status client_snapshot_fetch(struct weft_session *session)
{
    struct client_snapshot *snapshot = snapshot_of(session);
    const uint32_t parts = session->membership.is_newcomer ? 0 : session->control.parts, rank = session->rank,
                   ranks = session->ranks, first = parts > 0 ? rank % parts : 0;
    snapshot->ended = session->step.number;
    snapshot->parts = parts;
    if (parts == 0) return WEFT_OK;
    snapshot->shares = shares_of(first, parts, ranks);
    snapshot->restored = weft_alloc_zero(session->env, parts * sizeof *snapshot->restored);
    if (!snapshot->restored)
        return client_error(session, WEFT_ERR_NO_MEMORY, "no memory for parts of a snapshot");
    for (uint32_t part = first; part < parts; part += ranks) {
        uint64_t total;
        const enum weft_status status =
            fetch_part(session, part, WHOLE, &snapshot->restored[snapshot->restored_count], &total);
        if (status == WEFT_OK) snapshot->restored_count++;
        else if (status != WEFT_ERR_NOT_FOUND) return status;
    }
    return WEFT_OK;
}

/* ---- restoring ---- */

enum weft_status client_snapshot_restore_tensor(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    const struct client_snapshot *snapshot = snapshot_of(session);
    bool adds = false;
    for (uint32_t i = 0; i < snapshot->restored_count; i++) {
        struct client_part_record record;
        const struct client_restored_part *part = &snapshot->restored[i];
        if (!client_part_find(part->data, part->bytes, tensor->name, &record)) continue;
        const enum weft_status status = client_residual_restore(
            tensor, record.data, record.bytes, adds ? 1.0f : 1.0f / (float)snapshot->shares, adds);
        if (status < 0) { /* the other ranks depend on this one */
            client_fail(
                session, status, true, "rank %u cannot restore tensor '%.100s' from the snapshot: %.250s",
                session->rank, tensor->name,
                session->failure.error.text[0] ? session->failure.error.text : weft_reason_text(status));
            return client_usable(session);
        }
        adds = true;
    }
    return WEFT_OK;
}

void client_snapshot_restored_end(struct weft_session *session)
{
    if (snapshot_of(session)->restored) parts_free(session);
}

enum weft_status weft_snapshot_restored_blob(struct weft_session *session, uint32_t rank, void *out,
                                             uint64_t *bytes, uint64_t *step_out)
{
    struct client_restored_part part;
    struct client_part_head head = {.blob_bytes = 0};
    uint64_t total = 0;
    if (!session) return client_null_argument("snapshot_restored_blob", "session");
    WEFT_TRY(client_usable(session));
    if (!bytes) return client_error(session, WEFT_ERR_INVALID, "snapshot_restored_blob: bytes is NULL");
    const uint64_t capacity = *bytes;
    enum weft_status status = rank < snapshot_of(session)->parts
                                  ? fetch_part(session, rank, out ? BLOB : HEAD, &part, &total)
                                  : WEFT_ERR_NOT_FOUND;
    if (status == WEFT_ERR_NOT_FOUND)
        return client_error(session, status,
                            "snapshot_restored_blob: the job has restored no snapshot with a part of rank %u",
                            rank);
    WEFT_TRY(status);
    (void)client_part_read_head(part.data, part.bytes, total, &head);
    *bytes = head.blob_bytes;
    if (step_out) *step_out = head.step;
    if (out && head.blob_bytes > capacity)
        status = client_error(session, WEFT_ERR_INVALID,
                              "snapshot_restored_blob: the buffer has %" PRIu64 " bytes and the blob %" PRIu64
                              "; pass NULL to get its size",
                              capacity, head.blob_bytes);
    else if (out && head.blob_bytes > 0) memcpy(out, part.data + CLIENT_PART_HEAD_BYTES, head.blob_bytes);
    weft_free_bytes(session->env, part.data);
    return status;
}
