/* plan_cache.h - the configured re-tuning of plans, and the file of learned plans. Engine thread. */
#ifndef WEFT_CLIENT_ENGINE_PLAN_CACHE_H
#define WEFT_CLIENT_ENGINE_PLAN_CACHE_H

#include "client/session/session.h"

enum weft_retune client_plans_retune(const struct weft_session *session);
void client_plans_load(struct weft_session *session); /* into the group that was just made */
void client_plans_save(struct weft_session *session); /* before the group is freed in order */

#endif
