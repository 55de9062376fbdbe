/* log_limit.h - an event that any peer can cause at any rate is logged at most once per 10 s, with a count.
 *
 * Events of a flood are counted, and the next line has their number and the last origin. A flood that ends is
 * reported by the flush of its owner, about once per second. One thread. */
#ifndef WEFT_BASE_NET_LOG_LIMIT_H
#define WEFT_BASE_NET_LOG_LIMIT_H

#include <stdint.h>

#include "base/env.h"

#define WEFT_LOG_LIMIT_HTTP "http" /* component of the events of HTTP */
struct weft_log_limit {
    const char *component; /* static */
    uint32_t burst;        /* lines per 10 s before counting begins; 0: 1 */
    uint32_t used;         /* of `burst` */
    uint64_t began_ns;     /* of the 10 s; 0: never */
    uint64_t count;        /* events that were not logged */
    char last[300];        /* "origin: event" of the last one of them */
};

/* Logs "origin: event" as a warning, or counts it. */
void weft_log_limited(struct weft_env *env, struct weft_log_limit *limit, const char *origin,
                      const char *event);
/* Events of this process so far, logged and counted ones: those of HTTP, or all others. Any thread. */
uint64_t weft_log_limited_count(bool is_http);
/* Logs the number of counted events if their 10 s are over. */
void weft_log_limit_flush(struct weft_env *env, struct weft_log_limit *limit);

#endif
