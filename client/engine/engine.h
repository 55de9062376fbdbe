/* engine.h - the engine thread: loop, transport, group of all workers, open requests.
 *
 * Other threads reach it by commands only. It runs starts of requests, completions of the transport, group
 * operations (group.h), computations (work.h) and deadlines. Fields without a remark belong to the engine
 * thread, and to the caller's thread before that has started and after it has ended. */
#ifndef WEFT_CLIENT_ENGINE_ENGINE_H
#define WEFT_CLIENT_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "client/engine/progress.h"
#include "client/engine/query.h"
#include "client/engine/report/report.h"
#include "client/engine/suspicion.h"
#include "collective/collective.h"
#include "proto/proto.h"
#include "transport/transport.h"

struct client_request;
struct weft_comm;
struct weft_session;
struct weft_tensor;

/* What the engine calls in the folders above. Each table is registered before the engine starts. */
struct client_engine_call_ops {
    void (*start)(struct weft_session *session);                  /* before the loop runs */
    /* posts the deferred recv; false: there was none */
    bool (*post_deferred)(struct weft_session *session);
    void (*wait_begins)(struct client_request *request);          /* caller's thread */
    /* that carries it; NULL: not posted */
    const struct weft_coll *(*operation)(const struct client_request *request);
    /* a staged request whose input has not arrived */
    bool (*is_filling)(const struct client_request *request);
    /* of a staged tensor */
    enum weft_status (*copy_out)(struct client_request *request, struct weft_error *error);
    /* before its memory is the caller's again */
    void (*completed)(struct client_request *request);
};
struct client_engine_tensor_ops {
    void (*listen)(struct weft_session *session);                 /* the transport is open */
    /* the transport may have space for queued chunks */
    void (*resend)(struct weft_session *session);
    void (*fail)(struct weft_session *session);                   /* end the operation of every tensor */
    void (*describe_subject)(void *session, uint32_t subject, char *out, size_t out_bytes);
    void (*describe)(const struct weft_tensor *tensor, char *out, size_t out_bytes);
    const char *(*name)(const struct weft_tensor *tensor);
    void (*range)(const struct weft_tensor *tensor, struct weft_nvtx_range *range_out); /* of its request */
    /* its operation waits in the group of all workers */
    bool (*is_in_group)(const struct weft_tensor *tensor);
    /* its operation waits for weft_group_end */
    bool (*is_gathered)(const struct weft_session *session, const struct weft_tensor *tensor);
    void (*begin)(struct weft_tensor *tensor);                    /* its request has begun */
    void (*release)(struct weft_tensor *tensor);                  /* its request completes */
    /* before release: the final status; after the request is done: with the serial that `result` returned */
    uint32_t (*result)(struct weft_tensor *tensor, enum weft_status status, uint32_t text_serial);
    void (*delivered)(struct weft_tensor *tensor, uint32_t serial);
    /* a call waits for its request; the wait ended before it. Any thread */
    void (*wait_begins)(struct weft_tensor *tensor);
    void (*wait_ends)(struct weft_tensor *tensor);
};
struct client_engine_comm_ops {
    void (*listen)(struct weft_session *session);                 /* the transport is open */
    /* all groups, in order; also when the loop has stopped */
    void (*leave)(struct weft_session *session);
    void (*send_leave)(struct weft_session *session);             /* the groups stay until their ranks know */
    bool (*have_left)(const struct weft_session *session);
    void (*record)(struct weft_session *session);                 /* before a flight dump */
};

struct client_engine {
    struct weft_session *session;
    struct weft_loop *loop;             /* owned; session->loop is the same */
    struct weft_transport *transport;   /* owned */
    struct weft_group *group;           /* owned; all workers */
    size_t shards_eager_bytes;          /* smallest eager limit of the shards; 0: no shard. Set before the
                                         * engine runs */
    struct {
        pthread_t id;
        bool is_started;
        _Atomic bool is_halted; /* written by the caller's thread: the engine thread steps no more
                                         * (client_engine_halt) */
    } thread;

    struct weft_list open_requests;     /* struct client_request.link, oldest first */
    struct weft_list group_queue;       /* struct client_group_op.link: called, not posted; of the group of
                                         * all workers */
    struct weft_list comms;             /* struct weft_comm.engine_link: the other groups, each with its
                                         * own queue */
    struct weft_list ended_ops;         /* struct client_group_op.link: failed by a lost peer; done runs
                                         * when the session fails */
    struct {
        struct weft_list queue;         /* struct client_work.link */
        struct weft_command command;
        bool is_posted;
    } work;

    enum weft_status failed;            /* set once; nothing new starts */
    const char *failed_text;            /* the session's */
    _Atomic uint32_t waiting_threads;   /* in weft_wait without a timeout */
    struct {
        bool is_leaving; /* `failed` holds until the new epoch begins (elastic/shrink.c) */
        char text[480];
    } epoch_end;
    struct {
        uint64_t encode_ns;             /* all-reduce mode: time in optimisers; `codec` has that of codecs */
        _Atomic uint64_t requests_done; /* written by the owner of the loop */
        struct weft_moved left;         /* bytes moved in memory by groups that are freed */
        struct weft_codec_times codec;
    } counters;
    struct client_progress progress; /* net thread */
    struct {
        struct weft_command command;    /* from client_fail */
        _Atomic bool is_orderly;        /* written before `command` is posted: no request is open, the
                                         * session leaves in order */
    } end;
    struct {
        struct weft_timer deadline, retry, drain, leave;
        uint64_t drain_pause_ns, leave_until_ns;
    } timers;
    struct client_suspicion suspicion;
    struct client_queries queries;
    struct client_report report;
    _Atomic int event_fd;               /* owned; of weft_event_fd; -1: not requested */
    struct weft_list registrations;     /* of weft_register; the caller's thread */
    struct {
        const struct client_engine_call_ops *call;
        const struct client_engine_tensor_ops *tensor;
        const struct client_engine_comm_ops *comm;
    } ops;
};

static inline void client_engine_count_request(struct client_engine *engine)
{
    const uint64_t done = atomic_load_explicit(&engine->counters.requests_done, memory_order_relaxed);
    atomic_store_explicit(&engine->counters.requests_done, done + 1, memory_order_relaxed);
}

/* Registers the engine with the session. Before anything can fail. */
void client_engine_init(struct weft_session *session, struct client_engine *engine);
/* Loop, event ring and flight recorder. */
enum weft_status client_engine_create(struct weft_session *session, struct weft_error *error);
/* After Welcome, which has this worker's endpoint id: opens the transport. */
enum weft_status client_engine_open(struct weft_session *session, uint64_t nonce, struct weft_error *error);
/* After Roster: connects, makes the group, starts the thread. */
enum weft_status client_engine_start(struct weft_session *session, const Weft__Control__Roster *roster,
                                     struct weft_error *error);
enum weft_status client_engine_connect(struct weft_session *session, const Weft__Control__Member *member,
                                       struct weft_error *error);
/* Ends what is open with WEFT_ERR_CLOSED, closes the transport, joins the thread by until_ns. */
void client_engine_stop(struct weft_session *session, uint64_t until_ns);
void client_engine_free(struct weft_session *session);
/* after client_engine_free: what the calls of the session still used */
void client_engine_close(struct weft_session *session);
void client_registrations_free(struct weft_session *session);
/* Bytes at the transport, with headers, and bytes that peers on this host read and wrote in memory
 * (stats.c). */
void client_engine_count_bytes(struct client_engine *engine, uint64_t *sent_out, uint64_t *received_out);
/* Time in codecs and optimisers. */
static inline uint64_t client_engine_encode_ns(const struct client_engine *engine)
{
    return engine->counters.encode_ns + engine->counters.codec.compute_ns;
}
/* Caller's thread, in a failed session whose transport does not release its buffers in time: takes the
 * loop, completes every open request, and stops the thread. Transport and group are then never freed, so
 * peers may still read their memory. false: the engine thread is in a long computation and the loop could
 * not be taken. */
bool client_engine_halt(struct weft_session *session);
/* the same; `why` is logged */
bool client_engine_halt_because(struct weft_session *session, const char *why);

/* ---- the engine thread ---- */
/* The transport had no space: resends the queued chunks soon. */
void client_engine_retry_soon(struct weft_session *session);
/* Ends all operations with this status; nothing new starts while engine->failed is set. */
void client_engine_end_operations(struct weft_session *session, enum weft_status status, const char *text);
void client_engine_watch_deadlines(struct weft_session *session);

#endif
