/* join.c - weft_join: a rank without data rests while the others continue, until all ranks have joined.
 *
 *     this rank    Join(last good step) ──────► rests ...              ┌─► Shrunk(all, last) ─► group of all
 *     the others   Joined(epoch): step_end: agree (shrink.c) ... Join ─┘
 *
 * The others need no contribution of this rank: their operations, plans and codecs are those of a job of
 * their size. The step that is open when a rank joins is repeated. */
#include <stdio.h>
#include <string.h>

#include "client/call/calls.h"
#include "client/elastic/elastic.h"
#include "client/session/control.h"
#include "client/session/epoch_change.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

static enum weft_status send_join(struct weft_session *session)
{
    Weft__Control__Join join = WEFT__CONTROL__JOIN__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    join.committed = session->step.number;
    if (session->control.roster->roster->wire_version > 1) join.epoch = session->epoch; /* version 1: none */
    join.codec_steps = client_codecs_steps_max(session);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_JOIN;
    message.join = &join;
    return client_control_send(session, &message);
}

static bool all_joined(struct weft_session *session)
{
    pthread_mutex_lock(&session->control.lock);
    bool there = session->control.shrunk && session->control.shrunk->shrunk->last > 0;
    pthread_mutex_unlock(&session->control.lock);
    return there;
}

static bool all_joined_or_failed(void *context)
{
    struct weft_session *session = context;
    return all_joined(session) || client_failed(session) < 0;
}

static bool leaving_epoch_or_failed(void *context)
{
    struct weft_session *session = context;
    return client_is_leaving_epoch(session) || client_failed(session) < 0;
}

/* The other ranks cannot know whether the shards have weights (init.c). While a rank has no weights, no step
 * can complete. */
static enum weft_status has_first_weights(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->mode == WEFT_MODE_SERVER && tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE &&
            !tensor->progress.initialised)
            return client_error(session, WEFT_ERR_STATE,
                                "join: tensor '%s' has an optimiser at shards and no weights yet; call "
                                "weft_tensor_init first",
                                tensor->name);
    }
    return WEFT_OK;
}

static enum weft_status check_join(struct weft_session *session)
{
    if (!session->membership.is_elastic)
        return client_error(
            session, WEFT_ERR_STATE,
            "join: only an elastic job continues without a rank; start it with weft run --min-workers N");
    if (session->step.open)
        return client_error(session, WEFT_ERR_STATE, "join: step %llu is open; call weft_step_end first",
                            (unsigned long long)session->step.number);
    WEFT_TRY(client_deliver(session));
    if (atomic_load(&session->open_requests) > 0 || client_call_group_is_open(session))
        return client_error(session, WEFT_ERR_BUSY, "join: %u operations of this rank have not ended",
                            atomic_load(&session->open_requests));
    return has_first_weights(session);
}

/* A caller repeats weft_join on WEFT_ERR_DEADLINE. A job that has ended by a deadline must return another
 * status. */
static enum weft_status map_deadline(struct weft_session *session, enum weft_status status)
{
    return status == WEFT_ERR_DEADLINE ? client_error(session, WEFT_ERR_ABORTED, "%s", session->failure.text)
                                       : status;
}

/* Makes the group of all ranks. Handles losses and newcomers in between. */
static enum weft_status resume(struct weft_session *session, uint32_t *last_out)
{
    uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    /* later changes replace the unreported ones */
    session->epoch_change.is_resting = session->epoch_change.shrink_unreported =
        session->epoch_change.growth_unreported = false;
    enum weft_status status = client_enter_epoch(session, until_ns);
    WEFT_TRY(client_usable(session));
    const Weft__Control__Shrunk *shrunk = session->epoch_change.shrunk_message->shrunk;
    uint32_t last = shrunk->last - 1;
    session->step.number = shrunk->committed;
    /* the coordinator reports the loss */
    if (status == WEFT_ERR_PEER_LOST) client_wait_for(session, leaving_epoch_or_failed, session, until_ns);
    if (client_is_leaving_epoch(session)) status = client_shrink(session, session->step.number, NULL);
    /* newcomers of this change: the caller of weft_join takes the parameters in any case */
    session->epoch_change.growth_unreported = false;
    WEFT_TRY(client_usable(session));
    if (status < 0) {
        client_fail(session, status, true, "rank %u cannot continue after all ranks have joined: %.300s",
                    session->rank, session->epoch_change.enter_error.text);
        return client_usable(session);
    }
    client_codecs_set_membership(session);
    const struct client_member *member = client_member_of_number(session, last);
    if (last_out) *last_out = member && member->index < session->ranks ? member->index : 0;
    return WEFT_OK;
}

enum weft_status weft_join(struct weft_session *session, uint64_t timeout_ms, uint32_t *last_out)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("join", "session");
    struct client_epoch_change *epoch_change = &session->epoch_change;
    bool was_resting = epoch_change->is_resting;
    epoch_change->is_resting = false; /* for client_usable */
    enum weft_status status = client_usable(session);
    epoch_change->is_resting = was_resting;
    if (status < 0) return map_deadline(session, status);
    if (!was_resting) {
        WEFT_TRY(check_join(session));
        WEFT_TRY(send_join(session));
        epoch_change->is_resting = true;
    }
    uint64_t wait_ns = timeout_ms > WEFT_NEVER / WEFT_MS(1) ? WEFT_NEVER
                       : timeout_ms                         ? WEFT_MS(timeout_ms)
                                                            : session->settings.deadline_ns;
    if (client_wait_for(session, all_joined_or_failed, session, client_deadline(session, wait_ns)) < 0) {
        char reason[320] = "not all ranks have joined";
        /* a short wait of the caller's choice needs no names */
        if (!timeout_ms) client_control_wait_reason(session, reason, sizeof reason);
        if (!all_joined_or_failed(session))
            return client_error(session, WEFT_ERR_DEADLINE,
                                "join: after %.1f s %s; call weft_join again to wait on",
                                (double)wait_ns / 1e9, reason);
    }
    return map_deadline(session,
                        client_failed(session) < 0 ? client_usable(session) : resume(session, last_out));
}

bool weft_newcomer(const struct weft_session *session) { return session && session->membership.is_newcomer; }

uint64_t weft_step_next(const struct weft_session *session)
{
    return session ? session->step.number + !session->step.open : 0;
}

/* ---- codecs ---- */

static const char too_large[] =
    "tensor '%s': the residual of its codec is too large to scale to the number of ranks";

/* Scales the carry as weft_codec_set_ranks scales a residual. */
static void scale_carry(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    if (!tensor->arrays.carry || tensor->arrays.carry_ranks == session->ranks) return;
    const float by = (float)((double)session->ranks / (double)tensor->arrays.carry_ranks);
    const uint32_t most_bits = weft_kernels()->max_abs_bits_f32(tensor->arrays.carry, tensor->elems);
    uint32_t scaled_bits;
    float most;
    memcpy(&most, &most_bits, sizeof most);
    most *= by;
    memcpy(&scaled_bits, &most, sizeof scaled_bits);
    if (scaled_bits >= WEFT_RESIDUAL_LIMIT_BITS)
        weft_log(session->env, WEFT_LOG_WARN, "client", too_large, tensor->name);
    else weft_kernels()->scale_f32(tensor->arrays.carry, tensor->arrays.carry, by, tensor->elems);
    tensor->arrays.carry_ranks = session->ranks;
}

void client_codecs_set_membership(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire)) continue;
        scale_carry(tensor);
        if (!tensor->codec) continue;
        if (weft_codec_set_ranks(tensor->codec, session->ranks) < 0)
            weft_log(session->env, WEFT_LOG_WARN, "client", too_large, tensor->name);
        weft_codec_set_stream(tensor->codec, tensor->wire.rounding_seed, session->rank);
        weft_codec_set_steps(tensor->codec, session->epoch_change.codec_steps);
    }
}

uint64_t client_codecs_steps_max(struct weft_session *session)
{
    struct weft_list *node, *spare;
    uint64_t most = 0;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        bool free = tensor->codec && !atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire);
        uint64_t steps = free ? weft_codec_steps(tensor->codec) : 0;
        if (steps > most) most = steps;
    }
    return most;
}
