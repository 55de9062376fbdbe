/* move.c - copies and leaders of slots that change while the job runs.
 *
 *     slot without a copy --> SlotCopy(slot, to) to its leader --> SlotCopied: progress
 *                                                             --> SlotCopied: done --> Map: term + 1
 *     slot without chunks --> Map at once
 *     a shard drains: slot that it leads --> SlotQuiet, answered --> Map: term + 1, leader and copy exchanged
 *                     slot that it copies --> SlotCopy to another shard, as above; if none can: no copy
 *                     it has no slot left --> Finished --> Leave --> Map(lost)
 *     rebalance: the same requests, for the slots that rebalance.c names, REBALANCE_MOVES at once
 *
 * A move belongs to one term of its slot. The loss of the leader, of the copy or of `to` raises the term
 * (slot_map.c), which ends the move at the leader, too. So does an error that the leader reports, and a
 * leader that reports no progress for PROGRESS_NS. Then the earlier set is in force, and another move
 * begins after PAUSE_NS. Requests are repeated, because a leader without memory for one does not answer. At
 * most MOVES_PER_LEADER slots of an endpoint move at once; the leader bounds the bytes under way. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

#define REPEAT_NS WEFT_SECONDS(1)
#define PROGRESS_NS WEFT_SECONDS(60)
#define PAUSE_NS WEFT_SECONDS(5)
enum { MOVES_PER_LEADER = 2, REBALANCE_MOVES = 4 };

uint32_t coordinator_moves_count(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->slots.count; i++)
        count += coordinator->slots.moves[i].kind != MOVE_NONE;
    return count;
}

/* ---- which endpoint gets a copy ---- */

static uint64_t bytes_at(const struct weft_coordinator *coordinator, uint32_t endpoint)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < slots->count; i++) {
        const struct coordinator_slot *slot = &slots->all[i];
        const bool receives = slots->moves[i].kind == MOVE_COPY && slots->moves[i].to == endpoint;
        if (slot->leader == endpoint || slot->copy == endpoint + 1 || receives) bytes += slot->bytes + 1;
    }
    return bytes;
}

bool coordinator_move_can_receive(const struct weft_coordinator *coordinator, uint32_t leader, uint32_t to)
{
    const struct coordinator_member *shard = coordinator_shard_of(coordinator, to);
    return shard->state == MEMBER_READY && shard->abilities.supports_moves && !shard->is_draining &&
           !shard->addition.is_entering && coordinator_can_copy(coordinator, leader, to);
}

/* The endpoint with the fewest bytes that can have a copy of the slot; UINT32_MAX: none. */
static uint32_t choose_target(const struct weft_coordinator *coordinator, const struct coordinator_slot *slot)
{
    uint32_t best = UINT32_MAX;
    uint64_t best_bytes = 0;
    for (uint32_t e = 0; e < coordinator->table.endpoint_count; e++) {
        if (slot->copy == e + 1 || !coordinator_move_can_receive(coordinator, slot->leader, e)) continue;
        const uint64_t bytes = bytes_at(coordinator, e);
        if (best != UINT32_MAX && bytes >= best_bytes) continue;
        best = e;
        best_bytes = bytes;
    }
    return best;
}

/* ---- requests ---- */

static void send_request(struct weft_coordinator *coordinator, uint32_t number, uint64_t now_ns)
{
    const struct coordinator_slot *slot = &coordinator->slots.all[number];
    struct coordinator_move *move = &coordinator->slots.moves[number];
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__SlotCopy copy = WEFT__CONTROL__SLOT_COPY__INIT;
    Weft__Control__SlotQuiet quiet = WEFT__CONTROL__SLOT_QUIET__INIT;
    const bool is_copy = move->kind == MOVE_COPY;
    copy.slot = quiet.slot = number;
    copy.term = quiet.term = slot->term;
    if (is_copy) copy.to = coordinator->table.endpoints[move->to].id;
    message.body_case =
        is_copy ? WEFT__CONTROL__CONTROL__BODY_SLOT_COPY : WEFT__CONTROL__CONTROL__BODY_SLOT_QUIET;
    if (is_copy) message.slot_copy = &copy;
    else message.slot_quiet = &quiet;
    move->requested_ns = now_ns;
    coordinator_send(coordinator, coordinator_shard_of(coordinator, slot->leader), &message);
}

static bool drains(const struct weft_coordinator *coordinator, uint32_t endpoint)
{
    return coordinator_shard_of(coordinator, endpoint)->is_draining;
}

static void exchange(struct coordinator_slot *slot)
{
    const uint32_t leader = slot->leader;
    slot->leader = slot->copy - 1;
    slot->copy = leader + 1;
}

/* A slot without chunks needs no leader's consent. true: it has changed. */
static bool change_empty(struct weft_coordinator *coordinator, struct coordinator_slot *slot)
{
    if (drains(coordinator, slot->leader) && slot->copy > 0) exchange(slot);
    const uint32_t to = choose_target(coordinator, slot);
    if (to == UINT32_MAX && slot->copy == 0) return false;
    slot->copy = to == UINT32_MAX ? 0 : to + 1;
    if (slot->copy > 0 && drains(coordinator, slot->leader)) {
        slot->leader = slot->copy - 1;
        slot->copy = 0;
    }
    slot->term++;
    return true;
}

/* One pass over all slots. */
struct planning {
    uint64_t now_ns;
    bool *changed;   /* (slots,): it has a new term */
    uint32_t *moves; /* (endpoints,): slots that it leads and that move */
};

static bool planning_begin(const struct weft_coordinator *coordinator, uint64_t now_ns,
                           struct planning *planning)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    *planning = (struct planning){
        now_ns, weft_alloc_zero(coordinator->env, slots->count * sizeof *planning->changed),
        weft_alloc_zero(coordinator->env, coordinator->table.endpoint_count * sizeof *planning->moves)};
    if (!planning->changed || !planning->moves) return false;
    for (uint32_t i = 0; i < slots->count; i++)
        planning->moves[slots->all[i].leader] += slots->moves[i].kind != MOVE_NONE;
    return true;
}

static void planning_end(const struct weft_coordinator *coordinator, struct planning *planning)
{
    weft_free_bytes(coordinator->env, planning->changed);
    weft_free_bytes(coordinator->env, planning->moves);
}

static void begin(struct weft_coordinator *coordinator, uint32_t number, enum coordinator_move_kind kind,
                  uint32_t to, struct planning *planning)
{
    const uint64_t now_ns = planning->now_ns;
    planning->moves[coordinator->slots.all[number].leader]++;
    coordinator->slots.moves[number] =
        (struct coordinator_move){.kind = kind, .to = to, .progress_ns = now_ns};
    coordinator_records_slots(&coordinator->records);
    send_request(coordinator, number, now_ns);
}

/* Begins what the slot needs. true: it has changed already. */
static bool plan(struct weft_coordinator *coordinator, uint32_t number, struct planning *planning)
{
    struct coordinator_slot *slot = &coordinator->slots.all[number];
    const struct coordinator_member *leader = coordinator_shard_of(coordinator, slot->leader);
    const bool has_copy = slot->copy > 0, copy_drains = has_copy && drains(coordinator, slot->copy - 1);
    if (coordinator->slots.moves[number].is_former && slot->term < WEFT_LIMIT_TERM) {
        slot->term++; /* the new term ends it */
        return true;
    }
    if (!has_copy || copy_drains) coordinator->slots.moves[number].leads_next = false;
    const bool hands_over = leader->is_draining || coordinator->slots.moves[number].leads_next;
    if (has_copy && !copy_drains && !hands_over) return false;
    if (slot->term >= WEFT_LIMIT_TERM || planning->now_ns < coordinator->slots.moves[number].not_before_ns ||
        leader->state != MEMBER_READY || !leader->abilities.supports_moves)
        return false;
    if (slot->chunks == 0) return change_empty(coordinator, slot);
    const bool can_begin = planning->moves[slot->leader] < MOVES_PER_LEADER;
    if (hands_over && has_copy && !copy_drains) {
        /* a snapshot under way would end with other leaders */
        if (can_begin && coordinator->snapshot.state == SNAPSHOT_IDLE)
            begin(coordinator, number, MOVE_HAND_OVER, 0, planning);
        return false;
    }
    if (!can_begin) return false;
    const uint32_t to = choose_target(coordinator, slot);
    if (to != UINT32_MAX) begin(coordinator, number, MOVE_COPY, to, planning);
    if (to != UINT32_MAX || !copy_drains || leader->is_draining) return false;
    slot->copy = 0; /* no other shard can have it */
    slot->term++;
    return true;
}

/* ---- ends ---- */

/* The slot has a new term. `failed`: its next move waits. */
static void slot_changed(struct weft_coordinator *coordinator, uint32_t number, bool failed)
{
    struct coordinator_slots *slots = &coordinator->slots;
    bool *changed = weft_alloc_zero(coordinator->env, slots->count * sizeof *changed);
    if (!changed) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY, "the coordinator has no memory for its map");
        return;
    }
    changed[number] = true;
    slots->moved_bytes += slots->moves[number].bytes;
    slots->all[number].term++;
    coordinator_slots_changed(coordinator, changed, NULL, "");
    if (failed) slots->moves[number].not_before_ns = weft_now_ns(coordinator->env) + PAUSE_NS;
    weft_free_bytes(coordinator->env, changed);
}

/* The new copy may wait for a change that it has got in part: only a new term ends the move at the leader. */
static void fail(struct weft_coordinator *coordinator, uint32_t number, const char *why)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "job %s: slot %u cannot be copied from %s to %s: %s; it is tried again", coordinator->job,
             number, coordinator_shard_of(coordinator, slots->all[number].leader)->label,
             coordinator_shard_of(coordinator, slots->moves[number].to)->label, why);
    slot_changed(coordinator, number, true);
}

static void log_all_copied(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->slots.count; i++)
        if (coordinator->slots.all[i].copy == 0) return;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s: each slot has a copy",
             coordinator->job);
}

/* The leader reports that the bits of the copy differ. The coordinator drops the copy and has another one
 * made, as after a loss. */
static void drop_copy(struct weft_coordinator *coordinator, uint32_t number)
{
    struct coordinator_slot *slot = &coordinator->slots.all[number];
    weft_log(
        coordinator->env, WEFT_LOG_ERROR, "coordinator",
        "job %s: the copy of slot %u at %s has other bits than its leader at %s: it is dropped, and made "
        "again",
        coordinator->job, number, coordinator_shard_of(coordinator, slot->copy - 1)->label,
        coordinator_shard_of(coordinator, slot->leader)->label);
    coordinator->slots.diverged++;
    slot->copy = 0;
    slot_changed(coordinator, number, false);
}

static void on_copied(struct weft_coordinator *coordinator, const Weft__Control__SlotCopied *copied)
{
    struct coordinator_slot *slot = &coordinator->slots.all[copied->slot];
    struct coordinator_move *move = &coordinator->slots.moves[copied->slot];
    if (copied->status == WEFT_ERR_DIVERGED && slot->copy > 0 && slot->term < WEFT_LIMIT_TERM &&
        coordinator->table.endpoints[slot->copy - 1].id == copied->to) {
        drop_copy(coordinator, copied->slot);
        return;
    }
    if (move->kind != MOVE_COPY || coordinator->table.endpoints[move->to].id != copied->to) return;
    move->bytes = copied->bytes;
    move->progress_ns = weft_now_ns(coordinator->env);
    if (copied->status < 0) {
        fail(coordinator, copied->slot, weft_reason_text((enum weft_status)copied->status));
        return;
    }
    /* chunks may have been declared or freed since: the leader reports again */
    if (!copied->done || copied->chunks != slot->chunks) return;
    const bool leads_next = move->leads_next;
    slot->copy = move->to + 1;
    slot_changed(coordinator, copied->slot, false);
    move->leads_next = leads_next;
    if (coordinator->state != COORDINATOR_ENDED) log_all_copied(coordinator);
}

void coordinator_move_message(struct weft_coordinator *coordinator, struct coordinator_member *shard,
                              const Weft__Control__Control *message)
{
    const bool is_copy = message->body_case == WEFT__CONTROL__CONTROL__BODY_SLOT_COPIED;
    const uint32_t number = is_copy ? message->slot_copied->slot : message->slot_quiet->slot,
                   term = is_copy ? message->slot_copied->term : message->slot_quiet->term;
    if (number >= coordinator->slots.count) {
        coordinator_member_lost(coordinator, shard, "it reported a slot that the job does not have");
        return;
    }
    const struct coordinator_slot *slot = &coordinator->slots.all[number];
    if (term != slot->term || coordinator_shard_of(coordinator, slot->leader) != shard) return;
    if (is_copy) on_copied(coordinator, message->slot_copied);
    else if (coordinator->slots.moves[number].kind == MOVE_HAND_OVER) {
        exchange(&coordinator->slots.all[number]);
        slot_changed(coordinator, number, false);
    }
    if (coordinator->state == COORDINATOR_RUNNING)
        coordinator_moves_tick(coordinator, weft_now_ns(coordinator->env));
}

/* ---- time ---- */

/* The shard leads or copies the slot. */
static bool slot_is_at(const struct weft_coordinator *coordinator, uint32_t number,
                       const struct coordinator_member *shard)
{
    const struct coordinator_slot *slot = &coordinator->slots.all[number];
    return coordinator_shard_of(coordinator, slot->leader) == shard ||
           (slot->copy > 0 && coordinator_shard_of(coordinator, slot->copy - 1) == shard);
}

static bool has_slot(const struct weft_coordinator *coordinator, const struct coordinator_member *shard)
{
    for (uint32_t i = 0; i < coordinator->slots.count; i++)
        if (slot_is_at(coordinator, i, shard)) return true;
    return false;
}

bool coordinator_drain_is_done(const struct weft_coordinator *coordinator,
                               const struct coordinator_member *shard)
{
    return shard->is_draining && !has_slot(coordinator, shard);
}

static void release_drained(struct weft_coordinator *coordinator)
{
    Weft__Control__Finished finished = WEFT__CONTROL__FINISHED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    finished.text = (char *)"it leads and copies no slot";
    message.body_case = WEFT__CONTROL__CONTROL__BODY_FINISHED;
    message.finished = &finished;
    for (uint32_t i = 0; i < coordinator->options.shards; i++) {
        struct coordinator_member *shard = coordinator->membership.shards[i];
        if (!coordinator_drain_is_done(coordinator, shard) || shard->may_leave) continue;
        shard->may_leave = true;
        coordinator_send(coordinator, shard, &message);
    }
}

static void watch(struct weft_coordinator *coordinator, uint32_t number, uint64_t now_ns)
{
    const struct coordinator_move *move = &coordinator->slots.moves[number];
    if (weft_elapsed_ns(move->progress_ns, now_ns) >= PROGRESS_NS)
        fail(coordinator, number, "no progress for 60 s");
    else if (weft_elapsed_ns(move->requested_ns, now_ns) >= REPEAT_NS)
        send_request(coordinator, number, now_ns);
}

/* Moves that have begun, and slots whose new copy is to lead. */
static uint32_t count_rebalanced(const struct coordinator_slots *slots)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < slots->count; i++)
        count += slots->moves[i].kind != MOVE_NONE || slots->moves[i].leads_next;
    return count;
}

/* Begins what makes the bytes more even. true: slots without chunks have changed. */
static bool rebalance(struct weft_coordinator *coordinator, struct planning *planning)
{
    struct coordinator_slots *slots = &coordinator->slots;
    const bool is_changed = coordinator_rebalance_empty(coordinator, planning->changed);
    uint32_t under_way = count_rebalanced(slots);
    struct coordinator_balance_step step = {.is_blocked = true};
    for (; under_way < REBALANCE_MOVES; under_way++) {
        step = coordinator_rebalance_step(coordinator, planning->now_ns);
        const bool hands_over = step.kind == MOVE_HAND_OVER;
        if (step.kind == MOVE_NONE || planning->moves[slots->all[step.slot].leader] >= MOVES_PER_LEADER ||
            (hands_over && coordinator->snapshot.state != SNAPSHOT_IDLE))
            break;
        begin(coordinator, step.slot, step.kind, step.to, planning);
        slots->moves[step.slot].leads_next = step.leads;
    }
    if (step.kind == MOVE_NONE && !step.is_blocked && under_way == 0) {
        slots->is_rebalancing = false;
        weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s: the bytes of the shards are even",
                 coordinator->job);
    }
    return is_changed;
}

void coordinator_moves_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    if (coordinator->state != COORDINATOR_RUNNING || slots->count == 0) return;
    for (uint32_t i = 0; i < slots->count && coordinator->state == COORDINATOR_RUNNING; i++)
        if (slots->moves[i].kind != MOVE_NONE) watch(coordinator, i, now_ns);
    if (coordinator->state != COORDINATOR_RUNNING) return;
    struct planning planning;
    bool is_changed = false;
    if (planning_begin(coordinator, now_ns, &planning)) { /* else the next tick tries again */
        for (uint32_t i = 0; i < slots->count && coordinator->state == COORDINATOR_RUNNING; i++) {
            planning.changed[i] = slots->moves[i].kind == MOVE_NONE && plan(coordinator, i, &planning);
            is_changed |= planning.changed[i];
        }
        if (slots->is_rebalancing && coordinator->state == COORDINATOR_RUNNING)
            is_changed |= rebalance(coordinator, &planning);
        if (is_changed && coordinator->state == COORDINATOR_RUNNING)
            coordinator_slots_changed(coordinator, planning.changed, NULL, "");
    }
    planning_end(coordinator, &planning);
    if (coordinator->state == COORDINATOR_RUNNING) release_drained(coordinator);
}

/* ---- a shard that leaves ---- */

/* NULL: the shard can leave. */
static const char *why_not_drain(const struct weft_coordinator *coordinator,
                                 const struct coordinator_member *shard)
{
    bool has_other = false;
    for (uint32_t i = 0; i < coordinator->options.shards; i++) {
        const struct coordinator_member *other = coordinator->membership.shards[i];
        has_other |= other != shard && other->state == MEMBER_READY && !other->is_draining;
    }
    if (coordinator->slots.count == 0) return "the job has no copies (server.copies)";
    if (!has_other || !shard->abilities.supports_moves) return "no other shard can have its slots";
    return NULL;
}

/* NULL: it leaves; or the reason why it cannot. */
static const char *begin_drain(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    const char *why = shard->is_draining ? NULL : why_not_drain(coordinator, shard);
    if (shard->is_draining || why) return why;
    shard->is_draining = true;
    coordinator_records_member(coordinator, shard);
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s: %s is to leave; its slots move",
             coordinator->job, shard->label);
    coordinator_moves_tick(coordinator, weft_now_ns(coordinator->env));
    return NULL;
}

const char *coordinator_drain_requested(struct weft_coordinator *coordinator, uint32_t shard)
{
    const struct weft_coordinator_options *options = &coordinator->options;
    struct coordinator_member *member =
        shard < options->shards ? coordinator->membership.shards[shard] : NULL;
    if (coordinator->state != COORDINATOR_RUNNING) return "the job does not run";
    if (!member) return "the job has no shard of this number";
    if (member->state != MEMBER_READY) return "it is lost or has left";
    if (options->process.pid > 0 && member->pid == options->process.pid &&
        strcmp(member->host, options->process.host) == 0)
        return "its process has the coordinator; only the other shards can leave";
    return begin_drain(coordinator, member);
}

void coordinator_drain(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    const char *why = begin_drain(coordinator, shard);
    if (!why) return;
    Weft__Control__Drain drain = WEFT__CONTROL__DRAIN__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    drain.shard = shard->index;
    drain.text = (char *)why;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_DRAIN;
    message.drain = &drain;
    coordinator_send(coordinator, shard, &message);
}

void coordinator_drained(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    char text[COORDINATOR_LABEL_BYTES + 16];
    bool *changed = weft_alloc_zero(coordinator->env, coordinator->slots.count * sizeof *changed);
    snprintf(text, sizeof text, "%s has left", shard->label);
    coordinator_declare_forget_shard(coordinator, shard->index);
    coordinator_snapshot_shards_changed(coordinator, "a shard has left");
    if (changed) coordinator_slots_changed(coordinator, changed, shard, text);
    weft_free_bytes(coordinator->env, changed);
}
