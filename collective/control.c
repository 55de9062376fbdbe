/* control.c - news between the ranks of a group that belong to no operation's data.
 *
 * One receive per peer stays posted on the group's control tag. It brings FAIL (the sender's group has
 * ended: end too, with its status and text), ASK and ANSWER (deadline.c), LEAVE (the sender freed its
 * group in good order). And it fails when the peer dies, so that every rank learns of a death at once,
 * also those that exchange nothing with the dead.
 *
 * A peer that left is not missed by operations it has taken part in; one it has not makes the group end. */
#include "collective/host.h"

#include <string.h>

static void control_post(struct control *control);

/* ---- to everybody ---- */
static void broadcast_sent(struct weft_completion *completion, enum weft_status status)
{
    struct broadcast *broadcast = weft_container_of(completion, struct broadcast, completion);
    broadcast->busy = false;
    group_released(broadcast->group);
}

static void broadcast_go_on(struct broadcast *broadcast)
{
    struct weft_group *group = broadcast->group;
    uint8_t bytes[COLL_HEADER_BYTES];
    coll_header_write(bytes, &broadcast->header);
    struct weft_message message = {.tag = group_control_tag(group), .header = bytes, .header_bytes = sizeof bytes};
    message.payload = broadcast->payload;
    message.payload_bytes = broadcast->payload_bytes;
    while (broadcast->next_rank < group->ranks) {
        uint32_t rank = broadcast->next_rank;
        if (rank != group->rank) {
            enum weft_status status = weft_transport_send(group->controls[rank].peer, &message, &broadcast->completion);
            if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) {
                group->retry = true;
                group_kick(group);
                return;
            }
            if (status < 0) {
                broadcast->next_rank = rank + 1; /* before finish: it may be the last one */
                weft_completion_finish(&broadcast->completion, WEFT_OK);
                if (!broadcast->busy) return;
                continue;
            }
        }
        broadcast->next_rank = rank + 1;
    }
}

void control_send_all(struct broadcast *broadcast, struct weft_group *group, enum coll_message_type type, uint64_t sequence,
                      enum weft_status status, const void *payload, size_t payload_bytes)
{
    if (broadcast->busy || group->ranks == 1) return;
    broadcast->group = group;
    broadcast->header = (struct coll_header){.type = (uint8_t)type, .group = group->group_id, .epoch = group->epoch, .rank = group->rank,
                                             .status = status, .sequence = sequence};
    broadcast->payload = payload;
    broadcast->payload_bytes = payload_bytes;
    broadcast->next_rank = 0;
    broadcast->busy = true;
    weft_completion_init(&broadcast->completion, group->ranks - 1, broadcast_sent);
    group->outstanding++;
    broadcast_go_on(broadcast);
}

void control_retry(struct weft_group *group)
{
    struct broadcast *all[] = {&group->fail, &group->ask, &group->leave, &group->offer, &group->vote};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->busy) broadcast_go_on(all[i]);
}

void control_give_up(struct weft_group *group)
{
    struct broadcast *all[] = {&group->fail, &group->ask, &group->leave, &group->offer, &group->vote};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        while (all[i]->busy && all[i]->next_rank < group->ranks)
            if (all[i]->next_rank++ != group->rank) weft_completion_finish(&all[i]->completion, WEFT_OK);
}

/* ---- what comes in ---- */
static void answer_sent(struct weft_completion *completion, enum weft_status status)
{
    struct control *control = weft_container_of(completion, struct control, answer_completion);
    control->answer_busy = false;
    group_released(control->group);
}

static void answer(struct control *control, uint64_t sequence)
{
    struct weft_group *group = control->group;
    deadline_asked(group, sequence);
    if (control->answer_busy) return;
    struct coll_header header = {.type = COLL_MESSAGE_ANSWER, .group = group->group_id, .epoch = group->epoch, .rank = group->rank,
                                 .sequence = sequence, .count = group->sequence};
    uint8_t bytes[COLL_HEADER_BYTES];
    coll_header_write(bytes, &header);
    struct weft_message message = {.tag = group_control_tag(group), .header = bytes, .header_bytes = sizeof bytes};
    weft_completion_init(&control->answer_completion, 1, answer_sent);
    if (weft_transport_send(control->peer, &message, &control->answer_completion) != WEFT_IN_PROGRESS) return; /* counts as no answer */
    control->answer_busy = true;
    group->outstanding++;
}

bool control_all_stay(struct weft_group *group, uint64_t sequence)
{
    if (group->lost && sequence >= group->sequence) { /* a new operation needs everybody */
        control_end_lost(group);
        return false;
    }
    for (uint32_t rank = 0; rank < group->ranks && group->left_count > 0; rank++) {
        if (!group->controls[rank].left || group->controls[rank].left_after > sequence) continue;
        char name[128];
        group_describe(group, rank, name, sizeof name);
        group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before operation %llu", name, (unsigned long long)sequence);
        return false;
    }
    return true;
}

static void left(struct control *control, uint64_t after)
{
    struct weft_group *group = control->group;
    if (!control->left) group->left_count++;
    control->left = true;
    control->left_after = after;
    if (group->active_count > 0) control_all_stay(group, group->sequence - 1); /* every posted number needs it */
}

static void received(struct control *control)
{
    struct weft_group *group = control->group;
    struct coll_header header;
    bool fits = coll_header_read(control->receive.header, control->receive.header_bytes, &header) && header.group == group->group_id &&
                header.epoch == group->epoch && header.rank == control->rank;
    if (!fits) {
        weft_log(group->env, WEFT_LOG_WARN, "collective", "group %u: ignored a message of rank %u that is none of this group and epoch",
                 group->group_id, control->rank);
        return;
    }
    switch (header.type) {
    case COLL_MESSAGE_FAIL: {
        control->text[control->receive.payload_bytes] = 0;
        for (char *c = control->text; *c; c++)
            if ((unsigned char)*c < ' ') *c = ' ';
        bool known = header.status < 0 && header.status > -100;
        group_end(group, known ? (enum weft_status)header.status : WEFT_ERR_ABORTED, false, "%s",
                  control->text[0] ? control->text : "another rank ended the group");
        break;
    }
    case COLL_MESSAGE_ASK: answer(control, header.sequence); break;
    case COLL_MESSAGE_ANSWER:
        control->answer_posted = header.count;
        if (group->verdict == VERDICT_ASKING && header.sequence == group->verdict_sequence && !control->answered) {
            control->answered = true;
            deadline_answered(group);
        }
        break;
    case COLL_MESSAGE_LEAVE: left(control, header.sequence); break;
    case COLL_MESSAGE_HOST: host_offered(control, control->text, control->receive.payload_bytes); break;
    case COLL_MESSAGE_HOST_VOTE: host_voted(control, (enum weft_status)header.status, header.sequence != 0); break;
    default: break;
    }
}

/* A rank may be gone because it has finished and closed: operations that wait for it fail by themselves (their transfers
 * do), the others get a moment to finish without it. */
static void peer_is_lost(struct control *control, enum weft_status status)
{
    struct weft_group *group = control->group;
    if (control->left || status == WEFT_ERR_CANCELLED) return;
    if (status == WEFT_ERR_CLOSED) {
        group_end(group, status, false, "the transport of this rank was closed");
        return;
    }
    control->lost = status;
    if (group->lost) return;
    group->lost = control;
    group->lost_until_ns = weft_now_ns(group->env) + GROUP_LOST_NS;
    group_kick(group);
}

void control_end_lost(struct weft_group *group)
{
    char name[128];
    group_describe(group, group->lost->rank, name, sizeof name);
    struct weft_coll *oldest = group->active_count > 0 ? weft_list_first(&group->active, struct weft_coll, link) : NULL;
    group_end(group, group->lost->lost, true, "lost %s %s operation %llu: %s", name, oldest ? "during" : "before",
              (unsigned long long)(oldest ? oldest->sequence : group->sequence), weft_status_text(group->lost->lost));
}

static void control_completed(struct weft_completion *completion, enum weft_status status)
{
    struct control *control = weft_container_of(completion, struct control, completion);
    struct weft_group *group = control->group;
    control->posted = false;
    if (!group->closing && group->fail_status == WEFT_OK) {
        if (status == WEFT_OK) received(control);
        else if (status != WEFT_ERR_TRUNCATED) peer_is_lost(control, status);
        bool listen = status == WEFT_OK || status == WEFT_ERR_TRUNCATED;
        if (listen && group->fail_status == WEFT_OK) control_post(control);
    }
    group_released(group);
}

static void control_post(struct control *control)
{
    struct weft_group *group = control->group;
    weft_completion_init(&control->completion, 1, control_completed);
    control->receive.completion = &control->completion;
    control->receive.buffer = control->text;
    control->receive.buffer_bytes = sizeof control->text - 1;
    enum weft_status status =
        weft_transport_recv(group->transport, weft_peer_id(control->peer), group_control_tag(group), &control->receive);
    if (status == WEFT_IN_PROGRESS) {
        control->posted = true;
        group->outstanding++;
    } else {
        peer_is_lost(control, status);
    }
}

enum weft_status control_start(struct weft_group *group, struct weft_error *error)
{
    for (uint32_t rank = 0; rank < group->ranks && group->fail_status == WEFT_OK && !group->lost; rank++)
        if (rank != group->rank) control_post(&group->controls[rank]);
    if (group->lost) control_end_lost(group);
    if (group->fail_status == WEFT_OK) return WEFT_OK;
    return weft_error_set(error, group->fail_status, "%s", group->fail_text);
}

void control_stop(struct weft_group *group)
{
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        struct control *control = &group->controls[rank];
        if (control->posted) weft_transport_cancel(group->transport, &control->receive);
    }
}
