/* process.h - child processes of a test: start, read output, wait with a deadline. A process leads its own
 * group and dies with the test; process_free kills the whole group. Both output streams go to one file, so a
 * process never blocks on a full pipe. */
#ifndef WEFT_TESTS_LIB_PROCESS_H
#define WEFT_TESTS_LIB_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
    pid_t pid;
    int pidfd;
    int output_fd; /* stdout and stderr, an unlinked file */
    bool ended;
    int wait_status; /* of waitpid, when ended */
    char *output;    /* of the last process_output */
};

/* argv ends with NULL; argv[0] is found by PATH. `variables` are "NAME=value" strings added to the
 * environment, or "NAME" to remove one; the list ends with NULL and may be NULL. Fails the test if the
 * process cannot be started. */
struct process *process_start(const char *const *argv, const char *const *variables);

/* Waits for the end of the process. False: timeout_ms have passed. */
bool process_wait(struct process *process, int timeout_ms);

/* Waits until the output contains `text`. False: timeout_ms have passed, or the process ended without it. */
bool process_wait_output(struct process *process, const char *text, int timeout_ms);

/* The whole output so far; valid until the next call. */
const char *process_output(struct process *process);

/* Exit status, or 128 + signal. Valid after process_wait has returned true. */
int process_exit_code(const struct process *process);

void process_signal(struct process *process, int signal_number);
void process_free(struct process *process); /* NULL is allowed */

#endif
