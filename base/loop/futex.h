/* futex.h - sleep on a word until it changes. Reads no clock: timeouts are relative. Words are private to the
 * process. Internal to base. */
#ifndef WEFT_BASE_LOOP_FUTEX_H
#define WEFT_BASE_LOOP_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns when `word` is not `seen`, after timeout_ns (UINT64_MAX: never), or spuriously. */
static inline void futex_wait(atomic_uint *word, unsigned seen, uint64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                               .tv_nsec = (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen,
            timeout_ns == UINT64_MAX ? NULL : &timeout, NULL, 0);
}

static inline void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

#endif
