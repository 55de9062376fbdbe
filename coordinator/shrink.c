/* shrink.c - the job goes on with fewer or more workers, if all remaining workers agree.
 *
 *     worker lost     epoch + 1, MemberLost(epoch) to all -> each worker stops its operations, sends
 *                     Shrink(epoch, last good step) -> all sent: Shrunk(epoch, members by new rank, largest
 *                     good step), in force
 *     out of data     Join -> epoch + 1, Joined(epoch) to all -> Shrink of workers with data
 *                     -> Shrunk(members) -> every worker has joined: Shrunk(all members, last one to join)
 *     new worker      Endpoints -> epoch + 1, Grow(epoch) to all -> Shrink of all, at the end of a step
 *                     -> Shrunk(members, newcomers); to the newcomer: Roster, Ready, Go
 *
 * Rank order is the old order without gaps. Shards follow by MemberLost and Shrunk and send no reply
 * (shard_members.c). With shards a newcomer is admitted after the first good step: then the shards have
 * weights of every tensor. docs/elastic.md has the protocol as a table. */
#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

#include <stdio.h>

bool coordinator_member_is_active(const struct coordinator_member *member)
{
    return member->role == WEFT__CONTROL__ROLE__ROLE_WORKER && member->state < MEMBER_LEFT &&
           !member->newcomer;
}

/* A newcomer whose addresses are known. */
static bool waits_for_admission(const struct coordinator_member *member)
{
    return member->newcomer && member->role == WEFT__CONTROL__ROLE__ROLE_WORKER &&
           member->state == MEMBER_ADDRESSED;
}

static bool can_be_admitted(const struct weft_coordinator *coordinator,
                            const struct coordinator_member *member)
{
    return waits_for_admission(member) &&
           (coordinator->options.shards == 0 || coordinator->epochs.committed > 0);
}

uint32_t coordinator_waiting_count(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        count += coordinator->membership.members[i]->newcomer &&
                 coordinator->membership.members[i]->state < MEMBER_LEFT &&
                 coordinator->membership.members[i]->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
    return count;
}

uint32_t coordinator_active_count(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        count += coordinator_member_is_active(coordinator->membership.members[i]);
    }
    return count;
}

static bool all_tensors_announced(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->table.tensor_count; i++)
        if (!coordinator->table.tensors[i]->announced) return false;
    return true;
}

const struct coordinator_member *coordinator_find_joined(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator_member_is_active(coordinator->membership.members[i]) &&
            coordinator->membership.members[i]->agreement.joined)
            return coordinator->membership.members[i];
    return NULL;
}

bool coordinator_shards_are_ahead(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator_member_is_active(coordinator->membership.members[i]) &&
            !coordinator->membership.members[i]->agreement.joined)
            return false;
    return coordinator->options.shards > 0 && coordinator_find_joined(coordinator);
}

bool coordinator_shrink_begin(struct weft_coordinator *coordinator, const struct coordinator_member *lost)
{
    uint32_t active = coordinator_active_count(coordinator);
    bool may = coordinator->options.workers_min > 0 && coordinator->state == COORDINATOR_RUNNING &&
               lost->role == WEFT__CONTROL__ROLE__ROLE_WORKER &&
               active >= coordinator->options.workers_min && active > 0 &&
               all_tensors_announced(coordinator); /* a tensor that only some workers have declared has no
                                                    * owner */
    if (!may) return false;
    if (lost->agreement.joined) return true; /* it has no data: no agreement is needed */
    if (coordinator_shards_are_ahead(coordinator)) return false;
    coordinator_tensor_frees_cancel(coordinator);
    coordinator->epochs.epoch++;
    coordinator_records_job(coordinator);
    coordinator->epochs.shrink_began_ns = weft_now_ns(coordinator->env);
    coordinator_liveness_cancel(coordinator);
    return true;
}

static void send_to(struct weft_coordinator *coordinator, const struct coordinator_member *to,
                    const Weft__Control__Control *message)
{
    if (to) coordinator_send(coordinator, to, message);
    else coordinator_broadcast(coordinator, message, NULL);
}

void coordinator_send_joined(struct weft_coordinator *coordinator, const struct coordinator_member *to,
                             const struct coordinator_member *joined)
{
    char text[COORDINATOR_LABEL_BYTES + 40];
    Weft__Control__Joined body = WEFT__CONTROL__JOINED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    snprintf(text, sizeof text, "%s has joined: it is out of data", joined->label);
    body.member = joined->member;
    body.text = text;
    body.epoch = coordinator->epochs.epoch;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_JOINED;
    message.joined = &body;
    send_to(coordinator, to, &message);
}

void coordinator_send_grow(struct weft_coordinator *coordinator, const struct coordinator_member *to,
                           char *text)
{
    Weft__Control__Grow body = WEFT__CONTROL__GROW__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    body.epoch = coordinator->epochs.epoch;
    body.text = text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_GROW;
    message.grow = &body;
    send_to(coordinator, to, &message);
}

/* The worker with the smallest place above `after` that is part of the next membership; NULL: none.
 * all_joined: joined workers are included. */
static struct coordinator_member *next_member(const struct weft_coordinator *coordinator, bool all_joined,
                                              int64_t after)
{
    struct coordinator_member *found = NULL;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        bool continues = all_joined ? coordinator_member_is_active(member)
                                    : (coordinator_member_is_active(member) && !member->agreement.joined) ||
                                          can_be_admitted(coordinator, member);
        if (continues && (int64_t)member->agreement.rank_order > after &&
            (!found || member->agreement.rank_order < found->agreement.rank_order))
            found = member;
    }
    return found;
}

/* Clears `joined` of every active worker. Returns the worker that joined last. */
static const struct coordinator_member *clear_joined(struct weft_coordinator *coordinator)
{
    const struct coordinator_member *last = NULL;
    uint32_t latest = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        if (!coordinator_member_is_active(member)) continue;
        if (member->agreement.joined > latest) last = member, latest = member->agreement.joined;
        member->agreement.joined = 0;
        coordinator_records_member(coordinator, member);
    }
    return last;
}

static void put_in_force(struct weft_coordinator *coordinator, bool all_joined, uint32_t *members,
                         uint64_t committed, Weft__Control__Member *newcomers,
                         Weft__Control__Member **pointers)
{
    uint32_t count, newcomer_count = 0;
    const uint32_t before = coordinator->epochs.epoch_in_force;
    uint32_t rank = 0;
    uint64_t codec_steps = 0;
    int64_t after = -1;
    coordinator->epochs.committed = committed;
    for (struct coordinator_member *member; (member = next_member(coordinator, all_joined, after)) != NULL;
         rank++) {
        after = member->agreement.rank_order;
        members[rank] = member->member;
    }
    count = rank;
    for (uint32_t r = 0; r < coordinator->options.workers; r++) coordinator->membership.workers[r] = NULL;
    for (rank = 0; rank < count; rank++) {
        struct coordinator_member *member = coordinator->membership.members[members[rank]];
        coordinator->membership.workers[rank] = member;
        member->index = rank;
        snprintf(member->label, sizeof member->label, "rank %u (%s, pid %llu)", rank, member->host,
                 (unsigned long long)member->pid);
        if (member->agreement.codec_steps > codec_steps) codec_steps = member->agreement.codec_steps;
        if (!member->newcomer && !(all_joined && coordinator->membership.has_grown)) continue;
        coordinator_describe(member, &newcomers[newcomer_count]);
        pointers[newcomer_count] = &newcomers[newcomer_count];
        newcomer_count++;
    }
    coordinator->options.workers = coordinator->membership.worker_count = count;
    coordinator->membership.worker_left_count = 0;
    coordinator->epochs.epoch_in_force = coordinator->epochs.epoch;
    coordinator_tensor_frees_cancel(coordinator); /* of workers that had not received MemberLost */
    coordinator_snapshot_membership_changed(coordinator);
    coordinator_liveness_cancel(coordinator);
    coordinator->epochs.codec_steps = codec_steps;
    Weft__Control__Shrunk shrunk = WEFT__CONTROL__SHRUNK__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    shrunk.epoch = coordinator->epochs.epoch;
    shrunk.committed = committed;
    shrunk.codec_steps = codec_steps;
    shrunk.n_members = count;
    shrunk.members = members;
    shrunk.n_newcomers = newcomer_count;
    shrunk.newcomers = pointers;
    if (all_joined) shrunk.last = clear_joined(coordinator)->member + 1;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHRUNK;
    message.shrunk = &shrunk;
    coordinator_records_shrunk(coordinator, &shrunk, before);
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "job %s continues with %u workers, epoch %u, after step %llu", coordinator->job, count,
             coordinator->epochs.epoch, (unsigned long long)committed);
    coordinator_broadcast(coordinator, &message, NULL);
    for (rank = 0; rank < count; rank++) { /* an admitted newcomer starts with the roster */
        struct coordinator_member *member = coordinator->membership.members[members[rank]];
        if (!member->newcomer) continue;
        member->newcomer = false;
        coordinator->membership.has_grown = true;
        if (coordinator_send_roster(coordinator, member) != WEFT_OK)
            coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                              "the coordinator has no memory for the roster of %u members", count);
        else coordinator_slots_send(coordinator, member);
        if (coordinator->state == COORDINATOR_ENDED) return;
    }
    coordinator_grow(coordinator); /* another newcomer may have addresses by now */
}

void coordinator_grow(struct weft_coordinator *coordinator)
{
    const struct coordinator_member *newcomer = NULL;
    for (uint32_t i = 0; i < coordinator->membership.member_count && !newcomer; i++)
        if (waits_for_admission(coordinator->membership.members[i]))
            newcomer = coordinator->membership.members[i];
    /* A newcomer is also admitted by an agreement that is already under way. */
    if (!newcomer || coordinator->state != COORDINATOR_RUNNING ||
        coordinator->epochs.epoch != coordinator->epochs.epoch_in_force)
        return;
    char text[COORDINATOR_LABEL_BYTES + 40];
    coordinator->epochs.epoch++;
    coordinator_records_job(coordinator);
    coordinator->epochs.shrink_began_ns =
        0; /* a step has no time limit; coordinator_shrink starts the timeout */
    snprintf(text, sizeof text, "%s has joined", newcomer->label);
    coordinator_send_grow(coordinator, NULL, text);
}

static void next_epoch(struct weft_coordinator *coordinator, const struct coordinator_member *joined)
{
    coordinator_tensor_frees_cancel(coordinator);
    coordinator->epochs.epoch++;
    coordinator_records_job(coordinator);
    coordinator->epochs.shrink_began_ns = weft_now_ns(coordinator->env);
    coordinator_send_joined(coordinator, NULL, joined);
}

void coordinator_shrink_check(struct weft_coordinator *coordinator)
{
    uint64_t committed = coordinator->epochs.committed;
    uint32_t active = 0, joined_count = 0;
    bool agreed = true;
    if (coordinator->state != COORDINATOR_RUNNING || coordinator_any_is_awaited(coordinator)) return;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        if (!coordinator_member_is_active(member)) continue;
        active++;
        joined_count += member->agreement.joined > 0;
        if (!member->agreement.joined && member->agreement.agreed_epoch != coordinator->epochs.epoch)
            agreed = false;
        /* a joined worker may be the only one that knows the last step was good */
        if (member->agreement.committed > committed) committed = member->agreement.committed;
    }
    bool all_joined = active > 0 && joined_count == active;
    /* all workers with data have left */
    if (all_joined && coordinator->epochs.epoch == coordinator->epochs.epoch_in_force)
        next_epoch(coordinator, coordinator_find_joined(coordinator));
    if (!agreed || active == 0 || coordinator->epochs.epoch == coordinator->epochs.epoch_in_force) return;
    uint32_t most = active + coordinator_waiting_count(coordinator);
    uint32_t *members = weft_alloc_array(coordinator->env, most, sizeof *members);
    Weft__Control__Member *newcomers = weft_alloc_array(coordinator->env, most, sizeof *newcomers);
    Weft__Control__Member **pointers = weft_alloc_array(coordinator->env, most, sizeof *pointers);
    if (!members || !newcomers || !pointers) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the roster of %u members", most);
    } else {
        put_in_force(coordinator, all_joined, members, committed, newcomers, pointers);
    }
    weft_free_bytes(coordinator->env, members);
    weft_free_bytes(coordinator->env, newcomers);
    weft_free_bytes(coordinator->env, pointers);
}

void coordinator_join(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                      const Weft__Control__Join *join)
{
    /* the former coordinator has received or answered the message */
    const bool is_old =
        worker->agreement.joined || (join->epoch > 0 && join->epoch < coordinator->epochs.epoch_in_force);
    if (coordinator->records.is_restored && is_old) return;
    if (worker->agreement.joined || coordinator->options.workers_min == 0) {
        coordinator_member_lost(coordinator, worker, "it sent Join when that was not due");
        return;
    }
    if (!all_tensors_announced(coordinator)) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_MISMATCH,
                          "%s has joined, out of data, while the others declare a tensor", worker->label);
        return;
    }
    worker->agreement.joined = ++coordinator->epochs.join_count;
    worker->agreement.join_epoch = coordinator->epochs.epoch_in_force;
    worker->agreement.committed = join->committed;
    worker->agreement.codec_steps = join->codec_steps;
    coordinator_records_member(coordinator, worker);
    next_epoch(coordinator, worker);
    coordinator_shrink_check(coordinator);
}

void coordinator_shrink(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                        const Weft__Control__Shrink *shrink)
{
    if (shrink->epoch < coordinator->epochs.epoch)
        return; /* answers an earlier proposal; the worker will answer
                                                     * the newest one too */
    /* the former coordinator has answered it, and its answer was repeated */
    if (coordinator->records.is_restored && shrink->epoch <= coordinator->epochs.epoch_in_force) return;
    if (shrink->epoch > coordinator->epochs.epoch ||
        coordinator->epochs.epoch == coordinator->epochs.epoch_in_force || worker->agreement.joined) {
        coordinator_member_lost(coordinator, worker, "it sent Shrink when that was not due");
        return;
    }
    if (coordinator->epochs.shrink_began_ns == 0)
        coordinator->epochs.shrink_began_ns = weft_now_ns(coordinator->env);
    worker->agreement.agreed_epoch = shrink->epoch;
    worker->agreement.committed = shrink->committed;
    worker->agreement.codec_steps = shrink->codec_steps;
    coordinator_shrink_check(coordinator);
}

void coordinator_shrink_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    bool waits = coordinator->state == COORDINATOR_RUNNING &&
                 coordinator->epochs.epoch != coordinator->epochs.epoch_in_force;
    if (!waits || coordinator->epochs.shrink_began_ns == 0 ||
        weft_elapsed_ns(coordinator->epochs.shrink_began_ns, now_ns) <= coordinator->options.join_ns)
        return;
    char late[400];
    coordinator_describe_undecided(coordinator, "not agreed", late, sizeof late);
    if (late[0])
        coordinator_abort(coordinator, NULL, WEFT_ERR_DEADLINE,
                          "job %.100s could not go on with other workers within %llu s: %s", coordinator->job,
                          (unsigned long long)(coordinator->options.join_ns / WEFT_SECONDS(1)), late);
}
