/* device_staging.h - calls on memory of a device: through windows of pinned host memory, in pieces, without
 * waiting for the device.
 *
 *     the caller's stream ──event──► down: copy to host ──event──► group's operation ──► up: copy to the
 *     device ──event──► the caller's stream
 *                                     piece k+1                     piece k               piece k-1
 *
 * A stage is one running call. Its pieces (one, or many: see client_stage_pieces) go through a ring of
 * windows; each piece is an operation of its own to the group, and all of them keep the call's place in the
 * order of operations. Long calls on host memory are cut the same way, without windows, where ranks of the
 * job have devices: so that ranks of both kinds agree.
 *
 * Where a tensor's codec works on the device (codec_placement.h) there are no windows: its bytes are all that
 * crosses, and the call waits for what came before it on the caller's stream, as it waits for windows to
 * fill.
 *
 * The request is done when the last copy up is queued and the caller's stream has been told to wait for
 * it; the windows come back to the session when the copies have really ended. The caller's thread takes
 * stages and starts them, the engine's does the rest. */
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
    pthread_mutex_t lock;      /* guards idle and devices; a leaf */
    struct weft_list idle;     /* struct client_stage.link: their windows serve the next calls */
    struct weft_list devices;  /* struct client_device.link */
    /* the engine's */
    struct weft_list open;     /* struct client_stage.link: started, not done */
    struct weft_list copying_out;  /* done, copies still under way */
    struct weft_timer timer;
    uint64_t idle_since_ns;   /* nothing has come since */
    uint64_t piece_bytes;      /* client.piece_bytes */
    bool cuts_long_calls;                  /* long calls are cut on all ranks: some rank has a device */
};

/* Elements that a call reads and writes on this rank. */
struct client_extents {
    uint64_t in, out;
};

void client_staging_init(struct weft_session *session);
/* With the members known: are long calls cut in this job? */
void client_staging_configure(struct weft_session *session, const Weft__Control__Roster *roster);
/* The engine has ended. Waits for copies for up to a second; what still runs then keeps its memory for
 * good. */
void client_staging_free(struct weft_session *session);

/* Caller's thread, before the call starts: give the request its stage if it needs one, and queue the first
 * copies behind what is on its stream. An error: nothing is queued for it, the call is not made. */
enum weft_status client_stage_start(struct client_request *request, struct client_extents extents);
/* The same for an operation of a tensor, in one piece: extents elements of request->in and out, which
 * host_in_out and host_out_out take the place of. out_holds: what `out` holds is wanted, too. may_code:
 * where the tensor's codec can work on that device (codec_placement.h) nothing is copied, in and out stay
 * what they are, and host_in_out and host_out_out untouched. */
enum weft_status client_stage_start_tensor(struct client_request *request, enum weft_memory_kind memory,
                                           void *stream, struct client_extents extents, bool out_holds,
                                           bool may_code, const void **host_in_out, void **host_out_out);
/* Engine: run resume(request) as soon as the input of a tensor's operation has come; perhaps now. */
void client_stage_when_ready(struct client_request *request, void (*resume)(struct client_request *request));
/* Caller's thread: the call does not start after all. */
void client_stage_drop(struct client_request *request);

/* Engine: the letter came. From here the stage is seen by the timer. */
void client_stage_opened(struct client_request *request);
/* Engine: post the pieces whose input is there, in their order. WEFT_IN_PROGRESS: all are posted;
 * WEFT_ERR_AGAIN: not yet. */
enum weft_status client_stage_post(struct client_request *request, struct weft_error *error);
/* Engine: the request's operation has ended, perhaps before all pieces were posted. false: some are still
 * under way; the last one to end completes the request, with this status if it is an error. */
bool client_stage_ended(struct client_request *request, enum weft_status status, const char *text);
bool client_stage_in_pieces(const struct client_request *request); /* more than one */
/* nothing is posted yet: its input has not come */
bool client_stage_is_filling(const struct client_request *request);
/* Engine, for calls that share an operation (call_group.c): has the input come? WEFT_OK, or as
 * client_stage_post. */
enum weft_status client_stage_ready(struct client_request *request, struct weft_error *error);
/* where it lies, and the result is to be put; host */
void *client_stage_memory(const struct client_request *request);
/* Engine: the result is in the window: queue the copy up. */
enum weft_status client_stage_copy_out(struct client_request *request, struct weft_error *error);
/* Engine: from client_request_complete: the call is over. */
void client_stage_done(struct client_request *request);

#endif
