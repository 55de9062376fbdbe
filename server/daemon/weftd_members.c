/* weftd_members.c - changes of the membership: forwards the coordinator's messages to the engines.
 *
 *     MemberLost(epoch) -> every engine fails the lost peer and leaves the epoch   (shard_members.c)
 *     Left              -> every engine ends rounds that lack that worker (shard_worker_left.c)
 *     Joined(epoch)     -> every engine leaves the epoch; the worker stays connected
 *     Grow(epoch)       -> nothing: the open step continues
 *     Shrunk(epoch)     -> every engine connects to the new workers, and enters the epoch with the members by
 *                          new rank
 *
 * Net thread, except for the functions that commands run on the engine thread (weftd_command.c). */
#include <stdio.h>
#include <string.h>

#include "server/daemon/weftd.h"

struct members_request {
    struct weftd_command base; /* must be the first member */
    uint32_t epoch, lost_endpoint, left_endpoint, workers;
    uint64_t committed;
    bool lost;
    char text[400];
    uint64_t *incarnations; /* (workers,) follow the struct; newcomers and endpoints follow them */
    const Weft__Control__Member **newcomers; /* (newcomer_count,) of a message in weftd->newcomers */
    uint32_t newcomer_count;
    uint32_t *endpoints; /* (workers,) */
};

/* A Shrunk message that names newcomers. It is kept to the end: engines and later messages refer to them. */
struct weftd_newcomers {
    struct weftd_newcomers *next;
    Weft__Control__Control *message; /* owned */
};

static struct members_request *request_create(struct weftd *weftd, uint32_t epoch, uint32_t workers)
{
    struct members_request *request;
    const size_t of_worker =
        sizeof *request->incarnations + sizeof *request->newcomers + sizeof *request->endpoints;
    request = weft_alloc_zero(weftd->env, sizeof *request + workers * of_worker);
    if (!request) {
        (void)weft_control_client_abort(weftd->member, WEFT_ERR_NO_MEMORY,
                                        "a shard has no memory to follow the membership");
        weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory to follow the membership of epoch %u", epoch);
        return NULL;
    }
    request->epoch = epoch;
    request->workers = workers;
    request->incarnations = (uint64_t *)(void *)(request + 1);
    request->newcomers = (const Weft__Control__Member **)(void *)(request->incarnations + workers);
    request->endpoints = (uint32_t *)(void *)(request->newcomers + workers);
    return request;
}

/* ---- engine thread ---- */

static void on_leave_epoch(struct weft_command *command)
{
    struct members_request *request = weft_container_of(command, struct members_request, base.command);
    struct weftd_engine *engine = request->base.engine;
    /* Not every transport detects a dead peer, and operations with it must end. */
    if (request->lost && engine->transport && weft_transport_peer(engine->transport, request->lost_endpoint))
        weft_transport_fail_peer(engine->transport, request->lost_endpoint, WEFT_ERR_PEER_LOST,
                                 request->text);
    if (engine->shard) weft_shard_engine_leave_epoch(engine->shard, request->epoch);
    weftd_command_reply(&request->base);
}

/* A newcomer may be lost before this engine connects: the coordinator reports that. */
static enum weft_status connect_newcomers(struct members_request *request)
{
    struct weftd_engine *engine = request->base.engine;
    for (uint32_t i = 0; i < request->newcomer_count; i++) {
        const enum weft_status status =
            weftd_engine_connect_worker(engine, request->newcomers[i], &request->base.error);
        if (status == WEFT_ERR_PEER_LOST) request->base.error = (struct weft_error){0};
        else WEFT_TRY(status);
    }
    return WEFT_OK;
}

static void on_enter_epoch(struct weft_command *command)
{
    struct members_request *request = weft_container_of(command, struct members_request, base.command);
    struct weft_shard_engine *shard = request->base.engine->shard;
    if (shard && connect_newcomers(request) == WEFT_OK)
        (void)weft_shard_engine_enter_epoch(shard, request->epoch, request->committed, request->workers,
                                            request->endpoints, request->incarnations, &request->base.error);
    weftd_command_reply(&request->base);
}

static void on_left(struct weft_command *command)
{
    struct members_request *request = weft_container_of(command, struct members_request, base.command);
    struct weft_shard_engine *shard = request->base.engine->shard;
    if (shard) weft_shard_engine_worker_left(shard, request->left_endpoint);
    weftd_command_reply(&request->base);
}

/* ---- net thread: messages of the coordinator ---- */

static const Weft__Control__Member *find_worker(size_t count, Weft__Control__Member *const *members,
                                                uint32_t number)
{
    for (size_t i = 0; i < count; i++)
        if (members[i]->member == number && members[i]->role == WEFT__CONTROL__ROLE__ROLE_WORKER)
            return members[i];
    return NULL;
}

const Weft__Control__Member *weftd_members_worker(const struct weftd *weftd, uint32_t number)
{
    if (!weftd->roster) return NULL;
    const Weft__Control__Roster *roster = weftd->roster->roster;
    const Weft__Control__Member *found = find_worker(roster->n_members, roster->members, number);
    for (const struct weftd_newcomers *at = weftd->newcomers; at && !found; at = at->next)
        found = find_worker(at->message->shrunk->n_newcomers, at->message->shrunk->newcomers, number);
    return found;
}

/* false: the job ends. */
bool weftd_members_lost(struct weftd *weftd, const Weft__Control__MemberLost *lost)
{
    const Weft__Control__Member *member = weftd_members_worker(weftd, lost->member);
    if (lost->epoch == 0 || weftd->welcome.workers_min == 0 || !weftd->state.running || !member) return false;
    weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "%s; the job continues", lost->text);
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_request *request = request_create(weftd, lost->epoch, 0);
        if (!request) return true;
        request->lost = true;
        request->lost_endpoint = member->endpoint_first;
        snprintf(request->text, sizeof request->text, "%s", lost->text);
        weftd_command_post(&request->base, &weftd->engines[i], on_leave_epoch);
    }
    return true;
}

void weftd_members_left(struct weftd *weftd, const Weft__Control__Left *left)
{
    const Weft__Control__Member *member = weftd_members_worker(weftd, left->member);
    if (!weftd->state.running || !member) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED,
                   "the coordinator reports that member %u has left, which is not a worker of the roster",
                   left->member);
        return;
    }
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_request *request = request_create(weftd, 0, 0);
        if (!request) return;
        request->left_endpoint = member->endpoint_first;
        weftd_command_post(&request->base, &weftd->engines[i], on_left);
    }
}

void weftd_members_joined(struct weftd *weftd, const Weft__Control__Joined *joined)
{
    if (!weftd->state.running || weftd->welcome.workers_min == 0) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED,
                   "the coordinator reports that a worker has joined, in a job that is not elastic");
        return;
    }
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_request *request = request_create(weftd, joined->epoch, 0);
        if (!request) return;
        weftd_command_post(&request->base, &weftd->engines[i], on_leave_epoch);
    }
}

void weftd_members_grow(struct weftd *weftd, const Weft__Control__Grow *grow)
{
    if (!weftd->state.running || weftd->welcome.workers_max == 0)
        weftd_fail(weftd, WEFT_ERR_MALFORMED,
                   "the coordinator reports a new worker for epoch %u, in a job that admits none",
                   grow->epoch);
}

static uint32_t workers_max(const struct weftd *weftd)
{
    const Weft__Control__Welcome *welcome = &weftd->welcome;
    return welcome->workers_max > welcome->workers ? welcome->workers_max : welcome->workers;
}

/* Keeps the message if it names workers that are not known yet: kept_out, else NULL. false: no memory, the
 * job ends. */
static bool keep_newcomers(struct weftd *weftd, const Weft__Control__Control *message,
                           const struct weftd_newcomers **kept_out)
{
    struct weftd_newcomers **end = &weftd->newcomers;
    *kept_out = NULL;
    const Weft__Control__Shrunk *shrunk = message->shrunk;
    size_t known = 0;
    while (known < shrunk->n_newcomers && weftd_members_worker(weftd, shrunk->newcomers[known]->member))
        known++;
    if (known == shrunk->n_newcomers) return true;
    struct weftd_newcomers *kept = weft_alloc_zero(weftd->env, sizeof *kept);
    if (kept) kept->message = weftd_copy_message(weftd, message);
    if (!kept || !kept->message) {
        weft_free_bytes(weftd->env, kept);
        weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory for the new workers of epoch %u", shrunk->epoch);
        return false;
    }
    while (*end) end = &(*end)->next; /* an earlier message is found first */
    *end = kept;
    *kept_out = kept;
    return true;
}

void weftd_members_shrunk(struct weftd *weftd, const Weft__Control__Control *message)
{
    const Weft__Control__Shrunk *shrunk = message->shrunk;
    const struct weftd_newcomers *kept = NULL;
    bool known = weftd->state.running && weftd->welcome.workers_min > 0 && shrunk->n_members > 0 &&
                 shrunk->n_members <= workers_max(weftd);
    if (known && !keep_newcomers(weftd, message, &kept)) return;
    for (size_t rank = 0; known && rank < shrunk->n_members; rank++)
        known = weftd_members_worker(weftd, shrunk->members[rank]) != NULL;
    if (!known) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED,
                   "the coordinator's members of epoch %u differ from those of this shard", shrunk->epoch);
        return;
    }
    /* of workers that were known before, the engines have connections */
    const Weft__Control__Shrunk *own = kept ? kept->message->shrunk : NULL;
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_request *request = request_create(weftd, shrunk->epoch, (uint32_t)shrunk->n_members);
        if (!request) return;
        request->committed = shrunk->committed;
        for (uint32_t rank = 0; rank < request->workers; rank++) {
            const Weft__Control__Member *member = weftd_members_worker(weftd, shrunk->members[rank]);
            request->endpoints[rank] = member->endpoint_first;
            request->incarnations[rank] = member->incarnation;
            if (own && find_worker(own->n_newcomers, own->newcomers, member->member) == member)
                request->newcomers[request->newcomer_count++] = member;
        }
        weftd_command_post(&request->base, &weftd->engines[i], on_enter_epoch);
    }
}

void weftd_members_free(struct weftd *weftd)
{
    while (weftd->newcomers) {
        struct weftd_newcomers *kept = weftd->newcomers;
        weftd->newcomers = kept->next;
        weft_control_free(weftd->env, kept->message);
        weft_free_bytes(weftd->env, kept);
    }
}
