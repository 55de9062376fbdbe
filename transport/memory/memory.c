/* memory.c - weft_memory_alloc: the arena of this process and its ranges; memory.h has the drawing.
 *
 * The address space of the arena is reserved once. An allocated range of the file is mapped there; a free
 * range is a hole in the file and faults in this process. The ranges are one array ordered by offset,
 * first fit.
 *
 * After a fork the child shares the parent's memory but does not own it: it forgets the arena, creates its
 * own when needed, and its weft_memory_free of an inherited range does nothing. */
#include "transport/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "transport/transport.h"

enum { PAGE_BYTES = 4096, HUGE_BYTES = WEFT_MEMORY_STEP_BYTES, INHERITED_MAX = 16 };
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1: later mappings are read-only */
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; older kernels refuse it */
#endif

struct range {
    size_t at, bytes;
};

static struct {
    pthread_mutex_t mutex;
    bool tried, forks_seen;
    uint64_t id;
    int fd;
    struct range *ranges; /* allocated ranges, ordered by `at` */
    size_t count, capacity;
    struct memory_view *views;
    struct {
        uint8_t *base;
        size_t bytes;
    } inherited[INHERITED_MAX]; /* arenas of parent processes */
    uint32_t inherited_count;
    _Atomic(uint8_t *) base; /* NULL: no arena */
    _Atomic size_t bytes;
} arena = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* ---- memory files ---- */

/* ftruncate beyond ulimit -f would end the process by SIGXFSZ. */
static bool is_above_file_limit(size_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

static int file_make(const char *name, size_t bytes)
{
    if (is_above_file_limit(bytes)) return errno = EFBIG, -1;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

/* Only a file that cannot shrink is safe to map: an access beyond its end would raise SIGBUS. */
static bool file_fits(int fd, size_t bytes)
{
    struct stat facts;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &facts) == 0 && facts.st_size == (off_t)bytes;
}

/* Reserves address space at a multiple of HUGE_BYTES, so that huge pages of the file are huge in the
 * mapping. NULL: none. */
static uint8_t *reserve(size_t bytes)
{
    uint8_t *base =
        mmap(NULL, bytes + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    uint8_t *aligned = (uint8_t *)(((uintptr_t)base + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    if (aligned > base) munmap(base, (size_t)(aligned - base));
    munmap(aligned + bytes, HUGE_BYTES - (size_t)(aligned - base));
    return aligned;
}

/* Maps memory of another process, not inherited by children, which would outlive this process. */
static void *file_map(int fd, size_t bytes, bool writable)
{
    uint8_t *base = bytes >= HUGE_BYTES ? reserve(bytes) : NULL;
    void *memory = mmap(base, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                        MAP_SHARED | (base ? MAP_FIXED : 0), fd, 0);
    if (memory == MAP_FAILED) {
        if (base) munmap(base, bytes);
        return NULL;
    }
    madvise(memory, bytes, MADV_DONTFORK);
    madvise(memory, bytes, MADV_DONTDUMP);
    return memory;
}

void *memory_file_create(const char *name, size_t bytes, bool others_write, int *fd_out)
{
    int fd = file_make(name, bytes);
    if (fd < 0) return NULL;
    void *memory = file_map(fd, bytes, true);
    int reason = errno;
    if (memory && !others_write && fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL) {
        reason = errno; /* EINVAL: a kernel without that seal; peers could write */
        munmap(memory, bytes);
        memory = NULL;
    }
    if (!memory) {
        close(fd);
        errno = reason;
        return NULL;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL);
    *fd_out = fd;
    return memory;
}

void *memory_file_map(int fd, size_t bytes, bool writable)
{
    return file_fits(fd, bytes) ? file_map(fd, bytes, writable) : NULL;
}

void memory_file_unmap(void *memory, size_t bytes)
{
    if (memory) munmap(memory, bytes);
}

/* ---- the arena ---- */

static void fork_prepare(void) { pthread_mutex_lock(&arena.mutex); }
static void fork_parent(void) { pthread_mutex_unlock(&arena.mutex); }

static void fork_child(void)
{
    uint8_t *base = atomic_load(&arena.base);
    if (base && arena.inherited_count < INHERITED_MAX) {
        arena.inherited[arena.inherited_count].base = base;
        arena.inherited[arena.inherited_count++].bytes = atomic_load(&arena.bytes);
    }
    if (arena.fd >= 0) close(arena.fd);
    atomic_store(&arena.base, NULL);
    arena.fd = -1;
    arena.tried = false;
    arena.ranges = NULL; /* the parent's table and views stay allocated, unused */
    arena.views = NULL;
    arena.count = arena.capacity = 0;
    pthread_mutex_unlock(&arena.mutex);
}

/* As much address space as the machine has memory; unused until allocated. */
static size_t arena_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    size_t bytes = pages > 0 ? (size_t)pages * (size_t)sysconf(_SC_PAGESIZE) : (size_t)1 << 30;
    if (WEFT_THREAD_SANITIZER) bytes = (size_t)1 << 30; /* it needs memory for mapped address space */
    return (bytes + ((size_t)1 << 30) - 1) & ~(((size_t)1 << 30) - 1);
}

/* Called with the mutex held. */
static bool arena_make(void)
{
    if (arena.tried) return atomic_load(&arena.base) != NULL;
    arena.tried = true;
    if (!arena.forks_seen && pthread_atfork(fork_prepare, fork_parent, fork_child) != 0) return false;
    arena.forks_seen = true;
    for (size_t bytes = arena_bytes(); bytes >= (size_t)64 << 20; bytes /= 2) {
        /* limits may allow a smaller one only */
        int fd = file_make("weft-memory", bytes);
        if (fd < 0) continue;
        uint8_t *base = reserve(bytes);
        if (!base) {
            close(fd);
            continue;
        }
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL);
        arena.fd = fd;
        arena.id = weft_random_u64(weft_env_system());
        atomic_store(&arena.bytes, bytes);
        atomic_store(&arena.base, base);
        return true;
    }
    return false;
}

bool memory_arena(struct memory_arena *arena_out)
{
    pthread_mutex_lock(&arena.mutex);
    bool made = arena_make();
    *arena_out = (struct memory_arena){.id = arena.id, .bytes = atomic_load(&arena.bytes), .fd = arena.fd};
    pthread_mutex_unlock(&arena.mutex);
    return made;
}

uint64_t memory_offset(const void *address, size_t bytes)
{
    uint8_t *base = atomic_load_explicit(&arena.base, memory_order_acquire);
    size_t arena_size = atomic_load_explicit(&arena.bytes, memory_order_relaxed);
    uintptr_t at = (uintptr_t)address - (uintptr_t)base;
    if (!base || at >= arena_size || bytes > arena_size - at) return MEMORY_NO_OFFSET;
    return at;
}

/* First free place of that size: its index in the table, and its offset. */
static bool range_find(size_t bytes, size_t align, size_t *index_out, size_t *at_out)
{
    size_t at = 0;
    for (size_t i = 0; i <= arena.count; i++) {
        size_t end = i < arena.count ? arena.ranges[i].at : atomic_load(&arena.bytes);
        if (at <= end && bytes <= end - at) {
            *index_out = i;
            *at_out = at;
            return true;
        }
        if (i < arena.count) at = (arena.ranges[i].at + arena.ranges[i].bytes + align - 1) & ~(align - 1);
    }
    return false;
}

static bool ranges_grow(void)
{
    if (arena.count < arena.capacity) return true;
    size_t capacity = arena.capacity ? arena.capacity * 2 : 64;
    struct range *ranges = weft_alloc_array(weft_env_system(), capacity, sizeof *ranges);
    if (!ranges) return false;
    if (arena.count > 0) memcpy(ranges, arena.ranges, arena.count * sizeof *ranges);
    weft_free_bytes(weft_env_system(), arena.ranges);
    arena.ranges = ranges;
    arena.capacity = capacity;
    return true;
}

/* Collapses whole huge pages, whatever the system's setting for shared memory, except "deny". Touches one
 * page first, because the kernel does not collapse an empty range. If it fails, small pages are used. */
static void range_make_huge(uint8_t *memory, size_t at, size_t bytes)
{
    size_t whole = bytes & ~(size_t)(HUGE_BYTES - 1);
    for (size_t i = 0; i < whole; i += HUGE_BYTES) {
        if (fallocate(arena.fd, 0, (off_t)(at + i), PAGE_BYTES) != 0) return;
        ((volatile uint8_t *)memory)[i] = 0;
    }
    if (whole > 0) madvise(memory, whole, MADV_COLLAPSE);
}

static bool range_map(uint8_t *memory, size_t at, size_t bytes)
{
    return mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena.fd, (off_t)at) !=
           MAP_FAILED;
}

/* Allocates memory (an error instead of a signal if there is none), then fills the page tables. */
static bool range_fill(uint8_t *memory, size_t at, size_t bytes)
{
    range_make_huge(memory, at, bytes);
    while (fallocate(arena.fd, 0, (off_t)at, (off_t)bytes) != 0) {
        if (errno == EINTR) continue;
        return false;
    }
#ifdef MADV_POPULATE_WRITE
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) return true;
#endif
    for (size_t i = 0; i < bytes; i += PAGE_BYTES) ((volatile uint8_t *)memory)[i] = 0;
    return true;
}

/* Punches a hole and removes the mapping. */
static void range_empty(uint8_t *memory, size_t at, size_t bytes)
{
    mmap(memory, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
}

static void *arena_range_alloc(size_t bytes)
{
    bytes = (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
    size_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES, index = 0, at = 0;
    uint8_t *memory = NULL;
    pthread_mutex_lock(&arena.mutex);
    if (arena_make() && ranges_grow() && range_find(bytes, align, &index, &at)) {
        memmove(&arena.ranges[index + 1], &arena.ranges[index], (arena.count - index) * sizeof *arena.ranges);
        arena.ranges[index] = (struct range){at, bytes};
        arena.count++;
        memory = atomic_load(&arena.base) + at;
    }
    pthread_mutex_unlock(&arena.mutex);
    return memory; /* the range is reserved; filling it needs no lock */
}

static bool range_index(size_t at, size_t *index_out)
{
    size_t low = 0, high = arena.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (arena.ranges[middle].at < at) low = middle + 1;
        else high = middle;
    }
    *index_out = low;
    return low < arena.count && arena.ranges[low].at == at;
}

static void arena_range_free(uint8_t *memory)
{
    size_t at = (size_t)(memory - atomic_load(&arena.base)), index;
    pthread_mutex_lock(&arena.mutex);
    bool known = range_index(at, &index);
    WEFT_ASSERT(known);
    range_empty(memory, at, arena.ranges[index].bytes);
    arena.count--;
    memmove(&arena.ranges[index], &arena.ranges[index + 1], (arena.count - index) * sizeof *arena.ranges);
    pthread_mutex_unlock(&arena.mutex);
}

/* ---- public functions ---- */

enum weft_status weft_memory_alloc(struct weft_env *env, size_t bytes, void **memory_out,
                                   struct weft_error *error)
{
    if (bytes == 0) return weft_error_set(error, WEFT_ERR_INVALID, "cannot allocate 0 bytes");
    uint8_t *memory = NULL;
    /* An env with its own allocator (a simulation, a test of allocation failures) allocates by it. */
    if (env->alloc == weft_env_system()->alloc && bytes <= SIZE_MAX / 2) memory = arena_range_alloc(bytes);
    if (memory) {
        size_t whole = (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
        const size_t at = (size_t)(memory - atomic_load(&arena.base));
        if (range_map(memory, at, whole) && range_fill(memory, at, whole)) {
            *memory_out = memory;
            return WEFT_OK;
        }
        arena_range_free(memory);
    }
    memory = weft_alloc_bytes(env, bytes);
    if (!memory) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    memset(memory, 0, bytes);
    *memory_out = memory;
    return WEFT_OK;
}

enum weft_status weft_memory_reserve(struct weft_env *env, size_t bytes, void **memory_out,
                                     struct weft_error *error)
{
    if (bytes == 0) return weft_error_set(error, WEFT_ERR_INVALID, "cannot reserve 0 bytes");
    uint8_t *memory = NULL;
    if (env->alloc == weft_env_system()->alloc && bytes <= SIZE_MAX / 2) memory = arena_range_alloc(bytes);
    if (memory) {
        const size_t whole = (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
        if (range_map(memory, (size_t)(memory - atomic_load(&arena.base)), whole)) {
            *memory_out = memory;
            return WEFT_OK;
        }
        arena_range_free(memory);
    }
    memory = weft_alloc_bytes(env, bytes);
    if (!memory) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    *memory_out = memory;
    return WEFT_OK;
}

enum weft_status weft_memory_commit(void *at, size_t bytes)
{
    const uint64_t offset = memory_offset(at, bytes);
    if (offset == MEMORY_NO_OFFSET) return WEFT_OK; /* of an allocator */
    const size_t first = (size_t)offset & ~(size_t)(PAGE_BYTES - 1),
                 last = ((size_t)offset + bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
    return range_fill(atomic_load(&arena.base) + first, first, last - first) ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static bool is_inherited(const uint8_t *memory)
{
    for (uint32_t i = 0; i < arena.inherited_count; i++) {
        if ((uintptr_t)memory - (uintptr_t)arena.inherited[i].base < arena.inherited[i].bytes) return true;
    }
    return false;
}

void weft_memory_free(struct weft_env *env, void *memory)
{
    if (!memory || is_inherited(memory)) return;
    if (memory_offset(memory, 1) != MEMORY_NO_OFFSET) arena_range_free(memory);
    else weft_free_bytes(env, memory);
}

/* ---- arenas of other processes ---- */

static struct memory_view *view_make(int fd, uint64_t id, size_t bytes)
{
    struct memory_view *view = weft_alloc_zero(weft_env_system(), sizeof *view);
    if (!view) return NULL;
    *view = (struct memory_view){.bytes = bytes, .id = id, .users = 1, .next = arena.views};
    /* Endpoints of this process have a view, too: a range freed during a read is then a hole, not a fault. */
    view->base = memory_file_map(fd, bytes, true);
    if (!view->base) {
        weft_free_bytes(weft_env_system(), view);
        return NULL;
    }
    arena.views = view;
    return view;
}

struct memory_view *memory_view_open(int fd, uint64_t id, size_t bytes)
{
    pthread_mutex_lock(&arena.mutex);
    struct memory_view *view = arena.views;
    while (view && (view->id != id || view->bytes != bytes)) view = view->next;
    if (view) view->users++;
    else view = view_make(fd, id, bytes);
    pthread_mutex_unlock(&arena.mutex);
    return view;
}

void memory_view_ref(struct memory_view *view)
{
    pthread_mutex_lock(&arena.mutex);
    view->users++;
    pthread_mutex_unlock(&arena.mutex);
}

void memory_view_unref(struct memory_view *view)
{
    if (!view) return;
    pthread_mutex_lock(&arena.mutex);
    if (--view->users == 0) {
        struct memory_view **at = &arena.views;
        while (*at != view) at = &(*at)->next;
        *at = view->next;
        memory_file_unmap(view->base, view->bytes);
        weft_free_bytes(weft_env_system(), view);
    }
    pthread_mutex_unlock(&arena.mutex);
}
