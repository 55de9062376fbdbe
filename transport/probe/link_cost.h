/* link_cost.h - cost of messages among given hosts, from the link table; input of plan and codec choice.
 *
 * A choice that all ranks must make equally uses one table: that of rank 0, sent to the others, never each
 * rank's own file. Pure functions of the table; one thread at a time. */
#ifndef WEFT_TRANSPORT_LINK_COST_H
#define WEFT_TRANSPORT_LINK_COST_H

#include "transport/probe/link_table.h"

/* A plan is as fast as its slowest link, so a group has the cost of its worst pair. */
struct weft_link_cost {
    uint32_t pairs, unknown; /* ordered pairs of the group; those without a working row */
    uint64_t latency_ns; /* longest known latency, each pair over its best lane for the size */
    uint64_t bytes_per_second; /* lowest known bandwidth; 0: none known */
    /* Costs of messages and machines; 0: not measured. */
    uint64_t eager_bytes;   /* larger messages are announced and granted first: two more one-way trips */
    uint32_t inject_ns;     /* processor time to post one message */
    uint32_t sum_ps;        /* per byte added in cache */
    uint32_t pass_ps;       /* per byte of memory traffic beyond that */
    uint32_t incast_milli;  /* thousandths by which each sender beyond the eighth slows a shared link */
    struct weft_link_memory memory; /* one-host plans in mapped memory */
    struct weft_link_runs runs;     /* one-host plans by messages; set if all ranks share a host */
};

/* Among (count,) hosts of the table, for messages of `bytes`. A host listed twice has two ranks: the pair
 * uses the link inside that host. WEFT_ERR_INVALID: no such host, or fewer than two. */
enum weft_status weft_link_cost_among(const struct weft_link_table *table, const uint32_t *hosts,
                                      uint32_t count, uint64_t bytes, struct weft_link_cost *cost_out);

#endif
