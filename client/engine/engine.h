/* engine.h - the engine thread: loop, transport, group, and the queues of work that belong to it.
 *
 * Callers reach it by letters only. It runs: starts of requests, transport completions and results, group
 * operations in the order of the calls, computations in slices, deadlines. Everything here without another
 * remark is for the engine thread (or for the caller before the thread has started and after it has
 * ended). */
#ifndef WEFT_CLIENT_ENGINE_ENGINE_H
#define WEFT_CLIENT_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/collective.h"
#include "proto/proto.h"
#include "transport/transport.h"

struct weft_session;
struct weft_tensor;
struct weft_comm;
struct client_chunk;
struct weft_stats;

/* One operation on a group. The operations of a group are posted strictly in the order of the calls on
 * every rank, because their number is their identity; one whose input is not ready yet therefore holds
 * back those behind it, of this group. */
struct client_group_op {
    struct weft_list link;
    bool ready;
    enum weft_status (*post)(struct client_group_op *op, struct weft_error *error);
    /* Runs once, after post succeeded or failed. */
    void (*done)(struct client_group_op *op, enum weft_status status, const char *text);
    struct weft_session *session;
    struct weft_comm *comm;       /* the group it belongs to; NULL: that of all workers */
    struct weft_coll *coll;       /* while posted */
};

/* A computation too long for one go. run() does at most one slice and says whether it is finished. */
struct client_work {
    struct weft_list link;        /* points at itself when not queued */
    bool (*run)(struct client_work *work);
};
/* Elements of a slice of element-wise work: about 100 us of memory traffic. */
#define CLIENT_SLICE_ELEMS 65536u

/* A question to the engine with an answer in the session's own memory, so that a caller may give up
 * waiting. */
struct client_engine_query {
    struct weft_command command;
    struct weft_session *session;
    _Atomic int state; /* 0 free, 1 asked, 2 answered */
};

/* Who of a group's ranks shares a host: as much for each rank as all else that a group of one host keeps
 * of it. */
struct client_hosts {
    _Atomic uint32_t user_count;
    struct client_hosts *previous;   /* of the ranks of earlier epochs: the group of one may point there
                                      * until the next one is made */
    uint64_t *keys;                /* (ranks,) owned; of a rank: made of its host's name. NULL: of some of
                                    * the ranks */
    struct weft_plan_hosts plan;   /* points into: */
    uint32_t memory[];
};

#define CLIENT_TENSOR_BUCKETS 256u

struct client_engine {
    struct weft_loop *loop;             /* owned */
    struct weft_transport *transport;   /* owned */
    struct weft_group *group;           /* owned */
    _Atomic(struct client_hosts *) hosts; /* owned; of the ranks, for the group */
    struct weft_event_ring *events;     /* owned; dumped by any thread */
    size_t shards_eager_bytes;          /* the least of all shards; 0: none. Set before the engine runs */
    struct weft_recorder *recorder;     /* owned; dumped by any thread */
    pthread_t thread;
    bool thread_started;
    _Atomic bool is_halted;                /* the caller's: the thread steps no more, see
                                            * client_engine_halt */

    struct weft_list open_requests;     /* oldest first */
    struct weft_list group_queue;       /* struct client_group_op.link: called, not posted; of all workers'
                                         * group */
    struct weft_list comms;             /* struct weft_comm.engine_link: the other groups, each with a
                                         * queue of its own */
    struct weft_list send_queue;        /* struct client_chunk.send_link: the transport said AGAIN */
    struct weft_list work;              /* struct client_work.link */
    struct weft_list ended_ops;         /* struct client_group_op.link: failed by a lost peer, told when
                                         * the verdict is there */
    struct weft_list record_waiters;    /* tensors that need the step's record (allreduce_mode.c) */
    struct weft_command work_mail;
    bool work_posted;
    struct weft_timer deadline_timer, retry_timer, drain_timer, suspicion_timer, leave_timer;
    uint64_t leave_until_ns;
    uint64_t drain_pause_ns;
    struct weft_error suspected;        /* what this rank thinks has happened, while the coordinator's word
                                         * is awaited */
    struct weft_tensor *tensors[CLIENT_TENSOR_BUCKETS]; /* by id, chained */
    enum weft_status failed;            /* set once; then nothing new starts */
    const char *failed_text;            /* session's */
    bool leaves_epoch;                        /* failed for the time being: ranks are lost, the others
                                               * agree to go on (shrink.c) */
    char leave_epoch_text[480];
    uint64_t encode_ns, requests_done;
    struct weft_moved left;             /* in memory, by groups that are gone */
    struct weft_straggler_time straggler_time;              /* of all groups; counts while a step is open */

    struct weft_command fail_mail;
    struct weft_command all_alive_message;     /* the net thread's, unless sent */
    _Atomic bool all_alive_is_posted;
    bool all_alive;                      /* the coordinator has said so since the suspicion */
    bool awaits_coordinator;                  /* the suspicion is of a loss; else a rank that left is
                                               * missed, and the coordinator will say nothing */
    _Atomic bool leaving;               /* set before the fail letter: the session ends in order, nothing
                                         * is open */
    struct client_engine_query stats_query, describe_query, links_query, explain_query;
    enum weft_coll_kind explain_kind;
    struct weft_link_cost explain_cost; /* answer of explain_query */
    bool explain_one_host;
    char *links_text;                   /* (links_bytes,) answer of links_query; owned by the session */
    size_t links_bytes;
    pthread_mutex_t describe_lock;      /* one thread at a time asks describe_query and reads its answer */
    uint64_t stats[4];                  /* sent, received, encode_ns, requests: answer of stats_query */
    const void *describe_request;
    struct client_engine_query cancel_query;
    _Atomic(struct client_request *) cancel_request; /* of cancel_query; NULL: the engine has taken it, or
                                                      * the caller has abandoned it */
    char describe_text[480];
};

/* Before anything can fail: the loop and the ring. */
enum weft_status client_engine_create(struct weft_session *session, struct weft_error *error);
/* With the identity the coordinator gave: open the endpoint. */
enum weft_status client_engine_open(struct weft_session *session, uint64_t nonce, struct weft_error *error);
/* With the roster: connect, make the group, start the thread. */
enum weft_status client_engine_start(struct weft_session *session, const Weft__Control__Roster *roster,
                                     struct weft_error *error);
enum weft_status client_engine_connect(struct weft_session *session, const Weft__Control__Member *member,
                                       struct weft_error *error);
/* Ends what is open with WEFT_ERR_CLOSED, closes the transport, joins the thread by until_ns. */
void client_engine_stop(struct weft_session *session, uint64_t until_ns);
void client_engine_free(struct weft_session *session);
/* Caller's thread, in a failed session whose transport does not let go of its buffers: take the engine
 * over, end every open request, and let the thread step no more. Transport and group are then left as they
 * are, for good: only so may their memory be forgotten. false: the engine is deep in a computation and
 * could not be taken. */
bool client_engine_halt(struct weft_session *session);
/* the same, with the reason of its log line */
bool client_engine_halt_because(struct weft_session *session, const char *why);

#define CLIENT_GROUP_ID 1u /* of the group of all workers */
/* What all groups of a session have in common; ranks, id and names are the caller's to set. */
void client_engine_group_options(struct weft_session *session, struct weft_group_options *options);
void client_engine_queue_group_op(struct weft_session *session, struct client_group_op *op);
/* in which it waits: of its group */
struct weft_list *client_engine_group_queue(const struct client_group_op *op);
void client_engine_pump_group(struct weft_session *session); /* that of all workers */
void client_engine_pump(struct weft_list *queue);
void client_engine_pump_all(struct weft_session *session);   /* of every group */
/* The weft_coll_done_fn that every op->post hands to weft_coll_post, with the op as context. */
void client_engine_group_op_done(void *context, enum weft_status status, const char *text);
/* A group operation has failed: the session fails with it (at once, or as a suspicion). op->done runs
 * again, with the session's own status, when the engine ends. */
void client_engine_group_op_failed(struct client_group_op *op, enum weft_status status, const char *text);
/* A connection broke. The coordinator knows better who is lost, or who aborted, and says so within
 * milliseconds: give it half a second before this rank's own view becomes the session's failure. In an
 * elastic job it is asked whether all live, and given the time in which it finds a silent machine, unless
 * they do. */
void client_engine_suspect(struct weft_session *session, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Suspects a loss that is certain: a rank has left in order, or a shard reported a loss. No link is
 * checked. The coordinator has half a second to report it first. */
void client_engine_remote_lost(struct weft_session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Net thread: the coordinator has heard from all ranks since this one asked
 * (client_control_check_liveness). */
void client_engine_all_alive(struct weft_session *session);
/* The transport had no room: resend the queued chunks in a moment. */
void client_engine_retry_soon(struct weft_session *session);
void client_engine_queue_work(struct weft_session *session, struct client_work *work);
void client_engine_cancel_work(struct client_work *work);
struct weft_tensor *client_engine_tensor(struct client_engine *engine, uint32_t id);
/* End all operations with this status; nothing new starts while engine->failed is set. */
void client_engine_end_operations(struct weft_session *session, enum weft_status status, const char *text);
enum weft_status client_engine_create_group(struct weft_session *session, struct weft_error *error);
void client_engine_watch_deadlines(struct weft_session *session);
/* Any thread, from client_fail. */
void client_engine_post_fail(struct weft_session *session);

/* Caller's thread: ask and wait up to a second. WEFT_ERR_BUSY: the engine is deep in a computation. */
enum weft_status client_engine_query_run(struct weft_session *session, struct client_engine_query *query);

#endif
