/* nccl_numbers.c - the compiler compares client/nccl/library.h with an installed nccl.h. */
#include <nccl.h>

#include "client/nccl/library.h"

#define SAME_AT(ours, theirs)                                                                                \
    _Static_assert(offsetof(struct nccl_api_config, ours) == offsetof(ncclConfig_t, theirs), #theirs)
#define SAME(ours, theirs) _Static_assert((int)NCCL_API_##ours == (int)theirs, #theirs)

SAME_AT(size, size);
SAME_AT(magic, magic);
SAME_AT(version, version);
SAME_AT(blocking, blocking);
SAME_AT(cga_cluster_size, cgaClusterSize);
SAME_AT(min_ctas, minCTAs);
SAME_AT(max_ctas, maxCTAs);
_Static_assert(sizeof(struct nccl_api_config) <= sizeof(ncclConfig_t), "a prefix");
_Static_assert(sizeof(struct nccl_api_id) == sizeof(ncclUniqueId), "id");
SAME(UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(OK, ncclSuccess);
SAME(REMOTE, ncclRemoteError);
SAME(IN_PROGRESS, ncclInProgress);
SAME(SUM, ncclSum);
SAME(AVG, ncclAvg);
SAME(INT8, ncclInt8);
SAME(UINT8, ncclUint8);
SAME(INT32, ncclInt32);
SAME(UINT32, ncclUint32);
SAME(INT64, ncclInt64);
SAME(UINT64, ncclUint64);
SAME(FLOAT16, ncclFloat16);
SAME(FLOAT32, ncclFloat32);
SAME(FLOAT64, ncclFloat64);
SAME(BFLOAT16, ncclBfloat16);
_Static_assert((NCCL_VERSION(2, 17, 0)) == NCCL_API_VERSION_MIN, "version code");
