/* config_check.h - checks options that depend on each other. config_check.c has the table of pairs. */
#ifndef WEFT_BASE_CONFIG_CONFIG_CHECK_H
#define WEFT_BASE_CONFIG_CONFIG_CHECK_H

#include "base/config/config.h"

/* Checks all pairs. If `coordinates` is false, another process coordinates the job, and pairs that only a
 * coordinator uses are skipped. Returns WEFT_ERR_INVALID, with a sentence in *error, if a start would
 * fail. For each option without effect it calls `warn` with a sentence; NULL: no calls. */
enum weft_status weft_config_check(const struct weft_config *config, bool coordinates,
                                   void (*warn)(void *context, const char *text), void *context,
                                   struct weft_error *error);
/* Whether the value means the same as the default. Asserts that the option exists. */
bool weft_config_is_default(const struct weft_config *config, const char *name);

#endif
