/* shrink.c - an elastic job loses ranks and goes on with the others.
 *
 *     net thread     MemberLost(epoch) ──► client_leave_epoch ──┐                    Shrunk(epoch, members) ──┐
 *     engine                                             └► ends what runs                             │  new group ◄┐
 *     caller         ... its requests end with WEFT_ERR_PEER_LOST ... step_end: client_shrink: Shrink ─► └───────────┘
 *
 * From the loss on nothing runs: every operation under way or started later ends with WEFT_ERR_PEER_LOST,
 * until the caller's thread has agreed with the others (server/coordinator/shrink.c says how) and the
 * engine has made the group of those that are left, under a new epoch. Ranks keep their order, without
 * gaps. Another loss on the way only begins it again. Groups and meshes end with the membership they were
 * made in. */
#include <stdio.h>
#include <string.h>

#include "client/comm/comm.h"
#include "client/elastic/elastic.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/session/control.h"
#include "client/session/epoch_change.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/topology.h"
#include "client/session/wait.h"
#include "client/tensor/tensor.h"

/* ---- the engine ---- */

static void leave_epoch_on_engine(struct weft_command *command)
{
    struct client_epoch_change *epoch_change =
        weft_container_of(command, struct client_epoch_change, command);
    struct weft_session *session = weft_container_of(epoch_change, struct weft_session, epoch_change);
    struct client_engine *engine = session->engine;
    atomic_store(&epoch_change->mail_sent, false);
    if (engine->failed && !engine->leaves_epoch) return;
    pthread_mutex_lock(&epoch_change->lock);
    snprintf(engine->leave_epoch_text, sizeof engine->leave_epoch_text,
             "%.400s; weft_step_end or weft_shrink says how the job goes on", epoch_change->text);
    pthread_mutex_unlock(&epoch_change->lock);
    engine->leaves_epoch = true;
    if (engine->group) {
        /* who rests makes none of theirs, for as many epochs as they take */
        weft_groups_set_epoch(engine->transport, atomic_load(&epoch_change->epoch));
        weft_group_update_records(engine->group);
        client_comms_record(session);
    }
    client_engine_end_operations(session, WEFT_ERR_PEER_LOST, engine->leave_epoch_text);
}

/* Make the group of the members in parting->taken. */
static void enter_epoch_on_engine(struct weft_command *command)
{
    struct client_epoch_change *epoch_change =
        weft_container_of(command, struct client_epoch_change, enter_mail);
    struct weft_session *session = weft_container_of(epoch_change, struct weft_session, epoch_change);
    struct client_engine *engine = session->engine;
    const Weft__Control__Shrunk *shrunk = epoch_change->shrunk_message->shrunk;
    epoch_change->enter_error = (struct weft_error){0};
    if (engine->failed && !engine->leaves_epoch) {
        weft_error_set(&epoch_change->enter_error, engine->failed, "%s", engine->failed_text);
    } else {
        struct weft_group *before = engine->group; /* its memory serves the new one */
        enum weft_status status = client_members_renumber(
            session, shrunk->members, (uint32_t)shrunk->n_members, shrunk->epoch, &epoch_change->enter_error);
        if (status == WEFT_OK)
            status =
                client_hosts_create(session, session->control.roster->roster, &epoch_change->enter_error);
        if (status == WEFT_OK) status = client_hosts_apply_links(session, &epoch_change->enter_error);
        if (status == WEFT_OK) status = client_engine_create_group(session, &epoch_change->enter_error);
        if (status == WEFT_OK) {
            /* the old ones go after the new one has come: what its other ranks have sent waits only while
             * there is any */
            client_comms_leave(session);
            if (before) weft_group_add_moved(before, &engine->left);
            weft_group_free(before);
            weft_group_set_cost(engine->group, &session->link.cost);
        }
        if (status == WEFT_OK) {
            /* if somebody else is lost already, the caller begins again before it starts anything */
            engine->leaves_epoch = false;
            engine->failed = WEFT_OK;
            client_engine_watch_deadlines(session);
        }
    }
    atomic_store_explicit(&epoch_change->enter_state, 2, memory_order_release);
    weft_loop_notify(engine->loop);
}

/* ---- the net thread (and the caller's, at the end of a step that lets somebody in) ---- */

void client_leave_epoch(struct weft_session *session, uint32_t epoch, const char *text)
{
    struct client_epoch_change *epoch_change = &session->epoch_change;
    /* Who came in with this epoch has nothing to part from: it is told of it where one that rested is
     * lost. */
    const uint32_t began_with = session->control.roster ? session->control.roster->roster->epoch : 0;
    pthread_mutex_lock(&epoch_change->lock); /* the caller may have agreed to let somebody in, meanwhile */
    bool newer = epoch > atomic_load(&epoch_change->epoch) && epoch > began_with;
    if (newer) {
        snprintf(epoch_change->text, sizeof epoch_change->text, "%s", text);
        atomic_store_explicit(&epoch_change->epoch, epoch, memory_order_release);
    }
    pthread_mutex_unlock(&epoch_change->lock);
    if (!newer) return;
    weft_log(session->env, WEFT_LOG_WARN, "client", "%s; the job goes on with other ranks", text);
    if (!atomic_exchange(&epoch_change->mail_sent, true)) {
        /* else the letter is the engine's until it has run */
        epoch_change->command.fn = leave_epoch_on_engine;
        weft_loop_post(session->loop, &epoch_change->command);
    }
    weft_loop_notify(session->loop);
}

void client_newcomer_announced(struct weft_session *session, uint32_t epoch, const char *text)
{
    struct client_epoch_change *epoch_change = &session->epoch_change;
    if (epoch > atomic_load(&epoch_change->grow_epoch)) atomic_store(&epoch_change->grow_epoch, epoch);
    weft_log(session->env, WEFT_LOG_INFO, "client", "%s; it comes in at the end of a step", text);
}

/* ---- the caller's thread ---- */

static enum weft_status send_shrink(struct weft_session *session, uint32_t epoch, uint64_t committed)
{
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    shrink.epoch = epoch;
    shrink.committed = committed;
    shrink.codec_steps = client_codecs_steps_max(session) + session->step.open; /* if it should be good */
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHRINK;
    message.shrink = &shrink;
    return client_control_send(session, &message);
}

struct agreement {
    struct weft_session *session;
    uint32_t epoch;
};

static bool shrunk_received(struct weft_session *session, uint32_t epoch)
{
    pthread_mutex_lock(&session->control.lock);
    bool there = session->control.shrunk && session->control.shrunk->shrunk->epoch == epoch;
    pthread_mutex_unlock(&session->control.lock);
    return there;
}

static bool agreement_ended(void *context)
{
    struct agreement *agreement = context;
    struct weft_session *session = agreement->session;
    return client_failed(session) < 0 || atomic_load(&session->epoch_change.epoch) != agreement->epoch ||
           shrunk_received(session, agreement->epoch);
}

static bool has_another_loss(void *context)
{
    struct agreement *agreement = context;
    return client_failed(agreement->session) < 0 ||
           atomic_load(&agreement->session->epoch_change.epoch) != agreement->epoch;
}

static bool group_is_ready(void *context)
{
    struct weft_session *session = context;
    return atomic_load_explicit(&session->epoch_change.enter_state, memory_order_acquire) == 2 ||
           client_failed(session) < 0;
}

/* What the coordinator has said, as the caller's own: the net thread may get a newer one meanwhile. */
static void take_shrunk(struct weft_session *session)
{
    client_shrunk_release(session, session->epoch_change.shrunk_message);
    pthread_mutex_lock(&session->control.lock);
    session->epoch_change.shrunk_message = session->control.shrunk;
    session->control.shrunk = NULL;
    pthread_mutex_unlock(&session->control.lock);
}

enum weft_status client_enter_epoch(struct weft_session *session, uint64_t until_ns)
{
    struct client_epoch_change *epoch_change = &session->epoch_change;
    take_shrunk(session);
    atomic_store(&epoch_change->enter_state, 1);
    epoch_change->enter_mail.fn = enter_epoch_on_engine;
    weft_loop_post_lazy(session->loop, &epoch_change->enter_mail);
    if (client_wait_for(session, group_is_ready, session, until_ns) < 0)
        client_fail(session, WEFT_ERR_DEADLINE, true,
                    "rank %u: the engine did not make the group of epoch %u in time", session->rank,
                    epoch_change->shrunk_message->shrunk->epoch);
    WEFT_TRY(client_usable(session));
    const Weft__Control__Shrunk *shrunk = epoch_change->shrunk_message->shrunk;
    bool has_newcomers = shrunk->n_newcomers > 0;
    if (has_newcomers || shrunk->last > 0) epoch_change->codec_steps = shrunk->codec_steps;
    if (has_newcomers && shrunk->last == 0) epoch_change->growth_unreported = true;
    if (has_newcomers || shrunk->last > 0) client_state_broadcast_require(session);
    return (enum weft_status)epoch_change->enter_error.status;
}

/* WEFT_ERR_AGAIN: somebody else is lost, begin again. */
static enum weft_status agree(struct weft_session *session, uint64_t committed, uint64_t until_ns,
                              uint64_t *committed_out)
{
    struct agreement agreement = {.session = session, .epoch = atomic_load(&session->epoch_change.epoch)};
    WEFT_TRY(send_shrink(session, agreement.epoch, committed));
    if (client_wait_for(session, agreement_ended, &agreement, until_ns) < 0) {
        char whom[320];
        client_control_wait_reason(session, whom, sizeof whom);
        if (!agreement_ended(&agreement)) /* they have meanwhile */
            client_fail(
                session, WEFT_ERR_DEADLINE, true,
                "rank %u: after a loss not all other ranks have come to agree how to go on within %.1f s: %s",
                session->rank, (double)session->settings.deadline_ns / 1e9, whom);
    }
    WEFT_TRY(client_usable(session));
    if (!shrunk_received(session, agreement.epoch)) return WEFT_ERR_AGAIN;
    enum weft_status status = client_enter_epoch(session, until_ns);
    WEFT_TRY(client_usable(session));
    /* One of those that are left may have gone already: then the coordinator says so. */
    const bool again = status == WEFT_ERR_PEER_LOST &&
                       client_wait_for(session, has_another_loss, &agreement, until_ns) == WEFT_OK;
    if (status < 0 && !again)
        client_fail(session, status, true, "rank %u cannot go on after a loss: %.380s", session->rank,
                    session->epoch_change.enter_error.text);
    WEFT_TRY(client_usable(session));
    if (committed_out) *committed_out = session->epoch_change.shrunk_message->shrunk->committed;
    return client_is_leaving_epoch(session) ? WEFT_ERR_AGAIN : WEFT_OK;
}

enum weft_status client_shrink(struct weft_session *session, uint64_t committed, uint64_t *committed_out)
{
    uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    enum weft_status status;
    /* what was found good once is so for ever: the coordinator keeps it */
    do status = agree(session, committed, until_ns, committed_out);
    while (status == WEFT_ERR_AGAIN);
    return status;
}
