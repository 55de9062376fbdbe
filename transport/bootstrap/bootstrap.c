/* bootstrap.c - life of the bootstrap of one endpoint: open, progress, close. bootstrap_internal.h has the
 * states. */
#include "transport/bootstrap/bootstrap.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "transport/bootstrap/bootstrap_internal.h"

#define LOG_PERIOD_NS WEFT_SECONDS(1)
enum { EVENTS_PER_ROUND = 32 };

const char *bootstrap_refusal_text(enum bootstrap_refusal reason)
{
    switch (reason) {
    case BOOTSTRAP_MALFORMED: return "not weft's protocol, or a frame out of turn";
    case BOOTSTRAP_VERSION: return "another version of the protocol, or a job secret on one side only";
    case BOOTSTRAP_WRONG_JOB: return "an endpoint of another job";
    case BOOTSTRAP_WRONG_ID: return "not the endpoint that was asked for";
    case BOOTSTRAP_REFLECTED: return "an echo of our own bytes";
    case BOOTSTRAP_WRONG_SECRET: return "the job secrets differ";
    case BOOTSTRAP_BAD_MAC: return "bytes were changed, repeated or lost on the way";
    case BOOTSTRAP_DESCRIPTORS: return "descriptors that belong to no frame, or are missing";
    case BOOTSTRAP_WRONG_USER: return "another user or host, and the job has no secret";
    case BOOTSTRAP_TIMED_OUT: return "not proven in time";
    case BOOTSTRAP_TOO_MANY: return "too many connections at once";
    case BOOTSTRAP_DUPLICATE: return "this peer is connected already";
    case BOOTSTRAP_CLOSED_EARLY: return "closed before it had proven itself";
    case BOOTSTRAP_NO_RESOURCE: return "no memory or no descriptor left; raise ulimit -n";
    case BOOTSTRAP_REFUSALS: break;
    }
    return "for no known reason";
}

void bootstrap_options_init(struct bootstrap_options *options)
{
    *options = (struct bootstrap_options){
        .size = sizeof *options,
        .half_open_max = 256,
        .half_open_ns = WEFT_SECONDS(5),
        .early_max = 4096,
        .connect_timeout_ns = WEFT_SECONDS(60),
        .liveness_ns = WEFT_SECONDS(2),
    };
}

enum weft_status bootstrap_options_ports(struct bootstrap_options *options, const char *text,
                                         struct weft_error *error)
{
    unsigned first, last;
    char tail;
    if (!text) return WEFT_OK;
    int got = sscanf(text, "%u-%u%c", &first, &last, &tail);
    if (got == 1) last = first;
    if (got < 1 || got > 2 || first == 0 || last < first || last > 65535)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID,
                                                "the port range '%s' must be first-last, ports 1 to 65535",
                                                text);
    options->port_first = (uint16_t)first;
    options->port_last = (uint16_t)last;
    return WEFT_OK;
}

void bootstrap_count_refusal(struct bootstrap *bootstrap, enum bootstrap_refusal reason,
                             const char *peer_name)
{
    bootstrap->stats.refused[reason]++;
    bootstrap->stats.refused_count++;
    bootstrap->refusal_log.unlogged++;
    uint64_t now_ns = weft_now_ns(bootstrap->env);
    if (bootstrap->refusal_log.logged_ns != 0 &&
        weft_elapsed_ns(bootstrap->refusal_log.logged_ns, now_ns) < LOG_PERIOD_NS)
        return;
    weft_log(bootstrap->env, WEFT_LOG_WARN, "transport",
             "endpoint %u refused a connection with %s: %s (%llu since the last such line)",
             bootstrap->options.id, peer_name, bootstrap_refusal_text(reason),
             (unsigned long long)bootstrap->refusal_log.unlogged);
    bootstrap->refusal_log.logged_ns = now_ns;
    bootstrap->refusal_log.unlogged = 0;
}

/* --- open and close --- */

enum weft_status bootstrap_watch_fd(struct bootstrap *bootstrap, int fd, struct source *source,
                                    uint32_t events)
{
    struct epoll_event interest = {.events = events, .data.ptr = source};
    if (epoll_ctl(bootstrap->epoll_fd, EPOLL_CTL_ADD, fd, &interest) == 0) return WEFT_OK;
    return errno == ENOSPC || errno == EMFILE ? weft_limit_status("a connection of an endpoint", errno)
                                              : WEFT_ERR_NO_MEMORY;
}

static enum weft_status open_descriptors(struct bootstrap *bootstrap, struct weft_error *error)
{
    bootstrap->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    bootstrap->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (bootstrap->epoll_fd < 0 || bootstrap->timer_fd < 0)
        return weft_limit_error(error, "an endpoint", errno, "cannot make the descriptors of an endpoint");
    WEFT_TRY(bootstrap_watch_fd(bootstrap, bootstrap->timer_fd, &bootstrap->timer, EPOLLIN));
    return bootstrap_listen(bootstrap, error);
}

static bool options_are_fine(const struct bootstrap_options *options)
{
    if (options->size != sizeof *options || !options->callbacks.connected || !options->callbacks.disconnected)
        return false;
    if (options->family != BOOTSTRAP_UNIX && options->family != BOOTSTRAP_TCP) return false;
    if (options->secret && options->secret_bytes == 0) return false;
    if (options->port_first > 0 && options->port_last < options->port_first) return false;
    return options->half_open_max > 0 && options->half_open_ns > 0 && options->connect_timeout_ns > 0 &&
           options->liveness_ns >= WEFT_SECONDS(2) && options->liveness_ns <= WEFT_SECONDS(3600);
}

enum weft_status bootstrap_open(struct weft_env *env, const struct bootstrap_options *options,
                                struct bootstrap **bootstrap_out, struct weft_error *error)
{
    if (!options_are_fine(options))
        return weft_error_set(error, WEFT_ERR_INVALID, "a bootstrap option is missing or out of its range");
    struct bootstrap *bootstrap = weft_alloc_zero(env, sizeof *bootstrap);
    if (!bootstrap) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for an endpoint");
    bootstrap->env = env;
    bootstrap->options = *options;
    if (!bootstrap->options.bind_host) bootstrap->options.bind_host = weft_loopback_host();
    bootstrap->epoll_fd = bootstrap->listen_fd = bootstrap->timer_fd = -1;
    bootstrap->listener.kind = SOURCE_LISTENER;
    bootstrap->timer.kind = SOURCE_TIMER;
    bootstrap->timer_ns = bootstrap->listen_again_ns = WEFT_NEVER;
    weft_list_init(&bootstrap->waiting);
    weft_list_init(&bootstrap->backing_off);
    weft_list_init(&bootstrap->ending);
    weft_list_init(&bootstrap->unproven);
    weft_list_init(&bootstrap->dialling);
    weft_list_init(&bootstrap->dead);
    enum weft_status status = handshake_self_init(&bootstrap->self, options->id, options->nonce,
                                                  options->secret, options->secret_bytes);
    if (status >= 0) status = open_descriptors(bootstrap, error);
    if (status < 0) {
        bootstrap_close(bootstrap);
        return weft_error_set(error, status, "no memory for an endpoint");
    }
    /* `secret`, `bind_host` and `advertise` are borrowed until here. */
    bootstrap->options.secret = NULL;
    bootstrap->options.bind_host = bootstrap->options.advertise = NULL;
    *bootstrap_out = bootstrap;
    return WEFT_OK;
}

void bootstrap_close(struct bootstrap *bootstrap)
{
    if (!bootstrap) return;
    WEFT_ASSERT(!bootstrap->progressing);
    peers_free(bootstrap);
    while (!weft_list_empty(&bootstrap->unproven))
        connection_close(weft_list_first(&bootstrap->unproven, struct connection, link));
    if (bootstrap->listen_fd >= 0) close(bootstrap->listen_fd);
    if (bootstrap->timer_fd >= 0) close(bootstrap->timer_fd);
    if (bootstrap->epoll_fd >= 0) close(bootstrap->epoll_fd);
    handshake_self_fini(&bootstrap->self);
    weft_free_bytes(bootstrap->env, bootstrap);
}

const void *bootstrap_address(const struct bootstrap *bootstrap, size_t *bytes_out)
{
    *bytes_out = bootstrap->own_address.address_bytes;
    return bootstrap->own_address.address;
}

int bootstrap_fd(const struct bootstrap *bootstrap)
{
    return bootstrap->epoll_fd;
}

void bootstrap_stats(const struct bootstrap *bootstrap, struct bootstrap_stats *stats_out)
{
    *stats_out = bootstrap->stats;
}

/* --- progress --- */

void bootstrap_set_timer(struct bootstrap *bootstrap, uint64_t time_ns)
{
    if (time_ns >= bootstrap->timer_ns)
        /* The timer already expires early enough. A timer that expires too early arms itself again. */
        return;
    uint64_t now_ns = weft_now_ns(bootstrap->env),
             left_ns = time_ns > now_ns ? time_ns - now_ns : 1; /* 0 would disarm the timer */
    struct itimerspec when = {.it_value = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)}};
    timerfd_settime(bootstrap->timer_fd, 0, &when, NULL);
    bootstrap->timer_ns = time_ns;
}

static int run_timers(struct bootstrap *bootstrap)
{
    uint64_t expirations;
    if (read(bootstrap->timer_fd, &expirations, sizeof expirations) < 0) {
        /* EAGAIN: the timer was armed again meanwhile. Running the timers once more is cheap. */
    }
    bootstrap->timer_ns = WEFT_NEVER;
    uint64_t now_ns = weft_now_ns(bootstrap->env);
    return bootstrap_listen_timers(bootstrap, now_ns) + dial_timers(bootstrap, now_ns) +
           peer_timers(bootstrap, now_ns);
}

static int run_socket(struct connection *connection, uint32_t events)
{
    if (connection->ended) return 0;
    if (connection->connecting) {
        connection_dialled(connection);
        return 1;
    }
    if (events & EPOLLOUT) connection_write(connection);
    if ((events & ~(uint32_t)EPOLLOUT) && !connection->ended) connection_read(connection);
    return 1;
}

static int run_source(struct bootstrap *bootstrap, struct source *source, uint32_t events)
{
    switch (source->kind) {
    case SOURCE_LISTENER: return bootstrap_accept(bootstrap);
    case SOURCE_TIMER: return run_timers(bootstrap);
    case SOURCE_SOCKET: return run_socket(weft_container_of(source, struct connection, socket), events);
    case SOURCE_PROCESS: {
        struct connection *connection = weft_container_of(source, struct connection, process);
        if (connection->ended) return 0;
        connection_on_process_exit(connection);
        return 1;
    }
    }
    return 0;
}

static uint64_t next_ns(const struct bootstrap *bootstrap)
{
    uint64_t listen_ns = bootstrap_listen_next_ns(bootstrap), dial_ns = dial_next_ns(bootstrap),
             peer_ns = peer_next_ns(bootstrap);
    uint64_t next = listen_ns < dial_ns ? listen_ns : dial_ns;
    return next < peer_ns ? next : peer_ns;
}

int bootstrap_progress(struct bootstrap *bootstrap, int budget)
{
    struct epoll_event events[EVENTS_PER_ROUND];
    WEFT_ASSERT(!bootstrap->progressing);
    int work = 0, count = epoll_wait(bootstrap->epoll_fd, events,
                                     budget < 1                  ? 1
                                     : budget < EVENTS_PER_ROUND ? budget
                                                                 : EVENTS_PER_ROUND,
                                     0);
    if (count <= 0 && weft_list_empty(&bootstrap->ending)) return 0;
    bootstrap->progressing = true;
    for (int i = 0; i < count; i++) work += run_source(bootstrap, events[i].data.ptr, events[i].events);
    work += peer_deliver_disconnects(bootstrap);
    bootstrap->progressing = false;
    connections_free_dead(bootstrap);
    bootstrap_set_timer(bootstrap, next_ns(bootstrap));
    return work;
}
