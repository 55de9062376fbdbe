/* batch.h - groups of calls: between weft_group_start and weft_group_end calls are gathered, then started together. */
#ifndef WEFT_CLIENT_BATCH_H
#define WEFT_CLIENT_BATCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

struct weft_session;
struct client_request;
struct weft_coll;

struct client_batch {
    uint32_t depth;            /* of weft_group_start; the caller's */
    struct weft_list gathered; /* struct client_request.link in the order of the calls; the caller's */
    pthread_mutex_t lock;      /* guards what follows; a leaf */
    struct weft_list idle;     /* struct client_bucket.link: their memory serves the next group */
};

void client_batch_init(struct client_batch *batch);
void client_batch_free(struct weft_session *session);
bool client_batch_open(const struct weft_session *session);
void client_batch_gather(struct client_request *request);
/* weft_finalize with a group of calls still open: its requests end with this status. */
void client_batch_drop(struct weft_session *session, enum weft_status status, const char *text);

/* Engine: the operation that carries this call, perhaps with others; NULL: not posted. */
const struct weft_coll *client_batch_operation(const struct client_request *request);

#endif
