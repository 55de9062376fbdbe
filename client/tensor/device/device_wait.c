/* device_wait.c - see device_wait.h. */
#include "client/tensor/device/device_wait.h"

#include <sched.h>

enum weft_status client_device_wait(const struct weft_codec_device *at, void *event, struct weft_env *env,
                                    uint64_t limit_ns, struct weft_error *error)
{
    const uint64_t began_ns = weft_now_ns(env);
    enum weft_status status;
    while ((status = at->memory->passed(event, error)) == WEFT_IN_PROGRESS) {
        if (weft_now_ns(env) - began_ns > limit_ns)
            return (enum weft_status)weft_error_set(
                error, WEFT_ERR_DEADLINE, "device %d has not completed the work queued on it for %u s",
                at->number, (unsigned)(limit_ns / WEFT_SECONDS(1)));
        sched_yield();
    }
    return status;
}
