/* shard_engine.c - one shard engine: create, deadlines, failure, free.
 *
 * One thread owns the engine: its chunks, its endpoint's push channel and its memory. The data path takes no
 * lock. Work arrives through the transport's handler (shard_request.c) and through completions of receives
 * and sends. A request that lacks memory, a free reply or a transport resource waits; every event that frees
 * one calls shard_engine_resume.
 *
 * Deadlines: rounds are listed by first contribution, pulls by arrival, and all have the same time limit. One
 * timer for the first entry of both lists is therefore enough. It is stopped while both are empty.
 *
 * Failure: the coordinator decides which member is lost. weft_shard_engine_fail drops every open round.
 * Waiting and later requests get the given status and sentence. */
#include <stdio.h>
#include <string.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"

#define RETRY_NS 100000u /* delay after WEFT_ERR_AGAIN of the transport */

void weft_shard_engine_options_init(struct weft_shard_engine_options *options)
{
    *options = (struct weft_shard_engine_options){
        .size = sizeof *options,
        .receive_bytes_max = (size_t)256 << 20,
        .round_bytes = (size_t)4 << 20,
        .round_deadline_ns = WEFT_SECONDS(300),
        .copy_bytes_max = (size_t)64 << 20,
        .hash_every = 50,
        .wire_version = WEFT_WIRE_VERSION,
    };
}

/* ---- deadlines ---- */

static uint64_t pull_since_ns(struct weft_shard_engine *engine, struct weft_arrival *arrival,
                              struct weft_wire_header *header, struct shard_chunk **chunk_out)
{
    enum weft_status status = weft_wire_decode(arrival->header, arrival->header_bytes, header);
    WEFT_ASSERT(status == WEFT_OK); /* it was checked on arrival */
    struct shard_chunk *chunk = shard_table_chunk(shard_table_tensor(engine, header->tensor), header->chunk);
    WEFT_ASSERT(chunk->workers.contributions && chunk->workers.contributions[header->worker].pull == arrival);
    *chunk_out = chunk;
    return chunk->workers.contributions[header->worker].pull_since_ns;
}

static void pull_remove(struct shard_chunk *chunk, struct weft_arrival *arrival, uint32_t worker)
{
    chunk->workers.contributions[worker].pull = NULL;
    weft_list_remove(&arrival->link);
    chunk->workers.pulls_waiting--;
    shard_contributions_release(chunk);
}

static uint64_t earliest_since_ns(struct weft_shard_engine *engine)
{
    uint64_t since = WEFT_NEVER;
    if (!weft_list_empty(&engine->queues.rounds))
        since = weft_list_first(&engine->queues.rounds, struct shard_chunk, links.round)->open.first_ns;
    if (!weft_list_empty(&engine->queues.pulls)) {
        struct weft_wire_header header;
        struct shard_chunk *chunk;
        uint64_t pull = pull_since_ns(
            engine, weft_list_first(&engine->queues.pulls, struct weft_arrival, link), &header, &chunk);
        if (pull < since) since = pull;
    }
    const uint64_t clock = shard_clock_since_ns(engine);
    return clock < since ? clock : since;
}

static uint64_t deadline_after(const struct weft_shard_engine *engine, uint64_t since_ns)
{
    return weft_deadline_ns(since_ns, engine->settings.round_deadline_ns);
}

void shard_engine_watch_deadlines(struct weft_shard_engine *engine)
{
    if (weft_timer_is_running(&engine->timers.deadline)) return;
    uint64_t deadline = deadline_after(engine, earliest_since_ns(engine));
    if (deadline == WEFT_NEVER) return;
    if (weft_timer_start(engine->loop, &engine->timers.deadline, deadline) < 0)
        weft_log(engine->env, WEFT_LOG_ERROR, "server",
                 "no memory for a timer: deadlines of rounds are not watched for now");
}

/* A running timer would wake an idle process, and the simulator, once more. */
static void unwatch_when_idle(struct weft_shard_engine *engine)
{
    if (weft_list_empty(&engine->queues.rounds) && weft_list_empty(&engine->queues.pulls) &&
        weft_list_empty(&engine->clock.waits))
        weft_timer_stop(engine->loop, &engine->timers.deadline);
}

static void expire_round(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (shard_round_is_closing(chunk)) { /* all contributions are in: the close cannot fail on the deadline */
        chunk->open.first_ns = weft_now_ns(engine->env);
        weft_list_remove(&chunk->links.round);
        weft_list_append(&engine->queues.rounds, &chunk->links.round);
        return;
    }
    char missing[64], text[240]; /* shard_round_drop cuts it to the length of a RESULT text */
    unsigned long long step = chunk->open.step;
    double seconds = (double)engine->settings.round_deadline_ns / 1e9;
    shard_round_describe_missing(chunk, missing, sizeof missing);
    if (missing[0])
        snprintf(text, sizeof text, "step %llu of '%.24s' chunk %u: no push from %s in %g s", step,
                 chunk->tensor->name, chunk->index, missing, seconds);
    else
        snprintf(text, sizeof text, "step %llu of '%.24s' chunk %u: all pushed, %s, in %g s", step,
                 chunk->tensor->name, chunk->index,
                 chunk->open.phase == SHARD_PHASE_WAITING      ? "no receive memory became free"
                 : chunk->open.phase == SHARD_PHASE_COLLECTING ? "not all arrived"
                                                          : "a rank has not taken the result before",
                 seconds);
    weft_log(engine->env, WEFT_LOG_WARN, "server", "%s", text);
    shard_round_drop(chunk, WEFT_ERR_DEADLINE, text);
}

static void expire_pull(struct weft_shard_engine *engine, struct weft_arrival *arrival,
                        struct shard_chunk *chunk, const struct weft_wire_header *header)
{
    char text[SHARD_TEXT_BYTES];
    pull_remove(chunk, arrival, header->worker);
    if (chunk->clock && chunk->initialised) {
        shard_clock_describe(chunk, header->step, text);
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_DEADLINE, "%s", text);
        return;
    }
    shard_reply_refuse(engine, arrival, header, WEFT_ERR_DEADLINE,
                       "tensor %u chunk %u: step %llu was not reached in %g s", header->tensor, header->chunk,
                       (unsigned long long)header->step, (double)engine->settings.round_deadline_ns / 1e9);
}

static void deadline_passed(struct weft_timer *timer)
{
    struct weft_shard_engine *engine = weft_container_of(timer, struct weft_shard_engine, timers.deadline);
    uint64_t now = weft_now_ns(engine->env);
    while (!weft_list_empty(&engine->queues.rounds)) {
        struct shard_chunk *chunk = weft_list_first(&engine->queues.rounds, struct shard_chunk, links.round);
        if (deadline_after(engine, chunk->open.first_ns) > now) break;
        expire_round(chunk);
    }
    while (!weft_list_empty(&engine->queues.pulls)) {
        struct weft_arrival *arrival = weft_list_first(&engine->queues.pulls, struct weft_arrival, link);
        struct weft_wire_header header;
        struct shard_chunk *chunk;
        if (deadline_after(engine, pull_since_ns(engine, arrival, &header, &chunk)) > now) break;
        expire_pull(engine, arrival, chunk, &header);
    }
    if (now >= engine->settings.round_deadline_ns)
        shard_clock_expire(engine, now - engine->settings.round_deadline_ns);
    shard_reply_pump(engine);
    shard_engine_watch_deadlines(engine);
}

/* ---- resuming ---- */

static void retry(struct weft_timer *timer)
{
    shard_engine_resume(weft_container_of(timer, struct weft_shard_engine, timers.retry));
}

void shard_engine_schedule_retry(struct weft_shard_engine *engine)
{
    if (weft_timer_is_running(&engine->timers.retry)) return;
    if (weft_timer_start(engine->loop, &engine->timers.retry, weft_now_ns(engine->env) + RETRY_NS) < 0)
        weft_log(engine->env, WEFT_LOG_ERROR, "server",
                 "no memory for a timer: waits for the next completion instead");
}

void shard_engine_resume(struct weft_shard_engine *engine)
{
    if (engine->end.closed) return;
    shard_members_enter_epoch(engine);
    shard_contributions_serve(engine);
    shard_groups_resume(engine);
    shard_receive_open_waiting(engine);
    shard_clock_resume(engine);
    if (engine->queues.accept_again) {
        struct weft_list *node, *spare;
        engine->queues.accept_again = false;
        weft_list_foreach (node, spare, &engine->queues.rounds)
            shard_receive_fill(weft_container_of(node, struct shard_chunk, links.round));
    }
    if (engine->members.worker_left_check_due) {
        engine->members.worker_left_check_due = false;
        shard_worker_left_check_all(engine);
    }
    if (shard_map_is_on(engine)) {
        shard_replicate_pump(engine);
        shard_copy_pump(engine);
        shard_move_pump(engine);
        shard_handover_pump(engine);
        shard_copy_pump_leaving(engine);
    }
    shard_reply_pump(engine);
    if (engine->table.releasing > 0) shard_release_schedule(engine);
    unwatch_when_idle(engine);
}

void shard_engine_pull_removed(struct weft_shard_engine *engine, struct weft_arrival *arrival)
{
    struct weft_wire_header header;
    struct shard_chunk *chunk;
    pull_since_ns(engine, arrival, &header, &chunk);
    pull_remove(chunk, arrival, header.worker);
}

void shard_engine_worker_lost(struct weft_shard_engine *engine, uint32_t worker)
{
    if (engine->members.worker[worker].lost) return;
    engine->members.worker[worker].lost = true;
    weft_log(engine->env, WEFT_LOG_WARN, "server",
             "the connection to rank %u is lost; the coordinator decides what follows", worker);
    weft_event_ring_add(engine->events, "peer_lost", WEFT_EVENT_MARK, worker,
                        engine->members.worker[worker].endpoint, 0, WEFT_ERR_PEER_LOST);
}

void weft_shard_engine_fail(struct weft_shard_engine *engine, enum weft_status status, const char *text)
{
    if (engine->end.failed < 0 || engine->end.closed) return; /* the first reason counts */
    engine->end.failed = status < 0 ? status : WEFT_ERR_ABORTED;
    snprintf(engine->end.failed_text, sizeof engine->end.failed_text, "%s",
             text && text[0] ? text : "the job has ended");
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) {
            struct shard_chunk *chunk = &tensor->chunks[i];
            /* all contributions are in: the workers get the result */
            if (shard_round_is_closing(chunk)) continue;
            const bool is_open = chunk->open.arrived > 0 || !weft_list_empty(&chunk->links.round);
            if (chunk->clock && shard_map_is_on(engine)) shard_clock_stop_leading(chunk);
            else if (chunk->clock) shard_clock_fail(chunk);
            else if (is_open && shard_map_is_on(engine)) shard_round_forget(chunk);
            else if (is_open) shard_round_drop(chunk, engine->end.failed, engine->end.failed_text);
            shard_contributions_release(chunk);
        }
    }
    while (!weft_list_empty(&engine->queues.pulls)) { /* the next pump refuses them */
        struct weft_arrival *arrival = weft_list_first(&engine->queues.pulls, struct weft_arrival, link);
        shard_engine_pull_removed(engine, arrival);
        shard_reply_defer(engine, arrival);
    }
    shard_reply_defer_all(engine, &engine->epoch_change.newer_epoch);
    shard_reply_defer_all(engine, &engine->replication.newer_terms);
    shard_contributions_defer_held(engine);
    shard_engine_resume(engine);
}

/* ---- life ---- */

static enum weft_status options_check(const struct weft_shard_engine_options *options,
                                      struct weft_error *error)
{
    if (options->size != sizeof *options)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "shard engine options of another version: call weft_shard_engine_options_init");
    if (!options->transport || !options->loop || !options->worker_endpoints || !options->worker_incarnations)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "a shard engine needs a transport, a loop and the workers' endpoints and incarnations");
    if (options->workers < 1 || options->workers > WEFT_LIMIT_WORKERS ||
        options->workers_max > WEFT_LIMIT_WORKERS)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "a shard engine for %u workers, later up to %u: allowed are 1 to %u",
                              options->workers, options->workers_max, WEFT_LIMIT_WORKERS);
    if (options->receive_bytes_max < 4096)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "receive memory of %zu bytes: at least 4096 are needed",
                              options->receive_bytes_max);
    if (options->round_deadline_ns == 0)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "a round's deadline of 0: every wait needs a deadline above 0");
    return WEFT_OK;
}

enum weft_status weft_shard_engine_create(struct weft_env *env,
                                          const struct weft_shard_engine_options *options,
                                          struct weft_shard_engine **out, struct weft_error *error)
{
    WEFT_TRY(options_check(options, error));
    struct weft_shard_engine *engine = weft_alloc_zero(env, sizeof *engine);
    if (!engine) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a shard engine");
    engine->env = env;
    engine->transport = options->transport;
    engine->loop = options->loop;
    engine->events = options->events;
    engine->kernels = weft_kernels();
    engine->settings.job = options->job;
    engine->endpoint = options->endpoint;
    engine->epoch = engine->epoch_change.newest_epoch = options->epoch;
    engine->workers = options->workers;
    engine->members.workers_max =
        options->workers_max > options->workers ? options->workers_max : options->workers;
    engine->settings.elastic = options->elastic;
    engine->settings.round_deadline_ns = options->round_deadline_ns;
    engine->settings.hash_every = options->hash_every;
    engine->settings.wire_version = options->wire_version;
    engine->settings.round_bytes = options->round_bytes;
    engine->settings.maps = weft_transport_abilities(engine->transport) & WEFT_TRANSPORT_MAPS;
    weft_list_init(&engine->queues.waiting);
    weft_list_init(&engine->queues.rounds);
    weft_list_init(&engine->queues.reply_queue);
    weft_list_init(&engine->clock.receive);
    weft_list_init(&engine->clock.waits);
    weft_list_init(&engine->clock.apply);
    weft_list_init(&engine->queues.pulls);
    weft_list_init(&engine->queues.deferred);
    weft_list_init(&engine->epoch_change.newer_epoch);
    weft_list_init(&engine->replication.unsent);
    weft_list_init(&engine->replication.waiting);
    weft_list_init(&engine->replication.acks);
    weft_list_init(&engine->replication.newer_terms);
    weft_list_init(&engine->replication.moves);
    weft_list_init(&engine->replication.leaving);
    engine->replication.mutants = options->mutants;
    engine->replication.report = options->report;
    engine->replication.report_context = options->report_context;
    weft_timer_init(&engine->timers.deadline, deadline_passed);
    weft_timer_init(&engine->timers.retry, retry);
    weft_timer_init(&engine->replication.move_pace.timer, shard_move_on_timer);
    engine->replication.move_pace.rate = options->move_rate;
    weft_timer_init(&engine->timers.release, shard_release_on_timer);
    weft_timer_init(&engine->timers.open, shard_receive_on_timer);
    weft_timer_init(&engine->groups.accepted_timer, shard_groups_on_timer);

    engine->members.worker =
        weft_alloc_zero(env, engine->members.workers_max * sizeof *engine->members.worker);
    engine->epoch_change.next_worker =
        weft_alloc_zero(env, engine->members.workers_max * sizeof *engine->epoch_change.next_worker);
    uint32_t reply_count = 64 + 4 * (engine->members.workers_max < 512 ? engine->members.workers_max : 512);
    if (!engine->members.worker || !engine->epoch_change.next_worker ||
        shard_reply_init(engine, reply_count) < 0 ||
        shard_contributions_init(engine, options->receive_bytes_max) < 0 ||
        shard_groups_init(engine, options->receive_bytes_max) < 0 ||
        (options->keeps_copies && shard_map_init(engine, options->copy_bytes_max) < 0) ||
        shard_arena_init(&engine->memory.arena, env, options->receive_bytes_max, engine->settings.maps) < 0) {
        weft_shard_engine_free(engine);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY,
                              "no memory for a shard engine with %zu bytes of receive memory: lower it",
                              options->receive_bytes_max);
    }
    for (uint32_t i = 0; i < engine->workers; i++)
        engine->members.worker[i] = (struct shard_worker){.endpoint = options->worker_endpoints[i],
                                                  .incarnation = options->worker_incarnations[i]};
    weft_transport_handler(engine->transport, WEFT_CHANNEL_PUSH, shard_request_arrived, engine);
    *out = engine;
    return WEFT_OK;
}

void shard_engine_discard_all(struct weft_shard_engine *engine, struct weft_list *arrivals)
{
    while (!weft_list_empty(arrivals)) {
        struct weft_arrival *arrival = weft_list_first(arrivals, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        weft_transport_discard(engine->transport, arrival);
    }
}

static void cancel_tasks(struct weft_shard_engine *engine)
{
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) {
            weft_loop_compute_cancel(engine->loop, &tensor->chunks[i].work.task);
            tensor->chunks[i].work.computing = false;
        }
    }
}

void weft_shard_engine_close(struct weft_shard_engine *engine)
{
    if (engine->end.closed) return;
    engine->end.closed = true;
    weft_transport_handler(engine->transport, WEFT_CHANNEL_PUSH, NULL, NULL);
    weft_timer_stop(engine->loop, &engine->timers.deadline);
    weft_timer_stop(engine->loop, &engine->timers.retry);
    weft_timer_stop(engine->loop, &engine->replication.move_pace.timer);
    weft_timer_stop(engine->loop, &engine->timers.release);
    weft_timer_stop(engine->loop, &engine->timers.open);
    shard_groups_close(engine);
    shard_snapshot_forget(engine);
    shard_contributions_defer_held(engine);
    shard_engine_discard_all(engine, &engine->queues.pulls);
    shard_engine_discard_all(engine, &engine->queues.deferred);
    shard_engine_discard_all(engine, &engine->epoch_change.newer_epoch);
    shard_map_close(engine);
    cancel_tasks(engine);
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) {
            struct shard_contribution *contributions = tensor->chunks[i].workers.contributions;
            for (uint32_t worker = 0; contributions && worker < engine->workers; worker++) {
                struct shard_contribution *contribution = &contributions[worker];
                if (contribution->arrival) weft_transport_discard(engine->transport, contribution->arrival);
                contribution->arrival = contribution->pull = NULL;
            }
        }
    }
}

void weft_shard_engine_free(struct weft_shard_engine *engine)
{
    if (!engine) return;
    weft_timer_stop(engine->loop, &engine->timers.deadline);
    weft_timer_stop(engine->loop, &engine->timers.retry);
    weft_timer_stop(engine->loop, &engine->replication.move_pace.timer);
    weft_timer_stop(engine->loop, &engine->timers.release);
    weft_timer_stop(engine->loop, &engine->timers.open);
    shard_snapshot_forget(engine);
    cancel_tasks(engine);
    shard_table_free(engine);
    shard_arena_fini(&engine->memory.arena, engine->env);
    weft_free_bytes(engine->env, engine->clock.slot);
    shard_arena_fini(&engine->memory.contributions, engine->env);
    shard_groups_free(engine);
    shard_map_fini(engine);
    shard_reply_fini(engine);
    weft_free_bytes(engine->env, engine->members.worker);
    weft_free_bytes(engine->env, engine->epoch_change.next_worker);
    weft_free_bytes(engine->env, engine);
}

enum weft_status weft_shard_engine_declare(struct weft_shard_engine *engine,
                                           const Weft__Control__Declared *declared, struct weft_error *error)
{
    return shard_table_add(engine, declared, error);
}

void weft_shard_engine_stats(const struct weft_shard_engine *engine,
                             struct weft_shard_engine_stats *stats_out)
{
    *stats_out = engine->stats;
    stats_out->receive_bytes_used = engine->memory.arena.used_bytes;
    stats_out->receive_bytes_peak = engine->memory.arena.peak_bytes;
    stats_out->receive_bytes_max = engine->memory.arena.bytes;
    for (const struct weft_list *at = engine->queues.rounds.next; at != &engine->queues.rounds; at = at->next)
        stats_out->rounds_open++;
    if (engine->work.last_round_ns > 0)
        stats_out->last_round_ns = weft_elapsed_ns(engine->work.last_round_ns, weft_now_ns(engine->env));
    if (weft_list_empty(&engine->queues.rounds)) return;
    const struct shard_chunk *oldest =
        weft_list_first(&engine->queues.rounds, struct shard_chunk, links.round);
    stats_out->oldest_round.ns = weft_elapsed_ns(oldest->open.opened_ns, weft_now_ns(engine->env));
    stats_out->oldest_round.missing = engine->workers - oldest->open.arrived;
    for (uint32_t worker = engine->workers; worker-- > 0;)
        if (oldest->workers.contributions[worker].state == SHARD_CONTRIBUTION_NONE)
            stats_out->oldest_round.rank = worker + 1;
}
