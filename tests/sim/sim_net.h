/* sim_net.h - base/net/net.h in virtual time: control connections between hosts of a simulation. A test that
 * links sim_net.c has these functions instead of base's; client and coordinator are unchanged.
 *
 * Frames arrive in order, each after its own latency, between any two live hosts. Frames that a dead host has
 * sent still arrive; then its peers see the end of the connection, unless the host failed silently. Memory is
 * the env's and is not freed: it lives as long as the simulation. */
#ifndef WEFT_TESTS_SIM_NET_H
#define WEFT_TESTS_SIM_NET_H

#include "base/base.h"

enum { SIM_NET_HOSTS_MAX = 64 };

/* Starts a new simulation. host_of: host of an env. wake: the host has a new timer. Latencies are uniform
 * in latency_ns / 2 to latency_ns. */
void sim_net_begin(uint32_t (*host_of)(struct weft_env *env), void (*wake)(uint32_t host),
                   uint64_t (*random)(uint64_t below), uint64_t latency_ns);
/* The host has failed. silent: no peer is notified, as after a loss of power. */
void sim_net_died(uint32_t host, bool silent);
/* Frames to and from the host arrive at until_ns or later. */
void sim_net_stall(uint32_t host, uint64_t until_ns);
/* The host has failed, and its peers were notified. */
bool sim_net_has_died(uint32_t host);
/* Breaks connections between two live hosts: the n-th frame that is sent from or to the host is lost with all
 * that have not arrived on its connection, and both ends are notified. n = 0: none. Further ones break by
 * chance, each frame's chance is 1 / one_in; 0: none. Frames count once Welcome has arrived: without it there
 * is no session. */
void sim_net_break(uint32_t host, uint64_t n, uint64_t one_in);
/* Frames that were sent from or to that host. */
uint64_t sim_net_frames(void);
/* The n-th frame that the host sends is its last one: the process dies behind that send. `dies` runs once,
 * inside the send. */
void sim_net_die_at(uint32_t host, uint64_t n, void (*dies)(void));
/* Between the two hosts no frame and no end of a connection arrives until the cut heals; then all of them,
 * in order. */
void sim_net_cut(uint32_t a, uint32_t b, bool cut);

#endif
