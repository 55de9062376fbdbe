/* records_load.c - reads the records of a job into a new coordinator. See records.h.
 *
 * Each record was checked when it was decoded (proto/stored.c). This file checks how they fit each other. */
#include <stdio.h>
#include <string.h>

#include "coordinator/takeover/records.h"
#include "coordinator/takeover/reign.h"

/* ---- the store ---- */

static bool starts_with(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static void keep(struct coordinator_loaded *loaded, Weft__Control__Stored ***list, uint32_t *count,
                 Weft__Control__Stored *stored)
{
    if ((*count & (*count - 1)) == 0) { /* at 0 and the powers of two */
        Weft__Control__Stored **more = weft_alloc_array(loaded->env, *count ? 2 * *count : 1, sizeof *more);
        if (!more) {
            loaded->status = WEFT_ERR_NO_MEMORY;
            weft_stored_free(loaded->env, stored);
            return;
        }
        if (*count > 0) memcpy(more, *list, *count * sizeof *more);
        weft_free_bytes(loaded->env, *list);
        *list = more;
    }
    (*list)[(*count)++] = stored;
}

static void take_record(void *context, const struct weft_store_entry *entry)
{
    struct coordinator_loaded *loaded = context;
    Weft__Control__Stored *stored;
    if (loaded->status < 0 || strcmp(entry->key, COORDINATOR_REIGN_KEY) == 0) return;
    loaded->status = weft_stored_unpack(loaded->env, entry->value, entry->bytes, &stored);
    if (loaded->status < 0) return;
    const Weft__Control__Stored__BodyCase kind = stored->body_case;
    if (kind == WEFT__CONTROL__STORED__BODY_JOB && !loaded->job) loaded->job = stored;
    else if (kind == WEFT__CONTROL__STORED__BODY_SLOTS && !loaded->slots) loaded->slots = stored;
    else if (kind == WEFT__CONTROL__STORED__BODY_SNAPSHOTS && !loaded->snapshots) loaded->snapshots = stored;
    else if (kind == WEFT__CONTROL__STORED__BODY_SHRUNK && !loaded->shrunk) loaded->shrunk = stored;
    else if (kind == WEFT__CONTROL__STORED__BODY_MEMBER && starts_with(entry->key, "member/"))
        keep(loaded, &loaded->members, &loaded->member_count, stored);
    else if (kind == WEFT__CONTROL__STORED__BODY_TENSOR && starts_with(entry->key, "tensor/"))
        keep(loaded, &loaded->tensors, &loaded->tensor_count, stored);
    else {
        weft_stored_free(loaded->env, stored);
        loaded->status = WEFT_ERR_MALFORMED;
    }
}

enum weft_status coordinator_records_load(struct coordinator_reign *reign,
                                          struct coordinator_loaded *loaded_out)
{
    uint64_t revision;
    enum weft_status status = WEFT_ERR_BUSY;
    for (uint32_t tries = 0; tries < 500 && status == WEFT_ERR_BUSY; tries++) {
        *loaded_out = (struct coordinator_loaded){.env = reign->env};
        status = weft_store_snapshot(reign->store, "", take_record, loaded_out, &revision);
        if (status == WEFT_ERR_BUSY) coordinator_reign_pause(reign);
    }
    return status < 0 ? status : loaded_out->status;
}

void coordinator_loaded_free(struct coordinator_loaded *loaded)
{
    if (!loaded->env) return;
    weft_stored_free(loaded->env, loaded->job);
    weft_stored_free(loaded->env, loaded->slots);
    weft_stored_free(loaded->env, loaded->snapshots);
    weft_stored_free(loaded->env, loaded->shrunk);
    for (uint32_t i = 0; i < loaded->member_count; i++) weft_stored_free(loaded->env, loaded->members[i]);
    for (uint32_t i = 0; i < loaded->tensor_count; i++) weft_stored_free(loaded->env, loaded->tensors[i]);
    weft_free_bytes(loaded->env, loaded->members);
    weft_free_bytes(loaded->env, loaded->tensors);
    *loaded = (struct coordinator_loaded){0};
}

/* ---- members ---- */

static enum weft_status copy_addresses(struct weft_coordinator *coordinator,
                                       struct coordinator_member *member, const Weft__Control__Member *entry)
{
    if (entry->n_addresses == 0) return member->state == MEMBER_LOST ? WEFT_OK : WEFT_ERR_MALFORMED;
    member->addresses = weft_alloc_zero(coordinator->env, entry->n_addresses * sizeof *member->addresses);
    if (!member->addresses) return WEFT_ERR_NO_MEMORY;
    for (size_t i = 0; i < entry->n_addresses; i++) {
        uint8_t *copy = weft_alloc_bytes(coordinator->env, entry->addresses[i].len);
        if (!copy) return WEFT_ERR_NO_MEMORY;
        memcpy(copy, entry->addresses[i].data, entry->addresses[i].len);
        member->addresses[i] = (ProtobufCBinaryData){entry->addresses[i].len, copy};
    }
    return WEFT_OK;
}

static void fill_member(struct coordinator_member *member, const Weft__Control__StoredMember *stored)
{
    const Weft__Control__Member *entry = stored->member;
    struct coordinator_member_record *record = &member->record;
    member->role = entry->role;
    member->index = member->agreement.rank_order = entry->index;
    member->state = (enum coordinator_member_state)stored->state;
    snprintf(member->label, sizeof member->label, "%s", entry->name);
    snprintf(member->host, sizeof member->host, "%s", entry->host);
    snprintf(record->candidate, sizeof record->candidate, "%s", entry->candidate);
    member->abilities.wire.oldest = WEFT_WIRE_VERSION_OLDEST; /* not used after the start */
    member->abilities.wire.newest = entry->wire_newest ? entry->wire_newest : 1;
    member->abilities.has_device = entry->device;
    member->abilities.supports_states = entry->states;
    member->abilities.supports_groups = entry->groups;
    member->abilities.supports_free = stored->frees;
    member->abilities.supports_progress = stored->progress;
    member->abilities.reads_chunk_runs = stored->chunk_runs;
    member->abilities.supports_moves = stored->moves;
    member->abilities.supports_rollback = stored->rollback;
    snprintf(member->abilities.zone, sizeof member->abilities.zone, "%s", stored->zone);
    member->is_draining = stored->draining;
    member->abilities.has_snapshots = stored->snapshots;
    member->addition.is_supported = stored->additions;
    member->addition.is_entering = stored->entering;
    member->newcomer = stored->outside;
    if (stored->outside) member->state = MEMBER_LOST;
    member->pid = entry->pid;
    member->incarnation = entry->incarnation;
    member->endpoint_first = entry->endpoint_first;
    member->endpoint_count = (uint32_t)entry->n_addresses;
    if (stored->worker) {
        member->agreement.rank_order = stored->worker->rank_order;
        member->newcomer = stored->worker->newcomer;
        member->agreement.joined = stored->worker->joined;
        member->agreement.join_epoch = stored->worker->join_epoch;
        member->agreement.committed = stored->worker->committed;
        member->agreement.codec_steps = stored->worker->codec_steps;
    }
    memcpy(record->resume_key, stored->resume_key.data, sizeof record->resume_key);
    record->process_bytes = stored->process.len;
    if (record->process_bytes) memcpy(record->process, stored->process.data, record->process_bytes);
}

static enum weft_status add_member(struct weft_coordinator *coordinator, struct coordinator_member **out)
{
    struct coordinator_member *member =
        coordinator_members_reserve(coordinator) ? weft_alloc_zero(coordinator->env, sizeof *member) : NULL;
    if (!member) return WEFT_ERR_NO_MEMORY;
    member->member = coordinator->membership.member_count;
    coordinator->membership.members[coordinator->membership.member_count++] = *out = member;
    return WEFT_OK;
}

/* A worker or shard that was lost before the others had its addresses has no record. */
static enum weft_status add_gaps(struct weft_coordinator *coordinator, uint32_t end)
{
    struct coordinator_member *member;
    while (coordinator->membership.member_count < end) {
        WEFT_TRY(add_member(coordinator, &member));
        member->role = WEFT__CONTROL__ROLE__ROLE_SHARD;
        member->index = UINT32_MAX;
        member->newcomer = true;
        member->state = MEMBER_LOST;
        snprintf(member->label, sizeof member->label, "a member that has not joined");
    }
    return WEFT_OK;
}

/* A shard that confirms the tensors continues with this coordinator. */
static void restore_addition(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    coordinator->addition = (struct coordinator_addition){.shard = shard,
                                                          .began_ns = weft_now_ns(coordinator->env),
                                                          .epoch = coordinator->epochs.epoch_in_force,
                                                          .count = coordinator->addition.count};
}

static enum weft_status restore_member(struct weft_coordinator *coordinator,
                                       const Weft__Control__StoredMember *stored)
{
    const Weft__Control__Member *entry = stored->member;
    const bool is_worker = entry->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    const bool is_elastic = coordinator->options.workers_min > 0;
    const bool is_in = !stored->outside;
    const uint32_t least = is_elastic && is_worker ? MEMBER_ADDRESSED : MEMBER_READY;
    struct coordinator_member *member;
    if (entry->member < coordinator->membership.member_count || (is_in && stored->state < least) ||
        stored->state > MEMBER_LOST || (is_worker && !is_in) ||
        (stored->worker != NULL) != (is_elastic && is_worker))
        return WEFT_ERR_MALFORMED;
    if (!is_worker && is_in &&
        (entry->index >= coordinator->options.shards || coordinator->membership.shards[entry->index]))
        return WEFT_ERR_MALFORMED;
    WEFT_TRY(add_gaps(coordinator, entry->member));
    WEFT_TRY(add_member(coordinator, &member));
    fill_member(member, stored);
    member->last_received_ns = weft_now_ns(coordinator->env);
    if (!is_worker && is_in)
        coordinator->membership.shards[entry->index] = member, coordinator->membership.shard_count++;
    return copy_addresses(coordinator, member, entry);
}

/* StoredJob.members: in elastic jobs one above the largest number of a member, in others the number of
 * records. */
static enum weft_status restore_members(struct weft_coordinator *coordinator,
                                        const struct coordinator_loaded *loaded)
{
    const uint32_t count = loaded->job->job->members;
    const bool is_elastic = coordinator->options.workers_min > 0;
    const uint32_t end = is_elastic ? count : count + WEFT_LIMIT_SHARDS;
    if (loaded->member_count > count || (!is_elastic && loaded->member_count != count))
        return WEFT_ERR_MALFORMED;
    for (uint32_t i = 0; i < loaded->member_count; i++) {
        const Weft__Control__StoredMember *stored = loaded->members[i]->member;
        if (stored->member->member >= end) return WEFT_ERR_MALFORMED;
        WEFT_TRY(restore_member(coordinator, stored));
    }
    if (is_elastic) WEFT_TRY(add_gaps(coordinator, count));
    WEFT_TRY(coordinator_membership_restore(coordinator, loaded));
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (coordinator->membership.shards[i]->addition.is_entering)
            restore_addition(coordinator, coordinator->membership.shards[i]);
    return WEFT_OK;
}

/* ---- all ---- */

void coordinator_loaded_options(const struct coordinator_loaded *loaded,
                                struct weft_coordinator_options *options)
{
    const Weft__Control__StoredJob *job = loaded->job->job;
    options->workers = job->workers;
    options->shards = job->shards;
    options->copies = job->copies;
    options->copies_on_one_host = job->copies_on_one_host;
    options->snapshots.allow_rollback = job->rollback;
    options->heartbeat_ns = job->heartbeat_ns;
    options->resume_ns = job->resume_ns;
    if (!job->membership) return;
    options->workers_min = job->membership->workers_min;
    options->workers_max = job->membership->workers_max;
}

/* The coordinator owns the copies of byte fields. */
static void restore_numbers(struct weft_coordinator *coordinator, Weft__Control__StoredJob *job)
{
    coordinator->job_id = job->job_id;
    coordinator->transport_nonce = job->transport_nonce;
    coordinator->membership.next_incarnation = job->next_incarnation;
    coordinator->membership.next_endpoint = job->next_endpoint;
    coordinator->wire_version = job->wire_version ? job->wire_version : 1;
    if (job->cost) coordinator_keep_cost(coordinator, job->cost);
    coordinator->records.has_begun = coordinator->records.is_restored = true;
}

enum weft_status coordinator_records_restore(struct weft_coordinator *coordinator,
                                             const struct coordinator_loaded *loaded)
{
    restore_numbers(coordinator, loaded->job->job);
    if (!loaded->slots) return WEFT_ERR_MALFORMED;
    WEFT_TRY(restore_members(coordinator, loaded));
    WEFT_TRY(coordinator_placement_init(coordinator));
    WEFT_TRY(coordinator_slots_restore(coordinator, loaded->slots->slots));
    for (uint32_t i = 0; i < loaded->tensor_count; i++)
        WEFT_TRY(coordinator_tensor_restore(coordinator, loaded->tensors[i]->tensor));
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        coordinator->membership.members[i]->declared_count = coordinator->table.tensor_count;
    if (loaded->snapshots) coordinator_snapshot_restore(coordinator, loaded->snapshots->snapshots);
    coordinator_continue(coordinator);
    return WEFT_OK;
}
