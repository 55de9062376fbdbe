/* coordinate.c - see coordinate.h. */
#include "tools/run/coordinate.h"

#include <stdio.h>

#include "coordinator/coordinator.h"

/* Takes the options that weftd takes for its coordinator. */
static enum weft_status configure(struct weft_coordinator_options *options, struct weft_error *error)
{
    struct weft_config *config;
    WEFT_TRY(weft_config_load(weft_env_system(), &config, error));
    options->heartbeat_ns = weft_config_u64(config, "server.heartbeat");
    options->resume_ns = weft_config_u64(config, "server.resume");
    options->wire_newest = (uint32_t)weft_config_u64(config, "job.wire_version");
    weft_config_free(config);
    return WEFT_OK;
}

struct weft_coordinator_thread *tool_coordinator_start(const char *command, const char *host, uint16_t port,
                                                       const char *job, const char *secret, uint32_t workers,
                                                       uint32_t workers_min, uint32_t workers_max,
                                                       uint16_t *port_out)
{
    struct weft_error error = {0};
    struct weft_coordinator_options options;
    struct weft_coordinator_thread *coordinator = NULL;
    weft_coordinator_options_init(&options);
    options.job = job;
    options.secret = secret;
    options.workers = workers;
    options.workers_min = workers_min;
    options.workers_max = workers_max;
    options.shards = 0;
    enum weft_status status = configure(&options, &error);
    if (status == WEFT_OK)
        status = weft_coordinator_thread_start(weft_env_system(), host, port, &options, port_out,
                                               &coordinator, &error);
    if (status == WEFT_OK) return coordinator;
    fprintf(stderr, "%s: cannot coordinate the job: %s\n", command,
            error.text[0] ? error.text : weft_reason_text(status));
    return NULL;
}

void tool_coordinator_stop(struct weft_coordinator_thread *coordinator, uint64_t wait_ms)
{
    if (!coordinator) return;
    if (wait_ms > 0) weft_coordinator_thread_wait(coordinator, WEFT_MS(wait_ms));
    weft_coordinator_thread_stop(coordinator);
}
