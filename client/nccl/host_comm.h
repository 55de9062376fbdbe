/* host_comm.h - the NCCL communicator among the ranks of one host: its stream, its calls, its end.
 *
 *     caller's thread   issues NCCL's calls on `stream`, in the order of the calls of weft
 *     watch thread      follows the events of the calls that run; aborts the communicator if the session has
 *                       failed, NCCL has, or a call does not end within twice the session's deadline
 *
 * ncclCommAbort may wait, so it is called from the watch thread only, or after that has ended. The engine
 * takes `lock` only, which no thread holds while it waits. */
#ifndef WEFT_CLIENT_NCCL_HOST_COMM_H
#define WEFT_CLIENT_NCCL_HOST_COMM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "client/engine/request.h"
#include "client/nccl/library.h"

struct weft_session;

/* An all_reduce that runs by NCCL inside hosts. */
struct client_host_call {
    struct weft_list link;  /* host_comm.running or .idle, or none */
    struct weft_list owned; /* host_comm.calls */
    /* events: the caller's stream has reached the call; NCCL's has; NCCL's stream has the result */
    void *ready, *begun, *done;
    /* under host_comm.lock */
    uint64_t begun_ns; /* when the watch found `begun` passed; 0: not yet */
    bool is_begun;     /* `begun` is recorded: an event without a record counts as passed */
    bool is_queued;    /* `done` is recorded */
    bool is_running;   /* in host_comm.running */
    bool is_held;      /* a request refers to it */
    bool is_completed; /* the engine has completed the request */
    /* of the caller, because the second phase overwrites those of the request; the caller's thread */
    struct client_request_args args;
    void *stream;
    bool on_stream;
};

struct host_comm {
    struct weft_session *session;
    const struct nccl_api *api;
    const struct weft_memory_ops *ops;
    int device;
    uint32_t rank, ranks;  /* within the host */
    void *comm;            /* ncclComm_t, guarded by `issue`; NULL: none, or aborted */
    void *stream;          /* owned */
    pthread_mutex_t issue; /* held while calls are issued */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* of the watch thread */
    pthread_t watch;
    bool has_watch, stops;    /* stops: under `lock` */
    struct weft_list running; /* struct client_host_call.link, oldest first; under `lock` */
    struct weft_list idle;    /* the same */
    struct weft_list calls;   /* struct client_host_call.owned: all; the caller's thread */
};

/* Makes stream and communicator; the ranks of the host have the same id. Blocks, at most the session's
 * deadline. On an error nothing is left. The caller's thread, as all calls below. */
enum weft_status host_comm_open(struct host_comm *host, const struct nccl_api_id *id,
                                struct weft_error *error);
/* Waits at most 1 s for calls that run, then ends the communicator, in order if the session is well. */
void host_comm_close(struct host_comm *host);
/* After that, and after the engine has ended: frees the calls. */
void host_comm_free(struct host_comm *host);
/* Before NCCL's calls, and after them. WEFT_ERR_STATE: the communicator was aborted. */
enum weft_status host_comm_begin(struct host_comm *host, struct weft_error *error);
void host_comm_end(struct host_comm *host);
/* Converts the answer of a call; waits while it is in progress. */
enum weft_status host_comm_answered(struct host_comm *host, int answer, const char *call,
                                    struct weft_error *error);

/* An idle call, or a new one. The device is current. */
enum weft_status host_call_alloc(struct host_comm *host, struct client_host_call **out,
                                 struct weft_error *error);
/* The watch follows it from now on. */
void host_call_run(struct host_comm *host, struct client_host_call *call);
/* No request refers to the call. */
void host_call_release(struct host_comm *host, struct client_host_call *call);

#endif
