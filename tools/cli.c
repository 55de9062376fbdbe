/* cli.c - see cli.h. getopt_long splits the words; this file checks values and writes help and sentences. */
#include "tools/cli.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tools/common.h"
#include "tools/size.h"

enum {
    FIRST_OPTION = 256, /* getopt's answer for options[0]; smaller answers are short names */
    ANSWER_HELP = FIRST_OPTION + CLI_OPTIONS_MAX,
    ANSWER_VERSION,
    COLUMN_MAX = 26, /* longest "-n, --workers N" beside its help */
    LINE_MAX_BYTES = 100,
    NAME_BYTES_MAX = 64,
    NEAR_MAX = 2, /* edits between a mistyped word and the one that is proposed */
    DEFAULT_BYTES = 64,
};

typedef char default_texts[CLI_OPTIONS_MAX][DEFAULT_BYTES];

/* ---- sentences ---- */

int cli_value_error(const struct cli_command *command, const char *option, const char *text,
                    const char *expected)
{
    return tool_usage_error(command->name, "%s: '%s' is not %s", option, text, expected);
}

int cli_unknown_error(const char *command, const char *what, const char *word, const char *const *known)
{
    const char *nearest = NULL;
    size_t nearest_distance = NEAR_MAX + 1;
    for (size_t i = 0; known[i]; i++) {
        size_t distance = weft_edit_distance(word, known[i]);
        if (distance >= nearest_distance || distance + 1 >= strlen(known[i])) continue;
        nearest = known[i];
        nearest_distance = distance;
    }
    if (!nearest) return tool_usage_error(command, "unknown %s '%s'", what, word);
    return tool_usage_error(command, "unknown %s '%s' (did you mean '%s'?)", what, word, nearest);
}

static bool is_listed(const struct cli_option *option)
{
    return !option->new_name && !option->not_of;
}

/* getopt_long has refused argv[optind - 1], or a short name in it. */
static int option_error(const struct cli_command *command, char **argv, int answer)
{
    char names[CLI_OPTIONS_MAX][NAME_BYTES_MAX];
    const char *known[CLI_OPTIONS_MAX + 3] = {NULL};
    const char *word = argv[optind - 1];
    const char short_name[3] = {'-', (char)optopt, 0};
    const bool is_short = optopt > ' ' && optopt < 127 && strncmp(word, "--", 2) != 0;
    if (answer == ':')
        return tool_usage_error(command->name, "option %s needs a value", is_short ? short_name : word);
    if (optopt >= FIRST_OPTION) return tool_usage_error(command->name, "%s: the option takes no value", word);
    size_t count = 0;
    for (size_t i = 0; i < command->option_count; i++) {
        if (!is_listed(&command->options[i])) continue;
        snprintf(names[count], sizeof names[count], "--%s", command->options[i].name);
        known[count] = names[count];
        count++;
    }
    known[count++] = "--help";
    known[count] = "--version";
    return cli_unknown_error(command->name, "option", is_short ? short_name : word, known);
}

/* ---- values ---- */

static int set_number(const struct cli_command *command, const struct cli_option *option, const char *name,
                      const char *text)
{
    char expected[96];
    uint64_t value;
    if (!weft_whole_parse(text, strlen(text), &value) || value < option->min || value > option->max) {
        snprintf(expected, sizeof expected, "a whole number from %" PRIu64 " to %" PRIu64, option->min,
                 option->max);
        return cli_value_error(command, name, text, expected);
    }
    if (option->type == CLI_TYPE_U32) *(uint32_t *)option->value = (uint32_t)value;
    else *(uint64_t *)option->value = value;
    return -1;
}

static int set_real(const struct cli_command *command, const struct cli_option *option, const char *name,
                    const char *text)
{
    char *end, expected[96];
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < option->low || value > option->high) {
        snprintf(expected, sizeof expected, "a number from %g to %g", option->low, option->high);
        return cli_value_error(command, name, text, expected);
    }
    *(double *)option->value = value;
    return -1;
}

static int set_size(const struct cli_command *command, const struct cli_option *option, const char *name,
                    const char *text)
{
    char least[24], most[24], expected[96];
    uint64_t value;
    if (tool_size_parse(text, &value) && value >= option->min && value <= option->max) {
        *(uint64_t *)option->value = value;
        return -1;
    }
    tool_size_format(option->min, least, sizeof least);
    tool_size_format(option->max, most, sizeof most);
    if (option->max >= TOOL_SIZE_MAX)
        snprintf(expected, sizeof expected, "a size of at least %s, such as 64K or 1G", least);
    else snprintf(expected, sizeof expected, "a size from %s to %s, such as 64K", least, most);
    return cli_value_error(command, name, text, expected);
}

static int set_choice(const struct cli_command *command, const struct cli_option *option, const char *name,
                      const char *text)
{
    char expected[256] = "";
    for (uint32_t i = 0; option->choices[i]; i++) {
        if (strcmp(text, option->choices[i]) == 0) {
            if (option->type == CLI_TYPE_CHOICE) *(uint32_t *)option->value = i;
            else *(const char **)option->value = option->choices[i];
            return -1;
        }
        size_t used = strlen(expected);
        const char *separator = i == 0 ? "" : option->choices[i + 1] ? ", " : " or ";
        snprintf(expected + used, sizeof expected - used, "%s%s", separator, option->choices[i]);
    }
    return cli_value_error(command, name, text, expected);
}

static int set_value(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    char name[NAME_BYTES_MAX];
    snprintf(name, sizeof name, "--%s", option->name);
    if (option->not_of)
        return tool_usage_error(command->name, "%s is not an option of %s", name, option->not_of);
    if (option->new_name)
        fprintf(stderr, "%s: %s is the old name of --%s and will be removed\n", command->name, name,
                option->new_name);
    switch (option->type) {
    case CLI_TYPE_FLAG: *(bool *)option->value = true; return -1;
    case CLI_TYPE_TEXT: *(const char **)option->value = text; return -1;
    case CLI_TYPE_U32:
    case CLI_TYPE_U64: return set_number(command, option, name, text);
    case CLI_TYPE_REAL: return set_real(command, option, name, text);
    case CLI_TYPE_SIZE: return set_size(command, option, name, text);
    case CLI_TYPE_CHOICE:
    case CLI_TYPE_NAME: return set_choice(command, option, name, text);
    case CLI_TYPE_CALL: break;
    }
    return option->set(command, option, text);
}

/* ---- help ---- */

static void format_default(const struct cli_option *option, char out[DEFAULT_BYTES])
{
    out[0] = 0;
    switch (option->type) {
    case CLI_TYPE_TEXT:
    case CLI_TYPE_NAME:
        if (*(const char **)option->value) snprintf(out, DEFAULT_BYTES, "%s", *(const char **)option->value);
        break;
    case CLI_TYPE_U32: snprintf(out, DEFAULT_BYTES, "%" PRIu32, *(uint32_t *)option->value); break;
    case CLI_TYPE_U64: snprintf(out, DEFAULT_BYTES, "%" PRIu64, *(uint64_t *)option->value); break;
    case CLI_TYPE_REAL: snprintf(out, DEFAULT_BYTES, "%g", *(double *)option->value); break;
    case CLI_TYPE_SIZE: tool_size_format(*(uint64_t *)option->value, out, DEFAULT_BYTES); break;
    case CLI_TYPE_CHOICE:
        snprintf(out, DEFAULT_BYTES, "%s", option->choices[*(uint32_t *)option->value]);
        break;
    case CLI_TYPE_FLAG:
    case CLI_TYPE_CALL: break;
    }
}

static int left_column(const char *name, char short_name, const char *argument, char *out, size_t out_bytes)
{
    const char start[5] = {short_name ? '-' : ' ', short_name ? short_name : ' ', short_name ? ',' : ' ', ' ',
                           0};
    return snprintf(out, out_bytes, "  %s--%s%s%s", start, name, argument ? " " : "",
                    argument ? argument : "");
}

/* `left`, then `text` from `column` on, broken between words. */
static void print_entry(const char *left, const char *text, int column)
{
    int at = printf("%s", left);
    if (at > column - 2) printf("\n"), at = 0;
    printf("%*s", column - at, "");
    at = column;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (at > column && at + 1 + length > LINE_MAX_BYTES) printf("\n%*s", column, ""), at = column;
        at += printf("%s%.*s", at > column ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void print_help(const struct cli_command *command, const default_texts defaults)
{
    char left[NAME_BYTES_MAX + 64], text[2048];
    int column = 0;
    printf("usage: %s\n%s\n", command->usage, command->about);
    for (size_t i = 0; i < command->option_count; i++) {
        const struct cli_option *option = &command->options[i];
        if (!is_listed(option)) continue;
        int length = left_column(option->name, option->short_name, option->argument, left, sizeof left) + 2;
        if (length > column && length <= COLUMN_MAX + 4) column = length;
    }
    for (size_t i = 0; i < command->option_count; i++) {
        const struct cli_option *option = &command->options[i];
        if (!is_listed(option)) continue;
        const char *fallback = option->default_text ? option->default_text : defaults[i];
        left_column(option->name, option->short_name, option->argument, left, sizeof left);
        snprintf(text, sizeof text, fallback[0] ? "%s (default: %s)" : "%s", option->help, fallback);
        print_entry(left, text, column > 18 ? column : 18);
    }
    print_entry("  -h, --help", "this text", column > 18 ? column : 18);
    print_entry("      --version", "release and wire version", column > 18 ? column : 18);
    if (command->notes) printf("\n%s", command->notes);
}

/* ---- parsing ---- */

static const struct cli_option *find_option(const struct cli_command *command, int answer)
{
    if (answer >= FIRST_OPTION) return &command->options[answer - FIRST_OPTION];
    for (size_t i = 0; i < command->option_count; i++)
        if (command->options[i].short_name == answer) return &command->options[i];
    return NULL;
}

int cli_parse(const struct cli_command *command, int argc, char **argv, int *first_argument_out)
{
    struct option table[CLI_OPTIONS_MAX + 3] = {{NULL, 0, NULL, 0}};
    char short_names[3 * CLI_OPTIONS_MAX + 8];
    default_texts defaults;
    size_t used =
        (size_t)snprintf(short_names, sizeof short_names, "%s:h", command->stops_at_argument ? "+" : "");
    WEFT_ASSERT(command->option_count <= CLI_OPTIONS_MAX);
    for (size_t i = 0; i < command->option_count; i++) {
        const struct cli_option *option = &command->options[i];
        table[i] = (struct option){option->name, option->argument ? required_argument : no_argument, NULL,
                                   FIRST_OPTION + (int)i};
        if (option->short_name) short_names[used++] = option->short_name;
        if (option->short_name && option->argument) short_names[used++] = ':';
        if (is_listed(option) && !option->default_text) format_default(option, defaults[i]);
    }
    short_names[used] = 0;
    table[command->option_count] = (struct option){"help", no_argument, NULL, ANSWER_HELP};
    table[command->option_count + 1] = (struct option){"version", no_argument, NULL, ANSWER_VERSION};
    opterr = 0, optind = 0; /* 0: getopt forgets an earlier command line, also its ordering */
    for (int answer; (answer = getopt_long(argc, argv, short_names, table, NULL)) != -1;) {
        if (answer == 'h' || answer == ANSWER_HELP) return print_help(command, defaults), 0;
        if (answer == ANSWER_VERSION) return tool_print_version(command->name), 0;
        if (answer == '?' || answer == ':') return option_error(command, argv, answer);
        int status = set_value(command, find_option(command, answer), optarg);
        if (status >= 0) return status;
    }
    if (first_argument_out) *first_argument_out = optind;
    if (optind == argc || command->takes_arguments || command->stops_at_argument) return -1;
    return tool_usage_error(command->name, "unexpected argument '%s'", argv[optind]);
}
