/* foreign.h - benchmarks of nccl-tests, the OSU micro-benchmarks and perftest by their own names.
 *
 *   all_reduce_perf -b 8 -e 1G -g 4  ->  weft bench all_reduce -n 4 -b 8 -e 1G
 *
 * The name selects the options too: -n is iterations in nccl-tests and processes in weft. Options of weft
 * that the other suite lacks are kept. An option without a counterpart has no effect, and a line on stderr
 * names it. */
#ifndef WEFT_TOOLS_BENCH_FOREIGN_FOREIGN_H
#define WEFT_TOOLS_BENCH_FOREIGN_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_FOREIGN_WORDS_MAX = 64, BENCH_FOREIGN_BYTES_MAX = 4096 };

struct bench_foreign {
    const char *suite; /* "nccl-tests"; static */
    int argc;
    char *argv[BENCH_FOREIGN_WORDS_MAX + 1]; /* benchmark and options of weft; ends with NULL */
    char text[BENCH_FOREIGN_BYTES_MAX];      /* the words */
    size_t used;
    char ignored[160]; /* options without a counterpart, separated by spaces; "": none */
};

/* Whether another suite has a benchmark of this name, and weft a counterpart. */
bool bench_foreign_has(const char *name);
/* Translates argv[0], for which bench_foreign_has is true, and its options. -1: done; otherwise the exit
 * status, and the sentence is on stderr. */
int bench_foreign_translate(struct bench_foreign *foreign, int argc, char **argv);

#endif
