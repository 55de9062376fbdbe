/* plan_rotated.h - plans with rotational symmetry, proved on one rank, so for thousands of ranks quickly.
 *
 * 1. The steps of rank r are those of rank 0 with r added to each rank and slice, modulo the number of ranks.
 * 2. So all ranks can run in lockstep: what rank 0 sends to rank s is, rotated by -s, what it receives from
 *    rank -s. The memory of one rank stands for all, and a value is an interval of ranks:
 *
 *     (first, length)   the sum of the contributions of ranks first, first + 1 ... to an element of a slice,
 *                       as a chain (everything so far + the next), as T of them, or both
 *
 * Adding joins two adjacent intervals in order, of one element, so each rank is in a result once and in the
 * declared order. Completing one message never blocks another (plan_model.h): if lockstep ends, every
 * schedule ends. */
#ifndef WEFT_TESTS_COLLECTIVE_PLAN_PLAN_ROTATED_H
#define WEFT_TESTS_COLLECTIVE_PLAN_PLAN_ROTATED_H

#include "tests/collective/plan/plan_model.h"

/* Uses window, plan, kind (all_reduce, reduce_scatter, all_gather, all_to_all), ranks, count (elements of
 * a slice), chunk_elems and lanes of the case. every_rank: proves the rotation for all ranks, else for a
 * few. */
bool plan_rotated_run(const struct plan_case *plan_case, bool every_rank, char *why, size_t why_bytes);

#endif
