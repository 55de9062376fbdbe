/* plan_model.h - runs the plans of all ranks without a network, on symbols instead of numbers.
 *
 * An element is a 64-bit hash of the expression that made it: leaf(rank, element) or sum(left, right),
 * neither commutative nor associative. So one comparison proves which contributions are in a sum, each
 * exactly once, and in which order.
 *
 * Messages are strict rendezvous: a send completes only after its receive is posted, and the n-th send of a
 * pair matches the n-th receive. With a window of two steps no transport helps less. Completing one message
 * never blocks another, so if this schedule ends, every schedule ends.
 *
 * Memory order is checked twice. Statically: if two steps of a rank, at most HISTORY apart, access the same
 * scratch (out of place also the same output) and one writes, the later waits for the earlier by `depends`
 * and `after` alone. Dynamically, with a seed: all possible steps start, and complete in random order as late
 * as possible; bytes move only at completion. So the order between steps of different ranks (in place) is
 * checked as well. */
#ifndef WEFT_TESTS_COLLECTIVE_PLAN_PLAN_MODEL_H
#define WEFT_TESTS_COLLECTIVE_PLAN_PLAN_MODEL_H

#include "collective/collective.h"

struct plan_case {
    enum weft_plan_id plan;
    enum weft_coll_kind kind;
    uint32_t ranks, root;
    uint64_t count, chunk_elems;
    uint32_t lanes, window;
    bool in_place;
    uint64_t seed;         /* 0: messages move when both ends are posted */
    /* of the hierarchy, and the ring order of ring, chain and double tree */
    const struct weft_plan_hosts *hosts;
    const uint32_t *slice_weights; /* as in weft_plan_args */
    const uint64_t *cuts;  /* (ranks + 1,) unequal pieces, NULL: equal; all_to_all: derived by the model */
};

/* Runs and checks the case. On a fault writes one sentence and returns false. */
bool plan_model_run(const struct plan_case *plan_case, char *why, size_t why_bytes);

/* Several groups at the same time, each with one operation: in an order from the seed one rank of one
 * group advances or one started step completes. */
#define PLAN_MODEL_GROUPS_MAX 4u
bool plan_model_run_together(const struct plan_case *cases, size_t count, uint64_t seed, char *why,
                             size_t why_bytes);

#endif
