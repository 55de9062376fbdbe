/* control.c - news between the ranks of a group that belong to no operation's data.
 *
 * FAIL (the sender's group has ended: end too, with its status and text), ASK and ANSWER (deadline.c), LEAVE (the sender
 * freed its group in good order), and the death of a peer, of which every rank learns at once, also those that exchange
 * nothing with the dead. They come through news.c. What is kept for each other rank is small, as there may be
 * thousands; the text of a FAIL is received into the group, and only the first counts.
 *
 * A peer that left is not missed by operations it has taken part in; one it has not makes the group end. */
#include "collective/host.h"
#include "collective/tune.h"

#include <string.h>

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
    uint8_t bytes[COLL_HEADER_BYTES + GROUP_TAIL_BYTES];
    coll_header_write(bytes, &broadcast->header);
    struct weft_message message = {.tag = group_news_tag(group), .header = bytes, .header_bytes = COLL_HEADER_BYTES};
    if (broadcast->payload_bytes <= GROUP_TAIL_BYTES) { /* short ones travel behind the header */
        if (broadcast->payload_bytes > 0) memcpy(bytes + COLL_HEADER_BYTES, broadcast->payload, broadcast->payload_bytes);
        message.header_bytes += (uint32_t)broadcast->payload_bytes;
    } else {
        message.payload = broadcast->payload;
        message.payload_bytes = broadcast->payload_bytes;
    }
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

static void broadcast_start(struct broadcast *broadcast, struct weft_group *group, const struct coll_header *header, const void *payload, size_t payload_bytes)
{
    broadcast->group = group;
    broadcast->header = *header;
    broadcast->payload = payload;
    broadcast->payload_bytes = payload_bytes;
    broadcast->next_rank = 0;
    broadcast->busy = true;
    weft_completion_init(&broadcast->completion, group->ranks - 1, broadcast_sent);
    group->outstanding++;
    broadcast_go_on(broadcast);
}

void control_send_all(struct broadcast *broadcast, struct weft_group *group, enum coll_message_type type, uint64_t sequence,
                      enum weft_status status, const void *payload, size_t payload_bytes)
{
    struct coll_header header = {.type = (uint8_t)type, .group = group->group_id, .epoch = group->epoch, .rank = group->rank,
                                 .status = status, .sequence = sequence, .count = type == COLL_MESSAGE_FAIL && group->leaver_missed};
    if (!broadcast->busy && group->ranks > 1) broadcast_start(broadcast, group, &header, payload, payload_bytes);
}

void control_publish(struct broadcast *broadcast, struct weft_group *group, const struct coll_header *header)
{
    WEFT_ASSERT(!broadcast->busy && group->ranks > 1);
    broadcast_start(broadcast, group, header, NULL, 0);
}

#define BROADCASTS 7u
static size_t broadcasts_of(struct weft_group *group, struct broadcast *all[BROADCASTS])
{
    struct broadcast *always[] = {&group->fail, &group->ask, &group->leave, &group->offer, &group->vote};
    memcpy(all, always, sizeof always);
    if (!group->tune) return 5;
    all[5] = &group->tune->table;
    all[6] = &group->tune->commit;
    return 7;
}

static void answers_go_on(struct weft_group *group);

void control_retry(struct weft_group *group)
{
    struct broadcast *all[BROADCASTS];
    size_t count = broadcasts_of(group, all);
    for (size_t i = 0; i < count; i++)
        if (all[i]->busy) broadcast_go_on(all[i]);
    answers_go_on(group);
    tune_retry(group);
}

void control_give_up(struct weft_group *group)
{
    struct broadcast *all[BROADCASTS];
    size_t count = broadcasts_of(group, all);
    for (size_t i = 0; i < count; i++)
        while (all[i]->busy && all[i]->next_rank < group->ranks)
            if (all[i]->next_rank++ != group->rank) weft_completion_finish(&all[i]->completion, WEFT_OK);
}

/* ---- answers, a few in flight at a time ---- */
static void answer_sent(struct weft_completion *completion, enum weft_status status)
{
    struct answer *answer = weft_container_of(completion, struct answer, completion);
    struct weft_group *group = answer->group;
    answer->busy = false;
    if (!group->closing && group->fail_status == WEFT_OK) answers_go_on(group);
    group_released(group);
}

/* false: later. Any other trouble counts as no answer. */
static bool answer_send(struct weft_group *group, struct answer *answer, struct control *control)
{
    struct coll_header header = {.type = COLL_MESSAGE_ANSWER, .group = group->group_id, .epoch = group->epoch, .rank = group->rank,
                                 .sequence = control->asked_sequence, .count = group->sequence};
    deadline_answer(group, control->asked_sequence, &header);
    uint8_t bytes[COLL_HEADER_BYTES];
    coll_header_write(bytes, &header);
    struct weft_message message = {.tag = group_news_tag(group), .header = bytes, .header_bytes = sizeof bytes};
    weft_completion_init(&answer->completion, 1, answer_sent);
    enum weft_status status = weft_transport_send(control->peer, &message, &answer->completion);
    if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) return false;
    if (status != WEFT_IN_PROGRESS) return true;
    answer->group = group;
    answer->busy = true;
    group->outstanding++;
    return true;
}

static void answers_go_on(struct weft_group *group)
{
    for (uint32_t i = 0; i < GROUP_ANSWERS && group->asked_first != GROUP_NOBODY; i++) {
        struct answer *answer = &group->records->answers[i];
        while (!answer->busy && group->asked_first != GROUP_NOBODY) {
            struct control *control = &group->controls[group->asked_first];
            if (!answer_send(group, answer, control)) {
                group->retry = true;
                group_kick(group);
                return;
            }
            group->asked_first = control->asked_next;
            control->asked = false;
        }
    }
    if (group->asked_first == GROUP_NOBODY) return;
    group->retry = true; /* all are on their way, perhaps for other groups */
    group_kick(group);
}

static void asked(struct weft_group *group, struct control *control, uint64_t sequence)
{
    deadline_asked(group, sequence);
    control->asked_sequence = sequence;
    if (!control->asked) {
        uint32_t rank = (uint32_t)(control - group->controls);
        control->asked = true;
        control->asked_next = GROUP_NOBODY;
        if (group->asked_first == GROUP_NOBODY) group->asked_first = rank;
        else group->controls[group->asked_last].asked_next = rank;
        group->asked_last = rank;
    }
    answers_go_on(group);
}

/* ---- what comes in ---- */
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
        group->leaver_missed = group->fail_status == WEFT_OK && !group->closing;
        group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before operation %llu", name, (unsigned long long)sequence);
        return false;
    }
    return true;
}

bool weft_group_leaver_missed(const struct weft_group *group) { return group->leaver_missed; }

static void left(struct weft_group *group, struct control *control, uint64_t after)
{
    if (!control->left) group->left_count++;
    control->left = true;
    control->left_after = after;
    tune_left(group, (uint32_t)(control - group->controls));
    if (group->active_count > 0 && group->sequence > 0) control_all_stay(group, group->sequence - 1); /* every posted number needs it */
}

static void end_as_told(struct weft_group *group, enum weft_status status, const char *text)
{
    bool known = status < 0 && status > -100;
    if (group->fail_status == WEFT_OK) group->leaver_missed = group->told_leaver && status == WEFT_ERR_PEER_LOST;
    group_end(group, known ? status : WEFT_ERR_ABORTED, false, "%s", text[0] ? text : "another rank ended the group");
}

static void told_clean(struct weft_group *group)
{
    for (char *c = group->told_text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
}

static void told_text_received(struct weft_completion *completion, enum weft_status status)
{
    struct weft_group *group = weft_container_of(completion, struct weft_group, told_completion);
    if (status < 0) group->told_text[0] = 0;
    told_clean(group);
    if (!group->closing) end_as_told(group, group->told_status, group->told_text);
    group_released(group);
}

/* The first FAIL ends the group; its text follows the header. Consumes the arrival. */
static void told_of_end(struct weft_group *group, struct weft_arrival *arrival, const struct coll_header *header, const uint8_t *tail, size_t tail_bytes)
{
    if (group->told_status < 0) { /* another's text is on its way */
        weft_transport_discard(group->transport, arrival);
        return;
    }
    size_t bytes = arrival->payload_bytes;
    group->told_status = header->status < 0 ? (enum weft_status)header->status : WEFT_ERR_ABORTED;
    group->told_leaver = header->count == 1;
    memset(group->told_text, 0, sizeof group->told_text);
    weft_completion_init(&group->told_completion, 1, told_text_received);
    if (bytes > 0 && bytes < sizeof group->told_text &&
        weft_transport_accept(group->transport, arrival, group->told_text, bytes, &group->told_completion) == WEFT_IN_PROGRESS) {
        group->outstanding++;
        return;
    }
    memcpy(group->told_text, tail, tail_bytes);
    weft_transport_discard(group->transport, arrival);
    told_clean(group);
    end_as_told(group, group->told_status, group->told_text);
}

void control_news(struct weft_group *group, struct weft_arrival *arrival)
{
    struct coll_header header;
    uint8_t tail[GROUP_TAIL_BYTES];
    size_t tail_bytes = arrival->header_bytes > COLL_HEADER_BYTES ? arrival->header_bytes - COLL_HEADER_BYTES : 0;
    if (tail_bytes > sizeof tail) tail_bytes = 0; /* no sender of this version does that */
    memcpy(tail, arrival->header + COLL_HEADER_BYTES, tail_bytes);
    bool fits = coll_header_read(arrival->header, arrival->header_bytes - tail_bytes, &header) && header.group == group->group_id &&
                header.epoch == group->epoch && header.rank < group->ranks && header.rank != group->rank &&
                weft_peer_id(group->controls[header.rank].peer) == arrival->peer_id;
    if (!fits)
        weft_log(group->env, WEFT_LOG_WARN, "collective", "group %u: ignored a message of endpoint %u that is none of this group and epoch",
                 group->group_id, arrival->peer_id);
    if (fits && header.type == COLL_MESSAGE_FAIL && group->fail_status == WEFT_OK && !group->closing) {
        told_of_end(group, arrival, &header, tail, tail_bytes);
        return;
    }
    weft_transport_discard(group->transport, arrival);
    if (!fits || group->fail_status < 0 || group->closing) return;
    struct control *control = &group->controls[header.rank];
    switch (header.type) {
    case COLL_MESSAGE_ASK: asked(group, control, header.sequence); break;
    case COLL_MESSAGE_ANSWER: deadline_answered(group, control, &header); break;
    case COLL_MESSAGE_LEAVE: left(group, control, header.sequence); break;
    case COLL_MESSAGE_HOST: host_offered(group, header.rank, tail, tail_bytes); break;
    case COLL_MESSAGE_TUNE_REPORT:
    case COLL_MESSAGE_TUNE_TABLE:
    case COLL_MESSAGE_TUNE_ACK:
    case COLL_MESSAGE_TUNE_COMMIT: tune_news(group, &header); break;
    case COLL_MESSAGE_HOST_VOTE: host_voted(group, header.rank, (enum weft_status)header.status, header.sequence != 0); break;
    default: break;
    }
}

/* A rank may be gone because it has finished and closed: operations that wait for it fail by themselves (their transfers
 * do), the others get a moment to finish without it. */
static void rank_is_lost(struct weft_group *group, struct control *control, enum weft_status status)
{
    if (control->left || group->lost || group->closing || group->fail_status < 0) return;
    group->lost = control;
    group->lost_status = status;
    group->lost_until_ns = weft_now_ns(group->env) + GROUP_LOST_NS;
    group_kick(group);
}

void control_lost(struct weft_group *group, uint32_t peer_id, enum weft_status status)
{
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        struct control *control = &group->controls[rank];
        if (control->peer && weft_peer_id(control->peer) == peer_id) rank_is_lost(group, control, status);
    }
}

void control_end_lost(struct weft_group *group)
{
    char name[128];
    group_describe(group, (uint32_t)(group->lost - group->controls), name, sizeof name);
    struct weft_coll *oldest = group->active_count > 0 ? weft_list_first(&group->active, struct weft_coll, link) : NULL;
    if (oldest && oldest->pairwise) {
        group_end(group, group->lost_status, true, "lost %s during a %s: %s", name, weft_coll_kind_name(oldest->args.kind), weft_status_text(group->lost_status));
        return;
    }
    group_end(group, group->lost_status, true, "lost %s %s operation %llu: %s", name, oldest ? "during" : "before",
              (unsigned long long)(oldest ? oldest->sequence : group->sequence), weft_status_text(group->lost_status));
}

enum weft_status control_start(struct weft_group *group, bool gone_later, struct weft_error *error)
{
    group->asked_first = GROUP_NOBODY;
    enum weft_status status = news_join(group);
    if (status < 0) return weft_error_set(error, status, "no memory for a group of %u ranks", group->ranks);
    for (uint32_t rank = 0; rank < group->ranks && !group->lost; rank++) {
        struct control *control = &group->controls[rank];
        if (control->peer && weft_peer_status(control->peer) < 0) rank_is_lost(group, control, weft_peer_status(control->peer));
    }
    if (group->lost) control_end_lost(group);
    if (group->fail_status == WEFT_OK || gone_later) return WEFT_OK;
    return weft_error_set(error, group->fail_status, "%s", group->fail_text);
}
