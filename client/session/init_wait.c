/* init_wait.c - weft_init waits for the next message of the coordinator, and reports what it waits for.
 *
 *     1.5 s, then every 10 s:  Welcome received   -> ask for the missing members, log the answer
 *                              connected          -> log that the process at that address does not answer
 *                              not connected      -> base/net/net_connection.c logs the reason once; from
 *                                                    10 s on log the address
 *
 * The error at the deadline names the same members. */
#include <stdatomic.h>

#include "client/session/control.h"
#include "client/session/control/begin_again.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/settings.h"
#include "client/session/wait.h"

#define STORE_READ_NS WEFT_MS(500) /* period of reads of the store, while the session is not admitted */

struct phase_condition {
    struct weft_session *session;
    enum client_phase phase;
};

static bool phase_reached(void *context)
{
    struct phase_condition *condition = context;
    return client_failed(condition->session) < 0 ||
           client_control_phase(&condition->session->control) >= condition->phase;
}

void client_init_wait_begin(struct weft_session *session)
{
    session->live.init_began_ns = weft_now_ns(session->env);
    session->live.init_report_ns = weft_deadline_ns(session->live.init_began_ns, WEFT_WAIT_REASON_FIRST_NS);
}

static void report(struct weft_session *session, struct phase_condition *condition)
{
    const struct client_settings *settings = &session->settings;
    const uint64_t now_ns = weft_now_ns(session->env);
    const double seconds = (double)weft_elapsed_ns(session->live.init_began_ns, now_ns) / 1e9;
    session->live.init_report_ns = weft_deadline_ns(now_ns, WEFT_WAIT_REASON_PERIOD_NS);
    if (client_control_phase(&session->control) >= CLIENT_WELCOME) {
        char missing[320];
        client_control_wait_reason(session, missing, sizeof missing);
        if (!phase_reached(condition)) /* the phase was reached while the coordinator answered */
            weft_log(session->env, WEFT_LOG_WARN, "client",
                     "rank %u has waited %.1f s in weft_init: %s (coordinator at %s:%u)", session->rank,
                     seconds, missing, settings->host, settings->port);
    } else if (atomic_load(&session->control.is_connected)) {
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "weft_init has waited %.1f s: the process at %s:%u accepts connections and does not answer; "
                 "is it weftd or weft run?",
                 seconds, settings->host, settings->port);
    } else if (now_ns >= weft_deadline_ns(session->live.init_began_ns, WEFT_WAIT_REASON_PERIOD_NS)) {
        weft_log(session->env, WEFT_LOG_WARN, "client",
                 "weft_init has waited %.1f s: no process listens at %s:%u, where weftd or weft run "
                 "coordinates job %.100s; without them WEFT_RANKS makes rank 0 coordinate",
                 seconds, settings->host, settings->port, settings->job);
    }
}

/* If the coordinator has not admitted this process, and the store names another one, the session fails.
 * weft_init then joins the other one. */
static void fail_if_elsewhere(struct weft_session *session)
{
    if (client_control_phase(&session->control) < CLIENT_WELCOME && client_again_is_elsewhere(session))
        client_fail(session, WEFT_ERR_UNREACHABLE, false, "no coordinator answers at %s:%u",
                    session->settings.host, session->settings.port);
}

static enum weft_status wait_reporting(struct weft_session *session, struct phase_condition *condition,
                                       uint64_t until_ns)
{
    while (weft_now_ns(session->env) < until_ns) {
        const uint64_t read_ns = client_deadline(session, STORE_READ_NS);
        uint64_t next_ns = session->live.init_report_ns < until_ns ? session->live.init_report_ns : until_ns;
        if (condition->phase == CLIENT_WELCOME && read_ns < next_ns) next_ns = read_ns;
        const enum weft_status status = client_wait_for(session, phase_reached, condition, next_ns);
        if (status != WEFT_ERR_DEADLINE) return status;
        fail_if_elsewhere(session);
        if (weft_now_ns(session->env) >= session->live.init_report_ns) report(session, condition);
    }
    return client_wait_for(session, phase_reached, condition, until_ns);
}

static void fail_at_deadline(struct weft_session *session, struct phase_condition *condition,
                             const char *missing)
{
    const struct client_settings *settings = &session->settings;
    const double seconds = (double)settings->deadline_ns / 1e9;
    const enum client_phase phase = client_control_phase(&session->control);
    char members[320];
    if (phase == CLIENT_CONNECTING) {
        client_fail(session, WEFT_ERR_UNREACHABLE, false,
                    "no answer from the coordinator at %s:%u within %.1f s; is it weftd?", settings->host,
                    settings->port, seconds);
        return;
    }
    if (phase < CLIENT_WELCOME) {
        client_fail(session, WEFT_ERR_DEADLINE, true, "reached the coordinator at %s:%u, %s within %.1f s",
                    settings->host, settings->port, missing, seconds);
        return;
    }
    client_control_wait_reason(session, members, sizeof members);
    if (phase_reached(condition)) return; /* reached meanwhile */
    client_fail(session, WEFT_ERR_DEADLINE, true,
                "reached the coordinator at %.100s:%u, %s within %.1f s: %s; see what they do, or give them "
                "more time",
                settings->host, settings->port, missing, seconds, members);
}

enum weft_status client_init_wait(struct weft_session *session, enum client_phase phase, uint64_t until_ns,
                                  const char *missing)
{
    struct phase_condition condition = {.session = session, .phase = phase};
    if (wait_reporting(session, &condition, until_ns) < 0) fail_at_deadline(session, &condition, missing);
    return client_usable(session);
}
