/* config_check.h - options that depend on each other. One table has all pairs (config_check.c). */
#ifndef WEFT_BASE_CONFIG_CONFIG_CHECK_H
#define WEFT_BASE_CONFIG_CONFIG_CHECK_H

#include "base/config/config.h"

/* Checks the pairs. coordinates: this process coordinates its job; pairs that the coordinator of another
 * process decides are not checked otherwise. WEFT_ERR_INVALID: a start would refuse it; *error has one
 * sentence. Otherwise calls `warn`, if it is not NULL, with one sentence for each option without effect. */
enum weft_status weft_config_check(const struct weft_config *config, bool coordinates,
                                   void (*warn)(void *context, const char *text), void *context,
                                   struct weft_error *error);
/* Whether the value means the same as the default. Asserts that the option exists. */
bool weft_config_is_default(const struct weft_config *config, const char *name);

#endif
