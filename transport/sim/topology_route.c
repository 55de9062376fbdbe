/* topology_route.c - the links of a flow.
 *
 * From the source's rail to the destination's rail. If rails are separate networks, the sender uses the
 * rail of its peer, as PXN of NCCL does; else its own rail at both ends; else the nearest pair of ports.
 * Between switches the flow takes a shortest path; a hash of the flow chooses among equal ones at each
 * step (equal-cost multipath). So a flow has one path, and its packets keep their order on links without
 * jitter. */
#include "transport/sim/topology.h"

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 31) * 0x7fb5d329728ea185ull;
    value = (value ^ value >> 27) * 0x81dadef4bc2dd44dull;
    return value ^ value >> 33;
}

/* Hops between the far ends of two ports: 0: same switch; TOPOLOGY_FAR: no path. */
static uint32_t port_distance(const struct weft_topology *topology, const struct topology_port *from,
                              const struct topology_port *to)
{
    uint32_t hosts = topology->host_count, near = topology->links[from->out].to,
             far = topology->links[to->in].from;
    if (near < hosts) return from->out == to->in ? 0 : TOPOLOGY_FAR; /* a cable from host to host */
    if (far < hosts) return TOPOLOGY_FAR;
    return topology->distance[(size_t)(near - hosts) * topology->switch_count + (far - hosts)];
}

static bool choose_ports(const struct weft_topology *topology, uint32_t from, uint32_t from_rail, uint32_t to,
                         uint32_t to_rail, const struct topology_port **from_out,
                         const struct topology_port **to_out)
{
    const struct topology_port *from_ports = &topology->ports[topology->port_first[from]],
                               *to_ports = &topology->ports[topology->port_first[to]];
    uint32_t from_count = topology->port_first[from + 1] - topology->port_first[from];
    uint32_t to_count = topology->port_first[to + 1] - topology->port_first[to], best = TOPOLOGY_FAR;
    if (from_count == 0 || to_count == 0) return false;
    const uint32_t tries[3][2] = {{from_rail, to_rail}, {to_rail, to_rail}, {from_rail, from_rail}};
    for (int i = 0; i < 3; i++) {
        *from_out = &from_ports[tries[i][0] % from_count];
        *to_out = &to_ports[tries[i][1] % to_count];
        if (port_distance(topology, *from_out, *to_out) != TOPOLOGY_FAR) return true;
    }
    for (uint32_t a = 0; a < from_count; a++) {
        for (uint32_t b = 0; b < to_count; b++) {
            uint32_t distance = port_distance(topology, &from_ports[a], &to_ports[b]);
            if (distance >= best) continue;
            best = distance;
            *from_out = &from_ports[a];
            *to_out = &to_ports[b];
        }
    }
    return best != TOPOLOGY_FAR;
}

/* A link of switch `at` that leads nearer to `goal`. */
static uint32_t next_link(const struct weft_topology *topology, uint32_t at, uint32_t goal, uint64_t hash)
{
    uint32_t hosts = topology->host_count, switches = topology->switch_count, count = 0;
    uint8_t nearer = (uint8_t)(topology->distance[(size_t)at * switches + goal] - 1);
    for (int pass = 0; pass < 2; pass++) {
        uint32_t chosen = count ? (uint32_t)(mix(hash ^ (uint64_t)at << 20) % count) : 0;
        count = 0;
        for (uint32_t k = topology->out_first[at]; k < topology->out_first[at + 1]; k++) {
            uint32_t next = topology->links[topology->out_links[k]].to - hosts;
            if (topology->distance[(size_t)next * switches + goal] != nearer) continue;
            if (pass == 1 && count == chosen) return topology->out_links[k];
            count++;
        }
    }
    WEFT_ASSERT(false); /* a finite distance has a next link */
    return 0;
}

bool topology_reaches(const struct weft_topology *topology, uint32_t from, uint32_t from_rail, uint32_t to,
                      uint32_t to_rail)
{
    const struct topology_port *out, *in;
    if (from == to) return true;
    return choose_ports(topology, from, from_rail, to, to_rail, &out, &in) &&
           port_distance(topology, out, in) <= TOPOLOGY_HOPS_MAX - 2;
}

uint32_t topology_route(const struct weft_topology *topology, uint32_t from, uint32_t from_rail, uint32_t to,
                        uint32_t to_rail, uint64_t hash, uint32_t *path_out)
{
    if (from == to) {
        path_out[0] = topology->link_count + from;
        return 1;
    }
    const struct topology_port *out, *in;
    if (!choose_ports(topology, from, from_rail, to, to_rail, &out, &in)) return 0;
    uint32_t hosts = topology->host_count, count = 0;
    path_out[count++] = out->out;
    if (out->out == in->in) return count;
    uint32_t at = topology->links[out->out].to - hosts, goal = topology->links[in->in].from - hosts;
    while (at != goal) {
        if (count == TOPOLOGY_HOPS_MAX - 1) return 0;
        path_out[count] = next_link(topology, at, goal, hash);
        at = topology->links[path_out[count++]].to - hosts;
    }
    path_out[count++] = in->in;
    return count;
}
