/* step.c - weft_step_begin and weft_step_end.
 *
 * A job with tensors in all-reduce mode, or with codec choices, exchanges a record per step: step number,
 * learning rate, sample weight. step_begin posts this all_gather and does not wait for it. The first tensor
 * that is reduced needs the result. In server mode every push carries the same numbers, and the shard
 * compares them.
 *
 * step_end waits for all requests of the step, then commits the codecs' state. On an error it abandons that
 * state. If a mean is not finite, step_end skips the step: it restores what the step updated, and the next
 * step has the same number (skip_nonfinite.c).
 *
 *     deliver_late   step_end waits for collectives only -> results arrive, weft_tensor_wait
 *                    -> step_wait, step_begin or a call between steps: the rest of step_end */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/call/calls.h"
#include "client/call/input_backup.h"
#include "client/elastic/clip.h"
#include "client/elastic/elastic.h"
#include "client/elastic/step_compare.h"
#include "client/elastic/step_options.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/open_step.h"
#include "client/session/session.h"
#include "client/session/sized.h"
#include "client/session/wait.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/skip_nonfinite.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

/* ---- records: engine thread ---- */

/* Names the first rank that differs from this one. */
static enum weft_status compare_records(struct weft_session *session, char *text, size_t text_bytes)
{
    struct client_step *step = &session->step;
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        const struct client_step_record *other = &step->records.all[rank];
        char name[128];
        client_rank_name(session, rank, name, sizeof name);
        if (other->step != step->records.mine.step) {
            snprintf(
                text, text_bytes,
                "%s is in step %llu and this rank (%u) in step %llu; all ranks must begin the same steps",
                name, (unsigned long long)other->step, session->rank,
                (unsigned long long)step->records.mine.step);
            return WEFT_ERR_MISMATCH;
        }
        if (memcmp(&other->lr, &step->records.mine.lr, sizeof other->lr) != 0) {
            snprintf(text, text_bytes,
                     "%s began step %llu with lr %.9g and this rank (%u) with lr %.9g; they must be equal",
                     name, (unsigned long long)other->step, (double)other->lr, session->rank,
                     (double)step->records.mine.lr);
            return WEFT_ERR_MISMATCH;
        }
        if (other->revision != step->records.mine.revision) {
            snprintf(text, text_bytes,
                     "%s is in revision %u of the choice of codecs in step %llu and this rank (%u) in "
                     "revision %u",
                     name, other->revision, (unsigned long long)other->step, session->rank,
                     step->records.mine.revision);
            return WEFT_ERR_MISMATCH;
        }
        if ((other->parameters ^ step->records.mine.parameters) & ~CLIENT_RECORD_SKIPS) {
            snprintf(text, text_bytes,
                     "%s and this rank (%u) began step %llu with different loss_scale, clip_norm, group_lr "
                     "or group_weight_decay, or their tensors are in different groups; all must be equal",
                     name, session->rank, (unsigned long long)other->step);
            return WEFT_ERR_MISMATCH;
        }
        if (!isfinite(other->weight) || other->weight < 0) {
            snprintf(text, text_bytes, "%s sent sample weight %g for step %llu; it must be zero or positive",
                     name, (double)other->weight, (unsigned long long)other->step);
            return WEFT_ERR_MALFORMED;
        }
    }
    return WEFT_OK;
}

static void on_records(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    struct weft_session *session = request->session;
    struct client_step *step = &session->step;
    char difference[400];
    if (session->engine->failed) {
        client_request_complete(request, session->engine->failed, session->engine->failed_text);
        return;
    }
    if (status == WEFT_OK) {
        status = compare_records(session, difference, sizeof difference);
        text = difference;
    }
    double sum = 0;
    for (uint32_t rank = 0; rank < session->ranks && status == WEFT_OK; rank++) {
        sum += (double)step->records.all[rank].weight;
        if (step->skips || !(step->records.all[rank].parameters & CLIENT_RECORD_SKIPS)) continue;
        step->skips = true;
        step->skip_rank = rank;
    }
    if (status == WEFT_OK && sum == 0 && !step->skips) { /* there is no mean */
        step->skips = true;
        step->skip_rank = CLIENT_SKIP_RANK_NONE;
    }
    step->grad_scale = sum > 0 ? client_grad_scale((float)sum) : 0;
    if (status == WEFT_OK && (!isfinite((float)sum) || !isfinite(step->grad_scale))) {
        snprintf(difference, sizeof difference,
                 "the sample weights of step %llu sum to %g: no mean can be taken",
                 (unsigned long long)step->records.mine.step, sum);
        status = WEFT_ERR_MALFORMED;
    }
    if (status < 0) {
        client_engine_group_op_failed(op, status, text);
        return;
    }
    step->records.agree = true;
    client_request_complete(request, WEFT_OK, NULL);
    client_allreduce_mode_records_agree(session);
}

static enum weft_status post_record(struct client_group_op *op, struct weft_error *error)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    struct client_step *step = &request->session->step;
    struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_GATHER,
        .in = &step->records.mine,
        .out = step->records.all,
        .count = sizeof step->records.mine / 8,
        .dtype = WEFT_I64,
        .op = WEFT_SUM,
        .label = WEFT_COLL_LABEL_STEP_BEGIN,
        .plan = WEFT_PLAN_DIRECT,
    };
    return weft_coll_post(request->session->engine->group, &args, client_engine_group_op_done, op, &op->coll,
                          error);
}

static void start_record(struct weft_command *command)
{
    client_request_queue(weft_container_of(command, struct client_request, command), post_record, on_records);
}

static enum weft_status exchange_records(struct weft_session *session)
{
    struct client_step *step = &session->step;
    struct client_request *request;
    if (step->records.capacity < session->ranks) {
        weft_free_bytes(session->env, step->records.all);
        step->records.all = weft_alloc_array(session->env, session->ranks, sizeof *step->records.all);
        step->records.capacity = step->records.all ? session->ranks : 0;
    }
    if (!step->records.all)
        return client_error(session, WEFT_ERR_NO_MEMORY, "no memory for the step records of %u ranks",
                            session->ranks);
    WEFT_TRY(client_request_claim(session, "step_begin", &step->records.request, &request));
    request->args.kind = WEFT_COLL_ALL_GATHER;
    request->args.dtype = WEFT_I64;
    request->args.count = sizeof step->records.mine / 8;
    client_request_post(request, start_record);
    return WEFT_OK;
}

/* ---- public calls: caller's thread ---- */

static bool has_unreported_change(const struct weft_session *session)
{
    return session->epoch_change.growth_unreported || session->epoch_change.shrink_unreported;
}

/* All ranks call it in the same steps: operations for the choice of codecs and the order of tensors. */
static enum weft_status agree_before(struct weft_session *session, const struct weft_step_options *begun)
{
    WEFT_TRY(client_codec_tuner_step_begin(session, begun->step));
    return client_learned_order_step_begin(session);
}

static enum weft_status begin(struct weft_session *session, const struct weft_step_options *begun)
{
    WEFT_TRY(client_step_options_check(session, begun));
    WEFT_TRY(client_deliver(session));
    /* the change was found between two steps */
    if (client_is_leaving_epoch(session) || has_unreported_change(session)) return weft_shrink(session);
    struct client_step *step = &session->step;
    const enum weft_status agreed = agree_before(session, begun);
    if (agreed < 0)
        return session->membership.is_elastic && client_failed(session) >= 0 &&
                       client_is_leaving_epoch(session)
                   ? weft_shrink(session)
                   : agreed;
    step->deliver_late = begun->deliver_late;
    step->records.are_exchanged =
        session->tensors->reduce_count > 0 || session->tensors->codec_tuner.count > 0;
    step->records.agree = step->compared = false;
    client_step_options_apply(session, begun);
    atomic_store(&session->totals.straggler_time.is_enabled, true);
    if (step->records.are_exchanged) WEFT_TRY(exchange_records(session));
    client_skip_begin(session);
    step->number = begun->step;
    step->open = true;
    step->began_ns = weft_now_ns(session->env);
    step->exposed_ns = 0;
    step->exposed_peers_ns = 0;
    return WEFT_OK;
}

enum weft_status weft_step_begin(struct weft_session *session, const struct weft_step *begun)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("step_begin", "session");
    WEFT_TRY(client_usable(session));
    if (!begun) return client_error(session, WEFT_ERR_INVALID, "step_begin: step is NULL");
    return begin(session, WEFT_STEP(.step = begun->step, .lr = begun->lr, .weight = begun->weight));
}

enum weft_status weft_step_begin_with(struct weft_session *session, const struct weft_step_options *options)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("step_begin_with", "session");
    WEFT_TRY(client_usable(session));
    struct weft_step_options own = {0};
    struct weft_error error = {0};
    enum weft_status status =
        client_sized_copy_in(&own, sizeof own, options, client_sized_end(struct weft_step_options, weight),
                             "step_begin_with: options", &error);
    if (status < 0) return client_error(session, status, "%s", error.text);
    return begin(session, &own);
}

static bool all_completed(void *context)
{
    struct weft_session *session = context;
    return atomic_load(&session->open_requests) == 0;
}

static bool all_completed_or_failed(void *context)
{
    struct weft_session *session = context;
    return all_completed(session) || client_failed(session) < 0;
}

static bool only_results_are_open(void *context)
{
    struct weft_session *session = context;
    return atomic_load(&session->open_requests) <= atomic_load(&session->step.open_deliveries) ||
           client_failed(session) < 0;
}

/* Calls that were made after weft_step_end go on, unless the membership ends. */
static bool all_delivered(void *context)
{
    struct weft_session *session = context;
    if (client_is_leaving_epoch(session)) return all_completed_or_failed(session);
    return (atomic_load(&session->step.open_deliveries) == 0 && client_compare_pushed_has_ended(session)) ||
           client_failed(session) < 0;
}

enum weft_status client_wait_for_results(struct weft_session *session, client_condition_fn condition,
                                         uint64_t until_ns)
{
    atomic_store(&session->step.wait_mark_ns, weft_now_ns(session->env));
    const enum weft_status status = client_wait_for(session, condition, session, until_ns);
    atomic_store(&session->step.wait_mark_ns, 0);
    return status;
}

/* Waits for requests until the condition holds. In a failed session all complete when their buffers are
 * free. */
static enum weft_status wait_requests(struct weft_session *session, client_condition_fn condition)
{
    uint64_t until_ns = client_deadline(session, session->settings.deadline_ns + CLIENT_WAIT_SLACK_NS);
    if (client_wait_for_results(session, condition, until_ns) < 0)
        return client_error(session, WEFT_ERR_DEADLINE,
                            "step_end of step %llu: %u operations are still running after %.1f s",
                            (unsigned long long)session->step.number, atomic_load(&session->open_requests),
                            (double)session->settings.deadline_ns / 1e9);
    return client_usable(session); /* in a failed session: after no request is open */
}

static void close_codecs(struct weft_session *session, bool commit)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        bool touched =
            (tensor->codec || tensor->arrays.carry) && tensor->progress.last_step == session->step.number;
        /* In a failed session the engine may still use the codec. */
        if (!touched || atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire)) continue;
        client_hash_step_ended(tensor, commit);
        if (commit) {
            if (tensor->codec) weft_codec_commit(tensor->codec);
            weft_free_bytes(session->env, tensor->arrays.carry); /* it entered this step's contribution */
            tensor->arrays.carry = NULL;
        } else if (tensor->codec) {
            weft_codec_abandon(tensor->codec);
        }
    }
}

static void restore_last_step(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->progress.last_step == session->step.number)
            tensor->progress.last_step = tensor->progress.step_before;
    }
}

/* Sets the error that reports lost or new ranks. */
static enum weft_status report_membership(struct weft_session *session, uint64_t next)
{
    char text[480];
    pthread_mutex_lock(&session->epoch_change.lock);
    snprintf(text, sizeof text, "%.300s", session->epoch_change.text);
    pthread_mutex_unlock(&session->epoch_change.lock);
    bool grew = session->epoch_change.growth_unreported;
    session->epoch_change.growth_unreported = session->epoch_change.shrink_unreported = false;
    if (grew)
        return client_error(session, WEFT_ERR_GREW,
                            "%s; this is rank %u of %u now, with new ranks: copy the parameters from rank 0 "
                            "to all ranks, then run step %llu",
                            text, session->rank, session->ranks, (unsigned long long)next);
    return client_error(session, WEFT_ERR_SHRUNK, "%s; this is rank %u of %u now, run step %llu again", text,
                        session->rank, session->ranks, (unsigned long long)next);
}

/* Elastic jobs. A step is good when all ranks have voted that their operations completed. If a rank is
 * lost during the vote, the others agree on whether any of them has received all votes; if so, the step is
 * good. */
static enum weft_status vote(struct weft_session *session, enum weft_status status)
{
    struct client_step *step = &session->step;
    WEFT_TRY(client_usable(session)); /* also if the operations ended by a loss: a failed session does not
                                       * continue */
    if (status == WEFT_OK && !client_is_leaving_epoch(session)) {
        step->grow_epoch = atomic_load(&session->epoch_change.grow_epoch);
        status = weft_all_reduce(session, &step->grow_epoch, &step->grow_epoch, 1, WEFT_U32, WEFT_MAX,
                                 &step->vote);
        if (status == WEFT_IN_PROGRESS) status = weft_wait(&step->vote, 0);
        if (status == WEFT_OK) {
            /* if any rank knows of a newcomer, all know now and agree before the next step */
            client_leave_epoch(session, step->grow_epoch, "a new worker has joined");
            return WEFT_OK;
        }
    }
    WEFT_TRY(client_usable(session));
    if (!client_is_leaving_epoch(session)) return status;
    uint64_t committed;
    WEFT_TRY(client_shrink(session, step->number - 1, &committed));
    if (committed >= step->number) {
        /* another rank has received all votes: the next step_begin reports the loss, on all ranks */
        session->epoch_change.shrink_unreported = true;
        return WEFT_OK;
    }
    close_codecs(session, false);
    restore_last_step(session);
    return report_membership(session, step->number);
}

enum weft_status weft_shrink(struct weft_session *session)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("shrink", "session");
    WEFT_TRY(client_usable(session));
    uint64_t committed;
    if (session->step.open)
        return client_error(session, WEFT_ERR_STATE, "shrink: step %llu is open; weft_step_end does that",
                            (unsigned long long)session->step.number);
    WEFT_TRY(client_deliver(session));
    if (!client_is_leaving_epoch(session))
        return has_unreported_change(session) ? report_membership(session, session->step.number + 1)
                                              : WEFT_OK;
    WEFT_TRY(client_shrink(session, session->step.number, &committed));
    client_codecs_set_membership(session);
    return report_membership(session, session->step.number + 1);
}

/* Waits until the condition holds, then agrees on the step with the other ranks and closes it. */
static enum weft_status complete_step(struct weft_session *session, enum weft_status status,
                                      client_condition_fn condition)
{
    struct client_step *step = &session->step;
    if (status != WEFT_ERR_FORKED) status = wait_requests(session, condition);
    if (status == WEFT_OK && step->records.are_exchanged) status = weft_test(&step->records.request);
    if (status == WEFT_OK) status = client_compare_pushed_result(session);
    if (status == WEFT_ERR_FORKED || status == WEFT_ERR_DEADLINE) return status;
    const bool skips = status == WEFT_OK && client_skip_has_nonfinite(session);
    if (skips) status = client_skip_gather(session);
    if (session->membership.is_elastic) status = vote(session, status);
    if (status == WEFT_OK && !skips) status = client_clip_update(session);
    if (status == WEFT_OK && skips) status = client_skip_step(session);
    else if (status == WEFT_OK && !has_unreported_change(session))
        /* after a vote that ended in a new membership, ranks with all votes have compared in the old one */
        status = client_compare_weights(session);
    const bool skipped = status == WEFT_ERR_SKIPPED;
    if (status == WEFT_OK && !session->epoch_change.growth_unreported)
        client_state_broadcast_confirm(session);
    close_codecs(session, status == WEFT_OK);
    bool repeats = status == WEFT_ERR_SHRUNK || status == WEFT_ERR_GREW;
    if (skipped) {
        restore_last_step(session);
        client_backup_undo(session);
    }
    client_backup_close(session, repeats);
    if (session->membership.is_elastic && client_failed(session) >= 0) client_codecs_set_membership(session);
    step->open = step->is_delivering = false;
    atomic_store(&session->totals.straggler_time.is_enabled, false);
    if (repeats || skipped) step->number--;
    if (status == WEFT_OK) {
        const uint64_t step_ns = weft_now_ns(session->env) - step->began_ns;
        session->totals.steps_ended++;
        session->totals.delivers_late = step->deliver_late;
        session->totals.step_ns += step_ns;
        const uint64_t exposed_ns = step->exposed_ns, peers_ns = step->exposed_peers_ns;
        session->totals.exposed_ns += exposed_ns;
        /* another thread may be adding to both */
        session->totals.exposed_peers_ns += peers_ns < exposed_ns ? peers_ns : exposed_ns;
        pthread_mutex_lock(&session->control.lock); /* the engine copies them for a report */
        weft_histogram_add(&session->totals.step, step_ns);
        weft_histogram_add(&session->totals.exposed, exposed_ns);
        pthread_mutex_unlock(&session->control.lock);
        client_codec_tuner_step_end(session, step_ns, step->exposed_ns);
        client_snapshot_step_ended(session);
    }
    return status;
}

enum weft_status weft_step_end(struct weft_session *session)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("step_end", "session");
    struct client_step *step = &session->step;
    if (!step->open) {
        WEFT_TRY(client_usable(session));
        return client_error(session, WEFT_ERR_STATE, "step_end without step_begin");
    }
    if (client_call_group_is_open(session))
        return client_error(session, WEFT_ERR_STATE,
                            "step_end inside a group of calls; call weft_group_end first");
    enum weft_status status = client_usable(session);
    client_push_order_step_ends(session);
    /* Collectives first: the comparison of a late step is queued behind its all-reduces. */
    const bool late = step->deliver_late && status == WEFT_OK;
    if (late) status = wait_requests(session, only_results_are_open);
    if (status == WEFT_OK && !step->compared) {
        status = client_compare_pushed(session, late);
        if (status == WEFT_ERR_NO_MEMORY) return status;
        step->compared = status == WEFT_OK;
    }
    if (late && status == WEFT_OK) {
        step->is_delivering = true;
        step->open = false;
        return WEFT_OK;
    }
    if (late && status == WEFT_ERR_DEADLINE) return status;
    return complete_step(session, status, all_completed_or_failed);
}

enum weft_status client_step_deliver(struct weft_session *session)
{
    if (client_call_group_is_open(session))
        return client_error(session, WEFT_ERR_STATE,
                            "step %llu is not delivered, and a group of calls is open; call weft_group_end "
                            "first",
                            (unsigned long long)session->step.number);
    return complete_step(session, client_usable(session), all_delivered);
}

enum weft_status weft_step_wait(struct weft_session *session)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("step_wait", "session");
    WEFT_TRY(client_usable(session));
    if (session->step.open)
        return client_error(session, WEFT_ERR_STATE, "step_wait: step %llu is open; call weft_step_end first",
                            (unsigned long long)session->step.number);
    return client_deliver(session);
}
