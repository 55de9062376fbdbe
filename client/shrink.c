/* shrink.c - an elastic job loses ranks and goes on with the others.
 *
 *     net thread     MemberLost(epoch) ──► client_part ──┐                    Shrunk(epoch, members) ──┐
 *     engine                                             └► ends what runs                             │  new group ◄┐
 *     caller         ... its requests end with WEFT_ERR_PEER_LOST ... step_end: client_shrink: Shrink ─► └───────────┘
 *
 * From the loss on nothing runs: every operation under way or started later ends with WEFT_ERR_PEER_LOST, until the caller's
 * thread has agreed with the others (server/coordinator_shrink.c says how) and the engine has made the group of those that
 * are left, under a new epoch. Ranks keep their order, without gaps. Another loss on the way only begins it again. Groups and
 * meshes end with the membership they were made in. */
#include <stdio.h>
#include <string.h>

#include "client/comm.h"
#include "client/session.h"
#include "client/tensor.h"

/* ---- the engine ---- */

static void part_on_engine(struct weft_mail *mail)
{
    struct client_parting *parting = weft_container_of(mail, struct client_parting, mail);
    struct weft_session *session = weft_container_of(parting, struct weft_session, parting);
    struct client_engine *engine = &session->engine;
    atomic_store(&parting->mail_sent, false);
    if (engine->failed && !engine->parted) return;
    pthread_mutex_lock(&parting->lock);
    snprintf(engine->parted_text, sizeof engine->parted_text, "%.400s; weft_step_end or weft_shrink says how the job goes on", parting->text);
    pthread_mutex_unlock(&parting->lock);
    engine->parted = true;
    if (engine->group) {
        weft_groups_follow(engine->transport, atomic_load(&parting->epoch)); /* who rests makes none of theirs, for as many epochs as they take */
        weft_group_record(engine->group);
        client_comms_record(session);
    }
    client_engine_end_operations(session, WEFT_ERR_PEER_LOST, engine->parted_text);
}

/* Make the group of the members in parting->taken. */
static void rejoin_on_engine(struct weft_mail *mail)
{
    struct client_parting *parting = weft_container_of(mail, struct client_parting, rejoin_mail);
    struct weft_session *session = weft_container_of(parting, struct weft_session, parting);
    struct client_engine *engine = &session->engine;
    const Weft__Control__Shrunk *shrunk = parting->taken->shrunk;
    parting->rejoin_error = (struct weft_error){0};
    if (engine->failed && !engine->parted) {
        weft_error_set(&parting->rejoin_error, engine->failed, "%s", engine->failed_text);
    } else {
        struct weft_group *before = engine->group; /* its memory serves the new one */
        enum weft_status status =
            client_members_renumber(session, shrunk->members, (uint32_t)shrunk->n_members, shrunk->epoch, &parting->rejoin_error);
        if (status == WEFT_OK) status = client_hosts_find(session, session->control.roster->roster, &parting->rejoin_error);
        if (status == WEFT_OK) status = client_hosts_follow(session, &parting->rejoin_error);
        if (status == WEFT_OK) status = client_engine_create_group(session, &parting->rejoin_error);
        if (status == WEFT_OK) { /* the old ones go after the new one has come: what its other ranks have sent waits only while there is any */
            client_comms_leave(session);
            if (before) weft_group_add_moved(before, &engine->left);
            weft_group_free(before);
            weft_group_set_cost(engine->group, &session->cost);
        }
        if (status == WEFT_OK) { /* if somebody else is lost already, the caller begins again before it starts anything */
            engine->parted = false;
            engine->failed = WEFT_OK;
            client_engine_watch_deadlines(session);
        }
    }
    atomic_store_explicit(&parting->rejoin_state, 2, memory_order_release);
    weft_loop_notify(engine->loop);
}

/* ---- the net thread (and the caller's, at the end of a step that lets somebody in) ---- */

void client_part(struct weft_session *session, uint32_t epoch, const char *text)
{
    struct client_parting *parting = &session->parting;
    /* Who came in with this epoch has nothing to part from: it is told of it where one that rested is lost. */
    const uint32_t began_with = session->control.roster ? session->control.roster->roster->epoch : 0;
    pthread_mutex_lock(&parting->lock); /* the caller may have agreed to let somebody in, meanwhile */
    bool newer = epoch > atomic_load(&parting->epoch) && epoch > began_with;
    if (newer) {
        snprintf(parting->text, sizeof parting->text, "%s", text);
        atomic_store_explicit(&parting->epoch, epoch, memory_order_release);
    }
    pthread_mutex_unlock(&parting->lock);
    if (!newer) return;
    weft_log(session->env, WEFT_LOG_WARN, "client", "%s; the job goes on with other ranks", text);
    if (!atomic_exchange(&parting->mail_sent, true)) { /* else the letter is the engine's until it has run */
        parting->mail.fn = part_on_engine;
        weft_loop_post(session->engine.loop, &parting->mail);
    }
    weft_loop_notify(session->engine.loop);
}

void client_grow(struct weft_session *session, uint32_t epoch, const char *text)
{
    struct client_parting *parting = &session->parting;
    if (epoch > atomic_load(&parting->grow_epoch)) atomic_store(&parting->grow_epoch, epoch);
    weft_log(session->env, WEFT_LOG_INFO, "client", "%s; it comes in at the end of a step", text);
}

/* ---- the caller's thread ---- */

static enum weft_status say_shrink(struct weft_session *session, uint32_t epoch, uint64_t committed)
{
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    shrink.epoch = epoch;
    shrink.committed = committed;
    shrink.codec_steps = client_codecs_steps(session) + session->step.open; /* if it should be good */
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHRINK;
    message.shrink = &shrink;
    return client_control_send(session, &message);
}

struct agreement {
    struct weft_session *session;
    uint32_t epoch;
};

static bool agreed(struct weft_session *session, uint32_t epoch)
{
    pthread_mutex_lock(&session->control.lock);
    bool there = session->control.shrunk && session->control.shrunk->shrunk->epoch == epoch;
    pthread_mutex_unlock(&session->control.lock);
    return there;
}

static bool agreed_or_worse(void *context)
{
    struct agreement *agreement = context;
    struct weft_session *session = agreement->session;
    return client_failed(session) < 0 || atomic_load(&session->parting.epoch) != agreement->epoch || agreed(session, agreement->epoch);
}

static bool another_loss(void *context)
{
    struct agreement *agreement = context;
    return client_failed(agreement->session) < 0 || atomic_load(&agreement->session->parting.epoch) != agreement->epoch;
}

static bool rejoined(void *context)
{
    struct weft_session *session = context;
    return atomic_load_explicit(&session->parting.rejoin_state, memory_order_acquire) == 2 || client_failed(session) < 0;
}

/* What the coordinator has said, as the caller's own: the net thread may get a newer one meanwhile. */
static void take_shrunk(struct weft_session *session)
{
    client_shrunk_drop(session, session->parting.taken);
    pthread_mutex_lock(&session->control.lock);
    session->parting.taken = session->control.shrunk;
    session->control.shrunk = NULL;
    pthread_mutex_unlock(&session->control.lock);
}

enum weft_status client_rejoin(struct weft_session *session, uint64_t until_ns)
{
    struct client_parting *parting = &session->parting;
    take_shrunk(session);
    atomic_store(&parting->rejoin_state, 1);
    parting->rejoin_mail.fn = rejoin_on_engine;
    weft_loop_post_lazy(session->engine.loop, &parting->rejoin_mail);
    if (client_wait_for(session, rejoined, session, until_ns) < 0)
        client_fail(session, WEFT_ERR_DEADLINE, true, "rank %u: the engine did not make the group of epoch %u in time", session->rank,
                    parting->taken->shrunk->epoch);
    WEFT_TRY(client_usable(session));
    const Weft__Control__Shrunk *shrunk = parting->taken->shrunk;
    bool comes = shrunk->n_newcomers > 0;
    if (comes || shrunk->last > 0) parting->codec_steps = shrunk->codec_steps;
    if (comes && shrunk->last == 0) parting->grew = true;
    if (comes || shrunk->last > 0) client_share_all_due(session);
    return (enum weft_status)parting->rejoin_error.status;
}

/* WEFT_ERR_AGAIN: somebody else is lost, begin again. */
static enum weft_status agree(struct weft_session *session, uint64_t committed, uint64_t until_ns, uint64_t *committed_out)
{
    struct agreement agreement = {.session = session, .epoch = atomic_load(&session->parting.epoch)};
    WEFT_TRY(say_shrink(session, agreement.epoch, committed));
    if (client_wait_for(session, agreed_or_worse, &agreement, until_ns) < 0) {
        char whom[320];
        client_control_whom(session, whom, sizeof whom);
        if (!agreed_or_worse(&agreement)) /* they have meanwhile */
            client_fail(session, WEFT_ERR_DEADLINE, true, "rank %u: after a loss not all other ranks have come to agree how to go on within %.1f s: %s",
                        session->rank, (double)session->settings.deadline_ns / 1e9, whom);
    }
    WEFT_TRY(client_usable(session));
    if (!agreed(session, agreement.epoch)) return WEFT_ERR_AGAIN;
    enum weft_status status = client_rejoin(session, until_ns);
    WEFT_TRY(client_usable(session));
    /* One of those that are left may have gone already: then the coordinator says so. */
    const bool again = status == WEFT_ERR_PEER_LOST && client_wait_for(session, another_loss, &agreement, until_ns) == WEFT_OK;
    if (status < 0 && !again) client_fail(session, status, true, "rank %u cannot go on after a loss: %.380s", session->rank, session->parting.rejoin_error.text);
    WEFT_TRY(client_usable(session));
    if (committed_out) *committed_out = session->parting.taken->shrunk->committed;
    return client_parted(session) ? WEFT_ERR_AGAIN : WEFT_OK;
}

enum weft_status client_shrink(struct weft_session *session, uint64_t committed, uint64_t *committed_out)
{
    uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    enum weft_status status;
    do status = agree(session, committed, until_ns, committed_out); /* what was found good once is so for ever: the coordinator keeps it */
    while (status == WEFT_ERR_AGAIN);
    return status;
}
