/* bench_snapshot.h - `weft bench snapshot`: the time that snapshots of the shards add to the steps. */
#ifndef WEFT_TOOLS_BENCH_SNAPSHOT_BENCH_SNAPSHOT_H
#define WEFT_TOOLS_BENCH_SNAPSHOT_BENCH_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

struct bench_snapshot {
    uint32_t processes; /* -n; 0: take part in the job of the environment */
    uint32_t shards, tensors, steps, snapshots, pause_ms;
    uint64_t bytes;
    const char *codec, *folder; /* folder NULL: a temporary one */
    bool json;
    char temporary[64]; /* "": none */
};

/* -1: continue; otherwise the exit status. argv[0] is "snapshot". */
int bench_snapshot_parse(struct bench_snapshot *options, int argc, char **argv);
/* Before the job is started: the folder, and the options of the shards in the environment. */
bool bench_snapshot_prepare(struct bench_snapshot *options);
void bench_snapshot_clean(const struct bench_snapshot *options); /* removes a temporary folder */
/* Measures one rank. Returns the exit status. */
int bench_snapshot_run(const struct bench_snapshot *options);

#endif
