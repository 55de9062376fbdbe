/* sim_links.c - what a job would find if it measured the links of a simulated network, each by itself: the worst of them, by which
 * plans are chosen, the order in which rings go round the hosts, and how fast each host and each lane is. */
#include <stdlib.h>

#include "tools/sim/sim.h"

#define WEIGHED_BYTES 262144.0 /* of a message, as the library weighs links (client/cost.c) */

struct found {
    uint32_t count, *times, *order, *speeds, *sites, *lanes; /* (count * count,) (count,) (count,) (count,) (lanes of the hosts,) */
};

static uint32_t host_at(const struct sim_job *job, const struct weft_plan_hosts *hosts, uint32_t h)
{
    return sim_job_host(job, hosts->members[hosts->first[h]]);
}
static uint32_t in_megabytes(double rate) { return rate <= 0 || rate > 4e15 ? UINT32_MAX : rate < 1e6 ? 1 : (uint32_t)(rate / 1e6); }

static void worsen(struct weft_link_cost *worst, bool first, uint64_t latency_ns, double rate)
{
    uint64_t known = rate > 0 ? (uint64_t)rate : worst->bytes_per_second;
    if (first || latency_ns > worst->latency_ns) worst->latency_ns = latency_ns;
    if (first || known < worst->bytes_per_second) worst->bytes_per_second = known;
}

/* All ways, and of each host the best: that is its own link. Ways are the same in both directions. */
static void look_at_all(const struct sim_job *job, const struct weft_plan_hosts *hosts, struct weft_link_cost *worst, struct found *found)
{
    bool first = true;
    for (uint32_t i = 0; i < found->count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uint64_t latency_ns;
            double rate;
            weft_sim_path(sim_job_network(job), host_at(job, hosts, i), host_at(job, hosts, j), 0, &latency_ns, &rate);
            double time = (double)latency_ns + (rate > 0 ? WEIGHED_BYTES * 1e9 / rate : 0);
            uint32_t speed = in_megabytes(rate);
            worsen(worst, first, latency_ns, rate);
            found->times[(size_t)i * found->count + j] = found->times[(size_t)j * found->count + i] = time < 4e9 ? (uint32_t)time : UINT32_MAX;
            if (speed > found->speeds[i]) found->speeds[i] = speed;
            if (speed > found->speeds[j]) found->speeds[j] = speed;
            first = false;
        }
}

/* The worst way between two hosts of one site. */
static void look_inside_sites(const struct sim_job *job, const struct weft_plan_hosts *hosts, const struct found *found, struct weft_plan_links *links)
{
    struct weft_link_cost near = {0};
    for (uint32_t i = 0; i < found->count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uint64_t latency_ns;
            double rate;
            if (found->sites[i] != found->sites[j]) continue;
            weft_sim_path(sim_job_network(job), host_at(job, hosts, i), host_at(job, hosts, j), 0, &latency_ns, &rate);
            worsen(&near, near.bytes_per_second == 0, latency_ns, rate);
        }
    links->sites = found->sites;
    links->near_latency_ns = near.latency_ns;
    links->near_bytes_per_second = near.bytes_per_second;
}

/* Of very many hosts one way across. */
static void look_at_one(const struct sim_job *job, const struct weft_plan_hosts *hosts, struct weft_link_cost *worst)
{
    uint64_t latency_ns;
    double rate;
    weft_sim_path(sim_job_network(job), host_at(job, hosts, 0), host_at(job, hosts, hosts->count / 2), 0, &latency_ns, &rate);
    worsen(worst, true, latency_ns, rate);
}

/* Lane l goes out by port l of each host; lanes that share a port share its rate. */
static void look_at_lanes(const struct sim_job *job, const struct weft_plan_hosts *hosts, uint32_t rails, uint32_t *lanes)
{
    for (uint32_t l = 0; l < hosts->lanes; l++) {
        uint32_t rail = l % rails, sharing = (hosts->lanes - rail + rails - 1) / rails;
        lanes[l] = UINT32_MAX;
        for (uint32_t h = 0; h < hosts->count; h++) {
            uint64_t latency_ns;
            double rate;
            weft_sim_path(sim_job_network(job), host_at(job, hosts, h), host_at(job, hosts, (h + 1) % hosts->count), rail, &latency_ns, &rate);
            uint32_t speed = in_megabytes(rate / sharing);
            if (speed < lanes[l]) lanes[l] = speed;
        }
    }
}

bool sim_links_measure(const struct sim_job *job, struct weft_link_cost *worst, uint32_t *memory, struct weft_plan_hosts *hosts)
{
    struct found found = {.count = hosts->count};
    uint32_t rails = weft_sim_rails(sim_job_network(job), host_at(job, hosts, 0));
    if (hosts->count < 2) return true;
    if (hosts->count > WEFT_LINK_RING_HOSTS_MAX) {
        look_at_one(job, hosts, worst);
        return true;
    }
    found.times = calloc((size_t)found.count * found.count, sizeof *found.times);
    found.order = calloc(found.count, sizeof *found.order);
    found.speeds = calloc(found.count, sizeof *found.speeds);
    found.sites = calloc(found.count, sizeof *found.sites);
    found.lanes = calloc(hosts->lanes, sizeof *found.lanes);
    bool room = found.times && found.order && found.speeds && found.sites && found.lanes;
    if (room) look_at_all(job, hosts, worst, &found);
    if (room && rails > 1) look_at_lanes(job, hosts, rails, found.lanes);
    if (room) weft_link_ring(found.count, found.times, found.order);
    struct weft_plan_links links = {.rails = rails};
    if (!sim_job_settings(job)->unmeasured) {
        links.order = found.order;
        links.speeds = found.speeds;
        if (rails > 1) links.lane_speeds = found.lanes;
        if (room && weft_link_sites(found.count, found.times, found.sites) > 1) look_inside_sites(job, hosts, &found, &links);
    }
    if (room) weft_plan_hosts_follow(hosts, memory, sim_job_settings(job)->ranks, &links);
    free(found.times), free(found.order), free(found.speeds), free(found.sites), free(found.lanes);
    return room;
}
