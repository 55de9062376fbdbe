/* records.c - marks of changed state, and the transactions that write it. See records.h. */
#include "coordinator/takeover/records.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/takeover/reign.h"

/* ---- marks ---- */

void coordinator_records_begin(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    records->has_begun = records->is_marked = records->job_is_marked = records->slots_are_marked = true;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        coordinator_records_member(coordinator, coordinator->membership.members[i]);
    coordinator_records_snapshots(coordinator);
}

void coordinator_records_numbers(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    coordinator->records.job_is_marked = true;
    coordinator_records_member(coordinator, shard);
}

void coordinator_records_slots(struct coordinator_records *records)
{
    records->is_marked = records->slots_are_marked = true;
}

void coordinator_records_member(struct weft_coordinator *coordinator, struct coordinator_member *member)
{
    coordinator->records.is_marked = member->record.is_marked = true;
}

void coordinator_records_tensor(struct weft_coordinator *coordinator, struct coordinator_tensor *tensor)
{
    coordinator->records.is_marked = tensor->is_marked = true;
}

void coordinator_records_snapshots(struct weft_coordinator *coordinator)
{
    if (coordinator->snapshot.answered || coordinator->options.snapshots.restored_step > 0)
        coordinator->records.is_marked = coordinator->records.snapshots_are_marked = true;
}

void coordinator_records_job(struct weft_coordinator *coordinator)
{
    coordinator->records.is_marked = coordinator->records.job_is_marked = true;
}

/* ---- one transaction ---- */

struct batch {
    struct weft_coordinator *coordinator;
    size_t count;
    bool has_failed;
    char keys[WEFT_STORE_TXN_CHANGES][24];
    struct weft_store_put puts[WEFT_STORE_TXN_CHANGES];
};

static void batch_write(struct batch *batch)
{
    struct weft_coordinator *coordinator = batch->coordinator;
    if (batch->count > 0 && !batch->has_failed)
        batch->has_failed = !coordinator_reign_write(coordinator->records.reign, batch->puts, batch->count);
    for (size_t i = 0; i < batch->count; i++)
        weft_free_bytes(coordinator->env, (void *)(uintptr_t)batch->puts[i].value);
    batch->count = 0;
}

static void batch_put(struct batch *batch, const char *key, uint8_t *data, size_t bytes)
{
    snprintf(batch->keys[batch->count], sizeof batch->keys[0], "%s", key);
    batch->puts[batch->count] =
        (struct weft_store_put){.key = batch->keys[batch->count], .value = data, .bytes = bytes};
    batch->count++;
}

static void batch_add(struct batch *batch, const char *key, const Weft__Control__Stored *stored)
{
    uint8_t *data;
    size_t bytes;
    if (batch->count == WEFT_STORE_TXN_CHANGES) batch_write(batch);
    if (batch->has_failed) return;
    const enum weft_status status = weft_stored_pack(batch->coordinator->env, stored, &data, &bytes);
    if (status < 0) {
        weft_log(batch->coordinator->env, WEFT_LOG_ERROR, "coordinator", "record %s of the store: %s", key,
                 weft_reason_text(status));
        batch->has_failed = true;
        return;
    }
    batch_put(batch, key, data, bytes);
}

/* ---- records ---- */

/* A shard may be lost before its addresses arrive. */
static bool has_record(const struct coordinator_member *member)
{
    return member->addresses || (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD && !member->newcomer);
}

/* In elastic jobs the number of a member without a record counts, and is not used again. */
static uint32_t count_members(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        count += coordinator->options.workers_min > 0 || has_record(coordinator->membership.members[i]);
    return count;
}

static void add_job(struct batch *batch)
{
    struct weft_coordinator *coordinator = batch->coordinator;
    const struct weft_coordinator_options *options = &coordinator->options;
    Weft__Control__StoredJob job = WEFT__CONTROL__STORED_JOB__INIT;
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    job.job_id = coordinator->job_id;
    job.transport_nonce = coordinator->transport_nonce;
    job.workers = coordinator->membership.workers_at_start;
    job.shards = coordinator->rollback.step > 0 ? coordinator->rollback.shards : options->shards;
    job.copies = options->copies;
    job.copies_on_one_host = options->copies_on_one_host;
    job.rollback = options->snapshots.allow_rollback;
    job.next_incarnation = coordinator->membership.next_incarnation;
    job.next_endpoint = coordinator->membership.next_endpoint;
    job.heartbeat_ns = options->heartbeat_ns;
    job.resume_ns = options->resume_ns;
    job.waits = !coordinator->records.has_begun;
    job.members = job.waits ? job.workers + job.shards : count_members(coordinator);
    job.ended = coordinator->records.has_ended;
    job.wire_version = coordinator_wire_written(coordinator);
    if (coordinator->link.cost_known) job.cost = &coordinator->link.cost;
    Weft__Control__StoredMembership membership = WEFT__CONTROL__STORED_MEMBERSHIP__INIT;
    membership.workers_min = options->workers_min;
    membership.workers_max = options->workers_max;
    membership.epoch = coordinator->epochs.epoch;
    if (options->workers_min > 0) job.membership = &membership;
    stored.body_case = WEFT__CONTROL__STORED__BODY_JOB;
    stored.job = &job;
    batch_add(batch, COORDINATOR_JOB_KEY, &stored);
}

static void fill_worker(const struct coordinator_member *member, Weft__Control__StoredWorker *worker)
{
    weft__control__stored_worker__init(worker);
    worker->rank_order = member->agreement.rank_order;
    worker->newcomer = member->newcomer;
    worker->joined = member->agreement.joined;
    worker->join_epoch = member->agreement.join_epoch;
    worker->committed = member->agreement.committed;
    worker->codec_steps = member->agreement.codec_steps;
}

static void add_member(struct batch *batch, const struct coordinator_member *member)
{
    const bool is_worker = member->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    Weft__Control__StoredWorker worker;
    Weft__Control__Member entry;
    Weft__Control__StoredMember body = WEFT__CONTROL__STORED_MEMBER__INIT;
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    const struct coordinator_member_record *record = &member->record;
    char key[24];
    coordinator_describe(member, &entry);
    body.member = &entry;
    body.state = (uint32_t)member->state;
    body.resume_key =
        (ProtobufCBinaryData){sizeof record->resume_key, (uint8_t *)(uintptr_t)record->resume_key};
    body.process = (ProtobufCBinaryData){record->process_bytes, (uint8_t *)(uintptr_t)record->process};
    body.frees = member->abilities.supports_free;
    body.progress = member->abilities.supports_progress;
    body.chunk_runs = member->abilities.reads_chunk_runs;
    body.moves = member->abilities.supports_moves;
    body.rollback = member->abilities.supports_rollback;
    body.zone = (char *)(uintptr_t)member->abilities.zone;
    body.draining = member->is_draining;
    body.snapshots = member->abilities.has_snapshots;
    body.additions = member->addition.is_supported;
    body.entering = member->addition.is_entering;
    body.outside = member->newcomer && !is_worker; /* a worker that waits: StoredWorker */
    fill_worker(member, &worker);
    if (batch->coordinator->options.workers_min > 0 && is_worker) body.worker = &worker;
    stored.body_case = WEFT__CONTROL__STORED__BODY_MEMBER;
    stored.member = &body;
    snprintf(key, sizeof key, "member/%05u", member->member);
    batch_add(batch, key, &stored);
}

static void add_slots(struct batch *batch)
{
    const struct weft_coordinator *coordinator = batch->coordinator;
    const struct coordinator_slots *slots = &coordinator->slots;
    Weft__Control__Map map = WEFT__CONTROL__MAP__INIT;
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    void *memory = coordinator_slots_describe(coordinator, NULL, &map);
    if (!memory) {
        batch->has_failed = true;
        return;
    }
    map.version = slots->version;
    stored.body_case = WEFT__CONTROL__STORED__BODY_SLOTS;
    stored.slots = &map;
    batch_add(batch, "slots", &stored);
    weft_free_bytes(coordinator->env, memory);
}

static void add_tensor(struct batch *batch, struct coordinator_tensor *tensor)
{
    struct weft_coordinator *coordinator = batch->coordinator;
    const uint32_t workers = coordinator->options.workers;
    Weft__Control__Declared declared = WEFT__CONTROL__DECLARED__INIT;
    Weft__Control__StoredTensor body = WEFT__CONTROL__STORED_TENSOR__INIT;
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    Weft__Control__Chunk **chunks =
        weft_alloc_array(coordinator->env, tensor->chunk_count + 1, sizeof *chunks);
    uint32_t *freed_by = weft_alloc_array(coordinator->env, workers, sizeof *freed_by);
    char key[24];
    declared.tensor = tensor->declare.ordinal;
    declared.declare = &tensor->declare;
    declared.n_chunks = tensor->chunk_count;
    declared.chunks = chunks;
    declared.restored = tensor->restored;
    for (uint32_t i = 0; chunks && i < tensor->chunk_count; i++) chunks[i] = &tensor->chunks[i];
    const bool is_elastic = coordinator->options.workers_min > 0; /* its workers repeat TensorFree */
    for (uint32_t i = 0; freed_by && i < workers; i++)
        if (tensor->is_freed || (!is_elastic && tensor->freed_by && tensor->freed_by[i]))
            freed_by[body.n_freed_by++] = i;
    body.declared = &declared;
    body.announced = tensor->announced;
    body.freed_by = freed_by;
    stored.body_case = WEFT__CONTROL__STORED__BODY_TENSOR;
    stored.tensor = &body;
    snprintf(key, sizeof key, "tensor/%05u", tensor->declare.ordinal);
    if (chunks && freed_by) batch_add(batch, key, &stored);
    else batch->has_failed = true;
    weft_free_bytes(coordinator->env, chunks);
    weft_free_bytes(coordinator->env, freed_by);
}

static void add_snapshots(struct batch *batch)
{
    const struct weft_coordinator *coordinator = batch->coordinator;
    const struct weft_coordinator_options *options = &coordinator->options;
    const struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    Weft__Control__StoredSnapshots body = WEFT__CONTROL__STORED_SNAPSHOTS__INIT;
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    body.every_steps = options->snapshots.steps;
    body.every_ns = options->snapshots.period_ns;
    body.restored_step = options->snapshots.restored_step;
    body.restored_parts = options->snapshots.restored_parts;
    body.id = snapshot->id;
    body.step = snapshot->state == SNAPSHOT_IDLE ? 0 : snapshot->step;
    body.complete = snapshot->complete;
    stored.body_case = WEFT__CONTROL__STORED__BODY_SNAPSHOTS;
    stored.snapshots = &body;
    batch_add(batch, "snapshots", &stored);
}

static void add_shrunk(struct batch *batch)
{
    const struct coordinator_records *records = &batch->coordinator->records;
    uint8_t *copy = records->shrunk ? weft_alloc_bytes(batch->coordinator->env, records->shrunk_bytes) : NULL;
    if (!copy) {
        batch->has_failed = true;
        return;
    }
    memcpy(copy, records->shrunk, records->shrunk_bytes);
    batch_put(batch, "shrunk", copy, records->shrunk_bytes);
}

/* ---- commit ---- */

static void fence(struct weft_coordinator *coordinator, const char *why)
{
    if (coordinator->records.is_fenced) return;
    coordinator->records.is_fenced = true;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "this process does not coordinate job %s any more: %s", coordinator->job, why);
}

/* The job last: with it, another process may continue from the others. Slots before members: a member that
 * is lost leads no slot. */
static bool write_marked(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    struct batch *batch = weft_alloc_zero(coordinator->env, sizeof *batch);
    if (!batch) return false;
    batch->coordinator = coordinator;
    if (records->shrunk_is_marked) add_shrunk(batch);
    if (records->slots_are_marked) add_slots(batch);
    if (records->snapshots_are_marked) add_snapshots(batch);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->record.is_marked &&
            has_record(coordinator->membership.members[i]))
            add_member(batch, coordinator->membership.members[i]);
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++)
        if (coordinator->table.tensors[i]->is_marked) add_tensor(batch, coordinator->table.tensors[i]);
    if (records->job_is_marked) add_job(batch);
    batch_write(batch);
    const bool is_written = !batch->has_failed;
    weft_free_bytes(coordinator->env, batch);
    return is_written;
}

/* Before the job begins the store has no record of a member. */
static bool write_waiting(struct weft_coordinator *coordinator)
{
    struct batch *batch = weft_alloc_zero(coordinator->env, sizeof *batch);
    if (!batch) return false;
    batch->coordinator = coordinator;
    add_job(batch);
    batch_write(batch);
    const bool is_written = !batch->has_failed;
    weft_free_bytes(coordinator->env, batch);
    return is_written;
}

bool coordinator_records_wait(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    if (!write_waiting(coordinator))
        fence(coordinator, records->reign->has_ended ? records->reign->why : "its records cannot be written");
    return !records->is_fenced;
}

static void unmark(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    records->is_marked = records->job_is_marked = records->slots_are_marked = false;
    records->snapshots_are_marked = records->shrunk_is_marked = false;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        coordinator->membership.members[i]->record.is_marked = false;
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++)
        coordinator->table.tensors[i]->is_marked = false;
}

bool coordinator_records_is_fenced(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    if (records->reign && !coordinator_reign_holds(records->reign)) fence(coordinator, records->reign->why);
    return records->is_fenced;
}

bool coordinator_records_commit(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    if (!records->reign) return true;
    if (coordinator_records_is_fenced(coordinator)) return false;
    if (!records->is_marked || !records->has_begun) return true;
    if (write_marked(coordinator)) unmark(coordinator);
    else
        fence(coordinator, records->reign->has_ended ? records->reign->why : "its records cannot be written");
    return !records->is_fenced;
}

bool coordinator_records_begin_again(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    records->has_begun = false;
    if (records->reign && !coordinator_records_is_fenced(coordinator) &&
        coordinator_records_wait(coordinator))
        (void)coordinator_reign_clear(records->reign); /* the next coordinator clears it, too */
    records->has_ended = true;
    return !records->is_fenced;
}

bool coordinator_records_end(struct weft_coordinator *coordinator)
{
    struct coordinator_records *records = &coordinator->records;
    if (records->has_ended) return coordinator_records_commit(coordinator);
    records->has_ended = records->is_marked = records->job_is_marked = true;
    if (records->reign && !records->has_begun && !coordinator_records_is_fenced(coordinator))
        return coordinator_records_wait(coordinator);
    return coordinator_records_commit(coordinator);
}
