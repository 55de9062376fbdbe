/* process_id.c - caches the process id in a page that the kernel clears on fork (MADV_WIPEONFORK), whatever
 * call forks. Without such pages (Linux before 4.14) every call asks the kernel. */
#include "base/os/process_id.h"

#include <sys/mman.h>
#include <unistd.h>

static _Atomic pid_t never; /* in place of a page: always 0 */
_Atomic(_Atomic pid_t *) weft_process_id_known;

static _Atomic pid_t *memory_make(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _Atomic pid_t *fresh = page == MAP_FAILED ? &never : page, *known = NULL;
    if (fresh != &never && madvise(page, bytes, MADV_WIPEONFORK) != 0) munmap(page, bytes), fresh = &never;
    if (atomic_compare_exchange_strong(&weft_process_id_known, &known, fresh)) return fresh;
    if (fresh != &never) munmap(page, bytes); /* another thread was first */
    return known;
}

pid_t weft_process_id_read(void)
{
    _Atomic pid_t *known = atomic_load_explicit(&weft_process_id_known, memory_order_acquire);
    if (!known) known = memory_make();
    pid_t pid = getpid();
    if (known != &never) atomic_store_explicit(known, pid, memory_order_relaxed);
    return pid;
}
