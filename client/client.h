/* client.h - a session in an environment other than the process's own, which may be of virtual time
 * (init.c). */
#ifndef WEFT_CLIENT_CLIENT_H
#define WEFT_CLIENT_CLIENT_H

#include "weft/weft.h"

struct weft_env;

enum weft_status client_init(struct weft_env *env, const struct weft_options *options,
                             struct weft_session **session_out);

#endif
