/* link_ring.h - an order of hosts for rings that uses slow links least.
 *
 * Rank 0 computes the order from its table and all ranks use it. Pure; deterministic; one thread at a
 * time. */
#ifndef WEFT_TRANSPORT_LINK_RING_H
#define WEFT_TRANSPORT_LINK_RING_H

#include "transport/probe/link_table.h"

/* beyond this the order stays as given: the search is quadratic */
#define WEFT_LINK_RING_HOSTS_MAX 1024u

/* times (count * count,): of a message from host i to host j, at i * count + j, in any unit; times inside
 * a host are ignored. order_out (count,): every host once, starting with 0. The result is 0, 1, 2 ...
 * unless another order takes a tenth less time in total, so noise between equal links changes nothing. A
 * link counts by its slower direction.
 *
 * Nearest neighbour, then 2-opt (Croes, Operations Research 1958) until no exchange helps, at most 32
 * passes. Sites whose inner links are equal are traversed once each. */
void weft_link_ring(uint32_t count, const uint32_t *times, uint32_t *order_out);

/* The same among (count,) different hosts of the table for messages of `bytes`. speeds_out: bandwidth of
 * each host in MB/s, the best of its links, each by its slower direction. WEFT_ERR_NOT_FOUND: a link is
 * unknown, or fewer than 3 or too many hosts; WEFT_ERR_INVALID: no such host; WEFT_ERR_NO_MEMORY. */
enum weft_status weft_link_ring_among(const struct weft_link_table *table, const uint32_t *hosts,
                                      uint32_t count, uint64_t bytes, uint32_t *order_out,
                                      uint32_t *speeds_out);

#endif
