/* net_v8.h - NCCL's network plugin table, version 8: NCCL 2.20 to 2.23.
 *
 * Sizes of messages are int; one context per process; no configuration. NCCL resolves the symbol
 * ncclNetPlugin_v8. */
#ifndef WEFT_NCCL_ABI_NET_V8_H
#define WEFT_NCCL_ABI_NET_V8_H

#include "nccl/abi/types.h"

struct nccl_properties_v8 {
    char *name;
    char *pci_path; /* NULL: not on a PCI bus */
    uint64_t guid;
    int pointers; /* enum nccl_pointer, or-ed */
    int reg_is_global;
    int speed; /* Mbit/s */
    int port;
    float latency; /* us */
    int max_comms;
    int max_recvs; /* receives of one group */
    int device_type;
    int device_version;
};
NCCL_ASSERT_BYTES(nccl_properties_v8, 64);
NCCL_ASSERT_AT(nccl_properties_v8, name, 0);
NCCL_ASSERT_AT(nccl_properties_v8, pci_path, 8);
NCCL_ASSERT_AT(nccl_properties_v8, guid, 16);
NCCL_ASSERT_AT(nccl_properties_v8, pointers, 24);
NCCL_ASSERT_AT(nccl_properties_v8, reg_is_global, 28);
NCCL_ASSERT_AT(nccl_properties_v8, speed, 32);
NCCL_ASSERT_AT(nccl_properties_v8, port, 36);
NCCL_ASSERT_AT(nccl_properties_v8, latency, 40);
NCCL_ASSERT_AT(nccl_properties_v8, max_comms, 44);
NCCL_ASSERT_AT(nccl_properties_v8, max_recvs, 48);
NCCL_ASSERT_AT(nccl_properties_v8, device_type, 52);
NCCL_ASSERT_AT(nccl_properties_v8, device_version, 56);

struct nccl_net_v8 {
    const char *name;
    enum nccl_result (*init)(nccl_logger_fn logger);
    enum nccl_result (*devices)(int *count_out);
    enum nccl_result (*get_properties)(int device, struct nccl_properties_v8 *properties_out);
    enum nccl_result (*listen)(int device, void *handle_out, void **listener_out);
    enum nccl_result (*connect)(int device, void *handle, void **send_comm_out,
                                struct nccl_device_handle **device_handle_out);
    enum nccl_result (*accept)(void *listener, void **recv_comm_out,
                               struct nccl_device_handle **device_handle_out);
    enum nccl_result (*reg_mr)(void *comm, void *data, size_t bytes, int pointer, void **memory_out);
    /* may be NULL */
    enum nccl_result (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset,
                                      int fd, void **memory_out);
    enum nccl_result (*dereg_mr)(void *comm, void *memory);
    enum nccl_result (*isend)(void *comm, void *data, int bytes, int tag, void *memory, void **request_out);
    enum nccl_result (*irecv)(void *comm, int count, void **data, int *bytes, int *tags, void **memories,
                              void **request_out);
    enum nccl_result (*iflush)(void *comm, int count, void **data, int *bytes, void **memories,
                               void **request_out);
    enum nccl_result (*test)(void *request, int *is_done_out, int *bytes_out);
    enum nccl_result (*close_send)(void *comm);
    enum nccl_result (*close_recv)(void *comm);
    enum nccl_result (*close_listen)(void *listener);
    enum nccl_result (*get_device_mr)(void *comm, void *memory, void **device_memory_out); /* may be NULL */
    enum nccl_result (*irecv_consumed)(void *comm, int count, void *request); /* may be NULL */
};
NCCL_ASSERT_BYTES(nccl_net_v8, 152);
NCCL_ASSERT_AT(nccl_net_v8, init, 8);
NCCL_ASSERT_AT(nccl_net_v8, connect, 40);
NCCL_ASSERT_AT(nccl_net_v8, isend, 80);
NCCL_ASSERT_AT(nccl_net_v8, irecv, 88);
NCCL_ASSERT_AT(nccl_net_v8, test, 104);
NCCL_ASSERT_AT(nccl_net_v8, close_listen, 128);
NCCL_ASSERT_AT(nccl_net_v8, irecv_consumed, 144);

#endif
