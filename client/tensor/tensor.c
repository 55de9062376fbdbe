/* tensor.c - the memory of a tensor, and the life of its operation: claimed, timed, described, failed. */
#include "client/tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#include "client/engine/engine.h"
#include "client/engine/suspicion.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/device/device_update.h"
#include "client/tensor/order/push_order.h"
#include "client/tensor/server_mode.h"
#include "client/tensor/shard/shard_map.h"
#include "client/tensor/tensors.h"

void client_tensor_free(struct weft_tensor *tensor)
{
    if (!tensor) return;
    struct weft_env *env = tensor->session->env;
    weft_list_remove(&tensor->registration.session_link);
    weft_list_remove(&tensor->order.call_group.link);
    client_update_free(tensor);
    if (tensor->session->live.pid != weft_process_id()) weft_codec_after_fork(tensor->codec);
    weft_codec_free(tensor->codec);
    weft_free_bytes(env, tensor->chunk_table.chunks);
    weft_free_bytes(env, tensor->hash.endpoints);
    for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) weft_free_bytes(env, tensor->arrays.states[s]);
    weft_free_bytes(env, tensor->arrays.scratch);
    weft_free_bytes(env, tensor->wire.rounded);
    weft_free_bytes(env, tensor->buffers.none.zeros);
    weft_free_bytes(env, tensor->arrays.carry);
    weft_free_bytes(env, tensor->wire.aggregate);
    for (uint32_t round = 0; round < WEFT_CODEC_ROUNDS_MAX; round++)
        weft_free_bytes(env, tensor->wire.contribution[round]);
    weft_free_bytes(env, tensor);
}

enum weft_status client_tensor_alloc_scratch(struct weft_tensor *tensor)
{
    const size_t bytes = client_tensor_state_bytes(tensor);
    if (!tensor->arrays.scratch) tensor->arrays.scratch = weft_alloc_zero(tensor->session->env, bytes);
    if (tensor->arrays.scratch) return WEFT_OK;
    return client_error(tensor->session, WEFT_ERR_NO_MEMORY,
                        "no memory for the weighted gradient of tensor '%s' (%zu bytes)", tensor->name,
                        bytes);
}

/* ---- the operation ---- */

enum weft_status client_tensor_claim(struct weft_tensor *tensor, const char *call)
{
    if (atomic_load_explicit(&tensor->delivery.busy, memory_order_acquire))
        return client_error(tensor->session, WEFT_ERR_STATE,
                            "%s of tensor '%s': its last request is still open; wait for it first", call,
                            tensor->name);
    tensor->op = (struct client_tensor_op){.kind = CLIENT_OP_NONE};
    return WEFT_OK;
}

void client_tensor_release(struct weft_tensor *tensor)
{
    tensor->op.kind = CLIENT_OP_NONE;
    tensor->op.request = NULL;
    tensor->execution.has_begun = false;
    atomic_fetch_sub(&tensor->session->step.open_deliveries, 1);
    atomic_store_explicit(&tensor->delivery.busy, false, memory_order_release);
}

static void add_span(struct weft_tensor *tensor, const char *name, uint64_t from_ns, uint64_t to_ns)
{
    struct weft_event_ring *events = tensor->session->flight.events;
    const size_t bytes = tensor->bytes;
    weft_event_ring_add_at(events, from_ns, name, WEFT_EVENT_BEGIN, tensor->id, UINT32_MAX, bytes, WEFT_OK);
    weft_event_ring_add_at(events, to_ns, name, WEFT_EVENT_END, tensor->id, UINT32_MAX, bytes, WEFT_OK);
}

/* If a call waits for all results (weft_step_end), its time since the last result is that of this tensor. */
static uint64_t wait_begin_of(struct weft_tensor *tensor, uint64_t done_ns)
{
    _Atomic uint64_t *mark_ns = &tensor->session->step.wait_mark_ns;
    const uint64_t from_ns = atomic_exchange(&tensor->times.wait_from_ns, 0);
    if (from_ns) return from_ns;
    const uint64_t marked_ns = atomic_load(mark_ns);
    if (marked_ns) atomic_store(mark_ns, done_ns);
    return marked_ns;
}

static void count_times(struct weft_tensor *tensor)
{
    struct client_tensor_times *times = &tensor->times;
    const enum client_op_kind kind = tensor->op.kind;
    if (kind != CLIENT_OP_PUSH_PULL && kind != CLIENT_OP_PUSH && kind != CLIENT_OP_PULL) return;
    const uint64_t done_ns = weft_now_ns(tensor->session->env), ready_ns = tensor->op.request->started_ns;
    const uint64_t began_ns = times->started_ns ? times->started_ns : done_ns;
    uint64_t waited_ns = wait_begin_of(tensor, done_ns);
    if (waited_ns && waited_ns < ready_ns) waited_ns = ready_ns;
    if (waited_ns > done_ns) waited_ns = 0;
    times->ready_ns = ready_ns;
    times->began_ns = began_ns;
    times->done_ns = done_ns;
    times->waited_from_ns = waited_ns;
    times->queued_ns += began_ns - ready_ns;
    times->transfer_ns += done_ns - began_ns;
    times->ahead_ns += (waited_ns ? waited_ns : done_ns) - ready_ns;
    times->exposed_ns += waited_ns ? done_ns - waited_ns : 0;
    times->exposed_operations += waited_ns != 0;
    times->operations++;
    struct client_totals *totals = &tensor->session->totals;
    if (times->exposed_ns > totals->exposed_tensor_ns) {
        totals->exposed_tensor = (uint64_t)tensor->id + 1;
        totals->exposed_tensor_ns = times->exposed_ns;
    }
    add_span(tensor, "tensor queued", ready_ns, began_ns);
    add_span(tensor, "tensor transfer", began_ns, done_ns);
    if (waited_ns) add_span(tensor, "tensor exposed", waited_ns, done_ns);
}

void client_tensor_wait_begins(struct weft_tensor *tensor)
{
    atomic_store(&tensor->times.wait_from_ns, weft_now_ns(tensor->session->env));
}

void client_tensor_wait_ends(struct weft_tensor *tensor)
{
    const uint64_t from_ns = atomic_exchange(&tensor->times.wait_from_ns, 0);
    if (from_ns) tensor->times.exposed_ns += weft_elapsed_ns(from_ns, weft_now_ns(tensor->session->env));
}

uint32_t client_tensor_result(struct weft_tensor *tensor, enum weft_status status, uint32_t text_serial)
{
    count_times(tensor);
    client_shard_map_op_done(tensor);
    tensor->delivery.status = status;
    tensor->delivery.text = text_serial;
    return tensor->delivery.started_serial;
}

void client_tensor_delivered(struct weft_tensor *tensor, uint32_t serial)
{
    struct client_step *step = &tensor->session->step;
    atomic_store_explicit(&tensor->delivery.serial, serial, memory_order_release);
    if (tensor->mode != WEFT_MODE_ALL_REDUCE || atomic_fetch_sub(&step->open_reductions, 1) > 1 ||
        !step->after_reductions)
        return;
    weft_loop_post(tensor->session->loop, step->after_reductions);
    step->after_reductions = NULL;
}

void client_tensor_op_name(const struct weft_tensor *tensor, char *out, size_t out_bytes)
{
    static const char *const names[] = {"operation", "init",       "push_pull",  "push",
                                        "pull",      "state_save", "state_load", "update"};
    snprintf(out, out_bytes, "%s of tensor '%.100s' step %llu", names[tensor->op.kind], tensor->name,
             (unsigned long long)tensor->op.step);
}

/* may_be_consequence: the coordinator may report the cause within its detection time. */
static void fail_op(struct weft_tensor *tensor, enum weft_status status, bool may_be_consequence,
                    const char *format, va_list arguments)
{
    struct weft_session *session = tensor->session;
    char name[192], text[280];
    if (tensor->op.status == WEFT_OK) tensor->op.status = status;
    if (session->engine->failed) return; /* a consequence of that failure */
    vsnprintf(text, sizeof text, format, arguments);
    client_tensor_op_name(tensor, name, sizeof name);
    if (may_be_consequence)
        client_engine_suspect(session, status, "%s %s", name, text);
    else
        client_fail(session, status, true, "%s %s", name, text);
}

void client_tensor_fail(struct weft_tensor *tensor, enum weft_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_op(tensor, status, status == WEFT_ERR_PEER_LOST, format, arguments);
    va_end(arguments);
}

void client_tensor_fail_later(struct weft_tensor *tensor, enum weft_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_op(tensor, status, true, format, arguments);
    va_end(arguments);
}

void client_tensor_remote_lost(struct weft_tensor *tensor, const char *format, ...)
{
    va_list arguments;
    char name[192], text[280];
    if (tensor->op.status == WEFT_OK) tensor->op.status = WEFT_ERR_PEER_LOST;
    if (tensor->session->engine->failed) return; /* a consequence of that failure */
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    client_tensor_op_name(tensor, name, sizeof name);
    client_engine_remote_lost(tensor->session, "%s %s", name, text);
}

void client_tensor_failed(struct weft_tensor *tensor)
{
    if (tensor->mode == WEFT_MODE_SERVER)
        client_server_mode_failed(tensor);
    else
        client_allreduce_mode_failed(tensor);
}

bool client_tensor_is_in_group(const struct weft_tensor *tensor)
{
    return tensor->mode == WEFT_MODE_ALL_REDUCE && (tensor->op.in_transport > 0 || tensor->order.batch);
}

void client_tensor_describe(const struct weft_tensor *tensor, char *out, size_t out_bytes)
{
    char name[192];
    client_tensor_op_name(tensor, name, sizeof name);
    /* a shard answers when all ranks have pushed */
    const bool is_round = tensor->op.kind == CLIENT_OP_PUSH_PULL || tensor->op.kind == CLIENT_OP_PUSH ||
                          tensor->op.kind == CLIENT_OP_PULL;
    for (uint32_t i = 0; i < tensor->chunk_table.count; i++) {
        if (!tensor->chunk_table.chunks[i].awaits_result) continue;
        snprintf(out, out_bytes, "%s waits for %s%s", name,
                 client_endpoint_name(tensor->session, tensor->chunk_table.chunks[i].endpoint),
                 is_round ? ", or for a rank that has not pushed it, which the coordinator's log names" : "");
        return;
    }
    uint32_t rank;
    if (client_push_order_waits_for(tensor, &rank)) {
        char ranks[128] = "all ranks";
        if (rank != UINT32_MAX) client_rank_name(tensor->session, rank, ranks, sizeof ranks);
        snprintf(out, out_bytes, "%s waits until %s has pushed it", name, ranks);
        return;
    }
    const bool in_group = tensor->mode == WEFT_MODE_ALL_REDUCE && tensor->op.in_transport > 0;
    snprintf(out, out_bytes, "%s waits for %s", name,
             in_group ? "the other ranks in its all-reduce" : "this rank's own engine");
}
