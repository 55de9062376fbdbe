/* device_staging.h - calls on device memory: in pieces through windows of pinned host memory. No thread waits
 * for the device.
 *
 *     caller's stream ──event──► down: copy to host     piece k+1
 *                                operation of the group   piece k
 *                                up: copy to device       piece k-1  ──event──► caller's stream
 *
 * A stage is one running call. Each piece is an operation of its own, and the pieces keep the call's place in
 * the order of operations. If a rank of the job has a device, long calls on host memory are cut too, without
 * windows, so that all ranks post the same operations. If a tensor's codec runs on the device
 * (tensor/codec_placement.h), there are no windows: only encoded bytes cross.
 *
 * The request is done when the last copy up is queued and the caller's stream waits for it. The windows
 * return to the session when the copies have ended. The caller's thread starts stages; the engine thread
 * does the rest. */
#ifndef WEFT_CLIENT_CALL_DEVICE_STAGING_H
#define WEFT_CLIENT_CALL_DEVICE_STAGING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "proto/proto.h"

struct weft_session;
struct client_request;
struct client_stage;

struct client_staging {
    pthread_mutex_t lock;      /* guards idle and devices; no other lock is taken under it */
    struct weft_list idle;     /* struct client_stage.link: their windows serve the next calls */
    struct weft_list devices;  /* struct client_device.link */
    /* the engine thread */
    struct weft_list open;        /* struct client_stage.link: started, not done */
    struct weft_list copying_out; /* completed; their copies still run */
    struct weft_timer timer;
    uint64_t idle_since_ns; /* no progress since this time */
    uint64_t span_count;    /* spans of the flight recorder so far */
    uint64_t piece_bytes;   /* client.piece_bytes */
    bool cuts_long_calls;   /* some rank has a device: long calls are cut on all ranks */
};

/* Elements that a call reads and writes on this rank. */
struct client_extents {
    uint64_t in, out;
};

void client_staging_init(struct weft_session *session);
/* Sets cuts_long_calls from the members of the job. */
void client_staging_configure(struct weft_session *session, const Weft__Control__Roster *roster);
/* After the engine has ended. Waits up to 1 s for copies; the memory of copies that still run is never
 * freed. */
void client_staging_free(struct weft_session *session);

/* Ends the use of a device that ops->enter has made current; the engine's own threads keep it current. */
void client_device_leave(struct weft_session *session, const struct weft_memory_ops *ops, int before);

/* Gives the request a stage if it needs one, and queues the first copies behind the work on its stream. On
 * an error nothing is queued. Caller's thread, before the call starts. */
enum weft_status client_stage_start(struct client_request *request, struct client_extents extents);
/* The same for an operation of a tensor, in one piece. *host_in_out and *host_out_out replace request->in
 * and out. keeps_out: the content of `out` is read too. may_code: if the tensor's codec can run on the
 * device, nothing is copied and the two pointers are not written. */
enum weft_status client_stage_start_tensor(struct client_request *request, enum weft_memory_kind memory,
                                           void *stream, struct client_extents extents, bool keeps_out,
                                           bool may_code, const void **host_in_out, void **host_out_out);
/* Where the sum of a tensor goes whose weights are updated on the device; NULL: they are not. */
float *client_stage_sum(const struct client_request *request);
/* Runs resume(request) when the input of a tensor's operation has arrived; perhaps inside this call.
 * Engine thread. */
void client_stage_when_ready(struct client_request *request, void (*resume)(struct client_request *request));
/* The call does not start. Caller's thread. */
void client_stage_drop(struct client_request *request);

/* The start command runs: the timer polls the stage from here. Engine thread. */
void client_stage_opened(struct client_request *request);
/* Posts the pieces whose input has arrived, in order. WEFT_IN_PROGRESS: all are posted; WEFT_ERR_AGAIN:
 * not all. Engine thread. */
enum weft_status client_stage_post(struct client_request *request, struct weft_error *error);
/* The operation of the request has ended, perhaps before all pieces were posted. false: pieces still run;
 * the last one completes the request, with this status if it is an error. Engine thread. */
bool client_stage_ended(struct client_request *request, enum weft_status status, const char *text);
bool client_stage_in_pieces(const struct client_request *request); /* more than one */
/* nothing is posted: its input has not arrived */
bool client_stage_is_filling(const struct client_request *request);
/* For calls that share an operation (call_group.c): WEFT_OK if the input has arrived, else as
 * client_stage_post. Engine thread. */
enum weft_status client_stage_ready(struct client_request *request, struct weft_error *error);
void *client_stage_memory(const struct client_request *request); /* input and result in host memory */
/* The result is in the window: queues the copy up. Engine thread. */
enum weft_status client_stage_copy_out(struct client_request *request, struct weft_error *error);
/* The request completes. Engine thread. */
void client_stage_done(struct client_request *request);

#endif
