/* coordinator_stats.c - figures of the job for /metrics: members by state, silence, age of a wait.
 *
 * A newcomer counts by its state. A lost member stays counted until the job ends. */
#include "coordinator/coordinator_state.h"

static uint64_t *state_count(struct weft_coordinator_role_stats *stats,
                             const struct coordinator_member *member)
{
    switch (member->state) {
    case MEMBER_WELCOMED: return &stats->joined;
    case MEMBER_ADDRESSED: return &stats->connecting;
    case MEMBER_READY: return member->agreement.joined ? &stats->joined : &stats->ready;
    case MEMBER_LEFT: return &stats->left;
    case MEMBER_LOST: return &stats->lost;
    }
    return &stats->lost;
}

void weft_coordinator_stats(const struct weft_coordinator *coordinator,
                            struct weft_coordinator_stats *stats_out)
{
    const uint64_t now_ns = weft_now_ns(coordinator->env);
    *stats_out = (struct weft_coordinator_stats){
        .state = coordinator_state_name(coordinator->state),
        .workers.expected = coordinator->options.workers,
        .shards.expected = coordinator->options.shards,
        .epoch = coordinator->epochs.epoch_in_force,
        .tensors = coordinator->table.tensor_count,
        .step = coordinator->times.step,
        .exposed = coordinator->times.exposed,
        .failover = coordinator->times.failover,
        .operation_count = coordinator->times.operation_count,
        .codec = coordinator->times.codec,
        .slots = coordinator->slots.count,
        .sick_hosts = coordinator->host_health.count,
        .snapshot_failures = coordinator->snapshot.failures.count,
        .slots_without_copy = coordinator_slots_without_copy(coordinator),
    };
    memcpy(stats_out->operations, coordinator->times.operations, sizeof stats_out->operations);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *member = coordinator->membership.members[i];
        struct weft_coordinator_role_stats *role =
            member->role == WEFT__CONTROL__ROLE__ROLE_WORKER ? &stats_out->workers : &stats_out->shards;
        const uint64_t silence_ns = weft_elapsed_ns(member->last_received_ns, now_ns);
        ++*state_count(role, member);
        if (member->state < MEMBER_LEFT && silence_ns > role->silence_ns) role->silence_ns = silence_ns;
    }
    stats_out->stall_ns = coordinator_stall_ns(coordinator, now_ns);
    if (coordinator->state < COORDINATOR_RUNNING)
        stats_out->start_wait_ns = weft_elapsed_ns(coordinator->process.created_ns, now_ns);
    if (coordinator->state == COORDINATOR_RUNNING &&
        coordinator->epochs.epoch != coordinator->epochs.epoch_in_force &&
        coordinator->epochs.shrink_began_ns > 0)
        stats_out->agreement_ns = weft_elapsed_ns(coordinator->epochs.shrink_began_ns, now_ns);
}
