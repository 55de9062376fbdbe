/* run.h - inside `weft run`: the processes of one job on this host.
 *
 *   run.c          the command line and the order of things
 *   run_launcher.c whether mpirun, torchrun or srun started this command
 *   run_bind.c     which processors each worker may run on (run_bind.h)
 *   run_process.c  one child: started with its log file, killed with its process group, described
 *   run_watch.c    listens to the coordinator: who was lost first
 *   run_scratch.c  directories, the secret, the port file */
#ifndef WEFT_TOOLS_RUN_RUN_H
#define WEFT_TOOLS_RUN_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/config/launcher.h"
#include "tools/run/run_bind.h"

#define RUN_PATH_BYTES 4096

struct run_process {
    char name[24];              /* "rank 0", "shard 1" */
    char log_path[RUN_PATH_BYTES];
    pid_t pid;                  /* 0: not started */
    bool ended;
    bool should_restart;                 /* lost, and to be started again */
    bool was_restarted;            /* it was started again */
    uint64_t lost_at_ns;        /* when it was reaped, lost */
    int wait_status;            /* of waitpid, once ended */
    int output_fd;              /* read end of its standard output when that is copied; -1 */
    int output_error;           /* the first errno of copying it; 0: all is written */
    int log_fd;                 /* for the copy; -1 */
    const char *hint;           /* what it could not do, when it never ran */
};

/* Fork and exec argv (found by PATH) with standard output and error in process->log_path; `copy_output`:
 * standard output through a pipe that run_process_copy empties. `environment`: NAME=VALUE strings,
 * NULL-terminated, on top of ours. `cpus`: where it may run; NULL: where we may. The child dies with us.
 * false: a sentence is on stderr. */
bool run_process_start(struct run_process *process, char *const argv[], const char *const environment[],
                       const struct run_cpus *cpus, bool copy_output);
/* Its pipe is readable (or closed): to the log and to our standard output. */
void run_process_copy(struct run_process *process);
/* Copy no more. */
void run_process_close(struct run_process *process);
/* To the child and everything it started. */
void run_process_signal(const struct run_process *process, int signal_number);
bool run_process_has_failed(const struct run_process *process);
/* "exited with status 3", "was killed by signal 9 (Killed)", "still runs". */
void run_process_describe(const struct run_process *process, char *out, size_t out_bytes);
/* The last lines of its log on stderr, indented. */
void run_process_print_tail(const struct run_process *process, int lines);

/* -1: continue, as one process of *launcher, or with a job of its own if launcher->name is NULL. Else the
 * exit status; the reason is on stderr. `workers` 0: not given. */
int run_find_launcher(uint64_t workers, uint64_t shards, struct weft_launcher *launcher);

struct run_scratch {
    char directory[RUN_PATH_BYTES]; /* 0700; removed at the end */
    char secret_path[RUN_PATH_BYTES + 16], port_path[RUN_PATH_BYTES + 16];
    char secret[65];                /* 32 random bytes in hexadecimal */
};
bool run_scratch_create(struct run_scratch *scratch, const char *job);
void run_scratch_remove(struct run_scratch *scratch);
/* The line NAME=VALUE of the port file; false while there is none. */
bool run_scratch_read_port(const struct run_scratch *scratch, const char *name, char *out, size_t out_bytes);
/* mkdir -p. */
bool run_make_directory(const char *path);
/* The file beside this program, "/usr/bin/weftd" for /usr/bin/weft. */
bool run_find_sibling(const char *name, char out[RUN_PATH_BYTES]);

/* An observer of the job, on its own thread. Who is lost first is the coordinator's to say: the order in
 * which processes are seen to end is an accident. NULL: it could not be started, and the order must do.
 * reports: prints which members a job waits for that has not begun, within 2 s and then every 10 s. */
struct run_watch;
struct run_watch *run_watch_start(const char *coordinator, const char *job, const char *secret, bool reports);
/* "rank 1", "shard 0" as process names are, or "" while nobody was lost. */
void run_watch_first_lost(struct run_watch *watch, char out[24]);
uint32_t run_watch_survived_count(struct run_watch *watch); /* losses with which the job goes on */
bool run_watch_is_settled(struct run_watch *watch); /* a loss was reported, or the connection has ended */
/* Returns whether the job has lost the worker with that pid. `name`, as in run_watch_first_lost, is needed
 * for processes of other hosts; may be NULL. */
bool run_watch_has_lost_worker(struct run_watch *watch, uint64_t pid, const char *name);
void run_watch_free(struct run_watch *watch);

#endif
