/* run_bind.h - the processors on which a worker of `weft run` may run.
 *
 *   none   those of this command: the scheduler of the system places the workers
 *   core   one core with all its hardware threads
 *   auto   an equal share of the cores; none with fewer cores than workers
 *
 * Cores are those on which this command may run (taskset, cgroups), ordered by socket and number, so that
 * neighbouring ranks have neighbouring cores. */
#ifndef WEFT_TOOLS_RUN_RUN_BIND_H
#define WEFT_TOOLS_RUN_RUN_BIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RUN_CPUS_MAX 8192 /* the largest CONFIG_NR_CPUS of Linux */

enum run_bind { RUN_BIND_NONE, RUN_BIND_CORE, RUN_BIND_AUTO };

struct run_cpus {
    /* one bit per processor, in the layout of the kernel */
    unsigned long words[RUN_CPUS_MAX / (8 * sizeof(unsigned long))];
};

struct run_core {
    uint32_t socket, first; /* first: number of its lowest processor */
    struct run_cpus cpus;
};

/* False: no such word. */
bool run_bind_parse(const char *text, enum run_bind *how_out);
/* The cores of this command, in order; the caller frees them. NULL: they could not be read, and errno is set.
 * `sys` is "/sys/devices/system/cpu", or a copy of it in tests. A processor without an entry there counts as
 * a core. */
struct run_core *run_bind_cores(const char *sys, uint32_t *count_out);
/* The processors of worker `index` of `workers`. False: those of this command. RUN_BIND_CORE requires as many
 * cores as workers. */
bool run_bind_assign(enum run_bind how, const struct run_core *cores, uint32_t core_count, uint32_t workers,
                     uint32_t index, struct run_cpus *cpus_out);
/* Binds this process; called between fork and exec. False: errno is set. */
bool run_bind_apply(const struct run_cpus *cpus);

#endif
