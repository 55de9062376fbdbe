/* run_job.h - state of one `weft run`, and its steps: options, start, supervision, end. */
#ifndef WEFT_TOOLS_RUN_RUN_JOB_H
#define WEFT_TOOLS_RUN_RUN_JOB_H

#include "server/server.h"
#include "tools/run/run.h"

#define RUN_GRACE_NS WEFT_SECONDS(2) /* limit to end without a signal, after a failure or the last worker */

/* Options of the command line and of the configuration. */
struct run_job {
    uint64_t workers, shards, engines; /* engines 0: not given */
    uint32_t copies;                   /* server.copies; 0: a lost shard ends the job, or rolls it back */
    bool rollback;                     /* server.rollback */
    uint64_t workers_min, workers_max; /* workers_min 0: none may be lost */
    uint64_t restarts;
    const char *lanes, *devices;
    bool http;
    enum run_bind bind;
};

/* Lost workers. */
struct run_losses {
    uint64_t workers_lost, restarted;
    uint64_t restarted_lost; /* number of workers_lost that had been restarted */
    struct run_process *last_lost;
    /* until then the coordinator must report a survived loss for each worker of workers_lost; WEFT_NEVER: all
     * are */
    uint64_t loss_deadline_ns;
};

/* How the job ends. */
struct run_end {
    /* the first process seen to fail; at the end, the one that the coordinator reports as lost first */
    struct run_process *first_failed;
    uint64_t term_at_ns, kill_at_ns; /* when to send SIGTERM, and SIGKILL; WEFT_NEVER: not yet */
    int interrupted_by;              /* the first signal received that ends the job; 0: none */
    /* shards_signalled: no worker was left, so the shards received SIGTERM */
    bool workers_done, shards_signalled;
};

struct run {
    struct weft_env *env;
    struct run_job options;
    bool has_snapshots; /* snapshot.folder */
    char *store;        /* owned; server.store: the job outlives shard 0, which coordinates; NULL: none */
    struct run_losses losses;
    struct run_core *cores; /* (core_count,); NULL without --bind */
    uint32_t core_count;
    char job[WEFT_LIMIT_NAME_BYTES + 1];
    char log_dir[RUN_PATH_BYTES - 64];
    bool exposed;                                /* print rank 0's report of client.exposed_report */
    char exposed_directory[RUN_PATH_BYTES + 40]; /* WEFT_CLIENT_EXPOSED_REPORT=... for the workers, or "" */
    char recorder[RUN_PATH_BYTES + 32];          /* WEFT_RECORDER_DIRECTORY=... for the workers, or "" */
    char **trainer;
    struct run_scratch scratch;
    char coordinator[300];
    struct run_process *processes; /* shards, then workers */
    uint32_t process_count;
    int signal_fd;

    /* NULL with shards, and with a launcher except on rank 0 */
    struct weft_coordinator_thread *own_coordinator;
    bool launched; /* by mpirun, torchrun or srun: one worker here, the others under their own `weft run` */
    struct weft_launcher launcher;
    char *secret; /* with a launcher: the secret of the user; NULL: none */

    struct run_watch *watch;
    struct run_end end;
};

/* run_options.c. -1: continue; otherwise the exit status. */
int run_parse(struct run *run, int argc, char **argv);

/* run_start.c. False: a sentence is on stderr, or the log of a process has it. */
bool run_start_all(struct run *run);
bool run_start_worker(struct run *run, uint32_t rank);

/* run.c */
bool run_read_signals(struct run *run); /* returns whether a signal has ended the job */
void run_reap(struct run *run);         /* records all processes that have ended */

/* ---- run_losses.c ---- */
/* Returns whether the job continues without this process, and counts the loss of a worker. */
bool run_can_lose(struct run *run, struct run_process *process);
void run_check_losses(struct run *run, uint64_t now_ns);
void run_restart_lost(struct run *run, uint64_t now_ns);
bool run_has_restarts(const struct run *run); /* a lost worker will start again */
uint32_t run_count_lost_running(const struct run *run);
struct run_process *run_find_unfinished(const struct run *run);

/* ---- run_end.c ---- */
uint32_t run_count_running(const struct run *run, bool workers_only);
/* Acts on the clock and on the ends of processes: restarts, SIGTERM, SIGKILL. */
void run_decide(struct run *run);
/* Prints why the job ended, and returns the exit status. started: all processes were started. */
int run_conclude(struct run *run, bool started);
/* Copies the report of rank 0 to standard output, if --exposed requests it. */
void run_print_exposed_report(const struct run *run);

#endif
