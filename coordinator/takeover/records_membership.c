/* records_membership.c - the membership of an elastic job for the next coordinator. See records.h.
 *
 *     record "shrunk"   the last Shrunk: members by rank, newcomers, last good step
 *     record "job"      the newest epoch that was proposed; above that of Shrunk: an agreement is under way
 *     member resumes    its epoch is older than Shrunk's -> Shrunk; then what was proposed since
 *
 * A member repeats its Shrink or Join until the answer arrives (control_link.c), so the next coordinator
 * needs no answer of the former one. It puts no membership in force until each member has resumed or is lost.
 * So a member has missed one membership at most; one that has missed two is lost. */
#include <stdio.h>
#include <string.h>

#include "coordinator/takeover/records.h"

void coordinator_records_shrunk(struct weft_coordinator *coordinator, const Weft__Control__Shrunk *shrunk,
                                uint32_t before)
{
    struct coordinator_records *records = &coordinator->records;
    Weft__Control__StoredShrunk body = WEFT__CONTROL__STORED_SHRUNK__INIT;
    Weft__Control__Stored stored = WEFT__CONTROL__STORED__INIT;
    if (!records->reign) return;
    body.shrunk = (Weft__Control__Shrunk *)(uintptr_t)shrunk;
    body.before = before;
    stored.body_case = WEFT__CONTROL__STORED__BODY_SHRUNK;
    stored.shrunk = &body;
    weft_free_bytes(coordinator->env, records->shrunk);
    if (weft_stored_pack(coordinator->env, &stored, &records->shrunk, &records->shrunk_bytes) < 0)
        records->shrunk = NULL; /* the commit fails */
    records->is_marked = records->shrunk_is_marked = true;
}

/* ---- restore ---- */

static bool place(struct weft_coordinator *coordinator, struct coordinator_member *member, uint32_t rank,
                  uint32_t count)
{
    if (!coordinator_member_is_worker(member) || !member->addresses || rank >= count ||
        coordinator->membership.workers[rank])
        return false;
    coordinator->membership.workers[rank] = member;
    coordinator->membership.worker_left_count += member->state == MEMBER_LEFT;
    member->index = rank;
    member->newcomer = false;
    return true;
}

/* Places the workers as in the last Shrunk. */
static enum weft_status place_by_shrunk(struct weft_coordinator *coordinator,
                                        const Weft__Control__Shrunk *shrunk, uint32_t most)
{
    const uint32_t count = (uint32_t)shrunk->n_members;
    if (count > most) return WEFT_ERR_MALFORMED;
    for (uint32_t rank = 0; rank < count; rank++) {
        const uint32_t number = shrunk->members[rank];
        struct coordinator_member *member =
            number < coordinator->membership.member_count ? coordinator->membership.members[number] : NULL;
        const bool is_twice =
            member && member->index < rank && coordinator->membership.workers[member->index] == member;
        if (!member || is_twice || !place(coordinator, member, rank, count)) return WEFT_ERR_MALFORMED;
        snprintf(member->label, sizeof member->label, "rank %u (%s, pid %llu)", rank, member->host,
                 (unsigned long long)member->pid);
        if (shrunk->last > 0 && member->agreement.join_epoch < shrunk->epoch) member->agreement.joined = 0;
    }
    coordinator->options.workers = coordinator->membership.worker_count = count;
    coordinator->epochs.committed = shrunk->committed;
    coordinator->epochs.codec_steps = shrunk->codec_steps;
    coordinator->epochs.epoch_in_force = shrunk->epoch;
    return WEFT_OK;
}

/* Places the workers by their index: the membership is the first one. */
static enum weft_status place_by_index(struct weft_coordinator *coordinator)
{
    const uint32_t count = coordinator->options.workers;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        if (coordinator_member_is_worker(member) && !member->newcomer &&
            !place(coordinator, member, member->index, count))
            return WEFT_ERR_MALFORMED;
    }
    for (uint32_t rank = 0; rank < count; rank++)
        if (!coordinator->membership.workers[rank]) return WEFT_ERR_MALFORMED;
    coordinator->membership.worker_count = count;
    return WEFT_OK;
}

static bool is_rank(const struct weft_coordinator *coordinator, const struct coordinator_member *member)
{
    return coordinator_member_is_worker(member) && member->index < coordinator->options.workers &&
           coordinator->membership.workers[member->index] == member;
}

/* A newcomer that was not admitted is lost. Counters continue after the largest values of the records. */
static void restore_counters(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        if (!coordinator_member_is_worker(member)) continue;
        if (!is_rank(coordinator, member) && member->agreement.joined == 0 && member->state < MEMBER_LEFT)
            member->state = MEMBER_LOST;
        if (member->agreement.joined > coordinator->epochs.join_count)
            coordinator->epochs.join_count = member->agreement.joined;
        if (member->agreement.rank_order >= coordinator->membership.next_rank_order &&
            member->agreement.rank_order < UINT32_MAX)
            coordinator->membership.next_rank_order = member->agreement.rank_order + 1;
        if (member->state == MEMBER_LEFT && member->agreement.committed > coordinator->epochs.committed)
            coordinator->epochs.committed = member->agreement.committed;
    }
}

/* Includes workers that have left or are lost. */
static uint32_t count_workers(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        count += coordinator_member_is_worker(coordinator->membership.members[i]);
    return count;
}

enum weft_status coordinator_membership_restore(struct weft_coordinator *coordinator,
                                                const struct coordinator_loaded *loaded)
{
    const struct weft_coordinator_options *options = &coordinator->options;
    const Weft__Control__StoredMembership *membership = loaded->job->job->membership;
    const uint32_t most = options->workers_max > options->workers ? options->workers_max : options->workers;
    for (uint32_t i = 0; i < options->shards; i++)
        if (!coordinator->membership.shards[i]) return WEFT_ERR_MALFORMED;
    if (!membership || !loaded->shrunk) WEFT_TRY(place_by_index(coordinator));
    else WEFT_TRY(place_by_shrunk(coordinator, loaded->shrunk->shrunk->shrunk, most));
    if (!membership) return WEFT_OK;
    restore_counters(coordinator);
    coordinator->membership.has_grown = count_workers(coordinator) > coordinator->membership.workers_at_start;
    coordinator->epochs.epoch = coordinator->epochs.epoch_in_force;
    if (membership->epoch > coordinator->epochs.epoch) coordinator->epochs.epoch = membership->epoch;
    if (!loaded->shrunk) return WEFT_OK;
    return weft_stored_pack(coordinator->env, loaded->shrunk, &coordinator->records.shrunk,
                            &coordinator->records.shrunk_bytes);
}

void coordinator_membership_check(struct weft_coordinator *coordinator)
{
    bool has_loss = false;
    if (coordinator->options.workers_min == 0) return;
    if (coordinator->epochs.epoch != coordinator->epochs.epoch_in_force)
        coordinator->epochs.shrink_began_ns = weft_now_ns(coordinator->env);
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        if (member->state < MEMBER_READY)
            coordinator_member_lost(coordinator, member, "it had not begun when the coordinator was lost");
        has_loss |= is_rank(coordinator, member) && member->state == MEMBER_LOST;
    }
    if (!has_loss || coordinator->epochs.epoch != coordinator->epochs.epoch_in_force) return;
    coordinator->epochs.epoch++;
    coordinator->epochs.shrink_began_ns = weft_now_ns(coordinator->env);
    coordinator_records_job(coordinator);
}

/* ---- repeats ---- */

/* false: no memory. */
static bool send_shrunk(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                        uint32_t epoch, bool *is_next_out)
{
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__Stored *stored;
    const struct coordinator_records *records = &coordinator->records;
    *is_next_out = true;
    if (!records->shrunk ||
        weft_stored_unpack(coordinator->env, records->shrunk, records->shrunk_bytes, &stored) < 0)
        return false;
    *is_next_out = stored->shrunk->before <= epoch;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHRUNK;
    message.shrunk = stored->shrunk->shrunk;
    if (*is_next_out) coordinator_send(coordinator, member, &message);
    weft_stored_free(coordinator->env, stored);
    return true;
}

static void send_lost(struct weft_coordinator *coordinator, const struct coordinator_member *to,
                      const struct coordinator_member *lost)
{
    char text[COORDINATOR_LABEL_BYTES + 16];
    Weft__Control__MemberLost body;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    snprintf(text, sizeof text, "%s lost", lost->label);
    coordinator_fill_lost(&body, lost, text, coordinator->epochs.epoch);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST;
    message.member_lost = &body;
    coordinator_send(coordinator, to, &message);
}

static void send_proposal(struct weft_coordinator *coordinator, const struct coordinator_member *to)
{
    uint32_t reasons = 0;
    for (uint32_t i = 0; i < coordinator->options.workers; i++) {
        const struct coordinator_member *rank = coordinator->membership.workers[i];
        if (rank->state == MEMBER_LOST) send_lost(coordinator, to, rank);
        else if (rank->agreement.joined) coordinator_send_joined(coordinator, to, rank);
        else continue;
        reasons++;
    }
    /* a newcomer that was announced is lost, but ranks may have agreed to its epoch */
    if (reasons == 0 && coordinator->options.workers_max > 0)
        coordinator_send_grow(coordinator, to, (char *)"a new worker had joined at the former coordinator");
}

void coordinator_membership_repeat(struct weft_coordinator *coordinator, struct coordinator_member *member,
                                   uint32_t epoch)
{
    bool is_next = true, has_memory = true;
    if (coordinator->options.workers_min == 0) return;
    if (epoch < coordinator->epochs.epoch_in_force)
        has_memory = send_shrunk(coordinator, member, epoch, &is_next);
    if (!has_memory)
        coordinator_abort(coordinator, NULL, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for the membership of epoch %u",
                          coordinator->epochs.epoch_in_force);
    else if (!is_next)
        coordinator_member_lost(coordinator, member, "it has missed two changes of the membership");
    else if (coordinator->epochs.epoch != coordinator->epochs.epoch_in_force)
        send_proposal(coordinator, member);
}
