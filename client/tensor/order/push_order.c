/* push_order.c - batches and their agreements; see push_order.h.
 *
 * An agreement is posted while a pushed tensor is ready, one at a time in a batch. Pushes during an agreement
 * take part in the next one. Its words are combined by AND. Word 0: enum flag. Bit i of the rest: this rank
 * has pushed tensor i.
 *
 * Invariant: all ranks agree equally often before the next operation of the group. The batch ends when every
 * tensor in it is agreed on, which all ranks see in the same agreement, unless their pushes differ.
 *
 * An agreement without a tensor is repeated after a pause. If no rank pushes more, each posts its oldest
 * tensor: the operations differ, which ends the session with the names of tensors and ranks. */
#include "client/tensor/order/push_order.h"

#include <string.h>

#include "client/engine/engine.h"
#include "client/engine/event_fd.h"
#include "client/engine/group.h"
#include "client/session/session.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

#define WORD_BITS 64u
#define PAUSE_NS_MIN (WEFT_MS(1) / 10) /* after an agreement without a tensor; doubles */
#define PAUSE_NS_MAX WEFT_MS(10)
/* A rank that has waited in weft_wait for so long, while no tensor was agreed on, counts as pushing nothing
 * more. Another thread of it may still push. */
#define GRACE_NS_MIN WEFT_MS(500)
#define GRACE_NS_MAX WEFT_SECONDS(10)

/* Facts about this rank. A rank of an older release sets only the first flag. */
enum flag {
    PUSHES_NO_MORE = 1, /* the rank pushes no other tensor before it has a result */
    IS_GROUPED = 2      /* the tensors that could share (codec_batch.c) were all pushed in groups of calls */
};

struct push_batch {
    struct weft_list link;
    struct weft_session *session;
    struct client_group_op op;
    struct weft_list pushed; /* struct weft_tensor.push_link: not agreed on, oldest first */
    bool is_queued;
    bool is_posted;
    uint32_t words;    /* of the bits */
    uint32_t capacity; /* of `set` */
    uint64_t *set;     /* (1 + capacity) owned: the flags, then the bits */
    struct weft_timer pause;
    uint64_t pause_ns; /* the last pause; 0: the last agreement had a tensor */
    uint64_t since_ns; /* of the first agreement without a tensor since then */
};

static struct client_push_order *order_of(const struct weft_session *session)
{
    return &session->tensors->push_order;
}

static struct weft_tensor *tensor_of(struct weft_list *node)
{
    return weft_container_of(node, struct weft_tensor, order.push_link);
}

/* ---- batches ---- */

static bool is_last_in_queue(const struct push_batch *batch)
{
    return batch->op.link.next == &batch->session->engine->group_queue;
}

static bool has_ready_tensor(const struct push_batch *batch)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &batch->pushed)
        if (tensor_of(node)->execution.group_op.ready) return true;
    return false;
}

static void update_readiness(struct push_batch *batch)
{
    batch->op.ready = !batch->is_posted && !weft_timer_is_running(&batch->pause) && has_ready_tensor(batch);
}

/* The batch is neither in the queue nor posted. */
static void batch_release(struct push_batch *batch)
{
    weft_timer_stop(batch->session->loop, &batch->pause);
    while (!weft_list_empty(&batch->pushed)) {
        tensor_of(batch->pushed.next)->order.batch = NULL;
        weft_list_remove(batch->pushed.next);
    }
    weft_list_remove(&batch->link);
    weft_list_append(&order_of(batch->session)->idle, &batch->link);
}

static void pause_ended(struct weft_timer *timer)
{
    struct push_batch *batch = weft_container_of(timer, struct push_batch, pause);
    update_readiness(batch);
    client_engine_pump_group(batch->session);
}

/* Agree again after a pause. The pause spares the ranks and the network while no tensor can be agreed on. */
static void pause(struct push_batch *batch)
{
    const uint64_t now_ns = weft_now_ns(batch->session->env);
    if (batch->pause_ns == 0) batch->since_ns = now_ns;
    batch->pause_ns = batch->pause_ns == 0                 ? PAUSE_NS_MIN
                      : batch->pause_ns * 2 > PAUSE_NS_MAX ? PAUSE_NS_MAX
                                                           : batch->pause_ns * 2;
    (void)weft_timer_start(batch->session->loop, &batch->pause, weft_deadline_ns(now_ns, batch->pause_ns));
}

/* ---- agreement ---- */

static bool has_waited_long(const struct push_batch *batch)
{
    const struct weft_session *session = batch->session;
    uint64_t grace_ns = session->settings.deadline_ns / 10;
    if (grace_ns < GRACE_NS_MIN) grace_ns = GRACE_NS_MIN;
    if (grace_ns > GRACE_NS_MAX) grace_ns = GRACE_NS_MAX;
    return batch->pause_ns > 0 && atomic_load(&session->engine->waiting_threads) > 0 &&
           weft_elapsed_ns(batch->since_ns, weft_now_ns(session->env)) >= grace_ns;
}

/* Returns whether this rank will not add a tensor to the batch. */
static bool is_complete(const struct push_batch *batch)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &batch->pushed)
        if (!tensor_of(node)->execution.group_op.ready) return false;
    return !is_last_in_queue(batch) || order_of(batch->session)->step_has_ended || has_waited_long(batch);
}

static bool is_in_set(const struct push_batch *batch, const struct weft_tensor *tensor)
{
    return batch->set[1 + tensor->id / WORD_BITS] >> tensor->id % WORD_BITS & 1;
}

static enum weft_status post(struct client_group_op *op, struct weft_error *error)
{
    struct push_batch *batch = weft_container_of(op, struct push_batch, op);
    uint32_t first = 0;
    memset(batch->set, 0, (1 + batch->words) * sizeof *batch->set);
    batch->set[0] = (is_complete(batch) ? PUSHES_NO_MORE : 0) | IS_GROUPED;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &batch->pushed) {
        const struct weft_tensor *tensor = tensor_of(node);
        if (!tensor->execution.group_op.ready) continue;
        if (first == 0) first = client_tensor_subject(tensor);
        if (!tensor->op.carrier.leader && client_codec_batch_accepts(tensor))
            batch->set[0] &= ~(uint64_t)IS_GROUPED;
        batch->set[1 + tensor->id / WORD_BITS] |= (uint64_t)1 << tensor->id % WORD_BITS;
    }
    const struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_REDUCE,
        .in = batch->set,
        .out = batch->set,
        .count = 1 + batch->words,
        .dtype = WEFT_I64,
        .op = WEFT_AND,
        .subject = WEFT_SUBJECT_ANY | first,
    };
    const enum weft_status status = weft_coll_post(batch->session->engine->group, &args,
                                                   client_engine_group_op_done, op, &op->coll, error);
    if (status < 0) return status;
    batch->is_posted = true;
    op->ready = false;
    return status;
}

/* Most urgent first. */
static void insert_by_priority(struct weft_list *tensors, struct weft_tensor *tensor)
{
    struct weft_list *at = tensors;
    /* tensors are usually pushed in the order of their priority, or in the opposite one */
    if (at->next != at && client_tensor_precedes(tensor, tensor_of(at->next))) at = at->next;
    else
        while (at->prev != tensors && client_tensor_precedes(tensor, tensor_of(at->prev))) at = at->prev;
    weft_list_insert_before(at, &tensor->order.push_link);
}

/* Moves what all ranks have pushed to `agreed`. If no rank pushes more, that is the oldest one. */
static void take_agreed(struct push_batch *batch, struct weft_list *agreed)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &batch->pushed) {
        struct weft_tensor *tensor = tensor_of(node);
        if (!is_in_set(batch, tensor)) continue;
        tensor->order.batch = NULL;
        weft_list_remove(node);
        insert_by_priority(agreed, tensor);
    }
    if (!weft_list_empty(agreed) || !(batch->set[0] & PUSHES_NO_MORE)) return;
    node = batch->pushed.next;
    tensor_of(node)->order.batch = NULL;
    weft_list_remove(node);
    weft_list_append(agreed, node);
}

static void agreed(struct push_batch *batch)
{
    struct weft_list tensors;
    weft_list_init(&tensors);
    take_agreed(batch, &tensors);
    if (weft_list_empty(&tensors)) {
        pause(batch);
        update_readiness(batch);
        return;
    }
    batch->pause_ns = 0;
    struct client_codec_batches batches = {.is_grouped = (batch->set[0] & IS_GROUPED) != 0};
    client_buckets_queue(batch->session, &tensors, &batch->op.link, &batches);
    update_readiness(batch);
    if (!weft_list_empty(&batch->pushed)) return;
    weft_list_remove(&batch->op.link);
    batch->is_queued = false;
    batch_release(batch);
}

/* The agreement has ended, or the engine drops the queue. A posted batch gets both calls if the engine
 * fails. */
static void done(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct push_batch *batch = weft_container_of(op, struct push_batch, op);
    const bool fails = batch->session->engine->failed != WEFT_OK;
    if (batch->is_queued && weft_list_empty(&op->link)) batch->is_queued = false; /* dropped */
    else batch->is_posted = false;
    if (fails && !batch->is_queued && !batch->is_posted) {
        batch_release(batch);
    } else if (!fails && status < 0) {
        weft_list_remove(&op->link); /* until the engine fails it is among those that have ended */
        client_engine_group_op_failed(op, status, text);
    } else if (!fails) {
        agreed(batch);
    }
}

/* ---- pushes ---- */

static struct push_batch *batch_alloc(struct weft_session *session, uint32_t words)
{
    struct client_push_order *order = order_of(session);
    struct push_batch *batch = NULL;
    if (!weft_list_empty(&order->idle)) {
        batch = weft_list_first(&order->idle, struct push_batch, link);
        weft_list_remove(&batch->link);
    } else if ((batch = weft_alloc_zero(session->env, sizeof *batch)) != NULL) {
        weft_list_init(&batch->link);
        weft_list_init(&batch->op.link);
        weft_list_init(&batch->pushed);
        weft_timer_init(&batch->pause, pause_ended);
    }
    if (!batch) return NULL;
    if (batch->capacity < words) {
        weft_free_bytes(session->env, batch->set);
        batch->set = weft_alloc_array(session->env, 1 + words, sizeof *batch->set);
        batch->capacity = batch->set ? words : 0;
    }
    if (!batch->set) {
        weft_list_append(&order->idle, &batch->link);
        return NULL;
    }
    weft_list_append(&order->batches, &batch->link);
    batch->session = session;
    batch->words = words;
    batch->pause_ns = 0;
    batch->op.post = post;
    batch->op.done = done;
    batch->op.ready = false;
    batch->op.stays = true;
    return batch;
}

/* The batch at the end of the queue; NULL: another operation follows the last one, or there is none. */
static struct push_batch *open_batch(struct weft_session *session)
{
    struct client_push_order *order = order_of(session);
    if (weft_list_empty(&order->batches)) return NULL;
    struct push_batch *last = weft_container_of(order->batches.prev, struct push_batch, link);
    return last->is_queued && is_last_in_queue(last) ? last : NULL;
}

void client_push_order_add(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    order_of(session)->step_has_ended = false;
    if (!session->settings.agrees_push_order || session->ranks == 1) {
        client_allreduce_mode_hand_over(tensor);
        client_engine_queue_group_op(session, &tensor->execution.group_op);
        return;
    }
    struct push_batch *batch = open_batch(session);
    if (!batch) {
        batch = batch_alloc(session, tensor->op.order_words);
        if (!batch) {
            client_tensor_fail(tensor, WEFT_ERR_NO_MEMORY, "has no memory to agree on its place");
            return;
        }
        batch->is_queued = true;
        client_engine_queue_group_op(session, &batch->op);
    }
    tensor->order.batch = batch;
    weft_list_append(&batch->pushed, &tensor->order.push_link);
}

void client_push_order_ready(struct weft_tensor *tensor)
{
    struct push_batch *batch = tensor->order.batch;
    if (!batch) return;
    weft_timer_stop(tensor->session->loop, &batch->pause); /* it may be what the other ranks wait for */
    batch->op.ready = !batch->is_posted;
}

static void step_ended(struct weft_command *command)
{
    struct client_push_order *order = weft_container_of(command, struct client_push_order, step_end.command);
    order->step_has_ended = true;
    atomic_store(&order->step_end.is_posted, false);
}

/* A command: the engine runs it after the pushes. */
void client_push_order_step_ends(struct weft_session *session)
{
    struct client_push_order *order = order_of(session);
    if (session->tensors->reduce_count == 0 || atomic_exchange(&order->step_end.is_posted, true)) return;
    client_event_post(session, &order->step_end.command);
}

uint64_t client_tensor_urgency(const struct weft_tensor *tensor)
{
    if (!tensor->session->settings.agrees_push_order) return 0;
    return ((uint64_t)((int64_t)INT32_MAX - tensor->options.priority) << 32 | tensor->order.need.position) +
           1;
}

bool client_push_order_waits_for(const struct weft_tensor *tensor, uint32_t *rank_out)
{
    const struct push_batch *batch = tensor->order.batch;
    *rank_out = UINT32_MAX;
    if (!batch) return false;
    if (!batch->op.coll || !weft_coll_waits_for(batch->op.coll, rank_out)) *rank_out = UINT32_MAX;
    return true;
}

/* ---- life ---- */

void client_push_order_init(struct weft_session *session)
{
    struct client_push_order *order = order_of(session);
    weft_list_init(&order->idle);
    weft_list_init(&order->batches);
    weft_list_init(&order->buckets);
    order->step_end.command.fn = step_ended;
}

static void batches_free(struct weft_session *session, struct weft_list *batches)
{
    while (!weft_list_empty(batches)) {
        struct push_batch *batch = weft_list_first(batches, struct push_batch, link);
        weft_list_remove(&batch->link);
        weft_free_bytes(session->env, batch->set);
        weft_free_bytes(session->env, batch);
    }
}

void client_push_order_free(struct weft_session *session)
{
    batches_free(session, &order_of(session)->batches);
    batches_free(session, &order_of(session)->idle);
    client_buckets_free(session);
}
