/* process_id.c - the number is remembered in a page that the kernel empties when the process forks (MADV_WIPEONFORK), by whatever
 * call: so nobody has to be told. Without such pages (Linux before 4.14) every call asks. */
#include "base/process_id.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

struct memory {
    _Atomic pid_t pid; /* 0: not known in this process */
};

static struct memory none; /* stands for "there are no such pages" */
static _Atomic(struct memory *) remembered;

static struct memory *memory_make(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    struct memory *fresh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *known = NULL;
    if (fresh == MAP_FAILED) fresh = &none;
    else if (madvise(fresh, bytes, MADV_WIPEONFORK) != 0) munmap(fresh, bytes), fresh = &none;
    if (atomic_compare_exchange_strong(&remembered, &known, fresh)) return fresh;
    if (fresh != &none) munmap(fresh, bytes); /* another thread was first */
    return known;
}

pid_t weft_process_id(void)
{
    struct memory *memory = atomic_load_explicit(&remembered, memory_order_acquire);
    pid_t pid = memory ? atomic_load_explicit(&memory->pid, memory_order_relaxed) : 0;
    if (pid != 0) return pid;
    if (!memory) memory = memory_make();
    pid = getpid();
    if (memory != &none) atomic_store_explicit(&memory->pid, pid, memory_order_relaxed);
    return pid;
}
