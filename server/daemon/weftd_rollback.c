/* weftd_rollback.c - the job begins again from its last snapshot, after the loss of the only copy of chunks.
 *
 *     Abort(ROLLED_BACK, step) -> the engines notify their workers -> this process ends all that it has
 *         opened -> coordinates at the same port, or joins there again -> restores the snapshot as at a start
 *
 * So a shard restores values and states of all slots, for any placement, as at a start (weftd_restore.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/daemon/weftd.h"

bool weftd_rolled_back(struct weftd *weftd, const Weft__Control__Abort *abort)
{
    const bool has_snapshot = weftd->state.running || weftd->restored;
    if (abort->status != WEFT_ERR_ROLLED_BACK || abort->rollback_step == 0 || !has_snapshot) return false;
    weftd->outcome.rollback.step = abort->rollback_step;
    weftd_fail(weftd, WEFT_ERR_ROLLED_BACK, "%s", abort->text);
    return true;
}

static bool coordinates(const struct weftd *weftd)
{
    return weftd->coordinator && !weftd->state.is_replaced;
}

/* The snapshot that the job has begun from may be in another folder. */
static void set_restore(const struct weftd *weftd, uint64_t step, char *out, size_t out_bytes)
{
    const bool is_restored = weftd->restored && weftd->restored->step == step;
    snprintf(out, out_bytes, "%.1000s:%" PRIu64,
             is_restored ? weftd->restored_folder
                         : weft_config_text(weftd->options.config, "snapshot.folder"),
             step);
}

bool weftd_rollback_is_due(const struct weftd *weftd, struct weftd_again *again)
{
    struct weftd_again next = {.began_ns = weft_now_ns(weftd->env), .is_rolled_back = true};
    uint64_t step = weftd->outcome.rollback.step;
    if (coordinates(weftd)) {
        if (!weft_coordinator_rolled_back(weft_coordinator_server_inner(weftd->coordinator),
                                          &next.next.options))
            return false;
        step = next.next.options.snapshots.restored_step;
        next.is_due = true;
        next.port = weftd->candidate ? weft_candidate_port(weftd->candidate) : weftd->outcome.rollback.port;
    } else if (step > 0) {
        weft_control_client_address(weftd->member, next.address);
    } else return false;
    set_restore(weftd, step, next.restore, sizeof next.restore);
    *again = next;
    return true;
}

void weftd_rollback_begin_again(struct weft_env *env, struct weftd_options *options,
                                struct weftd_again *again)
{
    const bool is_coordinator = again->address[0] == 0;
    again->is_rolled_back = false;
    weft_log(env, WEFT_LOG_WARN, "weftd", "the job begins again from %.300s; this process %s%s",
             again->restore, is_coordinator ? "coordinates it" : "joins it at ", again->address);
    options->coordinator = is_coordinator ? NULL : again->address;
    options->port = is_coordinator ? again->port : -1;
    options->restore = again->restore;
    options->index = -1;
    options->joins = false;
    if (!is_coordinator) return;
    options->workers = again->next.options.workers;
    options->shards = again->next.options.shards;
    options->workers_min = again->next.options.workers_min;
    options->workers_max = again->next.options.workers_max;
}
