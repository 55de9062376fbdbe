/* request.h - the contents of a struct weft_request.
 *
 *      idle --- start call ---> open --- engine completes ---> done --- start call again ---> open ...
 *          \--- within weft_group_start ---> gathered --- weft_group_end ---^
 *
 * The caller writes the arguments and posts `command`. From then until `done` the engine owns all fields
 * but `state`. When `done` is stored (release), the memory is the caller's again and the engine does not
 * access it. */
#ifndef WEFT_CLIENT_ENGINE_REQUEST_H
#define WEFT_CLIENT_ENGINE_REQUEST_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/base.h"
#include "client/engine/group.h"
#include "weft/weft.h"

enum client_request_state {
    CLIENT_REQUEST_IDLE = 0,
    CLIENT_REQUEST_OPEN = 1,
    CLIENT_REQUEST_DONE = 2,
    CLIENT_REQUEST_GATHERED = 3, /* waits for weft_group_end (call/call_group.c) */
};
/* After a failure of the session a wait goes on for this long, until the buffers are released. */
#define CLIENT_BUFFER_RELEASE_NS WEFT_MS(1300)
/* A wait without a timeout goes on for this long after the deadline of the operations, so that the
 * operation's own sentence arrives first. The engine gives the group DEADLINE_SLACK_NS and the coordinator
 * SUSPICION_NS, twice if it reports all ranks alive. */
#define CLIENT_WAIT_SLACK_NS WEFT_SECONDS(3)
#define CLIENT_REQUEST_MAGIC 0x31515257u

struct client_bucket;
struct client_host_call;
struct client_stage;
struct client_weighted_average;

/* Arguments of a collective. */
struct client_request_args {
    const void *in;
    void *out;
    uint64_t count;
    uint8_t kind, dtype, reduction, plan; /* enum weft_coll_kind, weft_dtype, weft_op, weft_plan_id */
    uint32_t root;                        /* send, recv: the other rank */
    uint8_t label;                        /* enum weft_coll_label */
    bool reproducible;                    /* by a plan that evaluates T */
    bool unequal;                         /* gather, scatter: the root gives counts */
    bool preserves_input;                 /* `out` holds the input and is backed up until the step is good
                                           * (call/input_backup.c) */
    const uint64_t *counts, *counts_out;  /* counts of unequal pieces; the caller's memory until it is done */
    uint64_t deadline_ns;                 /* of the operation; 0: the session's */
};

/* Memory of the buffers, and the path that moves them. */
struct client_request_device {
    uint8_t memory;                     /* enum weft_memory_kind of in and out */
    bool on_stream;                     /* the stream waits for the result, not the caller */
    bool must_block;                    /* on_stream, and the driver cannot make the stream wait */
    void *stream;                       /* the caller's stream of a device */
    struct client_stage *stage;         /* while staged or cut (call/device_staging.h) */
    struct client_host_call *host_call; /* runs by NCCL inside hosts (nccl/host_first.h); persistent: did */
};

/* An average weighted by the `factor` of each rank (call/weighted_average.c). */
struct client_request_average {
    bool weighted;
    int exponent;         /* 2^exponent is at or above the largest factor */
    double factor, total; /* total: sum of the factors of all ranks, once known */
};

struct client_request {
    uint32_t magic;             /* 0: never started */
    _Atomic uint32_t state;     /* enum client_request_state */
    int32_t status;             /* when done */
    uint32_t text_serial;       /* of a failed request that is done: for client_text_get */
    struct weft_session *session;
    struct weft_tensor *tensor;  /* NULL: a collective */
    struct weft_command command; /* to the engine */
    struct weft_list link;       /* in the engine's open_requests */
    uint64_t started_ns;
    uint64_t range;             /* open NVTX range; 0: none */
    struct client_group_op op;  /* of a collective */
    struct client_request_args args;
    bool is_deferred;           /* open, and counted in fastpath.deferred_open */
    bool cancelled;             /* weft_cancel has ended its operation; written by the engine */
    bool persistent;            /* of weft_call_init: may be started again */
    bool is_next;               /* the engine posts it at once: its time counts from started_ns */
    struct client_request_device device;
    struct client_request_average average;
    /* the caller's, may be NULL; runs before `done` is stored */
    void (*completed)(void *context, enum weft_status status);
    void *context;
    struct client_bucket *bucket; /* the bucket whose operation carries this call (call/call_group.c);
                                   * NULL: it has its own */
};
_Static_assert(sizeof(struct client_request) <= sizeof(struct weft_request),
               "requests are embedded by callers");

static inline struct client_request *client_request_of(struct weft_request *request)
{
    return (struct client_request *)(void *)request;
}

/* The NVTX range of a request, from its start until it completes (base/trace/nvtx.h). The payload has the
 * bytes of its elements. The range of a tensor has its name, and its codec as the category. */
void client_request_range_open(struct client_request *request);
/* No effect without a tool, and if the range is open. */
static inline void client_request_range_begin(struct client_request *request)
{
    if (weft_nvtx_is_on() && !request->range) client_request_range_open(request);
}
/* Before the memory of the request is the caller's again. */
static inline void client_request_range_end(struct client_request *request)
{
    if (!request->range) return;
    weft_nvtx_end(request->range);
    request->range = 0;
}

/* weft_all_reduce in place of f32, by a plan that evaluates the canonical tree T: for tensors in
 * all-reduce mode. */
enum weft_status client_all_reduce_tensor(struct weft_session *session, float *buffer, uint64_t count,
                                          struct weft_request *request);
/* WEFT_ERR_BUSY if the request is open or gathered. Caller's thread. */
enum weft_status client_request_check_idle(struct weft_session *session, const struct client_request *request,
                                           const char *call);
/* Checks that the request is free, and claims it. client_request_post then runs start(command) on the
 * engine. Caller's thread. */
enum weft_status client_request_claim(struct weft_session *session, const char *call,
                                      struct weft_request *user_request, struct client_request **out);
/* claimed and empty */
void client_request_clear(struct weft_session *session, struct client_request *request);
void client_request_post(struct client_request *request, void (*start)(struct weft_command *command));
/* client_request_post in two halves: counts it as open, before another thread can see it; posts the
 * command. */
void client_request_open(struct client_request *request);
void client_request_send(struct client_request *request, void (*start)(struct weft_command *command));
/* From start(): the request is open. false: the session has failed, and the request is completed. Engine
 * thread. */
bool client_request_begin(struct client_request *request);
/* From start(): begins it and queues its group operation, whose input is ready. Engine thread. */
void client_request_queue(struct client_request *request,
                          enum weft_status (*post)(struct client_group_op *, struct weft_error *),
                          void (*done)(struct client_group_op *, enum weft_status, const char *));
/* Completes the request. `text` may be NULL if status is WEFT_OK. Engine thread. */
void client_request_complete(struct client_request *request, enum weft_status status, const char *text);
/* One sentence: what the request waits for. Engine thread. */
void client_request_describe(const struct client_request *request, char *out, size_t out_bytes);
/* The same on the caller's thread: the engine fills the text. Only the address of `request` is used; it may
 * have completed. */
void client_request_describe_open(struct weft_session *session, const struct client_request *request,
                                  char *text, size_t text_bytes);
/* A wait has returned the error `status`. If the session has failed or its membership ends, the caller may
 * free the memory of its other requests: waits until they are done. Returns `status`. Caller's thread. */
enum weft_status client_request_wait_failed(struct weft_session *session, enum weft_status status);
/* The session has failed: waits until no request is open, so that the program may free its memory. After
 * CLIENT_BUFFER_RELEASE_NS the engine is halted, which completes all requests. Caller's thread. */
void client_requests_wait_all(struct weft_session *session);
/* Waits for a request of the client itself; its error becomes the session's error. Caller's thread. */
enum weft_status client_request_wait_internal(struct weft_session *session, struct weft_request *request,
                                              const char *what);

#endif
