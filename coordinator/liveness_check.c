/* liveness_check.c - are all members of the job still alive?
 *
 * A rank that loses its connection to a peer does not know the cause. If the peer died or ended the job, the
 * coordinator will report it. If only the link broke, no member is ever lost and the job hangs. The rank
 * therefore requests a check. It gets a reply only if every worker is alive, so the link must be broken:
 *
 *     a worker: Heartbeat(ask) -> Heartbeat(ask = seq) to all workers -> each: Heartbeat(answer = seq)
 *                              -> Heartbeat(answer = seq) to the workers that requested it
 *
 * A request during a check waits for the next check: a reply must be younger than the request. A new
 * membership cancels all checks: lost members are known then. */
#include "coordinator/coordinator_state.h"

void coordinator_send_heartbeat(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                                Weft__Control__Heartbeat *heartbeat)
{
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    heartbeat->time_ns = weft_now_ns(coordinator->env);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = heartbeat;
    coordinator_send(coordinator, member, &message);
}

static void send_check(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                       uint32_t ask, uint32_t answer)
{
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    heartbeat.ask = ask;
    heartbeat.answer = answer;
    coordinator_send_heartbeat(coordinator, member, &heartbeat);
}

static void liveness_start(struct weft_coordinator *coordinator)
{
    coordinator->epochs.liveness_seq++;
    coordinator->epochs.liveness_is_running = true;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (coordinator_member_is_active(coordinator->membership.members[i]))
            send_check(coordinator, coordinator->membership.members[i], coordinator->epochs.liveness_seq, 0);
}

void coordinator_liveness_repeat(struct weft_coordinator *coordinator,
                                 const struct coordinator_member *member)
{
    if (coordinator->epochs.liveness_is_running && coordinator_member_is_active(member) &&
        member->agreement.liveness_replied_seq != coordinator->epochs.liveness_seq)
        send_check(coordinator, member, coordinator->epochs.liveness_seq, 0);
}

void coordinator_liveness_check(struct weft_coordinator *coordinator)
{
    bool again = false;
    for (uint32_t i = 0; coordinator->epochs.liveness_is_running && i < coordinator->membership.member_count;
         i++)
        if (coordinator_member_is_active(coordinator->membership.members[i]) &&
            coordinator->membership.members[i]->agreement.liveness_replied_seq !=
                coordinator->epochs.liveness_seq)
            return;
    if (!coordinator->epochs.liveness_is_running) return;
    coordinator->epochs.liveness_is_running = false;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        if (member->agreement.liveness_wait_seq == 0 || !coordinator_member_is_active(member)) continue;
        if (member->agreement.liveness_wait_seq > coordinator->epochs.liveness_seq) {
            again = true;
            continue;
        }
        member->agreement.liveness_wait_seq = 0;
        send_check(coordinator, member, 0, coordinator->epochs.liveness_seq);
    }
    if (again) liveness_start(coordinator);
}

void coordinator_liveness_cancel(struct weft_coordinator *coordinator)
{
    coordinator->epochs.liveness_is_running = false;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        coordinator->membership.members[i]->agreement.liveness_wait_seq = 0;
}

void coordinator_heartbeat(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__Heartbeat *heartbeat)
{
    if (!coordinator_member_is_active(member) || coordinator->state != COORDINATOR_RUNNING) return;
    if (heartbeat->ask) {
        member->agreement.liveness_wait_seq = coordinator->epochs.liveness_seq + 1;
        if (!coordinator->epochs.liveness_is_running) liveness_start(coordinator);
    }
    if (heartbeat->answer && heartbeat->answer <= coordinator->epochs.liveness_seq) {
        member->agreement.liveness_replied_seq = heartbeat->answer;
        coordinator_liveness_check(coordinator);
    }
}
