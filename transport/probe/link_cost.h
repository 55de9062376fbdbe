/* link_cost.h - the link table for those who must choose (plans, codecs): what messages cost among these
 * hosts.
 *
 * A choice that all ranks must make alike is made from one table: rank 0's, sent to the others in its text
 * form (weft_link_table_write, _read), never from each rank's own file. Pure functions of the table; one
 * thread at a time. */
#ifndef WEFT_TRANSPORT_LINK_COST_H
#define WEFT_TRANSPORT_LINK_COST_H

#include "transport/probe/link_table.h"

/* Plans are as fast as their slowest link, so a group is known by its worst pair. */
struct weft_link_cost {
    uint32_t pairs, unknown; /* ordered pairs of the group; how many of them have no working row */
    uint64_t latency_ns; /* the longest of the known ones, each over its best lane for the size asked for */
    uint64_t bytes_per_second; /* the least of them; 0: none is known */
    /* Of messages and machines; 0 where it was not measured. */
    uint64_t eager_bytes;   /* longer messages are announced and granted first: two trips more */
    uint32_t inject_ns;     /* of a processor, to hand over one message */
    uint32_t sum_ps;        /* per byte added in cache */
    uint32_t pass_ps;       /* per byte of memory passed over beyond that */
    uint32_t incast_milli;  /* thousandths by which each sender beyond the eighth slows a link that many
                             * share */
    struct weft_link_memory memory; /* of ranks that share a host */
    struct weft_link_runs runs;     /* where all do */
};

/* Among (count,) hosts of the table, for messages of `bytes`. A host that stands there twice has two ranks:
 * the pair is the link inside that host. WEFT_ERR_INVALID: no such host, or fewer than two. */
enum weft_status weft_link_cost_among(const struct weft_link_table *table, const uint32_t *hosts,
                                      uint32_t count, uint64_t bytes, struct weft_link_cost *cost_out);

#endif
