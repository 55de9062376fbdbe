/* profiler.h - the symbols that NCCL resolves in a profiler plugin. */
#ifndef WEFT_NCCL_PROFILER_PROFILER_H
#define WEFT_NCCL_PROFILER_PROFILER_H

#include "nccl/nccl.h"

extern const struct nccl_profiler_v5 ncclProfiler_v5;
extern const struct nccl_profiler_v4 ncclProfiler_v4;

#endif
