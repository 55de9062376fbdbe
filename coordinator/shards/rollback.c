/* rollback.c - a lost shard had the only copy of chunks: the job begins again from its last snapshot.
 *
 *     shard lost, no copy -> Abort(ROLLED_BACK, step) to all -> `ended` -> the driver begins the job again
 *                                                               with the shards that are left, and restores
 *
 * Nothing of the membership continues: connections, terms, epochs and requests under way end with it. So no
 * message of the lost steps can reach the job that begins again. A snapshot whose manifest is being written
 * is awaited: its step may be the last one, and its writer removes older ones. A shard that is lost, or does
 * not join, while the job begins again leads to another beginning with fewer shards. */
#include "coordinator/coordinator_state.h"
#include "coordinator/takeover/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SHARDS_JOIN_NS WEFT_SECONDS(30)

static uint64_t last_step(const struct weft_coordinator *coordinator)
{
    const uint64_t complete = coordinator->snapshot.complete;
    return complete > 0 ? complete : coordinator->options.snapshots.restored_step;
}

static bool is_left(const struct coordinator_member *shard)
{
    return shard && shard->state < MEMBER_LEFT && !shard->newcomer;
}

/* Returns the number of shards that can begin again; 0: one of them does not support that. */
static uint32_t count_shards(const struct weft_coordinator *coordinator)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->options.shards; i++) {
        const struct coordinator_member *shard = coordinator->membership.shards[i];
        if (!is_left(shard)) continue;
        if (!shard->abilities.supports_rollback) return 0;
        count++;
    }
    return count;
}

/* Returns whether each shard that is left has another one for its copies. */
static bool can_keep_copies(const struct weft_coordinator *coordinator)
{
    for (uint32_t i = 0; coordinator->options.copies > 0 && i < coordinator->options.shards; i++) {
        const struct coordinator_member *shard = coordinator->membership.shards[i];
        bool has_other = false;
        for (uint32_t k = 0; is_left(shard) && k < coordinator->options.shards && !has_other; k++)
            has_other = is_left(coordinator->membership.shards[k]) &&
                        coordinator_can_copy_shard(coordinator, shard, coordinator->membership.shards[k]);
        if (is_left(shard) && !has_other) return false;
    }
    return true;
}

/* Returns NULL, or the reason why the job cannot begin again. */
static const char *refusal(const struct weft_coordinator *coordinator)
{
    if (last_step(coordinator) == 0 && coordinator->snapshot.state != SNAPSHOT_COMMITTING)
        return "no snapshot is complete";
    if (coordinator->epochs.epoch > COORDINATOR_EPOCH || coordinator->membership.worker_left_count > 0)
        return "its workers are not those of its start";
    if (count_shards(coordinator) == 0) return "no other shard can begin again";
    if (coordinator->records.reign && !can_keep_copies(coordinator))
        return "with server.store, copies need shards on two hosts";
    return NULL;
}

/* The record of the job is that of one that has not begun: if this process ends, another one begins it. */
static void begin_again(struct weft_coordinator *coordinator)
{
    const uint64_t step = last_step(coordinator);
    const uint32_t shards = count_shards(coordinator);
    if (!can_keep_copies(coordinator)) {
        coordinator->options.copies = 0;
        weft_log(coordinator->env, WEFT_LOG_WARN, "coordinator",
                 "job %s begins again without copies: %u shards are left, on one host", coordinator->job,
                 shards);
    }
    coordinator->rollback.step = step;
    coordinator->rollback.shards = shards;
    if (!coordinator_records_begin_again(coordinator)) return;
    coordinator_abort(coordinator, NULL, WEFT_ERR_ROLLED_BACK,
                      "%s; the job begins again from the snapshot of step %" PRIu64
                      ": finalize this session, open another, and begin step %" PRIu64,
                      coordinator->rollback.text, step, step + 1);
}

static bool is_possible(const struct weft_coordinator *coordinator)
{
    const bool begins_again =
        coordinator->options.snapshots.is_rolled_back && coordinator->state < COORDINATOR_RUNNING;
    return coordinator->options.snapshots.allow_rollback &&
           (coordinator->state == COORDINATOR_RUNNING || begins_again);
}

bool coordinator_rolls_back(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                            const char *why, char *why_out, size_t why_bytes)
{
    struct coordinator_rollback *rollback = &coordinator->rollback;
    if (!is_possible(coordinator) || lost->role != WEFT__CONTROL__ROLE__ROLE_SHARD) return false;
    if (rollback->is_due) {
        coordinator_rollback_continue(coordinator);
        return true;
    }
    const size_t used = strlen(why_out);
    const char *reason = refusal(coordinator);
    if (reason) {
        snprintf(why_out + used, why_bytes - used, "; it cannot be rolled back: %s", reason);
        return false;
    }
    rollback->is_due = true;
    snprintf(rollback->text, sizeof rollback->text, "%s lost: %.140s%s", lost->label, why, why_out);
    coordinator_rollback_continue(coordinator);
    return true;
}

void coordinator_rollback_continue(struct weft_coordinator *coordinator)
{
    if (!coordinator->rollback.is_due || coordinator->state == COORDINATOR_ENDED) return;
    if (coordinator->snapshot.state == SNAPSHOT_COMMITTING || coordinator_any_is_awaited(coordinator)) return;
    char why[sizeof coordinator->rollback.text];
    const char *reason = refusal(coordinator); /* check again: another shard may have been lost since */
    if (!reason) {
        begin_again(coordinator);
        return;
    }
    snprintf(why, sizeof why, "%s", coordinator->rollback.text);
    coordinator_abort(coordinator, NULL, WEFT_ERR_PEER_LOST, "%s; it cannot be rolled back: %s", why, reason);
}

void coordinator_rollback_tick(struct weft_coordinator *coordinator, uint64_t now_ns)
{
    uint32_t joined = 0;
    if (!is_possible(coordinator) || coordinator->state != COORDINATOR_JOINING ||
        coordinator->rollback.is_due ||
        weft_elapsed_ns(coordinator->process.created_ns, now_ns) <= SHARDS_JOIN_NS)
        return;
    for (uint32_t i = 0; i < coordinator->options.shards; i++)
        joined += is_left(coordinator->membership.shards[i]);
    if (joined == coordinator->options.shards || joined == 0) return;
    coordinator->rollback.is_due = true;
    snprintf(coordinator->rollback.text, sizeof coordinator->rollback.text,
             "%u of %u shards have not joined the job again within %llu s",
             coordinator->options.shards - joined, coordinator->options.shards,
             (unsigned long long)(SHARDS_JOIN_NS / WEFT_SECONDS(1)));
    coordinator_rollback_continue(coordinator);
}

bool weft_coordinator_rolled_back(const struct weft_coordinator *coordinator,
                                  struct weft_coordinator_options *options_out)
{
    const struct weft_coordinator_options *options = &coordinator->options;
    if (coordinator->end_status != WEFT_ERR_ROLLED_BACK || coordinator->rollback.step == 0) return false;
    weft_coordinator_options_init(options_out);
    options_out->workers = coordinator->membership.workers_at_start;
    options_out->shards = coordinator->rollback.shards;
    options_out->workers_min = options->workers_min;
    options_out->workers_max = options->workers_max;
    options_out->copies = options->copies;
    options_out->copies_on_one_host = options->copies_on_one_host;
    options_out->heartbeat_ns = options->heartbeat_ns;
    options_out->resume_ns = options->resume_ns;
    options_out->snapshots.allow_rollback = options_out->snapshots.is_rolled_back = true;
    options_out->snapshots.restored_step = coordinator->rollback.step;
    return true;
}
