/* step_options.h - checks the options of a step and resolves them for each tensor. Caller's thread; see
 * step_options.c. */
#ifndef WEFT_CLIENT_ELASTIC_STEP_OPTIONS_H
#define WEFT_CLIENT_ELASTIC_STEP_OPTIONS_H

#include "weft/weft.h"

/* Sets error and changes nothing on WEFT_ERR_INVALID, WEFT_ERR_STATE, WEFT_ERR_UNSUPPORTED. */
enum weft_status client_step_options_check(struct weft_session *session,
                                           const struct weft_step_options *options);
/* Fills session->step and the tensors' parameters of the step. The options are valid. */
void client_step_options_apply(struct weft_session *session, const struct weft_step_options *options);

#endif
