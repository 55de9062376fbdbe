/* plan/topology.c - placement of ranks on hosts for the hierarchy, and what follows from measured links: ring
 * order and weights. Pure functions of values that all ranks share. */
#include "collective/plan/algorithm.h"

/* T over hosts of T over their ranks equals T over all ranks if each host but the last has the same power
 * of two of consecutive ranks, and the last has no more. */
static bool are_subtrees(const struct weft_plan_hosts *hosts)
{
    uint32_t size = hosts->first[1];
    for (uint32_t h = 0; h < hosts->count; h++) {
        uint32_t ranks = hosts->first[h + 1] - hosts->first[h];
        if (h + 1 < hosts->count ? ranks != size : ranks > size) return false;
    }
    return (size & (size - 1)) == 0 || hosts->count == 1;
}

/* host | place | members | ring_order | ring_position | speeds | first | slice_weights | lane_weights */
size_t weft_plan_hosts_words(uint32_t ranks) { return 9 * (size_t)ranks + 5; }

static bool is_rising(const uint32_t *ring_order, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        if (ring_order[r] != r) return false;
    return true;
}

void weft_plan_hosts_init(const uint32_t *host_of, uint32_t ranks, uint32_t *memory,
                          struct weft_plan_hosts *out)
{
    uint32_t *host = memory, *place = host + ranks, *members = place + ranks, *ring_order = members + ranks,
             *ring_position = ring_order + ranks;
    uint32_t *first = ring_position + 2 * (size_t)ranks;
    uint32_t taken = 0;
    *out = (struct weft_plan_hosts){.host = host,
                                    .place = place,
                                    .members = members,
                                    .first = first,
                                    .ring_order = ring_order,
                                    .ring_position = ring_position};
    for (uint32_t r = 0; r < ranks; r++) place[r] = UINT32_MAX;
    for (uint32_t lead = 0; lead < ranks; lead++) {
        if (place[lead] != UINT32_MAX) continue;
        first[out->count] = taken;
        for (uint32_t r = lead; r < ranks; r++) {
            if (host_of[r] != host_of[lead]) continue;
            host[r] = out->count;
            place[r] = taken - first[out->count];
            ring_position[r] = taken;
            ring_order[taken] = r;
            members[taken++] = r;
        }
        if (taken - first[out->count] > out->lanes) out->lanes = taken - first[out->count];
        out->count++;
    }
    first[out->count] = taken;
    out->has_consecutive_ranks = out->ring_is_identity = is_rising(ring_order, ranks);
    out->subtrees = out->has_consecutive_ranks && are_subtrees(out);
}

/* ---- measured links ---- */
static void set_ring_order(struct weft_plan_hosts *hosts, uint32_t *ring_order, uint32_t *ring_position,
                           const uint32_t *order)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < hosts->count; i++)
        for (uint32_t m = hosts->first[order[i]]; m < hosts->first[order[i] + 1]; m++) {
            ring_position[hosts->members[m]] = taken;
            ring_order[taken++] = hosts->members[m];
        }
    hosts->ring_is_identity = is_rising(ring_order, taken);
}

static bool speeds_are_equal(const uint32_t *speeds, uint32_t count)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (speeds[i] < least) least = speeds[i];
        if (speeds[i] > most) most = speeds[i];
    }
    return (uint64_t)most * 10 <= (uint64_t)least * 11; /* measurements differ by up to a tenth */
}

/* Parts of the whole as weights that add up to about WEIGHT_SCALE each. */
#define WEIGHT_SCALE 16.0
static void fill_weights(uint32_t *slice_weights, uint32_t count, const uint32_t *speeds, double per_speed,
                         double less)
{
    uint32_t longest = 0;
    slice_weights[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        double part = per_speed * speeds[i] - less;
        uint32_t weight = part > 0 ? (uint32_t)(part * WEIGHT_SCALE * count + 0.5) : 0;
        slice_weights[i + 1] = slice_weights[i] + weight;
        if (weight > longest) longest = weight;
    }
    slice_weights[count + 1] = longest;
}

/* In a direct all_reduce of n bytes by p ranks, rank i with the fraction w of the vector moves n (1 +
 * (p-2) w) each way: contributions of the others to its slice, its own to theirs, and the results. All end
 * at the same time t if w = (t speed / n - 1) / (p-2). Ranks that are too slow get no slice. */
static double weighted_time(const uint32_t *speeds, uint32_t count)
{
    double low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++)
        if (speeds[i] > high) high = speeds[i];
    high = count / high; /* the fastest rank alone */
    for (int turn = 0; turn < 60; turn++) {
        double t = (low + high) / 2, parts = 0;
        for (uint32_t i = 0; i < count; i++) parts += t * speeds[i] > 1 ? t * speeds[i] - 1 : 0;
        if (parts < count - 2) low = t;
        else high = t;
    }
    return high;
}

/* Sites change the choice of plans, not their steps. */
static void apply_sites(struct weft_plan_hosts *hosts, uint32_t ranks, const struct weft_plan_links *links)
{
    const uint32_t *sites = links->sites, *host = hosts->host;
    uint32_t count = 0, size = 1;
    for (uint32_t h = 0; h < hosts->count; h++) count = sites[h] < count ? count : sites[h] + 1;
    if (count < 2) return;
    while (size < ranks && sites[host[size]] == sites[host[0]]) size++;
    bool aligned = (size & (size - 1)) == 0 && (ranks + size - 1) / size == count;
    for (uint32_t r = 1; r < ranks; r++)
        aligned = aligned && (r % size == 0) == (sites[host[r]] != sites[host[r - 1]]);
    hosts->sites = count;
    hosts->site_ranks = aligned ? size : (ranks + count - 1) / count;
    hosts->sites_aligned = aligned;
    hosts->near_latency_ns = links->near_latency_ns;
    hosts->near_bytes_per_second = links->near_bytes_per_second;
}

void weft_plan_hosts_apply_links(struct weft_plan_hosts *hosts, uint32_t *memory, uint32_t ranks,
                                 const struct weft_plan_links *links)
{
    uint32_t *ring_order = memory + 3 * (size_t)ranks, *ring_position = ring_order + ranks,
             *speeds = ring_position + ranks;
    uint32_t *slice_weights = speeds + 2 * (size_t)ranks + 1, *lane_weights = slice_weights + ranks + 2;
    uint64_t number = WEFT_FNV_BASIS;
    hosts->rails = links->rails;
    if (links->sites) apply_sites(hosts, ranks, links);
    if (links->order) set_ring_order(hosts, ring_order, ring_position, links->order);
    if (links->speeds && !speeds_are_equal(links->speeds, hosts->count)) {
        for (uint32_t h = 0; h < hosts->count; h++) speeds[h] = links->speeds[h];
        hosts->speeds = speeds;
    }
    if (hosts->speeds && hosts->lanes == 1 && hosts->count > 2) {
        /* one rank on each host, so a rank has the speed of its host */
        fill_weights(slice_weights, ranks, speeds, weighted_time(speeds, ranks) / (ranks - 2),
                     1.0 / (ranks - 2));
        hosts->slice_weights = slice_weights;
    }
    if (links->lane_speeds && !speeds_are_equal(links->lane_speeds, hosts->lanes)) {
        double all = 0;
        for (uint32_t l = 0; l < hosts->lanes; l++) all += links->lane_speeds[l];
        fill_weights(lane_weights, hosts->lanes, links->lane_speeds, 1 / all, 0);
        hosts->lane_weights = lane_weights;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        number = weft_fnv(number, ring_order[r]);
        if (hosts->slice_weights) number = weft_fnv(number, slice_weights[r + 1]);
    }
    for (uint32_t l = 0; hosts->lane_weights && l < hosts->lanes; l++)
        number = weft_fnv(number, lane_weights[l + 1]);
    hosts->number = hosts->ring_is_identity && !hosts->slice_weights && !hosts->lane_weights ? 0 : number;
}
