/* retune.h - changes plans while the job runs, by the measured times of operations.
 *
 * A *cell* is a key for one choice: kind, octave of bytes, requirements of the sum. The table overrides the
 * plan of the model in some cells. One cell changes at a time, with a new version:
 *
 *     all ranks   measure the operations of a cell's version ──REPORT──► rank 0, once for each version
 *     rank 0      decides (retune_policy.c) ──TABLE (version, cell, plan, policy)──► all
 *     rank r      holds new operations of the cell ──ACK (operations posted so far)──► rank 0
 *     rank 0      has all ACKs ──COMMIT (version, s)──► all; s: the largest number in an ACK
 *     rank r      operations from s on use the new plan; the rank accepts the next TABLE after s posts
 *
 * Invariant: no rank posts with a version that another rank does not know. Each header carries the version of
 * its cell, and ranks compare it. If a rank refuses (no memory) or leaves, no plan changes any more. */
#ifndef WEFT_COLLECTIVE_CORE_RETUNE_H
#define WEFT_COLLECTIVE_CORE_RETUNE_H

#include "collective/core/control/group_control.h"
#include "collective/core/group.h"
#include "collective/core/op.h"
#include "collective/tuning/retune_cell.h"

/* A message to rank 0. */
struct retune_message {
    struct weft_group *group;
    struct weft_completion completion;
    struct coll_header header;
    bool is_wanted, busy;
};

struct retune {
    enum weft_retune policy;
    bool is_disabled; /* a rank refused */
    bool keeps_order; /* rank 0 has policy same_order; from its TABLE */
    uint32_t version; /* last published version */
    struct retune_cell cells[RETUNE_CELLS_MAX];
    uint32_t last; /* index of the last cell that was looked up */
    struct {       /* the change that is not in force yet */
        bool open;
        uint32_t version, key;
        enum weft_plan_id plan;
    } next;
    /* a TABLE received before this rank has posted `last_from` operations; type 0: none */
    struct coll_header deferred_table;
    uint64_t last_from; /* `from` of the last change */
    uint32_t acks;      /* rank 0: ACKs of the open change */
    uint64_t from;
    bool refused;
    struct broadcast table, commit;
    struct coll_header table_header, commit_header; /* headers of the two broadcasts */
    struct retune_message ack, report;
    uint64_t last_end_ns; /* end of the last operation */
    uint32_t acked[];     /* rank 0: (ranks,) last version that each rank has acknowledged */
};

/* ---- called by op.c ---- */
/* Returns the cell of a call; 0: its plan is not re-tuned. */
uint32_t retune_key(const struct weft_group *group, const struct weft_coll_args *args, uint64_t bytes);
/* Returns the plan of the table for operation `sequence`, and its version. AUTO: the model chooses. */
enum weft_plan_id retune_plan_for(const struct weft_group *group, uint32_t key, uint64_t sequence,
                                  uint16_t *version_out);
/* Returns whether a new operation of the cell must wait for the open change. */
bool retune_is_pending(const struct weft_group *group, uint32_t key);
enum weft_plan_id retune_pending_plan(const struct weft_group *group); /* plan of the open change */
/* Returns whether the table's plan is for calls that it adds in the order of the model's choice only.
 * Sizes in one octave may have different choices. */
bool retune_keeps_order(const struct weft_group *group, uint32_t key);
/* Stores the question of the cell's first posted operation. */
void retune_op_posted(struct weft_group *group, uint32_t key, const struct weft_plan_question *question);
void retune_sequence_advanced(struct weft_group *group); /* after each post */

/* Rank 0, before the first operation: adds a cell that an earlier job has settled. */
void retune_seed(struct weft_group *group, const struct retune_cell *seed);

/* ---- called by other files ---- */
enum weft_status retune_create(struct weft_group *group, enum weft_retune policy);
void retune_free(struct weft_group *group);
/* after an operation completed with WEFT_OK */
void retune_op_completed(struct weft_coll *coll, uint64_t now_ns);
void retune_receive(struct weft_group *group, const struct coll_header *header);
void retune_peer_left(struct weft_group *group, uint32_t rank); /* the rank acknowledges no further change */
void retune_retry(struct weft_group *group);

#endif
