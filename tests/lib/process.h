/* process.h - other processes in a test: start, watch their output, wait with a deadline.
 * A process gets its own group and dies with the test; process_free kills the whole group, so nothing
 * stays behind whatever the test does. Both output streams go to one file that is read at leisure:
 * a process can never block on a pipe that nobody reads. */
#ifndef WEFT_TESTS_LIB_PROCESS_H
#define WEFT_TESTS_LIB_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
    pid_t pid;
    int pidfd;
    int output_fd;  /* stdout and stderr, an unlinked file */
    bool ended;
    int wait_status; /* of waitpid, when ended */
    char *output;    /* of the last process_output */
};

/* argv ends with NULL; argv[0] is looked up in PATH. `variables` are "NAME=value" texts added to the
 * environment (or taken out: "NAME"), ending with NULL; NULL for none. Fails the test when it cannot
 * be started. */
struct process *process_start(const char *const *argv, const char *const *variables);

/* Wait for its end; false when timeout_ms passed. */
bool process_wait(struct process *process, int timeout_ms);

/* Wait until its output contains `text`; false when timeout_ms passed or it ended without. */
bool process_wait_output(struct process *process, const char *text, int timeout_ms);

/* All it wrote so far; valid until the next call. */
const char *process_output(struct process *process);

/* Exit status, or 128 + signal. Only after process_wait said true. */
int process_exit_code(const struct process *process);

void process_signal(struct process *process, int signal_number);
void process_free(struct process *process); /* NULL is fine */

#endif
