/* group.c - the queue of each group, and the group of all workers. See group.h. */
#include "client/engine/group.h"

#include "client/engine/engine.h"
#include "client/engine/plan_cache.h"
#include "client/engine/suspicion.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/topology.h"

/* ---- queues ---- */

struct weft_list *client_engine_group_queue(const struct client_group_op *op)
{
    return op->comm ? &op->comm->queue : &op->session->engine->group_queue;
}

static void pump(struct weft_list *queue)
{
    while (!weft_list_empty(queue)) {
        struct client_group_op *op = weft_list_first(queue, struct client_group_op, link);
        /* If an operation could not be posted, the next one would get its number. The failure of the
         * session ends the queue. */
        if (!op->ready || client_failed(op->session) < 0) return;
        struct weft_error error;
        error.status = WEFT_OK, error.text[0] = 0; /* the other fields are written with them */
        enum weft_status status = op->post(op, &error);
        if (status == WEFT_ERR_AGAIN) return; /* the completion of a posted operation pumps again */
        if (status >= 0 && op->stays) return;
        weft_list_remove(&op->link);
        if (status < 0) op->done(op, status, error.text[0] ? error.text : weft_reason_text(status));
    }
}

void client_engine_group_op_done(void *context, enum weft_status status, const char *text)
{
    struct client_group_op *op = context;
    struct weft_list *queue = client_engine_group_queue(op);
    op->coll = NULL;
    op->done(op, status, text); /* the op may be freed now */
    pump(queue);
}

void client_engine_pump_group(struct weft_session *session)
{
    pump(&session->engine->group_queue);
}

void client_engine_pump_all(struct weft_session *session)
{
    struct weft_list *node, *spare;
    pump(&session->engine->group_queue);
    weft_list_foreach (node, spare, &session->engine->comms)
        pump(&weft_container_of(node, struct weft_comm, engine_link)->queue);
}

void client_engine_pump(struct weft_list *queue) { pump(queue); }

void client_engine_queue_group_op_before(struct weft_session *session, struct client_group_op *op,
                                         struct weft_list *position)
{
    op->session = session;
    op->coll = NULL;
    weft_list_insert_before(position, &op->link);
}

void client_engine_queue_group_op(struct weft_session *session, struct client_group_op *op)
{
    op->session = session; /* client_engine_group_queue reads it */
    struct weft_list *queue = client_engine_group_queue(op);
    client_engine_queue_group_op_before(session, op, queue);
    pump(queue);
}

/* ---- a posted operation failed ---- */

uint32_t client_engine_failure_source_rank(const struct weft_session *session, const struct weft_comm *comm,
                                           const struct weft_group *group)
{
    if (!group) return session->rank;
    const uint32_t rank = weft_group_end_rank(group);
    return comm ? comm->members[rank] : rank;
}

void client_engine_suspect_lost_rank(struct weft_session *session, const struct weft_group *group,
                                     uint32_t found_by, const char *text)
{
    if (group && weft_group_ended_by_leave(group))
        client_engine_remote_lost(session, "rank %u: %s", found_by, text);
    else client_engine_suspect(session, WEFT_ERR_PEER_LOST, "rank %u: %s", found_by, text);
}

void client_engine_group_op_failed(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct weft_session *session = op->session;
    if (!text) text = weft_reason_text(status);
    weft_list_append(&session->engine->ended_ops, &op->link);
    const struct weft_group *group = op->comm ? op->comm->group : session->engine->group;
    const uint32_t found_by = client_engine_failure_source_rank(session, op->comm, group);
    if (status == WEFT_ERR_PEER_LOST) client_engine_suspect_lost_rank(session, group, found_by, text);
    else client_fail(session, status, true, "rank %u: %s", found_by, text);
}

enum weft_status client_comm_valid(struct weft_session *session, const struct weft_comm *comm)
{
    if (!comm || comm->epoch == session->epoch) return WEFT_OK;
    return client_error(session, WEFT_ERR_STATE,
                        "group %u (%s) ended when ranks were lost; make it again with those that are left",
                        comm->id, comm->name);
}

/* ---- the group of all workers ---- */

static void describe_rank(void *context, uint32_t rank, char *out, size_t out_bytes)
{
    client_rank_name(context, rank, out, out_bytes);
}

void client_engine_group_options(struct weft_session *session, struct weft_group_options *options)
{
    weft_group_options_init(options);
    options->transport = session->engine->transport;
    options->loop = session->loop;
    options->events = session->flight.events;
    options->recorder = session->flight.recorder;
    options->straggler_time = &session->totals.straggler_time;
    options->epoch = session->epoch;
    options->chunk_bytes = weft_config_u64(session->settings.config, "collective.chunk_bytes");
    options->inflight_max = (uint32_t)weft_config_u64(session->settings.config, "collective.inflight");
    options->modes.keeps_affinity = !weft_config_bool(session->settings.config, "collective.move_threads");
    options->deadline_ns = session->settings.deadline_ns;
    /* The next epoch needs the connections, and the coordinator names the lost rank. With the full timeout
     * a cut connection could end the job by a wrong loss. Half the deadline is less than the other ranks
     * wait for this rank in the agreement. */
    if (session->membership.is_elastic && options->release_timeout_ns < session->settings.deadline_ns / 2)
        options->release_timeout_ns = session->settings.deadline_ns / 2;
    options->modes.ids_increase = true; /* comm/comm.c has the reason */
}

enum weft_status client_engine_create_group(struct weft_session *session, struct weft_error *error)
{
    uint32_t *ids = weft_alloc_array(session->env, session->ranks, sizeof *ids);
    if (!ids)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a group of %u ranks", session->ranks);
    for (uint32_t i = 0; i < session->membership.member_count; i++)
        if (!session->membership.members[i].is_shard && session->membership.members[i].index < session->ranks)
            ids[session->membership.members[i].index] = session->membership.members[i].endpoint_first;
    struct weft_group_options options;
    client_engine_group_options(session, &options);
    options.rank = session->rank;
    options.ranks = session->ranks;
    options.endpoint_ids = ids;
    options.hosts = &atomic_load(&session->membership.hosts)->plan;
    options.group_id = CLIENT_GROUP_ID;
    /* a lost rank is reported by the coordinator; a rank that left in order may not be needed */
    options.modes.defers_peer_loss = session->membership.is_elastic;
    options.retune = client_plans_retune(session);
    options.share = session->engine->group; /* NULL, or the group of the previous epoch */
    options.names.describe = describe_rank;
    options.names.describe_context = session;
    options.names.describe_subject = session->engine->ops.tensor->describe_subject;
    enum weft_status status = weft_group_create(session->env, &options, &session->engine->group, error);
    weft_free_bytes(session->env, ids);
    if (status < 0)
        return weft_error_set(error, status, "cannot make the group of all workers: %s",
                              weft_reason_text(status));
    client_plans_load(session);
    return WEFT_OK;
}
