/* init.c - weft_init and weft_finalize: the one file that knows every folder of the client.
 *
 * Joining runs on the caller's thread; the net thread brings the coordinator's messages:
 *
 *     settings -> engine's loop -> control connection -> Welcome -> open the transport -> Endpoints
 *              -> Roster -> connect, make the group, start the engine -> Ready -> Go
 *
 * Leaving is the reverse: Leave first, so that no rank takes the closed connections for a death, then the
 * engine, the net thread, and the memory. Both work on half-built sessions. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/call/call_group.h"
#include "client/call/calls.h"
#include "client/call/device_staging.h"
#include "client/client.h"
#include "client/comm/comms.h"
#include "client/coordinate.h"
#include "client/elastic/elastic.h"
#include "client/engine/engine.h"
#include "client/engine/request.h"
#include "client/session/control.h"
#include "client/session/control/begin_again.h"
#include "client/session/failure.h"
#include "client/session/flight.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/settings.h"
#include "client/session/topology.h"
#include "client/session/wait.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/tensors.h"

#define FIRST_EPOCH 1u /* of the membership that a job begins with */
/* over the heartbeat period: the coordinator checks for silent members once a second */
#define SILENCE_MARGIN_NS WEFT_MS(2500)
/* for the other ranks of a failed job, to read why it ended, if this rank coordinates */
#define FAILED_WAIT_NS WEFT_SECONDS(2)
#define FINALIZE_NS WEFT_MS(4500) /* weft.h promises 5 s; the rest is for joining the threads */

/* One allocation holds a session and the state of every folder. */
struct whole_session {
    struct weft_session session;
    struct client_engine engine;
    struct client_calls calls;
    struct client_comms comms;
    struct client_tensors tensors;
    struct client_elastic elastic;
};

/* ---- joining ---- */

static uint64_t at_most_long(uint64_t duration_ns)
{
    return duration_ns < WEFT_NEVER / 4 ? duration_ns : WEFT_NEVER / 4;
}

/* The coordinator may be lost shortly before it declares the member lost. The next one waits again, for the
 * member to resume. */
static uint64_t silence_limit_ns(const Weft__Control__Welcome *welcome)
{
    return at_most_long(welcome->heartbeat_ns) + at_most_long(welcome->takeover_ns) + SILENCE_MARGIN_NS;
}

static enum weft_status take_welcome(struct weft_session *session)
{
    const Weft__Control__Welcome *welcome = session->control.welcome->welcome;
    const struct client_settings *settings = &session->settings;
    if (settings->workers && settings->workers != welcome->workers)
        return weft_error_set(
            &session->failure.error, WEFT_ERR_MISMATCH,
            "%s gives the job %u ranks, and the coordinator at %s:%u waits for %u workers",
            settings->workers_source, settings->workers, settings->host, settings->port, welcome->workers);
    session->rank = welcome->index;
    weft_log_source_set(settings->job, "rank", welcome->index);
    session->ranks = welcome->workers;
    session->membership.shards = welcome->shards;
    session->membership.job_id = welcome->job_id;
    session->membership.incarnation = welcome->incarnation;
    session->membership.endpoint = welcome->endpoint_first;
    session->membership.is_elastic = welcome->workers_min > 0;
    session->membership.silence_ns = silence_limit_ns(welcome);
    return client_engine_open(session, welcome->transport_nonce, &session->failure.error);
}

static enum weft_status send_endpoints(struct weft_session *session)
{
    const void *address;
    size_t bytes;
    WEFT_TRY(weft_transport_address(session->engine->transport, &address, &bytes));
    ProtobufCBinaryData blob = {.len = bytes, .data = (uint8_t *)address};
    Weft__Control__Endpoints endpoints = WEFT__CONTROL__ENDPOINTS__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    endpoints.n_addresses = 1;
    endpoints.addresses = &blob;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ENDPOINTS;
    message.endpoints = &endpoints;
    return client_control_send(session, &message);
}

static enum weft_status send_ready(struct weft_session *session, const Weft__Control__Roster *roster)
{
    Weft__Control__Ready ready = WEFT__CONTROL__READY__INIT;
    Weft__Control__LinkCost cost = WEFT__CONTROL__LINK_COST__INIT;
    bool known;
    WEFT_TRY(client_link_cost_read(session, roster, &cost, &known, &session->failure.error));
    if (known) ready.cost = &cost;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    ready.epoch = session->epoch;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_READY;
    message.ready = &ready;
    enum weft_status status = client_control_send(session, &message);
    weft_free_bytes(session->env, cost.ring.data);
    weft_free_bytes(session->env, cost.calibration.data);
    return status;
}

/* A newcomer in a running job gets its rank from the roster. */
static void take_rank(struct weft_session *session, const Weft__Control__Roster *roster)
{
    uint32_t ranks = 0;
    for (size_t i = 0; i < roster->n_members; i++) {
        const Weft__Control__Member *member = roster->members[i];
        ranks += member->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
        if (member->endpoint_first == session->membership.endpoint) session->rank = member->index;
    }
    session->ranks = ranks;
}

static enum weft_status join(struct weft_session *session)
{
    client_init_wait_begin(session);
    uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    WEFT_TRY(client_coordinate_begin(session, until_ns));
    WEFT_TRY(client_engine_create(session, &session->failure.error));
    WEFT_TRY(client_control_start(session, &session->failure.error));
    /* The connection has the same deadline, and its error has the reason: it goes first. */
    WEFT_TRY(client_init_wait(session, CLIENT_WELCOME, until_ns + CLIENT_BUFFER_RELEASE_NS,
                              "but it did not let this worker in"));
    WEFT_TRY(take_welcome(session));
    WEFT_TRY(send_endpoints(session));
    WEFT_TRY(client_init_wait(session, CLIENT_ROSTER, until_ns,
                              "but the other workers and shards did not all join"));
    const Weft__Control__Roster *roster = session->control.roster->roster;
    if (session->membership.is_elastic) take_rank(session, roster);
    WEFT_TRY(client_members_set(session, roster, &session->failure.error));
    client_staging_configure(session, roster);
    WEFT_TRY(client_engine_start(session, roster, &session->failure.error));
    WEFT_TRY(send_ready(session, roster));
    WEFT_TRY(client_init_wait(session, CLIENT_GO, until_ns, "but not every worker and shard got ready"));
    session->membership.is_newcomer = session->epoch > FIRST_EPOCH;
    session->step.number = session->control.committed;
    session->epoch_change.codec_steps = session->control.codec_steps;
    weft_group_set_cost(session->engine->group, &session->link.cost); /* before the first operation */
    WEFT_TRY(client_hosts_apply_links(session, &session->failure.error));
    return client_snapshot_fetch(session);
}

static struct weft_session *create(struct weft_env *env)
{
    struct whole_session *whole = weft_alloc_zero(env, sizeof *whole);
    if (!whole) return NULL;
    struct weft_session *session = &whole->session;
    client_session_init(session, env);
    client_engine_init(session, &whole->engine);
    client_calls_init(session, &whole->calls);
    client_comms_init(session, &whole->comms);
    client_tensors_init(session, &whole->tensors);
    client_elastic_init(session, &whole->elastic);
    return session;
}

/* The session's threads have ended, or in a forked child never existed. */
static void free_session(struct weft_session *session)
{
    struct weft_env *env = session->env;
    client_elastic_free(session);
    client_tensors_free(session);
    client_comms_close(session);
    client_calls_free(session);
    client_engine_close(session);
    client_session_free(session);
    weft_free_bytes(env, weft_container_of(session, struct whole_session, session));
}

/* Stops and frees engine and net thread. The session has failed or is closed. */
static void stop_threads(struct weft_session *session, uint64_t until_ns)
{
    if (session->loop) client_engine_stop(session, until_ns);
    client_control_stop(session);
    client_engine_free(session);
}

enum weft_status weft_init(const struct weft_options *options, struct weft_session **session_out)
{
    WEFT_DEFAULT_FLOATS;
    weft_nvtx_init();
    return client_init(weft_env_system(), options, session_out);
}

/* A failure of this rank alone ends the job too: the other ranks wait for it. */
static void give_up_join(struct weft_session *session, enum weft_status status)
{
    const char *text =
        session->failure.error.text[0] ? session->failure.error.text : weft_reason_text(status);
    if (session->loop && session->control.net) {
        client_fail(session, status, true, "%s", text);
        client_control_leave(session, client_deadline(session, WEFT_SECONDS(1)));
    }
    stop_threads(session, client_deadline(session, WEFT_SECONDS(1)));
    client_coordinate_end(session, FAILED_WAIT_NS);
}

/* Joins once. *again_out: the coordinator was lost before the job began, and another process coordinates. */
static enum weft_status try_init(struct weft_env *env, const struct weft_options *options,
                                 struct client_again *again, bool *again_out,
                                 struct weft_session **session_out)
{
    struct weft_session *session = create(env);
    *again_out = false;
    if (!session)
        return weft_error_set(client_thread_error(), WEFT_ERR_NO_MEMORY,
                              "weft_init: no memory for a session");

    client_live_add(session);
    bool begun = false;
    enum weft_status status =
        client_settings_resolve(env, options, &session->settings, &session->failure.error);
    if (status == WEFT_OK) status = client_again_apply(session, again);
    if (status == WEFT_OK) {
        begun = true;
        weft_log_source_set(session->settings.job, NULL, 0);
        status = join(session);
    }
    if (status < 0) {
        client_live_remove(session);
        if (begun) give_up_join(session, status);
        *again_out = begun && client_again_is_possible(session, status, again);
        client_thread_error()->status = WEFT_OK; /* in virtual time another session of this thread may have
                                                  * failed meanwhile */
        weft_error_set(client_thread_error(), status, "weft_init: %.440s",
                       session->failure.error.text[0] ? session->failure.error.text
                                                      : weft_reason_text(status));
        free_session(session);
        return status;
    }
    client_live_init_returned(session);
    *session_out = session;
    return WEFT_OK;
}

enum weft_status client_init(struct weft_env *env, const struct weft_options *options,
                             struct weft_session **session_out)
{
    struct client_again again = {0};
    bool is_again;
    enum weft_status status;
    if (!session_out) {
        *client_thread_error() = (struct weft_error){0};
        return weft_error_set(client_thread_error(), WEFT_ERR_INVALID, "weft_init: session_out is NULL");
    }
    do {
        *client_thread_error() = (struct weft_error){0};
        status = try_init(env, options, &again, &is_again, session_out);
        if (status == WEFT_ERR_ROLLED_BACK) again = (struct client_again){0}; /* another shard was lost */
    } while (is_again || status == WEFT_ERR_ROLLED_BACK);
    return status;
}

/* ---- leaving ---- */

static void leave(struct weft_session *session)
{
    uint64_t until_ns = client_deadline(session, FINALIZE_NS);
    client_delivery_finish(session, until_ns);
    uint32_t open = atomic_load(&session->open_requests);
    client_call_group_cancel(session, WEFT_ERR_CLOSED, "weft_finalize was called before weft_group_end");
    /* A transport must not use closed descriptors: UCX would end the process. The coordinator reports this
     * rank's end to its peers. */
    if (!session->engine->thread.is_halted && weft_loop_descriptors_lost(session->loop)) {
        client_fail(session, WEFT_ERR_IO, false, "rank %u: %s", session->rank, WEFT_DESCRIPTORS_LOST);
        (void)client_engine_halt_because(session, WEFT_DESCRIPTORS_LOST);
    }
    if (open > 0) /* other ranks may wait for these operations */
        client_fail(session, WEFT_ERR_CLOSED, true,
                    "rank %u called weft_finalize with %u operations still running", session->rank, open);
    else if (!session->engine->thread.is_halted) client_leave_check_run(session);
    if (open == 0) client_snapshot_finish(session, client_deadline(session, FINALIZE_NS / 2));
    client_control_leave(session, client_deadline(session, FINALIZE_NS / 2));
    if (open == 0) atomic_store(&session->engine->end.is_orderly, true);
    const bool has_failed = client_failed(session) < 0;
    client_fail(session, WEFT_ERR_CLOSED, false, "the session is closed");
    stop_threads(session, until_ns);
    client_coordinate_end(session, has_failed ? FAILED_WAIT_NS : session->settings.deadline_ns);
}

/* Reports a mismatch that only the final comparison found. The sentence is stored per thread, because the
 * session is freed. */
static enum weft_status report_leave_mismatch(struct weft_session *session)
{
    if (client_failed(session) != WEFT_ERR_MISMATCH) return WEFT_OK;
    *client_thread_error() = (struct weft_error){0};
    weft_log(session->env, WEFT_LOG_ERROR, "client", "weft_finalize: %s", session->failure.text);
    return weft_error_set(client_thread_error(), WEFT_ERR_MISMATCH, "weft_finalize: %s",
                          session->failure.text);
}

enum weft_status weft_finalize(struct weft_session *session)
{
    WEFT_DEFAULT_FLOATS;
    enum weft_status found = WEFT_OK;
    if (!session) return WEFT_OK;
    client_live_remove(session);
    /* A forked child has no threads of the session; sockets and transport belong to the parent. */
    if (session->live.pid == weft_process_id()) {
        const bool well = client_failed(session) == WEFT_OK;
        client_codec_tuner_report(session);
        client_exposed_report(session);
        if (well) client_flight_dump_calls(session);
        client_calls_close(session);
        leave(session);
        if (well) found = report_leave_mismatch(session);
    }
    free_session(session);
    return found;
}
