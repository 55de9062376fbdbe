/* coll_v8.h - NCCL's CollNet plugin table, version 8: NCCL 2.20 to 2.23. NCCL resolves the symbol
 * ncclCollNetPlugin_v8. connect may block; NCCL calls iallreduce in the same order on all ranks. */
#ifndef WEFT_NCCL_ABI_COLL_V8_H
#define WEFT_NCCL_ABI_COLL_V8_H

#include "nccl/abi/net_v8.h"

struct nccl_coll_v8 {
    const char *name;
    enum nccl_result (*init)(nccl_logger_fn logger);
    enum nccl_result (*devices)(int *count_out);
    enum nccl_result (*get_properties)(int device, struct nccl_properties_v8 *properties_out);
    enum nccl_result (*listen)(int device, void *handle_out, void **listener_out);
    enum nccl_result (*connect)(void *handles[], int ranks, int rank, void *listener, void **comm_out);
    enum nccl_result (*reduce_support)(int dtype, int op, int *is_supported_out);
    enum nccl_result (*reg_mr)(void *comm, void *data, size_t bytes, int pointer, void **memory_out);
    /* may be NULL */
    enum nccl_result (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset,
                                      int fd, void **memory_out);
    enum nccl_result (*dereg_mr)(void *comm, void *memory);
    enum nccl_result (*iallreduce)(void *comm, void *in, void *out, int count, int dtype, int op,
                                   void *in_memory, void *out_memory, void **request_out);
    void *iallgather; /* NULL: not offered */
    void *ireducescatter; /* NULL: not offered */
    enum nccl_result (*iflush)(void *comm, void *data, int bytes, void *memory, void **request_out);
    enum nccl_result (*test)(void *request, int *is_done_out, int *bytes_out);
    enum nccl_result (*close_coll)(void *comm);
    enum nccl_result (*close_listen)(void *listener);
};
NCCL_ASSERT_BYTES(nccl_coll_v8, 136);
NCCL_ASSERT_AT(nccl_coll_v8, connect, 40);
NCCL_ASSERT_AT(nccl_coll_v8, iallreduce, 80);
NCCL_ASSERT_AT(nccl_coll_v8, test, 112);
NCCL_ASSERT_AT(nccl_coll_v8, close_listen, 128);

#endif
