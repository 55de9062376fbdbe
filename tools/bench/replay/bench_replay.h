/* bench_replay.h - `weft bench replay`: the calls of a recorded job, with other data. */
#ifndef WEFT_TOOLS_BENCH_REPLAY_BENCH_REPLAY_H
#define WEFT_TOOLS_BENCH_REPLAY_BENCH_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

struct bench_replay {
    /* a directory with a flight record of each rank, or one file that all ranks follow */
    const char *path;
    uint32_t processes; /* -n; 0: take part in the job of the environment */
    bool has_processes; /* -n was given */
    uint32_t repeat;
    bool gaps, json; /* gaps: sleep between calls as long as the job computed */
};

/* -1: continue; otherwise the exit status. argv[0] is "replay". */
int bench_replay_parse(struct bench_replay *replay, int argc, char **argv);
/* Number of ranks of the record at this path; 0: it cannot be read, and a sentence is on stderr. */
uint32_t bench_replay_ranks(const char *path);
/* Replays one rank. Returns the exit status. */
int bench_replay_run(const struct bench_replay *replay);

#endif
