/* weftd.c - the shard process: order of start and stop.
 *
 *     options -> net (embedded coordinator, HTTP, port file) -> member of the job -> ... -> end
 *
 * A shard joins through the coordinator's socket, also if the coordinator runs in the same process. The main
 * thread starts everything, sleeps on a signalfd and an eventfd, and stops everything. The net thread makes
 * the decisions (weftd_control.c). After a failure the process waits GRACE_NS, so that error results and
 * MemberLost reach the peers. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "server/daemon/weftd.h"

#define GRACE_NS WEFT_MS(300)    /* after a failure: time for error results to be sent */
/* longest time that an embedded coordinator waits for its members to close */
#define OTHERS_NS WEFT_SECONDS(2)

void weftd_options_init(struct weftd_options *options)
{
    *options = (struct weftd_options){
        .size = sizeof *options, .port = -1, .http_port = -1, .workers = 1, .shards = 1, .index = -1};
}

/* ---- options ---- */

static enum weft_status complete_options(const struct weftd_options *given, struct weftd_options *options,
                                         struct weft_error *error)
{
    WEFT_ASSERT(given->size == sizeof *given && given->config);
    const struct weft_config *config = given->config;
    *options = *given;
    if (!options->job) options->job = weft_config_text(config, "job.name");
    if (!options->listen) options->listen = weft_config_text(config, "server.listen");
    /* ::1 on a host without IPv4 */
    if (strcmp(options->listen, "127.0.0.1") == 0) options->listen = weft_loopback_host();
    if (!options->restore) options->restore = weft_config_text(config, "snapshot.restore");
    if (!options->lanes) options->lanes = weft_config_text(config, "transport.lanes");
    if (!options->devices) options->devices = weft_config_text(config, "transport.devices");
    if (options->port < 0) options->port = (int)weft_config_u64(config, "server.port");
    if (options->engines == 0) options->engines = (uint32_t)weft_config_u64(config, "server.engines");
    if (options->engines > WEFT_LIMIT_ENGINES)
        return weft_error_set(error, WEFT_ERR_INVALID, "%u engines are too many: a shard has 1 to %u",
                              options->engines, WEFT_LIMIT_ENGINES);
    if (options->coordinator && given->port >= 0)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "a port is for the coordinator in this process, but one was given to join at %.100s",
            options->coordinator);
    if (options->joins && (!options->coordinator || options->index >= 0 || options->restore[0]))
        return weft_error_set(
            error, WEFT_ERR_INVALID, "%s",
            !options->coordinator ? "a shard that joins a job that runs needs --coordinator, "
                                    "the address of that job"
            : options->index >= 0 ? "a shard that joins a job that runs gets the next number; "
                                    "give no --index"
                                  : "a shard that joins a job that runs restores no snapshot; "
                                    "give no --restore");
    if (!options->coordinator && options->shards == 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "a job coordinated by a shard has at least 1 shard");
    WEFT_TRY(weft_config_check(config, !options->coordinator, NULL, NULL, error));
    WEFT_TRY(weftd_snapshots_check(options, error));
    WEFT_TRY(weft_listen_check(options->listen, options->secret, error));
    return weft_devices_check(options->devices, options->secret, error);
}

enum weft_status weftd_options_check(const struct weftd_options *given, struct weft_error *error)
{
    struct weftd_options options;
    char host[256];
    uint16_t port;
    WEFT_TRY(complete_options(given, &options, error));
    return options.coordinator ? weft_host_port_parse(options.coordinator, host, &port, error) : WEFT_OK;
}

/* ---- start ---- */

/* The options of a job that another process has coordinated are in the record of the store. */
static void set_job_options(const struct weftd *weftd, struct weft_coordinator_options *options)
{
    const struct weft_config *config = weftd->options.config;
    if (weftd->again->is_due) {
        *options = weftd->again->next.options;
        return;
    }
    weft_coordinator_options_init(options);
    options->heartbeat_ns = weft_config_u64(config, "server.heartbeat");
    options->resume_ns = weft_config_u64(config, "server.resume");
    options->copies = (uint32_t)weft_config_u64(config, "server.copies");
    options->copies_on_one_host = weft_config_bool(config, "server.copies_on_one_host");
    options->snapshots.allow_rollback = weft_config_bool(config, "server.rollback");
}

static enum weft_status start_coordinator(struct weftd *weftd, const char *reachable, uint16_t *port_out,
                                          struct weft_error *error)
{
    struct weft_coordinator_options options;
    set_job_options(weftd, &options);
    options.reachable = reachable;
    options.job = weftd->options.job;
    options.secret = weftd->options.secret;
    options.workers = weftd->options.workers;
    options.shards = weftd->options.shards;
    options.workers_min = weftd->options.workers_min;
    options.workers_max = weftd->options.workers_max;
    options.wire_newest = weftd_wire_newest(weftd);
    const char *store = weft_config_text(weftd->options.config, "server.store");
    options.store = store[0] ? store : NULL;
    options.replaced = weftd_coordinator_replaced;
    options.ended = weftd_coordinator_ended;
    options.context = weftd;
    if (weftd->again->restore[0]) options.snapshots.is_rolled_back = true;
    weftd_restore_coordinate(weftd, &options);
    weftd_snapshots_coordinate(weftd, &options);
    return weft_coordinator_server_start(weftd->env, weftd->net, weftd->options.listen,
                                         (uint16_t)weftd->options.port, &options, port_out,
                                         &weftd->coordinator, error);
}

static bool is_wildcard(const char *host) { return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0; }

/* Writes the host that peers should connect to. A wildcard address is replaced by the host name. */
static void reachable_host(const char *listen, char *out, size_t out_bytes)
{
    char name[65] = "";
    bool named = is_wildcard(listen) && gethostname(name, sizeof name - 1) == 0;
    const char *host = named ? name : listen;
    bool v6 = strchr(host, ':') != NULL;
    snprintf(out, out_bytes, v6 ? "[%s]" : "%s", host);
}

static enum weft_status write_port_file(const char *path, const char *text, struct weft_error *error)
{
    const int reason = weft_replace_file(path, text, strlen(text), 0644);
    if (reason == 0) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_IO, "cannot write the port file %.200s: %s", path,
                          strerror(reason));
}

/* Logs one line with the addresses, also at the default log level: an operator or a script needs the port
 * that the system has chosen. At the log level error, and in simulations, there is no such line. */
static void announce(const struct weftd *weftd, const char *shown, uint16_t port, uint16_t http_port)
{
    const struct weftd_options *options = &weftd->options;
    char text[900], http[340] = "";
    if (http_port) snprintf(http, sizeof http, "; HTTP at %s:%u", shown, http_port);
    if (options->coordinator)
        snprintf(text, sizeof text, "shard of job %.200s on %s, coordinator at %.300s%s", options->job, shown,
                 options->coordinator, http);
    else
        snprintf(text, sizeof text, "coordinator of job %.200s at %s:%u, for %u worker%s and %u shard%s%s",
                 options->job, shown, port, options->workers, options->workers == 1 ? "" : "s",
                 options->shards, options->shards == 1 ? "" : "s", http);
    if (weftd->env->log_level == WEFT_LOG_WARN && !weftd->env->virtual_time)
        weftd->env->log(weftd->env, WEFT_LOG_INFO, "weftd", text);
    else weft_log(weftd->env, WEFT_LOG_INFO, "weftd", "%s", text);
}

static void on_warning(void *context, const char *text)
{
    weft_log(context, WEFT_LOG_WARN, "weftd", "%s", text);
}

/* Starts the listeners, then joins, then writes the port file, then starts the net thread. */
static enum weft_status start(struct weftd *weftd, struct weft_error *error)
{
    char host[256], shown[300], ports[900] = "";
    uint16_t port = 0, http_port = 0;
    WEFT_TRY(
        weft_config_check(weftd->options.config, !weftd->options.coordinator, on_warning, weftd->env, error));
    WEFT_TRY(weftd_restore_load(weftd, error));
    WEFT_TRY(weftd_snapshots_start(weftd, error));
    reachable_host(weftd->options.listen, shown, sizeof shown);
    if (weftd->options.coordinator) {
        WEFT_TRY(weft_host_port_parse(weftd->options.coordinator, host, &port, error));
        weftd->state.coordinator_done = true;
        snprintf(ports, sizeof ports, "coordinator=%.300s\n", weftd->options.coordinator);
    } else {
        WEFT_TRY(start_coordinator(weftd, shown, &port, error));
        weftd->outcome.rollback.port = port;
        snprintf(host, sizeof host, "%s",
                 is_wildcard(weftd->options.listen) ? weft_loopback_host() : weftd->options.listen);
        snprintf(ports, sizeof ports, "coordinator=%s:%u\n", shown, port);
    }
    if (weftd->options.http_port >= 0) {
        WEFT_TRY(weftd_http_start(weftd, &http_port, error));
        size_t used = strlen(ports);
        snprintf(ports + used, sizeof ports - used, "http=%s:%u\n", shown, http_port);
    }
    announce(weftd, shown, port, http_port);
    WEFT_TRY(weftd_takeover_start(weftd, shown, error));
    WEFT_TRY(weftd_control_start(weftd, host, port, error));
    if (weftd->options.port_file) WEFT_TRY(write_port_file(weftd->options.port_file, ports, error));
    enum weft_status status = weft_net_start(weftd->net);
    if (status != WEFT_OK)
        return weft_error_set(error, status, "cannot start the control thread: %s", weft_reason_text(status));
    return WEFT_OK;
}

/* ---- waiting and end ---- */

struct interrupt_request {
    struct weft_command command;
    struct weftd *weftd;
    const char *signal_name;
};

static void on_interrupt(struct weft_command *command)
{
    struct interrupt_request *request = weft_container_of(command, struct interrupt_request, command);
    weftd_interrupted(request->weftd, request->signal_name);
}

/* For an env with virtual time, which has no signals and no descriptors. */
static bool is_stopped(void *context)
{
    struct weftd *weftd = context;
    return atomic_load(&weftd->outcome.stopped);
}

/* Returns when the net thread has set `stopped`. The first signal ends the job, or with copies drains the
 * shard; the second one ends the job; later signals have no effect. */
static void wait_for_end(struct weftd *weftd, int signal_fd, struct interrupt_request request[2])
{
    uint32_t signals = 0;
    if (weftd->env->virtual_time) {
        (void)weftd->env->virtual_time->wait(weftd->env, is_stopped, weftd, WEFT_NEVER);
        return;
    }
    struct pollfd fds[2] = {{.fd = weftd->wake_fd, .events = POLLIN}, {.fd = signal_fd, .events = POLLIN}};
    while (!atomic_load(&weftd->outcome.stopped)) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
        struct signalfd_siginfo info;
        if (!(fds[1].revents & POLLIN) || read(signal_fd, &info, sizeof info) != sizeof info || signals == 2)
            continue;
        request[signals] =
            (struct interrupt_request){.command.fn = on_interrupt,
                                       .weftd = weftd,
                                       .signal_name = info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT"};
        weft_net_post(weftd->net, &request[signals++].command);
    }
}

struct count_request {
    struct weft_command command;
    struct weftd *weftd;
    uint32_t count;
    atomic_bool has_replied;
};

static void on_count(struct weft_command *command)
{
    struct count_request *request = weft_container_of(command, struct count_request, command);
    request->count = weft_coordinator_server_connections(request->weftd->coordinator);
    atomic_store(&request->has_replied, true);
}

/* Waits until the members have read the end of the job and closed their connections. */
static void wait_for_others(struct weftd *weftd)
{
    uint64_t deadline_ns = weft_now_ns(weftd->env) + OTHERS_NS;
    while (weft_now_ns(weftd->env) < deadline_ns) {
        struct count_request request = {.command.fn = on_count, .weftd = weftd};
        weft_net_post(weftd->net, &request.command);
        while (!atomic_load(&request.has_replied)) weft_pause(weftd->env, WEFT_MS(1));
        if (request.count == 0) return;
        weft_pause(weftd->env, WEFT_MS(10));
    }
}

/* Returns whether the process joins the job again: its coordinator was lost before the job began, or the job
 * begins again from a snapshot. */
static bool release(struct weftd *weftd, const struct weft_error *error, struct weftd_again *again)
{
    weft_net_free(weftd->http); /* first: its pages use everything below */
    weftd_engines_stop(weftd);
    weftd_snapshots_stop(weftd);
    weft_net_free(weftd->net);
    const bool begins_again =
        weftd_rollback_is_due(weftd, again) || weftd_takeover_is_early(weftd, error, again);
    weftd_commands_free(weftd);
    weftd_engines_free(weftd);
    weftd_snapshots_free(weftd);
    weftd_restore_free(weftd);
    weft_control_client_free(weftd->member);
    weft_coordinator_server_free(weftd->coordinator);
    weft_candidate_free(weftd->candidate);
    weft_free_bytes(weftd->env, weftd->tensors.all);
    weft_control_free(weftd->env, weftd->roster);
    weftd_members_free(weftd);
    weftd_shards_added_free(weftd);
    weftd_view_free(weftd);
    if (weftd->wake_fd >= 0) close(weftd->wake_fd);
    return begins_again;
}

static enum weft_status run(struct weftd *weftd, const struct weftd_options *options, int signal_fd,
                            struct weft_error *error)
{
    struct interrupt_request request[2];
    WEFT_TRY(complete_options(options, &weftd->options, error));
    weft_log_source_set(weftd->options.job, NULL, 0);
    weftd->wake_fd = weftd->env->virtual_time ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (weftd->wake_fd < 0 && !weftd->env->virtual_time)
        return weft_limit_error(error, "the main loop", errno, "cannot start");
    enum weft_status status = weft_net_create(weftd->env, &weftd->net);
    if (status != WEFT_OK)
        return weft_error_set(error, status, "cannot start networking: %s", weft_reason_text(status));
    WEFT_TRY(start(weftd, error));
    wait_for_end(weftd, signal_fd, request);
    if (weftd->outcome.exit_status != 0) weft_pause(weftd->env, GRACE_NS);
    if (weftd->coordinator) wait_for_others(weftd);
    return WEFT_OK;
}

/* Returns as release. */
static bool run_once(struct weft_env *env, const struct weftd_options *options, int signal_fd,
                     struct weftd_again *again, char label_out[32], struct weft_error *error_out)
{
    struct weftd weftd = {.env = env,
                          .again = again,
                          .wake_fd = -1,
                          .started_ns = weft_now_ns(env),
                          .label = "shard",
                          .outcome.lost_endpoint = UINT32_MAX};
    weft_list_init(&weftd.requests);
    *error_out = (struct weft_error){0};
    if (signal_fd < 0 && !env->virtual_time)
        (void)weft_limit_error(error_out, "signals", errno, "cannot start");
    else (void)run(&weftd, options, signal_fd, error_out);
    if (error_out->status == WEFT_OK && weftd.outcome.exit_status != 0) *error_out = weftd.outcome.end;
    snprintf(label_out, sizeof weftd.label, "%s", weftd.label);
    return release(&weftd, error_out, again);
}

int weftd_run(struct weft_env *env, const struct weftd_options *options)
{
    sigset_t taken, before;
    sigemptyset(&taken);
    sigaddset(&taken, SIGTERM);
    sigaddset(&taken, SIGINT);
    pthread_sigmask(SIG_BLOCK, &taken, &before); /* before any thread is started: threads inherit the mask */
    int signal_fd = env->virtual_time ? -1 : signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);

    struct weftd_options own = *options;
    struct weftd_again again = {.began_ns = weft_now_ns(env)};
    struct weft_error error;
    char label[32];
    while (run_once(env, &own, signal_fd, &again, label, &error)) {
        if (again.is_rolled_back) weftd_rollback_begin_again(env, &own, &again);
        else if (!weftd_takeover_begin_again(env, &own, &again)) break;
    }
    if (error.status != WEFT_OK) weft_log(env, WEFT_LOG_ERROR, "weftd", "%s: %s", label, error.text);
    struct signalfd_siginfo late; /* consume signals that arrived during the end: unblocked, they would
                                   * kill the process */
    while (signal_fd >= 0 && read(signal_fd, &late, sizeof late) == sizeof late) continue;
    if (signal_fd >= 0) close(signal_fd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error.status == WEFT_OK ? 0 : 1;
}
