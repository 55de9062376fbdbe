/* config.c - values of all options and their sources.
 *
 *     default in options.c  <  WEFT_CONFIG=file.ini  <  WEFT_MODULE_NAME=...  <  weft_config_set
 *
 * Every source goes through set_value(), so every invalid value gets the same form of sentence: source,
 * option, value, allowed values. Only this file uses libinih. */
#include "base/config/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ini.h>

#include "base/config/config_check.h"
#include "base/config/config_names.h"
#include "base/config/config_value.h"
#include "base/config/edit_distance.h"
#include "base/weft_assert.h"

struct value {
    char *text;  /* owned */
    char *where; /* owned: source of the value; NULL: the default */
    uint64_t number;
    bool seen_in_file; /* in the file being read: a second line is an error, not an override */
};

struct weft_config {
    struct weft_env *env;
    size_t count; /* rows of weft_option_table */
    struct value values[];
};

static size_t option_count(void)
{
    size_t count = 0;
    while (weft_option_table[count].name) count++;
    return count;
}

/* Index of an option, or the length of the table. */
static size_t find_option(const char *name)
{
    size_t index = 0;
    while (weft_option_table[index].name && strcmp(weft_option_table[index].name, name) != 0) index++;
    return index;
}

/* --- unknown names --- */

#define NAME_BYTES_MAX 40
#define LINES_MAX 10000u /* per file; inih reads a line beyond its buffer as several lines */

static const char *nearest_option(const char *name)
{
    const char *nearest = NULL;
    size_t least = 4; /* a larger distance is not a likely misspelling */
    for (const struct weft_option *option = weft_option_table; option->name; option++) {
        size_t away = weft_edit_distance(name, option->name);
        if (away >= least) continue;
        least = away;
        nearest = option->name;
    }
    return nearest;
}

static enum weft_status unknown_option(const char *name, struct weft_error *error)
{
    const char *nearest = nearest_option(name);
    if (nearest)
        return weft_error_set(error, WEFT_ERR_NOT_FOUND, "there is no option %.80s; did you mean %s?", name,
                              nearest);
    return weft_error_set(error, WEFT_ERR_NOT_FOUND,
                          "there is no option %.80s; names have the form module.name", name);
}

/* --- setting --- */

static void apply_log_level(struct weft_env *env, const char *text)
{
    enum weft_log_level level;
    /* Written only if it changes: other threads of a shared env may read it. */
    if (weft_log_level_parse(text, &level) && env->log_level != level) env->log_level = level;
}

static void apply_log_format(struct weft_env *env, const char *text)
{
    enum weft_log_format format;
    if (weft_log_format_parse(text, &format) && env->log_format != format) env->log_format = format;
}

static enum weft_status set_value(struct weft_config *config, size_t index, const char *text,
                                  const char *where, struct weft_error *error)
{
    uint64_t number = 0;
    struct value *value = &config->values[index];
    WEFT_TRY(config_value_parse(&weft_option_table[index], text, &number, error));
    char *text_copy = weft_alloc_text(config->env, text);
    char *where_copy = where ? weft_alloc_text(config->env, where) : NULL;
    if (!text_copy || (where && !where_copy)) {
        weft_free_bytes(config->env, text_copy);
        weft_free_bytes(config->env, where_copy);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for option %s",
                              weft_option_table[index].name);
    }
    weft_free_bytes(config->env, value->text);
    weft_free_bytes(config->env, value->where);
    value->text = text_copy;
    value->where = where_copy;
    value->number = number;
    if (where && strcmp(weft_option_table[index].name, "log.level") == 0) apply_log_level(config->env, text);
    if (where && strcmp(weft_option_table[index].name, "log.format") == 0)
        apply_log_format(config->env, text);
    return WEFT_OK;
}

enum weft_status weft_config_set(struct weft_config *config, const char *name, const char *value,
                                 const char *where, struct weft_error *error)
{
    struct weft_error reason = {0};
    size_t index = find_option(name);
    enum weft_status status = index < config->count ? set_value(config, index, value, where, &reason)
                                                    : unknown_option(name, &reason);
    if (status < 0) weft_error_set(error, status, "%s: %s", where, reason.text);
    return status;
}

/* --- the file --- */

struct file_reader {
    struct weft_config *config;
    const char *path;
    FILE *file;
    uint32_t lines;
    enum weft_status status;
    struct weft_error reason;
};

/* libinih calls it for each line `name = value`. 0: the line is invalid. */
static int take_line(void *user, const char *section, const char *name, const char *value)
{
    struct file_reader *reader = user;
    struct weft_config *config = reader->config;
    char full[2 * NAME_BYTES_MAX];
    if (reader->status < 0) return 0;
    int bytes = snprintf(full, sizeof full, "%s%s%s", section, section[0] ? "." : "", name);
    size_t index = bytes < (int)sizeof full ? find_option(full) : config->count;
    if (index == config->count)
        reader->status = unknown_option(full, &reader->reason);
    else if (config->values[index].seen_in_file)
        reader->status = weft_error_set(&reader->reason, WEFT_ERR_INVALID,
                                        "option %s is twice in this file (or continues in an indented line); "
                                        "keep one line",
                                        full);
    else
        reader->status = set_value(config, index, value, reader->path, &reader->reason);
    if (index < config->count) config->values[index].seen_in_file = true;
    return reader->status == WEFT_OK;
}

/* Reads a line for inih. Ends the file at the first error and after LINES_MAX lines, since a device such as
 * /dev/zero has no end. */
static char *read_line(char *out, int bytes, void *context)
{
    struct file_reader *reader = context;
    if (reader->status < 0 || ++reader->lines > LINES_MAX) return NULL;
    return fgets(out, bytes, reader->file);
}

enum weft_status weft_config_read_file(struct weft_config *config, const char *path, struct weft_error *error)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return weft_error_set(error, errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_IO,
                              "configuration file %s cannot be opened: %s", path, strerror(errno));
    struct file_reader reader = {.config = config, .path = path, .file = file};
    for (size_t i = 0; i < config->count; i++) config->values[i].seen_in_file = false;
    errno = 0;
    int bad_line = ini_parse_stream(read_line, &reader, take_line, &reader);
    int reason = ferror(file) ? errno : 0;
    fclose(file);
    if (reason)
        return weft_error_set(error, WEFT_ERR_IO, "configuration file %s cannot be read: %s", path,
                              strerror(reason));
    if (reader.status < 0)
        return weft_error_set(error, reader.status, "%s:%d: %s", path, bad_line, reader.reason.text);
    if (reader.lines > LINES_MAX)
        return weft_error_set(error, WEFT_ERR_MALFORMED, "%s: a configuration file has at most %u lines",
                              path, LINES_MAX);
    if (bad_line != 0)
        return weft_error_set(
            error, WEFT_ERR_MALFORMED,
            "%s:%d: not a [module] heading and not a line name = value (or longer than 199 bytes)", path,
            bad_line);
    return WEFT_OK;
}

/* --- the environment --- */

static enum weft_status read_environment(struct weft_config *config, struct weft_error *error)
{
    for (size_t i = 0; i < config->count; i++) {
        char name[NAME_BYTES_MAX + 8];
        config_variable_name(weft_option_table[i].name, name, sizeof name);
        const char *value = getenv(name);
        if (value) WEFT_TRY(weft_config_set(config, weft_option_table[i].name, value, name, error));
    }
    return WEFT_OK;
}

/* --- create, free, values --- */

enum weft_status weft_config_load(struct weft_env *env, struct weft_config **config_out,
                                  struct weft_error *error)
{
    size_t count = option_count();
    struct weft_config *config = weft_alloc_zero(env, sizeof *config + count * sizeof config->values[0]);
    if (!config) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the table of options");
    config->env = env;
    config->count = count;

    enum weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++)
        status = set_value(config, i, weft_option_table[i].default_text, NULL, error);
    const char *path = getenv("WEFT_CONFIG");
    if (status == WEFT_OK && path && path[0]) status = weft_config_read_file(config, path, error);
    if (status == WEFT_OK) status = read_environment(config, error);
    if (status < 0) {
        weft_config_free(config);
        return status;
    }
    config_report_unknown_names(env);
    *config_out = config;
    return WEFT_OK;
}

void weft_config_free(struct weft_config *config)
{
    if (!config) return;
    for (size_t i = 0; i < config->count; i++) {
        weft_free_bytes(config->env, config->values[i].text);
        weft_free_bytes(config->env, config->values[i].where);
    }
    weft_free_bytes(config->env, config);
}

static const struct value *value_of(const struct weft_config *config, const char *name, bool is_text,
                                    bool is_bool)
{
    size_t index = find_option(name);
    WEFT_ASSERT(index < config->count);
    enum weft_option_type type = weft_option_table[index].type;
    WEFT_ASSERT(is_text == (type == WEFT_OPTION_TEXT) && is_bool == (type == WEFT_OPTION_BOOL));
    return &config->values[index];
}

const char *weft_config_text(const struct weft_config *config, const char *name)
{
    return value_of(config, name, true, false)->text;
}

uint64_t weft_config_u64(const struct weft_config *config, const char *name)
{
    return value_of(config, name, false, false)->number;
}

bool weft_config_bool(const struct weft_config *config, const char *name)
{
    return value_of(config, name, false, true)->number != 0;
}

const char *weft_config_source(const struct weft_config *config, const char *name)
{
    size_t index = find_option(name);
    WEFT_ASSERT(index < config->count);
    return config->values[index].where ? config->values[index].where : "default";
}

void weft_config_print(const struct weft_config *config, FILE *out)
{
    for (size_t i = 0; i < config->count; i++) {
        const struct weft_option *option = &weft_option_table[i];
        const struct value *value = &config->values[i];
        char allowed[200], variable[NAME_BYTES_MAX + 8];
        config_value_describe(option, allowed, sizeof allowed);
        config_variable_name(option->name, variable, sizeof variable);
        fprintf(out, "%s = %s\n    %s\n    Takes %s; default \"%s\"; variable %s; now from: %s.\n",
                option->name, value->text, option->help, allowed, option->default_text, variable,
                value->where ? value->where : "default");
    }
}

static bool is_default(const struct weft_config *config, size_t index)
{
    const struct weft_option *option = &weft_option_table[index];
    const struct value *value = &config->values[index];
    struct weft_error error = {0};
    uint64_t number = 0;
    if (option->type == WEFT_OPTION_TEXT) return strcmp(value->text, option->default_text) == 0;
    (void)config_value_parse(option, option->default_text, &number, &error);
    return value->number == number;
}

bool weft_config_is_default(const struct weft_config *config, const char *name)
{
    const size_t index = find_option(name);
    WEFT_ASSERT(index < config->count);
    return is_default(config, index);
}

void weft_config_print_changed(const struct weft_config *config, FILE *out)
{
    int name_columns = 0, value_columns = 0;
    for (size_t i = 0; i < config->count; i++) {
        if (is_default(config, i)) continue;
        const int name_length = (int)strlen(weft_option_table[i].name);
        const int value_length = (int)strlen(config->values[i].text);
        if (name_length > name_columns) name_columns = name_length;
        if (value_length > value_columns) value_columns = value_length;
    }
    for (size_t i = 0; i < config->count; i++)
        if (!is_default(config, i))
            fprintf(out, "%-*s = %-*s  (%s)\n", name_columns, weft_option_table[i].name, value_columns,
                    config->values[i].text, config->values[i].where ? config->values[i].where : "default");
}
