/* usage.h - what the benchmarks say of a wrong command line or a full disk: one sentence. */
#ifndef WEFT_TOOLS_BENCH_LIB_USAGE_H
#define WEFT_TOOLS_BENCH_LIB_USAGE_H

#include <stdbool.h>

/* What getopt_long (opterr 0, a leading ':') has answered '?' or ':' for. Answers 2, the exit status of wrong
 * usage. */
int bench_option_error(const char *what, char **argv, int found);
/* The sentence for a value that is none of `allowed`; answers 2. */
int bench_value_error(const char *what, const char *option, const char *value, const char *allowed);
/* Has everything printed so far left for its file? False: told, unless its reader has simply gone. */
bool bench_flush_output(const char *what);

#endif
