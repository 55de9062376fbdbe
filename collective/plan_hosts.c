/* plan_hosts.c - who shares a host, as the hierarchy needs it: hosts in the order of their first ranks, the ranks of each in
 * rising order. A pure function of what each rank is on, the same for all. */
#include "collective/plan.h"

/* T over hosts of T over their ranks is T over all ranks where each host but the last has the same power of two of
 * consecutive ranks and the last no more. */
static bool are_subtrees(const struct weft_plan_hosts *hosts)
{
    uint32_t size = hosts->first[1];
    for (uint32_t h = 0; h < hosts->count; h++) {
        uint32_t ranks = hosts->first[h + 1] - hosts->first[h];
        if (h + 1 < hosts->count ? ranks != size : ranks > size) return false;
    }
    return (size & (size - 1)) == 0 || hosts->count == 1;
}

size_t weft_plan_hosts_words(uint32_t ranks) { return 4 * (size_t)ranks + 1; }

void weft_plan_hosts_make(const uint32_t *host_of, uint32_t ranks, uint32_t *memory, struct weft_plan_hosts *out)
{
    uint32_t *host = memory, *place = host + ranks, *members = place + ranks, *first = members + ranks;
    uint32_t taken = 0;
    *out = (struct weft_plan_hosts){.host = host, .place = place, .members = members, .first = first};
    bool together = true;
    for (uint32_t r = 0; r < ranks; r++) place[r] = UINT32_MAX;
    for (uint32_t lead = 0; lead < ranks; lead++) {
        if (place[lead] != UINT32_MAX) continue;
        first[out->count] = taken;
        for (uint32_t r = lead; r < ranks; r++) {
            if (host_of[r] != host_of[lead]) continue;
            host[r] = out->count;
            place[r] = taken - first[out->count];
            together &= r == taken;
            members[taken++] = r;
        }
        if (taken - first[out->count] > out->lanes) out->lanes = taken - first[out->count];
        out->count++;
    }
    first[out->count] = taken;
    out->together = together;
    out->subtrees = together && are_subtrees(out);
}
