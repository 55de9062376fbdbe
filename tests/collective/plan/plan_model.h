/* plan_model.h - runs the plans of all ranks without a network, on symbols instead of numbers.
 *
 * An element is a 64-bit hash of the expression that made it: leaf(rank, element) or sum(left, right), not
 * commutative, not associative. So one equality says which contributions are in a sum, each exactly once,
 * and in which order.
 *
 * Messages are strict rendezvous: a send is over only when its receive is posted, and the n-th send of a
 * pair meets the n-th receive. With a window of two steps that is the least help a transport can give;
 * finishing one message never prevents another, so if this one schedule ends, every schedule does.
 *
 * Memory is shown to be used in order twice. Statically: of any two steps of a rank, at most HISTORY
 * apart, that touch the same elements of scratch (out of place also of the output), one writing, the later
 * waits for the earlier by `depends` and `after` alone. Dynamically, with a seed: everything that could
 * run is started, and what runs is finished in random order as late as can be, bytes read and written only
 * then; so what one rank's steps owe to another's (in place) is seen too. */
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
    uint64_t seed;         /* 0: messages move when both ends are there */
    const struct weft_plan_hosts *hosts; /* of the hierarchy, and the way round of ring, chain and double
                                          * tree */
    const uint32_t *slice_weights; /* as in weft_plan_args */
    const uint64_t *cuts;  /* (ranks + 1,) unequal pieces, NULL: equal; all_to_all: derived by the model */
};

/* Runs the case and checks it; on a fault writes one sentence and returns false. */
bool plan_model_run(const struct plan_case *plan_case, char *why, size_t why_bytes);

/* Several groups at a time, each with an operation of its own: at every turn one rank of one group goes
 * on, or one thing that is under way ends, in an order made by the seed. */
#define PLAN_MODEL_GROUPS_MAX 4u
bool plan_model_run_together(const struct plan_case *cases, size_t count, uint64_t seed, char *why,
                             size_t why_bytes);

#endif
