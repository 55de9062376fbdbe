/* begin_again.c - see begin_again.h.
 *
 *     no Go yet, and the coordinator is lost -> the store (server.store) -> the next one -> weft_init again
 *
 * Without server.store in its environment a worker cannot find the next coordinator. */
#include "client/session/control/begin_again.h"

#include <stdio.h>
#include <string.h>

#include "client/session/control.h"
#include "client/session/settings.h"
#include "client/session/wait.h"

#define NEXT_NS WEFT_SECONDS(30) /* a shard that has not reached the coordinator notices its loss late */

enum weft_status client_again_apply(struct weft_session *session, struct client_again *again)
{
    struct client_settings *settings = &session->settings;
    struct weft_control_address next;
    if (again->until_ns == 0) {
        again->until_ns = client_deadline(session, settings->deadline_ns);
        return WEFT_OK;
    }
    if (!weft_control_address_parse(again->next.address, &next))
        return weft_error_set(&session->failure.error, WEFT_ERR_MALFORMED,
                              "the address %.200s in the store %.200s is not host:port", again->next.address,
                              settings->store);
    char *host = weft_alloc_text(session->env, next.host);
    if (!host)
        return weft_error_set(&session->failure.error, WEFT_ERR_NO_MEMORY, "no memory for the address %.200s",
                              next.host);
    weft_free_bytes(session->env, settings->host);
    settings->host = host;
    settings->port = next.port;
    settings->deadline_ns = weft_elapsed_ns(weft_now_ns(session->env), again->until_ns);
    return WEFT_OK;
}

static bool is_same(const struct client_settings *settings, const char *address)
{
    struct weft_control_address other;
    return weft_control_address_parse(address, &other) && other.port == settings->port &&
           strcmp(other.host, settings->host) == 0;
}

static bool has_store(const struct weft_session *session)
{
    return session->settings.store && session->settings.store[0] && session->settings.port_count == 0;
}

bool client_again_is_elsewhere(struct weft_session *session)
{
    const struct client_settings *settings = &session->settings;
    const enum client_phase phase = client_control_phase(&session->control);
    /* after Hello the reign is set, and no thread writes it */
    const uint64_t former = phase >= CLIENT_HELLO_SENT ? session->control.link.reign : 0;
    const struct weft_takeover_search search = {
        .store = settings->store, .job = settings->job, .reign = former};
    struct weft_takeover_next next;
    return has_store(session) && weft_takeover_next(session->env, &search, &next, NULL) == WEFT_OK &&
           (former > 0 || !is_same(settings, next.address));
}

bool client_again_is_possible(struct weft_session *session, enum weft_status status,
                              struct client_again *again)
{
    const struct weft_control_link *link = &session->control.link;
    const uint64_t now_ns = weft_now_ns(session->env);
    uint64_t until_ns = weft_deadline_ns(now_ns, NEXT_NS);
    if (!has_store(session) || (status != WEFT_ERR_PEER_LOST && status != WEFT_ERR_UNREACHABLE) ||
        link->resume.has_begun || now_ns >= again->until_ns)
        return false;
    const uint64_t former = link->reign > again->next.reign ? link->reign : again->next.reign;
    if (former == 0 && !client_again_is_elsewhere(session)) return false;
    if (until_ns > again->until_ns) until_ns = again->until_ns;
    const struct weft_takeover_search search = {.store = session->settings.store,
                                                .job = session->settings.job,
                                                .reign = former,
                                                .until_ns = until_ns};
    if (weft_takeover_next(session->env, &search, &again->next, NULL) != WEFT_OK) return false;
    weft_log(session->env, WEFT_LOG_WARN, "client",
             "the coordinator at %s:%u is lost before job %.100s has begun; weft_init joins again at %s",
             session->settings.host, session->settings.port, session->settings.job, again->next.address);
    return true;
}
