/* listen_policy.h - which network devices may carry data endpoints. */
#ifndef WEFT_BASE_NET_LISTEN_POLICY_H
#define WEFT_BASE_NET_LISTEN_POLICY_H

#include "base/env.h"
#include "weft/status.h"

/* Data endpoints on network devices other than `lo` require a job secret. `devices` is a comma-separated
 * list; NULL or "" is the default, lo. Returns WEFT_OK, or WEFT_ERR_AUTH with a sentence that names the
 * device. Any thread. */
enum weft_status weft_devices_check(const char *devices, const char *secret, struct weft_error *error);

#endif
