/* library.h - the functions of NCCL that weft calls, from a library that is loaded at run time.
 *
 * weft links nothing of NCCL and needs no header of it: the parts in use are declared here. A test compares
 * them with nccl.h where that is installed. Streams are cudaStream_t. A communicator is made without
 * blocking, so each call of it may answer NCCL_API_IN_PROGRESS. */
#ifndef WEFT_CLIENT_NCCL_LIBRARY_H
#define WEFT_CLIENT_NCCL_LIBRARY_H

#include <limits.h>
#include <stddef.h>

#include "base/base.h"

enum {
    NCCL_API_OK = 0,
    NCCL_API_REMOTE = 6,
    NCCL_API_IN_PROGRESS = 7,
    NCCL_API_SUM = 0,
    NCCL_API_AVG = 4,
    NCCL_API_INT8 = 0,
    NCCL_API_UINT8 = 1,
    NCCL_API_INT32 = 2,
    NCCL_API_UINT32 = 3,
    NCCL_API_INT64 = 4,
    NCCL_API_UINT64 = 5,
    NCCL_API_FLOAT16 = 6,
    NCCL_API_FLOAT32 = 7,
    NCCL_API_FLOAT64 = 8,
    NCCL_API_BFLOAT16 = 9,
    NCCL_API_VERSION_MIN = 21700, /* 2.17: non-blocking communicators with a limit of CTAs */
};

struct nccl_api_id {
    char bytes[128];
};

/* The beginning of ncclConfig_t. NCCL copies `size` bytes of it. */
struct nccl_api_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
};
#define NCCL_API_MAGIC 0xcafebeefu
#define NCCL_API_UNDEFINED INT_MIN

#define NCCL_API_CALLS(CALL)                                                                               \
    CALL(get_version, "ncclGetVersion", (int *))                                                           \
    CALL(get_unique_id, "ncclGetUniqueId", (struct nccl_api_id *))                                         \
    CALL(comm_init, "ncclCommInitRankConfig",                                                              \
         (void **, int ranks, struct nccl_api_id, int rank, struct nccl_api_config *))                     \
    CALL(comm_async_error, "ncclCommGetAsyncError", (void *comm, int *))                                   \
    CALL(comm_finalize, "ncclCommFinalize", (void *comm))                                                  \
    CALL(comm_destroy, "ncclCommDestroy", (void *comm))                                                    \
    CALL(comm_abort, "ncclCommAbort", (void *comm))                                                        \
    CALL(group_start, "ncclGroupStart", (void))                                                            \
    CALL(group_end, "ncclGroupEnd", (void))                                                                \
    CALL(reduce_scatter, "ncclReduceScatter",                                                              \
         (const void *in, void *out, size_t out_count, int dtype, int op, void *comm, void *stream))       \
    CALL(all_gather, "ncclAllGather",                                                                      \
         (const void *in, void *out, size_t in_count, int dtype, void *comm, void *stream))                \
    CALL(reduce, "ncclReduce",                                                                             \
         (const void *in, void *out, size_t count, int dtype, int op, int root, void *comm, void *stream)) \
    CALL(broadcast, "ncclBroadcast",                                                                       \
         (const void *in, void *out, size_t count, int dtype, int root, void *comm, void *stream))         \
    CALL(send, "ncclSend", (const void *in, size_t count, int dtype, int peer, void *comm, void *stream))  \
    CALL(recv, "ncclRecv", (void *out, size_t count, int dtype, int peer, void *comm, void *stream))

struct nccl_api {
#define NCCL_API_POINTER(name, symbol, arguments) int(*name) arguments;
    NCCL_API_CALLS(NCCL_API_POINTER)
#undef NCCL_API_POINTER
    const char *(*error_string)(int result);
    const char *(*last_error)(void *comm);
    int version; /* 21809 is 2.18.9 */
};

/* The functions: of the file in WEFT_NCCL if set, otherwise of the NCCL that the process has loaded,
 * otherwise of libnccl.so.2. WEFT_ERR_UNSUPPORTED, with a sentence: there is none, or one older than 2.17.
 * The first call may load it, and so reads files; its answer is kept. Any thread. */
enum weft_status nccl_api_load(const struct nccl_api **api_out, struct weft_error *error);

#endif
