/* sim_host_faults.h - faults of hosts of a simulated job, other than death: network partitions,
 * processes that are stopped and continue. They affect the transport and the control connections. */
#ifndef WEFT_TESTS_SIM_HOST_FAULTS_H
#define WEFT_TESTS_SIM_HOST_FAULTS_H

#include "transport/transport.h"

/* Hosts as bits: 1 << host. */
struct sim_fault {
    uint64_t stopped;      /* hosts that are not stepped */
    uint64_t left, right;  /* nothing passes between a host of `left` and one of `right` */
    uint64_t at_ns;
    uint64_t lasts_ns;     /* WEFT_NEVER: permanent */
    uint32_t times;        /* repetitions after a pause of the same length; 0 counts as 1 */
};

/* Timers of `hand`, the loop of a host without faults, start and end the fault. Memory is the env's and is
 * not freed. */
enum weft_status sim_fault_add(struct weft_sim *sim, struct weft_loop *hand, const struct sim_fault *fault);

#endif
