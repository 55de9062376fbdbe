/* fleet_copies.c - the fleet's coordinator for jobs with copies, and how a worker follows its Map. */
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "server/shard/shard_clock.h"
#include "server/shard/shard_verdict.h"
#include "shard_fleet.h"

/* ---- Map ---- */

/* Enters the slots: an engine ignores those whose term it has. */
static void slots_enter(struct fleet_shard *shard, const struct fleet_chunk *chunks)
{
    struct fleet *fleet = shard->fleet;
    Weft__Control__Slot slots[FLEET_CHUNKS_MAX], *pointers[FLEET_CHUNKS_MAX];
    uint32_t copies[FLEET_CHUNKS_MAX];
    Weft__Control__Map map = WEFT__CONTROL__MAP__INIT;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct fleet_chunk *chunk = &chunks[c];
        weft__control__slot__init(&slots[c]);
        slots[c].slot = c;
        slots[c].term = chunk->term;
        slots[c].leader = fleet->shard[chunk->shard].endpoint;
        copies[c] = chunk->copy ? fleet->shard[chunk->copy - 1].endpoint : 0;
        slots[c].n_copies = chunk->copy > 0;
        slots[c].copies = &copies[c];
        pointers[c] = &slots[c];
    }
    map.n_slots = fleet->chunk_count;
    map.slots = pointers;
    weft_shard_engine_map(shard->engine, &map);
}

/* The slots as they are now, then as they were before the last change, which must have no effect. */
static void shard_map(struct fleet_shard *shard)
{
    struct fleet *fleet = shard->fleet;
    slots_enter(shard, fleet->chunk);
    slots_enter(shard, fleet->chunk_before);
    for (uint32_t c = 0; c < fleet->chunk_count; c++)
        fleet->counts.terms_fallen += shard->engine->replication.slots[c].term != fleet->chunk[c].term;
}

/* Call before slots change. */
static void keep_slots(struct fleet *fleet)
{
    memcpy(fleet->chunk_before, fleet->chunk, sizeof fleet->chunk_before);
}

static void close_lost(struct fleet *fleet, struct weft_transport *transport, uint32_t own)
{
    for (uint32_t s = 0; s < fleet->options.shards && (fleet->closes_lost || own >= 100); s++)
        if (fleet->shard[s].given_up && fleet->shard[s].endpoint != own)
            weft_transport_fail_peer(transport, fleet->shard[s].endpoint, WEFT_ERR_PEER_LOST, "lost");
}

static void on_shard_map(struct weft_timer *timer)
{
    struct fleet_shard *shard = weft_container_of(timer, struct fleet_shard, map_timer);
    close_lost(shard->fleet, shard->transport, shard->endpoint);
    shard_map(shard);
}

static void on_worker_map(struct weft_timer *timer)
{
    struct fleet_worker *worker = weft_container_of(timer, struct fleet_worker, map.timer);
    struct fleet *fleet = worker->fleet;
    close_lost(fleet, worker->transport, worker->endpoint);
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        worker->map.leader[c] = fleet->chunk[c].shard;
        worker->map.term[c] = fleet->chunk[c].term;
    }
    for (uint32_t c = 0; c < fleet->chunk_count; c++)
        if (worker->request[c].timed) fleet_copies_resend(&worker->request[c]);
}

void fleet_copies_begin(struct fleet *fleet)
{
    const uint32_t shards = fleet->options.shards - fleet->options.late;
    WEFT_ASSERT(shards > 1);
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        fleet->chunk[c].term = 1;
        fleet->chunk[c].copy = (fleet->chunk[c].shard + 1) % shards + 1;
    }
    keep_slots(fleet);
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        weft_timer_init(&fleet->shard[s].map_timer, on_shard_map);
        if (!fleet->shard[s].is_absent) shard_map(&fleet->shard[s]);
    }
    for (uint32_t w = 0; w < fleet->options.workers; w++) {
        weft_timer_init(&fleet->worker[w].map.timer, on_worker_map);
        on_worker_map(&fleet->worker[w].map.timer);
    }
}

static void start_timer(struct fleet *fleet, struct weft_env *env, struct weft_loop *loop,
                        struct weft_timer *timer, uint64_t delay_ns)
{
    const uint64_t at_ns = weft_now_ns(env) + fleet_random(fleet) % (delay_ns + 1);
    if (weft_timer_is_running(timer)) return; /* its Map has the newest slots */
    enum weft_status status = weft_timer_start(loop, timer, at_ns);
    WEFT_ASSERT(status == WEFT_OK);
}

/* The slots have changed: all live engines and workers get the Map within delay_ns. */
static void send_map(struct fleet *fleet, uint64_t delay_ns)
{
    for (uint32_t s = 0; s < fleet->options.shards; s++)
        if (!fleet->shard[s].given_up && !fleet->shard[s].killed && !fleet->shard[s].is_absent)
            start_timer(fleet, fleet->shard[s].env, fleet->shard[s].loop, &fleet->shard[s].map_timer,
                        delay_ns);
    for (uint32_t w = 0; w < fleet->options.workers; w++)
        if (!fleet->worker[w].killed)
            start_timer(fleet, fleet->worker[w].env, fleet->worker[w].loop, &fleet->worker[w].map.timer,
                        delay_ns);
}

void fleet_fail_over(struct fleet *fleet, uint32_t shard, uint64_t delay_ns)
{
    const uint32_t mutants = fleet->options.faults.map_mutants;
    fleet->shard[shard].given_up = true;
    keep_slots(fleet);
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        struct fleet_chunk *chunk = &fleet->chunk[c];
        if (chunk->shard != shard && chunk->copy != shard + 1 && chunk->move_to != shard + 1) continue;
        const bool leads = chunk->shard == shard;
        if (leads && mutants & FLEET_MUTANT_WRONG_LEADER) chunk->shard = chunk->copy % fleet->options.shards;
        else if (leads && mutants & FLEET_MUTANT_UNFINISHED_COPY && chunk->move_to)
            chunk->shard = chunk->move_to - 1;
        else if (leads) chunk->shard = chunk->copy - 1;
        if (leads || chunk->copy == shard + 1) chunk->copy = 0;
        chunk->move_to = 0;
        chunk->hands_over = false;
        if (!(mutants & FLEET_MUTANT_SAME_TERM)) chunk->term++;
    }
    send_map(fleet, delay_ns);
}

/* ---- moves ---- */

bool fleet_can_lose(const struct fleet *fleet, uint32_t shard)
{
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct fleet_chunk *chunk = &fleet->chunk[c];
        if (chunk->shard == shard && (chunk->copy == 0 || fleet->shard[chunk->copy - 1].given_up))
            return false;
    }
    return !fleet->shard[shard].given_up && !fleet->shard[shard].is_absent;
}

/* No effect at an engine without the newest Map. */
static void ask(struct fleet *fleet, uint32_t chunk_number)
{
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    struct weft_shard_engine *leader = fleet->shard[chunk->shard].engine;
    if (fleet->shard[chunk->shard].killed) return;
    if (chunk->move_to)
        weft_shard_engine_copy(leader, chunk_number, chunk->term, fleet->shard[chunk->move_to - 1].endpoint);
    if (chunk->hands_over) weft_shard_engine_hand_over(leader, chunk_number, chunk->term);
}

void fleet_copy(struct fleet *fleet, uint32_t chunk_number, uint32_t shard)
{
    struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    if (chunk->move_to || chunk->hands_over || shard == chunk->shard || shard + 1 == chunk->copy ||
        fleet->shard[shard].given_up || fleet->shard[shard].is_absent || fleet->shard[shard].leaves ||
        fleet->shard[chunk->shard].given_up)
        return;
    chunk->move_to = shard + 1;
    ask(fleet, chunk_number);
}

void fleet_hand_over(struct fleet *fleet, uint32_t chunk_number)
{
    struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    if (chunk->move_to || chunk->hands_over || chunk->copy == 0 || fleet->shard[chunk->shard].given_up)
        return;
    chunk->hands_over = true;
    ask(fleet, chunk_number);
}

void fleet_moves_repeat(struct fleet *fleet)
{
    for (uint32_t c = 0; c < fleet->chunk_count; c++) ask(fleet, c);
}

/* ---- further shards, and shards that leave ---- */

bool fleet_is_live(const struct fleet *fleet, uint32_t shard)
{
    const struct fleet_shard *at = &fleet->shard[shard];
    return !at->killed && !at->given_up && !at->is_absent && !at->leaves;
}

uint32_t fleet_live_shards(const struct fleet *fleet)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < fleet->options.shards; s++) count += fleet_is_live(fleet, s);
    return count;
}

void fleet_add(struct fleet *fleet, uint32_t shard)
{
    const uint32_t faults = fleet->options.faults.map_mutants;
    struct weft_error error = {0};
    if (!fleet->shard[shard].is_absent) return;
    fleet_connect_shard(fleet, shard, faults & FLEET_MUTANT_ADDED_UNCONNECTED ? 1 : 0);
    fleet->shard[shard].is_absent = false;
    fleet->counts.added++;
    shard_map(&fleet->shard[shard]);
    for (uint32_t t = 0; t < fleet->options.tensor_count && !(faults & FLEET_MUTANT_ADDED_UNDECLARED); t++) {
        const enum weft_status status = fleet_declare(fleet, t, fleet->shard[shard].engine, &error);
        WEFT_ASSERT(status == WEFT_OK);
    }
    fleet->shard[shard].allocations_declared = fleet->shard[shard].allocations;
}

static bool is_at(const struct fleet_chunk *chunk, uint32_t shard)
{
    return chunk->shard == shard || chunk->copy == shard + 1;
}

void fleet_drain(struct fleet *fleet, uint32_t shard)
{
    if (!fleet_is_live(fleet, shard) || fleet_live_shards(fleet) < 3) return;
    fleet->shard[shard].leaves = true;
}

/* true: the shard has no chunk. */
static bool drain_continue(struct fleet *fleet, uint32_t shard)
{
    bool is_empty = true;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct fleet_chunk *chunk = &fleet->chunk[c];
        if (!is_at(chunk, shard)) continue;
        is_empty = false;
        if (chunk->shard == shard) fleet_hand_over(fleet, c);
        else fleet_copy(fleet, c, (uint32_t)(fleet_random(fleet) % fleet->options.shards));
    }
    return is_empty;
}

void fleet_drains_continue(struct fleet *fleet)
{
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        struct fleet_shard *shard = &fleet->shard[s];
        if (!shard->leaves || shard->given_up || shard->killed) continue;
        if (fleet_live_shards(fleet) < 2) shard->leaves = false; /* no other can have its chunks */
        else if (drain_continue(fleet, s)) {
            fleet_fail_over(fleet, s, fleet->map_delay_ns); /* a Map without slots: it has left */
            fleet->counts.left++;
        }
    }
}

/* As `weft rebalance --by load` measures them: bytes of contributions by the time of work. A world is shorter
 * than the shortest time that counts as a measurement, so it counts many times. */
enum { AS_LONG = 1000 };
static void measure_speeds(const struct fleet *fleet, uint32_t speeds_out[FLEET_SHARDS_MAX])
{
    struct coordinator_load loads[FLEET_SHARDS_MAX] = {{0}};
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        struct weft_shard_engine_stats stats;
        if (!fleet_is_live(fleet, s)) continue;
        weft_shard_engine_stats(fleet->shard[s].engine, &stats);
        loads[s].bytes = (double)stats.load.bytes * AS_LONG;
        loads[s].ns = (double)stats.load.ns * AS_LONG;
    }
    coordinator_load_speeds(loads, fleet->options.shards, speeds_out);
}

/* Moves a chunk of one shard to another one. */
static void move_from(struct fleet *fleet, uint32_t from, uint32_t to)
{
    uint32_t number = UINT32_MAX;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        if (fleet->chunk[c].shard != from) continue;
        number = c;
        if (fleet->chunk[c].copy == to + 1) break;
    }
    if (number == UINT32_MAX) return;
    if (fleet->chunk[number].copy == to + 1) fleet_hand_over(fleet, number);
    else fleet_copy(fleet, number, to);
}

void fleet_rebalance(struct fleet *fleet, bool by_load)
{
    uint32_t led[FLEET_SHARDS_MAX] = {0}, speed[FLEET_SHARDS_MAX], most = UINT32_MAX, least = UINT32_MAX;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) led[fleet->chunk[c].shard]++;
    for (uint32_t s = 0; s < FLEET_SHARDS_MAX; s++) speed[s] = COORDINATOR_SPEED_FULL;
    if (by_load) measure_speeds(fleet, speed);
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        if (!fleet_is_live(fleet, s)) continue;
        if (most == UINT32_MAX || led[s] * speed[most] > led[most] * speed[s]) most = s;
        if (least == UINT32_MAX || led[s] * speed[least] < led[least] * speed[s]) least = s;
    }
    if (most == UINT32_MAX || (led[least] + 1) * speed[most] >= led[most] * speed[least]) return;
    fleet->counts.unloaded += speed[most] < COORDINATOR_SPEED_FULL;
    move_from(fleet, most, least);
}

/* The last change of a chunk with a clock, else the step, that the shard has or holds. */
static uint64_t step_at(const struct fleet *fleet, uint32_t shard, uint32_t chunk_number)
{
    const struct shard_chunk *chunk = fleet_chunk_at(fleet, shard, chunk_number);
    const bool is_sum = chunk->copy.request.step > 0 && chunk->copy.request.round == WEFT_WIRE_CHANGE_HELD;
    const bool is_held =
        chunk->copy.payload && !chunk->copy.is_part && chunk->copy.received.count == 0 && !is_sum;
    return is_held ? chunk->copy.request.step : chunk->clock ? chunk->clock->changes : chunk->closed_step;
}

/* The contribution of the worker that the shard has applied, or holds. */
static uint64_t clock_at(const struct fleet *fleet, uint32_t shard, uint32_t chunk_number, uint32_t rank)
{
    const struct shard_chunk *chunk = fleet_chunk_at(fleet, shard, chunk_number);
    const bool is_held = chunk->copy.payload && !chunk->copy.is_part && chunk->copy.received.count == 0 &&
                         chunk->copy.request.step > 0 && chunk->copy.rank == rank;
    return chunk->clock->counts->clock[rank] + is_held;
}

/* The shard has every contribution whose result a worker has. */
static bool has_answered(const struct fleet *fleet, uint32_t shard, uint32_t chunk_number)
{
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    if (!fleet_has_clock(fleet, chunk->tensor)) return step_at(fleet, shard, chunk_number) >= chunk->answered;
    for (uint32_t w = 0; w < fleet->options.workers; w++)
        if (clock_at(fleet, shard, chunk_number, w) < fleet->worker[w].map.answered[chunk_number])
            return false;
    return true;
}

static void handed_over(struct fleet *fleet, uint32_t chunk_number)
{
    struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    const uint32_t leader = chunk->copy - 1;
    chunk->hands_over = false;
    if (fleet->shard[leader].killed) return; /* its loss is on the way */
    if (step_at(fleet, leader, chunk_number) != step_at(fleet, chunk->shard, chunk_number) ||
        fleet_chunk_at(fleet, chunk->shard, chunk_number)->work.computing)
        fleet->counts.unheld++; /* one of them is a step ahead */
    chunk->copy = chunk->shard + 1;
    chunk->shard = leader;
    fleet->counts.handed_over++;
}

/* As the coordinator does. */
void fleet_slot_report(void *context, const struct weft_slot_report *report)
{
    struct fleet *fleet = ((struct fleet_shard *)context)->fleet;
    struct fleet_chunk *chunk = &fleet->chunk[report->slot];
    keep_slots(fleet);
    if (report->term != chunk->term || fleet->shard[chunk->shard].killed) return;
    if (report->is_quiet && chunk->hands_over) {
        handed_over(fleet, report->slot);
    } else if (report->status < 0 && chunk->move_to) {
        chunk->move_to = 0;
        fleet->counts.moves_failed++;
    } else if (report->is_done && chunk->move_to) {
        const uint32_t to = chunk->move_to - 1;
        if (!fleet->shard[to].killed && !has_answered(fleet, to, report->slot)) fleet->counts.unheld++;
        chunk->copy = chunk->move_to;
        chunk->move_to = 0;
        fleet->counts.moved++;
    } else if (report->status == WEFT_ERR_DIVERGED && chunk->copy > 0 &&
               report->to == fleet->shard[chunk->copy - 1].endpoint) {
        chunk->copy = 0;
        fleet->counts.diverged++;
    } else {
        return;
    }
    chunk->term++;
    send_map(fleet, fleet->map_delay_ns);
}

/* ---- workers ---- */

/* is_sum: the sum of a clipped step, which is not closed. */
static bool copy_holds(const struct fleet *fleet, uint32_t chunk_number, uint64_t step, bool is_sum)
{
    const struct fleet_chunk *at = &fleet->chunk[chunk_number];
    if (at->copy == 0 || fleet->shard[at->copy - 1].killed) return true;
    const struct shard_chunk *copy = fleet_chunk_at(fleet, at->copy - 1, chunk_number);
    if (is_sum && (shard_verdict_is_due(copy, step) ||
                   (copy->copy.payload && copy->copy.received.count == 0 && copy->copy.request.step == step)))
        return true;
    return step_at(fleet, at->copy - 1, chunk_number) >= step;
}

/* The copy of a chunk with a clock has the contribution of this worker. */
static bool copy_has_clock(const struct fleet_worker *worker, uint32_t chunk_number, uint64_t step)
{
    const struct fleet *fleet = worker->fleet;
    const struct fleet_chunk *at = &fleet->chunk[chunk_number];
    if (at->copy == 0 || fleet->shard[at->copy - 1].killed) return true;
    return clock_at(fleet, at->copy - 1, chunk_number, worker->rank) >= step;
}

bool fleet_copies_admit(struct fleet_worker *worker, uint32_t chunk_number,
                        const struct weft_wire_header *result)
{
    struct fleet *fleet = worker->fleet;
    if (result->term != worker->map.term[chunk_number]) return false;
    if (worker->map.deaf_chunk == chunk_number + 1 && result->term == 1) return false;
    const bool is_clock = fleet_has_clock(fleet, fleet->chunk[chunk_number].tensor);
    if (is_clock && result->term == fleet->chunk[chunk_number].term && result->status == WEFT_OK &&
        !copy_has_clock(worker, chunk_number, result->step))
        fleet->counts.unheld++;
    const bool ends_step =
        !is_clock &&
        result->round + 1u == weft_codec_rounds(&fleet->codec[fleet->chunk[chunk_number].tensor]);
    if (ends_step && result->term == fleet->chunk[chunk_number].term && result->status == WEFT_OK &&
        !copy_holds(fleet, chunk_number, result->step, result->payload_bytes == sizeof(double)))
        fleet->counts.unheld++;
    return true;
}

static uint32_t rounds_of(const struct fleet *fleet, uint32_t tensor)
{
    return weft_codec_rounds(&fleet->codec[tensor]);
}

/* Other workers may need what this one has pushed: the step is open where it has not the last round's
 * result. */
static bool is_step_open(const struct fleet_request *request)
{
    const struct fleet_worker *worker = request->worker;
    const struct fleet *fleet = worker->fleet;
    const uint32_t t = fleet->chunk[request->chunk_number].tensor;
    const bool repeats = !(fleet->options.faults.map_mutants & FLEET_MUTANT_NO_REPEAT);
    return request->pushed &&
           (!request->settled || (repeats && worker->codecs.round[t] + 1u < rounds_of(fleet, t)));
}

void fleet_copies_resend(struct fleet_request *request)
{
    const struct fleet_worker *worker = request->worker;
    const uint32_t t = worker->fleet->chunk[request->chunk_number].tensor;
    const bool is_busy =
        request->open && (request->sending || request->received.count > 0 || request->answered);
    if (!request->timed || is_busy || worker->training.finished ||
        request->header.term >= worker->map.term[request->chunk_number])
        return;
    if (worker->fleet->codec[t].id == WEFT_CODEC_DENSE ? !request->open : !is_step_open(request)) return;
    request->repeating = request->settled || worker->codecs.round[t] > 0;
    fleet_push_again(request, 0);
}

bool fleet_copies_repeated(struct fleet_request *request)
{
    struct fleet_worker *worker = request->worker;
    struct fleet *fleet = worker->fleet;
    const struct fleet_chunk *chunk = &fleet->chunk[request->chunk_number];
    const uint8_t round = request->header.round;
    if (request->header.term < worker->map.term[request->chunk_number] && is_step_open(request) &&
        request->repeating) {
        fleet_copies_resend(request); /* a Map arrived while the send had not ended */
        return true;
    }
    if (!request->repeating || (round == worker->codecs.round[chunk->tensor] && !request->settled)) {
        request->repeating = false;
        return false;
    }
    size_t all;
    const uint8_t *expected =
        reference_aggregate(fleet->reference, chunk->tensor, worker->training.step, round, &all);
    const struct fleet_share share = fleet_aggregate(fleet, chunk, round);
    const size_t bytes = (size_t)request->result.payload_bytes;
    if (bytes > 0 && memcmp(expected + share.at, request->out, bytes) != 0) fleet->counts.wrong++;
    request->repeating = round < worker->codecs.round[chunk->tensor];
    if (request->repeating) fleet_push_again(request, (uint8_t)(round + 1));
    return true;
}

/* What a copy keeps beside its values equals the leader's. */
static bool is_as_leader(struct fleet *fleet, uint32_t chunk_number, const struct shard_chunk *copy)
{
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    const struct shard_chunk *leader = fleet_shard_chunk(fleet, chunk_number);
    const size_t bytes = chunk->count * sizeof(float);
    const float *residual = copy->coding.combiner ? weft_combiner_residual(copy->coding.combiner) : NULL;
    if (fleet->shard[chunk->shard].killed) return true;
    if (copy->clock &&
        memcmp(copy->clock->counts, leader->clock->counts, shard_clock_counts_bytes(copy)) != 0)
        return false;
    if (residual && memcmp(residual, weft_combiner_residual(leader->coding.combiner), bytes) != 0)
        return false;
    if (copy->half && memcmp(copy->half, leader->half, chunk->count * sizeof *copy->half) != 0) return false;
    return !copy->result.is_resendable || !leader->result.is_resendable ||
           (copy->result.bytes == leader->result.bytes &&
            memcmp(copy->result.data, leader->result.data, copy->result.bytes) == 0);
}

uint32_t fleet_wrong_copies(struct fleet *fleet, uint64_t step)
{
    uint32_t wrong = 0;
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct fleet_chunk *chunk = &fleet->chunk[c];
        if (chunk->copy == 0 || fleet->shard[chunk->copy - 1].killed) continue;
        const struct shard_chunk *copy = fleet_chunk_at(fleet, chunk->copy - 1, c);
        const float *expected = reference_values(fleet->reference, chunk->tensor, step) + chunk->offset;
        wrong += copy->closed_step != step || !is_as_leader(fleet, c, copy) ||
                 memcmp(expected, copy->values, chunk->count * sizeof(float)) != 0;
    }
    return wrong;
}
