/* settings.c - resolves the settings of a session: caller's options over environment over configuration file
 * over default.
 *
 * Beside the names of the option table (WEFT_CLIENT_COORDINATOR ...) the short names of weft.h are read:
 * WEFT_COORDINATOR, WEFT_JOB, WEFT_RANK, WEFT_RANKS, WEFT_DEADLINE_MS, WEFT_SECRET, WEFT_SECRET_FILE, and
 * WEFT_PLAN_ALL_REDUCE ... for the plan of one operation. If none of them sets coordinator, job or rank, a
 * launcher's variables are read (base/config/launcher.h: torchrun, mpirun, srun). */
#include "client/session/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/session/sized.h"
#include "proto/proto.h"
#include "weft/weft.h"

_Static_assert(WEFT_LAUNCHER_RANKS_MAX == WEFT_LIMIT_WORKERS, "base cannot include proto/limits.h");

static const struct weft_options DEFAULTS = {.size = sizeof DEFAULTS, .rank = -1};

void weft_options_init_sized(struct weft_options *options, size_t size)
{
    client_sized_init(&DEFAULTS, sizeof DEFAULTS, options, size);
}

/* Called by programs of release 0.1, whose struct ends at this field. Later programs use the macro of the
 * same name. */
void (weft_options_init)(struct weft_options *options)
{
    weft_options_init_sized(options, client_sized_end(struct weft_options, devices));
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

/* A value with its source, for error sentences; `fallback` is the default of the option table. */
struct chosen {
    const char *value, *where;
};

static struct chosen choose(const char *from_options, const char *short_name, const char *from_config)
{
    if (from_options && from_options[0]) return (struct chosen){from_options, "weft_options"};
    const char *from_environment = short_name ? environment(short_name) : NULL;
    if (from_environment) return (struct chosen){from_environment, short_name};
    return (struct chosen){from_config, "the configuration"};
}

static enum weft_status parse_number(struct chosen chosen, const char *what, long long min, long long max,
                                     long long *out, struct weft_error *error)
{
    char *end;
    errno = 0;
    long long value = strtoll(chosen.value, &end, 10);
    if (errno || end == chosen.value || *end || value < min || value > max)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s '%.60s' (from %s) is not a number from %lld to %lld", what, chosen.value,
                              chosen.where, min, max);
    *out = value;
    return WEFT_OK;
}

/* "host:port" or "[v6]:port" */
static enum weft_status resolve_coordinator(struct weft_env *env, struct chosen chosen,
                                            struct client_settings *settings, struct weft_error *error)
{
    if (!chosen.value[0])
        return settings->launcher.name
                   ? weft_error_set(error, WEFT_ERR_INVALID,
                                    "no coordinator given, and the variables of %s do not locate rank 0; "
                                    "set MASTER_ADDR and MASTER_PORT in every process, or "
                                    "WEFT_COORDINATOR=host:port",
                                    settings->launcher.name)
                   : weft_error_set(error, WEFT_ERR_INVALID,
                                    "no coordinator given; start the trainer under weft run, or set "
                                    "WEFT_COORDINATOR=host:port");
    const char *colon = strrchr(chosen.value, ':');
    long long port = 0;
    if (!colon || colon == chosen.value || strlen(chosen.value) > WEFT_LIMIT_NAME_BYTES ||
        !weft_text_is_printable(chosen.value))
        return weft_error_set(error, WEFT_ERR_INVALID, "coordinator '%.60s' (from %s) is not host:port",
                              chosen.value, chosen.where);
    WEFT_TRY(parse_number((struct chosen){colon + 1, chosen.where}, "the coordinator's port", 1, 65535, &port,
                          error));
    settings->host = weft_alloc_text(env, chosen.value);
    if (!settings->host) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the settings");
    settings->host[colon - chosen.value] = 0;
    if (settings->host[0] == '[') {
        size_t bytes = strlen(settings->host);
        memmove(settings->host, settings->host + 1, bytes);
        if (bytes >= 2 && settings->host[bytes - 2] == ']') settings->host[bytes - 2] = 0;
    }
    settings->port = (uint16_t)port;
    return WEFT_OK;
}

static enum weft_status read_secret_file(struct weft_env *env, const char *path, char **secret_out,
                                         struct weft_error *error)
{
    char secret[WEFT_SECRET_BYTES_MAX + 1];
    WEFT_TRY(weft_secret_file_read(path, secret, error));
    *secret_out = weft_alloc_text(env, secret);
    return *secret_out
               ? WEFT_OK
               : (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the settings");
}

static enum weft_status resolve_secret(struct weft_env *env, const struct weft_options *options,
                                       struct client_settings *settings, struct weft_error *error)
{
    const char *direct = options->secret && options->secret[0] ? options->secret : environment("WEFT_SECRET");
    if (direct) {
        if (strlen(direct) > WEFT_SECRET_BYTES_MAX)
            return weft_error_set(error, WEFT_ERR_INVALID, "the job secret is longer than %d characters",
                                  WEFT_SECRET_BYTES_MAX);
        settings->secret = weft_alloc_text(env, direct);
        if (!settings->secret) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the settings");
        return WEFT_OK;
    }
    struct chosen path =
        choose(NULL, "WEFT_SECRET_FILE", weft_config_text(settings->config, "job.secret_file"));
    return path.value[0] ? read_secret_file(env, path.value, &settings->secret, error) : WEFT_OK;
}

static enum weft_status resolve_numbers(const struct weft_options *options, struct client_settings *settings,
                                        struct weft_error *error)
{
    long long rank = options->rank, deadline_ms = 0;
    struct chosen chosen = choose(NULL, "WEFT_RANK", NULL);
    if (rank < 0 && chosen.value)
        WEFT_TRY(parse_number(chosen, "rank", -1, WEFT_LIMIT_WORKERS - 1, &rank, error));
    if (rank < 0 && !chosen.value &&
        strcmp(weft_config_source(settings->config, "client.rank"), "default") != 0)
        rank = (long long)weft_config_u64(settings->config, "client.rank");
    else if (rank < 0 && !chosen.value && settings->launcher.name)
        rank = settings->launcher.rank;
    if (rank >= (long long)WEFT_LIMIT_WORKERS)
        return weft_error_set(error, WEFT_ERR_INVALID, "rank %lld is beyond the limit of %u workers", rank,
                              WEFT_LIMIT_WORKERS);
    settings->rank = rank < 0 ? -1 : (int)rank;

    const char *text = environment("WEFT_DEADLINE_MS");
    settings->deadline_ns = weft_config_u64(settings->config, "client.deadline");
    if (options->deadline_ms > 0) {
        settings->deadline_ns = options->deadline_ms > WEFT_NEVER / 4 / WEFT_MS(1)
                                    ? WEFT_NEVER / 4
                                    : WEFT_MS(options->deadline_ms);
    } else if (text) {
        WEFT_TRY(parse_number((struct chosen){text, "WEFT_DEADLINE_MS"}, "the deadline in milliseconds", 1,
                              7LL * 86400 * 1000, &deadline_ms, error));
        settings->deadline_ns = WEFT_MS(deadline_ms);
    }
    settings->agrees_push_order =
        strcmp(weft_config_text(settings->config, "client.push_order"), "agreed") == 0;
    settings->learns_order =
        settings->agrees_push_order && weft_config_bool(settings->config, "client.learn_order");
    settings->wire_newest = (uint32_t)weft_config_u64(settings->config, "job.wire_version");
    settings->report_period_ns = weft_config_u64(settings->config, "client.report_period");
    settings->client_hash_every = (uint32_t)weft_config_u64(settings->config, "client.hash_every");
    settings->hash_every = (uint32_t)weft_config_u64(settings->config, "server.hash_every");
    return WEFT_OK;
}

/* Copies a text into the configuration, which outlives the caller's options. */
static enum weft_status resolve_text(struct client_settings *settings, const char *from_options,
                                     const char *short_name, const char *option, const char **out,
                                     struct weft_error *error)
{
    struct chosen chosen = choose(from_options, short_name, NULL);
    if (chosen.value && !weft_text_is_printable(chosen.value))
        return weft_error_set(error, WEFT_ERR_INVALID, "%s '%s' (from %s) holds control characters", option,
                              chosen.value, chosen.where);
    if (chosen.value) WEFT_TRY(weft_config_set(settings->config, option, chosen.value, chosen.where, error));
    *out = weft_config_text(settings->config, option);
    return WEFT_OK;
}

/* collective.plan for all operations, then WEFT_PLAN_ALL_REDUCE, WEFT_PLAN_BROADCAST ... for one. */
static enum weft_status resolve_plans(struct client_settings *settings, struct weft_error *error)
{
    WEFT_TRY(weft_plans_parse(weft_config_text(settings->config, "collective.plan"), settings->plans, error));
    for (int kind = 1; kind < WEFT_COLL_KIND_COUNT; kind++) {
        char name[64] = "WEFT_PLAN_", assignment[128];
        size_t at = strlen(name);
        const char *operation = weft_coll_kind_name((enum weft_coll_kind)kind);
        for (size_t i = 0; operation[i] && at + 1 < sizeof name; i++, at++)
            name[at] =
                operation[i] >= 'a' && operation[i] <= 'z' ? (char)(operation[i] - 'a' + 'A') : operation[i];
        const char *plan = environment(name);
        if (!plan) continue;
        struct weft_error why = {0};
        snprintf(assignment, sizeof assignment, "%s=%.60s", operation, plan);
        enum weft_status status = weft_plans_parse(assignment, settings->plans, &why);
        if (status < 0) return weft_error_set(error, status, "%s: %.300s", name, why.text);
    }
    return WEFT_OK;
}

/* Reads a launcher's variables, unless the coordinator and the rank are known. */
static enum weft_status find_launcher(const struct weft_options *options, struct client_settings *settings,
                                      bool coordinator_known, struct weft_error *error)
{
    bool rank_known = options->rank >= 0 || environment("WEFT_RANK") ||
                      strcmp(weft_config_source(settings->config, "client.rank"), "default") != 0;
    if (coordinator_known && rank_known) return WEFT_OK;
    enum weft_status status = weft_launcher_find(coordinator_known, &settings->launcher, error);
    return status == WEFT_ERR_NOT_FOUND ? WEFT_OK : status;
}

/* The launcher names the job only if it also names the coordinator. */
static enum weft_status resolve_job(struct weft_env *env, const struct weft_options *options,
                                    struct client_settings *settings, struct weft_error *error)
{
    struct chosen coordinator = choose(options->coordinator, "WEFT_COORDINATOR",
                                       weft_config_text(settings->config, "client.coordinator"));
    WEFT_TRY(find_launcher(options, settings, coordinator.value[0], error));
    if (!coordinator.value[0] && settings->launcher.coordinator[0]) {
        coordinator = (struct chosen){settings->launcher.coordinator, settings->launcher.name};
        settings->workers = settings->launcher.ranks;
        settings->workers_source = settings->launcher.name;
        if (strcmp(weft_config_source(settings->config, "job.name"), "default") == 0)
            WEFT_TRY(weft_config_set(settings->config, "job.name", settings->launcher.job,
                                     settings->launcher.name, error));
    }
    WEFT_TRY(resolve_text(settings, options->job, "WEFT_JOB", "job.name", &settings->job, error));
    if (strlen(settings->job) < 1 || strlen(settings->job) > WEFT_LIMIT_NAME_BYTES)
        return weft_error_set(error, WEFT_ERR_INVALID, "the job's name must have 1 to %u bytes",
                              WEFT_LIMIT_NAME_BYTES);
    if (!weft_text_is_printable(settings->job))
        return weft_error_set(error, WEFT_ERR_INVALID, "job '%s': a job's name holds no control characters",
                              settings->job);
    return resolve_coordinator(env, coordinator, settings, error);
}

/* If the number of ranks is known, no other process needs to coordinate: rank 0 does. A given coordinator has
 * one port; a derived one has a list. */
static enum weft_status resolve_ports(struct client_settings *settings, struct weft_error *error)
{
    long long ranks = (long long)weft_config_u64(settings->config, "client.ranks");
    struct chosen chosen = choose(NULL, "WEFT_RANKS", NULL);
    const bool is_derived = settings->workers_source != NULL;
    if (chosen.value)
        WEFT_TRY(parse_number(chosen, "the number of ranks", 0, WEFT_LIMIT_WORKERS, &ranks, error));
    if (ranks > 0) {
        settings->workers = (uint32_t)ranks;
        settings->workers_source = "WEFT_RANKS";
    }
    if (settings->workers == 0) return WEFT_OK;
    if (settings->rank < 0)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "WEFT_RANKS=%u is set and this process has no rank; set WEFT_RANK to a number "
                              "from 0 to %u",
                              settings->workers, settings->workers - 1);
    if ((uint32_t)settings->rank >= settings->workers)
        return weft_error_set(
            error, WEFT_ERR_INVALID, "rank %d is set, and %u ranks by %s; the rank is a number from 0 to %u",
            settings->rank, settings->workers, settings->workers_source, settings->workers - 1);
    settings->port_count = is_derived ? WEFT_LAUNCHER_PORTS : 1;
    for (uint32_t k = 0; k < settings->port_count; k++)
        settings->ports[k] = weft_launcher_port(settings->port, k);
    return WEFT_OK;
}

static enum weft_status resolve(struct weft_env *env, const struct weft_options *options,
                                struct client_settings *settings, struct weft_error *error)
{
    WEFT_TRY(weft_config_load(env, &settings->config, error));
    WEFT_TRY(resolve_text(settings, options->lanes, NULL, "transport.lanes", &settings->lanes, error));
    WEFT_TRY(resolve_text(settings, options->devices, NULL, "transport.devices", &settings->devices, error));
    WEFT_TRY(resolve_job(env, options, settings, error));
    settings->store = weft_config_text(settings->config, "server.store");
    WEFT_TRY(resolve_secret(env, options, settings, error));
    WEFT_TRY(resolve_plans(settings, error));
    WEFT_TRY(weft_devices_check(settings->devices, settings->secret, error));
    WEFT_TRY(resolve_numbers(options, settings, error));
    return resolve_ports(settings, error);
}

enum weft_status client_settings_resolve(struct weft_env *env, const struct weft_options *options,
                                        struct client_settings *settings_out, struct weft_error *error)
{
    struct weft_options own = DEFAULTS;
    struct client_settings settings = {0};
    struct weft_error wrong = {0};
    enum weft_status status = WEFT_OK;
    if (options)
        status = client_sized_copy_in(&own, sizeof own, options,
                                      client_sized_end(struct weft_options, coordinator), "options", &wrong);
    if (status < 0) return weft_error_set(error, status, "%s; begin with weft_options_init", wrong.text);
    status = resolve(env, &own, &settings, error);
    if (status < 0) {
        client_settings_free(env, &settings);
        return status;
    }
    *settings_out = settings;
    return WEFT_OK;
}

void client_settings_free(struct weft_env *env, struct client_settings *settings)
{
    weft_config_free(settings->config);
    weft_free_bytes(env, settings->host);
    if (settings->secret) explicit_bzero(settings->secret, strlen(settings->secret));
    weft_free_bytes(env, settings->secret);
    *settings = (struct client_settings){0};
}
