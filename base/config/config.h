/* config.h - one table of every option: name, type, unit, default, range, help.
 * Values come, later over earlier, from: the default, an INI file (WEFT_CONFIG), the environment
 * (transport.lanes -> WEFT_TRANSPORT_LANES), and the caller (option struct or --set name=value). A bad
 * value names the option, the value, where it came from and the allowed range; nothing is clamped. */
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
    const char *name;         /* "room.name", lower case, underscores */
    enum weft_option_type type;
    const char *unit;         /* "bytes", "ms", "" ; durations and bytes accept suffixes (5s, 4MiB) */
    const char *default_text; /* parsed as any other value */
    uint64_t min, max;        /* of numbers (durations in nanoseconds), inclusive; unused otherwise */
    const char *help;         /* one sentence: what it does and what happens at the limit */
    const char *choices;      /* TEXT only: "error|warn|info", or NULL when any text will do */
};

/* The table, ending with a NULL name (base/config/options.c). */
extern const struct weft_option weft_option_table[];

#define WEFT_CHUNK_KIB 256 /* the default of collective.chunk_bytes, for those that have no config, too */

struct weft_config;
/* Defaults, then WEFT_CONFIG's file, then the environment. The reason of a failure in *error. A log.level
 * given anywhere, also later, becomes env->log_level. A variable that begins with WEFT_ and that weft does
 * not read (WEFT_TRANSPORT_LANE) is reported in the log. */
enum weft_status weft_config_load(struct weft_env *env, struct weft_config **config_out,
                                  struct weft_error *error);
void weft_config_free(struct weft_config *config);
/* [room] sections with `name = value` lines. After a failure some of the file may be in force: give up
 * the config. NOT_FOUND, IO, MALFORMED (the text has the line), or as weft_config_set. */
enum weft_status weft_config_read_file(struct weft_config *config, const char *path,
                                       struct weft_error *error);
/* `where` names the source in messages ("--set", "weft_session_options"). NOT_FOUND: no such option;
 * INVALID: bad value. Nothing changed then. */
enum weft_status weft_config_set(struct weft_config *config, const char *name, const char *value,
                                 const char *where, struct weft_error *error);
/* Where the value came from: "default", "/etc/weft.ini", "WEFT_TRANSPORT_LANES", or as set. */
const char *weft_config_source(const struct weft_config *config, const char *name);
/* Getters assert that the option exists and has that type: a wrong name is our own bug. */
const char *weft_config_text(const struct weft_config *config, const char *name);
uint64_t weft_config_u64(const struct weft_config *config, const char *name); /* U64, BYTES, DURATION (ns) */
bool weft_config_bool(const struct weft_config *config, const char *name);
/* Table of all options for people: name, value, where from, default, range, help. */
void weft_config_print(const struct weft_config *config, FILE *out);

#endif
