/* thread.h - creates threads of the library. */
#ifndef WEFT_BASE_OS_THREAD_H
#define WEFT_BASE_OS_THREAD_H

#include <pthread.h>

/* As pthread_create, with its return value. Signals of the program are blocked on the new thread. Not blocked
 * are faults (SIGSEGV and others): a blocked fault would end the process before a debugger, a sanitizer or
 * Python's faulthandler could report it. `name`, at most 15 characters, appears in top and gdb. Any thread.
 */
int weft_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *), void *argument);

#endif
