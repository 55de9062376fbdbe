/* coordinator_find.c - finds the coordinator of a job among a few ports of one host.
 *
 *     connect -> Challenge: this job, ranks are missing   found
 *                           this job has begun            another session of the same job; try again later
 *                           another job                   try again later
 *                no Challenge                             another program
 *
 * A coordinator sends the Challenge first, so nothing is sent to the processes that listen at these ports.
 * All ports are tried at the same time, on the calling thread. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator.h"

#define TRY_NS WEFT_SECONDS(1) /* for one connection */
/* Until a process that was no coordinator of the job is asked again. Doubles: thousands of ranks may ask one
 * coordinator whose job has begun. */
#define AGAIN_FIRST_NS WEFT_MS(20)
#define AGAIN_LAST_NS WEFT_MS(500)
#define STEP_MS 20

struct finder;
struct candidate {
    struct finder *finder;
    uint16_t port;
    struct weft_net_connection *connection; /* NULL: between two tries */
    uint64_t again_ns, delay_ns;            /* when the next try begins, and how long after the last */
    char seen[160];                         /* what the last connection has found; "": no process */
};

struct finder {
    struct weft_env *env;
    struct weft_net *net;
    const char *host, *job;
    struct candidate candidates[WEFT_COORDINATOR_PORTS_MAX];
    uint32_t count;
    const struct candidate *found;
    char unreachable[96]; /* why the last try had no connection */
};

/* The reason in the text of a failed connection, without its advice: here rank 0 starts the coordinator. */
static void take_reason(struct finder *finder, const char *text)
{
    const char *reason = strstr(text, "deadline: ");
    reason = reason ? reason + strlen("deadline: ") : text;
    snprintf(finder->unreachable, sizeof finder->unreachable, "%.*s", (int)strcspn(reason, ";"), reason);
}

static void on_opened(void *context, struct weft_net_connection *connection)
{
    struct candidate *candidate = context;
    (void)connection;
    snprintf(candidate->seen, sizeof candidate->seen, "a process that does not answer as a coordinator");
}

static void take_challenge(struct candidate *candidate, const Weft__Control__Challenge *challenge)
{
    struct finder *finder = candidate->finder;
    /* A coordinator of an earlier release does not name its job; Hello decides. */
    const bool is_ours = challenge->job[0] == 0 || strcmp(challenge->job, finder->job) == 0;
    if (is_ours && !challenge->is_begun) {
        if (!finder->found) finder->found = candidate;
    } else if (is_ours) {
        snprintf(candidate->seen, sizeof candidate->seen, "the coordinator of job %.60s, which has begun",
                 challenge->job);
    } else {
        snprintf(candidate->seen, sizeof candidate->seen, "the coordinator of job %.100s", challenge->job);
    }
}

static void on_frame(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes)
{
    struct candidate *candidate = context;
    Weft__Control__Control *message;
    if (weft_control_unpack(candidate->finder->env, data, bytes, &message) == WEFT_OK) {
        if (message->body_case == WEFT__CONTROL__CONTROL__BODY_CHALLENGE)
            take_challenge(candidate, message->challenge);
        weft_control_free(candidate->finder->env, message);
    }
    weft_net_close(connection);
}

static void on_closed(void *context, struct weft_net_connection *connection, enum weft_status reason,
                      const char *text)
{
    struct candidate *candidate = context;
    (void)connection;
    candidate->connection = NULL;
    if (reason == WEFT_ERR_UNREACHABLE) {
        candidate->seen[0] = 0;
        candidate->again_ns = 0;
        take_reason(candidate->finder, text);
        return;
    }
    candidate->again_ns = weft_deadline_ns(weft_now_ns(candidate->finder->env), candidate->delay_ns);
    if (candidate->delay_ns < AGAIN_LAST_NS) candidate->delay_ns *= 2;
}

static const struct weft_net_handler handler = {
    .opened = on_opened, .frame = on_frame, .closed = on_closed, .frame_bytes_max = WEFT_LIMIT_FRAME_BYTES};

static void try_candidates(struct finder *finder)
{
    const uint64_t now_ns = weft_now_ns(finder->env);
    for (uint32_t i = 0; i < finder->count; i++) {
        struct candidate *candidate = &finder->candidates[i];
        if (candidate->connection || now_ns < candidate->again_ns) continue;
        if (weft_net_connect(finder->net, finder->host, candidate->port, &handler, candidate,
                             weft_deadline_ns(now_ns, TRY_NS), &candidate->connection) < 0)
            candidate->again_ns = weft_deadline_ns(now_ns, TRY_NS);
    }
}

/* "port 30500: the coordinator of job b; no connection to the other ports: Connection refused". */
static void describe(const struct finder *finder, char *seen, size_t seen_bytes)
{
    size_t used = 0;
    uint32_t described = 0;
    seen[0] = 0;
    for (uint32_t i = 0; i < finder->count && used < seen_bytes; i++) {
        const struct candidate *candidate = &finder->candidates[i];
        if (!candidate->seen[0]) continue;
        int n = snprintf(seen + used, seen_bytes - used, "%sport %u: %s", described++ ? "; " : "",
                         candidate->port, candidate->seen);
        used += n > 0 ? (size_t)n : 0;
    }
    if (described == finder->count || used >= seen_bytes) return;
    snprintf(seen + used, seen_bytes - used, described ? "; no connection to the other ports: %s" : "%s",
             finder->unreachable[0] ? finder->unreachable : "no answer yet");
}

enum weft_status weft_coordinator_find(struct weft_env *env, const char *host, const uint16_t *ports,
                                       uint32_t count, const char *job, uint64_t timeout_ns,
                                       uint16_t *port_out, char *seen, size_t seen_bytes)
{
    struct finder finder = {.env = env, .host = host, .job = job, .count = count};
    const uint64_t until_ns = weft_deadline_ns(weft_now_ns(env), timeout_ns);
    WEFT_ASSERT(count <= WEFT_COORDINATOR_PORTS_MAX);
    WEFT_TRY(weft_net_create(env, &finder.net));
    for (uint32_t i = 0; i < count; i++)
        finder.candidates[i] =
            (struct candidate){.finder = &finder, .port = ports[i], .delay_ns = AGAIN_FIRST_NS};
    while (!finder.found && weft_now_ns(env) < until_ns) {
        try_candidates(&finder);
        weft_net_step(finder.net, STEP_MS);
    }
    describe(&finder, seen, seen_bytes);
    const struct candidate *found = finder.found;
    weft_net_free(finder.net);
    if (!found) return WEFT_ERR_DEADLINE;
    *port_out = found->port;
    return WEFT_OK;
}
