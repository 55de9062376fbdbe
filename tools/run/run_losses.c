/* run_losses.c - lost workers and shards: whether the job continues without them, and restarts. */
#include <stdio.h>

#include "server/server.h"
#include "tools/run/run_job.h"

/* Shard 0 coordinates; with a store another one continues, once shard 0 has begun to listen. If the chunks of
 * the lost one have no copies, the coordinator ends the job, and the workers end with an error. */
static bool can_lose_shard(struct run *run, const struct run_process *process)
{
    char how[100];
    if ((run->options.copies == 0 && !run->options.rollback) || !run->watch ||
        (process == &run->processes[0] && !run->store))
        return false;
    run_process_describe(process, how, sizeof how);
    fprintf(stderr, "weft run: %s (pid %d) %s; the job continues %s (%s)\n", process->name, (int)process->pid,
            how,
            run->options.copies > 0 ? "with the copies of its chunks" : "if it has a snapshot to restore",
            process->log_path);
    return true;
}

bool run_can_lose(struct run *run, struct run_process *process)
{
    char how[100];
    if (process < &run->processes[run->options.shards]) return can_lose_shard(run, process);
    if (!run->options.workers_min) return false;
    if (run->options.workers + run->losses.restarted - ++run->losses.workers_lost < run->options.workers_min)
        return false;
    process->should_restart = run->losses.restarted < run->options.restarts;
    process->lost_at_ns = weft_now_ns(run->env);
    run->losses.restarted_lost += process->was_restarted;
    run_process_describe(process, how, sizeof how);
    run->losses.last_lost = process;
    fprintf(stderr, "weft run: %s (pid %d) %s; the job continues without it (%s)\n", process->name,
            (int)process->pid, how, process->log_path);
    return true;
}

/* A worker that died before the job began, or failed after it had left, is not a loss that the job survives:
 * the coordinator reports none. A restarted worker may die before it has joined, without a report. */
void run_check_losses(struct run *run, uint64_t now_ns)
{
    if (run->losses.workers_lost - run->losses.restarted_lost <= run_watch_survived_count(run->watch))
        run->losses.loss_deadline_ns = WEFT_NEVER;
    else if (run->losses.loss_deadline_ns == WEFT_NEVER) run->losses.loss_deadline_ns = now_ns + RUN_GRACE_NS;
    else if (run->losses.loss_deadline_ns <= now_ns && !run->end.first_failed)
        run->end.first_failed = run->losses.last_lost;
    if (run->end.first_failed) run->losses.loss_deadline_ns = WEFT_NEVER;
}

/* Sets the present coordinator of the store. If the store names none, the former one stays, and the worker
 * waits for the next one. */
static void follow_coordinator(struct run *run)
{
    char address[256];
    if (run->store && run->options.shards > 0 &&
        weft_takeover_address(run->env, run->store, run->job, address, NULL) == WEFT_OK)
        snprintf(run->coordinator, sizeof run->coordinator, "%s", address);
}

/* Restarts lost workers once the coordinator has reported the loss: before that the job is full. The
 * coordinator reports no loss of a worker that had not joined; such a worker restarts after RUN_GRACE_NS. */
void run_restart_lost(struct run *run, uint64_t now_ns)
{
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++) {
        struct run_process *process = &run->processes[i];
        bool due = process->should_restart && !run->end.first_failed && !run->end.interrupted_by &&
                   run->losses.restarted < run->options.restarts;
        bool known = run->losses.workers_lost <= run_watch_survived_count(run->watch) ||
                     now_ns >= process->lost_at_ns + RUN_GRACE_NS;
        if (!due || !known) continue;
        run_process_copy(process);
        run_process_close(process);
        *process = (struct run_process){.output_fd = -1, .log_fd = -1, .was_restarted = true};
        run->losses.restarted++;
        follow_coordinator(run);
        if (!run_start_worker(run, i - (uint32_t)run->options.shards)) run->end.first_failed = process;
    }
}

bool run_has_restarts(const struct run *run)
{
    bool pending = false;
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++)
        pending |= run->processes[i].should_restart;
    return pending && !run->end.first_failed && run->losses.restarted < run->options.restarts;
}

static bool is_lost(const struct run *run, const struct run_process *process)
{
    return process >= &run->processes[run->options.shards] && process->pid > 0 &&
           run_watch_has_lost_worker(run->watch, (uint64_t)process->pid,
                                     run->launched ? process->name : NULL);
}

/* Number of workers that the job has lost while their processes run: stopped or cut off. The job continues
 * without them. */
uint32_t run_count_lost_running(const struct run *run)
{
    uint32_t count = 0;
    if (run_watch_survived_count(run->watch) == 0) return 0;
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++)
        count += !run->processes[i].ended && is_lost(run, &run->processes[i]);
    return count;
}

/* Finds a worker that exited with 0 without weft_finalize: the job has lost it. NULL: none. */
struct run_process *run_find_unfinished(const struct run *run)
{
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++) {
        struct run_process *process = &run->processes[i];
        if (process->ended && !run_process_has_failed(process) && is_lost(run, process)) return process;
    }
    return NULL;
}
