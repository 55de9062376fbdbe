/* profiler_v5.h - NCCL's profiler plugin table, version 5: NCCL 2.28 and later. NCCL resolves the symbol
 * ncclProfiler_v5 in the library of NCCL_PROFILER_PLUGIN, else in that of the network plugin. */
#ifndef WEFT_NCCL_ABI_PROFILER_V5_H
#define WEFT_NCCL_ABI_PROFILER_V5_H

#include <sys/types.h>

#include "nccl/abi/types.h"

/* Bits of the activation mask, and types of events. */
enum nccl_profile {
    NCCL_PROFILE_COLLECTIVE = 2,
    NCCL_PROFILE_P2P = 4,
    NCCL_PROFILE_PROXY_OP = 8,
    NCCL_PROFILE_PROXY_STEP = 16,
    NCCL_PROFILE_KERNEL = 64, /* one channel of a kernel */
};

/* ncclProfilerEventState_t: those that are read. */
enum nccl_profile_state {
    NCCL_STATE_SEND_GPU_WAIT = 8, /* a send step waits for the GPU's data */
    NCCL_STATE_SEND_WAIT = 9,     /* ... for the network */
    NCCL_STATE_RECV_WAIT = 10,    /* a receive step waits for the network */
    NCCL_STATE_RECV_FLUSH_WAIT = 11,
    NCCL_STATE_RECV_GPU_WAIT = 12,  /* ... for the GPU to read the data */
    NCCL_STATE_SEND_PEER_WAIT = 20, /* a send step waits for the receiver */
    NCCL_STATE_KERNEL_STOP = 22,
};

struct nccl_profile_collective {
    uint64_t sequence;
    const char *name; /* "AllReduce" */
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
    void *group;
};

struct nccl_profile_p2p {
    const char *name; /* "Send", "Recv" */
    void *buffer;
    const char *dtype;
    size_t count;
    int peer;
    uint8_t channels;
    void *group;
};

struct nccl_profile_proxy_op {
    pid_t pid; /* process that the operation belongs to: not this one if the proxy serves a neighbour */
    uint8_t channel;
    int peer, steps, chunk_bytes, is_send;
};

struct nccl_profile_kernel {
    uint8_t channel;
    uint64_t timer_ns; /* of the GPU */
};

/* Version 4 has an 8-bit type in the same place, and no `group`. */
struct nccl_profile_event {
    uint64_t type; /* enum nccl_profile */
    void *parent;  /* what start_event returned for the parent */
    int rank;
    union {
        struct nccl_profile_collective collective;
        struct nccl_profile_p2p p2p;
        struct nccl_profile_proxy_op proxy_op;
        int proxy_step;
        struct nccl_profile_kernel kernel;
    };
};
NCCL_ASSERT_BYTES(nccl_profile_event, 112);
NCCL_ASSERT_AT(nccl_profile_event, parent, 8);
NCCL_ASSERT_AT(nccl_profile_event, rank, 16);
NCCL_ASSERT_AT(nccl_profile_event, collective.sequence, 24);
NCCL_ASSERT_AT(nccl_profile_event, collective.count, 56);
NCCL_ASSERT_AT(nccl_profile_event, collective.dtype, 72);
NCCL_ASSERT_AT(nccl_profile_event, collective.channels, 80);
NCCL_ASSERT_AT(nccl_profile_event, collective.algorithm, 88);
NCCL_ASSERT_AT(nccl_profile_event, collective.protocol, 96);
NCCL_ASSERT_AT(nccl_profile_event, p2p.dtype, 40);
NCCL_ASSERT_AT(nccl_profile_event, p2p.peer, 56);
NCCL_ASSERT_AT(nccl_profile_event, proxy_op.channel, 28);
NCCL_ASSERT_AT(nccl_profile_event, proxy_op.peer, 32);
NCCL_ASSERT_AT(nccl_profile_event, proxy_op.is_send, 44);
NCCL_ASSERT_AT(nccl_profile_event, kernel.timer_ns, 32);

union nccl_profile_update {
    size_t step_bytes; /* of a proxy step */
    uint64_t timer_ns; /* of a kernel's channel */
};

struct nccl_profiler_v5 {
    const char *name;
    enum nccl_result (*init)(void **context_out, uint64_t comm_id, int *mask_out, const char *comm_name,
                             int nodes, int ranks, int rank, nccl_logger_fn logger);
    enum nccl_result (*start_event)(void *context, void **event_out, struct nccl_profile_event *event);
    enum nccl_result (*stop_event)(void *event);
    enum nccl_result (*record_state)(void *event, int state, union nccl_profile_update *update);
    enum nccl_result (*finalize)(void *context);
};
NCCL_ASSERT_BYTES(nccl_profiler_v5, 48);

#endif
