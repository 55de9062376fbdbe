/* run.h - inside `weft run`: the processes of one job on this host.
 *
 *   run.c          the whole job: start, supervision, end (run_job.h)
 *   run_options.c  command line
 *   run_start.c    start of the coordinator, the shards and the workers
 *   run_losses.c   lost workers and shards, restarts
 *   run_end.c      signals, reports, exit status
 *   run_launcher.c detection of mpirun, torchrun and srun
 *   run_bind.c     processors of each worker (run_bind.h)
 *   run_process.c  one child: start with a log file, signals to its process group, description
 *   run_watch.c    observer of the coordinator: lost workers and shards
 *   run_scratch.c  directories, secret, port file */
#ifndef WEFT_TOOLS_RUN_RUN_H
#define WEFT_TOOLS_RUN_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/config/launcher.h"
#include "tools/run/run_bind.h"

#define RUN_PATH_BYTES 4096

struct run_process {
    char name[24]; /* "rank 0", "shard 1" */
    char log_path[RUN_PATH_BYTES];
    pid_t pid; /* 0: not started */
    bool ended;
    bool should_restart; /* lost, and the next restart() starts it again */
    bool was_restarted;  /* this process is a restart */
    uint64_t lost_at_ns; /* time at which it was reaped as lost */
    int wait_status;     /* of waitpid; valid if `ended` */
    int output_fd;       /* read end of its standard output if that is copied; otherwise -1 */
    int output_error;    /* first errno of the copy; 0: everything is written */
    int log_fd;          /* log file of the copy; -1: none */
    const char *hint;    /* what it could not do; NULL: it ran */
};

/* Forks and executes argv (found by PATH) with standard output and error in process->log_path. With
 * `copy_output`, standard output is a pipe that run_process_copy empties. `environment` has NAME=VALUE
 * strings, ends with NULL, and adds to ours. `cpus`: its processors; NULL: ours. The child dies with this
 * process. False: a sentence is on stderr. */
bool run_process_start(struct run_process *process, char *const argv[], const char *const environment[],
                       const struct run_cpus *cpus, bool copy_output);
/* Copies what its pipe holds to its log and to our standard output; closes the pipe at its end. */
void run_process_copy(struct run_process *process);
/* Closes pipe and log: ends the copy. */
void run_process_close(struct run_process *process);
/* Signals the child and its process group. */
void run_process_signal(const struct run_process *process, int signal_number);
bool run_process_has_failed(const struct run_process *process);
/* "exited with status 3", "was killed by signal 9 (Killed)", "still runs". */
void run_process_describe(const struct run_process *process, char *out, size_t out_bytes);
/* Prints the last lines of its log on stderr, indented. */
void run_process_print_tail(const struct run_process *process, int lines);

/* -1: continue, as one process of *launcher, or with a job of its own if launcher->name is NULL. Otherwise
 * the exit status, and the reason is on stderr. `workers` 0: not given. */
int run_find_launcher(uint64_t workers, uint64_t shards, struct weft_launcher *launcher);

struct run_scratch {
    char directory[RUN_PATH_BYTES]; /* mode 0700; removed at the end */
    char secret_path[RUN_PATH_BYTES + 16], port_path[RUN_PATH_BYTES + 16];
    char secret[65]; /* 32 random bytes in hexadecimal */
};
bool run_scratch_create(struct run_scratch *scratch, const char *job);
void run_scratch_remove(struct run_scratch *scratch);
/* Reads the line NAME=VALUE of the port file. False: there is no such line yet. */
bool run_scratch_read_port(const struct run_scratch *scratch, const char *name, char *out, size_t out_bytes);
/* Creates the directory and its parents. */
bool run_make_directory(const char *path);
/* Path of a file in the directory of this program: "/usr/bin/weftd" for /usr/bin/weft. */
bool run_find_sibling(const char *name, char out[RUN_PATH_BYTES]);

/* An observer of the job on a thread of its own. The coordinator knows the first loss; the order in which
 * processes are seen to end does not show it. NULL: the observer could not start, and that order is used.
 * Texts are copied. */
struct run_watch_options {
    const char *coordinator, *job; /* coordinator: HOST:PORT */
    const char *secret;            /* NULL: none */
    const char *store;             /* server.store: the observer follows the coordinator; NULL: none */
    bool reports;       /* print the members that the job waits for, within 2 s and then every 10 s,
                                    * until the job begins */
    bool has_snapshots; /* print snapshots that fail */
};
struct run_watch;
struct run_watch *run_watch_start(const struct run_watch_options *options);
/* "rank 1" or "shard 0", as run_process.name; "": none was lost. */
void run_watch_first_lost(struct run_watch *watch, char out[24]);
uint32_t run_watch_survived_count(struct run_watch *watch); /* losses after which the job continued */
bool run_watch_is_settled(struct run_watch *watch); /* a loss was reported, or the connection has ended */
/* The job has lost the worker with this pid. `name`, as in run_watch_first_lost, distinguishes processes of
 * different hosts; may be NULL. */
bool run_watch_has_lost_worker(struct run_watch *watch, uint64_t pid, const char *name);
void run_watch_free(struct run_watch *watch);

#endif
