/* run.c - `weft run`: a whole job on this host, one command.
 *
 *     secret -> shard 0 (coordinates) -> port file -> other shards, workers -> all end -> exit status 0
 *                                                                           \-> one fails: the others have
 *                                          RUN_GRACE_NS to end, then SIGTERM, then SIGKILL -> exit status 1
 *
 * Without shards the coordinator runs in this process. If mpirun, torchrun or srun starts N copies of this
 * command (base/config/launcher.h), each copy starts one worker of one job, and the copy of rank 0 runs the
 * coordinator. Every child has a log file; rank 0's standard output is also copied to ours. No process stays
 * behind: children die with this process, and their process groups are killed at the end. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/server.h"
#include "tools/commands.h"
#include "tools/run/coordinate.h"
#include "tools/run/run_job.h"

#define LEAVE_MS 5000 /* limit for processes of other hosts to disconnect from our coordinator */

/* Every signal except SIGCHLD ends the job. SIGCHLD only wakes the poll. */
bool run_read_signals(struct run *run)
{
    struct signalfd_siginfo info;
    while (read(run->signal_fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD && !run->end.interrupted_by)
            run->end.interrupted_by = (int)info.ssi_signo;
    return run->end.interrupted_by != 0;
}

void run_reap(struct run *run)
{
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < run->process_count; i++) {
            struct run_process *process = &run->processes[i];
            if (process->pid != pid || process->ended) continue;
            process->ended = true;
            process->wait_status = wait_status;
            /* this command has asked all processes to end */
            bool asked = run->end.interrupted_by || run->end.kill_at_ns != WEFT_NEVER;
            if (run_process_has_failed(process) && !run->end.first_failed && !asked &&
                !run_can_lose(run, process))
                run->end.first_failed = process;
        }
    }
}

static void join_all(struct run *run)
{
    /* Workers waiting for a restart are not counted: if none runs, the job ends without them. */
    while (run_count_running(run, false) > 0) {
        struct pollfd fds[2] = {{.fd = run->signal_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
        struct run_process *rank_0 = &run->processes[run->options.shards];
        if (run->process_count > run->options.shards) fds[1].fd = rank_0->output_fd;
        uint64_t next_ns = run->end.kill_at_ns < run->end.term_at_ns || run->end.kill_at_ns != WEFT_NEVER
                               ? run->end.kill_at_ns
                               : run->end.term_at_ns;
        if (run->losses.loss_deadline_ns < next_ns) next_ns = run->losses.loss_deadline_ns;
        uint64_t now_ns = weft_now_ns(run->env);
        if (run_has_restarts(run) && next_ns > now_ns + WEFT_MS(5)) next_ns = now_ns + WEFT_MS(5);
        int timeout_ms = next_ns == WEFT_NEVER ? -1
                         : next_ns <= now_ns   ? 10
                                               : (int)((next_ns - now_ns) / 1000000) + 1;
        poll(fds, 2, timeout_ms);
        if (fds[1].revents) run_process_copy(rank_0);
        run_read_signals(run);
        run_reap(run);
        run_decide(run);
    }
    /* The last output of rank 0. If a process that rank 0 started still holds the pipe, the rest is left. */
    if (run->process_count > run->options.shards) run_process_copy(&run->processes[run->options.shards]);
}

static int run_job(struct run *run)
{
    run->process_count = (uint32_t)(run->options.shards + run->options.workers);
    run->processes = calloc(run->process_count, sizeof *run->processes);
    if (!run->processes) {
        fprintf(stderr, "weft run: no memory for %u processes\n", run->process_count);
        return 1;
    }
    sigset_t taken, before;
    sigemptyset(&taken);
    int const signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 4; i++) sigaddset(&taken, signals[i]);
    sigprocmask(SIG_BLOCK, &taken, &before);
    run->signal_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    bool started = run->signal_fd >= 0 && run_make_directory(run->log_dir) &&
                   run_scratch_create(&run->scratch, run->job) && run_start_all(run);
    if (!started) run->end.term_at_ns = 0; /* processes that already run end now */
    join_all(run);
    /* processes that the children started */
    for (uint32_t i = 0; i < run->process_count; i++) run_process_signal(&run->processes[i], SIGKILL);
    int status = run_conclude(run, started);
    if (started) run_print_exposed_report(run);
    run_watch_free(run->watch);
    tool_coordinator_stop(run->own_coordinator, run->launched ? LEAVE_MS : 0);
    free(run->secret);
    run_scratch_remove(&run->scratch);
    if (run->signal_fd >= 0) close(run->signal_fd);
    free(run->processes);
    free(run->cores);
    free(run->store);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

int weft_run_main(int argc, char **argv)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run) return 1;
    run->env = weft_env_system();
    run->end.term_at_ns = run->end.kill_at_ns = run->losses.loss_deadline_ns = WEFT_NEVER;
    int status = run_parse(run, argc, argv);
    if (status < 0) status = run_job(run);
    free(run);
    return status;
}
