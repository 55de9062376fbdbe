/* process_identity.h - is the process at the other end of a connection dead?
 *
 * A process announces its identity: pid, start time, and the pid namespace of its kernel's boot. A process of
 * the same namespace then reads the answer from the kernel. Other processes get "unknown". */
#ifndef WEFT_BASE_OS_PROCESS_IDENTITY_H
#define WEFT_BASE_OS_PROCESS_IDENTITY_H

#include <stdint.h>

#include "base/env.h"

#define WEFT_PROCESS_IDENTITY_BYTES 24u
struct weft_process_identity {
    uint64_t space; /* hash of boot id and pid namespace; 0: unknown */
    uint64_t pid;   /* in that namespace */
    uint64_t start; /* start time, clock ticks after the boot: a reused pid differs */
};

enum weft_process_state {
    WEFT_PROCESS_UNKNOWN = 0, /* of another host or namespace, or not readable */
    WEFT_PROCESS_ALIVE = 1,
    WEFT_PROCESS_DEAD = 2, /* it has ended, or it is ending: its sockets may be closed already */
};

/* This process; space 0 if the kernel does not report it. In virtual time the simulated host. */
void weft_process_identify(struct weft_env *env, struct weft_process_identity *own_out);
enum weft_process_state weft_process_state(struct weft_env *env,
                                           const struct weft_process_identity *identity);
void weft_process_identity_encode(const struct weft_process_identity *identity,
                                  uint8_t out[WEFT_PROCESS_IDENTITY_BYTES]);
/* Of this process. Returns the bytes written: WEFT_PROCESS_IDENTITY_BYTES, or 0 if it is unknown. */
size_t weft_process_identity_own(struct weft_env *env, uint8_t out[WEFT_PROCESS_IDENTITY_BYTES]);
void weft_process_identity_decode(const uint8_t data[WEFT_PROCESS_IDENTITY_BYTES],
                                  struct weft_process_identity *identity_out);

#endif
