/* process.c - settings and log of the process. The first init reads the options; they stay as they are
 * until the process ends, also when NCCL closes the library (-z nodelete). */
#include "nccl/net/net.h"

#include <stdio.h>
#include <string.h>

static pthread_mutex_t once_lock = PTHREAD_MUTEX_INITIALIZER;
static struct net_process process;
static _Atomic(struct net_process *) ready;
static _Atomic(nccl_logger_fn) current_logger;

/* ---- log ---- */

static void log_line(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    nccl_logger_fn logger = current_logger;
    if (logger)
        logger(level <= WEFT_LOG_WARN ? NCCL_LOG_LEVEL_WARN : NCCL_LOG_LEVEL_INFO, NCCL_SUBSYSTEM_NET, "weft",
               0, "NET/weft: %s: %s", module, text);
    else weft_env_system()->log(env, level, module, text);
}

enum nccl_result net_result(enum weft_status status)
{
    switch (status) {
    case WEFT_OK:
    case WEFT_IN_PROGRESS: return NCCL_RESULT_SUCCESS;
    case WEFT_ERR_TRUNCATED: return NCCL_RESULT_USAGE;
    case WEFT_ERR_PEER_LOST:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_AUTH:
    case WEFT_ERR_VERSION:
    case WEFT_ERR_ABORTED: /* another rank has ended the job of the fleet */
    case WEFT_ERR_DEADLINE: return NCCL_RESULT_REMOTE;
    case WEFT_ERR_INVALID: return NCCL_RESULT_ARGUMENT;
    case WEFT_ERR_MALFORMED:
    case WEFT_ERR_STATE: return NCCL_RESULT_INTERNAL;
    default: return NCCL_RESULT_SYSTEM;
    }
}

enum nccl_result net_report(enum weft_status status, const char *format, ...)
{
    char text[NET_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct weft_env *env = net_process() ? &net_process()->env : weft_env_system();
    weft_log(env, WEFT_LOG_WARN, "nccl", "%s", text);
    return net_result(status);
}

/* ---- options ---- */

static enum weft_status copy_text(const struct weft_config *config, const char *name, char *out, size_t bytes,
                                  struct weft_error *error)
{
    const char *text = weft_config_text(config, name);
    if (snprintf(out, bytes, "%s", text) < (int)bytes) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_LIMIT, "%s is longer than %zu bytes", name, bytes - 1);
}

/* Settings of the transport unless the user gives some. Over shared memory both ranks copy through staging
 * memory, so no peer, not even a stopped one, accesses NCCL's memory after deregMr. Over tcp the messages
 * that NCCL has open (eight of 512 KiB) fit into the budget. */
static void default_tune(void)
{
    static const char *const table[][2] = {
        {"shm", "cma=off"}, {"auto", "shm.cma=off"}, {"tcp", "budget=16m"}};
    for (size_t i = 0; i < sizeof table / sizeof *table && !process.tune[0]; i++)
        if (strcmp(process.backend, table[i][0]) == 0)
            snprintf(process.tune, sizeof process.tune, "%s", table[i][1]);
}

static enum weft_status read_options(const struct weft_config *config, struct weft_error *error)
{
    const char *secret_file = weft_config_text(config, "job.secret_file");
    WEFT_TRY(copy_text(config, "transport.backend", process.backend, sizeof process.backend, error));
    WEFT_TRY(copy_text(config, "transport.lanes", process.lanes, sizeof process.lanes, error));
    WEFT_TRY(copy_text(config, "transport.ports", process.ports, sizeof process.ports, error));
    WEFT_TRY(copy_text(config, "transport.tune", process.tune, sizeof process.tune, error));
    WEFT_TRY(copy_text(config, "transport.wrap", process.wrap, sizeof process.wrap, error));
    WEFT_TRY(copy_text(config, "nccl.trace", process.trace, sizeof process.trace, error));
    WEFT_TRY(copy_text(config, "nccl.fleet", process.fleet, sizeof process.fleet, error));
    default_tune();
    process.eager_bytes = weft_config_u64(config, "transport.eager_bytes");
    process.deadline_ns = weft_config_u64(config, "nccl.deadline");
    process.is_reproducible = weft_config_bool(config, "nccl.reproducible");
    if (secret_file[0]) WEFT_TRY(weft_secret_file_read(secret_file, process.secret, error));
    return net_devices_read(&process, weft_config_text(config, "transport.devices"), error);
}

static enum weft_status load(struct weft_error *error)
{
    struct weft_config *config = NULL;
    process.env = *weft_env_system();
    process.env.log = log_line;
    WEFT_TRY(weft_config_load(&process.env, &config, error));
    /* NCCL has its own limit, NCCL_DEBUG, so information passes unless log.level is set */
    if (strcmp(weft_config_source(config, "log.level"), "default") == 0)
        process.env.log_level = WEFT_LOG_INFO;
    enum weft_status status = read_options(config, error);
    weft_config_free(config);
    return status;
}

struct net_process *net_process(void)
{
    return ready;
}

enum nccl_result net_process_init(nccl_logger_fn logger)
{
    struct weft_error error = {0};
    enum weft_status status = WEFT_OK;
    if (logger) current_logger = logger;
    pthread_mutex_lock(&once_lock);
    if (!ready) {
        status = load(&error);
        if (status == WEFT_OK) ready = &process;
    }
    pthread_mutex_unlock(&once_lock);
    if (status == WEFT_OK) return NCCL_RESULT_SUCCESS;
    log_line(&process.env, WEFT_LOG_WARN, "nccl", error.text);
    return net_result(status);
}
