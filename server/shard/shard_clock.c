/* shard_clock.c - consistency ssp and asp: each contribution is one update, applied as it arrives.
 *
 *     PUSH(c) --> ANNOUNCED --> memory --> RECEIVING --> HELD, in order of arrival --> applied, clock = c
 *                                                                                        |
 *     PUSH: reply at once      PUSH_PULL, PULL: reply when min(clock) >= c - S (ssp:S), or at once (asp)
 *
 * Exactly once: a worker's contribution c is applied if its clock is c - 1. One that repeats its clock gets
 * the reply again. The update is that of the optimiser with the gradient times 1 / workers, so the updates of
 * all workers for one clock have the length of one step of bsp. The optimiser counts updates.
 *
 * Versions. Replies read the current values while they are sent, and a stopped worker may read for long. So
 * an update never waits for a reader: it is written to a version that no send reads, which then is the
 * current one. At most one version is in use for each worker and one more. States are read in place, by a
 * worker that saves them; the next update waits for that.
 *
 * Copies. Each contribution is a change: the copy applies it in the leader's order, moves the same clock, and
 * acknowledges before a reply leaves. The next contribution is applied after that. So a new leader has all
 * that a worker has seen, and its clocks determine the next contribution of each worker. A new copy gets the
 * clocks with values and states; no contribution is applied meanwhile (copies/shard_clock_copy.c).
 *
 * The phase of such a chunk is IDLE, or INSTALLING for its first weights. `arrived` counts contributions that
 * are not applied. */
#include "server/shard/shard_clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- life ---- */

enum weft_status shard_clock_reserve(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (chunk->clock || chunk->tensor->consistency.kind == WEFT_CONSISTENCY_BSP) return WEFT_OK;
    struct shard_clock *clock = weft_alloc_zero(engine->env, sizeof *clock);
    if (!clock) return WEFT_ERR_NO_MEMORY;
    chunk->clock = clock;
    weft_list_init(&clock->receive_link);
    weft_list_init(&clock->wait_link);
    weft_list_init(&clock->apply_link);
    clock->chunk = chunk;
    clock->own.values = chunk->values;
    clock->current = clock->versions = &clock->own;
    clock->counts = weft_alloc_zero(engine->env, sizeof *clock->counts + engine->members.workers_max *
                                                                             sizeof clock->counts->clock[0]);
    clock->worker = weft_alloc_zero(engine->env, engine->members.workers_max * sizeof *clock->worker);
    chunk->workers.own_contributions =
        weft_alloc_array(engine->env, engine->members.workers_max, sizeof *chunk->workers.own_contributions);
    return clock->counts && clock->worker && chunk->workers.own_contributions ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

void shard_clock_free(struct shard_chunk *chunk)
{
    struct weft_env *env = chunk->tensor->engine->env;
    struct shard_clock *clock = chunk->clock;
    if (!clock) return;
    chunk->values = clock->own.values;
    weft_list_remove(&clock->receive_link);
    weft_list_remove(&clock->wait_link);
    weft_list_remove(&clock->apply_link);
    while (clock->versions && clock->versions != &clock->own) {
        struct shard_version *version = clock->versions;
        clock->versions = version->next;
        weft_memory_free(env, version->owned);
        weft_free_bytes(env, version);
    }
    weft_free_bytes(env, clock->counts);
    weft_free_bytes(env, clock->worker);
    weft_free_bytes(env, clock);
    chunk->clock = NULL;
}

/* ---- versions ---- */

static struct shard_version *version_add(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_version *version = weft_alloc_zero(engine->env, sizeof *version);
    if (!version) return NULL;
    if (engine->settings.maps)
        (void)weft_memory_alloc(engine->env, chunk->tensor->values_stride, &version->owned, NULL);
    else version->owned = weft_alloc_bytes(engine->env, chunk->tensor->values_stride);
    if (!version->owned) {
        weft_free_bytes(engine->env, version);
        return NULL;
    }
    version->values = version->owned;
    version->next = chunk->clock->versions;
    chunk->clock->versions = version;
    return version;
}

/* A version for the next update, which runs on the compute thread if is_task. The current one, if nothing can
 * read it meanwhile. NULL: no memory; a send that ends continues the chunk. */
static struct shard_version *version_for_update(struct shard_chunk *chunk, bool is_task)
{
    struct shard_clock *clock = chunk->clock;
    if (!is_task && clock->current->sends == 0) return clock->current;
    for (struct shard_version *version = clock->versions; version; version = version->next)
        if (version != clock->current && version->sends == 0) return version;
    return version_add(chunk);
}

struct shard_version *shard_clock_send_begins(struct shard_chunk *chunk)
{
    chunk->clock->current->sends++;
    chunk->clock->reads++;
    return chunk->clock->current;
}

void shard_clock_send_ended(struct shard_chunk *chunk, struct shard_version *version)
{
    WEFT_ASSERT(version->sends > 0 && chunk->clock->reads > 0);
    version->sends--;
    chunk->clock->reads--;
    shard_clock_continue(chunk);
}

/* ---- replies ---- */

static bool result_is_due(const struct shard_chunk *chunk, uint64_t step)
{
    const struct weft_consistency *rule = &chunk->tensor->consistency;
    return rule->kind == WEFT_CONSISTENCY_ASP || chunk->clock->min + rule->staleness >= step;
}

bool shard_clock_pull_is_ready(const struct shard_chunk *chunk, uint32_t worker, uint64_t step)
{
    const struct shard_clock *clock = chunk->clock;
    if (chunk->open.phase == SHARD_PHASE_INSTALLING || !chunk->initialised) return false;
    if (shard_replicate_holds(chunk)) return false;
    return clock->counts->clock[worker] >= step && result_is_due(chunk, step);
}

static void reply(struct shard_chunk *chunk, uint32_t worker, uint64_t step, enum shard_reply_kind kind)
{
    chunk->clock->worker[worker].reply_clock = step;
    shard_reply_note(chunk, worker, kind);
}

static void wait_ends(struct shard_chunk *chunk, uint32_t worker)
{
    struct shard_clock *clock = chunk->clock;
    clock->worker[worker].since_ns = 0;
    if (--clock->waits == 0) weft_list_remove(&clock->wait_link);
}

static void wait_begins(struct shard_chunk *chunk, uint32_t worker)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_clock *clock = chunk->clock;
    clock->worker[worker].since_ns = weft_now_ns(engine->env);
    if (clock->waits++ == 0) weft_list_append(&engine->clock.waits, &clock->wait_link);
    shard_engine_watch_deadlines(engine);
}

void shard_clock_min_update(struct shard_chunk *chunk)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_clock *clock = chunk->clock;
    uint64_t min = UINT64_MAX;
    for (uint32_t worker = 0; worker < engine->workers; worker++)
        if (!engine->members.worker[worker].left && clock->counts->clock[worker] < min)
            min = clock->counts->clock[worker];
    if (min == UINT64_MAX || min <= clock->min) return;
    clock->min = min;
    for (uint32_t worker = 0; worker < engine->workers && clock->waits > 0; worker++) {
        const uint64_t step = clock->counts->clock[worker];
        if (clock->worker[worker].since_ns == 0 || !result_is_due(chunk, step)) continue;
        wait_ends(chunk, worker);
        reply(chunk, worker, step, SHARD_REPLY_DATA);
    }
    shard_pull_reply_waiting(chunk);
}

/* The contribution `step` of the worker is applied. */
static void reply_applied(struct shard_chunk *chunk, uint32_t worker, enum shard_reply_kind wanted)
{
    const uint64_t step = chunk->clock->counts->clock[worker];
    if (wanted == SHARD_REPLY_DATA && !result_is_due(chunk, step)) wait_begins(chunk, worker);
    else reply(chunk, worker, step, wanted);
}

/* ---- applying ---- */

static void contribution_ends(struct shard_chunk *chunk, uint32_t worker)
{
    struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    contribution->state = SHARD_CONTRIBUTION_NONE;
    contribution->slot = NULL;
    WEFT_ASSERT(chunk->open.arrived > 0);
    chunk->open.arrived--;
}

void shard_clock_move(struct shard_chunk *chunk, uint32_t worker)
{
    const uint64_t step = ++chunk->clock->counts->clock[worker];
    chunk->clock->changes++;
    if (step > chunk->closed_step) chunk->closed_step = step;
}

/* Moves the worker's clock, then replies to it and to those that waited for it. */
static void clock_advance(struct shard_chunk *chunk, uint32_t worker)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    const enum shard_reply_kind wanted = (enum shard_reply_kind)contribution->reply_wanted;
    shard_clock_move(chunk, worker);
    engine->stats.rounds_closed++;
    engine->work.last_round_ns = weft_now_ns(engine->env);
    weft_histogram_add(&engine->stats.round,
                       weft_elapsed_ns(contribution->announced_ns, engine->work.last_round_ns));
    if (shard_map_leads(chunk)) reply_applied(chunk, worker, wanted);
    contribution_ends(chunk, worker);
    shard_clock_min_update(chunk);
}

/* The change of the worker's contribution, before its clock moves. slot NULL: the clock moves alone. */
static void replicate(struct shard_chunk *chunk, uint32_t worker, struct shard_slot *slot)
{
    const struct shard_clock_worker *own = &chunk->clock->worker[worker];
    const uint64_t changes = chunk->clock->changes;
    chunk->open.lr = own->lr;
    chunk->open.flags = own->flags & WEFT_WIRE_DECAY;
    chunk->open.weight_decay = own->flags & WEFT_WIRE_DECAY ? own->weight_decay : 0;
    chunk->result.weight_sum = (float)chunk->tensor->engine->workers;
    chunk->hold.worker = worker;
    shard_replicate(chunk, changes + 1, changes, WEFT_WIRE_CHANGE_STEP, slot ? shard_slot_data(slot) : NULL);
}

static bool is_replicating(const struct shard_chunk *chunk)
{
    return chunk->hold.is_due || chunk->hold.is_sending || shard_move_is_in_use(chunk->move);
}

/* One change at a time, and none while a worker reads states, or parts are sent to a new copy. */
static bool can_change(const struct shard_chunk *chunk)
{
    return !chunk->work.computing && !is_replicating(chunk) && chunk->result.sends == chunk->clock->reads;
}

/* Rounds of other tensors may have all receive memory and wait for a rank, whose contribution to a chunk with
 * a clock then finds none. So one such contribution at a time has memory beside it: it is applied without
 * waiting for a rank, and the next one follows. */
static struct shard_slot *slot_reserve(struct weft_shard_engine *engine, size_t bytes)
{
    struct shard_slot *slot = shard_arena_reserve(&engine->memory.arena, bytes);
    if (slot || engine->clock.slot) return slot;
    engine->clock.slot = weft_alloc_bytes(engine->env, bytes);
    return engine->clock.slot;
}

static void slot_free(struct weft_shard_engine *engine, struct shard_slot *slot, size_t bytes)
{
    if (slot != engine->clock.slot) {
        shard_arena_release(&engine->memory.arena, slot, bytes);
        return;
    }
    weft_free_bytes(engine->env, slot);
    engine->clock.slot = NULL;
}

static void slot_release(struct weft_shard_engine *engine, struct shard_slot *slot)
{
    slot_free(engine, slot, SHARD_SLOT_HEAD_BYTES + slot->payload_bytes);
}

static void apply(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    const struct shard_clock *clock = chunk->clock;
    const struct shard_clock_worker *worker = &clock->worker[chunk->work.folding->worker];
    struct weft_optimizer rule = chunk->tensor->optimizer;
    if (worker->flags & WEFT_WIRE_DECAY) rule.weight_decay = worker->weight_decay;
    if (clock->target != clock->current)
        memcpy(clock->target->values, clock->current->values, chunk->count * sizeof(float));
    weft_optimizer_step(&rule, worker->lr, clock->counts->updates + 1, clock->target->values, chunk->states,
                        shard_slot_data(chunk->work.folding), chunk->work.grad_scale, chunk->count);
}

static void applied(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_slot *slot = chunk->work.folding;
    const uint32_t worker = slot->worker;
    chunk->clock->current = chunk->clock->target;
    chunk->values = chunk->clock->current->values;
    chunk->clock->counts->updates++;
    chunk->work.folding = NULL;
    replicate(chunk, worker, slot);
    if (is_replicating(chunk)) chunk->clock->replicated = slot;
    else slot_release(engine, slot);
    clock_advance(chunk, worker);
}

void shard_clock_replicated(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_slot *slot = chunk->clock->replicated;
    chunk->clock->replicated = NULL;
    if (slot) slot_release(engine, slot);
    shard_clock_schedule(chunk);
}

void shard_clock_schedule(struct shard_chunk *chunk)
{
    struct shard_clock *clock = chunk->clock;
    if (clock->first && weft_list_empty(&clock->apply_link))
        weft_list_append(&chunk->tensor->engine->clock.apply, &clock->apply_link);
}

static void apply_done(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computing = false;
    applied(chunk);
    shard_clock_continue(chunk);
}

/* Elements that an update processes, with the copy to another version. */
static uint64_t update_elements(const struct shard_chunk *chunk)
{
    return chunk->count * (2 + weft_optimizer_states(&chunk->tensor->optimizer));
}

/* Applies the contributions that are received, one after the other. */
static void apply_received(struct shard_chunk *chunk)
{
    struct shard_clock *clock = chunk->clock;
    const uint64_t elements = update_elements(chunk);
    while (clock->first && can_change(chunk)) {
        shard_snapshot_capture(chunk);
        struct shard_version *target = version_for_update(chunk, elements > WEFT_LOOP_SLICE);
        if (!target) return;
        chunk->work.folding = clock->first;
        clock->first = clock->first->next_free;
        clock->target = target;
        chunk->work.grad_scale = 1.0f / (float)chunk->tensor->engine->workers;
        if (elements > WEFT_LOOP_SLICE) {
            shard_round_start_task(chunk, apply, apply_done, elements);
            return;
        }
        apply(&chunk->work.task);
        applied(chunk);
    }
}

void shard_clock_continue(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (engine->end.closed) return;
    apply_received(chunk);
    shard_contributions_release(chunk);
    shard_engine_resume(engine);
}

/* ---- receiving ---- */

/* The engine has failed. */
static void refuse_received(struct shard_chunk *chunk, struct shard_slot *slot)
{
    const uint32_t worker = slot->worker;
    slot_release(chunk->tensor->engine, slot);
    reply(chunk, worker, chunk->clock->counts->clock[worker] + 1, SHARD_REPLY_ERROR);
    contribution_ends(chunk, worker);
}

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct shard_slot *slot = weft_container_of(completion, struct shard_slot, completion);
    struct shard_chunk *chunk = slot->chunk;
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_clock *clock = chunk->clock;
    chunk->open.receiving--;
    shard_work_end(engine);
    if (engine->end.closed) return;
    const bool is_dropped = clock->worker[slot->worker].is_dropped;
    clock->worker[slot->worker].is_dropped = false;
    if (engine->end.failed < 0 && !is_dropped) {
        refuse_received(chunk, slot);
    } else if (status < 0) {
        weft_log(engine->env, WEFT_LOG_WARN, "server",
                 "rank %u's push of tensor '%s' chunk %u did not arrive: %s", slot->worker,
                 chunk->tensor->name, chunk->index, weft_reason_text(status));
        if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, slot->worker);
        contribution_ends(chunk, slot->worker);
        slot_release(engine, slot);
    } else if (is_dropped) {
        contribution_ends(chunk, slot->worker);
        slot_release(engine, slot);
    } else {
        engine->stats.received_bytes += slot->payload_bytes;
        engine->stats.load.bytes += slot->payload_bytes;
        weft_histogram_add(&engine->stats.push_receive,
                           weft_elapsed_ns(slot->accepted_ns, weft_now_ns(engine->env)));
        chunk->workers.contributions[slot->worker].state = SHARD_CONTRIBUTION_HELD;
        slot->next_free = NULL;
        if (clock->first) clock->last->next_free = slot;
        else clock->first = slot;
        clock->last = slot;
    }
    shard_clock_continue(chunk);
}

/* false: not possible now; shard_clock_resume tries again. */
static bool receive(struct shard_chunk *chunk, uint32_t worker)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    struct weft_arrival *arrival = contribution->arrival;
    const size_t bytes = SHARD_SLOT_HEAD_BYTES + arrival->payload_bytes;
    struct shard_slot *slot = slot_reserve(engine, bytes);
    if (!slot) return false;
    *slot = (struct shard_slot){0};
    const enum weft_status status = shard_receive_accept(chunk, worker, slot, received);
    if (status >= 0) return true;
    slot_free(engine, slot, bytes);
    if (status == WEFT_ERR_AGAIN) {
        shard_engine_schedule_retry(engine);
        return false;
    }
    weft_transport_discard(engine->transport, arrival);
    contribution->arrival = NULL;
    contribution_ends(chunk, worker);
    if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, worker);
    return true;
}

/* false: a contribution still waits for memory. */
static bool receive_announced(struct shard_chunk *chunk)
{
    const uint32_t workers = chunk->tensor->engine->workers;
    for (uint32_t worker = 0; worker < workers && chunk->open.arrived > 0; worker++)
        if (chunk->workers.contributions[worker].state == SHARD_CONTRIBUTION_ANNOUNCED &&
            !receive(chunk, worker))
            return false;
    return true;
}

/* The replies of a change leave before the next one is applied. */
static void apply_scheduled(struct weft_shard_engine *engine)
{
    if (weft_list_empty(&engine->clock.apply)) return;
    shard_reply_pump(engine);
    while (!weft_list_empty(&engine->clock.apply)) {
        struct shard_clock *clock = weft_list_first(&engine->clock.apply, struct shard_clock, apply_link);
        weft_list_remove(&clock->apply_link);
        apply_received(clock->chunk);
        shard_contributions_release(clock->chunk);
    }
}

void shard_clock_resume(struct weft_shard_engine *engine)
{
    apply_scheduled(engine);
    while (!weft_list_empty(&engine->clock.receive)) {
        struct shard_clock *clock = weft_list_first(&engine->clock.receive, struct shard_clock, receive_link);
        if (!receive_announced(clock->chunk)) return;
        weft_list_remove(&clock->receive_link);
    }
}

/* ---- requests ---- */

/* Is it the worker's next contribution? Otherwise replies to it and returns false. */
static bool push_is_next(struct shard_chunk *chunk, const struct weft_wire_header *header,
                         struct weft_arrival *arrival, enum shard_reply_kind wanted)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_clock_worker *own = &chunk->clock->worker[header->worker];
    const uint64_t clock = chunk->clock->counts->clock[header->worker];
    const bool is_repeated =
        header->step == clock || (header->step == clock + 1 &&
                                  shard_contribution_state(chunk, header->worker) != SHARD_CONTRIBUTION_NONE);
    if (!chunk->initialised) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE,
                           "tensor '%.40s' has no first weights: call weft_tensor_init first",
                           chunk->tensor->name);
    } else if (is_repeated) {
        /* a contribution that is not applied, or whose result waits, gets its reply later */
        engine->stats.duplicates++;
        if (header->step == clock && own->since_ns == 0) /* at a new leader the result may wait */
            reply_applied(chunk, header->worker, wanted);
        weft_transport_discard(engine->transport, arrival);
        shard_engine_resume(engine);
    } else if (header->step < clock) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STALE,
                           "step %" PRIu64 " of tensor '%.30s' is over, steps of rank %u up to %" PRIu64
                           " are",
                           header->step, chunk->tensor->name, header->worker, clock);
    } else if (header->step > clock + 1) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE,
                           "rank %u pushes step %" PRIu64 " of tensor '%.30s', its step %" PRIu64 " is next",
                           header->worker, header->step, chunk->tensor->name, clock + 1);
    } else {
        return true;
    }
    return false;
}

void shard_clock_push(struct shard_chunk *chunk, const struct weft_wire_header *header,
                      struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_clock *clock = chunk->clock;
    struct shard_contribution *contribution = &chunk->workers.contributions[header->worker];
    struct shard_clock_worker *own = &clock->worker[header->worker];
    const enum shard_reply_kind wanted = header->kind == WEFT_WIRE_PUSH ? SHARD_REPLY_ACK : SHARD_REPLY_DATA;
    if (chunk->open.phase == SHARD_PHASE_INSTALLING) {
        shard_reply_defer(engine, arrival);
        return;
    }
    if (own->is_dropped) {
        shard_reply_defer(engine, arrival); /* until the discarded contribution has arrived */
        return;
    }
    if (!push_is_next(chunk, header, arrival, wanted)) return;
    if (header->flags & WEFT_WIRE_NOT_FINITE && !can_change(chunk)) {
        shard_reply_defer(engine, arrival);
        return;
    }
    if (own->since_ns != 0) wait_ends(chunk, header->worker); /* the worker no longer waits for that result */
    own->lr = header->lr;
    own->weight_decay = header->weight_sum;
    own->flags = header->flags;
    contribution->reply_wanted = (uint8_t)wanted;
    contribution->announced_ns = weft_now_ns(engine->env);
    contribution->weight = header->weight;
    chunk->open.arrived++;
    engine->stats.pushes++;
    if (header->flags & WEFT_WIRE_NOT_FINITE) { /* the worker has no gradient: its clock moves alone */
        weft_transport_discard(engine->transport, arrival);
        replicate(chunk, header->worker, NULL);
        clock_advance(chunk, header->worker);
        shard_engine_resume(engine);
        return;
    }
    contribution->arrival = arrival;
    contribution->state = SHARD_CONTRIBUTION_ANNOUNCED;
    if (weft_list_empty(&clock->receive_link)) weft_list_append(&engine->clock.receive, &clock->receive_link);
    shard_clock_resume(engine);
}

void shard_clock_worker_left(struct shard_chunk *chunk)
{
    if (chunk->tensor->engine->end.failed >= 0) shard_clock_min_update(chunk);
}

/* ---- failure and deadlines ---- */

static void set_error(struct shard_chunk *chunk, enum weft_status status, const char *text)
{
    chunk->error.status = status;
    snprintf(chunk->error.text, sizeof chunk->error.text, "%s", text);
}

void shard_clock_fail(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_clock *clock = chunk->clock;
    set_error(chunk, engine->end.failed, engine->end.failed_text);
    weft_list_remove(&clock->receive_link);
    while (clock->first) {
        struct shard_slot *slot = clock->first;
        clock->first = slot->next_free;
        refuse_received(chunk, slot);
    }
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        const uint64_t step = clock->counts->clock[worker];
        if (clock->worker[worker].since_ns != 0) {
            wait_ends(chunk, worker);
            reply(chunk, worker, step, SHARD_REPLY_ERROR);
        }
        if (shard_contribution_state(chunk, worker) != SHARD_CONTRIBUTION_ANNOUNCED) continue;
        weft_transport_discard(engine->transport, chunk->workers.contributions[worker].arrival);
        chunk->workers.contributions[worker].arrival = NULL;
        reply(chunk, worker, step + 1, SHARD_REPLY_ERROR);
        contribution_ends(chunk, worker);
    }
}

void shard_clock_stop_leading(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_clock *clock = chunk->clock;
    weft_list_remove(&clock->receive_link);
    weft_list_remove(&clock->apply_link);
    while (clock->first) {
        struct shard_slot *slot = clock->first;
        clock->first = slot->next_free;
        contribution_ends(chunk, slot->worker);
        slot_release(engine, slot);
    }
    for (uint32_t worker = 0; chunk->workers.contributions && worker < engine->workers; worker++) {
        const enum shard_contribution_state state = shard_contribution_state(chunk, worker);
        if (clock->worker[worker].since_ns != 0) wait_ends(chunk, worker);
        clock->worker[worker].is_dropped |= state == SHARD_CONTRIBUTION_RECEIVING;
        if (state != SHARD_CONTRIBUTION_ANNOUNCED) continue;
        weft_transport_discard(engine->transport, chunk->workers.contributions[worker].arrival);
        chunk->workers.contributions[worker].arrival = NULL;
        contribution_ends(chunk, worker);
    }
}

uint64_t shard_clock_since_ns(const struct weft_shard_engine *engine)
{
    uint64_t since_ns = WEFT_NEVER;
    for (const struct weft_list *at = engine->clock.waits.next; at != &engine->clock.waits; at = at->next) {
        const struct shard_clock *clock = weft_container_of(at, struct shard_clock, wait_link);
        for (uint32_t worker = 0; worker < engine->workers; worker++)
            if (clock->worker[worker].since_ns != 0 && clock->worker[worker].since_ns < since_ns)
                since_ns = clock->worker[worker].since_ns;
    }
    return since_ns;
}

void shard_clock_describe(const struct shard_chunk *chunk, uint64_t step, char text[SHARD_TEXT_BYTES])
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_clock *clock = chunk->clock;
    uint32_t slowest = 0;
    while (slowest + 1 < engine->workers &&
           (engine->members.worker[slowest].left || clock->counts->clock[slowest] > clock->min))
        slowest++;
    snprintf(text, SHARD_TEXT_BYTES,
             "step %" PRIu64 " of '%.20s' chunk %u waited %g s for rank %u at step %" PRIu64 " (ssp:%u)",
             step, chunk->tensor->name, chunk->index, (double)engine->settings.round_deadline_ns / 1e9,
             slowest, clock->counts->clock[slowest], chunk->tensor->consistency.staleness);
}

static void expire_chunk(struct shard_chunk *chunk, uint64_t until_ns)
{
    struct shard_clock *clock = chunk->clock;
    char text[SHARD_TEXT_BYTES];
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers && clock->waits > 0; worker++) {
        const struct shard_clock_worker *own = &clock->worker[worker];
        const uint64_t step = clock->counts->clock[worker];
        if (own->since_ns == 0 || own->since_ns > until_ns) continue;
        shard_clock_describe(chunk, step, text);
        weft_log(chunk->tensor->engine->env, WEFT_LOG_WARN, "server", "%s", text);
        set_error(chunk, WEFT_ERR_DEADLINE, text);
        wait_ends(chunk, worker);
        reply(chunk, worker, step, SHARD_REPLY_ERROR);
    }
}

void shard_clock_expire(struct weft_shard_engine *engine, uint64_t until_ns)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &engine->clock.waits)
        expire_chunk(weft_container_of(node, struct shard_clock, wait_link)->chunk, until_ns);
}
