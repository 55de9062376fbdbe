/* net_v11.h - NCCL's network plugin table, version 11: NCCL 2.28 and 2.29.
 *
 * One context per communicator: init creates it, finalize ends it. NCCL resolves the symbol
 * ncclNetPlugin_v11. */
#ifndef WEFT_NCCL_ABI_NET_V11_H
#define WEFT_NCCL_ABI_NET_V11_H

#include "nccl/abi/types.h"

struct nccl_config_v11 {
    int traffic_class; /* NCCL_TRAFFIC_CLASS_NONE: not set */
};

/* physical devices of a virtual one */
struct nccl_devices_v11 {
    int count;
    int devices[4];
};

struct nccl_properties_v11 {
    char *name;
    char *pci_path; /* NULL: not on a PCI bus */
    uint64_t guid;
    int pointers; /* enum nccl_pointer, or-ed */
    int reg_is_global;
    int force_flush;
    int speed; /* Mbit/s */
    int port;
    float latency; /* us */
    int max_comms;
    int max_recvs; /* receives of one group */
    int device_type;
    int device_version;
    struct nccl_devices_v11 members;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_multi_request;
};
NCCL_ASSERT_BYTES(nccl_properties_v11, 112);
NCCL_ASSERT_AT(nccl_properties_v11, name, 0);
NCCL_ASSERT_AT(nccl_properties_v11, pci_path, 8);
NCCL_ASSERT_AT(nccl_properties_v11, guid, 16);
NCCL_ASSERT_AT(nccl_properties_v11, pointers, 24);
NCCL_ASSERT_AT(nccl_properties_v11, reg_is_global, 28);
NCCL_ASSERT_AT(nccl_properties_v11, force_flush, 32);
NCCL_ASSERT_AT(nccl_properties_v11, speed, 36);
NCCL_ASSERT_AT(nccl_properties_v11, port, 40);
NCCL_ASSERT_AT(nccl_properties_v11, latency, 44);
NCCL_ASSERT_AT(nccl_properties_v11, max_comms, 48);
NCCL_ASSERT_AT(nccl_properties_v11, max_recvs, 52);
NCCL_ASSERT_AT(nccl_properties_v11, device_type, 56);
NCCL_ASSERT_AT(nccl_properties_v11, device_version, 60);
NCCL_ASSERT_AT(nccl_properties_v11, members, 64);
NCCL_ASSERT_AT(nccl_properties_v11, max_p2p_bytes, 88);
NCCL_ASSERT_AT(nccl_properties_v11, max_coll_bytes, 96);
NCCL_ASSERT_AT(nccl_properties_v11, max_multi_request, 104);

struct nccl_net_v11 {
    const char *name;
    enum nccl_result (*init)(void **context_out, uint64_t comm_id, struct nccl_config_v11 *config,
                             nccl_logger_fn logger, nccl_profiler_fn profiler);
    enum nccl_result (*devices)(int *count_out);
    enum nccl_result (*get_properties)(int device, struct nccl_properties_v11 *properties_out);
    enum nccl_result (*listen)(void *context, int device, void *handle_out, void **listener_out);
    enum nccl_result (*connect)(void *context, int device, void *handle, void **send_comm_out,
                                struct nccl_device_handle **device_handle_out);
    enum nccl_result (*accept)(void *listener, void **recv_comm_out,
                               struct nccl_device_handle **device_handle_out);
    enum nccl_result (*reg_mr)(void *comm, void *data, size_t bytes, int pointer, void **memory_out);
    /* may be NULL */
    enum nccl_result (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset,
                                      int fd, void **memory_out);
    enum nccl_result (*dereg_mr)(void *comm, void *memory);
    enum nccl_result (*isend)(void *comm, void *data, size_t bytes, int tag, void *memory, void *parent,
                              void **request_out);
    enum nccl_result (*irecv)(void *comm, int count, void **data, size_t *bytes, int *tags, void **memories,
                              void **parents, void **request_out);
    enum nccl_result (*iflush)(void *comm, int count, void **data, int *bytes, void **memories,
                               void **request_out);
    enum nccl_result (*test)(void *request, int *is_done_out, int *bytes_out);
    enum nccl_result (*close_send)(void *comm);
    enum nccl_result (*close_recv)(void *comm);
    enum nccl_result (*close_listen)(void *listener);
    enum nccl_result (*get_device_mr)(void *comm, void *memory, void **device_memory_out); /* may be NULL */
    enum nccl_result (*irecv_consumed)(void *comm, int count, void *request); /* may be NULL */
    /* may be NULL */
    enum nccl_result (*make_virtual_device)(int *device_out, struct nccl_devices_v11 *devices);
    enum nccl_result (*finalize)(void *context); /* also after an init that failed, with its context */
    enum nccl_result (*set_attributes)(void *context, void *attributes); /* may be NULL */
};
NCCL_ASSERT_BYTES(nccl_net_v11, 176);
NCCL_ASSERT_AT(nccl_net_v11, init, 8);
NCCL_ASSERT_AT(nccl_net_v11, connect, 40);
NCCL_ASSERT_AT(nccl_net_v11, isend, 80);
NCCL_ASSERT_AT(nccl_net_v11, irecv, 88);
NCCL_ASSERT_AT(nccl_net_v11, test, 104);
NCCL_ASSERT_AT(nccl_net_v11, close_listen, 128);
NCCL_ASSERT_AT(nccl_net_v11, irecv_consumed, 144);
NCCL_ASSERT_AT(nccl_net_v11, make_virtual_device, 152);
NCCL_ASSERT_AT(nccl_net_v11, finalize, 160);
NCCL_ASSERT_AT(nccl_net_v11, set_attributes, 168);

#endif
