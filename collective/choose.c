/* choose.c - what WEFT_PLAN_AUTO means.
 *
 * Both plans move the same bytes, 2(ranks-1)/ranks of the vector, so only two things decide:
 *   - reproducible asked: direct is the plan that evaluates T;
 *   - direct needs two message times, the ring 2(ranks-1) of them; but direct lets ranks-1 senders meet at
 *     one link (incast) and holds all contributions of a chunk. So direct while one slice is so short that
 *     its transfer hides behind the latency of the ring's hops, the ring beyond. With two ranks the two are the same
 *     exchange, and direct gives T for nothing.
 * The 64 KiB are the bytes a 10 Gbit/s link moves in about 50 us, the price of one hop between processes
 * that sleep; there is no calibration yet, and a call may name its plan.
 *
 * Pure, and made only of what all ranks of a matching call share: every rank chooses alike. */
#include "collective/plan.h"

#define DIRECT_SLICE_BYTES_MAX (64u << 10)
#define DOUBLING_BYTES_MAX (8u << 10) /* beyond eight ranks the messages of direct cost more than its one exchange saves */

enum weft_plan_id weft_plan_choose(enum weft_coll_kind kind, uint32_t ranks, uint64_t bytes, bool reproducible)
{
    if (kind == WEFT_COLL_REDUCE && bytes <= DIRECT_SLICE_BYTES_MAX) return WEFT_PLAN_BINOMIAL;
    if (kind == WEFT_COLL_ALL_REDUCE && ranks > 8 && bytes <= DOUBLING_BYTES_MAX) return WEFT_PLAN_DOUBLING;
    if (reproducible || !weft_plan_supports(WEFT_PLAN_RING, kind)) return WEFT_PLAN_DIRECT;
    if (ranks <= 2) return WEFT_PLAN_DIRECT;
    uint64_t slice_bytes = kind == WEFT_COLL_ALL_REDUCE ? bytes / ranks : bytes;
    return slice_bytes <= DIRECT_SLICE_BYTES_MAX ? WEFT_PLAN_DIRECT : WEFT_PLAN_RING;
}
