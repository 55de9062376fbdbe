/* weftd_takeover.c - this process coordinates if the coordinator ends (coordinator/takeover). Net thread.
 *
 *     start: listens -> Hello.candidate -> Welcome: watches the store -> takes over: sets weftd->coordinator
 *
 * The member of this process resumes with its own coordinator as any other does. A coordinator that was
 * replaced leaves its process a shard, which resumes with the next one, or is lost. */
#include <stdio.h>

#include "server/daemon/weftd.h"

static void on_took_over(void *context, struct weft_coordinator_server *server)
{
    struct weftd *weftd = context;
    weftd->coordinator = server;
    weftd->state.coordinator_done = weftd->state.is_replaced = false;
}

static void on_prepare(void *context, struct weft_coordinator_options *options)
{
    weftd_restore_coordinate(context, options);
    weftd_snapshots_coordinate(context, options);
}

void weftd_coordinator_replaced(void *context)
{
    struct weftd *weftd = context;
    weftd->state.is_replaced = true;
    weftd->state.coordinator_done = true; /* another process continues its job */
    weftd_stop_if_done(weftd);
}

enum weft_status weftd_takeover_start(struct weftd *weftd, const char *reachable, struct weft_error *error)
{
    const char *store = weft_config_text(weftd->options.config, "server.store");
    if (!store[0] || !weftd->options.coordinator) return WEFT_OK;
    const struct weft_candidate_options options = {.store = store,
                                                   .job = weftd->options.job,
                                                   .secret = weftd->options.secret,
                                                   .host = weftd->options.listen,
                                                   .reachable = reachable,
                                                   .wire_newest = weftd_wire_newest(weftd),
                                                   .took_over = on_took_over,
                                                   .prepare = on_prepare,
                                                   .ended = weftd_coordinator_ended,
                                                   .replaced = weftd_coordinator_replaced,
                                                   .context = weftd};
    return weft_candidate_start(weftd->env, weftd->net, &options, &weftd->candidate, error);
}

void weftd_takeover_welcomed(struct weftd *weftd, const Weft__Control__Welcome *welcome)
{
    struct weft_error error = {0};
    if (!weftd->candidate) return;
    if (welcome->takeover_ns == 0)
        weft_error_set(
            &error, WEFT_ERR_MISMATCH,
            "%s has a server.store and the coordinator has none: set it for all shard processes of "
            "the job, or for none",
            weftd->label);
    else (void)weft_candidate_watch(weftd->candidate, welcome->job_id, &error);
    if (error.status == WEFT_OK) return;
    (void)weft_control_client_abort(weftd->member, (enum weft_status)error.status, error.text);
    weftd_fail(weftd, (enum weft_status)error.status, "%s", error.text);
}

void weftd_takeover_refused(void *context, uint64_t reign)
{
    struct weftd *weftd = context;
    if (weftd->candidate) weft_candidate_suspect(weftd->candidate, reign);
}
