/* net.c - event base of the control connections: thread, mailbox, timers, create and free.
 *
 *     net_connection.c  framed connections; connect with retry
 *     net_listener.c    accept
 *     net_http.c        HTTP server for GET
 *     net_socket.c      addresses
 *
 * One thread at a time uses the libevent base, so libevent's locking is not needed. (It is a switch for the
 * whole process, which belongs to the training program.) Other threads push a command and write an eventfd.
 * The net thread blocks all signals (thread.h), so SIGPIPE of a write to a closed socket has no effect. */
#include "base/os/system_limit.h"
#include "base/net/net.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/dns.h>

#include "base/loop/futex.h"
#include "base/net/net_internal.h"
#include "base/os/thread.h"

#define BASE_DESCRIPTORS 8 /* upper bound of the descriptors that an event base opens */

/* Longest wait of weft_net_free for its peers to read the last frames. */
#define CLOSE_TIMEOUT_MS 300

/* --- commands --- */

void weft_net_post(struct weft_net *net, struct weft_command *command)
{
    mailbox_push(&net->mailbox, command);
    atomic_fetch_add(&net->posted, 1);
    if (atomic_load(&net->is_broken)) {
        futex_wake_all(&net->posted);
        return;
    }
    if (atomic_exchange(&net->is_eventfd_written, true)) return;
    uint64_t one = 1;
    while (write(net->event_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void on_commands(evutil_socket_t fd, short what, void *argument)
{
    struct weft_net *net = argument;
    uint64_t wakes;
    if (read(fd, &wakes, sizeof wakes) < 0) return; /* EAGAIN: no command */
    /* An exchange, not a store: it reads the poster's `true`, so the command pushed before is visible. */
    atomic_exchange(&net->is_eventfd_written, false);
    mailbox_run(&net->mailbox);
    if (net->stopping) event_base_loopbreak(net->base);
}

/* --- timers --- */

static void timer_free(struct net_timer *timer)
{
    weft_list_remove(&timer->link);
    if (timer->event) event_free(timer->event);
    weft_free_bytes(timer->net->env, timer);
}

static void on_tick(evutil_socket_t fd, short what, void *argument)
{
    const struct net_timer fired = *(struct net_timer *)argument;
    if (fired.is_once) timer_free(argument);
    fired.fn(fired.context);
}

static enum weft_status timer_add(struct weft_net *net, uint64_t time_ns, bool is_once, void (*fn)(void *),
                                   void *context)
{
    net_assert_thread(net);
    struct net_timer *timer = weft_alloc_zero(net->env, sizeof *timer);
    if (!timer) return WEFT_ERR_NO_MEMORY;
    *timer = (struct net_timer){.net = net, .is_once = is_once, .fn = fn, .context = context};
    weft_list_append(&net->timers, &timer->link);
    timer->event = event_new(net->base, -1, is_once ? 0 : EV_PERSIST, on_tick, timer);
    struct timeval time = net_timeval(time_ns < 1000 ? 1000 : time_ns);
    if (timer->event && event_add(timer->event, &time) == 0) return WEFT_OK;
    timer_free(timer);
    return WEFT_ERR_NO_MEMORY;
}

enum weft_status weft_net_timer_periodic(struct weft_net *net, uint64_t period_ns, void (*fn)(void *),
                                         void *context)
{
    return timer_add(net, period_ns, false, fn, context);
}

enum weft_status weft_net_timer_once(struct weft_net *net, uint64_t delay_ns, void (*fn)(void *),
                                     void *context)
{
    return timer_add(net, delay_ns, true, fn, context);
}

/* --- life --- */

static void on_step_timeout(evutil_socket_t fd, short what, void *argument)
{
}

/* Are enough descriptors free? libevent exits the process if it cannot open one. */
static bool has_free_descriptors(int fd)
{
    int copies[BASE_DESCRIPTORS], count = 0, reason = 0;
    while (count < BASE_DESCRIPTORS && (copies[count] = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0) count++;
    if (count < BASE_DESCRIPTORS) reason = errno;
    for (int i = 0; i < count; i++) close(copies[i]);
    errno = reason;
    return count == BASE_DESCRIPTORS;
}

static enum weft_status open_base(struct weft_net *net)
{
    net->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->event_fd < 0) return weft_limit_status("the control connections", errno);
    net->event_id = descriptor_id_of(net->event_fd);
    if (!has_free_descriptors(net->event_fd)) return weft_limit_status("the control connections", errno);
    struct event_config *config = event_config_new();
    if (!config) return WEFT_ERR_NO_MEMORY;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    /* No EVENT_BASE_FLAG_PRECISE_TIMER: it needs a timerfd, which the program may close. */
    net->base = event_base_new_with_config(config);
    event_config_free(config);
    if (!net->base)
        return errno == EMFILE || errno == ENFILE ? weft_limit_status("the control connections", errno)
                                                  : WEFT_ERR_NO_MEMORY;
    net->command_event = event_new(net->base, net->event_fd, EV_READ | EV_PERSIST, on_commands, net);
    net->step_event = event_new(net->base, -1, 0, on_step_timeout, net);
    if (!net->command_event || !net->step_event || event_add(net->command_event, NULL) != 0)
        return WEFT_ERR_NO_MEMORY;
    return WEFT_OK;
}

enum weft_status weft_net_create(struct weft_env *env, struct weft_net **net_out)
{
    struct weft_net *net = weft_alloc_zero(env, sizeof *net);
    if (!net) return WEFT_ERR_NO_MEMORY;
    net->env = env;
    net->event_fd = -1;
    weft_list_init(&net->connections);
    weft_list_init(&net->listeners);
    weft_list_init(&net->timers);
    enum weft_status status = open_base(net);
    if (status < 0) {
        weft_log(env, WEFT_LOG_ERROR, "base", "cannot start control networking: %s",
                 weft_reason_text(status));
        weft_net_free(net);
        return status;
    }
    *net_out = net;
    return WEFT_OK;
}

enum { NET_RUNNING, NET_PAUSE_REQUESTED, NET_PAUSED };

static void on_pause(struct weft_command *command)
{
    struct weft_net *net = weft_container_of(command, struct weft_net, pause_command);
    unsigned state = NET_PAUSE_REQUESTED;
    /* resumed meanwhile */
    if (!atomic_compare_exchange_strong(&net->pause_state, &state, NET_PAUSED)) return;
    futex_wake_all(&net->pause_state);
    while (atomic_load(&net->pause_state) == NET_PAUSED)
        futex_wait(&net->pause_state, NET_PAUSED, UINT64_MAX);
}

void weft_net_pause(struct weft_net *net, uint64_t timeout_ns)
{
    unsigned state = NET_RUNNING;
    if (!net->started || pthread_equal(pthread_self(), atomic_load(&net->owner))) return;
    if (!atomic_compare_exchange_strong(&net->pause_state, &state, NET_PAUSE_REQUESTED)) return;
    net->pause_command.fn = on_pause;
    weft_net_post(net, &net->pause_command);
    const uint64_t until_ns = weft_deadline_ns(weft_now_ns(net->env), timeout_ns);
    while (atomic_load(&net->pause_state) == NET_PAUSE_REQUESTED && weft_now_ns(net->env) < until_ns)
        futex_wait(&net->pause_state, NET_PAUSE_REQUESTED, timeout_ns);
}

void weft_net_resume(struct weft_net *net)
{
    if (atomic_exchange(&net->pause_state, NET_RUNNING) == NET_PAUSED) futex_wake_all(&net->pause_state);
}

/* --- descriptors that the program has closed or replaced --- */

/* From here on the thread waits for commands on a futex, since epoll may fail or miss them. */
static void mark_broken(struct weft_net *net)
{
    if (atomic_exchange(&net->is_broken, true)) return;
    weft_log(net->env, WEFT_LOG_ERROR, "base", "the control connections end: %s", WEFT_DESCRIPTORS_LOST);
}

static bool connections_are_intact(struct weft_net *net)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &net->connections)
        if (!net_connection_is_intact((const struct weft_net_connection *)(const void *)node)) return false;
    return true;
}

static void check_descriptors(void *context)
{
    struct weft_net *net = context;
    if (descriptor_is_same(net->event_fd, net->event_id) && connections_are_intact(net)) return;
    mark_broken(net);
    event_base_loopbreak(net->base);
}

static void break_connections(struct weft_net *net)
{
    while (!weft_list_empty(&net->connections))
        net_connection_break((struct weft_net_connection *)(void *)net->connections.next);
}

static void run_without_epoll(struct weft_net *net)
{
    mark_broken(net);
    while (!net->stopping) {
        const unsigned seen = atomic_load(&net->posted);
        break_connections(net);
        mailbox_run(&net->mailbox);
        if (!net->stopping) futex_wait(&net->posted, seen, UINT64_MAX);
    }
}

static void *net_thread(void *argument)
{
    struct weft_net *net = argument;
    atomic_store(&net->owner, pthread_self());
    event_base_loop(net->base, EVLOOP_NO_EXIT_ON_EMPTY);
    if (!net->stopping) run_without_epoll(net);
    return NULL;
}

enum weft_status weft_net_start(struct weft_net *net)
{
    WEFT_ASSERT(!net->started);
    WEFT_TRY(weft_net_timer_periodic(net, DESCRIPTOR_LOOK_NS, check_descriptors, net));
    net->started = true;
    int rc = weft_thread_start(&net->thread, "weft net", net_thread, net);
    if (rc == 0) return WEFT_OK;
    net->started = false;
    return weft_limit_status("the control connections", rc);
}

/* For writes to a closed socket on a thread of the program: blocks SIGPIPE meanwhile and consumes one that
 * the writes caused. */
struct sigpipe_guard {
    sigset_t before;
    bool was_pending;
};

static void sigpipe_hold(struct sigpipe_guard *guard)
{
    sigset_t pending, sigpipe;
    sigemptyset(&sigpipe);
    sigaddset(&sigpipe, SIGPIPE);
    sigpending(&pending);
    guard->was_pending = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe, &guard->before);
}

static void sigpipe_release(struct sigpipe_guard *guard)
{
    sigset_t sigpipe;
    sigemptyset(&sigpipe);
    sigaddset(&sigpipe, SIGPIPE);
    if (!guard->was_pending) sigtimedwait(&sigpipe, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
}

void weft_net_step(struct weft_net *net, int timeout_ms)
{
    WEFT_ASSERT(!net->started);
    struct sigpipe_guard guard;
    struct timeval timeout = net_timeval(WEFT_MS(timeout_ms > 0 ? timeout_ms : 0));
    sigpipe_hold(&guard);
    event_add(net->step_event, &timeout);
    event_base_loop(net->base, EVLOOP_ONCE);
    event_del(net->step_event);
    sigpipe_release(&guard);
}

struct stop_command {
    struct weft_command command;
    struct weft_net *net;
};

static void on_stop(struct weft_command *command)
{
    weft_container_of(command, struct stop_command, command)->net->stopping = true;
}

static void stop_thread(struct weft_net *net)
{
    struct stop_command stop = {{on_stop, NULL}, net};
    WEFT_ASSERT(!pthread_equal(pthread_self(), atomic_load(&net->owner)));
    weft_net_post(net, &stop.command);
    pthread_join(net->thread, NULL);
    net->started = false; /* from here on the calling thread is the net thread */
}

static void timers_free(struct weft_net *net)
{
    while (!weft_list_empty(&net->timers))
        timer_free(weft_list_first(&net->timers, struct net_timer, link));
}

/* Sends the last frames: closes every connection and waits for the peers to close. */
static void close_gracefully(struct weft_net *net)
{
    struct weft_list *node, *spare;
    if (weft_list_empty(&net->connections) || atomic_load(&net->is_broken)) return;
    weft_list_foreach (node, spare, &net->connections)
        weft_net_close((struct weft_net_connection *)(void *)node);
    struct timeval limit = net_timeval(WEFT_MS(CLOSE_TIMEOUT_MS));
    event_add(net->step_event, &limit);
    while (!weft_list_empty(&net->connections) && event_pending(net->step_event, EV_TIMEOUT, NULL))
        if (event_base_loop(net->base, EVLOOP_ONCE) < 0) break; /* the program has closed the descriptors */
    event_del(net->step_event);
}

void weft_net_free(struct weft_net *net)
{
    if (!net) return;
    struct sigpipe_guard guard;
    sigpipe_hold(&guard);
    if (net->started) stop_thread(net);
    mailbox_run(&net->mailbox);
    net->freeing = true; /* no new connection, so the loops below end */
    close_gracefully(net);
    while (!weft_list_empty(&net->connections))
        net_connection_kill((struct weft_net_connection *)(void *)net->connections.next);
    while (!weft_list_empty(&net->listeners))
        net_listener_free((struct weft_net_listener *)(void *)net->listeners.next);
    mailbox_run(&net->mailbox); /* commands posted by the closed callbacks */
    net_http_free(net);
    timers_free(net);
    if (net->dns) evdns_base_free(net->dns, 0);
    if (net->command_event) event_free(net->command_event);
    if (net->step_event) event_free(net->step_event);
    if (net->base) event_base_free(net->base);
    /* otherwise the number belongs to the program */
    if (net->event_fd >= 0 && descriptor_is_same(net->event_fd, net->event_id)) close(net->event_fd);
    sigpipe_release(&guard);
    weft_free_bytes(net->env, net);
}
