/* retune.h - inside the room: plans re-tuned while the job runs, by what operations really take.
 *
 * A *cell* is what one choice is made for: kind, octave of bytes, what is asked of the sum. The table says of
 * some cells which plan they take instead of the model's. One cell changes at a time, under a new version:
 *
 *     all ranks   measure the operations of a cell's version ──REPORT──► rank 0, once a version
 *     rank 0      decides (retune_pick.c) ──TABLE (version, cell, plan, policy)──► all
 *     rank r      holds new operations of that cell ──ACK (operations posted so far)──► rank 0
 *     rank 0      all have: ──COMMIT (version, s)──► all, s the largest of these numbers
 *     rank r      operations below s run by the old plan, the others by the new one; the next TABLE is taken when it has posted s of them
 *
 * So no rank ever posts by a version that another does not know, whatever each has measured and however
 * far it is ahead. The version of its cell is in each operation's header, and checked. An operation held
 * waits for two messages; those of other cells for nothing. Where a rank refuses (no memory), or one
 * leaves, nothing changes any more: a change that lacks its ACK is given up by all, and one whose COMMIT
 * rank 0 has not sent before it left. */
#ifndef WEFT_COLLECTIVE_TUNING_RETUNE_H
#define WEFT_COLLECTIVE_TUNING_RETUNE_H

#include "collective/core/internal.h"

#define RETUNE_CELLS_MAX 32u       /* the first so many that a group uses */
/* operations that a version is measured by, the first of which does not count */
#define RETUNE_SAMPLES 8u
#define RETUNE_RECHECK_OPS 64u       /* operations after which a settled cell is measured again; doubles */
#define RETUNE_RECHECK_OPS_MAX 65536u
/* plans whose modelled time is so many times the least are not tried */
#define RETUNE_COST_RATIO_MAX 8u

struct retune_cell {
    uint32_t key;            /* 0: free */
    uint32_t version;        /* in force; 0: never changed */
    enum weft_plan_id plan;  /* AUTO: the model's */
    uint64_t from;           /* operations below it go by what was in force before: */
    uint32_t version_before;
    enum weft_plan_id plan_before;
    /* this rank's measurement of the version */
    uint32_t count, samples;
    uint64_t least_ns, sum_ns;
    bool report_is_due, has_reported;      /* a report waits to be sent; has been */
    /* rank 0 */
    struct weft_plan_question question; /* of its first operation */
    uint32_t candidates;     /* mask of plans that may be tried */
    uint64_t times_ns[WEFT_PLAN_COUNT]; /* measured: of the slowest rank; 0: not tried */
    enum weft_plan_id settled; /* the best of all tried; AUTO: not all are */
    uint32_t reports;        /* of the version, so far */
    uint64_t worst_ns;
    uint32_t ops_since_settled, recheck_after_ops;   /* operations since it settled, and when it is
                                                      * measured again */
    bool is_wanted;             /* a change, to `next`, waits for its turn */
    enum weft_plan_id next;
};

/* A message to rank 0. */
struct retune_message {
    struct weft_group *group;
    struct weft_completion completion;
    struct coll_header header;
    bool is_wanted, busy;
};

struct retune {
    enum weft_retune policy;
    bool is_disabled;                /* a rank refused */
    bool keeps_order;           /* rank 0's policy is same_order, as its TABLE says */
    uint32_t version;        /* the last one that was published */
    struct retune_cell cells[RETUNE_CELLS_MAX];
    uint32_t last;           /* of the cells, that was looked up: an operation asks for its own several
                              * times */
    struct {                 /* the change that is not in force yet */
        bool open;
        uint32_t version, key;
        enum weft_plan_id plan;
    } next;
    struct coll_header deferred_table; /* a TABLE that comes before this rank has posted `last_from`
                                        * operations; type 0: none */
    uint64_t last_from;      /* of the last change */
    uint32_t acks;           /* rank 0: of the open change */
    uint64_t from;
    bool refused;
    struct broadcast table, commit;
    struct coll_header table_header, commit_header; /* theirs */
    struct retune_message ack, report;
    uint64_t last_end_ns;    /* of any operation */
    uint32_t acked[];        /* rank 0: (ranks,) the version that each has agreed to last */
};

/* ---- op.c asks ---- */
/* The cell of a call; 0: none, its plan is not tuned. */
uint32_t retune_key(const struct weft_group *group, const struct weft_coll_args *args, uint64_t bytes);
/* The plan that the table has for operation `sequence` of it, and its version; AUTO: the model's. */
enum weft_plan_id retune_plan_for(const struct weft_group *group, uint32_t key, uint64_t sequence,
                                  uint16_t *version_out);
/* Must a new operation of the cell wait for the change that is under way? */
bool retune_is_pending(const struct weft_group *group, uint32_t key);
enum weft_plan_id retune_pending_plan(const struct weft_group *group); /* the plan of that change */
/* Is a plan of the table for those calls of the cell alone whose sum it adds in the order of the model's
 * choice? Sizes of one octave may be on both sides of where that choice changes. */
bool retune_keeps_order(const struct weft_group *group, uint32_t key);
/* An operation of the cell was posted: its question is remembered. */
void retune_op_posted(struct weft_group *group, uint32_t key, const struct weft_plan_question *question);
void retune_sequence_advanced(struct weft_group *group); /* any operation was posted */

/* Rank 0, before the first operation: a cell that another job has settled. */
void retune_seed(struct weft_group *group, const struct retune_cell *cell);

/* ---- the rest of the room tells ---- */
enum weft_status retune_create(struct weft_group *group, enum weft_retune policy);
void retune_free(struct weft_group *group);
void retune_op_completed(struct weft_coll *coll, uint64_t now_ns); /* an operation, well */
void retune_receive(struct weft_group *group, const struct coll_header *header);
void retune_peer_left(struct weft_group *group, uint32_t rank); /* it answers nothing any more */
void retune_retry(struct weft_group *group);

/* ---- retune_pick.c: pure ---- */
uint32_t retune_candidates(const struct weft_plan_question *question, enum weft_retune policy, bool ordered);
/* All ranks have reported the cell's plan in force, which took the slowest so long: the plan it should
 * have. */
enum weft_plan_id retune_pick(struct retune_cell *cell, enum weft_plan_id in_force, uint64_t worst_ns);

#endif
