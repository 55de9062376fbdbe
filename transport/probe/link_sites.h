/* link_sites.h - hosts that are near to each other and far from the others: sites with a line between them.
 *
 * Plans differ in how often they cross such a line: the choice must know that not all links are as long as
 * the longest. Worked out once, by whoever has the table, as the ring of link_ring.h. Pure; deterministic;
 * one thread at a time. */
#ifndef WEFT_TRANSPORT_LINK_SITES_H
#define WEFT_TRANSPORT_LINK_SITES_H

#include "transport/probe/link_ring.h"

#define WEFT_LINK_SITES_FARTHER 8u /* times the time between neighbours of a site: what is less is one site */

/* times as in weft_link_ring. sites_out (count,): of each host its site, numbered from 0 in the order of
 * their first hosts. Two hosts are of one site where a chain of links joins them each of which, in its
 * slower direction, takes at most an eighth of the slowest of all. Returns how many sites there are; 1,
 * all zeros: no link is that much longer, or a site would be a single host. */
uint32_t weft_link_sites(uint32_t count, const uint32_t *times, uint32_t *sites_out);

#endif
