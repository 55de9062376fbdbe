/* link_sites.c - see link_sites.h. */
#include "transport/probe/link_sites.h"

#include <stdbool.h>

static uint32_t slower_link(uint32_t count, const uint32_t *times, uint32_t a, uint32_t b)
{
    uint32_t there = times[(size_t)a * count + b], back = times[(size_t)b * count + a];
    return there > back ? there : back;
}

static uint32_t all_one(uint32_t count, uint32_t *sites)
{
    for (uint32_t i = 0; i < count; i++) sites[i] = 0;
    return 1;
}

/* Assigns to the site all hosts without a site that `first` reaches over near links. */
static uint32_t take_site(uint32_t count, const uint32_t *times, uint32_t near, uint32_t first, uint32_t site,
                          uint32_t *sites)
{
    uint32_t taken = 1;
    bool more = true;
    sites[first] = site;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; sites[i] == site && j < count; j++) {
                if (sites[j] != UINT32_MAX || slower_link(count, times, i, j) > near) continue;
                sites[j] = site;
                taken++;
                more = true;
            }
    }
    return taken;
}

uint32_t weft_link_sites(uint32_t count, const uint32_t *times, uint32_t *sites_out)
{
    uint32_t longest = 0, sites = 0;
    if (count < 4 || count > WEFT_LINK_RING_HOSTS_MAX) return all_one(count, sites_out);
    for (uint32_t i = 0; i < count; i++) {
        sites_out[i] = UINT32_MAX;
        for (uint32_t j = 0; j < i; j++)
            longest = slower_link(count, times, i, j) > longest ? slower_link(count, times, i, j) : longest;
    }
    for (uint32_t i = 0; i < count; i++)
        if (sites_out[i] == UINT32_MAX &&
            take_site(count, times, longest / WEFT_LINK_SITES_FARTHER, i, sites++, sites_out) < 2)
            return all_one(count, sites_out);
    return sites;
}
