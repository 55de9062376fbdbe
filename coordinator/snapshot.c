/* snapshot.c - names the step of a snapshot to all shards, commits it when every shard has stored it.
 *
 *     IDLE -- due --> ARMING -- SnapArmed of all --> ARMED -- SnapPassed --> WRITING -- last SnapPieces
 *      ^                | a shard was late:            (to all shards)          |   of all --> COMMITTING
 *      |                +-- a later step is named                               |                  |
 *      +------------------------------------------------------- error, deadline +------------------+
 *
 * "All" includes the workers that send a part (snapshot_parts.c), in ARMING and WRITING.
 *
 * Shards see the steps of bsp tensors only. So in a job with consistency ssp or asp, or without a tensor on
 * shards, the workers report the newest step, too, and the first part of a worker means that the step has
 * passed.
 *
 * The step must lie above all steps that workers have pushed when the shards arm it. With an interval in time
 * the first Snap names step 0, which requests the newest step. Each further try doubles the distance, because
 * steps may be shorter than a message. A snapshot that fails changes nothing for the job. */
#include <inttypes.h>
#include <string.h>

#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

#define WRITING_NS WEFT_SECONDS(600)
#define RETRY_NS WEFT_SECONDS(1)
#define ANSWERED_BYTES (WEFT_LIMIT_SHARDS / 64 * sizeof(uint64_t))
#define ATTEMPTS_MAX 20u /* 2^20 steps within one message: the shards do not answer in time */

static bool is_wanted(const struct weft_coordinator *coordinator)
{
    const struct weft_coordinator_options *options = &coordinator->options;
    return options->shards > 0 && (options->snapshots.steps > 0 || options->snapshots.period_ns > 0);
}

enum weft_status coordinator_snapshot_init(struct weft_coordinator *coordinator)
{
    if (!is_wanted(coordinator)) return WEFT_OK;
    /* shards may join later */
    coordinator->snapshot.answered = weft_alloc_zero(coordinator->env, ANSWERED_BYTES);
    coordinator->snapshot.newest = coordinator->options.snapshots.restored_step;
    coordinator->snapshot.due_ns =
        weft_deadline_ns(weft_now_ns(coordinator->env), coordinator->options.snapshots.period_ns);
    return coordinator->snapshot.answered ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static void send_all(struct weft_coordinator *coordinator, const Weft__Control__Control *message)
{
    coordinator_send_same(coordinator, message);
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        if (coordinator->membership.shards[i])
            coordinator_send(coordinator, coordinator->membership.shards[i], message);
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP) coordinator_parts_send(coordinator, message);
    coordinator_send_same(coordinator, NULL);
}

static void send_snap(struct weft_coordinator *coordinator, bool drop)
{
    Weft__Control__Snap snap = WEFT__CONTROL__SNAP__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    snap.id = coordinator->snapshot.id;
    snap.step = coordinator->snapshot.step;
    snap.drop = drop;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP;
    message.snap = &snap;
    send_all(coordinator, &message);
}

/* With copies the job continues without a lost shard. */
static bool is_present(const struct coordinator_member *shard)
{
    return shard && shard->state < MEMBER_LEFT;
}

/* Every shard has to answer in this state. */
static void enter(struct weft_coordinator *coordinator, enum coordinator_snapshot_state state)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    snapshot->state = state;
    snapshot->pending = 0;
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        snapshot->pending += is_present(coordinator->membership.shards[i]);
    memset(snapshot->answered, 0, ANSWERED_BYTES);
}

static void idle(struct weft_coordinator *coordinator, uint64_t wait_ns)
{
    coordinator->snapshot.state = SNAPSHOT_IDLE;
    coordinator->snapshot.attempts = 0;
    coordinator_parts_end(coordinator);
    coordinator->snapshot.due_ns = weft_deadline_ns(weft_now_ns(coordinator->env), wait_ns);
    coordinator_records_snapshots(coordinator);
}

static void log_failure(struct weft_coordinator *coordinator, uint64_t step, const char *why)
{
    struct coordinator_snapshot_failures *failures = &coordinator->snapshot.failures;
    failures->count++;
    failures->step = step;
    snprintf(failures->text, sizeof failures->text, "%s", why);
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "the snapshot of step %" PRIu64 " has failed: %s", step, why);
}

void coordinator_snapshot_abandon(struct weft_coordinator *coordinator, const char *why)
{
    log_failure(coordinator, coordinator->snapshot.step, why);
    send_snap(coordinator, true);
    idle(coordinator,
         coordinator->options.snapshots.period_ns ? coordinator->options.snapshots.period_ns : RETRY_NS);
}

void coordinator_snapshot_shards_changed(struct weft_coordinator *coordinator, const char *why)
{
    const enum coordinator_snapshot_state state = coordinator->snapshot.state;
    if (state != SNAPSHOT_IDLE && state != SNAPSHOT_COMMITTING)
        coordinator_snapshot_abandon(coordinator, why);
}

/* ---- naming a step ---- */

static uint64_t next_step(const struct weft_coordinator *coordinator)
{
    const struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    const uint64_t every = coordinator->options.snapshots.steps,
                   distance = (uint64_t)1 << (snapshot->attempts - (snapshot->attempts > 0)),
                   least = snapshot->newest + distance;
    return every > 0 ? (least + every - 1) / every * every : least;
}

/* Requests the newest step only. */
static bool is_question(const struct weft_coordinator *coordinator)
{
    return coordinator->snapshot.attempts == 0 && coordinator->options.snapshots.steps == 0;
}

static void arm(struct weft_coordinator *coordinator)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    snapshot->id++;
    snapshot->step = is_question(coordinator) ? 0 : next_step(coordinator);
    snapshot->is_late = snapshot->has_passed = false;
    enter(coordinator, SNAPSHOT_ARMING);
    coordinator_records_snapshots(coordinator); /* Snap is sent with this number in the store */
    coordinator_parts_end(coordinator);
    if (!is_question(coordinator) || !coordinator_shards_see_steps(coordinator))
        coordinator_parts_begin(coordinator);
    send_snap(coordinator, false);
}

static void pass(struct weft_coordinator *coordinator)
{
    Weft__Control__SnapPassed passed = WEFT__CONTROL__SNAP_PASSED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    enter(coordinator, SNAPSHOT_WRITING);
    if (coordinator->snapshot.newest <= coordinator->snapshot.step) /* a later step has begun */
        coordinator->snapshot.newest = coordinator->snapshot.step + 1;
    coordinator->snapshot.deadline_ns = weft_deadline_ns(weft_now_ns(coordinator->env), WRITING_NS);
    passed.id = coordinator->snapshot.id;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED;
    message.snap_passed = &passed;
    send_all(coordinator, &message);
}

/* Every shard has answered. */
static void armed(struct weft_coordinator *coordinator)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    const bool is_request = is_question(coordinator);
    if (is_request &&
        snapshot->newest <= coordinator->options.snapshots.restored_step) { /* no step has begun */
        send_snap(coordinator, true);
        idle(coordinator, RETRY_NS);
        return;
    }
    if (is_request || snapshot->is_late) {
        send_snap(coordinator, true);
        if (++snapshot->attempts > ATTEMPTS_MAX)
            coordinator_snapshot_abandon(coordinator, "the shards arm it too late");
        else arm(coordinator);
        return;
    }
    snapshot->state = SNAPSHOT_ARMED;
    coordinator->options.snapshot_calls.begin(coordinator->options.context, snapshot->step);
    if (snapshot->has_passed) pass(coordinator);
    coordinator_parts_pump(coordinator);
}

void coordinator_snapshot_check(struct weft_coordinator *coordinator)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    if (snapshot->state == SNAPSHOT_ARMING && snapshot->pending + snapshot->parts.arming == 0) {
        armed(coordinator);
    } else if (snapshot->state == SNAPSHOT_WRITING && snapshot->pending + snapshot->parts.pending == 0) {
        snapshot->state = SNAPSHOT_COMMITTING;
        coordinator->options.snapshot_calls.commit(coordinator->options.context, snapshot->step);
    }
}

/* ---- messages ---- */

void coordinator_snapshot_passed(struct weft_coordinator *coordinator)
{
    coordinator->snapshot.has_passed = true;
    if (coordinator->snapshot.state == SNAPSHOT_ARMED) pass(coordinator);
}

/* The shard's answer in this state; false: a repeated one. */
static bool answer(struct weft_coordinator *coordinator, const struct coordinator_member *shard)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    const uint64_t bit = (uint64_t)1 << shard->index % 64;
    if (snapshot->answered[shard->index / 64] & bit) return false;
    snapshot->answered[shard->index / 64] |= bit;
    snapshot->pending--;
    return true;
}

static void on_pieces(struct weft_coordinator *coordinator, const struct coordinator_member *shard,
                      const Weft__Control__SnapPieces *pieces)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    char why[COORDINATOR_LABEL_BYTES + 320];
    if (pieces->error[0]) {
        snprintf(why, sizeof why, "%s: %.300s", shard->label, pieces->error);
        coordinator_snapshot_abandon(coordinator, why);
        return;
    }
    if (snapshot->state != SNAPSHOT_WRITING) return;
    coordinator->options.snapshot_calls.pieces(coordinator->options.context, pieces);
    if (pieces->last && answer(coordinator, shard)) coordinator_snapshot_check(coordinator);
}

/* Messages of an earlier snapshot may be under way. */
static bool is_current(const struct coordinator_snapshot *snapshot, const Weft__Control__Control *message)
{
    const uint32_t id =
        message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP_ARMED    ? message->snap_armed->id
        : message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED ? message->snap_passed->id
                                                                         : message->snap_pieces->id;
    return snapshot->answered && snapshot->state != SNAPSHOT_IDLE && id == snapshot->id;
}

void coordinator_snapshot_message(struct weft_coordinator *coordinator, struct coordinator_member *member,
                                  const Weft__Control__Control *message)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    const bool is_shard = member->role == WEFT__CONTROL__ROLE__ROLE_SHARD;
    if (!is_current(snapshot, message)) return;
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES) {
        on_pieces(coordinator, member, message->snap_pieces);
    } else if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED) {
        coordinator_snapshot_passed(coordinator);
    } else if (snapshot->state == SNAPSHOT_ARMING &&
               (is_shard ? answer(coordinator, member) : coordinator_parts_answer(coordinator, member))) {
        if (message->snap_armed->newest > snapshot->newest) snapshot->newest = message->snap_armed->newest;
        snapshot->is_late |= message->snap_armed->late;
        coordinator_snapshot_check(coordinator);
    }
}

/* ---- time ---- */

static bool shards_have_folders(struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; i < coordinator->options.shards; i++) {
        const struct coordinator_member *shard = coordinator->membership.shards[i];
        if (is_present(shard) ? shard->abilities.has_snapshots : coordinator->options.copies > 0) continue;
        weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
                 "no snapshots are made: %s has no snapshot.folder",
                 shard ? shard->label : "a shard that has not joined");
        return false;
    }
    return true;
}

void coordinator_snapshot_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    if (!snapshot->answered || coordinator->state != COORDINATOR_RUNNING) return;
    if (snapshot->state == SNAPSHOT_WRITING && now_ns >= snapshot->deadline_ns) {
        char why[COORDINATOR_LABEL_BYTES + 80];
        coordinator_parts_describe(coordinator, why, sizeof why);
        coordinator_snapshot_abandon(coordinator, why);
    }
    if (snapshot->state != SNAPSHOT_IDLE || now_ns < snapshot->due_ns) return;
    /* a member that has not resumed may send an older part */
    if (coordinator_any_is_awaited(coordinator)) return;
    if (shards_have_folders(coordinator)) arm(coordinator);
    else snapshot->due_ns = WEFT_NEVER;
}

void coordinator_snapshot_finish(struct weft_coordinator *coordinator)
{
    const struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    if (snapshot->state == SNAPSHOT_ARMED && coordinator->epochs.committed == snapshot->step)
        pass(coordinator);
}

/* ---- another coordinator continues ---- */

/* Its manifest may be on disk all the same: the folder decides which one is the last. The numbers rise, so
 * answers to the former coordinator have no effect here. The interval continues. */
void coordinator_snapshot_restore(struct weft_coordinator *coordinator,
                                  const Weft__Control__StoredSnapshots *stored)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    const uint64_t now_ns = weft_now_ns(coordinator->env);
    snapshot->id = snapshot->former_id = stored->id;
    snapshot->complete = stored->complete;
    if (snapshot->newest < stored->complete) snapshot->newest = stored->complete;
    if (stored->step == 0) {
        const uint64_t last_ns = coordinator->options.snapshots.last_ns;
        snapshot->due_ns =
            weft_deadline_ns(last_ns ? last_ns : now_ns, coordinator->options.snapshots.period_ns);
        return;
    }
    snapshot->due_ns = now_ns;
    weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
             "the snapshot of step %" PRIu64
             ", which the former coordinator had begun, is abandoned; the last one that it has recorded as "
             "complete is of step %" PRIu64 " (0: none)",
             stored->step, stored->complete);
}

void coordinator_snapshot_repeat(struct weft_coordinator *coordinator,
                                 const struct coordinator_member *member)
{
    Weft__Control__Snap snap = WEFT__CONTROL__SNAP__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    if (coordinator->snapshot.former_id == 0 || !member->abilities.has_snapshots) return;
    snap.id = coordinator->snapshot.former_id;
    snap.drop = true;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP;
    message.snap = &snap;
    coordinator_send(coordinator, member, &message);
}

/* ---- calls of the driver ---- */

void weft_coordinator_snapshot_committed(struct weft_coordinator *coordinator, bool is_good)
{
    struct coordinator_snapshot *snapshot = &coordinator->snapshot;
    if (snapshot->state != SNAPSHOT_COMMITTING) return;
    if (is_good) {
        snapshot->complete = snapshot->step;
        snapshot->complete_ns = weft_now_ns(coordinator->env);
        weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator",
                 "the snapshot of step %" PRIu64 " is committed", snapshot->step);
    } else {
        log_failure(coordinator, snapshot->step, "its manifest was not written");
    }
    idle(coordinator, coordinator->options.snapshots.period_ns);
    (void)coordinator_records_commit(coordinator);
    coordinator_rollback_continue(coordinator);
    coordinator_snapshot_tick(coordinator, weft_now_ns(coordinator->env));
}

const Weft__Control__Declare *weft_coordinator_declare_of(const struct weft_coordinator *coordinator,
                                                          uint32_t ordinal)
{
    const struct coordinator_tensor *tensor =
        ordinal < coordinator->table.tensor_count ? coordinator->table.tensors[ordinal] : NULL;
    return tensor && tensor->chunk_count > 0 ? &tensor->declare : NULL;
}
