/* begin.c - from the addresses of all members to Go: Endpoints, Roster, Ready; and a loss meanwhile. */
#include "coordinator/coordinator_state.h"
#include "coordinator/members/members.h"
#include "coordinator/takeover/records.h"

#include <stdio.h>
#include <string.h>

/* True if each member that is not lost is in this state, and none is missing. */
static bool all_members_at(const struct weft_coordinator *coordinator, enum coordinator_member_state state)
{
    if (coordinator->membership.worker_count < coordinator->options.workers ||
        coordinator->membership.shard_count < coordinator->options.shards)
        return false;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->state != state &&
            coordinator->membership.members[i]->state != MEMBER_LOST)
            return false;
    return true;
}

/* Names the member that is lost if the coordinator's connection is lost: the member in the same process, if
 * there is one. */
static void describe_coordinator(const struct weft_coordinator *coordinator, char *out, size_t out_bytes)
{
    unsigned long long pid = coordinator->options.process.pid;
    snprintf(out, out_bytes, "coordinator (%.200s, pid %llu)", coordinator->host, pid);
    for (uint32_t i = 0; pid && i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        if (member->pid == pid && strcmp(member->host, coordinator->host) == 0)
            snprintf(out, out_bytes, "%.250s", member->label);
    }
}

void coordinator_describe(const struct coordinator_member *member, Weft__Control__Member *entry)
{
    weft__control__member__init(entry);
    entry->member = member->member;
    entry->role = member->role;
    entry->index = member->index;
    entry->name = (char *)member->label;
    entry->host = (char *)member->host;
    entry->device = member->abilities.has_device;
    entry->states = member->abilities.supports_states;
    entry->groups = member->abilities.supports_groups;
    entry->pid = member->pid;
    entry->incarnation = member->incarnation;
    entry->endpoint_first = member->endpoint_first;
    entry->n_addresses = member->endpoint_count;
    entry->addresses = member->addresses;
    entry->candidate = (char *)member->record.candidate;
    entry->wire_newest = member->abilities.wire.newest > 1 ? member->abilities.wire.newest : 0;
}

/* Returns 0 if no worker has reported its deadline. */
static uint64_t shortest_deadline_ms(const struct weft_coordinator *coordinator)
{
    uint64_t shortest_ms = UINT64_MAX;
    for (uint32_t i = 0; i < coordinator->options.workers; i++) {
        const struct coordinator_member *worker = coordinator->membership.workers[i];
        const uint64_t deadline_ms = worker ? worker->abilities.deadline_ms : 0;
        if (deadline_ms > 0 && deadline_ms < shortest_ms) shortest_ms = deadline_ms;
    }
    return shortest_ms < UINT64_MAX ? shortest_ms : 0;
}

enum weft_status coordinator_send_roster(struct weft_coordinator *coordinator,
                                         const struct coordinator_member *to)
{
    uint32_t count = coordinator->options.workers + coordinator->options.shards + 1;
    const bool adds = to && to == coordinator->addition.shard;
    Weft__Control__Member *entries = weft_alloc_array(coordinator->env, count, sizeof *entries);
    Weft__Control__Member **pointers = weft_alloc_array(coordinator->env, count, sizeof *pointers);
    uint32_t used = 0;
    for (uint32_t i = 0; entries && pointers && i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        const bool shard = member->role == WEFT__CONTROL__ROLE__ROLE_SHARD;
        struct coordinator_member *const *by_index =
            shard ? coordinator->membership.shards : coordinator->membership.workers;
        const uint32_t most = shard ? coordinator->options.shards : coordinator->options.workers;
        const bool is_in_force = member->index < most && by_index[member->index] == member &&
                                 !(shard && member->state >= MEMBER_LEFT);
        if (!is_in_force && !(adds && member == to)) continue;
        WEFT_ASSERT(used < count);
        coordinator_describe(member, &entries[used]);
        pointers[used] = &entries[used];
        used++;
    }
    char name[WEFT_LIMIT_NAME_BYTES + 1];
    describe_coordinator(coordinator, name, sizeof name);
    Weft__Control__Roster roster = WEFT__CONTROL__ROSTER__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    roster.epoch = coordinator->epochs.epoch_in_force;
    roster.n_members = used;
    roster.members = pointers;
    roster.coordinator = name;
    roster.wire_version = coordinator_wire_written(coordinator);
    roster.deadline_ms = shortest_deadline_ms(coordinator);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ROSTER;
    message.roster = &roster;
    bool has_memory = entries && pointers;
    if (has_memory && to) coordinator_send(coordinator, to, &message);
    if (has_memory && !to) coordinator_broadcast(coordinator, &message, NULL);
    weft_free_bytes(coordinator->env, entries);
    weft_free_bytes(coordinator->env, pointers);
    return has_memory ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* A shard that was lost before its addresses arrived has no endpoints. */
static void forget_endpoints(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (!coordinator->membership.shards[i]->addresses)
            coordinator->membership.shards[i]->endpoint_count = 0;
}

static void send_roster(struct weft_coordinator *coordinator)
{
    coordinator_wire_choose(coordinator);
    forget_endpoints(coordinator);
    if (coordinator_placement_init(coordinator) != WEFT_OK) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the roster of %u members",
                          coordinator->membership.member_count);
        return;
    }
    struct weft_error error = {0};
    enum weft_status status = WEFT_OK;
    if (coordinator->records.reign && coordinator->options.workers_min > 0)
        status =
            coordinator_wire_check(coordinator, 2, "server.store in a job whose workers may change", &error);
    if (status == WEFT_OK) status = coordinator_slots_init(coordinator, &error);
    if (status < 0) {
        coordinator_abort(coordinator, NULL, status, "%s", error.text);
        return;
    }
    coordinator_enter(coordinator, COORDINATOR_CONNECTING);
    if (coordinator_send_roster(coordinator, NULL) != WEFT_OK)
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the roster of %u members",
                          coordinator->membership.member_count);
    else coordinator_slots_send(coordinator, NULL);
}

/* Copies need two shards. */
static uint32_t count_live_shards(const struct weft_coordinator *coordinator)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        live += coordinator->membership.shards[i] && coordinator->membership.shards[i]->state < MEMBER_LEFT;
    return live;
}

/* The lost shard has sent no Hello. It gets the abilities of another shard, so that it disables no feature
 * of the job. */
static void describe_former(struct weft_coordinator *coordinator, struct coordinator_member *former)
{
    const struct coordinator_member *other = coordinator->membership.shards[former->index == 0];
    former->abilities = other->abilities;
    former->abilities.wire = coordinator_wire_range(coordinator);
    former->addition = other->addition;
    snprintf(former->host, sizeof former->host, "-");
    snprintf(former->label, sizeof former->label, "shard %u, that of the former coordinator", former->index);
}

/* The shard of the former coordinator: if all other members have joined, the job begins without it. */
static bool add_former(struct weft_coordinator *coordinator)
{
    struct coordinator_member *former;
    uint32_t index = 0;
    const struct coordinator_membership *membership = &coordinator->membership;
    if (!coordinator->options.begins_again || membership->shard_count + 1 != coordinator->options.shards ||
        membership->worker_count < coordinator->options.workers || count_live_shards(coordinator) < 2)
        return false;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->state < MEMBER_ADDRESSED) return false;
    former =
        coordinator_members_reserve(coordinator) ? weft_alloc_zero(coordinator->env, sizeof *former) : NULL;
    if (!former) return false; /* the job waits for that shard */
    while (coordinator->membership.shards[index]) index++;
    former->role = WEFT__CONTROL__ROLE__ROLE_SHARD;
    former->index = former->agreement.rank_order = index;
    former->state = MEMBER_LOST;
    describe_former(coordinator, former);
    former->incarnation = coordinator->membership.next_incarnation++;
    former->member = coordinator->membership.member_count;
    coordinator->membership.members[coordinator->membership.member_count++] = former;
    coordinator->membership.shards[index] = former;
    coordinator->membership.shard_count++;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %s begins without %s", coordinator->job,
             former->label);
    return true;
}

static void send_roster_if_due(struct weft_coordinator *coordinator)
{
    if (coordinator->state != COORDINATOR_JOINING) return;
    if (all_members_at(coordinator, MEMBER_ADDRESSED) || add_former(coordinator)) send_roster(coordinator);
}

/* Before Roster. Copies need two shards, which are live or have not joined yet. */
bool coordinator_begins_without(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                                const char *why)
{
    uint32_t left = coordinator->options.shards - coordinator->membership.shard_count;
    if (coordinator->state != COORDINATOR_JOINING || coordinator->options.copies == 0 ||
        lost->role != WEFT__CONTROL__ROLE__ROLE_SHARD)
        return false;
    left += count_live_shards(coordinator);
    if (left < 2) return false;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "job %s: %s lost: %.140s; the job begins without it, or with a shard that joins in its place",
             coordinator->job, lost->label, why);
    send_roster_if_due(coordinator);
    return true;
}

void coordinator_addresses_free(struct weft_coordinator *coordinator, struct coordinator_member *member)
{
    for (uint32_t i = 0; member->addresses && i < member->endpoint_count; i++)
        weft_free_bytes(coordinator->env, member->addresses[i].data);
    weft_free_bytes(coordinator->env, member->addresses);
    member->addresses = NULL;
}

void coordinator_endpoints(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__Endpoints *endpoints)
{
    if (member->state != MEMBER_WELCOMED || endpoints->n_addresses != member->endpoint_count) {
        coordinator_member_lost(coordinator, member,
                                member->state != MEMBER_WELCOMED
                                    ? "it sent Endpoints twice"
                                    : "it sent another number of addresses than announced");
        return;
    }
    member->addresses = weft_alloc_zero(coordinator->env, member->endpoint_count * sizeof *member->addresses);
    bool stored = member->addresses != NULL;
    for (uint32_t i = 0; stored && i < member->endpoint_count; i++) {
        size_t bytes = endpoints->addresses[i].len;
        uint8_t *copy = weft_alloc_bytes(coordinator->env, bytes);
        stored = copy != NULL;
        if (!stored) break;
        memcpy(copy, endpoints->addresses[i].data, bytes);
        member->addresses[i] = (ProtobufCBinaryData){bytes, copy};
    }
    if (!stored) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the addresses of %s", member->label);
        return;
    }
    member->state = MEMBER_ADDRESSED;
    if (member == coordinator->addition.shard) {
        coordinator_add_addressed(coordinator);
    } else if (member->newcomer) {
        coordinator_records_member(coordinator, member);
        coordinator_grow(coordinator);
    } else {
        send_roster_if_due(coordinator);
    }
}

/* only: NULL: all members. is_first: the members begin with the job. */
void coordinator_send_go(struct weft_coordinator *coordinator, const struct coordinator_member *only,
                         bool is_first)
{
    Weft__Control__Go go = WEFT__CONTROL__GO__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    go.epoch = coordinator->epochs.epoch_in_force;
    go.committed = coordinator->epochs.committed;
    go.codec_steps = coordinator->epochs.codec_steps;
    while (go.tensors < coordinator->table.tensor_count && coordinator->table.tensors[go.tensors]->announced)
        go.tensors++;
    if (coordinator->link.cost_known) go.cost = &coordinator->link.cost;
    go.parts = is_first ? coordinator->options.snapshots.restored_parts : 0;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_GO;
    message.go = &go;
    if (only) coordinator_send(coordinator, only, &message);
    else coordinator_broadcast(coordinator, &message, NULL);
}

/* Copies bytes for Go. Without memory the copy is empty, for all members. */
static ProtobufCBinaryData copy_of(const struct weft_coordinator *coordinator,
                                   const ProtobufCBinaryData *data)
{
    uint8_t *copy = data->len > 0 ? weft_alloc_bytes(coordinator->env, data->len) : NULL;
    if (copy) memcpy(copy, data->data, data->len);
    return (ProtobufCBinaryData){.len = copy ? data->len : 0, .data = copy};
}

void coordinator_cost_fini(struct weft_coordinator *coordinator)
{
    weft_free_bytes(coordinator->env, coordinator->link.cost.ring.data);
    weft_free_bytes(coordinator->env, coordinator->link.cost.runs.data);
    weft_free_bytes(coordinator->env, coordinator->link.cost.calibration.data);
    coordinator->link.cost = (Weft__Control__LinkCost)WEFT__CONTROL__LINK_COST__INIT;
}

/* Keeps the link cost that rank 0 sent, for Go. Its numbers and blobs are not interpreted here. */
void coordinator_keep_cost(struct weft_coordinator *coordinator, const Weft__Control__LinkCost *sent)
{
    coordinator_cost_fini(coordinator);
    coordinator->link.cost = *sent;
    coordinator->link.cost.base =
        (ProtobufCMessage)PROTOBUF_C_MESSAGE_INIT(&weft__control__link_cost__descriptor);
    coordinator->link.cost.ring = copy_of(coordinator, &sent->ring);
    coordinator->link.cost.runs = copy_of(coordinator, &sent->runs);
    coordinator->link.cost.calibration = copy_of(coordinator, &sent->calibration);
    coordinator->link.cost_known = true;
}

void coordinator_begin_if_ready(struct weft_coordinator *coordinator)
{
    if (coordinator->state != COORDINATOR_CONNECTING || !all_members_at(coordinator, MEMBER_READY)) return;
    coordinator_enter(coordinator, COORDINATOR_RUNNING);
    coordinator_records_begin(coordinator);
    coordinator_send_go(coordinator, NULL, true);
    coordinator_snapshot_tick(coordinator, weft_now_ns(coordinator->env));
}

void coordinator_ready(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       const Weft__Control__Ready *ready)
{
    if (member == coordinator->addition.shard && member->newcomer) {
        coordinator_add_ready(coordinator);
        return;
    }
    /* a newcomer that was admitted and has received its roster */
    bool late = coordinator->state == COORDINATOR_RUNNING && !member->newcomer;
    if ((coordinator->state != COORDINATOR_CONNECTING && !late) || member->state != MEMBER_ADDRESSED ||
        ready->epoch == 0 || ready->epoch > coordinator->epochs.epoch_in_force) {
        coordinator_member_lost(coordinator, member, "it sent Ready when that was not due");
        return;
    }
    member->state = MEMBER_READY;
    if (late) {
        coordinator_records_member(coordinator, member);
        coordinator_send_go(coordinator, member, false);
        return;
    }
    if (ready->cost && member->role == WEFT__CONTROL__ROLE__ROLE_WORKER && member->index == 0)
        coordinator_keep_cost(coordinator, ready->cost);
    coordinator_begin_if_ready(coordinator);
}
