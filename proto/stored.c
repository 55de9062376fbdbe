/* stored.c - records of the store that lets another coordinator continue a job: pack, unpack, limits.
 *
 * The file is shared by processes, so a record is checked as a message of a peer is. */
#include "proto/control_checks.h"
#include "proto/wire_limits.h"

typedef Weft__Control__Stored Stored;

static bool process_ok(const ProtobufCBinaryData *process)
{
    return process->len == 0 || process->len == WEFT_PROCESS_IDENTITY_BYTES;
}

static bool reign_ok(const Weft__Control__StoredReign *reign)
{
    return control_name_ok(reign->job, 1) && control_name_ok(reign->address, 1) &&
           process_ok(&reign->process);
}

/* Workers and shards may have been added. */
static bool members_ok(const Weft__Control__StoredJob *job)
{
    const Weft__Control__StoredMembership *membership = job->membership;
    const uint32_t first = job->workers + job->shards;
    if (job->members < first) return false;
    if (!membership) return job->members - first <= WEFT_LIMIT_SHARDS;
    return job->members < WEFT_LIMIT_ENDPOINTS && membership->workers_min > 0 &&
           membership->workers_min <= job->workers && membership->workers_max <= WEFT_LIMIT_WORKERS &&
           membership->epoch > 0;
}

static bool job_ok(const Weft__Control__StoredJob *job)
{
    return job->workers > 0 && job->workers <= WEFT_LIMIT_WORKERS && job->shards > 0 &&
           job->shards <= WEFT_LIMIT_SHARDS && job->copies > 0 && job->copies <= WEFT_LIMIT_COPIES &&
           members_ok(job) && job->next_endpoint < WEFT_LIMIT_ENDPOINTS && job->heartbeat_ns > 0 &&
           job->resume_ns > 0 && control_cost_ok(job->cost);
}

/* A shard may have been lost before its addresses arrived. */
static bool stored_member_ok(const Weft__Control__StoredMember *member)
{
    if (!member->member || !process_ok(&member->process) || member->resume_key.len != WEFT_RESUME_KEY_BYTES ||
        !control_name_ok(member->zone, 0))
        return false;
    return member->member->n_addresses == 0 ? control_member_named_ok(member->member)
                                            : control_member_ok(member->member);
}

static bool snapshots_ok(const Weft__Control__StoredSnapshots *snapshots)
{
    return snapshots->restored_parts <= WEFT_LIMIT_WORKERS && snapshots->complete < UINT64_MAX / 2 &&
           snapshots->restored_step < UINT64_MAX / 2;
}

static bool stored_ok(const Stored *stored)
{
    switch (stored->body_case) {
    case WEFT__CONTROL__STORED__BODY_REIGN: return reign_ok(stored->reign);
    case WEFT__CONTROL__STORED__BODY_JOB: return job_ok(stored->job);
    case WEFT__CONTROL__STORED__BODY_MEMBER: return stored_member_ok(stored->member);
    case WEFT__CONTROL__STORED__BODY_SLOTS: return control_map_ok(stored->slots);
    case WEFT__CONTROL__STORED__BODY_SHRUNK:
        return stored->shrunk->shrunk && control_shrunk_ok(stored->shrunk->shrunk) &&
               stored->shrunk->before < stored->shrunk->shrunk->epoch;
    case WEFT__CONTROL__STORED__BODY_SNAPSHOTS: return snapshots_ok(stored->snapshots);
    case WEFT__CONTROL__STORED__BODY_TENSOR:
        return stored->tensor->declared && control_declared_ok(stored->tensor->declared);
    case WEFT__CONTROL__STORED__BODY__NOT_SET:
    default: return false;
    }
}

enum weft_status weft_stored_pack(struct weft_env *env, const Stored *stored, uint8_t **data_out,
                                  size_t *bytes_out)
{
    if (!stored_ok(stored)) return weft_limit_note("a record of the job has a field out of range");
    *bytes_out = weft__control__stored__get_packed_size(stored);
    *data_out = weft_alloc_bytes(env, *bytes_out);
    if (!*data_out) return WEFT_ERR_NO_MEMORY;
    (void)weft__control__stored__pack(stored, *data_out);
    return WEFT_OK;
}

enum weft_status weft_stored_unpack(struct weft_env *env, const uint8_t *data, size_t bytes,
                                    Stored **stored_out)
{
    struct control_memory memory;
    ProtobufCAllocator allocator = control_allocator(&memory, env, bytes);
    Stored *stored = bytes > 0 && bytes <= WEFT_LIMIT_FRAME_BYTES
                         ? weft__control__stored__unpack(&allocator, bytes, data)
                         : NULL;
    if (!stored) return WEFT_ERR_MALFORMED;
    if (!stored_ok(stored)) {
        weft__control__stored__free_unpacked(stored, &allocator);
        return WEFT_ERR_MALFORMED;
    }
    *stored_out = stored;
    return WEFT_OK;
}

void weft_stored_free(struct weft_env *env, Stored *stored)
{
    struct control_memory memory;
    ProtobufCAllocator allocator = control_allocator(&memory, env, 0);
    if (stored) weft__control__stored__free_unpacked(stored, &allocator);
}
