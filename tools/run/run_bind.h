/* run_bind.h - which processors a worker of `weft run` may run on.
 *
 *   none   those of this command: the system moves workers about
 *   core   a core of its own, with all its hardware threads
 *   auto   an equal share of the cores; none where there are fewer cores than workers
 *
 * Cores are those on which this command may run itself (taskset, cgroups), by socket and then by number,
 * so that neighbouring ranks are neighbours. */
#ifndef WEFT_TOOLS_RUN_RUN_BIND_H
#define WEFT_TOOLS_RUN_RUN_BIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RUN_CPUS_MAX 8192 /* as many as Linux can be built for */

enum run_bind { RUN_BIND_NONE, RUN_BIND_CORE, RUN_BIND_AUTO };

struct run_cpus {
    /* a bit for each processor, as the kernel has them */
    unsigned long words[RUN_CPUS_MAX / (8 * sizeof(unsigned long))];
};

struct run_core {
    uint32_t socket, first; /* its lowest processor's number */
    struct run_cpus cpus;
};

/* false: no such word. */
bool run_bind_parse(const char *text, enum run_bind *how_out);
/* The cores of this command, in order; the caller frees them. NULL: this cannot be told, and errno says
 * why. `sys`: where the system describes its processors, "/sys/devices/system/cpu"; one that it does not
 * describe is a core by itself. */
struct run_core *run_bind_cores(const char *sys, uint32_t *count_out);
/* Where worker `index` of `workers` runs. false: wherever this command may. With `core` there must be as
 * many cores as workers. */
bool run_bind_assign(enum run_bind how, const struct run_core *cores, uint32_t core_count, uint32_t workers,
                     uint32_t index, struct run_cpus *cpus_out);
/* This process, from now on: between fork and exec. false: errno. */
bool run_bind_apply(const struct run_cpus *cpus);

#endif
