/* output.c - see output.h. */
#include "tools/bench/lib/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool bench_flush_output(const char *what)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    /* EPIPE: the reader, such as head, has closed the pipe */
    if (errno != EPIPE)
        fprintf(stderr, "weft bench %s: cannot write the result: %s\n", what, strerror(errno));
    return false;
}
