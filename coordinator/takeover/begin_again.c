/* begin_again.c - the coordinator is lost before the job has begun: the process that coordinates next.
 *
 *     record "job": waits -> the coordinator is lost -> the right is free -> a shard acquires it, and keeps
 *                                                      the record       -> the other members join there
 *
 * A job that has not begun has nothing to continue. Its members end what they have opened, and join again as
 * new processes do. The reign decides which shard coordinates, as in a job that runs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/takeover/records.h"
#include "coordinator/takeover/reign.h"

#define READ_PERIOD_NS WEFT_MS(50)
#define SHARDS_MIN 3u /* a job with copies needs two; the shard of the lost coordinator is lost */

/* WEFT_OK: the next coordinator is found, or this process may coordinate. WEFT_ERR_NOT_FOUND: not yet. */
static enum weft_status read_store(struct coordinator_reign *reign, const struct weft_takeover_search *search,
                                   struct weft_takeover_next *next_out)
{
    struct coordinator_loaded loaded;
    struct coordinator_reign_view view;
    (void)weft_store_poll(reign->store);
    WEFT_TRY(coordinator_reign_read(reign, &view));
    if (view.number > 0 && strcmp(view.job, search->job) != 0) return WEFT_ERR_STALE;
    enum weft_status status = coordinator_records_load(reign, &loaded);
    const Weft__Control__StoredJob *record = status == WEFT_OK && loaded.job ? loaded.job->job : NULL;
    if (view.number > search->reign) {
        snprintf(next_out->address, sizeof next_out->address, "%s", view.address);
        next_out->reign = view.number;
    } else if (status == WEFT_OK && (!record || record->ended || !record->waits)) {
        status = WEFT_ERR_STALE;
    } else if (status == WEFT_OK &&
               (view.number > 0 || !search->may_coordinate || record->shards < SHARDS_MIN)) {
        const bool is_dead = weft_process_state(reign->env, &view.process) == WEFT_PROCESS_DEAD;
        if (view.number > 0 && search->may_coordinate && is_dead)
            (void)weft_store_revoke(reign->store, view.lease);
        status = record->shards < SHARDS_MIN ? WEFT_ERR_STALE : WEFT_ERR_NOT_FOUND;
    } else if (status == WEFT_OK) {
        coordinator_loaded_options(&loaded, &next_out->options);
        next_out->options.begins_again = true;
    }
    coordinator_loaded_free(&loaded);
    return status;
}

enum weft_status weft_takeover_next(struct weft_env *env, const struct weft_takeover_search *search,
                                    struct weft_takeover_next *next_out, struct weft_error *error)
{
    struct coordinator_reign *opened;
    enum weft_status status;
    if (access(search->store, R_OK | W_OK) != 0) /* weft_store_open creates a missing file */
        return weft_error_set(error, WEFT_ERR_IO, "cannot read the store %.200s (server.store)",
                              search->store);
    memset(next_out, 0, sizeof *next_out);
    weft_coordinator_options_init(&next_out->options);
    WEFT_TRY(coordinator_reign_open(env, search->store, &opened, error));
    while ((status = read_store(opened, search, next_out)) == WEFT_ERR_NOT_FOUND &&
           weft_now_ns(env) < search->until_ns)
        weft_pause(env, READ_PERIOD_NS);
    coordinator_reign_close(opened);
    if (status == WEFT_OK) return WEFT_OK;
    return weft_error_set(error, status == WEFT_ERR_NOT_FOUND ? WEFT_ERR_DEADLINE : status,
                          "no other process coordinates job %.100s, by the store %.200s", search->job,
                          search->store);
}
