/* weftd_control.c - weftd as a member of the job: acts on the coordinator's messages. Net thread.
 *
 *     Welcome    -> start the engines, each opens a transport    -> Endpoints, after all replies
 *     Roster     -> every engine connects to every worker        -> Ready
 *     Declared   -> command to the engines that own a chunk      -> DeclaredOk, after all replies
 *     WeightHash -> command to the engine that owns its chunks   (a difference aborts the job)
 *     MemberLost with an epoch, Left, Joined, Grow, Shrunk       -> weftd_members.c
 *     Map; SlotCopy, SlotQuiet; ShardAdded      -> weftd_map.c; weftd_move.c; weftd_shard_added.c
 *     MemberLost, Abort, lost coordinator -> engines notify their workers -> the process ends, status 1
 *     Finished   -> Leave                                        -> the process ends, status 0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/daemon/weftd.h"

/* ---- end ---- */

void weftd_stop_if_done(struct weftd *weftd)
{
    if (!weftd->state.member_done || !weftd->state.coordinator_done || atomic_load(&weftd->outcome.stopped))
        return;
    atomic_store(&weftd->outcome.stopped, true);
    uint64_t one = 1;
    if (weftd->wake_fd >= 0) (void)!write(weftd->wake_fd, &one, sizeof one);
}

static void fail_engines(struct weftd *weftd, enum weft_status status, const char *text)
{
    weft_error_set(&weftd->outcome.fail_error, status, "%s", text);
    for (uint32_t i = 0; weftd->engines && i < weftd->options.engines; i++)
        if (weftd->engines[i].thread_started) weftd_engine_post_failure(&weftd->engines[i]);
}

void weftd_fail(struct weftd *weftd, enum weft_status status, const char *format, ...)
{
    if (weftd->state.failing) return;
    weftd->state.failing = true;
    va_list args;
    va_start(args, format);
    char text[sizeof weftd->outcome.end.text];
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    weftd->outcome.exit_status = 1;
    if (!weftd->coordinator) weft_candidate_stop(weftd->candidate);
    weft_error_set(&weftd->outcome.end, status, "%s", text);
    fail_engines(weftd, status, text);
    if (weftd->member) (void)weft_control_client_leave(weftd->member, text);
    weftd->state.member_done = true;
    weftd_stop_if_done(weftd);
}

/* The coordinator moves the slots of this shard, and then lets it leave. A second signal ends it at once. */
static bool begin_drain(struct weftd *weftd, const char *signal_name)
{
    if (!weftd->state.running || weftd->state.failing || weftd->state.is_draining || weftd->coordinator ||
        weftd->welcome.copies == 0 || strcmp(signal_name, "SIGTERM") != 0)
        return false;
    Weft__Control__Drain drain = WEFT__CONTROL__DRAIN__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    drain.shard = weftd->welcome.index;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_DRAIN;
    message.drain = &drain;
    weft_log(weftd->env, WEFT_LOG_INFO, "weftd",
             "%s: the slots of %s move to other shards, then it leaves; a second signal ends it at once",
             signal_name, weftd->label);
    weftd->state.is_draining = weft_control_client_send(weftd->member, &message) == WEFT_OK;
    return weftd->state.is_draining;
}

void weftd_interrupted(struct weftd *weftd, const char *signal_name)
{
    if (begin_drain(weftd, signal_name)) return;
    if (weftd->state.joined && !weftd->state.failing && weftd->member) {
        char text[64];
        snprintf(text, sizeof text, "ended by %s", signal_name);
        (void)weft_control_client_abort(weftd->member, WEFT_ERR_ABORTED, text);
    }
    weftd_fail(weftd, WEFT_ERR_ABORTED, "ended by %s", signal_name);
    weftd->state.coordinator_done = true; /* the job may never end */
    weftd_stop_if_done(weftd);
}

void weftd_coordinator_ended(void *context, enum weft_status status, const char *text)
{
    struct weftd *weftd = context;
    weftd->state.coordinator_done = true;
    /* The sentence also arrives on this process's control connection, unless that is broken. */
    weftd_stop_if_done(weftd);
}

/* ---- joining ---- */

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct weftd *weftd = context;
    struct weft_error error = {0};
    weftd->welcome = *welcome;
    weftd->welcome.proof = (ProtobufCBinaryData){0};
    weftd->state.joined = true;
    snprintf(weftd->label, sizeof weftd->label, "shard %u", welcome->index);
    weft_log_source_set(weftd->options.job, "shard", welcome->index);
    weftd_takeover_welcomed(weftd, welcome);
    if (weftd->state.failing) return;
    enum weft_status status = weftd_report_start(weftd);
    if (status != WEFT_OK) weftd_fail(weftd, status, "no memory for the timer of reports");
    else if (weftd_engines_start(weftd, &error) != WEFT_OK)
        weftd_fail(weftd, (enum weft_status)error.status, "%s", error.text);
}

static void send_endpoints(struct weftd *weftd)
{
    ProtobufCBinaryData addresses[WEFT_LIMIT_ENGINES];
    Weft__Control__Endpoints endpoints = WEFT__CONTROL__ENDPOINTS__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    for (uint32_t i = 0; i < weftd->options.engines; i++)
        addresses[i] = (ProtobufCBinaryData){weftd->engines[i].address_bytes, weftd->engines[i].address};
    endpoints.n_addresses = weftd->options.engines;
    endpoints.addresses = addresses;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ENDPOINTS;
    message.endpoints = &endpoints;
    (void)weft_control_client_send(weftd->member, &message); /* `closed` reports a lost connection */
}

static void send_ready(struct weftd *weftd)
{
    Weft__Control__Ready ready = WEFT__CONTROL__READY__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    ready.epoch = weftd->roster->roster->epoch;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_READY;
    message.ready = &ready;
    (void)weft_control_client_send(weftd->member, &message);
}

/* An engine has opened its transport or has connected. After the last reply the join continues. */
void weftd_engine_replied(struct weft_command *command)
{
    struct weftd_engine *engine = weft_container_of(command, struct weftd_engine, reply);
    struct weftd *weftd = engine->weftd;
    if (engine->error.status != WEFT_OK) {
        char text[400];
        snprintf(text, sizeof text, "engine %u: %.350s", engine->index, engine->error.text);
        if (!weftd->state.failing)
            (void)weft_control_client_abort(weftd->member, (enum weft_status)engine->error.status, text);
        weftd_fail(weftd, (enum weft_status)engine->error.status, "%s", text);
        return;
    }
    WEFT_ASSERT(weftd->pending.engines_waited_for > 0);
    if (--weftd->pending.engines_waited_for > 0 || weftd->state.failing) return;
    if (weftd->roster) send_ready(weftd);
    else send_endpoints(weftd);
}

Weft__Control__Control *weftd_copy_message(struct weftd *weftd, const Weft__Control__Control *message)
{
    uint8_t *data;
    size_t bytes;
    Weft__Control__Control *copy = NULL;
    if (weft_control_pack(weftd->env, message, &data, &bytes) != WEFT_OK) return NULL;
    if (weft_control_unpack(weftd->env, data, bytes, &copy) != WEFT_OK) copy = NULL;
    weft_free_bytes(weftd->env, data);
    return copy;
}

static void on_roster(struct weftd *weftd, const Weft__Control__Control *message)
{
    uint32_t workers = 0;
    for (size_t i = 0; i < message->roster->n_members; i++) {
        const Weft__Control__Member *member = message->roster->members[i];
        bool worker = member->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
        if (worker && (weftd->options.joins || member->index < weftd->welcome.workers)) workers++;
    }
    if (weftd->options.joins && workers > 0)
        weftd->welcome.workers = workers; /* they change in elastic jobs */
    if (weftd->roster || weftd->pending.engines_waited_for > 0 || workers != weftd->welcome.workers) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED,
                   "the coordinator sent a roster that was not due or misses workers");
        return;
    }
    weftd->roster = weftd_copy_message(weftd, message);
    if (!weftd->roster) {
        weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory for a roster of %zu members",
                   message->roster->n_members);
        return;
    }
    weftd->pending.engines_waited_for = weftd->options.engines;
    for (uint32_t i = 0; i < weftd->options.engines; i++) weftd_engine_post_connect(&weftd->engines[i]);
}

/* ---- declarations ---- */

struct declaration_request {
    struct weft_command command;
    struct declaration *declaration;
    struct weftd_engine *engine;
};

/* One declaration while the engines that own a chunk allocate its memory. */
struct declaration {
    struct weftd *weftd;
    Weft__Control__Control *message;
    uint32_t waited_for;
    struct weft_error error; /* first error among the replies */
    struct declaration_reply {
        struct weft_error error;
        uint64_t restored; /* 1 + the tensor's last closed step; 0: it is not restored */
    } *replies;                         /* (engines,) */
    struct declaration_request *requests; /* (engines,) */
};

static void declaration_free(struct declaration *declaration)
{
    struct weft_env *env = declaration->weftd->env;
    weft_control_free(env, declaration->message);
    weft_free_bytes(env, declaration->requests);
    weft_free_bytes(env, declaration->replies);
    weft_free_bytes(env, declaration);
}

static void send_declared_ok(struct weftd *weftd, uint32_t tensor)
{
    Weft__Control__DeclaredOk ok = WEFT__CONTROL__DECLARED_OK__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    ok.tensor = tensor;
    ok.restored = weftd->tensors.all[tensor].restored;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_DECLARED_OK;
    message.declared_ok = &ok;
    (void)weft_control_client_send(weftd->member, &message);
}

/* The state of a tensor of this number; NULL: no memory. */
static struct weftd_tensor_state *tensor_state(struct weftd *weftd, uint32_t tensor)
{
    struct weftd_tensor_states *states = &weftd->tensors;
    if (tensor < states->count) return &states->all[tensor];
    const uint32_t count = tensor + 1 > 2 * states->count ? tensor + 1 : 2 * states->count;
    struct weftd_tensor_state *more = weft_alloc_zero(weftd->env, count * sizeof *more);
    if (!more) return NULL;
    if (states->count > 0) memcpy(more, states->all, states->count * sizeof *more);
    weft_free_bytes(weftd->env, states->all);
    *states = (struct weftd_tensor_states){more, count};
    return &states->all[tensor];
}

/* Net thread: one engine has replied. */
static void on_declaration_replied(struct weft_command *command)
{
    struct declaration_request *request = weft_container_of(command, struct declaration_request, command);
    struct declaration *declaration = request->declaration;
    struct weftd *weftd = declaration->weftd;
    const struct weft_error *error = &declaration->replies[request->engine->index].error;
    if (error->status != WEFT_OK) weft_error_set(&declaration->error, error->status, "%s", error->text);
    if (--declaration->waited_for > 0) return;
    if (!weftd->state.failing && declaration->error.status == WEFT_OK) {
        struct weftd_tensor_state *state = &weftd->tensors.all[declaration->message->declared->tensor];
        state->state = TENSOR_DECLARED;
        state->restored = declaration->replies[request->engine->index].restored; /* equal for all engines */
        send_declared_ok(weftd, declaration->message->declared->tensor);
    } else if (!weftd->state.failing) {
        enum weft_status status = (enum weft_status)declaration->error.status;
        (void)weft_control_client_abort(weftd->member, status, declaration->error.text);
        weftd_fail(weftd, status, "%s", declaration->error.text);
    }
    declaration_free(declaration);
}

/* Engine thread: allocates the chunks. */
static void on_declaration(struct weft_command *command)
{
    struct declaration_request *request = weft_container_of(command, struct declaration_request, command);
    struct declaration *declaration = request->declaration;
    struct weft_error *error = &declaration->replies[request->engine->index].error;
    enum weft_status status =
        weft_shard_engine_declare(request->engine->shard, declaration->message->declared, error);
    if (status != WEFT_OK)
        weft_error_set(error, status, "tensor '%.100s': %s", declaration->message->declared->declare->name,
                       weft_reason_text(status));
    else
        (void)weftd_restore_tensor(request->engine, declaration->message->declared,
                                   &declaration->replies[request->engine->index].restored, error);
    request->command.fn = on_declaration_replied;
    weft_net_post(declaration->weftd->net, &request->command);
}

/* In a job with copies the engine decides, by its slots. */
static bool owns_a_chunk(const struct weftd *weftd, uint32_t engine, const Weft__Control__Declared *declared)
{
    if (weftd->welcome.copies > 0) return true;
    for (size_t i = 0; i < declared->n_chunks; i++)
        if (declared->chunks[i]->endpoint == weftd->welcome.endpoint_first + engine) return true;
    return false;
}

static struct declaration *declaration_create(struct weftd *weftd, const Weft__Control__Control *message)
{
    struct declaration *declaration = weft_alloc_zero(weftd->env, sizeof *declaration);
    if (!declaration) return NULL;
    declaration->weftd = weftd;
    declaration->message = weftd_copy_message(weftd, message);
    declaration->requests =
        weft_alloc_zero(weftd->env, weftd->options.engines * sizeof *declaration->requests);
    declaration->replies = weft_alloc_zero(weftd->env, weftd->options.engines * sizeof *declaration->replies);
    if (declaration->message && declaration->requests && declaration->replies) return declaration;
    declaration_free(declaration);
    return NULL;
}

static void on_declared(struct weftd *weftd, const Weft__Control__Control *message)
{
    const Weft__Control__Declared *declared = message->declared;
    if (!weftd->state.running || declared->n_chunks == 0) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED, "the coordinator sent a declaration that was not due");
        return;
    }
    struct weftd_tensor_state *state = tensor_state(weftd, declared->tensor);
    if (state && state->state != TENSOR_UNKNOWN) { /* another coordinator repeats it */
        if (state->state != TENSOR_DECLARING) send_declared_ok(weftd, declared->tensor);
        return;
    }
    struct declaration *declaration = state ? declaration_create(weftd, message) : NULL;
    if (!declaration) {
        (void)weft_control_client_abort(weftd->member, WEFT_ERR_NO_MEMORY, "no memory for another tensor");
        weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory for tensor '%.200s'", declared->declare->name);
        return;
    }
    for (uint32_t i = 0; i < weftd->options.engines; i++)
        declaration->waited_for += owns_a_chunk(weftd, i, declared);
    if (declaration->waited_for == 0) {
        declaration_free(declaration);
        weftd_fail(weftd, WEFT_ERR_MALFORMED,
                   "the coordinator announced tensor '%.200s', of which no chunk is here",
                   declared->declare->name);
        return;
    }
    state->state = TENSOR_DECLARING;
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        if (!owns_a_chunk(weftd, i, declared)) continue;
        declaration->requests[i] = (struct declaration_request){
            .command.fn = on_declaration, .declaration = declaration, .engine = &weftd->engines[i]};
        weft_loop_post(weftd->engines[i].loop, &declaration->requests[i].command);
    }
}

/* ---- weight hashes ---- */

struct hash_request {
    struct weftd_command base; /* must be the first member */
    Weft__Control__WeightHash hash;
};

static void on_hash(struct weft_command *command)
{
    struct hash_request *request = weft_container_of(command, struct hash_request, base.command);
    struct weft_error *error = &request->base.error;
    enum weft_status status =
        weft_shard_engine_check_hash(request->base.engine->shard, &request->hash, error);
    if (status != WEFT_OK)
        weft_error_set(error, status, "weights of tensor %u: %s", request->hash.tensor,
                       weft_reason_text(status));
    weftd_command_reply(&request->base);
}

static void on_weight_hash(struct weftd *weftd, const Weft__Control__WeightHash *hash)
{
    /* out of range if the endpoint is on another shard */
    const uint32_t engine = hash->home - 1 - weftd->welcome.endpoint_first;
    struct hash_request *request =
        engine < weftd->options.engines ? weft_alloc_zero(weftd->env, sizeof *request) : NULL;
    if (!request) { /* skip this comparison; another follows after hash_every steps */
        weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "a weight hash of tensor %u could not be compared",
                 hash->tensor);
        return;
    }
    request->hash = *hash;
    weftd_command_post(&request->base, &weftd->engines[engine], on_hash);
}

/* ---- freed tensors ---- */

struct release_request {
    struct weftd_command base; /* must be the first member */
    uint32_t tensor;
};

static void on_release(struct weft_command *command)
{
    struct release_request *request = weft_container_of(command, struct release_request, base.command);
    weft_shard_engine_release(request->base.engine->shard, request->tensor);
    weftd_command_reply(&request->base);
}

static void on_tensor_free(struct weftd *weftd, uint32_t tensor)
{
    struct weftd_tensor_state *state = tensor_state(weftd, tensor);
    if (state && (state->state == TENSOR_FREED || state->state == TENSOR_UNKNOWN)) return;
    if (state) state->state = TENSOR_FREED;
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct release_request *request = weft_alloc_zero(weftd->env, sizeof *request);
        if (!request) { /* the memory is freed at the end of the job */
            weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "no memory to release tensor %u", tensor);
            return;
        }
        request->tensor = tensor;
        weftd_command_post(&request->base, &weftd->engines[i], on_release);
    }
}

/* ---- messages ---- */

/* The coordinator and all shards restore one step: the workers continue behind it. */
static void on_go(struct weftd *weftd, const Weft__Control__Go *go)
{
    const uint64_t step = weftd->restored ? weftd->restored->step : 0;
    if (go->committed == step || weftd->options.joins) { /* chunks reach it by copies */
        weftd->state.running = true;
        return;
    }
    char text[200];
    snprintf(text, sizeof text,
             "%s restores step %llu and the coordinator step %llu (0: none): give all the same --restore "
             "FOLDER:STEP",
             weftd->label, (unsigned long long)step, (unsigned long long)go->committed);
    (void)weft_control_client_abort(weftd->member, WEFT_ERR_MISMATCH, text);
    weftd_fail(weftd, WEFT_ERR_MISMATCH, "%s", text);
}

static void on_member_lost(struct weftd *weftd, const Weft__Control__MemberLost *lost)
{
    if (weftd_members_lost(weftd, lost)) return;
    const Weft__Control__Member *worker = weftd_members_worker(weftd, lost->member);
    if (worker) weftd->outcome.lost_endpoint = worker->endpoint_first;
    weftd_fail(weftd, WEFT_ERR_PEER_LOST, "%s", lost->text);
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct weftd *weftd = context;
    if (weftd->state.failing) return;
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_ROSTER: on_roster(weftd, message); break;
    case WEFT__CONTROL__CONTROL__BODY_GO: on_go(weftd, message->go); break;
    case WEFT__CONTROL__CONTROL__BODY_DECLARED: on_declared(weftd, message); break;
    case WEFT__CONTROL__CONTROL__BODY_WEIGHT_HASH: on_weight_hash(weftd, message->weight_hash); break;
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE:
        if (weftd->state.running) on_tensor_free(weftd, message->tensor_free->tensor);
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED: weftd_snapshots_message(weftd, message); break;
    case WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST: on_member_lost(weftd, message->member_lost); break;
    case WEFT__CONTROL__CONTROL__BODY_MAP: weftd_map(weftd, message); break;
    case WEFT__CONTROL__CONTROL__BODY_SHARD_ADDED: weftd_shard_added(weftd, message); break;
    case WEFT__CONTROL__CONTROL__BODY_DRAIN:
        weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "%s cannot leave the job alone: %s", weftd->label,
                 message->drain->text);
        weftd_interrupted(weftd, "a signal");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SLOT_COPY:
    case WEFT__CONTROL__CONTROL__BODY_SLOT_QUIET: weftd_move(weftd, message); break;
    case WEFT__CONTROL__CONTROL__BODY_LEFT: weftd_members_left(weftd, message->left); break;
    case WEFT__CONTROL__CONTROL__BODY_JOINED: weftd_members_joined(weftd, message->joined); break;
    case WEFT__CONTROL__CONTROL__BODY_GROW: weftd_members_grow(weftd, message->grow); break;
    case WEFT__CONTROL__CONTROL__BODY_SHRUNK: weftd_members_shrunk(weftd, message); break;
    case WEFT__CONTROL__CONTROL__BODY_ABORT:
        if (weftd_rolled_back(weftd, message->abort)) break;
        weftd_fail(weftd, (enum weft_status)message->abort->status, "%s", message->abort->text);
        break;
    case WEFT__CONTROL__CONTROL__BODY_FINISHED:
        if (!weftd->coordinator) weft_candidate_stop(weftd->candidate);
        if (!weftd_snapshots_defer_leave(weftd)) (void)weft_control_client_leave(weftd->member, "");
        break;
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT:
        if (message->heartbeat->ask_progress) weftd_progress_asked(weftd);
        break;
    default:
        weftd_fail(weftd, WEFT_ERR_MALFORMED, "the coordinator sent message %d, which no shard expects",
                   (int)message->body_case);
        break;
    }
}

/* Unused with an embedded coordinator, which logs the same. */
static void on_awaited(void *context, const char *text)
{
    struct weftd *weftd = context;
    weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "%s waits for the job to begin: %s", weftd->label, text);
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    struct weftd *weftd = context;
    const char *reason = strstr(text, WEFT_CONTROL_LOST_TEXT);
    if (status == WEFT_ERR_PEER_LOST && weftd->roster && reason &&
        !weft_control_client_is_replaced(weftd->member))
        weftd_fail(weftd, status, "%s lost: %s", weftd->roster->roster->coordinator,
                   reason + strlen(WEFT_CONTROL_LOST_TEXT));
    else if (status != WEFT_ERR_CLOSED) /* CLOSED: this process has left */
        weftd_fail(weftd, status, "%s", text);
    /* Refused (wrong secret, index in use): the job of an embedded coordinator cannot begin without this
     * shard. */
    if (status != WEFT_ERR_CLOSED && !weftd->state.joined) weftd->state.coordinator_done = true;
    weftd->state.member_done = true;
    weftd_stop_if_done(weftd);
}

enum weft_status weftd_control_start(struct weftd *weftd, const char *host, uint16_t port,
                                     struct weft_error *error)
{
    struct weft_control_client_options options;
    weft_control_client_options_init(&options);
    options.host = host;
    options.port = port;
    options.job = weftd->options.job;
    options.secret = weftd->options.secret;
    options.role = WEFT__CONTROL__ROLE__ROLE_SHARD;
    options.wanted_index = weftd->options.index;
    options.joins = weftd->options.joins;
    options.join_ns = weftd_takeover_reach_ns(weftd);
    options.endpoints = weftd->options.engines;
    options.has_snapshots = weftd->snapshots != NULL;
    options.zone = weft_config_text(weftd->options.config, "server.zone");
    options.wire_newest = weftd_wire_newest(weftd);
    options.welcomed = on_welcomed;
    options.message = on_message;
    options.closed = on_closed;
    options.refused = weftd_takeover_refused;
    if (weftd->candidate) options.candidate = weft_candidate_address(weftd->candidate);
    if (!weftd->coordinator) options.awaited = on_awaited;
    options.context = weftd;
    return weft_control_client_start(weftd->env, weftd->net, &options, &weftd->member, error);
}
