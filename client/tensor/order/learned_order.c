/* learned_order.c - what rank 0 records, and how it becomes the order of all ranks; see learned_order.h.
 *
 * All ranks begin the same steps, so all post the broadcast in the same step and apply it in the next one.
 * Between two steps no tensor in all-reduce mode has an operation, so the engine reads no position then. */
#include "client/tensor/order/learned_order.h"

#include <stdlib.h>

#include "client/call/call.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

#define STEPS_LEARNED 3u
#define ROOT 0u

/* Keys of the sort: waits, then pushes, then declarations. */
#define KEY_PUSHED ((uint64_t)1 << 62)
#define KEY_DECLARED ((uint64_t)1 << 63)

struct need {
    uint64_t key;
    uint32_t index; /* as declared */
};

static struct client_learned_order *order_of(const struct weft_session *session)
{
    return &session->tensors->learned_order;
}

/* The next tensor in all-reduce mode, as declared; at first node is the list. NULL: none. */
static struct weft_tensor *next_tensor(const struct weft_session *session, struct weft_list **node)
{
    while ((*node = (*node)->next) != &session->tensors->list) {
        struct weft_tensor *tensor = weft_container_of(*node, struct weft_tensor, registration.session_link);
        if (tensor->mode == WEFT_MODE_ALL_REDUCE) return tensor;
    }
    return NULL;
}

#define foreach_tensor(session, node, tensor)                \
    for (struct weft_list *node = &(session)->tensors->list; \
         ((tensor) = next_tensor(session, &node)) != NULL;)

/* ---- what was recorded ---- */

void client_learned_order_pushed(struct weft_tensor *tensor)
{
    const bool has_gradient = !tensor->buffers.none.zeros || tensor->op.in != tensor->buffers.none.zeros;
    tensor->order.need.pushed = has_gradient ? ++order_of(tensor->session)->pushes : 0;
}

void client_learned_order_waited(struct weft_tensor *tensor)
{
    const struct client_step *step = &tensor->session->step;
    /* a wait in the step of the push is no use in a forward pass */
    if (step->open && tensor->progress.last_step == step->number) return;
    if (atomic_exchange(&tensor->order.need.waited_serial, tensor->delivery.started_serial) ==
        tensor->delivery.started_serial)
        return;
    atomic_store(&tensor->order.need.waited, atomic_fetch_add(&order_of(tensor->session)->waits, 1) + 1);
}

static uint32_t pushed_in_last_step(const struct weft_tensor *tensor)
{
    return tensor->progress.last_step == tensor->session->step.number ? tensor->order.need.pushed : 0;
}

static bool pushes_show_need(const struct weft_session *session)
{
    struct weft_tensor *tensor;
    uint32_t last = 0, along = 0, against = 0;
    foreach_tensor(session, node, tensor)
    {
        const uint32_t pushed = pushed_in_last_step(tensor);
        if (pushed == 0) continue;
        if (last > 0 && pushed > last) along++;
        if (last > 0 && pushed < last) against++;
        last = pushed;
    }
    return against >= along;
}

static int compare_needs(const void *left, const void *right)
{
    const struct need *a = left, *b = right;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* The most needed tensor gets the lowest of the positions that declarations would have. */
static void compute_positions(struct weft_session *session, struct need *needs)
{
    struct client_learned_order *order = order_of(session);
    const bool by_push = pushes_show_need(session);
    struct weft_tensor *tensor;
    uint32_t count = 0;
    foreach_tensor(session, node, tensor)
    {
        const uint64_t waited = atomic_load(&tensor->order.need.waited);
        const uint32_t pushed = by_push ? pushed_in_last_step(tensor) : 0;
        needs[count].index = count;
        needs[count].key = waited > 0   ? waited
                           : pushed > 0 ? KEY_PUSHED + (UINT32_MAX - pushed)
                                        : KEY_DECLARED;
        count++;
    }
    qsort(needs, count, sizeof *needs, compare_needs);
    count = 0;
    foreach_tensor(session, node, tensor) order->positions[needs[count++].index] = tensor->id;
}

/* ---- agreement ---- */

static enum weft_status post_order(struct weft_session *session)
{
    struct client_learned_order *order = order_of(session);
    order->count = session->tensors->reduce_count;
    struct need *needs = weft_alloc_array(session->env, order->count, sizeof *needs);
    order->positions = weft_alloc_array(session->env, order->count, sizeof *order->positions);
    if (!needs || !order->positions) {
        weft_free_bytes(session->env, needs);
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u has no memory for the order of %u tensors",
                    session->rank, order->count);
        return client_usable(session);
    }
    if (session->rank == ROOT) compute_positions(session, needs);
    weft_free_bytes(session->env, needs);
    const struct client_simple_call call =
        client_simple_broadcast(order->positions, order->count, WEFT_U32, ROOT);
    const enum weft_status status =
        client_call_start_internal(session, WEFT_COLL_LABEL_TENSOR_ORDER, &call, &order->request);
    order->is_posted = status >= 0;
    return status < 0 ? status : WEFT_OK;
}

static void drop_order(struct weft_session *session)
{
    struct client_learned_order *order = order_of(session);
    weft_free_bytes(session->env, order->positions);
    order->positions = NULL;
    order->is_posted = false;
}

static enum weft_status apply_order(struct weft_session *session)
{
    struct client_learned_order *order = order_of(session);
    WEFT_TRY(client_request_wait_internal(session, &order->request, "publishing the order of tensors"));
    struct weft_tensor *tensor;
    uint32_t index = 0;
    foreach_tensor(session, node, tensor) if (index < order->count) tensor->order.need.position =
        order->positions[index++];
    drop_order(session);
    return WEFT_OK;
}

/* New ranks have the order of declaration. */
static void restart(struct weft_session *session)
{
    struct client_learned_order *order = order_of(session);
    struct weft_tensor *tensor;
    foreach_tensor(session, node, tensor) tensor->order.need.position = tensor->id;
    if (order->is_posted) drop_order(session); /* the change of ranks has ended its broadcast */
    order->epoch = session->epoch;
    order->steps = 0;
}

enum weft_status client_learned_order_step_begin(struct weft_session *session)
{
    struct client_learned_order *order = order_of(session);
    if (!session->settings.learns_order || session->tensors->reduce_count == 0) return WEFT_OK;
    if (order->epoch != session->epoch) restart(session);
    if (order->is_posted) WEFT_TRY(apply_order(session));
    if (session->ranks > 1 && order->steps <= STEPS_LEARNED && order->steps++ == STEPS_LEARNED)
        WEFT_TRY(post_order(session));
    order->pushes = 0;
    return WEFT_OK;
}

void client_learned_order_free(struct weft_session *session)
{
    drop_order(session);
}
