/* plan_rotated.h - plans that are the same for every rank, turned: proved on one rank, so for thousands in no
 * time.
 *
 * First it is shown that rank r's steps are rank 0's with r added to every rank and every slice they name
 * (modulo the number of ranks). Then all ranks can go in step: what rank 0 sends to rank s is, turned by -s,
 * what it receives from rank -s. So one rank's memory stands for all, and a value is an interval of ranks:
 *
 *     (first, length)   the sum of the contributions of ranks first, first + 1 ... to one element of one slice, as a chain
 *                       (everything so far + the next) or as T of them, or both
 *
 * Adding joins two intervals that meet, in that order, of one element; so every rank is in a result once
 * and in the declared order. Finishing one message never prevents another (plan_model.h): if going in step
 * ends, every schedule does. */
#ifndef WEFT_TESTS_COLLECTIVE_PLAN_PLAN_ROTATED_H
#define WEFT_TESTS_COLLECTIVE_PLAN_PLAN_ROTATED_H

#include "tests/collective/plan/plan_model.h"

/* count: of the case, elements of a slice here. every_rank: the turn is shown for all ranks, else for a
 * few. `window`, `plan`, `kind` (all_reduce, reduce_scatter, all_gather, all_to_all), `ranks`,
 * `chunk_elems` and `lanes` of the case count. */
bool plan_rotated_run(const struct plan_case *plan_case, bool every_rank, char *why, size_t why_bytes);

#endif
