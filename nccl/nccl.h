/* nccl.h - public header of the nccl module: NCCL's plugin tables, as libnccl-net-weft.so exports them.
 *
 * The module serves NCCL and has no functions for other modules. Tests include these declarations to open
 * plugins as NCCL does. */
#ifndef WEFT_NCCL_H
#define WEFT_NCCL_H

#include "nccl/abi/coll_v10.h"
#include "nccl/abi/coll_v11.h"
#include "nccl/abi/coll_v12.h"
#include "nccl/abi/coll_v8.h"
#include "nccl/abi/net_v10.h"
#include "nccl/abi/net_v11.h"
#include "nccl/abi/net_v12.h"
#include "nccl/abi/net_v8.h"
#include "nccl/abi/profiler_v4.h"
#include "nccl/abi/profiler_v5.h"
#include "nccl/abi/types.h"

#endif
