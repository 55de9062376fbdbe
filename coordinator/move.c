/* move.c - copies of slots that are made while the job runs.
 *
 *     slot without a copy --> SlotCopy(slot, to) to its leader --> SlotCopied: progress
 *                                                              --> SlotCopied: done --> Map: term + 1, the copy
 *     slot without chunks --> Map at once
 *
 * A move belongs to one term of its slot. The loss of the leader, of the copy or of `to` raises the term
 * (slot_map.c), which ends the move at the leader, too. So does an error that the leader reports, and a leader
 * that reports no progress for PROGRESS_NS. Then the set of before is in force, and another move begins after
 * PAUSE_NS. Requests are repeated, because a leader without memory for one does not answer. At most
 * MOVES_PER_LEADER slots of an endpoint move at once; the leader bounds the bytes under way. */
#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

#define REPEAT_NS WEFT_SECONDS(1)
#define PROGRESS_NS WEFT_SECONDS(60)
#define PAUSE_NS WEFT_SECONDS(5)
#define FIXED_WHY "a tensor with a codec or a 16-bit type was declared in it"
enum { MOVES_PER_LEADER = 2 };

uint32_t coordinator_moves_count(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->slots.count; i++)
        count += coordinator->slots.moves[i].kind != MOVE_NONE;
    return count;
}

static uint32_t moves_of(const struct weft_coordinator *coordinator, uint32_t leader)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    uint32_t count = 0;
    for (uint32_t i = 0; i < slots->count; i++)
        count += slots->moves[i].kind != MOVE_NONE && slots->all[i].leader == leader;
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

static bool can_receive(const struct weft_coordinator *coordinator, uint32_t leader, uint32_t to)
{
    const struct coordinator_member *shard = coordinator_shard_of(coordinator, to);
    return shard->state == MEMBER_READY && shard->supports_moves &&
           coordinator_can_copy(coordinator, leader, to);
}

/* The endpoint with the fewest bytes that can have a copy of the slot; UINT32_MAX: none. */
static uint32_t choose_target(const struct weft_coordinator *coordinator, const struct coordinator_slot *slot)
{
    uint32_t best = UINT32_MAX;
    uint64_t best_bytes = 0;
    for (uint32_t e = 0; e < coordinator->endpoint_count; e++) {
        if (slot->copy == e + 1 || !can_receive(coordinator, slot->leader, e)) continue;
        const uint64_t bytes = bytes_at(coordinator, e);
        if (best != UINT32_MAX && bytes >= best_bytes) continue;
        best = e;
        best_bytes = bytes;
    }
    return best;
}

/* ---- requests ---- */

static void ask(struct weft_coordinator *coordinator, uint32_t number, uint64_t now_ns)
{
    const struct coordinator_slot *slot = &coordinator->slots.all[number];
    struct coordinator_move *move = &coordinator->slots.moves[number];
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__SlotCopy copy = WEFT__CONTROL__SLOT_COPY__INIT;
    copy.slot = number;
    copy.term = slot->term;
    copy.to = coordinator->endpoints[move->to].id;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SLOT_COPY;
    message.slot_copy = &copy;
    move->asked_ns = now_ns;
    coordinator_send(coordinator, coordinator_shard_of(coordinator, slot->leader), &message);
}

static bool begin(struct weft_coordinator *coordinator, uint32_t number, uint64_t now_ns)
{
    struct coordinator_slots *slots = &coordinator->slots;
    struct coordinator_slot *slot = &slots->all[number];
    const struct coordinator_member *leader = coordinator_shard_of(coordinator, slot->leader);
    if (slots->moves[number].is_former && slot->term < WEFT_LIMIT_TERM) { /* the new term ends it */
        slot->term++;
        return true;
    }
    if (slot->copy > 0 || slot->term >= WEFT_LIMIT_TERM || now_ns < slots->moves[number].not_before_ns ||
        leader->state != MEMBER_READY || !leader->supports_moves)
        return false;
    const bool is_empty = slot->chunks == 0;
    if (slot->fixed > 0 || (!is_empty && moves_of(coordinator, slot->leader) >= MOVES_PER_LEADER))
        return false;
    const uint32_t to = choose_target(coordinator, slot);
    if (to == UINT32_MAX) return false;
    if (is_empty) {
        slot->copy = to + 1;
        slot->term++;
        return true;
    }
    slots->moves[number] = (struct coordinator_move){.kind = MOVE_COPY, .to = to, .progress_ns = now_ns};
    coordinator_records_slots(&coordinator->records);
    ask(coordinator, number, now_ns);
    return false;
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
             "job %s: slot %u cannot be copied from %s to %s: %s%s", coordinator->job, number,
             coordinator_shard_of(coordinator, slots->all[number].leader)->label,
             coordinator_shard_of(coordinator, slots->moves[number].to)->label, why,
             slots->all[number].fixed > 0 ? "" : "; it is tried again");
    slot_changed(coordinator, number, true);
}

static void log_all_copied(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->slots.count; i++)
        if (coordinator->slots.all[i].copy == 0) return;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s: each slot has a copy",
             coordinator->job);
}

static void on_copied(struct weft_coordinator *coordinator, const Weft__Control__SlotCopied *copied)
{
    struct coordinator_slot *slot = &coordinator->slots.all[copied->slot];
    struct coordinator_move *move = &coordinator->slots.moves[copied->slot];
    if (move->kind != MOVE_COPY || coordinator->endpoints[move->to].id != copied->to) return;
    move->bytes = copied->bytes;
    move->progress_ns = weft_now_ns(coordinator->env);
    if (slot->fixed > 0) {
        fail(coordinator, copied->slot, FIXED_WHY);
        return;
    }
    if (copied->status < 0) {
        fail(coordinator, copied->slot, weft_reason_text((enum weft_status)copied->status));
        return;
    }
    /* chunks may have been declared or freed since: the leader reports again */
    if (!copied->done || copied->chunks != slot->chunks) return;
    slot->copy = move->to + 1;
    slot_changed(coordinator, copied->slot, false);
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
    if (coordinator->state == COORDINATOR_RUNNING)
        coordinator_moves_tick(coordinator, weft_now_ns(coordinator->env));
}

/* ---- time ---- */

static void watch(struct weft_coordinator *coordinator, uint32_t number, uint64_t now_ns)
{
    const struct coordinator_move *move = &coordinator->slots.moves[number];
    if (move->kind == MOVE_COPY && coordinator->slots.all[number].fixed > 0)
        fail(coordinator, number, FIXED_WHY);
    else if (weft_elapsed_ns(move->progress_ns, now_ns) >= PROGRESS_NS)
        fail(coordinator, number, "no progress for 60 s");
    else if (weft_elapsed_ns(move->asked_ns, now_ns) >= REPEAT_NS) ask(coordinator, number, now_ns);
}

void coordinator_moves_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    if (coordinator->state != COORDINATOR_RUNNING || slots->count == 0) return;
    bool *changed = NULL;
    for (uint32_t i = 0; i < slots->count && coordinator->state == COORDINATOR_RUNNING; i++) {
        if (slots->moves[i].kind != MOVE_NONE) {
            watch(coordinator, i, now_ns);
            continue;
        }
        if (slots->all[i].copy > 0 && !slots->moves[i].is_former) continue;
        if (!changed) changed = weft_alloc_zero(coordinator->env, slots->count * sizeof *changed);
        if (!changed) return; /* the next tick tries again */
        changed[i] = begin(coordinator, i, now_ns);
    }
    bool is_changed = false;
    for (uint32_t i = 0; changed && i < slots->count; i++) is_changed |= changed[i];
    if (is_changed && coordinator->state == COORDINATOR_RUNNING)
        coordinator_slots_changed(coordinator, changed, NULL, "");
    weft_free_bytes(coordinator->env, changed);
}
