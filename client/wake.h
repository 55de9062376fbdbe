/* wake.h - one place where callers sleep and engines wake them: an event counter over one futex.
 *
 *     seen = client_wake_read(w);        engine: make the fact true (release), client_wake_all(w)
 *     if (!fact) client_wake_sleep(w, seen, ns);
 *
 * A wake between read and sleep changes the counter, so the sleep returns at once: nothing is lost.
 * Waking costs a system call only when somebody sleeps; sleeping costs no CPU. Timeouts are relative,
 * so this file needs no clock. */
#ifndef WEFT_CLIENT_WAKE_H
#define WEFT_CLIENT_WAKE_H

#include <stdatomic.h>
#include <stdint.h>

struct client_wake {
    _Atomic uint32_t events;
    _Atomic uint32_t sleepers;
};

static inline uint32_t client_wake_read(struct client_wake *wake)
{
    return atomic_load(&wake->events);
}
/* Any thread. */
void client_wake_all(struct client_wake *wake);
/* Returns when the counter is no longer `seen`, after timeout_ns, or for no reason at all. */
void client_wake_sleep(struct client_wake *wake, uint32_t seen, uint64_t timeout_ns);

#endif
