/* internal.h - what the files of this room share: the group, one posted operation, one message header.
 *
 *      weft_coll_post (op.c)          validates, takes all memory, queues; nothing runs yet
 *            │ ready
 *      group_pump (group.c, the group's timer)  ──►  coll_advance (step.c): window of steps of the plan
 *            ▲ ready                                      │ weft_transport_send / _recv
 *      slot_completed (step.c)  ◄──── transport progress ◄┘      sums: sum.c, reduce_buffer.c
 *
 * Beside the operations there is *news* between ranks (control.c, brought by control_router.c): another
 * rank's operation failed, questions before a deadline's verdict (deadline.c), a farewell, the death of a
 * peer.
 *
 * A failure other than a cancel is the group's: ranks no longer agree which operations happened, so the
 * group ends everywhere with one status and text, and a new one (next epoch) must be made. */
#ifndef WEFT_COLLECTIVE_CORE_INTERNAL_H
#define WEFT_COLLECTIVE_CORE_INTERNAL_H

#include "collective/collective.h"
#include "kernels/kernels.h"

#define GROUP_TEXT_BYTES 480
#define GROUP_POLL_INTERVAL_NS WEFT_MS(500)        /* own polls while operations are posted */
#define GROUP_STALL_MIN_NS WEFT_SECONDS(1)      /* a longer silence of our own does not count as waiting */
#define GROUP_WARN_AFTER_NS WEFT_SECONDS(30)
#define GROUP_STATUS_TIMEOUT_NS WEFT_MS(500)         /* how long a verdict waits for answers */
/* after a failure, for peers to let go of our send buffers */
#define GROUP_RELEASE_TIMEOUT_NS WEFT_SECONDS(2)
#define GROUP_RELEASE_POLL_NS WEFT_MS(1)          /* between looks whether a peer is out of our buffers */
/* for operations that may finish without a rank that is gone */
#define GROUP_LOST_DELAY_NS WEFT_MS(200)
#define GROUP_RETRY_NS 20000u             /* after WEFT_ERR_AGAIN from the transport */
/* of our answers in flight at once, of all groups that share records */
#define GROUP_REPLIES_MAX 16
#define GROUP_RANK_NONE UINT32_MAX
/* in place of steps: the operation asked about is none of this rank's, or over */
#define REPLY_NOT_ACTIVE UINT32_MAX
#define GROUP_ID_MAX 0xffffffu
#define GROUP_INLINE_BYTES_MAX 64u              /* of a news message that travel behind its header */
#define COLL_COMPUTE_UNIT_BYTES (64u << 10)       /* of them at a time */
#define GROUP_PROGRESS_BYTES_MAX (1u << 18)       /* summed per loop step */

/* ---- the header of every message (wire.c) ---- */
#define COLL_HEADER_BYTES 80u
enum coll_message_type {
    COLL_MESSAGE_DATA = 1,
    COLL_MESSAGE_FAIL = 2,  /* status + text: the group has ended at the sender; count 1: for want of a
                             * rank that had left in order */
    COLL_MESSAGE_STATUS_REQUEST = 3,   /* "how far are you?": sequence in question */
    COLL_MESSAGE_STATUS_REPLY = 4,/* sequence in question, count = operations posted so far, chunk = the
                                   * one it waits in, root = whom it waits for there, lanes = its steps */
    COLL_MESSAGE_LEAVE = 5, /* the sender has left after `sequence` operations; count: how it had voted
                             * (enum onehost_vote) */
    COLL_MESSAGE_ONEHOST_SEGMENT = 6,  /* payload: where the sender's segment lies (onehost.h) */
    COLL_MESSAGE_ONEHOST_VOTE = 7, /* status: WEFT_OK, or the ranks cannot meet in memory */
    COLL_MESSAGE_RETUNE_REPORT = 8, /* cuts: cell, sequence: its version, count: nanoseconds (retune.h) */
    COLL_MESSAGE_RETUNE_TABLE = 9,  /* sequence: version, cuts: cell, root: plan */
    COLL_MESSAGE_RETUNE_ACK = 10,   /* sequence: version, count: operations posted so far, status */
    COLL_MESSAGE_RETUNE_COMMIT = 11,/* sequence: version, count: the operation from which it is in force,
                                     * status */
};

struct coll_header {
    uint8_t type, kind, dtype, op, plan;
    uint16_t plan_version; /* version by which the plan was chosen (retune.h); 0: by the model */
    uint32_t group, epoch, rank, root, lanes, message; /* root: kinds without a root carry the subject here */
    int32_t status; /* of data messages: microseconds for which late ranks held the sender up
                     * (straggler_time.c) */
    uint64_t sequence, count, chunk, piece_bytes, cuts;
};
void coll_header_write(uint8_t out[COLL_HEADER_BYTES], const struct coll_header *header);
/* UNTRUSTED bytes; false: not a header of this version. */
bool coll_header_read(const uint8_t *data, size_t bytes, struct coll_header *header_out);
/* In what two calls differ ("count"), or NULL. */
const char *coll_header_difference(const struct coll_header *a, const struct coll_header *b);
#define COLL_CALL_BYTES 256u /* for group_describe_call */
/* "all_reduce of 100 f32, sum, plan ring"; group_describe_call adds the subject */
void coll_header_describe(const struct coll_header *header, char *out, size_t out_bytes);

/* ---- the arithmetic of one operation (sum.c) ---- */
struct reduce_spec {
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t ranks;
    double total; /* the finished sum is divided by it: AVG by the ranks, SCALED_SUM by what its caller
                   * says; 0: it is not */
    float prescale;   /* factor of each contribution when it is widened; a power of two, 1 except for means
                       * of bf16 */
};
/* The sum of bf16 numbers can exceed f32 although their mean does not. The factor is a power of two at or
 * below 1/ranks. Up to 65,536 ranks all products are exact, also of the smallest bf16, so no bit of a mean
 * with a finite sum changes. */
static inline float reduce_prescale(const struct weft_coll_args *args, uint32_t ranks, double total)
{
    if (args->dtype != WEFT_BF16 || total == 0 || ranks < 2 || ranks > 65536) return 1;
    return 1.0f / (float)(1u << (32 - __builtin_clz(ranks - 1)));
}
static inline struct reduce_spec reduce_spec_of(const struct weft_coll_args *args, uint32_t ranks)
{
    double total = args->op == WEFT_SCALED_SUM ? args->total : args->op == WEFT_AVG && ranks > 1 ? ranks : 0;
    return (struct reduce_spec){args->dtype, args->op, ranks, total, reduce_prescale(args, ranks, total)};
}
/* of floats but f64 */
static inline float reduce_scale_factor(const struct reduce_spec *sum)
{
    return 1.0f / (float)sum->total / sum->prescale;
}
struct reduce_src {
    const void *data;
    bool wide; /* partials, else elements */
};
struct reduce_dst {
    void *data;
    bool wide, last;
};

/* ---- one posted operation ---- */
enum slot_state { SLOT_WAITING = 1, SLOT_POSTED, SLOT_COMPUTING, SLOT_DONE };

struct slot {
    struct weft_coll *coll;
    struct weft_action action;
    enum slot_state state;
    uint64_t computed; /* elements of the sum or copy done so far */
    struct weft_completion completion;
    struct weft_receive receive;
    bool is_first_message; /* a peer's first message is not there: straggler_time.c */
};

/* Where the contributions to one chunk meet (reduce_buffer.c). */
struct reduce_buffer {
    bool open;            /* between the first receive of a chunk and the end of its fold */
    uint64_t offset_in, count;
    uint32_t next;        /* rank to be folded next */
    uint64_t done;        /* elements of it that are folded; of the sum that are written when all ranks are
                           * in */
    float *partial;       /* 16-bit types: where they are widened to */
    uint8_t *present;     /* (ranks,) contribution has arrived */
    uint8_t *raw;         /* (ranks, raw_bytes) contributions as received */
    size_t raw_bytes;
    float *free_partials[34]; /* 16-bit types: buffers not in use by the fold */
    uint32_t free_count;
    struct weft_tree_reduce fold;
};

/* onehost.h: where an operation is that may be done in the memory of one host. AWAY: by messages, as all
 * others. */
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
    struct weft_list link;       /* group->active in the order posted, or group->records->idle */
    struct weft_list ready_link; /* group->ready, or itself */
    enum coll_phase phase;
    enum weft_status status;     /* of an ending operation */
    const char *text;            /* static, or the group's */
    struct weft_coll_args args;
    struct coll_header header;   /* what every message of it says */
    const uint8_t *in;           /* what the plan calls input; args.in, but where contributions are scaled
                                  * first, from */
    const uint8_t *unscaled;
    struct reduce_spec sum;              /* its arithmetic */
    size_t elem_bytes;
    size_t scratch_elem_bytes;   /* of a partial in a wide plan, else of an element */
    bool wide;                   /* the plan's scratch holds partials */
    /* elements of the input to be scaled before the plan starts, and how many are */
    uint64_t input_elems_to_prepare, input_elems_prepared;
    uint64_t sequence, deadline_ns, posted_ns;
    bool warned, is_sendrecv;       /* pairwise: send or recv */
    bool is_counted;                /* sendrecv_count_add has counted it */
    bool is_plan_pending;                   /* posted, but by which plan is not known yet (retune.h) */
    struct {                     /* straggler_time.c */
        bool counts;             /* it lacks a rank, since: */
        uint64_t since_ns;
        uint64_t late_ns;        /* so long it was held up by ranks that had not begun it */
        uint64_t asked;          /* peers from which a receive was posted, a bit each, by rank modulo 64 */
        uint32_t awaited;        /* receives that are not there, of peers' first messages */
    } straggler_time;
    bool is_alone;                  /* no other was active when it was launched, */
    uint64_t launch_number;             /* so many had been in the group's life */
    uint32_t retune_key;           /* its cell; 0: none */
    struct weft_record record;   /* what the flight recorder says of it, under `record_number` */
    uint64_t record_number;
    weft_coll_done_fn done;      /* NULL: has run */
    void *context;

    struct {
        enum onehost_phase phase;
        bool uses_cma, is_reachable;    /* own buffers: by address; those of all ranks known so far can be
                                         * reached */
        bool cma_refused;              /* a rank is refused copies by address */
        bool allows_stealing;              /* onehost.h: ONEHOST_ALLOWS_STEALING */
        bool may_allow_stealing, modes_differ;    /* onehost_may_allow_stealing; and some lend, while
                                                   * others say */
        uint8_t flags, all_flags; /* onehost.h: this rank's; what all ranks known so far say */
        bool is_copyin;           /* carried by the announcement itself */
        bool is_published;          /* before it was posted (onehost/fastpath.c): recorded, and its line
                                     * stands there */
        bool expects_message;  /* onehost_channel.c: the other rank counts on a message, or this one does */
        uint64_t seq, in_offset, out_offset;
        struct onehost_range { uint64_t first, count; } remaining; /* of the slice under way, in elements */
        uint32_t slice_owner;       /* this rank's, or, where they are taken in turns, that of */
        bool is_stealing;              /* oversubscribed.c */
        struct weft_list link;   /* host->queue */
        uint8_t *stage;          /* staged.c; NULL: none */
        struct onehost_stage_info {
            uint64_t offset;     /* where peers find it */
            uint32_t block;      /* the largest that a rank known so far wants */
        } stage_info;
        uint64_t cell, rounds;  /* elements of a place; how many times */
        uint64_t done[3];        /* rounds done, by action */
        struct onehost_method_stats *method_stats;    /* onehost_method_stats.c: what it takes is noted
                                                       * there; NULL: nowhere */
        uint64_t began_ns;       /* all ranks were here */
    } onehost;

    struct weft_plan_cursor cursor;
    bool plan_ended;
    uint64_t head, tail;         /* steps [tail, head) are in the window */
    uint32_t outstanding;        /* transport operations of it in flight */

    uint8_t *scratch;            /* owned; kept with the record for the next operation */
    size_t scratch_bytes;
    uint8_t *plan_scratch;       /* what the plan's steps name */
    struct reduce_buffer *reduce_buffers;
    uint32_t reduce_buffer_count;
    uint32_t reduce_buffer_ranks;         /* whose contributions meet in one: all, or those of this host */
    uint64_t *cuts;              /* elements before each piece; NULL: equal pieces */
    struct slot slots[];         /* (group->window,) */
};

/* ---- the group ---- */
/* peer_table.c: the ranks of groups that have the same ones in the same order. */
struct onehost_method_table;
struct peer_table {
    struct peer_table *next;         /* records->rosters */
    struct onehost_method_table *method_table;      /* onehost_method_stats.c, at rank 0; NULL: none was
                                                     * measured yet */
    uint32_t groups, ranks;
    struct weft_peer *peers[];   /* (ranks,) NULL: this rank */
};

/* Sends to a rank, and recvs from it. */
struct coll_sendrecv_counts {
    uint64_t sent, received;
};

/* The operations with a root of one rank, as its LEAVE carries them. digest 0: none. */
struct call_digest_state {
    uint64_t digest, count, sequence; /* count, sequence and the next fields describe the last one */
    uint32_t root;
    uint8_t kind, dtype, op;
};
struct call_digest {
    uint64_t next; /* one more than the sequence of the last; 0: none */
    struct call_digest_state last;
};
/* Values of `lanes` in a LEAVE. 0, of older releases: no trail. NO_PAIRS: the counts of sends and recvs
 * are not valid. */
enum { CALL_DIGEST_VERSION = 1, CALL_DIGEST_NO_PAIR_COUNTS = 2 };

/* State that a group keeps of another rank, from the first event about it on. */
struct peer_state {
    bool has_left, has_replied, reply_is_wanted;  /* has left; has answered our question; waits for our
                                                   * answer */
    uint32_t reply_queue_next;         /* rank that waits for our answer behind it */
    uint64_t reply_for_seq;
    bool call_digest_known, pair_counts_known; /* its LEAVE carried `trail`; carried `pair_counts` */
    uint64_t left_after_seq;         /* operations it took part in */
    struct call_digest_state call_digest;
    struct coll_sendrecv_counts pair_counts;  /* modulo 2^32 */
    struct coll_sendrecv_counts message_counts; /* our own with it, that did not go by memory
                                                 * (onehost_channel.c) */
    uint64_t reply_posted_ops;      /* from its last answer: operations it has posted, */
    uint64_t reply_op_seq;   /* the one in question, or an earlier one that it waits in, */
    uint32_t reply_waits_for;        /* whom it waits for there (GROUP_RANK_NONE: nobody), */
    uint32_t reply_steps;       /* and how many of its steps are over (REPLY_NOT_ACTIVE: it is in none of
                                 * this group's) */
};

/* An answer on its way. */
struct status_reply {
    struct weft_group *group;
    struct weft_completion completion;
    bool busy;
};

/* One message to everybody. What it carries lies in the group (control.c), which has five of these. */
struct broadcast {
    struct weft_group *group;
    const struct coll_header *header; /* borrowed; NULL: made of what follows */
    uint64_t sequence;
    struct weft_completion completion;
    int32_t status;
    uint32_t next_rank;          /* not yet handed to the transport */
    uint8_t type;                /* enum coll_message_type */
    bool busy;
};

/* The text of the end that another rank tells of, on its way. */
struct remote_failure {
    struct weft_group *group;
    struct weft_completion completion;
    enum weft_status status;
    bool by_leave;                 /* it had ended for want of a rank that left */
    char text[GROUP_TEXT_BYTES];
};

/* The plan that was chosen last for one kind, and for what. */
struct plan_choice {
    uint64_t bytes;
    uint8_t plan; /* enum weft_plan_id; AUTO: none yet */
    uint8_t forced_plan; /* by the table */
    uint8_t dtype;
    bool reproducible, unequal, averages, keeps_order;
};
enum { GROUP_KINDS_CACHED = 16 };    /* kinds below it are remembered */

/* Records of operations that are over, with their scratch, and what else groups need now and then, kept
 * for all that share them. */
struct op_pool {
    struct weft_list idle; /* struct weft_coll.link */
    void *idle_stages;          /* staged.c */
    void *idle_buffers;         /* onehost/pool.c: those that nobody has */
    struct onehost_slot_pool {    /* onehost/pool.c, by enum onehost_slot_class */
        void *idle;        /* those that nobody has */
        struct weft_list holders; /* struct onehost_copyin_slots.link */
        uint32_t count;    /* of both */
    } copyin_slots[2];
    struct weft_list idle_codec_ops;  /* all_reduce.c: memory kept for the next one */
    struct peer_table *peer_tables;
    struct status_reply replies[GROUP_REPLIES_MAX];
    uint32_t groups, window;
};

struct weft_group {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_loop *loop;
    struct weft_straggler_time *straggler_time;      /* borrowed, may be NULL */
    struct weft_event_ring *events;
    struct weft_recorder *recorder;
    uint32_t rank, ranks, group_id, epoch, inflight_max, window, operations_max;
    uint32_t members_hash;           /* of the endpoints' ids, in order: with id and epoch it names this
                                      * group in a record */
    size_t chunk_bytes;
    uint64_t deadline_ns;
    uint32_t sparse_shared_ranks;
    bool timing_only;
    bool keeps_affinity, ids_increase;        /* see weft_group_options */
    uint32_t rank_modulus;             /* 0: every rank is itself */
    void (*describe)(void *context, uint32_t rank, char *out, size_t out_bytes);
    void *describe_context;
    void (*describe_subject)(void *context, uint32_t subject, char *out, size_t out_bytes);
    struct weft_link_cost cost, local_cost; /* of its worst link, and of the worst inside a host; the same
                                             * on all ranks */
    const struct weft_plan_hosts *hosts; /* borrowed, may be NULL */
    struct plan_choice *choices; /* (GROUP_KINDS_CACHED,) by kind; what follows from `cost` and the call.
                                  * NULL: none yet */

    struct peer_table *peer_table;       /* perhaps with other groups */
    struct peer_state *peer_states;          /* (ranks,); NULL: nothing to note yet (peer_table.c) */
    struct weft_list active, ready;
    struct op_pool *op_pool;     /* perhaps with other groups */
    struct weft_list computing;   /* codec operations whose task is at the compute thread, or whose device
                                   * encodes */
    uint32_t active_count;
    uint32_t prepared_count;     /* later rounds of active codec operations */
    uint64_t sequence;           /* operations posted so far = number of the next */
    struct call_digest call_digest;          /* call_digest.c */
    bool pair_counts_lost;          /* sends and recvs are not counted: out of memory */
    bool last_op_is_send;             /* no collective operation was posted after the last send by messages */
    uint32_t outstanding;        /* transport operations that point into the group's memory */
    uint64_t launch_count;           /* operations that have been launched */
    struct retune *retune;           /* owned; NULL: plans are not re-tuned */

    struct weft_timer timer;
    bool is_scheduled, needs_retry, is_progressing, is_closing;
    uint64_t seen_ns;            /* our last poll */
    uint64_t recorded_ns;        /* the flight recorder learned last who waits for whom */

    enum weft_status fail_status;
    bool failed_remotely;              /* a FAIL message ended the group; fail_text is its sender's
                                        * sentence */
    uint32_t fail_rank;          /* sender of that FAIL */
    const char *fail_text;       /* owned where it is not a word of weft_status_text */
    uint64_t grace_ns, release_timeout_ns;
    uint32_t left_count;         /* ranks that have left in good order */
    bool ended_by_leave;          /* one of them was needed still: the group's end */
    bool leaving;                /* the others are told so (weft_group_leave) */
    bool lost;                   /* a peer was found dead while nothing had ended yet: the first one, */
    uint32_t lost_rank;
    enum weft_status lost_status;
    uint64_t lost_until_ns;
    struct control_router *control_router;           /* of the endpoint; NULL: no news any more */
    struct weft_list control_router_link;
    uint32_t reply_queue_first, reply_queue_last; /* ranks that wait for an answer, by reply_queue_next;
                                                   * GROUP_RANK_NONE */
    struct remote_failure *remote_failure;           /* NULL: no rank has told of its end */
    struct broadcast fail, status_request, leave, offer, vote;
    struct onehost *onehost;           /* onehost.h; NULL: not yet (may_open_onehost), or the ranks do not
                                        * share a host's memory */
    bool may_open_onehost;               /* there is no `host` yet, and nobody has said that he cannot */

    /* deadline.c: the question before a verdict */
    enum { DIAGNOSIS_NONE, DIAGNOSIS_REQUESTING, DIAGNOSIS_DEFERRED } diagnosis;
    bool diagnosis_is_sendrecv; /* of a send or recv; diagnosis_seq is not its number then */
    uint64_t diagnosis_seq, diagnosis_until_ns;
};

/* group.c */
uint64_t group_tag(const struct weft_group *group, uint64_t sequence);
uint64_t group_control_tag(const struct weft_group *group);
/* sends and recvs of a pair match in the order posted */
uint64_t group_pair_tag(const struct weft_group *group);
void group_describe(const struct weft_group *group, uint32_t rank, char *out, size_t out_bytes);
/* "all_reduce of 100 f32, sum, plan ring, of tensor 'fc1'" */
void group_describe_call(const struct weft_group *group, const struct coll_header *header, char *out,
                         size_t out_bytes);
/* as kick, but only for deadlines */
bool group_schedule_at(struct weft_group *group, uint64_t now_ns, uint64_t deadline_ns);
bool group_schedule(struct weft_group *group); /* false: the loop has no memory for a timer */
void coll_mark_ready(struct weft_coll *coll);
/* End the group; `tell`: the other ranks too. */
void group_end(struct weft_group *group, enum weft_status status, bool retune_message, const char *format,
               ...) __attribute__((format(printf, 4, 5)));
void group_transport_op_done(struct weft_group *group); /* a transport operation has ended */

/* peer_table.c */
enum weft_status peer_table_acquire(struct weft_group *group, const uint32_t *endpoint_ids,
                                    struct weft_error *error);
void peer_table_release(struct weft_group *group); /* and the notes */
struct peer_state *peer_state_get(struct weft_group *group, uint32_t rank); /* to write; NULL: no memory */
static inline struct peer_state peer_state_of(const struct weft_group *group, uint32_t rank)
{
    return group->peer_states ? group->peer_states[rank] : (struct peer_state){0};
}

/* control.c */
enum weft_status group_control_start(struct weft_group *group, bool defers_peer_loss,
                                     struct weft_error *error);
void group_control_receive(struct weft_group *group, struct weft_arrival *arrival); /* ends the arrival */
void group_control_peer_lost(struct weft_group *group, uint32_t peer_id, enum weft_status status);
void group_control_broadcast(struct broadcast *broadcast, struct weft_group *group,
                             enum coll_message_type type, uint64_t sequence, enum weft_status status);
/* The header alone, which stays until the broadcast is not busy; it must not be. */
void group_control_broadcast_header(struct broadcast *broadcast, struct weft_group *group,
                                    const struct coll_header *header);
void group_control_retry(struct weft_group *group);
/* what the transport has not taken yet is not sent */
void group_control_drop_unsent(struct weft_group *group);
void group_control_end_lost(struct weft_group *group);
/* Fail the group if an operation of number `sequence` cannot happen as a peer has left. */
bool group_control_require_all(struct weft_group *group, uint64_t sequence);
/* likewise for a send or recv, which needs that rank alone */
bool group_control_require_peer(struct weft_group *group, uint32_t rank, enum weft_coll_kind kind);

/* control_router.c: join before anything is sent, catch up with what came before, leave when nothing more
 * is wanted */
enum weft_status control_router_add(struct weft_group *group);
void control_router_deliver_early(struct weft_group *group);
void control_router_remove(struct weft_group *group);
/* of its endpoint */
void control_router_each_group(const struct weft_group *group,
                               void (*fn)(void *context, const struct weft_group *group), void *context);

/* deadline.c */
uint64_t deadline_check(struct weft_group *group, uint64_t now_ns); /* returns when to look again */
void deadline_request_received(struct weft_group *group, uint64_t sequence);
void deadline_reply_received(struct weft_group *group, uint32_t rank, const struct coll_header *header);
/* How far this rank is with the operation in question, into the header of an answer. */
void deadline_fill_reply(const struct weft_group *group, uint64_t sequence, struct coll_header *header);

/* step.c */
void coll_advance(struct weft_coll *coll, size_t *budget);
bool coll_scale_input(struct weft_coll *coll, size_t *budget); /* before the first step; true: it is done */
bool coll_is_complete(const struct weft_coll *coll);
void coll_abort(struct weft_coll *coll, enum weft_status status, const char *text);
/* The rank that the oldest waiting step waits for; false: none. */
bool coll_waits_for(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);
/* "operation 12"; a send or recv has no number */
const char *coll_title(const struct weft_coll *coll, uint64_t sequence, char out[48]);
/* End the group: `peer` called otherwise. */
/* `own`: what this rank called there; of `coll`, or of an operation that was over here before the others
 * had called it. */
void coll_report_mismatch(struct weft_coll *coll, const struct coll_header *own, uint32_t peer,
                          const struct coll_header *theirs, const char *what);
/* End the group: of a piece that goes between `peer` and this rank each has another length in mind. Bytes. */
void coll_report_lengths(struct weft_coll *coll, uint32_t peer, bool peer_sends, uint64_t sent,
                         uint64_t expected);

/* op_record.c */
/* What every record of the group says; the call itself is the caller's to add. */
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
void coll_record_post(struct weft_coll *coll, bool starts); /* starts: at once, so that one entry says both */
static inline uint64_t coll_event_id(const struct weft_group *group, uint64_t sequence)
{
    return (uint64_t)group->group_id << 40 | (sequence & ((1ull << 40) - 1));
}
void coll_event(const struct weft_group *group, enum weft_coll_kind kind, enum weft_event_phase phase,
                uint64_t sequence, uint64_t bytes, enum weft_status status, uint64_t now_ns);
void coll_record_start(struct weft_coll *coll, uint64_t now_ns);
void coll_record_phase(struct weft_coll *coll); /* how far it is and whom it waits for */
void coll_record_end(struct weft_coll *coll, uint64_t now_ns);

static inline bool coll_is_reduction(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_REDUCE;
}

static inline bool coll_has_root(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_GATHER ||
           kind == WEFT_COLL_SCATTER;
}

/* A piece for or of each rank, its length said by its sender. */
static inline bool coll_is_sendrecv(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_SEND || kind == WEFT_COLL_RECV;
}
static inline bool coll_has_byte_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_ALL_GATHER_BYTES || kind == WEFT_COLL_EXCHANGE_BYTES;
}

/* call_digest.c */
/* counts an operation with a root, once */
void call_digest_add(struct weft_group *group, const struct coll_header *called);
/* counts a send or recv by messages */
void sendrecv_count_add(struct weft_group *group, enum weft_coll_kind kind, uint32_t rank);
void sendrecv_count_remove(struct weft_group *group, uint32_t rank); /* uncounts a recv that is cancelled */
/* ---- straggler_time.c: has every rank begun the operation? ---- */
enum { STRAGGLER_MESSAGE_BYTES_MAX = 256 << 10 }; /* a longer first message takes too much time of its own */
void straggler_wait_begin(struct weft_coll *coll);
void straggler_wait_end(struct weft_coll *coll); /* fine if it lacks none */
/* a receive is posted: is it a peer's first message? */
bool straggler_recv_posted(struct weft_coll *coll, const struct weft_action *action);
void straggler_recv_arrived(struct weft_coll *coll); /* such a one is there */
/* for its messages: how long it was held up, in us */
int32_t straggler_delay_us(const struct weft_coll *coll);
/* takes the delay that a peer's message carries. UNTRUSTED: it changes figures only */
void straggler_merge_delay(struct weft_coll *coll, int32_t late_us);

/* step.c: has any of its messages been matched? */
bool coll_has_received(const struct weft_coll *coll);
/* into the LEAVE to `rank` */
void call_digest_write(const struct weft_group *group, uint32_t rank, struct coll_header *header);
/* from the LEAVE of another rank */
void call_digest_read(struct peer_state *peer_state, const struct coll_header *header);
/* the left `rank` sent more than this rank received */
bool peer_has_unreceived_sends(const struct weft_group *group, uint32_t rank);

/* op_args.c */
/* Elements of the two buffers of this rank. */
struct coll_elem_counts {
    uint64_t in, out;
};
struct coll_elem_counts coll_elem_counts_of(const struct weft_coll_caller *cell,
                                            const struct weft_coll_args *args);
/* Permitted layouts of the two buffers of a call: disjoint, or in place. Bytes; all 0 if the call has one
 * buffer. */
struct coll_buffer_layout {
    uint64_t in_bytes, out_bytes, in_place; /* in_place: offset of `in` from `out`, modulo 2^64 */
};
struct coll_buffer_layout coll_buffer_layout_of(const struct weft_coll_caller *cell,
                                                const struct weft_coll_args *args);
static inline bool coll_buffers_are_valid(const struct coll_buffer_layout *places, const void *in,
                                          const void *out)
{
    const uint64_t behind = (uint64_t)(uintptr_t)in - (uint64_t)(uintptr_t)out;
    return behind == places->in_place || (behind >= places->out_bytes && -behind >= places->in_bytes);
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
    const struct weft_coll_caller cell = coll_caller(group);
    return weft_coll_check(&cell, args, error);
}

/* op.c: prepare takes the number and all memory, launch starts it (perhaps much later), unprepare gives
 * up. The lengths of all_gather_bytes and exchange_bytes pieces, and where they lie, may still be set
 * before the launch. */
/* For a send or recv, `pair`, or else for an operation of all. */
enum weft_status coll_check_group(struct weft_group *group, const struct weft_coll_args *pair,
                                  struct weft_error *error);
/* What an operation is, without memory for it, its buffers and numbers left out; returned: bytes of
 * scratch that one needs. */
size_t coll_init_template(struct weft_coll *coll, struct weft_group *group,
                          const struct weft_coll_args *args);
/* with which coll_prepare allocates nothing */
bool op_pool_has_scratch(struct weft_group *group, size_t scratch_bytes);
enum weft_status coll_prepare(struct weft_group *group, const struct weft_coll_args *args, bool on_onehost,
                              uint32_t retune_key, weft_coll_done_fn done, void *context,
                              struct weft_coll **coll_out, struct weft_error *error);
/* on_onehost: in memory, if the ranks agree (onehost.h) */
void coll_launch(struct weft_coll *coll, bool on_onehost, uint64_t now_ns);
void coll_discard_prepared(struct weft_coll *coll);
void coll_resume(struct weft_coll *coll); /* the table in force says the plan; it starts */
/* done, and the record back to the group. pumped_ns: the clock as this round of the pump began; 0: there
 * is none. */
void coll_finish(struct weft_coll *coll, uint64_t pumped_ns);
void group_ops_free(struct weft_group *group);
/* Those of `with` (NULL: nobody's) where its operations have a window of the same size, else new ones.
 * NULL: no memory. */
struct op_pool *op_pool_acquire(struct weft_env *env, const struct weft_group *with, uint32_t window);
/* the last one frees them; NULL is fine */
void op_pool_release(struct weft_env *env, struct op_pool *op_pool);
void onehost_stages_free(struct weft_env *env, struct op_pool *op_pool);
void onehost_pools_free(struct weft_env *env, struct op_pool *op_pool);

/* all_reduce.c */
void op_pool_free_codec_ops(struct weft_env *env, struct op_pool *op_pool);
/* Those whose arithmetic is under way: it ends (may block for the length of it), then they do. */
void codec_close(struct weft_group *group, enum weft_status status, const char *text);

/* sum.c */
bool reduce_is_widened(enum weft_dtype dtype);          /* a float narrower than its partial */
size_t reduce_partial_bytes(enum weft_dtype dtype);
bool reduce_supports(enum weft_dtype dtype, enum weft_op op);
/* out = left (op) right, then scaled if `last` asks. */
void reduce_pair(const struct reduce_spec *sum, struct reduce_dst out, struct reduce_src left,
                 struct reduce_src right, size_t count);
/* out = in, widened or narrowed, and scaled if `last` asks. */
void reduce_copy(const struct reduce_spec *sum, struct reduce_dst out, struct reduce_src in, size_t count);
void reduce_widen(enum weft_dtype dtype, float *out, const void *in, size_t count);
/* widens a narrow float and multiplies it by sum->lift */
void reduce_load(const struct reduce_spec *sum, float *out, const void *in, size_t count);
/* floats; elements */
void reduce_scale(enum weft_dtype dtype, double factor, void *out, const void *in, size_t count);

/* reduce_buffer.c */
size_t reduce_buffer_bytes(uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems);
void reduce_buffer_init(struct reduce_buffer *area, uint8_t *memory, uint32_t ranks, enum weft_dtype dtype,
                        uint64_t chunk_elems);
void reduce_buffer_open(struct weft_coll *coll, struct reduce_buffer *area, uint64_t offset_in,
                        uint64_t count);
/* The place of a rank's contribution in the fold; and where it comes in. */
uint32_t reduce_buffer_index(const struct weft_coll *coll, uint32_t rank);
static inline uint8_t *reduce_buffer_slot(struct reduce_buffer *area, uint32_t cell)
{
    return area->raw + cell * area->raw_bytes;
}
/* Fold what is next in rank order while the budget lasts; true when all are in. */
bool reduce_buffer_advance(struct weft_coll *coll, struct reduce_buffer *area, size_t *budget);
/* All in: round and scale as `out` says, and write while the budget lasts; true when all is written and
 * the area closed. */
bool reduce_buffer_finish(struct weft_coll *coll, struct reduce_buffer *area, struct reduce_dst out,
                          size_t *budget);

#endif
