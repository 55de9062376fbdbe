/* chunk_runs.h - checks and expands the runs of a Declared. Internal to proto; the writer's side is in
 * proto.h. */
#ifndef WEFT_PROTO_CHUNK_RUNS_H
#define WEFT_PROTO_CHUNK_RUNS_H

#include <stdbool.h>

#include "proto/control.pb-c.h"

bool chunk_run_is_valid(const Weft__Control__ChunkRun *run);
/* Replaces valid runs by declared->chunks. false: no memory; free_unpacked frees what was made. */
bool chunk_runs_expand(ProtobufCAllocator *allocator, Weft__Control__Declared *declared);

#endif
