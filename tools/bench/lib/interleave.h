/* interleave.h - two commands measured in turn (A B A B ...), for the ratios of samples.h.
 *
 * The measurement of a command is its wall time, or a number that it prints: the value of `key` in the last
 * line of its output that is a JSON object with that key. */
#ifndef WEFT_TOOLS_BENCH_LIB_INTERLEAVE_H
#define WEFT_TOOLS_BENCH_LIB_INTERLEAVE_H

#include <stdbool.h>
#include <stddef.h>

/* Runs `command` with sh -c; its stderr is ours. False: `error` has the sentence. */
bool bench_run_command(const char *command, const char *key, double *value_out, char *error,
                       size_t error_bytes);

/* Makes `pairs` measurements of each into a and b (pairs,). */
bool bench_interleave(const char *command_a, const char *command_b, const char *key, size_t pairs, double *a,
                      double *b, char *error, size_t error_bytes);

#endif
