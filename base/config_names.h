/* config_names.h - the variables that weft reads, by name. Internal to base. */
#ifndef WEFT_BASE_CONFIG_NAMES_H
#define WEFT_BASE_CONFIG_NAMES_H

#include "base/env.h"

/* transport.lanes -> WEFT_TRANSPORT_LANES */
void config_variable_name(const char *option, char *text, size_t bytes);
/* A warning for each variable of the environment that begins with WEFT_ and is not weft's, once in a process. Any thread. */
void config_report_unknown_names(struct weft_env *env);

#endif
