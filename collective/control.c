/* control.c - news between the ranks of a group that belong to no operation's data.
 *
 * FAIL (the sender's group has ended: end too, with its status and text), ASK and ANSWER (deadline.c), LEAVE (the sender
 * freed its group in good order), and the death of a peer, of which every rank learns at once, also those that exchange
 * nothing with the dead. They come through news.c. What is kept for each other rank is small, as there may be
 * thousands, and only once there is something to keep (roster.c); of the texts of FAILs the first counts.
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

static struct coll_header header_of(const struct broadcast *broadcast)
{
    const struct weft_group *group = broadcast->group;
    if (broadcast->header) return *broadcast->header;
    struct coll_header header = {.type = broadcast->type, .group = group->group_id, .epoch = group->epoch, .rank = group->rank, .status = broadcast->status,
                                 .sequence = broadcast->sequence};
    if (broadcast->type == COLL_MESSAGE_FAIL) header.count = group->leaver_missed;
    if (broadcast->type == COLL_MESSAGE_LEAVE && group->host) header.count = group->host->vote;
    return header;
}

/* Both stay while the broadcast is busy. */
static size_t payload_of(const struct broadcast *broadcast, const void **payload_out)
{
    const struct weft_group *group = broadcast->group;
    if (broadcast->header) return 0;
    if (broadcast->type == COLL_MESSAGE_FAIL) return strlen(*payload_out = group->fail_text);
    if (broadcast->type != COLL_MESSAGE_HOST) return 0;
    *payload_out = &group->host->offer;
    return sizeof group->host->offer;
}

static void broadcast_go_on(struct broadcast *broadcast)
{
    struct weft_group *group = broadcast->group;
    uint8_t bytes[COLL_HEADER_BYTES + GROUP_TAIL_BYTES];
    struct coll_header header = header_of(broadcast);
    const void *payload = NULL;
    const size_t payload_bytes = payload_of(broadcast, &payload);
    coll_header_write(bytes, &header);
    struct weft_message message = {.tag = group_news_tag(group), .header = bytes, .header_bytes = COLL_HEADER_BYTES};
    if (payload_bytes <= GROUP_TAIL_BYTES) { /* short ones travel behind the header */
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
                trail_write(group, rank, &header);
                coll_header_write(bytes, &header);
            }
            enum weft_status status = weft_transport_send(group->roster->peers[rank], &message, &broadcast->completion);
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

static void broadcast_start(struct broadcast *broadcast, struct weft_group *group)
{
    broadcast->group = group;
    broadcast->next_rank = 0;
    broadcast->busy = true;
    weft_completion_init(&broadcast->completion, group->ranks - 1, broadcast_sent);
    group->outstanding++;
    broadcast_go_on(broadcast);
}

void control_send_all(struct broadcast *broadcast, struct weft_group *group, enum coll_message_type type, uint64_t sequence, enum weft_status status)
{
    if (broadcast->busy || group->ranks == 1) return;
    broadcast->type = (uint8_t)type;
    broadcast->sequence = sequence;
    broadcast->status = status;
    broadcast_start(broadcast, group);
}

void control_publish(struct broadcast *broadcast, struct weft_group *group, const struct coll_header *header)
{
    WEFT_ASSERT(!broadcast->busy && group->ranks > 1);
    broadcast->header = header;
    broadcast_start(broadcast, group);
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
static bool answer_send(struct weft_group *group, struct answer *answer, uint32_t rank)
{
    struct coll_header header = {.type = COLL_MESSAGE_ANSWER, .group = group->group_id, .epoch = group->epoch, .rank = group->rank,
                                 .sequence = group->notes[rank].asked_sequence, .count = group->sequence};
    deadline_answer(group, header.sequence, &header);
    uint8_t bytes[COLL_HEADER_BYTES];
    coll_header_write(bytes, &header);
    struct weft_message message = {.tag = group_news_tag(group), .header = bytes, .header_bytes = sizeof bytes};
    weft_completion_init(&answer->completion, 1, answer_sent);
    enum weft_status status = weft_transport_send(group->roster->peers[rank], &message, &answer->completion);
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
            struct note *note = &group->notes[group->asked_first];
            if (!answer_send(group, answer, group->asked_first)) {
                group->retry = true;
                group_kick(group);
                return;
            }
            group->asked_first = note->asked_next;
            note->asked = false;
        }
    }
    if (group->asked_first == GROUP_NOBODY) return;
    group->retry = true; /* all are on their way, perhaps for other groups */
    group_kick(group);
}

/* Without memory to note it there is no answer. */
static void asked(struct weft_group *group, uint32_t rank, uint64_t sequence)
{
    deadline_asked(group, sequence);
    struct note *note = roster_note(group, rank);
    if (!note) return;
    note->asked_sequence = sequence;
    if (!note->asked) {
        note->asked = true;
        note->asked_next = GROUP_NOBODY;
        if (group->asked_first == GROUP_NOBODY) group->asked_first = rank;
        else group->notes[group->asked_last].asked_next = rank;
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
        if (!group->notes[rank].left || group->notes[rank].left_after > sequence) continue;
        char name[128];
        group_describe(group, rank, name, sizeof name);
        group->leaver_missed = group->fail_status == WEFT_OK && !group->closing;
        group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before operation %llu", name, (unsigned long long)sequence);
        return false;
    }
    return true;
}

bool control_stays(struct weft_group *group, uint32_t rank, enum weft_coll_kind kind)
{
    if (group->lost) { /* which ends the group, whoever it is */
        control_end_lost(group);
        return false;
    }
    if (!roster_noted(group, rank).left) return true;
    if (kind == WEFT_COLL_RECV && trail_sent_more(group, rank)) return true; /* its earlier send can still be received */
    char name[128];
    group_describe(group, rank, name, sizeof name);
    group->leaver_missed = group->fail_status == WEFT_OK && !group->closing;
    group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before a %s", name, weft_coll_kind_name(kind));
    return false;
}

bool weft_group_leaver_missed(const struct weft_group *group) { return group->leaver_missed; }

static void left(struct weft_group *group, const struct coll_header *header)
{
    const uint32_t rank = header->rank;
    struct note *note = roster_note(group, rank);
    if (!note) {
        char name[128];
        group_describe(group, rank, name, sizeof name);
        group_end(group, WEFT_ERR_NO_MEMORY, true, "%s has left the group, and there is no memory to note it", name);
        return;
    }
    if (!note->left) group->left_count++;
    note->left = true;
    note->left_after = header->sequence;
    trail_read(note, header);
    tune_left(group, rank);
    host_left(group, rank, header->count);
    if (group->active_count > 0 && group->sequence > 0) control_all_stay(group, group->sequence - 1); /* every posted number needs it */
}

/* `text` may be anything, of another rank. */
static void end_as_told(struct weft_group *group, enum weft_status status, bool leaver, char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    bool known = status < 0 && status > -100;
    group->fail_came = group->fail_status == WEFT_OK;
    if (group->fail_status == WEFT_OK) group->leaver_missed = leaver && status == WEFT_ERR_PEER_LOST;
    group_end(group, known ? status : WEFT_ERR_ABORTED, false, "%s", text[0] ? text : "another rank ended the group");
}

static void told_text_received(struct weft_completion *completion, enum weft_status status)
{
    struct told *told = weft_container_of(completion, struct told, completion);
    struct weft_group *group = told->group;
    if (status < 0) told->text[0] = 0;
    if (!group->closing) end_as_told(group, told->status, told->leaver, told->text);
    group_released(group);
}

/* The text follows the header. false: there is none, or no memory for it. */
static bool told_of_more(struct weft_group *group, struct weft_arrival *arrival, enum weft_status status, bool leaver)
{
    size_t bytes = arrival->payload_bytes;
    if (bytes == 0 || bytes >= GROUP_TEXT_BYTES || !(group->told = weft_alloc_zero(group->env, sizeof *group->told))) return false;
    struct told *told = group->told;
    told->group = group;
    told->status = status;
    told->leaver = leaver;
    weft_completion_init(&told->completion, 1, told_text_received);
    if (weft_transport_accept(group->transport, arrival, told->text, bytes, &told->completion) != WEFT_IN_PROGRESS) return false;
    group->outstanding++;
    return true;
}

/* The first FAIL ends the group. Consumes the arrival. */
static void told_of_end(struct weft_group *group, struct weft_arrival *arrival, const struct coll_header *header, const uint8_t *tail, size_t tail_bytes)
{
    if (group->told) { /* another's text is on its way */
        weft_transport_discard(group->transport, arrival);
        return;
    }
    group->fail_rank = header->rank;
    const enum weft_status status = header->status < 0 ? (enum weft_status)header->status : WEFT_ERR_ABORTED;
    const bool leaver = header->count == 1;
    if (told_of_more(group, arrival, status, leaver)) return;
    char text[GROUP_TAIL_BYTES + 1] = {0};
    memcpy(text, tail, tail_bytes);
    weft_transport_discard(group->transport, arrival);
    end_as_told(group, status, leaver, text);
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
                weft_peer_id(group->roster->peers[header.rank]) == arrival->peer_id;
    if (!fits)
        weft_log(group->env, WEFT_LOG_WARN, "collective", "group %u: ignored a message of endpoint %u that is none of this group and epoch",
                 group->group_id, arrival->peer_id);
    if (fits && header.type == COLL_MESSAGE_FAIL && group->fail_status == WEFT_OK && !group->closing) {
        told_of_end(group, arrival, &header, tail, tail_bytes);
        return;
    }
    weft_transport_discard(group->transport, arrival);
    if (!fits || group->fail_status < 0 || group->closing) return;
    switch (header.type) {
    case COLL_MESSAGE_ASK: asked(group, header.rank, header.sequence); break;
    case COLL_MESSAGE_ANSWER: deadline_answered(group, header.rank, &header); break;
    case COLL_MESSAGE_LEAVE: left(group, &header); break;
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
static void rank_is_lost(struct weft_group *group, uint32_t rank, enum weft_status status)
{
    if (roster_noted(group, rank).left || group->lost || group->closing || group->fail_status < 0) return;
    group->lost = true;
    group->lost_rank = rank;
    group->lost_status = status;
    group->lost_until_ns = weft_now_ns(group->env) + GROUP_LOST_NS;
    group_kick(group);
}

void control_lost(struct weft_group *group, uint32_t peer_id, enum weft_status status)
{
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        struct weft_peer *peer = group->roster->peers[rank];
        if (peer && weft_peer_id(peer) == peer_id) rank_is_lost(group, rank, status);
    }
}

void control_end_lost(struct weft_group *group)
{
    char name[128];
    group_describe(group, group->lost_rank, name, sizeof name);
    struct weft_coll *oldest = group->active_count > 0 ? weft_list_first(&group->active, struct weft_coll, link) : NULL;
    if (oldest && oldest->pairwise) {
        group_end(group, group->lost_status, true, "lost %s during a %s: %s", name, weft_coll_kind_name(oldest->args.kind), weft_reason_text(group->lost_status));
        return;
    }
    group_end(group, group->lost_status, true, "lost %s %s operation %llu: %s", name, oldest ? "during" : "before",
              (unsigned long long)(oldest ? oldest->sequence : group->sequence), weft_reason_text(group->lost_status));
}

enum weft_status control_start(struct weft_group *group, bool gone_later, struct weft_error *error)
{
    group->asked_first = GROUP_NOBODY;
    enum weft_status status = news_join(group);
    if (status < 0) return weft_error_set(error, status, "no memory for a group of %u ranks", group->ranks);
    for (uint32_t rank = 0; rank < group->ranks && !group->lost; rank++) {
        struct weft_peer *peer = group->roster->peers[rank];
        if (peer && weft_peer_status(peer) < 0) rank_is_lost(group, rank, weft_peer_status(peer));
    }
    if (group->lost) control_end_lost(group);
    if (group->fail_status == WEFT_OK || gone_later) return WEFT_OK;
    return weft_error_set(error, group->fail_status, "%s", group->fail_text);
}
