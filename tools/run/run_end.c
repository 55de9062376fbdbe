/* run_end.c - how a job ends: signals to processes that do not end, reports, and the exit status. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "server/server.h"
#include "tools/run/run_job.h"

/* limit for the coordinator's loss report after all processes have ended */
#define LOSS_REPORT_NS WEFT_MS(300)
#define TERMINATE_NS WEFT_SECONDS(2) /* from SIGTERM to SIGKILL */
#define TAIL_LINES 8

uint32_t run_count_running(const struct run *run, bool workers_only)
{
    uint32_t count = 0;
    for (uint32_t i = workers_only ? (uint32_t)run->options.shards : 0; i < run->process_count; i++)
        count += run->processes[i].pid > 0 && !run->processes[i].ended;
    return count;
}

static void signal_all(struct run *run, int signal_number)
{
    for (uint32_t i = 0; i < run->process_count; i++)
        if (!run->processes[i].ended) run_process_signal(&run->processes[i], signal_number);
}

/* A shard exits with an error when a worker is lost. If that worker exited with 0, the other workers decide
 * the status. */
static void ignore_shard_failure(struct run *run)
{
    bool shard = run->end.first_failed && run->end.first_failed < &run->processes[run->options.shards];
    if (!shard || !run_find_unfinished(run)) return;
    run->end.first_failed = NULL;
    if (run->end.kill_at_ns == WEFT_NEVER) run->end.term_at_ns = WEFT_NEVER;
}

/* If all workers exited with 0, the status is 0 although a shard exited with an error, as in a job without
 * shards. */
static void ignore_shard_exit(struct run *run)
{
    struct run_process *shard = run->end.first_failed;
    char state[80];
    if (!shard || shard >= &run->processes[run->options.shards] || !WIFEXITED(shard->wait_status)) return;
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++)
        if (!run->processes[i].ended || run_process_has_failed(&run->processes[i])) return;
    run_process_describe(shard, state, sizeof state);
    fprintf(stderr, "weft run: %s %s, and all workers ended with status 0 (%s)\n", shard->name, state,
            shard->log_path);
    run->end.first_failed = NULL;
}

void run_decide(struct run *run)
{
    uint64_t now_ns = weft_now_ns(run->env);
    ignore_shard_failure(run);
    run_check_losses(run, now_ns);
    run_restart_lost(run, now_ns);
    bool failed = run->end.first_failed != NULL,
         workers_done = run_count_running(run, true) <= run_count_lost_running(run);
    if (run->end.term_at_ns == WEFT_NEVER && (failed || workers_done))
        run->end.term_at_ns = now_ns + RUN_GRACE_NS;
    if (run->end.interrupted_by && run->end.kill_at_ns == WEFT_NEVER) run->end.term_at_ns = now_ns;
    if (workers_done && !failed && run->end.term_at_ns <= now_ns) run->end.shards_signalled = true;
    if (run->end.term_at_ns <= now_ns && run->end.kill_at_ns == WEFT_NEVER) {
        signal_all(run, SIGTERM);
        run->end.kill_at_ns = now_ns + TERMINATE_NS;
    }
    if (run->end.kill_at_ns <= now_ns) signal_all(run, SIGKILL);
}

static void correct_first_failed(struct run *run)
{
    char lost[24];
    run_watch_first_lost(run->watch, lost);
    for (uint32_t i = 0; run->end.first_failed && i < run->process_count; i++)
        if (run_process_has_failed(&run->processes[i]) && strcmp(run->processes[i].name, lost) == 0)
            run->end.first_failed = &run->processes[i];
}

static void report_failure(struct run *run)
{
    char how[100];
    const struct run_process *failed = run->end.first_failed;
    run_process_describe(failed, how, sizeof how);
    fprintf(stderr, "weft run: %s (pid %d) %s; the end of %s:\n", failed->name, (int)failed->pid, how,
            failed->log_path);
    run_process_print_tail(failed, TAIL_LINES);
    for (uint32_t i = 0; i < run->process_count; i++) {
        const struct run_process *process = &run->processes[i];
        if (process == failed || process->pid == 0 || !run_process_has_failed(process)) continue;
        run_process_describe(process, how, sizeof how);
        fprintf(stderr, "weft run: after it %s %s (%s)\n", process->name, how, process->log_path);
    }
}

static bool has_ended_in_order(const struct run *run)
{
    return run->own_coordinator && weft_coordinator_thread_ended_in_order(run->own_coordinator);
}

/* Waits up to LOSS_REPORT_NS for a report of a loss: all processes may exit before it arrives. */
static void await_loss_report(struct run *run)
{
    const uint64_t until_ns = weft_now_ns(run->env) + LOSS_REPORT_NS;
    if (!run->end.first_failed && !run->own_coordinator) return;
    while (!run_watch_is_settled(run->watch) && !has_ended_in_order(run) && weft_now_ns(run->env) < until_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* If all workers succeed but the shards do not end, the workers never joined the job: a success with a
 * remark. */
int run_conclude(struct run *run, bool started)
{
    if (run->end.interrupted_by) {
        fprintf(stderr, "weft run: ended by %s\n",
                run->end.interrupted_by == SIGINT    ? "SIGINT"
                : run->end.interrupted_by == SIGTERM ? "SIGTERM"
                                                     : "SIGHUP");
        return 1;
    }
    await_loss_report(run);
    ignore_shard_failure(run);
    correct_first_failed(run);
    ignore_shard_exit(run);
    const struct run_process *unfinished = run_find_unfinished(run);
    if (unfinished)
        fprintf(stderr,
                "weft run: %s (pid %d) ended without weft_finalize: the job lost it; call weft_finalize "
                "before the process ends (%s)\n",
                unfinished->name, (int)unfinished->pid, unfinished->log_path);
    if (run->end.first_failed) report_failure(run);
    if (!started || run->end.first_failed) return 1;
    for (uint32_t i = 0; i < run->process_count; i++) {
        int error = run->processes[i].output_error;
        if (!error || error == EPIPE) continue; /* the reader of our output has closed the pipe */
        fprintf(stderr, "weft run: cannot write all of %s's output: %s\n", run->processes[i].name,
                strerror(error));
        return 1;
    }
    if (run->end.shards_signalled && run->options.shards > 0 && !unfinished)
        fprintf(stderr,
                "weft run: the workers ended without leaving the job; the shards received SIGTERM (does %s "
                "call weft_init and weft_finalize?)\n",
                run->trainer[0]);
    return 0;
}

/* Copies rank 0's report to standard output. With a launcher rank 0 may be on another host. */
void run_print_exposed_report(const struct run *run)
{
    char path[RUN_PATH_BYTES + 40], block[4096];
    size_t bytes;
    if (!run->exposed || (run->launched && run->launcher.rank != 0)) return;
    snprintf(path, sizeof path, "%s/exposed-rank0.txt", run->log_dir);
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "weft run: --exposed: there is no report %s: %s (does %s call weft_finalize?)\n",
                path, strerror(errno), run->trainer[0]);
        return;
    }
    while ((bytes = fread(block, 1, sizeof block, file)) > 0) fwrite(block, 1, bytes, stdout);
    fclose(file);
    fflush(stdout);
}
