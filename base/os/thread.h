/* thread.h - threads of the library's own. */
#ifndef WEFT_BASE_OS_THREAD_H
#define WEFT_BASE_OS_THREAD_H

#include <pthread.h>

/* As pthread_create, which says what it answers. None of the trainer's signal handlers ever runs on the
 * new thread, but those of a fault of its own (SIGSEGV and its like): blocked there, they would end the
 * process before a debugger, a sanitizer or Python's faulthandler could say where. `name` is what top and
 * gdb show, at most 15 characters. Any thread. */
int weft_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *), void *argument);

#endif
