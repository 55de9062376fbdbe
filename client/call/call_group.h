/* call_group.h - groups of calls: weft_group_start gathers the following calls, and weft_group_end starts
 * them together.
 *
 * weft_push_pull is not gathered. Tensors of one shape and codec share an operation
 * (tensor/call_group_leader.c). */
#ifndef WEFT_CLIENT_CALL_CALL_GROUP_H
#define WEFT_CLIENT_CALL_CALL_GROUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

struct weft_session;
struct client_request;
struct weft_coll;

struct client_call_group {
    uint32_t depth;            /* open weft_group_start calls; the caller's thread */
    struct weft_list gathered; /* struct client_request.link in call order; the caller's thread */
    uint64_t serial;           /* number of the outermost group; the caller's thread */
    pthread_mutex_t lock;      /* guards idle; no other lock is taken under it */
    struct weft_list idle;     /* struct client_bucket.link: their memory serves the next group */
};

void client_call_group_init(struct client_call_group *call_group);
void client_call_group_free(struct weft_session *session);

void client_call_group_add(struct client_request *request);
/* Completes a gathered request with this status; it leaves the group of calls. Caller's thread. */
void client_call_group_remove(struct client_request *request, enum weft_status status, const char *text);
/* weft_finalize with an open group of calls: completes its requests with this status. */
void client_call_group_cancel(struct weft_session *session, enum weft_status status, const char *text);

/* The operation that carries the call, perhaps with other calls; NULL: not posted. Engine thread. */
const struct weft_coll *client_call_group_operation(const struct client_request *request);

#endif
