/* cli.h - the command line of one command as one table: parser, --help and the sentences about mistakes.
 *
 *     struct cli_option[]  ->  cli_parse  ->  values, or --help, or one sentence on stderr and exit status 2
 *
 * The table lists each option once: name, argument, help, default, place of the value. --help and --version
 * need no line in it. The values before the call are the defaults, and --help prints them. Options may follow
 * arguments, unless the command stops at the first one: cli_parse then exchanges words of argv. */
#ifndef WEFT_TOOLS_CLI_H
#define WEFT_TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cli_type {
    CLI_TYPE_FLAG,   /* bool: true if given */
    CLI_TYPE_TEXT,   /* const char *: borrowed from argv */
    CLI_TYPE_U32,    /* uint32_t, from min to max */
    CLI_TYPE_U64,    /* uint64_t, from min to max */
    CLI_TYPE_REAL,   /* double, from low to high */
    CLI_TYPE_SIZE,   /* uint64_t: bytes, from min to max; suffixes K, M, G */
    CLI_TYPE_CHOICE, /* uint32_t: index into choices */
    CLI_TYPE_NAME,   /* const char *: one of choices */
    CLI_TYPE_CALL,   /* the function `set` has the text */
};

struct cli_command;
struct cli_option;

/* -1: continue; otherwise the exit status, and the sentence is on stderr. `text` is NULL for an option
 * without an argument. */
typedef int cli_set(const struct cli_command *command, const struct cli_option *option, const char *text);

struct cli_option {
    const char *name;         /* "workers" */
    char short_name;          /* 'n'; 0: none */
    const char *argument;     /* "N"; NULL: takes none */
    const char *help;         /* a noun phrase; NULL for an old name */
    const char *default_text; /* in --help; NULL: the value before the call, "": none */
    enum cli_type type;
    void *value;                /* of the type; of CLI_TYPE_CALL: what `set` expects */
    uint64_t min, max;          /* of U32, U64 and SIZE, both inclusive */
    double low, high;           /* of REAL, both inclusive */
    const char *const *choices; /* of CHOICE and NAME; ends with NULL */
    cli_set *set;               /* of CALL */
    /* an old name of that option: accepted with a line on stderr; NULL: no old name */
    const char *new_name;
    const char *not_of; /* the command that lacks this option of its kind; NULL: it has the option */
};

#define CLI_FLAG(place)                      \
    .type = CLI_TYPE_FLAG, .value = (bool *) \
    {                                        \
        place                                \
    }
#define CLI_TEXT(place)                             \
    .type = CLI_TYPE_TEXT, .value = (const char **) \
    {                                               \
        place                                       \
    }
#define CLI_U32(place, least, most) \
    .type = CLI_TYPE_U32, .value = (uint32_t *){place}, .min = (least), .max = (most)
#define CLI_U64(place, least, most) \
    .type = CLI_TYPE_U64, .value = (uint64_t *){place}, .min = (least), .max = (most)
#define CLI_REAL(place, least, most) \
    .type = CLI_TYPE_REAL, .value = (double *){place}, .low = (least), .high = (most)
#define CLI_SIZE(place, least, most) \
    .type = CLI_TYPE_SIZE, .value = (uint64_t *){place}, .min = (least), .max = (most)
#define CLI_CHOICE(place, names) .type = CLI_TYPE_CHOICE, .value = (uint32_t *){place}, .choices = (names)
#define CLI_NAME(place, names) .type = CLI_TYPE_NAME, .value = (const char **){place}, .choices = (names)
#define CLI_CALL(function, place) .type = CLI_TYPE_CALL, .value = (place), .set = (function)

struct cli_command {
    const char *name;  /* "weft run", in every sentence */
    const char *usage; /* lines behind "usage: " */
    const char *about; /* what it does; ends with a newline */
    const struct cli_option *options;
    size_t option_count;
    const char *notes;      /* below the options; NULL: none */
    bool takes_arguments;   /* words that are no options; without it they are a mistake */
    bool stops_at_argument; /* options end at the first argument: the rest is another command */
};

#define CLI_TABLE(table) .options = (table), .option_count = sizeof(table) / sizeof(table)[0]

enum { CLI_OPTIONS_MAX = 48 };

/* -1: continue; otherwise the exit status of the command: 0 after --help and --version, 2 after a mistake.
 * The arguments begin at argv[*first_argument_out]; NULL for a command that takes none. */
int cli_parse(const struct cli_command *command, int argc, char **argv, int *first_argument_out);

/* The sentence about a value: "weft run: --workers: 'x' is not <expected>; see weft run --help". Returns
 * 2. */
int cli_value_error(const struct cli_command *command, const char *option, const char *text,
                    const char *expected);
/* The sentence about an unknown word, with the nearest of `known` (ends with NULL) if one is near. Returns
 * 2. */
int cli_unknown_error(const char *command, const char *what, const char *word, const char *const *known);

#endif
