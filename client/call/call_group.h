/* call_group.h - groups of calls: between weft_group_start and weft_group_end calls are gathered, then
 * started together.
 *
 * push_pull is not gathered, but tensors in all-reduce mode of one shape and codec, whose rounds are sums,
 * go together: the first one pushed leads, keeps its place among the group's operations, and waits for
 * weft_group_end; the others join it (allreduce_mode.c). Who goes with whom follows from the calls alone. */
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
    uint32_t depth;            /* of weft_group_start; the caller's */
    struct weft_list gathered; /* struct client_request.link in the order of the calls; the caller's */
    uint64_t serial;           /* of the outermost group; the caller's */
    pthread_mutex_t lock;      /* guards what follows; a leaf */
    struct weft_list idle;     /* struct client_bucket.link: their memory serves the next group */
};

void client_call_group_init(struct client_call_group *call_group);
void client_call_group_free(struct weft_session *session);

void client_call_group_add(struct client_request *request);
/* The caller: one that is gathered ends with this status, and is no part of the group any more. */
void client_call_group_remove(struct client_request *request, enum weft_status status, const char *text);
/* weft_finalize with a group of calls still open: its requests end with this status. */
void client_call_group_cancel(struct weft_session *session, enum weft_status status, const char *text);

/* Engine: the operation that carries this call, perhaps with others; NULL: not posted. */
const struct weft_coll *client_call_group_operation(const struct client_request *request);

#endif
