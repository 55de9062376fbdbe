/* failover.h - `weft bench failover`: shards with copies are killed or stopped at random moments.
 *
 *   failover.c       options; a job for each kill; percentiles over the jobs
 *   failover_rank.c  one rank: steps with whole numbers, whose results are checked
 *   failover_kill.c  the shard to kill, and the thread that kills it
 *
 * Each job loses one shard. */
#ifndef WEFT_TOOLS_BENCH_FAILOVER_FAILOVER_H
#define WEFT_TOOLS_BENCH_FAILOVER_FAILOVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct failover_options {
    uint32_t processes, shards; /* processes 0: take part in the job of the environment */
    uint32_t kills;             /* jobs, of which each loses a shard */
    uint32_t how;               /* index into failover_ways */
    uint64_t bytes;             /* of each of the two tensors */
    uint32_t steps;             /* before the kill, and as many after it */
    uint64_t seed;
    bool json;
};

enum { FAILOVER_KILL, FAILOVER_STOP };
extern const char *const failover_ways[]; /* "kill", "stop", NULL */

/* -1: continue; otherwise the exit status. argv[0] is "failover". */
int failover_options_parse(struct failover_options *options, int argc, char **argv);
/* Starts a job for each kill, and prints. Returns the exit status. */
int failover_run_jobs(const struct failover_options *options, int argc, char **argv);
/* Takes part in the job of the environment, which loses one shard; rank 0 prints. Returns the exit status. */
int failover_run_rank(const struct failover_options *options);

/* What one job has measured. Times in ms; a step ends when all ranks have ended it. */
struct failover_result {
    uint32_t workers, shards, shard; /* shard: the lost one */
    double step_ms;                  /* median of the steps before the kill */
    double next_ms;                  /* from the kill to the end of the next step */
    double extra_ms;                 /* longest step after the kill, less step_ms */
    uint64_t steps, wrong;           /* wrong: elements, of all ranks and steps */
};
void failover_print_heading(const struct failover_options *options, const struct failover_result *result);

struct failover_kill {
    uint32_t shards, shard; /* shard: its index */
    pid_t pid;
    int signal;
    double delay_us;
    double killed_us; /* clock of bench_now_us; 0: not yet */
    pthread_t thread;
};
/* Chooses a shard on this host, other than that of the coordinator. False: the sentence is on stderr. */
bool failover_kill_choose(struct failover_kill *kill, const struct failover_options *options);
/* Sends the signal after delay_us, on a thread of its own. */
bool failover_kill_start(struct failover_kill *kill);
/* Waits until the signal is sent. */
void failover_kill_wait(struct failover_kill *kill);
/* Ends a stopped shard. */
void failover_kill_end(const struct failover_kill *kill);

#endif
