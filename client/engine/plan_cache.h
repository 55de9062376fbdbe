/* plan_cache.h - re-tuning of plans, as configured, and what is kept of it between jobs. Called by the
 * engine's thread. */
#ifndef WEFT_CLIENT_ENGINE_PLAN_CACHE_H
#define WEFT_CLIENT_ENGINE_PLAN_CACHE_H

#include "client/session/session.h"

enum weft_retune client_plans_retune(const struct weft_session *session);
void client_plans_load(struct weft_session *session); /* into the group that was just made */
void client_plans_save(struct weft_session *session); /* before the group is freed in good order */

#endif
