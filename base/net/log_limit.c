/* log_limit.c - see log_limit.h. */
#include "base/net/log_limit.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define PERIOD_NS WEFT_SECONDS(10)

static _Atomic uint64_t http_count, control_count; /* events of this process */

uint64_t weft_log_limited_count(bool is_http)
{
    return atomic_load_explicit(is_http ? &http_count : &control_count, memory_order_relaxed);
}

void weft_log_limit_flush(struct weft_env *env, struct weft_log_limit *limit)
{
    const uint64_t now_ns = weft_now_ns(env), passed_ns = weft_elapsed_ns(limit->began_ns, now_ns);
    if (limit->began_ns == 0 || passed_ns < PERIOD_NS) return;
    if (limit->count > 0)
        weft_log(env, WEFT_LOG_WARN, limit->component, "%llu more within %.0f s, the last one: %s",
                 (unsigned long long)limit->count, (double)passed_ns / 1e9, limit->last);
    /* a summary is a line of the next 10 s */
    limit->used = limit->count > 0;
    limit->began_ns = limit->count > 0 ? now_ns : 0;
    limit->count = 0;
}

void weft_log_limited(struct weft_env *env, struct weft_log_limit *limit, const char *origin,
                      const char *event)
{
    const bool is_http = strcmp(limit->component, WEFT_LOG_LIMIT_HTTP) == 0;
    atomic_fetch_add_explicit(is_http ? &http_count : &control_count, 1, memory_order_relaxed);
    weft_log_limit_flush(env, limit);
    if (limit->began_ns == 0) {
        limit->began_ns = weft_now_ns(env);
        limit->used = 0;
    }
    if (limit->used < (limit->burst ? limit->burst : 1)) {
        limit->used++;
        weft_log(env, WEFT_LOG_WARN, limit->component, "%s: %s", origin, event);
        return;
    }
    limit->count++;
    snprintf(limit->last, sizeof limit->last, "%.60s: %.230s", origin, event);
}
