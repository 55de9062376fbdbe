/* fork_close.c - see fork_close.h. The child of a threaded process may call only async-signal-safe functions:
 * the handler reads a table and closes. */
#include "base/os/fork_close.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { FORK_CLOSE_MAX = 256 };

static atomic_int held[FORK_CLOSE_MAX]; /* descriptor + 1; 0: free */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    for (int i = 0; i < FORK_CLOSE_MAX; i++) {
        const int fd = atomic_exchange(&held[i], 0) - 1;
        if (fd >= 0) close(fd);
    }
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void fork_close_add(int fd)
{
    pthread_once(&once, watch_forks);
    for (int i = 0; fd >= 0 && i < FORK_CLOSE_MAX; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&held[i], &none, fd + 1)) return;
    }
}

void fork_close_remove(int fd)
{
    for (int i = 0; fd >= 0 && i < FORK_CLOSE_MAX; i++) {
        int own = fd + 1;
        if (atomic_compare_exchange_strong(&held[i], &own, 0)) return;
    }
}
