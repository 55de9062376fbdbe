/* ucx_context.c - the UCX context: configuration from settings and environment, and a check of the
 * devices.
 *
 * Lanes use UCX's peer error handling: a dead process is detected and its requests can be ended. "tcp" is
 * tcp and self. "shm" is sysv, cma and self. UCX 1.13 drops shared-memory lanes under error handling; with
 * MM_ERROR_HANDLING it keeps those on System V segments, which a killed process does not leave behind.
 * Over tcp the connection shows a death. Over shm the processes are watched (ucx_process.c); where that is
 * impossible, UCX's keepalive mostly detects it, and weft_transport_fail_peer reports it. Any other text
 * is a UCX_TLS list. Variables that the user has set (UCX_TLS, UCX_NET_DEVICES, UCX_LOG_LEVEL, ...) take
 * precedence.
 *
 * UCX by default prints to the terminal and catches fatal signals. Both are disabled here unless the user
 * has set them. */
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define asm __asm__ /* newer UCX headers use the GNU keyword, which C11 does not have */
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#undef asm

#include "transport/ucx/ucx.h"

/* Log level and signal handling of UCX: silent at the default level, errors from debug on. Both are
 * process-wide, so the first endpoint sets them: sessions may open on several threads, and UCX warns if a
 * signal is restored twice. */
static void silence_ucx_log(struct weft_env *env)
{
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&done)) return;
    if (!getenv("UCX_LOG_LEVEL")) {
        ucs_global_opts.log_component.log_level =
            env->log_level >= WEFT_LOG_DEBUG ? UCS_LOG_LEVEL_ERROR : UCS_LOG_LEVEL_FATAL;
    }
    if (!getenv("UCX_HANDLE_ERRORS")) {
        static const int caught[] = {SIGILL, SIGABRT, SIGFPE, SIGBUS, SIGSEGV};
        for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) ucs_debug_disable_signal(caught[i]);
    }
}

/* Sets a value unless the user's environment has one. */
static enum weft_status configure(ucp_config_t *config, const char *name, const char *value,
                                  struct weft_error *error)
{
    char variable[80];
    snprintf(variable, sizeof variable, "UCX_%s", name);
    if (getenv(variable)) return WEFT_OK;
    ucs_status_t status = ucp_config_modify(config, name, value);
    if (status == UCS_OK) return WEFT_OK;
    return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID, "UCX refuses %s=%s: %s", name, value,
                                            ucs_status_string(status));
}

/* Settings of UCX's tcp transport, prefixed TCP_ in the environment. ucp_config_modify of UCX 1.13 wants
 * no prefix (and ignores prefixed names with a warning); that of 1.20 requires it. So both are tried; the
 * result of the second counts if the first was refused. */
static enum weft_status configure_tcp(ucp_config_t *config, const char *name, const char *value,
                                      struct weft_error *error)
{
    char longer[40], variable[48];
    snprintf(longer, sizeof longer, "TCP_%s", name);
    snprintf(variable, sizeof variable, "UCX_%s", longer);
    if (getenv(variable)) return WEFT_OK;
    if (configure(config, name, value, NULL) == WEFT_OK) error = NULL;
    const enum weft_status status = configure(config, longer, value, error);
    return error ? status : WEFT_OK;
}

/* Applies the settings. */
static enum weft_status configure_all(ucp_config_t *config, const struct ucx_settings *settings,
                                      struct weft_error *error)
{
    WEFT_TRY(configure(config, "TLS", settings->list, error));
    WEFT_TRY(configure(config, "NET_DEVICES", settings->devices, error));
    if (settings->tcp) WEFT_TRY(configure_tcp(config, "CONN_NB", "y", error)); /* connect must not block */
    if (settings->segment_bytes) {
        char bytes[24];
        snprintf(bytes, sizeof bytes, "%" PRIu64, settings->segment_bytes);
        WEFT_TRY(configure_tcp(config, "RX_SEG_SIZE", bytes, error));
        /* buffers are large: allocates only as many as are in use */
        WEFT_TRY(configure_tcp(config, "RX_BUFS_GROW", "2", error));
    }
    if (settings->ports[0]) WEFT_TRY(configure_tcp(config, "PORT_RANGE", settings->ports, error));
    if (settings->shared_memory) WEFT_TRY(configure(config, "MM_ERROR_HANDLING", "y", error));
    if (settings->shared_memory) WEFT_TRY(configure(config, "KEEPALIVE_INTERVAL", "300ms", error));
    return WEFT_OK;
}

/* Lists the UCX_* variables of the user, as far as they fit: they may explain a failed start. */
static void user_variables(char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (char **variable = weft_environment(); variable && *variable; variable++) {
        if (strncmp(*variable, "UCX_", 4) != 0 || strlen(*variable) + used + 3 > out_bytes) continue;
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used ? ", " : "", *variable);
    }
}

static enum weft_status cannot_start(const struct ucx_settings *settings, ucs_status_t ucs,
                                     struct weft_error *error)
{
    char variables[160];
    user_variables(variables, sizeof variables);
    const char *lanes = getenv("UCX_TLS"), *devices = getenv("UCX_NET_DEVICES");
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                          "UCX cannot start on lanes %s, devices %s: %s (ucx_info -d lists both%s%s)",
                          lanes ? lanes : settings->list, devices ? devices : settings->devices,
                          ucs_status_string(ucs), variables[0] ? "; the environment has " : "", variables);
}

/* Whether a lane uses the device. `words` has lines like "resource 1 :  md 1  dev 1  flags -- tcp/lo". */
static bool has_device(const char *words, const char *device, size_t bytes)
{
    for (const char *at = strstr(words, " -- "); at; at = strstr(at + 4, " -- ")) {
        const char *slash = at + 4 + strcspn(at + 4, "/\n");
        if (*slash == '/' && strncmp(slash + 1, device, bytes) == 0 && strchr(": \n", slash[1 + bytes]))
            return true;
    }
    return false;
}

/* UCX ignores an absent device, and no peer would be reachable: checks it here. UCX lists its devices as
 * text only; if the text is cut off, nothing is refused. */
static enum weft_status find_devices(struct ucx_endpoint *endpoint, struct weft_error *error)
{
    enum { ROOM = 64 << 10 };
    const struct ucx_settings *settings = &endpoint->settings;
    const char *user = getenv("UCX_NET_DEVICES"), *devices = user ? user : settings->devices;
    if ((!settings->tcp && !settings->verbs) || devices[0] == '^') return WEFT_OK;
    char *words = weft_alloc_zero(endpoint->transport->env, ROOM);
    if (!words) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a UCX endpoint");
    FILE *stream = fmemopen(words, ROOM - 1, "w");
    if (stream) {
        ucp_context_print_info(endpoint->context, stream);
        fclose(stream);
    }
    bool readable = strstr(words, " -- ") && strlen(words) < ROOM - 256;
    enum weft_status status = WEFT_OK;
    for (const char *at = devices; readable && *at && status == WEFT_OK;) {
        size_t bytes = strcspn(at, ",");
        bool pattern = strcspn(at, "*?[") < bytes || (bytes == 3 && strncmp(at, "all", 3) == 0);
        if (bytes > 0 && !pattern && !has_device(words, at, bytes)) {
            const char *lanes = getenv("UCX_TLS");
            status = weft_error_set(error, WEFT_ERR_NOT_FOUND,
                                    "there is no network device %.*s for lanes %s (%s): ucx_info -d lists "
                                    "what there is; tcp lanes need an IPv4 address",
                                    (int)bytes, at, lanes ? lanes : settings->list,
                                    user ? "UCX_NET_DEVICES" : "transport.devices");
        }
        at += bytes + (at[bytes] == ',');
    }
    weft_free_bytes(endpoint->transport->env, words);
    return status;
}

enum weft_status ucx_context_open(struct ucx_endpoint *endpoint, struct weft_error *error)
{
    silence_ucx_log(endpoint->transport->env);
    const struct ucx_settings *settings = &endpoint->settings;
    ucp_config_t *config;
    ucs_status_t ucs = ucp_config_read(NULL, NULL, &config);
    if (ucs != UCS_OK) {
        char variables[160];
        user_variables(variables, sizeof variables);
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "UCX cannot read its settings from the environment (%s): %s", variables,
                              ucs_status_string(ucs));
    }
    enum weft_status status = configure_all(config, settings, error);
    if (status < 0) {
        ucp_config_release(config);
        return status;
    }
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
    };
    if (settings->verbs && settings->direct) params.features |= UCP_FEATURE_RMA;
    ucs = ucp_init(&params, config, &endpoint->context);
    ucp_config_release(config);
    if (ucs != UCS_OK) return cannot_start(settings, ucs, error);
    status = find_devices(endpoint, error);
    if (status < 0) {
        ucp_cleanup(endpoint->context);
        return status;
    }
    ucp_context_attr_t found = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    if (ucp_context_query(endpoint->context, &found) == UCS_OK) endpoint->memory_types = found.memory_types;
    snprintf(endpoint->transport->name, sizeof endpoint->transport->name, "ucx %.50s", settings->lanes);
    return WEFT_OK;
}
