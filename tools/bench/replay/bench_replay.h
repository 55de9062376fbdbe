/* bench_replay.h - `weft bench replay`: the calls of a job that was recorded, with other data. */
#ifndef WEFT_TOOLS_BENCH_REPLAY_BENCH_REPLAY_H
#define WEFT_TOOLS_BENCH_REPLAY_BENCH_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

struct bench_replay {
    const char *path;   /* a directory of flight records, one of each rank, or a file that all ranks follow */
    uint32_t processes; /* -n; 0: take part in the job of the environment */
    bool has_processes; /* -n was given */
    uint32_t repeat;
    bool gaps, json; /* gaps: computing between the calls is slept through as long as it took */
};

/* -1: continue; otherwise the exit status. argv[0] is "replay". */
int bench_replay_parse(struct bench_replay *replay, int argc, char **argv);
/* How many ranks the record at this path is of; 0: it cannot be read, said on stderr. */
uint32_t bench_replay_ranks(const char *path);
/* One rank of it. The exit status. */
int bench_replay_run(const struct bench_replay *replay);

#endif
