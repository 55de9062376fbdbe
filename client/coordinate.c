/* coordinate.c - the coordinator of a job without shards: rank 0 starts it, the other ranks search for it.
 *
 *     rank 0       port free                              listen there
 *                  a coordinator of this job waits there  join it
 *                  another process listens there          next port of the list
 *     other ranks  search all ports of the list until the coordinator of this job waits at one
 *
 * All ranks derive the same list (settings.c). A coordinator names its job and whether the job has begun, so
 * a second session, and a session after weft_finalize, find their own coordinator. */
#include "client/coordinate.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "client/session/session.h"
#include "client/session/settings.h"
#include "client/session/wait.h"

#define LOOK_NS WEFT_SECONDS(1)       /* at the process that listens at a port of the list */

/* Writes "30500, 31500". */
static void list_ports(const struct client_settings *settings, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (uint32_t k = 0; k < settings->port_count && used < out_bytes; k++) {
        int n = snprintf(out + used, out_bytes - used, "%s%u", k > 0 ? ", " : "", settings->ports[k]);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* ---- rank 0 ---- */

/* Does this host resolve the name, which is its own, to loopback? Other hosts resolve it to another address.
 */
static bool is_name_of_loopback(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    const bool is_number = strspn(host, "0123456789.") == strlen(host) || strchr(host, ':');
    if (is_number || strcmp(host, "localhost") == 0 || getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    const struct sockaddr *address = found->ai_addr;
    const bool is_loopback =
        address->sa_family == AF_INET &&
        ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
    freeaddrinfo(found);
    return is_loopback;
}

/* The address that rank 0 listens at. Any address but loopback requires a secret. */
static const char *listen_host(const struct client_settings *settings)
{
    return settings->secret && is_name_of_loopback(settings->host) ? "0.0.0.0" : settings->host;
}

static enum weft_status listen_at(struct weft_session *session, uint16_t port, struct weft_error *error)
{
    const struct client_settings *settings = &session->settings;
    struct weft_coordinator_options options;
    weft_coordinator_options_init(&options);
    options.job = settings->job;
    options.secret = settings->secret;
    options.workers = settings->workers;
    options.heartbeat_ns = weft_config_u64(settings->config, "server.heartbeat");
    options.resume_ns = weft_config_u64(settings->config, "server.resume");
    options.join_ns = settings->deadline_ns;
    options.wire_newest = settings->wire_newest;
    return weft_coordinator_thread_start(session->env, listen_host(settings), port, &options, NULL,
                                         &session->coordinator, error);
}

static enum weft_status all_in_use(struct weft_session *session, const char *seen)
{
    const struct client_settings *settings = &session->settings;
    char ports[80];
    list_ports(settings, ports, sizeof ports);
    return weft_error_set(&session->failure.error, WEFT_ERR_EXISTS,
                          "rank 0 cannot coordinate job %.60s: at %.60s other processes listen at every port "
                          "of %s (%.160s); set another %s in every process",
                          settings->job, settings->host, ports, seen,
                          settings->port_count == 1 ? "port in WEFT_COORDINATOR" : "MASTER_PORT");
}

static enum weft_status start(struct weft_session *session)
{
    struct client_settings *settings = &session->settings;
    char seen[400] = "";
    for (uint32_t k = 0; k < settings->port_count; k++) {
        struct weft_error error = {0};
        settings->port = settings->ports[k];
        const enum weft_status status = listen_at(session, settings->port, &error);
        if (status == WEFT_OK) {
            weft_log(session->env, WEFT_LOG_INFO, "client",
                     "rank 0 coordinates job %.100s of %u ranks at %s:%u", settings->job, settings->workers,
                     settings->host, settings->port);
            return WEFT_OK;
        }
        if (status != WEFT_ERR_EXISTS)
            return weft_error_set(&session->failure.error, status,
                                  "rank 0 cannot coordinate job %.100s: %.300s", settings->job, error.text);
        if (weft_coordinator_find(session->env, settings->host, &settings->port, 1, settings->job, LOOK_NS,
                                  &settings->port, seen, sizeof seen) == WEFT_OK)
            return WEFT_OK;
    }
    return all_in_use(session, seen);
}

/* ---- the other ranks ---- */

static void report(struct weft_session *session, const char *seen)
{
    const struct client_settings *settings = &session->settings;
    const uint64_t now_ns = weft_now_ns(session->env);
    session->live.init_report_ns = weft_deadline_ns(now_ns, WEFT_WAIT_REASON_PERIOD_NS);
    weft_log(session->env, WEFT_LOG_WARN, "client",
             "rank %d has waited %.1f s in weft_init: rank 0, which coordinates job %.100s, does not listen "
             "at %.100s yet (%.300s)",
             settings->rank, (double)weft_elapsed_ns(session->live.init_began_ns, now_ns) / 1e9,
             settings->job, settings->host, seen);
}

static enum weft_status search(struct weft_session *session, uint64_t until_ns)
{
    struct client_settings *settings = &session->settings;
    char seen[400] = "", ports[80];
    session->live.init_report_ns = weft_deadline_ns(session->live.init_began_ns, WEFT_WAIT_REASON_FIRST_NS);
    for (;;) {
        const uint64_t now_ns = weft_now_ns(session->env);
        const uint64_t next_ns =
            session->live.init_report_ns < until_ns ? session->live.init_report_ns : until_ns;
        const enum weft_status status = weft_coordinator_find(
            session->env, settings->host, settings->ports, settings->port_count, settings->job,
            weft_elapsed_ns(now_ns, next_ns), &settings->port, seen, sizeof seen);
        if (status == WEFT_OK) return WEFT_OK;
        if (status != WEFT_ERR_DEADLINE)
            return weft_error_set(&session->failure.error, status,
                                  "cannot search for the coordinator at %.100s: %s", settings->host,
                                  weft_reason_text(status));
        if (next_ns == until_ns) break;
        report(session, seen);
    }
    list_ports(settings, ports, sizeof ports);
    return weft_error_set(&session->failure.error, WEFT_ERR_UNREACHABLE,
                          "rank 0, which coordinates job %.60s, did not listen at %.60s (ports %s) within "
                          "%.1f s: see whether rank 0 runs (%.160s)",
                          settings->job, settings->host, ports, (double)settings->deadline_ns / 1e9, seen);
}

/* ---- both ---- */

enum weft_status client_coordinate_begin(struct weft_session *session, uint64_t until_ns)
{
    struct client_settings *settings = &session->settings;
    if (settings->port_count > 0 && !session->env->virtual_time)
        WEFT_TRY(settings->rank == 0 ? start(session) : search(session, until_ns));
    weft_log(session->env, WEFT_LOG_INFO, "client", "joins job %.100s at the coordinator %s:%u",
             settings->job, settings->host, settings->port);
    return WEFT_OK;
}

void client_coordinate_end(struct weft_session *session, uint64_t wait_ns)
{
    if (session->coordinator) client_live_hand_over_coordinator(session);
    if (!session->coordinator) return;
    weft_coordinator_thread_wait(session->coordinator, wait_ns);
    weft_coordinator_thread_stop(session->coordinator);
    session->coordinator = NULL;
}
