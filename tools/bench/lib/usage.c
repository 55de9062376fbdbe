/* usage.c - see usage.h. */
#include "tools/bench/lib/usage.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

int bench_option_error(const char *what, char **argv, int found)
{
    char name[3] = {'-', (char)optopt, 0};
    bool one_letter = optopt > ' ' && optopt < 127 && strncmp(argv[optind - 1], "--", 2) != 0;
    fprintf(stderr, "weft bench %s: ", what);
    if (found == ':') fprintf(stderr, "%s needs a value", one_letter ? name : argv[optind - 1]);
    else fprintf(stderr, "there is no option %s", one_letter ? name : argv[optind - 1]);
    fprintf(stderr, "; see `weft bench %s --help`\n", what);
    return 2;
}

int bench_value_error(const char *what, const char *option, const char *value, const char *allowed)
{
    fprintf(stderr, "weft bench %s: %s '%s' is not %s\n", what, option, value, allowed);
    return 2;
}

bool bench_flush_output(const char *what)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    /* | head */
    if (errno != EPIPE)
        fprintf(stderr, "weft bench %s: cannot write the result: %s\n", what, strerror(errno));
    return false;
}
