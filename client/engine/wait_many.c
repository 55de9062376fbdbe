/* wait_many.c - weft_wait_any and weft_wait_all: several requests, one deadline. */
#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

/* The caller's array. NULL entries and requests that were not started are skipped. */
struct many {
    struct weft_request *const *requests;
    size_t count;
};

static bool is_open(const struct client_request *request)
{
    return request->magic == CLIENT_REQUEST_MAGIC &&
           atomic_load_explicit(&request->state, memory_order_acquire) == CLIENT_REQUEST_OPEN;
}

static bool is_started(const struct weft_request *user_request)
{
    if (!user_request) return false;
    const struct client_request *request = (const struct client_request *)(const void *)user_request;
    return request->magic != CLIENT_REQUEST_MAGIC
               ? request->magic != 0
               : atomic_load_explicit(&request->state, memory_order_acquire) != CLIENT_REQUEST_IDLE;
}

/* Index of the first started request that has completed; many->count: none. */
static size_t first_ended(const struct many *many)
{
    size_t i = 0;
    while (i < many->count &&
           (!is_started(many->requests[i]) || is_open(client_request_of(many->requests[i]))))
        i++;
    return i;
}

/* The session of all started requests; NULL: none is started. WEFT_ERR_INVALID: they belong to two
 * sessions. */
static enum weft_status find_session(const struct many *many, struct weft_session **session_out)
{
    *session_out = NULL;
    for (size_t i = 0; i < many->count; i++) {
        if (!is_started(many->requests[i])) continue;
        struct weft_session *session = client_request_of(many->requests[i])->session;
        if (*session_out && *session_out != session)
            return client_error(session, WEFT_ERR_INVALID,
                                "wait_any: the requests belong to several sessions; wait for those of one");
        *session_out = session;
    }
    return WEFT_OK;
}

struct any_condition {
    const struct many *many;
    struct weft_session *session;
};

static bool any_completed(void *context)
{
    const struct any_condition *condition = context;
    return first_ended(condition->many) < condition->many->count || client_failed(condition->session) < 0;
}

static uint64_t timeout_of(const struct weft_session *session, uint64_t timeout_ms)
{
    if (timeout_ms == 0) return session->settings.deadline_ns + CLIENT_WAIT_SLACK_NS;
    return timeout_ms > WEFT_NEVER / WEFT_MS(1) ? WEFT_NEVER : WEFT_MS(timeout_ms);
}

/* Index of the first started request; count: none. */
static size_t first_started(const struct many *many)
{
    size_t i = 0;
    while (i < many->count && !is_started(many->requests[i])) i++;
    return i;
}

enum weft_status weft_wait_any(struct weft_request *const *requests, size_t count, uint64_t timeout_ms,
                               size_t *index_out)
{
    const struct many many = {.requests = requests, .count = count};
    struct weft_session *session;
    if (!index_out) return client_null_argument("wait_any", "index_out");
    *index_out = SIZE_MAX;
    if (count == 0) return WEFT_OK;
    if (!requests) return client_null_argument("wait_any", "requests");
    size_t first = first_started(&many);
    if (first == count) return WEFT_OK;
    for (size_t i = first; i < count; i++)
        if (is_started(requests[i]) && client_request_of(requests[i])->magic != CLIENT_REQUEST_MAGIC)
            return client_invalid_request("wait_any");
    size_t ended = first_ended(&many);
    if (ended == count) {
        WEFT_TRY(find_session(&many, &session));
        if (session->live.pid != weft_process_id()) return client_usable(session);
        for (size_t i = 0; i < count; i++)
            if (is_started(requests[i]))
                session->engine->ops.call->wait_begins(client_request_of(requests[i]));
        struct any_condition condition = {.many = &many, .session = session};
        client_wait_within(session, any_completed, &condition, timeout_of(session, timeout_ms));
        ended = first_ended(&many);
    }
    if (ended == count)
        return weft_wait(requests[first],
                         1); /* for the sentence of a late request, or of the session's failure */
    *index_out = ended;
    return weft_wait(requests[ended], timeout_ms);
}

enum weft_status weft_wait_all(struct weft_request *const *requests, size_t count, uint64_t timeout_ms)
{
    if (count == 0) return WEFT_OK;
    if (!requests) return client_null_argument("wait_all", "requests");
    struct weft_request *failed = NULL;
    enum weft_status first_error = WEFT_OK;
    uint64_t until_ns = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_started(requests[i])) continue;
        struct client_request *request = client_request_of(requests[i]);
        uint64_t rest_ms = timeout_ms;
        if (timeout_ms > 0 && is_open(request)) {
            uint64_t now_ns = weft_now_ns(request->session->env);
            if (until_ns == 0) until_ns = weft_deadline_ns(now_ns, timeout_of(request->session, timeout_ms));
            rest_ms = now_ns >= until_ns ? 1 : (until_ns - now_ns) / WEFT_MS(1) + 1;
        }
        enum weft_status status = weft_wait(requests[i], rest_ms);
        if (status == WEFT_ERR_DEADLINE && is_open(request))
            return status; /* this request still runs; others may run too */
        if (status < 0 && first_error == WEFT_OK) first_error = status, failed = requests[i];
    }
    return failed ? weft_wait(failed, timeout_ms) : WEFT_OK; /* again, for its sentence */
}
