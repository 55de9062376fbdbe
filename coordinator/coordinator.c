/* coordinator.c - membership of the job: a state machine without sockets, threads or sleeping. Its inputs
 * are in members/. This file sends, ends the job, and applies timeouts.
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
#include "coordinator/members/members.h"
#include "coordinator/takeover/records.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HELLO_NS WEFT_SECONDS(10) /* a connection that has not sent Hello after this time is closed */
#define NEWCOMERS_MAX 256u
#define REFUSALS_LOGGED 8u /* per 10 s, one by one; the others are counted */

/* ---- sending ---- */

/* What led to the message is in the store before it is sent. */
void coordinator_send_to(struct weft_coordinator *coordinator, uint64_t connection,
                         const Weft__Control__Control *message)
{
    if (!coordinator_records_commit(coordinator)) return;
    coordinator->options.net.send(coordinator->options.context, connection, message);
}

void coordinator_send(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                      const Weft__Control__Control *message)
{
    if (member->connection && member->state < MEMBER_LEFT && !member->record.is_awaited)
        coordinator_send_to(coordinator, member->connection, message);
}

void coordinator_send_same(struct weft_coordinator *coordinator, const Weft__Control__Control *message)
{
    if (coordinator->options.net.send_same)
        coordinator->options.net.send_same(coordinator->options.context, message);
}

void coordinator_broadcast(struct weft_coordinator *coordinator, const Weft__Control__Control *message,
                           const struct coordinator_member *except)
{
    coordinator_send_same(coordinator, message);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i] != except && !coordinator->membership.members[i]->newcomer)
            coordinator_send(coordinator, coordinator->membership.members[i], message);
    coordinator_send_same(coordinator, NULL);
}

static void send_to_observers(struct weft_coordinator *coordinator, const Weft__Control__Control *message)
{
    for (size_t i = 0; i < coordinator->membership.connection_count; i++)
        if (coordinator->membership.connections[i]->state == CONNECTION_OBSERVER)
            coordinator_send_to(coordinator, coordinator->membership.connections[i]->id, message);
}

void coordinator_send_abort(struct weft_coordinator *coordinator, uint64_t connection,
                            enum weft_status status, const char *text)
{
    Weft__Control__Abort abort = WEFT__CONTROL__ABORT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    abort.status = status;
    abort.text = (char *)text;
    if (status == WEFT_ERR_ROLLED_BACK) abort.rollback_step = coordinator->rollback.step;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ABORT;
    message.abort = &abort;
    coordinator_send_to(coordinator, connection, &message);
}

void coordinator_close_connection(struct weft_coordinator *coordinator,
                                  struct coordinator_connection *connection, const char *why)
{
    connection->state = CONNECTION_CLOSING;
    coordinator->options.net.close(coordinator->options.context, connection->id, why);
}

/* Sends Abort and closes the connection. The job continues. */
void coordinator_refuse(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
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
    coordinator_send_abort(coordinator, connection->id, status, text);
    coordinator_close_connection(coordinator, connection, text);
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
void coordinator_enter(struct weft_coordinator *coordinator, enum coordinator_state state)
{
    WEFT_ASSERT(coordinator->state < COORDINATOR_ENDED);
    WEFT_ASSERT(state == COORDINATOR_ENDED || state == coordinator->state + 1);
    coordinator->state = state;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s is %s", coordinator->job,
             state_name(state));
}

void coordinator_end(struct weft_coordinator *coordinator, enum weft_status status, const char *text)
{
    if (!coordinator_records_end(coordinator)) return;
    coordinator_enter(coordinator, COORDINATOR_ENDED);
    coordinator->end_status = status;
    /* newcomers wait for an admission that cannot happen now */
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->newcomer && coordinator->membership.members[i]->connection &&
            coordinator->membership.members[i]->state < MEMBER_LEFT)
            coordinator_send_abort(coordinator, coordinator->membership.members[i]->connection,
                                   WEFT_ERR_CLOSED,
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
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        if (member != except && member->connection && member->state < MEMBER_LEFT &&
            !member->record.is_awaited)
            coordinator_send_abort(coordinator, member->connection, status, text);
    }
    for (size_t i = 0; i < coordinator->membership.connection_count; i++)
        if (coordinator->membership.connections[i]->state == CONNECTION_OBSERVER)
            coordinator_send_abort(coordinator, coordinator->membership.connections[i]->id, status, text);
    coordinator_end(coordinator, status, text);
}

void coordinator_fill_lost(Weft__Control__MemberLost *body, const struct coordinator_member *lost, char *text,
                           uint32_t epoch)
{
    weft__control__member_lost__init(body);
    body->member = lost->member;
    body->text = text;
    body->role = lost->role;
    body->index = lost->index;
    body->pid = lost->pid;
    body->epoch = epoch;
}

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
    char no_copy[200];
    if (coordinator_slots_fail_over(coordinator, member, why, no_copy, sizeof no_copy)) {
        coordinator_snapshot_shards_changed(coordinator, "a shard was lost");
        coordinator_add_continue(coordinator);
        coordinator_shrink_check(coordinator); /* the agreement may have waited for this shard to resume */
        coordinator_begin_if_ready(coordinator);
        coordinator_rollback_continue(coordinator);
        return;
    }
    if (coordinator_begins_without(coordinator, member, why)) return;
    if (coordinator_rolls_back(coordinator, member, why, no_copy, sizeof no_copy)) return;
    bool goes_on = coordinator_shrink_begin(coordinator, member);
    if (!goes_on && !coordinator_records_end(coordinator)) return;
    char text[COORDINATOR_LABEL_BYTES + 160 + sizeof COORDINATOR_SHARDS_AHEAD_TEXT + sizeof no_copy];
    const bool beyond = !goes_on && !member->agreement.joined && coordinator_shards_are_ahead(coordinator);
    snprintf(text, sizeof text, "%s lost: %.140s%s%s", member->label, why, no_copy,
             beyond ? "; " COORDINATOR_SHARDS_AHEAD_TEXT : "");
    Weft__Control__MemberLost lost;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    coordinator_fill_lost(&lost, member, text, goes_on ? coordinator->epochs.epoch : 0);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST;
    message.member_lost = &lost;
    coordinator_broadcast(coordinator, &message, member);
    send_to_observers(coordinator, &message);
    if (!goes_on) {
        coordinator_end(coordinator, WEFT_ERR_PEER_LOST, text);
        return;
    }
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %s: %s; the others go on", coordinator->job,
             text);
    coordinator_shrink_check(coordinator);
    coordinator_liveness_check(coordinator); /* the lost member may be the one that the check waits for */
    coordinator_add_continue(coordinator);
}

/* ---- time ---- */

static void tick_joining(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    if (coordinator->state >= COORDINATOR_RUNNING ||
        weft_elapsed_ns(coordinator->process.created_ns, now_ns) <= coordinator->options.join_ns)
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
    coordinator->process.paused_ns = now_ns;
    coordinator->process.pause_ns = pause_ns;
    for (size_t i = 0; i < coordinator->membership.connection_count; i++) {
        shift_time(&coordinator->membership.connections[i]->last_received_ns, pause_ns, now_ns);
        shift_time(&coordinator->membership.connections[i]->opened_ns, pause_ns, now_ns);
    }
    shift_time(&coordinator->process.created_ns, pause_ns, now_ns);
    if (coordinator->epochs.shrink_began_ns > 0)
        shift_time(&coordinator->epochs.shrink_began_ns, pause_ns, now_ns);
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
        coordinator_send_abort(coordinator, connection->id, WEFT_ERR_PEER_LOST, text);
    }
    coordinator_close_connection(coordinator, connection, silent);
}

void coordinator_expel(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       enum weft_status status, const char *why)
{
    const uint64_t connection = member->connection;
    coordinator_member_lost(coordinator, member, why);
    if (connection == 0) return;
    coordinator_send_abort(coordinator, connection, status, why);
    struct coordinator_connection *own = coordinator_connection_find(coordinator, connection);
    if (own) coordinator_close_connection(coordinator, own, why);
}

void weft_coordinator_tick(struct weft_coordinator *coordinator)
{
    uint64_t now_ns = weft_now_ns(coordinator->env);
    char silent[64];
    if (coordinator_records_is_fenced(coordinator)) return;
    for (size_t i = 0; i < coordinator->membership.connection_count; i++) {
        struct coordinator_connection *connection = coordinator->membership.connections[i];
        if (connection->state == CONNECTION_NEW && weft_elapsed_ns(connection->opened_ns, now_ns) > HELLO_NS)
            coordinator_refuse(coordinator, connection, WEFT_ERR_DEADLINE, "no Hello within %llu s",
                               (unsigned long long)(HELLO_NS / WEFT_SECONDS(1)));
        bool joined = connection->state == CONNECTION_MEMBER || connection->state == CONNECTION_OBSERVER;
        const uint64_t silence_ns = coordinator_silence_limit_ns(coordinator, connection->member);
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
    coordinator_rollback_tick(coordinator, now_ns);
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
    WEFT_ASSERT(options->size == sizeof *options && options->net.send && options->net.close);
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
    coordinator->process.created_ns = weft_now_ns(env);
    coordinator->process.report_ns =
        weft_deadline_ns(coordinator->process.created_ns, WEFT_WAIT_REASON_FIRST_NS);
    coordinator->job_id = weft_random_u64(env);
    coordinator->transport_nonce = weft_random_u64(env);
    coordinator->membership.next_incarnation = 1;
    coordinator->epochs.epoch = coordinator->epochs.epoch_in_force = COORDINATOR_EPOCH;
    coordinator->epochs.committed = options->snapshots.restored_step;
    bool with_secret = options->secret && options->secret[0];
    coordinator->job = weft_alloc_text(env, options->job);
    coordinator->secret = with_secret ? weft_alloc_text(env, options->secret) : NULL;
    coordinator->host = weft_alloc_text(env, options->process.host ? options->process.host : "");
    coordinator->options.job = coordinator->job;
    coordinator->options.process.host = coordinator->host;
    coordinator->options.secret = coordinator->secret;
    uint32_t most = options->workers_max > options->workers ? options->workers_max : options->workers;
    coordinator->membership.member_capacity = most + options->shards;
    coordinator->membership.next_rank_order = coordinator->membership.workers_at_start = options->workers;
    coordinator->membership.members = weft_alloc_zero(env, coordinator->membership.member_capacity *
                                                               sizeof *coordinator->membership.members);
    coordinator->membership.workers = weft_alloc_zero(env, most * sizeof *coordinator->membership.workers);
    coordinator->membership.shards =
        weft_alloc_zero(env, (options->shards + 1) * sizeof *coordinator->membership.shards);
    if (!coordinator->job || !coordinator->host || (with_secret && !coordinator->secret) ||
        !coordinator->membership.members || !coordinator->membership.workers ||
        !coordinator->membership.shards || coordinator_snapshot_init(coordinator) < 0) {
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
    for (size_t i = 0; i < coordinator->membership.connection_count; i++)
        weft_free_bytes(env, coordinator->membership.connections[i]);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        coordinator_addresses_free(coordinator, coordinator->membership.members[i]);
        weft_free_bytes(coordinator->env, coordinator->membership.members[i]->figures.report_open);
        weft_free_bytes(coordinator->env, coordinator->membership.members[i]->figures.operations_seen);
        weft_free_bytes(env, coordinator->membership.members[i]);
    }
    coordinator_tensors_free(coordinator);
    coordinator_slots_free(coordinator);
    coordinator_cost_fini(coordinator);
    coordinator_host_health_free(coordinator);
    weft_free_bytes(env, coordinator->records.shrunk);
    weft_free_bytes(env, coordinator->snapshot.answered);
    weft_free_bytes(env, coordinator->table.endpoints);
    weft_free_bytes(env, coordinator->membership.connections);
    weft_free_bytes(env, coordinator->membership.members);
    weft_free_bytes(env, coordinator->membership.workers);
    weft_free_bytes(env, coordinator->membership.shards);
    weft_free_bytes(env, coordinator->job);
    weft_free_bytes(env, coordinator->secret);
    weft_free_bytes(env, coordinator->host);
    weft_free_bytes(env, coordinator);
}
