/* membership.c - the members of the job: checks the coordinator's roster, and names members for error
 * sentences. */
#include "client/session/membership.h"

#include <stdio.h>
#include <string.h>

#include "client/session/failure.h"
#include "client/session/session.h"

/* Every rank and every shard. In a job with copies, shards that were lost, or have left, are missing. */
static bool is_complete(const struct weft_session *session, const struct client_member *members,
                        uint32_t count)
{
    uint32_t shards = 0;
    for (uint32_t i = 0; i < count; i++) shards += members[i].is_shard;
    if (session->rank >= session->ranks || count - shards != session->ranks) return false;
    return session->control.copies > 0 ? shards > 0 && shards <= session->membership.shards
                                       : shards == session->membership.shards;
}

/* Checks that the roster has every rank and every shard at most once, and that every endpoint has one
 * owner. */
static enum weft_status check_roster(const struct weft_session *session, const struct client_member *members,
                                     uint32_t count, struct weft_error *error)
{
    if (!is_complete(session, members, count))
        return weft_error_set(error, WEFT_ERR_MALFORMED,
                              "the coordinator's roster has %u members, not %u workers and %u shards", count,
                              session->ranks, session->membership.shards);
    for (uint32_t i = 0; i < count; i++) {
        const struct client_member *a = &members[i];
        if (a->index >= (a->is_shard ? session->membership.shards : session->ranks))
            return weft_error_set(error, WEFT_ERR_MALFORMED,
                                  "the coordinator's roster names %s, beyond the job's size", a->name);
        for (uint32_t j = 0; j < i; j++) {
            const struct client_member *b = &members[j];
            bool same = a->is_shard == b->is_shard && a->index == b->index;
            bool overlap = a->endpoint_first < b->endpoint_first + b->endpoint_count &&
                           b->endpoint_first < a->endpoint_first + a->endpoint_count;
            if (same || overlap)
                return weft_error_set(error, WEFT_ERR_MALFORMED,
                                      "the coordinator's roster has %s and %s in one place", b->name,
                                      a->name);
        }
    }
    return WEFT_OK;
}

static enum weft_status set_member(const Weft__Control__Member *source, struct client_member *member,
                                   struct weft_error *error)
{
    bool is_shard = source->role == WEFT__CONTROL__ROLE__ROLE_SHARD;
    if (!is_shard && source->role != WEFT__CONTROL__ROLE__ROLE_WORKER)
        return weft_error_set(error, WEFT_ERR_MALFORMED,
                              "the coordinator's roster has a member that is neither worker nor shard");
    if (source->n_addresses == 0 || (!is_shard && source->n_addresses != 1))
        return weft_error_set(error, WEFT_ERR_MALFORMED, "the coordinator's roster gives %s %zu endpoints",
                              source->name, source->n_addresses);
    *member = (struct client_member){
        .member = source->member,
        .is_shard = is_shard,
        .has_state_messages = source->states,
        .has_message_groups = source->groups,
        .index = source->index,
        .endpoint_first = source->endpoint_first,
        .endpoint_count = (uint32_t)source->n_addresses,
    };
    snprintf(member->name, sizeof member->name, "%s %u (%.60s, pid %llu)", is_shard ? "shard" : "rank",
             source->index, source->host, (unsigned long long)source->pid);
    return WEFT_OK;
}

/* Entries for shards that join later: other threads read the table meanwhile, so it is not moved. */
static uint32_t spare_count(const struct weft_session *session)
{
    return session->control.copies > 0 ? WEFT_LIMIT_ADDED_SHARDS : 1;
}

enum weft_status client_members_add_shard(struct weft_session *session, const Weft__Control__Member *shard,
                                          struct weft_error *error)
{
    const uint32_t count = session->membership.member_count;
    if (session->membership.shards_added >= WEFT_LIMIT_ADDED_SHARDS)
        return weft_error_set(error, WEFT_ERR_LIMIT, "can hold %u further shards only",
                              WEFT_LIMIT_ADDED_SHARDS);
    WEFT_TRY(set_member(shard, &session->membership.members[count], error));
    session->membership.shards_added++;
    atomic_store_explicit(&session->membership.member_count, count + 1, memory_order_release);
    return WEFT_OK;
}

enum weft_status client_members_set(struct weft_session *session, const Weft__Control__Roster *roster,
                                    struct weft_error *error)
{
    uint32_t count = (uint32_t)roster->n_members;
    struct client_member *members =
        weft_alloc_array(session->env, count + spare_count(session), sizeof *members);
    if (!members)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a roster of %u members", count);
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++)
        status = set_member(roster->members[i], &members[i], error);
    if (status == WEFT_OK) status = check_roster(session, members, count, error);
    if (status < 0) {
        weft_free_bytes(session->env, members);
        return status;
    }
    session->membership.members = members;
    session->epoch = roster->epoch;
    /* a loss may have been announced already */
    if (atomic_load(&session->epoch_change.epoch) < roster->epoch)
        atomic_store(&session->epoch_change.epoch, roster->epoch);
    atomic_store_explicit(&session->membership.member_count, count, memory_order_release);
    return WEFT_OK;
}

enum weft_status client_members_renumber(struct weft_session *session, const uint32_t *numbers,
                                         uint32_t count, uint32_t epoch, struct weft_error *error)
{
    struct client_member *before = session->membership.members;
    struct client_old_member_table *old_tables = weft_alloc_zero(session->env, sizeof *old_tables);
    struct client_member *members = weft_alloc_array(
        session->env, session->membership.member_count + count + spare_count(session), sizeof *members);
    uint32_t found = 0, own = UINT32_MAX, known = session->membership.member_count;
    for (uint32_t i = 0; old_tables && members && i < session->membership.member_count; i++) {
        const char *where = strchr(before[i].name, '(');
        const bool shard = before[i].is_shard;
        members[i] = (struct client_member){.member = before[i].member,
                                            .is_shard = shard,
                                            .has_state_messages = before[i].has_state_messages,
                                            .has_message_groups = before[i].has_message_groups,
                                            .index = shard ? before[i].index : UINT32_MAX,
                                            .endpoint_first = before[i].endpoint_first,
                                            .endpoint_count = before[i].endpoint_count,
                                            .is_lost = atomic_load(&before[i].is_lost)};
        snprintf(members[i].name, sizeof members[i].name, "%s", before[i].name);
        if (shard) continue;
        for (uint32_t rank = 0; rank < count; rank++) {
            if (numbers[rank] != members[i].member) continue;
            found++;
            members[i].index = rank;
            snprintf(members[i].name, sizeof members[i].name, "rank %u %s", rank, where ? where : "");
            if (members[i].endpoint_first == session->membership.endpoint) own = rank;
        }
    }
    for (uint32_t rank = 0; old_tables && members && rank < count; rank++) {
        const Weft__Control__Member *newcomer = client_member_of_number(session, numbers[rank])
                                                    ? NULL
                                                    : client_member_find_newcomer(session, numbers[rank]);
        if (!newcomer || set_member(newcomer, &members[known], error) < 0 ||
            session->ops.connect(session, newcomer, error) < 0)
            continue;
        members[known].index = rank;
        const char *where = strchr(members[known].name, '(');
        char name[sizeof members[known].name];
        snprintf(name, sizeof name, "rank %u %.100s", rank, where ? where : "");
        snprintf(members[known].name, sizeof members[known].name, "%s", name);
        known++;
        found++;
    }
    if (!old_tables || !members || found != count || own == UINT32_MAX) {
        weft_free_bytes(session->env, old_tables);
        weft_free_bytes(session->env, members);
        if (!old_tables || !members)
            return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the members of epoch %u", epoch);
        if (error->status < 0) return (enum weft_status)error->status;
        return weft_error_set(error, WEFT_ERR_MALFORMED,
                              "the coordinator's members of epoch %u differ from those of this rank", epoch);
    }
    *old_tables = (struct client_old_member_table){session->membership.old_tables, before};
    session->membership.old_tables = old_tables;
    session->membership.members = members;
    for (uint32_t i = 0; i < session->membership.member_count; i++) /* members lost during the copy */
        if (atomic_load(&before[i].is_lost)) atomic_store(&members[i].is_lost, true);
    atomic_store_explicit(&session->membership.member_count, known, memory_order_release);
    session->rank = own;
    session->ranks = count;
    session->epoch = epoch;
    return WEFT_OK;
}

const Weft__Control__Member *client_member_find_newcomer(struct weft_session *session, uint32_t number)
{
    const Weft__Control__Member *found = NULL;
    pthread_mutex_lock(&session->control.lock);
    for (const struct client_newcomer_message *newcomer = session->membership.newcomer_messages;
         newcomer && !found; newcomer = newcomer->next)
        for (size_t i = 0; i < newcomer->message->shrunk->n_newcomers && !found; i++)
            if (newcomer->message->shrunk->newcomers[i]->member == number)
                found = newcomer->message->shrunk->newcomers[i];
    pthread_mutex_unlock(&session->control.lock);
    return found;
}

void client_shrunk_release(struct weft_session *session, Weft__Control__Control *message)
{
    if (message && message->shrunk->n_newcomers == 0) weft_control_free(session->env, message);
}

void client_members_free(struct weft_session *session)
{
    while (session->membership.newcomer_messages) {
        struct client_newcomer_message *newcomer = session->membership.newcomer_messages;
        session->membership.newcomer_messages = newcomer->next;
        weft_control_free(session->env, newcomer->message);
        weft_free_bytes(session->env, newcomer);
    }
    while (session->membership.old_tables) {
        struct client_old_member_table *old_tables = session->membership.old_tables;
        session->membership.old_tables = old_tables->next;
        weft_free_bytes(session->env, old_tables->members);
        weft_free_bytes(session->env, old_tables);
    }
    weft_free_bytes(session->env, session->membership.members);
}

const struct client_member *client_member_of_endpoint(const struct weft_session *session, uint32_t endpoint)
{
    for (uint32_t i = 0; i < session->membership.member_count; i++) {
        const struct client_member *member = &session->membership.members[i];
        if (endpoint - member->endpoint_first < member->endpoint_count) return member;
    }
    return NULL;
}

struct client_member *client_member_of_number(const struct weft_session *session, uint32_t number)
{
    for (uint32_t i = 0; i < session->membership.member_count; i++)
        if (session->membership.members[i].member == number) return &session->membership.members[i];
    return NULL;
}

const char *client_endpoint_name(const struct weft_session *session, uint32_t endpoint)
{
    const struct client_member *member = client_member_of_endpoint(session, endpoint);
    return member ? member->name : "an unknown endpoint";
}

void client_rank_name(const struct weft_session *session, uint32_t rank, char *out, size_t out_bytes)
{
    for (uint32_t i = 0; i < session->membership.member_count; i++) {
        if (session->membership.members[i].is_shard || session->membership.members[i].index != rank) continue;
        snprintf(out, out_bytes, "%s", session->membership.members[i].name);
        return;
    }
    snprintf(out, out_bytes, "rank %u", rank);
}

uint32_t client_rank_endpoint(const struct weft_session *session, uint32_t rank)
{
    for (uint32_t i = 0; i < session->membership.member_count; i++)
        if (!session->membership.members[i].is_shard && session->membership.members[i].index == rank)
            return session->membership.members[i].endpoint_first;
    return UINT32_MAX;
}

/* A coordinator of version 1 sends no versions. */
static const char *oldest_process(const Weft__Control__Roster *roster, uint32_t needed)
{
    for (size_t i = 0; roster->wire_version > 0 && i < roster->n_members; i++)
        if (roster->members[i]->wire_newest < needed) return roster->members[i]->name;
    return "the coordinator";
}

enum weft_status client_wire_check(struct weft_session *session, uint32_t needed, const char *what)
{
    const Weft__Control__Roster *roster = session->control.roster->roster;
    const uint32_t version = roster->wire_version ? roster->wire_version : 1;
    if (version >= needed) return WEFT_OK;
    if (session->settings.wire_newest > 0 && session->settings.wire_newest < needed)
        return client_error(session, WEFT_ERR_VERSION,
                            "%s needs wire version %u, and job.wire_version=%u limits this process", what,
                            needed, session->settings.wire_newest);
    struct weft_error error = {0};
    const enum weft_status status =
        weft_wire_version_refuse(what, needed, version, oldest_process(roster, needed), &error);
    return client_error(session, status, "%s", error.text);
}
