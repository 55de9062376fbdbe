/* sim_faults.h - what happens to the hosts of a simulated job, other than death: parts of the network that
 * do not reach each other, links that stutter, processes that are stopped and wake up later. Transport and
 * control connections alike. */
#ifndef WEFT_TESTS_SIM_FAULTS_H
#define WEFT_TESTS_SIM_FAULTS_H

#include "transport/transport.h"

/* Hosts as bits: 1 << host. */
struct sim_fault {
    uint64_t stopped;      /* these are not stepped */
    uint64_t left, right;  /* nothing passes between one of these and one of those */
    uint64_t at_ns;
    uint64_t lasts_ns;     /* WEFT_NEVER: for good */
    uint32_t times;        /* 0 as 1; once more, as long after its end as it has lasted */
};

/* It happens by itself, by timers of `hand`, the loop of a host that nothing is done to. Memory is the
 * env's, and is not given back. */
enum weft_status sim_fault_add(struct weft_sim *sim, struct weft_loop *hand, const struct sim_fault *fault);

#endif
