/* process_id.h - which process is this? getpid is a system call, too dear for every call of a library that has to tell a
 * forked child from its parent. */
#ifndef WEFT_BASE_PROCESS_ID_H
#define WEFT_BASE_PROCESS_ID_H

#include <sys/types.h>

/* As getpid, also in a forked child. Any thread; never blocks. */
pid_t weft_process_id(void);

#endif
