/* group.h - one group of ranks.
 *
 *     weft_coll_post (op.c)            validates the arguments, allocates all memory, queues the operation
 *           │ ready
 *     timer of the group (group.c) ──► coll_advance (interpreter.c): a window of steps of the plan
 *           ▲ ready                              │ weft_transport_send / _recv
 *     slot_completed (interpreter.c) ◄── transport progress       sums: reduce.c, reduce_buffer.c
 *
 * Control messages between ranks belong to no operation (group_control.c, dispatched by control_router.c).
 * Invariant: a failure other than a cancel ends the group on all ranks with one status and one text. After it
 * the ranks may disagree on which operations completed, so the caller makes a new group in the next epoch. */
#ifndef WEFT_COLLECTIVE_CORE_GROUP_H
#define WEFT_COLLECTIVE_CORE_GROUP_H

#include "collective/collective.h"
#include "collective/core/control/call_digest.h"
#include "collective/core/control/group_control.h"
#include "collective/core/control/peer_table.h"
#include "collective/core/op.h"
#include "collective/core/op_pool.h"
#include "collective/core/send_credit.h"

#define GROUP_POLL_INTERVAL_NS WEFT_MS(500) /* interval of the timer while operations are posted */
/* a longer interval between two polls of this rank does not count as waiting */
#define GROUP_STALL_MIN_NS WEFT_SECONDS(1)
#define GROUP_STATUS_TIMEOUT_NS WEFT_MS(500) /* a rank that requests status waits this long for the replies */
/* after a failure: time for peers to release the send buffers */
#define GROUP_RELEASE_TIMEOUT_NS WEFT_SECONDS(2)
#define GROUP_RELEASE_POLL_NS WEFT_MS(1) /* between two checks whether a peer still accesses the buffers */
/* after a peer is lost: time for operations that can complete without it */
#define GROUP_LOST_DELAY_NS WEFT_MS(200)
#define GROUP_RETRY_NS 20000u /* after WEFT_ERR_AGAIN from the transport */
#define GROUP_RANK_NONE UINT32_MAX
/* in place of steps: the operation in question is not active in this group */
#define REPLY_NOT_ACTIVE UINT32_MAX
#define GROUP_ID_MAX 0xffffffu
#define GROUP_INLINE_BYTES_MAX 64u          /* a control payload up to this size travels behind the header */
#define COLL_COMPUTE_UNIT_BYTES (64u << 10) /* bytes reduced or copied at a time */
#define GROUP_PROGRESS_BYTES_MAX (1u << 18) /* bytes reduced or copied in one loop step */

/* The last choice of a plan for one kind, and its inputs. */
struct plan_choice {
    uint64_t bytes;
    uint8_t plan;        /* enum weft_plan_id; AUTO: no choice yet */
    uint8_t forced_plan; /* from the plan table */
    uint8_t dtype;
    bool reproducible, unequal, averages, keeps_order;
};
enum { GROUP_KINDS_CACHED = 16 }; /* kinds below it have an entry */

/* Bounds, equal on all ranks. */
struct group_limits {
    uint32_t inflight_max, window, operations_max, sparse_shared_ranks;
    size_t chunk_bytes;
    uint64_t deadline_ns;
};
/* As in weft_group_options. */
struct group_modes {
    bool timing_only, keeps_affinity, ids_increase;
    uint32_t rank_modulus; /* 0: off */
};
/* Borrowed; may be NULL. */
struct group_observers {
    struct weft_straggler_time *straggler_time;
    struct weft_event_ring *events;
    struct weft_recorder *recorder;
};
/* Inputs for the choice of a plan. */
struct group_planning {
    /* of its worst link, and of the worst link inside a host. Equal on all ranks */
    struct weft_link_cost cost, local_cost;
    const struct weft_plan_hosts *hosts; /* borrowed, may be NULL */
    /* (GROUP_KINDS_CACHED,) by kind; derived from `cost` and the call. NULL: no call yet */
    struct plan_choice *choices;
    struct retune *retune;           /* owned; NULL: plans are not re-tuned */
};
/* Operations of the group. */
struct group_ops {
    struct weft_list active, ready;
    struct op_pool *op_pool; /* may be shared with other groups */
    /* codec operations whose task runs on the compute thread, or whose device encodes */
    struct weft_list computing;
    uint32_t active_count;
    uint32_t prepared_count; /* prepared operations of the later rounds of active codec operations */
    uint64_t sequence;       /* operations posted so far, so the sequence of the next one */
};
/* Comparison of the calls of all ranks. */
struct group_checks {
    struct call_digest call_digest;
    bool pair_counts_lost;           /* sends and recvs are not counted: no memory */
    bool last_op_is_unverified;      /* the last operation was a send, or an all_to_all with counts, by
                                      * messages: it can complete before its peer compares the lengths */
};
/* Operations at the transport. */
struct group_sending {
    uint32_t outstanding;            /* transport operations that point into memory of the group */
    struct send_credit *send_credit; /* owned; NULL: no operation with an urgency yet, or no memory */
    uint64_t launch_count;           /* operations launched so far */
};
/* When the group is polled. */
struct group_progress {
    struct weft_timer timer;
    bool is_scheduled, needs_retry, is_progressing, is_closing;
    uint64_t seen_ns;     /* time of the last poll */
    uint64_t recorded_ns; /* time of the last update of the flight recorder */
};
/* The end of the group by an error. */
struct group_failure {
    enum weft_status fail_status;
    bool failed_remotely;  /* a FAIL ended the group; fail_text is the sender's text */
    uint32_t fail_rank;    /* sender of that FAIL */
    const char *fail_text; /* owned, unless it is the text of weft_status_text */
    uint64_t grace_ns, release_timeout_ns;
};
/* Peers that left in order, or failed before the group ended. */
struct group_departures {
    uint32_t left_count; /* ranks whose LEAVE arrived */
    bool ended_by_leave; /* the group ended because an operation needs a rank that left */
    bool leaving;        /* this rank has sent its LEAVE (weft_group_leave) */
    bool lost;           /* a peer failed before the group ended; lost_rank is the first one */
    uint32_t lost_rank;
    enum weft_status lost_status;
    uint64_t lost_until_ns;
};
/* Control messages. */
struct group_control_state {
    /* of the endpoint; NULL: the group receives no control messages */
    struct control_router *control_router;
    struct weft_list control_router_link;
    /* queue of ranks that wait for a status reply, linked by reply_queue_next; GROUP_RANK_NONE: empty */
    uint32_t reply_queue_first, reply_queue_last;
    struct remote_failure *remote_failure; /* NULL: no FAIL is being received */
    struct broadcast fail, status_request, leave, offer, vote;
};
/* deadline.c: status request before a deadline error. */
struct group_late_op {
    enum { DIAGNOSIS_NONE, DIAGNOSIS_REQUESTING, DIAGNOSIS_DEFERRED } diagnosis;
    /* the late operation is a send or recv; diagnosis_seq is then not its sequence */
    bool diagnosis_is_sendrecv;
    uint64_t diagnosis_seq, diagnosis_until_ns;
};

struct weft_group {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_loop *loop;
    struct group_observers observers;
    uint32_t rank, ranks, group_id, epoch;
    struct group_limits limits;
    /* hash of the endpoint ids in rank order. With id and epoch it names the group in a record */
    uint32_t members_hash;
    struct group_modes modes;
    /* the one-host path is not set up yet, and no rank has voted against it */
    bool may_open_onehost;
    struct weft_group_names names;
    struct group_planning planning;

    struct peer_table *peer_table;  /* may be shared with other groups */
    struct peer_state *peer_states; /* (ranks,); NULL: no event yet (peer_table.c) */
    struct group_ops ops;
    struct group_checks checks;
    struct group_sending sending;

    struct group_progress progress;

    struct group_failure failure;
    struct group_departures departures;
    struct group_control_state control;
    /* onehost.h; NULL: not set up yet (may_open_onehost), or the ranks cannot map each other's memory */
    struct onehost *onehost;

    struct group_late_op late_op;
};

uint64_t group_tag(const struct weft_group *group, uint64_t sequence);
uint64_t group_control_tag(const struct weft_group *group);
/* sends and recvs of a pair match in post order */
uint64_t group_pair_tag(const struct weft_group *group);
void group_describe(const struct weft_group *group, uint32_t rank, char *out, size_t out_bytes);
/* Formats "all_reduce of 100 f32, sum, plan ring, of tensor 'fc1'". */
void group_describe_call(const struct weft_group *group, const struct coll_header *header, char *out,
                         size_t out_bytes);
/* Starts the timer for the next deadline check. Returns false if the loop has no memory for a timer. */
bool group_schedule_at(struct weft_group *group, uint64_t now_ns, uint64_t deadline_ns);
/* Starts the timer now. Returns false if the loop has no memory for a timer. */
bool group_schedule(struct weft_group *group);
/* Operations that are ready run in the order of their urgency, then as they became ready. */
void coll_mark_ready(struct weft_coll *coll);
/* Ends the group. notify_peers: sends a FAIL to the other ranks if operations were active. */
void group_end(struct weft_group *group, enum weft_status status, bool notify_peers, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A transport operation of the group has completed. */
void group_transport_op_done(struct weft_group *group);

static inline struct peer_state peer_state_of(const struct weft_group *group, uint32_t rank)
{
    return group->peer_states ? group->peer_states[rank] : (struct peer_state){0};
}

/* compressed/all_reduce.c */
/* Ends the operations whose codec arithmetic runs. May block until the arithmetic ends. */
void codec_close(struct weft_group *group, enum weft_status status, const char *text);

#endif
