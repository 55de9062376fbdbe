/* plan_hosts.c - who shares a host, as the hierarchy needs it: hosts in the order of their first ranks, the ranks of each in
 * rising order; and what follows from how fast their links are: the way round for rings, and shares. Pure functions of what
 * each rank is on and of what all were told, the same for all. */
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

/* host | place | members | round | turn | speeds | first | shares | lane_shares */
size_t weft_plan_hosts_words(uint32_t ranks) { return 9 * (size_t)ranks + 5; }

static bool is_rising(const uint32_t *round, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        if (round[r] != r) return false;
    return true;
}

void weft_plan_hosts_make(const uint32_t *host_of, uint32_t ranks, uint32_t *memory, struct weft_plan_hosts *out)
{
    uint32_t *host = memory, *place = host + ranks, *members = place + ranks, *round = members + ranks, *turn = round + ranks;
    uint32_t *first = turn + 2 * (size_t)ranks;
    uint32_t taken = 0;
    *out = (struct weft_plan_hosts){.host = host, .place = place, .members = members, .first = first, .round = round, .turn = turn};
    for (uint32_t r = 0; r < ranks; r++) place[r] = UINT32_MAX;
    for (uint32_t lead = 0; lead < ranks; lead++) {
        if (place[lead] != UINT32_MAX) continue;
        first[out->count] = taken;
        for (uint32_t r = lead; r < ranks; r++) {
            if (host_of[r] != host_of[lead]) continue;
            host[r] = out->count;
            place[r] = taken - first[out->count];
            turn[r] = taken;
            round[taken] = r;
            members[taken++] = r;
        }
        if (taken - first[out->count] > out->lanes) out->lanes = taken - first[out->count];
        out->count++;
    }
    first[out->count] = taken;
    out->together = out->rising = is_rising(round, ranks);
    out->subtrees = out->together && are_subtrees(out);
}

/* ---- what was measured ---- */
static void go_round(struct weft_plan_hosts *hosts, uint32_t *round, uint32_t *turn, const uint32_t *order)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < hosts->count; i++)
        for (uint32_t m = hosts->first[order[i]]; m < hosts->first[order[i] + 1]; m++) {
            turn[hosts->members[m]] = taken;
            round[taken++] = hosts->members[m];
        }
    hosts->rising = is_rising(round, taken);
}

static bool are_alike(const uint32_t *speeds, uint32_t count)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (speeds[i] < least) least = speeds[i];
        if (speeds[i] > most) most = speeds[i];
    }
    return (uint64_t)most * 10 <= (uint64_t)least * 11; /* a tenth is what measurements differ by */
}

/* Parts of the whole as weights that add up to about WEIGHT each. */
#define WEIGHT 16.0
static void fill_shares(uint32_t *shares, uint32_t count, const uint32_t *speeds, double per_speed, double less)
{
    uint32_t longest = 0;
    shares[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        double part = per_speed * speeds[i] - less;
        uint32_t weight = part > 0 ? (uint32_t)(part * WEIGHT * count + 0.5) : 0;
        shares[i + 1] = shares[i] + weight;
        if (weight > longest) longest = weight;
    }
    shares[count + 1] = longest;
}

/* In a direct all_reduce of n bytes by p ranks, rank i with a part w of the vector moves n (1 + (p-2) w) each way: the contributions
 * of others to its slice, its own to theirs, and the way back. All are ready at the same time t where w = (t speed / n - 1) / (p-2),
 * and those too slow for any have none. */
static double time_of_shares(const uint32_t *speeds, uint32_t count)
{
    double low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++)
        if (speeds[i] > high) high = speeds[i];
    high = count / high; /* the fastest alone */
    for (int turn = 0; turn < 60; turn++) {
        double t = (low + high) / 2, parts = 0;
        for (uint32_t i = 0; i < count; i++) parts += t * speeds[i] > 1 ? t * speeds[i] - 1 : 0;
        if (parts < count - 2) low = t;
        else high = t;
    }
    return high;
}

/* Sites matter to the choice of plans, not to their steps. */
static void follow_sites(struct weft_plan_hosts *hosts, uint32_t ranks, const struct weft_plan_links *links)
{
    const uint32_t *sites = links->sites, *host = hosts->host;
    uint32_t count = 0, size = 1;
    for (uint32_t h = 0; h < hosts->count; h++) count = sites[h] < count ? count : sites[h] + 1;
    if (count < 2) return;
    while (size < ranks && sites[host[size]] == sites[host[0]]) size++;
    bool aligned = (size & (size - 1)) == 0 && (ranks + size - 1) / size == count;
    for (uint32_t r = 1; r < ranks; r++) aligned = aligned && (r % size == 0) == (sites[host[r]] != sites[host[r - 1]]);
    hosts->sites = count;
    hosts->site_ranks = aligned ? size : (ranks + count - 1) / count;
    hosts->sites_aligned = aligned;
    hosts->near_latency_ns = links->near_latency_ns;
    hosts->near_bytes_per_second = links->near_bytes_per_second;
}

void weft_plan_hosts_follow(struct weft_plan_hosts *hosts, uint32_t *memory, uint32_t ranks, const struct weft_plan_links *links)
{
    uint32_t *round = memory + 3 * (size_t)ranks, *turn = round + ranks, *speeds = turn + ranks;
    uint32_t *shares = speeds + 2 * (size_t)ranks + 1, *lane_shares = shares + ranks + 2;
    uint64_t number = WEFT_FNV_BASIS;
    hosts->rails = links->rails;
    if (links->sites) follow_sites(hosts, ranks, links);
    if (links->order) go_round(hosts, round, turn, links->order);
    if (links->speeds && !are_alike(links->speeds, hosts->count)) {
        for (uint32_t h = 0; h < hosts->count; h++) speeds[h] = links->speeds[h];
        hosts->speeds = speeds;
    }
    if (hosts->speeds && hosts->lanes == 1 && hosts->count > 2) { /* rank by rank: hosts count by their first ranks */
        fill_shares(shares, ranks, speeds, time_of_shares(speeds, ranks) / (ranks - 2), 1.0 / (ranks - 2));
        hosts->shares = shares;
    }
    if (links->lane_speeds && !are_alike(links->lane_speeds, hosts->lanes)) {
        double all = 0;
        for (uint32_t l = 0; l < hosts->lanes; l++) all += links->lane_speeds[l];
        fill_shares(lane_shares, hosts->lanes, links->lane_speeds, 1 / all, 0);
        hosts->lane_shares = lane_shares;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        number = weft_fnv(number, round[r]);
        if (hosts->shares) number = weft_fnv(number, shares[r + 1]);
    }
    for (uint32_t l = 0; hosts->lane_shares && l < hosts->lanes; l++) number = weft_fnv(number, lane_shares[l + 1]);
    hosts->number = hosts->rising && !hosts->shares && !hosts->lane_shares ? 0 : number;
}
