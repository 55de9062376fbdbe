/* shrink.c - an elastic job continues after a loss of ranks.
 *
 *     net thread   MemberLost(epoch): client_leave_epoch ──┐                     Shrunk(epoch, members) ──┐
 *     engine                                               └► end operations                   new group ◄─┤
 *     caller       requests end with WEFT_ERR_PEER_LOST ... step_end: client_shrink: Shrink ... go on ◄────┘
 *
 * From the loss on every open and every new operation ends with WEFT_ERR_PEER_LOST. This lasts until the
 * caller's thread has agreed with the other ranks (coordinator/shrink.c) and the engine has made the
 * group of the remaining ranks, under a new epoch. Ranks keep their order, without gaps. A further loss
 * repeats the agreement. Groups and meshes end with their membership. */
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
#include "client/tensor/tensors.h"

/* ---- engine thread ---- */

static void leave_epoch_on_engine(struct weft_command *command)
{
    struct client_epoch_change *epoch_change =
        weft_container_of(command, struct client_epoch_change, command);
    struct weft_session *session = weft_container_of(epoch_change, struct weft_session, epoch_change);
    struct client_engine *engine = session->engine;
    atomic_store(&epoch_change->is_command_queued, false);
    if (engine->failed && !engine->epoch_end.is_leaving) return;
    pthread_mutex_lock(&epoch_change->lock);
    snprintf(engine->epoch_end.text, sizeof engine->epoch_end.text,
             "%.400s; call weft_step_end, or weft_shrink outside steps", epoch_change->text);
    pthread_mutex_unlock(&epoch_change->lock);
    engine->epoch_end.is_leaving = true;
    if (engine->group) {
        /* a resting rank skips as many epochs as the others need */
        weft_groups_set_epoch(engine->transport, atomic_load(&epoch_change->epoch));
        weft_group_update_records(engine->group);
        client_comms_record(session);
    }
    client_engine_end_operations(session, WEFT_ERR_PEER_LOST, engine->epoch_end.text);
}

/* Makes the group of the members in epoch_change->shrunk_message. */
static void enter_epoch_on_engine(struct weft_command *command)
{
    struct client_epoch_change *epoch_change =
        weft_container_of(command, struct client_epoch_change, enter_command);
    struct weft_session *session = weft_container_of(epoch_change, struct weft_session, epoch_change);
    struct client_engine *engine = session->engine;
    const Weft__Control__Shrunk *shrunk = epoch_change->shrunk_message->shrunk;
    epoch_change->enter_error = (struct weft_error){0};
    if (engine->failed && !engine->epoch_end.is_leaving) {
        weft_error_set(&epoch_change->enter_error, engine->failed, "%s", engine->failed_text);
    } else {
        struct weft_group *before = engine->group; /* its memory is reused by the new group */
        enum weft_status status = client_members_renumber(
            session, shrunk->members, (uint32_t)shrunk->n_members, shrunk->epoch, &epoch_change->enter_error);
        if (status == WEFT_OK)
            status =
                client_hosts_create(session, session->control.roster->roster, &epoch_change->enter_error);
        if (status == WEFT_OK) status = client_hosts_apply_links(session, &epoch_change->enter_error);
        if (status == WEFT_OK) status = client_engine_create_group(session, &epoch_change->enter_error);
        if (status == WEFT_OK) {
            /* after the new group exists: without any group, early messages of other ranks would be
             * dropped */
            client_comms_leave(session);
            if (before) weft_group_add_moved(before, &engine->counters.left);
            weft_group_free(before);
            weft_group_set_cost(engine->group, &session->link.cost);
        }
        if (status == WEFT_OK) {
            /* after another loss the caller repeats the agreement before it starts an operation */
            engine->epoch_end.is_leaving = false;
            engine->failed = WEFT_OK;
            client_engine_watch_deadlines(session);
        }
    }
    atomic_store_explicit(&epoch_change->enter_state, 2, memory_order_release);
    weft_loop_notify(engine->loop);
}

/* ---- net thread; and caller's thread at the end of a step that admits newcomers ---- */

void client_leave_epoch(struct weft_session *session, uint32_t epoch, const char *text)
{
    struct client_epoch_change *epoch_change = &session->epoch_change;
    /* A rank that joined with this epoch has no earlier one to leave. It is notified when a resting rank is
     * lost. */
    const uint32_t began_with = session->control.roster ? session->control.roster->roster->epoch : 0;
    pthread_mutex_lock(&epoch_change->lock); /* the caller's thread may have agreed to a newcomer meanwhile */
    bool newer = epoch > atomic_load(&epoch_change->epoch) && epoch > began_with;
    if (newer) {
        snprintf(epoch_change->text, sizeof epoch_change->text, "%s", text);
        atomic_store_explicit(&epoch_change->epoch, epoch, memory_order_release);
    }
    pthread_mutex_unlock(&epoch_change->lock);
    if (!newer) return;
    weft_log(session->env, WEFT_LOG_WARN, "client", "%s; the job continues with the remaining ranks", text);
    if (!atomic_exchange(&epoch_change->is_command_queued, true)) {
        /* else the message is queued already */
        epoch_change->command.fn = leave_epoch_on_engine;
        weft_loop_post(session->loop, &epoch_change->command);
    }
    weft_loop_notify(session->loop);
}

void client_newcomer_announced(struct weft_session *session, uint32_t epoch, const char *text)
{
    struct client_epoch_change *epoch_change = &session->epoch_change;
    if (epoch > atomic_load(&epoch_change->grow_epoch)) atomic_store(&epoch_change->grow_epoch, epoch);
    weft_log(session->env, WEFT_LOG_INFO, "client", "%s; it joins at the end of a step", text);
}

/* ---- caller's thread ---- */

static enum weft_status send_shrink(struct weft_session *session, uint32_t epoch, uint64_t committed)
{
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    shrink.epoch = epoch;
    shrink.committed = committed;
    /* including the unfinished step, which may be good */
    shrink.codec_steps = client_codecs_steps_max(session) + client_step_is_unfinished(&session->step);
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

/* Moves the coordinator's message to the caller's thread; the net thread may receive a newer one. */
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
    epoch_change->enter_command.fn = enter_epoch_on_engine;
    weft_loop_post_lazy(session->loop, &epoch_change->enter_command);
    if (client_wait_for(session, group_is_ready, session, until_ns) < 0)
        client_fail(session, WEFT_ERR_DEADLINE, true,
                    "rank %u: the engine did not make the group of epoch %u in time", session->rank,
                    epoch_change->shrunk_message->shrunk->epoch);
    WEFT_TRY(client_usable(session));
    const Weft__Control__Shrunk *shrunk = epoch_change->shrunk_message->shrunk;
    bool has_newcomers = shrunk->n_newcomers > 0;
    session->tensors->skip.count = 0; /* the shards forget it with the epoch */
    if (has_newcomers || shrunk->last > 0) epoch_change->codec_steps = shrunk->codec_steps;
    if (has_newcomers && shrunk->last == 0) epoch_change->growth_unreported = true;
    if (has_newcomers || shrunk->last > 0) client_state_broadcast_require(session);
    return (enum weft_status)epoch_change->enter_error.status;
}

/* WEFT_ERR_AGAIN: another rank was lost, repeat. */
static enum weft_status agree(struct weft_session *session, uint64_t committed, uint64_t until_ns,
                              uint64_t *committed_out)
{
    struct agreement agreement = {.session = session, .epoch = atomic_load(&session->epoch_change.epoch)};
    WEFT_TRY(send_shrink(session, agreement.epoch, committed));
    if (client_wait_for(session, agreement_ended, &agreement, until_ns) < 0) {
        char reason[320];
        client_control_wait_reason(session, reason, sizeof reason);
        if (!agreement_ended(&agreement)) /* the agreement arrived meanwhile */
            client_fail(
                session, WEFT_ERR_DEADLINE, true,
                "rank %u: after a loss the ranks have not agreed on the remaining ranks within %.1f s: %s",
                session->rank, (double)session->settings.deadline_ns / 1e9, reason);
    }
    WEFT_TRY(client_usable(session));
    if (!shrunk_received(session, agreement.epoch)) return WEFT_ERR_AGAIN;
    enum weft_status status = client_enter_epoch(session, until_ns);
    WEFT_TRY(client_usable(session));
    /* A remaining rank may be lost already: wait until the coordinator reports it. */
    const bool again = status == WEFT_ERR_PEER_LOST &&
                       client_wait_for(session, has_another_loss, &agreement, until_ns) == WEFT_OK;
    if (status < 0 && !again)
        client_fail(session, status, true, "rank %u cannot continue after a loss: %.380s", session->rank,
                    session->epoch_change.enter_error.text);
    WEFT_TRY(client_usable(session));
    if (committed_out) *committed_out = session->epoch_change.shrunk_message->shrunk->committed;
    return client_is_leaving_epoch(session) ? WEFT_ERR_AGAIN : WEFT_OK;
}

enum weft_status client_shrink(struct weft_session *session, uint64_t committed, uint64_t *committed_out)
{
    uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    enum weft_status status;
    /* a step that was good once stays good: the coordinator keeps the number */
    do status = agree(session, committed, until_ns, committed_out);
    while (status == WEFT_ERR_AGAIN);
    return status;
}
