/* sim_process.h - programs that block, in a simulation: one per host, each on a stack of its own.
 *
 * A program runs until it waits (in weft_wait, weft_init, ... or sim_process_sleep); then the simulation
 * goes on, and comes back to it when what it waits for has come or its time is over. All loops of its host
 * are stepped meanwhile: so a client runs here as in a process, its engine and its control connection
 * beside it. A host that dies never comes back to it. */
#ifndef WEFT_TESTS_SIM_PROCESS_H
#define WEFT_TESTS_SIM_PROCESS_H

#include "transport/transport.h"

enum { SIM_PROCESSES_MAX = 64 };

/* A new simulation: its envs get virtual time. */
void sim_processes_begin(struct weft_sim *sim, uint32_t hosts);
/* Begins when the simulation runs, `after_ns` from now. */
enum weft_status sim_process_start(uint32_t host, uint64_t after_ns, void (*main)(void *context),
                                   void *context);
bool sim_process_ended(uint32_t host);
/* Inside a program: so long. */
void sim_process_sleep(uint64_t duration_ns);
uint32_t sim_process_host(struct weft_env *env);
/* Of a program that waits: what for. For a hang's report. */
void sim_process_describe(uint32_t host, char *out, size_t out_bytes);

#endif
