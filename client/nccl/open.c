/* open.c - weft_nccl_open: the ranks agree whether NCCL reduces inside hosts, and make its communicators.
 *
 *     each rank: device, NCCL, option ─► exchange ─► the same choice on all ranks, with a reason
 *     groups of each host, and across the hosts ─► the leader's id ─► communicators ─► exchange */
#include <stdio.h>
#include <string.h>

#include "client/call/calls.h"
#include "client/comm/comm.h"
#include "client/nccl/host_first.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/topology.h"

/* What a rank reports; equal words on all ranks give equal choices. */
struct entry {
    int64_t status, version, mode;
};
#define ENTRY_WORDS (sizeof(struct entry) / sizeof(int64_t))
enum { MODE_AUTO = 0, MODE_NO, MODE_YES };

static int64_t mode_of(const struct weft_session *session)
{
    const char *text = weft_config_text(session->settings.config, "client.nccl");
    return strcmp(text, "no") == 0 ? MODE_NO : strcmp(text, "yes") == 0 ? MODE_YES : MODE_AUTO;
}

/* Device and NCCL of this rank. */
static enum weft_status find_own(struct client_nccl *nccl, struct weft_error *error)
{
    struct host_comm *host = &nccl->host;
    int before;
    WEFT_TRY(weft_memory_ops(WEFT_MEMORY_CUDA, &host->ops, error));
    WEFT_TRY(host->ops->enter(host->device, &before, error));
    host->ops->leave(before);
    return nccl_api_load(&host->api, error);
}

static const char *topology_reason(const struct weft_session *session, const struct weft_plan_hosts *hosts)
{
    if (session->membership.is_elastic) return "the job is elastic";
    if (hosts->lanes < 2) return "no host has two ranks";
    if (hosts->count * hosts->lanes != session->ranks) return "the hosts have different numbers of ranks";
    return NULL;
}

/* Writes nccl->reason if NCCL is not used. The result is equal on all ranks. */
static bool choose(struct weft_session *session, struct client_nccl *nccl, const struct entry *all,
                   const struct weft_error *own)
{
    const char *topology = topology_reason(session, &atomic_load(&session->membership.hosts)->plan);
    char name[128];
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        client_rank_name(session, rank, name, sizeof name);
        nccl->is_forced = nccl->is_forced || all[rank].mode == MODE_YES;
        if (nccl->reason[0]) continue;
        if (all[rank].mode == MODE_NO)
            snprintf(nccl->reason, sizeof nccl->reason, "client.nccl is \"no\" on %s", name);
        else if (all[rank].status < 0)
            snprintf(nccl->reason, sizeof nccl->reason, "%s cannot: %.120s", name,
                     rank == session->rank ? own->text : "see its log");
        else if (all[rank].version != all[0].version)
            snprintf(nccl->reason, sizeof nccl->reason, "%s has NCCL %lld and rank 0 has %lld", name,
                     (long long)all[rank].version, (long long)all[0].version);
    }
    if (!nccl->reason[0] && topology) snprintf(nccl->reason, sizeof nccl->reason, "%s", topology);
    return nccl->reason[0] == '\0';
}

/* The kernel of reproducible sums, and its memory. Without them such calls do not go by NCCL. */
static void find_kernels(struct client_nccl *nccl)
{
    struct weft_error error = {0};
    int before;
    void *scratch = NULL;
    enum weft_status status = WEFT_OK;
    if (nccl->host.ranks > NCCL_SUM_SOURCES_MAX)
        status = (enum weft_status)weft_error_set(&error, WEFT_ERR_UNSUPPORTED,
                                                  "the device sums at most 8 ranks of a host");
    if (status == WEFT_OK) status = weft_device_kernels(&nccl->kernels, &error);
    if (status == WEFT_OK) status = nccl->host.ops->enter(nccl->host.device, &before, &error);
    if (status == WEFT_OK) {
        status = nccl->host.ops->alloc((size_t)nccl->host.ranks * NCCL_SCRATCH_ELEMS * sizeof(float),
                                       &scratch, &error);
        nccl->host.ops->leave(before);
    }
    nccl->scratch = scratch;
    if (status < 0) nccl->kernels = NULL;
    snprintf(nccl->kernels_reason, sizeof nccl->kernels_reason, "%.199s", error.text);
}

/* The ranks of a host, and those with this place on all hosts. */
static enum weft_status make_groups(struct weft_session *session, struct client_nccl *nccl,
                                    struct weft_comm **in_host_out)
{
    const struct weft_plan_hosts *hosts = &atomic_load(&session->membership.hosts)->plan;
    const int host = (int)hosts->host[session->rank], place = (int)hosts->place[session->rank];
    nccl->hosts = hosts->count;
    nccl->has_subtrees = hosts->subtrees;
    nccl->host.rank = (uint32_t)place;
    nccl->host.ranks = hosts->lanes;
    WEFT_TRY(weft_split(session, NULL, host, place, in_host_out));
    return weft_split(session, NULL, place, host, &nccl->across);
}

/* The id of the first rank of the host. */
static enum weft_status exchange_id(struct weft_session *session, struct client_nccl *nccl,
                                    struct weft_comm *in_host, struct nccl_api_id *id,
                                    struct weft_error *error)
{
    int64_t mine[sizeof *id / sizeof(int64_t) + 1] = {0};
    const int64_t *all;
    if (nccl->host.rank == 0) {
        mine[0] = nccl->host.api->get_unique_id(id);
        memcpy(mine + 1, id, sizeof *id);
    }
    WEFT_TRY(client_comm_exchange(session, in_host, WEFT_COLL_LABEL_NCCL_OPEN, mine,
                                  sizeof mine / sizeof mine[0], &all));
    memcpy(id, all + 1, sizeof *id);
    if (all[0] == NCCL_API_OK) return WEFT_OK;
    weft_error_set(error, WEFT_ERR_STATE, "NCCL: ncclGetUniqueId of the first rank of the host answered %s",
                   nccl->host.api->error_string((int)all[0]));
    return WEFT_OK;
}

/* Communicators, and whether all ranks can sum reproducibly. false: some rank has none, and nccl->reason has
 * why. An error ends the session. */
static enum weft_status make_comms(struct weft_session *session, struct client_nccl *nccl, bool *made_out)
{
    struct weft_comm *in_host = NULL;
    struct nccl_api_id id;
    struct weft_error error = {0};
    const int64_t *all;
    WEFT_TRY(make_groups(session, nccl, &in_host));
    WEFT_TRY(exchange_id(session, nccl, in_host, &id, &error));
    WEFT_TRY(weft_comm_free(in_host));
    enum weft_status status = (enum weft_status)error.status;
    if (status == WEFT_OK) status = host_comm_open(&nccl->host, &id, &error);
    if (status < 0) weft_log(session->env, WEFT_LOG_WARN, "client", "nccl_open: %s", error.text);
    else find_kernels(nccl);
    const bool is_open = status == WEFT_OK;
    const int64_t mine[2] = {status, nccl->kernels != NULL};
    status = client_comm_exchange(session, NULL, WEFT_COLL_LABEL_NCCL_OPEN, mine, 2, &all);
    *made_out = status == WEFT_OK;
    for (uint32_t rank = 0; status == WEFT_OK && rank < session->ranks; rank++) {
        char name[128];
        client_rank_name(session, rank, name, sizeof name);
        if (all[2 * rank] < 0 && *made_out)
            snprintf(nccl->reason, sizeof nccl->reason, "%s has no communicator: %.120s", name,
                     rank == session->rank ? error.text : "see its log");
        if (all[2 * rank] < 0) *made_out = false;
        if (all[2 * rank + 1] || !nccl->kernels) continue;
        snprintf(nccl->kernels_reason, sizeof nccl->kernels_reason, "%s has no kernels for such sums", name);
        nccl->kernels = NULL;
    }
    if (*made_out || !is_open) return status;
    host_comm_close(&nccl->host);
    nccl->host.ops->free(nccl->scratch);
    host_comm_free(&nccl->host);
    return status;
}

static enum weft_status open_nccl(struct weft_session *session, struct client_nccl *nccl)
{
    struct weft_error own = {0};
    const int64_t *words;
    struct entry mine = {.status = find_own(nccl, &own), .mode = mode_of(session)};
    mine.version = mine.status < 0 ? 0 : nccl->host.api->version;
    if (mine.status < 0 && mine.mode != MODE_NO)
        weft_log(session->env, WEFT_LOG_INFO, "client", "nccl_open: %s", own.text);
    WEFT_TRY(
        client_comm_exchange(session, NULL, WEFT_COLL_LABEL_NCCL_OPEN, &mine.status, ENTRY_WORDS, &words));
    bool is_used = choose(session, nccl, (const struct entry *)words, &own);
    if (is_used) WEFT_TRY(make_comms(session, nccl, &is_used));
    nccl->is_used = is_used;
    weft_log(session->env, WEFT_LOG_INFO, "client", "NCCL inside hosts: %s",
             is_used ? "used for all_reduces of device memory" : nccl->reason);
    return WEFT_OK;
}

enum weft_status weft_nccl_open(struct weft_session *session, int device)
{
    if (!session) return client_null_argument("nccl_open", "session");
    WEFT_TRY(client_comm_check_create(session, "nccl_open"));
    if (device < 0) return client_error(session, WEFT_ERR_INVALID, "nccl_open: device %d is below 0", device);
    if (session->calls->nccl_ops)
        return client_error(session, WEFT_ERR_EXISTS, "nccl_open: it was called before in this session");
    struct client_nccl *nccl = weft_alloc_zero(session->env, sizeof *nccl);
    if (!nccl) { /* the other ranks wait for this one */
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: nccl_open: no memory", session->rank);
        return client_error(session, WEFT_ERR_NO_MEMORY, "nccl_open: no memory");
    }
    nccl->host.session = session;
    nccl->host.device = device;
    const enum weft_status status = open_nccl(session, nccl);
    if (status < 0) {
        weft_free_bytes(session->env, nccl);
        return status;
    }
    client_nccl_register(session, nccl);
    if (nccl->is_used || !nccl->is_forced) return WEFT_OK;
    return client_error(session, WEFT_ERR_UNSUPPORTED,
                        "nccl_open: client.nccl is \"yes\", and NCCL cannot reduce inside hosts: %.300s",
                        nccl->reason);
}
