/* coordinator_shrink.c - a lost worker need not end the job: the others agree to go on without it.
 *
 *     lost ──► epoch + 1, MemberLost(epoch) to all ──► each: stops all it does, Shrink(epoch, last good step)
 *          ──► all have said so: Shrunk(epoch, members by new rank, the largest of their last good steps) ──► in force
 *
 * A worker knows a step to be good when all ranks, the lost one included, have said at its end that all their operations of
 * it went well. So if one survivor knows it, all have its results, and it is good for all; the largest step counts.
 *
 * Another loss meanwhile only raises the epoch: everybody is asked again. New ranks are the old order without gaps. */
#include "server/coordinator.h"

#include <stdio.h>

uint32_t coordinator_staying(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->member_count; i++) {
        const struct coordinator_member *member = coordinator->members[i];
        count += member->role == WEFT__CONTROL__ROLE__ROLE_WORKER && member->state < MEMBER_LEFT;
    }
    return count;
}

static bool all_tensors_announced(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->tensor_count; i++)
        if (!coordinator->tensors[i]->announced) return false;
    return true;
}

bool coordinator_shrink_begin(struct weft_coordinator *coordinator, const struct coordinator_member *lost)
{
    uint32_t staying = coordinator_staying(coordinator);
    bool may = coordinator->options.workers_min > 0 && coordinator->options.shards == 0 && coordinator->state == COORDINATOR_RUNNING &&
               lost->role == WEFT__CONTROL__ROLE__ROLE_WORKER && staying >= coordinator->options.workers_min && staying > 0 &&
               all_tensors_announced(coordinator); /* half a declaration has no owner */
    if (!may) return false;
    coordinator->epoch++;
    coordinator->shrink_began_ns = weft_now_ns(coordinator->env);
    return true;
}

/* Everybody that stays, by its rank so far; NULL: the next one has none. */
static struct coordinator_member *next_staying(const struct weft_coordinator *coordinator, int64_t after)
{
    struct coordinator_member *found = NULL;
    for (uint32_t i = 0; i < coordinator->member_count; i++) {
        struct coordinator_member *member = coordinator->members[i];
        bool stays = member->role == WEFT__CONTROL__ROLE__ROLE_WORKER && member->state < MEMBER_LEFT;
        if (stays && (int64_t)member->index > after && (!found || member->index < found->index)) found = member;
    }
    return found;
}

static void put_in_force(struct weft_coordinator *coordinator, uint32_t staying, uint32_t *members, uint64_t committed)
{
    uint32_t rank = 0;
    int64_t after = -1;
    for (struct coordinator_member *member; (member = next_staying(coordinator, after)) != NULL; rank++) {
        after = member->index;
        members[rank] = member->member;
    }
    for (uint32_t r = 0; r < coordinator->options.workers; r++) coordinator->workers[r] = NULL;
    for (rank = 0; rank < staying; rank++) {
        struct coordinator_member *member = coordinator->members[members[rank]];
        coordinator->workers[rank] = member;
        member->index = rank;
        snprintf(member->who, sizeof member->who, "rank %u (%s, pid %llu)", rank, member->host, (unsigned long long)member->pid);
    }
    coordinator->options.workers = coordinator->worker_count = staying;
    coordinator->worker_left_count = 0;
    coordinator->epoch_in_force = coordinator->epoch;
    Weft__Control__Shrunk shrunk = WEFT__CONTROL__SHRUNK__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    shrunk.epoch = coordinator->epoch;
    shrunk.committed = committed;
    shrunk.n_members = staying;
    shrunk.members = members;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHRUNK;
    message.shrunk = &shrunk;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator", "job %s goes on with %u workers, epoch %u, after step %llu", coordinator->job,
             staying, coordinator->epoch, (unsigned long long)committed);
    coordinator_broadcast(coordinator, &message, NULL);
}

void coordinator_shrink_check(struct weft_coordinator *coordinator)
{
    if (coordinator->epoch == coordinator->epoch_in_force || coordinator->state != COORDINATOR_RUNNING) return;
    uint64_t committed = 0;
    uint32_t staying = coordinator_staying(coordinator);
    for (uint32_t i = 0; i < coordinator->member_count; i++) {
        const struct coordinator_member *member = coordinator->members[i];
        if (member->role != WEFT__CONTROL__ROLE__ROLE_WORKER || member->state >= MEMBER_LEFT) continue;
        if (member->agreed_epoch != coordinator->epoch) return;
        if (member->committed > committed) committed = member->committed;
    }
    if (staying == 0) return;
    uint32_t *members = weft_alloc_array(coordinator->env, staying, sizeof *members);
    if (!members) {
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY, "the coordinator has no memory for the roster of %u members", staying);
        return;
    }
    put_in_force(coordinator, staying, members, committed);
    weft_free_bytes(coordinator->env, members);
}

void coordinator_shrink(struct weft_coordinator *coordinator, struct coordinator_member *worker, const Weft__Control__Shrink *shrink)
{
    if (shrink->epoch < coordinator->epoch) return; /* of an earlier loss: it will hear of the last one, and answer again */
    if (shrink->epoch > coordinator->epoch || coordinator->epoch == coordinator->epoch_in_force) {
        coordinator_lose(coordinator, worker, "it sent Shrink when that was not due");
        return;
    }
    worker->agreed_epoch = shrink->epoch;
    worker->committed = shrink->committed;
    coordinator_shrink_check(coordinator);
}

void coordinator_shrink_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    bool waits = coordinator->state == COORDINATOR_RUNNING && coordinator->epoch != coordinator->epoch_in_force;
    if (!waits || now_ns - coordinator->shrink_began_ns <= coordinator->options.join_ns) return;
    const struct coordinator_member *late = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->member_count; i++) {
        const struct coordinator_member *member = coordinator->members[i];
        if (member->role != WEFT__CONTROL__ROLE__ROLE_WORKER || member->state >= MEMBER_LEFT || member->agreed_epoch == coordinator->epoch) continue;
        if (!late) late = member;
        count++;
    }
    if (late)
        coordinator_abort(coordinator, NULL, WEFT_ERR_DEADLINE, "after a loss job %.100s could not go on: %.200s%s did not agree within %llu s",
                          coordinator->job, late->who, count > 1 ? " and others" : "",
                          (unsigned long long)(coordinator->options.join_ns / WEFT_SECONDS(1)));
}
