/* admission.c - Hello: the rules of admission, and the member that it becomes. */
#include "coordinator/coordinator_state.h"
#include "coordinator/members/members.h"
#include "coordinator/takeover/records.h"
#include "coordinator/takeover/reign.h"

#include <stdio.h>
#include <string.h>

#define SHARD_SILENCE_NS WEFT_SECONDS(4) /* of a shard whose copies can lead, at most */
#define OBSERVERS_MAX 64u

/* Before Roster the place of a lost shard is free again. */
static bool is_free(const struct weft_coordinator *coordinator, const struct coordinator_member *holder)
{
    return !holder || (coordinator->state == COORDINATOR_JOINING && holder->state == MEMBER_LOST);
}

/* Returns the wanted index or else the lowest free one; -1 after a refusal. */
static int64_t choose_index(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                            const Weft__Control__Hello *hello)
{
    bool worker = hello->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    struct coordinator_member **slots =
        worker ? coordinator->membership.workers : coordinator->membership.shards;
    uint32_t expected = worker ? coordinator->options.workers : coordinator->options.shards;
    const char *kind = worker ? "rank" : "shard", *kinds = worker ? "workers" : "shards";
    if (hello->wanted_index < 0) {
        for (uint32_t i = 0; i < expected; i++)
            if (is_free(coordinator, slots[i])) return i;
        coordinator_refuse(coordinator, connection, WEFT_ERR_EXISTS,
                           "job %s is full: %u of %u %s have joined", coordinator->job, expected, expected,
                           kinds);
        return -1;
    }
    if ((uint32_t)hello->wanted_index >= expected) {
        if (expected == 0)
            coordinator_refuse(coordinator, connection, WEFT_ERR_INVALID,
                               "job %s has no %s; %s %d cannot join", coordinator->job, kinds, kind,
                               (int)hello->wanted_index);
        else
            coordinator_refuse(coordinator, connection, WEFT_ERR_INVALID,
                               "job %s has %u %s, numbered 0 to %u; %s %d cannot join", coordinator->job,
                               expected, kinds, expected - 1, kind, (int)hello->wanted_index);
        return -1;
    }
    if (!is_free(coordinator, slots[hello->wanted_index])) {
        coordinator_refuse(coordinator, connection, WEFT_ERR_EXISTS,
                           "%s %d is taken: %.200s has joined as that", kind, (int)hello->wanted_index,
                           slots[hello->wanted_index]->label);
        return -1;
    }
    return hello->wanted_index;
}

static bool proof_holds(struct weft_coordinator *coordinator, const struct coordinator_connection *connection,
                        const Weft__Control__Hello *hello)
{
    uint8_t expected[WEFT_PROOF_BYTES];
    if (!coordinator->secret) return true;
    if (weft_proof_make(coordinator->secret, WEFT_PROOF_JOIN, connection->nonce, hello->job, hello->name,
                        expected) != WEFT_OK)
        return false;
    return weft_proof_check(hello->proof.data, hello->proof.len, expected);
}

/* Admission rules, one sentence each. The secret is checked before any sentence that describes the job. */
static bool admissible(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                       const Weft__Control__Hello *hello)
{
    char own_text[WEFT_WIRE_RANGE_TEXT_BYTES], text[WEFT_WIRE_RANGE_TEXT_BYTES];
    const struct weft_wire_range own = coordinator_wire_range(coordinator),
                                 its = coordinator_wire_of(coordinator, hello);
    struct weft_error why = {0};
    if (weft_wire_range_common(own, its) == 0)
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_VERSION,
            "%.100s speaks wire version %s (weft %.40s), the coordinator %s (weft %s): use releases of weft "
            "that are at most one wire version apart",
            hello->name, weft_wire_range_text(its, text), hello->weft_version,
            weft_wire_range_text(own, own_text), weft_proto_release());
    else if (coordinator->secret && hello->proof.len == 0)
        coordinator_refuse(coordinator, connection, WEFT_ERR_AUTH,
                           "this job has a secret and %.100s sent none: set WEFT_SECRET or WEFT_SECRET_FILE",
                           hello->name);
    /* it would reject our Welcome, which has no proof */
    else if (!coordinator->secret && hello->proof.len != 0)
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_AUTH,
            "%.100s has a job secret and this job has none: give the secret to all processes or to none",
            hello->name);
    else if (!proof_holds(coordinator, connection, hello))
        coordinator_refuse(coordinator, connection, WEFT_ERR_AUTH, "%.100s has another secret than this job",
                           hello->name);
    /* Without this, a relay that removes the announcement from the Challenge would remove the MACs. */
    else if (hello->seals != WEFT_SEAL_VERSION && (coordinator->secret || hello->seals != 0))
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_VERSION,
            "%.100s (weft %.40s) does not authenticate its control frames as this coordinator (weft %s) "
            "does, and this job has a secret: use one release of weft in a job",
            hello->name, hello->weft_version, weft_proto_release());
    else if (coordinator->options.copies > 0 && !hello->slots &&
             hello->role != WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_VERSION,
            "%.100s (weft %.40s) does not support copies of shards, which this job has (weft %s): use one "
            "release of weft in a job",
            hello->name, hello->weft_version, weft_proto_release());
    else if (coordinator->records.reign && (!hello->takeovers || !hello->resume) &&
             hello->role != WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_VERSION,
            "%.100s (weft %.40s) cannot continue with another coordinator, as this job with server.store "
            "requires (weft %s): use one release of weft in a job",
            hello->name, hello->weft_version, weft_proto_release());
    else if (strcmp(hello->job, coordinator->job) != 0)
        coordinator_refuse(coordinator, connection, WEFT_ERR_INVALID,
                           "%.100s names job %.100s, this coordinator serves job %.100s", hello->name,
                           hello->job, coordinator->job);
    else if (coordinator->state == COORDINATOR_ENDED && hello->role != WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        coordinator_refuse(coordinator, connection, WEFT_ERR_CLOSED, "job %.100s is over: %.200s",
                           coordinator->job,
                           coordinator->end.text[0] ? coordinator->end.text : "it ended in order");
    else if (!coordinator_wire_admits(coordinator, hello, &why))
        coordinator_refuse(coordinator, connection, WEFT_ERR_VERSION, "%s", why.text);
    else return true;
    return false;
}

/* member NULL: an observer. */
uint64_t coordinator_silence_limit_ns(const struct weft_coordinator *coordinator,
                                      const struct coordinator_member *member)
{
    const bool can_fail_over =
        member && member->role == WEFT__CONTROL__ROLE__ROLE_SHARD && coordinator->options.copies > 0;
    const uint64_t limit_ns = coordinator->options.heartbeat_ns;
    return can_fail_over && limit_ns > SHARD_SILENCE_NS ? SHARD_SILENCE_NS : limit_ns;
}

static void welcome(struct weft_coordinator *coordinator, const struct coordinator_connection *connection,
                    const Weft__Control__Hello *hello, struct coordinator_member *member)
{
    uint8_t proof[WEFT_PROOF_BYTES];
    Weft__Control__Welcome welcome = WEFT__CONTROL__WELCOME__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    const bool is_new_worker = member && member->newcomer && member->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    welcome.workers = is_new_worker ? coordinator->membership.workers_at_start : coordinator->options.workers;
    welcome.shards = coordinator->options.shards;
    welcome.job_id = coordinator->job_id;
    welcome.transport_nonce = coordinator->transport_nonce;
    welcome.heartbeat_ns = coordinator_silence_limit_ns(coordinator, member);
    welcome.workers_min = coordinator->options.workers_min;
    welcome.workers_max = coordinator->options.workers_max;
    welcome.frees = true;
    welcome.beat_ns = coordinator->options.beat_ns;
    welcome.copies = coordinator->options.copies;
    if (member) {
        welcome.member = member->member;
        welcome.index = member->index;
        welcome.incarnation = member->incarnation;
        welcome.endpoint_first = member->endpoint_first;
    }
    if (member && hello->resume && coordinator->options.resume_ns > 0) {
        weft_nonce_draw(coordinator->env, member->record.resume_key);
        welcome.resume_key =
            (ProtobufCBinaryData){sizeof member->record.resume_key, member->record.resume_key};
        welcome.resume_ns = coordinator->options.resume_ns;
    }
    if (coordinator->records.reign) {
        welcome.takeover_ns = coordinator->options.resume_ns + 2 * COORDINATOR_REIGN_NS;
        welcome.silence_ns = COORDINATOR_REIGN_NS;
    }
    if (coordinator->secret && weft_proof_make(coordinator->secret, WEFT_PROOF_WELCOME, hello->nonce.data,
                                               hello->job, hello->name, proof) == WEFT_OK)
        welcome.proof = (ProtobufCBinaryData){sizeof proof, proof};
    message.body_case = WEFT__CONTROL__CONTROL__BODY_WELCOME;
    message.welcome = &welcome;
    coordinator_send_to(coordinator, connection->id, &message);
}

static void observe(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                    const Weft__Control__Hello *hello)
{
    if (coordinator_connections_count(coordinator, CONNECTION_OBSERVER) >= OBSERVERS_MAX) {
        coordinator_refuse(coordinator, connection, WEFT_ERR_LIMIT,
                           "job %.100s has %u observers already; try again later", coordinator->job,
                           OBSERVERS_MAX);
        return;
    }
    connection->state = CONNECTION_OBSERVER;
    welcome(coordinator, connection, hello, NULL);
}

/* True if this worker may join a running job, which has fewer workers than workers_max. */
static bool can_join_running_job(const struct weft_coordinator *coordinator,
                                 const Weft__Control__Hello *hello)
{
    const struct weft_coordinator_options *options = &coordinator->options;
    uint32_t endpoints = hello->endpoints ? hello->endpoints : 1;
    return coordinator->state == COORDINATOR_RUNNING && hello->role == WEFT__CONTROL__ROLE__ROLE_WORKER &&
           options->workers_min > 0 && coordinator_active_count(coordinator) > 0 &&
           coordinator->membership.next_endpoint + endpoints < WEFT_LIMIT_ENDPOINTS &&
           coordinator_active_count(coordinator) + coordinator_waiting_count(coordinator) <
               options->workers_max;
}

bool coordinator_members_reserve(struct weft_coordinator *coordinator)
{
    if (coordinator->membership.member_count < coordinator->membership.member_capacity) return true;
    uint32_t capacity = 2 * coordinator->membership.member_capacity;
    struct coordinator_member **more = weft_alloc_array(coordinator->env, capacity, sizeof *more);
    if (!more) return false;
    memcpy(more, coordinator->membership.members, coordinator->membership.member_count * sizeof *more);
    weft_free_bytes(coordinator->env, coordinator->membership.members);
    coordinator->membership.members = more;
    coordinator->membership.member_capacity = capacity;
    return true;
}

/* What the process is and supports. */
static void describe_process(struct coordinator_member *member, const Weft__Control__Hello *hello)
{
    snprintf(member->host, sizeof member->host, "%s", hello->host);
    member->abilities.deadline_ms = hello->deadline_ms;
    member->abilities.has_device = hello->device;
    member->abilities.supports_states = hello->states;
    member->abilities.supports_groups = hello->groups;
    member->abilities.reads_chunk_runs = hello->chunk_runs;
    member->abilities.supports_free = hello->frees;
    member->abilities.supports_progress = hello->progress;
    member->abilities.has_snapshots = hello->snapshots;
    member->abilities.supports_moves = hello->moves;
    member->abilities.supports_rollback = hello->rollback;
    snprintf(member->abilities.zone, sizeof member->abilities.zone, "%s", hello->zone);
    member->addition.is_supported = hello->additions;
    member->pid = hello->pid;
    snprintf(member->record.candidate, sizeof member->record.candidate, "%s", hello->candidate);
    member->record.process_bytes = hello->process.len;
    if (hello->process.len == sizeof member->record.process)
        memcpy(member->record.process, hello->process.data, sizeof member->record.process);
}

static void take_place(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    struct coordinator_member *before = coordinator->membership.shards[shard->index];
    if (before) before->newcomer = true; /* it was lost, and is no shard of the job any more */
    else coordinator->membership.shard_count++;
    coordinator->membership.shards[shard->index] = shard;
}

void coordinator_hello(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                       const Weft__Control__Hello *hello)
{
    if (!admissible(coordinator, connection, hello)) return;
    if (hello->role == WEFT__CONTROL__ROLE__ROLE_OBSERVER) {
        observe(coordinator, connection, hello);
        return;
    }
    struct weft_error error = {0};
    const bool adds = hello->role == WEFT__CONTROL__ROLE__ROLE_SHARD && hello->joins;
    if (adds && coordinator_add_check(coordinator, hello, &error) < 0) {
        coordinator_refuse(coordinator, connection, (enum weft_status)error.status, "%s", error.text);
        return;
    }
    bool newcomer = adds || can_join_running_job(coordinator, hello);
    int64_t index = adds       ? coordinator->options.shards
                    : newcomer ? 0
                               : choose_index(coordinator, connection, hello);
    if (index < 0) return;
    if (!coordinator_members_reserve(coordinator)) {
        coordinator_refuse(coordinator, connection, WEFT_ERR_NO_MEMORY,
                           "the coordinator has no memory for another member");
        return;
    }
    struct coordinator_member *member = weft_alloc_zero(coordinator->env, sizeof *member);
    if (!member) {
        coordinator_refuse(coordinator, connection, WEFT_ERR_NO_MEMORY,
                           "the coordinator has no memory for another member");
        return;
    }
    bool worker = hello->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    member->role = hello->role;
    member->newcomer = newcomer;
    member->index = (uint32_t)index;
    member->agreement.rank_order = newcomer ? coordinator->membership.next_rank_order++ : member->index;
    member->state = MEMBER_WELCOMED;
    describe_process(member, hello);
    member->abilities.wire = coordinator_wire_of(coordinator, hello);
    if (newcomer && worker)
        snprintf(member->label, sizeof member->label, "a new worker (%s, pid %llu)", member->host,
                 (unsigned long long)member->pid);
    else
        snprintf(member->label, sizeof member->label, "%s %u (%s, pid %llu)", worker ? "rank" : "shard",
                 member->index, member->host, (unsigned long long)member->pid);
    member->incarnation = coordinator->membership.next_incarnation++;
    member->endpoint_count = hello->endpoints ? hello->endpoints : 1;
    member->endpoint_first = coordinator->membership.next_endpoint;
    coordinator->membership.next_endpoint += member->endpoint_count;
    member->connection = connection->id;
    member->last_received_ns = connection->last_received_ns;

    member->member = coordinator->membership.member_count;
    coordinator->membership.members[coordinator->membership.member_count++] = member;
    /* a newcomer has no rank yet */
    if (worker && !newcomer)
        coordinator->membership.workers[index] = member, coordinator->membership.worker_count++;
    if (!worker && !newcomer) take_place(coordinator, member);
    if (adds) coordinator_add_begin(coordinator, member);
    connection->state = CONNECTION_MEMBER;
    connection->member = member;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "%s joined, endpoints %u to %u", member->label,
             member->endpoint_first, member->endpoint_first + member->endpoint_count - 1);
    if (newcomer) coordinator_records_job(coordinator); /* its numbers are not used again */
    welcome(coordinator, connection, hello, member);
}
