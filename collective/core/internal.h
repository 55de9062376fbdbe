/* internal.h - what the files of core/ share: the group, one posted operation, the message header.
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
#ifndef WEFT_COLLECTIVE_CORE_INTERNAL_H
#define WEFT_COLLECTIVE_CORE_INTERNAL_H

#include "collective/collective.h"
#include "collective/core/header.h"
#include "collective/core/path.h"
#include "collective/core/reduce.h"
#include "collective/core/send_credit.h"
#include "kernels/kernels.h"

#define GROUP_TEXT_BYTES 480
#define GROUP_POLL_INTERVAL_NS WEFT_MS(500) /* interval of the timer while operations are posted */
/* a longer interval between two polls of this rank does not count as waiting */
#define GROUP_STALL_MIN_NS WEFT_SECONDS(1)
#define GROUP_WARN_AFTER_NS WEFT_SECONDS(30)
#define GROUP_STATUS_TIMEOUT_NS WEFT_MS(500) /* a rank that requests status waits this long for the replies */
/* after a failure: time for peers to release the send buffers */
#define GROUP_RELEASE_TIMEOUT_NS WEFT_SECONDS(2)
#define GROUP_RELEASE_POLL_NS WEFT_MS(1) /* between two checks whether a peer still accesses the buffers */
/* after a peer is lost: time for operations that can complete without it */
#define GROUP_LOST_DELAY_NS WEFT_MS(200)
#define GROUP_RETRY_NS 20000u /* after WEFT_ERR_AGAIN from the transport */
/* status replies of this rank in flight, in all groups of one op pool */
#define GROUP_REPLIES_MAX 16
#define GROUP_RANK_NONE UINT32_MAX
/* in place of steps: the operation in question is not active in this group */
#define REPLY_NOT_ACTIVE UINT32_MAX
#define GROUP_ID_MAX 0xffffffu
#define GROUP_INLINE_BYTES_MAX 64u          /* a control payload up to this size travels behind the header */
#define COLL_COMPUTE_UNIT_BYTES (64u << 10) /* bytes reduced or copied at a time */
#define GROUP_PROGRESS_BYTES_MAX (1u << 18) /* bytes reduced or copied in one loop step */

/* ---- one posted operation ---- */
enum slot_state { SLOT_WAITING = 1, SLOT_POSTED, SLOT_COMPUTING, SLOT_DONE };

struct slot {
    struct weft_coll *coll;
    struct weft_action action;
    enum slot_state state;
    uint64_t computed; /* elements of the sum or copy that are done */
    struct weft_completion completion;
    struct weft_receive receive;
    size_t credit_bytes; /* of a posted send: bytes that it holds (send_credit.h) */
    bool is_first_message; /* a receive of a peer's first message, not completed (straggler_time.c) */
};

/* The contributions of all ranks to one chunk (reduce_buffer.c). */
struct reduce_buffer {
    bool open; /* from the first receive of a chunk to the end of its fold */
    uint64_t offset_in, count;
    uint32_t next; /* index of the next contribution to fold */
    /* elements of that contribution that are folded. After the last one: elements of the sum that are
     * written */
    uint64_t done;
    float *partial;   /* the widened contribution; types narrower than f32 */
    uint8_t *present; /* (ranks,) 1: the contribution has arrived */
    uint8_t *raw;     /* (ranks, raw_bytes) contributions as received */
    size_t raw_bytes;
    float *free_partials[34]; /* widened buffers that the fold does not use */
    uint32_t free_count;
    struct weft_tree_reduce fold;
};

/* Phase of an operation on the one-host path (onehost.h). BY_MESSAGES: the interpreter runs it. */
enum onehost_phase {
    ONEHOST_BY_MESSAGES = 0,
    ONEHOST_VOTE_PENDING,
    ONEHOST_RECV_POSTED,
    ONEHOST_QUEUED,
    ONEHOST_SCALING,
    ONEHOST_VERIFYING,
    ONEHOST_PUBLISHED,
    ONEHOST_WORKING,
    ONEHOST_STAGING,
    ONEHOST_COMPLETING
};

enum coll_phase { COLL_RUNNING = 1, COLL_ENDING };

struct weft_coll {
    struct weft_group *group;
    struct weft_list link;       /* group->active in post order, or op_pool->idle */
    struct weft_list ready_link; /* group->ready, or linked to itself */
    enum coll_phase phase;
    enum weft_status status; /* final status of an ending operation */
    const char *text;        /* static, or owned by the group */
    struct weft_coll_args args;
    struct coll_header header; /* header of each message of the operation */
    /* input of the plan: args.in, or a copy that coll_scale_input makes from `unscaled` */
    const uint8_t *in;
    const uint8_t *unscaled;
    struct reduce_spec sum;
    size_t elem_bytes;
    /* bytes of an element in scratch: a partial in a wide plan, else an element */
    size_t scratch_elem_bytes;
    bool wide; /* scratch holds partials */
    /* input elements that coll_scale_input copies or scales before the first step, and how many are done */
    uint64_t input_elems_to_prepare, input_elems_prepared;
    uint64_t sequence, deadline_ns, posted_ns;
    bool warned, is_sendrecv; /* is_sendrecv: a send or recv */
    bool is_counted;          /* sendrecv_count_add has counted the operation */
    bool is_held;             /* a send waits for credit (send_credit.h) */
    bool is_plan_pending;     /* posted, but a change of the plan table is pending (retune.h) */
    struct {                  /* straggler_time.c */
        bool counts;          /* the operation waits for a rank that has not begun it, since since_ns */
        uint64_t since_ns;
        uint64_t late_ns; /* time that it waited for such ranks */
        /* one bit for each peer from which a receive was posted, by rank modulo 64 */
        uint64_t asked;
        uint32_t awaited; /* receives of peers' first messages that have not completed */
    } straggler_time;
    bool is_alone;             /* no other operation was active at its launch */
    uint64_t launch_number;    /* launch_count of the group at its launch */
    uint32_t retune_key;       /* cell of the plan table; 0: none */
    struct weft_record record; /* its entry `record_number` in the flight recorder */
    uint64_t record_number;
    weft_coll_done_fn done; /* NULL: it has run */
    void *context;

    struct coll_path_state path;
    /* private to onehost/ */
    struct {
        enum onehost_phase phase;
        bool uses_cma;            /* peers copy this rank's buffers by address */
        bool is_reachable;        /* the buffers of all ranks that have arrived can be accessed */
        bool cma_refused;         /* the kernel refuses a rank copies by address */
        bool prefers_direct;      /* this rank's flag ONEHOST_PREFERS_DIRECT (onehost.h) */
        bool can_prefer_direct;   /* onehost_can_prefer_direct() of this operation */
        bool modes_differ;        /* some ranks prefer direct access, other ranks copy in */
        uint8_t flags, all_flags; /* this rank's flags (onehost.h); those of all ranks that have arrived */
        bool is_copyin;           /* the descriptor or its slot contains the contribution */
        uint64_t seq, in_offset, out_offset;
        struct onehost_range {
            uint64_t first, count;
        } remaining;           /* of the slice under way, in elements */
        struct weft_list link; /* in onehost->queue */
        uint8_t *stage;        /* staging memory (staged.c); NULL: none */
        struct onehost_stage_info {
            uint64_t offset; /* of the staging memory in the segment */
            uint32_t block;  /* largest block that an arrived rank asked for, in bytes */
        } stage_info;
        uint64_t cell, rounds; /* elements staged in one round; number of rounds */
        uint64_t done[3];      /* finished rounds, by action */
        /* the duration is recorded there (copy_method.c); NULL: not recorded */
        struct onehost_method_stats *method_stats;
        uint64_t began_ns; /* time at which the last rank arrived */
    } onehost;

    struct weft_plan_cursor cursor;
    bool plan_ended;
    uint64_t head, tail;  /* the window holds steps [tail, head) */
    uint32_t outstanding; /* transport operations of it in flight */

    uint8_t *scratch; /* owned; stays with the operation in the pool */
    size_t scratch_bytes;
    uint8_t *plan_scratch; /* scratch that the steps address */
    struct reduce_buffer *reduce_buffers;
    uint32_t reduce_buffer_count;
    /* contributions of one fold: of all ranks, or of the ranks of this host */
    uint32_t reduce_buffer_ranks;
    uint64_t *cuts;      /* elements before each piece; NULL: equal pieces */
    struct slot slots[]; /* (group->window,) */
};

/* ---- the group ---- */
/* Peers of all groups that have the same ranks in the same order (peer_table.c). */
struct onehost_method_table;
struct peer_table {
    struct peer_table *next; /* op_pool->peer_tables */
    /* copy_method.c; written by rank 0. NULL: nothing is measured yet */
    struct onehost_method_table *method_table;
    uint32_t groups, ranks;
    struct weft_peer *peers[]; /* (ranks,); NULL: this rank */
};

/* Sends to a rank, and recvs from it. */
struct coll_sendrecv_counts {
    uint64_t sent, received;
};

/* Digest of the operations with a root that one rank has called; part of its LEAVE. digest 0: none. */
struct call_digest_state {
    uint64_t digest, count, sequence; /* count, sequence, root, kind, dtype, op: of the last operation */
    uint32_t root;
    uint8_t kind, dtype, op;
};
struct call_digest {
    uint64_t next; /* sequence of the last operation with a root, plus one. 0: none */
    struct call_digest_state last;
};
/* Values of `lanes` in a LEAVE. 0: the sender is an older release without a digest. NO_PAIR_COUNTS: the
 * counts of sends and recvs are not valid. */
enum { CALL_DIGEST_VERSION = 1, CALL_DIGEST_NO_PAIR_COUNTS = 2 };

/* State of another rank in this group. Allocated with the first event of any rank. */
struct peer_state {
    /* has_left: its LEAVE arrived. has_replied: to the last status request. reply_is_wanted: it waits for
     * a reply */
    bool has_left, has_replied, reply_is_wanted;
    uint32_t reply_queue_next; /* next rank in the queue of replies */
    uint64_t reply_for_seq;
    bool call_digest_known, pair_counts_known; /* its LEAVE carried a call digest; carried pair_counts */
    uint64_t left_after_seq;                   /* operations that it took part in before it left */
    struct call_digest_state call_digest;
    struct coll_sendrecv_counts pair_counts; /* counts at that rank, modulo 2^32; from its LEAVE */
    /* counts at this rank of sends and recvs with that rank by messages */
    struct coll_sendrecv_counts message_counts;
    uint64_t reply_posted_ops; /* from its last status reply: operations posted */
    /* sequence of the operation in question, or of an earlier one that it waits in */
    uint64_t reply_op_seq;
    uint32_t reply_waits_for; /* rank that it waits for there; GROUP_RANK_NONE: none */
    /* completed steps of that operation; REPLY_NOT_ACTIVE: it is not active in this group */
    uint32_t reply_steps;
};

/* A status reply in flight. */
struct status_reply {
    struct weft_group *group;
    struct weft_completion completion;
    bool busy;
};

/* One message to all other ranks. The payload lies in the group (group_control.c). */
struct broadcast {
    struct weft_group *group;
    const struct coll_header *header; /* borrowed; NULL: built from the fields below */
    uint64_t sequence;
    struct weft_completion completion;
    int32_t status;
    uint32_t next_rank; /* first rank that the transport has not accepted yet */
    uint8_t type;       /* enum coll_message_type */
    bool busy;
};

/* Text of a FAIL while it is received. */
struct remote_failure {
    struct weft_group *group;
    struct weft_completion completion;
    enum weft_status status;
    /* the group ended at the sender because an operation needs a rank that left */
    bool by_leave;
    char text[GROUP_TEXT_BYTES];
};

/* The last choice of a plan for one kind, and its inputs. */
struct plan_choice {
    uint64_t bytes;
    uint8_t plan;        /* enum weft_plan_id; AUTO: no choice yet */
    uint8_t forced_plan; /* from the plan table */
    uint8_t dtype;
    bool reproducible, unequal, averages, keeps_order;
};
enum { GROUP_KINDS_CACHED = 16 }; /* kinds below it have an entry */

/* Memory that groups keep between operations. One pool serves all groups that share it. */
struct op_pool {
    struct weft_list idle;        /* struct weft_coll.link */
    void *idle_stages;            /* staged.c */
    void *idle_buffers;           /* onehost/pool.c: free buffers */
    struct onehost_slot_pool {    /* onehost/pool.c, by enum onehost_slot_class */
        void *idle;               /* free slots */
        struct weft_list holders; /* struct onehost_copyin_slots.link */
        uint32_t count;           /* free and held slots */
    } copyin_slots[2];
    struct weft_list idle_codec_ops; /* compressed/all_reduce.c: free operations */
    struct peer_table *peer_tables;
    struct status_reply replies[GROUP_REPLIES_MAX];
    uint32_t groups, window;
};

struct weft_group {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_loop *loop;
    struct weft_straggler_time *straggler_time; /* borrowed, may be NULL */
    struct weft_event_ring *events;
    struct weft_recorder *recorder;
    uint32_t rank, ranks, group_id, epoch, inflight_max, window, operations_max;
    /* hash of the endpoint ids in rank order. With id and epoch it names the group in a record */
    uint32_t members_hash;
    size_t chunk_bytes;
    uint64_t deadline_ns;
    uint32_t sparse_shared_ranks;
    bool timing_only;
    bool keeps_affinity, ids_increase; /* as in weft_group_options */
    uint32_t rank_modulus;             /* 0: off; as in weft_group_options */
    void (*describe)(void *context, uint32_t rank, char *out, size_t out_bytes);
    void *describe_context;
    void (*describe_subject)(void *context, uint32_t subject, char *out, size_t out_bytes);
    /* of its worst link, and of the worst link inside a host. Equal on all ranks */
    struct weft_link_cost cost, local_cost;
    const struct weft_plan_hosts *hosts; /* borrowed, may be NULL */
    /* (GROUP_KINDS_CACHED,) by kind; derived from `cost` and the call. NULL: no call yet */
    struct plan_choice *choices;

    struct peer_table *peer_table;  /* may be shared with other groups */
    struct peer_state *peer_states; /* (ranks,); NULL: no event yet (peer_table.c) */
    struct weft_list active, ready;
    struct op_pool *op_pool; /* may be shared with other groups */
    /* codec operations whose task runs on the compute thread, or whose device encodes */
    struct weft_list computing;
    uint32_t active_count;
    uint32_t prepared_count; /* prepared operations of the later rounds of active codec operations */
    uint64_t sequence;       /* operations posted so far, so the sequence of the next one */
    struct call_digest call_digest;
    bool pair_counts_lost; /* sends and recvs are not counted: no memory */
    bool last_op_is_send;  /* no collective operation was posted after the last send by messages */
    uint32_t outstanding;  /* transport operations that point into memory of the group */
    struct send_credit *send_credit; /* owned; NULL: no operation with an urgency yet, or no memory */
    uint64_t launch_count; /* operations launched so far */
    struct retune *retune; /* owned; NULL: plans are not re-tuned */

    struct weft_timer timer;
    bool is_scheduled, needs_retry, is_progressing, is_closing;
    uint64_t seen_ns;     /* time of the last poll */
    uint64_t recorded_ns; /* time of the last update of the flight recorder */

    enum weft_status fail_status;
    bool failed_remotely;  /* a FAIL ended the group; fail_text is the sender's text */
    uint32_t fail_rank;    /* sender of that FAIL */
    const char *fail_text; /* owned, unless it is the text of weft_status_text */
    uint64_t grace_ns, release_timeout_ns;
    uint32_t left_count; /* ranks whose LEAVE arrived */
    bool ended_by_leave; /* the group ended because an operation needs a rank that left */
    bool leaving;        /* this rank has sent its LEAVE (weft_group_leave) */
    bool lost;           /* a peer failed before the group ended; lost_rank is the first one */
    uint32_t lost_rank;
    enum weft_status lost_status;
    uint64_t lost_until_ns;
    /* of the endpoint; NULL: the group receives no control messages */
    struct control_router *control_router;
    struct weft_list control_router_link;
    /* queue of ranks that wait for a status reply, linked by reply_queue_next; GROUP_RANK_NONE: empty */
    uint32_t reply_queue_first, reply_queue_last;
    struct remote_failure *remote_failure; /* NULL: no FAIL is being received */
    struct broadcast fail, status_request, leave, offer, vote;
    /* onehost.h; NULL: not set up yet (may_open_onehost), or the ranks cannot map each other's memory */
    struct onehost *onehost;
    /* the one-host path is not set up yet, and no rank has voted against it */
    bool may_open_onehost;

    /* deadline.c: status request before a deadline error */
    enum { DIAGNOSIS_NONE, DIAGNOSIS_REQUESTING, DIAGNOSIS_DEFERRED } diagnosis;
    /* the late operation is a send or recv; diagnosis_seq is then not its sequence */
    bool diagnosis_is_sendrecv;
    uint64_t diagnosis_seq, diagnosis_until_ns;
};

/* group.c */
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

/* peer_table.c */
enum weft_status peer_table_acquire(struct weft_group *group, const uint32_t *endpoint_ids,
                                    struct weft_error *error);
void peer_table_release(struct weft_group *group);                          /* also frees the peer states */
struct peer_state *peer_state_get(struct weft_group *group, uint32_t rank); /* for writing; NULL: no memory */
static inline struct peer_state peer_state_of(const struct weft_group *group, uint32_t rank)
{
    return group->peer_states ? group->peer_states[rank] : (struct peer_state){0};
}

/* group_control.c */
enum weft_status group_control_start(struct weft_group *group, bool defers_peer_loss,
                                     struct weft_error *error);
void group_control_receive(struct weft_group *group, struct weft_arrival *arrival); /* consumes the arrival */
void group_control_peer_lost(struct weft_group *group, uint32_t peer_id, enum weft_status status);
void group_control_broadcast(struct broadcast *broadcast, struct weft_group *group,
                             enum coll_message_type type, uint64_t sequence, enum weft_status status);
/* Sends a header without payload. The header must stay valid while the broadcast is busy. The broadcast
 * must not be busy. */
void group_control_broadcast_header(struct broadcast *broadcast, struct weft_group *group,
                                    const struct coll_header *header);
void group_control_retry(struct weft_group *group);
/* drops what the transport has not accepted */
void group_control_drop_unsent(struct weft_group *group);
void group_control_end_lost(struct weft_group *group);
/* Ends the group if operation `sequence` needs a rank that has left. Returns false if the group has ended. */
bool group_control_require_all(struct weft_group *group, uint64_t sequence);
/* the same for a send or recv, which needs that rank only */
bool group_control_require_peer(struct weft_group *group, uint32_t rank, enum weft_coll_kind kind);

/* control_router.c. add: before the group sends. deliver_early: messages that arrived before the group was
 * made. remove: the group receives no more messages. */
enum weft_status control_router_add(struct weft_group *group);
void control_router_deliver_early(struct weft_group *group);
void control_router_remove(struct weft_group *group);
/* groups of the same endpoint */
void control_router_each_group(const struct weft_group *group,
                               void (*fn)(void *context, const struct weft_group *group), void *context);
/* Endpoint that the caller waits for outside of operations (weft_groups_set_wait); WEFT_ANY_PEER: none. */
uint32_t control_router_awaited_peer(const struct weft_group *group);

/* deadline.c */
uint64_t deadline_check(struct weft_group *group, uint64_t now_ns); /* returns the time of the next check */
void deadline_request_received(struct weft_group *group, uint64_t sequence);
void deadline_reply_received(struct weft_group *group, uint32_t rank, const struct coll_header *header);
/* Writes this rank's progress in the operation in question into a status reply. */
void deadline_fill_reply(const struct weft_group *group, uint64_t sequence, struct coll_header *header);

/* interpreter.c */
void coll_advance(struct weft_coll *coll, size_t *budget);
bool coll_scale_input(struct weft_coll *coll, size_t *budget); /* runs before the first step; true: done */
bool coll_is_complete(const struct weft_coll *coll);
void coll_abort(struct weft_coll *coll, enum weft_status status, const char *text);
/* Returns whether a message of the operation has matched. */
bool coll_has_received(const struct weft_coll *coll);
/* Returns the rank that the oldest waiting step waits for. false: none. */
bool coll_waits_for(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);
/* "operation 12"; "a send" or "a recv" without a number */
const char *coll_title(const struct weft_coll *coll, uint64_t sequence, char out[48]);
/* Ends the group with WEFT_ERR_MISMATCH: `peer` called another operation. own: this rank's call, of `coll`
 * or of an operation that completed here before the peers called it. */
void coll_report_mismatch(struct weft_coll *coll, const struct coll_header *own, uint32_t peer,
                          const struct coll_header *theirs, const char *what);
/* Ends the group: `peer` and this rank expect different lengths of a piece, in bytes. */
void coll_report_lengths(struct weft_coll *coll, uint32_t peer, bool peer_sends, uint64_t sent,
                         uint64_t expected);

/* op_record.c */
/* Returns the fields that every record of the group has. The caller adds the call. */
static inline struct weft_record coll_record_of(const struct weft_group *group, uint64_t sequence,
                                                uint64_t posted_ns, bool starts)
{
    return (struct weft_record){.sequence = sequence,
                                .posted_ns = posted_ns,
                                .started_ns = starts ? posted_ns : 0,
                                .phase = starts ? "started" : "posted",
                                .group = group->group_id,
                                .members_hash = group->members_hash,
                                .epoch = group->epoch,
                                .rank = group->rank,
                                .ranks = group->ranks,
                                .peer = WEFT_RECORD_NO_PEER,
                                .status = WEFT_IN_PROGRESS};
}
/* starts: the operation starts in this call, so one record covers post and start */
void coll_record_post(struct weft_coll *coll, bool starts);
static inline uint64_t coll_event_id(const struct weft_group *group, uint64_t sequence)
{
    return (uint64_t)group->group_id << 40 | (sequence & ((1ull << 40) - 1));
}
void coll_event(const struct weft_group *group, enum weft_coll_kind kind, enum weft_event_phase phase,
                uint64_t sequence, uint64_t bytes, enum weft_status status, uint64_t now_ns);
void coll_record_start(struct weft_coll *coll, uint64_t now_ns);
/* updates the step count and the rank that the operation waits for */
void coll_record_phase(struct weft_coll *coll);
void coll_record_end(struct weft_coll *coll, uint64_t now_ns);

/* call_digest.c */
/* counts an operation with a root, once */
void call_digest_add(struct weft_group *group, const struct coll_header *called);
/* counts a send or recv by messages */
void sendrecv_count_add(struct weft_group *group, enum weft_coll_kind kind, uint32_t rank);
void sendrecv_count_remove(struct weft_group *group, uint32_t rank); /* for a cancelled recv */
/* into the LEAVE to `rank` */
void call_digest_write(const struct weft_group *group, uint32_t rank, struct coll_header *header);
/* from the LEAVE of another rank */
void call_digest_read(struct peer_state *peer_state, const struct coll_header *header);
/* `rank` has left and sent more than this rank received */
bool peer_has_unreceived_sends(const struct weft_group *group, uint32_t rank);

/* straggler_time.c */
/* the transfer time of a longer first message would count as waiting */
enum { STRAGGLER_MESSAGE_BYTES_MAX = 256 << 10 };
void straggler_wait_begin(struct weft_coll *coll);
void straggler_wait_end(struct weft_coll *coll); /* may be called if the operation does not wait */
/* a receive was posted. Returns whether it is a peer's first message */
bool straggler_recv_posted(struct weft_coll *coll, const struct weft_action *action);
void straggler_recv_arrived(struct weft_coll *coll); /* such a receive has completed */
/* us that the operation waited for stragglers; for its messages */
int32_t straggler_delay_us(const struct weft_coll *coll);
/* merges the delay in a peer's message. UNTRUSTED: it changes the counter only */
void straggler_merge_delay(struct weft_coll *coll, int32_t late_us);

/* op_args.c */
/* Permitted layouts of the two buffers of a call: disjoint or in place. In bytes; all 0 if the call has
 * one buffer. */
struct coll_buffer_layout {
    uint64_t in_bytes, out_bytes, in_place; /* in_place: offset of `in` from `out`, modulo 2^64 */
};
struct coll_buffer_layout coll_buffer_layout_of(const struct weft_coll_caller *caller,
                                                const struct weft_coll_args *args);
static inline bool coll_buffers_are_valid(const struct coll_buffer_layout *layout, const void *in,
                                          const void *out)
{
    const uint64_t behind = (uint64_t)(uintptr_t)in - (uint64_t)(uintptr_t)out;
    return behind == layout->in_place || (behind >= layout->out_bytes && -behind >= layout->in_bytes);
}
static inline struct weft_coll_caller coll_caller(const struct weft_group *group)
{
    return (struct weft_coll_caller){.rank = group->rank,
                                     .ranks = group->ranks,
                                     .hosts = group->hosts,
                                     .skips_buffer_checks = group->timing_only};
}
static inline enum weft_status coll_check(const struct weft_group *group, const struct weft_coll_args *args,
                                          struct weft_error *error)
{
    const struct weft_coll_caller caller = coll_caller(group);
    return weft_coll_check(&caller, args, error);
}

/* op.c. prepare takes the sequence and all memory; launch starts the operation, at any later time; discard
 * undoes prepare. The piece lengths and buffers of all_gather_bytes and exchange_bytes may change before
 * launch. */
/* Checks that the group can run an operation: a send or recv `pair`, or an operation of all ranks (pair
 * NULL). */
enum weft_status coll_check_group(struct weft_group *group, const struct weft_coll_args *pair,
                                  struct weft_error *error);
/* Fills in an operation without its memory, buffers and sequence. Returns the bytes of scratch that it
 * needs. */
size_t coll_init_template(struct weft_coll *coll, struct weft_group *group,
                          const struct weft_coll_args *args);
/* true: coll_prepare allocates nothing */
bool op_pool_has_scratch(struct weft_group *group, size_t scratch_bytes);
enum weft_status coll_prepare(struct weft_group *group, const struct weft_coll_args *args, bool on_path,
                              uint32_t retune_key, weft_coll_done_fn done, void *context,
                              struct weft_coll **coll_out, struct weft_error *error);
/* on_path: on the one-host path, if the ranks agree */
void coll_launch(struct weft_coll *coll, bool on_path, uint64_t now_ns);
void coll_discard_prepared(struct weft_coll *coll);
void coll_resume(struct weft_coll *coll); /* the plan table is in force; starts the operation */
/* Runs done and returns the operation to the pool. callback_ns: clock reading at the begin of this timer
 * callback; 0: none. */
void coll_finish(struct weft_coll *coll, uint64_t callback_ns);
void group_ops_free(struct weft_group *group);
/* Returns the pool of `with` if its window has the same size, else a new one. with may be NULL. NULL: no
 * memory. */
struct op_pool *op_pool_acquire(struct weft_env *env, const struct weft_group *with, uint32_t window);
/* the last user frees it; NULL is fine */
void op_pool_release(struct weft_env *env, struct op_pool *op_pool);

/* compressed/all_reduce.c */
void op_pool_free_codec_ops(struct weft_env *env, struct op_pool *op_pool);
/* Ends the operations whose codec arithmetic runs. May block until the arithmetic ends. */
void codec_close(struct weft_group *group, enum weft_status status, const char *text);

/* reduce_buffer.c */
size_t reduce_buffer_bytes(uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems);
void reduce_buffer_init(struct reduce_buffer *area, uint8_t *memory, uint32_t ranks, enum weft_dtype dtype,
                        uint64_t chunk_elems);
void reduce_buffer_open(struct weft_coll *coll, struct reduce_buffer *area, uint64_t offset_in,
                        uint64_t count);
/* Index of a rank's contribution in the fold, and its receive buffer. */
uint32_t reduce_buffer_index(const struct weft_coll *coll, uint32_t rank);
static inline uint8_t *reduce_buffer_slot(struct reduce_buffer *area, uint32_t index)
{
    return area->raw + index * area->raw_bytes;
}
/* Folds contributions in rank order within the budget of bytes. Returns true when all are folded. */
bool reduce_buffer_advance(struct weft_coll *coll, struct reduce_buffer *area, size_t *budget);
/* After all contributions: rounds, scales and writes the sum within the budget. Returns true when all is
 * written; the buffer is then closed. */
bool reduce_buffer_finish(struct weft_coll *coll, struct reduce_buffer *area, struct reduce_dst out,
                          size_t *budget);

#endif
