/* link_sites.h - groups of near hosts (sites) with slow links between them.
 *
 * Plans differ in how often they cross between sites, so the choice needs to know which links are slow.
 * Computed once from the table, as the ring of link_ring.h. Pure; deterministic; one thread at a time. */
#ifndef WEFT_TRANSPORT_LINK_SITES_H
#define WEFT_TRANSPORT_LINK_SITES_H

#include "transport/probe/link_ring.h"

#define WEFT_LINK_SITES_FARTHER 8u /* hosts whose time is below 1/8 of the largest share a site */

/* times as in weft_link_ring. sites_out (count,): the site of each host, numbered by first host from 0.
 * Two hosts share a site if a chain of links joins them and each link takes, in its slower direction, at
 * most 1/8 of the slowest link. Returns the number of sites. 1, all zeros: no link is that much slower, or
 * a site would have one host. */
uint32_t weft_link_sites(uint32_t count, const uint32_t *times, uint32_t *sites_out);

#endif
