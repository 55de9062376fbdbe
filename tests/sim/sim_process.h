/* sim_process.h - blocking programs in a simulation: one for each host, each on its own stack.
 *
 * A program runs until it waits (in weft_wait, weft_init, ... or sim_process_sleep). Then the simulation
 * continues, and resumes the program when its wait completes or times out. Meanwhile all loops of its host
 * are stepped, so a client runs here as in a process, with its engine and control connection. The program of
 * a dead host is never resumed. */
#ifndef WEFT_TESTS_SIM_PROCESS_H
#define WEFT_TESTS_SIM_PROCESS_H

#include "transport/transport.h"

enum { SIM_PROCESSES_MAX = 64 };

/* Starts a new simulation: its envs get virtual time. */
void sim_processes_begin(struct weft_sim *sim, uint32_t hosts);
/* Starts the program after_ns from now. */
enum weft_status sim_process_start(uint32_t host, uint64_t after_ns, void (*main)(void *context),
                                   void *context);
bool sim_process_ended(uint32_t host);
/* Inside a program. */
void sim_process_sleep(uint64_t duration_ns);
uint32_t sim_process_host(struct weft_env *env);
/* Each host has a kernel of its own: no process can read whether one on another host is dead. */
void sim_processes_separate(bool have_own);
/* Formats what a waiting program waits for, for the report of a hang. */
void sim_process_describe(uint32_t host, char *out, size_t out_bytes);

#endif
