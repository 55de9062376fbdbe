/* weftd_takeover.c - this process coordinates if the coordinator ends (coordinator/takeover). Net thread.
 *
 *     start: listens -> Hello.candidate -> Welcome: watches the store -> takes over: sets weftd->coordinator
 *
 *            the job has not begun: the process ends all that it has opened, and begins again
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

static void on_begins_again(void *context)
{
    struct weftd *weftd = context;
    weftd_fail(weftd, WEFT_ERR_PEER_LOST, "the coordinator is lost before the job has begun");
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
                                                   .begins_again = on_begins_again,
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

uint64_t weftd_takeover_reach_ns(const struct weftd *weftd)
{
    const bool has_store = weft_config_text(weftd->options.config, "server.store")[0] != 0;
    if (!has_store || !weftd->options.coordinator || weftd->options.joins) return WEFTD_REACH_ALL_NS;
    return weftd->again->is_due ? WEFTD_REACH_NEXT_NS : WEFTD_REACH_NS;
}

bool weftd_takeover_is_early(const struct weftd *weftd, const struct weft_error *error,
                             struct weftd_again *again)
{
    const bool is_of_loss = error->status == WEFT_ERR_PEER_LOST || error->status == WEFT_ERR_UNREACHABLE ||
                            (error->status == WEFT_ERR_DEADLINE && !weftd->state.joined);
    const bool has_lost_race = error->status == WEFT_ERR_STALE && again->is_due;
    const char *store = weftd->options.config ? weft_config_text(weftd->options.config, "server.store") : "";
    if (weftd->state.running || weftd->options.joins || !store[0] || !(is_of_loss || has_lost_race))
        return false;
    const uint64_t reign = weftd->member ? weft_control_client_reign(weftd->member) : 0;
    if (reign > again->reign) again->reign = reign;
    if (again->next.reign > again->reign) again->reign = again->next.reign; /* that coordinator did not
                                                                             * answer either */
    if (weftd->candidate) again->port = weft_candidate_port(weftd->candidate);
    return true;
}

bool weftd_takeover_begin_again(struct weft_env *env, struct weftd_options *options,
                                struct weftd_again *again)
{
    const char *job = options->job ? options->job : weft_config_text(options->config, "job.name");
    const bool is_first = !again->is_due;
    const struct weft_takeover_search search = {
        .store = weft_config_text(options->config, "server.store"),
        .job = job,
        .reign = again->reign,
        .may_coordinate = true,
        .until_ns = weft_deadline_ns(weft_now_ns(env), WEFT_TAKEOVER_NEXT_NS)};
    if (weft_takeover_next(env, &search, &again->next, NULL) != WEFT_OK)
        return again->reign == 0 && weft_elapsed_ns(again->began_ns, weft_now_ns(env)) < WEFTD_REACH_ALL_NS;
    const bool coordinates = again->next.address[0] == 0;
    again->is_due = true;
    if (is_first || !coordinates)
        weft_log(env, WEFT_LOG_WARN, "weftd",
                 "the coordinator is lost before job %.100s has begun; this process joins again %s%s", job,
                 coordinates ? "and may coordinate" : "at ", again->next.address);
    options->coordinator = coordinates ? NULL : again->next.address;
    options->port = coordinates ? again->port : -1;
    if (!coordinates) return true;
    options->workers = again->next.options.workers;
    options->shards = again->next.options.shards;
    options->workers_min = again->next.options.workers_min;
    options->workers_max = again->next.options.workers_max;
    return true;
}
