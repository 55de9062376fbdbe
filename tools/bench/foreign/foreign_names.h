/* foreign_names.h - the tables of the translation: names and options of the other suites. */
#ifndef WEFT_TOOLS_BENCH_FOREIGN_FOREIGN_NAMES_H
#define WEFT_TOOLS_BENCH_FOREIGN_FOREIGN_NAMES_H

enum bench_foreign_suite { BENCH_NCCL_TESTS, BENCH_OSU_COLLECTIVE, BENCH_OSU_PAIR, BENCH_PERFTEST };

struct bench_foreign_name {
    const char *name; /* "osu_allreduce" */
    enum bench_foreign_suite suite;
    const char *words; /* the benchmark of weft and its options, separated by spaces */
};

enum bench_foreign_action {
    BENCH_FOREIGN_VALUE,     /* takes a value; weft's option takes the same */
    BENCH_FOREIGN_FLAG,      /* takes none; `weft` has the words */
    BENCH_FOREIGN_SWITCH,    /* takes 0 or 1; `weft` is a flag */
    BENCH_FOREIGN_PROCESSES, /* number of processes; two such options are multiplied */
    BENCH_FOREIGN_RANGE,     /* MAX or MIN:MAX */
    BENCH_FOREIGN_SIZE,      /* the only size */
    BENCH_FOREIGN_SECONDS,   /* weft's option takes milliseconds */
    BENCH_FOREIGN_NO_EFFECT, /* takes a value */
    BENCH_FOREIGN_NO_EFFECT_FLAG,
};

struct bench_foreign_option {
    char short_name;
    const char *long_name; /* without dashes; NULL: none */
    enum bench_foreign_action action;
    const char *weft; /* "--iters"; NULL: by the action */
};

/* NULL: no suite has that name. */
const struct bench_foreign_name *bench_foreign_find(const char *name);
/* The option with this short name (long_name NULL) or long name; NULL: the suite lacks it. */
const struct bench_foreign_option *bench_foreign_option(enum bench_foreign_suite suite, char short_name,
                                                        const char *long_name);
const char *bench_foreign_suite_name(enum bench_foreign_suite suite);

#endif
