/* process_id.h - which process is this? getpid is a system call, too dear for every call of a library that
 * has to tell a forked child from its parent. */
#ifndef WEFT_BASE_OS_PROCESS_ID_H
#define WEFT_BASE_OS_PROCESS_ID_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

/* process_id.c: where the number is remembered, 0 while it is not known in this process; NULL: nowhere
 * yet. */
extern _Atomic(_Atomic pid_t *) weft_process_id_known;
pid_t weft_process_id_ask(void); /* the system, and remember it */

/* As getpid, also in a forked child. Any thread; never blocks. */
static inline pid_t weft_process_id(void)
{
    _Atomic pid_t *known = atomic_load_explicit(&weft_process_id_known, memory_order_acquire);
    pid_t pid = known ? atomic_load_explicit(known, memory_order_relaxed) : 0;
    return pid != 0 ? pid : weft_process_id_ask();
}

#endif
