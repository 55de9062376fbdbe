/* sim_net.h - base/net/net.h on virtual time: control connections between the hosts of a simulation. A test
 * that links sim_net.c has these functions in place of base's, and neither client nor coordinator knows.
 *
 * Frames arrive in order, each after a latency of its own, between any two hosts that live. What a dead
 * host had sent arrives still; then its peers see the connection end, unless it fell silent. Memory is the
 * env's and is not given back: it goes with the simulation. */
#ifndef WEFT_TESTS_SIM_NET_H
#define WEFT_TESTS_SIM_NET_H

#include "base/base.h"

enum { SIM_NET_HOSTS_MAX = 64 };

/* A new simulation. `host_of`: whose env this is. `wake`: the host has a new timer. Latencies are uniform
 * in latency_ns / 2 to latency_ns. */
void sim_net_begin(uint32_t (*host_of)(struct weft_env *env), void (*wake)(uint32_t host),
                   uint64_t (*random)(uint64_t below), uint64_t latency_ns);
/* The host has just died. `silent`: nobody is told, as when a machine loses its power. */
void sim_net_died(uint32_t host, bool silent);
/* What the host sends and is sent from now on arrives at until_ns at the soonest. */
void sim_net_stall(uint32_t host, uint64_t until_ns);
/* Between the two nothing arrives, nor the end of a connection, until the cut heals: then all of it, in
 * order. */
void sim_net_cut(uint32_t a, uint32_t b, bool cut);

#endif
