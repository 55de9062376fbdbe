/* link_ring.h - the order in which a ring goes round hosts so that slow links are used least.
 *
 * Whoever must agree on it takes it from one table: it is worked out once, by rank 0, and told to all.
 * Pure; deterministic; one thread at a time. */
#ifndef WEFT_TRANSPORT_LINK_RING_H
#define WEFT_TRANSPORT_LINK_RING_H

#include "transport/probe/link_table.h"

/* of more the order stays what it is: its search takes the square of them */
#define WEFT_LINK_RING_HOSTS_MAX 1024u

/* times (count * count,): of a message from host i to host j, at i * count + j, in any unit; those inside a
 * host are not looked at. order_out (count,): every host once, beginning with 0. It is 0, 1, 2 ... unless
 * another order takes a tenth less time in all: what two measurements of alike links differ by changes
 * nothing. A link counts as its slower direction.
 *
 * Nearest neighbour, then 2-opt (Croes, Operations Research 1958) until nothing is won any more, 32 passes
 * at most: of sites in which all links are alike, each is gone through once. */
void weft_link_ring(uint32_t count, const uint32_t *times, uint32_t *order_out);

/* The same among (count,) different hosts of the table for messages of `bytes`, and how fast each host's
 * own link is in MB/s: the best of its links to the others, in its slower direction. WEFT_ERR_NOT_FOUND:
 * not all links are known, or there are fewer than 3 hosts or too many; WEFT_ERR_INVALID: no such host;
 * WEFT_ERR_NO_MEMORY. */
enum weft_status weft_link_ring_among(const struct weft_link_table *table, const uint32_t *hosts,
                                      uint32_t count, uint64_t bytes, uint32_t *order_out,
                                      uint32_t *speeds_out);

#endif
