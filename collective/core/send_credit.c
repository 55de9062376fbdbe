/* send_credit.c - see send_credit.h.
 *
 * The credit is a few messages to each peer, and what a link carries during the trips of a rendezvous. The
 * rate is that of the link table (collective.links), else 5 Gbit/s; the latency that of the table or the time
 * of the shortest small operation, whichever is longer.
 *
 * No deadlock: 1. The oldest operation of the group may always have one send to each peer in flight. 2. All
 * ranks post in one order: the lowest sequence that is active on any rank is the oldest where it is active.
 * 3. Its sends to one peer are in step order, so its least unfinished message is never held. */
#include "collective/core/send_credit.h"

#include "collective/core/group.h"
#include "collective/core/op.h"

#include <math.h>

#define MESSAGES_IN_FLIGHT 4.0 /* to each peer; with fewer a busy processor leaves the link idle */
#define TRIPS 10.0 /* one way: announcement, grant, payload; of a contribution, a result, the next chunk */
#define QUICK_SECONDS 0.5e-3 /* a fast link sends more messages than these in a time that delays little */
#define BYTES_PER_SECOND_UNKNOWN 625e6
#define SHORT_BYTES_MAX 1024u /* its time is the latency of the links, and more while they are busy */

void send_credit_open(struct weft_group *group)
{
    if (group->send_credit) return;
    const size_t bytes = sizeof *group->send_credit + group->ranks * sizeof group->send_credit->to_peer[0];
    group->send_credit = weft_alloc_zero(group->env, bytes);
}

void send_credit_close(struct weft_group *group)
{
    weft_free_bytes(group->env, group->send_credit);
    group->send_credit = NULL;
}

static bool is_oldest(const struct weft_coll *coll)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &coll->group->active) {
        const struct weft_coll *other = weft_container_of(node, struct weft_coll, link);
        if (!other->is_sendrecv && other->phase == COLL_RUNNING && other->sequence < coll->sequence)
            return false;
    }
    return true;
}

static bool has_send_in_flight(const struct weft_coll *coll, uint32_t peer)
{
    const uint32_t window = coll->group->window;
    for (uint64_t number = coll->tail; number < coll->head; number++) {
        const struct slot *slot = &coll->slots[number % window];
        if (slot->state == SLOT_POSTED && slot->action.kind == WEFT_ACTION_SEND && slot->action.peer == peer)
            return true;
    }
    return false;
}

static double credit_bytes(const struct weft_group *group)
{
    const struct send_credit *credit = group->send_credit;
    const struct weft_link_cost *cost = &group->cost;
    const uint64_t latency_ns = cost->latency_ns > credit->latency_ns ? cost->latency_ns : credit->latency_ns;
    const double rate =
                     cost->bytes_per_second > 0 ? (double)cost->bytes_per_second : BYTES_PER_SECOND_UNKNOWN,
                 on_the_way = TRIPS * rate * 1e-9 * (double)latency_ns, quick = rate * QUICK_SECONDS,
                 messages = MESSAGES_IN_FLIGHT * (double)credit->longest_bytes;
    if (latency_ns == 0) return HUGE_VAL;
    return ((messages > quick ? messages : quick) + on_the_way) * (group->ranks - 1);
}

static bool has_credit(const struct weft_group *group, uint32_t peer, size_t bytes)
{
    const struct send_credit *credit = group->send_credit;
    if (credit->to_peer[peer] == 0) return true;
    return !credit->is_least && (double)(credit->in_flight + bytes) <= credit_bytes(group);
}

bool send_credit_holds(struct weft_coll *coll, uint32_t peer, size_t bytes)
{
    struct send_credit *credit = coll->group->send_credit;
    if (!credit || coll->args.urgency == 0 || has_credit(coll->group, peer, bytes) ||
        (is_oldest(coll) && !has_send_in_flight(coll, peer)))
        return false;
    if (!coll->is_held) credit->held_count++;
    coll->is_held = true;
    return true;
}

void send_credit_take(struct slot *slot, size_t bytes)
{
    const struct weft_coll *coll = slot->coll;
    struct weft_group *group = coll->group;
    struct send_credit *credit = group->send_credit;
    slot->credit_bytes = 0;
    if (!credit || coll->args.urgency == 0 || bytes == 0) return;
    slot->credit_bytes = bytes;
    if (bytes > credit->longest_bytes) credit->longest_bytes = bytes;
    credit->in_flight += bytes;
    credit->to_peer[slot->action.peer] += bytes;
}

static void wake_held(struct weft_group *group)
{
    struct weft_list *node, *spare;
    group->send_credit->held_count = 0;
    weft_list_foreach (node, spare, &group->active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (!coll->is_held) continue;
        coll->is_held = false;
        coll_mark_ready(coll);
    }
}

void send_credit_op_ended(const struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    struct send_credit *credit = group->send_credit;
    if (!credit) return;
    if (!coll->is_sendrecv && coll->status == WEFT_OK && !coll->path.is_active &&
        coll->header.count * coll->elem_bytes <= SHORT_BYTES_MAX) {
        const uint64_t ns = weft_elapsed_ns(coll->posted_ns, weft_now_ns(group->env)) + 1;
        if (credit->latency_ns == 0 || ns < credit->latency_ns) credit->latency_ns = ns;
    }
    if (credit->held_count > 0) wake_held(group); /* another operation is the oldest */
}

void send_credit_return(struct slot *slot)
{
    struct weft_group *group = slot->coll->group;
    struct send_credit *credit = group->send_credit;
    const size_t bytes = slot->credit_bytes;
    if (bytes == 0) return;
    slot->credit_bytes = 0;
    credit->in_flight -= bytes;
    credit->to_peer[slot->action.peer] -= bytes;
    if (credit->held_count > 0) wake_held(group);
}
