/* shard_add.c - a further shard joins a job with copies while it runs.
 *
 *     Hello(joins) -> Welcome -> Endpoints -> Roster to it, ShardAdded to workers and shards
 *     Ready of it, ShardKnown of all others -> it enters: Go, Map, Declared of all tensors
 *     DeclaredOk of all tensors             -> it may get slots (move.c, rebalance.c)
 *
 * One shard joins at a time. Until it enters it is a newcomer: it gets no other message, and its loss has no
 * effect on the job. No slot names it before all members are connected to it and it has all tensors, so a Map
 * that names it can be followed at once. */
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

#define JOIN_NS WEFT_SECONDS(60) /* from Hello until all members are connected to it */

/* ---- admission ---- */

static bool is_live(const struct coordinator_member *member)
{
    return member->state < MEMBER_LEFT && !member->newcomer;
}

/* The first live member of an earlier release; NULL: none. */
static const struct coordinator_member *find_older(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (is_live(coordinator->membership.members[i]) &&
            !coordinator->membership.members[i]->addition.is_supported)
            return coordinator->membership.members[i];
    return NULL;
}

/* What the job as it is cannot do. */
static enum weft_status check_job(const struct weft_coordinator *coordinator,
                                  const Weft__Control__Hello *hello, struct weft_error *error)
{
    const struct weft_coordinator_options *options = &coordinator->options;
    if (options->copies == 0)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "job %.100s has no copies, so no chunk of it can move to another shard: start it "
            "with server.copies=1 to add shards later",
            coordinator->job);
    if (options->snapshots.restored_step > 0)
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "job %.100s was restored from a snapshot, and a shard that joins it has no part "
            "of that: restore to the larger number of shards",
            coordinator->job);
    if (coordinator->snapshot.answered && !hello->snapshots)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "job %.100s makes snapshots: give this shard a snapshot.folder, too",
                              coordinator->job);
    const struct coordinator_member *older = find_older(coordinator);
    if (older || !hello->moves || !hello->additions)
        return weft_error_set(error, WEFT_ERR_VERSION,
                              "%.200s is of a release that does not support further shards: use one release "
                              "of weft in a job",
                              older ? older->label : hello->name);
    return WEFT_OK;
}

enum weft_status coordinator_add_check(const struct weft_coordinator *coordinator,
                                       const Weft__Control__Hello *hello, struct weft_error *error)
{
    const struct weft_coordinator_options *options = &coordinator->options;
    const uint32_t endpoints = hello->endpoints ? hello->endpoints : 1;
    if (coordinator->state != COORDINATOR_RUNNING)
        return weft_error_set(error, WEFT_ERR_STATE,
                              "job %.100s has not begun: a shard joins with --join when it runs",
                              coordinator->job);
    WEFT_TRY(check_job(coordinator, hello, error));
    if (coordinator->addition.shard)
        return weft_error_set(error, WEFT_ERR_BUSY,
                              "%.200s joins job %.100s at this moment: start this shard when that has joined",
                              coordinator->addition.shard->label, coordinator->job);
    if (coordinator->membership.worker_left_count > 0 || coordinator_active_count(coordinator) == 0)
        return weft_error_set(error, WEFT_ERR_CLOSED, "workers of job %.100s have left: it ends",
                              coordinator->job);
    if (coordinator->epochs.epoch != coordinator->epochs.epoch_in_force ||
        coordinator_waiting_count(coordinator) > 0)
        return weft_error_set(error, WEFT_ERR_BUSY,
                              "the workers of job %.100s change at this moment: start this shard again",
                              coordinator->job);
    if (coordinator->addition.count >= WEFT_LIMIT_ADDED_SHARDS || options->shards >= WEFT_LIMIT_SHARDS ||
        coordinator->membership.next_endpoint + endpoints >= WEFT_LIMIT_ENDPOINTS)
        return weft_error_set(error, WEFT_ERR_LIMIT,
                              "job %.100s has got %u further shards, the most it admits", coordinator->job,
                              coordinator->addition.count);
    return WEFT_OK;
}

void coordinator_add_begin(struct weft_coordinator *coordinator, struct coordinator_member *shard)
{
    const uint32_t count = coordinator->addition.count;
    coordinator->addition = (struct coordinator_addition){
        .shard = shard, .began_ns = weft_now_ns(coordinator->env), .count = count};
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        coordinator->membership.members[i]->addition.has_answered = false;
}

/* ---- connecting ---- */

/* The members that were live when it joined are connected to it, and it is to them. */
static const struct coordinator_member *find_unconnected(const struct weft_coordinator *coordinator)
{
    const struct coordinator_member *shard = coordinator->addition.shard;
    if (shard->state != MEMBER_READY) return shard;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++)
        if (is_live(coordinator->membership.members[i]) &&
            !coordinator->membership.members[i]->addition.has_answered)
            return coordinator->membership.members[i];
    return NULL;
}

static void send_added(struct weft_coordinator *coordinator)
{
    Weft__Control__Member entry;
    Weft__Control__ShardAdded added = WEFT__CONTROL__SHARD_ADDED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    coordinator_describe(coordinator->addition.shard, &entry);
    added.shard = &entry;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHARD_ADDED;
    message.shard_added = &added;
    coordinator_broadcast(coordinator, &message, NULL);
}

void coordinator_add_addressed(struct weft_coordinator *coordinator)
{
    struct coordinator_member *shard = coordinator->addition.shard;
    coordinator_records_numbers(coordinator, shard);
    if (coordinator_send_roster(coordinator, shard) < 0) {
        coordinator_expel(coordinator, shard, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for its roster");
        return;
    }
    coordinator->addition.epoch = coordinator->epochs.epoch_in_force;
    send_added(coordinator);
}

/* ---- entering ---- */

static enum weft_status reserve(struct weft_coordinator *coordinator)
{
    const uint32_t shards = coordinator->options.shards;
    struct coordinator_member **more = weft_alloc_zero(coordinator->env, (shards + 2) * sizeof *more);
    if (!more) return WEFT_ERR_NO_MEMORY;
    memcpy(more, coordinator->membership.shards, shards * sizeof *more);
    weft_free_bytes(coordinator->env, coordinator->membership.shards);
    coordinator->membership.shards = more;
    WEFT_TRY(coordinator_declare_reserve_shard(coordinator));
    return coordinator_placement_add(coordinator, coordinator->addition.shard);
}

static void enter(struct weft_coordinator *coordinator)
{
    struct coordinator_member *shard = coordinator->addition.shard;
    if (coordinator->epochs.epoch != coordinator->epochs.epoch_in_force ||
        coordinator->addition.epoch != coordinator->epochs.epoch_in_force) {
        coordinator_expel(coordinator, shard, WEFT_ERR_BUSY,
                          "the workers have changed while it joined: start it again");
        return;
    }
    if (reserve(coordinator) < 0) {
        coordinator_expel(coordinator, shard, WEFT_ERR_NO_MEMORY,
                          "the coordinator has no memory for a further shard");
        return;
    }
    coordinator_snapshot_shards_changed(coordinator, "a shard has joined");
    coordinator->membership.shards[coordinator->options.shards++] = shard;
    coordinator->membership.shard_count++;
    coordinator->addition.count++;
    shard->newcomer = false;
    shard->addition.is_entering = true;
    coordinator_records_numbers(coordinator, shard);
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s: %s has joined", coordinator->job,
             shard->label);
    coordinator_shard_begin(coordinator, shard);
}

static void complete(struct weft_coordinator *coordinator)
{
    struct coordinator_member *shard = coordinator->addition.shard;
    shard->addition.is_entering = false;
    coordinator->addition.shard = NULL;
    coordinator_records_member(coordinator, shard);
    weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "job %s: %s has all tensors and gets slots",
             coordinator->job, shard->label);
    (void)coordinator_rebalance_begin(coordinator, false);
}

void coordinator_add_continue(struct weft_coordinator *coordinator)
{
    const struct coordinator_member *shard = coordinator->addition.shard;
    if (!shard || coordinator->state != COORDINATOR_RUNNING) return;
    if (shard->newcomer && coordinator->addition.epoch > 0 && !find_unconnected(coordinator))
        enter(coordinator);
    shard = coordinator->addition.shard;
    if (shard && shard->addition.is_entering && coordinator->state == COORDINATOR_RUNNING &&
        !coordinator_declare_is_awaited(coordinator, shard))
        complete(coordinator);
}

void coordinator_add_ready(struct weft_coordinator *coordinator)
{
    struct coordinator_member *shard = coordinator->addition.shard;
    if (shard->state != MEMBER_ADDRESSED || coordinator->addition.epoch == 0) {
        coordinator_member_lost(coordinator, shard, "it sent Ready when that was not due");
        return;
    }
    shard->state = MEMBER_READY;
    coordinator_add_continue(coordinator);
}

void coordinator_add_known(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__ShardKnown *known)
{
    struct coordinator_member *shard = coordinator->addition.shard;
    if (!shard || known->member != shard->member || !shard->newcomer) return; /* it is lost already */
    if (known->text[0]) {
        char why[COORDINATOR_LABEL_BYTES + 400];
        snprintf(why, sizeof why, "%s %.300s", member->label, known->text);
        coordinator_expel(coordinator, shard, WEFT_ERR_UNREACHABLE, why);
        return;
    }
    member->addition.has_answered = true;
    coordinator_add_continue(coordinator);
}

/* ---- end ---- */

void coordinator_add_lost(struct weft_coordinator *coordinator, const char *why)
{
    struct coordinator_member *shard = coordinator->addition.shard;
    const bool is_known = shard->newcomer && coordinator->addition.epoch > 0;
    coordinator->addition.shard = NULL;
    shard->addition.is_entering = false;
    if (!is_known || coordinator->state != COORDINATOR_RUNNING) return;
    /* the others close their connections with it */
    char text[COORDINATOR_LABEL_BYTES + 160];
    snprintf(text, sizeof text, "%s lost: %.140s", shard->label, why);
    coordinator_slots_send_lost(coordinator, shard, text);
}

void coordinator_add_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    struct coordinator_member *shard = coordinator->addition.shard;
    if (!shard || !shard->newcomer || coordinator->state != COORDINATOR_RUNNING ||
        weft_elapsed_ns(coordinator->addition.began_ns, now_ns) < JOIN_NS)
        return;
    char why[COORDINATOR_LABEL_BYTES + 80];
    const struct coordinator_member *missing = find_unconnected(coordinator);
    snprintf(why, sizeof why, "%s has not connected within %llu s",
             missing == shard || !missing ? "it" : missing->label,
             (unsigned long long)(JOIN_NS / WEFT_SECONDS(1)));
    coordinator_expel(coordinator, shard, WEFT_ERR_DEADLINE, why);
}
