/* fuzz_takeover.c - records of a store that another process has written: a coordinator continues from them,
 * or refuses them. Input: records, each behind its length, u16. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/takeover/records.h"
#include "tests/fuzz/fuzz.h"

enum { RECORDS_MAX = 16 };

static struct weft_env *quiet(void)
{
    static struct weft_env env;
    if (!env.alloc) env = *weft_env_system();
    env.log_level = WEFT_LOG_ERROR;
    return &env;
}

static void ignore(void *context, uint64_t connection, const Weft__Control__Control *message)
{
    uint8_t *packed;
    size_t bytes;
    if (weft_control_pack(quiet(), message, &packed, &bytes) == WEFT_OK) weft_free_bytes(quiet(), packed);
}

static void ignore_close(void *context, uint64_t connection, const char *why) {}

/* All members resume, then one shard is lost. */
static void run(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator_adopt(coordinator, i + 1, coordinator->membership.members[i]) < 0) return;
    coordinator_slots_check_lost(coordinator);
    coordinator_declare_check(coordinator);
    coordinator_membership_check(coordinator);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        coordinator_welcome_back(coordinator, i + 1, i % 2, 1 + i % 3);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->role == WEFT__CONTROL__ROLE__ROLE_SHARD) {
            weft_coordinator_closed(coordinator, i + 1, "lost");
            break;
        }
    weft_coordinator_tick(coordinator);
}

static void continue_job(const struct coordinator_loaded *loaded)
{
    struct weft_coordinator_options options;
    struct weft_coordinator *coordinator;
    weft_coordinator_options_init(&options);
    coordinator_loaded_options(loaded, &options);
    if (loaded->snapshots) {
        options.snapshots.steps = loaded->snapshots->snapshots->every_steps;
        options.snapshots.period_ns = loaded->snapshots->snapshots->every_ns;
        options.snapshots.restored_step = loaded->snapshots->snapshots->restored_step;
    }
    options.net.send = ignore;
    options.net.close = ignore_close;
    if (weft_coordinator_create(quiet(), &options, &coordinator) < 0) return;
    if (coordinator_records_restore(coordinator, loaded) == WEFT_OK) run(coordinator);
    weft_coordinator_free(coordinator);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    Weft__Control__Stored *members[RECORDS_MAX], *tensors[RECORDS_MAX], *stored;
    struct coordinator_loaded loaded = {.env = quiet(), .members = members, .tensors = tensors};
    size_t at = 0;
    for (uint32_t i = 0; i < RECORDS_MAX && at + 2 <= bytes; i++) {
        const size_t length = data[at] | (size_t)data[at + 1] << 8, left = bytes - at - 2;
        const size_t used = length < left ? length : left;
        const enum weft_status status = weft_stored_unpack(loaded.env, data + at + 2, used, &stored);
        at += 2 + used;
        if (status < 0) continue;
        if (stored->body_case == WEFT__CONTROL__STORED__BODY_JOB && !loaded.job) loaded.job = stored;
        else if (stored->body_case == WEFT__CONTROL__STORED__BODY_SLOTS && !loaded.slots)
            loaded.slots = stored;
        else if (stored->body_case == WEFT__CONTROL__STORED__BODY_SNAPSHOTS && !loaded.snapshots)
            loaded.snapshots = stored;
        else if (stored->body_case == WEFT__CONTROL__STORED__BODY_SHRUNK && !loaded.shrunk)
            loaded.shrunk = stored;
        else if (stored->body_case == WEFT__CONTROL__STORED__BODY_MEMBER)
            members[loaded.member_count++] = stored;
        else if (stored->body_case == WEFT__CONTROL__STORED__BODY_TENSOR)
            tensors[loaded.tensor_count++] = stored;
        else weft_stored_free(loaded.env, stored);
    }
    if (loaded.job) continue_job(&loaded);
    loaded.members = loaded.tensors = NULL;
    for (uint32_t i = 0; i < loaded.member_count; i++) weft_stored_free(loaded.env, members[i]);
    for (uint32_t i = 0; i < loaded.tensor_count; i++) weft_stored_free(loaded.env, tensors[i]);
    weft_stored_free(loaded.env, loaded.job);
    weft_stored_free(loaded.env, loaded.slots);
    weft_stored_free(loaded.env, loaded.snapshots);
    weft_stored_free(loaded.env, loaded.shrunk);
    return 0;
}

/* ---- a job of two workers and two shards ---- */

static size_t add(const Weft__Control__Stored *stored, uint8_t *out, size_t at, size_t capacity)
{
    uint8_t *data;
    size_t bytes;
    if (weft_stored_pack(quiet(), stored, &data, &bytes) < 0 || at + 2 + bytes > capacity) abort();
    out[at] = (uint8_t)bytes;
    out[at + 1] = (uint8_t)(bytes >> 8);
    memcpy(out + at + 2, data, bytes);
    weft_free_bytes(quiet(), data);
    return at + 2 + bytes;
}

static bool is_elastic(uint64_t number)
{
    return number % 4 == 3;
}

static size_t add_members(uint64_t number, uint8_t *out, size_t at, size_t capacity)
{
    uint8_t bytes[WEFT_PROCESS_IDENTITY_BYTES] = {7};
    /* sometimes a further shard, which has not entered */
    for (uint32_t i = 0; i < 4 + number / 32 % 2; i++) {
        Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
        Weft__Control__StoredMember body = WEFT__CONTROL__STORED_MEMBER__INIT;
        Weft__Control__StoredWorker worker;
        Weft__Control__Member member = WEFT__CONTROL__MEMBER__INIT;
        ProtobufCBinaryData address = {2, bytes};
        member.member = member.endpoint_first = i + (i == 4); /* one has no record */
        member.role = i < 2 ? WEFT__CONTROL__ROLE__ROLE_WORKER : WEFT__CONTROL__ROLE__ROLE_SHARD;
        member.index = i < 4 ? i % 2 : 2;
        member.name = member.host = (char *)"shard 1 (hostb, pid 7)";
        member.candidate = i < 2 ? (char *)"" : (char *)"127.0.0.1:4711";
        member.n_addresses = 1;
        member.addresses = &address;
        body.member = &member;
        body.state = i == number % 8 ? MEMBER_LEFT + (uint32_t)(number / 8 % 2) : MEMBER_READY;
        body.resume_key = (ProtobufCBinaryData){WEFT_RESUME_KEY_BYTES, bytes};
        body.process = (ProtobufCBinaryData){sizeof bytes, bytes};
        body.frees = body.moves = body.snapshots = true;
        body.draining = i == number / 16 % 8;
        body.additions = true;
        body.entering = i == 3 && number % 3 == 0;
        body.outside = i == 4;
        weft__control__stored_worker__init(&worker);
        worker.rank_order = i;
        worker.joined = i == number / 5 % 4;
        worker.join_epoch = 1;
        worker.committed = number % 3;
        if (is_elastic(number) && i < 2) body.worker = &worker;
        stored.body_case = WEFT__CONTROL__STORED__BODY_MEMBER;
        stored.member = &body;
        at = add(&stored, out, at, capacity);
    }
    return at;
}

static size_t add_shrunk(uint64_t number, uint8_t *out, size_t at, size_t capacity)
{
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    Weft__Control__StoredShrunk body = WEFT__CONTROL__STORED_SHRUNK__INIT;
    Weft__Control__Shrunk shrunk = WEFT__CONTROL__SHRUNK__INIT;
    uint32_t members[] = {number / 4 % 2, 1};
    if (number / 8 % 2 == 0) return at;
    shrunk.epoch = 2 + number / 16 % 2;
    shrunk.n_members = 1 + (members[0] == 0);
    shrunk.members = members;
    shrunk.committed = number % 7;
    shrunk.last = number / 64 % 3;
    body.shrunk = &shrunk;
    body.before = 1;
    stored.body_case = WEFT__CONTROL__STORED__BODY_SHRUNK;
    stored.shrunk = &body;
    return add(&stored, out, at, capacity);
}

static size_t add_snapshots(uint64_t number, uint8_t *out, size_t at, size_t capacity)
{
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    Weft__Control__StoredSnapshots body = WEFT__CONTROL__STORED_SNAPSHOTS__INIT;
    body.every_steps = number % 3;
    body.every_ns = body.every_steps ? 0 : WEFT_MS(1);
    body.restored_step = number / 3 % 2 * 40;
    body.id = (uint32_t)(number % 5);
    body.step = body.complete = number % 7 * 10;
    stored.body_case = WEFT__CONTROL__STORED__BODY_SNAPSHOTS;
    stored.snapshots = &body;
    return add(&stored, out, at, capacity);
}

static size_t add_tensor(uint64_t number, uint32_t ordinal, uint8_t *out, size_t at, size_t capacity)
{
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    Weft__Control__StoredTensor body = WEFT__CONTROL__STORED_TENSOR__INIT;
    Weft__Control__Declared declared = WEFT__CONTROL__DECLARED__INIT;
    Weft__Control__Declare declare = WEFT__CONTROL__DECLARE__INIT;
    Weft__Control__Chunk chunk = WEFT__CONTROL__CHUNK__INIT, *chunks = &chunk;
    uint64_t dim = 24;
    uint32_t ranks[] = {0, 1};
    declare.ordinal = declared.tensor = ordinal;
    declare.name = ordinal ? (char *)"bias" : (char *)"weights";
    declare.codec = number % 11 ? (char *)"dense" : (char *)"sign";
    declare.optimizer = (char *)"sgd";
    declare.dtype = WEFT_F32;
    declare.n_dims = 1;
    declare.dims = &dim;
    declare.mode = number % 5 ? WEFT_WIRE_MODE_SERVER : WEFT_WIRE_MODE_ALL_REDUCE;
    if (declare.mode == WEFT_WIRE_MODE_ALL_REDUCE) declare.optimizer = (char *)"none";
    declare.chunk_bytes = 4096;
    chunk.count = dim;
    chunk.slot = ordinal;
    declared.declare = &declare;
    declared.n_chunks = declare.mode == WEFT_WIRE_MODE_SERVER;
    declared.chunks = &chunks;
    body.declared = &declared;
    body.announced = number % 3 > 0;
    if (body.announced) body.n_freed_by = number % 7 % 3;
    body.freed_by = ranks;
    stored.body_case = WEFT__CONTROL__STORED__BODY_TENSOR;
    stored.tensor = &body;
    return add(&stored, out, at, capacity);
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    Weft__Control__StoredJob job = WEFT__CONTROL__STORED_JOB__INIT;
    Weft__Control__Slot slot[2], *slots[] = {&slot[0], &slot[1]};
    Weft__Control__Map map = WEFT__CONTROL__MAP__INIT;
    uint32_t copies[] = {3, 2};
    job.workers = job.shards = 2;
    job.members = 4 + number / 32 % 2;
    job.copies = 1;
    job.copies_on_one_host = number % 13 > 0;
    job.next_endpoint = 4;
    job.heartbeat_ns = job.resume_ns = WEFT_SECONDS(1);
    Weft__Control__StoredMembership membership = WEFT__CONTROL__STORED_MEMBERSHIP__INIT;
    membership.workers_min = 1;
    membership.workers_max = number / 4 % 2 * 4;
    membership.epoch = 1 + number / 32 % 4;
    if (is_elastic(number)) job.membership = &membership;
    if (is_elastic(number)) job.members += number / 8 % 3 + number / 32 % 2; /* and the one without */
    stored.body_case = WEFT__CONTROL__STORED__BODY_JOB;
    stored.job = &job;
    size_t at = add(&stored, out, 0, capacity);
    for (uint32_t i = 0; i < 2; i++) {
        weft__control__slot__init(&slot[i]);
        slot[i].slot = i;
        slot[i].term = 1;
        slot[i].leader = 2 + i;
        slot[i].n_copies = number % 9 > 0;
        slot[i].moving = number / 4 % 2;
        slot[i].copies = &copies[i];
    }
    map.version = 1;
    map.n_slots = 2;
    map.slots = slots;
    stored.body_case = WEFT__CONTROL__STORED__BODY_SLOTS;
    stored.slots = &map;
    at = add(&stored, out, at, capacity);
    at = add_snapshots(number, out, at, capacity);
    if (is_elastic(number)) at = add_shrunk(number, out, at, capacity);
    at = add_members(number, out, at, capacity);
    at = add_tensor(number, 0, out, at, capacity);
    return add_tensor(number / 2, 1, out, at, capacity);
}
