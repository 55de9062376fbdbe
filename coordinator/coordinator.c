/* coordinator.c - membership of the job: a state machine without sockets, threads or sleeping.
 *
 *     opened -> Challenge          joining      until every expected rank and shard has sent Endpoints
 *     Hello  -> Welcome | Abort    connecting   Roster sent, until every member has sent Ready
 *     Endpoints ... -> Roster      running      Go sent: declarations, heartbeats, leaving
 *     Ready ... -> Go              ended        finished, lost or aborted; `ended` was called once
 *
 * A connection becomes a member when its Hello is accepted. A refused connection gets Abort and is closed;
 * the job is not affected. A member that closes, falls silent or breaks the protocol before its Leave is
 * lost. A lost member ends the job unless the others can go on (coordinator/shrink.c), or can begin without
 * it: a shard of a job with copies. Input:
 * weft_coordinator_opened/_message/_closed/_tick. Output: the send and close callbacks, which must not call
 * back. Time, random numbers and memory are the env's. */
#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"
#include "coordinator/takeover/reign.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PAUSE_BLAME_NS WEFT_SECONDS(2) /* losses so soon after a stop are due to it */

#define SHARD_SILENCE_NS WEFT_SECONDS(4) /* of a shard whose copies can lead, at most */
#define HELLO_NS WEFT_SECONDS(10)       /* a connection that has not sent Hello after this time is closed */
#define NEWCOMERS_MAX 256u
#define REFUSALS_LOGGED 8u              /* per 10 s, one by one; the others are counted */
#define OBSERVERS_MAX 64u

/* ---- sending ---- */

/* What led to the message is in the store before it is sent. */
static void send_to(struct weft_coordinator *coordinator, uint64_t connection,
                    const Weft__Control__Control *message)
{
    if (!coordinator_records_commit(coordinator)) return;
    coordinator->options.send(coordinator->options.context, connection, message);
}

void coordinator_send(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                      const Weft__Control__Control *message)
{
    if (member->connection && member->state < MEMBER_LEFT && !member->record.is_awaited)
        send_to(coordinator, member->connection, message);
}

void coordinator_send_same(struct weft_coordinator *coordinator, const Weft__Control__Control *message)
{
    if (coordinator->options.send_same)
        coordinator->options.send_same(coordinator->options.context, message);
}

void coordinator_broadcast(struct weft_coordinator *coordinator, const Weft__Control__Control *message,
                           const struct coordinator_member *except)
{
    coordinator_send_same(coordinator, message);
    for (uint32_t i = 0; i < coordinator->member_count; i++)
        if (coordinator->members[i] != except && !coordinator->members[i]->newcomer)
            coordinator_send(coordinator, coordinator->members[i], message);
    coordinator_send_same(coordinator, NULL);
}

static void send_to_observers(struct weft_coordinator *coordinator, const Weft__Control__Control *message)
{
    for (size_t i = 0; i < coordinator->connection_count; i++)
        if (coordinator->connections[i]->state == CONNECTION_OBSERVER)
            send_to(coordinator, coordinator->connections[i]->id, message);
}

static void send_abort(struct weft_coordinator *coordinator, uint64_t connection, enum weft_status status,
                       const char *text)
{
    Weft__Control__Abort abort = WEFT__CONTROL__ABORT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    abort.status = status;
    abort.text = (char *)text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ABORT;
    message.abort = &abort;
    send_to(coordinator, connection, &message);
}

static void close_connection(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                             const char *why)
{
    connection->state = CONNECTION_CLOSING;
    coordinator->options.close(coordinator->options.context, connection->id, why);
}

/* Sends Abort and closes the connection. The job continues. */
static void refuse(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                   enum weft_status status, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void refuse(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                   enum weft_status status, const char *format, ...)
{
    char text[480];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char event[sizeof text + 16];
    snprintf(event, sizeof event, "refused: %s", text);
    weft_log_limited(coordinator->env, &coordinator->refusals, connection->peer, event);
    send_abort(coordinator, connection->id, status, text);
    close_connection(coordinator, connection, text);
}

/* ---- endings ---- */

static const char *state_name(enum coordinator_state state)
{
    switch (state) {
    case COORDINATOR_JOINING: return "joining";
    case COORDINATOR_CONNECTING: return "connecting";
    case COORDINATOR_RUNNING: return "running";
    case COORDINATOR_ENDED: return "ended";
    }
    return "?";
}

/* The only function that writes the state. */
static void enter(struct weft_coordinator *coordinator, enum coordinator_state state)
{
    WEFT_ASSERT(coordinator->state < COORDINATOR_ENDED);
    WEFT_ASSERT(state == COORDINATOR_ENDED || state == coordinator->state + 1);
    coordinator->state = state;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s is %s", coordinator->job,
             state_name(state));
}

static void end(struct weft_coordinator *coordinator, enum weft_status status, const char *text)
{
    if (!coordinator_records_end(coordinator)) return;
    enter(coordinator, COORDINATOR_ENDED);
    coordinator->end_status = status;
    /* newcomers wait for an admission that cannot happen now */
    for (uint32_t i = 0; i < coordinator->member_count; i++)
        if (coordinator->members[i]->newcomer && coordinator->members[i]->connection &&
            coordinator->members[i]->state < MEMBER_LEFT)
            send_abort(coordinator, coordinator->members[i]->connection, WEFT_ERR_CLOSED,
                       text[0] ? text : "the job ended before it let this worker in");
    snprintf(coordinator->end.text, sizeof coordinator->end.text, "%s", text);
    if (status != WEFT_OK)
        weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %s: %s", coordinator->job, text);
    if (coordinator->options.ended)
        coordinator->options.ended(coordinator->options.context, status, coordinator->end.text);
}

void coordinator_abort(struct weft_coordinator *coordinator, const struct coordinator_member *except,
                       enum weft_status status, const char *format, ...)
{
    if (coordinator->state == COORDINATOR_ENDED || !coordinator_records_end(coordinator)) return;
    char text[480];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (uint32_t i = 0; i < coordinator->member_count; i++) {
        struct coordinator_member *member = coordinator->members[i];
        if (member != except && member->connection && member->state < MEMBER_LEFT &&
            !member->record.is_awaited)
            send_abort(coordinator, member->connection, status, text);
    }
    for (size_t i = 0; i < coordinator->connection_count; i++)
        if (coordinator->connections[i]->state == CONNECTION_OBSERVER)
            send_abort(coordinator, coordinator->connections[i]->id, status, text);
    end(coordinator, status, text);
}

static bool begins_without(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                           const char *why);
static void begin_if_ready(struct weft_coordinator *coordinator);

void coordinator_member_lost(struct weft_coordinator *coordinator, struct coordinator_member *member,
                             const char *why)
{
    if (member->state >= MEMBER_LEFT || coordinator_records_is_fenced(coordinator)) return;
    member->state = MEMBER_LOST;
    coordinator_records_member(coordinator, member);
    if (coordinator->state == COORDINATOR_ENDED) return;
    if (member == coordinator->addition.shard) coordinator_add_lost(coordinator, why);
    if (member->newcomer) {
        weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
                 "%s, which waited for admission, is lost: %.140s", member->label, why);
        return;
    }
    char no_copy[100];
    if (coordinator_slots_fail_over(coordinator, member, why, no_copy, sizeof no_copy)) {
        coordinator_snapshot_shards_changed(coordinator, "a shard was lost");
        coordinator_add_continue(coordinator);
        coordinator_shrink_check(coordinator); /* an agreement may have waited for it to resume */
        begin_if_ready(coordinator);
        return;
    }
    if (begins_without(coordinator, member, why)) return;
    bool goes_on = coordinator_shrink_begin(coordinator, member);
    if (!goes_on && !coordinator_records_end(coordinator)) return;
    char text[COORDINATOR_LABEL_BYTES + 160 + sizeof COORDINATOR_SHARDS_AHEAD_TEXT + sizeof no_copy];
    const bool beyond = !goes_on && !member->joined && coordinator_shards_are_ahead(coordinator);
    snprintf(text, sizeof text, "%s lost: %.140s%s%s", member->label, why, no_copy,
             beyond ? "; " COORDINATOR_SHARDS_AHEAD_TEXT : "");
    Weft__Control__MemberLost lost = WEFT__CONTROL__MEMBER_LOST__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    lost.member = member->member;
    lost.text = text;
    lost.role = member->role;
    lost.index = member->index;
    lost.pid = member->pid;
    lost.epoch = goes_on ? coordinator->epoch : 0;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST;
    message.member_lost = &lost;
    coordinator_broadcast(coordinator, &message, member);
    send_to_observers(coordinator, &message);
    if (!goes_on) {
        end(coordinator, WEFT_ERR_PEER_LOST, text);
        return;
    }
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %s: %s; the others go on", coordinator->job,
             text);
    coordinator_shrink_check(coordinator);
    coordinator_liveness_check(coordinator); /* the lost member may be the one that the check waits for */
    coordinator_add_continue(coordinator);
}

/* ---- connections, by rising id ---- */

static size_t connection_position(const struct weft_coordinator *coordinator, uint64_t id)
{
    size_t low = 0, high = coordinator->connection_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (coordinator->connections[middle]->id < id) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct coordinator_connection *find_connection(const struct weft_coordinator *coordinator, uint64_t id)
{
    size_t at = connection_position(coordinator, id);
    return at < coordinator->connection_count && coordinator->connections[at]->id == id
               ? coordinator->connections[at]
               : NULL;
}

static struct coordinator_connection *add_connection(struct weft_coordinator *coordinator, uint64_t id)
{
    size_t at = connection_position(coordinator, id);
    WEFT_ASSERT(id != 0 && (at == coordinator->connection_count || coordinator->connections[at]->id != id));
    if (coordinator->connection_count == coordinator->connection_capacity) {
        size_t capacity = coordinator->connection_capacity ? coordinator->connection_capacity * 2 : 16;
        struct coordinator_connection **more = weft_alloc_array(coordinator->env, capacity, sizeof *more);
        if (!more) return NULL;
        if (coordinator->connection_count)
            memcpy(more, coordinator->connections, coordinator->connection_count * sizeof *more);
        weft_free_bytes(coordinator->env, coordinator->connections);
        coordinator->connections = more;
        coordinator->connection_capacity = capacity;
    }
    struct coordinator_connection *connection = weft_alloc_zero(coordinator->env, sizeof *connection);
    if (!connection) return NULL;
    connection->id = id;
    memmove(coordinator->connections + at + 1, coordinator->connections + at,
            (coordinator->connection_count - at) * sizeof *coordinator->connections);
    coordinator->connections[at] = connection;
    coordinator->connection_count++;
    return connection;
}

static size_t count_connections(const struct weft_coordinator *coordinator,
                                enum coordinator_connection_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < coordinator->connection_count; i++)
        count += coordinator->connections[i]->state == state;
    return count;
}

static void close_oldest_newcomer(struct weft_coordinator *coordinator)
{
    for (size_t i = 0; i < coordinator->connection_count; i++)
        if (coordinator->connections[i]->state == CONNECTION_NEW) {
            refuse(coordinator, coordinator->connections[i], WEFT_ERR_LIMIT,
                   "too many connections wait to join; try again");
            return;
        }
}

void weft_coordinator_opened(struct weft_coordinator *coordinator, uint64_t id, const char *peer_name)
{
    if (count_connections(coordinator, CONNECTION_NEW) >= coordinator->options.newcomers_max)
        close_oldest_newcomer(coordinator);
    struct coordinator_connection *connection = add_connection(coordinator, id);
    if (!connection) { /* later calls with this id are ignored */
        coordinator->options.close(coordinator->options.context, id,
                                   "the coordinator has no memory for another connection");
        return;
    }
    connection->state = CONNECTION_NEW;
    snprintf(connection->peer, sizeof connection->peer, "%s", peer_name);
    connection->opened_ns = connection->last_received_ns = weft_now_ns(coordinator->env);
    weft_nonce_draw(coordinator->env, connection->nonce);
    weft_log(coordinator->env, WEFT_LOG_DEBUG, "coordinator", "connection %llu from %s",
             (unsigned long long)id, peer_name);

    Weft__Control__Challenge challenge = WEFT__CONTROL__CHALLENGE__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    weft_wire_range_challenge(coordinator_wire_range(coordinator), &challenge);
    challenge.weft_version = (char *)weft_proto_release();
    challenge.nonce = (ProtobufCBinaryData){WEFT_NONCE_BYTES, connection->nonce};
    challenge.auth_required = coordinator->secret != NULL;
    challenge.job = coordinator->job;
    challenge.is_begun = coordinator->state != COORDINATOR_JOINING;
    challenge.seals = WEFT_SEAL_VERSION;
    if (coordinator->records.reign) challenge.reign = coordinator->records.reign->number;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_CHALLENGE;
    message.challenge = &challenge;
    send_to(coordinator, id, &message);
}

/* Members end by their own clocks while this process is stopped: then it is the cause of the loss. */
static void closed_reason(const struct weft_coordinator *coordinator, const char *why, char *out,
                          size_t out_bytes)
{
    const uint64_t since_ns = weft_elapsed_ns(coordinator->paused_ns, weft_now_ns(coordinator->env));
    if (coordinator->pause_ns > 0 && since_ns < PAUSE_BLAME_NS)
        snprintf(out, out_bytes, "%.200s, after the coordinator was stopped for %.1f s", why,
                 (double)coordinator->pause_ns / 1e9);
    else snprintf(out, out_bytes, "%.300s", why);
}

void weft_coordinator_closed(struct weft_coordinator *coordinator, uint64_t id, const char *why)
{
    size_t at = connection_position(coordinator, id);
    if (at == coordinator->connection_count || coordinator->connections[at]->id != id) return;
    struct coordinator_connection *connection = coordinator->connections[at];
    memmove(coordinator->connections + at, coordinator->connections + at + 1,
            (coordinator->connection_count - at - 1) * sizeof *coordinator->connections);
    coordinator->connection_count--;
    if (connection->member) {
        char reason[320];
        closed_reason(coordinator, why && why[0] ? why : "connection closed", reason, sizeof reason);
        connection->member->connection = 0;
        coordinator_member_lost(coordinator, connection->member, reason);
    }
    weft_free_bytes(coordinator->env, connection);
}

/* ---- joining ---- */

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
    struct coordinator_member **slots = worker ? coordinator->workers : coordinator->shards;
    uint32_t expected = worker ? coordinator->options.workers : coordinator->options.shards;
    const char *kind = worker ? "rank" : "shard", *kinds = worker ? "workers" : "shards";
    if (hello->wanted_index < 0) {
        for (uint32_t i = 0; i < expected; i++)
            if (is_free(coordinator, slots[i])) return i;
        refuse(coordinator, connection, WEFT_ERR_EXISTS, "job %s is full: %u of %u %s have joined",
               coordinator->job, expected, expected, kinds);
        return -1;
    }
    if ((uint32_t)hello->wanted_index >= expected) {
        if (expected == 0)
            refuse(coordinator, connection, WEFT_ERR_INVALID, "job %s has no %s; %s %d cannot join",
                   coordinator->job, kinds, kind, (int)hello->wanted_index);
        else
            refuse(coordinator, connection, WEFT_ERR_INVALID,
                   "job %s has %u %s, numbered 0 to %u; %s %d cannot join", coordinator->job, expected, kinds,
                   expected - 1, kind, (int)hello->wanted_index);
        return -1;
    }
    if (!is_free(coordinator, slots[hello->wanted_index])) {
        refuse(coordinator, connection, WEFT_ERR_EXISTS, "%s %d is taken: %.200s has joined as that", kind,
               (int)hello->wanted_index, slots[hello->wanted_index]->label);
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
        refuse(
            coordinator, connection, WEFT_ERR_VERSION,
            "%.100s speaks wire version %s (weft %.40s), the coordinator %s (weft %s): use releases of weft "
            "that are at most one wire version apart",
            hello->name, weft_wire_range_text(its, text), hello->weft_version,
            weft_wire_range_text(own, own_text), weft_proto_release());
    else if (coordinator->secret && hello->proof.len == 0)
        refuse(coordinator, connection, WEFT_ERR_AUTH,
               "this job has a secret and %.100s sent none: set WEFT_SECRET or WEFT_SECRET_FILE",
               hello->name);
    /* it would reject our Welcome, which has no proof */
    else if (!coordinator->secret && hello->proof.len != 0)
        refuse(coordinator, connection, WEFT_ERR_AUTH,
               "%.100s has a job secret and this job has none: give the secret to all processes or to none",
               hello->name);
    else if (!proof_holds(coordinator, connection, hello))
        refuse(coordinator, connection, WEFT_ERR_AUTH, "%.100s has another secret than this job",
               hello->name);
    /* Without this, a relay that removes the announcement from the Challenge would remove the MACs. */
    else if (hello->seals != WEFT_SEAL_VERSION && (coordinator->secret || hello->seals != 0))
        refuse(coordinator, connection, WEFT_ERR_VERSION,
               "%.100s (weft %.40s) does not authenticate its control frames as this coordinator (weft %s) "
               "does, and this job has a secret: use one release of weft in a job",
               hello->name, hello->weft_version, weft_proto_release());
    else if (coordinator->options.copies > 0 && !hello->slots &&
             hello->role != WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        refuse(coordinator, connection, WEFT_ERR_VERSION,
               "%.100s (weft %.40s) does not support copies of shards, which this job has (weft %s): use one "
               "release of weft in a job",
               hello->name, hello->weft_version, weft_proto_release());
    else if (coordinator->records.reign && (!hello->takeovers || !hello->resume) &&
             hello->role != WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        refuse(coordinator, connection, WEFT_ERR_VERSION,
               "%.100s (weft %.40s) cannot continue with another coordinator, as this job with server.store "
               "requires (weft %s): use one release of weft in a job",
               hello->name, hello->weft_version, weft_proto_release());
    else if (strcmp(hello->job, coordinator->job) != 0)
        refuse(coordinator, connection, WEFT_ERR_INVALID,
               "%.100s names job %.100s, this coordinator serves job %.100s", hello->name, hello->job,
               coordinator->job);
    else if (coordinator->state == COORDINATOR_ENDED && hello->role != WEFT__CONTROL__ROLE__ROLE_OBSERVER)
        refuse(coordinator, connection, WEFT_ERR_CLOSED, "job %.100s is over: %.200s", coordinator->job,
               coordinator->end.text[0] ? coordinator->end.text : "it ended in order");
    else if (!coordinator_wire_admits(coordinator, hello, &why))
        refuse(coordinator, connection, WEFT_ERR_VERSION, "%s", why.text);
    else
        return true;
    return false;
}

/* member NULL: an observer. */
static uint64_t silence_limit_ns(const struct weft_coordinator *coordinator,
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
    welcome.workers = is_new_worker ? coordinator->workers_at_start : coordinator->options.workers;
    welcome.shards = coordinator->options.shards;
    welcome.job_id = coordinator->job_id;
    welcome.transport_nonce = coordinator->transport_nonce;
    welcome.heartbeat_ns = silence_limit_ns(coordinator, member);
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
    send_to(coordinator, connection->id, &message);
}

static void observe(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                    const Weft__Control__Hello *hello)
{
    if (count_connections(coordinator, CONNECTION_OBSERVER) >= OBSERVERS_MAX) {
        refuse(coordinator, connection, WEFT_ERR_LIMIT,
               "job %.100s has %u observers already; try again later", coordinator->job, OBSERVERS_MAX);
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
           coordinator->next_endpoint + endpoints < WEFT_LIMIT_ENDPOINTS &&
           coordinator_active_count(coordinator) + coordinator_waiting_count(coordinator) <
               options->workers_max;
}

bool coordinator_members_reserve(struct weft_coordinator *coordinator)
{
    if (coordinator->member_count < coordinator->member_capacity) return true;
    uint32_t capacity = 2 * coordinator->member_capacity;
    struct coordinator_member **more = weft_alloc_array(coordinator->env, capacity, sizeof *more);
    if (!more) return false;
    memcpy(more, coordinator->members, coordinator->member_count * sizeof *more);
    weft_free_bytes(coordinator->env, coordinator->members);
    coordinator->members = more;
    coordinator->member_capacity = capacity;
    return true;
}

/* What the process is and supports. */
static void describe_process(struct coordinator_member *member, const Weft__Control__Hello *hello)
{
    snprintf(member->host, sizeof member->host, "%s", hello->host);
    member->has_device = hello->device;
    member->supports_states = hello->states;
    member->supports_groups = hello->groups;
    member->reads_chunk_runs = hello->chunk_runs;
    member->supports_free = hello->frees;
    member->supports_progress = hello->progress;
    member->has_snapshots = hello->snapshots;
    member->supports_moves = hello->moves;
    member->addition.is_supported = hello->additions;
    member->pid = hello->pid;
    snprintf(member->record.candidate, sizeof member->record.candidate, "%s", hello->candidate);
    member->record.process_bytes = hello->process.len;
    if (hello->process.len == sizeof member->record.process)
        memcpy(member->record.process, hello->process.data, sizeof member->record.process);
}

static void take_place(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    struct coordinator_member *before = coordinator->shards[shard->index];
    if (before) before->newcomer = true; /* it was lost, and is no shard of the job any more */
    else coordinator->shard_count++;
    coordinator->shards[shard->index] = shard;
}

static void on_hello(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
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
        refuse(coordinator, connection, (enum weft_status)error.status, "%s", error.text);
        return;
    }
    bool newcomer = adds || can_join_running_job(coordinator, hello);
    int64_t index = adds       ? coordinator->options.shards
                    : newcomer ? 0
                               : choose_index(coordinator, connection, hello);
    if (index < 0) return;
    if (!coordinator_members_reserve(coordinator)) {
        refuse(coordinator, connection, WEFT_ERR_NO_MEMORY,
               "the coordinator has no memory for another member");
        return;
    }
    struct coordinator_member *member = weft_alloc_zero(coordinator->env, sizeof *member);
    if (!member) {
        refuse(coordinator, connection, WEFT_ERR_NO_MEMORY,
               "the coordinator has no memory for another member");
        return;
    }
    bool worker = hello->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    member->role = hello->role;
    member->newcomer = newcomer;
    member->index = (uint32_t)index;
    member->rank_order = newcomer ? coordinator->next_rank_order++ : member->index;
    member->state = MEMBER_WELCOMED;
    describe_process(member, hello);
    member->wire = coordinator_wire_of(coordinator, hello);
    if (newcomer && worker)
        snprintf(member->label, sizeof member->label, "a new worker (%s, pid %llu)", member->host,
                 (unsigned long long)member->pid);
    else
        snprintf(member->label, sizeof member->label, "%s %u (%s, pid %llu)", worker ? "rank" : "shard",
                 member->index, member->host, (unsigned long long)member->pid);
    member->incarnation = coordinator->next_incarnation++;
    member->endpoint_count = hello->endpoints ? hello->endpoints : 1;
    member->endpoint_first = coordinator->next_endpoint;
    coordinator->next_endpoint += member->endpoint_count;
    member->connection = connection->id;
    member->last_received_ns = connection->last_received_ns;

    member->member = coordinator->member_count;
    coordinator->members[coordinator->member_count++] = member;
    /* a newcomer has no rank yet */
    if (worker && !newcomer) coordinator->workers[index] = member, coordinator->worker_count++;
    if (!worker && !newcomer) take_place(coordinator, member);
    if (adds) coordinator_add_begin(coordinator, member);
    connection->state = CONNECTION_MEMBER;
    connection->member = member;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "%s joined, endpoints %u to %u", member->label,
             member->endpoint_first, member->endpoint_first + member->endpoint_count - 1);
    if (newcomer) coordinator_records_job(coordinator); /* its numbers are not used again */
    welcome(coordinator, connection, hello, member);
}

/* ---- roster and barrier ---- */

/* Of the shards: those that are not lost. */
static bool all_members_at(const struct weft_coordinator *coordinator, enum coordinator_member_state state)
{
    if (coordinator->worker_count < coordinator->options.workers ||
        coordinator->shard_count < coordinator->options.shards)
        return false;
    for (uint32_t i = 0; i < coordinator->member_count; i++)
        if (coordinator->members[i]->state != state && coordinator->members[i]->state != MEMBER_LOST)
            return false;
    return true;
}

/* Names the member that is lost if the coordinator's connection is lost: the member in the same process, if
 * there is one. */
static void describe_coordinator(const struct weft_coordinator *coordinator, char *out, size_t out_bytes)
{
    unsigned long long pid = coordinator->options.pid;
    snprintf(out, out_bytes, "coordinator (%.200s, pid %llu)", coordinator->host, pid);
    for (uint32_t i = 0; pid && i < coordinator->member_count; i++) {
        const struct coordinator_member *member = coordinator->members[i];
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
    entry->device = member->has_device;
    entry->states = member->supports_states;
    entry->groups = member->supports_groups;
    entry->pid = member->pid;
    entry->incarnation = member->incarnation;
    entry->endpoint_first = member->endpoint_first;
    entry->n_addresses = member->endpoint_count;
    entry->addresses = member->addresses;
    entry->candidate = (char *)member->record.candidate;
    entry->wire_newest = member->wire.newest > 1 ? member->wire.newest : 0;
}

enum weft_status coordinator_send_roster(struct weft_coordinator *coordinator,
                                         const struct coordinator_member *to)
{
    uint32_t count = coordinator->options.workers + coordinator->options.shards + 1;
    const bool adds = to && to == coordinator->addition.shard;
    Weft__Control__Member *entries = weft_alloc_array(coordinator->env, count, sizeof *entries);
    Weft__Control__Member **pointers = weft_alloc_array(coordinator->env, count, sizeof *pointers);
    uint32_t used = 0;
    for (uint32_t i = 0; entries && pointers && i < coordinator->member_count; i++) {
        const struct coordinator_member *member = coordinator->members[i];
        const bool shard = member->role == WEFT__CONTROL__ROLE__ROLE_SHARD;
        struct coordinator_member *const *by_index = shard ? coordinator->shards : coordinator->workers;
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
    roster.epoch = coordinator->epoch_in_force;
    roster.n_members = used;
    roster.members = pointers;
    roster.coordinator = name;
    roster.wire_version = coordinator_wire_written(coordinator);
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
        if (!coordinator->shards[i]->addresses) coordinator->shards[i]->endpoint_count = 0;
}

static void send_roster(struct weft_coordinator *coordinator)
{
    coordinator_wire_choose(coordinator);
    forget_endpoints(coordinator);
    if (coordinator_placement_init(coordinator) != WEFT_OK) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the roster of %u members",
                          coordinator->member_count);
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
    enter(coordinator, COORDINATOR_CONNECTING);
    if (coordinator_send_roster(coordinator, NULL) != WEFT_OK)
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the roster of %u members",
                          coordinator->member_count);
    else coordinator_slots_send(coordinator, NULL);
}

/* Before Roster: the copies need two shards, and those that have not joined may be enough. */
static bool begins_without(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                           const char *why)
{
    uint32_t left = coordinator->options.shards - coordinator->shard_count;
    if (coordinator->state != COORDINATOR_JOINING || coordinator->options.copies == 0 ||
        lost->role != WEFT__CONTROL__ROLE__ROLE_SHARD)
        return false;
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        left += coordinator->shards[i] && coordinator->shards[i]->state < MEMBER_LEFT;
    if (left < 2) return false;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "job %s: %s lost: %.140s; the job begins without it, or with a shard that joins in its place",
             coordinator->job, lost->label, why);
    if (all_members_at(coordinator, MEMBER_ADDRESSED)) send_roster(coordinator);
    return true;
}

static void free_addresses(struct weft_coordinator *coordinator, struct coordinator_member *member)
{
    for (uint32_t i = 0; member->addresses && i < member->endpoint_count; i++)
        weft_free_bytes(coordinator->env, member->addresses[i].data);
    weft_free_bytes(coordinator->env, member->addresses);
    member->addresses = NULL;
}

static void on_endpoints(struct weft_coordinator *coordinator, struct coordinator_member *member,
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
    } else if (all_members_at(coordinator, MEMBER_ADDRESSED)) {
        send_roster(coordinator);
    }
}

/* only: NULL: all members. is_first: the members begin with the job. */
static void send_go(struct weft_coordinator *coordinator, const struct coordinator_member *only,
                    bool is_first)
{
    Weft__Control__Go go = WEFT__CONTROL__GO__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    go.epoch = coordinator->epoch_in_force;
    go.committed = coordinator->committed;
    go.codec_steps = coordinator->codec_steps;
    while (go.tensors < coordinator->tensor_count && coordinator->tensors[go.tensors]->announced)
        go.tensors++;
    if (coordinator->cost_known) go.cost = &coordinator->cost;
    go.parts = is_first ? coordinator->options.restored_parts : 0;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_GO;
    message.go = &go;
    if (only) coordinator_send(coordinator, only, &message);
    else coordinator_broadcast(coordinator, &message, NULL);
}

/* A copy for Go. Without memory it is empty for all members. */
static ProtobufCBinaryData copy_of(const struct weft_coordinator *coordinator,
                                   const ProtobufCBinaryData *data)
{
    uint8_t *copy = data->len > 0 ? weft_alloc_bytes(coordinator->env, data->len) : NULL;
    if (copy) memcpy(copy, data->data, data->len);
    return (ProtobufCBinaryData){.len = copy ? data->len : 0, .data = copy};
}

static void cost_fini(struct weft_coordinator *coordinator)
{
    weft_free_bytes(coordinator->env, coordinator->cost.ring.data);
    weft_free_bytes(coordinator->env, coordinator->cost.runs.data);
    weft_free_bytes(coordinator->env, coordinator->cost.calibration.data);
    coordinator->cost = (Weft__Control__LinkCost)WEFT__CONTROL__LINK_COST__INIT;
}

/* Keeps the link cost that rank 0 sent, for Go. Its numbers and blobs are not interpreted here. */
void coordinator_keep_cost(struct weft_coordinator *coordinator, const Weft__Control__LinkCost *sent)
{
    cost_fini(coordinator);
    coordinator->cost = *sent;
    coordinator->cost.base = (ProtobufCMessage)PROTOBUF_C_MESSAGE_INIT(&weft__control__link_cost__descriptor);
    coordinator->cost.ring = copy_of(coordinator, &sent->ring);
    coordinator->cost.runs = copy_of(coordinator, &sent->runs);
    coordinator->cost.calibration = copy_of(coordinator, &sent->calibration);
    coordinator->cost_known = true;
}

static void begin_if_ready(struct weft_coordinator *coordinator)
{
    if (coordinator->state != COORDINATOR_CONNECTING || !all_members_at(coordinator, MEMBER_READY)) return;
    enter(coordinator, COORDINATOR_RUNNING);
    coordinator_records_begin(coordinator);
    send_go(coordinator, NULL, true);
    coordinator_snapshot_tick(coordinator, weft_now_ns(coordinator->env));
}

static void on_ready(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       const Weft__Control__Ready *ready)
{
    if (member == coordinator->addition.shard && member->newcomer) {
        coordinator_add_ready(coordinator);
        return;
    }
    /* a newcomer that was admitted and has received its roster */
    bool late = coordinator->state == COORDINATOR_RUNNING && !member->newcomer;
    if ((coordinator->state != COORDINATOR_CONNECTING && !late) || member->state != MEMBER_ADDRESSED ||
        ready->epoch == 0 || ready->epoch > coordinator->epoch_in_force) {
        coordinator_member_lost(coordinator, member, "it sent Ready when that was not due");
        return;
    }
    member->state = MEMBER_READY;
    if (late) {
        coordinator_records_member(coordinator, member);
        send_go(coordinator, member, false);
        return;
    }
    if (ready->cost && member->role == WEFT__CONTROL__ROLE__ROLE_WORKER && member->index == 0)
        coordinator_keep_cost(coordinator, ready->cost);
    begin_if_ready(coordinator);
}

/* ---- leaving ---- */

static bool all_shards_left(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (coordinator->shards[i]->state < MEMBER_LEFT) return false;
    return true;
}

/* Notifies the shards, or one, that no further contribution of this worker will arrive. */
static void send_left(struct weft_coordinator *coordinator, const struct coordinator_member *worker,
                      const struct coordinator_member *only)
{
    char text[COORDINATOR_LABEL_BYTES + 16];
    Weft__Control__Left left = WEFT__CONTROL__LEFT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    snprintf(text, sizeof text, "%s has left", worker->label);
    left.member = worker->member;
    left.index = worker->index;
    left.text = text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_LEFT;
    message.left = &left;
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (!only || only == coordinator->shards[i])
            coordinator_send(coordinator, coordinator->shards[i], &message);
}

static void send_finished(struct weft_coordinator *coordinator, const struct coordinator_member *only)
{
    Weft__Control__Finished finished = WEFT__CONTROL__FINISHED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    finished.text = (char *)"all workers have left";
    message.body_case = WEFT__CONTROL__CONTROL__BODY_FINISHED;
    message.finished = &finished;
    if (only) coordinator_send(coordinator, only, &message);
    else coordinator_broadcast(coordinator, &message, NULL);
}

static void on_leave(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       const Weft__Control__Leave *leave)
{
    bool worker = member->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    bool workers_done = coordinator_active_count(coordinator) == 0;
    const bool may_leave = worker || workers_done || coordinator_drain_is_done(coordinator, member);
    if (coordinator->state != COORDINATOR_RUNNING || member->newcomer || !may_leave) {
        char why[160];
        snprintf(why, sizeof why, "it left %s%s%.100s",
                 worker || coordinator->state != COORDINATOR_RUNNING ? "before the job had begun"
                                                                     : "while workers were running",
                 leave->text[0] ? ": " : "", leave->text);
        coordinator_member_lost(coordinator, member, why);
        return;
    }
    member->state = MEMBER_LEFT;
    if (worker && leave->committed > member->committed) member->committed = leave->committed;
    coordinator_records_member(coordinator, member);
    /* A worker may know that the last step was good, and leave, before other workers ask about that step. */
    if (worker && leave->committed > coordinator->committed) coordinator->committed = leave->committed;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "%s left", member->label);
    if (worker) coordinator->worker_left_count++;
    if (worker) coordinator_snapshot_worker_left(coordinator, member, leave->committed);
    if (!worker && !workers_done) coordinator_drained(coordinator, member);
    if (worker && coordinator_active_count(coordinator) == 0) {
        coordinator_snapshot_finish(coordinator);
        send_finished(coordinator, NULL);
        workers_done = true;
    } else if (worker) send_left(coordinator, member, NULL);
    coordinator_check_left(coordinator);
    coordinator_shrink_check(coordinator);
    coordinator_liveness_check(coordinator);
    coordinator_add_continue(coordinator);
    if (coordinator->state == COORDINATOR_ENDED) return;
    if (workers_done && all_shards_left(coordinator)) end(coordinator, WEFT_OK, "");
}

/* ---- messages ---- */

static void member_message(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                           const Weft__Control__Control *message)
{
    struct coordinator_member *member = connection->member;
    member->last_received_ns = connection->last_received_ns;
    /* drain the connection without effect */
    if (member->state >= MEMBER_LEFT || coordinator->state == COORDINATOR_ENDED) return;
    bool worker = member->role == WEFT__CONTROL__ROLE__ROLE_WORKER,
         running = coordinator->state == COORDINATOR_RUNNING && !member->newcomer;
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT:
        if (message->heartbeat->wait_reason)
            coordinator_send_wait_reason(coordinator, connection->id, member);
        if (message->heartbeat->report) coordinator_report(coordinator, member, message->heartbeat->report);
        if (message->heartbeat->progress)
            coordinator_stall_progress(coordinator, member, message->heartbeat->progress);
        coordinator_heartbeat(coordinator, member, message->heartbeat);
        return;
    case WEFT__CONTROL__CONTROL__BODY_ENDPOINTS:
        on_endpoints(coordinator, member, message->endpoints);
        break;
    case WEFT__CONTROL__CONTROL__BODY_READY: on_ready(coordinator, member, message->ready); break;
    case WEFT__CONTROL__CONTROL__BODY_DECLARE:
        if (worker && running) coordinator_declare(coordinator, member, message->declare);
        else
            coordinator_member_lost(coordinator, member,
                                    worker ? "it declared a tensor before Go"
                                           : "it declared a tensor, as only workers do");
        break;
    case WEFT__CONTROL__CONTROL__BODY_DECLARED_OK:
        if (!worker && running) coordinator_declared_ok(coordinator, member, message->declared_ok);
        else coordinator_member_lost(coordinator, member, "it sent DeclaredOk when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE:
        if (worker && running) coordinator_tensor_free(coordinator, member, message->tensor_free->tensor);
        else coordinator_member_lost(coordinator, member, "it sent TensorFree when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PART:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_DATA:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH:
        if (worker && running) coordinator_parts_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it sent a worker's part of a snapshot unasked");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_ARMED:
        if (running) coordinator_snapshot_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it armed a snapshot before Go");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES:
        if (!worker && running) coordinator_snapshot_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it sent a part of a snapshot unasked");
        break;
    case WEFT__CONTROL__CONTROL__BODY_DRAIN:
        if (!worker && running && message->drain->shard == member->index)
            coordinator_drain(coordinator, member);
        else coordinator_member_lost(coordinator, member, "it sent Drain when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SHARD_KNOWN:
        if (running) coordinator_add_known(coordinator, member, message->shard_known);
        else coordinator_member_lost(coordinator, member, "it sent ShardKnown when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SLOT_COPIED:
    case WEFT__CONTROL__CONTROL__BODY_SLOT_QUIET:
        if (!worker && running) coordinator_move_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it reported a slot when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_WEIGHT_HASH:
        if (worker && running) coordinator_weight_hash(coordinator, member, message->weight_hash);
        else coordinator_member_lost(coordinator, member, "it sent a WeightHash when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SHRINK:
        if (worker && running) coordinator_shrink(coordinator, member, message->shrink);
        else coordinator_member_lost(coordinator, member, "it sent Shrink when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_JOIN:
        if (worker && running) coordinator_join(coordinator, member, message->join);
        else coordinator_member_lost(coordinator, member, "it sent Join when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_ABORT:
        if (coordinator->state == COORDINATOR_RUNNING &&
            (member->state != MEMBER_READY || member == coordinator->addition.shard)) {
            /* an admitted newcomer cannot start: only it is lost */
            coordinator_member_lost(coordinator, member, message->abort->text);
            break;
        }
        coordinator_abort(coordinator, member, (enum weft_status)message->abort->status,
                          "aborted by %s: %.300s", member->label, message->abort->text);
        break;
    case WEFT__CONTROL__CONTROL__BODY_LEAVE: on_leave(coordinator, member, message->leave); break;
    default:
        coordinator_member_lost(coordinator, member, "it sent a message that only the coordinator sends");
        break;
    }
    if (member->state == MEMBER_LOST && connection->state != CONNECTION_CLOSING)
        close_connection(coordinator, connection, "protocol broken");
}

/* An operator's request: the same message answers it, with "" or the reason why it is refused. */
static void operate(struct weft_coordinator *coordinator, const struct coordinator_connection *connection,
                    const Weft__Control__Control *message)
{
    Weft__Control__Drain drain = WEFT__CONTROL__DRAIN__INIT;
    Weft__Control__Rebalance rebalance = WEFT__CONTROL__REBALANCE__INIT;
    Weft__Control__Control answer = WEFT__CONTROL__CONTROL__INIT;
    const bool is_drain = message->body_case == WEFT__CONTROL__CONTROL__BODY_DRAIN;
    if (is_drain) drain.shard = message->drain->shard;
    const char *why = is_drain ? coordinator_drain_requested(coordinator, drain.shard)
                               : coordinator_rebalance_begin(coordinator);
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "%s requests that %s%s%s", connection->peer,
             is_drain ? "a shard leaves" : "slots move until the shards are even", why ? "; refused: " : "",
             why ? why : "");
    drain.text = rebalance.text = (char *)(why ? why : "");
    answer.body_case = message->body_case;
    if (is_drain) answer.drain = &drain;
    else answer.rebalance = &rebalance;
    send_to(coordinator, connection->id, &answer);
}

static void observer_message(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                             const Weft__Control__Control *message)
{
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HEARTBEAT) {
        if (message->heartbeat->wait_reason) coordinator_send_wait_reason(coordinator, connection->id, NULL);
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_LEAVE) {
        close_connection(coordinator, connection, "left");
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HOST_HEALTH) {
        coordinator_host_health(coordinator, message->host_health);
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_DRAIN ||
        message->body_case == WEFT__CONTROL__CONTROL__BODY_REBALANCE) {
        operate(coordinator, connection, message);
        return;
    }
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_STATUS_REQUEST) {
        refuse(coordinator, connection, WEFT_ERR_STATE,
               "an observer may only request the status, report the health of a host, drain a shard or "
               "rebalance the slots");
        return;
    }
    char *json = weft_coordinator_status_json(coordinator);
    if (!json) {
        refuse(coordinator, connection, WEFT_ERR_NO_MEMORY, "the coordinator has no memory for its status");
        return;
    }
    Weft__Control__StatusReply reply = WEFT__CONTROL__STATUS_REPLY__INIT;
    Weft__Control__Control answer = WEFT__CONTROL__CONTROL__INIT;
    reply.json = json;
    answer.body_case = WEFT__CONTROL__CONTROL__BODY_STATUS_REPLY;
    answer.status_reply = &reply;
    send_to(coordinator, connection->id, &answer);
    weft_free_bytes(coordinator->env, json);
}

void weft_coordinator_message(struct weft_coordinator *coordinator, uint64_t id,
                              const Weft__Control__Control *message)
{
    struct coordinator_connection *connection = find_connection(coordinator, id);
    if (!connection || coordinator_records_is_fenced(coordinator)) return;
    connection->last_received_ns = weft_now_ns(coordinator->env);
    switch (connection->state) {
    case CONNECTION_NEW:
        if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HELLO)
            on_hello(coordinator, connection, message->hello);
        else
            refuse(coordinator, connection, WEFT_ERR_STATE,
                   "the first message to a coordinator must be Hello");
        break;
    case CONNECTION_MEMBER: member_message(coordinator, connection, message); break;
    case CONNECTION_OBSERVER: observer_message(coordinator, connection, message); break;
    case CONNECTION_CLOSING: break;
    }
}

void weft_coordinator_refuse_resume(struct weft_coordinator *coordinator, uint64_t id,
                                    const Weft__Control__Resume *request)
{
    struct coordinator_connection *connection = find_connection(coordinator, id);
    if (!connection) return;
    const bool is_member = request->member < coordinator->member_count &&
                           coordinator->members[request->member]->incarnation == request->incarnation;
    if (coordinator->state == COORDINATOR_ENDED && !coordinator->secret)
        refuse(coordinator, connection, WEFT_ERR_PEER_LOST, "job %.100s is over: %.300s", coordinator->job,
               coordinator->end.text[0] ? coordinator->end.text : "it ended in order");
    else if (coordinator->secret) /* the sender has proved nothing */
        refuse(coordinator, connection, WEFT_ERR_PEER_LOST,
               "this process counts as lost at the coordinator, or the coordinator serves another job");
    else if (is_member)
        refuse(coordinator, connection, WEFT_ERR_PEER_LOST,
               "%.300s counts as lost at the coordinator; the job has ended for it",
               coordinator->members[request->member]->label);
    else
        refuse(coordinator, connection, WEFT_ERR_PEER_LOST,
               "the coordinator of job %.100s has no member %u of incarnation %llu: another job listens at "
               "its address",
               coordinator->job, request->member, (unsigned long long)request->incarnation);
}

/* ---- another coordinator's job ---- */

void coordinator_continue(struct weft_coordinator *coordinator)
{
    coordinator->state = COORDINATOR_RUNNING;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s continues with this coordinator",
             coordinator->job);
}

enum weft_status coordinator_adopt(struct weft_coordinator *coordinator, uint64_t id,
                                   struct coordinator_member *member)
{
    struct coordinator_connection *connection = add_connection(coordinator, id);
    if (!connection) return WEFT_ERR_NO_MEMORY;
    connection->state = CONNECTION_MEMBER;
    connection->member = member;
    connection->opened_ns = connection->last_received_ns = weft_now_ns(coordinator->env);
    snprintf(connection->peer, sizeof connection->peer, "%.60s", member->label);
    member->connection = id;
    member->record.is_awaited = true;
    return WEFT_OK;
}

/* A shard may have seen nothing of what the former coordinator decided last. */
static void repeat_to_shard(struct weft_coordinator *coordinator, const struct coordinator_member *shard)
{
    if (shard->addition.is_entering) coordinator_declare_expect_shard(coordinator, shard);
    coordinator_declare_repeat(coordinator, shard);
    for (uint32_t i = 0; i < coordinator->options.workers; i++)
        if (coordinator->workers[i]->state == MEMBER_LEFT)
            send_left(coordinator, coordinator->workers[i], shard);
    if (coordinator_active_count(coordinator) == 0) send_finished(coordinator, shard);
}

void coordinator_shard_begin(struct weft_coordinator *coordinator, const struct coordinator_member *shard)
{
    send_go(coordinator, shard, false);
    coordinator_slots_repeat(coordinator, shard);
    if (coordinator->state != COORDINATOR_ENDED) repeat_to_shard(coordinator, shard);
}

bool coordinator_any_is_awaited(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; coordinator->records.is_restored && i < coordinator->member_count; i++)
        if (coordinator->members[i]->record.is_awaited && coordinator->members[i]->state < MEMBER_LEFT)
            return true;
    return false;
}

void coordinator_welcome_back(struct weft_coordinator *coordinator, uint64_t id, bool has_begun,
                              uint32_t epoch)
{
    struct coordinator_connection *connection = find_connection(coordinator, id);
    struct coordinator_member *member = connection ? connection->member : NULL;
    if (!member || !member->record.is_awaited || member->newcomer) return;
    connection->last_received_ns = weft_now_ns(coordinator->env);
    member->record.is_awaited = false;
    if (coordinator->state == COORDINATOR_ENDED) {
        send_abort(coordinator, id, coordinator->end_status < 0 ? coordinator->end_status : WEFT_ERR_CLOSED,
                   coordinator->end.text[0] ? coordinator->end.text : "the job has ended");
        return;
    }
    coordinator_slots_repeat(coordinator, member);
    if (!has_begun) send_go(coordinator, member, true);
    coordinator_membership_repeat(coordinator, member, epoch);
    coordinator_snapshot_repeat(coordinator, member);
    coordinator_liveness_repeat(coordinator, member);
    if (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD) repeat_to_shard(coordinator, member);
    coordinator_shrink_check(coordinator);
}

/* ---- time ---- */

static void tick_joining(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    if (coordinator->state >= COORDINATOR_RUNNING ||
        weft_elapsed_ns(coordinator->created_ns, now_ns) <= coordinator->options.join_ns)
        return;
    char missing[400];
    coordinator_describe_missing(coordinator, missing, sizeof missing);
    coordinator_abort(coordinator, NULL, WEFT_ERR_DEADLINE, "job %.100s could not begin within %llu s: %s",
                      coordinator->job, (unsigned long long)(coordinator->options.join_ns / WEFT_SECONDS(1)),
                      missing);
}

static void shift_time(uint64_t *time_ns, uint64_t by_ns, uint64_t now_ns)
{
    /* a message may have arrived after the pause */
    *time_ns = weft_elapsed_ns(*time_ns, now_ns) > by_ns ? *time_ns + by_ns : now_ns;
}

void weft_coordinator_paused(struct weft_coordinator *coordinator, uint64_t pause_ns)
{
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "this process was stopped for %.1f s",
             (double)pause_ns / 1e9);
    uint64_t now_ns = weft_now_ns(coordinator->env);
    coordinator->paused_ns = now_ns;
    coordinator->pause_ns = pause_ns;
    for (size_t i = 0; i < coordinator->connection_count; i++) {
        shift_time(&coordinator->connections[i]->last_received_ns, pause_ns, now_ns);
        shift_time(&coordinator->connections[i]->opened_ns, pause_ns, now_ns);
    }
    shift_time(&coordinator->created_ns, pause_ns, now_ns);
    if (coordinator->shrink_began_ns > 0) shift_time(&coordinator->shrink_began_ns, pause_ns, now_ns);
}

/* The member may only be suspended or cut off from the network. The Abort explains to it why the job went on
 * without it. */
static void lose_silent(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                    const char *silent)
{
    if (connection->member && connection->member->state < MEMBER_LEFT) {
        /* a member that has left may be slow to close */
        char text[COORDINATOR_LABEL_BYTES + 160];
        snprintf(text, sizeof text,
                 "%s counts as lost at the coordinator: it was %.100s; the job has ended for it",
                 connection->member->label, silent);
        coordinator_member_lost(coordinator, connection->member, silent);
        send_abort(coordinator, connection->id, WEFT_ERR_PEER_LOST, text);
    }
    close_connection(coordinator, connection, silent);
}

void coordinator_expel(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       enum weft_status status, const char *why)
{
    const uint64_t connection = member->connection;
    coordinator_member_lost(coordinator, member, why);
    if (connection == 0) return;
    send_abort(coordinator, connection, status, why);
    struct coordinator_connection *own = find_connection(coordinator, connection);
    if (own) close_connection(coordinator, own, why);
}

void weft_coordinator_tick(struct weft_coordinator *coordinator)
{
    uint64_t now_ns = weft_now_ns(coordinator->env);
    char silent[64];
    if (coordinator_records_is_fenced(coordinator)) return;
    for (size_t i = 0; i < coordinator->connection_count; i++) {
        struct coordinator_connection *connection = coordinator->connections[i];
        if (connection->state == CONNECTION_NEW && weft_elapsed_ns(connection->opened_ns, now_ns) > HELLO_NS)
            refuse(coordinator, connection, WEFT_ERR_DEADLINE, "no Hello within %llu s",
                   (unsigned long long)(HELLO_NS / WEFT_SECONDS(1)));
        bool joined = connection->state == CONNECTION_MEMBER || connection->state == CONNECTION_OBSERVER;
        const uint64_t silence_ns = silence_limit_ns(coordinator, connection->member);
        if (!joined || weft_elapsed_ns(connection->last_received_ns, now_ns) <= silence_ns) continue;
        snprintf(silent, sizeof silent, "silent for %llu s",
                 (unsigned long long)(silence_ns / WEFT_SECONDS(1)));
        lose_silent(coordinator, connection, silent);
    }
    coordinator_log_wait_reason(coordinator, now_ns);
    weft_log_limit_flush(coordinator->env, &coordinator->refusals);
    tick_joining(coordinator, now_ns);
    coordinator_shrink_tick(coordinator, now_ns);
    coordinator_stall_tick(coordinator, now_ns);
    coordinator_snapshot_tick(coordinator, now_ns);
    coordinator_add_tick(coordinator, now_ns);
    coordinator_moves_tick(coordinator, now_ns);
}

/* ---- life ---- */

void weft_coordinator_options_init(struct weft_coordinator_options *options)
{
    *options = (struct weft_coordinator_options){.size = sizeof *options,
                                                 .job = "weft",
                                                 .workers = 1,
                                                 .newcomers_max = NEWCOMERS_MAX,
                                                 .heartbeat_ns = WEFT_SECONDS(30),
                                                 .resume_ns = WEFT_SECONDS(5),
                                                 .join_ns = WEFT_SECONDS(300)};
}

enum weft_status weft_coordinator_create(struct weft_env *env, const struct weft_coordinator_options *options,
                                         struct weft_coordinator **out)
{
    WEFT_ASSERT(options->size == sizeof *options && options->send && options->close);
    if (options->workers == 0 || options->workers > WEFT_LIMIT_WORKERS || options->shards > WEFT_LIMIT_SHARDS)
        return WEFT_ERR_INVALID;
    if (!options->job || options->job[0] == 0 || strlen(options->job) > WEFT_LIMIT_NAME_BYTES)
        return WEFT_ERR_INVALID;
    if (options->workers_min > options->workers || options->workers_max > WEFT_LIMIT_WORKERS)
        return WEFT_ERR_INVALID;
    if (options->heartbeat_ns == 0 || options->join_ns == 0) return WEFT_ERR_INVALID;
    if (options->copies > WEFT_LIMIT_COPIES) return WEFT_ERR_INVALID;
    struct weft_coordinator *coordinator = weft_alloc_zero(env, sizeof *coordinator);
    if (!coordinator) return WEFT_ERR_NO_MEMORY;
    coordinator->env = env;
    coordinator->options = *options;
    coordinator->state = COORDINATOR_JOINING;
    coordinator->refusals = (struct weft_log_limit){.component = "coordinator", .burst = REFUSALS_LOGGED};
    coordinator->created_ns = weft_now_ns(env);
    coordinator->report_ns = weft_deadline_ns(coordinator->created_ns, WEFT_WAIT_REASON_FIRST_NS);
    coordinator->job_id = weft_random_u64(env);
    coordinator->transport_nonce = weft_random_u64(env);
    coordinator->next_incarnation = 1;
    coordinator->epoch = coordinator->epoch_in_force = COORDINATOR_EPOCH;
    coordinator->committed = options->restored_step;
    bool with_secret = options->secret && options->secret[0];
    coordinator->job = weft_alloc_text(env, options->job);
    coordinator->secret = with_secret ? weft_alloc_text(env, options->secret) : NULL;
    coordinator->host = weft_alloc_text(env, options->host ? options->host : "");
    coordinator->options.job = coordinator->job;
    coordinator->options.host = coordinator->host;
    coordinator->options.secret = coordinator->secret;
    uint32_t most = options->workers_max > options->workers ? options->workers_max : options->workers;
    coordinator->member_capacity = most + options->shards;
    coordinator->next_rank_order = coordinator->workers_at_start = options->workers;
    coordinator->members = weft_alloc_zero(env, coordinator->member_capacity * sizeof *coordinator->members);
    coordinator->workers = weft_alloc_zero(env, most * sizeof *coordinator->workers);
    coordinator->shards = weft_alloc_zero(env, (options->shards + 1) * sizeof *coordinator->shards);
    if (!coordinator->job || !coordinator->host || (with_secret && !coordinator->secret) ||
        !coordinator->members || !coordinator->workers || !coordinator->shards ||
        coordinator_snapshot_init(coordinator) < 0) {
        weft_coordinator_free(coordinator);
        return WEFT_ERR_NO_MEMORY;
    }
    *out = coordinator;
    return WEFT_OK;
}

void weft_coordinator_free(struct weft_coordinator *coordinator)
{
    if (!coordinator) return;
    struct weft_env *env = coordinator->env;
    for (size_t i = 0; i < coordinator->connection_count; i++)
        weft_free_bytes(env, coordinator->connections[i]);
    for (uint32_t i = 0; i < coordinator->member_count; i++) {
        free_addresses(coordinator, coordinator->members[i]);
        weft_free_bytes(coordinator->env, coordinator->members[i]->report_open);
        weft_free_bytes(coordinator->env, coordinator->members[i]->operations_seen);
        weft_free_bytes(env, coordinator->members[i]);
    }
    coordinator_tensors_free(coordinator);
    coordinator_slots_free(coordinator);
    cost_fini(coordinator);
    coordinator_host_health_free(coordinator);
    weft_free_bytes(env, coordinator->records.shrunk);
    weft_free_bytes(env, coordinator->snapshot.answered);
    weft_free_bytes(env, coordinator->endpoints);
    weft_free_bytes(env, coordinator->connections);
    weft_free_bytes(env, coordinator->members);
    weft_free_bytes(env, coordinator->workers);
    weft_free_bytes(env, coordinator->shards);
    weft_free_bytes(env, coordinator->job);
    weft_free_bytes(env, coordinator->secret);
    weft_free_bytes(env, coordinator->host);
    weft_free_bytes(env, coordinator);
}
