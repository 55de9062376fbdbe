/* step_compare.c - comparisons at the end of a step: the pushed tensors, and the weights every
 * client.hash_every steps.
 *
 *     weft_step_end ──► all_gather of one bit per tensor, after the all-reduces ──► all requests complete
 *                   ──► every client.hash_every steps: all_gather of one hash per tensor ──► the step is good
 *
 * Without the first exchange, a tensor that one rank left out would fail at the deadline only, since the
 * shard waits for it. It is posted before weft_step_end waits, so it fails the step while that operation is
 * open. In a step with deliver_late the engine waits instead. An elastic job has the vote of step.c instead,
 * which mismatches in the same way.
 *
 * Tensors with consistency ssp or asp are not compared, and a session that has no others exchanges nothing
 * here: its ranks may be in different steps.
 *
 * Weights are those that the last push_pull of a tensor with an optimiser wrote, in host memory or on a
 * device. The hash (proto/hash.c) finds faulty hardware, another library, or a write into the weights, in
 * every mode. */
#include "client/elastic/step_compare.h"

#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/elastic/elastic.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "client/tensor/device/device_hash.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

#define WORD_BITS 64u

static enum weft_status reserve(struct weft_session *session, uint32_t words)
{
    struct client_compare *compare = &session->elastic->compare;
    const size_t wanted = (size_t)words * (session->ranks + 1u);
    compare->words = words;
    if (compare->capacity >= wanted) return WEFT_OK;
    weft_free_bytes(session->env, compare->mine);
    compare->mine = weft_alloc_array(session->env, wanted, sizeof *compare->mine);
    compare->capacity = compare->mine ? wanted : 0;
    if (compare->mine) return WEFT_OK;
    return client_error(session, WEFT_ERR_NO_MEMORY, "step_end: no memory to compare %u words of %u ranks",
                        words, session->ranks);
}

static uint64_t *words_of(const struct client_compare *compare, uint32_t rank)
{
    return compare->mine + (size_t)compare->words * (rank + 1u);
}

/* Equal on all ranks, which declare the same tensors. */
static bool has_compared_tensors(const struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->tensors->list)
        if (!client_tensor_has_clock(weft_container_of(node, struct weft_tensor, registration.session_link)))
            return true;
    return false;
}

/* Ids count the declarations of the job, so they are equal on all ranks. */
static const char *name_of(const struct weft_session *session, uint32_t id)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->id == id) return tensor->name;
    }
    return "?"; /* freed */
}

/* ---- pushed tensors: the exchange, engine thread ---- */

static enum weft_status compare_pushed(struct weft_session *session, char *text, size_t text_bytes)
{
    const struct client_compare *compare = &session->elastic->compare;
    for (uint32_t rank = 0; rank < session->ranks; rank++)
        for (uint32_t word = 0; word < compare->words; word++) {
            const uint64_t theirs = words_of(compare, rank)[word], differ = theirs ^ compare->mine[word];
            if (!differ) continue;
            const uint32_t bit = (uint32_t)__builtin_ctzll(differ);
            const bool they_did = theirs >> bit & 1;
            char other[128], own[128];
            client_rank_name(session, rank, other, sizeof other);
            client_rank_name(session, session->rank, own, sizeof own);
            snprintf(text, text_bytes,
                     "step %llu: %s pushed tensor '%.60s' and %s ended the step without it; every rank "
                     "pushes the same tensors, or "
                     "calls weft_push_none",
                     (unsigned long long)session->step.number, they_did ? other : own,
                     name_of(session, word * WORD_BITS + bit), they_did ? own : other);
            return WEFT_ERR_MISMATCH;
        }
    return WEFT_OK;
}

static void on_pushed(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    struct weft_session *session = request->session;
    char difference[480];
    session->step.after_reductions = NULL;
    if (session->engine->failed) {
        client_request_complete(request, session->engine->failed, session->engine->failed_text);
        return;
    }
    if (status == WEFT_OK) {
        status = compare_pushed(session, difference, sizeof difference);
        text = difference;
    }
    if (status < 0) client_engine_group_op_failed(op, status, text);
    else client_request_complete(request, WEFT_OK, NULL);
}

static enum weft_status post_pushed(struct client_group_op *op, struct weft_error *error)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    struct weft_session *session = request->session;
    struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_GATHER,
        .in = session->elastic->compare.mine,
        .out = words_of(&session->elastic->compare, 0),
        .count = session->elastic->compare.words,
        .dtype = WEFT_I64,
        .op = WEFT_SUM,
        .label = WEFT_COLL_LABEL_STEP_END,
    };
    return weft_coll_post(session->engine->group, &args, client_engine_group_op_done, op, &op->coll, error);
}

static void reductions_have_completed(struct weft_command *command)
{
    struct client_compare *compare = weft_container_of(command, struct client_compare, when_reduced);
    struct client_request *request = client_request_of(&compare->request);
    if (client_compare_pushed_has_ended(request->session)) return; /* the session has failed */
    request->op.ready = true;
    client_engine_pump_group(request->session);
}

/* An all-reduce that another rank left out must match this exchange of that rank, so that the error names it:
 * a late exchange is queued, and starts when the all-reduces of this rank have completed. */
static void start_pushed(struct weft_command *command)
{
    struct client_request *request = weft_container_of(command, struct client_request, command);
    struct weft_session *session = request->session;
    struct client_compare *compare = &session->elastic->compare;
    if (!client_request_begin(request)) return;
    request->op.ready = !compare->late || atomic_load(&session->step.open_reductions) == 0;
    request->op.post = post_pushed;
    request->op.done = on_pushed;
    compare->when_reduced.fn = reductions_have_completed;
    if (!request->op.ready) session->step.after_reductions = &compare->when_reduced;
    client_engine_queue_group_op(session, &request->op);
}

static void set_bits(struct weft_session *session)
{
    struct client_compare *compare = &session->elastic->compare;
    struct weft_list *node, *spare;
    memset(compare->mine, 0, compare->words * sizeof *compare->mine);
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->progress.last_step == session->step.number && !client_tensor_has_clock(tensor))
            compare->mine[tensor->id / WORD_BITS] |= (uint64_t)1 << tensor->id % WORD_BITS;
    }
}

static bool reductions_completed(void *context)
{
    struct weft_session *session = context;
    struct weft_list *node, *spare;
    if (atomic_load(&session->open_requests) == 0 || client_failed(session) < 0) return true;
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (tensor->mode == WEFT_MODE_ALL_REDUCE &&
            atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire))
            return false;
    }
    return true;
}

enum weft_status client_compare_pushed(struct weft_session *session, bool late)
{
    struct client_request *request;
    if (!has_compared_tensors(session) || session->ranks == 1 || session->membership.is_elastic)
        return WEFT_OK;
    WEFT_TRY(reserve(session, (client_tensors_declared(session) + WORD_BITS - 1) / WORD_BITS));
    session->elastic->compare.late = late;
    const uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    if (!late && client_wait_for_results(session, reductions_completed, until_ns) < 0)
        return WEFT_ERR_DEADLINE;
    WEFT_TRY(client_usable(session));
    WEFT_TRY(client_request_claim(session, "step_end", &session->elastic->compare.request, &request));
    set_bits(session);
    request->args.kind = WEFT_COLL_ALL_GATHER;
    request->args.dtype = WEFT_I64;
    request->args.count = session->elastic->compare.words;
    client_request_post(request, start_pushed);
    return WEFT_OK;
}

bool client_compare_pushed_has_ended(struct weft_session *session)
{
    const struct client_request *request = client_request_of(&session->elastic->compare.request);
    return atomic_load_explicit(&request->state, memory_order_acquire) != CLIENT_REQUEST_OPEN;
}

enum weft_status client_compare_pushed_result(struct weft_session *session)
{
    return weft_test(&session->elastic->compare.request);
}

/* ---- weights ---- */

static bool is_hashed(const struct weft_tensor *tensor)
{
    return tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE && tensor->buffers.weights &&
           tensor->progress.last_step == tensor->session->step.number && !client_tensor_has_clock(tensor);
}

/* If the weights on the device cannot be read, the session fails: the other ranks wait for the hash. */
static enum weft_status hash_tensor(struct weft_session *session, const struct weft_tensor *tensor,
                                    uint64_t *hash_out)
{
    struct weft_error error = {0};
    if (!weft_memory_is_device(tensor->buffers.memory)) {
        *hash_out = weft_weight_hash(tensor->buffers.weights, tensor->bytes);
        return WEFT_OK;
    }
    const enum weft_status status = client_device_hash_weights(tensor, hash_out, &error);
    if (status < 0)
        client_fail(session, status, true, "the weights of tensor '%.60s' cannot be compared: %s",
                    tensor->name, error.text);
    return status;
}

static enum weft_status hash_weights(struct weft_session *session)
{
    struct weft_list *node, *spare;
    memset(session->elastic->compare.mine, 0,
           session->elastic->compare.words * sizeof *session->elastic->compare.mine);
    weft_list_foreach(node, spare, &session->tensors->list) {
        const struct weft_tensor *tensor =
            weft_container_of(node, struct weft_tensor, registration.session_link);
        if (is_hashed(tensor))
            WEFT_TRY(hash_tensor(session, tensor, &session->elastic->compare.mine[tensor->id]));
    }
    return WEFT_OK;
}

static uint32_t count_equal(const struct weft_session *session, uint32_t index, uint64_t hash)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < session->ranks; rank++)
        count += words_of(&session->elastic->compare, rank)[index] == hash;
    return count;
}

/* Fails the session for the first tensor that differs. Names the rank with the rarest hash; of two ranks, the
 * second. */
static void find_difference(struct weft_session *session)
{
    for (uint32_t index = 0; index < session->elastic->compare.words; index++) {
        uint32_t odd = 0, rarest = session->ranks;
        for (uint32_t rank = 0; rank < session->ranks; rank++) {
            const uint32_t count =
                count_equal(session, index, words_of(&session->elastic->compare, rank)[index]);
            if (count <= rarest) odd = rank, rarest = count;
        }
        if (rarest == session->ranks) continue;
        char name[128];
        client_rank_name(session, odd, name, sizeof name);
        client_fail(session, WEFT_ERR_DIVERGED, true,
                    "weights of tensor '%.60s' after step %llu differ: %s has hash %016llx, as %u of %u "
                    "ranks; restart from the last checkpoint",
                    name_of(session, index), (unsigned long long)session->step.number, name,
                    (unsigned long long)words_of(&session->elastic->compare, odd)[index], rarest,
                    session->ranks);
        return;
    }
}

enum weft_status client_compare_weights(struct weft_session *session)
{
    const uint64_t every = session->settings.client_hash_every;
    struct client_compare *compare = &session->elastic->compare;
    if (every == 0 || session->step.number % every != 0 || !has_compared_tensors(session) ||
        session->ranks == 1)
        return WEFT_OK;
    WEFT_TRY(reserve(session, client_tensors_declared(session)));
    WEFT_TRY(hash_weights(session));
    const struct client_simple_call call = {.kind = WEFT_COLL_ALL_GATHER,
                                            .in = compare->mine,
                                            .out = words_of(compare, 0),
                                            .count = compare->words,
                                            .dtype = WEFT_I64,
                                            .op = WEFT_SUM};
    enum weft_status status =
        client_call_start_internal(session, WEFT_COLL_LABEL_WEIGHTS, &call, &compare->request);
    if (status >= 0) status = client_request_wait_internal(session, &compare->request, "comparing weights");
    if (status < 0 && (client_failed(session) < 0 || !client_is_leaving_epoch(session))) return status;
    if (status < 0) { /* the step was good before the loss, and the next one must not report it */
        compare->request = (struct weft_request){{0}};
        return WEFT_OK;
    }
    find_difference(session);
    return client_usable(session);
}
