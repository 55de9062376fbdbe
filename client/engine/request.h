/* request.h - what a struct weft_request really holds.
 *
 *      idle --- start call ---> open --- engine completes ---> done --- start call again ---> open ...
 *          \--- within weft_group_start ---> gathered --- weft_group_end ---^
 *
 * The caller fills the arguments and posts `mail`; from then until `done` everything but `state` is the
 * engine's. Once `done` is stored (release) the memory is the caller's again and the engine never looks
 * back. */
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
    CLIENT_REQUEST_GATHERED = 3, /* waits for weft_group_end (call_group.c) */
};
/* How long a wait goes on after the session has failed, for the buffers to become free. */
#define CLIENT_BUFFER_RELEASE_NS WEFT_MS(1300)
/* By so much longer than the operations' deadline a wait without a timeout of its own goes on: they end by
 * then, with the better sentence, for which the engine gives the group (DEADLINE_SLACK_NS) and then the
 * coordinator (SUSPICION_NS, and once more when it says that all live) some time. */
#define CLIENT_WAIT_SLACK_NS WEFT_SECONDS(3)
#define CLIENT_REQUEST_MAGIC 0x31515257u

struct client_bucket;
struct client_stage;
struct client_weighted_average;

struct client_request {
    uint32_t magic;             /* 0: never started */
    _Atomic uint32_t state;     /* enum client_request_state */
    int32_t status;             /* when done */
    uint32_t text_serial;       /* when done with an error: client_text_get */
    struct weft_session *session;
    struct weft_tensor *tensor; /* NULL: a collective */
    struct weft_command command;      /* to the engine */
    struct weft_list link;      /* engine's open_requests */
    uint64_t started_ns;
    struct client_group_op op;  /* collectives */
    const void *in;
    void *out;
    uint64_t count;
    uint8_t kind, dtype, reduction, plan; /* enum weft_coll_kind, weft_dtype, weft_op, weft_plan_id */
    uint32_t root;              /* send, recv: the other rank */
    uint8_t label;              /* enum weft_coll_label */
    bool reproducible;          /* by a plan that evaluates T */
    bool unequal;               /* gather, scatter: the root gives counts */
    bool preserves_input;              /* its input lies in `out` and is kept until the step is good
                                        * (input_backup.c) */
    bool deferred_open;                 /* open, and counted so (call/fastpath.c) */
    bool cancelled;             /* the engine's: weft_cancel has ended its operation */
    bool persistent;            /* weft_call_init: may be started again as it is */
    bool weighted;              /* avg of what all ranks weigh by their `factor` (weighted_average.c) */
    uint8_t memory;             /* enum weft_memory_kind of in and out */
    void *stream;               /* of a device: the caller's */
    struct client_stage *stage; /* open and staged, or cut (device_staging.h) */
    bool at_once;               /* posted to the group as soon as the engine hears of it: its time is
                                 * started_ns */
    const uint64_t *counts, *counts_out; /* unequal pieces; the caller's until it is done */
    double factor, total;       /* total: of all ranks' factors, when weighted and known */
    int exponent;               /* weighted: 2^exponent is at or above the largest factor */
    uint64_t deadline_ns;       /* of the operation; 0: the session's */
    /* the caller's, may be NULL; before `done` is stored */
    void (*completed)(void *context, enum weft_status status);
    void *context;
    struct client_bucket *bucket; /* the operation carries this bucket of calls (call_group.c); NULL:
                                   * itself */
};
_Static_assert(sizeof(struct client_request) <= sizeof(struct weft_request),
               "requests are embedded by callers");

static inline struct client_request *client_request_of(struct weft_request *request)
{
    return (struct client_request *)(void *)request;
}

/* weft_all_reduce in place as tensors in all-reduce mode are reduced: f32, by a plan that evaluates T. */
enum weft_status client_all_reduce_tensor(struct weft_session *session, float *buffer, uint64_t count,
                                          struct weft_request *request);
/* Caller's thread: nothing of it is under way, or WEFT_ERR_BUSY. */
enum weft_status client_request_check_idle(struct weft_session *session, const struct client_request *request,
                                           const char *call);
/* Caller's thread: checks that it is free and takes it. start(mail) will run on the engine after
 * client_request_post. */
enum weft_status client_request_claim(struct weft_session *session, const char *call,
                                      struct weft_request *user_request, struct client_request **out);
/* at rest: taken, and nothing in it */
void client_request_clear(struct weft_session *session, struct client_request *request);
void client_request_post(struct client_request *request, void (*start)(struct weft_command *command));
/* The same in two halves: count it as open, before another thread may see it; and the letter. */
void client_request_open(struct client_request *request);
void client_request_send(struct client_request *request, void (*start)(struct weft_command *command));
/* Engine: from start(): it is open now. false: the session has failed and the request was completed so. */
bool client_request_begin(struct client_request *request);
/* Engine: from start(): opens it and queues its operation of the group, whose input is ready. */
void client_request_queue(struct client_request *request,
                          enum weft_status (*post)(struct client_group_op *, struct weft_error *),
                          void (*done)(struct client_group_op *, enum weft_status, const char *));
/* Engine: the end. `text` may be NULL when status is WEFT_OK. */
void client_request_complete(struct client_request *request, enum weft_status status, const char *text);
/* Engine: what it waits for, one sentence. */
void client_request_describe(const struct client_request *request, char *out, size_t out_bytes);
/* Caller's thread, the session has failed: wait until no request of it is open, so that the caller may
 * drop their memory, whichever of them it has asked for. At most CLIENT_BUFFER_RELEASE_NS; then the engine
 * is halted, which ends them all. */
void client_requests_wait_all(struct weft_session *session);
/* Caller: wait for an own, internal request; its error becomes the session's error. */
enum weft_status client_request_wait_internal(struct weft_session *session, struct weft_request *request,
                                              const char *what);

#endif
