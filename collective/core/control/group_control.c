/* group_control.c - control messages between the ranks of a group, and the loss of a peer.
 *
 * FAIL: the group has ended at the sender; this rank ends with its status and text. STATUS_REQUEST and
 * STATUS_REPLY: deadline.c. LEAVE: the sender has freed its group. They arrive through control_router.c.
 * Every rank learns of a lost peer, also a rank that exchanges no data with it.
 *
 * The state of a peer is small and is allocated with the first event (peer_table.c). The first FAIL wins. A
 * peer that left is not needed by operations that it took part in. Any later operation ends the group. */
#include "collective/core/control/group_control.h"

#include "collective/core/control/call_digest.h"
#include "collective/core/control/control_router.h"
#include "collective/core/control/deadline.h"
#include "collective/core/control/peer_table.h"
#include "collective/core/group.h"
#include "collective/core/op.h"
#include "collective/core/op_pool.h"
#include "collective/core/retune.h"

#include <string.h>

/* ---- broadcasts ---- */
static void broadcast_sent(struct weft_completion *completion, enum weft_status status)
{
    struct broadcast *broadcast = weft_container_of(completion, struct broadcast, completion);
    broadcast->busy = false;
    group_transport_op_done(broadcast->group);
}

static struct coll_header header_of(const struct broadcast *broadcast)
{
    const struct weft_group *group = broadcast->group;
    if (broadcast->header) return *broadcast->header;
    struct coll_header header = {.type = broadcast->type,
                                 .group = group->group_id,
                                 .epoch = group->epoch,
                                 .rank = group->rank,
                                 .status = broadcast->status,
                                 .sequence = broadcast->sequence};
    if (broadcast->type == COLL_MESSAGE_FAIL) header.count = group->departures.ended_by_leave;
    if (broadcast->type == COLL_MESSAGE_LEAVE) header.count = coll_path.vote(group);
    return header;
}

/* Both stay valid while the broadcast is busy. */
static size_t payload_of(const struct broadcast *broadcast, const void **payload_out)
{
    const struct weft_group *group = broadcast->group;
    if (broadcast->header) return 0;
    if (broadcast->type == COLL_MESSAGE_FAIL) return strlen(*payload_out = group->failure.fail_text);
    if (broadcast->type != COLL_MESSAGE_ONEHOST_SEGMENT) return 0;
    return coll_path.address(group, payload_out);
}

static void broadcast_continue(struct broadcast *broadcast)
{
    struct weft_group *group = broadcast->group;
    uint8_t bytes[COLL_HEADER_BYTES + GROUP_INLINE_BYTES_MAX];
    struct coll_header header = header_of(broadcast);
    const void *payload = NULL;
    const size_t payload_bytes = payload_of(broadcast, &payload);
    coll_header_write(bytes, &header);
    struct weft_message message = {
        .tag = group_control_tag(group), .header = bytes, .header_bytes = COLL_HEADER_BYTES};
    if (payload_bytes <= GROUP_INLINE_BYTES_MAX) { /* inline: behind the header */
        if (payload_bytes > 0) memcpy(bytes + COLL_HEADER_BYTES, payload, payload_bytes);
        message.header_bytes += (uint32_t)payload_bytes;
    } else {
        message.payload = payload;
        message.payload_bytes = payload_bytes;
    }
    while (broadcast->next_rank < group->ranks) {
        uint32_t rank = broadcast->next_rank;
        if (rank != group->rank) {
            if (broadcast->type == COLL_MESSAGE_LEAVE && !broadcast->header) {
                call_digest_write(group, rank, &header);
                coll_header_write(bytes, &header);
            }
            enum weft_status status =
                weft_transport_send(group->peer_table->peers[rank], &message, &broadcast->completion);
            if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) {
                group->progress.needs_retry = true;
                group_schedule(group);
                return;
            }
            if (status < 0) {
                broadcast->next_rank = rank + 1; /* before finish, which may be the last one */
                weft_completion_finish(&broadcast->completion, WEFT_OK);
                if (!broadcast->busy) return;
                continue;
            }
        }
        broadcast->next_rank = rank + 1;
    }
}

static void broadcast_start(struct broadcast *broadcast, struct weft_group *group)
{
    broadcast->group = group;
    broadcast->next_rank = 0;
    broadcast->busy = true;
    weft_completion_init(&broadcast->completion, group->ranks - 1, broadcast_sent);
    group->sending.outstanding++;
    broadcast_continue(broadcast);
}

void group_control_broadcast(struct broadcast *broadcast, struct weft_group *group,
                             enum coll_message_type type, uint64_t sequence, enum weft_status status)
{
    if (broadcast->busy || group->ranks == 1) return;
    broadcast->type = (uint8_t)type;
    broadcast->sequence = sequence;
    broadcast->status = status;
    broadcast_start(broadcast, group);
}

void group_control_broadcast_header(struct broadcast *broadcast, struct weft_group *group,
                                    const struct coll_header *header)
{
    WEFT_ASSERT(!broadcast->busy && group->ranks > 1);
    broadcast->header = header;
    broadcast_start(broadcast, group);
}

#define BROADCASTS 7u
static size_t broadcasts_of(struct weft_group *group, struct broadcast *all[BROADCASTS])
{
    struct broadcast *always[] = {&group->control.fail, &group->control.status_request, &group->control.leave,
                                  &group->control.offer, &group->control.vote};
    memcpy(all, always, sizeof always);
    if (!group->planning.retune) return 5;
    all[5] = &group->planning.retune->table;
    all[6] = &group->planning.retune->commit;
    return 7;
}

static void replies_send(struct weft_group *group);

void group_control_retry(struct weft_group *group)
{
    struct broadcast *all[BROADCASTS];
    size_t count = broadcasts_of(group, all);
    for (size_t i = 0; i < count; i++)
        if (all[i]->busy) broadcast_continue(all[i]);
    replies_send(group);
    retune_retry(group);
}

void group_control_drop_unsent(struct weft_group *group)
{
    struct broadcast *all[BROADCASTS];
    size_t count = broadcasts_of(group, all);
    for (size_t i = 0; i < count; i++)
        while (all[i]->busy && all[i]->next_rank < group->ranks)
            if (all[i]->next_rank++ != group->rank) weft_completion_finish(&all[i]->completion, WEFT_OK);
}

/* ---- status replies, GROUP_REPLIES_MAX in flight ---- */
static void reply_sent(struct weft_completion *completion, enum weft_status status)
{
    struct status_reply *status_reply = weft_container_of(completion, struct status_reply, completion);
    struct weft_group *group = status_reply->group;
    status_reply->busy = false;
    if (!group->progress.is_closing && group->failure.fail_status == WEFT_OK) replies_send(group);
    group_transport_op_done(group);
}

/* Returns false if the transport must be retried. After any other error the rank gets no reply. */
static bool reply_send(struct weft_group *group, struct status_reply *status_reply, uint32_t rank)
{
    struct coll_header header = {.type = COLL_MESSAGE_STATUS_REPLY,
                                 .group = group->group_id,
                                 .epoch = group->epoch,
                                 .rank = group->rank,
                                 .sequence = group->peer_states[rank].reply_for_seq,
                                 .count = group->ops.sequence};
    deadline_fill_reply(group, header.sequence, &header);
    uint8_t bytes[COLL_HEADER_BYTES];
    coll_header_write(bytes, &header);
    struct weft_message message = {
        .tag = group_control_tag(group), .header = bytes, .header_bytes = sizeof bytes};
    weft_completion_init(&status_reply->completion, 1, reply_sent);
    enum weft_status status =
        weft_transport_send(group->peer_table->peers[rank], &message, &status_reply->completion);
    if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) return false;
    if (status != WEFT_IN_PROGRESS) return true;
    status_reply->group = group;
    status_reply->busy = true;
    group->sending.outstanding++;
    return true;
}

static void replies_send(struct weft_group *group)
{
    for (uint32_t i = 0; i < GROUP_REPLIES_MAX && group->control.reply_queue_first != GROUP_RANK_NONE; i++) {
        struct status_reply *status_reply = &group->ops.op_pool->replies[i];
        while (!status_reply->busy && group->control.reply_queue_first != GROUP_RANK_NONE) {
            struct peer_state *peer_state = &group->peer_states[group->control.reply_queue_first];
            if (!reply_send(group, status_reply, group->control.reply_queue_first)) {
                group->progress.needs_retry = true;
                group_schedule(group);
                return;
            }
            group->control.reply_queue_first = peer_state->reply_queue_next;
            peer_state->reply_is_wanted = false;
        }
    }
    if (group->control.reply_queue_first == GROUP_RANK_NONE) return;
    group->progress.needs_retry = true; /* all replies are in flight, perhaps for other groups */
    group_schedule(group);
}

/* Without memory for the peer state no reply is sent. */
static void handle_status_request(struct weft_group *group, uint32_t rank, uint64_t sequence)
{
    deadline_request_received(group, sequence);
    struct peer_state *peer_state = peer_state_get(group, rank);
    if (!peer_state) return;
    peer_state->reply_for_seq = sequence;
    if (!peer_state->reply_is_wanted) {
        peer_state->reply_is_wanted = true;
        peer_state->reply_queue_next = GROUP_RANK_NONE;
        if (group->control.reply_queue_first == GROUP_RANK_NONE) group->control.reply_queue_first = rank;
        else group->peer_states[group->control.reply_queue_last].reply_queue_next = rank;
        group->control.reply_queue_last = rank;
    }
    replies_send(group);
}

/* ---- received messages ---- */
bool group_control_require_all(struct weft_group *group, uint64_t sequence)
{
    if (group->departures.lost && sequence >= group->ops.sequence) { /* a new operation needs all ranks */
        group_control_end_lost(group);
        return false;
    }
    for (uint32_t rank = 0; rank < group->ranks && group->departures.left_count > 0; rank++) {
        if (!group->peer_states[rank].has_left || group->peer_states[rank].left_after_seq > sequence)
            continue;
        char name[128];
        group_describe(group, rank, name, sizeof name);
        group->departures.ended_by_leave =
            group->failure.fail_status == WEFT_OK && !group->progress.is_closing;
        group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before operation %llu", name,
                  (unsigned long long)sequence);
        return false;
    }
    return true;
}

bool group_control_require_peer(struct weft_group *group, uint32_t rank, enum weft_coll_kind kind)
{
    if (group->departures.lost) { /* the loss of any rank ends the group */
        group_control_end_lost(group);
        return false;
    }
    if (!peer_state_of(group, rank).has_left) return true;
    /* the earlier send can still be received */
    if (kind == WEFT_COLL_RECV && peer_has_unreceived_sends(group, rank)) return true;
    char name[128];
    group_describe(group, rank, name, sizeof name);
    group->departures.ended_by_leave = group->failure.fail_status == WEFT_OK && !group->progress.is_closing;
    group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before a %s", name,
              weft_coll_kind_name(kind));
    return false;
}

bool weft_group_peer_has_left(const struct weft_group *group, uint32_t rank)
{
    return rank < group->ranks && peer_state_of(group, rank).has_left;
}

bool weft_group_ended_by_leave(const struct weft_group *group) { return group->departures.ended_by_leave; }

static void handle_leave(struct weft_group *group, const struct coll_header *header)
{
    const uint32_t rank = header->rank;
    struct peer_state *peer_state = peer_state_get(group, rank);
    if (!peer_state) {
        char name[128];
        group_describe(group, rank, name, sizeof name);
        group_end(group, WEFT_ERR_NO_MEMORY, true, "%s has left the group, and there is no memory to note it",
                  name);
        return;
    }
    if (!peer_state->has_left) group->departures.left_count++;
    peer_state->has_left = true;
    peer_state->left_after_seq = header->sequence;
    call_digest_read(peer_state, header);
    retune_peer_left(group, rank);
    coll_path.control(group, rank, header, NULL, 0);
    /* every posted operation needs the rank */
    if (group->ops.active_count > 0 && group->ops.sequence > 0)
        group_control_require_all(group, group->ops.sequence - 1);
}

/* text is UNTRUSTED. */
static void end_with_remote_failure(struct weft_group *group, enum weft_status status, bool by_leave,
                                    char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    bool known = status < 0 && status > -100;
    group->failure.failed_remotely = group->failure.fail_status == WEFT_OK;
    if (group->failure.fail_status == WEFT_OK)
        group->departures.ended_by_leave = by_leave && status == WEFT_ERR_PEER_LOST;
    group_end(group, known ? status : WEFT_ERR_ABORTED, false, "%s",
              text[0] ? text : "another rank ended the group");
}

static void remote_failure_received(struct weft_completion *completion, enum weft_status status)
{
    struct remote_failure *remote_failure = weft_container_of(completion, struct remote_failure, completion);
    struct weft_group *group = remote_failure->group;
    if (status < 0) remote_failure->text[0] = 0;
    if (!group->progress.is_closing)
        end_with_remote_failure(group, remote_failure->status, remote_failure->by_leave,
                                remote_failure->text);
    group_transport_op_done(group);
}

/* Receives the text behind the header. Returns false if there is none, or no memory for it. */
static bool remote_failure_receive_text(struct weft_group *group, struct weft_arrival *arrival,
                                        enum weft_status status, bool by_leave)
{
    size_t bytes = arrival->payload_bytes;
    if (bytes == 0 || bytes >= GROUP_TEXT_BYTES ||
        !(group->control.remote_failure = weft_alloc_zero(group->env, sizeof *group->control.remote_failure)))
        return false;
    struct remote_failure *remote_failure = group->control.remote_failure;
    remote_failure->group = group;
    remote_failure->status = status;
    remote_failure->by_leave = by_leave;
    weft_completion_init(&remote_failure->completion, 1, remote_failure_received);
    if (weft_transport_accept(group->transport, arrival, remote_failure->text, bytes,
                              &remote_failure->completion) != WEFT_IN_PROGRESS)
        return false;
    group->sending.outstanding++;
    return true;
}

/* The first FAIL ends the group. Consumes the arrival. */
static void handle_fail(struct weft_group *group, struct weft_arrival *arrival,
                        const struct coll_header *header, const uint8_t *tail, size_t tail_bytes)
{
    if (group->control.remote_failure) { /* another FAIL is being received */
        weft_transport_discard(group->transport, arrival);
        return;
    }
    group->failure.fail_rank = header->rank;
    const enum weft_status status = header->status < 0 ? (enum weft_status)header->status : WEFT_ERR_ABORTED;
    const bool by_leave = header->count == 1;
    if (remote_failure_receive_text(group, arrival, status, by_leave)) return;
    char text[GROUP_INLINE_BYTES_MAX + 1] = {0};
    memcpy(text, tail, tail_bytes);
    weft_transport_discard(group->transport, arrival);
    end_with_remote_failure(group, status, by_leave, text);
}

void group_control_receive(struct weft_group *group, struct weft_arrival *arrival)
{
    struct coll_header header;
    uint8_t tail[GROUP_INLINE_BYTES_MAX];
    size_t tail_bytes =
        arrival->header_bytes > COLL_HEADER_BYTES ? arrival->header_bytes - COLL_HEADER_BYTES : 0;
    if (tail_bytes > sizeof tail) tail_bytes = 0; /* no sender of this version does that */
    memcpy(tail, arrival->header + COLL_HEADER_BYTES, tail_bytes);
    bool fits = coll_header_read(arrival->header, arrival->header_bytes - tail_bytes, &header) &&
                header.group == group->group_id && header.epoch == group->epoch &&
                header.rank < group->ranks && header.rank != group->rank &&
                weft_peer_id(group->peer_table->peers[header.rank]) == arrival->peer_id;
    if (!fits)
        weft_log(group->env, WEFT_LOG_WARN, "collective",
                 "group %u: ignored a message of endpoint %u that is none of this group and epoch",
                 group->group_id, arrival->peer_id);
    if (fits && header.type == COLL_MESSAGE_FAIL && group->failure.fail_status == WEFT_OK &&
        !group->progress.is_closing) {
        handle_fail(group, arrival, &header, tail, tail_bytes);
        return;
    }
    weft_transport_discard(group->transport, arrival);
    if (!fits || group->failure.fail_status < 0 || group->progress.is_closing) return;
    switch (header.type) {
    case COLL_MESSAGE_STATUS_REQUEST: handle_status_request(group, header.rank, header.sequence); break;
    case COLL_MESSAGE_STATUS_REPLY: deadline_reply_received(group, header.rank, &header); break;
    case COLL_MESSAGE_LEAVE: handle_leave(group, &header); break;
    case COLL_MESSAGE_ONEHOST_SEGMENT:
    case COLL_MESSAGE_ONEHOST_VOTE: coll_path.control(group, header.rank, &header, tail, tail_bytes); break;
    case COLL_MESSAGE_RETUNE_REPORT:
    case COLL_MESSAGE_RETUNE_TABLE:
    case COLL_MESSAGE_RETUNE_ACK:
    case COLL_MESSAGE_RETUNE_COMMIT: retune_receive(group, &header); break;
    default: break;
    }
}

/* A peer may be lost because it completed and closed. Operations that need it fail by their transfers. The
 * others get GROUP_LOST_DELAY_NS to complete without it. */
static void note_lost_rank(struct weft_group *group, uint32_t rank, enum weft_status status)
{
    if (peer_state_of(group, rank).has_left || group->departures.lost || group->progress.is_closing ||
        group->failure.fail_status < 0)
        return;
    group->departures.lost = true;
    group->departures.lost_rank = rank;
    group->departures.lost_status = status;
    group->departures.lost_until_ns = weft_now_ns(group->env) + GROUP_LOST_DELAY_NS;
    group_schedule(group);
}

void group_control_peer_lost(struct weft_group *group, uint32_t peer_id, enum weft_status status)
{
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        struct weft_peer *peer = group->peer_table->peers[rank];
        if (peer && weft_peer_id(peer) == peer_id) note_lost_rank(group, rank, status);
    }
}

void group_control_end_lost(struct weft_group *group)
{
    char name[128];
    group_describe(group, group->departures.lost_rank, name, sizeof name);
    struct weft_coll *oldest =
        group->ops.active_count > 0 ? weft_list_first(&group->ops.active, struct weft_coll, link) : NULL;
    if (oldest && oldest->flags.is_sendrecv) {
        group_end(group, group->departures.lost_status, true, "lost %s during a %s: %s", name,
                  weft_coll_kind_name(oldest->args.kind), weft_reason_text(group->departures.lost_status));
        return;
    }
    group_end(group, group->departures.lost_status, true, "lost %s %s operation %llu: %s", name,
              oldest ? "during" : "before",
              (unsigned long long)(oldest ? oldest->sequence : group->ops.sequence),
              weft_reason_text(group->departures.lost_status));
}

enum weft_status group_control_start(struct weft_group *group, bool defers_peer_loss,
                                     struct weft_error *error)
{
    group->control.reply_queue_first = GROUP_RANK_NONE;
    enum weft_status status = control_router_add(group);
    if (status < 0) return weft_error_set(error, status, "no memory for a group of %u ranks", group->ranks);
    for (uint32_t rank = 0; rank < group->ranks && !group->departures.lost; rank++) {
        struct weft_peer *peer = group->peer_table->peers[rank];
        if (peer && weft_peer_status(peer) < 0) note_lost_rank(group, rank, weft_peer_status(peer));
    }
    if (group->departures.lost) group_control_end_lost(group);
    if (group->failure.fail_status == WEFT_OK || defers_peer_loss) return WEFT_OK;
    return weft_error_set(error, group->failure.fail_status, "%s", group->failure.fail_text);
}
