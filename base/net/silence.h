/* silence.h - has a peer that must send periodically been silent for too long?
 *
 * The owner checks at least every period_ns. If a check is late by more than a period, this process was
 * stopped: messages of the peer may be unread, so the pause does not count. */
#ifndef WEFT_BASE_NET_SILENCE_H
#define WEFT_BASE_NET_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"

struct weft_silence {
    uint64_t limit_ns; /* 0: the peer need not send */
    uint64_t period_ns, received_ns, checked_ns;
};

static inline void weft_silence_start(struct weft_silence *silence, uint64_t limit_ns, uint64_t period_ns,
                                      uint64_t now_ns)
{
    *silence = (struct weft_silence){limit_ns, period_ns, now_ns, now_ns};
}

static inline void weft_silence_received(struct weft_silence *silence, uint64_t now_ns)
{
    silence->received_ns = now_ns;
}

/* Returns the length of the silence if it is above the limit, otherwise 0. */
static inline uint64_t weft_silence_check(struct weft_silence *silence, uint64_t now_ns)
{
    const uint64_t gap_ns = weft_elapsed_ns(silence->checked_ns, now_ns);
    silence->checked_ns = now_ns;
    if (gap_ns > 2 * silence->period_ns) silence->received_ns += gap_ns - silence->period_ns;
    const uint64_t silent_ns = weft_elapsed_ns(silence->received_ns, now_ns);
    return silence->limit_ns && silent_ns > silence->limit_ns ? silent_ns : 0;
}

#endif
