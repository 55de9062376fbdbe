/* process_id.h - process id without a system call. A library that must detect a forked child in every call
 * cannot afford getpid. */
#ifndef WEFT_BASE_OS_PROCESS_ID_H
#define WEFT_BASE_OS_PROCESS_ID_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

/* process_id.c: the cached id, 0: unknown in this process; NULL: no cache yet */
extern _Atomic(_Atomic pid_t *) weft_process_id_known;
pid_t weft_process_id_read(void); /* asks the kernel and updates the cache */

/* As getpid, also in a forked child. Any thread. Does not block. */
static inline pid_t weft_process_id(void)
{
    _Atomic pid_t *known = atomic_load_explicit(&weft_process_id_known, memory_order_acquire);
    pid_t pid = known ? atomic_load_explicit(known, memory_order_relaxed) : 0;
    return pid != 0 ? pid : weft_process_id_read();
}

#endif
