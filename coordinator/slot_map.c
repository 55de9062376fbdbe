/* slot_map.c - slots: which endpoint leads a set of chunks, and which one keeps its copy.
 *
 *     roster      every endpoint leads SLOTS_PER_ENDPOINT slots, each with a copy on another shard: Map(all)
 *     placement   a chunk belongs to a slot of its endpoint for life (declare.c)
 *     shard lost  its slots: term + 1, the copy leads        slots that it copies: term + 1, no copy
 *                 -> Map(changed slots, the lost member) to shards and workers; a slot with chunks and
 *                 without a copy ends the job
 *
 * Invariant: in one term a slot has one leader, and a term only rises. A leader replies only after its copy
 * holds the step under the same term (server/shard/copies/shard_replicate.c), so a replaced leader cannot
 * reply. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

enum { SLOTS_PER_ENDPOINT = 64 };

struct coordinator_member *coordinator_shard_of(const struct weft_coordinator *coordinator, uint32_t endpoint)
{
    return coordinator->membership.shards[coordinator->table.endpoints[endpoint].shard];
}

static bool has_other_host(const struct weft_coordinator *coordinator, const struct coordinator_member *one,
                           const struct coordinator_member *other)
{
    return one != other && (coordinator->options.copies_on_one_host || strcmp(one->host, other->host) != 0);
}

static bool has_other_zone(const struct coordinator_member *one, const struct coordinator_member *other)
{
    return one->abilities.zone[0] && other->abilities.zone[0] &&
           strcmp(one->abilities.zone, other->abilities.zone) != 0;
}

/* A shard in another zone can have copies of this one's slots. */
static bool has_zone_for_copies(const struct weft_coordinator *coordinator,
                                const struct coordinator_member *one)
{
    for (uint32_t i = 0; one->abilities.zone[0] && i < coordinator->options.shards; i++) {
        const struct coordinator_member *other = coordinator->membership.shards[i];
        if (other && other->state < MEMBER_LEFT && !other->is_draining && !other->addition.is_entering &&
            has_other_host(coordinator, one, other) && has_other_zone(one, other))
            return true;
    }
    return false;
}

bool coordinator_can_copy_shard(const struct weft_coordinator *coordinator,
                                const struct coordinator_member *one, const struct coordinator_member *other)
{
    return has_other_host(coordinator, one, other) &&
           (has_other_zone(one, other) || !has_zone_for_copies(coordinator, one));
}

bool coordinator_can_copy(const struct weft_coordinator *coordinator, uint32_t leader, uint32_t copy)
{
    return coordinator_can_copy_shard(coordinator, coordinator_shard_of(coordinator, leader),
                                      coordinator_shard_of(coordinator, copy));
}

static uint32_t slots_per_endpoint(const struct weft_coordinator *coordinator)
{
    const uint32_t most = WEFT_LIMIT_SLOTS / coordinator->table.endpoint_count;
    return most < SLOTS_PER_ENDPOINT ? most : SLOTS_PER_ENDPOINT;
}

/* A shard may be lost before the slots are placed. */
static bool is_live(const struct weft_coordinator *coordinator, uint32_t endpoint)
{
    return coordinator_shard_of(coordinator, endpoint)->state < MEMBER_LEFT;
}

static void warn_of_zone(const struct weft_coordinator *coordinator, const struct coordinator_member *leader)
{
    if (!leader->abilities.zone[0] || has_zone_for_copies(coordinator, leader)) return;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "the copies of %s may be in its zone %.100s: no shard of another zone can have them",
             leader->label, leader->abilities.zone);
}

/* The copies of an endpoint's slots are spread over all endpoints that can have them, beginning with the next
 * one. */
static enum weft_status place_copies(struct weft_coordinator *coordinator, uint32_t leader,
                                     struct coordinator_slot *slots_out, uint32_t slots,
                                     struct weft_error *error)
{
    uint32_t placed = 0, copy = leader;
    for (uint32_t tried = 0; placed < slots; tried++) {
        copy = (copy + 1) % coordinator->table.endpoint_count;
        if (tried == coordinator->table.endpoint_count && placed == 0)
            return weft_error_set(
                error, WEFT_ERR_UNSUPPORTED,
                "server.copies is %u, and no shard on another host can have the copy of %s: "
                "start one there, or set server.copies_on_one_host",
                coordinator->options.copies, coordinator_shard_of(coordinator, leader)->label);
        if (!is_live(coordinator, copy) || !coordinator_can_copy(coordinator, leader, copy)) continue;
        slots_out[placed++] = (struct coordinator_slot){.term = 1, .leader = leader, .copy = copy + 1};
    }
    warn_of_zone(coordinator, coordinator_shard_of(coordinator, leader));
    return WEFT_OK;
}

enum weft_status coordinator_slots_init(struct weft_coordinator *coordinator, struct weft_error *error)
{
    if (coordinator->options.copies == 0 || coordinator->table.endpoint_count == 0) return WEFT_OK;
    const uint32_t slots = slots_per_endpoint(coordinator);
    if (slots == 0)
        return weft_error_set(error, WEFT_ERR_LIMIT,
                              "%u engines of shards with copies, at most %u are allowed",
                              coordinator->table.endpoint_count, WEFT_LIMIT_SLOTS);
    uint32_t live = 0, placed = 0;
    for (uint32_t i = 0; i < coordinator->table.endpoint_count; i++) live += is_live(coordinator, i);
    coordinator->slots.count = slots * live;
    coordinator->slots.all =
        weft_alloc_zero(coordinator->env, coordinator->slots.count * sizeof *coordinator->slots.all);
    coordinator->slots.moves =
        weft_alloc_zero(coordinator->env, coordinator->slots.count * sizeof *coordinator->slots.moves);
    if (!coordinator->slots.all || !coordinator->slots.moves)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "the coordinator has no memory for %u slots",
                              coordinator->slots.count);
    for (uint32_t leader = 0; leader < coordinator->table.endpoint_count; leader++) {
        if (!is_live(coordinator, leader)) continue;
        WEFT_TRY(place_copies(coordinator, leader, coordinator->slots.all + placed, slots, error));
        placed += slots;
    }
    return WEFT_OK;
}

void coordinator_slots_free(struct weft_coordinator *coordinator)
{
    weft_free_bytes(coordinator->env, coordinator->slots.all);
    weft_free_bytes(coordinator->env, coordinator->slots.moves);
    weft_free_bytes(coordinator->env, coordinator->slots.speeds);
    coordinator->slots = (struct coordinator_slots){0};
}

/* is_settled: count the slot only if no copy or move of it is under way. */
static bool is_led(const struct weft_coordinator *coordinator, uint32_t slot,
                   const struct coordinator_endpoint *home, bool is_settled)
{
    return &coordinator->table.endpoints[coordinator->slots.all[slot].leader] == home &&
           !(is_settled && coordinator->slots.moves[slot].kind != MOVE_NONE);
}

static uint32_t count_led(const struct weft_coordinator *coordinator, const struct coordinator_endpoint *home,
                          bool is_settled)
{
    uint32_t led = 0;
    for (uint32_t i = 0; i < coordinator->slots.count; i++) led += is_led(coordinator, i, home, is_settled);
    return led;
}

bool coordinator_slot_can_choose(const struct weft_coordinator *coordinator,
                                 const struct coordinator_endpoint *home)
{
    return coordinator->slots.count == 0 || count_led(coordinator, home, false) > 0;
}

/* Prefers settled slots: a chunk that is added to a moving slot makes the leader copy again, and could keep a
 * drain from ending. */
uint32_t coordinator_slot_choose(struct weft_coordinator *coordinator, struct coordinator_endpoint *home)
{
    if (coordinator->slots.count == 0) return 0;
    const uint32_t settled = count_led(coordinator, home, true);
    const uint32_t led = settled > 0 ? settled : count_led(coordinator, home, false);
    WEFT_ASSERT(led > 0);
    uint32_t skip = home->slot_cursor++ % led, slot = 0;
    while (!is_led(coordinator, slot, home, settled > 0) || skip-- > 0) slot++;
    return slot;
}

void coordinator_slot_add_chunk(struct weft_coordinator *coordinator, uint32_t slot, uint64_t bytes)
{
    if (slot >= coordinator->slots.count) return;
    coordinator->slots.all[slot].chunks++;
    coordinator->slots.all[slot].bytes += bytes;
}

void coordinator_slot_remove_chunk(struct weft_coordinator *coordinator, uint32_t slot, uint64_t bytes)
{
    if (slot >= coordinator->slots.count) return;
    coordinator->slots.all[slot].chunks--;
    coordinator->slots.all[slot].bytes -= bytes;
}

uint32_t coordinator_slots_without_copy(const struct weft_coordinator *coordinator)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    uint32_t count = 0;
    for (uint32_t i = 0; i < slots->count; i++) count += slots->all[i].chunks > 0 && slots->all[i].copy == 0;
    return count;
}

/* ---- Map ---- */

void *coordinator_slots_describe(const struct weft_coordinator *coordinator, const bool *changed,
                                 Weft__Control__Map *map_out)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    struct entry {
        Weft__Control__Slot slot;
        uint32_t copy;
    } *entries =
        weft_alloc_array(coordinator->env, slots->count, sizeof *entries + sizeof(Weft__Control__Slot *));
    if (!entries) return NULL;
    map_out->slots = (Weft__Control__Slot **)(void *)(entries + slots->count);
    map_out->n_slots = 0;
    for (uint32_t i = 0; i < slots->count; i++) {
        if (changed && !changed[i]) continue;
        struct entry *entry = &entries[i];
        weft__control__slot__init(&entry->slot);
        entry->slot.slot = i;
        entry->slot.term = slots->all[i].term;
        entry->slot.leader = coordinator->table.endpoints[slots->all[i].leader].id;
        entry->slot.moving = slots->moves[i].kind != MOVE_NONE || slots->moves[i].is_former;
        entry->slot.n_copies = slots->all[i].copy > 0;
        if (entry->slot.n_copies) entry->copy = coordinator->table.endpoints[slots->all[i].copy - 1].id;
        entry->slot.copies = &entry->copy;
        map_out->slots[map_out->n_slots++] = &entry->slot;
    }
    return entries;
}

/* Sends the slots of which `changed` is true, all of them if it is NULL. lost: NULL, or the shard that was
 * lost. to: NULL: all members. */
static enum weft_status send_map(struct weft_coordinator *coordinator, const bool *changed,
                                 const struct coordinator_member *lost, const char *text,
                                 const struct coordinator_member *to)
{
    Weft__Control__Map map = WEFT__CONTROL__MAP__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    void *memory = coordinator_slots_describe(coordinator, changed, &map);
    if (!memory) return WEFT_ERR_NO_MEMORY;
    map.version = ++coordinator->slots.version;
    map.lost = lost ? lost->member + 1 : 0;
    map.text = (char *)text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_MAP;
    message.map = &map;
    if (to) coordinator_send(coordinator, to, &message);
    else coordinator_broadcast(coordinator, &message, lost);
    weft_free_bytes(coordinator->env, memory);
    return WEFT_OK;
}

void coordinator_slots_send(struct weft_coordinator *coordinator, const struct coordinator_member *to)
{
    if (coordinator->slots.count == 0) return;
    if (send_map(coordinator, NULL, NULL, "", to) < 0)
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY, "the coordinator has no memory for its map");
}

void coordinator_slots_send_lost(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                                 const char *text)
{
    bool *none = weft_alloc_zero(coordinator->env, coordinator->slots.count * sizeof *none);
    if (!none || send_map(coordinator, none, lost, text, NULL) < 0)
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY, "the coordinator has no memory for its map");
    weft_free_bytes(coordinator->env, none);
}

/* Index of an endpoint by its id; UINT32_MAX: there is none. */
static uint32_t endpoint_of(const struct weft_coordinator *coordinator, uint32_t id)
{
    for (uint32_t i = 0; i < coordinator->table.endpoint_count; i++)
        if (coordinator->table.endpoints[i].id == id) return i;
    return UINT32_MAX;
}

/* The endpoints of the chunks, and the loads, follow the slots. */
static void chunks_follow(struct weft_coordinator *coordinator, const bool *changed)
{
    for (uint32_t t = 0; t < coordinator->table.tensor_count; t++) {
        const struct coordinator_tensor *tensor = coordinator->table.tensors[t];
        const size_t elem_bytes = weft_dtype_bytes((enum weft_dtype)tensor->declare.dtype);
        for (uint32_t i = 0; i < tensor->chunk_count; i++) {
            Weft__Control__Chunk *chunk = &tensor->chunks[i];
            struct coordinator_endpoint *leader =
                &coordinator->table.endpoints[coordinator->slots.all[chunk->slot].leader];
            if (!changed[chunk->slot] || chunk->endpoint == leader->id) continue;
            const uint32_t before = endpoint_of(coordinator, chunk->endpoint);
            chunk->endpoint = leader->id;
            if (chunk->candidate > 0) continue;
            leader->load_bytes += chunk->count * elem_bytes;
            if (before != UINT32_MAX)
                coordinator->table.endpoints[before].load_bytes -= chunk->count * elem_bytes;
        }
    }
}

void coordinator_slots_changed(struct weft_coordinator *coordinator, const bool *changed,
                               const struct coordinator_member *lost, const char *text)
{
    for (uint32_t i = 0; i < coordinator->slots.count; i++)
        if (changed[i]) coordinator->slots.moves[i] = (struct coordinator_move){0};
    chunks_follow(coordinator, changed);
    coordinator_records_slots(&coordinator->records);
    if (send_map(coordinator, changed, lost, text, NULL) < 0)
        coordinator_abort(coordinator, lost, WEFT_ERR_NO_MEMORY, "the coordinator has no memory for its map");
}

/* ---- fail-over ---- */

/* A live endpoint for a slot without chunks; UINT32_MAX: all shards are lost. */
static uint32_t live_endpoint(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->table.endpoint_count; i++)
        if (is_live(coordinator, i)) return i;
    return UINT32_MAX;
}

static bool can_fail_over(const struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                          char *why_out, size_t why_bytes)
{
    const struct coordinator_slots *slots = &coordinator->slots;
    if (slots->count == 0 || coordinator->state < COORDINATOR_CONNECTING ||
        lost->role != WEFT__CONTROL__ROLE__ROLE_SHARD)
        return false;
    for (uint32_t i = 0; i < slots->count; i++) {
        const struct coordinator_slot *slot = &slots->all[i];
        const bool leads = coordinator_shard_of(coordinator, slot->leader) == lost;
        if (slot->term < WEFT_LIMIT_TERM && (!leads || slot->chunks == 0 || slot->copy > 0)) continue;
        snprintf(why_out, why_bytes, "; slot %u of its chunks has no %s", i,
                 slot->term < WEFT_LIMIT_TERM ? "copy" : "further term");
        return false;
    }
    return live_endpoint(coordinator) != UINT32_MAX;
}

/* true: the slot has changed. A copy that was being made at the lost shard ends with the term. */
static bool slot_fail_over(struct weft_coordinator *coordinator, uint32_t number,
                           const struct coordinator_member *lost)
{
    struct coordinator_slot *slot = &coordinator->slots.all[number];
    const struct coordinator_move *move = &coordinator->slots.moves[number];
    const bool leads = coordinator_shard_of(coordinator, slot->leader) == lost,
               copies = slot->copy > 0 && coordinator_shard_of(coordinator, slot->copy - 1) == lost;
    const bool receives = move->kind == MOVE_COPY && coordinator_shard_of(coordinator, move->to) == lost;
    if (!leads && !copies && !receives) return false;
    if (leads) slot->leader = slot->copy > 0 ? slot->copy - 1 : live_endpoint(coordinator);
    if (leads || copies) slot->copy = 0;
    slot->term++;
    return true;
}

bool coordinator_slots_fail_over(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                                 const char *why, char *why_out, size_t why_bytes)
{
    why_out[0] = 0;
    if (!can_fail_over(coordinator, lost, why_out, why_bytes)) return false;
    struct coordinator_slots *slots = &coordinator->slots;
    char text[COORDINATOR_LABEL_BYTES + 160];
    bool *changed = weft_alloc_zero(coordinator->env, slots->count * sizeof *changed);
    uint32_t led = 0;
    if (!changed) return false;
    for (uint32_t i = 0; i < slots->count; i++) {
        led += coordinator_shard_of(coordinator, slots->all[i].leader) == lost;
        changed[i] = slot_fail_over(coordinator, i, lost);
    }
    snprintf(text, sizeof text, "%s lost: %.140s", lost->label, why);
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %s: %s; copies lead its %u slots",
             coordinator->job, text, led);
    coordinator_slots_changed(coordinator, changed, lost, text);
    weft_free_bytes(coordinator->env, changed);
    if (coordinator->state != COORDINATOR_ENDED) coordinator_declare_forget_shard(coordinator, lost->index);
    return true;
}

/* ---- another coordinator continues ---- */

enum weft_status coordinator_slots_restore(struct weft_coordinator *coordinator,
                                           const Weft__Control__Map *map)
{
    struct coordinator_slots *slots = &coordinator->slots;
    if (map->n_slots == 0) return WEFT_ERR_MALFORMED;
    slots->all = weft_alloc_zero(coordinator->env, map->n_slots * sizeof *slots->all);
    slots->moves = weft_alloc_zero(coordinator->env, map->n_slots * sizeof *slots->moves);
    if (!slots->all || !slots->moves) return WEFT_ERR_NO_MEMORY;
    slots->count = (uint32_t)map->n_slots;
    slots->version = map->version;
    for (uint32_t i = 0; i < slots->count; i++) {
        const Weft__Control__Slot *entry = map->slots[i];
        const uint32_t leader = endpoint_of(coordinator, entry->leader),
                       copy = entry->n_copies ? endpoint_of(coordinator, entry->copies[0]) : 0;
        if (entry->slot != i || leader == UINT32_MAX || copy == UINT32_MAX) return WEFT_ERR_MALFORMED;
        slots->all[i] = (struct coordinator_slot){
            .term = entry->term, .leader = leader, .copy = entry->n_copies ? copy + 1 : 0};
        slots->moves[i].is_former = entry->moving;
    }
    return WEFT_OK;
}

void coordinator_slots_repeat(struct weft_coordinator *coordinator, const struct coordinator_member *member)
{
    enum weft_status status = send_map(coordinator, NULL, NULL, "", member);
    for (uint32_t i = 0; i < coordinator->options.shards; i++) {
        const struct coordinator_member *shard = coordinator->membership.shards[i];
        char text[COORDINATOR_LABEL_BYTES + 16];
        if (shard->state < MEMBER_LEFT) continue;
        snprintf(text, sizeof text, "%s %s", shard->label, shard->state == MEMBER_LOST ? "lost" : "has left");
        if (status == WEFT_OK) status = send_map(coordinator, NULL, shard, text, member);
    }
    if (status < 0) coordinator_abort(coordinator, NULL, status, "the coordinator has no memory for its map");
}

void coordinator_slots_check_lost(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->options.shards; i++) {
        struct coordinator_member *shard = coordinator->membership.shards[i];
        bool has_slots = false;
        for (uint32_t s = 0; s < coordinator->slots.count && shard->state == MEMBER_LOST; s++)
            has_slots |= coordinator_shard_of(coordinator, coordinator->slots.all[s].leader) == shard ||
                         (coordinator->slots.all[s].copy > 0 &&
                          coordinator_shard_of(coordinator, coordinator->slots.all[s].copy - 1) == shard);
        if (!has_slots) continue;
        shard->state = MEMBER_READY;
        coordinator_member_lost(coordinator, shard, "it was lost when the coordinator ended");
    }
}
