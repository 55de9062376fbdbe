/* sim_links.c - the figures that a job would measure on a simulated network: the worst link, by which plans
 * are chosen, the order of hosts in rings, and the rate of each host and each lane. */
#include <stdlib.h>

#include "tools/sim/sim.h"

/* size of the message by which the library weighs links (client/session/link_cost.c) */
#define LINK_COST_BYTES 262144.0

struct link_figures {
    /* (count * count,), (count,), (count,), (count,), (lanes of the hosts,) */
    uint32_t count, *times, *order, *speeds, *sites, *lanes;
};

static uint32_t host_at(const struct sim_job *job, const struct weft_plan_hosts *hosts, uint32_t h)
{
    return sim_job_host(job, hosts->members[hosts->first[h]]);
}
static uint32_t in_megabytes(double rate)
{
    return rate <= 0 || rate > 4e15 ? UINT32_MAX : rate < 1e6 ? 1 : (uint32_t)(rate / 1e6);
}

static void keep_worst(struct weft_link_cost *worst, bool first, uint64_t latency_ns, double rate)
{
    uint64_t known = rate > 0 ? (uint64_t)rate : worst->bytes_per_second;
    if (first || latency_ns > worst->latency_ns) worst->latency_ns = latency_ns;
    if (first || known < worst->bytes_per_second) worst->bytes_per_second = known;
}

/* Measures all pairs of hosts. The rate of a host is that of its best path. Paths are equal in both
 * directions. */
static void measure_hosts(const struct sim_job *job, const struct weft_plan_hosts *hosts,
                          struct weft_link_cost *worst, struct link_figures *link_figures)
{
    bool first = true;
    for (uint32_t i = 0; i < link_figures->count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uint64_t latency_ns;
            double rate;
            weft_sim_path(sim_job_network(job), host_at(job, hosts, i), host_at(job, hosts, j), 0,
                          &latency_ns, &rate);
            double time = (double)latency_ns + (rate > 0 ? LINK_COST_BYTES * 1e9 / rate : 0);
            uint32_t speed = in_megabytes(rate);
            keep_worst(worst, first, latency_ns, rate);
            link_figures->times[(size_t)i * link_figures->count + j] =
                link_figures->times[(size_t)j * link_figures->count + i] =
                    time < 4e9 ? (uint32_t)time : UINT32_MAX;
            if (speed > link_figures->speeds[i]) link_figures->speeds[i] = speed;
            if (speed > link_figures->speeds[j]) link_figures->speeds[j] = speed;
            first = false;
        }
}

/* The worst link between two hosts of one site. */
static void measure_sites(const struct sim_job *job, const struct weft_plan_hosts *hosts,
                          const struct link_figures *link_figures, struct weft_plan_links *links)
{
    struct weft_link_cost near = {0};
    for (uint32_t i = 0; i < link_figures->count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uint64_t latency_ns;
            double rate;
            if (link_figures->sites[i] != link_figures->sites[j]) continue;
            weft_sim_path(sim_job_network(job), host_at(job, hosts, i), host_at(job, hosts, j), 0,
                          &latency_ns, &rate);
            keep_worst(&near, near.bytes_per_second == 0, latency_ns, rate);
        }
    links->sites = link_figures->sites;
    links->near_latency_ns = near.latency_ns;
    links->near_bytes_per_second = near.bytes_per_second;
}

/* For more than WEFT_LINK_RING_HOSTS_MAX hosts: one path across the network. */
static void measure_host_pair(const struct sim_job *job, const struct weft_plan_hosts *hosts,
                              struct weft_link_cost *worst)
{
    uint64_t latency_ns;
    double rate;
    weft_sim_path(sim_job_network(job), host_at(job, hosts, 0), host_at(job, hosts, hosts->count / 2), 0,
                  &latency_ns, &rate);
    keep_worst(worst, true, latency_ns, rate);
}

/* Lane l uses port l of each host; lanes that share a port share its rate. */
static void measure_lanes(const struct sim_job *job, const struct weft_plan_hosts *hosts, uint32_t rails,
                          uint32_t *lanes)
{
    for (uint32_t l = 0; l < hosts->lanes; l++) {
        uint32_t rail = l % rails, sharing = (hosts->lanes - rail + rails - 1) / rails;
        lanes[l] = UINT32_MAX;
        for (uint32_t h = 0; h < hosts->count; h++) {
            uint64_t latency_ns;
            double rate;
            weft_sim_path(sim_job_network(job), host_at(job, hosts, h),
                          host_at(job, hosts, (h + 1) % hosts->count), rail, &latency_ns, &rate);
            uint32_t speed = in_megabytes(rate / sharing);
            if (speed < lanes[l]) lanes[l] = speed;
        }
    }
}

bool sim_links_measure(const struct sim_job *job, struct weft_link_cost *worst, uint32_t *memory,
                       struct weft_plan_hosts *hosts)
{
    struct link_figures link_figures = {.count = hosts->count};
    uint32_t rails = weft_sim_rails(sim_job_network(job), host_at(job, hosts, 0));
    if (hosts->count < 2) return true;
    if (hosts->count > WEFT_LINK_RING_HOSTS_MAX) {
        measure_host_pair(job, hosts, worst);
        return true;
    }
    link_figures.times = calloc((size_t)link_figures.count * link_figures.count, sizeof *link_figures.times);
    link_figures.order = calloc(link_figures.count, sizeof *link_figures.order);
    link_figures.speeds = calloc(link_figures.count, sizeof *link_figures.speeds);
    link_figures.sites = calloc(link_figures.count, sizeof *link_figures.sites);
    link_figures.lanes = calloc(hosts->lanes, sizeof *link_figures.lanes);
    bool has_memory = link_figures.times && link_figures.order && link_figures.speeds && link_figures.sites &&
                      link_figures.lanes;
    if (has_memory) measure_hosts(job, hosts, worst, &link_figures);
    if (has_memory && rails > 1) measure_lanes(job, hosts, rails, link_figures.lanes);
    if (has_memory) weft_link_ring(link_figures.count, link_figures.times, link_figures.order);
    struct weft_plan_links links = {.rails = rails};
    if (!sim_job_settings(job)->ignores_measured_links) {
        links.order = link_figures.order;
        links.speeds = link_figures.speeds;
        if (rails > 1) links.lane_speeds = link_figures.lanes;
        if (has_memory && weft_link_sites(link_figures.count, link_figures.times, link_figures.sites) > 1)
            measure_sites(job, hosts, &link_figures, &links);
    }
    if (has_memory) weft_plan_hosts_apply_links(hosts, memory, sim_job_settings(job)->ranks, &links);
    free(link_figures.times), free(link_figures.order), free(link_figures.speeds), free(link_figures.sites),
        free(link_figures.lanes);
    return has_memory;
}
