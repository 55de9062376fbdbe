/* types.h - types and constants shared by all versions of NCCL's network plugin tables.
 *
 * No package installs these declarations. They are written from the published layouts; each struct asserts
 * its size and offsets, and tests/nccl/test_abi.c compares the result codes with an installed nccl.h.
 * Integers named int here are int in NCCL's ABI. */
#ifndef WEFT_NCCL_ABI_TYPES_H
#define WEFT_NCCL_ABI_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* ncclResult_t */
enum nccl_result {
    NCCL_RESULT_SUCCESS = 0,
    NCCL_RESULT_CUDA = 1,
    NCCL_RESULT_SYSTEM = 2,     /* the network or the operating system failed */
    NCCL_RESULT_INTERNAL = 3,   /* the caller broke the contract of the table */
    NCCL_RESULT_ARGUMENT = 4,
    NCCL_RESULT_USAGE = 5,      /* the ranks call differently: a message is longer than its receive */
    NCCL_RESULT_REMOTE = 6,     /* a peer is lost */
    NCCL_RESULT_IN_PROGRESS = 7,
};

enum nccl_log_level {
    NCCL_LOG_LEVEL_WARN = 2,
    NCCL_LOG_LEVEL_INFO = 3,
    NCCL_LOG_LEVEL_ABORT = 4,
    NCCL_LOG_LEVEL_TRACE = 5,
};
#define NCCL_SUBSYSTEM_INIT 0x1ul
#define NCCL_SUBSYSTEM_NET 0x10ul

/* ncclDebugLogger_t; `file` is a file or a function */
typedef void (*nccl_logger_fn)(enum nccl_log_level level, unsigned long subsystems, const char *file,
                               int line, const char *format, ...);

/* ncclProfilerCallback_t; `what`: 0 starts an event, 1 stops it, 2 updates it. May be NULL. */
typedef enum nccl_result (*nccl_profiler_fn)(void **event, int what, void *parent, int64_t plugin_id,
                                             void *data);

#define NCCL_HANDLE_BYTES 128          /* of a listener, carried to the connecting rank */
#define NCCL_REQUESTS_MAX 32           /* of one connection; times max_recvs in the sending direction */
#define NCCL_NET_BYTES_MAX ((size_t)1 << 40)
#define NCCL_RECVS_LIMIT 8             /* receives of one group that NCCL uses */
#define NCCL_DEVICE_HOST 0             /* net_device_type: no code on the GPU */
#define NCCL_TRAFFIC_CLASS_NONE (-1)
#define NCCL_OPTIONAL_COMPLETION ((void *)1) /* request before irecv: its completion is not needed */

enum nccl_pointer {
    NCCL_POINTER_HOST = 1,
    NCCL_POINTER_CUDA = 2,
    NCCL_POINTER_DMABUF = 4,
};

struct nccl_device_handle; /* of offloaded networks: never made here */

#define NCCL_ASSERT_AT(type, field, offset) \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " is not at " #offset)
#define NCCL_ASSERT_BYTES(type, bytes) \
    _Static_assert(sizeof(struct type) == (bytes), #type " is not of " #bytes " bytes")

#endif
