/* older_tables.c - the tables of versions 8, 10 and 11 as calls of version 12.
 *
 *     NCCL --> ncclNetPlugin_v8, _v10, _v11 --> ncclNetPlugin_v12 of the plugin that links this file
 *
 * Versions 8 and 10 have one context per process: the first init creates it, and it lives as long as the
 * process, because these versions have no finalize. The plugins of the tests link this file too; its
 * macro NCCL_PLUGIN_NAME is the name of the network. */
#include <limits.h>
#include <pthread.h>

#include "nccl/net/tables.h"

#define CORE ncclNetPlugin_v12

/* ---- equal in all versions ---- */

static enum nccl_result devices(int *count_out)
{
    return CORE.devices(count_out);
}

static enum nccl_result accept_comm(void *listener, void **comm_out, struct nccl_device_handle **handle_out)
{
    return CORE.accept(listener, comm_out, handle_out);
}

static enum nccl_result reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out)
{
    return CORE.reg_mr(comm, data, bytes, pointer, memory_out);
}

static enum nccl_result reg_mr_dmabuf(void *comm, void *data, size_t bytes, int pointer, uint64_t offset,
                                      int fd, void **memory_out)
{
    if (!CORE.reg_mr_dmabuf) return NCCL_RESULT_INTERNAL;
    return CORE.reg_mr_dmabuf(comm, data, bytes, pointer, offset, fd, memory_out);
}

static enum nccl_result dereg_mr(void *comm, void *memory)
{
    return CORE.dereg_mr(comm, memory);
}

static enum nccl_result iflush(void *comm, int count, void **data, int *bytes, void **memories,
                               void **request_out)
{
    return CORE.iflush(comm, count, data, bytes, memories, request_out);
}

static enum nccl_result test(void *request, int *is_done_out, int *bytes_out)
{
    return CORE.test(request, is_done_out, bytes_out);
}

static enum nccl_result close_send(void *comm)
{
    return CORE.close_send(comm);
}
static enum nccl_result close_recv(void *comm)
{
    return CORE.close_recv(comm);
}
static enum nccl_result close_listen(void *listener)
{
    return CORE.close_listen(listener);
}

/* ---- from version 10 on ---- */

static enum nccl_result isend(void *comm, void *data, size_t bytes, int tag, void *memory, void *parent,
                              void **request_out)
{
    return CORE.isend(comm, data, bytes, tag, memory, parent, request_out);
}

static enum nccl_result irecv(void *comm, int count, void **data, size_t *bytes, int *tags, void **memories,
                              void **parents, void **request_out)
{
    return CORE.irecv(comm, count, data, bytes, tags, memories, parents, request_out);
}

/* ---- version 11 ---- */

/* The members that all versions have, from `newer`. */
#define SHARED_PROPERTIES(newer)                                                                            \
    .name = (newer).name, .pci_path = (newer).pci_path, .guid = (newer).guid, .pointers = (newer).pointers, \
    .reg_is_global = (newer).reg_is_global, .speed = (newer).speed, .port = (newer).port,                   \
    .latency = (newer).latency, .max_comms = (newer).max_comms, .max_recvs = (newer).max_recvs,             \
    .device_type = (newer).device_type, .device_version = (newer).device_version

static enum nccl_result init_v11(void **context_out, uint64_t comm_id, struct nccl_config_v11 *config,
                                 nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    struct nccl_config_v12 newer = {config ? config->traffic_class : NCCL_TRAFFIC_CLASS_NONE};
    return CORE.init(context_out, comm_id, &newer, logger, profiler);
}

static enum nccl_result get_properties_v11(int device, struct nccl_properties_v11 *out)
{
    struct nccl_properties_v12 newer;
    enum nccl_result result = CORE.get_properties(device, &newer);
    if (result != NCCL_RESULT_SUCCESS) return result;
    *out = (struct nccl_properties_v11){SHARED_PROPERTIES(newer),
                                        .force_flush = newer.force_flush,
                                        .members = {1, {newer.members.devices[0]}},
                                        .max_p2p_bytes = newer.max_p2p_bytes,
                                        .max_coll_bytes = newer.max_coll_bytes,
                                        .max_multi_request = newer.max_multi_request};
    return result;
}

static enum nccl_result listen_v11(void *context, int device, void *handle_out, void **listener_out)
{
    return CORE.listen(context, device, handle_out, listener_out);
}

static enum nccl_result connect_v11(void *context, int device, void *handle, void **comm_out,
                                    struct nccl_device_handle **handle_out)
{
    return CORE.connect(context, device, handle, comm_out, handle_out);
}

static enum nccl_result finalize(void *context)
{
    return CORE.finalize(context);
}

/* ---- versions 10 and 8: one context ---- */

static pthread_mutex_t once_lock = PTHREAD_MUTEX_INITIALIZER;
static void *process_context; /* guarded by once_lock until set; never freed */

static enum nccl_result init_once(nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    struct nccl_config_v12 config = {NCCL_TRAFFIC_CLASS_NONE};
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    pthread_mutex_lock(&once_lock);
    if (!process_context) result = CORE.init(&process_context, 0, &config, logger, profiler);
    if (result != NCCL_RESULT_SUCCESS) {
        CORE.finalize(process_context);
        process_context = NULL;
    }
    pthread_mutex_unlock(&once_lock);
    return result;
}

static enum nccl_result init_v10(nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    return init_once(logger, profiler);
}

static enum nccl_result init_v8(nccl_logger_fn logger)
{
    return init_once(logger, NULL);
}

static enum nccl_result get_properties_v10(int device, struct nccl_properties_v10 *out)
{
    struct nccl_properties_v11 newer;
    enum nccl_result result = get_properties_v11(device, &newer);
    if (result != NCCL_RESULT_SUCCESS) return result;
    *out = (struct nccl_properties_v10){SHARED_PROPERTIES(newer), .force_flush = newer.force_flush,
                                        .members = {1, {newer.members.devices[0]}},
                                        .max_p2p_bytes = newer.max_p2p_bytes,
                                        .max_coll_bytes = newer.max_coll_bytes};
    return result;
}

static enum nccl_result get_properties_v8(int device, struct nccl_properties_v8 *out)
{
    struct nccl_properties_v11 newer;
    enum nccl_result result = get_properties_v11(device, &newer);
    if (result != NCCL_RESULT_SUCCESS) return result;
    *out = (struct nccl_properties_v8){SHARED_PROPERTIES(newer)};
    return result;
}

static enum nccl_result listen_once(int device, void *handle_out, void **listener_out)
{
    return CORE.listen(process_context, device, handle_out, listener_out);
}

static enum nccl_result connect_v10(int device, struct nccl_config_v10 *config, void *handle, void **comm_out,
                                    struct nccl_device_handle **handle_out)
{
    return CORE.connect(process_context, device, handle, comm_out, handle_out);
}

static enum nccl_result connect_v8(int device, void *handle, void **comm_out,
                                   struct nccl_device_handle **handle_out)
{
    return CORE.connect(process_context, device, handle, comm_out, handle_out);
}

static enum nccl_result isend_v8(void *comm, void *data, int bytes, int tag, void *memory, void **request_out)
{
    return bytes < 0 ? NCCL_RESULT_ARGUMENT
                     : CORE.isend(comm, data, (size_t)bytes, tag, memory, NULL, request_out);
}

static enum nccl_result irecv_v8(void *comm, int count, void **data, int *bytes, int *tags, void **memories,
                                 void **request_out)
{
    size_t wide[NCCL_RECVS_LIMIT];
    if (count < 1 || count > NCCL_RECVS_LIMIT) return NCCL_RESULT_INTERNAL;
    for (int i = 0; i < count; i++) {
        if (bytes[i] < 0) return NCCL_RESULT_ARGUMENT;
        wide[i] = (size_t)bytes[i];
    }
    return CORE.irecv(comm, count, data, wide, tags, memories, NULL, request_out);
}

NCCL_EXPORT const struct nccl_net_v11 ncclNetPlugin_v11 = {NCCL_PLUGIN_NAME,
                                                           init_v11,
                                                           devices,
                                                           get_properties_v11,
                                                           listen_v11,
                                                           connect_v11,
                                                           accept_comm,
                                                           reg_mr,
                                                           reg_mr_dmabuf,
                                                           dereg_mr,
                                                           isend,
                                                           irecv,
                                                           iflush,
                                                           test,
                                                           close_send,
                                                           close_recv,
                                                           close_listen,
                                                           NULL,
                                                           NULL,
                                                           NULL,
                                                           finalize,
                                                           NULL};

NCCL_EXPORT const struct nccl_net_v10 ncclNetPlugin_v10 = {NCCL_PLUGIN_NAME,
                                                           init_v10,
                                                           devices,
                                                           get_properties_v10,
                                                           listen_once,
                                                           connect_v10,
                                                           accept_comm,
                                                           reg_mr,
                                                           reg_mr_dmabuf,
                                                           dereg_mr,
                                                           isend,
                                                           irecv,
                                                           iflush,
                                                           test,
                                                           close_send,
                                                           close_recv,
                                                           close_listen,
                                                           NULL,
                                                           NULL,
                                                           NULL};

NCCL_EXPORT const struct nccl_net_v8 ncclNetPlugin_v8 = {NCCL_PLUGIN_NAME,
                                                         init_v8,
                                                         devices,
                                                         get_properties_v8,
                                                         listen_once,
                                                         connect_v8,
                                                         accept_comm,
                                                         reg_mr,
                                                         reg_mr_dmabuf,
                                                         dereg_mr,
                                                         isend_v8,
                                                         irecv_v8,
                                                         iflush,
                                                         test,
                                                         close_send,
                                                         close_recv,
                                                         close_listen,
                                                         NULL,
                                                         NULL};
