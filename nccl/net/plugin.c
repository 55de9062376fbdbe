/* plugin.c - the network plugin "weft" for NCCL, version 12 of the table. */
#include "nccl/net/net.h"

static enum nccl_result init(void **context_out, uint64_t comm_id, struct nccl_config_v12 *config,
                             nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    /* NCCL's ids are hashes; 0 is the context of a process with an older table, which has no finalize */
    *context_out = NULL;
    enum nccl_result result = net_process_init(logger);
    if (result != NCCL_RESULT_SUCCESS) return result;
    struct net_context *context;
    result = net_context_create(comm_id != 0, &context);
    if (result == NCCL_RESULT_SUCCESS) *context_out = context;
    return result;
}

static enum nccl_result devices(int *count_out)
{
    *count_out = net_process() ? net_process()->device_count : 0;
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result close_comm(void *comm)
{
    if (!comm) return net_report(WEFT_ERR_STATE, "close without a connection");
    net_comm_close(comm);
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result finalize(void *context)
{
    net_context_free(context);
    return NCCL_RESULT_SUCCESS;
}

NCCL_EXPORT const struct nccl_net_v12 ncclNetPlugin_v12 = {.name = NCCL_PLUGIN_NAME,
                                                           .init = init,
                                                           .devices = devices,
                                                           .get_properties = net_device_properties,
                                                           .listen = net_listen,
                                                           .connect = net_connect,
                                                           .accept = net_accept,
                                                           .reg_mr = net_reg_mr,
                                                           .reg_mr_dmabuf = net_reg_mr_dmabuf,
                                                           .dereg_mr = net_dereg_mr,
                                                           .isend = net_isend,
                                                           .irecv = net_irecv,
                                                           .iflush = net_iflush,
                                                           .test = net_test,
                                                           .close_send = close_comm,
                                                           .close_recv = close_comm,
                                                           .close_listen = net_close_listen,
                                                           .finalize = finalize};
