/* snapshot.h - this rank's part of snapshots of the shards: struct client_snapshot.
 *
 *     net thread      Snap -> armed ............ SnapWanted -> SnapData     SnapFetched -> answer
 *     caller          weft_step_end -> part ->  (capture.c)                 weft_init, declare (restored.c)
 *
 * part.h has the bytes of a part. */
#ifndef WEFT_CLIENT_TENSOR_SNAPSHOT_SNAPSHOT_H
#define WEFT_CLIENT_TENSOR_SNAPSHOT_SNAPSHOT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "proto/proto.h"
#include "weft/weft.h"

struct weft_session;
struct weft_tensor;

/* A part of the restored snapshot. */
struct client_restored_part {
    uint32_t rank;
    uint8_t *data; /* (bytes,) owned */
    uint64_t bytes;
};

struct client_snapshot {
    pthread_mutex_t lock; /* guards the fields up to `answer` */
    uint32_t id;          /* of the last Snap that was not dropped; 0: none */
    bool is_armed;        /* weft_step_end of `step` captures the part */
    uint64_t step;
    uint64_t ended; /* last step that has ended */
    uint8_t *part;  /* owned; captured for `id`, until it is stored; NULL: none */
    uint64_t part_bytes;
    Weft__Control__Control *answer; /* owned; the last SnapFetched, or NULL */

    /* the caller's thread */
    uint8_t *blob; /* owned; of weft_snapshot_blob; NULL: none */
    uint64_t blob_bytes;
    bool is_fetching; /* a SnapFetch has no answer yet */
    uint32_t parts;   /* 1 + largest rank with a part in the restored snapshot; 0: none */
    uint32_t shares;  /* ranks that restore the first part of this rank */
    struct client_restored_part *restored; /* (restored_count,) owned; parts that this rank restores */
    uint32_t restored_count;
};

void client_snapshot_init(struct weft_session *session);
void client_snapshot_free(struct weft_session *session);
/* Net thread: Snap, SnapWanted, SnapFetched. Returns whether the session owns the message now. */
bool client_snapshot_message(struct weft_session *session, Weft__Control__Control *message);
/* capture.c; caller's thread. The step has ended well: captures the part if that is due. */
void client_snapshot_step_ended(struct weft_session *session);
/* weft_finalize: waits until a captured part is stored, until the deadline at most. */
void client_snapshot_finish(struct weft_session *session, uint64_t until_ns);

/* restored.c; caller's thread */
/* weft_init, after Go: fetches the parts that this rank restores. */
enum weft_status client_snapshot_fetch(struct weft_session *session);
/* weft_declare: the tensor continues from its residual in the snapshot. A failure ends the session. */
enum weft_status client_snapshot_restore_tensor(struct weft_tensor *tensor);
/* A step has ended well: the parts are no longer needed. */
void client_snapshot_restored_end(struct weft_session *session);

#endif
