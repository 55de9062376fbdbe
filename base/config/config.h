/* config.h - options: name, type, unit, default, range, help.
 *
 * Sources of values, later ones override: default, INI file (WEFT_CONFIG), environment
 * (transport.lanes is WEFT_TRANSPORT_LANES), caller (option struct, or --set name=value). The error for an
 * invalid value names the option, the value, its source and the allowed values. Nothing is clamped. */
#ifndef WEFT_BASE_CONFIG_CONFIG_H
#define WEFT_BASE_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/env.h"
#include "weft/status.h"

enum weft_option_type {
    WEFT_OPTION_TEXT,
    WEFT_OPTION_U64,
    WEFT_OPTION_BYTES,
    WEFT_OPTION_DURATION,
    WEFT_OPTION_BOOL
};

struct weft_option {
    const char *name;         /* "module.name", lower case, underscores */
    enum weft_option_type type;
    const char *unit;         /* "bytes", "ms", ""; durations and bytes accept suffixes (5s, 4MiB) */
    const char *default_text; /* parsed like any other value */
    uint64_t min, max;        /* numbers: inclusive range, durations in ns; otherwise unused */
    const char *help;         /* noun phrase, then the effect at the limits */
    const char *choices;      /* TEXT: "error|warn|info"; NULL: any text */
};

/* All options, ending with a NULL name (options.c). */
extern const struct weft_option weft_option_table[];

#define WEFT_CHUNK_KIB 256 /* default of collective.chunk_bytes, also for code without a config */

struct weft_config;
/* Reads defaults, then the file in WEFT_CONFIG, then the environment. A failure's reason is in *error.
 * log.level or log.format from any source, also a later one, sets env->log_level or env->log_format. A
 * variable that begins with WEFT_ and is not read by weft is logged. */
enum weft_status weft_config_load(struct weft_env *env, struct weft_config **config_out,
                                  struct weft_error *error);
void weft_config_free(struct weft_config *config);
/* Reads [module] sections with `name = value` lines. After a failure some values may be set: free the config.
 * WEFT_ERR_NOT_FOUND, WEFT_ERR_IO, WEFT_ERR_MALFORMED (the text has the line), or as weft_config_set. */
enum weft_status weft_config_read_file(struct weft_config *config, const char *path,
                                       struct weft_error *error);
/* Sets one value. `where` names the source in messages ("--set", "weft_options"). On failure nothing
 * changes. WEFT_ERR_NOT_FOUND: no such option. WEFT_ERR_INVALID: invalid value. */
enum weft_status weft_config_set(struct weft_config *config, const char *name, const char *value,
                                 const char *where, struct weft_error *error);
/* The source of a value: "default", "/etc/weft.ini", "WEFT_TRANSPORT_LANES", or as given to weft_config_set.
 */
const char *weft_config_source(const struct weft_config *config, const char *name);
/* Getters assert that the option exists and has that type. */
const char *weft_config_text(const struct weft_config *config, const char *name);
uint64_t weft_config_u64(const struct weft_config *config, const char *name); /* U64, BYTES, DURATION (ns) */
bool weft_config_bool(const struct weft_config *config, const char *name);
/* Prints all options: name, value, source, default, range, help. */
void weft_config_print(const struct weft_config *config, FILE *out);
/* Prints one line `module.name = value  (source)` for each value that is not the default, with the equals
 * signs in one column. Texts that mean the same number or switch are equal. */
void weft_config_print_changed(const struct weft_config *config, FILE *out);
/* Prints an INI file of all options with their help and allowed values; each option is a comment with its
 * default. weft_config_read_file accepts the file and changes no value. (config_example.c) */
void weft_config_print_example(FILE *out);

#endif
