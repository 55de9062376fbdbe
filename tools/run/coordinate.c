/* coordinate.c - see coordinate.h. */
#include "tools/run/coordinate.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "server/server.h"

#define DRAIN_POLL_NS WEFT_MS(20)

struct tool_coordinator {
    struct weft_net *net;
    struct weft_coordinator_server *server;
    bool ended;                 /* written and read by the net thread */
    atomic_bool ended_in_order; /* the job ended in order; written by the net thread */
    atomic_bool is_drained;     /* the job ended and no connection is left; written by the net thread */
};

static void on_ended(void *context, enum weft_status status, const char *text)
{
    (void)text; /* each process prints the reason itself */
    struct tool_coordinator *coordinator = context;
    coordinator->ended = true;
    atomic_store(&coordinator->ended_in_order, status == WEFT_OK);
}

static void check_drained(void *context)
{
    struct tool_coordinator *coordinator = context;
    if (coordinator->ended && weft_coordinator_server_connections(coordinator->server) == 0)
        atomic_store(&coordinator->is_drained, true);
}

static enum weft_status start(struct tool_coordinator *coordinator, const char *host, uint16_t port,
                              const struct weft_coordinator_options *options, uint16_t *port_out,
                              struct weft_error *error)
{
    struct weft_env *env = weft_env_system();
    WEFT_TRY(weft_net_create(env, &coordinator->net));
    WEFT_TRY(weft_coordinator_server_start(env, coordinator->net, host, port, options, port_out,
                                           &coordinator->server, error));
    WEFT_TRY(weft_net_timer_periodic(coordinator->net, DRAIN_POLL_NS, check_drained, coordinator));
    return weft_net_start(coordinator->net);
}

/* Takes the options that weftd takes for its coordinator. */
static enum weft_status configure(struct weft_coordinator_options *options, struct weft_error *error)
{
    struct weft_config *config;
    WEFT_TRY(weft_config_load(weft_env_system(), &config, error));
    options->heartbeat_ns = weft_config_u64(config, "server.heartbeat");
    weft_config_free(config);
    return WEFT_OK;
}

struct tool_coordinator *tool_coordinator_start(const char *command, const char *host, uint16_t port,
                                                const char *job, const char *secret, uint32_t workers,
                                                uint32_t workers_min, uint32_t workers_max,
                                                uint16_t *port_out)
{
    struct weft_error error = {0};
    struct weft_coordinator_options options;
    struct tool_coordinator *coordinator = calloc(1, sizeof *coordinator);
    weft_coordinator_options_init(&options);
    options.job = job;
    options.secret = secret;
    options.workers = workers;
    options.workers_min = workers_min;
    options.workers_max = workers_max;
    options.shards = 0;
    options.ended = on_ended;
    options.context = coordinator;
    enum weft_status status = coordinator ? configure(&options, &error) : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) status = start(coordinator, host, port, &options, port_out, &error);
    if (status == WEFT_OK) return coordinator;
    fprintf(stderr, "%s: cannot coordinate the job: %s\n", command,
            error.text[0] ? error.text : weft_reason_text(status));
    tool_coordinator_stop(coordinator, 0);
    return NULL;
}

bool tool_coordinator_has_ended_in_order(const struct tool_coordinator *coordinator)
{
    return coordinator && atomic_load(&coordinator->ended_in_order);
}

void tool_coordinator_stop(struct tool_coordinator *coordinator, uint64_t wait_ms)
{
    if (!coordinator) return;
    for (uint64_t waited = 0; waited < wait_ms; waited += 10) {
        if (atomic_load(&coordinator->is_drained)) break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    weft_net_free(coordinator->net);
    weft_coordinator_server_free(coordinator->server);
    free(coordinator);
}
