/* op.h - one posted operation, from its preparation to its end. */
#ifndef WEFT_COLLECTIVE_CORE_OP_H
#define WEFT_COLLECTIVE_CORE_OP_H

#include "collective/collective.h"
#include "collective/core/header.h"
#include "collective/core/path.h"
#include "collective/core/reduce.h"
#include "collective/core/reduce_buffer.h"

struct weft_group;

enum slot_state { SLOT_WAITING = 1, SLOT_POSTED, SLOT_COMPUTING, SLOT_DONE };

struct slot {
    struct weft_coll *coll;
    struct weft_action action;
    enum slot_state state;
    uint64_t computed; /* elements of the sum or copy that are done */
    struct weft_completion completion;
    struct weft_receive receive;
    size_t credit_bytes;   /* of a posted send: bytes that it holds (send_credit.h) */
    bool is_first_message; /* a receive of a peer's first message, not completed (straggler_time.c) */
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

/* Input of the plan, and its elements. */
struct coll_data {
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
};
/* Facts about the operation. */
struct coll_flags {
    bool warned, is_sendrecv; /* is_sendrecv: a send or recv */
    bool is_counted;          /* sendrecv_count_add has counted the operation */
    bool is_held;             /* a send waits for credit (send_credit.h) */
    bool is_plan_pending;     /* posted, but a change of the plan table is pending (retune.h) */
};
/* Launch of the operation, and its entry in the flight recorder. */
struct coll_launch {
    bool is_alone;             /* no other operation was active at its launch */
    uint64_t launch_number;    /* launch_count of the group at its launch */
    uint32_t retune_key;       /* cell of the plan table; 0: none */
    struct weft_record record; /* its entry `record_number` in the flight recorder */
    uint64_t record_number;
};
/* Steps of the plan. */
struct coll_steps {
    struct weft_plan_cursor cursor;
    bool plan_ended;
    uint64_t head, tail;  /* the window holds steps [tail, head) */
    uint32_t outstanding; /* transport operations of it in flight */
};
/* Memory besides the caller's. */
struct coll_buffers {
    uint8_t *scratch; /* owned; stays with the operation in the pool */
    size_t scratch_bytes;
    uint8_t *plan_scratch; /* scratch that the steps address */
    struct reduce_buffer *reduce_buffers;
    uint32_t reduce_buffer_count;
    /* contributions of one fold: of all ranks, or of the ranks of this host */
    uint32_t reduce_buffer_ranks;
    uint64_t *cuts;      /* elements before each piece; NULL: equal pieces */
};

struct weft_coll {
    struct weft_group *group;
    struct weft_list link;       /* group->ops.active in post order, or op_pool->idle */
    struct weft_list ready_link; /* group->ops.ready, or linked to itself */
    enum coll_phase phase;
    enum weft_status status; /* final status of an ending operation */
    const char *text;        /* static, or owned by the group */
    struct weft_coll_args args;
    struct coll_header header; /* header of each message of the operation */
    struct coll_data data;
    uint64_t sequence, deadline_ns, posted_ns;
    struct coll_flags flags;
    struct {                  /* straggler_time.c */
        bool counts;          /* the operation waits for a rank that has not begun it, since since_ns */
        uint64_t since_ns;
        uint64_t late_ns; /* time that it waited for such ranks */
        /* one bit for each peer from which a receive was posted, by rank modulo 64 */
        uint64_t asked;
        uint32_t awaited; /* receives of peers' first messages that have not completed */
    } straggler_time;
    struct coll_launch launch;
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
        uint32_t max_bits;     /* bits of the largest magnitude of the slice's result, if args.finite_out is
                                * not NULL */
        bool is_checked;       /* max_bits is that of the whole slice */
        struct weft_list link; /* in polling.queue */
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

    struct coll_steps steps;

    struct coll_buffers buffers;
    struct slot slots[]; /* (limits.window,) */
};

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

#endif
