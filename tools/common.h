/* common.h - usage errors, numbers, version and the secret of the job, the same for every command. */
#ifndef WEFT_TOOLS_COMMON_H
#define WEFT_TOOLS_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

#define TOOL_USAGE 2 /* exit status of a wrong command line */

/* Prints "weft run: sentence; see weft run --help" on stderr; returns TOOL_USAGE. */
int tool_usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tool_print_version(const char *command);

/* Parses a whole decimal number from min to max. False: the sentence, which names the option, is on
 * stderr. */
bool tool_parse_number(const char *command, const char *option, const char *text, uint64_t min, uint64_t max,
                       uint64_t *value_out);

/* Flushes stdout at the end of a command. Returns its exit status, or 1 if the output could not be written:
 * the sentence is on stderr, unless the reader has closed the pipe or the command has failed already. */
int tool_end_output(const char *command, int status);

/* Reads the secret of the job: `path` if given, else WEFT_SECRET, else the file WEFT_SECRET_FILE, else
 * job.secret_file of `config` (may be NULL), else none (*secret_out is NULL). A file is read as by
 * weft_secret_file_read. Free with free(). False: a sentence is on stderr. */
bool tool_read_secret(const char *command, const char *path, const struct weft_config *config,
                      char **secret_out);

#endif
