/* foreign.c - see foreign.h. Words are read once, from the left; the counterpart of each is appended. A later
 * option of weft overrides an earlier one, so the words of the name are appended first. */
#include "tools/bench/foreign/foreign.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/foreign/foreign_names.h"
#include "tools/common.h"

struct translation {
    struct bench_foreign *out;
    const struct bench_foreign_name *name;
    uint64_t processes; /* 0: not given */
    bool is_full;
};

static void append(struct translation *translation, const char *word)
{
    struct bench_foreign *out = translation->out;
    const size_t bytes = strlen(word) + 1;
    if (out->argc == BENCH_FOREIGN_WORDS_MAX || bytes > sizeof out->text - out->used) {
        translation->is_full = true;
        return;
    }
    out->argv[out->argc++] = memcpy(out->text + out->used, word, bytes);
    out->used += bytes;
}

static void append_all(struct translation *translation, const char *words)
{
    char copy[128];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " "));) append(translation, word);
}

static void append_pair(struct translation *translation, const char *option, const char *value)
{
    append(translation, option);
    append(translation, value);
}

static void note_ignored(struct bench_foreign *out, const char *word)
{
    const size_t at = strlen(out->ignored);
    snprintf(out->ignored + at, sizeof out->ignored - at, "%s%s", at ? " " : "", word);
}

static bool takes_value(const struct bench_foreign_option *option)
{
    return option->action != BENCH_FOREIGN_FLAG && option->action != BENCH_FOREIGN_NO_EFFECT_FLAG;
}

static void append_range(struct translation *translation, const char *value)
{
    char least[24] = "";
    const char *colon = strchr(value, ':');
    if (colon && colon > value) {
        snprintf(least, sizeof least, "%.*s", (int)(colon - value), value);
        append_pair(translation, "-b", least);
    }
    if (!colon) append_pair(translation, "-e", value);
    else if (colon[1]) append_pair(translation, "-e", colon + 1);
}

/* -1: done; otherwise the exit status. `word` is the option as typed. */
static int append_option(struct translation *translation, const struct bench_foreign_option *option,
                         const char *word, const char *value)
{
    const char *name = translation->name->name;
    char text[32];
    uint64_t number = 0;
    switch (option->action) {
    case BENCH_FOREIGN_VALUE: append_pair(translation, option->weft, value); break;
    case BENCH_FOREIGN_FLAG: append_all(translation, option->weft); break;
    case BENCH_FOREIGN_SWITCH:
        if (!tool_parse_number(name, word, value, 0, 1, &number)) return TOOL_USAGE;
        if (number) append(translation, option->weft);
        break;
    case BENCH_FOREIGN_PROCESSES:
        if (!tool_parse_number(name, word, value, 1, 256, &number)) return TOOL_USAGE;
        translation->processes = (translation->processes ? translation->processes : 1) * number;
        break;
    case BENCH_FOREIGN_RANGE: append_range(translation, value); break;
    case BENCH_FOREIGN_SIZE:
        append_pair(translation, "-b", value);
        append_pair(translation, "-e", value);
        break;
    case BENCH_FOREIGN_SECONDS:
        if (!tool_parse_number(name, word, value, 1, 60, &number)) return TOOL_USAGE;
        snprintf(text, sizeof text, "%" PRIu64, 1000 * number);
        append_pair(translation, option->weft, text);
        break;
    case BENCH_FOREIGN_NO_EFFECT:
    case BENCH_FOREIGN_NO_EFFECT_FLAG: note_ignored(translation->out, word); break;
    }
    return -1;
}

/* A host of perftest: between hosts a benchmark of weft takes part in a job. */
static int refuse_host(const struct translation *translation, const char *host)
{
    return tool_usage_error(translation->name->name,
                            "'%s': between hosts start the same command on both under a launcher (mpirun -n "
                            "2 --host A,%s %s), or run weft doctor %s",
                            host, host, translation->name->name, host);
}

/* Finds the option of one word: "-b", "-b8", "--minbytes", "--minbytes=8". *value_out NULL: the value is the
 * next word, if the option takes one. */
static const struct bench_foreign_option *find(const struct translation *translation, const char *word,
                                               const char **value_out)
{
    const enum bench_foreign_suite suite = translation->name->suite;
    char name[64];
    *value_out = NULL;
    if (strncmp(word, "--", 2) != 0) {
        const struct bench_foreign_option *option = bench_foreign_option(suite, word[1], NULL);
        if (option && word[2] && takes_value(option)) *value_out = word + 2;
        return option && word[2] && !takes_value(option) ? NULL : option;
    }
    const char *equals = strchr(word, '=');
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - word - 2) : (int)sizeof name - 1, word + 2);
    if (equals) *value_out = equals + 1;
    return bench_foreign_option(suite, 0, name);
}

/* Translates one word and its value. Returns the number of words used; 0: refused, and the exit status is in
 * *status_out. */
static int translate_word(struct translation *translation, int left, char **argv, int *status_out)
{
    const char *word = argv[0], *value;
    const bool is_weft = word[0] == '-' && word[1] == '-';
    *status_out = TOOL_USAGE;
    if (word[0] != '-' || !word[1]) {
        if (translation->name->suite == BENCH_PERFTEST) return refuse_host(translation, word), 0;
        append(translation, word);
        return 1;
    }
    if (strcmp(word, "-h") == 0) return append(translation, "--help"), 1;
    const struct bench_foreign_option *option = find(translation, word, &value);
    if (!option && is_weft) { /* an option of weft, with its value */
        append(translation, word);
        if (left < 2 || strchr(word, '=') || argv[1][0] == '-') return 1;
        append(translation, argv[1]);
        return 2;
    }
    if (!option) {
        tool_usage_error(translation->name->name, "%s is not a known option of %s", word,
                         translation->out->suite);
        return 0;
    }
    int used = 1;
    if (takes_value(option) && !value) {
        if (left < 2) return tool_usage_error(translation->name->name, "%s needs a value", word), 0;
        value = argv[1];
        used = 2;
    }
    return append_option(translation, option, word, value) < 0 ? used : 0;
}

bool bench_foreign_has(const char *name)
{
    return bench_foreign_find(name) != NULL;
}

int bench_foreign_translate(struct bench_foreign *foreign, int argc, char **argv)
{
    struct translation translation = {.out = foreign, .name = bench_foreign_find(argv[0])};
    *foreign = (struct bench_foreign){.suite = bench_foreign_suite_name(translation.name->suite)};
    append_all(&translation, translation.name->words);
    for (int i = 1, status, used; i < argc; i += used) {
        used = translate_word(&translation, argc - i, argv + i, &status);
        if (used == 0) return status;
    }
    if (translation.processes > 0) {
        char text[24];
        snprintf(text, sizeof text, "%" PRIu64, translation.processes);
        append_pair(&translation, "-n", text);
    }
    if (translation.is_full) return tool_usage_error(argv[0], "too many arguments");
    return -1;
}
