/* coll_older_tables.c - CollNet's versions 8, 10 and 11 as calls of version 12.
 *
 * Versions 8 and 10 have one context per process, that of the network table, which NCCL has begun before. */
#include "nccl/collnet/coll.h"
#include "nccl/collnet/coll_tables.h"

static enum nccl_result init_v11(void **context_out, uint64_t comm_id, nccl_logger_fn logger)
{
    return ncclNetPlugin_v11.init(context_out, comm_id, NULL, logger, NULL);
}

static enum nccl_result init_once(nccl_logger_fn logger)
{
    return ncclNetPlugin_v8.init(logger);
}
static enum nccl_result devices(int *count_out)
{
    return ncclNetPlugin_v11.devices(count_out);
}

static enum nccl_result get_properties_v11(int device, struct nccl_properties_v11 *out)
{
    return ncclNetPlugin_v11.get_properties(device, out);
}

static enum nccl_result get_properties_v10(int device, struct nccl_properties_v10 *out)
{
    return ncclNetPlugin_v10.get_properties(device, out);
}

static enum nccl_result get_properties_v8(int device, struct nccl_properties_v8 *out)
{
    return ncclNetPlugin_v8.get_properties(device, out);
}

static enum nccl_result listen_once(int device, void *handle_out, void **listener_out)
{
    return ncclNetPlugin_v8.listen(device, handle_out, listener_out);
}

static enum nccl_result iallreduce_v8(void *comm, void *in, void *out, int count, int dtype, int op,
                                      void *in_memory, void *out_memory, void **request_out)
{
    return count < 0
               ? NCCL_RESULT_ARGUMENT
               : coll_iallreduce(comm, in, out, (size_t)count, dtype, op, in_memory, out_memory, request_out);
}

static enum nccl_result iflush(void *comm, void *data, int bytes, void *memory, void **request_out)
{
    return ncclCollNetPlugin_v12.iflush(comm, data, bytes, memory, request_out);
}

static enum nccl_result finalize(void *context)
{
    return ncclNetPlugin_v11.finalize(context);
}

#define SHARED                                                                               \
    .name = NCCL_PLUGIN_NAME, .devices = devices, .connect = coll_connect,                   \
    .reduce_support = coll_reduce_support, .reg_mr = coll_reg_mr, .dereg_mr = coll_dereg_mr, \
    .iflush = iflush, .test = coll_test, .close_coll = coll_close, .close_listen = net_close_listen

NCCL_EXPORT const struct nccl_coll_v11 ncclCollNetPlugin_v11 = {SHARED,
                                                                .init = init_v11,
                                                                .get_properties = get_properties_v11,
                                                                .listen = net_listen,
                                                                .iallreduce = coll_iallreduce,
                                                                .finalize = finalize};
NCCL_EXPORT const struct nccl_coll_v10 ncclCollNetPlugin_v10 = {
    SHARED, .init = init_once, .get_properties = get_properties_v10, .listen = listen_once,
    .iallreduce = coll_iallreduce};
NCCL_EXPORT const struct nccl_coll_v8 ncclCollNetPlugin_v8 = {
    SHARED, .init = init_once, .get_properties = get_properties_v8, .listen = listen_once,
    .iallreduce = iallreduce_v8};
