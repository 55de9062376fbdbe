/* comm.c - life of a group of some of the workers, and the exchange by which ranks make one.
 *
 *     caller   client_comm_exchange ─► client_comm_create ─► client_comm_check_all ─► calls ─► weft_comm_free
 *              members, id             │ command, completion                                   │
 *     engine                           └► weft_group_create                  weft_group_free ◄─┘
 *
 * Ids. Two groups with a common pair of ranks must have different ids. The ranks that make groups take the
 * largest next_group_id of all participants, and all of them continue after the new ids. Two groups with a
 * common rank were made one after the other by that rank, so the later has the larger id. No other rank takes
 * part. For a message of an unknown group a rank knows from the id whether the group has ended or is not made
 * yet. */
#include "client/comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/comm/comms.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/topology.h"
#include "client/session/wait.h"

/* ---- exchange ---- */

enum weft_status client_comm_check_create(struct weft_session *session, const char *call)
{
    WEFT_TRY(client_usable(session));
    if (client_call_group_is_open(session))
        return client_error(session, WEFT_ERR_STATE,
                            "%s: a group of calls is open; call weft_group_end first", call);
    return WEFT_OK;
}

static enum weft_status reserve_exchange(struct weft_session *session, size_t elems)
{
    struct client_comm_exchange_state *exchange = &session->comms->exchange;
    struct client_request *request = client_request_of(&exchange->request);
    if (request->magic == CLIENT_REQUEST_MAGIC)
        WEFT_TRY(client_request_check_idle(session, request, "split"));
    if (exchange->capacity >= elems) return WEFT_OK;
    weft_free_bytes(session->env, exchange->all);
    exchange->capacity = 0;
    exchange->all = weft_alloc_array(session->env, elems, sizeof *exchange->all);
    if (!exchange->all)
        return client_error(session, WEFT_ERR_NO_MEMORY,
                            "no memory to exchange the description of a group between %u ranks",
                            session->ranks);
    exchange->capacity = elems;
    return WEFT_OK;
}

enum weft_status client_comm_exchange(struct weft_session *session, struct weft_comm *comm,
                                      enum weft_coll_label label, const int64_t *mine, uint32_t words,
                                      const int64_t **all_out)
{
    struct client_comm_exchange_state *exchange = &session->comms->exchange;
    struct client_request *request;
    WEFT_ASSERT(words <= CLIENT_COMM_EXCHANGE_WORDS_MAX);
    WEFT_TRY(reserve_exchange(session, (size_t)words * (comm ? comm->ranks : session->ranks)));
    memcpy(exchange->mine, mine, words * sizeof *mine);
    struct client_call call = {.kind = WEFT_COLL_ALL_GATHER,
                               .comm = comm,
                               .in = exchange->mine,
                               .out = exchange->all,
                               .count = words,
                               .dtype = WEFT_I64,
                               .op = WEFT_SUM,
                               .label = label};
    WEFT_TRY(client_call_prepare(session, &call, &exchange->request, &request));
    request->args.plan = WEFT_PLAN_AUTO;
    client_request_post(request, client_call_start);
    WEFT_TRY(weft_wait(&exchange->request, 0));
    *all_out = exchange->all;
    return WEFT_OK;
}

enum weft_status client_comm_check_all(struct weft_session *session, struct weft_comm *comm,
                                       enum weft_coll_label label, enum weft_status mine)
{
    const char *what = label == WEFT_COLL_LABEL_SPLIT ? "split" : "mesh";
    const int64_t word = mine, *all;
    char reason[480];
    snprintf(reason, sizeof reason, "%s", session->failure.error.text);
    WEFT_TRY(client_comm_exchange(session, comm, label, &word, 1, &all));
    if (mine < 0) return client_error(session, mine, "%s", reason);
    for (uint32_t rank = 0; rank < (comm ? comm->ranks : session->ranks); rank++) {
        if (all[rank] >= 0) continue;
        char name[128];
        client_rank_name(session, comm ? comm->members[rank] : rank, name, sizeof name);
        return client_error(session, all[rank] > -100 ? (enum weft_status)all[rank] : WEFT_ERR_MALFORMED,
                            "%s: %s could not make the group; see its error text", what,
                            name);
    }
    return WEFT_OK;
}

/* ---- engine thread ---- */

static void describe_rank(void *context, uint32_t rank, char *out, size_t out_bytes)
{
    const struct weft_comm *comm = context;
    client_rank_name(comm->session, comm->members[rank], out, out_bytes);
}

/* Hosts of another group with the same ranks; NULL: none. */
static struct client_hosts *find_shared_hosts(const struct weft_comm *comm)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &comm->session->engine->comms) {
        struct weft_comm *other = weft_container_of(node, struct weft_comm, engine_link);
        if (other->ranks != comm->ranks ||
            memcmp(other->members, comm->members, comm->ranks * sizeof *comm->members) != 0)
            continue;
        atomic_fetch_add(&other->hosts->user_count, 1);
        return other->hosts;
    }
    return NULL;
}

/* Finds which ranks share a host. */
static bool find_hosts(struct weft_comm *comm)
{
    struct weft_session *session = comm->session;
    const struct client_hosts *all = session->membership.hosts;
    if ((comm->hosts = find_shared_hosts(comm))) return true;
    uint32_t *host_of = weft_alloc_array(session->env, comm->ranks, sizeof *host_of);
    comm->hosts = client_hosts_alloc(session, comm->ranks);
    for (uint32_t rank = 0; host_of && rank < comm->ranks; rank++)
        host_of[rank] = all->plan.host[comm->members[rank]];
    bool has_memory = host_of && comm->hosts;
    if (has_memory) weft_plan_hosts_init(host_of, comm->ranks, comm->hosts->memory, &comm->hosts->plan);
    if (has_memory)
        has_memory = client_hosts_apply_links_subset(session, comm->members, comm->ranks, comm->hosts->memory,
                                                     &comm->hosts->plan);
    weft_free_bytes(session->env, host_of);
    return has_memory;
}

static void hosts_release(struct weft_env *env, struct client_hosts *hosts)
{
    if (hosts && atomic_fetch_sub(&hosts->user_count, 1) == 1) weft_free_bytes(env, hosts);
}

static enum weft_status create_group(struct weft_comm *comm)
{
    struct weft_session *session = comm->session;
    uint32_t *ids = find_hosts(comm) ? weft_alloc_array(session->env, comm->ranks, sizeof *ids) : NULL;
    if (!ids)
        return weft_error_set(&session->comms->create_error, WEFT_ERR_NO_MEMORY,
                              "no memory for a group of %u ranks", comm->ranks);
    for (uint32_t rank = 0; rank < comm->ranks; rank++)
        ids[rank] = client_rank_endpoint(session, comm->members[rank]);
    struct weft_group_options options;
    client_engine_group_options(session, &options);
    options.rank = comm->rank;
    options.ranks = comm->ranks;
    options.endpoint_ids = ids;
    options.group_id = comm->id;
    options.hosts = &comm->hosts->plan;
    /* of the worst link of the job: equal on all ranks */
    options.cost = weft_group_cost(session->engine->group);
    options.share = session->engine->group; /* memory does not grow with the number of groups */
    options.modes.opens_onehost_later = true;            /* many groups are never used */
    /* the coordinator's report names the lost process; the first operation waits for the report */
    options.modes.defers_peer_loss = true;
    options.names.describe = describe_rank;
    options.names.describe_context = comm;
    enum weft_status status =
        weft_group_create(session->env, &options, &comm->group, &session->comms->create_error);
    weft_free_bytes(session->env, ids);
    return status;
}

static void complete_command(struct weft_comm *comm)
{
    struct weft_loop *loop = comm->session->loop;
    atomic_store_explicit(&comm->state, 2, memory_order_release); /* from here on the caller may free it */
    weft_loop_notify(loop);
}

static void make_on_engine(struct weft_command *command)
{
    struct weft_comm *comm = weft_container_of(command, struct weft_comm, command);
    struct client_engine *engine = comm->session->engine;
    comm->session->comms->create_error = (struct weft_error){0};
    if (engine->failed)
        weft_error_set(&comm->session->comms->create_error, engine->failed, "%s", engine->failed_text);
    else if (create_group(comm) == WEFT_OK) weft_list_append(&engine->comms, &comm->engine_link);
    complete_command(comm);
}

static void leave_group(struct weft_comm *comm)
{
    struct client_engine *engine = comm->session->engine;
    weft_list_remove(&comm->engine_link);
    if (comm->group) weft_group_add_moved(comm->group, &engine->counters.left);
    weft_group_free(comm->group);
    comm->group = NULL;
}

static void leave_on_engine(struct weft_command *command)
{
    struct weft_comm *comm = weft_container_of(command, struct weft_comm, command);
    if (!comm->session->engine->failed) leave_group(comm); /* else the end of the engine leaves it */
    complete_command(comm);
}

void client_comms_leave(struct weft_session *session)
{
    struct weft_list *comms = &session->engine->comms;
    while (!weft_list_empty(comms)) leave_group(weft_list_first(comms, struct weft_comm, engine_link));
}

void client_comms_send_leave(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->engine->comms) {
        struct weft_group *group = weft_container_of(node, struct weft_comm, engine_link)->group;
        if (group) weft_group_leave(group);
    }
}

bool client_comms_have_left(const struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->engine->comms) {
        const struct weft_group *group = weft_container_of(node, struct weft_comm, engine_link)->group;
        if (group && !weft_group_has_left(group)) return false;
    }
    return true;
}

void client_comms_record(struct weft_session *session)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &session->engine->comms)
        weft_group_update_records(weft_container_of(node, struct weft_comm, engine_link)->group);
}

/* ---- caller's thread ---- */

static bool command_is_done(void *context)
{
    struct weft_comm *comm = context;
    return atomic_load_explicit(&comm->state, memory_order_acquire) == 2 || client_failed(comm->session) < 0;
}

/* false: the session has failed, or the engine has computed for a whole deadline. The engine may still run
 * the command, so comm stays in the session's list. */
static bool run_on_engine(struct weft_comm *comm, void (*command)(struct weft_command *command))
{
    struct weft_session *session = comm->session;
    atomic_store(&comm->state, 1);
    comm->command.fn = command;
    weft_loop_post_lazy(session->loop, &comm->command);
    if (client_wait_for(session, command_is_done, comm,
                        client_deadline(session, session->settings.deadline_ns)) < 0)
        return false;
    return atomic_load_explicit(&comm->state, memory_order_acquire) == 2;
}

static void free_memory(struct weft_comm *comm)
{
    struct weft_env *env = comm->session->env;
    weft_list_remove(&comm->session_link);
    weft_free_bytes(env, comm->members);
    hosts_release(env, comm->hosts);
    weft_free_bytes(env, comm);
}

void client_comms_free(struct weft_session *session)
{
    while (!weft_list_empty(&session->comms->list))
        free_memory(weft_list_first(&session->comms->list, struct weft_comm, session_link));
}

static struct weft_comm *comm_new(struct weft_session *session, uint32_t *members, uint32_t ranks,
                                  uint32_t id, const char *name)
{
    struct weft_comm *comm = weft_alloc_zero(session->env, sizeof *comm);
    if (!comm) return NULL;
    comm->session = session;
    comm->members = members;
    comm->ranks = ranks;
    comm->id = id;
    comm->epoch = session->epoch;
    while (comm->rank < ranks && members[comm->rank] != session->rank) comm->rank++;
    WEFT_ASSERT(comm->rank < ranks);
    snprintf(comm->name, sizeof comm->name, "%s", name);
    weft_list_init(&comm->engine_link);
    weft_list_init(&comm->queue);
    weft_list_append(&session->comms->list, &comm->session_link);
    return comm;
}

enum weft_status client_comm_create(struct weft_session *session, uint32_t *members, uint32_t ranks,
                                    uint32_t id, const char *name, struct weft_comm **comm_out)
{
    struct weft_comm *comm = comm_new(session, members, ranks, id, name);
    if (!comm) {
        weft_free_bytes(session->env, members);
        return client_error(session, WEFT_ERR_NO_MEMORY, "%s: no memory for a group of %u ranks", name,
                            ranks);
    }
    if (!run_on_engine(comm, make_on_engine)) {
        WEFT_TRY(client_usable(session));
        return client_error(session, WEFT_ERR_BUSY, "%s: the engine is busy with a computation; call again",
                            name);
    }
    /* of this command: the engine runs them in order */
    const struct weft_error *error = &session->comms->create_error;
    if (error->status < 0) {
        enum weft_status status =
            client_error(session, (enum weft_status)error->status, "%s: %.400s", name, error->text);
        free_memory(comm);
        return status;
    }
    *comm_out = comm;
    return WEFT_OK;
}

enum weft_status weft_comm_free(struct weft_comm *comm)
{
    if (!comm) return WEFT_OK;
    struct weft_session *session = comm->session;
    if (session->live.pid != getpid() || client_failed(session) < 0)
        return WEFT_OK; /* weft_finalize frees it */
    uint32_t open = atomic_load(&comm->open);
    if (open > 0)
        return client_error(session, WEFT_ERR_BUSY,
                            "comm_free: %u operations of group %u (%s) have not ended; wait for them first",
                            open, comm->id, comm->name);
    if (run_on_engine(comm, leave_on_engine)) free_memory(comm);
    return WEFT_OK;
}

uint32_t weft_comm_rank(const struct weft_comm *comm) { return comm ? comm->rank : 0; }
uint32_t weft_comm_ranks(const struct weft_comm *comm) { return comm ? comm->ranks : 0; }
uint32_t weft_comm_id(const struct weft_comm *comm) { return comm ? comm->id : 0; }

uint32_t weft_comm_member(const struct weft_comm *comm, uint32_t rank)
{
    return comm && rank < comm->ranks ? comm->members[rank] : UINT32_MAX;
}
