/* flight_signal.c - recorder.signal: the only signal handler of the library, installed only if the option is
 * set.
 *
 * The handler counts. The net thread of every session with the option polls the count five times a second
 * and dumps its record. If the program handles the signal itself, the option is refused. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "client/session/flight.h"
#include "client/session/session.h"

#define POLL_PERIOD_NS WEFT_MS(200)

static atomic_uint signal_count; /* lock-free: a signal handler may write it */

static void count_signal(int number)
{
    (void)number;
    atomic_fetch_add_explicit(&signal_count, 1, memory_order_relaxed);
}

static int number_of(const char *name)
{
    static const struct {
        const char *name;
        int number;
    } table[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(name, table[i].name) == 0) return table[i].number;
    return 0;
}

static void poll_signal(void *context)
{
    struct weft_session *session = context;
    unsigned now = atomic_load_explicit(&signal_count, memory_order_relaxed);
    if (now == session->flight.signals_seen) return;
    session->flight.signals_seen = now;
    client_flight_dump(session, "asked for by a signal");
}

enum weft_status client_flight_signal_start(struct weft_session *session, struct weft_error *error)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const char *name = weft_config_text(session->settings.config, "recorder.signal");
    int number = number_of(name);
    if (number == 0) return WEFT_OK;
    struct sigaction before, ours = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    pthread_mutex_lock(&lock);
    bool taken =
        sigaction(number, NULL, &before) != 0 || ((before.sa_flags & SA_SIGINFO) && before.sa_sigaction) ||
        (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN && before.sa_handler != count_signal);
    sigemptyset(&ours.sa_mask);
    int rc = taken ? 0 : sigaction(number, &ours, NULL);
    pthread_mutex_unlock(&lock);
    if (taken || rc != 0)
        return weft_error_set(error, WEFT_ERR_BUSY,
                              "recorder.signal is %s, which this program handles itself; take another one",
                              name);
    session->flight.signals_seen = atomic_load_explicit(&signal_count, memory_order_relaxed);
    enum weft_status status =
        weft_net_timer_periodic(session->control.net, POLL_PERIOD_NS, poll_signal, session);
    return status < 0 ? (enum weft_status)weft_error_set(error, status, "no timer for recorder.signal")
                      : WEFT_OK;
}
