/* ucx_register.c - registers user memory with UCX's devices before its first use. UCX's registration cache
 * finds the range for sends and receives. Lanes without a device need no registration. */
#include "transport/ucx/ucx.h"

ucs_memory_type_t ucx_memory_type(enum weft_memory_kind kind)
{
    if (kind == WEFT_MEMORY_CUDA) return UCS_MEMORY_TYPE_CUDA;
    return weft_memory_is_device(kind) ? UCS_MEMORY_TYPE_UNKNOWN : UCS_MEMORY_TYPE_HOST;
}

bool ucx_reaches_device(const struct ucx_endpoint *endpoint, enum weft_memory_kind kind)
{
    const ucs_memory_type_t type = ucx_memory_type(kind);
    return type != UCS_MEMORY_TYPE_UNKNOWN && (endpoint->memory_types & UCS_BIT(type)) != 0;
}

enum weft_status ucx_memory_register(struct weft_transport *transport, void *address, size_t bytes,
                                     void **registered_out, struct weft_error *error)
{
    struct ucx_endpoint *endpoint = transport->backend;
    if (!endpoint->settings.verbs) return WEFT_OK;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = address,
        .length = bytes,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucp_mem_h memory;
    ucs_status_t ucs = ucp_mem_map(endpoint->context, &params, &memory);
    if (ucs != UCS_OK)
        return weft_error_set(error, ucs == UCS_ERR_NO_MEMORY ? WEFT_ERR_NO_MEMORY : WEFT_ERR_LIMIT,
                              "UCX cannot register %zu bytes: %s; see ulimit -l", bytes,
                              ucs_status_string(ucs));
    *registered_out = memory;
    return WEFT_OK;
}

void ucx_memory_unregister(struct weft_transport *transport, void *kept)
{
    struct ucx_endpoint *endpoint = transport->backend;
    (void)ucp_mem_unmap(endpoint->context, kept);
}
