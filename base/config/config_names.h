/* config_names.h - names of the environment variables that weft reads. Internal to base. */
#ifndef WEFT_BASE_CONFIG_CONFIG_NAMES_H
#define WEFT_BASE_CONFIG_CONFIG_NAMES_H

#include "base/env.h"

/* transport.lanes -> WEFT_TRANSPORT_LANES */
void config_variable_name(const char *option, char *text, size_t bytes);
/* Logs a warning for each variable that begins with WEFT_ and is not read by weft, once per process. Any
 * thread. */
void config_report_unknown_names(struct weft_env *env);

#endif
