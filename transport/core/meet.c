/* meet.c - life of one endpoint's meeting place: open, progress, close. See meet.h; meet_internal.h has the drawing. */
#include "transport/core/meet.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "transport/core/meet_internal.h"

#define LOG_PERIOD_NS WEFT_SECONDS(1)
enum { EVENTS_PER_ROUND = 32 };

const char *meet_reason_text(enum meet_reason reason)
{
    switch (reason) {
    case MEET_GARBAGE: return "not weft's protocol, or a frame out of turn";
    case MEET_VERSION: return "another version of the protocol, or a job secret on one side only";
    case MEET_WRONG_JOB: return "an endpoint of another job";
    case MEET_WRONG_ID: return "not the endpoint that was asked for";
    case MEET_REFLECTED: return "an echo of what was said";
    case MEET_WRONG_SECRET: return "the job secrets differ";
    case MEET_TAMPERED: return "bytes were changed, repeated or left out on the way";
    case MEET_DESCRIPTORS: return "descriptors that belong to no frame, or are missing";
    case MEET_WRONG_USER: return "another user or host, and the job has no secret";
    case MEET_SLOW: return "not proven in time";
    case MEET_CROWDED: return "too many connections at once";
    case MEET_TWICE: return "this peer is connected already";
    case MEET_HUNG_UP: return "closed before it had proven itself";
    case MEET_NO_RESOURCE: return "no memory or no descriptor left; raise ulimit -n";
    case MEET_REASONS: break;
    }
    return "for no known reason";
}

void meet_options_init(struct meet_options *options)
{
    *options = (struct meet_options){
        .size = sizeof *options,
        .half_open_max = 256,
        .half_open_ns = WEFT_SECONDS(5),
        .early_max = 4096,
        .meet_ns = WEFT_SECONDS(60),
        .liveness_ns = WEFT_SECONDS(2),
    };
}

enum weft_status meet_options_ports(struct meet_options *options, const char *text, struct weft_error *error)
{
    unsigned first, last;
    char tail;
    if (!text) return WEFT_OK;
    int got = sscanf(text, "%u-%u%c", &first, &last, &tail);
    if (got == 1) last = first;
    if (got < 1 || got > 2 || first == 0 || last < first || last > 65535)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID, "the port range '%s' is none: say first-last", text);
    options->port_first = (uint16_t)first;
    options->port_last = (uint16_t)last;
    return WEFT_OK;
}

void meet_count_refusal(struct meet *meet, enum meet_reason reason, const char *who)
{
    meet->stats.refused[reason]++;
    meet->stats.refused_count++;
    meet->unlogged++;
    uint64_t now_ns = weft_now_ns(meet->env);
    if (meet->logged_ns != 0 && weft_since_ns(meet->logged_ns, now_ns) < LOG_PERIOD_NS) return;
    weft_log(meet->env, WEFT_LOG_WARN, "transport",
             "endpoint %u refused a connection with %s: %s (%llu since the last such line)", meet->options.id,
             who, meet_reason_text(reason), (unsigned long long)meet->unlogged);
    meet->logged_ns = now_ns;
    meet->unlogged = 0;
}

/* --- open and close --- */

enum weft_status meet_watch(struct meet *meet, int fd, struct source *source, uint32_t events)
{
    struct epoll_event interest = {.events = events, .data.ptr = source};
    if (epoll_ctl(meet->epoll_fd, EPOLL_CTL_ADD, fd, &interest) == 0) return WEFT_OK;
    return errno == ENOSPC || errno == EMFILE ? weft_limit_of("a connection of an endpoint", errno) : WEFT_ERR_NO_MEMORY;
}

static enum weft_status open_descriptors(struct meet *meet, struct weft_error *error)
{
    meet->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    meet->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (meet->epoll_fd < 0 || meet->timer_fd < 0) {
        const enum weft_status status = weft_limit_of("an endpoint", errno);
        return weft_error_set(error, status, "cannot make the descriptors of an endpoint: %s", weft_reason_text(status));
    }
    WEFT_TRY(meet_watch(meet, meet->timer_fd, &meet->timer, EPOLLIN));
    return meet_listen(meet, error);
}

static bool options_are_fine(const struct meet_options *options)
{
    if (options->size != sizeof *options || !options->callbacks.met || !options->callbacks.gone) return false;
    if (options->family != MEET_UNIX && options->family != MEET_TCP) return false;
    if (options->secret && options->secret_bytes == 0) return false;
    if (options->port_first > 0 && options->port_last < options->port_first) return false;
    return options->half_open_max > 0 && options->half_open_ns > 0 && options->meet_ns > 0 &&
           options->liveness_ns >= WEFT_SECONDS(2) && options->liveness_ns <= WEFT_SECONDS(3600);
}

enum weft_status meet_open(struct weft_env *env, const struct meet_options *options, struct meet **meet_out,
                           struct weft_error *error)
{
    if (!options_are_fine(options))
        return weft_error_set(error, WEFT_ERR_INVALID, "an option of meeting is missing or out of its range");
    struct meet *meet = weft_alloc_zero(env, sizeof *meet);
    if (!meet) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for an endpoint");
    meet->env = env;
    meet->options = *options;
    if (!meet->options.bind_host) meet->options.bind_host = weft_loopback_host();
    meet->epoll_fd = meet->listen_fd = meet->timer_fd = -1;
    meet->listener.kind = SOURCE_LISTENER;
    meet->timer.kind = SOURCE_TIMER;
    meet->timer_ns = meet->listen_again_ns = WEFT_NEVER;
    weft_list_init(&meet->waiting);
    weft_list_init(&meet->resting);
    weft_list_init(&meet->ending);
    weft_list_init(&meet->strangers);
    weft_list_init(&meet->dialling);
    weft_list_init(&meet->dead);
    enum weft_status status =
        handshake_self_init(&meet->self, options->id, options->nonce, options->secret, options->secret_bytes);
    if (status >= 0) status = open_descriptors(meet, error);
    if (status < 0) {
        meet_close(meet);
        return weft_error_set(error, status, "no memory for an endpoint");
    }
    /* Borrowed until here. */
    meet->options.secret = NULL;
    meet->options.bind_host = meet->options.advertise = NULL;
    *meet_out = meet;
    return WEFT_OK;
}

void meet_close(struct meet *meet)
{
    if (!meet) return;
    WEFT_ASSERT(!meet->progressing);
    peers_free(meet);
    while (!weft_list_empty(&meet->strangers))
        connection_close(weft_list_first(&meet->strangers, struct connection, link));
    if (meet->listen_fd >= 0) close(meet->listen_fd);
    if (meet->timer_fd >= 0) close(meet->timer_fd);
    if (meet->epoll_fd >= 0) close(meet->epoll_fd);
    handshake_self_fini(&meet->self);
    weft_free_bytes(meet->env, meet);
}

const void *meet_address(const struct meet *meet, size_t *bytes_out)
{
    *bytes_out = meet->address_bytes;
    return meet->address;
}

int meet_fd(const struct meet *meet)
{
    return meet->epoll_fd;
}

void meet_stats(const struct meet *meet, struct meet_stats *stats_out)
{
    *stats_out = meet->stats;
}

/* --- progress --- */

void meet_set_timer(struct meet *meet, uint64_t time_ns)
{
    if (time_ns >= meet->timer_ns)
        return; /* it comes early enough; a timer that comes for nothing sets itself again */
    uint64_t now_ns = weft_now_ns(meet->env),
             left_ns = time_ns > now_ns ? time_ns - now_ns : 1; /* 0 would be off */
    struct itimerspec when = {.it_value = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)}};
    timerfd_settime(meet->timer_fd, 0, &when, NULL);
    meet->timer_ns = time_ns;
}

static int run_timers(struct meet *meet)
{
    uint64_t expirations;
    if (read(meet->timer_fd, &expirations, sizeof expirations) < 0) {
        /* EAGAIN: it was set anew meanwhile; looking costs little */
    }
    meet->timer_ns = WEFT_NEVER;
    uint64_t now_ns = weft_now_ns(meet->env);
    return meet_listen_timers(meet, now_ns) + dial_timers(meet, now_ns) + peer_timers(meet, now_ns);
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

static int run_source(struct meet *meet, struct source *source, uint32_t events)
{
    switch (source->kind) {
    case SOURCE_LISTENER: return meet_accept(meet);
    case SOURCE_TIMER: return run_timers(meet);
    case SOURCE_SOCKET: return run_socket(weft_container_of(source, struct connection, socket), events);
    case SOURCE_PROCESS: {
        struct connection *connection = weft_container_of(source, struct connection, process);
        if (connection->ended) return 0;
        connection_process_ended(connection);
        return 1;
    }
    }
    return 0;
}

static uint64_t next_ns(const struct meet *meet)
{
    uint64_t listen_ns = meet_listen_next_ns(meet), dial_ns = dial_next_ns(meet),
             peer_ns = peer_next_ns(meet);
    uint64_t next = listen_ns < dial_ns ? listen_ns : dial_ns;
    return next < peer_ns ? next : peer_ns;
}

int meet_progress(struct meet *meet, int budget)
{
    struct epoll_event events[EVENTS_PER_ROUND];
    WEFT_ASSERT(!meet->progressing);
    int work = 0, count = epoll_wait(meet->epoll_fd, events,
                                     budget < 1                  ? 1
                                     : budget < EVENTS_PER_ROUND ? budget
                                                                 : EVENTS_PER_ROUND,
                                     0);
    if (count <= 0 && weft_list_empty(&meet->ending)) return 0;
    meet->progressing = true;
    for (int i = 0; i < count; i++) work += run_source(meet, events[i].data.ptr, events[i].events);
    work += peer_deliver_ends(meet);
    meet->progressing = false;
    connections_free_dead(meet);
    meet_set_timer(meet, next_ns(meet));
    return work;
}
