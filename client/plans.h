/* plans.h - re-tuning of plans, as configured, and what is kept of it between jobs. Called by the engine's thread. */
#ifndef WEFT_CLIENT_PLANS_H
#define WEFT_CLIENT_PLANS_H

#include "client/session.h"

enum weft_retune client_plans_retune(const struct weft_session *session);
void client_plans_load(struct weft_session *session); /* into the group that was just made */
void client_plans_keep(struct weft_session *session); /* before the group is freed in good order */

#endif
