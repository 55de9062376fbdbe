/* link_use.c - queries about links: load, and properties of a path between two hosts. */
#include <stdio.h>
#include <string.h>

#include "transport/sim/sim.h"
#include "transport/sim/topology.h"

static bool ideal_use(const struct weft_sim *sim, uint32_t index, struct weft_sim_link_use *use)
{
    if (index > 0) return false;
    snprintf(use->name, sizeof use->name, "host link");
    use->bytes_per_second = (double)sim->options.bytes_per_second;
    for (uint32_t host = 0; host < sim->options.host_count; host++) {
        uint64_t bytes = sim->hosts[host].egress_bytes;
        use->links++;
        use->bytes += bytes;
        if (bytes > use->busiest_bytes) use->busiest_bytes = bytes;
    }
    return true;
}

bool weft_sim_link_use(const struct weft_sim *sim, uint32_t index, struct weft_sim_link_use *use_out)
{
    const struct weft_topology *topology = sim->options.topology;
    memset(use_out, 0, sizeof *use_out);
    if (!topology) return ideal_use(sim, index, use_out);
    if (index >= topology->cable_count) return false;
    snprintf(use_out->name, sizeof use_out->name, "%s", topology->cable_names[index]);
    for (uint32_t link = 0; link < topology->link_count; link++) {
        if (topology->links[link].cable != index) continue;
        uint64_t bytes = sim->links[link].bytes;
        use_out->links++;
        use_out->bytes += bytes;
        use_out->bytes_per_second = 1e9 / topology->links[link].ns_per_byte;
        if (bytes > use_out->busiest_bytes) use_out->busiest_bytes = bytes;
    }
    return true;
}

uint32_t weft_sim_rails(const struct weft_sim *sim, uint32_t host)
{
    const struct weft_topology *topology = sim->options.topology;
    return topology ? topology->port_first[host + 1] - topology->port_first[host] : 1;
}

void weft_sim_path(const struct weft_sim *sim, uint32_t host_a, uint32_t host_b, uint32_t rail,
                   uint64_t *latency_ns_out, double *bytes_per_second_out)
{
    const struct weft_topology *topology = sim->options.topology;
    uint32_t path[TOPOLOGY_HOPS_MAX];
    double slowest = 0;
    *latency_ns_out = host_a == host_b ? sim->options.latency_ns / 10 : sim->options.latency_ns;
    *bytes_per_second_out = host_a == host_b ? 0 : (double)sim->options.bytes_per_second;
    if (!topology) return;
    uint32_t hops = topology_route(topology, host_a, rail, host_b, rail, 0, path);
    *latency_ns_out = 0;
    for (uint32_t i = 0; i < hops; i++) {
        *latency_ns_out += topology->links[path[i]].latency_ns;
        if (topology->links[path[i]].ns_per_byte > slowest) slowest = topology->links[path[i]].ns_per_byte;
    }
    *bytes_per_second_out = slowest > 0 ? 1e9 / slowest : 0;
}
