/* coll_plugin.c - the CollNet table "weft", version 12. Its devices are those of the network table. */
#include "nccl/collnet/coll_tables.h"

#include "nccl/collnet/coll.h"

static enum nccl_result init(void **context_out, uint64_t comm_id, nccl_logger_fn logger)
{
    return ncclNetPlugin_v12.init(context_out, comm_id, NULL, logger, NULL);
}

static enum nccl_result devices(int *count_out)
{
    return ncclNetPlugin_v12.devices(count_out);
}

/* The CPU computes the sums, so the buffers must be in host memory. */
static enum nccl_result get_properties(int device, struct nccl_properties_v12 *out)
{
    enum nccl_result result = net_device_properties(device, out);
    if (result == NCCL_RESULT_SUCCESS) out->pointers = NCCL_POINTER_HOST;
    return result;
}

/* Host memory needs no flush: NULL is a request that is complete. */
static enum nccl_result iflush(void *comm, void *data, int bytes, void *memory, void **request_out)
{
    *request_out = NULL;
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result finalize(void *context)
{
    return ncclNetPlugin_v12.finalize(context);
}

NCCL_EXPORT const struct nccl_coll_v12 ncclCollNetPlugin_v12 = {.name = NCCL_PLUGIN_NAME,
                                                                .init = init,
                                                                .devices = devices,
                                                                .get_properties = get_properties,
                                                                .listen = net_listen,
                                                                .connect = coll_connect,
                                                                .reduce_support = coll_reduce_support,
                                                                .reg_mr = coll_reg_mr,
                                                                .dereg_mr = coll_dereg_mr,
                                                                .iallreduce = coll_iallreduce,
                                                                .iflush = iflush,
                                                                .test = coll_test,
                                                                .close_coll = coll_close,
                                                                .close_listen = net_close_listen,
                                                                .finalize = finalize};
