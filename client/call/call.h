/* call.h - a collective, send or recv as the caller described it, before it is written into a request
 * (collectives.c, call.c). */
#ifndef WEFT_CLIENT_CALL_CALL_H
#define WEFT_CLIENT_CALL_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "client/engine/request.h"

struct weft_comm;

struct client_call {
    enum weft_coll_kind kind;
    struct weft_comm *comm; /* NULL: all workers */
    const void *in;
    void *out;
    uint64_t count;
    const uint64_t *counts, *counts_out;
    enum weft_dtype dtype;
    enum weft_op op;
    double factor;          /* of a weighted average: the weight */
    bool weighted;
    uint32_t root;
    enum weft_coll_label label;
    bool reproducible;
    bool unequal;           /* gather, scatter: the root gives counts */
    enum weft_memory_kind memory;
    void *stream;
    bool on_stream;
    uint64_t deadline_ns;   /* 0: the session's */
    void (*completed)(void *context, enum weft_status status);
    void *context;
};

/* The common form of a call: all workers, host memory, one count, the session's deadline. */
struct client_simple_call {
    enum weft_coll_kind kind;
    const void *in;
    void *out;
    uint64_t count;
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t root;
};
static inline struct client_call client_call_from_simple(const struct client_simple_call *plain)
{
    return (struct client_call){.kind = plain->kind,
                                .in = plain->in,
                                .out = plain->out,
                                .count = plain->count,
                                .dtype = plain->dtype,
                                .op = plain->op,
                                .root = plain->root,
                                .factor = 1};
}

/* Validates a call by the rules of the group (weft_coll_check) and of weights. Sends nothing. Caller's
 * thread. */
enum weft_status client_call_check(struct weft_session *session, const struct client_call *call);
/* Validates the call and writes it into an idle request. On an error the request is unchanged. Caller's
 * thread. */
enum weft_status client_call_prepare(struct weft_session *session, const struct client_call *call,
                                     struct weft_request *user_request, struct client_request **request_out);
/* the second half, for a claimed request */
void client_call_fill_request(struct client_request *request, const struct client_call *call);
static inline struct client_simple_call client_simple_broadcast(void *buffer, uint64_t count,
                                                                enum weft_dtype dtype, uint32_t root)
{
    return (struct client_simple_call){.kind = WEFT_COLL_BROADCAST,
                                       .in = buffer,
                                       .out = buffer,
                                       .count = count,
                                       .dtype = dtype,
                                       .op = WEFT_SUM,
                                       .root = root};
}
/* Posts an operation without a reduction as a part of another public call; mismatch sentences name that
 * call. WEFT_IN_PROGRESS. Caller's thread. */
enum weft_status client_call_start_internal(struct weft_session *session, enum weft_coll_label label,
                                            const struct client_simple_call *plain,
                                            struct weft_request *request);
/* The same, and waits for it. `what` names it in the sentence of a failure. Blocks. */
enum weft_status client_call_run_internal(struct weft_session *session, enum weft_coll_label label,
                                          const struct client_simple_call *plain, const char *what);
/* Starts a prepared request, or gathers it while a group of calls is open. WEFT_IN_PROGRESS. Caller's
 * thread. */
enum weft_status client_call_submit(struct client_request *request);
enum weft_status client_call_submit_directly(struct client_request *request); /* not by NCCL inside hosts */
/* The command that starts a single call. Engine thread. */
void client_call_start(struct weft_command *command);
/* The operation of one or several calls has failed: the session fails. Engine thread. */
void client_call_failed(struct client_group_op *op, enum weft_status status, const char *text);
/* weighted_average.c: queues the all_reduce of the weights, and the call behind it. Engine thread. */
void client_weighted_average_start(struct client_request *request);
/* The arguments of the call after that: factor and total instead of the average. */
void client_weighted_average_args(const struct client_request *request, struct weft_coll_args *args);
void client_weighted_averages_free(struct weft_session *session); /* memory only */
/* The arguments of the call for its group. Engine thread. */
void client_call_args(const struct client_request *request, struct weft_coll_args *args);
struct weft_group *client_request_group(const struct client_request *request);
enum weft_status client_call_post(struct client_group_op *op, struct weft_error *error);
void client_call_done(struct client_group_op *op, enum weft_status status, const char *text);

#endif
