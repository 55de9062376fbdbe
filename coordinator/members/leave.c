/* leave.c - members that leave in order, and the end of the job when all have. */
#include "coordinator/coordinator_state.h"
#include "coordinator/members/members.h"
#include "coordinator/takeover/records.h"

#include <stdio.h>

static bool all_shards_left(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (coordinator->membership.shards[i]->state < MEMBER_LEFT) return false;
    return true;
}

/* Notifies the shards, or one, that no further contribution of this worker will arrive. */
void coordinator_send_left(struct weft_coordinator *coordinator, const struct coordinator_member *worker,
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
        if (!only || only == coordinator->membership.shards[i])
            coordinator_send(coordinator, coordinator->membership.shards[i], &message);
}

void coordinator_send_finished(struct weft_coordinator *coordinator, const struct coordinator_member *only)
{
    Weft__Control__Finished finished = WEFT__CONTROL__FINISHED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    finished.text = (char *)"all workers have left";
    message.body_case = WEFT__CONTROL__CONTROL__BODY_FINISHED;
    message.finished = &finished;
    if (only) coordinator_send(coordinator, only, &message);
    else coordinator_broadcast(coordinator, &message, NULL);
}

void coordinator_leave(struct weft_coordinator *coordinator, struct coordinator_member *member,
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
    if (worker && leave->committed > member->agreement.committed)
        member->agreement.committed = leave->committed;
    coordinator_records_member(coordinator, member);
    /* A worker may know that the last step was good, and leave, before other workers ask about that step. */
    if (worker && leave->committed > coordinator->epochs.committed)
        coordinator->epochs.committed = leave->committed;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "%s left", member->label);
    if (worker) coordinator->membership.worker_left_count++;
    if (worker) coordinator_snapshot_worker_left(coordinator, member, leave->committed);
    if (!worker && !workers_done) coordinator_drained(coordinator, member);
    if (worker && coordinator_active_count(coordinator) == 0) {
        coordinator_snapshot_finish(coordinator);
        coordinator_send_finished(coordinator, NULL);
        workers_done = true;
    } else if (worker) coordinator_send_left(coordinator, member, NULL);
    coordinator_check_left(coordinator);
    coordinator_shrink_check(coordinator);
    coordinator_liveness_check(coordinator);
    coordinator_add_continue(coordinator);
    if (coordinator->state == COORDINATOR_ENDED) return;
    if (workers_done && all_shards_left(coordinator)) coordinator_end(coordinator, WEFT_OK, "");
}
