/* message.c - a message of a connection, to the function of its kind. */
#include "coordinator/coordinator_state.h"
#include "coordinator/members/members.h"
#include "coordinator/takeover/records.h"

static void member_message(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                           const Weft__Control__Control *message)
{
    struct coordinator_member *member = connection->member;
    member->last_received_ns = connection->last_received_ns;
    /* drain the connection without effect */
    if (member->state >= MEMBER_LEFT || coordinator->state == COORDINATOR_ENDED) return;
    bool worker = member->role == WEFT__CONTROL__ROLE__ROLE_WORKER,
         running = coordinator->state == COORDINATOR_RUNNING && !member->newcomer;
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_HEARTBEAT:
        if (message->heartbeat->wait_reason)
            coordinator_send_wait_reason(coordinator, connection->id, member);
        if (message->heartbeat->report) coordinator_report(coordinator, member, message->heartbeat->report);
        if (message->heartbeat->progress)
            coordinator_stall_progress(coordinator, member, message->heartbeat->progress);
        coordinator_heartbeat(coordinator, member, message->heartbeat);
        return;
    case WEFT__CONTROL__CONTROL__BODY_ENDPOINTS:
        coordinator_endpoints(coordinator, member, message->endpoints);
        break;
    case WEFT__CONTROL__CONTROL__BODY_READY: coordinator_ready(coordinator, member, message->ready); break;
    case WEFT__CONTROL__CONTROL__BODY_DECLARE:
        if (worker && running) coordinator_declare(coordinator, member, message->declare);
        else
            coordinator_member_lost(coordinator, member,
                                    worker ? "it declared a tensor before Go"
                                           : "it declared a tensor, as only workers do");
        break;
    case WEFT__CONTROL__CONTROL__BODY_DECLARED_OK:
        if (!worker && running) coordinator_declared_ok(coordinator, member, message->declared_ok);
        else coordinator_member_lost(coordinator, member, "it sent DeclaredOk when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_TENSOR_FREE:
        if (worker && running) coordinator_tensor_free(coordinator, member, message->tensor_free->tensor);
        else coordinator_member_lost(coordinator, member, "it sent TensorFree when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PART:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_DATA:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH:
        if (worker && running) coordinator_parts_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it sent a worker's part of a snapshot unasked");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_ARMED:
        if (running) coordinator_snapshot_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it armed a snapshot before Go");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED:
    case WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES:
        if (!worker && running) coordinator_snapshot_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it sent a part of a snapshot unasked");
        break;
    case WEFT__CONTROL__CONTROL__BODY_DRAIN:
        if (!worker && running && message->drain->shard == member->index)
            coordinator_drain(coordinator, member);
        else coordinator_member_lost(coordinator, member, "it sent Drain when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SHARD_KNOWN:
        if (running) coordinator_add_known(coordinator, member, message->shard_known);
        else coordinator_member_lost(coordinator, member, "it sent ShardKnown when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SLOT_COPIED:
    case WEFT__CONTROL__CONTROL__BODY_SLOT_QUIET:
        if (!worker && running) coordinator_move_message(coordinator, member, message);
        else coordinator_member_lost(coordinator, member, "it reported a slot when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_WEIGHT_HASH:
        if (worker && running) coordinator_weight_hash(coordinator, member, message->weight_hash);
        else coordinator_member_lost(coordinator, member, "it sent a WeightHash when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_SHRINK:
        if (worker && running) coordinator_shrink(coordinator, member, message->shrink);
        else coordinator_member_lost(coordinator, member, "it sent Shrink when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_JOIN:
        if (worker && running) coordinator_join(coordinator, member, message->join);
        else coordinator_member_lost(coordinator, member, "it sent Join when that was not due");
        break;
    case WEFT__CONTROL__CONTROL__BODY_ABORT:
        if (coordinator->state == COORDINATOR_RUNNING &&
            (member->state != MEMBER_READY || member == coordinator->addition.shard)) {
            /* an admitted newcomer cannot start: only it is lost */
            coordinator_member_lost(coordinator, member, message->abort->text);
            break;
        }
        coordinator_abort(coordinator, member, (enum weft_status)message->abort->status,
                          "aborted by %s: %.300s", member->label, message->abort->text);
        break;
    case WEFT__CONTROL__CONTROL__BODY_LEAVE: coordinator_leave(coordinator, member, message->leave); break;
    default:
        coordinator_member_lost(coordinator, member, "it sent a message that only the coordinator sends");
        break;
    }
    if (member->state == MEMBER_LOST && connection->state != CONNECTION_CLOSING)
        coordinator_close_connection(coordinator, connection, "protocol broken");
}

static const char *plan(struct weft_coordinator *coordinator, bool by_load, struct coordinator_plan *plan,
                        Weft__Control__Rebalance *answer)
{
    const char *why = coordinator_rebalance_plan(coordinator, by_load, plan);
    if (why) return why;
    answer->n_moves = plan->count;
    answer->moves = plan->pointers;
    answer->n_speeds = coordinator->slots.speed_count;
    answer->speeds = coordinator->slots.speeds;
    return NULL;
}

/* An operator's request: the same message answers it, with "" or the reason why it is refused. */
static void operate(struct weft_coordinator *coordinator, const struct coordinator_connection *connection,
                    const Weft__Control__Control *message)
{
    Weft__Control__Drain drain = WEFT__CONTROL__DRAIN__INIT;
    Weft__Control__Rebalance rebalance = WEFT__CONTROL__REBALANCE__INIT;
    Weft__Control__Control answer = WEFT__CONTROL__CONTROL__INIT;
    struct coordinator_plan planned = {0};
    const bool is_drain = message->body_case == WEFT__CONTROL__CONTROL__BODY_DRAIN;
    const bool by_load = !is_drain && message->rebalance->by_load;
    if (is_drain) drain.shard = message->drain->shard;
    rebalance.plan = !is_drain && message->rebalance->plan;
    const char *why = is_drain         ? coordinator_drain_requested(coordinator, drain.shard)
                      : rebalance.plan ? plan(coordinator, by_load, &planned, &rebalance)
                                       : coordinator_rebalance_begin(coordinator, by_load);
    if (!rebalance.plan || why)
        weft_log(coordinator->env, WEFT_LOG_INFO, "coordinator", "%s requests that %s%s%s%s",
                 connection->peer, is_drain ? "a shard leaves" : "slots move until the shards are even",
                 by_load ? ", by their load" : "", why ? "; refused: " : "", why ? why : "");
    drain.text = rebalance.text = (char *)(why ? why : "");
    answer.body_case = message->body_case;
    if (is_drain) answer.drain = &drain;
    else answer.rebalance = &rebalance;
    coordinator_send_to(coordinator, connection->id, &answer);
    coordinator_plan_free(coordinator, &planned);
}

static void observer_message(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                             const Weft__Control__Control *message)
{
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HEARTBEAT) {
        if (message->heartbeat->wait_reason) coordinator_send_wait_reason(coordinator, connection->id, NULL);
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_LEAVE) {
        coordinator_close_connection(coordinator, connection, "left");
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HOST_HEALTH) {
        coordinator_host_health(coordinator, message->host_health);
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_DRAIN ||
        message->body_case == WEFT__CONTROL__CONTROL__BODY_REBALANCE) {
        operate(coordinator, connection, message);
        return;
    }
    if (message->body_case != WEFT__CONTROL__CONTROL__BODY_STATUS_REQUEST) {
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_STATE,
            "an observer may only request the status, report the health of a host, drain a shard or "
            "rebalance the slots");
        return;
    }
    char *json = weft_coordinator_status_json(coordinator);
    if (!json) {
        coordinator_refuse(coordinator, connection, WEFT_ERR_NO_MEMORY,
                           "the coordinator has no memory for its status");
        return;
    }
    Weft__Control__StatusReply reply = WEFT__CONTROL__STATUS_REPLY__INIT;
    Weft__Control__Control answer = WEFT__CONTROL__CONTROL__INIT;
    reply.json = json;
    answer.body_case = WEFT__CONTROL__CONTROL__BODY_STATUS_REPLY;
    answer.status_reply = &reply;
    coordinator_send_to(coordinator, connection->id, &answer);
    weft_free_bytes(coordinator->env, json);
}

void weft_coordinator_message(struct weft_coordinator *coordinator, uint64_t id,
                              const Weft__Control__Control *message)
{
    struct coordinator_connection *connection = coordinator_connection_find(coordinator, id);
    if (!connection || coordinator_records_is_fenced(coordinator)) return;
    connection->last_received_ns = weft_now_ns(coordinator->env);
    switch (connection->state) {
    case CONNECTION_NEW:
        if (message->body_case == WEFT__CONTROL__CONTROL__BODY_HELLO)
            coordinator_hello(coordinator, connection, message->hello);
        else
            coordinator_refuse(coordinator, connection, WEFT_ERR_STATE,
                               "the first message to a coordinator must be Hello");
        break;
    case CONNECTION_MEMBER: member_message(coordinator, connection, message); break;
    case CONNECTION_OBSERVER: observer_message(coordinator, connection, message); break;
    case CONNECTION_CLOSING: break;
    }
}

void weft_coordinator_refuse_resume(struct weft_coordinator *coordinator, uint64_t id,
                                    const Weft__Control__Resume *request)
{
    struct coordinator_connection *connection = coordinator_connection_find(coordinator, id);
    if (!connection) return;
    const bool is_member =
        request->member < coordinator->membership.member_count &&
        coordinator->membership.members[request->member]->incarnation == request->incarnation;
    if (coordinator->state == COORDINATOR_ENDED && !coordinator->secret)
        coordinator_refuse(coordinator, connection, WEFT_ERR_PEER_LOST, "job %.100s is over: %.300s",
                           coordinator->job,
                           coordinator->end.text[0] ? coordinator->end.text : "it ended in order");
    else if (coordinator->secret) /* the sender has proved nothing */
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_PEER_LOST,
            "this process counts as lost at the coordinator, or the coordinator serves another job");
    else if (is_member)
        coordinator_refuse(coordinator, connection, WEFT_ERR_PEER_LOST,
                           "%.300s counts as lost at the coordinator; the job has ended for it",
                           coordinator->membership.members[request->member]->label);
    else
        coordinator_refuse(
            coordinator, connection, WEFT_ERR_PEER_LOST,
            "the coordinator of job %.100s has no member %u of incarnation %llu: another job listens at "
            "its address",
            coordinator->job, request->member, (unsigned long long)request->incarnation);
}
