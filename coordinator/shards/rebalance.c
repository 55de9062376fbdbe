/* rebalance.c - which slot moves so that the bytes of the endpoints become even.
 *
 *     a slot from the leader X to Y, by bytes that they lead:
 *         its copy is at Y    hand over: X and Y change places
 *         else                copy to Y, in place of its copy; then hand over
 *     a copy from X to Y, by bytes that they copy, if no change of leader helps
 *     slots without chunks    by their number, at once
 *
 * A slot of b bytes moves only if X has more than b bytes above Y. So each step lowers the sum of squares of
 * the bytes that are led, or with the same leaders that of the copies: the steps end, and then each pair of
 * endpoints differs by at most one slot that could move between them. Moves under way count as done.
 *
 * By load the squares are divided by the speed of the shard (rebalance_load.c). At the lowest sum the bytes
 * of a shard are in proportion to its speed. */
#include "coordinator/coordinator_state.h"

/* Bytes at each endpoint when all moves have ended. */
struct balance {
    uint64_t *led, *copied; /* (endpoint_count,) */
};

static uint32_t next_leader(const struct coordinator_slot *slot, const struct coordinator_move *move)
{
    if (move->kind == MOVE_COPY && move->leads_next) return move->to;
    if (slot->copy > 0 && (move->kind == MOVE_HAND_OVER || (move->kind == MOVE_NONE && move->leads_next)))
        return slot->copy - 1;
    return slot->leader;
}

/* Endpoint plus one; 0: none. */
static uint32_t next_copy(const struct coordinator_slot *slot, const struct coordinator_move *move)
{
    if (next_leader(slot, move) != slot->leader) return slot->leader + 1;
    return move->kind == MOVE_COPY ? move->to + 1 : slot->copy;
}

/* All zero. false: no memory. Free balance->led. */
static bool balance_init(const struct weft_coordinator *coordinator, struct balance *balance)
{
    balance->led =
        weft_alloc_zero(coordinator->env, 2 * coordinator->table.endpoint_count * sizeof *balance->led);
    if (!balance->led) return false;
    balance->copied = balance->led + coordinator->table.endpoint_count;
    return true;
}

static bool balance_begin(const struct weft_coordinator *coordinator, struct balance *balance)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    if (!balance_init(coordinator, balance)) return false;
    for (uint32_t i = 0; i < slots->count; i++) {
        const uint32_t copy = next_copy(&slots->all[i], &slots->moves[i]);
        balance->led[next_leader(&slots->all[i], &slots->moves[i])] += slots->all[i].bytes;
        if (copy > 0) balance->copied[copy - 1] += slots->all[i].bytes;
    }
    return true;
}

/* Returns by how much a move reduces half the sum of squares; 0: it does not. Speeds are in thousandths. */
static double gain_of(uint64_t from, uint64_t to, uint64_t bytes, uint32_t from_speed, uint32_t to_speed)
{
    const double moved = (double)bytes;
    if (from_speed == to_speed)
        return from > to && from - to > bytes ? moved * (double)(from - to - bytes) : 0;
    const double falls = moved * (2 * (double)from - moved) / from_speed,
                 rises = moved * (2 * (double)to + moved) / to_speed;
    const double gain = (falls - rises) * COORDINATOR_SPEED_FULL / 2;
    return gain > moved * moved / 64 ? gain : 0; /* a step must gain more than the rounding error, so that
                                                  * the steps end */
}

/* ---- slots with chunks ---- */

enum { HANDS_OVER, COPIES_TO_LEAD, COPIES, WAYS };

struct best {
    struct coordinator_balance_step step[WAYS];
    double gain[WAYS];
};

static void note(struct best *best, uint32_t way, double gain, struct coordinator_balance_step step)
{
    if (gain <= best->gain[way]) return;
    best->gain[way] = gain;
    best->step[way] = step;
}

static void consider(const struct weft_coordinator *coordinator, uint32_t number,
                     const struct balance *balance, struct best *best)
{
    const struct coordinator_slot *slot = &coordinator->slots.all[number];
    const uint32_t leader = slot->leader, copy = slot->copy - 1;
    for (uint32_t to = 0; to < coordinator->table.endpoint_count; to++) {
        if (!coordinator_move_can_receive(coordinator, leader, to)) continue;
        const uint32_t speed = coordinator_load_speed(coordinator, to);
        const double lead = gain_of(balance->led[leader], balance->led[to], slot->bytes,
                                    coordinator_load_speed(coordinator, leader), speed);
        if (to == copy)
            note(best, HANDS_OVER, lead,
                 (struct coordinator_balance_step){.kind = MOVE_HAND_OVER, .slot = number});
        else {
            note(best, COPIES_TO_LEAD, lead,
                 (struct coordinator_balance_step){
                     .kind = MOVE_COPY, .slot = number, .to = to, .leads = true});
            note(best, COPIES,
                 gain_of(balance->copied[copy], balance->copied[to], slot->bytes,
                         coordinator_load_speed(coordinator, copy), speed),
                 (struct coordinator_balance_step){.kind = MOVE_COPY, .slot = number, .to = to});
        }
    }
}

static bool can_move(const struct weft_coordinator *coordinator, uint32_t number)
{
    const struct coordinator_slot *slot = &coordinator->slots.all[number];
    const struct coordinator_member *leader = coordinator_shard_of(coordinator, slot->leader);
    return slot->chunks > 0 && slot->copy > 0 && slot->term < WEFT_LIMIT_TERM &&
           leader->state == MEMBER_READY && leader->abilities.supports_moves && !leader->is_draining &&
           coordinator->slots.moves[number].kind == MOVE_NONE && !coordinator->slots.moves[number].leads_next;
}

struct coordinator_balance_step coordinator_rebalance_step(const struct weft_coordinator *coordinator,
                                                           uint64_t now_ns)
{
    struct balance balance;
    struct best best = {0};
    bool is_blocked = false;
    if (!balance_begin(coordinator, &balance)) return (struct coordinator_balance_step){.is_blocked = true};
    for (uint32_t i = 0; i < coordinator->slots.count; i++) {
        const bool rests = now_ns < coordinator->slots.moves[i].not_before_ns;
        is_blocked |= rests;
        if (!rests && can_move(coordinator, i)) consider(coordinator, i, &balance, &best);
    }
    weft_free_bytes(coordinator->env, balance.led);
    for (uint32_t way = 0; way < WAYS; way++)
        if (best.gain[way] > 0) return best.step[way];
    return (struct coordinator_balance_step){.is_blocked = is_blocked};
}

/* ---- slots without chunks ---- */

/* Of the endpoints that can receive from `from`, the one with the lowest count; UINT32_MAX: none. */
static uint32_t lowest(const struct weft_coordinator *coordinator, uint32_t from, const uint64_t *counts)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t e = 0; e < coordinator->table.endpoint_count; e++)
        if (coordinator_move_can_receive(coordinator, from, e) &&
            (best == UINT32_MAX || counts[e] < counts[best]))
            best = e;
    return best;
}

/* Moves leader or copy of one empty slot. true: it has changed. */
static bool spread(const struct weft_coordinator *coordinator, struct coordinator_slot *slot,
                   struct balance *counts)
{
    const uint32_t to = lowest(coordinator, slot->leader, counts->led),
                   copy_to = lowest(coordinator, slot->leader, counts->copied);
    if (to != UINT32_MAX && counts->led[slot->leader] > counts->led[to] + 1) {
        counts->led[slot->leader]--;
        counts->led[to]++;
        if (slot->copy > 0) counts->copied[slot->copy - 1]--;
        counts->copied[slot->leader]++;
        slot->copy = slot->leader + 1;
        slot->leader = to;
        return true;
    }
    if (slot->copy == 0 || copy_to == UINT32_MAX ||
        counts->copied[slot->copy - 1] <= counts->copied[copy_to] + 1)
        return false;
    counts->copied[slot->copy - 1]--;
    counts->copied[copy_to]++;
    slot->copy = copy_to + 1;
    return true;
}

bool coordinator_rebalance_empty(struct weft_coordinator *coordinator, bool *changed)
{
    struct coordinator_slots *slots = &coordinator->slots;
    struct balance counts;
    bool any = false;
    if (!balance_init(coordinator, &counts)) return false;
    for (uint32_t i = 0; i < slots->count; i++) {
        if (slots->all[i].chunks > 0) continue;
        counts.led[slots->all[i].leader]++;
        if (slots->all[i].copy > 0) counts.copied[slots->all[i].copy - 1]++;
    }
    for (uint32_t i = 0; i < slots->count; i++) {
        struct coordinator_slot *slot = &slots->all[i];
        if (slot->chunks > 0 || slots->moves[i].kind != MOVE_NONE || slot->term >= WEFT_LIMIT_TERM) continue;
        bool has_changed = false;
        for (uint32_t tries = 0; tries < 2 && spread(coordinator, slot, &counts); tries++) has_changed = true;
        if (!has_changed || changed[i]) continue;
        slot->term++;
        any = changed[i] = true;
    }
    weft_free_bytes(coordinator->env, counts.led);
    return any;
}

/* ---- begin ---- */

const char *coordinator_rebalance_refusal(const struct weft_coordinator *coordinator)
{
    if (coordinator->slots.count == 0) return "the job has no copies (server.copies), so no slot can move";
    if (coordinator->state != COORDINATOR_RUNNING) return "the job does not run";
    return NULL;
}

const char *coordinator_rebalance_begin(struct weft_coordinator *coordinator, bool by_load)
{
    const char *why = coordinator_rebalance_refusal(coordinator);
    if (why) return why;
    if (!coordinator_load_begin(coordinator, by_load)) return "the coordinator has no memory for the speeds";
    coordinator->slots.is_rebalancing = true;
    coordinator_moves_tick(coordinator, weft_now_ns(coordinator->env));
    return NULL;
}
