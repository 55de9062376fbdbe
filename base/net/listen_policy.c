/* listen_policy.c - nothing is reachable from other hosts unless the job has a secret.
 *
 * Data endpoints listen on the addresses of named network devices, so their rule is about device names. The
 * rule for listeners of the control connections is about addresses: weft_listen_check (server). */
#include "base/net/listen_policy.h"

#include <string.h>

static bool is_loopback_device(const char *name, size_t bytes)
{
    return bytes == 2 && memcmp(name, "lo", 2) == 0;
}

enum weft_status weft_devices_check(const char *devices, const char *secret, struct weft_error *error)
{
    if (!devices || (secret && secret[0])) return WEFT_OK;
    for (const char *name = devices; *name;) {
        size_t bytes = strcspn(name, ",");
        if (bytes > 0 && !is_loopback_device(name, bytes))
            return (enum weft_status)weft_error_set(
                error, WEFT_ERR_AUTH,
                "will not open data endpoints on network device %.*s without a job secret: any process that "
                "reaches it could send; give "
                "a secret or use device lo",
                bytes > 64 ? 64 : (int)bytes, name);
        name += bytes + (name[bytes] == ',');
    }
    return WEFT_OK;
}
