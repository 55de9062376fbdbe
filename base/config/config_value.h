/* config_value.h - parses and describes values of one option. Internal to base. Pure functions. */
#ifndef WEFT_BASE_CONFIG_CONFIG_VALUE_H
#define WEFT_BASE_CONFIG_CONFIG_VALUE_H

#include "base/config/config.h"

/* Parses `text` by the option's type. *number_out: a number, a bool as 0 or 1, or 0 for TEXT.
 * WEFT_ERR_INVALID: the sentence does not name the source of the value. */
enum weft_status config_value_parse(const struct weft_option *option, const char *text, uint64_t *number_out,
                                    struct weft_error *error);

/* Describes the allowed values for messages: "a size from 4KiB to 1GiB". */
void config_value_describe(const struct weft_option *option, char *text, size_t bytes);

#endif
