/* shard_receive.c - assigns receive memory to rounds and slots to workers.
 *
 *     ANNOUNCED --> can_take_slot? --> slot --> RECEIVING --> HELD --> shard_round_advance folds it
 *
 * Memory. A round opens when the arena has its block and the open rounds have less than round_bytes, in the
 * order of first announcements. A round whose contributions all lie in mapped memory opens after the last one
 * (shard_in_place.c). A dense round
 * keeps the partial sums of the canonical tree T in its slots: after ranks 0..k-1 are folded, popcount(k) of
 * them. A rank is received out of order only if every missing lower rank still finds a slot later.
 *
 * No order of pushes can deadlock:
 *   1. An announcement uses no receive memory, so it is always accepted.
 *   2. An open round can always receive its lowest missing rank: its block has at least
 *      weft_tree_reduce_buffer_count(workers) slots, and can_take_slot reserves what the missing
 *      ranks need. Folding depends on no other round.
 *   3. So an open round closes when all its workers have announced, and releases its block. The round that
 *      waits longest gets it; its block fits into an empty arena, which declare has checked.
 *   4. A close waits only for readers of the previous result. A reader's buffer is its own and waits for
 *      nothing.
 * With copies a codec's round opens after the last announcement, too. So an open round waits for no worker
 * that repeats earlier rounds after a fail-over, and no result is overwritten that a worker may need again.
 * Precondition: every worker announces every chunk of the step. A client that delays announcements until it
 * has results of other chunks must do so in the same order on every worker. */
#include "server/shard/shard_engine.h"

/* Partial sums in use after ranks 0..added-1 are folded. */
uint32_t shard_round_partials(const struct shard_chunk *chunk, uint32_t added)
{
    return shard_chunk_is_dense(chunk) ? (uint32_t)__builtin_popcount(added) : 0;
}

static bool in_slot(const struct shard_contribution *contribution)
{
    return contribution->state == SHARD_CONTRIBUTION_RECEIVING ||
           contribution->state == SHARD_CONTRIBUTION_HELD;
}

/* May `rank` take a slot? When a missing lower rank k is received, these slots are in use: the partial sums
 * of ranks below k, the ranks above k that are in slots, `rank`, and k itself. Monotone: if false for a rank,
 * false for all higher ranks. */
static bool can_take_slot(const struct shard_chunk *chunk, uint32_t rank)
{
    const struct shard_slots *slots = &chunk->open.slots;
    if (slots->count >= chunk->tensor->engine->workers) return true;
    if (rank == chunk->open.next) return true;
    if (slots->used == slots->count) return false; /* all lower ranks are in slots and will be folded */
    uint32_t behind = slots->used - shard_round_partials(chunk, chunk->open.next);
    for (uint32_t k = chunk->open.next; k < rank; k++) {
        if (in_slot(&chunk->workers.contributions[k])) behind--;
        else if (shard_round_partials(chunk, k) + 1 + behind + 1 > slots->count) return false;
    }
    return true;
}

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct shard_slot *slot = weft_container_of(completion, struct shard_slot, completion);
    struct shard_chunk *chunk = slot->chunk;
    struct weft_shard_engine *engine = chunk->tensor->engine;
    uint32_t worker = slot->worker;
    WEFT_ASSERT(chunk->open.receiving > 0);
    chunk->open.receiving--;
    shard_work_end(engine);
    if (engine->end.closed) return;

    if (status < 0) {
        weft_log(engine->env, WEFT_LOG_WARN, "server",
                 "rank %u's push of tensor '%s' chunk %u did not arrive: %s", worker, chunk->tensor->name,
                 chunk->index, weft_reason_text(status));
        if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, worker);
    }
    if (chunk->open.phase == SHARD_PHASE_DRAINING) {
        shard_round_finish_drain(chunk);
        return;
    }
    struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    WEFT_ASSERT(contribution->state == SHARD_CONTRIBUTION_RECEIVING);
    if (status < 0) {
        contribution->state = SHARD_CONTRIBUTION_NONE;
        contribution->slot = NULL;
        chunk->open.arrived--;
        shard_slots_free(&chunk->open.slots, slot);
        shard_receive_fill(chunk);
        shard_worker_left_check(chunk);
        return;
    }
    engine->stats.received_bytes += slot->payload_bytes;
    engine->stats.load.bytes += slot->payload_bytes;
    weft_histogram_add(&engine->stats.push_receive,
                       weft_elapsed_ns(slot->accepted_ns, weft_now_ns(engine->env)));
    contribution->state = SHARD_CONTRIBUTION_HELD;
    shard_round_advance(chunk);
}

enum weft_status shard_receive_accept(struct shard_chunk *chunk, uint32_t worker, struct shard_slot *slot,
                                      void (*done)(struct weft_completion *, enum weft_status))
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    struct weft_arrival *arrival = contribution->arrival;
    slot->chunk = chunk;
    slot->worker = worker;
    slot->payload_bytes = arrival->payload_bytes;
    slot->accepted_ns = weft_now_ns(engine->env);
    weft_completion_init(&slot->completion, 1, done);
    const enum weft_status status = weft_transport_accept(
        engine->transport, arrival, shard_half_place(chunk, slot), arrival->payload_bytes, &slot->completion);
    if (status < 0) return status;
    contribution->arrival = NULL;
    contribution->slot = slot;
    contribution->state = SHARD_CONTRIBUTION_RECEIVING;
    chunk->open.receiving++;
    shard_work_begin(engine);
    weft_histogram_add(&engine->stats.push_wait,
                       weft_elapsed_ns(contribution->announced_ns, slot->accepted_ns));
    return status;
}

bool shard_receive_one(struct shard_chunk *chunk, uint32_t worker)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    if (!can_take_slot(chunk, worker)) {
        chunk->open.lacks_slot = true;
        return false;
    }
    struct shard_slot *slot = shard_slots_alloc(&chunk->open.slots);
    struct weft_arrival *arrival = contribution->arrival;
    const enum weft_status status = shard_receive_accept(chunk, worker, slot, received);
    if (status >= 0) return true;
    shard_slots_free(&chunk->open.slots, slot);
    if (status == WEFT_ERR_AGAIN) {
        chunk->open.lacks_slot = true;
        engine->queues.accept_again = true;
        shard_engine_schedule_retry(engine);
        return false;
    }
    weft_transport_discard(engine->transport, arrival);
    contribution->arrival = NULL;
    contribution->state = SHARD_CONTRIBUTION_NONE;
    chunk->open.arrived--;
    engine->members.worker_left_check_due = engine->members.left_count > 0;
    if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, worker);
    return true;
}

void shard_receive_fill(struct shard_chunk *chunk)
{
    if (chunk->open.phase != SHARD_PHASE_COLLECTING) return;
    chunk->open.lacks_slot = false;
    for (uint32_t worker = chunk->open.next; worker < chunk->tensor->engine->workers; worker++)
        if (chunk->workers.contributions[worker].state == SHARD_CONTRIBUTION_ANNOUNCED &&
            !shard_receive_one(chunk, worker))
            return;
}

/* A worker that has not pushed this round may need the aggregate of the one before. */
static bool keeps_aggregate(const struct shard_chunk *chunk)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    return chunk->coding.combiner && shard_map_is_on(engine) &&
           !(engine->replication.mutants & WEFT_MUTANT_ROUND_OPENS_EARLY);
}

void shard_receive_queue(struct shard_chunk *chunk)
{
    WEFT_ASSERT(chunk->open.phase == SHARD_PHASE_WAITING);
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (!weft_list_empty(&chunk->links.waiting)) return;
    if (chunk->open.arrived < engine->workers &&
        (keeps_aggregate(chunk) || shard_in_place_is_possible(chunk)))
        return;
    weft_list_append(&engine->queues.waiting, &chunk->links.waiting);
}

/* Opens a slot per worker (at most 8 spare ones) if half of the arena stays free, else the fewest slots. */
static bool slots_open(struct shard_chunk *chunk)
{
    struct shard_arena *arena = &chunk->tensor->engine->memory.arena;
    uint32_t least = shard_chunk_slots_min(chunk), most = chunk->tensor->engine->workers;
    size_t bytes = shard_chunk_slot_bytes(chunk, chunk->open.round);
    chunk->open.in_place = most == chunk->open.arrived && shard_in_place_is_possible(chunk);
    if (chunk->open.in_place && shard_in_place_takes_spare(chunk)) return true;
    if (chunk->open.in_place) return shard_slots_open(&chunk->open.slots, arena, 1, bytes);
    if (least + 8 < most) most = least + 8;
    if (most > least && arena->used_bytes + shard_slots_bytes(most, bytes) <= arena->bytes / 2 &&
        shard_slots_open(&chunk->open.slots, arena, most, bytes))
        return true;
    return shard_slots_open(&chunk->open.slots, arena, least, bytes);
}

static void open_rounds(struct weft_shard_engine *engine)
{
    uint64_t summed = 0; /* elements */
    while (!weft_list_empty(&engine->queues.waiting)) {
        struct shard_chunk *chunk =
            weft_list_first(&engine->queues.waiting, struct shard_chunk, links.waiting);
        const size_t used = engine->memory.arena.used_bytes;
        if ((used > 0 && used >= engine->settings.round_bytes) || !slots_open(chunk)) return;
        weft_tree_reduce_init(&chunk->open.fold, chunk->count);
        chunk->open.fold.finds_max = true;
        shard_round_enter(chunk, SHARD_PHASE_COLLECTING);
        if (!chunk->open.in_place) {
            shard_receive_fill(chunk);
        } else if (shard_in_place_sum(chunk)) {
            summed += chunk->count * engine->workers;
            if (summed < WEFT_LOOP_SLICE) continue; /* small rounds share a step of the loop */
            (void)weft_timer_start_now(engine->loop, &engine->timers.open);
            return;
        }
    }
}

void shard_receive_open_waiting(struct weft_shard_engine *engine)
{
    if (engine->queues.opening)
        return; /* a round in place closes inside the call, and its end resumes the engine */
    engine->queues.opening = true;
    engine->groups.corks++; /* results of small rounds that close here travel together */
    open_rounds(engine);
    engine->queues.opening = false;
    if (--engine->groups.corks == 0 && engine->reply_pool.pump_again) shard_reply_pump(engine);
}

void shard_receive_on_timer(struct weft_timer *timer)
{
    shard_receive_open_waiting(weft_container_of(timer, struct weft_shard_engine, timers.open));
}
