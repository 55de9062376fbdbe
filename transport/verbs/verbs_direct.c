/* verbs_direct.c - memory that the processor does not access: the devices move payloads in it at every size.
 *
 *   send      announced at every size; written from the registered range, never inline
 *   receive   the peer announces every payload (weft_peer_announce_all) and writes into the granted range
 *
 * An operation holds the registration that it found, so ranges may overlap and end in any order. One that has
 * ended is found no longer and is deregistered when its last operation has completed. */
#include <errno.h>
#include <unistd.h>

#include "transport/verbs/verbs_endpoint.h"

enum { DIRECT_ACCESS = VERBS_REMOTE_WRITE | VERBS_TARGET | VERBS_RELAXED };

struct direct {
    struct weft_list link; /* in endpoint->directs until it ends */
    struct verbs_region region;
};

/* Modules of NVIDIA's driver that register device memory by its address. */
static const char *const peer_memory_modules[] = {"/sys/module/nvidia_peermem/version",
                                                  "/sys/kernel/mm/memory_peers/nv_mem/version",
                                                  "/sys/kernel/mm/memory_peers/nv_mem_nc/version"};

static bool has_peer_memory(void)
{
    for (size_t i = 0; i < sizeof peer_memory_modules / sizeof *peer_memory_modules; i++)
        if (access(peer_memory_modules[i], F_OK) == 0) return true;
    return false;
}

unsigned verbs_direct_kinds(struct weft_transport *transport)
{
    struct verbs_endpoint *endpoint = transport->backend;
    bool takes_dmabuf = true;
    if (!endpoint->tuning.direct) return 0;
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        takes_dmabuf &= verbs_rail_takes_dmabuf(&endpoint->rails[i]);
    return (takes_dmabuf ? WEFT_DIRECT_DMABUF : 0u) | (has_peer_memory() ? WEFT_DIRECT_POINTER : 0u);
}

enum weft_status verbs_direct_pin(struct weft_transport *transport, const struct weft_direct_memory *memory,
                                  void **registered_out, struct weft_error *error)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct direct *direct = weft_alloc_zero(transport->env, sizeof *direct);
    if (!direct) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a registration");
    enum weft_status status =
        memory->descriptor >= 0 ? verbs_memory_register_dmabuf(endpoint->memory, memory->descriptor,
                                                               memory->offset, memory->address, memory->bytes,
                                                               DIRECT_ACCESS, &direct->region, error)
                                : verbs_memory_register(endpoint->memory, memory->address, memory->bytes,
                                                        DIRECT_ACCESS, &direct->region, error);
    if (status < 0) {
        weft_free_bytes(transport->env, direct);
        return status;
    }
    direct->region.is_direct = true;
    weft_list_append(&endpoint->directs, &direct->link);
    *registered_out = direct;
    return WEFT_OK;
}

static void direct_free(struct verbs_endpoint *endpoint, struct direct *direct)
{
    verbs_memory_unregister(endpoint->memory, &direct->region);
    weft_free_bytes(endpoint->transport->env, direct);
}

void verbs_direct_unpin(struct weft_transport *transport, void *kept)
{
    struct direct *direct = kept;
    weft_list_remove(&direct->link);
    direct->region.stale = true;
    if (direct->region.users == 0) direct_free(transport->backend, direct);
}

struct verbs_region *verbs_direct_get(struct verbs_endpoint *endpoint, const void *address, size_t bytes)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->directs) {
        struct verbs_region *region = &weft_container_of(node, struct direct, link)->region;
        const uintptr_t offset = (uintptr_t)address - (uintptr_t)region->address;
        if (offset > region->bytes || bytes > region->bytes - offset) continue;
        region->users++;
        return region;
    }
    return NULL;
}

bool verbs_is_direct(struct verbs_endpoint *endpoint, const void *address, size_t bytes)
{
    struct verbs_region *region = bytes > 0 ? verbs_direct_get(endpoint, address, bytes) : NULL;
    if (region) verbs_region_put(endpoint, region);
    return region != NULL;
}

void verbs_region_put(struct verbs_endpoint *endpoint, struct verbs_region *region)
{
    if (!region->is_direct) {
        verbs_memory_put(endpoint->memory, region);
        return;
    }
    WEFT_ASSERT(region->users > 0);
    if (--region->users == 0 && region->stale)
        direct_free(endpoint, weft_container_of(region, struct direct, region));
}
