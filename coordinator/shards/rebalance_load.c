/* rebalance_load.c - `weft rebalance --by load`: speeds of the shards, and the plan of moves.
 *
 *     report of a shard: pushed_bytes, work_ns --> sums that decay over WINDOW_NS --> bytes per ns
 *     bytes per ns / that of the fastest shard --> speed in thousandths --> rebalance.c: led bytes / speed
 *
 * work_ns is the time in which a shard receives contributions, or sums them in place. So a late worker does
 * not make a shard slow, and a shard on a slower link or core does. Speeds are taken when the rebalancing
 * begins. */
#include <string.h>

#include "coordinator/coordinator_state.h"

#define WINDOW_NS WEFT_SECONDS(30)
#define WORK_NS_MIN WEFT_MS(1) /* a shorter time is no measurement */
enum { EVEN = 750, STEPS = 16, SPEED_MIN = COORDINATOR_SPEED_FULL / STEPS, PLAN_MAX = 1024 };

void coordinator_load_report(struct coordinator_member *shard, const Weft__Control__Report *report,
                             uint64_t now_ns)
{
    struct coordinator_load *load = &shard->load;
    const double age_ns = (double)weft_elapsed_ns(load->reported_ns, now_ns);
    const double keep = (double)WINDOW_NS / ((double)WINDOW_NS + age_ns);
    load->bytes = load->bytes * keep + (double)weft_elapsed_ns(load->pushed_bytes, report->pushed_bytes);
    load->ns = load->ns * keep + (double)weft_elapsed_ns(load->work_ns, report->work_ns);
    load->pushed_bytes = report->pushed_bytes;
    load->work_ns = report->work_ns;
    load->reported_ns = now_ns;
}

static double rate_of(const struct coordinator_load *load)
{
    return load->ns >= (double)WORK_NS_MIN && load->bytes > 0 ? load->bytes / load->ns : 0;
}

void coordinator_load_speeds(const struct coordinator_load *loads, uint32_t count, uint32_t *speeds_out)
{
    double fastest = 0;
    for (uint32_t i = 0; i < count; i++)
        if (rate_of(&loads[i]) > fastest) fastest = rate_of(&loads[i]);
    for (uint32_t i = 0; i < count; i++) {
        const double rate = rate_of(&loads[i]);
        const uint32_t speed = rate > 0 ? (uint32_t)(rate / fastest * COORDINATOR_SPEED_FULL) : EVEN;
        const uint32_t stepped = (speed * STEPS + COORDINATOR_SPEED_FULL / 2) / COORDINATOR_SPEED_FULL *
                                 COORDINATOR_SPEED_FULL / STEPS;
        speeds_out[i] = speed >= EVEN ? COORDINATOR_SPEED_FULL : stepped > SPEED_MIN ? stepped : SPEED_MIN;
    }
}

/* Speeds of the shards by index, (options.shards,). NULL: no memory. The caller frees them. */
static uint32_t *speeds_of_shards(const struct weft_coordinator *coordinator)
{
    const uint32_t count = coordinator->options.shards;
    struct coordinator_load *loads = weft_alloc_zero(coordinator->env, count * sizeof *loads);
    uint32_t *speeds = weft_alloc_zero(coordinator->env, count * sizeof *speeds);
    for (uint32_t i = 0; loads && i < count; i++) loads[i] = coordinator->membership.shards[i]->load;
    if (loads && speeds) coordinator_load_speeds(loads, count, speeds);
    weft_free_bytes(coordinator->env, loads);
    if (loads || !speeds) return speeds;
    weft_free_bytes(coordinator->env, speeds);
    return NULL;
}

bool coordinator_load_begin(struct weft_coordinator *coordinator, bool by_load)
{
    struct coordinator_slots *slots = &coordinator->slots;
    weft_free_bytes(coordinator->env, slots->speeds);
    slots->speeds = by_load ? speeds_of_shards(coordinator) : NULL;
    slots->speed_count = slots->speeds ? coordinator->options.shards : 0;
    return slots->speeds || !by_load;
}

uint32_t coordinator_load_speed(const struct weft_coordinator *coordinator, uint32_t endpoint)
{
    const uint32_t shard = coordinator->table.endpoints[endpoint].shard;
    return shard < coordinator->slots.speed_count ? coordinator->slots.speeds[shard] : COORDINATOR_SPEED_FULL;
}

/* ---- what would move ---- */

static void take_step(const struct weft_coordinator *coordinator, struct coordinator_balance_step step,
                      Weft__Control__RebalanceMove *move_out)
{
    struct coordinator_slot *slot = &coordinator->slots.all[step.slot];
    const bool hands_over = step.kind == MOVE_HAND_OVER;
    const uint32_t from = hands_over || step.leads ? slot->leader : slot->copy - 1;
    const uint32_t to = hands_over ? slot->copy - 1 : step.to;
    weft__control__rebalance_move__init(move_out);
    move_out->slot = step.slot;
    move_out->from = coordinator->table.endpoints[from].shard;
    move_out->to = coordinator->table.endpoints[to].shard;
    move_out->leads = hands_over || step.leads;
    move_out->bytes = slot->bytes;
    slot->copy = move_out->leads ? slot->leader + 1 : to + 1;
    if (move_out->leads) slot->leader = to;
}

/* Plans on copies of the slots, as if each move ended at once. */
static size_t plan_on_copy(struct weft_coordinator *coordinator, Weft__Control__RebalanceMove *moves_out)
{
    struct coordinator_slots *slots = &coordinator->slots;
    const struct coordinator_slots own = *slots;
    size_t count = 0;
    slots->all = weft_alloc_array(coordinator->env, own.count, sizeof *slots->all);
    slots->moves = weft_alloc_zero(coordinator->env, own.count * sizeof *slots->moves);
    if (slots->all && slots->moves) {
        memcpy(slots->all, own.all, own.count * sizeof *slots->all);
        while (count < PLAN_MAX) {
            const struct coordinator_balance_step step = coordinator_rebalance_step(coordinator, WEFT_NEVER);
            if (step.kind == MOVE_NONE) break;
            take_step(coordinator, step, &moves_out[count++]);
        }
    }
    weft_free_bytes(coordinator->env, slots->all);
    weft_free_bytes(coordinator->env, slots->moves);
    slots->all = own.all;
    slots->moves = own.moves;
    return count;
}

const char *coordinator_rebalance_plan(struct weft_coordinator *coordinator, bool by_load,
                                       struct coordinator_plan *plan_out)
{
    struct coordinator_slots *slots = &coordinator->slots;
    *plan_out = (struct coordinator_plan){0};
    const char *why = coordinator_rebalance_refusal(coordinator);
    if (why) return why;
    if (slots->is_rebalancing) return "slots move already, see weft status";
    plan_out->moves = weft_alloc_array(coordinator->env, PLAN_MAX, sizeof *plan_out->moves);
    plan_out->pointers = weft_alloc_array(coordinator->env, PLAN_MAX, sizeof *plan_out->pointers);
    if (!plan_out->moves || !plan_out->pointers || !coordinator_load_begin(coordinator, by_load))
        return "the coordinator has no memory for the plan";
    plan_out->count = plan_on_copy(coordinator, plan_out->moves);
    for (size_t i = 0; i < plan_out->count; i++) plan_out->pointers[i] = &plan_out->moves[i];
    return NULL;
}

void coordinator_plan_free(struct weft_coordinator *coordinator, struct coordinator_plan *plan)
{
    weft_free_bytes(coordinator->env, plan->moves);
    weft_free_bytes(coordinator->env, plan->pointers);
}
