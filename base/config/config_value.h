/* config_value.h - text to value and back for one option. Internal to base. Pure functions. */
#ifndef WEFT_BASE_CONFIG_CONFIG_VALUE_H
#define WEFT_BASE_CONFIG_CONFIG_VALUE_H

#include "base/config/config.h"

/* Parse `text` as the option wants it; numbers (and bools as 0 or 1) to *number_out, which stays 0 for
 * TEXT. WEFT_ERR_INVALID with a sentence, without the source of the value. */
enum weft_status config_value_parse(const struct weft_option *option, const char *text, uint64_t *number_out,
                                    struct weft_error *error);

/* What values the option takes, for messages: "a size from 4KiB to 1GiB". */
void config_value_describe(const struct weft_option *option, char *text, size_t bytes);

#endif
