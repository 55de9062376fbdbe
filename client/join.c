/* join.c - a rank out of data rests while the others go on, until all ranks are out of data.
 *
 *     this rank    Join(last good step) ──────────► ... rests ...                   ┌─► Shrunk(everybody, last) ─► the group of all
 *     the others   Joined(epoch): parted ─► step_end: agree (shrink.c), SHRUNK ─► ... Join ─┘
 *
 * So the others need no contribution of it, real or zero: every operation, plan and codec is that of a job of their number. What
 * it costs is the one step in which a rank turns out to have no data: it is run again. */
#include <stdio.h>
#include <string.h>

#include "client/session.h"
#include "client/tensor.h"

static enum weft_status say_join(struct weft_session *session)
{
    Weft__Control__Join join = WEFT__CONTROL__JOIN__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    join.committed = session->step.number;
    join.codec_steps = client_codecs_steps(session);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_JOIN;
    message.join = &join;
    return client_control_send(session, &message);
}

static bool everybody_there(struct weft_session *session)
{
    pthread_mutex_lock(&session->control.lock);
    bool there = session->control.shrunk && session->control.shrunk->shrunk->last > 0;
    pthread_mutex_unlock(&session->control.lock);
    return there;
}

static bool everybody_or_failed(void *context)
{
    struct weft_session *session = context;
    return everybody_there(session) || client_failed(session) < 0;
}

static bool parted_or_failed(void *context)
{
    struct weft_session *session = context;
    return client_parted(session) || client_failed(session) < 0;
}

/* The others could not tell whether the shards have the first weights (tensor_init.c): while one rank has none, no step has closed. */
static enum weft_status has_first_weights(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors) {
        const struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, session_link);
        if (tensor->mode == WEFT_MODE_SERVER && tensor->optimizer.kind != WEFT_OPTIMIZER_NONE && !tensor->initialised)
            return client_error(session, WEFT_ERR_STATE, "join: tensor '%s' has an optimiser at shards and no weights yet; call weft_tensor_init first",
                                tensor->name);
    }
    return WEFT_OK;
}

static enum weft_status may_join(struct weft_session *session)
{
    if (!session->elastic)
        return client_error(session, WEFT_ERR_STATE, "join: only an elastic job goes on without a rank; start it with weft run --min-workers N");
    if (session->step.open)
        return client_error(session, WEFT_ERR_STATE, "join: step %llu is open; call weft_step_end first", (unsigned long long)session->step.number);
    if (atomic_load(&session->open_requests) > 0 || client_batch_open(session))
        return client_error(session, WEFT_ERR_BUSY, "join: %u operations of this rank have not ended", atomic_load(&session->open_requests));
    return has_first_weights(session);
}

/* A caller waits on as long as he is told WEFT_ERR_DEADLINE: a job that has ended, by whatever deadline, must not say that. */
static enum weft_status ended(struct weft_session *session, enum weft_status status)
{
    return status == WEFT_ERR_DEADLINE ? client_error(session, WEFT_ERR_ABORTED, "%s", session->failure.text) : status;
}

/* The group of all, and whatever else happens on the way to it. */
static enum weft_status go_on(struct weft_session *session, uint32_t *last_out)
{
    uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    session->parting.joined = session->parting.unsaid = session->parting.grew = false; /* what was to be said has been overtaken */
    enum weft_status status = client_rejoin(session, until_ns);
    WEFT_TRY(client_usable(session));
    const Weft__Control__Shrunk *shrunk = session->parting.taken->shrunk;
    uint32_t last = shrunk->last - 1;
    session->step.number = shrunk->committed;
    if (status == WEFT_ERR_PEER_LOST) client_wait_for(session, parted_or_failed, session, until_ns); /* the coordinator will say so */
    if (client_parted(session)) status = client_shrink(session, session->step.number, NULL);
    session->parting.grew = false; /* whoever came in with that: weft_join has ended, and its caller takes the parameters anyway */
    WEFT_TRY(client_usable(session));
    if (status < 0) {
        client_fail(session, status, true, "rank %u cannot go on after all have joined: %.300s", session->rank, session->parting.rejoin_error.text);
        return client_usable(session);
    }
    client_codecs_follow(session);
    const struct client_member *member = client_member_of_number(session, last);
    if (last_out) *last_out = member && member->index < session->ranks ? member->index : 0;
    return WEFT_OK;
}

enum weft_status weft_join(struct weft_session *session, uint64_t timeout_ms, uint32_t *last_out)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_missing("join", "session");
    struct client_parting *parting = &session->parting;
    bool waits = parting->joined;
    parting->joined = false; /* for the question whether the session is usable */
    enum weft_status status = client_usable(session);
    parting->joined = waits;
    if (status < 0) return ended(session, status);
    if (!waits) {
        WEFT_TRY(may_join(session));
        WEFT_TRY(say_join(session));
        parting->joined = true;
    }
    uint64_t wait_ns = timeout_ms > WEFT_NEVER / WEFT_MS(1) ? WEFT_NEVER : timeout_ms ? WEFT_MS(timeout_ms) : session->settings.deadline_ns;
    if (client_wait_for(session, everybody_or_failed, session, client_deadline(session, wait_ns)) < 0) {
        char whom[320] = "not all ranks have joined";
        if (!timeout_ms) client_control_whom(session, whom, sizeof whom); /* else the caller only looks in */
        if (!everybody_or_failed(session))
            return client_error(session, WEFT_ERR_DEADLINE, "join: after %.1f s %s; call weft_join again to wait on", (double)wait_ns / 1e9, whom);
    }
    return ended(session, client_failed(session) < 0 ? client_usable(session) : go_on(session, last_out));
}

bool weft_newcomer(const struct weft_session *session) { return session && session->newcomer; }

uint64_t weft_step_next(const struct weft_session *session) { return session ? session->step.number + !session->step.open : 0; }

/* ---- codecs ---- */

static const char too_large[] = "tensor '%s': what its codec owes is too large to follow the number of ranks";

/* As weft_codec_set_ranks, of what codecs before it owe. */
static void carry_follows(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    if (!tensor->carry || tensor->carry_ranks == session->ranks) return;
    const float by = (float)((double)session->ranks / (double)tensor->carry_ranks);
    const uint32_t most_bits = weft_kernels()->max_abs_bits_f32(tensor->carry, tensor->elems);
    uint32_t scaled_bits;
    float most;
    memcpy(&most, &most_bits, sizeof most);
    most *= by;
    memcpy(&scaled_bits, &most, sizeof scaled_bits);
    if (scaled_bits >= WEFT_DEBT_TOO_LARGE_BITS) weft_log(session->env, WEFT_LOG_WARN, "client", too_large, tensor->name);
    else weft_kernels()->scale_f32(tensor->carry, tensor->carry, by, tensor->elems);
    tensor->carry_ranks = session->ranks;
}

void client_codecs_follow(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, session_link);
        if (atomic_load_explicit(&tensor->busy, memory_order_acquire)) continue;
        carry_follows(tensor);
        if (!tensor->codec) continue;
        if (weft_codec_set_ranks(tensor->codec, session->ranks) < 0)
            weft_log(session->env, WEFT_LOG_WARN, "client", too_large, tensor->name);
        weft_codec_set_stream(tensor->codec, tensor->draws, session->rank);
        weft_codec_set_steps(tensor->codec, session->parting.codec_steps);
    }
}

uint64_t client_codecs_steps(struct weft_session *session)
{
    struct weft_list *node, *spare;
    uint64_t most = 0;
    weft_list_foreach(node, spare, &session->tensors) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, session_link);
        bool free = tensor->codec && !atomic_load_explicit(&tensor->busy, memory_order_acquire);
        uint64_t steps = free ? weft_codec_steps(tensor->codec) : 0;
        if (steps > most) most = steps;
    }
    return most;
}
