/* verbs_memory.c - memory keys on every rail, and the registration cache.
 *
 * Registration costs microseconds per page, so repeated ranges (tensors) stay registered until memory is
 * short, the range is unmapped or the bound is reached; then the least recently used idle region is
 * deregistered. A stale region is not found again and is freed when its last user puts it.
 *
 * If unmaps cannot be seen (verbs_watch.h), or for memory that cannot be watched, nothing is cached: each
 * use registers. Slower, never wrong. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "transport/verbs/device/verbs_internal.h"
#include "transport/verbs/device/verbs_watch.h"

enum { REGIONS_MAX = 1024 };

struct verbs_memory {
    struct weft_env *env;
    struct verbs_rail *rails;
    uint32_t rail_count;
    uint64_t cache_bytes, clock;
    bool relaxed;
    struct verbs_watcher watcher;
    struct verbs_memory_stats stats;
    /* Guarded by the watch's lock, because unmaps mark regions. Sorted by address; regions may overlap. */
    uint32_t count;
    size_t longest; /* bytes of the longest region so far: bounds the backward search */
    struct verbs_region *regions[REGIONS_MAX];
};

static uintptr_t start_of(const struct verbs_region *region) { return (uintptr_t)region->address; }

/* ---- registration ---- */

static int device_flags(const struct verbs_memory *memory, unsigned access)
{
    int flags = 0;
    if (access & (VERBS_REMOTE_WRITE | VERBS_TARGET)) flags |= IBV_ACCESS_LOCAL_WRITE;
    if (access & VERBS_REMOTE_WRITE) flags |= IBV_ACCESS_REMOTE_WRITE;
    if (access & VERBS_REMOTE_READ) flags |= IBV_ACCESS_REMOTE_READ;
    if ((access & VERBS_RELAXED) && memory->relaxed) flags |= IBV_ACCESS_RELAXED_ORDERING;
    return flags;
}

static enum weft_status refused(const struct verbs_memory *memory, const struct verbs_rail *rail,
                                const void *address, size_t bytes, int number, struct weft_error *error)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (number == ENOMEM && limit.rlim_cur != RLIM_INFINITY) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_LIMIT,
            "%s cannot lock %zu more bytes beside the %llu registered here: this process may lock %llu KiB; "
            "raise it "
            "(ulimit -l unlimited, LimitMEMLOCK=infinity in a unit, memlock in limits.conf)",
            rail->port.device, bytes, (unsigned long long)memory->stats.registered_bytes,
            (unsigned long long)limit.rlim_cur / 1024);
    }
    enum weft_status status = number == ENOMEM                                           ? WEFT_ERR_NO_MEMORY
                              : number == EFAULT || number == EINVAL || number == EACCES ? WEFT_ERR_INVALID
                                                                                         : WEFT_ERR_IO;
    return (enum weft_status)weft_error_set(error, status, "%s cannot register %zu bytes at %p: %s",
                                            rail->port.device, bytes, address, strerror(number));
}

static void unregister(struct verbs_memory *memory, struct verbs_region *region)
{
    bool any = false;
    for (uint32_t i = 0; i < memory->rail_count; i++) {
        if (!region->handles[i]) continue;
        int failed = ibv_dereg_mr(region->handles[i]);
        if (failed) {
            weft_log(memory->env, WEFT_LOG_WARN, "transport", "%s does not let go of memory: %s",
                     memory->rails[i].port.device, strerror(failed));
        }
        region->handles[i] = NULL;
        any = true;
    }
    if (any) memory->stats.registered_bytes -= region->bytes;
}

/* descriptor < 0: ordinary memory. */
static struct ibv_mr *register_on(struct verbs_rail *rail, int descriptor, uint64_t offset,
                                  const void *address, size_t bytes, int flags)
{
    if (descriptor < 0) return ibv_reg_mr(rail->domain, (void *)(uintptr_t)address, bytes, flags);
#ifdef WEFT_HAVE_DMABUF
    return ibv_reg_dmabuf_mr(rail->domain, offset, bytes, (uintptr_t)address, descriptor, flags);
#else
    errno = EOPNOTSUPP;
    return NULL;
#endif
}

/* No descriptor is valid: only a driver without dma-bufs refuses the call itself. */
bool verbs_rail_takes_dmabuf(struct verbs_rail *rail)
{
    struct ibv_mr *handle = register_on(rail, INT_MAX, 0, NULL, 4096, 0);
    if (handle) ibv_dereg_mr(handle);
    return handle || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EPROTONOSUPPORT);
}

static enum weft_status register_all(struct verbs_memory *memory, int descriptor, uint64_t offset,
                                     const void *address, size_t bytes, unsigned access,
                                     struct verbs_region *region, struct weft_error *error)
{
    *region = (struct verbs_region){.address = address, .bytes = bytes, .access = access};
    memory->stats.registered_bytes += bytes;
    int flags = device_flags(memory, access);
    for (uint32_t i = 0; i < memory->rail_count; i++) {
        struct ibv_mr *handle = register_on(&memory->rails[i], descriptor, offset, address, bytes, flags);
        if (!handle) {
            int number = errno;
            if (i == 0) memory->stats.registered_bytes -= bytes;
            unregister(memory, region);
            if (descriptor >= 0 && (number == EOPNOTSUPP || number == ENOSYS)) {
                return (enum weft_status)weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                                        "%s or its driver takes no dma-buf",
                                                        memory->rails[i].port.device);
            }
            return refused(memory, &memory->rails[i], address, bytes, number, error);
        }
        region->handles[i] = handle;
        region->lkey[i] = handle->lkey;
        region->rkey[i] = handle->rkey;
    }
    return WEFT_OK;
}

enum weft_status verbs_memory_register(struct verbs_memory *memory, const void *address, size_t bytes,
                                       unsigned access, struct verbs_region *region, struct weft_error *error)
{
    return register_all(memory, -1, 0, address, bytes, access, region, error);
}

enum weft_status verbs_memory_register_dmabuf(struct verbs_memory *memory, int descriptor, uint64_t offset,
                                              const void *address, size_t bytes, unsigned access,
                                              struct verbs_region *region, struct weft_error *error)
{
    if (descriptor < 0)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID, "not a dma-buf descriptor: %d",
                                                descriptor);
    return register_all(memory, descriptor, offset, address, bytes, access, region, error);
}

void verbs_memory_unregister(struct verbs_memory *memory, struct verbs_region *region)
{
    unregister(memory, region);
}

/* ---- cache, with the lock held: nothing here may unmap memory ---- */

/* Index of the first region that starts behind `address`. */
static uint32_t first_region_behind(const struct verbs_memory *memory, uintptr_t address)
{
    uint32_t low = 0, high = memory->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (start_of(memory->regions[middle]) <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct verbs_region *find(const struct verbs_memory *memory, uintptr_t address, size_t bytes,
                                 unsigned access)
{
    for (uint32_t i = first_region_behind(memory, address); i > 0; i--) {
        struct verbs_region *region = memory->regions[i - 1];
        if (address - start_of(region) + bytes > memory->longest) return NULL;
        if (!region->stale && start_of(region) + region->bytes >= address + bytes &&
            (region->access & access) == access)
            return region;
    }
    return NULL;
}

static void insert(struct verbs_memory *memory, struct verbs_region *region)
{
    uint32_t at = first_region_behind(memory, start_of(region));
    memmove(&memory->regions[at + 1], &memory->regions[at], (memory->count - at) * sizeof *memory->regions);
    memory->regions[at] = region;
    memory->count++;
    if (region->bytes > memory->longest) memory->longest = region->bytes;
    memory->stats.cached_bytes += region->bytes;
}

static void region_remove(struct verbs_memory *memory, uint32_t at)
{
    memory->stats.cached_bytes -= memory->regions[at]->bytes;
    memory->count--;
    memmove(&memory->regions[at], &memory->regions[at + 1], (memory->count - at) * sizeof *memory->regions);
}

/* Removes an idle region: a stale one, else the least recently used. */
static struct verbs_region *take_idle(struct verbs_memory *memory, bool anyway)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < memory->count; i++) {
        struct verbs_region *region = memory->regions[i];
        if (region->users > 0 || (!region->stale && !anyway)) continue;
        if (best == UINT32_MAX || region->stale ||
            (!memory->regions[best]->stale && region->used < memory->regions[best]->used))
            best = i;
    }
    if (best == UINT32_MAX) return NULL;
    struct verbs_region *region = memory->regions[best];
    region_remove(memory, best);
    return region;
}

static void mark(struct verbs_memory *memory, uintptr_t start, uintptr_t end)
{
    for (uint32_t i = 0; i < memory->count; i++) {
        struct verbs_region *region = memory->regions[i];
        if (!region->stale && start_of(region) < end && start_of(region) + region->bytes > start) {
            region->stale = true;
            memory->stats.unmaps++;
        }
    }
}

static void unmapped(void *context, uintptr_t start, uintptr_t end) { mark(context, start, end); }

/* ---- cache, without the lock ---- */

/* Frees a region that is out of the table. Ranges that it overlaps are not watched any more and become
 * stale. */
static void release_memory(struct verbs_memory *memory, struct verbs_region *region)
{
    verbs_watch_release(start_of(region), start_of(region) + region->bytes);
    unregister(memory, region);
    weft_free_bytes(memory->env, region);
}

/* Frees stale regions, and idle ones until `bytes` more fit. */
static void make_room(struct verbs_memory *memory, size_t bytes, bool everything)
{
    for (;;) {
        verbs_watch_lock();
        bool full = everything || memory->count == REGIONS_MAX ||
                    memory->stats.cached_bytes + bytes > memory->cache_bytes;
        struct verbs_region *region = take_idle(memory, full);
        if (region && !region->stale) memory->stats.evictions++;
        verbs_watch_unlock();
        if (!region) return;
        release_memory(memory, region);
    }
}

static enum weft_status make(struct verbs_memory *memory, const void *address, size_t bytes, unsigned access,
                             struct verbs_region *region, struct weft_error *error)
{
    struct weft_error first = {0};
    if (register_all(memory, -1, 0, address, bytes, access, region, &first) == WEFT_OK) return WEFT_OK;
    if (first.status != WEFT_ERR_LIMIT && first.status != WEFT_ERR_NO_MEMORY) {
        return (enum weft_status)weft_error_set(error, first.status, "%s", first.text);
    }
    make_room(memory, 0, true); /* idle regions hold locked memory */
    return register_all(memory, -1, 0, address, bytes, access, region, error);
}

/* Enters the region before it is registered, so that an unmap during the registration marks it. */
static bool enter(struct verbs_memory *memory, struct verbs_region *region)
{
    bool entered = false;
    if (!memory->stats.watching || region->bytes > memory->cache_bytes) return false;
    if (!verbs_watch_range(start_of(region), start_of(region) + region->bytes)) return false;
    verbs_watch_lock();
    if (memory->count < REGIONS_MAX) {
        insert(memory, region);
        entered = true;
    }
    verbs_watch_unlock();
    return entered;
}

static void region_leave(struct verbs_memory *memory, struct verbs_region *region)
{
    verbs_watch_lock();
    for (uint32_t i = 0; i < memory->count; i++) {
        if (memory->regions[i] == region) {
            region_remove(memory, i);
            break;
        }
    }
    verbs_watch_unlock();
}

enum weft_status verbs_memory_get(struct verbs_memory *memory, const void *address, size_t bytes,
                                  unsigned access, struct verbs_region **region_out, struct weft_error *error)
{
    verbs_watch_lock();
    struct verbs_region *region = find(memory, (uintptr_t)address, bytes, access);
    if (region) {
        region->users++;
        region->used = ++memory->clock;
        memory->stats.hits++;
    }
    verbs_watch_unlock();
    *region_out = region;
    if (region) return WEFT_OK;

    memory->stats.misses++;
    make_room(memory, bytes, false);
    region = weft_alloc_zero(memory->env, sizeof *region);
    if (!region)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a registration");
    *region = (struct verbs_region){
        .address = address, .bytes = bytes, .access = access, .users = 1, .used = ++memory->clock};
    bool cached = enter(memory, region);
    struct verbs_region made;
    enum weft_status status = make(memory, address, bytes, access, &made, error);
    if (status < 0) {
        if (cached) {
            region_leave(memory, region);
            verbs_watch_release(start_of(region), start_of(region) + region->bytes);
        }
        weft_free_bytes(memory->env, region);
        return status;
    }
    memcpy(region->handles, made.handles, sizeof made.handles);
    memcpy(region->lkey, made.lkey, sizeof made.lkey);
    memcpy(region->rkey, made.rkey, sizeof made.rkey);
    region->cached = cached;
    *region_out = region;
    return WEFT_OK;
}

void verbs_memory_put(struct verbs_memory *memory, struct verbs_region *region)
{
    if (!region->cached) {
        unregister(memory, region);
        weft_free_bytes(memory->env, region);
        return;
    }
    verbs_watch_lock();
    WEFT_ASSERT(region->users > 0);
    bool last = --region->users == 0 && region->stale;
    verbs_watch_unlock();
    if (!last) return;
    region_leave(memory, region);
    release_memory(memory, region);
}

void verbs_memory_forget(struct verbs_memory *memory, const void *address, size_t bytes)
{
    verbs_watch_lock();
    mark(memory, (uintptr_t)address, (uintptr_t)address + bytes);
    verbs_watch_unlock();
    make_room(memory, 0, false);
}

/* ---- life ---- */

enum weft_status verbs_memory_open(struct weft_env *env, struct verbs_rail *rails, uint32_t rail_count,
                                   struct verbs_memory **out, struct weft_error *error)
{
    WEFT_ASSERT(rail_count > 0 && rail_count <= VERBS_RAILS_MAX);
    struct verbs_memory *memory = weft_alloc_zero(env, sizeof *memory);
    if (!memory)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY,
                                                "no memory for the registration cache");
    memory->env = env;
    memory->rails = rails;
    memory->rail_count = rail_count;
    memory->cache_bytes = rails[0].options.cache_bytes;
    /* drivers without support ignore it */
    memory->relaxed = rails[0].options.relaxed_ordering != VERBS_OFF;
    memory->watcher = (struct verbs_watcher){.unmapped = unmapped, .context = memory};
    struct weft_error why = {0};
    if (memory->cache_bytes == 0) snprintf(why.text, sizeof why.text, "the cache is switched off");
    else memory->stats.watching = verbs_watch_join(&memory->watcher, &why) == WEFT_OK;
    if (!memory->stats.watching) {
        snprintf(memory->stats.why_not, sizeof memory->stats.why_not, "%.150s", why.text);
        if (memory->cache_bytes > 0)
            weft_log(env, WEFT_LOG_INFO, "transport", "memory is registered for each use: %s", why.text);
    }
    *out = memory;
    return WEFT_OK;
}

void verbs_memory_close(struct verbs_memory *memory)
{
    if (!memory) return;
    if (memory->stats.watching) {
        make_room(memory, 0, true);
        WEFT_ASSERT(memory->count == 0); /* every region was put */
        verbs_watch_leave(&memory->watcher);
    }
    weft_free_bytes(memory->env, memory);
}

void verbs_memory_stats(const struct verbs_memory *memory, struct verbs_memory_stats *stats_out)
{
    verbs_watch_lock();
    *stats_out = memory->stats;
    stats_out->region_count = memory->count;
    verbs_watch_unlock();
}
