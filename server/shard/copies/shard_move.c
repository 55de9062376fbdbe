/* shard_move.c - the leader's side of a new copy: sends the chunks of a slot, part by part, while it serves.
 *
 *     states, residual, result, clocks, weights --> COPY, one part at a time
 *         --> COPIED of the weights: is_copied; each change: REPLICATE --> REPLICATED
 *     all chunks are copied --> report --> Map with the new copy, and the next term
 *
 * From the first part to the last acknowledgement no round of the chunk closes, so all parts are of one step.
 * Of a codec these are the residual of the combiner and the aggregate of the step's last round. With ssp and
 * asp no contribution is applied meanwhile, and the clocks are a part. Nothing of an
 * open step travels: workers repeat its rounds under the term that makes the copy a leader. A result of 16
 * bits is the weights rounded, by the new copy.
 * A skipped step, which also changes the chunk, starts it again. A chunk that holds a sum waits for its
 * factor. A chunk that is copied is held like one with a copy: no reply leaves before the new copy holds the
 * step. So the coordinator may name the copy at any time after the report. A new copy that refuses a change
 * ends the move.
 *
 * Bounds: with server.move_rate a chunk starts after (bytes of earlier chunks / rate) seconds.
 * WINDOW_BYTES of parts are under way from one engine, or one larger part. If either end is lost, Map
 * brings a new term without the new copy, and the move ends without effect. */
#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

#define WINDOW_BYTES ((size_t)4 << 20)
#define REPORT_NS WEFT_MS(500)
/* weights, residual, states; result, verdict, clocks */
enum { PARTS_MAX = 2 * (2 + WEFT_OPTIMIZER_STATES_MAX) + 3 };

/* ---- reports ---- */

static void report(struct shard_move *move, bool is_done)
{
    struct weft_shard_engine *engine = move->engine;
    move->reported_ns = weft_now_ns(engine->env);
    if (!engine->replication.report) return;
    engine->replication.report(engine->replication.report_context,
                               &(struct weft_slot_report){.slot = move->slot,
                                                          .term = move->term,
                                                          .to = move->to,
                                                          .chunks = move->copied,
                                                          .bytes = move->bytes,
                                                          .is_done = is_done,
                                                          .status = move->failed});
}

static void report_if_due(struct shard_move *move)
{
    const uint64_t now_ns = weft_now_ns(move->engine->env);
    const bool is_done = move->copied == move->chunks || move->is_early;
    if (is_done && move->reported != move->chunks + 1) {
        move->reported = move->chunks + 1;
        report(move, true);
    } else if (!is_done && weft_elapsed_ns(move->reported_ns, now_ns) >= REPORT_NS) {
        report(move, false);
    }
}

/* ---- the parts of a chunk: what the last close overwrote, states, residual, result, weights ---- */

struct part {
    const void *data; /* NULL: the weights of a chunk without */
    size_t bytes;
    uint8_t round, flags;
};

struct parts {
    struct part all[PARTS_MAX];
    uint32_t count;
};

/* Repeated requests of the last step get what its verdict has left. */
static bool has_verdict(const struct shard_chunk *chunk)
{
    const struct shard_verdict *verdict = chunk->verdict;
    return verdict && verdict->applied_step != 0 && verdict->applied_step == chunk->closed_step;
}

static void add_array(struct parts *parts, const struct shard_chunk *chunk, const float *values,
                      uint8_t round, uint8_t flags)
{
    parts->all[parts->count++] =
        (struct part){values, values ? chunk->count * sizeof *values : 0, round, flags};
}

/* An array, and first as it was before the last close, if that may be undone. */
static void add_state(struct parts *parts, const struct shard_chunk *chunk, const float *values,
                      const float *before, uint8_t round)
{
    if (!values) return;
    if (chunk->backup.valid) add_array(parts, chunk, before, round, WEFT_WIRE_COPY_BEFORE);
    add_array(parts, chunk, values, round, 0);
}

/* A worker may request the result of the last step again. During an open step all have it. */
static bool has_result(const struct shard_chunk *chunk)
{
    return chunk->result.is_resendable && chunk->result.step == chunk->closed_step &&
           chunk->result.round + 1u == chunk->coding.rounds &&
           !(chunk->tensor->engine->replication.mutants & WEFT_MUTANT_COPY_WITHOUT_RESULT);
}

static uint32_t parts_of(const struct shard_chunk *chunk, struct parts *parts)
{
    const uint32_t mutants = chunk->tensor->engine->replication.mutants;
    const struct shard_backup *backup = &chunk->backup;
    const float *residual = chunk->coding.combiner ? weft_combiner_residual(chunk->coding.combiner) : NULL;
    parts->count = 0;
    if (backup->valid) add_array(parts, chunk, backup->values, WEFT_WIRE_PART_WEIGHTS, WEFT_WIRE_COPY_BEFORE);
    for (uint8_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX && !(mutants & WEFT_MUTANT_COPY_WITHOUT_STATES); s++)
        add_state(parts, chunk, chunk->states[s], backup->states[s], s);
    if (!(mutants & WEFT_MUTANT_COPY_WITHOUT_RESIDUAL))
        add_state(parts, chunk, residual, backup->residual, WEFT_WIRE_PART_RESIDUAL);
    if (chunk->coding.combiner && has_result(chunk))
        parts->all[parts->count++] =
            (struct part){chunk->result.data, chunk->result.bytes, WEFT_WIRE_PART_RESULT, 0};
    if (has_verdict(chunk))
        parts->all[parts->count++] =
            (struct part){&chunk->verdict->last, sizeof chunk->verdict->last, WEFT_WIRE_PART_VERDICT, 0};
    if (chunk->clock && !(mutants & WEFT_MUTANT_COPY_WITHOUT_CLOCKS))
        parts->all[parts->count++] =
            (struct part){chunk->clock->counts, shard_clock_counts_bytes(chunk), WEFT_WIRE_PART_CLOCKS, 0};
    const uint8_t flags = (uint8_t)((backup->valid ? WEFT_WIRE_COPY_UNDO : 0) |
                                    (has_result(chunk) ? WEFT_WIRE_COPY_RESULT : 0) |
                                    (chunk->initialised ? WEFT_WIRE_COPY_FIRST : 0));
    add_array(parts, chunk, chunk->values, WEFT_WIRE_PART_WEIGHTS, flags);
    return parts->count;
}

static struct weft_wire_header header_of(const struct shard_chunk *chunk, const struct part *part)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    const bool is_before = part->flags & WEFT_WIRE_COPY_BEFORE,
               is_skipped = chunk->error.status == WEFT_ERR_SKIPPED;
    return (struct weft_wire_header){
        .kind = WEFT_WIRE_COPY,
        .codec = part->round == WEFT_WIRE_PART_RESULT ? (uint8_t)chunk->coding.codec.id
                                                      : (uint8_t)WEFT_CODEC_DENSE,
        .dtype = WEFT_F32,
        .round = part->round,
        .flags = part->flags,
        .skips = chunk->backup.skips,
        .job = engine->settings.job,
        .incarnation = is_skipped && !is_before ? chunk->error.step : 0,
        .epoch = engine->epoch,
        .tensor = chunk->tensor->id,
        .chunk = chunk->index,
        .step = is_before ? chunk->backup.step : chunk->closed_step,
        .payload_bytes = part->bytes,
        .weight = part->round == WEFT_WIRE_PART_WEIGHTS && !is_before && has_verdict(chunk),
        .lr = chunk->result.lr,
        .weight_sum = chunk->result.weight_sum,
        .term = shard_map_term(chunk),
    };
}

/* ---- one chunk ---- */

static void let_close(struct shard_chunk_move *at)
{
    struct shard_chunk *chunk = at->chunk;
    if (!at->is_started) return;
    at->is_started = false;
    chunk->result.sends--;
    if (chunk->tensor->engine->end.closed) return;
    if (chunk->clock) shard_clock_schedule(chunk);
    else if (!shard_result_is_in_use(chunk)) shard_round_result_released(chunk);
}

static bool can_start(const struct shard_chunk_move *at)
{
    const struct shard_chunk *chunk = at->chunk;
    return chunk->tensor->engine->epoch >= at->epoch_least && !chunk->work.computing &&
           chunk->open.phase != SHARD_PHASE_INSTALLING && chunk->open.phase != SHARD_PHASE_APPLYING &&
           !chunk->copy.payload && !(chunk->verdict && chunk->verdict->step != 0);
}

static void free_if_ended(struct shard_chunk *chunk)
{
    struct shard_chunk_move *at = chunk->move;
    if (at->move || at->is_sending) return;
    chunk->move = NULL;
    weft_free_bytes(chunk->tensor->engine->env, at);
}

static void sent(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk_move *at = weft_container_of(completion, struct shard_chunk_move, sent);
    struct shard_chunk *chunk = at->chunk;
    struct weft_shard_engine *engine = chunk->tensor->engine;
    at->is_sending = false;
    if (status < 0 && at->move && at->move->failed == WEFT_OK) at->move->failed = status;
    free_if_ended(chunk);
    shard_replicate_check(chunk);
    shard_engine_resume(engine);
}

static void next_part(const struct shard_chunk_move *at, struct part *part_out, bool *is_last_out)
{
    struct parts parts;
    const uint32_t count = parts_of(at->chunk, &parts), next = at->is_started ? at->part : 0,
                   number = next < count ? next : count - 1;
    *part_out = parts.all[number];
    *is_last_out = number + 1 == count;
}

/* WEFT_ERR_AGAIN: not now. */
static enum weft_status send_part(struct shard_chunk_move *at, const struct part *part, bool is_last)
{
    struct shard_chunk *chunk = at->chunk;
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (!at->is_started) {
        at->is_started = true;
        at->is_changed = false;
        at->part = 0;
        at->step = chunk->closed_step;
        at->skips = chunk->backup.skips;
        chunk->result.sends++;
    }
    const struct weft_wire_header header = header_of(chunk, part);
    weft_completion_init(&at->sent, 1, sent);
    WEFT_TRY(shard_replicate_send(engine, at->move->to, &header, part->data, &at->sent));
    at->is_sending = at->awaits_ack = true;
    at->flags = part->flags;
    at->round = part->round;
    at->bytes = part->bytes;
    engine->replication.moving_bytes += part->bytes;
    engine->stats.copied_bytes += part->bytes;
    at->move->is_early = is_last && at->move->copied + 1 == at->move->chunks &&
                         engine->replication.mutants & WEFT_MUTANT_COPY_REPORTED_EARLY;
    return WEFT_OK;
}

/* A skipped step has changed the chunk since the first part. */
static bool has_changed(const struct shard_chunk_move *at)
{
    return at->is_changed || at->step != at->chunk->closed_step || at->skips != at->chunk->backup.skips;
}

static void ack_received(struct shard_chunk_move *at)
{
    at->awaits_ack = false;
    at->chunk->tensor->engine->replication.moving_bytes -= at->bytes;
}

static void part_acked(struct shard_chunk_move *at)
{
    const bool is_last = !(at->flags & WEFT_WIRE_COPY_BEFORE) && at->round == WEFT_WIRE_PART_WEIGHTS;
    ack_received(at);
    at->move->bytes += at->bytes;
    if (has_changed(at)) let_close(at);
    else if (!is_last) at->part++;
    else {
        at->is_copied = true;
        at->move->copied++;
        let_close(at);
        return;
    }
    weft_list_append(&at->move->parts, &at->link);
}

/* The new copy is in a later epoch, which this engine enters when no part is under way. Then all parts are
 * sent again. */
static void part_refused(struct shard_chunk_move *at)
{
    ack_received(at);
    at->epoch_least = at->chunk->tensor->engine->epoch + 1;
    let_close(at);
    weft_list_append(&at->move->parts, &at->link);
}

bool shard_move_change(struct shard_chunk *chunk)
{
    struct shard_chunk_move *at = chunk->move;
    if (!at || !at->move) return false;
    if (!at->is_copied) {
        at->is_changed = true;
        return false;
    }
    at->is_due = true;
    weft_list_remove(&at->link);
    weft_list_append(&at->move->changes, &at->link);
    return true;
}

void shard_move_acked(struct shard_chunk *chunk, uint32_t peer_id, const struct weft_wire_header *header)
{
    struct shard_chunk_move *at = chunk->move;
    if (!at || !at->move || at->move->to != peer_id || header->term != at->move->term) return;
    const bool is_change = header->kind == WEFT_WIRE_REPLICATED && at->is_due &&
                           header->step == chunk->hold.step && header->round == chunk->hold.part;
    const bool is_part = header->kind == WEFT_WIRE_COPIED && at->awaits_ack && header->flags == at->flags &&
                         header->round == at->round;
    if (!is_change && !is_part) return;
    if (is_part && header->status == WEFT_ERR_AGAIN) {
        part_refused(at);
    } else if (header->status < 0) {
        /* WEFT_ERR_STALE: the Map that ends this move is on the way */
        if (header->status != WEFT_ERR_STALE && at->move->failed == WEFT_OK)
            at->move->failed = (enum weft_status)header->status;
    } else if (is_part) {
        part_acked(at);
    } else {
        at->is_due = false;
        weft_list_remove(&at->link);
        shard_replicate_check(chunk);
    }
    shard_engine_resume(chunk->tensor->engine);
}

/* ---- a slot ---- */

static enum weft_status add_chunk(struct shard_move *move, struct shard_chunk *chunk)
{
    if (!chunk->move) {
        chunk->move = weft_alloc_zero(move->engine->env, sizeof *chunk->move);
        if (!chunk->move) return WEFT_ERR_NO_MEMORY;
    }
    struct shard_chunk_move *at = chunk->move;
    const bool is_sending = at->is_sending; /* of a move that has ended */
    const struct weft_completion before = at->sent;
    *at = (struct shard_chunk_move){.move = move, .chunk = chunk, .sent = before, .is_sending = is_sending};
    weft_list_init(&at->link);
    weft_list_append(&move->parts, &at->link);
    move->chunks++;
    return WEFT_OK;
}

static void remove_chunk(struct shard_chunk *chunk)
{
    struct shard_chunk_move *at = chunk->move;
    if (!at || !at->move) return;
    WEFT_ASSERT(at->move->chunks > 0);
    if (at->awaits_ack) ack_received(at);
    at->move->chunks--;
    at->move->copied -= at->is_copied;
    weft_list_remove(&at->link);
    at->move = NULL;
    at->is_due = false;
    let_close(at);
    free_if_ended(chunk);
}

static void add_tensor(struct shard_move *move, struct shard_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->chunk_count && move->failed == WEFT_OK; i++) {
        struct shard_chunk *chunk = &tensor->chunks[i];
        if (chunk->placement.slot == move->slot && (!chunk->move || !chunk->move->move))
            move->failed = add_chunk(move, chunk);
    }
}

static struct shard_move *find(const struct weft_shard_engine *engine, uint32_t slot)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &engine->replication.moves) {
        struct shard_move *move = weft_container_of(node, struct shard_move, link);
        if (move->slot == slot) return move;
    }
    return NULL;
}

void weft_shard_engine_copy(struct weft_shard_engine *engine, uint32_t slot, uint32_t term, uint32_t to)
{
    if (engine->end.closed || engine->end.failed < 0 || !shard_map_is_on(engine) || slot >= WEFT_LIMIT_SLOTS)
        return;
    const struct shard_map_slot *at = &engine->replication.slots[slot];
    struct shard_move *move = find(engine, slot);
    if (at->term != term || at->leader != engine->endpoint || to == engine->endpoint || to + 1 == at->copy)
        return;
    if (move) {
        if (move->to == to) move->reported = 0;
        shard_engine_resume(engine);
        return;
    }
    move = weft_alloc_zero(engine->env, sizeof *move);
    if (!move) return; /* the coordinator repeats its request */
    *move = (struct shard_move){
        .engine = engine, .slot = slot, .term = term, .to = to, .reported_ns = weft_now_ns(engine->env)};
    weft_list_init(&move->parts);
    weft_list_init(&move->changes);
    weft_list_init(&move->link);
    weft_list_append(&engine->replication.moves, &move->link);
    for (uint32_t id = 0; id < engine->table.capacity; id++)
        if (engine->table.tensors[id] && !engine->table.tensors[id]->released)
            add_tensor(move, engine->table.tensors[id]);
    shard_engine_resume(engine);
}

void shard_move_tensor_added(struct shard_tensor *tensor)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &tensor->engine->replication.moves)
        add_tensor(weft_container_of(node, struct shard_move, link), tensor);
}

void shard_move_tensor_released(struct shard_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->chunk_count; i++) remove_chunk(&tensor->chunks[i]);
}

void shard_move_end_chunk(struct shard_chunk *chunk)
{
    if (shard_move_holds(chunk->move)) chunk->hold.is_due = true;
    remove_chunk(chunk);
}

static void move_free(struct shard_move *move)
{
    weft_list_remove(&move->link);
    weft_free_bytes(move->engine->env, move);
}

void shard_move_end(struct weft_shard_engine *engine, uint32_t slot)
{
    struct shard_move *move = find(engine, slot);
    if (move) move_free(move);
}

void shard_move_fini(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->replication.moves))
        move_free(weft_list_first(&engine->replication.moves, struct shard_move, link));
}

/* ---- sending ---- */

void shard_move_on_timer(struct weft_timer *timer)
{
    shard_engine_resume(weft_container_of(timer, struct weft_shard_engine, replication.move_pace.timer));
}

/* A chunk that has started continues: its rounds wait for it. false: the timer continues. */
static bool is_in_pace(const struct shard_chunk_move *at)
{
    struct weft_shard_engine *engine = at->move->engine;
    const uint64_t due_ns = engine->replication.move_pace.due_ns;
    struct weft_timer *timer = &engine->replication.move_pace.timer;
    if (at->is_started || due_ns <= weft_now_ns(engine->env)) return true;
    if (!weft_timer_is_running(timer) && weft_timer_start(engine->loop, timer, due_ns) < 0)
        shard_engine_schedule_retry(engine);
    return false;
}

static void keep_pace(struct weft_shard_engine *engine, size_t bytes)
{
    const uint64_t rate = engine->replication.move_pace.rate, now_ns = weft_now_ns(engine->env);
    uint64_t *due_ns = &engine->replication.move_pace.due_ns;
    if (rate == 0) return;
    if (*due_ns < now_ns) *due_ns = now_ns;
    *due_ns = weft_deadline_ns(*due_ns, (uint64_t)((double)bytes / (double)rate * 1e9));
}

/* false: the transport is full. If the window is, the next acknowledgement continues. */
static bool send_parts(struct shard_move *move)
{
    const struct shard_replication *replication = &move->engine->replication;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &move->parts) {
        struct shard_chunk_move *at = weft_container_of(node, struct shard_chunk_move, link);
        struct part part;
        bool is_last;
        if (at->is_sending || (!at->is_started && !can_start(at))) continue;
        if (!is_in_pace(at)) continue;
        next_part(at, &part, &is_last);
        if (replication->moving_bytes > 0 && replication->moving_bytes + part.bytes > WINDOW_BYTES)
            return true;
        const enum weft_status status = send_part(at, &part, is_last);
        if (status == WEFT_ERR_AGAIN) return false;
        if (status < 0) move->failed = status;
        if (status < 0) return true;
        keep_pace(move->engine, part.bytes);
        weft_list_remove(&at->link);
    }
    return true;
}

static bool send_changes(struct shard_move *move)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &move->changes) {
        struct shard_chunk_move *at = weft_container_of(node, struct shard_chunk_move, link);
        if (at->is_sending) continue;
        weft_completion_init(&at->sent, 1, sent);
        const enum weft_status status = shard_replicate_change(at->chunk, move->to, &at->sent);
        if (status == WEFT_ERR_AGAIN) return false;
        if (status < 0) move->failed = status;
        if (status < 0) return true;
        at->is_sending = true;
        weft_list_remove(&at->link);
    }
    return true;
}

void shard_move_pump(struct weft_shard_engine *engine)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &engine->replication.moves) {
        struct shard_move *move = weft_container_of(node, struct shard_move, link);
        if (move->failed == WEFT_OK && (!send_changes(move) || !send_parts(move)))
            shard_engine_schedule_retry(engine);
        if (move->failed == WEFT_OK) report_if_due(move);
        else if (move->reported != UINT32_MAX) {
            move->reported = UINT32_MAX;
            report(move, false);
        }
    }
}
