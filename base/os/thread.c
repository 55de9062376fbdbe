/* thread.c - see thread.h. */
#include "base/os/thread.h"

#include <signal.h>

#include "base/os/float_env.h"

int weft_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *), void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    struct float_env floats;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* the new thread inherits the mask */
    float_env_begin(&floats); /* and the floating-point environment */
    int rc = pthread_create(thread_out, NULL, run, argument);
    float_env_end(&floats);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0) pthread_setname_np(*thread_out, name);
    return rc;
}
