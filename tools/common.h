/* common.h - what the commands share: usage errors, numbers, the secret, the config behind --set. */
#ifndef WEFT_TOOLS_COMMON_H
#define WEFT_TOOLS_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

#define TOOL_USAGE 2 /* exit status of a wrong command line */

/* "weft run: sentence" on stderr; answers TOOL_USAGE. */
int tool_usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tool_print_version(const char *command);

/* A whole decimal number from min to max; the sentence names the option. */
bool tool_parse_number(const char *command, const char *option, const char *text, uint64_t min, uint64_t max,
                       uint64_t *value_out);

/* The job's secret: `path` if given, else WEFT_SECRET, else the file WEFT_SECRET_FILE, else config's
 * job.secret_file (`config` may be NULL), else none (*secret_out NULL). Whitespace at the end of a file is
 * not part of it. Free with free(). */
bool tool_read_secret(const char *command, const char *path, const struct weft_config *config,
                      char **secret_out);

#endif
