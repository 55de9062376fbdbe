/* welcome_back.c - members of a restored job: their connections, and what each may have missed. */
#include "coordinator/coordinator_state.h"
#include "coordinator/members/members.h"
#include "coordinator/takeover/records.h"

#include <stdio.h>

void coordinator_continue(struct weft_coordinator *coordinator)
{
    coordinator->state = COORDINATOR_RUNNING;
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s continues with this coordinator",
             coordinator->job);
}

enum weft_status coordinator_adopt(struct weft_coordinator *coordinator, uint64_t id,
                                   struct coordinator_member *member)
{
    struct coordinator_connection *connection = coordinator_connection_add(coordinator, id);
    if (!connection) return WEFT_ERR_NO_MEMORY;
    connection->state = CONNECTION_MEMBER;
    connection->member = member;
    connection->opened_ns = connection->last_received_ns = weft_now_ns(coordinator->env);
    snprintf(connection->peer, sizeof connection->peer, "%.60s", member->label);
    member->connection = id;
    member->record.is_awaited = true;
    return WEFT_OK;
}

/* Repeats to a shard the last decisions of the former coordinator, which may not have arrived. */
static void repeat_to_shard(struct weft_coordinator *coordinator, const struct coordinator_member *shard)
{
    if (shard->addition.is_entering) coordinator_declare_expect_shard(coordinator, shard);
    coordinator_declare_repeat(coordinator, shard);
    for (uint32_t i = 0; i < coordinator->options.workers; i++)
        if (coordinator->membership.workers[i]->state == MEMBER_LEFT)
            coordinator_send_left(coordinator, coordinator->membership.workers[i], shard);
    if (coordinator_active_count(coordinator) == 0) coordinator_send_finished(coordinator, shard);
}

void coordinator_shard_begin(struct weft_coordinator *coordinator, const struct coordinator_member *shard)
{
    coordinator_send_go(coordinator, shard, false);
    coordinator_slots_repeat(coordinator, shard);
    if (coordinator->state != COORDINATOR_ENDED) repeat_to_shard(coordinator, shard);
}

bool coordinator_any_is_awaited(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; coordinator->records.is_restored && i < coordinator->membership.member_count; i++)
        if (coordinator->membership.members[i]->record.is_awaited &&
            coordinator->membership.members[i]->state < MEMBER_LEFT)
            return true;
    return false;
}

void coordinator_welcome_back(struct weft_coordinator *coordinator, uint64_t id, bool has_begun,
                              uint32_t epoch)
{
    struct coordinator_connection *connection = coordinator_connection_find(coordinator, id);
    struct coordinator_member *member = connection ? connection->member : NULL;
    if (!member || !member->record.is_awaited || member->newcomer) return;
    connection->last_received_ns = weft_now_ns(coordinator->env);
    member->record.is_awaited = false;
    if (coordinator->state == COORDINATOR_ENDED) {
        coordinator_send_abort(coordinator, id,
                               coordinator->end_status < 0 ? coordinator->end_status : WEFT_ERR_CLOSED,
                               coordinator->end.text[0] ? coordinator->end.text : "the job has ended");
        return;
    }
    coordinator_slots_repeat(coordinator, member);
    if (!has_begun) coordinator_send_go(coordinator, member, true);
    /* the free precedes all later proposals */
    if (member->role == WEFT__CONTROL__ROLE__ROLE_WORKER)
        coordinator_tensor_frees_repeat(coordinator, member);
    coordinator_membership_repeat(coordinator, member, epoch);
    coordinator_snapshot_repeat(coordinator, member);
    coordinator_liveness_repeat(coordinator, member);
    if (member->role == WEFT__CONTROL__ROLE__ROLE_SHARD) repeat_to_shard(coordinator, member);
    coordinator_shrink_check(coordinator);
    coordinator_rollback_continue(coordinator);
}
