/* retune_cell.h - one cell of the plan table: its measurements, and the policy that picks its next plan.
 *
 * Pure. The protocol that measures cells and changes plans on all ranks is core/retune.h. */
#ifndef WEFT_COLLECTIVE_TUNING_RETUNE_CELL_H
#define WEFT_COLLECTIVE_TUNING_RETUNE_CELL_H

#include "collective/collective.h"

#define RETUNE_CELLS_MAX 32u       /* a group uses the first ones */
/* operations that measure a version; the first one does not count */
#define RETUNE_SAMPLES 8u
#define RETUNE_RECHECK_OPS 64u /* operations until a settled cell is measured again; doubles each time */
#define RETUNE_RECHECK_OPS_MAX 65536u
/* a plan is not tried if its modelled time is this many times the least */
#define RETUNE_COST_RATIO_MAX 8u

struct retune_cell {
    uint32_t key;            /* 0: free */
    uint32_t version;        /* in force; 0: never changed */
    enum weft_plan_id plan;  /* AUTO: the plan of the model */
    uint64_t from;           /* operations below it use version_before and plan_before */
    uint32_t version_before;
    enum weft_plan_id plan_before;
    /* measured by this rank for the version */
    uint32_t count, samples;
    uint64_t least_ns, sum_ns;
    bool report_is_due, has_reported;      /* a report waits to be sent; has been sent */
    /* rank 0 only */
    struct weft_plan_question question; /* of the first operation */
    uint32_t candidates;     /* mask of plans that may be tried */
    uint64_t times_ns[WEFT_PLAN_COUNT]; /* measured time of the slowest rank; 0: not tried */
    enum weft_plan_id settled; /* fastest of all tried plans; AUTO: not all are tried */
    uint32_t reports;        /* reports of the version so far */
    uint64_t worst_ns;
    /* operations since it settled; count at which it is measured again */
    uint32_t ops_since_settled, recheck_after_ops;
    bool is_wanted;             /* a change to plan `next` waits to be published */
    enum weft_plan_id next;
};

/* ---- retune_policy.c: pure ---- */
uint32_t retune_candidates(const struct weft_plan_question *question, enum weft_retune policy, bool ordered);
/* All ranks have reported the plan in force; worst_ns is the time of the slowest rank. Returns the plan
 * that the cell should have. */
enum weft_plan_id retune_pick(struct retune_cell *cell, enum weft_plan_id in_force, uint64_t worst_ns);

#endif
