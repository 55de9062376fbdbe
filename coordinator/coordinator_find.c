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

#define TRY_NS WEFT_SECONDS(1)    /* for one connection */
#define AGAIN_NS WEFT_MS(100)     /* between two tries of one port */
#define STEP_MS 20

struct finder;
struct candidate {
    struct finder *finder;
    uint16_t port;
    struct weft_net_connection *connection; /* NULL: between two tries */
    uint64_t again_ns;                      /* when the next try begins */
    char seen[160];                         /* what the last try has found */
};

struct finder {
    struct weft_env *env;
    struct weft_net *net;
    const char *host, *job;
    struct candidate candidates[WEFT_COORDINATOR_PORTS_MAX];
    uint32_t count;
    const struct candidate *found;
};

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
    candidate->again_ns = weft_deadline_ns(weft_now_ns(candidate->finder->env), AGAIN_NS);
    if (reason == WEFT_ERR_UNREACHABLE) snprintf(candidate->seen, sizeof candidate->seen, "%.150s", text);
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

static void describe(const struct finder *finder, char *seen, size_t seen_bytes)
{
    size_t used = 0;
    seen[0] = 0;
    for (uint32_t i = 0; i < finder->count && used < seen_bytes; i++) {
        const char *what = finder->candidates[i].seen;
        int n = snprintf(seen + used, seen_bytes - used, "%sport %u: %s", i > 0 ? "; " : "",
                         finder->candidates[i].port, what[0] ? what : "no answer yet");
        used += n > 0 ? (size_t)n : 0;
    }
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
        finder.candidates[i] = (struct candidate){.finder = &finder, .port = ports[i]};
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
