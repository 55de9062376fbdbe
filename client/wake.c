/* wake.c - see wake.h. Sequentially consistent on purpose: the sleeper announces itself and then the kernel
 * compares the counter; the waker counts and then looks for sleepers. With weaker orders both could miss. */
#include "client/wake.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, (uint32_t *)word, operation | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

void client_wake_all(struct client_wake *wake)
{
    atomic_fetch_add(&wake->events, 1);
    if (atomic_load(&wake->sleepers) > 0) futex(&wake->events, FUTEX_WAKE, INT_MAX, NULL);
}

void client_wake_sleep(struct client_wake *wake, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    atomic_fetch_add(&wake->sleepers, 1);
    futex(&wake->events, FUTEX_WAIT, seen, &timeout);
    atomic_fetch_sub(&wake->sleepers, 1);
}
