/* candidate.c - another process coordinates when the coordinator ends.
 *
 *     member of the job -> watch: is the reign free?  <-- every POLL_NS
 *                            |                  ^
 *                            |     the coordinator's address refuses connections, and no process table
 *                            |     shows its process: its lease is ended
 *                         acquire -> read the records -> members may resume -> those that do not are lost
 *
 * One process wins the reign. A false suspicion costs a change of the coordinator and no decision: what the
 * former one decides from then on cannot be written, and is not announced. */
#include "coordinator/takeover/candidate.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/takeover/records.h"
#include "coordinator/takeover/reign.h"

#define POLL_NS WEFT_MS(250)
#define RETRY_MS 50

struct weft_candidate {
    struct weft_env *env;
    struct weft_net *net; /* borrowed */
    struct weft_candidate_options options;
    char *store, *job, *secret, *host; /* owned; options point at them; secret NULL: none */
    struct weft_net_listener *listener;
    uint16_t port;
    char address[300];
    struct coordinator_reign *reign; /* owned until this process coordinates */
    uint64_t job_id;
    struct coordinator_reign_view seen; /* the last one that coordinated */
    struct weft_coordinator_server
        *server; /* the receiver of took_over frees it; NULL: another one coordinates */
    struct weft_coordinator_server *unused; /* owned: it could not continue the job; NULL: none */
    bool is_stopped;
};

/* ---- the first coordinator ---- */

static enum weft_status acquire(struct coordinator_reign *reign, const char *job, uint64_t job_id,
                                const char *address)
{
    uint8_t process[WEFT_PROCESS_IDENTITY_BYTES];
    Weft__Control__StoredReign value = WEFT__CONTROL__STORED_REIGN__INIT;
    value.job = (char *)(uintptr_t)job;
    value.job_id = job_id;
    value.address = (char *)(uintptr_t)address;
    value.process = (ProtobufCBinaryData){weft_process_identity_own(reign->env, process), process};
    return coordinator_reign_acquire(reign, &value);
}

/* A process that has ended decides nothing any more. */
static void end_if_dead(struct coordinator_reign *reign, const struct coordinator_reign_view *view)
{
    if (view->number > 0 && weft_process_state(reign->env, &view->process) == WEFT_PROCESS_DEAD)
        (void)weft_store_revoke(reign->store, view->lease);
}

/* Waits until the lease of an earlier reign ends. Its process may be dead. */
static enum weft_status acquire_first(struct weft_coordinator_server *server, const char *address,
                                      struct coordinator_reign_view *view_out)
{
    const struct weft_coordinator *coordinator = server->coordinator;
    const uint64_t until_ns =
        weft_deadline_ns(weft_now_ns(server->env), COORDINATOR_REIGN_NS + WEFT_SECONDS(1));
    for (;;) {
        const enum weft_status status =
            acquire(server->reign, coordinator->job, coordinator->job_id, address);
        if (status != WEFT_ERR_STALE || weft_now_ns(server->env) >= until_ns || server->env->virtual_time ||
            coordinator->options.begins_again)
            return status;
        (void)poll(NULL, 0, RETRY_MS);
        (void)weft_store_poll(server->reign->store);
        if (coordinator_reign_read(server->reign, view_out) == WEFT_OK) end_if_dead(server->reign, view_out);
    }
}

enum weft_status coordinator_candidate_first(struct weft_coordinator_server *server, const char *path,
                                             const char *host, uint16_t port, struct weft_error *error)
{
    struct coordinator_reign_view view = {0};
    struct weft_coordinator *coordinator = server->coordinator;
    char address[300];
    snprintf(address, sizeof address, strchr(host, ':') && host[0] != '[' ? "[%.200s]:%u" : "%.200s:%u", host,
             port);
    WEFT_TRY(coordinator_reign_open(server->env, path, &server->reign, error));
    enum weft_status status = acquire_first(server, address, &view);
    if (status == WEFT_ERR_STALE)
        return weft_error_set(error, status,
                              "the store %.100s is that of job %.60s, which %.100s coordinates: set another "
                              "server.store for each job",
                              path, view.job, view.address);
    if (status == WEFT_OK && coordinator->options.begins_again)
        weft_log(server->env, WEFT_LOG_WARN, "coordinator",
                 "the coordinator of job %s is lost before the job has begun; this process takes over at %s",
                 coordinator->job, address);
    if (status == WEFT_OK) status = coordinator_reign_clear(server->reign);
    if (status == WEFT_OK) {
        coordinator->records.reign = server->reign;
        if (!coordinator_records_wait(coordinator)) status = WEFT_ERR_IO;
    }
    if (status < 0)
        return weft_error_set(error, status, "cannot write the store %.200s: %s", path,
                              weft_reason_text(status));
    return WEFT_OK;
}

/* ---- taking over ---- */

/* The interval is the former coordinator's, the folder that of this process. */
static void set_snapshots(struct weft_candidate *candidate, const Weft__Control__StoredSnapshots *stored,
                          struct weft_coordinator_options *options)
{
    if (candidate->options.prepare) candidate->options.prepare(candidate->options.context, options);
    const bool has_folder = options->snapshot_calls.commit != NULL;
    options->snapshots.steps = has_folder && stored ? stored->every_steps : 0;
    options->snapshots.period_ns = has_folder && stored ? stored->every_ns : 0;
    options->snapshots.restored_step = stored ? stored->restored_step : 0;
    options->snapshots.restored_parts = stored && options->snapshot_calls.fetch ? stored->restored_parts : 0;
    if (stored && !has_folder && (stored->every_steps > 0 || stored->every_ns > 0))
        weft_log(candidate->env, WEFT_LOG_WARN, "coordinator",
                 "no snapshots are made any more: this process has no snapshot.folder");
}

static enum weft_status create_server(struct weft_candidate *candidate,
                                      const struct coordinator_loaded *loaded,
                                      struct weft_coordinator_server **out, struct weft_error *error)
{
    struct weft_coordinator_options options;
    weft_coordinator_options_init(&options);
    coordinator_loaded_options(loaded, &options);
    options.job = candidate->job;
    options.secret = candidate->secret;
    options.wire_newest = candidate->options.wire_newest;
    options.store = candidate->store;
    set_snapshots(candidate, loaded->snapshots ? loaded->snapshots->snapshots : NULL, &options);
    options.ended = candidate->options.ended;
    options.replaced = candidate->options.replaced;
    options.context = candidate->options.context;
    return coordinator_server_create(candidate->env, candidate->net, &options, out, error);
}

static bool is_same_process(const struct weft_process_identity *one,
                            const struct weft_process_identity *other)
{
    return one->space != 0 && one->space == other->space && one->pid == other->pid &&
           one->start == other->start;
}

/* Members in the process of the former coordinator are probably lost with it. */
static enum weft_status adopt_members(struct weft_candidate *candidate,
                                      struct weft_coordinator_server *server)
{
    struct weft_coordinator *coordinator = server->coordinator;
    for (uint32_t i = 0; i < coordinator->membership.member_count; i++) {
        struct coordinator_member *member = coordinator->membership.members[i];
        struct weft_process_identity process = {0};
        if (member->state == MEMBER_LOST || member->state < MEMBER_READY) continue;
        if (member->record.process_bytes) weft_process_identity_decode(member->record.process, &process);
        WEFT_TRY(
            coordinator_server_adopt(server, member, is_same_process(&process, &candidate->seen.process)));
    }
    return coordinator_resume_watch(server) ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* This process holds the reign. */
static enum weft_status continue_job(struct weft_candidate *candidate,
                                     const struct coordinator_loaded *loaded, struct weft_error *error)
{
    struct weft_coordinator_server *server;
    WEFT_TRY(create_server(candidate, loaded, &server, error));
    server->coordinator->records.reign = candidate->reign;
    enum weft_status status = coordinator_records_restore(server->coordinator, loaded);
    if (status == WEFT_OK) status = adopt_members(candidate, server);
    if (status == WEFT_OK)
        status = coordinator_server_begin(server, candidate->options.host, candidate->port, error);
    if (status < 0) {
        server->coordinator->records.reign = NULL;
        server->replaced = NULL;
        server->is_replaced = true; /* its timers have no effect */
        candidate->unused = server;
        return weft_error_set(error, status, "%s", weft_reason_text(status));
    }
    server->reign = candidate->reign;
    candidate->reign = NULL;
    candidate->server = server;
    server->listener = candidate->listener;
    candidate->options.took_over(candidate->options.context, server);
    coordinator_slots_check_lost(server->coordinator);
    coordinator_declare_check(server->coordinator);
    coordinator_membership_check(server->coordinator);
    return WEFT_OK;
}

static void abandon(struct weft_candidate *candidate, const char *why)
{
    candidate->is_stopped = true;
    weft_log(candidate->env, WEFT_LOG_ERROR, "coordinator", "this process cannot coordinate job %s: %s",
             candidate->job, why);
    if (candidate->reign && candidate->reign->lease)
        (void)weft_store_revoke(candidate->reign->store, candidate->reign->lease);
}

/* Returns whether the store has a job that has begun and not ended. If the job has not begun, this process
 * joins it again, or coordinates it from its start. */
static bool has_job(struct weft_candidate *candidate, struct coordinator_loaded *loaded)
{
    const enum weft_status status = coordinator_records_load(candidate->reign, loaded);
    if (status == WEFT_ERR_MALFORMED)
        abandon(candidate, "the store has records of another release, or damaged ones");
    if (status < 0 || !loaded->job) return false;
    const Weft__Control__StoredJob *job = loaded->job->job;
    const struct weft_wire_range own = weft_wire_range_own(candidate->options.wire_newest);
    if (!weft_wire_range_has(own, job->wire_version ? job->wire_version : 1))
        abandon(candidate, "the job has a wire version that this process does not speak");
    candidate->is_stopped |= job->ended || job->job_id != candidate->job_id;
    if (candidate->is_stopped || !job->waits) return !candidate->is_stopped;
    candidate->is_stopped = true;
    candidate->options.begins_again(candidate->options.context);
    return false;
}

static void take_over(struct weft_candidate *candidate)
{
    struct coordinator_loaded loaded = {0};
    struct weft_error error = {0};
    bool has_records = has_job(candidate, &loaded);
    coordinator_loaded_free(&loaded);
    if (!has_records || acquire(candidate->reign, candidate->job, candidate->job_id, candidate->address) < 0)
        return;
    weft_log(candidate->env, WEFT_LOG_WARN, "coordinator",
             "the coordinator of job %s at %s is lost; this process "
             "takes over at %s",
             candidate->job, candidate->seen.address, candidate->address);
    has_records = has_job(candidate, &loaded); /* again: from here on only this process changes it */
    if (has_records && continue_job(candidate, &loaded, &error) < 0) abandon(candidate, error.text);
    else if (!has_records && candidate->reign)
        (void)weft_store_revoke(candidate->reign->store, candidate->reign->lease);
    coordinator_loaded_free(&loaded);
}

/* ---- watching ---- */

static void on_poll(void *context)
{
    struct weft_candidate *candidate = context;
    struct coordinator_reign_view view;
    if (candidate->is_stopped || candidate->server || !candidate->reign) return;
    (void)weft_store_poll(candidate->reign->store);
    if (coordinator_reign_read(candidate->reign, &view) < 0) return;
    if (view.number == 0) take_over(candidate);
    else candidate->seen = view;
}

void weft_candidate_suspect(struct weft_candidate *candidate, uint64_t reign)
{
    struct coordinator_reign_view view;
    if (candidate->is_stopped || candidate->server || !candidate->reign) return;
    if (coordinator_reign_read(candidate->reign, &view) < 0) return;
    if (view.number > 0) candidate->seen = view;
    const bool is_alive = weft_process_state(candidate->env, &view.process) == WEFT_PROCESS_ALIVE;
    if (view.number > 0 && (view.number != reign || is_alive)) return;
    if (view.number > 0 && weft_store_revoke(candidate->reign->store, view.lease) < 0) return;
    take_over(candidate);
}

enum weft_status weft_candidate_watch(struct weft_candidate *candidate, uint64_t job_id,
                                      struct weft_error *error)
{
    struct coordinator_reign_view view;
    WEFT_TRY(coordinator_reign_open(candidate->env, candidate->store, &candidate->reign, error));
    enum weft_status status = coordinator_reign_read(candidate->reign, &view);
    if (status < 0)
        return weft_error_set(error, status, "cannot read the store %.200s: %s", candidate->store,
                              weft_reason_text(status));
    if (view.number > 0 && view.job_id != job_id)
        return weft_error_set(error, WEFT_ERR_MISMATCH,
                              "the store %.100s is that of job %.60s, which %.100s coordinates: set the same "
                              "server.store for all processes of a job",
                              candidate->store, view.job, view.address);
    if (view.number == 0)
        return weft_error_set(error, WEFT_ERR_MISMATCH,
                              "the store %.200s has no coordinator: set the same server.store for all "
                              "processes of the job, on a file system that they share",
                              candidate->store);
    candidate->job_id = job_id;
    candidate->seen = view;
    status = weft_net_timer_periodic(candidate->net, POLL_NS, on_poll, candidate);
    return status < 0 ? weft_error_set(error, status, "no memory for the timer of the store") : WEFT_OK;
}

void weft_candidate_stop(struct weft_candidate *candidate)
{
    if (candidate) candidate->is_stopped = true;
}

/* ---- life ---- */

static void on_opened(void *context, struct weft_net_connection *net)
{
    struct weft_candidate *candidate = context;
    if (candidate->server && !candidate->is_stopped) {
        coordinator_server_opened(candidate->server, net);
        return;
    }
    weft_net_set_context(net, NULL);
    weft_net_close(net);
}

uint16_t weft_candidate_port(const struct weft_candidate *candidate)
{
    return candidate->port;
}

const char *weft_candidate_address(const struct weft_candidate *candidate)
{
    return candidate->address;
}

void weft_candidate_free(struct weft_candidate *candidate)
{
    if (!candidate) return;
    coordinator_reign_close(candidate->reign);
    weft_coordinator_server_free(candidate->unused);
    weft_free_bytes(candidate->env, candidate->store);
    weft_free_bytes(candidate->env, candidate->job);
    weft_free_bytes(candidate->env, candidate->secret);
    weft_free_bytes(candidate->env, candidate->host);
    weft_free_bytes(candidate->env, candidate);
}

enum weft_status weft_candidate_start(struct weft_env *env, struct weft_net *net,
                                      const struct weft_candidate_options *options,
                                      struct weft_candidate **out, struct weft_error *error)
{
    struct weft_net_handler handler = coordinator_server_handler;
    const bool with_secret = options->secret && options->secret[0];
    handler.opened = on_opened;
    WEFT_TRY(weft_listen_check(options->host, options->secret, error));
    struct weft_candidate *candidate = weft_alloc_zero(env, sizeof *candidate);
    if (!candidate) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a candidate coordinator");
    candidate->env = env;
    candidate->net = net;
    candidate->options = *options;
    candidate->store = weft_alloc_text(env, options->store);
    candidate->job = weft_alloc_text(env, options->job);
    candidate->host = weft_alloc_text(env, options->host);
    candidate->secret = with_secret ? weft_alloc_text(env, options->secret) : NULL;
    candidate->options.host = candidate->host;
    *out = candidate;
    if (!candidate->store || !candidate->job || !candidate->host || (with_secret && !candidate->secret))
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a candidate coordinator");
    WEFT_TRY(weft_net_listen(net, options->host, 0, &handler, candidate, &candidate->port,
                             &candidate->listener, error));
    snprintf(candidate->address, sizeof candidate->address, "%.240s:%u", options->reachable, candidate->port);
    return WEFT_OK;
}
