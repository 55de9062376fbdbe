/* profiler_v4.h - NCCL's profiler plugin table, version 4: NCCL 2.27. Its events are those of version 5 with
 * an 8-bit type. */
#ifndef WEFT_NCCL_ABI_PROFILER_V4_H
#define WEFT_NCCL_ABI_PROFILER_V4_H

#include "nccl/abi/profiler_v5.h"

struct nccl_profile_event_v4 {
    uint8_t type; /* enum nccl_profile; the bytes behind it are not set */
    void *parent;
    int rank;
    union {
        struct {
            uint64_t sequence;
            const char *name;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *dtype;
            uint8_t channels, warps;
            const char *algorithm, *protocol;
        } collective;
        struct {
            const char *name;
            void *buffer;
            const char *dtype;
            size_t count;
            int peer;
            uint8_t channels;
        } p2p;
        struct nccl_profile_proxy_op proxy_op;
        int proxy_step;
        struct nccl_profile_kernel kernel;
    };
};
NCCL_ASSERT_BYTES(nccl_profile_event_v4, 104);
NCCL_ASSERT_AT(nccl_profile_event_v4, parent, 8);
NCCL_ASSERT_AT(nccl_profile_event_v4, rank, 16);
NCCL_ASSERT_AT(nccl_profile_event_v4, collective.protocol, 96);
NCCL_ASSERT_AT(nccl_profile_event_v4, p2p.channels, 60);

struct nccl_profiler_v4 {
    const char *name;
    enum nccl_result (*init)(void **context_out, int *mask_out, const char *comm_name, uint64_t comm_id,
                             int nodes, int ranks, int rank, nccl_logger_fn logger);
    enum nccl_result (*start_event)(void *context, void **event_out, struct nccl_profile_event_v4 *event);
    enum nccl_result (*stop_event)(void *event);
    enum nccl_result (*record_state)(void *event, int state, union nccl_profile_update *update);
    enum nccl_result (*finalize)(void *context);
};
NCCL_ASSERT_BYTES(nccl_profiler_v4, 48);

#endif
