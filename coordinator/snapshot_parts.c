/* snapshot_parts.c - the workers' parts of a snapshot, and of the snapshot that the job restores.
 *
 *     worker        ARMING -- SnapArmed --> ARMED -- SnapPart --> READY -- SnapWanted --> MOVING
 *                                                                  ^                        | SnapData
 *                                                                  +------ bytes are left --+--> STORED
 *
 * The coordinator requests the bytes, from MOVING_MAX workers at once, so its memory does not depend on the
 * number of workers. Bytes are requested when every member has armed the snapshot. A worker that leaves
 * before the step has no part. One that leaves later without its bytes ends the snapshot. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"

#define MOVING_MAX 4u

static bool has_part(const struct coordinator_member *member)
{
    return member->part.state != PART_NONE;
}

/* A newcomer that was admitted gets no Snap before its Go. */
static bool sends_part(const struct weft_coordinator *coordinator, const struct coordinator_member *member)
{
    return coordinator->options.snapshot_calls.part && member->role == WEFT__CONTROL__ROLE__ROLE_WORKER &&
           member->abilities.has_snapshots && !member->agreement.joined && member->state == MEMBER_READY &&
           coordinator_member_is_active(member);
}

void coordinator_parts_begin(struct weft_coordinator *coordinator)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        if (!sends_part(coordinator, member)) continue;
        member->part =
            (struct coordinator_part){.state = PART_ARMING, .is_fetching = member->part.is_fetching};
        snapshot->parts.arming++;
        snapshot->parts.pending++;
    }
}

void coordinator_parts_end(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        coordinator->membership.members[i]->part.state = PART_NONE;
    coordinator->snapshot.parts = (struct coordinator_parts){0};
}

void coordinator_parts_send(struct weft_coordinator *coordinator, const Weft__Control__Control *snap)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (has_part(coordinator->membership.members[i]))
            coordinator_send(coordinator, coordinator->membership.members[i], snap);
}

bool coordinator_parts_answer(struct weft_coordinator *coordinator, struct coordinator_member *worker)
{
    if (worker->part.state != PART_ARMING) return false;
    worker->part.state = PART_ARMED;
    coordinator->snapshot.parts.arming--;
    return true;
}

/* ---- bytes of this snapshot ---- */

static void send_wanted(struct weft_coordinator *coordinator, const struct coordinator_member *worker)
{
    Weft__Control__SnapWanted wanted = WEFT__CONTROL__SNAP_WANTED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    wanted.id = coordinator->snapshot.id;
    wanted.offset = worker->part.offset;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_WANTED;
    message.snap_wanted = &wanted;
    coordinator_send(coordinator, worker, &message);
}

void coordinator_parts_pump(struct weft_coordinator *coordinator)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    if (snapshot->state != SNAPSHOT_ARMED && snapshot->state != SNAPSHOT_WRITING) return;
    for (uint32_t i = 0; i < coordinator->membership.member_count && snapshot->parts.moving < MOVING_MAX;
         i++) {
        struct coordinator_member *worker = coordinator->membership.members[i];
        if (worker->part.state != PART_READY) continue;
        worker->part.state = PART_MOVING;
        snapshot->parts.moving++;
        send_wanted(coordinator, worker);
    }
}

static void on_part(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                    const Weft__Control__SnapPart *part)
{
    char why[COORDINATOR_LABEL_BYTES + 320];
    if (worker->part.state != PART_ARMED) {
        coordinator_member_lost(coordinator, worker, "it sent a part of a snapshot that it had not armed");
        return;
    }
    if (part->error[0]) {
        snprintf(why, sizeof why, "%s: %.300s", worker->label, part->error);
        coordinator_snapshot_abandon(coordinator, why);
        return;
    }
    worker->part.state = PART_READY;
    worker->part.rank = part->rank;
    worker->part.bytes = part->bytes;
    worker->part.offset = 0;
    if (!coordinator_shards_see_steps(coordinator)) coordinator_snapshot_passed(coordinator);
    coordinator_parts_pump(coordinator);
}

static void on_data(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                    const Weft__Control__SnapData *data)
{
    const struct coordinator_part *part = &worker->part;
    const uint64_t rest = part->bytes - part->offset,
                   due = rest < WEFT_LIMIT_SNAP_DATA_BYTES ? rest : WEFT_LIMIT_SNAP_DATA_BYTES;
    if (part->state != PART_MOVING || part->is_storing || data->offset != part->offset ||
        data->data.len != due) {
        coordinator_member_lost(coordinator, worker, "it sent bytes of a snapshot that were not requested");
        return;
    }
    worker->part.is_storing = true;
    const struct weft_snapshot_bytes bytes = {.id = coordinator->snapshot.id,
                                              .member = worker->member,
                                              .rank = part->rank,
                                              .offset = part->offset,
                                              .total = part->bytes,
                                              .step = coordinator->snapshot.step,
                                              .data = data->data.data,
                                              .bytes = data->data.len};
    coordinator->options.snapshot_calls.part(coordinator->options.context, &bytes);
}

void weft_coordinator_snapshot_stored(struct weft_coordinator *coordinator, uint32_t id, uint32_t member,
                                      uint64_t bytes, const char *error)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    struct coordinator_member *worker = coordinator->membership.members[member];
    if (id != snapshot->id || worker->part.state != PART_MOVING) return; /* it has ended meanwhile */
    snapshot->parts.moving--;
    worker->part.is_storing = false;
    if (error[0]) {
        coordinator_snapshot_abandon(coordinator, error);
        return;
    }
    worker->part.offset += bytes;
    if (worker->part.offset < worker->part.bytes) worker->part.state = PART_READY;
    else {
        worker->part.state = PART_STORED;
        snapshot->parts.pending--;
        send_wanted(coordinator, worker);
    }
    coordinator_parts_pump(coordinator);
    coordinator_snapshot_check(coordinator);
}

/* ---- membership ---- */

void coordinator_snapshot_worker_left(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                                      uint64_t committed)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    char why[COORDINATOR_LABEL_BYTES + 80];
    if (!has_part(worker) || worker->part.state == PART_STORED) return;
    if (worker->part.state > PART_ARMED || committed >= snapshot->step) {
        snprintf(why, sizeof why, "%s has left before its part was stored", worker->label);
        coordinator_snapshot_abandon(coordinator, why);
        return;
    }
    snapshot->parts.arming -= worker->part.state == PART_ARMING;
    snapshot->parts.pending--;
    worker->part.state = PART_NONE;
    coordinator_snapshot_check(coordinator);
}

void coordinator_snapshot_membership_changed(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        if (!has_part(coordinator->membership.members[i])) continue;
        if (coordinator->snapshot.state != SNAPSHOT_COMMITTING)
            coordinator_snapshot_abandon(coordinator, "the membership has changed");
        return;
    }
}

void coordinator_parts_describe(const struct weft_coordinator *coordinator, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "not every shard has stored its pieces within 600 s");
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        const struct coordinator_member *worker = coordinator->membership.members[i];
        if (!has_part(worker) || worker->part.state == PART_STORED) continue;
        snprintf(out, out_bytes, "the part of %s is not stored within 600 s", worker->label);
        return;
    }
}

/* ---- the restored snapshot ---- */

static void on_fetch(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                     const Weft__Control__SnapFetch *fetch)
{
    if (coordinator->options.snapshots.restored_parts == 0 || worker->part.is_fetching) {
        coordinator_member_lost(coordinator, worker,
                                "it requested a part of a snapshot when that was not due");
        return;
    }
    worker->part.is_fetching = true;
    coordinator->options.snapshot_calls.fetch(coordinator->options.context, worker->member, fetch->rank,
                                        fetch->offset);
}

void weft_coordinator_snapshot_fetched(struct weft_coordinator *coordinator, uint32_t member,
                                       const Weft__Control__SnapFetched *fetched)
{
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    struct coordinator_member *worker = coordinator->membership.members[member];
    worker->part.is_fetching = false;
    if (worker->state >= MEMBER_LEFT || coordinator->state == COORDINATOR_ENDED) return;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED;
    message.snap_fetched = (Weft__Control__SnapFetched *)(uintptr_t)fetched;
    coordinator_send(coordinator, worker, &message);
}

/* ---- messages ---- */

void coordinator_parts_message(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                               const Weft__Control__Control *message)
{
    const struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    const bool is_open = has_part(worker) && snapshot->state != SNAPSHOT_COMMITTING;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH) {
        on_fetch(coordinator, worker, message->snap_fetch);
    } else if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP_PART) {
        if (is_open && message->snap_part->id == snapshot->id)
            on_part(coordinator, worker, message->snap_part);
    } else if (is_open && message->snap_data->id == snapshot->id) {
        on_data(coordinator, worker, message->snap_data);
    }
}
