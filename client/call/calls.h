/* calls.h - state of a session's collectives, sends and recvs: struct client_calls. */
#ifndef WEFT_CLIENT_CALL_CALLS_H
#define WEFT_CLIENT_CALL_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/base.h"
#include "client/call/call_group.h"
#include "client/call/device_staging.h"
#include "client/call/fastpath.h"
#include "client/engine/query.h"
#include "client/session/session.h"
#include "collective/collective.h"
#include "compress/compress.h"
#include "weft/weft.h"

struct client_request;
struct weft_tensor;

/* What calls need of tensors. Registered before the engine starts. */
struct client_call_tensor_ops {
    bool (*group_has_tensors)(const struct weft_session *session);     /* tensors wait for weft_group_end */
    /* weft_group_end: start them, or forget them */
    void (*group_ended)(struct weft_session *session, bool start);
    const char *(*name)(const struct weft_tensor *tensor);
    enum weft_status (*place_codec)(struct weft_tensor *tensor, const struct weft_codec_device *device,
                                    bool *placed_out,
                                    /* move its codec to the device, if it can run there */
                                    struct weft_error *error);
    /* update its weights there, if that is possible: the memory for the sum, else NULL */
    enum weft_status (*place_update)(struct weft_tensor *tensor, const struct weft_codec_device *device,
                                     float **sum_out, struct weft_error *error);
    /* engine: queues the update of its weights from the sum on `stream` */
    enum weft_status (*queue_update)(struct weft_tensor *tensor, float *weights, void *stream,
                                     struct weft_error *error);
    /* queues what its codec has not queued yet */
    void (*settle_codec)(struct weft_tensor *tensor);
    /* engine: its input could not be copied */
    void (*fail)(struct weft_tensor *tensor, enum weft_status status, const char *text);
};

/* What calls need of nccl/: registered by weft_nccl_open. The caller's thread, unless stated. */
struct client_call_nccl_ops {
    /* the request runs by NCCL inside hosts; equal on all ranks */
    bool (*accepts)(const struct client_request *request);
    /* of a persistent request: its own arguments, over which a call by NCCL has written */
    void (*restore)(struct client_request *request);
    enum weft_status (*submit)(struct client_request *request);
    void (*completed)(struct client_request *request); /* engine thread */
    /* what follows in weft_explain of an all_reduce */
    void (*explain)(const struct weft_session *session, uint64_t count, enum weft_dtype dtype, char *out,
                    size_t out_bytes);
    void (*close)(struct weft_session *session); /* before the session leaves */
    void (*free)(struct weft_session *session);  /* the engine has ended */
};
struct client_nccl; /* nccl/host_first.h */

struct client_calls {
    struct weft_session *session;
    enum weft_plan_id plans[WEFT_COLL_KIND_COUNT]; /* weft_set_plan; the caller's thread */
    _Atomic int last_plan;                         /* enum weft_plan_id of the operation posted last */
    struct client_call_group call_group;           /* weft_group_start ... weft_group_end */
    struct client_fastpath fastpath;
    struct client_staging staging;                 /* calls on memory of devices */
    struct weft_list weighted_averages;            /* struct client_weighted_average.link: idle; the engine
                                                    * thread */
    struct weft_list backups, idle_backups;        /* struct backup.link (input_backup.c): of the open
                                                    * step; unused memory */
    struct {
        struct client_engine_query query;
        enum weft_coll_kind kind;
        struct weft_link_cost cost;                /* answer */
        bool one_host;                             /* answer: the operation runs on the one-host path */
    } explain;
    struct {
        struct client_engine_query query;
        _Atomic(struct client_request *) request;  /* NULL: the engine has read it, or the caller has
                                                    * abandoned it */
    } cancel;
    const struct client_call_tensor_ops *tensor_ops;
    const struct client_call_nccl_ops *nccl_ops; /* NULL: weft_nccl_open was not called */
    struct client_nccl *nccl;                    /* owned, through nccl_ops */
};

/* Registers the folder with session and engine. */
void client_calls_init(struct weft_session *session, struct client_calls *calls);
void client_calls_close(struct weft_session *session); /* before the session leaves */
void client_calls_free(struct weft_session *session);  /* the engine has ended */

/* Caller's thread: weft_group_start was called, and weft_group_end was not. */
static inline bool client_call_group_is_open(const struct weft_session *session)
{
    return session->calls->call_group.depth > 0;
}

#endif
