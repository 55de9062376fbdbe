/* weftd_members.c - changes of the membership: forwards the coordinator's messages to the engines.
 *
 *     MemberLost(epoch) -> every engine fails the lost peer and leaves the epoch   (shard_members.c)
 *     Left              -> every engine ends rounds that lack that worker (shard_worker_left.c)
 *     Joined(epoch)     -> every engine leaves the epoch; the worker stays connected
 *     Shrunk(epoch)     -> every engine enters the epoch with the members by new rank
 *
 * Net thread, except for the functions that commands run on the engine thread (weftd_command.c). */
#include <stdio.h>
#include <string.h>

#include "server/daemon/weftd.h"

struct members_request {
    struct weftd_command base; /* must be the first member */
    uint32_t epoch, lost_endpoint, left_endpoint, workers;
    bool lost;
    char text[400];
    uint64_t *incarnations; /* (workers,) follow the struct; endpoints (workers,) follow them */
    uint32_t *endpoints;
};

static struct members_request *request_create(struct weftd *weftd, uint32_t epoch, uint32_t workers)
{
    struct members_request *request = weft_alloc_zero(
        weftd->env, sizeof *request + workers * (sizeof *request->incarnations + sizeof *request->endpoints));
    if (!request) {
        (void)weft_control_client_abort(weftd->member, WEFT_ERR_NO_MEMORY,
                                        "a shard has no memory to follow the membership");
        weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory to follow the membership of epoch %u", epoch);
        return NULL;
    }
    request->epoch = epoch;
    request->workers = workers;
    request->incarnations = (uint64_t *)(void *)(request + 1);
    request->endpoints = (uint32_t *)(void *)(request->incarnations + workers);
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

static void on_enter_epoch(struct weft_command *command)
{
    struct members_request *request = weft_container_of(command, struct members_request, base.command);
    struct weft_shard_engine *shard = request->base.engine->shard;
    if (shard)
        (void)weft_shard_engine_enter_epoch(shard, request->epoch, request->workers, request->endpoints,
                                            request->incarnations, &request->base.error);
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

static const Weft__Control__Member *worker_of(const struct weftd *weftd, uint32_t number)
{
    for (size_t i = 0; weftd->roster && i < weftd->roster->roster->n_members; i++) {
        const Weft__Control__Member *member = weftd->roster->roster->members[i];
        if (member->member == number && member->role == WEFT__CONTROL__ROLE__ROLE_WORKER) return member;
    }
    return NULL;
}

/* false: the job ends. */
bool weftd_members_lost(struct weftd *weftd, const Weft__Control__MemberLost *lost)
{
    const Weft__Control__Member *member = worker_of(weftd, lost->member);
    if (lost->epoch == 0 || weftd->welcome.workers_min == 0 || !weftd->running || !member) return false;
    weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "%s; the job goes on", lost->text);
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
    const Weft__Control__Member *member = worker_of(weftd, left->member);
    if (!weftd->running || !member) {
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
    if (!weftd->running || weftd->welcome.workers_min == 0) {
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

void weftd_members_shrunk(struct weftd *weftd, const Weft__Control__Shrunk *shrunk)
{
    bool known = weftd->running && weftd->welcome.workers_min > 0 && shrunk->n_members > 0 &&
                 shrunk->n_members <= weftd->welcome.workers;
    for (size_t rank = 0; known && rank < shrunk->n_members; rank++)
        known = worker_of(weftd, shrunk->members[rank]) != NULL;
    if (!known) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED,
                   "the coordinator's members of epoch %u are not those that this shard knows",
                   shrunk->epoch);
        return;
    }
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_request *request = request_create(weftd, shrunk->epoch, (uint32_t)shrunk->n_members);
        if (!request) return;
        for (uint32_t rank = 0; rank < request->workers; rank++) {
            const Weft__Control__Member *member = worker_of(weftd, shrunk->members[rank]);
            request->endpoints[rank] = member->endpoint_first;
            request->incarnations[rank] = member->incarnation;
        }
        weftd_command_post(&request->base, &weftd->engines[i], on_enter_epoch);
    }
}
