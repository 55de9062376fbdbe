/* output.h - the end of the output of a benchmark. */
#ifndef WEFT_TOOLS_BENCH_LIB_OUTPUT_H
#define WEFT_TOOLS_BENCH_LIB_OUTPUT_H

#include <stdbool.h>

/* Flushes stdout. False: the write failed. The sentence is on stderr, unless the reader has closed the
 * pipe. */
bool bench_flush_output(const char *what);

#endif
