/* internal.h - what the files of this room share: the group, one posted operation, one message header.
 *
 *      weft_coll_post (post.c)          validates, takes all memory, queues; nothing runs yet
 *            │ ready
 *      group_pump (group.c, the group's timer)  ──►  coll_advance (step.c): window of steps of the plan
 *            ▲ ready                                      │ weft_transport_send / _recv
 *      slot_completed (step.c)  ◄──── transport progress ◄┘      sums: sum.c, fold_area.c
 *
 * Beside the operations there is *news* between ranks (control.c, brought by news.c): another rank's operation
 * failed, questions before a deadline's verdict (deadline.c), a farewell, the death of a peer.
 *
 * A failure other than a cancel is the group's: ranks no longer agree which operations happened, so the
 * group ends everywhere with one status and text, and a new one (next epoch) must be made. */
#ifndef WEFT_COLLECTIVE_INTERNAL_H
#define WEFT_COLLECTIVE_INTERNAL_H

#include "collective/collective.h"
#include "kernels/kernels.h"

#define GROUP_TEXT_BYTES 480
#define GROUP_TICK_NS WEFT_MS(500)        /* own polls while operations are posted */
#define GROUP_GAP_NS WEFT_SECONDS(1)      /* a longer silence of our own does not count as waiting */
#define GROUP_WARN_NS WEFT_SECONDS(30)
#define GROUP_ASK_NS WEFT_MS(500)         /* how long a verdict waits for answers */
#define GROUP_GRACE_NS WEFT_SECONDS(2)    /* after a failure, for peers to let go of our send buffers */
#define GROUP_HELD_NS WEFT_MS(1)          /* between looks whether a peer is out of our buffers */
#define GROUP_LOST_NS WEFT_MS(200)        /* for operations that may finish without a rank that is gone */
#define GROUP_RETRY_NS 20000u             /* after WEFT_ERR_AGAIN from the transport */
#define GROUP_ANSWERS 16                 /* of our answers in flight at once, of all groups that share records */
#define GROUP_NOBODY UINT32_MAX
#define ANSWER_NOT_THERE UINT32_MAX       /* in place of steps: the operation asked about is none of this rank's, or over */
#define GROUP_ID_MAX 0xffffffu
#define GROUP_TAIL_BYTES 64u              /* of a news message that travel behind its header */
#define COLL_UNIT_BYTES (64u << 10)       /* of them at a time */
#define GROUP_PUMP_BYTES (1u << 18)       /* summed per loop step */

/* ---- the header of every message (wire.c) ---- */
#define COLL_HEADER_BYTES 80u
enum coll_message_type {
    COLL_MESSAGE_DATA = 1,
    COLL_MESSAGE_FAIL = 2,  /* status + text: the group has ended at the sender; count 1: for want of a rank that had left in order */
    COLL_MESSAGE_ASK = 3,   /* "how far are you?": sequence in question */
    COLL_MESSAGE_ANSWER = 4,/* sequence in question, count = operations posted so far, chunk = the one it waits in, root = whom it waits for there, lanes = its steps */
    COLL_MESSAGE_LEAVE = 5, /* the sender has left after `sequence` operations; count: how it had voted (enum host_vote) */
    COLL_MESSAGE_HOST = 6,  /* payload: where the sender's segment lies (host.h) */
    COLL_MESSAGE_HOST_VOTE = 7, /* status: WEFT_OK, or the ranks cannot meet in memory */
    COLL_MESSAGE_TUNE_REPORT = 8, /* cuts: cell, sequence: its version, count: nanoseconds (tune.h) */
    COLL_MESSAGE_TUNE_TABLE = 9,  /* sequence: version, cuts: cell, root: plan */
    COLL_MESSAGE_TUNE_ACK = 10,   /* sequence: version, count: operations posted so far, status */
    COLL_MESSAGE_TUNE_COMMIT = 11,/* sequence: version, count: the operation from which it is in force, status */
};

struct coll_header {
    uint8_t type, kind, dtype, op, plan;
    uint16_t table; /* version by which the plan was chosen (tune.h); 0: by the model */
    uint32_t group, epoch, rank, root, lanes, message; /* root: kinds without a root carry the subject here */
    int32_t status; /* of data messages: microseconds for which late ranks held the sender up (lack.c) */
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
struct sum {
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t ranks;
    double total; /* the finished sum is divided by it: AVG by the ranks, SCALED_SUM by what its caller says; 0: it is not */
    float lift;   /* factor of each contribution when it is widened; a power of two, 1 except for means of bf16 */
};
/* The sum of bf16 numbers can exceed f32 although their mean does not. The factor is a power of two at or below 1/ranks. Up to
 * 65,536 ranks all products are exact, also of the smallest bf16, so no bit of a mean with a finite sum changes. */
static inline float sum_lift(const struct weft_coll_args *args, uint32_t ranks, double total)
{
    if (args->dtype != WEFT_BF16 || total == 0 || ranks < 2 || ranks > 65536) return 1;
    return 1.0f / (float)(1u << (32 - __builtin_clz(ranks - 1)));
}
static inline struct sum sum_of(const struct weft_coll_args *args, uint32_t ranks)
{
    double total = args->op == WEFT_SCALED_SUM ? args->total : args->op == WEFT_AVG && ranks > 1 ? ranks : 0;
    return (struct sum){args->dtype, args->op, ranks, total, sum_lift(args, ranks, total)};
}
static inline float sum_share(const struct sum *sum) { return 1.0f / (float)sum->total / sum->lift; } /* of floats but f64 */
struct sum_in {
    const void *data;
    bool wide; /* partials, else elements */
};
struct sum_out {
    void *data;
    bool wide, last;
};

/* ---- one posted operation ---- */
enum slot_state { SLOT_WAITING = 1, SLOT_ISSUED, SLOT_COMPUTING, SLOT_OVER };

struct slot {
    struct weft_coll *coll;
    struct weft_action action;
    enum slot_state state;
    uint64_t computed; /* elements of the sum or copy done so far */
    struct weft_completion completion;
    struct weft_receive receive;
    bool lacks; /* a peer's first message is not there: lack.c */
};

/* Where the contributions to one chunk meet (fold_area.c). */
struct fold_area {
    bool open;            /* between the first receive of a chunk and the end of its fold */
    uint64_t offset_in, count;
    uint32_t next;        /* rank to be folded next */
    uint64_t done;        /* elements of it that are folded; of the sum that are written when all ranks are in */
    float *partial;       /* 16-bit types: where they are widened to */
    uint8_t *present;     /* (ranks,) contribution has arrived */
    uint8_t *raw;         /* (ranks, raw_bytes) contributions as received */
    size_t raw_bytes;
    float *free_partials[34]; /* 16-bit types: buffers not in use by the fold */
    uint32_t free_count;
    struct weft_fold fold;
};

/* host.h: where an operation is that may be done in the memory of one host. AWAY: by messages, as all others. */
enum host_phase { HOST_AWAY = 0, HOST_WAITING, HOST_PAIRED, HOST_QUEUED, HOST_SCALING, HOST_AHEAD, HOST_COMING, HOST_WORKING, HOST_STAGING, HOST_LEAVING };

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
    const uint8_t *in;           /* what the plan calls input; args.in, but where contributions are scaled first, from */
    const uint8_t *unscaled;
    struct sum sum;              /* its arithmetic */
    size_t elem_bytes;
    size_t scratch_elem_bytes;   /* of a partial in a wide plan, else of an element */
    bool wide;                   /* the plan's scratch holds partials */
    uint64_t to_scale, scaled;   /* elements of the input to be scaled before the plan starts, and how many are */
    uint64_t sequence, deadline_ns, posted_ns;
    bool warned, pairwise;       /* pairwise: send or recv */
    bool trailed;                /* trail_pair has counted it */
    bool held;                   /* posted, but by which plan is not known yet (tune.h) */
    struct {                     /* lack.c */
        bool counts;             /* it lacks a rank, since: */
        uint64_t since_ns;
        uint64_t late_ns;        /* so long it was held up by ranks that had not begun it */
        uint64_t asked;          /* peers from which a receive was posted, a bit each, by rank modulo 64 */
        uint32_t awaited;        /* receives that are not there, of peers' first messages */
    } lack;
    bool alone;                  /* no other was active when it was launched, */
    uint64_t launch;             /* so many had been in the group's life */
    uint32_t tune_key;           /* its cell; 0: none */
    struct weft_record record;   /* what the flight recorder says of it, under `record_number` */
    uint64_t record_number;
    weft_coll_done_fn done;      /* NULL: has run */
    void *context;

    struct {
        enum host_phase phase;
        bool copied, reached;    /* own buffers: by address; those of all ranks known so far can be reached */
        bool apart;              /* a rank is refused copies by address */
        bool lends;              /* host.h: HOST_LENDS */
        bool may_lend, mixed;    /* host_may_lend; and some lend, while others say */
        uint8_t flags, flags_of_all; /* host.h: this rank's; what all ranks known so far say */
        bool is_short;           /* carried by the announcement itself */
        bool announced;          /* before it was posted (host_brief.c): recorded, and its line stands there */
        bool announced_message;  /* host_pair.c: the other rank counts on a message, or this one does */
        uint64_t number, in_offset, out_offset;
        struct host_range { uint64_t first, count; } rest; /* of the slice under way, in elements */
        uint32_t slice_of;       /* this rank's, or, where they are taken in turns, that of */
        bool turns;              /* host_turns.c */
        struct weft_list link;   /* host->queue */
        uint8_t *stage;          /* host_stage.c; NULL: none */
        struct host_stage_word {
            uint64_t offset;     /* where peers find it */
            uint32_t block;      /* the largest that a rank known so far wants */
        } stage_word;
        uint64_t place, rounds;  /* elements of a place; how many times */
        uint64_t done[3];        /* rounds done, by action */
        struct host_way *way;    /* host_way.c: what it takes is noted there; NULL: nowhere */
        uint64_t began_ns;       /* all ranks were here */
    } host;

    struct weft_plan_cursor cursor;
    bool plan_ended;
    uint64_t head, tail;         /* steps [tail, head) are in the window */
    uint32_t outstanding;        /* transport operations of it in flight */

    uint8_t *scratch;            /* owned; kept with the record for the next operation */
    size_t scratch_bytes;
    uint8_t *plan_scratch;       /* what the plan's steps name */
    struct fold_area *fold_areas;
    uint32_t fold_count;
    uint32_t fold_ranks;         /* whose contributions meet in one: all, or those of this host */
    uint64_t *cuts;              /* elements before each piece; NULL: equal pieces */
    struct slot slots[];         /* (group->window,) */
};

/* ---- the group ---- */
/* roster.c: the ranks of groups that have the same ones in the same order. */
struct host_ways;
struct roster {
    struct roster *next;         /* records->rosters */
    struct host_ways *ways;      /* host_way.c, at rank 0; NULL: none was measured yet */
    uint32_t groups, ranks;
    struct weft_peer *peers[];   /* (ranks,) NULL: this rank */
};

/* Sends to a rank, and recvs from it. */
struct coll_pair_counts {
    uint64_t sent, received;
};

/* The operations with a root of one rank, as its LEAVE carries them. digest 0: none. */
struct trail_end {
    uint64_t digest, count, sequence; /* count, sequence and the next fields describe the last one */
    uint32_t root;
    uint8_t kind, dtype, op;
};
struct trail {
    uint64_t next; /* one more than the sequence of the last; 0: none */
    struct trail_end last;
};
/* Values of `lanes` in a LEAVE. 0, of older releases: no trail. NO_PAIRS: the counts of sends and recvs are not valid. */
enum { TRAIL_VERSION = 1, TRAIL_NO_PAIRS = 2 };

/* State that a group keeps of another rank, from the first event about it on. */
struct note {
    bool left, answered, asked;  /* has left; has answered our question; waits for our answer */
    uint32_t asked_next;         /* rank that waits for our answer behind it */
    uint64_t asked_sequence;
    bool trail_known, pairs_known; /* its LEAVE carried `trail`; carried `with_us` */
    uint64_t left_after;         /* operations it took part in */
    struct trail_end trail;
    struct coll_pair_counts with_us;  /* modulo 2^32 */
    struct coll_pair_counts by_message; /* our own with it, that did not go by memory (host_pair.c) */
    uint64_t answer_posted;      /* from its last answer: operations it has posted, */
    uint64_t answer_operation;   /* the one in question, or an earlier one that it waits in, */
    uint32_t answer_peer;        /* whom it waits for there (GROUP_NOBODY: nobody), */
    uint32_t answer_steps;       /* and how many of its steps are over (ANSWER_NOT_THERE: it is in none of this group's) */
};

/* An answer on its way. */
struct answer {
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
struct told {
    struct weft_group *group;
    struct weft_completion completion;
    enum weft_status status;
    bool leaver;                 /* it had ended for want of a rank that left */
    char text[GROUP_TEXT_BYTES];
};

/* The plan that was chosen last for one kind, and for what. */
struct plan_choice {
    uint64_t bytes;
    uint8_t plan; /* enum weft_plan_id; AUTO: none yet */
    uint8_t told; /* by the table */
    uint8_t dtype;
    bool reproducible, unequal, averages, in_order;
};
enum { GROUP_CHOICES = 16 };    /* kinds below it are remembered */

/* Records of operations that are over, with their scratch, and what else groups need now and then, kept for all that share them. */
struct records {
    struct weft_list idle; /* struct weft_coll.link */
    void *stages;          /* host_stage.c */
    void *reaches;         /* host_memory.c: those that nobody has */
    struct lent_rooms {    /* host_memory.c, by enum host_room_size */
        void *idle;        /* those that nobody has */
        struct weft_list holders; /* struct host_room.link */
        uint32_t count;    /* of both */
    } rooms[2];
    struct weft_list idle_codecs;  /* codec_all_reduce.c: memory kept for the next one */
    struct roster *rosters;
    struct answer answers[GROUP_ANSWERS];
    uint32_t groups, window;
};

struct weft_group {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_loop *loop;
    struct weft_lack *lack;      /* borrowed, may be NULL */
    struct weft_event_ring *events;
    struct weft_recorder *recorder;
    uint32_t rank, ranks, group_id, epoch, inflight_max, window, operations_max;
    uint32_t members;           /* of the endpoints' ids, in order: with id and epoch it names this group in a record */
    size_t chunk_bytes;
    uint64_t deadline_ns;
    uint32_t sparse_shared_ranks;
    bool timing_only;
    bool stay, ids_rise;        /* see weft_group_options */
    uint32_t alike;             /* 0: every rank is itself */
    void (*describe)(void *context, uint32_t rank, char *out, size_t out_bytes);
    void *describe_context;
    void (*describe_subject)(void *context, uint32_t subject, char *out, size_t out_bytes);
    struct weft_link_cost cost, local_cost; /* of its worst link, and of the worst inside a host; the same on all ranks */
    const struct weft_plan_hosts *hosts; /* borrowed, may be NULL */
    struct plan_choice *choices; /* (GROUP_CHOICES,) by kind; what follows from `cost` and the call. NULL: none yet */

    struct roster *roster;       /* perhaps with other groups */
    struct note *notes;          /* (ranks,); NULL: nothing to note yet (roster.c) */
    struct weft_list active, ready;
    struct records *records;     /* perhaps with other groups */
    struct weft_list computing;   /* codec operations whose task is at the compute thread, or whose device encodes */
    uint32_t active_count;
    uint32_t prepared_count;     /* later rounds of active codec operations */
    uint64_t sequence;           /* operations posted so far = number of the next */
    struct trail trail;          /* trail.c */
    bool pairs_unknown;          /* sends and recvs are not counted: out of memory */
    bool sends_last;             /* no collective operation was posted after the last send by messages */
    uint32_t outstanding;        /* transport operations that point into the group's memory */
    uint64_t launches;           /* operations that have been launched */
    struct tune *tune;           /* owned; NULL: plans are not re-tuned */

    struct weft_timer timer;
    bool kicked, retry, pumping, closing;
    uint64_t seen_ns;            /* our last poll */
    uint64_t recorded_ns;        /* the flight recorder learned last who waits for whom */

    enum weft_status fail_status;
    bool fail_came;              /* a FAIL message ended the group; fail_text is its sender's sentence */
    uint32_t fail_rank;          /* sender of that FAIL */
    const char *fail_text;       /* owned where it is not a word of weft_status_text */
    uint64_t grace_ns, patience_ns;
    uint32_t left_count;         /* ranks that have left in good order */
    bool leaver_missed;          /* one of them was needed still: the group's end */
    bool leaving;                /* the others are told so (weft_group_leave) */
    bool lost;                   /* a peer was found dead while nothing had ended yet: the first one, */
    uint32_t lost_rank;
    enum weft_status lost_status;
    uint64_t lost_until_ns;
    struct news *news;           /* of the endpoint; NULL: no news any more */
    struct weft_list news_link;
    uint32_t asked_first, asked_last; /* ranks that wait for an answer, by asked_next; GROUP_NOBODY */
    struct told *told;           /* NULL: no rank has told of its end */
    struct broadcast fail, ask, leave, offer, vote;
    struct host *host;           /* host.h; NULL: not yet (may_meet), or the ranks do not share a host's memory */
    bool may_meet;               /* there is no `host` yet, and nobody has said that he cannot */

    /* deadline.c: the question before a verdict */
    enum { VERDICT_NONE, VERDICT_ASKING, VERDICT_LISTENING } verdict;
    bool verdict_pairwise; /* of a send or recv; verdict_sequence is not its number then */
    uint64_t verdict_sequence, verdict_until_ns;
};

/* group.c */
uint64_t group_tag(const struct weft_group *group, uint64_t sequence);
uint64_t group_news_tag(const struct weft_group *group);
uint64_t group_pair_tag(const struct weft_group *group); /* sends and recvs of a pair match in the order posted */
void group_describe(const struct weft_group *group, uint32_t rank, char *out, size_t out_bytes);
/* "all_reduce of 100 f32, sum, plan ring, of tensor 'fc1'" */
void group_describe_call(const struct weft_group *group, const struct coll_header *header, char *out, size_t out_bytes);
bool group_watch(struct weft_group *group, uint64_t now_ns, uint64_t deadline_ns); /* as kick, but only for deadlines */
bool group_kick(struct weft_group *group); /* false: the loop has no memory for a timer */
void group_ready(struct weft_coll *coll);
/* End the group; `tell`: the other ranks too. */
void group_end(struct weft_group *group, enum weft_status status, bool tell, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void group_released(struct weft_group *group); /* a transport operation has ended */

/* roster.c */
enum weft_status roster_take(struct weft_group *group, const uint32_t *endpoint_ids, struct weft_error *error);
void roster_leave(struct weft_group *group); /* and the notes */
struct note *roster_note(struct weft_group *group, uint32_t rank); /* to write; NULL: no memory */
static inline struct note roster_noted(const struct weft_group *group, uint32_t rank) { return group->notes ? group->notes[rank] : (struct note){0}; }

/* control.c */
enum weft_status control_start(struct weft_group *group, bool gone_later, struct weft_error *error);
void control_news(struct weft_group *group, struct weft_arrival *arrival); /* ends the arrival */
void control_lost(struct weft_group *group, uint32_t peer_id, enum weft_status status);
void control_send_all(struct broadcast *broadcast, struct weft_group *group, enum coll_message_type type, uint64_t sequence, enum weft_status status);
/* The header alone, which stays until the broadcast is not busy; it must not be. */
void control_publish(struct broadcast *broadcast, struct weft_group *group, const struct coll_header *header);
void control_retry(struct weft_group *group);
void control_give_up(struct weft_group *group); /* what the transport has not taken yet is not sent */
void control_end_lost(struct weft_group *group);
/* Fail the group if an operation of number `sequence` cannot happen as a peer has left. */
bool control_all_stay(struct weft_group *group, uint64_t sequence);
bool control_stays(struct weft_group *group, uint32_t rank, enum weft_coll_kind kind); /* likewise for a send or recv, which needs that rank alone */

/* news.c: join before anything is sent, catch up with what came before, leave when nothing more is wanted */
enum weft_status news_join(struct weft_group *group);
void news_catch_up(struct weft_group *group);
void news_leave(struct weft_group *group);
void news_each_group(const struct weft_group *group, void (*fn)(void *context, const struct weft_group *group), void *context); /* of its endpoint */

/* deadline.c */
uint64_t deadline_check(struct weft_group *group, uint64_t now_ns); /* returns when to look again */
void deadline_asked(struct weft_group *group, uint64_t sequence);
void deadline_answered(struct weft_group *group, uint32_t rank, const struct coll_header *header);
/* How far this rank is with the operation in question, into the header of an answer. */
void deadline_answer(const struct weft_group *group, uint64_t sequence, struct coll_header *header);

/* step.c */
void coll_advance(struct weft_coll *coll, size_t *budget);
bool coll_scale_input(struct weft_coll *coll, size_t *budget); /* before the first step; true: it is done */
bool coll_is_over(const struct weft_coll *coll);
void coll_end(struct weft_coll *coll, enum weft_status status, const char *text);
/* The rank that the oldest waiting step waits for; false: none. */
bool coll_waits(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);
const char *coll_title(const struct weft_coll *coll, uint64_t sequence, char out[48]); /* "operation 12"; a send or recv has no number */
/* End the group: `peer` called otherwise. */
/* `own`: what this rank called there; of `coll`, or of an operation that was over here before the others had called it. */
void coll_mismatch(struct weft_coll *coll, const struct coll_header *own, uint32_t peer, const struct coll_header *theirs, const char *what);
/* End the group: of a piece that goes between `peer` and this rank each has another length in mind. Bytes. */
void coll_lengths_differ(struct weft_coll *coll, uint32_t peer, bool peer_sends, uint64_t sent, uint64_t expected);

/* record.c */
/* What every record of the group says; the call itself is the caller's to add. */
static inline struct weft_record coll_record_of(const struct weft_group *group, uint64_t sequence, uint64_t posted_ns, bool starts)
{
    return (struct weft_record){.sequence = sequence, .posted_ns = posted_ns, .started_ns = starts ? posted_ns : 0, .phase = starts ? "started" : "posted",
                                .group = group->group_id, .members = group->members, .epoch = group->epoch, .rank = group->rank, .ranks = group->ranks,
                                .peer = WEFT_RECORD_NOBODY, .status = WEFT_IN_PROGRESS};
}
void coll_record_post(struct weft_coll *coll, bool starts); /* starts: at once, so that one entry says both */
static inline uint64_t coll_event_id(const struct weft_group *group, uint64_t sequence)
{
    return (uint64_t)group->group_id << 40 | (sequence & ((1ull << 40) - 1));
}
void coll_event(const struct weft_group *group, enum weft_coll_kind kind, enum weft_event_phase phase, uint64_t sequence, uint64_t bytes,
                enum weft_status status, uint64_t now_ns);
void coll_record_start(struct weft_coll *coll, uint64_t now_ns);
void coll_record_phase(struct weft_coll *coll); /* how far it is and whom it waits for */
void coll_record_end(struct weft_coll *coll, uint64_t now_ns);

static inline bool coll_sums(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_REDUCE;
}

static inline bool coll_rooted(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_REDUCE || kind == WEFT_COLL_GATHER || kind == WEFT_COLL_SCATTER;
}

/* A piece for or of each rank, its length said by its sender. */
static inline bool coll_pairwise(enum weft_coll_kind kind) { return kind == WEFT_COLL_SEND || kind == WEFT_COLL_RECV; }
static inline bool coll_of_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_ALL_GATHER_BYTES || kind == WEFT_COLL_EXCHANGE_BYTES;
}

/* trail.c */
void trail_add(struct weft_group *group, const struct coll_header *called); /* counts an operation with a root, once */
void trail_pair(struct weft_group *group, enum weft_coll_kind kind, uint32_t rank); /* counts a send or recv by messages */
void trail_unpair(struct weft_group *group, uint32_t rank); /* uncounts a recv that is cancelled */
/* ---- lack.c: has every rank begun the operation? ---- */
enum { LACK_FIRST_BYTES = 256 << 10 }; /* a longer first message takes too much time of its own */
void lack_begin(struct weft_coll *coll);
void lack_end(struct weft_coll *coll); /* fine if it lacks none */
bool lack_first(struct weft_coll *coll, const struct weft_action *action); /* a receive is posted: is it a peer's first message? */
void lack_arrived(struct weft_coll *coll); /* such a one is there */
int32_t lack_told(const struct weft_coll *coll); /* for its messages: how long it was held up, in us */
void lack_hear(struct weft_coll *coll, int32_t late_us); /* takes the delay that a peer's message carries. UNTRUSTED: it changes figures only */

/* step.c: has any of its messages been matched? */
bool coll_has_received(const struct weft_coll *coll);
void trail_write(const struct weft_group *group, uint32_t rank, struct coll_header *header); /* into the LEAVE to `rank` */
void trail_read(struct note *note, const struct coll_header *header); /* from the LEAVE of another rank */
bool trail_sent_more(const struct weft_group *group, uint32_t rank); /* the left `rank` sent more than this rank received */

/* check.c */
/* Elements of the two buffers of this rank. */
struct coll_lengths {
    uint64_t in, out;
};
struct coll_lengths coll_lengths_of(const struct weft_coll_place *place, const struct weft_coll_args *args);
/* Permitted layouts of the two buffers of a call: disjoint, or in place. Bytes; all 0 if the call has one buffer. */
struct coll_places {
    uint64_t in_bytes, out_bytes, in_place; /* in_place: offset of `in` from `out`, modulo 2^64 */
};
struct coll_places coll_places_of(const struct weft_coll_place *place, const struct weft_coll_args *args);
static inline bool coll_places_fit(const struct coll_places *places, const void *in, const void *out)
{
    const uint64_t behind = (uint64_t)(uintptr_t)in - (uint64_t)(uintptr_t)out;
    return behind == places->in_place || (behind >= places->out_bytes && -behind >= places->in_bytes);
}
static inline struct weft_coll_place coll_place(const struct weft_group *group)
{
    return (struct weft_coll_place){.rank = group->rank, .ranks = group->ranks, .hosts = group->hosts, .untouched = group->timing_only};
}
static inline enum weft_status coll_check(const struct weft_group *group, const struct weft_coll_args *args, struct weft_error *error)
{
    const struct weft_coll_place place = coll_place(group);
    return weft_coll_check(&place, args, error);
}

/* post.c: prepare takes the number and all memory, launch starts it (perhaps much later), unprepare gives up. The
 * lengths of all_gather_bytes and exchange_bytes pieces, and where they lie, may still be set before the launch. */
/* For a send or recv, `pair`, or else for an operation of all. */
enum weft_status coll_group_open(struct weft_group *group, const struct weft_coll_args *pair, struct weft_error *error);
/* What an operation is, without memory for it, its buffers and numbers left out; returned: bytes of scratch that one needs. */
size_t coll_outline(struct weft_coll *coll, struct weft_group *group, const struct weft_coll_args *args);
bool coll_has_record(struct weft_group *group, size_t scratch_bytes); /* with which coll_prepare allocates nothing */
enum weft_status coll_prepare(struct weft_group *group, const struct weft_coll_args *args, bool on_host, uint32_t tune_key, weft_coll_done_fn done,
                              void *context, struct weft_coll **coll_out, struct weft_error *error);
void coll_launch(struct weft_coll *coll, bool on_host, uint64_t now_ns); /* on_host: in memory, if the ranks agree (host.h) */
void coll_unprepare(struct weft_coll *coll);
void coll_unhold(struct weft_coll *coll); /* the table in force says the plan; it starts */
/* done, and the record back to the group. pumped_ns: the clock as this round of the pump began; 0: there is none. */
void coll_finish(struct weft_coll *coll, uint64_t pumped_ns);
void coll_records_free(struct weft_group *group);
/* Those of `with` (NULL: nobody's) where its operations have a window of the same size, else new ones. NULL: no memory. */
struct records *coll_records_share(struct weft_env *env, const struct weft_group *with, uint32_t window);
void coll_records_leave(struct weft_env *env, struct records *records); /* the last one frees them; NULL is fine */
void host_stages_free(struct weft_env *env, struct records *records);
void host_memory_free(struct weft_env *env, struct records *records);

/* codec_all_reduce.c */
void codec_records_free(struct weft_env *env, struct records *records);
/* Those whose arithmetic is under way: it ends (may block for the length of it), then they do. */
void codec_close(struct weft_group *group, enum weft_status status, const char *text);

/* sum.c */
bool sum_is_narrow(enum weft_dtype dtype);          /* a float narrower than its partial */
size_t sum_partial_bytes(enum weft_dtype dtype);
bool sum_allows(enum weft_dtype dtype, enum weft_op op);
/* out = left (op) right, then scaled if `last` asks. */
void sum_pair(const struct sum *sum, struct sum_out out, struct sum_in left, struct sum_in right, size_t count);
/* out = in, widened or narrowed, and scaled if `last` asks. */
void sum_copy(const struct sum *sum, struct sum_out out, struct sum_in in, size_t count);
void sum_widen(enum weft_dtype dtype, float *out, const void *in, size_t count);
void sum_contribution(const struct sum *sum, float *out, const void *in, size_t count); /* widens a narrow float and multiplies it by sum->lift */
void sum_scale(enum weft_dtype dtype, double factor, void *out, const void *in, size_t count); /* floats; elements */

/* fold_area.c */
size_t fold_area_bytes(uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems);
void fold_area_init(struct fold_area *area, uint8_t *memory, uint32_t ranks, enum weft_dtype dtype, uint64_t chunk_elems);
void fold_area_open(struct weft_coll *coll, struct fold_area *area, uint64_t offset_in, uint64_t count);
/* The place of a rank's contribution in the fold; and where it comes in. */
uint32_t fold_area_place(const struct weft_coll *coll, uint32_t rank);
static inline uint8_t *fold_area_buffer(struct fold_area *area, uint32_t place) { return area->raw + place * area->raw_bytes; }
/* Fold what is next in rank order while the budget lasts; true when all are in. */
bool fold_area_advance(struct weft_coll *coll, struct fold_area *area, size_t *budget);
/* All in: round and scale as `out` says, and write while the budget lasts; true when all is written and the area closed. */
bool fold_area_finish(struct weft_coll *coll, struct fold_area *area, struct sum_out out, size_t *budget);

#endif
